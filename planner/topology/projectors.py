"""Between towers and text models: mergers, projectors, how many tokens an image becomes, and small decoders of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from planner.blocks import Block, FeedForward, Leaf, Norm, Part, Table, Weights, linear, vector
from planner.errors import PlanError
from planner.fields import Config
from planner.model import Stack, Sublayer
from planner.topology import Anatomy, Request
from planner.topology.attention import attention, every_window
from planner.topology.decoder import decoder
from planner.topology.towers import (
    Further,
    Tower,
    and_class,
    merger,
    multiple,
    stack,
    table,
    two,
    vit,
    waves,
    whole_numbers,
)


def nothing(_c: Config, _inner: Config, _tower: Tower, _width: int) -> Sequence[Block]:
    """The tower's own merger gives rows the text model's width."""
    return ()


def qwen_merger(norm: str) -> Any:
    """Return the maker of Qwen's merger: m x m neighbours become one row, and two matrices project it."""

    def back(c: Config, d: int) -> tuple[Block, ...]:
        wide = d * c.count("spatial_merge_size") ** 2
        out = c.count("out_hidden_size")
        a_norm = Norm(d, norm, norm == "layer")  # type: ignore[arg-type]
        return (merger("merger", wide, wide, out, norm=a_norm, names=("ln_q", "mlp.0", "mlp.2")),)

    return back


def deepstack(c: Config, d: int) -> tuple[Block, ...]:
    """Qwen 3 VL: one merger on top, and one for each layer of `deepstack_visual_indexes`, whose norm follows the merge."""
    wide, out = d * c.count("spatial_merge_size") ** 2, c.count("out_hidden_size")
    names = ("norm", "linear_fc1", "linear_fc2")
    more = len(whole_numbers(c, "deepstack_visual_indexes", default=[]))
    deep = [
        merger(f"deepstack_merger_list.{i}", wide, wide, out, norm=Norm(wide, "layer", bias=True), names=names)
        for i in range(more)
    ]
    return (merger("merger", wide, wide, out, norm=Norm(d, "layer", bias=True), names=names), *deep)


def gemma4_tables(c: Config, d: int) -> tuple[Block, ...]:
    """A table of positions for each side."""
    return (table("patch_embedder.position_embedding_table", 2 * c.count("position_embedding_size"), d),)


def gemma4_clips(c: Config) -> tuple[Leaf, ...]:
    """Limits of what enters and leaves each of the seven matrices."""
    return (vector("clips", 28, "other", buffer=True),) * c.flag("use_clipped_linears", False)


def gemma4_scales(c: Config, d: int) -> tuple[Block, ...]:
    """Means and scales of the rows that leave it."""
    return (
        Weights((vector("std_bias", d, "other", buffer=True), vector("std_scale", d, "other", buffer=True))),
    ) * c.flag("standardize", False)


def step_hidden(c: Config) -> int:
    """F as a multiple of D, whatever `intermediate_size` says."""
    return multiple(c, "hidden_size", "mlp_ratio")


def step_downsamplers(_c: Config, d: int) -> tuple[Block, ...]:
    """Two convolutions of stride 2, which double the width."""
    return (
        Weights(
            (
                linear("downsampler1", 9 * d, 2 * d, "conv", bias=True, work="conv", feeds="merged", rate=4),
                linear("downsampler2", 18 * d, 4 * d, "conv", bias=True, work="conv", feeds="merged"),
            )
        ),
    )


def step_rows(c: Config, _patches: int) -> int:
    """Rows after both strides."""
    side = two(c, "image_size")[0] // two(c, "patch_size")[0]
    return int((-(-side // 4)) ** 2)


def one_merger(c: Config, d: int) -> tuple[Block, ...]:
    """Qwen 3.5: the merger on top only."""
    wide, names = d * c.count("spatial_merge_size") ** 2, ("norm", "linear_fc1", "linear_fc2")
    return (merger("merger", wide, wide, c.count("out_hidden_size"), norm=Norm(d, "layer", bias=True), names=names),)


def kimi_grid(c: Config, _patches: int) -> int:
    """A learned grid of positions, stretched to the image's."""
    return int(c.count("pos_emb_height") * c.count("pos_emb_width"))


def llama4_adapter(c: Config, _d: int) -> tuple[Block, ...]:
    """Squares of neighbours become one row (the config says how wide), and two matrices project it."""
    into, out = c.count("projector_input_dim"), c.count("projector_output_dim")
    return (
        Weights(
            (
                linear("vision_adapter.mlp.fc1", c.count("intermediate_size"), into, "other", feeds="merged"),
                linear("vision_adapter.mlp.fc2", out, out, "other", feeds="merged"),
            )
        ),
    )


def llama4_rows(c: Config, patches: int) -> int:
    """Rows after pixel shuffle."""
    return int(patches * c.number("pixel_shuffle_ratio") ** 2)


def ratio(c: Config) -> int:
    """F as a multiple of D."""
    return multiple(c, "embed_dim", "mlp_ratio")


def gemma3_projector(_c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Patches are averaged down to `mm_tokens_per_image`, normed and projected."""
    return (
        Weights(
            (
                vector("multi_modal_projector.mm_soft_emb_norm", tower.width, "other"),
                linear("multi_modal_projector.mm_input_projection_weight", tower.width, width, "other", feeds="merged"),
            )
        ),
    )


def gemma3_tokens(c: Config, _inner: Config, tower: Tower) -> tuple[int, int] | None:
    """Gemma 3: the config says how many."""
    tokens = c.count("mm_tokens_per_image")
    return (tower.rows, int(tokens)) if tower.rows else None


def feature_layers(c: Config) -> int:
    """How many layers' outputs are joined: `vision_feature_layer` names one, or lists them."""
    value = c.raw("vision_feature_layer", -1)
    return len(whole_numbers(c, "vision_feature_layer")) if isinstance(value, list) else 1


def llava_projector(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Two matrices."""
    bias = c.flag("multimodal_projector_bias", True)
    into = tower.width * feature_layers(c)
    return (merger("multi_modal_projector", into, width, width, bias=bias, out_bias=bias),)


def llava_tokens(c: Config, _inner: Config, tower: Tower) -> tuple[int, int] | None:
    """LLaVA: a token for each patch, and one more where the class token is kept."""
    full = c.text("vision_feature_select_strategy", "default", allowed=("default", "full")) == "full"
    return (tower.rows, tower.rows - (0 if full else tower.own)) if tower.rows else None


def mistral3_projector(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """A norm, squares of neighbours become one row, then two matrices."""
    bias, d = c.flag("multimodal_projector_bias", False), tower.width
    at = "multi_modal_projector"
    merged = Weights(
        (
            vector(f"{at}.norm", d, "other"),
            linear(
                f"{at}.patch_merger.merging_layer", d * c.count("spatial_merge_size") ** 2, d, "other", feeds="merged"
            ),
        )
    )
    return (merged, merger(at, d * feature_layers(c), width, width, bias=bias, out_bias=bias))


def lfm2_projector(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Squares of neighbours become one row, and two matrices project it."""
    into, bias = tower.width * c.count("downsample_factor") ** 2, c.flag("projector_bias", True)
    norm = Norm(into, "layer", bias=True) if c.flag("projector_use_layernorm", True) else None
    hidden = c.count("projector_hidden_size")
    return (merger("multi_modal_projector", into, hidden, width, norm=norm, bias=bias, out_bias=bias),)


def minimax_projector(c: Config, inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Every patch is projected, then squares of neighbours become one row and are projected again."""
    hidden, at = c.count("projector_hidden_size"), "multi_modal_projector"
    wide = width * inner.count("spatial_merge_size") ** 2
    return (
        merger(at, tower.width, hidden, width, feeds="new"),
        merger(at, wide, hidden, width, names=("norm", "merge_linear_1", "merge_linear_2")),
    )


def step_projector(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """One matrix."""
    bias = c.flag("projector_bias", False)
    return (Weights((linear("multi_modal_projector", 4 * tower.width, width, "other", bias=bias, feeds="merged"),)),)


def kimi_projector(c: Config, inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """A norm, rectangles of neighbours become one row, and two matrices project it."""
    high, wide = two(inner, "merge_kernel_size")
    into, norm = tower.width * high * wide, Norm(c.count("projection_hidden_size", tower.width), "layer", bias=True)
    return (merger("mm_projector", into, into, width, norm=norm, names=("pre_norm", "in_proj", "out_proj")),)


def llama4_projector(_c: Config, inner: Config, _tower: Tower, width: int) -> Sequence[Block]:
    """One matrix."""
    into = inner.count("vision_output_dim")
    return (Weights((linear("multi_modal_projector.linear_1", into, width, "other", feeds="merged"),)),)


def gemma4_projector(_c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """One matrix, after a norm without weights."""
    return (Weights((linear("embed_vision.embedding_projection", tower.width, width, "other", feeds="merged"),)),)


def gemma4_hears(_c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """One matrix, after a norm without weights."""
    return (Weights((linear("embed_audio.embedding_projection", tower.width, width, "other", feeds="merged"),)),)


def git_projector(_c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """A matrix and a norm."""
    at = "visual_projection.visual_projection"
    return (
        Weights(
            (linear(f"{at}.0", tower.width, width, "other", bias=True), vector(f"{at}.1", width, "other", bias=True))
        ),
    )


def gemma4_tokens(c: Config, inner: Config, _tower: Tower) -> tuple[int, int] | None:
    """Gemma 4: the config may say how many; each is the mean of a square of patches."""
    tokens, side = c.count("vision_soft_tokens_per_image", None), inner.count("pooling_kernel_size")
    return (int(tokens * side**2), int(tokens)) if tokens else None


def audio_linear(_c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """One matrix."""
    return (Weights((linear("multi_modal_projector.linear", tower.width, width, "other", bias=True, feeds="merged"),)),)


def audio_two(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Two matrices."""
    bias = c.flag("projector_bias", True)
    return (merger("multi_modal_projector", tower.width, width, width, bias=bias, out_bias=bias),)


def audio_stacked(hidden: int, *, bias: bool) -> Any:
    """Return the maker of a projector of rows stacked until they are F wide; its hidden width is that of text times `hidden`."""

    def projector(_c: Config, inner: Config, _tower: Tower, width: int) -> Sequence[Block]:
        into = inner.count("intermediate_size")
        return (merger("multi_modal_projector", into, hidden * width, width, bias=bias, out_bias=bias),)

    return projector


def audio_stretched(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Rows are stacked by `downsample_factor`, and two matrices project them."""
    into = tower.width * c.count("downsample_factor")
    return (merger("multi_modal_projector", into, width, width, bias=False, out_bias=False),)


def audio_merged(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Rows are stacked by `audio_merge_size`; a norm follows both matrices."""
    into, bias, at = tower.width * c.count("audio_merge_size"), c.flag("projector_bias", True), "multi_modal_projector"
    norm = Weights((vector(f"{at}.norm", width, "other", bias=True),))
    return (merger(at, into, width, width, bias=bias, out_bias=bias), norm)


def audio_asr(_c: Config, inner: Config, tower: Tower, _width: int) -> Sequence[Block]:
    """Two matrices, whose output width is the tower's own key."""
    return (merger("multi_modal_projector", tower.width, tower.width, inner.count("output_dim")),)


def stacked_tokens(_c: Config, inner: Config, tower: Tower) -> tuple[int, int] | None:
    """Rows are stacked until they are F wide."""
    return (tower.rows, tower.rows * tower.width // inner.count("intermediate_size")) if tower.rows else None


def merged_tokens(c: Config, _inner: Config, tower: Tower) -> tuple[int, int] | None:
    """Rows are stacked by `audio_merge_size`."""
    return (tower.rows, tower.rows // c.count("audio_merge_size")) if tower.rows else None


def spectrum(c: Config) -> Tower:
    """Qwen 3 ASR: three convolutions over time and mel bands, a matrix, and layers like Whisper's whose keys add a vector."""
    d, wide = c.count("hidden_size"), c.count("downsample_hidden_size")
    bands = c.count("num_mel_bins")
    for _ in range(3):
        bands = (bands + 1) // 2
    whisper = waves(c, key_bias=True, positions=None, rows="max_position_embeddings")
    front = Weights(
        (
            linear("conv2d1", 9, wide, "conv", bias=True, work="conv"),
            linear("conv2d2", 9 * wide, wide, "conv", bias=True, work="conv"),
            linear("conv2d3", 9 * wide, wide, "conv", bias=True, work="conv"),
            linear("conv_out", wide * bands, d, "conv"),
        )
    )
    return whisper._replace(front=(front,), rows=None, leaving=None)


def fuyu_patches(c: Config, width: int) -> Sequence[Stack]:
    """Patches are projected to the text model's width; there is no tower."""
    into = c.count("num_channels", 3) * c.count("patch_size") ** 2
    c.ignore("image_size")
    patch = linear("vision_embed_tokens", into, width, "conv", bias=True)
    return (Stack("vision", (Weights((patch,)),), (), (), "model."),)


def linear_projector(_c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """One matrix."""
    return (Weights((linear("multi_modal_projector.linear", tower.width, width, "other", bias=True, feeds="merged"),)),)


def newline_projector(c: Config, inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """LLaVA's, and a learned row that ends each line of patches."""
    return (*llava_projector(c, inner, tower, width), Weights((vector("image_newline", width, "other"),)))


def shuffled_projector(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Squares of neighbours become one row, and one matrix projects it (Idefics 3)."""
    into = tower.width * c.count("scale_factor") ** 2
    return (Weights((linear("connector.modality_projection.proj", into, width, "other", feeds="merged"),)),)


def internvl_projector(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Squares of neighbours become one row; a norm, two matrices."""
    ratio = c.number("downsample_ratio")
    if not 0 < ratio <= 1:
        raise PlanError(
            f"found {ratio}, allowed are numbers above 0, up to 1",
            where=c.where("downsample_ratio"),
            fix="correct the file",
        )
    into = tower.width * int(1 / ratio) ** 2
    return (
        merger(
            "multi_modal_projector",
            into,
            width,
            width,
            norm=Norm(into, "layer", bias=True),
            names=("layer_norm", "linear_1", "linear_2"),
        ),
    )


def gated_projector(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Squares of neighbours become one row; two matrices around a gate that halves it, after a norm (Aya) or without (Command A Vision)."""
    into, hidden = tower.width * c.count("downsample_factor") ** 2, c.count("alignment_intermediate_size", width)
    at, aya = "multi_modal_projector", c.family == "aya_vision"
    norm = (Weights((vector(f"{at}.layernorm", into, "other", bias=True),)),) if aya else ()
    both = (
        linear(f"{at}.linear_1", into, hidden, "other", bias=True, feeds="merged"),
        linear(f"{at}.linear_2", hidden // 2, width, "other", bias=True, feeds="merged"),
    )
    return (*norm, Weights(both))


def aria_projector(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Learned queries look at all patches, then a feed-forward block; as many queries as the largest image asks for."""
    given = c.table("projector_patch_to_query_dict") or {"1225": 128, "4900": 256}
    part: Part = "other"
    d, at = tower.width, "multi_modal_projector"
    if not all(str(each).isdecimal() for each in given.values()):
        raise PlanError(
            "numbers of queries are needed", where=c.where("projector_patch_to_query_dict"), fix="correct the file"
        )
    queries = max(int(each) for each in given.values())
    leaves = (
        Leaf(f"{at}.query", queries, d, part),
        *(linear(f"{at}.cross_attn.{name}", d, d, part) for name in ("q_proj", "k_proj", "v_proj")),
        linear(f"{at}.cross_attn.multihead_attn.in_proj", d, 3 * d, part, bias=True),
        linear(f"{at}.cross_attn.multihead_attn.out_proj", d, d, part, bias=True),
        linear(f"{at}.cross_attn.linear", d, d, part, bias=True),
        *(
            vector(f"{at}.{name}", d, part, bias=True)
            for name in ("cross_attn.layer_norm", "cross_attn.layer_norm_kv", "layer_norm")
        ),
        linear(f"{at}.feed_forward.linear_in", d, width, part, feeds="merged"),
        linear(f"{at}.feed_forward.linear_out", width, width, part, feeds="merged"),
    )
    return (Weights(leaves),)


def internvl_tower(c: Config) -> Tower:
    """InternVL's: a class token, scales, and either a norm on top or the mean of all rows."""
    mask = table("embeddings.mask_token", 1, c.count("hidden_size"))
    front = (mask,) if c.flag("use_mask_token", False) else ()
    return vit(
        c, norm="rms" if c.text("norm_type", "layer_norm") == "rms_norm" else "layer", epsilon="layer_norm_eps",
        biases="qkv out mlp" if c.flag("attention_bias", False) else "out mlp", wiring="scaled",
        qk_norm="all" if c.flag("use_qk_norm", False) else False, patch_bias=True, class_token=True,
        positions=and_class if c.flag("use_absolute_position_embeddings", True) else None, further=Further(lambda _c, _d: front),
        norms="" if c.flag("use_mean_pooling", True) else "post", paths=("embeddings.patch_embeddings.projection", "encoder.layer"),
    )  # fmt: skip


def raw_patches(c: Config) -> Tower:
    """Gemma 4 12B's: merged patches go through one matrix, without layers."""
    d = c.count("mm_embed_dim")
    into = 3 * (c.count("patch_size") * c.count("pooling_kernel_size")) ** 2
    front = Weights(
        (
            vector("patch_ln1", into, "norm", bias=True), linear("patch_dense", into, d, "conv", bias=True),
            vector("patch_ln2", d, "norm", bias=True), Leaf("pos_embedding", 2 * c.count("mm_posemb_size"), d, "embedding"),
            vector("pos_norm", d, "norm", bias=True),
        )
    )  # fmt: skip
    return Tower((front,), (), (), c.count("output_proj_dims", d))


def raw_samples(c: Config) -> Tower:
    """Gemma 4 12B's: samples of sound as they are."""
    return Tower((), (), (), c.count("output_proj_dims"))


def raw_sees(_c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """One matrix."""
    at = "embed_vision.multimodal_embedder.embedding_projection"
    return (Weights((linear(at, tower.width, width, "other", feeds="merged"),)),)


def raw_tokens(c: Config, _inner: Config, _tower: Tower) -> tuple[int, int] | None:
    """The config may say how many."""
    tokens = c.count("vision_soft_tokens_per_image", None)
    return (int(tokens), int(tokens)) if tokens else None


def all_shared(text: Config) -> dict[str, Any]:
    """All layers of a drafting model read the caches of the model that it drafts for."""
    return {"num_kv_shared_layers": text.count("num_kv_shared_layers", 0, low=0) or text.count("num_hidden_layers")}


def drafting(c: Config, width: int) -> Sequence[Stack]:
    """Matrices from the drafted model's width and back, and centroids of the vocabulary."""
    wide, some = c.count("backbone_hidden_size"), c.flag("use_ordered_embeddings", False)
    leaves = [linear("pre_projection", 2 * wide, width, "other"), linear("post_projection", width, wide, "other")]
    if some:
        leaves.append(linear("masked_embedding.centroids", width, c.count("num_centroids"), "head"))
    c.ignore("num_centroids")
    return (Stack("decoder", (Weights(tuple(leaves)),), ()),)


CLIP_LARGE = dict(
    hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, image_size=336, patch_size=14,
    num_channels=3, layer_norm_eps=1e-5, hidden_act="quick_gelu",
)  # fmt: skip
"""openai/clip-vit-large-patch14-336, that Phi-3 Vision names and whose config it doesn't repeat."""


def phi3_sees(c: Config, width: int) -> Sequence[Stack]:
    """Phi-3 Vision: CLIP's large tower, squares of four patches projected by two matrices, rows that end lines and tiles."""
    given, layer = c.table("img_processor"), c.table("embd_layer")
    if given.get("name", "clip_vision_model") != "clip_vision_model" or layer.get("projection_cls", "mlp") != "mlp":
        raise PlanError(
            "names another tower than CLIP, or another projector than two matrices", where=c.where("img_processor"),
            fix="plan the text model alone, as phi3",
        )  # fmt: skip
    from planner.families.multimodal import TOWERS  # noqa: PLC0415

    tower = TOWERS["clip_vision_model"].build(
        Config(CLIP_LARGE, c.source, "clip_vision_model"), **TOWERS["clip_vision_model"].traits
    )
    into = tower.width * (4 if layer.get("use_hd_transform", True) else 1)
    ends = tuple(vector(f"vision_embed_tokens.{name}", into, "other") for name in ("glb_GN", "sub_GN"))
    at = "vision_embed_tokens"
    project = merger(at, into, width, width, names=("", "img_projection.0", "img_projection.2"))
    rows = (Weights(ends),) if layer.get("with_learnable_separator", False) else ()
    return (stack("vision", tower, f"{at}.img_processor.vision_model", (project, *rows)),)


def unknown(_c: Config, _inner: Config, _tower: Tower) -> None:
    """The config doesn't say how many."""


MOSHI_ROWS = 1
"""Rows of the table behind the vocabulary's."""


def moshi(c: Config, request: Request) -> Anatomy:
    """Return Moshi's text decoder: `ffn_dim` counts gate and value together, and the table has one more row than the head."""
    anatomy = decoder(c, request, mixers=attention(windows=every_window), feeds=halved)
    (stack,) = anatomy.stacks
    front = tuple(
        replace(block, rows=block.rows + MOSHI_ROWS) if isinstance(block, Table) else block for block in stack.front
    )
    c.ignore("num_codebooks", "audio_vocab_size")
    return anatomy._replace(stacks=(replace(stack, front=front),))


TIMED = 32
"""Width of the adaptive norm's inner row."""


def timed(c: Config, request: Request) -> Anatomy:
    """Return a decoder whose second norm is scaled by the delay that the user allows, through two small matrices."""
    anatomy = decoder(c, request, mixers=attention(windows=every_window))
    (stack,) = anatomy.stacks
    d = c.count("hidden_size")
    scales = Weights(
        (
            linear("ada_rms_norm.linear1", d, TIMED, "norm", feeds="sequence"),
            linear("ada_rms_norm.linear2", TIMED, d, "norm", feeds="sequence"),
        )
    )
    body = tuple(
        replace(run, layer=replace(run.layer, sublayers=(*run.layer.sublayers, Sublayer(scales)))) for run in stack.runs
    )
    return anatomy._replace(stacks=(replace(stack, runs=body),))


def halved(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """Gated blocks of half of `ffn_dim`."""
    return [
        FeedForward(c.count("hidden_size"), c.count("ffn_dim") // 2, activation=c.text("hidden_act", "silu"))
    ] * layers
