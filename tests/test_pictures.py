"""Models that look at images: parameters and FLOPs of small ones, with an image, as transformers 5.24 and PyTorch's counter say."""

from __future__ import annotations

from typing import Any

import pytest

from planner.api import load
from planner.errors import PlanError
from planner.workload import Pass, workload

Case = tuple[str, dict[str, Any], str, list[tuple[str, int, int, int]], int, int]


def formulanet(image: int, window: int) -> dict[str, Any]:
    """Return a small PP-FormulaNet's config."""
    return {
        "model_type": "pp_formulanet",
        "vision_config": {
            "hidden_size": 64,
            "output_channels": 24,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "image_size": image,
            "mlp_dim": 96,
            "global_attn_indexes": [1],
            "window_size": window,
            "post_conv_in_channels": 24,
            "post_conv_mid_channels": 32,
            "post_conv_out_channels": 40,
            "decoder_hidden_size": 48,
        },
        "text_config": {
            "d_model": 48,
            "decoder_layers": 2,
            "decoder_ffn_dim": 64,
            "decoder_attention_heads": 4,
            "vocab_size": 99,
            "max_position_embeddings": 64,
        },
    }


CASES: list[Case] = [
    (
        "ViT and BERT",
        {
            "model_type": "vision-encoder-decoder",
            "encoder": {
                "model_type": "vit",
                "hidden_size": 48,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 32,
                "patch_size": 8,
            },
            "decoder": {
                "model_type": "bert",
                "hidden_size": 48,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "vocab_size": 99,
                "is_decoder": True,
                "add_cross_attention": True,
            },
        },
        "VisionEncoderDecoderModel",
        [("encoder", 17, 0, 0), ("decoder", 7, 17, 0)],
        127075,
        2490720,
    ),
    (
        "DeiT and TrOCR",
        {
            "model_type": "vision-encoder-decoder",
            "encoder": {
                "model_type": "deit",
                "hidden_size": 48,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 32,
                "patch_size": 8,
            },
            "decoder": {
                "model_type": "trocr",
                "d_model": 32,
                "decoder_layers": 2,
                "decoder_attention_heads": 4,
                "decoder_ffn_dim": 64,
                "vocab_size": 99,
                "is_decoder": True,
                "add_cross_attention": True,
                "use_learned_position_embeddings": True,
                "cross_attention_hidden_size": 48,
            },
        },
        "VisionEncoderDecoderModel",
        [("encoder", 18, 0, 0), ("decoder", 7, 18, 0)],
        91776,
        2126912,
    ),
    (
        "Pix2Struct",
        {
            "model_type": "pix2struct",
            "vision_config": {
                "hidden_size": 48,
                "patch_embed_hidden_size": 20,
                "d_ff": 60,
                "d_kv": 10,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "seq_len": 33,
            },
            "text_config": {
                "hidden_size": 48,
                "d_kv": 12,
                "d_ff": 64,
                "num_layers": 3,
                "num_heads": 4,
                "vocab_size": 99,
                "relative_attention_num_buckets": 16,
                "tie_word_embeddings": True,
            },
        },
        "Pix2StructForConditionalGeneration",
        [("encoder", 21, 0, 0), ("decoder", 7, 21, 0)],
        130048,
        3280032,
    ),
    (
        "PP-FormulaNet",
        formulanet(160, 5),
        "PPFormulaNetForConditionalGeneration",
        [("encoder", 9, 0, 0), ("decoder", 7, 9, 0)],
        266904,
        40682848,
    ),
    (
        "PP-FormulaNet, whole squares",
        formulanet(192, 4),
        "PPFormulaNetForConditionalGeneration",
        [("encoder", 9, 0, 0), ("decoder", 7, 9, 0)],
        269656,
        58686816,
    ),
    (
        "BLIP-2",
        {
            "model_type": "blip-2",
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "image_size": 56,
                "patch_size": 14,
            },
            "qformer_config": {
                "hidden_size": 48,
                "intermediate_size": 96,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "cross_attention_frequency": 2,
                "vocab_size": 100,
            },
            "text_config": {
                "model_type": "opt",
                "hidden_size": 32,
                "ffn_dim": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "vocab_size": 99,
                "word_embed_proj_dim": 32,
            },
            "num_query_tokens": 5,
            "image_token_index": 98,
        },
        "Blip2ForConditionalGeneration",
        [("vision", 17, 0, 5), ("decoder", 12, 0, 0)],
        306176,
        6399936,
    ),
    (
        "Kosmos-2",
        {
            "model_type": "kosmos-2",
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "image_size": 56,
                "patch_size": 14,
            },
            "text_config": {"embed_dim": 64, "ffn_dim": 96, "layers": 2, "attention_heads": 4, "vocab_size": 99},
            "latent_query_num": 5,
        },
        "Kosmos2ForConditionalGeneration",
        [("vision", 17, 0, 5), ("decoder", 12, 0, 0)],
        226368,
        6980352,
    ),
    (
        "BLIP",
        {
            "model_type": "blip",
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "image_size": 56,
                "patch_size": 14,
            },
            "text_config": {
                "vocab_size": 99,
                "hidden_size": 48,
                "intermediate_size": 96,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
            },
        },
        "BlipForConditionalGeneration",
        [("vision", 17, 0, 0), ("decoder", 12, 17, 0)],
        231363,
        6595200,
    ),
    (
        "Idefics with a resampler",
        {
            "model_type": "idefics",
            "vocab_size": 99,
            "additional_vocab_size": 3,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "cross_layer_interval": 2,
            "vision_config": {
                "intermediate_size": 128,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "image_size": 56,
                "patch_size": 14,
                "embed_dim": 32,
            },
            "use_resampler": True,
            "perceiver_config": {
                "resampler_depth": 2,
                "resampler_n_heads": 3,
                "resampler_head_dim": 8,
                "resampler_n_latents": 5,
            },
        },
        "IdeficsForVisionText2Text",
        [("vision", 17, 0, 5), ("decoder", 12, 5, 0)],
        332228,
        8239104,
    ),
    (
        "UDOP",
        {
            "model_type": "udop",
            "vocab_size": 99,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 3,
            "num_decoder_layers": 2,
            "num_heads": 4,
            "max_2d_position_embeddings": 17,
            "image_size": 32,
            "patch_size": 8,
        },
        "UdopForConditionalGeneration",
        [("encoder", 25, 0, 0), ("decoder", 7, 25, 0)],
        66976,
        2258624,
    ),
    (
        "Donut",
        {
            "model_type": "vision-encoder-decoder",
            "encoder": {
                "model_type": "donut-swin",
                "image_size": [64, 64],
                "patch_size": 4,
                "embed_dim": 16,
                "depths": [2, 1, 2],
                "num_heads": [2, 4, 8],
                "window_size": 4,
            },
            "decoder": {
                "model_type": "mbart",
                "d_model": 64,
                "decoder_layers": 2,
                "decoder_attention_heads": 4,
                "decoder_ffn_dim": 96,
                "vocab_size": 99,
                "max_position_embeddings": 40,
                "is_decoder": True,
                "add_cross_attention": True,
            },
        },
        "VisionEncoderDecoderModel",
        [("encoder", 16, 0, 0), ("decoder", 7, 16, 0)],
        233352,
        11295872,
    ),
]
"""Name, config, class, passes (stack, rows, memory, rows that leave), parameters, FLOPs of one forward of all of them."""


@pytest.mark.parametrize(
    ("config", "name", "passes", "parameters", "flops"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_small_models_with_an_image(
    config: dict[str, Any], name: str, passes: list[tuple[str, int, int, int]], parameters: int, flops: int
) -> None:
    """What a forward multiplies, towers and resamplers included, is what PyTorch counted."""
    model = load({**config, "architectures": [name]}, engine="transformers")
    assert model.tally.total == parameters
    found = 0
    for name_, rows, memory, merged in passes:
        stack = model.stack(name_)
        assert stack
        found += sum(stack.flops(Pass(1, rows, memory=memory, merged=merged), model.engine, dense=True).values())
    assert found == flops


def test_images_enter_the_encoder_where_there_is_one() -> None:
    """BLIP-2 with T5: queries are read by the encoder, not the decoder."""
    text = {"model_type": "t5", "is_encoder_decoder": True}
    work, _ = workload(load({"model_type": "blip-2", "text_config": text}, engine="transformers"), images=2, source=10)
    assert (work.prompt, work.source, work.image_rows, work.image_tokens) == (1, 10 + 2 * 32, 257, 32)


def test_mixed_ties_of_florence_are_refused() -> None:
    """The wrapper ties what its text model doesn't."""
    with pytest.raises(PlanError, match="differ"):
        load(
            {"model_type": "florence2", "text_config": {"model_type": "bart", "tie_word_embeddings": False}},
            engine="transformers",
        )
