"""The default config of every model_type equals the stored reference; and the stored reference equals a live one."""

from __future__ import annotations

import pytest

from planner.errors import PlanError
from planner.families import FAMILIES
from tests.oracle import ledger
from tests.oracle.store import TYPES, load_types

RECORDS = load_types()
PLANNED = sorted(name for name, record in RECORDS.items() if name in FAMILIES and "error" not in record)
SAMPLE = ("albert", "distilbert", "gemma3_text", "opt", "qwen3_moe", "speech_to_text")
LARGEST_BYTES = 900_000


@pytest.mark.parametrize("name", PLANNED)
def test_a_default_config_equals_the_reference(name: str) -> None:
    """Parameters, layers, buffers, caches and FLOPs, but for the ledger's exemptions; a refusal stands on the page."""
    try:
        found = list(ledger.type_checks(RECORDS[name]))
    except PlanError as error:
        pytest.skip(f"refused: {error.problem}")
    assert [check for check in found if not check.exact and not check.reason] == []


def test_the_stored_types_are_sorted_and_small() -> None:
    """A line a type in order, so that a changed record is a changed line."""
    assert list(RECORDS) == sorted(RECORDS)
    assert TYPES.stat().st_size < LARGEST_BYTES


@pytest.mark.oracle
def test_every_type_of_the_library_is_stored() -> None:
    """Nothing of the four mappings is left out."""
    pytest.importorskip("torch", reason="the oracle needs torch")
    pytest.importorskip("transformers", reason="the oracle needs transformers")
    from tests.oracle import types  # noqa: PLC0415

    assert list(RECORDS) == types.model_types()


@pytest.mark.oracle
@pytest.mark.parametrize("name", SAMPLE)
def test_a_stored_type_equals_a_live_one(name: str) -> None:
    """What transformers builds, keeps and runs today is what is stored."""
    pytest.importorskip("torch", reason="the oracle needs torch")
    pytest.importorskip("transformers", reason="the oracle needs transformers")
    from tests.oracle import types  # noqa: PLC0415

    assert types.record_type(name) == RECORDS[name]
