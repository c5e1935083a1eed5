"""Decoders with experts whose windows, heads or configs are unlike others': see `planner.families.experts`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from planner.blocks import Attention, Block, LatentAttention, Leaf, MixtureOfExperts, Weights, linear, vector
from planner.compressed import CompressedAttention, ExpertAttention, HyperConnections, Indexer
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.model import Layer, Sublayer
from planner.topology import Anatomy, Maker, Request
from planner.topology.attention import Gate, attention, latent_attention, listed_windows
from planner.topology.decoder import decoder
from planner.topology.feed_forward import every_layer, mixture

SLIDING, FULL = "sliding_attention", "full_attention"


def switched_windows(c: Config, layers: int) -> list[int | None]:
    """Qwen 3 MoE: windows in every layer, where they are switched on."""
    size = c.count("sliding_window", None)
    return [size if c.flag("use_sliding_window", False) else None] * layers


def alternating_early(c: Config, layers: int) -> list[int | None]:
    """Qwen 2 MoE: windows, if switched on, in every other layer below `max_window_layers`."""
    on, last = c.flag("use_sliding_window", False), c.count("max_window_layers", layers, low=0)
    c.ignore("sliding_window", "layer_types")
    windows = listed_windows(lambda _c, n: [SLIDING if on and i % 2 == 0 and i < last else FULL for i in range(n)])
    return windows(c, layers) if on else [None] * layers


def late(c: Config, layers: int) -> list[str]:
    """dots.llm1: windows, if there is one, from layer `max_window_layers` on."""
    first = c.count("max_window_layers", layers, low=0)
    there = c.count("sliding_window", None) is not None
    return [SLIDING if there and i >= first else FULL for i in range(layers)]


def full_of_four(_c: Config, layers: int) -> list[str]:
    """Granite SWA: every fourth layer sees all, from the first on."""
    return [SLIDING if i % 4 else FULL for i in range(layers)]


def all_full(_c: Config, layers: int) -> list[str]:
    """Every layer sees all."""
    return [FULL] * layers


def indexers(shared: Callable[[Config, int], list[bool]] | None = None) -> Maker:
    """Return the maker of DeepSeek-V3.2's indexers; `shared` says which layers use the choice of one before them."""

    def blocks(c: Config, _request: Request, layers: int) -> list[Block | None]:
        c.per_layer("layer_types", layers, ("indexed_attention",))
        one = indexer(c)
        return [None if uses else one for uses in (shared(c, layers) if shared else [False] * layers)]

    return blocks


def indexer(c: Config) -> Indexer:
    """Return DeepSeek-V3.2's indexer."""
    return Indexer(c.count("hidden_size"), c.count("q_lora_rank"), c.count("index_n_heads"), c.count("index_head_dim"))


def scheduled(c: Config, layers: int) -> list[bool]:
    """GLM-5: layers that share, as `indexer_types` lists them, a pattern spells them ("FSSS"), or a schedule repeats."""
    listed = c.per_layer("indexer_types", layers, ("full", "shared"))
    pattern = c.raw("index_topk_pattern", None)
    step, offset = c.count("index_topk_freq", 1), c.count("index_skip_topk_offset", 2, low=0)
    if listed is None and pattern is not None:
        listed = [{"F": "full", "S": "shared"}.get(kind, kind) for kind in pattern]
        if len(listed) != layers or not {"full", "shared"}.issuperset(listed):
            raise PlanError(
                f"found {pattern!r}, {layers} of F and S are needed",
                where=c.where("index_topk_pattern"),
                fix="give one letter for each layer",
            )
    return [
        kind == "shared"
        for kind in listed or ["shared" if max(i - offset + 1, 0) % step else "full" for i in range(layers)]
    ]


def one_of_four(c: Config, layers: int) -> list[bool]:
    """HY 4: layers that share, as `indexer_types` lists them, else all but the first and every fourth from the second on."""
    listed = c.per_layer("indexer_types", layers, ("full", "shared"))
    return [
        kind == "shared" for kind in listed or ["full" if i == 0 or i % 4 == 1 else "shared" for i in range(layers)]
    ]


def block_sparse(c: Config, request: Request, layers: int) -> list[Block | None]:
    """MiniMax-M3: in sparse layers an indexer chooses blocks of keys; `sparse_attention_config` is the older form."""
    given = c.table("sparse_attention_config")
    listed = c.per_layer("layer_types", layers, ("full_attention", "minimax_m3_sparse"))
    older = given.get("sparse_attention_freq") or [0] * layers
    sparse = [kind != "full_attention" for kind in listed] if listed else [bool(each) for each in older]
    if len(sparse) != layers:
        raise PlanError(f"found {len(sparse)} entries, {layers} are needed", where=c.where("sparse_attention_config"))
    named = dict(
        index_n_heads="sparse_num_index_heads", index_head_dim="sparse_index_dim", index_block_size="sparse_block_size",
        index_topk_blocks="sparse_topk_blocks", index_local_blocks="sparse_local_block",
    )  # fmt: skip
    inner = replace(c, values={**c.values, **{key: given[old] for key, old in named.items() if old in given}})
    size, blocks = inner.count("index_block_size"), inner.count("index_topk_blocks")
    inner.count("index_local_blocks", 1, low=0)
    indexer = Indexer(c.count("hidden_size"), c.count("hidden_size"), inner.count("index_n_heads"),
                      inner.count("index_head_dim"), weighted=False)  # fmt: skip
    made = attention(qk_norm="head")(c, request, layers)
    return [
        replace(block, chooser=indexer, mask=Mask(chosen=size * blocks, grain=size)) if some else block
        for block, some in zip(made, sparse, strict=True)
        if isinstance(block, Attention)
    ]


def listed_numbers(c: Config, layers: int) -> list[bool]:
    """Which layers hold experts, as `moe_layer_freq` lists them (1: experts); all where it is missing."""
    return [bool(each) for each in c.counts("moe_layer_freq", layers) or [1] * layers]


def listed_but_first(c: Config, layers: int) -> list[bool]:
    """MiMo-V2: the same, but all layers except the first where it is missing."""
    return [bool(each) for each in c.counts("moe_layer_freq", layers) or [0] + [1] * (layers - 1)]


def either_width(c: Config, request: Request, layers: int) -> list[Block | None]:
    """MiMo-V2: windows in most layers, which have twice the key-value heads, and sinks; values are narrower than keys."""
    pattern = c.counts("hybrid_layer_pattern", layers)
    listed = c.per_layer("layer_types", layers, (FULL, SLIDING))
    derived = [SLIDING if each else FULL for each in pattern] if pattern else None
    kinds = listed or derived or [SLIDING if i and (i + 1) % 6 else FULL for i in range(layers)]
    beyond = c.count("sliding_window_size", None)
    window = beyond + 1 if beyond else c.count("sliding_window")
    made = attention(qkv_bias="attention_bias")(c, request, layers)
    groups = c.count("swa_num_key_value_heads", 2 * c.count("num_key_value_heads"))
    sinks = {SLIDING: c.flag("add_swa_attention_sink_bias", True), FULL: c.flag("add_full_attention_sink_bias", False)}
    own = {"heads": "swa_num_attention_heads", "head": "swa_head_dim", "value": "swa_v_head_dim"}
    c.ignore("sliding_window", "attention_chunk_size", *own.values())
    found: list[Block | None] = []
    for block, kind in zip(made, kinds, strict=True):
        assert isinstance(block, Attention)
        one = replace(block, value=c.count("v_head_dim", block.head), sinks=sinks[kind])
        near = replace(one, kv_heads=groups, mask=Mask(window=window))
        widths = {trait: c.count(key, getattr(near, trait)) for trait, key in own.items()}
        narrow = replace(near, **widths)
        if narrow != near and not request.does("ignores_window_widths"):
            near = narrow
        found.append(near if kind == SLIDING else one)
    return found


def heads_of_their_own(c: Config, request: Request, layers: int) -> list[Block | None]:
    """Laguna: query heads layer by layer."""
    heads = c.counts("num_attention_heads_per_layer", layers, low=1)
    gate: Gate = "head" if c.raw("gating", True) in (True, "per-head") else "element"
    windows = listed_windows(all_full)
    made = attention(qk_norm="head", windows=windows, gate=gate, qkv_bias="attention_bias", out_bias="attention_bias")
    blocks = made(c, request, layers)
    return [replace(block, heads=h) if isinstance(block, Attention) else block
            for block, h in zip(blocks, heads, strict=True)] if heads else blocks  # fmt: skip


def chunks(c: Config, request: Request, layers: int) -> list[Block | None]:
    """Llama 4: most layers see their own chunk of `attention_chunk_size` tokens, the others all, without positions."""
    size, step = c.count("attention_chunk_size", None), c.count("no_rope_layer_interval", 4)
    turned = c.counts("no_rope_layers") or [int((i + 1) % step != 0) for i in range(layers)]
    listed = c.per_layer("layer_types", layers, ("chunked_attention", FULL))
    if len(turned) != layers:
        raise PlanError(f"found {len(turned)} entries, {layers} are needed", where=c.where("no_rope_layers"))
    kinds = listed or ["chunked_attention" if each and size else FULL for each in turned]
    if size is None and "chunked_attention" in kinds:
        raise PlanError("missing or null, but layers use it", where=c.where("attention_chunk_size"))
    c.ignore("use_qk_norm")
    made = attention(qkv_bias="attention_bias", out_bias="attention_bias")(c, request, layers)
    return [
        replace(block, mask=Mask(chunk=None if kind == FULL else size), rope=block.rope if turns else None)
        for block, kind, turns in zip(made, kinds, turned, strict=True)
        if isinstance(block, Attention)
    ]


def dense_prefix(c: Config, layers: int) -> list[int | None]:
    """Cohere 2 MoE: the dense layers at the start have a pattern of windows of their own."""
    dense = c.count("first_k_dense_replace", 0, low=0)
    first, step = c.count("prefix_dense_sliding_window_pattern", 1), c.count("sliding_window_pattern", 4)
    before = [SLIDING if (i + 1) % first else FULL for i in range(min(dense, layers))]
    kinds = before + [SLIDING if (i + 1) % step else FULL for i in range(layers - len(before))]
    return listed_windows(lambda _c, _layers: kinds)(c, layers)


def either_norm(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Cohere 2 MoE: RMS norms where `rms_norm_eps` is given."""
    return decoder(c, request, norm="layer" if c.number("rms_norm_eps", None) is None else "rms", **traits)


def unpacked(c: Config, request: Request, *, tables: tuple[str, ...], **traits: Any) -> Anatomy:
    """DBRX: part of the keys stand in objects inside the config."""
    inside = {key: value for table in tables for key, value in c.table(table).items() if key != "model_type"}
    return decoder(replace(c, values={**inside, **c.values}), request, **traits)


def shared_by_number(c: Config, hidden: int) -> int:
    """Hunyuan: `num_shared_expert` times a routed expert's width; a list has one number for each layer, all equal."""
    given = c.raw("n_shared_experts", 1)
    if isinstance(given, list) and len(set(given)) == 1:
        return int(given[0]) * hidden
    return int(c.count("n_shared_experts", 1)) * hidden


RATIOS = {0: SLIDING, 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
"""DeepSeek-V4: what its own configs give as `compress_ratios`, tokens to a compressed row."""


def compressed(c: Config, request: Request, layers: int) -> list[Block | None]:
    """DeepSeek-V4: layers see a window only, or a compressed past too, all of it or the rows that an indexer chooses."""
    ratios = c.counts("compress_ratios")
    if ratios is not None and (len(ratios) < layers or not RATIOS.keys() >= set(ratios)):
        raise PlanError(
            f"found {ratios}, a list of at least {layers} is needed, each one of {', '.join(map(str, RATIOS))}",
            where=c.where("compress_ratios"),
            fix="other ratios can be given as layer_types and compress_rates",
        )
    own = [RATIOS[ratio] for ratio in (ratios or [])[:layers]]
    dense, chosen = RATIOS[128], RATIOS[4]
    usual = [chosen if i >= 2 and i % 2 else dense for i in range(layers)]
    kinds = c.per_layer("layer_types", layers, tuple(RATIOS.values())) or own or usual
    rates = {dense: 128, chosen: 4, **c.table("compress_rates")}
    c.ignore("num_key_value_heads", "qk_rope_head_dim", "attention_bias", "rope_theta", "rope_scaling", "rope_parameters",
             "partial_rotary_factor")  # fmt: skip
    one = CompressedAttention(
        c.count("hidden_size"), c.count("num_attention_heads"), c.count("head_dim"), c.count("q_lora_rank"),
        c.count("o_groups"), c.count("o_lora_rank"), c.count("sliding_window"), twice=request.does("doubles_shared_values"),
    )  # fmt: skip
    if one.heads % one.groups:
        raise PlanError(f"found {one.groups}, which does not divide {one.heads} heads", where=c.where("o_groups"))
    wide = replace(one, stride=rates[dense], twice=False)
    sparse = replace(
        wide, stride=rates[chosen], chosen=c.count("index_topk"), index_heads=c.count("index_n_heads"),
        index_head=c.count("index_head_dim"),
    )  # fmt: skip
    made = {SLIDING: one, dense: wide, chosen: sparse}
    return [made[kind] for kind in kinds]


def hashed(c: Config, request: Request, layers: int) -> list[Block | None]:
    """DeepSeek-V4: in the first layers a table says which experts each token of the vocabulary visits."""
    listed = c.per_layer("mlp_layer_types", layers, ("hash_moe", "moe"))
    first = c.count("num_hash_layers", 3, low=0)
    tables = [kind == "hash_moe" for kind in listed] if listed else [i < first for i in range(layers)]
    made = mixture(sparse=every_layer, correction_bias=True, scoring="sqrtsoftplus", shared_bias="mlp_bias")
    return [
        replace(block, correction_bias=False, token_table=c.count("vocab_size")) if table else block
        for block, table in zip(made(c, request, layers), tables, strict=True)
        if isinstance(block, MixtureOfExperts)
    ]


def streams(c: Config, request: Request, *, mixed: bool, **traits: Any) -> Anatomy:
    """Hyper-connections: `hc_mult` residual streams, drawn together before each block and before the head."""
    anatomy = decoder(c, request, **traits)
    (stack,) = anatomy.stacks
    one = HyperConnections(c.count("hidden_size"), c.count("hc_mult"), mixed=mixed)
    last = replace(one, sites=("hc_head",), head=True)
    runs = tuple(
        replace(run, layer=replace(run.layer, sublayers=(*run.layer.sublayers, Sublayer(one)))) for run in stack.runs
    )
    return anatomy._replace(stacks=(replace(stack, runs=runs, back=(last, *stack.back)),))


def gate_and_sinks(_c: Config, attention: LatentAttention) -> tuple[Leaf, ...]:
    """HY 4: a gate for each element of the output, and a sink for each head."""
    gate = linear("gate_proj", attention.width, attention.heads * attention.value, "attention")
    return (gate, vector("sinks", attention.heads, "attention", own_dtype="float32"))


def gated_norms(c: Config, request: Request, **traits: Any) -> Anatomy:
    """A.X K2: norms before attention and before experts have a small gate [D, r], [r, D] of their own."""
    anatomy = decoder(c, request, **traits)
    (stack,) = anatomy.stacks
    width, rank = c.count("hidden_size"), c.count("gated_norm_rank")

    def gated(layer: Layer) -> Layer:
        sites = ["input_layernorm"]
        if any(isinstance(block, MixtureOfExperts) for block in layer.blocks):
            sites.append("post_attention_layernorm")
        gates = Weights(
            tuple(
                leaf
                for site in sites
                for leaf in (
                    linear(f"{site}.mlp.fc1", width, rank, "norm"),
                    linear(f"{site}.mlp.fc2", rank, width, "norm"),
                )
            )
        )
        return replace(layer, sublayers=(*layer.sublayers, Sublayer(gates)))

    runs = tuple(replace(run, layer=gated(run.layer)) for run in stack.runs)
    return anatomy._replace(stacks=(replace(stack, runs=runs),))


def doubled(c: Config, request: Request, **traits: Any) -> Anatomy:
    """LongCat: a layer is two of attention and dense block each; the experts stand beside what follows the first attention."""
    anatomy = decoder(c, request, **traits)
    (stack,) = anatomy.stacks
    experts = mixture(
        sparse=every_layer, correction_bias=True, identities="zero_expert_num", router="router.classifier", router_bias="router_bias",
        shared=lambda _c, _hidden: 0,
    )  # fmt: skip
    (mixed,) = experts(c, request, 1)
    assert mixed is not None

    def twice(layer: Layer) -> Layer:
        attention, dense = layer.sublayers
        return replace(layer, sublayers=(attention, Sublayer(mixed), dense, attention, dense))

    runs = tuple(replace(run, layer=twice(run.layer)) for run in stack.runs)
    return anatomy._replace(stacks=(replace(stack, runs=runs),))


def mixed_heads(c: Config, _request: Request, layers: int) -> list[Block | None]:
    """JetMoE: experts of queries and outputs, `num_experts_per_tok` of them to a token, on common keys and values."""
    top_k, groups = c.count("num_experts_per_tok"), c.count("num_key_value_heads")
    block = ExpertAttention(c.count("hidden_size"), groups, c.count("head_dim"), c.count("num_experts"), top_k)
    c.ignore("num_attention_heads", "rope_parameters", "rope_theta", "rope_scaling")
    return [block] * layers


SWA = dict(
    num_attention_heads=64, num_key_value_heads=64, q_lora_rank=1024, kv_lora_rank=1024, head_dim=256, qk_nope_head_dim=192,
    v_head_dim=128,
)  # fmt: skip
"""dots3: what its layers with windows have where the config doesn't say (`swa_...`)."""


def two_latents(c: Config, request: Request, layers: int) -> list[Block | None]:
    """dots3: layers with windows have latents and heads of their own, the others an indexer."""
    given = {int(i): each for i, each in c.table("per_layer_config").items()}
    sparse = c.flag("use_dsa", True) or bool(given)
    windows = c.flag("use_sliding_window", True)
    listed = c.per_layer("layer_types", layers, ("indexed_attention", FULL, SLIDING))
    usual = [SLIDING if windows and i >= 2 and i % 4 != 1 else "indexed_attention" for i in range(layers)]
    kinds = listed or usual
    window = c.count("sliding_window", None) or c.count("sliding_window_size", 512)
    near = {name: c.values.get(f"swa_{name}", value) for name, value in SWA.items()}
    near["qk_rope_head_dim"] = c.values.get("swa_qk_rope_head_dim", near["head_dim"] - near["qk_nope_head_dim"])
    c.read.update(f"swa_{name}" for name in near)
    c.ignore("sliding_window_size", "mlp_bias")
    chooser = indexer(c)
    found: list[Block | None] = []
    for i, kind in enumerate(kinds):
        own = given.get(i, near if kind == SLIDING and not given else {})
        inner = replace(c, values={**c.values, **own})
        made = latent_attention(bias="attention_bias", extra=gate_and_norm)(inner, request, 1)[0]
        assert isinstance(made, LatentAttention)
        chosen = Mask(chosen=c.count("index_topk"))
        if kind == SLIDING:
            found.append(replace(made, mask=Mask(window=window)))
        else:
            found.append(replace(made, mask=chosen, chooser=chooser) if sparse and kind != FULL else made)
    return found


def gate_and_norm(_c: Config, attention: LatentAttention) -> tuple[Leaf, ...]:
    """dots3: a norm of the rotary key, and a gate for each head."""
    return (
        vector("k_rope_only_layernorm", attention.rope, "norm"),
        linear("g_proj", attention.width, attention.heads, "attention"),
    )


def shared_width_times(c: Config, _hidden: int) -> int:
    """dots3: `n_shared_experts` times a width of their own."""
    own = c.count("moe_shared_expert_intermediate_size", None) or c.count("shared_experts_intermediate_size", 1536)
    return int(own) * int(c.count("n_shared_experts", 1, low=0))


def first_or_listed(c: Config, layers: int) -> list[bool]:
    """dots3: `moe_layer_freq` is a step or a list."""
    freq, first = c.raw("moe_layer_freq", 1), c.count("first_k_dense_replace", 1, low=0)
    if isinstance(freq, list):
        return [i >= first and bool(each) for i, each in enumerate(c.counts("moe_layer_freq", layers) or [])]
    step = c.count("moe_layer_freq", 1)
    return [i >= first and i % step == 0 for i in range(layers)]
