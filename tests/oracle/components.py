"""Which component of a transformer a parameter of the reference implementation belongs to.

Written from the module names of transformers 5.24, one rule list per family, and independent of the planner.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

COMPONENTS: Final = (
    "attention",
    "mlp",
    "routed_experts",
    "shared_experts",
    "router",
    "norm",
    "embedding",
    "head",
    "recurrent",
    "conv",
    "other",
)

Rule = tuple[str, str]
"""A component and a pattern that matches the whole tensor name."""

_LAYER = r"layers\.[^.]+\."
_BLOCK = r"h\.[^.]+\."
_WB = r"\.(weight|bias)"

_LLAMA: Final[tuple[Rule, ...]] = (
    ("head", rf"lm_head{_WB}"),
    ("embedding", r"model\.embed_tokens\.weight"),
    ("norm", rf"model\.norm{_WB}"),
    ("norm", rf"model\.{_LAYER}(input|post_attention|pre_feedforward|post_feedforward)_layernorm{_WB}"),
    ("norm", rf"model\.{_LAYER}self_attn\.(q_norm|k_norm|q_a_layernorm|kv_a_layernorm)\.weight"),
    ("attention", rf"model\.{_LAYER}self_attn\.(q|k|v|o|q_a|q_b|kv_b)_proj{_WB}"),
    ("attention", rf"model\.{_LAYER}self_attn\.kv_a_proj_with_mqa{_WB}"),
    ("mlp", rf"model\.{_LAYER}mlp\.(gate|up|down)_proj{_WB}"),
    ("routed_experts", rf"model\.{_LAYER}mlp\.experts\.(gate_up|down)_proj"),
    ("shared_experts", rf"model\.{_LAYER}mlp\.shared_experts\.(gate|up|down)_proj{_WB}"),
    ("router", rf"model\.{_LAYER}mlp\.gate\.(weight|e_score_correction_bias)"),
)

_GPT2: Final[tuple[Rule, ...]] = (
    ("head", r"lm_head\.weight"),
    ("embedding", r"transformer\.(wte|wpe|tokens_embed|positions_embed)\.weight"),
    ("norm", rf"transformer\.({_BLOCK}ln_[12]|ln_f){_WB}"),
    ("attention", rf"transformer\.{_BLOCK}attn\.c_(attn|proj){_WB}"),
    ("mlp", rf"transformer\.{_BLOCK}mlp\.c_(fc|proj){_WB}"),
)

_FALCON: Final[tuple[Rule, ...]] = (
    ("head", r"lm_head\.weight"),
    ("embedding", r"transformer\.word_embeddings\.weight"),
    ("norm", rf"transformer\.({_BLOCK}(input_layernorm|post_attention_layernorm|ln_attn|ln_mlp)|ln_f){_WB}"),
    ("attention", rf"transformer\.{_BLOCK}self_attention\.(query_key_value|dense){_WB}"),
    ("mlp", rf"transformer\.{_BLOCK}mlp\.dense_(h_to_4h|4h_to_h){_WB}"),
)

_BERT_BODY: Final = r"(bert\.|longformer\.)?"
_BERT: Final[tuple[Rule, ...]] = (
    ("head", rf"(cls\.predictions|lm_head)(\.bias|\.(transform\.)?(dense|LayerNorm|layer_norm|decoder){_WB})"),
    ("embedding", rf"{_BERT_BODY}embeddings\.(word|position|token_type)_embeddings\.weight"),
    ("norm", rf"{_BERT_BODY}(embeddings|encoder\.layer\.[^.]+\.(attention\.)?output)\.LayerNorm{_WB}"),
    ("attention", rf"{_BERT_BODY}encoder\.layer\.[^.]+\.attention\.self\.(query|key|value)(_global)?{_WB}"),
    ("attention", rf"{_BERT_BODY}encoder\.layer\.[^.]+\.attention\.output\.dense{_WB}"),
    ("mlp", rf"{_BERT_BODY}encoder\.layer\.[^.]+\.(intermediate|output)\.dense{_WB}"),
    ("other", rf"{_BERT_BODY}pooler(\.dense)?{_WB}"),
)

_T5_LAYER: Final = r"(encoder|decoder)\.block\.[^.]+\.layer\.\d+\."
_T5: Final[tuple[Rule, ...]] = (
    ("head", r"lm_head\.weight"),
    ("embedding", r"(shared|encoder\.embed_tokens|decoder\.embed_tokens)\.weight"),
    ("norm", rf"({_T5_LAYER}layer_norm|(encoder|decoder)\.final_layer_norm)\.weight"),
    ("attention", rf"{_T5_LAYER}(SelfAttention|EncDecAttention)\.([qkvo]|relative_attention_bias)\.weight"),
    ("mlp", rf"{_T5_LAYER}(DenseReluDense|mlp)\.(wi|wi_0|wi_1|wo)\.weight"),
    ("routed_experts", rf"{_T5_LAYER}mlp\.experts\.expert_\d+\.(wi|wo)\.weight"),
    ("router", rf"{_T5_LAYER}mlp\.router\.classifier{_WB}"),
)

_BART_LAYER: Final = rf"model\.(encoder|decoder)\.{_LAYER}"
_BART: Final[tuple[Rule, ...]] = (
    ("head", r"(lm_head|proj_out)\.weight"),
    ("embedding", r"model\.(shared|(encoder|decoder)\.(embed_tokens|embed_positions))\.weights?"),
    ("norm", rf"model\.(encoder|decoder)\.(layer_norm|layernorm_embedding){_WB}"),
    ("norm", rf"{_BART_LAYER}(self_attn|encoder_attn|cross_attention|final|ff)_layer_norm{_WB}"),
    ("attention", rf"{_BART_LAYER}(self_attn|encoder_attn|cross_attention)\.(q|k|v|out)_proj{_WB}"),
    ("mlp", rf"{_BART_LAYER}(ffn\.)?fc[12]{_WB}"),
    ("routed_experts", rf"{_BART_LAYER}ffn\.experts\.expert_\d+\.fc[12]{_WB}"),
    ("router", rf"{_BART_LAYER}ffn\.router\.classifier{_WB}"),
    ("conv", rf"model\.encoder\.conv[12]{_WB}"),
)

_RULES: Final = MappingProxyType(
    {
        "llama": _LLAMA,
        "mistral": _LLAMA,
        "mixtral": _LLAMA,
        "qwen2": _LLAMA,
        "gemma2": _LLAMA,
        "gemma3_text": _LLAMA,
        "deepseek_v2": _LLAMA,
        "deepseek_v3": _LLAMA,
        "gpt2": _GPT2,
        "openai-gpt": _GPT2,
        "falcon": _FALCON,
        "bert": _BERT,
        "big_bird": _BERT,
        "longformer": _BERT,
        "t5": _T5,
        "mt5": _T5,
        "switch_transformers": _T5,
        "bart": _BART,
        "whisper": _BART,
        "m2m_100": _BART,
        "nllb-moe": _BART,
    }
)


class UnknownTensorError(LookupError):
    """A tensor that no rule of its family places, or a family without rules."""


def component(model_type: str, tensor_name: str) -> str:
    """Return the component (one of COMPONENTS) of a reference tensor; a layer index may be a number or `{}`."""
    if model_type not in _RULES:
        raise UnknownTensorError(f"no rules for model_type {model_type!r}")
    found = _matches(_RULES[model_type], tensor_name)
    if len(found) != 1:
        raise UnknownTensorError(f"{model_type}: {tensor_name!r} matches {found or 'no component'}")
    return found[0]


def _matches(rules: Sequence[Rule], tensor_name: str) -> list[str]:
    """Return the distinct components whose pattern matches the whole name, in rule order."""
    return list(dict.fromkeys(name for name, pattern in rules if re.fullmatch(pattern, tensor_name)))
