"""What vLLM leaves for its cache: the share of a device that it may use, less what its profiling run finds in use.

vLLM loads the weights, runs one step with as many tokens as a step may have and samples for as many requests as may run, and
notes the peak. What is left of its share of the device is the cache:

    cache = utilization x device - weights - peak activations - what isn't PyTorch's (- graphs, from 0.21 on)

The peak is that of the layers (`planner.activations`) or that of the sampler, whose tensors are requests x vocabulary.
Read in 0.32; figures per version from start-up logs of 0.6 to 0.19 on H100 (tests/engines, docs/engine-logs.md).

Letters: T tokens of a step, S requests, V vocabulary, D model width, F hidden width of an expert, K experts of a token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from planner.activations import Place, Rules, peak
from planner.blocks import Attention, Block, LatentAttention, Rope
from planner.engines import vllm
from planner.engines.serving import GIB, Part, Reserve, exact, rest, step
from planner.errors import PlanError
from planner.model import Model
from planner.precision import Precision, element_bits, format_named, stored
from planner.shard import Parallel, Share, device_shares, divided_by, held_elements, legal, stages
from planner.workload import Workload, smallest

if TYPE_CHECKING:
    from profiles.hardware import Hardware

MIB = 2**20

LARGE_DEVICE_BYTES = 70 * GIB
"""Devices from here on, A100s excepted, get larger steps and more requests by default (engine/arg_utils.py)."""

STEP_TOKENS = {True: 8192, False: 2048}
"""Default of max_num_batched_tokens of `vllm serve`, on large devices and on others."""

LARGEST_DEVICE_BYTES, LARGEST_STEP_TOKENS = 160 * GIB, 16384
"""Devices from here on, and their default (0.32)."""

REQUESTS = {True: 1024, False: 256}
"""Default of max_num_seqs, likewise; before 0.8, 256 everywhere."""

LONG_PROMPT = 32768
"""V0 split prompts by default for models longer than that only; else a step held a whole one."""

SAMPLED_BYTES = {False: 36, True: 12}
"""Bytes for each request and entry of the vocabulary while sampling, beside the logits as written: up to 0.16 sorting them all
(worked back from a start-up log of 0.15: 38 with 16-bit logits; 0.11 and 0.16 agree), from 0.17 on a 32-bit copy, probabilities and noise."""

ROW_BUFFER_BYTES = 4
"""From 0.17 on, top-k and top-p need a row of the vocabulary in 32 bits for each processor (topk_topp_triton.py)."""

LATENT_ROWS = 65536
"""Rows of cached latents that a step expands at once, at most (mla_attention.py, workspace of chunked prefill)."""

LIBRARY_BYTES = Part(
    45 * MIB, 8 * MIB, 110 * MIB, "workspaces of matrix products", "residual of 44 start-up logs of vLLM 0.19, H100"
)

STEPS_APART = Rules(in_place=False, frame_rows=2.0, experts_apart=True)
"""Layers run eagerly (V0): beside what the operation needs, two tensors of T x D are alive."""

STEPS_COMPILED = Rules(in_place=False, frame_rows=2.5, experts_apart=True)
"""Layers compiled in pieces: fitted to the logs of two models whose peak is in the layers; five others agree."""


class Taken(NamedTuple):
    """GiB that a process has beside PyTorch's tensors: the value, and the least and most that logs show."""

    value: float
    low: float
    high: float


ALONE: tuple[tuple[tuple[int, int], Taken], ...] = (
    ((0, 18), Taken(0.25, 0.24, 0.46)),  # 0.18, 0.19 on H100
    ((0, 7), Taken(0.14, 0.13, 0.43)),  # 0.7 to 0.17: H100 0.13, 0.16; A100 0.34 to 0.43
    ((0, 0), Taken(0.35, 0.15, 1.79)),  # 0.6: RTX 3090 0.35, H100 1.79
)
"""A device alone, by the version since when."""

RANKS: tuple[tuple[tuple[int, int], Taken], ...] = (
    ((0, 18), Taken(1.83, 0.1, 1.95)),  # 0.19: 2.07 with two H100, 2.13 with four
    ((0, 7), Taken(0.4, 0.0, 0.6)),  # 0.11: 0.54 with two H100; 0.7, 0.8: 0.2 to 0.25 on RTX 3090 and 4090
    ((0, 0), Taken(0.6, 0.0, 1.79)),
)
"""What ranks that divide heads take more, for their messages."""

STAGE_TAKEN = Taken(0.07, 0.07, 0.46)
"""Devices of a pipeline without such ranks (0.19, H100)."""

GRAPHS = (0.395, 0.0161)
"""GiB of the CUDA graphs of all sizes, alone and a layer: fitted to 22 models' logs of 0.19 on H100; left out one by one, they are
0.22 off. Logs of 0.21 to 0.27 with 5 and 16 sizes print 0.13 and 0.36 GiB, where this says 0.14 and 0.37."""

ALL_SIZES = 51
"""Sizes of steps that graphs are captured for where 256 requests or more may run: 1, 2, 4, by 8 to 256, by 16 to 512."""

SOURCE = "vLLM 0.32 (v1/worker/gpu_worker.py, gpu_model_runner.py); start-up logs of 0.6 to 0.19"


def reserve(
    model: Model, work: Workload, precision: Precision, parallel: Parallel, hardware: Hardware
) -> tuple[Reserve, ...]:
    """Return what vLLM does with the memory of a device, one entry for each stage of the pipeline.

    Args:
        model: loaded with this engine. work: what fills in for flags that aren't given: max_model_len is the config's.
        precision, parallel, hardware: of the weights and caches, how they are spread, over what.

    Raises:
        PlanError: the hardware is a CPU.
    """
    if hardware.kind == "cpu":
        raise PlanError(
            f"found {hardware.name}, but on a CPU vLLM takes what VLLM_CPU_KVCACHE_SPACE says, and no share",
            where="--hardware", fix="planner.engine_capacity says what it makes of that",
        )  # fmt: skip
    flags, version = _started(model, hardware)
    graphs_counted = version >= (0, 21)
    share = flags.gpu_memory_utilization or 0.9
    usable = hardware.usable_bytes
    seen, least, most = usable.bounds
    budget = Part(
        ceil(share * seen), ceil(share * least), ceil(share * most),
        f"gpu_memory_utilization {share:g} x what programs see of the device", hardware.source(usable),
    )  # fmt: skip
    weights = loaded(model, precision, parallel, version)
    cut = legal(model, parallel, precision)  # fp8_utils.py: blocks that share a scale must be whole
    problem = f"vLLM doesn't start: {cut}" if cut else _too_long(model, flags)
    found = []
    for stage, weight in enumerate(weights):
        parts = {
            "weights": Part(
                weight.value, weight.least, weight.value, "the stage's share, as loaded", "planner/shard.py"
            ),
            "activations": _activations(model, work, precision, parallel, flags, version, hardware, stage),
            "runtime": _runtime(version, parallel),
        }
        graphs = _graphs(model, parallel, flags)
        if graphs_counted:
            parts["graphs"] = graphs
        pool = rest(budget, parts, SOURCE)
        beside = {} if graphs_counted else {"graphs": graphs}
        found.append(Reserve(stage, flags._asdict(), budget, parts, beside, pool, None, problem, weight.notes))
    return tuple(found)


def _too_long(model: Model, flags: vllm.Flags) -> str | None:
    """Return that requests would be longer than the model's positions, which vLLM refuses (config/model.py, get_and_verify_max_len)."""
    most, asked = model.positions, flags.max_model_len or 0
    if most is None or asked <= most:
        return None
    return f"vLLM doesn't start: max_model_len {asked:,} is more than the {most:,} positions of the config"


def _started(model: Model, hardware: Hardware) -> tuple[vllm.Flags, vllm.Version]:
    """Return the flags after defaults, and the version."""
    given: vllm.Flags = model.engine.flags
    version = vllm.release(model.engine.version)
    large = hardware.usable_bytes.value >= LARGE_DEVICE_BYTES and "a100" not in hardware.name
    longest = given.max_model_len or model.positions or vllm.UNKNOWN_LENGTH
    v1 = version >= (0, 8)
    seats = given.max_num_seqs or REQUESTS[large and v1]
    split = v1 or longest > LONG_PROMPT
    tokens = STEP_TOKENS[large and v1]
    if v1 and hardware.usable_bytes.value >= LARGEST_DEVICE_BYTES:
        tokens = LARGEST_STEP_TOKENS
    if not split or model.kind == "encoder-decoder":
        tokens = max(tokens, longest)
    started = given._replace(
        max_model_len=longest, max_num_seqs=seats,
        max_num_batched_tokens=given.max_num_batched_tokens or min(tokens, seats * longest),
        gpu_memory_utilization=given.gpu_memory_utilization or (0.92 if version >= (0, 21) else 0.9),
    )  # fmt: skip
    return started, version


# --- weights

MERGED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
    **dict.fromkeys(("q_a_proj", "kv_a_proj_with_mqa"), "fused_qkv_a_proj"),
}
"""Matrices that vLLM stores as one tensor."""

SEGMENT_BYTES, LEAST_SEGMENT_BYTES, LEAST_REST_BYTES = 2 * MIB, 10 * MIB, MIB
"""PyTorch's allocator gives tensors of 10 MiB or more a segment of whole 2 MiB; of that, no more than 1 MiB stays with the tensor
(c10/cuda/CUDACachingAllocator.cpp, round_size and should_split)."""


PADDED_INPUTS = 256
"""Inputs of experts' MXFP4 matrices are padded to a multiple of so many, their scales aren't: a log of gpt-oss-120b on an H100 (0.11), by
Triton kernels; others pad otherwise (fused_moe/oracle/mxfp4.py)."""


class Loaded(NamedTuple):
    """Weights on a rank, in bytes: as loaded, the least that they may be, and notes on what is more than the tensors."""

    value: int
    least: int
    notes: list[str]


def loaded(model: Model, precision: Precision, parallel: Parallel, version: vllm.Version) -> list[Loaded]:
    """Return the weights on a rank of each stage, with what vLLM makes of them while it loads."""
    width = int(element_bits(precision.activations)) // 8 or 1
    table = _rotary_bytes(model, width)
    found = []
    for share in device_shares(model, precision, smallest(model), parallel):
        notes = []
        if table:
            notes.append(f"weights include vLLM's tables of rotary cosines and sines, {table / GIB:.3f} GiB")
        copies = _absorbed_bytes(model, width, parallel, share.stage) if vllm.rules_of(version).absorbs_latents else 0
        if copies:
            notes.append(
                f"weights include vLLM's second copies of latents' projections up, {copies / GIB:.3f} GiB"
                f", in {precision.activations}"
            )
        rest = _rest_bytes(share) if format_named(precision.weights).plain else 0
        if rest:
            notes.append(f"weights include what PyTorch's allocator rounds large tensors up by, {rest / GIB:.3f} GiB")
        padded = _padded_bytes(model, precision, parallel, share.stage)
        if padded:
            notes.append(
                f"weights include what kernels pad MXFP4 experts by, {padded / GIB:.3f} GiB on Hopper; others differ"
            )
        value = share.weight_bytes + table + copies + rest + padded
        found.append(Loaded(value, value - padded, notes))
    return found


def _padded_bytes(model: Model, precision: Precision, parallel: Parallel, stage: int) -> int:
    """Return what padded inputs add to experts of 4-bit floats on a rank."""
    here, total = _here(model, parallel, stage), 0
    for each in stored(model, precision):
        leaf = each.place.leaf
        if leaf.work != "experts" or each.format != "mxfp4":
            continue
        cuts = divided_by(leaf, each.place.stack, parallel)
        along = {name: tuple(cut for cut in cuts if cut.along == name) for name in ("in", "out", "copies")}
        inputs = held_elements(leaf.n_in, along["in"], parallel, routed=True)
        outputs = held_elements(leaf.n_out, along["out"], parallel, routed=True)
        more = -inputs % PADDED_INPUTS
        copies = leaf.copies // parallel.ep
        total += sum(layer in here for layer in each.layers) * copies * outputs * more // 2
    return total


def _rest_bytes(share: Share) -> int:
    """Return what stays with tensors beyond their size: the rest of their last 2 MiB, where it is too small to be split off."""
    tensors: Counter[tuple[str, int]] = Counter()
    for piece in share.weights:
        place, _, name = piece.name.rpartition(".")
        for layer in piece.layers or (-1,):
            tensors[f"{place}.{MERGED.get(name, name)}", layer] += piece.bytes // max(len(piece.layers), 1)
    large = (size for size in tensors.values() if size >= LEAST_SEGMENT_BYTES)
    return sum(rest for size in large if (rest := -size % SEGMENT_BYTES) <= LEAST_REST_BYTES)


def _blocks(model: Model) -> Iterator[tuple[int, Block]]:
    """Yield blocks of the decoder, with the numbers of their layers."""
    decoder = model.stack("decoder")
    layer = 0
    for run in decoder.runs if decoder else ():
        for _ in range(run.count):
            yield from ((layer, block) for block in run.layer.blocks)
            layer += 1


def _rotary_bytes(model: Model, width: int) -> int:
    """Return the bytes of rotary tables: positions x turned elements, once for each kind; 32 bits where latents are stretched by YaRN."""
    kinds = {
        (block.rope, width) if isinstance(block, Attention) else (block.rope_positions, _latent_width(block, width))
        for _, block in _blocks(model)
        if isinstance(block, Attention | LatentAttention)
    }
    positions = model.positions or 0
    return sum(_table_rows(rope, positions) * rope.width * element for rope, element in kinds if rope is not None)


def _latent_width(block: LatentAttention, width: int) -> int:
    scaling = dict(block.rope_positions.scaling) if block.rope_positions else {}
    return 4 if str(scaling.get("rope_type", scaling.get("type", ""))) == "yarn" else width


def _table_rows(rope: Rope, positions: int) -> int:
    """Return the rows of a table: stretched positions have more (model_executor/layers/rotary_embedding)."""
    scaling = {key: str(value) for key, value in rope.scaling}
    kind = scaling.get("rope_type", scaling.get("type", ""))
    try:
        factor = float(scaling.get("factor", 1))
        original = int(scaling.get("original_max_position_embeddings", 0))
    except ValueError:
        return positions
    if kind in {"linear", "dynamic"}:
        return int(positions * factor)
    return int(original * factor) if kind == "yarn" and original else positions


def _here(model: Model, parallel: Parallel, stage: int) -> range:
    """Return the decoder's layers of a stage."""
    decoder = model.stack("decoder")
    depth = decoder.depth if decoder else 0
    return stages(depth, parallel.pp)[stage] if parallel.pp <= depth else range(depth)


def _absorbed_bytes(model: Model, width: int, parallel: Parallel, stage: int) -> int:
    """Return the bytes of copies of latents' projections up, which vLLM makes to score latents directly."""
    here = _here(model, parallel, stage)
    return sum(
        block.heads * block.kv_rank * (block.nope + block.value) * width // parallel.tp
        for layer, block in _blocks(model)
        if isinstance(block, LatentAttention) and layer in here
    )


# --- activations


def _activations(
    model: Model, work: Workload, precision: Precision, parallel: Parallel, flags: vllm.Flags, version: vllm.Version,
    hardware: Hardware, stage: int,
) -> Part:  # fmt: skip
    """Return the peak of the profiling run: of the layers, or of the sampler on the last stage, and what stays beside."""
    tokens, seats = flags.max_num_batched_tokens or 0, min(flags.max_num_seqs or 0, flags.max_num_batched_tokens or 0)
    element = int(element_bits(precision.activations)) // 8 or 1
    last = stage == parallel.pp - 1
    compiled = version >= (0, 8) and not flags.enforce_eager
    rules = STEPS_COMPILED if compiled else STEPS_APART
    place = Place(parallel, _here(model, parallel, stage) if parallel.pp > 1 else None, stage == 0, last)
    tried = step(model, work, parallel, tokens)
    layers = peak(model, tried, precision, rules, place)
    expanded = _expanded_bytes(model, parallel, flags, seats, element, version)
    heads = [leaf for stack in model.stacks for _, _, leaf in stack.leaves() if leaf.work == "head"]
    width = max((leaf.n_in for leaf in heads), default=0)
    vocabulary = max((leaf.n_out for leaf in heads), default=0)
    rows = tokens * width * element
    sampler = 0
    if last and vocabulary and model.generates:
        new = version >= (0, 17)
        sampler = vocabulary * seats * (element + SAMPLED_BYTES[new]) + rows + seats * width * element
        if new:
            sampler += vocabulary * ROW_BUFFER_BYTES * int(hardware.processors.value if hardware.processors else 0)
    stays = _workspace_bytes(model, parallel, tokens, element) if version >= (0, 17) else 0
    seen = rows * any(stack.name in {"vision", "audio"} for stack in model.stacks)
    handed = 2 * rows if parallel.pp > 1 else 0
    peaks = {
        layers.name: layers.alive_bytes + handed,
        "expanded latents": expanded,
        "sampling": sampler + handed * (stage > 0),
    }
    name = max(peaks, key=lambda each: peaks[each])
    value = peaks[name] + stays + seen + LIBRARY_BYTES.value
    low = max(peaks.values()) * 9 // 10 + LIBRARY_BYTES.low
    high = max(peaks.values()) * 21 // 20 + int(1.1 * stays) + 3 * seen + LIBRARY_BYTES.high
    said = f"{name}; {tokens:,} tokens, {seats:,} requests"
    said += f" + experts' rows {stays / GIB:.2f} GiB" * bool(
        stays
    ) + f" + images' or sound's rows {seen / GIB:.2f} GiB" * bool(seen)
    return Part(value, min(low, value), max(high, value), said, SOURCE)


def _expanded_bytes(
    model: Model, parallel: Parallel, flags: vllm.Flags, seats: int, element: int, version: vllm.Version
) -> int:
    """Return the bytes of keys and values expanded from cached latents, as the profiling run makes them."""
    if not vllm.rules_of(version).absorbs_latents:
        return 0
    rows = min(max(8 * (flags.max_model_len or 0), 4 * seats * (flags.block_size or 16)), LATENT_ROWS)
    widths = [b.heads // parallel.tp * (b.nope + b.value) for _, b in _blocks(model) if isinstance(b, LatentAttention)]
    return rows * max(widths, default=0) * element


def _workspace_bytes(model: Model, parallel: Parallel, tokens: int, element: int) -> int:
    """Return the bytes of two buffers for experts' rows, T x K rows: of max(F, D), and of max(2F, D) (experts/triton_moe.py)."""
    most = 0
    for stack in model.stacks:
        routed = [leaf for _, _, leaf in stack.leaves() if leaf.work == "experts"]
        opening = [leaf for leaf in routed if not any(cut.along == "in" for cut in leaf.split)]
        for leaf in routed:
            if leaf in opening:
                continue
            inner = held_elements(leaf.n_in, divided_by(leaf, stack.name, parallel), parallel, routed=True)
            gated = 2 if any(each.n_out >= 2 * leaf.n_in for each in opening) or len(opening) > 1 else 1
            most = max(most, int(leaf.active or 1) * (max(inner, leaf.n_out) + max(gated * inner, leaf.n_out)))
    return tokens * most * element


# --- beside PyTorch


def _since(table: tuple[tuple[tuple[int, int], Taken], ...], version: vllm.Version) -> Taken:
    return next(taken for since, taken in table if version >= since)


def _runtime(version: vllm.Version, parallel: Parallel) -> Part:
    """Return what the process takes beside PyTorch's tensors: context, kernels, buffers of messages."""
    alone = STAGE_TAKEN if parallel.pp > 1 and parallel.stage_devices == 1 else _since(ALONE, version)
    more = _since(RANKS, version) if parallel.stage_devices > 1 else Taken(0, 0, 0)
    value, low, high = (int(GIB * (a + b)) for a, b in zip(alone, more, strict=True))
    return Part(value, low, high, "context and kernels, and buffers of ranks' messages", SOURCE)


def _graphs(model: Model, parallel: Parallel, flags: vllm.Flags) -> Part:
    """Return what captured CUDA graphs take."""
    if flags.enforce_eager:
        return exact(0, "enforce_eager: no CUDA graphs", SOURCE)
    decoder = model.stack("decoder")
    depth = (decoder.depth if decoder else 0) // parallel.pp
    alone, layer = GRAPHS
    largest = min(2 * (flags.max_num_seqs or 0), 512)
    sizes = sum(size <= largest for size in (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)))
    value = int(GIB * (alone + layer * depth) * sizes / ALL_SIZES)
    said = f"fitted: graphs of {sizes} sizes of steps, a constant and so much a layer"
    return Part(value, value // 2, 2 * value, said, "start-up logs of vLLM 0.19 to 0.27")
