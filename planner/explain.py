"""How a figure of the plan came about: the tensors, caches or products that it sums, with their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from planner.errors import PlanError
from planner.model import Model, Stack
from planner.plan import Plan
from planner.precision import cache_bits, stored_lines
from planner.workload import Pass, Workload

GENERATION = {
    "steps": "G, the tokens generated",
    "pairs": "cached: the sum of n over steps, n = P + i; uncached: the sum of n (n + 1) / 2 (+ K (K - 1) / 2 with a prefix of K)",
    "dense_pairs": "cached: the sum of n; uncached: the sum of n^2",
    "flops": "cached: G decode steps, each on the cache that the one before it left; uncached: G passes over n tokens from nothing",
    "prefill_flops": "flops.prefill.total",
    "pairs_ratio": "uncached pairs / cached pairs; (N + 2) / 3 for P = 0",
    "dense_ratio": "uncached dense pairs / cached dense pairs; (2 N + 1) / 3 for P = 0",
    "flops_ratio": "uncached FLOPs / cached FLOPs",
}


def explain(model: Model, plan: Plan, path: str) -> str:
    """Return lines that tell how the figure at a JSON path came about.

    Raises:
        PlanError: the JSON has no such path; the nearest ones are named.
    """
    tree = plan.to_dict()
    value = _value(tree, path)
    lines = [f"{path} = {_shown(value)}", *(f"  {line}" for line in _lines(model, plan, path))]
    if basis := plan.basis.get(path):
        lines += [f"  {basis['kind']}: {basis['formula']}", f"  source: {basis['source']}"]
        if basis["low"] is not None:
            lines.append(f"  between {_shown(basis['low'])} and {_shown(basis['high'])}")
    return "\n".join(lines)


def paths(tree: Any, at: str = "") -> Iterator[str]:
    """Yield the dotted paths of all values, lists as one value each."""
    for key, value in tree.items():
        path = f"{at}.{key}" if at else key
        yield path
        if isinstance(value, dict) and at != "basis" and key != "basis":
            yield from paths(value, path)


def _value(tree: dict[str, Any], path: str) -> Any:
    here: Any = tree
    for key in re.findall(r"[^.\[\]]+", path):
        if isinstance(here, dict) and key in here:
            here = here[key]
        elif isinstance(here, list) and key.isdecimal() and int(key) < len(here):
            here = here[int(key)]
        else:
            near = get_close_matches(path, list(paths(tree)), n=3, cutoff=0.4)
            hint = f"; near: {', '.join(near)}" if near else ""
            raise PlanError(f"the plan has no {path!r}{hint}", where="--explain", fix="--json prints all paths")
    return here


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"{len(value)} entries"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _lines(model: Model, plan: Plan, path: str) -> Iterator[str]:
    keys = path.split(".")
    work = Workload(**{k: plan.workload[k] for k in Workload._fields})
    match keys:
        case ["params", "total"] | ["params", "by_block"]:
            yield "the sum of params.by_block, each tensor once:"
            yield from (f"{count:>20,}  {part}" for part, count in plan.params["by_block"].items())
        case ["params", "active"]:
            yield "total - routed + routed x k / E: the experts that a token doesn't visit are left out"
        case ["params", "active_decode"]:
            yield "the active parameters of the stack that decodes, and the tables that it shares"
        case ["params", "by_block", part]:
            yield from _leaves(model, lambda leaf: leaf.part == part and not leaf.buffer)
        case ["params", "embedding"]:
            yield from _leaves(model, lambda leaf: leaf.part == "embedding")
        case ["params", "head"]:
            yield from _leaves(model, lambda leaf: leaf.work == "head")
        case ["params", "buffers"]:
            yield from _leaves(model, lambda leaf: leaf.buffer)
        case ["weights", *_]:
            yield from stored_lines(model, plan_precision(model, plan))
        case ["cache", *_]:
            yield from _caches(model, plan, work)
        case ["flops", "prefill", *rest]:
            for stack in model.stacks:
                if work.prefill(stack.name).batch:
                    yield from _products(stack, work.prefill(stack.name), model, rest)
        case ["flops", "decode", *rest]:
            for stack in model.stacks:
                if stack.name == "decoder":
                    yield from _products(stack, work.decode(), model, rest)
        case ["collectives", phase] if plan.collectives and plan.collectives.get(phase):
            yield from (_message(each) for each in plan.collectives[phase])
        case ["memory", "engine", *rest] if (
            plan.memory and "engine" in plan.memory and rest in ([], ["available_cache"])
        ):
            yield from _set_aside(plan)
        case ["generation", *_, last] if last in GENERATION:
            yield GENERATION[last]
        case ["workload" | "precision" | "model", *_]:
            yield "given with the call, or its default for this model (docs/json.md)"


def _set_aside(plan: Plan) -> Iterator[str]:
    """Yield the sum that ends in an engine's cache, and what it makes of that."""
    engine = (plan.memory or {})["engine"]
    counted = engine["counted"]
    for name, sign in (("budget", " "), *((part, "-") for part in counted), ("available_cache", "=")):
        yield f"{sign} {engine[name]:>18,}  {name}: {plan.basis[f'memory.engine.{name}']['formula']}"
    for name in ("graphs", "activations", "runtime"):
        if name in engine and name not in counted:
            yield f"  {engine[name]:>18,}  {name}, beside that: {plan.basis[f'memory.engine.{name}']['formula']}"
    if found := engine["capacity"]:
        said = {key: value for key, value in found.items() if isinstance(value, int | float)}
        yield ", ".join(f"{key.replace('_', ' ')} {value:,}" for key, value in said.items())
    if engine["problem"]:
        yield engine["problem"]


def _message(each: dict[str, Any]) -> str:
    return (
        f"{each['total_bytes']:>20,}  stage {each['stage']}: {each['count']:,} x {each['kind']} of {each['bytes']:,} bytes "
        f"on {each['ranks']} ranks, {each['site']}"
    )


def plan_precision(model: Model, plan: Plan) -> Any:
    """Return the precision that a plan was made with."""
    from planner.precision import resolve  # noqa: PLC0415

    used = plan.precision
    return resolve(
        model, dtype=used["activations"], weights=used["weights"], cache_dtype=used["cache"], state_dtype=used["state"]
    )


def _leaves(model: Model, wanted: Any) -> Iterator[str]:
    owned: set[str] = set()
    for stack in model.stacks:
        for count, repeats, leaf in stack.leaves():
            again = leaf.tie in owned
            owned |= {leaf.tie} if leaf.tie else set()
            if not wanted(leaf):
                continue
            copies = f"{leaf.copies:,} x " * (leaf.copies > 1)
            bias = f" + bias [{leaf.n_out:,}]" * leaf.bias
            stored = count * (leaf.elements - leaf.matrix * again)
            tied = " (tied: stored elsewhere)" * again + f" (run {repeats} times)" * (repeats > 1)
            yield f"{stored:>20,}  {stack.name}: {count:,} x {leaf.name} {copies}[{leaf.n_in:,}, {leaf.n_out:,}]{bias}{tied}"


def _caches(model: Model, plan: Plan, work: Workload) -> Iterator[str]:
    decoder = model.stack("decoder")
    for cache, layers in decoder.caches.items() if decoder else ():
        if not cache.owner:
            continue
        tokens = work.source if cache.kind == "cross" else work.context
        bits = cache_bits(plan_precision(model, plan), cache)
        rows = cache.stored(tokens, model.engine)
        limit = f" of {tokens:,} (window {cache.window or cache.chunk:,})" if (cache.window or cache.chunk) else ""
        fixed = f" + {cache.fixed:,} fixed elements" * bool(cache.fixed)
        total = layers * work.batch * cache.elements(tokens, model.engine) * bits / 8
        yield (
            f"{int(total):>20,}  {layers:,} layers x {work.batch:,} sequences x {cache.kind}: {cache.row:,} elements x {rows:,} rows"
            f"{limit}{fixed} x {float(bits / 8):g} bytes"
        )


def _products(stack: Stack, p: Pass, model: Model, rest: list[str]) -> Iterator[str]:
    dense = bool(rest) and rest[0].startswith("dense")
    only = rest[1] if len(rest) > 1 else None
    for (work, feed), per_row in stack.work.items():
        if only in {None, work}:
            rows = p.rows(feed, dense=dense, expand=not model.engine.absorbs_latents)
            yield f"{per_row * rows:>24,}  {stack.name} {work}: {per_row:,} a row x {rows:,} rows ({feed})"
    for core, times in stack.cores.items():
        if only in {None, core.work}:
            flops = times * core.flops(p, model.engine, dense=dense)
            yield f"{flops:>24,}  {stack.name} {core.work}: {times:,} layers x {core.told(p, model.engine, dense=dense)}"
