"""Start-up lines of SGLang and TensorRT-LLM beside predictions: figures are those that were printed, lines are written here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.engines.log import check, differs

FACTS = Path(__file__).parent / "facts_other"

ROWS = Path(__file__).parents[3] / "shared" / "cases" / "logs.jsonl"


def checked(folder: Path, text: str, config: Any = None) -> dict[str, Any]:
    """Return what the planner says of a log, written to a folder with its config."""
    log = folder / "log.txt"
    log.write_text(text)
    if isinstance(config, dict):
        (folder / "config.json").write_text(json.dumps(config))
        config = str(folder / "config.json")
    return check(log, config)


def config_of(name: str) -> Any:
    """Return a fact's config, or the bundled name of its shape."""
    config = json.loads((FACTS / f"{name}.json").read_text())["config"]
    return config.get("base", config)


def server(model: str, version: str, **flags: Any) -> str:
    """Return the first line, shortened."""
    said = ", ".join(f"{name}={value!r}" for name, value in {"model_path": model, **flags}.items())
    return f"sglang=={version}\n[2026-01-01 00:00:00] server_args=ServerArgs({said})\n"


def loaded(kind: str, before: float, after: float, usage: float) -> str:
    """Return the lines around loading."""
    return (
        f"[2026-01-01 00:00:01 TP0] Load weight begin. avail mem={before} GB\n"
        f"[2026-01-01 00:00:09 TP0] Load weight end. type={kind}, dtype=torch.bfloat16, avail mem={after} GB, mem usage={usage} GB.\n"
    )


def totals(tokens: int) -> str:
    """Return the last line."""
    return (
        f"[2026-01-01 00:00:12 TP0] max_total_num_tokens={tokens}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=2049, context_len=40960, available_gpu_mem=4.46 GB\n"
    )


SGLANG: dict[str, tuple[str, str | None, dict[str, tuple[float, str]]]] = {
    "keys and values": (
        server("/home/model/Qwen/QwQ-32B", "0.4.3.post4", mem_fraction_static=0.85, tp_size=4, kv_cache_dtype="auto")
        + loaded("Qwen2ForCausalLM", 21.63, 6.09, 15.54)
        + "[2026-01-01 00:00:10 TP0] KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB\n"
        + totals(46611),
        "sglang_qwq_32b_l4",
        {"weights": (15.54, "agrees"), "keys": (1.42, "agrees"), "values": (1.42, "agrees"), "tokens": (46611, "agrees")},
    ),
    "sizes without tokens": (
        server("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "0.4.3", mem_fraction_static=0.88)
        + loaded("Qwen2ForCausalLM", 22.76, 8.37, 14.39)
        + "[2026-01-01 00:00:10 TP0] KV Cache is allocated. K size: 2.82 GB, V size: 2.82 GB.\n"
        + totals(105531),
        "sglang_r1_distill_qwen_7b",
        {"weights": (14.39, "agrees"), "keys": (2.82, "agrees"), "values": (2.82, "agrees"), "tokens": (105531, "agrees")},
    ),
    "states": (
        server("ibm-granite/granite-4.0-h-micro", "0.5.8", mem_fraction_static=0.77)
        + loaded("GraniteMoeHybridForCausalLM", 15.24, 9.26, 5.98)
        + "[2026-01-01 00:00:10] Mamba Cache is allocated. max_mamba_cache_size: 38, conv_state size: 0.03GB, ssm_state size: 2.74GB \n"
        + "[2026-01-01 00:00:10] KV Cache is allocated. #tokens: 399740, K size: 1.52 GB, V size: 1.52 GB\n"
        + totals(399740),
        "sglang_granite_4_h_micro",
        {
            "weights": (5.98, "agrees"), "slots": (38, "agrees"), "convolutions": (0.03, "agrees"), "states": (2.74, "agrees"),
            "keys": (1.52, "agrees"), "values": (1.52, "agrees"), "tokens": (399740, "agrees"),
        },
    ),
    "a little less than was free": (
        server("qwen/qwen2.5-0.5b-instruct", "0.5.10", mem_fraction_static=0.86, max_total_tokens=None, page_size=1)
        + loaded("Qwen2ForCausalLM", 36.54, 35.57, 0.98)
        + "[2026-01-01 00:00:10] KV Cache is allocated. #tokens: 2658165, K size: 15.21 GB, V size: 15.21 GB\n"
        + totals(2658165),
        "sglang_qwen2_5_0_5b",
        {"weights": (0.98, "agrees"), "keys": (15.21, "agrees"), "values": (15.21, "agrees"), "tokens": (2658165, "agrees")},
    ),
    "8-bit weights, a command line": (
        ("sglang==0.5.18\npython -m sglang.launch_server --model-path Qwen/Qwen3.8-27B-FP8 --trust-remote-code "
        "--mem-fraction-static 0.85 --max-running-requests 32 --host 127.0.0.1 --port 8600\n"
        "Load weight begin. avail mem=78.48 GB\nLoad weight end. type=Qwen3_5ForConditionalGeneration, quant=fp8, avail mem=50.01 GB\n"
        "Mamba Cache is allocated. max_mamba_cache_size: 124, conv_state size: 0.34GB, ssm_state size: 17.58GB\n"
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 330323, K size: 10.08 GB, V size: 10.08 GB\n"
        "max_total_num_tokens=330323, chunked_prefill_size=8192\n"),
        "sglang_qwen3_5_27b",
        {
            "slots": (124, "agrees"), "convolutions": (0.34, "agrees"), "states": (17.58, "agrees"), "keys": (10.08, "agrees"),
            "values": (10.08, "agrees"), "tokens": (330323, "agrees"),
        },
    ),
    "latents": (
        server("deepseek-ai/DeepSeek-V3", "0.5.9", tp_size=8)
        + "[2026-01-01 00:00:10 TP0] KV Cache is allocated. #tokens: 2454421, KV size: 160.63 GB\n",
        None,
        {"cache": (160.63, "agrees")},
    ),
    "two pools": (
        server("google/diffusiongemma-26b-a4b", "0.5.20", page_size=256)
        + "[2026-01-01 00:00:10] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 56320, K size: 5.40 GB, V size: 5.40 GB\n"
        + "[2026-01-01 00:00:10] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 70656, K size: 0.68 GB, V size: 0.68 GB\n",
        "sglang_diffusiongemma",
        {"keys": (5.40, "agrees"), "values": (5.40, "agrees")},
    ),
    "a draft's pool": (
        server("Qwen/Qwen3.5-27B", "0.5.23", tp_size=2, kv_cache_dtype="fp8_e4m3", speculative_algorithm="DFLASH")
        + "[2026-01-01 00:00:10 TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 454112, K size: 3.46 GB, V size: 3.46 GB\n"
        + "[2026-01-01 00:00:10 TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 454112, K size: 1.08 GB, V size: 1.08 GB\n"
        + totals(454112),
        "sglang_qwen3_5_27b_two_ranks",
        {"keys": (3.46, "agrees"), "values": (3.46, "agrees"), "tokens": (454112, "not compared")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SGLANG)
def test_sglang(name: str, tmp_path: Path) -> None:
    """Weights, pools, slots and tokens of eight loads; what was given isn't judged."""
    text, fact, expected = SGLANG[name]
    found = checked(tmp_path, text, config_of(fact) if fact else None)
    assert found["engine"] == "sglang"
    first: dict[str, tuple[float, str]] = {}
    for line in found["lines"]:
        first.setdefault(line["quantity"], (line["printed"], line["verdict"]))
    assert {key: value for key, value in first.items() if key in expected} == expected
    assert not differs(found)
    for given in ("free memory", "free memory before loading"):
        assert first.get(given, (0, "given"))[1] == "given"


def test_sglang_differs(tmp_path: Path) -> None:
    """Other tokens for the same memory, or another size for the same tokens, differ; the second pool of a draft doesn't."""
    text, fact, _ = SGLANG["keys and values"]
    assert fact
    config = config_of(fact)
    assert differs(
        checked(tmp_path, text.replace("#tokens: 46611, K size: 1.42", "#tokens: 46611, K size: 1.52"), config)
    )
    assert differs(checked(tmp_path, text.replace("max_total_num_tokens=46611", "max_total_num_tokens=93222"), config))
    text, fact, _ = SGLANG["a draft's pool"]
    assert fact
    notes = checked(tmp_path, text, config_of(fact))["notes"]
    assert any("draft" in note for note in notes)


def test_sglang_without_a_version(tmp_path: Path) -> None:
    """The newest rules are used, and a note says so."""
    text, fact, _ = SGLANG["keys and values"]
    assert fact
    found = checked(tmp_path, text.removeprefix("sglang==0.4.3.post4\n"), config_of(fact))
    assert found["version"] is None
    assert any("no line says which version" in note for note in found["notes"])
    assert [line["verdict"] for line in found["lines"] if line["quantity"] == "keys"] == ["agrees"]


def cpp(version: str, free: float, share: float, blocks: int, size: int, pool: float, tokens: int) -> str:
    """Return what the C++ runtime prints."""
    return (
        f"[TensorRT-LLM] TensorRT-LLM version: {version}\n"
        f"kv_cache_free_gpu_mem_fraction={share}\n"
        f"[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 79.10 GiB, available: {free} GiB\n"
        f"[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: {blocks}\n"
        f"[TensorRT-LLM][INFO] Number of tokens per block: {size}.\n"
        f"[TensorRT-LLM][INFO] [MemUsageChange] Allocated {pool} GiB for max tokens in paged KV cache ({tokens})\n"
    )


TRTLLM: dict[str, tuple[str, Any, dict[str, str]]] = {
    # docs/source/reference/memory.md
    "C++, 8 bits": (
        cpp("0.13.0", 70.48, 0.9, 4060, 64, 63.44, 259840), "llama2-7b",
        {"free memory": "given", "blocks": "agrees", "cache": "agrees", "tokens": "agrees"},
    ),
    # github.com/NVIDIA/TensorRT-LLM/issues/4275
    "C++, 32 tokens": (
        cpp("0.19.0", 17.83, 0.9, 8219, 32, 16.05, 263008), "llama3.1-8b",
        {"free memory": "given", "blocks": "agrees", "cache": "agrees", "tokens": "agrees"},
    ),
    # github.com/NVIDIA/TensorRT-LLM/issues/1400
    "bytes": (
        "[TensorRT-LLM][INFO] Allocate 69524783104 bytes for k/v cache. \n[TensorRT-LLM][INFO] Using 132608 tokens in paged KV cache.",
        "llama2-7b",
        {"cache": "agrees", "tokens": "not compared"},
    ),
    # gpt-oss-120b on GB10, December 2025
    "PyTorch": (
        ("[TensorRT-LLM] TensorRT-LLM version: 1.2.0rc4\n"
        "[TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 113.65 GiB, available KV cache memory when "
        "calculating max tokens: 5.95 GiB, fraction is set 0.8999999761581421, kv size is 73728. device total memory 119.70 GiB, "
        ", tmp kv_mem 0.56 GiB\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 5.95 GiB for max tokens in paged KV cache (86720).\n"),
        "trtllm_gpt_oss_120b",
        {"cache memory": "agrees", "bytes per token": "agrees", "cache": "agrees", "tokens": "agrees"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRTLLM)
def test_trtllm(name: str, tmp_path: Path) -> None:
    """Blocks, tokens and sizes of four loads."""
    text, config, verdicts = TRTLLM[name]
    found = checked(tmp_path, text, config_of(config) if config.startswith("trtllm") else config)
    assert found["engine"] == "trtllm"
    assert {line["quantity"]: line["verdict"] for line in found["lines"]} == verdicts
    assert not differs(found)


def test_trtllm_differs(tmp_path: Path) -> None:
    """Other blocks for the same memory differ, and another size for the same tokens."""
    text, config, _ = TRTLLM["C++, 32 tokens"]
    assert differs(checked(tmp_path, text.replace("primary pool: 8219", "primary pool: 4110"), config))
    assert differs(checked(tmp_path, text.replace("Allocated 16.05", "Allocated 17.05"), config))


def rows() -> list[Any]:
    """Return the rows of public logs of these engines, where they are beside this checkout."""
    if not ROWS.exists():
        return [pytest.param(None, marks=pytest.mark.skip("../shared/cases is not beside this checkout"), id="rows")]
    found = [json.loads(line) for line in ROWS.read_text().splitlines()]
    return [pytest.param(row, id=row["id"]) for row in found if row["id"] in KNOWN]


# Bytes of a token, and whose rules are asked: engines that aren't modelled store whole tokens too.
KNOWN: dict[str, tuple[Any, str, dict[str, Any], int]] = {
    "vllm-21348-sglang": ("sglang_qwen3_235b", "sglang", {"tp": 4}, 94 * 2 * 128 * 2),
    "club3090-1261": ("sglang_qwen3_5_27b_two_ranks", "sglang", {"tp": 2, "cache_dtype": "fp8"}, 16 * 2 * 2 * 256),
    "sglang-11309-main": ("sglang_deepseek_v32", "sglang", {"cache_dtype": "fp8"}, 61 * (656 + 132)),
    "trtllm-2268": ("llama2-7b", "trtllm", {}, 524288),
    "trtllm-1400": ("llama2-7b", "trtllm", {}, 524288),
    "pegainfer-422": ("qwen3", "trtllm", {"block_size": 16}, 147456),
    "nollama-21": ("qwen3_moe", "trtllm", {}, 96 * 1024),
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3": {
        "model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "max_position_embeddings": 40960, "torch_dtype": "bfloat16", "tie_word_embeddings": True,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 5472, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 262144,
        "torch_dtype": "bfloat16", "tie_word_embeddings": False, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("row", rows())
def test_rows(row: dict[str, Any]) -> None:
    """Bytes of a token to the byte; printed tokens, blocks and sizes to their digits."""
    from planner import engine_capacity, load  # noqa: PLC0415

    name, engine, asked, size = KNOWN[row["id"]]
    path = FACTS / f"{name}.json"
    fact = json.loads(path.read_text()) if path.exists() else {}
    config = SHAPES.get(name) or fact.get("config") or name
    model = load(config["base"], engine=engine, set=config["set"]) if "base" in config else load(config, engine=engine)
    found = engine_capacity(model, engine=engine, cache_memory_bytes=2**40, **asked)
    assert found["bytes_per_token"] == size
    printed = row["printed"]
    if "K_gb" in printed:
        assert abs(printed["tokens"] * size / 2 / 2**30 - printed["K_gb"]) <= 0.005
    if "kv_bytes" in printed:
        assert printed["kv_bytes"] == printed["kv_tokens"] * size
    if "primary_pool_blocks" in printed:
        memory = int(0.9 * printed["available_gib"] * 2**30)
        asked = {"cache_memory_bytes": memory, "version": "0.13"}
        assert engine_capacity(model, engine=engine, **asked)["blocks"] == printed["primary_pool_blocks"]
    if "usable_tokens" in printed:
        made = engine_capacity(model, engine=engine, cache_memory_bytes=printed["blocks"] * 16 * size, **asked)
        assert (made["tokens"], made["blocks"]) == (86144 + 16, printed["blocks"])  # one block is kept for padding
    if "kv_gb" in printed:
        pages = printed["tokens"] + 64
        assert round(pages * 61 * 656 / 2**30, 2) == printed["kv_gb"]
        assert round(pages * size / 2**30, 2) == printed["kv_incl_index_gb"]
    if "kb_per_token" in printed:
        assert size == printed["kb_per_token"] * 1024
        for gib in (2, 16):
            assert abs(gib * 2**30 // size / printed[f"max_tokens_{gib}gb"] - 1) < 0.05
