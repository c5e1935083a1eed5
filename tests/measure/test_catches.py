"""A verification that can't fail says nothing: each kind of error in a description or a fold is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the twin is a torch model")

from measure import library
from measure import verify as verification
from planner.blocks import Attend, Attention, Block, Cache, FeedForward, Leaf, MixtureOfExperts, Norm, Table
from planner.engines import Engine
from planner.frontend import describe
from planner.masks import Mask
from planner.model import Layer, Model, Run, Sublayer
from tests.measure.configs import LLAMA, SMALL

Change = Callable[[Any], Any]


def changed(model: Model, kind: type[Block], change: Change) -> Model:
    """Return a model with all blocks of a type changed."""

    def block(one: Any) -> Any:
        return change(one) if isinstance(one, kind) else one

    def layer(one: Layer) -> Layer:
        subs = tuple(Sublayer(block(s.block), block(s.before), block(s.after), block(s.join)) for s in one.sublayers)
        return Layer(subs, one.parallel, block(one.before))

    stacks = tuple(
        replace(
            stack,
            front=tuple(map(block, stack.front)),
            runs=tuple(Run(run.count, layer(run.layer), run.repeats) for run in stack.runs),
            back=tuple(map(block, stack.back)),
        )
        for stack in model.stacks
    )
    return replace(model, stacks=stacks)


ERRORS: list[tuple[str, type[Block], Change]] = [
    ("llama", Norm, lambda b: replace(b, epsilon=1e-2)),
    ("llama", Norm, lambda b: replace(b, kind="layer")),
    ("llama", FeedForward, lambda b: replace(b, activation="gelu")),
    ("llama", FeedForward, lambda b: replace(b, up_bias=True)),
    ("llama", Attention, lambda b: replace(b, rope=None)),
    ("llama", Attention, lambda b: replace(b, rope=replace(b.rope, theta=1e3))),
    ("llama", Attention, lambda b: replace(b, rope=replace(b.rope, interleaved=True))),
    ("llama", Attention, lambda b: replace(b, scale=1.0)),
    ("llama", Attention, lambda b: replace(b, kv_heads=3)),
    ("llama", Attention, lambda b: replace(b, softcap=1.0)),
    ("llama", Table, lambda b: replace(b, scale=2.0)),
    ("mistral window", Attention, lambda b: replace(b, mask=Mask(window=6))),
    ("mixtral window", MixtureOfExperts, lambda b: replace(b, scoring="softmax")),
    ("mixtral window", MixtureOfExperts, lambda b: replace(b, top_k=2)),
    ("deepseek_v2 groups", MixtureOfExperts, lambda b: replace(b, groups=1)),
    ("deepseek_v3 plain", MixtureOfExperts, lambda b: replace(b, normalized=True)),
    ("t5 untied", Attention, lambda b: replace(b, relative_distance=4)),
    ("bart scaled", Table, lambda b: replace(b, offset=1) if b.index == "position" else b),
]


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("name", "kind", "change"), ERRORS, ids=[f"{n} {k.__name__} {i}" for i, (n, k, _) in enumerate(ERRORS)]
)
def test_errors_of_meaning(name: str, kind: type[Block], change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong trait shows in the logits, a wrong shape in the tensors."""
    pytest.importorskip("transformers", reason="judges the logits")
    monkeypatch.setattr(verification, "describe", lambda *a, **k: changed(describe(*a, **k), kind, change))
    found = verification.verify(SMALL[name], full=True)
    assert found["ok"] is False
    assert {q["name"].split(":")[0].split(" ")[0] for q in found["quantities"] if q["verdict"] == "fail"} <= {
        "logits",
        "tensors",
    }


def _more_flops(self: Leaf) -> int:
    return 2 * self.rate * self.copies * self.n_in * self.n_out if self.work else 0


def _no_margin(self: Cache, tokens: int, _engine: Engine) -> int:
    return min(tokens, self.window or tokens)


def _wide(self: Attend, *_: Any) -> int:
    return 2 * self.qk + self.v


FOLDS: list[tuple[type, str, Any, str]] = [
    (Leaf, "flops_per_row", property(_more_flops), "flops.prefill.dense"),
    (Cache, "stored", _no_margin, "cache.parts.self after 13 tokens"),
    (Attend, "widths", _wide, "flops.decode.dense"),
    (Mask, "_causal", lambda _self, n: n * (n + 1) // 2, "flops.prefill.total"),
    (Mask, "_causal_summed", lambda _self, n: n * (n + 1) * (n + 2) // 6, "generation.uncached.flops"),
]


@pytest.mark.parametrize(("owner", "name", "wrong", "quantity"), FOLDS, ids=[f[3] for f in FOLDS])
def test_errors_of_folds(owner: type, name: str, wrong: Any, quantity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong formula shows in the figure that it makes."""
    monkeypatch.setattr(library, "missing", lambda _family: "left out of this test")
    config = SMALL["mixtral window"]
    assert verification.verify(config, full=True)["ok"]
    monkeypatch.setattr(owner, name, wrong)
    found = verification.verify(config, full=True)
    assert quantity in {q["name"] for q in found["quantities"] if q["verdict"] == "fail"}


def test_a_counter_that_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twin whose products the counter misses doesn't pass."""
    monkeypatch.setattr(library, "missing", lambda _family: "left out of this test")
    monkeypatch.setattr("measure.twin_runner.FlopCounterMode.get_total_flops", lambda _self: 0)
    assert verification.verify(LLAMA, full=True)["ok"] is False
