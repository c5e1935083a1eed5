"""Blocks that remember less than every token's keys and values, or choose among them.

Letters: D model width, H heads, K head width, k keys that a query scores, m tokens to a compressed row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.blocks import Attend, Cache, Core, Leaf, Work, key_value_heads, linear, split, vector
from planner.count import Number, least, tetrahedron, triangle
from planner.engines import Engine
from planner.masks import Mask
from planner.workload import Pass


@dataclass(frozen=True, slots=True)
class Indexer:
    """Small heads that score all earlier keys, so that the attention beside it scores the best only.

    DeepSeek-V3.2 (arXiv:2512.02556) weighs the heads' scores and adds them up; MiniMax-M3 takes blocks by their largest.

    Attributes:
        width: D. queries: width of the rows that its queries are projected from. heads, head: H and K of the indexer.
        weighted: the heads' scores are weighed by a projection, and added.
    """

    width: int
    queries: int
    heads: int
    head: int
    weighted: bool = True

    def leaves(self) -> tuple[Leaf, ...]:
        """Return [queries, H K], one key [D, K] for all heads, the key's norm, and the weights [D, H]."""
        if not self.weighted:
            return (
                linear("q_proj", self.queries, self.heads * self.head, "attention"),
                linear("k_proj", self.width, self.head, "attention"),
                vector("q_norm", self.head, "norm"),
                vector("k_norm", self.head, "norm"),
            )
        return (
            linear("wq_b", self.queries, self.heads * self.head, "attention"),
            linear("wk", self.width, self.head, "attention"),
            vector("k_norm", self.head, "norm", bias=True),
            linear("weights_proj", self.width, self.heads, "attention"),
        )

    def caches(self) -> tuple[Cache, ...]:
        """Return one key a token."""
        return (Cache("self", self.head, chooses=self.weighted),)

    def cores(self) -> tuple[Core, ...]:
        """Return the scores of all earlier keys, and their weighted sum over heads."""
        (keys,) = self.caches()
        return (Attend(self.heads, self.head, int(self.weighted), Mask(), False, keys),)


@dataclass(frozen=True, slots=True)
class CompressedAttend:
    """softmax(q k^T) v over the last tokens and a compressed past, one row for m tokens, of which k at most are scored.

    Attributes:
        heads: H query heads. qk, v: widths of a key and of a value (0: only scores are taken).
        near: mask of the tokens that are seen as they are; None: the past only.
        stride: m. chosen: k, None: all rows. caches: near and far.
    """

    heads: int
    qk: int
    v: int
    near: Mask | None
    stride: int
    chosen: int | None
    caches: tuple[Cache, ...]
    work: ClassVar[Work] = "attention"

    @property
    def mask(self) -> Mask:
        """All earlier tokens are seen, though not one by one."""
        return Mask()

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes: its queries and its mixed values."""
        return self.heads * (self.qk + self.v)

    def pairs(self, p: Pass) -> Number:
        """Return the pairs of a query with a token nearby or with a compressed row, of one head of one sequence."""
        near = self.near.pairs(p) if self.near else 0
        far = self._summed if p.recompute else self._far
        return near + far(p.past + p.new) - far(p.past)

    def dense_pairs(self, p: Pass, engine: Engine) -> Number:
        """Return the full rectangle: new tokens times the rows that the engine keeps, the new ones and the compressed."""
        rows = (p.past + p.new) // self.stride
        if self.near:
            rows = rows + p.new + self.caches[0].kept(p.past, engine)
        return p.new * rows

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:
        """Return 2 FLOPs per multiply-add of both products, over all heads and sequences."""
        pairs = self.dense_pairs(p, engine) if dense else self.pairs(p)
        return 2 * p.batch * self.heads * (self.qk + self.v) * pairs

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:
        """Return the factors of `flops` in words."""
        pairs, widths = self.dense_pairs(p, engine) if dense else self.pairs(p), self.qk + self.v
        return f"2 x {p.batch:,} sequences x {self.heads:,} heads x {widths:,} (key + value width) x {pairs:,} pairs"

    def _ramp(self, n: Number) -> Number:
        """The first of n queries, which see fewer than k rows: the one at token i sees i // m."""
        return n if self.chosen is None else least(n, self.chosen * self.stride - 1)

    def _far(self, n: Number) -> Number:
        """Pairs of the first n queries with rows: the sum of min(i // m, k)."""
        ramp = self._ramp(n)
        full, rest = ramp // self.stride, ramp % self.stride
        return self.stride * triangle(full - 1) + full * (rest + 1) + (self.chosen or 0) * (n - ramp)

    def _summed(self, n: Number) -> Number:
        """Pairs of n passes, over 1, 2, ... n tokens."""
        m, ramp = self.stride, self._ramp(n)
        full, rest, flat = ramp // m, ramp % m, n - ramp
        whole = m * m * tetrahedron(full - 2) + triangle(m) * triangle(full - 1)
        part = (rest + 1) * m * triangle(full - 1) + full * triangle(rest + 1)
        return whole + part + flat * self._far(ramp) + (self.chosen or 0) * triangle(flat)


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """DeepSeek-V4's attention: a window over one key for all heads, which is the value too, and a compressed past.

    Attributes:
        width: D. heads: H. head: K. q_rank: width of the queries' latent. groups, o_rank: the output is projected in groups
            to o_rank each, then to D.
        window: W of the last tokens.
        stride: m tokens to a compressed row; 0: no compressed past.
        chosen: k, rows that an indexer chooses; None: all are scored. Rows then overlap: each draws on 2 m tokens.
        index_heads, index_head: of the indexer.
        twice: keys are stored a second time as values.
        name: as in checkpoints.
    """

    width: int
    heads: int
    head: int
    q_rank: int
    groups: int
    o_rank: int
    window: int
    stride: int = 0
    chosen: int | None = None
    index_heads: int = 0
    index_head: int = 0
    twice: bool = False
    name: str = "self_attn"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the projections, the sinks, the compressor and its indexer."""
        q = self.heads * self.head
        by_head = split("out", "heads", self.heads)
        each, back = split("copies", "output groups", self.groups), split("in", "output groups", self.groups)
        leaves = [
            linear("q_a_proj", self.width, self.q_rank, "attention"),
            vector("q_a_norm", self.q_rank, "norm"),
            linear("q_b_proj", self.q_rank, q, "attention", split=by_head),
            linear("kv_proj", self.width, self.head, "attention"),
            vector("kv_norm", self.head, "norm"),
            linear("o_a_proj", q // self.groups, self.o_rank, "attention", copies=self.groups, split=each),
            linear("o_b_proj", self.groups * self.o_rank, self.width, "attention", split=back),
            vector("sinks", self.heads, "attention", own_dtype="float32", split=by_head),
        ]
        if self.stride:
            leaves += self._compressor("compressor", self.head)
        if self.chosen:
            leaves += self._compressor("compressor.indexer", self.index_head)
            leaves += [
                linear("compressor.indexer.q_b_proj", self.q_rank, self.index_heads * self.index_head, "attention"),
                linear("compressor.indexer.scorer.weights_proj", self.width, self.index_heads, "attention"),
            ]
        return tuple(leaves)

    def _compressor(self, name: str, head: int) -> list[Leaf]:
        """Return what m tokens are weighed and added with: rows, gates and biases by position, twice where rows overlap."""
        wide = head * (2 if self.chosen else 1)
        return [
            linear(f"{name}.kv_proj", self.width, wide, "attention"),
            linear(f"{name}.gate_proj", self.width, wide, "attention"),
            Leaf(f"{name}.position_bias", self.stride, wide, "attention", own_dtype="float32"),
            vector(f"{name}.kv_norm", head, "norm"),
        ]

    def caches(self) -> tuple[Cache, ...]:
        """Return the window; the compressed rows, with rows and gates of tokens not yet compressed or needed again."""
        near = Cache("self", self.head * (1 + self.twice), self.window)
        return (near, *(self._far(head) for head in (self.head, self.index_head) if self.stride and head))

    def _far(self, head: int) -> Cache:
        wide = 2 if self.chosen else 1
        overlap = 2 * self.stride * head if self.chosen else 0
        return Cache("self", head, fixed=overlap, stride=self.stride, tail=2 * wide * head)

    def cores(self) -> tuple[Core, ...]:
        """Return attention over window and past, and the indexer's scores of the past."""
        near, *far = self.caches()
        mask = Mask(window=self.window)
        if not self.stride:
            return (Attend(self.heads, self.head, self.head, mask, False, near),)
        main = CompressedAttend(self.heads, self.head, self.head, mask, self.stride, self.chosen, (near, far[0]))
        if not self.chosen:
            return (main,)
        return (main, CompressedAttend(self.index_heads, self.index_head, 0, None, self.stride, None, (far[1],)))


@dataclass(frozen=True, slots=True)
class StreamMix:
    """n residual streams of each row are mixed among themselves: [n, n] times [n, D]."""

    streams: int
    width: int
    work: ClassVar[Work] = "linear"

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes."""
        return 2 * self.streams * self.width

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add, over all rows."""
        return 2 * self.streams**2 * self.width * p.rows("new")

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return f"2 x {self.streams}^2 streams x {self.width:,} wide x {p.rows('new'):,} rows"


@dataclass(frozen=True, slots=True)
class HyperConnections:
    """n residual streams instead of one (arXiv:2409.19606): around each block they are drawn together, and mixed again.

    Attributes:
        width: D. streams: n. sites: names of the connections of a layer.
        mixed: the streams are mixed among themselves by [n, n] weights (DeepSeek-V4), or only added to (HY 4).
        head: the last one, that draws the streams together before the head.
    """

    width: int
    streams: int
    sites: tuple[str, ...] = ("attn_hc", "ffn_hc")
    mixed: bool = True
    head: bool = False

    def leaves(self) -> tuple[Leaf, ...]:
        """Return, for each site, [n D, outputs], and scales and biases of its outputs."""
        n = self.streams
        outputs, scales = (n, 1) if self.head else (n * (n + 2), 3) if self.mixed else (2 * n, 2)
        return tuple(
            leaf
            for site in self.sites
            for leaf in (
                linear(f"{site}.fn", n * self.width, outputs, "other", own_dtype="float32"),
                vector(f"{site}.base", outputs, "other", own_dtype="float32"),
                vector(f"{site}.scale", scales, "other", own_dtype="float32"),
            )
        )

    def caches(self) -> tuple[Cache, ...]:
        """Return nothing."""
        return ()

    def cores(self) -> tuple[Core, ...]:
        """Return the mixing at each site."""
        return (StreamMix(self.streams, self.width),) * (len(self.sites) * (self.mixed and not self.head))


@dataclass(frozen=True, slots=True)
class ExpertAttention:
    """JetMoE's mixture of attention heads (arXiv:2404.07413): each row's k experts bring queries and outputs of their own.

    Attributes:
        width: D. kv_heads: N. head: K. experts: E, each with N query heads. top_k: k.
        name: as in checkpoints.
    """

    width: int
    kv_heads: int
    head: int
    experts: int
    top_k: int
    name: str = "self_attn"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return E matrices [D, N K] and [N K, D], their router, a vector, and common keys and values [D, 2 N K]."""
        inner, e, k = self.kv_heads * self.head, self.experts, self.top_k
        by_head, back = split("out", "heads", self.kv_heads), split("in", "heads", self.kv_heads)
        return (
            Leaf(
                "experts.input_linear",
                self.width,
                inner,
                "routed_experts",
                "experts",
                copies=e,
                active=k,
                split=by_head,
            ),
            Leaf(
                "experts.output_linear", inner, self.width, "routed_experts", "experts", copies=e, active=k, split=back
            ),
            linear("experts.router.layer", self.width, self.experts, "router", work="router"),
            vector("experts.bias", self.width, "attention"),
            linear("kv_proj", self.width, 2 * inner, "attention", split=by_head),
        )

    def caches(self) -> tuple[Cache, ...]:
        """Return keys and values, 2 N K elements a token."""
        return (Cache("self", 2 * self.kv_heads * self.head, split=key_value_heads(self.kv_heads)),)

    def cores(self) -> tuple[Core, ...]:
        """Return attention of k N query heads."""
        (keys,) = self.caches()
        return (Attend(self.top_k * self.kv_heads, self.head, self.head, Mask(), False, keys),)
