"""The stored records of the reference implementation: one line a model or a type, so that everyday tests need no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

STORE: Final = Path(__file__).resolve().parent / "reference.json"
TYPES: Final = STORE.with_name("types.jsonl")


def load(store: Path = STORE) -> dict[str, dict[str, Any]]:
    """Return the stored records by model name; nothing stored is an empty dict."""
    return json.loads(store.read_text()) if store.exists() else {}


def save(records: Mapping[str, Mapping[str, Any]], store: Path = STORE) -> None:
    """Write records by model name, sorted, one model per line."""
    lines = (
        f"{json.dumps(name)}:{json.dumps(records[name], separators=(',', ':'), sort_keys=True)}"
        for name in sorted(records)
    )
    store.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def load_types(store: Path = TYPES) -> dict[str, dict[str, Any]]:
    """Return the stored records by model_type; nothing stored is an empty dict."""
    lines = store.read_text().splitlines() if store.exists() else []
    records = [json.loads(line) for line in lines]
    return {record.pop("type"): record for record in records}


def save_types(records: Mapping[str, Mapping[str, Any]], store: Path = TYPES) -> None:
    """Write records by model_type, sorted, one type per line."""
    lines = (
        json.dumps({"type": name, **records[name]}, separators=(",", ":"), sort_keys=True) for name in sorted(records)
    )
    store.write_text("".join(f"{line}\n" for line in lines))
