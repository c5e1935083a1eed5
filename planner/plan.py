"""A plan: every figure of one model under one workload, as plain values; the only thing that reports read."""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from typing import Any, NamedTuple

from planner.engines import Engine
from planner.generation import generation
from planner.model import Model, Stack, whole
from planner.moe import distinct_experts, dropped_share, expert_capacity
from planner.precision import Precision, cache_bits, weight_bytes
from planner.traffic import pass_traffic
from planner.workload import Pass, Workload

SCHEMA = 1
"""Number of the JSON's layout; a renamed or removed key raises it."""


class Plan(NamedTuple):
    """The sections of the JSON (CONTRACT in docs/json.md); counts are exact ints.

    Attributes:
        schema: layout of this object.
        model, workload, precision: what was planned, after defaults.
        params: elements. weights, cache: bytes. flops: 2 per multiply-add.
        generation: with a cache and without; None for encoders.
        moe: experts visited; None without experts.
        traffic: bytes moved and FLOPs per byte of each phase.
        memory, latency: None without hardware.
        collectives: what devices send each other, by phase; None with fewer than two.
        basis: how each figure that is not a count came about.
        checkpoint: whether the weights beside the config agree; None where there are none.
    """

    schema: int
    model: dict[str, Any]
    workload: dict[str, Any]
    precision: dict[str, Any]
    params: dict[str, Any]
    weights: dict[str, Any]
    cache: dict[str, Any]
    flops: dict[str, Any]
    generation: dict[str, Any] | None
    moe: dict[str, Any] | None
    traffic: dict[str, Any]
    memory: dict[str, Any] | None
    collectives: dict[str, Any] | None
    latency: dict[str, Any] | None
    basis: dict[str, Any]
    checkpoint: dict[str, Any] | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON as nested dicts."""
        return self._asdict()


def make_plan(model: Model, work: Workload, precision: Precision, notes: list[str]) -> Plan:
    """Return the plan of a described model."""
    engine = model.engine
    flops = _flops(model, work, engine)
    made = generation(model, work, engine, flops["prefill"]["total"])
    basis: dict[str, Any] = {}
    return Plan(
        SCHEMA,
        {
            "name": model.name,
            "family": model.family,
            "class": model.architecture,
            "kind": "prefix-lm" if work.prefix else model.kind,
            "layers": model.depth,
            "receptive_field_tokens": model.receptive_field_tokens,
            "notes": [*model.notes, *precision.notes, *notes],
        },
        work._asdict() | {"context": work.context, "engine": engine.name},
        {
            "activations": precision.activations,
            "weights": precision.weights,
            "cache": precision.cache,
            "state": precision.state,
        },
        _params(model),
        {"bytes": weight_bytes(model, precision)},
        _cache(model, work, precision, engine),
        flops,
        made.to_dict() if made else None,
        _moe(model, work, basis),
        _traffic(model, work, precision, flops, basis),
        None,
        None,
        None,
        basis,
        _checkpoint(model),
    )


def _checkpoint(model: Model) -> dict[str, Any] | None:
    """Return whether the weights beside the config agree with the plan."""
    if model.checkpoint is None:
        return None
    from planner.checkpoint import compared  # noqa: PLC0415

    return compared(model, model.checkpoint)


def _params(model: Model) -> dict[str, Any]:
    tally = model.tally
    return {
        "total": tally.total,
        "active": tally.active,
        "active_decode": tally.active_decode,
        "buffers": tally.buffers,
        "embedding": tally.embedding,
        "head": tally.head,
        "by_block": tally.by_part,
        "stacks": {
            name: {"layers": [sum(layer.values()) for layer in stack.layers], "by_block": list(stack.layers)}
            for name, stack in tally.stacks.items()
        },
    }


def _cache(model: Model, work: Workload, precision: Precision, engine: Engine) -> dict[str, Any]:
    """Bytes of all sequences with P + G rows; state in its own dtype."""
    decoder = model.stack("decoder")
    parts = {"self": 0, "cross": 0, "state": 0}
    layers: list[int] = []
    per_token = Fraction(0)
    step = lcm(*(cache.stride for cache in decoder.caches)) * engine.block_tokens if decoder else 1
    for run in decoder.runs if decoder else ():
        slot = 0
        owned = [cache for cache in run.layer.caches if cache.owner]
        for cache in owned:
            tokens = work.source if cache.kind == "cross" else work.context
            bits = cache_bits(precision, cache)
            stored = _whole_bytes(work.batch * cache.elements(tokens, engine), bits)
            parts[cache.kind] += stored * run.count * run.repeats
            slot += stored
            if cache.kind != "cross":
                grown = cache.elements(tokens + step, engine) - cache.elements(tokens, engine)
                per_token += grown * bits / 8 / step * run.count * run.repeats
        if owned:
            layers += [slot] * (run.count * run.repeats)
    return {"bytes": sum(parts.values()), "bytes_per_token": whole(per_token), "parts": parts, "layers": layers}


def _whole_bytes(elements: int, bits: Any) -> int:
    return int(-(-elements * bits // 8))


def _prefill(model: Model, work: Workload) -> list[tuple[Stack, Pass]]:
    """Every stack's share of the pass over the prompts; towers run only where there are images or sound."""
    passes = ((stack, work.prefill(stack.name)) for stack in model.stacks)
    return [(stack, p) for stack, p in passes if p.batch]


def _flops(model: Model, work: Workload, engine: Engine) -> dict[str, Any]:
    """Exact pairs with the head on the last position, and as a tracer would count."""
    passes = _prefill(model, work)
    decoder = model.stack("decoder")
    return {
        "prefill": _phase(passes, engine),
        "decode": _phase([(decoder, work.decode())], engine) if decoder else None,
    }


def _phase(passes: list[tuple[Stack, Pass]], engine: Engine) -> dict[str, Any]:
    by_op, dense_by_op = (
        _summed([stack.flops(p, engine, dense=dense) for stack, p in passes]) for dense in (False, True)
    )
    return {
        "total": sum(by_op.values()),
        "by_op": by_op,
        "dense": sum(dense_by_op.values()),
        "dense_by_op": dense_by_op,
    }


def _summed(parts: list[Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts:
        for key, value in part.items():
            found[key] = found.get(key, 0) + value
    return found


def _moe(model: Model, work: Workload, basis: dict[str, Any]) -> dict[str, Any] | None:
    """Return, per stack with experts, the expected number of distinct ones that a layer's pass visits."""
    found: dict[str, Any] = {}
    for stack in model.stacks:
        for mixture in stack.mixtures[:1]:
            e, k = mixture.experts, mixture.top_k
            rows = {"prefill": work.prefill(stack.name).rows("new")}
            if stack.name == "decoder":
                rows["decode"] = work.batch
            path = f"moe.{stack.name}"
            entry = found[stack.name] = {
                "experts": e,
                "top_k": k,
                "distinct_experts": {phase: distinct_experts(e, mixture.visits, n) for phase, n in rows.items()},
            }
            for phase in rows:
                basis[f"{path}.distinct_experts.{phase}"] = _formula("E (1 - (1 - k/E)^R), tokens choosing evenly")
            if work.capacity_factor is not None:
                room = {phase: expert_capacity(e, k, n, work.capacity_factor) for phase, n in rows.items()}
                entry["capacity_tokens"] = room
                entry["dropped_share"] = {phase: dropped_share(e, k, n, room[phase]) for phase, n in rows.items()}
                for phase in rows:
                    basis[f"{path}.dropped_share.{phase}"] = _formula(
                        "E max(0, load - capacity) / (R k / E), load binomial(R, k/E): tokens choosing evenly; a trained "
                        "router is less even and drops more",
                        "Switch Transformers, arXiv:2101.03961, section 2.2",
                    )
    return found or None


def _traffic(
    model: Model, work: Workload, precision: Precision, flops: dict[str, Any], basis: dict[str, Any]
) -> dict[str, Any]:
    """Bytes between memory and processor after ideal fusion, and FLOPs per byte."""
    phases = {"prefill": _prefill(model, work)}
    if decoder := model.stack("decoder"):
        phases["decode"] = [(decoder, work.decode())]
    found = {}
    for phase, passes in phases.items():
        moved = [pass_traffic(model, stack, p, precision) for stack, p in passes]
        entry = found[phase] = {
            "weight_bytes": sum(each.weight_bytes for each in moved),
            "activation_bytes": sum(each.activation_bytes for each in moved),
            "cache_bytes": sum(each.cache_bytes for each in moved),
        }
        entry["total_bytes"] = total = sum(entry.values())
        entry["flops_per_byte"] = flops[phase]["total"] / total
        basis.update({f"traffic.{phase}.{key}": TRAFFIC_BASIS for key in entry})
    return found


def _formula(formula: str, source: str = "planformer, docs/method.md") -> dict[str, Any]:
    return {"kind": "formula", "formula": formula, "source": source, "low": None, "high": None, "verify": None}


TRAFFIC_BASIS = _formula(
    "each weight that a row visits is read once, each kept cache row is read once, each new one written once, each matrix "
    "product reads its rows and writes its results; experts by the expected number visited"
)
