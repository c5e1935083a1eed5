"""Towers that are unlike Whisper's or a vision transformer: conformers, memory networks, convolutions with relative positions.

What they store is counted in full. How many rows sound or images become isn't in their configs (it is the feature
extractor's to say), so that a workload can't ask for their work, and attention between rows stands here without its scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.blocks import Block, Leaf, Weights, linear, vector
from planner.errors import PlanError
from planner.fields import Config
from planner.model import Layer, Run, Stack, Sublayer
from planner.topology.towers import Tower, merger, multiple, table, two, waves, whole_numbers


def _affine(name: str, size: int, *, part: Any = "norm") -> Leaf:
    return vector(name, size, part, bias=True)


def _layer(*leaves: Leaf) -> Layer:
    return Layer((Sublayer(Weights(leaves)),))


def _bank(
    name: str, n_in: int, hidden: int, *, norm: str | None, bias: bool, gate: int = 1, names: Sequence[str]
) -> list[Leaf]:
    """Return a feed-forward block with the norm before it."""
    return [
        *([_affine(f"{name}.{norm}", n_in)] if norm else []),
        linear(f"{name}.{names[0]}", n_in, gate * hidden, "mlp", bias=bias),
        linear(f"{name}.{names[1]}", hidden, n_in, "mlp", bias=bias),
    ]


def gemma4_audio(c: Config) -> Tower:
    """Gemma 4's conformer (Universal Speech Model, arXiv:2303.01037): two feed-forward blocks, local attention, a short convolution."""
    d, layers, heads = (
        c.count("hidden_size"),
        c.count("num_hidden_layers"),
        c.heads("num_attention_heads", c.count("hidden_size")),
    )
    first, second = whole_numbers(c, "subsampling_conv_channels")
    out, kernel = c.count("output_proj_dims"), c.count("conv_kernel_size")
    front = Weights(
        (
            linear("subsample_conv_projection.layer0.conv", 9, first, "conv", work="conv"),
            vector("subsample_conv_projection.layer0.norm", first, "conv"),
            linear("subsample_conv_projection.layer1.conv", 9 * first, second, "conv", work="conv"),
            vector("subsample_conv_projection.layer1.norm", second, "conv"),
            linear("subsample_conv_projection.input_proj_linear", first // 4 * second, d, "conv"),
        )
    )
    banks = [
        leaf
        for name in ("feed_forward1", "feed_forward2")
        for leaf in (
            *_bank(name, d, 4 * d, norm=None, bias=False, names=("ffw_layer_1", "ffw_layer_2")),
            vector(f"{name}.pre_layer_norm", d, "norm"),
            vector(f"{name}.post_layer_norm", d, "norm"),
        )
    ]
    attention = [
        linear(f"self_attn.{name}", d, d, "attention")
        for name in ("q_proj", "k_proj", "v_proj", "post", "relative_k_proj")
    ]
    clips = [vector("clips", 40, "other", buffer=True)] if c.flag("use_clipped_linears", True) else []
    layer = _layer(
        *banks, *attention, vector("self_attn.per_dim_scale", d // heads, "attention"),
        *(vector(name, d, "norm") for name in ("norm_pre_attn", "norm_post_attn", "norm_out", "lconv1d.pre_layer_norm", "lconv1d.conv_norm")),
        linear("lconv1d.linear_start", d, 2 * d, "conv"), linear("lconv1d.linear_end", d, d, "conv"),
        linear("lconv1d.depthwise_conv1d", kernel, d, "conv", work="conv"), *clips,
    )  # fmt: skip
    back = Weights((linear("output_proj", d, out, "other", bias=True),))
    return Tower((front,), (layer,) * layers, (back,), out)


def fun_asr_encoder(c: Config) -> Tower:
    """Fun-ASR's encoder: attention beside a memory network, a depthwise convolution of the values; the first layer is fed frames."""
    d, f, layers = c.count("hidden_size"), c.count("intermediate_size"), c.count("num_hidden_layers")
    wide, kernel = c.count("num_mel_bins") * c.count("num_stacked_frames"), c.count("fsmn_kernel_size")
    last = {layers - c.count("num_timestamp_prediction_layers", low=0) - 1, layers - 1}
    memory = linear("self_attn.fsmn.conv", kernel, d, "conv", work="conv")
    made = [
        _plain(d, f, wide if i == 0 else d, memory, *([_affine("final_layernorm", d)] if i in last else []))
        for i in range(layers)
    ]
    return Tower((), tuple(made), (), d)


def _plain(d: int, f: int, into: int, *more: Leaf) -> Layer:
    """Return a layer with biases everywhere, whose first rows may have another width."""
    return _layer(
        *(linear(f"self_attn.{name}", into, d, "attention", bias=True) for name in ("q_proj", "k_proj", "v_proj")),
        linear("self_attn.o_proj", d, d, "attention", bias=True),
        *_bank("mlp", d, f, norm=None, bias=True, names=("fc1", "fc2")),
        _affine("input_layernorm", into), _affine("post_attention_layernorm", d), *more,
    )  # fmt: skip


def fun_asr_projector(c: Config, _inner: Config, tower: Tower, _width: int) -> Sequence[Block]:
    """Two matrices, and layers of their own."""
    from planner.topology.multimodal import part  # noqa: PLC0415

    own = part(c, "adaptor_config")
    d, hidden = own.count("hidden_size"), own.count("projector_hidden_size")
    layer = _plain(d, own.count("intermediate_size"), d)
    own.ignore("num_attention_heads")
    leaves = tuple(leaf for leaf in layer.leaves)
    return (
        merger("multi_modal_projector", tower.width, hidden, d),
        *[Weights(leaves)] * own.count("num_hidden_layers"),
    )


def granite_conformer(c: Config) -> Tower:
    """Granite Speech's conformer, with a CTC output whose guess is fed back half-way."""
    d, heads = c.count("hidden_size"), c.count("num_attention_heads")
    head = c.count("dim_head", d // heads)
    q, inner, f = heads * head, d * c.count("conv_expansion_factor"), d * c.count("feedforward_mult")
    out = c.count("output_dim")
    front = Weights((linear("input_linear", c.count("input_dim"), d, "conv", bias=True),))
    names = ("up_proj", "down_proj")
    layer = _layer(
        *_bank("ff1", d, f, norm="pre_norm", bias=True, names=names), *_bank("ff2", d, f, norm="pre_norm", bias=True, names=names),
        _affine("attn.pre_norm", d), linear("attn.to_q", d, q, "attention"), linear("attn.to_kv", d, 2 * q, "attention"),
        linear("attn.to_out", q, d, "attention", bias=True), Leaf("attn.rel_pos_emb", 2 * c.count("max_pos_emb") + 1, head, "attention"),
        _affine("conv.norm", d), linear("conv.up_conv", d, 2 * inner, "conv", bias=True),
        linear("conv.depth_conv.conv", c.count("conv_kernel_size"), inner, "conv", work="conv"), _affine("conv.batch_norm", inner, part="conv"),
        vector("conv.batch_norm.running", 2 * inner, "conv", buffer=True),
        vector("conv.batch_norm.num_batches_tracked", 1, "conv", buffer=True, own_dtype="float32"),
        linear("conv.down_conv", inner, d, "conv", bias=True), _affine("post_norm", d),
    )  # fmt: skip
    back = Weights((linear("out", d, out, "other", bias=True), linear("out_mid", out, d, "other", bias=True)))
    return Tower((front,), (layer,) * c.count("num_hidden_layers"), (back,), d)


def granite_projector(c: Config, _inner: Config, _tower: Tower, width: int) -> Sequence[Block]:
    """A Q-Former: a few learned queries look at a window of rows (arXiv:2301.12597), and a matrix projects them."""
    from planner.topology.multimodal import part  # noqa: PLC0415

    own = part(c, "projector_config")
    d, seen = own.count("hidden_size"), own.count("encoder_hidden_size")
    queries = c.count("window_size") // c.count("downsample_rate")
    at = "projector.qformer"
    ends = (
        Leaf("projector.query", queries, d, "other"), _affine(f"{at}.layernorm", d, part="other"),
        linear("projector.linear", d, width, "other", bias=True, feeds="merged"),
    )  # fmt: skip
    return (*qformer_layers(own, at, d, seen), Weights(ends))


def qformer_layers(own: Config, at: str, d: int, seen: int) -> list[Weights]:
    """Return a Q-Former's layers, of rows of width `d` that look at rows of width `seen`."""
    f, step = own.count("intermediate_size"), own.count("cross_attention_frequency")
    own.ignore("num_attention_heads", "max_position_embeddings", "vocab_size")

    def attend(name: str, from_: int) -> list[Leaf]:
        return [
            linear(f"{at}.{name}.attention.query", d, d, "other", bias=True, feeds="merged"),
            linear(f"{at}.{name}.attention.key", from_, d, "other", bias=True),
            linear(f"{at}.{name}.attention.value", from_, d, "other", bias=True),
            linear(f"{at}.{name}.output.dense", d, d, "other", bias=True, feeds="merged"),
            _affine(f"{at}.{name}.output.LayerNorm", d, part="other"),
        ]

    kinds = ("_query", "") if own.flag("use_qformer_text_input", False) else ("_query",)
    return [
        Weights(
            (
                *attend("attention", d),
                *(attend("crossattention", seen) if i % step == 0 else []),
                *(
                    leaf
                    for kind in kinds
                    for leaf in (
                        linear(f"{at}.intermediate{kind}.dense", d, f, "other", bias=True, feeds="merged"),
                        linear(f"{at}.output{kind}.dense", f, d, "other", bias=True, feeds="merged"),
                        _affine(f"{at}.output{kind}.LayerNorm", d, part="other"),
                    )
                ),
            )
        )
        for i in range(own.count("num_hidden_layers"))
    ]


def phi4_audio(c: Config) -> Tower:
    """Phi-4's conformer: gated feed-forward blocks, attention with a shared table of distances, a gated convolution."""
    d, f, e = c.count("hidden_size"), c.count("intermediate_size"), c.count("ext_pw_out_channel")
    channels, size, kernel = c.count("nemo_conv_channels"), c.count("input_size"), c.count("kernel_size")
    deep, reduction = c.count("depthwise_multiplier"), c.count("time_reduction")
    steps = reduction.bit_length() - 1
    for _ in range(steps):
        size = (size - 1) // 2 + 1
    convs = [linear("embed.conv.0", 9, channels, "conv", bias=True, work="conv")]
    for i in range(steps - 1):
        convs.append(linear(f"embed.conv.{3 * i + 2}", 9, channels, "conv", bias=True, work="conv"))
        convs.append(linear(f"embed.conv.{3 * i + 3}", channels, channels, "conv", bias=True, work="conv"))
    buckets = c.count("bias_max_distance") * (1 if c.flag("bias_symmetric", False) else 2)
    front = Weights(
        (
            *convs, linear("embed.out", channels * size, d, "conv", bias=True),
            Leaf("relative_attention_bias_layer.bias_values", buckets, c.count("num_attention_heads"), "attention"),
            vector("encoder_embedding.global", 2 * c.count("input_size"), "conv", buffer=True),
        )
    )  # fmt: skip
    names = ("gate_up_proj", "down_proj")
    layer = _layer(
        *_bank("feed_forward_in", d, f, norm="layer_norm", bias=True, gate=2, names=names),
        *_bank("feed_forward_out", d, f, norm="layer_norm", bias=True, gate=2, names=names),
        *(linear(f"self_attn.{name}", d, d, "attention", bias=True) for name in ("q_proj", "k_proj", "v_proj", "o_proj")),
        _affine("conv.layer_norm", d), Leaf("conv.glu.b1", 1, e, "conv"), Leaf("conv.glu.b2", 1, e, "conv"),
        linear("conv.glu.ext_pw_conv_1d", d, 2 * e, "conv", bias=True), linear("conv.ext_pw_conv_1d", d, e, "conv", bias=True),
        linear("conv.dw_sep_conv_1d.dw_conv", kernel, d * deep, "conv", bias=True, work="conv"),
        linear("conv.dw_sep_conv_1d.pw_conv", d * deep, c.count("depthwise_separable_out_channel"), "conv", bias=True),
        _affine("layer_norm_att", d), _affine("layer_norm", d),
    )  # fmt: skip
    return Tower((front,), (layer,) * c.count("num_hidden_layers"), (), d, list="encoders")


def phi4_hears(c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Two matrices for speech alone, and two for speech with images."""
    at = "embed_tokens_extend.audio_embed"
    return tuple(
        merger(at, tower.width * c.count("audio_downsample_rate", 1), width, width,
               names=("", f"up_proj_for_{what}", f"down_proj_for_{what}"))
        for what in ("speech", "vision_speech")
    )  # fmt: skip


def phi4_sees(_c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Two learned rows that end lines and separate tiles, and two matrices."""
    at = "embed_tokens_extend.image_embed"
    ends = Weights(
        tuple(
            Leaf(f"{at}.{name}", 1, tower.width, "other")
            for name in ("global_img_feature_extensor", "sub_img_feature_extensor")
        )
    )
    return (ends, merger(at, tower.width, width, width, names=("", "img_projection_up", "img_projection_down")))


def got_tower(c: Config) -> Tower:
    """GOT's tower (SAM's, arXiv:2304.02643): windows in most layers, tables of relative positions, a neck of convolutions."""
    d, f, layers = c.count("hidden_size"), c.count("mlp_dim", None), c.count("num_hidden_layers")
    f = f or multiple(c, "hidden_size", "mlp_ratio")
    heads, out, bias = c.heads("num_attention_heads", d), c.count("output_channels"), c.flag("qkv_bias", True)
    side = two(c, "image_size")[0] // two(c, "patch_size")[0]
    window, everywhere = c.count("window_size"), set(whole_numbers(c, "global_attn_indexes"))
    relative, into = c.flag("use_rel_pos", True), c.count("num_channels", 3) * two(c, "patch_size")[0] ** 2
    front: list[Block] = [Weights((linear("patch_embed.projection", into, d, "conv", bias=True, work="conv"),))]
    if c.flag("use_abs_pos", True):
        front.append(table("pos_embed", side * side, d))

    def layer(index: int) -> Layer:
        rows = 2 * (side if index in everywhere else window) - 1
        tables = (
            [Leaf(f"attn.{name}", rows, d // heads, "attention") for name in ("rel_pos_h", "rel_pos_w")]
            if relative
            else []
        )
        return _layer(
            _affine("layer_norm1", d), _affine("layer_norm2", d), linear("attn.qkv", d, 3 * d, "attention", bias=bias),
            linear("attn.proj", d, d, "attention", bias=True), *tables, *_bank("mlp", d, f, norm=None, bias=True, names=("lin1", "lin2")),
        )  # fmt: skip

    neck = Weights(
        (
            linear("neck.conv1", d, out, "conv", work="conv"), _affine("neck.layer_norm1", out),
            linear("neck.conv2", 9 * out, out, "conv", work="conv"), _affine("neck.layer_norm2", out),
        )
    )  # fmt: skip
    return Tower(tuple(front), tuple(layer(i) for i in range(layers)), (neck,), out)


def got_projector(_c: Config, _inner: Config, tower: Tower, width: int) -> Sequence[Block]:
    """Two convolutions of stride 2 and a matrix."""
    out, at = tower.width, "multi_modal_projector"
    return (
        Weights(
            (
                linear(f"{at}.conv_upsampler1", 9 * out, 2 * out, "other", work="conv", feeds="merged", rate=4),
                linear(f"{at}.conv_upsampler2", 18 * out, width, "other", work="conv", feeds="merged"),
                linear(f"{at}.multimodal_projector", width, width, "other", bias=True, feeds="merged"),
            )
        ),
    )


def streamed(c: Config) -> Tower:
    """Voxtral Realtime's encoder: Whisper's convolutions, then gated layers with windows into the past."""
    tower = waves(
        c,
        norm="rms",
        gated=True,
        up_bias=False,
        positions=None,
        rows="max_position_embeddings",
        own_head=True,
        at="embedder.",
    )
    return tower._replace(rows=None, leaving=None)


def vibe_hears(c: Config, width: int) -> Sequence[Stack]:
    """VibeVoice's two encoders of waves, for how it sounds and for what it says, and a projector for each."""
    from planner.topology.multimodal import part  # noqa: PLC0415

    leaves: list[Leaf] = []
    for name in ("acoustic", "semantic"):
        own = part(c, f"{name}_tokenizer_encoder_config")
        leaves += _convnext(own, f"model.{name}_tokenizer_encoder")
        at = f"model.multi_modal_projector.{name}"
        leaves += [
            linear(f"{at}_linear_1", own.count("hidden_size"), width, "other", bias=True),
            vector(f"{at}_norm", width, "other"),
            linear(f"{at}_linear_2", width, width, "other", bias=True),
        ]
    return (Stack("audio", (Weights(tuple(leaves)),), (), (), ""),)


def vibe_speaks(c: Config, width: int) -> Sequence[Stack]:
    """VibeVoice's encoder and decoder of waves, an encoder of what they say, and the head that makes sound by diffusion."""
    from planner.topology.multimodal import part  # noqa: PLC0415

    waves_, meaning, head = part(c, "audio_config"), part(c, "semantic_model_config"), part(c, "diffusion_head_config")
    latent, f = waves_.count("hidden_size"), head.count("intermediate_size")
    head.ignore("hidden_size", "latent_size")
    leaves = [*_convnext(waves_, "model.audio_tower.encoder"), *_convnext(waves_, "model.audio_tower.decoder", up=True)]
    leaves += _convnext(meaning, "model.semantic_tokenizer_encoder")
    for name, into in (("multi_modal_projector", latent), ("semantic_connector", meaning.count("hidden_size"))):
        leaves += [
            linear(f"model.{name}.linear_1", into, width, "other", bias=True),
            vector(f"model.{name}.act", width, "other"),
            linear(f"model.{name}.linear_2", width, width, "other", bias=True),
        ]
    at = "model.diffusion_head"
    leaves += [
        vector("model.latent_scaling_factor", 1, "other"), vector("model.latent_bias_factor", 1, "other"),
        linear(f"{at}.noisy_images_proj", latent, width, "other"), linear(f"{at}.cond_proj", width, width, "other"),
        linear(f"{at}.timestep_proj.fc1", head.count("frequency_embedding_size"), width, "other"),
        linear(f"{at}.timestep_proj.fc2", width, width, "other"),
        linear(f"{at}.final_layer.linear_1", width, 2 * width, "other"), linear(f"{at}.final_layer.linear_2", width, latent, "other"),
    ]  # fmt: skip
    layer = _layer(
        *(linear(f"ffn.{name}", width, f, "other") for name in ("gate_proj", "up_proj")),
        linear("ffn.down_proj", f, width, "other"), vector("norm", width, "other"), linear("linear", width, 3 * width, "other"),
    )  # fmt: skip
    body = (Run(head.count("num_hidden_layers"), layer),)
    return (Stack("audio", (Weights(tuple(leaves)),), body, (), "", "model.diffusion_head.layers"),)


def _convnext(c: Config, at: str, *, up: bool = False) -> list[Leaf]:
    """Return an encoder of waves: convolutions that lower the rate and double the width, with depthwise blocks between; or the way back `up`."""
    filters, kernel, wider = c.count("num_filters"), c.count("kernel_size"), c.count("ffn_expansion")
    ratios, depths = whole_numbers(c, "downsampling_ratios"), whole_numbers(c, "depths")
    if len(depths) != len(ratios) + 1 or min(*ratios, *depths) < 0:
        raise PlanError(
            f"found {depths}, one more than {len(ratios)} are needed", where=c.where("depths"), fix="correct the file"
        )
    if up:
        ratios, depths = ratios[::-1], depths[::-1]
    ends, widths = (c.count("channels"), c.count("hidden_size")), [filters * 2**i for i in range(len(depths))]
    first, final = ends[::-1] if up else ends
    widths = widths[::-1] if up else widths
    leaves = [linear(f"{at}.stem.conv.conv", kernel * first, widths[0], "conv", bias=True, work="conv")]
    for i, depth in enumerate(depths):
        d, scope = widths[i], f"{at}.conv_layers.{i - 1}" if i else f"{at}.stem"
        if i:
            leaves.append(
                linear(f"{scope}.conv.conv", 2 * ratios[i - 1] * widths[i - 1], d, "conv", bias=True, work="conv")
            )
        for j in range(depth):
            stage = f"{scope}.stage.{j}"
            leaves += [vector(f"{stage}.{name}", d, "conv") for name in ("norm", "ffn_norm", "gamma", "ffn_gamma")]
            leaves += [
                linear(f"{stage}.ffn.linear1", d, wider * d, "conv", bias=True),
                linear(f"{stage}.ffn.linear2", wider * d, d, "conv", bias=True),
                linear(f"{stage}.mixer.conv", kernel, d, "conv", bias=True, work="conv"),
            ]
    return [*leaves, linear(f"{at}.head.conv", kernel * widths[-1], final, "conv", bias=True, work="conv")]


def qformer(_c: Config) -> Tower:
    """Read by a projector; no tower of its own.

    Raises:
        PlanError: always.
    """
    raise PlanError("is no tower", where="model_type")
