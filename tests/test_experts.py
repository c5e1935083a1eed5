"""Families with experts whose classes aren't in transformers, against published sizes; and what engines do with experts."""

from __future__ import annotations

from typing import Any

import pytest

from planner import plan

COMMON: dict[str, Any] = dict(max_position_embeddings=4096, tie_word_embeddings=False, hidden_act="silu")
LING_LITE = dict(
    COMMON, model_type="bailing_moe", architectures=["BailingMoeForCausalLM"], hidden_size=2048, intermediate_size=1408,
    moe_intermediate_size=1408, num_experts=64, num_shared_experts=2, num_experts_per_tok=6, num_attention_heads=16,
    num_key_value_heads=4, num_hidden_layers=28, first_k_dense_replace=0, use_bias=False, use_qkv_bias=False, vocab_size=126464,
)  # fmt: skip
LING_MINI = dict(
    COMMON, model_type="bailing_moe", architectures=["BailingMoeV2ForCausalLM"], hidden_size=2048, intermediate_size=5120,
    moe_intermediate_size=512, num_experts=256, num_shared_experts=1, num_experts_per_tok=8, n_group=8, topk_group=4,
    num_attention_heads=16, num_key_value_heads=4, head_dim=128, num_hidden_layers=20, first_k_dense_replace=1, use_qk_norm=True,
    moe_router_enable_expert_bias=True, moe_shared_expert_intermediate_size=512, vocab_size=157184, use_bias=False,
    use_qkv_bias=False,
)  # fmt: skip
DEEPSEEK_MOE = dict(
    COMMON, model_type="deepseek", hidden_size=2048, intermediate_size=10944, moe_intermediate_size=1408, num_hidden_layers=28,
    num_attention_heads=16, num_key_value_heads=16, n_shared_experts=2, n_routed_experts=64, num_experts_per_tok=6,
    moe_layer_freq=1, first_k_dense_replace=1, vocab_size=102400,
)  # fmt: skip


@pytest.mark.parametrize(
    ("config", "total", "active"), [(LING_LITE, 16.8, 2.75), (LING_MINI, 16.26, 1.43), (DEEPSEEK_MOE, 16.38, 2.83)]
)
def test_published_sizes(config: dict[str, Any], total: float, active: float) -> None:
    """Ling-lite 16.8B and 2.75B, Ling-mini-2.0 16B and 1.4B, DeepSeekMoE 16.4B and 2.8B, as their authors say."""
    params = plan(config).params
    assert params["total"] / 1e9 == pytest.approx(total, abs=0.005)
    assert params["active"] / 1e9 == pytest.approx(active, abs=0.005)


def test_without_a_number_of_experts_per_token_the_work_is_left_open() -> None:
    """DeepSeek-V2's class takes null: parameters are planned, and a note says that no expert counts as active."""
    config = dict(
        COMMON, model_type="deepseek_v2", hidden_size=64, intermediate_size=64, moe_intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, n_routed_experts=8, num_experts_per_tok=None, first_k_dense_replace=1, vocab_size=10,
    )  # fmt: skip
    found = plan(config)
    assert found.params["total"] - found.params["active"] == 8 * 3 * 64 * 32
    assert found.flops["decode"]["by_op"]["experts"] == 0
    assert any("num_experts_per_tok" in note for note in found.model["notes"])


def test_llama_4_runs_every_expert_in_transformers() -> None:
    """4 experts of 3 x 64 x 32: one is visited, but transformers runs all; the same are active."""
    config = dict(
        COMMON, model_type="llama4_text", hidden_size=64, intermediate_size=32, intermediate_size_mlp=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, head_dim=32, num_local_experts=4, num_experts_per_tok=1, vocab_size=10,
        attention_chunk_size=8,
    )  # fmt: skip
    ideal, run = (plan(config, engine=engine) for engine in ("ideal", "transformers"))
    assert run.params["active"] == ideal.params["active"]
    experts = [each.flops["decode"]["by_op"]["experts"] for each in (ideal, run)]
    assert experts == [2 * 3 * 64 * 32, 4 * 2 * 3 * 64 * 32]
