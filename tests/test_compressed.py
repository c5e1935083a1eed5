"""Chosen keys and compressed pasts in closed form, against loops over queries."""

from __future__ import annotations

from math import lcm

from hypothesis import given
from hypothesis import strategies as st

from planner import load, plan
from planner.compressed import CompressedAttend
from planner.engines import IDEAL, TRANSFORMERS
from planner.masks import Mask
from planner.workload import Pass

SMALL = st.integers(1, 6)
V4 = dict(
    model_type="deepseek_v4", hidden_size=32, num_hidden_layers=4, num_attention_heads=4, head_dim=8, q_lora_rank=8, o_groups=2,
    o_lora_rank=4, index_n_heads=2, index_head_dim=4, index_topk=3, sliding_window=5, moe_intermediate_size=8, n_routed_experts=4,
    num_experts_per_tok=2, num_hash_layers=1, vocab_size=50, hc_mult=2, num_nextn_predict_layers=0,
    compress_rates={"compressed_sparse_attention": 3, "heavily_compressed_attention": 4},
    layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"],
)  # fmt: skip


def chosen_keys(tokens: int, blocks: int, grain: int) -> int:
    """Keys that the query of the last of `tokens` tokens scores: all, or k - g and its own block's up to itself."""
    return min(tokens, (blocks - 1) * grain + (tokens - 1) % grain + 1) if tokens > blocks * grain else tokens


@given(SMALL, SMALL, st.integers(0, 40), st.integers(0, 20))
def test_an_indexer_leaves_so_many_keys(blocks: int, grain: int, past: int, new: int) -> None:
    """Prefills, steps on a cache and steps without one."""
    mask = Mask(chosen=blocks * grain, grain=grain)
    rows = [chosen_keys(n, blocks, grain) for n in range(1, past + new + 1)]
    assert mask.pairs(Pass(1, past + new)) == sum(rows)
    assert mask.pairs(Pass(1, new, past, "decode")) == sum(rows[past:])
    whole = sum(sum(rows[:n]) for n in range(past + 1, past + new + 1))
    assert mask.pairs(Pass(1, new, past, "recompute")) == whole


@given(SMALL, st.one_of(st.none(), SMALL), st.one_of(st.none(), SMALL), st.integers(0, 40), st.integers(0, 20))
def test_queries_see_finished_rows_only(
    stride: int, chosen: int | None, window: int | None, past: int, new: int
) -> None:
    """The query of token i sees i // m compressed rows, k at most, and the window."""
    core = CompressedAttend(1, 1, 1, Mask(window=window) if window else None, stride, chosen, ())
    rows = [
        min(i // stride, chosen or i) + (min(i, window) if window else 0) for i in range(1, past + new + 1)
    ]  # fmt: skip
    assert core.pairs(Pass(1, past + new)) == sum(rows)
    assert core.pairs(Pass(1, new, past, "decode")) == sum(rows[past:])
    whole = sum(sum(rows[:n]) for n in range(past + 1, past + new + 1))
    assert core.pairs(Pass(1, new, past, "recompute")) == whole


@given(st.integers(1, 60))
def test_growth_is_the_mean_over_all_strides(context: int) -> None:
    """Bytes per further token times the least common multiple of the strides is what that many tokens add."""
    step = lcm(3, 4)
    before, after = (plan(V4, prompt=n, generate=0).cache for n in (context, context + step))
    assert after["bytes"] - before["bytes"] == step * before["bytes_per_token"]


def test_a_window_of_shared_keys_is_stored_once_or_twice() -> None:
    """In transformers, layers without a compressed past store 8 elements once more as values: 2 layers x 4 rows x 8."""
    sizes = []
    for engine in (IDEAL, TRANSFORMERS):
        decoder = load(V4, engine=engine.name).stack("decoder")
        assert decoder
        near = [cache for cache in decoder.caches if cache.window]
        sizes.append({cache.row: cache.kept(100, engine) for cache in near})
    assert sizes == [{8: 5}, {16: 4, 8: 4}]
