"""The coverage ledger: every bundled model, and every model_type's default config, against the stored reference.

`python -m tests.oracle.ledger` rewrites docs/coverage.md; a test asserts that it is up to date, so that a model that stops
being exact fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import profiles
from planner.api import load
from planner.errors import PlanError
from planner.families import FAMILIES
from planner.model import Model
from planner.workload import Pass
from tests.oracle.exempt import reason as exempt_because
from tests.oracle.layers import measured_stacks, nearest, planned_stacks
from tests.oracle.store import load as load_records
from tests.oracle.store import load_types

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
LONGEST_GIST = 140
QUANTITIES = ("parameters", "layers", "buffers", "cache", "FLOPs")
DERIVED = {"transformer", "palm"}
"""Families without a reference implementation; tests/test_derivations.py derives them."""


@dataclass(frozen=True, slots=True)
class Check:
    """One quantity of one model: what the planner says, what the reference has, and where the reference has none, why."""

    quantity: str
    case: str
    planned: Any
    measured: Any
    reason: str = ""

    @property
    def exact(self) -> bool:
        """Whether both are equal."""
        return bool(self.planned == self.measured)


def checks(name: str, record: dict[str, Any]) -> Iterator[Check]:
    """Yield all comparisons of a bundled model with its record."""
    model = load(name, engine="transformers")
    tally = model.tally
    yield Check("parameters", "total", tally.total, record["params"])
    yield Check("parameters", "by component", _filled(tally.by_part), _filled(record["by_block"]))
    yield Check("parameters", "embedding", tally.embedding, record["params_embedding"])
    yield Check("parameters", "head", tally.head, record["params_head"])
    for stack, layers in record["layers"].items():
        planned = [_filled(layer) for layer in tally.stacks[stack].layers]
        yield Check("layers", stack, planned, [_filled(layer) for layer in layers])
    yield Check(
        "buffers",
        "total",
        tally.buffers,
        sum(_elements(shape) * _count(where) for _, shape, where in record["buffers"]),
    )
    yield from _caches(model, record)
    yield from _flops(model, record)


def _filled(parts: dict[str, int]) -> dict[str, int]:
    return {part: count for part, count in sorted(parts.items()) if count}


def _elements(shape: list[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _count(where: str) -> int:
    """Return how many layers "0-3,5" names; 1 for none."""
    ranges = [part.split("-") for part in where.split(",") if part]
    return sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges) or 1


def _caches(model: Model, record: dict[str, Any]) -> Iterator[Check]:
    decoder = model.stack("decoder")
    for case, measured in (record.get("cache") or {}).items():
        assert decoder is not None
        tokens = sum(int(part) for part in case.split("+"))
        kinds = measured if isinstance(measured, dict) else {"self": measured}
        for kind, slots in kinds.items():
            rows = _source(model) if kind == "cross" else tokens
            planned = [
                2 * cache.elements(rows, model.engine)
                for run in decoder.runs
                for cache in run.layer.caches * run.count
                if cache.kind == kind
            ]
            yield Check("cache", f"{case} {kind}", planned, slots)


def _source(model: Model) -> int:
    return model.source_positions if model.source_fixed and model.source_positions else 512


def _flops(model: Model, record: dict[str, Any]) -> Iterator[Check]:
    reasons = record.get("reasons") or {}
    exempt = exempt_because(model, "FLOPs")
    source = _source(model)
    for case, measured in record["flops"].items():
        if measured is None:
            yield Check("FLOPs", case, None, None, exempt or reasons.get(f"flops.{case}", "not traced"))
            continue
        by_work = _planned_flops(model, case, source)
        planned = sum(by_work.values()), by_work.get("head", 0)
        yield Check("FLOPs", case, planned, (measured["total"], measured["head"]), exempt)


def _planned_flops(model: Model, case: str, source: int) -> dict[str, Any]:
    """Return the FLOPs of a case by kind of work, dense; of a model with one stack, whatever that is called."""
    passes: dict[str, list[tuple[str, Pass]]] = {
        "prefill512": [("decoder", Pass(1, 512))],
        "decode512": [("decoder", Pass(1, 1, 512, "decode"))],
        "forward512": [("encoder", Pass(1, 512))],
        "source512-1": [("encoder", Pass(1, source)), ("decoder", Pass(1, 1, memory=source))],
        "source512-128": [("encoder", Pass(1, source)), ("decoder", Pass(1, 128, memory=source))],
        "decode128": [("decoder", Pass(1, 1, 128, "decode", source))],
    }
    found: dict[str, Any] = {}
    for name, p in passes[case]:
        stack = model.stack(name) or (
            model.stack("decoder") or model.stack("encoder") if len(passes[case]) == 1 else None
        )
        for work, flops in stack.flops(p, model.engine, dense=True).items() if stack else ():
            found[work] = found.get(work, 0) + flops
    return found


# --- every model type -------------------------------------------------------------------------------------------------


def type_checks(record: dict[str, Any]) -> Iterator[Check]:
    """Yield all comparisons of a type's default config with its record.

    Raises:
        PlanError: the planner refuses the config.
    """
    model = load({**record["config"], "architectures": [record["class"]]}, engine="transformers")
    tally = model.tally
    yield Check("parameters", "total", tally.total, record["params"])
    stacks = planned_stacks(model)
    for where, sizes in measured_stacks(record["layers"], stacks).items():
        layers = Check("layers", where, nearest(stacks, sizes), sizes)
        yield layers if layers.exact else replace(layers, reason=exempt_because(model, "layers"))
    yield Check("buffers", "total", tally.buffers, record["buffers"])
    yield from _type_caches(model, record)
    reasons = {case: _why(reason) for case, reason in (record.get("reasons") or {}).items()}
    for case, measured in record["flops"].items():
        if measured is None:
            yield Check(
                "FLOPs", case, None, None, exempt_because(model, "FLOPs") or reasons.get(f"flops.{case}", "not traced")
            )
            continue
        check = Check("FLOPs", case, sum(_planned_flops(model, case, _encoded(model, record)).values()), measured)
        yield check if check.exact else replace(check, reason=exempt_because(model, "FLOPs"))
    if not record["flops"]:
        yield Check("FLOPs", "all", None, None, reasons.get("flops", "not traced"))


def _encoded(model: Model, record: dict[str, Any]) -> int:
    """Return the positions that the encoder makes of its input."""
    if model.kind != "encoder-decoder" and not model.source_positions:
        return 0  # Llama 3.2 Vision's text: nothing to look at
    return int(record.get("source") or _source(model))


def _type_caches(model: Model, record: dict[str, Any]) -> Iterator[Check]:
    """Yield the bytes of all caches, per case; where there is none to compare, why."""
    decoder = model.stack("decoder")
    for case, measured in record["cache"].items():
        tokens = sum(int(part) for part in case.split("+"))
        planned = 0
        for cache, layers in decoder.caches.items() if decoder else ():
            rows = _encoded(model, record) if cache.kind == "cross" else tokens
            planned += 2 * layers * cache.owner * cache.elements(rows, model.engine)
        check = Check("cache", case, planned, measured)
        yield check if check.exact else replace(check, reason=exempt_because(model, "cache"))
    for case, reason in (record.get("reasons") or {}).items():
        if case == "cache" or (case.startswith("cache.") and not record["cache"]):
            yield Check("cache", case, None, None, _why(reason))


# --- the page ---------------------------------------------------------------------------------------------------------


def page(records: dict[str, dict[str, Any]], types: dict[str, dict[str, Any]]) -> str:
    """Return the page: a row a bundled model and a row a model_type, exact or the reason it is not."""
    lines = [
        "# Coverage",
        "",
        "Every bundled model under `--engine transformers`, against transformers 5.24 on the meta device: parameters (total, by",
        "component, embedding, head), the same for every layer, persistent buffers, cache bytes of every layer (512, 5,000 and",
        "512 + 1 tokens; decoders of encoder-decoders: 1, 128 and 128 + 1), and dense FLOPs (prefill of 512, decode at 512;",
        "source 512 with 1 and 128, and a step after 128). Equal integers, or the reason. Written by",
        "`python -m tests.oracle.ledger`; a test fails when it no longer holds.",
        "",
        "BigBird's FLOPs are compared below 704 tokens, where it attends to all; beyond, its blocks are compared with a count of",
        "blocks in `tests/test_masks.py`.",
        "",
        f"| model | family | {' | '.join(QUANTITIES)} |",
        f"|---|---|{'---|' * len(QUANTITIES)}",
    ]
    notes: dict[str, int] = {}
    for name in profiles.model_names():
        family = (profiles.model(name) or {})["config"]["model_type"]
        if name not in records:
            lines.append(f"| {name} | {family} | derived in tests/test_derivations.py |{' |' * (len(QUANTITIES) - 1)}")
            continue
        found = list(checks(name, records[name]))
        cells = [_cell([check for check in found if check.quantity == quantity], notes) for quantity in QUANTITIES]
        lines.append(f"| {name} | {family} | {' | '.join(cells)} |")
    lines += ["", *(f"{number}. {reason}" for reason, number in notes.items())]
    return "\n".join([*lines, "", *_types_table(types), ""])


def _types_table(types: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the second table and its notes."""
    yield from (
        "## Every model type",
        "",
        "Every model_type of transformers' causal, sequence-to-sequence, masked and speech language models, on the default config of",
        "its class, as `tests/oracle/types.jsonl` holds it (`python -m tests.oracle.types`): totals of parameters, parameters of every",
        "layer, persistent buffers, total cache bytes and total dense FLOPs in the same cases as above; models of several inputs run",
        "text only, and a case that the reference can't run is left out where it runs others. Where it says none, the reference has",
        "nothing to compare; where it says refused, the planner has no such family.",
        "",
        f"| model type | class | {' | '.join(QUANTITIES)} |",
        f"|---|---|{'---|' * len(QUANTITIES)}",
    )
    notes: dict[str, int] = {}
    for name, record in types.items():
        yield f"| {name} | {record['class']} | {' | '.join(_type_cells(name, record, notes))} |"
    yield ""
    yield from (f"{number}. {reason}" for reason, number in notes.items())


def _type_cells(name: str, record: dict[str, Any], notes: dict[str, int]) -> list[str]:
    """Return a type's cells, padded with empty ones where one says all."""
    empty = [""] * (len(QUANTITIES) - 1)
    if name not in FAMILIES:
        return ["refused", *empty]
    if "error" in record:
        return [_note(f"the library can't build its default config: {_gist(record['error'])}", notes), *empty]
    try:
        found = list(type_checks(record))
    except PlanError as error:
        return [_note(f"the planner refuses the default config: {_gist(error.problem)}", notes), *empty]
    return [_cell([check for check in found if check.quantity == quantity], notes) for quantity in QUANTITIES]


def _why(reason: str) -> str:
    """Return a record's reason, an exception's message as what the library says."""
    kind, _, message = reason.partition(": ")
    return f"the library can't run it: {_gist(message)}" if kind.endswith("Error") else _gist(reason)


def _gist(message: str) -> str:
    """Return a message's first sentence, on one line."""
    line = " ".join(message.replace("|", "/").split())
    return line if len(line) < LONGEST_GIST else f"{line[: LONGEST_GIST - 3].rstrip()}..."


def _note(reason: str, notes: dict[str, int]) -> str:
    """Return "note N" of a reason."""
    return f"note {notes.setdefault(reason, len(notes) + 1)}"


def _cell(found: list[Check], notes: dict[str, int]) -> str:
    """Return "exact", "none", or the number of the reason why it isn't."""
    if not found:
        return "none"
    reasons = dict.fromkeys(check.reason or "differs" for check in found if check.reason or not check.exact)
    return ", ".join(_note(reason, notes) for reason in reasons) or "exact"


if __name__ == "__main__":
    PAGE.write_text(page(load_records(), load_types()))
