"""Families whose text looks at images through learned queries or cross-attention, and encoder-decoders that read images."""

from __future__ import annotations

from planner.families.row import Family, row
from planner.topology.joined import joined
from planner.topology.listeners import got_projector, got_tower, qformer
from planner.topology.mm_blip import (
    QUERIED,
    as_queries,
    blip,
    blip_2,
    blip_text,
    blip_tower,
    davit_layers,
    davit_projector,
    davit_tower,
    donut_tower,
    flat_tower,
    florence,
    idefics_resampler,
    idefics_text,
    kosmos_projector,
    kosmos_text,
    pix2struct,
    pooled_vit,
    pp_formulanet,
    qformer_layers,
    qformer_projector,
    resampler_layers,
    resampler_projector,
    udop,
)
from planner.topology.multimodal import Sense, multimodal
from planner.topology.projectors import nothing, unknown
from planner.topology.towers import and_class, every_patch, vit

TILES = "the number of tiles that an image is cut into"

PIX_IDLE = (
    "relative_attention_num_buckets", "relative_attention_max_distance", "intermediate_size", "image_size", "patch_size",
    "num_channels", "projection_dim", "head_dim",
)  # fmt: skip
"""Keys that configs of Pix2Struct's tower carry, and that its class doesn't read."""

KOSMOS_NAMES = dict(intermediate_size="ffn_dim", layer_norm_epsilon="layer_norm_eps")

BLIP_TOWERS: dict[str, Family] = {
    "blip_2_vision_model": row(blip_tower, "Blip2VisionModel", ignores=("projection_dim",)),
    "instructblip_vision_model": row(blip_tower, "InstructBlipVisionModel", ignores=("projection_dim",)),
    "instructblipvideo_vision_model": row(blip_tower, "InstructBlipVideoVisionModel", ignores=("projection_dim",)),
    "instructblip_qformer": row(qformer, "InstructBlipQFormerModel"),
    "instructblipvideo_qformer": row(qformer, "InstructBlipVideoQFormerModel"),
    "blip_vision_model": row(
        vit, "BlipVisionModel", ignores=("projection_dim",), epsilon="layer_norm_eps", class_token=True, patch_bias=True,
        positions=and_class, norms="post",
    ),
    "idefics2_vision": row(
        vit, "Idefics2VisionTransformer", epsilon="layer_norm_eps", patch_bias=True, positions=every_patch, norms="post",
    ),
    "idefics2_perceiver": row(qformer, "Idefics2PerceiverResampler"),
    "idefics_vision": row(
        vit, "IdeficsVisionTransformer", epsilon="layer_norm_eps", class_token=True, positions=and_class, norms="pre post",
    ),
    "idefics_perciever": row(qformer, "IdeficsPerceiverResampler"),
    "kosmos_2_vision_model": row(
        vit, "Kosmos2VisionModel", epsilon="layer_norm_eps", class_token=True, positions=and_class, norms="pre post",
    ),
    "kosmos_2_5_vision_model": row(
        flat_tower, "Kosmos2_5VisionModel", hidden="intermediate_size", head="head_dim", rows="max_num_patches",
        ignores=("image_size", "patch_size", "num_channels"),
    ),
    "pp_chart2table_vision": row(got_tower, "PPChart2TableVisionEncoder"),
    "vit": row(pooled_vit, "ViTModel", ignores=("encoder_stride", "pooler_act"), tokens=1),
    "donut-swin": row(
        donut_tower, "DonutSwinModel", ignores=("drop_path_rate", "num_layers", "hidden_size", "encoder_stride", "path_norm", "layer_norm_eps", "hidden_act"),
    ),
    "deit": row(pooled_vit, "DeiTModel", ignores=("encoder_stride", "pooler_act"), tokens=2),
    "pix2struct_vision_model": row(
        flat_tower, "Pix2StructVisionModel", ignores=PIX_IDLE, hidden="d_ff", head="d_kv", rows="seq_len",
    ),
    "pix2struct_text_model": row(
        qformer, "Pix2StructTextModel",
        dict(
            head_dim="d_kv", encoder_layers="num_layers", decoder_layers="num_layers", encoder_ffn_dim="d_ff",
            decoder_ffn_dim="d_ff", encoder_attention_heads="num_heads", decoder_attention_heads="num_heads",
        ),
        ignores=("is_decoder", "add_cross_attention", "feed_forward_proj"),
    ),
    "pp_formulanet_text": row(qformer, "PPFormulaNetTextModel", {"hidden_size": "d_model"}),
    "pp_formulanet_vision": row(got_tower, "PPFormulaNetVisionModel"),
    "florence_vision": row(
        davit_tower, "Florence2VisionBackbone", {"num_channels": "in_channels"},
        ignores=("num_heads", "num_groups", "patch_stride", "patch_padding", "drop_path_rate", "activation_function", "window_size"),
    ),
}  # fmt: skip
"""What turns images into rows, and parts that a topology of their own reads."""

MM_BLIP: dict[str, Family] = {
    "blip-2": row(
        blip_2, "Blip2ForConditionalGeneration", ties="text", at="language_model.",
        senses=(
            Sense("vision", "vision_config", "vision_model", qformer_projector(text=False), as_queries("num_query_tokens"),
                  layers=qformer_layers(text=False)),
        ),
        ignores=("tie_word_embeddings", "image_text_hidden_size", "use_decoder_only_language_model"),
    ),
    **{
        kind: row(
            multimodal, architecture, ties="text", at="language_model.",
            senses=(
                Sense("vision", "vision_config", "vision_model", qformer_projector(text=True), unknown,
                      "how many tokens of the instruction the Q-Former reads", layers=qformer_layers(text=True)),
            ),
            ignores=("tie_word_embeddings", "use_decoder_only_language_model"),
        )
        for kind, architecture in (
            ("instructblip", "InstructBlipForConditionalGeneration"),
            ("instructblipvideo", "InstructBlipVideoForConditionalGeneration"),
        )
    },
    "blip": row(
        blip, "BlipForConditionalGeneration", ties="either", at="text_decoder.bert.",
        senses=(Sense("vision", "vision_config", "vision_model", nothing, unknown, QUERIED),),
        ignores=("projection_dim", "logit_scale_init_value", "image_text_hidden_size", "label_smoothing"),
    ),
    "blip_text_model": row(
        blip_text, "BlipTextLMHeadModel", {"layer_norm_epsilon": "layer_norm_eps"},
        ignores=("projection_dim", "label_smoothing", "encoder_hidden_size"),
    ),
    "idefics": row(
        multimodal, "IdeficsForVisionText2Text", at="model.", own=row(idefics_text, "IdeficsForVisionText2Text"), classes=("IdeficsModel",),
        senses=(Sense("vision", "vision_config", "vision_model", idefics_resampler, unknown, QUERIED),),
        ignores=(
            "alpha_initializer", "alphas_initializer_range", "freeze_lm_head", "freeze_text_layers",
            "freeze_text_module_exceptions", "freeze_vision_layers", "freeze_vision_module_exceptions", "ffn_dim",
            "word_embed_proj_dim", "cross_layer_activation_function", "max_sequence_length",
        ),
    ),
    "idefics2": row(
        multimodal, "Idefics2ForConditionalGeneration", at="model.text_model.", ignores=("use_resampler", "qk_layer_norms"),
        senses=(
            Sense("vision", "vision_config", "vision_model", resampler_projector, unknown, TILES, layers=resampler_layers),
        ),
    ),
    "kosmos-2": row(
        multimodal, "Kosmos2ForConditionalGeneration", ties="either", at="text_model.model.",
        senses=(
            Sense("vision", "vision_config", "vision_model.model", kosmos_projector, as_queries("latent_query_num")),
        ),
    ),
    "kosmos_2_text_model": row(kosmos_text, "Kosmos2TextForCausalLM", KOSMOS_NAMES, inner_norm=True),
    "kosmos-2.5": row(
        multimodal, "Kosmos2_5ForConditionalGeneration", ties="text", at="text_model.model.", ignores=("tie_word_embeddings",),
        senses=(
            Sense("vision", "vision_config", "vision_model", kosmos_projector, unknown, "the number of patches of an image"),
        ),
    ),
    "kosmos_2_5_text_model": row(kosmos_text, "Kosmos2_5TextForCausalLM", KOSMOS_NAMES, inner_norm=False, segments=2),
    "florence2": row(
        florence, "Florence2ForConditionalGeneration",
        senses=(
            Sense("vision", "vision_config", "vision_tower", davit_projector, unknown, "the size of an image", layers=davit_layers),
        ),
    ),
    "pix2struct": row(pix2struct, "Pix2StructForConditionalGeneration", ignores=("is_vqa",)),
    "pp_formulanet": row(pp_formulanet, "PPFormulaNetForConditionalGeneration"),
    "udop": row(
        udop, "UdopForConditionalGeneration",
        dict(
            hidden_size="d_model", head_dim="d_kv", encoder_layers="num_layers", decoder_layers="num_decoder_layers",
            encoder_attention_heads="num_heads", decoder_attention_heads="num_heads", encoder_ffn_dim="d_ff",
            decoder_ffn_dim="d_ff",
        ),
        ignores=("is_decoder", "add_cross_attention", "is_gated_act", "dense_act_fn"),
    ),
    "vision-encoder-decoder": row(joined, "VisionEncoderDecoderModel"),
    "pp_chart2table": row(
        multimodal, "GotOcr2ForConditionalGeneration",
        senses=(Sense("vision", "vision_config", "vision_tower", got_projector, unknown, TILES),),
    ),
}  # fmt: skip
