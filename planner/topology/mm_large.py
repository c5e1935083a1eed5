"""Towers, projectors and text models of large multimodal families (Inkling, Muse, Mistral Large 4, Molmo 2 ...)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise
from math import ceil, comb, log, prod
from struct import pack, unpack
from typing import Any

from planner.blocks import (
    Block,
    Cache,
    LatentAttention,
    Leaf,
    MixtureOfExperts,
    Norm,
    Table,
    Weights,
    linear,
    vector,
)
from planner.compressed import Indexer
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.model import Layer, Sublayer
from planner.topology import Anatomy, Request
from planner.topology.attention import attention, latent_attention, listed_windows
from planner.topology.decoder import Wiring, decoder
from planner.topology.multimodal import multimodal, part
from planner.topology.paired import conformer
from planner.topology.sparse import scheduled
from planner.topology.towers import Further, Tower, merger, table, vit, whole_numbers

Values = Mapping[str, Any]

MOST_PLANS = 100_000
"""Most ways to choose scales that are compared."""


def rewritten(c: Config, request: Request, *, change: Callable[[Config], Values], **traits: Any) -> Anatomy:
    """Return a multimodal model whose config class rewrites its parts before it reads them."""
    found = change(c)
    c.ignore(*(key for key in c.values if key not in found))
    return multimodal(replace(c, values=found), request, **traits)


def inside(c: Config, key: str) -> dict[str, Any]:
    """Return the object under a key, {} where there is none."""
    given = c.values.get(key)
    if given is not None and not isinstance(given, Mapping):
        raise PlanError(f"found {given!r}, an object is needed", where=c.where(key), fix="correct the file")
    return dict(given or {})


def _said(c: Config, kind: str, key: str, name: str, low: int = 1) -> int:
    """Return a whole number of a part, or what the part's class takes."""
    from planner.families import defaults  # noqa: PLC0415

    found = inside(c, key).get(name, defaults(kind)["defaults"].get(name))
    if type(found) is not int or found < low:
        raise PlanError(
            f"found {found!r}, a whole number is needed", where=f"{c.source}, {c.scope}{key}.{name}",
            fix="correct the file",
        )  # fmt: skip
    return found


def untied(_probe: Config) -> Values:
    """Head and table are never one matrix, whatever the config says."""
    return {"tie_word_embeddings": False}


def always_qwen3(c: Config) -> Values:
    """Cosmos 3: the tower is Qwen 3 VL's, whatever its config calls itself."""
    given = inside(c, "vision_config")
    return {**c.values, "vision_config": {**given, "model_type": "qwen3_vl_vision"}} if given else c.values


def edge_projector(c: Config, inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Cosmos 3 Edge: a norm, m x m neighbours become one row, and two matrices project it."""
    wide, norm = tower.width * inner.count("spatial_merge_size") ** 2, Norm(tower.width, "layer", bias=True)
    hidden = c.count("projector_hidden_size")
    return (merger("projector", wide, hidden, width, norm=norm, names=("norm", "linear_fc1", "linear_fc2")),)


def text_width(kind: str) -> Callable[[Config], Values]:
    """Return what gives Inkling's towers the width of the text model, which replaces their own."""

    def change(c: Config) -> Values:
        wide = {"text_hidden_size": _said(c, kind, "text_config", "hidden_size")}
        towers = {key: {**inside(c, key), **wide} for key in ("vision_config", "audio_config")}
        return {**c.values, **towers}

    return change


def _factors(c: Config, key: str) -> list[int]:
    """Return the products of a size's prime factors, the largest factor first."""
    left, found, divisor = c.count(key), [], 2
    if left > 2**20:
        raise PlanError(f"found {left}", where=c.where(key), fix="give a size below 1,048,577")
    while left > 1:
        while left % divisor == 0:
            found.append(divisor)
            left //= divisor
        divisor += 1
    return [prod(found[::-1][: i + 1]) for i in range(len(found))]


def _rounded(number: float) -> float:
    """Return a number in 32 bits, in which ties between scales are decided."""
    return float(unpack("f", pack("f", number))[0])


def _scales(c: Config, layers: int) -> list[tuple[int, int, int]]:
    """Return frames, side and channels of a patch's cells before and after each of Inkling's layers.

    Sides grow by one prime factor at a time, then frames; each layer ends at the scale next to an even share of all.
    """
    colours, sides, frames = c.count("num_channels", 3), _factors(c, "patch_size"), _factors(c, "temporal_patch_size")
    if not sides:
        raise PlanError("found 1, a patch needs more than one pixel", where=c.where("patch_size"), fix="correct it")
    scales = [
        (1, 1, colours),
        *((1, side, ceil(side**2 * colours / 64) * 64) for side in sides),
        *((frame, sides[-1], sides[-1] ** 2 * colours * frame * 64) for frame in frames),
    ]
    goal = _rounded(log(sides[-1] ** 2 * (frames or [1])[-1] * colours))
    sizes = [_rounded(log(frame * side**2)) for frame, side, _ in scales]
    share = _rounded(goal / layers)

    def off(step: int, index: int) -> float:
        near = step < (layers + 1) // 2
        ideal = _rounded(share * step) if near else _rounded(goal - share * (layers - step))
        return _rounded(abs(ideal - sizes[index]))

    if layers >= len(scales):
        chosen = [min(range(len(scales)), key=partial(off, step)) for step in range(layers + 1)]
    elif comb(len(scales), layers + 1) <= MOST_PLANS:
        ways = combinations(range(len(scales)), layers + 1)
        chosen = list(min(ways, key=lambda way: sum(off(step, i) for step, i in enumerate(way))))
    else:
        raise PlanError(
            f"found {layers} layers for {len(scales)} scales", where=c.where("num_hidden_layers"), fix="give more"
        )
    chosen[0], chosen[-1] = 0, len(scales) - 1
    return [scales[i] for i in chosen]


def inkling_patches(c: Config) -> Tower:
    """Inkling: matrices fold the pixels of a patch into one row, step by step."""
    layers, width = c.count("num_hidden_layers"), c.count("text_hidden_size")
    scales = _scales(c, layers)
    frames, side, _ = scales[-1]
    made = []
    for i, (before, after) in enumerate(pairwise(scales)):
        fold = (after[0] // before[0]) * (after[1] // before[1]) ** 2
        last = i == layers - 1
        out = width if last else after[2]
        cells = frames * side**2 // (after[0] * after[1] ** 2)
        leaves = [linear("projection", before[2] * fold, out, "mlp", rate=cells)]
        made.append(Layer((Sublayer(Weights((*leaves, *(() if last else (vector("layer_norm", out, "norm"),))))),)))
    c.ignore("hidden_size", "num_attention_heads")
    return Tower((), tuple(made), (Weights((vector("final_norm", width, "norm"),)),), width, list="encoder_layers")


def inkling_sound(c: Config) -> Tower:
    """Inkling: a table of the loudness of each mel band, whose rows are added up."""
    width = c.count("text_hidden_size")
    front = table("embed_audio_tokens.embed_audio_tokens", c.count("n_mel_bins") * c.count("mel_vocab_size"), width)
    return Tower((front,), (), (Weights((vector("norm", width, "norm"),)),), width)


def _grid(c: Config, _patches: int) -> int:
    return int(c.count("posemb_grid_size") ** 2)


def _inkling2_front(_c: Config, d: int) -> tuple[Block, ...]:
    return (table("embeddings.cls_position_embedding", 1, d),)


def _inkling2_back(c: Config, d: int) -> tuple[Block, ...]:
    bias, wide = c.flag("projector_bias", False), d * c.count("spatial_merge_size") ** 2
    return (
        merger("merger", wide, c.count("projection_hidden_dim"), c.count("text_hidden_size"), bias=bias, out_bias=bias),
    )


def _inkling2_hidden(c: Config) -> int:
    found: int = c.count("intermediate_size", None) or c.scaled("mlp_ratio", 4.0, c.count("hidden_size"))
    c.ignore("mlp_ratio", "layer_scale_init_value")
    return found


def inkling2_tower(c: Config) -> Tower:
    """Inkling 2: a vision transformer with scaled blocks, a stretched grid of positions, and two matrices on top."""
    return vit(
        c, epsilon="layer_norm_eps", wiring="scaled", patch="linear", class_token=True, positions=_grid, norms="pre",
        hidden=_inkling2_hidden, image=None, further=Further(_inkling2_front, back=_inkling2_back),
        paths=("embeddings.patch_embedding", "layers"),
    )  # fmt: skip


def same_width(_c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """The tower's rows must have the text model's width."""
    if tower.width != width:
        raise PlanError(
            f"found a tower whose rows are {tower.width} wide, but the text model's are {width}",
            where="vision_config, audio_config", fix="give both the same width",
        )  # fmt: skip
    return ()


def same_text_width(c: Config, inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """What the tower's matrices end in must have the text model's width."""
    return same_width(c, inner, tower._replace(width=inner.count("text_hidden_size")), width)


def muse_windows(c: Config, layers: int) -> list[Mask]:
    """Muse's tower: windows as wide as the grid of positions, in three of four layers, but for the last."""
    listed = c.per_layer("layer_types", layers, ("full_attention", "window_attention"))
    usual = ["full_attention" if i % 4 == 3 or i == layers - 1 else "window_attention" for i in range(layers)]
    chunk = c.count("pos_emb_height") ** 2
    return [Mask(causal=False, chunk=None if kind[0] == "f" else chunk) for kind in listed or usual]


def muse_projector(c: Config, inner: Config, _tower: Tower, width: int) -> Sequence[Block]:
    """Muse: m x m neighbours become one row, which three matrices project."""
    into, hidden = c.count("out_hidden_size"), c.count("projector_hidden_size")
    inner.ignore("merge_size")
    return (
        Weights(
            (
                linear("vision_adapter.fc1", into, hidden, "other", feeds="merged"),
                linear("vision_adapter.fc2", hidden, hidden, "other", feeds="merged"),
                linear("vision_projection", hidden, width, "other", feeds="merged"),
            )
        ),
    )


muse_text_windows = listed_windows(
    lambda _c, n: ["sliding_attention" if (n - 1 - i) % 4 else "full_attention" for i in range(n)]
)
"""Muse: windows in all layers but every fourth, counted from the last."""


@dataclass(frozen=True, slots=True)
class NarrowExperts(MixtureOfExperts):
    """Experts that see rows of a width of their own, with a norm of what enters them and of their sum."""

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the experts, the projections around them under their names here, and the norms."""
        names = {"fc1_latent_proj": "pre_expert_proj", "fc2_latent_proj": "post_expert_proj"}
        seen = self.latent or self.width
        return (
            *(replace(leaf, name=names.get(leaf.name, leaf.name)) for leaf in MixtureOfExperts.leaves(self)),
            vector("pre_expert_norm", seen, "norm"),
            vector("experts.post_expert_norm", seen, "norm"),
        )


def _narrow(block: MixtureOfExperts, width: int) -> NarrowExperts:
    values = {name: getattr(block, name) for name in MixtureOfExperts.__dataclass_fields__}
    return NarrowExperts(**{**values, "latent": width})


def narrowed_experts(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Muse Spark: experts see rows of their own width, with norms; what a block adds passes a gate for each element."""
    anatomy = decoder(c, request, **traits)
    (stack,) = anatomy.stacks
    width, narrow = c.count("hidden_size"), c.count("moe_hidden_size")
    gates = (
        vector("post_feedforward_layernorm", width, "norm"),
        vector("post_attention_residual_gate.gate", width, "other", own_dtype="float32"),
        vector("post_feedforward_residual_gate.gate", width, "other", own_dtype="float32"),
    )

    def changed(layer: Layer) -> Layer:
        parts = tuple(
            replace(each, block=_narrow(each.block, narrow)) if isinstance(each.block, MixtureOfExperts) else each
            for each in layer.sublayers
        )
        return replace(layer, sublayers=(*parts, Sublayer(Weights(gates))))

    runs = tuple(replace(run, layer=changed(run.layer)) for run in stack.runs)
    return anatomy._replace(stacks=(replace(stack, runs=runs),))


def muse_sound(c: Config) -> Tower:
    """Muse Spark's encoder of waves: a matrix shortens them, then depthwise convolutions and blocks."""
    widths, cuts, depths = (whole_numbers(c, key) for key in ("hidden_sizes", "patch_sizes", "depths"))
    layers, taps, out = c.count("num_hidden_layers"), c.count("conv_kernel_size"), c.count("out_hidden_size")
    if not len(widths) == len(cuts) == len(depths) == layers or min(*widths, *cuts) < 1:
        raise PlanError(
            f"found {widths}, {cuts} and {depths}, {layers} entries are needed in each", where=c.where("hidden_sizes"),
            fix="correct the file",
        )  # fmt: skip
    c.ignore("hidden_act")
    made = []
    for i, (d, cut, depth) in enumerate(zip(widths, cuts, depths, strict=True)):
        into, rate = (widths[i - 1] if i else 1) * cut, prod(cuts[i + 1 :])
        hidden = int(d * c.number("mlp_ratio", 4.0, above=0))
        leaves = [
            linear("patch_embedder.proj", into, d, "conv", bias=True, rate=rate),
            vector("patch_embedder.norm", d, "norm"),
        ]
        for j in range(depth):
            at = f"conv_blocks.{j}"
            leaves += [
                linear(f"{at}.conv", taps, d, "conv", bias=True, work="conv", rate=rate),
                vector(f"{at}.norm", d, "norm"),
                linear(f"{at}.mlp.fc1", d, hidden, "mlp", bias=True, rate=rate),
                linear(f"{at}.mlp.fc2", hidden, d, "mlp", bias=True, rate=rate),
            ]
        made.append(Layer((Sublayer(Weights(tuple(leaves))),)))
    back = (
        vector("norm", widths[-1], "norm"),
        linear("proj", widths[-1], out, "other", bias=True),
        vector("post_proj_norm", out, "norm"),
    )
    return Tower((), tuple(made), (Weights(back),), out)


def hy_grid(c: Config, _patches: int) -> int:
    """HY 4: positions of the largest image, and one more."""
    return int((c.count("max_image_size") // c.count("patch_size")) ** 2 + 1)


def hy_merger(c: Config, d: int) -> tuple[Block, ...]:
    """HY 4: a norm, a convolution of m x m neighbours, a matrix, and a row that ends lines."""
    wide, out = d * c.count("spatial_merge_size") ** 2, c.count("out_hidden_size")
    at = "patch_merger"
    return (
        Weights(
            (
                vector(f"{at}.before_rms", d, "other"),
                linear(f"{at}.proj_conv", wide, wide, "other", bias=True, work="conv", feeds="merged"),
                linear(f"{at}.proj_out", wide, out, "other", bias=True, work="conv", feeds="merged"),
                vector(f"{at}.image_newline", out, "other"),
            )
        ),
    )


def molmo(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Molmo 2: the table has rows beyond the head's."""
    anatomy = decoder(c, request, **traits)
    (stack,) = anatomy.stacks
    more = c.count("additional_vocab_size", low=0)
    front = tuple(
        replace(block, rows=block.rows + more) if isinstance(block, Table) else block for block in stack.front
    )
    return anatomy._replace(stacks=(replace(stack, front=front),))


def molmo_attention(c: Config, request: Request, layers: int) -> list[Block | None]:
    """Molmo 2: queries and keys are normed by head (Qwen 3), or all heads together (OLMo)."""
    alone = c.text("qk_norm_type", allowed=("qwen3", "olmo")) == "qwen3"
    return attention(qkv_bias="qkv_bias", qk_norm="head" if alone else "all")(c, request, layers)


def molmo_wiring(c: Config) -> Wiring:
    """Molmo 2: norms before blocks, or after them."""
    return "after" if c.flag("norm_after", False) else "pre"


OLD_VISION = {
    "image_default_input_size": "image_size",
    "image_patch_size": "patch_size",
    "image_num_pos": "num_position_embeddings",
}
"""What Molmo 2's published configs call the tower's keys."""


def molmo_parts(c: Config) -> Values:
    """Molmo 2's published configs: other names, and a tower that ends at the last layer that is read."""
    old = c.values.get("vit_config")
    vision = inside(c, "vision_config" if c.values.get("vision_config") is not None else "vit_config")
    vision.pop("model_type", None)
    vision |= {new: vision.pop(name) for name, new in OLD_VISION.items() if name in vision}
    adapter = inside(c, "adapter_config")
    adapter.pop("model_type", None)
    read = adapter.pop("vit_layers", adapter.get("vision_feature_layer"))
    read = [24, 18] if read is None else read
    if not isinstance(read, list | tuple) or not read or not all(type(n) is int for n in read):
        raise PlanError(f"found {read!r}, a list of layers is needed", where="adapter_config", fix="correct the file")
    layers = vision.get("num_hidden_layers", 25)
    if type(layers) is not int or layers < 1 or not all(-layers <= n < layers for n in read):
        raise PlanError(
            f"found {read}, but the tower has {layers} layers", where="adapter_config", fix="correct the file"
        )
    if old is not None:
        read = [n % layers for n in read]
        vision["num_hidden_layers"] = max(read) + 1
    values = {key: value for key, value in c.values.items() if key != "vit_config"}
    return {**values, "vision_config": vision, "adapter_config": {**adapter, "vision_feature_layer": list(read)}}


def molmo_tower(c: Config) -> Tower:
    """Molmo 2's vision transformer, without a norm after its last layer."""
    given = {key: value for key, value in c.values.items() if value is not None}
    c = replace(c, values={"image_size": [378, 378], **given})

    def rows(c: Config, patches: int) -> int:
        return int(c.count("num_position_embeddings", patches))

    return vit(
        c, epsilon="layer_norm_eps", patch="linear", patch_bias=True, positions=rows, grouped=True, own_head=True,
        biases="qkv out mlp" if c.flag("attention_bias", True) else "mlp", paths=("patch_embedding", "layers"),
    )  # fmt: skip


def molmo_projector(c: Config, _inner: Config, _tower: Tower, _width: int) -> Sequence[Block]:
    """Molmo 2: the mean of a few patches, of several layers' rows, asks them; a gated block projects the answer."""
    own = part(c, "adapter_config")
    d, f, head = own.count("hidden_size"), own.count("intermediate_size"), own.count("head_dim")
    heads, groups = own.count("num_attention_heads"), own.count("num_key_value_heads")
    bias, added = own.flag("attention_bias", True), own.flag("mlp_bias", False)
    into = d * len(whole_numbers(own, "vision_feature_layer", [24, 18]))
    own.ignore("hidden_act")
    out = own.count("text_hidden_size")
    pool, project = "multi_modal_projector.image_pooling_2d", "multi_modal_projector.image_projector"
    return (
        Weights(
            (
                linear(f"{pool}.q_proj", into, heads * head, "other", bias=bias, feeds="merged"),
                linear(f"{pool}.k_proj", into, groups * head, "other", bias=bias),
                linear(f"{pool}.v_proj", into, groups * head, "other", bias=bias),
                linear(f"{pool}.o_proj", heads * head, d, "other", bias=bias, feeds="merged"),
                linear(f"{project}.gate_proj", d, f, "other", bias=added, feeds="merged"),
                linear(f"{project}.up_proj", d, f, "other", bias=added, feeds="merged"),
                linear(f"{project}.down_proj", f, out, "other", feeds="merged"),
            )
        ),
    )


@dataclass(frozen=True, slots=True)
class BorrowedLatents(LatentAttention):
    """Latent attention that expands the latents of a layer before it, and makes none of its own."""

    def leaves(self) -> tuple[Leaf, ...]:
        """Return all but the projection down to the latent of keys and values, and its norm."""
        return tuple(leaf for leaf in LatentAttention.leaves(self) if not leaf.name.startswith("kv_a_"))

    def caches(self) -> tuple[Cache, ...]:
        """Return the other layer's latents, and the indexer's own keys."""
        latents, *keys = LatentAttention.caches(self)
        return (replace(latents, owner=False), *keys)


def unrotated_latents(c: Config, request: Request, layers: int) -> list[Block | None]:
    """Mistral Large 4: layers without positions, latents that layers may share, scales by position."""
    rotary, sources = _rotary(c, layers), _sources(c, layers)
    shared = scheduled(c, layers)
    c.per_layer("layer_types", layers, ("indexed_attention",))
    width, heads, head = c.count("hidden_size"), c.count("index_n_heads"), c.count("index_head_dim")
    chooser = Indexer(width, width, heads, head)
    chosen = (
        vector("indexer.q_input_norm", width, "norm", bias=True),
        vector("indexer.softmax_scaling.scale", heads, "attention"),
        vector("indexer.softmax_scaling.bias", heads, "attention"),
    )
    one = latent_attention(bias="attention_bias")(c, request, 1)[0]
    assert isinstance(one, LatentAttention)
    scales = tuple(vector(f"softmax_scaling.{name}", one.heads, "attention") for name in ("scale", "bias"))
    sharing = replace(one, extra=scales, mask=Mask(chosen=c.count("index_topk")))
    full = replace(sharing, chooser=chooser, extra=scales + chosen)

    def made(index: int) -> LatentAttention:
        block = sharing if shared[index] else full
        if not rotary[index]:
            block = replace(block, nope=block.nope + block.rope, rope=0, rope_positions=None)
        return block if sources[index] == index else _borrowing(block)

    return [made(index) for index in range(layers)]


def _borrowing(block: LatentAttention) -> BorrowedLatents:
    return BorrowedLatents(**{name: getattr(block, name) for name in LatentAttention.__dataclass_fields__})


def _rotary(c: Config, layers: int) -> list[bool]:
    """Return which layers have rotary positions."""
    listed, step = c.counts("no_rope_layers"), c.count("no_rope_layer_interval", 4)
    if listed is not None and len(listed) < layers:
        raise PlanError(
            f"found {len(listed)} entries, {layers} are needed", where=c.where("no_rope_layers"),
            fix="give one entry for each layer",
        )  # fmt: skip
    return (
        [bool(each) for each in listed[:layers]] if listed is not None else [(i + 1) % step > 0 for i in range(layers)]
    )


def _sources(c: Config, layers: int) -> list[int]:
    """Return the layer whose latents each layer reads."""
    found = c.counts("kv_source_layers", layers) or list(range(layers))
    for index, source in enumerate(found):
        if source > index or found[source] != source:
            raise PlanError(
                f"layer {index} reads the latents of layer {source}", where=c.where("kv_source_layers"),
                fix="name an earlier layer that makes its own",
            )  # fmt: skip
    return found


def learned_rotation(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Mistral Large 4: a learned factor for each rotary frequency, for all layers."""
    anatomy = decoder(c, request, **traits)
    (stack,) = anatomy.stacks
    alpha = Weights((vector("rotary_emb.alpha", c.count("qk_rope_head_dim") // 2, "other", own_dtype="float32"),))
    return anatomy._replace(stacks=(replace(stack, front=(*stack.front, alpha)),))


OLD_PARTS = {"llm_config": "text_config", "sound_config": "audio_config", "vit_hidden_size": "vision_hidden_size"}
"""What Nemotron Omni's published configs call its parts."""


def nemotron_parts(c: Config) -> Values:
    """Nemotron Omni: older names, and what its encoder of sound takes where its config is silent."""
    values = dict(c.values)
    for old, new in OLD_PARTS.items():
        given = values.pop(old, None)
        values[new] = values.get(new) if values.get(new) is not None else given
    found = replace(c, values=values)
    if sound := inside(found, "audio_config"):
        sound.pop("model_type", None)
        values["audio_config"] = {"attention_bias": False, "scale_input": False, **sound}
    return {key: value for key, value in values.items() if value is not None or key in c.values}


def _radio_hidden(c: Config) -> int:
    wide = c.scaled("mlp_ratio", 4.0, c.count("hidden_size"))
    return (int(wide * 2 / 3) + 7) // 8 * 8 if c.flag("use_swiglu_ffn", False) else wide


def _radio_grid(c: Config, _patches: int) -> int:
    return int((c.count("max_img_size") // c.count("patch_size")) ** 2)


def _radio_front(c: Config, d: int) -> tuple[Block, ...]:
    """Return the projection of several frames' patches where there is one, and tokens of the tower's own."""
    frames = c.count("video_temporal_patch_size", None)
    own = c.count("num_cls_tokens", low=0) + c.count("num_registers", low=0)
    into = c.count("num_channels", 3) * c.count("patch_size") ** 2
    video = (Weights((Leaf("embeddings.video_patch_projection", into * frames, d, "conv"),)),) if frames else ()
    return (*video, *((table("embeddings.cls_register_token", own, d),) if own else ()))


def _radio_back(c: Config, _d: int) -> tuple[Block, ...]:
    chosen = whole_numbers(c, "summary_idxs", [0, 1])
    return (Weights((vector("summary_idxs", len(chosen), "other", buffer=True, own_dtype="float32"),)),)


def radio(c: Config) -> Tower:
    """C-RADIO's vision transformer: scaled blocks, tokens of its own, a grid of positions that is cut to the image."""
    return vit(
        c, epsilon="layer_norm_eps", wiring="scaled", patch="linear", positions=_radio_grid, hidden=_radio_hidden,
        gated=c.flag("use_swiglu_ffn", False), biases="qkv out mlp" if c.flag("qkv_bias", True) else "out mlp",
        image=None, further=Further(_radio_front, back=_radio_back), paths=("embeddings.patch_projection", "encoder.layer"),
    )  # fmt: skip


def nemotron_sees(c: Config, _inner: Config, _tower: Tower, width: int) -> Sequence[Block]:
    """Nemotron Omni: neighbours become one row, a norm, two matrices; one more norm if the text model looks ahead."""
    d, kept = c.count("vision_hidden_size"), c.number("downsample_ratio", above=0)
    into = d * int(1 / kept) ** 2
    ahead = _said(c, "nemotron_h", "text_config", "num_nextn_predict_layers", 0)
    final = (Weights((vector("vision_final_layernorm", d, "other", bias=True),)),) if ahead > 0 else ()
    return (
        *final,
        _nemotron_merger("multi_modal_projector", into, c.count("projector_hidden_size"), width, bias=False),
    )


def _nemotron_merger(at: str, into: int, hidden: int, width: int, *, bias: bool) -> Weights:
    return merger(
        at, into, hidden, width, norm=Norm(into), bias=bias, out_bias=bias, names=("layer_norm", "linear_1", "linear_2")
    )


def parakeet(c: Config) -> Tower:
    """Parakeet's encoder of sound as a tower."""
    half = conformer(c, None)  # type: ignore[arg-type]
    return Tower(half.front, tuple(half.layers), half.back, half.width)


def nemotron_hears(_c: Config, inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Nemotron Omni: a norm and two matrices, whose width the encoder's config gives."""
    bias, hidden = inner.flag("projection_bias", False), inner.count("projection_hidden_size")
    return (_nemotron_merger("embed_audio", tower.width, hidden, width, bias=bias),)
