"""Of models in LLaVA's manner: two towers of one config, visual words, mergers inside a tower, towers of convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.blocks import Attention, Block, FeedForward, Head, Leaf, Norm, Weights, linear, vector
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.model import Layer, Run, Stack, Sublayer
from planner.topology import Anatomy, Request
from planner.topology.kinds import listed_kinds
from planner.topology.multimodal import multimodal
from planner.topology.projectors import feature_layers, newline_projector
from planner.topology.towers import Further, Tower, and_class, every_patch, merger, table, two, vit


def renamed(tower: Tower, names: Mapping[str, str]) -> Tower:
    """Return a tower whose layers' blocks are called otherwise in checkpoints."""

    def each(layer: Layer) -> Layer:
        found = (
            replace(sub, block=replace(sub.block, name=names.get(sub.block.name, sub.block.name)))
            if isinstance(sub.block, Attention | FeedForward)
            else sub
            for sub in layer.sublayers
        )
        return Layer(tuple(found))

    made = {layer: each(layer) for layer in dict.fromkeys(tower.layers)}
    return tower._replace(layers=tuple(made[layer] for layer in tower.layers))


# --- LLaVA-NeXT-Video, ViP-LLaVA, Video-LLaVA ------------------------------------------------------------------------


def pooled_projector(c: Config, inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """LLaVA-NeXT's; frames of a video are pooled before it, by means, maxima, or a convolution that images don't visit."""
    mode = c.text("spatial_pool_mode", "average", allowed=("average", "max", "conv"))
    stride, out = c.count("spatial_pool_stride", 2), c.count("spatial_pool_out_channels", tower.width)
    pool = linear(
        "vision_resampler.pool", tower.width * stride**2, out, "other", bias=True, work="conv", feeds="seeing"
    )
    return (*newline_projector(c, inner, tower, width), *((Weights((pool,)),) if mode == "conv" else ()))


def vip_projector(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """A norm of several layers' outputs side by side, and two matrices."""
    into = tower.width * feature_layers(c)
    norm = Norm(into, "layer", bias=True)
    names = ("projector_layernorm", "linear_1", "linear_2")
    return (merger("multi_modal_projector", into, width, width, norm=norm, names=names),)


def vip_tokens(_c: Config, _inner: Config, tower: Tower) -> tuple[int, int] | None:
    """A token for each patch."""
    return (tower.rows, tower.rows - tower.own) if tower.rows else None


def twice(c: Config, request: Request, *, image: str, video: str, **traits: Any) -> Anatomy:
    """Return a multimodal model with a second tower of the first one's config, for video; images don't run it.

    Args:
        c, request: as of any family. image, video: paths of both towers in checkpoints. traits: of `multimodal`.
    """
    anatomy = multimodal(c, request, **traits)
    return anatomy._replace(
        stacks=tuple(_doubled(each, image, video) if each.name == "vision" else each for each in anatomy.stacks)
    )


def _doubled(stack: Stack, image: str, video: str) -> Stack:
    """Return a tower and its copy as one stack."""

    def aside(leaves: Sequence[tuple[str, Leaf]]) -> Weights:
        return Weights(
            tuple(
                replace(leaf, name=name.replace(f"{image}.", f"{video}."), feeds="seeing", further=0)
                for name, leaf in leaves
            )
        )

    more = tuple(
        Run(run.count, Layer((Sublayer(aside(run.layer.named)),)), list=stack.list.replace(image, video, 1))
        for run in stack.runs
    )
    ends = [(name, leaf) for name, leaf in stack.named if name.startswith(f"{image}.")]
    return replace(stack, runs=(*stack.runs, *more), back=(*stack.back, aside(ends)))


# --- Ovis 2 ----------------------------------------------------------------------------------------------------------


def ovis2(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Return a multimodal model whose head, where it is its own, is as large as the wrapper's keys say."""
    anatomy = multimodal(c, request, **traits)
    c.ignore("vocab_size", "hidden_size")

    def own(block: Block) -> Block:
        if not isinstance(block, Head) or block.tie:
            return block
        width = c.count("hidden_size")
        if width != block.width:
            raise PlanError(
                f"found {width}, but rows of the text model are {block.width} wide",
                where=c.where("hidden_size"),
                fix="make it the text model's hidden_size",
            )
        return replace(block, vocabulary=c.count("vocab_size"))

    return anatomy._replace(
        stacks=tuple(
            replace(each, back=tuple(own(block) for block in each.back)) if each.name == "decoder" else each
            for each in anatomy.stacks
        )
    )


def ovis2_tower(c: Config) -> Tower:
    """Ovis 2's (AIMv2, arXiv:2411.14402): norms before and after the layers; what is added follows two flags."""

    def first(_c: Config, d: int) -> tuple[Block, ...]:
        return (Weights((vector("embeddings.rms_norm", d, "norm"),)),)

    def last(_c: Config, d: int) -> tuple[Block, ...]:
        return (Weights((vector("rms_norm", d, "norm"),)),)

    biases = "qkv out" * c.flag("qkv_bias", False) + " mlp" * c.flag("mlp_bias", False)
    tower = vit(
        c, norm="rms", epsilon="rms_norm_eps", gated=True, biases=biases, patch_bias=True, positions=every_patch,
        further=Further(front=first, back=last),
    )  # fmt: skip
    return renamed(tower, {"self_attn": "attention", "mlp": "ffn"})


def ovis2_words(c: Config, inner: Config, tower: Tower, _width: int) -> Sequence[Block]:
    """Squares of rows are projected onto a vocabulary of visual words, of whose table they take a mean; some words are marks."""
    words, marks = inner.count("vocab_size"), inner.count("num_visual_indicator_tokens", 5, low=0)
    if words <= marks:
        raise PlanError(
            f"found {words}, more than the {marks} marks are needed", where=inner.where("vocab_size"),
            fix="correct the file",
        )  # fmt: skip
    into = tower.width * inner.count("hidden_stride", 1) ** 2
    return (
        Weights(
            (
                linear("vision_tower.head_linear", into, words - marks, "other", feeds="merged"),
                vector("vision_tower.head_norm", words - marks, "other", bias=True),
                linear("visual_embeddings_table", words, c.count("hidden_size"), "embedding", feeds="merged"),
            )
        ),
    )


# --- MiniCPM-V 4.6 and its like --------------------------------------------------------------------------------------


def minicpm_tower(c: Config) -> Tower:
    """SigLIP's, with a merger that stands after one of its layers: attention within windows, and two matrices."""
    high, wide = two(c, "window_kernel_size")
    f = c.count("intermediate_size")

    def merges(_c: Config, d: int) -> tuple[Block, ...]:
        at, into = "vit_merger", d * high * wide
        return (
            Weights(
                (
                    vector(f"{at}.layer_norm1", d, "norm", bias=True),
                    *(
                        linear(f"{at}.self_attn.{name}", d, d, "attention", bias=True)
                        for name in ("q_proj", "k_proj", "v_proj", "out_proj")
                    ),
                    vector(f"{at}.pre_norm", into, "norm", bias=True),
                    linear(f"{at}.linear_1", into, f * high * wide, "mlp", bias=True, feeds="merged"),
                    linear(f"{at}.linear_2", f * high * wide, d, "mlp", bias=True, feeds="merged"),
                )
            ),
        )

    return vit(
        c, epsilon="layer_norm_eps", patch_bias=True, positions=every_patch, norms="post", further=Further(back=merges)
    )


SQUARE = 4
"""Rows that become one in each round of the merger, whatever `merge_kernel_size` says."""


def minicpm_merger(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Rounds of two matrices around squares of rows; the last gives the text model's width."""
    into, rounds = tower.width * SQUARE, c.count("merger_times", 1)
    norm, names = Norm(into, "layer", bias=True), ("pre_norm", "linear_1", "linear_2")
    outs = [*[tower.width] * (rounds - 1), width]
    return tuple(merger(f"merger.mlp.{i}", into, into, out, norm=norm, names=names) for i, out in enumerate(outs))


# --- OCR models ------------------------------------------------------------------------------------------------------


def lighton_projector(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """A norm, squares of neighbours become one row, then two matrices."""
    d, at = tower.width, "vision_projection"
    into = d * c.count("spatial_merge_size") ** 2
    leaves = (
        vector(f"{at}.norm", d, "other"),
        linear(f"{at}.patch_merger.merging_layer", into, d, "other", feeds="merged"),
    )
    return (Weights(leaves), merger(at, d, width, width, bias=False, out_bias=False))


def qianfan_tower(c: Config) -> Tower:
    """InternVL's, but the norm on top is of one kind whatever the others are."""
    masked, mean = c.flag("use_mask_token", False), c.flag("use_mean_pooling", True)

    def first(_c: Config, d: int) -> tuple[Block, ...]:
        return (table("embeddings.mask_token", 1, d),) if masked else ()

    def last(_c: Config, d: int) -> tuple[Block, ...]:
        return () if mean else (Weights((vector("layernorm", d, "norm", bias=True),)),)

    tower = vit(
        c, norm="rms" if c.text("norm_type", "layer_norm", allowed=("layer_norm", "rms_norm")) == "rms_norm" else "layer",
        epsilon="layer_norm_eps", biases="qkv out mlp" if c.flag("attention_bias", True) else "out mlp", wiring="scaled",
        qk_norm="all" if c.flag("use_qk_norm", False) else False, patch_bias=True, class_token=True,
        positions=and_class if c.flag("use_absolute_position_embeddings", True) else None, further=Further(first, back=last),
        paths=("embeddings.patch_embeddings.projection", "layers"),
    )  # fmt: skip
    return renamed(tower, {"self_attn": "attention"})


# --- HyperCLOVA X, LFM 3 ---------------------------------------------------------------------------------------------


def hyperclovax_projector(_c: Config, inner: Config, _tower: Tower, width: int) -> Sequence[Block]:
    """One matrix after the tower's own merger."""
    return (Weights((linear("projector", inner.count("out_hidden_size"), width, "other", bias=True, feeds="merged"),)),)


def _lfm3_kinds(_c: Config, layers: int) -> list[str]:
    """Convolutions in the first two layers and in every other one after them."""
    return ["conv" if i < 2 or i % 2 else "full_attention" for i in range(layers)]


def lfm3_tower(c: Config) -> Tower:
    """LFM 3's: gated convolutions over the grid of patches, attention in some layers, no table of positions."""
    d, layers = c.count("hidden_size"), c.count("num_hidden_layers")
    heads, side = c.heads("num_attention_heads", d), c.count("patch_size")
    groups, taps = c.count("num_key_value_heads", heads), c.count("conv_kernel_size") ** 2
    norm, qk_norm = (Norm(size, epsilon=c.number("rms_norm_eps", 1e-5)) for size in (d, d // heads))
    mixers: dict[str, Block] = {
        "full_attention": Attention(d, heads, groups, d // heads, Mask(causal=False), qk_norm=qk_norm),
        "conv": Weights(
            (
                linear("conv.in_proj", d, 3 * d, "conv"),
                linear("conv.spatial_conv", taps, d, "conv", work="conv"),
                linear("conv.out_proj", d, d, "conv"),
            )
        ),
    }
    feed = FeedForward(d, c.count("intermediate_size"), name="feed_forward")
    made = {kind: Layer((Sublayer(mixer, before=norm), Sublayer(feed, before=norm))) for kind, mixer in mixers.items()}
    kinds = listed_kinds("conv", "full_attention", otherwise=_lfm3_kinds)(c, layers)
    into = c.count("num_channels", 3) * c.count("temporal_patch_size") * side**2
    front = Weights((linear("patch_embed", into, d, "conv"), vector("embedding_norm", d, "norm")))
    return Tower((front,), tuple(made[kind] for kind in kinds), (), d)


def lfm3_projector(c: Config, inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Rows are normed, squares of them become one, and two matrices project it."""
    into, bias = tower.width * inner.count("spatial_merge_size") ** 2, c.flag("projector_bias", True)
    norm, names = Norm(tower.width, "layer", bias=True), ("layer_norm", "linear_1", "linear_2")
    hidden = c.count("projector_hidden_size")
    at = "multi_modal_projector"
    return (merger(at, into, hidden, width, norm=norm, bias=bias, out_bias=bias, names=names),)
