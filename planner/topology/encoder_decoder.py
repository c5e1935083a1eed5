"""Encoder-decoder models: two stacks, joined by cross-attention (the original Transformer, T5, BART, NLLB, Whisper)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Literal

from planner.blocks import Attention, AudioFrontEnd, Block, FeedForward, Head, MixtureOfExperts, Norm, Sinusoids, Table
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.model import Layer, Stack, Sublayer, runs
from planner.topology import Anatomy, Request


@dataclass(frozen=True, slots=True)
class Act:
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


def encoder_decoder(
    c: Config,
    request: Request,
    *,
    norm: Literal["rms", "layer"] = "layer",
    post_norm: bool = False,
    attention_bias: bool = True,
    mlp_bias: bool = True,
    key_bias: bool = True,
    act: Callable[[Config], Act] = plain,
    positions: Literal["relative", "learned", "sinusoidal", "audio"] = "learned",
    offset: int = 0,
    table_norm: bool = False,
    stack_norm: bool = True,
    unscaled_scores: bool = False,
    logits_bias: bool = False,
    head_width: str | None = None,
    experts: Callable[[Config, int, str], list[bool]] = no_experts,
    top_k: int = 1,
    capacity: bool = False,
    engine_may_tie: bool = False,
    scaled_head: bool = False,
    halved_waves: bool = False,
) -> Anatomy:
    """Return the two stacks.

    Args:
        c: the config.
        request: engine and extras.
        norm: kind of norm; layer norms have biases.
        post_norm: norms after the sum instead of before the block.
        attention_bias, mlp_bias, key_bias: whether projections add a vector; Whisper's keys don't.
        act: the activation.
        positions: T5's relative biases, learned tables, sinusoids that are computed, or Whisper's two tables.
        offset: rows of the learned tables that no token uses (BART: 2), or the first token's place in the sinusoids.
        table_norm: norm of the sum of embeddings (BART).
        stack_norm: norm after the last layer of each stack.
        unscaled_scores: scores aren't divided by sqrt(K) (T5).
        logits_bias: BART's stored vector that is no parameter.
        head_width: key of a head width that is not D / H (T5's d_kv).
        experts, top_k, capacity: which layers hold experts, how many a row visits, whether tokens can be dropped.
        engine_may_tie: the head shares the table under transformers whatever the config says (T5).
        scaled_head: hidden rows are divided by sqrt(D) before a head that the checkpoint ties (T5).
        halved_waves: sinusoids hold the sines, then the cosines (NLLB).
    """
    width, vocabulary = c.count("hidden_size"), c.count("vocab_size")
    says_tied = c.flag("tie_word_embeddings", True)
    tied = says_tied or (engine_may_tie and request.engine.ties_t5_heads)
    epsilon = c.number("layer_norm_epsilon", 1e-6) if norm == "rms" else 1e-5
    the_norm = Norm(width, norm, norm == "layer", epsilon)
    activation = act(c)
    buckets = c.count("relative_attention_num_buckets") if positions == "relative" else 0
    distance = int(c.number("relative_attention_max_distance", 128)) if positions == "relative" else 0
    scale = sqrt(width) if c.flag("scale_embedding", False) else 1.0

    def sublayer(block: Block) -> Sublayer:
        return Sublayer(block, join=the_norm) if post_norm else Sublayer(block, before=the_norm)

    def body(side: Literal["encoder", "decoder"]) -> list[Layer]:
        layers = (
            c.count("encoder_layers") if side == "encoder" else c.count("decoder_layers", c.count("encoder_layers"))
        )
        heads = c.count(f"{side}_attention_heads") if head_width else c.heads(f"{side}_attention_heads", width)
        head = c.count(head_width) if head_width else width // heads
        sparse = experts(c, layers, side)
        hidden = c.count(f"{side}_ffn_dim")
        dense = FeedForward(width, hidden, activation.gated, mlp_bias, mlp_bias, activation.name)
        mixture = _mixture(c, width, hidden, activation, top_k, mlp_bias, capacity) if any(sparse) else dense

        def attention(*, cross: bool = False, first: bool = False) -> Attention:
            return Attention(
                width, heads, heads, head, Mask(causal=side == "decoder" and not cross),
                attention_bias, attention_bias and key_bias, attention_bias, attention_bias, cross=cross,
                relative_buckets=buckets if first and not cross else 0,
                scale=1.0 if unscaled_scores else None, name="encoder_attn" if cross else "self_attn",
                relative_distance=0 if cross else distance,
            )  # fmt: skip

        def layer(index: int) -> Layer:
            first = sublayer(attention(first=index == 0))
            cross = (sublayer(attention(cross=True)),) if side == "decoder" else ()
            return Layer((first, *cross, sublayer(mixture if sparse[index] else dense)))

        return [layer(i) for i in range(layers)]

    def front(side: Literal["encoder", "decoder"]) -> tuple[Block, ...]:
        found: list[Block] = [Table("embed_tokens", vocabulary, width, "shared", scale)]
        if positions == "audio" and side == "encoder":
            found = [AudioFrontEnd(c.count("num_mel_bins"), width)]
        if positions in {"learned", "audio"}:
            table = Table("embed_positions", c.count(rows[side]) + offset, width, index="position", offset=offset)
            found.append(table)
        if positions == "sinusoidal":
            found.append(Sinusoids(width, offset, halved_waves))
        return (*found, the_norm) if table_norm else tuple(found)

    rows = (
        {"encoder": "max_source_positions", "decoder": "max_target_positions"}
        if positions == "audio"
        else dict.fromkeys(("encoder", "decoder"), "max_position_embeddings")
    )
    longest = None if positions == "relative" else c.count(rows["decoder"])
    source = None if positions == "relative" else c.count(rows["encoder"])
    back = (the_norm,) if stack_norm else ()
    scaled = scaled_head and says_tied
    head = Head(width, vocabulary, tie="shared" if tied else None, logits_bias=logits_bias,
                scale=width**-0.5 if scaled else 1.0)  # fmt: skip
    top = (head,) if request.head else ()
    encoder = Stack("encoder", front("encoder"), runs(body("encoder")), back)
    decoder = Stack("decoder", front("decoder"), runs(body("decoder")), (*back, *top))
    notes = []
    if tied and not says_tied:
        notes.append("transformers ties the head to the input table; the published checkpoint has a separate one")
    return Anatomy(
        "encoder-decoder", (encoder, decoder), longest, positions in {"learned", "audio"}, source, positions == "audio",
        tuple(notes),
    )  # fmt: skip


def _mixture(
    c: Config,
    width: int,
    hidden: int,
    act: Act,
    top_k: int,
    bias: bool,
    capacity: bool,
) -> MixtureOfExperts:
    count = c.count("num_experts")
    if top_k > count:
        raise PlanError(
            f"found {count}, at least {top_k} are needed", where=c.where("num_experts"), fix="correct the file"
        )
    return MixtureOfExperts(
        width, hidden, count, top_k, act.gated, bias, act.name, router_bias=c.flag("router_bias", False),
        scoring="softmax_top_k" if top_k > 1 else "softmax", capacity=capacity,
    )  # fmt: skip
