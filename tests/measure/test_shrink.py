"""Every bundled model, made small: still of its family and shape, and small."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

import profiles
from measure.shrink import MOST_GROUPED, shrink
from planner.blocks import Attention
from planner.engines import IDEAL
from planner.frontend import describe
from planner.model import Model
from tests.measure.configs import LLAMA


def config(name: str) -> dict[str, Any]:
    """Return a bundled config."""
    entry = profiles.model(name)
    assert entry is not None
    return dict(entry["config"])


def attentions(model: Model) -> Iterator[Attention]:
    """Yield the attention blocks of a model."""
    for stack in model.stacks:
        for run in stack.runs:
            yield from (block for block in run.layer.blocks if isinstance(block, Attention))


@pytest.mark.parametrize("name", profiles.model_names())
def test_bundled_models(name: str) -> None:
    """Family, class, kind, kinds of layer in their order, and the grouping of heads stay; the size doesn't."""
    given = config(name)
    before, large = deepcopy(given), describe(given, engine=IDEAL)
    small = describe(shrink(given), engine=IDEAL)
    assert given == before
    assert small.tally.total < 2_000_000
    assert (small.family, small.architecture, small.kind) == (large.family, large.architecture, large.kind)
    assert [s.name for s in small.stacks] == [s.name for s in large.stacks]
    for a, b in zip(small.stacks, large.stacks, strict=True):
        assert 2 <= a.depth <= 8
        assert len({run.layer for run in a.runs}) == len({run.layer for run in b.runs})
    ratios = [{min(one.heads // one.kv_heads, MOST_GROUPED) for one in attentions(m)} for m in (small, large)]
    assert ratios[0] == ratios[1] or name in {
        "falcon-7b",
        "palm-8b",
        "palm-62b",
        "palm-540b",
        "gemma3-1b",
        "gemma3-270m",
    }
    assert small.tally.by_part.keys() == large.tally.by_part.keys()


def test_windows_and_patterns() -> None:
    """Gemma 3 keeps five windows and a full layer; Qwen 2 gets its first window after one layer without."""
    gemma = shrink(config("gemma3-270m"))
    assert gemma["layer_types"] == ["sliding_attention"] * 5 + ["full_attention"]
    qwen = LLAMA | dict(
        model_type="qwen2", num_hidden_layers=40, use_sliding_window=True, sliding_window=4096, max_window_layers=28
    )
    masks = describe(shrink(qwen), engine=IDEAL).stacks[0].masks
    assert [mask.window for mask in masks] == [None, 8]


def test_missing_keys_become_small_too() -> None:
    """A config that leaves sizes to its family's defaults is small as well."""
    small = shrink({"model_type": "gemma2"})
    assert small["hidden_size"] < 100
    assert describe(small, engine=IDEAL).tally.total < 100_000


def test_what_it_drops() -> None:
    """Quantization, and token ids that the small vocabulary doesn't have."""
    given = LLAMA | dict(bos_token_id=128000, eos_token_id=2, quantization_config={"quant_method": "fp8"})
    small = shrink(given)
    assert "quantization_config" not in small
    assert "bos_token_id" not in small
    assert small["eos_token_id"] == 2


def test_a_bundled_name_will_do() -> None:
    """As everywhere, a name stands for its config."""
    assert shrink(config("gpt2")) == shrink("gpt2")  # type: ignore[arg-type]
