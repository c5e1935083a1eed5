"""Encoders whose rows change in number: pooled (Funnel), read into latents (Perceiver), remembered (XLNet, CPM-Ant)."""

from __future__ import annotations

from typing import Any

from planner.blocks import Attention, Block, Cache, Core, FeedForward, Head, Leaf, Norm, Table, Weights, linear, vector
from planner.encoder_blocks import (
    Beside,
    DistanceAttend,
    DistanceProjections,
    Halved,
    LatentRead,
    PooledAttend,
    PooledProducts,
    PromptedAttend,
    PromptProducts,
)
from planner.errors import PlanError
from planner.fields import Config
from planner.model import Layer, Run, Stack, Sublayer
from planner.topology import Anatomy, Request


def funnel(c: Config, request: Request) -> Anatomy:
    """Funnel (arXiv:2006.03236): blocks of layers, each on half of the rows before it, and layers on all rows again."""
    width, vocabulary = c.count("hidden_size"), c.count("vocab_size")
    sizes = c.counts("block_sizes", low=1) or [4, 4, 4]
    repeats = c.counts("block_repeats", len(sizes), low=1) or [1] * len(sizes)
    added = int(c.flag("separate_cls", True) and not c.flag("truncate_seq", True))
    queries_only = c.flag("pool_q_only", True)
    body: list[Run] = []
    for index, (size, times) in enumerate(zip(sizes, repeats, strict=True)):
        here, last = Halved(index, added), Halved(max(index - 1, 0), added)
        plain = Layer((Sublayer(_funnel_layer(c, here, here)),))
        if index:
            body.append(Run(1, Layer((Sublayer(_funnel_layer(c, here, last if queries_only else here, times)),))))
        body += [Run(size - (index > 0), plain, times)] if size > (index > 0) else []
    full = Layer((Sublayer(_funnel_layer(c, Halved(0, added), Halved(0, added))),))
    body += [Run(count, full)] if (count := c.count("num_decoder_layers", 2, low=0)) else []
    norm = Norm(width, "layer", bias=True, epsilon=c.number("layer_norm_eps", 1e-9))
    tie = "word_embeddings" if c.flag("tie_word_embeddings", True) else None
    head = (Head(width, vocabulary, True, tie, every_row=True),) if request.head else ()
    front = (Table("word_embeddings", vocabulary, width, "word_embeddings"), norm)
    return Anatomy("encoder", (Stack("encoder", front, tuple(body), head),))


def _funnel_layer(c: Config, queries: Halved, keys: Halved, repeats: int = 1) -> Block:
    """Return Funnel's attention and feed-forward block with their norms.

    Args:
        c: the config.
        queries, keys: rows that they are made of.
        repeats: runs; those after the first see the queries' rows only.
    """
    width, heads, head = c.count("hidden_size"), c.count("num_attention_heads"), c.count("head_dim")
    inner, hidden = heads * head, c.count("intermediate_size")
    shifted = c.text("attention_type", "relative_shift", allowed=("relative_shift", "factorized")) == "relative_shift"
    leaves = (
        Leaf("q_head", width, inner, "attention"), Leaf("k_head", width, inner, "attention", bias=True),
        Leaf("v_head", width, inner, "attention", bias=True), Leaf("post_proj", inner, width, "attention", bias=True),
        Leaf("r_kernel", width, inner, "attention"), vector("r_biases", 3 * inner, "attention"),
        Leaf("seg_embed", 2, inner, "attention"), vector("attention.layer_norm", width, "norm", bias=True),
        Leaf("ffn.linear_1", width, hidden, "mlp", bias=True), Leaf("ffn.linear_2", hidden, width, "mlp", bias=True),
        vector("ffn.layer_norm", width, "norm", bias=True),
    )  # fmt: skip

    def run(sources: Halved) -> tuple[Core, ...]:
        return (
            PooledProducts(2 * width * inner + 2 * width * hidden, queries), PooledProducts(2 * width * inner, sources),
            PooledAttend(width, heads, head, queries, sources, shifted),
        )  # fmt: skip

    return Beside(Weights(leaves), more=(*run(keys), *(run(queries) * (repeats - 1))))


def perceiver(c: Config, request: Request) -> Anatomy:
    """Perceiver (arXiv:2107.14795): latents read the text and work on themselves; a row per position reads them."""
    if not request.head:
        raise PlanError(
            "the bare model reads rows of any kind, and isn't modelled",
            where=c.where("architectures"),
            fix="plan PerceiverForMaskedLM",
        )
    width, narrow, vocabulary = c.count("d_latents"), c.count("hidden_size"), c.count("vocab_size")
    latents, rows = c.count("num_latents"), c.count("max_position_embeddings")
    qk, v = c.count("qk_channels", None), c.count("v_channels", None)
    by_query = c.text("cross_attention_shape_for_attention", "kv", allowed=("q", "kv")) == "q"
    crossed = qk or (width if by_query else narrow)
    reading = _latent_layer(
        width, narrow, crossed, v or crossed, width, c.count("num_cross_attention_heads"),
        c.count("cross_attention_widening_factor", 1), latents, None,
    )  # fmt: skip
    inside = _latent_layer(
        width, None, qk or width, v or qk or width, v or qk or width, c.count("num_self_attention_heads"),
        c.count("self_attention_widening_factor", 1), latents, latents,
    )  # fmt: skip
    asking = _latent_layer(narrow, width, 8 * 32, narrow, narrow, 8, 1, rows, latents)
    front = (
        Table("word_embeddings", vocabulary, narrow, "word_embeddings"),
        Table("position_embeddings", rows, narrow, index="position"),
        Weights((Leaf("latents", latents, width, "embedding"),)),
    )
    head = linear(
        "embedding_decoder", narrow, vocabulary, "head", bias=True, work="head", feeds="sequence", rate=rows,
        tie="word_embeddings",
    )  # fmt: skip
    back = (Weights((Leaf("output_position_encodings", rows, narrow, "embedding"),)), Weights((head,)))
    runs = (
        Run(1, Layer((Sublayer(reading),))),
        Run(c.count("num_self_attends_per_block"), Layer((Sublayer(inside),)), c.count("num_blocks")),
        Run(1, Layer((Sublayer(asking),))),
    )
    return Anatomy("encoder", (Stack("encoder", front, runs, back),), rows, learned_positions=True)


def _latent_layer(
    width: int, source: int | None, qk: int, v: int, out: int, heads: int, widening: int, queries: int, keys: int | None
) -> Block:
    """Return Perceiver's attention and feed-forward block with their norms.

    Args:
        width: of queries' rows. source: width of keys' rows where these are others, else None.
        qk, v: widths of all heads' keys and values. out: width of what attention gives. heads: H.
        widening: hidden width over `width`.
        queries: rows of queries. keys: rows of keys, None: a row for each token.
    """
    asked: dict[str, Any] = {"feeds": "sequence", "rate": queries}
    read: dict[str, Any] = {"feeds": "sequence", "rate": keys} if keys else {}
    given = source or width
    leaves = (
        vector("layernorm1", width, "norm", bias=True),
        *((vector("layernorm2", source, "norm", bias=True),) if source else ()),
        linear("query", width, qk, "attention", bias=True, **asked),
        linear("key", given, qk, "attention", bias=True, **read),
        linear("value", given, v, "attention", bias=True, **read),
        linear("output.dense", v, out, "attention", bias=True, **asked),
        vector("layernorm", width, "norm", bias=True),
        linear("mlp.dense1", width, widening * width, "mlp", bias=True, **asked),
        linear("mlp.dense2", widening * width, width, "mlp", bias=True, **asked),
    )
    return Beside(Weights(leaves), more=(LatentRead(heads, qk // heads, v // heads, queries, keys),))


def xlnet(c: Config, request: Request) -> Anatomy:
    """XLNet (arXiv:1906.08237): tokens see each other both ways, and the rows of `mem_len` tokens before them."""
    c.text("attn_type", "bi", allowed=("bi",))
    if not c.flag("use_mems_eval", True):
        raise PlanError(
            "found false; a step without memory isn't modelled", where=c.where("use_mems_eval"), fix="set it to true"
        )
    width, hidden, vocabulary = c.count("hidden_size"), c.count("intermediate_size"), c.count("vocab_size")
    heads = c.heads("num_attention_heads", width)
    head, memory = c.count("head_dim", width // heads), c.count("mem_len", None, low=0)
    cache, inner = Cache("self", width, memory + 1 if memory else None), heads * head
    norm = Norm(width, "layer", bias=True, epsilon=c.number("layer_norm_eps", 1e-12))
    leaves = (
        linear("q", width, inner, "attention"), linear("o", inner, width, "attention"),
        *(Leaf(name, width, inner, "attention") for name in "kvr"),
        vector("r_biases", 3 * inner, "attention"), Leaf("seg_embed", 2, inner, "attention"),
    )  # fmt: skip
    cores = (DistanceProjections(width, inner, cache), DistanceAttend(heads, head, cache))
    mixer = Beside(Weights(leaves), more=cores, kept=(cache,))
    mlp = FeedForward(width, hidden, False, True, True, c.text("hidden_act", "gelu"), name="ff")
    layer = Layer((Sublayer(mixer, join=norm), Sublayer(mlp, join=norm)))
    tie = "word_embedding" if c.flag("tie_word_embeddings", True) else None
    front = (
        Table("word_embedding", vocabulary, width, "word_embedding"), Weights((vector("mask_emb", width, "embedding"),))
    )  # fmt: skip
    back = (Head(width, vocabulary, True, tie),) if request.head else ()
    stack = Stack("decoder", front, (Run(c.count("num_hidden_layers"), layer),), back)
    return Anatomy("decoder", (stack,))


def prompted(c: Config, request: Request) -> Anatomy:
    """CPM-Ant: a stored prompt stands before each sequence, and all that a pass holds see each other both ways."""
    width, hidden, vocabulary = c.count("hidden_size"), c.count("intermediate_size"), c.count("vocab_size")
    heads, head, prompt = c.count("num_attention_heads"), c.count("head_dim"), c.count("prompt_length")
    segments, inner = c.count("segment_types"), heads * head
    norm = Norm(width, "rms", epsilon=c.number("rms_norm_eps", 1e-6))
    attention = Attention(width, heads, heads, head, name="self_att.self_attention")
    cache = Cache("self", 2 * inner, fixed=2 * inner * prompt)
    cores = (PromptProducts(4 * width * inner + 3 * width * hidden, prompt), PromptedAttend(heads, head, prompt))
    mixer = Beside(Weights(attention.leaves()), more=cores, kept=(cache,))
    feed = FeedForward(width, hidden, activation="gelu", name="ffn.ffn")
    layer = Layer((Sublayer(mixer, before=norm), Sublayer(feed, before=norm)))
    buckets = segments**2 + c.count("relative_attention_num_buckets")
    front = (
        Table("input_embedding", vocabulary + c.count("prompt_types") * prompt, width),
        Table("segment_embedding", segments, width, index="type"),
        Weights((Leaf("position_bias.relative_attention_bias", buckets, heads, "attention"),)),
    )
    c.ignore("tie_word_embeddings")
    back = (norm, *((Head(width, vocabulary),) if request.head else ()))
    stack = Stack("decoder", front, (Run(c.count("num_hidden_layers"), layer),), back)
    return Anatomy("decoder", (stack,), notes=(f"a stored prompt of {prompt} rows goes before each sequence",))
