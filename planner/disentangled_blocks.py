"""Attention that scores relative positions apart from contents (DeBERTa, arXiv:2006.03654).

Letters as in `planner.blocks`; n tokens of a sequence, R rows of a table of relative positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.blocks import Attention, Core, Leaf, Work
from planner.count import Number, least
from planner.engines import Engine
from planner.workload import Pass


@dataclass(frozen=True, slots=True)
class PositionScores:
    """Products of each query, each key or both with projected relative positions (DeBERTa, arXiv:2006.03654).

    Attributes:
        heads: H. head: K. span: half of R, positions to one side. sides: 2 where keys are scored too.
        grows: a sequence of n < span tokens uses 2 n rows of the table only.
    """

    heads: int
    head: int
    span: int
    sides: int
    grows: bool
    work: ClassVar[Work] = "attention"

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes: queries and keys."""
        return self.sides * self.heads * self.head

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add of [n, K] x [K, R], over all heads and sequences."""
        return 2 * p.batch * self.sides * self.heads * self.head * p.new * _rows(self, p)

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return (
            f"2 x {p.batch:,} sequences x {self.sides} (queries, keys) x {self.heads:,} heads x {self.head:,} wide x "
            f"{p.new:,} tokens x {_rows(self, p):,} relative positions"
        )


@dataclass(frozen=True, slots=True)
class PositionProjections:
    """A layer's projections of the table of relative positions, once a pass, whatever the batch (DeBERTa).

    Attributes:
        width: D. out: H K. span, grows: as in `PositionScores`. count: projections.
    """

    width: int
    out: int
    span: int
    count: int
    grows: bool
    work: ClassVar[Work] = "linear"
    row_elements: ClassVar[int] = 0

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add of [R, D] x [D, H K], `count` times."""
        return 2 * self.count * self.width * self.out * _rows(self, p)

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return f"2 x {self.count} projections x {self.width:,} x {self.out:,} x {_rows(self, p):,} relative positions"


def _rows(core: PositionScores | PositionProjections, p: Pass) -> Number:
    """Return the rows of the table that a pass uses."""
    return 2 * (least(p.new, core.span) if core.grows else core.span)


@dataclass(frozen=True, slots=True)
class DisentangledAttention:
    """Attention whose scores add products of contents with relative positions (DeBERTa, arXiv:2006.03654).

    Attributes:
        plain: the projections and the scores of contents.
        span: half of the table of relative positions; 0: it has none.
        to_positions, from_positions: queries meet positions; keys meet positions.
        shared: positions are projected by the contents' matrices (both, whichever is used), not by their own.
        key_bias: the positions' own keys add a vector.
        grows: as in `PositionScores`.
        name: as in checkpoints.
    """

    plain: Attention
    span: int
    to_positions: bool
    from_positions: bool
    shared: bool
    key_bias: bool
    grows: bool
    name: str = "attention.self"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the four projections, and the positions' own; their work is a core's, for it is done once a pass."""
        width, out = self.plain.width, self.plain.heads * self.plain.head
        own = []
        if self.span and not self.shared:
            if self.to_positions:
                own.append(Leaf("pos_key_proj", width, out, "attention", bias=self.key_bias))
            if self.from_positions:
                own.append(Leaf("pos_query_proj", width, out, "attention", bias=True))
        return (*self.plain.leaves(), *own)

    def caches(self) -> tuple[()]:
        """Return nothing."""
        return ()

    def cores(self) -> tuple[Core, ...]:
        """Return the scores and the mix of values, the scores of positions and what projects them."""
        sides = self.to_positions + self.from_positions
        if not self.span or not (sides or self.shared):
            return self.plain.cores()
        plain, count = self.plain, 2 if self.shared else sides
        projections = PositionProjections(plain.width, plain.heads * plain.head, self.span, count, self.grows)
        scores = PositionScores(plain.heads, plain.head, self.span, sides, self.grows)
        return (*plain.cores(), projections, *((scores,) if sides else ()))
