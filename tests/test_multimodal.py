"""Models with towers: published sizes, what images and sound add, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from planner import PlanError, plan
from planner.api import load
from planner.topology.projectors import CLIP_LARGE

GEMMA3_4B: dict[str, Any] = {
    "model_type": "gemma3",
    "mm_tokens_per_image": 256,
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 1024, "vocab_size": 262208,
    },
    "vision_config": {
        "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
        "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False,
    },
}  # fmt: skip
"""google/gemma-3-4b-it."""

PHI3_VISION = {
    "model_type": "phi3_v", "vocab_size": 32064, "max_position_embeddings": 131072, "tie_word_embeddings": False,
    "img_processor": {"name": "clip_vision_model", "image_dim_out": 1024},
    "embd_layer": {"projection_cls": "mlp", "use_hd_transform": True, "with_learnable_separator": True},
}  # fmt: skip
"""microsoft/Phi-3.5-vision-instruct, without the keys that hold its defaults."""


def test_a_tower_is_stored_and_no_text_pays_for_it() -> None:
    """Gemma 3 4B: 3,880,263,168 of text and 419,816,304 of tower and projector; text alone runs the decoder only."""
    whole = plan(GEMMA3_4B).to_dict()
    text = plan({**GEMMA3_4B["text_config"], "model_type": "gemma3_text"}).to_dict()
    assert whole["params"]["total"] == 4_300_079_472
    assert whole["params"]["active_decode"] == text["params"]["total"] == 3_880_263_168
    assert whole["flops"] == text["flops"]
    assert whole["cache"] == text["cache"]
    assert whole["model"]["kind"] == "decoder"
    assert list(whole["params"]["stacks"]) == ["decoder", "vision"]


def test_images_add_tokens_and_tower_work() -> None:
    """Two images of 64 x 64 patches, each 256 tokens: the tower's products on 8,192 rows, and 512 more tokens of prompt."""
    bare = plan(GEMMA3_4B, prompt=612, generate=0).to_dict()
    seeing = plan(GEMMA3_4B, prompt=100, generate=0, images=2).to_dict()
    patches, width, hidden, layers = 64 * 64, 1152, 4304, 27
    conv = 2 * 2 * patches * 3 * 14 * 14 * width
    matrices = 2 * 2 * patches * layers * (4 * width * width + 2 * width * hidden) + 2 * 2 * 256 * width * 2560
    scores = 2 * 2 * layers * 2 * width * patches * patches
    assert seeing["workload"]["prompt"] == 612
    assert seeing["flops"]["prefill"]["by_op"]["conv"] == conv
    assert seeing["flops"]["prefill"]["total"] == bare["flops"]["prefill"]["total"] + conv + matrices + scores
    assert seeing["flops"]["decode"] == bare["flops"]["decode"]
    assert seeing["cache"]["bytes"] == bare["cache"]["bytes"]


def test_sound_is_padded_to_windows() -> None:
    """Voxtral: 45 s are two windows of 1,500 rows, of which four make a token."""
    heard = plan({"model_type": "voxtral"}, prompt=10, generate=0, audio_seconds=45).to_dict()
    assert heard["workload"]["audio_windows"] == 2
    assert heard["workload"]["prompt"] == 10 + 2 * 1500 // 4


def test_an_image_of_unknown_size_is_refused() -> None:
    """Qwen 3 VL takes images of any size; its config says nothing of them."""
    with pytest.raises(PlanError, match="--images: the config doesn't determine how many tokens"):
        plan({"model_type": "qwen3_vl"}, images=1)


@pytest.mark.parametrize(
    ("option", "message"), [({"images": 1}, "takes no images"), ({"audio_seconds": 3}, "takes no sound")]
)
def test_a_text_model_takes_neither(option: dict[str, Any], message: str) -> None:
    """Llama 3 has no towers."""
    with pytest.raises(PlanError, match=message):
        plan("llama3-8b", **option)


def test_messages_name_the_path_of_a_nested_key() -> None:
    """File, object and field."""
    with pytest.raises(PlanError, match=r"config, text_config\.hidden_size: found 'wide'"):
        load({**GEMMA3_4B, "text_config": {**GEMMA3_4B["text_config"], "hidden_size": "wide"}})
    with pytest.raises(PlanError, match=r"config, vision_config: found 3, an object is needed"):
        load({**GEMMA3_4B, "vision_config": 3})
    with pytest.raises(PlanError, match=r"text_config\.model_type: the text model is of the family 'nosuch'"):
        load({"model_type": "llava", "text_config": {"model_type": "nosuch"}})


def test_phi3_vision_is_as_large_as_published() -> None:
    """4,146,621,440: the tower is CLIP's, that the config only names."""
    assert plan(PHI3_VISION).params["total"] == 4_146_621_440


def test_layers_that_borrow_a_cache_store_none() -> None:
    """Gemma 3n E4B: the last 15 of 35 layers read the caches of two layers before them; traffic counts their reads."""
    made = plan({"model_type": "gemma3n_text"}, prompt=100, generate=0).to_dict()
    assert len(made["cache"]["layers"]) == 20
    assert made["cache"]["bytes"] == 20 * 100 * 2 * 2 * 256 * 2
    assert made["traffic"]["decode"]["cache_bytes"] == (35 * 100 + 20) * 2 * 2 * 256 * 2


def test_layers_that_look_at_images_cost_text_nothing() -> None:
    """Llama 3.2 Vision: 8 of 40 layers are cross-attention, stored, and left out where there are no images."""
    model = load({"model_type": "mllama"})
    decoder = model.stack("decoder")
    assert decoder is not None
    assert sum(cache.row == 0 or cache.kind == "cross" for cache in decoder.caches) == 1
    text = plan(
        {
            "model_type": "llama",
            "vocab_size": 128256,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
        }
    )
    assert plan({"model_type": "mllama"}).flops["prefill"] == text.flops["prefill"]


def test_a_tower_for_video_costs_images_nothing() -> None:
    """Video-LLaVA stores two towers of one config; images run one, as in LLaVA of the same sizes."""
    both = plan({"model_type": "video_llava"}, images=1)
    one = plan(
        {"model_type": "llava", "vision_config": {"model_type": "clip_vision_model", **CLIP_LARGE, "image_size": 224}},
        images=1,
    )
    assert both.flops["prefill"] == one.flops["prefill"]
    towers = both.params["stacks"]["vision"]["layers"]
    assert towers[:24] == towers[24:] == one.params["stacks"]["vision"]["layers"]
