"""Families with vision or audio towers, and the text models inside them, a row each."""

from __future__ import annotations

from typing import Any

from planner.families.mm_blip import BLIP_TOWERS
from planner.families.mm_glm import TOWERS as GLM_TOWERS
from planner.families.mm_large import LARGE_TOWERS
from planner.families.mm_llava import LLAVA_TOWERS
from planner.families.mm_more import TOWERS as MORE_TOWERS
from planner.families.row import Family, row
from planner.topology.attention import attention, every_window, late_windows
from planner.topology.blt import blt
from planner.topology.decoder import decoder
from planner.topology.feed_forward import every_step, feed_forward, mixture, shared_width
from planner.topology.gemma import gemma3n, gemma4
from planner.topology.listeners import (
    fun_asr_encoder,
    fun_asr_projector,
    gemma4_audio,
    got_projector,
    got_tower,
    granite_conformer,
    granite_projector,
    phi4_audio,
    phi4_hears,
    phi4_sees,
    qformer,
    streamed,
    vibe_hears,
    vibe_speaks,
)
from planner.topology.mllama import mllama, mllama_projector, mllama_tower
from planner.topology.multimodal import Sense, leaving, multimodal
from planner.topology.projectors import (
    all_shared,
    aria_projector,
    audio_asr,
    audio_linear,
    audio_merged,
    audio_stacked,
    audio_stretched,
    audio_two,
    deepstack,
    drafting,
    fuyu_patches,
    gated_projector,
    gemma3_projector,
    gemma3_tokens,
    gemma4_clips,
    gemma4_hears,
    gemma4_projector,
    gemma4_scales,
    gemma4_tables,
    gemma4_tokens,
    git_projector,
    internvl_projector,
    internvl_tower,
    kimi_grid,
    kimi_projector,
    lfm2_projector,
    linear_projector,
    llama4_adapter,
    llama4_projector,
    llama4_rows,
    llava_projector,
    llava_tokens,
    merged_tokens,
    minimax_projector,
    mistral3_projector,
    moshi,
    newline_projector,
    nothing,
    one_merger,
    phi3_sees,
    qwen_merger,
    ratio,
    raw_patches,
    raw_samples,
    raw_sees,
    raw_tokens,
    shuffled_projector,
    spectrum,
    stacked_tokens,
    step_downsamplers,
    step_hidden,
    step_projector,
    step_rows,
    timed,
    unknown,
)
from planner.topology.step import step_attention, step_experts
from planner.topology.towers import Further, and_class, counted, every_patch, square_windows, vit, waves
from planner.topology.transcribe import transcriber


def prefix_alone(_: Any) -> dict[str, Any]:
    """PaliGemma's text model sees images and the prompt both ways, as prefixes do (--prefix), and isn't an encoder."""
    return {"use_bidirectional_attention": None}


QWEN_NAMES = dict(num_hidden_layers="depth", num_attention_heads="num_heads", num_channels="in_channels")

QWEN: dict[str, Any] = dict(frames=True, image=None, paths=("patch_embed.proj", "blocks"))

MOON_VIT: dict[str, Any] = dict(
    epsilon=1e-5, patch_bias=True, positions=kimi_grid, norms="post", image=None, paths=("patch_embed.proj", "layers")
)


def audio(kind: Any, tokens: Any) -> tuple[Sense, ...]:
    """Return the one sense of a model that hears."""
    return (Sense("audio", "audio_config", "audio_tower", kind, tokens, "how the tower cuts sound"),)


QWEN_VISION = Sense("vision", "vision_config", "visual", nothing)

LLAVA_VISION = Sense("vision", "vision_config", "vision_tower", llava_projector, llava_tokens)

TOWERS: dict[str, Family] = {
    **GLM_TOWERS,
    **BLIP_TOWERS,
    "siglip_vision_model": row(
        vit, "SiglipVisionModel", epsilon="layer_norm_eps", patch_bias=True, positions=every_patch, norms="post",
        pooling="vision_use_head",
    ),
    "siglip2_vision_model": row(
        vit, "Siglip2VisionModel", epsilon="layer_norm_eps", patch_bias=True, positions=counted("num_patches"), norms="post",
        pooling="vision_use_head", image=None, patch="linear",
    ),
    "clip_vision_model": row(
        vit, "CLIPVisionModel", ignores=("projection_dim",), epsilon="layer_norm_eps", class_token=True, positions=and_class,
        norms="pre post",
    ),
    "pixtral": row(
        vit, "PixtralVisionModel", ignores=("image_size",), norm="rms", epsilon=1e-5, gated=True, biases="", norms="pre", image=None, paths=("patch_conv", "transformer.layers"),
    ),
    "qwen2_vl_vision": row(
        vit, "Qwen2VisionTransformerPretrainedModel", {**QWEN_NAMES, "out_hidden_size": "hidden_size"}, width="embed_dim",
        hidden=ratio, further=Further(back=qwen_merger("layer")), **QWEN
    ),
    "qwen2_5_vl_vision": row(
        vit, "Qwen2_5_VisionTransformerPretrainedModel", QWEN_NAMES, norm="rms", gated=True, windows=square_windows,
        further=Further(back=qwen_merger("rms")), **QWEN
    ),
    "exaone4_5_vision": row(
        vit, "Exaone4_5_VisionModel", QWEN_NAMES, norm="rms", gated=True, grouped=True, windows=square_windows,
        further=Further(back=qwen_merger("rms")), **QWEN
    ),
    **{
        kind: row(
            vit, "Qwen3VLVisionModel", QWEN_NAMES, patch_bias=True, positions=counted("num_position_embeddings"),
            further=Further(back=deepstack), **QWEN
        )
        for kind in ("qwen3_vl_vision", "qwen3_vl_moe_vision")
    },
    **{
        kind: row(
            vit, "Qwen3_5VisionModel", QWEN_NAMES, ignores=("deepstack_visual_indexes",), patch_bias=True,
            positions=counted("num_position_embeddings"), further=Further(back=one_merger), **QWEN
        )
        for kind in ("qwen3_5_vision", "qwen3_5_moe_vision")
    },
    "gemma4_vision": row(
        vit, "Gemma4VisionModel", norm="rms", gated=True, biases="", grouped=True,
        qk_norm=True, own_head=True, wiring="sandwich", patch="linear", further=Further(gemma4_tables, gemma4_clips, gemma4_scales), image=None,
        paths=("patch_embedder.input_proj", "encoder.layers"), ignores=("attention_bias", "global_head_dim"),
    ),
    "minimax_m3_vl_vision": row(
        vit, "MiniMaxM3VLVisionModel", epsilon="layer_norm_eps", frames=True, norms="pre", image=None,
        ignores=("image_size", "projection_dim", "position_embedding_type"), paths=("embeddings.proj", "layers"),
    ),
    "step3p5_vision": row(
        vit, "Step3p7VisionModel", {"hidden_size": "width", "num_hidden_layers": "layers", "num_attention_heads": "heads"},
        epsilon="layer_norm_eps", hidden=step_hidden, wiring="scaled", positions=every_patch, norms="pre", further=Further(back=step_downsamplers),
        leaving=step_rows, paths=("embeddings.patch_embedding", "layers"), ignores=("intermediate_size",),
    ),
    **{
        kind: row(
            vit, "Idefics3VisionTransformer", epsilon="layer_norm_eps", patch_bias=True, positions=every_patch, norms="post",
        )
        for kind in ("idefics3_vision", "smolvlm_vision")
    },
    "nemotron3_5_transcribe_audio": row(qformer, "Nemotron3_5TranscribeAudioModel"),
    "nemotron3_5_transcribe_asr_audio": row(qformer, "Nemotron3_5TranscribeAsrAudioModel"),
    "nemotron3_5_transcribe_word_timestamp": row(qformer, "Nemotron3_5TranscribeWordTimestampModel"),
    "nemotron3_diarization": row(qformer, "Nemotron3DiarizationForAudioFrameClassification"),
    "nemotron3_diarization_audio": row(qformer, "Nemotron3DiarizationAudioModel"),
    "vibevoice_acoustic_tokenizer": row(qformer, "VibeVoiceAcousticTokenizerModel"),
    "vibevoice_diffusion": row(qformer, "VibeVoiceDiffusionHead"),
    "vibevoice_acoustic_tokenizer_encoder": row(qformer, "VibeVoiceAcousticTokenizerEncoderModel"),
    "internvl_vision": row(internvl_tower, "InternVLVisionModel"),
    "gemma4_unified_vision": row(raw_patches, "Gemma4UnifiedVisionEmbedder"),
    "gemma4_unified_audio": row(raw_samples, "Gemma4UnifiedMultimodalEmbedder", {"output_proj_dims": "audio_embed_dim"}),
    "gemma4_audio": row(gemma4_audio, "Gemma4AudioModel"),
    "fun_asr_nano_encoder": row(fun_asr_encoder, "FunAsrNanoEncoder", ignores=("num_attention_heads",)),
    **{
        kind: row(
            granite_conformer, "GraniteSpeechCTCEncoder",
            {"hidden_size": "hidden_dim", "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"},
        )
        for kind in ("granite_speech_encoder", "granite_speech_plus_encoder")
    },
    "blip_2_qformer": row(qformer, "Blip2QFormerModel"),
    "blt_patcher": row(qformer, "BltPatcher"),
    "blt_local_encoder": row(qformer, "BltLocalEncoder"),
    "blt_global_transformer": row(qformer, "BltGlobalTransformer"),
    "blt_local_decoder": row(qformer, "BltLocalDecoder"),
    "phi4_multimodal_audio": row(phi4_audio, "Phi4MultimodalAudioModel", {"num_hidden_layers": "num_blocks"}),
    "phi4_multimodal_vision": row(
        vit, "Phi4MultimodalVisionModel", epsilon="layer_norm_eps", patch_bias=True, positions=every_patch, norms="post", pooling=True,
    ),
    "got_ocr2_vision": row(got_tower, "GotOcr2VisionEncoder"),
    "voxtral_realtime_encoder": row(streamed, "VoxtralRealtimeEncoder"),
    "git_vision_model": row(
        vit, "GitVisionModel", ignores=("projection_dim",), epsilon="layer_norm_eps", class_token=True, positions=and_class,
        norms="pre post",
    ),
    "mllama_vision_model": row(mllama_tower, "MllamaVisionModel"),
    "qwen2_audio_encoder": row(waves, "Qwen2AudioEncoder", merge=2),
    "audioflamingo3_encoder": row(waves, "AudioFlamingo3Encoder", merge=2),
    "voxtral_encoder": row(waves, "VoxtralEncoder"),
    "glmasr_encoder": row(waves, "GlmAsrEncoder", positions=None, rows="max_position_embeddings"),
    "moss_transcribe_diarize_audio": row(waves, "MossTranscribeDiarizeAudioModel"),
    "qwen3_asr_encoder": row(spectrum, "Qwen3ASREncoder"),
    "kimi_k25_vision": row(
        vit, "Kimi_K25VisionModel",
        {
            "hidden_size": "vt_hidden_size", "intermediate_size": "vt_intermediate_size", "num_hidden_layers": "vt_num_hidden_layers",
            "num_attention_heads": "vt_num_attention_heads", "pos_emb_height": "init_pos_emb_height",
            "pos_emb_width": "init_pos_emb_width",
        },
        **MOON_VIT
    ),
    "moonvit": row(
        vit, "MoonVitPretrainedModel", {"pos_emb_height": "init_pos_emb_height", "pos_emb_width": "init_pos_emb_width"}, **MOON_VIT
    ),
    "llama4_vision_model": row(
        vit, "Llama4VisionModel", ignores=("multi_modal_projector_bias",), epsilon=1e-5, class_token=True, positions=and_class,
        norms="pre post", patch="linear", further=Further(back=llama4_adapter), leaving=llama4_rows,
        paths=("patch_embedding.linear", "model.layers"),
    ),
    **LLAVA_TOWERS,
    **LARGE_TOWERS,
    **MORE_TOWERS,
}  # fmt: skip

MULTIMODAL: dict[str, Family] = {
    "gemma3": row(
        multimodal, "Gemma3ForConditionalGeneration",
        senses=(Sense("vision", "vision_config", "vision_tower", gemma3_projector, gemma3_tokens),),
    ),
    "llava": row(multimodal, "LlavaForConditionalGeneration", senses=(LLAVA_VISION,), ties="either"),
    "mistral3": row(
        multimodal, "Mistral3ForConditionalGeneration",
        senses=(Sense("vision", "vision_config", "vision_tower", mistral3_projector),),
    ),
    "qwen2_vl": row(multimodal, "Qwen2VLForConditionalGeneration", senses=(QWEN_VISION,), ties="either", flat=True),
    "qwen2_vl_text": row(decoder, "Qwen2VLTextModel", mixers=attention(qkv_bias=True, windows=late_windows)),
    "qwen2_5_vl": row(multimodal, "Qwen2_5_VLForConditionalGeneration", senses=(QWEN_VISION,), ties="either", flat=True),
    "qwen2_5_vl_text": row(decoder, "Qwen2_5_VLTextModel", mixers=attention(qkv_bias=True, windows=late_windows)),
    "qwen3_vl": row(multimodal, "Qwen3VLForConditionalGeneration", senses=(QWEN_VISION,)),
    "qwen3_vl_text": row(
        decoder, "Qwen3VLTextModel", mixers=attention(qk_norm="head", qkv_bias="attention_bias", out_bias="attention_bias"),
    ),
    "qwen3_vl_moe": row(multimodal, "Qwen3VLMoeForConditionalGeneration", senses=(QWEN_VISION,)),
    "qwen3_vl_moe_text": row(
        decoder, "Qwen3VLMoeTextModel", mixers=attention(qk_norm="head", qkv_bias="attention_bias", out_bias="attention_bias"),
        feeds=mixture(sparse=every_step, scoring="softmax"),
    ),
    "qwen3_5": row(
        multimodal, "Qwen3_5ForConditionalGeneration", classes=("Qwen3_5ForCausalLM",), senses=(QWEN_VISION,),
        text_classes=("Qwen3_5ForCausalLM",),
    ),
    "qwen3_5_moe": row(
        multimodal, "Qwen3_5MoeForConditionalGeneration", classes=("Qwen3_5MoeForCausalLM",), senses=(QWEN_VISION,),
        text_classes=("Qwen3_5MoeForCausalLM",),
    ),
    "kimi_k25": row(
        multimodal, "Kimi_K25ForConditionalGeneration", senses=(Sense("vision", "vision_config", "vision_tower", kimi_projector),),
    ),
    "kimi_vl": row(  # published with code of its own
        multimodal, "KimiVLForConditionalGeneration", senses=(Sense("vision", "vision_config", "vision_tower", kimi_projector),),
    ),
    "llama4": row(
        multimodal, "Llama4ForConditionalGeneration", classes=("Llama4ForCausalLM",), text_classes=("Llama4ForCausalLM",), ties="text",
        senses=(
            Sense("vision", "vision_config", "vision_model", llama4_projector, unknown, "the number of tiles that an image is cut into"),
        ),
        at="language_model.model.",
    ),
    "gemma3n_text": row(gemma3n, "Gemma3nForCausalLM"),
    "gemma4": row(
        multimodal, "Gemma4ForConditionalGeneration",
        senses=(
            Sense("vision", "vision_config", "vision_tower", gemma4_projector, gemma4_tokens),
            Sense("audio", "audio_config", "audio_tower", gemma4_hears, unknown, "how long a frame of sound is"),
        ),
    ),
    "gemma4_text": row(gemma4, "Gemma4ForCausalLM", {"num_experts_per_tok": "top_k_experts"}),
    "gemma4_unified_text": row(gemma4, "Gemma4UnifiedForCausalLM"),
    "dots3_note": row(  # the text model alone; its vision tower has experts, and isn't modelled
        multimodal, "Dots3NoteForCausalLM", senses=(), text_classes=("Dots3NoteForCausalLM",), ignores=("vision_config", "audio_config"),
    ),
    "minimax_m3_vl": row(
        multimodal, "MiniMaxM3SparseForConditionalGeneration", ties="either",
        senses=(Sense("vision", "vision_config", "vision_tower", minimax_projector),),
        ignores=("vision_feature_layer", "multimodal_projector_bias"),
    ),
    "step3p7": row(
        multimodal, "Step3p7ForConditionalGeneration", classes=("Step3p7FlashForCausalLM",), flat="published",
        senses=(Sense("vision", "vision_config", "vision_model", step_projector),),
    ),
    "step3p5": row(
        decoder, "Step3p5ForCausalLM", {"num_experts": "n_routed_experts", "routed_scaling_factor": "moe_router_scaling_factor"},
        mixers=step_attention, unit_offset=True,
        feeds=mixture(correction_bias=True, scoring="sigmoid", sparse=step_experts, dense=feed_forward(bias="mlp_bias"),
                      shared=shared_width("share_expert_dim"), shared_bias="mlp_bias"),
        ignores=("n_shared_experts",),
    ),
    "gemma4_unified": row(
        multimodal, "Gemma4UnifiedForConditionalGeneration",
        senses=(
            Sense("vision", "vision_config", "embed_vision", raw_sees, raw_tokens),
            Sense("audio", "audio_config", "embed_audio", gemma4_hears, unknown, "how long a frame of sound is"),
        ),
    ),
    **{
        kind: row(multimodal, architecture, senses=(), instead=all_shared, extra=drafting, at="model.")
        for kind, architecture in (
            ("gemma4_assistant", "Gemma4AssistantForCausalLM"),
            ("gemma4_unified_assistant", "Gemma4UnifiedAssistantForCausalLM"),
        )
    },
    "phi3_v": row(
        multimodal, "Phi3VForCausalLM", own=row(decoder, "Phi3VForCausalLM", mixers=attention(windows=every_window)), senses=(),
        extra=phi3_sees, at="model.",
    ),
    "paligemma": row(
        multimodal, "PaliGemmaForConditionalGeneration", senses=(Sense("vision", "vision_config", "vision_tower", linear_projector),),
        instead=prefix_alone,
        ignores=("hidden_size", "vocab_size", "projection_dim"),
    ),
    **{
        kind: row(
            multimodal, architecture, ties="either",
            senses=(Sense("vision", "vision_config", "vision_tower", newline_projector, unknown, "the number of tiles of an image"),),
        )
        for kind, architecture in (
            ("llava_next", "LlavaNextForConditionalGeneration"), ("llava_onevision", "LlavaOnevisionForConditionalGeneration"),
        )
    },
    **{
        kind: row(
            multimodal, architecture, at="model.text_model.",
            senses=(Sense("vision", "vision_config", "vision_model", shuffled_projector, unknown, "the number of tiles of an image"),),
        )
        for kind, architecture in (
            ("idefics3", "Idefics3ForConditionalGeneration"), ("smolvlm", "SmolVLMForConditionalGeneration"),
        )
    },
    "internvl": row(
        multimodal, "InternVLForConditionalGeneration",
        senses=(Sense("vision", "vision_config", "vision_tower", internvl_projector, unknown, "the number of tiles of an image"),),
        ignores=("vision_feature_layer",),
    ),
    **{
        kind: row(
            multimodal, architecture, ignores=("vision_feature_layer",),
            senses=(Sense("vision", "vision_config", "vision_tower", gated_projector, unknown, "the number of tiles of an image"),),
        )
        for kind, architecture in (
            ("aya_vision", "AyaVisionForConditionalGeneration"), ("cohere2_vision", "Cohere2VisionForConditionalGeneration"),
        )
    },
    "aria": row(
        multimodal, "AriaForConditionalGeneration", ignores=("vision_feature_layer",),
        senses=(Sense("vision", "vision_config", "vision_tower", aria_projector, unknown, "the number of tiles of an image"),),
    ),
    "mllama": row(
        multimodal, "MllamaForConditionalGeneration", classes=("MllamaForCausalLM",), text_classes=("MllamaForCausalLM",),
        senses=(
            Sense("vision", "vision_config", "vision_model", mllama_projector, unknown, "the number of tiles that an image is cut into"),
        ),
    ),
    "mllama_text_model": row(mllama, "MllamaForCausalLM"),
    "fuyu": row(multimodal, "FuyuForCausalLM", senses=(), flat=True, extra=fuyu_patches),
    "emu3": row(
        multimodal, "Emu3ForConditionalGeneration", classes=("Emu3ForCausalLM",), text_classes=("Emu3ForCausalLM",),
        senses=(Sense("vision", "vq_config", "vqmodel", nothing),),
    ),
    "emu3_text_model": row(decoder, "Emu3ForCausalLM"),
    "moshi": row(
        moshi, "MoshiForCausalLM", ignores=("tie_word_embeddings",),
    ),
    "git": row(
        multimodal, "GitForCausalLM", at="git.",
        own=row(
            decoder, "GitForCausalLM", wiring="post", norm="layer", norm_bias=True, final_norm=False, learned_positions=True,
            table_norm=True, head_bias=True, mixers=attention(qkv_bias=True, out_bias=True, positions="none"),
            feeds=feed_forward(gated=False, bias=True),
        ),
        senses=(Sense("vision", "vision_config", "image_encoder.vision_model", git_projector, unknown, "the number of frames"),),
        ignores=("position_embedding_type", "num_image_with_embedding"),
    ),
    "phi4_multimodal": row(
        multimodal, "Phi4MultimodalForCausalLM", at="model.", own=row(decoder, "Phi4MultimodalForCausalLM", mixers=attention(windows=every_window)),
        senses=(
            Sense("vision", "vision_config", "embed_tokens_extend.image_embed.img_processor", phi4_sees, unknown,
                  "the number of tiles that an image is cut into"),
            Sense("audio", "audio_config", "embed_tokens_extend.audio_embed.encoder", phi4_hears, unknown, "how long a frame of sound is"),
        ),
    ),
    "got_ocr2": row(
        multimodal, "GotOcr2ForConditionalGeneration",
        senses=(Sense("vision", "vision_config", "vision_tower", got_projector, unknown, "the number of tiles that an image is cut into"),),
    ),
    "fun_asr_nano": row(
        multimodal, "FunAsrNanoForConditionalGeneration", senses=audio(fun_asr_projector, unknown),
    ),
    **{
        kind: row(
            multimodal, architecture,
            senses=(Sense("audio", "encoder_config", "encoder", granite_projector, unknown, "how long a frame of sound is"),),
        )
        for kind, architecture in (
            ("granite_speech", "GraniteSpeechForConditionalGeneration"), ("granite_speech_plus", "GraniteSpeechPlusForConditionalGeneration"),
        )
    },
    "voxtral_realtime": row(
        multimodal, "VoxtralRealtimeForConditionalGeneration", senses=audio(audio_stretched, unknown), merged=True,
    ),
    "voxtral_realtime_text": row(timed, "VoxtralRealtimeTextModel"),
    "qwen2_audio": row(
        multimodal, "Qwen2AudioForConditionalGeneration", senses=audio(audio_linear, leaving),
    ),
    "audioflamingo3": row(multimodal, "AudioFlamingo3ForConditionalGeneration", senses=audio(audio_two, leaving)),
    "musicflamingo": row(multimodal, "MusicFlamingoForConditionalGeneration", senses=audio(audio_two, leaving)),
    "voxtral": row(
        multimodal, "VoxtralForConditionalGeneration", senses=audio(audio_stacked(1, bias=False), stacked_tokens), merged=True,
    ),
    "glmasr": row(
        multimodal, "GlmAsrForConditionalGeneration", senses=audio(audio_stacked(2, bias=True), stacked_tokens), merged=True,
    ),
    "moss_transcribe_diarize": row(
        multimodal, "MossTranscribeDiarizeForConditionalGeneration", senses=audio(audio_merged, merged_tokens),
    ),
    "vibevoice": row(multimodal, "VibeVoiceForConditionalGeneration", senses=(), ties="text", extra=vibe_speaks),
    "nemo_speechlm": row(transcriber, "Nemotron3_5TranscribeForConditionalGeneration"),
    "vibevoice_asr": row(multimodal, "VibeVoiceAsrForConditionalGeneration", senses=(), extra=vibe_hears),
    "qwen3_asr": row(multimodal, "Qwen3ASRForConditionalGeneration", senses=audio(audio_asr, unknown)),
    "lfm2_vl": row(
        multimodal, "Lfm2VlForConditionalGeneration", {"tie_word_embeddings": "tie_embedding"},
        senses=(Sense("vision", "vision_config", "vision_tower", lfm2_projector),),
    ),
    "exaone4_5": row(
        multimodal, "Exaone4_5_ForConditionalGeneration", senses=(QWEN_VISION,), aliases={"exaone4_5_text": "exaone4"},
    ),
    "blt": row(blt, "BltForCausalLM", ignores=("patch_size", "max_position_embeddings", "rope_parameters")),
}  # fmt: skip
