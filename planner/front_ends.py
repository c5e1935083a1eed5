"""Convolutions that turn sound into an encoder's rows: what they store, and how many rows each makes for S of them.

Letters: S positions that enter the encoder's layers, k kernel, s stride, M mel bands, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from planner.blocks import Block, Leaf, Weights, linear, vector
from planner.errors import PlanError
from planner.fields import Config


class Convolution(NamedTuple):
    """One convolution over time.

    Attributes:
        name: as in checkpoints.
        channels: that one output reads. out: that it makes.
        kernel: k positions. stride: s positions.
        padded: as many rows leave as enter, divided by the stride; else only whole kernels count.
        bias: one more vector.
        bands: frequency bands that are computed side by side with the same weights (two-dimensional convolutions).
    """

    name: str
    channels: int
    out: int
    kernel: int
    stride: int = 1
    padded: bool = True
    bias: bool = True
    bands: int = 1


def made(chain: Sequence[Convolution], entering: int) -> list[int]:
    """Return the rows that each convolution makes of so many that enter."""
    found = []
    for each in chain:
        entering = -(-entering // each.stride) if each.padded else (entering - each.kernel) // each.stride + 1
        found.append(entering)
    return found


def needed(chain: Sequence[Convolution], leaving: int) -> int:
    """Return the fewest rows of which the last convolution makes `leaving`."""
    for each in reversed(chain):
        leaving = leaving * each.stride if each.padded else (leaving - 1) * each.stride + each.kernel
    return leaving


def entering_rows(chain: Sequence[Convolution], leaving: int) -> int:
    """Return the rows that are taken to enter: one more stride than leave, where these are enough, else the fewest."""
    stride = 1
    for each in chain:
        stride *= each.stride
    whole = (leaving + (not chain[0].padded)) * stride
    return whole if made(chain, whole)[-1] == leaving else needed(chain, leaving)


def convolutions(chain: Sequence[Convolution]) -> Weights:
    """Return a chain of convolutions as matrices over their kernels; their rows are a straight line in S."""
    low, high = (made(chain, entering_rows(chain, s)) for s in (1000, 1001))
    leaves = []
    for each, first, second in zip(chain, low, high, strict=True):
        rate = second - first
        leaves.append(
            linear(
                each.name, each.kernel * each.channels, each.out, "conv", bias=each.bias, work="conv",
                rate=rate * each.bands, further=(first - 1000 * rate) * each.bands,
            )
        )  # fmt: skip
    return Weights(tuple(leaves))


def moonshine(width: int) -> Weights:
    """Moonshine: three convolutions over the sound itself, and a norm of groups."""
    chain = convolutions(
        (
            Convolution("conv1", 1, width, 127, 64, padded=False, bias=False),
            Convolution("conv2", width, 2 * width, 7, 3, padded=False),
            Convolution("conv3", 2 * width, width, 3, 2, padded=False),
        )
    )
    return Weights((*chain.leaves(), vector("groupnorm", width, "norm", bias=True)))


def moonshine_frames(frame: int, width: int) -> Weights:
    """Moonshine Streaming: frames of sound, compressed and projected, then two convolutions that halve their number."""
    return Weights(
        (
            linear("embedder.linear", frame, width, "conv", rate=4),
            vector("embedder.comp.log_k", 1, "conv"),
            linear("embedder.conv1", 5 * width, 2 * width, "conv", bias=True, work="conv", rate=2),
            linear("embedder.conv2", 10 * width, width, "conv", bias=True, work="conv"),
        )
    )


def gated_convolutions(features: int, middle: int, width: int, kernels: Sequence[int]) -> Weights:
    """Speech2Text: each convolution halves the rows, and a gate halves its channels (arXiv:1911.08460)."""
    last = len(kernels) - 1
    return convolutions(
        [
            Convolution(
                f"conv.conv_layers.{i}",
                features if i == 0 else middle // 2,
                2 * width if i == last else middle,
                kernel,
                2,
            )
            for i, kernel in enumerate(kernels)
        ]
    )


def conformer_subsampling(bands: int, channels: int, width: int, kernel: int, stride: int, steps: int) -> Weights:
    """Parakeet: convolutions over time and bands, from the second on by channel, then across channels; a projection."""
    squares = kernel * kernel
    left = [bands]
    for _ in range(steps):
        left.append(-(-left[-1] // stride))
    leaves: list[Leaf] = []
    for i in range(steps):
        rate = stride ** (steps - 1 - i) * left[i + 1]
        at = 0 if i == 0 else 3 * i - 1
        leaves.append(linear(f"subsampling.layers.{at}", squares, channels, "conv", bias=True, work="conv", rate=rate))
        if i:
            leaves.append(
                linear(f"subsampling.layers.{at + 1}", channels, channels, "conv", bias=True, work="conv", rate=rate)
            )
    joined = channels * (bands // stride**steps)
    return Weights((*leaves, linear("subsampling.linear", joined, width, "conv", bias=True)))


def listed(c: Config, key: str, length: int | None = None) -> list[int]:
    """Return a list of at least one number from 1 on.

    Raises:
        PlanError: it is missing or empty.
    """
    found = c.counts(key, length, low=1)
    if not found:
        raise PlanError("found none, a list of whole numbers is needed", where=c.where(key), fix="correct the file")
    return found


def sound_convolutions(c: Config, width: int, *, plain: bool = False) -> tuple[Block, ...]:
    """Wav2vec 2.0: convolutions over the sound itself, a projection, and one more convolution in place of positions.

    Letters: D width, g groups (arXiv:2006.11477; the last one's weights are stored as a direction and its length).

    Args:
        c: the config.
        width: D.
        plain: a norm after each convolution, plain weights in the last one, and no row that hides others (OmniASR).
    """
    kernels = listed(c, "conv_kernel")
    strides, sizes = listed(c, "conv_stride", len(kernels)), listed(c, "conv_dim", len(kernels))
    bias = c.flag("conv_bias", False)
    each = plain or c.text("feat_extract_norm", "group", allowed=("group", "layer")) == "layer"
    chain = convolutions(
        [
            Convolution(f"feature_extractor.conv_layers.{i}.conv", before, out, kernel, stride, padded=False, bias=bias)
            for i, (before, out, kernel, stride) in enumerate(zip((1, *sizes), sizes, kernels, strides, strict=False))
        ]
    )
    norms = [
        vector(f"feature_extractor.conv_layers.{i}.layer_norm", out, "norm", bias=True)
        for i, out in enumerate(sizes if each else sizes[:1])
    ]
    reach, groups = c.count("num_conv_pos_embeddings"), c.count("num_conv_pos_embedding_groups")
    if width % groups:
        raise PlanError(
            f"found {groups}, which does not divide the width {width}",
            where=c.where("num_conv_pos_embedding_groups"), fix="allowed are its divisors",
        )  # fmt: skip
    hidden = not plain and (c.number("mask_time_prob", 0.0) > 0 or c.number("mask_feature_prob", 0.0) > 0)
    return (
        chain,
        Weights(
            (
                *norms,
                *([vector("masked_spec_embed", width, "other")] if hidden else []),
                vector("feature_projection.layer_norm", sizes[-1], "norm", bias=True),
                linear("feature_projection.projection", sizes[-1], width, "conv", bias=True),
                *([] if plain else [vector("pos_conv_embed.conv.parametrizations.weight.original0", reach, "conv")]),
                linear(
                    "pos_conv_embed.conv", reach * (width // groups), width, "conv", bias=True, work="conv",
                    further=1 - reach % 2,
                ),
            )
        ),
    )  # fmt: skip


def _residuals(c: Config, at: str, width: int) -> list[Leaf]:
    """Return SEANet's residual blocks at one scale: a kernel to fewer channels, and one back."""
    kernel, narrow = c.count("residual_kernel_size", 3), width // c.count("compress", 2)
    shortcut = c.flag("use_conv_shortcut", False)
    return [
        leaf
        for i in range(c.count("num_residual_layers", 1))
        for leaf in (
            Leaf(f"{at}.{i}.block.1.conv", kernel * width, narrow, "conv", bias=True),
            Leaf(f"{at}.{i}.block.3.conv", narrow, width, "conv", bias=True),
            *([Leaf(f"{at}.{i}.shortcut.conv", width, width, "conv", bias=True)] if shortcut else []),
        )
    ]


def mimi(c: Config) -> tuple[Weights, Weights]:
    """Return what Mimi stores outside of its transformers: what makes codes of sound, and what makes sound of codes.

    Nothing here is counted as work: the codes enter a model from outside (arXiv:2410.00037).
    """
    width, first, ratios = c.count("hidden_size"), c.count("num_filters", 64), c.counts("upsampling_ratios", low=1)
    steps = ratios or [8, 6, 5, 4]
    outer, last, sound = c.count("kernel_size", 7), c.count("last_kernel_size", 3), c.count("audio_channels", 1)
    up, down = "decoder.decoder_seanet", "encoder.encoder_seanet"
    encoder = [Leaf(f"{down}.first.conv", outer * sound, first, "conv", bias=True)]
    decoder = [Leaf(f"{up}.first.conv", outer * width, first * 2 ** len(steps), "conv", bias=True)]
    for i, step in enumerate(reversed(steps)):
        wide = first * 2**i
        encoder += _residuals(c, f"{down}.{i}", wide)
        encoder.append(Leaf(f"{down}.{i}.conv", 2 * step * wide, 2 * wide, "conv", bias=True))
    for i, step in enumerate(steps):
        wide = first * 2 ** (len(steps) - i)
        decoder.append(Leaf(f"{up}.{i}.conv", 2 * step * wide, wide // 2, "conv", bias=True))
        decoder += _residuals(c, f"{up}.{i}", wide // 2)
    encoder.append(Leaf(f"{down}.last.conv", last * first * 2 ** len(steps), width, "conv", bias=True))
    encoder.append(Leaf("encoder.downsample.conv", 4 * width, width, "conv"))
    decoder.append(Leaf(f"{up}.last.conv", last * first, sound, "conv", bias=True))
    decoder.append(Leaf("decoder.upsample.conv", 4 * width // c.count("upsample_groups", 512), width, "conv"))
    books, inner = c.count("num_quantizers", 32), c.count("vector_quantization_hidden_dimension", 256)
    codes, code = c.count("codebook_size", 2048), c.count("codebook_dim", width)
    for kind in ("semantic", "acoustic"):
        encoder.append(Leaf(f"quantizer.{kind}.input_proj", width, inner, "other"))
        encoder.append(Leaf(f"quantizer.{kind}.output_proj", inner, width, "other"))
    encoder.append(Leaf("quantizer.codebook.embed_sum", codes, code, "other", copies=books, buffer=True))
    encoder.append(Leaf("quantizer.codebook.cluster_usage", codes, 1, "other", copies=books, buffer=True))
    encoder.append(Leaf("quantizer.codebook.initialized", 1, 1, "other", copies=books, buffer=True))
    return Weights(tuple(encoder)), Weights(tuple(decoder))
