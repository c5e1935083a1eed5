"""A config's quantization_config: the format that its method stores, and the modules that it leaves out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from planner.errors import PlanError
from planner.model import Place


@dataclass(frozen=True, slots=True)
class Scheme:
    """A config's quantisation: format, patterns of modules left out, dtype of the cache, notes."""

    weights: str
    skips: tuple[str, ...] = ()
    cache: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Fields:
    """A quantization_config being read; `where` names the file and the path to it."""

    values: Mapping[str, Any]
    where: str

    def refuse(self, key: str, allowed: str) -> PlanError:
        """Return the error about a value that isn't understood."""
        value = repr(self.values.get(key))
        shown = value if len(value) <= 60 else f"{value[:57]}..."
        return PlanError(
            f"found {shown}, allowed are {allowed}", where=f"{self.where}.{key}",
            fix="name the format yourself with --weights, which replaces the config's (`plan models --formats` lists them)",
        )  # fmt: skip

    def whole(self, *keys: str, default: int | None = None) -> int:
        """Return a whole number of -1 or more, under the first of its names that is there."""
        key = next((key for key in keys if self.values.get(key) is not None), keys[0])
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= 2**16 or value == 0:
            raise self.refuse(key, "whole numbers from 1 to 65,536, or -1 for all")
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return true or false."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.refuse(key, "true and false")
        return default if value is None else value

    def text(self, key: str, default: str = "") -> str:
        """Return a text in small letters."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.refuse(key, "texts")
        return default if value is None else value.lower()

    def names(self, *keys: str) -> tuple[str, ...]:
        """Return the patterns in lists under any of these names."""
        found: list[str] = []
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
                raise self.refuse(key, "lists of module names")
            found += value
        return tuple(dict.fromkeys(found))

    def below(self, key: str) -> _Fields:
        """Return an object that is a value here."""
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise self.refuse(key, "objects")
        return _Fields(value, f"{self.where}.{key}")


def read(values: Mapping[str, Any], where: str) -> Scheme:
    """Return what a quantization_config says.

    Args:
        values: the object.
        where: file and field, for messages.

    Raises:
        PlanError: its method isn't known, or a value isn't understood.
    """
    q = _Fields(values, where)
    method = q.text("quant_method").replace("_", "-")
    if q.values.get("quant_algo") is not None or q.text("quant_method").startswith("modelopt"):
        return _modelopt(q.below("quantization") if "quantization" in q.values else q)
    if not method:
        method = "bitsandbytes" if q.flag("load_in_4bit") or q.flag("load_in_8bit") else ""
        method = method or ("compressed-tensors" if "config_groups" in q.values else "")
    method = "bitsandbytes" if method.startswith("bitsandbytes") else method
    if method not in METHODS:
        raise q.refuse("quant_method", f"{', '.join(METHODS)} and modelopt")
    return METHODS[method](q)


def _fp8(q: _Fields) -> Scheme:
    """DeepSeek's fp8 with blocks, or one scale for each matrix. MTP's joint projection (eh_proj) isn't quantised."""
    skips = (*q.names("modules_to_not_convert", "ignored_layers"), "eh_proj")
    if q.values.get("weight_block_size") is None:
        return Scheme("fp8", skips)
    coarse = q.text("scale_fmt") == "ue8m0"
    return Scheme(
        _blocks(q, "weight_block_size"), skips, notes=("scale_fmt ue8m0: scales are counted as fp32",) * coarse
    )


def block_format_name(rows: int, columns: int) -> str:
    """Return the name of the fp8 format with blocks of this size."""
    return "fp8-block" if rows == columns == 128 else f"fp8-block-{rows}x{columns}"


def _blocks(q: _Fields, key: str) -> str:
    """Return the name of an fp8 format with blocks of the size under this key."""
    block = q.values.get(key)
    if not (isinstance(block, list) and len(block) == 2 and all(type(n) is int and 0 < n < 2**16 for n in block)):
        raise q.refuse(key, "two whole numbers, for instance [128, 128]")
    return block_format_name(*block)


def _awq(q: _Fields) -> Scheme:
    """AutoAWQ; zero points are stored even where they are all equal."""
    bits, group = q.whole("bits", "w_bit", default=4), q.whole("group_size", "q_group_size", default=128)
    return Scheme(_group("awq", bits, group, q), q.names("modules_to_not_convert"))


def _gptq(q: _Fields) -> Scheme:
    """GPTQ; `dynamic` rules that leave modules out are read, those that change their format are refused."""
    dynamic = q.values.get("dynamic") or {}
    if not isinstance(dynamic, Mapping) or not all(str(rule).startswith("-:") for rule in dynamic):
        raise q.refuse("dynamic", "rules that leave modules out, '-:PATTERN'")
    for key in ("lm_head", "modules_in_block_to_quantize"):
        if q.values.get(key):
            raise q.refuse(key, "null and false")
    skips = (*q.names("modules_to_not_convert"), *(f"re:.*{rule[2:]}" for rule in dynamic))
    act = "-act" * q.flag("desc_act")
    return Scheme(_group("gptq", q.whole("bits", default=4), q.whole("group_size", default=128), q) + act, skips)


def _group(kind: str, bits: int, group: int, q: _Fields, suffix: str = "") -> str:
    """Return the name of a group-wise integer format; -1 is one group for all inputs."""
    if not 1 <= bits <= 8:
        raise q.refuse("bits" if kind != "ct" else "num_bits", "1 to 8")
    return f"{kind}-int{bits}-{'channel' if group == -1 else f'g{group}'}{suffix}"


def _bitsandbytes(q: _Fields) -> Scheme:
    """LLM.int8, or 4 bits with or without quantised maxima."""
    skips = q.names("llm_int8_skip_modules", "modules_to_not_convert")
    if q.flag("load_in_8bit"):
        return Scheme("bnb-int8", skips)
    if not q.flag("load_in_4bit"):
        raise q.refuse("load_in_4bit", "true, here or for load_in_8bit")
    kind = q.text("bnb_4bit_quant_type", "fp4")
    if kind not in {"nf4", "fp4"}:
        raise q.refuse("bnb_4bit_quant_type", "nf4 and fp4")
    return Scheme(f"bnb-{kind}" + "-dq" * q.flag("bnb_4bit_use_double_quant"), skips)


def _mxfp4(q: _Fields) -> Scheme:
    """Transformers' mxfp4 takes experts only (gpt-oss)."""
    return Scheme("mxfp4", (*q.names("modules_to_not_convert"), "self_attn", "eh_proj"))


def _compressed(q: _Fields) -> Scheme:
    """compressed-tensors, one kind of weights for all its groups."""
    groups = q.below("config_groups")
    kinds = {_weight_args(groups.below(name).below("weights")) for name in groups.values}
    if len(kinds) != 1:
        raise q.refuse("config_groups", "groups that store all weights alike")
    for name in groups.values:
        group = groups.below(name)
        if not set(group.names("targets")) <= {"Linear"}:
            raise group.refuse("targets", "Linear alone; what isn't quantised stands in ignore")
    if q.values.get("sparsity_config") and q.below("sparsity_config").text("format", "dense") != "dense":
        raise q.refuse("sparsity_config", "null and the format dense")
    ignored = q.names("ignore")
    forgotten = not any("head" in name for name in ignored)
    notes = ("the head isn't among the ignored modules, but counted unquantised",) * forgotten
    return Scheme(kinds.pop(), ignored, _cache_scheme(q), notes)


def _weight_args(w: _Fields) -> str:
    """Return the format of a group's weights."""
    kind, bits = w.text("type", "int"), w.whole("num_bits", default=8)
    size = w.whole("group_size", default=-1)
    strategy = w.text("strategy") or ("tensor" if size == -1 else "group")
    if kind == "float" and bits == 8:
        if strategy == "block":
            return _blocks(w, "block_structure")
        if strategy in {"tensor", "channel"}:
            return "fp8" if strategy == "tensor" else "fp8-channel"
    if (kind, bits, size) in {("float", 4, 16), ("float", 4, 32)}:
        return "nvfp4" if size == 16 else "mxfp4"
    if kind == "int" and strategy in {"group", "channel"}:
        order = "-act" * (str(w.values.get("actorder")).lower() in {"group", "true"})
        zero = "-zp" * (not w.flag("symmetric", default=True))
        if bits == 8 and strategy == "channel" and not zero:
            return "int8"
        return _group("ct", bits, size if strategy == "group" else -1, w, zero + order)
    raise w.refuse(
        "strategy",
        "for type float: 8 bits by tensor, channel or block, 4 bits by groups of 16 or 32; for int: group, channel",
    )


CACHES = {"fp8": "fp8", "float8": "fp8", "int8": "int8", "nvfp4": "nvfp4", "float4": "nvfp4"}
"""Dtypes of a config's cache scheme: names of ModelOpt, and type and bits of compressed-tensors."""


def _cache_scheme(q: _Fields) -> str | None:
    """Return the dtype of the cache, None where the config has no scheme for it."""
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        value = q.values.get(key)
        if value is None:
            continue
        if isinstance(value, Mapping):
            value = f"{value.get('type')}{value.get('num_bits')}"
        found = CACHES.get(str(value).lower())
        if found is None:
            raise q.refuse(key, "null, fp8, int8 and nvfp4")
        return found
    return None


MODELOPT = {
    "fp8": "fp8", "fp8_per_channel_per_token": "fbgemm-fp8", "fp8_pb_wo": "fp8-block", "nvfp4": "nvfp4", "nvfp4_awq": "nvfp4",
}  # fmt: skip


def _modelopt(q: _Fields) -> Scheme:
    """Nvidia's ModelOpt, one algorithm for all modules that it takes."""
    algo = q.text("quant_algo")
    if algo not in MODELOPT:
        raise q.refuse("quant_algo", f"{', '.join(MODELOPT).upper()}; formats that differ by module aren't modelled")
    if algo.startswith("nvfp4") and q.whole("group_size", default=16) != 16:
        raise q.refuse("group_size", "16")
    return Scheme(MODELOPT[algo], (*q.names("exclude_modules", "ignore"), "eh_proj"), _cache_scheme(q))


METHODS: dict[str, Callable[[_Fields], Scheme]] = {
    "fp8": _fp8,
    "awq": _awq,
    "gptq": _gptq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
    "mxfp4": _mxfp4,
    "fbgemm-fp8": lambda q: Scheme("fbgemm-fp8", q.names("modules_to_not_convert")),
}


RENAMED = tuple(
    (re.compile(theirs), ours)
    for theirs, ours in (
        (r"language_model\\?\.", ""), (r"transformer\\?\.h\b", "model.layers"), (r"\b(block_sparse_moe|ffn)\b", "mlp"),
        (r"\b(attn|self_attention)\b", "self_attn"), (r"\bshared_expert\b", "shared_experts"),
    )
)  # fmt: skip
"""What configs call differently from the paths of `Model.places`."""

LAYER = re.compile(r"(?:.*\.)?layers\.(\d+)(?:\.(.+))?")


@dataclass(frozen=True, slots=True)
class Skips:
    """Patterns of modules that stay unquantised, compiled.

    A name stands for a module and all below it, wherever its parts follow one another in a path ("lm_head", "mlp.gate",
    "model.layers.3"); "*" and "?" make it a glob; "re:" a regular expression that must match from the start. Of experts
    the first speaks for all.

    Attributes:
        names: without a layer's number. anywhere: globs and expressions without digits.
        layers: of the layer with that number, what follows it. numbered: other globs and expressions, with digits.
    """

    names: frozenset[str]
    anywhere: tuple[re.Pattern[str], ...]
    layers: Mapping[int, re.Pattern[str]]
    numbered: tuple[re.Pattern[str], ...]

    def count(self, place: Place) -> int:
        """Return how many layers' tensor of this place stays unquantised."""
        paths = _spellings(place.path)
        if self.names and any(part in self.names for path in paths for part in _parts(path)):
            return place.layers
        if any(pattern.match(path.replace("*", "0")) for pattern in self.anywhere for path in paths):
            return place.layers
        if not (self.layers or self.numbered) or "*" not in place.path:
            return 0
        below = [path.partition("*.")[2] for path in paths]
        kept = 0
        for layer in range(place.first, place.first + place.layers):
            pattern = self.layers.get(layer)
            kept += bool(pattern and any(pattern.match(name) for name in below)) or any(
                pattern.match(path.replace("*", str(layer))) for pattern in self.numbered for path in paths
            )
        return kept


def _spellings(path: str) -> list[str]:
    """Return a path, and what it is called where experts are numbered or projections are fused."""
    found = [path, path.replace(".experts.", ".experts.0.")] if ".experts." in path else [path]
    for names, fused in ((("q_proj", "k_proj", "v_proj"), "qkv_proj"), (("gate_proj", "up_proj"), "gate_up_proj")):
        scope, _, last = path.rpartition(".")
        if last in names:
            found.append(f"{scope}.{fused}")
    return found


def _parts(path: str) -> Iterator[str]:
    """Yield all runs of a path's parts."""
    parts = path.split(".")
    for start in range(len(parts)):
        for end in range(start + 1, len(parts) + 1):
            yield ".".join(parts[start:end])


def _glob(pattern: str) -> str:
    """Return a glob as an expression that matches the module and all below it."""
    return re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".") + r"(?:\..*)?\Z"


@lru_cache(maxsize=32)
def compiled(patterns: tuple[str, ...], where: str = "quantization_config") -> Skips:
    """Compile patterns.

    Raises:
        PlanError: one is no regular expression.
    """
    names: set[str] = set()
    anywhere: list[re.Pattern[str]] = []
    numbered: list[re.Pattern[str]] = []
    layers: dict[int, list[str]] = {}
    for given in patterns:
        pattern = given
        for theirs, ours in RENAMED:
            pattern = theirs.sub(ours, pattern)
        digits = bool(re.search(r"\d|\\d", pattern))
        if pattern.startswith("re:"):
            try:
                (numbered if digits else anywhere).append(re.compile(pattern[3:]))
            except re.error as error:
                raise PlanError(
                    f"{given!r} is no regular expression: {error}",
                    where=where,
                    fix="correct the file, or name a format with --weights",
                ) from error
        elif match := LAYER.fullmatch(pattern):
            layers.setdefault(int(match[1]), []).append(_glob(match[2] or "*"))
        elif "*" in pattern or "?" in pattern:
            (numbered if digits else anywhere).append(re.compile(r"(?:model\.)?" + _glob(pattern)))
        else:
            names.add(pattern)
    together = {layer: re.compile("|".join(sorted(below))) for layer, below in layers.items()}
    return Skips(frozenset(names), tuple(anywhere), together, tuple(numbered))
