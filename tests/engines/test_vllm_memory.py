"""The cache memory that vLLM leaves, from flags alone, beside what it printed.

Figures of 0.19 and 0.15 to 0.18: start-up logs on H100 80 GB, 79.19 GiB visible, utilisation 0.95
(github.com/llm-d-incubation/llm-d-planner/pull/205); of 0.11: the same project's documents, 79.18 GiB, utilisation 0.90.
Constants of `planner.engines.vllm_memory` were found on 0.19's and 0.15's; the rows of 0.11 and 0.16 to 0.18 played no part.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

import planner
from tests.engines.configs import CODELLAMA, QWEN3_MOE

GIB = 2**30


def qwen3(width: int, hidden: int, layers: int, heads: int, *, tied: bool = False) -> dict[str, Any]:
    """Return a dense Qwen3's config."""
    return {
        "model_type": "qwen3", "hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "max_position_embeddings": 40960, "torch_dtype": "bfloat16", "tie_word_embeddings": tied,
    }  # fmt: skip


QWEN3_14B, QWEN3_32B, QWEN3_600M = (
    qwen3(5120, 17408, 40, 40),
    qwen3(5120, 25600, 64, 64),
    qwen3(1024, 3072, 28, 16, tied=True),
)

PRINTED: list[tuple[Any, str, dict[str, Any], float]] = [
    (CODELLAMA, "0.19", {}, 61.66),
    ("gemma2-27b", "0.19", {"dtype": "bf16"}, 20.59),
    ("llama3.1-8b", "0.19", {}, 58.11),
    ("llama3.1-8b", "0.19", {"cache_dtype": "fp8"}, 58.11),
    ("llama3.1-8b", "0.19", {"weights": "fp8"}, 64.61),
    ("llama3.1-8b", "0.19", {"dtype": "fp32"}, 42.80),
    ("llama3.1-8b", "0.19", {"tp": 2}, 63.76),
    ("llama3.1-8b", "0.19", {"tp": 4}, 67.44),
    ("qwen2.5-7b", "0.19", {}, 58.53),
    ("qwen2.5-7b", "0.19", {"tp": 2}, 63.84),
    ("qwen2.5-72b", "0.19", {"tp": 2}, 3.04),
    (QWEN3_MOE, "0.19", {}, 15.41),
    (QWEN3_14B, "0.15", {}, 41.94),
    (QWEN3_14B, "0.16", {}, 41.94),
    (QWEN3_14B, "0.17", {}, 45.34),
    (QWEN3_14B, "0.18", {}, 45.23),
    ("llama3.1-8b", "0.11", {}, 51.38),
    (QWEN3_600M, "0.11", {}, 64.45),
    (QWEN3_32B, "0.11", {}, 4.45),
    (QWEN3_32B, "0.11", {"tp": 2}, 34.49),
]
"""Model, version, options, "Available KV cache memory" in GiB."""


@pytest.mark.parametrize(
    ("config", "version", "options", "printed"), PRINTED,
    ids=[f"{c if isinstance(c, str) else c['model_type']}-{v}-{o}" for c, v, o, _ in PRINTED],
)  # fmt: skip
def test_printed(config: Any, version: str, options: dict[str, Any], printed: float) -> None:
    """Within 0.1 GiB of what was printed, and inside the interval."""
    old = version == "0.11"
    said = planner.engine_memory(
        config, engine=f"vllm@{version}", hardware="h100-sxm",
        engine_set={"gpu_memory_utilization": 0.9 if old else 0.95, "max_model_len": 16000 if old else 8192}, **options,
    )  # fmt: skip
    assert abs(said["available_cache"] / GIB - printed) < 0.1
    assert said["low"] <= printed * GIB <= said["high"]


def test_the_sum() -> None:
    """Budget less what counts against it is the cache; graphs are beside it up to 0.20, and count from 0.21 on."""
    old, new = (
        planner.engine_memory("llama3-8b", engine=f"vllm@{v}", hardware="h100-sxm", engine_set={"gpu_memory_utilization": 0.9})
        for v in ("0.20", "0.21")
    )  # fmt: skip
    assert old["counted"] == ["weights", "activations", "runtime"]
    assert new["counted"] == ["weights", "activations", "runtime", "graphs"]
    for said in (old, new):
        assert said["available_cache"] == said["budget"] - sum(said[part] for part in said["counted"])
    assert new["available_cache"] == old["available_cache"] - old["graphs"]
    assert old["budget"] == math.ceil(0.9 * 85029615043)


def test_defaults_by_device_and_version() -> None:
    """Steps and requests are larger on H100 than on cards with less memory and on A100; before 0.8, only those of V0."""

    def flags(version: str, hardware: str) -> tuple[int, int, float]:
        said = planner.engine_memory("llama3-8b", engine=f"vllm@{version}", hardware=hardware)["flags"]
        return said["max_num_batched_tokens"], said["max_num_seqs"], said["gpu_memory_utilization"]

    assert flags("0.19", "h100-sxm") == (8192, 1024, 0.9)
    assert flags("0.19", "a100-sxm") == (2048, 256, 0.9)
    assert flags("0.32", "rtx-4090") == (2048, 256, 0.92)
    assert flags("0.32", "b200") == (16384, 1024, 0.92)


def test_activations_follow_the_step_and_not_the_length() -> None:
    """The longest request changes nothing, tokens of a step and requests do."""

    def activations(**flags: int) -> int:
        found: int = planner.engine_memory("llama3.1-8b", engine="vllm@0.19", hardware="h100-sxm", engine_set=flags)[
            "activations"
        ]
        return found

    assert activations(max_model_len=2048) == activations(max_model_len=131072)
    assert activations(max_num_seqs=256) < activations(max_num_seqs=1024) < activations(max_num_batched_tokens=65536)


def test_a_request_longer_than_the_engine_is_started_for() -> None:
    """The workload is refused, and defaults stay within."""
    with pytest.raises(planner.PlanError, match="started for requests of at most 512") as found:
        planner.plan("llama3-8b", engine="vllm", engine_set={"max_model_len": 512}, prompt=500, generate=13)
    assert str(found.value).startswith("--prompt and --generate: found 513 tokens")
    work = planner.plan("llama3-8b", engine="vllm", engine_set={"max_model_len": 512}).workload
    assert (work["prompt"], work["generate"]) == (384, 128)


def test_rotary_tables_of_stretched_positions() -> None:
    """16,384 positions x 128 elements x 2 bytes; stretched 8 times linearly, vLLM's table has 8 times the rows."""

    def weights(**more: Any) -> int:
        found: int = planner.engine_memory({**CODELLAMA, **more}, engine="vllm@0.19", hardware="h100-sxm")["weights"]
        return found

    assert weights() - planner.plan(CODELLAMA).weights["bytes"] == 16384 * 128 * 2
    stretched = weights(rope_scaling={"rope_type": "linear", "factor": 8.0})
    assert stretched - weights() == 7 * 16384 * 128 * 2


def test_graphs_by_sizes_of_steps() -> None:
    """Twice the requests bound the sizes that are captured: 1, 2, 4, 8 and 16 for eight, all 51 from 256 on; none where eager."""

    def graphs(**flags: Any) -> int:
        found: int = planner.engine_memory("llama3.1-8b", engine="vllm@0.27", hardware="h100-sxm", engine_set=flags)[
            "graphs"
        ]
        return found

    every = int(GIB * (0.395 + 0.0161 * 32))
    assert graphs() == graphs(max_num_seqs=256) == every
    assert graphs(max_num_seqs=8) == int(GIB * (0.395 + 0.0161 * 32) * 5 / 51)
    assert graphs(enforce_eager=True) == 0


def qwen2(layers: int, width: int, hidden: int, heads: int, groups: int, positions: int) -> dict[str, Any]:
    """Return a Qwen 2.5's config."""
    return {
        "model_type": "qwen2", "num_hidden_layers": layers, "hidden_size": width, "intermediate_size": hidden, "torch_dtype": "bfloat16",
        "num_attention_heads": heads, "num_key_value_heads": groups, "vocab_size": 152064, "max_position_embeddings": positions,
        "tie_word_embeddings": False,
    }  # fmt: skip


LOADED: dict[str, tuple[dict[str, Any], int, float, float]] = {
    # a layer's merged matrices are 31.5, 24.5, 259 and 129.5 MiB: 0.5, -, 1 and 0.5 MiB beyond them, 28 times, and 0.5 MiB each of
    # table and head (1,039.5 MiB); 24.5 MiB leave 1.5 MiB, which is split off. 32,768 x 128 x 2 bytes of rotary table
    "7B": (qwen2(28, 3584, 18944, 28, 4, 32768), 1, (28 * 2 + 2 * 0.5) / 1024 + 32768 * 256 / GIB, 14.25),
    # on each of two ranks 35, 25, 135 and 67.5 MiB: 1 + 1 + 1 + 0.5, 48 times; table and head 742.5 MiB: 1.5 MiB are split off
    "14B on two": (qwen2(48, 5120, 13824, 40, 8, 131072), 2, 48 * 3.5 / 1024 + 131072 * 256 / GIB, 13.9476),
    # 80 and 64 MiB, 462 MiB and 231 MiB: 1 MiB beyond the last, 80 times; 1,188 MiB
    "72B on two": (qwen2(80, 8192, 29568, 64, 8, 32768), 2, 80 / 1024 + 32768 * 256 / GIB, 67.8),
}
"""Config, ranks, GiB beside the tensors, GiB that were printed (llm-d-planner#205; vllm-project/vllm#13061)."""


@pytest.mark.parametrize("name", LOADED)
def test_what_stays_with_large_tensors(name: str) -> None:
    """PyTorch's allocator gives whole 2 MiB, and splits off what is left only where that is more than 1 MiB."""
    config, ranks, more, printed = LOADED[name]
    said = planner.engine_memory(config, engine="vllm@0.19", hardware="h100-sxm", tp=ranks)["weights"]
    tensors = planner.plan(config, hardware="h100-sxm", tp=ranks).memory["weights"]
    assert (said - tensors) / GIB == pytest.approx(more, abs=1e-6)
    assert said / GIB == pytest.approx(printed, abs=0.006)


def test_a_request_longer_than_the_positions() -> None:
    """VLLM refuses it, whatever memory there is."""
    said = planner.engine_memory("gpt2", engine="vllm", hardware="l4", engine_set={"max_model_len": 1025})
    assert not said["starts"]
    assert said["problem"] == "vLLM doesn't start: max_model_len 1,025 is more than the 1,024 positions of the config"


GPT_OSS = {
    "model_type": "gpt_oss", "num_hidden_layers": 36, "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088, "num_local_experts": 128, "num_experts_per_tok": 4,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                             "model.embed_tokens", "lm_head"]},
}  # fmt: skip


def test_padded_experts_of_4_bits() -> None:
    """Inputs are padded from 2,880 to 3,072: 36 layers x 128 experts x (2 + 1) x 2,880 outputs x 192 / 2 bytes; printed: 64.38 GiB."""
    said = planner.engine_memory(GPT_OSS, engine="vllm@0.11", hardware="h100-sxm")
    basis = planner.plan(GPT_OSS, engine="vllm@0.11", hardware="h100-sxm").basis["memory.engine.weights"]
    assert basis["high"] - basis["low"] == 36 * 128 * 3 * 2880 * 192 // 2
    assert said["weights"] / GIB == pytest.approx(64.38, abs=0.06)
