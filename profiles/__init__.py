"""Bundled models and hardware: data with a source and a date."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


def model_names() -> list[str]:
    """Return the names of all bundled models, sorted."""
    return sorted(
        entry.name.removesuffix(".json")
        for entry in (files("profiles") / "models").iterdir()
        if entry.name.endswith(".json")
    )


def model(name: str) -> dict[str, Any] | None:
    """Return a bundled model by its name or an alias: {name, title, source, date, published, config}; None if there is none."""
    file = files("profiles") / "models" / f"{name}.json"
    if "/" not in name and "\\" not in name and file.is_file():
        return dict(json.loads(file.read_text()))
    return model(_aliases()[name]) if name in _aliases() else None


@cache
def _aliases() -> dict[str, str]:
    """Return the names of models by their aliases."""
    found: dict[str, str] = {}
    for name in model_names():
        entry = json.loads((files("profiles") / "models" / f"{name}.json").read_text())
        found |= dict.fromkeys(entry["aliases"], name)
    return found
