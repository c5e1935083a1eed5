"""Encoder-decoder models: two stacks, joined by cross-attention (the original Transformer, T5, BART, NLLB, Whisper)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Literal, NamedTuple

from planner.blocks import (
    Attention,
    AudioFrontEnd,
    Block,
    FeedForward,
    Head,
    Leaf,
    MixtureOfExperts,
    Norm,
    Sinusoids,
    Table,
    Weights,
    linear,
    vector,
)
from planner.errors import PlanError
from planner.fields import Config
from planner.front_ends import gated_convolutions, listed, sound_convolutions
from planner.masks import Mask
from planner.model import Layer, Stack, Sublayer, runs
from planner.side_rows import AheadStream, Extended, OwnTokens, RelativeScores, Summaries
from planner.topology import Anatomy, Request, Says, says
from planner.topology.encoder import around, blocks_of_keys

Side = Literal["encoder", "decoder"]


class Act(NamedTuple):
    """A feed-forward block's activation: its name, and whether a gate multiplies it."""

    name: str
    gated: bool = False


def plain(c: Config) -> Act:
    """Read `activation_function`."""
    return Act(c.text("activation_function", "gelu"))


def t5_act(c: Config) -> Act:
    """Read `feed_forward_proj`: "relu" or "gated-gelu"; T5's gated gelu is the tanh form."""
    given = c.text("feed_forward_proj", "relu")
    gated = given.startswith("gated-")
    name = given.removeprefix("gated-")
    return Act("gelu_new" if gated and name == "gelu" else name, gated)


def piano_act(c: Config) -> Act:
    """Read `dense_act_fn`, and from `feed_forward_proj` only whether it is gated."""
    return Act(c.text("dense_act_fn", "relu"), c.text("feed_forward_proj", "relu").startswith("gated"))


class Words(NamedTuple):
    """The tables of tokens.

    Attributes:
        source, target: rows of the encoder's and of the decoder's.
        shared: they are one.
        tied: the head is the decoder's table.
    """

    source: int
    target: int
    shared: bool = True
    tied: bool = True


def one_table(c: Config) -> Words:
    """One table for both stacks."""
    rows = c.count("vocab_size")
    return Words(rows, rows, tied=c.flag("tie_word_embeddings", True))


def marian_words(c: Config) -> Words:
    """Marian: one table, or two where `share_encoder_decoder_embeddings` is false."""
    rows = c.count("vocab_size")
    target = c.count("decoder_vocab_size", rows)
    shared = c.flag("share_encoder_decoder_embeddings", True)
    if shared and target != rows:
        raise PlanError(
            f"found {target}, but one table of {rows} rows serves both stacks",
            where=c.where("decoder_vocab_size"),
            fix="set share_encoder_decoder_embeddings to false, or remove it",
        )
    return Words(rows, target, shared, c.flag("tie_word_embeddings", True))


def two_languages(c: Config) -> Words:
    """FSMT: a table for each language; or one, that is the head too."""
    source, target, tied = c.count("src_vocab_size"), c.count("vocab_size"), c.flag("tie_word_embeddings", False)
    if tied and source != target:
        raise PlanError(
            f"found {target}, but one table of {source} rows serves both languages",
            where=c.where("vocab_size"),
            fix="set tie_word_embeddings to false",
        )
    return Words(source, target, tied, tied)


def free_head(c: Config) -> Words:
    """Pop2Piano: the head is never the table, whatever the config says."""
    c.ignore("tie_word_embeddings")
    rows = c.count("vocab_size")
    return Words(rows, rows, tied=False)


def after_padding(c: Config) -> int:
    """FSMT: positions start after the padding token's number."""
    return int(c.count("pad_token_id", 1, low=0)) + 1


def whisper_convolutions(c: Config, width: int) -> tuple[Block, ...]:
    """Whisper's two convolutions over mel bands."""
    return (AudioFrontEnd(c.count("num_mel_bins"), width),)


def gated_mel(c: Config, width: int) -> tuple[Block, ...]:
    """Speech2Text's convolutions over mel bands."""
    kernels = listed(c, "conv_kernel_sizes", c.count("num_conv_layers"))
    features = c.count("input_feat_per_channel") * c.count("input_channels")
    return (gated_convolutions(features, c.count("conv_channels"), width, kernels),)


def composers(c: Config, width: int) -> tuple[Block, ...]:
    """Pop2Piano: a spectrogram's rows, and one row before them that names a composer."""
    return (Table("mel_conditioner.embedding", c.count("composer_vocab_size"), width, index="type"),)


Relayer = Callable[[Config, list[Layer]], list[Layer]]
"""Config and plain layers: the family's layers."""


def as_they_are(_c: Config, layers: list[Layer]) -> list[Layer]:
    """Layers of the usual kind."""
    return layers


def no_tables(_c: Config, _side: Side) -> tuple[Block, ...]:
    """No further tables."""
    return ()


def one_row(_c: Config) -> int:
    """The head runs once for each token."""
    return 1


def first_block(layer: Layer, change: Callable[[Attention], Block]) -> Layer:
    """Return a layer with another self-attention."""
    first, *rest = layer.sublayers
    assert isinstance(first.block, Attention)
    return replace(layer, sublayers=(replace(first, block=change(first.block)), *rest))


def led_layers(c: Config, layers: list[Layer]) -> list[Layer]:
    """LED: windows and a second set of projections, as Longformer's."""
    return [
        first_block(layer, lambda a, m=mask: replace(a, mask=m, global_projections=True))  # type: ignore[misc]
        for layer, mask in zip(layers, around(c, len(layers)), strict=True)
    ]


def big_bird_layers(c: Config, layers: list[Layer]) -> list[Layer]:
    """BigBird: blocks of keys, some of them random."""
    return [
        first_block(layer, lambda a, m=mask: replace(a, mask=m))  # type: ignore[misc]
        for layer, mask in zip(layers, blocks_of_keys(c, len(layers)), strict=True)
    ]


def long_t5_layers(c: Config, layers: list[Layer]) -> list[Layer]:
    """LongT5: `local_radius` tokens on either side; "transient-global": and sums of blocks of tokens."""
    local = Mask(causal=False, window=c.count("local_radius") + 1)
    kind = c.text("encoder_attention_type", "local", allowed=("local", "transient-global"))
    if kind == "local":
        c.ignore("global_block_size")
        return [first_block(layer, lambda a: replace(a, mask=local)) for layer in layers]
    size = c.count("global_block_size")

    def summarized(a: Attention) -> Block:
        stored = [vector("global_input_layer_norm", a.width, "norm")]
        if a.relative_buckets:
            stored.append(Leaf("global_relative_attention_bias", a.relative_buckets, a.heads, "attention"))
        parts: tuple[Literal["scores", "projections"], ...] = ("scores", "projections")
        cores = tuple(Summaries(a.heads, a.head, a.width, size, part) for part in parts)
        return Extended(replace(a, mask=replace(local, relayed=True)), stored=tuple(stored), computed=cores)

    return [first_block(layer, summarized) for layer in layers]


def pegasus_x_layers(c: Config, layers: list[Layer]) -> list[Layer]:
    """Pegasus-X: blocks of tokens, shifted by half a block in every other layer, and tokens of the model's own."""
    size, own = c.count("block_size"), c.count("num_global_tokens")
    staggered = c.flag("stagger_local_blocks", True)

    def layer(index: int) -> Layer:
        mask = Mask(causal=False, chunk=size, first_chunk=size // 2 if staggered and index % 2 else 0)
        first, last = layers[index].sublayers
        attention, norm = first.block, first.before
        assert isinstance(attention, Attention)
        assert norm
        norms = (vector("global_self_attn_layer_norm", norm.width, "norm", bias=norm.bias),)
        both = Extended(
            replace(attention, mask=mask), further=own, computed=(OwnTokens(attention.heads, attention.head, own),)
        )
        return Layer(
            (replace(first, block=both), Sublayer(Extended(last.block, further=own, stored=norms), last.before))
        )

    return [layer(index) for index in range(len(layers))]


def own_tokens(c: Config, side: Side) -> tuple[Block, ...]:
    """Pegasus-X: rows that the model adds to the encoder's tokens."""
    own = c.count("num_global_tokens")
    return (Table("embed_global", own, c.count("hidden_size"), index="position"),) if side == "encoder" else ()


def streams_ahead(c: Config, layers: list[Layer]) -> list[Layer]:
    """ProphetNet: beside the tokens run `ngram` streams of as many rows, each of which predicts one token further."""
    ngram, buckets = c.count("ngram"), c.count("num_buckets")

    def layer(plain_layer: Layer) -> Layer:
        own, cross, mlp = plain_layer.sublayers
        self_attention, cross_attention = own.block, cross.block
        assert isinstance(self_attention, Attention)
        assert isinstance(cross_attention, Attention)
        heads, head = self_attention.heads, self_attention.head
        bias = linear(
            "relative_pos_embeddings", self_attention.width, buckets * heads, "attention", bias=True, rate=1 + ngram
        )
        ahead = tuple(AheadStream(heads, head, step) for step in range(ngram))
        return Layer(
            (
                replace(own, block=Extended(self_attention, 1 + ngram, stored=(bias,), computed=ahead)),
                replace(cross, block=Extended(cross_attention, 1 + ngram, computed=cross_attention.cores() * ngram)),
                replace(mlp, block=Extended(mlp.block, 1 + ngram)),
            )
        )

    return [layer(each) for each in layers]


def speech_t5_layers(c: Config, layers: list[Layer]) -> list[Layer]:  # noqa: ARG001
    """SpeechT5: queries are also scored against a key for each distance, from a table that all layers share."""

    def scored(a: Attention) -> Block:
        return Extended(a, computed=(RelativeScores(a.heads, a.head, looked_up=True),))

    return [first_block(layer, scored) for layer in layers]


def speech_t5_front(c: Config, width: int) -> tuple[Block, ...]:
    """SpeechT5: convolutions over the sound itself, a norm, and the table of distances."""
    rows = 2 * c.count("encoder_max_relative_position")
    head = width // c.heads("encoder_attention_heads", width)
    return (
        *sound_convolutions(c, width),
        Weights((vector("wrapped_encoder.layer_norm", width, "norm", bias=True),)),
        Weights((Leaf("wrapped_encoder.embed_positions.pe_k", rows, head, "attention"),)),
    )


def stream_table(c: Config, side: Side) -> tuple[Block, ...]:
    """ProphetNet: a row for each stream."""
    rows = c.count("ngram")
    return (Table("ngram_embeddings", rows, c.count("hidden_size"), index="type"),) if side == "decoder" else ()


def stream_rows(c: Config) -> int:
    """ProphetNet: the head runs on the streams."""
    return int(c.count("ngram"))


def no_experts(c: Config, layers: int, side: str) -> list[bool]:  # noqa: ARG001
    """No layer holds experts."""
    return [False] * layers


def switch_layers(c: Config, layers: int, side: str) -> list[bool]:
    """Switch: `num_sparse_..._layers` of them, evenly spread, the last of each group."""
    sparse = c.count(f"num_sparse_{side}_layers", low=0)
    step = layers // sparse if sparse else 0
    return [bool(step) and (i % step == 1 or step == 1) for i in range(layers)]


def every_nth_layer(c: Config, layers: int, side: str) -> list[bool]:
    """NLLB: every n-th layer."""
    step = c.count(f"{side}_sparse_step", low=0)
    return [bool(step) and (i + 1) % step == 0 for i in range(layers)]


class Experts(NamedTuple):
    """The mixtures of experts.

    Attributes:
        held: which layers hold some.
        top_k: how many a row visits.
        capacity: whether tokens can be dropped.
    """

    held: Callable[[Config, int, str], list[bool]] = no_experts
    top_k: int = 1
    capacity: bool = False


class Own(NamedTuple):
    """What a family has beyond plain layers.

    Attributes:
        front_end: what the encoder has in place of a table of tokens (speech).
        encoder_layers, decoder_layers: change the layers (windows, tokens of the model's own, streams that look ahead).
        further_tables: further tables of a stack.
        head_rows: rows of the head for each token (ProphetNet).
        notes: what the user should know.
    """

    front_end: Callable[[Config, int], tuple[Block, ...]] | None = None
    encoder_layers: Relayer = as_they_are
    decoder_layers: Relayer = as_they_are
    further_tables: Callable[[Config, Side], tuple[Block, ...]] = no_tables
    head_rows: Callable[[Config], int] = one_row
    notes: tuple[str, ...] = ()


NO_EXPERTS, PLAIN = Experts(), Own()


def encoder_decoder(
    c: Config,
    request: Request,
    *,
    norm: Literal["rms", "layer"] = "layer",
    post_norm: bool = False,
    attention_bias: Says = True,
    mlp_bias: bool = True,
    key_bias: bool = True,
    act: Callable[[Config], Act] = plain,
    positions: Literal["relative", "learned", "waves", "sinusoidal"] = "learned",
    two_lengths: bool = False,
    source_fixed: bool = False,
    offset: int | Callable[[Config], int] = 0,
    table_norm: bool = False,
    stack_norm: bool = True,
    unscaled_scores: bool = False,
    logits_bias: bool = False,
    head_width: str | None = None,
    engine_may_tie: bool = False,
    scaled_head: bool = False,
    halved_waves: bool = False,
    relative_in_every_layer: bool = False,
    words: Callable[[Config], Words] = one_table,
    experts: Experts = NO_EXPERTS,
    own: Own = PLAIN,
) -> Anatomy:
    """Return the two stacks.

    Args:
        c: the config.
        request: engine and extras.
        norm: kind of norm; layer norms have biases.
        post_norm: norms after the sum instead of before the block.
        attention_bias, mlp_bias, key_bias: whether projections add a vector; Whisper's keys don't.
        act: the activation.
        positions: T5's relative biases, learned tables, stored sinusoids that grow when needed, or sinusoids that are
            computed.
        two_lengths: the encoder's and the decoder's positions have keys of their own.
        source_fixed: the encoder always has all of its positions (Whisper).
        offset: rows of the learned tables that no token uses (BART: 2), or the first token's place in the sinusoids.
        table_norm: norm of the sum of embeddings (BART).
        stack_norm: norm after the last layer of each stack.
        unscaled_scores: scores aren't divided by sqrt(K) (T5).
        logits_bias: BART's stored vector that is no parameter.
        head_width: key of a head width that is not D / H (T5's d_kv).
        engine_may_tie: the head shares the table under transformers whatever the config says (T5).
        scaled_head: hidden rows are divided by sqrt(D) before a head that the checkpoint ties (T5).
        halved_waves: sinusoids hold the sines, then the cosines (NLLB).
        relative_in_every_layer: each layer has relative biases of its own (UMT5), not the first alone.
        words: the tables of tokens.
        experts: the mixtures of experts.
        own: what the family has beyond plain layers.
    """
    width = c.count("hidden_size")
    tokens = words(c)
    tied = tokens.tied or (engine_may_tie and request.does("ties_t5_heads"))
    epsilon = c.number("layer_norm_epsilon", 1e-6) if norm == "rms" else 1e-5
    the_norm = Norm(width, norm, norm == "layer", epsilon)
    activation = act(c)
    bias = says(c, attention_bias)
    unused = offset(c) if callable(offset) else offset
    buckets = c.count("relative_attention_num_buckets") if positions == "relative" else 0
    distance = int(c.number("relative_attention_max_distance", 128)) if positions == "relative" else 0
    scale = sqrt(width) if c.flag("scale_embedding", False) else 1.0
    for alias in ("num_hidden_layers", "num_attention_heads"):
        c.raw(alias, None)  # the encoder's under another name; refused where they differ

    def sublayer(block: Block) -> Sublayer:
        return Sublayer(block, join=the_norm) if post_norm else Sublayer(block, before=the_norm)

    def body(side: Side) -> list[Layer]:
        layers = (
            c.count("encoder_layers") if side == "encoder" else c.count("decoder_layers", c.count("encoder_layers"))
        )
        heads = c.count(f"{side}_attention_heads") if head_width else c.heads(f"{side}_attention_heads", width)
        head = c.count(head_width) if head_width else width // heads
        sparse = experts.held(c, layers, side)
        hidden = c.count(f"{side}_ffn_dim")
        dense = FeedForward(width, hidden, activation.gated, mlp_bias, mlp_bias, activation.name)
        mixture = _mixture(c, width, hidden, activation, mlp_bias, experts) if any(sparse) else dense

        def attention(*, cross: bool = False, biased: bool = False) -> Attention:
            return Attention(
                width, heads, heads, head, Mask(causal=side == "decoder" and not cross),
                bias, bias and key_bias, bias, bias, cross=cross, relative_buckets=buckets if biased else 0,
                scale=1.0 if unscaled_scores else None, name="encoder_attn" if cross else "self_attn",
                relative_distance=0 if cross else distance,
            )  # fmt: skip

        def layer(index: int) -> Layer:
            first = sublayer(attention(biased=index == 0 or relative_in_every_layer))
            cross = (sublayer(attention(cross=True)),) if side == "decoder" else ()
            return Layer((first, *cross, sublayer(mixture if sparse[index] else dense)))

        return [layer(i) for i in range(layers)]

    apart = tokens.shared and not tied and not own.front_end and request.does("unties_all_tables")

    def front(side: Side) -> tuple[Block, ...]:
        table = "shared" if tokens.shared and not apart else side
        size = tokens.source if side == "encoder" else tokens.target
        heard = side == "encoder" and own.front_end
        found: list[Block] = [*(heard(c, width) if heard else (Table("embed_tokens", size, width, table, scale),))]
        if positions in {"learned", "waves"}:
            found.append(Table("embed_positions", c.count(rows[side]) + unused, width, index="position", offset=unused))
        if positions == "sinusoidal":
            found.append(Sinusoids(width, unused, halved_waves))
        found += own.further_tables(c, side)
        if apart and side == "encoder":
            found.append(Table("shared", size, width))
        return (*found, the_norm) if table_norm else tuple(found)

    rows: dict[Side, str] = {"encoder": "max_source_positions", "decoder": "max_target_positions"}
    if not two_lengths:
        rows = {"encoder": "max_position_embeddings", "decoder": "max_position_embeddings"}
    longest = None if positions == "relative" else c.count(rows["decoder"])
    source = None if positions == "relative" else c.count(rows["encoder"])
    back = (the_norm,) if stack_norm else ()
    scaled = scaled_head and tokens.tied
    head = Head(width, tokens.target, tie=("shared" if tokens.shared else "decoder") if tied else None,
                logits_bias=logits_bias, scale=width**-0.5 if scaled else 1.0)  # fmt: skip
    rate = own.head_rows(c)
    top: tuple[Block, ...] = (Extended(head, rate) if rate > 1 else head,) if request.head else ()
    encoder = Stack("encoder", front("encoder"), runs(own.encoder_layers(c, body("encoder"))), back)
    decoder = Stack("decoder", front("decoder"), runs(own.decoder_layers(c, body("decoder"))), (*back, *top))
    return Anatomy(
        "encoder-decoder", (encoder, decoder), longest, positions == "learned", source, source_fixed, tuple(own.notes)
    )


def _mixture(c: Config, width: int, hidden: int, act: Act, bias: bool, experts: Experts) -> MixtureOfExperts:
    count, top_k = c.count("num_experts"), experts.top_k
    if top_k > count:
        raise PlanError(
            f"found {count}, at least {top_k} are needed", where=c.where("num_experts"), fix="correct the file"
        )
    return MixtureOfExperts(
        width, hidden, count, top_k, act.gated, bias, act.name, router_bias=c.flag("router_bias", False),
        scoring="softmax_top_k" if top_k > 1 else "softmax", capacity=experts.capacity,
    )  # fmt: skip
