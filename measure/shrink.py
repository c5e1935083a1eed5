"""A small config of the same family and the same kind of shape, that a CPU runs in a fraction of a second.

Every size becomes small and different from the others, so that a mixed-up pair shows; what makes the architecture stays:
which layers follow each other, how many query heads share a key-value head, chosen experts, flags, scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.engines import IDEAL
from planner.families import FAMILIES, defaults
from planner.frontend import describe, find
from planner.model import Layer, Model, Stack

HEAD, WIDTH, VOCABULARY, POSITIONS = 16, 48, 128, 64
MOST_GROUPED = 8
"""Largest number of query heads a key-value head that is kept."""

SIZES = {
    "vocab_size": VOCABULARY,
    "intermediate_size": 80,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 80,
    "moe_intermediate_size": 40,
    "head_dim": HEAD,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "rotary_dim": 8,
    "sliding_window": 8,
    "block_size": 16,
    "max_window_layers": 1,
    "num_mel_bins": 12,
    "max_source_positions": 24,
    "max_target_positions": POSITIONS,
}
"""Small values of the keys that hold sizes; a key that is missing or null stays so."""

DECODER_ONLY = frozenset({"num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"})
"""Keys that classes of encoder-decoders declare and don't use."""


def shrink(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a small config of the same kind; the dict that enters is left as it is."""
    config = {key: value for key, value in find(config).values.items() if key != "quantization_config"}
    model = describe({**config, **_few_full_layers(config)}, engine=IDEAL)
    known = defaults(model.family)
    names = {**known["names"], **FAMILIES[model.family].names}
    taken = {names.get(key, key): value for key, value in known["defaults"].items()} | config

    def has(key: str) -> str | None:
        """Return the spelling under which a key has a value."""
        spelled = next((name for name in (names.get(key, key), key) if taken.get(name) is not None), None)
        unused = model.kind == "encoder-decoder" and key in DECODER_ONLY and spelled not in config
        return None if unused else spelled

    small = {**SIZES, **_layers(model), **_few_full_layers(config), **_experts(taken, has)}
    heads = _heads(taken, has)
    small |= heads
    small["hidden_size"] = WIDTH if has("head_dim") or has("kv_lora_rank") else _most(heads) * HEAD
    if model.learned_positions:
        small["max_position_embeddings"] = POSITIONS
    shrunk = {**config, **{spelled: value for key, value in small.items() if (spelled := has(key))}}
    return _tidy(shrunk, small, model.family)


def _few_full_layers(config: Mapping[str, Any]) -> dict[str, int]:
    """Return Qwen 2's first window layer, where windows are switched on: after one layer without."""
    return {"max_window_layers": 1} if config.get("use_sliding_window") and "max_window_layers" in config else {}


def _layers(model: Model) -> dict[str, Any]:
    """Return as many layers as show every kind of layer, at least 2, and sparse layers at the same rate."""
    counts: dict[str, int] = {stack.name: _shown(stack) for stack in model.stacks}
    small: dict[str, Any] = {"num_hidden_layers": _most(counts)}
    for stack in model.stacks:
        small[f"{stack.name}_layers"] = counts[stack.name]
        sparse = sum(run.count for run in stack.runs if any(leaf.copies > 1 for leaf in run.layer.leaves))
        small[f"num_sparse_{stack.name}_layers"] = max(1, sparse * counts[stack.name] // stack.depth)
    return small


def _shown(stack: Stack) -> int:
    """Return the layers of the shortest beginning of a stack that holds every kind of layer, at least 2."""
    kinds = {run.layer for run in stack.runs}
    seen: set[Layer] = set()
    shown = 0
    for run in stack.runs:
        if seen == kinds:
            break
        shown += 1 if run.layer not in seen and seen | {run.layer} == kinds else run.count
        seen.add(run.layer)
    return max(shown, 2)


def _heads(taken: Mapping[str, Any], has: Any) -> dict[str, int]:
    """Return few heads, with as many query heads a key-value head as before, up to 8."""
    heads, groups = (
        taken[spelled] if (spelled := has(f"num_{kind}_heads")) else 0 for kind in ("attention", "key_value")
    )
    both = dict(encoder_attention_heads=4, decoder_attention_heads=4)
    if groups in {0, heads}:
        return dict(both, num_attention_heads=4, num_key_value_heads=4)
    kept = 1 if groups == 1 else 2
    return dict(both, num_attention_heads=kept * min(heads // groups, MOST_GROUPED), num_key_value_heads=kept)


def _experts(taken: Mapping[str, Any], has: Any) -> dict[str, int]:
    """Return few experts and groups of them, with as many chosen as before, up to 4."""
    groups = taken.get("n_group") or 1
    few = dict(num_experts=8, num_experts_per_tok=min(4, taken.get(has("num_experts_per_tok") or "", 1)))
    return few if groups == 1 else dict(few, num_experts=16, n_group=4, topk_group=2)


def _most(counts: Mapping[str, int]) -> int:
    return max(value for key, value in counts.items() if "key_value" not in key)


def _tidy(shrunk: dict[str, Any], small: Mapping[str, Any], family: str) -> dict[str, Any]:
    """Cut lists that have an entry a layer, and drop token ids that the small vocabulary doesn't have."""
    layers = small["num_hidden_layers"]
    if isinstance(shrunk.get("layer_types"), list):
        shrunk["layer_types"] = shrunk["layer_types"][:layers]
    if "attention_window" in shrunk or family == "longformer":
        shrunk["attention_window"] = [8] * layers
        shrunk["max_position_embeddings"] = POSITIONS + 2
    return {key: value for key, value in shrunk.items() if not (key.endswith("_token_id") and _beyond(value))}


def _beyond(value: Any) -> bool:
    return isinstance(value, int) and value >= VOCABULARY
