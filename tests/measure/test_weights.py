# ruff: noqa: E402  (torch is looked for first)
"""The pairing of tensors is strict: nothing may be left over on either side, nor have another shape."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the twin is a torch model")

from measure import library
from measure.build import build
from measure.weights import RULES, copy_weights, pairs
from planner.engines import IDEAL, TRANSFORMERS
from planner.errors import PlanError
from planner.families import FAMILIES
from planner.frontend import describe
from tests.measure.configs import LLAMA, SMALL, T5

pytestmark = pytest.mark.oracle


@pytest.fixture(autouse=True)
def _library() -> None:
    pytest.importorskip("transformers", reason="is what is paired")


def both(
    config: dict[str, Any], described: dict[str, Any] | None = None, engine: Any = TRANSFORMERS
) -> tuple[Any, Any]:
    """Return a twin, of another description where given, and transformers' model."""
    model = describe(described or config, engine=engine)
    return build(model), library.build(config, model.architecture)


def test_fused_and_transposed_tensors() -> None:
    """GPT-2's fused Conv1D becomes three matrices [out, in]."""
    twin, other = both(SMALL["gpt2 inner"])
    library.randomize(other)
    paired = {pair.name: pair.sources for pair in copy_weights(twin, other)}
    fused = other.transformer.h[1].attn.c_attn
    attention = twin.get_submodule("decoder.layers.1.self_attn")
    assert paired["decoder.layers.1.self_attn.k_proj.weight"] == ("transformer.h.1.attn.c_attn.weight",)
    assert torch.equal(attention.k_proj.weight, fused.weight[:, 48:96].T)
    assert torch.equal(attention.v_proj.bias, fused.bias[96:])


def test_experts_kept_one_by_one() -> None:
    """Switch's experts are stacked in order."""
    twin, other = both(SMALL["switch"])
    library.randomize(other)
    copy_weights(twin, other)
    stacked = twin.get_submodule("decoder.layers.0.mlp.experts.up_proj").weight
    assert torch.equal(stacked[3], other.decoder.block[0].layer[2].mlp.experts["expert_3"].wi.weight)


@pytest.mark.parametrize(
    ("config", "described", "message"),
    [
        (LLAMA, LLAMA | dict(num_hidden_layers=3), "has no such tensor"),
        (LLAMA, LLAMA | dict(intermediate_size=81), r"gives \(80, 48\), the description says \(81, 48\)"),
        (LLAMA, LLAMA | dict(num_hidden_layers=1), "not exactly once"),
        (LLAMA | dict(attention_bias=True), LLAMA, "q_proj.bias"),
    ],
    ids=["a layer more", "another width", "a layer less", "biases"],
)
def test_tensors_without_a_counterpart(config: dict[str, Any], described: dict[str, Any], message: str) -> None:
    """A description that stores more, less or otherwise is refused with the tensor's name."""
    with pytest.raises(PlanError, match=message):
        pairs(*both(config, described))


def test_ties_of_the_library() -> None:
    """A head that only the library ties may fill two tensors under other engines, and under its own it may not."""
    config = T5 | dict(tie_word_embeddings=False)
    twin, other = both(config, engine=IDEAL)
    assert sum(p.numel() for p in twin.parameters()) == sum(p.numel() for p in other.parameters()) + 64 * 48
    assert pairs(twin, other)
    twin.description = replace(twin.description, engine=TRANSFORMERS)
    with pytest.raises(PlanError, match="not exactly once"):
        pairs(twin, other)


def test_families_have_rules() -> None:
    """Rules are for families that the planner knows, and each of them compiles."""
    assert RULES.keys() <= FAMILIES.keys()
    assert all(re.compile(rule.pattern) for family in RULES.values() for rule in family)
