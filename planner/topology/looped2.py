"""Inkling 2's looped decoder: some layers run several times, and later passes read messages of the pass before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from planner.blocks import Block, Weights, linear
from planner.errors import PlanError
from planner.fields import Config
from planner.model import Layer, Run, runs
from planner.recurrent import Together
from planner.topology import Anatomy, Request
from planner.topology.looped import depth_attention, mixed_depths, smoothed_attention_2

SAVED = {
    "core_start": "loop_layer_index_start",
    "core_end": "loop_layer_index_end",
    "num_passes": "loop_num_passes",
    "gate_rank": "loop_gate_rank",
}
"""Entries of `loop_config`, which come before the config's own keys."""

INPUTS = ("q", "k", "v", "mlp")
"""What a message is mixed into, each through a gate of its own."""


class Loop(NamedTuple):
    """Layers `start` to `end` - 1 run `passes` times; gates have `rank` hidden elements."""

    start: int
    end: int
    passes: int
    rank: int


def loop(c: Config) -> Loop:
    """Return which layers run how often."""
    found = Loop(*(c.count(key) for key in SAVED.values()))
    step, layers = c.count("n_layers_per_attn_res_block"), c.count("num_hidden_layers")
    for key, value in (("loop_layer_index_start", found.start), ("loop_layer_index_end", found.end)):
        if value % step:
            raise PlanError(
                f"found {value}, a multiple of n_layers_per_attn_res_block ({step}) is needed",
                where=c.where(key),
                fix="correct one of them",
            )
    if not found.start < found.end <= layers:
        raise PlanError(
            f"found {found.end}, but layers from {found.start} to at most {layers} can be looped",
            where=c.where("loop_layer_index_end"),
            fix=f"set it above {found.start}, and to at most {layers}",
        )
    return found


def message_gates(width: int, rank: int) -> Weights:
    """Return the gates [2 D -> R -> D, twice] that mix messages into a layer's inputs; the first pass has none."""

    def gate(of: str) -> tuple[tuple[str, int, int, str | None], ...]:
        name = f"{of}_message_gate"
        return (
            (f"{name}.down_proj", 2 * width, rank, None),
            (f"{name}.forget_gate_proj", rank, width, "float32"),
            (f"{name}.message_gate_proj", rank, width, "float32"),
        )

    return Weights(
        tuple(
            linear(name, n_in, n_out, "other", own_dtype=dtype, skips=1)
            for of in INPUTS
            for name, n_in, n_out, dtype in gate(of)
        )
    )


def messaged_attention(c: Config, request: Request, layers: int) -> list[Block | None]:
    """Make Inkling 2's attention; looped layers have gates for messages."""
    looped, found = loop(c), smoothed_attention_2(c, request, layers)
    gates = message_gates(c.count("hidden_size"), looped.rank)
    inside = range(looped.start, looped.end)
    return [Together((block, gates)) if block and i in inside else block for i, block in enumerate(found)]


def looped_depths(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Return Inkling 2's looped decoder.

    Later passes retrieve messages for each looped layer from what the pass before left: its blocks' states but the
    first, and its last rows.
    """
    saved = c.table("loop_config")
    given = {key: saved[name] for name, key in SAVED.items() if saved.get(name) is not None}
    c = c.nested(None, c.family, c.names, c.defaults, given)
    start, end, passes, _ = loop(c)
    found = mixed_depths(c, request, **traits)
    (stack,) = found.stacks
    each: list[Layer] = [run.layer for run in stack.runs for _ in range(run.count)]
    body: list[Run] = [*runs(each[:start])]
    body += [replace(run, repeats=passes) for run in runs(each[start:end])]
    body += runs(each[end:])
    states = (end - start) // c.count("n_layers_per_attn_res_block")
    queries = depth_attention("message_input", c.count("hidden_size"), len(INPUTS) * (end - start), states)
    rate, work = queries.rate * (passes - 1), queries.work if passes > 1 else None
    messages = Weights((replace(queries, rate=rate, work=work, own_dtype="float32"),))
    return found._replace(stacks=(replace(stack, runs=tuple(body), back=(messages, *stack.back)),))
