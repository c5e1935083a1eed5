"""What llama.cpp prints when it loads a model and makes a context, and what Ollama says before it starts one.

A line of a cache says which types its keys and values have, and how many cells and layers; their bytes follow from the layers of the
model that have such a cache. Windows' cells, states and buffers follow from the context's flags (`planner.engines.llama`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from planner.api import plan
from planner.engines import llama
from planner.engines.llama_ops import WHOLE, Part
from planner.engines.log import Entry, Log, Prediction, lines
from planner.errors import PlanError
from planner.model import Model

MIB = 2**20

SIZE = r"size\s*=\s*(\d+(?:\.\d+)?) MiB"
PART = r"\(([\w.]+)\):\s*(\d+(?:\.\d+)?) MiB"
CACHE = rf"(?:llama_kv_cache\w*: |KV self ){SIZE}\s*(?:\(\s*(\d+) cells,\s*(\d+) layers(?:,\s*\d+/(\d+) seqs)?[^)]*\))?, K {PART}, V {PART}"
STATE = rf"llama_memory_recurrent: {SIZE}\s*\(\s*(\d+) cells"
WINDOW = r"creating\s+SWA KV cache, size = (\d+) cells"
COMPUTE = r"sched_reserve:\s+(?!\w*_Host)(\w+) compute buffer size\s*=\s*(\d+(?:\.\d+)?) MiB"
HOST = r"sched_reserve:\s+\w+_Host compute buffer size\s*=\s*(\d+(?:\.\d+)?) MiB"
OUTPUT = r"output buffer size\s*=\s*(\d+(?:\.\d+)?) MiB"
FILE = r"(?:file|model) size\s*=\s*(\d+(?:\.\d+)?) (GiB|MiB) \("
PARAMETERS = r"model params\s*=\s*(\d+(?:\.\d+)?) B\b"
MILLIONS = r"model params\s*=\s*(\d+(?:\.\d+)?) M\b"
OLLAMA = r'memory\.required\.kv="(\d+(?:\.\d+)?) (GiB|MiB)"'
MINE = r"llama_kv_cache|KV self size|llm_load_print_meta|print_info: |llama_memory_recurrent|memory\.required\.kv="

LINES: tuple[tuple[str, str, str], ...] = (
    ("cache", "MiB", CACHE), ("states", "MiB", STATE), ("window cells", "cells", WINDOW), ("output buffer", "MiB", OUTPUT),
    ("host compute buffer", "MiB", HOST), ("weights", "", FILE), ("parameters", "billions", PARAMETERS),
    ("parameters", "millions", MILLIONS), ("estimated cache", "", OLLAMA),
)  # fmt: skip
"""Quantity, unit ("": the second group's), and how it is printed, the figure first."""

FLAGS: dict[str, str] = {
    "model": r"general\.name\s*(?:str\s*)?=\s*(.+)$",
    "file_type": r"(?:file type|model ftype)\s*=\s*(.+)$",
    "n_ctx": r"(?:\bn_ctx\s*=|--ctx-size)\s*(\d+)\b",
    "n_batch": r"\bn_batch\s*=\s*(\d+)\b",
    "n_ubatch": r"\bn_ubatch\s*=\s*(\d+)\b",
    "n_seq_max": r"(?:\bn_seq_max\s*=|--parallel)\s*(\d+)\b",
    "n_outputs_max": r"\bn_outputs_max\s*=\s*(\d+)\b",
    "flash_attn": r"\bflash_attn\s*=\s*(\w+)",
    "kv_unified": r"\bkv_unified\s*=\s*(\w+)",
    "offloaded": r"offloaded (\d+/\d+) layers to GPU",
    "cache_type_k": r"--kv-cache-type\s+(\w+)",
    "cache_type_v": r"--kv-cache-type\s+(\w+)",
}

FLASH = {"0": "off", "1": "on", "disabled": "off", "enabled": "on"}

MIXTURES = {" - small": "_s", " - medium": "_m", " - large": "_l"}
PLAIN = {"f16": "fp16", "f32": "fp32", "all f32": "fp32"}

ONCE = {"window cells", "states", "output buffer", "compute buffer", "host compute buffer"}
"""What follows from a context's flags, so that it isn't compared where a log has several contexts."""


class Kept(NamedTuple):
    """A printed cache: cells of so many streams and layers (None: all), the types of keys and values, whether values are kept."""

    cells: int
    streams: int
    layers: int | None
    key: str
    value: str
    keeps_values: bool


def wrote(text: str) -> bool:
    """Return whether a log is llama.cpp's, or Ollama's."""
    return re.search(MINE, text) is not None


def parse(text: str) -> Log:
    """Return what the lines of a log say."""
    version: str | None = None
    flags: dict[str, Any] = {}
    entries: list[Entry] = []
    contexts = 0
    for number, line in lines(text):
        if match := re.search(r"\bbuild\s*[:=]\s*(\w+)", line):
            version = f"b{match[1].removeprefix('b')}"
        contexts += "constructing llama_context" in line
        for flag, pattern in FLAGS.items():
            if match := re.search(pattern, line):
                flags.setdefault(flag, int(match[1]) if match[1].isdecimal() else match[1].strip())
        if "using full-size SWA cache" in line:
            flags["swa_full"] = True
        if match := re.search(CACHE, line):
            flags.setdefault("cache_type_k", match[5])
            flags.setdefault("cache_type_v", match[7])
        entries += _entries(number, line)
    if contexts > 1:
        flags["contexts"] = contexts
    return Log(version, flags, tuple(entries), "llama.cpp")


def _entries(number: int, line: str) -> list[Entry]:
    found = []
    for quantity, unit, pattern in LINES:
        if match := re.search(pattern, line):
            digits = len(match[1].partition(".")[2])
            half = 0.5 * 10**-digits if unit != "cells" else 0.0
            found.append(Entry(number, line, quantity, unit or match[2], float(match[1]), half, None, 0))
    if match := re.search(COMPUTE, line):
        found.append(Entry(number, line, "compute buffer", "MiB", float(match[2]), 0.005, None, 0))
    return found


def predictions(log: Log, model: Model, notes: list[str]) -> Callable[[Entry], Prediction | None]:
    """Return what predicts each figure of a log; it notes what it can't."""

    def predict(entry: Entry) -> Prediction | None:
        try:
            value = _value(entry, log, model)
        except PlanError as error:
            notes.append(f"the {entry.quantity} isn't compared: {error}")
            return None
        return Prediction(value, value, value)

    return predict


def _value(entry: Entry, log: Log, model: Model) -> float:
    flags = log.flags
    if entry.quantity == "parameters":
        total = int(plan(model).params["total"])
        return round(total / 1e9, 4) if entry.unit == "billions" else round(total / 1e6, 2)
    if entry.quantity == "weights":
        name = str(flags.get("file_type", "")).lower()
        for ending, short in MIXTURES.items():
            name = name.replace(ending, short)
        if not name:
            raise PlanError("no line says the file's type", where="file type")
        made = plan(model, weights=PLAIN.get(name, name))
        return int(made.weights["bytes"]) / 2 ** (30 if entry.unit == "GiB" else 20)
    if entry.quantity == "cache":
        return _cache_bytes(model, _kept(entry, flags)) / MIB
    if entry.quantity in ONCE and "contexts" in flags:
        raise PlanError(f"{flags['contexts']} contexts are printed", where="llama_context")
    started = _started(flags)
    if entry.quantity == "output buffer":
        return llama.output_bytes(model, started) / MIB
    if entry.quantity.endswith("compute buffer"):
        return _compute(entry, log, model, started) / MIB
    found = llama.caches(model, started)
    if entry.quantity == "estimated cache":
        return sum(each.size for each in found) / 2 ** (30 if entry.unit == "GiB" else 20)
    if entry.quantity == "states":
        return sum(each.size for each in found if each.kind == "state") / MIB
    return next((float(each.cells) for each in found if each.kind == "sliding"), 0.0)


def _started(flags: Mapping[str, Any]) -> llama.Flags:
    """Return the flags of a context, as printed."""
    if "n_ctx" not in flags:
        raise PlanError("no line says how long the context is", where="n_ctx")
    known = {name: flags[name] for name in llama.Flags._fields if name in flags}
    if "flash_attn" in known:
        word = str(known["flash_attn"])
        known["flash_attn"] = FLASH.get(word, word)
    if "kv_unified" in known:
        known["kv_unified"] = str(known["kv_unified"]) in {"true", "1"}
    return llama.Flags(**known)


def _compute(entry: Entry, log: Log, model: Model, started: llama.Flags) -> int:
    """Return a compute buffer of one device that runs all layers."""
    devices = {match[1] for each in log.entries if (match := re.search(COMPUTE, each.text))} - {"CPU"}
    done, _, layers = str(log.flags.get("offloaded", "")).partition("/")
    if len(devices) > 1 or done != layers:
        raise PlanError(
            "only buffers of one device that runs all layers are predicted",
            where=", ".join(sorted(devices)) or "offloaded",
        )
    found = llama.compute(model, started, None, Part(card=True) if devices else WHOLE)
    if devices and entry.quantity == "compute buffer" and " CPU compute" in entry.text:
        return found.host
    return found.host if entry.quantity.startswith("host") else found.device


def _kept(entry: Entry, flags: dict[str, Any]) -> Kept:
    match = re.search(CACHE, entry.text)
    assert match is not None
    _, cells, layers, streams, key, _, value, values = match.groups()
    if cells is None and "n_ctx" not in flags:
        raise PlanError("no line says how many cells there are", where="n_ctx")
    return Kept(
        int(cells or flags["n_ctx"]), int(streams or 1), int(layers) if layers else None, key, value, float(values) > 0
    )


def _cache_bytes(model: Model, kept: Kept) -> float:
    """Return the bytes of keys and values of the layers that a line is about."""
    layers = [row for row in llama.rows(model) if row.kind != "state"]
    if kept.keeps_values and any(row.kind == "latent" for row in layers):
        raise PlanError("builds that keep values beside latents aren't known", where=model.name)
    groups = [layers, [row for row in layers if row.span], [row for row in layers if not row.span]]
    found = next((group for group in groups if kept.layers in {None, len(group)}), None)
    if found is None:
        sizes = ", ".join(str(len(group)) for group in groups if group)
        raise PlanError(f"found {kept.layers} layers, {model.name} has caches of {sizes}", where="layers")
    cells = kept.cells * kept.streams
    return llama.cells_bytes(kept.key, [row.keys for row in found], cells) + llama.cells_bytes(
        kept.value, [row.values for row in found], cells
    )
