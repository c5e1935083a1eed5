"""Models that look at images through a few learned queries (Q-Former, resampler), or through cross-attention of their text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from planner.blocks import Attention, Block, FeedForward, Head, Leaf, Norm, Pooler, Table, Weights, Work, linear, vector
from planner.count import Number
from planner.engines import Engine
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.model import Layer, Run, Stack, Sublayer, runs
from planner.side_rows import Extended
from planner.topology import Anatomy, Request
from planner.topology.attention import attention
from planner.topology.decoder import decoder
from planner.topology.encoder_decoder import Act, Own, Words, encoder_decoder, free_head, t5_act
from planner.topology.feed_forward import feed_forward
from planner.topology.joined import PICTURED
from planner.topology.listeners import got_tower
from planner.topology.multimodal import COMMON, _kind, _part, multimodal, part
from planner.topology.towers import Further, Tower, and_class, two, vit, whole_numbers
from planner.vision import OnlySeeing
from planner.workload import Pass

QUERIED = "a number of tokens (the text looks at an image through cross-attention)"
"""What a config doesn't have where an image adds no token to the prompt."""


@dataclass(frozen=True, slots=True)
class Queries:
    """A few queries look at a tower's rows, at each other, or at both.

    Attributes:
        heads: H. head: K. rows, own: whether they look at the tower's rows, and at each other.
    """

    heads: int
    head: int
    rows: bool
    own: bool
    work: ClassVar[Work] = "attention"
    row_elements: ClassVar[int] = 0

    def pairs(self, p: Pass) -> Number:
        """Return the query-key pairs of one head."""
        return p.merged * (p.new * self.rows + p.merged * self.own)

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add of both products."""
        return 4 * p.batch * self.heads * self.head * self.pairs(p)

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return (
            f"2 x {p.batch:,} images x {self.heads:,} heads x {2 * self.head:,} (key + value width) x "
            f"{self.pairs(p):,} pairs of queries and what they look at"
        )


def peek(c: Config, key: str) -> Config:
    """Return a reader of a part that another reads too, so that its unread keys are the other's to tell."""
    from planner.families import FAMILIES, defaults  # noqa: PLC0415
    from planner.families.multimodal import TOWERS  # noqa: PLC0415

    spec = _part(c, key)
    kind = _kind(c, key, spec, {})
    row, known = FAMILIES.get(kind) or TOWERS.get(kind), defaults(kind)
    names = {**known["names"], **(row.names if row else {})}
    taken = {**known["defaults"], **(spec["values"] if c.values.get(key) is None else {})}
    found = c.nested(key, kind, names, taken)
    c.below.remove(found)
    return found


def _affine(name: str, size: int, part: Any = "other") -> Leaf:
    return vector(name, size, part, bias=True)


def _block(*leaves: Leaf, cores: Sequence[Queries] = ()) -> Layer:
    return Layer((Sublayer(Extended(Weights(leaves), computed=tuple(cores))),))


def blip_tower(c: Config) -> Tower:
    """BLIP-2's tower: queries, keys and values are one matrix, that adds a vector where `qkv_bias` says so."""
    biases = "qkv out mlp" if c.flag("qkv_bias", True) else "out mlp"
    return vit(
        c, epsilon="layer_norm_eps", biases=biases, class_token=True, patch_bias=True, positions=and_class, norms="post",
    )  # fmt: skip


def _qformer(c: Config) -> Config:
    """Return the reader of a Q-Former; the width that it looks at is always the tower's."""
    own = part(c, "qformer_config")
    own.ignore("encoder_hidden_size", "hidden_act", "layer_norm_eps", *COMMON)
    return own


def qformer_layers(*, text: bool) -> Any:
    """Return the maker of a Q-Former's layers (arXiv:2301.12597).

    Args:
        text: the queries are joined by the instruction's tokens, that have a feed-forward block of their own (InstructBLIP).
    """

    def layers(c: Config, _inner: Config, tower: Tower, _width: int) -> Sequence[Run]:
        own = _qformer(c)
        d, f, heads = own.count("hidden_size"), own.count("intermediate_size"), own.count("num_attention_heads")
        step, inner = own.count("cross_attention_frequency"), own.heads("num_attention_heads", own.count("hidden_size"))
        head = d // inner
        apart = text or own.flag("use_qformer_text_input", False)

        def attend(name: str, seen: int, feeds: Any) -> list[Leaf]:
            return [
                linear(f"{name}.attention.query", d, d, "other", bias=True, feeds="merged"),
                linear(f"{name}.attention.key", seen, d, "other", bias=True, feeds=feeds),
                linear(f"{name}.attention.value", seen, d, "other", bias=True, feeds=feeds),
                linear(f"{name}.output.dense", d, d, "other", bias=True, feeds="merged"),
                _affine(f"{name}.output.LayerNorm", d),
            ]

        def feed(suffix: str, work: Work | None) -> list[Leaf]:
            return [
                Leaf(f"intermediate{suffix}.dense", d, f, "other", work, bias=True, feeds="merged"),
                Leaf(f"output{suffix}.dense", f, d, "other", work, bias=True, feeds="merged"),
                _affine(f"output{suffix}.LayerNorm", d),
            ]

        def layer(index: int) -> Layer:
            looks = index % step == 0
            return _block(
                *attend("attention", d, "merged"), *(attend("crossattention", tower.width, "new") if looks else []),
                *(feed("", None) if apart else []), *feed("_query", "linear"),
                cores=[Queries(heads, head, False, True), *([Queries(heads, head, True, False)] if looks else [])],
            )  # fmt: skip

        made = runs([layer(index) for index in range(own.count("num_hidden_layers"))])
        return [replace(run, list="qformer.encoder.layer") for run in made]

    return layers


def qformer_projector(*, text: bool) -> Any:
    """Return the maker of what stands around a Q-Former's layers; `text`: tables for the instruction's tokens too."""

    def projector(c: Config, _inner: Config, _tower: Tower, width: int) -> Sequence[Block]:
        own = peek(c, "qformer_config")
        d, at = own.count("hidden_size"), "qformer.embeddings"
        tables = (
            (
                Leaf(f"{at}.word_embeddings", own.count("vocab_size"), d, "other"),
                Leaf(f"{at}.position_embeddings", own.count("max_position_embeddings"), d, "other"),
            )
            if text
            else ()
        )
        leaves = (
            Leaf("query_tokens", c.count("num_query_tokens"), d, "other"), *tables,
            _affine(f"{at}.layernorm" if text else "qformer.layernorm", d),
            linear("language_projection", d, width, "other", bias=True, feeds="merged"),
        )  # fmt: skip
        return (Weights(leaves),)

    return projector


def as_queries(key: str) -> Any:
    """Return what reads the tokens of an image where they are the learned queries that a key counts."""

    def tokens(c: Config, _inner: Config, tower: Tower) -> tuple[int, int] | None:
        return (tower.rows, int(c.count(key))) if tower.rows else None

    return tokens


def resampler_layers(c: Config, _inner: Config, _tower: Tower, width: int) -> Sequence[Run]:
    """Idefics 2's resampler: learned rows look at an image's and at each other. It is as wide as the text model."""
    own = part(c, "perceiver_config")
    own.ignore("hidden_size", "qk_layer_norms_perceiver", *COMMON)
    heads, head = own.count("resampler_n_heads"), own.count("resampler_head_dim")
    groups, latents = own.count("num_key_value_heads"), own.count("resampler_n_latents")
    if heads % groups:
        raise PlanError(
            f"found {groups}, which does not divide the {heads} query heads",
            where=own.where("num_key_value_heads"), fix="correct the file",
        )  # fmt: skip
    layer = _block(
        *(vector(f"{name}_norm", width, "other") for name in ("input_latents", "input_context")),
        vector("post_attention_layernorm", width, "other"),
        linear("self_attn.q_proj", width, heads * head, "other", feeds="merged"),
        *(linear(f"self_attn.{name}", width, groups * head, "other", further=latents) for name in ("k_proj", "v_proj")),
        linear("self_attn.o_proj", heads * head, width, "other", feeds="merged"),
        linear("mlp.gate_proj", width, 4 * width, "other", feeds="merged"),
        linear("mlp.up_proj", width, 4 * width, "other", feeds="merged"),
        linear("mlp.down_proj", 4 * width, width, "other", feeds="merged"), cores=[Queries(heads, head, True, True)],
    )  # fmt: skip
    return [Run(own.count("resampler_depth"), layer, list="connector.perceiver_resampler.layers")]


def resampler_projector(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Idefics 2: three matrices, as wide inside as the text model's, before the resampler; its learned rows and a norm."""
    hidden, at = peek(c, "text_config").count("intermediate_size"), "connector.modality_projection"
    latents = peek(c, "perceiver_config").count("resampler_n_latents")
    return (
        Weights(
            (
                linear(f"{at}.gate_proj", tower.width, hidden, "other"),
                linear(f"{at}.up_proj", tower.width, hidden, "other"),
                linear(f"{at}.down_proj", hidden, width, "other"),
                Leaf("connector.perceiver_resampler.latents", latents, width, "other"),
                vector("connector.perceiver_resampler.norm", width, "other"),
            )
        ),
    )


def kosmos_projector(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Kosmos-2: a matrix, then learned rows look at an image's and at each other, with the text model's heads."""
    latents, text, at = c.count("latent_query_num"), peek(c, "text_config"), "image_to_text_projection"
    heads = text.heads("num_attention_heads", width)
    leaves = (
        linear(f"{at}.dense", tower.width, width, "other", bias=True), Leaf(f"{at}.latent_query", latents, width, "other"),
        linear(f"{at}.x_attn.q_proj", width, width, "other", bias=True, feeds="merged"),
        linear(f"{at}.x_attn.k_proj", width, width, "other", bias=True, further=latents),
        linear(f"{at}.x_attn.v_proj", width, width, "other", bias=True, further=latents),
        linear(f"{at}.x_attn.out_proj", width, width, "other", bias=True, feeds="merged"),
    )  # fmt: skip
    return (Extended(Weights(leaves), computed=(Queries(heads, width // heads, True, True),)),)


def normed_inside(_c: Config, block: Attention) -> tuple[Leaf, ...]:
    """Kosmos-2: a norm of the mixed values, before the last projection."""
    return (vector("inner_attn_ln", block.width, "norm", bias=True),)


def normed_hidden(block: FeedForward) -> tuple[Leaf, ...]:
    """Kosmos-2: a norm between both matrices."""
    return (vector("ffn_layernorm", block.hidden, "norm", bias=True),)


def kosmos_text(c: Config, request: Request, *, inner_norm: bool, segments: int = 0) -> Anatomy:
    """Return Kosmos' decoder: waves of positions, and norms inside of its blocks.

    Args:
        c: its config.
        request: engine and extras.
        inner_norm: attention has one too. segments: rows of a table that tells images from text, 0: there is none.
    """
    anatomy = decoder(
        c, request, norm="layer", norm_bias=True, waves=2, scaled_table="scale_embedding",
        mixers=attention(qkv_bias=True, out_bias=True, positions="none", extra=normed_inside if inner_norm else None),
        feeds=feed_forward(gated=False, bias=True, activation="activation_function", extra=normed_hidden),
    )  # fmt: skip
    (stack,) = anatomy.stacks
    more = (Table("segment_emb", segments, c.count("hidden_size"), index="type"),) if segments else ()
    return anatomy._replace(stacks=(replace(stack, front=(*stack.front, *more)),))


def flat_tower(c: Config, *, hidden: str, head: str, rows: str, epsilon: str = "layer_norm_eps") -> Tower:
    """Return Pix2Struct's tower: patches come flat, with a row and a column, and layers are gated, without vectors.

    Args:
        c: its config.
        hidden, head, rows, epsilon: keys of F, K, the rows of both tables of positions, and the norms' epsilon.
    """
    d, f, heads, k = c.count("hidden_size"), c.count(hidden), c.count("num_attention_heads"), c.count(head)
    norm = Norm(d, epsilon=c.number(epsilon, 1e-6))
    attend = Attention(d, heads, heads, k, Mask(causal=False), name="attention")
    layer = Layer(
        (
            Sublayer(attend, before=norm),
            Sublayer(FeedForward(d, f, True, activation=c.text("dense_act_fn", "gelu_new")), before=norm),
        )
    )
    places = c.count(rows)
    front = (
        linear("embeddings.patch_projection", c.count("patch_embed_hidden_size"), d, "conv", bias=True),
        Leaf("embeddings.row_embedder", places, d, "embedding"),
        Leaf("embeddings.column_embedder", places, d, "embedding"),
    )
    back = Weights((vector("layernorm", d, "norm"),))
    return Tower((Weights(front),), (layer,) * c.count("num_hidden_layers"), (back,), d, list="encoder.layer")


def looking_layers(anatomy: Anatomy, width: int) -> Anatomy:
    """Return a decoder whose layers each look at an image between their blocks, wired like their self-attention."""
    (stack,) = anatomy.stacks

    def looking(layer: Layer) -> Layer:
        first, *rest = layer.sublayers
        assert isinstance(first.block, Attention)
        seeing = replace(
            first.block, cross=True, mask=Mask(causal=False), rope=None, memory_width=width, name="crossattention"
        )
        norm = replace(first, block=OnlySeeing(seeing, seeing.name))
        return replace(layer, sublayers=(first, norm, *rest))

    return anatomy._replace(
        stacks=(replace(stack, runs=tuple(replace(run, layer=looking(run.layer)) for run in stack.runs)),)
    )


def blip_text(c: Config, request: Request) -> Anatomy:
    """Return BLIP's decoder, BERT's layers that look at an image where `is_decoder` says so."""
    anatomy = decoder(
        c, request, wiring="post", norm="layer", norm_bias=True, final_norm=False, learned_positions=True, table_norm=True,
        head_bias=True, transform_bias=True, mixers=attention(qkv_bias=True, out_bias=True, positions="none"),
        feeds=feed_forward(gated=False, bias=True),
    )  # fmt: skip
    seen, tied = c.count("encoder_hidden_size"), c.flag("tie_word_embeddings", True)
    found = looking_layers(anatomy, seen) if c.flag("is_decoder", True) else anatomy
    if tied and request.head:
        return found
    (stack,) = found.stacks
    bias = Weights((vector("cls.predictions.bias", c.count("vocab_size"), "head"),))  # tied, it is the head's own
    more = bias if request.head else Pooler(c.count("hidden_size"))
    return found._replace(stacks=(replace(stack, back=(*stack.back, more)),))


def blip_2(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Return BLIP-2, whose text model has its head in all classes."""
    return multimodal(c, request._replace(head=True), **traits)


def blip(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Return BLIP: its text looks at rows as wide as the tower's, whatever its own config says.

    Raises:
        PlanError: the class has no head; it is then built otherwise.
    """
    if not request.head:
        raise PlanError(
            "the class BlipModel compares texts with images, which the planner doesn't model",
            where=f"{c.source}, architectures", fix="plan BlipForConditionalGeneration",
        )  # fmt: skip
    width = peek(c, "vision_config").count("hidden_size")
    return multimodal(c, request, instead=lambda _text: {"encoder_hidden_size": width}, **traits)


def idefics_text(c: Config, request: Request) -> Anatomy:
    """Return Idefics' decoder: Llama's layers, and before every few of them one with gates that looks at images.

    Its tables of further tokens stand apart. In a stack, all layers that look stand before the others.
    """
    anatomy = decoder(c, request)
    (stack,) = anatomy.stacks
    d, more, step = c.count("hidden_size"), c.count("additional_vocab_size", 0, low=0), c.count("cross_layer_interval")
    looks, seen = c.count("num_hidden_layers") // step, peek(c, "vision_config").count("hidden_size")
    own, feed = stack.runs[0].layer.sublayers
    assert isinstance(own.block, Attention)
    assert isinstance(feed.block, FeedForward)
    norm = Norm(own.block.head, epsilon=c.number("rms_norm_eps", 1e-6)) if c.flag("qk_layer_norms", False) else None
    size = d if c.text("alpha_type", "float", allowed=("vector", "float")) == "vector" else 1
    gates = (vector("alpha_cross_attn", size, "other"), vector("alpha_dense", size, "other"))
    cross = replace(
        own.block, cross=True, mask=Mask(causal=False), rope=None, memory_width=seen, qk_norm=norm, extra=gates,
        name="cross_attn",
    )  # fmt: skip
    gated = Layer(
        (
            replace(own, block=OnlySeeing(cross, cross.name)),
            replace(feed, block=OnlySeeing(feed.block, feed.block.name)),
        )
    )
    tie = "additional" if c.flag("tie_word_embeddings", False) else None
    table = (Weights((Leaf("embed_tokens.additional_embedding", more, d, "embedding", tie=tie),)),) if more else ()
    head = (
        (Weights((linear("lm_head.additional_fc", d, more, "head", work="head", feeds="last", tie=tie),)),)
        if more and request.head
        else ()
    )
    looking = (Run(looks, gated, list="gated_cross_attn_layers"),) if looks else ()
    return anatomy._replace(
        stacks=(
            replace(
                stack, front=(*stack.front, *table), runs=(*looking, *stack.runs), back=(*stack.back, *head)
            ),
        )
    )  # fmt: skip


def idefics_resampler(c: Config, _inner: Config, tower: Tower, _width: int) -> Sequence[Block]:
    """Idefics: learned rows look at an image's and at each other, where `use_resampler` says so."""
    own = part(c, "perceiver_config")
    own.ignore(
        "use_resampler", "resampler_n_latents", "resampler_depth", "resampler_n_heads", "resampler_head_dim",
        "qk_layer_norms_perceiver", "hidden_size", *COMMON,
    )  # fmt: skip
    if not c.flag("use_resampler", False):
        return ()
    d, heads, head = tower.width, own.count("resampler_n_heads"), own.count("resampler_head_dim")
    latents, at = own.count("resampler_n_latents"), "perceiver_resampler"
    normed = own.flag("qk_layer_norms_perceiver", False)

    def block(index: int) -> tuple[Leaf, ...]:
        here = f"{at}.blocks.{index}"
        norms = [_affine(f"{here}.0.{name}_layer_norm", head) for name in ("q", "k")] if normed else []
        return (
            _affine(f"{here}.0.context_layer_norm", d), _affine(f"{here}.0.latents_layer_norm", d), *norms,
            linear(f"{here}.0.q_proj", d, heads * head, "other", feeds="merged"),
            linear(f"{here}.0.k_proj", d, heads * head, "other", further=latents),
            linear(f"{here}.0.v_proj", d, heads * head, "other", further=latents),
            linear(f"{here}.0.output_proj", heads * head, d, "other", feeds="merged"), _affine(f"{here}.1.ln", d),
            linear(f"{here}.1.fc", d, 4 * d, "other", feeds="merged"),
            linear(f"{here}.1.c_proj", 4 * d, d, "other", feeds="merged"),
        )  # fmt: skip

    ends = Weights((Leaf(f"{at}.latents", latents, d, "other"), _affine(f"{at}.layer_norm", d)))
    looks = (Queries(heads, head, True, True),)
    made = [Extended(Weights(block(i)), computed=looks) for i in range(own.count("resampler_depth"))]
    return (ends, *made)


def pooled_vit(c: Config, *, tokens: int) -> Tower:
    """Return ViT, whose first row a pooler reads; `tokens` of its own: one of the class, and DeiT's of distillation."""
    d, biases = c.count("hidden_size"), "qkv out mlp" if c.flag("qkv_bias", True) else "out mlp"
    further = (Weights((Leaf("embeddings.distillation_token", tokens - 1, d, "embedding"),)),) if tokens > 1 else ()

    def pooler(c: Config, d: int) -> tuple[Block, ...]:
        out = c.count("pooler_output_size", d)
        return (Weights((linear("pooler.dense", d, out, "other", bias=True, feeds="sequence"),)),)

    tower = vit(
        c, epsilon="layer_norm_eps", biases=biases, class_token=True, patch_bias=True, norms="post",
        positions=lambda _c, patches: patches + tokens, further=Further(lambda _c, _d: further, back=pooler),
        paths=("embeddings.patch_embeddings.projection", "layers"),
    )  # fmt: skip
    rows = None if tower.rows is None else tower.rows - 1 + tokens
    patches = Weights(tuple(replace(leaf, further=-tokens) for leaf in tower.front[0].leaves()))
    return tower._replace(front=(patches, *tower.front[1:]), rows=rows, leaving=rows, own=tokens)


def donut_tower(c: Config) -> Tower:
    """Return Donut's tower (Swin, arXiv:2103.14030): windows of patches, four of which become one between its stages.

    Everything is fed by the rows that leave it.
    """
    d, depths, window = c.count("embed_dim"), whole_numbers(c, "depths"), c.count("window_size")
    heads, bias, ratio = _each(c, "num_heads", len(depths)), c.flag("qkv_bias", True), c.number("mlp_ratio", above=0)
    (tall, broad), (high, wide) = two(c, "image_size"), two(c, "patch_size")
    grids = [(-(-tall // high), -(-broad // wide))]
    for _ in depths[1:]:
        grids.append((_halved(grids[-1][0]), _halved(grids[-1][1])))
    left = grids[-1][0] * grids[-1][1]

    def fed(block: Block, stage: int, *cores: Squares) -> Extended:
        rate, further = divmod(grids[stage][0] * grids[stage][1], left)
        return Extended(block, rate, further, computed=cores)

    def layer(stage: int, last: bool) -> Layer:
        width, f = d * 2**stage, int(d * 2**stage * ratio)
        look = Squares(
            heads[stage], width // heads[stage], min(window, *grids[stage]),
            *divmod(grids[stage][0] * grids[stage][1], left), False,
        )  # fmt: skip
        leaves = (
            _affine("layernorm_before", width, "norm"), _affine("layernorm_after", width, "norm"),
            *(linear(f"attention.self.{name}", width, width, "attention", bias=bias) for name in ("query", "key", "value")),
            Leaf("attention.self.relative_position_bias_table", (2 * window - 1) ** 2, heads[stage], "attention"),
            vector("attention.self.relative_position_index", window**4, "attention", buffer=True, own_dtype="int64"),
            linear("attention.output.dense", width, width, "attention", bias=True),
            linear("intermediate.dense", width, f, "mlp", bias=True), linear("output.dense", f, width, "mlp", bias=True),
        )  # fmt: skip
        merge = (
            _affine("downsample.norm", 4 * width, "other"),
            linear("downsample.reduction", 4 * width, 2 * width, "other"),
        )
        more = (Sublayer(fed(Weights(merge), stage + 1)),) if last and stage + 1 < len(depths) else ()
        return Layer((Sublayer(fed(Weights(leaves), stage, look)), *more))

    entering = c.count("num_channels", 3) * high * wide
    patches = Weights((linear("embeddings.patch_embeddings.projection", entering, d, "conv", bias=True, work="conv"),))
    rows = (tall // high) * (broad // wide) + 1
    places = (Leaf("embeddings.position_embeddings", rows, d, "embedding"),) * c.flag("use_absolute_embeddings", False)
    layers = [layer(stage, i + 1 == depth) for stage, depth in enumerate(depths) for i in range(depth)]
    front = (fed(patches, 0), Weights((*places, _affine("embeddings.norm", d, "norm"))))
    return Tower(front, tuple(layers), (), d * 2 ** (len(depths) - 1), left, left, "encoder.layers")


def _nested(c: Config, key: str, instead: dict[str, Any] | None = None) -> Config:
    """Return a reader of a part by the row of its model_type, which the wrapper's class fixes."""
    from planner.families import FAMILIES, defaults  # noqa: PLC0415
    from planner.families.multimodal import TOWERS  # noqa: PLC0415

    kind = _kind(c, key, _part(c, key), {})
    row, known = FAMILIES.get(kind) or TOWERS[kind], defaults(kind)
    found = c.nested(key, kind, {**known["names"], **row.names}, known["defaults"], instead)
    found.ignore(*row.ignores)
    return found


def _no_table(_c: Config, _width: int) -> tuple[Block, ...]:
    return ()


def gated_dense(c: Config) -> Act:
    """Pix2Struct: always gated."""
    return Act(c.text("dense_act_fn", "gelu_new"), gated=True)


def read_memory(stack: Stack, width: int) -> Stack:
    """Return a decoder whose cross-attention reads rows of another width."""

    def read(layer: Layer) -> Layer:
        return replace(
            layer,
            sublayers=tuple(
                replace(each, block=replace(each.block, memory_width=width))
                if isinstance(each.block, Attention) and each.block.cross
                else each
                for each in layer.sublayers
            ),
        )

    return replace(stack, runs=tuple(replace(run, layer=read(run.layer)) for run in stack.runs))


def pix2struct(c: Config, request: Request) -> Anatomy:
    """Return Pix2Struct: a tower of flat patches, and T5's decoder, that reads them."""
    seen = _nested(c, "vision_config")
    seen.ignore(*COMMON)
    tower = flat_tower(seen, hidden="d_ff", head="d_kv", rows="seq_len")
    instead = {"tie_word_embeddings": c.flag("tie_word_embeddings", False)}
    text = _nested(c, "text_config", instead)
    width, heads, head = text.count("hidden_size"), text.count("num_attention_heads"), text.count("head_dim")
    if heads * head != width or tower.width != width:
        where = text.where("head_dim") if heads * head != width else seen.where("hidden_size")
        raise PlanError(f"the decoder is {width} wide, and its heads and the tower have to be", where=where)
    made = encoder_decoder(
        text, request, norm="rms", attention_bias=False, mlp_bias=False, act=gated_dense, positions="relative",
        unscaled_scores=True, head_width="head_dim", words=_own_words, own=Own(front_end=_no_table),
    )  # fmt: skip
    encoder = Stack("encoder", tower.front, runs(list(tower.layers)), tower.back, "encoder.", tower.list)
    rows = seen.count("seq_len")
    return made._replace(
        stacks=(encoder, made.stacks[1]), source_positions=rows, source_learned=False, notes=(PICTURED,)
    )


def _own_words(c: Config) -> Words:
    """One table, of the decoder alone."""
    rows = c.count("vocab_size")
    return Words(rows, rows, shared=False, tied=c.flag("tie_word_embeddings", False))


@dataclass(frozen=True, slots=True)
class Squares:
    """Patches look at a square of patches, with products for the distance along each side (SAM, arXiv:2304.02643).

    Attributes:
        heads: H. head: K. side: of the square. rate, further: patches for each row that leaves, and beyond these.
        distances: whether they are scored.
    """

    heads: int
    head: int
    side: int
    rate: int
    further: int
    distances: bool
    work: ClassVar[Work] = "attention"
    row_elements: ClassVar[int] = 0

    def patches(self, p: Pass) -> Number:
        """Return the patches of one image."""
        return p.new * self.rate + self.further

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add of both products, and of those with the tables of distances."""
        seen = 2 * self.side**2 + 2 * self.side * self.distances
        return 2 * p.batch * self.patches(p) * self.heads * self.head * seen

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return (
            f"2 x {p.batch:,} images x {self.patches(p):,} patches x {self.heads:,} heads x {self.head:,} (width) x "
            f"2 products with {self.side:,} x {self.side:,} patches" + " and distances" * self.distances
        )


def _halved(side: int) -> int:
    """Return the side of a square after a convolution of stride 2."""
    return -(-side // 2)


def formula_encoder(c: Config) -> Stack:
    """Return PP-FormulaNet's tower and what shrinks its square of patches, fed by the rows that leave it."""
    tower = got_tower(c)
    side, heads = c.count("image_size") // two(c, "patch_size")[0], c.count("num_attention_heads")
    head, window, everywhere = tower.layers[0].leaves[0].n_out // heads, c.count("window_size"), set(
        whole_numbers(c, "global_attn_indexes")
    )  # fmt: skip
    distances, left = c.flag("use_rel_pos", True), _halved(_halved(side)) ** 2
    rate, further = divmod(side**2, left)
    more, beyond = divmod(_halved(side) ** 2, left)

    def layer(index: int) -> Layer:
        look = Squares(heads, head, side if index in everywhere else window, rate, further, distances)
        (only,) = tower.layers[index].sublayers
        return Layer((Sublayer(Extended(only.block, rate, further, computed=(look,))),))

    first, middle, last = (c.count(f"post_conv_{name}_channels") for name in ("in", "mid", "out"))
    at, out = "multi_modal_projector", c.count("decoder_hidden_size")
    projector = Weights(
        (
            linear(f"{at}.conv1", 9 * first, middle, "other", work="conv", rate=more, further=beyond),
            linear(f"{at}.conv2", 9 * middle, last, "other", work="conv"),
            linear(f"{at}.linear_1", last, last, "other", bias=True),
            linear(f"{at}.linear_2", last, out, "other", bias=True),
        )
    )
    front = tuple(Extended(block, rate, further) for block in tower.front)
    back: tuple[Block, ...] = (*(Extended(block, rate, further) for block in tower.back), projector)
    layers = [layer(index) for index in range(len(tower.layers))]
    return Stack("encoder", front, runs(layers), back, "model.encoder.")


def pp_formulanet(c: Config, request: Request) -> Anatomy:
    """Return PP-FormulaNet: SAM's tower with convolutions that shrink its square, and BART's decoder with norms before blocks."""
    seen = _nested(c, "vision_config")
    seen.ignore(*COMMON)
    encoder = formula_encoder(seen)
    idle = {"encoder_layers": 1, "encoder_attention_heads": 1, "encoder_ffn_dim": 1}
    text = _nested(c, "text_config", idle)
    width, read = text.count("hidden_size"), seen.count("decoder_hidden_size")
    if read != width:
        raise PlanError(
            f"found {read}, but the decoder is {width} wide",
            where=seen.where("decoder_hidden_size"), fix="correct the file",
        )  # fmt: skip
    c.ignore("tie_word_embeddings")
    made = encoder_decoder(
        text, request, offset=2, table_norm=True, words=free_head, own=Own(front_end=_no_table),
    )  # fmt: skip
    side = seen.count("image_size") // two(seen, "patch_size")[0]
    return made._replace(
        stacks=(encoder, made.stacks[1]),
        source_positions=_halved(_halved(side)) ** 2,
        source_fixed=True,
        source_learned=True,
    )


def _stages(c: Config) -> list[int]:
    """Return the width of every stage of Florence 2's tower."""
    return whole_numbers(c, "embed_dim")


def _each(c: Config, key: str, stages: int) -> list[int]:
    """Return a whole number for each stage."""
    found = whole_numbers(c, key)
    if len(found) < stages:
        raise PlanError(f"found {len(found)} entries, there are {stages} stages", where=c.where(key))
    return found


def davit_tower(c: Config) -> Tower:
    """Florence 2's tower (DaViT, arXiv:2204.03645): a convolution into each of its stages; their layers stand apart."""
    widths, sides = _stages(c), _each(c, "patch_size", len(_stages(c)))
    before = c.raw("patch_prenorm")
    if not isinstance(before, list | tuple) or len(before) < len(widths):
        raise PlanError("a list of true and false is needed, one for each stage", where=c.where("patch_prenorm"))
    entering = [c.count("num_channels"), *widths]
    convs = [
        _block(
            linear("conv", into * side**2, d, "conv", bias=True, work="conv"),
            _affine("norm", into if normed else d, "norm"),
        )
        for into, d, side, normed in zip(entering, widths, sides, before, strict=False)
    ]
    return Tower((), tuple(convs), (), widths[-1], list="convs")


def davit_layers(_c: Config, inner: Config, _tower: Tower, _width: int) -> Sequence[Run]:
    """Florence 2: attention in windows of patches, then between groups of channels, each with convolutions before its blocks."""
    ratio, bias = inner.number("mlp_ratio", above=0), inner.flag("qkv_bias", True)

    def half(d: int, at: str, name: str) -> list[Leaf]:
        f = int(d * ratio)
        return [
            *(linear(f"{at}.{conv}", 9, d, "conv", bias=True, work="conv") for conv in ("conv1", "conv2")),
            *(_affine(f"{at}.{norm}", d, "norm") for norm in ("norm1", "norm2")),
            linear(f"{at}.{name}.qkv", d, 3 * d, "attention", bias=bias),
            linear(f"{at}.{name}.proj", d, d, "attention", bias=True),
            linear(f"{at}.ffn.fc1", d, f, "mlp", bias=True), linear(f"{at}.ffn.fc2", f, d, "mlp", bias=True),
        ]  # fmt: skip

    widths = _stages(inner)
    return [
        Run(
            depth,
            _block(*half(d, "spatial_block", "window_attn"), *half(d, "channel_block", "channel_attn")),
            list=f"vision_tower.blocks.{stage}",
        )
        for stage, (d, depth) in enumerate(zip(widths, _each(inner, "depths", len(widths)), strict=False))
        if depth
    ]


def davit_projector(_c: Config, inner: Config, tower: Tower, _width: int) -> Sequence[Block]:
    """Florence 2: tables of rows, columns and (waves, stored) frames; a matrix and a norm."""
    d, out, at = tower.width, inner.count("projection_dim"), "multi_modal_projector"
    places, frames = inner.count("max_position_embeddings"), inner.count("max_temporal_embeddings")
    return (
        Weights(
            (
                Leaf(f"{at}.image_position_embed.row_embeddings", places, d // 2, "other"),
                Leaf(f"{at}.image_position_embed.column_embeddings", places, d - d // 2, "other"),
                Leaf(f"{at}.visual_temporal_embed.pos_idx_to_embed", frames, d, "other", buffer=True),
                linear(f"{at}.image_projection", d, out, "other", feeds="merged"), _affine(f"{at}.image_proj_norm", out),
            )
        ),
    )  # fmt: skip


def florence(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Return Florence 2: the text model's head is the wrapper's own, without the vector that BART stores.

    Raises:
        PlanError: the wrapper ties tables that its text model doesn't, or the other way round.
    """
    if peek(c, "text_config").flag("tie_word_embeddings", True) != c.flag("tie_word_embeddings", True):
        raise PlanError(
            "the wrapper and its text model differ, and with them which of four tables are one",
            where=c.where("tie_word_embeddings"), fix="give both the same value",
        )  # fmt: skip
    anatomy = multimodal(c, request, **traits)
    return anatomy._replace(
        stacks=tuple(
            replace(stack, back=tuple(replace(b, logits_bias=False) if isinstance(b, Head) else b for b in stack.back))
            for stack in anatomy.stacks
        )
    )


def udop(c: Config, request: Request) -> Anatomy:
    """Return UDOP: T5 whose encoder also reads patches, places on the page, and biases of distances along its sides.

    The decoder stores a matrix for patches too, that nothing uses.
    """
    c.ignore("tie_word_embeddings")
    anatomy = encoder_decoder(
        c, request, norm="rms", attention_bias=False, mlp_bias=False, act=t5_act, positions="relative",
        unscaled_scores=True, head_width="head_dim", words=_tied_words,
    )  # fmt: skip
    d, heads = c.count("hidden_size"), c.count("encoder_attention_heads")
    high, wide = two(c, "patch_size")
    tall, broad = two(c, "image_size")
    patches, places = (tall // high) * (broad // wide), c.count("max_2d_position_embeddings")
    entering = c.count("num_channels", 3) * high * wide
    patch = linear("patch_embed.proj", entering, d, "conv", bias=True, work="conv", feeds="sequence", rate=patches)
    idle = Leaf("embed_patches.proj", entering, d, "conv", bias=True)
    cells = tuple(Leaf(f"cell_2d_embedding.{side}_position_embeddings", places, d, "embedding") for side in "xy")
    biases = Weights(
        tuple(
            Leaf(f"relative_bias.biases.{index}", rows, heads, "attention")
            for index, rows in enumerate(_bias_rows(c))
            if index or not request.head  # the first is that of the encoder's first layer, but in UdopModel
        )
    )
    first, second = anatomy.stacks
    stacks = (
        replace(first, front=(*first.front, Weights((patch, *cells)), biases)),
        replace(second, front=(*second.front, Weights((idle,)), biases)),
    )
    return anatomy._replace(stacks=stacks)


def _tied_words(c: Config) -> Words:
    """UDOP: one table, that is the head too, whatever the config says."""
    rows = c.count("vocab_size")
    return Words(rows, rows)


BUCKETS = 32
"""Rows of a table of distances where an entry of `relative_bias_args` says nothing."""


def _bias_rows(c: Config) -> list[int]:
    """Return the rows of each table of distances along one side."""
    given = c.raw("relative_bias_args", [{}, {}, {}])
    rows = []
    for entry in given if isinstance(given, list) else [None]:
        if not isinstance(entry, dict):
            raise PlanError("a list of objects is needed", where=c.where("relative_bias_args"), fix="correct the file")
        more = 2 if entry.get("prefix_bucket") and not entry.get("expand") else 0
        rows.append(int(c.entry("relative_bias_args", entry, "relative_attention_num_buckets", BUCKETS)) + more)
    return rows
