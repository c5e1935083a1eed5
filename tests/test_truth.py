"""The whole corpus of records of the reference, where it lies beside the checkout; skipped where it doesn't."""

from __future__ import annotations

from typing import Any

import pytest

from planner.families import FAMILIES
from tests.oracle import truth

RECORDS = [record for record in truth.records() if record["model_type"] in FAMILIES]
MISSING = [
    pytest.param(None, marks=pytest.mark.skip("the corpus ../shared/truth is not beside this checkout"), id="corpus")
]


@pytest.mark.parametrize("record", RECORDS or MISSING, ids=lambda record: f"{record['kind']}-{record['name']}")
def test_a_record_of_the_corpus(record: dict[str, Any]) -> None:
    """Parameters, layers, active parameters, caches and FLOPs equal, but for what tests/oracle/exempt.py exempts."""
    assert list(truth.differences(record)) == []
