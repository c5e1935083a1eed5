"""A verification for people: each quantity predicted and measured, and whether they agree."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

STYLES = {"pass": "green", "fail": "bold red"}


def show(found: dict[str, Any], console: Console | None = None) -> None:
    """Print what `measure.verify.verify` returned."""
    out = console or Console(highlight=False)
    size = "shrunk to a small shape" if found.get("shrunk") else "at full size"
    out.print(Text(found.get("name", ""), "bold") + Text(f" {size}, runner {found['runner']} on {found['device']}"))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column, justify in (
        ("quantity", "left"),
        ("predicted", "right"),
        ("measured", "right"),
        ("unit", "left"),
        ("", "left"),
    ):
        table.add_column(column, justify=justify, header_style="dim")  # type: ignore[arg-type]
    for each in found["quantities"]:
        verdict = each["verdict"]
        table.add_row(
            each["name"], _shown(each["predicted"]), _shown(each["measured"]), each["unit"],
            f"[{STYLES.get(verdict, 'yellow')}]{verdict}[/]",
        )  # fmt: skip
    out.print(table)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if isinstance(value, float) else str(value)
