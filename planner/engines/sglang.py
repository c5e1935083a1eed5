"""What SGLang makes of memory: a static share of the device holds weights and pools, and pools are sized by the token.

    pools  = mem_fraction_static x memory free before loading - weights
    tokens = pools // bytes of a token in all layers

Bytes of a token: whole key-value heads on each rank, and latents once. Windows of some architectures have a pool of their
own, of `swa_full_tokens_ratio` as many tokens; for all others a windowed layer keeps every token. States have slots, for
which `mamba_full_memory_ratio` of what the rows get is set aside. A pool stores a page more than its tokens.

Read in SGLang 0.4.0, 0.4.3 to 0.4.9, 0.5.1 to 0.5.12, 0.5.14, 0.5.16, 0.5.18, 0.5.20 and 0.5.23: server_args.py,
model_executor/model_runner.py, later model_runner_kv_cache_mixin.py, pool_configurator.py and
mem_cache/kv_cache_configurator.py. What it calls GB in its log are GiB. Draft models have a pool of their own, not modelled.
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
from planner.engines.serving import GIB, Part, Reserve, exact, flags_of, known, parse, rest, step
from planner.errors import PlanError
from planner.model import Model
from planner.precision import SCALED_ELEMENTS, Precision, canonical, chooser_bytes, element_bits, resolve, unpacked
from planner.shard import Parallel, device_shares
from planner.workload import Workload, smallest

if TYPE_CHECKING:
    from profiles.hardware import Hardware

MIB = 2**20

Version = tuple[int, int, int]

OLDEST: Version = (0, 4, 0)
NEWEST: Version = (0, 5, 23)

LAST = {3: 6, 4: 10, 5: 23}
"""Last release of each minor version: what "0.4" means."""

NEWEST_TEXT = ".".join(map(str, NEWEST))

UNKNOWN_LENGTH = 2048

CACHE_DTYPES = ("fp16", "bf16", "fp8")

PACKED_ROPE_BYTES = 2
"""Bytes of an element of the rotary key, which stays 16 bits wide in a packed latent."""

PAGES = {"flashmla": 64, "cutlass_mla": 128, "trtllm_mla": 64, "trtllm_mha": 64}
"""Tokens of a page that attention backends want; others: 1 (server_args.py, _handle_attention_backend_compatibility)."""

INDEXED_PAGE = 64
"""Tokens of a page beside an indexer (DeepSeek-V3.2), on GPUs of NVIDIA."""

TWO_POOLS: dict[str, Version] = {
    "gpt_oss": (0, 5, 1), "mimo_v2_flash": (0, 5, 7), "llama4": (0, 5, 8), "llama4_text": (0, 5, 8), "step3p5": (0, 5, 9),
    "gemma4": (0, 5, 11), "gemma4_text": (0, 5, 11), "laguna": (0, 5, 12), "gemma4_unified": (0, 5, 14),
    "mellum": (0, 5, 16), "diffusion_gemma": (0, 5, 20), "granite_swa": (0, 5, 23), "granitemoe_swa": (0, 5, 23),
}  # fmt: skip
"""Types whose windows have a pool of their own, and since when (configs/model_config.py, is_hybrid_swa_model, lists
architectures; Gemma 2 and 3, EXAONE 4 and OLMo 3 are kept out of it)."""

WINDOW_SHARE = 0.8
"""Default of swa_full_tokens_ratio."""

STATE_SHARE = 0.9
"""Default of mamba_full_memory_ratio, from 0.5.4 on."""

STATE_SLOTS = 512
"""Slots for states before 0.5.4, where neither they nor requests are limited."""

SPARE_SLOTS = {
    "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next", "falcon_h1", "granitemoehybrid", "nemotron_h",
}  # fmt: skip
"""Types whose requests take two slots more from 0.5.14 on, so that steps overlap (supports_mamba_cache_extra_buffer);
SGLang 0.5.18 serves 24 requests of Qwen3.5-27B with 124 slots."""

SLOTS_PER_REQUEST = 3
"""Slots that a request may take: its own, one that others' prefixes branch from, and one while it changes hands."""


class Rules(NamedTuple):
    """What changed between versions.

    Attributes:
        fraction: how mem_fraction_static is chosen: a "table" by ranks, a "list" of reserves by device, or a "sum".
        counts_index: an indexer's keys are counted before the pool is sized (and part of the printed size).
        counts_packing: so are the scales of packed latents; before, they were stored without being counted.
        solves_bytes: the two pools' tokens follow from bytes; before, from the tokens of one pool of all layers.
        shares_states: states get a share of the memory; before, a fixed number of slots.
        spare_slots: of a request of `SPARE_SLOTS`.
        pads_slots: one slot more is counted before slots are sized.
        captures_prefill: prompts run as graphs by default, whose memory is reserved.
        draft_gib: reserved for a draft model.
        counts_media: a multimodal model's embeddings are reserved.
        small_device: prompt tokens, and requests of a graph with fewer than 4 ranks and with more, of 20 to 35 GiB.
    """

    fraction: str
    counts_index: bool
    counts_packing: bool
    solves_bytes: bool
    shares_states: bool
    spare_slots: int
    pads_slots: bool
    captures_prefill: bool
    draft_gib: int
    counts_media: bool
    small_device: tuple[int, int, int]


def _rules(version: Version) -> Rules:
    return Rules(
        fraction="table" if version < (0, 4, 8) else "list" if version < (0, 5, 3) else "sum",
        counts_index=version >= (0, 5, 4),
        counts_packing=version >= (0, 5, 17),
        solves_bytes=version >= (0, 5, 11),
        shares_states=version >= (0, 5, 4),
        spare_slots=2 if version >= (0, 5, 13) else 0,
        pads_slots=version >= (0, 5, 17),
        captures_prefill=version >= (0, 5, 10),
        draft_gib=0 if version >= (0, 5, 13) else 4 if version >= (0, 5, 10) else 2,
        counts_media=version >= (0, 5, 17),
        small_device=(4096, 48, 160) if version >= (0, 5, 19) else (2048, 24, 80),
    )


class Flags(NamedTuple):
    """Flags that change memory, by SGLang's names; None: the version's default. The cache's dtype is `plan --cache-dtype`."""

    mem_fraction_static: float | None = None
    context_length: int | None = None
    max_running_requests: int | None = None
    max_total_tokens: int | None = None
    chunked_prefill_size: int | None = None
    page_size: int | None = None
    attention_backend: str | None = None
    swa_full_tokens_ratio: float | None = None
    disable_hybrid_swa_memory: bool = False
    disable_radix_cache: bool = False
    max_mamba_cache_size: int | None = None
    mamba_full_memory_ratio: float | None = None
    enable_dp_attention: bool = False
    dp_size: int = 1
    cuda_graph_max_bs: int | None = None
    disable_cuda_graph: bool = False
    speculative_algorithm: str | None = None


def engine(version: str, settings: Sequence[str]) -> Engine:
    """Return SGLang as a plan sees it: rows in pages, windows kept whole, as for all but a few architectures."""
    flags = parse(Flags, "sglang", settings)
    parsed(version or NEWEST_TEXT)
    page = flags.page_size or PAGES.get(flags.attention_backend or "", 1)
    return Engine(
        "sglang", version or NEWEST_TEXT, block_tokens=page, window_slack=None, casts_float32=True, packs_choosers=True, packs_latents=flags.attention_backend != "trtllm_mla",
        longest_tokens=flags.context_length, flags=flags,
    )  # fmt: skip


def parsed(text: str) -> Version:
    """Return the three numbers of a version whose rules are known; without the third: the last release."""
    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:[.\-+]?[a-z]\w*)*", str(text))
    found = None
    if match:
        major, minor = int(match[1]), int(match[2])
        found = (major, minor, int(match[3]) if match[3] else LAST.get(minor, 0))
    return known(found, text, OLDEST, NEWEST, "SGLang")


# --- pools


class Layout(NamedTuple):
    """How rows and states are stored.

    Attributes:
        page: tokens. row_bits, state_bits: of an element; convolutions' rows have 16 bits.
        own: model's dtype has 16 bits. packs: latents beside an indexer have 8 bits, a scale for 128 and a 16-bit rotary key.
        rope: elements of the rotary key of a latent. two: windows have a pool of their own.
    """

    page: int
    row_bits: int
    state_bits: int
    packs: bool
    rope: int
    two: bool


def packed_bytes(latent: int, rope: int) -> int:
    """Return the bytes of a packed latent: 8-bit elements, a 32-bit scale for 128 of them, a 16-bit rotary key.

    >>> packed_bytes(512 + 64, 64)
    656
    """
    rank = latent - rope
    return rank + 4 * (rank // SCALED_ELEMENTS) + PACKED_ROPE_BYTES * rope


def _layout(model: Model, layers: list[Held], flags: Flags, version: Version, asked: Asked) -> Layout:
    from planner.blocks import LatentAttention  # noqa: PLC0415

    stored = canonical(model.dtype, f"{model.source}, torch_dtype") if model.dtype else "bf16"
    dtype, given = (None if each == "auto" else each for each in (asked.dtype, asked.cache_dtype))
    own = dtype or ("bf16" if stored == "fp32" else stored)
    cache = unpacked(resolve(model, dtype=own, cache_dtype=given).cache)
    if cache not in CACHE_DTYPES:
        raise PlanError(
            f"found {cache}, allowed are {', '.join(CACHE_DTYPES)}",
            where="cache_dtype",
            fix="choose one of these",
        )
    state = canonical(asked.state_dtype or model.state_dtype or "fp32", "state_dtype")
    indexed = any(each.index for each in layers)
    decoder = model.stack("decoder")
    ropes = [
        block.rope
        for run in (decoder.runs if decoder else ())
        for block in run.layer.blocks
        if isinstance(block, LatentAttention)
    ]
    raw = flags.attention_backend == "trtllm_mla"
    page = (
        asked.block_size or flags.page_size or PAGES.get(flags.attention_backend or "", INDEXED_PAGE if indexed else 1)
    )
    since = TWO_POOLS.get(model.family)
    two = since is not None and version >= since and not flags.disable_hybrid_swa_memory
    row, wide = (int(element_bits(name)) for name in (cache, state))
    return Layout(page, row, wide, indexed and cache == "fp8" and not raw, max(ropes, default=0), two)


class Row(NamedTuple):
    """Bytes of a token in one layer: as stored, keys and values apart (latents have none), and as counted before."""

    key: int
    value: int
    index: int  # type: ignore[assignment]  # not the method that tuples have
    counted: int


def _row(each: Held, layout: Layout, rules: Rules) -> Row:
    index = chooser_bytes(each.index) if each.index else 0
    if each.kind == "latent":
        plain = each.key * layout.row_bits // 8
        stored = packed_bytes(each.key, layout.rope) if layout.packs else plain
        counted = (stored if rules.counts_packing else plain) + index * rules.counts_index
        return Row(stored, 0, index, counted)
    key, value = each.key * layout.row_bits // 8, each.value * layout.row_bits // 8
    return Row(key, value, 0, key + value)


class Pool(NamedTuple):
    """Rows of equal layers.

    Attributes:
        kind: "full", "latent", "sliding". layers, tokens: of the pool. key, value, index: bytes of a token, all layers.
        first: of its first layer.
    """

    kind: str
    layers: int
    tokens: int
    key: int
    value: int
    index: int  # type: ignore[assignment]  # not the method that tuples have
    first: int

    def sizes(self, page: int, rules: Rules) -> dict[str, float]:
        """Return the printed sizes, in GiB: of keys and values, or of both; a page more than the tokens is stored."""
        rows = self.tokens + page
        if self.kind == "latent":
            return {"KV": rows * (self.key + self.index * rules.counts_index) / GIB}
        return {"K": rows * self.key / GIB, "V": rows * self.value / GIB}


class Pools(NamedTuple):
    """What a rank of one stage makes of its memory: pools of rows, and slots for states.

    Attributes:
        rows: pools. slots: for states, None: no layer has one. slot_bytes: of one, all layers. states: layers with one.
    """

    rows: tuple[Pool, ...]
    slots: int | None
    slot_bytes: int
    states: int

    @property
    def tokens(self) -> int:
        """Tokens that all layers which keep every token can hold."""
        whole = [pool.tokens for pool in self.rows if pool.kind != "sliding"]
        return min(whole or [pool.tokens for pool in self.rows], default=0)


def _pools(layers: list[Held], memory: int, layout: Layout, rules: Rules, flags: Flags) -> Pools:
    states = [each for each in layers if each.kind == "state"]
    slot = sum(each.convolution * 16 // 8 + each.recurrent * layout.state_bits // 8 for each in states)
    slots: int | None = None
    if states:
        slots = _slots(memory, slot, rules, flags)
        memory -= slots * slot
    rows = [(each, _row(each, layout, rules)) for each in layers if each.kind != "state"]
    near = [row for each, row in rows if layout.two and each.span]
    far = [(each, row) for each, row in rows if not (layout.two and each.span)]
    share = Fraction(str(flags.swa_full_tokens_ratio or WINDOW_SHARE))
    full, window = sum(row.counted for _, row in far), sum(row.counted for row in near)
    most = flags.max_total_tokens
    page = layout.page
    if not rows:
        return Pools((), slots, slot, len(states))
    if not near or not far:
        tokens = max(memory, 0) // (full + window)
        tokens = (min(tokens, most) if most else tokens) // page * page
        return Pools((_pool(rows, tokens, "sliding" if near else ""),), slots, slot, len(states))
    if not rules.solves_bytes:  # whole tokens of one pool first
        memory = max(memory, 0) // (full + window) * (full + window)
    tokens = int(max(memory, 0) // (full + share * window))
    tokens = (min(tokens, most) if most else tokens) // page * page
    kept = int(tokens * share) // page * page
    windows = [(each, row) for each, row in rows if each.span]
    return Pools((_pool(far, tokens, ""), _pool(windows, kept, "sliding")), slots, slot, len(states))


def _pool(rows: list[tuple[Held, Row]], tokens: int, kind: str) -> Pool:
    latent = any(each.kind == "latent" for each, _ in rows)
    key, value, index = (sum(getattr(row, name) for _, row in rows) for name in ("key", "value", "index"))
    _, row = rows[0]
    first = row.key + row.value + row.index
    return Pool(kind or ("latent" if latent else "full"), len(rows), tokens, key, value, index, first)


def _slots(memory: int, slot: int, rules: Rules, flags: Flags) -> int:
    """Return the slots for states: as asked, one a request without prefixes to branch from, or by their share of memory."""
    ranks = flags.dp_size if flags.enable_dp_attention else 1
    if flags.max_mamba_cache_size:
        return flags.max_mamba_cache_size // ranks
    if flags.max_running_requests and (flags.disable_radix_cache or not rules.shares_states):
        return max(flags.max_running_requests // ranks, 1)
    if not rules.shares_states:
        return STATE_SLOTS // ranks
    share = Fraction(str(flags.mamba_full_memory_ratio or STATE_SHARE))
    budget = int(memory * share / (1 + share)) - slot * rules.pads_slots
    return max(budget // slot, 0)


def slot_bytes(model: Model, tp: int, flags: Flags) -> tuple[int, int]:
    """Return the bytes of a request's states on one rank, all layers: of convolutions, and recurrent ones."""
    _, layers = held(model, tp // (flags.dp_size if flags.enable_dp_attention else 1), 1)
    bits = int(element_bits(canonical(model.state_dtype or "fp32", "state_dtype")))
    states = [each for each in layers if each.kind == "state"]
    return sum(each.convolution for each in states) * 2, sum(each.recurrent for each in states) * bits // 8


def capacity(model: Model, asked: Asked) -> dict[str, Any]:
    """Return what SGLang makes of an amount of memory for its pools; as `planner.engine_capacity`.

    Flags are those that the model was loaded with. Concurrency isn't printed by SGLang: tokens over the longest request.
    Groups say besides: tokens, and the printed sizes in GiB, "K" and "V", or "KV". With states, `max_running_requests` is
    how many requests their slots serve.

    Raises:
        PlanError: a version, a cache or a dtype that isn't known; less memory than one page or one request's states need.
    """
    version = parsed(asked.version or NEWEST_TEXT)
    flags, rules = flags_of(model, Flags), _rules(version)
    ranks = flags.dp_size if flags.enable_dp_attention else 1
    if asked.tp % ranks:
        raise PlanError(f"found {ranks}, which doesn't divide tp {asked.tp}", where="dp_size", fix="choose a divisor")
    parts, layers = remembered(model, asked.tp // ranks, asked.pp)
    if any(each.kind == "cross" for each in layers):
        raise PlanError(
            "SGLang's pool for an encoder's rows isn't known", where=model.source, fix="choose --engine vllm"
        )
    flags = flags._replace(max_running_requests=asked.max_num_seqs or flags.max_running_requests)
    layout = _layout(model, layers, flags, version, asked)
    made = [
        _pools([each for each in layers if each.layer in part], asked.cache_memory_bytes, layout, rules, flags)
        for part in parts
    ]
    least = min((each for each in made if each.rows), key=lambda each: each.tokens, default=made[0])
    longest = asked.max_model_len or flags.context_length or model.positions or UNKNOWN_LENGTH
    tokens = least.tokens
    slots = min((each.slots for each in made if each.slots is not None), default=None)
    if (least.rows and tokens <= 0) or slots == 0:
        raise PlanError(
            f"found {asked.cache_memory_bytes:,} bytes, less than a token's rows or one request's states",
            where="cache_memory_bytes",
            fix="SGLang doesn't start; raise mem_fraction_static",
        )
    found: dict[str, Any] = {
        "tokens": tokens if least.rows else longest,
        "concurrency": round(tokens / longest, 2) if least.rows else float(slots or 0),
        "blocks": tokens // layout.page,
        "block_size": layout.page,
        "bytes_per_token": sum(pool.key + pool.value + pool.index for pool in least.rows),
        "groups": [
            {
                "layers": pool.layers,
                "kind": pool.kind,
                "block_size": layout.page,
                "page_bytes": pool.first * layout.page,
                "tokens": pool.tokens,
                **pool.sizes(layout.page, rules),
            }
            for pool in least.rows
        ],
    }
    if slots is not None:
        fullest = max(made, key=lambda each: each.slot_bytes)
        found["groups"].append(
            {
                "layers": fullest.states, "kind": "mamba", "block_size": 1, "page_bytes": fullest.slot_bytes // fullest.states,
                "slots": slots,
            }
        )  # fmt: skip
        per = SLOTS_PER_REQUEST + rules.spare_slots * (model.family in SPARE_SLOTS)
        per = 1 if flags.disable_radix_cache or not rules.shares_states else per
        found["max_running_requests"] = min(slots // per, flags.max_running_requests or slots)
    return found


# --- the share of the device


class Machine(NamedTuple):
    """What mem_fraction_static is chosen by.

    Attributes:
        version, flags: of the engine. tp, ranks: that divide heads, and with stages.
        mib: memory of the smallest device, as nvidia-smi prints it.
        latent: the model has latents. tower: layers x width squared of its vision tower, 0: none.
    """

    version: Version
    flags: Flags
    tp: int
    ranks: int
    mib: float
    latent: bool = False
    tower: float = 0


def fraction(on: Machine) -> float:
    """Return the default of mem_fraction_static."""
    by = _rules(on.version).fraction
    found = _by_table(on) if by == "table" else _by_list(on) if by == "list" else _by_sum(on)
    if not on.tower or by == "table":
        return found
    if on.version < (0, 5, 1):
        return 0.9 * found
    return found * 0.95 * min(max(1 - 0.1 * (on.tower / PLAIN_TOWER - 1), 0.8), 1.05)


PLAIN_TOWER = 24 * 1024**2
"""Layers x width squared of ViT-L/14, with which 5 % are left for images."""

RANK_SHARES = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88))
"""mem_fraction_static by ranks, up to 0.4.7."""


def _by_table(on: Machine) -> float:
    share = next(share for least, share in RANK_SHARES if on.ranks >= least)
    if on.version < (0, 4, 6):
        return share
    share = share if on.mib <= 81920 else 0.88
    if on.version >= (0, 4, 7) and on.mib > 180_000:
        return 0.79
    if on.mib > 96 * 1024:
        held_back = 20 if on.flags.speculative_algorithm and on.version >= (0, 4, 7) else 18
        return min(share + 48 * 1024 * (1 - share) / on.mib, (on.mib - held_back * 1024) / on.mib)
    return share


RESERVES = ((35, 2.8, 0.1), (90, 9.5, 0.5), (160, 12, 0.5))
"""Devices below so many GiB reserve so many GiB, and so many more for each rank; larger ones 32 (0.4.8 to 0.5.2)."""


def _by_list(on: Machine) -> float:
    gib = next((base + each * on.ranks for below, base, each in RESERVES if on.mib < below * 1024), 32.0)
    gib += _draft_gib(on) + 4 * on.flags.enable_dp_attention
    return round((on.mib - gib * 1024) / on.mib, 3)


def _draft_gib(on: Machine) -> int:
    name, usual = (on.flags.speculative_algorithm or "").upper(), _rules(on.version).draft_gib
    return 0 if not name or name == "NGRAM" or not usual else 6 if name == "STANDALONE" else usual


def prompts_and_graphs(on: Machine) -> tuple[int, int]:
    """Return chunked_prefill_size, and the most requests of a graph (0: none), after defaults."""
    rules, mib, flags = _rules(on.version), on.mib, on.flags
    if rules.fraction == "sum":
        tiers = ((20, (2048, 8, 8)), (35, rules.small_device), (60, (4096, 32, 160)), (160, (8192, 256, 512)))
        chunk, few, many = next((sizes for below, sizes in tiers if mib < below * 1024), (16384, 512, 512))
    else:
        small = mib < (35 * 1024 if rules.fraction == "list" else 25_000)
        large = rules.fraction == "list" and mib >= 160 * 1024
        chunk, few, many = (2048, 8, 80) if small else (16384, 512, 512) if large else (8192, 160, 160)
    graphs = flags.cuda_graph_max_bs or (few if on.tp < 4 else many)
    if flags.max_running_requests and on.version >= (0, 5, 17) and not flags.cuda_graph_max_bs:
        graphs = min(graphs, flags.max_running_requests)
    return flags.chunked_prefill_size or chunk, 0 if flags.disable_cuda_graph else graphs


def _captured(tokens: int) -> int:
    """Return how many sizes of prompts are captured as graphs."""
    ranges = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, tokens + 1, 512))
    return sum(size <= tokens for start, stop, step in ranges for size in range(start, stop, step))


def _by_sum(on: Machine) -> float:
    rules, flags, mib = _rules(on.version), on.flags, on.mib
    chunk, graphs = prompts_and_graphs(on)
    reserved = 512 + 1.5 * max(chunk, 2048) + on.ranks / 8 * 1024 + 2 * graphs
    if flags.enable_dp_attention:
        reserved += graphs * flags.dp_size * (4.5 if graphs > 300 else 3)
    if rules.captures_prefill and not flags.disable_cuda_graph:
        reserved += 1.5 * 1024 if on.latent else 8 * _captured(chunk)
    if mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    return round((mib - reserved - 1024 * _draft_gib(on)) / mib, 3)


SOURCE = "SGLang 0.4 to 0.5.23 (server_args.py, kv_cache_configurator.py)"

DRIVER_MIB = 470
"""What nvidia-smi counts and programs don't see: 81,559 MiB of an H100 whose programs see 79.19 GiB; on others 320 to 870."""

MEDIA_MIB = (100, 100, 1124)
"""Reserved for embeddings of images and sound, least and most (environ.py: 100 MiB, and 1024 where they move between processes)."""

GRAPH_MIB = (25, 12, 75)
"""A captured size of batches, seen in start-up logs: 23 to 71 MiB (tests/engines/facts_other)."""

LOADED_MORE = GIB * 3 // 10
"""Weights as loaded, beyond their tensors, at most: rotary tables, latents' second copies, fragments (logs: 0.05 to 0.26 GiB)."""


def reserve(
    model: Model, work: Workload, precision: Precision, parallel: Parallel, hardware: Hardware
) -> tuple[Reserve, ...]:
    """Return what SGLang does with the memory of a device, one entry for each stage of the pipeline.

    Args:
        model: loaded with this engine. work, precision, parallel, hardware: as `planner.memory` plans with.

    Raises:
        PlanError: the hardware is a CPU or Apple's.
    """
    if hardware.kind == "cpu" or hardware.title.startswith("Apple"):
        raise PlanError(
            f"found {hardware.name}, but what SGLang does with the memory of that isn't known", where="--hardware",
            fix="choose a GPU, or --engine ideal",
        )  # fmt: skip
    flags, version = flags_of(model, Flags), parsed(model.engine.version)
    rules = _rules(version)
    if flags.enable_dp_attention and parallel.attention_groups == 1:
        parallel = parallel._replace(attention_groups=flags.dp_size)
    runtime = process(hardware, parallel)
    seen, least, most = hardware.usable_bytes.bounds
    before = (seen - runtime.value, least - runtime.high, most - runtime.low)
    latent = any(each.kind == "latent" for each in held(model, 1, 1)[1])
    nameplate = int(hardware.nameplate_bytes.value) / MIB
    mib = min(seen / MIB + DRIVER_MIB, nameplate)
    on = Machine(version, flags, parallel.tp, parallel.tp * parallel.pp, mib, latent, _tower(model))
    sizes = (mib, seen / MIB, nameplate)
    shares = [flags.mem_fraction_static or fraction(on._replace(mib=size)) for size in sizes]
    chunk, graphs = prompts_and_graphs(on)
    budget = Part(
        int(shares[0] * before[0]), int(min(shares) * before[1]), int(max(shares) * before[2]),
        f"mem_fraction_static {shares[0]:g} x memory free before loading", SOURCE,
    )  # fmt: skip
    filled = flags._replace(
        mem_fraction_static=shares[0], chunked_prefill_size=chunk, cuda_graph_max_bs=graphs or None,
        context_length=flags.context_length or model.positions,
    )  # fmt: skip
    shape = step(model, work, parallel, chunk)
    found = []
    for share in device_shares(model, precision, smallest(model), parallel):
        weight = share.weight_bytes
        parts = {"weights": Part(weight, weight, weight + LOADED_MORE, "the stage's share", "planner/shard.py")}
        if rules.counts_media and on.tower:
            value, low, high = (MIB * each for each in MEDIA_MIB)
            parts["media"] = Part(value, low, high, "embeddings of images and sound", SOURCE)
        alive = [peak(model, shape, precision, kind, place(model, parallel, share.stage)) for kind in (FUSED, EAGER)]
        active = [each.alive_bytes for each in alive]
        beside = {
            "runtime": runtime,
            "activations": Part(
                active[0], min(active), max(active), f"{alive[0].name}; {chunk:,} tokens", "planner/activations.py"
            ),
            "graphs": _graphs(graphs),
        }
        pool = rest(budget, parts, SOURCE)
        problem = None
        if pool.value <= 0:
            lowest = 1 - (before[0] - sum(part.value for part in parts.values())) / before[0]
            problem = f"weights leave nothing for the cache: raise mem_fraction_static above {lowest:.3f}"
        found.append(
            Reserve(
                share.stage, filled._asdict(), budget, parts, beside, pool, None, problem,
                _notes(flags, before[0], shares[0], beside),
            )
        )  # fmt: skip
    return tuple(found)


def _tower(model: Model) -> float:
    """Return layers x width squared of the vision tower, 0: none."""
    stack = model.stack("vision")
    if stack is None:
        return 0
    widths = [leaf.n_in for run in stack.runs for leaf in run.layer.leaves if leaf.work]
    return stack.depth * float(widths[0]) ** 2 if widths else 24 * 1024.0**2


def _graphs(most: int) -> Part:
    if not most:
        return exact(0, "disable_cuda_graph: no graphs", SOURCE)
    sizes = min(most, 4) + max(-(-(most - 8) // 8), 0)
    value, low, high = (sizes * each * MIB for each in GRAPH_MIB)
    return Part(value, low, high, f"{sizes} sizes of batches up to {most}", "start-up logs (tests/engines/facts_other)")


def _notes(flags: Flags, before: int, share: float, beside: dict[str, Part]) -> list[str]:
    notes = []
    spare = int(before * (1 - share))
    needed = beside["activations"].value + beside["graphs"].value
    if needed > spare:
        notes.append(
            f"SGLang leaves {spare / GIB:.2f} GiB beside weights and pools, but activations and graphs need {needed / GIB:.2f}: "
            "lower mem_fraction_static or chunked_prefill_size"
        )
    if flags.speculative_algorithm:
        notes.append("the draft model's weights and its pool aren't counted")
    return notes
