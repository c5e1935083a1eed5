"""Layers that differ in heads and widths, one by one: OpenELM's scaled ones, and those that a search chose (DeciLM, Nemotron)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.blocks import Attention, Block, FeedForward, Norm, Part, Weights, linear
from planner.errors import PlanError
from planner.fields import LARGEST, Config
from planner.masks import Mask
from planner.topology import Request
from planner.topology.attention import grouped, rope
from planner.topology.feed_forward import feed_forward

ATTENTION_KEYS = {"no_op", "replace_with_linear", "n_heads_in_group", "num_key_value_heads", "use_prefill_window_in_sink_attention",
                  "unshifted_sink"}  # fmt: skip
FEED_KEYS = {"no_op", "replace_with_linear", "ffn_mult", "intermediate_size", "hidden_act", "gated"}


def divisible(value: float, divisor: int) -> int:
    """Round to a multiple of a divisor, not below it, and up where that loses more than a tenth."""
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded


def spread(c: Config, key: str, layers: int) -> list[float]:
    """Return a number for each layer: one for all, two to go from one to the other, or all of them."""
    given = c.raw(key)
    values = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given] * layers
    if not all(
        isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LARGEST for value in values
    ):
        raise PlanError("a number above 0, or a list of them, is needed", where=c.where(key), fix="correct the file")
    if len(values) == 2 < layers:
        low, high = values
        values = [round(low + i * (high - low) / (layers - 1), 2) for i in range(layers)]
    if len(values) != layers:
        raise PlanError(
            f"found {len(values)} entries, 2 or {layers} are needed",
            where=c.where(key),
            fix="give one entry for each layer",
        )
    return values


def scaled_attention(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """OpenELM: heads grow with depth, as listed or by `qkv_multipliers` times D."""
    width, head = c.count("hidden_size"), c.count("head_dim")
    sharing = c.count("num_gqa_groups", None)
    step = head * (sharing or 2)
    scales = spread(c, "qkv_multipliers", layers)
    heads = c.counts("num_query_heads", layers, low=1) or [divisible(width * scale, step) // head for scale in scales]
    groups = c.counts("num_kv_heads", layers, low=1) or [each // (sharing or 1) for each in heads]
    norm = Norm(head) if c.flag("normalize_qk_projections", False) else None
    return [
        Attention(width, many, few, head, qk_norm=norm, rope=rope(c, head), name="attn")
        for many, few in zip(heads, groups, strict=True)
    ]


def scaled_feeds(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """OpenELM: hidden widths grow with depth, `ffn_multipliers` times D."""
    width, divisor = c.count("hidden_size"), c.count("ffn_dim_divisor")
    act, gated = c.text("activation", "swish"), c.flag("ffn_with_glu", True)
    scales = spread(c, "ffn_multipliers", layers)
    return [
        FeedForward(width, divisible(scale * width, divisor), gated, activation=act, name="ffn") for scale in scales
    ]


def chosen_attention(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """DeciLM, Nemotron: key-value heads differ; a layer may have no attention, or one matrix instead of it."""
    width = c.count("hidden_size")
    head = c.count("head_dim", None)
    heads = c.count("num_attention_heads") if head else c.heads("num_attention_heads", width)
    head = head or width // heads
    bias = c.flag("attention_bias", False)

    def block(groups: int) -> Block:
        return Attention(width, heads, groups, head, Mask(), bias, bias, bias, bias, rope=rope(c, head))

    choices = _choices(c, layers, "attention", ATTENTION_KEYS)
    if choices is None:
        listed = c.counts("num_key_value_heads_per_layer", layers, low=1)
        if listed:
            c.ignore("num_key_value_heads")
        return [block(each) for each in listed or [grouped(c, heads)] * layers]
    c.ignore("num_key_value_heads", "num_key_value_heads_per_layer")
    return [
        _instead(choice, width, "self_attn") if _replaced(choice) else block(_groups(c, choice, heads, index))
        for index, choice in enumerate(choices)
    ]


def chosen_feeds(c: Config, request: Request, layers: int) -> list[Block | None]:
    """DeciLM, Nemotron: hidden widths differ; a layer may have no feed-forward block, or one matrix instead of it."""
    width, choices = c.count("hidden_size"), _choices(c, layers, "ffn", FEED_KEYS)
    if choices is None:
        return feed_forward(bias="mlp_bias")(c, request, layers)
    c.ignore("intermediate_size")
    act, bias = c.text("hidden_act", "silu"), c.flag("mlp_bias", False)
    return [
        _instead(choice, width, "mlp")
        if _replaced(choice)
        else FeedForward(width, _hidden(c, choice, width, index), True, bias, bias, act)
        for index, choice in enumerate(choices)
    ]


def _choices(c: Config, layers: int, part: str, known: set[str]) -> list[Mapping[str, Any]] | None:
    """Return what `block_configs` says of one part of every layer, None where there is none.

    Raises:
        PlanError: it isn't a list of objects for all layers, or asks for what isn't modelled (windows, sparsity, experts).
    """
    given = c.raw("block_configs", None)
    if given is None:
        return None
    shape = isinstance(given, list) and len(given) == layers
    if not shape or not all(isinstance(each, Mapping) and isinstance(each.get(part), Mapping) for each in given):
        raise PlanError(
            f"a list of {layers} objects is needed, each with attention and ffn",
            where=c.where("block_configs"),
            fix="give one entry for each layer",
        )
    for index, each in enumerate(given):
        for key, value in each[part].items():
            if key not in known and value:
                raise PlanError(
                    f"found {value!r}, which isn't modelled",
                    where=f"{c.where('block_configs')}[{index}].{part}.{key}",
                    fix=f"known are {', '.join(sorted(known))}",
                )
    return [each[part] for each in given]


def _replaced(choice: Mapping[str, Any]) -> bool:
    """Return whether a layer has no such block, or one matrix instead."""
    return bool(choice.get("no_op") or choice.get("replace_with_linear"))


def _instead(choice: Mapping[str, Any], width: int, name: str) -> Block | None:
    """Return the one matrix [D, D], or nothing."""
    if choice.get("no_op"):
        return None
    part: Part = "attention" if name == "self_attn" else "mlp"
    return Weights((linear(f"{name}.linear", width, width, part),))


def _groups(c: Config, choice: Mapping[str, Any], heads: int, index: int) -> int:
    """Return key-value heads: as given, or query heads divided by `n_heads_in_group`."""
    shared, groups = choice.get("n_heads_in_group"), choice.get("num_key_value_heads")
    if isinstance(shared, int) and not isinstance(shared, bool) and shared > 0 and heads % shared == 0:
        return heads // shared
    if isinstance(groups, int) and not isinstance(groups, bool) and groups > 0 and heads % groups == 0:
        return groups
    raise PlanError(
        f"found {shared!r}, a divisor of the {heads} query heads is needed",
        where=f"{c.where('block_configs')}[{index}].attention.n_heads_in_group",
        fix="correct the file",
    )


def _hidden(c: Config, choice: Mapping[str, Any], width: int, index: int) -> int:
    """Return a hidden width: as given, or 2/3 of `ffn_mult` times D, rounded up to a multiple of 256."""
    given, scale = choice.get("intermediate_size"), choice.get("ffn_mult")
    if isinstance(given, int) and not isinstance(given, bool) and 0 < given <= LARGEST:
        return given
    if isinstance(scale, int | float) and not isinstance(scale, bool) and 0 < scale <= LARGEST:
        return -(-int(2 * scale * width / 3) // 256) * 256
    raise PlanError(
        f"found {scale!r}, a number above 0 is needed",
        where=f"{c.where('block_configs')}[{index}].ffn.ffn_mult",
        fix="correct the file",
    )
