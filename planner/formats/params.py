"""params.json, as Mistral and Meta publish beside their own weights, as the config.json that it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.errors import PlanError

COMMON = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "hidden_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "max_seq_len": "max_position_embeddings",
    "sliding_window": "sliding_window",
}
META_VOCABULARY = 32_000
"""Llama 1 and 2 write vocab_size -1: the tokenizer's."""


def is_params(values: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is a params.json and no config.json."""
    return {"dim", "n_layers", "n_heads"} <= values.keys() and "model_type" not in values


def translate(values: Mapping[str, Any], label: str) -> dict[str, Any]:
    """Return the config.json that a params.json means.

    Raises:
        PlanError: it holds sizes that have no counterpart.
    """
    config = {ours: values[theirs] for theirs, ours in COMMON.items() if values.get(theirs) is not None}
    config["model_type"] = "mistral" if config.get("sliding_window") else "llama"
    config["tie_word_embeddings"] = bool(values.get("tied_embeddings", False))
    if config.get("vocab_size") == -1:
        config["vocab_size"] = META_VOCABULARY
    if moe := values.get("moe"):
        config |= {
            "model_type": "mixtral",
            "num_local_experts": moe.get("num_experts"),
            "num_experts_per_tok": moe.get("num_experts_per_tok"),
        }
    if "hidden_dim" not in values:
        config["intermediate_size"] = _meta_hidden(values, label)
    known = {
        *COMMON,
        "moe",
        "tied_embeddings",
        "multiple_of",
        "ffn_dim_multiplier",
        "use_scaled_rope",
        "use_biases",
        "causal",
    }
    extra = {key: value for key, value in values.items() if key not in known}
    return config | extra


def _meta_hidden(values: Mapping[str, Any], label: str) -> int:
    """Return Llama's hidden width: 2/3 of 4 D, times a factor, rounded up to a multiple."""
    width, multiple, factor = values["dim"], values.get("multiple_of"), values.get("ffn_dim_multiplier")
    if not isinstance(width, int) or not isinstance(multiple, int) or multiple < 1:
        raise PlanError(
            "neither hidden_dim nor multiple_of gives the feed-forward width",
            where=f"{label}, hidden_dim",
            fix="add one",
        )
    hidden = int(2 * 4 * width / 3)
    if factor is not None:
        hidden = int(factor * hidden)
    return multiple * -(-hidden // multiple)
