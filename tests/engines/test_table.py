"""docs/engine-logs.md against what it is made of, and the tolerances that it promises; skipped where ../shared isn't beside the checkout."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.table import PAGE, Line, lines_of, page, rows_given

ROWS = rows_given()
NOT_GIVEN = [pytest.param(None, marks=pytest.mark.skip("../shared/cases is not beside this checkout"), id="rows")]

PERCENT = {"tokens": 0.1, "blocks": 0.1, "weights": 1.0}
EXACT = {
    "cache of a token",
    "block of the pool",
    "concurrency, of the printed blocks",
    "tokens, of the printed blocks",
    "starts",
}
HUNDREDTH = 0.01
"""GiB that memory is printed to: 3 GiB are known to 0.2 %."""


@pytest.mark.skipif(not ROWS, reason="../shared/cases is not beside this checkout")
def test_the_page_is_up_to_date() -> None:
    """`python -m tests.engines.table` writes it."""
    assert page(ROWS) == PAGE.read_text()


@pytest.mark.parametrize("row", ROWS or NOT_GIVEN, ids=lambda row: row["id"])
def test_a_row(row: dict[str, Any]) -> None:
    """In rows that are consistent, figures are within what was promised; in all, each that isn't has a reason."""
    lines = lines_of(row)
    assert lines
    for line in lines:
        assert line.why or line.verdict not in {"differs", "not compared"}, line
        if row["verdict"] == "consistent":
            assert promised(line, row), line


def promised(line: Line, row: dict[str, Any]) -> bool:
    """Return whether a line keeps the promise of its quantity."""
    if line.quantity in EXACT or (line.quantity == "concurrency" and line.predicted is not None):
        return line.verdict == "exact"
    if line.quantity in PERCENT and line.percent is not None:
        memory = next(
            (value for key, value in row["printed"].items() if key in {"available_kv_gib", "kv_cache_gib"}), None
        )
        open_percent = 100 * HUNDREDTH / 2 / memory if isinstance(memory, float) and line.quantity != "weights" else 0.0
        return abs(line.percent) <= PERCENT[line.quantity] + open_percent
    if line.quantity == "cache memory, from flags" and row["version"] == "v0.19.0":
        return line.verdict == "agrees"
    return True
