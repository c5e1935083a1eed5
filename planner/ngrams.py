"""Blocks of Qwen 4: an indexer that scores whole blocks of tokens, and tables of hashed n-grams that some layers read."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from planner.blocks import Cache, Core, Leaf, linear, vector
from planner.compressed import CompressedAttend
from planner.count import Number, triangle
from planner.masks import Mask
from planner.recurrent import Convolve


@dataclass(frozen=True, slots=True)
class WholeBlocks(Mask):
    """Keys of the best whole blocks of `grain` tokens, `chosen` - `grain` keys, and of the block that isn't whole yet.

    A query that n tokens see has one key less than `Mask` gives the next one.
    """

    def _causal(self, n: Number) -> Number:
        """Pairs of the first n queries."""
        return Mask._causal(self, n + 1) - 1 - n  # noqa: SLF001

    def _causal_summed(self, n: Number) -> Number:
        """Pairs of n passes, over 1, 2, ... n tokens."""
        return Mask._causal_summed(self, n + 1) - 1 - n - triangle(n)  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class BlockIndexer:
    """Small heads that score the mean key of every whole block of tokens.

    Attributes:
        width: D. heads, head: H and K of the indexer. block: tokens of a block.
    """

    width: int
    heads: int
    head: int
    block: int

    def leaves(self) -> tuple[Leaf, ...]:
        """Return queries and one key in one projection [D, (H + 1) K], and their norms."""
        return (
            linear("index_qk_proj", self.width, (self.heads + 1) * self.head, "attention"),
            vector("q_layernorm", self.head, "norm"),
            vector("k_layernorm", self.head, "norm"),
        )

    def caches(self) -> tuple[Cache, ...]:
        """Return one key a token."""
        return (Cache("self", self.head, chooses=True),)

    def cores(self) -> tuple[Core, ...]:
        """Return the scores of all whole blocks."""
        return (CompressedAttend(self.heads, self.head, 0, None, self.block, None, self.caches()),)


@dataclass(frozen=True, slots=True)
class Ngrams:
    """Rows of hashed n-grams, which each residual stream weighs, and a convolution with gaps of what it takes.

    Attributes:
        width: D. streams: n. embedding: E of all heads together. orders: n-grams of 2 to N tokens. heads: tables of each order.
        rows: of all tables together. taps: of the convolution, every N-th token.
        name: as in checkpoints.
    """

    width: int
    streams: int
    embedding: int
    orders: int
    heads: int
    rows: int
    taps: int
    name: str = "ple"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the table, keys of all streams and one value, norms, and the taps of every channel."""
        tables, wide, e = (self.orders - 1) * self.heads, self.streams * self.width, self.embedding
        at = "ple_embedding"
        return (
            Leaf(f"{at}.ngram_embedding", self.rows, e // tables, "embedding"),
            vector(f"{at}.layer_multipliers", self.orders, "embedding", buffer=True),
            vector(f"{at}.ngram_heads_vocab_sizes", tables, "embedding", buffer=True),
            vector(f"{at}.ngram_heads_offsets", tables, "embedding", buffer=True),
            linear("key_proj", e, wide, "other"), linear("value_proj", e, self.width, "other"),
            *(vector(name, wide, "norm") for name in ("norm_key", "norm_query", "norm_conv")),
            Leaf("conv1d", self.taps, wide, "conv"),
        )  # fmt: skip

    def caches(self) -> tuple[Cache, ...]:
        """Return the rows that the convolution reads again, and the last tokens."""
        kept = (self.taps - 1) * self.orders * self.streams * self.width
        return tuple(Cache("state", fixed=count) for count in (kept, self.orders - 1))

    def cores(self) -> tuple[Core, ...]:
        """Return the convolution."""
        return (Convolve(self.streams * self.width, self.taps),)


def table_rows(base: int, first: int, tables: int, multiple: int) -> int:
    """Return the rows of tables of prime sizes, after `first` smaller ones, the first prime being `base` or more; filled up to a multiple."""
    found: list[int] = []
    size = base - 1
    while len(found) < first + tables:
        size += 1
        if _prime(size):
            found.append(size)
    return -(-sum(found[first:]) // multiple) * multiple


def _prime(n: int) -> bool:
    return n == 2 or (n > 2 and n % 2 == 1 and all(n % d for d in range(3, isqrt(n) + 1, 2)))
