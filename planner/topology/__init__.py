"""How the blocks of a family are put together; a family that fits one of these is a row in `planner.families`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from planner.blocks import Block
from planner.engines import Engine
from planner.fields import Config
from planner.model import Input, Kind, Stack

Says = bool | str
"""A fixed answer, or the key that gives it."""


def says(c: Config, answer: Says) -> bool:
    """Return a fixed answer, or what the config says under that key."""
    return c.flag(answer, False) if isinstance(answer, str) else answer


class Request(NamedTuple):
    """What is asked for beyond the config.

    Attributes:
        engine: whose rules.
        mtp: count multi-token-prediction layers.
        head: the class has its language-model head; else it is the bare model (BertModel, LlamaModel).
        architecture: the class.
        met: quirks of the engine that the description followed, for the notes.
    """

    engine: Engine
    mtp: bool
    head: bool
    architecture: str
    met: dict[str, None]

    def does(self, quirk: str) -> bool:
        """Return whether the engine has a quirk; ask last, where it makes a difference, since the plan notes it."""
        has = quirk in self.engine.quirks
        if has:
            self.met[quirk] = None
        return has


class Anatomy(NamedTuple):
    """What a topology returns: the stacks, and the limits on positions; the rest of a Model is common to all."""

    kind: Kind
    stacks: tuple[Stack, ...]
    positions: int | None = None
    learned_positions: bool = False
    source_positions: int | None = None
    source_fixed: bool = False
    notes: tuple[str, ...] = ()
    inputs: tuple[Input, ...] = ()
    source_learned: bool | None = None


Maker = Callable[[Config, Request, int], list[Block | None]]
"""Config, request, number of layers: the block of every layer, None where a layer has none."""
