"""Decoder-only families, a row each."""

from __future__ import annotations

from typing import Any

from planner.families.row import Family, row
from planner.fields import Config
from planner.topology import Request
from planner.topology.attention import (
    alternate,
    attention,
    every_window,
    five_of_six,
    grouped,
    late_windows,
    latent_attention,
)
from planner.topology.decoder import Wiring, decoder
from planner.topology.feed_forward import feed_forward, mixture


def one_group(_c: Config, _heads: int) -> int:
    """PaLM: one key-value head, whatever the config says."""
    return 1


def falcon_wiring(c: Config) -> Wiring:
    """Falcon-7B: side by side on one norm; 40B and 180B: on two; rw-1b: one after the other."""
    if c.flag("new_decoder_architecture", False):
        c.ignore("parallel_attn")
        return "parallel_two" if c.count("num_ln_in_parallel_attn", 2) == 2 else "parallel"
    return "parallel" if c.flag("parallel_attn") else "pre"


def falcon_heads(c: Config, heads: int) -> int:
    """Falcon: `num_kv_heads` counts in the new architecture only."""
    if c.flag("new_decoder_architecture", False):
        c.ignore("multi_query")
        return grouped(c, heads)
    c.ignore("num_key_value_heads")
    return 1 if c.flag("multi_query") else heads


def falcon_cache(c: Config, request: Request, heads: int, groups: int) -> int:
    """Falcon's new architecture: transformers caches keys and values repeated to all query heads."""
    return heads if request.engine.repeats_falcon_groups and c.flag("new_decoder_architecture", False) else groups


GPT: dict[str, Any] = dict(
    norm="layer",
    norm_bias=True,
    learned_positions=True,
    mixers=attention(qkv_bias=True, out_bias=True, positions="none"),
)
GPT_NAMES = dict(
    hidden_size="n_embd",
    num_hidden_layers="n_layer",
    num_attention_heads="n_head",
    max_position_embeddings="n_positions",
)
WITH_BIAS: dict[str, Any] = dict(qkv_bias="attention_bias", out_bias="attention_bias")
GEMMA: dict[str, Any] = dict(
    unit_offset=True, wiring="sandwich", scaled_table=True, feeds=feed_forward(activation="hidden_activation")
)

DECODERS: dict[str, Family] = {
    "openai-gpt": row(
        decoder, "OpenAIGPTLMHeadModel", {**GPT_NAMES, "activation": "afn"}, wiring="post", final_norm=False,
        feeds=feed_forward(gated=False, bias=True, activation="activation", renamed_activations={"gelu": "gelu_new"}), **GPT
    ),
    "gpt2": row(
        decoder, "GPT2LMHeadModel", {**GPT_NAMES, "intermediate_size": "n_inner"},
        feeds=feed_forward(gated=False, bias=True, activation="activation_function"), **GPT
    ),
    "llama": row(decoder, "LlamaForCausalLM", mixers=attention(**WITH_BIAS), feeds=feed_forward(bias="mlp_bias")),
    "mistral": row(decoder, "MistralForCausalLM", mixers=attention(windows=every_window)),
    "mixtral": row(
        decoder, "MixtralForCausalLM", {"num_experts": "num_local_experts"}, mixers=attention(windows=every_window),
        feeds=mixture(),
    ),
    "qwen2": row(decoder, "Qwen2ForCausalLM", mixers=attention(qkv_bias=True, windows=late_windows)),
    "gemma2": row(decoder, "Gemma2ForCausalLM", mixers=attention(windows=alternate, **WITH_BIAS), **GEMMA),
    "gemma3_text": row(
        decoder, "Gemma3ForCausalLM",
        mixers=attention(windows=five_of_six, qk_norm="head", unit_offset=True, **WITH_BIAS), **GEMMA
    ),
    "falcon": row(
        decoder, "FalconForCausalLM", {"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"},
        norm="layer", norm_bias=True, wiring=falcon_wiring,
        mixers=attention(qkv_bias="bias", out_bias="bias", kv_heads=falcon_heads, cached_heads=falcon_cache, alibi="alibi"),
        feeds=feed_forward(gated=False, bias="bias", activation="activation"),
    ),
    "palm": row(
        decoder, "PalmForCausalLM", norm="layer", wiring="parallel", mixers=attention(kv_heads=one_group), scaled_table=True,
    ),
    "deepseek_v2": row(
        decoder, "DeepseekV2ForCausalLM", {"num_experts": "n_routed_experts"},
        mixers=latent_attention(bias="attention_bias"), feeds=mixture(scoring="softmax"),
    ),
    "deepseek_v3": row(
        decoder, "DeepseekV3ForCausalLM", {"num_experts": "n_routed_experts"},
        mixers=latent_attention(bias="attention_bias"), feeds=mixture(correction_bias=True, scoring="sigmoid"),
    ),
}  # fmt: skip
