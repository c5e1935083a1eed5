"""What vLLM makes of an amount of cache memory: blocks, tokens and concurrency, as its start-up log prints them.

vLLM (v1) gives every layer a spec, made here from the blocks that the layer consists of: rows in pages of `block_size` tokens, or
a state in one page. Layers of one kind share a block table, a group; every group takes its blocks from one pool, and a
block holds a page for each layer of the largest group. So pages are made equal, layers are put into groups of equal
length, and

    blocks      = memory // (page x layers of a group)
    concurrency = blocks / (blocks that one request of max_model_len needs, summed over groups)

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
from planner.engines.serving import Reserve, parse
from planner.errors import PlanError
from planner.model import Model
from planner.precision import canonical, element_bits, resolve

if TYPE_CHECKING:
    from planner.recurrent import DeltaRule, LightningAttention, Mamba, Mamba2, ShortConvolution

Kind = Literal["full", "sliding", "chunked", "latent", "mamba", "cross"]

FIRST, OLDEST, NEWEST = (0, 6), (0, 11), (0, 32)
"""Versions whose rules are known: before the second, those of caches that keep all rows only; read in 0.11, 0.15, 0.19 to 0.22, 0.24
to 0.30 and 0.32, those before known from start-up logs."""

LATENTS = (0, 7)
"""The first version that keeps latents instead of keys and values."""

NEWEST_TEXT = ".".join(map(str, NEWEST))

BLOCK_TOKENS = {"cpu": 128, "cuda": 16}
"""Tokens of a block by default. A CPU without AMX tiles has 16 for latents."""

KERNEL_TOKENS = {"cpu": 32, "cuda": 16}
"""Tokens that a block is a multiple of where it is chosen to fit: those of the attention kernels (CPU, FlashAttention)."""

LATENT_KERNEL_TOKENS = 128
"""The same beside latents: some of their kernels want this many."""

INDEXER_KERNEL_TOKENS = 64
"""Tokens of a block of the kernels that score chosen latents only (DeepSeek-V3.2)."""

INDEXER_GROUP = 128
"""Elements of an indexer's key, of 8 bits, that share a scale of 32."""

LATENT_GROUP = 128
"""Elements of an 8-bit latent that share a scale of 32, where the kernels score chosen latents; its rotary part has 16 bits."""

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
        wide_states: on a CPU with AVX-512 BF16, recurrent states are fp32 whatever the config says.
        pads_pages: a page that doesn't divide the largest is padded; before, the model was refused.
        own_window_blocks: windows' blocks are a multiple of the kernel's even if --block-size isn't.
        spread: groups are as long as the commonest kind where that has less than so many times the layers of the rarest.
        keeps_null: one block is always held back, so that a request must fit in the others.
        aligns_blocks: hybrids' blocks are multiples of the default block, and not of a kernel's.
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


def _rules(version: tuple[int, int]) -> Rules:
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
    parsed(version or NEWEST_TEXT)
    slack = flags.max_num_batched_tokens or BATCHED_TOKENS["cuda"]
    return Engine(
        "vllm", version or NEWEST_TEXT, window_margin=1, block_tokens=flags.block_size or BLOCK_TOKENS["cuda"],
        window_slack=slack, casts_float32=True, longest_tokens=flags.max_model_len, flags=flags,
    )  # fmt: skip


class Started(NamedTuple):
    """What an engine is started with, after defaults.

    Attributes:
        device: it runs on. max_model_len: L, tokens of the longest request. batched: T, tokens of a step.
        in_flight: tokens scheduled and not yet settled. tp: ranks that share heads. prefix_caching: for models with states.
        row_bits: of a cache element. own_bits: of the model's dtype. state_bits: of recurrent states.
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


def capacity(model: Model, asked: Asked) -> dict[str, Any]:
    """Return what vLLM reports for an amount of cache memory; as `planner.engine_capacity`."""
    number = parsed(asked.version or NEWEST_TEXT)
    rules = _rules(number)
    device, tp, pp = asked.device, asked.tp, asked.pp
    ranks = tp * pp
    longest = asked.max_model_len or model.positions or UNKNOWN_LENGTH
    chunks_prefill = model.kind != "encoder-decoder"
    step = BATCHED_TOKENS[device] * (ranks if device == "cpu" else 1)
    seats = asked.max_num_seqs or SEQUENCES[device] * (ranks if device == "cpu" else 1)
    batched = asked.max_num_batched_tokens or min(seats * longest, step if chunks_prefill else max(step, longest))
    batches = pp + (device == "cuda") if rules.flies else 1  # on GPUs the next batch is scheduled while one runs
    widths = _widths(model, rules, asked)
    cached = rules.caches_prefixes if asked.prefix_caching is None else asked.prefix_caching
    flags = Started(device, longest, batched, batched * batches, tp, cached, *widths)
    stages, layers = _layers(model, flags, pp)
    if not layers:
        raise PlanError(
            f"{model.family} keeps no cache between steps, so that there is nothing to print", where=model.source
        )
    specs = _sized([spec for _, spec in layers], rules, flags, asked.block_size, number)
    groups = _groups([(layer, spec) for (layer, _), spec in zip(layers, specs, strict=True)], rules)
    stage = max(stages, key=lambda part: _pool_bytes(_share(groups, part)))
    held = _share(groups, stage)
    pool = _pool_bytes(held)
    blocks = asked.cache_memory_bytes // pool
    request = sum(max(spec.blocks(flags) for _, spec in group) for group in groups)
    if blocks - rules.keeps_null < request:
        raise PlanError(
            f"found {asked.cache_memory_bytes:,}, but one request of {longest:,} tokens needs {(request + rules.keeps_null) * pool:,}",
            where="cache_memory_bytes",
            fix="vLLM doesn't start; give more, or a smaller max_model_len",
        )
    if number < OLDEST:
        _plain(number, {spec.kind for _, spec in layers})
    smallest = min(spec.block for _, spec in (group[0] for group in groups))
    rows = [spec for group in held for _, spec in group if spec.row_bytes]
    per_token = sum((Fraction(spec.page_bytes, spec.block) for spec in rows), Fraction(0))
    concurrency = blocks * smallest / longest if number < OLDEST else blocks / request
    return {
        "tokens": blocks // len(groups) * smallest if rules.shares_tokens else int(concurrency * longest),
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
            for group, part in zip(groups, held, strict=True)
        ],
    }


def parsed(text: str) -> tuple[int, int]:
    """Return major and minor of a version whose rules are known."""
    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:[.\-+]?\w+)*", str(text))
    found = (int(match[1]), int(match[2])) if match else None
    if found is None or not FIRST <= found <= NEWEST:
        spans = " to ".join(".".join(map(str, each)) for each in (FIRST, NEWEST))
        raise PlanError(f"found {text!r}, known are {spans}", where="version", fix="choose the nearest of these")
    return found


def _plain(version: tuple[int, int], kinds: set[Kind]) -> None:
    """Refuse caches that versions before `OLDEST` stored in ways that aren't known."""
    known = {"full", "latent"} if version >= LATENTS else {"full"}
    if other := kinds - known:
        raise PlanError(
            f"what {'.'.join(map(str, version))} made of {', '.join(sorted(other))} caches isn't known", where="version",
            fix=f"choose {'.'.join(map(str, OLDEST))} or later",
        )  # fmt: skip


def _widths(model: Model, rules: Rules, asked: Asked) -> tuple[int, int, int]:
    """Return the bits of a cache element, of the model's dtype and of an element of a recurrent state."""
    stored = canonical(model.dtype, f"{model.source}, torch_dtype") if model.dtype else "bf16"
    cache_dtype = "fp8" if asked.cache_dtype == "fp8_ds_mla" else asked.cache_dtype
    dtype, state_dtype = (None if each == "auto" else each for each in (asked.dtype, asked.state_dtype))
    own = dtype or ("bf16" if stored == "fp32" else stored)
    precision = resolve(model, dtype=own, cache_dtype=cache_dtype)
    if precision.cache not in CACHE_DTYPES:
        allowed = ", ".join(CACHE_DTYPES)
        raise PlanError(
            f"found {precision.cache}, allowed are {allowed}", where="cache_dtype", fix="choose one of these"
        )
    own = precision.activations
    states = canonical(state_dtype or model.state_dtype or own, "state_dtype")
    if asked.device == "cpu" and rules.wide_states:
        states = "fp32"
    row, plain, state = (int(element_bits(name)) for name in (precision.cache, own, states))
    return row, plain, state


def _layers(model: Model, flags: Started, pp: int) -> tuple[list[range], Layers]:
    """Return the layers of each stage, and the specs of all caches in order."""
    from planner.shard import stages  # noqa: PLC0415

    found: Layers = []
    depth = 0
    for stack in model.stacks:
        if stack.name != "decoder":
            continue
        for run in stack.runs:
            specs = [spec for block in run.layer.blocks for spec in _specs(block, model, flags)]
            for layer in range(depth, depth + run.count * run.repeats):
                found += [(layer, spec) for spec in specs]
            depth += run.count * run.repeats
    if pp > max(depth, 1):
        raise PlanError(f"found {pp}, but there are {depth} layers", where="pp", fix="choose at most as many")
    return stages(depth, pp), found


def _specs(block: Block, model: Model, flags: Started) -> Iterator[Spec]:
    """Yield the specs of what a block remembers; those without a block size take the engine's."""
    from planner import recurrent as mixers  # noqa: PLC0415

    caches = block.caches()
    if not any(cache.owner for cache in caches):
        return
    inner = getattr(block, "block", None)
    match block:
        case mixers.Together():
            for part in block.parts:
                yield from _specs(part, model, flags)
        case mixers.SharedTransformer():
            yield from _specs(block.attention, model, flags)
        case Attention(chooser=None) if not block.cross or model.kind == "encoder-decoder":
            yield _rows(block, model, flags)
        case LatentAttention():
            yield from _latents(block, flags)
        case (
            mixers.Mamba()
            | mixers.Mamba2()
            | mixers.DeltaRule()
            | mixers.LightningAttention()
            | mixers.ShortConvolution()
        ):
            yield _state(block, flags)
        case _ if inner is not None and hasattr(inner, "caches") and inner.caches() == caches:
            yield from _specs(inner, model, flags)
        case _:
            raise PlanError(
                f"vLLM's spec for the cache of {type(block).__name__} isn't known",
                where=model.source,
                fix="plan() gives the bytes that the model itself needs",
            )


def _rows(block: Attention, model: Model, flags: Started) -> Spec:
    """Return the spec of keys and values: whole heads on each rank, repeated where there are fewer than ranks."""
    (cache,) = block.caches()
    heads = block.cached_heads or block.kv_heads
    if heads % flags.tp and flags.tp % heads:
        raise PlanError(
            f"found {flags.tp}, which neither divides the {heads} key-value heads nor is divided by them",
            where=f"tp, {model.source}",
            fix="choose a divisor or a multiple",
        )
    own = max(heads // flags.tp, 1)
    row = own * (cache.row // heads) * flags.row_bits // 8
    kind: Kind = "cross" if block.cross else "sliding" if cache.window else "chunked" if cache.chunk else "full"
    return Spec(kind, (own, block.head, block.value or block.head), row, span=cache.window or cache.chunk or 0)


def _latents(block: LatentAttention, flags: Started) -> Iterator[Spec]:
    """Yield the spec of latents, whole on every rank, and that of an indexer's keys."""
    latent, *keys = block.caches()
    kind: Kind = "sliding" if latent.window else "latent"
    row = latent.row * flags.row_bits // 8
    if block.mask.chosen and flags.row_bits == 8 and flags.device == "cuda":  # fp8_ds_mla, FlashMLA's sparse rows
        row = block.kv_rank + 4 * (block.kv_rank // LATENT_GROUP) + 2 * block.rope
    yield Spec(kind, (1, latent.row), row, span=latent.window or 0)
    if keys:
        head = keys[0].row
        yield Spec("latent", (1, head), head + 4 * (head // INDEXER_GROUP), block=INDEXER_KERNEL_TOKENS)


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


def _sized(specs: list[Spec], rules: Rules, flags: Started, asked: int | None, version: tuple[int, int]) -> list[Spec]:
    """Give every spec its block size, and states the page of the rows beside them."""
    device = flags.device
    indexed = any(spec.block for spec in specs)
    tokens = asked or (INDEXER_KERNEL_TOKENS if indexed else BLOCK_TOKENS[device])
    kernel = KERNEL_TOKENS[device]
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
    align = flags.prefix_caching and bool(rows)
    window = max(kernel, tokens // kernel * kernel) if rules.own_window_blocks else tokens

    if version < (0, 15) and any(spec.kind == "chunked" for spec in specs):
        raise PlanError("chunked caches aren't known before 0.15", where="version", fix="choose 0.15 or later")

    def sized(spec: Spec) -> Spec:
        if spec.kind == "mamba":
            held = 1 if not align else 2 + (spec.states - 1) * rules.checkpoints
            return replace(spec, block=tokens if align else flags.max_model_len, padded=page, states=held)
        return replace(spec, block=window if spec.kind == "sliding" else tokens)

    return [sized(spec) for spec in specs]


def _groups(layers: Layers, rules: Rules) -> list[Layers]:
    """Split the layers into groups that share a block table, each with equal bytes in a block of the pool."""
    specs = [spec for _, spec in layers]
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
