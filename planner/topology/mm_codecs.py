"""Encoders that make codes of images and sound, whose rows a text model looks up in its own table (Apertus 1.5)."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from planner.blocks import Leaf, Weights, linear, vector
from planner.errors import PlanError
from planner.fields import Config
from planner.model import Layer, Sublayer
from planner.topology.towers import Tower, whole_numbers


def _whole(leaves: list[Leaf]) -> Weights:
    """Return leaves that keep 32 bits, as codes change with fewer."""
    return Weights(tuple(replace(leaf, own_dtype="float32") for leaf in leaves))


def _listed(c: Config, key: str, low: int = 1) -> list[int]:
    """Return a list of whole numbers of at least `low`, which isn't empty."""
    found = whole_numbers(c, key)
    if not found or min(found) < low:
        raise PlanError(f"found {found}, numbers from {low} are needed", where=c.where(key), fix="correct the file")
    return found


def _square(name: str, into: int, out: int, rate: int, side: int = 3) -> Leaf:
    return linear(name, side * side * into, out, "conv", bias=True, work="conv", rate=rate)


def _residual(at: str, into: int, out: int, rate: int) -> list[Leaf]:
    """Return two convolutions with a norm before each, and a matrix beside them where the width changes."""
    return [
        vector(f"{at}.norm1", into, "norm", bias=True), _square(f"{at}.conv1", into, out, rate),
        vector(f"{at}.norm2", out, "norm", bias=True), _square(f"{at}.conv2", out, out, rate),
        *([_square(f"{at}.nin_shortcut", into, out, rate, side=1)] if into != out else []),
    ]  # fmt: skip


def _attending(at: str, d: int, rate: int) -> list[Leaf]:
    """Return an attention of one head over all cells; how many there are isn't known, so scores aren't counted."""
    names = ("q", "k", "v", "proj_out")
    more = [linear(f"{at}.{name}", d, d, "attention", bias=True, rate=rate) for name in names]
    return [vector(f"{at}.norm", d, "norm", bias=True), *more]


def image_codes(c: Config) -> Tower:
    """Emu 3.5's encoder of images (VQGAN, arXiv:2012.09841): halved sides, a table names each cell."""
    first, blocks = c.count("base_channels"), c.count("num_res_blocks", low=0)
    widths = [first * wider for wider in _listed(c, "channel_multiplier")]
    attended, resolution = whole_numbers(c, "attn_resolutions"), c.count("resolution")
    latent, code = c.count("latent_channels"), c.count("embed_dim")
    into, last, stages = first, len(widths) - 1, []
    for i, d in enumerate(widths):
        leaves, rate = [], 4 ** (last - i)
        for j in range(blocks):
            leaves += _residual(f"layers.{j}.resnet", into, d, rate)
            if resolution // 2**i in attended:
                leaves += _attending(f"layers.{j}.attention", d, rate)
            into = d
        if i < last:
            leaves.append(_square("downsample.conv", d, d, rate // 4))
        stages.append(Layer((Sublayer(_whole(leaves)),)))
        if not blocks and into != d:
            raise PlanError("found 0, but widths differ", where=c.where("num_res_blocks"), fix="give at least 1")
    d = widths[-1]
    front = _whole([_square("encoder.conv_in", c.count("in_channels"), first, 4**last)])
    back = [
        *_residual("encoder.mid.block_1", d, d, 1), *_attending("encoder.mid.attn_1", d, 1),
        *_residual("encoder.mid.block_2", d, d, 1), vector("encoder.norm_out", d, "norm", bias=True),
        _square("encoder.conv_out", d, latent, 1), _square("quant_conv", latent, code, 1, side=1),
        linear("quantize.embedding", code, c.count("codebook_size"), "other"),
    ]  # fmt: skip
    return Tower((front,), tuple(stages), (_whole(back),), code, list="encoder.stages")


def sound_codes(c: Config) -> Tower:
    """WavTokenizer's encoder of waves (arXiv:2408.16532): a table names each row that is left."""
    width, d, ratios = c.count("hidden_size"), c.count("num_filters"), _listed(c, "upsampling_ratios")[::-1]
    kernel, narrow = c.count("residual_kernel_size"), c.count("compress")
    directed = c.text("norm_type", allowed=("weight_norm", "time_group_norm")) == "weight_norm"
    shortcut, hop = c.flag("use_conv_shortcut", True), prod(ratios)

    def conv(name: str, into: int, out: int, taps: int, rate: int) -> list[Leaf]:
        made = linear(f"{name}.conv", taps * into, out, "conv", bias=True, work="conv", rate=rate)
        norm = (
            vector(f"{name}.conv.parametrizations.weight.original0", out, "conv")
            if directed
            else vector(f"{name}.norm", out, "norm", bias=True)
        )
        return [made, norm]

    layers, rate = [conv("layer", c.count("audio_channels"), d, c.count("kernel_size"), hop)], hop
    for ratio in ratios:
        for _ in range(c.count("num_residual_layers", low=0)):
            less = max(d // narrow, 1)
            block = [*conv("block.1", d, less, kernel, rate), *conv("block.3", less, d, 1, rate)]
            layers.append([*block, *(conv("shortcut", d, d, 1, rate) if shortcut else [])])
        rate //= ratio
        layers += [[], conv("layer", d, 2 * d, 2 * ratio, rate)]
        d *= 2
    recurrent = [
        leaf
        for i in range(c.count("num_lstm_layers"))
        for leaf in (
            linear(f"lstm.weight_ih_l{i}", d, 4 * d, "recurrent", bias=True),
            linear(f"lstm.weight_hh_l{i}", d, 4 * d, "recurrent", bias=True),
        )
    ]
    layers += [recurrent, [], conv("layer", d, width, c.count("last_kernel_size"), 1)]
    codes, at = c.count("codebook_size"), "quantizer.codebook"
    book = [
        vector(f"{at}.inited", 1, "other", buffer=True), vector(f"{at}.cluster_size", codes, "other", buffer=True),
        Leaf(f"{at}.embed", width, codes, "other", "linear", buffer=True),
        Leaf(f"{at}.embed_avg", width, codes, "other", buffer=True),
    ]  # fmt: skip
    if c.count("codebook_dim", width) != width:
        raise PlanError(
            f"found {c.count('codebook_dim')}, but rows are {width} wide", where=c.where("codebook_dim"),
            fix="give both the same width",
        )  # fmt: skip
    made = tuple(Layer((Sublayer(_whole(leaves)),) if leaves else ()) for leaves in layers)
    return Tower((), made, (_whole(book),), width, list="encoder.layers")


def codes_each_second(_c: Config, inner: Config, _tower: Tower) -> tuple[int, int] | None:
    """One token for each hop of the encoder, if a second has a whole number of them."""
    rate, hop = inner.count("sampling_rate", 24_000), prod(_listed(inner, "upsampling_ratios"))
    return None if rate % hop else (rate // hop, rate // hop)
