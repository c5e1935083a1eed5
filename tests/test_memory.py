"""Does it fit: whole sums by hand, searches against the sum itself, mistakes, and what people asked and engines printed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import planner
from planner.cli import app
from planner.errors import PlanError
from planner.memory import most

GIB = 2**30
RUNTIME = 551 * 2**20
COLLECTIVES = 411_041_792

runner = CliRunner()


def held(config: Any, hardware: str, **options: Any) -> dict[str, Any]:
    """Return the section of a plan."""
    found = planner.plan(config, hardware=hardware, **options).memory
    assert found is not None
    return found


def test_llama_8b_on_a_24_gb_card() -> None:
    """P 1,024, G 256, bf16: it fits, with 7.9 GiB to spare.

    Weights 8,030,261,248 x 2; cache 1,280 x 131,072; activations 1,024 rows x (2 x 4,096 + 2 x 14,336) x 2; a process's
    551 MiB. Usable of 24 GiB: 23.64. Sequences: room 8,744,968,847 / (167,772,160 + 75,497,472) = 35.9. Context T with
    T - 256 of prompt: 131,072 T + 73,728 (T - 256) <= room, T <= 42,792.2.
    """
    found = held("llama3.1-8b", "rtx-4090")
    del found["devices"], found["parallel"]
    assert found == {
        "weights": 16_060_522_496,
        "cache": 167_772_160,
        "activations": 75_497_472,
        "runtime": RUNTIME,
        "total": 16_881_557_504,
        "fits": True,
        "headroom": 8_501_699_215,
        "capacity": 24 * GIB,
        "usable": 25_383_256_719,
        "max_batch": 35,
        "max_context": 42_792,
        "host_bytes": 0,
        "peak": "decoder prefill, mlp, opening products",
        "hardware": "rtx-4090",
    }


def test_llama_2_70b_on_two_a100_80gb() -> None:
    """Question 2, TGI#734: weights of 128.5 GiB over two cards leave little; on one they don't fit.

    tp 2: half of 137,953,296,384 and half of the norms more, which both hold: 161 x 8,192 x 2 / 2 = 1,318,912. Cache:
    4,096 x 327,680 / 2. What is left of 79.15 GiB: 84,986,665,370 - 68,977,967,104 = 14.9 GiB on each.
    """
    found = held("llama2-70b", "a100-80gb", tp=2, prompt=3840, generate=256)
    assert found["weights"] == (137_953_296_384 + 161 * 8192 * 2) // 2
    assert found["cache"] == 4096 * 327_680 // 2
    assert found["runtime"] == RUNTIME + COLLECTIVES
    assert found["fits"]
    assert found["usable"] - found["weights"] < 15 * GIB
    assert not held("llama2-70b", "a100-80gb")["fits"]
    assert held("llama2-70b", "a100-80gb")["max_batch"] == 0
    assert held("llama2-70b", "a100-80gb")["max_context"] == 0


def test_five_people_with_128k_tokens_each() -> None:
    """Question 1, vllm#12400: Llama-3.3-70B (3.1's shape), 5 x 131,072 x 327,680 bytes = 200 GiB of cache; fp8: 100."""
    work = dict(batch=5, prompt=131_072 - 256, generate=256)
    assert held("llama3.1-70b", "h200", tp=4, **work)["cache"] == 50 * GIB
    assert held("llama3.1-70b", "h200", tp=4, cache_dtype="fp8", **work)["cache"] == 25 * GIB


def test_the_least_number_of_cards() -> None:
    """Question 2: Llama-3.1-70B in bf16 needs 2 of 80 GB, in fp8 1."""
    fits = {n: held("llama3.1-70b", "h100", gpus=n)["fits"] for n in (1, 2, 4)}
    assert fits == {1: False, 2: True, 4: True}
    assert held("llama3.1-70b", "h100", weights="fp8")["fits"]


def test_a_coder_in_fp8_fills_a_32_gb_card() -> None:
    """Question 4, vllm#41695: 29.09 GiB of weights on an RTX 5090 of 31.36 GiB leave no room for a long cache."""
    config = dict(
        model_type="qwen3_moe", hidden_size=2048, intermediate_size=5472, num_hidden_layers=48, num_attention_heads=32,
        num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
        vocab_size=151936, max_position_embeddings=262144, tie_word_embeddings=False, torch_dtype="bfloat16",
    )  # fmt: skip
    found = held(config, "rtx-5090", weights="fp8-block")
    assert found["weights"] == pytest.approx(29.09 * GIB, rel=0.005)
    assert found["max_context"] < 32_768


def test_an_encoder_needs_no_cache() -> None:
    """Question 20, gpustack#2412: a reranker was given 13.8 GiB for a cache that encoders don't have."""
    found = held("bert-large", "t4", batch=1, prompt=512)
    assert found["cache"] == 0
    assert found["total"] < 1.5 * GIB
    assert found["max_context"] == 512  # rows of its learned table


@pytest.mark.parametrize(("tokens", "peak_gib"), [(20_000, 17.06), (29_000, 17.98)])
def test_a_prefill_without_chunks_lies_between_fused_and_eager(tokens: int, peak_gib: float) -> None:
    """vllm#10517: Llama-3.1-8B on a 3090, weights 14.9888 GiB; vLLM 0.6 fuses some of what is elementwise."""
    made = planner.plan("llama3.1-8b", hardware="rtx-3090", prompt=tokens, generate=0)
    basis = made.basis["memory.activations"]
    assert basis["low"] < (peak_gib - 14.9888) * GIB < basis["high"]


@pytest.mark.parametrize(
    "options",
    [dict(), dict(tp=2), dict(pp=2), dict(dp=2, batch=2), dict(tp=2, pp=2), dict(cp=2), dict(engine="transformers")]
    + [
        dict(engine=name, **split)
        for name in ("vllm", "sglang", "trtllm")
        for split in (dict(), dict(tp=2), dict(pp=2))
    ]
    + [dict(engine="llama.cpp"), dict(engine="llama.cpp", pp=2)],
)
def test_every_figure_lies_in_its_range(options: dict[str, Any]) -> None:
    """Low <= value <= high, and every figure of the section has its basis."""
    made = planner.plan("llama3.1-8b", hardware="h100", **options)
    assert made.memory is not None
    for key in ("weights", "cache", "activations", "runtime", "total", "usable", "headroom"):
        basis = made.basis[f"memory.{key}"]
        assert basis["low"] <= made.memory[key] <= basis["high"], key
        assert basis["source"]
    assert {"memory.max_batch", "memory.max_context", "memory.capacity"} <= made.basis.keys()


def test_an_engines_total_has_the_engines_basis() -> None:
    """Under an engine the sum's range is that of the engine's own parts, and the log is what verifies it."""
    made = planner.plan("llama3.1-8b", hardware="h100", engine="vllm@0.19.0")
    assert made.memory is not None
    parts = [made.basis[f"memory.engine.{name}"] for name in ("weights", "activations", "runtime", "graphs")]
    total = made.basis["memory.total"]
    assert total["low"] == made.memory["cache"] + sum(part["low"] for part in parts)
    assert total["high"] == made.memory["cache"] + sum(part["high"] for part in parts)
    assert total["verify"] == "plan check LOGFILE --hardware NAME"


def test_the_section_is_of_the_fullest_device() -> None:
    """Two stages: one has the table, the other the head; the sum of weights is the model's."""
    found = held("llama3.1-8b", "l4", pp=2)
    first, last = found["devices"]
    assert first["weights"] + last["weights"] == planner.plan("llama3.1-8b").weights["bytes"]
    assert found["total"] == max(first["total"], last["total"])
    assert [first["device"], last["device"]] == [0, 1]
    assert found["fits"] == (first["fits"] and last["fits"])


def test_there_is_an_entry_for_each_device() -> None:
    """With tp 2 x pp 2 x dp 2: eight, four of each stage."""
    found = held("llama3.1-8b", "l4", tp=2, pp=2, dp=2, batch=2)
    assert [each["device"] for each in found["devices"]] == list(range(8))
    assert [each["stage"] for each in found["devices"]] == [0] * 4 + [1] * 4


def test_more_room_is_never_worse() -> None:
    """More ranks, or a larger card, hold at least as many sequences."""
    counts = [held("llama2-70b", "a100-80gb", tp=n)["max_batch"] for n in (2, 4, 8)]
    assert counts == sorted(counts)
    assert held("llama3.1-8b", "a100-40gb")["max_batch"] < held("llama3.1-8b", "a100-80gb")["max_batch"]


@settings(deadline=None, max_examples=40)
@given(
    config=st.sampled_from(
        ["llama3.1-8b", "gpt2", "mistral-7b-v0.1", "mixtral-8x7b", "gemma3-1b", "t5-small", "whisper-tiny"]
    ),
    hardware=st.sampled_from(["rtx-4090", "h100", "t4", "mi300x"]),
    prompt=st.integers(1, 300),
    batch=st.integers(1, 8),
    engine=st.sampled_from(["ideal", "transformers"]),
)
def test_one_more_does_not_fit(config: str, hardware: str, prompt: int, batch: int, engine: str) -> None:
    """max_batch and max_context fit by the same sum, and one more sequence or token doesn't."""
    options = dict(engine=engine, generate=16)
    found = held(config, hardware, prompt=prompt, batch=batch, **options)
    parts = ("weights", "cache", "activations", "runtime")
    assert found["total"] == sum(found[part] for part in parts)
    assert found["fits"] == (found["total"] <= found["usable"]) == (found["max_batch"] >= batch)
    if n := found["max_batch"]:
        assert held(config, hardware, prompt=prompt, batch=n, **options)["fits"]
    assert not held(config, hardware, prompt=prompt, batch=n + 1, **options)["fits"]
    longest = found["max_context"]
    model = planner.load(config)
    bound = model.positions if model.learned_positions and model.kind != "encoder-decoder" else None
    if longest > 16 and not (model.learned_positions and (bound is None or longest == bound)):
        assert held(config, hardware, batch=batch, prompt=longest - 16, **options)["fits"]
        assert not held(config, hardware, batch=batch, prompt=longest - 15, **options)["fits"]


@given(st.integers(0, 2**39))
def test_the_search_finds_the_largest(limit: int) -> None:
    """Bisection; 0 where nothing fits."""
    assert most(lambda n: n <= limit) == limit


def test_what_has_no_limit_is_none() -> None:
    """Beyond 2^40 nothing is searched."""
    assert most(lambda _: True) is None


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (dict(tp=2), "without --hardware"),
        (dict(gpus=2), "without --hardware"),
        (dict(hardware="h100", gpus=3, tp=2), "--gpus"),
        (dict(hardware="h100", gpus=4, tp=2, dp=1), "let their product"),
        (dict(hardware="h100", tp=3), "--tp"),
        (dict(hardware="h100", pp=33), "--pp"),
        (dict(hardware="h100", ep=2), "--ep"),
        (dict(hardware="h100", tp=0), "--tp"),
        (dict(hardware="h100", tp=2.0), "--tp"),
        (dict(hardware="h100", dp=2**30), "more than 65,536"),
        (dict(hardware="h100", gpus=2**30), "more than 65,536"),
        (dict(hardware="h1000"), "--hardware"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], part: str) -> None:
    """With where and why."""
    with pytest.raises(PlanError, match=part):
        planner.plan("llama3.1-8b", **options)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        (dict(gpus=8), dict(tp=8, pp=1, dp=1)),
        (dict(gpus=3), dict(tp=1, pp=3, dp=1)),
        (dict(gpus=8, tp=2), dict(tp=2, pp=1, dp=4)),
        (dict(gpus=8, tp=2, pp=4), dict(tp=2, pp=4, dp=1)),
        (dict(tp=4), dict(tp=4, pp=1, dp=1)),
    ],
)
def test_how_a_number_of_devices_is_used(options: dict[str, Any], sizes: dict[str, int]) -> None:
    """Alone: the widest tp, and stages for the rest; beside sizes: copies take the rest; a note says so."""
    made = planner.plan("llama3.1-8b", hardware="h100", **options)
    assert made.memory is not None
    assert {key: made.memory["parallel"][key] for key in sizes} == sizes
    chosen = options.get("gpus") and sizes["tp"] * sizes["pp"] != options.get("tp", 1) * options.get("pp", 1)
    assert any("devices: " in note for note in made.model["notes"]) == bool(chosen or sizes["dp"] > 1)


@pytest.mark.parametrize(("more", "code"), [((), 1), (("--gpus", "2"), 0), (("--json",), 1)])
def test_require_fit(more: tuple[str, ...], code: int) -> None:
    """Exit code 1 where it doesn't fit, and the plan is printed all the same."""
    words = ["--config", "llama2-70b", "--hardware", "a100-80gb", "--require-fit", *more]
    done = runner.invoke(app, words, env={"COLUMNS": "80"})
    assert done.exit_code == code
    if "--json" in more:
        assert json.loads(done.stdout)["memory"]["fits"] is False
    else:
        assert max(len(line) for line in done.stdout.splitlines()) <= 80
        assert ("DOES NOT FIT" in done.stdout) == (code == 1)


def test_require_fit_needs_hardware() -> None:
    """Else there is nothing to fit into."""
    done = runner.invoke(app, ["--config", "gpt2", "--require-fit"])
    assert isinstance(done.exception, PlanError)


def test_without_hardware_there_is_no_section() -> None:
    """None, as before; sizes of 1 say nothing."""
    assert planner.plan("gpt2", gpus=1, tp=1).memory is None


def test_what_a_split_takes_is_noted() -> None:
    """Padding of a vocabulary, copies of heads and of latents, and blocks that engines don't cut."""
    notes = {
        name: planner.plan(name, hardware="h200", **options).model["notes"]
        for name, options in (
            ("gpt2", dict(tp=2)),
            ("llama3-8b", dict(tp=16)),
            ("deepseek-v3", dict(tp=8)),
            ("qwen2.5-72b", dict(tp=2, weights="awq-int4-g128")),
        )
    }
    assert "the vocabulary of 50,257 is padded to 50,304 rows, for --tp 2" in notes["gpt2"]
    assert "8 key-value heads on 16 ranks: each is held 2 times, weights and cache" in notes["llama3-8b"]
    assert "cache rows of 576 elements have no heads to divide: each of 8 ranks holds them" in notes["deepseek-v3"]
    assert any(note.startswith("engines refuse it: --tp: found 2") for note in notes["qwen2.5-72b"])


def test_the_table_shows_what_devices_send() -> None:
    """Llama 2 70B, tp 2: a step sums 1 x 8,192 fp16 after the table and twice in each of 80 layers, 161 x 2 x 16 KiB on links."""
    words = ["--config", "llama2-70b", "--hardware", "a100-80gb", "--tp", "2"]
    done = runner.invoke(app, words, env={"COLUMNS": "80"})
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("  decode: all-reduce of 2")]
    assert line.split()[4:] == ["161", "16", "KiB", "5.031", "MiB"]
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
