"""The mixers of recurrent and hybrid models, layer by layer, as rows of `planner.families.hybrids` name them."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any, Literal

from planner.blocks import Attention, Block, FeedForward, Norm
from planner.errors import PlanError
from planner.fields import REQUIRED, Config
from planner.recurrent import (
    Adapter,
    ChannelMix,
    DeltaRule,
    GatedLinearRecurrence,
    LightningAttention,
    Mamba,
    Mamba2,
    MatrixMemory,
    SharedTransformer,
    ShortConvolution,
    TimeMix,
    Together,
)
from planner.topology import Anatomy, Maker, Request, Says, says
from planner.topology.attention import rope
from planner.topology.decoder import decoder
from planner.topology.kinds import Kinds


def nothing(_c: Config, _request: Request, layers: int) -> list[Block | None]:
    """No layer has such a block."""
    return [None] * layers


def side_by_side(*makers: Maker) -> Maker:
    """Return the maker of several blocks on one input (Falcon-H1)."""

    def blocks(c: Config, request: Request, layers: int) -> list[Block | None]:
        made = zip(*(maker(c, request, layers) for maker in makers), strict=True)
        return [Together(tuple(part for part in parts if part)) for parts in made]

    return blocks


def expanded(c: Config) -> int:
    """Return D times `mamba_expand`."""
    return c.scaled("mamba_expand", 2, c.count("hidden_size"))


def expanded_or_given(c: Config) -> int:
    """Mamba: `intermediate_size` where there is one, else D times the factor."""
    wide = int(c.count("intermediate_size", None) or expanded(c))
    c.ignore("mamba_expand", "hidden_act")
    return wide


def _divided(c: Config, key: str, whole: int, what: str) -> int:
    """Return a number of parts that divides a width."""
    parts: int = c.count(key)
    if whole % parts:
        raise PlanError(
            f"found {parts}, which does not divide {what}, {whole}", where=c.where(key), fix="allowed are its divisors"
        )
    return parts


def _automatic(c: Config, key: str, otherwise: int) -> int:
    """Return a count, or `otherwise` where the config says "auto"."""
    return otherwise if c.raw(key, "auto") == "auto" else int(c.count(key))


def mamba(
    *,
    inner: Callable[[Config], int] = expanded,
    inner_norms: bool = False,
    heads: str | None = None,
    name: str = "mixer",
) -> Maker:
    """Return the maker of Mamba mixers.

    Args:
        inner: width between the projections.
        inner_norms: step sizes and state projections have norms with stored scales.
        heads: key of the number of heads with projections of their own (Zamba).
        name: as in checkpoints.
    """

    def blocks(c: Config, _request: Request, layers: int) -> list[Block | None]:
        width, wide = c.count("hidden_size"), inner(c)
        block = Mamba(
            width, wide, c.count("mamba_d_state"), c.count("mamba_d_conv"),
            _automatic(c, "mamba_dt_rank", ceil(width / 16)),
            _divided(c, heads, wide, "the inner width") if heads else 1,
            c.flag("mamba_conv_bias", True), c.flag("mamba_proj_bias", False), inner_norms, name,
        )  # fmt: skip
        return [block] * layers

    return blocks


def mamba2(
    *,
    free_heads: bool = False,
    conv_bias: Says = "mamba_conv_bias",
    bias: Says = "mamba_proj_bias",
    out_bias: Says | None = None,
    norm: Says = True,
    name: str = "mamba",
) -> Maker:
    """Return the maker of Mamba-2 mixers.

    Args:
        free_heads: heads times their width are the inner width, whatever `mamba_expand` says (Nemotron-H).
        conv_bias, bias, out_bias: whether the convolution and the projections in and out (None: as in) add a vector.
        norm: whether the gated output is normed.
        name: as in checkpoints.
    """

    def blocks(c: Config, _request: Request, layers: int) -> list[Block | None]:
        width, into = c.count("hidden_size"), says(c, bias)
        sizes = c.count("mamba_n_groups"), c.count("mamba_d_state"), c.count("mamba_d_conv")
        vectors = says(c, conv_bias), into, into if out_bias is None else says(c, out_bias), says(c, norm)
        if free_heads:
            heads, head = c.count("mamba_n_heads"), c.count("mamba_d_head")
            c.ignore("mamba_expand")
        else:
            wide = c.count("mamba_d_ssm", None) or expanded(c)
            c.ignore("mamba_expand")
            heads = _divided(c, "mamba_n_heads", wide, "the inner width")
            head = _automatic(c, "mamba_d_head", wide // heads)
            if heads * head != wide:
                raise PlanError(
                    f"found {head}, but {heads} heads share an inner width of {wide}",
                    where=c.where("mamba_d_head"),
                    fix=f"set it to {wide // heads}",
                )
        _divided(c, "mamba_n_groups", heads, "the number of heads")
        return [Mamba2(width, heads, head, *sizes, *vectors, name)] * layers

    return blocks


def gated_delta(projections: Literal["qkvz", "qkv", "separate"], *, norm: str = "o_norm", out: str = "o_proj") -> Maker:
    """Return the maker of gated delta nets; OLMo's widths follow from D and the number of heads where missing.

    Args:
        projections: how they are stored, see `DeltaRule`.
        norm, out: names as in checkpoints.
    """

    def blocks(c: Config, _request: Request, layers: int) -> list[Block | None]:
        width = c.count("hidden_size")
        key_heads = c.count("linear_num_key_heads", None) or c.count("num_attention_heads")
        value_heads = c.count("linear_num_value_heads", None) or c.count("num_attention_heads")
        key = c.count("linear_key_head_dim", None) or int(0.75 * width / key_heads)
        value = c.count("linear_value_head_dim", None) or 2 * key
        if value_heads % key_heads:
            raise PlanError(
                f"found {value_heads}, which {key_heads} key heads don't divide",
                where=c.where("linear_num_value_heads"),
                fix="allowed are multiples of linear_num_key_heads",
            )
        block = DeltaRule(
            width,
            key_heads,
            value_heads,
            key,
            value,
            c.count("linear_conv_kernel_dim"),
            projections,
            norm=norm,
            out=out,
        )
        return [block] * layers

    return blocks


def channel_delta(size: Callable[[Config], tuple[int, int, int]], *, low_rank: bool) -> Maker:
    """Return the maker of Kimi Delta Attention.

    Args:
        size: number of heads, their width, and taps.
        low_rank: decay and gate are projected over one head's width.
    """

    def blocks(c: Config, _request: Request, layers: int) -> list[Block | None]:
        heads, head, taps = size(c)
        block = DeltaRule(
            c.count("hidden_size"), heads, heads, head, head, taps, channel_decay=True, rank=head if low_rank else None,
            scope="forget_gate.", name="self_attn",
        )  # fmt: skip
        return [block] * layers

    return blocks


def _within(c: Config, key: str, name: str, otherwise: str) -> int:
    """Return a count of an object inside the config, or that of another key."""
    given = c.table(key)
    if given.get(name) is None:
        return int(c.count(otherwise))
    c.ignore(otherwise)
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(
            f"found {value!r}, a whole number of at least 1 is needed", where=f"{c.where(key)}.{name}",
            fix="correct the file",
        )  # fmt: skip
    return value


def kimi_sizes(c: Config) -> tuple[int, int, int]:
    """Kimi Linear: heads, width and taps, from `linear_attn_config` or keys of their own."""
    key = "linear_attn_config"
    return (
        _within(c, key, "num_heads", "linear_num_heads"),
        _within(c, key, "head_dim", "linear_head_dim"),
        _within(c, key, "short_conv_kernel_size", "linear_conv_kernel_dim"),
    )


def ling_sizes(c: Config) -> tuple[int, int, int]:
    """Ling: heads, width and taps have keys of their own, or else are the attention's heads, `head_dim` and so on."""
    pairs = (
        ("linear_num_heads", "num_attention_heads"),
        ("linear_head_dim", "head_dim"),
        ("linear_conv_kernel_dim", "short_conv_kernel_size"),
    )
    heads, head, taps = (c.count(own, None) or c.count(otherwise) for own, otherwise in pairs)
    c.ignore("short_conv_kernel_size")
    return heads, head, taps


def lightning(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """Make lightning attention (MiniMax)."""
    width, heads = c.count("hidden_size"), c.count("num_attention_heads")
    head = c.count("head_dim", None) or width // heads
    return [LightningAttention(width, heads, head, c.count("block_size"))] * layers


def griffin(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """Make Griffin's recurrent blocks (RecurrentGemma)."""
    width = c.count("hidden_size")
    inner = c.count("lru_width", None) or width
    heads = _divided(c, "num_attention_heads", inner, "lru_width")
    return [GatedLinearRecurrence(width, inner, heads, c.count("conv1d_width"))] * layers


def short_convolution(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """Make gated short convolutions (LFM2)."""
    return [ShortConvolution(c.count("hidden_size"), c.count("conv_L_cache"), c.flag("conv_bias", False))] * layers


def time_mix(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """Make RWKV-4's mixers; a norm of the embeddings stands in the first layer."""
    width = c.count("hidden_size")
    block = TimeMix(width, c.count("attention_hidden_size", width))
    normed = Norm(width, "layer", bias=True, epsilon=c.number("layer_norm_epsilon", 1e-5), name="pre_ln")
    return [Together((normed, block)), *[block] * (layers - 1)]


def channel_mix(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """Make RWKV-4's feed-forward blocks."""
    width = c.count("hidden_size")
    return [ChannelMix(width, c.count("intermediate_size", 4 * width))] * layers


def matrix_memory(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """Make mLSTM mixers (xLSTM)."""
    width, heads = c.count("hidden_size"), c.count("num_attention_heads")
    if (table := c.count("embedding_dim", width)) != width:
        raise PlanError(
            f"found {table}, but rows are {width} wide", where=c.where("embedding_dim"), fix="set it to hidden_size"
        )
    if c.flag("use_bias", False):
        raise PlanError(
            "found true; only xLSTM without biases is modelled", where=c.where("use_bias"), fix="set it to false"
        )
    key, value = (c.scaled(f"{of}_dim_factor", REQUIRED, width) for of in ("qk", "v"))
    if key % heads or value % heads:
        raise PlanError(
            f"found {heads}, which does not divide the widths {key} and {value} of keys and values",
            where=c.where("num_attention_heads"),
            fix="allowed are the divisors of both",
        )
    return [MatrixMemory(width, heads, key // heads, value // heads)] * layers


def _rounded(value: float, multiple: int) -> int:
    """Return a width rounded up to a multiple, but for a fraction of 1."""
    return int((value + multiple - 1) // multiple) * multiple


def rounded_feed_forward(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """Make xLSTM's feed-forward blocks, whose width is a rounded multiple of D."""
    width = c.count("hidden_size")
    hidden = _rounded(c.widened("ffn_proj_factor", REQUIRED, width), c.count("ffn_round_up_to_multiple_of"))
    return [FeedForward(width, hidden, name="ffn")] * layers


def adjusted_feed_forward(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """Make LFM2's feed-forward blocks: two thirds of the given width, times a factor, rounded up."""
    hidden = c.count("block_ff_dim", None) or c.count("intermediate_size")
    c.ignore("intermediate_size")
    multiple = c.count("block_multiple_of")
    if c.flag("block_auto_adjust_ff_dim", True):
        hidden = 2 * hidden // 3
        given = c.number("block_ffn_dim_multiplier", None)
        hidden = hidden if given is None else _rounded(c.scaled("block_ffn_dim_multiplier", None, hidden), multiple)
    return [FeedForward(c.count("hidden_size"), hidden, name="feed_forward")] * layers


def shared_transformers(
    kinds: Kinds,
    mixers: Maker,
    *,
    attention_width: bool,
    blocks_key: str | None = None,
    feed_bias: Says = False,
    adapted: bool = False,
    name: str = "shared_transf",
) -> Maker:
    """Return the maker of a mixer in every layer, and before it, in "hybrid" layers, a transformer block stored once.

    Args:
        kinds: of every layer.
        mixers: maker of the mixers.
        attention_width: the config says how wide rows and heads of the attention are (Zamba), else 2 D and 2 D / H.
        blocks_key: key of the number of shared blocks, that take turns; None: one.
        feed_bias: whether the feed-forward block adds vectors.
        adapted: each use of a block has low-rank adapters of its own (Zamba 2).
        name: as in checkpoints.
    """

    def blocks(c: Config, request: Request, layers: int) -> list[Block | None]:
        hybrid = [i for i, kind in enumerate(kinds(c, layers)) if kind == "hybrid"]
        width, bias = c.count("hidden_size"), says(c, feed_bias)
        hidden = c.count("intermediate_size", None) or 4 * width
        count = c.count(blocks_key) if blocks_key else 1
        attention = _wide_attention(c, width, attention_width=attention_width)
        feed = FeedForward(width, hidden, True, bias, bias, c.text("hidden_act", "gelu"))
        extras = _adapters(c, width, hidden, attention) if adapted else ()
        made = mixers(c, request, layers)
        for use, layer in enumerate(hybrid):
            uses = len(range(use % count, len(hybrid), count))
            shared = SharedTransformer(width, attention, feed, use % count, uses, use, extras, name)
            made[layer] = Together(tuple(part for part in (shared, made[layer]) if part))
        return made

    return blocks


def _wide_attention(c: Config, width: int, *, attention_width: bool) -> Attention:
    heads = c.count("num_attention_heads")
    rows = c.count("attention_hidden_size", 2 * width) if attention_width else 2 * width
    head = c.count("head_dim", None) if attention_width else None
    c.ignore("head_dim")
    head = head or max(2 * width // heads, 1)
    if rows != 2 * width:
        raise PlanError(
            f"found {rows}, but rows and embeddings side by side are {2 * width} wide",
            where=c.where("attention_hidden_size"),
            fix="remove it",
        )
    return Attention(rows, heads, c.count("num_key_value_heads", heads), head, scale=(head / 2) ** -0.5,
                     rope=rope(c, head) if c.flag("use_mem_rope", False) else None)  # fmt: skip


def _adapters(c: Config, width: int, hidden: int, attention: Attention) -> tuple[Adapter, ...]:
    """Return Zamba 2's adapters: of the gate and up projection, and of queries, keys and values where switched on."""
    rank, rows = c.count("adapter_rank"), attention.width
    feed = Adapter("feed_forward.gate_up_proj_adapter_list", width, 2 * hidden, rank, "mlp")
    if not c.flag("use_shared_attention_adapter", False):
        return (feed,)
    names = (f"self_attn.linear_{of}_adapter_list" for of in "qkv")
    return (*(Adapter(name, rows, rows, rank, "attention") for name in names), feed)


def decoder_of_kinds(
    c: Config, request: Request, *, kinds: Callable[[Config, int | None], list[str]], **traits: Any
) -> Anatomy:
    """Return Nemotron-H's decoder: as many layers as there are kinds, and a head that is never tied."""
    if request.mtp and c.count("num_nextn_predict_layers", 0, low=0):
        raise PlanError(
            "this family's multi-token-prediction layers aren't modelled", where="--mtp", fix="leave it out"
        )
    layers = c.count("num_hidden_layers", None)
    values = {"num_hidden_layers": len(kinds(c, layers)), "tie_word_embeddings": False}
    return decoder(c.nested(None, c.family, c.names, c.defaults, values), request, **traits)


def untied(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Return a decoder whose head is a matrix of its own, whatever the config says (xLSTM, Kimi Linear)."""
    return decoder(c.nested(None, c.family, c.names, c.defaults, {"tie_word_embeddings": False}), request, **traits)
