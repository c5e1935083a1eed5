"""Decoder-only models: one stack of causal layers (Llama, GPT-2, Mixtral, DeepSeek, Gemma, Falcon, PaLM ...)."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Literal

from planner.blocks import Block, Head, Norm, Table, Weights, linear
from planner.fields import Config
from planner.model import Layer, Run, Stack, Sublayer, runs
from planner.topology import Anatomy, Maker, Request
from planner.topology.attention import attention
from planner.topology.feed_forward import feed_forward

Wiring = Literal["pre", "sandwich", "post", "parallel", "parallel_two"]
"""Norms before each block, on both sides of it (Gemma 2), or after the sum (GPT-1); or both blocks side by side, on one
norm (PaLM) or each on its own (Falcon-40B)."""


def decoder(
    c: Config,
    request: Request,
    *,
    mixers: Maker | None = None,
    feeds: Maker | None = None,
    norm: Literal["rms", "layer"] = "rms",
    norm_bias: bool = False,
    unit_offset: bool = False,
    wiring: Wiring | Callable[[Config], Wiring] = "pre",
    final_norm: bool = True,
    learned_positions: bool = False,
    scaled_table: bool = False,
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
    """
    width, layers, vocabulary = c.count("hidden_size"), c.count("num_hidden_layers"), c.count("vocab_size")
    epsilon = c.number("rms_norm_eps" if norm == "rms" else "layer_norm_epsilon", 1e-6 if norm == "rms" else 1e-5)
    tie = "embed_tokens" if c.flag("tie_word_embeddings", True) else None
    a_norm = Norm(width, norm, norm_bias, epsilon, unit_offset)
    wired = wiring(c) if callable(wiring) else wiring
    made = zip((mixers or attention())(c, request, layers), (feeds or feed_forward())(c, request, layers), strict=True)
    body = [_layer([block for block in blocks if block], wired, a_norm) for blocks in made]
    longest = c.count("max_position_embeddings") if learned_positions else c.count("max_position_embeddings", None)
    positions = (Table("wpe", longest, width, index="position"),) if learned_positions else ()
    head = Head(width, vocabulary, tie=tie, softcap=c.number("final_logit_softcapping", None))
    further, notes = _predictors(c, request, body[-1], a_norm)
    stack = Stack(
        "decoder",
        (Table("embed_tokens", vocabulary, width, tie, sqrt(width) if scaled_table else 1.0), *positions),
        runs(body) + further,
        ((a_norm,) if final_norm else ()) + ((head,) if request.head else ()),
    )
    return Anatomy("decoder", (stack,), longest, learned_positions, notes=notes)


def _layer(blocks: list[Block], wiring: Wiring, norm: Norm) -> Layer:
    """Wire a layer's blocks to the residual stream."""
    wire: dict[Wiring, Callable[[Block], Sublayer]] = {
        "pre": lambda block: Sublayer(block, before=norm),
        "parallel_two": lambda block: Sublayer(block, before=norm),
        "sandwich": lambda block: Sublayer(block, before=norm, after=norm),
        "post": lambda block: Sublayer(block, join=norm),
        "parallel": Sublayer,
    }
    shared = norm if wiring == "parallel" else None
    return Layer(tuple(map(wire[wiring], blocks)), wiring.startswith("parallel"), shared)


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
