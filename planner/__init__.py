"""What a transformer costs before you rent the hardware: exact parameters, cache bytes and FLOPs from one config.json."""

from planner.api import load, plan
from planner.engines.vllm import engine_capacity
from planner.errors import PlanError
from planner.model import Model
from planner.plan import Plan

__all__ = ["Model", "Plan", "PlanError", "engine_capacity", "load", "plan"]
