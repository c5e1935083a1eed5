"""What an engine makes of an amount of cache memory, as its start-up log prints it: one question, asked of any engine.

Every engine's module answers `capacity(model, asked)`; what they have in common, the checks of what was asked, is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from planner.engines import SERVING
from planner.errors import PlanError
from planner.model import Model

Device = Literal["cpu", "cuda"]


class Asked(NamedTuple):
    """What `engine_capacity` was asked; None: the engine's default."""

    cache_memory_bytes: int
    version: str | None = None
    device: Device = "cuda"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    block_size: int | None = None
    cache_dtype: str | None = None
    tp: int = 1
    pp: int = 1
    max_num_batched_tokens: int | None = None
    dtype: str | None = None
    state_dtype: str | None = None
    prefix_caching: bool | None = None


COUNTS = ("cache_memory_bytes", "max_model_len", "max_num_seqs", "block_size", "tp", "pp", "max_num_batched_tokens")
"""What must be a whole number from 1."""


def engine_capacity(
    config: str | Path | Mapping[str, Any] | Model, *, engine: str = "vllm", **asked: Any
) -> dict[str, Any]:
    """Return what an engine reports for an amount of cache memory on each device.

    Args:
        config: path, bundled name, dict or loaded model.
        engine: "vllm", "sglang", "trtllm" or "llama.cpp"; "@version" may follow.
        **asked: of these, all but the first have defaults:
            cache_memory_bytes: for the cache, on each rank ("Available KV cache memory").
            version: of the engine, 0.6 to 0.32 for vLLM, default: the newest known. device: "cpu" or "cuda" (default).
            max_model_len: default: the config's positions. max_num_seqs: bounds the tokens of a step by default.
            block_size: tokens of a block, default: by device and model. cache_dtype: of rows, default: the model's dtype.
            tp, pp: ranks that share heads, and layers. max_num_batched_tokens: of a step, default: by device.
            dtype, state_dtype: of the model and of recurrent states, defaults: the config's (fp32 is cast to 16 bits).
            prefix_caching: default: as the version does; it matters for models with recurrent states only.

    Returns:
        tokens, concurrency: as printed. blocks: of the pool. block_size: the smallest of all groups.
        bytes_per_token: of a token's rows in all layers of the fullest rank.
        groups: layers, kind, block_size, page_bytes (of its first layer), of the fullest rank.

    Raises:
        PlanError: no such engine, version or device; a cache that it has no spec for; less memory than one request needs.

    >>> engine_capacity("llama3-8b", cache_memory_bytes=2**30, max_model_len=4096)["tokens"]
    8192
    """
    name, _, version = engine.partition("@")
    if name not in SERVING:
        raise PlanError(
            f"found {engine!r}, allowed are {', '.join(SERVING)}",
            where="engine",
            fix="no other engine's log is modelled",
        )
    unknown = [key for key in asked if key not in Asked._fields]
    if unknown:
        raise PlanError(f"found {unknown[0]!r}", where="engine_capacity", fix=f"choose of {', '.join(Asked._fields)}")
    if version:
        asked.setdefault("version", version)
    if asked.get("device", "cuda") not in {"cpu", "cuda"}:
        raise PlanError(
            f"found {asked['device']!r}, allowed are cpu and cuda", where="device", fix="choose one of these"
        )
    if asked.get("cache_memory_bytes") is None:
        raise PlanError("missing", where="cache_memory_bytes", fix="give the bytes for the cache on each rank")
    for key in COUNTS:
        value = asked.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise PlanError(f"found {value!r}, a whole number from 1 is needed", where=key, fix="correct it")
    for key in ("tp", "pp"):
        asked[key] = asked.get(key) or 1
    from planner.api import load  # noqa: PLC0415 - plans need this module too

    model = config if isinstance(config, Model) else load(config)
    found: dict[str, Any] = import_module(SERVING[name]).capacity(model, Asked(**asked))
    return found


def engine_memory(
    config: str | Path | Mapping[str, Any] | Model, *, hardware: str | Path, engine: str = "vllm", **options: Any
) -> dict[str, Any]:
    """Return what an engine does with a device's memory when it starts, from flags alone: `memory.engine` of a plan.

    Args:
        config: path, bundled name, dict or model loaded with the engine. hardware: name of a profile, or its file.
        engine: whose rules, "@version" may follow. **options: of `plan`: engine_set, tp, pp, dtype, weights, cache_dtype.

    Returns:
        bytes of the device that leaves least for the cache: budget, weights, activations, runtime, graphs,
        available_cache (low, high: the least and most that it may be), required, reserved; starts; problem; capacity: as
        of `engine_capacity`; flags after defaults.

    Raises:
        PlanError: anything that a person can get wrong.

    >>> engine_memory("llama3-8b", hardware="h100-sxm", engine="vllm@0.19")["capacity"]["block_size"]
    16
    """
    from planner.api import plan  # noqa: PLC0415 - plans need this module too

    named = {} if isinstance(config, Model) else {"engine": engine}
    made = plan(config, hardware=hardware, **named, **options)
    found: dict[str, Any] = (made.memory or {}).get("engine") or {}
    if not found:
        raise PlanError(
            f"found {engine!r}, which sets nothing aside", where="engine", fix=f"choose of {', '.join(SERVING)}"
        )
    basis = made.basis["memory.engine.available_cache"]
    return found | {"low": basis["low"], "high": basis["high"]}
