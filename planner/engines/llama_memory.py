"""Whether llama.cpp starts: weights of the layers on a card, its caches, its compute buffer and the process's own memory.

    free memory - weights - compute buffer - context of the process = what caches may take

The table of tokens stays with the processor, and the head is the last layer to leave a card; where both are one tensor it is
loaded twice. Layers that stay with the processor have their caches there. Run and compared on a processor; of a card that runs all
layers, two published logs agree to their digits: Llama-3-8B Q4_K_M (weights 4403.49 MiB, compute buffer 258.50 MiB, RTX 3070, 2024)
and Gemma-3-4B (compute buffer 203 MiB, github.com/ollama/ollama/pull/17037).
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from planner.activations import EAGER, FUSED, Place, peak
from planner.engines import llama
from planner.engines.capacity import Asked
from planner.engines.llama_ops import CHECKED, WHOLE
from planner.engines.llama_ops import Part as Run
from planner.engines.serving import Part, Reserve, bounded, exact, rest
from planner.errors import PlanError
from planner.model import Model
from planner.precision import Precision, element_bits, stored
from planner.shard import Parallel, depth, device_shares
from planner.workload import Workload, workload

if TYPE_CHECKING:
    from profiles.hardware import Hardware

MIB = 2**20

SOURCE = (
    "llama.cpp 0c1e57098 (src/llama-model.cpp, llama-context.cpp, ggml/src/ggml-alloc.c); tests/engines/facts_llama"
)

COPIES = 4
"""Copies of every input that devices in a row keep, so that they can work at once (ggml-backend.cpp, GGML_SCHED_MAX_COPIES)."""


def reserve(
    model: Model, work: Workload, precision: Precision, parallel: Parallel, hardware: Hardware
) -> tuple[Reserve, ...]:
    """Return what llama.cpp takes of the memory of each device, and what is left for its caches.

    Args:
        model: loaded with this engine. work: what fills in for flags that aren't given: sequences, and cells for them.
        precision, parallel, hardware: of the weights and caches, how many devices share the layers, and which.

    Raises:
        PlanError: heads are to be shared; a cache or a graph that isn't known.
    """
    if parallel.stage_devices > 1 or parallel.dp > 1:
        raise PlanError(
            f"found tp {parallel.tp}, ep {parallel.ep}, dp {parallel.dp}, cp {parallel.cp}, but llama.cpp gives whole layers to devices",
            where="--tp, --ep, --dp, --cp", fix=f"say --pp {parallel.devices}",
        )  # fmt: skip
    flags, notes = started(model, work)
    dtype = precision.cache
    card, shared = hardware.kind != "cpu", hardware.kind != "gpu"
    count = depth(model)
    parts = llama.layers_of(count, parallel.pp)
    offloaded = llama.on_card(flags, count) if card else count + 1
    if offloaded <= count and parallel.pp > 1:
        raise PlanError(
            f"found n_gpu_layers {flags.n_gpu_layers} with {parallel.pp} devices", where="--engine-set n_gpu_layers",
            fix="leave it out, or say --pp 1",
        )  # fmt: skip
    if offloaded <= count:
        parts = [range(count - max(offloaded - 1, 0), count)]
        notes.append(f"n_gpu_layers {flags.n_gpu_layers}: {len(parts[0])} of {count} layers are on the card")
    if model.family not in CHECKED:
        notes.append(
            f"the order of {model.family}'s operations in llama.cpp wasn't compared: taken to be the usual one"
        )
    usable = hardware.usable_bytes
    budget = bounded(usable.bounds, "what programs see of the device", hardware.source(usable))
    found = []
    shares = device_shares(model, precision, work, parallel)
    for stage, part in enumerate(parts):
        head = part.stop == count and offloaded > 0
        taken = {
            "weights": exact(
                _weights(model, precision, part, head=head, table=shared and stage == 0),
                "all" if shared else "layers on the device, and the head on the last; the table of tokens stays with the processor",
                SOURCE,
            ),
            "activations": _compute(model, precision, flags, part, hardware, parallel, whole=offloaded > count),
            "runtime": bounded(
                hardware.runtime_bytes.bounds, "context and kernels of the process", hardware.source(hardware.runtime_bytes)
            ),
        }  # fmt: skip
        pool = rest(budget, taken, SOURCE)
        caches = llama.caches(model, flags, dtype, part)
        needed = sum(each.size for each in caches)
        asked = flags._replace(n_ctx=work.batch * llama.padded(work.context), n_seq_max=work.batch, kv_unified=False)
        wanted = sum(each.size for each in llama.caches(model, asked, dtype, part))
        planned = shares[stage].cache_bytes
        listed = flags._asdict() | {
            "cells": {each.kind: each.cells * each.streams for each in caches},
            "cache_bytes": needed,
        }
        found.append(
            Reserve(
                stage, listed, budget, taken, {}, pool, None, _problem(model, flags, dtype, needed, pool.value, parallel), notes,
                Fraction(wanted, planned) if planned else Fraction(1), needed,
            )
        )  # fmt: skip
    return tuple(found)


def _problem(
    model: Model, flags: llama.Flags, dtype: str | None, needed: int, left: int, parallel: Parallel
) -> str | None:
    """Return what stops a start: caches that are longer than what is left, and what would fit."""
    if needed <= left:
        return None
    text = (
        f"llama.cpp doesn't start: its caches for n_ctx={flags.n_ctx} take {needed / MIB:,.2f} MiB, "
        f"{max(left, 0) / MIB:,.2f} MiB are left"
    )
    try:
        asked = Asked(max(left, 0), max_num_seqs=flags.n_seq_max, pp=parallel.pp, cache_dtype=dtype)
        return f"{text}; n_ctx={llama.capacity(model, asked)['tokens']} is the longest that fits"
    except PlanError:
        return f"{text}; not even {llama.CELLS} cells a sequence fit"


def started(model: Model, work: Workload) -> tuple[llama.Flags, list[str]]:
    """Return the flags after defaults, and notes: without n_ctx, as many cells as the workload asks for."""
    flags: llama.Flags = model.engine.flags
    notes = []
    if flags.n_seq_max == 1 and work.batch > 1:
        flags = flags._replace(n_seq_max=min(work.batch, llama.MOST_SEQUENCES))
        notes.append(f"n_seq_max isn't given: {flags.n_seq_max}, as the workload has")
    if flags.n_ctx is None:
        flags = flags._replace(n_ctx=flags.n_seq_max * llama.padded(work.context))
        notes.append(
            f"n_ctx isn't given: {flags.n_ctx:,} cells, as the workload needs; started without it, llama-server takes the model's "
            f"{model.positions or 0:,}, or what fits"
        )
    return flags, notes


def _weights(model: Model, precision: Precision, part: range, *, head: bool, table: bool) -> int:
    """Return the bytes of a device's weights: of its layers, of the head if it has that, and of the tables if it has those."""
    total = 0
    for each in stored(model, precision):
        if each.place.end == "layers":
            total += (each.matrix_bytes + each.bias_bytes) * sum(layer in part for layer in each.layers)
        elif each.place.end == "front":
            total += each.stored_bytes * table
        elif head:
            tied = each.place.leaf.tie is not None and not each.place.owner
            total += each.matrix_bytes * (not (tied and table)) + each.bias_bytes
    return total


def _compute(
    model: Model, precision: Precision, flags: llama.Flags, part: range, hardware: Hardware, parallel: Parallel, *, whole: bool
) -> Part:  # fmt: skip
    """Return the compute buffer of a device, and how far it may be off; on shared memory the processor's and the logits too."""
    card = hardware.kind != "cpu"
    try:
        found = llama.compute(model, flags, precision.cache, Run(part, card=True) if card else WHOLE)
    except PlanError as error:
        return _estimated(model, precision, flags, part, error)
    size = found.device
    text = "the most that results of one run take at once, as ggml places them"
    if hardware.kind != "gpu":
        size += found.host + llama.output_bytes(model, flags)
        text += "; and logits of one token a sequence"
    if card and not whole:
        largest = max(each.matrix_bytes for each in stored(model, precision) if each.place.end == "layers")
        text += "; with layers left to the processor, their weights are copied in one after the other for long runs"
        return Part(size + largest, size, size + 2 * largest, text, SOURCE)
    if parallel.pp > 1:
        made = llama.context(model, flags, precision.cache)
        copies = (COPIES - 1) * made.tokens * made.cells * (2 if made.flash else 4)
        return Part(size + copies, size, size + 2 * copies, f"{text}; and {COPIES} copies of its masks", SOURCE)
    return exact(size, text, SOURCE)


def _estimated(model: Model, precision: Precision, flags: llama.Flags, part: range, error: PlanError) -> Part:
    """Return about what a run takes whose operations aren't known: the planner's own peak in 32 bits, and the logits."""
    made = llama.context(model, flags, precision.cache)
    work, _ = workload(model, batch=1, prompt=made.tokens, generate=0)
    wide = 32 / int(element_bits(precision.activations))
    place = Place(Parallel(), part, part.start == 0, last=False)
    low, high = (int(wide * peak(model, work, precision, rules, place).alive_bytes) for rules in (FUSED, EAGER))
    logits = llama.output_bytes(model, flags) // flags.n_seq_max * min(made.tokens, flags.n_outputs_max or made.tokens)
    text = f"about: {error}; the most that is alive at once as the planner sees it, in 32 bits, and logits of a run"
    return Part(high + logits, low, 2 * (high + logits), text, "planner/activations.py")
