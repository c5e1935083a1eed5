"""Devices as data: what each holds, moves and computes, every figure with its source, date and confidence.

Loaded only where hardware is asked for: pydantic checks bundled profiles and those of users alike.
"""

from __future__ import annotations

import json
from datetime import date as Date  # noqa: N812 - a field is called date
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from planner.errors import PlanError

FOLDER = Path(__file__).parent / "hardware"
LARGEST_FILE_BYTES = 1_000_000

Confidence = Literal["read", "recalled"]
"""Whether the figure was read off the source, or recalled and attributed to it."""


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Source(_Form):
    """Where figures stand.

    Attributes:
        text: a document, a file or a log. date: of it, or of the day it was read. confidence: "read" or "recalled".
    """

    text: str = Field(min_length=10)
    date: Date
    confidence: Confidence


class Figure(_Form):
    """One number of a device.

    Attributes:
        value: in the field's unit. source: key of the profile's `sources`. low, high: what others saw.
    """

    value: Annotated[int | float, Field(gt=0)]
    source: str
    low: Annotated[int | float, Field(gt=0)] | None = None
    high: Annotated[int | float, Field(gt=0)] | None = None

    @property
    def bounds(self) -> tuple[int, int, int]:
        """The value, the least and the most that was seen, as whole numbers."""
        return int(self.value), int(self.low or self.value), int(self.high or self.value)

    @model_validator(mode="after")
    def _ordered(self) -> Figure:
        if not (self.low or self.value) <= self.value <= (self.high or self.value):
            raise ValueError(f"low {self.low}, value {self.value}, high {self.high} are not in order")
        return self


class Hardware(_Form):
    """One device.

    Attributes:
        name: the file's. title: for people. aliases: further names. kind: a card, memory shared with a CPU, or a CPU.
        sources: where the figures stand, by the names that they use.
        nameplate_bytes: on the label, whose GB are GiB (memory chips come in powers of two).
        usable_bytes: what a program sees as the total, after the driver and error correction.
        runtime_bytes: that a process takes beside tensors (context, kernels, libraries' workspaces).
        collective_bytes: that a process takes more where devices exchange tensors.
        bandwidth_bytes_per_second: of its memory.
        flops_per_second: peaks of dense matrix products by dtype, 2 per multiply-add (int8: operations).
        link_bytes_per_second: per device and direction, by kind ("nvlink", "pcie", ...).
        processors: streaming multiprocessors or the like. l2_bytes: last cache on the chip. power_watts: its limit.
        notes: what a user should know.
    """

    name: str = Field(pattern=r"^[a-z0-9.-]+$")
    title: str
    aliases: tuple[str, ...] = ()
    kind: Literal["gpu", "unified", "cpu"] = "gpu"
    architecture: str = ""
    sources: dict[str, Source]
    nameplate_bytes: Figure
    usable_bytes: Figure
    runtime_bytes: Figure
    collective_bytes: Figure | None = None
    bandwidth_bytes_per_second: Figure
    flops_per_second: dict[Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4"], Figure]
    link_bytes_per_second: dict[str, Figure] = {}
    processors: Figure | None = None
    l2_bytes: Figure | None = None
    power_watts: Figure | None = None
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Hardware:
        for path, figure in self.figures():
            if figure.source not in self.sources:
                known = ", ".join(self.sources)
                raise ValueError(f"{path}.source: found {figure.source!r}, sources are {known}")
        if self.usable_bytes.value > self.nameplate_bytes.value:
            raise ValueError("usable_bytes is more than nameplate_bytes")
        if not self.flops_per_second:
            raise ValueError("flops_per_second has no dtype")
        return self

    def process_bytes(self, *, exchanges: bool) -> tuple[int, int, int]:
        """Return what a process takes beside tensors, `exchanges`: with other devices: the value, the least and the most."""
        parts = [self.runtime_bytes, *([self.collective_bytes] if exchanges and self.collective_bytes else [])]
        value, low, high = (sum(bounds) for bounds in zip(*(each.bounds for each in parts), strict=True))
        return value, low, high

    def figures(self) -> list[tuple[str, Figure]]:
        """Return all figures with their paths."""
        found: list[tuple[str, Figure]] = []
        for field in type(self).model_fields:
            value = getattr(self, field)
            if isinstance(value, Figure):
                found.append((field, value))
            elif isinstance(value, dict):
                found += [(f"{field}.{key}", inner) for key, inner in value.items() if isinstance(inner, Figure)]
        return found

    def source(self, figure: Figure) -> str:
        """Return where a figure stands, in words."""
        found = self.sources[figure.source]
        return f"{found.text} ({found.date}, {found.confidence})"


def names() -> list[str]:
    """Return the names of all bundled profiles, sorted."""
    return sorted(entry.stem for entry in FOLDER.iterdir() if entry.suffix == ".json")


def canonical(name: str) -> str:
    """Return a name as files spell it: "H100_SXM" is "h100-sxm"."""
    return "-".join(name.strip().lower().removesuffix(".json").replace("_", " ").replace("-", " ").split())


def hardware(name: str) -> Hardware:
    """Return the profile of a file, or a bundled one by its name or an alias.

    Raises:
        PlanError: there is none, or the file isn't a profile; the message names file and field.
    """
    path = Path(name)
    try:
        own = path.is_file()
    except (OSError, ValueError):
        own = False
    if own:
        return _read(path)
    wanted = canonical(name)
    if wanted in names():
        return _bundled(wanted)
    if wanted in _aliases():
        return _bundled(_aliases()[wanted])
    if path.suffix == ".json" and len(path.parts) > 1:
        raise PlanError("no such file", where=f"--hardware {name}", fix="`plan hardware` lists bundled profiles")
    from difflib import get_close_matches  # noqa: PLC0415

    near = get_close_matches(wanted, [*names(), *_aliases()], n=3, cutoff=0.5)
    hint = f"; near: {', '.join(near)}" if near else ""
    raise PlanError(
        f"no profile of {name!r}{hint}",
        where="--hardware",
        fix="`plan hardware` lists bundled ones; a file of the same form may be named instead",
    )


@cache
def _bundled(name: str) -> Hardware:
    return _read(FOLDER / f"{name}.json")


@cache
def _aliases() -> dict[str, str]:
    """Return the names of bundled profiles by their aliases."""
    return {alias: name for name in names() for alias in _bundled(name).aliases}


def _read(path: Path) -> Hardware:
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise PlanError("too large for a hardware profile", where=str(path), fix="name another file")
        return Hardware.model_validate(_parsed(path))
    except OSError as error:
        raise PlanError(f"can't be read: {error.strerror}", where=str(path), fix="name another file") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        found = first.get("input")
        shown = "" if isinstance(found, dict | list | Hardware) else f", found {found!r}"
        problem = first["msg"].removeprefix("Value error, ")
        more = f" (and {error.error_count() - 1} more)" * (error.error_count() > 1)
        raise PlanError(
            f"{problem[:1].lower()}{problem[1:]}{shown}{more}",
            where=f"{path}, {field}" if field else str(path),
            fix="correct it; `plan hardware h100-sxm --json` shows a whole profile",
        ) from error


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise PlanError(f"is not JSON: {error}", where=str(path), fix="correct it, or name another file") from error
