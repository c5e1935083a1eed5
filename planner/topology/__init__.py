"""How the blocks of a family are put together; a family that fits one of these is a row in `planner.families`."""

from __future__ import annotations

from dataclasses import dataclass

from planner.engines import Engine
from planner.model import Kind, Stack


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for beyond the config.

    Attributes:
        engine: whose rules.
        mtp: count multi-token-prediction layers.
        head: the class has its language-model head; else it is the bare model (BertModel, LlamaModel).
    """

    engine: Engine
    mtp: bool = False
    head: bool = True


@dataclass(frozen=True, slots=True)
class Anatomy:
    """What a topology returns: the stacks, and the limits on positions; the rest of a Model is common to all."""

    kind: Kind
    stacks: tuple[Stack, ...]
    positions: int | None = None
    learned_positions: bool = False
    source_positions: int | None = None
    source_fixed: bool = False
    notes: tuple[str, ...] = ()
