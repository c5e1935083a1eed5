"""What vLLM makes of an amount of cache memory: blocks, tokens and concurrency, as its start-up log prints them.

vLLM (v1, with groups from 0.9.1 on) gives every layer a spec, made here from the blocks that the layer consists of: rows in pages of `block_size` tokens, or
a state in one page. Layers of one kind share a block table, a group; every group takes its blocks from one pool, and a
block holds a page for each layer of the largest group. So pages are made equal, layers are put into groups of equal
length, and

    blocks      = memory // (page x layers of a group)
    concurrency = blocks / (blocks that one request of max_model_len needs, summed over groups)

Before, one block table serves all layers: blocks hold full rows of every layer, and concurrency is tokens / max_model_len.

Rules are as in vLLM 0.32.0, read and run there (tests/engines); what older versions did otherwise stands in `Rules`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from planner.blocks import Attention, Block, LatentAttention
from planner.engines import Engine
from planner.engines.capacity import Asked, Device
from planner.engines.rank import remembering
from planner.engines.serving import GIB, Reserve, known, parse
from planner.errors import PlanError
from planner.model import Model
from planner.precision import PACKED_LATENTS, canonical, chooser_bytes, element_bits, resolve, unpacked

if TYPE_CHECKING:
    from planner.recurrent import DeltaRule, LightningAttention, Mamba, Mamba2, ShortConvolution

Kind = Literal["full", "sliding", "chunked", "latent", "mamba", "cross"]

OLDEST, NEWEST = (0, 3), (0, 32)
"""Versions whose rules are known; 0.3 to 0.5 share those of 0.6.0, as their start-up logs show; read in 0.6.0, 0.6.6, 0.7.0 to 0.7.3, 0.8.0, 0.8.3, 0.8.5, 0.9.0 to 0.9.2, 0.10.0 to 0.10.2,
0.11 to 0.16, 0.19 to 0.22, 0.24 to 0.30 and 0.32."""

OLDEST_CPU = (0, 11)
"""The first version whose rules on a CPU are known."""

NEWEST_TEXT = ".".join(map(str, NEWEST))

LAST_PATCH = 99
"""Stands for the last patch of a version that is named without one."""

BLOCK_TOKENS = {"cpu": 128, "cuda": 16}
"""Tokens of a block by default. A CPU without AMX tiles has 16 for latents."""

KERNEL_TOKENS = {"cpu": 32, "cuda": 16}
"""Tokens that a block is a multiple of where it is chosen to fit: those of the attention kernels (CPU, FlashAttention)."""

UNEQUAL_KERNEL_TOKENS = 16
"""The same, of the kernel for values of another width than keys."""

LATENT_KERNEL_TOKENS = 128
"""The same beside latents: some of their kernels want this many."""

INDEXER_KERNEL_TOKENS = 64
"""Tokens of a block of the kernels that score chosen latents only (DeepSeek-V3.2)."""

EXPANDED = frozenset({"minicpm3"})
"""Families whose latents vLLM expands and keeps as keys and values, padded to the width of a key."""

UNINDEXED = frozenset({"axk2"})
"""Families that vLLM runs through transformers, without their indexers: every key is scored."""

ATTENTION_FREE = frozenset({"mamba", "mamba2", "falcon_mamba"})
"""Families without attention, which keep one state; those that may have some cache prefixes even where they have none."""

STATE_READERS = {"nemotron_h": (0, 13), "qwen3_5": (0, 17), "qwen4_exp": (0, 17)}
"""Beginnings of families whose configs vLLM asks for the type of recurrent states, and the versions from which."""

STATE_DTYPES = {"nemotron_h": (((0, 20), "fp32"), ((0, 13), "fp16"))}
"""What it takes where they say nothing, and from when; every other family has the model's own type."""

CAPPED = {"gemma2": (0, 6, 4)}
"""Families whose windows cap max_model_len, until that version."""

ALTERNATING = frozenset({"gpt_oss"})
"""Families whose even layers have the window, whichever `layer_types` names, unless it names all."""

FP8_LATENT_BYTES = 656
"""A chosen latent of 8 bits, as FlashMLA on Hopper stores it: 512 elements, 4 scales of 32 bits, 64 rotary elements of 16."""

PACKED = PACKED_LATENTS
"""vLLM's name for that format; it follows from any 8-bit type."""

EARLY_LATENT_HEAD = 256
"""Width that 0.6 pads keys and values of MLA to, 192 wide in every published model; 0.7.0 keeps 192."""

EARLY_LATENT_ALIGNMENT = 256
"""Bytes that a latent of 0.7.2 and 0.7.3 is padded to a multiple of."""

BATCHED_TOKENS = {"cpu": 4096, "cuda": 8192}
"""Default of max_num_batched_tokens: offline on a CPU, for each rank; `vllm serve` on a GPU of 70 GiB or more."""

SEQUENCES = {"cpu": 256, "cuda": 1024}
"""Default of max_num_seqs, of the same."""

UNKNOWN_LENGTH = 2048
"""Default of max_model_len where a config has no limit."""

CACHE_DTYPES = ("fp32", "fp16", "bf16", "fp8")


class Rules(NamedTuple):
    """What changed between versions.

    Attributes:
        shares_tokens: prints the tokens of a group's share of the blocks; later ones print concurrency times max_model_len.
        caches_prefixes: prefix caching is on for models with states too, which then keep more than one.
        flies: windows reserve room for all batches in flight, and not for one.
        checkpoints: with prefix caching, Mamba-2 keeps one state more.
        wide_states: on a CPU with AVX-512 BF16, recurrent states are fp32 unless a narrower type is asked for.
        pads_pages: a page that doesn't divide the largest is padded; before, the model was refused.
        own_window_blocks: windows' blocks are a multiple of the kernel's even if --block-size isn't.
        spread: groups are as long as the commonest kind where that has less than so many times the layers of the rarest.
        keeps_null: one block is always held back, so that a request must fit in the others.
        aligns_blocks: hybrids' blocks are multiples of the default block, and not of a kernel's.
        one_table: all layers share one block table; windows and chunks keep every row.
        keeps_chunks: chunks keep every row, as the manager of groups is off for them.
        states_apart: recurrent states and what a decoder reads of an encoder lie outside of the cache (v0).
        absorbs_latents: MLA keeps latents; before, keys and values of every head.
        pads_heads: those to `EARLY_LATENT_HEAD`. pads_latents: latents to `EARLY_LATENT_ALIGNMENT`.
        own_windows: what one request needs counts windows as windows; before, as full rows.
        sums_layers: it is counted layer by layer, not in blocks of the pool.
        last_stage: takes all further layers, where stages don't divide them.
        unequal_types: layers that always need as many blocks may have pages of different sizes.
    """

    shares_tokens: bool
    caches_prefixes: bool
    flies: bool
    checkpoints: bool
    wide_states: bool
    pads_pages: bool
    own_window_blocks: bool
    spread: Fraction
    keeps_null: bool
    aligns_blocks: bool
    one_table: bool
    keeps_chunks: bool
    states_apart: bool
    absorbs_latents: bool
    pads_heads: bool
    pads_latents: bool
    own_windows: bool
    sums_layers: bool
    last_stage: bool
    unequal_types: bool


Version = tuple[int, int, int]


def rules_of(version: Version) -> Rules:
    """Return what a version does."""
    return Rules(
        shares_tokens=version < (0, 21),
        caches_prefixes=version >= (0, 26),
        flies=version >= (0, 26),
        checkpoints=version >= (0, 29),
        wide_states=version >= (0, 26),
        pads_pages=version >= (0, 24),
        own_window_blocks=version >= (0, 26),
        spread=Fraction(3, 2) if version >= (0, 19) else Fraction(5, 4) if version >= (0, 15) else Fraction(1),
        keeps_null=version >= (0, 30),
        aligns_blocks=version >= (0, 20),
        one_table=version < (0, 9, 1),
        keeps_chunks=version < (0, 10) or (0, 10, 1) <= version < (0, 11),
        states_apart=version < (0, 10, 2),
        absorbs_latents=version >= (0, 7, 1),
        pads_heads=version < (0, 7),
        pads_latents=(0, 7, 2) <= version < (0, 8),
        own_windows=version >= (0, 8, 3),
        sums_layers=version < (0, 14),
        last_stage=version < (0, 8),
        unequal_types=version >= (0, 11),
    )


class Flags(NamedTuple):
    """Flags that change memory, by vLLM's names; None: the version's default."""

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    block_size: int | None = None
    enforce_eager: bool = False
    enable_prefix_caching: bool | None = None


def engine(version: str, settings: Sequence[str]) -> Engine:
    """Return vLLM as a plan sees it: rows in whole blocks, windows with room for the chunks of prompts."""
    flags = parse(Flags, "vllm", settings)
    rules = rules_of(release(version or NEWEST_TEXT))
    slack = None if rules.one_table else flags.max_num_batched_tokens or BATCHED_TOKENS["cuda"]
    return Engine(
        "vllm", version or NEWEST_TEXT, window_margin=1, block_tokens=flags.block_size or BLOCK_TOKENS["cuda"],
        window_slack=slack, casts_float32=True, packs_choosers=True, packs_latents=True, longest_tokens=flags.max_model_len, flags=flags,
    )  # fmt: skip


class Started(NamedTuple):
    """What an engine is started with, after defaults.

    Attributes:
        device: it runs on. max_model_len: L, tokens of the longest request. batched: T, tokens of a step.
        in_flight: tokens scheduled and not yet settled. tp: ranks that share heads. prefix_caching: for models with states.
        row_bits: of a cache element. own_bits: of the model's dtype. state_bits: of recurrent states.
        packs_latents: chosen latents of 8 bits are packed with their scales.
    """

    device: Device
    max_model_len: int
    batched: int
    in_flight: int
    tp: int
    prefix_caching: bool
    row_bits: int
    own_bits: int
    state_bits: int
    packs_latents: bool


@dataclass(frozen=True, slots=True)
class Spec:
    """How one layer's cache is stored on one rank. Layers of equal specs may share a group.

    Attributes:
        kind: of cache.
        shape: heads and widths of a row, elements of a state: specs of other shapes aren't equal.
        row_bytes: of a token; 0 for states. state_bytes: of a request's state, 0 for rows.
        span: W of a window, C of a chunk.
        block: tokens of a block. padded: bytes of a page, where it is longer than its content.
        states: that a request holds at once.
    """

    kind: Kind
    shape: tuple[int, ...]
    row_bytes: int = 0
    state_bytes: int = 0
    span: int = 0
    block: int = 0
    padded: int = 0
    states: int = 0

    @property
    def page_bytes(self) -> int:
        """Bytes of one layer in a block."""
        return self.padded or self.row_bytes * self.block + self.state_bytes

    @property
    def type(self) -> tuple[str, int, int, int]:
        """What layers have in common that always need as many blocks: those may be one group of unequal pages."""
        family = "full" if self.kind == "latent" else self.kind
        return family, self.block, self.span, self.page_bytes if self.kind == "mamba" else 0

    def blocks(self, flags: Started) -> int:
        """Return the blocks of a request of max_model_len."""
        longest = flags.max_model_len
        match self.kind:
            case "sliding":  # W - 1 tokens and those of the steps in flight; a window starts anywhere in a block
                return -(-min(self.span - 1 + flags.in_flight, longest) // self.block) + 1
            case "chunked":
                return -(-min(self.span + flags.in_flight, longest) // self.block)
            case "mamba":
                return self.states
            case "cross":  # as many of the encoder's rows as a step may bring
                return -(-flags.batched // self.block)
            case _:
                return -(-longest // self.block)


Layers = list[tuple[int, Spec]]
"""Specs of caches, with the numbers of their layers."""


class Pool(NamedTuple):
    """The blocks of an engine.

    Attributes:
        rules, flags: of the engine. groups: of layers of all stages. held: what of them the fullest stage has.
        bytes: of a block there. specs: of that stage's caches, before pages were made equal.
    """

    rules: Rules
    flags: Started
    groups: list[Layers]
    held: list[Layers]
    bytes: int
    specs: list[Spec]

    def request(self, tokens: int) -> int:
        """Return the blocks of a request of so many tokens."""
        flags = self.flags._replace(max_model_len=tokens)
        return sum(max(spec.blocks(flags) for _, spec in group) for group in self.groups)

    def needed(self, tokens: int) -> int:
        """Return the bytes that vLLM says a request of so many tokens needs."""
        if not self.rules.sums_layers:
            return self.request(tokens) * self.bytes
        flags = self.flags._replace(max_model_len=tokens)
        specs = self.specs if self.rules.own_windows else [replace(spec, kind="full") for spec in self.specs]
        return sum(spec.blocks(flags) * spec.page_bytes for spec in specs)

    def usable(self, memory: int) -> int:
        """Return the bytes of so many that requests may have: without the block that is held back."""
        return memory - self.rules.keeps_null * self.bytes

    def longest(self, memory: int) -> int:
        """Return the longest request that fits, up to max_model_len, as vLLM estimates it; 0: none."""
        fits, above = 0, self.flags.max_model_len + 1
        while above - fits > 1:
            middle = (fits + above) // 2
            fits, above = (middle, above) if self.needed(middle) <= self.usable(memory) else (fits, middle)
        return fits


def capacity(model: Model, asked: Asked, *, refuses: bool = True) -> dict[str, Any]:
    """Return what vLLM reports for an amount of cache memory; as `planner.engine_capacity`.

    Args:
        model, asked: as there. refuses: where not even one request fits; else the figures of what there is, as versions print
            them that find out only afterwards.
    """
    found = pool(model, asked)
    rules, length, memory = found.rules, found.flags.max_model_len, asked.cache_memory_bytes
    needed, usable = found.needed(length), max(found.usable(memory), 0)
    if refuses and needed > usable:
        raise PlanError(
            f"found {memory:,}: to serve one request of {length:,} tokens, {needed:,} bytes ({round(needed / GIB, 2)} GiB) of "
            f"cache are needed, and {usable:,} ({round(usable / GIB, 2)} GiB) are available; "
            f"the longest that fits is {found.longest(memory):,} tokens",
            where="cache_memory_bytes",
            fix="vLLM doesn't start; give more, or a smaller max_model_len",
        )
    blocks = memory // found.bytes
    smallest = min(spec.block for _, spec in (group[0] for group in found.groups))
    rows = [spec for group in found.held for _, spec in group if spec.row_bytes]
    per_token = sum((Fraction(spec.page_bytes, spec.block) for spec in rows), Fraction(0))
    concurrency = blocks * smallest / length if rules.one_table else blocks / found.request(length)
    return {
        "tokens": blocks // len(found.groups) * smallest if rules.shares_tokens else int(concurrency * length),
        "concurrency": float(f"{concurrency:.2f}"),
        "blocks": blocks,
        "block_size": smallest,
        "bytes_per_token": per_token.numerator if per_token.denominator == 1 else float(per_token),
        "groups": [
            {
                "layers": len(part),
                "kind": group[0][1].kind,
                "block_size": group[0][1].block,
                "page_bytes": (part or group)[0][1].page_bytes,
            }
            for group, part in zip(found.groups, found.held, strict=True)
        ],
    }


def longest(model: Model, asked: Asked) -> int:
    """Return the largest max_model_len that fits in the memory, up to the one asked for, as vLLM estimates it; 0: none."""
    return pool(model, asked).longest(asked.cache_memory_bytes)


def pool(model: Model, asked: Asked) -> Pool:
    """Return the pool that an engine makes, whatever its memory."""
    version = release(asked.version or NEWEST_TEXT)
    rules = rules_of(version)
    if asked.device == "cpu" and version < OLDEST_CPU:
        raise PlanError(
            f"found {asked.version}, on a CPU known are {OLDEST_CPU[0]}.{OLDEST_CPU[1]} and later", where="version", fix="choose one of these"
        )  # fmt: skip
    flags = _started(model, asked, rules, version)
    stages, layers = _layers(model, flags, rules, asked.pp)
    if not layers:
        kept = "keeps no cache between steps" if not rules.states_apart else "keeps no rows in the cache's blocks"
        raise PlanError(f"{model.family} {kept}, so that there is nothing to print", where=model.source)
    specs = _sized([spec for _, spec in layers], rules, flags, asked.block_size, version)
    numbered = [(layer, spec) for (layer, _), spec in zip(layers, specs, strict=True)]
    groups = _groups(numbered, rules)
    stage = max(stages, key=lambda part: _pool_bytes(_share(groups, part)))
    held = _share(groups, stage)
    return Pool(rules, flags, groups, held, _pool_bytes(held), [spec for layer, spec in numbered if layer in stage])


def _started(model: Model, asked: Asked, rules: Rules, version: Version) -> Started:
    """Return the flags of an engine after defaults."""
    device, tp, pp = asked.device, asked.tp, asked.pp
    ranks = tp * pp
    length = _length(model, asked, version)
    chunks_prefill = model.kind != "encoder-decoder"
    step = BATCHED_TOKENS[device] * (ranks if device == "cpu" else 1)
    seats = asked.max_num_seqs or SEQUENCES[device] * (ranks if device == "cpu" else 1)
    batched = asked.max_num_batched_tokens or min(seats * length, step if chunks_prefill else max(step, length))
    batches = pp + (device == "cuda") if rules.flies else 1  # on GPUs the next batch is scheduled while one runs
    caches = rules.caches_prefixes and model.family not in ATTENTION_FREE
    cached = caches if asked.prefix_caching is None else asked.prefix_caching
    return Started(
        device, length, batched, batched * batches, tp, cached,
        *_widths(model, rules, asked, version), _packs_latents(model, asked, version),
    )  # fmt: skip


def _length(model: Model, asked: Asked, version: Version) -> int:
    """Return max_model_len: by default the config's positions."""
    spans = [block.mask.window for block in _blocks(model) if isinstance(block, Attention) and block.mask.window]
    positions = model.positions or UNKNOWN_LENGTH
    if model.family in CAPPED and version < CAPPED[model.family] and spans:
        positions = min(positions, *spans)
        if (asked.max_model_len or 0) > positions:
            raise PlanError(
                f"found {asked.max_model_len:,}, but this version caps it to the window of {positions:,} tokens",
                where="max_model_len",
                fix="lower it, or choose a later version",
            )
    return asked.max_model_len or positions


def release(text: str) -> Version:
    """Return major, minor and patch of a version whose rules are known; without a patch, that of the last one."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?!\d)", str(text).strip())
    found = (int(match[1]), int(match[2]), int(match[3] or LAST_PATCH)) if match else None
    return known(found, text, OLDEST, NEWEST, "vLLM")


def _widths(model: Model, rules: Rules, asked: Asked, version: Version) -> tuple[int, int, int]:
    """Return the bits of a cache element, of the model's dtype and of an element of a recurrent state."""
    stored = canonical(model.dtype, f"{model.source}, torch_dtype") if model.dtype else "bf16"
    dtype, state_dtype = (None if each == "auto" else each for each in (asked.dtype, asked.state_dtype))
    own = dtype or ("bf16" if stored == "fp32" else stored)
    precision = resolve(model, dtype=own, cache_dtype="fp8" if asked.cache_dtype == PACKED else asked.cache_dtype)
    cache = unpacked(precision.cache)
    if cache not in CACHE_DTYPES:
        allowed = ", ".join(CACHE_DTYPES)
        raise PlanError(f"found {cache}, allowed are {allowed}", where="cache_dtype", fix="choose one of these")
    own = precision.activations
    chosen = state_dtype or _state_dtype(model, version)
    states = canonical(chosen or ("fp32" if asked.device == "cpu" and rules.wide_states else own), "state_dtype")
    row, plain, state = (int(element_bits(name)) for name in (cache, own, states))
    return row, plain, state


def _state_dtype(model: Model, version: Version) -> str | None:
    """Return the type of recurrent states that a config says, where vLLM reads it, or a family's default; None: neither."""
    readers = [first for family, first in STATE_READERS.items() if model.family.startswith(family)]
    if not readers or version < readers[0]:
        return None
    defaults = STATE_DTYPES.get(model.family, ())
    return model.state_dtype or next((dtype for first, dtype in defaults if version >= first), None)


def _blocks(model: Model) -> Iterator[Block]:
    """Yield the blocks of a decoder that remember something."""
    runs = (run for stack in model.stacks if stack.name == "decoder" for run in stack.runs)
    yield from (block for run in runs for block in remembering(*run.layer.blocks))


def _packs_latents(model: Model, asked: Asked, version: Version) -> bool:
    """Return whether chosen latents (DeepSeek-V3.2) are packed: 8-bit caches of a GPU, in 0.11 by default."""
    chosen = any(isinstance(block, LatentAttention) and block.chooser is not None for block in _blocks(model))
    cache = asked.cache_dtype or "auto"
    narrow = cache.startswith("fp8") or (cache == "auto" and version < (0, 12))
    packs = chosen and narrow and asked.device == "cuda" and model.family not in UNINDEXED
    if cache == PACKED and not packs:
        raise PlanError(
            f"found {cache}, a format of chosen latents on a GPU", where="cache_dtype", fix="say fp8, or choose a model with an indexer"
        )  # fmt: skip
    return packs


def _layers(model: Model, flags: Started, rules: Rules, pp: int) -> tuple[list[range], Layers]:
    """Return the layers of each stage, and the specs of all caches in order."""
    from planner.shard import stages  # noqa: PLC0415

    found: Layers = []
    depth = 0
    for stack in model.stacks:
        if stack.name != "decoder":
            continue
        for run in stack.runs:
            specs = [spec for block in remembering(*run.layer.blocks) for spec in _specs(block, model, flags, rules)]
            for layer in range(depth, depth + run.count * run.repeats):
                found += [(layer, spec) for spec in specs]
            depth += run.count * run.repeats
    if pp > max(depth, 1):
        raise PlanError(f"found {pp}, but there are {depth} layers", where="pp", fix="choose at most as many")
    windows = {spec.span for _, spec in found if spec.kind == "sliding"}
    if model.family in ALTERNATING and windows and any(spec.kind == "full" for _, spec in found):
        kinds: tuple[Kind, Kind] = ("sliding", "full")
        found = [
            (layer, replace(spec, kind=kinds[layer % 2], span=max(windows) * (1 - layer % 2))) for layer, spec in found
        ]
    if rules.states_apart:
        found = [(layer, spec) for layer, spec in found if spec.kind not in {"mamba", "cross"}]
    if rules.last_stage:
        size = depth // pp
        return [range(stage * size, depth if stage == pp - 1 else (stage + 1) * size) for stage in range(pp)], found
    return stages(depth, pp), found


def _specs(block: Block, model: Model, flags: Started, rules: Rules) -> Iterator[Spec]:
    """Yield the specs of what a block remembers; those without a block size take the engine's."""
    from planner import recurrent as mixers  # noqa: PLC0415
    from planner.compressed import ExpertAttention  # noqa: PLC0415

    if not any(cache.owner for cache in block.caches()):
        return
    match block:
        case Attention(chooser=None) if not block.cross or model.kind == "encoder-decoder":
            yield _rows(block, model, flags, rules)
        case ExpertAttention():
            yield _keys(model, flags, block.kv_heads, block.head, block.head)
        case mixers.ConvolvedAttention():  # what its convolutions need isn't cached
            yield _rows(block.attention, model, flags, rules)
        case LatentAttention():
            yield from _latents(block, model, flags, rules)
        case (
            mixers.Mamba()
            | mixers.Mamba2()
            | mixers.DeltaRule()
            | mixers.LightningAttention()
            | mixers.ShortConvolution()
        ):
            yield _state(block, flags)
        case _:
            raise PlanError(
                f"vLLM's spec for the cache of {type(block).__name__} isn't known",
                where=model.source,
                fix="plan() gives the bytes that the model itself needs",
            )


def _keys(model: Model, flags: Started, heads: int, key: int, value: int, kind: Kind = "full", span: int = 0) -> Spec:
    """Return the spec of keys and values: whole heads on each rank, repeated where there are fewer than ranks."""
    if heads % flags.tp and flags.tp % heads:
        raise PlanError(
            f"found {flags.tp}, which neither divides the {heads} key-value heads nor is divided by them",
            where=f"tp, {model.source}",
            fix="choose a divisor or a multiple",
        )
    own = max(heads // flags.tp, 1)
    return Spec(kind, (own, key, value), own * (key + value) * flags.row_bits // 8, span=span)


def _rows(block: Attention, model: Model, flags: Started, rules: Rules) -> Spec:
    """Return the spec of an attention's keys and values."""
    (cache,) = block.caches()
    heads = block.cached_heads or block.kv_heads
    value = cache.row // heads - block.head
    if cache.chunk and not rules.keeps_chunks:
        return _keys(model, flags, heads, block.head, value, "chunked", cache.chunk)
    if cache.window:
        return _keys(model, flags, heads, block.head, value, "sliding", cache.window)
    return _keys(model, flags, heads, block.head, value, "cross" if block.cross else "full")


def _latents(block: LatentAttention, model: Model, flags: Started, rules: Rules) -> Iterator[Spec]:
    """Yield the spec of latents, whole on every rank, and that of an indexer's keys; of keys and values where none are kept."""
    latent, *keys = block.caches()
    head = block.nope + block.rope
    if model.family in EXPANDED or not rules.absorbs_latents:
        padded = head if model.family in EXPANDED or not rules.pads_heads else EARLY_LATENT_HEAD
        yield _keys(model, flags, block.heads, padded, padded)
        return
    width = latent.row * flags.row_bits // 8
    if rules.pads_latents:
        width = -(-width // EARLY_LATENT_ALIGNMENT) * EARLY_LATENT_ALIGNMENT
    if flags.packs_latents:
        width = FP8_LATENT_BYTES
    kind: Kind = "sliding" if latent.window else "latent"
    yield Spec(kind, (1, latent.row), width, span=latent.window or 0)
    if keys and model.family not in UNINDEXED:
        head = keys[0].row
        yield Spec("latent", (1, head), chooser_bytes(head), block=INDEXER_KERNEL_TOKENS)


def _state(block: Mamba | Mamba2 | DeltaRule | LightningAttention | ShortConvolution, flags: Started) -> Spec:
    """Return the spec of a state: the rows before the next one of a convolution, and what is recurrent."""
    from planner.recurrent import DeltaRule, LightningAttention, Mamba2  # noqa: PLC0415

    sizes = [cache.fixed for cache in block.caches()]
    taps = 0 if isinstance(block, LightningAttention) else block.taps
    channels = sizes.pop(0) // taps if taps else 0
    if isinstance(block, Mamba2) and block.groups % flags.tp:  # every rank has a group of its own
        channels += 2 * (flags.tp - block.groups) * block.state
    for size in (channels, *sizes):
        if size % flags.tp:
            raise PlanError(
                f"found {flags.tp}, which doesn't divide a state of {size:,}", where="tp", fix="choose a divisor"
            )
    bits = flags.state_bits
    if isinstance(block, LightningAttention):
        bits = flags.own_bits
    if isinstance(block, DeltaRule) and block.channel_decay:
        bits = max(bits, 32)
    elements = (channels * max(taps - 1, 0) // flags.tp, *(size // flags.tp for size in sizes))
    total = (elements[0] * flags.own_bits + sum(elements[1:]) * bits) // 8
    checkpoint = isinstance(block, Mamba2)  # Mamba-2's kernel can put a state aside at the end of a prompt's last block
    return Spec("mamba", elements, state_bytes=total, states=1 + checkpoint)


def _sized(specs: list[Spec], rules: Rules, flags: Started, asked: int | None, version: Version) -> list[Spec]:
    """Give every spec its block size, and states the page of the rows beside them."""
    device = flags.device
    indexed = any(spec.block for spec in specs)
    tokens = asked or (INDEXER_KERNEL_TOKENS if indexed else BLOCK_TOKENS[device])
    unequal = any(spec.row_bytes and len(spec.shape) > 2 and spec.shape[1] != spec.shape[2] for spec in specs)
    kernel = UNEQUAL_KERNEL_TOKENS if unequal else KERNEL_TOKENS[device]
    states = [spec for spec in specs if spec.kind == "mamba"]
    rows = [spec for spec in specs if spec.kind != "mamba"]
    page = 0
    if states and rows:
        if device == "cpu" and not rules.aligns_blocks:
            raise PlanError(
                "block sizes of hybrids on a CPU aren't known before 0.20", where="version", fix="choose 0.20 or later"
            )
        per_token = next((spec for spec in rows if spec.kind in {"full", "latent"}), rows[0]).row_bytes
        latent = any(spec.kind == "latent" for spec in rows)
        fits = max(kernel, tokens) if rules.aligns_blocks else kernel
        if latent:
            fits = max(fits, LATENT_KERNEL_TOKENS if version >= (0, 28) else 64)
        tokens = max(tokens, fits * -(-max(spec.state_bytes for spec in states) // (fits * per_token)))
        if rules.aligns_blocks:
            tokens = -(-tokens // kernel) * kernel
        page = tokens * per_token
    elif states:
        tokens = asked or BLOCK_TOKENS["cuda"]  # what a CPU prefers is read from attention
    window = max(kernel, tokens // kernel * kernel) if rules.own_window_blocks else tokens

    if version < (0, 15) and any(spec.kind == "chunked" for spec in specs):
        raise PlanError("chunked caches aren't known before 0.15", where="version", fix="choose 0.15 or later")

    def sized(spec: Spec) -> Spec:
        if spec.kind == "mamba":
            cached = flags.prefix_caching
            held = 2 + (spec.states - 1) * rules.checkpoints if cached else 1
            return replace(spec, block=tokens if cached else flags.max_model_len, padded=page, states=held)
        return replace(spec, block=window if spec.kind == "sliding" else tokens)

    return [sized(spec) for spec in specs]


def _groups(layers: Layers, rules: Rules) -> list[Layers]:
    """Split the layers into groups that share a block table, each with equal bytes in a block of the pool."""
    specs = [spec for _, spec in layers]
    attention = {spec.page_bytes for spec in specs if spec.row_bytes}
    if len(attention) > 1 and not rules.unequal_types:
        raise PlanError(
            f"pages of {', '.join(f'{page:,}' for page in sorted(attention))} bytes aren't known before 0.11",
            where="version",
            fix="choose 0.11 or later",
        )
    if rules.one_table:
        return [
            [
                (layer, replace(spec, kind="full" if spec.kind != "latent" else "latent", span=0))
                for layer, spec in layers
            ]
        ]
    if len({spec.type for spec in specs}) == 1:
        return [layers]
    largest = max(spec.page_bytes for spec in specs)
    kinds: dict[Spec, Layers] = {}
    for layer, spec in layers:
        kinds.setdefault(even := _paged(spec, largest, rules), []).append((layer, even))
    fewest, most = (choose(map(len, kinds.values())) for choose in (min, max))
    length = most if most < fewest * rules.spread else fewest
    groups = []
    for found in kinds.values():
        count = -(-len(found) // length)
        groups += [found[start::count] for start in range(count)]
    return groups


def _paged(spec: Spec, page: int, rules: Rules) -> Spec:
    """Return a spec whose page is that large: with more tokens to a block, else padded."""
    if spec.page_bytes == page:
        return spec
    if spec.kind != "mamba" and page % spec.page_bytes == 0:
        return replace(spec, block=spec.block * (page // spec.page_bytes))
    if spec.kind == "latent" or not rules.pads_pages:
        raise PlanError(
            f"pages of {spec.page_bytes:,} and {page:,} bytes can't share a pool in this version",
            where="cache",
            fix="vLLM doesn't start; choose a version from 0.24, or another block_size",
        )
    return replace(spec, padded=page)


def _share(groups: list[Layers], stage: range) -> list[Layers]:
    """Return what of the groups a stage of the pipeline has."""
    return [[(layer, spec) for layer, spec in group if layer in stage] for group in groups]


def _pool_bytes(groups: list[Layers]) -> int:
    """Return the bytes of a block of the pool: the pages of the largest group's layers."""
    return max(sum(spec.page_bytes for _, spec in group) for group in groups)


def reserve(*asked: Any) -> tuple[Reserve, ...]:
    """Return what vLLM sets aside; see `planner.engines.vllm_memory.reserve`."""
    from planner.engines.vllm_memory import reserve as memory  # noqa: PLC0415

    return memory(*asked)
