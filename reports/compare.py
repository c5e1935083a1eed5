"""Several plans in one table; ratios are to the first."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.units import amount, ratio, size

LABELS = {
    "params.total": "parameters",
    "params.active": "active parameters",
    "weights.bytes": "weights",
    "cache.bytes_per_token": "cache of one more token",
    "cache.bytes": "cache at context",
    "flops.prefill.total": "prefill",
    "flops.decode.total": "decode step",
    "traffic.decode.total_bytes": "moved by a decode step",
    "traffic.decode.flops_per_byte": "FLOPs/byte of a decode step",
    "generation.cached.flops": "generation with cache",
    "generation.uncached.flops": "generation without cache",
    "generation.flops_ratio": "without / with cache",
}


def show(found: dict[str, Any], console: Console | None = None) -> None:
    """Print a comparison made by `planner.compare.compare`."""
    out = console or Console(highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("")
    for name in found["models"]:
        table.add_column(name, justify="right", overflow="fold")
    for figure in found["figures"]:
        cells = []
        for index, (value, times) in enumerate(zip(figure["values"], figure["ratios"], strict=True)):
            text = _cell(value, figure["unit"])
            cells.append(text if index == 0 or times is None else f"{text}\n[dim]{ratio(times)}[/dim]")
        table.add_row(LABELS.get(figure["path"], figure["path"]), *cells)
    out.print(table)
    work = [each["workload"] for each in found["plans"]]
    shapes = dict.fromkeys(f"{w['batch']} x ({w['prompt']:,} + {w['generate']:,})" for w in work)
    out.print(
        f"\n[dim]sequences x (prompt + generated tokens): {', '.join(shapes)}; ratios are to {found['models'][0]}[/dim]"
    )
    for each in found["plans"]:
        for note in each["model"]["notes"]:
            if note.startswith("ASSUMED"):
                out.print(Text(f"{each['model']['name']}: {note}", "bold yellow"))


def _cell(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "bytes":
        return size(value)
    if unit == "times":
        return ratio(value)
    return amount(value, "FLOP" if unit == "FLOPs" else "") if unit in {"FLOPs", "parameters"} else f"{value:.3g}"
