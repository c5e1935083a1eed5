"""Reformer (arXiv:2001.04451): reversible layers whose attention sees chunks of neighbours, or of what is hashed alike."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from planner.blocks import (
    Block,
    Cache,
    Core,
    FeedForward,
    Head,
    Leaf,
    Norm,
    Table,
    Weights,
    Work,
    linear,
    split,
    vector,
)
from planner.count import Number, least, triangle
from planner.encoder_blocks import Beside
from planner.engines import Engine
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.model import Layer, Run, Stack, Sublayer, runs
from planner.topology import Anatomy, Request
from planner.workload import Pass

GENERATES = "ReformerModelWithLMHead"
BUCKET = 4
"""Elements of 2 bytes that the number of a bucket takes."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Which keys are scored: those of a query's chunk and its neighbours, once for each hash.

    Attributes:
        size: C tokens of a chunk; up to C tokens all see all. before, after: chunks beside it. hashes: 0: chunks of
            neighbours in the text; else of tokens in the order of their buckets, so many times.
    """

    size: int
    before: int
    after: int
    hashes: int = 0

    @property
    def keys(self) -> int:
        """Keys of one query, over all hashes."""
        return max(self.hashes, 1) * (1 + self.before + self.after) * self.size

    def scored(self, n: Number) -> Number:
        """Return the pairs of a pass over n tokens."""
        short = n <= self.size
        return n * n * short + n * self.keys * (1 - short)

    def scored_summed(self, n: Number) -> Number:
        """Return the pairs of n passes, over 1, 2, ... n tokens."""
        short = least(n, self.size)
        return short * (short + 1) * (2 * short + 1) // 6 + self.keys * (triangle(n) - triangle(short))

    def read(self, n: Number) -> Number:
        """Return the keys of the first n steps, each on top of those before it."""
        if self.hashes:
            short = least(n, self.size)
            return triangle(short) + (n - short) * self.keys
        ramp = least(n, (1 + self.before) * self.size)
        rest = n - ramp
        kept = rest * self.before * self.size
        return (
            n + triangle(ramp - 1) + kept + rest // self.size * triangle(self.size - 1) + triangle(rest % self.size - 1)
        )

    def pairs(self, p: Pass) -> Number:
        """Return the query-key pairs of one head of one sequence."""
        many = {"prefill": self.scored, "decode": self.read, "recompute": self.scored_summed}[p.phase]
        return many(p.past + p.new) - many(p.past)


@dataclass(frozen=True, slots=True)
class ChunkedAttend:
    """Scores and mix of values of chunks, whole ones whether or not a mask hides some of their keys.

    Attributes:
        heads: H. head: K. chunks: which keys. mask: how far information reaches.
    """

    heads: int
    head: int
    chunks: Chunks
    mask: Mask
    work: Work = "attention"

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes: its queries and its mixed values."""
        return 2 * self.heads * self.head

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add of both products, over all heads and sequences."""
        return 4 * p.batch * self.heads * self.head * self.chunks.pairs(p)

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        pairs = self.chunks.pairs(p)
        return f"4 x {p.batch:,} sequences x {self.heads:,} heads x {self.head:,} wide x {pairs:,} pairs of chunks"


@dataclass(frozen=True, slots=True)
class Rotations:
    """Products of query-keys with random directions, that say which bucket each falls into.

    Attributes:
        inner: H K. hashes: rounds. steps: (n, r): where a pass has n tokens and more, r directions more are drawn.
    """

    inner: int
    hashes: int
    steps: tuple[tuple[int, int], ...]
    work: Work = "attention"

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings."""
        return self.inner

    def directed(self, p: Pass) -> Number:
        """Return the sum of directions over all tokens of one sequence."""
        n, total = p.past + p.new, 0 * p.new
        for edge, more in self.steps:
            if p.phase == "recompute":
                seen = triangle(least(n, n * 0 + edge - 1)), triangle(least(p.past, n * 0 + edge - 1))
                total = total + more * (triangle(n) - seen[0] - triangle(p.past) + seen[1])
            else:
                total = total + more * p.new * (n >= edge)
        return total

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add, over all sequences."""
        return 2 * p.batch * self.inner * self.hashes * self.directed(p)

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return (
            f"2 x {p.batch:,} sequences x {self.inner:,} elements x {self.hashes:,} hashes x {self.directed(p):,} "
            "tokens times directions"
        )


@dataclass(frozen=True, slots=True)
class Reprojections:
    """Keys and values that a step projects again from the rows that are kept in their stead.

    Attributes:
        matrix: elements of one projection. counted: projections of a step's own row that are leaves. chunks: its keys.
    """

    matrix: int
    counted: int
    chunks: Chunks
    work: Work = "linear"

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes: not known by row."""
        return 0

    def rows(self, p: Pass) -> Number:
        """Return the rows that visit such a matrix beside those of the leaves, of one sequence."""
        if p.phase != "decode":
            return 0 * p.new
        return 2 * self.chunks.pairs(p) + (1 - self.counted) * p.new

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add, over all sequences."""
        return 2 * p.batch * self.matrix * self.rows(p)

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return f"2 x {p.batch:,} sequences x {self.matrix:,} elements x {self.rows(p):,} rows projected again"


def reformer(c: Config, request: Request) -> Anatomy:
    """Return the one stack: an encoder, or with `is_decoder` a decoder that keeps rows instead of keys and values."""
    width, vocabulary, causal = c.count("hidden_size"), c.count("vocab_size"), c.flag("is_decoder", False)
    if request.head and causal != (request.architecture == GENERATES):
        raise PlanError(
            f"found {str(causal).lower()}, which {request.architecture} can't be built with",
            where=c.where("is_decoder"),
            fix=f"masked-LM classes need false, {GENERATES} needs true; name the class under architectures",
        )
    c.ignore(
        "num_hidden_layers", "tie_word_embeddings", "num_buckets", "num_hashes", *_CHUNKS["lsh"], *_CHUNKS["local"]
    )
    norm = Norm(width, "layer", bias=True, epsilon=c.number("layer_norm_eps", 1e-12))
    feed = Sublayer(
        FeedForward(width, c.count("feed_forward_size"), False, True, True, c.text("hidden_act", "relu"), name="feed_forward"),
        before=norm,
    )  # fmt: skip
    kinds = _kinds(c)
    made = {
        kind: Layer((Sublayer(_attention(c, kind, causal=causal), before=norm), feed)) for kind in dict.fromkeys(kinds)
    }
    positions, longest = _positions(c, width)
    front = (Table("embeddings.word_embeddings", vocabulary, width), positions)
    last = Norm(2 * width, "layer", bias=True, epsilon=norm.epsilon, name="encoder.layer_norm")
    head = (
        Head(2 * width, vocabulary, True, every_row=not causal, name="lm_head.decoder"),
        Weights((vector("lm_head.bias", vocabulary, "head"),)),
    )
    body: tuple[Run, ...] = runs([made[kind] for kind in kinds])
    back = (last, *(head if request.head else ()))
    name: Literal["decoder", "encoder"] = "decoder" if causal else "encoder"
    stack = Stack(name, front, body, back, scope="reformer.", list="encoder.layers")
    notes = ["the reference pads to whole chunks; rows of padding are not counted"]
    if causal and "lsh" in made:
        notes.append("numbers of buckets are kept beside the rows, 8 bytes each, counted as 4 elements of the cache")
    return Anatomy(name, (stack,), longest, learned_positions=True, notes=tuple(notes))


_CHUNKS = {
    kind: (f"{kind}_attn_chunk_length", f"{kind}_num_chunks_before", f"{kind}_num_chunks_after")
    for kind in ("local", "lsh")
}


def _kinds(c: Config) -> list[str]:
    """Return the kind of each layer, which says how many there are whatever `num_hidden_layers` says."""
    kinds = list(c.texts("attn_layers", ()))
    if not kinds or set(kinds) - {"local", "lsh"}:
        raise PlanError(
            f"found {kinds}, allowed are lists of local and lsh", where=c.where("attn_layers"), fix="correct the file"
        )
    return kinds


def _attention(c: Config, kind: str, *, causal: bool) -> Block:
    """Return the attention of a layer: "local", or "lsh" with one matrix for queries and keys."""
    width, heads, head = c.count("hidden_size"), c.count("num_attention_heads"), c.count("attention_head_size")
    inner, hashed = heads * head, kind == "lsh"
    size, before, after = _CHUNKS[kind]
    hashes = c.count("num_hashes", 1) if hashed else 0
    chunks = Chunks(c.count(size), c.count(before, low=0), c.count(after, low=0), hashes)
    if causal and chunks.after:
        raise PlanError(
            f"found {chunks.after}, but a decoder sees no later chunks", where=c.where(after), fix="set it to 0"
        )
    by_head, scope = split("out", "heads", heads), "attention.self_attention."
    names = ("query_key", "value") if hashed else ("query", "key", "value")
    leaves = (
        *(linear(scope + name, width, inner, "attention", split=by_head) for name in names),
        linear("attention.output.dense", inner, width, "attention", split=split("in", "heads", heads)),
    )
    cores: list[Core] = [ChunkedAttend(heads, head, chunks, Mask(causal=causal))]
    cores += [Rotations(inner, hashes, _directions(c, chunks.size))] if hashed else []
    cores += [Reprojections(width * inner, len(names), chunks)] if causal else []
    kept = (Cache("self", width + BUCKET * heads * hashes),) if causal else ()
    return Beside(Weights(leaves), more=tuple(cores), kept=kept)


def _directions(c: Config, size: int) -> tuple[tuple[int, int], ...]:
    """Return how many random directions hash a token: half the buckets, or half the sum of their factors.

    Where `num_buckets` is null, they are the power of two up to twice the number of chunks, in two factors where many.
    """
    given = c.raw("num_buckets", None)
    if given is not None:
        factors = c.counts("num_buckets", low=2) if isinstance(given, list) else [c.count("num_buckets", low=2)]
        if not factors or any(factor % 2 for factor in factors):
            raise PlanError(
                f"found {given}, even numbers are needed", where=c.where("num_buckets"), fix="correct the file"
            )
        return ((size + 1, sum(factors) // 2),)
    most = 2 * max(int((c.count("max_position_embeddings") // size) ** 0.5), size)
    steps, before = [], 0
    for power in range(1, 41):
        buckets = 2**power if 2**power <= most else 2 ** (power // 2) + 2 ** (power - power // 2)
        steps.append((max(size * 2 ** (power - 1), size + 1), buckets // 2 - before))
        before = buckets // 2
    return tuple(steps)


def _positions(c: Config, width: int) -> tuple[Block, int]:
    """Return the table of positions, or one for each axis that positions are factored into; and the longest sequence."""
    longest = c.count("max_position_embeddings")
    if not c.flag("axial_pos_embds", True):
        c.ignore("axial_pos_shape", "axial_pos_embds_dim")
        return Table("embeddings.position_embeddings.embedding", longest, width, index="position"), longest
    rows = c.counts("axial_pos_shape", low=1) or []
    widths = c.counts("axial_pos_embds_dim", low=1) or []
    if not widths or len(rows) != len(widths) or sum(widths) != width:
        raise PlanError(
            f"found {widths}; widths of {len(rows)} axes are needed that sum to hidden_size, {width}",
            where=c.where("axial_pos_embds_dim"),
            fix="correct the file",
        )
    name = "embeddings.position_embeddings.weights."
    axes = tuple(
        Leaf(f"{name}{index}", count, size, "embedding")
        for index, (count, size) in enumerate(zip(rows, widths, strict=True))
    )
    return Weights(axes), min(longest, prod(rows))
