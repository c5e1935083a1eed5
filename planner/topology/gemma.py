"""Gemma 3n and 4: decoders whose last layers read the keys and values of layers before them, with embeddings of each layer's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from typing import Any

from planner.altup import AltUp
from planner.blocks import Attention, Block, FeedForward, MixtureOfExperts, Norm, Table, Weights, linear, vector
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.model import Layer, Run, Sublayer
from planner.topology import Anatomy, Request
from planner.topology.attention import rope
from planner.topology.decoder import decoder

KINDS = ("sliding_attention", "full_attention")


def kinds(c: Config, layers: int, step: int, *, last_is_full: bool) -> list[str]:
    """Return the kind of every layer: as listed, else every `step`-th sees all; Gemma 4's last one always does."""
    found = c.per_layer("layer_types", layers, KINDS) or [KINDS[(i + 1) % step == 0] for i in range(layers)]
    return [*found[:-1], "full_attention"] if last_is_full else found


def borrowers(c: Config, layers: int, listed: list[str]) -> list[bool]:
    """Return which layers read the cache of the last layer of their kind that has one: the last `num_kv_shared_layers`."""
    shared = c.count("num_kv_shared_layers", 0, low=0)
    first = layers - shared
    if shared > layers or (first > 0 and set(listed[first:]) - set(listed[:first])):
        raise PlanError(
            f"found {shared}, but the first {max(first, 0)} of {layers} layers hold no cache of a kind that the others read",
            where=c.where("num_kv_shared_layers"),
            fix="lower it",
        )
    return [i >= first for i in range(layers)]


def shared_attention(*, step: int, wide: bool) -> Any:
    """Return the maker of attention whose last layers have no keys and values of their own.

    Args:
        step: every so many layers one sees all, where `layer_types` is missing.
        wide: layers that see all have heads of `global_head_dim`, and may use keys as values (Gemma 4).
    """

    def blocks(c: Config, _request: Request, layers: int) -> list[Block | None]:
        width, heads, head = c.count("hidden_size"), c.count("num_attention_heads"), c.count("head_dim")
        groups, bias = c.count("num_key_value_heads"), c.flag("attention_bias", False)
        if wide and c.text("use_bidirectional_attention", None) == "all":
            raise PlanError(
                "found 'all'; this family is modelled as a causal decoder", where=c.where("use_bidirectional_attention"),
                fix="set it to null or to 'vision'",
            )  # fmt: skip
        listed = kinds(c, layers, step, last_is_full=wide)
        borrows, window = borrowers(c, layers, listed), c.count("sliding_window")
        eps, turning = c.number("rms_norm_eps", 1e-6), rope(c, head)
        same = wide and c.flag("attention_k_eq_v", False)
        own = _overrides(c, layers, same=same) if wide else {}
        local = c.table("rope_parameters").get("sliding_attention")
        given = local.get("rope_theta") if isinstance(local, dict) else None
        theta = float(given or c.number("rope_local_base_freq", 10_000.0))
        made: list[Block | None] = []
        for i, kind in enumerate(listed):
            full = kind == "full_attention"
            k, n = own.get(i, (head, groups)) if wide else (head, groups)
            one = Attention(
                width, heads, n, k, Mask(window=None if full else window), bias, bias, bias, bias,
                qk_norm=Norm(k, epsilon=eps), rope=turning if full else replace(turning, theta=theta, scaling=()),
                scale=1.0, borrows=borrows[i], same_values=same and full,
            )  # fmt: skip
            made.append(one)
        return made

    return blocks


def _overrides(c: Config, layers: int, *, same: bool) -> dict[int, tuple[int, int]]:
    """Return head width and key-value heads of the layers that have their own: by number, or all that see everything."""
    given = c.raw("per_layer_config", None)
    head, groups = c.count("head_dim"), c.count("num_key_value_heads")
    many = c.count("num_global_key_value_heads", None)
    broad = (c.count("global_head_dim", 512), many if many and same else groups)
    if not isinstance(given, Mapping):
        return {i: broad for i, kind in enumerate(kinds(c, layers, 6, last_is_full=True)) if kind == "full_attention"}
    found = {}
    for key, values in given.items():
        sizes = (
            [values.get("head_dim", head), values.get("num_key_value_heads", groups)]
            if isinstance(values, Mapping)
            else []
        )
        if not str(key).isdecimal() or len(sizes) != 2 or not all(type(n) is int and n > 0 for n in sizes):
            raise PlanError(
                f"found {key!r}: {values!r}, numbers of layers and their keys are needed", where=c.where("per_layer_config"),
                fix="correct the file",
            )  # fmt: skip
        found[int(key)] = (sizes[0], sizes[1])
    return found


def listed_widths(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """Gemma 3n: gated blocks of `intermediate_size`, one number or one for each layer."""
    many = isinstance(c.raw("intermediate_size"), list)
    sizes = c.counts("intermediate_size", layers, low=1) if many else [c.count("intermediate_size")] * layers
    act = c.text("hidden_activation", "gelu_pytorch_tanh")
    return [FeedForward(c.count("hidden_size"), f, activation=act) for f in sizes or []]


def double_wide(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """Gemma 4: layers without a cache of their own may have blocks twice as wide."""
    f, act = c.count("intermediate_size"), c.text("hidden_activation", "gelu_pytorch_tanh")
    borrows = borrowers(c, layers, kinds(c, layers, 6, last_is_full=True))
    double = c.flag("use_double_wide_mlp", False)
    return [FeedForward(c.count("hidden_size"), f * (2 if double and has else 1), activation=act) for has in borrows]


def _own_embeddings(c: Config, layers: int) -> tuple[tuple[Block, ...], tuple[Sublayer, ...]]:
    """Return tables of every layer's own embeddings with their projection, and what each layer does with its row."""
    small, width = c.count("hidden_size_per_layer_input", 0, low=0), c.count("hidden_size")
    if not small:
        c.ignore("vocab_size_per_layer_input")
        return (), ()
    table = Table("embed_tokens_per_layer", c.count("vocab_size_per_layer_input"), layers * small, scale=sqrt(small))
    projected = Weights(
        (
            linear("per_layer_model_projection", width, layers * small, "other"),
            vector("per_layer_projection_norm", small, "norm"),
        )
    )
    used = Weights(
        (
            linear("per_layer_input_gate", width, small, "other"),
            linear("per_layer_projection", small, width, "other"),
            vector("post_per_layer_input_norm", width, "norm"),
        )
    )
    return (table, projected), (Sublayer(used),)


def gemma3n(c: Config, request: Request) -> Anatomy:
    """Return a decoder with AltUp's versions of the stream, low-rank residuals (LAuReL) and embeddings of each layer's own."""
    anatomy = decoder(
        c,
        request,
        mixers=shared_attention(step=5, wide=False),
        feeds=listed_widths,
        wiring="sandwich",
        scaled_table=True,
    )
    width, layers, a = c.count("hidden_size"), c.count("num_hidden_layers"), c.count("altup_num_inputs")
    rank = c.count("laurel_rank")
    tables, own = _own_embeddings(c, layers)
    laurel = Weights(
        (
            linear("laurel.linear_left", width, rank, "other"),
            linear("laurel.linear_right", rank, width, "other"),
            vector("laurel.post_laurel_norm", width, "norm"),
        )
    )
    more = (Sublayer(AltUp(width, a)), Sublayer(laurel), *own)
    into, out = (
        Weights(tuple(linear(f"{name}.{i}", width, width, "other") for i in range(a - 1)))
        for name in ("altup_projections", "altup_unembed_projections")
    )
    return _with(anatomy, (*tables, into), more, (out,))


def gemma4(c: Config, request: Request) -> Anatomy:
    """Return a decoder with heads of two widths, embeddings of each layer's own, and experts beside the dense blocks."""
    anatomy = decoder(
        c, request, mixers=shared_attention(step=6, wide=True), feeds=double_wide, wiring="sandwich", scaled_table=True
    )
    tables, own = _own_embeddings(c, c.count("num_hidden_layers"))
    scalar = Sublayer(Weights((vector("layer_scalar", 1, "other", buffer=True),)))
    experts = _experts(c) if c.flag("enable_moe_block", False) else ()
    if not experts:
        c.ignore("num_experts", "num_experts_per_tok", "moe_intermediate_size")
    return _with(anatomy, tables, (*experts, *own, scalar), ())


def _experts(c: Config) -> tuple[Sublayer, ...]:
    """Return experts that see what the dense block sees, with norms and scales of their own."""
    width, count, top_k = c.count("hidden_size"), c.count("num_experts"), c.count("num_experts_per_tok")
    if top_k > count:
        raise PlanError(
            f"found {top_k}, but there are {count} experts",
            where=c.where("num_experts_per_tok"),
            fix=f"allowed are 1 to {count}",
        )
    mixture = MixtureOfExperts(
        width, c.count("moe_intermediate_size"), count, top_k, activation=c.text("hidden_activation", "gelu_pytorch_tanh"),
        scoring="softmax", normalized=True, router="router.proj", name="",
    )  # fmt: skip
    norms = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
    beside = Weights(
        (
            *(vector(name, width, "norm") for name in norms),
            vector("router.scale", width, "router"),
            vector("router.per_expert_scale", count, "router"),
        )
    )
    return Sublayer(mixture), Sublayer(beside)


def _with(anatomy: Anatomy, front: tuple[Block, ...], each: tuple[Sublayer, ...], back: tuple[Block, ...]) -> Anatomy:
    """Return the decoder with more in front, in each layer, and before the final norm."""
    (stack,) = anatomy.stacks
    wider = tuple(Run(run.count, _longer(run.layer, each), run.repeats) for run in stack.runs)
    return anatomy._replace(
        stacks=(replace(stack, front=(*stack.front, *front), runs=wider, back=(*back, *stack.back)),)
    )


def _longer(layer: Layer, each: tuple[Sublayer, ...]) -> Layer:
    return replace(layer, sublayers=(*layer.sublayers, *each))
