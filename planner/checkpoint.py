"""Does a checkpoint agree with the plan, and where not: elements of every layer and of what stands around the layers."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from planner.formats import Checkpoint, Tensor
from planner.model import Model

LAYER = re.compile(r"^(.*?)\b(?:layers|layer|blocks|block|blk|h)\.(\d+)\.")
PACKED = {"U8", "I8", "I32", "U32", "I64", "F8_E8M0"}
"""Types of safetensors that hold several elements each, or scales: their counts aren't those of the model."""


def compared(model: Model, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return {files, tensors, elements, bytes, agrees, differences} of a checkpoint against the plan.

    Elements are compared stack by stack and layer by layer, parameters and buffers together; a head stored although it is tied,
    and layers beyond the model's (multi-token prediction), are named. Packed weights have no elements to compare.
    """
    differences: list[str] = []
    tensors = [each for each in checkpoint.tensors if not each.name.endswith(("rotary_emb.inv_freq", "position_ids"))]
    packed = any(each.dtype in PACKED and len(each.shape) > 1 for each in tensors)
    if packed:
        differences.append("weights are packed: elements aren't compared, only bytes")
    else:
        differences += _layers(model, tensors) + _around(model, tensors)
    return {
        "files": checkpoint.files,
        "tensors": len(checkpoint.tensors),
        "elements": sum(each.elements for each in checkpoint.tensors),
        "bytes": sum(each.stored_bytes for each in checkpoint.tensors),
        "agrees": None if packed else not differences,
        "differences": differences,
    }


def _layers(model: Model, tensors: list[Tensor]) -> list[str]:
    """Compare layers; a stack of the file is the plan's of that name, or its only one."""
    found: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for each in tensors:
        if match := LAYER.match(each.name):
            found[_stack(match[1], model)][int(match[2])] += each.elements
    lines = []
    for name, tally in model.tally.stacks.items():
        planned = [sum(layer.values()) for layer in tally.layers]
        stored = found.get(name, {})
        buffers = _layer_buffers(model, name)
        for index, elements in enumerate(planned):
            if stored.get(index, 0) - buffers[index] != elements:
                lines.append(
                    f"{name} layer {index}: the checkpoint holds {stored.get(index, 0):,} elements, "
                    f"the plan {elements + buffers[index]:,}"
                )
        if further := sorted(set(stored) - set(range(len(planned)))):
            lines.append(f"{name} layers {further}: in the checkpoint, not in the plan (multi-token prediction? --mtp)")
    return lines


def _stack(prefix: str, model: Model) -> str:
    return next((stack.name for stack in model.stacks if stack.name in prefix), model.stacks[-1].name)


def _layer_buffers(model: Model, name: str) -> list[int]:
    """Return the buffer elements of every layer of a stack."""
    stack = next(stack for stack in model.stacks if stack.name == name)
    counts: list[int] = []
    for run in stack.runs:
        counts += [sum(leaf.elements for leaf in run.layer.leaves if leaf.buffer)] * (run.count * run.repeats)
    return counts


def _around(model: Model, tensors: list[Tensor]) -> list[str]:
    """Compare what stands around the layers, all together; a tied head may be stored again."""
    stored = sum(each.elements for each in tensors if not LAYER.match(each.name))
    layers = sum(sum(layer.values()) for tally in model.tally.stacks.values() for layer in tally.layers)
    buffers = model.tally.buffers - sum(sum(_layer_buffers(model, stack.name)) for stack in model.stacks)
    planned = model.tally.total - layers + buffers
    again = {leaf.matrix for stack in model.stacks for leaf in stack.outside if leaf.tie}
    if stored == planned:
        return []
    if stored - planned in again:
        return []  # a tied matrix written a second time
    return [f"around the layers: the checkpoint holds {stored:,} elements, the plan {planned:,}"]
