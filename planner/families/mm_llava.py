"""Models in LLaVA's manner, and readers of documents, a row each."""

from __future__ import annotations

from planner.families.row import Family, row
from planner.topology.mm_llava import (
    hyperclovax_projector,
    lfm3_projector,
    lfm3_tower,
    lighton_projector,
    minicpm_merger,
    minicpm_tower,
    ovis2,
    ovis2_tower,
    ovis2_words,
    pooled_projector,
    qianfan_tower,
    twice,
    vip_projector,
    vip_tokens,
)
from planner.topology.multimodal import Sense, multimodal
from planner.topology.projectors import (
    gemma3_projector,
    gemma3_tokens,
    internvl_projector,
    llava_projector,
    llava_tokens,
    unknown,
)

TILES = "the number of tiles of an image"

LLAVA_TOWERS: dict[str, Family] = {
    "ovis2_vision": row(ovis2_tower, "Ovis2VisionModel"),
    "minicpmv4_6_vision": row(minicpm_tower, "MiniCPMV4_6VisionModel"),
    "minicpmv4_7_vision": row(minicpm_tower, "MiniCPMV4_7VisionModel"),
    "minicpm_ocr_vision": row(minicpm_tower, "MiniCPMOcrVisionModel"),
    "qianfan_ocr_vision": row(qianfan_tower, "QianfanOCRVisionModel"),
    "lfm3_vl_vision": row(
        lfm3_tower, "Lfm3VlVisionModel", {"num_channels": "in_channels", "rms_norm_eps": "norm_eps"},
    ),
}  # fmt: skip

MM_LLAVA: dict[str, Family] = {
    "llava_next_video": row(
        multimodal, "LlavaNextVideoForConditionalGeneration", ties="either", ignores=("vision_feature_select_strategy",),
        senses=(Sense("vision", "vision_config", "vision_tower", pooled_projector, unknown, TILES),),
    ),
    "video_llava": row(
        twice, "VideoLlavaForConditionalGeneration", image="image_tower", video="video_tower",
        senses=(Sense("vision", "vision_config", "image_tower", llava_projector, llava_tokens),),
    ),
    "vipllava": row(
        multimodal, "VipLlavaForConditionalGeneration", {"vision_feature_layer": "vision_feature_layers"},
        senses=(Sense("vision", "vision_config", "vision_tower", vip_projector, vip_tokens),),
    ),
    "ovis2": row(
        ovis2, "Ovis2ForConditionalGeneration",
        senses=(Sense("vision", "vision_config", "vision_tower.transformer", ovis2_words, unknown, TILES),),
    ),
    **{
        kind: row(
            multimodal, architecture, senses=(Sense("vision", "vision_config", "vision_tower", minicpm_merger, unknown),),
            ignores=("patch_size", "image_size", "merge_kernel_size"),
        )
        for kind, architecture in (
            ("minicpmv4_6", "MiniCPMV4_6ForConditionalGeneration"), ("minicpmv4_7", "MiniCPMV4_7ForConditionalGeneration"),
            ("minicpm_ocr", "MiniCPMOcrForConditionalGeneration"),
        )
    },
    "lighton_ocr": row(
        multimodal, "LightOnOcrForConditionalGeneration", ignores=("vision_feature_layer", "multimodal_projector_bias"),
        senses=(Sense("vision", "vision_config", "vision_encoder", lighton_projector),),
    ),
    "qianfan_ocr": row(
        multimodal, "QianfanOCRForConditionalGeneration", ignores=("vision_feature_layer", "vision_feature_select_strategy"),
        senses=(Sense("vision", "vision_config", "vision_tower", internvl_projector, unknown, TILES),),
    ),
    "hyperclovax_vision_v2": row(
        multimodal, "HyperCLOVAXVisionV2ForConditionalGeneration",
        senses=(
            Sense("vision", "vision_config", "vision_model", hyperclovax_projector, aliases={"qwen2_5_vl": "qwen2_5_vl_vision"}),
        ),
    ),
    "lfm3_vl": row(
        multimodal, "Lfm3VlForConditionalGeneration",
        senses=(Sense("vision", "vision_config", "vision_tower", lfm3_projector),),
    ),
    "shieldgemma2": row(
        multimodal, "Gemma3ForConditionalGeneration", classes=("ShieldGemma2ForImageClassification",), ties="either",
        senses=(Sense("vision", "vision_config", "vision_tower", gemma3_projector, gemma3_tokens),),
    ),
}  # fmt: skip
