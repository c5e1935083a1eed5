"""What stands in the host's memory instead of a device's: weights of routed experts, whole layers, or so many bytes.

One fold over what `planner.shard` says that a device holds: every piece is cut into the part that stays and the part that
moves, so that both are the piece again, to the byte. Engines differ in what they move only:

- layers, with their caches: the first of the model, as llama.cpp's --n-gpu-layers leaves them there;
- routed experts of the first layers that have some, as its --n-cpu-moe does;
- bytes of layers' weights on each device, as vLLM's --cpu-offload-gb; it moves whole tensors, so up to one more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from planner.errors import PlanError
from planner.model import Model
from planner.shard import Piece, Share, depth

GIB = 2**30

EXPERTS = "routed_experts"

ALL = 2**40
"""More layers than there are."""

MOST_GIB = 2**20


class Offload(NamedTuple):
    """What is moved.

    Attributes:
        experts: layers, the first that have routed experts, whose experts' weights are; `ALL`: of all.
        layers: of the model, the first, whose weights and caches are.
        bytes: of further weights of layers, on each device.
    """

    experts: int = 0
    layers: int = 0
    bytes: int = 0


NOTHING = Offload()


def offload_of(
    experts: bool | int | str | None = None,
    layers: int | None = None,
    gb: float | None = None,
) -> Offload:
    """Return what the options --offload-experts, --offload-layers and --offload-gb say.

    Args:
        experts: "all" or True, or a number of layers. layers: a number of them. gb: GiB, a fraction too.

    Raises:
        PlanError: a value that none of them can have.
    """
    if isinstance(experts, str) and experts.strip().isdecimal():
        experts = int(experts)
    if experts is True or experts == "all":
        experts = ALL
    found = Offload(
        _whole("--offload-experts", 0 if experts in {None, False} else experts, "all, or a whole number of layers"),
        _whole("--offload-layers", 0 if layers is None else layers, "a whole number of layers"),
    )
    if gb is None:
        return found
    if isinstance(gb, bool) or not isinstance(gb, int | float) or not 0 <= gb <= MOST_GIB:
        raise PlanError(
            f"found {gb!r}, a number of GiB from 0 to {MOST_GIB:,} is needed", where="--offload-gb", fix="correct it"
        )
    return found._replace(bytes=int(gb * GIB))


def _whole(option: str, value: Any, wanted: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= ALL:
        raise PlanError(f"found {value!r}, {wanted} is needed", where=option, fix="correct it")
    return value


def expert_layers(shares: Iterable[Share]) -> list[int]:
    """Return the numbers of the layers with routed experts."""
    pieces = (piece for share in shares for piece in share.weights if piece.part == EXPERTS)
    return sorted({layer for piece in pieces for layer in piece.layers})


def divide(model: Model, shares: tuple[Share, ...], offload: Offload) -> tuple[tuple[Share, Share], ...]:
    """Return what of each share stays on its device, and what stands in the host's memory for it.

    Raises:
        PlanError: the model hasn't so many layers, or no routed experts.
    """
    if offload == NOTHING:
        return tuple((share, share._replace(weights=(), caches=())) for share in shares)
    routed = expert_layers(shares)
    _check(model, offload, routed)
    experts = frozenset(routed[: offload.experts])
    layers = frozenset(range(offload.layers))
    return tuple(_divided(share, experts, layers, offload.bytes) for share in shares)


def _check(model: Model, offload: Offload, routed: list[int]) -> None:
    if offload.experts and not routed:
        raise PlanError(f"{model.name} has no routed experts", where="--offload-experts", fix="use --offload-layers")
    if len(routed) < offload.experts < ALL:
        raise PlanError(
            f"found {offload.experts}, but {len(routed)} layers have routed experts",
            where="--offload-experts", fix=f"choose 1 to {len(routed)}, or all",
        )  # fmt: skip
    if offload.layers > depth(model):
        raise PlanError(
            f"found {offload.layers}, but there are {depth(model)} layers",
            where="--offload-layers", fix=f"choose 1 to {depth(model)}",
        )  # fmt: skip
    if offload.layers and any(run.repeats > 1 for stack in model.stacks for run in stack.runs):
        raise PlanError(
            f"{model.name} runs the same layers several times, so that none stands alone",
            where="--offload-layers", fix="use --offload-gb",
        )  # fmt: skip


def _divided(share: Share, experts: frozenset[int], layers: frozenset[int], more: int) -> tuple[Share, Share]:
    stay: list[Piece] = []
    move: list[Piece] = []
    left = more
    for piece in share.weights:
        kept, moved = _cut(piece, layers | experts if piece.part == EXPERTS else layers)
        taken = min(left, kept.bytes) if kept.layers else 0
        left -= taken
        stay.append(kept._replace(bytes=kept.bytes - taken))
        move.append(moved._replace(bytes=moved.bytes + taken))
    caches = [_cut(piece, layers) for piece in share.caches]
    return (
        share._replace(weights=_some(stay), caches=_some(kept for kept, _ in caches)),
        share._replace(weights=_some(move), caches=_some(moved for _, moved in caches)),
    )


def _cut(piece: Piece, layers: frozenset[int]) -> tuple[Piece, Piece]:
    """Return what of a piece belongs to other layers, and what to these; all its layers hold as much."""
    kept, moved = (tuple(n for n in piece.layers if (n in layers) is inside) for inside in (False, True))
    if not moved:
        return piece, piece._replace(bytes=0, padding_bytes=0, layers=())
    here, padding = (amount * len(moved) // len(piece.layers) for amount in (piece.bytes, piece.padding_bytes))
    return (
        piece._replace(bytes=piece.bytes - here, padding_bytes=piece.padding_bytes - padding, layers=kept),
        piece._replace(bytes=here, padding_bytes=padding, layers=moved),
    )


def _some(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    return tuple(piece for piece in pieces if piece.bytes)
