"""Encoders that also see images: a tower whose rows are gathered in squares and brought to the text's width."""

from __future__ import annotations

from collections.abc import Sequence

from planner.blocks import Block, Weights, linear, vector
from planner.fields import Config
from planner.topology.multimodal import Projector, Sense
from planner.topology.towers import Tower


def gathered(*, norm: bool) -> tuple[Sense, ...]:
    """Return the one sense of an encoder that sees; `norm`: its rows are normed in the end."""
    return (Sense("vision", "vision_config", "model.vision_model", _squares(norm=norm), _square_tokens),)


def _squares(*, norm: bool) -> Projector:
    def blocks(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
        into = tower.width * c.count("pixel_shuffle_factor") ** 2
        leaves = [linear("connector.modality_projection", into, width, "other", feeds="merged")]
        return (Weights((*leaves, *((vector("connector.norm", width, "norm"),) if norm else ()))),)

    return blocks


def _square_tokens(c: Config, _inner: Config, tower: Tower) -> tuple[int, int] | None:
    """A token for each square of rows."""
    return (tower.rows, tower.rows // c.count("pixel_shuffle_factor") ** 2) if tower.rows else None
