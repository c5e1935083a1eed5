"""The same formulas over a grid of (batch, context) points: a million in less than a second, on NumPy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.errors import PlanError
from planner.model import Model
from planner.precision import element_bits, resolve
from planner.workload import Pass

if TYPE_CHECKING:
    import pandas as pd

MOST_POINTS = 10_000_000
INT64_LIMIT = 2**63


def sweep(model: Model, batch: Any, context: Any, *, cache_dtype: str | None = None) -> dict[str, Any]:
    """Return decode FLOPs and cache bytes at every point.

    Args:
        model: from `load`; a decoder-only model.
        batch, context: equal NumPy int arrays, sequences and tokens in each cache before the step.
        cache_dtype: of cache rows; None: as the config says.

    Returns:
        batch, context, cache_bytes, decode_flops, decode_dense_flops (arrays), and exact: False where counts exceed 2^63
        and float64 stands in, with a relative error of at most 1e-15 for each term.

    Raises:
        PlanError: the model isn't decoder-only, or cache rows don't fill whole bytes.
    """
    import numpy as np

    decoder = model.stack("decoder")
    if decoder is None or model.kind != "decoder":
        raise PlanError(f"{model.family} is no decoder-only model", where="sweep", fix="plan its points one by one")
    bits = element_bits(resolve(model, cache_dtype=cache_dtype).cache)

    def figures(b: Any, n: Any) -> dict[str, Any]:
        step = Pass(b, 1, n, "decode")
        stored = sum(times * cache.elements(n, model.engine) for cache, times in decoder.caches.items() if cache.owner)
        return {
            "cache_bytes": b * stored * bits.numerator // (8 * bits.denominator),
            "decode_flops": sum(decoder.flops(step, model.engine).values()),
            "decode_dense_flops": sum(decoder.flops(step, model.engine, dense=True).values()),
        }

    corner = figures(int(batch.max()), int(context.max()))
    exact = max(corner.values()) * 8 * bits.denominator * bits.numerator < INT64_LIMIT
    kind = np.int64 if exact else np.float64
    found = figures(batch.astype(kind), context.astype(kind))
    return {"batch": batch, "context": context, **found, "exact": exact}


def grid(text: str, option: str) -> list[int]:
    """Return the whole numbers that "1,2,4" or "1024:8192:1024" (both ends included) names.

    Raises:
        PlanError: it is neither, or names none or too many.
    """
    try:
        if ":" in text:
            first, last, step = (int(part) for part in text.split(":"))
            if step < 1:
                raise ValueError(step)
            numbers = range(first, last + 1, step)
        else:
            numbers = [int(part) for part in text.split(",")]  # type: ignore[assignment]
    except ValueError as error:
        raise PlanError(f"found {text!r}, allowed are 1,2,4 or 1024:8192:1024", where=option) from error
    if not 0 < len(numbers) <= MOST_POINTS or min(numbers) < 1:
        raise PlanError(
            f"found {len(numbers)} numbers, allowed are 1 to {MOST_POINTS:,}, each at least 1", where=option
        )
    return list(numbers)


def table(model: Model, batches: list[int], contexts: list[int], *, cache_dtype: str | None = None) -> pd.DataFrame:
    """Return the sweep of all pairs of batch and context, one row a point; the column `exact` says whether counts are.

    Raises:
        PlanError: too many points, or the reports extra isn't installed.
    """
    try:
        import numpy as np
        import pandas as pd
    except ModuleNotFoundError as error:
        raise PlanError(
            f"{error.name} is not installed", where="plan sweep", fix="install it: pip install 'planformer[reports]'"
        ) from error
    if (points := len(batches) * len(contexts)) > MOST_POINTS:
        raise PlanError(
            f"found {points:,} points, allowed are {MOST_POINTS:,}", where="plan sweep", fix="choose a coarser grid"
        )
    b, n = (each.ravel() for each in np.meshgrid(np.array(batches), np.array(contexts), indexing="ij"))
    return pd.DataFrame(sweep(model, b, n, cache_dtype=cache_dtype))
