"""Decoder-only families, a row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isqrt
from typing import Any

from planner.blocks import Attention, Block, FeedForward, Leaf, Norm, linear, vector
from planner.errors import PlanError
from planner.families.row import Family, row
from planner.fields import Config
from planner.masks import Mask
from planner.topology import Anatomy, Maker, Request
from planner.topology.attention import (
    alternate,
    attention,
    every_full,
    every_window,
    five_of_six,
    grouped,
    late_windows,
    latent_attention,
    listed_windows,
)
from planner.topology.decoder import Wiring, decoder
from planner.topology.feed_forward import every_layer, every_step, feed_forward, listed, mixture, shared_width
from planner.topology.varied import chosen_attention, chosen_feeds, scaled_attention, scaled_feeds


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
    return heads if c.flag("new_decoder_architecture", False) and request.does("repeats_falcon_groups") else groups


def wired_by(key: str, yes: Wiring, no: Wiring = "pre") -> Callable[[Config], Wiring]:
    """Return the wiring that a key chooses."""
    return lambda c: yes if c.flag(key) else no


def one_or_all(c: Config, heads: int) -> int:
    """StarCoder: one key-value head, or as many as query heads."""
    return 1 if c.flag("multi_query") else heads


def opt_final_norm(c: Config) -> bool:
    """OPT: where norms stand before the blocks, there is one after the last layer, unless old weights lack it."""
    return c.flag("do_layer_norm_before") and not c.flag("_remove_final_layer_norm", False)


def cohere2_windows(c: Config, layers: int) -> list[int | None]:
    """Cohere 2: all layers but every fourth, or every `sliding_window_pattern`-th."""
    return every_full(c.count("sliding_window_pattern", 4))(c, layers)


def exaone4_windows(c: Config, layers: int) -> list[int | None]:
    """EXAONE 4: every layer but each `sliding_window_pattern`-th; or a text, L for layers with windows, and the last without."""
    if c.count("sliding_window", None) is None:
        c.ignore("sliding_window_pattern", "layer_types")
        return [None] * layers
    pattern = c.raw("sliding_window_pattern", None)
    if isinstance(pattern, str) and pattern:
        local = [pattern[i % len(pattern)] == "L" and i < layers - 1 for i in range(layers)]
        return listed_windows(lambda _c, _n: ["sliding_attention" if it else "full_attention" for it in local])(
            c, layers
        )
    return every_full(c.count("sliding_window_pattern", 4))(c, layers)


def without_rope(c: Config, layers: int) -> list[int | None]:
    """SmolLM 3: windows, if switched on, where `layer_types` says so, or on the layers without rotary positions."""
    interval = c.count("no_rope_layer_interval", 4)
    turned = c.counts("no_rope_layers", layers) or [(i + 1) % interval for i in range(layers)]
    listed = c.per_layer("layer_types", layers, ("full_attention", "sliding_attention"))
    kinds = listed or ["full_attention" if turns else "sliding_attention" for turns in turned]
    on, size = c.flag("use_sliding_window", False), c.count("sliding_window", None)
    return [size if on and kind == "sliding_attention" else None for kind in kinds]


def gpt_neo_windows(c: Config, layers: int) -> list[int | None]:
    """GPT-Neo: `attention_types` lists kinds and how often they repeat: [[["global", "local"], 12]]."""
    size, given = c.count("sliding_window"), c.raw("attention_types", [[["global", "local"], 12]])
    try:
        kinds = [kind for group, times in given for kind in group * min(times, layers)]
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != layers or any(kind not in ("global", "local") for kind in kinds):
        raise PlanError(
            f"found {given!r}, kinds of {layers} layers are needed, each global or local",
            where=c.where("attention_types"),
            fix='the form is [[["global", "local"], times], ...]',
        )
    return [size if kind == "local" else None for kind in kinds]


def modernbert_windows(c: Config, layers: int) -> list[int | None]:
    """ModernBERT's decoder: half of `local_attention`, on all layers but the first of each group."""
    step, size = c.count("global_attn_every_n_layers", 3), c.count("local_attention") // 2
    listed = c.per_layer("layer_types", layers, ("full_attention", "sliding_attention"))
    kinds = listed or ["sliding_attention" if i % step else "full_attention" for i in range(layers)]
    return [size if kind == "sliding_attention" else None for kind in kinds]


def all_full(_c: Config, layers: int) -> list[str]:
    """Mellum: all layers see all, where `layer_types` doesn't say."""
    return ["full_attention"] * layers


def ministral_kinds(c: Config, layers: int) -> list[str]:
    """Ministral: windows on all layers, where there is one."""
    return ["sliding_attention" if c.count("sliding_window", None) else "full_attention"] * layers


def flint_kinds(_c: Config, layers: int) -> list[str]:
    """Flint: all tokens in the first two layers, in every fourth and in the last one."""
    full = [i < 2 or i % 4 == 1 or i == layers - 1 for i in range(layers)]
    return ["full_attention" if it else "sliding_attention" for it in full]


def flint_sparse(c: Config, layers: int) -> list[bool]:
    """Flint: experts in all layers but the first two, where `mlp_only_layers` doesn't say."""
    held = every_step(c, layers)
    return held if c.counts("mlp_only_layers") is not None else [has and i > 1 for i, has in enumerate(held)]


def mpt_heads(c: Config, heads: int) -> int:
    """MPT: as many key-value heads as query heads; what `attn_config` may say otherwise isn't modelled."""
    given = c.table("attn_config")
    for key, allowed in (
        ("attn_type", ("multihead_attention",)),
        ("qk_ln", (False,)),
        ("prefix_lm", (False,)),
        ("alibi", (True,)),
    ):
        if given.get(key, allowed[0]) not in allowed:
            raise PlanError(
                f"found {given[key]!r}, allowed is {allowed[0]!r}",
                where=f"{c.where('attn_config')}.{key}",
                fix="the planner models MPT as transformers builds it",
            )
    return heads


def fixed(c: Config, key: str, only: object, fix: str) -> None:
    """Refuse a value that the reference doesn't build."""
    if (found := c.raw(key, only)) != only:
        raise PlanError(f"found {found!r}, allowed is {only!r}", where=c.where(key), fix=fix)


def mpt_hidden(c: Config, width: int) -> int:
    """MPT: 4 D; transformers builds no other ratio."""
    fixed(c, "expansion_ratio", 4, "transformers builds 4 whatever the config says")
    fixed(c, "no_bias", True, "transformers builds no biases whatever the config says")
    return 4 * width


def multiple_of_width(c: Config, width: int) -> int:
    """GPT-NeoX-Japanese: a multiple of D."""
    return width * int(c.count("intermediate_multiple_size"))


def half(c: Config, _width: int) -> int:
    """Qwen (1): gate and up-projection share `intermediate_size`."""
    fixed(c, "no_bias", True, "the planner models Qwen without biases but those of queries, keys and values")
    return int(c.count("intermediate_size")) // 2


def bert_generation(c: Config, request: Request, **traits: Any) -> Anatomy:
    """BERT for generation: its encoder's class has no head."""
    return decoder(c, request._replace(head=request.head and request.architecture != "BertGenerationEncoder"), **traits)


def chatglm_heads(c: Config, heads: int) -> int:
    """ChatGLM2 and later: groups count with `multi_query_attention` only."""
    if not c.flag("multi_query_attention"):
        c.ignore("num_key_value_heads")
        return heads
    return grouped(c, heads)


def chatglm(c: Config, request: Request) -> Anatomy:
    """ChatGLM2, ChatGLM3, GLM-4 as published with code of their own: what the rows say, the config says here."""
    biased = c.flag("add_bias_linear")
    mixers = attention(
        qkv_bias=biased or c.flag("add_qkv_bias"), out_bias=biased, kv_heads=chatglm_heads, positions="interleaved"
    )
    form: dict[str, Any] = {} if c.flag("rmsnorm") else LAYER_NORM
    return decoder(
        c, request, mixers=mixers, feeds=feed_forward(bias=biased), final_norm=c.flag("post_layer_norm"), **form
    )


def experts_if_any(c: Config, request: Request, layers: int) -> list[Block | None]:
    """MiniCPM: experts in all layers, where the config has any."""
    some = c.count("num_experts", 0, low=0)
    return (mixture(sparse=every_layer) if some else feed_forward())(c, request, layers)


def last_with_bias(maker: Maker) -> Maker:
    """GPT-NeoX-Japanese: only the last layer's attention adds a vector to its output."""

    def blocks(c: Config, request: Request, layers: int) -> list[Block | None]:
        *others, last = maker(c, request, layers)
        return [*others, replace(last, out_bias=True) if isinstance(last, Attention) else last]

    return blocks


def both_ways_unless_decoder(maker: Maker) -> Maker:
    """BERT for generation: causal only where the config says that it is a decoder."""

    def blocks(c: Config, request: Request, layers: int) -> list[Block | None]:
        made, causal = maker(c, request, layers), c.flag("is_decoder", False)
        return [replace(each, mask=Mask(causal)) if isinstance(each, Attention) else each for each in made]

    return blocks


def bitnet_norm(_c: Config, a: Attention) -> tuple[Leaf, ...]:
    """BitNet: one more norm before the output projection."""
    return (vector("attn_sub_norm", a.width, "norm"),)


def lambdas(_c: Config, a: Attention) -> tuple[Leaf, ...]:
    """Differential attention: four vectors that say how much of the second mix is subtracted."""
    return tuple(vector(f"lambda_{name}", a.head, "attention") for name in ("q1", "k1", "q2", "k2"))


def dynamic_mask(c: Config, a: Attention) -> tuple[Leaf, ...]:
    """Doge: values decide which keys are masked; transformers projects all cached values again in each step."""
    step = linear(
        "dt_proj", a.kv_heads * a.head, a.kv_heads, "attention", bias=c.flag("attention_bias", False), feeds="latent"
    )
    return (vector("A", a.kv_heads, "attention"), step)


def idle_cross_attention(c: Config) -> tuple[Leaf, ...]:
    """TrOCR's decoder on its own: stored for an encoder's output, and left out without one."""
    fixed(c, "use_learned_position_embeddings", True, "the planner models TrOCR's learned table of positions")
    c.notes.append("cross-attention is stored, but idle without an encoder")
    width, heads = c.count("hidden_size"), c.heads("num_attention_heads", c.count("hidden_size"))
    read = c.count("cross_attention_hidden_size", None)
    cross = Attention(
        width, heads, heads, width // heads, Mask(causal=False), True, True, True, True, cross=True, memory_width=read
    )
    leaves = (*cross.leaves(), vector("layer_norm", width, "norm", bias=True))
    return tuple(replace(leaf, name=f"encoder_attn.{leaf.name}", work=None) for leaf in leaves)


def doge_residuals(c: Config) -> tuple[Leaf, ...]:
    """Doge: the residual stream is scaled before each sum."""
    return tuple(
        vector(name, c.count("hidden_size"), "other") for name in ("input_residual", "post_attention_residual")
    )


def doge_feeds(c: Config, request: Request, layers: int) -> list[Block | None]:
    """Doge: a dense block; with `is_moe`, beside it E experts of one hidden unit, found by two halves of a key."""
    dense = feed_forward(bias="mlp_bias")(c, request, layers)
    if not c.flag("is_moe", False):
        c.ignore("num_experts", "num_experts_per_tok")
        return dense
    width, experts, chosen = c.count("hidden_size"), c.count("num_experts"), c.count("num_experts_per_tok")
    router = linear("router_gate", width, 2 * isqrt(experts), "router", work="router")
    tables = (
        Leaf(f"{name}_embed", width, 1, "routed_experts", "experts", copies=experts, active=chosen)
        for name in ("down", "up")
    )
    extra = (router, *tables)
    return [replace(block, extra=extra) if isinstance(block, FeedForward) else block for block in dense]


def xielu(block: FeedForward) -> tuple[Leaf, ...]:
    """Apertus: two learned numbers of the activation xIELU (arXiv:2411.13010), and two fixed ones."""
    if block.activation != "xielu":
        return ()
    learned = tuple(vector(f"act_fn.{name}", 1, "mlp") for name in ("alpha_p", "alpha_n"))
    return (*learned, *(vector(f"act_fn.{name}", 1, "mlp", buffer=True) for name in ("beta", "eps")))


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
LAYER_NORM: dict[str, Any] = dict(norm="layer", norm_bias=True)
EPS = dict(layer_norm_epsilon="layer_norm_eps")
ALL_BIASED = attention(qkv_bias=True, out_bias=True)
UNPLACED = attention(qkv_bias=True, out_bias=True, positions="none")
PLAIN = attention(**WITH_BIAS)
QKV = attention(qkv_bias="attention_bias")
HEAD_NORMED = attention(qk_norm="head", **WITH_BIAS)
SWIGLU = feed_forward(bias="mlp_bias")
UNGATED = feed_forward(gated=False, bias="mlp_bias")
BIASED = feed_forward(gated=False, bias=True)
BIASED_GPT = feed_forward(gated=False, bias=True, activation="activation_function")
EXAONE_NAMES = dict(num_hidden_layers="num_layers", rms_norm_eps="layer_norm_epsilon", hidden_act="activation_function")
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
    "mistral": row(
        decoder, "MistralForCausalLM", mixers=attention(windows=every_window), ignores=("sliding_window_size",)
    ),
    "mixtral": row(
        decoder, "MixtralForCausalLM", {"num_experts": "num_local_experts"}, mixers=attention(windows=every_window),
        feeds=mixture(),
    ),
    "qwen2": row(decoder, "Qwen2ForCausalLM", mixers=attention(qkv_bias=True, windows=late_windows)),
    "gemma2": row(
        decoder, "Gemma2ForCausalLM", mixers=attention(windows=alternate, **WITH_BIAS), ignores=("sliding_window_size",), **GEMMA
    ),
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
        mixers=latent_attention(bias="attention_bias"), feeds=mixture(scoring="softmax", may_lack_top_k=True),
    ),
    "deepseek_v3": row(
        decoder, "DeepseekV3ForCausalLM", {"num_experts": "n_routed_experts"},
        mixers=latent_attention(bias="attention_bias"), feeds=mixture(correction_bias=True, scoring="sigmoid"),
    ),
    "gpt-sw3": row(
        decoder, "GPT2LMHeadModel", {**GPT_NAMES, "intermediate_size": "n_inner"}, feeds=BIASED_GPT, **GPT
    ),
    "gpt_bigcode": row(
        decoder, "GPTBigCodeForCausalLM", {**GPT_NAMES, "intermediate_size": "n_inner"},
        **{**GPT, "mixers": attention(qkv_bias=True, out_bias=True, positions="none", kv_heads=one_or_all)}, feeds=BIASED_GPT,
        ignores=("num_key_value_heads",),
    ),
    "gpt_neo": row(
        decoder, "GPTNeoForCausalLM", {"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads", "sliding_window": "window_size"},
        **{**GPT, "mixers": attention(out_bias=True, positions="none", windows=gpt_neo_windows, windows_in_mask=True)},
        feeds=BIASED_GPT, ignores=("attention_layers",),
    ),
    "gptj": row(
        decoder, "GPTJForCausalLM", {**GPT_NAMES, "intermediate_size": "n_inner"}, **LAYER_NORM, wiring="parallel", head_bias=True,
        mixers=attention(positions="interleaved"), feeds=BIASED_GPT,
    ),
    "codegen": row(
        decoder, "CodeGenForCausalLM", {**GPT_NAMES, "intermediate_size": "n_inner"}, **LAYER_NORM, wiring="parallel", head_bias=True,
        mixers=attention(positions="interleaved"), feeds=BIASED_GPT,
    ),
    "gpt_neox": row(
        decoder, "GPTNeoXForCausalLM", {**EPS, "partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"}, **LAYER_NORM,
        wiring=wired_by("use_parallel_residual", "parallel_two"), mixers=PLAIN, feeds=BIASED,
    ),
    "gpt_neox_japanese": row(
        decoder, "GPTNeoXJapaneseForCausalLM", {**EPS, "partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"},
        **LAYER_NORM, mixers=last_with_bias(attention()), feeds=feed_forward(gated=False, hidden=multiple_of_width),
    ),
    "ctrl": row(
        decoder, "CTRLLMHeadModel", {**GPT_NAMES, "intermediate_size": "dff"}, **LAYER_NORM, waves=0, scaled_table=True, head_bias=True,
        mixers=UNPLACED, feeds=feed_forward(gated=False, bias=True, renamed_activations={"silu": "relu"}),
    ),
    "opt": row(
        decoder, "OPTForCausalLM", {"intermediate_size": "ffn_dim"}, **LAYER_NORM, norm_affine="layer_norm_elementwise_affine",
        wiring=wired_by("do_layer_norm_before", "pre", "post"), final_norm=opt_final_norm, learned_positions=True, offset=2,
        table_width="word_embed_proj_dim", mixers=attention(qkv_bias="enable_bias", out_bias="enable_bias", positions="none"),
        feeds=feed_forward(gated=False, bias="enable_bias", activation="activation_function"),
    ),
    "xglm": row(
        decoder, "XGLMForCausalLM", {"hidden_size": "d_model", "num_hidden_layers": "num_layers", "num_attention_heads": "attention_heads",
        "intermediate_size": "ffn_dim"}, **LAYER_NORM, waves=2, scaled_table="scale_embedding", mixers=UNPLACED, feeds=BIASED_GPT,
    ),
    "biogpt": row(
        decoder, "BioGptForCausalLM", EPS, **LAYER_NORM, learned_positions=True, offset=2, scaled_table="scale_embedding",
        mixers=UNPLACED, feeds=BIASED,
    ),
    "bloom": row(
        decoder, "BloomForCausalLM", {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "hidden_size": "n_embed",
        "max_position_embeddings": "seq_length"}, **LAYER_NORM, table_norm=True, table_name="word_embeddings",
        mixers=attention(qkv_bias=True, out_bias=True, alibi=True),
        feeds=feed_forward(gated=False, bias=True, renamed_activations={"silu": "gelu_pytorch_tanh"}),
    ),
    "mpt": row(
        decoder, "MptForCausalLM", {"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
        "max_position_embeddings": "max_seq_len"}, norm="layer", mixers=attention(alibi=True, kv_heads=mpt_heads),
        feeds=feed_forward(gated=False, hidden=mpt_hidden, renamed_activations={"silu": "gelu"}),
    ),
    "bert-generation": row(
        bert_generation, "BertGenerationDecoder", EPS, classes=("BertGenerationEncoder",), **LAYER_NORM, wiring="post", final_norm=False, learned_positions=True, table_norm=True,
        head_bias=True, mixers=both_ways_unless_decoder(UNPLACED), feeds=BIASED,
    ),
    "trocr": row(
        decoder, "TrOCRForCausalLM", {"hidden_size": "d_model", "num_hidden_layers": "decoder_layers",
        "num_attention_heads": "decoder_attention_heads", "intermediate_size": "decoder_ffn_dim"}, **LAYER_NORM, wiring="post",
        final_norm=False, learned_positions=True, offset=2, scaled_table="scale_embedding", table_norm="layernorm_embedding",
        mixers=UNPLACED, feeds=BIASED_GPT, beside=idle_cross_attention,
    ),
    "phi": row(
        decoder, "PhiForCausalLM", EPS, **LAYER_NORM, wiring="parallel", head_bias=True, feeds=BIASED,
        mixers=attention(qkv_bias=True, out_bias=True, qk_norm="head", qk_norm_on="qk_layernorm", qk_norm_form=Norm(0, "layer", bias=True)),
    ),
    "persimmon": row(
        decoder, "PersimmonForCausalLM", EPS, **LAYER_NORM, feeds=BIASED,
        mixers=attention(qkv_bias=True, out_bias=True, qk_norm="head", qk_norm_on="qk_layernorm", qk_norm_form=Norm(0, "layer", bias=True)),
    ),
    "stablelm": row(
        decoder, "StableLmForCausalLM", EPS, **LAYER_NORM, wiring=wired_by("use_parallel_residual", "parallel"),
        mixers=attention(qkv_bias="use_qkv_bias", qk_norm="each", qk_norm_on="qk_layernorm", qk_norm_form=Norm(0, "layer")),
    ),
    "starcoder2": row(
        decoder, "Starcoder2ForCausalLM", {"layer_norm_epsilon": "norm_epsilon"}, **LAYER_NORM,
        mixers=attention(qkv_bias="use_bias", out_bias="use_bias", windows=every_window), feeds=feed_forward(gated=False, bias="use_bias"),
    ),
    "nemotron": row(
        decoder, "NemotronForCausalLM", {"layer_norm_epsilon": "norm_eps"}, **LAYER_NORM, unit_offset=True, mixers=PLAIN, feeds=UNGATED,
    ),
    "jais2": row(decoder, "Jais2ForCausalLM", EPS, **LAYER_NORM, mixers=PLAIN, feeds=UNGATED),
    "cohere": row(
        decoder, "CohereForCausalLM", EPS, norm="layer", wiring="parallel",
        mixers=attention(positions="interleaved", qk_norm="each", qk_norm_on="use_qk_norm", qk_norm_form=Norm(0, "layer"), **WITH_BIAS),
        ignores=("position_embedding_type",),
    ),
    "cohere2": row(
        decoder, "Cohere2ForCausalLM", EPS, norm="layer", wiring="parallel",
        mixers=attention(positions="interleaved", windows=cohere2_windows, **WITH_BIAS), ignores=("position_embedding_type",),
    ),
    "olmo": row(decoder, "OlmoForCausalLM", norm="layer", norm_affine=False, mixers=PLAIN),
    "olmo2": row(decoder, "Olmo2ForCausalLM", wiring="after", mixers=attention(qk_norm="all", **WITH_BIAS)),
    "olmo3": row(
        decoder, "Olmo3ForCausalLM", wiring="after", mixers=attention(qk_norm="all", windows=every_full(4), **WITH_BIAS),
    ),
    "exaone": row(decoder, "ExaoneForCausalLM", EXAONE_NAMES, mixers=PLAIN, feeds=SWIGLU),
    "exaone4": row(
        decoder, "Exaone4ForCausalLM", wiring="after", mixers=attention(qk_norm="head", windows=exaone4_windows),
    ),
    "qwen3": row(decoder, "Qwen3ForCausalLM", mixers=attention(qk_norm="head", windows=late_windows, **WITH_BIAS)),
    "phi3": row(decoder, "Phi3ForCausalLM", mixers=attention(windows=every_window)),
    "gemma": row(decoder, "GemmaForCausalLM", unit_offset=True, scaled_table=True, mixers=PLAIN),
    "vaultgemma": row(
        decoder, "VaultGemmaForCausalLM", unit_offset=True, scaled_table=True, mixers=attention(windows=alternate, **WITH_BIAS),
        feeds=feed_forward(activation="hidden_activation"),
    ),
    "granite": row(decoder, "GraniteForCausalLM", mixers=PLAIN, feeds=SWIGLU),
    "granite_swa": row(
        decoder, "GraniteSWAForCausalLM", mixers=attention(windows=every_full(4, 0), sinks=True, **WITH_BIAS), feeds=SWIGLU,
        ignores=("layer_rope_theta",),
    ),
    "glm": row(decoder, "GlmForCausalLM", mixers=attention(qkv_bias="attention_bias", positions="interleaved")),
    "glm4": row(
        decoder, "Glm4ForCausalLM", wiring="sandwich", mixers=attention(qkv_bias="attention_bias", positions="interleaved"),
    ),
    "seed_oss": row(
        decoder, "SeedOssForCausalLM", feeds=SWIGLU,
        mixers=attention(qkv_bias="attention_bias", out_bias="attention_out_bias", even_if_null=True),
    ),
    "apertus": row(decoder, "ApertusForCausalLM", mixers=HEAD_NORMED, feeds=feed_forward(gated=False, extra=xielu)),
    "apertus1p5_text": row(
        decoder, "Apertus1p5TextForCausalLM", mixers=HEAD_NORMED, feeds=feed_forward(gated=False, extra=xielu),
        head_rows="output_vocab_size",
    ),
    "arcee": row(decoder, "ArceeForCausalLM", mixers=PLAIN, feeds=UNGATED),
    "bitnet": row(
        decoder, "BitNetForCausalLM", mixers=attention(extra=bitnet_norm, **WITH_BIAS),
        feeds=feed_forward(extra=lambda block: (vector("ffn_sub_norm", block.hidden, "norm"),)),
    ),
    "internlm3": row(
        decoder, "InternLM3ForCausalLM", {"attention_bias": "qkv_bias", "mlp_bias": "bias"}, feeds=SWIGLU,
        mixers=attention(even_if_null=True, **WITH_BIAS),
    ),
    "iquestcoder": row(
        decoder, "IQuestCoderForCausalLM", mixers=attention(windows=late_windows, even_if_null=True, **WITH_BIAS), feeds=SWIGLU,
    ),
    "ministral": row(decoder, "MinistralForCausalLM", mixers=attention(windows=listed_windows(ministral_kinds))),
    "ministral3": row(decoder, "Ministral3ForCausalLM", mixers=attention(windows=every_window)),
    "smollm3": row(
        decoder, "SmolLM3ForCausalLM", mixers=attention(windows=without_rope, **WITH_BIAS), feeds=SWIGLU, ignores=("max_window_layers",),
    ),
    "helium": row(decoder, "HeliumForCausalLM", mixers=QKV, feeds=SWIGLU),
    "diffllama": row(decoder, "DiffLlamaForCausalLM", mixers=attention(differential=True, extra=lambdas, **WITH_BIAS)),
    "doge": row(
        decoder, "DogeForCausalLM", mixers=attention(qk_norm="head", windows=every_window, extra=dynamic_mask, **WITH_BIAS),
        feeds=doge_feeds, beside=doge_residuals, ignores=("keep_window_size",),
    ),
    "cwm": row(decoder, "CwmForCausalLM", mixers=attention(windows=every_full(4, 0)), feeds=SWIGLU),
    "ernie4_5": row(
        decoder, "Ernie4_5ForCausalLM", feeds=feed_forward(bias="use_bias"),
        mixers=attention(qkv_bias="use_bias", out_bias="use_bias", even_if_null=True),
    ),
    "hunyuan_v1_dense": row(
        decoder, "HunYuanDenseV1ForCausalLM", mixers=HEAD_NORMED,
        ignores=("use_qk_norm", "num_experts", "num_experts_per_tok", "num_shared_expert", "moe_intermediate_size", "mlp_bias", "q_lora_rank",
        "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    ),
    "hyperclovax": row(
        decoder, "HyperCLOVAXForCausalLM", wiring=wired_by("use_post_norm", "sandwich"), mixers=PLAIN, feeds=SWIGLU,
    ),
    "nanochat": row(
        decoder, "NanoChatForCausalLM", norm_affine=False, table_norm=True,
        mixers=attention(qk_norm="head", qk_norm_form=Norm(0, affine=False), **WITH_BIAS), feeds=feed_forward(gated=False),
    ),
    "modernbert-decoder": row(
        decoder, "ModernBertDecoderForCausalLM", {"layer_norm_epsilon": "norm_eps"}, norm="layer", norm_bias="norm_bias",
        table_norm=True, first_norm=False, table_name="tok_embeddings", head_bias="decoder_bias", transform_bias="classifier_bias",
        mixers=attention(windows=modernbert_windows, **WITH_BIAS), feeds=feed_forward(bias="mlp_bias", activation="hidden_activation"),
        ignores=("sliding_window", "position_embedding_type"),
    ),
    "youtu": row(decoder, "YoutuForCausalLM", mixers=latent_attention(bias="attention_bias")),
    "minicpm3": row(decoder, "MiniCPM3ForCausalLM", mixers=latent_attention(bias="attention_bias"), feeds=SWIGLU),
    "mellum": row(
        decoder, "MellumForCausalLM", {"num_nextn_predict_layers": "num_mtp_layers"},
        mixers=attention(qk_norm="head", windows=listed_windows(all_full), **WITH_BIAS), feeds=mixture(scoring="softmax", sparse=listed(every_layer)),
        ignores=("mtp_layer_types", "mtp_mlp_layer_types"),
    ),
    "flint": row(
        decoder, "FlintForCausalLM",
        mixers=attention(qk_norm="head", sinks=True, windows=listed_windows(flint_kinds), **WITH_BIAS),
        feeds=mixture(scoring="sigmoid", sparse=flint_sparse, shared=shared_width("shared_expert_intermediate_size"), shared_name="shared_expert"),
    ),
    "kolibri1": row(
        decoder, "Kolibri1ForCausalLM", wiring="sandwich", mixers=attention(qk_norm="head", windows=every_full(5)),
        feeds=mixture(
            correction_bias=True, scoring="sigmoid", sparse=every_layer, shared=shared_width("shared_expert_intermediate_size"),
        ),
    ),
    # published with code of their own: transformers has no class
    "chatglm": row(
        chatglm, "ChatGLMModel", {"num_hidden_layers": "num_layers", "vocab_size": "padded_vocab_size",
        "intermediate_size": "ffn_hidden_size", "head_dim": "kv_channels", "num_key_value_heads": "multi_query_group_num",
        "rms_norm_eps": "layernorm_epsilon", "layer_norm_epsilon": "layernorm_epsilon", "max_position_embeddings": "seq_length"},
        classes=("ChatGLMForConditionalGeneration", "ChatGLMForCausalLM"),
    ),
    "baichuan": row(decoder, "BaichuanForCausalLM", {"max_position_embeddings": "model_max_length"}),
    "internlm": row(decoder, "InternLMForCausalLM", mixers=attention(qkv_bias="bias", out_bias="bias")),
    "internlm2": row(decoder, "InternLM2ForCausalLM", mixers=attention(qkv_bias="bias", out_bias="bias")),
    "qwen": row(
        decoder, "QWenLMHeadModel", {"head_dim": "kv_channels", "rms_norm_eps": "layer_norm_epsilon", "partial_rotary_factor": "rotary_pct",
        "rope_theta": "rotary_emb_base"}, mixers=attention(qkv_bias=True), feeds=feed_forward(hidden=half),
    ),
    "minicpm": row(decoder, "MiniCPMForCausalLM", mixers=PLAIN, feeds=experts_if_any),
    "mimo": row(
        decoder, "MiMoForCausalLM", mixers=attention(qkv_bias=True, windows=late_windows), ignores=("attention_bias",),
    ),
    "phi-msft": row(
        decoder, "PhiForCausalLM", {**GPT_NAMES, "intermediate_size": "n_inner", "num_key_value_heads": "n_head_kv"}, **LAYER_NORM,
        wiring="parallel", head_bias=True, mixers=ALL_BIASED, feeds=BIASED_GPT,
    ),
    "orion": row(decoder, "OrionForCausalLM", {"layer_norm_epsilon": "rms_norm_eps"}, **LAYER_NORM, mixers=PLAIN),
    "xverse": row(decoder, "XverseForCausalLM"),
    "deci": row(decoder, "DeciLMForCausalLM", mixers=chosen_attention, feeds=chosen_feeds),
    "nemotron-nas": row(decoder, "DeciLMForCausalLM", mixers=chosen_attention, feeds=chosen_feeds),
    "openelm": row(
        decoder, "OpenELMForCausalLM", {"hidden_size": "model_dim", "num_hidden_layers": "num_transformer_layers",
        "max_position_embeddings": "max_context_length", "tie_word_embeddings": "share_input_output_layers",
        "activation": "activation_fn_name"}, mixers=scaled_attention, feeds=scaled_feeds,
    ),
}  # fmt: skip
