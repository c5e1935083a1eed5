"""The attention of each layer, as rows of `planner.families` name it: grouped, windowed, latent.

Each function here takes traits and returns a `Maker`: what a topology calls to get one block for each layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log
from typing import Literal

from planner.blocks import Attention, Block, LatentAttention, Norm, Rope
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.topology import Maker, Request, Says, says

Windows = Callable[[Config, int], list[int | None]]
"""Config, number of layers: the window of every layer in tokens, None for all."""


def no_window(_c: Config, layers: int) -> list[int | None]:
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
                "missing or null, but layers use it",
                where=c.where("sliding_window"),
                fix="use --set sliding_window=VALUE",
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


def attention(
    *,
    qkv_bias: Says = False,
    out_bias: Says = False,
    qk_norm: Literal["head", "all"] | None = None,
    unit_offset: bool = False,
    positions: Literal["rope", "none"] = "rope",
    windows: Windows = no_window,
    kv_heads: Callable[[Config, int], int] = grouped,
    cached_heads: Callable[[Config, Request, int, int], int] | None = None,
    alibi: Says = False,
) -> Maker:
    """Return the maker of multi-head attention.

    Args:
        qkv_bias, out_bias: whether projections add a vector.
        qk_norm: norm of queries and keys, each head on its own or all heads together.
        unit_offset: these norms multiply by 1 + weight.
        positions: rotary, or none of its own.
        windows: the window of every layer.
        kv_heads: number of key-value heads, read off the config and the number of query heads.
        cached_heads: number of key-value heads that the engine's cache holds, where it isn't theirs.
        alibi: scores fall with distance, instead of rotary positions.
    """

    def blocks(c: Config, request: Request, layers: int) -> list[Block | None]:
        width = c.count("hidden_size")
        head = c.count("head_dim", None)
        heads = c.count("num_attention_heads") if head else c.heads("num_attention_heads", width)
        head = head or width // heads
        groups = kv_heads(c, heads)
        slopes, bias = says(c, alibi), says(c, qkv_bias)
        normed = {"head": head, "all": heads * head}.get(qk_norm or "")
        scalar = c.number("query_pre_attn_scalar", None)
        one = Attention(
            width, heads, groups, head, Mask(), bias, bias, bias, says(c, out_bias),
            qk_norm=Norm(normed, epsilon=c.number("rms_norm_eps", 1e-6), unit_offset=unit_offset) if normed else None,
            cached_heads=cached_heads(c, request, heads, groups) if cached_heads else None,
            rope=rope(c, head) if positions == "rope" and not slopes else None,
            scale=scalar**-0.5 if scalar else None, softcap=c.number("attn_logit_softcapping", None), alibi=slopes,
        )  # fmt: skip
        return [_windowed(c, one, window) for window in windows(c, layers)]

    return blocks


def latent_attention(*, bias: Says = False) -> Maker:
    """Return the maker of multi-head latent attention (DeepSeek)."""

    def blocks(c: Config, _request: Request, layers: int) -> list[Block | None]:
        width, heads = c.count("hidden_size"), c.count("num_attention_heads")
        nope, turned = c.count("qk_nope_head_dim"), c.count("qk_rope_head_dim")
        c.ignore("num_key_value_heads", "head_dim")
        turning = replace(rope(c, turned), interleaved=c.flag("rope_interleave", True))
        block = LatentAttention(
            width, heads, c.count("q_lora_rank", None), c.count("kv_lora_rank"), nope, turned, c.count("v_head_dim"),
            says(c, bias), turning, (nope + turned) ** -0.5 * _stretched(turning) ** 2,
        )  # fmt: skip
        return [block] * layers

    return blocks


def rope(c: Config, head: int) -> Rope:
    """Return the rotary positions that a config gives, in the old or the new form."""
    given = c.table("rope_parameters")
    nested = given.get("full_attention")
    parameters = nested if isinstance(nested, dict) else given
    theta = parameters.get("rope_theta") or c.number("rope_theta", 10_000.0)
    part = parameters.get("partial_rotary_factor") or c.number("partial_rotary_factor", 1.0)
    scaling = c.table("rope_scaling") or {k: v for k, v in parameters.items() if k != "rope_theta"}
    return Rope(int(head * part), theta, tuple(sorted((k, str(v)) for k, v in scaling.items())))


def _windowed(c: Config, attention: Attention, window: int | None) -> Attention:
    """Return an attention with a window; Gemma 3's have a rotary base of their own."""
    nested = c.table("rope_parameters").get("sliding_attention")
    local = nested.get("rope_theta") if isinstance(nested, dict) else c.number("rope_local_base_freq", None)
    base = replace(attention.rope, theta=local, scaling=()) if attention.rope and window and local else attention.rope
    return replace(attention, mask=Mask(window=window), rope=base)


def _stretched(turning: Rope) -> float:
    """Return what DeepSeek multiplies queries and keys with where YaRN stretches positions (arXiv:2309.00071, 3.4)."""
    given = dict(turning.scaling)
    factor, depth = float(str(given.get("factor") or 1)), float(str(given.get("mscale_all_dim") or 0))
    return 0.1 * depth * log(factor) + 1.0 if depth and factor > 1 else 1.0
