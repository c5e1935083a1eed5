"""The attention of each layer, as rows of `planner.families` name it: grouped, windowed, latent.

Each function here takes traits and returns a `Maker`: what a topology calls to get one block for each layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log
from typing import Literal

from planner.blocks import Attention, Block, LatentAttention, Leaf, Norm, Rope
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.topology import Maker, Request, Says, says

Windows = Callable[[Config, int], list[int | None]]
"""Config, number of layers: the window of every layer in tokens, None for all."""

Gate = Literal["head", "element"] | None
"""How an attention's output is scaled: one number per head, per element, or not at all."""


def no_window(_c: Config, layers: int) -> list[int | None]:
    """Every layer sees all that came before."""
    return [None] * layers


def every_window(c: Config, layers: int) -> list[int | None]:
    """Every layer has the window, where there is one (Mistral)."""
    return [c.count("sliding_window", None)] * layers


def listed_windows(pattern: Callable[[Config, int], list[str]]) -> Callable[[Config, int], list[int | None]]:
    """Layers alternate as `layer_types` lists them, or as `pattern` says where it is missing."""

    def windows(c: Config, layers: int) -> list[int | None]:
        listed = c.per_layer("layer_types", layers, ("full_attention", "sliding_attention"))
        kinds = listed or pattern(c, layers)
        if listed:  # the list wins
            c.ignore("sliding_window_pattern", "max_window_layers")
        size = c.count("sliding_window", None)
        if size is None and "sliding_attention" in kinds:
            raise PlanError(
                "missing or null, but layers use it",
                where=c.where("sliding_window"),
                fix="use --set sliding_window=VALUE",
            )
        return [size if kind == "sliding_attention" else None for kind in kinds]

    return windows


def _every(step: int, layers: int) -> list[str]:
    return ["sliding_attention" if (i + 1) % step else "full_attention" for i in range(layers)]


def every_full(step: int, first: int = -1) -> Windows:
    """Return windows on all layers but every `step`-th, counted from layer `first` on (-1: the last of each group)."""
    turn = first % step
    return listed_windows(
        lambda _c, n: ["full_attention" if i % step == turn else "sliding_attention" for i in range(n)]
    )


alternate = every_full(2)
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


def attention(
    *,
    qkv_bias: Says = False,
    out_bias: Says = False,
    qk_norm: Literal["head", "all", "each"] | None = None,
    unit_offset: bool = False,
    positions: Literal["rope", "interleaved", "none"] = "rope",
    windows: Windows = no_window,
    kv_heads: Callable[[Config, int], int] = grouped,
    cached_heads: Callable[[Config, Request, int, int], int] | None = None,
    alibi: Says = False,
    qk_norm_on: Says = True,
    uneven: bool = False,
    even_if_null: bool = False,
    sinks: bool = False,
    gate: Gate | Callable[[Config], Gate] = None,
    qk_norm_form: Norm | None = None,
    extra: Callable[[Config, Attention], tuple[Leaf, ...]] | None = None,
    differential: bool = False,
    windows_in_mask: bool = False,
) -> Maker:
    """Return the maker of multi-head attention.

    Args:
        qkv_bias, out_bias: whether projections add a vector.
        qk_norm: norm of queries and keys, each head on its own, all heads together, or each head with weights of its own.
        unit_offset: these norms multiply by 1 + weight.
        positions: rotary (halves of a head turn together, or neighbours), or none of its own.
        windows: the window of every layer.
        kv_heads: number of key-value heads, read off the config and the number of query heads.
        cached_heads: number of key-value heads that the engine's cache holds, where it isn't theirs.
        alibi: scores fall with distance, instead of rotary positions.
        qk_norm_on: whether there are norms of queries and keys.
        uneven: heads needn't divide the model's width: a head has what a whole division gives (GLM-4.5).
        even_if_null: a null head_dim is an even share of the width, though a missing one has a default (Seed-OSS).
        sinks: a learned score per head.
        gate: how the output is scaled.
        qk_norm_form: kind, bias and weights of these norms, where they aren't plain ones (its width doesn't matter).
        extra: what else each layer stores.
        differential: each pair of heads subtracts one mix of values from another (arXiv:2410.05258).
        windows_in_mask: windows limit what is seen, and an engine may keep all rows nevertheless (GPT-Neo).
    """

    def blocks(c: Config, request: Request, layers: int) -> list[Block | None]:
        width = c.count("hidden_size")
        head = None if even_if_null and c.null("head_dim") else c.count("head_dim", None)
        heads = c.count("num_attention_heads") if head or uneven else c.heads("num_attention_heads", width)
        head = head or width // heads
        groups = kv_heads(c, heads)
        slopes, bias = says(c, alibi), says(c, qkv_bias)
        widths = {"head": head, "all": heads * head, "each": heads * head}
        normed = widths.get(qk_norm or "") if says(c, qk_norm_on) else None
        scalar = c.number("query_pre_attn_scalar", None, above=0)
        form = qk_norm_form or Norm(0, epsilon=c.number("rms_norm_eps", 1e-6), unit_offset=unit_offset)
        one = Attention(
            width, heads, groups, head, Mask(), bias, bias, bias, says(c, out_bias),
            qk_norm=replace(form, width=normed) if normed else None,
            cached_heads=cached_heads(c, request, heads, groups) if cached_heads else None,
            rope=replace(rope(c, head), interleaved=positions == "interleaved") if positions != "none" and not slopes else None,
            scale=scalar**-0.5 if scalar else c.number("attention_multiplier", None), softcap=c.number("attn_logit_softcapping", None), alibi=slopes,
            sinks=sinks, gate=gate(c) if callable(gate) else gate, mixes=1 + differential,
            rescored=differential and request.does("rescores_differences"),
            whole_cache=(windows_in_mask and request.does("keeps_masked_rows")) or not request.engine.knows_windows(c.family), qk_norm_each=qk_norm == "each",
        )  # fmt: skip
        one = replace(one, extra=extra(c, one)) if extra else one
        return [_windowed(c, one, window) for window in windows(c, layers)]

    return blocks


def latent_attention(
    *,
    bias: Says = False,
    choosers: Maker | None = None,
    gated_queries: bool = False,
    extra: Callable[[Config, LatentAttention], tuple[Leaf, ...]] | None = None,
) -> Maker:
    """Return the maker of multi-head latent attention (DeepSeek).

    Args:
        bias: whether projections down and out add a vector.
        choosers: maker of indexers, by which each row scores `index_topk` keys; layers without one use another's.
        gated_queries: queries and an output gate are one projection (A.X K2).
        extra: what else each layer stores.
    """

    def blocks(c: Config, request: Request, layers: int) -> list[Block | None]:
        width, heads = c.count("hidden_size"), c.count("num_attention_heads")
        nope, turned = c.count("qk_nope_head_dim"), c.count("qk_rope_head_dim")
        c.ignore("num_key_value_heads", "head_dim")
        turning = replace(rope(c, turned), interleaved=c.flag("rope_interleave", True))
        block = LatentAttention(
            width, heads, c.count("q_lora_rank", None), c.count("kv_lora_rank"), nope, turned, c.count("v_head_dim", width // heads),
            says(c, bias), turning, (nope + turned) ** -0.5 * _stretched(c, turning) ** 2, gated_queries=gated_queries,
        )  # fmt: skip
        block = replace(block, extra=extra(c, block)) if extra else block
        if choosers is None:
            return [block] * layers
        block = replace(block, mask=Mask(chosen=c.count("index_topk")))
        return [replace(block, chooser=chooser) for chooser in choosers(c, request, layers)]

    return blocks


def rope(c: Config, head: int) -> Rope:
    """Return the rotary positions that a config gives, in the old or the new form."""
    given = c.table("rope_parameters")
    nested = given.get("full_attention")
    parameters = nested if isinstance(nested, dict) else given
    theta = c.entry("rope_parameters", parameters, "rope_theta") or c.number("rope_theta", 10_000.0)
    part = c.entry("rope_parameters", parameters, "partial_rotary_factor") or c.number("partial_rotary_factor", 1.0)
    scaling = c.table("rope_scaling") or {k: v for k, v in parameters.items() if k != "rope_theta"}
    turned = c.count("rotary_dim", None) or int(head * min(max(part, 0.0), 1.0))
    return Rope(turned, theta, tuple(sorted((k, str(v)) for k, v in scaling.items())))


def _windowed(c: Config, attention: Attention, window: int | None) -> Attention:
    """Return an attention with a window; Gemma 3's have a rotary base of their own."""
    nested = c.table("rope_parameters").get("sliding_attention")
    local = c.number("rope_local_base_freq", None)
    local = c.entry("rope_parameters", nested, "rope_theta") if isinstance(nested, dict) else local
    base = replace(attention.rope, theta=local, scaling=()) if attention.rope and window and local else attention.rope
    return replace(attention, mask=Mask(window=window), rope=base)


def _stretched(c: Config, turning: Rope) -> float:
    """Return what DeepSeek multiplies queries and keys with where YaRN stretches positions (arXiv:2309.00071, 3.4)."""
    if not turning.scaling:
        return 1.0
    key = "rope_scaling" if c.table("rope_scaling") else "rope_parameters"
    factor, depth = c.entry(key, c.table(key), "factor", 1.0), c.entry(key, c.table(key), "mscale_all_dim")
    return 0.1 * depth * log(factor) + 1.0 if depth and factor > 1 else 1.0
