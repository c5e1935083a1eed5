"""Byte Latent Transformer (arXiv:2412.09871): bytes are grouped into patches where a small patcher finds the next byte hard to guess.

A local encoder turns bytes into patches, the global transformer works on patches, a local decoder turns them into bytes. They are
runs of one stack, whose tokens are bytes; where patches end depends on the data, so that each byte is planned as a patch of its
own, the most there can be.

Letters: D width of bytes, k rows that a patch has in a cross-attention, H heads, N key-value heads, K head width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from planner.blocks import (
    Attention,
    Block,
    Cache,
    Core,
    FeedForward,
    Head,
    Leaf,
    Norm,
    Table,
    Weights,
    Work,
    checkpoint_name,
    key_value_heads,
    linear,
    split,
    vector,
)  # fmt: skip
from planner.count import Number
from planner.engines import Engine
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.model import Layer, Run, Stack, Sublayer, runs
from planner.topology import Anatomy, Request
from planner.topology.attention import attention
from planner.topology.feed_forward import feed_forward
from planner.topology.multimodal import COMMON, part
from planner.workload import Pass

BYTE_GROUPS = (3, 4, 5, 6, 7, 8)
"""Bytes whose hash picks a row, where the config doesn't say."""

UPPER_BOUND = (
    "tokens are bytes; where patches end depends on the data: the global transformer and the cross-attentions are planned as if "
    "each byte were a patch, an upper bound of their work and cache"
)


@dataclass(frozen=True, slots=True)
class OwnPatch:
    """Each byte meets the k rows of its own patch, once: the scores and the mix of values.

    Attributes:
        heads: H. head: K. rows: k.
    """

    heads: int
    head: int
    rows: int
    work: ClassVar[Work] = "attention"

    @property
    def row_elements(self) -> int:
        """Elements that one byte's row brings and takes: its queries and its mixed values."""
        return 2 * self.heads * self.head

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add of both products, k pairs a byte."""
        return 4 * self.heads * self.head * self.rows * p.rows("new")

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return f"4 x {self.heads:,} heads x {self.head:,} (head width) x {self.rows:,} rows of a patch x {p.rows('new'):,} bytes"


@dataclass(frozen=True, slots=True)
class PatchAttention:
    """Cross-attention between bytes and the k rows of their patch, which nothing remembers beyond the patch.

    Attributes:
        width: D. heads: H. kv_heads: N. head: K. rows: k.
        asking: who has the queries, the patches (local encoder) or the bytes (local decoder).
        epsilon: of both norms. name: as in checkpoints.
    """

    width: int
    heads: int
    kv_heads: int
    head: int
    rows: int
    asking: Literal["patches", "bytes"]
    epsilon: float
    name: str

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the projections [D, H K], [D, N K] twice and [H K, D], and the norms of their inputs."""
        q, kv = self.heads * self.head, self.kv_heads * self.head
        asked, read = (self.rows, 1) if self.asking == "patches" else (1, self.rows)
        by_head, by_group = split("out", "heads", self.heads), key_value_heads(self.kv_heads)
        return (
            linear("q_proj", self.width, q, "attention", rate=asked, split=by_head),
            linear("k_proj", self.width, kv, "attention", rate=read, split=by_group),
            linear("v_proj", self.width, kv, "attention", rate=read, split=by_group),
            linear("o_proj", q, self.width, "attention", rate=asked, split=split("in", "heads", self.heads)),
            vector("q_norm", self.width, "norm"),
            vector("k_norm", self.width, "norm"),
        )

    def caches(self) -> tuple[Cache, ...]:
        """Return nothing."""
        return ()

    def cores(self) -> tuple[Core, ...]:
        """Return the scores and the mix of values."""
        return (OwnPatch(self.heads, self.head, self.rows),)


def _inner(c: Config, key: str) -> Config:
    """Return a reader of one of the four parts, as its config class completes it: head widths are always derived."""
    found = part(c, key)
    width = found.count("hidden_size")
    if (heads := found.count("num_attention_heads")) > width:
        raise PlanError(
            f"found {heads:,}, more than the width {width:,}",
            where=found.where("num_attention_heads"),
            fix="correct the file",
        )
    values = {**found.values, "head_dim": None}
    if values.get("intermediate_size", 0) is None or "intermediate_size" not in {**found.defaults, **found.values}:
        values["intermediate_size"] = 8 * width // 3
    found.values = values
    found.ignore(*COMMON, "encoder_cross_output_size")
    return found


def _layers(c: Config, request: Request, at: str, window: int | None) -> list[Layer]:
    """Return Llama's layers of one part, named below it."""
    width, count = c.count("hidden_size"), c.count("num_hidden_layers")
    norm = Norm(width, epsilon=c.number("rms_norm_eps", 1e-5))
    mixers = attention(uneven=True)(c, request, count)
    feeds = feed_forward()(c, request, count)
    made: list[Layer] = []
    for mixer, feed in zip(mixers, feeds, strict=True):
        assert isinstance(mixer, Attention)
        assert isinstance(feed, FeedForward)
        mixing = replace(mixer, mask=Mask(window=window), name=f"{at}.self_attn")
        feeding = replace(feed, name=f"{at}.mlp")
        made.append(
            Layer(
                (
                    Sublayer(mixing, before=replace(norm, name=f"{at}.input_layernorm")),
                    Sublayer(feeding, before=replace(norm, name=f"{at}.post_attention_layernorm")),
                )
            )
        )
    return made


def _crossing(c: Config, layers: list[Layer], at: str, asking: Literal["patches", "bytes"]) -> tuple[list[Layer], int]:
    """Return the layers with cross-attention, after each or the last (patches ask) or before each or the first; and how many have it."""
    width, heads = c.count("hidden_size"), c.count("num_attention_heads")
    block = PatchAttention(
        width, heads, c.count("num_key_value_heads", heads), width // heads, c.count("cross_attn_k"), asking,
        c.number("rms_norm_eps", 1e-5), f"{at}.cross_attn_layers",
    )  # fmt: skip
    last = len(layers) - 1
    chosen = range(last + 1) if c.flag("cross_attn_all_layers", False) else (last if asking == "patches" else 0,)
    cross = (Sublayer(block),)
    made = [
        Layer((*layer.sublayers, *cross) if asking == "patches" else (*cross, *layer.sublayers))
        if i in chosen
        else layer
        for i, layer in enumerate(layers)
    ]
    return made, len(chosen)


def _idle(block: Block) -> Weights:
    """Return what a block stores, without its work."""
    return Weights(tuple(replace(leaf, name=checkpoint_name(block, leaf), work=None) for leaf in block.leaves()))


def _patcher(c: Config, request: Request, *, runs_it: bool) -> tuple[list[Block], tuple[Run, ...]]:
    """Return the patcher's blocks outside its layers, and its layers; without work where patches aren't found by entropy."""
    inner = _inner(c, "patcher_config")
    width, vocabulary = inner.count("hidden_size"), inner.count("vocab_size")
    layers = _layers(inner, request, "patcher", inner.count("sliding_window", None))
    outside: list[Block] = [
        Table("patcher.embed_tokens", vocabulary, width),
        Norm(width, epsilon=inner.number("rms_norm_eps", 1e-5), name="patcher.norm"),
        Weights((linear("patcher.lm_head", width, vocabulary, "other"),)),
    ]
    if runs_it:
        return outside, runs(layers)
    outside[-1] = _idle(outside[-1])
    return outside, runs([Layer(tuple(Sublayer(_idle(block)) for block in layer.blocks)) for layer in layers])


def _must_equal(c: Config, found: int, key: str, other: int, meaning: str) -> None:
    """Refuse two widths that no forward pass can join."""
    if found != other:
        raise PlanError(f"found {found:,}, but {meaning} is {other:,}", where=c.where(key), fix="correct one of them")


def blt(c: Config, request: Request) -> Anatomy:
    """Return one stack with four runs of layers: patcher, local encoder, global transformer, local decoder."""
    encoder, middle, decoder = (_inner(c, f"{name}_config") for name in ("encoder", "global", "decoder"))
    width, wide, vocabulary, k = (
        encoder.count("hidden_size"), middle.count("hidden_size"), c.count("vocab_size"), c.count("cross_attn_k"),
    )  # fmt: skip
    _must_equal(decoder, decoder.count("hidden_size"), "hidden_size", width, "the local encoder's")
    _must_equal(
        decoder, decoder.count("hidden_size_global"), "hidden_size_global", wide, "the global transformer's width"
    )
    for inner in (encoder, decoder):
        _must_equal(inner, inner.count("cross_attn_k"), "cross_attn_k", k, "the whole model's")
    encoder.ignore("hidden_size_global")
    window = c.count("local_attention_window_len", None)
    first, crossings = _crossing(
        encoder, _layers(encoder, request, "local_encoder", window), "local_encoder", "patches"
    )
    last, _ = _crossing(decoder, _layers(decoder, request, "local_decoder", window), "local_decoder", "bytes")

    tie = "embed_tokens" if c.flag("tie_word_embeddings", False) else None
    if tie:
        _must_equal(c, vocabulary, "vocab_size", encoder.count("vocab_size"), "the local encoder's")
    groups = c.counts("encoder_hash_byte_group_size", low=1) or BYTE_GROUPS
    hashes = c.count("encoder_hash_byte_group_vocab") * c.count("encoder_hash_byte_group_nb_functions") * len(groups)
    into = linear("local_encoder.patch_embedding_projection", width, width * k, "other", rate=crossings)
    between = [into]
    if width * k != wide:
        between.append(linear("global_transformer.token_embedding_projection", width * k, wide, "other"))
    between.append(linear("local_decoder.patch_embedding_projection", wide, width * k, "other"))

    by_entropy = c.text("patching_mode", "entropy") == "entropy"
    found = c.flag("patch_in_forward", False)
    outside, patching = _patcher(c, request, runs_it=by_entropy) if found else ([], ())
    if not found:
        c.ignore("patcher_config")
    front: list[Block] = [
        Table("local_encoder.embed_tokens", encoder.count("vocab_size"), width, tie),
        Table("encoder_hash_tok_embedding", hashes, width),
        *outside,
        Weights(tuple(between)),
    ]
    back: list[Block] = [Norm(width, epsilon=decoder.number("rms_norm_eps", 1e-5), name="local_decoder.norm")]
    if request.head:
        back.append(Head(width, vocabulary, tie=tie))
    body = (*patching, *runs(first), *runs(_layers(middle, request, "global_transformer", None)), *runs(last))
    stack = Stack("decoder", tuple(front), body, tuple(back))
    notes = (UPPER_BOUND,) if by_entropy and found else ("tokens are bytes, and each is a patch of its own",)
    return Anatomy("decoder", (stack,), encoder.count("max_position_embeddings", None), notes=notes)
