"""Recurrent mixers: whole values with their arithmetic, states, and sums over generated tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner import PlanError, plan
from planner.api import load
from planner.engines import IDEAL, TRANSFORMERS
from planner.recurrent import Convolve, DeltaRule, Mamba, Scan
from planner.workload import Pass

MAMBA = {
    "model_type": "mamba",
    "hidden_size": 8,
    "num_hidden_layers": 3,
    "vocab_size": 100,
    "state_size": 4,
    "dtype": "bfloat16",
}
JAMBA = {
    "model_type": "jamba", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8, "vocab_size": 1000,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 4, "mamba_d_state": 16, "mamba_d_conv": 4, "dtype": "bfloat16",
}  # fmt: skip
NEMOTRON = {
    "model_type": "nemotron_h", "hidden_size": 64, "vocab_size": 1000, "hybrid_override_pattern": "M-M*E", "intermediate_size": 96,
    "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 32, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48, "dtype": "bfloat16",
}  # fmt: skip
QWEN = {
    "model_type": "qwen3_next", "hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 1000, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "dtype": "bfloat16",
}  # fmt: skip
ZAMBA = {
    "model_type": "zamba2", "hidden_size": 64, "num_hidden_layers": 6, "vocab_size": 1000, "num_attention_heads": 4,
    "n_mamba_heads": 8, "mamba_d_state": 16, "num_mem_blocks": 1, "adapter_rank": 8, "dtype": "bfloat16",
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "hybrid", "mamba"],
}  # fmt: skip
HYBRIDS: dict[str, dict[str, Any]] = {
    "mamba": MAMBA,
    "jamba": JAMBA,
    "nemotron_h": NEMOTRON,
    "qwen3_next": QWEN,
    "zamba2": ZAMBA,
    "rwkv": {"model_type": "rwkv", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 1000},
    "minimax": {"model_type": "minimax", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2},
    "lfm2": {"model_type": "lfm2", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
             "num_key_value_heads": 2, "full_attn_idxs": [1]},
}  # fmt: skip


def test_mamba_layer() -> None:
    """One Mamba layer: D 8, I 16, S 4, T 4, R 1."""
    block = Mamba(width=8, inner=16, state=4, taps=4, rank=1)
    sizes = {leaf.name: leaf.elements for leaf in block.leaves()}
    assert sizes == {
        "in_proj": 8 * 32,
        "conv1d": 4 * 16 + 16,  # taps and a bias
        "x_proj": 16 * (1 + 2 * 4),
        "dt_proj": 1 * 16 + 16,
        "A_log": 16 * 4,
        "D": 16,
        "out_proj": 16 * 8,
    }
    assert [(cache.kind, cache.fixed) for cache in block.caches()] == [("state", 4 * 16), ("state", 16 * 4)]
    convolve, scan = block.cores()
    assert scan == Scan(elements=16 * 4, products=3, row=3 * 16 + 2 * 4)
    assert scan.flops(Pass(2, 10), IDEAL) == 6 * 16 * 4 * 2 * 10  # 6 I S a token
    assert convolve.flops(Pass(2, 10), IDEAL) == 2 * 4 * 16 * 2 * 10
    assert convolve.flops(Pass(2, 10), TRANSFORMERS, dense=True) == 2 * 4 * 16 * 2 * (10 + 3)


def test_mamba_plan() -> None:
    """Three Mamba layers under one table: parameters, states and a decode step of two sequences."""
    layer = 8 * 32 + (4 * 16 + 16) + 16 * 9 + (16 + 16) + 16 * 4 + 16 + 16 * 8  # as in test_mamba_layer
    found = plan(MAMBA, batch=2, prompt=10, generate=5)
    assert found.params["total"] == 100 * 8 + 3 * (layer + 8) + 8
    assert found.params["by_block"] == {"embedding": 800, "norm": 4 * 8, "head": 0, "recurrent": 3 * layer}
    assert found.cache["parts"] == {"self": 0, "cross": 0, "state": 2 * 3 * (4 * 16 + 16 * 4) * 4}  # fp32
    assert found.cache["bytes_per_token"] == 0
    assert found.flops["decode"]["by_op"] == {
        "linear": 2 * 2 * 3 * (8 * 32 + 16 * 9 + 16 + 16 * 8),
        "conv": 2 * 2 * 3 * 4 * 16,
        "scan": 2 * 3 * 6 * 16 * 4,
        "head": 2 * 2 * 100 * 8,
    }


def test_delta_layer() -> None:
    """One gated delta layer: queries and keys of 2 heads of 8, values of 4 heads of 16."""
    block = DeltaRule(64, 2, 4, 8, 16, 4, "qkvz", norm="norm", out="out_proj")
    q, v = 2 * 8, 4 * 16
    sizes = {leaf.name: leaf.elements for leaf in block.leaves()}
    assert sizes == {
        "in_proj_qkvz": 64 * (2 * q + 2 * v),
        "in_proj_ba": 64 * 8,
        "conv1d": 4 * (2 * q + v),
        "dt_bias": 4,
        "A_log": 4,
        "norm": 16,
        "out_proj": v * 64,
    }
    assert [cache.fixed for cache in block.caches()] == [4 * (2 * q + v), 4 * 8 * 16]
    _, scan = block.cores()
    assert scan.flops(Pass(1, 7), IDEAL) == 2 * 4 * (4 * 8 * 16) * 7  # read, remove and write, decay, read
    assert sum(leaf.elements for leaf in DeltaRule(64, 2, 4, 8, 16, 4, "qkv").leaves()) == sum(sizes.values())


def test_channel_delta_layer() -> None:
    """Kimi Delta Attention: every channel of a key decays at its own rate, decay and gate go over one head's width."""
    block = DeltaRule(64, 4, 4, 16, 16, 4, channel_decay=True, rank=16, scope="forget_gate.")
    sizes = {leaf.name: leaf.elements for leaf in block.leaves()}
    assert sizes["forget_gate.f_a_proj"] == sizes["g_a_proj"] == 64 * 16
    assert sizes["forget_gate.f_b_proj"] == sizes["g_b_proj"] == 16 * 64
    assert sizes["forget_gate.dt_bias"] == 64
    assert sizes["forget_gate.A_log"] == 4


def test_jamba_states() -> None:
    """Jamba: 7 of 8 layers hold a state of fp32, the fifth keys and values of bf16."""
    found = plan(JAMBA, batch=3, prompt=10, generate=6)
    state = 4 * 128 + 128 * 16  # the last 4 rows of the convolution, and 16 states of each channel
    rows = 2 * 2 * 16 * 16
    assert found.cache["layers"] == [3 * (4 * state if i != 4 else 2 * rows) for i in range(8)]
    assert found.cache["parts"] == {"self": 3 * 2 * rows, "cross": 0, "state": 3 * 7 * 4 * state}
    assert found.cache["bytes_per_token"] == 2 * 2 * 2 * 16
    assert plan(JAMBA, state_dtype="bf16").cache["parts"]["state"] == 7 * 2 * state


def test_nemotron_layers() -> None:
    """Nemotron-H: one block a layer, as its pattern says, and the states of the two mixers."""
    found = plan(NEMOTRON, batch=1, prompt=4, generate=0)
    inner, channels = 8 * 16, 8 * 16 + 2 * 2 * 32
    mixer = 64 * (inner + channels + 8) + 5 * channels + 3 * 8 + inner + inner * 64  # taps 4 and a bias
    attention = 64 * 64 + 2 * 64 * 32 + 64 * 64
    experts = 64 * 4 + 4 * 2 * 64 * 32 + 2 * 64 * 48
    blocks = (mixer, 2 * 64 * 96, mixer, attention, experts)
    assert found.params["stacks"]["decoder"]["layers"] == [block + 64 for block in blocks]
    state = 4 * channels + inner * 32
    assert found.cache["layers"] == [4 * state, 4 * state, 2 * 4 * 2 * 32]
    listed = {**NEMOTRON, "layers_block_type": ["mamba", "mlp", "mamba", "attention", "moe"]}
    del listed["hybrid_override_pattern"]
    assert plan(listed, batch=1, prompt=4, generate=0).params == found.params


def test_nemotron_latents() -> None:
    """Routed experts on latents of 16: projected down and up outside of them."""
    base, latent = plan(NEMOTRON).params, plan({**NEMOTRON, "moe_latent_size": 16}).params
    assert latent["by_block"]["other"] == 2 * 64 * 16
    assert base["by_block"]["routed_experts"] - latent["by_block"]["routed_experts"] == 4 * 2 * (64 - 16) * 32


def test_shared_transformer() -> None:
    """Zamba 2: one block stored, run by three layers, each with an adapter and a projection of its own."""
    found = plan(ZAMBA, batch=1, prompt=1, generate=0)
    heads = 4 * 64 * 128 * 2 - 64 * 128  # queries, keys, values [128, 128], output [128, 64]
    shared = 128 + 64 + heads + 3 * 64 * 256 + 3 * (64 * 8 + 8 * 512)  # norms, attention, feed-forward block, adapters
    layers = found.params["stacks"]["decoder"]["layers"]
    plain = layers[0]
    assert layers == [plain, plain + shared + 64 * 64, plain, plain + 64 * 64, plain + 64 * 64, plain]
    run = found.flops["prefill"]["by_op"]["linear"] - 6 * 2 * (64 * (128 + 160 + 8) + 128 * 64)
    assert run == 3 * 2 * (heads + 3 * 64 * 256 + (64 * 8 + 8 * 512) + 64 * 64)
    assert len(found.cache["layers"]) == 6
    assert found.cache["parts"]["self"] == 3 * 2 * 2 * 4 * 32


@pytest.mark.parametrize("engine", ["ideal", "transformers"])
@pytest.mark.parametrize("name", HYBRIDS)
def test_generation_is_its_steps(name: str, engine: str) -> None:
    """With a cache and without: closed forms equal a loop over steps."""
    model = load(HYBRIDS[name], engine=engine)
    found = plan(model, batch=3, prompt=9, generate=7).generation
    stack = model.stack("decoder")
    assert stack is not None
    assert found is not None
    steps = [Pass(3, 1, 9 + i, "decode") for i in range(7)]
    passes = [Pass(3, 9 + i) for i in range(1, 8)]
    assert found["cached"]["flops"] == sum(sum(stack.flops(p, model.engine).values()) for p in steps)
    assert found["uncached"]["flops"] == sum(sum(stack.flops(p, model.engine).values()) for p in passes)


@pytest.mark.parametrize("name", HYBRIDS)
def test_scans_are_linear_in_tokens(name: str) -> None:
    """A scan's FLOPs are those of its tokens, in any phase, dense or not; arrays are as good as ints."""
    stack = load(HYBRIDS[name]).stack("decoder")
    assert stack is not None
    for core in stack.cores:
        if isinstance(core, Scan | Convolve):
            one = core.flops(Pass(1, 1), IDEAL)
            assert core.flops(Pass(4, 25), IDEAL, dense=True) == 100 * one
            assert core.flops(Pass(4, 5, 20, "decode"), IDEAL) == 20 * one
            assert core.flops(Pass(2, 3, 4, "recompute"), IDEAL) == 2 * (5 + 6 + 7) * one
            batches = np.array([1, 2, 3])
            assert (core.flops(Pass(batches, 4), IDEAL) == 4 * one * batches).all()


def test_config_says_state_dtype() -> None:
    """`mamba_ssm_dtype` sets the width of states; the option has the last word."""
    given = {**MAMBA, "mamba_ssm_dtype": "bfloat16"}
    assert plan(given).precision["state"] == "bf16"
    assert plan(given, state_dtype="fp32").precision["state"] == "fp32"
    assert plan(MAMBA).precision["state"] == "fp32"
    state = 3 * (4 * 16 + 16 * 4)
    moved = [plan(config, prompt=5, generate=1).traffic["decode"]["cache_bytes"] for config in (given, MAMBA)]
    assert moved == [2 * state * 2, 2 * state * 4]  # read and written


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({**NEMOTRON, "hybrid_override_pattern": "MX"}, "hybrid_override_pattern"),
        ({**NEMOTRON, "num_hidden_layers": 9}, "hybrid_override_pattern"),
        ({**ZAMBA, "layers_block_type": None}, "layers_block_type"),
        ({**HYBRIDS["minimax"], "layer_types": ["conv"] * 4}, "layer_types"),
        ({**QWEN, "linear_num_value_heads": 3}, "linear_num_value_heads"),
        ({"model_type": "mamba2", "hidden_size": 64, "num_heads": 8, "head_dim": 8}, "head_dim"),
        ({"model_type": "xlstm", "embedding_dim": 32, "hidden_size": 64}, "embedding_dim"),
    ],
)
def test_refused(config: dict[str, Any], field: str) -> None:
    """What doesn't fit together is refused, with the field."""
    with pytest.raises(PlanError, match=field):
        plan(config)
