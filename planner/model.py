"""A model is stacks of runs of equal layers; what it stores and what a pass computes are sums over their lists.

The sums over a model's structure are made once and kept (`Model.tally`, `Stack.work`): what is left for one workload is
a dozen multiplications, so that one plan takes microseconds and a sweep runs on arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

from planner.blocks import Attend, Block, Cache, Leaf, Norm, Work
from planner.count import Number
from planner.engines import Engine
from planner.workload import Feed, Pass

Kind = Literal["decoder", "encoder", "encoder-decoder", "prefix-lm"]


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
    def leaves(self) -> tuple[Leaf, ...]:
        """What one layer stores."""
        return tuple(leaf for block in self.blocks for leaf in block.leaves())

    @cached_property
    def caches(self) -> tuple[Cache, ...]:
        """What one layer remembers."""
        return tuple(cache for block in self.blocks for cache in block.caches())

    @cached_property
    def cores(self) -> tuple[Attend, ...]:
        """What one layer computes without weights."""
        return tuple(core for block in self.blocks for core in block.cores())


@dataclass(frozen=True, slots=True)
class Run:
    """`count` layers of one shape with weights of their own, each executed `repeats` times (ALBERT, looped models)."""

    count: int
    layer: Layer
    repeats: int = 1


@dataclass(frozen=True)
class Stack:
    """Layers that one stream of rows passes through, and what stands before and after them.

    Attributes:
        name: "decoder" or "encoder".
        front: tables and front ends.
        runs: runs of equal layers, in order.
        back: final norm and head.
    """

    name: Literal["decoder", "encoder"]
    front: tuple[Block, ...]
    runs: tuple[Run, ...]
    back: tuple[Block, ...] = ()

    @property
    def depth(self) -> int:
        """Layers that are executed."""
        return sum(run.count * run.repeats for run in self.runs)

    @cached_property
    def outside(self) -> tuple[Leaf, ...]:
        """Leaves of front and back."""
        return tuple(leaf for block in (*self.front, *self.back) for leaf in block.leaves())

    def leaves(self) -> Iterator[tuple[int, int, Leaf]]:
        """Yield (copies stored, times executed per copy, leaf) for all leaves of the stack."""
        for leaf in self.outside:
            yield 1, 1, leaf
        for run in self.runs:
            for leaf in run.layer.leaves:
                yield run.count, run.repeats, leaf

    @cached_property
    def work(self) -> dict[tuple[Work, Feed], int]:
        """FLOPs of one row of each feed, by kind of work, over the whole stack."""
        sums: Counter[tuple[Work, Feed]] = Counter()
        for count, repeats, leaf in self.leaves():
            if leaf.work:
                sums[leaf.work, leaf.feeds] += count * repeats * leaf.flops_per_row
        return dict(sums)

    @cached_property
    def cores(self) -> dict[Attend, int]:
        """Weightless work and how often a pass does it."""
        sums: Counter[Attend] = Counter()
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
            by_work["attention"] = by_work["attention"] + flops if "attention" in by_work else flops
        return by_work


@dataclass(frozen=True, slots=True)
class Tally:
    """Parameters of a model, counted once.

    Attributes:
        total: unique parameters. by_part: the same by component. buffers: stored elements that are no parameters.
        embedding: input tables. head: the output projection's own. routed, active_routed: of the experts; all, and those
            that one row visits. layers: per stack, one entry per executed layer, by component.
    """

    total: int
    by_part: dict[str, int]
    buffers: int
    embedding: int
    head: int
    routed: int
    active_routed: Fraction
    outside_decode: int
    layers: dict[str, list[dict[str, int]]]

    @property
    def active(self) -> int | float:
        """Total minus the routed experts that a row doesn't visit."""
        return whole(self.total - self.routed + self.active_routed)


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
        notes: assumptions that the user should know. source: file or name, for messages.
    """

    name: str
    family: str
    architecture: str
    kind: Kind
    stacks: tuple[Stack, ...]
    positions: int | None = None
    learned_positions: bool = False
    source_positions: int | None = None
    source_fixed: bool = False
    dtype: str | None = None
    quantization: dict[str, object] | None = None
    notes: tuple[str, ...] = ()
    source: str = ""

    def stack(self, name: str) -> Stack | None:
        """Return the stack of that name, if the model has one."""
        return next((stack for stack in self.stacks if stack.name == name), None)

    @property
    def generates(self) -> bool:
        """Whether it has a decoder."""
        return self.kind != "encoder"

    @cached_property
    def experts(self) -> tuple[Leaf, ...]:
        """One routed-expert leaf per distinct mixture, with its copies and active copies."""
        found = {(leaf.copies, leaf.active): leaf for s in self.stacks for _, _, leaf in s.leaves() if leaf.work == "experts"}
        return tuple(found.values())

    @cached_property
    def tally(self) -> Tally:
        """Count the parameters."""
        tied: set[str] = set()
        parts: Counter[str] = Counter()
        layers: dict[str, list[dict[str, int]]] = {}
        buffers = head = outside_decode = routed = 0
        active_routed = Fraction(0)

        def stored(leaf: Leaf) -> int:
            """Elements that this leaf adds to those already counted."""
            if leaf.tie is None:
                return leaf.elements
            first = leaf.tie not in tied
            tied.add(leaf.tie)
            return leaf.elements if first else leaf.elements - leaf.matrix

        for stack in self.stacks:
            before = sum(parts.values())
            counted: list[tuple[int, Counter[str]]] = []
            groups = [(0, 1, stack.outside), *((r.count, r.repeats, r.layer.leaves) for r in stack.runs)]
            for count, repeats, leaves in groups:
                own: Counter[str] = Counter()
                for leaf in leaves:
                    size = stored(leaf)
                    if leaf.buffer:
                        buffers += (count or 1) * size
                        continue
                    own[leaf.part] += size
                    if leaf.work == "head":
                        head += size
                    if leaf.part == "routed_experts":
                        routed += count * size
                        active_routed += Fraction(count * size * leaf.visited, leaf.copies)
                for part, size in own.items():
                    parts[part] += (count or 1) * size
                if count:
                    counted += [(1, own)] * count + [(0, own)] * (count * (repeats - 1))
            layers[stack.name] = [dict(own) if first else dict.fromkeys(own, 0) for first, own in counted]
            if self.kind == "encoder-decoder" and stack.name == "encoder":
                outside_decode = sum(parts.values()) - before
                outside_decode -= sum(leaf.matrix for leaf in stack.outside if leaf.tie in self._decoder_ties)
        return Tally(sum(parts.values()), dict(parts), buffers, parts["embedding"], head, routed, active_routed,
                     outside_decode, layers)  # fmt: skip

    @property
    def _decoder_ties(self) -> set[str]:
        decoder = self.stack("decoder")
        return {leaf.tie for _, _, leaf in decoder.leaves() if leaf.tie} if decoder else set()


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
