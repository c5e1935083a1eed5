"""Every family, predicted and run: parameters, caches, FLOPs, generation with a cache and without, logits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("torch", reason="the twin is a torch model")

from measure import library
from measure.twin_runner import WRONG_IN_LIBRARY
from measure.verify import verify
from planner.engines import ENGINES, IDEAL, TRANSFORMERS
from planner.errors import PlanError
from tests.measure.configs import BUNDLED, LLAMA, SMALL, T5

KEYS = {"name", "unit", "predicted", "measured", "difference", "kind", "tolerance", "verdict"}
LOGITS = "logits: largest difference from transformers"


def failed(found: Mapping[str, Any]) -> list[tuple[str, object, object]]:
    """Return what doesn't agree."""
    return [(q["name"], q["predicted"], q["measured"]) for q in found["quantities"] if q["verdict"] == "fail"]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave transformers out."""
    monkeypatch.setattr(library, "missing", lambda _family: "left out of this test")


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("engine", [IDEAL, TRANSFORMERS], ids=list(ENGINES))
@pytest.mark.parametrize("name", SMALL)
def test_counts_of_small_configs(name: str, engine: Any) -> None:
    """What is stored, kept and computed is what the description says, to the last integer."""
    found = verify(SMALL[name], full=True, engine=engine)
    assert failed(found) == []
    assert len(found["quantities"]) >= 8


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", BUNDLED)
def test_counts_of_shrunk_models(name: str) -> None:
    """The same for bundled models, made small."""
    found = verify(name, engine=IDEAL)
    assert failed(found) == []
    assert found["shrunk"] is True


@pytest.mark.oracle
@pytest.mark.parametrize("name", SMALL)
def test_logits_of_small_configs(name: str) -> None:
    """Every tensor has its counterpart in transformers' model, and with the same weights both compute the same."""
    pytest.importorskip("transformers", reason="judges the logits")
    found = verify(SMALL[name], full=True)
    assert failed(found) == []
    assert {q["name"]: q["verdict"] for q in found["quantities"]}[LOGITS] == "pass"


@pytest.mark.oracle
@pytest.mark.parametrize("name", BUNDLED)
def test_logits_of_shrunk_models(name: str) -> None:
    """The same for bundled models; families that transformers lacks or gets wrong say so."""
    pytest.importorskip("transformers", reason="judges the logits")
    found = verify(name)
    (logits,) = (q for q in found["quantities"] if q["name"] == LOGITS)
    foreign = found["family"] in library.FOREIGN | WRONG_IN_LIBRARY.keys()
    assert failed(found) == []
    assert logits["verdict"] == ("skipped" if foreign else "pass")
    assert bool(logits.get("reason")) is foreign


@pytest.mark.oracle
@pytest.mark.parametrize(
    "name",
    [
        "gpt2",
        "llama3-8b",
        "gemma2-2b",
        "mixtral-8x7b",
        "deepseek-v3",
        "t5-small",
        "flan-t5-small",
        "whisper-tiny",
        "bert-base",
    ],
)
def test_the_library_in_full_size(name: str) -> None:
    """Transformers' own model, without data: parameters by component, caches before and after a step, dense FLOPs."""
    pytest.importorskip("transformers", reason="is what is measured")
    found = verify(name, runner="transformers")
    assert failed(found) == []
    assert {q["verdict"] for q in found["quantities"]} == {"pass"}
    assert found["shrunk"] is False


@pytest.mark.usefixtures("alone")
def test_the_report() -> None:
    """The contract's keys are there, and all of it is JSON."""
    found = verify(LLAMA, full=True)
    assert found.keys() >= {"device", "runner", "versions", "quantities", "config", "shrunk", "seconds", "ok"}
    assert (found["device"], found["runner"], found["ok"]) == ("cpu", "twin", True)
    assert found["config"] == LLAMA
    for quantity in found["quantities"]:
        assert quantity.keys() - {"reason"} == KEYS
        assert quantity["verdict"] in {"pass", "fail", "skipped"}
    assert json.loads(json.dumps(found)) == found


@pytest.mark.usefixtures("alone")
def test_some_figures_by_hand() -> None:
    """One-layer T5 and Llama, from their definitions: nothing below is read off the planner."""
    llama = verify(LLAMA | dict(num_hidden_layers=1), full=True, engine=IDEAL)
    measured = {q["name"]: q["measured"] for q in llama["quantities"]}
    d, f, v, h, n, k, b, p = 48, 80, 64, 6, 2, 8, 2, 13
    layer = d * h * k + 2 * d * n * k + h * k * d + 3 * d * f
    assert measured["params.total"] == layer + 2 * d + d + 2 * v * d
    assert measured["cache.parts.self after 13 tokens"] == b * p * 2 * n * k * 4
    assert measured["flops.prefill.dense"] == 2 * b * p * (layer + d * v) + 2 * 2 * b * h * k * p * p
    assert measured["flops.prefill.total"] == 2 * b * (p * layer + d * v) + 2 * 2 * b * h * k * p * (p + 1) // 2
    t5 = verify(T5 | dict(num_layers=1), full=True)
    cross = {q["name"]: q["measured"] for q in t5["quantities"]}["cache.parts.cross after 14 tokens"]
    assert cross == b * 11 * 2 * 4 * 10 * 4


def test_what_is_refused() -> None:
    """An unknown runner, a device that isn't there, a family that the library lacks."""
    with pytest.raises(PlanError, match="no runner 'nvidia'"):
        verify(LLAMA, runner="nvidia")
    with pytest.raises(PlanError, match="torch can't use 'nowhere'"):
        verify(LLAMA, device="nowhere")
    with pytest.raises(PlanError, match="transformers"):
        verify("palm-8b", runner="transformers")


def test_a_config_that_the_library_objects_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are verified all the same; the logits say why they are not."""

    def build(*_: Any, **__: Any) -> None:
        raise PlanError("transformers can't build it")

    monkeypatch.setattr(library, "missing", lambda _family: "")
    monkeypatch.setattr(library, "build", build)
    found = verify(LLAMA, full=True)
    assert found["ok"] is True
    (logits,) = (q for q in found["quantities"] if q["name"] == LOGITS)
    assert (logits["verdict"], logits["measured"], logits["reason"]) == (
        "skipped",
        None,
        "transformers can't build it.",
    )


@pytest.mark.usefixtures("alone")
def test_a_run_that_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A description whose shapes don't fit together ends in a message, not in a traceback."""
    monkeypatch.setattr(
        "measure.twin_runner.make_inputs", lambda *_: (_ for _ in ()).throw(RuntimeError("shapes\ndiffer"))
    )
    with pytest.raises(PlanError, match="the run broke off: RuntimeError: shapes differ"):
        verify(LLAMA, full=True)
