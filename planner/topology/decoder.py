"""Decoder-only models: one stack of causal layers (Llama, GPT-2, Mixtral, DeepSeek, Gemma, Falcon, PaLM ...)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import log, sqrt
from typing import Literal

from planner.blocks import (
    Attention,
    Block,
    FeedForward,
    Head,
    LatentAttention,
    MixtureOfExperts,
    Norm,
    Rope,
    Table,
    Weights,
    linear,
)
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.model import Layer, Stack, Sublayer, runs
from planner.topology import Anatomy, Request

Says = bool | str
"""A fixed answer, or the key that gives it."""


Wiring = Literal["pre", "sandwich", "post", "parallel", "parallel_two"]
"""Norms before each block, on both sides of it (Gemma 2), or after the sum (GPT-1); or both blocks side by side, on one
norm (PaLM) or each on its own (Falcon-40B)."""


def says(c: Config, answer: Says) -> bool:
    """Return a fixed answer, or what the config says under that key."""
    return c.flag(answer, False) if isinstance(answer, str) else answer


def no_window(c: Config, layers: int) -> list[int | None]:  # noqa: ARG001
    """Every layer sees all that came before."""
    return [None] * layers


def every_window(c: Config, layers: int) -> list[int | None]:
    """Every layer has the window, where there is one (Mistral)."""
    return [c.count("sliding_window", None)] * layers


def listed_windows(pattern: Callable[[Config, int], list[str]]) -> Callable[[Config, int], list[int | None]]:
    """Layers alternate as `layer_types` lists them, or as `pattern` says where it is missing."""

    def windows(c: Config, layers: int) -> list[int | None]:
        kinds = c.per_layer("layer_types", layers, ("full_attention", "sliding_attention")) or pattern(c, layers)
        size = c.count("sliding_window", None)
        if size is None and "sliding_attention" in kinds:
            raise PlanError(
                "missing or null, but layers use it", where=c.where("sliding_window"), fix="use --set sliding_window=VALUE"
            )
        return [size if kind == "sliding_attention" else None for kind in kinds]

    return windows


def _every(step: int, layers: int) -> list[str]:
    return ["sliding_attention" if (i + 1) % step else "full_attention" for i in range(layers)]


alternate = listed_windows(lambda c, n: _every(2, n))
"""Gemma 2: windows on every other layer, from the first on."""

five_of_six = listed_windows(lambda c, n: _every(c.count("sliding_window_pattern", 6), n))
"""Gemma 3: five layers with windows, then one without."""


def late_windows(c: Config, layers: int) -> list[int | None]:
    """Qwen 2: windows, if switched on, from layer `max_window_layers` on."""
    on, size = c.flag("use_sliding_window", False), c.count("sliding_window", None)
    first = c.count("max_window_layers", layers, low=0)
    listed = c.per_layer("layer_types", layers, ("full_attention", "sliding_attention"))
    kinds = listed or ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    return [size if on and kind == "sliding_attention" else None for kind in kinds]


def grouped(c: Config, heads: int) -> int:
    """Return the config's key-value heads; as many as query heads where it has none."""
    groups = c.count("num_key_value_heads", heads)
    if heads % groups:
        raise PlanError(
            f"found {groups}, which does not divide the {heads} query heads",
            where=c.where("num_key_value_heads"),
            fix="allowed are the divisors of num_attention_heads",
        )
    return int(groups)


def decoder(  # noqa: PLR0913
    c: Config,
    request: Request,
    *,
    norm: Literal["rms", "layer"] = "rms",
    wiring: Wiring | Callable[[Config], Wiring] = "pre",
    norm_bias: bool = False,
    unit_offset: bool = False,
    final_norm: bool = True,
    qkv_bias: Says = False,
    out_bias: Says = False,
    mlp_bias: Says = False,
    qk_norm: Literal["head", None] = None,
    gated: bool = True,
    positions: Literal["rope", "learned"] = "rope",
    windows: Callable[[Config, int], list[int | None]] = no_window,
    kv_heads: Callable[[Config, int], int] = grouped,
    cached_heads: Callable[[Config, Request, int, int], int] | None = None,
    scaled_table: bool = False,
    latent: bool = False,
    experts: bool = False,
    correction_bias: bool = False,
    scoring: Literal["softmax", "softmax_top_k", "sigmoid"] = "softmax_top_k",
    activation: str = "hidden_act",
    renamed_activations: Mapping[str, str] | None = None,
    alibi: Says = False,
) -> Anatomy:
    """Return the one stack of a decoder.

    Args:
        c: the config.
        request: engine and extras.
        norm, norm_bias, unit_offset: kind of norm.
        wiring: where norms stand, a fixed answer or read off the config; see `Wiring`.
        final_norm: one more after the last layer.
        qkv_bias, out_bias, mlp_bias: whether projections add a vector.
        qk_norm: norm of every head of queries and keys.
        gated: three matrices in the feed-forward block.
        positions: rotary, or a learned table.
        windows: the window of every layer.
        kv_heads: number of key-value heads, read off the config and the number of query heads.
        cached_heads: number of key-value heads that the engine's cache holds, where it isn't theirs.
        scaled_table: looked-up rows are multiplied by sqrt(D) (Gemma, PaLM).
        latent: multi-head latent attention.
        experts: mixtures of experts.
        correction_bias, scoring: of the router.
        activation: key of the activation's name. renamed_activations: names that mean another function (GPT-1's gelu).
        alibi: scores fall with distance, instead of rotary positions.
    """
    width, layers = c.count("hidden_size"), c.count("num_hidden_layers")
    vocabulary = c.count("vocab_size")
    epsilon = c.number("rms_norm_eps" if norm == "rms" else "layer_norm_epsilon", 1e-6 if norm == "rms" else 1e-5)
    tie = "embed_tokens" if c.flag("tie_word_embeddings", True) else None
    longest = c.count("max_position_embeddings", None)
    act = c.text(activation, "silu")
    act = (renamed_activations or {}).get(act, act)
    wired = wiring(c) if callable(wiring) else wiring

    def a_norm(name: str = "norm") -> Norm:
        return Norm(width, norm, norm_bias, epsilon, unit_offset, name)

    def sublayer(block: Block) -> Sublayer:
        match wired:
            case "pre" | "parallel_two":
                return Sublayer(block, before=a_norm())
            case "sandwich":
                return Sublayer(block, before=a_norm(), after=a_norm("post_norm"))
            case "post":
                return Sublayer(block, join=a_norm())
        return Sublayer(block)

    per_layer = windows(c, layers)
    if latent:
        attentions: list[Block] = [_latent(c, says(c, qkv_bias))] * layers
    else:
        norm_of_heads = Norm(1, epsilon=epsilon, unit_offset=unit_offset) if qk_norm else None
        linear_biases = says(c, alibi)
        one = _attention(c, kv_heads, norm_of_heads, positions == "rope" and not linear_biases)
        held = cached_heads(c, request, one.heads, one.kv_heads) if cached_heads else None
        bias, out = says(c, qkv_bias), says(c, out_bias)
        one = replace(one, q_bias=bias, k_bias=bias, v_bias=bias, out_bias=out, cached_heads=held, alibi=linear_biases)
        attentions = [_windowed(c, one, window) for window in per_layer]
    mlp = _feed_forward(c, width, gated, says(c, mlp_bias), act, dense=experts)
    sparse = _sparse_layers(c, layers) if experts else [False] * layers
    mixture = _mixture(c, width, act, correction_bias, scoring) if any(sparse) else None

    def layer(attention: Block, is_sparse: bool) -> Layer:  # noqa: FBT001
        hidden = mixture if is_sparse and mixture else mlp
        shared = a_norm() if wired == "parallel" else None
        return Layer((sublayer(attention), sublayer(hidden)), wired.startswith("parallel"), shared)

    body = [layer(attention, is_sparse) for attention, is_sparse in zip(attentions, sparse, strict=True)]
    front: list[Block] = [Table("embed_tokens", vocabulary, width, tie, sqrt(width) if scaled_table else 1.0)]
    if positions == "learned":
        front.append(Table("wpe", longest or c.count("max_position_embeddings"), width, index="position"))
    head = Head(width, vocabulary, tie=tie, softcap=c.number("final_logit_softcapping", None))
    grouped_layers = list(runs(body))
    notes = []
    predictors = c.count("num_nextn_predict_layers", 0, low=0)
    if predictors and request.mtp:
        grouped_layers += runs([_predictor(body[-1], a_norm)] * predictors)
        notes.append(f"{predictors} multi-token-prediction layer(s) counted, with table and head shared with the model's")
    elif predictors:
        notes.append(f"{predictors} multi-token-prediction layer(s) left out; --mtp counts them")
    back: tuple[Block, ...] = (*([a_norm()] if final_norm else []), *([head] if request.head else []))
    stack = Stack("decoder", tuple(front), tuple(grouped_layers), back)
    return Anatomy("decoder", (stack,), longest, positions == "learned", notes=tuple(notes))


def rope(c: Config, head: int) -> Rope:
    """Return the rotary positions that a config gives, in the old or the new form."""
    given = c.table("rope_parameters")
    nested = given.get("full_attention")
    parameters = nested if isinstance(nested, dict) else given
    theta = parameters.get("rope_theta") or c.number("rope_theta", 10_000.0)
    part = parameters.get("partial_rotary_factor") or c.number("partial_rotary_factor", 1.0)
    scaling = c.table("rope_scaling") or {k: v for k, v in parameters.items() if k != "rope_theta"}
    return Rope(int(head * part), theta, tuple(sorted((k, str(v)) for k, v in scaling.items())))


def _attention(c: Config, kv_heads: Callable[[Config, int], int], norm: Norm | None, turned: bool) -> Attention:  # noqa: FBT001
    """Return attention over all earlier tokens, without biases."""
    width = c.count("hidden_size")
    head = c.count("head_dim", None)
    heads = c.count("num_attention_heads") if head else c.heads("num_attention_heads", width)
    head = head or width // heads
    scalar = c.number("query_pre_attn_scalar", None)
    return Attention(
        width, heads, kv_heads(c, heads), head, qk_norm=replace(norm, width=head) if norm else None,
        rope=rope(c, head) if turned else None, scale=scalar**-0.5 if scalar else None,
        softcap=c.number("attn_logit_softcapping", None),
    )  # fmt: skip


def _windowed(c: Config, attention: Attention, window: int | None) -> Attention:
    """Return an attention with a window; Gemma 3's have a rotary base of their own."""
    nested = c.table("rope_parameters").get("sliding_attention")
    local = nested.get("rope_theta") if isinstance(nested, dict) else c.number("rope_local_base_freq", None)
    base = replace(attention.rope, theta=local, scaling=()) if attention.rope and window and local else attention.rope
    return replace(attention, mask=Mask(window=window), rope=base)


def _latent(c: Config, bias: bool) -> LatentAttention:  # noqa: FBT001
    """Return latent attention (DeepSeek)."""
    width, heads = c.count("hidden_size"), c.count("num_attention_heads")
    nope, turned = c.count("qk_nope_head_dim"), c.count("qk_rope_head_dim")
    c.ignore("num_key_value_heads", "head_dim")
    turning = replace(rope(c, turned), interleaved=c.flag("rope_interleave", True))
    return LatentAttention(
        width, heads, c.count("q_lora_rank", None), c.count("kv_lora_rank"), nope, turned, c.count("v_head_dim"), bias,
        turning, (nope + turned) ** -0.5 * _stretched(turning) ** 2,
    )  # fmt: skip


def _stretched(rope: Rope) -> float:
    """Return what DeepSeek multiplies queries and keys with where YaRN stretches positions (arXiv:2309.00071, 3.4)."""
    given = dict(rope.scaling)
    factor, depth = float(str(given.get("factor") or 1)), float(str(given.get("mscale_all_dim") or 0))
    return 0.1 * depth * log(factor) + 1.0 if depth and factor > 1 else 1.0


def _feed_forward(c: Config, width: int, gated: bool, bias: bool, act: str, *, dense: bool) -> FeedForward:  # noqa: FBT001
    """Return the dense feed-forward block; GPT-2's n_inner may be null: 4 D."""
    hidden = c.count("intermediate_size", 4 * width) if not dense else c.count("intermediate_size")
    return FeedForward(width, hidden, gated, bias, bias, act)


def _sparse_layers(c: Config, layers: int) -> list[bool]:
    """Return which layers hold experts."""
    first, step = c.count("first_k_dense_replace", 0, low=0), c.count("moe_layer_freq", 1)
    return [i >= first and i % step == 0 for i in range(layers)]


def _mixture(c: Config, width: int, act: str, correction_bias: bool, scoring: str) -> MixtureOfExperts:  # noqa: FBT001
    """Return the mixture of experts."""
    hidden = c.count("moe_intermediate_size", None) or c.count("intermediate_size")
    count, top_k = c.count("num_experts"), c.count("num_experts_per_tok")
    if top_k > count:
        raise PlanError(
            f"found {top_k}, but there are {count} experts", where=c.where("num_experts_per_tok"), fix=f"allowed are 1 to {count}"
        )
    shared = c.count("n_shared_experts", 0, low=0) * hidden
    greedy = c.text("topk_method", None) == "greedy"
    return MixtureOfExperts(
        width, hidden, count, top_k, activation=act, shared=shared, correction_bias=correction_bias, scoring=scoring,  # type: ignore[arg-type]
        normalized=c.flag("norm_topk_prob", False), weight_scale=c.number("routed_scaling_factor", 1.0),
        groups=1 if greedy else c.count("n_group", 1), top_groups=1 if greedy else c.count("topk_group", 1),
    )  # fmt: skip


def _predictor(layer: Layer, a_norm: Callable[..., Norm]) -> Layer:
    """Return a multi-token-prediction layer (DeepSeek-V3, arXiv:2412.19437, section 2.2).

    It norms the hidden row and the next token's embedding, projects both from 2 D to D, and runs one more layer.
    """
    width = a_norm().width
    joined = Weights((*a_norm("enorm").leaves(), *a_norm("hnorm").leaves(), linear("eh_proj", 2 * width, width, "other")))
    return Layer((Sublayer(joined), *layer.sublayers, Sublayer(a_norm("shared_head.norm"))))
