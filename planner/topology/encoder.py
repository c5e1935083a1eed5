"""Encoder-only models: one stack of layers whose tokens see each other both ways (BERT, ALBERT, DeBERTa, ESM ...).

A row names what stands before the layers (`Front`), what they mix tokens and feed rows with (`Maker`), the norms, and
the head; each has a maker of its own here, whose keyword arguments are the traits that families differ in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from planner.blocks import Attention, Block, FeedForward, Head, Norm, Pooler, Table, Weights, linear, vector
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.model import Layer, Run, Stack, Sublayer, runs
from planner.topology import Anatomy, Maker, Request, Says, says
from planner.topology.attention import Windows, rope

Masks = Callable[[Config, int], list[Mask]]
"""Config, number of layers: the mask of every layer."""

Norms = Callable[[Config, int], Norm]
"""Config, width: a norm."""

MaybeNorms = Callable[[Config, int], Norm | None]
"""Config, width: a norm, or none."""

HeadMaker = Callable[[Config], tuple[Block, ...]]
"""Config: the language-model head."""

Further = Callable[[Config], list[Block]]
"""Config: further blocks."""

CLASSIFIER = "ForSequenceClassification"
"""Ending of classes that rank or classify whole texts: rerankers."""

LABELS = 2
"""Numbers that a classifier gives where its config doesn't say."""

Wiring = Literal["post", "pre", "none"]
"""Norms after each sum, or before each block; or blocks bring their own."""


@dataclass(frozen=True, slots=True)
class Front:
    """What stands before the layers.

    Attributes:
        blocks: tables, their norm and projection.
        positions: longest sequence, None: no limit known.
        learned: it is a table's rows.
    """

    blocks: tuple[Block, ...]
    positions: int | None
    learned: bool


def see_all(c: Config, layers: int) -> list[Mask]:  # noqa: ARG001
    """Every token sees every token."""
    return [Mask(causal=False)] * layers


def around(c: Config, layers: int) -> list[Mask]:
    """Longformer: `attention_window` keys around each token, half on either side, one number or one for each layer."""
    given = c.raw("attention_window")
    sizes = given if isinstance(given, list) else [given] * layers
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 2 or size % 2:
            raise PlanError(
                f"found {size!r}, allowed are even numbers from 2",
                where=c.where("attention_window"),
                fix="correct the file",
            )
    if len(sizes) != layers:
        raise PlanError(
            f"found {len(sizes)} entries for {layers} layers",
            where=c.where("attention_window"),
            fix="give one for each layer",
        )
    return [Mask(causal=False, window=size // 2 + 1) for size in sizes]


def blocks_of_keys(c: Config, layers: int) -> list[Mask]:
    """BigBird: global, window and random blocks of keys; or all."""
    size, drawn = c.count("block_size"), c.count("num_random_blocks", low=0)
    if c.text("attention_type", allowed=("block_sparse", "original_full")) == "original_full":
        return see_all(c, layers)
    return [Mask(causal=False, block=size, random_blocks=drawn)] * layers


def windows_around(windows: Windows) -> Masks:
    """Return masks with a window of so many keys on either side, as the reference's two-way windows have it."""

    def masks(c: Config, layers: int) -> list[Mask]:
        return [Mask(causal=False, window=size + 1 if size else None) for size in windows(c, layers)]

    return masks


FrontMaker = Callable[[Config], Front]
"""Config: what stands before the layers."""


def layer_norm(*, bias: Says = True, epsilon: str = "layer_norm_eps") -> Norms:
    """Return the maker of layer norms; `bias` says whether one adds a vector, `epsilon` is a key."""
    return lambda c, width: Norm(width, "layer", says(c, bias), c.number(epsilon, 1e-12))


PLAIN_NORM = layer_norm()


def rms_norm(c: Config, width: int) -> Norm:
    """Return a norm without mean and vector."""
    return Norm(width, "rms", epsilon=c.number("rms_norm_eps", 1e-6))


def self_attention(
    *,
    masks: Masks = see_all,
    bias: Says = True,
    out_bias: Says | None = None,
    rotary: Callable[[Config], bool] | bool = False,
    kv_heads: Callable[[Config, int], int] | None = None,
    qk_norm: Norms | None = None,
    global_projections: bool = False,
    gate: Literal["head", "element"] | None = None,
) -> Maker:
    """Return the maker of attention both ways.

    Args:
        masks: of every layer.
        bias: whether queries, keys and values add a vector. out_bias: whether the output does; None: as they do.
        rotary: positions turn queries and keys.
        kv_heads: number of key-value heads, read off the config and the number of query heads; None: as many.
        qk_norm: norm of all queries, and of all keys, together.
        global_projections: Longformer's second set of projections.
        gate: the output is scaled by a projection of the input.
    """

    def blocks(c: Config, _request: Request, layers: int) -> list[Block | None]:
        width, add = c.count("hidden_size"), says(c, bias)
        heads, head = head_shape(c, width)
        turned = rotary(c) if callable(rotary) else rotary
        one = Attention(
            width, heads, kv_heads(c, heads) if kv_heads else heads, head, Mask(causal=False), add, add, add,
            add if out_bias is None else says(c, out_bias), global_projections=global_projections,
            qk_norm=qk_norm(c, heads * head) if qk_norm else None, rope=rope(c, head) if turned else None, gate=gate,
        )  # fmt: skip
        return [replace(one, mask=mask) for mask in masks(c, layers)]

    return blocks


def head_shape(c: Config, width: int) -> tuple[int, int]:
    """Return the number of heads, and the width of one: `head_dim`, or an even share of the layers' width."""
    head = c.count("head_dim", None)
    heads = c.count("num_attention_heads") if head else c.heads("num_attention_heads", width)
    return heads, head or width // heads


def feeding(
    *, gated: bool = False, up_bias: Says = True, down_bias: Says = True, activation: str = "hidden_act"
) -> Maker:
    """Return the maker of dense blocks of `intermediate_size`, of three matrices where gated.

    Args:
        gated: a third matrix scales the hidden row.
        up_bias, down_bias: whether the first two and the last add a vector.
        activation: key of its name.
    """

    def blocks(c: Config, _request: Request, layers: int) -> list[Block | None]:
        up, down = says(c, up_bias), says(c, down_bias)
        hidden, act = c.count("intermediate_size"), c.text(activation, "gelu")
        return [FeedForward(c.count("hidden_size"), hidden, gated, up, down, act)] * layers

    return blocks


def tables(
    *,
    words: str = "word_embeddings",
    width: str = "hidden_size",
    positions: Callable[[Config], bool] | bool = True,
    offset: int | None = 0,
    spare: int = 0,
    types: bool = True,
    further: Further | None = None,
    norm: MaybeNorms | None = PLAIN_NORM,
    projection: Literal["after_norm", "before_norm"] = "after_norm",
    projected: Literal["where_differing", "always"] = "where_differing",
    bounded: bool = False,
) -> FrontMaker:
    """Return the maker of tables whose rows are added, normed and brought to the layers' width.

    Args:
        words: name of the table of words.
        width: key of the tables' width; where missing or null, the layers' (ALBERT's tables are narrower).
        positions: a learned table of positions.
        offset: its rows before that of the first token; None: those up to the padding token's (RoBERTa).
        spare: its rows beyond `max_position_embeddings`.
        types: a table of `type_vocab_size` rows, where that isn't 0.
        further: blocks after these.
        norm: of the sum; None: none.
        projection: where it stands; before the norm it adds no vector (DeBERTa). projected: when there is one.
        bounded: positions have an end though no table of them is learned.
    """

    def front(c: Config) -> Front:
        outer = c.count("hidden_size")
        narrow = c.count(width, outer)
        blocks: list[Block] = [Table(words, c.count("vocab_size"), narrow, "word_embeddings")]
        if positions is True:
            c.text("position_embedding_type", "absolute", allowed=("absolute",))
        elif positions is False:
            c.ignore("position_embedding_type")
        longest, learned = c.count("max_position_embeddings"), positions(c) if callable(positions) else positions
        if learned:
            unused = c.count("pad_token_id", 1, low=0) + 1 if offset is None else offset
            if longest <= unused - spare:
                raise PlanError(
                    f"found {longest}, but {unused} rows of this family's table serve no token",
                    where=c.where("max_position_embeddings"),
                    fix=f"give more than {unused}",
                )
            blocks.append(Table("position_embeddings", longest + spare, narrow, index="position", offset=unused))
            longest += spare - unused
        if kinds := c.count("type_vocab_size", 0, low=0) if types else 0:
            blocks.append(Table("token_type_embeddings", kinds, narrow, index="type"))
        blocks += further(c) if further else []
        late = projection == "after_norm"
        bridge = linear("embeddings_project", narrow, outer, "embedding", bias=late)
        between: list[Block] = [Weights((bridge,))] if narrow != outer or projected == "always" else []
        one = norm(c, narrow if late else outer) if norm else None
        normed: list[Block] = [one] if one else []
        blocks += [*normed, *between] if late else [*between, *normed]
        return Front(tuple(blocks), longest, learned or bounded)

    return front


def masked_lm(
    *,
    inner: str = "hidden_size",
    transform: bool = True,
    transform_bias: Says = True,
    norm: Norms = PLAIN_NORM,
    bias: Says = True,
    second_bias: bool = True,
    tied: Literal["if_said", "always", "never"] = "if_said",
    activation: str = "hidden_act",
) -> HeadMaker:
    """Return the maker of masked-LM heads: a dense layer, a norm, and the projection onto the vocabulary.

    Args:
        inner: key of the width in between (ALBERT's is that of the tables).
        transform: dense layer and norm are there. transform_bias: whether it adds a vector. norm: kind of norm.
        bias: whether the projection adds a vector. second_bias: which is one with another that the head holds as long
            as the tables are tied, and untied are two of them (BERT).
        tied: whether it shares the table of words: as `tie_word_embeddings` says, or whatever that says.
        activation: key of the transform's.
    """

    def blocks(c: Config) -> tuple[Block, ...]:
        width, vocabulary, add = c.count("hidden_size"), c.count("vocab_size"), says(c, bias)
        narrow = c.count(inner, width) if transform else width
        said = c.flag("tie_word_embeddings", True)
        tie = "word_embeddings" if tied == "always" or (said and tied == "if_said") else None
        act = c.text(activation, "gelu")
        head = Head(
            width, vocabulary, add, tie, norm(c, narrow) if transform else None, act, every_row=True,
            transform_bias=says(c, transform_bias),
        )  # fmt: skip
        loose = Weights((vector("lm_head.unused_bias", vocabulary, "head"),))
        return (head, loose) if add and second_bias and not tie else (head,)

    return blocks


PLAIN_TABLES, PLAIN_ATTENTION, PLAIN_FEEDING, PLAIN_HEAD = tables(), self_attention(), feeding(), masked_lm()
"""BERT's."""


def encoder(
    c: Config,
    request: Request,
    *,
    front: FrontMaker = PLAIN_TABLES,
    mixers: Maker = PLAIN_ATTENTION,
    feeds: Maker = PLAIN_FEEDING,
    norm: Norms = PLAIN_NORM,
    wiring: Wiring | Callable[[Config], Wiring] = "post",
    first_norm: bool = True,
    final_norm: MaybeNorms | None = None,
    arrange: Callable[[Config, list[Layer]], tuple[Run, ...]] | None = None,
    between: Further | None = None,
    head: HeadMaker = PLAIN_HEAD,
    pooler: Literal["bare", "always", "never"] | Callable[[Config], bool] = "bare",
    notes: Callable[[Config], tuple[str, ...]] | None = None,
) -> Anatomy:
    """Return the one stack of an encoder.

    Args:
        c: the config.
        request: engine and extras.
        front: maker of what stands before the layers.
        mixers: maker of what mixes tokens, layer by layer.
        feeds: maker of the feed-forward blocks.
        norm: maker of the layers' norms.
        wiring: they stand after the sum (BERT), or before each block; a fixed answer or read off the config.
        first_norm: the first layer's mixer has one before it (ModernBERT's has none).
        final_norm: maker of one more after the last layer; None: none.
        arrange: which layers share weights (ALBERT); None: none.
        between: further blocks that run once (DeBERTa's convolution).
        head: maker of the language-model head.
        pooler: a dense layer on the first token stands in the bare model only, in all classes, or in none; or, read off
            the config, whether the bare model has one.
        notes: what the user should know.
    """
    for key in ("is_decoder", "add_cross_attention"):
        if c.flag(key, False):
            raise PlanError(
                "found true; this family is modelled as an encoder only", where=c.where(key), fix="set it to false"
            )
    width, layers = c.count("hidden_size"), c.count("num_hidden_layers")
    before, wired = front(c), wiring(c) if callable(wiring) else wiring
    one = norm(c, width)
    mixed, fed = mixers(c, request, layers), feeds(c, request, layers)
    body = [
        Layer((
            *([_wired(mix, wired, one if first_norm or index else None)] if mix else []),
            *([_wired(feed, wired, one)] if feed else []),
        ))
        for index, (mix, feed) in enumerate(zip(mixed, fed, strict=True))
    ]  # fmt: skip
    last = final_norm(c, width) if final_norm else None
    if request.architecture.endswith(CLASSIFIER):
        return _one_stack(c, before, body, (*([last] if last else []), *classifier(c, width)), arrange, between, notes)
    bare = pooler(c) if callable(pooler) else pooler != "never"
    pooled = bare and (not request.head or pooler == "always")
    back: tuple[Block, ...] = (
        *([last] if last else []), *([Pooler(width)] if pooled else []),
        *(head(c) if request.head else ()),
    )  # fmt: skip
    return _one_stack(c, before, body, back, arrange, between, notes)


def _one_stack(
    c: Config,
    before: Front,
    body: list[Layer],
    back: tuple[Block, ...],
    arrange: Callable[[Config, list[Layer]], tuple[Run, ...]] | None,
    between: Further | None,
    notes: Callable[[Config], tuple[str, ...]] | None,
) -> Anatomy:
    """Return an encoder of these parts."""
    further = tuple(between(c)) if between else ()
    stack = Stack("encoder", (*before.blocks, *further), arrange(c, body) if arrange else runs(body), back)
    return Anatomy("encoder", (stack,), before.positions, before.learned, notes=notes(c) if notes else ())


def classifier(c: Config, width: int) -> tuple[Block, ...]:
    """Return what classifies a text: a dense layer on one row, and a matrix to a number for each label.

    BERT pools and projects, RoBERTa's head has both matrices; in transformers 5.24 all families of this topology have as many
    parameters, but those that `planner.families.encoders` excepts.
    """
    c.ignore("tie_word_embeddings", "classifier_bias", "decoder_bias")
    labels = len(c.table("id2label")) or c.count("num_labels", LABELS)
    return Pooler(width), Weights((linear("classifier", width, labels, "other", bias=True, feeds="sequence"),))


def _wired(block: Block, wiring: Wiring, norm: Norm | None) -> Sublayer:
    """Return a block and its norm."""
    if wiring == "none":
        return Sublayer(block)
    return Sublayer(block, before=norm) if wiring == "pre" else Sublayer(block, join=norm)
