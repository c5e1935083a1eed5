"""Decoders with experts, latent or sparse attention, a row each."""

from __future__ import annotations

from typing import Any

from planner.blocks import vector
from planner.families.row import Family, row
from planner.topology.attention import alternate, attention, every_window, five_of_six, latent_attention, listed_windows
from planner.topology.decoder import decoder
from planner.topology.feed_forward import (
    after_the_first,
    between,
    but_the_first,
    every_layer,
    every_step,
    feed_forward,
    interleaved,
    listed,
    mixture,
    shared_width,
)
from planner.topology.sparse import (
    alternating_early,
    block_sparse,
    chunks,
    compressed,
    dense_prefix,
    doubled,
    either_norm,
    either_width,
    first_or_listed,
    full_of_four,
    gate_and_sinks,
    gated_norms,
    hashed,
    heads_of_their_own,
    indexers,
    late,
    listed_but_first,
    listed_numbers,
    mixed_heads,
    one_of_four,
    scheduled,
    shared_by_number,
    shared_width_times,
    streams,
    switched_windows,
    two_latents,
    unpacked,
)

WITH_BIAS: dict[str, Any] = dict(qkv_bias="attention_bias", out_bias="attention_bias")
ROUTED = {"num_experts": "n_routed_experts"}
LOCAL = {"num_experts": "num_local_experts"}
ROUTED_SCALE = {"routed_scaling_factor": "router_scaling_factor"}
DEEPSEEK: dict[str, Any] = dict(correction_bias=True, scoring="sigmoid")
GRANITE = mixture(sparse=every_layer, hidden="intermediate_size", router="router", shared_name="shared_mlp",
                  shared=shared_width("shared_intermediate_size"))  # fmt: skip
M3_IGNORES = ("first_k_dense_replace", "moe_intermediate_size", "n_shared_experts", "use_qk_norm")
MINIMAX_M3: dict[str, Any] = dict(
    unit_offset=True, mixers=block_sparse,
    feeds=mixture(sparse=listed(listed_numbers), dense=feed_forward(hidden="dense_intermediate_size"), hidden="intermediate_size",
                  shared=shared_width("shared_intermediate_size"), **DEEPSEEK),
)  # fmt: skip

EXPERTS: dict[str, Family] = {
    "qwen3_moe": row(
        decoder, "Qwen3MoeForCausalLM", ignores=("use_qk_norm", "max_window_layers", "qkv_bias", "shared_expert_intermediate_size"),
        mixers=attention(qk_norm="head", windows=switched_windows, **WITH_BIAS), feeds=mixture(sparse=every_step, scoring="softmax"),
    ),
    "qwen2_moe": row(
        decoder, "Qwen2MoeForCausalLM", mixers=attention(qkv_bias="qkv_bias", windows=alternating_early),
        feeds=mixture(sparse=every_step, scoring="softmax", shared=shared_width("shared_expert_intermediate_size"), shared_gate=True),
    ),
    "minimax_m2": row(
        decoder, "MiniMaxM2ForCausalLM", ignores=("use_qk_norm", "attn_type_list"), mixers=attention(qk_norm="all"),
        feeds=mixture(sparse=every_layer, hidden="intermediate_size", shared=shared_width("shared_intermediate_size"), **DEEPSEEK),
    ),
    "glm4_moe": row(
        decoder, "Glm4MoeForCausalLM", ROUTED,
        mixers=attention(qkv_bias="attention_bias", qk_norm="head", qk_norm_on="use_qk_norm", uneven=True), feeds=mixture(**DEEPSEEK),
    ),
    "mistral4": row(
        decoder, "Mistral4ForCausalLM", ROUTED, mixers=latent_attention(bias="attention_bias"), feeds=mixture(scoring="softmax"),
    ),
    "sarvam_moe": row(
        decoder, "SarvamMoEForCausalLM", ROUTED,
        mixers=attention(qkv_bias="attention_bias", qk_norm="head", qk_norm_on="use_qk_norm", uneven=True), feeds=mixture(**DEEPSEEK),
    ),
    "solar_open": row(
        decoder, "SolarOpenForCausalLM", ROUTED, mixers=attention(qkv_bias="attention_bias"),
        feeds=mixture(sparse=every_layer, **DEEPSEEK), ignores=("intermediate_size", "first_k_dense_replace", "use_qk_norm"),
    ),
    "ernie4_5_moe": row(
        decoder, "Ernie4_5_MoeForCausalLM",
        {"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k", "n_shared_experts": "moe_num_shared_experts"},
        mixers=attention(qkv_bias="use_bias", out_bias="use_bias"), head_bias="use_bias",
        feeds=mixture(sparse=between, dense=feed_forward(bias="use_bias"), shared_bias="use_bias", correction_bias="parameter"),
    ),
    "gpt_oss": row(
        decoder, "GptOssForCausalLM", LOCAL, mixers=attention(windows=alternate, sinks=True, **WITH_BIAS),
        feeds=mixture(sparse=every_layer, hidden="intermediate_size", bias=True, router_bias=True, router="router"),
        ignores=("experts_per_token",),
    ),
    "olmoe": row(
        decoder, "OlmoeForCausalLM", mixers=attention(qk_norm="all", **WITH_BIAS),
        feeds=mixture(sparse=every_layer, hidden="intermediate_size", scoring="softmax"),
    ),
    "flex_olmo": row(
        decoder, "FlexOlmoForCausalLM", wiring="after", mixers=attention(qk_norm="all", **WITH_BIAS),
        feeds=mixture(sparse=every_layer, hidden="intermediate_size", scoring="softmax"),
    ),
    "phimoe": row(
        decoder, "PhimoeForCausalLM", {**LOCAL, "layer_norm_epsilon": "rms_norm_eps"}, norm="layer", norm_bias=True,
        mixers=attention(windows=every_window, **WITH_BIAS), head_bias="lm_head_bias",
        feeds=mixture(sparse=every_layer, hidden="intermediate_size", router="router"),
    ),
    "granitemoe": row(decoder, "GraniteMoeForCausalLM", LOCAL, mixers=attention(**WITH_BIAS), feeds=GRANITE),
    "granitemoeshared": row(decoder, "GraniteMoeSharedForCausalLM", LOCAL, mixers=attention(**WITH_BIAS), feeds=GRANITE),
    "granitemoe_swa": row(
        decoder, "GraniteMoeSWAForCausalLM", LOCAL, feeds=GRANITE,
        mixers=attention(windows=listed_windows(full_of_four), sinks=True, **WITH_BIAS),
    ),
    "dots1": row(
        decoder, "Dots1ForCausalLM", ROUTED, mixers=attention(qk_norm="head", windows=listed_windows(late), **WITH_BIAS),
        feeds=mixture(**DEEPSEEK),
    ),
    "exaone_moe": row(
        decoder, "ExaoneMoeForCausalLM", {"n_shared_experts": "num_shared_experts"},
        mixers=attention(qk_norm="head", windows=five_of_six), feeds=mixture(sparse=listed(after_the_first), **DEEPSEEK),
    ),
    "afmoe": row(
        decoder, "AfmoeForCausalLM",
        {"n_shared_experts": "num_shared_experts", "first_k_dense_replace": "num_dense_layers",
         "sliding_window_pattern": "global_attn_every_n_layers", "routed_scaling_factor": "route_scale"},
        wiring="sandwich", mixers=attention(qk_norm="head", windows=five_of_six, gate="element", **WITH_BIAS),
        feeds=mixture(correction_bias="parameter", scoring="sigmoid", router="router.gate"),
    ),
    "hy_v3": row(
        decoder, "HYV3ForCausalLM", {"n_shared_experts": "num_shared_experts", **ROUTED_SCALE},
        mixers=attention(qk_norm="head", **WITH_BIAS),
        feeds=mixture(sparse=listed(but_the_first), dense=feed_forward(bias="mlp_bias"), shared_bias="mlp_bias", **DEEPSEEK),
    ),
    "aria_text": row(
        decoder, "AriaTextForCausalLM",
        {"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_topk", "n_shared_experts": "moe_num_shared_experts"},
        mixers=attention(**WITH_BIAS), feeds=mixture(sparse=every_layer, hidden="intermediate_size", shared_bias="mlp_bias", router="router"),
    ),
    "glm4_moe_lite": row(
        decoder, "Glm4MoeLiteForCausalLM", ROUTED, mixers=latent_attention(bias="attention_bias"),
        feeds=mixture(sparse=listed(but_the_first), **DEEPSEEK),
    ),
    "axk1": row(
        decoder, "AXK1ForCausalLM", ROUTED, mixers=latent_attention(bias="attention_bias"),
        feeds=mixture(sparse=listed(but_the_first), post_norm=True, **DEEPSEEK),
    ),
    "sarvam_mla": row(
        decoder, "SarvamMLAForCausalLM", ROUTED, mixers=latent_attention(bias="attention_bias"), feeds=mixture(**DEEPSEEK),
    ),
    "cohere2_moe": row(
        either_norm, "Cohere2MoeForCausalLM", {"n_shared_experts": "num_shared_experts", "layer_norm_epsilon": "layer_norm_eps"},
        wiring="parallel", mixers=attention(windows=dense_prefix, **WITH_BIAS),
        feeds=mixture(sparse=listed(after_the_first), hidden="intermediate_size",
                      dense=feed_forward(hidden="prefix_dense_intermediate_size")),
    ),
    "dbrx": row(
        unpacked, "DbrxForCausalLM",
        {"num_key_value_heads": "kv_n_heads", "intermediate_size": "ffn_hidden_size", "num_experts": "moe_num_experts",
         "num_experts_per_tok": "moe_top_k"},
        tables=("attn_config", "ffn_config"), norm="layer", mixers=attention(),
        feeds=mixture(sparse=every_layer, hidden="intermediate_size", scoring="softmax", router="router.layer"),
    ),
    "hunyuan_v1_moe": row(
        decoder, "HunYuanMoEV1ForCausalLM", {"num_experts_per_tok": "moe_topk", "n_shared_experts": "num_shared_expert"},
        mixers=attention(qk_norm="head", **WITH_BIAS), ignores=("use_qk_norm", "qkv_bias"),
        feeds=mixture(sparse=every_layer, router="gate.wg", shared=shared_by_number, shared_name="shared_mlp", scoring="softmax"),
    ),
    "llama4_text": row(
        decoder, "Llama4ForCausalLM", LOCAL, mixers=chunks,
        feeds=mixture(sparse=interleaved, hidden="intermediate_size", dense=feed_forward(hidden="intermediate_size_mlp"),
                      shared=lambda _c, hidden: hidden, scoring="sigmoid", router="router",
                      runs_all="runs_all_llama4_experts"),
    ),
    "mimo_v2_flash": row(
        decoder, "MiMoV2FlashForCausalLM", {**ROUTED, "rms_norm_eps": "layernorm_epsilon"}, mixers=either_width,
        feeds=mixture(sparse=listed(listed_but_first), **DEEPSEEK),
    ),
    "laguna": row(
        decoder, "LagunaForCausalLM", mixers=heads_of_their_own,
        feeds=mixture(sparse=listed(but_the_first), shared=shared_width("shared_expert_intermediate_size"),
                      correction_bias="parameter", scoring="sigmoid"),
    ),
    "deepseek_v32": row(
        decoder, "DeepseekV32ForCausalLM", ROUTED, mixers=latent_attention(bias="attention_bias", choosers=indexers()),
        feeds=mixture(sparse=listed(after_the_first), **DEEPSEEK), ignores=("mlp_bias",),
    ),
    "glm_moe_dsa": row(
        decoder, "GlmMoeDsaForCausalLM", ROUTED, mixers=latent_attention(bias="attention_bias", choosers=indexers(scheduled)),
        feeds=mixture(sparse=listed(after_the_first), **DEEPSEEK), ignores=("mlp_bias",),
    ),
    "minimax_m3_vl_text": row(
        decoder, "MiniMaxM3VLForCausalLM", LOCAL, ignores=M3_IGNORES, **MINIMAX_M3
    ),
    "minimax_m3": row(
        decoder, "MiniMaxM3SparseForCausalLM", LOCAL, ignores=M3_IGNORES, **MINIMAX_M3
    ),
    "axk2": row(
        gated_norms, "AXK2ForCausalLM", ROUTED,
        mixers=latent_attention(bias="attention_bias", choosers=indexers(), gated_queries=True),
        feeds=mixture(sparse=listed(but_the_first), **DEEPSEEK),
    ),
    "hy_v4": row(
        streams, "HYV4ForCausalLM", ROUTED, mixed=False,
        mixers=latent_attention(bias="attention_bias", choosers=indexers(one_of_four), extra=gate_and_sinks),
        feeds=mixture(sparse=listed(but_the_first), **DEEPSEEK),
    ),
    "deepseek_v4": row(streams, "DeepseekV4ForCausalLM", ROUTED, mixed=True, mixers=compressed, feeds=hashed),
    "deepseek_ref": row(streams, "DeepseekV4ForCausalLM", ROUTED, mixed=True, mixers=compressed, feeds=hashed),
    "longcat_flash": row(
        doubled, "LongcatFlashForCausalLM", {**ROUTED, "num_hidden_layers": "num_layers"},
        mixers=latent_attention(bias="attention_bias"),
    ),
    "jetmoe": row(
        decoder, "JetMoeForCausalLM", {**LOCAL, "head_dim": "kv_channels"}, mixers=mixed_heads,
        feeds=mixture(sparse=every_layer, hidden="intermediate_size", router="router.layer", activation="activation_function"),
        beside=lambda c: (vector("mlp.bias", c.count("hidden_size"), "mlp"),), ignores=("bias",),
    ),
    "dots3_note_text": row(
        decoder, "Dots3NoteForCausalLM", ROUTED, mixers=two_latents,
        feeds=mixture(sparse=listed(first_or_listed), shared=shared_width_times, **DEEPSEEK),
    ),
    "bailing_moe": row(
        decoder, "BailingMoeV2ForCausalLM", {"n_shared_experts": "num_shared_experts", "qkv_bias": "use_qkv_bias"},
        mixers=attention(qkv_bias="qkv_bias", out_bias="use_bias", qk_norm="head", qk_norm_on="use_qk_norm"),
        feeds=mixture(correction_bias="moe_router_enable_expert_bias", scoring="softmax"),
        ignores=("moe_shared_expert_intermediate_size", "max_window_layers"),
    ),
    "deepseek": row(
        decoder, "DeepseekForCausalLM", ROUTED, mixers=attention(qkv_bias="attention_bias", out_bias="attention_bias"),
        feeds=mixture(scoring="softmax"),
    ),
    "kimi_k2": row(
        decoder, "DeepseekV3ForCausalLM", ROUTED, mixers=latent_attention(bias="attention_bias"), feeds=mixture(**DEEPSEEK),
    ),
}  # fmt: skip
