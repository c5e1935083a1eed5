"""What the devices of a sharded model send each other in one pass: messages that follow from how its leaves divide.

A matrix whose inputs are divided makes partial sums; where rows join the residual stream again, those are added up. So a
parallel layer adds up once and one with two sublayers twice, and nobody lists that by family.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from planner.blocks import Leaf
from planner.model import Layer, Model, Stack
from planner.precision import Precision, element_bits
from planner.shard import TOWERS, Parallel, depth, divided_by, held_elements, legal, overlap, padded, stages
from planner.workload import Pass, Workload

Kind = Literal["all-reduce", "all-gather", "all-to-all", "send"]


class Collective(NamedTuple):
    """Equal messages of one pass of one copy of the model.

    Attributes:
        kind: of message. site: what it is for. stage: of the pipeline, that sends. count: in a pass.
        bytes: of the tensor that each rank has before (all-reduce), after (all-gather), or sends. What travels on links
            follows from the algorithm: a ring's all-reduce sends 2 (ranks - 1) / ranks of it.
        ranks: that take part.
    """

    kind: Kind
    site: str
    stage: int
    count: int  # type: ignore[assignment]  # not the method that tuples have
    bytes: int
    ranks: int

    @property
    def total_bytes(self) -> int:
        """Bytes that cross links for all of them, of one group of ranks: a ring's, or what each sends to each other one."""
        return self.count * self.bytes * CROSSINGS[self.kind] * (self.ranks - 1)


CROSSINGS = {"all-reduce": 2, "all-gather": 1, "all-to-all": 1, "send": 1}
"""How often a message's bytes cross links, for each rank but one: in a ring, an all-reduce is a scatter and a gather of
parts; in an all-to-all each of `ranks` keeps its own part, where they are chosen evenly."""


class Message(NamedTuple):
    """A message of one layer, or of what stands before and after the layers: elements of activations instead of bytes."""

    kind: Kind
    site: str
    elements: int
    ranks: int
    count: int = 1  # type: ignore[assignment]  # not the method that tuples have


def sent(
    model: Model, work: Workload, precision: Precision, parallel: Parallel
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return the JSON's section, None for one device, and how its figures came about."""
    if parallel.devices == 1:
        return None, {}
    found: dict[str, Any] = {
        phase: [
            each._asdict() | {"total_bytes": each.total_bytes}
            for each in collectives(model, precision, work, parallel, phase)
        ]
        if phase == "prefill" or model.stack("decoder")
        else None
        for phase in PHASES
    }
    return found, {f"collectives.{phase}": BASIS for phase, messages in found.items() if messages is not None}


PHASES: tuple[Literal["prefill", "decode"], ...] = ("prefill", "decode")

BASIS = {
    "kind": "formula",
    "formula": "messages of one pass of one copy, from how tensors divide; total_bytes: count x bytes x (ranks - 1), twice that "
    "for an all-reduce: what crosses links in a ring, of one group of ranks",
    "source": "planner/collectives.py",
    "low": None,
    "high": None,
    "verify": "python -m pytest tests/test_shard.py",
}


def collectives(
    model: Model, precision: Precision, work: Workload, parallel: Parallel, phase: Literal["prefill", "decode"]
) -> tuple[Collective, ...]:
    """Return the messages of the pass over the prompts, or of one decode step.

    tp: an all-reduce wherever a write to the residual stream is a sum over ranks (a layer's sublayers one by one, parallel
    ones at once), one after each token table, an all-gather of the logits. ep: two all-to-alls a layer where tokens aren't
    on all ranks that divide experts; else none, their sum is part of the layer's all-reduce. pp: a send from each stage to
    the next. cp: an all-gather of a prompt's new cache rows, in decode steps of the ranks' partial outputs.

    Raises:
        PlanError: the model can't be spread so.
    """
    problem = legal(model, parallel)
    if problem:
        raise problem
    local = work._replace(batch=-(-work.batch // parallel.dp))
    passes: dict[str, Pass] = {}
    for stack in model.stacks:
        if phase == "prefill":
            passes[stack.name] = local.prefill(stack.name)
        elif stack.name == "decoder":
            passes[stack.name] = local.decode()
    bits = element_bits(precision.activations)
    parts = stages(depth(model), parallel.pp)
    counts: Counter[tuple[int, Message]] = Counter()
    for stage, times, each in _messages(model, passes, parts, parallel):
        if each.ranks > 1 and each.elements:
            counts[stage, each] += times * each.count
    return tuple(
        Collective(each.kind, each.site, stage, count, int(-(-each.elements * bits // 8)), each.ranks)
        for (stage, each), count in counts.items()
        if count
    )


def _messages(
    model: Model, passes: dict[str, Pass], parts: list[range], parallel: Parallel
) -> Iterator[tuple[int, int, Message]]:
    """Yield stage, how often, and message."""
    first = 0
    for stack in model.stacks:
        p, tower = passes.get(stack.name), stack.name in TOWERS
        start, first = first, first + stack.depth * (not tower)
        if p is None:
            continue
        for blocks, at in ((stack.front, start), (stack.back, max(first - 1, start))):
            stage = 0 if tower else next((i for i, part in enumerate(parts) if at in part), 0)
            for leaf in (leaf for block in blocks for leaf in block.leaves()):
                yield from ((stage, 1, each) for each in _end_messages(leaf, stack.name, p, parallel))
        after = start
        for run in stack.runs:
            before, after = after, after + run.count * run.repeats
            found = list(_layer_messages(run.layer, stack.name, p, parallel))
            for stage, part in enumerate(parts[:1] if tower else parts):
                here = run.count * run.repeats if tower else len(overlap(part, before, after))
                yield from ((stage, here, each) for each in found)
    yield from _sends(model, passes, parts, parallel)


def _rows(p: Pass, leaf: Leaf, parallel: Parallel) -> int:
    """Return the rows of a pass that one rank of a stage's devices works on; a prompt's are divided by cp."""
    rows: int = leaf.rate * p.rows(leaf.feeds)
    return -(-rows // (parallel.cp if p.phase == "prefill" else 1))


def _end_messages(leaf: Leaf, stack: str, p: Pass, parallel: Parallel) -> Iterator[Message]:
    """Yield what a token table and a head cause."""
    if any(cut.along == "rows" for cut in leaf.split):
        yield Message("all-reduce", f"{stack} {leaf.name}", _rows(p, leaf, parallel) * leaf.n_out, parallel.tp)
    elif leaf.work == "head" and leaf.split:
        columns = padded(leaf.n_out, parallel.tp)
        yield Message("all-gather", f"{stack} logits", _rows(p, leaf, parallel) * columns, parallel.tp)


def _layer_messages(layer: Layer, stack: str, p: Pass, parallel: Parallel) -> Iterator[Message]:
    """Yield what one layer causes: its partial sums, its tokens sent to experts and its divided cache rows."""
    together = [layer.sublayers] if layer.parallel else [(sub,) for sub in layer.sublayers]
    for subs in together:
        site = f"{stack} " + " and ".join(getattr(sub.block, "name", type(sub.block).__name__) for sub in subs)
        sums: dict[tuple[int, int], int] = {}
        for leaf in (leaf for sub in subs for leaf in sub.block.leaves()):
            routed = leaf.work == "experts"
            whole = leaf.split if routed else ()  # experts that one rank each holds whole
            for cut in divided_by(leaf, stack, parallel._replace(ep=1)) or whole:
                if cut.along != "in":
                    continue
                ranks = parallel.ranks(cut, routed=routed and parallel.sends_tokens)
                own = parallel.attention_groups if ranks == parallel.attention_ranks or routed else 1
                rows = -(-_rows(p, leaf, parallel) // (own if not routed or parallel.sends_tokens else 1))
                sums[leaf.n_out, ranks] = max(rows, sums.get((leaf.n_out, ranks), 0))
                if routed and parallel.sends_tokens:
                    elements = int(-(-rows * leaf.visited // 1)) * leaf.n_out
                    yield Message("all-to-all", f"{site}, to and from experts", elements, parallel.ep, 2)
        yield from (Message("all-reduce", site, rows * width, ranks) for (width, ranks), rows in sums.items())
    yield from _row_messages(layer, stack, p, parallel)


def _row_messages(layer: Layer, stack: str, p: Pass, parallel: Parallel) -> Iterator[Message]:
    """Yield what ranks that divide the rows of caches send each other."""
    if parallel.cp == 1:
        return
    sequences = -(-p.batch // parallel.attention_groups)
    if p.phase == "prefill":
        for cache in layer.caches:
            if cache.kind == "self" and cache.owner:
                held = held_elements(cache.row, cache.split, parallel)
                yield Message("all-gather", f"{stack} new cache rows", sequences * p.new * held, parallel.cp)
        return
    for core in layer.cores:
        if getattr(core, "cache", None) is not None:
            heads, width = getattr(core, "heads", 0), getattr(core, "absorbed_v", 0) or getattr(core, "v", 0)
            elements = sequences * p.new * heads // parallel.attention_ranks * width
            yield Message("all-gather", f"{stack} partial outputs", elements * parallel.cp, parallel.cp)


def _sends(
    model: Model, passes: dict[str, Pass], parts: list[range], parallel: Parallel
) -> Iterator[tuple[int, int, Message]]:
    """Yield what each stage sends to the next: the rows of its last layer, and an encoder's output to its readers."""
    ends: list[tuple[int, Stack]] = []
    for stack in model.stacks:
        if stack.name not in TOWERS:
            ends.append(((ends[-1][0] if ends else 0) + stack.depth, stack))
    cp = parallel.cp
    for stage, part in enumerate(parts[:-1]):
        for end, stack in ends:
            p = passes.get(stack.name)
            start = end - stack.depth
            passed = start < part.stop <= end or (end < part.stop and stack.name == "encoder")
            if p is not None and passed:
                rows = -(-p.rows("new") // (cp if p.phase == "prefill" else 1))
                yield stage, 1, Message("send", f"{stack.name} rows", rows * _width(stack), 2)


def _width(stack: Stack) -> int:
    """Return D, the width of the rows between layers."""
    for run in stack.runs:
        for sub in run.layer.sublayers:
            for norm in (run.layer.before, sub.before, sub.after, sub.join):
                if norm is not None:
                    return norm.width
    return max((leaf.n_out for leaf in stack.outside if leaf.part == "embedding"), default=0)
