"""Every bundled model equals the stored reference, integer by integer; and the stored reference equals a live one."""

from __future__ import annotations

import os

import pytest

import profiles
from tests.oracle import ledger
from tests.oracle.store import load, load_types

RECORDS = load()
SAMPLE = (
    "llama3-8b",
    "gpt2",
    "mixtral-8x7b",
    "t5-small",
    "deepseek-v2-lite",
    "gemma3-270m",
    "whisper-tiny",
    "bert-base",
)


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_a_bundled_model_equals_the_reference(name: str) -> None:
    """Parameters, layers, buffers, caches and FLOPs, but for the ledger's exemptions."""
    differing = [check for check in ledger.checks(name, RECORDS[name]) if not check.exact and not check.reason]
    assert differing == []


def test_every_bundled_model_has_a_record_or_a_derivation() -> None:
    """Nothing is bundled unchecked."""
    derived = {"gpt3-175b", *(name for name in profiles.model_names() if _family(name) in ledger.DERIVED)}
    assert set(profiles.model_names()) - set(RECORDS) == derived


def test_the_coverage_page_is_up_to_date() -> None:
    """docs/coverage.md is what the ledger writes now (python -m tests.oracle.ledger)."""
    assert ledger.PAGE.read_text() == ledger.page(RECORDS, load_types())


@pytest.mark.oracle
@pytest.mark.parametrize("name", sorted(RECORDS) if os.environ.get("PLANFORMER_ORACLE") == "all" else SAMPLE)
def test_the_stored_reference_equals_a_live_one(name: str) -> None:
    """What transformers builds, keeps and runs today is what is stored."""
    pytest.importorskip("torch", reason="the oracle needs torch")
    pytest.importorskip("transformers", reason="the oracle needs transformers")
    from tests.oracle import reference  # noqa: PLC0415

    live = reference.record(reference.bundled()[name])
    assert {k: v for k, v in live.items() if k != "versions"} == {
        k: v for k, v in RECORDS[name].items() if k != "versions"
    }


def _family(name: str) -> str:
    return str((profiles.model(name) or {})["config"]["model_type"])
