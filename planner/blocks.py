"""Blocks, the vocabulary of architectures: what each stores (leaves), remembers (caches) and computes (cores).

Everything the planner says is a fold over these three lists. A block also carries what a runnable twin needs to compute
the same function (activation, epsilon, rotary base ...); the folds don't read that.

Letters: D model width, H heads, N key-value heads, K head width, F hidden width, E experts, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Literal, NamedTuple, Protocol

from planner.count import Number, least
from planner.engines import Engine
from planner.masks import Mask
from planner.workload import Feed, Pass

Part = Literal[
    "attention", "mlp", "routed_experts", "shared_experts", "router", "norm", "embedding", "head", "recurrent", "conv",
    "other",
]  # fmt: skip
"""The component that a parameter belongs to (`params.by_block`)."""

Work = Literal["linear", "experts", "router", "head", "attention", "scan", "conv"]
"""The kind of work that FLOPs are listed under (`flops.*.by_op`)."""


class Split(NamedTuple):
    """How tensor-parallel ranks divide a leaf or a cache: along what, and into which whole pieces.

    Attributes:
        along: "out" or "in", the columns or the rows of a matrix; "rows" of a table; "copies".
        unit: what isn't cut ("heads"), for messages. units: how many there are; each rank takes equally many.
        repeats: where there are more ranks than units, several hold the same one (key-value heads).
        size: elements of this segment of a fused tensor, 0: all.
    """

    along: Literal["out", "in", "rows", "copies"]
    unit: str
    units: int
    repeats: bool = False
    size: int = 0


Splits = tuple[Split, ...]
"""One entry, or one for each segment of a fused tensor; none: every rank holds all."""


def split(along: Literal["out", "in", "rows", "copies"], unit: str, units: int, *, repeats: bool = False) -> Splits:
    """Return the split of a tensor that has one segment."""
    return (Split(along, unit, units, repeats),)


def key_value_heads(heads: int) -> Splits:
    """Return the split of what key-value heads bring: ranks share one where there are fewer."""
    return split("out", "key-value heads", heads, repeats=True)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A stored tensor, and the matrix product that one pass does with it.

    Attributes:
        name: as in checkpoints, below its block ("q_proj").
        n_in: width of a row that enters (1 for vectors, rows for tables).
        n_out: width of a row that leaves.
        part: component that its parameters are listed under.
        work: kind of its FLOPs; None where nothing is multiplied (norms, tables).
        feeds: whose rows visit it.
        rate: rows per row of the feed (2 before Whisper's second convolution halves them).
        further: rows of each sequence beyond these (edges of a convolution without padding, tokens of the model's own).
        bias: one more vector of n_out.
        copies: equal tensors stored (experts).
        active: copies that one row visits (top-k); None: all.
        computed: copies that a program runs for each row, where those are more than it visits; None: as many.
        tie: a name; matrices of one name are stored once and run wherever they stand (tied heads); biases are their own.
        buffer: stored with the weights, but no parameter (correction biases).
        own_dtype: stored in this dtype whatever the model's.
        split: how tensor-parallel ranks divide it; biases of columns with them. Routed experts' copies are divided by
            expert-parallel ranks, and each expert so by the rest.
        skips: passes that don't visit it, where its layer runs several times (Inkling 2's message gates: the first).
    """

    name: str
    n_in: int
    n_out: int
    part: Part
    work: Work | None = None
    feeds: Feed = "new"
    rate: int = 1
    bias: bool = False
    copies: int = 1
    active: int | Fraction | None = None
    tie: str | None = None
    buffer: bool = False
    own_dtype: str | None = None
    computed: int | Fraction | None = None
    further: int = 0
    split: Splits = ()
    skips: int = 0

    @property
    def matrix(self) -> int:
        """Elements of all copies without biases."""
        return self.copies * self.n_in * self.n_out

    @property
    def elements(self) -> int:
        """Elements of all copies, biases included."""
        return self.matrix + self.copies * self.n_out * self.bias

    @property
    def visited(self) -> int | Fraction:
        """Copies that one row visits."""
        return self.copies if self.active is None else self.active

    @property
    def flops_per_row(self) -> int:
        """Multiply-adds of one row, times 2; biases are additions and not counted."""
        run = self.visited if self.computed is None else self.computed
        return int(2 * self.rate * run * self.n_in * self.n_out) if self.work else 0

    @property
    def flops_per_sequence(self) -> int:
        """FLOPs of the rows that a sequence has beyond those of the feed."""
        return self.flops_per_row // self.rate * self.further


def linear(
    name: str, n_in: int, n_out: int, part: Part, *, bias: bool = False, work: Work = "linear", **more: object
) -> Leaf:
    """Return a matrix that rows are multiplied with."""
    return Leaf(name, n_in, n_out, part, work, bias=bias, **more)  # type: ignore[arg-type]


def vector(name: str, size: int, part: Part, **more: object) -> Leaf:
    """Return a vector of scales or biases."""
    return Leaf(name, 1, size, part, **more)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Cache:
    """What one layer remembers of one sequence between passes: `fixed` elements, and `row` elements per kept token.

    Attributes:
        kind: "self" grows with the tokens, "cross" is fixed after encoding, "state" doesn't grow.
        row: elements per kept token.
        window: keeps the last W tokens; None keeps all.
        chunk: keeps the last C tokens (chunked attention).
        fixed: elements whatever the length.
        owner: this layer stores it; False: it reads the cache of a layer before it (Gemma 3n).
        stride: one row stands for that many tokens (DeepSeek-V4); `fixed` is then kept from the first row on.
        tail: elements per token that no row stands for yet.
        split: how tensor-parallel ranks divide each row, or the fixed elements; none: every rank holds all.
        chooses: keys that only choose which rows are read (DeepSeek-V3.2's indexer).
    """

    kind: Literal["self", "cross", "state"]
    row: int = 0
    window: int | None = None
    chunk: int | None = None
    fixed: int = 0
    owner: bool = True
    stride: int = 1
    tail: int = 0
    split: Splits = ()
    chooses: bool = False

    def kept(self, tokens: Number, engine: Engine) -> Number:
        """Return the rows that may be read after `tokens` tokens under an engine's rules."""
        limit = self.window or self.chunk
        return (tokens if limit is None else least(tokens, limit - engine.window_margin)) // self.stride

    def stored(self, tokens: Number, engine: Engine) -> Number:
        """Return the rows that an engine holds memory for, in whole blocks, after `tokens` tokens."""
        if self.kind == "state":
            return self.kept(tokens, engine)
        limit, slack = self.window or self.chunk, engine.window_slack
        bounded = limit is not None and slack is not None
        rows = (least(tokens, limit - engine.window_margin + slack) if bounded else tokens) // self.stride  # type: ignore[operator]
        return -(-rows // engine.block_tokens) * engine.block_tokens

    def elements(self, tokens: Number, engine: Engine) -> Number:
        """Return the elements stored of one sequence after `tokens` tokens (a cross cache: source positions)."""
        if self.stride == 1:
            return self.fixed + self.row * self.stored(tokens, engine)
        started = tokens >= self.stride
        return self.fixed * started + self.row * self.stored(tokens, engine) + self.tail * (tokens % self.stride)


@dataclass(frozen=True, slots=True)
class Attend:
    """softmax(q k^T) v, the weightless work of attention.

    Attributes:
        heads: H query heads.
        qk: width of a query and of a key.
        v: width of a value.
        mask: which keys a query may use.
        cross: keys and values come from the encoder.
        cache: what a decode step reads; None: nothing is remembered.
        absorbed_qk, absorbed_v: widths of a decode step that scores latents directly (MLA), else 0.
    """

    heads: int
    qk: int
    v: int
    mask: Mask
    cross: bool = False
    cache: Cache | None = None
    absorbed_qk: int = 0
    absorbed_v: int = 0
    work: ClassVar[Work] = "attention"

    def widths(self, p: Pass, engine: Engine) -> int:
        """Return the width of query and key plus the width of a value, in this phase."""
        if self.absorbed_qk and p.phase == "decode" and engine.absorbs_latents:
            return self.absorbed_qk + self.absorbed_v
        return self.qk + self.v

    def pairs(self, p: Pass) -> Number:
        """Return the query-key pairs of one head of one sequence."""
        if not self.cross:
            return self.mask.pairs(p)
        tokens = Pass(1, p.new, p.past, p.phase).rows("new")
        return tokens * p.memory

    def dense_pairs(self, p: Pass, engine: Engine) -> Number:
        """Return the full rectangle: new tokens times the rows that the engine keeps and the new ones."""
        if self.cross:
            return self.pairs(p)
        return p.new * (p.new + (self.cache.kept(p.past, engine) if self.cache else p.past))

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:
        """Return 2 FLOPs per multiply-add of both products, over all heads and sequences."""
        pairs = self.dense_pairs(p, engine) if dense else self.pairs(p)
        return 2 * p.batch * self.heads * self.widths(p, engine) * pairs

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes: its queries and its mixed values."""
        return self.heads * (self.qk + self.v)

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:
        """Return the factors of `flops` in words."""
        pairs = self.dense_pairs(p, engine) if dense else self.pairs(p)
        widths = self.widths(p, engine)
        return f"2 x {p.batch:,} sequences x {self.heads:,} heads x {widths:,} (key + value width) x {pairs:,} pairs"


@dataclass(frozen=True, slots=True)
class Reexpansion:
    """What a decode step that doesn't work on latents expands again of a window's (`Feed` "latent" does so without one).

    Attributes:
        latent, expanded: widths of a latent, and of the keys and values that it becomes. cache: what is kept.
    """

    latent: int
    expanded: int
    cache: Cache
    work: ClassVar[Work] = "linear"
    row_elements: ClassVar[int] = 0

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add, over all kept rows of all steps."""
        if engine.absorbs_latents or p.phase != "decode":
            return 0 * p.batch
        return 2 * p.batch * p.new * self.cache.kept(p.past, engine) * self.latent * self.expanded

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return f"{p.new:,} steps expand the latents of {self.cache.kept(p.past, engine):,} tokens again"


class Core(Protocol):
    """Weightless work: what every core answers. Hashable, so that equal ones are counted together."""

    @property
    def work(self) -> Work:
        """The kind that its FLOPs are listed under."""

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes."""

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:
        """Return the FLOPs of a pass over all sequences."""

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:
        """Return the factors of `flops` in words."""


class Block(Protocol):
    """What every block answers."""

    def leaves(self) -> tuple[Leaf, ...]:
        """Return what is stored."""

    def caches(self) -> tuple[Cache, ...]:
        """Return what is remembered."""

    def cores(self) -> tuple[Core, ...]:
        """Return the work without weights."""


def checkpoint_name(block: Block, leaf: Leaf) -> str:
    """Return a leaf's name as in checkpoints: below its block's name, where the block isn't the tensor itself."""
    scope = getattr(block, "name", leaf.name)
    return leaf.name if scope in {"", leaf.name} else f"{scope}.{leaf.name}"


class Stored:
    """A block that only stores: it remembers nothing and computes nothing without weights."""

    __slots__ = ()

    def caches(self) -> tuple[Cache, ...]:
        """Return nothing."""
        return ()

    def cores(self) -> tuple[Core, ...]:
        """Return nothing."""
        return ()


@dataclass(frozen=True, slots=True)
class Norm(Stored):
    """Scales a row to unit size.

    Attributes:
        width: elements of the row.
        kind: "rms" or "layer".
        bias: also adds a vector.
        epsilon: added to the variance.
        unit_offset: multiplies by 1 + weight (Gemma).
        name: as in checkpoints.
        affine: has weights at all; else it only divides (OLMo).
    """

    width: int
    kind: Literal["rms", "layer"] = "rms"
    bias: bool = False
    epsilon: float = 1e-6
    unit_offset: bool = False
    name: str = "norm"
    affine: bool = True

    def leaves(self) -> tuple[Leaf, ...]:
        """Return scale and bias."""
        return (vector(self.name, self.width, "norm", bias=self.bias),) if self.affine else ()


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: `width` elements of each head turn with base `theta`; scaling as in the config, as items.

    `interleaved`: neighbours turn together (DeepSeek), else elements half the width apart.
    """

    width: int
    theta: float
    scaling: tuple[tuple[str, object], ...] = ()
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    """Multi-head attention, self or cross; grouped and multi-query by fewer key-value heads.

    Attributes:
        width: D. heads: H. kv_heads: N. head: K.
        mask: which keys a query may use.
        q_bias, k_bias, v_bias, out_bias: whether the projections add a vector.
        qk_norm: norm of queries and keys, of a head's width or of all heads' width.
        cross: keys and values are projections of the encoder's output.
        relative_buckets: B x H table of position biases (T5), stored by one layer and used by all of the stack.
        relative_distance: tokens from which on all distances share a bucket.
        global_projections: a second set of projections for global tokens (Longformer).
        cached_heads: key-value heads that the cache holds, where an engine repeats them; None: N.
        rope, scale, softcap: rotary positions; what scores are multiplied with (None: K ** -0.5); their soft limit.
        alibi: scores fall linearly with distance, each head at its own slope.
        value: width of a value, None: K.
        sinks: a learned score per head that takes a share of the softmax (gpt-oss).
        gate: the output is scaled by a projection of the input, one number per "head" or per "element".
        memory_width: width of the encoder's rows, None: D.
        scored_head: head width that an engine pads queries, keys and values to, None: K.
        qk_norm_each: these norms act on each head, with weights of its own (Cohere), though as wide as all heads' width.
        extra: what else is stored with it.
        mixes: sets of values that the same scores mix (differential attention: 2); rescored: scores are computed again
            for each set.
        whole_cache: all rows are kept whatever the window.
        chooser: an indexer that chooses the keys that are scored (MiniMax-M3).
        name: as in checkpoints.
    """

    width: int
    heads: int
    kv_heads: int
    head: int
    mask: Mask = Mask()
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    out_bias: bool = False
    qk_norm: Norm | None = None
    cross: bool = False
    relative_buckets: int = 0
    global_projections: bool = False
    cached_heads: int | None = None
    rope: Rope | None = None
    scale: float | None = None
    softcap: float | None = None
    name: str = "self_attn"
    relative_distance: int = 128
    alibi: bool = False
    value: int | None = None
    sinks: bool = False
    chooser: Block | None = None
    gate: Literal["head", "element"] | None = None
    memory_width: int | None = None
    scored_head: int | None = None
    extra: tuple[Leaf, ...] = ()
    mixes: int = 1
    rescored: bool = False
    whole_cache: bool = False
    qk_norm_each: bool = False
    borrows: bool = False
    same_values: bool = False

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the projections [D, H K], [D, N K] twice and [H K, D], and what stands with them."""
        q, kv = self.heads * self.head, self.kv_heads * self.head
        values = self.value or self.head
        source: Feed = "memory" if self.cross else "new"
        read = self.memory_width or self.width
        by_head, by_group = split("out", "heads", self.heads), key_value_heads(self.kv_heads)
        back = split("in", "heads", self.heads)
        leaves = [
            linear("q_proj", self.width, q, "attention", bias=self.q_bias, split=by_head),
            linear("k_proj", read, kv, "attention", bias=self.k_bias, feeds=source, split=by_group),
            linear("v_proj", read, self.kv_heads * values, "attention", bias=self.v_bias, feeds=source, split=by_group),
            linear("o_proj", self.heads * values, self.width, "attention", bias=self.out_bias, split=back),
        ]
        if self.sinks:
            leaves.append(vector("sinks", self.heads, "attention", split=by_head))
        if self.gate:
            gates = self.heads * (values if self.gate == "element" else 1)
            leaves.append(linear("gate_proj", self.width, gates, "attention", split=by_head))
        if self.qk_norm and self.qk_norm.affine:
            whole = self.qk_norm.width == q
            norms = (by_head, by_group) if whole and self.qk_norm_each else ((), ())  # else sums run over all heads
            leaves += [
                vector("q_norm", q if whole else self.head, "norm", bias=self.qk_norm.bias, split=norms[0]),
                vector("k_norm", kv if whole else self.head, "norm", bias=self.qk_norm.bias, split=norms[1]),
            ]
        if self.borrows:
            leaves = [leaf for leaf in leaves if leaf.name not in {"k_proj", "v_proj", "k_norm"}]
        if self.same_values:
            leaves = [leaf for leaf in leaves if leaf.name != "v_proj"]
        if self.relative_buckets:
            table = Leaf("relative_attention_bias", self.relative_buckets, self.heads, "attention", split=by_head)
            leaves.append(table)
        if self.global_projections:
            leaves += [
                linear("query_global", self.width, q, "attention", bias=self.q_bias, feeds="global", split=by_head),
                linear(
                    "key_global", self.width, kv, "attention", bias=self.k_bias, feeds="global_keys", split=by_group
                ),
                linear(
                    "value_global", self.width, kv, "attention", bias=self.v_bias, feeds="global_keys", split=by_group
                ),
            ]
        chooser = self.chooser.leaves() if self.chooser else ()
        return (*leaves, *(replace(leaf, name=f"indexer.{leaf.name}") for leaf in chooser), *self.extra)

    def caches(self) -> tuple[Cache, ...]:
        """Return keys and values, 2 N K elements a token; nothing where later tokens are seen too."""
        row = self.head + (self.value or self.head)
        if self.cross:
            return (Cache("cross", self.kv_heads * row, split=key_value_heads(self.kv_heads)),)
        if not self.mask.causal:
            return ()
        kept = None if self.whole_cache else self.mask.window
        heads = self.cached_heads or self.kv_heads
        by_group = key_value_heads(heads)
        own = Cache("self", heads * row, kept, self.mask.chunk, owner=not self.borrows, split=by_group)
        return (own, *(self.chooser.caches() if self.chooser else ()))

    def cores(self) -> tuple[Core, ...]:
        """Return the scores and the mix of values."""
        cache = next(iter(self.caches()), None)
        key, value = self.scored_head or self.head, self.scored_head or self.value or self.head
        times, mixed = (self.mixes, value) if self.rescored else (1, self.mixes * value)
        main = Attend(self.heads, key, mixed, self.mask, self.cross, cache)
        return (*(main,) * times, *(self.chooser.cores() if self.chooser else ()))


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): keys and values are projections of one small latent.

    Attributes:
        width: D. heads: H. q_rank: width of the queries' latent, None: projected directly.
        kv_rank: width of the latent of keys and values. nope, rope: head widths without and with rotary position.
        value: width of a value.
        bias: of the projections down and of the output.
        rope_positions, scale, mask, name: as in `Attention`; a scale of None is (nope + rope) ** -0.5.
        epsilon: of the latents' norms.
        gate: the output is scaled by a projection of the input, one number per head (Ling).
        chooser: an indexer that chooses the keys that are scored (DeepSeek-V3.2).
        gated_queries: queries and an output gate come from one projection of two latents (A.X K2).
        extra: what else is stored.
    """

    width: int
    heads: int
    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int
    bias: bool = False
    rope_positions: Rope | None = None
    scale: float | None = None
    mask: Mask = Mask()
    name: str = "self_attn"
    epsilon: float = 1e-6
    gate: bool = False
    chooser: Block | None = None
    gated_queries: bool = False
    extra: tuple[Leaf, ...] = ()

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the projections down to the latents, their norms, the projections up and the output."""
        q = self.heads * (self.nope + self.rope)
        by_head, back = split("out", "heads", self.heads), split("in", "heads", self.heads)
        if self.q_rank is None:
            queries = [linear("q_proj", self.width, q, "attention", split=by_head)]
        else:
            queries = [
                linear("q_a_proj", self.width, self.q_rank, "attention", bias=self.bias),
                vector("q_a_layernorm", self.q_rank, "norm"),
                linear("q_gate_proj", 2 * self.q_rank, q + self.heads * self.value, "attention", split=by_head)
                if self.gated_queries
                else linear("q_b_proj", self.q_rank, q, "attention", split=by_head),
            ]
        return (
            *queries,
            linear("kv_a_proj_with_mqa", self.width, self.kv_rank + self.rope, "attention", bias=self.bias),
            vector("kv_a_layernorm", self.kv_rank, "norm"),
            linear(
                "kv_b_proj",
                self.kv_rank,
                self.heads * (self.nope + self.value),
                "attention",
                feeds="new" if self.mask.window else "latent",
                split=by_head,
            ),
            linear("o_proj", self.heads * self.value, self.width, "attention", bias=self.bias, split=back),
            *((linear("g_proj", self.width, self.heads, "attention", split=by_head),) if self.gate else ()),
            *(replace(leaf, name=f"indexer.{leaf.name}") for leaf in (self.chooser.leaves() if self.chooser else ())),
            *self.extra,
        )

    def caches(self) -> tuple[Cache, ...]:
        """Return the latent and the rotary key, one row of kv_rank + rope elements for all heads; the indexer's keys."""
        chooser = self.chooser.caches() if self.chooser else ()
        return (Cache("self", self.kv_rank + self.rope, self.mask.window), *chooser)

    def cores(self) -> tuple[Core, ...]:
        """Return attention on expanded keys and values, or on the latents themselves in a decode step."""
        cache, chooser = self.caches()[0], self.chooser.cores() if self.chooser else ()
        expanded = self.nope + self.rope
        absorbed = self.kv_rank + self.rope
        main = Attend(self.heads, expanded, self.value, self.mask, False, cache, absorbed, self.kv_rank)
        again = (Reexpansion(self.kv_rank, self.heads * (self.nope + self.value), cache),) * bool(self.mask.window)
        return (main, *chooser, *again)


@dataclass(frozen=True, slots=True)
class FeedForward(Stored):
    """Two matrices around an activation, three where gated.

    Attributes:
        width: D. hidden: F. gated: SwiGLU and its like. up_bias, down_bias: vectors added.
        activation: name as in configs. part, name: where it is listed. extra: what else is stored with it.
    """

    width: int
    hidden: int
    gated: bool = True
    up_bias: bool = False
    down_bias: bool = False
    activation: str = "silu"
    part: Part = "mlp"
    name: str = "mlp"
    extra: tuple[Leaf, ...] = ()

    def leaves(self) -> tuple[Leaf, ...]:
        """Return [D, F] (twice where gated) and [F, D]."""
        up, down = split("out", "hidden channels", self.hidden), split("in", "hidden channels", self.hidden)
        names = ("gate_proj", "up_proj") if self.gated else ("up_proj",)
        return (
            *(linear(name, self.width, self.hidden, self.part, bias=self.up_bias, split=up) for name in names),
            linear("down_proj", self.hidden, self.width, self.part, bias=self.down_bias, split=down),
            *self.extra,
        )


Scoring = Literal["softmax", "softmax_top_k", "sigmoid", "sqrtsoftplus"]
"""How a router's scores become weights: softmax over all experts or over the chosen, or each score on its own."""


@dataclass(frozen=True, slots=True)
class MixtureOfExperts(Stored):
    """E feed-forward blocks of which each row visits k, chosen by a router; and one that all rows visit.

    Attributes:
        width: D. hidden: F of one expert. experts: E. top_k: k.
        gated, bias, activation: as in `FeedForward`, of the routed experts.
        shared: hidden width of the shared expert, 0: none. shared_gate: one more output scales it. shared_bias: vectors
            added.
        router_bias: vector added to the router's scores.
        correction_bias: a buffer of E float32 that balances the load (DeepSeek-V3), or a "parameter" (ERNIE 4.5).
        identities: further outputs of the router, experts that return their input (LongCat): of k choices, those that
            compute anything are E / (E + identities) on average. phantoms: two of three matrices are stored for them too.
        runs_all: every row runs through every expert, whatever it chose (Llama 4 in transformers).
        post_norm: one norm of the sum of all experts (A.X K1).
        token_table: rows of a buffer that says which experts each token visits (DeepSeek-V4's first layers), 0: none;
            its whole numbers have 32 bits.
        chooser: what chooses, where it is more than one matrix (Zaya).
        latent: width of the rows that routed experts see, projected down before and up after them (Nemotron 3); None: D.
        router, shared_name: as in checkpoints.
        scoring: how scores become weights, see `Scoring`.
        capacity: tokens are dropped beyond a fixed room per expert (Switch).
        normalized: the weights of the chosen are divided by their sum. weight_scale: and multiplied with this.
        groups, top_groups: experts are chosen from the best groups only (DeepSeek).
    """

    width: int
    hidden: int
    experts: int
    top_k: int
    gated: bool = True
    bias: bool = False
    activation: str = "silu"
    shared: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    correction_bias: bool | Literal["parameter"] = False
    scoring: Scoring = "softmax_top_k"
    capacity: bool = False
    name: str = "mlp"
    normalized: bool = False
    weight_scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    shared_bias: bool = False
    identities: int = 0
    phantoms: bool = False
    runs_all: bool = False
    router: str = "gate"
    shared_name: str = "shared_experts"
    post_norm: bool = False
    token_table: int = 0
    latent: int | None = None
    chooser: tuple[Leaf, ...] = ()

    @property
    def visits(self) -> int | Fraction:
        """Experts that compute something for one row, on average."""
        if self.runs_all:
            return self.experts
        share = Fraction(self.top_k * self.experts, self.experts + self.identities)
        return share.numerator if share.denominator == 1 else share

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the router [D, E], E experts, and the shared expert."""
        seen = self.latent or self.width
        expert = FeedForward(seen, self.hidden, self.gated, self.bias, self.bias, part="routed_experts")
        outputs, visits = self.experts + self.identities, self.visits
        active = self.top_k if self.runs_all or self.phantoms else visits
        router = linear(self.router, self.width, outputs, "router", bias=self.router_bias, work="router")
        leaves = list(self.chooser or (router,))
        if self.correction_bias:
            buffer = self.correction_bias != "parameter"
            leaves.append(vector("e_score_correction_bias", outputs, "router", buffer=buffer, own_dtype="float32"))
        if self.token_table:
            leaves.append(Leaf("tid2eid", self.token_table, self.top_k, "router", buffer=True, own_dtype="float32"))
        leaves += [
            Leaf(f"experts.{leaf.name}", leaf.n_in, leaf.n_out, leaf.part, "experts", bias=leaf.bias,
                 copies=outputs if self.phantoms and leaf.name != "down_proj" else self.experts, active=active,
                 computed=None if active == visits else visits, split=leaf.split)
            for leaf in expert.leaves()
        ]  # fmt: skip
        if self.latent:
            leaves.append(linear("fc1_latent_proj", self.width, self.latent, "other", bias=self.shared_bias))
            leaves.append(linear("fc2_latent_proj", self.latent, self.width, "other", bias=self.shared_bias))
        if self.shared:
            shared = FeedForward(
                self.width, self.shared, self.gated, self.shared_bias, self.shared_bias, part="shared_experts"
            )
            leaves += [replace(leaf, name=f"{self.shared_name}.{leaf.name}") for leaf in shared.leaves()]
        if self.shared_gate:
            leaves.append(linear("shared_expert_gate", self.width, 1, "shared_experts"))
        if self.post_norm:
            leaves.append(vector("post_mlp_layernorm", self.width, "norm"))
        return tuple(leaves)


@dataclass(frozen=True, slots=True)
class Table(Stored):
    """Rows looked up by token, position or type: V x D.

    Attributes:
        name: as in checkpoints. rows, width: its shape.
        tie: name under which a head shares it.
        scale: what looked-up rows are multiplied with.
        index: what picks a row. offset: rows before that of position 0 (BART: 2).
    """

    name: str
    rows: int
    width: int
    tie: str | None = None
    scale: float = 1.0
    index: Literal["token", "position", "type"] = "token"
    offset: int = 0

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the table."""
        tokens = split("rows", "vocabulary", self.rows) if self.index == "token" else ()
        return (Leaf(self.name, self.rows, self.width, "embedding", tie=self.tie, split=tokens),)


@dataclass(frozen=True, slots=True)
class Sinusoids(Stored):
    """Waves of fixed lengths added to rows, so that nothing is stored (the original Transformer, NLLB).

    Attributes:
        width: D. offset: position of the first token.
        halves: sines, then cosines (tensor2tensor), instead of a sine and a cosine in turn.
    """

    width: int
    offset: int = 0
    halves: bool = False

    def leaves(self) -> tuple[Leaf, ...]:
        """Return nothing."""
        return ()


@dataclass(frozen=True, slots=True)
class Pooler(Stored):
    """A dense layer and tanh on the first token's row (BERT).

    Attributes:
        width: D. name: as in checkpoints.
    """

    width: int
    name: str = "pooler.dense"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the matrix [D, D], that one row a sequence visits."""
        return (linear(self.name, self.width, self.width, "other", bias=True, feeds="sequence"),)


@dataclass(frozen=True, slots=True)
class Head(Stored):
    """Projects a row onto the vocabulary.

    Attributes:
        width: D. vocabulary: V. bias: one more vector of V. tie: name of the table that it shares.
        transform: a dense layer and a norm before it (masked-LM heads), to the norm's width. activation: of the transform.
        transform_bias: the dense layer adds a vector.
        every_row: all positions are asked for (encoders), not only the last.
        logits_bias: a stored vector of V that is no parameter (BART).
        scale, softcap: what hidden rows are multiplied with before it; the soft limit of the logits.
    """

    width: int
    vocabulary: int
    bias: bool = False
    tie: str | None = None
    transform: Norm | None = None
    activation: str = "gelu"
    every_row: bool = False
    logits_bias: bool = False
    scale: float = 1.0
    softcap: float | None = None
    name: str = "lm_head"
    transform_bias: bool = True

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the projection [D, V]; the transform [D, D] before it."""
        feed: Feed = "new" if self.every_row else "last"
        tokens = split("out", "vocabulary", self.vocabulary)
        leaves, inner = [], self.width
        if self.transform:
            inner = self.transform.width
            leaves.append(linear("transform.dense", self.width, inner, "head", bias=self.transform_bias, feeds=feed))
            leaves.append(vector("transform.norm", inner, "head", bias=self.transform.bias))
        leaves.append(
            linear(
                self.name, inner, self.vocabulary, "head", bias=self.bias, work="head", feeds=feed, tie=self.tie,
                split=tokens,
            )
        )  # fmt: skip
        if self.logits_bias:
            leaves.append(vector("final_logits_bias", self.vocabulary, "head", buffer=True, split=tokens))
        return tuple(leaves)


@dataclass(frozen=True, slots=True)
class AudioFrontEnd(Stored):
    """Whisper's two convolutions over time: [3 M, D] at twice the encoder's rows, [3 D, D] with stride 2.

    Attributes:
        bands: M mel bands. width: D. kernel: 3 positions.
    """

    bands: int
    width: int
    kernel: int = 3

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the convolutions as matrices over their kernels."""
        return (
            linear("conv1", self.kernel * self.bands, self.width, "conv", bias=True, work="conv", rate=2),
            linear("conv2", self.kernel * self.width, self.width, "conv", bias=True, work="conv"),
        )


@dataclass(frozen=True, slots=True)
class Weights(Stored):
    """Any bag of leaves, for what has no block of its own."""

    parts: tuple[Leaf, ...]

    def leaves(self) -> tuple[Leaf, ...]:
        """Return them."""
        return self.parts
