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
        note: what the user should know of it.
    """

    name: str
    window_margin: int = 0
    absorbs_latents: bool = True
    ties_t5_heads: bool = False
    repeats_falcon_groups: bool = False
    note: str = ""


IDEAL = Engine("ideal")
"""The published checkpoint, with caches no larger than the mask needs."""

TRANSFORMERS = Engine(
    "transformers", window_margin=1, absorbs_latents=False, ties_t5_heads=True, repeats_falcon_groups=True
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
