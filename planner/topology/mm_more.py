"""Towers and what stands behind them of DeepSeek-VL, Janus, Unlimited-OCR, Granite Docling and their like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from planner.blocks import Attention, Block, Leaf, Norm, Weights, linear, vector
from planner.errors import PlanError
from planner.fields import Config
from planner.model import Layer, Run, Stack, Sublayer, runs
from planner.topology.listeners import got_tower
from planner.topology.multimodal import part
from planner.topology.towers import Further, Tower, and_class, every_patch, merger, multiple, two, vit, whole_numbers

UP = dict(bias=True, feeds="merged")


def _affine(name: str, size: int, kind: Any = "norm") -> Leaf:
    return vector(name, size, kind, bias=True)


def below(blocks: Sequence[Block], at: str) -> tuple[Block, ...]:
    """Return blocks with a path in front of their leaves' names."""
    return tuple(
        Weights(tuple(replace(leaf, name=f"{at}.{leaf.name}") for leaf in block.leaves())) for block in blocks
    )


def aligned(_c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """DeepSeek-VL: two matrices."""
    return (merger("aligner", tower.width, width, width, names=("", "linear1", "linear2")),)


def sharp(c: Config, width: int) -> Sequence[Stack]:
    """DeepSeek-VL's second tower, SAM's, for images in high resolution; its first global layer's rows get a neck of their own."""
    own = part(c, "high_res_vision_config")
    tower = got_tower(own)
    own.ignore("mlp_ratio", "num_pos_feats")
    d, out, at = own.count("hidden_size"), tower.width, "high_res_vision_model.vision_encoder"
    neck = Weights(
        (
            linear("high_res_vision_neck.conv1", d, out, "conv", work="conv"), _affine("high_res_vision_neck.layer_norm1", out),
            linear("high_res_vision_neck.conv2", 9 * out, out, "conv", work="conv"), _affine("high_res_vision_neck.layer_norm2", out),
            vector("high_res_vision_alpha", 1, "other"),
            linear("high_res_vision_proj.conv1", 9 * out, 2 * out, "other", work="conv", feeds="merged", rate=4),
            linear("high_res_vision_proj.conv2", 18 * out, 4 * out, "other", work="conv", feeds="merged"),
            linear("aligner.high_res_vision_proj", 4 * out, width // 2, "other", bias=True, feeds="merged"),
        )
    )  # fmt: skip
    body = tuple(replace(run, list=f"{at}.{tower.list}") for run in runs(list(tower.layers)))
    return (Stack("vision", below(tower.front, at), body, (*below(tower.back, at), neck)),)


def blurred(_c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """DeepSeek-VL hybrid: half of a row's width is each tower's; one more matrix."""
    return (
        Weights(
            (
                linear("aligner.vision_proj", tower.width, width // 2, "other", bias=True, feeds="merged"),
                linear("aligner.proj", width, width, "other", bias=True, feeds="merged"),
            )
        ),
    )


def janus_tower(c: Config) -> Tower:
    """Janus' tower: SigLIP's, whose norms of queries and keys may be there, and add vectors."""
    bias = "qkv out mlp" if c.flag("attention_bias", True) else "out mlp"
    tower = vit(
        c, epsilon="layer_norm_eps", hidden=lambda inner: multiple(inner, "hidden_size", "mlp_ratio"), biases=bias, patch_bias=True,
        positions=every_patch, norms="post",
    )  # fmt: skip
    if not c.flag("use_qk_norm", False):
        return tower
    norm = Norm(tower.width, "layer", True)
    return tower._replace(layers=tuple(_normed(layer, norm) for layer in tower.layers))


def _normed(layer: Layer, norm: Norm) -> Layer:
    """Return a layer whose queries and keys are normed."""
    return replace(
        layer,
        sublayers=tuple(
            replace(sub, block=replace(sub.block, qk_norm=norm)) if isinstance(sub.block, Attention) else sub
            for sub in layer.sublayers
        ),
    )


def janus_projector(_c: Config, inner: Config, tower: Tower, _width: int) -> Sequence[Block]:
    """One matrix; further ones are a list of their own."""
    return (Weights((linear("aligner.fc1", tower.width, inner.count("projection_dim"), "other", **UP),)),)  # type: ignore[arg-type]


def _more(name: str, width: int, count: int) -> tuple[Run, ...]:
    """Return the further matrices of an aligner."""
    one = Layer((Sublayer(Weights((linear("weight", width, width, "other", **UP),))),))  # type: ignore[arg-type]
    return (Run(count, one, list=name),) if count else ()


def _stored(name: str, into: int, out: int, kernel: int = 1, kind: Any = "conv") -> Leaf:
    """Return a convolution that only making images visits."""
    return Leaf(name, into * kernel * kernel, out, kind, bias=True)


def _resnet(at: str, into: int, out: int) -> list[Leaf]:
    """Return two convolutions after norms, and a third where the width changes."""
    leaves = [
        _affine(f"{at}.norm1", into), _stored(f"{at}.conv1", into, out, 3), _affine(f"{at}.norm2", out), _stored(f"{at}.conv2", out, out, 3),
    ]  # fmt: skip
    return leaves if into == out else [*leaves, _stored(f"{at}.nin_shortcut", into, out)]


def _attends(at: str, width: int) -> list[Leaf]:
    """Return attention between the places of an image."""
    names = ("q", "k", "v", "proj_out")
    return [_affine(f"{at}.norm", width), *(_stored(f"{at}.{name}", width, width, kind="attention") for name in names)]


def _mid(at: str, width: int) -> list[Leaf]:
    """Return the blocks at the lowest resolution."""
    ends = (_resnet(f"{at}.mid.block_1", width, width), _resnet(f"{at}.mid.block_2", width, width))
    return [*ends[0], *_attends(f"{at}.mid.attn_1", width), *ends[1]]


def _levels(into: list[int], out: list[int], count: int, last: list[bool], final: int, change: str) -> list[Layer]:
    """Return a level for each resolution: residual blocks, attention where `last`, and a change of resolution but in level `final`."""
    made = []
    for i, wide in enumerate(out):
        leaves = [
            leaf for j in range(count)
            for leaf in (*_resnet(f"block.{j}", wide if j else into[i], wide), *(_attends(f"attn.{j}", wide) if last[i] else ()))
        ]  # fmt: skip
        change_leaf = [_stored(f"{change}.conv", wide, wide, 3)] if i != final else []
        made.append(Layer((Sublayer(Weights((*leaves, *change_leaf))),)))
    return made


def vqgan(c: Config, at: str, *, decoder: bool = True) -> tuple[tuple[Run, ...], tuple[Leaf, ...]]:
    """Return the lists of an autoencoder with a codebook (VQ-GAN, arXiv:2012.09841), and what stands around them."""
    base, many = c.count("base_channels"), whole_numbers(c, "channel_multiplier")
    if not many or min(many) < 1:
        raise PlanError("whole numbers above 0 are needed", where=c.where("channel_multiplier"), fix="correct the file")
    blocks, latent, wide = c.count("num_res_blocks"), c.count("latent_channels"), base * many[-1]
    e, codes, n = c.count("embed_dim"), c.count("num_embeddings"), len(many)
    out = [base * each for each in many]
    down = _levels([base, *out[:-1]], out, blocks, [i == n - 1 for i in range(n)], n - 1, "downsample")
    lists = [replace(run, list=f"{at}.encoder.down") for run in runs(down)]
    leaves = [
        _stored(f"{at}.encoder.conv_in", c.count("in_channels"), base, 3), *_mid(f"{at}.encoder", wide), _affine(f"{at}.encoder.norm_out", wide),
        _stored(f"{at}.encoder.conv_out", wide, latent * (2 if c.flag("double_latent", False) else 1), 3),
        Leaf(f"{at}.quantize.embedding", codes, e, "embedding"), _stored(f"{at}.quant_conv", latent, e), _stored(f"{at}.post_quant_conv", e, latent),
    ]  # fmt: skip
    if decoder:
        back = out[::-1]
        up = _levels([wide, *back[:-1]], back, blocks + 1, [i == 0 for i in range(n)], n - 1, "upsample")
        lists += [replace(run, list=f"{at}.decoder.up") for run in runs(up)]
        leaves += [
            _stored(f"{at}.decoder.conv_in", latent, wide, 3), *_mid(f"{at}.decoder", wide), _affine(f"{at}.decoder.norm_out", back[-1]),
            _stored(f"{at}.decoder.conv_out", back[-1], c.count("out_channels"), 3),
        ]  # fmt: skip
    return tuple(lists), tuple(leaves)


def paints(c: Config, _width: int) -> Sequence[Stack]:
    """Janus' further part: an autoencoder of images, whose codes the text model reads and writes."""
    sees, own = next(each for each in c.below if each.scope.endswith("vision_config.")), part(c, "vq_config")
    lists, leaves = vqgan(own, "vqmodel")
    codes, e, p = own.count("num_embeddings"), own.count("embed_dim"), own.count("projection_dim")
    generation = (
        Leaf("generation_embeddings", codes, e, "embedding"),
        _stored("generation_aligner.fc1", e, p, kind="other"),
        _stored("generation_head.proj_out", own.count("image_token_embed_dim"), p, kind="other"),
        _stored("generation_head.vision_head", p, codes, kind="other"),
    )
    own.ignore("num_patches")
    aligner = _more("aligner.hidden_layers", sees.count("projection_dim"), sees.count("depth", low=1) - 1)
    further = own.count("num_hidden_layers") - 1
    one = Layer((Sublayer(Weights((_stored("weight", p, p, kind="other"),))),))
    again = (Run(further, one, list="generation_aligner.hidden_layers"),) if further else ()
    return (Stack("vision", (), (*aligner, *again, *lists), (Weights((*leaves, *generation)),)),)


def ocr_tower(c: Config) -> Tower:
    """Unlimited-OCR: SAM's tower cuts an image into rows, and CLIP's layers read them."""
    sam, clip = part(c, "sam_config"), part(c, "encoder_config")
    first = got_tower(sam)
    wide = whole_numbers(sam, "downsample_channels")
    second = vit(clip, epsilon="layer_norm_eps", class_token=True, positions=and_class, norms="pre")
    if len(wide) != 2 or min(wide) < 1:
        raise PlanError("two whole numbers are needed", where=sam.where("downsample_channels"), fix="correct the file")
    proj = (
        linear("proj.conv1", 9 * first.width, wide[0], "conv", work="conv", feeds="merged", rate=4),
        linear("proj.conv2", 9 * wide[0], wide[1], "conv", work="conv", feeds="merged"),
    )
    front = (*below(first.front, "sam_encoder"), *below(second.front[1:], "vision_encoder"))
    more = tuple(
        replace(run, list="vision_tower.vision_encoder.encoder.layers") for run in runs(list(second.layers))
    )
    back = below((*first.back, Weights(proj)), "sam_encoder")
    return Tower(front, first.layers, back, wide[1] + second.width, list="sam_encoder.layers", more=more)


def ocr_projector(_c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """One matrix, and learned rows that end lines and views."""
    ends = tuple(vector(name, width, "other") for name in ("view_separator", "image_newline"))
    return (Weights((linear("multi_modal_projector", tower.width, width, "other", bias=True, feeds="merged"), *ends)),)


def docling_connector(c: Config, d: int) -> tuple[Block, ...]:
    """Granite Docling: pixels are shuffled by one factor, and by half of it; mergers for further layers; one matrix for both."""
    out, factor = c.count("out_hidden_size"), c.count("scale_factor")
    deep = len(whole_numbers(c, "deepstack_visual_indexes", default=[3, 7, 10]))
    paths = {"coarse": factor, **({"fine": factor // 2} if c.flag("use_fine_route", True) else {})}
    made: list[Block] = []
    for name, side in paths.items():
        wide, at = d * side**2, f"connector.{name}"
        made.append(Weights((linear(f"{at}.projection", wide, out, "other", feeds="merged"),)))
        made += [
            merger(f"{at}.deepstack_mergers.{i}", wide, out, out, norm=Norm(wide, "layer", True), names=("layer_norm", "linear_1", "linear_2"))
            for i in range(deep)
        ]  # fmt: skip
    ends = (
        _affine("connector.ln_in", d, "other"), _affine("connector.ln_mid", out, "other"), _affine("connector.ln_out", out, "other"),
        linear("connector.mlp_fc2", out, out, "other", feeds="merged"),
    )  # fmt: skip
    return (*made, Weights(ends))


def docling_router(c: Config, _inner: Config, tower: Tower, _width: int) -> Sequence[Block]:
    """A small network may choose between both paths."""
    hidden, d, at = c.count("density_router_hidden_size", None), tower.width, "density_router"
    if hidden is None:
        return ()
    return (
        Weights(
            (
                linear(f"{at}.att", d, 1, "other", bias=True), _affine(f"{at}.norm", d, "other"),
                linear(f"{at}.fc1", d, hidden, "other", bias=True, feeds="sequence"),
                linear(f"{at}.fc2", hidden, 1, "other", bias=True, feeds="sequence"),
            )
        ),
    )  # fmt: skip
