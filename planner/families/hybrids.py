"""Recurrent and hybrid families, a row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from planner.blocks import Attention, Block, FeedForward, LatentAttention, Leaf, MixtureOfExperts, vector
from planner.families.row import Family, row
from planner.fields import Config
from planner.topology import Maker, Request
from planner.topology.attention import Gate, attention, every_window, latent_attention, listed_windows
from planner.topology.decoder import Wiring, decoder
from planner.topology.feed_forward import every_layer, every_step, feed_forward, listed, mixture, shared_width
from planner.topology.kinds import (
    Kinds,
    at_indices,
    at_offset,
    by_kind,
    every,
    every_nth,
    kimi_kinds,
    lfm2_kinds,
    lfm3_kinds,
    linear_or_full,
    listed_kinds,
    minimax_kinds,
    nemotron_kinds,
    olmo_kinds,
    repeated_kinds,
    zamba2_kinds,
    zamba_kinds,
)
from planner.topology.looped import (
    dense_and_moe_widths,
    inkling_sparse,
    late_values,
    looped_middle,
    mixed_depths,
    remembering_experts,
    scaled_input,
    smoothed_attention,
    smoothed_attention_2,
    two_speeds,
)
from planner.topology.looped2 import looped_depths, messaged_attention
from planner.topology.recurrent import (
    adjusted_feed_forward,
    channel_delta,
    channel_mix,
    decoder_of_kinds,
    expanded_or_given,
    gated_delta,
    griffin,
    kimi_sizes,
    lightning,
    ling_sizes,
    mamba,
    mamba2,
    matrix_memory,
    nothing,
    rounded_feed_forward,
    shared_transformers,
    short_convolution,
    side_by_side,
    time_mix,
    untied,
)


def lara_kinds(_c: Config, layers: int) -> list[str]:
    """Lara Mini: five kinds in turn; layers that see all have no rotary positions."""
    turn = ("linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention")
    return [turn[i % len(turn)] for i in range(layers)]


def jamba_experts(c: Config, layers: int) -> list[bool]:
    """Jamba: experts in layer `expert_layer_offset` of every `expert_layer_period`, where there is more than one."""
    period, offset = c.count("expert_layer_period"), c.count("expert_layer_offset", low=0)
    return [c.count("num_experts") > 1 and i % period == offset for i in range(layers)]


def granite_experts(c: Config, layers: int) -> list[bool]:
    """Granite 4: experts in all layers, or in none."""
    return [c.count("num_experts", low=0) > 0] * layers


def after_dense(c: Config, layers: int) -> list[bool]:
    """LFM2: experts after the first `num_dense_layers`."""
    return [i >= c.count("num_dense_layers", low=0) for i in range(layers)]


def after(first: int) -> Callable[[Config, int], list[bool]]:
    """Return the rule of experts after the first `first_k_dense_replace` layers, `first` where it is missing."""
    return lambda c, layers: [i >= c.count("first_k_dense_replace", first, low=0) for i in range(layers)]


def changed(maker: Maker, change: Callable[[Config, Any], Block]) -> Maker:
    """Return a maker whose mixtures and latent attentions are changed by what the config says."""

    def blocks(c: Config, request: Request, layers: int) -> list[Block | None]:
        made = maker(c, request, layers)
        return [change(c, b) if isinstance(b, MixtureOfExperts | LatentAttention) else b for b in made]

    return blocks


def lfm3_gate(c: Config) -> Gate:
    """LFM3: one number per head, where switched on."""
    return "head" if c.flag("use_attention_gate", True) else None


def lfm3_wiring(c: Config) -> Wiring:
    """LFM3: norms on both sides, where switched on."""
    return "sandwich" if c.flag("use_sandwich_norm", True) else "pre"


def half_width(c: Config, _width: int) -> int:
    """RecurrentGemma: `intermediate_size` counts gate and up projection together."""
    return int(c.count("intermediate_size")) // 2


def after_three(c: Config, layers: int) -> list[bool]:  # noqa: ARG001
    """Beam: experts after the third layer."""
    return [i > 2 for i in range(layers)]


def full_of(step: int, *, last: bool = False) -> Callable[[Config, int], list[str]]:
    """Return the rule of windows in all but every n-th layer, and all but the last."""
    return lambda _c, layers: [
        "full_attention" if (i + 1) % step == 0 or (last and i + 1 == layers) else "sliding_attention"
        for i in range(layers)
    ]


def head_biases(_c: Config, of: Attention) -> tuple[Leaf, ...]:
    """Beam: the gate has a bias for each head."""
    return (vector("gate_bias", of.heads, "attention"),)


def channel_scales(_c: Config, of: Attention) -> tuple[Leaf, ...]:
    """Dory: scales of queries and of the gate."""
    return tuple(vector(name, of.heads * of.head, "attention") for name in ("sqk", "s_gate"))


def hidden_scales(of: FeedForward) -> tuple[Leaf, ...]:
    """Dory: scales of both hidden rows."""
    return tuple(vector(name, of.hidden, of.part) for name in ("suv_gate", "suv_up"))


def gate_bias(_c: Config, of: Attention) -> tuple[Leaf, ...]:
    """Qwen3-Next, HRM: the gate adds a vector where queries do."""
    return (vector("gate_proj.bias", of.heads * of.head, "attention"),) if of.q_bias else ()


def own_heads(_c: Config, heads: int) -> int:
    """HRM: every query head has its own keys and values."""
    return heads


def step_sizes(c: Config) -> tuple[Leaf, ...]:
    """Dory: how far each block moves the residual stream."""
    return tuple(vector(name, c.count("hidden_size"), "other") for name in ("lambda_1", "lambda_2"))


def alternating(kinds: Kinds, linear: Maker, full: Maker) -> Maker:
    """Return the maker of layers with linear and with full attention."""
    return by_kind(kinds, {"linear_attention": linear, "full_attention": full})


WITH_BIAS: dict[str, Any] = dict(qkv_bias="attention_bias", out_bias="attention_bias")
MAMBA = {
    "mamba_d_state": "state_size", "mamba_d_conv": "conv_kernel", "mamba_expand": "expand",
    "mamba_dt_rank": "time_step_rank",
    "mamba_conv_bias": "use_conv_bias", "mamba_proj_bias": "use_bias", "rms_norm_eps": "layer_norm_epsilon",
}  # fmt: skip
MAMBA2 = {**MAMBA, "mamba_n_heads": "num_heads", "mamba_d_head": "head_dim", "mamba_n_groups": "n_groups"}
NEMOTRON = {
    **MAMBA2, "mamba_d_state": "ssm_state_size", "mamba_n_heads": "mamba_num_heads", "mamba_d_head": "mamba_head_dim",
    "hidden_act": "mlp_hidden_act", "num_experts": "n_routed_experts",
}  # fmt: skip
NEMOTRON.pop("mamba_proj_bias")
LFM = {"rms_norm_eps": "norm_eps"}
QWEN: dict[str, Any] = dict(qk_norm="head", unit_offset=True, gate="element", extra=gate_bias, **WITH_BIAS)
QWEN_KINDS = linear_or_full(every_nth("full_attention_interval", 4), "full_attention_interval")
QWEN_EXPERTS: dict[str, Any] = dict(
    shared=shared_width("shared_expert_intermediate_size"),
    shared_gate=True,
    shared_name="shared_expert",
    scoring="softmax",
)
MTP = {"num_nextn_predict_layers": "mtp_num_hidden_layers"}
KIMI = {"num_experts": "num_local_experts"}
DEEPSEEK: dict[str, Any] = dict(correction_bias=True, scoring="sigmoid")
MINIMAX: dict[str, Any] = dict(
    names={"num_experts": "num_local_experts"},
    mixers=alternating(linear_or_full(minimax_kinds, "attn_type_list"), lightning, attention()),
    feeds=mixture(sparse=every_layer, hidden="intermediate_size"),
)

HYBRIDS: dict[str, Family] = {
    "mamba": row(decoder, "MambaForCausalLM", MAMBA, mixers=mamba(inner=expanded_or_given), feeds=nothing),
    "falcon_mamba": row(decoder, "FalconMambaForCausalLM", MAMBA, mixers=mamba(inner=expanded_or_given), feeds=nothing),
    "mamba2": row(
        decoder,
        "Mamba2ForCausalLM",
        MAMBA2,
        ignores=("mamba_dt_rank", "intermediate_size"),
        mixers=mamba2(name="mixer"),
        feeds=nothing,
    ),
    "rwkv": row(decoder, "RwkvForCausalLM", norm="layer", norm_bias=True, mixers=time_mix, feeds=channel_mix),
    "xlstm": row(
        untied,
        "xLSTMForCausalLM",
        {"num_attention_heads": "num_heads", "num_hidden_layers": "num_blocks", "rms_norm_eps": "norm_eps"},
        mixers=matrix_memory,
        feeds=rounded_feed_forward,
    ),
    "jamba": row(
        decoder,
        "JambaForCausalLM",
        ignores=("num_experts_per_tok",),
        mixers=alternating(at_offset, mamba(inner_norms=True, name="mamba"), attention(positions="none")),
        feeds=mixture(hidden="intermediate_size", sparse=jamba_experts, router="router", scoring="softmax"),
    ),
    "bamba": row(
        decoder,
        "BambaForCausalLM",
        mixers=alternating(at_indices, mamba2(), attention(**WITH_BIAS)),
        feeds=feed_forward(bias="mlp_bias"),
    ),
    "granitemoehybrid": row(
        decoder,
        "GraniteMoeHybridForCausalLM",
        {"num_experts": "num_local_experts"},
        ignores=("position_embedding_type", "intermediate_size", "num_experts_per_tok"),
        mixers=alternating(linear_or_full(every("linear_attention")), mamba2(), attention(**WITH_BIAS)),
        feeds=mixture(
            hidden="intermediate_size",
            sparse=granite_experts,
            router="router",
            shared_name="shared_mlp",
            shared=shared_width("shared_intermediate_size"),
            dense=feed_forward(hidden="shared_intermediate_size"),
        ),
    ),
    "falcon_h1": row(
        decoder,
        "FalconH1ForCausalLM",
        feeds=feed_forward(bias="mlp_bias"),
        mixers=side_by_side(mamba2(out_bias="projectors_bias", norm="mamba_rms_norm"), attention(**WITH_BIAS)),
    ),
    "zamba": row(
        decoder,
        "ZambaForCausalLM",
        {"mamba_n_heads": "n_mamba_heads"},
        feeds=nothing,
        mixers=shared_transformers(
            listed_kinds(
                "linear_attention",
                "hybrid",
                otherwise=zamba_kinds,
                instead_of=("attn_layer_period", "attn_layer_offset"),
            ),
            mamba(heads="mamba_n_heads", name="mamba"),
            attention_width=True,
        ),
    ),
    "zamba2": row(
        decoder,
        "Zamba2ForCausalLM",
        {"mamba_n_heads": "n_mamba_heads", "mamba_n_groups": "mamba_ngroups"},
        feeds=nothing,
        ignores=("kv_channels", "attention_hidden_size", "conv_bias", "use_conv_bias", "num_query_groups"),
        mixers=shared_transformers(
            listed_kinds("linear_attention", "hybrid", otherwise=zamba2_kinds),
            mamba2(conv_bias=True, bias="add_bias_linear"),
            attention_width=False,
            blocks_key="num_mem_blocks",
            feed_bias="add_bias_linear",
            adapted=True,
            name="shared_transformer",
        ),
    ),
    "nemotron_h": row(
        decoder_of_kinds,
        "NemotronHForCausalLM",
        NEMOTRON,
        kinds=nemotron_kinds,
        ignores=("mamba_proj_bias", "intermediate_size", "n_shared_experts", "attention_bias"),
        mixers=alternating(
            nemotron_kinds, mamba2(free_heads=True, bias="use_bias", name="mixer"), attention(positions="none")
        ),
        feeds=by_kind(
            nemotron_kinds,
            {
                "mlp": feed_forward(gated=False, bias="mlp_bias"),
                "moe": changed(
                    mixture(
                        sparse=every_layer,
                        gated=False,
                        shared_bias="mlp_bias",
                        shared=shared_width("moe_shared_expert_intermediate_size"),
                        **DEEPSEEK,
                    ),
                    lambda c, experts: replace(experts, latent=c.count("moe_latent_size", None)),
                ),
            },
        ),
    ),
    "recurrent_gemma": row(
        decoder,
        "RecurrentGemmaForCausalLM",
        {"final_logit_softcapping": "logits_soft_cap"},
        unit_offset=True,
        scaled_table=True,
        mixers=by_kind(
            repeated_kinds,
            {
                "recurrent": griffin,
                "full_attention": attention(windows=every_window, qkv_bias="attention_bias", out_bias=True),
            },
        ),
        feeds=feed_forward(bias=True, activation="hidden_activation", hidden=half_width),
    ),
    "lfm2": row(
        decoder,
        "Lfm2ForCausalLM",
        {**LFM, "tie_word_embeddings": "tie_embedding"},
        ignores=("conv_dim", "conv_dim_out"),
        feeds=adjusted_feed_forward,
        mixers=by_kind(
            listed_kinds("conv", "full_attention", otherwise=lfm2_kinds, instead_of=("full_attn_idxs",)),
            {"conv": short_convolution, "full_attention": attention(qk_norm="head")},
        ),
    ),
    "lfm2_moe": row(
        decoder,
        "Lfm2MoeForCausalLM",
        {**LFM, "tie_word_embeddings": "tie_embedding"},
        ignores=("conv_dim", "conv_dim_out"),
        mixers=by_kind(
            listed_kinds("conv", "full_attention", otherwise=lfm2_kinds, instead_of=("full_attn_idxs",)),
            {"conv": short_convolution, "full_attention": attention(qk_norm="head")},
        ),
        feeds=changed(
            mixture(sparse=after_dense, scoring="sigmoid"),
            lambda c, experts: replace(experts, correction_bias=c.flag("use_expert_bias", True)),
        ),
    ),
    "lfm3": row(
        decoder,
        "Lfm3ForCausalLM",
        LFM,
        wiring=lfm3_wiring,
        mixers=by_kind(
            listed_kinds("conv", "full_attention", "sliding_attention", otherwise=lfm3_kinds),
            {
                "conv": short_convolution,
                "full_attention": attention(qk_norm="head", gate=lfm3_gate, **WITH_BIAS),
                "sliding_attention": attention(qk_norm="head", gate=lfm3_gate, windows=every_window, **WITH_BIAS),
            },
        ),
    ),
    "qwen3_next": row(
        decoder,
        "Qwen3NextForCausalLM",
        unit_offset=True,
        feeds=mixture(sparse=every_step, **QWEN_EXPERTS),
        mixers=alternating(QWEN_KINDS, gated_delta("qkvz", norm="norm", out="out_proj"), attention(**QWEN)),
    ),
    "lara_mini": row(
        decoder,
        "LaraMiniForCausalLM",
        feeds=mixture(sparse=every_layer, **{**QWEN_EXPERTS, "shared_gate": False}),
        mixers=by_kind(
            listed_kinds("linear_attention", "sliding_attention", "full_attention", otherwise=lara_kinds),
            {
                "linear_attention": gated_delta("qkv", norm="norm", out="out_proj"),
                "sliding_attention": attention(qk_norm="head", windows=every_window, **WITH_BIAS),
                "full_attention": attention(qk_norm="head", positions="none", **WITH_BIAS),
            },
        ),
    ),
    "qwen3_5_text": row(
        decoder,
        "Qwen3_5ForCausalLM",
        MTP,
        unit_offset=True,
        mixers=alternating(QWEN_KINDS, gated_delta("qkv", norm="norm", out="out_proj"), attention(**QWEN)),
    ),
    "qwen3_5_moe_text": row(
        decoder,
        "Qwen3_5MoeForCausalLM",
        MTP,
        unit_offset=True,
        feeds=mixture(sparse=every_layer, **QWEN_EXPERTS),
        mixers=alternating(QWEN_KINDS, gated_delta("qkv", norm="norm", out="out_proj"), attention(**QWEN)),
    ),
    "olmo_hybrid": row(
        decoder,
        "OlmoHybridForCausalLM",
        mixers=alternating(linear_or_full(olmo_kinds), gated_delta("separate"), attention(qk_norm="all", **WITH_BIAS)),
    ),
    "minimax": row(decoder, "MiniMaxForCausalLM", **MINIMAX),
    # published with code of their own, before transformers had a class
    "minimax_text_01": row(decoder, "MiniMaxText01ForCausalLM", **MINIMAX),
    "minimax_m1": row(decoder, "MiniMaxM1ForCausalLM", **MINIMAX),
    "kimi_linear": row(
        untied,
        "KimiLinearForCausalLM",
        KIMI,
        ignores=("moe_layer_freq", "first_k_dense_replace", "head_dim"),
        mixers=alternating(
            linear_or_full(kimi_kinds, "linear_attn_config"),
            channel_delta(kimi_sizes, low_rank=True),
            latent_attention(bias="attention_bias"),
        ),
        feeds=mixture(sparse=listed(after(1)), **DEEPSEEK),
    ),
    "bailing_hybrid": row(
        untied,
        "BailingHybridForCausalLM",
        KIMI,
        ignores=("moe_layer_freq", "first_k_dense_replace"),
        mixers=alternating(
            linear_or_full(every_nth("layer_group_size"), "layer_group_size"),
            channel_delta(ling_sizes, low_rank=False),
            changed(latent_attention(bias="attention_bias"), lambda _c, latent: replace(latent, gate=True)),
        ),
        feeds=mixture(sparse=listed(after(0)), **DEEPSEEK),
    ),
    "beam": row(
        decoder,
        "BeamForCausalLM",
        wiring="sandwich",
        mixers=attention(
            qk_norm="head",
            gate="element",
            windows=listed_windows(full_of(6, last=True)),
            extra=head_biases,
            **WITH_BIAS,
        ),
        feeds=mixture(sparse=listed(after_three), **DEEPSEEK),
    ),
    "dory": row(
        looped_middle,
        "DoryForCausalLM",
        norm_affine=False,
        beside=step_sizes,
        wiring="sandwich",
        mixers=attention(gate="element", windows=listed_windows(full_of(4)), extra=channel_scales, **WITH_BIAS),
        feeds=feed_forward(bias="mlp_bias", extra=hidden_scales),
    ),
    "hrm_text": row(
        two_speeds,
        "HrmTextForCausalLM",
        norm_affine=False,
        mixers=attention(gate="element", kv_heads=own_heads, extra=gate_bias, **WITH_BIAS),
        feeds=feed_forward(bias="mlp_bias"),
    ),
    "zaya": row(
        scaled_input,
        "ZayaForCausalLM",
        mixers=late_values,
        feeds=remembering_experts,
        head_bias="lm_head_bias",
    ),
    "inkling_text": row(
        dense_and_moe_widths,
        "InklingForCausalLM",
        {"num_experts": "n_routed_experts"},
        table_norm=True,
        mixers=smoothed_attention,
        feeds=mixture(sparse=inkling_sparse, **DEEPSEEK),
        ignores=("local_layer_ids", "dense_mlp_idx", "unpadded_vocab_size"),
    ),
    "inkling2_text": row(
        mixed_depths,
        "Inkling2ForCausalLM",
        {"num_experts": "n_routed_experts"},
        table_norm=True,
        mixers=smoothed_attention_2,
        feeds=mixture(sparse=every_layer, **DEEPSEEK),
    ),
    "inkling2_loop_text": row(
        looped_depths,
        "Inkling2LoopForCausalLM",
        {"num_experts": "n_routed_experts"},
        table_norm=True,
        mixers=messaged_attention,
        feeds=mixture(sparse=every_layer, **DEEPSEEK),
    ),
}
