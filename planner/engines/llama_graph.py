"""A graph of operations, and the memory that ggml sets aside for its results: results take over what others no longer need.

ggml walks the operations in the order in which they are reached from what is asked for. A result overwrites an operand where its
operation may and nobody else reads that; else it takes the smallest free gap that holds it, or grows the buffer. An operand is
freed once all that read it have run. Views own nothing. The size of the buffer is the highest end of any result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

ALIGNMENT = 32
"""Bytes that results start at a multiple of, on a CPU (ggml-impl.h, TENSOR_ALIGNMENT)."""

CARD_ALIGNMENT = 128
"""The same on a CUDA device."""

OVERWRITES = frozenset({
    "fill", "scale", "add", "add_id", "sub", "mul", "div", "sqr", "sqrt", "log", "unary", "rope", "rms_norm", "clamp", "soft_max",
})  # fmt: skip
"""Operations whose result may take its operand's place (ggml-alloc.c, ggml_op_can_inplace); layer norms and gates may not."""

Shape = tuple[int, ...]


@dataclass(eq=False, slots=True)
class Tensor:
    """A result, an input or a weight.

    Attributes:
        shape: elements along each of four axes, the fastest first.
        width: bytes of an element.
        op: what computes it, "" for inputs and weights.
        sources: its operands, in order.
        of: the tensor that it is a view of.
        stored: lies elsewhere (weights, caches).
        asked: is read after the graph has run, so that it is never freed.
    """

    shape: Shape
    width: int = 4
    op: str = ""
    sources: tuple[Tensor, ...] = ()
    of: Tensor | None = None
    stored: bool = False
    asked: bool = False

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.shape) * self.width


def axes(shape: Sequence[int]) -> Shape:
    """Return a shape of four axes."""
    return (*shape, *(1,) * (4 - len(shape)))


WEIGHT = Tensor(axes((1,)), stored=True)
"""Stands for any operand that lies elsewhere: its shape changes nothing."""


def given(*shape: int, width: int = 4) -> Tensor:
    """Return an input that a caller fills in before each run."""
    return Tensor(axes(shape), width)


def op(name: str, shape: Sequence[int], *sources: Tensor, width: int = 4) -> Tensor:
    """Return the result of an operation."""
    return Tensor(axes(shape), width, name, sources)


def like(name: str, first: Tensor, *sources: Tensor) -> Tensor:
    """Return the result of an operation that keeps its first operand's shape."""
    return Tensor(first.shape, first.width, name, (first, *sources))


def view(source: Tensor, *shape: int) -> Tensor:
    """Return other axes, or a part, of a tensor."""
    return Tensor(axes(shape), source.width, "view", (source,), source.of or source)


def store(rows: Tensor, *sources: Tensor) -> Tensor:
    """Return rows written to a cache: a view of that."""
    return Tensor(rows.shape, rows.width, "store", (rows, *sources, WEIGHT), WEIGHT)


@dataclass(slots=True)
class Graph:
    """Operations in the order in which they run, and the inputs and weights in the order in which they are met."""

    nodes: list[Tensor] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)
    met: set[int] = field(default_factory=set)

    def want(self, *tensors: Tensor) -> None:
        """Add what tensors need, operands first, and themselves."""
        for tensor in tensors:
            self._visit(tensor)

    def _visit(self, tensor: Tensor) -> None:
        todo = [(tensor, iter(tensor.sources))] if id(tensor) not in self.met else []
        self.met.add(id(tensor))
        while todo:
            current, rest = todo[-1]
            ahead = next((each for each in rest if id(each) not in self.met), None)
            if ahead is not None:
                self.met.add(id(ahead))
                todo.append((ahead, iter(ahead.sources)))
                continue
            todo.pop()
            (self.nodes if current.op else self.leaves).append(current)


class Arena:
    """Free gaps of a buffer, as (start, size) in order; the last one has no end."""

    def __init__(self, alignment: int) -> None:
        """Start with nothing taken."""
        self.alignment = alignment
        self.gaps: list[tuple[int, int]] = [(0, 2**62)]
        self.size = 0

    def padded(self, size: int) -> int:
        """Return a size up to the next start."""
        return -(-size // self.alignment) * self.alignment

    def take(self, size: int) -> int:
        """Return the start of the smallest gap that holds it, the last of equal ones; the endless one if none does."""
        size = self.padded(size)
        best = len(self.gaps) - 1
        least = None
        for index, (_, room) in enumerate(self.gaps[:-1]):
            if size <= room and (least is None or room <= least):
                best, least = index, room
        start, room = self.gaps[best]
        if room == size:
            del self.gaps[best]
        else:
            self.gaps[best] = (start + size, room - size)
        self.size = max(self.size, start + size)
        return start

    def free(self, start: int, size: int) -> None:
        """Give a piece back, and join it with the gaps beside it."""
        size = self.padded(size)
        index = next(number for number, (begin, _) in enumerate(self.gaps) if begin > start)
        begin, room = self.gaps[index]
        if start + size == begin:
            del self.gaps[index]
            size += room
        if index and sum(self.gaps[index - 1]) == start:
            start, before = self.gaps.pop(index - 1)
            size += before
            index -= 1
        self.gaps.insert(index, (start, size))


def peak(graph: Graph, alignment: int = ALIGNMENT) -> int:
    """Return the bytes of the buffer that the graph's results and inputs live in."""
    arena = Arena(alignment)
    readers: Counter[int] = Counter(id(source) for node in graph.nodes for source in node.sources)
    views: Counter[int] = Counter(id(node.of) for node in graph.nodes if node.of)
    starts: dict[int, int] = {}

    def place(tensor: Tensor) -> None:
        if tensor.stored or tensor.of or not tensor.size or id(tensor) in starts:
            return
        heir = _overwritten(tensor, readers, views, starts)
        if heir is None:
            starts[id(tensor)] = arena.take(tensor.size)
        else:
            starts[id(tensor)] = starts.pop(id(heir))

    def release(tensor: Tensor) -> None:
        if not tensor.asked and id(tensor) in starts:
            arena.free(starts.pop(id(tensor)), tensor.size)

    for leaf in graph.leaves:
        place(leaf)
    for node in graph.nodes:
        place(node)
        for source in node.sources:
            readers[id(source)] -= 1
            if readers[id(source)] or views[id(source)]:
                continue
            owner = source.of
            if owner is None:
                release(source)
                continue
            views[id(owner)] -= 1
            if not views[id(owner)] and not readers[id(owner)]:
                release(owner)
    return arena.size


def _overwritten(tensor: Tensor, readers: Counter[int], views: Counter[int], starts: Iterable[int]) -> Tensor | None:
    """Return the operand whose place a result takes: as large, not a view, and read by nobody else."""
    if tensor.op not in OVERWRITES:
        return None
    for source in tensor.sources:
        free = id(source) in starts and source.of is None and not source.asked
        same = (source.shape, source.width) == (tensor.shape, tensor.width)
        if free and same and readers[id(source)] == 1 and not views[id(source)]:
            return source
    return None
