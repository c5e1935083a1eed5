"""What llama.cpp prints when it loads a model: parameters, the file's size, and each cache with its cells.

A line says which types its keys and values have, and how many cells and layers; their bytes follow from the layers of the model
that have such a cache. Windowed and full layers have caches of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from planner.api import plan
from planner.blocks import Attention, LatentAttention
from planner.engines.log import Entry, Log, Prediction
from planner.errors import PlanError
from planner.model import Model
from planner.precision import canonical, element_bits

MIB = 2**20

SIZE = r"size\s*=\s*(\d+(?:\.\d+)?) MiB"
PART = r"\(([\w.]+)\):\s*(\d+(?:\.\d+)?) MiB"
CACHE = rf"(?:llama_kv_cache\w*: |KV self ){SIZE}\s*(?:\(\s*(\d+) cells,\s*(\d+) layers[^)]*\))?, K {PART}, V {PART}"
FILE = r"(?:file|model) size\s*=\s*(\d+(?:\.\d+)?) (GiB|MiB) \("
PARAMETERS = r"model params\s*=\s*(\d+(?:\.\d+)?) B\b"
MINE = r"llama_kv_cache|KV self size|llm_load_print_meta|print_info: "

FLAGS: dict[str, str] = {
    "model": r"general\.name\s*(?:str\s*)?=\s*(.+)$",
    "file_type": r"(?:file type|model ftype)\s*=\s*(.+)$",
    "n_ctx": r"\bn_ctx\s*=\s*(\d+)\b",
}

MIXTURES = {" - small": "_s", " - medium": "_m", " - large": "_l"}
PLAIN = {"f16": "fp16", "f32": "fp32", "all f32": "fp32"}


class Kept(NamedTuple):
    """A printed cache: cells of so many layers (None: all), the types of keys and values, and whether values are kept."""

    cells: int
    layers: int | None
    key: str
    value: str
    keeps_values: bool


def wrote(text: str) -> bool:
    """Return whether a log is llama.cpp's."""
    return re.search(MINE, text) is not None


def parse(text: str) -> Log:
    """Return what the lines of a log say."""
    version: str | None = None
    flags: dict[str, Any] = {}
    entries: list[Entry] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if match := re.search(r"\bbuild\s*[:=]\s*(\w+)", line):
            version = f"b{match[1].removeprefix('b')}"
        for flag, pattern in FLAGS.items():
            if match := re.search(pattern, line):
                flags.setdefault(flag, int(match[1]) if match[1].isdecimal() else match[1].strip())
        for quantity, unit, pattern in (
            ("cache", "MiB", CACHE), ("weights", "", FILE), ("parameters", "billions", PARAMETERS),
        ):  # fmt: skip
            if match := re.search(pattern, line):
                digits = len(match[1].partition(".")[2])
                entries.append(
                    Entry(number, line, quantity, unit or match[2], float(match[1]), 0.5 * 10**-digits, None, 0)
                )
    return Log(version, flags, tuple(entries), "llama.cpp")


def predictions(log: Log, model: Model, notes: list[str]) -> Callable[[Entry], Prediction | None]:
    """Return what predicts each figure of a log; it notes what it can't."""

    def predict(entry: Entry) -> Prediction | None:
        try:
            value = _value(entry, log.flags, model)
        except PlanError as error:
            notes.append(f"the {entry.quantity} aren't compared: {error}")
            return None
        return Prediction(value, value, value)

    return predict


def _value(entry: Entry, flags: dict[str, Any], model: Model) -> float:
    if entry.quantity == "parameters":
        return round(int(plan(model).params["total"]) / 1e9, 4)
    if entry.quantity == "weights":
        name = str(flags.get("file_type", "")).lower()
        for ending, short in MIXTURES.items():
            name = name.replace(ending, short)
        if not name:
            raise PlanError("no line says the file's type", where="file type")
        made = plan(model, weights=PLAIN.get(name, name))
        return int(made.weights["bytes"]) / 2 ** (30 if entry.unit == "GiB" else 20)
    return _cache_bytes(model, _kept(entry, flags)) / MIB


def _kept(entry: Entry, flags: dict[str, Any]) -> Kept:
    match = re.search(CACHE, entry.text)
    assert match is not None
    _, cells, layers, key, _, value, values = match.groups()
    if cells is None and "n_ctx" not in flags:
        raise PlanError("no line says how many cells there are", where="n_ctx")
    return Kept(int(cells or flags["n_ctx"]), int(layers) if layers else None, key, value, float(values) > 0)


def _cache_bytes(model: Model, kept: Kept) -> float:
    """Return the bytes of keys and values of the layers that a line is about."""
    decoder = model.stack("decoder")
    runs = decoder.runs if decoder else ()
    rows: list[tuple[bool, float]] = []
    key, value = (element_bits(canonical(each, "cache type")) for each in (kept.key, kept.value))
    for run in runs:
        for block in run.layer.blocks:
            if isinstance(block, Attention) and not block.cross:
                heads = block.cached_heads or block.kv_heads
                bits = heads * (block.head * key + (block.value or block.head) * value)
            elif isinstance(block, LatentAttention):
                if kept.keeps_values:
                    raise PlanError("builds that keep values beside latents aren't known", where=model.name)
                bits = (block.kv_rank + block.rope) * key
            else:
                continue
            windowed = any(cache.window for cache in block.caches())
            rows += [(windowed, float(bits))] * run.count
    groups = [rows, [row for row in rows if row[0]], [row for row in rows if not row[0]]]
    found = next((group for group in groups if kept.layers in {None, len(group)}), None)
    if found is None:
        sizes = ", ".join(str(len(group)) for group in groups if group)
        raise PlanError(f"found {kept.layers} layers, {model.name} has caches of {sizes}", where="layers")
    return kept.cells * sum(bits for _, bits in found) / 8
