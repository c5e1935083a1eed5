"""What TensorRT-LLM makes of memory: a share of what is free after loading becomes blocks for its cache.

    cache  = free_gpu_memory_fraction x memory free after weights, buffers and a profiling run
    blocks = tokens of that / tokens_per_block, rounded up (the PyTorch runtime from 1.3 on: down)

A block holds the rows of all layers of one window; windows that `max_attention_window` names have pools of their own, that
get memory by window x bytes of a token. By default all layers keep every token, whatever their windows. An encoder's rows
have a pool too, `cross_kv_cache_fraction` of the memory. Recurrent states have `max_batch_size` slots beside the pool.

Read in the C++ runtime of 0.8 to 0.21 (cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp) and the PyTorch runtime of 1.0 to
1.4 (tensorrt_llm/_torch/pyexecutor/_util.py, resource_manager.py; attention_backend/sparse/dsa.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from planner.activations import EAGER, FUSED, peak
from planner.engines import Engine
from planner.engines.capacity import Asked
from planner.engines.rank import Held, held, place, process, remembered
from planner.engines.serving import GIB, Part, Reserve, bounded, exact, flags_of, known, parse, rest, step
from planner.engines.sglang import packed_bytes
from planner.errors import PlanError
from planner.model import Model
from planner.precision import PACKED_LATENTS, Precision, canonical, chooser_bytes, element_bits, resolve
from planner.shard import Parallel, device_shares
from planner.workload import Workload, smallest

if TYPE_CHECKING:
    from profiles.hardware import Hardware

MIB = 2**20

Version = tuple[int, int]

OLDEST: Version = (0, 8)
NEWEST: Version = (1, 4)
NEWEST_TEXT = ".".join(map(str, NEWEST))

FREE_SHARE = 0.9
"""Default of free_gpu_memory_fraction (executor/types.h; llmapi/llm_args.py)."""

CROSS_SHARE = 0.5
"""Default of cross_kv_cache_fraction where there is an encoder."""

BLOCK_TOKENS: tuple[tuple[Version, int], ...] = (((0, 19), 32), ((0, 10), 64), ((0, 0), 128))
"""Default of tokens_per_block, since a version: 128 in 0.8 (issue 1400: 132,608 tokens), 64 in 0.11 to 0.18 (issues 2268, 3376),
32 in 0.19 (issue 4275) and later (llm_args.py)."""

INDEXED_BLOCK_TOKENS = 64
"""Tokens of a block beside an indexer: its kernels want so many (examples/models/core/deepseek_v3)."""

BATCH, STEP_TOKENS = 2048, 8192
"""Defaults of max_batch_size and max_num_tokens, from 0.12 on."""

PYTORCH: Version = (1, 0)
"""The first version whose default runtime is PyTorch."""

FLOORS: Version = (1, 3)
"""The first version that rounds blocks down; 1.2's release candidates rounded up (a log of December 2025)."""

WINDOW_POOLS: Version = (0, 20)
"""The first version whose windows have pools of their own (pull request 3028)."""

CACHE_DTYPES = ("fp32", "fp16", "bf16", "fp8", "int8", "nvfp4")

PACKED = PACKED_LATENTS
"""The name of a cache of packed latents: 8-bit elements, their scales and a 16-bit rotary key (sparse/dsa/cache_manager.py);
8-bit latents without it have 576 bytes (pull request 8692)."""


class Flags(NamedTuple):
    """Flags that change memory, by TensorRT-LLM's names; None: the version's default.

    kv_cache_dtype: "fp8_ds_mla", packed latents beside an indexer; other dtypes are `plan --cache-dtype`.
    kv_cache_free_gpu_mem_fraction is what Triton's backend calls free_gpu_memory_fraction. max_attention_window: tokens, a
    pattern over the layers, as "1024,131072".
    """

    free_gpu_memory_fraction: float | None = None
    kv_cache_free_gpu_mem_fraction: float | None = None
    tokens_per_block: int | None = None
    max_batch_size: int | None = None
    max_num_tokens: int | None = None
    max_seq_len: int | None = None
    max_tokens: int | None = None
    max_attention_window: str | None = None
    max_beam_width: int = 1
    kv_cache_dtype: str | None = None
    cross_kv_cache_fraction: float | None = None
    host_cache_size: int | None = None
    enable_attention_dp: bool = False
    backend: str | None = None

    @property
    def share(self) -> float:
        """Share of free memory that the cache gets."""
        return self.free_gpu_memory_fraction or self.kv_cache_free_gpu_mem_fraction or FREE_SHARE

    @property
    def windows(self) -> tuple[int, ...]:
        """Tokens of the windows, in the order of the layers."""
        return tuple(map(int, re.findall(r"\d+", self.max_attention_window or "")))


def engine(version: str, settings: Sequence[str]) -> Engine:
    """Return TensorRT-LLM as a plan sees it: rows in whole blocks, windows kept whole unless pools for them are asked."""
    flags = parse(Flags, "trtllm", settings)
    number = parsed(version or NEWEST_TEXT)
    if flags.max_attention_window and not flags.windows:
        raise PlanError(
            f"found {flags.max_attention_window!r}, tokens are needed", where="--engine-set max_attention_window",
            fix="give a pattern over the layers, as 1024,131072",
        )  # fmt: skip
    if flags.kv_cache_dtype not in {None, PACKED}:
        raise PlanError(
            f"found {flags.kv_cache_dtype!r}, {PACKED} is known here", where="--engine-set kv_cache_dtype",
            fix="say --cache-dtype",
        )  # fmt: skip
    if flags.share >= 1:
        raise PlanError(
            f"found {flags.share:g}, a share below 1 is needed",
            where="--engine-set free_gpu_memory_fraction",
            fix="correct it",
        )
    return Engine(
        "trtllm", version or NEWEST_TEXT, block_tokens=flags.tokens_per_block or _block(number),
        window_slack=0 if len(set(flags.windows)) > 1 and number >= WINDOW_POOLS else None, casts_float32=True, packs_choosers=True,
        longest_tokens=flags.max_seq_len, flags=flags,
    )  # fmt: skip


def parsed(text: str) -> Version:
    """Return major and minor of a version whose rules are known."""
    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:[.\-+]?\w+)*", str(text))
    found = (int(match[1]), int(match[2])) if match else None
    return known(found, text, OLDEST, NEWEST, "TensorRT-LLM")


def _block(version: Version) -> int:
    return next(tokens for since, tokens in BLOCK_TOKENS if version >= since)


def _rounds_up(version: Version, flags: Flags) -> bool:
    return version < FLOORS or flags.backend == "tensorrt"


# --- blocks


class Pool(NamedTuple):
    """Blocks of the layers that keep equally many tokens.

    Attributes:
        kind: "full", "latent", "sliding" or "cross". window: tokens that it keeps of a request. layers: of the fullest rank.
        token_bytes: of all of them. blocks: of the pool.
    """

    kind: str
    window: int
    layers: int
    token_bytes: int
    blocks: int


class Rows(NamedTuple):
    """How rows are stored: bits of an element, packed latents, and tokens of a block."""

    bits: Fraction
    packed: bool
    rope: int
    block: int

    def bytes(self, each: Held) -> Fraction:
        """Return the bytes of a token of one layer."""
        index = chooser_bytes(each.index) if each.index else 0
        if self.packed and each.kind == "latent":
            return Fraction(packed_bytes(each.key, self.rope) + index)
        return each.row * self.bits / 8 + index


def _rows(model: Model, layers: list[Held], flags: Flags, version: Version, asked: Asked) -> Rows:
    from planner.blocks import LatentAttention  # noqa: PLC0415

    stored = canonical(model.dtype, f"{model.source}, torch_dtype") if model.dtype else "bf16"
    packed = PACKED in {flags.kv_cache_dtype, asked.cache_dtype}
    dtype, name = (None if each == "auto" else each for each in (asked.dtype, None if packed else asked.cache_dtype))
    own = dtype or ("bf16" if stored == "fp32" else stored)
    cache = "fp8" if packed else "nvfp4" if name in {"nvfp4", "fp4"} else "int8" if name == "int8" else ""
    cache = cache or resolve(model, dtype=own, cache_dtype=name).cache
    if cache not in CACHE_DTYPES:
        raise PlanError(
            f"found {cache}, allowed are {', '.join((*CACHE_DTYPES, PACKED))}",
            where="cache_dtype",
            fix="choose one of these",
        )
    bits = {"nvfp4": Fraction(9, 2), "int8": Fraction(8)}.get(cache) or element_bits(cache)
    decoder = model.stack("decoder")
    ropes = [
        block.rope
        for run in (decoder.runs if decoder else ())
        for block in run.layer.blocks
        if isinstance(block, LatentAttention)
    ]
    indexed = any(each.index for each in layers)
    block = asked.block_size or flags.tokens_per_block or (INDEXED_BLOCK_TOKENS if indexed else _block(version))
    return Rows(bits, packed, max(ropes, default=0), block)


def _pools(
    layers: list[Held], memory: int, rows: Rows, flags: Flags, version: Version, longest: int, source: int
) -> tuple[Pool, ...]:
    """Return the pools of a rank, smallest window first, the encoder's last."""
    cross = [each for each in layers if each.kind == "cross"]
    decoder = [each for each in layers if each.kind in {"rows", "latent"}]
    share = Fraction(str(flags.cross_kv_cache_fraction or CROSS_SHARE)) if cross else Fraction(0)
    found = _windows(decoder, memory * (1 - share), rows, flags, version, longest)
    if cross:
        size = sum(map(rows.bytes, cross), Fraction(0))
        blocks = _count(memory * share, size, rows.block, flags, version)
        found.append(Pool("cross", source, len(cross), int(size), blocks))
    return tuple(found)


def _windows(
    layers: list[Held], memory: Fraction, rows: Rows, flags: Flags, version: Version, longest: int
) -> list[Pool]:
    pattern = tuple(min(each, longest) for each in flags.windows) or (longest,)
    if version < WINDOW_POOLS:
        pattern = (max(pattern),)
    groups: dict[int, list[Held]] = {}
    for each in layers:
        groups.setdefault(pattern[each.layer % len(pattern)], []).append(each)
    sizes = {window: sum(map(rows.bytes, group), Fraction(0)) for window, group in groups.items()}
    weight = sum((window * size for window, size in sizes.items()), Fraction(0))
    return [
        Pool(
            "latent" if any(each.kind == "latent" for each in groups[window]) else "full" if window == longest else "sliding",
            window, len(groups[window]), -(-sizes[window].numerator // sizes[window].denominator),
            _count(memory * window * sizes[window] / weight, sizes[window], rows.block, flags, version),
        )
        for window in sorted(groups)
    ]  # fmt: skip


def _count(memory: Fraction, size: Fraction, block: int, flags: Flags, version: Version) -> int:
    """Return the blocks of so many bytes."""
    tokens = int(max(memory, Fraction(0)) / size)
    tokens = min(tokens, flags.max_tokens) if flags.max_tokens else tokens
    return -(-tokens // block) if _rounds_up(version, flags) else tokens // block


def capacity(model: Model, asked: Asked) -> dict[str, Any]:
    """Return what TensorRT-LLM makes of memory for its cache, a share of what is free; as `planner.engine_capacity`.

    Flags are those that the model was loaded with. Concurrency isn't printed by TensorRT-LLM: tokens over the longest
    request, or an encoder's requests. `max_seq_len`: what it is reduced to where the pool holds less. Groups say besides
    `tokens`, `blocks` and `bytes_per_token` of each pool, all layers.

    Raises:
        PlanError: a version, a cache or a dtype that isn't known; less memory than one block.
    """
    version, flags = parsed(asked.version or NEWEST_TEXT), flags_of(model, Flags)
    parts, layers = remembered(model, 1 if flags.enable_attention_dp else asked.tp, asked.pp)
    longest = asked.max_model_len or flags.max_seq_len or model.positions or STEP_TOKENS
    source = model.source_positions or longest
    rows = _rows(model, layers, flags, version, asked)
    made = [
        _pools(
            [each for each in layers if each.layer in part],
            asked.cache_memory_bytes,
            rows,
            flags,
            version,
            longest,
            source,
        )
        for part in parts
    ]
    kept = [pools for pools in made if pools]
    if not kept:
        raise PlanError(f"{model.family} has states only, in slots beside a pool", where=model.source)
    fewest = min(kept, key=lambda pools: max(pool.blocks for pool in pools if pool.kind != "cross"))
    main = max((pool for pool in fewest if pool.kind != "cross"), key=lambda pool: pool.window)
    if min(pool.blocks for pool in fewest) < 1:
        raise PlanError(
            f"found {asked.cache_memory_bytes:,} bytes, less than one block of {rows.block} tokens", where="cache_memory_bytes",
            fix="TensorRT-LLM doesn't start; raise free_gpu_memory_fraction",
        )  # fmt: skip
    tokens = main.blocks * rows.block
    requests = min(pool.blocks * rows.block / pool.window for pool in fewest)
    return {
        "tokens": tokens,
        "concurrency": round(requests, 2),
        "blocks": main.blocks,
        "block_size": rows.block,
        "bytes_per_token": sum(pool.token_bytes for pool in fewest if pool.kind != "cross"),
        "max_seq_len": min(longest, tokens),
        "groups": [
            {
                "layers": pool.layers, "kind": pool.kind, "block_size": rows.block,
                "page_bytes": pool.token_bytes * rows.block // pool.layers, "window": pool.window, "blocks": pool.blocks,
                "tokens": pool.blocks * rows.block, "bytes_per_token": pool.token_bytes,
            }
            for pool in fewest
        ],
    }  # fmt: skip


# --- the share of the device

SOURCE = "TensorRT-LLM 0.8 to 1.4 (_util.py, kvCacheManager.cpp)"

GRAPH_MIB = (25, 5, 75)
"""A captured size of batches; as SGLang's logs show, TensorRT-LLM prints it together with other memory."""

GRAPH_BATCH = 128
"""Batches up to so many are captured by default (llm_args.py, CudaGraphConfig.max_batch_size)."""

BUFFERS_MIB = (200, 40, 1200)
"""Runtime buffers and the decoder's (docs/source/reference/memory.md: 43 and 180 MB; 1,140 MB with 8,192 tokens)."""


def reserve(
    model: Model, work: Workload, precision: Precision, parallel: Parallel, hardware: Hardware
) -> tuple[Reserve, ...]:
    """Return what TensorRT-LLM does with the memory of a device, one entry for each stage of the pipeline.

    Args:
        model: loaded with this engine. work, precision, parallel, hardware: as `planner.memory` plans with.

    Raises:
        PlanError: the hardware isn't NVIDIA's.
    """
    if not hardware.title.startswith("NVIDIA"):
        raise PlanError(
            f"found {hardware.name}, but TensorRT-LLM runs on NVIDIA's GPUs only", where="--hardware",
            fix="choose one of these, or another engine",
        )  # fmt: skip
    flags, version = flags_of(model, Flags), parsed(model.engine.version)
    if flags.enable_attention_dp and parallel.attention_groups == 1:
        parallel = parallel._replace(attention_groups=parallel.tp)
    usable = hardware.usable_bytes
    budget = bounded(usable.bounds, "what programs see of the device", hardware.source(usable))
    tokens, seats = flags.max_num_tokens or STEP_TOKENS, flags.max_batch_size or BATCH
    filled = flags._replace(
        free_gpu_memory_fraction=flags.share, max_num_tokens=tokens, max_batch_size=seats,
        max_seq_len=flags.max_seq_len or model.positions, tokens_per_block=flags.tokens_per_block or _block(version),
    )  # fmt: skip
    shape = step(model, work, parallel, tokens)
    parts_of_layers, layers = held(model, parallel.attention_ranks, parallel.pp)
    found = []
    for share in device_shares(model, precision, smallest(model), parallel):
        weight = share.weight_bytes
        alive = [peak(model, shape, precision, kind, place(model, parallel, share.stage)) for kind in (FUSED, EAGER)]
        active = [each.alive_bytes for each in alive]
        buffers = [each * MIB for each in BUFFERS_MIB]
        parts = {
            "weights": exact(weight, "the stage's share", "planner/shard.py"),
            "activations": Part(
                active[0] + buffers[0], min(active) + buffers[1], max(active) + buffers[2],
                f"{alive[0].name}; {tokens:,} tokens; and buffers", "planner/activations.py",
            ),
            "runtime": process(hardware, parallel),
        }  # fmt: skip
        if version >= PYTORCH and flags.backend != "tensorrt":
            parts["graphs"] = _graphs(min(seats, GRAPH_BATCH))
        slot = _slot_bytes([each for each in layers if each.layer in parts_of_layers[share.stage]], precision)
        if slot:
            parts["states"] = exact(slot * seats, f"{seats:,} slots for states (max_batch_size)", SOURCE)
        kept = Fraction(str(flags.share))
        free = rest(budget, parts, SOURCE)
        amounts = (free.value, free.low, free.high)
        margins = [int(max(each, 0) * (1 - kept)) for each in amounts]
        parts["margin"] = bounded(
            (margins[0], min(margins), max(margins)), f"{1 - flags.share:.2g} of what is free", SOURCE
        )
        value, low, high = (each - margin for each, margin in zip(amounts, margins, strict=True))
        pool = Part(value, low, high, f"free_gpu_memory_fraction {flags.share:g} x what is free", SOURCE)
        problem = "weights leave nothing for the cache: use more devices" if value <= 0 else None
        found.append(
            Reserve(
                share.stage,
                filled._asdict(),
                budget,
                parts,
                {},
                pool,
                None,
                problem,
                _notes(flags, version, bool(slot)),
            )
        )
    return tuple(found)


def _slot_bytes(layers: list[Held], precision: Precision) -> int:
    own, state = (int(element_bits(name)) for name in (precision.activations, precision.state))
    return sum((each.convolution * own + each.recurrent * state) // 8 for each in layers if each.kind == "state")


def _graphs(most: int) -> Part:
    sizes = min(most, 4) + max(-(-(most - 8) // 8), 0)
    value, low, high = (sizes * each * MIB for each in GRAPH_MIB)
    return Part(value, low, high, f"{sizes} sizes of batches up to {most}", SOURCE)


def _notes(flags: Flags, version: Version, states: bool) -> list[str]:
    notes = []
    if states and version >= FLOORS:
        notes.append("from 1.3 on states and rows may share one pool, which isn't modelled")
    if flags.host_cache_size:
        notes.append(
            f"host_cache_size: {flags.host_cache_size / GIB:.2f} GiB of the host's memory hold blocks beside the device's"
        )
    if flags.max_beam_width > 1:
        notes.append(f"max_beam_width {flags.max_beam_width}: requests share blocks of their prompts only")
    return notes
