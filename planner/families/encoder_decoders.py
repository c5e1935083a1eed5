"""Encoder-decoder families, a row each."""

from __future__ import annotations

from typing import Any

from planner.families.row import Family, row
from planner.topology.attention import alternate, attention, every_window, five_of_six
from planner.topology.encoder_decoder import (
    Experts,
    Own,
    after_padding,
    big_bird_layers,
    composers,
    encoder_decoder,
    every_nth_layer,
    free_head,
    gated_mel,
    led_layers,
    long_t5_layers,
    marian_words,
    own_tokens,
    pegasus_x_layers,
    piano_act,
    speech_t5_front,
    speech_t5_layers,
    stream_rows,
    stream_table,
    streams_ahead,
    switch_layers,
    t5_act,
    two_languages,
    whisper_convolutions,
)
from planner.topology.feed_forward import feed_forward
from planner.topology.joined import joined
from planner.topology.paired import (
    beside,
    channels,
    codebook_rows,
    codec,
    conformer,
    gemma_sight,
    half,
    half_of,
    hearing,
    inside,
    moonshine_front,
    moonshine_heads,
    moonshine_stream,
    own_heads,
    paired,
    side,
    side_names,
    singing,
    transcribing,
    wav2vec,
)

BART_NAMES = dict(hidden_size="d_model")
T5: dict[str, Any] = dict(
    norm="rms", attention_bias=False, mlp_bias=False, act=t5_act, positions="relative", unscaled_scores=True,
    head_width="head_dim", engine_may_tie=True,
)  # fmt: skip
T5_NAMES = dict(
    hidden_size="d_model", head_dim="d_kv", encoder_layers="num_layers", decoder_layers="num_decoder_layers",
    encoder_attention_heads="num_heads", decoder_attention_heads="num_heads",
    encoder_ffn_dim="d_ff", decoder_ffn_dim="d_ff",
)  # fmt: skip
T5_CLASS = "T5ForConditionalGeneration"

GEMMA: dict[str, Any] = dict(
    unit_offset=True, wiring="sandwich", scaled=True, feeds=feed_forward(activation="hidden_activation")
)
BIASES: dict[str, Any] = dict(qkv_bias="attention_bias", out_bias="attention_bias")
GEMMA_2 = dict(mixers=attention(windows=alternate, **BIASES), **GEMMA)
GEMMA_3 = dict(mixers=attention(windows=five_of_six, qk_norm="head", unit_offset=True, **BIASES), **GEMMA)
BART_HALF: dict[str, Any] = dict(
    norm="layer", norm_bias=True, table_norm=True, mixers=attention(positions="none", **BIASES),
    feeds=feed_forward(gated=False, bias=True),
)  # fmt: skip

MOONSHINE: dict[str, Any] = dict(norm="layer", mixers=moonshine_heads)

SEAMLESS: dict[str, Any] = dict(
    positions="sinusoidal", halved_waves=True, offset=2,
    own=Own(notes=("text to text only: the speech encoder, the text-to-unit model and the vocoder are left out",)),
    ignores=(
        "adaptor_kernel_size", "adaptor_stride", "add_adapter", "char_vocab_size", "conv_depthwise_kernel_size",
        "feature_projection_input_dim", "lang_embed_dim", "leaky_relu_slope", "left_max_position_embeddings",
        "max_new_tokens", "max_source_positions", "num_adapter_layers", "num_conv_pos_embedding_groups",
        "num_conv_pos_embeddings", "position_embeddings_type", "resblock_dilation_sizes", "resblock_kernel_sizes",
        "right_max_position_embeddings", "rotary_embedding_base", "sampling_rate", "speech_encoder_attention_heads",
        "speech_encoder_chunk_size", "speech_encoder_hidden_act", "speech_encoder_intermediate_size",
        "speech_encoder_layers", "speech_encoder_left_chunk_num", "spkr_embed_dim", "t2u_decoder_attention_heads",
        "t2u_decoder_ffn_dim", "t2u_decoder_layers", "t2u_encoder_attention_heads", "t2u_encoder_ffn_dim",
        "t2u_encoder_layers", "t2u_max_new_tokens", "t2u_max_position_embeddings", "t2u_variance_predictor_embed_dim",
        "t2u_variance_predictor_hidden_dim", "t2u_variance_predictor_kernel_size", "t2u_vocab_size", "unit_embed_dim",
        "unit_hifi_gan_vocab_size", "upsample_initial_channel", "upsample_kernel_sizes", "upsample_rates",
        "variance_predictor_kernel_size", "vocoder_num_langs", "vocoder_num_spkrs", "vocoder_offset",
    ),
)  # fmt: skip

MELODY = ("num_chroma", "chroma_length")
SPEECH_T5_SPEAKS = (
    "feat_extract_activation", "guided_attention_loss_num_heads", "guided_attention_loss_scale",
    "guided_attention_loss_sigma", "num_feat_extract_layers", "num_mel_bins", "reduction_factor",
    "speaker_embedding_dim", "speech_decoder_postnet_kernel", "speech_decoder_postnet_layers",
    "speech_decoder_postnet_units", "speech_decoder_prenet_layers", "speech_decoder_prenet_units",
    "use_guided_attention_loss",
)  # fmt: skip
WAV2VEC_TRAINED = (
    "adapter_attn_dim", "adapter_kernel_size", "adapter_stride", "codevector_dim", "contrastive_logits_temperature",
    "ctc_loss_reduction", "ctc_zero_infinity", "diversity_loss_weight", "feat_extract_activation",
    "num_adapter_layers", "num_codevector_groups", "num_codevectors_per_group", "num_feat_extract_layers",
    "num_negatives", "proj_codevector_dim", "tdnn_dilation", "tdnn_dim", "tdnn_kernel", "tie_word_embeddings",
    "vocab_size", "xvector_output_dim",
)  # fmt: skip

MIMI_IDLE = (
    "tie_word_embeddings", "dilation_growth_rate", "use_causal_conv", "pad_mode", "trim_right_ratio", "use_streaming",
    "layer_scale_initial_scale", "norm_eps", "sampling_rate", "frame_rate", "frame_size", "max_position_embeddings",
    "normalize", "upsample_groups",
)  # fmt: skip
MUSIC_NAMES = dict(intermediate_size="ffn_dim")
MUSIC: dict[str, Any] = dict(
    norm="layer", norm_bias=True, positions="sinusoidal", mixers=attention(positions="none"),
    feeds=feed_forward(gated=False, activation="activation_function"),
)  # fmt: skip

GEMMA_IDLE = ("is_decoder", "cross_attention_hidden_size", "tie_word_embeddings", "final_logit_softcapping")

PARTS: dict[str, Family] = {
    "t5_gemma_module": row(half, "T5GemmaModule", ignores=GEMMA_IDLE, **GEMMA_2),
    "t5gemma2_encoder": row(half, "T5Gemma2Encoder"),
    "t5gemma2_text": row(half, "T5Gemma2TextEncoder", ignores=GEMMA_IDLE, **GEMMA_3),
    "t5gemma2_decoder": row(half, "T5Gemma2Decoder", ignores=GEMMA_IDLE, **GEMMA_3),
    "dia_encoder": row(half, "DiaEncoder", {"rms_norm_eps": "norm_eps"}),
    "dia_decoder": row(half, "DiaDecoder", {"rms_norm_eps": "norm_eps"}, vocabulary=channels),
    "parakeet_encoder": row(conformer, "ParakeetEncoder"),
    "wav2vec2": row(wav2vec, "Wav2Vec2Model", ignores=WAV2VEC_TRAINED),
    "moonshine_streaming_encoder": row(moonshine_stream, "MoonshineStreamingEncoder"),
    "mimi": row(codec, "MimiModel", ignores=MIMI_IDLE),
    "omniasr_audio": row(wav2vec, "OmniASRAudioModel", plain=True),
    "musicgen_decoder": row(half, "MusicgenDecoder", MUSIC_NAMES, vocabulary=codebook_rows, **MUSIC),
    "musicgen_melody_decoder": row(half, "MusicgenMelodyDecoder", MUSIC_NAMES, vocabulary=codebook_rows, **MUSIC),
    "canary_decoder": row(half, "CanaryDecoder", positions="sinusoidal", **BART_HALF),
}
"""Stacks inside a model's config, by the model_type that their config class has."""

ENCODER_DECODERS: dict[str, Family] = {
    "transformer": row(
        encoder_decoder, "TransformerForConditionalGeneration", BART_NAMES, post_norm=True, positions="sinusoidal",
        attention_bias=False, stack_norm=False, ignores=("position_embedding_type",),
    ),
    "t5": row(encoder_decoder, T5_CLASS, T5_NAMES, scaled_head=True, **T5),
    "mt5": row(encoder_decoder, "MT5ForConditionalGeneration", T5_NAMES, **T5),
    "umt5": row(
        encoder_decoder, "UMT5ForConditionalGeneration", T5_NAMES, scaled_head=True, relative_in_every_layer=True, **T5
    ),
    "longt5": row(
        encoder_decoder, "LongT5ForConditionalGeneration", T5_NAMES, scaled_head=True,
        own=Own(encoder_layers=long_t5_layers), **T5
    ),
    "pop2piano": row(
        encoder_decoder, "Pop2PianoForConditionalGeneration", T5_NAMES, words=free_head, own=Own(front_end=composers),
        **{**T5, "act": piano_act, "engine_may_tie": False}
    ),
    "switch_transformers": row(
        encoder_decoder, "SwitchTransformersForConditionalGeneration", T5_NAMES,
        experts=Experts(switch_layers, capacity=True), scaled_head=True,
        ignores=("encoder_sparse_step", "decoder_sparse_step"), **T5
    ),
    "bart": row(
        encoder_decoder, "BartForConditionalGeneration", BART_NAMES, post_norm=True, offset=2, table_norm=True,
        stack_norm=False, logits_bias=True,
    ),
    "mbart": row(
        encoder_decoder, "MBartForConditionalGeneration", BART_NAMES, offset=2, table_norm=True, logits_bias=True,
    ),
    "plbart": row(
        encoder_decoder, "PLBartForConditionalGeneration", BART_NAMES, post_norm=True, offset=2, table_norm=True,
        stack_norm=False, logits_bias=True,
    ),
    "mvp": row(
        encoder_decoder, "MvpForConditionalGeneration", BART_NAMES, ("prompt_length", "prompt_mid_dim"),
        post_norm=True, offset=2, table_norm=True, stack_norm=False, logits_bias=True,
    ),
    "pegasus": row(encoder_decoder, "PegasusForConditionalGeneration", BART_NAMES, logits_bias=True),
    "blenderbot": row(encoder_decoder, "BlenderbotForConditionalGeneration", BART_NAMES, logits_bias=True),
    "blenderbot-small": row(
        encoder_decoder, "BlenderbotSmallForConditionalGeneration", BART_NAMES, post_norm=True, table_norm=True,
        stack_norm=False, logits_bias=True,
    ),
    "marian": row(
        encoder_decoder, "MarianMTModel", BART_NAMES, post_norm=True, stack_norm=False, logits_bias=True,
        words=marian_words,
    ),
    "led": row(
        encoder_decoder, "LEDForConditionalGeneration",
        {**BART_NAMES, "max_source_positions": "max_encoder_position_embeddings",
         "max_target_positions": "max_decoder_position_embeddings"},
        post_norm=True, stack_norm=False, table_norm=True, logits_bias=True, two_lengths=True,
        own=Own(encoder_layers=led_layers),
    ),
    "bigbird_pegasus": row(
        encoder_decoder, "BigBirdPegasusForConditionalGeneration", BART_NAMES, attention_bias="use_bias",
        logits_bias=True, own=Own(encoder_layers=big_bird_layers),
    ),
    "pegasus_x": row(
        encoder_decoder, "PegasusXForConditionalGeneration", BART_NAMES, attention_bias=False, positions="sinusoidal",
        halved_waves=True, own=Own(encoder_layers=pegasus_x_layers, further_tables=own_tokens),
    ),
    "prophetnet": row(
        encoder_decoder, "ProphetNetForConditionalGeneration",
        {"encoder_layers": "num_encoder_layers", "decoder_layers": "num_decoder_layers",
         "encoder_attention_heads": "num_encoder_attention_heads",
         "decoder_attention_heads": "num_decoder_attention_heads"},
        ("add_cross_attention", "encoder_max_position_embeddings", "decoder_max_position_embeddings",
         "relative_max_distance"),
        post_norm=True, table_norm=True, stack_norm=False,
        own=Own(decoder_layers=streams_ahead, further_tables=stream_table, head_rows=stream_rows),
    ),
    "fsmt": row(
        encoder_decoder, "FSMTForConditionalGeneration", BART_NAMES, ("decoder", "langs"), post_norm=True, stack_norm=False,
        positions="waves", offset=after_padding, words=two_languages,
    ),
    "m2m_100": row(
        encoder_decoder, "M2M100ForConditionalGeneration", BART_NAMES, positions="sinusoidal", offset=2, halved_waves=True,
    ),
    "nllb-moe": row(
        encoder_decoder, "NllbMoeForConditionalGeneration", BART_NAMES, positions="sinusoidal", offset=2,
        halved_waves=True, experts=Experts(every_nth_layer, top_k=2),
    ),
    "speech_to_text": row(
        encoder_decoder, "Speech2TextForConditionalGeneration", BART_NAMES, positions="sinusoidal", halved_waves=True,
        offset=2, two_lengths=True, own=Own(front_end=gated_mel),
    ),
    "seamless_m4t": row(encoder_decoder, "SeamlessM4TForTextToText", **SEAMLESS),
    "seamless_m4t_v2": row(encoder_decoder, "SeamlessM4Tv2ForTextToText", **SEAMLESS),
    "encoder-decoder": row(joined, "EncoderDecoderModel"),
    "moonshine": row(
        paired, "MoonshineForConditionalGeneration",
        {f"{side}_{key}": f"{side}_num_{own}"
         for side in ("encoder", "decoder")
         for key, own in (("layers", "hidden_layers"), ("attention_heads", "attention_heads"),
                          ("key_value_heads", "key_value_heads"))},
        encoder=beside(
            side_names("encoder"), side(front=moonshine_front, feeds=feed_forward(gated=False, bias=True), **MOONSHINE)
        ),
        decoder=beside(side_names("decoder"), side(feeds=feed_forward(bias=True), **MOONSHINE)),
    ),
    "moonshine_streaming": row(
        paired, "MoonshineStreamingForConditionalGeneration", encoder=inside("encoder_config"),
        decoder=side(feeds=feed_forward(bias=True), **MOONSHINE), projected="unequal", projection_bias=False,
        read_positions=True,
    ),
    "t5gemma": row(
        paired, "T5GemmaForConditionalGeneration", ignores=("vocab_size",), encoder=inside("encoder"),
        decoder=inside("decoder"),
    ),
    "t5gemma2": row(
        paired, "T5Gemma2ForConditionalGeneration", ignores=("vocab_size",), encoder=inside("encoder", "text_config"),
        decoder=inside("decoder"), crossing=None, shared_table=True, same_width=True, extra=gemma_sight,
    ),
    "dia": row(
        paired, "DiaForConditionalGeneration", encoder=inside("encoder_config"), decoder=inside("decoder_config"),
        crossing=own_heads, untied=True,
    ),
    "canary": row(
        paired, "CanaryForConditionalGeneration", ignores=("vocab_size",), encoder=inside("encoder_config"),
        decoder=inside("decoder_config"), head_bias=True, same_width=True,
    ),
    "cohere_asr": row(
        paired, "CohereAsrForConditionalGeneration", encoder=inside("encoder_config", merged=True),
        decoder=side(positions="learned", **BART_HALF), head_bias=True, projected="always",
    ),
    "speecht5": row(
        encoder_decoder, "SpeechT5ForSpeechToText",
        {"max_source_positions": "max_speech_positions", "max_target_positions": "max_text_positions",
         "activation_function": "hidden_act"},
        SPEECH_T5_SPEAKS, post_norm=True, stack_norm=False, positions="sinusoidal", halved_waves=True, offset=2,
        two_lengths=True, own=Own(speech_t5_front, speech_t5_layers),
    ),
    "musicgen": row(singing, "MusicgenForCausalLM", key="decoder", crossed=True),
    "musicgen_melody": row(singing, "MusicgenMelodyForCausalLM", ignores=MELODY, key="decoder", crossed=False),
    "omniasr": row(
        transcribing, "OmniASRForConditionalGeneration", ignores=("audio_token_id",), text="text_config",
        audio="audio_config"
    ),
    "kyutai_speech_to_text": row(
        hearing, "KyutaiSpeechToTextForConditionalGeneration", MUSIC_NAMES, mixers=attention(windows=every_window),
        feeds=feed_forward(hidden=half_of),
    ),
    "speech-encoder-decoder": row(joined, "SpeechEncoderDecoderModel"),
    "whisper": row(
        encoder_decoder, "WhisperForConditionalGeneration", BART_NAMES, key_bias=False, two_lengths=True,
        source_fixed=True, own=Own(front_end=whisper_convolutions),
    ),
}  # fmt: skip
