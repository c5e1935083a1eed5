"""Several plans side by side, and each figure's ratio to the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.api import plan
from planner.errors import PlanError

FIGURES: tuple[tuple[str, str], ...] = (
    ("params.total", "parameters"),
    ("params.active", "parameters"),
    ("weights.bytes", "bytes"),
    ("cache.bytes_per_token", "bytes"),
    ("cache.bytes", "bytes"),
    ("flops.prefill.total", "FLOPs"),
    ("flops.decode.total", "FLOPs"),
    ("traffic.decode.total_bytes", "bytes"),
    ("traffic.decode.flops_per_byte", "FLOPs/byte"),
    ("generation.cached.flops", "FLOPs"),
    ("generation.uncached.flops", "FLOPs"),
    ("generation.flops_ratio", "times"),
)
"""Paths in a plan's JSON, and their units."""


def at(tree: Any, path: str) -> Any:
    """Return the value at a dotted path, or None where there is none."""
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def compare(configs: Sequence[str], **options: Any) -> dict[str, Any]:
    """Return {models, figures: [{path, unit, values, ratios}], plans} of two or more configs under one workload.

    Raises:
        PlanError: fewer than two configs, or one of them can't be planned.
    """
    if len(configs) < 2:
        raise PlanError(
            f"found {len(configs)} config, two or more are needed", where="plan compare", fix="name another one"
        )
    plans = [plan(config, **options).to_dict() for config in configs]
    figures = []
    for path, unit in FIGURES:
        values = [at(each, path) for each in plans]
        first = values[0]
        figures.append(
            {
                "path": path,
                "unit": unit,
                "values": values,
                "ratios": [v / first if first and v is not None else None for v in values],
            }
        )
    return {"models": [each["model"]["name"] for each in plans], "figures": figures, "plans": plans}
