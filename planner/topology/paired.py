"""Encoder-decoder models whose stacks are described apart, each by a config or keys of its own (T5Gemma, Dia ...)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import sqrt
from typing import Any, Literal, NamedTuple

from planner.blocks import (
    Attend,
    Attention,
    Block,
    Cache,
    FeedForward,
    Head,
    Norm,
    Sinusoids,
    Table,
    Weights,
    linear,
    vector,
)
from planner.errors import PlanError
from planner.fields import Config
from planner.front_ends import conformer_subsampling, mimi, moonshine, moonshine_frames, sound_convolutions
from planner.masks import Mask
from planner.model import Layer, Stack, Sublayer, runs
from planner.side_rows import Extended, MemoryKeys, RelativeScores
from planner.topology import Anatomy, Maker, Request, Says
from planner.topology.attention import attention, grouped
from planner.topology.feed_forward import feed_forward


class Half(NamedTuple):
    """One stack before it is joined with the other.

    Attributes:
        c: its config. width: D. norm: of its layers. vocabulary: rows of its table of tokens, 0: it has none.
        front, layers, back: as in a stack, with neither table of tokens nor head.
        positions: longest sequence. learned: a table's rows, that can't be exceeded. scaled: looked-up rows by sqrt(D).
    """

    c: Config
    width: int
    norm: Norm
    vocabulary: int
    layers: list[Layer]
    front: tuple[Block, ...] = ()
    back: tuple[Block, ...] = ()
    positions: int | None = None
    learned: bool = False
    scaled: bool = False


def half(
    c: Config,
    request: Request,
    *,
    mixers: Maker | None = None,
    feeds: Maker | None = None,
    norm: Literal["rms", "layer"] = "rms",
    norm_bias: bool = False,
    unit_offset: bool = False,
    wiring: Literal["pre", "sandwich"] = "pre",
    positions: Literal["rope", "learned", "sinusoidal"] = "rope",
    table_norm: bool = False,
    scaled: bool = False,
    vocabulary: Callable[[Config], int] | None = None,
    front: Callable[[Config, int], tuple[Block, ...]] | None = None,
) -> Half:
    """Return a stack of causal layers; the arguments are `decoder`'s.

    Args:
        c: its config.
        request: engine and extras.
        mixers, feeds, norm, norm_bias, unit_offset, wiring: as in `decoder`.
        positions: rotary, a learned table, or sinusoids that are computed.
        table_norm: norm of the sum of embeddings.
        scaled: looked-up rows are multiplied by sqrt(D).
        vocabulary: rows of the table of tokens, None: `vocab_size`.
        front: what it has in place of a table of tokens.
    """
    width, layers = c.count("hidden_size"), c.count("num_hidden_layers")
    a_norm = Norm(width, norm, norm_bias, c.number("rms_norm_eps", 1e-6) if norm == "rms" else 1e-5, unit_offset)
    after = a_norm if wiring == "sandwich" else None
    made = zip((mixers or attention())(c, request, layers), (feeds or feed_forward())(c, request, layers), strict=True)
    body = [Layer(tuple(Sublayer(block, before=a_norm, after=after) for block in pair if block)) for pair in made]
    longest = c.count("max_position_embeddings", None)
    first: list[Block] = [*front(c, width)] if front else []
    if positions == "learned":
        first.append(Table("embed_positions", c.count("max_position_embeddings"), width, index="position"))
    if positions == "sinusoidal":
        first.append(Sinusoids(width))
    if table_norm:
        first.append(a_norm)
    rows = 0 if front else (vocabulary(c) if vocabulary else c.count("vocab_size"))
    return Half(
        c,
        width,
        a_norm,
        rows,
        body,
        tuple(first),
        (a_norm,),
        None if front else longest,
        positions == "learned",
        scaled,
    )


def channels(c: Config) -> int:
    """Dia: `vocab_size` rows for each channel of sound."""
    return int(c.count("vocab_size") * c.count("num_channels"))


def conformer(c: Config, request: Request) -> Half:  # noqa: ARG001
    """Return Parakeet's encoder: a feed-forward block, attention with relative positions, a convolution, a block.

    Letters: D width, F hidden width, H heads, K head width, k kernel (Conformer, arXiv:2005.08100).
    """
    width, layers, hidden = c.count("hidden_size"), c.count("num_hidden_layers"), c.count("intermediate_size")
    heads, bias = c.heads("num_attention_heads", width), c.flag("attention_bias", True)
    convolved, kernel = c.flag("convolution_bias", True), c.count("conv_kernel_size")
    act = c.text("hidden_act", "silu")
    c.ignore("num_key_value_heads", "head_dim")
    head = width // heads
    norm = Norm(width, "layer", bias=True)
    mask = Mask(causal=False)
    plain = Attention(width, heads, heads, head, mask, bias, bias, bias, bias)
    relative = (
        linear("relative_k_proj", width, width, "attention", rate=2, further=-1),
        vector("bias_u", width, "attention"),
        vector("bias_v", width, "attention"),
    )
    mixer = Extended(plain, stored=relative, computed=(RelativeScores(heads, head),))
    convolution = Weights(
        (
            linear("conv.pointwise_conv1", width, 2 * width, "conv", bias=convolved, work="conv"),
            linear("conv.depthwise_conv", kernel, width, "conv", bias=convolved, work="conv"),
            vector("conv.norm", width, "norm", bias=True),
            vector("conv.norm.running_mean", width, "norm", buffer=True),
            vector("conv.norm.running_var", width, "norm", buffer=True),
            vector("conv.norm.num_batches_tracked", 1, "norm", buffer=True),
            linear("conv.pointwise_conv2", width, width, "conv", bias=convolved, work="conv"),
        )
    )

    def feed(name: str) -> FeedForward:
        return FeedForward(width, hidden, False, bias, bias, act, name=name)

    layer = Layer(
        (
            Sublayer(feed("feed_forward1"), before=norm),
            Sublayer(mixer, before=norm),
            Sublayer(convolution, before=norm),
            Sublayer(feed("feed_forward2"), before=norm, join=norm),
        )
    )
    factor, stride = c.count("subsampling_factor"), c.count("subsampling_conv_stride")
    steps = factor.bit_length() - 1
    if factor != 2**steps or steps < 1:
        raise PlanError(
            f"found {factor}, allowed are powers of 2", where=c.where("subsampling_factor"), fix="correct the file"
        )
    front = conformer_subsampling(
        c.count("num_mel_bins"), c.count("subsampling_conv_channels"), width, c.count("subsampling_conv_kernel_size"),
        stride, steps,
    )  # fmt: skip
    return Half(c, width, norm, 0, [layer] * layers, (front,), (), c.count("max_position_embeddings", None))


def wav2vec(c: Config, request: Request, *, plain: bool = False) -> Half:  # noqa: ARG001
    """Return wav2vec 2.0's encoder: convolutions over the sound itself, then layers like BERT's, or pre-norm ones.

    Args:
        c: its config.
        request: engine and extras.
        plain: OmniASR's, whose config leaves no choice; norms stand before blocks.
    """
    width, layers, hidden = c.count("hidden_size"), c.count("num_hidden_layers"), c.count("intermediate_size")
    heads = c.heads("num_attention_heads", width)
    if not plain and c.flag("add_adapter", False):
        raise PlanError(
            "found true; the planner doesn't model the adapter that shortens the encoder's output",
            where=c.where("add_adapter"), fix="set it to false to plan the encoder without it",
        )  # fmt: skip
    stable = plain or c.flag("do_stable_layer_norm", False)
    norm = Norm(width, "layer", bias=True)
    attend = Attention(
        width, heads, heads, width // heads, Mask(causal=False), True, True, True, True, name="attention"
    )
    feed = FeedForward(width, hidden, False, True, True, c.text("hidden_act", "gelu"), name="feed_forward")
    before, after = (norm, None) if stable else (None, norm)
    layer = Layer((Sublayer(attend, before=before, join=after), Sublayer(feed, before=before, join=after)))
    body = [layer] * layers
    front = sound_convolutions(c, width, plain=plain)
    return Half(c, width, norm, 0, body, front if stable else (*front, norm), (norm,) if stable else ())


Reader = Callable[[Config, Request], Half]
"""Config of the whole model, engine and extras: one of its stacks."""


def inside(*path: str, merged: bool = False) -> Reader:
    """Return what reads a stack from an object in the config, by the row of its model_type.

    Args:
        path: keys that lead there.
        merged: an object that is given is completed with what a missing one takes, not with its own class's defaults.
    """

    def read(c: Config, request: Request) -> Half:
        from planner.families import defaults  # noqa: PLC0415
        from planner.families.encoder_decoders import PARTS  # noqa: PLC0415

        here = c
        for step in path:
            part = defaults(here.family)["parts"][step]
            given = here.values.get(step)
            named = given.get("model_type") if isinstance(given, Mapping) and not part["fixed"] else None
            kind = named or part["model_type"]
            if not isinstance(kind, str) or kind not in PARTS:
                raise PlanError(
                    f"found {kind!r}, which the planner doesn't model there; it models {part['model_type']!r}",
                    where=f"{here.source}, {here.scope}{step}.model_type",
                    fix="correct the file",
                )
            row, known = PARTS[kind], defaults(kind)
            taken = {**known["defaults"], **(part["values"] if given is None or merged else {})}
            here = here.nested(step, kind, {**known["names"], **row.names}, taken)
            here.ignore(*row.ignores)
        made: Half = row.build(here, request, **row.traits)
        return made

    return read


def codebook_rows(c: Config) -> int:
    """MusicGen: a row for each code of each book, and one more in each."""
    return int(c.count("num_codebooks") * (c.count("vocab_size") + 1))


def singing(c: Config, request: Request, *, key: str, crossed: bool) -> Anatomy:
    """Return MusicGen's decoder of codes: one head and one table for each codebook.

    Args:
        c: the config.
        request: engine and extras.
        key: of its config.
        crossed: layers hold a cross-attention, that without text nothing runs through.
    """
    made = inside(key)(c, request)
    inner = made.c
    inner.ignore("is_decoder", "add_cross_attention", "cross_attention_hidden_size", "audio_channels")
    c.ignore("text_encoder", "audio_encoder")
    if inner.flag("tie_word_embeddings", False):
        raise PlanError(
            "found true, but heads and tables differ in their rows",
            where=inner.where("tie_word_embeddings"),
            fix="set it to false",
        )

    def layer(plain: Layer) -> Layer:
        first, *rest = plain.sublayers
        idle = tuple(replace(leaf, name=f"encoder_attn.{leaf.name}", work=None) for leaf in first.block.leaves())
        return (
            replace(plain, sublayers=(first, Sublayer(Weights(idle), before=first.before), *rest)) if crossed else plain
        )

    head = Head(made.width, inner.count("num_codebooks") * inner.count("vocab_size"))
    scale = sqrt(made.width) if inner.flag("scale_embedding", False) else 1.0
    stack = Stack(
        "decoder", (Table("embed_tokens", made.vocabulary, made.width, scale=scale), *made.front),
        runs([layer(each) for each in made.layers]), (*made.back, *((head,) if request.head else ())),
    )  # fmt: skip
    notes = ("the decoder of codes alone: text encoder and audio codec are left out",)
    return Anatomy("decoder", (stack,), made.positions, made.learned, notes=notes)


def transcribing(c: Config, request: Request, *, text: str, audio: str) -> Anatomy:
    """Return a text model and the encoder of sound that stands beside it (OmniASR)."""
    from planner.topology.multimodal import _text  # noqa: PLC0415

    inner, anatomy = _text(c, request, text, "own", {}, flat=False, merged=False)
    heard = inside(audio)(c, request)
    projector = Weights((linear("multi_modal_projector", heard.width, inner.count("hidden_size"), "other", bias=True),))
    tower = Stack("audio", heard.front, runs(heard.layers), (*heard.back, projector))
    notes = (*anatomy.notes, "the encoder of sound is stored, its work isn't counted: --prompt holds its rows")
    return anatomy._replace(stacks=(*anatomy.stacks, tower), notes=notes)


def text_and_codes(c: Config) -> int:
    """Kyutai: a row for each token, for each code of each book, and one for what is missing."""
    return int(c.count("vocab_size") + c.count("num_codebooks") * c.count("codebook_vocab_size") + 1)


def codec(c: Config, request: Request) -> Half:  # noqa: ARG001
    """Return Mimi's encoder: causal layers with windows, whose outputs are scaled; all else stands around them."""
    width, hidden = c.count("hidden_size"), c.count("intermediate_size")
    heads, bias = c.heads("num_attention_heads", width), c.flag("attention_bias", False)
    head = c.count("head_dim", width // heads)
    norm = Norm(width, "layer", bias=True)
    mask = Mask(window=c.count("sliding_window", None))
    attend = Attention(width, heads, grouped(c, heads), head, mask, bias, bias, bias, bias)
    feed = FeedForward(width, hidden, False, activation=c.text("hidden_act", "gelu"))
    scales = Weights((vector("self_attn_layer_scale", width, "other"), vector("mlp_layer_scale", width, "other")))
    layer = Layer((Sublayer(attend, before=norm), Sublayer(feed, before=norm), Sublayer(scales)))
    layers = c.count("num_hidden_layers")
    encoder, decoder = mimi(c)
    idle = [
        replace(leaf, name=f"decoder.decoder_transformer.{i}.{leaf.name}", work=None)
        for i in range(layers)
        for leaf in layer.leaves
    ]
    return Half(c, width, norm, 0, [layer] * layers, (encoder,), (Weights((*decoder.leaves(), *idle)),))


def hearing(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Return Kyutai's decoder of text, which reads codes of sound, and the codec beside it."""
    made = half(c, request, vocabulary=text_and_codes, **traits)
    heard = inside("codec_config")(c, request)
    if c.flag("tie_word_embeddings", False):
        raise PlanError(
            "found true, but head and table differ in their rows",
            where=c.where("tie_word_embeddings"),
            fix="set it to false",
        )
    head = Head(made.width, c.count("vocab_size"))
    stack = Stack(
        "decoder", (Table("embed_tokens", made.vocabulary, made.width), *made.front), runs(made.layers),
        (*made.back, *((head,) if request.head else ())),
    )  # fmt: skip
    tower = Stack("audio", heard.front, runs(heard.layers), heard.back)
    notes = ("the codec is stored, its work isn't counted: a token of the prompt is one step of codes",)
    return Anatomy("decoder", (stack, tower), made.positions, made.learned, notes=notes)


def half_of(c: Config, _width: int) -> int:
    """Kyutai: the config counts gate and hidden row together."""
    return int(c.count("intermediate_size")) // 2


def gemma_sight(
    c: Config, _request: Request, source: Half
) -> tuple[tuple[Block, ...], tuple[Stack, ...], tuple[str, ...]]:
    """T5Gemma 2: an embedding that ends an image, and the tower that reads images."""
    from planner.topology.multimodal import Sense, _tower  # noqa: PLC0415
    from planner.topology.projectors import gemma3_projector, gemma3_tokens  # noqa: PLC0415

    wrapper = next(each for each in c.below if each.family == "t5gemma2_encoder")
    wrapper.ignore("tie_word_embeddings")
    sense = Sense("vision", "vision_config", "encoder.vision_tower", gemma3_projector, gemma3_tokens)
    made = _tower(wrapper, sense, source.width)
    ends = (Weights((vector("embed_tokens.eoi_embedding", source.width, "embedding"),)),)
    notes = ("the vision tower is stored, its work isn't counted: --source says how many rows the encoder reads",)
    return ends, (made[0],) if made else (), notes


def side(**traits: Any) -> Reader:
    """Return what reads a stack from the model's own keys."""
    return lambda c, request: half(c, request, **traits)


def side_names(which: str) -> dict[str, str]:
    """Return the names of a stack's keys among the model's: layers, heads and activation of the encoder or decoder."""
    return {
        "num_hidden_layers": f"{which}_layers",
        "num_attention_heads": f"{which}_attention_heads",
        "num_key_value_heads": f"{which}_key_value_heads",
        "hidden_act": f"{which}_hidden_act",
    }


def beside(names: Mapping[str, str], reader: Reader) -> Reader:
    """Return what reads a stack from the model's own keys, under other names (canonical name to the model's)."""

    def read(c: Config, request: Request) -> Half:
        own = {key: c.names.get(name, name) for key, name in names.items()}
        taken = {key: c.defaults[name] for key, name in names.items() if name in c.defaults}
        inner = c.nested(None, c.family, {**c.names, **own}, {**c.defaults, **taken})
        inner.defaulted = c.defaulted
        return reader(inner, request)

    return read


Crossing = Callable[[Half, Half, Attention], Attention]
"""Encoder, decoder, self-attention of a decoder's layer: its cross-attention."""


def same_heads(encoder: Half, decoder: Half, own: Attention) -> Attention:
    """Cross-attention with the heads of the self-attention."""
    wide = encoder.width if encoder.width != decoder.width else None
    return replace(
        own, cross=True, mask=Mask(causal=False), rope=None, memory_width=wide, name="cross_attn", whole_cache=False
    )


def own_heads(encoder: Half, decoder: Half, own: Attention) -> Attention:
    """Dia: heads, and the width that is read, have keys of their own."""
    c = decoder.c
    heads, read = c.count("cross_num_attention_heads"), c.count("cross_hidden_size")
    if read != encoder.width:
        raise PlanError(
            f"found {read}, but the encoder's rows are {encoder.width} wide",
            where=c.where("cross_hidden_size"), fix="correct the file",
        )  # fmt: skip
    groups = c.count("cross_num_key_value_heads")
    if heads % groups:
        raise PlanError(
            f"found {groups}, which does not divide the {heads} query heads",
            where=c.where("cross_num_key_value_heads"), fix="correct the file",
        )  # fmt: skip
    return replace(
        own, heads=heads, kv_heads=groups, head=c.count("cross_head_dim"), cross=True, mask=Mask(causal=False),
        rope=None, memory_width=read, name="cross_attention",
    )  # fmt: skip


def merged(own: Attention) -> Extended:
    """T5Gemma 2: one attention over the tokens and the encoder's rows, with one set of matrices."""
    cache = Cache("cross", 2 * own.kv_heads * own.head)
    cross = Attend(own.heads, own.head, own.head, Mask(causal=False), cross=True, cache=cache)
    return Extended(own, computed=(cross, MemoryKeys(own.width, own.kv_heads * own.head)), remembered=(cache,))


def paired(
    c: Config,
    request: Request,
    *,
    encoder: Reader,
    decoder: Reader,
    crossing: Crossing | None = same_heads,
    shared_table: bool = False,
    head_bias: bool = False,
    projected: Literal["never", "always", "unequal"] = "never",
    projection_bias: bool = True,
    read_positions: bool = False,
    same_width: bool = False,
    untied: bool = False,
    extra: Callable[[Config, Request, Half], tuple[tuple[Block, ...], tuple[Stack, ...], tuple[str, ...]]]
    | None = None,
) -> Anatomy:
    """Return two stacks that are described apart.

    Args:
        c: the config.
        request: engine and extras.
        encoder, decoder: what reads them.
        crossing: the cross-attention of a layer; None: it is merged with the self-attention.
        shared_table: one table of tokens serves both.
        head_bias: the head adds a vector.
        projected: whether a matrix gives the encoder's rows the decoder's width. projection_bias: and adds a vector.
        read_positions: a table of the decoder's length adds positions to the encoder's rows (Moonshine Streaming).
        same_width: both stacks must be as wide.
        untied: the head never shares the table.
        extra: further blocks in front of the encoder, further stacks, and notes.
    """
    source, target = encoder(c, request), decoder(c, request)
    if same_width and source.width != target.width:
        raise PlanError(
            f"found {target.width}, but the encoder is {source.width} wide",
            where=target.c.where("hidden_size"), fix="correct the file",
        )  # fmt: skip
    if shared_table and source.vocabulary != target.vocabulary:
        raise PlanError(
            f"found {target.vocabulary}, but one table of {source.vocabulary} rows serves both stacks",
            where=target.c.where("vocab_size"), fix="correct the file",
        )  # fmt: skip
    tied = not untied and c.flag("tie_word_embeddings", True)
    bridged = projected == "always" or (projected == "unequal" and source.width != target.width)
    reads = source._replace(width=target.width) if bridged else source

    def joined(layer: Layer) -> Layer:
        first, *rest = layer.sublayers
        own = first.block
        assert isinstance(own, Attention)
        if crossing is None:
            return replace(layer, sublayers=(replace(first, block=merged(own)), *rest))
        return replace(layer, sublayers=(first, replace(first, block=crossing(reads, target, own)), *rest))

    table = "shared" if shared_table else "decoder"
    blocks, stacks, notes = extra(c, request, source) if extra else ((), (), ())
    longest = target.c.count("max_position_embeddings") if read_positions else 0
    seen = (Table("pos_emb", longest, source.width, index="position"),) if read_positions else ()
    matrix = linear("proj", source.width, target.width, "other", bias=projection_bias, feeds="memory")
    bridge = (*seen, Weights((matrix,))) if bridged else seen
    head = Head(
        target.width,
        target.vocabulary,
        head_bias,
        table if tied else None,
        softcap=target.c.number("final_logit_softcapping", None),
    )
    first = Stack(
        "encoder", (*_tokens(source, "shared" if shared_table else "encoder"), *blocks, *source.front),
        runs([_two_way(layer) for layer in source.layers]), source.back,
    )  # fmt: skip
    second = Stack(
        "decoder", (*_tokens(target, table), *bridge, *target.front), runs([joined(layer) for layer in target.layers]),
        (*target.back, *((head,) if request.head else ())),
    )  # fmt: skip
    return Anatomy(
        "encoder-decoder",
        (first, second, *stacks),
        target.positions,
        target.learned,
        longest or source.positions,
        source_learned=read_positions or source.learned,
        notes=notes,
    )


def _tokens(side: Half, tie: str) -> tuple[Block, ...]:
    """Return the table of tokens of a stack that has one."""
    scale = sqrt(side.width) if side.scaled else 1.0
    return (Table("embed_tokens", side.vocabulary, side.width, tie, scale),) if side.vocabulary else ()


def _two_way(layer: Layer) -> Layer:
    """Return a layer whose tokens see each other both ways."""
    return replace(
        layer,
        sublayers=tuple(
            replace(each, block=replace(each.block, mask=replace(each.block.mask, causal=False)))
            if isinstance(each.block, Attention)
            else each
            for each in layer.sublayers
        ),
    )


def moonshine_front(_c: Config, width: int) -> tuple[Block, ...]:
    """Moonshine: convolutions over the sound itself."""
    return (moonshine(width),)


STREAM_WINDOWS = [[16, 4], [16, 4], [16, 0], [16, 0], [16, 4], [16, 4]]
"""What Moonshine Streaming takes where the config has no windows, for six layers."""


def moonshine_stream(c: Config, request: Request) -> Half:
    """Return Moonshine Streaming's encoder: layers that see a few positions back and fewer ahead."""
    frame = round(c.count("sample_rate") * c.number("frame_ms") / 1000)
    made = half(
        c, request, norm="layer", mixers=attention(qkv_bias="attention_bias", out_bias="attention_bias", positions="none"),
        feeds=feed_forward(gated=False, bias=True), front=lambda _c, width: (moonshine_frames(frame, width),),
    )  # fmt: skip
    windows = c.raw("sliding_windows", STREAM_WINDOWS)
    if not isinstance(windows, list) or len(windows) != len(made.layers) or not all(map(_two_counts, windows)):
        raise PlanError(
            f"found {windows!r}, a list of {len(made.layers)} pairs [back, ahead] is needed",
            where=c.where("sliding_windows"), fix="correct the file",
        )  # fmt: skip

    def layer(plain: Layer, back: int, ahead: int) -> Layer:
        first, *rest = plain.sublayers
        assert isinstance(first.block, Attention)
        mask = Mask(causal=False, window=back, ahead=ahead)
        return replace(plain, sublayers=(replace(first, block=replace(first.block, mask=mask)), *rest))

    return made._replace(layers=[layer(each, *window) for each, window in zip(made.layers, windows, strict=True)])


def _two_counts(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(type(n) is int for n in value)
        and 1 <= value[0] < 2**31
        and 0 <= value[1] < 2**31
    )


def moonshine_heads(c: Config, request: Request, layers: int, bias: Says = "attention_bias") -> list[Block | None]:
    """Moonshine: queries, keys and values may be padded to a multiple, which programs see and caches don't."""
    made = attention(qkv_bias=bias)(c, request, layers)
    step = c.count("pad_head_dim_to_multiple_of", None)

    def padded(block: Block | None) -> Block | None:
        assert isinstance(block, Attention)
        wide = -(-block.head // step) * step if step else block.head
        return replace(block, scored_head=wide if wide != block.head and request.does("pads_heads") else None)

    return [padded(block) for block in made]
