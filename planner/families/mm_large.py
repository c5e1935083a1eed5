"""Large families that read images, video or sound, their text models and their towers, a row each."""

from __future__ import annotations

from typing import Any

from planner.blocks import Norm
from planner.families.row import Family, row
from planner.topology.attention import attention, latent_attention
from planner.topology.decoder import decoder
from planner.topology.feed_forward import but_the_first, every_layer, feed_forward, listed, mixture
from planner.topology.listeners import qformer
from planner.topology.mm_codecs import codes_each_second, image_codes, sound_codes
from planner.topology.mm_large import (
    always_qwen3,
    edge_projector,
    hy_grid,
    hy_merger,
    inkling2_tower,
    inkling_patches,
    inkling_sound,
    learned_rotation,
    molmo,
    molmo_attention,
    molmo_parts,
    molmo_projector,
    molmo_tower,
    molmo_wiring,
    muse_projector,
    muse_sound,
    muse_text_windows,
    muse_windows,
    narrowed_experts,
    nemotron_hears,
    nemotron_parts,
    nemotron_sees,
    parakeet,
    radio,
    rewritten,
    same_text_width,
    same_width,
    text_width,
    unrotated_latents,
    untied,
)
from planner.topology.multimodal import Sense, multimodal
from planner.topology.projectors import kimi_grid, mistral3_projector, nothing, unknown
from planner.topology.sparse import gate_and_sinks, indexers, one_of_four, streams
from planner.topology.towers import Further, counted, vit

ROUTED = {"num_experts": "n_routed_experts"}

SOUND = "how long a frame of sound is"

UNWEIGHTED = Norm(0, affine=False)

MUSE: dict[str, Any] = dict(qk_norm="head", qk_norm_form=UNWEIGHTED, gate="element", windows=muse_text_windows,
                            qkv_bias="attention_bias", out_bias="attention_bias")  # fmt: skip

MUSE_IGNORES = (
    "layer_rope_theta",
    "qk_scale_factor",
    "output_multiplier",
    "post_norm_eps",
    "residual_gate_temperature",
)

MUSE_VISION = Sense("vision", "vision_config", "vision_tower", muse_projector)

INKLING2_VISION = Sense("vision", "vision_config", "vision_tower", same_text_width)

LARGE_TOWERS: dict[str, Family] = {
    "cosmos3_edge_vision": row(
        vit, "Cosmos3EdgeVisionModel", epsilon="layer_norm_eps", patch="linear", patch_bias=True,
        positions=counted("num_patches"), norms="post", image=None,
    ),
    "inkling_vision": row(inkling_patches, "InklingVisionModel"),
    "inkling_audio": row(inkling_sound, "InklingAudioModel"),
    "inkling2_vision": row(inkling2_tower, "Inkling2VisionModel"),
    **{
        kind: row(
            vit, architecture, {"temporal_patch_size": "patch_temporal"}, epsilon="layer_norm_eps", patch="linear", frames=True,
            positions=kimi_grid, norms="pre post", windows=muse_windows, image=None,
            paths=("patch_embedder.patch_embedding", "layers"),
        )
        for kind, architecture in (
            ("muse_glimmer_vision", "MuseGlimmerVisionModel"), ("muse_spark_vision", "MuseSparkVisionModel"),
        )
    },
    "muse_spark_audio": row(muse_sound, "MuseSparkAudioModel"),
    "hy_v4_vl_vision": row(
        vit, "HYV4VLVisionModel", epsilon="rms_norm_eps", patch_bias=True, positions=hy_grid, image=None,
        further=Further(back=hy_merger), paths=("embeddings.patch_embedding", "layers"), ignores=("interpolate_mode",),
    ),
    "molmo2_vision": row(molmo_tower, "Molmo2VisionModel"),
    "molmo2_adapter": row(qformer, "Molmo2Adapter"),
    "apertus1p5_vision_tokenizer": row(image_codes, "Apertus1p5VisionTokenizerModel", ignores=("spatial_scale_factor",)),
    "wavtokenizer_encoder": row(
        sound_codes, "WavTokenizerEncoderModel",
        ignores=(
            "decoder_hidden_size", "decoder_intermediate_size", "decoder_num_layers", "decoder_attention_num_groups",
            "adanorm_num_embeddings", "dilation_growth_rate", "pad_mode", "use_causal_conv", "norm_eps",
        ),
    ),
    "parakeet_encoder": row(parakeet, "ParakeetEncoder", ignores=("scale_input",)),
    "radio": row(radio, "RadioModel", ignores=("image_size", "patch_dim", "video_patch_dim", "layerscale_value", "norm_mean", "norm_std")),
}  # fmt: skip

MM_LARGE: dict[str, Family] = {
    "apertus1p5": row(
        multimodal, "Apertus1p5ForConditionalGeneration",
        senses=(
            Sense("vision", "vision_config", "vision_tokenizer", nothing, unknown),
            Sense("audio", "audio_config", "audio_tokenizer", nothing, codes_each_second, "the rate of samples", 1),
        ),
        ignores=("image_token_offset", "audio_token_offset"),
    ),
    "cosmos3_omni": row(
        rewritten, "Cosmos3OmniForConditionalGeneration", change=always_qwen3,
        senses=(Sense("vision", "vision_config", "visual", nothing),),
    ),
    "cosmos3_edge": row(
        multimodal, "Cosmos3EdgeForConditionalGeneration", instead=untied, senses=(Sense("vision", "vision_config", "visual", edge_projector),),
    ),
    "cosmos3_edge_text": row(
        decoder, "Cosmos3EdgeTextModel", feeds=feed_forward(gated=False, bias="mlp_bias"),
        mixers=attention(qkv_bias="attention_bias", out_bias="attention_bias", even_if_null=True),
    ),
    "inkling_mm_model": row(
        rewritten, "InklingForConditionalGeneration", change=text_width("inkling_text"), instead=untied,
        senses=(
            Sense("vision", "vision_config", "vision_tower", nothing, unknown),
            Sense("audio", "audio_config", "audio_tower", nothing, unknown, SOUND),
        ),
        ignores=("mtp_config",),
    ),
    "inkling2": row(
        multimodal, "Inkling2ForConditionalGeneration", senses=(INKLING2_VISION,), instead=untied,
    ),
    "inkling2_loop": row(
        multimodal, "Inkling2LoopForConditionalGeneration", senses=(INKLING2_VISION,), instead=untied,
    ),
    "muse_glimmer": row(multimodal, "MuseGlimmerForConditionalGeneration", senses=(MUSE_VISION,)),
    "muse_glimmer_text": row(
        decoder, "MuseGlimmerTextModel", wiring="sandwich", unit_offset=True, mixers=attention(**MUSE),
        feeds=feed_forward(activation="hidden_activation"), ignores=MUSE_IGNORES,
    ),
    "muse_spark": row(
        multimodal, "MuseSparkForConditionalGeneration", instead=untied,
        senses=(MUSE_VISION, Sense("audio", "audio_config", "audio_tower", same_width, unknown, "the rate of samples")),
    ),
    "muse_spark_text": row(
        narrowed_experts, "MuseSparkTextModel", {"num_experts": "num_local_experts"}, unit_offset=True,
        mixers=attention(**MUSE), feeds=mixture(sparse=listed(every_layer), scoring="sigmoid", correction_bias=True),
        ignores=MUSE_IGNORES,
    ),
    "hy_v4_vl": row(
        multimodal, "HYV4VLForConditionalGeneration", senses=(Sense("vision", "vision_config", "vision_tower", nothing),),
    ),
    "hy_v4_vl_text": row(
        streams, "HYV4VLTextModel", ROUTED, mixed=False,
        mixers=latent_attention(bias="attention_bias", choosers=indexers(one_of_four), extra=gate_and_sinks),
        feeds=mixture(sparse=listed(but_the_first), correction_bias=True, scoring="sigmoid"),
    ),
    "molmo2": row(
        rewritten, "Molmo2ForConditionalGeneration", change=molmo_parts, instead=untied, ignores=("image_patch_id",),
        senses=(
            Sense("vision", "vision_config", "vision_tower", molmo_projector, unknown, "the number of crops of an image"),
        ),
    ),
    "molmo2_text": row(
        molmo, "Molmo2TextModel", mixers=molmo_attention, wiring=molmo_wiring, ignores=("rope_scaling_layers",),
    ),
    "mistral_large4": row(
        multimodal, "MistralLarge4ForConditionalGeneration",
        senses=(Sense("vision", "vision_config", "vision_tower", mistral3_projector),),
    ),
    "mistral_large4_text": row(
        learned_rotation, "MistralLarge4TextModel", ROUTED, mixers=unrotated_latents,
        feeds=mixture(sparse=listed(but_the_first), scoring="softmax"),
    ),
    "nemotron_h_omni": row(
        rewritten, "NemotronH_Omni_Reasoning_V3", change=nemotron_parts, at="language_model.model.",
        senses=(
            Sense("vision", "vision_config", "vision_model", nemotron_sees, unknown),
            Sense("audio", "audio_config", "audio_tower", nemotron_hears, unknown, SOUND),
        ),
        ignores=("force_image_size", "video_pruning_rate", "video_temporal_patch_size"),
    ),
}  # fmt: skip
