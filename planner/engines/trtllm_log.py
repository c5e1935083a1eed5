"""What TensorRT-LLM prints when it starts: memory that is free or that a profiling run left, bytes of a token, blocks, tokens.

The memory and the flags are taken as given; the rest is predicted (`planner.engines.trtllm`). The PyTorch runtime first builds a
small cache for its profiling run, whose tokens aren't compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from planner.engines import trtllm
from planner.engines.capacity import Asked
from planner.engines.log import Entry, Log, Prediction, lines
from planner.engines.serving import GIB
from planner.errors import PlanError
from planner.model import Model
from planner.precision import canonical, resolve
from planner.shard import Parallel, device_shares
from planner.workload import workload

MINE = r"\[TensorRT-LLM\]|\[TRT-LLM\]"

AMOUNT = r"(\d+(?:\.\d+)?) GiB"

LINES: tuple[tuple[str, str, str], ...] = (
    ("free memory", "GiB", rf"calculating max tokens in paged kv cache: total: [\d.]+ GiB, available: {AMOUNT}"),
    ("weights", "GiB", rf"after loading model weights \(inside torch\).*?: {AMOUNT}"),
    ("cache memory", "GiB", rf"available KV cache memory when calculating max tokens: {AMOUNT}"),
    ("bytes per token", "bytes", r"\bkv size(?: per token)? is (\d+)"),
    ("blocks", "blocks", r"Number of blocks in KV cache primary pool: (\d+)"),
    ("tokens", "tokens", r"for max tokens in paged KV cache \((\d+)\)"),
    ("tokens", "tokens", r"Using (\d+) tokens in paged KV cache"),
    ("cache", "GiB", rf"Allocated {AMOUNT} for max tokens in paged KV cache"),
    ("cache", "bytes", r"Allocate (\d+) bytes for k/v cache"),
)
"""Quantity, unit, and how it is printed."""

FLAGS: tuple[tuple[str, str], ...] = (
    ("model", r"(?:^Model: +|\bmodel(?:_path|_dir)?=')([^',\s]+)"),
    ("tensor_parallel_size", r"\b(?:tensor_parallel_size|tp_size|TP Size)['\"]?[=: ]+(\d+)"),
    ("pipeline_parallel_size", r"\b(?:pipeline_parallel_size|pp_size|PP Size)['\"]?[=: ]+(\d+)"),
    ("kv_cache_dtype", r"(?:kv_cache_dtype['\"]?\s*[=:]\s*['\"]|KV Cache Dtype: +)(\w+)"),
    ("free_gpu_memory_fraction", r"fraction is set (0?\.\d+)|kv_cache_free_gpu_mem\w*_fraction\D{0,3}(0?\.\d+)|fraction and max_tokens are set \(to (0?\.\d+)"),
    ("tokens_per_block", r"[Nn]umber of tokens per block: (\d+)|tokens per block=(\d+)"),
    ("max_seq_len", r"\bmax_seq_len=(\d+)|Max Sequence Length: +(\d+)|inferred value (\d+)"),
)  # fmt: skip
"""Flags that change a prediction, and how lines say them; the first that is said counts, a window that is reduced doesn't."""

LAST_WINS = {"free_gpu_memory_fraction"}

PROFILED = (
    rf"memory usage profiling \(torch \+ non-torch\): {AMOUNT}, .*fraction is set ([\d.]+), .*"
    rf"device total memory {AMOUNT}(?:, ,? ?(?:tmp kv_mem|temporary kv cache memory during profiling) *{AMOUNT})?"
)

MORE_WEIGHTS = 0.35
"""GiB that loading takes beyond the tensors, at most."""


def wrote(text: str) -> bool:
    """Return whether a log is TensorRT-LLM's."""
    return re.search(MINE, text) is not None


def parse(text: str) -> Log:
    """Return what the lines of a log say."""
    version: str | None = None
    flags: dict[str, Any] = {}
    entries: list[Entry] = []
    for number, line in lines(text):
        if match := re.search(r"(?:TensorRT[- ]LLM|Engine) [Vv]ersion:? *(\d+\.\d+[\w.]*)", line):
            version = match[1]
        for flag, pattern in FLAGS:
            if (match := re.search(pattern, line)) and (flag not in flags or flag in LAST_WINS):
                value = next(group for group in match.groups() if group)
                flags[flag] = (
                    int(value) if value.isdecimal() else float(value) if re.fullmatch(r"[\d.]+", value) else value
                )
        entries += _entries(number, line)
    return Log(version, flags, tuple(entries), "trtllm")


def _entries(number: int, line: str) -> Iterator[Entry]:
    for quantity, unit, pattern in LINES:
        if match := re.search(pattern, line):
            digits = len(match[1].partition(".")[2])
            yield Entry(
                number, line, quantity, unit, float(match[1]), 0.5 * 10**-digits if unit == "GiB" else 0.0, None, 0
            )


# --- predictions


def predictions(log: Log, model: Model, notes: list[str]) -> Callable[[Entry], Prediction | None]:
    """Return what predicts each figure of a log; it notes what it can't."""
    return _Check(log, model, notes).predict


class _Check:
    """One log beside one model."""

    def __init__(self, log: Log, model: Model, notes: list[str]) -> None:
        self.log, self.notes, self.given = log, notes, log.flags
        self.version = self._version()
        kept = {name: value for name, value in self.given.items() if name in {"tokens_per_block", "max_seq_len"}}
        if self.given.get("kv_cache_dtype") == trtllm.PACKED:
            kept["kv_cache_dtype"] = trtllm.PACKED
        flags = trtllm.Flags(**kept)
        self.model = replace(model, engine=replace(trtllm.engine(self.version, ()), flags=flags))
        self.tp, self.pp = (int(self.given.get(f"{name}_parallel_size", 1)) for name in ("tensor", "pipeline"))
        self.dtype = self._dtype()
        self.share = float(self.given.get("free_gpu_memory_fraction", trtllm.FREE_SHARE))
        if "free_gpu_memory_fraction" not in self.given and log.printed("free memory"):
            notes.append(f"no line says which share of the free memory the cache gets: {self.share:g}, the default")

    def _version(self) -> str:
        try:
            trtllm.parsed(self.log.version or "")
        except PlanError:
            told = f"the rules of {self.log.version} aren't known" if self.log.version else "no line says which version"
            self.notes.append(f"{told}; TensorRT-LLM {trtllm.NEWEST_TEXT}'s are used")
            return trtllm.NEWEST_TEXT
        return str(self.log.version)

    def _dtype(self) -> str | None:
        """Return the cache's dtype: as printed, else 8 bits where a pool has half the model's bytes a token."""
        said = self.given.get("kv_cache_dtype")
        if said and str(said).lower() not in {"auto", "none", trtllm.PACKED}:
            return "int8" if str(said).lower() == "int8" else canonical(str(said), "kv_cache_dtype")
        for size, tokens in self._pools():
            plain, narrow = (tokens * self._token_bytes(name) for name in (None, "fp8"))
            if abs(size - narrow) < abs(size - plain):
                self.notes.append("no line says what the cache's elements are: 8 bits, by the size of its pool")
                return "fp8"
        return None

    def _pools(self) -> Iterator[tuple[float, int]]:
        """Yield bytes and tokens of pools that are printed with both."""
        tokens = {entry.number: int(entry.value) for entry in self.log.printed("tokens")}
        for entry in self.log.printed("cache"):
            if entry.number in tokens:
                yield entry.value * (GIB if entry.unit == "GiB" else 1), tokens[entry.number]
        for entry in self.log.printed("bytes per token"):
            yield entry.value, 1

    def _token_bytes(self, dtype: str | None) -> float:
        try:
            return float(self._made(2**50, dtype)["bytes_per_token"])
        except PlanError:
            return 0.0

    def _made(self, memory: int, dtype: str | None) -> dict[str, Any]:
        return trtllm.capacity(self.model, Asked(memory, self.version, tp=self.tp, pp=self.pp, cache_dtype=dtype))

    def predict(self, entry: Entry) -> Prediction | None:
        """Return what the planner says in place of a figure; None: it doesn't."""
        try:
            match entry.quantity:
                case "weights":
                    return self._weights()
                case "cache memory":
                    return _profiled(entry)
                case "bytes per token":
                    value = self._made(2**50, self.dtype)["bytes_per_token"]
                    return Prediction(value, value, value)
                case "cache":
                    return self._size(entry)
                case "blocks" | "tokens":
                    return self._counts(entry)
        except PlanError as error:
            self.notes.append(f"the {entry.quantity} aren't compared: {error}")
        return None

    def _weights(self) -> Prediction | None:
        work, _ = workload(self.model, prompt=1, generate=0) if self.model.generates else workload(self.model)
        shares = device_shares(self.model, resolve(self.model), work, Parallel(self.tp, self.pp))
        value = shares[0].weight_bytes / GIB
        return Prediction(value, value, value + MORE_WEIGHTS)

    def _size(self, entry: Entry) -> Prediction | None:
        tokens = [each for each in self.log.printed("tokens") if each.number >= entry.number]
        if not tokens:
            return None
        size = tokens[0].value * self._made(2**50, self.dtype)["bytes_per_token"]
        value = size / GIB if entry.unit == "GiB" else size
        return Prediction(value, value, value)

    def _counts(self, entry: Entry) -> Prediction | None:
        """Return blocks or tokens from the memory that is printed before them, and the next count of its kind after it."""
        sources = [
            each
            for each in (*self.log.printed("free memory"), *self.log.printed("cache memory"))
            if each.number < entry.number
        ]
        if not sources:
            return None
        source = max(sources, key=lambda each: each.number)
        share = self.share if source.quantity == "free memory" else 1.0
        memories = [
            int(share * each * GIB) for each in (source.value, source.value - source.half, source.value + source.half)
        ]
        figures = [float(self._made(memory, self.dtype)[entry.quantity]) for memory in memories]
        return Prediction(*figures)


def _profiled(entry: Entry) -> Prediction | None:
    """Return what a profiling run leaves: (device - peak + the run's own cache) x share, of printed figures."""
    match = re.search(PROFILED, entry.text)
    if not match:
        return None
    peak, share, device, own = (float(each or 0) for each in match.groups())
    value = (device - peak + own) * share
    half = 3 * 0.005 * share
    return Prediction(value, value - half, value + half)
