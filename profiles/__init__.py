"""Bundled models and hardware: data with a source and a date."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

MODELS = Path(__file__).parent / "models"
"""A file of the package, so that no importlib.resources is needed: it would cost 3 ms of each command."""


def model_names() -> list[str]:
    """Return the names of all bundled models, sorted."""
    return sorted(entry.name.removesuffix(".json") for entry in MODELS.iterdir() if entry.name.endswith(".json"))


def model(name: str) -> dict[str, Any] | None:
    """Return a bundled model by its name or an alias: {name, title, source, date, published, config}; None if there is none."""
    file = MODELS / f"{name}.json"
    if "/" not in name and "\\" not in name and file.is_file():
        return dict(json.loads(file.read_text()))
    return model(_aliases()[name]) if name in _aliases() else None


@cache
def _aliases() -> dict[str, str]:
    """Return the names of models by their aliases."""
    found: dict[str, str] = {}
    for name in model_names():
        entry = json.loads((MODELS / f"{name}.json").read_text())
        found |= dict.fromkeys(entry["aliases"], name)
    return found
