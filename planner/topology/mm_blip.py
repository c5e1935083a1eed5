"""Models that look at images through a few learned queries (Q-Former, resampler), or through cross-attention of their text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from planner.blocks import Attention, Block, FeedForward, Leaf, Norm, Table, Weights, Work, linear, vector
from planner.count import Number
from planner.engines import Engine
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.model import Layer, Run, Sublayer, runs
from planner.side_rows import Extended
from planner.topology import Anatomy, Request
from planner.topology.attention import attention
from planner.topology.decoder import decoder
from planner.topology.feed_forward import feed_forward
from planner.topology.towers import Tower, and_class, two, vit
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
    from planner.topology.multimodal import _kind, _part  # noqa: PLC0415

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
    from planner.topology.multimodal import part  # noqa: PLC0415

    own = part(c, "qformer_config")
    own.ignore("encoder_hidden_size", "vocab_size", "max_position_embeddings")
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
    from planner.topology.multimodal import part  # noqa: PLC0415

    own = part(c, "perceiver_config")
    own.ignore("hidden_size")
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
    seen = c.count("encoder_hidden_size")
    return looking_layers(anatomy, seen) if c.flag("is_decoder", True) else anatomy


def blip(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Return BLIP: its text looks at rows as wide as the tower's, whatever its own config says."""
    from planner.topology.multimodal import multimodal  # noqa: PLC0415

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
    from planner.topology.multimodal import part  # noqa: PLC0415

    own = part(c, "perceiver_config")
    own.ignore(
        "use_resampler", "resampler_n_latents", "resampler_depth", "resampler_n_heads", "resampler_head_dim",
        "qk_layer_norms_perceiver",
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


def square_only(c: Config) -> None:
    """Refuse a side that isn't one number, where the reference squares it."""
    for key in ("image_size", "patch_size"):
        high, wide = two(c, key)
        if high != wide:
            raise PlanError(f"found {high} x {wide}, squares only are modelled", where=c.where(key), fix="correct it")
