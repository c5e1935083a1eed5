"""Bytes that a pass moves between memory and processor, after ideal fusion: what arithmetic intensity divides by."""

from __future__ import annotations

from typing import NamedTuple

from planner.model import Model, Stack
from planner.moe import distinct_experts
from planner.precision import Precision, cache_bits, element_bits, stack_bytes
from planner.workload import Pass


class Traffic(NamedTuple):
    """Bytes moved by one pass over all sequences.

    Attributes:
        weight_bytes: read; of experts those expected to be visited, of tables the rows looked up.
        activation_bytes: rows read and results written by matrix products.
        cache_bytes: kept rows read and new rows written.
    """

    weight_bytes: float
    activation_bytes: float
    cache_bytes: float


def pass_traffic(model: Model, stack: Stack, p: Pass, precision: Precision) -> Traffic:
    """Return the bytes that one stack moves in one pass."""
    rows = {feed: p.rows(feed) for feed in stack.row_elements}
    activation = float(element_bits(precision.activations)) / 8
    stored = stack_bytes(model, stack, precision)
    tokens = p.rows("new")
    visited = 1.0
    for mixture in stack.mixtures[:1]:
        visited = distinct_experts(mixture.experts, mixture.visits, tokens) / mixture.experts
    moved = sum(rows[feed] * elements for feed, elements in stack.row_elements.items()) * activation
    moved += tokens * activation * sum(times * core.row_elements for core, times in stack.cores.items())
    state = float(element_bits(precision.state)) / 8
    held, remembered = 0.0, 0
    for kept, times in stack.caches.items():
        row_bytes = kept.row * (float(cache_bits(precision, kept)) / 8)
        if kept.kind == "cross":
            held += times * row_bytes * p.memory
        else:
            held += times * row_bytes * (kept.kept(p.past, model.engine) + p.new * kept.owner)
            remembered += 2 * times * kept.fixed
    weights = stored.dense + stored.experts * visited + tokens * stored.table_row
    return Traffic(float(weights), float(moved), p.batch * (held + remembered * state))
