"""Where tokens stand: which keys a query may use, and how positions enter queries, keys, scores and rows.

Letters: t new tokens (queries), s keys, k head width, h heads, d model width.
"""

from __future__ import annotations

from math import ceil, floor, log, pi

import torch
from torch import Tensor

from planner.blocks import Attention, Rope, Sinusoids
from planner.errors import PlanError
from planner.masks import Mask


def allowed_ts(mask: Mask, queries_t: Tensor, keys_s: Tensor, prefix: int = 0) -> Tensor:
    """Return which keys each query may use, as booleans; queries and keys are positions."""
    if mask.block is not None and len(keys_s) > (5 + 2 * mask.random_blocks) * mask.block:
        raise PlanError(
            f"found {len(keys_s)} tokens; the twin runs blocks of keys only where they cover all pairs, up to "
            f"{(5 + 2 * mask.random_blocks) * mask.block}",
            where="Mask.block",
            fix="use fewer tokens",
        )
    query, key = queries_t[:, None], keys_s[None, :]
    allowed = (
        (key <= query) | ((key < prefix) & (query < prefix)) if mask.causal else torch.ones_like(key - query).bool()
    )
    if mask.window is not None:
        allowed = allowed & ((query - key).abs() < mask.window)
    if mask.chunk is not None:
        allowed = allowed & (query // mask.chunk == key // mask.chunk)
    return allowed


def turned(x_bhtk: Tensor, rope: Rope, positions_t: Tensor) -> Tensor:
    """Return heads with their first `rope.width` elements turned by their positions."""
    frequencies, factor = _frequencies(rope, x_bhtk.device)
    angles = positions_t.float()[:, None] * frequencies
    cos, sin = (angles.cos() * factor).to(x_bhtk.dtype), (angles.sin() * factor).to(x_bhtk.dtype)
    turning, rest = x_bhtk[..., : rope.width], x_bhtk[..., rope.width :]
    a, b = (turning[..., 0::2], turning[..., 1::2]) if rope.interleaved else turning.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


def _frequencies(rope: Rope, device: torch.device) -> tuple[Tensor, float]:
    """Return the turn per position of each pair of elements, and what cosines and sines are multiplied with."""
    given = {key: value for key, value in rope.scaling if value is not None}
    kind = str(given.get("rope_type") or given.get("type") or "default")
    exponents = torch.arange(0, rope.width, 2, dtype=torch.float32, device=device) / rope.width
    plain = 1.0 / rope.theta**exponents
    numbers = {key: _number(value) for key, value in given.items()}
    match kind:
        case "default":
            return plain, 1.0
        case "linear":
            return plain / numbers["factor"], 1.0
        case "llama3":
            return _llama3(plain, numbers), 1.0
        case "yarn":
            return _yarn(plain, rope, numbers)
    raise PlanError(
        f"the twin has no rotary scaling {kind!r}", where="Rope.scaling", fix="set rope_scaling to null to run it"
    )


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return 0.0


def _llama3(plain: Tensor, n: dict[str, float]) -> Tensor:
    """Return Llama 3.1's frequencies: long waves stretched by `factor`, short ones kept, those between blended."""
    turns = n["original_max_position_embeddings"] * plain / (2 * pi)  # of the original context
    blend = ((turns - n["low_freq_factor"]) / (n["high_freq_factor"] - n["low_freq_factor"])).clamp(0, 1)
    return (1 - blend) * plain / n["factor"] + blend * plain


def _yarn(plain: Tensor, rope: Rope, n: dict[str, float]) -> tuple[Tensor, float]:
    """Return YaRN's frequencies and attention factor (arXiv:2309.00071, section 3)."""
    original, factor = n["original_max_position_embeddings"], n["factor"]

    def pair(turns: float) -> float:
        return rope.width * log(original / (turns * 2 * pi)) / (2 * log(rope.theta))

    low = max(floor(pair(n.get("beta_fast") or 32)), 0)
    high = min(ceil(pair(n.get("beta_slow") or 1)), rope.width - 1)
    pairs = torch.arange(rope.width // 2, dtype=torch.float32, device=plain.device)
    stretch = ((pairs - low) / (high - low if high > low else 0.001)).clamp(0, 1)

    def scale(depth: float) -> float:
        return 0.1 * depth * log(factor) + 1.0 if factor > 1 else 1.0

    both = n.get("mscale") and n.get("mscale_all_dim")
    default = scale(n["mscale"]) / scale(n["mscale_all_dim"]) if both else scale(1.0)
    return plain * (1 - stretch) + plain / factor * stretch, n.get("attention_factor") or default


def relative_bias_hts(table_bh: Tensor, block: Attention, queries_t: Tensor, keys_s: Tensor) -> Tensor:
    """Return T5's biases of scores; half the buckets are single distances, half are ranges that grow (arXiv:1910.10683)."""
    ahead = keys_s[None, :] - queries_t[:, None]
    buckets, both_ways = len(table_bh), not block.mask.causal
    if both_ways:
        buckets //= 2
    single = buckets // 2
    distance = ahead.abs() if both_ways else (-ahead).clamp(min=0)
    spread = (distance.clamp(min=1).float() / single).log() / log(block.relative_distance / single) * (buckets - single)
    ranged = (single + spread.long()).clamp(max=buckets - 1)
    bucket = torch.where(distance < single, distance, ranged) + (ahead > 0) * buckets * both_ways
    return table_bh[bucket].permute(2, 0, 1)


def waves_td(block: Sinusoids, positions_t: Tensor) -> Tensor:
    """Return the sinusoids of positions."""
    half = block.width // 2
    index = torch.arange(half, dtype=torch.float32, device=positions_t.device)
    slowest = half - 1 if block.halves else half  # tensor2tensor reaches 1/10,000 in the last pair, the paper just not
    angles = (positions_t + block.offset).float()[:, None] * (-log(10_000) / slowest * index).exp()
    pair = torch.stack((angles.sin(), angles.cos()))
    return torch.cat(tuple(pair), dim=-1) if block.halves else pair.permute(1, 2, 0).flatten(1)
