"""More families with towers, a row each."""

from __future__ import annotations

from typing import Any

from planner.blocks import Norm
from planner.families.row import Family, row
from planner.topology.attention import attention, listed_windows
from planner.topology.decoder import decoder
from planner.topology.feed_forward import but_the_first, feed_forward, listed, mixture
from planner.topology.listeners import got_tower, qformer
from planner.topology.mm_more import (
    aligned,
    blurred,
    conditions,
    diffusion_sees,
    diffusion_text,
    docling_connector,
    docling_router,
    evolla,
    hunyuan_merger,
    hunyuan_positions,
    image_codes,
    janus_projector,
    janus_tower,
    no_kinds,
    ocr2_tower,
    ocr_projector,
    ocr_tower,
    paints,
    pi0,
    qwen4,
    referenced,
    sharp,
    swin,
    unlimited,
    window_qformers,
)
from planner.topology.multimodal import Sense, multimodal
from planner.topology.projectors import deepstack, gemma4_tokens, nothing, one_merger, unknown
from planner.topology.towers import Further, counted, every_patch, vit

WITH_BIAS: dict[str, Any] = dict(qkv_bias="attention_bias", out_bias="attention_bias")

PLAIN, SWIGLU = attention(**WITH_BIAS), feed_forward(bias="mlp_bias")

QWEN_NAMES = dict(num_hidden_layers="depth", num_attention_heads="num_heads", num_channels="in_channels")

TILES = "the number of tiles that an image is cut into"

TOWERS: dict[str, Family] = {
    "sam_vision_model": row(got_tower, "SamVisionModel"),
    "janus_vision_model": row(janus_tower, "JanusVisionModel", ignores=("num_image_tokens", "intermediate_size")),
    "janus_vqgan": row(qformer, "JanusVQVAE"),
    "unlimited_ocr_sam_vision_model": row(qformer, "UnlimitedOcrSamVisionEncoder"),
    "unlimited_ocr_vision_encoder": row(qformer, "UnlimitedOcrVisionEncoder"),
    "unlimited_ocr_vision": row(ocr_tower, "UnlimitedOcrVisionModel"),
    "deepseek_ocr2_sam_vision_model": row(qformer, "DeepseekOcr2SamVisionEncoder"),
    "deepseek_ocr2_encoder": row(qformer, "DeepseekOcr2VisionEncoder"),
    "deepseek_ocr2_vision": row(ocr2_tower, "DeepseekOcr2VisionModel"),
    "chameleon_vqgan": row(image_codes, "ChameleonVQVAE"),
    "hunyuan_vl_vision": row(
        vit, "HunYuanVLVisionTransformer", epsilon="rms_norm_eps", patch_bias=True, positions=hunyuan_positions, image=None,
        paths=("embeddings.patch_embedding", "layers"), ignores=("temporal_patch_size",),
    ),
    "cohere_compass_vision": row(
        vit, "CohereCompassVisionModel", QWEN_NAMES, patch_bias=True, positions=counted("num_position_embeddings"), frames=True,
        image=None, paths=("patch_embed.proj", "blocks"), further=Further(back=deepstack),
    ),
    "qwen4_exp_vision": row(
        vit, "Qwen4ExpVisionModel", QWEN_NAMES, patch_bias=True, positions=counted("num_position_embeddings"), frames=True,
        image=None, paths=("patch_embed.proj", "blocks"), further=Further(back=one_merger),
    ),
    "granite_docling_vision": row(
        vit, "GraniteDoclingVisionModel", epsilon="layer_norm_eps", patch_bias=True, positions=every_patch, norms="post",
        further=Further(back=docling_connector),
    ),
}  # fmt: skip

MM_MORE: dict[str, Family] = {
    "deepseek_vl": row(
        multimodal, "DeepseekVLForConditionalGeneration", senses=(Sense("vision", "vision_config", "vision_model", aligned),),
    ),
    "deepseek_vl_hybrid": row(
        multimodal, "DeepseekVLHybridForConditionalGeneration", extra=sharp,
        senses=(Sense("vision", "vision_config", "vision_model", blurred, unknown, "how many rows the second tower reads"),),
    ),
    "janus": row(
        multimodal, "JanusForConditionalGeneration", extra=paints,
        senses=(Sense("vision", "vision_config", "vision_model", janus_projector),),
    ),
    "unlimited_ocr": row(
        unlimited, "UnlimitedOcrForConditionalGeneration",
        senses=(Sense("vision", "vision_config", "vision_tower", ocr_projector("view_separator", "image_newline"), unknown, TILES),),
    ),
    "unlimited_ocr_text": row(
        decoder, "UnlimitedOcrTextModel", {"num_experts": "n_routed_experts"},
        mixers=referenced,
        feeds=mixture(scoring="softmax", sparse=listed(but_the_first), dense=SWIGLU, shared_bias="mlp_bias"),
        ignores=("head_dim",),
    ),
    "deepseek_ocr2": row(
        multimodal, "DeepseekOcr2ForConditionalGeneration",
        senses=(Sense("vision", "vision_config", "vision_tower", ocr_projector("view_separator"), unknown, TILES),),
    ),
    "deepseek_ocr2_text": row(
        decoder, "DeepseekOcr2TextModel", {"num_experts": "n_routed_experts"}, mixers=PLAIN,
        feeds=mixture(scoring="softmax", sparse=listed(no_kinds), dense=SWIGLU, shared_bias="mlp_bias", may_lack_top_k=True),
        ignores=("head_dim",),
    ),
    "chameleon": row(
        multimodal, "ChameleonForConditionalGeneration", at="model.", ignores=("vocabulary_map", "model_parallel_size"),
        senses=(Sense("vision", "vq_config", "vqmodel", nothing, unknown, "the size that images are cut to"),),
        own=row(
            decoder, "ChameleonForConditionalGeneration", wiring=swin, feeds=SWIGLU,
            mixers=attention(qk_norm="each", qk_norm_form=Norm(0, "layer", True, 1e-5), **WITH_BIAS),
        ),
    ),
    "hunyuan_vl": row(
        multimodal, "HunYuanVLForConditionalGeneration", flat=True, ties="either",
        senses=(Sense("vision", "vision_config", "vision_tower", hunyuan_merger),),
    ),
    "hunyuan_vl_text": row(
        decoder, "HunYuanVLTextModel", {"head_dim": "attention_head_dim", "vocab_size": "org_vocab_size"},
        mixers=attention(qk_norm="head", **WITH_BIAS),
        ignores=(
            "use_qk_norm", "num_experts", "num_experts_per_tok", "num_shared_expert", "moe_intermediate_size", "mlp_bias", "q_lora_rank",
            "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
        ),
    ),
    "granite4_vision": row(
        multimodal, "Granite4VisionForConditionalGeneration",
        senses=(Sense("vision", "vision_config", "vision_tower", window_qformers, unknown, TILES),),
        ignores=(
            "vision_feature_layer", "vision_feature_select_strategy", "image_grid_pinpoints", "image_seq_length", "spatial_vision_layer",
            "spatial_target_layers",
        ),
    ),
    "granite4_vision_text": row(
        decoder, "Granite4VisionTextModel", mixers=PLAIN, feeds=SWIGLU,
        ignores=("layer_types", "position_embedding_type", "num_experts", "num_experts_per_tok", "shared_intermediate_size"),
    ),
    "cohere_compass": row(
        multimodal, "CohereCompassForConditionalGeneration", senses=(Sense("vision", "vision_config", "visual", nothing),),
    ),
    "cohere_compass_text": row(
        decoder, "CohereCompassForCausalLM", {"layer_norm_epsilon": "layer_norm_eps"}, norm="layer", wiring="parallel",
        mixers=attention(positions="interleaved", windows=listed_windows(lambda _c, n: ["full_attention"] * n), **WITH_BIAS),
        ignores=("head_dim", "pooling", "sliding_window", "sliding_window_pattern"),
    ),
    "diffusion_gemma": row(
        multimodal, "DiffusionGemmaForBlockDiffusion", extra=conditions, at="model.decoder.", ignores=("canvas_length",),
        senses=(Sense("vision", "vision_config", "encoder.vision_tower", diffusion_sees, gemma4_tokens),),
    ),
    "diffusion_gemma_text": row(diffusion_text, "DiffusionGemmaEncoderTextModel", {"num_experts_per_tok": "top_k_experts"}),
    "qwen4_exp": row(
        multimodal, "Qwen4ExpForConditionalGeneration", classes=("Qwen4ExpForCausalLM",), text_classes=("Qwen4ExpForCausalLM",),
        senses=(Sense("vision", "vision_config", "visual", nothing),),
    ),
    "qwen4_exp_text": row(qwen4, "Qwen4ExpForCausalLM", ignores=("eos_token_id",)),
    "evolla": row(evolla, "EvollaForProteinText2Text"),
    "pi0": row(pi0, "PI0ForConditionalGeneration"),
    "granite_docling": row(
        multimodal, "GraniteDoclingForConditionalGeneration", at="model.text_model.",
        senses=(Sense("vision", "vision_config", "vision_model", docling_router, unknown, TILES),),
    ),
    "granite_docling_text": row(
        decoder, "GraniteDoclingTextModel", mixers=PLAIN,
        feeds=SWIGLU,
    ),
}  # fmt: skip
