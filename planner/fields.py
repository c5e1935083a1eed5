"""The keys of a config.json: which there are, what they may hold, and a reader that remembers what was asked for.

Only keys of `VOCABULARY` can be read. A key that changes sizes (`structural`) and that nothing read is refused unless
its value has no effect, so that a feature the planner doesn't model can't be left out silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from planner.errors import PlanError

LARGEST = 2**40
"""Largest count that a key may hold; the largest real one (a vocabulary) is below 2**20."""

MOST_LAYERS = 10_000
"""Most layers of a stack; the deepest published transformer has 1,000 (DeepNet, arXiv:2203.00555)."""

REQUIRED: Any = object()
"""No default: the key must be there, or have a family default."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a config.

    Attributes:
        holds: what its value must be.
        structural: it changes parameters, cache or FLOPs.
        inert: values with which it changes nothing, besides null, false, 0, "" and empty lists.
    """

    holds: Literal["count", "layers", "flag", "number", "text", "list", "table", "any"]
    structural: bool = True
    inert: tuple[Any, ...] = ()


def _keys(holds: Any, names: str, *, structural: bool = True) -> dict[str, Key]:
    return {name: Key(holds, structural) for name in names.split()}


VOCABULARY: dict[str, Key] = {
    **_keys("layers", "num_hidden_layers encoder_layers decoder_layers num_nextn_predict_layers"),
    **_keys(
        "count",
        "hidden_size vocab_size intermediate_size num_attention_heads num_key_value_heads head_dim "
        "encoder_attention_heads decoder_attention_heads encoder_ffn_dim decoder_ffn_dim "
        "max_position_embeddings max_source_positions max_target_positions num_mel_bins type_vocab_size "
        "num_experts num_experts_per_tok moe_intermediate_size n_shared_experts first_k_dense_replace moe_layer_freq "
        "encoder_sparse_step decoder_sparse_step num_sparse_encoder_layers num_sparse_decoder_layers "
        "q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim "
        "sliding_window sliding_window_pattern max_window_layers block_size num_random_blocks "
        "relative_attention_num_buckets num_ln_in_parallel_attn",
    ),
    **_keys(
        "flag",
        "attention_bias mlp_bias bias use_bias tie_word_embeddings use_sliding_window multi_query "
        "new_decoder_architecture parallel_attn alibi is_decoder add_cross_attention router_bias",
    ),
    **_keys(
        "flag",
        "scale_embedding norm_topk_prob rope_interleave scale_attn_weights scale_attn_by_inverse_layer_idx",
        structural=False,
    ),
    **_keys(
        "number",
        "rms_norm_eps layer_norm_eps layer_norm_epsilon rope_theta rope_local_base_freq partial_rotary_factor "
        "query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping routed_scaling_factor "
        "relative_attention_max_distance expert_capacity",
        structural=False,
    ),
    **_keys("text", "feed_forward_proj attention_type"),
    **_keys("count", "n_group topk_group", structural=False),
    **_keys("text", "hidden_act hidden_activation activation_function activation topk_method", structural=False),
    "position_embedding_type": Key("text", inert=("absolute",)),
    "attention_window": Key("any"),
    "layer_types": Key("list"),
    **_keys("table", "rope_scaling rope_parameters", structural=False),
}

HARMLESS = re.compile(
    r".*_token_ids?|.*dropout.*|.*_pdrop|.*layerdrop|transformers_version|architectures|model_type|_name_or_path|name_or_path|"
    r"(torch_)?dtype|quantization_config|use_cache|initializer_.*|init_std|id2label|label2id|num_labels|output_.*|return_dict.*|"
    r"pretraining_tp|is_encoder_decoder|auto_map|task_specific_params|classif.*|cache_implementation|router_aux_loss_coef|"
    r"router_z_loss_coef|router_jitter_noise|aux_loss_alpha|seq_aux|ep_size|gradient_checkpointing|early_stopping|num_beams|"
    r"max_length|min_length|length_penalty|no_repeat_ngram_size|prefix|suppress_tokens|begin_suppress_tokens|mask_(time|feature)_.*|"
    r"apply_spec_augment|median_filter_width|use_weighted_layer_sum|summary_.*|forced_.*|pad_.*|n_ctx|onnx_export|"
    r"normalize_(before|embedding)|add_(final_layer_norm|bias_logits)|static_position_embeddings|tokenizer_class|finetuning_task|"
    r"problem_type|chunk_size_feed_forward|_.*|force_bos_token_to_be_generated|max_target_positions_unused|n_special|predict_special_tokens|"
    r"second_expert_policy|batch_prioritized_routing|moe_eval_capacity_token_fraction|moe_token_dropout|"
    r"normalize_router_prob_before_dropping|router_dtype|router_ignore_padding_tokens|add_router_probs|n_positions_unused|"
    r"gradient_checkpointing_use_reentrant|save_step|lm_label_smoothing|n_group|topk_group|topk_method|scoring_func|"
    r"rope_interleave|qk_head_dim|original_max_position_embeddings|reorder_and_upcast_attn|initializer_factor|"
    r"scale_decoder_outputs|dense_act_fn|is_gated_act|num_attention_layers_unused|decoder_start_token_id|use_bidirectional_attention|"
    r"rescale_embeddings|sep_token_id|apply_residual_connection_post_layernorm|rotary_emb_base_unused|ffn_hidden_size_unused"
)
"""Keys without effect on parameters, cache or FLOPs: training, decoding, bookkeeping."""


@dataclass
class Config:
    """A config.json being read.

    Attributes:
        values: what it says.
        source: file or name, for messages.
        family: model_type that it is read as.
        names: keys that this family calls otherwise (canonical name to its own).
        defaults: what the family takes where a key is missing.
        read: keys that were asked for. defaulted: keys that were missing, and what they took.
    """

    values: Mapping[str, Any]
    source: str
    family: str
    names: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    defaulted: dict[str, Any] = field(default_factory=dict)

    def where(self, key: str) -> str:
        """Return file and field, as the file calls it."""
        return f"{self.source}, {self.spelling(key)}"

    def spelling(self, key: str) -> str:
        """Return the key as this config calls it."""
        own = self.names.get(key, key)
        return own if own in self.values or key not in self.values else key

    def raw(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a value as it stands, or the family's default, or `default`; null counts as missing where it may.

        Raises:
            PlanError: it has no value and no default, or two spellings of it disagree.
        """
        assert key in VOCABULARY, f"{key} is not in the vocabulary"
        own = self.names.get(key, key)
        self.read |= {own, key}
        found = [name for name in dict.fromkeys((own, key)) if self.values.get(name) is not None]
        if len(found) == 2 and self.values[own] != self.values[key]:
            raise PlanError(
                f"found {self.values[own]!r}, but {key} says {self.values[key]!r}; both mean the same",
                where=f"{self.source}, {own}",
                fix="remove one of them",
            )
        if found:
            return self.values[found[0]]
        null = self.spelling(key) in self.values
        fallback = self.defaults.get(key, None)
        if null and default is REQUIRED:
            raise PlanError("found null, a value is needed", where=self.where(key), fix=self._set_hint(key))
        if fallback is not None and not null:
            self.defaulted[self.spelling(key)] = fallback
            return fallback
        if default is REQUIRED:
            raise PlanError(
                f"missing, and the family {self.family!r} has no default for it",
                where=self.where(key),
                fix=self._set_hint(key),
            )
        return default

    def count(self, key: str, default: Any = REQUIRED, *, low: int = 1) -> Any:
        """Return a whole number of at least `low`, or the default."""
        value = self.raw(key, default)
        if value is default and default is not REQUIRED:
            return value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        high = MOST_LAYERS if VOCABULARY[key].holds == "layers" else LARGEST
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise PlanError(
                f"found {_shown(value)}, allowed are whole numbers from {low:,} to {high:,}",
                where=self.where(key),
                fix=self._set_hint(key),
            )
        return value

    def flag(self, key: str, default: Any = REQUIRED) -> bool:
        """Return true or false."""
        value = self.raw(key, default)
        if not isinstance(value, bool):
            raise PlanError(
                f"found {_shown(value)}, allowed are true and false", where=self.where(key), fix=self._set_hint(key)
            )
        return value

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a finite number, or the default."""
        value = self.raw(key, default)
        if value is default and default is not REQUIRED:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
            raise PlanError(
                f"found {_shown(value)}, a number is needed", where=self.where(key), fix=self._set_hint(key)
            )
        return value

    def text(self, key: str, default: Any = REQUIRED, *, allowed: Sequence[str] = ()) -> Any:
        """Return a text, one of `allowed` where given."""
        value = self.raw(key, default)
        if value is default and default is not REQUIRED:
            return value
        if not isinstance(value, str) or (allowed and value not in allowed):
            choice = f"allowed are {', '.join(allowed)}" if allowed else "a text is needed"
            raise PlanError(f"found {_shown(value)}, {choice}", where=self.where(key), fix=self._set_hint(key))
        return value

    def table(self, key: str) -> dict[str, Any]:
        """Return an object; {} where missing."""
        value = self.raw(key, {})
        if not isinstance(value, Mapping):
            raise PlanError(
                f"found {_shown(value)}, an object is needed", where=self.where(key), fix=self._set_hint(key)
            )
        return dict(value)

    def per_layer(self, key: str, layers: int, allowed: Sequence[str]) -> list[str] | None:
        """Return a list with one of the allowed texts for each layer, or None where the key is missing."""
        value = self.raw(key, None)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != layers:
            size = f"{len(value)} entries" if isinstance(value, Sequence) else _shown(value)
            raise PlanError(
                f"found {size}, a list of {layers} is needed",
                where=self.where(key),
                fix="give one entry for each layer",
            )
        for index, entry in enumerate(value):
            if entry not in allowed:
                raise PlanError(
                    f"entry {index} is {_shown(entry)}, allowed are {', '.join(allowed)}",
                    where=self.where(key),
                    fix="the planner doesn't model other kinds of layer in this family",
                )
        return list(value)

    def heads(self, key: str, width: int) -> int:
        """Return a number of heads that divides a width."""
        heads: int = self.count(key)
        if width % heads:
            raise PlanError(
                f"found {heads}, which does not divide the width {width}",
                where=self.where(key),
                fix="allowed are its divisors",
            )
        return heads

    def ignore(self, *keys: str) -> None:
        """Note that this family knows these keys, and that they have no effect on it."""
        for key in keys:
            self.read |= {self.names.get(key, key), key}

    def unread(self) -> list[str]:
        """Return the keys that nothing read and that may have an effect.

        Raises:
            PlanError: one of them changes sizes in another family, and its value is not without effect.
        """
        left = [key for key in self.values if key not in self.read and not HARMLESS.fullmatch(key)]
        for key in left:
            known = VOCABULARY.get(key)
            value = self.values[key]
            if known and known.structural and value and value not in known.inert:
                raise PlanError(
                    f"found {_shown(value)}, but the family {self.family!r} doesn't read this key, and it changes sizes "
                    "in others",
                    where=f"{self.source}, {key}",
                    fix=f"remove it, or set it to null if it has no effect (--set {key}=null), or choose another family with --assume",
                )
        return [key for key in left if self.values[key] not in (None, False, [], {}, "")]

    def _set_hint(self, key: str) -> str:
        return f"correct the file, or use --set {self.spelling(key)}=VALUE"


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
