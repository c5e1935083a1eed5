"""What SGLang prints when it starts: memory before and after loading, each pool with its tokens and sizes, slots for states.

The memory and the flags are taken as given; weights, tokens, slots and sizes are predicted (`planner.engines.sglang`). What it
calls GB are GiB. A draft model's lines come after the model's own and aren't compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from planner.engines import sglang
from planner.engines.capacity import Asked
from planner.engines.log import Entry, Log, Prediction, lines
from planner.engines.serving import GIB, LARGEST
from planner.errors import PlanError
from planner.model import Model
from planner.precision import resolve
from planner.shard import Parallel, device_shares
from planner.workload import workload

MINE = r"server_args=ServerArgs\(|KV Cache is allocated\.|\bmax_total_num_tokens="

GB = r"(\d+(?:\.\d+)?) ?GB"

LINES: tuple[tuple[str, str, str], ...] = (
    ("free memory before loading", "GiB", rf"Load weight begin\. avail mem={GB}"),
    ("weights", "GiB", rf"Load weight end\..*\bmem usage={GB}"),
    ("free memory", "GiB", rf"Load weight end\..*\bavail mem={GB}"),
    ("slots", "requests", r"max_mamba_cache_size: (\d+)"),
    ("convolutions", "GiB", rf"conv_state size: {GB}"),
    ("states", "GiB", rf"\bssm_state size: {GB}"),
    ("keys", "GiB", rf"KV Cache is allocated\..*\bK size: {GB}"),
    ("values", "GiB", rf"KV Cache is allocated\..*\bV size: {GB}"),
    ("cache", "GiB", rf"KV Cache is allocated\..*\bKV size: {GB}"),
    ("tokens", "tokens", r"\bmax_total_num_tokens=(\d+)"),
)
"""Quantity, unit, and how it is printed."""

FLAGS: dict[str, str] = {
    "model": "model_path", "dtype": "dtype", "kv_cache_dtype": "kv_cache_dtype", "quantization": "quantization",
    "mem_fraction_static": "mem_fraction_static", "context_length": "context_length", "page_size": "page_size",
    "max_running_requests": "max_running_requests", "max_total_tokens": "max_total_tokens", "tp_size": "tp_size",
    "pp_size": "pp_size", "ep_size": "ep_size", "dp_size": "dp_size", "enable_dp_attention": "enable_dp_attention",
    "attention_backend": "attention_backend", "swa_full_tokens_ratio": "swa_full_tokens_ratio",
    "disable_hybrid_swa_memory": "disable_hybrid_swa_memory", "disable_radix_cache": "disable_radix_cache",
    "max_mamba_cache_size": "max_mamba_cache_size", "mamba_full_memory_ratio": "mamba_full_memory_ratio",
    "speculative_algorithm": "speculative_algorithm",
}  # fmt: skip
"""Flags that change a prediction, by the names that the first line calls them."""

TEXTS = {"model", "dtype", "kv_cache_dtype", "quantization", "attention_backend", "speculative_algorithm"}

SHARES = {"mem_fraction_static", "swa_full_tokens_ratio", "mamba_full_memory_ratio"}

COMMAND = {"model-path": "model", "model": "model", "tp": "tp_size", "pp": "pp_size", "dp": "dp_size"}
"""What a command line calls otherwise."""

MORE_WEIGHTS = 0.3
"""GiB that loading takes beyond the tensors, at most: rotary tables, latents' second copies, fragments."""


LOST = 0.3
"""GiB that may be gone between the end of loading and the pools, from 0.5.10 on: 0.03 in a log of 0.5.10, 0.30 in one of 0.5.18
(0.10 for images), which isn't explained; none in logs of 0.4.3 to 0.5.8."""


def wrote(text: str) -> bool:
    """Return whether a log is SGLang's."""
    return re.search(MINE, text) is not None


def parse(text: str) -> Log:
    """Return what the lines of a log say."""
    version: str | None = None
    flags: dict[str, Any] = {}
    entries: list[Entry] = []
    for number, line in lines(text):
        if match := re.search(r"\bsglang(?:\[\w+\])?(?:==|[-_ ]v?|:v?)(\d+\.\d+\.\d+[\w.]*)", line):
            version = match[1]
        flags |= {flag: value for flag, value in _flags(line) if _sensible(flag, value)}
        if match := re.search(r"Load weight end\..*\bquant=(\w+)", line):
            flags.setdefault("quantization", match[1])
        if match := re.search(r"\bcontext_len=(\d+)", line):
            flags.setdefault("context_length", int(match[1]))
        if match := re.search(r"KV Cache is allocated\..*#tokens: (\d+)", line):
            flags.setdefault("pools", {})[str(number)] = int(match[1])
        entries += _entries(number, line)
    return Log(version, flags, tuple(entries), "sglang")


def _flags(line: str) -> Iterator[tuple[str, Any]]:
    if "ServerArgs(" in line:
        for flag, name in FLAGS.items():
            match = re.search(rf"(?<![\w.]){name}=('[^']*'|[^,)\s]+)", line)
            value = match[1].strip("'") if match else "None"
            if value not in {"None", "", "auto", "-1"}:
                yield flag, _typed(value)
    elif "sglang" in line and "--" in line:
        for name, value in re.findall(r"--([\w-]+)(?:[= ]([^-\s]\S*))?", line):
            flag = COMMAND.get(name, name.replace("-", "_"))
            if flag in FLAGS:
                yield flag, _typed(value) if value else True


def _sensible(flag: str, value: Any) -> bool:
    """Return whether a flag can have a value: lines may be cut or damaged."""
    if flag in TEXTS:
        return isinstance(value, str)
    if flag in SHARES:
        return (
            isinstance(value, float | int)
            and not isinstance(value, bool)
            and 0 < value <= (100 if flag == "mamba_full_memory_ratio" else 1)
        )
    if flag.startswith(("enable_", "disable_")):
        return isinstance(value, bool)
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < LARGEST


def _typed(text: str) -> Any:
    if text in {"True", "False"}:
        return text == "True"
    if re.fullmatch(r"\d+", text):
        return int(text)
    return float(text) if re.fullmatch(r"\d*\.\d+", text) else text


def _entries(number: int, line: str) -> Iterator[Entry]:
    rank = re.search(r"(?<![A-Za-z])PP(\d+)", line)
    for quantity, unit, pattern in LINES:
        if match := re.search(pattern, line):
            digits = len(match[1].partition(".")[2])
            half = 0.5 * 10**-digits if unit == "GiB" else 0.0
            yield Entry(number, line, quantity, unit, float(match[1]), half, None, int(rank[1]) if rank else 0)


# --- predictions


def predictions(log: Log, model: Model, notes: list[str]) -> Callable[[Entry], Prediction | None]:
    """Return what predicts each figure of a log; it notes what it can't."""
    return _Check(log, model, notes).predict


class _Check:
    """One log beside one model."""

    def __init__(self, log: Log, model: Model, notes: list[str]) -> None:
        self.log, self.notes, self.given = log, notes, log.flags
        self.version = self._version()
        kept = {name: value for name, value in self.given.items() if name in sglang.Flags._fields}
        flags = sglang.Flags(**{**kept, "dp_size": int(self.given.get("dp_size", 1))})
        self.model = replace(model, engine=replace(sglang.engine(self.version, ()), flags=flags))
        self.flags = flags
        self.tp, self.pp = (int(self.given.get(name, 1)) for name in ("tp_size", "pp_size"))
        self.first = self._first()
        if flags.speculative_algorithm:
            notes.append(
                "speculative_algorithm: the draft's weights and pool come out of the same memory, and aren't compared"
            )

    def _version(self) -> str:
        try:
            sglang.parsed(self.log.version or "")
        except PlanError:
            told = f"the rules of {self.log.version} aren't known" if self.log.version else "no line says which version"
            self.notes.append(f"{told}; SGLang {sglang.NEWEST_TEXT}'s are used")
            return sglang.NEWEST_TEXT
        return str(self.log.version)

    def _first(self) -> str:
        """Return the class of the model, the first that is loaded."""
        types = (re.search(r"\btype=(\w+)", entry.text) for entry in self.log.printed("weights"))
        return next((match[1] for match in types if match), "")

    def predict(self, entry: Entry) -> Prediction | None:
        """Return what the planner says in place of a figure; None: it doesn't."""
        try:
            match entry.quantity:
                case "weights":
                    return self._weights(entry)
                case "keys" | "values" | "cache":
                    return self._sizes(entry)
                case "slots" | "tokens":
                    return self._counts(entry)
                case "convolutions" | "states":
                    return self._states(entry)
        except PlanError as error:
            self.notes.append(f"the {entry.quantity} aren't compared: {error}")
        return None

    def _weights(self, entry: Entry) -> Prediction | None:
        if self.first and f"type={self.first}" not in entry.text:
            return None
        asked = self.given.get("quantization")
        if asked and asked != "fp8" and self.model.quantization is None:
            self.notes.append(f"weights aren't compared: the log says {asked}, and the config says nothing of it")
            return None
        weights = "fp8" if asked == "fp8" and self.model.quantization is None else None
        precision = resolve(self.model, dtype=self.given.get("dtype"), weights=weights)
        work, _ = workload(self.model, prompt=1, generate=0) if self.model.generates else workload(self.model)
        groups = self.flags.dp_size if self.flags.enable_dp_attention else 1
        parallel = Parallel(self.tp, self.pp, int(self.given.get("ep_size", 1)), attention_groups=groups)
        shares = device_shares(self.model, precision, work, parallel)
        value = shares[min(entry.stage, self.pp - 1)].weight_bytes / GIB
        return Prediction(value, value, value + MORE_WEIGHTS)

    def _made(self, memory: int) -> dict[str, Any]:
        return sglang.capacity(
            self.model,
            Asked(
                memory, self.version, max_model_len=self.given.get("context_length"), tp=self.tp, pp=self.pp,
                cache_dtype=self.given.get("kv_cache_dtype"), dtype=self.given.get("dtype"),
            ),
        )  # fmt: skip

    def _sizes(self, entry: Entry) -> Prediction | None:
        """Return a pool's size from its printed tokens: of the pool among the model's that it fits."""
        tokens = self.given.get("pools", {}).get(str(entry.number)) or next(
            (int(total.value) for total in self.log.printed("tokens")), None
        )
        if tokens is None:
            return None
        name = {"keys": "K", "values": "V", "cache": "KV"}[entry.quantity]
        made = self._made(2**50)
        sizes = [
            group[name] / (group["tokens"] + made["block_size"]) * (tokens + made["block_size"])
            for group in made["groups"]
            if name in group
        ]
        if not sizes:
            return None
        nearest = min(sizes, key=lambda size: abs(size - entry.value))
        earlier = [
            each
            for each in self.log.printed(entry.quantity)
            if each.number < entry.number and each.stage == entry.stage
        ]
        if len(earlier) >= len(sizes) and abs(nearest - entry.value) > entry.half:
            self.notes.append("a pool beside the model's own is a draft's: not compared")
            return None
        return Prediction(nearest, nearest, nearest)

    def _memories(self) -> list[int]:
        """Return bytes for pools: as printed, and the least and most that are printed so."""
        share = self.flags.mem_fraction_static
        after = [
            each for each in self.log.printed("free memory") if not self.first or f"type={self.first}" in each.text
        ]
        before = self.log.printed("free memory before loading")[: len(after)]
        if share is None or not after:
            return []
        used = [each.value for each in self.log.printed("weights")]
        left = min(after, key=lambda each: each.value)
        start = min((each.value for each in before), default=left.value + used[0] if used else 0.0)
        if not start:
            return []
        half = left.half + (1 - share) * left.half * (1 if before else 2) + 1e-9
        value = left.value - start * (1 - share)
        lost = LOST if sglang.parsed(self.version) >= (0, 5, 10) else 0
        return [int(each * GIB) for each in (value, value - half - lost, value + half)]

    def _counts(self, entry: Entry) -> Prediction | None:
        memories = self._memories()
        if not memories or (self.flags.speculative_algorithm and entry.quantity == "tokens"):
            return None
        made = [self._made(max(memory, 1)) for memory in memories]
        if entry.quantity == "slots":
            figures = [float(group["slots"]) for each in made for group in each["groups"] if "slots" in group]
            return Prediction(*figures) if len(figures) == 3 else None
        value, *ends = (float(each["tokens"]) for each in made)
        slot = max(
            (group["page_bytes"] * group["layers"] for group in made[0]["groups"] if "slots" in group), default=0
        )
        spread = slot // max(made[0]["bytes_per_token"], 1)  # a slot more or less
        return Prediction(value, min(ends) - spread, max(ends) + spread)

    def _states(self, entry: Entry) -> Prediction | None:
        """Return the size of the states of so many slots, and of one that pads."""
        slots = next((int(each.value) for each in self.log.printed("slots") if each.number == entry.number), None)
        if slots is None:
            return None
        convolution, recurrent = sglang.slot_bytes(self.model, self.tp, self.flags)
        value = (slots + 1) * (convolution if entry.quantity == "convolutions" else recurrent) / GIB
        return Prediction(value, value, value)
