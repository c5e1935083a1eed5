"""Will it fit, and if not, what makes it: a search over plans of the same model with one thing changed.

Nothing is computed here: every answer is a plan's memory section, or the same sum over devices that it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from planner.api import MODEL_OPTIONS, load, plan
from planner.engines import engine_by_name
from planner.engines.flags_named import OWN, Named, named, untold
from planner.errors import PlanError
from planner.memory import Device, devices, memory, refused, reserved, spread
from planner.model import Model
from planner.offload import EXPERTS, GIB, NOTHING, Offload, divide, expert_layers, offload_of
from planner.precision import Precision, element_bits, resolve, weight_bytes
from planner.shard import Parallel, Share, depth, device_shares, legal, legal_sizes, legal_tp
from planner.shard import notes as shard_notes
from planner.workload import Workload, workload
from profiles.hardware import Hardware
from profiles.hardware import hardware as profile_named

MOST_DEVICES = 64
"""Devices up to which is searched."""

LARGEST_SHARE = 98
"""Percent of a device that an engine is given at most."""

WORK = (
    "batch", "prompt", "generate", "source", "prefix", "global_tokens", "capacity_factor", "images", "audio_seconds",
)  # fmt: skip
WIDTHS = ("dtype", "weights", "cache_dtype", "state_dtype")
SIZES = ("gpus", "tp", "pp", "ep", "dp", "cp")
MOVED = ("offload_experts", "offload_layers", "offload_gb")


class Question(NamedTuple):
    """What is asked, ready to be asked again with something changed.

    Attributes:
        model, hardware: whether the one fits on the other. options: of `plan`, as given, without the model's.
    """

    model: Model
    hardware: Hardware
    options: Mapping[str, Any]

    def changed(self, change: Mapping[str, Any]) -> Question:
        """Return the question with other options; "engine_set" are further flags of the engine."""
        rest = {name: value for name, value in change.items() if name != "engine_set"}
        model = self._flagged(change["engine_set"]) if "engine_set" in change else self.model
        return self._replace(model=model, options={**self.options, **rest})

    def _flagged(self, further: Mapping[str, Any]) -> Model:
        engine = self.model.engine
        flags = {name: value for name, value in (engine.flags._asdict() | dict(further)).items() if value is not None}
        made = engine_by_name(f"{engine.name}@{engine.version}", [f"{name}={value}" for name, value in flags.items()])
        return replace(self.model, engine=made)

    def _given(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: self.options[name] for name in names if self.options.get(name) is not None}

    @property
    def work(self) -> Workload:
        """The workload, after defaults."""
        return workload(self.model, **self._given(WORK))[0]

    @property
    def precision(self) -> Precision:
        """The widths, after defaults."""
        return resolve(self.model, **self._given(WIDTHS))

    @property
    def parallel(self) -> Parallel:
        """The sizes, after defaults."""
        return spread(self.model, **{name: self.options.get(name) for name in SIZES})[0]

    @property
    def offload(self) -> Offload:
        """What the host's memory holds."""
        return offload_of(*(self.options.get(name) for name in MOVED))

    @property
    def named(self) -> Named:
        """How the engine is told."""
        return named(self.model.engine.name)

    @property
    def problem(self) -> PlanError | None:
        """Why engines refuse to spread these weights so, or can't be told; None: neither."""
        return legal(self.model, self.parallel, self.precision) or untold(self.model.engine.name, self.parallel)

    def section(self) -> dict[str, Any]:
        """Return the memory section of its plan."""
        return memory(self.model, self.work, self.precision, self.parallel, self.hardware, self.offload)[0]

    def fits(self) -> bool:
        """Return whether it can be spread so, and fits."""
        try:
            work, precision, parallel = self.work, self.precision, self.parallel
        except PlanError:
            return False
        return not self.problem and self._holds(work, precision, parallel)

    def _holds(self, work: Workload, precision: Precision, parallel: Parallel) -> bool:
        shares = divide(self.model, device_shares(self.model, precision, work, parallel), self.offload)
        usable = self.hardware.usable_bytes.value
        if any(share.weight_bytes + share.cache_bytes > usable for share, _ in shares):
            return False  # sooner found than activations
        return self.held(work, precision, parallel)[1]

    def held(self, work: Workload, precision: Precision, parallel: Parallel) -> tuple[tuple[Device, ...], bool]:
        """Return what a device of each stage holds, and whether memory suffices for that."""
        reserves = reserved(self.model, work, precision, parallel, self.hardware, self.offload)
        held = devices(self.model, work, precision, parallel, self.hardware, reserves, self.offload)
        fits = all(each.headroom >= 0 for each in held)
        return held, fits and not (reserves and refused(self.model, precision, parallel, reserves))

    def layouts(self, *, staged: bool = True) -> Iterator[Parallel]:
        """Yield the legal ways to spread the model in which it fits, fewest devices first, then plainest, then widest tp.

        Copies, ranks of rows and ranks of experts are tried beside tp and stages, where the engine can be told so. Copies
        are of use only if there are as many sequences. Stages are left out where not `staged`.
        """
        work, precision = self.work, self.precision
        bounds = _bounds(self.model, work, precision, self.offload)
        usable = int(self.hardware.usable_bytes.value)
        experts = any(place.leaf.work == "experts" for place in self.model.places)
        for gpus in range(max(bounds.weights // (usable + bounds.moved), 1), MOST_DEVICES + 1):
            for parallel in _ways(gpus, work.batch, experts=experts, rows=self.model.generates):
                if bounds.of(parallel) > usable or (parallel.pp > 1 and not staged) or not self.named.allows(parallel):
                    continue
                if not legal(self.model, parallel, precision) and self._holds(work, precision, parallel):
                    yield parallel


class Bounds(NamedTuple):
    """What devices hold at least.

    Attributes:
        weights, routed, cache: bytes of the whole model's weights, of those of routed experts, and of its caches.
        moved: bytes that each device may move to the host's memory.
    """

    weights: int
    routed: int
    cache: int
    moved: int

    def of(self, parallel: Parallel) -> int:
        """Return what the fullest device holds at least."""
        ranks = max(parallel.tp, parallel.ep)
        held = (self.weights - self.routed) // parallel.tp + self.routed // ranks
        return held // parallel.pp + self.cache // parallel.devices - self.moved


def _bounds(model: Model, work: Workload, precision: Precision, offload: Offload) -> Bounds:
    shares = device_shares(model, precision, work, Parallel())
    ((share, _),) = divide(model, shares, offload._replace(bytes=0))
    routed = sum(piece.bytes for piece in share.weights if piece.part == EXPERTS)
    return Bounds(share.weight_bytes, routed, share.cache_bytes, offload.bytes)


def _ways(gpus: int, sequences: int, *, experts: bool, rows: bool) -> list[Parallel]:
    """Return the ways to use so many devices, those with the fewest kinds of ranks beside tp and stages first."""
    sizes = [n for n in range(1, gpus + 1) if gpus % n == 0]
    found = []
    for tp, dp, cp in product(sizes, sizes, sizes):
        if gpus % (tp * dp * cp) or dp > sequences or (cp > 1 and not rows):
            continue
        one = Parallel(tp, gpus // (tp * dp * cp), 1, dp, cp)
        found += [one._replace(ep=ep) for ep in ({1, tp, one.stage_devices} if experts else {1})]
    return sorted(found, key=lambda p: ((p.ep > 1) + (p.dp > 1) + (p.cp > 1), p.cp, p.dp, -p.tp, p.ep))


class Change(NamedTuple):
    """One change that makes it fit.

    Attributes:
        option: the command's, whose value changes. value: of it. text: a sentence with all that is to be typed.
        options: of `plan`, that change. flags: the engine's own, None: it is not started with flags, or it is a matter of
            the checkpoint.
    """

    option: str
    value: int | float | str
    text: str
    options: dict[str, Any]
    flags: str | None = None


def fit(
    config: str | Path | Mapping[str, Any] | Model, *, hardware: str | Path | None, **options: Any
) -> dict[str, Any]:
    """Return whether a model fits as asked, on how many devices it does, in which formats, and what makes it fit.

    Args:
        config: path, bundled name, dict or loaded model.
        hardware: name of a profile, or its file.
        **options: of `plan`.

    Returns:
        fits; asked: the plan's memory section, bytes; fewest_devices: {gpus, tp, pp, ep, dp, cp, max_batch, max_context},
        None: more than 64; legal_tp: all, with one copy and one stage; layouts: all (tp, pp) of the asked number of devices; formats, cache_dtypes: rows for the asked
        devices; smallest_change: {option, value, text, options, flags}, None: it fits or no single change is enough;
        changes: all that are, smallest first; notes.

    Raises:
        PlanError: anything that a person can get wrong.

    >>> fit("llama2-70b", hardware="a100-80gb")["smallest_change"]["option"]
    '--weights'
    """
    described = {name: options.pop(name) for name in MODEL_OPTIONS if name in options}
    if isinstance(config, Model) and described:
        raise PlanError(f"{', '.join(described)} must be given to load()", where="fit(model)")
    model = config if isinstance(config, Model) else load(config, **described)
    made = plan(model, hardware=hardware, **options)
    if made.memory is None:
        raise PlanError("missing", where="--hardware", fix="name it: `plan hardware` lists some")
    asked = Question(model, profile_named(str(hardware)), options)
    notes = list(made.model["notes"])
    fits = made.memory["fits"] and not asked.problem
    fewest = next(asked.layouts(), None)
    if fewest is None:
        notes.append(f"it fits on no number of {asked.hardware.name} up to {MOST_DEVICES}, however it is spread")
    elif fewest.pp > 1 and (flat := next(asked.layouts(staged=False), None)):
        notes.append(f"without stages of layers it takes {flat.devices} devices: {OWN.said(_given(_sizes(flat)))}")
    changes = [] if fits else list(_changes(asked, made.memory, fewest))
    if not fits and not changes:
        notes.append("no single change makes it fit")
    return {
        "model": made.model["name"],
        "hardware": made.memory["hardware"],
        "workload": made.workload,
        "precision": made.precision,
        "fits": fits,
        "asked": made.memory,
        "fewest_devices": _fewest(asked, fewest),
        "legal_tp": _legal_tp(asked),
        "layouts": list(_layouts(asked)),
        "formats": [_row(asked, "weights", name) for name in _names(asked.named.compared, made.precision["weights"])],
        "cache_dtypes": [
            _row(asked, "cache_dtype", name) for name in _names(asked.named.cached, made.precision["cache"])
        ],
        "smallest_change": changes[0]._asdict() if changes else None,
        "changes": [each._asdict() for each in changes],
        "notes": notes,
    }


def _names(compared: tuple[str, ...], asked: str) -> list[str]:
    return list(dict.fromkeys([*(() if asked in compared else (asked,)), *compared]))


def _fewest(asked: Question, parallel: Parallel | None) -> dict[str, Any] | None:
    if parallel is None:
        return None
    found = asked.changed(_sizes(parallel)).section()
    return (
        {"gpus": parallel.devices}
        | {key: getattr(parallel, key) for key in SIZES[1:]}
        | {key: found[key] for key in ("max_batch", "max_context")}
    )


def _sizes(parallel: Parallel) -> dict[str, int | None]:
    """Return the options that spread it so; those that are 1, but tp and pp, as by default."""
    more = {name: getattr(parallel, name) for name in SIZES[3:]}
    return {"gpus": parallel.devices, "tp": parallel.tp, "pp": parallel.pp} | {
        name: size if size > 1 else None for name, size in more.items()
    }


def _given(sizes: Mapping[str, int | None]) -> dict[str, Any]:
    """Return the sizes that are to be typed."""
    return {name: size for name, size in sizes.items() if size and (size > 1 or name in {"gpus", "tp"})}


def _legal_tp(asked: Question) -> list[int]:
    """Return the numbers of ranks that divide the model and the asked weights, and that the engine can be told."""
    tried = (Parallel(tp) for tp in legal_tp(asked.model))
    return [each.tp for each in tried if asked.named.allows(each) and not legal(asked.model, each, asked.precision)]


def _layouts(asked: Question) -> Iterator[dict[str, Any]]:
    """Yield what the stages hold for every (tp, pp) whose product divides the asked number of devices; copies take the rest."""
    work, precision = asked.work, asked.precision
    for size in legal_sizes(asked.model, asked.parallel.devices, precision):
        parallel = Parallel(size.tp, size.pp, dp=size.dp)
        row: dict[str, Any] = {"tp": size.tp, "pp": size.pp, "dp": size.dp, "problem": None, "fits": False}
        if problem := size.problem or untold(asked.model.engine.name, parallel):
            yield row | {"problem": str(problem), "copies_of_cache": None, "stages": [], "notes": []}
            continue
        held, fits = asked.held(work, precision, parallel)
        shares = device_shares(asked.model, precision, work, parallel)
        yield row | {
            "fits": fits,
            "copies_of_cache": max(
                (piece.group // piece.parts for share in shares for piece in share.caches), default=1
            ),
            "stages": [
                {
                    "layers": share.layers,
                    "weights": each.weights,
                    **{part: _part_bytes(share, part) for part in ("embedding", "head")},
                    "cache": each.cache,
                    "total": each.total,
                }
                for share, each in zip(shares, held, strict=True)
            ],
            "notes": shard_notes(asked.model, parallel),
        }


def _part_bytes(share: Share, part: str) -> int:
    return sum(piece.bytes for piece in share.weights if piece.part == part)


def _row(asked: Question, option: str, name: str) -> dict[str, Any]:
    """Return what the asked devices hold with another format: bytes of the fullest, and how much more; why not, if not."""
    now = asked.precision.weights if option == "weights" else asked.precision.cache
    tried = asked if name == now else asked.changed({option: name})
    part = "cache" if option == "cache_dtype" else "weights"
    found: dict[str, Any] = {option: name, "asked": name == now, "bytes": None, "fits": False}
    found |= {"max_batch": None, "max_context": None, "problem": None}
    try:
        if problem := tried.problem:
            return found | {"problem": str(problem)}
        held = tried.section()
    except PlanError as problem:
        return found | {"problem": str(problem)}
    return found | {"bytes": held[part], **{key: held[key] for key in ("fits", "max_batch", "max_context")}}


def _changes(asked: Question, held: dict[str, Any], fewest: Parallel | None) -> Iterator[Change]:
    """Yield the single changes that make it fit, those that change least of what is asked and served first.

    A larger share of the device, a shorter context, fewer sequences, a narrower cache, narrower weights (the widest that fit), weights in the host's
    memory (fewest bytes first), other devices.
    """
    yield from _larger_share(asked)
    yield from _started_shorter(asked)
    for tried in (*_shorter(asked, held), *_fewer(asked, held), *_narrower_cache(asked)):
        if asked.changed(tried.options).fits():
            yield tried
    yield from (each for each in _first(_narrower_weights(asked), asked))
    yield from _offloaded(asked, held)
    if fewest is not None:
        options = _sizes(fewest)
        others = [f"--{name}" for name in SIZES[2:] if asked.options.get(name) and options[name] in {None, 1}]
        without = f", without {' and '.join(others)}" if others else ""
        where = f"on {fewest.devices} x {asked.hardware.name}"
        yield _change(asked, "gpus", options, where, {key: _given(options).get(key) for key in SIZES[1:]}, without)


def _first(changes: Iterator[Change], asked: Question) -> Iterator[Change]:
    """Yield the first that makes it fit."""
    found = next((each for each in changes if asked.changed(each.options).fits()), None)
    if found:
        yield found


def _change(
    asked: Question, option: str, options: dict[str, Any], what: str, engines: Mapping[str, Any], without: str = ""
) -> Change:
    """Return a change of a plan's options, said as the engine is told.

    Args:
        asked: what it changes. option: of `options`, whose value changes. what: it fits with, or on.
        engines: the same values under the names of `engines.flags_named`, None: not to be said. without: what to leave out.
    """
    flags: str | None = None
    if asked.named is not OWN:
        one = {name for name in SIZES if not asked.options.get(name)}  # that are 1 already
        told = {name: value for name, value in engines.items() if value is not None and (value != 1 or name not in one)}
        flags = asked.named.said(told) or None
    typed = flags or OWN.said(_given(options) if option == "gpus" else options)
    name = f"--{option.replace('_', '-')}"
    return Change(name, options[option], f"It fits {what}: {typed}{without}.", options, flags)


def _larger_share(asked: Question) -> Iterator[Change]:
    """Yield the smallest share of the device, in percent, that an engine must have; what it doesn't count fits beside it."""
    flag, model = asked.named.share, asked.model
    if not flag or asked.problem or model.engine.flags is None:
        return
    now = getattr(model.engine.flags, flag) or 0
    room = asked.hardware.usable_bytes.value

    def enough(percent: int) -> bool:
        tried = asked.changed({"engine_set": {flag: percent / 100}})
        made = reserved(tried.model, tried.work, tried.precision, tried.parallel, tried.hardware, tried.offload)
        beside = max(sum(part.value for part in each.beside.values()) for each in made)
        return tried.fits() and room * percent // 100 + beside <= room

    found = next((percent for percent in range(int(100 * now) + 1, LARGEST_SHARE + 1) if enough(percent)), None)
    if found is not None:
        share = found / 100
        options = {"engine_set": {flag: share}}
        told = asked.named.said({"share": f"{share:g}"})
        yield Change(
            "--engine-set", f"{flag}={share:g}", f"It fits with a larger share of the device: {told}.", options, told
        )


def _started_shorter(asked: Question) -> Iterator[Change]:
    """Yield the longest request that an engine can be told to expect instead of one that it doesn't start for."""
    flag, told, work = asked.named.length, asked.model.engine.longest_tokens, asked.work
    if not flag or told is None:
        return

    def starts(tokens: int) -> bool:
        return asked.changed({"engine_set": {flag: tokens}}).fits()

    if work.context >= told or not starts(work.context):
        return
    low, high = work.context, told
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if starts(middle) else (low, middle)
    said = asked.named.said({"context": low})
    text = f"It fits, started for requests of {low:,} tokens: {said}."
    yield Change("--engine-set", f"{flag}={low}", text, {"engine_set": {flag: low}}, said)


def _shorter(asked: Question, held: dict[str, Any]) -> Iterator[Change]:
    """Yield the longest context that fits, with as many generated tokens as asked, or fewer where they alone don't fit."""
    work, longest = asked.work, held["max_context"]
    if longest is None or not 1 < longest < work.context:
        return
    generate = min(work.generate, longest - 1)
    added = work.images * work.image_tokens + work.audio_tokens
    prompt = longest - generate - added
    if prompt < 1:
        return
    options = {"prompt": prompt} | ({"generate": generate} if asked.model.generates else {})
    told = {"context": longest, "rows": longest * work.batch}
    yield _change(asked, "prompt", options, f"with a context of {longest:,} tokens", told)


def _fewer(asked: Question, held: dict[str, Any]) -> Iterator[Change]:
    """Yield the most sequences that fit."""
    most, work = held["max_batch"], asked.work
    if most and most < work.batch:
        told = {"rows": most * work.context, "batch": most}
        yield _change(asked, "batch", {"batch": most}, f"with {most:,} sequence{'s' * (most > 1)} at once", told)


def _narrower_cache(asked: Question) -> Iterator[Change]:
    for name, flags in asked.named.caches.items():
        if element_bits(name) < element_bits(asked.precision.cache):
            yield Change(
                "--cache-dtype", name, f"It fits with {_article(name)} cache: {flags}.", {"cache_dtype": name},
                flags if asked.named is not OWN else None,
            )  # fmt: skip


def _article(name: str) -> str:
    return f"a {name}" if name.startswith("q") else f"an {name}"


def _narrower_weights(asked: Question) -> Iterator[Change]:
    now = weight_bytes(asked.model, asked.precision)
    for name, flags in asked.named.weights.items():
        tried = asked.changed({"weights": name})
        if weight_bytes(asked.model, tried.precision) < now:
            typed = flags or "a checkpoint in that format"
            own = flags if flags and asked.named is not OWN else None
            yield Change("--weights", name, f"It fits with {name} weights: {typed}.", {"weights": name}, own)


def _offloaded(asked: Question, held: dict[str, Any]) -> Iterator[Change]:
    """Yield the least of experts, of layers and of bytes that the host's memory must hold, fewest bytes first."""
    if asked.offload != NOTHING or asked.problem:
        return
    tried = [make(asked, held) for make in (_some_experts, _some_layers, _some_bytes)]
    found = [(asked.changed(each.options).section()["host_bytes"], each) for each in tried if each]
    for size, each in sorted(found, key=lambda pair: pair[0]):
        yield each._replace(text=f"{each.text[:-1]} ({size / GIB:,.1f} GiB in all).")


def _can(asked: Question, *names: str) -> bool:
    return any(name in asked.named.flags for name in names)


def _some_experts(asked: Question, _: dict[str, Any]) -> Change | None:
    if not _can(asked, "offload_experts", "cpu_experts"):
        return None
    layers = expert_layers(device_shares(asked.model, asked.precision, asked.work, asked.parallel))
    count = least(len(layers), lambda n: asked.changed({"offload_experts": n}).fits())
    if count is None:
        return None
    what = f"with the routed experts of {count} of {len(layers)} layers in the host's memory"
    return _change(asked, "offload_experts", {"offload_experts": count}, what, {"cpu_experts": layers[count - 1] + 1})


def _some_layers(asked: Question, _: dict[str, Any]) -> Change | None:
    layers = depth(asked.model)
    if not _can(asked, "offload_layers", "gpu_layers"):
        return None
    count = least(layers, lambda n: asked.changed({"offload_layers": n}).fits())
    if count is None:
        return None
    what = f"with {count} of {layers} layers in the host's memory"
    return _change(asked, "offload_layers", {"offload_layers": count}, what, {"gpu_layers": layers + 1 - count})


def _some_bytes(asked: Question, held: dict[str, Any]) -> Change | None:
    short = -min(each["headroom"] for each in held["devices"])
    amount = -(-short * 10 // GIB) / 10
    options = {"offload_gb": amount}
    if short <= 0 or not _can(asked, "offload_gb") or not asked.changed(options).fits():
        return None
    return _change(asked, "offload_gb", options, "with some weights in the host's memory", options)


def least(most: int, enough: Callable[[int], bool]) -> int | None:
    """Return the smallest whole number from 1 to `most` that is enough; None: not even that.

    `enough` must not become false again.
    """
    if most < 1 or not enough(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
