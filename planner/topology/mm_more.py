"""Towers and what stands behind them of DeepSeek-VL, Janus, Unlimited-OCR, Granite Docling and their like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.blocks import Attention, Block, FeedForward, Leaf, Norm, Table, Weights, linear, vector
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.model import Layer, Run, Stack, Sublayer, runs
from planner.ngrams import BlockIndexer, Ngrams, WholeBlocks, table_rows
from planner.topology import Anatomy, Request
from planner.topology.attention import attention, grouped
from planner.topology.decoder import decoder
from planner.topology.feed_forward import every_layer, feed_forward, mixture, shared_width
from planner.topology.gemma import gemma4
from planner.topology.kinds import by_kind
from planner.topology.listeners import got_tower, qformer_layers
from planner.topology.multimodal import Projector, Sense, multimodal, part
from planner.topology.projectors import gemma4_projector, linear_projector
from planner.topology.recurrent import gated_delta
from planner.topology.towers import Tower, and_class, every_patch, merger, multiple, two, vit, whole_numbers

UP: dict[str, Any] = dict(bias=True, feeds="merged")


def _affine(name: str, size: int, kind: Any = "norm") -> Leaf:
    return vector(name, size, kind, bias=True)


def below(blocks: Sequence[Block], at: str) -> tuple[Block, ...]:
    """Return blocks with a path in front of their leaves' names."""
    return tuple(Weights(tuple(replace(leaf, name=f"{at}.{leaf.name}") for leaf in block.leaves())) for block in blocks)


def aligned(_c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """DeepSeek-VL: two matrices."""
    return (merger("aligner", tower.width, width, width, names=("", "linear1", "linear2")),)


def sharp(c: Config, width: int) -> Sequence[Stack]:
    """DeepSeek-VL's second tower, SAM's, for images in high resolution; its first global layer's rows get a neck of their own."""
    own = part(c, "high_res_vision_config")
    tower = got_tower(own)
    own.ignore("mlp_ratio", "num_pos_feats")
    d, out, at = own.count("hidden_size"), tower.width, "high_res_vision_model.vision_encoder"
    neck = Weights(
        (
            linear("high_res_vision_neck.conv1", d, out, "conv", work="conv"), _affine("high_res_vision_neck.layer_norm1", out),
            linear("high_res_vision_neck.conv2", 9 * out, out, "conv", work="conv"), _affine("high_res_vision_neck.layer_norm2", out),
            vector("high_res_vision_alpha", 1, "other"),
            linear("high_res_vision_proj.conv1", 9 * out, 2 * out, "other", work="conv", feeds="merged", rate=4),
            linear("high_res_vision_proj.conv2", 18 * out, 4 * out, "other", work="conv", feeds="merged"),
            linear("aligner.high_res_vision_proj", 4 * out, width // 2, "other", bias=True, feeds="merged"),
        )
    )  # fmt: skip
    body = tuple(replace(run, list=f"{at}.{tower.list}") for run in runs(list(tower.layers)))
    return (Stack("vision", below(tower.front, at), body, (*below(tower.back, at), neck)),)


def blurred(_c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """DeepSeek-VL hybrid: half of a row's width is each tower's; one more matrix."""
    return (
        Weights(
            (
                linear("aligner.vision_proj", tower.width, width // 2, "other", bias=True, feeds="merged"),
                linear("aligner.proj", width, width, "other", bias=True, feeds="merged"),
            )
        ),
    )


def janus_tower(c: Config) -> Tower:
    """Janus' tower: SigLIP's, whose norms of queries and keys may be there, and add vectors."""
    bias = "qkv out mlp" if c.flag("attention_bias", True) else "out mlp"
    tower = vit(
        c, epsilon="layer_norm_eps", hidden=lambda inner: multiple(inner, "hidden_size", "mlp_ratio"), biases=bias, patch_bias=True,
        positions=every_patch, norms="post",
    )  # fmt: skip
    if not c.flag("use_qk_norm", False):
        return tower
    norm = Norm(tower.width, "layer", True)
    return tower._replace(layers=tuple(_normed(layer, norm) for layer in tower.layers))


def _normed(layer: Layer, norm: Norm) -> Layer:
    """Return a layer whose queries and keys are normed."""
    return replace(
        layer,
        sublayers=tuple(
            replace(sub, block=replace(sub.block, qk_norm=norm)) if isinstance(sub.block, Attention) else sub
            for sub in layer.sublayers
        ),
    )


def janus_projector(_c: Config, inner: Config, tower: Tower, _width: int) -> Sequence[Block]:
    """One matrix; further ones are a list of their own."""
    return (Weights((linear("aligner.fc1", tower.width, inner.count("projection_dim"), "other", **UP),)),)


def _more(name: str, width: int, count: int) -> tuple[Run, ...]:
    """Return the further matrices of an aligner."""
    one = Layer((Sublayer(Weights((linear("weight", width, width, "other", **UP),))),))
    return (Run(count, one, list=name),) if count else ()


def _stored(name: str, into: int, out: int, kernel: int = 1, kind: Any = "conv") -> Leaf:
    """Return a convolution that only making images visits."""
    return Leaf(name, into * kernel * kernel, out, kind, bias=True)


def _resnet(at: str, into: int, out: int) -> list[Leaf]:
    """Return two convolutions after norms, and a third where the width changes."""
    leaves = [
        _affine(f"{at}.norm1", into), _stored(f"{at}.conv1", into, out, 3), _affine(f"{at}.norm2", out), _stored(f"{at}.conv2", out, out, 3),
    ]  # fmt: skip
    return leaves if into == out else [*leaves, _stored(f"{at}.nin_shortcut", into, out)]


def _attends(at: str, width: int) -> list[Leaf]:
    """Return attention between the places of an image."""
    names = ("q", "k", "v", "proj_out")
    return [_affine(f"{at}.norm", width), *(_stored(f"{at}.{name}", width, width, kind="attention") for name in names)]


def _mid(at: str, width: int, *, attends: bool = True) -> list[Leaf]:
    """Return the blocks at the lowest resolution."""
    ends = (_resnet(f"{at}.mid.block_1", width, width), _resnet(f"{at}.mid.block_2", width, width))
    return [*ends[0], *(_attends(f"{at}.mid.attn_1", width) if attends else ()), *ends[1]]


def _levels(into: list[int], out: list[int], count: int, last: list[bool], final: int, change: str) -> list[Layer]:
    """Return a level for each resolution: residual blocks, attention where `last`, and a change of resolution but in level `final`."""
    made = []
    for i, wide in enumerate(out):
        leaves = [
            leaf for j in range(count)
            for leaf in (*_resnet(f"block.{j}", wide if j else into[i], wide), *(_attends(f"attn.{j}", wide) if last[i] else ()))
        ]  # fmt: skip
        change_leaf = [_stored(f"{change}.conv", wide, wide, 3)] if i != final else []
        made.append(Layer((Sublayer(Weights((*leaves, *change_leaf))),)))
    return made


def vqgan(
    c: Config,
    at: str,
    *,
    decoder: bool = True,
    attends: Callable[[int, int], bool] = lambda i, n: i == n - 1,
    mid: bool = True,
) -> tuple[tuple[Run, ...], tuple[Leaf, ...]]:
    """Return the lists of an autoencoder with a codebook (VQ-GAN, arXiv:2012.09841), and what stands around them.

    Args:
        c: its config. at: its path, which the lists' names start with.
        decoder: whether it has the way back.
        attends: whether a level, of so many, has attention. mid: whether the blocks after the last one have.
    """
    base, many = c.count("base_channels"), whole_numbers(c, "channel_multiplier")
    if not many or min(many) < 1:
        raise PlanError("whole numbers above 0 are needed", where=c.where("channel_multiplier"), fix="correct the file")
    blocks, latent, wide = c.count("num_res_blocks"), c.count("latent_channels"), base * many[-1]
    e, codes, n = c.count("embed_dim"), c.count("num_embeddings"), len(many)
    out = [base * each for each in many]
    down = _levels([base, *out[:-1]], out, blocks, [attends(i, n) for i in range(n)], n - 1, "downsample")
    lists = [replace(run, list=f"{at}.encoder.down") for run in runs(down)]
    leaves = [
        _stored("encoder.conv_in", c.count("in_channels"), base, 3), *_mid("encoder", wide, attends=mid), _affine("encoder.norm_out", wide),
        _stored("encoder.conv_out", wide, latent * (2 if c.flag("double_latent", False) else 1), 3),
        Leaf("quantize.embedding", codes, e, "embedding"), _stored("quant_conv", latent, e), _stored("post_quant_conv", e, latent),
    ]  # fmt: skip
    if decoder:
        back = out[::-1]
        up = _levels([wide, *back[:-1]], back, blocks + 1, [i == 0 for i in range(n)], n - 1, "upsample")
        lists += [replace(run, list=f"{at}.decoder.up") for run in runs(up)]
        leaves += [
            _stored("decoder.conv_in", latent, wide, 3), *_mid("decoder", wide), _affine("decoder.norm_out", back[-1]),
            _stored("decoder.conv_out", back[-1], c.count("out_channels"), 3),
        ]  # fmt: skip
    return tuple(lists), tuple(leaves)


def paints(c: Config, _width: int) -> Sequence[Stack]:
    """Janus' further part: an autoencoder of images, whose codes the text model reads and writes."""
    sees, own = next(each for each in c.below if each.scope.endswith("vision_config.")), part(c, "vq_config")
    lists, leaves = vqgan(own, "vqmodel")
    codes, e, p = own.count("num_embeddings"), own.count("embed_dim"), own.count("projection_dim")
    generation = (
        Leaf("generation_embeddings", codes, e, "embedding"),
        _stored("generation_aligner.fc1", e, p, kind="other"),
        _stored("generation_head.proj_out", own.count("image_token_embed_dim"), p, kind="other"),
        _stored("generation_head.vision_head", p, codes, kind="other"),
    )
    own.ignore("num_patches")
    aligner = _more("aligner.hidden_layers", sees.count("projection_dim"), sees.count("depth", low=1) - 1)
    further = own.count("num_hidden_layers") - 1
    one = Layer((Sublayer(Weights((_stored("weight", p, p, kind="other"),))),))
    again = (Run(further, one, list="generation_aligner.hidden_layers"),) if further else ()
    back = (*below((Weights(leaves),), "vqmodel"), Weights(generation))
    return (Stack("vision", (), (*aligner, *again, *lists), back),)


def _cut(c: Config) -> tuple[Tower, int]:
    """Return SAM's tower with two convolutions behind its neck, and their width."""
    sam = part(c, "sam_config")
    tower, wide = got_tower(sam), whole_numbers(sam, "downsample_channels", default=[512, 896])
    sam.ignore("mlp_ratio")
    if len(wide) != 2 or min(wide) < 1:
        raise PlanError("two whole numbers are needed", where=sam.where("downsample_channels"), fix="correct the file")
    proj = (
        linear("proj.conv1", 9 * tower.width, wide[0], "conv", work="conv", feeds="merged", rate=4),
        linear("proj.conv2", 9 * wide[0], wide[1], "conv", work="conv", feeds="merged"),
    )
    at = "sam_encoder"
    return tower._replace(front=below(tower.front, at), back=below((*tower.back, Weights(proj)), at)), wide[1]


def _then(first: Tower, second: Tower, width: int) -> Tower:
    """Return a tower whose rows another's layers read."""
    at = "vision_encoder"
    lists = tuple(replace(run, list=f"vision_tower.{at}.{second.list}") for run in runs(list(second.layers)))
    back = (*first.back, *below(second.back, at))
    front = (*first.front, *below(second.front, at))
    return Tower(front, first.layers, back, width, list="sam_encoder.layers", more=lists)


def ocr_tower(c: Config) -> Tower:
    """Unlimited-OCR: SAM's tower cuts an image into rows, and CLIP's layers read them."""
    first, wide = _cut(c)
    clip = vit(part(c, "encoder_config"), epsilon="layer_norm_eps", class_token=True, positions=and_class, norms="pre")
    return _then(first, clip._replace(front=clip.front[1:]), wide + clip.width)


OCR_QUERIES = {"query_768_resolution": 144, "query_1024_resolution": 256}
"""DeepSeek-OCR 2's learned queries, for images of either size."""


def ocr2_tower(c: Config) -> Tower:
    """DeepSeek-OCR 2: SAM's tower cuts an image into rows, and the layers of a text model, Qwen 2's, read them and its queries."""
    first, _ = _cut(c)
    own = part(c, "encoder_config")
    d, layers = own.count("hidden_size"), own.count("num_hidden_layers")
    heads = own.heads("num_attention_heads", d)
    head = own.count("head_dim", d // heads)
    block = Attention(d, heads, grouped(own, heads), head, Mask(causal=False), True, True, True)
    norm, f = Norm(d, epsilon=own.number("rms_norm_eps", 1e-6)), own.count("intermediate_size")
    layer = Layer((Sublayer(block, before=norm), Sublayer(FeedForward(d, f), before=norm)))
    own.ignore("vocab_size", "max_position_embeddings", "layer_types", "sliding_window", "use_sliding_window", "max_window_layers",
               "rope_parameters", "rope_scaling", "rope_theta", "tie_word_embeddings", "hidden_act")  # fmt: skip
    queries = Weights(tuple(Leaf(name, rows, d, "embedding") for name, rows in OCR_QUERIES.items()))
    tower = _then(first, Tower((), (layer,) * layers, (Weights((vector("norm", d, "norm"),)),), d), d)
    return tower._replace(front=(*tower.front, queries))


def ocr_projector(*rows: str) -> Projector:
    """Return the maker of one matrix, and of learned rows that end lines and views."""

    def projector(_c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
        ends = tuple(vector(name, width, "other") for name in rows)
        one = linear("multi_modal_projector", tower.width, width, "other", bias=True, feeds="merged")
        return (Weights((one, *ends)),)

    return projector


REFERENCED = "reference_sliding_attention"


def referenced(c: Config, request: Request, layers: int) -> list[Block | None]:
    """Unlimited-OCR: layers may see the whole prompt, and a window of what is generated after it; planned without the window."""
    kinds = c.per_layer("layer_types", layers, (REFERENCED, "full_attention")) or [REFERENCED]
    window = c.count("sliding_window", None)
    if REFERENCED in kinds and window:
        c.notes.append(
            f"of the tokens after the prompt, layers keep and see the last {window:,}; planned as if they kept and saw all"
        )
    return attention(qkv_bias="attention_bias", out_bias="attention_bias")(c, request, layers)


def unlimited(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Unlimited-OCR: the text model's keys may stand under `language_config`, and the window among the wrapper's own."""
    given = c.values.get("language_config")
    if c.values.get("text_config") is not None or not isinstance(given, Mapping):
        return multimodal(c, request, **traits)
    window = {"sliding_window": c.values["sliding_window"]} if "sliding_window" in c.values else {}
    c.ignore("language_config", "sliding_window")
    return multimodal(replace(c, values={**c.values, "text_config": {**given, **window}}), request, **traits)


def no_kinds(c: Config, layers: int) -> list[bool]:  # noqa: ARG001
    """The class needs the list.

    Raises:
        PlanError: always.
    """
    raise PlanError(
        "missing, and its class has no default for it",
        where=c.where("mlp_layer_types"),
        fix="list dense or sparse for each layer",
    )


def docling_connector(c: Config, d: int) -> tuple[Block, ...]:
    """Granite Docling: pixels are shuffled by one factor, and by half of it; mergers for further layers; one matrix for both."""
    out, factor = c.count("out_hidden_size"), c.count("scale_factor")
    deep = len(whole_numbers(c, "deepstack_visual_indexes", default=[3, 7, 10]))
    paths = {"coarse": factor, **({"fine": factor // 2} if c.flag("use_fine_route", True) else {})}
    made: list[Block] = []
    for name, side in paths.items():
        wide, at = d * side**2, f"connector.{name}"
        made.append(Weights((linear(f"{at}.projection", wide, out, "other", feeds="merged"),)))
        made += [
            merger(f"{at}.deepstack_mergers.{i}", wide, out, out, norm=Norm(wide, "layer", True), names=("layer_norm", "linear_1", "linear_2"))
            for i in range(deep)
        ]  # fmt: skip
    ends = (
        _affine("connector.ln_in", d, "other"), _affine("connector.ln_mid", out, "other"), _affine("connector.ln_out", out, "other"),
        linear("connector.mlp_fc2", out, out, "other", feeds="merged"),
    )  # fmt: skip
    return (*made, Weights(ends))


def docling_router(c: Config, _inner: Config, tower: Tower, _width: int) -> Sequence[Block]:
    """A small network may choose between both paths."""
    hidden, d, at = c.count("density_router_hidden_size", None), tower.width, "density_router"
    if hidden is None:
        return ()
    return (
        Weights(
            (
                linear(f"{at}.att", d, 1, "other", bias=True), _affine(f"{at}.norm", d, "other"),
                linear(f"{at}.fc1", d, hidden, "other", bias=True, feeds="sequence"),
                linear(f"{at}.fc2", hidden, 1, "other", bias=True, feeds="sequence"),
            )
        ),
    )  # fmt: skip


def image_codes(c: Config) -> Tower:
    """Chameleon's: an autoencoder's way in makes tokens of images."""
    vanilla, size = c.text("attn_type", "vanilla") == "vanilla", c.count("resolution")
    sides = [] if c.raw("attn_resolutions", None) is None else whole_numbers(c, "attn_resolutions")
    lists, leaves = vqgan(
        c, "vqmodel", decoder=False, attends=lambda i, _n: vanilla and size // 2**i in sides, mid=vanilla
    )
    return Tower((), (), (Weights(leaves),), c.count("embed_dim"), more=lists)


def swin(c: Config) -> Any:
    """Norms after blocks instead of before them, where the config says so."""
    return "after" if c.flag("swin_norm", False) else "pre"


def hunyuan_positions(c: Config, _patches: int) -> int:
    """A learned grid for the largest image, and one row that nothing reads."""
    return int(c.count("max_image_size") // two(c, "patch_size")[0]) ** 2 + 1


def hunyuan_merger(_c: Config, inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """A norm, squares of neighbours become one row, three matrices, a norm; learned rows that begin, end and separate."""
    d, at = tower.width, "vision_tower.patch_merger"
    inner.ignore("text_hidden_size", "out_hidden_size")
    return (
        Weights(
            (
                linear(
                    f"{at}.proj_conv", d * inner.count("spatial_merge_size") ** 2, 2 * d, "other", work="conv", **UP
                ),
                linear(f"{at}.proj_out", 2 * d, 4 * d, "other", work="conv", **UP),
                linear(f"{at}.mlp", 4 * d, width, "other", **UP),
                vector(f"{at}.image_newline", 4 * d, "other"),
                *(
                    vector(f"{at}.{name}", width, "other")
                    for name in ("image_begin", "image_end", "image_sep", "after_rms")
                ),
                vector(f"{at}.before_rms", d, "other"),
            )
        ),
    )


SPATIAL = 4
"""Projectors of Granite 4 Vision that each read one of four neighbours."""


def window_qformers(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Granite 4 Vision: a Q-Former for each layer of the tower that is read, and four for the last one."""
    pairs, rate, d = c.raw("deepstack_layer_map"), c.text("downsample_rate"), tower.width
    sides = rate.split("/")
    if len(sides) != 2 or not all(side.strip().isdecimal() and int(side) for side in sides):
        raise PlanError(
            f"found {rate!r}, allowed are ratios like 4/8", where=c.where("downsample_rate"), fix="correct the file"
        )
    if not isinstance(pairs, list | tuple):
        raise PlanError("a list of pairs is needed", where=c.where("deepstack_layer_map"), fix="correct the file")
    own = part(c, "qformer_config")
    own.ignore("hidden_size", "encoder_hidden_size")
    queries, window = (int(side) ** 2 for side in sides)
    names = [f"layerwise_projectors.{i}" for i in range(len(pairs))] + [
        f"spatial_projectors.{i}" for i in range(SPATIAL)
    ]
    made: list[Block] = [Weights((vector("image_newline", width, "other"),))]
    for at in names:
        made += qformer_layers(own, f"{at}.qformer", d, d)
        ends = (
            _affine(f"{at}.qformer.layernorm", d, "other"), _affine(f"{at}.norm", d, "other"),
            Leaf(f"{at}.query", queries, d, "other"), Leaf(f"{at}.image_positions", window, d, "other"),
            linear(f"{at}.out_linear", d, width, "other", bias=True, feeds="merged"),
        )  # fmt: skip
        made.append(Weights(ends))
    return made


def evolla(c: Config, request: Request) -> Anatomy:
    """Return a decoder some of whose layers look at a protein, its encoder, and learned queries that compress what it gives."""
    anatomy = decoder(
        c,
        request,
        mixers=attention(qkv_bias="attention_bias", out_bias="attention_bias"),
        feeds=feed_forward(bias="mlp_bias"),
    )
    (stack,) = anatomy.stacks
    layers = [run.layer for run in stack.runs for _ in range(run.count)]
    step = max(len(layers) // c.count("aligner_num_add_layers"), 1)
    adapter = Sublayer(Weights(_aligner(c)))
    looked = [
        replace(layer, sublayers=(*layer.sublayers, adapter)) if (i + 1) % step == 0 else layer for i, layer in enumerate(layers)
    ]  # fmt: skip
    c.notes.append("planned without a protein; its encoder and the layers that look at it are counted as stored only")
    c.ignore("add_cross_attention")
    return anatomy._replace(stacks=(replace(stack, runs=runs(looked)), _protein(c)))


def _aligner(c: Config) -> tuple[Leaf, ...]:
    """Return cross-attention and a feed-forward block, which only work where there is a protein."""
    d, bias, at = c.count("hidden_size"), c.flag("aligner_enable_bias"), "adapter"
    f = d * c.count("aligner_ffn_mult")

    def seeing(name: str, n_in: int, n_out: int, kind: Any, *, bias: bool = True) -> Leaf:
        return linear(f"{at}.{name}", n_in, n_out, kind, bias=bias, feeds="seeing")

    return (
        *(seeing(name, d, d, "attention") for name in ("query", "key_protein", "value_protein")),
        seeing("out_proj", d, d, "attention", bias=bias), vector(f"{at}.attention_norm", d, "norm"),
        _affine(f"{at}.ff.norm", d), seeing("ff.fc1", d, f, "mlp", bias=False), seeing("ff.fc2", f, d, "mlp", bias=False),
        vector(f"{at}.gate_attention", 1, "other"), vector(f"{at}.gate_ffw", 1, "other"),
    )  # fmt: skip


PROTEIN: dict[str, Any] = dict(
    vocab_size=446, hidden_size=1280, num_hidden_layers=33, num_attention_heads=20, intermediate_size=5120, max_position_embeddings=1026,
    layer_norm_eps=1e-5, position_embedding_type="rotary", emb_layer_norm_before=False,
)  # fmt: skip
"""What SaProt's config class takes where a key is missing; it has no model_type."""


def _protein(c: Config) -> Stack:
    """Return SaProt (ESM's layers), and the queries that compress its rows."""
    own = c.nested("protein_encoder_config", "saprot", {}, PROTEIN)
    d, f, heads = own.count("hidden_size"), own.count("intermediate_size"), own.count("num_attention_heads")
    at, squeezed = "protein_encoder.model", "protein_encoder.sequence_compressor_resampler"
    kind = own.text("position_embedding_type", allowed=("rotary", "absolute"))
    own.ignore("max_position_embeddings", "rope_theta", "type_vocab_size")
    tables = [Leaf(f"{at}.embeddings.word_embeddings", own.count("vocab_size"), d, "embedding")]
    if kind == "absolute":
        tables.append(
            Leaf(f"{at}.embeddings.position_embeddings", own.count("max_position_embeddings"), d, "embedding")
        )
    if own.flag("emb_layer_norm_before"):
        tables.append(_affine(f"{at}.embeddings.layer_norm", d))
    tables.append(
        vector(f"{at}.rotary_embeddings.inv_freq", d // heads // 2, "other", buffer=True, own_dtype="float32")
    )
    norm = Norm(d, "layer", True, own.number("layer_norm_eps", 1e-5))
    block = Attention(d, heads, heads, d // heads, Mask(causal=False), True, True, True, True)
    layer = Layer((Sublayer(block, before=norm), Sublayer(FeedForward(d, f, False, True, True, "gelu"), before=norm)))
    inner, wide = c.count("resampler_heads") * c.count("resampler_dim_head"), d * c.count("resampler_ff_mult")
    attends = (
        _affine("norm_media", d), _affine("norm_latents", d), linear("to_q", d, inner, "attention"),
        linear("to_kv", d, 2 * inner, "attention"), linear("to_out", inner, d, "attention"),
    )  # fmt: skip
    feeds = (_affine("norm", d), linear("fc1", d, wide, "mlp"), linear("fc2", wide, d, "mlp"))
    lists = tuple(
        Run(1, Layer((Sublayer(Weights(leaves)),)), list=f"{squeezed}.layers.{i}")
        for i in range(c.count("resampler_depth")) for leaves in (attends, feeds)
    )  # fmt: skip
    out = c.count("hidden_size")
    ends = (
        _affine(f"{at}.encoder.emb_layer_norm_after", d), Leaf(f"{squeezed}.latents", c.count("resampler_num_latents"), d, "embedding"),
        _affine(f"{squeezed}.norm", out, "other"), linear(f"{squeezed}.protein_projector", d, out, "other", bias=True),
    )  # fmt: skip
    body = (Run(own.count("num_hidden_layers"), layer), *lists)
    return Stack("vision", (Weights(tuple(tables)),), body, (Weights(ends),), "model.", f"{at}.encoder.layer")


PI0_VISION = dict(
    model_type="siglip_vision_model", intermediate_size=4304, hidden_size=1152, patch_size=14, image_size=224, num_hidden_layers=27,
    num_attention_heads=16, vision_use_head=False,
)  # fmt: skip
"""The tower of a missing `vlm_config`."""


def pi0(c: Config, request: Request) -> Anatomy:
    """Return PaliGemma without a head, and the smaller Gemma beside it, which makes actions by diffusion.

    What a text takes is the first one's pass; the second runs on its cache, and stands here as stored only.
    """
    missing = c.values.get("vlm_config") is None
    sees = _member(c, "vlm_config", "paligemma", {"vision_config": PI0_VISION} if missing else {})
    bare = request._replace(head=False, architecture="")
    anatomy = multimodal(
        sees,
        bare,
        senses=(Sense("vision", "vision_config", "vlm.vision_tower", _pi0_projector),),
        at="model.vlm.language_model.",
    )
    sees.ignore("hidden_size", "vocab_size", "projection_dim")
    text = sees.below[0]
    own = _member(c, "dit_config", "gemma", {"vocab_size": text.count("vocab_size"), "tie_word_embeddings": True})
    row = _families()["gemma"]
    (acts,) = row.build(own, bare, **row.traits).stacks
    for reader in (own, *sees.below):
        reader.ignore("use_bidirectional_attention", "is_causal", *row.ignores)
    body = tuple(Run(run.count, _kept(run.layer), list="model.dit.layers") for run in acts.runs)
    d = own.count("hidden_size")
    outside = tuple(replace(leaf, name=f"model.dit.{leaf.name}", tie=None, work=None) for leaf in acts.outside)
    ends = (
        _stored("embed_action_time.action_in_proj", c.count("max_action_dim"), d, kind="other"),
        _stored("embed_action_time.state_proj", c.count("max_state_dim"), d, kind="other"),
        _stored("embed_action_time.action_time_mlp_in", 2 * d, d, kind="other"),
        _stored("embed_action_time.action_time_mlp_out", d, d, kind="other"),
        _stored("action_out_proj", d, c.count("max_action_dim"), kind="other"),
    )  # fmt: skip
    c.notes.append("planned as the pass over images and text; what makes actions is counted as stored, not as run")
    first, *others = anatomy.stacks
    front, back = (_renamed(blocks, "model.vlm.language_model") for blocks in (first.front, first.back))
    first = replace(
        first, front=front, runs=(*first.runs, *body), back=(*back, Weights((*outside, *ends))), scope="",
        list=f"model.vlm.language_model.{first.list}",
    )  # fmt: skip
    return anatomy._replace(stacks=(first, *others))


def _renamed(blocks: Sequence[Block], at: str) -> tuple[Block, ...]:
    """Return tables and norms with a path in front of their names."""
    return tuple(replace(block, name=f"{at}.{block.name}") for block in blocks if isinstance(block, Table | Norm))


def _pi0_projector(c: Config, inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    return below(linear_projector(c, inner, tower, width), "vlm")


def _families() -> Mapping[str, Any]:
    from planner.families import FAMILIES  # noqa: PLC0415

    return FAMILIES


def _member(c: Config, key: str, kind: str, instead: Mapping[str, Any]) -> Config:
    """Return the reader of a whole model inside this config, of one family only."""
    from planner.families import defaults  # noqa: PLC0415

    given = c.values.get(key)
    named = given.get("model_type", kind) if isinstance(given, Mapping) else kind
    if named != kind:
        raise PlanError(
            f"found {named!r}, which isn't modelled there", where=f"{c.where(key)}.model_type", fix=f"say {kind}"
        )
    known, spec = defaults(kind), defaults(c.family)["parts"][key]
    taken = {**known["defaults"], **(spec["values"] if given is None else {})}
    return c.nested(key, kind, {**known["names"], **_families()[kind].names}, taken, instead)


def _kept(layer: Layer) -> Layer:
    """Return a layer that only stores."""
    return Layer((Sublayer(Weights(tuple(replace(leaf, name=name, work=None) for name, leaf in layer.named))),))


def diffusion_text(c: Config, request: Request) -> Anatomy:
    """Return Gemma 4's decoder, with experts in each layer, and keys as values where a layer sees all."""
    own = replace(c, values={**c.values, "enable_moe_block": True, "attention_k_eq_v": True})
    c.notes.append(
        "planned as the pass over the prompt and its cache; the steps that refine a block of tokens aren't counted"
    )
    return gemma4(own, request)


def conditions(c: Config, width: int) -> Sequence[Stack]:
    """DiffusionGemma: a gated block of what the last step guessed, and the second half's scalars; its weights are the first one's.

    Raises:
        PlanError: the halves share nothing.
    """
    if not c.flag("tie_word_embeddings", True):
        raise PlanError(
            "found false, with which both halves have weights of their own; that isn't modelled", where=c.where("tie_word_embeddings"),
            fix="set it to true",
        )  # fmt: skip
    text = c.below[0]
    f, at = text.count("intermediate_size"), "self_conditioning"
    leaves = (
        vector(f"{at}.pre_norm", width, "norm"), *(Leaf(f"{at}.{name}", width, f, "mlp") for name in ("gate_proj", "up_proj")),
        Leaf(f"{at}.down_proj", f, width, "mlp"), vector("layer_scalars", text.count("num_hidden_layers"), "other", buffer=True),
    )  # fmt: skip
    return (Stack("decoder", (Weights(leaves),), ()),)


def diffusion_sees(c: Config, inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """One matrix, after a norm without weights."""
    return below(gemma4_projector(c, inner, tower, width), "encoder")


INDEXED = "indexed_attention"


def _qwen4_kinds(c: Config, layers: int) -> list[str]:
    """Qwen 4: the kind of each layer, as listed, or every `full_attention_interval`-th chooses its keys."""
    listed = c.per_layer("layer_types", layers, ("linear_attention", INDEXED, "full_attention"))
    step = c.count("full_attention_interval", 4)
    if listed is None:
        return [INDEXED if (i + 1) % step == 0 else "linear_attention" for i in range(layers)]
    return [INDEXED if kind == "full_attention" else kind for kind in listed]


def chosen_blocks(c: Config, request: Request, layers: int) -> list[Block | None]:
    """Gated attention, whose keys an indexer chooses in whole blocks."""
    size, budget = c.count("indexer_compress_ratio"), c.count("indexer_budget")
    if c.count("indexer_kv_heads", 1) != 1 or budget % size:
        raise PlanError(
            f"found {budget}, one key head and whole blocks of {size} are needed",
            where=c.where("indexer_budget"),
            fix="correct the file",
        )
    chooser = BlockIndexer(c.count("hidden_size"), c.count("indexer_n_heads"), c.count("indexer_head_dim"), size)
    mask = WholeBlocks(chosen=budget + size, grain=size)
    gated = attention(
        qk_norm="head", gate="element", extra=_gate_bias, qkv_bias="attention_bias", out_bias="attention_bias"
    )
    made = gated(c, request, layers)
    return [replace(block, chooser=chooser, mask=mask) for block in made if isinstance(block, Attention)]


def _gate_bias(_c: Config, of: Attention) -> tuple[Leaf, ...]:
    return (vector("gate_proj.bias", of.heads * of.head, "attention"),) if of.q_bias else ()


def qwen4(c: Config, request: Request) -> Anatomy:
    """Return Qwen 4's decoder: several residual streams, delta nets and attention, experts, and hashed n-grams in some layers."""
    kinds = {"linear_attention": gated_delta("qkv", norm="norm", out="out_proj"), INDEXED: chosen_blocks}
    experts = mixture(
        sparse=every_layer, shared=shared_width("shared_expert_intermediate_size"), shared_gate=True, shared_name="shared_expert",
        scoring="softmax",
    )  # fmt: skip
    anatomy = decoder(c, request, mixers=by_kind(_qwen4_kinds, kinds), feeds=experts, final_norm=False)
    (stack,) = anatomy.stacks
    layers = [run.layer for run in stack.runs for _ in range(run.count)]
    each = Sublayer(Weights((*_site(c, "attn_hyper_connection"), *_site(c, "mlp_hyper_connection"))))
    looked = _ngrams(c, _qwen4_kinds(c, len(layers)))
    body = [
        Layer((*(Sublayer(block) for block in looked.get(i, ())), *(Sublayer(sub.block) for sub in layer.sublayers), each))
        for i, layer in enumerate(layers)
    ]  # fmt: skip
    last = Weights(_site(c, "hyper_connection_mixer", injects=False))
    c.ignore("rms_norm_eps")
    return anatomy._replace(stacks=(replace(stack, runs=runs(body), back=(last, *stack.back)),))


def _site(c: Config, at: str, *, injects: bool = True) -> tuple[Leaf, ...]:
    """Return what draws the streams together: a norm, two narrow matrices, and how much of a block's output each takes."""
    streams, rank = c.count("hc_count"), c.count("hc_lowrank")
    wide = streams * c.count("hidden_size")
    leaves = (
        vector(f"{at}.hc_norm", wide, "norm"), linear(f"{at}.input_mix_weight_down", wide, rank, "other"),
        linear(f"{at}.input_mix_weight_up", rank, wide, "other"),
    )  # fmt: skip
    return (*leaves, linear(f"{at}.block_inject_weight", wide, streams, "other")) if injects else leaves


MOST_TABLES, LARGEST_TABLE = 4096, 2**32
"""Prime sizes are looked for one by one: so many at most, from so large a number on."""


def _ngrams(c: Config, kinds: list[str]) -> dict[int, tuple[Block, ...]]:
    """Return the n-grams of the layers that `ple_layer_ids` lists, counted from 1."""
    listed = sorted(set(c.counts("ple_layer_ids", low=1) or []))
    orders, heads, d = c.count("ngram_size"), c.count("heads_per_ngram"), c.count("hidden_size")
    width, taps = c.count("ple_embed_dim", d), c.count("ple_conv_kernel_size")
    base, multiple = c.count("ngram_vocab_size_base"), c.count("make_ngram_vocab_size_divisible_by")
    tables = (orders - 1) * heads
    if not listed:
        return {}
    if tables * len(listed) > MOST_TABLES or base > LARGEST_TABLE:
        raise PlanError(
            f"found {tables * len(listed):,} tables from {base:,} rows on; {MOST_TABLES:,} and {LARGEST_TABLE:,} are the most",
            where=c.where("ngram_vocab_size_base"), fix="correct the file",
        )  # fmt: skip
    if any(i > len(kinds) or kinds[i - 1] != "linear_attention" for i in listed) or not tables or width % tables:
        raise PlanError(
            f"found {listed}: layers with linear attention are needed, and a width that {tables} tables share",
            where=c.where("ple_layer_ids"), fix="correct the file",
        )  # fmt: skip
    return {
        number - 1: (
            Ngrams(d, c.count("hc_count"), width, orders, heads, table_rows(base, i * tables, tables, multiple), taps),
        )
        for i, number in enumerate(listed)
    }
