"""What single families of encoders have in place of plain tables, windows, feed-forward blocks or heads."""

from __future__ import annotations

from collections.abc import Callable

from planner.blocks import Attention, Block, FeedForward, Head, Leaf, Norm, Table, Weights, linear, vector
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.model import Layer, Run
from planner.topology import Request
from planner.topology.encoder import (
    Wiring,
    feeding,
    head_shape,
)


def plain_attention(c: Config, *, key_bias: bool = True) -> Attention:
    """Return BERT's attention."""
    width = c.count("hidden_size")
    heads, head = head_shape(c, width)
    return Attention(width, heads, heads, head, Mask(causal=False), True, key_bias, True, True)


def albert_groups(c: Config, layers: list[Layer]) -> tuple[Run, ...]:
    """ALBERT: each group of `inner_group_num` layers runs once for each layer that falls to it."""
    groups, inner, depth = c.count("num_hidden_groups"), c.count("inner_group_num"), len(layers)
    owners = [int(i / (depth / groups)) for i in range(depth)]
    times = [owners.count(group) for group in range(groups)]
    if len(set(times)) == 1:
        return (Run(groups * inner, layers[0], times[0]),)
    return tuple(Run(inner, layers[0], each) for each in times)


def esm_positions(c: Config) -> bool:
    """ESM: a table of positions, or none but rotary ones."""
    kind = c.text("position_embedding_type", "absolute", allowed=("absolute", "rotary"))
    return bool(kind == "absolute")


def contact_head(c: Config) -> list[Block]:
    """ESM: a regression on the attention of all layers, stored and not run; wave lengths, stored too."""
    if c.flag("is_folding_model", False):
        raise PlanError(
            "found true; the folding trunk isn't modelled", where=c.where("is_folding_model"), fix="set it to false"
        )
    heads, head = head_shape(c, c.count("hidden_size"))
    regression = Leaf("contact_head.regression", c.count("num_hidden_layers") * heads, 1, "other", bias=True)
    waves = vector("rotary_embeddings.inv_freq", head // 2, "other", buffer=True, own_dtype="float32")
    return [Weights((regression,) if esm_positions(c) else (regression, waves))]


def layer_table(name: str, rows: str, switch: str) -> Callable[[Config], list[Block]]:
    """Return the maker of one more table of that name, of `rows` rows, where the flag `switch` says so."""

    def further(c: Config) -> list[Block]:
        table = Table(name, c.count(rows), c.count("hidden_size"), index="type")
        return [table] if c.flag(switch, False) else []

    return further


def page_tables(c: Config) -> list[Block]:
    """LayoutLM: tables of places on a page, of heights and of widths."""
    rows, width = c.count("max_2d_position_embeddings"), c.count("hidden_size")
    return [Table(f"{axis}_position_embeddings", rows, width, index="position") for axis in "xyhw"]


def cell_tables(c: Config) -> list[Block]:
    """TAPAS: a table for each property of a cell."""
    sizes = c.counts("type_vocab_sizes", low=1) or (3, 256, 256, 2, 256, 256, 10)
    return [
        Table(f"token_type_embeddings_{i}", rows, c.count("hidden_size"), index="type") for i, rows in enumerate(sizes)
    ]


def language_table(c: Config) -> list[Block]:
    """XLM: a table of languages, where there are several."""
    if not c.flag("is_encoder", True):
        raise PlanError("found false; the reference has no decoder", where=c.where("is_encoder"), fix="set it to true")
    count = c.count("n_langs", 1, low=0)
    named = c.flag("use_lang_emb", True) and count > 1
    return [Table("lang_embeddings", count, c.count("hidden_size"), index="type")] if named else []


def glyph_tables(c: Config) -> list[Block]:
    """RoCBert: tables of sounds and shapes, and what brings all three together to one width."""
    width, joined = c.count("hidden_size"), c.count("hidden_size")
    blocks: list[Block] = []
    for name, switch in (("pronunciation", "enable_pronunciation"), ("shape", "enable_shape")):
        size = c.count(f"{name}_embed_dim")
        blocks.append(Table(f"{name}_embed", c.count(f"{name}_vocab_size"), size))
        joined += size * c.flag(switch, True)
    if c.flag("concat_input", True):
        blocks.append(Weights((linear("map_inputs_layer", joined, width, "embedding", bias=True),)))
    return blocks


def position_waves(c: Config) -> list[Block]:
    """RoFormer: stored waves that turn queries and keys."""
    rows, width = c.count("max_position_embeddings"), c.count("hidden_size")
    return [Weights((Leaf("embed_positions", rows, width // c.heads("num_attention_heads", width), "embedding"),))]


def relative_bias(c: Config) -> list[Block]:
    """MPNet: biases of relative positions, one table for all layers."""
    buckets, heads = c.count("relative_attention_num_buckets"), c.count("num_attention_heads")
    return [Weights((Leaf("relative_attention_bias", buckets, heads, "attention"),))]


def adapted_feeding(c: Config, request: Request, layers: int) -> list[Block | None]:
    """X-MOD: an adapter for each language after the feed-forward block, of which a row visits its own language's."""
    plain = feeding()(c, request, layers)
    width, languages = c.count("hidden_size"), c.texts("languages", ("en_XX",))
    inner = width // c.count("adapter_reduction_factor")
    leaves = [
        Leaf("adapter_modules.dense1", width, inner, "mlp", "linear", bias=True, copies=len(languages), active=1),
        Leaf("adapter_modules.dense2", inner, width, "mlp", "linear", bias=True, copies=len(languages), active=1),
    ]
    if c.flag("adapter_layer_norm", False):
        leaves.append(vector("adapter_layer_norm", width, "norm", bias=True))
    return [Weights((*block.leaves(), *leaves)) for block in plain if block]


def pre_norm(c: Config) -> Wiring:
    """Norms stand before each block where `pre_norm` says so."""
    return "pre" if c.flag("pre_norm", False) else "post"


def final_if_pre(c: Config, width: int) -> Norm | None:
    """One more norm after the last layer where `pre_norm` says so."""
    return (
        Norm(width, "layer", bias=True, epsilon=c.number("layer_norm_eps", 1e-12))
        if c.flag("pre_norm", False)
        else None
    )


def four_times(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """XLM: hidden rows four times as wide."""
    width, act = c.count("hidden_size"), "gelu" if c.flag("gelu_activation", True) else "relu"
    return [FeedForward(width, 4 * width, False, True, True, act)] * layers


def low_rank_head(c: Config) -> tuple[Block, ...]:
    """UltraBERT: rows pass a narrow matrix and come back before they meet the vocabulary."""
    width, inner = c.count("hidden_size"), c.count("prediction_head_size")
    tie = "word_embeddings" if c.flag("tie_word_embeddings", False) else None
    return (
        Weights((linear("head.linear1", width, inner, "head"), linear("head.linear2", inner, width, "head"))),
        Head(width, c.count("vocab_size"), tie=tie, every_row=True),
    )


def spread_windows(c: Config, layers: int) -> list[int | None]:
    """ModernBERT: every third layer sees all, from the first on; others half of `local_attention` to either side."""
    step = c.count("global_attn_every_n_layers", 3)
    kinds = c.per_layer("layer_types", layers, ("full_attention", "sliding_attention"))
    kinds = kinds or ["sliding_attention" if i % step else "full_attention" for i in range(layers)]
    size = c.count("local_attention") // 2
    return [size if kind == "sliding_attention" else None for kind in kinds]


def third_full(c: Config, layers: int) -> list[int | None]:
    """UltraBERT: every third layer sees all; old configs list each layer's window."""
    old, size = c.counts("attention_windows", layers), c.count("sliding_window")
    kinds = c.per_layer("layer_types", layers, ("full_attention", "sliding_attention"))
    if old:
        size = next((window for window in old if window), size)
        kinds = kinds or ["sliding_attention" if window else "full_attention" for window in old]
    kinds = kinds or ["sliding_attention" if (i + 1) % 3 else "full_attention" for i in range(layers)]
    return [size if kind == "sliding_attention" else None for kind in kinds]
