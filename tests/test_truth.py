"""The whole corpus of records of the reference, where it lies beside the checkout; skipped where it doesn't."""

from __future__ import annotations

from typing import Any

import pytest

from planner.families import FAMILIES
from tests.oracle import truth
from tests.oracle.ledger import EXEMPT

RECORDS = [record for record in truth.records() if record["model_type"] in FAMILIES]
MISSING = [pytest.param(None, marks=pytest.mark.skip("the corpus ../shared/truth is not beside this checkout"), id="corpus")]


@pytest.mark.parametrize("record", RECORDS or MISSING, ids=lambda record: f"{record['kind']}-{record['name']}")
def test_a_record_of_the_corpus(record: dict[str, Any]) -> None:
    """Parameters, layers, active parameters and caches equal; FLOPs too, but for the ledger's exemptions."""
    found = list(truth.differences(record, flops=record["model_type"] not in EXEMPT))
    assert found == []
