"""The feed-forward block of each layer: dense, or a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from planner.blocks import Block, FeedForward, MixtureOfExperts
from planner.errors import PlanError
from planner.fields import Config
from planner.topology import Maker, Request, Says, says


def feed_forward(
    *,
    gated: bool = True,
    bias: Says = False,
    activation: str = "hidden_act",
    renamed_activations: Mapping[str, str] | None = None,
) -> Maker:
    """Return the maker of dense blocks of `intermediate_size`, 4 D where it is missing or null (GPT-2).

    Args:
        gated: three matrices instead of two.
        bias: whether projections add a vector.
        activation: key of the activation's name.
        renamed_activations: names that mean another function (GPT-1's gelu).
    """

    def blocks(c: Config, _request: Request, layers: int) -> list[Block | None]:
        width = c.count("hidden_size")
        name = c.text(activation, "silu")
        name = (renamed_activations or {}).get(name, name)
        added = says(c, bias)
        return [FeedForward(width, c.count("intermediate_size", 4 * width), gated, added, added, name)] * layers

    return blocks


def after_the_first(c: Config, layers: int) -> list[bool]:
    """DeepSeek: all layers but the first `first_k_dense_replace`, and of these every `moe_layer_freq`-th."""
    first, step = c.count("first_k_dense_replace", 0, low=0), c.count("moe_layer_freq", 1)
    return [i >= first and i % step == 0 for i in range(layers)]


def mixture(
    *,
    correction_bias: bool = False,
    scoring: Literal["softmax", "softmax_top_k", "sigmoid"] = "softmax_top_k",
    sparse: Callable[[Config, int], list[bool]] = after_the_first,
    dense: Maker | None = None,
) -> Maker:
    """Return the maker of mixtures of experts of `moe_intermediate_size`, and of dense blocks where a layer has none.

    Args:
        correction_bias: a buffer that balances the load (DeepSeek-V3).
        scoring: how scores become weights, see `MixtureOfExperts`.
        sparse: which layers hold experts.
        dense: maker of the other layers' blocks.
    """

    def blocks(c: Config, request: Request, layers: int) -> list[Block | None]:
        held = sparse(c, layers)
        others = (dense or feed_forward())(c, request, layers) if not all(held) else [None] * layers
        experts = _experts(c, correction_bias, scoring) if any(held) else None
        return [experts if has else other for has, other in zip(held, others, strict=True)]

    return blocks


def _experts(
    c: Config, correction_bias: bool, scoring: Literal["softmax", "softmax_top_k", "sigmoid"]
) -> MixtureOfExperts:
    hidden = c.count("moe_intermediate_size", None) or c.count("intermediate_size")
    count, top_k = c.count("num_experts"), c.count("num_experts_per_tok")
    if top_k > count:
        raise PlanError(
            f"found {top_k}, but there are {count} experts",
            where=c.where("num_experts_per_tok"),
            fix=f"allowed are 1 to {count}",
        )
    greedy = c.text("topk_method", None) == "greedy"
    return MixtureOfExperts(
        c.count("hidden_size"), hidden, count, top_k, activation=c.text("hidden_act", "silu"),
        shared=c.count("n_shared_experts", 0, low=0) * hidden, correction_bias=correction_bias, scoring=scoring,
        normalized=c.flag("norm_topk_prob", False), weight_scale=c.number("routed_scaling_factor", 1.0),
        groups=1 if greedy else c.count("n_group", 1), top_groups=1 if greedy else c.count("topk_group", 1),
    )  # fmt: skip
