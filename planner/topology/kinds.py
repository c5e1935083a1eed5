"""Of which kind each layer of a hybrid is: listed in its config, or told by a rule of its family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from planner.blocks import Block
from planner.errors import PlanError
from planner.fields import Config
from planner.topology import Maker, Request

Kinds = Callable[[Config, int], list[str]]
"""Config, number of layers: the kind of every layer."""

OLD_KINDS = {"mamba": "linear_attention", "attention": "full_attention"}
"""Names of kinds in older configs, and what they are called now."""


def by_kind(kinds: Kinds, makers: Mapping[str, Maker]) -> Maker:
    """Return the maker that asks the maker of each layer's kind; a layer has no block where its kind has none.

    A kind that no layer has is made too, so that its keys count as known.
    """

    def blocks(c: Config, request: Request, layers: int) -> list[Block | None]:
        found = kinds(c, layers)
        made = {kind: makers[kind](c, request, layers) for kind in dict.fromkeys(found) if kind in makers}
        for kind in makers.keys() - made.keys():
            with suppress(PlanError):
                makers[kind](c, request, layers)
        return [made[kind][i] if kind in made else None for i, kind in enumerate(found)]

    return blocks


def every(kind: str) -> Kinds:
    """All layers are of this kind."""
    return lambda _c, layers: [kind] * layers


def listed_kinds(*allowed: str, otherwise: Kinds, key: str = "layer_types", instead_of: tuple[str, ...] = ()) -> Kinds:
    """Return the reader of a list of kinds.

    Args:
        allowed: the kinds.
        otherwise: tells them where the list is missing.
        key: of the list.
        instead_of: keys that have no effect beside it.
    """
    old = tuple(name for name, now in OLD_KINDS.items() if now in allowed)

    def kinds(c: Config, layers: int) -> list[str]:
        given = c.per_layer(key, layers, (*allowed, *old))
        if given is None:
            return otherwise(c, layers)
        c.ignore(*instead_of)
        return [OLD_KINDS[kind] if kind in old else kind for kind in given]

    return kinds


def linear_or_full(otherwise: Kinds, *instead_of: str) -> Kinds:
    """Return the reader of `layer_types`: linear or full attention."""
    return listed_kinds("linear_attention", "full_attention", otherwise=otherwise, instead_of=instead_of)


def _where(full: Callable[[int], bool], layers: int, other: str = "linear_attention") -> list[str]:
    return ["full_attention" if full(i) else other for i in range(layers)]


def at_offset(c: Config, layers: int) -> list[str]:
    """Jamba: full attention in layer `attn_layer_offset` of every `attn_layer_period`."""
    period, offset = c.count("attn_layer_period"), c.count("attn_layer_offset", low=0)
    return _where(lambda i: i % period == offset, layers)


def at_indices(c: Config, layers: int) -> list[str]:
    """Bamba: full attention in the layers of `attn_layer_indices`."""
    full = c.counts("attn_layer_indices") or []
    return _where(lambda i: i in full, layers)


def every_nth(key: str, fallback: int = 1) -> Kinds:
    """Return the rule of full attention in every n-th layer, n under this key."""

    def kinds(c: Config, layers: int) -> list[str]:
        step = c.count(key, fallback)
        return _where(lambda i: (i + 1) % step == 0, layers)

    return kinds


def olmo_kinds(_c: Config, layers: int) -> list[str]:
    """OLMo hybrid: full attention in every fourth layer, in the last of fewer."""
    return _where(lambda i: i % 4 == 3 or i + 1 == layers < 4, layers)


def minimax_kinds(c: Config, layers: int) -> list[str]:
    """MiniMax: full attention where `attn_type_list` has a 1, else in every other layer, from the first on."""
    given = c.counts("attn_type_list", layers)
    return _where(lambda i: given[i] > 0 if given else i % 2 == 0, layers)


def lfm2_kinds(c: Config, layers: int) -> list[str]:
    """LFM2: full attention in the layers of `full_attn_idxs`, in all where it is missing; else convolutions."""
    full = c.counts("full_attn_idxs")
    return _where(lambda i: full is None or i in full, layers, "conv")


def lfm3_kinds(_c: Config, layers: int) -> list[str]:
    """LFM3: of four layers one has windows (the first has a convolution), one full attention, two convolutions."""
    of_four = ("sliding_attention", "conv", "full_attention", "conv")
    return ["conv", *(of_four[i % 4] for i in range(1, layers))]


def repeated_kinds(c: Config, layers: int) -> list[str]:
    """RecurrentGemma: `block_types`, over and over."""
    given = c.raw("block_types", ["recurrent", "recurrent", "attention"])
    c.ignore("layer_types")
    known = listed_kinds("recurrent", "full_attention", otherwise=every("recurrent"), key="block_types")
    few = known(c, max(len(given), 1) if isinstance(given, list) else 1)
    return [few[i % len(few)] for i in range(layers)]


def kimi_kinds(c: Config, layers: int) -> list[str]:
    """Kimi Linear: full attention in the layers that `linear_attn_config` counts from 1, else in every fourth."""
    given = c.table("linear_attn_config")
    full, linear = given.get("full_attn_layers"), given.get("kda_layers")
    if full is None or linear is None:
        return _where(lambda i: i > 0 and i % 4 == 0, layers)
    both = isinstance(full, list) and isinstance(linear, list) and all(isinstance(i, int) for i in (*full, *linear))
    if not both or sorted((*full, *linear)) != [*range(1, layers + 1)]:
        raise PlanError(
            f"full_attn_layers and kda_layers aren't the layers 1 to {layers}, each once",
            where=c.where("linear_attn_config"),
            fix="correct the file",
        )
    return _where(lambda i: i + 1 in full, layers)


def zamba_kinds(c: Config, layers: int) -> list[str]:
    """Zamba: the third layer is a hybrid, and after it layer `attn_layer_offset` of every `attn_layer_period`."""
    period, offset = c.count("attn_layer_period"), c.count("attn_layer_offset", low=0)
    later = ["hybrid" if i % period == offset else "linear_attention" for i in range(layers - 3)]
    return ["linear_attention", "linear_attention", "hybrid", *later][: max(layers, 3)]


ZAMBA2_LAYERS = 54
"""Layers of Zamba2-2.7B, the only number that Zamba 2's rule holds for."""


def zamba2_kinds(c: Config, layers: int) -> list[str]:
    """Zamba 2: nine hybrids among the 54 layers of the 2.7B model.

    Raises:
        PlanError: there are more or fewer layers; the list is then needed.
    """
    if layers != ZAMBA2_LAYERS:
        raise PlanError(
            f"missing, and the family's rule is for {ZAMBA2_LAYERS} layers, not {layers}",
            where=c.where("layer_types"),
            fix="list the kinds, linear_attention or hybrid",
        )
    hybrid = {6, 12, 18, 24, 30, 36, 42, 47, 51}
    return ["hybrid" if i in hybrid else "linear_attention" for i in range(layers)]


NEMOTRON = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
"""Letters of Nemotron-H's patterns."""


def nemotron_kinds(c: Config, layers: int | None) -> list[str]:
    """Nemotron-H: the list of kinds, else the pattern of letters; each layer is one block.

    Raises:
        PlanError: there are other letters, or more or fewer than layers.
    """
    pattern = c.text("hybrid_override_pattern", "ME*-")
    if (listed := c.raw("layer_types", None)) is not None:
        known = listed_kinds(*NEMOTRON.values(), otherwise=every("mlp"))
        return known(c, layers or (len(listed) if isinstance(listed, list) else 1))
    if wrong := set(pattern) - NEMOTRON.keys():
        raise PlanError(
            f"found {' '.join(sorted(wrong))} in it, allowed are {' '.join(NEMOTRON)}",
            where=c.where("hybrid_override_pattern"),
            fix="correct the file",
        )
    if len(pattern) != (layers or len(pattern)):
        raise PlanError(
            f"found {len(pattern)} letters, but num_hidden_layers says {layers}",
            where=c.where("hybrid_override_pattern"),
            fix="correct one of them",
        )
    return [NEMOTRON[letter] for letter in pattern]
