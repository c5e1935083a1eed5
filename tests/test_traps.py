"""What other tools got wrong, as their own public threads tell it, and what the planner says in each case.

Every trap is a small public fact with its arithmetic. Where ../shared lies beside the checkout, a second test sees to it that
each row of its bugs.jsonl is met by a trap here, or waits for a reason that `WAITING` names. Of the reports on training (MaxText,
verl, NeMo, PRIME-RL, TRL, Megatron-Bridge) the forward pass is met here: a third of a step, which waits for its own issue; so does
LLMFit's rate.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from planner import PlanError, engine_capacity, engine_memory, plan
from planner.cli import app

ROWS = Path(__file__).parents[2] / "shared" / "cases" / "bugs.jsonl"
GIB, MIB = 2**30, 2**20
Config = str | Mapping[str, Any]


class Trap(NamedTuple):
    """One mistake.

    Attributes:
        wrong: what a tool does. source: public thread that tells it. ask: what the planner says. right: what is right.
        rows: of ../shared/cases/bugs.jsonl that this meets.
    """

    wrong: str
    source: str
    ask: Callable[[], Any]
    right: Any
    rows: tuple[str, ...] = ()


# --- what is asked


def said(config: Config, **options: Any) -> dict[str, Any]:
    """Return the JSON of a plan."""
    found: dict[str, Any] = plan(config, **options).to_dict()
    return found


def held(config: Config, tokens: int, **options: Any) -> int:
    """Return the bytes of the cache of one sequence of so many tokens."""
    found: int = said(config, prompt=tokens - 1, generate=1, **options)["cache"]["bytes"]
    return found


def grown(config: Config, **options: Any) -> int:
    """Return the bytes that a further token adds."""
    found: int = said(config, **options)["cache"]["bytes_per_token"]
    return found


def rows(config: Config, **options: Any) -> list[int]:
    """Return the bytes of a token in every layer, whatever its window."""
    found: list[int] = said(config, prompt=0, generate=1, **options)["cache"]["layers"]
    return found


def layers(config: Config, tokens: int, **options: Any) -> list[int]:
    """Return the bytes of every layer's cache after so many tokens."""
    found: list[int] = said(config, prompt=tokens - 1, generate=1, **options)["cache"]["layers"]
    return found


def params(config: Config, *path: str, **options: Any) -> Any:
    """Return a count of parameters."""
    found = said(config, **options)["params"]
    for key in path:
        found = found[key]
    return found


def prefill(config: Config, tokens: int, **options: Any) -> dict[str, Any]:
    """Return the FLOPs of one pass over so many tokens."""
    found: dict[str, Any] = said(config, prompt=tokens, generate=0, **options)["flops"]["prefill"]
    return found


def served(config: Config, gib: int = 64, **options: Any) -> dict[str, Any]:
    """Return what vLLM says of so much cache memory."""
    return engine_capacity(config, cache_memory_bytes=gib * GIB, **{"max_model_len": 4096, **options})


def started(
    config: Config, version: str, hardware: str = "h100-sxm", *, flags: dict[str, Any] | None = None, **options: Any
) -> Any:
    """Return what vLLM sets aside of a device."""
    return engine_memory(config, engine=f"vllm@{version}", hardware=hardware, engine_set=flags or {}, **options)


def refused(config: Config, **options: Any) -> str:
    """Return why something isn't planned."""
    with pytest.raises(PlanError) as error:
        plan(config, **options)
    return str(error.value)


def illegal(config: Config, tp: int) -> str:
    """Return why so many ranks can't share a model."""
    return refused(config, hardware="h100-sxm", tp=tp)


# --- what is asked about: public figures of each model, no more than decide


def model(kind: str, depth: int, width: int, heads: int, groups: int, **more: Any) -> dict[str, Any]:
    """Return a config with its usual names; None is JSON's null."""
    return {
        "model_type": kind, "num_hidden_layers": depth, "hidden_size": width, "num_attention_heads": heads,
        "num_key_value_heads": groups, "torch_dtype": "bfloat16", **more,
    }  # fmt: skip


GPT_OSS = model(
    "gpt_oss", 24, 2880, 64, 8, head_dim=64, sliding_window=128, intermediate_size=2880, num_local_experts=32,
    num_experts_per_tok=4, vocab_size=201088, layer_types=["sliding_attention", "full_attention"] * 12,
)  # fmt: skip
GEMMA_7B = model("gemma", 28, 3072, 16, 16, head_dim=256, intermediate_size=24576, vocab_size=256000)
MIXTRAL_NULL = model(
    "mixtral", 56, 6144, 48, 8, head_dim=None, intermediate_size=16384, vocab_size=32768, num_local_experts=8,
    num_experts_per_tok=2, sliding_window=None,
)  # fmt: skip
KANANA = model("llama", 32, 1792, 24, 8, head_dim=128, intermediate_size=8064, vocab_size=128256)
MISTRAL = model(
    "mistral", 32, 4096, 32, 8, head_dim=None, intermediate_size=14336, vocab_size=32000, sliding_window=None
)
CHATGLM = {
    "model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "num_attention_heads": 32, "kv_channels": 128,
    "ffn_hidden_size": 13696, "padded_vocab_size": 65024, "multi_query_attention": True, "multi_query_group_num": 2,
    "add_qkv_bias": True, "add_bias_linear": False, "rmsnorm": True, "seq_length": 8192, "torch_dtype": "float16",
}  # fmt: skip
WIDE_KEYS = model(
    "mimo_v2_flash", 2, 256, 8, 2, head_dim=192, v_head_dim=128, swa_num_attention_heads=8, swa_num_key_value_heads=2,
    swa_head_dim=192, swa_v_head_dim=128, hybrid_layer_pattern=[0, 0], moe_layer_freq=[0, 1], sliding_window=128,
    intermediate_size=512, moe_intermediate_size=64, n_routed_experts=4, num_experts_per_tok=2, vocab_size=1000,
)  # fmt: skip
DEEPSEEK_V32 = model(
    "deepseek_v32", 61, 7168, 128, 128, q_lora_rank=1536, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128,
    v_head_dim=128, index_n_heads=64, index_head_dim=128, index_topk=2048, n_routed_experts=256, num_experts_per_tok=8,
    n_shared_experts=1, moe_intermediate_size=2048, intermediate_size=18432, first_k_dense_replace=3, vocab_size=129280,
    max_position_embeddings=163840,
)  # fmt: skip
QWEN3_06 = model(
    "qwen3", 28, 1024, 16, 8, head_dim=128, intermediate_size=3072, vocab_size=151936, tie_word_embeddings=True,
    max_position_embeddings=40960,
)  # fmt: skip
QWEN3_14 = model("qwen3", 40, 5120, 40, 8, head_dim=128, intermediate_size=17408, vocab_size=151936)
QWEN3_30 = model(
    "qwen3_moe", 48, 2048, 32, 4, head_dim=128, intermediate_size=6144, moe_intermediate_size=768, num_experts=128,
    num_experts_per_tok=8, vocab_size=151936, tie_word_embeddings=False,
)  # fmt: skip
GEMMA4_12 = model(
    "gemma4_text", 48, 3840, 16, 8, head_dim=256, global_head_dim=512, num_global_key_value_heads=1, attention_k_eq_v=True,
    sliding_window=1024, layer_types=[*["sliding_attention"] * 5, "full_attention"] * 8, intermediate_size=15360,
    vocab_size=262144, max_position_embeddings=262144, hidden_size_per_layer_input=0, num_kv_shared_layers=0,
)  # fmt: skip
QWEN35_27 = model(
    "qwen3_5_text", 64, 5120, 24, 4, head_dim=256, full_attention_interval=4, intermediate_size=17408, vocab_size=248320,
    linear_num_key_heads=16, linear_num_value_heads=48, linear_key_head_dim=128, linear_value_head_dim=128,
    linear_conv_kernel_dim=4, mamba_ssm_dtype="float32", max_position_embeddings=262144,
)  # fmt: skip
QWEN3_NEXT = model(
    "qwen3_next", 48, 2048, 16, 2, head_dim=256, vocab_size=151936, num_experts=512, num_experts_per_tok=10,
    moe_intermediate_size=512, shared_expert_intermediate_size=512,
)  # fmt: skip
FULL_OF_93 = [*range(4, 93, 4), 93]
KIMI = model(
    "kimi_linear", 93, 4096, 64, 64, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
    intermediate_size=8192, vocab_size=163840, num_experts=64, num_experts_per_token=8, moe_intermediate_size=1024,
    num_shared_experts=1, first_k_dense_replace=1,
    linear_attn_config={
        "full_attn_layers": FULL_OF_93, "kda_layers": [i for i in range(1, 94) if i not in FULL_OF_93],
        "num_heads": 64, "head_dim": 128, "short_conv_kernel_size": 4,
    },
)  # fmt: skip
QWEN2_7 = model(
    "qwen2", 28, 3584, 28, 4, intermediate_size=18944, vocab_size=152064, sliding_window=4096, max_window_layers=28,
    use_sliding_window=False, max_position_embeddings=131072,
)  # fmt: skip
QWEN2_14 = model("qwen2", 48, 5120, 40, 8, intermediate_size=13824, vocab_size=152064, max_position_embeddings=131072)
LLAMA_8 = model(
    "llama", 32, 4096, 32, 8, intermediate_size=14336, vocab_size=128256, tie_word_embeddings=False,
    max_position_embeddings=131072,
)  # fmt: skip
LLAMA_30 = model("llama", 60, 6656, 52, 52, intermediate_size=17920, vocab_size=32000)
BGE = {
    "model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"], "num_hidden_layers": 24, "hidden_size": 1024,
    "num_attention_heads": 16, "intermediate_size": 4096, "vocab_size": 250002, "max_position_embeddings": 8194,
    "type_vocab_size": 1, "torch_dtype": "float16",
}  # fmt: skip
VICUNA_13 = {
    "model_type": "llama", "hidden_size": 5120, "intermediate_size": 13824, "num_attention_heads": 40,
    "num_hidden_layers": 40, "vocab_size": 32064,
}  # fmt: skip
TINY_TEXT = model("llama", 40, 512, 8, 2, intermediate_size=1024, vocab_size=1000)
V4 = model(
    "deepseek_v4", 4, 4096, 64, 1, head_dim=512, q_lora_rank=1024, qk_rope_head_dim=64, o_groups=8, o_lora_rank=1024,
    hc_mult=4, index_n_heads=64, index_head_dim=128, index_topk=512, compress_ratios=[0, 4, 128, 128], sliding_window=128,
    n_routed_experts=16, n_shared_experts=1, num_experts_per_tok=6, moe_intermediate_size=2048, num_hash_layers=1,
    vocab_size=129280, max_position_embeddings=1048576,
)  # fmt: skip
PACKED: dict[str, Any] = {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128},
        },
    },
}  # fmt: skip

STARCODER = {
    "model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_layer": 40, "n_inner": 24576, "n_positions": 8192,
    "vocab_size": 49152, "multi_query": True,
}  # fmt: skip
SEED = model("seed_oss", 64, 5120, 80, 8, intermediate_size=27648, vocab_size=155136)
MINIMAX = model(
    "minimax_text_01", 80, 6144, 64, 8, head_dim=128, intermediate_size=9216, num_local_experts=32, num_experts_per_tok=2,
    vocab_size=200064, attn_type_list=[*[0] * 7, 1] * 10,
)  # fmt: skip
SCOUT = model(
    "llama4_text", 48, 5120, 40, 8, head_dim=128, intermediate_size=8192, intermediate_size_mlp=16384, num_local_experts=16,
    num_experts_per_tok=1, interleave_moe_layer_step=1, attention_chunk_size=8192, vocab_size=202048,
)  # fmt: skip
QWEN2_VL = QWEN2_7 | {
    "model_type": "qwen2_vl",
    "vision_config": {
        "depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "hidden_size": 3584, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    },
}  # fmt: skip

PAIRS_4096 = 4096 * 4097 // 2
"""Causal pairs of 4,096 tokens, the diagonal included."""

MODELOPT = "https://github.com/NVIDIA/Model-Optimizer/issues/2482"
UNSLOTH = "https://github.com/unslothai/unsloth/pull/4757"
LLM_D = "https://github.com/llm-d-incubation/llm-d-planner/pull/205"

HEADS = {
    "heads wider than the model: gpt-oss": Trap(
        "takes 2,880 / 64 = 45 as the width of a head, though 64 is written", MODELOPT,
        # 24 layers x 2 x 8 x 64 x 2 bytes; 12 of them grow without end
        lambda: (sum(rows(GPT_OSS)), grown(GPT_OSS), served(GPT_OSS)["bytes_per_token"]), (49_152, 24_576, 49_152),
        ("modelopt-2482-gptoss",),
    ),
    "heads wider than the model: Gemma 3 12B": Trap(
        "takes 3,840 / 16 = 240 as the width of a head, though 256 is written", MODELOPT,
        # 48 layers x 2 x 8 x 256 x 2 bytes, each 8,192
        lambda: (sum(rows("gemma3-12b-text", dtype="bf16")), rows("gemma3-12b-text", dtype="bf16")[0]), (393_216, 8192),
        ("modelopt-2482-gemma3",),
    ),
    "heads wider than the model: Gemma 2 9B": Trap(
        "takes 3,584 / 16 = 224 as the width of a head, an eighth too little",
        "https://github.com/ai-dynamo/dynamo/pull/14431",
        # 2 x 8 x 256 x 2 bytes in each of 42 layers
        lambda: (rows("gemma2-9b", dtype="bf16")[0], sum(rows("gemma2-9b", dtype="bf16"))), (8192, 344_064),
        ("dynamo-14431",),
    ),
    "heads wider than the model: Gemma 7B": Trap(
        "takes 3,072 / 16 = 192 as the width of a head and keeps 3/4 of the cache",
        "https://github.com/vllm-project/vllm/pull/2622",
        # 28 x 2 x 16 x 256 x 2 bytes
        lambda: grown(GEMMA_7B), 458_752, ("vllm-2622",),
    ),
    "heads wider than the model: Qwen3 0.6B": Trap(
        "takes 1,024 / 16 = 64 as the width of a head, half of it", UNSLOTH,
        # 28 x 2 x 8 x 128 x 2 bytes x 40,960 tokens = 4.375 GiB
        lambda: held(QWEN3_06, 40_960), 4_697_620_480, ("unsloth-4757-qwen06",),
    ),
    "a null head_dim: Mixtral 8x22B": Trap(
        "multiplies with null", "https://github.com/llm-d/llm-d-benchmark/issues/426",
        # 6,144 / 48 = 128; 56 x 2 x 8 x 128 x 2 bytes
        lambda: grown(MIXTRAL_NULL), 229_376, ("llmd-426",),
    ),
    "a null head_dim is like a missing one": Trap(
        "reads a null as a width", "https://github.com/HabanaAI/vllm-fork/pull/1294",
        # 32 x 2 x 8 x 128 x 2; Gemma's class has 256 whatever the width: 28 x 2 x 16 x 256 x 2
        lambda: [grown({**config, "head_dim": None}) for config in (LLAMA_8, MISTRAL, GEMMA_7B)],
        [131_072, 131_072, 458_752], ("habana-1294",),
    ),
    "a null head_dim, and groups by another name": Trap(
        "builds heads of width null, and knows no multi_query_group_num",
        "https://github.com/microsoft/onnxruntime-genai/pull/1665",
        # Mistral v0.2: 32 x 2 x 8 x 128 x 2; ChatGLM3: 28 x 2 x 2 x 128 x 2, all 32 heads without multi_query_attention
        lambda: [grown(c) for c in (MISTRAL, CHATGLM, {**CHATGLM, "multi_query_attention": False})],
        [131_072, 28_672, 458_752], ("ortgenai-1665",),
    ),
    "a width that heads don't divide": Trap(
        "refuses 1,792 with 24 heads, though each has 128 by its own key",
        "https://github.com/huggingface/transformers/pull/46211",
        # queries 1,792 x 3,072, keys and values 1,792 x 1,024, back 3,072 x 1,792; 32 x 2 x 8 x 128 x 2 bytes
        lambda: (params(KANANA, "stacks", "decoder", "by_block")[0]["attention"], grown(KANANA)),
        (14_680_064, 131_072), ("transformers-46211",),
    ),
}  # fmt: skip

GROUPS = {
    "heads counted twice": Trap(
        "multiplies layers x heads x the model's whole width, 8 times too much",
        "https://github.com/jranaraki/vllm-fit/issues/2",
        # 32 x 2 x 4,096 x 2 bytes
        lambda: grown("llama2-7b", dtype="fp16"), 524_288, ("vllm-fit-2",),
    ),
    "keys and values of two widths": Trap(
        "works from the embedding's width", "https://github.com/KolosalAI/model-memory-calculator/issues/2",
        # 2 layers x 2 heads x (192 + 128) x 2 bytes
        lambda: grown(WIDE_KEYS), 2560, ("kolosal-2",),
    ),
    "what a decode step reads": Trap(
        "reads the cache once for each of 32 query heads", "https://github.com/hahnyuan/LLM-Viewer/issues/12",
        # 1,000 rows and the new one, 32 layers x 2 x 8 x 128 x 2 bytes each
        lambda: said("llama3-8b", dtype="bf16", prompt=1000)["traffic"]["decode"]["cache_bytes"], 131_072 * 1001,
        ("llmviewer-12",),
    ),
    "scores of grouped heads": Trap(
        "scales the FLOPs of scores by key-value heads", "https://github.com/allenai/OLMo-core/pull/478",
        # 4 x 32 heads x 128 x pairs in 32 layers, whatever the groups; keys and values shrink: 2 x 2 x 4,096 x 3,072 x 32
        lambda: [
            prefill({**LLAMA_8, "num_key_value_heads": n}, 4096)["by_op"]["attention"] for n in (1, 8, 32)
        ] + [
            prefill({**LLAMA_8, "num_key_value_heads": 32}, 1)["by_op"]["linear"] - prefill(LLAMA_8, 1)["by_op"]["linear"]
        ],
        [4 * 32 * 128 * PAIRS_4096 * 32] * 3 + [1_610_612_736], ("olmo-478",),
    ),
    "a head's figure for a layer's": Trap(
        "says 512 MB for 32k tokens of a 7B, and 32 GB for a 70B without groups",
        "https://github.com/rohitg00/ai-engineering-from-scratch/pull/57",
        # 32 x 2 x 4,096 x 2 x 32,768; 80 x 2 x 8 x 128 x 2 x 32,768; eightfold with 64 key-value heads
        lambda: [
            held("llama2-7b", 32_768, dtype="bf16"), held("llama3-70b", 32_768, dtype="bf16"),
            held("llama3-70b", 32_768, dtype="bf16", set={"num_key_value_heads": 64}),
        ],
        [16 * GIB, 10 * GIB, 80 * GIB], ("rohitg00-57",),
    ),
    "heads repeated for 16 ranks": Trap(
        "counts the 16 key-value heads of a first upload; the model has 8", "https://github.com/huggingface/blog/issues/2345",
        # 126 x 2 x 8 x 128 x 2; 1,024 tokens of it; 131,072 of it; a sixteenth rank holds an eighth: 126 x 2 x 128 x 2
        lambda: (
            grown("llama3.1-405b", dtype="bf16"), held("llama3.1-405b", 1024, dtype="bf16"),
            held("llama3.1-405b", 131_072, dtype="bf16"), served("llama3.1-405b", tp=16)["bytes_per_token"],
        ),
        (516_096, 528_482_304, 63 * GIB, 64_512), ("hfblog-2345-405b",),
    ),
    "a page of one layer": Trap(
        "counts the page of a single layer, and allocates 28 times as much", "https://github.com/mudler/vllm.cpp/issues/357",
        # a block of 16 tokens: 28 layers x 16 x 2 x 4 x 128 x 2 bytes = 917,504; 2 GiB hold 2,340
        lambda: (served(QWEN2_7, 2)["blocks"], served(QWEN2_7, 2)["groups"][0]["page_bytes"] * 28), (2340, 917_504),
        ("vllmcpp-357",),
    ),
    "a head factor too many, and no layers": Trap(
        "multiplies context x width x heads", "https://github.com/sammcj/gollama/issues/117",
        # 46 layers x 2 x 16 x 128 x 2 x 8,192 = 2.875 GiB; half of them keep 4,096 only: 3/4
        lambda: (sum(rows("gemma2-27b", dtype="fp16")) * 8192, held("gemma2-27b", 8192, dtype="fp16")),
        (3_087_007_744, 2_315_255_808), ("gollama-117",),
    ),
}  # fmt: skip

LATENTS = {
    "latents as heads": Trap(
        "multiplies 2 x 128 heads x a head's width for a cache that is one latent a layer",
        "https://github.com/NVIDIA/TensorRT-LLM/pull/16707",
        # 61 x (512 + 64) x 2; at 8 bits 512 + 4 scales of 4 + 64 x 2 = 656, and 132 of the indexer: 61 x 788
        lambda: (grown("deepseek-v3", dtype="bf16"), served(DEEPSEEK_V32, cache_dtype="fp8")["bytes_per_token"]),
        (70_272, 48_068), ("trtbench-16707",),
    ),
    "latents of a quantised cache": Trap(
        "expects megabytes without the layers, or estimates expanded heads",
        "https://github.com/gpustack/gguf-parser-go/issues/8",
        # 61 x 576 x 65,536 tokens x 2 bytes = 4.289 GiB, and x 18/32 = 1.206; expanded 61 x 128 x (192 + 128) x 2 = 305 GiB
        lambda: [held("deepseek-v3", 65_536, cache_dtype=each) for each in ("f16", "q4_0")]
        + [61 * 2 * 65_536 * sum(_expanded("deepseek-v3"))],
        [4_605_345_792, 1_295_253_504, 305 * GIB], ("gguf-parser-8",),
    ),
    "latents at 160k": Trap(
        "estimates 2.08 GB", UNSLOTH,
        # 61 x 576 x 2 bytes x 163,840 = 10.72 GiB
        lambda: held("deepseek-v3", 163_840, dtype="bf16"), 11_513_364_480, ("unsloth-4757-dsv31",),
    ),
    "keys that choose": Trap(
        "leaves out what the indexer keeps, a fifth more", "https://github.com/sgl-project/sglang/pull/11309",
        # 128 bytes and a scale of 4 in each of 61 layers; with the latents 61 x (656 + 132) x 1,462,784 tokens = 65.48 GiB
        lambda: (
            served(DEEPSEEK_V32)["bytes_per_token"] - served("deepseek-v3", dtype="bf16")["bytes_per_token"],
            served(DEEPSEEK_V32, cache_dtype="fp8")["bytes_per_token"] * 1_462_784,
            served(DEEPSEEK_V32, 128, engine="sglang", cache_dtype="fp8")["bytes_per_token"] * 1_462_784,
        ),
        (61 * 132, 70_313_101_312, 70_313_101_312), ("dsv32-index",),
    ),
    "one wide head is a latent": Trap(
        "stores one key-value head of 512 twice, as key and as value", "https://github.com/spark-arena/sparkrun/pull/247",
        # a row is 512 x 2 bytes, once; the second layer's 4 tokens share a row of 512 and one of an indexer's 128
        lambda: [size // 2 for size in layers(V4, 128)[:1]], [128 * 512], ("sparkrun-247",),
    ),
    "a compressed cache without kv_lora_rank": Trap(
        "knows latents by kv_lora_rank alone, and falls back to full rows for layouts it doesn't know",
        "https://github.com/jundot/omlx/pull/2626",
        # per token, past all windows: (512 + 128) / 4 and 512 / 128 twice; of an unknown type nothing is said
        lambda: (grown(V4), refused({**V4, "model_type": "deepseek_v9"}).split(" is ")[0]),
        (2 * (640 // 4 + 2 * 512 // 128), "config, model_type: 'deepseek_v9'"), ("omlx-2626",),
    ),
    "latents stored as heads": Trap(
        "stores expanded keys and values, 309 KB a token", "https://github.com/ROCm/ATOM/issues/1959",
        # 24 of 93 layers: 24 x 576 x 2 = 27 KiB, on every rank
        lambda: (grown(KIMI) / 1024, served(KIMI, tp=8)["bytes_per_token"] / 1024), (27, 27), ("atom-1959",),
    ),
}  # fmt: skip


def _expanded(config: str) -> tuple[int, int]:
    """Return the elements of a token's expanded keys and values in a layer."""
    decode = said(config, prompt=1)["flops"]
    assert decode["prefill"]["by_op"]["attention"] == 61 * 2 * 128 * (192 + 128)
    return 128 * 192, 128 * 128


WINDOWS = {
    "windows at 128k: Gemma 3 27B": Trap(
        "counts all 62 layers over all tokens, 81 GB", UNSLOTH,
        # 10 layers x 131,072 and 52 x 1,024 tokens, 2 x 16 x 128 x 2 bytes each: 10.41 GiB
        lambda: held("gemma3-27b-text", 131_072, dtype="bf16"), 11_173_625_856, ("unsloth-4757-gemma3",),
    ),
    "windows at 128k, corrected too far": Trap(
        "says 12.68 GB, and 2.2 after its correction", "https://github.com/Andyyyy64/whichllm/pull/124",
        lambda: held("gemma3-27b-text", 131_072, dtype="fp16"), (10 * 131_072 + 52 * 1024) * 8192, ("whichllm-124",),
    ),
    "two buffers of one cache": Trap(
        "prints the windows' buffer for all of it", "https://github.com/ollama/ollama/pull/17037",
        # 5 layers x 131,072 and 29 x 1,024 tokens of 4,096 bytes; llama.cpp keeps 512 more of the latter, a run's: 174 MiB
        lambda: (
            held("gemma3-4b-text", 131_072, dtype="fp16") // MIB, held("gemma3-4b-text", 131_072, engine="llama.cpp") // MIB,
            checked(
                "print_info: general.name     = Gemma 3 4b It",
                "llama_kv_cache: size = 2560.00 MiB (131072 cells,   5 layers,  1/1 seqs), K (f16): 1280.00 MiB, V (f16): 1280.00 MiB",
                "llama_kv_cache: size =  174.00 MiB (  1536 cells,  29 layers,  1/1 seqs), K (f16):   87.00 MiB, V (f16):   87.00 MiB",
            ),
        ),
        (2560 + 116, 2560 + 174, [2560, 174]), ("ollama-17037",),
    ),
    "windows that a build doesn't use": Trap(
        "keeps all cells of all layers by default, 8 times llama-server's cache",
        "https://github.com/LostRuins/koboldcpp/issues/2235",
        # 34 layers x 131,072 x 4,096 bytes; 8 and 40 layers of two shapes: 131,072 x (8 x 2 x 512 + 40 x 2 x 8 x 256) x 2
        lambda: [
            held(config, 131_072, engine="llama.cpp", engine_set={"swa_full": True}) // MIB
            for config in ("gemma3-4b-text", GEMMA4_12)
        ],
        [17_408, 43_008], ("kobold-2235",),
    ),
    "layers of two shapes": Trap(
        "takes one width and number of heads for all layers", "https://github.com/tmac1973/llama-toolchest/pull/58",
        # 8 layers see all: 131,072 x 2 x 1 x 512; 40 keep 1,024: x 2 x 8 x 256; 2 bytes: 2.31 GiB
        lambda: held(GEMMA4_12, 131_072), 2_483_027_968, ("toolchest-58",),
    ),
    "windows switched off": Trap(
        "keeps a window that use_sliding_window switches off", "https://github.com/predibase/lorax/pull/532",
        # all 10,000 tokens in each layer: 2 x 4 x 128 x 2 bytes
        lambda: set(layers(QWEN2_7, 10_000)), {10_000 * 2048}, ("lorax-532",),
    ),
    "windows of late layers": Trap(
        "treats all layers alike, though windows start at layer max_window_layers",
        "https://github.com/vllm-project/vllm/pull/17772",
        # 28 of 28: none; 21: seven layers keep 4,096 tokens of 2,048 bytes
        lambda: [
            sorted(layers({**QWEN2_7, "use_sliding_window": True, "max_window_layers": first}, 10_000)) for first in (28, 21)
        ],
        [[20_480_000] * 28, [8_388_608] * 7 + [20_480_000] * 21], ("vllm-17772",),
    ),
    "a window of null": Trap(
        "compares null with a number", "https://github.com/axolotl-ai-cloud/axolotl/issues/1047",
        # Mistral v0.2 keeps all, v0.1 keeps 4,096; 131,072 bytes a token
        lambda: [held({**MISTRAL, "sliding_window": each}, 10_000) // 131_072 for each in (None, 4096)], [10_000, 4096],
        ("axolotl-1047",),
    ),
}  # fmt: skip

HYBRIDS = {
    "layers without a growing cache: Qwen3.5": Trap(
        "counts all 64 layers", "https://github.com/CambrianTech/continuum/pull/4156",
        # 16 layers x 2 x 4 x 256 x 2 bytes
        lambda: grown(QWEN35_27), 65_536, ("continuum-4156",),
    ),
    "a list of kinds, or an interval": Trap(
        "counts four times the cache, and grows the state", "https://github.com/LMCache/LMCache/pull/3080",
        # layer_types says what full_attention_interval says; the state of 48 layers is the same at any length
        lambda: [
            (grown(config), held(config, tokens) - 65_536 * tokens)
            for config in (QWEN35_27, {**QWEN35_27, "full_attention_interval": None,
                                       "layer_types": [*["linear_attention"] * 3, "full_attention"] * 16})
            for tokens in (100, 100_000)
        ],
        # 48 layers x 48 heads x 128 x 128 x 4 bytes, and 4 rows of (2 x 16 + 48) x 128 elements of 4 bytes
        [(65_536, 48 * (48 * 128 * 128 + 4 * 80 * 128) * 4)] * 4, ("lmcache-3080",),
    ),
    "layers without a growing cache: Kimi": Trap(
        "counts all 93 layers", "https://github.com/inference-sim/inference-sim/issues/1635",
        # 24 latents x 576 x 2 bytes, and the state of 69 layers beside them
        lambda: (grown(KIMI), sum(size > 0 for size in rows(KIMI)), said(KIMI)["cache"]["parts"]["state"] > 0),
        (27_648, 93, True), ("sim-1635",),
    ),
    "layers without a growing cache: Qwen3-Next": Trap(
        "counts all 48 layers", "https://github.com/NVIDIA/TensorRT-LLM/pull/9072",
        # 12 layers x 2 x 2 x 256 x 2 bytes
        lambda: grown(QWEN3_NEXT), 24_576, ("trt-9072",),
    ),
    "tokens of one group": Trap(
        "takes the printed tokens for what fits; concurrency says 3.7 times as much",
        "https://github.com/vllm-project/vllm/issues/40691",
        # four groups of 16 layers, pages of 784 x 4,096 bytes; 1,487 blocks are 371 x 784 tokens for each group, and a
        # request takes 42 blocks of rows and one of each state: 1,487 / 45
        lambda: [
            engine_capacity(
                QWEN35_27, version="0.19.0", cache_memory_bytes=1487 * 16 * 784 * 4096, max_model_len=32_768,
                max_num_seqs=16, max_num_batched_tokens=16_384,
            )[key] for key in ("tokens", "concurrency")
        ],
        [290_864, 33.04], ("vllm-40691",),
    ),
    "a rate from a pool": Trap(
        "divides a pool by its tokens, though a request has a part that doesn't grow",
        "https://github.com/vllm-project/vllm/issues/51041",
        # past all windows a request costs a + b x tokens: b is what a further token adds, and a isn't 0
        lambda: (
            held(V4, 8192 + 4096) - held(V4, 8192) == grown(V4) * 4096, held(V4, 8192) - grown(V4) * 8192,
        ),
        # windows of 128 in four layers, 512 x 2 bytes a row; where 4 tokens share a row, 2 x 4 x (512 + 128) elements overlap
        (True, 4 * 128 * 512 * 2 + 2 * 4 * 640 * 2), ("vllm-51041",),
    ),
}  # fmt: skip

COUNTS = {
    "a tied head": Trap(
        "expects the table of a tied head again, 38,597,376 more", "https://github.com/huggingface/transformers/issues/14960",
        # 50,257 x 768 + 1,024 x 768 + 12 x 7,087,872 + 1,536
        lambda: (params("gpt2", "total"), params("gpt2", "total", set={"tie_word_embeddings": False}) - 50_257 * 768),
        (124_439_808, 124_439_808), ("transformers-14960",),
    ),
    "a lookup is free, a tied head isn't": Trap(
        "charges the table of words and not the head", "https://github.com/huggingface/trl/pull/6731",
        # one token: 2 x 151,936 x 1,024 for the head, nothing else with the vocabulary in it
        lambda: (prefill(QWEN3_06, 1)["by_op"]["head"], params(QWEN3_06, "head"), sorted(prefill(QWEN3_06, 1)["by_op"])),
        (311_164_928, 0, ["attention", "head", "linear"]), ("trl-6708",),
    ),
    "FLOPs of chosen experts": Trap(
        "multiplies all parameters", "https://github.com/PrimeIntellect-ai/prime-rl/issues/778",
        # 2 x what works on a token and is a matrix: 3,353,032,704 - table 311,164,928 - norms 210,944
        lambda: sum(work for kind, work in prefill(QWEN3_30, 1)["by_op"].items() if kind != "attention"), 6_083_313_664,
        ("primerl-778",),
    ),
    "active is not a share of all": Trap(
        "takes 2/8 of Mixtral and 8/128 of Qwen3", "https://github.com/ml-explore/mlx-lm/pull/1313",
        # what always works and k experts: 46,702,792,704 - 6/8 x 45,097,156,608; 30,532,122,624 - 120/128 x 28,991,029,248
        lambda: (params("mixtral-8x7b", "active"), params(QWEN3_30, "active")), (12_879_925_248, 3_353_032_704),
        ("mlxlm-1313",),
    ),
    "an expert is no model": Trap(
        "takes each of 8 experts for a 7B", "https://github.com/AlexsJones/llmfit/issues/3",
        # 32 layers x 8 x 3 x 4,096 x 14,336; one of 8; the rest
        lambda: (
            params("mixtral-8x7b", "by_block", "routed_experts"), params("mixtral-8x7b", "by_block", "routed_experts") // 8,
            params("mixtral-8x7b", "total") - params("mixtral-8x7b", "by_block", "routed_experts"),
        ),
        (45_097_156_608, 5_637_144_576, 1_605_636_096), ("llmfit-3",),
    ),
    "all experts are stored, few are read": Trap(
        "has one size for both", "https://github.com/midudev/canirun.ai/issues/8",
        # 2 bytes of all on the device; of a step 2 bytes of what is active but the table, of which one row is read
        lambda: (
            said("mixtral-8x7b", weights="bf16", hardware="h200-sxm")["memory"]["weights"],
            round(said("mixtral-8x7b", weights="bf16")["traffic"]["decode"]["weight_bytes"]),
        ),
        (2 * 46_702_792_704, 2 * (12_879_925_248 - 131_072_000 + 4096)), ("canirun-8",),
    ),
    "pairs and parameters of a long pass": Trap(
        "counts the square of pairs", "https://github.com/AI-Hypercomputer/maxtext/pull/1988",
        # 4 x 8,192 tokens, forward; training is three times that, 211.1 and 1,299.0 T: 32 x 4 x 4,096 x pairs x 4, and
        # 2 x (6,738,415,616 - table 131,072,000 - norms 266,240) x 32,768
        lambda: [
            (made["by_op"]["attention"], made["dense_by_op"]["linear"] + made["dense_by_op"]["head"])
            for made in [prefill("llama2-7b", 8192, batch=4)]
        ],
        [(4 * 32 * 4096 * (8192 * 8193 // 2) * 4, 2 * 6_607_077_376 * 32_768)], ("maxtext-1988-l2-8k",),
    ),
    "keys and values of latents": Trap(
        "takes the width of a query twice", "https://github.com/verl-project/verl/pull/4959",
        # (192 + 128) x 128 heads x 2 a pair, 61 layers
        lambda: prefill("deepseek-v3", 4096)["by_op"]["attention"], 61 * 2 * 128 * (192 + 128) * PAIRS_4096,
        ("verl-4959-dsv3",),
    ),
    "half of the square": Trap(
        "counts pairs that no query sees, twice the work", "https://github.com/NVIDIA-NeMo/Speech/issues/14376",
        # n (n + 1) / 2 of n x n: 4,097 of 8,192
        lambda: [
            (made["by_op"]["attention"] * 8192 // 4097, made["dense_by_op"]["attention"])
            for made in (prefill("llama3-8b", 4096), prefill("mixtral-8x7b", 4096))
        ],
        [(4 * 4096 * 4096**2 * 32, 4 * 4096 * 4096**2 * 32)] * 2, ("nemo-14376",),
    ),
    "half of the square, as a kernel": Trap(
        "has no half in a causal benchmark", "https://github.com/modular/modular/issues/5557",
        # B 2, H 12, D 64, S 1,024: 4 x 2 x 12 x 64 x 1,024 x 1,025 / 2 in each of 12 layers
        lambda: prefill("gpt2", 1024, batch=2)["by_op"]["attention"], 12 * 4 * 2 * 12 * 64 * 1024 * 1025 // 2,
        ("modular-5557",),
    ),
    "multiply-adds are two": Trap(
        "prints TFLOPS, multiply-adds and utilisation as one figure",
        "https://github.com/MrYxJ/calculate-flops.pytorch/issues/24",
        # 2 x (8,030,261,248 - table 525,336,576 - norms 266,240) x 4,096 tokens = 61.48 T, scores left out
        lambda: sum(prefill("llama3-8b", 4096)["dense_by_op"][kind] for kind in ("linear", "head")), 61_478_161_874_944,
        ("calflops-24",),
    ),
    "pairs of a window, and an output gate": Trap(
        "charges windows as if all were seen, and leaves out the gate", "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3029",
        # 12 layers see all, 12 see 128: 128 x 129 / 2 + 3,968 x 128 pairs, x 4 x 64 x 64
        # queries and their gate 2,048 x 8,192, keys and values 2,048 x 1,024, back 4,096 x 2,048
        lambda: (
            prefill(GPT_OSS, 4096)["by_op"]["attention"],
            params(QWEN3_NEXT, "stacks", "decoder", "by_block")[3]["attention"],
        ),
        (12 * 4 * 64 * 64 * (PAIRS_4096 + 128 * 129 // 2 + 3968 * 128), 2048 * (2 * 4096 + 1024 + 4096)), ("mbridge-3029",),
    ),
    "three matrices": Trap(
        "has two matrices in a gated block", "https://github.com/pkunlp-icler/FastV/issues/29",
        # 3 x 4,096 x 11,008 in a layer
        lambda: params("llama2-7b", "stacks", "decoder", "by_block")[0]["mlp"], 135_266_304, ("fastv-29",),
    ),
}  # fmt: skip

BOTH_SIDES = {
    "cross caches end with the encoder": Trap(
        "sizes the cross cache by 1,024 tokens", "https://github.com/NVIDIA/TensorRT-LLM/issues/19514",
        # 32 x 2 x 1,280 x 2 bytes: x 1,500 frames, and x 448 tokens
        lambda: said("whisper-large-v3", dtype="fp16", prompt=447, generate=1)["cache"]["parts"],
        {"self": 73_400_320, "cross": 245_760_000, "state": 0}, ("trt-19514",),
    ),
    "heads narrower than the model": Trap(
        "says d_kv is d_model / heads", "https://github.com/huggingface/transformers/issues/21641",
        # 6 x 64 = 384: 4 matrices of 512 x 384, and 32 buckets x 6 once; 8 layers x 2 x 384 x 2 bytes
        lambda: (
            params("flan-t5-small", "stacks", "encoder", "by_block")[0]["attention"], grown("flan-t5-small", dtype="fp16"),
        ),
        (4 * 512 * 384 + 32 * 6, 12_288), ("t5-21641",),
    ),
    "an encoder remembers nothing": Trap(
        "adds a cache to a reranker, 13.8 GiB in all", "https://github.com/gpustack/gpustack/issues/2412",
        # 567,754,752 x 2 bytes = 1.06 GiB with the model's own pooler; as published a dense layer and one label's row instead of it
        lambda: (
            said(BGE)["weights"]["bytes"], said(BGE)["cache"]["bytes"], said(BGE)["flops"]["decode"],
            params({**BGE, "architectures": ["XLMRobertaForSequenceClassification"], "id2label": {"0": "LABEL_0"}}, "total"),
        ),
        (1_135_509_504, 0, None, 567_754_752 + 1024 + 1), ("gpustack-2412",),
    ),
}  # fmt: skip

CONFIGS = {
    "names of GPT-2": Trap(
        "finds no n_layer, n_embd and n_head; and 8,192 tokens are more than it has rows for",
        "https://github.com/lablup/mlxcel/issues/927",
        # 12 x 2 x 12 x 64 x 2 bytes x 8,192
        lambda: (grown("gpt2", dtype="fp16") * 8192, "a learned table of 1,024" in refused("gpt2", prompt=8192)),
        (301_989_888, True), ("mlxcel-927-gpt2",),
    ),
    "a text model inside": Trap(
        "finds no layers at the top, or none in a text_config that leaves to its class what is usual",
        "https://github.com/alvarobartt/hf-mem/pull/26",
        # 40 x 2 x 5,120 x 2 bytes; an empty one is Llama 7B: 32 x 2 x 4,096 x 2
        lambda: [
            grown({"model_type": "llava", "text_config": text}, dtype="fp16") for text in (VICUNA_13, {"model_type": "llama"}, {})
        ],
        [819_200, 524_288, 524_288], ("hfmem-26",),
    ),
    "a number of layers at the top": Trap(
        "takes the tower's 33 layers from the top", "https://github.com/jundot/omlx/pull/1448",
        lambda: [
            len(layers({"model_type": kind, "num_hidden_layers": 33, "text_config": TINY_TEXT}, 2, dtype="bf16"))
            for kind in ("llava", "llava_next", "idefics3", "mistral3", "internvl")
        ],
        [40] * 5, ("omlx-1448",),
    ),
    "ranks that heads don't allow": Trap(
        "recommends 7 ranks for 28 heads in 4 groups", "https://github.com/jranaraki/vllm-fit/issues/35",
        lambda: (
            "4 key-value heads of model.layers.*.self_attn.k_proj neither divide by it nor divide it" in illegal(QWEN2_7, 7),
            "28 heads" in illegal(QWEN2_7, 8), said(QWEN2_7, hardware="h100-sxm", tp=4)["memory"]["fits"],
        ),
        (True, True, True), ("vllmfit-35",),
    ),
    "five ranks": Trap(
        "allows 5 ranks, which divide neither 8 groups nor 151,936 words", LLM_D,
        lambda: (illegal(QWEN3_14, 5).startswith("--tp: found 5, but the 8 key-value heads"), illegal(QWEN3_14, 5).rpartition(" allows ")[2]),
        (True, "1, 2, 4, 8."), ("llmd-qwen3-14b-tp5",),
    ),
    "8 bits where weights are loaded": Trap(
        "leaves 16 bits, though --quantization fp8 takes all projections", LLM_D,
        # 6,979,321,856 of projections x 1 and 224 scales x 4; 1,050,939,392 of tables, head and norms x 2
        # as vLLM loads them 8.49 GiB, with a table of 131,072 x 128 rotary cosines and sines
        lambda: (
            said(LLAMA_8, weights="fp8")["weights"]["bytes"], said(LLAMA_8)["weights"]["bytes"],
            started(LLAMA_8, "0.19", weights="fp8")["weights"],
        ),
        (
            6_979_321_856 + 224 * 4 + 2 * 1_050_939_392, 2 * 8_030_261_248,
            6_979_321_856 + 224 * 4 + 2 * 1_050_939_392 + 131_072 * 128 * 2,
        ),
        ("llmd-fp8-runtime",),
    ),
    "widths that the config lists": Trap(
        "takes compressed-tensors for 16 bits", "https://github.com/jranaraki/vllm-fit/issues/31",
        # projections 4 bits and 16 for 128 of them, 16 bytes for each of 224 matrices; without attention's, of 1,342,177,280
        lambda: [
            said({**LLAMA_8, "quantization_config": PACKED | {"ignore": ["lm_head", *more]}})["weights"]["bytes"]
            for more in ([], ["re:.*self_attn.*"])
        ],
        [
            6_979_321_856 * 33 // 64 + 224 * 16 + 2 * 1_050_939_392,
            5_637_144_576 * 33 // 64 + 96 * 16 + 2 * (1_050_939_392 + 1_342_177_280),
        ],
        ("vllmfit-quant",),
    ),
    "a cache of 32 bits": Trap(
        "has f32 rows by default", "https://github.com/abetlen/llama-cpp-python/issues/66",
        # 60 x 2 x 6,656 x 512 x 4 bytes, and x 2
        lambda: [held(LLAMA_30, 512, cache_dtype=each) for each in ("f32", "f16")], [1560 * MIB, 780 * MIB],
        ("llamacpppy-66",),
    ),
    "bits are not bytes": Trap(
        "mistakes bits for bytes", "https://github.com/mlco2/ecologits/issues/84",
        # 6,738,415,616 x bits / 8; at 4 bits projections only, 6,476,005,376 of them: half a byte each less 2 bytes
        lambda: [said("llama2-7b", weights=each)["weights"]["bytes"] for each in ("fp32", "fp16")]
        + [_unscaled("llama2-7b")],
        [6_738_415_616 * 32 // 8, 6_738_415_616 * 16 // 8, 6_476_005_376 * 4 // 8], ("litgpt-mfu-nvfp4",),
    ),
    "figures of one rank": Trap(
        "expects the memory of both GPUs beside figures of one", "https://github.com/vllm-project/vllm/issues/13061",
        # 4 of 8 heads: 48 x 2 x 4 x 128 x 2 bytes; 81,536 tokens of it are 7.46 GiB on each
        lambda: [
            engine_capacity(QWEN2_14, cache_memory_bytes=81_536 * 98_304, tp=2, max_model_len=8192, version="0.11")[key]
            for key in ("bytes_per_token", "tokens")
        ],
        [98_304, 81_536], ("vllm-13061",),
    ),
}  # fmt: skip


ENGINE = {
    "a shorter context that fits no longer": Trap(
        "takes memory for a fall with length: 20,000 tokens start, 29,000 don't, 35,000 do again",
        "https://github.com/vllm-project/vllm/issues/10517",
        # up to 32,768 tokens a step held a whole prompt: printed are 3.81 and 2.89 GiB; then prompts are split
        lambda: [
            (round(found["available_cache"] / GIB, 2), found["starts"])
            for length in (20_000, 29_000, 35_000)
            for found in [started(LLAMA_8, "0.6", "rtx-3090", flags={"max_model_len": length, "gpu_memory_utilization": 0.9})]
        ],
        [(pytest.approx(3.81, abs=0.05), True), (pytest.approx(2.89, abs=0.05), False), (pytest.approx(4.66, abs=0.05), True)],
        ("vllm-10517",),
    ),
    "a pool is what is left": Trap(
        "wonders that shorter steps use more memory", "https://github.com/vllm-project/vllm/issues/5416",
        # the cache takes all that the profiled step leaves
        lambda: [
            sorted(pools, reverse=True) == pools and len(set(pools)) == 3
            for pools in [[
                started("llama2-7b", "0.6", "a100-40gb", flags={"max_num_batched_tokens": n})["available_cache"]
                for n in (2048, 8192, 32_768)
            ]]
        ],
        [True], ("vllm-5416",),
    ),
    "a constant of an older version": Trap(
        "sets aside 5.64 GiB for activations, which 0.17 no longer takes", LLM_D,
        # sampling for 1,024 requests of 151,936 words: 36 bytes each beside the logits up to 0.16, 12 from 0.17 on
        lambda: [started(QWEN3_14, version)["activations"] / GIB for version in ("0.15", "0.16", "0.17", "0.18")],
        [pytest.approx(each, abs=0.02) for each in (5.64, 5.64, 2.23, 2.23)], ("llmd-activation",),
    ),
    "blocks that share a scale": Trap(
        "allows 4 ranks for experts of 768, whose 192 rows aren't whole blocks of 128", "https://github.com/vllm-project/vllm/issues/17569",
        # 768 / 2 = 384 are three blocks; with whole experts on each of 4 ranks nothing is cut
        lambda: [
            started({**QWEN3_30, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "0.32", **spread)[
                "starts"
            ] for spread in ({"tp": 2}, {"tp": 4}, {"tp": 4, "ep": 4})
        ],
        [True, False, True],
    ),
    "buffers of ranks": Trap(
        "sets aside 0.15 GiB alone and 0.6 for several ranks", LLM_D,
        # printed: 0.25 alone, 2.07 and 2.13 where ranks share heads, 0.07 in a pipeline
        lambda: [started(LLAMA_8, "0.19", **spread)["runtime"] / GIB for spread in ({}, {"tp": 2}, {"tp": 4}, {"pp": 2})],
        [pytest.approx(each, abs=0.06) for each in (0.25, 2.07, 2.13, 0.07)], ("llmd-nontorch",),
    ),
}  # fmt: skip

HUB = "https://huggingface.co/"

ELSEWHERE = {
    "one group": Trap(
        "has as many key-value heads as query heads where multi_query says one", HUB + "tiiuae/falcon-7b",
        # 32 x 2 x 1 x 64 x 2; Falcon 40B: 60 x 2 x 8 x 64 x 2; StarCoder: 40 x 2 x 1 x 128 x 2, 48 times that without it
        lambda: [
            grown(config, dtype="bf16") for config in (
                "falcon-7b",
                {"model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 128, "num_kv_heads": 8,
                 "num_hidden_layers": 60, "new_decoder_architecture": True},
                STARCODER, {**STARCODER, "multi_query": False},
            )
        ],
        [8192, 122_880, 20_480, 983_040],
    ),
    "no key-value heads given": Trap(
        "takes a missing or null num_key_value_heads for 1 or for an error", HUB + "huggyllama/llama-7b",
        # 32 x 2 x 32 x 128 x 2
        lambda: [
            grown(config) for config in (
                {**LLAMA_8, "num_key_value_heads": None},
                {key: value for key, value in LLAMA_8.items() if key != "num_key_value_heads"},
            )
        ],
        [524_288, 524_288],
    ),
    "a null head_dim where the class says what it means": Trap(
        "takes the class's 128 though it divides the width", HUB + "ByteDance-Seed/Seed-OSS-36B-Instruct",
        # 5,120 / 80 = 64: 2 x 8 x 64 x 2; without the key 128
        lambda: [grown(config) for config in ({**SEED, "head_dim": None}, SEED)], [64 * 2048, 64 * 4096],
    ),
    "heads that don't fill the width": Trap(
        "takes 5,120 / 32 = 160 as the width of a head", HUB + "mistralai/Mistral-Nemo-Base-2407",
        # 40 x 2 x 8 x 128 x 2
        lambda: grown({**MISTRAL, "hidden_size": 5120, "num_hidden_layers": 40, "head_dim": 128}), 163_840,
    ),
    "layers by a list of ones": Trap(
        "alternates linear and full attention though the file lists them", HUB + "MiniMaxAI/MiniMax-Text-01",
        # 10 of 80 layers x 2 x 8 x 128 x 2; 456 billion
        lambda: [(grown(each), params(each, "total")) for each in (MINIMAX, {**MINIMAX, "model_type": "minimax"})],
        [(40_960, 456_089_655_296)] * 2,
    ),
    "one layer of eight": Trap(
        "counts all 32 layers", HUB + "ai21labs/Jamba-v0.1",
        # 4 layers x 2 x 8 x 128 x 2, at attn_layer_offset of every attn_layer_period
        lambda: grown({"model_type": "jamba"}, dtype="bf16"), 16_384,
    ),
    "four layers of forty": Trap(
        "counts all 40 layers", HUB + "ibm-granite/granite-4.0-h-small",
        # 4 layers x 2 x 8 x 128 x 2
        lambda: grown(
            model("granitemoehybrid", 40, 4096, 32, 8, layer_types=[*["mamba"] * 5, "attention", *["mamba"] * 4] * 4,
                  num_local_experts=72, num_experts_per_tok=10, intermediate_size=768, shared_intermediate_size=1536,
                  vocab_size=100352, mamba_n_heads=128, mamba_d_head=64, mamba_d_state=128, mamba_n_groups=1)
        ), 16_384,
    ),
    "chunks": Trap(
        "keeps all tokens in layers that see a chunk", HUB + "meta-llama/Llama-4-Scout-17B-16E",
        # 12 layers see all of 20,000; 36 hold at most a chunk of 8,192; 4,096 bytes a token
        lambda: held(SCOUT, 20_000), (12 * 20_000 + 36 * 8192) * 4096,
    ),
    "a window without a list": Trap(
        "reads no window where there is no list of layers", HUB + "microsoft/Phi-3-mini-4k-instruct",
        # 2 x 32 x 96 x 2 bytes for 2,047 tokens of 3,000, and for all where it is null
        lambda: [
            layers(model("phi3", 32, 3072, 32, 32, intermediate_size=8192, vocab_size=32064, sliding_window=each), 3000)[0]
            // 12_288 for each in (2047, None)
        ],
        [2047, 3000],
    ),
    "keys of the text model at the top": Trap(
        "finds no text_config in the first files of Qwen2-VL", HUB + "Qwen/Qwen2-VL-7B-Instruct",
        # 28 x 2 x 4 x 128 x 2; 8,291,375,616 with its tower
        lambda: (grown(QWEN2_VL), params(QWEN2_VL, "total")), (57_344, 8_291_375_616),
    ),
    "latents by expanded heads": Trap(
        "multiplies by the heads of DeepSeek-V2-Lite", HUB + "deepseek-ai/DeepSeek-V2-Lite",
        # 27 x 576 x 2, on one rank and on each of 8
        lambda: [served("deepseek-v2-lite", tp=tp)["bytes_per_token"] for tp in (1, 8)], [31_104, 31_104],
    ),
    "an encoder's cache of a decoder's length": Trap(
        "gives the encoder of T5 a cache", HUB + "google-t5/t5-base",
        # 12 decoder layers x 2 x 768 x 2 bytes: 100 tokens of their own, 512 of the source
        lambda: said("t5-base", dtype="bf16", source=512, prompt=99, generate=1)["cache"]["parts"],
        {"self": 3_686_400, "cross": 18_874_368, "state": 0},
    ),
}  # fmt: skip
"""The same mistakes with other models: what their own files say."""


def _unscaled(config: str) -> int:
    """Return the bytes of projections at 4 bits, each matrix's scales of 16 bits an output left out."""
    plain, packed = (said(config, weights=each)["weights"]["bytes"] for each in ("fp16", "ct-int4-channel"))
    # 32 layers x 7 matrices: 16 bytes of their shape, and 2 for each of 4 x 4,096 + 2 x 11,008 + 4,096 outputs
    scales = 32 * (7 * 16 + 2 * (5 * 4096 + 2 * 11_008))
    return int(packed - scales - (plain - 2 * 6_476_005_376))


def checked(*lines: str) -> list[float]:
    """Return what `plan check` predicts for a log of such lines."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "start.log"
        file.write_text("\n".join(lines))
        found = json.loads(CliRunner().invoke(app, ["check", str(file), "--json"]).stdout)
    return [line["predicted"] for line in found["lines"]]


TRAPS = {**HEADS, **GROUPS, **LATENTS, **WINDOWS, **HYBRIDS, **COUNTS, **BOTH_SIDES, **CONFIGS, **ENGINE, **ELSEWHERE}

WAITING = {
    "llmfit-449": "a rate: seconds of a decode step are another issue",
}
"""Rows that wait, and what for."""


@pytest.mark.parametrize("name", TRAPS)
def test_a_trap(name: str) -> None:
    """The planner says what is right."""
    trap = TRAPS[name]
    assert trap.ask() == trap.right


@pytest.mark.parametrize("config", [MIXTRAL_NULL, GPT_OSS, DEEPSEEK_V32, KIMI], ids=lambda each: each["model_type"])
def test_the_command_reads_the_same_file(config: dict[str, Any], tmp_path: Path) -> None:
    """`plan --config` of a file with null, lists and objects prints the plan of the dict."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    done = CliRunner().invoke(app, ["--config", str(file), "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["cache"] == said(config)["cache"]


@pytest.mark.skipif(not ROWS.is_file(), reason="../shared/cases is not beside this checkout")
def test_every_report_is_met_or_waits() -> None:
    """No row of the collected reports is left out, and none is named that there isn't."""
    given = [json.loads(line)["id"] for line in ROWS.read_text().splitlines()]
    met = [row for trap in TRAPS.values() for row in trap.rows]
    assert len(met) == len(set(met))
    assert not set(met) & set(WAITING)
    assert set(met) | set(WAITING) == set(given)


def test_windows_with_heads_and_widths_of_their_own() -> None:
    """MiMo-V2: layers with windows may say their own; transformers ignores that, the published code and serving engines don't."""
    config = {
        "model_type": "mimo_v2_flash", "hidden_size": 256, "num_hidden_layers": 2, "hybrid_layer_pattern": [0, 1], "vocab_size": 512,
        "intermediate_size": 512, "moe_layer_freq": [0, 0], "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
        "v_head_dim": 32, "swa_num_attention_heads": 8, "swa_num_key_value_heads": 4, "swa_head_dim": 48, "swa_v_head_dim": 16,
        "sliding_window_size": 127, "torch_dtype": "bfloat16", "max_position_embeddings": 4096,
    }  # fmt: skip
    full, own, others = 10 * 2 * (64 + 32) * 2, 10 * 4 * (48 + 16) * 2, 10 * 4 * (64 + 32) * 2
    layers = {e: plan(config, engine=e, prompt=10, generate=0).cache["layers"] for e in ("ideal", "transformers")}
    assert layers == {"ideal": [full, own], "transformers": [full, others]}
