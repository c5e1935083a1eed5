"""What GLM, Qwen Omni, ERNIE, PaddleOCR and VideoLLaMA 3 put between towers and text models, and experts that only images visit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from planner.blocks import Block, Cache, Core, LatentAttention, Leaf, MixtureOfExperts, Norm, Weights, linear, vector
from planner.compressed import CompressedAttend, HyperConnections, Indexer
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.model import Sublayer
from planner.topology import Anatomy, Maker, Request
from planner.topology.decoder import decoder
from planner.topology.feed_forward import feed_forward, listed, mixture
from planner.topology.multimodal import Sense, multimodal
from planner.topology.projectors import spectrum
from planner.topology.sparse import scheduled
from planner.topology.towers import Further, Tower, merger, table, two, vit, waves, whole_numbers


def even_heads(mixers: Maker) -> Maker:
    """Return a maker whose heads share the width evenly, whatever `head_dim` says."""

    def blocks(c: Config, request: Request, layers: int) -> list[Block | None]:
        c.ignore("head_dim")
        without = {key: value for key, value in c.values.items() if key != "head_dim"}
        return mixers(replace(c, values=without), request, layers)

    return blocks


def drawn_grid(c: Config, _patches: int) -> int:
    """A learned square of positions, that of an image of `image_size`; other images stretch it."""
    return int((two(c, "image_size")[0] // two(c, "patch_size")[0]) ** 2)


def glm_tower(c: Config) -> Tower:
    """GLM-4.1V's: a norm of the patches, a learned grid, gated layers, and a convolution that merges squares of rows."""
    wide = c.count("intermediate_size")
    return vit(
        c, norm="rms", epsilon="rms_norm_eps", hidden="out_hidden_size", gated=True, biases="qkv" if c.flag("attention_bias", False) else "",
        patch_bias=True, frames=True, positions=drawn_grid, norms="post", image=None,
        further=Further(front=_patch_norm, back=lambda c, d: _glm_merger(c, d, wide)), paths=("patch_embed.proj", "blocks"),
    )  # fmt: skip


def ocr_tower(c: Config, hidden: int | None = None) -> Tower:
    """GLM-OCR's: GLM-4.1V's without learned positions and the first norm; queries and keys are normed."""
    wide = hidden or c.count("out_hidden_size") * c.count("num_channels", 3)
    return vit(
        c, norm="rms", epsilon="rms_norm_eps", gated=True, biases="qkv out mlp" if c.flag("attention_bias", True) else "",
        qk_norm=True, patch_bias=True, frames=True, norms="post", image=None,
        further=Further(back=lambda c, d: _glm_merger(c, d, wide)), paths=("patch_embed.proj", "blocks"),
    )  # fmt: skip


def next_tower(c: Config) -> Tower:
    """GLM-5.3's: GLM-OCR's, with a merger of a width of its own."""
    return ocr_tower(c, c.count("projection_intermediate_size"))


def _patch_norm(_c: Config, d: int) -> tuple[Block, ...]:
    return (Weights((vector("post_conv_layernorm", d, "norm"),)),)


def _glm_merger(c: Config, d: int, hidden: int) -> tuple[Block, ...]:
    """Return a convolution whose stride is its side, a matrix, a norm, and a gated block."""
    out, side = c.count("out_hidden_size"), c.count("spatial_merge_size")
    return (
        Weights(
            (
                linear("downsample", d * side**2, out, "conv", bias=True, work="conv", feeds="merged"),
                linear("merger.proj", out, out, "other", feeds="merged"),
                vector("merger.post_projection_norm", out, "other", bias=True),
                linear("merger.gate_proj", out, hidden, "other", feeds="merged"),
                linear("merger.up_proj", out, hidden, "other", feeds="merged"),
                linear("merger.down_proj", hidden, out, "other", feeds="merged"),
            )
        ),
    )


def omni_deepstack(c: Config, d: int) -> tuple[Block, ...]:
    """Qwen 3 VL's mergers as Qwen 3 Omni calls them."""
    wide, out = d * c.count("spatial_merge_size") ** 2, c.count("out_hidden_size")
    names = ("ln_q", "mlp.0", "mlp.2")
    deep = [
        merger(f"merger_list.{i}", wide, wide, out, norm=Norm(wide, "layer", bias=True), names=names)
        for i in range(len(whole_numbers(c, "deepstack_visual_indexes", default=[])))
    ]
    return (merger("merger", wide, wide, out, norm=Norm(d, "layer", bias=True), names=names), *deep)


def omni_waves(c: Config) -> Tower:
    """Qwen 2.5 Omni's encoder of sound: Whisper's, in windows, with waves for positions."""
    tower = waves(c, positions=None)
    c.ignore("n_window")
    return tower._replace(rows=None, leaving=None)


def omni_hears(_c: Config, inner: Config, tower: Tower, _width: int) -> Sequence[Block]:
    """Two rows that begin and end sound, and one matrix whose output width is the tower's own key."""
    out, at = inner.count("output_dim"), "audio_tower"
    proj = Weights((linear(f"{at}.proj", tower.width, out, "other", bias=True, feeds="merged"),))
    return (table(f"{at}.audio_bos_eos_token", 2, out), proj)


def omni_spectrum(c: Config) -> Tower:
    """Qwen 3 Omni's: as Qwen 3 ASR's."""
    tower = spectrum(c)
    c.ignore("n_window", "n_window_infer", "conv_chunksize")
    return tower


def omni_listens(_c: Config, inner: Config, tower: Tower, _width: int) -> Sequence[Block]:
    """Two matrices, whose output width is the tower's own key."""
    return (merger("audio_tower", tower.width, tower.width, inner.count("output_dim"), names=("", "proj1", "proj2")),)


def video_projector(_c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Two matrices."""
    return (merger("projector", tower.width, width, width, names=("", "readout.0", "readout.2")),)


def paddle_projector(_c: Config, inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """A norm, squares of neighbours become one row, and two matrices project it."""
    d = tower.width
    wide = d * inner.count("spatial_merge_size") ** 2
    norm = Norm(d, "layer", bias=True)
    return (merger("projector", wide, wide, width, norm=norm, names=("pre_norm", "linear_1", "linear_2")),)


def paddle(c: Config, request: Request, *, senses: tuple[Sense, ...]) -> Anatomy:
    """Return PaddleOCR-VL; where the text model's keys stand among the wrapper's, the class ties head and table in any case."""
    if c.values.get("text_config") is None and c.values.get("tie_word_embeddings") is False:
        c.notes.append(
            "the config class ties head and table of a config without a text_config, though this one says false"
        )
        values = {**c.values, "tie_word_embeddings": True}
        return multimodal(replace(c, values=values), request, senses=senses, ties="either", flat=True)
    return multimodal(c, request, senses=senses, ties="either", flat=True)


def ernie_resampler(_c: Config, inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Squares of neighbours become one row, then neighbouring frames do; two matrices and a norm each, a matrix and a norm on top."""
    wide, at = tower.width * inner.count("spatial_merge_size") ** 2, "resampler_model"
    frames = inner.count("temporal_merge_size")
    both = [
        (
            merger(f"{at}.{name}", into, wide, wide, names=("", "fc1", "fc2")),
            vector(f"{at}.{name}.ln", wide, "other", bias=True),
        )
        for name, into in (("spatial_linear", wide), ("temporal_linear", wide * frames))
    ]
    top = Weights(
        (
            linear(f"{at}.mlp", wide, width, "other", bias=True, feeds="merged"),
            vector(f"{at}.after_norm", width, "other"),
        )
    )
    return (*(block for matrices, norm in both for block in (matrices, Weights((norm,)))), top)


SEEN = (1536, 512)
"""Widths of an expert of text and of one of images where an ERNIE 4.5 VL config doesn't say."""


@dataclass(frozen=True, slots=True)
class TwoMixtures(MixtureOfExperts):
    """Experts that tokens of text visit, and as many others that only those of images do (ERNIE 4.5 VL).

    Attributes:
        seen: F of an expert of images.
    """

    seen: int = 0

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the router and experts of text, those of images, which no text visits, and the shared expert."""
        text = MixtureOfExperts.leaves(replace(self, shared=0))
        images = MixtureOfExperts.leaves(replace(self, shared=0, hidden=self.seen))
        rest = MixtureOfExperts.leaves(self)[len(text) :]
        return (
            *(replace(leaf, name=f"text_moe.{leaf.name}") for leaf in text),
            *(replace(leaf, name=f"vision_moe.{leaf.name}", active=0) for leaf in images),
            *rest,
        )


def ernie_experts(c: Config, request: Request, layers: int) -> list[Block | None]:
    """Dense blocks, and experts of two kinds that share one more; a layer's kind is listed, or all but the first have experts."""
    text, images = c.counts("moe_intermediate_size", 2, low=1) or SEEN
    one = replace(c, values={**c.values, "moe_intermediate_size": text})
    plain = mixture(
        sparse=listed(lambda _c, n: [i > 0 for i in range(n)]), dense=feed_forward(bias="use_bias"), shared_bias="use_bias",
        correction_bias="parameter", scoring="softmax",
    )  # fmt: skip
    return [
        TwoMixtures(**{f.name: getattr(block, f.name) for f in fields(block)}, seen=images)
        if isinstance(block, MixtureOfExperts)
        else block
        for block in plain(one, request, layers)
    ]


@dataclass(frozen=True, slots=True)
class PooledIndexer(Indexer):
    """An indexer that scores the weighted mean of each `pool` keys (GLM-5.3).

    Attributes:
        pool: tokens to a mean. kept: every token's key, gate and validity are kept, not the means.
    """

    pool: int = 1
    kept: bool = False

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the indexer's, gates [D, K], and biases by position in the pool."""
        return (
            *Indexer.leaves(self),
            linear("index_kpool_compress_gate", self.width, self.head, "attention"),
            Leaf("index_kpool_compress_ape", self.pool, self.head, "attention"),
        )

    def caches(self) -> tuple[Cache, ...]:
        """Return a mean a pool, with keys and gates of tokens that aren't in one yet; or all keys and gates."""
        if self.kept:
            return (Cache("self", 2 * self.head + 1, chooses=True),)
        return (Cache("self", self.head, stride=self.pool, tail=2 * self.head, chooses=True),)

    def cores(self) -> tuple[Core, ...]:
        """Return the scores of all earlier means, and their weighted sum over heads."""
        return (CompressedAttend(self.heads, self.head, 1, None, self.pool, None, self.caches()),)


def pooled_latent(c: Config, request: Request, layers: int) -> list[Block | None]:
    """Make GLM-5.3's latent attention: no positions, and keys that an indexer of pools chooses."""
    width, heads, nope = c.count("hidden_size"), c.count("num_attention_heads"), c.count("qk_nope_head_dim")
    turned = c.count("qk_rope_head_dim", 0, low=0)
    if turned:
        raise PlanError(
            f"found {turned}, but this attention has no positions", where=c.where("qk_rope_head_dim"), fix="set it to 0"
        )
    c.ignore("num_key_value_heads", "head_dim")
    queries = c.count("q_lora_rank")
    chooser = PooledIndexer(
        width, queries, c.count("index_n_heads"), c.count("index_head_dim"), pool=c.count("index_kpool"),
        kept=request.does("keeps_pooled_keys"),
    )  # fmt: skip
    bias = c.flag("attention_bias", False)
    block = LatentAttention(
        width, heads, queries, c.count("kv_lora_rank"), nope, 0, c.count("v_head_dim"), bias, chooser=chooser,
        mask=Mask(chosen=c.count("index_topk")),
    )  # fmt: skip
    return [replace(block, chooser=None) if shared else block for shared in scheduled(c, layers)]


def averaged_streams(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Hyper-connections whose streams are averaged before the head."""
    anatomy = decoder(c, request, **traits)
    (stack,) = anatomy.stacks
    mix = Sublayer(HyperConnections(c.count("hidden_size"), c.count("hc_mult")))
    runs = tuple(replace(run, layer=replace(run.layer, sublayers=(*run.layer.sublayers, mix))) for run in stack.runs)
    return anatomy._replace(stacks=(replace(stack, runs=runs),))


def three_of_four(_c: Config, layers: int) -> list[str]:
    """Linear attention in three layers of four, then one that sees all."""
    return ["linear_attention" if i % 4 != 3 else "indexed_attention" for i in range(layers)]


def but_three(_c: Config, layers: int) -> list[bool]:
    """All layers but the first three."""
    return [i > 2 for i in range(layers)]
