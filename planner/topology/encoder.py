"""Encoder-only models: one stack of layers whose tokens see each other both ways (BERT, Longformer, BigBird)."""

from __future__ import annotations

from collections.abc import Callable

from planner.blocks import Attention, Block, FeedForward, Head, Norm, Pooler, Table
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.model import Layer, Stack, Sublayer, runs
from planner.topology import Anatomy, Request


def see_all(c: Config, layers: int) -> list[Mask]:  # noqa: ARG001
    """Every token sees every token."""
    return [Mask(causal=False)] * layers


def around(c: Config, layers: int) -> list[Mask]:
    """Longformer: `attention_window` keys around each token, half on either side, one number or one for each layer."""
    given = c.raw("attention_window")
    sizes = given if isinstance(given, list) else [given] * layers
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 2 or size % 2:
            raise PlanError(
                f"found {size!r}, allowed are even numbers from 2",
                where=c.where("attention_window"),
                fix="correct the file",
            )
    if len(sizes) != layers:
        raise PlanError(
            f"found {len(sizes)} entries for {layers} layers",
            where=c.where("attention_window"),
            fix="give one for each layer",
        )
    return [Mask(causal=False, window=size // 2 + 1) for size in sizes]


def blocks_of_keys(c: Config, layers: int) -> list[Mask]:
    """BigBird: global, window and random blocks of keys; or all."""
    size, drawn = c.count("block_size"), c.count("num_random_blocks", low=0)
    if c.text("attention_type", allowed=("block_sparse", "original_full")) == "original_full":
        return see_all(c, layers)
    return [Mask(causal=False, block=size, random_blocks=drawn)] * layers


def encoder(
    c: Config,
    request: Request,
    *,
    masks: Callable[[Config, int], list[Mask]] = see_all,
    offset: int = 0,
    global_projections: bool = False,
    projection_bias: str | None = None,
    pooled: bool = False,
) -> Anatomy:
    """Return the one stack of a post-norm encoder with learned positions and a masked-LM head.

    Args:
        c: the config.
        request: engine and extras.
        masks: of every layer.
        offset: rows of the position table that no token uses (RoBERTa: 2).
        global_projections: Longformer's second set of projections.
        projection_bias: key that says whether queries, keys and values add a vector; None: they do.
        pooled: the first token's pooler stands beside the masked-LM head too (BigBird), not only in the bare model.
    """
    width, layers = c.count("hidden_size"), c.count("num_hidden_layers")
    heads, hidden = c.heads("num_attention_heads", width), c.count("intermediate_size")
    rows, vocabulary = c.count("max_position_embeddings"), c.count("vocab_size")
    if rows <= offset:
        raise PlanError(
            f"found {rows}, but {offset} rows of this family's table serve no token",
            where=c.where("max_position_embeddings"),
            fix=f"give more than {offset}",
        )
    c.text("position_embedding_type", "absolute", allowed=("absolute",))
    if c.flag("is_decoder", False) or c.flag("add_cross_attention", False):
        raise PlanError(
            "found true; this family is modelled as an encoder only", where=c.where("is_decoder"), fix="set it to false"
        )
    norm = Norm(width, "layer", bias=True, epsilon=c.number("layer_norm_eps", 1e-12))
    act, bias = c.text("hidden_act", "gelu"), c.flag(projection_bias) if projection_bias else True
    mlp = FeedForward(width, hidden, False, True, True, act)
    tie = "word_embeddings" if c.flag("tie_word_embeddings", True) else None

    def layer(mask: Mask) -> Layer:
        attention = Attention(
            width, heads, heads, width // heads, mask, bias, bias, bias, True, global_projections=global_projections
        )
        return Layer((Sublayer(attention, join=norm), Sublayer(mlp, join=norm)))

    front: list[Block] = [
        Table("word_embeddings", vocabulary, width, tie),
        Table("position_embeddings", rows, width, index="position", offset=offset),
    ]
    if types := c.count("type_vocab_size", 0, low=0):
        front.append(Table("token_type_embeddings", types, width, index="type"))
    pooler = Pooler(width)
    head = Head(width, vocabulary, bias=True, tie=tie, transform=norm, activation=act, every_row=True)
    body = runs([layer(mask) for mask in masks(c, layers)])
    back: tuple[Block, ...] = (*([] if request.head and not pooled else [pooler]), *([head] if request.head else []))
    stack = Stack("encoder", (*front, norm), body, back)
    return Anatomy("encoder", (stack,), rows - offset, True)
