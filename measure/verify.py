"""`plan verify`: the description against what runs, quantity by quantity.

The runner "twin" builds a plain torch model from the description, small unless `full`, and runs it. The runner
"transformers" builds that library's model in full size without data, and reads parameters, caches and FLOPs off it.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from measure import library_runner, twin_runner
from measure.shrink import shrink
from planner.engines import TRANSFORMERS, Engine
from planner.errors import PlanError
from planner.frontend import describe, find

RUNNERS = ("twin", "transformers")


def verify(
    config: str | Path | Mapping[str, Any],
    *,
    runner: str = "twin",
    device: str = "cpu",
    full: bool = False,
    engine: Engine = TRANSFORMERS,
) -> dict[str, Any]:
    """Return every quantity of a config as predicted and as measured.

    Args:
        config: path, bundled name or dict.
        runner: "twin" or "transformers".
        device: where the twin runs: "cpu", "cuda" ...
        full: the twin in full size; else shrunk to a model of the same kind.
        engine: whose rules the twin's caches follow; "transformers" always has its own.

    Raises:
        PlanError: the config can't be described or built, or the runner or device isn't there.
    """
    start = time.perf_counter()
    values = dict(find(config).values)
    if runner not in RUNNERS:
        raise PlanError(f"no runner {runner!r}; allowed are {', '.join(RUNNERS)}", where="--runner")
    _check_device(device)
    shrunk = runner == "twin" and not full
    used = shrink(values) if shrunk else values
    model = describe(used, engine=engine if runner == "twin" else TRANSFORMERS)
    run = twin_runner.quantities if runner == "twin" else library_runner.quantities
    try:
        quantities = list(run(model, used, device))
    except (RuntimeError, IndexError) as error:
        raise PlanError(
            f"the run broke off: {type(error).__name__}: {' '.join(str(error).split())[:200]}",
            where=f"{find(config).name}, --runner {runner}",
            fix="the description, or the small shape made of it, doesn't fit together; please report it",
        ) from error
    return {
        "name": find(config).name,
        "device": _device_name(device) if runner == "twin" else "meta",
        "runner": runner,
        "versions": versions(),
        "family": model.family,
        "class": model.architecture,
        "notes": list(model.notes),
        "engine": model.engine.name,
        "config": used,
        "shrunk": shrunk,
        "quantities": [quantity.to_dict() for quantity in quantities],
        "ok": all(quantity.verdict != "fail" for quantity in quantities),
        "seconds": round(time.perf_counter() - start, 3),
    }


def versions() -> dict[str, str | None]:
    """Return the versions of what ran; None for what is not installed."""
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in ("planformer", "torch", "transformers")},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _check_device(device: str) -> None:
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise PlanError(
            f"torch can't use {device!r}: {first}", where="--device", fix="use cpu, or install torch for it"
        ) from error


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device
