"""The coverage ledger: every bundled model against the stored reference, quantity by quantity.

`python -m tests.oracle.ledger` rewrites docs/coverage.md; a test asserts that it is up to date, so that a model that stops
being exact fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import profiles
from planner.api import load
from planner.model import Model
from planner.workload import Pass
from tests.oracle.store import load as load_records

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
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
    exempt = EXEMPT.get(model.family, "")
    source = _source(model)
    for case, measured in record["flops"].items():
        passes: dict[str, list[tuple[str, Pass]]] = {
            "prefill512": [("decoder", Pass(1, 512))],
            "decode512": [("decoder", Pass(1, 1, 512, "decode"))],
            "forward512": [("encoder", Pass(1, 512))],
            "source512-1": [("encoder", Pass(1, source)), ("decoder", Pass(1, 1, memory=source))],
            "source512-128": [("encoder", Pass(1, source)), ("decoder", Pass(1, 128, memory=source))],
            "decode128": [("decoder", Pass(1, 1, 128, "decode", source))],
        }
        if measured is None:
            yield Check("FLOPs", case, None, None, exempt or reasons.get(f"flops.{case}", "not traced"))
            continue
        total = head = 0
        for name, p in passes[case]:
            stack = model.stack(name)
            assert stack is not None
            by_work = stack.flops(p, model.engine, dense=True)
            total += sum(by_work.values())
            head += by_work.get("head", 0)
        yield Check("FLOPs", case, (total, head), (measured["total"], measured["head"]), exempt)


EXEMPT = {
    "longformer": "the reference pads to chunks of twice the window and multiplies these; the planner counts the mask's pairs",
    "switch_transformers": "the reference's routing depends on the data, and drops tokens beyond an expert's room",
    "nllb-moe": "the reference's routing depends on the data, and its mask is one-hot encoded twice",
}
"""Families whose FLOPs the reference counts otherwise, with the reason."""


def page(records: dict[str, dict[str, Any]]) -> str:
    """Return the page: a row a model, exact or the reason it is not."""
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
    lines += ["", *(f"{number}. {reason}" for reason, number in notes.items()), ""]
    return "\n".join(lines)


def _cell(found: list[Check], notes: dict[str, int]) -> str:
    """Return "exact", "none", or the number of the reason why it isn't."""
    if not found:
        return "none"
    reasons = dict.fromkeys(check.reason or "differs" for check in found if check.reason or not check.exact)
    return ", ".join(f"note {notes.setdefault(reason, len(notes) + 1)}" for reason in reasons) or "exact"


if __name__ == "__main__":
    PAGE.write_text(page(load_records()))
