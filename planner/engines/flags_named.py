"""How each program is told what a plan's options say: its flags by their own names, as data.

`fit` searches only what the program that was asked for can be told, and says it in that program's words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from planner.errors import PlanError
from planner.shard import Parallel


class Named(NamedTuple):
    """The flags of one program.

    Attributes:
        flags: by what they set, with "{}" for the value. A plan's options by their own names, and, where a program counts
            otherwise: "context": tokens of a sequence, "rows": those of all, "share": of the device,
            "gpu_layers": layers and the head that are
            not in the host's memory, "cpu_experts": layers from the first on whose experts are.
        caches, weights: formats that may be narrower than those asked for, in the order tried, and how to say so; "": it
            is a matter of the checkpoint.
        compared: weight formats, and cached: those of the cache, that are listed beside the one asked for.
        share: of a device that the engine may use, among its own `Flags`; "": it has none.
        length: of the longest request that it is told to expect, likewise.
        experts: which numbers of ranks can divide experts: "any", "all" of a stage's, or those that divide "tp".
        source: of the names.
    """

    flags: Mapping[str, str]
    caches: Mapping[str, str]
    weights: Mapping[str, str]
    compared: tuple[str, ...] = ("bf16", "fp8", "int8", "awq-int4-g128", "q4_k_m")
    cached: tuple[str, ...] = ("bf16", "fp8")
    experts: str = "any"
    share: str = ""
    length: str = ""
    source: str = ""

    def allows(self, parallel: Parallel) -> bool:
        """Return whether the program can be told to spread a model so."""
        sizes = {name: getattr(parallel, name) for name in ("tp", "pp", "ep", "dp", "cp")}
        if any(size > 1 and name not in self.flags for name, size in sizes.items()):
            return False
        if parallel.ep == 1 or self.experts == "any":
            return True
        return parallel.ep == parallel.stage_devices if self.experts == "all" else parallel.tp % parallel.ep == 0

    def said(self, values: Mapping[str, Any]) -> str:
        """Return the flags that set these values, without those that the program has no flag for."""
        return " ".join(self.flags[name].format(value) for name, value in values.items() if name in self.flags)


SERVED = {
    name: "--" + name.replace("_", "-") + " {}"
    for name in (
        "prompt", "generate", "batch", "cache_dtype", "weights", "offload_experts", "offload_layers", "offload_gb",
        "gpus", "tp", "pp", "ep", "dp", "cp",
    )
}  # fmt: skip

OWN = Named(
    SERVED,
    caches={"fp8": "--cache-dtype fp8"},
    weights={"fp8": "--weights fp8", "awq-int4-g128": "--weights awq-int4-g128"},
    source="plan --help",
)
"""The plan's own options, for programs that aren't started with flags."""

NAMED = {
    "vllm": Named(
        {
            "share": "--gpu-memory-utilization {}",
            "context": "--max-model-len {}",
            "batch": "--max-num-seqs {}",
            "offload_gb": "--cpu-offload-gb {}",
            "tp": "--tensor-parallel-size {}",
            "pp": "--pipeline-parallel-size {}",
            "ep": "--enable-expert-parallel",
            "dp": "--data-parallel-size {}",
        },
        caches={"fp8": "--kv-cache-dtype fp8"},
        weights={"fp8": "--quantization fp8", "awq-int4-g128": ""},
        experts="all",
        share="gpu_memory_utilization",
        length="max_model_len",
        source="vLLM 0.32.0, engine/arg_utils.py; what --prefill-context-parallel-size takes isn't modelled",
    ),
    "sglang": Named(
        {
            "share": "--mem-fraction-static {}",
            "context": "--context-length {}",
            "batch": "--max-running-requests {}",
            "offload_gb": "--cpu-offload-gb {}",
            "tp": "--tp-size {}",
            "pp": "--pp-size {}",
            "ep": "--ep-size {}",
            "dp": "--dp-size {}",
        },
        caches={"fp8": "--kv-cache-dtype fp8_e4m3"},
        weights={"fp8": "--quantization fp8", "awq-int4-g128": ""},
        experts="tp",
        share="mem_fraction_static",
        length="context_length",
        source="docs.sglang.io, advanced_features/server_arguments",
    ),
    "trtllm": Named(
        {
            "share": "--kv_cache_free_gpu_memory_fraction {}",
            "context": "--max_seq_len {}",
            "batch": "--max_batch_size {}",
            "tp": "--tp_size {}",
            "pp": "--pp_size {}",
            "ep": "--ep_size {}",
        },
        caches={"fp8": "--kv_cache_dtype fp8"},
        weights={"fp8": "", "awq-int4-g128": ""},
        experts="tp",
        share="free_gpu_memory_fraction",
        length="max_seq_len",
        source="nvidia.github.io/TensorRT-LLM, commands/trtllm-serve",
    ),
    "llama.cpp": Named(
        {
            "rows": "--ctx-size {}",
            "batch": "--parallel {}",
            "gpu_layers": "--n-gpu-layers {}",
            "cpu_experts": "--n-cpu-moe {}",
            "pp": "--split-mode layer",
        },
        caches={
            "q8_0": "--cache-type-k q8_0 --cache-type-v q8_0",
            "q4_0": "--cache-type-k q4_0 --cache-type-v q4_0",
        },
        weights={"q8_0": "", "q4_k_m": ""},
        compared=("bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m"),
        cached=("fp16", "q8_0", "q4_0"),
        source="llama.cpp, common/arg.cpp and src/llama-model.cpp (load_tensors)",
    ),
}


def named(engine: str) -> Named:
    """Return the flags of a program; the plan's own options where it has none."""
    return NAMED.get(engine, OWN)


def untold(engine: str, parallel: Parallel) -> PlanError | None:
    """Return that a program has no flags to spread a model so; None: it has."""
    if named(engine).allows(parallel):
        return None
    sizes = ((name, getattr(parallel, name)) for name in ("tp", "pp", "ep", "dp", "cp"))
    given = ", ".join(f"{name} {size}" for name, size in sizes if size > 1)
    known = [name for name in ("tp", "pp", "ep", "dp", "cp") if name in named(engine).flags]
    limit = {"all": "; ep is that of all devices of a stage", "tp": "; ep divides tp"}.get(named(engine).experts, "")
    return PlanError(
        f"{engine} has no flags for {given}: it knows {', '.join(known)}{limit * ('ep' in known)}",
        where=", ".join(f"--{name}" for name in ("tp", "pp", "ep", "dp", "cp") if getattr(parallel, name) > 1),
        fix="choose others",
    )
