"""Llama 3.2 Vision: a decoder some of whose layers look at images through cross-attention, and its tower of two stacks."""

from __future__ import annotations

from dataclasses import replace

from planner.blocks import Attention, Block, FeedForward, Leaf, Norm, Table, Weights, linear, vector
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.model import Layer, Sublayer
from planner.topology import Anatomy, Request
from planner.topology.attention import attention
from planner.topology.decoder import decoder
from planner.topology.feed_forward import feed_forward
from planner.topology.towers import Further, Tower, vit, whole_numbers
from planner.vision import OnlySeeing

MORE_ROWS = 8
"""Rows of the table behind the vocabulary's, for the image token."""


def looking(c: Config, layers: int) -> set[int]:
    """Return which layers look at images."""
    found = set(whole_numbers(c, "cross_attention_layers", default=[3, 8, 13, 18, 23, 28, 33, 38]))
    if max(found, default=0) >= layers:
        raise PlanError(
            f"found layer {max(found)}, but there are {layers}",
            where=c.where("cross_attention_layers"),
            fix="correct the file",
        )
    return found


def _mixers(c: Config, request: Request, layers: int) -> list[Block | None]:
    """Self-attention, or cross-attention with normed queries and keys."""
    made, cross = attention()(c, request, layers), looking(c, layers)
    found: list[Block | None] = []
    for i, block in enumerate(made):
        assert isinstance(block, Attention)
        norm = Norm(block.head, epsilon=c.number("rms_norm_eps", 1e-5))
        seeing = replace(block, cross=True, mask=Mask(causal=False), qk_norm=norm, rope=None, name="cross_attn")
        gate = Weights((vector("cross_attn_attn_gate", 1, "other"), vector("cross_attn_mlp_gate", 1, "other")))
        found.append(_gated(seeing, gate) if i in cross else block)
    return found


def _gated(block: Attention, gate: Weights) -> OnlySeeing:
    return OnlySeeing(replace(block, extra=gate.parts), block.name)


def _feeds(c: Config, request: Request, layers: int) -> list[Block | None]:
    """Gated blocks; those of layers that look at images are left out where there are none."""
    cross = looking(c, layers)
    return [
        OnlySeeing(block, block.name) if i in cross and isinstance(block, FeedForward) else block
        for i, block in enumerate(feed_forward()(c, request, layers))
    ]


def mllama(c: Config, request: Request) -> Anatomy:
    """Return the decoder."""
    anatomy = decoder(c, request, mixers=_mixers, feeds=_feeds)
    (stack,) = anatomy.stacks
    front = tuple(
        replace(block, rows=block.rows + MORE_ROWS) if isinstance(block, Table) and block.index == "token" else block
        for block in stack.front
    )
    return anatomy._replace(stacks=(replace(stack, front=front),))


def mllama_tower(c: Config) -> Tower:
    """Return the tower: tables for tiles and aspect ratios, local layers, then global ones with gates."""
    d, tiles = c.count("hidden_size"), c.count("max_num_tiles")
    ratios = c.raw("supported_aspect_ratios", None)
    kinds = 1 + (len(ratios) if isinstance(ratios, list) else 8)
    c.ignore("intermediate_layers_indices")

    def tables(_c: Config, _d: int) -> tuple[Block, ...]:
        side = c.count("image_size") // c.count("patch_size")
        rows = side * side + 1
        leaves = [
            Leaf("gated_positional_embedding.gate", 1, 1, "other"),
            Leaf("gated_positional_embedding.embedding", rows, d, "embedding"),
            Leaf("gated_positional_embedding.tile_embedding", kinds, tiles * rows * d, "embedding"),
        ]
        for name in ("pre_tile_positional_embedding", "post_tile_positional_embedding"):
            leaves += [Leaf(f"{name}.gate", 1, 1, "other"), Leaf(f"{name}.embedding", kinds, tiles * d, "embedding")]
        return (Weights(tuple(leaves)),)

    local = vit(
        c, epsilon=1e-5, biases="mlp", class_token=True, further=Further(tables), norms="pre post",
        paths=("patch_embedding", "transformer.layers"),
    )  # fmt: skip
    gates = Sublayer(Weights((vector("gate_attn", 1, "other"), vector("gate_ffn", 1, "other"))))
    one = Layer((*local.layers[0].sublayers, gates))
    return local._replace(layers=(*local.layers, *[one] * c.count("num_global_layers")), rows=None, leaving=None)


def mllama_projector(_c: Config, inner: Config, _tower: Tower, width: int) -> tuple[Block, ...]:
    """One matrix, for rows of the last layer joined with those of some before it."""
    into = inner.count("vision_output_dim")
    return (Weights((linear("multi_modal_projector", into, width, "other", bias=True, feeds="merged"),)),)
