"""The families: what a config.json of each model_type doesn't say, a row each. A new topology is a function in topology/."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from planner.families.row import Family

__all__ = ["FAMILIES", "Family", "defaults"]

FOLDER = Path(__file__).parents[1] / "defaults"

MODULES = (
    "decoders",
    "experts",
    "hybrids",
    "multimodal",
    "mm_llava",
    "mm_large",
    "mm_glm",
    "encoders",
    "special_encoders",
    "encoder_decoders",
    "mm_blip",
    "mm_more",
)


class _Families(Mapping[str, Family]):
    """All rows by model_type; a module of rows is imported when one of its families is asked for."""

    def __getitem__(self, name: str) -> Family:
        known = defaults(name).get("module")
        for module in (known,) if known else MODULES:
            rows = _rows(module)
            if name in rows:
                return rows[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for module in MODULES for name in _rows(module))

    def __len__(self) -> int:
        return sum(len(_rows(module)) for module in MODULES)


FAMILIES: Mapping[str, Family] = _Families()


def _rows(module: str) -> dict[str, Family]:
    rows: dict[str, Family] = getattr(import_module(f"planner.families.{module}"), module.upper())
    return rows


@cache
def defaults(family: str) -> dict[str, Any]:
    """Return {module, names, defaults} of a family: where its row is, its spellings, and what a missing key takes.

    Written by tests/oracle/defaults.py; empty for a family that there is none of.
    """
    file = FOLDER / f"{family}.json"
    nothing: dict[str, Any] = {"names": {}, "defaults": {}}
    return dict(json.loads(file.read_text())) if "/" not in family and file.is_file() else nothing
