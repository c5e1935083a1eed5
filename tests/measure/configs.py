"""Small configs that show every trait of every family: what a bundled model, shrunk, doesn't."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

LLAMA: Config = dict(
    model_type="llama", vocab_size=64, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
    num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False,
)  # fmt: skip
GPT2: Config = dict(model_type="gpt2", vocab_size=64, n_embd=48, n_layer=2, n_head=4, n_positions=40)
FALCON: Config = dict(model_type="falcon", vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=4)
DEEPSEEK: Config = dict(
    vocab_size=64, hidden_size=48, intermediate_size=80, moe_intermediate_size=24, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10,
    n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2, first_k_dense_replace=1,
)  # fmt: skip
BERT: Config = dict(
    model_type="bert", vocab_size=64, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=80,
    max_position_embeddings=40,
)  # fmt: skip
T5: Config = dict(model_type="t5", vocab_size=64, d_model=48, d_kv=10, d_ff=70, num_layers=2, num_heads=4)
BART: Config = dict(
    model_type="bart", vocab_size=64, d_model=48, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4,
    decoder_attention_heads=6, encoder_ffn_dim=70, decoder_ffn_dim=90, max_position_embeddings=40,
)  # fmt: skip
LLAMA3_ROPE: Config = dict(
    rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=32,
)  # fmt: skip
GEMMA3_ROPE: Config = dict(
    full_attention=dict(rope_type="linear", factor=2.0, rope_theta=5e4),
    sliding_attention=dict(rope_type="default", rope_theta=1e3),
)
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]

SMALL: dict[str, Config] = {
    "llama": LLAMA,
    "llama biases, tied": LLAMA | dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama without a head": LLAMA | dict(architectures=["LlamaModel"]),
    "llama head width": LLAMA | dict(head_dim=12),
    "llama linear rope": LLAMA | dict(rope_scaling=dict(rope_type="linear", factor=4.0)),
    "llama llama3 rope": LLAMA | dict(rope_parameters=LLAMA3_ROPE),
    "llama yarn": LLAMA | dict(rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
    "mistral window": LLAMA | dict(model_type="mistral", sliding_window=5),
    "mixtral window": LLAMA | dict(model_type="mixtral", sliding_window=5, num_local_experts=6, num_experts_per_tok=3),
    "qwen2 late windows": LLAMA
    | dict(model_type="qwen2", use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "gemma2 caps": LLAMA
    | dict(model_type="gemma2", head_dim=16, sliding_window=6, query_pre_attn_scalar=32, attn_logit_softcapping=2.0,
           final_logit_softcapping=1.5, attention_bias=True),
    "gemma3 two ropes": LLAMA
    | dict(model_type="gemma3_text", head_dim=16, num_hidden_layers=3, sliding_window=6, layer_types=KINDS,
           rope_parameters=GEMMA3_ROPE),
    "gemma3 default ropes": LLAMA | dict(model_type="gemma3_text", head_dim=16, num_hidden_layers=6, sliding_window=6),
    "gpt2 inner": GPT2 | dict(n_inner=100),
    "gpt2 untied relu": GPT2 | dict(tie_word_embeddings=False, activation_function="relu"),
    "gpt1": GPT2 | dict(model_type="openai-gpt", afn="silu"),
    "falcon 7b": FALCON,
    "falcon 40b": FALCON | dict(new_decoder_architecture=True, num_kv_heads=2),
    "falcon 11b": FALCON | dict(new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1, bias=True),
    "falcon rw": FALCON | dict(multi_query=False, parallel_attn=False, bias=True),
    "deepseek_v2 groups": DEEPSEEK
    | dict(model_type="deepseek_v2", q_lora_rank=20, n_group=4, topk_group=2, topk_method="group_limited_greedy",
           routed_scaling_factor=16.0, attention_bias=True),
    "deepseek_v3 plain": DEEPSEEK
    | dict(model_type="deepseek_v3", q_lora_rank=None, n_group=2, topk_group=1, norm_topk_prob=False,
           rope_interleave=False, num_nextn_predict_layers=0),
    "bert without a head": BERT | dict(architectures=["BertModel"]),
    "bert relu": BERT | dict(hidden_act="relu", layer_norm_eps=1e-3),
    "longformer two windows": BERT
    | dict(model_type="longformer", max_position_embeddings=42, attention_window=[4, 8], type_vocab_size=1),
    "big_bird full": BERT | dict(model_type="big_bird", attention_type="original_full", use_bias=False),
    "t5 gated, tied": T5
    | dict(feed_forward_proj="gated-gelu", num_decoder_layers=3, relative_attention_num_buckets=8,
           relative_attention_max_distance=10),
    "t5 untied": T5 | dict(tie_word_embeddings=False),
    "t5 without a head": T5 | dict(architectures=["T5Model"]),
    "mt5 tied": T5 | dict(model_type="mt5"),
    "switch": T5
    | dict(model_type="switch_transformers", num_layers=4, num_decoder_layers=4, num_experts=4, router_bias=True,
           num_sparse_encoder_layers=2, num_sparse_decoder_layers=4),
    "bart scaled": BART | dict(scale_embedding=True),
    "m2m_100 unscaled": BART | dict(model_type="m2m_100", scale_embedding=False),
    "whisper": BART
    | dict(model_type="whisper", max_source_positions=20, max_target_positions=40, num_mel_bins=10, pad_token_id=0),
}  # fmt: skip
"""By what they show; small enough to be run as they are."""
del SMALL["whisper"]["max_position_embeddings"]

BUNDLED = (
    "llama3-8b", "llama3.1-8b", "llama3-70b", "gpt2", "mixtral-8x7b", "t5-small", "flan-t5-small", "mt5-small", "mistral-7b-v0.1",
    "qwen2.5-7b", "gemma2-2b", "gemma3-4b-text", "deepseek-v2-lite", "deepseek-v3", "bert-base", "bart-base", "whisper-tiny",
    "palm-8b", "falcon-7b", "gpt1", "nllb-600m", "nllb-moe-54b", "switch-base-8", "longformer-base", "bigbird-base",
    "transformer-base",
)  # fmt: skip
"""Bundled models, one or two of each family, that are run shrunk."""
