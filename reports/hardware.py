"""Hardware profiles for people, in 80 columns: a list, or one with its sources."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiles.hardware import Figure, Hardware
from reports.units import amount, size

UNITS = {"bandwidth_bytes_per_second": "B/s", "flops_per_second": "FLOP/s", "link_bytes_per_second": "B/s"}


def show_all(profiles: list[Hardware], console: Console | None = None) -> None:
    """Print a line for each profile."""
    out = console or Console(highlight=False)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("name", "usable", "bandwidth", "16-bit peak", "8-bit peak", "link"):
        table.add_column(name, header_style="dim", no_wrap=True, justify="left" if name == "name" else "right")
    for each in profiles:
        flops, links = each.flops_per_second, each.link_bytes_per_second
        narrow = flops.get("fp8") or flops.get("int8")
        table.add_row(
            each.name,
            f"{each.usable_bytes.value / 2**30:,.2f} GiB",
            amount(each.bandwidth_bytes_per_second.value, "B/s"),
            _peak(flops.get("bf16") or flops.get("fp16")),
            _peak(narrow),
            amount(max((link.value for link in links.values()), default=None), "B/s"),
        )
    out.print(table)
    out.print("\n[dim]plan hardware NAME shows one with its sources; a file of the same form may be named too[/dim]")


def show(profile: Hardware, console: Console | None = None) -> None:
    """Print one profile: its figures, where they stand, and whether they were read there."""
    out = console or Console(highlight=False)
    out.print(Text(f"{profile.title}", "bold") + Text(f"  {profile.name}", "dim"))
    if profile.aliases:
        out.print(f"also {', '.join(profile.aliases)}")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("figure", "value", "from", "to", "source"):
        table.add_column(name, header_style="dim", justify="left" if name in {"figure", "source"} else "right")
    for path, figure in profile.figures():
        table.add_row(
            path.replace("_", " "), *(_value(path, figure, end) for end in ("value", "low", "high")), figure.source
        )
    out.print(table)
    for name, source in profile.sources.items():
        grid = Table.grid(padding=(0, 1))
        grid.add_row(f"{name}:", Text(f"{source.text} ({source.date}, {source.confidence})"))
        out.print(grid)
    for note in profile.notes:
        out.print(Text(f"note: {note}"))


def _peak(figure: Figure | None) -> str:
    return amount(figure.value if figure else None, "FLOP/s")


def _value(path: str, figure: Figure, end: str) -> str:
    number = getattr(figure, end)
    if number is None:
        return ""
    field = path.split(".", maxsplit=1)[0]
    if field.endswith("_bytes"):
        return size(number)
    return amount(number, UNITS[field]) if field in UNITS else f"{number:,g}"
