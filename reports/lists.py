"""What there is: bundled models, families, weight formats."""

from __future__ import annotations

from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text


def entries(kind: Literal["models", "families", "formats"] | str) -> list[dict[str, Any]]:  # noqa: PYI051
    """Return one row for each entry."""
    if kind == "formats":
        from planner.precision import FORMATS  # noqa: PLC0415

        return [
            {"name": name, "description": each.description, "source": each.source} for name, each in FORMATS.items()
        ]
    if kind == "families":
        from planner.families import FAMILIES  # noqa: PLC0415

        return [
            {"name": name, "class": each.architecture, "topology": each.build.__name__}
            for name, each in FAMILIES.items()
        ]
    import profiles  # noqa: PLC0415

    found = [profiles.model(name) for name in profiles.model_names()]
    return [
        {
            "name": each["name"],
            "title": each["title"],
            "family": each["config"]["model_type"],
            "published_parameters": each["published"].get("parameters"),
            "date": each["date"],
            "confidence": each["confidence"],
            "source": each["source"],
        }
        for each in found
        if each
    ]


def show(rows: list[dict[str, Any]], console: Console | None = None) -> None:
    """Print rows as a table; sources are in the JSON."""
    out = console or Console(highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    columns = [name for name in rows[0] if name != "source"]
    for name in columns:
        table.add_column(name.replace("_", " "), header_style="dim", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(row[name])) if row[name] is not None else "-" for name in columns))
    out.print(table)
