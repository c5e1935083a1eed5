"""Blocks that only few encoders have: convolutions beside heads, landmarks, pooled rows, latents.

Letters as in `planner.blocks`; n tokens of a sequence, M landmarks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.blocks import Attend, Attention, Block, Cache, Core, Leaf, Part, Stored, Work, linear, vector
from planner.count import Number, least
from planner.engines import Engine
from planner.masks import Mask
from planner.workload import Pass


def grouped(name: str, n_in: int, n_out: int, groups: int, part: Part, *, bias: bool = False) -> Leaf:
    """Return a matrix whose groups of outputs see their own group of inputs: [n_in / groups, n_out / groups] each."""
    return linear(name, n_in // groups, n_out // groups, part, bias=bias, copies=groups)


@dataclass(frozen=True, slots=True)
class LandmarkAttend:
    """Attention through M landmarks, means of queries and keys (Nystromformer, arXiv:2102.03902).

    Attributes:
        heads: H. head: K. landmarks: M. iterations: of the inverse of the landmarks' scores, 4 products each.
    """

    heads: int
    head: int
    landmarks: int
    iterations: int = 6
    work: ClassVar[Work] = "attention"

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes."""
        return 3 * self.heads * self.head

    def pairs(self, p: Pass) -> Number:
        """Return the multiply-adds of one head of one sequence."""
        n, m, k = p.new, self.landmarks, self.head
        return 2 * n * m * k + m * m * k + n * m * m + 2 * n * m * k + 4 * self.iterations * m**3

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add over all heads and sequences."""
        return 2 * p.batch * self.heads * self.pairs(p)

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return f"2 x {p.batch:,} sequences x {self.heads:,} heads x {self.pairs(p):,} ({self.landmarks:,} landmarks)"


@dataclass(frozen=True, slots=True)
class Beside:
    """A block with more leaves, with other weightless work, or both.

    Attributes:
        block: as it is elsewhere. parts: stored beside it.
        instead: what it computes without weights; (): the block's own. more: computed too. kept: remembered too.
    """

    block: Block
    parts: tuple[Leaf, ...] = ()
    instead: tuple[Core, ...] = ()
    more: tuple[Core, ...] = ()
    kept: tuple[Cache, ...] = ()

    @property
    def name(self) -> str:
        """The block's, as in checkpoints; a bag of leaves has none."""
        return str(self.block.name)  # type: ignore[attr-defined]

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the block's leaves and the parts."""
        return (*self.block.leaves(), *self.parts)

    def caches(self) -> tuple[Cache, ...]:
        """Return what is remembered."""
        return (*self.block.caches(), *self.kept)

    def cores(self) -> tuple[Core, ...]:
        """Return what is computed without weights."""
        return (*(self.instead or self.block.cores()), *self.more)


@dataclass(frozen=True, slots=True)
class Convolve:
    """`kernel` multiply-adds for each of `width` elements of a token."""

    width: int
    kernel: int
    work: Work = "conv"

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes."""
        return 2 * self.width

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add over all tokens."""
        return 2 * self.width * self.kernel * p.rows("new")

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return f"2 x {self.width:,} elements x {self.kernel:,} tokens of kernel x {p.rows('new'):,} rows"


@dataclass(frozen=True, slots=True)
class SpanConvolvedAttention:
    """Half of the heads replaced by convolutions whose kernels the tokens make (ConvBERT, arXiv:2008.02496).

    Attributes:
        width: D. heads: H, of those left. head: K. kernel: tokens.
        name: as in checkpoints.
    """

    width: int
    heads: int
    head: int
    kernel: int
    mask: Mask = Mask(causal=False)
    name: str = "attention.self"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the projections, the depthwise and pointwise convolution of keys, and the makers of kernels."""
        inner = self.heads * self.head
        return (
            *(linear(f"{kind}_proj", self.width, inner, "attention", bias=True) for kind in "qkv"),
            Leaf("key_conv_attn_layer.depthwise", self.kernel, 1, "attention", "conv", copies=self.width),
            linear("key_conv_attn_layer.pointwise", self.width, inner, "attention", work="conv"),
            vector("key_conv_attn_layer.bias", inner, "attention"),
            linear("conv_kernel_layer", inner, self.heads * self.kernel, "attention", bias=True),
            linear("conv_out_layer", self.width, inner, "attention", bias=True),
            linear("o_proj", 2 * inner, self.width, "attention", bias=True),
        )

    def caches(self) -> tuple[()]:
        """Return nothing."""
        return ()

    def cores(self) -> tuple[Core, ...]:
        """Return the heads' attention and the convolution."""
        return (
            Attend(self.heads, self.head, self.head, self.mask),
            Convolve(self.heads * self.head, self.kernel, "attention"),
        )


@dataclass(frozen=True, slots=True)
class Fourier(Stored):
    """Discrete Fourier transforms over tokens and elements, which multiply by nothing stored (FNet)."""

    def leaves(self) -> tuple[Leaf, ...]:
        """Return nothing."""
        return ()


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    """Attention whose projections see groups of elements (SqueezeBERT, arXiv:2006.11316).

    Attributes:
        plain: the shape. groups: of queries, keys, values and output.
    """

    plain: Attention
    groups: tuple[int, int, int, int]
    name: str = "attention"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the four projections."""
        width, names = self.plain.width, ("query", "key", "value", "post_attention")
        return tuple(
            grouped(name, width, width, groups, "attention", bias=True)
            for name, groups in zip(names, self.groups, strict=True)
        )

    def caches(self) -> tuple[()]:
        """Return nothing."""
        return ()

    def cores(self) -> tuple[Core, ...]:
        """Return the scores and the mix of values."""
        return self.plain.cores()


@dataclass(frozen=True, slots=True)
class GroupedFeedForward(Stored):
    """Two matrices that see groups of elements (SqueezeBERT, ConvBERT).

    Attributes:
        width: D. hidden: F. groups: of the first and the second matrix.
    """

    width: int
    hidden: int
    groups: tuple[int, int]
    activation: str = "gelu"
    name: str = "mlp"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return both."""
        return (
            grouped("intermediate", self.width, self.hidden, self.groups[0], "mlp", bias=True),
            grouped("output", self.hidden, self.width, self.groups[1], "mlp", bias=True),
        )


@dataclass(frozen=True, slots=True)
class BottleneckAttention:
    """Attention inside a bottleneck of B elements, each with its own norm (MobileBERT, arXiv:2004.02984).

    Attributes:
        width: D. inner: B. heads: H.
        bottleneck: rows are brought to B elements first. shared: queries and keys by a matrix of their own.
        values_inside: values are projections of the narrow row, too.
        bias: its norms add a vector.
    """

    width: int
    inner: int
    heads: int
    bottleneck: bool
    shared: bool
    values_inside: bool
    mask: Mask = Mask(causal=False)
    name: str = "attention"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the ways in, the projections and their norm."""
        narrow, leaves = self.inner, []
        for name in ("bottleneck.input", *(("bottleneck.attention",) if self.shared else ())) * self.bottleneck:
            leaves += [
                linear(f"{name}.dense", self.width, narrow, "other", bias=True),
                vector(f"{name}.LayerNorm", narrow, "norm", bias=True),
            ]
        values = narrow if self.values_inside else self.width
        return (
            *leaves,
            linear("self.query", narrow, narrow, "attention", bias=True),
            linear("self.key", narrow, narrow, "attention", bias=True),
            linear("self.value", values, narrow, "attention", bias=True),
            linear("output.dense", narrow, narrow, "attention", bias=True),
            vector("output.LayerNorm", narrow, "norm", bias=True),
        )

    def caches(self) -> tuple[()]:
        """Return nothing."""
        return ()

    def cores(self) -> tuple[Core, ...]:
        """Return the scores and the mix of values."""
        head = self.inner // self.heads
        return (Attend(self.heads, head, head, self.mask),)


@dataclass(frozen=True, slots=True)
class StackedFeedForward(Stored):
    """Several narrow feed-forward blocks in a row, each with its norm, and the way out of the bottleneck (MobileBERT).

    Attributes:
        width: D. inner: B. hidden: F. count: blocks. bottleneck: rows are brought back to D elements.
    """

    width: int
    inner: int
    hidden: int
    count: int
    bottleneck: bool
    activation: str = "relu"
    name: str = "ffn"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return them in order."""
        leaves = []
        for index in range(self.count):
            leaves += [
                linear(f"{index}.intermediate", self.inner, self.hidden, "mlp", bias=True),
                linear(f"{index}.output", self.hidden, self.inner, "mlp", bias=True),
                vector(f"{index}.LayerNorm", self.inner, "norm", bias=True),
            ]
        if self.bottleneck:
            leaves += [
                linear("bottleneck.dense", self.inner, self.width, "other", bias=True),
                vector("bottleneck.LayerNorm", self.width, "norm", bias=True),
            ]
        return tuple(leaves)


@dataclass(frozen=True, slots=True)
class BlockwiseAttend:
    """Attention of chosen blocks of tokens, and of means of blocks for the rest (MRA, arXiv:2207.10284).

    Attributes:
        heads: H. head: K. chosen: pairs of blocks scored token by token, over the whole sequence. means: others are
            scored by their means. block: tokens in one.
    """

    heads: int
    head: int
    chosen: int
    means: bool
    block: int = 32
    work: ClassVar[Work] = "attention"

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes."""
        return 3 * self.heads * self.head

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add of both products, over all heads and sequences."""
        across = -(-p.new // self.block)
        tokens = 2 * least(across * across, self.chosen) * self.block**2
        return 2 * p.batch * self.heads * self.head * (tokens + across * across * (1 + self.means))

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:
        """Return the factors of `flops` in words."""
        flops = self.flops(p, engine, dense=dense)
        return f"{flops:,}: at most {self.chosen:,} pairs of blocks of {self.block} tokens, and means of blocks"


@dataclass(frozen=True, slots=True)
class Halved:
    """How many rows are left of n tokens after pairs of them were pooled.

    Attributes:
        times: how often. added: rows added before each (a separate first token that stands for a pair of its own).
    """

    times: int = 0
    added: int = 0

    def rows(self, tokens: Number) -> Number:
        """Return the rows left."""
        for _ in range(self.times):
            tokens = -(-(tokens + self.added) // 2)
        return tokens


@dataclass(frozen=True, slots=True)
class PooledProducts:
    """Matrix products of pooled rows (Funnel, arXiv:2006.03236); their matrices are leaves without work.

    Attributes:
        products: elements of the matrices. pooled: rows that visit them.
    """

    products: int
    pooled: Halved
    work: Work = "linear"

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes: not known by row."""
        return 0

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add over all rows."""
        return 2 * p.batch * self.products * self.pooled.rows(p.new)

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return f"2 x {p.batch:,} sequences x {self.products:,} elements of matrices x {self.pooled.rows(p.new):,} rows"


@dataclass(frozen=True, slots=True)
class PooledAttend:
    """Scores of contents, relative positions and segments, and the mix of values, between pooled rows (Funnel).

    Attributes:
        width: D. heads: H. head: K. queries, keys: rows that come in.
        shifted: positions are projected once a pass and met by queries; else queries are projected to D elements a head
            and meet waves of each key.
    """

    width: int
    heads: int
    head: int
    queries: Halved
    keys: Halved
    shifted: bool
    work: ClassVar[Work] = "attention"
    row_elements: ClassVar[int] = 0

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add over all heads and sequences."""
        inner, q, k = self.heads * self.head, self.queries.rows(p.new), self.keys.rows(p.new)
        contents = p.batch * inner * q * (2 * k + 2)
        if not self.shifted:
            return 2 * (contents + p.batch * q * self.width * (inner + 2 * self.heads * k))
        distances = 2 * q + k if self.queries != self.keys else 2 * q
        return 2 * (contents + p.batch * inner * q * distances + self.width * inner * distances)

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:
        """Return the factors of `flops` in words."""
        q, k = self.queries.rows(p.new), self.keys.rows(p.new)
        return (
            f"{self.flops(p, engine, dense=dense):,}: {p.batch:,} sequences, {q:,} queries, {k:,} keys, their distances"
        )


@dataclass(frozen=True, slots=True)
class DistanceProjections:
    """Keys and values of all remembered rows, and keys of all distances, in every pass (XLNet, arXiv:1906.08237).

    Attributes:
        width: D. inner: H K. cache: rows of former passes.
    """

    width: int
    inner: int
    cache: Cache
    work: Work = "linear"

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes: itself, its key and its value."""
        return self.width + 2 * self.inner

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add over all rows and distances."""
        return 2 * p.batch * self.width * self.inner * self.rows(p, engine)

    def rows(self, p: Pass, engine: Engine) -> Number:
        """Return rows that matrices of [D, H K] visit, of one sequence."""
        own = p.rows("new") // p.batch
        if p.recompute:
            return 4 * own
        keys = _remembered(self.cache, p, engine)
        return 3 * keys + own

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        rows = self.rows(p, engine)
        return f"2 x {p.batch:,} sequences x {self.width:,} x {self.inner:,} x {rows:,} rows (keys, values, distances)"


def _remembered(cache: Cache, p: Pass, engine: Engine) -> Number:
    """Return the keys of one query of a prefill, or of all steps of a decode together."""
    if p.phase == "prefill":
        return cache.kept(p.past, engine) + p.new
    return Mask(window=cache.window).pairs(p)


@dataclass(frozen=True, slots=True)
class DistanceAttend:
    """Scores of contents and of relative distances to both sides, and the mix of values (XLNet).

    Attributes:
        heads: H. head: K. cache: rows of former passes.
    """

    heads: int
    head: int
    cache: Cache
    work: ClassVar[Work] = "attention"

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes: its queries and its mixed values."""
        return 2 * self.heads * self.head

    def pairs(self, p: Pass, engine: Engine) -> Number:
        """Return products of a query with a key, a value or a distance, of one head of one sequence."""
        if p.recompute:
            squares = 2 * Mask().pairs(p) - p.rows("new") // p.batch
            return 4 * squares
        keys = _remembered(self.cache, p, engine)
        return p.new * (3 * keys + p.new) if p.phase == "prefill" else 3 * keys + p.new

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add over all heads and sequences."""
        return 2 * p.batch * self.heads * self.head * self.pairs(p, engine)

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return (
            f"2 x {p.batch:,} sequences x {self.heads:,} heads x {self.head:,} wide x {self.pairs(p, engine):,} "
            "products with keys, values and distances"
        )


@dataclass(frozen=True, slots=True)
class LatentRead:
    """Attention whose queries, and keys where not of tokens, are a fixed number of rows (Perceiver).

    Attributes:
        heads: H. qk, v: widths of one head's keys and values. queries: rows. keys: rows, None: one for each token.
    """

    heads: int
    qk: int
    v: int
    queries: int
    keys: int | None
    work: ClassVar[Work] = "attention"

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes: its key and value, where there is one."""
        return 0 if self.keys else self.heads * (self.qk + self.v)

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add of both products, over all heads and sequences."""
        return 2 * p.batch * self.heads * (self.qk + self.v) * self.queries * (self.keys or p.new)

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return (
            f"2 x {p.batch:,} sequences x {self.heads:,} heads x {self.qk + self.v:,} (key + value width) x "
            f"{self.queries:,} queries x {self.keys or p.new:,} keys"
        )


@dataclass(frozen=True, slots=True)
class PromptProducts:
    """Matrix products of a stored prompt's rows, that go before a sequence's own in every pass from nothing (CPM-Ant).

    Attributes:
        products: elements of the matrices. prompt: rows.
    """

    products: int
    prompt: int
    work: Work = "linear"

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes: none."""
        return 0

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add over all rows of prompts."""
        passes = {"prefill": least(p.new, 1), "decode": 0, "recompute": p.new}[p.phase]
        return 2 * p.batch * self.products * self.prompt * passes

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return (
            f"2 x {p.batch:,} sequences x {self.products:,} elements of matrices x {self.prompt:,} rows of the prompt"
        )


@dataclass(frozen=True, slots=True)
class PromptedAttend:
    """Scores and mix of values where all tokens of a pass, and a stored prompt's, see each other both ways (CPM-Ant).

    Attributes:
        heads: H. head: K. prompt: its rows.
    """

    heads: int
    head: int
    prompt: int
    work: ClassVar[Work] = "attention"

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes: its queries and its mixed values."""
        return 2 * self.heads * self.head

    def pairs(self, p: Pass) -> Number:
        """Return the query-key pairs of one head of one sequence."""
        if p.phase == "prefill":
            return (p.new + self.prompt) * (p.past + p.new + self.prompt)
        if p.phase == "decode":
            return Mask().pairs(p) + self.prompt * p.new
        tokens = p.rows("new") // p.batch
        return 2 * Mask().pairs(p) - tokens + 2 * self.prompt * tokens + self.prompt**2 * p.new

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add of both products, over all heads and sequences."""
        return 4 * p.batch * self.heads * self.head * self.pairs(p)

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return f"4 x {p.batch:,} sequences x {self.heads:,} heads x {self.head:,} wide x {self.pairs(p):,} pairs"
