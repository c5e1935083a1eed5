"""A config's quantization_config: the format that its method stores, and the modules that it leaves out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from planner.errors import PlanError
from planner.model import Place
from planner.precision import Rule, Scheme, block_format_name, format_named


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
        value = self.values.get(key)
        value = default if value is None else value
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
        return _modelopt(q.below("quantization") if "quantization" in q.values else q, method)
    if not method:
        method = "bitsandbytes" if q.flag("load_in_4bit") or q.flag("load_in_8bit") else ""
        method = method or ("compressed-tensors" if "config_groups" in q.values else "")
    method = "bitsandbytes" if method.startswith("bitsandbytes") else method.removeprefix("intel/")
    if method not in METHODS:
        raise q.refuse("quant_method", f"{', '.join(METHODS)} and modelopt")
    return METHODS[method](q)


def _fp8(q: _Fields) -> Scheme:
    """DeepSeek's fp8 with blocks, or one scale for each matrix. MTP's joint projection (eh_proj) isn't quantised."""
    skips = (*q.names("modules_to_not_convert", "ignored_layers"), "eh_proj")
    if q.values.get("weight_block_size") is None:
        return Scheme("fp8", skips)
    coarse = q.text("scale_fmt") == "ue8m0"
    experts = q.text("expert_dtype", "fp8")
    if experts not in {"fp8", "fp4"}:
        raise q.refuse("expert_dtype", "fp8 and fp4")
    notes = ("scale_fmt ue8m0: scales are counted as fp32",) * coarse
    own = "mxfp4" if experts == "fp4" else None
    listed = q.values.get("quantized_layers") is not None
    if q.values.get("moe_quant_algo") is not None and not listed:
        own = _algorithm(q, "moe_quant_algo")
        notes += (f"moe_quant_algo: routed experts are stored in {own}",)
    elif own:
        aside = " (but for those of quantized_layers)" * listed
        notes += (f"expert_dtype fp4: routed experts are stored in {own}{aside}",)
    return Scheme(_blocks(q, "weight_block_size"), skips, notes=notes, experts=own)


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
    """GPTQ; of its `dynamic` rules, which leave modules out or change bits and groups, the first that matches holds."""
    if q.values.get("lm_head"):
        raise q.refuse("lm_head", "null and false")
    default = _gptq_format(q)
    rules: list[Rule] = []
    dynamic = q.below("dynamic") if q.values.get("dynamic") else _Fields({}, q.where)
    for rule in dynamic.values:
        if str(rule).startswith("-:"):
            rules.append(((f"re:{rule[2:]}",), ""))
        else:
            changed = dynamic.below(rule)
            both = _Fields({**q.values, **changed.values}, changed.where)
            rules.append(((f"re:{rule.removeprefix('+:')}",), _gptq_format(both)))
    skips = q.names("modules_to_not_convert")
    inside = q.values.get(key := "modules_in_block_to_quantize")
    if not any(name for _, name in rules):
        skips += tuple(pattern for patterns, _ in rules for pattern in patterns)
        rules = []
    if not inside:
        return Scheme(default, skips, rules=tuple(rules))
    steps = inside if isinstance(inside, list) and all(isinstance(step, list) for step in inside) else [inside]
    names = tuple(name for step in steps for name in _Fields({key: step}, q.where).names(key))
    if rules:
        raise q.refuse("modules_in_block_to_quantize", "null beside dynamic rules")
    return Scheme("", skips, rules=((names, default),))


def _gptq_format(q: _Fields) -> str:
    """Return GPTQ's format with these bits, groups and order."""
    bits, group = q.whole("bits", default=4), q.whole("group_size", default=128)
    return _group("gptq", bits, group, q) + "-act" * q.flag("desc_act")


def _auto_round(q: _Fields) -> Scheme:
    """AutoRound's integers, packed as GPTQ's or AWQ's; `extra_config` changes modules, 16 bits leave one alone."""
    packing = q.text("packing_format", q.text("backend", "auto_round:auto_gptq"))
    if q.text("data_type", "int") != "int":
        raise q.refuse("data_type", "int")
    kind = next((kind for kind in ("gptq", "awq") if kind in packing), None)
    if kind is None:
        raise q.refuse("packing_format", "auto_round:auto_gptq and auto_round:auto_awq")
    default = _group(kind, q.whole("bits", default=4), q.whole("group_size", default=128), q)
    rules: list[Rule] = []
    extra = q.below("extra_config") if q.values.get("extra_config") else _Fields({}, q.where)
    for name in extra.values:
        one = extra.below(name)
        both = _Fields({**q.values, **one.values}, one.where)
        bits, group = both.whole("bits", default=4), both.whole("group_size", default=128)
        own = bits >= PLAIN_BITS
        pattern = f"re:{name}" if re.search(r"[\\()\[\]^$|+]|\.\*", str(name)) else str(name)
        rules.append(((pattern,), "" if own else _group(kind, bits, group, both)))
    blocks = q.values.get("block_name_to_quantize")
    if not blocks:
        return Scheme(default, rules=tuple(rules))
    listed = blocks.split(",") if isinstance(blocks, str) else blocks
    names = _Fields({"block_name_to_quantize": listed}, q.where).names("block_name_to_quantize")
    return Scheme("", rules=(*rules, (tuple(name.strip() for name in names), default)))


PLAIN_BITS = 16


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
    """compressed-tensors: of its groups' targets, names come before expressions, and both before the class Linear."""
    base, rules = _targets(q)
    if q.values.get("sparsity_config") and q.below("sparsity_config").text("format", "dense") != "dense":
        raise q.refuse("sparsity_config", "null and the format dense")
    ignored = q.names("ignore")
    forgotten = bool(base) and not any("head" in name for name in ignored)
    notes = ("the head isn't among the ignored modules, but counted unquantised",) * forgotten
    return Scheme(base, ignored, _cache_scheme(q), notes, rules=rules)


def _targets(q: _Fields) -> tuple[str, tuple[Rule, ...]]:
    """Return the format of all projections ("": their own), and rules for those that `targets` name."""
    groups = q.below("config_groups")
    base: str | None = None
    exact: list[Rule] = []
    expressions: list[Rule] = []
    for name in groups.values:
        group = groups.below(name)
        stored = "" if group.values.get("weights", 0) is None else _weight_args(group.below("weights"))
        targets = group.names("targets") or ("Linear",)
        classes = {target for target in targets if re.fullmatch(r"[A-Z]\w*", target)}
        if not classes <= {"Linear"}:
            raise group.refuse("targets", "names of modules, expressions (re:...), and of classes Linear alone")
        if classes:
            if base not in {None, stored}:
                raise q.refuse("config_groups", "one format for the class Linear")
            base = stored
        patterns = tuple(target for target in targets if target.startswith("re:"))
        expressions += [((pattern,), stored) for pattern in patterns]
        if names := tuple(target for target in targets if target not in classes and target not in patterns):
            exact.append((names, stored))
    if not base and not any(stored for _, stored in (*exact, *expressions)):
        raise q.refuse("config_groups", "groups, one of them with weights at least")
    return base or "", (*exact, *expressions)


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
        if size == 32 and strategy == "group" and "uint8" in w.text("scale_dtype"):
            return "mxfp8"
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
        "for type float: 8 bits by tensor, channel, block or groups of 32 (scale_dtype uint8), 4 bits by groups of 16 or 32; "
        "for int: group, channel",
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
    "w4a16_nvfp4": "nvfp4", "mxfp8": "mxfp8", "mxfp4": "mxfp4", "w4a8_mxfp4_fp8": "mxfp4",
}  # fmt: skip
"""Nvidia's names, and the format of the weights."""

GROUPS = {"nvfp4": 16, "mxfp4": 32, "mxfp8": 32}


def _algorithm(q: _Fields, key: str = "quant_algo", size: str = "group_size") -> str:
    """Return the format of one of ModelOpt's algorithms."""
    algo = q.text(key)
    if algo not in MODELOPT:
        raise q.refuse(key, f"{', '.join(MODELOPT).upper()}")
    name = MODELOPT[algo]
    if name in GROUPS and q.whole(size, default=GROUPS[name]) != GROUPS[name]:
        raise q.refuse(size, str(GROUPS[name]))
    return name


def _modelopt(q: _Fields, method: str) -> Scheme:
    """Nvidia's ModelOpt: one algorithm for all modules that it takes, or MIXED_PRECISION and a list of them."""
    skips = (*q.names("exclude_modules", "ignore"), "eh_proj")
    cache = _cache_scheme(q)
    if q.text("quant_algo") != "mixed_precision":
        if q.values.get("quant_algo") is None or q.text("quant_algo") not in MODELOPT:
            raise q.refuse("quant_algo", f"{', '.join(MODELOPT).upper()}, MIXED_PRECISION")
        return Scheme(_algorithm(q), skips, cache)
    base = Scheme("", skips, cache)
    if method in METHODS and method != "compressed-tensors":
        notes = (f"ignore and exclude_modules list what ModelOpt left as quant_method {method} has it",) * (
            len(skips) > 1
        )
        base = METHODS[method](q)
        base = base._replace(cache=cache, notes=(*base.notes, *notes))
    if q.values.get("quantized_layers") is not None:
        return base._replace(rules=_listed(q))
    if q.values.get("config_groups") is not None:
        linear, rules = _targets(q)
        return base._replace(weights=linear or base.weights, rules=rules)
    if base.experts is None:
        raise q.refuse("quantized_layers", "objects: a module's name, and its quant_algo")
    return base


def _listed(q: _Fields) -> tuple[Rule, ...]:
    """Return a rule for every algorithm of `quantized_layers`, its modules by name."""
    layers = q.below("quantized_layers")
    kinds: dict[tuple[Any, Any], list[str]] = {}
    for name, args in layers.values.items():  # tens of thousands
        if type(args) is not dict and not isinstance(args, Mapping):
            raise layers.refuse(name, "objects")
        kind = args.get("quant_algo"), args.get("group_size")
        try:
            kinds[kind].append(name)
        except KeyError:
            kinds[kind] = [name]
        except TypeError as error:  # a list or an object
            raise layers.refuse(name, "a text for quant_algo and a number for group_size") from error
    if not kinds:
        raise q.refuse("quantized_layers", "objects: a module's name, and its quant_algo")
    return tuple((tuple(names), _algorithm(layers.below(names[0]))) for names in kinds.values())


def _gguf(q: _Fields) -> Scheme:
    """Return the mixture of block formats that a GGUF file's type names."""
    return Scheme(format_named(q.text("file_type"), f"{q.where}.file_type").name)


METHODS: dict[str, Callable[[_Fields], Scheme]] = {
    "fp8": _fp8,
    "awq": _awq,
    "gptq": _gptq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
    "mxfp4": _mxfp4,
    "fbgemm-fp8": lambda q: Scheme("fbgemm-fp8", q.names("modules_to_not_convert")),
    "auto-round": _auto_round,
    "gguf": _gguf,
}


RENAMED = tuple(
    (re.compile(theirs), ours)
    for theirs, ours in (
        (r"language_model\\?\.", ""), (r"transformer\\?\.h\b", "model.layers"), (r"\b(block_sparse_moe|ffn)\b", "mlp"),
        (r"\b(attn|self_attention)\b", "self_attn"), (r"\bshared_expert\b", "shared_experts"),
        (r"\bindex_([qk])_proj\b", r"indexer.\1_proj"),
        (r"\bindexers_proj\b", "indexer.weights_proj"),  # GLM-5: someone removed ".weight"
        (r"\bw1\b", "gate_proj"), (r"\bw2\b", "down_proj"), (r"\bw3\b", "up_proj"),
    )
)  # fmt: skip
"""Names for the same thing, in configs and in the paths of `Model.places`; both are brought to the second form."""

NUMBER = re.compile(r"\.([0-9]{1,6})(?=\.|$)")
LAYER = re.compile(r"(?:([^#]*)\.)?(?:layers|blocks|h)\.#(?:\.(.+))?")
TOWER = re.compile(r"vis|vit|image|audio|tower")
NESTED = re.compile(r"\([^()]*[*+][^()]*\)(?:[*+]|\{\d*,)")


class _Numbered(NamedTuple):
    """A name or glob below layers with these numbers.

    Attributes:
        shown: as the config has it, "*" for the numbers. side: of the model, "" for text in any stack.
        layers: how many experts are named one by one, 0 where a module is named as a whole, by layer.
    """

    shown: str
    side: str
    layers: dict[int, int]

    def at(self, place: Place) -> frozenset[int]:
        """Return the layers of a place that this names: of experts named one by one, where they are half of them or more."""
        copies = place.leaf.copies if place.leaf.work == "experts" else 1
        numbers = range(place.first, place.first + place.layers)
        if len(self.layers) < len(numbers):
            return frozenset(n for n, experts in self.layers.items() if n in numbers and _most(experts, copies))
        return frozenset(n for n in numbers if n in self.layers and _most(self.layers[n], copies))


def _most(experts: int, copies: int) -> bool:
    return not experts or 2 * experts >= copies


class _Anywhere(NamedTuple):
    """A glob or an expression for whole paths; `numbered`: layers differ, so that each has to be tried."""

    shown: str
    expression: re.Pattern[str]
    numbered: bool


@dataclass(frozen=True, slots=True, eq=False)
class Patterns:
    """Patterns of modules, compiled.

    A name stands for a module and all below it, wherever its parts follow one another in a path ("lm_head", "mlp.gate",
    "model.layers.3"); "*" and "?" make it a glob; "re:" a regular expression that must match from the start. Names that
    differ only in the numbers of layers and experts are one entry. Experts aren't told apart: all follow the majority.

    Attributes:
        names: without numbers, and how the config writes them. anywhere: globs and expressions.
        exact: what follows a layer's number, by that. globs: the same with wildcards.
    """

    names: Mapping[str, str]
    anywhere: tuple[_Anywhere, ...]
    exact: Mapping[str, tuple[_Numbered, ...]]
    globs: tuple[tuple[re.Pattern[str], _Numbered], ...]

    def layers(self, place: Place) -> frozenset[int]:
        """Return the layers whose tensor of this place is named."""
        found: frozenset[int] = frozenset()
        for _, layers in self._found(place):
            found |= layers
            if len(found) == place.layers:
                break
        return found

    def _found(self, place: Place) -> Iterator[tuple[str, frozenset[int]]]:
        """Yield the patterns that name something of this place, as the config writes them, and in which layers."""
        everywhere, numbered, tried = _at(self, place.path, _side(place))
        every = range(place.first, place.first + place.layers)
        for shown in everywhere:
            yield shown, frozenset(every)
        for each in numbered:
            if layers := each.at(place):
                yield each.shown, layers
        for one in tried:
            spelled = _spellings(place.path)
            match = one.expression.match
            if layers := frozenset(n for n in every if any(match(path.replace("*", str(n))) for path in spelled)):
                yield one.shown, layers

    def unmatched(self, places: Iterable[Place]) -> dict[str, int]:
        """Return how many of the modules named are none of these places, by pattern."""
        met: dict[str, set[int]] = {}
        for place in places:
            for shown, layers in self._found(place):
                met.setdefault(shown, set()).update(layers)
        lost = {shown: 1 for shown in (*self.names.values(), *(one.shown for one in self.anywhere)) if shown not in met}
        for each in self._numbered():
            missing = [max(1, n) for layer, n in each.layers.items() if layer not in met.get(each.shown, ())]
            if missing:
                lost[each.shown] = lost.get(each.shown, 0) + sum(missing)
        return lost

    def partial(self, places: Iterable[Place]) -> dict[str, tuple[int, int]]:
        """Return where only some experts of a layer are named: the fewest of them, and how many there are, by pattern."""
        found: dict[str, tuple[int, int]] = {}
        for place in places:
            if place.leaf.work != "experts":
                continue
            for each in _at(self, place.path, _side(place))[1]:
                for layer in range(place.first, place.first + place.layers):
                    n = each.layers.get(layer, 0)
                    if 0 < n < place.leaf.copies:
                        found[each.shown] = min(found.get(each.shown, (n, place.leaf.copies)), (n, place.leaf.copies))
        return found

    def _numbered(self) -> Iterator[_Numbered]:
        """Yield all entries with layers' numbers."""
        for several in self.exact.values():
            yield from several
        for _, each in self.globs:
            yield each


def _side(place: Place) -> str:
    return "tower" if place.stack in {"vision", "audio"} else place.stack


def _side_named(prefix: str) -> str:
    """Return which side of a model the text before "layers" means: "tower", "encoder", "decoder", "mtp" or any ("")."""
    if TOWER.search(prefix):
        return "tower"
    return next((part for part in prefix.split(".") if part in {"encoder", "decoder", "mtp"}), "")


@lru_cache(maxsize=4096)
def _at(
    patterns: Patterns, path: str, side: str
) -> tuple[tuple[str, ...], tuple[_Numbered, ...], tuple[_Anywhere, ...]]:
    """Return which patterns name a path in all layers, which in layers with numbers, and which must be tried for each."""
    paths = _spellings(path)
    everywhere = [
        patterns.names[part]
        for part in dict.fromkeys(part for each in paths for part in _parts(each))
        if part in patterns.names
    ]
    tried = []
    for one in patterns.anywhere:
        if one.numbered and "*" in path:
            tried.append(one)
        elif any(one.expression.match(each.replace("*", "0")) for each in paths):
            everywhere.append(one.shown)
    if "*" not in path:
        return tuple(everywhere), (), ()
    below = dict.fromkeys(each.partition("*.")[2] for each in paths)
    starts = dict.fromkeys(start for each in below for start in ("", *accumulate(each.split("."), "{}.{}".format)))
    numbered = [each for start in starts for each in patterns.exact.get(start, ())]
    numbered += [each for glob, each in patterns.globs if any(glob.match(name) for name in below)]
    fitting = (each for each in numbered if each.side == side or (not each.side and side != "tower"))
    return tuple(everywhere), tuple(fitting), tuple(tried)


@lru_cache(maxsize=4096)
def _spellings(path: str) -> tuple[str, ...]:
    """Return a path, and what it is called where names differ, experts are numbered or projections are fused."""
    found = [path, _renamed(path)]
    found += [each.replace(".experts.", ".experts.0.") for each in found if ".experts." in each]
    for names, fused in ((("q_proj", "k_proj", "v_proj"), "qkv_proj"), (("gate_proj", "up_proj"), "gate_up_proj")):
        if path.rpartition(".")[2] in names:
            found += [f"{each.rpartition('.')[0]}.{fused}" for each in found]
    if path.startswith("model.language_model."):  # multimodal checkpoints from before transformers 4.52
        found += [each.replace("model.language_model.", "language_model.model.", 1) for each in found]
    found += [each.removeprefix("model.") for each in found]
    return tuple(dict.fromkeys(found))


def _renamed(text: str) -> str:
    for theirs, ours in RENAMED:
        text = theirs.sub(ours, text)
    return text


def _parts(path: str) -> Iterator[str]:
    """Yield all runs of a path's parts."""
    parts = path.split(".")
    for start in range(len(parts)):
        for end in range(start + 1, len(parts) + 1):
            yield ".".join(parts[start:end])


def _glob(pattern: str) -> str:
    """Return a glob as an expression that matches the module and all below it."""
    stars = re.sub(r"\*+", "*", pattern)
    return re.escape(stars).replace(r"\*", ".*").replace(r"\?", ".") + r"(?:\..*)?\Z"


def _expressions(given: str, where: str) -> Iterator[_Anywhere]:
    """Yield a regular expression as it stands, and with its names as the planner's paths have them.

    Raises:
        PlanError: it is none, or one that can take for ever.
    """
    fix = "correct the file, or name a format with --weights"
    if NESTED.search(given) or len(re.findall(r"[*+]", given)) > REPEATS or len(given) > LONGEST:
        raise PlanError(f"{given[:60]!r} repeats too much, or is too long, to be tried", where=where, fix=fix)
    numbered = bool(re.search(r"\d|\\d", given))
    own = re.sub(r"(?<!\\)\.\*(?:\.\*)+", ".*", given[3:])
    for text in dict.fromkeys((own, _renamed(own))):
        try:
            yield _Anywhere(given, re.compile(text), numbered)
        except (re.error, OverflowError, RecursionError) as error:
            if text == own:
                raise PlanError(f"{given!r} is no regular expression: {error}", where=where, fix=fix) from error


LONGEST, REPEATS = 2000, 12
"""Characters, and stars and pluses, of a regular expression that is tried."""


def check(patterns: tuple[str, ...], where: str) -> None:
    """Compile regular expressions.

    Raises:
        PlanError: one is none.
    """
    for given in patterns:
        if given.startswith("re:"):
            list(_expressions(given, where))


@lru_cache(maxsize=32)
def compiled(patterns: tuple[str, ...]) -> Patterns:
    """Compile patterns: see `check` for what can be wrong with them.

    Twenty thousand names of experts take 25 ms: "@" stands for their numbers, which are counted, then "#" for others.
    """
    names: dict[str, str] = {}
    anywhere: list[_Anywhere] = []
    exact: dict[str, list[_Numbered]] = {}
    globs: list[tuple[re.Pattern[str], _Numbered]] = []
    counts: dict[str, int] = {}
    for given in patterns:
        if given.startswith("re:"):
            anywhere += _expressions(given, "quantization_config")
            continue
        head, marked, tail = given.partition(".experts.")
        number, dot, rest = tail.partition(".")
        if "#" in given or "@" in given:  # marks, and in no module's name
            names[given] = given
        elif marked and number.isdecimal():
            key = f"{head}.experts.@{dot}{rest}"
            counts[key] = counts.get(key, 0) + 1
        else:
            counts[given] = 0
    families: dict[tuple[str, ...], list[tuple[list[str], int]]] = {}
    for text, count in counts.items():
        pieces = NUMBER.split(text)
        families.setdefault(tuple(pieces[::2]), []).append((pieces[1::2], count))
    for texts, members in families.items():
        shown, text = ".*".join(texts).replace("@", "*"), _renamed(".#".join(texts))
        if match := LAYER.fullmatch(text):
            side, below = _side_named(match[1] or ""), (match[2] or "").replace(".@", "")
            for rest, layers in _by_rest(below, members).items():
                each = _Numbered(shown, side, layers)
                if "*" in rest or "?" in rest:
                    globs.append((re.compile(_glob(rest)), each))
                else:
                    exact.setdefault(rest, []).append(each)
            continue
        for numbers, _ in members:
            full = _filled(text.replace(".@", ""), numbers)
            if "*" in full or "?" in full:
                numbered = bool(re.search(r"\d", full))
                anywhere.append(_Anywhere(shown, re.compile(r"(?:model\.)?" + _glob(full)), numbered))
            else:
                names[full] = shown
    return Patterns(names, tuple(anywhere), {below: tuple(several) for below, several in exact.items()}, tuple(globs))


def _by_rest(below: str, members: list[tuple[list[str], int]]) -> dict[str, dict[int, int]]:
    """Return layers by what follows their number, other numbers filled in; and how many of their experts are named."""
    found: dict[str, dict[int, int]] = {}
    for numbers, count in members:
        rest = _filled(below, numbers[1:]) if "#" in below else below
        found.setdefault(rest, {})[int(numbers[0])] = count
    return found


def _filled(text: str, numbers: list[str]) -> str:
    """Return a text with numbers for its "#"."""
    for number in numbers:
        text = text.replace("#", number, 1)
    return text
