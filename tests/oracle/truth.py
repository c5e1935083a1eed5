"""A corpus of records of the reference against the planner: `python -m tests.oracle.truth [TYPE ...]` lists what differs.

The corpus lies beside the checkout, in ../shared/truth, and isn't part of it; its README says what a record holds.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from planner.api import load
from planner.errors import PlanError
from planner.model import Model, Stack
from planner.workload import Pass
from tests.oracle.exempt import reason as exempt_because
from tests.oracle.layers import measured_stacks, nearest, planned_stacks

CORPUS = Path(__file__).parents[3] / "shared" / "truth"


@cache
def records() -> tuple[dict[str, Any], ...]:
    """Return the records with a parameter count; nothing where there is no corpus."""
    file = CORPUS / "truth.jsonl"
    if not file.exists():
        return ()
    found = (json.loads(line) for line in file.open())
    return tuple(each for each in found if each.get("params"))


def config(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record's config."""
    found = json.loads((CORPUS / record["config_path"]).read_text())
    return dict(found["config"] if record["kind"] == "default" else found)


def differences(record: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each quantity that differs from the record, but for what `exempt.py` exempts.

    Raises:
        PlanError: the planner refuses the config.
    """
    given = config(record)
    given["architectures"] = given.get("architectures") or [record["class"]]
    model = load(given, engine="transformers")
    tally = model.tally
    if tally.total != record["params"]:
        yield f"parameters {tally.total:,} planned, {record['params']:,} measured ({tally.total - record['params']:+,})"
    planned = planned_stacks(model)
    lists = {name: [[1, size] for size in layers] for name, layers in (record.get("layers") or {}).items()}
    for name, layers in measured_stacks(lists, planned).items():
        if nearest(planned, layers) != layers and not exempt_because(model, "layers"):
            yield f"layers of {name}: {layers[:6]} measured, planned {[each[:6] for each in planned]}"
    if (active := (record.get("moe") or {}).get("active")) and tally.active != active:
        yield f"active {tally.active:,} planned, {active:,} measured"
    text = record.get("text_part") or {}
    if text.get("params") and len(tally.stacks) > 1:
        words = tally.stacks.get("decoder") or tally.stacks["encoder"]
        found = words.total - words.head
        if found != (without := text["params"] - text["parts"]["lm_head"]):
            yield f"text model without its head {found:,} planned, {without:,} measured ({found - without:+,})"
    if not exempt_because(model, "cache"):
        yield from _caches(model, record)
    if not exempt_because(model, "FLOPs"):
        yield from _flops(model, record)


def _caches(model: Model, record: dict[str, Any]) -> Iterator[str]:
    decoder = model.stack("decoder")
    cases = record.get("cache") or (record.get("text_part") or {}).get("cache") or {}
    for case, measured in cases.items():
        if "B=1" not in case and case != "after_decode":
            continue
        sizes = dict(part.split("=") for part in case.split(",")) if "=" in case else {}
        if record["mode"] == "encdec":
            source, tokens = int(sizes.get("S", 512)), int(sizes.get("T", 129))
        else:
            source, tokens = 0, int(sizes.get("S", 513))
        source = model.source_positions or source if model.source_fixed else _encoded(measured) or source
        found = 0
        for cache_, layers in decoder.caches.items() if decoder else ():
            kept = cache_.elements(source if cache_.kind == "cross" else tokens, model.engine)
            found += 2 * layers * kept * cache_.owner
        if found != measured["bytes_bf16"]:
            yield f"cache {case}: {found:,} planned, {measured['bytes_bf16']:,} measured"


def _encoded(measured: dict[str, Any]) -> int | None:
    """Return the positions that the encoder made of its input, as a cross-attention cache holds them."""
    tensors = (tensor for group in measured.get("groups") or () for tensor in group["tensors"])
    return next((int(shape[-2]) for name, shape, _ in tensors if name == "cross.keys"), None)


def _flops(model: Model, record: dict[str, Any]) -> Iterator[str]:
    decoder, encoder = model.stack("decoder"), model.stack("encoder")
    first: dict[str, Any] = next(iter((record.get("cache") or {}).values()), {})
    source = (model.source_positions or 512) if model.source_fixed else _encoded(first) or 512
    cases: dict[str, list[tuple[Stack | None, Pass]]] = {
        "prefill": [(decoder or encoder, Pass(1, 512))],
        "decode": [(decoder, Pass(1, 1, 512, "decode"))],
        "forward": [(encoder or decoder, Pass(1, 512))],
    }
    if record["mode"] == "encdec":
        cases = {
            "src512_dec1": [(encoder, Pass(1, source)), (decoder, Pass(1, 1, memory=source))],
            "src512_dec128": [(encoder, Pass(1, source)), (decoder, Pass(1, 128, memory=source))],
            "decode": [(decoder, Pass(1, 1, 128, "decode", source))],
        }
    measurements = record.get("flops") or (record.get("text_part") or {}).get("flops") or {}
    for case, measured in measurements.items():
        if not isinstance(measured, dict) or measured.get("total") is None or case not in cases:
            continue
        length = measured.get("S", 512)
        passes = cases[case] if length == 512 or case != "prefill" else [(decoder, Pass(1, length))]
        found = sum(sum(stack.flops(p, model.engine, dense=True).values()) for stack, p in passes if stack)
        if found != measured["total"]:
            yield f"FLOPs {case}: {found:,} planned, {measured['total']:,} measured ({found / measured['total']:.4f})"


def _tensors(model: Model, record: dict[str, Any]) -> str:
    """Return the sizes of tensors that only one side has, for finding what is missing."""
    mine: Counter[int] = Counter()
    for stack in model.stacks:
        for count, _, leaf in stack.leaves():
            if not leaf.buffer:
                mine[leaf.matrix] += count
                mine[leaf.copies * leaf.n_out] += count * leaf.bias
    theirs: Counter[int] = Counter()
    names: dict[int, str] = {}
    for name, shape, count, _ in record["param_shapes"]:
        theirs[prod(shape)] += count
        names[prod(shape)] = f"{name} {shape}"
    return f"    planned only: {dict((mine - theirs).most_common(12))}\n    measured only: " + "; ".join(
        f"{names[size]} x {count}" for size, count in (theirs - mine).most_common(16)
    )


def main() -> None:
    """Print what differs for the types named, or for all."""
    wanted = set(sys.argv[1:])
    exact = total = 0
    for record in records():
        if wanted and record["model_type"] not in wanted:
            continue
        total += 1
        try:
            found = list(differences(record))
        except PlanError as error:
            found = [f"refused: {error}"]
        exact += not found
        if found:
            print(f"{record['name']} ({record['model_type']}, {record['class']}, {record['kind']})", *found, sep="\n  ")  # noqa: T201
            if found[0].startswith("parameters"):
                print(_tensors(load(config(record), engine="transformers"), record))  # noqa: T201
            if notes := {k: record[k] for k in ("errors", "errors_first_try", "variant", "notes") if record.get(k)}:
                print(f"    record's remarks: {str(notes)[:600]}")  # noqa: T201
    print(f"{exact} of {total} exact")  # noqa: T201


if __name__ == "__main__":
    main()
