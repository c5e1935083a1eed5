"""DeBERTa: scores of relative positions, and what stands with them."""

from __future__ import annotations

from planner.blocks import Block, Leaf, Norm, Weights, linear
from planner.disentangled_blocks import DisentangledAttention
from planner.fields import Config
from planner.topology import Maker, Request
from planner.topology.encoder import (
    HeadMaker,
    masked_lm,
)
from planner.topology.encoder_parts import plain_attention


def disentangled(*, buckets: bool) -> Maker:
    """Return the maker of DeBERTa's attention.

    Args:
        buckets: far positions share rows of the table, of which all are used; contents' matrices may project it
            (version 2).
    """

    def blocks(c: Config, _request: Request, layers: int) -> list[Block | None]:
        plain = plain_attention(c, key_bias=buckets)
        given = c.raw("pos_att_type", ())
        kinds = [kind.strip() for kind in given.lower().split("|")] if isinstance(given, str) else list(given)
        shared = buckets and c.flag("share_att_key", False)
        block = DisentangledAttention(
            plain, position_span(c, buckets=buckets), "c2p" in kinds, "p2c" in kinds, shared, buckets, not buckets
        )
        return [block] * layers

    return blocks


def position_span(c: Config, *, buckets: bool) -> int:
    """Return half of the rows of DeBERTa's table of relative positions, 0 where there is none."""
    longest = c.count("max_relative_positions", -1, low=-1)
    capped = c.count("position_buckets", -1, low=-1) if buckets else -1
    if not c.flag("relative_attention", False):
        return 0
    span: int = c.count("max_position_embeddings") if longest < 1 else longest
    return capped if capped > 0 else span


def deberta_between(c: Config) -> list[Block]:
    """DeBERTa: the table of relative positions and its norm; a convolution beside the first layer."""
    width = c.count("hidden_size")
    buckets = c.family != "deberta"
    norm = Norm(width, "layer", bias=True, epsilon=c.number("layer_norm_eps", 1e-7))
    blocks: list[Block] = []
    if span := position_span(c, buckets=buckets):
        blocks.append(Weights((Leaf("rel_embeddings", 2 * span, width, "attention"),)))
    if not buckets:
        return blocks
    if "layer_norm" in [kind.strip() for kind in c.text("norm_rel_ebd", "none").lower().split("|")]:
        blocks.append(norm)
    if kernel := c.count("conv_kernel_size", 0, low=0):
        groups = c.count("conv_groups", 1)
        conv = linear(
            "conv.conv", kernel * width // groups, width // groups, "conv", bias=True, work="conv", copies=groups
        )
        blocks += [Weights((conv,)), norm]
    return blocks


def deberta_head() -> HeadMaker:
    """Return the maker of DeBERTa's heads: the old one, or one that always shares the table of words."""
    old = masked_lm(inner="embedding_size")
    new = masked_lm(second_bias=False, tied="always")
    return lambda c: (old if c.flag("legacy", True) else new)(c)
