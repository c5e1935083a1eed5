"""Families published with code of their own, without a class in transformers: each row against a published count of parameters."""

from __future__ import annotations

from typing import Any

import pytest

from planner import PlanError, plan

CHATGLM3 = {
    "model_type": "chatglm", "architectures": ["ChatGLMModel"], "num_layers": 28, "padded_vocab_size": 65024, "hidden_size": 4096,
    "ffn_hidden_size": 13696, "kv_channels": 128, "num_attention_heads": 32, "multi_query_attention": True,
    "multi_query_group_num": 2, "add_qkv_bias": True, "add_bias_linear": False, "rmsnorm": True, "seq_length": 8192,
}  # fmt: skip
MIMO = {
    "model_type": "mimo", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 36, "vocab_size": 151680, "num_nextn_predict_layers": 1, "attention_bias": True,
}  # fmt: skip
MINICPM = {
    "model_type": "minicpm", "hidden_size": 2304, "intermediate_size": 5760, "num_attention_heads": 36, "num_key_value_heads": 36,
    "num_hidden_layers": 40, "vocab_size": 122753,
}  # fmt: skip
OPENELM = {
    "model_type": "openelm", "num_transformer_layers": 28, "model_dim": 2048, "head_dim": 64, "num_gqa_groups": 4,
    "normalize_qk_projections": True, "share_input_output_layers": True, "ffn_multipliers": [0.5, 4.0],
    "qkv_multipliers": [0.5, 1.0], "vocab_size": 32000,
}  # fmt: skip
QWEN = {
    "model_type": "qwen", "architectures": ["QWenLMHeadModel"], "hidden_size": 2048, "intermediate_size": 11008,
    "num_hidden_layers": 24, "num_attention_heads": 16, "kv_channels": 128, "vocab_size": 151936, "no_bias": True,
}  # fmt: skip
DECI = {
    "model_type": "deci",
    "intermediate_size": 14336,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "ChatGLM3-6B": (CHATGLM3, 6_243_584_000),
    "GLM-4-9B-Chat, as published first": (CHATGLM3 | {"num_layers": 40, "padded_vocab_size": 151552}, 9_399_951_360),
    "Baichuan2-7B": (
        {"model_type": "baichuan", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32,
         "vocab_size": 125696, "model_max_length": 4096, "max_position_embeddings": 4096}, 7_505_973_248,
    ),
    "InternLM2-7B": (
        {"model_type": "internlm2", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
         "num_hidden_layers": 32, "vocab_size": 92544, "bias": False}, 7_737_708_544,
    ),
    "Qwen-1.8B": (QWEN, 1_836_828_672),
    "Qwen-7B, all of it its class's defaults": ({"model_type": "qwen"}, 7_721_324_544),
    "MiniCPM-2B": (MINICPM, 2_724_880_896),
    "Phi-2 with its first code": (
        {"model_type": "phi-msft", "n_embd": 2560, "n_head": 32, "n_layer": 32, "n_positions": 2048, "n_inner": None, "n_head_kv": None,
         "rotary_dim": 32, "vocab_size": 51200}, 2_779_683_840,
    ),
    "DeciLM-7B, whose 67 key-value heads are spread over 32 layers": (
        DECI | {"num_key_value_heads_per_layer": [4] * 11 + [2] * 2 + [1] * 19}, 7_043_551_232,
    ),
    "OpenELM-270M": (OPENELM | {"num_transformer_layers": 16, "model_dim": 1280}, 271_527_168),
    "OpenELM-450M": (OPENELM | {"num_transformer_layers": 20, "model_dim": 1536}, 457_179_136),
    "OpenELM-1.1B": (OPENELM, 1_079_891_456),
    "OpenELM-3B": (OPENELM | {"num_transformer_layers": 36, "model_dim": 3072, "head_dim": 128}, 3_036_647_424),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_total_parameters_are_the_published_ones(name: str) -> None:
    """To the last parameter."""
    config, total = PUBLISHED[name]
    assert plan(config).params["total"] == total


def test_mimo_7b_is_published_with_its_prediction_layer() -> None:
    """7,833,409,536 in the checkpoint; a layer, three norms and a projection from 2 D to D are for prediction."""
    with_layer, without = plan(MIMO, mtp=True).params, plan(MIMO).params
    d = 4096
    layer = with_layer["stacks"]["decoder"]["layers"][0]
    assert (with_layer["total"], without["total"]) == (7_833_409_536, 7_833_409_536 - layer - 3 * d - 2 * d * d)


def test_minicpm_moe_has_13_6_billion_outside_its_table() -> None:
    """8 experts of MiniCPM-2B's blocks; its card says 13.6B without embeddings, 4B of them at work."""
    made = plan(MINICPM | {"num_experts": 8, "num_experts_per_tok": 2}).params
    assert made["total"] - made["embedding"] == 13_590_468_864
    assert round((made["active"] - made["embedding"]) / 1e9) == 4


def test_figures_known_to_a_billion() -> None:
    """InternLM-7B, Orion-14B and XVERSE-13B: no count was found, only their names."""
    found = [
        plan({"model_type": "internlm"}).params["total"],
        plan({"model_type": "orion", "hidden_size": 5120}).params["total"],
        plan({"model_type": "xverse"}).params["total"],
    ]
    assert [total // 10**9 for total in found] == [7, 14, 13]


def _searched(*blocks: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    listed = [{"attention": attention, "ffn": feed} for attention, feed in blocks]
    return {
        "model_type": "nemotron-nas", "hidden_size": 8192, "num_attention_heads": 64, "num_hidden_layers": len(listed),
        "vocab_size": 128256, "intermediate_size": None, "num_key_value_heads": None, "block_configs": listed,
    }  # fmt: skip


FULL = ({"n_heads_in_group": 8, "no_op": False, "window_length": None}, {"ffn_mult": 5.25, "no_op": False})


def test_a_search_that_changes_nothing_leaves_llama_70b() -> None:
    """Nemotron's blocks, all with 8 query heads a group and 5.25 x 2/3 x D: Llama 3.1 70B, 70,553,706,496."""
    assert plan(_searched(*[FULL] * 80)).params["total"] == 70_553_706_496


def test_searched_layers_may_lack_a_block_or_have_one_matrix_instead() -> None:
    """No norm either where there is no block, no cache where there is no attention; 2.625 x 2/3 x D = 14,336."""
    d, head, norm = 8192, 128, 8192
    attention = 2 * d * d + 2 * d * 8 * head
    made = plan(
        _searched(
            FULL, ({"no_op": True}, {"ffn_mult": 2.625}), ({"replace_with_linear": True}, {"replace_with_linear": True}),
            ({"n_heads_in_group": 16}, {"no_op": True}), ({"no_op": True}, {"no_op": True}),
        ), dtype="bf16",
    )  # fmt: skip
    assert made.params["stacks"]["decoder"]["layers"] == [
        attention + 3 * d * 28_672 + 2 * norm,
        3 * d * 14_336 + norm,
        2 * d * d + 2 * norm,
        2 * d * d + 2 * d * 4 * head + norm,
        0,
    ]
    assert made.cache["bytes_per_token"] == 2 * (2 * 8 * head + 2 * 4 * head)


def test_openelm_reads_lists_as_its_checkpoints_have_them() -> None:
    """Heads and multipliers of each layer, instead of the two numbers they were made from."""
    heads = [16] * 3 + [20] * 7 + [24] * 8 + [28] * 6 + [32] * 4
    widths = [0.5, 0.63, 0.76, 0.89, 1.02, 1.15, 1.28, 1.41, 1.54, 1.67, 1.8, 1.93, 2.06, 2.19, 2.31, 2.44, 2.57, 2.7, 2.83, 2.96,
              3.09, 3.22, 3.35, 3.48, 3.61, 3.74, 3.87, 4.0]  # fmt: skip
    listed = {"num_query_heads": heads, "num_kv_heads": [each // 4 for each in heads], "ffn_multipliers": widths}
    assert plan(OPENELM | listed).params["total"] == 1_079_891_456


@pytest.mark.parametrize(
    ("config", "where"),
    [
        (QWEN | {"no_bias": False}, "no_bias"),
        (CHATGLM3 | {"pre_seq_len": 128}, "pre_seq_len"),
        (CHATGLM3 | {"inner_hidden_size": 16384}, "inner_hidden_size"),
        (DECI | {"num_key_value_heads_per_layer": [4, 4]}, "num_key_value_heads_per_layer"),
        (_searched(FULL) | {"num_hidden_layers": 2}, "block_configs"),
        (_searched(({"n_heads_in_group": 7}, {"ffn_mult": 1})), "block_configs[0].attention.n_heads_in_group"),
        (_searched(({"n_heads_in_group": 8, "window_length": 512}, {"ffn_mult": 1})), "block_configs[0].attention.window_length"),
        (_searched(({"n_heads_in_group": 8}, {"ffn_mult": None})), "block_configs[0].ffn.ffn_mult"),
        (OPENELM | {"ffn_multipliers": [0.5, 1.0, 4.0]}, "ffn_multipliers"),
        (OPENELM | {"qkv_multipliers": "all"}, "qkv_multipliers"),
        ({"model_type": "mpt", "attn_config": {"qk_ln": True}}, "attn_config.qk_ln"),
        ({"model_type": "mpt", "expansion_ratio": 2}, "expansion_ratio"),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 3]]}, "attention_types"),
        ({"model_type": "gpt_neo", "attention_types": "local"}, "attention_types"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_refused(config: dict[str, Any], where: str) -> None:
    """The message names the field."""
    with pytest.raises(PlanError) as refused:
        plan(config)
    assert f", {where}" in str(refused.value)
