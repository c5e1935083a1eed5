"""Encoder-decoder families, a row each."""

from __future__ import annotations

from typing import Any

from planner.families.row import Family, row
from planner.topology.encoder_decoder import encoder_decoder, every_nth_layer, switch_layers, t5_act

BART_NAMES = dict(hidden_size="d_model")
T5: dict[str, Any] = dict(
    norm="rms", attention_bias=False, mlp_bias=False, act=t5_act, positions="relative", unscaled_scores=True, head_width="head_dim",
    engine_may_tie=True,
)  # fmt: skip
T5_NAMES = dict(
    hidden_size="d_model", head_dim="d_kv", encoder_layers="num_layers", decoder_layers="num_decoder_layers",
    encoder_attention_heads="num_heads", decoder_attention_heads="num_heads",
    encoder_ffn_dim="d_ff", decoder_ffn_dim="d_ff",
)  # fmt: skip
T5_CLASS = "T5ForConditionalGeneration"

ENCODER_DECODERS: dict[str, Family] = {
    "transformer": row(
        encoder_decoder, "TransformerForConditionalGeneration", BART_NAMES, post_norm=True, positions="sinusoidal",
        attention_bias=False, stack_norm=False, ignores=("position_embedding_type",),
    ),
    "t5": row(encoder_decoder, T5_CLASS, T5_NAMES, scaled_head=True, **T5),
    "mt5": row(encoder_decoder, "MT5ForConditionalGeneration", T5_NAMES, **T5),
    "switch_transformers": row(
        encoder_decoder, "SwitchTransformersForConditionalGeneration", T5_NAMES, experts=switch_layers, capacity=True,
        scaled_head=True, ignores=("encoder_sparse_step", "decoder_sparse_step"), **T5
    ),
    "bart": row(
        encoder_decoder, "BartForConditionalGeneration", BART_NAMES, post_norm=True, offset=2, table_norm=True,
        stack_norm=False, logits_bias=True,
    ),
    "m2m_100": row(
        encoder_decoder, "M2M100ForConditionalGeneration", BART_NAMES, positions="sinusoidal", offset=2, halved_waves=True,
    ),
    "nllb-moe": row(
        encoder_decoder, "NllbMoeForConditionalGeneration", BART_NAMES, positions="sinusoidal", offset=2,
        halved_waves=True, experts=every_nth_layer, top_k=2,
    ),
    "whisper": row(
        encoder_decoder, "WhisperForConditionalGeneration", BART_NAMES, key_bias=False, positions="audio",
    ),
}  # fmt: skip
