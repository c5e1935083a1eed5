"""The feed-forward block of each layer: dense, or a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from planner.blocks import Block, FeedForward, Leaf, MixtureOfExperts, Scoring
from planner.errors import PlanError
from planner.fields import REQUIRED, Config
from planner.topology import Maker, Request, Says, says


def feed_forward(
    *,
    gated: bool = True,
    bias: Says = False,
    activation: str = "hidden_act",
    renamed_activations: Mapping[str, str] | None = None,
    hidden: str | Callable[[Config, int], int] = "intermediate_size",
    extra: Callable[[FeedForward], tuple[Leaf, ...]] | None = None,
) -> Maker:
    """Return the maker of dense blocks of `intermediate_size`, 4 D where it is missing or null (GPT-2).

    Args:
        hidden: key of their hidden width, or how to tell it from the config and D.
        gated: three matrices instead of two.
        bias: whether projections add a vector.
        activation: key of the activation's name.
        renamed_activations: names that mean another function (GPT-1's gelu).
        extra: what else each block stores.
    """

    def blocks(c: Config, _request: Request, layers: int) -> list[Block | None]:
        width = c.count("hidden_size")
        name = c.text(activation, "silu")
        name = (renamed_activations or {}).get(name, name)
        added = says(c, bias)
        wide = hidden(c, width) if callable(hidden) else c.count(hidden, 4 * width)
        one = FeedForward(width, wide, gated, added, added, name)
        return [replace(one, extra=extra(one)) if extra else one] * layers

    return blocks


Sparse = Callable[[Config, int], list[bool]]
"""Config, number of layers: which layers hold experts."""


def after_the_first(c: Config, layers: int) -> list[bool]:
    """DeepSeek: all layers but the first `first_k_dense_replace`, and of these every `moe_layer_freq`-th."""
    first, step = c.count("first_k_dense_replace", 0, low=0), c.count("moe_layer_freq", 1)
    return [i >= first and i % step == 0 for i in range(layers)]


def listed(otherwise: Sparse) -> Sparse:
    """Layers are dense or sparse as `mlp_layer_types` lists them, or as `otherwise` says where it is missing."""

    def layers_with_experts(c: Config, layers: int) -> list[bool]:
        kinds = c.per_layer("mlp_layer_types", layers, ("dense", "sparse"))
        if kinds is None:
            return otherwise(c, layers)
        c.ignore("first_k_dense_replace", "moe_layer_freq")
        return [kind == "sparse" for kind in kinds]

    return layers_with_experts


def but_the_first(c: Config, layers: int) -> list[bool]:
    """DeepSeek's rule, where one dense layer is the default."""
    c.raw("first_k_dense_replace", None)
    values = {"first_k_dense_replace": 1, **{key: value for key, value in c.values.items() if value is not None}}
    return after_the_first(replace(c, values=values), layers)


def every_layer(_c: Config, layers: int) -> list[bool]:
    """All layers."""
    return [True] * layers


def every_step(c: Config, layers: int) -> list[bool]:
    """Qwen: every `decoder_sparse_step`-th layer, but those of `mlp_only_layers`; none without experts."""
    step, dense = c.count("decoder_sparse_step", 1), c.counts("mlp_only_layers") or []
    some = c.count("num_experts", low=0) > 0
    return [some and i not in dense and (i + 1) % step == 0 for i in range(layers)]


def between(c: Config, layers: int) -> list[bool]:
    """ERNIE 4.5: every `moe_layer_interval`-th layer from `moe_layer_start_index` to `moe_layer_end_index` (-1: last)."""
    first, last = c.count("moe_layer_start_index", 0, low=0), c.count("moe_layer_end_index", -1, low=-1)
    step = c.count("moe_layer_interval", 1)
    last = layers - 1 if last == -1 else last
    return [first <= i <= last and (i + 1) % step == 0 for i in range(layers)]


def interleaved(c: Config, layers: int) -> list[bool]:
    """Llama 4: the layers in `moe_layers`, else every `interleave_moe_layer_step`-th."""
    step, chosen = c.count("interleave_moe_layer_step", 1), c.counts("moe_layers")
    held = range(step - 1, layers, step) if chosen is None else chosen
    return [i in held for i in range(layers)]


def shared_experts(c: Config, hidden: int) -> int:
    """DeepSeek: `n_shared_experts` times the width of a routed expert."""
    return int(c.count("n_shared_experts", 0, low=0)) * hidden


def shared_width(key: str) -> Callable[[Config, int], int]:
    """Return the reader of a width of its own (Qwen 2)."""
    return lambda c, _hidden: int(c.count(key, 0, low=0))


def mixture(
    *,
    correction_bias: Says | Literal["parameter"] = False,
    scoring: Scoring = "softmax_top_k",
    sparse: Sparse = after_the_first,
    dense: Maker | None = None,
    hidden: str = "moe_intermediate_size",
    bias: Says = False,
    router_bias: Says = False,
    shared: Callable[[Config, int], int] = shared_experts,
    shared_gate: bool = False,
    shared_bias: Says = False,
    identities: str = "",
    runs_all: str | None = None,
    router: str = "gate",
    shared_name: str = "shared_experts",
    gated: bool = True,
    activation: str = "hidden_act",
    post_norm: bool = False,
    may_lack_top_k: bool = False,
) -> Maker:
    """Return the maker of mixtures of experts of `moe_intermediate_size`, and of dense blocks where a layer has none.

    Args:
        correction_bias: a buffer that balances the load (DeepSeek-V3), by a key or always, or a "parameter".
        scoring: how scores become weights.
        sparse: which layers hold experts.
        dense: maker of the other layers' blocks.
        hidden: key of an expert's width; where it is missing, `intermediate_size`.
        bias, router_bias: whether experts and router add vectors. gated, activation: as in `feed_forward`.
        shared: width of the shared expert, read off the config and the width of a routed one; 0: none.
        shared_gate, shared_bias: whether one more output scales it; whether it adds vectors.
        identities: key of the number of experts that return their input.
        runs_all: quirk of engines that run every expert on every row.
        router, shared_name: as in checkpoints. post_norm: a norm of the experts' sum.
        may_lack_top_k: `num_experts_per_tok` may be null; no expert is then counted as visited, and a note says so.
    """

    def blocks(c: Config, request: Request, layers: int) -> list[Block | None]:
        held = sparse(c, layers)
        none: list[Block | None] = [None] * layers
        others = (dense or feed_forward())(c, request, layers) if dense or not all(held) else none
        if not any(held):
            if c.raw("num_experts", None):
                c.notes.append("no layer holds experts, so that keys of experts have no effect")
            c.ignore("num_experts", "num_experts_per_tok", hidden, "n_shared_experts", "n_group", "topk_group")
            return others
        wide, experts = _each(c, hidden, layers, None), c.count("num_experts")
        wide = _each(c, "intermediate_size", layers) if None in wide else wide
        c.ignore("intermediate_size")
        chosen = [0] * layers if may_lack_top_k and _no_top_k(c) else _each(c, "num_experts_per_tok", layers)
        if max(chosen) > experts:
            raise PlanError(
                f"found {max(chosen)}, but there are {experts} experts",
                where=c.where("num_experts_per_tok"),
                fix=f"allowed are 1 to {experts}",
            )
        greedy = c.text("topk_method", None) == "greedy"
        corrected = correction_bias if correction_bias == "parameter" else says(c, correction_bias)
        one = MixtureOfExperts(
            c.count("hidden_size"), 0, experts, 0, gated, says(c, bias), c.text(activation, "silu"),
            shared_gate=shared_gate, router_bias=says(c, router_bias), correction_bias=corrected, scoring=scoring,
            normalized=c.flag("norm_topk_prob", False), weight_scale=c.number("routed_scaling_factor", 1.0),
            groups=1 if greedy else c.count("n_group", 1), top_groups=1 if greedy else c.count("topk_group", 1),
            shared_bias=says(c, shared_bias), identities=c.count(identities, 0, low=0) if identities else 0,
            phantoms=bool(identities) and request.does("stores_identity_experts"),
            runs_all=runs_all is not None and request.does(runs_all), router=router, shared_name=shared_name,
            post_norm=post_norm,
        )  # fmt: skip
        made = [replace(one, hidden=f, top_k=k, shared=shared(c, f)) for f, k in zip(wide, chosen, strict=True)]
        return [mine if has else other for has, mine, other in zip(held, made, others, strict=True)]

    return blocks


def _each(c: Config, key: str, layers: int, default: Any = REQUIRED) -> list[Any]:
    """Return a whole number for every layer: configs give one for all, or a list."""
    if isinstance(c.raw(key, None), list):
        return c.counts(key, layers, low=1) or []
    return [c.count(key, default)] * layers


def _no_top_k(c: Config) -> bool:
    """Return whether a config leaves open how many experts a row visits, and note it."""
    if c.count("num_experts_per_tok", None) is not None:
        return False
    c.notes.append(
        f"{c.spelling('num_experts_per_tok')} is null or missing: routed experts are counted as stored, but none as active, "
        "read or computed; give it to have their work planned"
    )
    return True
