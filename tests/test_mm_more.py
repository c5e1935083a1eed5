"""Small configs of families with towers, most of whose default configs no class can build, against what transformers builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.api import load
from planner.errors import PlanError

RECORDS = [json.loads(line) for line in (Path(__file__).parent / "oracle" / "mm_more.jsonl").read_text().splitlines()]

TEXT = dict(
    hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=500,
)  # fmt: skip


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["model_type"])
def test_a_small_config_equals_the_reference(record: dict[str, Any]) -> None:
    """Parameters and stored buffers."""
    config = {**record["config"], "model_type": record["model_type"], "architectures": [record["class"]]}
    tally = load(config, engine="transformers").tally
    assert (tally.total, tally.buffers) == (record["params"], record["buffers"])


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("deepseek_ocr2", {"text_config": TEXT}),
        ("granite4_vision", {"text_config": TEXT}),
        ("granite4_vision", {"text_config": TEXT, "deepstack_layer_map": [[0, 0]], "downsample_rate": "half"}),
        ("qwen4_exp_text", TEXT),
        ("diffusion_gemma", {"text_config": TEXT}),
        ("diffusion_gemma", {"tie_word_embeddings": False}),
        ("pi0", {"vlm_config": {"model_type": "llava"}}),
    ],
)
def test_what_a_class_needs_is_asked_for(model_type: str, config: dict[str, Any]) -> None:
    """What no class can be built from is refused."""
    with pytest.raises(PlanError):
        load({**config, "model_type": model_type})
