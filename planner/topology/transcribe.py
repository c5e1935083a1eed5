"""Nemotron Transcribe: a speech encoder, a model that tells speakers apart, and layers that say when a word was spoken.

How many rows sound becomes is the feature extractor's to say, so that a workload can't ask for their work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.blocks import Leaf, Weights, linear, vector
from planner.errors import PlanError
from planner.fields import Config
from planner.model import Input, Layer, Run, Stack, Sublayer
from planner.topology import Anatomy, Request
from planner.topology.multimodal import COMMON, multimodal, part

LATE = "word_timestamp_encoder"
"""The one list of layers that isn't kept in float32."""

DIARIZATION = "nemotron3_diarization"
"""The one model that tells speakers apart; the class would build others too."""


def transcriber(c: Config, request: Request, **traits: Any) -> Anatomy:
    """Return the text model's stack, and one with everything that hears."""
    found = multimodal(c, request, senses=(), extra=hearing, **traits)
    return found._replace(inputs=(Input("audio", lacking="how the tower cuts sound"),))


def hearing(c: Config, width: int) -> tuple[Stack]:
    """Return three lists of layers as one stack, and what stands around them."""
    ears, times = part(c, "audio_config"), part(c, "word_timestamp_config")
    speech, speakers = part(ears, "asr_config"), _speakers(ears)
    voices, head = part(speakers, "audio_config"), part(speakers, "head_config")
    at = "audio_tower.diarization_model"
    here = f"{at}.model.audio_tower"
    runs = (
        _layers(speech, "audio_tower.asr_encoder", qk_norm=True),
        _layers(voices, here, qk_norm=False),
        _layers(times, LATE, qk_norm=True),
    )
    d, frame = speech.count("hidden_size"), times.count("hidden_size")
    factor = times.count("upsampling_factor")
    tower = (
        *_ends(speech, "audio_tower.asr_encoder"), *_ends(voices, here), *_speaker_head(voices, head, at),
        vector("audio_tower.asr_norm", d, "norm", bias=True),
        vector("audio_tower.speaker_norm", head.count("num_speakers"), "norm", bias=True),
        linear("multi_modal_projector", d, width, "other", bias=True),
    )  # fmt: skip
    leaves = (
        *map(kept, tower),
        linear("word_timestamp_encoder.upsampler", factor * frame, frame, "conv", bias=True, work="conv"),
        *(vector(f"word_timestamp_encoder.{name}", frame, "norm", bias=True) for name in ("input_layer_norm", "layer_norm")),
        linear("word_timestamp_head", frame, times.count("vocab_size"), "head", bias=True),
    )  # fmt: skip
    speakers.ignore("streaming_config", "model_type")
    ears.ignore("model_type")
    head.ignore(*COMMON, "subsampling_factor")
    return (Stack("audio", (Weights(leaves),), runs, (), "model."),)


def kept(leaf: Leaf) -> Leaf:
    """Return a leaf that is stored in float32 whatever the model's dtype, as the class asks for the tower and the projector."""
    return replace(leaf, own_dtype="float32")


def _speakers(c: Config) -> Config:
    """Return a reader of the model that tells speakers apart.

    Raises:
        PlanError: it is another.
    """
    given = c.values.get("diarization_config")
    named = given.get("model_type") if isinstance(given, Mapping) else None
    if named not in (None, DIARIZATION):
        raise PlanError(
            f"found {named!r}, allowed is {DIARIZATION!r}",
            where=f"{c.source}, {c.scope}diarization_config.model_type",
            fix="plan the text model alone: save its text_config as a file of its own",
        )
    return part(c, "diarization_config")


def _layers(c: Config, at: str, *, qk_norm: bool) -> Run:
    """Return pre-norm layers with biases at the feed-forward block and the output of attention."""
    d, heads = c.count("hidden_size"), c.heads("num_attention_heads", c.count("hidden_size"))
    head, groups = c.count("head_dim", d // heads), c.count("num_key_value_heads", heads)
    if groups != heads:
        raise PlanError(
            f"found {groups}, as many as query heads ({heads}) are needed: values have one each",
            where=c.where("num_key_value_heads"),
            fix="set it to null",
        )
    inner, q = c.count("intermediate_size"), heads * head
    leaves = (
        *(vector(f"layer_norm{i}", d, "norm", bias=True) for i in (1, 2)),
        *(linear(f"self_attn.{name}_proj", d, q, "attention") for name in "qkv"),
        linear("self_attn.o_proj", q, d, "attention", bias=True),
        *(vector(f"self_attn.{name}_norm", head, "norm", bias=True) for name in "qk" if qk_norm),
        linear("mlp.fc1", d, inner, "mlp", bias=True), linear("mlp.fc2", inner, d, "mlp", bias=True),
    )  # fmt: skip
    layer = Layer((Sublayer(Weights(tuple(leaf if at == LATE else kept(leaf) for leaf in leaves))),))
    c.ignore(*(key for key in COMMON if key not in {"vocab_size", "num_key_value_heads"}))
    return Run(c.count("num_hidden_layers"), layer, list=f"{at}.layers")


def _ends(c: Config, at: str) -> Iterator[Leaf]:
    """Yield the matrix that stacked frames enter through, and the norms before and after the layers."""
    d, wide = c.count("hidden_size"), c.count("subsampling_factor") * c.count("num_mel_bins")
    yield linear(f"{at}.embedder.projection", wide, d, "conv")
    yield from (vector(f"{at}.{name}", d, "norm", bias=True) for name in ("input_layer_norm", "layer_norm"))


def _speaker_head(voices: Config, head: Config, at: str) -> Iterator[Leaf]:
    """Yield what tells from the encoder's rows who speaks, at the rate of the frames."""
    d, hidden, factor = voices.count("hidden_size"), head.count("hidden_size"), voices.count("subsampling_factor")
    if (given := head.count("audio_hidden_size")) != d:
        raise PlanError(
            f"found {given}, but the encoder's rows have {d} elements",
            where=head.where("audio_hidden_size"),
            fix="correct one of them",
        )
    yield vector(f"{at}.silence_embeds", d, "other")
    yield linear(f"{at}.model.proj", d, hidden, "other", bias=True)
    yield linear(f"{at}.model.upsampler.conv", 3 * hidden, factor * hidden, "conv", bias=True, work="conv")
    yield linear(f"{at}.classifier.dense", hidden, hidden, "other", bias=True)
    yield linear(f"{at}.classifier.out_proj", hidden, head.count("num_speakers"), "other", bias=True)
