"""GGUF files: the config that their metadata means, and their tensors (needs planformer[gguf])."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner.errors import PlanError
from planner.formats import Checkpoint, Tensor

ARCHITECTURES = {
    "llama": "llama", "qwen2": "qwen2", "qwen2moe": "qwen2_moe", "qwen3": "qwen3", "qwen3moe": "qwen3_moe",
    "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3_text", "phi2": "phi", "phi3": "phi3", "gpt2": "gpt2",
    "gptneox": "gpt_neox", "falcon": "falcon", "starcoder2": "starcoder2", "command-r": "cohere", "cohere2": "cohere2",
    "bloom": "bloom", "mpt": "mpt", "stablelm": "stablelm", "olmo": "olmo", "olmo2": "olmo2", "olmoe": "olmoe",
    "deepseek2": "deepseek_v3", "gpt-oss": "gpt_oss", "smollm3": "smollm3", "granite": "granite", "glm4": "glm4",
    "internlm2": "internlm2", "seed_oss": "seed_oss", "arcee": "arcee", "nemotron": "nemotron", "exaone4": "exaone4",
}  # fmt: skip
"""`general.architecture` and the family it is; others are refused."""

KEYS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.sliding_window": "sliding_window",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.freq_base": "rope_theta",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
"""Metadata below the architecture's name, and the key of a config that it means."""


def read(path: Path) -> tuple[dict[str, Any], Checkpoint]:
    """Return the config that a GGUF file's metadata means, and its tensors.

    Raises:
        PlanError: gguf isn't installed, the file can't be read, or its architecture has no counterpart.
    """
    try:
        from gguf import GGUFReader, LlamaFileType  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise PlanError("gguf is not installed", where=str(path), fix="pip install 'planformer[gguf]'") from error
    try:
        reader = GGUFReader(path)
        fields = {name: each.contents() for name, each in reader.fields.items() if not name.startswith("tokenizer.")}
        tensors = tuple(
            Tensor(each.name, tuple(int(size) for size in each.shape), each.tensor_type.name, int(each.n_bytes))
            for each in reader.tensors
        )
    except (ValueError, OSError, KeyError, IndexError, TypeError) as error:
        raise PlanError(f"not a readable GGUF file ({error})", where=str(path), fix="download it again") from error
    names = {each.name: each for each in tensors}
    config = _config(fields, names, path)
    kind = fields.get("general.file_type")
    if kind is not None:
        name = LlamaFileType(kind).name.removeprefix("MOSTLY_").removeprefix("ALL_").lower()
        config |= {"torch_dtype": "float32" if name == "f32" else "float16" if name == "f16" else "bfloat16"}
        if name not in {"f32", "f16", "bf16"}:
            config["quantization_config"] = {"quant_method": "gguf", "file_type": name}
    return config, Checkpoint(1, tensors)


def _config(fields: dict[str, Any], tensors: dict[str, Tensor], path: Path) -> dict[str, Any]:
    architecture = fields.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise PlanError(
            f"found the architecture {architecture!r}, known are {', '.join(ARCHITECTURES)}",
            where=f"{path}, general.architecture",
            fix="plan from the config.json of the model instead",
        )
    config: dict[str, Any] = {"model_type": ARCHITECTURES[architecture]}
    for theirs, ours in KEYS.items():
        value = fields.get(f"{architecture}.{theirs}")
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, list):
            raise PlanError(
                "found different values for different layers",
                where=f"{path}, {architecture}.{theirs}",
                fix="plan from the config.json of the model instead",
            )
        if value is not None and not (theirs in {"expert_count", "expert_used_count"} and value == 0):
            config[ours] = value
    if "token_embd.weight" in tensors:
        config["vocab_size"] = tensors["token_embd.weight"].shape[-1]
    config["tie_word_embeddings"] = "output.weight" not in tensors
    if architecture == "llama":
        config |= {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_up.bias" in tensors}
        if config.get("num_experts"):
            config = {k: v for k, v in config.items() if k not in {"attention_bias", "mlp_bias"}} | {
                "model_type": "mixtral"
            }
    head = fields.get(f"{architecture}.attention.key_length")
    if architecture == "deepseek2":
        return config | _latent(fields)
    return config if head is None else config | {"head_dim": head}


def _latent(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the widths of DeepSeek's heads."""
    at = "deepseek2.attention."
    turned = fields.get("deepseek2.rope.dimension_count")
    key = fields.get(f"{at}key_length_mla") or fields.get(f"{at}key_length")
    value = fields.get(f"{at}value_length_mla") or fields.get(f"{at}value_length")
    plain = key - turned if isinstance(key, int) and isinstance(turned, int) else None
    return {"qk_rope_head_dim": turned, "qk_nope_head_dim": plain, "v_head_dim": value}
