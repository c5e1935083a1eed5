"""Parameters by layer, as the planner lists them and as a record of the reference does, brought to one form."""

from __future__ import annotations

from collections.abc import Iterable

from planner.model import Model

NOT_LAYERS = (
    "merger", "projector", "visual_projection", "subsampling", "stem.", "conv_layers", "altup_", "lm_heads", "embed_tokens", "seanet",
    "relative_bias",
)  # fmt: skip
"""Lists of modules in a record that are no layers of a stack."""


def planned_stacks(model: Model) -> list[list[int]]:
    """Return the planner's parameters by layer, of every stack."""
    return [without_zeros(sum(layer.values()) for layer in stack.layers) for stack in model.tally.stacks.values()]


def without_zeros(sizes: Iterable[int]) -> list[int]:
    """Return parameters by layer, without the layers that run an earlier one's weights again."""
    return [size for size in sizes if size]


def nearest(stacks: list[list[int]], sizes: list[int]) -> list[int]:
    """Return a reference stack where the planner has it, as a stack or as neighbours in one; else what is most like it."""
    parts = [stack[i : i + len(sizes)] for stack in stacks for i in range(max(1, len(stack) - len(sizes) + 1))]
    return max(parts, key=lambda part: sum(a == b for a, b in zip(part, sizes, strict=False)), default=[])


def measured_stacks(layers: dict[str, list[list[int]]], planned: list[list[int]]) -> dict[str, list[int]]:
    """Return parameters by layer of a record's stacks; lists of one parent and length are a layer's parts, and summed.

    They stay apart where the planner has each of them as a stack, or in one.
    """
    found: dict[str, list[int]] = {}
    parents: dict[tuple[str, int], list[str]] = {}
    for name, runs in layers.items():
        if any(part in name for part in NOT_LAYERS):
            continue
        found[name] = without_zeros(size for count, size in runs for _ in range(count))
        parents.setdefault((name.rpartition(".")[0], sum(count for count, _ in runs)), []).append(name)
    for (parent, _), names in parents.items():
        if len(names) > 1 and not all(nearest(planned, found[name]) == found[name] for name in names):
            parts = [found.pop(name) for name in names]
            depth = max(map(len, parts))
            found[parent] = [
                sum(column) for column in zip(*(part + [0] * (depth - len(part)) for part in parts), strict=True)
            ]
    return found
