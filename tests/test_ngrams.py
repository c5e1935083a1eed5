"""Qwen 4's masks and tables against loops."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planner.ngrams import WholeBlocks, table_rows
from planner.workload import Pass

SMALL = st.integers(1, 6)


def chosen_keys(tokens: int, blocks: int, grain: int) -> int:
    """Keys that a query scores which `tokens` tokens see: the best whole blocks, and all of the block that isn't whole."""
    return min(tokens // grain, blocks) * grain + tokens % grain


@given(SMALL, SMALL, st.integers(0, 40), st.integers(0, 20))
def test_whole_blocks_and_the_last_tokens_are_scored(blocks: int, grain: int, past: int, new: int) -> None:
    """Prefills, steps on a cache and steps without one."""
    mask = WholeBlocks(chosen=(blocks + 1) * grain, grain=grain)
    rows = [chosen_keys(n, blocks, grain) for n in range(1, past + new + 1)]
    assert mask.pairs(Pass(1, past + new)) == sum(rows)
    assert mask.pairs(Pass(1, new, past, "decode")) == sum(rows[past:])
    whole = sum(sum(rows[:n]) for n in range(past + 1, past + new + 1))
    assert mask.pairs(Pass(1, new, past, "recompute")) == whole


def test_tables_have_prime_sizes() -> None:
    """13, 17, 19 and 23 are the second to fifth primes from 11 on."""
    assert table_rows(11, 1, 4, 1) == 13 + 17 + 19 + 23
    assert table_rows(11, 1, 4, 50) == 100
