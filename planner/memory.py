"""Does it fit: what each device holds of weights, cache, activations and its runtime, against what the device leaves to use.

Nothing is computed anew here: weights and caches are the plan's, divided by `planner.shard`; activations are the fold of
`planner.activations`; the device is a profile. How much more would fit is a search over the same sum.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from planner.activations import EAGER, FUSED, Moment, Place, peak, rules_of
from planner.collectives import sent as sent_between
from planner.engines import SERVING
from planner.engines.capacity import Asked
from planner.engines.flags_named import named, untold
from planner.engines.serving import Reserve, added, exact, rest
from planner.errors import PlanError
from planner.model import Model
from planner.offload import NOTHING, Offload, divide
from planner.precision import Precision
from planner.shard import Parallel, Share, depth, device_shares, legal, legal_tp, stages
from planner.shard import notes as shard_notes
from planner.workload import Workload

if TYPE_CHECKING:
    from planner.plan import Plan
    from profiles.hardware import Hardware

MOST = 2**40
"""Sequences, or tokens, beyond which nothing is searched: unlimited."""


class Device(NamedTuple):
    """What one device of a pipeline stage holds, in bytes; `count` of them hold as much.

    Attributes:
        stage: 0 is the first. count: equal devices. layers: executed by it.
        weights, cache: stored. activations: at their peak, and where. runtime: context, libraries and collectives.
        limit: what all of it may be; room: what the cache may be, where an engine sets memory aside for it.
        host: weights and caches that stand in the host's memory for it.
    """

    stage: int
    count: int  # type: ignore[assignment]  # not the method that tuples have
    layers: int
    weights: int
    cache: int
    activations: Moment
    runtime: int
    limit: int
    room: int | None = None
    host: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.activations.alive_bytes + self.runtime

    @property
    def headroom(self) -> int:
        """Bytes that are left; below 0: it doesn't fit."""
        return self.limit - self.total if self.room is None else self.room - self.cache


MOST_DEVICES = 2**16


def on_hardware(
    made: Plan, model: Model, work: Workload, precision: Precision, name: str | Path, sizes: dict[str, int | None],
    offload: Offload = NOTHING,
) -> Plan:  # fmt: skip
    """Return the plan with what hardware adds to it.

    Args:
        made: the plan so far. model, work, precision: that it was made of.
        name: of a profile, or its file. sizes: gpus, tp, pp, ep, dp, cp, as given. offload: to the host's memory.

    Raises:
        PlanError: no such profile, or the model can't be spread so.
    """
    from profiles.hardware import hardware  # noqa: PLC0415

    profile = hardware(str(name))
    parallel, notes = spread(model, **sizes)
    section, basis = memory(model, work, precision, parallel, profile, offload)
    notes += shard_notes(model, parallel)
    if problem := legal(model, parallel, precision) or untold(model.engine.name, parallel):
        notes.append(f"engines refuse it: {problem}")
    if offload != NOTHING:
        notes.append("what stands in the host's memory is read from there; activations are counted as without that")
    notes += [f"{profile.title}: {note}" for note in profile.notes]
    notes += section.get("engine", {}).get("notes", [])
    described = made.model | {"notes": [*made.model["notes"], *notes]}
    sent, why = sent_between(model, work, precision, parallel)
    return made._replace(model=described, memory=section, collectives=sent, basis=made.basis | basis | why)


def spread(
    model: Model, gpus: int | None, tp: int | None, pp: int | None, ep: int | None, dp: int | None, cp: int | None
) -> tuple[Parallel, list[str]]:
    """Return the sizes to plan with; where only a number of devices is given, the widest legal tp, and stages for the rest.

    Raises:
        PlanError: they contradict each other, or the model can't be spread so.
    """
    notes: list[str] = []
    if max(gpus or 1, (tp or 1) * (pp or 1) * (dp or 1) * (cp or 1)) > MOST_DEVICES:
        raise PlanError(
            f"more than {MOST_DEVICES:,} devices", where="--gpus, --tp, --pp, --dp, --cp", fix="choose fewer"
        )
    given = [size for size in (tp, pp, dp, cp) if size is not None]
    asked = Parallel(tp or 1, pp or 1, ep or 1, dp or 1, cp or 1)
    if gpus is not None and not given:
        widest = max(size for size in legal_tp(model, asked) if gpus % size == 0)
        if "tp" not in named(model.engine.name).flags:
            widest = 1
        if gpus // widest > max(depth(model), 1):
            raise PlanError(
                f"found {gpus}, but {model.name} spreads over at most tp {widest} x pp {depth(model)}",
                where="--gpus", fix="say how with --tp, --pp and --dp",
            )  # fmt: skip
        asked = asked._replace(tp=widest, pp=gpus // widest)
        if gpus > 1:
            notes.append(f"{gpus} devices: --tp {widest} --pp {gpus // widest} chosen; say how with --tp, --pp, --dp")
    elif gpus is not None and asked.devices != gpus:
        rest, left = divmod(gpus, asked.devices)
        if dp is not None or left:
            raise PlanError(
                f"found {gpus}, but tp {asked.tp} x pp {asked.pp} x dp {asked.dp} x cp {asked.cp} are {asked.devices} devices",
                where="--gpus", fix="let their product be the number of devices",
            )  # fmt: skip
        asked = asked._replace(dp=rest)
        notes.append(f"{gpus} devices: --dp {rest} copies chosen")
    problem = legal(model, asked)
    if problem:
        raise problem
    return asked, notes


def devices(
    model: Model, work: Workload, precision: Precision, parallel: Parallel, hardware: Hardware,
    reserves: tuple[Reserve, ...] = (), offload: Offload = NOTHING,
) -> tuple[Device, ...]:  # fmt: skip
    """Return what the devices hold, one entry for the equal ones of each pipeline stage.

    Args:
        model, work, precision, parallel, hardware: what is held, and where.
        reserves: what an engine sets aside on each stage, which then replaces all but the cache.
        offload: to the host's memory.
    """
    shares = divide(model, device_shares(model, precision, work, parallel), offload)
    limit = int(hardware.usable_bytes.value)
    if reserves:
        return tuple(
            Device(
                share.stage, share.count, share.layers, each.size("weights"), int(share.cache_bytes * each.cached),
                Moment(each.said("activations"), each.size("activations")), each.size("runtime") + each.size("graphs"),
                limit, each.pool.value, host.weight_bytes + host.cache_bytes,
            )
            for (share, host), each in zip(shares, reserves, strict=True)
        )  # fmt: skip
    return tuple(
        Device(
            share.stage, share.count, share.layers, share.weight_bytes, share.cache_bytes,
            _activations(model, work, precision, parallel, share), hardware.process_bytes(exchanges=parallel.stage_devices > 1)[0], limit,
            host=host.weight_bytes + host.cache_bytes,
        )
        for share, host in shares
    )  # fmt: skip


def reserved(
    model: Model, work: Workload, precision: Precision, parallel: Parallel, hardware: Hardware,
    offload: Offload = NOTHING,
) -> tuple[Reserve, ...]:  # fmt: skip
    """Return what the model's engine sets aside on each stage before the first request; (): it isn't one that serves."""
    if model.engine.name not in SERVING:
        return ()
    found: tuple[Reserve, ...] = import_module(SERVING[model.engine.name]).reserve(
        model, work, precision, parallel, hardware
    )
    if offload == NOTHING:
        return found
    shares = divide(model, device_shares(model, precision, work, parallel), offload)
    return tuple(each.without(host.weight_bytes) for each, (_, host) in zip(found, shares, strict=True))


def _place(model: Model, parallel: Parallel, stage: int) -> Place:
    """Return which layers of the decoder a stage holds."""
    before = depth(model) - (decoder.depth if (decoder := model.stack("decoder")) else 0)
    part = stages(depth(model), parallel.pp)[stage]
    layers = range(max(part.start - before, 0), max(part.stop - before, 0)) if parallel.pp > 1 else None
    return Place(parallel, layers, stage == 0, stage == parallel.pp - 1)


def _activations(
    model: Model, work: Workload, precision: Precision, parallel: Parallel, share: Share, rules: Any = None
) -> Moment:
    return peak(model, work, precision, rules or rules_of(model.engine), _place(model, parallel, share.stage))


def memory(
    model: Model, work: Workload, precision: Precision, parallel: Parallel, hardware: Hardware,
    offload: Offload = NOTHING,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Return the JSON's section, of the fullest device and of all, and how its figures came about."""
    usable, capacity = int(hardware.usable_bytes.value), int(hardware.nameplate_bytes.value)
    reserves = reserved(model, work, precision, parallel, hardware, offload)
    held = devices(model, work, precision, parallel, hardware, reserves, offload)
    fullest = min(held, key=lambda device: device.headroom)

    def fits(some: Workload) -> bool:
        found = devices(model, some, precision, parallel, hardware, reserves, offload)
        return all(each.headroom >= 0 for each in found)

    def lengthened(tokens: int) -> Workload:
        generated = min(work.generate, tokens)
        return work._replace(prompt=tokens - generated, generate=generated, prefix=min(work.prefix, tokens - generated))

    section = {
        **_entry(fullest),
        "capacity": capacity,
        "usable": usable,
        "max_batch": most(lambda batch: fits(work._replace(batch=batch))),
        "max_context": _longest(model, lambda tokens: fits(lengthened(tokens))),
        "host_bytes": sum(each.host * each.count for each in held),
        "peak": fullest.activations.name,
        "hardware": hardware.name,
        "parallel": parallel._asdict() | {"devices": parallel.devices},
        "devices": [
            {"device": first + index, "stage": each.stage, "layers": each.layers, **_entry(each)}
            for first, each in zip(accumulate((d.count for d in held), initial=0), held, strict=False)
            for index in range(each.count)
        ],
    }
    basis = _basis(model, work, precision, parallel, hardware, fullest, section)
    if reserves:
        least = min(reserves, key=lambda each: each.pool.value)
        section["engine"] = set_aside(model, precision, parallel, least, section)
        if model.engine.longest_tokens is not None and section["engine"]["problem"]:
            section["fits"] = False
        basis |= _engine_basis(least, next(each for each in reserves if each.stage == fullest.stage), section)
    return section, basis


def _entry(device: Device) -> dict[str, Any]:
    return {
        "weights": device.weights,
        "cache": device.cache,
        "activations": device.activations.alive_bytes,
        "runtime": device.runtime,
        "host_bytes": device.host,
        "total": device.total,
        "fits": device.headroom >= 0,
        "headroom": device.headroom,
    }


def _capacity(
    model: Model, precision: Precision, parallel: Parallel, least: Reserve
) -> tuple[dict[str, Any] | None, str | None]:
    """Return what an engine makes of the cache that is left, and what it prints instead of starting."""
    engine = model.engine
    asked = {key: value for key, value in least.flags.items() if key in Asked._fields and value is not None}
    if least.pool.value <= 0:
        return None, least.problem or f"{engine.name} doesn't start: nothing is left for its cache"
    try:
        found: dict[str, Any] = import_module(SERVING[engine.name]).capacity(
            model,
            Asked(
                least.pool.value, engine.version, tp=parallel.tp, pp=parallel.pp, cache_dtype=precision.cache,
                dtype=precision.activations, **asked,
            ),
        )  # fmt: skip
    except PlanError as error:
        said = error.problem.partition(": ")[2] or error.problem
        return None, least.problem or f"{engine.name} doesn't start: {said}"
    return found, least.problem


def _remembers(model: Model) -> bool:
    return any(cache.owner for stack in model.stacks if stack.name == "decoder" for cache in stack.caches)


def refused(model: Model, precision: Precision, parallel: Parallel, reserves: tuple[Reserve, ...]) -> str | None:
    """Return why an engine doesn't start for the longest request that it was told to expect; None: it does, or wasn't told."""
    if model.engine.longest_tokens is None or not _remembers(model):
        return None
    return _capacity(model, precision, parallel, min(reserves, key=lambda each: each.pool.value))[1]


def set_aside(
    model: Model, precision: Precision, parallel: Parallel, least: Reserve, section: dict[str, Any]
) -> dict[str, Any]:
    """Return what an engine does with the device that leaves least for the cache: its sum, and what it makes of the rest."""
    engine = model.engine
    remembers = _remembers(model)
    capacity, problem = _capacity(model, precision, parallel, least) if remembers else (None, least.problem)
    taken = max(least.pool.value, 0) if least.takes is None else least.takes
    return {
        "name": engine.name,
        "version": engine.version,
        "stage": least.stage,
        "flags": least.flags,
        "budget": least.budget.value,
        **{name: part.value for name, part in (*least.parts.items(), *least.beside.items())},
        "counted": list(least.parts),
        "available_cache": least.pool.value,
        "cache": taken,
        "required": section["total"] - section["cache"] + min(section["cache"], max(least.pool.value, 0)),
        "reserved": taken + sum(part.value for part in (*least.parts.values(), *least.beside.values())),
        "starts": not problem and (capacity is not None or (least.pool.value >= 0 and not remembers)),
        "problem": problem,
        "notes": least.notes,
        "capacity": capacity,
    }


def _engine_basis(least: Reserve, fullest: Reserve, section: dict[str, Any]) -> dict[str, Any]:
    """Return how an engine's figures came about, on the device that leaves least, and those of the fullest device."""
    parts = {"engine.budget": least.budget, "engine.available_cache": least.pool}
    parts |= {f"engine.{name}": part for name, part in (least.parts | least.beside).items()}
    made, source = fullest.parts | fullest.beside, fullest.pool.source
    cache = exact(section["cache"], "", "")
    three = {
        "weights": made["weights"],
        "activations": made["activations"],
        "runtime": added({name: made[name] for name in ("runtime", "graphs") if name in made}, source),
    }
    headroom = rest(fullest.pool, {"cache": cache}, source)._replace(formula="the engine's cache - cache")
    parts |= {**three, "total": added(three | {"cache": cache}, source), "headroom": headroom}
    return {
        f"memory.{name}": _said(
            "formula", part.formula, part.source, part.low, part.high, verify="plan check LOGFILE --hardware NAME"
        )
        for name, part in parts.items()
    }


def most(fits: Callable[[int], bool]) -> int | None:
    """Return the largest whole number that fits, 0: not even 1; None: there is no limit below 2^40.

    `fits` must not become true again: all parts of the sum grow with it.
    """
    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        if high >= MOST:
            return None
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _longest(model: Model, fits: Callable[[int], bool]) -> int | None:
    """Return the most rows of each sequence, prompt and generated; at most a learned table's, or what the engine is started for."""
    found = most(fits)
    if (started := model.engine.longest_tokens) is not None:
        return started if found is None else min(found, started)
    if model.learned_positions and model.positions is not None and model.kind != "encoder-decoder":
        return model.positions if found is None else min(found, model.positions)
    return found


def _basis(
    model: Model, work: Workload, precision: Precision, parallel: Parallel, hardware: Hardware, fullest: Device,
    section: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    place = _place(model, parallel, fullest.stage)
    folds = [peak(model, work, precision, rules, place).alive_bytes for rules in (FUSED, EAGER)]
    active = fullest.activations.alive_bytes
    low, high = min(*folds, active), max(*folds, active)
    _, least, most_runtime = hardware.process_bytes(exchanges=parallel.stage_devices > 1)
    sure = fullest.weights + fullest.cache
    verify = f"plan verify --config {model.source or model.name} --device cuda"
    usable = hardware.usable_bytes
    room = usable.bounds[1:]
    total = (sure + low + least, sure + high + most_runtime)
    say = partial(_said, verify=verify)
    spread_over = f"over tp {parallel.tp}, pp {parallel.pp}, ep {parallel.ep}, dp {parallel.dp}, cp {parallel.cp}"
    found = {
        "weights": say("formula", f"weights.bytes {spread_over}", "planner/shard.py", fullest.weights, fullest.weights),
        "cache": say("formula", f"cache.bytes {spread_over}", "planner/shard.py", fullest.cache, fullest.cache),
        "activations": say(
            "formula",
            f"the most that is alive at once: {fullest.activations.name}, all prompt tokens at once; low: everything "
            "elementwise fused, high: one kernel for each operation (transformers, not compiled)",
            "planner/activations.py", low, high, verify="python -m pytest tests/test_activations.py",
        ),
        "host_bytes": say("formula", "weights and caches in the host's memory for all devices together", "planner/offload.py",
                          section["host_bytes"], section["host_bytes"]),
        "runtime": say("source", "context, kernels and libraries of the process, and collectives' buffers",
                       _runtime_source(hardware, parallel), least, most_runtime),
        "total": say("formula", "weights + cache + activations + runtime", "the four above", *total),
        "capacity": say("source", "the label", hardware.source(hardware.nameplate_bytes), None, None, verify=None),
        "usable": say("source", "what programs see of it", hardware.source(usable), *room, verify=None),
        "headroom": say("formula", "usable - total", "those two", room[0] - total[1], room[1] - total[0]),
        "max_batch": say("formula", "the largest --batch whose total is at most usable on every device, found by bisection",
                         "planner/memory.py", None, None),
        "max_context": say(
            "formula", "the largest --prompt + --generate, likewise, the generated tokens as given; positions of the config "
            "don't bound it, rows of a learned table do", "planner/memory.py", None, None,
        ),
    }  # fmt: skip
    assert found.keys() <= section.keys()
    return {f"memory.{key}": value for key, value in found.items()}


def _runtime_source(hardware: Hardware, parallel: Parallel) -> str:
    text = hardware.source(hardware.runtime_bytes)
    if parallel.stage_devices > 1 and hardware.collective_bytes:
        text += "; " + hardware.source(hardware.collective_bytes)
    return text


def _said(
    kind: str, formula: str, source: str, low: int | None, high: int | None, *, verify: str | None
) -> dict[str, Any]:
    return {"kind": kind, "formula": formula, "source": source, "low": low, "high": high, "verify": verify}
