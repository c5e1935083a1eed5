"""More families with towers, a row each."""

from __future__ import annotations

from planner.families.row import Family, row
from planner.topology.attention import attention
from planner.topology.decoder import decoder
from planner.topology.feed_forward import but_the_first, feed_forward, listed, mixture
from planner.topology.listeners import got_tower, qformer
from planner.topology.mm_more import (
    aligned,
    blurred,
    docling_connector,
    docling_router,
    janus_projector,
    janus_tower,
    ocr_projector,
    ocr_tower,
    paints,
    sharp,
)
from planner.topology.multimodal import Sense, multimodal
from planner.topology.projectors import unknown
from planner.topology.towers import Further, every_patch, vit

TILES = "the number of tiles that an image is cut into"

TOWERS: dict[str, Family] = {
    "sam_vision_model": row(got_tower, "SamVisionModel"),
    "janus_vision_model": row(janus_tower, "JanusVisionModel", ignores=("num_image_tokens",)),
    "janus_vqgan": row(qformer, "JanusVQVAE"),
    "unlimited_ocr_sam_vision_model": row(qformer, "UnlimitedOcrSamVisionEncoder"),
    "unlimited_ocr_vision_encoder": row(qformer, "UnlimitedOcrVisionEncoder"),
    "unlimited_ocr_vision": row(ocr_tower, "UnlimitedOcrVisionModel"),
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
        multimodal, "UnlimitedOcrForConditionalGeneration",
        senses=(Sense("vision", "vision_config", "vision_tower", ocr_projector, unknown, TILES),),
    ),
    "unlimited_ocr_text": row(
        decoder, "UnlimitedOcrTextModel", {"num_experts": "n_routed_experts"},
        mixers=attention(qkv_bias="attention_bias", out_bias="attention_bias"),
        feeds=mixture(scoring="softmax", sparse=listed(but_the_first), dense=feed_forward(bias="mlp_bias"), shared_bias="mlp_bias"),
        ignores=("layer_types", "sliding_window", "head_dim"),
    ),
    "granite_docling": row(
        multimodal, "GraniteDoclingForConditionalGeneration", at="model.text_model.",
        senses=(Sense("vision", "vision_config", "vision_model", docling_router, unknown, TILES),),
    ),
    "granite_docling_text": row(
        decoder, "GraniteDoclingTextModel", mixers=attention(qkv_bias="attention_bias", out_bias="attention_bias"),
        feeds=feed_forward(bias="mlp_bias"),
    ),
}  # fmt: skip
