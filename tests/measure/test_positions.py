# ruff: noqa: E402  (torch is looked for first)
"""Masks against a double loop over queries and keys, positions against their definitions and against transformers."""

from __future__ import annotations

from math import cos, log, sin
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the twin is a torch model")

from measure.positions import allowed_ts, relative_bias_hts, turned, waves_td
from planner.blocks import Attention, Rope, Sinusoids
from planner.masks import Mask
from planner.workload import Pass


def may_use(mask: Mask, query: int, key: int, prefix: int) -> bool:
    """Say whether a query may use a key, from the definitions of masks."""
    ahead = mask.causal and key > query and not (key < prefix and query < prefix)
    outside = mask.window is not None and abs(query - key) >= mask.window
    elsewhere = mask.chunk is not None and query // mask.chunk != key // mask.chunk
    return not (ahead or outside or elsewhere)


MASKS = [Mask(), Mask(window=3), Mask(chunk=4), Mask(causal=False), Mask(causal=False, window=3)]


@pytest.mark.parametrize("prefix", [0, 5])
@pytest.mark.parametrize("mask", MASKS, ids=["causal", "window", "chunk", "both ways", "around"])
def test_masks(mask: Mask, prefix: int) -> None:
    """Each entry is as defined, and their number is what the closed form counts."""
    prefix *= mask.causal
    allowed = allowed_ts(mask, torch.arange(10), torch.arange(10), prefix)
    assert allowed.tolist() == [[may_use(mask, q, k, prefix) for k in range(10)] for q in range(10)]
    assert int(allowed.sum()) == mask.pairs(Pass(1, 10, prefix=prefix))


def test_masks_of_later_queries() -> None:
    """A step on a cache that holds the last keys only."""
    assert allowed_ts(Mask(window=3), torch.tensor([9]), torch.arange(6, 10)).tolist() == [[False, True, True, True]]


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_scores_depend_on_distance_only(interleaved: bool) -> None:
    """Positions 7 and 4 score as 103 and 100; elements beyond the width stay."""
    rope = Rope(6, 100.0, interleaved=interleaved)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0))

    def score(query: int, key: int) -> float:
        return float((turned(q, rope, torch.tensor([query])) * turned(k, rope, torch.tensor([key]))).sum())

    assert score(7, 4) == pytest.approx(score(103, 100), abs=1e-4)
    assert score(7, 4) != pytest.approx(score(7, 5), abs=1e-4)
    assert torch.equal(turned(q, rope, torch.tensor([5]))[..., 6:], q[..., 6:])


def test_rotary_by_hand() -> None:
    """Two pairs at position 3: turned by 3 and by 3 / sqrt(base)."""
    out = turned(torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4), Rope(4, 100.0), torch.tensor([3]))
    a, b = 3.0, 0.3
    expected = [
        1 * cos(a) - 3 * sin(a), 2 * cos(b) - 4 * sin(b), 3 * cos(a) + 1 * sin(a), 4 * cos(b) + 2 * sin(b)
    ]  # fmt: skip
    assert out.flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("causal", [True, False])
def test_relative_buckets(causal: bool) -> None:
    """Small distances have buckets of their own, larger ones share them logarithmically, the rest the last one."""
    buckets, most = 16, 40
    block = Attention(8, 1, 1, 8, Mask(causal=causal), relative_distance=most)
    table = torch.arange(buckets, dtype=torch.float32)[:, None]  # a bucket's bias is its number
    bias = relative_bias_hts(table, block, torch.tensor([60]), torch.arange(121))[0, 0]
    half = buckets if causal else buckets // 2
    for key in range(121):
        distance = 60 - key if causal else abs(60 - key)
        distance = max(distance, 0)
        single = half // 2
        ranged = single + int(log(max(distance, 1) / single) / log(most / single) * (half - single))
        expected = distance if distance < single else min(ranged, half - 1)
        assert bias[key] == expected + (half if not causal and key > 60 else 0), key


@pytest.mark.parametrize("halves", [False, True])
def test_waves(halves: bool) -> None:
    """The paper's sinusoids (arXiv:1706.03762, 3.5), and tensor2tensor's, whose slowest wave is exactly 10,000."""
    rows = waves_td(Sinusoids(6, offset=2, halves=halves), torch.arange(4))
    slowest = 2 if halves else 3
    angles = [[(t + 2) * 10_000 ** (-i / slowest) for i in range(3)] for t in range(4)]
    pairs = [[(sin(a), cos(a)) for a in row] for row in angles]
    expected = [
        [s for s, _ in row] + [c for _, c in row] if halves else [x for pair in row for x in pair] for row in pairs
    ]
    assert torch.allclose(rows, torch.tensor(expected), atol=1e-6)


SCALINGS: list[dict[str, Any]] = [
    dict(rope_type="linear", factor=4.0),
    dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    ),
    dict(rope_type="yarn", factor=40.0, original_max_position_embeddings=4096, beta_fast=32, beta_slow=1),
    dict(rope_type="yarn", factor=40.0, original_max_position_embeddings=4096, mscale=0.707, mscale_all_dim=0.707),
    dict(rope_type="yarn", factor=40.0, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=0.5),
]


@pytest.mark.oracle
@pytest.mark.parametrize("scaling", SCALINGS, ids=[f"{s['rope_type']} {i}" for i, s in enumerate(SCALINGS)])
def test_scalings(scaling: dict[str, Any]) -> None:
    """Frequencies and factors are those of transformers, at real sizes."""
    transformers = pytest.importorskip("transformers", reason="judges the frequencies")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: PLC0415

    config = transformers.LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_theta=5e5,
        rope_scaling=dict(scaling),
    )
    inverse, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config)
    rope = Rope(128, 5e5, tuple(sorted(scaling.items())))
    ones = torch.ones(1, 1, 1, 128)
    for position in (1, 1000):
        angles = position * inverse
        expected = torch.cat((angles.cos() - angles.sin(), angles.cos() + angles.sin())) * factor
        assert torch.allclose(turned(ones, rope, torch.tensor([position])).flatten(), expected, atol=1e-4)
