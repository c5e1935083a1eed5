"""Pairs in closed form against a double loop over queries and keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.masks import Mask
from planner.workload import Pass

SMALL = st.integers(1, 12)


def sees(mask: Mask, query: int, key: int, length: int, prefix: int, global_tokens: int) -> bool:
    """Return whether a query may use a key, straight from the definitions."""
    near = mask.window is None or abs(query - key) < mask.window
    if not mask.causal:
        return near or query < global_tokens or key < global_tokens
    same_chunk = mask.chunk is None or query // mask.chunk == key // mask.chunk
    return near and same_chunk and (key <= query or (query < prefix and key < prefix and key < length))


def counted(mask: Mask, first: int, length: int, prefix: int = 0, global_tokens: int = 0) -> int:
    """Count pairs of queries first ... length - 1 by looking at every key."""
    return sum(sees(mask, q, k, length, prefix, global_tokens) for q in range(first, length) for k in range(length))


causal_masks = st.one_of(
    st.just(Mask()), st.builds(lambda w: Mask(window=w), SMALL), st.builds(lambda c: Mask(chunk=c), SMALL)
)


@given(causal_masks, st.integers(0, 30))
def test_a_prefill_scores_the_pairs_of_its_mask(mask: Mask, tokens: int) -> None:
    """Full, sliding and chunked causal masks, over 0 to 30 tokens."""
    assert mask.pairs(Pass(1, tokens)) == counted(mask, 0, tokens)


@given(causal_masks, st.integers(0, 30), st.integers(0, 30))
def test_a_prefix_is_seen_both_ways(mask: Mask, tokens: int, prefix: int) -> None:
    """The first K tokens see each other both ways, within the window or chunk."""
    assert mask.pairs(Pass(1, tokens, prefix=prefix)) == counted(mask, 0, tokens, prefix)


@given(causal_masks, st.integers(0, 20), st.integers(0, 20))
def test_decode_steps_score_one_row_each(mask: Mask, past: int, steps: int) -> None:
    """G steps on a cache score the last G rows of the mask."""
    assert mask.pairs(Pass(1, steps, past, "decode")) == counted(mask, past, past + steps)


@given(causal_masks, st.integers(0, 12), st.integers(0, 12), st.integers(0, 12))
def test_steps_without_a_cache_score_the_whole_mask_each_time(mask: Mask, past: int, steps: int, prefix: int) -> None:
    """G passes over P + 1, ..., P + G tokens, the prefix within the prompt."""
    prefix = min(prefix, past)
    expected = sum(counted(mask, 0, n, prefix) for n in range(past + 1, past + steps + 1))
    assert mask.pairs(Pass(1, steps, past, "recompute", prefix=prefix)) == expected


@given(st.one_of(st.none(), SMALL), st.integers(1, 30), st.integers(0, 30))
def test_two_way_windows_and_global_tokens(window: int | None, tokens: int, global_tokens: int) -> None:
    """Longformer: a window on both sides, and tokens that see and are seen by all."""
    mask, seen = Mask(causal=False, window=window), min(global_tokens, tokens)
    assert mask.pairs(Pass(1, tokens, global_tokens=seen)) == counted(mask, 0, tokens, 0, seen)


def big_bird(tokens: int, size: int, drawn: int) -> int:
    """Count BigBird's pairs block by block, as the paper and the reference lay them out (arXiv:2007.14062)."""
    if tokens <= (5 + 2 * drawn) * size:
        return tokens * tokens
    lengths = [min(size, tokens - start) for start in range(0, tokens, size)]
    last = len(lengths) - 1
    pairs = 0
    for block, rows in enumerate(lengths):
        if block in {0, last}:
            keys = set(range(last + 1))
        else:
            keys = {0, last, block - 1, block, block + 1}
            free = [other for other in range(1, last) if other not in keys]
            keys |= set(free[:drawn])
            assert len(free) >= drawn
        pairs += rows * sum(lengths[key] for key in keys)
    return pairs


@given(st.integers(1, 200), st.integers(1, 5), st.integers(0, 4))
def test_blocks_of_keys(tokens: int, size: int, drawn: int) -> None:
    """BigBird's global, window and random blocks, the last block shorter where tokens run out."""
    mask = Mask(causal=False, block=size, random_blocks=drawn)
    assert mask.pairs(Pass(1, tokens)) == big_bird(tokens, size, drawn)


@given(st.integers(0, 40), st.integers(1, 60))
def test_a_window_of_at_least_the_length_equals_none(tokens: int, window: int) -> None:
    """W >= n: nothing is out of sight."""
    p = Pass(1, tokens)
    assert (Mask(window=window + tokens).pairs(p), Mask(chunk=window + tokens).pairs(p)) == (Mask().pairs(p),) * 2


def test_cross_attention_scores_the_rectangle() -> None:
    """4 new decoder tokens on 10 encoder positions: 40 pairs."""
    from planner.blocks import Attend  # noqa: PLC0415

    core = Attend(1, 1, 1, Mask(causal=False), cross=True)
    assert core.pairs(Pass(1, 4, memory=10)) == 40


@pytest.mark.parametrize(("window", "layers", "tokens"), [(4096, 32, 131_041), (2, 3, 4)])
def test_the_receptive_field_grows_by_a_window_less_one_a_layer(window: int, layers: int, tokens: int) -> None:
    """L (W - 1) + 1 tokens; for Mistral-7B v0.1, 32 x 4095 + 1."""
    assert layers * (Mask(window=window).reach or 0) + 1 == tokens


@given(SMALL, st.integers(0, 60))
def test_windows_side_by_side_see_all_of_themselves(chunk: int, tokens: int) -> None:
    """A tower's windows: patches of one window see each other both ways, and no others (Qwen 2.5 VL)."""
    expected = sum(q // chunk == k // chunk for q in range(tokens) for k in range(tokens))
    assert Mask(causal=False, chunk=chunk).pairs(Pass(1, tokens)) == expected
