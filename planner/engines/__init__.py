"""Whose rules: what differs between the published model and the programs that run it, as data."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import PlanError


@dataclass(frozen=True, slots=True)
class Engine:
    """The rules of one program.

    Attributes:
        name: as in `--engine`.
        window_margin: rows fewer than the window that a sliding layer keeps between passes.
        absorbs_latents: a decode step scores MLA's latents directly; else it expands the whole context again.
        ties_t5_heads: T5's heads share the input table whatever the config says.
        repeats_falcon_groups: Falcon's grouped keys and values are cached once per query head.
        keeps_masked_rows: GPT-Neo's windows are only in the mask, the cache keeps all rows.
        rescores_differences: differential attention computes its scores once for each set of values.
        stores_identity_experts: LongCat's experts without weights have two matrices of three nevertheless.
        doubles_shared_values: DeepSeek-V4's layers without a compressed past store their key once more as value.
        runs_all_llama4_experts: every token runs through every expert of Llama 4, whatever its router says.
        pads_convolutions: short convolutions compute positions at their edges that they throw away.
        unties_all_tables: where BART's head isn't tied, neither are the tables of its stacks.
        pads_heads: Moonshine's queries, keys and values are padded to the multiple that its config names.
        ignores_flat_text: Step-3.7's text keys are ignored where they stand outside of `text_config`.
        note: what the user should know of it.
    """

    name: str
    window_margin: int = 0
    absorbs_latents: bool = True
    ties_t5_heads: bool = False
    repeats_falcon_groups: bool = False
    keeps_masked_rows: bool = False
    rescores_differences: bool = False
    runs_all_llama4_experts: bool = False
    doubles_shared_values: bool = False
    stores_identity_experts: bool = False
    pads_convolutions: bool = False
    pads_heads: bool = False
    unties_all_tables: bool = False
    ignores_flat_text: bool = False
    note: str = ""


IDEAL = Engine("ideal")
"""The published checkpoint, with caches no larger than the mask needs."""

TRANSFORMERS = Engine(
    "transformers", window_margin=1, pads_convolutions=True, absorbs_latents=False, ties_t5_heads=True, repeats_falcon_groups=True,
    runs_all_llama4_experts=True, doubles_shared_values=True, stores_identity_experts=True, pads_heads=True, unties_all_tables=True, ignores_flat_text=True,
    keeps_masked_rows=True, rescores_differences=True,
)
"""transformers 5.24: sliding layers keep W - 1 rows between passes, MLA re-expands its latents in every step."""

ENGINES = {engine.name: engine for engine in (IDEAL, TRANSFORMERS)}


def engine_by_name(name: str) -> Engine:
    """Return an engine.

    Raises:
        PlanError: it is not one whose rules are known.
    """
    if name not in ENGINES:
        raise PlanError(
            f"no rules for the engine {name!r}; known: {', '.join(ENGINES)}",
            where="--engine",
            fix="choose one of these",
        )
    return ENGINES[name]
