"""GLM's, Qwen Omni's, PaddleOCR's and ERNIE's: variants whose parameters transformers 5.24 has, and what engines leave out."""

from __future__ import annotations

from typing import Any

import pytest

from planner.api import load
from planner.compressed import Indexer
from planner.errors import PlanError
from planner.topology.mm_glm import PooledIndexer

TEXT: dict[str, Any] = dict(
    vocab_size=1000, hidden_size=128, intermediate_size=300, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2,
)  # fmt: skip
VISION: dict[str, Any] = dict(depth=3, hidden_size=96, num_heads=6, out_hidden_size=128, intermediate_size=200)
SOUND: dict[str, Any] = dict(
    d_model=64, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=100, num_mel_bins=80, output_dim=128,
    max_source_positions=300,
)  # fmt: skip
OCR: dict[str, Any] = dict(
    hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=100, image_size=100, model_type="paddleocr_vl",
)  # fmt: skip


def total(config: dict[str, Any], engine: str = "transformers") -> int:
    """Return the parameters of a config."""
    return load(config, engine=engine).tally.total


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [(True, True, 970_184), (True, False, 970_184), (False, True, 970_184), (False, False, 1_098_184)],
)
def test_either_key_ties_paddleocr(outer: bool, inner: bool, expected: int) -> None:
    """The wrapper's, or the text model's."""
    text = {**TEXT, "head_dim": None, "tie_word_embeddings": inner}
    config = {"model_type": "paddleocr_vl", "tie_word_embeddings": outer, "text_config": text, "vision_config": OCR}
    assert total(config) == expected


@pytest.mark.parametrize("tied", [True, False])
def test_a_flat_paddleocr_is_tied_whatever_it_says(tied: bool) -> None:
    """The class builds a text_config of its own, which says true."""
    more = {**TEXT, "head_dim": 32, "use_bias": True, "tie_word_embeddings": tied, "vision_config": OCR}
    assert total({"model_type": "paddleocr_vl", **more}) == 1_096_784


def test_glm4v_shares_the_width_among_its_heads() -> None:
    """Whatever head_dim says, and the tower's blocks are as wide as what leaves it."""
    vision = {**VISION, "image_size": 140, "patch_size": 14, "attention_bias": True}
    text = {**TEXT, "head_dim": 64, "attention_bias": True, "tie_word_embeddings": True}
    assert total({"model_type": "glm4v", "text_config": text, "vision_config": vision}) == 1_086_848
    assert total({"model_type": "glm46v", "text_config": text, "vision_config": vision}) == 1_214_848


def test_serving_engines_load_the_thinker_alone() -> None:
    """As does transformers where no sound is asked for."""
    thinker = {"text_config": TEXT, "vision_config": VISION, "audio_config": SOUND}
    config: dict[str, Any] = {"model_type": "qwen2_5_omni", "thinker_config": thinker}
    mute = total({**config, "enable_audio_output": False})
    assert mute == total({"model_type": "qwen2_5_omni_thinker", **thinker}) == total(config, "vllm")
    assert total(config) == total(config, "ideal") > mute


def test_a_talker_needs_the_width_of_its_shared_expert() -> None:
    """The config class has no default for it."""
    with pytest.raises(PlanError, match="shared_expert_intermediate_size"):
        load({"model_type": "qwen3_omni_moe"}, engine="transformers")
    talker = {"text_config": {"shared_expert_intermediate_size": 768}}
    assert total({"model_type": "qwen3_omni_moe", "talker_config": talker}) == 21_978_863_145


def test_no_text_visits_the_experts_of_images() -> None:
    """ERNIE 4.5 VL: 64 experts of 512 in each of 27 layers are stored, and not active."""
    tally = load({"model_type": "ernie4_5_vl_moe"}, engine="transformers").tally
    routed = tally.stacks["decoder"]
    assert routed.routed == 27 * 64 * 3 * 2560 * (1536 + 512)
    assert routed.active_routed == 27 * 6 * 3 * 2560 * 1536


def test_pools_are_kept_as_means_or_token_by_token() -> None:
    """A mean of 16 keys of 128 a pool, and keys and gates of those in none; or 257 elements a token."""
    pooled, kept = (PooledIndexer(8, 8, 2, 128, pool=16, kept=kept).caches()[0] for kept in (False, True))
    engine = load({"model_type": "glm5_next"}, engine="ideal").engine
    assert pooled.elements(37, engine) == 2 * 128 + 5 * 256
    assert kept.elements(37, engine) == 37 * 257
    own = {leaf.name for leaf in PooledIndexer(8, 8, 2, 128, pool=16).leaves()}
    assert own > {leaf.name for leaf in Indexer(8, 8, 2, 128).leaves()}


def test_glm5_next_has_no_positions() -> None:
    """As its config class demands."""
    with pytest.raises(PlanError, match="qk_rope_head_dim"):
        load({"model_type": "glm5_next", "text_config": {"qk_rope_head_dim": 64}}, engine="transformers")
