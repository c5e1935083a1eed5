"""Which tensor of transformers' model is which tensor of the twin: rules by family, and a copy that leaves nothing over.

A rule is a pattern of the twin's tensor name, the name in transformers, and the part of that tensor that it is. Every
tensor of either model must be met exactly once, so that a copy that succeeds proves the leaves one by one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from measure.build import Place, Twin
from planner.blocks import Attention
from planner.engines import TRANSFORMERS
from planner.errors import PlanError

Take = Callable[[Tensor, Place], Tensor]
"""Returns the twin's tensor out of the other model's."""


class Rule(NamedTuple):
    """A pattern of the twin's names (without ".weight" or ".bias"), the other model's name, and what to take of it.

    In `name`, groups of the pattern stand as in `re.Match.expand`, `*` is every copy in turn (experts kept one by one),
    and a `!` at the end says that the name is complete (a bare parameter without ".weight").
    """

    pattern: str
    name: str
    take: Take


class Pair(NamedTuple):
    """A tensor of the twin, and the tensors of the other model whose parts it is."""

    name: str
    place: Place
    target: Tensor
    sources: tuple[str, ...]
    value: Tensor


# --- parts of tensors -------------------------------------------------------------------------------------------------


def all_of(tensor: Tensor, place: Place) -> Tensor:  # noqa: ARG001
    """Return the tensor as it is."""
    return tensor


def transposed(tensor: Tensor, place: Place) -> Tensor:  # noqa: ARG001
    """Return Conv1D's [in, out] as [out, in]."""
    return tensor.T if tensor.dim() == 2 else tensor


def flattened(tensor: Tensor, place: Place) -> Tensor:  # noqa: ARG001
    """Return a convolution's [out, in, kernel] as one matrix."""
    return tensor.flatten(1) if tensor.dim() > 1 else tensor


def only_row(tensor: Tensor, place: Place) -> Tensor:  # noqa: ARG001
    """Return BART's stored [1, v] as a vector."""
    return tensor[0]


def third(index: int) -> Take:
    """Return a taker of queries (0), keys (1) or values (2) out of GPT-2's fused Conv1D."""
    return lambda tensor, place: transposed(tensor.chunk(3, dim=-1)[index], place)


def half(index: int) -> Take:
    """Return a taker of gates (0) or ups (1) out of experts' fused [e, 2 f, d]."""
    return lambda tensor, place: tensor.chunk(2, dim=1)[index]  # noqa: ARG005


def falcon(which: str) -> Take:
    """Return a taker out of Falcon's fused projection: per key-value head its query heads, its key and its value."""

    def take(tensor: Tensor, place: Place) -> Tensor:
        block = place.block
        assert isinstance(block, Attention)
        grouped = tensor.unflatten(0, (block.kv_heads, block.heads // block.kv_heads + 2, block.head))
        part = {"q": grouped[:, :-2], "k": grouped[:, -2:-1], "v": grouped[:, -1:]}[which]
        return part.flatten(0, 2)

    return take


# --- rules ------------------------------------------------------------------------------------------------------------


def rules(*lines: tuple[str, str] | tuple[str, str, Take]) -> tuple[Rule, ...]:
    """Return rules; in patterns, L is a layer's path with its index as a group."""
    return tuple(
        Rule(line[0].replace("L.", r"\w+\.layers\.(\d+)\."), line[1], line[2] if len(line) > 2 else all_of)
        for line in lines
    )


LLAMA = rules(
    (r"decoder\.front\.embed_tokens", "model.embed_tokens"),
    (r"decoder\.back\.norm", "model.norm"),
    (r"decoder\.back\.lm_head", "lm_head"),
    (r"L.self_attn\.before\.norm", r"model.layers.\1.input_layernorm"),
    (r"L.self_attn\.after\.norm", r"model.layers.\1.post_attention_layernorm"),
    (r"L.mlp\.before\.norm", r"model.layers.\1.pre_feedforward_layernorm"),
    (r"L.mlp\.before\.norm", r"model.layers.\1.post_attention_layernorm"),
    (r"L.mlp\.after\.norm", r"model.layers.\1.post_feedforward_layernorm"),
    (r"L.self_attn\.(\w+)", r"model.layers.\1.self_attn.\2"),
    (r"L.mlp\.experts\.gate_proj", r"model.layers.\1.mlp.experts.gate_up_proj!", half(0)),
    (r"L.mlp\.experts\.up_proj", r"model.layers.\1.mlp.experts.gate_up_proj!", half(1)),
    (r"L.mlp\.experts\.down_proj", r"model.layers.\1.mlp.experts.down_proj!"),
    (r"L.mlp\.e_score_correction_bias", r"model.layers.\1.mlp.gate.e_score_correction_bias!"),
    (r"L.mlp\.(\w+)", r"model.layers.\1.mlp.\2"),
    (r"L.mlp\.shared_experts\.(\w+)", r"model.layers.\1.mlp.shared_experts.\2"),
)

GPT2 = rules(
    (r"decoder\.front\.embed_tokens", "transformer.wte"),
    (r"decoder\.front\.embed_tokens", "transformer.tokens_embed"),
    (r"decoder\.front\.wpe", "transformer.wpe"),
    (r"decoder\.front\.wpe", "transformer.positions_embed"),
    (r"decoder\.back\.norm", "transformer.ln_f"),
    (r"decoder\.back\.lm_head", "lm_head"),
    (r"L.self_attn\.(?:before|join)\.norm", r"transformer.h.\1.ln_1"),
    (r"L.mlp\.(?:before|join)\.norm", r"transformer.h.\1.ln_2"),
    (r"L.self_attn\.q_proj", r"transformer.h.\1.attn.c_attn", third(0)),
    (r"L.self_attn\.k_proj", r"transformer.h.\1.attn.c_attn", third(1)),
    (r"L.self_attn\.v_proj", r"transformer.h.\1.attn.c_attn", third(2)),
    (r"L.self_attn\.o_proj", r"transformer.h.\1.attn.c_proj", transposed),
    (r"L.mlp\.up_proj", r"transformer.h.\1.mlp.c_fc", transposed),
    (r"L.mlp\.down_proj", r"transformer.h.\1.mlp.c_proj", transposed),
)

FALCON = rules(
    (r"decoder\.front\.embed_tokens", "transformer.word_embeddings"),
    (r"decoder\.back\.norm", "transformer.ln_f"),
    (r"decoder\.back\.lm_head", "lm_head"),
    (r"L.before\.norm", r"transformer.h.\1.input_layernorm"),
    (r"L.self_attn\.before\.norm", r"transformer.h.\1.ln_attn"),
    (r"L.mlp\.before\.norm", r"transformer.h.\1.ln_mlp"),
    (r"L.self_attn\.before\.norm", r"transformer.h.\1.input_layernorm"),
    (r"L.mlp\.before\.norm", r"transformer.h.\1.post_attention_layernorm"),
    (r"L.self_attn\.q_proj", r"transformer.h.\1.self_attention.query_key_value", falcon("q")),
    (r"L.self_attn\.k_proj", r"transformer.h.\1.self_attention.query_key_value", falcon("k")),
    (r"L.self_attn\.v_proj", r"transformer.h.\1.self_attention.query_key_value", falcon("v")),
    (r"L.self_attn\.o_proj", r"transformer.h.\1.self_attention.dense"),
    (r"L.mlp\.up_proj", r"transformer.h.\1.mlp.dense_h_to_4h"),
    (r"L.mlp\.down_proj", r"transformer.h.\1.mlp.dense_4h_to_h"),
)


def bert(body: str) -> tuple[Rule, ...]:
    """Return the rules of BERT and its like, whose body has this name."""
    layer = rf"{body}.encoder.layer.\1."
    return rules(
        (r"encoder\.front\.(\w+_embeddings)", rf"{body}.embeddings.\1"),
        (r"encoder\.front\.norm", f"{body}.embeddings.LayerNorm"),
        (r"encoder\.back\.pooler\.dense", f"{body}.pooler"),
        (r"encoder\.back\.pooler\.dense", f"{body}.pooler.dense"),
        (r"encoder\.back\.transform\.dense", "cls.predictions.transform.dense"),
        (r"encoder\.back\.transform\.norm", "cls.predictions.transform.LayerNorm"),
        (r"encoder\.back\.lm_head", "cls.predictions.decoder"),
        (r"encoder\.back\.transform\.dense", "lm_head.dense"),
        (r"encoder\.back\.transform\.norm", "lm_head.layer_norm"),
        (r"encoder\.back\.lm_head", "lm_head.decoder"),
        (r"L.self_attn\.q_proj", rf"{layer}attention.self.query"),
        (r"L.self_attn\.k_proj", rf"{layer}attention.self.key"),
        (r"L.self_attn\.v_proj", rf"{layer}attention.self.value"),
        (r"L.self_attn\.(\w+_global)", rf"{layer}attention.self.\2"),
        (r"L.self_attn\.o_proj", rf"{layer}attention.output.dense"),
        (r"L.self_attn\.join\.norm", rf"{layer}attention.output.LayerNorm"),
        (r"L.mlp\.up_proj", rf"{layer}intermediate.dense"),
        (r"L.mlp\.down_proj", rf"{layer}output.dense"),
        (r"L.mlp\.join\.norm", rf"{layer}output.LayerNorm"),
    )


E, D = r"(encoder)\.layers\.(\d+)\.", r"(decoder)\.layers\.(\d+)\."
_SELF, _CROSS = r"\1.block.\2.layer.0.", r"\1.block.\2.layer.1."


def _t5_mlp(stack: str, index: int) -> Iterator[tuple[str, str]]:
    """Yield the rules of T5's feed-forward blocks, whose index differs between the stacks."""
    here = rf"\1.block.\2.layer.{index}."
    yield rf"{stack}mlp\.before\.norm", rf"{here}layer_norm"
    for module in ("DenseReluDense", "mlp"):
        yield rf"{stack}mlp\.gate_proj", rf"{here}{module}.wi_0"
        yield rf"{stack}mlp\.up_proj", rf"{here}{module}.wi_1"
        yield rf"{stack}mlp\.up_proj", rf"{here}{module}.wi"
        yield rf"{stack}mlp\.down_proj", rf"{here}{module}.wo"
    yield rf"{stack}mlp\.gate", rf"{here}mlp.router.classifier"
    yield rf"{stack}mlp\.experts\.up_proj", rf"{here}mlp.experts.expert_*.wi"
    yield rf"{stack}mlp\.experts\.down_proj", rf"{here}mlp.experts.expert_*.wo"


T5 = rules(
    (r"\w+\.front\.embed_tokens", "shared"),
    (r"(\w+)\.back\.norm", r"\1.final_layer_norm"),
    (r"decoder\.back\.lm_head", "lm_head"),
    (r"(\w+)\.layers\.(\d+)\.self_attn\.(q|k|v|o)_proj", rf"{_SELF}SelfAttention.\3"),
    (r"(\w+)\.layers\.(\d+)\.self_attn\.relative_attention_bias", rf"{_SELF}SelfAttention.relative_attention_bias"),
    (r"(\w+)\.layers\.(\d+)\.self_attn\.before\.norm", rf"{_SELF}layer_norm"),
    (r"(\w+)\.layers\.(\d+)\.encoder_attn\.(q|k|v|o)_proj", rf"{_CROSS}EncDecAttention.\3"),
    (r"(\w+)\.layers\.(\d+)\.encoder_attn\.before\.norm", rf"{_CROSS}layer_norm"),
    *_t5_mlp(E, 1),
    *_t5_mlp(D, 2),
)

_ANY = r"(\w+)\.layers\.(\d+)\."
_BART_LAYER = r"model.\1.layers.\2."
BART = rules(
    (r"\w+\.front\.embed_tokens", "model.shared"),
    (r"\w+\.front\.embed_tokens", "model.decoder.embed_tokens"),
    (r"(\w+)\.front\.embed_positions", r"model.\1.embed_positions"),
    (r"(\w+)\.front\.norm", r"model.\1.layernorm_embedding"),
    (r"(\w+)\.front\.(conv\d)", r"model.\1.\2", flattened),
    (r"(\w+)\.back\.norm", r"model.\1.layer_norm"),
    (r"decoder\.back\.lm_head", "lm_head"),
    (r"decoder\.back\.lm_head", "proj_out"),
    (r"decoder\.back\.final_logits_bias", "final_logits_bias!", only_row),
    (rf"{_ANY}self_attn\.([qkv])_proj", rf"{_BART_LAYER}self_attn.\3_proj"),
    (rf"{_ANY}self_attn\.o_proj", rf"{_BART_LAYER}self_attn.out_proj"),
    (rf"{_ANY}self_attn\.(?:before|join)\.norm", rf"{_BART_LAYER}self_attn_layer_norm"),
    *(
        line
        for cross in ("encoder_attn", "cross_attention")
        for line in (
            (rf"{_ANY}encoder_attn\.([qkv])_proj", rf"{_BART_LAYER}{cross}.\3_proj"),
            (rf"{_ANY}encoder_attn\.o_proj", rf"{_BART_LAYER}{cross}.out_proj"),
            (rf"{_ANY}encoder_attn\.(?:before|join)\.norm", rf"{_BART_LAYER}{cross}_layer_norm"),
        )
    ),
    (rf"{_ANY}mlp\.(?:before|join)\.norm", rf"{_BART_LAYER}final_layer_norm"),
    (rf"{_ANY}mlp\.(?:before|join)\.norm", rf"{_BART_LAYER}ff_layer_norm"),
    (rf"{_ANY}mlp\.gate", rf"{_BART_LAYER}ffn.router.classifier"),
    *(
        line
        for twin, own in (("up_proj", "fc1"), ("down_proj", "fc2"))
        for line in (
            (rf"{_ANY}mlp\.{twin}", rf"{_BART_LAYER}{own}"),
            (rf"{_ANY}mlp\.{twin}", rf"{_BART_LAYER}ffn.{own}"),
            (rf"{_ANY}mlp\.experts\.{twin}", rf"{_BART_LAYER}ffn.experts.expert_*.{own}"),
        )
    ),
)

LIKE_LLAMA = (
    "llama", "mistral", "mixtral", "qwen2", "gemma2", "gemma3_text", "deepseek_v2", "deepseek_v3", "arcee", "gemma", "olmo2",
    "olmo3", "olmoe", "qwen3", "qwen3_moe", "seed_oss",
)  # fmt: skip

RULES: dict[str, tuple[Rule, ...]] = {
    **dict.fromkeys(LIKE_LLAMA, LLAMA),
    **dict.fromkeys(("gpt2", "openai-gpt"), GPT2),
    "falcon": FALCON,
    "bert": bert("bert"),
    "big_bird": bert("bert"),
    "longformer": bert("longformer"),
    **dict.fromkeys(("t5", "mt5", "switch_transformers"), T5),
    **dict.fromkeys(("bart", "m2m_100", "nllb-moe", "whisper"), BART),
}
"""Of the families whose twins are known to compute what transformers does."""

TRIED = (LLAMA, GPT2, BART, T5, FALCON)
"""For other families: many follow one of these, and a pairing that leaves nothing over proves itself."""


# --- pairing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Found:
    """Tensors of the other model by name, tied ones under all their names, and buffers that are stored."""

    tensors: Mapping[str, Tensor]

    def take(
        self, rule: Rule, match: re.Match[str], ending: str, place: Place
    ) -> tuple[tuple[str, ...], Tensor] | None:
        """Return names and value that a rule gives, or None where the other model has no such tensor."""
        name = match.expand(rule.name)
        name = name[:-1] if name.endswith("!") else f"{name}.{ending}"
        if "*" not in name:
            return ((name,), rule.take(self.tensors[name], place)) if name in self.tensors else None
        names = tuple(name.replace("*", str(copy)) for copy in range(place.leaf.copies))
        if any(each not in self.tensors for each in names):
            return None
        return names, torch.stack([rule.take(self.tensors[each], place) for each in names])


def pairs(twin: Twin, other: nn.Module) -> list[Pair]:
    """Return every tensor of the twin with its counterpart in transformers' model of the same config.

    Raises:
        PlanError: a tensor of either has no counterpart, or another shape.
    """
    stored = set(other.state_dict())
    buffers = {name: buffer for name, buffer in other.named_buffers() if name in stored}
    tensors = {**dict(other.named_parameters(remove_duplicate=False)), **buffers}
    bare = {f"{other.base_model_prefix}.{name}": tensor for name, tensor in tensors.items()}  # as below a head's model
    found, family = _Found(bare | tensors), twin.description.family
    tried = (RULES[family],) if family in RULES else (*TRIED, bert(str(other.base_model_prefix)))
    for rules_of_a_family in tried[:-1]:
        with suppress(PlanError):
            return _paired(twin, found, rules_of_a_family)
    return _paired(twin, found, tried[-1])


def _paired(twin: Twin, found: _Found, family: tuple[Rule, ...]) -> list[Pair]:
    paired = [_pair(name, tensor, twin.places[name], found, family) for name, tensor in _tensors(twin)]
    _check_all_used(paired, found.tensors, untied=twin.description.engine != TRANSFORMERS)
    return paired


def _tensors(twin: Twin) -> Iterator[tuple[str, Tensor]]:
    yield from twin.named_parameters()
    yield from twin.named_buffers()


def _pair(name: str, target: Tensor, place: Place, found: _Found, family: tuple[Rule, ...]) -> Pair:
    path, _, ending = name.rpartition(".")
    for rule in family:
        match = re.fullmatch(rule.pattern, path)
        taken = match and found.take(rule, match, ending, place)
        if not taken:
            continue
        if taken[1].shape != target.shape:
            raise PlanError(
                f"{taken[0][0]} gives {tuple(taken[1].shape)}, the description says {tuple(target.shape)}", where=name
            )
        return Pair(name, place, target, *taken)
    raise PlanError("transformers' model has no such tensor", where=name, fix="add a rule to measure/weights.py")


def _check_all_used(paired: list[Pair], tensors: Mapping[str, Tensor], *, untied: bool) -> None:
    """Refuse tensors of the other model that the twin doesn't use exactly once, or twice where only that model ties them."""
    used: Counter[int] = Counter()
    for pair in paired:
        for source in pair.sources:
            used[id(tensors[source])] += pair.target.numel() // len(pair.sources)
    times = {name: used[id(tensor)] / tensor.numel() for name, tensor in tensors.items()}
    wrong = [name for name, count in times.items() if count not in ({1, 2} if untied else {1})]
    if wrong:
        raise PlanError(
            f"the description uses these tensors of transformers' model not exactly once: {', '.join(wrong[:5])}",
            where="leaves",
        )


def copy_weights(twin: Twin, other: nn.Module) -> list[Pair]:
    """Fill the twin with the tensors of transformers' model, and return the pairs."""
    paired = pairs(twin, other)
    with torch.no_grad():
        for pair in paired:
            pair.target.copy_(pair.value)
    return paired
