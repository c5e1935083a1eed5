"""Step-3.5 and 3.7: lists that also cover layers of multi-token prediction, and query heads of their own where there is a window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.blocks import Attention, Block
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.topology import Request
from planner.topology.attention import attention

SLIDING, FULL = "sliding_attention", "full_attention"


def _listed(c: Config, key: str, layers: int, allowed: tuple[str, ...]) -> list[str] | None:
    """Return a text for each layer; entries of the layers of multi-token prediction that follow are left out.

    Raises:
        PlanError: it is no such list.
    """
    value = c.raw(key, None)
    more = c.count("num_nextn_predict_layers", 0, low=0)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) not in {layers, layers + more} or set(value) - set(allowed):
        raise PlanError(
            f"found {str(value)[:60]}, a list of {layers} is needed, of {', '.join(allowed)}", where=c.where(key),
            fix="give one entry for each layer",
        )  # fmt: skip
    return value[:layers]


def step_attention(c: Config, request: Request, layers: int) -> list[Block | None]:
    """Windows as `layer_types` lists them, with more query heads there; a number scales each head's output."""
    kinds = _listed(c, "layer_types", layers, (SLIDING, FULL)) or [FULL] * layers
    other = c.table("attention_other_setting")
    heads = c.count("num_attention_heads")
    near = c.count("num_sliding_attention_heads", None) or _count(c, other, "num_attention_heads", heads)
    window = c.count("sliding_window", None)
    if window is None and SLIDING in kinds:
        raise PlanError(
            "missing or null, but layers use it", where=c.where("sliding_window"), fix="use --set sliding_window=VALUE"
        )
    made = attention(qk_norm="head", gate="head", qkv_bias="attention_bias", out_bias="attention_bias")(
        c, request, layers
    )
    return [
        replace(block, heads=near, mask=Mask(window=window)) if kind == SLIDING else block
        for block, kind in zip(made, kinds, strict=True)
        if isinstance(block, Attention)
    ]


def _count(c: Config, table: Mapping[str, Any], key: str, default: int) -> int:
    value = table.get(key, default)
    if type(value) is not int or value < 1:
        raise PlanError(
            f"found {value!r}, a whole number above 0 is needed", where=f"{c.where('attention_other_setting')}.{key}",
            fix="correct the file",
        )  # fmt: skip
    return value


def step_experts(c: Config, layers: int) -> list[bool]:
    """Which layers hold experts: as `mlp_layer_types` or `moe_layers_enum` list them, else all from the fourth on."""
    listed = _listed(c, "mlp_layer_types", layers, ("dense", "sparse"))
    c.ignore("first_k_dense_replace", "moe_layers_enum")  # a list wins
    if listed:
        return [kind == "sparse" for kind in listed]
    given = c.raw("moe_layers_enum", None)
    items = given.split(",") if isinstance(given, str) else given
    if items is not None and not (isinstance(items, list) and all(str(each).strip().isdecimal() for each in items)):
        raise PlanError(
            f"found {given!r}, layers' numbers are needed", where=c.where("moe_layers_enum"), fix="correct the file"
        )
    first = c.count("first_k_dense_replace", 3, low=0)
    chosen = {int(each) for each in items} if items is not None else set(range(first, layers))
    return [i in chosen for i in range(layers)]
