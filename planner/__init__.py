"""What a transformer costs before you rent the hardware: exact parameters, cache bytes and FLOPs from one config.json."""

from typing import TYPE_CHECKING, Any

from planner.api import load, plan
from planner.errors import PlanError
from planner.model import Model
from planner.plan import Plan

if TYPE_CHECKING:
    from planner.engines.capacity import engine_capacity, engine_memory

__all__ = ["Model", "Plan", "PlanError", "engine_capacity", "engine_memory", "load", "plan"]


def __getattr__(name: str) -> Any:
    """Import what a plan alone doesn't need only when it is asked for."""
    if name in {"engine_capacity", "engine_memory"}:
        from planner.engines import capacity  # noqa: PLC0415

        return getattr(capacity, name)
    raise AttributeError(f"module 'planner' has no attribute {name!r}")
