"""TensorRT-LLM's blocks beside what it printed, and what it leaves for them.

Facts: tests/engines/facts_other, one start-up log each, with its source.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner import PlanError, engine_capacity, load, plan

GIB = 2**30

FACTS = sorted((Path(__file__).parent / "facts_other").glob("trtllm_*.json"))


def read(path: Path) -> dict[str, Any]:
    """Return a fact."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def model_of(fact: dict[str, Any], **flags: Any) -> Any:
    """Return the model of a fact's log, with the engine of its version."""
    config, changed = fact["config"], {}
    if "base" in config:
        config, changed = config["base"], config["set"]
    return load(config, engine=f"{fact['engine']}@{fact['version']}", engine_set=flags, set=changed)


def made(fact: dict[str, Any], memory: int) -> dict[str, Any]:
    """Return what TensorRT-LLM makes of memory with a fact's model."""
    asked = {"version": fact["version"], **fact["asked"], "cache_memory_bytes": memory}
    return engine_capacity(model_of(fact), engine=fact["engine"], **asked)


@pytest.mark.parametrize("path", FACTS, ids=lambda path: path.stem)
def test_blocks(path: Path) -> None:
    """Bytes of a token; printed sizes of printed tokens; blocks and tokens of the memory that was printed to 0.01 GiB."""
    fact = read(path)
    found = made(fact, 2**50)
    assert found["bytes_per_token"] == fact["bytes_per_token"]
    assert found["block_size"] == fact["block_size"]
    if "tokens" in fact:
        size = fact["tokens"] * fact["bytes_per_token"]
        assert size == fact.get("pool_bytes", size)
        assert abs(size / GIB - fact.get("pool_gib", size / GIB)) <= 0.005
        assert fact["tokens"] % fact["block_size"] == 0
    memory = fact.get("free", fact.get("pool", 0.0)) * GIB
    if "pool_bytes" in fact:
        ends = [fact["pool_bytes"]] * 2
    elif memory:
        ends = [int(fact["share"] * (memory + off * GIB)) for off in (-0.005, 0.005)]
    else:
        ends = []
    for name in {"blocks", "tokens"} & fact.keys() if ends else ():
        least, most = (made(fact, end)[name] for end in ends)
        assert least <= fact[name] <= most


def test_one_block_more() -> None:
    """A whole block is taken for what is left, 630.4 of issue 2268 are 631; the PyTorch runtime from 1.3 on leaves it."""
    memory = int(0.9 * 21.89 * GIB)
    for version, block, blocks in (("0.13", 64, 631), ("1.2", 32, 1261), ("1.3", 32, 1260)):
        found = engine_capacity("llama2-7b", engine="trtllm", version=version, cache_memory_bytes=memory)
        assert (found["block_size"], found["blocks"]) == (block, blocks)
    config = load("llama2-7b", engine="trtllm@1.3", engine_set={"backend": "tensorrt"})
    assert engine_capacity(config, engine="trtllm", version="1.3", cache_memory_bytes=memory)["blocks"] == 1261


def test_windows() -> None:
    """Windows have pools only where max_attention_window names them, by window x bytes of a token."""
    config = "mistral-7b-v0.1"
    plain = engine_capacity(config, engine="trtllm", cache_memory_bytes=10 * GIB)
    assert [each["kind"] for each in plain["groups"]] == ["full"]
    asked = {"max_attention_window": "1024,4096", "max_seq_len": 8192}
    loaded = load(config, engine="trtllm", engine_set=asked)
    found = engine_capacity(loaded, engine="trtllm", cache_memory_bytes=10 * GIB)
    near, far = found["groups"]
    assert (near["window"], far["window"]) == (1024, 4096)
    assert near["layers"] == far["layers"] == 16
    assert abs(4 * near["tokens"] - far["tokens"]) < 4 * 32  # memory by the windows, as layers are equal
    taken = sum(each["tokens"] * each["bytes_per_token"] for each in found["groups"])
    assert 10 * GIB - 2 * 32 * 65536 < taken <= 10 * GIB
    older = load(config, engine="trtllm@0.19", engine_set=asked)
    (only,) = engine_capacity(older, engine="trtllm", version="0.19", cache_memory_bytes=10 * GIB)["groups"]
    assert only["window"] == 4096
    assert only["layers"] == 32


def test_encoders() -> None:
    """An encoder's rows get half of the memory, or as asked; Whisper's 1,500 rows take 245,760,000 bytes, 448 tokens 73,400,320."""
    found = engine_capacity("whisper-large-v3", engine="trtllm", cache_memory_bytes=10 * GIB)
    own, cross = found["groups"]
    assert (cross["kind"], cross["window"], own["window"]) == ("cross", 1500, 448)
    assert cross["bytes_per_token"] * 1500 == 245_760_000
    assert own["bytes_per_token"] * 448 == 73_400_320
    assert own["blocks"] == cross["blocks"] == 5 * GIB // (163_840 * 32)
    asked = load("whisper-large-v3", engine="trtllm", engine_set={"cross_kv_cache_fraction": 0.75})
    _, more = engine_capacity(asked, engine="trtllm", cache_memory_bytes=10 * GIB)["groups"]
    assert more["blocks"] == int(7.5 * GIB) // (163_840 * 32)


V32 = {"model_type": "deepseek_v32", "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048}


@pytest.mark.parametrize(
    ("changed", "flags", "dtype", "size"),
    [
        ({}, {}, "bf16", 61 * 1152),
        ({}, {}, "fp8", 61 * 576),
        ({"num_hidden_layers": 24}, {}, "bf16", 27 * 1024),  # Kimi-K3's 24 layers with latents (ROCm/ATOM/issues/1959)
        (V32, {}, "bf16", 61 * (1152 + 132)),
        (V32, {}, "fp8", 61 * (576 + 132)),
        (V32, {"kv_cache_dtype": "fp8_ds_mla"}, "bf16", 61 * (656 + 132)),
    ],
)
def test_latents(changed: dict[str, Any], flags: dict[str, Any], dtype: str, size: int) -> None:
    """Latents have no values of their own; beside an indexer, its keys have 132 bytes, and blocks 64 tokens."""
    config = load("deepseek-v3", engine="trtllm", engine_set=flags, set=changed)
    found = engine_capacity(config, engine="trtllm", cache_memory_bytes=GIB, cache_dtype=dtype)
    assert found["bytes_per_token"] == size
    assert found["block_size"] == (64 if changed == V32 else 32)


# TensorRT-LLM's pull request 9072: all 48 layers were counted.
QWEN3_NEXT = {
    "model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 151936, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "decoder_sparse_step": 1, "norm_topk_prob": True, "mlp_only_layers": [],
    "max_position_embeddings": 262144, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_layers_that_remember_tokens(engine: str) -> None:
    """12 of 48 layers: 12 x 2 x 2 x 256 x 2 bytes, on one of two ranks half of it."""
    for tp, size in ((1, 24576), (2, 12288), (4, 12288)):
        found = engine_capacity(load(QWEN3_NEXT, engine=engine), engine=engine, cache_memory_bytes=2**40, tp=tp)
        assert found["bytes_per_token"] == size


@pytest.mark.parametrize(("name", "size"), [("int8", 65536), ("nvfp4", 36864), ("fp8", 65536), ("bf16", 131072)])
def test_dtypes(name: str, size: int) -> None:
    """Four-bit elements have a scale of 8 bits for 16 of them."""
    found = engine_capacity("llama3.1-8b", engine="trtllm", cache_memory_bytes=GIB, cache_dtype=name)
    assert found["bytes_per_token"] == size


def engine_of(config: Any, **options: Any) -> dict[str, Any]:
    """Return the plan's part about the engine."""
    found: dict[str, Any] = plan(config, prompt=10, generate=10, **options).to_dict()["memory"]["engine"]
    return found


@pytest.mark.parametrize("version", ["0.8", "0.13", "0.19", "1.0", "1.2", "1.4"])
def test_reserve(version: str) -> None:
    """Parts add up to what programs see; the margin is a tenth of what is free, or as the share says."""
    for flags, share in (
        ({}, 0.9),
        ({"free_gpu_memory_fraction": 0.5}, 0.5),
        ({"kv_cache_free_gpu_mem_fraction": 0.7}, 0.7),
    ):
        config = load("llama3.1-8b", engine=f"trtllm@{version}", engine_set=flags)
        engine = engine_of(config, hardware="h100-sxm")
        assert engine["starts"]
        assert engine["flags"]["free_gpu_memory_fraction"] == share
        counted = sum(engine[name] for name in engine["counted"])
        assert engine["budget"] == counted + engine["available_cache"]
        free = engine["available_cache"] + engine["margin"]
        assert abs(engine["available_cache"] - share * free) < 2
        assert ("graphs" in engine) == (version >= "1")


def test_reserve_beside_a_log() -> None:
    """TensorRT-LLM's documents (reference/memory.md): 63.44 GiB for the cache beside Llama 2 7B in 8 bits, of 79.10 visible."""
    config = load("llama2-7b", engine="trtllm@0.13")
    found = plan(config, hardware="h100-sxm", weights="fp8", cache_dtype="fp8", prompt=10, generate=10).to_dict()
    basis = found["basis"]["memory.engine.available_cache"]
    assert basis["low"] <= 63.44 * GIB <= basis["high"]
    assert abs(found["memory"]["engine"]["available_cache"] / GIB - 63.44) < 1


def test_states() -> None:
    """Recurrent states have a slot for each request that may run."""
    path = Path(__file__).parent / "facts_other" / "sglang_granite_4_h_micro.json"
    config = load(read(path)["config"], engine="trtllm@1.2", engine_set={"max_batch_size": 16})
    engine = engine_of(config, hardware="h100-sxm")
    slot = 36 * (64 * 64 * 128 * 4 + 3 * (4096 + 2 * 128) * 2)
    assert engine["states"] == 16 * slot


REFUSED: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    ("llama3.1-8b", {}, {"cache_memory_bytes": 1000, "version": "1.4"}, "TensorRT-LLM doesn't start"),
    ("llama3.1-8b", {}, {"cache_memory_bytes": GIB, "tp": 3}, "3, which neither divides"),
    ("llama3.1-8b", {}, {"cache_memory_bytes": GIB, "version": "2.0"}, "known are 0.8 to 1.4"),
    ("llama3.1-8b", {"kv_cache_dtype": "fp8"}, {"cache_memory_bytes": GIB}, "say --cache-dtype"),
    ("llama3.1-8b", {"max_attention_window": "wide"}, {"cache_memory_bytes": GIB}, "tokens are needed"),
    ("llama3.1-8b", {"free_gpu_memory_fraction": 1}, {"cache_memory_bytes": GIB}, "a share below 1"),
    ("bert-base", {}, {"cache_memory_bytes": GIB}, "keeps no cache between steps"),
]


@pytest.mark.parametrize(("model", "flags", "asked", "text"), REFUSED)
def test_refused(model: Any, flags: dict[str, Any], asked: dict[str, Any], text: str) -> None:
    """Messages say what isn't known or doesn't fit."""
    with pytest.raises(PlanError, match=text):
        engine_capacity(load(model, engine="trtllm", engine_set=flags), engine="trtllm", **asked)


def test_devices() -> None:
    """TensorRT-LLM needs a GPU of NVIDIA."""
    with pytest.raises(PlanError, match="NVIDIA's GPUs only"):
        plan("llama3.1-8b", engine="trtllm", hardware="mi300x", prompt=10, generate=10)
