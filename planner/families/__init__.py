"""The families: what a config.json of each model_type doesn't say, a row each. A new topology is a function in topology/."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from planner.families.decoders import DECODERS
from planner.families.encoder_decoders import ENCODER_DECODERS
from planner.families.encoders import ENCODERS
from planner.families.experts import EXPERTS
from planner.families.hybrids import HYBRIDS
from planner.families.multimodal import MULTIMODAL
from planner.families.row import Family

__all__ = ["FAMILIES", "Family", "defaults"]

FAMILIES: dict[str, Family] = {**DECODERS, **EXPERTS, **HYBRIDS, **MULTIMODAL, **ENCODERS, **ENCODER_DECODERS}


@cache
def defaults(family: str) -> dict[str, dict[str, Any]]:
    """Return {names, defaults} of a family: its spellings, and what it takes where a key is missing.

    Written by tests/oracle/defaults.py.
    """
    file = files("planner") / "defaults" / f"{family}.json"
    return dict(json.loads(file.read_text()))
