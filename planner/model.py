"""A model is stacks of runs of equal layers; what it stores and what a pass computes are sums over their lists.

The sums over a model's structure are made once and kept (`Model.tally`, `Stack.work`): what is left for one workload is
a dozen multiplications, so that one plan takes microseconds and a sweep runs on arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, NamedTuple

from planner.blocks import Block, Cache, Core, Leaf, MixtureOfExperts, Norm, Work, checkpoint_name
from planner.count import Number
from planner.engines import Engine
from planner.formats import Checkpoint
from planner.masks import Mask
from planner.workload import Feed, Pass

Kind = Literal["decoder", "encoder", "encoder-decoder", "prefix-lm"]
End = Literal["front", "layers", "back"]


@dataclass(frozen=True, slots=True)
class Sublayer:
    """A block and how it is wired to the residual stream.

    Attributes:
        block: what it computes.
        before: norm of its input (pre-norm).
        after: norm of its output, before it is added (Gemma 2; OLMo 2 has only this one).
        join: norm of the sum (post-norm: the original Transformer, BERT).
    """

    block: Block
    before: Norm | None = None
    after: Norm | None = None
    join: Norm | None = None

    def blocks(self) -> Iterator[Block]:
        """Yield the block and its norms."""
        yield from (b for b in (self.before, self.block, self.after, self.join) if b is not None)


@dataclass(frozen=True)
class Layer:
    """Sublayers, one after the other, or side by side on one input (`parallel`: PaLM, Falcon).

    Attributes:
        sublayers: in order.
        parallel: all read the same rows and are added once.
        before: one norm shared by parallel sublayers.
    """

    sublayers: tuple[Sublayer, ...]
    parallel: bool = False
    before: Norm | None = None

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks, norms included."""
        shared = (self.before,) if self.before else ()
        return (*shared, *(block for sub in self.sublayers for block in sub.blocks()))

    @cached_property
    def named(self) -> tuple[tuple[str, Leaf], ...]:
        """What one layer stores, with names as in checkpoints ("self_attn.q_proj")."""
        return tuple((checkpoint_name(block, leaf), leaf) for block in self.blocks for leaf in block.leaves())

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """What one layer stores."""
        return tuple(leaf for _, leaf in self.named)

    @cached_property
    def caches(self) -> tuple[Cache, ...]:
        """What one layer remembers."""
        return tuple(cache for block in self.blocks for cache in block.caches())

    @cached_property
    def cores(self) -> tuple[Core, ...]:
        """What one layer computes without weights."""
        return tuple(core for block in self.blocks for core in block.cores())


@dataclass(frozen=True, slots=True)
class Run:
    """`count` layers of one shape with weights of their own, each executed `repeats` times (ALBERT, looped models).

    `list` is what they are called in checkpoints where a stack holds several lists; None: as the stack says.
    """

    count: int
    layer: Layer
    repeats: int = 1
    list: str | None = None


@dataclass(frozen=True)
class Stack:
    """Layers that one stream of rows passes through, and what stands before and after them.

    Attributes:
        name: "decoder" or "encoder"; of a multimodal model's towers "vision" and "audio".
        front: tables and front ends.
        runs: runs of equal layers, in order.
        back: final norm and head.
        scope: path above its tensors in checkpoints, None: the usual one. list: what the layers are called there.
    """

    name: Literal["decoder", "encoder", "vision", "audio"]
    front: tuple[Block, ...]
    runs: tuple[Run, ...]
    back: tuple[Block, ...] = ()
    scope: str | None = None
    list: str = "layers"

    @property
    def depth(self) -> int:
        """Layers that are executed."""
        return sum(run.count * run.repeats for run in self.runs)

    @cached_property
    def named(self) -> tuple[tuple[str, Leaf], ...]:
        """Leaves of front and back, with names as in checkpoints."""
        blocks = (*self.front, *self.back)
        return tuple((checkpoint_name(block, leaf), leaf) for block in blocks for leaf in block.leaves())

    @cached_property
    def outside(self) -> tuple[Leaf, ...]:
        """Leaves of front and back."""
        return tuple(leaf for _, leaf in self.named)

    def leaves(self) -> Iterator[tuple[int, int, Leaf]]:
        """Yield (copies stored, times executed per copy, leaf) for all leaves of the stack."""
        for leaf in self.outside:
            yield 1, 1, leaf
        for run in self.runs:
            for leaf in run.layer.leaves:
                yield run.count, run.repeats - leaf.skips, leaf

    @cached_property
    def mixtures(self) -> tuple[MixtureOfExperts, ...]:
        """The distinct mixtures of experts, in order."""
        found = (block for run in self.runs for block in run.layer.blocks if isinstance(block, MixtureOfExperts))
        return tuple(dict.fromkeys(found))

    @cached_property
    def masks(self) -> tuple[Mask, ...]:
        """The self-attention mask of every executed layer that has one."""
        return tuple(
            core.mask
            for run in self.runs
            for core in run.layer.cores * (run.count * run.repeats)
            if hasattr(core, "mask") and not getattr(core, "cross", False)
        )

    @cached_property
    def work(self) -> dict[tuple[Work, Feed], int]:
        """FLOPs of one row of each feed, by kind of work, over the whole stack."""
        sums: Counter[tuple[Work, Feed]] = Counter()
        for count, repeats, leaf in self.leaves():
            if leaf.work:
                sums[leaf.work, leaf.feeds] += count * repeats * leaf.flops_per_row
                if leaf.further:
                    sums[leaf.work, "sequence"] += count * repeats * leaf.flops_per_sequence
        return dict(sums)

    @cached_property
    def row_elements(self) -> dict[Feed, int]:
        """Elements that matrix products read and write for one row of each feed, over the whole stack."""
        sums: Counter[Feed] = Counter()
        for count, repeats, leaf in self.leaves():
            if leaf.work:
                sums[leaf.feeds] += int(count * repeats * leaf.rate * (leaf.n_in + leaf.visited * leaf.n_out))
                if leaf.further:
                    sums["sequence"] += int(count * repeats * leaf.further * (leaf.n_in + leaf.visited * leaf.n_out))
        return dict(sums)

    @cached_property
    def cores(self) -> dict[Core, int]:
        """Weightless work and how often a pass does it."""
        sums: Counter[Core] = Counter(core for block in (*self.front, *self.back) for core in block.cores())
        for run in self.runs:
            for core in run.layer.cores:
                sums[core] += run.count * run.repeats
        return dict(sums)

    @cached_property
    def caches(self) -> dict[Cache, int]:
        """Caches of one sequence and how many layers hold one."""
        sums: Counter[Cache] = Counter()
        for run in self.runs:
            for cache in run.layer.caches:
                sums[cache] += run.count * run.repeats
        return dict(sums)

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> dict[Work, Number]:
        """Return the FLOPs of a pass by kind of work.

        Args:
            p: the pass.
            engine: whose rules.
            dense: full rectangles, and the head on every position, as a tracer counts.
        """
        expand = not engine.absorbs_latents
        by_work: dict[Work, Number] = {}
        for (work, feed), per_row in self.work.items():
            flops = per_row * p.rows(feed, dense=dense, expand=expand)
            by_work[work] = by_work[work] + flops if work in by_work else flops
        for core, times in self.cores.items():
            flops = times * core.flops(p, engine, dense=dense)
            by_work[core.work] = by_work[core.work] + flops if core.work in by_work else flops
        return by_work


class Input(NamedTuple):
    """Images or sound that a tower turns into tokens of the decoder.

    Attributes:
        stack: of the tower, "vision" or "audio".
        rows: that enter the tower's layers for one image, or one window of sound; None: the config doesn't say.
        tokens: that they add to the decoder's prompt; None: the config doesn't say.
        seconds: of sound in a window.
        lacking: what the config doesn't say.
    """

    stack: Literal["vision", "audio"]
    rows: int | None = None
    tokens: int | None = None
    seconds: int = 30
    lacking: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A leaf and where it stands.

    Attributes:
        leaf: the tensor. stack: name of its stack.
        path: as in checkpoints, "*" for the number of its layer ("model.layers.*.self_attn.q_proj").
        layers: that store one each, from layer `first` on. repeats: how often a pass runs each.
        owner: stores the matrix; False where a leaf before it does, of the same tie.
        end: of its stack that it stands at, or among its layers.
    """

    leaf: Leaf
    stack: str
    path: str
    first: int
    layers: int
    repeats: int
    owner: bool
    end: End


class StackTally(NamedTuple):
    """Parameters of one stack that no stack before it owns.

    Attributes:
        total: unique parameters. by_part: the same by component. routed: of routed experts; active_routed: of those that
            one row visits. lent: of tables that later stacks use too. layers: an entry per executed layer, by component.
        buffers: stored elements that are no parameters. head: the output projection's own parameters.
    """

    total: int
    by_part: dict[str, int]
    buffers: int
    head: int
    routed: int
    active_routed: Fraction
    lent: int
    layers: tuple[dict[str, int], ...]

    @property
    def active(self) -> Fraction:
        """Total minus the routed experts that a row doesn't visit."""
        return self.total - self.routed + self.active_routed


class Tally(NamedTuple):
    """Parameters of a model, counted once: tied and shared tensors at their first owner."""

    stacks: dict[str, StackTally]

    @property
    def total(self) -> int:
        """Unique parameters."""
        return sum(stack.total for stack in self.stacks.values())

    @property
    def active(self) -> int | float:
        """Total minus the routed experts that a row doesn't visit."""
        return whole(sum((stack.active for stack in self.stacks.values()), Fraction(0)))

    @property
    def active_decode(self) -> int | float | None:
        """What one decode step reads: the active parameters of the decoder, and the tables that it shares."""
        if "decoder" not in self.stacks:
            return None
        lent = sum(stack.lent for name, stack in self.stacks.items() if name != "decoder")
        return whole(self.stacks["decoder"].active + lent)

    @property
    def buffers(self) -> int:
        """Stored elements that are no parameters."""
        return sum(stack.buffers for stack in self.stacks.values())

    @property
    def head(self) -> int:
        """The output projection's own parameters; 0 where it is tied."""
        return sum(stack.head for stack in self.stacks.values())

    @property
    def by_part(self) -> dict[str, int]:
        """Unique parameters by component."""
        sums: Counter[str] = Counter()
        for stack in self.stacks.values():
            sums.update(stack.by_part)
        return dict(sums)

    @property
    def embedding(self) -> int:
        """Input tables."""
        return self.by_part.get("embedding", 0)


@dataclass(frozen=True)
class Model:
    """A described model.

    Attributes:
        name: file or bundled name.
        family: model_type.
        architecture: class of the reference implementation.
        kind: what it is.
        stacks: encoder first.
        positions: longest sequence, None: no limit known. learned_positions: a table's rows, that can't be exceeded.
        source_positions: of the encoder; source_fixed: it always has that many.
        dtype: of the checkpoint.
        quantization: the config's quantization_config, as found.
        engine: whose rules the description follows. checkpoint: tensors of the weights beside the config, if there are any.
        notes: assumptions that the user should know. source: file or name, for messages.
        inputs: what else than text it takes.
        source_learned: whether the encoder's positions are a table's rows, None: as the decoder's.
        state_dtype: that the config asks for, of recurrent states.
    """

    name: str
    family: str
    architecture: str
    kind: Kind
    stacks: tuple[Stack, ...]
    engine: Engine
    positions: int | None = None
    learned_positions: bool = False
    source_positions: int | None = None
    source_fixed: bool = False
    dtype: str | None = None
    quantization: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    source: str = ""
    inputs: tuple[Input, ...] = ()
    checkpoint: Checkpoint | None = None
    state_dtype: str | None = None
    source_learned: bool | None = None

    def stack(self, name: str) -> Stack | None:
        """Return the stack of that name, if the model has one."""
        return next((stack for stack in self.stacks if stack.name == name), None)

    @property
    def generates(self) -> bool:
        """Whether it has a decoder."""
        return self.kind != "encoder"

    @property
    def depth(self) -> int:
        """Layers that are executed, over all stacks but towers."""
        return sum(stack.depth for stack in self.stacks if stack.name not in {"vision", "audio"})

    @cached_property
    def has_global_tokens(self) -> bool:
        """Whether a workload may choose tokens that see all others (Longformer)."""
        return any(leaf.feeds == "global" for stack in self.stacks for _, _, leaf in stack.leaves())

    @cached_property
    def drops_tokens(self) -> bool:
        """Whether experts have room for a limited number of tokens (Switch)."""
        return any(mixture.capacity for stack in self.stacks for mixture in stack.mixtures)

    @cached_property
    def receptive_field_tokens(self) -> int | None:
        """How far back (and forth) a token draws on others through all layers; None: as far as there are tokens."""
        masks = [mask for stack in self.stacks if stack.name not in {"vision", "audio"} for mask in stack.masks]
        if any(mask.reach is None for mask in masks):
            return None
        return 1 + sum(mask.reach for mask in masks if mask.reach is not None)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Every leaf and where it stands, in the order in which `tally` counts."""
        owned: set[str] = set()
        found: list[Place] = []

        def put(
            leaf: Leaf, stack: Stack, path: str, end: End, first: int = 0, layers: int = 1, repeats: int = 1
        ) -> None:
            """Note one leaf, and its tie as owned from now on."""
            found.append(Place(leaf, stack.name, path, first, layers, repeats, leaf.tie not in owned, end))
            owned.update((leaf.tie,) if leaf.tie else ())

        for stack in self.stacks:
            only = self.kind != "encoder-decoder" and stack.name in {"decoder", "encoder"}
            scope = ("model." if only else f"model.{stack.name}.") if stack.scope is None else stack.scope
            before = sum(len(block.leaves()) for block in stack.front)
            for index, (name, leaf) in enumerate(stack.named):
                put(leaf, stack, name if leaf.part == "head" else scope + name, "front" if index < before else "back")
            first, listed = 0, stack.list
            for run in stack.runs:
                first, listed = (first, listed) if run.list in {None, listed} else (0, str(run.list))
                for name, leaf in run.layer.named:
                    path = f"{scope}{listed}.*.{name}"
                    put(leaf, stack, path, "layers", first, run.count, run.repeats - leaf.skips)
                first += run.count
        return tuple(found)

    @cached_property
    def elements(self) -> dict[str | None, int]:
        """Stored elements, tied matrices once, by the dtype that a leaf insists on; None: the model's."""
        sums: Counter[str | None] = Counter()
        owned: set[str] = set()
        for stack in self.stacks:
            for count, _, leaf in stack.leaves():
                sums[leaf.own_dtype] += count * (leaf.elements - leaf.matrix * (leaf.tie in owned))
                owned.update((leaf.tie,) if leaf.tie else ())
        return dict(sums)

    @cached_property
    def tally(self) -> Tally:
        """Count the parameters, stack by stack."""
        owned: set[str] = set()
        found: dict[str, StackTally] = {}
        for index, stack in enumerate(self.stacks):
            later = {leaf.tie for other in self.stacks[index + 1 :] for _, _, leaf in other.leaves() if leaf.tie}
            found[stack.name] = _tally(stack, owned, later)
        return Tally(found)


def _tally(stack: Stack, owned: set[str], later: set[str]) -> StackTally:
    """Count one stack; `owned` collects the ties that have an owner, `later` are those that other stacks use."""
    parts: Counter[str] = Counter()
    layers: list[dict[str, int]] = []
    buffers = head = routed = lent = 0
    active_routed = Fraction(0)
    groups = [(1, 0, stack.outside), *((run.count, run.repeats, run.layer.leaves) for run in stack.runs)]
    for count, repeats, leaves in groups:
        own: Counter[str] = Counter()
        for leaf in leaves:
            size = leaf.elements - leaf.matrix * (leaf.tie in owned)
            if leaf.tie and leaf.tie not in owned:
                owned.add(leaf.tie)
                lent += leaf.matrix * (leaf.tie in later)
            if leaf.buffer:
                buffers += count * size
                continue
            own[leaf.part] += size
            head += size * (leaf.work == "head")
            if leaf.work == "experts":
                routed += count * size
                active_routed += Fraction(count * size * leaf.visited, leaf.copies)
        for part, size in own.items():
            parts[part] += count * size
        shared = dict.fromkeys(own, 0)  # a layer that runs again stores nothing more
        layers += [dict(own)] * (count * min(repeats, 1)) + [shared] * (count * max(repeats - 1, 0))
    return StackTally(sum(parts.values()), dict(parts), buffers, head, routed, active_routed, lent, tuple(layers))


def whole(value: Fraction | int) -> int | float:
    """Return a fraction as an int where it is one."""
    return value.numerator if value.denominator == 1 else float(value)


def runs(layers: list[Layer]) -> tuple[Run, ...]:
    """Group equal neighbours into runs."""
    grouped: list[Run] = []
    for layer in layers:
        if grouped and grouped[-1].layer == layer:
            grouped[-1] = Run(grouped[-1].count + 1, layer)
        else:
            grouped.append(Run(1, layer))
    return tuple(grouped)
