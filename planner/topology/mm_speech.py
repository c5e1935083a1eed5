"""What Qwen Omni models speak with: a talker that writes codes of sound, and what makes waves of them.

Neither runs in a pass over text. Their layers stand behind those of the tower that hears, with names of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from planner.blocks import Block, Leaf, Weights, linear, vector
from planner.engines import ENGINES
from planner.errors import PlanError
from planner.fields import Config
from planner.model import Layer, Run, Stack, Sublayer
from planner.topology import Anatomy, Request
from planner.topology.attention import attention, late_windows
from planner.topology.decoder import decoder
from planner.topology.feed_forward import every_layer, mixture
from planner.topology.multimodal import Sense, multimodal, part
from planner.topology.towers import whole_numbers


class Speech(NamedTuple):
    """Layers, and leaves outside of them, with full names."""

    runs: tuple[Run, ...] = ()
    leaves: tuple[Leaf, ...] = ()

    def __add__(self, other: Any) -> Speech:
        """Join two."""
        return Speech((*self.runs, *other.runs), (*self.leaves, *other.leaves))


Speaks = Callable[[Config, Request], Speech]
"""Wrapper's config and request: what it speaks with."""


def omni(c: Config, request: Request, *, senses: tuple[Sense, ...], parts: tuple[str, ...], speaks: Speaks) -> Anatomy:
    """Return the thinker's stacks; what speaks stands behind the layers of the one that hears, where the engine holds it.

    Args:
        c: the wrapper's config. request: engine and extras.
        senses: of the thinker.
        parts: keys of what speaks. speaks: its reader.
    """
    thinker = part(c, "thinker_config")
    anatomy = multimodal(thinker, request._replace(architecture=""), senses=senses, at="thinker.model.language_model.")
    stacks = tuple(_below_thinker(stack) for stack in anatomy.stacks)
    speech, said = Speech(), c.flag("enable_audio_output", True)
    if said and request.engine.name in ENGINES:
        speech = speaks(c, request)
    elif said:
        c.notes.append("the talker and what makes waves of its codes are left out: this engine loads the thinker alone")
    c.ignore(*parts)
    return anatomy._replace(
        stacks=tuple(
            replace(each, runs=(*each.runs, *speech.runs), back=(*each.back, Weights(speech.leaves)))
            if each.name == "audio" and speech.leaves
            else each
            for each in stacks
        )
    )


def _below_thinker(stack: Stack) -> Stack:
    """Return a tower with whole names; the text model has them already."""
    if stack.name == "decoder":
        return stack
    at = f"thinker.{stack.scope}"
    front, back = (tuple(_renamed(block, at) for block in blocks) for blocks in (stack.front, stack.back))
    return replace(stack, front=front, back=back, scope="", list=f"{at}{stack.list}")


def _renamed(block: Block, at: str) -> Block:
    return Weights(tuple(replace(leaf, name=f"{at}{leaf.name}") for leaf in block.leaves()))


def talker(c: Config, request: Request) -> Speech:
    """Qwen 2.5 Omni's: the thinker's rows and its own codes become rows of a text model's width."""
    own, at = part(c, "talker_config"), "talker"
    anatomy = decoder(own, request._replace(mtp=False), mixers=attention(qkv_bias=True, windows=late_windows))
    d, wide, codes = own.count("hidden_size"), own.count("embedding_size"), own.count("vocab_size")
    own.ignore("spatial_merge_size")
    leaves = (
        Leaf(f"{at}.model.embed_tokens", codes, wide, "embedding"),
        vector(f"{at}.model.norm", d, "norm"),
        linear(f"{at}.thinker_to_talker_proj", wide, d, "other", bias=True),
        linear(f"{at}.codec_head", d, codes, "other"),
    )
    return Speech(_named(anatomy.stacks[0].runs, f"{at}.model.layers"), leaves)


def _named(runs: Sequence[Run], where: str) -> tuple[Run, ...]:
    return tuple(replace(run, list=where) for run in runs)


def _each(where: str, *layers: Sequence[Leaf], dtype: str | None = "float32") -> tuple[Run, ...]:
    """Return layers of leaves, kept in a dtype."""
    made = (tuple(replace(leaf, own_dtype=dtype) for leaf in leaves) for leaves in layers)
    return tuple(Run(1, Layer((Sublayer(Weights(leaves)),)), list=where) for leaves in made)


def _conv(name: str, kernel: int, into: int, out: int, *, bias: bool = True, copies: int = 1) -> Leaf:
    return linear(name, kernel * into, out, "conv", bias=bias, work="conv", copies=copies)


def codes_to_waves(c: Config, _request: Request) -> Speech:
    """Qwen 2.5 Omni's: a diffusion transformer makes a spectrum of codes and a voice, and BigVGAN makes waves of it."""
    own = part(c, "token2wav_config")
    made = _spectrum(part(own, "dit_config")) + _big_vgan(part(own, "bigvgan_config"))
    return made._replace(leaves=tuple(replace(leaf, own_dtype="float32") for leaf in made.leaves))


def qwen25_speaks(c: Config, request: Request) -> Speech:
    """Talker and waves."""
    return talker(c, request) + codes_to_waves(c, request)


STEP = 256
"""Width of the waves that tell the diffusion's step."""


def _spectrum(c: Config) -> Speech:
    """Return the diffusion transformer, and the network that describes a voice (ECAPA-TDNN, arXiv:2005.07143)."""
    at, d, mel = "token2wav.code2wav_dit_model", c.count("hidden_size"), c.count("mel_dim")
    inner = c.count("num_attention_heads") * c.count("head_dim")
    f = c.scaled("ff_mult", 2, d)
    codes, voice = c.count("emb_dim"), c.count("enc_dim")
    c.ignore("max_position_embeddings", "rope_parameters", "rope_theta", "block_size")
    layer = (
        linear("attn_norm.linear", d, 6 * d, "norm", bias=True),
        *(linear(f"attn.{name}", d, inner, "attention", bias=True) for name in ("to_q", "to_k", "to_v")),
        linear("attn.to_out.0", inner, d, "attention", bias=True),
        linear("ff.ff.0", d, f, "mlp", bias=True),
        linear("ff.ff.3", f, d, "mlp", bias=True),
    )
    times = (linear("time_mlp", STEP, d, "other", bias=True),), (linear("time_mlp", d, d, "other", bias=True),)
    leaves = (
        Leaf(f"{at}.text_embed.codec_embed", c.count("num_embeds") + 1, codes, "embedding"),
        linear(f"{at}.input_embed.proj", mel + voice + c.count("enc_emb_dim") + codes, d, "other", bias=True),
        linear(f"{at}.norm_out.linear", d, 2 * d, "norm", bias=True),
        linear(f"{at}.proj_out", d, mel, "other", bias=True),
    )
    blocks = _each(f"{at}.transformer_blocks", layer)[0]
    body = (replace(blocks, count=c.count("num_hidden_layers")), *_each(f"{at}.time_embed.time_mlp", *times))
    return Speech(body, leaves) + _voice(c, f"{at}.input_embed.spk_encoder", mel, voice)


def _voice(c: Config, at: str, mel: int, out: int) -> Speech:
    """Return convolutions over time, blocks of which each squeezes and scales its channels, and attentive pooling."""
    wide, kernels = whole_numbers(c, "enc_channels"), whole_numbers(c, "enc_kernel_sizes")
    if len(wide) != len(kernels) or len(wide) < 2 or min(*wide, *kernels) < 1:
        raise PlanError(
            f"found {kernels}, {len(wide)} are needed", where=c.where("enc_kernel_sizes"), fix="correct the file"
        )
    parts, squeezed = c.count("enc_res2net_scale"), c.count("enc_se_channels")
    looked, last = c.count("enc_attention_channels"), wide[-1]
    c.ignore("enc_dilations")
    first = (_conv("conv", kernels[0], mel, wide[0]),)
    middle = [
        (
            _conv("tdnn1.conv", 1, before, now),
            _conv("res2net_block.blocks.conv", kernel, now // parts, now // parts, copies=parts - 1),
            _conv("tdnn2.conv", 1, now, now),
            _conv("se_block.conv1", 1, now, squeezed),
            _conv("se_block.conv2", 1, squeezed, now),
        )
        for before, now, kernel in zip(wide[:-2], wide[1:-1], kernels[1:-1], strict=True)
    ]
    leaves = (
        _conv(f"{at}.mfa.conv", kernels[-1], last, last),
        _conv(f"{at}.asp.tdnn.conv", 1, 3 * last, looked),
        _conv(f"{at}.asp.conv", 1, looked, last),
        _conv(f"{at}.fc", 1, 2 * last, out),
    )
    return Speech(_each(f"{at}.blocks", first, *middle), leaves)


def _big_vgan(c: Config) -> Speech:
    """Return convolutions that raise the rate and halve the width, each with a few blocks of further ones (arXiv:2206.04658)."""
    at, wide, mel = "token2wav.code2wav_bigvgan_model", c.count("upsample_initial_channel"), c.count("mel_dim")
    rates, kernels = whole_numbers(c, "upsample_rates"), whole_numbers(c, "upsample_kernel_sizes")
    inside, widths = whole_numbers(c, "resblock_kernel_sizes"), [wide // 2**i for i in range(len(rates) + 1)]
    given = c.raw("resblock_dilation_sizes", [()] * len(inside))
    if len(kernels) != len(rates) or not isinstance(given, list | tuple) or len(given) != len(inside) or not widths[-1]:
        raise PlanError(
            f"found {kernels}, {len(rates)} are needed", where=c.where("upsample_kernel_sizes"), fix="correct the file"
        )
    ups = [
        run
        for i, kernel in enumerate(kernels)
        for run in _each(f"{at}.ups.{i}", (_conv("conv", kernel, widths[i], widths[i + 1]),))
    ]
    blocks = [
        (
            _conv("convs1", kernel, now, now, copies=3), _conv("convs2", kernel, now, now, copies=3),
            *(Leaf(f"activations.act.{name}", 1, now, "conv", copies=6) for name in ("alpha", "beta")),
        )
        for now in widths[1:]
        for kernel in inside
    ]  # fmt: skip
    last = widths[-1]
    leaves = (
        _conv(f"{at}.conv_pre", 7, mel, wide),
        *(vector(f"{at}.activation_post.act.{name}", last, "conv") for name in ("alpha", "beta")),
        _conv(f"{at}.conv_post", 7, last, 1, bias=False),
    )
    return Speech((*ups, *_each(f"{at}.resblocks", *blocks)), leaves)


HEADS: dict[str, Any] = dict(qk_norm="head", qkv_bias="attention_bias", out_bias="attention_bias", uneven=True)


def qwen3_speaks(c: Config, request: Request) -> Speech:
    """Qwen 3 Omni's: a talker with experts, a predictor of further codes, and what makes waves of all."""
    own = part(c, "talker_config")
    text = _known(own, "text_config", "qwen3_omni_moe_talker_text")
    more = _known(own, "code_predictor_config", "qwen3_omni_moe_talker_code_predictor")
    own.ignore("spatial_merge_size", "num_code_groups", "tie_word_embeddings")
    return _talker(own, text, request) + _predictor(more, request) + _code_to_wave(part(c, "code2wav_config"))


def _known(c: Config, key: str, kind: str) -> Config:
    """Return a reader of a part of a part, of which only the part's own class is known."""
    from planner.families import defaults  # noqa: PLC0415

    known = defaults(kind)
    return c.nested(key, kind, known["names"], known["defaults"])


def _shared(c: Config, _hidden: int) -> int:
    return int(c.count("shared_expert_intermediate_size", low=0))


def _talker(c: Config, text: Config, request: Request) -> Speech:
    """Return the text model, two projections of the thinker's rows, and the codes' table and head."""
    feeds = mixture(
        sparse=every_layer, scoring="softmax", shared=_shared, shared_gate=True, shared_name="shared_expert"
    )
    anatomy = decoder(text, request._replace(mtp=False), mixers=attention(**HEADS), feeds=feeds)
    _no_tie(text)
    text.ignore(
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "use_qk_norm",
        "mlp_only_layers",
        "decoder_sparse_step",
    )
    at, d, codes, wide = "talker", text.count("hidden_size"), text.count("vocab_size"), c.count("thinker_hidden_size")
    f = text.count("intermediate_size")
    leaves = [Leaf(f"{at}.model.codec_embedding", codes, d, "embedding"), vector(f"{at}.model.norm", d, "norm")]
    for name in ("text_projection", "hidden_projection"):
        leaves += [
            linear(f"{at}.{name}.linear_fc1", wide, f, "other", bias=True),
            linear(f"{at}.{name}.linear_fc2", f, d, "other", bias=True),
        ]
    leaves.append(linear(f"{at}.codec_head", d, codes, "other"))
    return Speech(_named(anatomy.stacks[0].runs, f"{at}.model.layers"), tuple(leaves))


def _no_tie(c: Config) -> None:
    if c.flag("tie_word_embeddings", False):
        raise PlanError(
            "found true, but these tables aren't shared in the reference", where=c.where("tie_word_embeddings"),
            fix="set it to false",
        )  # fmt: skip


def _predictor(c: Config, request: Request) -> Speech:
    """Return a small text model, with a table and a head for each group of codes but the first."""
    anatomy = decoder(c, request._replace(mtp=False), mixers=attention(**HEADS))
    _no_tie(c)
    c.ignore("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")
    at, d, codes = "talker.code_predictor", c.count("hidden_size"), c.count("vocab_size")
    more = c.count("num_code_groups") - 1
    leaves = (
        *(Leaf(f"{at}.model.codec_embedding.{i}", codes, d, "embedding") for i in range(more)),
        vector(f"{at}.model.norm", d, "norm"),
        *(linear(f"{at}.lm_head.{i}", d, codes, "other") for i in range(more)),
    )
    return Speech(_named(anatomy.stacks[0].runs, f"{at}.model.layers"), leaves)


def _code_to_wave(c: Config) -> Speech:
    """Return gated layers whose blocks are scaled, and convolutions that raise the rate of rows, then of waves."""
    at, d, wide = "code2wav", c.count("hidden_size"), c.count("decoder_dim")
    first, rates = whole_numbers(c, "upsampling_ratios"), whole_numbers(c, "upsample_rates")
    widths = [wide // 2**i for i in range(len(rates) + 1)]
    if not widths[-1] or min(*first, *rates, 1) < 1:
        raise PlanError(
            f"found {rates}",
            where=c.where("upsample_rates"),
            fix="give rates above 0, and as many as halve decoder_dim",
        )
    ups = [_up(d, factor) for factor in first]
    blocks = [_raised(before, now, rate) for before, now, rate in zip(widths, widths[1:], rates, strict=False)]
    rows = c.count("codebook_size") * c.count("num_quantizers")
    leaves = (
        Leaf(f"{at}.code_embedding", rows, d, "embedding"), vector(f"{at}.pre_transformer.norm", d, "norm"),
    )  # fmt: skip
    ends = ((_conv("conv", 7, d, wide),), *blocks, _snake("act", widths[-1]), (_conv("conv", 7, widths[-1], 1),))
    c.ignore(
        "max_position_embeddings", "rope_parameters", "rope_theta", "rope_scaling", "sliding_window", "layer_types"
    )
    body = replace(
        _each(f"{at}.pre_transformer.layers", _scaled(c, d), dtype=None)[0], count=c.count("num_hidden_layers")
    )
    return Speech(
        (body, *_each(f"{at}.upsample", *ups, dtype=None), *_each(f"{at}.decoder", *ends, dtype=None)), leaves
    )


def _scaled(c: Config, d: int) -> tuple[Leaf, ...]:
    heads, f, bias = c.count("num_attention_heads"), c.count("intermediate_size"), c.flag("attention_bias", False)
    head, groups = c.count("head_dim", d // heads), c.count("num_key_value_heads", heads)
    return (
        linear("self_attn.q_proj", d, heads * head, "attention", bias=bias),
        linear("self_attn.k_proj", d, groups * head, "attention", bias=bias),
        linear("self_attn.v_proj", d, groups * head, "attention", bias=bias),
        linear("self_attn.o_proj", heads * head, d, "attention", bias=bias),
        linear("mlp.gate_proj", d, f, "mlp"),
        linear("mlp.up_proj", d, f, "mlp"),
        linear("mlp.down_proj", f, d, "mlp"),
        *(vector(name, d, "norm") for name in ("input_layernorm", "post_attention_layernorm")),
        *(vector(f"{name}_layer_scale.scale", d, "other") for name in ("self_attn", "mlp")),
    )


def _up(d: int, factor: int) -> tuple[Leaf, ...]:
    return (
        _conv("0.conv", factor, d, d),
        linear("1.dwconv.conv", 7, d, "conv", bias=True, work="conv"),
        vector("1.norm", d, "conv", bias=True),
        linear("1.pwconv1", d, 4 * d, "conv", bias=True),
        linear("1.pwconv2", 4 * d, d, "conv", bias=True),
        vector("1.gamma", d, "conv"),
    )


def _snake(name: str, width: int) -> tuple[Leaf, ...]:
    return tuple(vector(f"{name}.{each}", width, "conv") for each in ("alpha", "beta"))


def _raised(before: int, now: int, rate: int) -> tuple[Leaf, ...]:
    units = [
        leaf
        for i in (2, 3, 4)
        for leaf in (
            *_snake(f"block.{i}.act1", now), _conv(f"block.{i}.conv1.conv", 7, now, now), *_snake(f"block.{i}.act2", now),
            _conv(f"block.{i}.conv2.conv", 1, now, now),
        )
    ]  # fmt: skip
    return (*_snake("block.0", before), _conv("block.1.conv", 2 * rate, before, now), *units)
