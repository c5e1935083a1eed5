"""An engine's start-up log beside the planner's predictions, one row for each figure."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

STYLES = {"agrees": "green", "differs": "bold red"}


def show(found: dict[str, Any], console: Console | None = None) -> None:
    """Print a check made by `planner.engines.log.check`."""
    out = console or Console(highlight=False)
    version = f" {found['version']}" if found["version"] else ""
    out.print(f"{found['engine']}{version}, {found['model']}\n")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("line", justify="right", header_style="dim")
    table.add_column("quantity", header_style="dim", overflow="fold")
    for name in ("printed", "predicted", "difference"):
        table.add_column(name, justify="right", header_style="dim")
    table.add_column("", overflow="fold")
    for line in found["lines"]:
        difference, verdict = line["difference"], line["verdict"]
        style = STYLES.get(verdict, "dim")
        table.add_row(
            str(line["line_number"]),
            line["quantity"],
            _figure(line["printed"], line["unit"]),
            _figure(line["predicted"], line["unit"]),
            "" if difference is None else f"{difference:+.2f} %",
            f"[{style}]{verdict}[/{style}]",
        )
    out.print(table)
    for note in found["notes"]:
        out.print(f"- {note}", style="dim", markup=False)


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit in {"GiB", "MiB"}:
        return f"{value:,.2f} {unit}"
    return f"{value:,.2f}x" if unit == "requests" else f"{value:,.0f}"
