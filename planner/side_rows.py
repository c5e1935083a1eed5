"""Attention over more rows than the tokens: tokens of the model's own, summaries of blocks, streams that look ahead.

Letters: n tokens so far, G tokens of the model's own, b tokens of a block, H heads, K head width, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from planner.blocks import Block, Cache, Core, Leaf, Work
from planner.count import Number, least, most, tetrahedron, triangle
from planner.engines import Engine
from planner.workload import Pass


@dataclass(frozen=True, slots=True)
class Extended:
    """A block that more rows visit than there are tokens, or that has further leaves and cores.

    Attributes:
        block: it.
        rate: rows for each token. further: rows of each sequence beyond these.
        stored: further leaves.
        computed: further cores.
        remembered: further caches.
    """

    block: Block
    rate: int = 1
    further: int = 0
    stored: tuple[Leaf, ...] = ()
    computed: tuple[Core, ...] = ()
    remembered: tuple[Cache, ...] = ()

    @property
    def name(self) -> str:
        """The block's name, as in checkpoints."""
        return str(getattr(self.block, "name", ""))

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the block's leaves with more rows, those fed by an encoder as they are; and the further ones."""
        more = (
            replace(leaf, rate=leaf.rate * self.rate, further=leaf.further + self.further)
            if leaf.work and leaf.feeds in {"new", "last"}
            else leaf
            for leaf in self.block.leaves()
        )
        return (*more, *self.stored)

    def caches(self) -> tuple[Cache, ...]:
        """Return the block's, and the further ones."""
        return (*self.block.caches(), *self.remembered)

    def cores(self) -> tuple[Core, ...]:
        """Return the block's, and the further ones."""
        return (*self.block.cores(), *self.computed)


@dataclass(frozen=True, slots=True)
class OwnTokens:
    """G tokens of the model's own see all tokens and each other, and all tokens see them (Pegasus-X, arXiv:2208.04347).

    Attributes:
        heads: H. head: K. tokens: G.
    """

    heads: int
    head: int
    tokens: int
    work: ClassVar[Work] = "attention"
    row_elements: ClassVar[int] = 0

    def pairs(self, p: Pass) -> Number:
        """Return 2 n G + G G query-key pairs of one head."""
        return (2 * p.new * self.tokens + self.tokens**2) * least(p.new, 1)

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add of both products."""
        return 4 * p.batch * self.heads * self.head * self.pairs(p)

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return (
            f"2 x {p.batch:,} sequences x {self.heads:,} heads x {2 * self.head:,} (key + value width) x "
            f"{self.pairs(p):,} pairs with the model's own {self.tokens:,} tokens"
        )


@dataclass(frozen=True, slots=True)
class Summaries:
    """Every token also sees the sums of all whole blocks of b tokens (LongT5, arXiv:2112.07916).

    Attributes:
        heads: H. head: K. width: D of a summary's row. block: b.
        part: the scores and the mix of values, or the keys and values of the summaries.
    """

    heads: int
    head: int
    width: int
    block: int
    part: Literal["scores", "projections"]

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return n (n / b) pairs, or n / b rows through [D, H K] twice."""
        rows = p.new // self.block
        inner = p.new if self.part == "scores" else self.width
        return 4 * p.batch * self.heads * self.head * inner * rows

    @property
    def work(self) -> Work:
        """The kind that its FLOPs are listed under."""
        return "attention" if self.part == "scores" else "linear"

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes: they are those of the tokens' own attention."""
        return 0

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        inner = f"{p.new:,} tokens" if self.part == "scores" else f"{self.width:,} elements"
        rows = p.new // self.block
        return f"4 x {p.batch:,} sequences x {self.heads:,} heads x {self.head:,} wide x {inner} x {rows:,} summaries"


@dataclass(frozen=True, slots=True)
class AheadStream:
    """The rows that predict the token s further on: each sees itself, and the tokens up to s before it (ProphetNet).

    The first token is seen from everywhere (arXiv:2001.04063; the reference's `ngram_attention_bias`).

    Attributes:
        heads: H. head: K. ahead: s, 0 for the next token.
    """

    heads: int
    head: int
    ahead: int
    work: ClassVar[Work] = "attention"

    def pairs(self, p: Pass) -> Number:
        """Return the query-key pairs of one head of one sequence."""
        total = p.past + p.new
        if p.recompute:
            return self._summed(total) - self._summed(p.past)
        return self._pairs(total) - self._pairs(p.past)

    def _pairs(self, n: Number) -> Number:
        """Pairs of the first n queries."""
        return n + least(n, self.ahead) + triangle(most(n - self.ahead, n * 0))

    def _summed(self, n: Number) -> Number:
        """Pairs of n passes, over 1, 2, ... n tokens."""
        early = least(n, self.ahead)
        return triangle(n) + triangle(early) + self.ahead * (n - early) + tetrahedron(most(n - self.ahead, n * 0))

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add of both products."""
        pairs = p.new * (p.past + 2 * p.new) if dense else self.pairs(p)
        return 4 * p.batch * self.heads * self.head * pairs

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes: its query and its mixed values."""
        return 2 * self.heads * self.head

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        pairs = p.new * (p.past + 2 * p.new) if dense else self.pairs(p)
        return (
            f"2 x {p.batch:,} sequences x {self.heads:,} heads x {2 * self.head:,} (key + value width) x {pairs:,} "
            f"pairs of the stream {self.ahead + 1} ahead"
        )


@dataclass(frozen=True, slots=True)
class RelativeScores:
    """Every query is also scored against a key for each distance, n - 1 behind to n - 1 ahead (Transformer-XL).

    Attributes:
        heads: H. head: K.
        looked_up: only the distances to the tokens that there are are scored, n of them (SpeechT5).
    """

    heads: int
    head: int
    looked_up: bool = False
    work: ClassVar[Work] = "attention"

    def distances(self, p: Pass) -> Number:
        """Return the keys that each query is scored against."""
        return p.new if self.looked_up else 2 * p.new - 1

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return n (2 n - 1) products of width K."""
        return 2 * p.batch * self.heads * self.head * p.new * self.distances(p)

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes: its query."""
        return self.heads * self.head

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return (
            f"2 x {p.batch:,} sequences x {self.heads:,} heads x {self.head:,} (key width) x {p.new:,} queries x "
            f"{self.distances(p):,} distances"
        )


@dataclass(frozen=True, slots=True)
class MemoryKeys:
    """Keys and values of the encoder's rows through the matrices of the self-attention (T5Gemma 2's merged attention).

    Attributes:
        width: D. out: N K of the keys, and as many of the values.
    """

    width: int
    out: int
    work: ClassVar[Work] = "linear"
    row_elements: ClassVar[int] = 0

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return [D, N K] twice for every row of the encoder, where no cache holds them yet."""
        return 4 * self.width * self.out * p.rows("memory")

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return f"4 x {self.width:,} x {self.out:,} (keys and values) x {p.rows('memory'):,} rows of the encoder"
