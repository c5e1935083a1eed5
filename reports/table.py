"""A plan for people, in 80 columns: what the model is, what it stores, what it computes, and what was assumed."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.plan import Plan
from reports.units import amount, bar, ratio, size

BAR_WIDTH = 24
NAMES = {
    "mlp": "feed-forward",
    "routed_experts": "routed experts",
    "shared_experts": "shared experts",
    "head": "output head",
    "conv": "convolutions",
}


def show(plan: Plan, console: Console | None = None) -> None:
    """Print a plan."""
    out = console or Console(highlight=False, emoji=False)
    out.print(_title(plan))
    engine = set_aside(plan.memory) if plan.memory else None
    costs = (_work(plan), _experts(plan), _generation(plan))
    for part in (_parameters(plan), _memory(plan), _fit(plan), engine, _sent(plan), *costs):
        if part:
            out.print()
            out.print(part)
    if plan.checkpoint:
        out.print("\n[bold]Checkpoint[/bold]")
        out.print(Text(_checkpoint(plan.checkpoint)))
    if plan.model["notes"]:
        out.print("\n[bold]Notes[/bold]")
        for note in plan.model["notes"]:
            style = "bold yellow" if note.startswith("ASSUMED") else ""
            grid = Table.grid(padding=(0, 1))
            grid.add_row("  -", Text(note, style))
            out.print(grid)
    out.print("\n[dim]--explain PATH tells how a figure came about, --json prints all of them[/dim]")


def _checkpoint(found: dict[str, Any]) -> str:
    verdict = {
        True: "agrees with the plan",
        False: "differs from the plan",
        None: "can't be compared element by element",
    }
    text = f"  {found['tensors']:,} tensors in {found['files']} files, {found['bytes']:,} bytes: {verdict[found['agrees']]}"
    return "\n".join([text, *(f"  - {line}" for line in found["differences"])])


def _grid(title: str, *columns: str) -> Table:
    """Return a table without lines whose further columns are right-aligned."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=0, pad_edge=False)
    for index, column in enumerate(columns):
        text = f"  {column}" if index else column
        table.add_column(text, justify="right" if index else "left", header_style="dim", no_wrap=True)
    return table


def _add(table: Table, *cells: str) -> None:
    """Add a row whose further cells keep two spaces from the one before; cheaper than the table's own padding."""
    table.add_row(*(f"  {cell}" if index else cell for index, cell in enumerate(cells)))


def _title(plan: Plan) -> Text:
    model, params = plan.model, plan.params
    text = Text(f"{model['name']}", "bold")
    text.append(f"  {model['kind']} of family {model['family']}, {model['layers']} layers, {model['class']}\n", "")
    text.append(f"{params['total']:,} parameters", "bold cyan")
    if params["active"] != params["total"]:
        text.append(f", of which {params['active']:,.0f} work on a token", "cyan")
    if params["buffers"]:
        text.append(f"; {params['buffers']:,} buffer elements beside them")
    if field := model["receptive_field_tokens"]:
        text.append(f"\nthrough all layers a token draws on at most {field:,} tokens")
    return text


def _parameters(plan: Plan) -> Table:
    table = _grid("Parameters", "", "count", "share", "")
    table.columns[3].justify = "left"
    total = plan.params["total"]
    for part, count in sorted(plan.params["by_block"].items(), key=lambda item: -item[1]):
        share = count / total
        _add(table, f"  {NAMES.get(part, part)}", f"{count:,}", f"{share:.1%}", f"[cyan]{bar(share, BAR_WIDTH)}[/cyan]")
    return table


def _memory(plan: Plan) -> Table:
    precision, work, cache = plan.precision, plan.workload, plan.cache
    table = _grid("Memory", "", "bytes", "")
    weights = plan.weights["bytes"]
    _add(table, f"  weights, {precision['weights']}", f"{weights:,}", size(weights))
    if plan.generation is None:
        return table
    rows = f"{work['context']:,} tokens" + (f" and {work['source']:,} source positions" if work["source"] else "")
    each = cache["bytes_per_token"]
    _add(table, f"  cache of one more token, {precision['cache']}", f"{each:,}", size(each))
    _add(table, f"  cache of {work['batch']:,} x {rows}", f"{cache['bytes']:,}", size(cache["bytes"]))
    for part, name in (("cross", "cross-attention, fixed after encoding"), ("state", "recurrent state")):
        if cache["parts"][part]:
            _add(table, f"    of which {name}", f"{cache['parts'][part]:,}", size(cache["parts"][part]))
    return table


def _fit(plan: Plan) -> Table | None:
    """Return what the fullest device holds, against what it has."""
    held = plan.memory
    if not held:
        return None
    count = held["parallel"]["devices"]
    table = _grid(f"Fit on {count:,} x {held['hardware']}" + ", fullest device" * (count > 1), "", "bytes", "")
    for part in ("weights", "cache", "activations", "runtime", "total"):
        _add(table, f"  {part}", f"{held[part]:,}", size(held[part]))
    if held["host_bytes"]:
        _add(table, "  host's memory, in all", f"{held['host_bytes']:,}", size(held["host_bytes"]))
    _add(table, "  usable by programs", f"{held['usable']:,}", size(held["usable"]))
    verdict = "[green]headroom[/green]" if held["fits"] else "[bold red]DOES NOT FIT, short of[/bold red]"
    _add(table, f"  {verdict}", f"{abs(held['headroom']):,}", size(abs(held["headroom"])))
    for key, name in (("max_batch", "most sequences of this length"), ("max_context", "longest at this batch, tokens")):
        _add(table, f"  {name}", "unlimited" if held[key] is None else f"{held[key]:,}", "")
    return table


def set_aside(held: dict[str, Any]) -> Table | None:
    """Return what an engine takes when it starts beside what the workload needs; None: it takes nothing in advance."""
    engine = held.get("engine")
    if not engine:
        return None
    name = f"{engine['name']} {engine['version']}".strip()
    table = _grid(f"Device that {name} starts on", "", "needed", "taken", "")
    table.columns[3].justify = "left"
    counted = engine["counted"]
    for part in ("weights", "activations", "runtime", "graphs"):
        if part in engine:
            _add(
                table,
                f"  {part}",
                size(engine[part]),
                size(engine[part]),
                "" if part in counted else "beside its share",
            )
    _add(table, "  cache", size(held["cache"]), size(engine["cache"]), _pool(engine))
    _add(table, "  together", size(engine["required"]), size(engine["reserved"]), "")
    if engine["problem"]:
        table.caption = Text(engine["problem"], "bold red")
        table.caption_justify = "left"
    return table


def _pool(engine: dict[str, Any]) -> str:
    """Return what an engine makes of its cache, in a few words."""
    found = engine["capacity"]
    if not found:
        return "not used" if engine["starts"] else "it doesn't start"
    said = f"{found['tokens']:,} tokens"
    longest = engine["flags"].get("max_model_len")
    if found.get("concurrency") is not None and longest:
        said += f", {found['concurrency']:g} x {longest:,}"
    return said


def _sent(plan: Plan) -> Table | None:
    """Return what devices send each other in a pass: equal messages together, whatever they are for."""
    phases = plan.collectives
    if not phases:
        return None
    sums: dict[tuple[Any, ...], list[int]] = {}
    for phase, messages in phases.items():
        for each in messages or ():
            found = sums.setdefault((phase, each["kind"], each["ranks"], each["bytes"]), [0, 0])
            found[0] += each["count"]
            found[1] += each["total_bytes"]
    table = _grid("Sent between devices in one pass", "", "messages", "of", "on links")
    for (phase, kind, ranks, each_bytes), (count, total) in sums.items():
        _add(table, f"  {phase}: {kind} of {ranks}", f"{count:,}", size(each_bytes), size(total))
    return table


def _work(plan: Plan) -> Table:
    table = _grid("Work of one pass", "", "FLOPs", "attention", "moved", "FLOPs/byte")
    work = plan.workload
    names = {
        "prefill": f"  prefill, {work['batch']:,} x {work['source'] or work['prompt']:,}",
        "decode": f"  decode step, {work['batch']:,} x 1 after {work['prompt']:,}",
    }
    for phase, name in names.items():
        flops = plan.flops[phase]
        if flops:
            moved = plan.traffic[phase]
            attention = flops["by_op"].get("attention", 0) / max(flops["total"], 1)
            _add(
                table,
                name,
                amount(flops["total"], "FLOP"),
                f"{attention:.1%}",
                size(moved["total_bytes"]),
                f"{moved['flops_per_byte']:.3g}",
            )
    return table


def _experts(plan: Plan) -> Table | None:
    if not plan.moe:
        return None
    table = _grid("Experts visited per layer, even routing", "", "expected", "of", "dropped")
    for stack, mixture in plan.moe.items():
        for phase, visited in mixture["distinct_experts"].items():
            dropped = mixture.get("dropped_share", {}).get(phase)
            share = "-" if dropped is None else f"{dropped:.2%} of tokens"
            _add(table, f"  {stack}, {phase}", f"{visited:,.1f}", f"{mixture['experts']:,}", share)
    return table


def _generation(plan: Plan) -> Table | None:
    made = plan.generation
    if not made or not made["steps"]:
        return None
    table = _grid(
        f"Generating {made['steps']:,} tokens after {plan.workload['prompt']:,}", "", "with cache", "without", "ratio"
    )
    cached, uncached = made["cached"], made["uncached"]
    _add(
        table,
        "  query-key pairs, one head",
        f"{cached['pairs']:,}",
        f"{uncached['pairs']:,}",
        ratio(made["pairs_ratio"]),
    )
    _add(
        table,
        "  the same, full rectangles",
        f"{cached['dense_pairs']:,}",
        f"{uncached['dense_pairs']:,}",
        ratio(made["dense_ratio"]),
    )
    _add(
        table,
        "  FLOPs of the model",
        amount(cached["flops"], "FLOP"),
        amount(uncached["flops"], "FLOP"),
        ratio(made["flops_ratio"]),
    )
    return table
