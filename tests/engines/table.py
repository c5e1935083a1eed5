"""Every collected start-up log, quantity by quantity: what the engine printed, what the planner says, and what explains a difference.

`python -m tests.engines.table` rewrites docs/engine-logs.md from ../shared/cases/logs.jsonl, which isn't part of the repository;
a test asserts that the page is up to date where that lies beside the checkout. Predictions come from `planner.engine_capacity`,
`planner.engine_memory`, `planner.plan` and `planner.engines.log.check` only, the last by writing a row's figures as the lines that
they were printed in.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from planner import Model, PlanError, engine_capacity, engine_memory, load, plan
from planner.engines import SERVING
from planner.engines.log import check

ROOT = Path(__file__).parents[2]
ROWS = ROOT.parent / "shared" / "cases" / "logs.jsonl"
CONFIGS = ROOT.parent / "shared" / "truth" / "configs"
PAGE = ROOT / "docs" / "engine-logs.md"

GIB, MIB = 2**30, 2**20

Row = Mapping[str, Any]


class Line(NamedTuple):
    """One quantity of a row.

    Attributes:
        quantity, unit: what it is. printed, predicted: None where there is none. verdict: one of `VERDICTS`.
        why: what explains a difference, or why there is no prediction.
        low, high: what may be printed as far as the figures are known that the prediction starts from; None: `predicted`.
    """

    quantity: str
    unit: str
    printed: float | str | None
    predicted: float | None = None
    verdict: str = "not compared"
    why: str = ""

    @property
    def percent(self) -> float | None:
        """Printed above predicted."""
        if self.predicted and isinstance(self.printed, int | float):
            return 100 * (self.printed / self.predicted - 1)
        return None


VERDICTS = {
    "exact": "equal, or equal to the printed digits",
    "agrees": "within the tolerance: tokens and blocks 0.1 % or what 0.01 GiB of printed memory leaves open, weights 1 %, available cache "
    "memory 3 % or 0.5 GiB",
    "differs": "beyond it, with the reason",
    "shown": "no tolerance is claimed: parts of the memory that an engine's profiling run finds",
    "given": "what predictions start from",
    "not compared": "with the reason",
}


# --- which model: public figures of each, no more than decide

W8A8 = {
    "quant_method": "compressed-tensors", "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
            "input_activations": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True},
        },
    },
    "ignore": ["lm_head", "re:.*vision_tower.*", "re:.*multi_modal_projector.*"],
}  # fmt: skip
FP8_DYNAMIC = {
    "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}}
    },
}  # fmt: skip
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def decoder(
    kind: str, depth: int, width: int, hidden: int, heads: int, groups: int, words: int, **more: Any
) -> dict[str, Any]:
    """Return a config by its usual names."""
    return {
        "model_type": kind, "num_hidden_layers": depth, "hidden_size": width, "intermediate_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": groups, "vocab_size": words, "torch_dtype": "bfloat16",
        "tie_word_embeddings": False, **more,
    }  # fmt: skip


LLAMA_8 = decoder("llama", 32, 4096, 14336, 32, 8, 128256, max_position_embeddings=131072)
LLAMA_70 = decoder("llama", 80, 8192, 28672, 64, 8, 128256, max_position_embeddings=131072)
QWEN25_7 = decoder("qwen2", 28, 3584, 18944, 28, 4, 152064, max_position_embeddings=32768)
QWEN15_7 = decoder("qwen2", 32, 4096, 11008, 32, 32, 151936, max_position_embeddings=32768)
GRANITE = decoder("granite", 40, 4096, 12800, 32, 8, 49155, max_position_embeddings=131072, tie_word_embeddings=True)
MISTRAL_SMALL = {
    "model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"], "torch_dtype": "bfloat16",
    "text_config": decoder("mistral", 40, 5120, 32768, 32, 8, 131072, head_dim=128, max_position_embeddings=131072, sliding_window=None),
    "vision_config": {
        "model_type": "pixtral", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "head_dim": 64, "image_size": 1540, "patch_size": 14,
    },
    "spatial_merge_size": 2, "multimodal_projector_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
KIMI_VL = {
    "model_type": "kimi_vl", "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "deepseek_v3", "num_hidden_layers": 27, "hidden_size": 2048, "intermediate_size": 11264,
        "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "vocab_size": 163840, "max_position_embeddings": 131072,
    },
    "vision_config": {"model_type": "moonvit"},
}  # fmt: skip
SCOUT_SEES = {
    "vision_config": {
        "model_type": "llama4_vision_model", "hidden_size": 1408, "intermediate_size": 5632, "num_hidden_layers": 34,
        "num_attention_heads": 16, "image_size": 336, "patch_size": 14, "vision_output_dim": 4096, "projector_input_dim": 4096,
        "projector_output_dim": 4096,
    },
}  # fmt: skip
QWEN25_VL_72 = decoder(
    "qwen2_5_vl", 80, 8192, 29568, 64, 8, 152064, max_position_embeddings=128000,
    vision_config={
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3456, "out_hidden_size": 8192, "num_heads": 16, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
    },
)  # fmt: skip

MODELS: tuple[tuple[str, str | dict[str, Any] | tuple[str, dict[str, Any]]], ...] = (
    ("CodeLlama-7b", "=codellama--CodeLlama-7b-hf"),
    ("DeepSeek-V2-Lite", "deepseek-v2-lite"),
    ("DeepSeek-V3.2", "=deepseek-ai--DeepSeek-V3.2"),
    ("R1-Distill-Qwen-14B", decoder("qwen2", 48, 5120, 13824, 40, 8, 152064, max_position_embeddings=131072)),
    ("DeepSeek-R1 AWQ", ("deepseek-ai--DeepSeek-R1", {"quantization_config": AWQ})),
    ("DeepSeek-R1", "deepseek-v3"),
    ("gemma-2-27b", "gemma2-27b"),
    ("gemma-2-2b", "gemma2-2b"),
    ("gemma-3-27b", ("google--gemma-3-27b-it", {"text_config.rope_scaling": {"rope_type": "linear", "factor": 8.0}})),
    ("gemma3:4b", "gemma3-4b-text"),
    ("granite-3.3", {**GRANITE, "vocab_size": 49159}),
    ("granite-3.1", GRANITE),
    ("Llama-3.1-8B-Instruct-quantized.w4a16", {**LLAMA_8, "quantization_config": GPTQ}),
    ("Llama-3.1-8B-Instruct-quantized.w8a8", {**LLAMA_8, "quantization_config": W8A8}),
    ("Llama-3.3-70B-Instruct-quantized.w8a8", {**LLAMA_70, "quantization_config": W8A8}),
    ("Llama-3.3-70B-Instruct-FP8", {**LLAMA_70, "quantization_config": FP8_DYNAMIC}),
    ("Llama-3.1-8B", "llama3.1-8b"),
    ("Meta-Llama-3-8B", "llama3-8b"),
    ("Llama-3.1-70B|80-layer 8-kv-head", "llama3.1-70b"),
    ("Llama-3-70B", "llama3-70b"),
    ("Llama-4-Scout", ("meta-llama--Llama-4-Scout-17B-16E-Instruct", SCOUT_SEES)),
    ("Llama-2-7B", "llama2-7b"),
    ("LLaMA-30B", "=huggyllama--llama-30b"),
    ("phi-2", "=microsoft--phi-2"),
    ("phi-4", "=microsoft--phi-4"),
    ("Kimi-VL", KIMI_VL),
    ("Qwen2.5-VL-72B", QWEN25_VL_72),
    ("Qwen2.5-72B", decoder("qwen2", 80, 8192, 29568, 64, 8, 152064, max_position_embeddings=32768)),
    ("Qwen2.5-7B-Instruct-quantized.w8a8", {**QWEN25_7, "quantization_config": W8A8}),
    ("Qwen2.5-7B", QWEN25_7),
    ("Qwen1.5-7B-Chat-GPTQ", {**QWEN15_7, "quantization_config": {**GPTQ, "desc_act": False}}),
    ("Qwen1.5-7B", QWEN15_7),
    ("Qwen1.5-72B", decoder("qwen2", 80, 8192, 24576, 64, 64, 152064, max_position_embeddings=32768)),
    ("Qwen3-30B-A3B|Qwen3-Coder-30B|vllm-25350", "=Qwen--Qwen3-30B-A3B"),
    ("Qwen3-235B-A22B-FP8", "=Qwen--Qwen3-235B-A22B-FP8"),
    (r"Qwen3-(?P<size>0\.6B|1\.7B|4B|8B|14B|32B)", "=Qwen--Qwen3-{size}"),
    ("Qwen3.5-27B|Qwen3.x-27B", "=Qwen--Qwen3.5-27B"),
    ("Qwen3.6-35B-A3B", "=Qwen--Qwen3.5-35B-A3B"),
    ("Mistral-Small-3.1.*w8a8", {**MISTRAL_SMALL, "quantization_config": W8A8}),
    ("Mistral-Small", MISTRAL_SMALL),
    ("gpt-oss-120b", "=openai--gpt-oss-120b"),
    ("unspecified small model", "smollm2-135m"),
    ("MiniMax-M2.7", ("MiniMaxAI--MiniMax-M2.7", {"quantization_config": AWQ})),
)
"""What a row calls its model, and a bundled name, a file of ../shared/truth/configs ("=", or with keys of its own), or its figures;
first match wins."""


def find(row: Row) -> Any:
    """Return the config of a row's model; None: it isn't public or not named."""
    for pattern, config in MODELS:
        if match := re.search(pattern, row["model"]):
            name, more = config if isinstance(config, tuple) else (config, {})
            if isinstance(config, tuple) or (isinstance(config, str) and config.startswith("=")):
                file = CONFIGS / f"{str(name).removeprefix('=').format(**match.groupdict())}.json"
                return _changed(json.loads(file.read_text()), more)
            return config
    return None


def _changed(config: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with other values, by dotted paths."""
    for path, value in more.items():
        *parents, last = path.split(".")
        node = config
        for parent in parents:
            node = node[parent]
        node[last] = value
    return config


# --- what a row says, by one name for each quantity

NAMES = {
    "weights": ("model_weights_gib_per_gpu", "weights_gib"),
    "activations": ("torch_peak_activation_gib", "activation_gib"),
    "not PyTorch's": ("non_torch_gib",),
    "graphs": ("cuda_graph_pool_gib",),
    "device": ("gpu_total_gib",),
    "budget": ("gpu_budget_gib", "budget_gib"),
    "all but the cache": ("total_non_kv_gib",),
    "PyTorch's peak": ("peak_torch_gib",),
    "before profiling": ("initial_memory_usage_gib",),
    "cache memory": ("available_kv_gib", "kv_cache_gib", "available_gib", "remaining_kv_gib"),
    "tokens": ("gpu_kv_cache_tokens", "kv_tokens", "tokens", "usable_tokens", "pool_tokens"),
    "blocks": ("num_gpu_blocks", "gpu_blocks", "blocks", "primary_pool_blocks"),
    "concurrency": ("max_concurrency", "concurrency"),
    "cache memory of one request": ("needed_gib",),
    "longest request": ("estimated_max_len",),
    "blocks on the CPU": ("cpu_blocks",),
}  # fmt: skip
"""Quantities, and the keys under which rows have them."""


def printed(row: Row, quantity: str) -> Any:
    """Return a printed figure; None where there is none."""
    return next((row["printed"][key] for key in NAMES[quantity] if key in row["printed"]), None)


LEFT_OUT = {
    "layers": "of the model", "kv_lora_rank": "of the model", "rope": "of the model",
    "graph_gib": "Ollama's own estimate of compute buffers, which isn't modelled",
    "required_full_gib": "Ollama's sum with these estimates, over four cards",
    "layers_offload": "how Ollama splits layers over four cards isn't modelled",
    "model_mib": "the file's tensors on the GPU; the quantisation isn't named",
    "compute_mib": "Ollama's compute buffer, which isn't modelled here",
    "total_mib": "the sum of model, caches and compute buffer",
    "mem_required_mb": "llama.cpp's sum with scratch buffers of fixed size, of a version before any that is modelled",
    "budget_mib": "an engine whose rules aren't modelled",
    "weights_loaded_used_mib": "an engine whose rules aren't modelled",
    "non_kv_peak_mib": "an engine whose rules aren't modelled",
    "margin_mib": "an engine whose rules aren't modelled",
    "total_gib": "the device's memory as the driver says it",
    "tg_tps": "a rate: seconds aren't predicted yet", "pp2048_tps": "a rate: seconds aren't predicted yet",
    "bpw": "size / parameters, which are compared",
    "fp8_pool_tokens": "the model's config isn't public", "fp8_concurrency": "the model's config isn't public",
    "pool_tokens_8k": "the model's config isn't public", "concurrency_8k": "the model's config isn't public",
    "draft_K_gb": "the draft model isn't named",
}  # fmt: skip
"""Keys of rows that have no prediction of their own, and why."""

LEAST = "one rank's memory is printed, and the tokens are those of the rank with least"
NOTES: dict[tuple[str, str], str] = {
    ("vllm-40691", "concurrency"): "no memory is printed: 1,484 to 1,487 blocks give the printed tokens, one of four groups' share; "
    "concurrency x length is 3.7 times as much",
    ("llmd-doc-gpt-oss-120b-tp1", "cache memory, from flags"): "the row's utilisation isn't that of its figures: 0.95 leaves 3.37",
    ("llmd-doc-mistral-small-3.2", "cache memory, from flags"): "the row doesn't say for how many requests it was started: 256 instead of the "
    "default's 1,024 would leave 28.44",
    ("vllm-13061", "cache of a token"): "8.69 GiB are one rank's; the tokens are the other's, which had 7.46 GiB and prints nothing",
    ("vllm-13061", "tokens"): "8.69 GiB are one rank's; the tokens are the other's, which had 7.46 GiB and prints nothing",
    ("vllm-13061", "cache memory, from flags"): "the other rank had 7.46; this one was profiled with smaller steps than the default's",
    **dict.fromkeys([("vllm-21348-vllm", each) for each in ("cache of a token", "tokens")], f"{LEAST}, or without a connector's buffer"),
    ("vllm-21348-vllm", "cache memory, from flags"): "a connector (LMCache) holds memory of its own",
    **dict.fromkeys([("spark-396-b", each) for each in ("cache of a token", "tokens", "concurrency")], LEAST),
    ("spark-396-b", "cache memory, from flags"): "the host's memory is the device's: what else runs counts against it, and the row doesn't say",
    ("tpu-inference-223", "longest request"): "vLLM on TPUs rounds down to pages of 512 tokens, whose rules aren't modelled",
    ("vllm-14447", "cache memory, from flags"): "the row names neither steps nor requests; the default's 256 requests take more",
    ("vllm-16570", "cache memory, from flags"): "the profiling run of 0.8 encodes images, 1 GiB that isn't counted",
    ("openrlhf-336", "blocks on the CPU"): "which say that there are 2 ranks: 4 GiB / (16 x 163,840 bytes)",
    ("club3090-612", "concurrency"): "prefix caching was on: a request then holds two states a group, 299 / (63 + 3 x 2)",
    ("vllm-13596", "concurrency"): "no model is named; tokens and concurrency follow from blocks of 16 tokens, whatever it is",
}  # fmt: skip
"""What is known of single figures of logs."""

MORE_FLAGS: dict[str, dict[str, Any]] = {
    "openrlhf-336": {"tensor_parallel_size": 2},
    "club3090-612": {"enable_prefix_caching": True},
}
"""Flags that a row leaves out and its figures give away."""

HARDWARE = (
    ("H100", "h100-sxm"), ("A100 40GB", "a100-40gb"), ("RTX 3090", "rtx-3090"), ("RTX 4090", "rtx-4090"), ("H20", "h20"),
    ("RTX 5090", "rtx-5090"), ("DGX Spark|GB10", "gb10"),
)  # fmt: skip


DATED = {"2025-07": (0, 10)}
"""Versions of that time."""


def number(version: str) -> tuple[int, int] | None:
    """Return major and minor of a version; None where it has none."""
    if version in DATED:
        return DATED[version]
    match = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match and "dev2" not in version else None


def exactly(predicted: float, figure: float) -> bool:
    """Return whether a prediction is what was printed, to its digits."""
    digits = max(2, len(str(figure).partition(".")[2])) if isinstance(figure, float) else 0
    return round(float(predicted), digits) == float(figure)


# --- vLLM


class Start(NamedTuple):
    """How vLLM was started: version, tp, pp, length of the longest request, and all flags of the row."""

    version: tuple[int, int]
    tp: int
    pp: int
    length: int | None
    flags: dict[str, Any]

    @property
    def known(self) -> str:
        """The version whose rules are used: the oldest for older ones."""
        return ".".join(map(str, max(self.version, (0, 6))))

    @property
    def dtypes(self) -> dict[str, Any]:
        """Dtype, weight format and cache dtype, as the planner calls them."""
        found = {"dtype": self.flags.get("dtype"), "cache_dtype": self.flags.get("kv_cache_dtype")}
        if self.flags.get("quantization") == "fp8":
            found["weights"] = "fp8"
        return {key: value for key, value in found.items() if value not in {None, "auto"}}


def started(row: Row) -> Start:
    """Return a row's flags."""
    flags = row["flags"] | MORE_FLAGS.get(row["id"], {})
    tp = flags.get("tensor_parallel_size") or flags.get("tp") or 1
    return Start(
        number(row["version"]) or (0, 32), tp, flags.get("pipeline_parallel_size", 1), flags.get("max_model_len"), flags
    )


def ranks_memory(row: Row) -> list[tuple[int, float]]:
    """Return the cache memory that each rank printed, with its stage: a stage's is its budget less what isn't cache."""
    memory = printed(row, "cache memory")
    if "per_stage" in row["printed"]:
        budget = row["printed"]["gpu_budget_gib"]
        return [(each["stage"], round(budget - each["non_kv"], 2)) for each in row["printed"]["per_stage"]]
    each = memory if isinstance(memory, list) else [memory]
    return [(0, value) for value in each if value is not None and value > 0]


def log_text(row: Row) -> str:
    """Return a row's figures as the lines that vLLM prints."""
    start = started(row)
    named = ("dtype", "quantization", "kv_cache_dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size",
             "tensor_parallel_size", "pipeline_parallel_size", "enable_prefix_caching")  # fmt: skip
    said = {"model": row["model"]} | {key: start.flags[key] for key in named if start.flags.get(key) is not None}
    said["tensor_parallel_size"] = start.tp
    lines = [f"vLLM API server version {start.known}.0", f"non-default args: {said}"]
    lines += [
        f"(Worker_PP{stage['stage']} pid=1) Model loading took {stage['weights']} GiB memory"
        for stage in row["printed"].get("per_stage", [])
    ]
    weights = printed(row, "weights")
    if weights is not None and "per_stage" not in row["printed"]:
        lines.append(f"Model loading took {weights} GiB memory")
    lines += [f"(Worker_PP{stage} pid=1) Available KV cache memory: {value} GiB" for stage, value in ranks_memory(row)]
    for quantity, line in (
        ("blocks", "# GPU blocks: {:d}"), ("blocks on the CPU", "# CPU blocks: {:d}"),
        ("tokens", "GPU KV cache size: {:,d} tokens"),
        ("concurrency", f"Maximum concurrency for {start.length or 0:,d} tokens per request: {{}}x"),
        ("cache memory of one request", "({} GiB KV cache is needed"),
        ("longest request", "Based on the available memory, the estimated maximum model length is {:d}"),
    ):  # fmt: skip
        if (value := printed(row, quantity)) is not None:
            lines.append(line.format(value))
    return "\n".join(lines)


def checked(text: str, config: Any) -> dict[str, Any]:
    """Return the check of a log with this text."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "start.log"
        log.write_text(text)
        if isinstance(config, str):
            return check(log, config)
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(config))
        return check(log, str(file))


def vllm(row: Row, config: Any) -> Iterator[Line]:
    """Yield what vLLM printed, beside what the planner says."""
    start = started(row)
    model = load(config)
    yield from cache_rate(row, start, model)
    found = checked(log_text(row), config)
    whole = list(of_blocks(row, start, model)) if ranks_memory(row) and start.version >= (0, 11) else []
    for line in found["lines"]:
        if line["quantity"] != "concurrency":
            yield told(row, line, found["notes"])
        elif row["id"] == "vllm-40691":
            yield shared_concurrency(row, start, model)
        elif not whole:
            yield told(row, line, found["notes"])
    yield from whole
    yield from of_tokens(row, start, model)
    yield from request_blocks(row, start, model)
    yield from set_aside(row, start, config)
    yield from starts(row, start, model)


def told(row: Row, line: dict[str, Any], notes: list[str]) -> Line:
    """Return a line of a check, with the reason of its verdict."""
    quantity, said = line["quantity"], line["predicted"]
    why = ""
    verdict = {"agrees": "agrees", "differs": "differs", "given": "given"}.get(line["verdict"], "not compared")
    if verdict == "agrees" and exactly(said, line["printed"]):
        verdict = "exact"
    elif verdict == "agrees":
        why = REASONS.get(quantity, "")
    elif verdict in {"differs", "not compared"}:
        why = "; ".join(note for note in notes if "compared" in note or "least" in note)
    return Line(quantity, line["unit"], line["printed"], said, verdict, NOTES.get((row["id"], quantity), why))


REASONS = {
    "tokens": "the memory is printed to 0.01 GiB",
    "blocks": "the memory is printed to 0.01 GiB",
    "concurrency": "the memory is printed to 0.01 GiB",
    "longest request": "the memory is printed to 0.01 GiB",
    "weights": "buffers of quantised kernels and of towers that aren't counted",
    "cache memory": "parts of the profiling run below",
}
"""Why a figure is a little off."""


def cache_rate(row: Row, start: Start, model: Model) -> Iterator[Line]:
    """Yield the bytes that a token takes on the fullest rank, or those of a block where layers are of several kinds."""
    try:
        said = engine_capacity(model, cache_memory_bytes=2**60, **capacity_options(start))
    except PlanError as error:
        yield Line("cache of a token", "bytes", None, None, "not compared", error.problem)
        return
    worked = row["verify"].get("predicted", {}) if isinstance(row["verify"], Mapping) else {}
    if block := worked.get("block_bytes"):
        pool = 2**60 // said["blocks"]
        yield Line(
            "block of the pool", "bytes", block, pool, "exact" if pool == block else "differs", "worked out in the row"
        )
        return
    rate = said["bytes_per_token"]
    if token := worked.get("kv_bytes_per_token_per_gpu"):
        yield Line(
            "cache of a token", "bytes", token, rate, "exact" if rate == token else "differs", "worked out in the row"
        )
        return
    memory, tokens = ranks_memory(row), printed(row, "tokens")
    if not tokens and (blocks := printed(row, "blocks")):
        tokens = blocks * said["block_size"]
    if not memory or not tokens or len(said["groups"]) > 1:
        return
    least = min(value for _, value in memory)
    low, high = ((least + half) * GIB / (tokens + extra) for half, extra in ((-0.005, said["block_size"]), (0.005, 0)))
    inside = low <= rate <= high
    yield Line(
        "cache of a token", "bytes", f"{low:,.0f} to {high:,.0f}", rate, "exact" if inside else "differs",
        "memory / tokens, as far as they are printed" if inside else NOTES.get((row["id"], "cache of a token"), ""),
    )  # fmt: skip


def of_blocks(row: Row, start: Start, model: Model) -> Iterator[Line]:
    """Yield tokens and concurrency of as many blocks as are printed: memory in whole blocks, so that nothing is rounded away."""
    blocks = printed(row, "blocks")
    if blocks is None:
        return
    asked = capacity_options(start)
    pool = 2**60 // engine_capacity(model, cache_memory_bytes=2**60, **asked)["blocks"]
    said = engine_capacity(model, cache_memory_bytes=blocks * pool, **asked)
    for quantity, unit in (("tokens", "tokens"), ("concurrency", "requests")):
        if (figure := printed(row, quantity)) is not None:
            verdict = "exact" if exactly(said[quantity], figure) else "differs"
            yield Line(f"{quantity}, of the printed blocks", unit, figure, said[quantity], verdict)


def of_tokens(row: Row, start: Start, model: Model) -> Iterator[Line]:
    """Yield the memory of the printed tokens, where none is printed and the row works it out."""
    tokens = printed(row, "tokens")
    if ranks_memory(row) or tokens is None or not isinstance(row["verify"], list):
        return
    rate = engine_capacity(model, cache_memory_bytes=2**60, **capacity_options(start))["bytes_per_token"]
    for each in row["verify"]:
        if each["check"].startswith("GiB"):
            yield judged(
                "cache memory of the tokens", "GiB", each["printed"], tokens * rate / GIB, "worked out in the row"
            )


def capacity_options(start: Start) -> dict[str, Any]:
    """Return how `planner.engine_capacity` is asked of an engine so started."""
    names = {"block_size": "block_size", "kv_cache_dtype": "cache_dtype", "dtype": "dtype", "enable_prefix_caching": "prefix_caching",
             "max_num_seqs": "max_num_seqs", "max_num_batched_tokens": "max_num_batched_tokens"}  # fmt: skip
    asked = {ours: start.flags.get(theirs) for theirs, ours in names.items()}
    return asked | {"version": start.known, "max_model_len": start.length, "tp": start.tp, "pp": start.pp}


def shared_concurrency(row: Row, start: Start, model: Model) -> Line:
    """Return the concurrency of pools whose share has the printed tokens."""
    asked = capacity_options(start)
    pool = 2**60 // engine_capacity(model, cache_memory_bytes=2**60, **asked)["blocks"]
    tokens, figure = printed(row, "tokens"), printed(row, "concurrency")
    fitting = []
    for blocks in range(100, 4000):
        try:
            said = engine_capacity(model, cache_memory_bytes=blocks * pool, **asked)
        except PlanError:
            continue
        if said["tokens"] == tokens:
            fitting.append(said["concurrency"])
    verdict = "exact" if figure in fitting else "differs"
    return Line("concurrency", "requests", figure, fitting[-1], verdict, NOTES[row["id"], "concurrency"])


def request_blocks(row: Row, start: Start, model: Model) -> Iterator[Line]:
    """Yield the blocks of a request, where a row has counted them."""
    for key, value in row["printed"].items():
        if match := re.fullmatch(r"blocks_for_(\d+)_tokens", key):
            asked = capacity_options(start) | {"max_model_len": int(match[1])}
            said = engine_capacity(model, cache_memory_bytes=2**60, **asked)
            blocks = round(said["blocks"] / said["concurrency"])
            yield judged(f"blocks of {int(match[1]):,} tokens", "blocks", value, blocks)


def starts(row: Row, start: Start, model: Model) -> Iterator[Line]:
    """Yield whether the engine starts with the memory that it printed, or that its tokens take."""
    if "fits" not in row["printed"]:
        return
    asked = capacity_options(start)
    rate = engine_capacity(model, cache_memory_bytes=2**60, **asked)["bytes_per_token"]
    memory = min((value * GIB for _, value in ranks_memory(row)), default=(printed(row, "tokens") or 0) * rate)
    try:
        engine_capacity(model, cache_memory_bytes=max(int(memory), 1), **asked)
    except PlanError:
        yield Line("starts", "", "no", None, "exact", "one request of the longest length needs more")
    else:
        yield Line("starts", "", "no", None, "differs")


def set_aside(row: Row, start: Start, config: Any) -> Iterator[Line]:
    """Yield what is taken of a device before the cache, from flags alone."""
    quantities = (
        "device", "budget", "before profiling", "activations", "PyTorch's peak", "not PyTorch's", "all but the cache", "graphs",
        "cache memory",
    )  # fmt: skip
    there = {quantity: value for quantity in quantities if (value := printed(row, quantity)) is not None}
    profile = next((name for pattern, name in HARDWARE if re.search(pattern, row["hardware"])), None)
    reason = ""
    if profile is None:
        reason = "the device isn't named"
    elif start.version < (0, 6):
        reason = "the budget of versions before 0.6 isn't known"
    elif "gpu_memory_utilization" not in start.flags:
        reason = "the utilisation isn't named"
    if reason:
        yield from (
            Line(f"{quantity}, from flags", "GiB", flat(value), None, "not compared", reason)
            for quantity, value in there.items()
        )
        return
    names = (
        "gpu_memory_utilization",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
        "enable_prefix_caching",
    )
    flags = {key: start.flags[key] for key in names if start.flags.get(key) is not None}
    options = {"hardware": profile, "engine": f"vllm@{start.version[0]}.{start.version[1]}", "engine_set": flags,
               "tp": start.tp, "pp": start.pp, **start.dtypes}  # fmt: skip
    try:
        said, made = engine_memory(config, **options), plan(config, **options)
    except PlanError as error:
        yield from (
            Line(f"{quantity}, from flags", "GiB", flat(value), None, "not compared", error.problem)
            for quantity, value in there.items()
        )
        return
    assert made.memory is not None
    first = made.memory["devices"][0]
    predicted = {
        "device": first_usable(made), "budget": said["budget"], "activations": first["activations"], "not PyTorch's": said["runtime"],
        "graphs": said["graphs"], "cache memory": said["available_cache"], "PyTorch's peak": first["weights"] + first["activations"],
        "before profiling": first["weights"] + said["runtime"],
        "all but the cache": first["weights"] + first["activations"] + said["runtime"],
    }  # fmt: skip
    for quantity, value in there.items():
        figure = flat(value)
        if quantity == "cache memory":
            figure = min((each for _, each in ranks_memory(row)), default=figure)
        gib = predicted[quantity] / GIB
        verdict, why = "shown", ""
        if quantity == "cache memory":
            verdict = "agrees" if abs(gib - figure) <= max(0.5, 0.03 * figure) else "differs"
            why = NOTES.get((row["id"], f"{quantity}, from flags"), "") if verdict == "differs" else ""
        elif quantity in {"device", "budget"}:
            verdict = "exact" if exactly(gib, figure) else "agrees" if abs(gib / figure - 1) < 0.001 else "differs"
        yield Line(f"{quantity}, from flags", "GiB", figure, round(gib, 2), verdict, why)


def first_usable(made: Any) -> int:
    """Return the bytes of a device that programs see."""
    found: int = made.memory["usable"]
    return found


def flat(value: Any) -> Any:
    """Return the least of several ranks' figures."""
    return min(value) if isinstance(value, list) else value


# --- other engines: rows of full attention or latents, counted by a plan


class Other(NamedTuple):
    """How another engine was started.

    Attributes:
        tp: ranks that share heads. width: dtype of the cache. tokens: that it printed, or its context.
    """

    tp: int
    width: str
    tokens: int | None


def other(row: Row, config: Any) -> Iterator[Line]:
    """Yield what other engines printed of caches whose bytes follow from their tokens."""
    said, flags = row["printed"], row["flags"]
    width = {"fp8_e4m3": "fp8", "fp8 MLA (656 B/token/layer)": "fp8"}.get(
        str(flags.get("kv_cache_dtype") or flags.get("kv")), "fp16"
    )
    divided = 1 if flags.get("enable_dp_attention") else flags.get("tp", 1)
    start = Other(divided, width, said.get("tokens") or flags.get("num_ctx"))
    model = load(config)
    rate = cell_bytes(row, model, start)
    tokens = start.tokens or 0
    blocks, size = printed(row, "blocks"), flags.get("block_size") or flags.get("tokens_per_block") or 0
    index = 132 * len(plan(model).cache["layers"])
    share = flags.get("kv_cache_free_gpu_mem_fraction", 1)
    figures: dict[str, tuple[str, str, float]] = {
        "K_gb": ("keys", "GiB", tokens * rate / 2 / GIB), "V_gb": ("values", "GiB", tokens * rate / 2 / GIB),
        "kv_gb": ("cache without the indexer's keys", "GiB", tokens * (rate - index) / GIB),
        "kv_incl_index_gb": ("cache", "GiB", tokens * rate / GIB),
        "kv_bytes": ("cache", "bytes", said.get("kv_tokens", 0) * rate),
        "kv_gib": ("cache", "GiB", tokens * rate / GIB),
        "kv_mib": ("cache of the printed blocks", "MiB", (blocks or 0) * size * rate / MIB),
        "usable_tokens": ("tokens", "tokens", ((blocks or 0) - 1) * size),
        "primary_pool_blocks": ("blocks", "blocks", -(-share * said.get("available_gib", 0) * GIB // (max(size, 1) * rate))),
        "kb_per_token": ("cache of a token", "KiB", rate / 1024),
        "max_tokens_2gb": ("tokens of 2 GiB", "tokens", 2 * GIB // rate), "max_tokens_16gb": ("tokens of 16 GiB", "tokens", 16 * GIB // rate),
    }  # fmt: skip
    given = {"tokens", "blocks", "available_gib", "kv_tokens"}
    for key, value in said.items():
        if key in figures:
            quantity, unit, predicted = figures[key]
            yield judged(quantity, unit, value, predicted, OTHER_NOTES.get((row["id"], key), ""))
        elif key in given:
            yield Line(key.replace("_", " "), "", value, None, "given")
        elif key == "weights_gib":
            yield Line(
                "weights",
                "GiB",
                value,
                None,
                "not compared",
                "Ollama's sum over four cards; the quantisation isn't named",
            )
        else:
            yield Line(key.replace("_", " "), "", str(value), None, "not compared", LEFT_OUT[key])


OTHER_NOTES = {
    ("sglang-11309-main", "kv_incl_index_gb"): "printed in two parts, each rounded",
    ("nollama-21", "max_tokens_2gb"): "said in round thousands",
    ("nollama-21", "max_tokens_16gb"): "said in round thousands",
}
"""What is known of single figures."""


MODELLED = {"sglang": "sglang", "tensorrt-llm": "trtllm"}
"""Engines of rows, by the names that `planner.engine_capacity` calls them."""


def cell_bytes(row: Row, model: Model, start: Other) -> float:
    """Return the bytes of a token on a rank: as its own engine stores it, or as the model needs it.

    8-bit latents beside an indexer are the kernels' rows, the same in all engines.
    """
    engine = MODELLED.get(row["engine"], "")
    options: dict[str, Any] = {
        "cache_memory_bytes": 2**40,
        "cache_dtype": start.width,
        "max_model_len": 4096,
        "tp": start.tp,
    }
    if engine in SERVING:
        return float(engine_capacity(model, engine=engine, **options)["bytes_per_token"])
    if "kv_incl_index_gb" in row["printed"]:
        return float(engine_capacity(model, **options)["bytes_per_token"])
    return float(plan(model, dtype="bf16", cache_dtype=start.width).cache["bytes_per_token"]) / start.tp


def judged(quantity: str, unit: str, figure: float, predicted: float, note: str = "") -> Line:
    """Return a line whose prediction starts from given figures only: equal to the printed digits, or within 0.1 %."""
    text = str(figure)
    digits = len(text.partition(".")[2]) if "." in text else 0
    verdict = (
        "exact"
        if round(predicted, digits) == figure
        else "agrees"
        if abs(figure / predicted - 1) <= 0.001
        else "differs"
    )
    return Line(quantity, unit, figure, round(predicted, 4), verdict, note)


# --- llama.cpp and what is built on it


def llama_cpp(row: Row, config: Any) -> Iterator[Line]:
    """Yield what llama.cpp printed of its file and caches."""
    said, flags = row["printed"], row["flags"]
    types = {True: ("f16", "f16"), False: ("f32", "f32")}
    key, value = types[flags.get("f16_kv", True)] if "type_k" not in flags else (flags["type_k"], "f16")
    lines = ["print_info: general.name = x", f"n_ctx = {flags.get('n_ctx') or flags.get('num_ctx')}"]
    if "model_size_gib" in said:
        lines += [
            "print_info: file type   = Q4_0", f"print_info: file size   = {said['model_size_gib']} GiB ({said['bpw']} BPW)",
            f"print_info: model params     = {said['model_params_B']} B",
        ]  # fmt: skip
    if "params_B" in said:
        lines.append(f"print_info: model params     = {said['params_B']} B")
    for name in ("kv_self_size_mib", "kv_self_mib"):
        if name in said:
            values = 0.0 if flags.get("mla") else said[name] / 2
            lines.append(
                f"KV self size = {said[name]:.2f} MiB, K ({key}): {said[name] - values:.2f} MiB, V ({value}): {values:.2f} MiB"
            )
    if "kv_full_mib" in said:
        for cells, layers, size in ((flags["num_ctx"], 5, said["kv_full_mib"]), (1536, 29, said["kv_swa_mib"])):
            lines.append(
                f"llama_kv_cache: size = {size:.2f} MiB ({cells} cells, {layers} layers, 1/1 seqs), K (f16): {size / 2:.2f} MiB, V (f16): {size / 2:.2f} MiB"
            )
    found = checked("\n".join(lines), config)
    for line in found["lines"]:
        reason = LLAMA_NOTES.get((row["id"], line["quantity"]), "")
        yield judged(line["quantity"], line["unit"], line["printed"], line["predicted"], reason)
        for name, quantity in (("K_mib", "keys"), ("V_mib", "values")):
            if name in said:  # of equal widths
                yield judged(quantity, "MiB", said[name], line["predicted"] / 2)
    for name, figure in said.items():
        if name == "size_gib":
            yield Line(
                "size of the file", "GiB", figure, None, "not compared", "the file mixes types by a recipe of its own"
            )
        elif name in LEFT_OUT and name not in {"layers", "kv_lora_rank", "rope"}:
            yield Line(name.replace("_", " "), "", figure, None, "not compared", LEFT_OUT[name])


LLAMA_NOTES = {
    (
        "ikllama-263",
        "parameters",
    ): "the file holds the latents' projections up twice, 61 x 128 x 512 x (128 + 128) = 1.02 billion more",
    ("ik-259", "cache"): "printed with a digit cut off",
}
"""What is known of single figures."""


# --- the page


def lines_of(row: Row) -> list[Line]:
    """Return the lines of a row."""
    config = find(row)
    engine = row["engine"]
    if config is None:
        return [
            Line(key.replace("_", " "), "", value, None, "not compared", "the model's config isn't public")
            for key, value in row["printed"].items()
        ]
    if engine.startswith("vllm"):
        return list(vllm(row, config))
    return list(llama_cpp(row, config) if "llama" in engine and "kv_gib" not in row["printed"] else other(row, config))


def page(rows: list[Row]) -> str:
    """Return the page: a summary, then a section for each row."""
    made = [(row, lines_of(row)) for row in rows]
    totals = Counter(summed(line.quantity) for _, lines in made for line in lines)
    often = {quantity: quantity if count > 1 else "others" for quantity, count in totals.items()}
    counts = Counter((often[summed(line.quantity)], line.verdict) for _, lines in made for line in lines)
    quantities = sorted(dict.fromkeys(often.values()), key="others".__eq__)
    consistent = sum(row["verdict"] == "consistent" for row in rows)
    parts = [
        "# What engines printed, and what the planner says",
        "",
        f"{len(rows)} published start-up logs, {consistent} of them consistent in themselves. Every figure that a log prints stands beside a prediction from",
        "the model's config and the flags, or from the memory that the same log prints where that is said. Written by",
        "`python -m tests.engines.table`; a test fails when it no longer holds, where the collected logs lie beside the checkout.",
        "",
        *(f"- {verdict}: {meaning}" for verdict, meaning in VERDICTS.items()),
        "",
        f"| quantity | {' | '.join(VERDICTS)} |",
        f"|---|{'---|' * len(VERDICTS)}",
        *(f"| {quantity} | {' | '.join(str(counts[quantity, verdict] or '') for verdict in VERDICTS)} |" for quantity in quantities),
        "",
    ]  # fmt: skip
    for index, (row, lines) in enumerate(made, 1):
        parts += [*section(index, row, lines), ""]
    return "\n".join(parts)


def summed(quantity: str) -> str:
    """Return the quantity that a line counts as in the summary."""
    return quantity.replace(", of the printed blocks", "")


def section(index: int, row: Row, lines: list[Line]) -> Iterator[str]:
    """Yield a row's heading, where it is from, and its table."""
    flags = ", ".join(f"{key} {value}" for key, value in row["flags"].items() if value not in (None, "auto", False, 1))
    yield f"## {index}. {row['model'].strip()}"
    yield ""
    own = "" if row["verdict"] == "consistent" else f" Of itself: {row['verdict'].split(' (')[0]}."
    yield f"{row['engine']} {row['version']} on {row['hardware']}; {flags or 'no flags named'}. <{row['url']}>{own}"
    yield ""
    yield "| quantity | unit | printed | predicted | difference | verdict | |"
    yield "|---|---|---|---|---|---|---|"
    for line in lines:
        percent = "" if line.percent is None or line.verdict == "exact" else f"{line.percent:+.2f} %"
        cells = (line.quantity, line.unit, shown(line.printed), shown(line.predicted), percent, line.verdict, line.why)
        yield f"| {' | '.join(cells)} |"


def shown(value: Any) -> str:
    """Return a figure with its digits grouped."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) >= 1000:
        value = int(value)
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def rows_given(file: Path = ROWS) -> list[Row]:
    """Return the collected rows; none where they don't lie beside the checkout."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


if __name__ == "__main__":
    PAGE.write_text(page(rows_given()))
