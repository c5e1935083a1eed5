"""Which traits of a description the twin computes; one that it would have to ignore is refused by name."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from planner.blocks import (
    Attention,
    AudioFrontEnd,
    FeedForward,
    Head,
    LatentAttention,
    Leaf,
    MixtureOfExperts,
    Norm,
    Pooler,
    Rope,
    Sinusoids,
    Table,
)
from planner.errors import PlanError
from planner.masks import Mask
from planner.model import Layer, Run, Stack, Sublayer

COMPUTED: dict[type, frozenset[str]] = {
    kind: frozenset(names.split())
    for kind, names in {
        Stack: "name front runs back scope list",
        Run: "count layer repeats",
        Layer: "sublayers parallel before",
        Sublayer: "block before after join",
        Leaf: "name n_in n_out part work feeds rate bias copies active tie buffer own_dtype split",
        Norm: "width kind bias epsilon unit_offset name affine",
        Mask: "causal window chunk block random_blocks",
        Rope: "width theta scaling interleaved",
        Attention: "width heads kv_heads head mask q_bias k_bias v_bias out_bias qk_norm cross relative_buckets "
        "relative_distance global_projections cached_heads rope scale softcap name value memory_width whole_cache",
        LatentAttention: "width heads q_rank kv_rank nope rope value bias rope_positions scale mask name epsilon",
        FeedForward: "width hidden gated up_bias down_bias activation part name",
        MixtureOfExperts: "width hidden experts top_k gated bias activation shared shared_gate shared_bias shared_name "
        "router router_bias correction_bias scoring capacity name normalized weight_scale groups top_groups",
        Table: "name rows width tie scale index offset",
        Sinusoids: "width offset halves",
        AudioFrontEnd: "bands width kernel",
        Pooler: "width name",
        Head: "width vocabulary bias tie transform transform_bias activation every_row logits_bias scale softcap name",
    }.items()
}
"""By type, the fields that `measure.build` and `measure.functions` read; and how ranks divide, which changes no function."""


def check(value: Any, where: str) -> None:
    """Refuse a value that has a trait beyond its default which the twin would ignore, in itself or in what it holds.

    Raises:
        PlanError: with the type and the field.
    """
    if isinstance(value, tuple):
        for entry in value:
            check(entry, where)
    if not is_dataclass(value) or isinstance(value, type):
        return
    kind = type(value)
    if kind not in COMPUTED:
        raise PlanError(f"the twin can't build the block {kind.__name__}", where=where)
    for field in fields(value):
        held = getattr(value, field.name)
        if field.name not in COMPUTED[kind] and (field.default is MISSING or held != field.default):
            raise PlanError(f"the twin doesn't compute {kind.__name__}.{field.name} = {held!r}", where=where)
        check(held, where)
