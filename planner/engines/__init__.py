"""Whose rules: what differs between the published model and the programs that run it, as data."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import PlanError

QUIRKS = {
    "ties_t5_heads": "transformers ties the head to the input table; the published checkpoint has a separate one",
    "unties_all_tables": "where the head isn't tied, transformers keeps three tables instead of one",
    "repeats_falcon_groups": "transformers caches grouped keys and values once per query head; the model needs them once",
    "keeps_masked_rows": "transformers keeps all rows of layers with windows, which are in the mask only",
    "rescores_differences": "transformers computes the scores of differential attention once for each set of values",
    "runs_all_llama4_experts": "transformers runs every token through every expert, whatever its router says",
    "stores_identity_experts": "transformers stores two matrices of experts that the model doesn't have (identity experts)",
    "doubles_shared_values": "transformers stores the key of layers without a compressed past once more as value",
    "pads_convolutions": "transformers computes positions at the edges of short convolutions that it throws away",
    "pads_heads": "transformers pads queries, keys and values to the multiple that the config names",
    "ignores_flat_text": "transformers ignores the text model's keys outside of text_config",
}
"""What a program does otherwise than the published model needs, where it costs something; a plan notes those it met."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The rules of one program.

    Attributes:
        name: as in `--engine`.
        window_margin: rows fewer than the window that a sliding layer keeps between passes.
        absorbs_latents: a decode step scores MLA's latents directly; else it expands the whole context again.
        quirks: keys of `QUIRKS` that it has.
    """

    name: str
    window_margin: int = 0
    absorbs_latents: bool = True
    quirks: frozenset[str] = frozenset()


IDEAL = Engine("ideal")
"""The published checkpoint, with caches no larger than the mask needs."""

TRANSFORMERS = Engine("transformers", window_margin=1, absorbs_latents=False, quirks=frozenset(QUIRKS))
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
