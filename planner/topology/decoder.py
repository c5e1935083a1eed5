"""Decoder-only models: one stack of causal layers (Llama, GPT-2, Mixtral, DeepSeek, Gemma, Falcon, PaLM ...)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Literal

from planner.blocks import Block, Head, Leaf, Norm, Sinusoids, Table, Weights, linear
from planner.errors import PlanError
from planner.fields import Config
from planner.model import Layer, Run, Stack, Sublayer, runs
from planner.topology import Anatomy, Maker, Request, Says, says
from planner.topology.attention import attention
from planner.topology.feed_forward import feed_forward

Wiring = Literal["pre", "sandwich", "after", "post", "parallel", "parallel_two"]
"""Norms before each block, on both sides of it (Gemma 2), after it (OLMo 2), or after the sum (GPT-1); or both blocks side by side, on one
norm (PaLM) or each on its own (Falcon-40B)."""


def decoder(
    c: Config,
    request: Request,
    *,
    mixers: Maker | None = None,
    feeds: Maker | None = None,
    norm: Literal["rms", "layer"] = "rms",
    norm_bias: Says = False,
    unit_offset: bool = False,
    wiring: Wiring | Callable[[Config], Wiring] = "pre",
    final_norm: bool | Callable[[Config], bool] = True,
    learned_positions: bool = False,
    scaled_table: Says = False,
    norm_affine: Says = True,
    first_norm: bool = True,
    table_norm: Says = False,
    table_width: str | None = None,
    table_name: str = "embed_tokens",
    offset: int = 0,
    waves: int | None = None,
    head_bias: Says = False,
    beside: Callable[[Config], tuple[Leaf, ...]] | None = None,
    transform_bias: Says | None = None,
    head_rows: str | None = None,
) -> Anatomy:
    """Return the one stack of a decoder.

    Args:
        c: the config.
        request: engine and extras.
        mixers: maker of what mixes tokens, layer by layer; None: plain attention.
        feeds: maker of the feed-forward blocks; None: plain gated ones.
        norm, norm_bias, unit_offset: kind of norm; whether it adds a vector, and multiplies by 1 + weight.
        wiring: where norms stand, a fixed answer or read off the config; see `Wiring`.
        final_norm: one more after the last layer.
        learned_positions: a table of positions is added to the first rows.
        scaled_table: looked-up rows are multiplied by sqrt(D) (Gemma, PaLM).
        head_bias: the head adds a vector.
        norm_affine: norms have weights.
        first_norm: the first layer's first block has a norm before it too.
        table_norm: norm of the embeddings (BLOOM).
        table_width: key of the table's width, where rows are projected to D after it, and back before the head (OPT).
        table_name: as in checkpoints.
        offset: rows of the position table that no token uses (OPT: 2).
        waves: positions are computed waves, and this one is the first token's (XGLM, CTRL).
        head_rows: key of the head's outputs, where they aren't V (Apertus 1.5); null: V.
        transform_bias: a dense layer and a norm stand before the head, and this one adds a vector; None: they don't.
        beside: what each layer stores beside its blocks (Doge).
    """
    width, layers, vocabulary = c.count("hidden_size"), c.count("num_hidden_layers"), c.count("vocab_size")
    epsilon = c.number("rms_norm_eps" if norm == "rms" else "layer_norm_epsilon", 1e-6 if norm == "rms" else 1e-5)
    tie = "embed_tokens" if c.flag("tie_word_embeddings", True) else None
    a_norm = Norm(width, norm, says(c, norm_bias), epsilon, unit_offset, affine=says(c, norm_affine))
    wired = wiring(c) if callable(wiring) else wiring
    made = zip((mixers or attention())(c, request, layers), (feeds or feed_forward())(c, request, layers), strict=True)
    body = [_layer([block for block in blocks if block], wired, a_norm) for blocks in made]
    body = body if first_norm else [_bare(body[0]), *body[1:]]
    if beside:
        stored = Sublayer(Weights(beside(c)))
        body = [replace(layer, sublayers=(*layer.sublayers, stored)) for layer in body]
    longest = c.count("max_position_embeddings") if learned_positions else c.count("max_position_embeddings", None)
    narrow = c.count(table_width, width) if table_width else width
    scale = sqrt(width) if says(c, scaled_table) else 1.0
    front: list[Block] = [Table(table_name, vocabulary, narrow, tie, scale)]
    if narrow != width:
        front.append(Weights((linear("project_in", narrow, width, "other"),)))
    if learned_positions:
        front.append(Table("wpe", longest + offset, width, index="position", offset=offset))
    if waves is not None:
        front.append(Sinusoids(width, waves, halves=True))
    if says(c, table_norm):
        front.append(a_norm)
    back: list[Block] = [a_norm] if (final_norm(c) if callable(final_norm) else final_norm) else []
    if narrow != width:
        back.append(Weights((linear("project_out", width, narrow, "other"),)))
    if request.head:
        bias = says(c, head_bias)
        transform = None if transform_bias is None else a_norm
        back.append(
            Head(narrow, _outputs(c, head_rows, vocabulary), bias, tie, transform, softcap=c.number("final_logit_softcapping", None),
                 transform_bias=says(c, transform_bias or False))
        )  # fmt: skip
    further, notes = _predictors(c, request, body[-1], a_norm)
    c.ignore("is_decoder")
    stack = Stack("decoder", tuple(front), runs(body) + further, tuple(back))
    return Anatomy("decoder", (stack,), longest, learned_positions, notes=notes)


def _layer(blocks: list[Block], wiring: Wiring, norm: Norm) -> Layer:
    """Wire a layer's blocks to the residual stream."""
    wire: dict[Wiring, Callable[[Block], Sublayer]] = {
        "pre": lambda block: Sublayer(block, before=norm),
        "parallel_two": lambda block: Sublayer(block, before=norm),
        "sandwich": lambda block: Sublayer(block, before=norm, after=norm),
        "after": lambda block: Sublayer(block, after=norm),
        "post": lambda block: Sublayer(block, join=norm),
        "parallel": Sublayer,
    }
    shared = norm if wiring == "parallel" else None
    return Layer(tuple(map(wire[wiring], blocks)), wiring.startswith("parallel"), shared)


def _outputs(c: Config, key: str | None, vocabulary: int) -> int:
    """Return the outputs of the head: V, or fewer where a key says so and the head isn't the table."""
    rows = int(c.count(key, vocabulary)) if key else vocabulary
    if rows > vocabulary or (rows != vocabulary and c.flag("tie_word_embeddings", True)):
        raise PlanError(
            f"found {rows:,}, but the table has {vocabulary:,} rows",
            where=c.where(key or "vocab_size"),
            fix="set tie_word_embeddings to false, and fewer rows than the table's",
        )
    return rows


def _bare(layer: Layer) -> Layer:
    """Return a layer without the norm before its first block (ModernBERT's first layer: the table has one)."""
    first, *others = layer.sublayers
    return replace(layer, sublayers=(replace(first, before=None), *others))


def _predictors(c: Config, request: Request, layer: Layer, norm: Norm) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """Return the multi-token-prediction layers where asked for, and a note (DeepSeek-V3, arXiv:2412.19437, section 2.2).

    Each norms the hidden row and the next token's embedding, projects both from 2 D to D, and runs one more layer.
    """
    count = c.count("num_nextn_predict_layers", 0, low=0)
    if not count:
        return (), ()
    if not request.mtp:
        return (), (f"{count} multi-token-prediction layer(s) left out; --mtp counts them",)
    width = norm.width
    joined = Weights((*norm.leaves(), *norm.leaves(), linear("eh_proj", 2 * width, width, "other")))
    predictor = Layer((Sublayer(joined), *layer.sublayers, Sublayer(norm)))
    note = f"{count} multi-token-prediction layer(s) counted, with table and head shared with the model's"
    return (Run(count, predictor),), (note,)
