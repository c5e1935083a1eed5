"""How wide numbers are: formats of stored weights, caches and activations, and which of them a model has.

A `Format` says how one matrix [n_in, n_out] is stored; `FORMATS` is the table of them. `resolve` reads the user's options
and the config's quantization_config; `weight_bytes` sums over the leaves.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from planner.blocks import Cache, Work
from planner.errors import PlanError
from planner.model import Model, Place, Stack

if TYPE_CHECKING:
    from planner.quantization import Patterns

PRODUCTS: frozenset[Work] = frozenset({"linear", "experts"})
"""What quantisers take: projections and experts. Tables, heads, routers, norms, biases and convolutions keep their width."""


class Format(NamedTuple):
    """How a matrix [n_in, n_out] is stored.

    A last group that isn't full has scales of its own (ceil); tools that refuse such shapes are named in `source`.

    Attributes:
        name: as in `--weights`. description: a phrase. source: where the layout is from.
        bits: of an element.
        group: elements along the input that share a scale; None: all.
        group_out: output rows that share a scale; None: all.
        scale_bits, zero_bits: of a group's scale and zero point.
        nested_bits: of every 256 groups, the scale of their scales.
        matrix_bits: of every matrix (each expert's is one). input_bits: of every input row (act-order's g_idx).
        word_bits: elements along the input are packed in words of that size.
        flat: groups run through the whole matrix and not row by row.
        works: which leaves it quantises; the others keep their own width.
        mixture: llama-quantize's name of the file, whose rules choose a block format for each tensor; "": none.
    """

    name: str
    description: str
    bits: int
    group: int | None = None
    group_out: int | None = 1
    scale_bits: int = 0
    zero_bits: int = 0
    nested_bits: int = 0
    matrix_bits: int = 0
    input_bits: int = 0
    word_bits: int = 8
    flat: bool = False
    works: frozenset[Work] = PRODUCTS
    mixture: str = ""
    source: str = ""

    @property
    def plain(self) -> bool:
        """Whether it is a width alone, for all tensors."""
        return not self.works

    @property
    def bits_per_element(self) -> Fraction:
        """Bits of an element with its share of a group's scale."""
        return self.bits + Fraction(self.scale_bits + self.zero_bits, self.group or 1)

    def matrix_bytes(self, n_in: int, n_out: int) -> int:
        """Return the bytes of one matrix; each of its tensors is padded to whole bytes."""
        if self.plain:
            return n_in * n_out * self.bits // 8
        if self.flat:
            groups = -(-n_in * n_out // (self.group or n_in * n_out))
            values = n_in * n_out * self.bits
        else:
            groups = -(-n_in // (self.group or n_in)) * -(-n_out // (self.group_out or n_out))
            values = n_out * -(-n_in * self.bits // self.word_bits) * self.word_bits
        nested = -(-groups // 256) * self.nested_bits
        tensors = (
            values,
            groups * self.scale_bits,
            groups * self.zero_bits,
            nested,
            self.matrix_bits + n_in * self.input_bits,
        )
        return sum(-(-bits // 8) for bits in tensors)


LLAMA_CPP = (
    "llama.cpp, src/llama-quant.cpp and ggml-common.h (2026); agrees to 20 MB with llama-quantize's own table for "
    "Llama-3-8B, and q4_k_m with a file of Gemma-3-270M to the byte; less sure for encoder-decoders and fused projections"
)


def _plain(name: str, description: str, bits: int) -> Format:
    return Format(name, description, bits, works=frozenset())


def _block(name: str, bits: int, group: int, extra_bits: int, mixture: str = "") -> Format:
    """Return a llama.cpp block format: `group` elements of a row and `extra_bits` of scales and minima."""
    size = (bits * group + extra_bits) // 8
    mixed = f"{mixture}: " if mixture else ""
    text = f"llama.cpp {mixed}{size} bytes for {group} elements, more for some tensors; vectors and routers in fp32"
    return Format(name, text, bits, group, scale_bits=extra_bits, mixture=mixture or name, source=LLAMA_CPP)


def _integer(kind: str, bits: int, group: int | None, *, zero: bool = False, act: bool = False) -> Format:
    """Return a group-wise integer format of AWQ, GPTQ or compressed-tensors ("ct")."""
    size = f"g{group}" if group else "channel"
    name = f"{kind}-int{bits}-{size}" + "-zp" * (zero and kind == "ct") + "-act" * act
    title = {"awq": "AWQ", "gptq": "GPTQ", "ct": "compressed-tensors, pack-quantized"}[kind]
    zeros = ", packed zero points" if zero else ", no zero points"
    text = f"{title}: {bits} bits, a 16-bit scale {f'for {group} inputs' if group else 'for each output'}{zeros}"
    source = {
        "awq": "autoawq 0.2.9, linear/gemm.py: qweight, qzeros, scales fp16; refuses inputs that the group doesn't divide",
        "gptq": "AutoGPTQ's QuantLinear: qweight, qzeros, scales fp16, ceil(inputs / group) groups; its files hold a g_idx "
        "of int32 in any case, counted with act-order only, where it is needed",
        "ct": "compressed-tensors 0.20.1: weight_packed in int32 words, weight_scale in the model's 16 bits, weight_shape of "
        "two int64; weight_g_idx with actorder 'group'",
    }[kind]
    return Format(
        name, text + ", act-order" * act, bits, group, scale_bits=16, zero_bits=bits * zero, input_bits=32 * act,
        matrix_bits=128 * (kind == "ct"), word_bits=32, source=source,
    )  # fmt: skip


def block_format_name(rows: int, columns: int) -> str:
    """Return the name of the fp8 format with blocks of this size."""
    return "fp8-block" if rows == columns == 128 else f"fp8-block-{rows}x{columns}"


def _fp8_block(rows: int, columns: int) -> Format:
    text = f"8-bit floats, an fp32 scale for each block of {rows} x {columns}"
    source = (
        "deepseek-ai/DeepSeek-V3 (weight_scale_inv); gives the tensor counts of its files to the element, MTP included"
    )
    return Format(block_format_name(rows, columns), text, 8, columns, rows, scale_bits=32, source=source)


def _bnb4(kind: str, *, double: bool = False) -> Format:
    scale = "an 8-bit maximum, 256 of them an fp32 scale" if double else "an fp32 maximum"
    return Format(
        f"bnb-{kind}" + "-dq" * double, f"bitsandbytes 4-bit ({kind}), a block of 64 elements has {scale}", 4, 64,
        scale_bits=8 if double else 32, nested_bits=32 * double, flat=True,
        source="bitsandbytes 0.50.2, functional.quantize_4bit; the 1 kB of code tables of a matrix isn't counted",
    )  # fmt: skip


FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        _plain("fp32", "32-bit floats", 32),
        _plain("fp16", "16-bit floats, IEEE half", 16),
        _plain("bf16", "16-bit floats, bfloat16", 16),
        Format("fp8", "8-bit floats, one fp32 scale for each matrix and each expert's", 8, None, None, scale_bits=32,
               source="modelopt and vLLM's online fp8: weight_scale; activation scales not counted"),
        Format("fp8-channel", "8-bit floats, a 16-bit scale for each output", 8, scale_bits=16,
               source="compressed-tensors 0.20.1, FP8-dynamic: weight_scale in the model's dtype"),
        Format("fbgemm-fp8", "8-bit floats, an fp32 scale for each output", 8, scale_bits=32,
               source="FBGEMM (Llama-3.1-405B-FP8): weight_scale fp32 [n_out, 1]"),
        _fp8_block(128, 128),
        Format("nvfp4", "4-bit floats, an fp8 scale for 16 inputs and an fp32 one for each matrix", 4, 16, scale_bits=8,
               matrix_bits=32, source="modelopt NVFP4 (weight_scale, weight_scale_2); activation scales not counted"),
        Format("mxfp4", "4-bit floats, an 8-bit power of two for 32 inputs", 4, 32, scale_bits=8,
               source="OCP Microscaling v1.0; gpt-oss blocks and scales"),
        Format("mxfp8", "8-bit floats, an 8-bit power of two for 32 inputs", 8, 32, scale_bits=8,
               source="OCP Microscaling v1.0; modelopt MXFP8 and compressed-tensors: weight_scale uint8 [n_out, n_in / 32]"),
        _integer("awq", 4, 128, zero=True),
        _integer("gptq", 4, 128, zero=True),
        _integer("gptq", 4, 128, zero=True, act=True),
        _integer("ct", 4, 128),
        Format("int8", "8-bit integers, a 16-bit scale for each output", 8, scale_bits=16,
               source="compressed-tensors 0.20.1, int-quantized (W8A8): weight_scale [n_out, 1] in the model's 16-bit dtype"),
        Format("bnb-int8", "LLM.int8: 8-bit integers, an fp32 scale for each output", 8, scale_bits=32,
               source="bitsandbytes 0.50.2, nn/modules.py: SCB"),
        _bnb4("nf4"), _bnb4("nf4", double=True), _bnb4("fp4"), _bnb4("fp4", double=True),
        _block("q4_0", 4, 32, 16), _block("q4_1", 4, 32, 32),
        _block("q5_0", 5, 32, 16), _block("q5_1", 5, 32, 32), _block("q8_0", 8, 32, 16),
        _block("q2_k", 2, 256, 160), _block("q3_k", 3, 256, 112, "q3_k_m"), _block("q4_k", 4, 256, 128, "q4_k_m"),
        _block("q5_k", 5, 256, 128, "q5_k_m"), _block("q6_k", 6, 256, 144),
        _block("q3_k_s", 3, 256, 112, "q3_k_s"), _block("q3_k_m", 3, 256, 112, "q3_k_m"),
        _block("q3_k_l", 3, 256, 112, "q3_k_l"), _block("q4_k_s", 4, 256, 128, "q4_k_s"),
        _block("q4_k_m", 4, 256, 128, "q4_k_m"), _block("q5_k_s", 5, 256, 128, "q5_k_s"),
        _block("q5_k_m", 5, 256, 128, "q5_k_m"),
    )
}  # fmt: skip
"""Weight formats by name. AWQ, GPTQ, compressed-tensors ("ct") and fp8 blocks of other sizes: see `format_named`."""

INTEGERS = r"(awq|gptq|ct)-int([1-8])-(?:g([1-9]\d{0,4})|channel)(-zp)?(-act)?"
BLOCKS = r"fp8-block-([1-9]\d{0,4})x([1-9]\d{0,4})"
SHORT = {
    "int4": "ct-int4-g128",
    "awq": "awq-int4-g128",
    "gptq": "gptq-int4-g128",
    "nf4": "bnb-nf4",
    "bnb-4bit": "bnb-nf4",
}
"""Names that people use for a format, and which one they get."""

DTYPES: dict[str, Fraction] = {
    **{name: Fraction(bits) for name, bits in dict(fp32=32, fp16=16, bf16=16, fp8=8, int8=8, int4=4, fp4=4).items()},
    **{name: FORMATS[name].bits_per_element for name in ("nvfp4", "mxfp4", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1")},
    "iq4_nl": Fraction(18 * 8, 32),
}
"""Bits of an element of activations, caches and states, its share of block scales included."""

SCALED_ELEMENTS = 128
"""Elements of packed cache rows that share a scale."""

PACKED_LATENTS = "fp8_ds_mla"

LAYOUTS: dict[str, dict[int, int]] = {PACKED_LATENTS: {576: 656, 128: 132}}
"""Formats of whole cache rows, in which elements differ in width: bytes of a row, by its elements.

fp8_ds_mla: a latent is 512 elements of 8 bits, a 32-bit scale for each 128 of them and 64 rotary elements of 16 bits; the key
of an indexer, 128 elements of 8 bits and a 32-bit scale (vLLM, model_executor/layers/attention/mla_attention.py, 0.32).
"""

SPELLINGS = {
    "float32": "fp32", "float": "fp32", "f32": "fp32", "float16": "fp16", "half": "fp16", "f16": "fp16", "bfloat16": "bf16",
    **dict.fromkeys(("float8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3", "fp8_e4m3", "fp8_e5m2", "e4m3", "e5m2"), "fp8"),
    "float4": "fp4", "float4_e2m1fn_x2": "fp4",
}  # fmt: skip


def canonical(dtype: str, where: str) -> str:
    """Return the short name of a dtype: "bf16" of "torch.bfloat16".

    Args:
        dtype: any of its names.
        where: option, or file and field, for the message.

    Raises:
        PlanError: there is no such dtype.
    """
    lower = str(dtype).lower().removeprefix("torch.")
    name = SPELLINGS.get(lower, lower)
    if name not in DTYPES:
        raise PlanError(f"found {dtype!r}, allowed are {', '.join(DTYPES)}", where=where, fix="choose one of these")
    return name


def element_bits(dtype: str) -> Fraction:
    """Return the bits of an element, its share of block scales included (q8_0: 34 bytes for 32, 8.5 bits)."""
    return row_bits(dtype, next(iter(LAYOUTS[dtype]))) if dtype in LAYOUTS else DTYPES[dtype]


def chooser_bytes(head: int) -> int:
    """Return the bytes of a key that chooses rows, as engines store it: 8-bit elements, a 32-bit scale for 128 of them.

    >>> chooser_bytes(128)
    132
    """
    return head + 4 * (head // SCALED_ELEMENTS)


def row_bits(dtype: str, row: int) -> Fraction:
    """Return the bits of an element of a cache row of so many, its share of what the row holds beside them included."""
    if dtype not in LAYOUTS:
        return DTYPES[dtype]
    return Fraction(LAYOUTS[dtype][row] * 8, row)


@lru_cache(maxsize=64)
def _parsed(name: str) -> Format | None:
    if match := re.fullmatch(INTEGERS, name):
        kind, bits, group, zero, act = match.groups()
        if (kind == "ct" or not zero) and (kind != "awq" or not act):
            return _integer(
                kind, int(bits), int(group) if group else None, zero=kind != "ct" or bool(zero), act=bool(act)
            )
    if match := re.fullmatch(BLOCKS, name):
        return _fp8_block(int(match[1]), int(match[2]))
    return None


def format_named(name: str, where: str = "--weights") -> Format:
    """Return a weight format.

    Args:
        name: a key of `FORMATS`; "awq-int4-g64", "gptq-int8-channel-act", "ct-int4-g32-zp", "fp8-block-64x64" and the like;
            a plain width as any library spells it; or one of `SHORT`.
        where: option, or file and field, for the message.

    Raises:
        PlanError: there is none of that name.
    """
    lower = str(name).lower().removeprefix("torch.")
    lower = SPELLINGS.get(lower, lower)
    lower = SHORT.get(lower, lower)
    found = FORMATS.get(lower) or _parsed(lower)
    if found is None:
        near = get_close_matches(lower, [*FORMATS, *SHORT], n=3, cutoff=0.5)
        hint = f" (near: {', '.join(near)})" * bool(near)
        raise PlanError(
            f"found {name!r}{hint}, allowed are {', '.join(FORMATS)}",
            where=where,
            fix="`plan models --formats` describes them",
        )
    return found


Rule: TypeAlias = tuple[tuple[str, ...], str]
"""Patterns of modules (see `quantization.Patterns`), and the name of their format; "" is their own width."""


class Scheme(NamedTuple):
    """A config's quantisation.

    Attributes:
        weights: format of all modules that no rule names; "" where they keep their own width.
        skips: patterns of modules left out. cache: its dtype. notes: what was assumed.
        experts: routed experts' own format. rules: of modules with other formats; the first that names one holds.
    """

    weights: str
    skips: tuple[str, ...] = ()
    cache: str | None = None
    notes: tuple[str, ...] = ()
    experts: str | None = None
    rules: tuple[Rule, ...] = ()

    def title(self, own: str) -> str:
        """Return the name to show: the format, or "mixed: " and all of them, narrow ones first."""
        names = {name for name in (self.weights, *(name for _, name in self.rules)) if name} - {own} or {own}
        listed = sorted(names, key=lambda name: (format_named(name).bits, name))
        return listed[0] if len(listed) == 1 else f"mixed: {', '.join(listed)}"


class Precision(NamedTuple):
    """The widths that a plan uses.

    Attributes:
        activations, cache, state: dtypes (`DTYPES`). weights: name of a `Format`, or "mixed: " and several.
        own: width of tensors that the format leaves alone.
        skips: patterns of modules that stay unquantised, see `quantization.Patterns`.
        notes: what was assumed.
        experts: format of routed experts, where it isn't that of the other weights (DeepSeek-V4).
        rules: formats that differ by module; the first that names one holds.
        default: format of modules that no rule names; None: `weights`.
        packs_choosers: keys that choose rows are 8 bits with scales, whatever the cache is.
    """

    activations: str
    weights: str
    cache: str
    state: str
    own: str
    skips: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    experts: str | None = None
    rules: tuple[Rule, ...] = ()
    default: str | None = None
    packs_choosers: bool = False

    @property
    def base(self) -> str:
        """Return the name of the format of modules that no rule names."""
        return self.default or self.weights


def resolve(
    model: Model,
    *,
    dtype: str | None = None,
    weights: str | None = None,
    cache_dtype: str | None = None,
    state_dtype: str | None = None,
) -> Precision:
    """Return the widths to plan with: the user's options, else the config's, else bf16; states are fp32.

    Args:
        model: whose `dtype` and `quantization` are as the config says.
        dtype: of activations; unquantised weights follow it where it is a plain width, as engines cast them.
        weights: format of the weights; replaces the config's quantisation.
        cache_dtype: of cache rows; default: the config's cache scheme, else that of activations.
        state_dtype: of recurrent states.

    Raises:
        PlanError: an option or a field of the config that isn't understood.
    """
    notes: list[str] = []
    dtype, weights, cache_dtype, state_dtype = (
        None if o == "auto" else o for o in (dtype, weights, cache_dtype, state_dtype)
    )
    activations = canonical(dtype, "--dtype") if dtype else _checkpoint_dtype(model, notes)
    if activations == "fp32" and not dtype and model.engine.casts_float32:
        activations = "bf16"
        notes.append(f"the config says float32, which {model.engine.name} runs in bfloat16: --dtype float32 keeps it")
    own = activations
    if not _is_plain(activations):
        own = _checkpoint_dtype(model, notes)
        notes.append(
            f"--dtype {activations} is that of activations; tensors that aren't quantised and the cache stay {own}"
        )
    scheme = _scheme(model, weights, notes) or Scheme(own)
    theirs = scheme.title(own)
    chosen = theirs if not weights or str(weights).lower() == theirs else format_named(weights).name
    if chosen == theirs:
        notes += scheme.notes
    elif not _is_plain(theirs):
        lists = "its list of unquantised modules" if not scheme.rules else "its lists of modules: one format for all"
        notes.append(f"--weights {chosen} replaces the config's {theirs} and {lists}")
    skips = scheme.skips if chosen == theirs else ()
    experts = scheme.experts if chosen == theirs else None
    rules = scheme.rules if chosen == theirs else ()
    if str(weights).lower() in SHORT:
        notes.append(f"--weights {weights} is read as {chosen}")
    if not rules and format_named(chosen).mixture:
        notes.append(
            f"{chosen}: llama-quantize's choice of blocks, no importance matrix; a file's metadata isn't counted"
        )
    for patterns in (skips, *(patterns for patterns, _ in rules)):
        if patterns:
            _check(patterns, f"{model.source}, quantization_config")
    cache = _cache_dtype(model, cache_dtype) if cache_dtype else model.engine.cache_dtype or scheme.cache or own
    if scheme.cache and not cache_dtype and not model.engine.cache_dtype:
        notes.append(f"the config's cache scheme stores rows in {cache}")
    if cache == "fp8" and model.engine.packs_latents and _chooses_latents(model):
        cache = PACKED_LATENTS
        notes.append(f"{model.engine.name} packs 8-bit latents with their scales: {PACKED_LATENTS}")
    if state_dtype:
        state = canonical(state_dtype, "--state-dtype")
    else:
        state = canonical(model.state_dtype or "fp32", f"{model.source}, mamba_ssm_dtype")
    own = chosen if _is_plain(chosen) else own
    default = (scheme.weights or own) if rules else None
    packs = model.engine.packs_choosers
    found = Precision(activations, chosen, cache, state, own, skips, (), experts, rules, default, packs)
    if rules:
        notes += _rule_notes(model, found)
    return found._replace(notes=tuple(dict.fromkeys(notes)))


def cache_bits(precision: Precision, cache: Cache) -> Fraction:
    """Return the bits of an element of a cache: of its rows, or of its state."""
    if cache.kind == "state":
        return element_bits(precision.state)
    if cache.chooses and precision.packs_choosers:
        return Fraction(8 * chooser_bytes(cache.row), cache.row)
    return row_bits(precision.cache, cache.row)


def _cache_dtype(model: Model, name: str) -> str:
    """Return the dtype of cache rows, or the layout of whole rows, which must be the model's."""
    layout = str(name).lower()
    if layout not in LAYOUTS:
        return canonical(name, "--cache-dtype")
    known = LAYOUTS[layout]
    caches = [cache for stack in model.stacks for cache in stack.caches if cache.kind != "state"]
    if not caches or any(cache.split or cache.row not in known for cache in caches):
        found = ", ".join(f"{row:,}" for row in sorted({cache.row for cache in caches})) or "none"
        rows = " or ".join(map(str, known))
        raise PlanError(
            f"found {name!r}, a layout of latents and indexer keys of {rows} elements; rows of {model.name}: {found}",
            where="--cache-dtype", fix="choose fp8",
        )  # fmt: skip
    return layout


def unpacked(cache: str) -> str:
    """Return the dtype of a cache's elements: that of packed latents is fp8."""
    return "fp8" if cache == PACKED_LATENTS else cache


def _chooses_latents(model: Model) -> bool:
    """Return whether keys choose which latents are read, all rows being of a size that engines pack."""
    caches = [cache for stack in model.stacks for cache in stack.caches if cache.kind != "state"]
    known = LAYOUTS[PACKED_LATENTS]
    return any(cache.chooses for cache in caches) and all(not cache.split and cache.row in known for cache in caches)


def _is_plain(name: str) -> bool:
    return name in FORMATS and FORMATS[name].plain


def _checkpoint_dtype(model: Model, notes: list[str]) -> str:
    """Return the config's dtype, bf16 where it has none."""
    if model.dtype is None:
        notes.append("no dtype in the config: bf16 assumed")
        return "bf16"
    found = canonical(model.dtype, f"{model.source}, torch_dtype")
    if not _is_plain(found):
        raise PlanError(
            f"found {model.dtype!r}, allowed are float32, float16 and bfloat16", where=f"{model.source}, torch_dtype",
            fix="set it to one of these; --weights names a weight format",
        )  # fmt: skip
    return found


def _scheme(model: Model, weights: str | None, notes: list[str]) -> Scheme | None:
    """Return the config's quantisation, None where it has none; what the user replaces needn't be understood."""
    if not model.quantization:
        return None
    from planner.quantization import read  # noqa: PLC0415

    try:
        return read(model.quantization, f"{model.source}, quantization_config")
    except PlanError:
        if weights is None:
            raise
        notes.append(f"the config's quantization_config isn't understood; --weights {weights} replaces it")
        return None


class Tensors(NamedTuple):
    """Equal tensors of a run of layers, in one format.

    Attributes:
        place: where they stand. count: how many layers store one. format: name of the format of their matrices.
        matrix_bytes, bias_bytes: of one layer, all copies; the matrix may be stored elsewhere (tied).
        layers: which of the stack's these are; 0 alone for what stands before and after them.
    """

    place: Place
    count: int  # type: ignore[assignment]  # not the method that tuples have
    format: str
    matrix_bytes: int
    bias_bytes: int
    layers: Collection[int]

    @property
    def path(self) -> str:
        """Return the path as in checkpoints, "*" for the layer's number."""
        return self.place.path

    @property
    def stored_bytes(self) -> int:
        """Return what all of them add to the checkpoint."""
        return self.count * (self.matrix_bytes * self.place.owner + self.bias_bytes)


def stored(model: Model, precision: Precision) -> Iterator[Tensors]:
    """Yield all stored tensors with their formats; `weight_bytes` is the sum."""
    chosen = format_named(precision.base)
    if chosen.mixture:
        from planner.llama_quantize import choices  # noqa: PLC0415

        pick = choices(model, chosen.mixture)
    else:
        pick = _by_role(model, precision, chosen)
    own = "fp32" if chosen.mixture else precision.own
    for place, layers, name in pick:
        leaf = place.leaf
        shape = (leaf.n_out, leaf.n_in) if leaf.part == "embedding" else (leaf.n_in, leaf.n_out)
        bias = leaf.copies * leaf.n_out * leaf.bias * FORMATS[own].bits // 8
        matrix = leaf.copies * format_named(name).matrix_bytes(*shape)
        yield Tensors(place, len(layers), name, matrix, bias, layers)


def _check(patterns: tuple[str, ...], where: str) -> None:
    from planner.quantization import check  # noqa: PLC0415

    check(patterns, where)


def _compiled(patterns: tuple[str, ...]) -> Patterns:
    from planner.quantization import compiled  # noqa: PLC0415

    return compiled(patterns)


BY_NAME: frozenset[Work] = PRODUCTS | {"head", "router"}
"""What a rule can quantise that names it; the class Linear, and formats of all, take `PRODUCTS`."""


def _nameable(place: Place) -> bool:
    """Return whether a rule can give this matrix a format."""
    leaf = place.leaf
    return leaf.work in BY_NAME and not leaf.own_dtype and 1 not in {leaf.n_in, leaf.n_out} and place.owner


def _by_role(model: Model, precision: Precision, chosen: Format) -> Iterator[tuple[Place, Collection[int], str]]:
    """Yield places, which of their layers, and the format of their matrices: the chosen one, or their own width."""
    skips = _compiled(precision.skips) if precision.skips else None
    rules = [(_compiled(patterns), name) for patterns, name in precision.rules]
    for place in model.places:
        leaf = place.leaf
        width = canonical(leaf.own_dtype, leaf.name) if leaf.own_dtype else precision.own
        alone = leaf.work not in chosen.works or leaf.own_dtype or 1 in {leaf.n_in, leaf.n_out}
        usual = width if alone else (precision.experts if leaf.work == "experts" else None) or chosen.name
        named = rules if rules and _nameable(place) else []
        if not named and (alone or not skips):
            yield place, range(place.first, place.first + place.layers), usual
            continue
        rest = set(range(place.first, place.first + place.layers))
        found: dict[str, set[int]] = {}
        for patterns, name in ((skips, ""), *named):
            hit = rest & patterns.layers(place) if patterns and rest else None
            if hit:
                found.setdefault(name or width, set()).update(hit)
                rest -= hit
        found.setdefault(usual, set()).update(rest)
        yield from ((place, layers, name) for name, layers in found.items() if layers)


SHOWN = 12
"""Modules that a note lists before it says how many more there are."""


def _rule_notes(model: Model, precision: Precision) -> list[str]:
    """Return which modules have which format, and what of the rules has no place in the model."""
    modules: dict[str, Counter[str]] = {}
    for place, layers, name in _by_role(model, precision, format_named(precision.base)):
        if _nameable(place):
            parent = place.path.rpartition(".")[0] if place.leaf.work in PRODUCTS else place.path
            below = modules.setdefault(name, Counter())
            below[parent.removeprefix("model.")] += len(layers) * place.leaf.copies
    listed = [
        f"{name}: " + _some([f"{path or 'the model'} ({n:,})" for path, n in below.items()])
        for name, below in sorted(modules.items(), key=lambda each: (format_named(each[0]).bits, each[0]))
    ]
    notes = ["formats differ by module, matrices in brackets; " + "; ".join(listed)]
    places = [place for place in model.places if _nameable(place)]
    lost: Counter[str] = Counter()
    partial: dict[str, tuple[int, int]] = {}
    for patterns, _ in precision.rules:
        found = _compiled(patterns)
        lost.update(found.unmatched(places))
        partial |= found.partial(places)
    if lost:
        entries = _some([f"{shown} ({n:,})" for shown, n in lost.items()])
        notes.append(
            f"{sum(lost.values()):,} listed modules are no matrix of this plan, and their formats unused: {entries}"
        )
    if partial:
        entries = _some([f"{shown} ({few:,} of {all_:,})" for shown, (few, all_) in partial.items()])
        notes.append(f"only some experts of a layer are listed; all are counted as most of them are: {entries}")
    return notes


def _some(entries: list[str]) -> str:
    more = f" and {len(entries) - SHOWN:,} more" * (len(entries) > SHOWN)
    return ", ".join(entries[:SHOWN]) + more


def weight_bytes(model: Model, precision: Precision) -> int:
    """Return the stored bytes of all tensors, tied ones once: scales, zero points, unquantised tensors and buffers too."""
    if precision.rules or not _is_plain(precision.weights):
        return sum(each.stored_bytes for each in stored(model, precision))
    counts = model.elements.items()
    return sum(count * FORMATS[canonical(own or precision.weights, "own_dtype")].bits for own, count in counts) // 8


class StackBytes(NamedTuple):
    """What a pass through a stack reads of its weights.

    Attributes:
        dense: all but routed experts and looked-up tables; layers that run several times count as often.
        experts: routed experts, all of them. table_row: one row of every table.
    """

    dense: int
    experts: int
    table_row: float


def stack_bytes(model: Model, stack: Stack, precision: Precision) -> StackBytes:
    """Return the bytes of weights that a stack reads; a tied matrix where it is used, whichever stack stores it."""
    dense = experts = 0
    table_row = 0.0
    for each in stored(model, precision):
        place = each.place
        if place.stack != stack.name or place.leaf.active == 0:  # ERNIE's experts of images: no row of text visits them
            continue
        matrix = each.matrix_bytes
        if place.leaf.work != "experts" and place.leaf.active is not None:
            matrix = matrix * place.leaf.active // place.leaf.copies  # adapters: every layer has its own
        read = each.count * place.repeats * (matrix + each.bias_bytes)
        if place.leaf.part == "embedding" and place.leaf.work is None:
            table_row += read / place.leaf.n_in
        elif place.leaf.work == "experts":
            experts += read
        else:
            dense += read
    return StackBytes(dense, experts, table_row)


def stored_lines(model: Model, precision: Precision) -> Iterator[str]:
    """Yield a line for each kind of stored tensor, in columns: bytes, how many, path, shape, format."""
    for each in stored(model, precision):
        leaf = each.place.leaf
        copies = f"{leaf.copies:,} x " * (leaf.copies > 1)
        bias = f" + bias [{leaf.n_out:,}]" * leaf.bias
        tied = " (tied: stored elsewhere)" * (not each.place.owner)
        yield f"{each.stored_bytes:>20,}  {each.count:,} x {each.path} {copies}[{leaf.n_in:,}, {leaf.n_out:,}]{bias} {each.format}{tied}"
