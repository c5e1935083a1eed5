"""The runnable twin: a plain torch model built from the same description that the planner counts.

Its tensors are the description's leaves, its wiring the description's layers, its cache what the engine's rules keep.
Whatever can be read off it (parameters, bytes, FLOPs, logits) is a measurement of what the description says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from measure.functions import COMPUTE, Scored, Slot, Walk
from measure.traits import check
from planner.blocks import Block, Leaf, Norm
from planner.errors import PlanError
from planner.model import Layer, Model, Run, Stack, Sublayer


class Place(NamedTuple):
    """Where a tensor of the twin stands in the description."""

    block: Block
    leaf: Leaf


@dataclass(frozen=True)
class Placed:
    """A block and its tensors, by leaf name."""

    block: Block
    tensors: dict[str, nn.Module]

    def __call__(self, x_btd: Tensor | None, walk: Walk) -> Tensor:
        """Return what the block computes."""
        return COMPUTE[type(self.block)](self.block, self.tensors, x_btd, walk)


@dataclass(frozen=True)
class PlacedSublayer:
    """A block and its norms; see `planner.model.Sublayer`."""

    block: Placed
    before: Placed | None
    after: Placed | None
    join: Placed | None

    def update(self, x_btd: Tensor, walk: Walk) -> Tensor:
        """Return what the block adds to the stream."""
        update = self.block(self.before(x_btd, walk) if self.before else x_btd, walk)
        return self.after(update, walk) if self.after else update

    def __call__(self, x_btd: Tensor, walk: Walk) -> Tensor:
        """Return the stream after the block."""
        x_btd = x_btd + self.update(x_btd, walk)
        return self.join(x_btd, walk) if self.join else x_btd


@dataclass(frozen=True)
class PlacedLayer:
    """Sublayers in turn or side by side; see `planner.model.Layer`."""

    sublayers: tuple[PlacedSublayer, ...]
    before: Placed | None
    parallel: bool
    repeats: int

    def __call__(self, x_btd: Tensor, walk: Walk) -> Tensor:
        """Return the stream after one execution of the layer."""
        if self.parallel:
            entering = self.before(x_btd, walk) if self.before else x_btd
            return x_btd + sum(sub.update(entering, walk) for sub in self.sublayers)
        for sub in self.sublayers:
            x_btd = sub(x_btd, walk)
        return x_btd


@dataclass(frozen=True)
class PlacedStack:
    """What stands before, in and after the layers; see `planner.model.Stack`."""

    name: str
    front: tuple[Placed, ...]
    layers: tuple[PlacedLayer, ...]
    back: tuple[Placed, ...]

    def __call__(self, walk: Walk) -> Tensor:
        """Return logits, or rows where the stack has no head."""
        x_btd: Any = None
        for block in self.front:
            x_btd = block(x_btd, walk)
        for layer in self.layers:
            for _ in range(layer.repeats):
                x_btd = layer(x_btd, walk)
        for block in self.back:
            x_btd = block(x_btd, walk)
        return x_btd


@dataclass(frozen=True)
class Kept:
    """What the twin remembers between passes: the tokens so far, and a slot for every layer that caches."""

    tokens: int
    slots: tuple[Slot, ...]

    def bytes(self, kind: str | None = None) -> int:
        """Return the bytes of the tensors held, of one kind or of all."""
        held = (tensor for slot in self.slots if kind in {None, slot.kind} for tensor in slot.tensors)
        return sum(tensor.numel() * tensor.element_size() for tensor in held)


class Step(NamedTuple):
    """What a pass returns: logits [b, t, v] (rows where there is no head), and what it remembers."""

    logits_btv: Tensor
    kept: Kept


class Twin(nn.Module):  # type: ignore[misc]
    """A description as a torch model.

    Args:
        model: the description; its engine's rules decide what caches keep.
        device: where tensors live; "meta" for counting without data.
        dtype: of all tensors but those with their own.

    Attributes:
        description: the model.
        places: block and leaf of every tensor, by name.
        scored: set to a list, it is filled with the FLOPs of every attention.
    """

    def __init__(self, model: Model, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.description = model
        self.places: dict[str, Place] = {}
        self.scored: list[Scored] | None = None
        planter = _Planter(self, device, dtype, {})
        for stack in model.stacks:
            check(stack, f"{model.name}, {stack.name}")
            if stack.name not in {"decoder", "encoder"}:
                raise PlanError(f"the twin doesn't run the stack {stack.name!r}", where=model.name)
        self.placed = {stack.name: planter.stack(stack) for stack in model.stacks}

    def encode(self, source: Tensor) -> Tensor:
        """Return the encoder's output [b, s, d] for token ids [b, s] or audio features [b, bands, 2 s]."""
        return self.placed["encoder"](Walk(source, self.description.engine, scored=self.scored))

    def forward(
        self,
        tokens_bt: Tensor,
        *,
        source: Tensor | None = None,
        memory_bsd: Tensor | None = None,
        kept: Kept | None = None,
        prefix: int = 0,
        last_only: bool = False,
    ) -> Step:
        """Run new tokens through the decoder, or through an encoder that stands alone.

        Args:
            tokens_bt: ids of the new tokens.
            source: what the encoder reads, in the first pass of an encoder-decoder.
            memory_bsd: the encoder's output, instead of `source`.
            kept: what the pass before returned; None starts from nothing.
            prefix: first tokens that see each other both ways.
            last_only: return the logits of the last position only.
        """
        walk = Walk(
            tokens_bt,
            self.description.engine,
            past=kept.tokens if kept else 0,
            prefix=prefix,
            memory_bsd=self.encode(source) if source is not None else memory_bsd,
            recalled=iter(kept.slots if kept else ()),
            last_only=last_only,
            scored=self.scored,
        )
        logits = self.placed["decoder" if self.description.generates else "encoder"](walk)
        return Step(logits, Kept(walk.past + tokens_bt.shape[1], tuple(walk.kept)))

    def by_part(self) -> dict[str, int]:
        """Return the parameters of every component; a tied tensor counts where it first stands."""
        sums: Counter[str] = Counter()
        for name, parameter in self.named_parameters():
            sums[self.places[name].leaf.part] += parameter.numel()
        return dict(sums)

    def randomize(self, seed: int = 0) -> None:
        """Fill all tensors with numbers that keep rows at about unit size."""
        generator = torch.Generator(next(self.parameters()).device).manual_seed(seed)
        for name, tensor in (*self.named_parameters(), *self.named_buffers()):
            leaf = self.places[name].leaf
            drawn = torch.randn(tensor.shape, generator=generator, device=tensor.device)
            scale = leaf.n_in == 1 and not leaf.buffer and not name.endswith(".bias")
            with torch.no_grad():
                tensor.copy_(1 + 0.1 * drawn if scale else drawn * (leaf.n_in**-0.5 if leaf.work else 0.5))


@dataclass(frozen=True)
class _Planter:
    """Hangs leaves as tensors into a tree of modules, and blocks onto them."""

    root: Twin
    device: torch.device
    dtype: torch.dtype
    tied: dict[str, nn.Parameter]

    def stack(self, stack: Stack) -> PlacedStack:
        """Place a stack; its tables first, so that a tied head is theirs."""
        front = tuple(self.block(block, f"{stack.name}.front") for block in stack.front)
        layers = tuple(self._layers(stack))
        return PlacedStack(stack.name, front, layers, tuple(self.block(b, f"{stack.name}.back") for b in stack.back))

    def _layers(self, stack: Stack) -> Iterator[PlacedLayer]:
        index = 0
        for run in stack.runs:
            for _ in range(run.count):
                yield self._layer(run, f"{stack.name}.layers.{index}")
                index += 1

    def _layer(self, run: Run, path: str) -> PlacedLayer:
        if run.repeats > 1 and run.count > 1:
            raise PlanError("the twin doesn't know in which order repeated layers take turns", where="Run.repeats")
        layer: Layer = run.layer
        subs = tuple(self._sublayer(sub, f"{path}.{name}") for name, sub in _named(layer))
        return PlacedLayer(subs, self._norm(layer.before, f"{path}.before"), layer.parallel, run.repeats)

    def _sublayer(self, sub: Sublayer, path: str) -> PlacedSublayer:
        norms = (
            self._norm(n, f"{path}.{where}")
            for where, n in (("before", sub.before), ("after", sub.after), ("join", sub.join))
        )
        return PlacedSublayer(self.block(sub.block, path), *norms)

    def _norm(self, norm: Norm | None, path: str) -> Placed | None:
        return None if norm is None else self.block(norm, path)

    def block(self, block: Block, path: str) -> Placed:
        """Place a block's tensors below a path."""
        return Placed(block, {leaf.name: self._leaf(block, leaf, f"{path}.{leaf.name}") for leaf in block.leaves()})

    def _leaf(self, block: Block, leaf: Leaf, path: str) -> nn.Module:
        """Place a leaf's weight and bias."""
        check(leaf, path)
        module = _branch(self.root, path)
        dtype = getattr(torch, leaf.own_dtype) if leaf.own_dtype else self.dtype

        def empty(*shape: int) -> Tensor:
            return torch.empty(*shape, device=self.device, dtype=dtype)

        self.root.places |= {f"{path}.weight": Place(block, leaf), f"{path}.bias": Place(block, leaf)}
        if leaf.buffer:
            module.register_buffer("weight", empty(*weight_shape(leaf)))
        elif leaf.tie is None:
            module.weight = nn.Parameter(empty(*weight_shape(leaf)), requires_grad=False)
        else:
            if leaf.tie not in self.tied:
                self.tied[leaf.tie] = nn.Parameter(empty(*weight_shape(leaf)), requires_grad=False)
            module.weight = self.tied[leaf.tie]
        bias = nn.Parameter(empty(*_copies(leaf), leaf.n_out), requires_grad=False) if leaf.bias else None
        module.register_parameter("bias", bias)
        return module


def weight_shape(leaf: Leaf) -> tuple[int, ...]:
    """Return a leaf's shape: [out, in] for matrices, [rows, width] for tables, [width] for vectors; copies first."""
    if leaf.work is not None:
        return (*_copies(leaf), leaf.n_out, leaf.n_in)
    if leaf.n_in > 1 or leaf.part == "embedding":
        return leaf.n_in, leaf.n_out
    return *_copies(leaf), leaf.n_out


def _copies(leaf: Leaf) -> tuple[int, ...]:
    return () if leaf.copies == 1 and leaf.active is None else (leaf.copies,)


def _named(layer: Layer) -> Iterator[tuple[str, Sublayer]]:
    """Yield sublayers under their block's name, with an index where two share it."""
    names = [getattr(sub.block, "name", type(sub.block).__name__.lower()) for sub in layer.sublayers]
    for index, (name, sub) in enumerate(zip(names, layer.sublayers, strict=True)):
        yield (f"{name}_{index}" if names.count(name) > 1 else name), sub


def _branch(root: nn.Module, path: str) -> nn.Module:
    """Return the module at a path below the root, growing what is missing; a path that has tensors is taken."""
    module = root
    for name in path.split("."):
        if name not in module._modules:  # noqa: SLF001
            module.add_module(name, nn.Module())
        module = module._modules[name]  # noqa: SLF001
    if "weight" in module._parameters or "weight" in module._buffers:  # noqa: SLF001
        raise PlanError("two leaves have this path", where=path)
    return module


def build(model: Model, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Twin:
    """Return the twin of a described model, its tensors not yet filled; see `Twin.randomize` and `measure.weights`.

    Raises:
        PlanError: the description has a block or a trait that the twin can't build; the message names it.
    """
    return Twin(model, torch.device(device), dtype)
