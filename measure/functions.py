"""What each block computes, as a function of its tensors and the rows that enter: one entry of COMPUTE a block type.

Attention is plain matrix products and a softmax, and routed experts are gathered for each token, so that
`torch.utils.flop_counter` sees exactly the work that the description lists, on any device.

Letters: b sequences, t new tokens, s keys, d model width, h heads, n key-value heads, k head width, r latent width,
e experts, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from measure.positions import allowed_ts, relative_bias_hts, turned, waves_td
from planner.blocks import (
    Attention,
    AudioFrontEnd,
    Block,
    Cache,
    FeedForward,
    Head,
    LatentAttention,
    MixtureOfExperts,
    Norm,
    Pooler,
    Sinusoids,
    Table,
)
from planner.engines import Engine
from planner.errors import PlanError

Tensors = Mapping[str, nn.Module]
"""Of a block: a module with `weight` and `bias` (or None) by leaf name."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": f.silu,
    "swish": f.silu,
    "gelu": f.gelu,
    "gelu_new": partial(f.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(f.gelu, approximate="tanh"),
    "gelu_fast": partial(f.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": f.relu,
    "relu2": lambda x: f.relu(x).square(),
    "tanh": torch.tanh,
}

GATHERED_ELEMENTS = 2**28
"""Most elements of expert weights that are copied at a time (1 GiB of float32)."""


class Slot(NamedTuple):
    """What one layer keeps of all sequences: keys and values [b, n, s, k], or latents and rotary keys [b, s, r]."""

    kind: Literal["self", "cross", "state"]
    tensors: tuple[Tensor, ...]


class Scored(NamedTuple):
    """One attention as it ran: FLOPs of the full rectangle, and of the pairs that its mask allowed."""

    dense_flops: int
    exact_flops: int


@dataclass
class Walk:
    """One pass through one stack: what its blocks share.

    Attributes:
        inputs: token ids [b, t], or audio features [b, bands, 2 t].
        past: tokens before the first new one. prefix: first tokens that see each other both ways.
        engine: whose rules caches follow.
        memory_bsd: the encoder's output.
        recalled: slots that the pass before kept, in order. kept: what this pass keeps.
        last_only: the head runs on the last position only.
        relative: the attention that stores this stack's relative biases, and its table.
        scored: filled with every attention, where asked for.
        pooled_bd: the pooler's output.
    """

    inputs: Tensor
    engine: Engine
    past: int = 0
    prefix: int = 0
    memory_bsd: Tensor | None = None
    recalled: Iterator[Slot] = field(default_factory=lambda: iter(()))
    kept: list[Slot] = field(default_factory=list)
    last_only: bool = False
    relative: tuple[Attention, Tensor] | None = None
    scored: list[Scored] | None = None
    pooled_bd: Tensor | None = None

    def positions_t(self, new: int) -> Tensor:
        """Return the positions of the new tokens."""
        return torch.arange(self.past, self.past + new, device=self.inputs.device)

    def keys_s(self, total: int, rows: int) -> Tensor:
        """Return the positions of the last `rows` of `total` tokens."""
        return torch.arange(total - rows, total, device=self.inputs.device)

    def extend(self, cache: Cache | None, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return what was kept and the new rows, along the last axis but one; keep as many as the engine does."""
        if cache is None:
            return parts
        old = next(self.recalled, None)
        if old is not None:
            parts = tuple(torch.cat(both, dim=-2) for both in zip(old.tensors, parts, strict=True))
        rows, limit = parts[0].shape[-2], cache.window or cache.chunk
        drop = 0 if limit is None else max(0, rows - (limit - self.engine.window_margin))
        self.kept.append(Slot(cache.kind, tuple(part[..., drop:, :].clone() for part in parts)))
        return parts


def project(w: nn.Module, x: Tensor) -> Tensor:
    """Return rows times a stored matrix, plus its bias."""
    return f.linear(x, w.weight, w.bias)


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return an activation by its name in configs."""
    if name not in ACTIVATIONS:
        raise PlanError(f"the twin has no activation {name!r}; known: {', '.join(ACTIVATIONS)}", where="activation")
    return ACTIVATIONS[name]


# --- norms ------------------------------------------------------------------------------------------------------------


def normed(block: Norm, w: nn.Module | None, x: Tensor) -> Tensor:
    """Return rows of unit size, scaled where there are weights."""
    scale = None if w is None else w.weight + 1 if block.unit_offset else w.weight
    if block.kind == "layer":
        return f.layer_norm(x, x.shape[-1:], scale, None if w is None else w.bias, block.epsilon)
    wide = x.float()
    unit = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + block.epsilon)).to(x.dtype)
    return unit if scale is None else unit * scale


def norm(block: Norm, w: Tensors, x_btd: Tensor, walk: Walk) -> Tensor:  # noqa: ARG001
    """Return normed rows."""
    return normed(block, w.get(block.name), x_btd)


# --- attention --------------------------------------------------------------------------------------------------------


def split(x_bte: Tensor, heads: int) -> Tensor:
    """Return rows as heads [b, h, t, k]."""
    return x_bte.unflatten(-1, (heads, -1)).transpose(1, 2)


def attend(
    q_bhtk: Tensor,
    k_bnsk: Tensor,
    v_bnsv: Tensor,
    walk: Walk,
    *,
    scale: float,
    allowed: Tensor | None = None,
    bias_hts: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Return softmax(q k^T) v, heads joined again [b, t, h v]; key-value heads are repeated to the query heads."""
    heads, times = q_bhtk.shape[1], q_bhtk.shape[1] // k_bnsk.shape[1]
    k_bhsk, v_bhsv = (x.repeat_interleave(times, dim=1) if times > 1 else x for x in (k_bnsk, v_bnsv))
    scores = torch.matmul(q_bhtk, k_bhsk.transpose(-1, -2)) * scale
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    if bias_hts is not None:
        scores = scores + bias_hts
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    mixed_bhtv = torch.matmul(scores.softmax(-1, dtype=torch.float32).to(v_bhsv.dtype), v_bhsv)
    if walk.scored is not None:
        per_pair = 2 * len(q_bhtk) * heads * (q_bhtk.shape[-1] + v_bhsv.shape[-1])
        pairs = scores.shape[-1] * scores.shape[-2]
        walk.scored.append(Scored(per_pair * pairs, per_pair * (pairs if allowed is None else int(allowed.sum()))))
    return mixed_bhtv.transpose(1, 2).flatten(2)


def attention(block: Attention, w: Tensors, x_btd: Tensor, walk: Walk) -> Tensor:
    """Return multi-head attention, to the stack's own tokens or to the encoder's."""
    q_bhtk = split(project(w["q_proj"], x_btd), block.heads)
    scale = block.head**-0.5 if block.scale is None else block.scale
    if block.cross:
        k_bnsk, v_bnsv = _from_memory(block, w, walk)
        mixed = attend(q_bhtk, k_bnsk, v_bnsv, walk, scale=scale, softcap=block.softcap)
        return project(w["o_proj"], mixed)
    new = x_btd.shape[1]
    k_bnsk, v_bnsv = (split(project(w[name], x_btd), block.kv_heads) for name in ("k_proj", "v_proj"))
    q_bhtk, k_bnsk = _normed_heads(block, w, q_bhtk, k_bnsk)
    if block.rope is not None:
        q_bhtk, k_bnsk = (turned(x, block.rope, walk.positions_t(new)) for x in (q_bhtk, k_bnsk))
    held = (block.cached_heads or block.kv_heads) // block.kv_heads
    pair = tuple(x.repeat_interleave(held, dim=1) if held > 1 else x for x in (k_bnsk, v_bnsv))
    k_bnsk, v_bnsv = walk.extend(next(iter(block.caches()), None), pair)
    queries_t, keys_s = walk.positions_t(new), walk.keys_s(walk.past + new, k_bnsk.shape[2])
    if block.relative_buckets:
        walk.relative = (block, w["relative_attention_bias"].weight)
    mixed = attend(
        q_bhtk,
        k_bnsk,
        v_bnsv,
        walk,
        scale=scale,
        allowed=allowed_ts(block.mask, queries_t, keys_s, walk.prefix),
        bias_hts=relative_bias_hts(walk.relative[1], walk.relative[0], queries_t, keys_s) if walk.relative else None,
        softcap=block.softcap,
    )
    return project(w["o_proj"], mixed)


def _from_memory(block: Attention, w: Tensors, walk: Walk) -> tuple[Tensor, ...]:
    """Return keys and values of the encoder's output, projected once and then kept."""
    slot = next(walk.recalled, None)
    if slot is None:
        if walk.memory_bsd is None:
            raise PlanError("cross-attention needs an encoder's output: pass source or memory", where=block.name)
        memory = walk.memory_bsd
        slot = Slot("cross", tuple(split(project(w[n], memory), block.kv_heads) for n in ("k_proj", "v_proj")))
    walk.kept.append(slot)
    return slot.tensors


def _normed_heads(block: Attention, w: Tensors, q_bhtk: Tensor, k_bntk: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys, normed over a head or over all heads where the block says so."""
    if block.qk_norm is None:
        return q_bhtk, k_bntk
    pair = ((w.get("q_norm"), q_bhtk), (w.get("k_norm"), k_bntk))
    if block.qk_norm.width != block.heads * block.head:
        q, k = (normed(block.qk_norm, tensors, x) for tensors, x in pair)
        return q, k
    q, k = (split(normed(block.qk_norm, tensors, x.transpose(1, 2).flatten(2)), x.shape[1]) for tensors, x in pair)
    return q, k


def latent_attention(block: LatentAttention, w: Tensors, x_btd: Tensor, walk: Walk) -> Tensor:
    """Return multi-head latent attention: on expanded keys and values, or on the latents where the engine absorbs."""
    new, rms = x_btd.shape[1], Norm(block.kv_rank, epsilon=block.epsilon)
    positions, turning = walk.positions_t(new), block.rope_positions
    queries = split(_latent_queries(block, w, x_btd), block.heads)
    q_nope, q_rope = queries.split([block.nope, block.rope], dim=-1)
    latent_bsr, key_bsk = project(w["kv_a_proj_with_mqa"], x_btd).split([block.kv_rank, block.rope], dim=-1)
    latent_bsr = normed(rms, w["kv_a_layernorm"], latent_bsr)
    if turning is not None:
        q_rope = turned(q_rope, turning, positions)
        key_bsk = turned(key_bsk.unsqueeze(1), turning, positions).squeeze(1)
    latent_bsr, key_bsk = walk.extend(block.caches()[0], (latent_bsr, key_bsk))
    scale = (block.nope + block.rope) ** -0.5 if block.scale is None else block.scale
    keys_s = walk.keys_s(walk.past + new, latent_bsr.shape[1])
    scoring: dict[str, Any] = dict(scale=scale, allowed=allowed_ts(block.mask, positions, keys_s, walk.prefix))
    up_hrk = w["kv_b_proj"].weight.unflatten(0, (block.heads, block.nope + block.value))
    if walk.past and walk.engine.absorbs_latents:
        key_up, value_up = up_hrk.split([block.nope, block.value], dim=1)
        q_bhtr = torch.cat((torch.matmul(q_nope, key_up), q_rope), dim=-1)
        k_b1sr = torch.cat((latent_bsr, key_bsk), dim=-1).unsqueeze(1)
        mixed = split(attend(q_bhtr, k_b1sr, latent_bsr.unsqueeze(1), walk, **scoring), block.heads)
        return project(w["o_proj"], torch.matmul(mixed, value_up.transpose(1, 2)).transpose(1, 2).flatten(2))
    up = split(project(w["kv_b_proj"], latent_bsr), block.heads)
    k_nope, v_bhsv = up.split([block.nope, block.value], dim=-1)
    k_bhsk = torch.cat((k_nope, key_bsk.unsqueeze(1).expand(-1, block.heads, -1, -1)), dim=-1)
    mixed = attend(torch.cat((q_nope, q_rope), dim=-1), k_bhsk, v_bhsv, walk, **scoring)
    return project(w["o_proj"], mixed)


def _latent_queries(block: LatentAttention, w: Tensors, x_btd: Tensor) -> Tensor:
    """Return queries of all heads, straight or through their own latent."""
    if block.q_rank is None:
        return project(w["q_proj"], x_btd)
    latent = normed(Norm(block.q_rank, epsilon=block.epsilon), w["q_a_layernorm"], project(w["q_a_proj"], x_btd))
    return project(w["q_b_proj"], latent)


# --- feed-forward -----------------------------------------------------------------------------------------------------


def feed_forward(block: FeedForward, w: Tensors, x_btd: Tensor, walk: Walk) -> Tensor:  # noqa: ARG001
    """Return two matrices around an activation, three where gated."""
    return _gated(w, x_btd, activation(block.activation), gated=block.gated)


def _gated(w: Tensors, x: Tensor, act: Callable[[Tensor], Tensor], *, gated: bool) -> Tensor:
    up = project(w["up_proj"], x)
    return project(w["down_proj"], act(project(w["gate_proj"], x)) * up if gated else act(up))


def mixture(block: MixtureOfExperts, w: Tensors, x_btd: Tensor, walk: Walk) -> Tensor:  # noqa: ARG001
    """Return the weighted sum of each token's own experts, and the shared expert; no token is dropped."""
    rows_bd = x_btd.flatten(0, 1)
    weights_bk, chosen_bk = routed(block, w, rows_bd)
    act = activation(block.activation)
    mixed_bd = _experts(block, w, rows_bd, weights_bk, chosen_bk, act)
    if block.shared:
        own = {name.removeprefix(f"{block.shared_name}."): tensors for name, tensors in w.items()}
        shared = _gated(own, rows_bd, act, gated=block.gated)
        mixed_bd = mixed_bd + (
            project(w["shared_expert_gate"], rows_bd).sigmoid() * shared if block.shared_gate else shared
        )
    return mixed_bd.view_as(x_btd)


def routed(block: MixtureOfExperts, w: Tensors, rows_bd: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights and the indices of each row's experts [b, top_k]."""
    router = w[block.router]
    scores = f.linear(rows_bd.float(), router.weight.float(), None if router.bias is None else router.bias.float())
    if block.scoring not in {"softmax", "softmax_top_k", "sigmoid"}:
        raise PlanError(f"the twin has no scores of the kind {block.scoring!r}", where="MixtureOfExperts.scoring")
    if block.scoring == "softmax":
        scores = scores.softmax(-1)
    elif block.scoring == "sigmoid":
        scores = scores.sigmoid()
    choice = scores + w["e_score_correction_bias"].weight if block.correction_bias else scores
    chosen = _of_best_groups(block, choice).topk(block.top_k, dim=-1).indices
    weights = scores.gather(-1, chosen)
    if block.scoring == "softmax_top_k":
        weights = weights.softmax(-1)
    if block.normalized:
        weights = weights / weights.sum(-1, keepdim=True)
    return (weights * block.weight_scale).to(rows_bd.dtype), chosen


def _of_best_groups(block: MixtureOfExperts, choice_be: Tensor) -> Tensor:
    """Rule out experts outside the best groups: by their best (softmax) or their two best (sigmoid) experts."""
    if block.groups == 1:
        return choice_be
    grouped = choice_be.unflatten(-1, (block.groups, -1))
    best = grouped.topk(2 if block.scoring == "sigmoid" else 1, dim=-1).values.sum(-1)
    kept = torch.zeros_like(best).scatter(-1, best.topk(block.top_groups, dim=-1).indices, 1.0).bool()
    return grouped.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(-2)


def _experts(
    block: MixtureOfExperts,
    w: Tensors,
    rows_bd: Tensor,
    weights_bk: Tensor,
    chosen_bk: Tensor,
    act: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return the weighted sum over each row's experts, gathering their weights for as many visits as there is room."""
    visitors = rows_bd.repeat_interleave(block.top_k, dim=0).unsqueeze(1)
    room = max(1, GATHERED_ELEMENTS // (block.width * block.hidden))
    parts = zip(visitors.split(room), chosen_bk.flatten().split(room), strict=True)
    outputs = torch.cat([_visit(block, w, x, chosen, act) for x, chosen in parts])
    return (outputs.view(*chosen_bk.shape, -1) * weights_bk.unsqueeze(-1)).sum(1)


def _visit(
    block: MixtureOfExperts, w: Tensors, x_b1d: Tensor, chosen_b: Tensor, act: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return each row's output of its one expert."""

    def through(name: str, x: Tensor) -> Tensor:
        leaf = w[f"experts.{name}"]
        out = torch.bmm(x, leaf.weight[chosen_b].transpose(1, 2))
        return out if leaf.bias is None else out + leaf.bias[chosen_b].unsqueeze(1)

    up = through("up_proj", x_b1d)
    return through("down_proj", act(through("gate_proj", x_b1d)) * up if block.gated else act(up)).squeeze(1)


# --- front and back ---------------------------------------------------------------------------------------------------


def table(block: Table, w: Tensors, x_btd: Tensor | None, walk: Walk) -> Tensor:
    """Add a table's rows of the tokens, of their positions, or of type 0."""
    weight = w[block.name].weight
    new = walk.inputs.shape[1] if x_btd is None else x_btd.shape[1]
    if block.index == "token":
        found = f.embedding(walk.inputs, weight)
    elif block.index == "type":
        found = weight[0]
    else:
        most = block.rows - block.offset
        if walk.past + new > most:
            raise PlanError(f"found {walk.past + new} positions, the table {block.name} has {most}", where="tokens")
        found = weight[walk.positions_t(new) + block.offset]
    found = found * block.scale if block.scale != 1.0 else found
    return found if x_btd is None else x_btd + found


def sinusoids(block: Sinusoids, w: Tensors, x_btd: Tensor, walk: Walk) -> Tensor:  # noqa: ARG001
    """Add the waves of the positions."""
    return x_btd + waves_td(block, walk.positions_t(x_btd.shape[1])).to(x_btd.dtype)


def audio_front_end(block: AudioFrontEnd, w: Tensors, x_btd: Tensor | None, walk: Walk) -> Tensor:  # noqa: ARG001
    """Return rows of audio features: two convolutions over time, the second with stride 2."""
    x = walk.inputs
    for name, stride in (("conv1", 1), ("conv2", 2)):
        kernel = w[name].weight.unflatten(1, (-1, block.kernel))
        x = f.gelu(f.conv1d(x, kernel, w[name].bias, stride=stride, padding=block.kernel // 2))
    return x.transpose(1, 2)


def pooler(block: Pooler, w: Tensors, x_btd: Tensor, walk: Walk) -> Tensor:
    """Pool the first token's row beside the stream."""
    walk.pooled_bd = project(w[block.name], x_btd[:, 0]).tanh()
    return x_btd


def head(block: Head, w: Tensors, x_btd: Tensor, walk: Walk) -> Tensor:
    """Return logits [b, t, v], of the last position or of all."""
    if walk.last_only and not block.every_row:
        x_btd = x_btd[:, -1:]
    if block.transform is not None:
        x_btd = activation(block.activation)(project(w["transform.dense"], x_btd))
        x_btd = normed(block.transform, w["transform.norm"], x_btd)
    logits = project(w[block.name], x_btd * block.scale if block.scale != 1.0 else x_btd)
    if block.logits_bias:
        logits = logits + w["final_logits_bias"].weight
    return (logits / block.softcap).tanh() * block.softcap if block.softcap else logits


COMPUTE: dict[type[Block], Callable[..., Tensor]] = {
    Norm: norm,
    Attention: attention,
    LatentAttention: latent_attention,
    FeedForward: feed_forward,
    MixtureOfExperts: mixture,
    Table: table,
    Sinusoids: sinusoids,
    AudioFrontEnd: audio_front_end,
    Pooler: pooler,
    Head: head,
}
"""The function of each block type; a type that is not here can't be built."""
