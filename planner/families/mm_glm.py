"""GLM's, Qwen Omni's, ERNIE's and their like: families with towers, and the text models inside them, a row each."""

from __future__ import annotations

from planner.families.row import Family, row
from planner.topology.attention import attention, late_windows
from planner.topology.decoder import decoder
from planner.topology.feed_forward import every_step, feed_forward, listed, mixture
from planner.topology.kinds import by_kind, listed_kinds
from planner.topology.listeners import qformer
from planner.topology.mm_glm import (
    averaged_streams,
    but_three,
    drawn_grid,
    ernie_experts,
    ernie_resampler,
    even_heads,
    glm_tower,
    next_tower,
    ocr_tower,
    omni_deepstack,
    omni_hears,
    omni_listens,
    omni_spectrum,
    omni_waves,
    paddle,
    paddle_projector,
    pooled_latent,
    three_of_four,
    video_projector,
)
from planner.topology.mm_speech import omni, qwen3_speaks, qwen25_speaks
from planner.topology.multimodal import Sense, multimodal
from planner.topology.projectors import nothing, qwen_merger, unknown
from planner.topology.recurrent import channel_delta, kimi_sizes
from planner.topology.towers import Further, counted, square_windows, vit

NAMES = dict(num_hidden_layers="depth", num_attention_heads="num_heads", num_channels="in_channels")

PATCHES = ("patch_embed.proj", "blocks")

VISUAL = Sense("vision", "vision_config", "visual", nothing)


def hears(projector: object) -> Sense:
    """Return the sense of sound of a model that also sees."""
    return Sense("audio", "audio_config", "audio_tower", projector, unknown, "how long a frame of sound is")  # type: ignore[arg-type]


TOWERS: dict[str, Family] = {
    "glm4v_vision": row(glm_tower, "Glm4vVisionModel", NAMES),
    "glm4v_moe_vision": row(glm_tower, "Glm4vMoeVisionModel", NAMES),
    "glm_ocr_vision": row(ocr_tower, "GlmOcrVisionModel", NAMES, ignores=("image_size",)),
    "glm5_next_vision": row(next_tower, "Glm5NextVisionModel", NAMES, ignores=("image_size",)),
    "qwen2_5_omni_vision_encoder": row(
        vit, "Qwen2_5OmniVisionEncoder", NAMES, norm="rms", gated=True, windows=square_windows, frames=True, image=None,
        further=Further(back=qwen_merger("rms")), paths=PATCHES, ignores=("image_size", "embed_dim"),
    ),
    "qwen2_5_omni_audio_encoder": row(omni_waves, "Qwen2_5OmniAudioEncoder"),
    "qwen3_omni_moe_vision_encoder": row(
        vit, "Qwen3OmniMoeVisionEncoder", NAMES, patch_bias=True, positions=counted("num_position_embeddings"), frames=True,
        image=None, further=Further(back=omni_deepstack), paths=PATCHES, ignores=("image_size", "embed_dim"),
    ),
    "qwen3_omni_moe_audio_encoder": row(
        omni_spectrum, "Qwen3OmniMoeAudioEncoder", {"max_position_embeddings": "max_source_positions"},
    ),
    "qwen2_5_omni_talker": row(qformer, "Qwen2_5OmniTalkerForConditionalGeneration"),
    "qwen2_5_omni_token2wav": row(qformer, "Qwen2_5OmniToken2WavModel"),
    "qwen2_5_omni_dit": row(qformer, "Qwen2_5OmniToken2WavDiTModel"),
    "qwen2_5_omni_bigvgan": row(qformer, "Qwen2_5OmniToken2WavBigVGANModel"),
    "qwen3_omni_moe_talker_text": row(qformer, "Qwen3OmniMoeTalkerModel"),
    "qwen3_omni_moe_talker_code_predictor": row(qformer, "Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration"),
    "video_llama_3_vision": row(
        vit, "VideoLlama3VisionModel", epsilon="layer_norm_eps", patch_bias=True, norms="post", image=None,
        ignores=("image_size", "temporal_patch_size"),
    ),
    "paddleocr_vl_vision": row(
        vit, "PaddleOCRVisionModel", epsilon="layer_norm_eps", patch_bias=True, positions=drawn_grid, norms="post", image=None,
        ignores=("temporal_patch_size",),
    ),
    "ernie4_5_vl_moe_vision": row(
        vit, "Ernie4_5_VLMoeVisionTransformerPretrainedModel", NAMES, epsilon="rms_norm_eps", patch="linear", norms="post",
        image=None, paths=PATCHES, ignores=("image_size", "temporal_patch_size"),
    ),
}  # fmt: skip

MM_GLM: dict[str, Family] = {
    "glm4v": row(multimodal, "Glm4vForConditionalGeneration", senses=(VISUAL,), ties="either"),
    "glm46v": row(multimodal, "Glm46VForConditionalGeneration", senses=(VISUAL,)),
    "glmga": row(multimodal, "Glm46VForConditionalGeneration", senses=(VISUAL,)),
    "glm4v_moe": row(multimodal, "Glm4vMoeForConditionalGeneration", senses=(VISUAL,), ties="either"),
    "glm_ocr": row(multimodal, "GlmOcrForConditionalGeneration", senses=(VISUAL,), ties="either"),
    "glm4v_text": row(
        decoder, "Glm4vTextModel", wiring="sandwich", mixers=even_heads(attention(qkv_bias=True, positions="interleaved")),
        ignores=("attention_bias",),
    ),
    "glm4v_moe_text": row(
        decoder, "Glm4vMoeTextModel", {"num_experts": "n_routed_experts"},
        mixers=attention(qkv_bias="attention_bias", uneven=True), feeds=mixture(correction_bias=True, scoring="sigmoid"),
        ignores=("use_qk_norm",),
    ),
    "glm_ocr_text": row(
        decoder, "GlmOcrTextModel", wiring="sandwich", mixers=attention(positions="interleaved"), ignores=("attention_bias",),
    ),
    "glm5_next": row(multimodal, "Glm5NextForConditionalGeneration", senses=(VISUAL,), flat=True),
    "glm5_next_text": row(
        averaged_streams, "Glm5NextTextModel", {"num_experts": "n_routed_experts"},
        mixers=by_kind(
            listed_kinds("linear_attention", "indexed_attention", "full_attention", otherwise=three_of_four),
            {
                "linear_attention": channel_delta(kimi_sizes, low_rank=True), "indexed_attention": pooled_latent,
                "full_attention": pooled_latent,
            },
        ),
        feeds=mixture(sparse=listed(but_three), correction_bias=True, scoring="sigmoid"),
        ignores=("first_k_dense_replace", "moe_layer_freq", "rope_parameters", "rope_theta", "rope_scaling"),
    ),
    "qwen2_5_omni_thinker": row(
        multimodal, "Qwen2_5OmniThinkerForConditionalGeneration", senses=(VISUAL, hears(omni_hears)),
    ),
    "qwen2_5_omni_text": row(decoder, "Qwen2_5OmniThinkerTextModel", mixers=attention(qkv_bias=True, windows=late_windows)),
    "qwen2_5_omni": row(
        omni, "Qwen2_5OmniForConditionalGeneration", senses=(VISUAL, hears(omni_hears)),
        parts=("talker_config", "token2wav_config"), speaks=qwen25_speaks,
    ),
    "qwen3_omni_moe_thinker": row(
        multimodal, "Qwen3OmniMoeThinkerForConditionalGeneration", senses=(VISUAL, hears(omni_listens)),
    ),
    "qwen3_omni_moe_text": row(
        decoder, "Qwen3OmniMoeThinkerTextModel", feeds=mixture(sparse=every_step, scoring="softmax"),
        mixers=attention(qk_norm="head", qkv_bias="attention_bias", out_bias="attention_bias", uneven=True),
        ignores=("sliding_window", "use_sliding_window", "max_window_layers", "shared_expert_intermediate_size", "use_qk_norm", "qkv_bias"),
    ),
    "qwen3_omni_moe": row(
        omni, "Qwen3OmniMoeForConditionalGeneration", senses=(VISUAL, hears(omni_listens)),
        parts=("talker_config", "code2wav_config"), speaks=qwen3_speaks,
    ),
    "video_llama_3": row(
        multimodal, "VideoLlama3ForConditionalGeneration", ties="either",
        senses=(Sense("vision", "vision_config", "vision_model", video_projector),),
    ),
    "paddleocr_vl": row(
        paddle, "PaddleOCRVLForConditionalGeneration", senses=(Sense("vision", "vision_config", "visual.vision_model", paddle_projector),),
    ),
    "paddleocr_vl_text": row(
        decoder, "PaddleOCRTextModel", mixers=attention(qkv_bias="use_bias", out_bias="use_bias", even_if_null=True),
        feeds=feed_forward(bias="use_bias"),
    ),
    "ernie4_5_vl_moe": row(
        multimodal, "Ernie4_5_VLMoeForConditionalGeneration",
        senses=(Sense("vision", "vision_config", "vision_tower", ernie_resampler),),
    ),
    "ernie4_5_vl_moe_text": row(
        decoder, "Ernie4_5_VLMoeTextModel",
        {"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k", "n_shared_experts": "moe_num_shared_experts"},
        mixers=attention(qkv_bias="use_bias", out_bias="use_bias"), feeds=ernie_experts,
    ),
}  # fmt: skip
