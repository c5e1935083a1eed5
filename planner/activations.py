"""Peak activation bytes: a fold over a pass's operations of what is alive while each of them runs.

A block is three moments: its opening products read the normed rows and write queries, keys, gates ...; the core (attention,
a scan, an activation function) reads those and writes what the closing products read; the closing products write rows of
model width again. The residual rows are alive throughout. What else is, depends on the program (`RULES`). R rows are all
tokens of all prompts at once: no chunks.

Letters: D model width, F hidden width, H heads, P prompt tokens, R rows (sequences x tokens of the pass).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from planner.blocks import Attend, Block, Leaf, Norm, Rope, Table
from planner.engines import Engine
from planner.model import Layer, Model, Stack
from planner.precision import Precision, element_bits
from planner.shard import Parallel, divided_by, held_elements, overlap
from planner.workload import Pass, Workload


@dataclass(frozen=True, slots=True)
class Rules:
    """What one program keeps.

    Attributes:
        names_rows: callers' variables keep rows alive: looked-up embeddings, a layer's input, a block's normed input, cosines
            and sines of the positions, masks of windows; windows' caches are views of all the prompt's rows.
        in_place: activation functions and products of gates overwrite what they read.
        norm_copies: float32 copies of the rows while a root-mean-square norm runs.
        turned: tensors as large as the queries that are alive beside them while rotary positions turn them.
        float_logits: logits that are sampled from are copied to float32.
        relative_indices: P x P tensors of 64-bit whole numbers that make up relative positions.
        writes_capped_scores: scores with a soft cap are written, H x P x P, and widened to float32 before and after their
            softmax, keys and values repeated for all heads; the weights stay until the layer ends, the masks of full and of sliding layers until the stack does.
        sorts_experts: rows are copied to each expert that they visit; its results are weighted and put back in order, in
            float32 where routers are (DeepSeek and its like: a shared expert without a gate).
        frame_rows: tensors as large as the residual rows that are alive beside, whatever runs.
        experts_apart: experts' rows are in buffers that stay, which is counted elsewhere.
        function_copies: tensors as wide as the hidden rows, the input and the output included, by activation function; others
            take 2.
    """

    names_rows: bool = False
    in_place: bool = True
    norm_copies: int = 0
    turned: int = 0
    float_logits: bool = False
    relative_indices: int = 0
    writes_capped_scores: bool = False
    sorts_experts: bool = False
    frame_rows: float = 0.0
    experts_apart: bool = False
    function_copies: dict[str, int] = field(default_factory=dict)


FUSED = Rules()
"""`ideal`: everything elementwise is fused with the product before it; attention writes no scores."""

EAGER = Rules(
    names_rows=True, in_place=False, norm_copies=2, turned=3, float_logits=True, relative_indices=6, writes_capped_scores=True,
    sorts_experts=True,
    function_copies={"gelu_new": 4, "gelu_fast": 4, "quick_gelu": 3},
)  # fmt: skip
"""transformers without torch.compile: one kernel for each operation of a line of Python; scores are never written (SDPA)."""

RULES = {"transformers": EAGER}


def rules_of(engine: Engine) -> Rules:
    """Return an engine's rules."""
    return RULES.get(engine.name, FUSED)


class Place(NamedTuple):
    """One device's part of a model.

    Attributes:
        parallel: how it is spread. layers: numbers of the decoder's layers that it holds, None: all.
        first, last: whether it holds what stands before and after the layers.
    """

    parallel: Parallel = Parallel()
    layers: range | None = None
    first: bool = True
    last: bool = True


class Moment(NamedTuple):
    """One operation ("decoder prefill, mlp, opening products") and the bytes alive while it runs."""

    name: str
    alive_bytes: int


ALONE = Place()


def peak(model: Model, work: Workload, precision: Precision, rules: Rules, place: Place = ALONE) -> Moment:
    """Return the moment of the prefill or of a decode step at which most is alive."""
    return max(moments(model, work, precision, rules, place), key=lambda moment: moment.alive_bytes)


def moments(model: Model, work: Workload, precision: Precision, rules: Rules, place: Place = ALONE) -> Iterator[Moment]:
    """Yield every operation of the prefill and of a decode step, equal layers once."""
    yield Moment("nothing runs", 0)
    local = work._replace(batch=-(-work.batch // place.parallel.dp))
    for stack in model.stacks:
        passes = [local.prefill(stack.name), *([local.decode()] if stack.name == "decoder" else [])]
        for p in passes:
            if p.batch and p.new:
                yield from _Bench(stack, p, model.engine, precision, rules, place).moments()


class _Bench:
    """One stack in one pass on one device."""

    def __init__(self, stack: Stack, p: Pass, engine: Engine, precision: Precision, rules: Rules, place: Place) -> None:
        self.stack, self.p, self.engine, self.rules, self.place = stack, p, engine, rules, place
        self.cache_element = element_bits(precision.cache) / 8
        self.element = element_bits(precision.activations) / 8
        self.where = f"{stack.name} {p.phase}"
        self.parts = place.parallel.cp if p.phase == "prefill" else 1
        self.tokens = -(-p.batch * p.new // self.parts)

    def bytes(self, elements: float) -> int:
        """Return the bytes of so many elements."""
        return ceil(elements * self.element)

    def rows(self, leaf: Leaf) -> int:
        """Return the rows that a leaf works on, on this device."""
        rows = int(self.p.rows(leaf.feeds) * leaf.rate)
        return rows if leaf.feeds in {"last", "sequence"} else -(-rows // self.parts)

    def moments(self) -> Iterator[Moment]:
        """Yield all operations in order."""
        held = self.encoded()
        if self.place.first:
            for block in self.stack.front:
                yield from self.block(block, "front", held, residual=0)
        outside = held
        if self.rules.names_rows:
            yield from self.relative(held)
            held += self.named()
        depth = 0
        worked = set()
        for run in self.stack.runs:
            numbers = range(depth, depth + run.count * run.repeats)
            depth = numbers.stop
            if run.layer in worked:  # alternating layers are runs of one each
                continue
            here = self.place.layers if self.stack.name == "decoder" else None
            if here is None or max(numbers.start, here.start) < min(numbers.stop, here.stop):
                worked.add(run.layer)
                yield from self.layer(run.layer, held)
        if self.place.last:
            yield from self.heads(outside)

    def encoded(self) -> int:
        """Return the bytes of the encoder's rows, which the decoder reads."""
        width = max((leaf.n_in for _, _, leaf in self.stack.leaves() if leaf.feeds == "memory"), default=0)
        return self.bytes(self.p.batch * self.p.memory * width)

    def named(self) -> int:
        """Return the bytes of what variables of the model's own loop keep: embeddings, position tables, biases."""
        elements = 0
        joined = any(isinstance(block, Norm) for block in self.stack.front)  # in a module of their own: one result
        elements += self.tokens * _width(self.stack.runs[0].layer) * joined if self.stack.runs else 0
        for block in self.stack.front:
            if isinstance(block, Table) and not joined:
                elements += block.width * (self.p.new if block.index == "position" else self.tokens)
        ropes = [_rope(block) for run in self.stack.runs[:1] for block in run.layer.blocks]
        widths = [rope.width for rope in ropes if rope]
        elements += 2 * self.p.new * sum(widths[:1])
        pairs = self.p.new * (self.p.past + self.p.new)
        elements += sum(leaf.n_out for leaf in self.biases()) * pairs
        if any(self.capped_heads(block) for run in self.stack.runs for block in run.layer.blocks):
            masks = {mask.window for mask in self.stack.masks}
            elements += len(masks) * self.p.batch * pairs
        hidden = any(mask.window and mask.window < self.p.new for mask in self.stack.masks)
        hidden = hidden and not any(self.capped_heads(block) for run in self.stack.runs for block in run.layer.blocks)
        return self.bytes(elements) + int(8 * self.p.new * bool(widths) + pairs * hidden) + self.unkept()

    def unkept(self) -> int:
        """Return the bytes of prompt rows that windows have left: until the first step caches are views of all rows."""
        if self.p.phase != "prefill" or self.stack.name != "decoder":
            return 0
        elements = first = 0
        for run in self.stack.runs:
            stop = first + run.count * run.repeats
            count = len(overlap(self.place.layers, first, stop)) if self.place.layers is not None else stop - first
            first = stop
            for cache in run.layer.caches:
                if cache.owner and (cache.window or cache.chunk):
                    left = max(self.p.new - cache.kept(self.p.new, self.engine), 0)
                    row = held_elements(cache.row, cache.split, self.place.parallel)
                    elements += count * self.p.batch * left * row
        return ceil(elements * self.cache_element)

    def biases(self) -> list[Leaf]:
        """Return the tables of relative positions, one row for each bucket."""
        return [leaf for _, _, leaf in self.stack.leaves() if leaf.name == "relative_attention_bias"][:1]

    def relative(self, held: int) -> Iterator[Moment]:
        """Yield the moment at which relative positions are sorted into buckets, as 64-bit whole numbers."""
        if self.biases():
            pairs = self.p.new * (self.p.past + self.p.new)
            first = self.stack.runs[0].layer
            opened = [leaf for leaf in first.sublayers[0].block.leaves() if leaf.work and leaf.name != "o_proj"]
            rows = self.bytes(2 * self.tokens * _width(first)) + sum(self.written(leaf) for leaf in opened)
            alive = held + rows + 8 * self.rules.relative_indices * pairs
            yield Moment(f"{self.where}, relative positions", alive)

    def layer(self, layer: Layer, held: int) -> Iterator[Moment]:
        """Yield a layer's operations; of sublayers side by side, each output waits for the others."""
        residual = self.bytes(self.tokens * _width(layer))
        waiting = 0
        for index, sub in enumerate(layer.sublayers):
            before = sub.before or layer.before
            kept = residual if self.rules.names_rows and index and not layer.parallel else 0  # the layer's input
            kept += self.bytes(sum(self.score_elements(each.block) for each in layer.sublayers[:index]))
            base = held + kept + waiting + int(self.rules.frame_rows * residual)
            if before and not (layer.before and index):
                yield self.norm(before, base + residual)
            name = getattr(sub.block, "name", type(sub.block).__name__.lower())
            later = layer.parallel and index < len(layer.sublayers) - 1
            yield from self.block(
                sub.block, name, base, residual=residual, normed=residual if before else 0, again=later
            )
            for norm in (sub.after, sub.join):
                if norm:
                    yield self.norm(norm, base + residual * (1 + (norm is sub.join)))
            waiting += residual * layer.parallel

    def norm(self, norm: Norm, alive: int) -> Moment:
        """Return a norm's moment: what it reads is in `alive`; it writes as much, and may widen it before."""
        elements = self.tokens * norm.width
        copies = self.rules.norm_copies if norm.kind == "rms" else 0
        return Moment(f"{self.where}, {norm.name}", alive + self.bytes(elements) + 4 * copies * elements)

    def block(
        self, block: Block, name: str, held: int, *, residual: int, normed: int = 0, again: bool = False
    ) -> Iterator[Moment]:
        """Yield a block's moments on top of the residual rows; `again`: another block reads the same normed rows."""
        elsewhere = {"head", "experts"} if self.rules.experts_apart else {"head"}
        leaves = [leaf for leaf in block.leaves() if leaf.work and leaf.work not in elsewhere and self.rows(leaf)]
        if not leaves:
            return
        closing = _closing(leaves)
        opened = sum(self.written(leaf) for leaf in leaves if leaf not in closing)
        read = sum(self.read(leaf) for leaf in closing)
        closed = sum(self.written(leaf) for leaf in closing)
        routed = [leaf for leaf in closing if leaf.work == "experts" and self.rules.sorts_experts]
        base, where = held + residual, f"{self.where}, {name}"
        kept = normed if self.rules.names_rows or again else 0
        yield Moment(f"{where}, opening products", base + normed + opened)
        if any(isinstance(core, Attend) for core in block.cores()):
            if self.rules.turned and _rope(block):
                queries = max((self.written(leaf) for leaf in leaves if leaf.name == "q_proj"), default=0)
                yield Moment(f"{where}, rotary positions", base + kept + opened + self.rules.turned * queries)
            scores = self.score_elements(block)
            repeated = 2 * sum(self.written(leaf) for leaf in leaves if leaf.name == "q_proj") * bool(scores)
            wide = self.bytes(scores) + 2 * 4 * scores + repeated
            yield Moment(f"{where}, attention", base + kept + opened + read + wide)
        elif block.cores():
            yield Moment(f"{where}, core", base + kept + opened + read)
        elif not self.rules.in_place and opened:
            copies = self.rules.function_copies.get(getattr(block, "activation", ""), 2)
            sorted_rows = sum(self.bytes(self.visiting(leaf) * leaf.n_out) for leaf in routed)
            function = base + kept + sorted_rows + max(copies * read, opened + read * (2 if routed else 1))
            yield Moment(f"{where}, activation function", function)
        if routed:
            rows = sum(self.visiting(leaf) * leaf.n_out for leaf in routed)
            wide = getattr(block, "shared", 0) and not getattr(block, "shared_gate", False)
            weighted = 4 * ceil(rows) if wide else self.bytes(rows)
            yield Moment(f"{where}, experts' results", base + kept + 2 * self.bytes(rows) + 2 * weighted)
        yield Moment(f"{where}, closing products", base + kept + read + closed)

    def capped_heads(self, block: Block) -> int:
        """Return the heads whose scores are written out."""
        if not self.rules.writes_capped_scores or getattr(block, "softcap", None) is None:
            return 0
        return sum(core.heads for core in block.cores() if isinstance(core, Attend))

    def score_elements(self, block: Block) -> int:
        """Return the scores that are written out."""
        return int(self.capped_heads(block) * self.p.batch * self.p.new * (self.p.past + self.p.new))

    def written(self, leaf: Leaf) -> int:
        """Return the bytes of a product's results on this device."""
        width = self.held(leaf.n_out, leaf) if any(cut.along == "out" for cut in leaf.split) else leaf.n_out
        return self.bytes(self.visiting(leaf) * width)

    def read(self, leaf: Leaf) -> int:
        """Return the bytes that a product reads on this device."""
        width = self.held(leaf.n_in, leaf) if any(cut.along == "in" for cut in leaf.split) else leaf.n_in
        return self.bytes(self.visiting(leaf) * width)

    def held(self, width: int, leaf: Leaf) -> int:
        """Return the columns of a product on this device, as its weights are divided."""
        parallel = self.place.parallel
        cuts = divided_by(leaf, self.stack.name, parallel)
        return held_elements(width, cuts, parallel, routed=leaf.work == "experts")

    def visiting(self, leaf: Leaf) -> float:
        """Return the rows that copies of a leaf work on, on this device."""
        return self.rows(leaf) * self.visits(leaf)

    def visits(self, leaf: Leaf) -> float:
        """Return the copies that a row visits on this device, experts being chosen evenly."""
        parallel, visited = self.place.parallel, float(leaf.visited)
        if leaf.work != "experts" or parallel.ep == 1:
            return visited
        senders = min(parallel.ep, parallel.stage_devices // parallel.tp) if parallel.sends_tokens else 1
        return visited * senders / parallel.ep

    def heads(self, held: int) -> Iterator[Moment]:
        """Yield the final norm and the head."""
        width = _width(self.stack.runs[-1].layer) if self.stack.runs else 0
        residual = self.bytes(self.tokens * width)
        normed = 0
        for block in self.stack.back:
            if isinstance(block, Norm):
                yield self.norm(block, held + residual)
                normed = residual
                continue
            for leaf in block.leaves():
                if not leaf.work or not self.rows(leaf):
                    continue
                alive = self.written(leaf)
                if leaf.work == "head" and self.place.parallel.tp > 1:
                    alive += self.bytes(self.rows(leaf) * leaf.n_out)  # gathered from all ranks
                if leaf.work == "head" and leaf.feeds == "last" and self.rules.float_logits:
                    alive += 4 * self.rows(leaf) * leaf.n_out
                entering = self.bytes(self.rows(leaf) * leaf.n_in)
                rows = residual + normed if self.rules.names_rows else entering
                yield Moment(f"{self.where}, {leaf.name}", held + rows + alive)


def _closing(leaves: list[Leaf]) -> list[Leaf]:
    """Return the products that write rows of model width: those that ranks cut along their input, else the last one."""
    width = leaves[0].n_in
    found = [leaf for leaf in leaves if leaf.n_out == width and any(cut.along == "in" for cut in leaf.split)]
    return found or [leaf for leaf in leaves[1:] if leaf.n_out == width][-1:]


def _rope(block: Block) -> Rope | None:
    """Return the rotary positions of a block, wherever it says so."""
    found = (getattr(block, name, None) for name in ("rope", "rope_positions"))
    return next((each for each in found if isinstance(each, Rope)), None)


def _width(layer: Layer) -> int:
    """Return the width of the rows that a layer adds to."""
    for sub in layer.sublayers:
        for leaf in sub.block.leaves():
            if leaf.work and leaf.feeds != "memory":
                return leaf.n_in
    return next((block.width for block in layer.blocks if isinstance(block, Norm)), 0)
