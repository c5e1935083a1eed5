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

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from planner.blocks import Attention, Block, Head, LatentAttention
from planner.engines import Engine
from planner.engines.llama_graph import peak
from planner.engines.llama_ops import Batch, Kind, graph
from planner.engines.serving import parse
from planner.errors import PlanError
from planner.model import Model
from planner.precision import canonical, element_bits

NEWEST = "b0c1e57098"
"""The build that was run; older ones differ in the sliding cells (not a multiple of 256) and in what is asked of a batch."""

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
    "num_ctx": "n_ctx", "num_batch": "n_ubatch", "num_parallel": "n_seq_max", "num_gpu": "n_gpu_layers",
}  # fmt: skip
"""What the command line, and Ollama, call the flags."""

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
    flags = flags_named(settings)
    return Engine("llama.cpp", version or NEWEST, block_tokens=CELLS, window_slack=None if flags.swa_full else flags.n_ubatch, flags=flags)  # fmt: skip


def flags_named(settings: Sequence[str]) -> Flags:
    """Return flags from "name=value" texts, by any of their names.

    Raises:
        PlanError: no such flag, or a value that it can't have.
    """
    renamed = []
    for text in settings:
        name, equals, value = text.partition("=")
        plain = name.strip().lstrip("-").replace("-", "_")
        renamed.append(f"{ALIASES.get(plain, plain)}{equals}{value}")
    flags = parse(Flags, "llama.cpp", renamed)
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
        raise PlanError(
            f"{model.name} has no limit of positions", where="n_ctx", fix="say --engine-set n_ctx=TOKENS"
        )
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
    """Return llama.cpp's name of a cache's dtype."""
    if dtype is None:
        return "f16"
    name = {"fp32": "f32", "fp16": "f16"}.get(dtype, dtype)
    if name not in CACHE_TYPES:
        raise PlanError(f"found {dtype}, allowed are {', '.join(CACHE_TYPES)}", where="cache_dtype", fix="choose one of these")  # fmt: skip
    return name


class Row(NamedTuple):
    """What a layer stores for a token, or for a sequence: elements of keys and of values, and the width of their heads."""

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
    for stack in model.stacks:
        if stack.name in {"vision", "audio"}:
            continue
        for run in stack.runs:
            layer = [row for block in run.layer.blocks for row in _rows(block, model)]
            found += layer * run.count * run.repeats
    return found


def _rows(block: Block, model: Model) -> Iterator[Row]:
    from planner import recurrent as mixers  # noqa: PLC0415

    caches = block.caches()
    if not any(cache.owner for cache in caches):
        return
    match block:
        case Attention(cross=False, chooser=None):
            heads, value = block.cached_heads or block.kv_heads, block.value or block.head
            span = block.mask.window or block.mask.chunk or 0
            windowed = bool(span) and model.family in WINDOWED
            yield Row("sliding" if windowed else "full", heads * block.head, heads * value, block.head, value, span)
        case LatentAttention(chooser=None):
            if expands(model):
                keys, values = block.heads * (block.nope + block.rope), block.heads * block.value
                yield Row("full", keys, values, block.nope + block.rope, block.value)
            else:
                yield Row("latent", block.kv_rank + block.rope, 0, block.kv_rank + block.rope)
        case mixers.Together():
            for part in block.parts:
                yield from _rows(part, model)
        case mixers.Mamba() | mixers.Mamba2() | mixers.DeltaRule() | mixers.ShortConvolution():
            sizes = [cache.fixed for cache in caches]
            before = sizes.pop(0) // block.taps * (block.taps - 1) if block.taps else 0
            yield Row("state", before, sum(sizes))
        case _:
            raise PlanError(
                f"llama.cpp's cache of {type(block).__name__} isn't known", where=model.source or model.name,
                fix="plan() gives the bytes that the model itself needs",
            )  # fmt: skip


def expands(model: Model) -> bool:
    """Return whether a file holds latents' projections in one piece, so that keys and values are cached whole (until 2025)."""
    return any(tensor.name.endswith("attn_kv_b.weight") for tensor in model.checkpoint.tensors) if model.checkpoint else False


def caches(model: Model, flags: Flags, cache_dtype: str | None = None) -> list[Stored]:
    """Return the caches of a context, as listed: full, sliding, latent, state.

    Raises:
        PlanError: as `context` and `rows`; heads that aren't whole blocks of a quantised type.
    """
    made = context(model, flags, cache_dtype)
    layers = rows(model)
    widest = max((row.values for row in layers if row.kind != "state"), default=0)
    found = []
    for kind in ("full", "sliding", "latent", "state"):
        own = [row for row in layers if row.kind == kind]
        if not own:
            continue
        if kind == "state":
            depth = sum(run.count * run.repeats for stack in model.stacks for run in stack.runs)
            sizes = (4 * flags.n_seq_max * sum(getattr(row, part) for row in own) for part in ("keys", "values"))
            found.append(Stored(kind, flags.n_seq_max, depth, 1, *sizes, "f32", "f32"))
            continue
        cells = cells_of(kind, own, flags, made)
        values = [row.values if made.flash or kind == "latent" else widest for row in own]
        key_bytes = _bytes(made.key, [row.keys for row in own], [row.head for row in own], cells * made.streams)
        value_bytes = _bytes(made.value, values, [row.value_head for row in own], cells * made.streams)
        found.append(Stored(kind, cells, len(own), made.streams, key_bytes, value_bytes, made.key, made.value))
    return found


def cells_of(kind: Kind, layers: Sequence[Row], flags: Flags, made: Context) -> int:
    """Return the cells of one stream of a cache."""
    if kind != "sliding" or flags.swa_full:
        return made.cells
    window = max(row.span for row in layers) * (flags.n_seq_max if flags.kv_unified else 1)
    return padded(min(made.cells, window + min(flags.n_ubatch, flags.n_batch, flags.n_ctx or made.cells)))


def _bytes(kind: str, elements: Sequence[int], heads: Sequence[int], cells: int) -> int:
    bits = element_bits(canonical(kind, "cache type"))
    blocks = kind not in {"f32", "f16", "bf16"}
    for head in heads:
        if blocks and head % BLOCK:
            raise PlanError(
                f"found heads of {head}, which aren't whole blocks of {BLOCK} elements", where=f"cache type {kind}",
                fix="llama.cpp doesn't start; choose f16",
            )  # fmt: skip
    return int(cells * sum(elements) * bits / 8)


def compute_bytes(model: Model, flags: Flags, cache_dtype: str | None = None) -> int:
    """Return the bytes of the compute buffer on one device: the results of a run of the prompt, or of a step.

    Raises:
        PlanError: as `caches`; the order of the model's operations isn't known.
    """
    return _compute(model, flags, cache_dtype)


@lru_cache(maxsize=256)
def _compute(model: Model, flags: Flags, cache_dtype: str | None) -> int:
    made = context(model, flags, cache_dtype)
    layers = rows(model)
    sequences = flags.n_seq_max
    asked = min(made.tokens, flags.n_outputs_max or min(flags.n_batch, flags.n_ctx or made.total))
    sizes = []
    for tokens, outputs in ((made.tokens, asked), (sequences, sequences)):
        whole = -(-tokens // sequences) * sequences
        sizes.append(peak(graph(model, _batch(whole, outputs, layers, flags, made))))
    return max(sizes)


def _batch(tokens: int, outputs: int, layers: list[Row], flags: Flags, made: Context) -> Batch:
    kinds = {row.kind: [each for each in layers if each.kind == row.kind] for row in layers if row.kind != "state"}
    turned = {
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
