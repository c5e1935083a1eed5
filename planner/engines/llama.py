"""What llama.cpp makes of a context: each cache by its kind, the compute buffer, and the sum that must fit where it runs.

Nothing is set aside by a share of the card. A context has caches for `n_ctx` cells, shared by all sequences or split among them:

    full     n_ctx_seq cells for each stream (one stream if the cache is unified, else one for each sequence)
    sliding  W x (sequences, if unified) + n_ubatch cells, up to a multiple of 256, no more than the full cache; all with swa_full
    latent   n_ctx_seq cells of keys, which are the values too
    state    one row and one state of 32 bits for each sequence

and a compute buffer for the results of one batch (`llama_ops`, `llama_graph`). Rules are as in llama.cpp at 0c1e57098, which
llama-cpp-python 0.3.36 ships, read and run there (tests/engines/remake_llama.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from planner.blocks import Attention, Block, Head, LatentAttention
from planner.engines import Engine
from planner.engines.capacity import Asked
from planner.engines.llama_graph import ALIGNMENT, CARD_ALIGNMENT, peak
from planner.engines.llama_ops import WHOLE, Batch, Kind, Part, graph, host_bytes
from planner.engines.rank import remembering
from planner.engines.serving import LARGEST, Reserve, flags_of, parse
from planner.errors import PlanError
from planner.model import Model
from planner.precision import canonical, element_bits
from planner.shard import depth

BUILD = "0c1e57098"
"""The commit that was run; older ones differ in the sliding cells (not a multiple of 256) and in what is asked of a batch."""

CELLS = 256
"""Contexts, and sliding caches, are a multiple of so many cells."""

BLOCK = 32
"""Elements that share a scale in the quantised types of caches."""

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""What --cache-type-k and -v may be."""

TURNED = 64
"""Rows of quantised caches are turned by a matrix where heads are a multiple of this wide."""

WINDOWED = frozenset({
    "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text", "cohere2", "gpt_oss", "exaone4", "llama4",
    "llama4_text", "olmo3", "lfm2",
})  # fmt: skip
"""Families whose windows llama.cpp knows; others' sliding layers (Phi-3, Mistral, StarCoder2) keep all cells."""

ALIASES = {
    "ctx_size": "n_ctx", "batch_size": "n_batch", "ubatch_size": "n_ubatch", "parallel": "n_seq_max", "np": "n_seq_max",
    "gpu_layers": "n_gpu_layers", "ngl": "n_gpu_layers", "fa": "flash_attn", "type_k": "cache_type_k", "type_v": "cache_type_v",
    "num_batch": "n_ubatch", "num_parallel": "n_seq_max", "num_gpu": "n_gpu_layers",
}  # fmt: skip
"""What the command line, and Ollama, call the flags. Ollama's num_ctx is that of one sequence (llm/server.go, KvSize)."""

MOST_SEQUENCES = 256


class Flags(NamedTuple):
    """Flags that change memory, by llama.cpp's names, with the defaults of its command line.

    Attributes:
        n_ctx: cells of all sequences together, None: the model's positions. n_batch, n_ubatch: tokens of a batch, and of a run.
        n_seq_max: sequences at once. kv_unified: they share one cache. swa_full: sliding layers keep all cells.
        flash_attn: "on", "off", or "auto": on, wherever the device can.
        cache_type_k, cache_type_v: of keys and values, None: f16, or what --cache-dtype says.
        n_gpu_layers: of the last layers, counted from the head, on the card; "all", "auto" or a number. None: all.
        n_outputs_max: rows of a run that logits are made for, None: n_batch. Newer llama-server says one for each sequence.
    """

    n_ctx: int | None = None
    n_batch: int = 2048
    n_ubatch: int = 512
    n_seq_max: int = 1
    kv_unified: bool = False
    swa_full: bool = False
    flash_attn: str = "auto"
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    n_gpu_layers: str | None = None
    n_outputs_max: int | None = None


def engine(version: str, settings: Sequence[str]) -> Engine:
    """Return llama.cpp as a plan sees it: caches in 256 cells, windows with room for a run of the prompt."""
    _known(version)
    flags = flags_named(settings)
    shared = flags.n_seq_max if not flags.kv_unified else 1
    return Engine(
        "llama.cpp", BUILD, block_tokens=CELLS, window_slack=None if flags.swa_full else flags.n_ubatch, windowed=WINDOWED,
        cache_dtype="fp16", longest_tokens=flags.n_ctx and flags.n_ctx // shared, flags=flags,
    )  # fmt: skip


def _known(version: str | None) -> None:
    if version not in {None, "", BUILD}:
        raise PlanError(f"found {version}, known is {BUILD}", where="version of llama.cpp", fix="leave it out")


def flags_named(settings: Sequence[str]) -> Flags:
    """Return flags from "name=value" texts, by any of their names.

    Raises:
        PlanError: no such flag, or a value that it can't have.
    """
    renamed = []
    each_has = False
    for text in settings:
        name, equals, value = text.partition("=")
        plain = name.strip().lstrip("-").replace("-", "_")
        each_has |= plain == "num_ctx"
        renamed.append(f"{'n_ctx' if plain == 'num_ctx' else ALIASES.get(plain, plain)}{equals}{value}")
    flags = parse(Flags, "llama.cpp", renamed)
    if each_has and flags.n_ctx:
        flags = flags._replace(n_ctx=flags.n_ctx * flags.n_seq_max)
    if flags.flash_attn not in {"on", "off", "auto"}:
        raise PlanError(
            f"found {flags.flash_attn!r}, allowed are on, off and auto", where="--engine-set flash_attn", fix="choose one of these"
        )  # fmt: skip
    for name in ("cache_type_k", "cache_type_v"):
        if (value := getattr(flags, name)) is not None and value not in CACHE_TYPES:
            raise PlanError(
                f"found {value!r}, allowed are {', '.join(CACHE_TYPES)}", where=f"--engine-set {name}", fix="choose one of these"
            )  # fmt: skip
    if flags.n_seq_max > MOST_SEQUENCES:
        raise PlanError(
            f"found {flags.n_seq_max}, at most {MOST_SEQUENCES} are possible", where="--engine-set n_seq_max", fix="choose fewer"
        )  # fmt: skip
    layers = flags.n_gpu_layers
    if layers is not None and layers not in {"all", "auto"} and not layers.isdecimal():
        raise PlanError(
            f"found {layers!r}, allowed are all, auto and whole numbers from 0", where="--engine-set n_gpu_layers", fix="choose one of these"
        )  # fmt: skip
    return flags


class Context(NamedTuple):
    """A context after defaults and rounding.

    Attributes:
        cells: n_ctx_seq, of each stream of a full cache. streams: caches side by side. total: n_ctx, cells of all.
        tokens: of a run. flash: attention is one operation. key, value: types of caches.
    """

    cells: int
    streams: int
    total: int
    tokens: int
    flash: bool
    key: str
    value: str


class Stored(NamedTuple):
    """A cache as llama.cpp lists it.

    Attributes:
        kind: "full", "sliding", "latent" or "state". cells: of each stream, or states. layers: that have one; all, for states.
        streams: side by side. key_bytes, value_bytes: of all layers; of states: rows before a convolution, and the states.
        key, value: types.
    """

    kind: Kind
    cells: int
    layers: int
    streams: int
    key_bytes: int
    value_bytes: int
    key: str
    value: str

    @property
    def size(self) -> int:
        """Bytes."""
        return self.key_bytes + self.value_bytes


def padded(tokens: int) -> int:
    """Return cells for so many tokens."""
    return -(-tokens // CELLS) * CELLS


def context(model: Model, flags: Flags, cache_dtype: str | None = None) -> Context:
    """Return what a context comes to.

    Args:
        model: whose positions bound it by default. flags: it is started with. cache_dtype: of keys and values that flags leave open.

    Raises:
        PlanError: nothing says how long it is; values are quantised without flash attention.
    """
    asked = flags.n_ctx or model.positions
    if asked is None:
        raise PlanError(f"{model.name} has no limit of positions", where="n_ctx", fix="say --engine-set n_ctx=TOKENS")
    cells = padded(asked)
    streams = 1
    if not flags.kv_unified:
        streams = flags.n_seq_max
        cells = padded(cells // streams)
    flash = flags.flash_attn != "off"
    key, value = (named or _type(cache_dtype) for named in (flags.cache_type_k, flags.cache_type_v))
    if not flash and value not in {"f32", "f16", "bf16"}:
        raise PlanError(
            f"found {value} values without flash attention", where="cache_type_v", fix="llama.cpp doesn't start; say flash_attn=on"
        )  # fmt: skip
    tokens = min(asked, flags.n_batch, flags.n_ubatch)
    return Context(cells, streams, cells * streams, tokens, flash, key, value)


def _type(dtype: str | None) -> str:
    """Return llama.cpp's name of a cache's dtype; 16 bits are f16, its default."""
    name = {None: "f16", "fp32": "f32", "fp16": "f16", "bf16": "f16"}.get(dtype, dtype) or "f16"
    if name not in CACHE_TYPES:
        raise PlanError(f"found {dtype}, allowed are {', '.join(CACHE_TYPES)}", where="cache_dtype", fix="choose one of these")  # fmt: skip
    return name


class Row(NamedTuple):
    """What a layer stores for a token, or for a sequence: elements of keys and of values, and the width of their heads.

    Attributes:
        layer: its number. kind: of cache. keys, values: elements; of states: rows before a convolution, and the states.
        head, value_head: widths of heads. span: tokens that its window sees, 0: all.
    """

    layer: int
    kind: Kind
    keys: int
    values: int
    head: int = 0
    value_head: int = 0
    span: int = 0


def rows(model: Model) -> list[Row]:
    """Return what each layer of the decoder stores, in order.

    Raises:
        PlanError: a cache that llama.cpp isn't known to have.
    """
    found: list[Row] = []
    number = 0
    for stack in model.stacks:
        if stack.name in {"vision", "audio"}:
            continue
        for run in stack.runs:
            layer = [row for block in remembering(*run.layer.blocks) for row in _rows(block, model)]
            for _ in range(run.count * run.repeats):
                found += [row._replace(layer=number) for row in layer]
                number += 1
    return found


def _rows(block: Block, model: Model) -> Iterator[Row]:
    """Yield what a block stores, for layer 0."""
    from planner import recurrent as mixers  # noqa: PLC0415

    caches = block.caches()
    if not any(cache.owner for cache in caches):
        return
    match block:
        case Attention(cross=False, chooser=None):
            heads, value = block.cached_heads or block.kv_heads, block.value or block.head
            span = block.mask.window or block.mask.chunk or 0
            kind: Kind = "sliding" if span and model.family in WINDOWED else "full"
            yield Row(0, kind, heads * block.head, heads * value, block.head, value, span)
        case LatentAttention(chooser=None):
            if expands(model):
                keys, values = block.heads * (block.nope + block.rope), block.heads * block.value
                yield Row(0, "full", keys, values, block.nope + block.rope, block.value)
            else:
                yield Row(0, "latent", block.kv_rank + block.rope, 0, block.kv_rank + block.rope)
        case mixers.Mamba() | mixers.Mamba2() | mixers.DeltaRule() | mixers.ShortConvolution():
            sizes = [cache.fixed for cache in caches]
            before = sizes.pop(0) // block.taps * (block.taps - 1) if block.taps else 0
            yield Row(0, "state", before, sum(sizes))
        case _:
            what = "the encoder's rows" if getattr(block, "cross", False) else type(block).__name__
            raise PlanError(
                f"llama.cpp's cache of {what} isn't known", where=model.source or model.name,
                fix="plan() gives the bytes that the model itself needs",
            )  # fmt: skip


def expands(model: Model) -> bool:
    """Return whether a file holds latents' projections in one piece, so that keys and values are cached whole (until 2025)."""
    return (
        any(tensor.name.endswith("attn_kv_b.weight") for tensor in model.checkpoint.tensors)
        if model.checkpoint
        else False
    )


def caches(model: Model, flags: Flags, cache_dtype: str | None = None, part: range | None = None) -> list[Stored]:
    """Return the caches of a context, as listed: full, sliding, latent, state; those of some layers, or of all.

    Raises:
        PlanError: as `context` and `rows`; heads that aren't whole blocks of a quantised type.
    """
    made = context(model, flags, cache_dtype)
    layers = rows(model)
    widest = max((row.values for row in layers if row.kind != "state"), default=0)
    kinds: tuple[Kind, ...] = ("full", "sliding", "latent", "state")
    found = []
    for kind in kinds:
        own = [row for row in layers if row.kind == kind and (part is None or row.layer in part)]
        if not own:
            continue
        if kind == "state":
            states = 4 * flags.n_seq_max
            before, after = (
                states * sum(sizes) for sizes in zip(*((row.keys, row.values) for row in own), strict=True)
            )
            found.append(Stored(kind, flags.n_seq_max, depth(model), 1, before, after, "f32", "f32"))
            continue
        cells = cells_of(kind, own, flags, made)
        values = [row.values if made.flash or kind == "latent" else widest for row in own]
        if kind == "latent" and made.key != made.value:
            raise PlanError(
                f"found {made.key} keys and {made.value} values of one latent", where="cache_type_k, cache_type_v",
                fix="llama.cpp doesn't start; say the same for both",
            )  # fmt: skip
        _whole_blocks(made.key, [row.head for row in own])
        _whole_blocks(made.value, [row.value_head for row in own])
        key_bytes = cells_bytes(made.key, [row.keys for row in own], cells * made.streams)
        value_bytes = cells_bytes(made.value, values, cells * made.streams)
        found.append(Stored(kind, cells, len(own), made.streams, key_bytes, value_bytes, made.key, made.value))
    return found


def cells_of(kind: Kind, layers: Sequence[Row], flags: Flags, made: Context) -> int:
    """Return the cells of one stream of a cache."""
    if kind != "sliding" or flags.swa_full:
        return made.cells
    window = max(row.span for row in layers) * (flags.n_seq_max if flags.kv_unified else 1)
    return padded(min(made.cells, window + min(flags.n_ubatch, flags.n_batch, flags.n_ctx or made.cells)))


def cells_bytes(kind: str, elements: Sequence[int], cells: int) -> int:
    """Return the bytes of so many cells of layers with so many elements each, in a type of caches."""
    return int(cells * sum(elements) * element_bits(canonical(kind, "cache type")) / 8)


def _whole_blocks(kind: str, heads: Sequence[int]) -> None:
    """Refuse heads that a quantised type of caches would cut."""
    for head in heads:
        if kind not in {"f32", "f16", "bf16"} and head % BLOCK:
            raise PlanError(
                f"found heads of {head}, which aren't whole blocks of {BLOCK} elements", where=f"cache type {kind}",
                fix="llama.cpp doesn't start; choose f16",
            )  # fmt: skip


class Compute(NamedTuple):
    """Bytes of the compute buffer where the layers run, and of the processor's beside it; 0 where that is the same."""

    device: int
    host: int = 0


def compute(model: Model, flags: Flags, cache_dtype: str | None = None, part: Part = WHOLE) -> Compute:
    """Return the compute buffers: the results of a run of the prompt, or of a step, whichever takes more.

    Args:
        model, flags, cache_dtype: as in `caches`. part: what the device runs, where it isn't a processor that runs all.

    Raises:
        PlanError: as `caches`; the order of the model's operations isn't known.
    """
    made = context(model, flags, cache_dtype)
    layers = rows(model)
    sequences = flags.n_seq_max
    asked = min(made.tokens, flags.n_outputs_max or min(flags.n_batch, flags.n_ctx or made.total))
    found = []
    for tokens, outputs in ((made.tokens, asked), (sequences, sequences)):
        batch = _batch(-(-tokens // sequences) * sequences, outputs, layers, flags, made)
        device = peak(graph(model, batch, part), CARD_ALIGNMENT if part.card else ALIGNMENT)
        found.append(Compute(device, host_bytes(graph(model, batch)) if part.card else 0))
    return Compute(max(each.device for each in found), max(each.host for each in found))


def _batch(tokens: int, outputs: int, layers: list[Row], flags: Flags, made: Context) -> Batch:
    kinds: dict[Kind, list[Row]] = {
        row.kind: [each for each in layers if each.kind == row.kind] for row in layers if row.kind != "state"
    }
    turned: dict[Kind, tuple[int, int]] = {
        kind: (
            _turning(made.key, [row.head for row in own], smallest=False),
            _turning(made.value, [row.value_head for row in own], smallest=True),
        )
        if kind != "latent"
        else (0, 0)
        for kind, own in kinds.items()
    }
    width = element_bits(canonical(made.key, "cache type")) / 8
    return Batch(
        tokens, flags.n_seq_max, outputs, flags.kv_unified, made.flash,
        {kind: cells_of(kind, own, flags, made) for kind, own in kinds.items()}, int(width),
        (made.key == "f32", made.value == "f32"), turned,
        max((row.values for own in kinds.values() for row in own), default=0),
    )  # fmt: skip


def _turning(kind: str, heads: list[int], *, smallest: bool) -> int:
    """Return the width of the matrix that turns rows before they are rounded; 0: they aren't."""
    if kind in {"f32", "f16", "bf16"} or len(set(heads)) != 1 or heads[0] % TURNED:
        return 0
    size = TURNED
    while not smallest and heads[0] % (2 * size) == 0:
        size *= 2
    return size


def output_bytes(model: Model, flags: Flags) -> int:
    """Return the bytes of the buffer for logits: a row of 32 bits for each sequence."""
    decoder = model.stack("decoder")
    heads = [block for block in (decoder.back if decoder else ()) if isinstance(block, Head)]
    return 4 * flags.n_seq_max * sum(head.vocabulary for head in heads)


def layers_of(count: int, devices: int) -> list[range]:
    """Return the layers of each of equal devices: layer i of L on device i x devices // (L + 1), the head as layer L."""
    ends = [-(-(device + 1) * (count + 1) // devices) for device in range(devices)]
    return [range(start, min(end, count)) for start, end in zip([0, *ends], ends, strict=False)]


def on_card(flags: Flags, count: int) -> int:
    """Return how many of so many layers and the head are on cards."""
    asked = flags.n_gpu_layers
    return min(int(asked), count + 1) if asked and asked.isdecimal() else count + 1


def capacity(model: Model, asked: Asked) -> dict[str, Any]:
    """Return how long a context so much memory holds on each device, for the flags that the model was loaded with.

    Args:
        model: as loaded. asked: as in `planner.engine_capacity`; max_num_seqs: sequences. max_model_len: of one of them, by which
            concurrency is counted. max_num_batched_tokens: n_ubatch. cache_dtype: of keys and values. pp: devices that share layers.

    Returns:
        tokens: the longest n_ctx, a multiple of 256 for each stream; where only states are kept: n_seq_max times max_model_len.
        concurrency: sequences of max_model_len that it holds. blocks: of 256 cells. bytes_per_token: by which caches grow.
        groups: layers, kind, cells, bytes, key, value of each cache then, of the fullest device.

    Raises:
        PlanError: a flag that llama.cpp doesn't have; less memory than the smallest context needs.
    """
    flags = _asked(model, asked)
    dtype = None if asked.cache_dtype == "auto" else asked.cache_dtype
    longest = asked.max_model_len or (flags.n_ctx and flags.n_ctx // flags.n_seq_max) or model.positions or CELLS
    count = depth(model)
    offloaded = on_card(flags, count)
    parts = layers_of(count, asked.pp)
    if 1 < offloaded <= count:  # else the processor's memory holds all
        parts = [range(count - offloaded + 1, count)]

    def held(change: Flags) -> list[Stored]:
        return max(
            (caches(model, change, dtype, part) for part in parts), key=lambda each: sum(one.size for one in each)
        )

    def fits(change: Flags) -> bool:
        return sum(each.size for each in held(change)) <= asked.cache_memory_bytes

    if not rows(model):
        raise PlanError(f"{model.family} keeps no cache between steps", where=model.source or model.name)
    if all(row.kind == "state" for row in rows(model)):
        return _states(flags, longest, held(flags._replace(n_seq_max=1, n_ctx=longest)), asked.cache_memory_bytes)
    step = CELLS if flags.kv_unified else CELLS * flags.n_seq_max
    low, high = 0, 1
    while fits(flags._replace(n_ctx=high * step)) and high * step < LARGEST:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(flags._replace(n_ctx=middle * step)) else (low, middle)
    if not low:
        least = sum(each.size for each in held(flags._replace(n_ctx=step)))
        raise PlanError(
            f"found {asked.cache_memory_bytes:,}, but {step:,} cells need {least:,}", where="cache_memory_bytes",
            fix="llama.cpp doesn't start; give more, or fewer sequences (n_seq_max), or a smaller cache type",
        )  # fmt: skip
    tokens = low * step
    found = held(flags._replace(n_ctx=tokens))
    per_token = sum(
        (Fraction(each.size, each.cells * each.streams) for each in found if each.cells * each.streams == tokens),
        Fraction(0),
    )
    return {
        "tokens": tokens,
        "concurrency": float(f"{tokens / longest:.2f}"),
        "blocks": tokens // CELLS,
        "block_size": CELLS,
        "bytes_per_token": per_token.numerator if per_token.denominator == 1 else float(per_token),
        "groups": [_group(each) for each in found],
    }


def _asked(model: Model, asked: Asked) -> Flags:
    """Return the flags of a question about capacity."""
    _known(asked.version)
    if asked.tp > 1:
        raise PlanError(f"found {asked.tp}, but llama.cpp gives whole layers to devices", where="tp", fix="choose pp")
    if asked.block_size not in {None, CELLS}:
        raise PlanError(
            f"found {asked.block_size}, llama.cpp has cells by the {CELLS}", where="block_size", fix="leave it out"
        )
    flags = flags_of(model, Flags)
    flags = flags._replace(n_seq_max=asked.max_num_seqs or flags.n_seq_max)
    return flags._replace(n_ubatch=min(asked.max_num_batched_tokens or flags.n_ubatch, flags.n_batch))


def _states(flags: Flags, longest: int, one: list[Stored], memory: int) -> dict[str, Any]:
    """Return the same where sequences have states only: as many sequences as fit."""
    size = sum(each.size for each in one)
    sequences = memory // size
    if sequences < flags.n_seq_max:
        raise PlanError(
            f"found {memory:,}, but {flags.n_seq_max} sequences need {flags.n_seq_max * size:,}", where="cache_memory_bytes",
            fix="llama.cpp doesn't start; give more, or fewer sequences (n_seq_max)",
        )  # fmt: skip
    return {
        "tokens": sequences * longest, "concurrency": float(sequences), "blocks": sequences, "block_size": longest,
        "bytes_per_token": 0,
        "groups": [_group(each._replace(cells=sequences, key_bytes=each.key_bytes * sequences, value_bytes=each.value_bytes * sequences))
                   for each in one],
    }  # fmt: skip


def _group(each: Stored) -> dict[str, Any]:
    return {
        "layers": each.layers, "kind": each.kind, "cells": each.cells * each.streams, "bytes": each.size, "key": each.key,
        "value": each.value,
    }  # fmt: skip


def reserve(*asked: Any) -> tuple[Reserve, ...]:
    """Return what llama.cpp takes; see `planner.engines.llama_memory.reserve`."""
    from planner.engines.llama_memory import reserve as memory  # noqa: PLC0415

    return memory(*asked)
