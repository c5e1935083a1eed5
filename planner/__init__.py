"""What a transformer costs before you rent the hardware: exact parameters, cache bytes and FLOPs from one config.json."""

from typing import TYPE_CHECKING, Any

from planner.api import load, plan
from planner.errors import PlanError
from planner.model import Model
from planner.plan import Plan

if TYPE_CHECKING:
    from planner.engines.capacity import engine_capacity

__all__ = ["Model", "Plan", "PlanError", "engine_capacity", "load", "plan"]


def __getattr__(name: str) -> Any:
    """Import what a plan alone doesn't need only when it is asked for."""
    if name == "engine_capacity":
        from planner.engines.capacity import engine_capacity  # noqa: PLC0415

        return engine_capacity
    raise AttributeError(f"module 'planner' has no attribute {name!r}")
