"""Which block format llama-quantize gives each tensor of a GGUF: src/llama-quant.cpp of llama.cpp, commit 007dbbf (2026).

Without an importance matrix, which would change a few tensors of q4_0 and q5_0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from planner.blocks import Leaf
from planner.model import Model, Place

ROLES = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "down_proj": "down"}
FUSED = frozenset({"gpt2", "falcon", "bloom", "mpt", "gpt_neox", "phi3", "gpt_bigcode", "dbrx", "chatglm"})
"""Families whose queries, keys and values are one tensor in a GGUF (attn_qkv), which is treated like values."""

ALONE = frozenset({"fp32", "fp16"})
"""Widths of tensors that it leaves alone: vectors, routers and tables of positions; relative biases and convolutions."""

FALLBACK = {"q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
"""What takes the place of blocks of 256 in rows that they don't divide."""


@dataclass(frozen=True, slots=True)
class File:
    """What llama-quantize's rules ask of a model: names are those of its source.

    Attributes:
        mixture: the file's type. falcon: the architecture. experts: n_expert. gqa: query heads per key-value head.
        seventy: LLM_TYPE_70B. tied: there is no output tensor. values, layers: tensors of attn_v kind, layers of the file.
    """

    mixture: str
    falcon: bool
    experts: int
    gqa: int
    seventy: bool
    tied: bool
    values: int
    layers: int


def file_of(model: Model, mixture: str) -> File:
    """Return what the rules ask of a model."""
    leaves = [(place.leaf, place.layers, place.owner) for place in model.places]
    first = {leaf.name: leaf.n_out for leaf, _, _ in reversed(leaves)}
    gqa = first.get("q_proj", 1) // first.get("k_proj", first.get("q_proj", 1))
    stack = model.stack("encoder") or model.stack("decoder") or model.stacks[0]
    layers = sum(run.count for run in stack.runs)
    return File(
        mixture,
        falcon=model.family == "falcon",
        experts=max((leaf.copies for leaf, _, _ in leaves if leaf.work == "experts"), default=1),
        gqa=gqa,
        seventy=model.family in {"llama", "qwen2"} and layers == 80 and gqa > 1,
        tied=not any(leaf.work == "head" and owner for leaf, _, owner in leaves),
        values=sum(layers for leaf, layers, _ in leaves if leaf.name == "v_proj"),
        layers=layers,
    )


def _block_size(name: str) -> int:
    """Return the elements of a block."""
    return 1 if name in ALONE else 256 if name.endswith("_k") else 32


def _block_name(file: File, role: str, index: int, row: int) -> str:
    """Return the block format of a tensor (llama_tensor_get_type_impl, then tensor_type_fallback).

    Args:
        file: the model and the mixture.
        role: of the tensor, a value of `ROLES`, "head", "table" or "other".
        index: how many of its role came before.
        row: elements of one of its rows.
    """
    mix = file.mixture
    base = name = mix[:4]
    layers = file.values if role == "v" else file.layers
    more = index < layers // 8 or index >= 7 * layers // 8 or (index - layers // 8) % 3 == 2
    eight = file.experts == 8
    if role == "head":
        name = "q8_0" if file.falcon or row % _block_size(base) or base == "q8_0" else "q6_k"
    elif role == "v":
        match mix:
            case "q2_k":
                name = "q4_k" if file.gqa >= 4 else "q3_k"
            case "q3_k_m":
                name = "q5_k" if index < 2 else "q4_k"
            case "q3_k_l":
                name = "q5_k"
            case "q4_k_m" | "q5_k_m" if more:
                name = "q6_k"
            case "q4_k_s" if index < 4:
                name = "q5_k"
        name = "q5_k" if file.seventy and name in {"q3_k", "q4_k"} else name
        name = "q8_0" if eight else name
    elif role == "k" and eight:
        name = "q8_0"
    elif role == "down":
        match mix:
            case "q2_k":
                name = "q3_k"
            case "q3_k_m":
                name = "q5_k" if index < layers // 16 else "q4_k" if more or not file.falcon else "q3_k"
            case "q3_k_l":
                name = "q4_k" if file.falcon else "q5_k"
            case "q4_k_m" if file.falcon:
                name = "q6_k" if index < layers // 16 else "q5_k" if more else "q4_k"
            case "q4_k_m" | "q5_k_m" if more:
                name = "q6_k"
            case "q4_k_s" if index < layers // 8 and not file.falcon:
                name = "q5_k"
    elif role == "o" and file.falcon:
        name = "q4_k" if mix == "q3_k_l" else name
    elif role == "o" and eight:
        name = "q5_k" if base in {"q2_k", "q3_k", "q4_k"} and mix != "q3_k_l" else name
    elif role == "o":
        name = {"q2_k": "q3_k", "q3_k_m": "q4_k", "q3_k_l": "q5_k"}.get(mix, name)
    if row % _block_size(name):
        name = FALLBACK.get(name, "fp16")
    return "fp16" if row % _block_size(name) else name


def _role(leaf: Leaf, family: str) -> str:
    """Return what llama-quantize takes a tensor for; a dtype's name where it leaves it alone."""
    if leaf.buffer or leaf.own_dtype or 1 in {leaf.n_in, leaf.n_out} or leaf.part in {"norm", "router"}:
        return "fp32"
    if leaf.part == "embedding":
        return "fp32" if re.search(r"position|type|wpe", leaf.name) else "table"
    if leaf.work == "head":
        return "head"
    if leaf.work not in {"linear", "experts"} and leaf.part != "head":
        return "fp16"
    role = ROLES.get(leaf.name.rpartition(".")[2], "other")
    return "v" if family in FUSED and role in {"q", "k"} else role


def choices(model: Model, mixture: str) -> Iterator[tuple[Place, Collection[int], str]]:
    """Yield places, which of their layers, and the format of their matrices; biases and vectors are fp32.

    Tensors count decoder first (T5), from an fp16 file. Latent attention's kv_b_proj is taken as one tensor, where
    today's converter splits it in two.
    """
    file = file_of(model, mixture)
    seen: Counter[str] = Counter()
    for place in sorted(model.places, key=lambda place: place.stack):
        leaf = place.leaf
        role = _role(leaf, model.family)
        if role in ALONE:
            yield place, range(place.first, place.first + place.layers), role
            continue
        row = leaf.n_out if role == "table" else leaf.n_in
        role = "head" if role == "table" and file.tied else role
        start = place.first if role == "down" and file.experts > 1 else seen[role]
        blocks: dict[str, list[int]] = {}
        for i in range(place.layers):
            blocks.setdefault(_block_name(file, role, start + i, row), []).append(place.first + i)
        if ROLES.get(leaf.name) == role:  # queries and keys of a fused tensor aren't counted
            seen[role] += place.layers
        yield from ((place, layers, name) for name, layers in blocks.items())
