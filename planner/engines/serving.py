"""What programs that serve have in common: flags by their own names, and memory that is set aside before the first request.

Each has a module with `Flags` (a NamedTuple: names, defaults), `engine`, `capacity` (`planner.engines.capacity`) and
`reserve`, which returns a `Reserve`: a sum that ends in the bytes for its cache, and what it makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from planner.errors import PlanError
from planner.workload import Workload, smallest

if TYPE_CHECKING:
    from planner.model import Model
    from planner.shard import Parallel

GIB = 2**30

TRUTHS = {"true": True, "1": True, "false": False, "0": False}

LARGEST = 2**40

F = TypeVar("F")
V = TypeVar("V", bound=tuple[int, ...])


class Part(NamedTuple):
    """One line of the sum: bytes, the least and most that they may be, and how they came about."""

    value: int
    low: int
    high: int
    formula: str
    source: str


class Reserve(NamedTuple):
    """What an engine does with the memory of one device, the one that leaves least for the cache.

    Attributes:
        stage: of the pipeline, of that device. flags: after defaults, by the engine's names.
        budget: what it allows itself to use. parts: what is taken from that, by name ("weights", "activations", "runtime").
        beside: what it uses without counting it, by name ("graphs").
        pool: left for the cache, the least and most that it may be; below 0: it doesn't start.
        capacity: what `planner.engine_capacity` says of the pool, None: not even one request fits.
        problem: what it prints instead of starting. notes: what a user should know.
        takes: bytes that its caches take at once; None: all of the pool.
        cached: what the device holds of caches, as a share of what its stage's layers need (types of its own, layers elsewhere).
    """

    stage: int
    flags: dict[str, Any]
    budget: Part
    parts: dict[str, Part]
    beside: dict[str, Part]
    pool: Part
    capacity: dict[str, Any] | None
    problem: str | None
    notes: list[str]
    cached: Fraction = Fraction(1)
    takes: int | None = None

    def size(self, name: str) -> int:
        """Return the bytes of a part, counted or not; 0 where there is none."""
        part = self.parts.get(name) or self.beside.get(name)
        return part.value if part else 0

    def without(self, weights: int) -> Reserve:
        """Return it with so many bytes of weights elsewhere."""

        def changed(part: Part, more: int) -> Part:
            return part._replace(value=part.value + more, low=part.low + more, high=part.high + more)

        parts = self.parts | {"weights": changed(self.parts["weights"], -weights)}
        return self._replace(parts=parts, pool=changed(self.pool, weights))

    def said(self, name: str) -> str:
        """Return how a part came about."""
        part = self.parts.get(name) or self.beside.get(name)
        return part.formula if part else ""


def exact(value: int, formula: str, source: str) -> Part:
    """Return a part that is known to the byte."""
    return Part(value, value, value, formula, source)


def bounded(bounds: tuple[int, int, int], formula: str, source: str) -> Part:
    """Return a part of which the least and the most are known too."""
    return Part(*bounds, formula, source)


def added(parts: Mapping[str, Part], source: str) -> Part:
    """Return the sum of parts."""
    each = parts.values()
    return Part(
        sum(part.value for part in each), sum(part.low for part in each), sum(part.high for part in each),
        " + ".join(parts), source,
    )  # fmt: skip


def rest(budget: Part, parts: Mapping[str, Part], source: str) -> Part:
    """Return what is left of a budget."""
    taken = added(parts, source)
    return Part(
        budget.value - taken.value, budget.low - taken.high, budget.high - taken.low, f"budget - {' - '.join(parts)}", source
    )  # fmt: skip


def step(model: Model, work: Workload, parallel: Parallel, tokens: int) -> Workload:
    """Return the workload of one step of so many tokens, as an engine tries it before it takes its cache."""
    alone = smallest(model)
    return alone._replace(batch=max(parallel.dp, 1), prompt=tokens, source=work.source)


def known(found: V | None, text: str, oldest: tuple[int, ...], newest: tuple[int, ...], program: str) -> V:
    """Return a version whose rules are known; None: the text isn't a version at all.

    Raises:
        PlanError: it isn't between the oldest and the newest; as many numbers of it count as these have.
    """
    if found is None or not oldest <= found[: len(oldest)] <= newest:
        spans = " to ".join(".".join(map(str, each)) for each in (oldest, newest))
        raise PlanError(
            f"found {text!r}, known are {spans}", where=f"version of {program}", fix="choose the nearest of these"
        )
    return found


def flags_of(model: Model, kind: type[F]) -> F:
    """Return the `Flags` that the model's engine is started with, all defaults where it was loaded with another."""
    own = model.engine.flags
    return own if isinstance(own, kind) else kind()


def parse(kind: type[F], engine: str, settings: Sequence[str]) -> F:
    """Return an engine's `Flags`, with settings as "name=value" texts; dashes and a leading "--" are allowed.

    What a value may be follows from the annotation: int is a whole number from 1, float a share from 0 to 1, bool is true or
    false, str is anything.

    Raises:
        PlanError: no such flag, or a value that it can't have.
    """
    types = kind.__annotations__
    found: dict[str, Any] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        flag = name.strip().removeprefix("--").replace("-", "_")
        value = value.strip().strip('"')
        if not equals or flag not in types:
            raise PlanError(
                f"found {text!r}, {engine} has here: {', '.join(types)}", where="--engine-set", fix="say FLAG=VALUE, with one of these"
            )  # fmt: skip
        if value not in {"None", "null"}:
            found[flag] = _value(flag, value, str(types[flag]))
    return kind(**found)


def _value(flag: str, text: str, kind: str) -> Any:
    wanted = "a word"
    if "bool" in kind:
        if text.lower() in TRUTHS:
            return TRUTHS[text.lower()]
        wanted = "true or false"
    elif "int" in kind:
        if re.fullmatch(r"\d{1,13}", text) and 0 < int(text) <= LARGEST:
            return int(text)
        wanted = "a whole number from 1"
    elif "float" in kind:
        if re.fullmatch(r"\d*\.?\d+", text) and 0 < float(text) <= 1:
            return float(text)
        wanted = "a share above 0, at most 1"
    elif text:
        return text
    raise PlanError(f"found {text!r}, {wanted} is needed", where=f"--engine-set {flag}", fix="correct it")
