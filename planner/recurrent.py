"""Recurrent mixers: blocks that remember a state of fixed size instead of a row for every token.

A `Scan` is their weightless work: the sequential recurrence, whose products are counted as 2 FLOPs a multiply-add; a
library that computes the same in chunks or elementwise does other, more or unseen work. A state that decays and takes
in an outer product costs two multiply-adds an element and token, reading it out one more (Mamba: 6 FLOPs an element).

Letters: D model width, I inner width, S state width, H heads, K and V widths of a key and a value, C channels, T taps
of a short convolution, R rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from planner.blocks import (
    Attention,
    Block,
    Cache,
    Core,
    FeedForward,
    Leaf,
    Norm,
    Split,
    Splits,
    checkpoint_name,
    linear,
    split,
    vector,
)  # fmt: skip
from planner.count import Number
from planner.engines import Engine
from planner.workload import Pass


@dataclass(frozen=True, slots=True)
class Scan:
    """One step of a recurrence for every token.

    Attributes:
        elements: of the state. products: multiply-adds of one token with each of them.
        row: elements that a token brings and takes.
    """

    elements: int
    products: int
    row: int

    @property
    def work(self) -> Literal["scan"]:
        """The kind that its FLOPs are listed under."""
        return "scan"

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes."""
        return self.row

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add over all tokens; dense is the same."""
        return 2 * self.products * self.elements * p.rows("new")

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return f"2 x {self.products} products x {self.elements:,} elements of a state x {p.rows('new'):,} tokens"


@dataclass(frozen=True, slots=True)
class Convolve:
    """A short causal convolution over time, each channel with taps of its own.

    Attributes:
        channels: C. taps: T; the last T tokens are what a state holds.
    """

    channels: int
    taps: int

    @property
    def work(self) -> Literal["conv"]:
        """The kind that its FLOPs are listed under."""
        return "conv"

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes."""
        return 2 * self.channels

    def outputs(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:
        """Return the output positions over all sequences: one a token; dense, with those that an engine throws away."""
        found = p.rows("new")
        if not (dense and "pads_convolutions" in engine.quirks):
            return found
        thrown = {"prefill": self.taps - 1, "decode": p.new, "recompute": p.new * (self.taps - 1)}[p.phase]
        return found + p.batch * thrown

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:
        """Return 2 FLOPs a tap."""
        return 2 * self.taps * self.channels * self.outputs(p, engine, dense=dense)

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:
        """Return the factors of `flops` in words."""
        outputs = self.outputs(p, engine, dense=dense)
        return f"2 x {self.taps} taps x {self.channels:,} channels x {outputs:,} positions"


def _taps(name: str, taps: int, channels: int, *, bias: bool, split: Splits = ()) -> Leaf:
    """Return the filter [C, 1, T] of a short convolution."""
    return Leaf(name, taps, channels, "recurrent", bias=bias, split=split)


def _states(*elements: int, split: Splits = ()) -> tuple[Cache, ...]:
    """Return states of so many elements each."""
    return tuple(Cache("state", fixed=count, split=split) for count in elements)


def _channels(*segments: tuple[int, str, int], times: int = 1) -> Splits:
    """Return the split of channels side by side: of each segment its size, unit and units; all sizes times `times`."""
    return tuple(Split("out", unit, units, unit == "groups", size * times) for size, unit, units in segments)


@dataclass(frozen=True, slots=True)
class Mamba:
    """A selective state space (arXiv:2312.00752): every channel has S states, whose steps follow from the input.

    Attributes:
        width: D. inner: I channels. state: S. taps: T of the convolution before it. rank: R of the step sizes.
        heads: groups of channels with projections of their own (Zamba).
        conv_bias, bias: whether the convolution, and the projections in and out, add a vector.
        inner_norms: step sizes and both state projections are normed with stored scales (Jamba).
        name: as in checkpoints.
    """

    width: int
    inner: int
    state: int
    taps: int
    rank: int
    heads: int = 1
    conv_bias: bool = True
    bias: bool = False
    inner_norms: bool = False
    name: str = "mixer"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the projections [D, 2 I], [I, R + 2 S], [R, I] and [I, D], taps, decays and skips."""
        part, each = self.inner // self.heads, self.heads
        norms = (("dt_layernorm", self.rank), ("b_layernorm", self.state), ("c_layernorm", self.state))
        unit, units = ("heads", each) if each > 1 else ("channels", self.inner)
        out, back, heads = split("out", unit, units), split("in", unit, units), split("copies", unit, units)
        x_split, dt_split = (heads, heads) if each > 1 else (back, out)
        return (
            linear("in_proj", self.width, 2 * self.inner, "recurrent", bias=self.bias, split=out),
            _taps("conv1d", self.taps, self.inner, bias=self.conv_bias, split=out),
            linear("x_proj", part, self.rank + 2 * self.state, "recurrent", copies=each, split=x_split),
            linear("dt_proj", self.rank, part, "recurrent", bias=True, copies=each, split=dt_split),
            Leaf("A_log", self.state, self.inner, "recurrent", split=out),
            vector("D", self.inner, "recurrent", split=out),
            *(vector(name, size, "norm") for name, size in norms if self.inner_norms),
            linear("out_proj", self.inner, self.width, "recurrent", bias=self.bias, split=back),
        )

    def caches(self) -> tuple[Cache, ...]:
        """Return the last T rows of the convolution and the state [I, S]."""
        unit, units = ("heads", self.heads) if self.heads > 1 else ("channels", self.inner)
        return _states(self.taps * self.inner, self.inner * self.state, split=split("out", unit, units))

    def cores(self) -> tuple[Core, ...]:
        """Return the convolution and the recurrence."""
        row = 3 * self.inner + 2 * self.state  # input, step sizes, both projections of the state; output
        return (Convolve(self.inner, self.taps), Scan(self.inner * self.state, 3, row))


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Mamba-2 (arXiv:2405.21060): one decay for each head, the state's projections shared by groups of heads.

    Attributes:
        width: D. heads: H. head: I / H. groups: G of heads. state: S. taps: T.
        conv_bias, bias, out_bias: whether the convolution and the projections in and out add a vector.
        norm: the gated output is normed.
        name: as in checkpoints.
    """

    width: int
    heads: int
    head: int
    groups: int
    state: int
    taps: int
    conv_bias: bool = True
    bias: bool = False
    out_bias: bool = False
    norm: bool = True
    name: str = "mixer"

    @property
    def inner(self) -> int:
        """I, the width of all heads."""
        return self.heads * self.head

    @property
    def channels(self) -> int:
        """Width of what is convolved: inputs and both projections of the state."""
        return self.inner + 2 * self.groups * self.state

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the projections [D, 2 I + 2 G S + H] and [I, D], taps, a decay, a step size and a skip per head."""
        by_head, back = split("out", "heads", self.heads), split("in", "heads", self.heads)
        inner, steps = (self.inner, "heads", self.heads), (self.heads, "heads", self.heads)
        into = _channels(inner, *self._segments, steps)
        return (
            linear(
                "in_proj", self.width, self.inner + self.channels + self.heads, "recurrent", bias=self.bias, split=into
            ),
            _taps("conv1d", self.taps, self.channels, bias=self.conv_bias, split=_channels(*self._segments)),
            *(vector(name, self.heads, "recurrent", split=by_head) for name in ("dt_bias", "A_log", "D")),
            *((vector("norm", self.inner, "norm", split=by_head),) if self.norm else ()),
            linear("out_proj", self.inner, self.width, "recurrent", bias=self.out_bias, split=back),
        )

    @property
    def _segments(self) -> tuple[tuple[int, str, int], ...]:
        """What the convolution's channels are of: heads, and groups."""
        return (self.inner, "heads", self.heads), (2 * self.groups * self.state, "groups", self.groups)

    def caches(self) -> tuple[Cache, ...]:
        """Return the last T rows of the convolution and the state [H, I / H, S]."""
        return (
            *_states(self.taps * self.channels, split=_channels(*self._segments, times=self.taps)),
            *_states(self.inner * self.state, split=split("out", "heads", self.heads)),
        )

    def cores(self) -> tuple[Core, ...]:
        """Return the convolution and the recurrence."""
        row = self.inner + self.channels + self.heads
        return (Convolve(self.channels, self.taps), Scan(self.inner * self.state, 3, row))


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """A gated delta net (arXiv:2412.06464): before a value is written, what its key holds in the state is removed.

    Attributes:
        width: D. key_heads, value_heads: H of each. key, value: K and V. taps: T.
        projections: how they are stored: "qkvz" in two matrices (Qwen3-Next), "qkv" in four (Qwen 3.5), "separate".
        channel_decay: every channel of a key decays at its own rate (Kimi Delta Attention), else every head.
        rank: R of the projections of decay and gate, None: full.
        norm, out, scope: names of the norm, of the output's projection and of what makes the decay, as in checkpoints.
        name: as in checkpoints.
    """

    width: int
    key_heads: int
    value_heads: int
    key: int
    value: int
    taps: int
    projections: Literal["qkvz", "qkv", "separate"] = "separate"
    channel_decay: bool = False
    rank: int | None = None
    norm: str = "o_norm"
    out: str = "o_proj"
    scope: str = ""
    name: str = "linear_attn"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the projections to queries, keys, values, gates, decays and write strengths, taps, and the output."""
        q, v = self.key_heads * self.key, self.value_heads * self.value
        decays = self.value_heads * self.key if self.channel_decay else self.value_heads
        return (
            *self._inputs(q, v, decays),
            _taps("conv1d", self.taps, 2 * q + v, bias=False, split=_channels(*self._segments)),
            vector(f"{self.scope}dt_bias", decays, "recurrent", split=self._by_value),
            vector(f"{self.scope}A_log", self.value_heads, "recurrent", split=self._by_value),
            vector(self.norm, self.value, "norm"),
            linear(self.out, v, self.width, "recurrent", split=split("in", "value heads", self.value_heads)),
        )

    @property
    def _by_value(self) -> Splits:
        return split("out", "value heads", self.value_heads)

    @property
    def _by_key(self) -> Splits:
        return split("out", "key heads", self.key_heads)

    @property
    def _segments(self) -> tuple[tuple[int, str, int], ...]:
        """What the convolution's channels are of: queries and keys, and values."""
        q, v = 2 * self.key_heads * self.key, self.value_heads * self.value
        return (q, "key heads", self.key_heads), (v, "value heads", self.value_heads)

    def _inputs(self, q: int, v: int, decays: int) -> tuple[Leaf, ...]:
        """Return the projections from the input; q, v: widths of all keys and all values."""
        heads, into = self.value_heads, self._into
        by_key, by_value, both = self._by_key, self._by_value, _channels(*self._segments)
        match self.projections:
            case "qkvz":
                with_gates = (*both, Split("out", "value heads", heads, size=v))
                return (*into("in_proj_qkvz", 2 * q + 2 * v, with_gates), *into("in_proj_ba", 2 * heads, by_value))
            case "qkv":
                named = {"in_proj_z": v, "in_proj_b": heads, "in_proj_a": decays}
                first = into("in_proj_qkv", 2 * q + v, both)
                return (*first, *(leaf for name, size in named.items() for leaf in into(name, size, by_value)))
        decay = f"{self.scope}f" if self.channel_decay else "a"
        return (
            *into("q_proj", q, by_key), *into("k_proj", q, by_key), *into("v_proj", v, by_value),
            *into("b_proj", heads, by_value), *self._narrow(decay, decays), *self._narrow("g", v),
        )  # fmt: skip

    def _into(self, name: str, n_out: int, split: Splits) -> tuple[Leaf, ...]:
        return (linear(name, self.width, n_out, "recurrent", split=split),)

    def _narrow(self, name: str, n_out: int) -> tuple[Leaf, ...]:
        """Return a projection, or two of rank R in place of it."""
        if self.rank is None:
            return self._into(f"{name}_proj", n_out, self._by_value)
        return (
            *self._into(f"{name}_a_proj", self.rank, ()),
            linear(f"{name}_b_proj", self.rank, n_out, "recurrent", split=self._by_value),
        )

    def caches(self) -> tuple[Cache, ...]:
        """Return the last T rows of the convolution and the state [H, K, V]."""
        channels = 2 * self.key_heads * self.key + self.value_heads * self.value
        return (
            *_states(self.taps * channels, split=_channels(*self._segments, times=self.taps)),
            *_states(self.value_heads * self.key * self.value, split=self._by_value),
        )

    def cores(self) -> tuple[Core, ...]:
        """Return the convolution and the recurrence, which reads the state twice."""
        channels = 2 * self.key_heads * self.key + self.value_heads * self.value
        row = channels + self.value_heads * (self.value + 2)
        return (Convolve(channels, self.taps), Scan(self.value_heads * self.key * self.value, 4, row))


@dataclass(frozen=True, slots=True)
class LightningAttention:
    """Linear attention with a fixed decay per head (MiniMax-01, arXiv:2501.08313).

    Attributes:
        width: D. heads: H. head: K. block: tokens of a block, whose decays are stored as tables.
        name: as in checkpoints.
    """

    width: int
    heads: int
    head: int
    block: int
    name: str = "self_attn"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the projections [D, 3 H K], [D, H K] and [H K, D], the norm, and the tables of decays."""
        q = self.heads * self.head
        tables = {"slope_rate": 1, "query_decay": self.block, "key_decay": self.block, "diagonal_decay": self.block**2}
        by_head, back = split("out", "heads", self.heads), split("in", "heads", self.heads)
        return (
            linear("qkv_proj", self.width, 3 * q, "recurrent", split=by_head),
            linear("output_gate", self.width, q, "recurrent", split=by_head),
            linear("out_proj", q, self.width, "recurrent", split=back),
            vector("norm", q, "norm", split=by_head),
            *(
                vector(name, self.heads * size, "recurrent", buffer=True, split=by_head)
                for name, size in tables.items()
            ),
        )

    def caches(self) -> tuple[Cache, ...]:
        """Return the state [H, K, K]."""
        return _states(self.heads * self.head**2, split=split("out", "heads", self.heads))

    def cores(self) -> tuple[Core, ...]:
        """Return the recurrence."""
        return (Scan(self.heads * self.head**2, 3, 4 * self.heads * self.head),)


@dataclass(frozen=True, slots=True)
class GatedLinearRecurrence:
    """A real-gated linear recurrent unit behind a short convolution (Griffin, arXiv:2402.19427).

    Attributes:
        width: D. inner: I. heads: H blocks of the gates' matrices. taps: T.
        name: as in checkpoints.
    """

    width: int
    inner: int
    heads: int
    taps: int
    name: str = "temporal_block"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the projections [D, I] twice and [I, D], taps, and the gates' H matrices [I / H, I / H]."""
        block = self.inner // self.heads
        gates = ("rg_lru.input_gate", "rg_lru.recurrent_gate")
        by_head, back = split("out", "heads", self.heads), split("in", "heads", self.heads)
        each = split("copies", "heads", self.heads)
        return (
            linear("linear_y", self.width, self.inner, "recurrent", bias=True, split=by_head),
            linear("linear_x", self.width, self.inner, "recurrent", bias=True, split=by_head),
            linear("linear_out", self.inner, self.width, "recurrent", bias=True, split=back),
            _taps("conv_1d", self.taps, self.inner, bias=True, split=by_head),
            *(linear(name, block, block, "recurrent", bias=True, copies=self.heads, split=each) for name in gates),
            vector("rg_lru.recurrent_param", self.inner, "recurrent", split=by_head),
        )

    def caches(self) -> tuple[Cache, ...]:
        """Return the T - 1 rows before the next one, that the convolution needs, and the state [I]."""
        return _states((self.taps - 1) * self.inner, self.inner, split=split("out", "heads", self.heads))

    def cores(self) -> tuple[Core, ...]:
        """Return the convolution and the recurrence; its state is its output."""
        return (Convolve(self.inner, self.taps), Scan(self.inner, 2, 4 * self.inner))


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """A gated short convolution between two projections (LFM2).

    Attributes:
        width: D. taps: T. bias: all three add a vector.
        name: as in checkpoints.
    """

    width: int
    taps: int
    bias: bool = False
    name: str = "conv"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the projections [D, 3 D] and [D, D], and taps."""
        out, back = split("out", "channels", self.width), split("in", "channels", self.width)
        return (
            linear("in_proj", self.width, 3 * self.width, "recurrent", bias=self.bias, split=out),
            _taps("conv", self.taps, self.width, bias=self.bias, split=out),
            linear("out_proj", self.width, self.width, "recurrent", bias=self.bias, split=back),
        )

    def caches(self) -> tuple[Cache, ...]:
        """Return the last T rows."""
        return _states(self.taps * self.width, split=split("out", "channels", self.width))

    def cores(self) -> tuple[Core, ...]:
        """Return the convolution."""
        return (Convolve(self.width, self.taps),)


@dataclass(frozen=True, slots=True)
class TimeMix:
    """RWKV-4's mixer (arXiv:2305.13048): a decaying mean of values with exponential weights, and the token before.

    Attributes:
        width: D. inner: I.
        name: as in checkpoints.
    """

    width: int
    inner: int
    name: str = "attention"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the projections [D, I] thrice and [I, D], decays, and the shares of the token before."""
        shares = ("time_mix_key", "time_mix_value", "time_mix_receptance")
        out = split("out", "channels", self.inner)
        return (
            *(vector(name, self.inner, "recurrent", split=out) for name in ("time_decay", "time_first")),
            *(vector(name, self.width, "recurrent") for name in shares),
            *(linear(name, self.width, self.inner, "recurrent", split=out) for name in ("key", "value", "receptance")),
            linear("output", self.inner, self.width, "recurrent", split=split("in", "channels", self.inner)),
        )

    def caches(self) -> tuple[Cache, ...]:
        """Return the token before, and numerators, denominators and their largest exponents."""
        return (*_states(self.width), *_states(3 * self.inner, split=split("out", "channels", self.inner)))

    def cores(self) -> tuple[Core, ...]:
        """Return the recurrence of numerators and denominators."""
        return (Scan(2 * self.inner, 2, 4 * self.inner),)


@dataclass(frozen=True, slots=True)
class ChannelMix:
    """RWKV-4's feed-forward block: squared ReLU and a gate, on rows mixed with the token before.

    Attributes:
        width: D. hidden: F.
        name: as in checkpoints.
    """

    width: int
    hidden: int
    name: str = "feed_forward"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return [D, F], [D, D] and [F, D], and the shares of the token before."""
        return (
            *(vector(name, self.width, "mlp") for name in ("time_mix_key", "time_mix_receptance")),
            linear("key", self.width, self.hidden, "mlp", split=split("out", "hidden channels", self.hidden)),
            linear("receptance", self.width, self.width, "mlp"),
            linear("value", self.hidden, self.width, "mlp", split=split("in", "hidden channels", self.hidden)),
        )

    def caches(self) -> tuple[Cache, ...]:
        """Return the token before."""
        return _states(self.width)

    def cores(self) -> tuple[Core, ...]:
        """Return nothing."""
        return ()


@dataclass(frozen=True, slots=True)
class MatrixMemory:
    """An mLSTM (xLSTM, arXiv:2405.04517): a matrix that takes in outer products of values and keys under two gates.

    Attributes:
        width: D. heads: H. key, value: K and V.
        name: as in checkpoints.
    """

    width: int
    heads: int
    key: int
    value: int
    name: str = "mlstm_layer"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the projections to queries, keys, values, gates and the output, and a norm of all heads."""
        q, v = self.heads * self.key, self.heads * self.value
        sizes = {"q": q, "k": q, "v": v, "ogate_preact": v}
        by_head, back = split("out", "heads", self.heads), split("in", "heads", self.heads)
        return (
            *(linear(name, self.width, size, "recurrent", split=by_head) for name, size in sizes.items()),
            *(
                linear(f"{gate}gate_preact", self.width, self.heads, "recurrent", bias=True, split=by_head)
                for gate in "if"
            ),
            vector("multihead_norm", v, "norm", split=by_head),
            linear("out_proj", v, self.width, "recurrent", split=back),
        )

    def caches(self) -> tuple[Cache, ...]:
        """Return the matrix [H, K, V], the sum of keys [H, K] and the largest exponents [H]."""
        sizes = (self.heads * self.key * self.value, self.heads * self.key, self.heads)
        return _states(*sizes, split=split("out", "heads", self.heads))

    def cores(self) -> tuple[Core, ...]:
        """Return the recurrence of the matrix and of the sum of keys."""
        row = 2 * self.heads * (self.key + self.value)
        return (Scan(self.heads * self.key * (self.value + 1), 3, row),)


@dataclass(frozen=True, slots=True)
class Convolutions:
    """Short convolutions over what other blocks make (Inkling).

    Attributes:
        parts: name, as in checkpoints, and channels of each. taps: T.
        moving: further ones, whose taps also follow from the input: an elementwise sum, whose products aren't counted.
        width, heads: D, and how many groups of channels share what is added to the taps of those.
    """

    parts: tuple[tuple[str, int], ...]
    taps: int
    moving: tuple[tuple[str, int], ...] = ()
    width: int = 0
    heads: int = 0

    def leaves(self) -> tuple[Leaf, ...]:
        """Return their taps, and projections [D, H T] to taps."""
        still = tuple(_taps(f"{name}.conv1d", self.taps, size, bias=False) for name, size in self.parts)
        moving = tuple(
            leaf
            for name, size in self.moving
            for leaf in (
                _taps(f"{name}.static_weight", self.taps, size, bias=False),
                linear(f"{name}.weight_proj", self.width, self.heads * self.taps, "recurrent"),
            )
        )
        return still + moving

    def caches(self) -> tuple[Cache, ...]:
        """Return the last T rows of each."""
        return _states(*(self.taps * size for _, size in (*self.parts, *self.moving)))

    def cores(self) -> tuple[Core, ...]:
        """Return those with fixed taps."""
        return tuple(Convolve(size, self.taps) for _, size in self.parts)


@dataclass(frozen=True, slots=True)
class ConvolvedAttention:
    """Attention whose queries and keys pass two short convolutions, and half of whose values are a token late (Zaya).

    The first convolution mixes time in each channel, the second time and the channels of each head.

    Attributes:
        attention: heads, their width, mask and positions. taps: of the first. grouped_taps: of the second.
        name: as in checkpoints.
    """

    attention: Attention
    taps: int
    grouped_taps: int
    name: str = "self_attn"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the projections, values in two halves, both convolutions, and a temperature per key head."""
        of = self.attention
        queries, keys, out = of.heads * of.head, of.kv_heads * of.head, of.leaves()[3]
        heads, bias = of.heads + of.kv_heads, of.q_bias
        sizes = {"q_proj": queries, "k_proj": keys, "v_proj_current": keys // 2, "v_proj_delayed": keys // 2}
        return (
            *(linear(f"qkv_proj.{name}", of.width, size, "attention", bias=bias) for name, size in sizes.items()),
            Leaf("qkv_proj.conv_qk_depthwise", self.taps, queries + keys, "attention", bias=True),
            linear(
                "qkv_proj.conv_qk_grouped", self.grouped_taps * of.head, of.head, "attention", work="conv", bias=True,
                copies=heads,
            ),
            vector("qk_norm.temp", of.kv_heads, "attention"),
            out,
        )  # fmt: skip

    def caches(self) -> tuple[Cache, ...]:
        """Return keys and values, the rows that the next convolutions need, and the late half of a value."""
        of = self.attention
        channels, rows = (of.heads + of.kv_heads) * of.head, self.taps + self.grouped_taps - 2
        return (*of.caches(), *_states(rows * channels, of.kv_heads * of.head // 2))

    def cores(self) -> tuple[Core, ...]:
        """Return the scores, and the first convolution; the second's work stands with its matrices."""
        of = self.attention
        return (*of.cores(), Convolve((of.heads + of.kv_heads) * of.head, self.taps))


@dataclass(frozen=True, slots=True)
class Together:
    """Blocks of one sublayer, behind one norm: side by side on one input (Falcon-H1), or one feeding the next.

    Attributes:
        parts: the blocks.
    """

    parts: tuple[Block, ...]

    def leaves(self) -> tuple[Leaf, ...]:
        """Return what all store, each below its block's name."""
        return tuple(
            replace(leaf, name=checkpoint_name(block, leaf)) for block in self.parts for leaf in block.leaves()
        )

    def caches(self) -> tuple[Cache, ...]:
        """Return what all remember."""
        return tuple(cache for block in self.parts for cache in block.caches())

    def cores(self) -> tuple[Core, ...]:
        """Return the weightless work of all."""
        return tuple(core for block in self.parts for core in block.cores())


@dataclass(frozen=True, slots=True)
class Adapter:
    """A low-rank addition to one matrix of a shared block, another one at every layer that runs it.

    Attributes:
        name: as in checkpoints. n_in, n_out: of the matrix. rank: R. part: where it is listed.
    """

    name: str
    n_in: int
    n_out: int
    rank: int
    part: Literal["attention", "mlp"]


@dataclass(frozen=True, slots=True)
class SharedTransformer:
    """A transformer block that several layers run and one stores (Zamba, arXiv:2405.16712), and their own projection.

    It reads rows and embeddings side by side, 2 D wide; what it makes is projected and added to a mixer's input.

    Attributes:
        width: D. attention: on rows of 2 D, `name` as in checkpoints. feed: the feed-forward block.
        block: number of the shared block. uses: layers that run it. use: which of them this is.
        adapters: kept with the block, one for each use.
        name: as in checkpoints.
    """

    width: int
    attention: Attention
    feed: FeedForward
    block: int
    uses: int
    use: int
    adapters: tuple[Adapter, ...] = ()
    name: str = "shared_transf"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return norms, attention with an output of D, feed-forward block and adapters, all tied; and [D, D]."""
        heads = tuple(
            replace(leaf, n_out=self.width) if leaf.name == "o_proj" else leaf for leaf in self.attention.leaves()
        )
        inner = (
            *Norm(2 * self.width, name="input_layernorm").leaves(),
            *(replace(leaf, name=f"self_attn.{leaf.name}") for leaf in heads),
            *Norm(self.width, name="pre_ff_layernorm").leaves(),
            *(replace(leaf, name=f"feed_forward.{leaf.name}") for leaf in self.feed.leaves()),
            *(leaf for adapter in self.adapters for leaf in self._adapted(adapter)),
        )
        return (
            *(shared for leaf in inner for shared in self._tied(leaf)),
            linear("linear", self.width, self.width, "other"),
        )

    def _adapted(self, adapter: Adapter) -> tuple[Leaf, ...]:
        """Return the two matrices of an adapter, one copy for each use, of which a row visits its layer's."""
        down = linear(f"{adapter.name}.0", adapter.n_in, adapter.rank, adapter.part, copies=self.uses, active=1)
        return down, replace(down, name=f"{adapter.name}.1", n_in=adapter.rank, n_out=adapter.n_out)

    def _tied(self, leaf: Leaf) -> tuple[Leaf, ...]:
        """Return a leaf as stored once; its vector is a leaf of its own, since ties hold for matrices."""
        tie = f"{self.name}.{self.block}.{leaf.name}"
        one = replace(leaf, bias=False, tie=tie)
        added = vector(f"{leaf.name}.bias", leaf.copies * leaf.n_out, leaf.part, tie=f"{tie}.bias")
        return (one, added) if leaf.bias else (one,)

    def caches(self) -> tuple[Cache, ...]:
        """Return keys and values; each layer that runs the block has its own."""
        return self.attention.caches()

    def cores(self) -> tuple[Core, ...]:
        """Return the scores and the mix of values."""
        return self.attention.cores()
