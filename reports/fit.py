"""Whether it fits, for people, in 80 columns: the verdict, what makes it fit, and what else would."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports.table import set_aside
from reports.units import size

PARTS = ("weights", "cache", "activations", "runtime", "total", "usable")
NAMES = {"usable": "usable by programs"}


def show(found: dict[str, Any], console: Console | None = None) -> None:
    """Print what `planner.fit.fit` found."""
    out = console or Console(highlight=False, emoji=False)
    held, work = found["asked"], found["workload"]
    count = held["parallel"]["devices"]
    verdict = Text("fits", "bold green") if found["fits"] else Text("DOES NOT FIT", "bold red")
    out.print(Text(f"{found['model']} on {count:,} x {found['hardware']}: ", "bold") + verdict)
    out.print(f"{work['batch']:,} x ({work['prompt']:,} + {work['generate']:,}) tokens, {_sizes(held['parallel'])}")
    if change := found["smallest_change"]:
        out.print(Text(change["text"], "bold cyan"))
        for other in found["changes"][1:]:
            out.print(Text(f"Or: {other['text']}"))
    out.print()
    out.print(_held(held))
    if engine := set_aside(held):
        out.print()
        out.print(engine)
    out.print()
    out.print(_fewest(found))
    out.print(Text(f"Legal tp: {', '.join(map(str, found['legal_tp']))}"))
    if count > 1:
        out.print()
        out.print(_layouts(found))
    for title, key in (("Weights", "weights"), ("Cache", "cache_dtype")):
        rows = found["formats" if key == "weights" else "cache_dtypes"]
        out.print()
        out.print(_formats(f"{title} on {count:,} x {found['hardware']}", key, rows))
        for row in rows:
            if row["problem"]:
                out.print(_line(f"{row[key]}: {row['problem']}"))
    if found["notes"]:
        out.print("\n[bold]Notes[/bold]")
        for note in found["notes"]:
            out.print(_line(note))


def _line(text: str) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_row("  -", Text(text))
    return grid


def _sizes(parallel: dict[str, Any]) -> str:
    said = [f"{name} {parallel[name]}" for name in ("tp", "pp", "ep", "dp", "cp") if parallel[name] > 1]
    return ", ".join(said) or "one device"


def _held(held: dict[str, Any]) -> Table:
    """Return what the fullest device holds, and beside it what all of them hold together."""
    count = held["parallel"]["devices"]
    several = [f"all {count:,}"] if count > 1 else []
    table = _table("Fullest device" if several else "Device", "", "bytes", "", *several)
    sums = {part: sum(each.get(part, held[part]) for each in held["devices"]) for part in PARTS}
    for part in PARTS:
        both = [size(sums[part])] if several else []
        table.add_row(f"  {NAMES.get(part, part)}", f"{held[part]:,}", size(held[part]), *both)
    over = held["headroom"] < 0
    table.add_row("  short of" if over else "  headroom", f"{abs(held['headroom']):,}", size(abs(held["headroom"])))
    if held["host_bytes"]:
        table.add_row("  host's memory, in all", f"{held['host_bytes']:,}", size(held["host_bytes"]))
    return table


def _fewest(found: dict[str, Any]) -> Text:
    least = found["fewest_devices"]
    if least is None:
        return Text("Fewest devices: none", "bold")
    text = Text(f"Fewest devices: {least['gpus']}", "bold")
    sizes = [f"{name} {least[name]}" for name in ("ep", "dp", "cp") if least[name] > 1]
    text.append("  " + ", ".join([f"tp {least['tp']}", f"pp {least['pp']}", *sizes]), "")
    text.append(f"; most sequences {_most(least['max_batch'])}, longest {_most(least['max_context'])} tokens", "")
    return text


def _layouts(found: dict[str, Any]) -> Table:
    """Return the legal ways to use the asked devices, with what a device of the first, a middle and the last stage stores."""
    devices = found["asked"]["parallel"]["devices"]
    title = f"Ways to use {devices:,} x {found['hardware']}, weights on a device of each stage"
    table = _table(title, "", "first stage", "middle", "last", "cache", "copies", "fits")
    for row in found["layouts"]:
        if row["problem"]:
            continue
        stages = row["stages"]
        weights = [stage["weights"] for stage in stages]
        fits = Text("yes", "green") if row["fits"] else Text("no", "red")
        table.add_row(
            f"  tp {row['tp']}, pp {row['pp']}" + f", dp {row['dp']}" * (row["dp"] > 1),
            size(weights[0]),
            size(max(weights[1:-1])) if len(weights) > 2 else "-",
            size(weights[-1]) if len(weights) > 1 else "-",
            size(max(stage["cache"] for stage in stages)),
            f"{row['copies_of_cache']}x",
            fits,
        )
    return table


def _formats(title: str, key: str, rows: list[dict[str, Any]]) -> Table:
    table = _table(title, "", "on a device", "fits", "most sequences", "longest, tokens")
    for row in rows:
        name = Text(f"  {row[key]}{' (asked)' * row['asked']}")
        if row["bytes"] is None:
            table.add_row(name, "-", "no", "-", "-")
            continue
        fits = Text("yes", "green") if row["fits"] else Text("no", "red")
        table.add_row(name, size(row["bytes"]), fits, _most(row["max_batch"]), _most(row["max_context"]))
    return table


def _most(count: int | None) -> str:
    return "unlimited" if count is None else f"{count:,}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", header_style="dim")
    return table
