"""Will it fit, and if not, what makes it: a search over plans of the same model with one thing changed.

Nothing is computed here: every answer is a plan's memory section, or the same sum over devices that it is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from planner.api import MODEL_OPTIONS, load, plan
from planner.errors import PlanError
from planner.memory import devices, memory, reserved, spread
from planner.model import Model
from planner.precision import Precision, element_bits, resolve, weight_bytes
from planner.shard import Parallel, legal, legal_sizes
from planner.workload import Workload, workload
from profiles.hardware import Hardware
from profiles.hardware import hardware as profile_named

WEIGHTS = ("bf16", "fp8", "int8", "awq-int4-g128", "q4_k_m")
"""Weight formats that are compared, beside the one asked for."""

CACHES = ("bf16", "fp8")
"""Cache dtypes that are compared, beside the one asked for."""

SMALLER_WEIGHTS = ("fp8", "awq-int4-g128")
"""Weight formats that are tried as a change, in this order."""

MOST_DEVICES = 64
"""Devices up to which is searched."""

WORK = (
    "batch", "prompt", "generate", "source", "prefix", "global_tokens", "capacity_factor", "images", "audio_seconds",
)  # fmt: skip
WIDTHS = ("dtype", "weights", "cache_dtype", "state_dtype")
SIZES = ("gpus", "tp", "pp", "ep", "dp", "cp")


class Question(NamedTuple):
    """What is asked, ready to be asked again with something changed.

    Attributes:
        model, hardware: whether the one fits on the other. options: of `plan`, as given, without the model's.
    """

    model: Model
    hardware: Hardware
    options: Mapping[str, Any]

    def changed(self, change: Mapping[str, Any]) -> Question:
        """Return the question with other options."""
        return self._replace(options={**self.options, **change})

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
    def problem(self) -> PlanError | None:
        """Why engines refuse to spread these weights so; None: they don't."""
        return legal(self.model, self.parallel, self.precision)

    def section(self) -> dict[str, Any]:
        """Return the memory section of its plan."""
        return memory(self.model, self.work, self.precision, self.parallel, self.hardware)[0]

    def fits(self) -> bool:
        """Return whether it can be spread so, and fits."""
        try:
            work, precision, parallel = self.work, self.precision, self.parallel
        except PlanError:
            return False
        return not legal(self.model, parallel, precision) and self._holds(work, precision, parallel)

    def _holds(self, work: Workload, precision: Precision, parallel: Parallel) -> bool:
        reserves = reserved(self.model, work, precision, parallel, self.hardware)
        held = devices(self.model, work, precision, parallel, self.hardware, reserves)
        return all(each.headroom >= 0 for each in held)

    def layouts(self) -> Iterator[Parallel]:
        """Yield the legal ways to spread one copy of the model in which it fits, fewest devices first, then widest tp."""
        work, precision = self.work, self.precision
        least = weight_bytes(self.model, precision) // int(self.hardware.usable_bytes.value)
        for gpus in range(max(least, 1), MOST_DEVICES + 1):
            for size in reversed(legal_sizes(self.model, gpus, precision)):
                parallel = Parallel(size.tp, size.pp)
                if size.dp == 1 and not size.problem and self._holds(work, precision, parallel):
                    yield parallel


class Change(NamedTuple):
    """One change that makes it fit.

    Attributes:
        option: the command's, whose value changes. value: of it. text: a sentence with all that is to be typed.
        options: of `plan`, that change.
    """

    option: str
    value: int | str
    text: str
    options: dict[str, Any]


def fit(
    config: str | Path | Mapping[str, Any] | Model, *, hardware: str | Path | None, **options: Any
) -> dict[str, Any]:
    """Return whether a model fits as asked, on how many devices it does, in which formats, and what makes it fit.

    Args:
        config: path, bundled name, dict or loaded model.
        hardware: name of a profile, or its file.
        **options: of `plan`.

    Returns:
        fits; asked: the plan's memory section, bytes; fewest_devices: {gpus, tp, pp, max_batch, max_context}, None: more
        than 64; formats, cache_dtypes: rows for the asked devices; smallest_change: {option, value, text, options}, None:
        it fits or no single change is enough; changes: all that are, smallest first; notes.

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
    if problem := asked.problem:
        notes.append(f"engines refuse it: {problem}")
    fits = made.memory["fits"] and not problem
    layouts = asked.layouts()
    fewest = next(layouts, None)
    if fewest is None:
        notes.append(f"it fits on no number of {asked.hardware.name} up to {MOST_DEVICES}, by --tp and --pp")
    elif fewest.pp > 1 and (flat := next((each for each in layouts if each.pp == 1), None)):
        notes.append(f"without stages of layers it takes {flat.devices} devices: --gpus {flat.devices} --tp {flat.tp}")
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
        "formats": [_row(asked, "weights", name) for name in _names(WEIGHTS, made.precision["weights"])],
        "cache_dtypes": [_row(asked, "cache_dtype", name) for name in _names(CACHES, made.precision["cache"])],
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
    return {"gpus": parallel.devices, "tp": parallel.tp, "pp": parallel.pp} | {
        key: found[key] for key in ("max_batch", "max_context")
    }


def _sizes(parallel: Parallel) -> dict[str, int | None]:
    """Return the options of one copy, spread so; the others as by default."""
    return dict.fromkeys(SIZES) | {"gpus": parallel.devices, "tp": parallel.tp, "pp": parallel.pp}


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
    """Yield the single changes that make it fit: a shorter context, a narrower cache, narrower weights, other devices."""
    for tried in (*_shorter(asked, held), *_narrower_cache(asked), *_narrower_weights(asked)):
        if asked.changed(tried.options).fits():
            yield tried
            if tried.option == "--weights":
                break
    if fewest is not None:
        options = _sizes(fewest)
        said = f"--gpus {fewest.devices} --tp {fewest.tp}" + f" --pp {fewest.pp}" * (fewest.pp > 1)
        others = [f"--{name}" for name in SIZES[2:] if asked.options.get(name) and options[name] in {None, 1}]
        without = f", without {' and '.join(others)}" if others else ""
        yield Change(
            "--gpus", fewest.devices, f"It fits on {fewest.devices} x {asked.hardware.name}: {said}{without}.", options
        )


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
    options = {"prompt": prompt, "generate": generate}
    said = f"--prompt {prompt}" + f" --generate {generate}" * asked.model.generates
    yield Change("--prompt", prompt, f"It fits with a context of {longest:,} tokens: {said}.", options)


def _narrower_cache(asked: Question) -> Iterator[Change]:
    if element_bits("fp8") < element_bits(asked.precision.cache):
        yield Change("--cache-dtype", "fp8", "It fits with an fp8 cache: --cache-dtype fp8.", {"cache_dtype": "fp8"})


def _narrower_weights(asked: Question) -> Iterator[Change]:
    now = weight_bytes(asked.model, asked.precision)
    for name in SMALLER_WEIGHTS:
        tried = asked.changed({"weights": name})
        if weight_bytes(asked.model, tried.precision) < now:
            yield Change("--weights", name, f"It fits with {name} weights: --weights {name}.", {"weights": name})
