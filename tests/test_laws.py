"""Laws that hold whatever the sizes."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from planner import load, plan
from planner.workload import Pass
from tests.strategies import any_config, llamas, mixtrals

few = settings(max_examples=40, deadline=None)
WORK: dict[str, Any] = {"batch": 2, "prompt": 7, "generate": 5}


@few
@given(any_config)
def test_components_and_layers_sum_to_the_total(config: dict[str, Any]) -> None:
    """Every parameter belongs to one component, and to one layer or to what stands around the layers."""
    params = plan(config, **WORK).params
    around = load(config).tally.total - sum(sum(stack["layers"]) for stack in params["stacks"].values())
    assert sum(params["by_block"].values()) == params["total"]
    assert 0 <= around < params["total"]


@few
@given(llamas(), st.integers(0, 3))
def test_a_window_of_at_least_the_length_changes_nothing(config: dict[str, Any], more: int) -> None:
    """Mistral with a window that holds the whole context is Mistral without one."""
    mistral = config | {"model_type": "mistral"}
    wide = plan(mistral | {"sliding_window": 12 + more}, **WORK)
    full = plan(mistral | {"sliding_window": None}, **WORK)
    assert (wide.flops, wide.cache["bytes"], wide.params, wide.generation) == (
        full.flops, full.cache["bytes"], full.params, full.generation,
    )  # fmt: skip


@few
@given(llamas())
def test_as_many_key_value_heads_as_heads_is_multi_head_attention(config: dict[str, Any]) -> None:
    """Grouped attention with groups of one is what a config without groups describes."""
    grouped = plan(config | {"num_key_value_heads": config["num_attention_heads"]}, **WORK)
    without = plan(config | {"num_key_value_heads": None}, **WORK)
    assert (grouped.params, grouped.cache, grouped.flops) == (without.params, without.cache, without.flops)


@few
@given(mixtrals())
def test_all_experts_chosen_is_dense_plus_the_router(config: dict[str, Any]) -> None:
    """E experts of F, all chosen, cost what one feed-forward block of E F costs, and a router of D x E."""
    experts = config["num_local_experts"]
    sparse = plan(config | {"num_experts_per_tok": experts}, **WORK)
    plain = {k: v for k, v in config.items() if k not in {"num_local_experts", "num_experts_per_tok"}}
    dense = plan(plain | {"model_type": "llama", "intermediate_size": experts * config["intermediate_size"]}, **WORK)
    router = config["num_hidden_layers"] * config["hidden_size"] * experts
    assert sparse.params["total"] == sparse.params["active"] == dense.params["total"] + router
    tokens = WORK["batch"] * WORK["prompt"]
    assert sparse.flops["prefill"]["total"] == dense.flops["prefill"]["total"] + 2 * tokens * router
    assert sparse.cache == dense.cache


@few
@given(any_config, st.integers(1, 9), st.integers(1, 9))
def test_generation_is_the_sum_of_its_steps(config: dict[str, Any], prompt: int, steps: int) -> None:
    """The closed forms equal a loop: decode steps with a cache, passes from nothing without."""
    model = load(config)
    made = plan(model, batch=2, prompt=prompt, generate=steps).generation
    decoder = model.stack("decoder")
    assert decoder is not None
    assert made is not None
    source = 0 if model.stack("encoder") is None else 1024
    one = [
        decoder.flops(Pass(2, 1, n - 1, "decode", source), model.engine) for n in range(prompt + 1, prompt + steps + 1)
    ]
    again = [decoder.flops(Pass(2, n, memory=source), model.engine) for n in range(prompt + 1, prompt + steps + 1)]
    assert made["cached"]["flops"] == sum(sum(each.values()) for each in one)
    assert made["uncached"]["flops"] == sum(sum(each.values()) for each in again)


@few
@given(llamas(), st.integers(0, 7))
def test_a_prefix_adds_its_triangle(config: dict[str, Any], prefix: int) -> None:
    """pairs(n) = n (n + 1) / 2 + K (K - 1) / 2, in every layer and head."""
    model = load(config)
    decoder = model.stack("decoder")
    assert decoder is not None
    attention = [decoder.flops(Pass(1, 7, prefix=k), model.engine)["attention"] for k in (0, prefix)]
    per_pair = 4 * config["hidden_size"] * config["num_hidden_layers"]
    assert attention[1] - attention[0] == per_pair * (prefix * (prefix - 1) // 2)


@few
@given(any_config)
def test_costs_grow_with_the_batch_and_are_linear_in_it(config: dict[str, Any]) -> None:
    """Twice the sequences: twice the cache and the FLOPs, the same weights."""
    model = load(config)
    one, two = plan(model, prompt=5, generate=3, batch=1), plan(model, prompt=5, generate=3, batch=2)
    assert two.cache["bytes"] == 2 * one.cache["bytes"]
    assert two.flops["prefill"]["total"] == 2 * one.flops["prefill"]["total"]
    assert two.weights == one.weights


def test_a_thousand_tokens_from_nothing() -> None:
    """P = 0, N = 1000: (2 N + 1) / 3 = 667 for full rectangles, (N + 2) / 3 = 334 for exact pairs."""
    made = plan("llama2-7b", prompt=0, generate=1000).generation
    assert made is not None
    assert (made["dense_ratio"], made["pairs_ratio"]) == (667, 334)
    assert made["cached"]["pairs"] == 500_500
