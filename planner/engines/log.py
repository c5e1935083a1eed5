"""What an engine printed when it started, line by line beside what the planner says of the same model and flags.

vLLM prints flags, the weights of each rank, the memory left for the cache, and what it made of it: blocks, tokens,
concurrency. The printed memory and flags are taken as given; everything else is predicted, weights by `planner.shard`, the
cache by `planner.engines.vllm`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import profiles
from planner.api import load
from planner.engines import vllm
from planner.engines.capacity import Asked
from planner.engines.serving import Reserve
from planner.engines.vllm_memory import loaded, reserve
from planner.errors import PlanError
from planner.model import Model
from planner.precision import Precision, canonical, resolve
from planner.shard import Parallel
from planner.workload import Workload

GIB = 2**30

LARGEST_LOG_BYTES = 64 * 2**20
"""Start-up is in the first lines; a log of more is cut with a tool for that."""

SWAPS = (0, 11)
"""The first version without swap space for blocks on the CPU."""

TOLERANCES = {
    "tokens": 0.1,
    "blocks": 0.1,
    "weights": 1.0,
    "cache memory": 3.0,
    "cache memory of one request": 0.1,
    "cache": 0.1,
    "estimated cache": 0.1,
    "states": 0.1,
    "output buffer": 0.1,
    "compute buffer": 1.0,
    "host compute buffer": 1.0,
    "parameters": 0.1,
    "blocks on the CPU": 0.1,
    "longest request": 0.1,
}
"""Percent, beside what rounding of the printed memory allows. Concurrency is compared to the printed digits."""

HEADERS = (
    r"non-default args:", r"\bargs: Namespace\(", r"Initializing an? (?:V\d )?LLM engine", r"Chunked prefill is enabled with",
    r"total_gpu_memory \([\d.]+GiB\) x ",
)  # fmt: skip
"""What lines with flags start with; later ones win."""

FLAGS: dict[str, tuple[str, ...]] = {
    "model": ("model", "model_tag"),
    "dtype": ("dtype",),
    "quantization": ("quantization",),
    "kv_cache_dtype": ("kv_cache_dtype",),
    "max_model_len": ("max_seq_len", "max_model_len"),
    "max_num_batched_tokens": ("max_num_batched_tokens",),
    "max_num_seqs": ("max_num_seqs",),
    "block_size": ("block_size",),
    "tensor_parallel_size": ("tensor_parallel_size",),
    "pipeline_parallel_size": ("pipeline_parallel_size",),
    "data_parallel_size": ("data_parallel_size",),
    "enable_expert_parallel": ("enable_expert_parallel",),
    "enable_prefix_caching": ("enable_prefix_caching",),
    "gpu_memory_utilization": ("gpu_memory_utilization",),
    "enforce_eager": ("enforce_eager",),
    "swap_space": ("swap_space",),
    "device": ("device_config", "device"),
    "speculative_config": ("speculative_config",),
}
"""Flags that change a prediction, by the names that lines call them."""

WHOLE = {flag for flag in FLAGS if flag.startswith("max_") or flag.endswith("_size")}
"""Flags that are whole numbers."""

AMOUNT = r"(\d+(?:\.\d+)?) ?Gi?B"
COUNT = r"(\d[\d,]*)"

LINES: tuple[tuple[str, str, str], ...] = (
    ("weights", "GiB", rf"(?:Model loading|Loading model weights) took {AMOUNT}"),
    ("weights", "GiB", rf"model weights take {AMOUNT}"),
    ("activations", "GiB", rf"activation peak memory takes {AMOUNT}"),
    ("activations", "GiB", rf"{AMOUNT} for peak activation"),
    ("runtime", "GiB", rf"non_torch_memory takes {AMOUNT}"),
    ("runtime", "GiB", rf"{AMOUNT} for non-torch memory"),
    ("graphs", "GiB", rf"{AMOUNT} for CUDAGraph memory"),
    ("cache memory", "GiB", rf"Available KV cache memory: {AMOUNT}"),
    ("cache memory", "GiB", rf"reserved for KV Cache is {AMOUNT}"),
    ("cache memory", "GiB", rf"\bkv_cache_size={AMOUNT}"),
    ("cache memory", "GiB", rf"larger than the available KV cache memory \({AMOUNT}"),
    ("cache memory of one request", "GiB", rf"\(?{AMOUNT} KV cache is needed"),
    ("tokens", "tokens", rf"[GC]PU KV cache size: {COUNT} tokens"),
    ("tokens", "tokens", rf"can be stored in (?:the )?KV cache \({COUNT}\)"),
    ("blocks", "blocks", rf"# (?:GPU|cuda) blocks: {COUNT}"),
    ("blocks", "blocks", rf"num_gpu_blocks is:? {COUNT}"),
    ("blocks on the CPU", "blocks", rf"# CPU blocks: {COUNT}"),
    ("longest request", "tokens", rf"estimated maximum model length is {COUNT}"),
    ("concurrency", "requests", rf"Maximum concurrency for {COUNT} tokens per request: (\d+(?:\.\d+)?)x"),
)
"""Quantity, unit, and how it is printed."""

ASIDE = {"cache memory": "pool", "activations": "activations", "runtime": "runtime", "graphs": "graphs"}
"""Figures of memory that vLLM sets aside, and what `planner.engines.vllm_memory` calls them."""

LENGTHS = (rf"max seq len \({COUNT}\)", rf"Maximum concurrency for {COUNT} tokens")
"""Where else max_model_len is printed."""

READERS = {
    "llama.cpp": "planner.engines.llama_log",
    "sglang": "planner.engines.sglang_log",
    "trtllm": "planner.engines.trtllm_log",
}
"""Engines whose logs are read by a module of their own: `wrote`, `parse`, `predictions`."""

GIVEN = {"free memory", "free memory before loading"}
"""Figures of those that predictions start from."""

TEXT_ALONE = "-text"
"""Ending of bundled names of language models that are published with a tower."""

SUFFIXES = r"[-_](?:instruct|chat|it|hf|base|pt)(?:-v[\d.]+)?$"
"""Endings of names that leave a config as it is."""


class Entry(NamedTuple):
    """A figure that was printed.

    Attributes:
        number: of its line, from 1. text: the line. quantity, unit: of `LINES`. value: printed. half: of its last digit's unit.
        length: tokens of a request that a concurrency is for. stage: of the pipeline, whose rank printed it.
    """

    number: int
    text: str
    quantity: str
    unit: str
    value: float
    half: float
    length: int | None
    stage: int


class Log(NamedTuple):
    """What a log of an engine says: the version as printed (None: not printed), flags, and figures in order."""

    version: str | None
    flags: dict[str, Any]
    entries: tuple[Entry, ...]
    engine: str = "vllm"

    def printed(self, quantity: str) -> list[Entry]:
        """Return the figures of a quantity."""
        return [entry for entry in self.entries if entry.quantity == quantity]


class Prediction(NamedTuple):
    """A predicted figure, and the least and most that it may be as far as what it depends on is printed."""

    value: float
    low: float
    high: float


# --- reading


def read(file: str | Path) -> Log:
    """Return what a start-up log says.

    Raises:
        PlanError: it can't be read, or no line of it is known.
    """
    where = str(file)
    path = Path(file).expanduser()
    try:
        if path.stat().st_size > LARGEST_LOG_BYTES:
            raise PlanError(
                f"the file has more than {LARGEST_LOG_BYTES:,} bytes", where=where, fix="cut out the start-up"
            )
        text = path.read_text(errors="replace")
    except OSError as error:
        raise PlanError(f"can't be read: {error.strerror}", where=where, fix="name the log of an engine") from error
    others = (import_module(name) for name in READERS.values())
    log = next((other.parse(text) for other in others if other.wrote(text)), None) or parse(text)
    if not log.entries:
        raise PlanError(
            "no line is known: neither weights nor cache memory, blocks, tokens or concurrency are printed",
            where=where,
            fix="name a start-up log of vLLM, with its INFO lines, of SGLang, TensorRT-LLM or llama.cpp",
        )
    return log


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a log with their numbers, without colours."""
    for number, raw in enumerate(text.splitlines(), 1):
        yield number, re.sub(r"\x1b\[[0-9;]*m", "", raw).strip()


def parse(text: str) -> Log:
    """Return what the lines of a log say."""
    version: str | None = None
    flags: dict[str, Any] = {}
    length: int | None = None
    entries: list[Entry] = []
    for number, line in lines(text):
        if match := re.search(r"(?:LLM engine \(|server version |vLLM version )(v?\d+\.\d+[\w.+]*)", line):
            version = match[1]
        header = next((match for each in HEADERS if (match := re.search(each, line))), None)
        if header:
            flags |= dict(_flags(line[header.end() :]))
        for pattern in LENGTHS:
            if match := re.search(pattern, line):
                length = _whole(match[1])
        entries += _entries(number, line)
    if length is not None:
        flags.setdefault("max_model_len", length)
    return Log(version, flags, tuple(entries))


def _flags(text: str) -> Iterator[tuple[str, Any]]:
    for flag, names in FLAGS.items():
        for name in names:
            match = re.search(rf"(?<![\w.-])['\"]?{name}['\"]?\s*[=:]\s*('[^']*'|\"[^\"]*\"|[^,}})\s]+)", text)
            value = match[1].rstrip(".").strip("'\"").removeprefix("torch.") if match else "None"
            if value not in {"None", "", "auto"} and (flag not in WHOLE or value.isdecimal()):
                yield flag, _typed(value)
                break


def _typed(value: str) -> Any:
    if value in {"True", "False"}:
        return value == "True"
    return int(value) if re.fullmatch(r"\d+", value) else float(value) if re.fullmatch(r"\d*\.\d+", value) else value


def _whole(text: str) -> int:
    return int(text.replace(",", ""))


def _entries(number: int, line: str) -> Iterator[Entry]:
    rank = re.search(r"(?<![A-Za-z])PP(\d+)", line)
    stage = int(rank[1]) if rank else 0
    for quantity, unit, pattern in LINES:
        match = re.search(pattern, line)
        if not match:
            continue
        *before, figure = match.groups()
        digits = len(figure.partition(".")[2])
        value = float(figure) if digits else _whole(figure)
        half = 0.5 * 10**-digits if unit == "GiB" else 0.0
        yield Entry(number, line, quantity, unit, value, half, _whole(before[0]) if before else None, stage)


# --- which model


def find_model(config: str | None, flags: Mapping[str, Any]) -> tuple[Model, list[str]]:
    """Return the model that a log is of, and notes on how it was found.

    Args:
        config: file or bundled name; None: the log's own name, a folder that exists here or a bundled model.
        flags: of the log.

    Raises:
        PlanError: there is none.
    """
    if config is not None:
        return load(config), []
    way = "give its config.json: --config FILE_OR_NAME"
    name = flags.get("model")
    if name is None:
        raise PlanError("no line names the model", where="plan check", fix=way)
    if (Path(name) / "config.json").is_file():
        return load(name), []
    stored = re.search(r"models--[^/]+?--([^/]+)", str(name))
    short = (stored[1] if stored else str(name).rstrip("/").rpartition("/")[2]).lower().replace(" ", "-")
    plain = re.sub(SUFFIXES, "", short)
    for tried in dict.fromkeys((short, plain, plain.removeprefix("meta-"), plain + TEXT_ALONE)):
        if profiles.model(tried) is not None:
            model = load(tried)
            return model, [f"{name} is read as the bundled {model.name}"]
    raise PlanError(f"no bundled model for {name}", where="plan check", fix=way)


# --- predictions


def check(file: str | Path, config: str | None = None, hardware: str | None = None) -> dict[str, Any]:
    """Return {engine, version, model, flags, lines, notes}: what a log's lines say, and what the planner says.

    Args:
        file: start-up log of vLLM 0.6 to 0.32, SGLang, TensorRT-LLM or llama.cpp. config: of its model, None: found by the name that it prints.
        hardware: that it ran on; memory that vLLM sets aside is then predicted too, from flags alone.

    Raises:
        PlanError: no such file, no such hardware, no line that is known, or no config for its model.
    """
    log = read(file)
    model, notes = find_model(config, log.flags)
    if log.engine in READERS:
        if hardware:
            notes.append(f"--hardware isn't used: {log.engine} prints what its predictions start from")
        said = import_module(READERS[log.engine]).predictions(log, model, notes)
        lines = [_judged(entry, said(entry), given=entry.quantity in GIVEN) for entry in log.entries]
        return _found(log, model, lines, notes)
    whole = config is not None or not model.name.endswith(TEXT_ALONE)
    if not whole:
        notes.append("weights aren't compared: that is the config of its language model alone")
    found = _Check(log, model, notes, compares_weights=whole, hardware=hardware)
    lines = [_judged(entry, found.predict(entry), given=found.given(entry)) for entry in log.entries]
    found.explain(lines)
    return _found(log, model, lines, found.notes)


def _found(log: Log, model: Model, lines: list[dict[str, Any]], notes: list[str]) -> dict[str, Any]:
    """Return the JSON of a check."""
    return {
        "engine": log.engine, "version": log.version, "model": model.name, "flags": log.flags, "lines": lines,
        "notes": list(dict.fromkeys(notes)),
    }  # fmt: skip


def differs(found: Mapping[str, Any]) -> bool:
    """Return whether a line of a check is beyond its tolerance."""
    return any(line["verdict"] == "differs" for line in found["lines"])


def _judged(entry: Entry, said: Prediction | None, *, given: bool) -> dict[str, Any]:
    """Return a line's JSON."""
    predicted = difference = None
    verdict = "given" if given else "not compared"
    if said is not None:
        predicted = round(said.value, 4) if entry.unit in {"GiB", "MiB"} else said.value
        difference = round(100 * (entry.value / said.value - 1), 3) if said.value else None
        low, high = said.low - entry.half, said.high + entry.half
        tolerance = TOLERANCES.get(entry.quantity, 0.0)
        close = difference is not None and abs(entry.value - said.value) <= said.value * tolerance / 100 + entry.half
        verdict = "agrees" if close or low <= entry.value <= high else "differs"
    return {
        "line_number": entry.number, "text": entry.text, "quantity": entry.quantity, "unit": entry.unit,
        "printed": entry.value, "predicted": predicted, "difference": difference, "verdict": verdict,
    }  # fmt: skip


class _Check:
    """One log beside one model: predicts figures, and gathers what explains them in `notes`."""

    def __init__(
        self, log: Log, model: Model, notes: list[str], *, compares_weights: bool, hardware: str | None
    ) -> None:
        self.log, self.model, self.notes, self.flags = log, model, notes, log.flags
        self.tp, self.pp = (int(self.flags.get(f"{each}_parallel_size", 1)) for each in ("tensor", "pipeline"))
        self.length: int | None = self.flags.get("max_model_len")
        self.version, self.release = self._version()
        self.memory = self._memory()
        self.precision = self._precision() if compares_weights else None
        self.weights = self._weights() if self.precision else None
        self.set_aside = self._set_aside(hardware) if hardware else ()
        self.pool_bytes, self.needed_bytes, self.block, self.one_group = 0, 0, 0, False
        self._pool()

    def given(self, entry: Entry) -> bool:
        """Return whether predictions start from a figure."""
        if entry.quantity == "cache memory":
            return bool(self.memory) and bool(self.pool_bytes)
        return not self.memory and entry is self._counted()

    def predict(self, entry: Entry) -> Prediction | None:
        """Return what the planner says in place of a figure; None: it doesn't."""
        if entry.quantity in ASIDE:
            return self._aside(entry)
        if entry.quantity == "weights":
            return None if self.weights is None else _exact(self.weights[min(entry.stage, self.pp - 1)] / GIB)
        if entry.quantity == "blocks on the CPU":
            return self._swapped()
        if not self.pool_bytes or self.given(entry):
            return None
        if entry.quantity == "cache memory of one request":
            return _exact(self.needed_bytes / GIB)
        if self._stages_unknown():
            self.notes.append(
                f"{self.pp} stages, but the cache memory of rank 0 alone is printed: tokens follow the stage that has least"
            )
            return None
        figures = [self._figure(entry, memory) for memory in self._memories()]
        if not figures:
            return None
        middle, low, high = figures
        return Prediction(middle, low, high)

    def _version(self) -> tuple[str, vllm.Version]:
        """Return the version whose rules are used, as text and as numbers."""
        if self.log.version is None:
            self.notes.append(f"no line says which version of vLLM; {vllm.NEWEST_TEXT}'s rules are used")
            return vllm.NEWEST_TEXT, vllm.release(vllm.NEWEST_TEXT)
        try:
            return self.log.version, vllm.release(self.log.version)
        except PlanError:
            self.notes.append(f"the rules of {self.log.version} aren't known; {vllm.NEWEST_TEXT}'s are used")
            return vllm.NEWEST_TEXT, vllm.release(vllm.NEWEST_TEXT)

    def explain(self, lines: list[dict[str, Any]]) -> None:
        """Note what is known to make figures of the cache smaller than predicted."""
        fewer = any(
            line["verdict"] == "differs"
            and line["quantity"] in {"tokens", "blocks", "concurrency"}
            and line["difference"] < 0
            for line in lines
        )
        if not fewer:
            return
        if len(self.log.printed("cache memory")) < self.tp:
            self.notes.append(
                f"{self.tp} ranks, but not all print their cache memory: the rank that has least decides for all"
            )
        if self.flags.get("speculative_config"):
            self.notes.append("speculative_config: a draft's cache comes out of the same memory, and isn't predicted")

    # --- weights

    def _precision(self) -> Precision | None:
        """Return the widths that a log says, None: of weights that the config doesn't describe."""
        dtype = self.flags.get("dtype")
        stored = canonical(self.model.dtype, self.model.source) if self.model.dtype else "bf16"
        asked = self.flags.get("quantization")
        if asked and asked != "fp8" and self.model.quantization is None:
            self.notes.append(
                f"weights aren't compared: the log says {asked}, and the config says nothing of it; "
                "give the quantised checkpoint's own config with --config"
            )
            return None
        try:
            return resolve(
                self.model, dtype=dtype or ("bf16" if stored == "fp32" else stored),
                weights="fp8" if asked == "fp8" and self.model.quantization is None else None,
            )  # fmt: skip
        except PlanError as error:
            self.notes.append(f"weights aren't compared: {error}")
            return None

    @property
    def parallel(self) -> Parallel:
        """How the model is spread over devices."""
        return Parallel(self.tp, self.pp, self.tp if self.flags.get("enable_expert_parallel") else 1)

    def _weights(self) -> list[float] | None:
        """Return the bytes on a rank of each stage, with what vLLM makes of them while it loads."""
        assert self.precision is not None
        try:
            found = loaded(self.model, self.precision, self.parallel, self.release)
        except PlanError as error:
            self.notes.append(f"weights aren't compared: {error}")
            return None
        self.notes += dict.fromkeys(note for each in found for note in each.notes)
        return [float(each.value) for each in found]

    def _set_aside(self, hardware: str) -> tuple[Reserve, ...]:
        """Return what vLLM sets aside on a rank of each stage, from flags alone."""
        from profiles.hardware import hardware as profile  # noqa: PLC0415

        device = profile(hardware)
        if self.weights is None or self.precision is None:
            return ()
        settings = [f"{flag}={self.flags[flag]}" for flag in vllm.Flags._fields if flag in self.flags]
        model = replace(self.model, engine=vllm.engine(self.version, settings))
        return reserve(model, Workload(1, 1, 0), self.precision, self.parallel, device)

    def _aside(self, entry: Entry) -> Prediction | None:
        """Return what a part of the memory that is set aside should be."""
        if not self.set_aside:
            return None
        made = self.set_aside[min(entry.stage, len(self.set_aside) - 1)]
        name = ASIDE[entry.quantity]
        part = made.pool if name == "pool" else made.parts.get(name) or made.beside[name]
        return Prediction(part.value / GIB, part.low / GIB, part.high / GIB)

    # --- cache

    def _memory(self) -> Entry | None:
        """Return the least cache memory that a rank printed: it decides for all."""
        return min(self.log.printed("cache memory"), key=lambda entry: entry.value, default=None)

    def _counted(self) -> Entry | None:
        """Return the count that memory is worked back from where none is printed."""
        return next(iter((*self.log.printed("blocks"), *self.log.printed("tokens"))), None)

    def _stages_unknown(self) -> bool:
        return self.pp > 1 and bool(self.memory) and len({e.stage for e in self.log.printed("cache memory")}) < self.pp

    def _memories(self) -> list[float]:
        """Return bytes for the cache: as printed, and the least and most that are printed so."""
        if self.memory is not None:
            value, half = self.memory.value, self.memory.half
            return [value * GIB, (value - half) * GIB, (value + half) * GIB]
        counted = self._counted()
        if counted is None:
            return []
        if counted.quantity == "tokens" and not self.one_group:
            return []
        return [(counted.value if counted.quantity == "blocks" else counted.value // self.block) * self.pool_bytes] * 3

    def _asked(self, memory: int, length: int | None) -> Asked:
        flags = self.flags
        return Asked(
            memory, version=self.version, device="cpu" if flags.get("device") == "cpu" else "cuda", max_model_len=length,
            max_num_seqs=flags.get("max_num_seqs"), block_size=flags.get("block_size"), cache_dtype=flags.get("kv_cache_dtype"),
            tp=self.tp, pp=self.pp, max_num_batched_tokens=flags.get("max_num_batched_tokens"), dtype=flags.get("dtype"),
            prefix_caching=flags.get("enable_prefix_caching"),
        )  # fmt: skip

    def _pool(self) -> None:
        """Find the bytes of a block and of a request."""
        try:
            asked = self._asked(1, self.length)
            pool = vllm.pool(self.model, asked)
            said = vllm.capacity(self.model, asked, refuses=False)
        except PlanError as error:
            self.notes.append(f"the cache isn't compared: {error}")
            return
        self.one_group = len(pool.groups) == 1
        self.block, self.pool_bytes = said["block_size"], pool.bytes
        self.needed_bytes = pool.needed(pool.flags.max_model_len)
        self.notes.append(f"each token takes {said['bytes_per_token']:,} bytes of cache on the fullest GPU")

    def _figure(self, entry: Entry, memory: float) -> float:
        """Return a count for so many bytes, whether or not a request fits in them: some versions print that before they refuse."""
        asked = self._asked(int(memory), entry.length or self.length)
        if entry.quantity == "longest request":
            return float(vllm.longest(self.model, asked))
        said = vllm.capacity(self.model, asked, refuses=False)
        if entry.quantity == "tokens" and self.one_group and self._refused(memory):
            return float(said["blocks"] * self.block)
        return float(said[entry.quantity])

    def _refused(self, memory: float) -> bool:
        return int(memory) < self.needed_bytes

    def _swapped(self) -> Prediction | None:
        """Return the blocks of the swap space, 4 GiB by default."""
        if not self.pool_bytes or self.release >= SWAPS:
            return None
        space = str(self.flags.get("swap_space", 4))
        return _exact(int(float(space) * GIB) // self.pool_bytes) if re.fullmatch(r"\d+(\.\d+)?", space) else None


def _exact(value: float) -> Prediction:
    return Prediction(value, value, value)
