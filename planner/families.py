"""The families: what a config.json of each model_type doesn't say, a row each. A new topology is a function in topology/."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from planner.fields import Config
from planner.topology import Anatomy, Request
from planner.topology.decoder import Wiring, alternate, decoder, every_window, five_of_six, grouped, late_windows
from planner.topology.encoder import around, blocks_of_keys, encoder
from planner.topology.encoder_decoder import encoder_decoder, every_nth_layer, switch_layers, t5_act


@dataclass(frozen=True, slots=True)
class Family:
    """A row.

    Attributes:
        build: the topology.
        architecture: class where the config names none.
        traits: what the topology needs to know.
        names: keys that the family calls otherwise, canonical name first.
        ignores: structural keys that its configs carry without effect.
    """

    build: Callable[..., Anatomy]
    architecture: str
    traits: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    ignores: tuple[str, ...] = ()


def row(
    build: Callable[..., Anatomy],
    architecture: str,
    names: Mapping[str, str] | None = None,
    ignores: tuple[str, ...] = (),
    **traits: object,
) -> Family:
    """Return a family."""
    return Family(build, architecture, traits, names or {}, ignores)


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


GPT = dict(norm="layer", norm_bias=True, gated=False, qkv_bias=True, out_bias=True, mlp_bias=True, positions="learned")
GPT_NAMES = dict(
    hidden_size="n_embd", num_hidden_layers="n_layer", num_attention_heads="n_head", max_position_embeddings="n_positions"
)
LLAMA = dict(qkv_bias="attention_bias", out_bias="attention_bias")
GEMMA = dict(
    LLAMA, unit_offset=True, wiring="sandwich", scaled_table=True, activation="hidden_activation"
)
BART_NAMES = dict(hidden_size="d_model")
T5 = dict(
    norm="rms", attention_bias=False, mlp_bias=False, act=t5_act, positions="relative", unscaled_scores=True, head_width="head_dim",
    engine_may_tie=True,
)  # fmt: skip
T5_NAMES = dict(
    hidden_size="d_model", head_dim="d_kv", encoder_layers="num_layers", decoder_layers="num_decoder_layers",
    encoder_attention_heads="num_heads", decoder_attention_heads="num_heads",
    encoder_ffn_dim="d_ff", decoder_ffn_dim="d_ff",
)  # fmt: skip
T5_CLASS = "T5ForConditionalGeneration"

FAMILIES: dict[str, Family] = {
    # decoder-only
    "openai-gpt": row(
        decoder, "OpenAIGPTLMHeadModel", {**GPT_NAMES, "activation": "afn"}, wiring="post", final_norm=False,
        activation="activation", renamed_activations={"gelu": "gelu_new"}, **GPT
    ),
    "gpt2": row(
        decoder, "GPT2LMHeadModel", {**GPT_NAMES, "intermediate_size": "n_inner"}, activation="activation_function", **GPT
    ),
    "llama": row(decoder, "LlamaForCausalLM", mlp_bias="mlp_bias", **LLAMA),
    "mistral": row(decoder, "MistralForCausalLM", windows=every_window),
    "mixtral": row(
        decoder, "MixtralForCausalLM", {"num_experts": "num_local_experts"}, windows=every_window, experts=True
    ),
    "qwen2": row(decoder, "Qwen2ForCausalLM", qkv_bias=True, windows=late_windows),
    "gemma2": row(decoder, "Gemma2ForCausalLM", windows=alternate, **GEMMA),
    "gemma3_text": row(decoder, "Gemma3ForCausalLM", windows=five_of_six, qk_norm="head", **GEMMA),
    "falcon": row(
        decoder, "FalconForCausalLM", {"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"},
        norm="layer", norm_bias=True, gated=False, qkv_bias="bias", out_bias="bias", mlp_bias="bias",
        wiring=falcon_wiring, kv_heads=falcon_heads, cached_heads=falcon_cache, activation="activation", alibi="alibi",
    ),
    "palm": row(
        decoder, "PalmForCausalLM", norm="layer", wiring="parallel", kv_heads=one_group, scaled_table=True,
    ),
    "deepseek_v2": row(
        decoder, "DeepseekV2ForCausalLM", {"num_experts": "n_routed_experts"}, latent=True, experts=True,
        qkv_bias="attention_bias", scoring="softmax",
    ),
    "deepseek_v3": row(
        decoder, "DeepseekV3ForCausalLM", {"num_experts": "n_routed_experts"}, latent=True, experts=True,
        qkv_bias="attention_bias", correction_bias=True, scoring="sigmoid",
    ),
    # encoder-only
    "bert": row(encoder, "BertForMaskedLM"),
    "longformer": row(encoder, "LongformerForMaskedLM", masks=around, offset=2, global_projections=True),
    "big_bird": row(encoder, "BigBirdForMaskedLM", masks=blocks_of_keys, projection_bias="use_bias", pooled=True),
    # encoder-decoder
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


@cache
def defaults(family: str) -> dict[str, Any]:
    """Return what a family takes where a key is missing; see tests/oracle/defaults.py."""
    file = files("planner") / "defaults" / f"{family}.json"
    return dict(json.loads(file.read_text())["defaults"])
