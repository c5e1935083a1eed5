"""What single families of encoders have in place of plain attention, and what comes with it."""

from __future__ import annotations

from planner.blocks import Block, Head, Leaf, Norm, Table, Weights, linear, vector
from planner.encoder_blocks import (
    Beside,
    BlockwiseAttend,
    BottleneckAttention,
    Convolve,
    Fourier,
    GroupedAttention,
    GroupedFeedForward,
    LandmarkAttend,
    SpanConvolvedAttention,
    StackedFeedForward,
)
from planner.errors import PlanError
from planner.fields import Config
from planner.topology import Maker, Request
from planner.topology.attention import grouped
from planner.topology.encoder import (
    Front,
    feeding,
    head_shape,
    masked_lm,
    self_attention,
    windows_around,
)
from planner.topology.encoder_parts import plain_attention


def entity_tables(c: Config) -> list[Block]:
    """LUKE: tables of entities, that a text without any leaves alone."""
    width, narrow = c.count("hidden_size"), c.count("entity_emb_size")
    norm = Norm(width, "layer", bias=True, epsilon=c.number("layer_norm_eps", 1e-12))
    dense = [Weights((Leaf("entity_embedding_dense", narrow, width, "embedding"),))] if narrow != width else []
    return [
        Table("entity_embeddings", c.count("entity_vocab_size"), narrow, "entity_embeddings"), *dense,
        Table("entity_position_embeddings", c.count("max_position_embeddings"), width, index="position"),
        Table("entity_type_embeddings", c.count("type_vocab_size"), width, index="type"), norm,
    ]  # fmt: skip


def entity_attention(c: Config, request: Request, layers: int) -> list[Block | None]:
    """LUKE: beside the plain ones, queries of words for entities, of entities for words, and for each other."""
    plain = self_attention()(c, request, layers)
    if not c.flag("use_entity_aware_attention", True):
        return plain
    width = c.count("hidden_size")
    heads, head = head_shape(c, width)
    more = tuple(Leaf(f"{kind}_query", width, heads * head, "attention", bias=True) for kind in ("w2e", "e2w", "e2e"))
    return [Beside(block, more) for block in plain if block]


def entity_head(c: Config) -> tuple[Block, ...]:
    """LUKE: a head of words with its own matrix, and one of entities."""
    width, narrow, entities = c.count("hidden_size"), c.count("entity_emb_size"), c.count("entity_vocab_size")
    tied = c.flag("tie_word_embeddings", True)
    return (
        *masked_lm(tied="never", second_bias=not tied)(c),
        Weights((
            Leaf("entity_predictions.transform.dense", width, narrow, "head", bias=True),
            vector("entity_predictions.transform.norm", narrow, "head", bias=True),
            Leaf("entity_predictions.decoder", narrow, entities, "head", bias=True,
                 tie="entity_embeddings" if tied else None),
        )),
    )  # fmt: skip


def wordless_entities(_c: Config) -> tuple[str, ...]:
    """LUKE: what is counted."""
    return ("a text without entities: their tables, queries and head are stored and not run",)


def convolved(*, kernel: str, landmarks: bool = False) -> Maker:
    """Return the maker of attention with convolved values.

    Args:
        kernel: key of its size; missing or null: none.
        landmarks: Nystromformer's `num_landmarks`, unless they are as many as tokens.
    """

    def blocks(c: Config, _request: Request, layers: int) -> list[Block | None]:
        plain, size = plain_attention(c), c.count(kernel, 0, low=0)
        few = c.count("num_landmarks") if landmarks else 0
        direct = not few or few == c.count("segment_means_seq_len")
        attend = () if direct else (LandmarkAttend(plain.heads, plain.head, few),)
        conv = (Leaf("conv", size, 1, "attention", copies=plain.heads),) if size else ()
        more = (Convolve(plain.heads * plain.head, size),) if size else ()
        return [Beside(plain, conv, attend, more)] * layers

    return blocks


def span_convolved(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """ConvBERT."""
    width, heads = c.count("hidden_size"), max(1, c.count("num_attention_heads") // c.count("head_ratio"))
    if width % heads:
        raise PlanError(
            f"leaves {heads} heads, which do not divide the width {width}",
            where=c.where("num_attention_heads"),
            fix="correct the file",
        )
    block = SpanConvolvedAttention(width, heads, width // heads // 2, c.count("conv_kernel_size"))
    return [block] * layers


def grouped_feeding(*, up: str, down: str) -> Maker:
    """Return the maker of feed-forward blocks whose matrices have groups; keys of their numbers."""

    def blocks(c: Config, request: Request, layers: int) -> list[Block | None]:
        width, hidden, groups = c.count("hidden_size"), c.count("intermediate_size"), (c.count(up), c.count(down))
        _divides(c, up, groups[0], width, hidden)
        _divides(c, down, groups[1], width, hidden)
        if groups == (1, 1):
            return feeding()(c, request, layers)
        return [GroupedFeedForward(width, hidden, groups, c.text("hidden_act", "gelu"))] * layers

    return blocks


def grouped_attention(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """SqueezeBERT."""
    keys = ("q_groups", "k_groups", "v_groups", "post_attention_groups")
    plain, groups = plain_attention(c), [c.count(key) for key in keys]
    for key, count in zip(keys, groups, strict=True):
        _divides(c, key, count, plain.width)
    return [GroupedAttention(plain, (groups[0], groups[1], groups[2], groups[3]))] * layers


def _divides(c: Config, key: str, groups: int, *widths: int) -> None:
    """Refuse groups that don't divide a width."""
    for width in widths:
        if width % groups:
            raise PlanError(
                f"found {groups}, which does not divide the width {width}", where=c.where(key), fix="correct the file"
            )


def fourier(_c: Config, _request: Request, layers: int) -> list[Block | None]:
    """FNet."""
    return [Fourier()] * layers


def uncounted_fourier(_c: Config) -> tuple[str, ...]:
    """FNet: what isn't counted."""
    return ("Fourier transforms are no matrix products and not counted",)


def trigram_front(c: Config) -> Front:
    """MobileBERT: words' rows, or three neighbours', brought to the layers' width before positions are added."""
    narrow, width, longest = c.count("embedding_size"), c.count("hidden_size"), c.count("max_position_embeddings")
    size = narrow * (3 if c.flag("trigram_input") else 1)
    blocks = (
        Table("word_embeddings", c.count("vocab_size"), narrow, "word_embeddings"),
        Weights((linear("embedding_transformation", size, width, "embedding", bias=True),)),
        Table("position_embeddings", longest, width, index="position"),
        Table("token_type_embeddings", c.count("type_vocab_size"), width, index="type"),
        Norm(width, "layer", bias=True, epsilon=c.number("layer_norm_eps", 1e-12)),
    )
    return Front(blocks, longest, learned=True)


def bottleneck_attention(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """MobileBERT."""
    width, inner, narrow = c.count("hidden_size"), _inner(c), c.flag("use_bottleneck")
    inside = c.flag("use_bottleneck_attention")
    block = BottleneckAttention(
        width, inner, c.heads("num_attention_heads", inner), narrow, c.flag("key_query_shared_bottleneck"), inside
    )
    return [block] * layers


def bottleneck_feeding(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """MobileBERT."""
    block = StackedFeedForward(
        c.count("hidden_size"), _inner(c), c.count("intermediate_size"), c.count("num_feedforward_networks"),
        c.flag("use_bottleneck"), c.text("hidden_act", "relu"),
    )  # fmt: skip
    return [block] * layers


def activated(c: Config) -> bool:
    """MobileBERT: whether the first token's row passes a dense layer."""
    return c.raw("classifier_activation", True) is not False


def _inner(c: Config) -> int:
    """Return the width inside MobileBERT's bottleneck."""
    inner: int = c.count("intra_bottleneck_size" if c.flag("use_bottleneck") else "hidden_size")
    return inner


def widened_head(c: Config) -> tuple[Block, ...]:
    """MobileBERT: the table of words, widened by a matrix of the head's own."""
    width, narrow, vocabulary = c.count("hidden_size"), c.count("embedding_size"), c.count("vocab_size")
    tied = c.flag("tie_word_embeddings", True)
    leaves = [
        linear("transform.dense", width, width, "head", bias=True),
        vector("transform.norm", width, "head", bias=True),
        linear("decoder", narrow, vocabulary, "head", bias=True, work="head", tie="word_embeddings" if tied else None),
        *((linear("dense", width - narrow, vocabulary, "head", work="head"),) if width > narrow else ()),
        *(() if tied else (vector("unused_bias", vocabulary, "head"),)),
    ]
    return (Weights(tuple(leaves)),)


def blockwise(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """MRA: `block_per_row` pairs of blocks of 32 tokens for each that positions have room for."""
    plain, across = plain_attention(c), c.count("max_position_embeddings") // 32
    chosen = min(across * c.count("block_per_row"), across**2)
    means = c.text("approx_mode", "full", allowed=("full", "sparse")) == "full"
    return [Beside(plain, instead=(BlockwiseAttend(plain.heads, plain.head, chosen, means),))] * layers


def stored_types(c: Config) -> list[Block]:
    """MRA: types of all positions, stored as whole numbers."""
    rows = c.count("max_position_embeddings")
    return [Weights((vector("token_type_ids", rows, "embedding", buffer=True, own_dtype="int64"),))]


def shadowed(maker: Maker, scalars: int) -> Maker:
    """Return the maker of blocks that store whole numbers and scales beside their weights (I-BERT).

    Args:
        maker: of the blocks. scalars: ranges of a block's activations.
    """

    def blocks(c: Config, request: Request, layers: int) -> list[Block | None]:
        made = [block for block in maker(c, request, layers) if block]
        return [Beside(block, (_integers(block.leaves(), scalars),)) for block in made]

    return blocks


def shadowed_tables(c: Config) -> list[Block]:
    """I-BERT: whole numbers and a scale of each table, and ranges of four activations and a norm."""
    rows = c.count("vocab_size") + c.count("max_position_embeddings") + c.count("type_vocab_size")
    size = rows * c.count("hidden_size") + 3 + 4 * 3 + 1
    return [Weights((vector("integers", size, "other", buffer=True),))]


def _integers(leaves: tuple[Leaf, ...], scalars: int) -> Leaf:
    """Return a copy of each matrix with a scale and a whole bias per output."""
    return vector("integers", sum(leaf.matrix + 2 * leaf.n_out for leaf in leaves) + scalars, "other", buffer=True)


def low_rank_front(c: Config) -> Front:
    """NeoMME: a narrow table of words, one of values, and a way in for patches of images."""
    width, rank, words = c.count("hidden_size"), c.count("embedding_rank"), c.count("vocab_size")
    values = c.count("num_key_value_heads") * head_shape(c, width)[1]
    patch = 3 * c.count("patch_size") ** 2
    blocks = (
        Table("word_embeddings", words, rank, "word_embeddings"),
        Weights((linear("embedding_projection", rank, width, "embedding", tie="embedding_projection"),)),
        Table("value_embeddings", words, values),
        Weights((
            vector("patch_embeddings.norm", patch, "conv", bias=True),
            Leaf("patch_embeddings.up_proj", patch, 2 * width, "conv"),
            Leaf("patch_embeddings.down_proj", 2 * width, width, "conv", bias=True),
        )),
    )  # fmt: skip
    return Front(blocks, c.count("max_position_embeddings"), learned=False)


def without_images(_c: Config) -> tuple[str, ...]:
    """NeoMME: what is counted."""
    return ("a text without images: the way in for their patches is stored and not run",)


def low_rank_unembedding(c: Config) -> tuple[Block, ...]:
    """NeoMME: the tables' two matrices, the other way round."""
    width, rank, words = c.count("hidden_size"), c.count("embedding_rank"), c.count("vocab_size")
    tied = c.flag("tie_word_embeddings", True)
    return (
        Weights((
            linear("unembedding_projection", width, rank, "head", tie="embedding_projection" if tied else None),
        )),
        Head(rank, words, tie="word_embeddings" if tied else None, every_row=True),
    )  # fmt: skip


def exclusive_attention(c: Config, request: Request, layers: int) -> list[Block | None]:
    """NeoMME: gated attention, a scale per head for what it leaves out, and two for a mix with the first rows."""
    made = self_attention(
        masks=windows_around(mixed_windows), bias="attention_bias", kv_heads=grouped, rotary=True, gate="element"
    )(c, request, layers)
    more = (
        vector("exclusive_self_attention.alpha", c.count("num_attention_heads"), "attention"),
        vector("lambdas", 2, "other"),
    )
    return [Beside(block, more) for block in made if block]


def mixed_windows(c: Config, layers: int) -> list[int | None]:
    """NeoMME: every sixth layer and the last see all; the others have short and long windows in turn, or their own."""
    kinds = c.per_layer("layer_types", layers, ("full_attention", "sliding_attention"))
    kinds = kinds or [
        "sliding_attention" if (i + 1) % 6 and i < layers - 1 else "full_attention" for i in range(layers)
    ]
    short, given = c.count("sliding_window", 256), c.raw("per_layer_config", None)
    if given is None:
        order = [i for i, kind in enumerate(kinds) if kind == "sliding_attention"]
        return [None if i not in order else 1024 if order.index(i) % 2 else short for i in range(layers)]
    own = {int(i): dict(each) for i, each in given.items()} if isinstance(given, dict) else dict(enumerate(given))
    if any(set(each) - {"sliding_window"} for each in own.values()):
        raise PlanError(
            "holds other keys than sliding_window", where=c.where("per_layer_config"), fix="only windows are modelled"
        )
    return [
        own.get(i, {}).get("sliding_window", short) if kind == "sliding_attention" else None
        for i, kind in enumerate(kinds)
    ]
