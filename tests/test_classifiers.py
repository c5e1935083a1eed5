"""Classes that rank or classify texts: rerankers."""

from __future__ import annotations

from typing import Any

import pytest

from planner import PlanError, plan
from planner.families.encoders import ENCODERS

FAMILIES = ["bert", "xlm-roberta", "distilbert", "electra", "deberta-v2", "modernbert", "gte", "rembert"]


def bert(**more: Any) -> dict[str, Any]:
    """Return BERT base as a classifier."""
    return {"model_type": "bert", "architectures": ["BertForSequenceClassification"], **more}


def test_a_dense_layer_and_a_row_for_each_label() -> None:
    """BERT base has 109,482,240 with its pooler; 769 more for each label; as many labels as are named, else 2."""
    base = plan({"model_type": "bert", "architectures": ["BertModel"]}).params["total"]
    named = {"0": "no", "1": "yes", "2": "perhaps"}
    assert [
        plan(bert(**more)).params["total"] - base
        for more in ({}, {"num_labels": 5}, {"id2label": named, "num_labels": 3})
    ] == [2 * 769, 5 * 769, 3 * 769]
    assert base == 109_482_240


def test_one_row_of_a_text_is_classified() -> None:
    """2 x (768 x 768 + 768 x 2) FLOPs more than the bare layers, whatever the length; nothing on the vocabulary."""
    made = plan(bert(), prompt=128).to_dict()
    layers = 12 * 2 * 128 * (4 * 768 * 768 + 2 * 768 * 3072)
    assert made["flops"]["prefill"]["by_op"]["linear"] == layers + 2 * (768 * 768 + 768 * 2)
    assert (made["params"]["head"], made["cache"]["bytes"], made["flops"]["decode"]) == (0, 0, None)


def test_another_head_is_refused() -> None:
    """XLM sums a sequence up without a dense layer; the message names what is allowed."""
    with pytest.raises(PlanError, match="XLMForSequenceClassification isn't modelled; allowed are XLMWithLMHeadModel"):
        plan({"model_type": "xlm", "architectures": ["XLMForSequenceClassification"]})


@pytest.mark.oracle
@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_the_library(family: str) -> None:
    """To the last parameter, with three labels."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    config = transformers.CONFIG_MAPPING[family](num_labels=3, pad_token_id=1)
    with torch.device("meta"):
        built = transformers.AutoModelForSequenceClassification.from_config(config)
    values = config.to_dict() | {"architectures": [type(built).__name__]}
    assert type(built).__name__ in ENCODERS[family].classes
    assert plan(values).params["total"] == sum(each.numel() for each in built.parameters())
