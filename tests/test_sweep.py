"""The sweep: the same formulas on arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.sweep import grid, sweep, table

POINTS = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 200_000)), min_size=1, max_size=20)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["llama3-8b", "gemma2-2b", "mixtral-8x7b", "deepseek-v2-lite", "mistral-7b-v0.1"]), POINTS)
def test_a_sweep_equals_single_plans(name: str, points: list[tuple[int, int]]) -> None:
    """Every point, to the last integer."""
    model = planner.load(name)
    found = sweep(model, *np.array(points).T)
    assert found["exact"]
    for index, (batch, context) in enumerate(points):
        single = planner.plan(model, batch=batch, prompt=context, generate=0)
        figures = (
            single.cache["bytes"],
            (single.flops["decode"] or {})["total"],
            (single.flops["decode"] or {})["dense"],
        )
        assert tuple(int(found[key][index]) for key in ("cache_bytes", "decode_flops", "decode_dense_flops")) == figures


def test_counts_beyond_64_bits_are_flagged() -> None:
    """A million sequences of a billion tokens of Llama-3.1-405B: float64, and said so."""
    model = planner.load("llama3.1-405b")
    found = sweep(model, np.array([10**6]), np.array([10**9]))
    exact = planner.plan(model, batch=10**6, prompt=10**9, generate=0).cache["bytes"]
    assert not found["exact"]
    assert found["cache_bytes"][0] == pytest.approx(exact, rel=1e-12)


def test_a_table_has_a_row_for_every_pair() -> None:
    """2 x 3 points."""
    rows = table(planner.load("gpt2"), [1, 2], [10, 20, 30])
    assert list(rows.columns) == ["batch", "context", "cache_bytes", "decode_flops", "decode_dense_flops", "exact"]
    assert rows[["batch", "context"]].to_numpy().tolist() == [[1, 10], [1, 20], [1, 30], [2, 10], [2, 20], [2, 30]]


@pytest.mark.parametrize(("text", "numbers"), [("1,2,8", [1, 2, 8]), ("4:10:3", [4, 7, 10])])
def test_a_grid_is_a_list_or_a_range(text: str, numbers: list[int]) -> None:
    """Both ends of a range are included."""
    assert grid(text, "--batch") == numbers
