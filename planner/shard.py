"""Who holds what: weights and caches of each device, from how leaves and caches say that they divide.

Pipeline stages are contiguous runs of layers, as even as can be. In a stage, `tp` ranks divide what a `Split` divides and
hold the rest whole; `ep` ranks, of those of the stage, divide routed experts; `cp` ranks divide the rows of caches; `dp`
ranks divide sequences. All devices of a stage hold equally much, so that one `Share` with a count stands for them.

Everything is checked by one law: what a device holds of a tensor, times the parts that it is divided into, is the tensor (and
the padding that dividing it takes). A tensor in fewer parts than there are ranks is named as replicated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from math import gcd, lcm
from typing import NamedTuple

from planner.blocks import Cache, Leaf, Split, Splits
from planner.errors import PlanError
from planner.model import Model, Run, Stack
from planner.precision import Format, Precision, Tensors, cache_bits, format_named, stored
from planner.workload import Workload

TOWERS = {"vision", "audio"}
"""Stacks that stand on the first pipeline stage, and are held whole where their heads don't divide."""

VOCABULARY_ROWS = 64
"""Vocabularies are padded to a multiple of this and of tp (vLLM, layers/vocab_parallel_embedding.py: 64, then divided)."""

PADDED = {"mxfp4"}
"""Formats whose kernels pad what a rank holds to whole blocks (vLLM, quantization/mxfp4.py), so that any size will do."""

SHOWN = 16
"""Sizes that a message lists."""


class Parallel(NamedTuple):
    """How a model is spread over devices.

    Attributes:
        tp: ranks that divide heads, hidden widths and the vocabulary.
        pp: stages of layers. dp: copies, each with sequences of its own.
        ep: ranks that divide routed experts: tp ranks first, which then divide each expert by tp / ep only; beyond tp those
            of other copies too, as engines do that send tokens to experts.
        cp: ranks that divide the rows of caches, and the tokens of a prompt.
        attention_groups: tp ranks fall into so many groups with sequences of their own, each of which divides heads among
            itself only (SGLang's --enable-dp-attention): latents are then not on every rank.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    cp: int = 1
    attention_groups: int = 1

    @property
    def stage_devices(self) -> int:
        """Devices of one pipeline stage."""
        return self.tp * self.dp * self.cp

    @property
    def devices(self) -> int:
        """All devices."""
        return self.pp * self.stage_devices

    @property
    def attention_ranks(self) -> int:
        """Ranks that divide heads."""
        return self.tp // self.attention_groups

    @property
    def expert_ranks(self) -> int:
        """Ranks that divide each routed expert."""
        return max(self.tp // self.ep, 1)

    @property
    def sends_tokens(self) -> bool:
        """Whether tokens are sent to experts: not where all ranks that divide experts have the same tokens."""
        return self.ep > 1 and self.dp * self.cp * self.attention_groups > 1

    def ranks(self, each: Split, *, routed: bool = False) -> int:
        """Return the ranks that divide a split."""
        if routed:
            return self.expert_ranks
        return self.tp if each.unit in {"hidden channels", "vocabulary"} else self.attention_ranks


class Piece(NamedTuple):
    """What a device holds of equal tensors, or of equal caches, of its stage.

    Attributes:
        name: path of the tensor, or "cache." and its kind. bytes: held, padding included.
        parts: that the whole is divided into; 1 is on every rank.
        padding_bytes: what all parts together have beyond the tensor: rows of no token, scales of blocks that are cut.
        group: ranks that could divide it.
        part: the tensor's, as in params.by_block; "" for caches.
        layers: that have one each, by their numbers among those that stages divide; none: beside the layers.
    """

    name: str
    bytes: int
    parts: int
    padding_bytes: int = 0
    group: int = 1
    part: str = ""
    layers: tuple[int, ...] = ()


class Share(NamedTuple):
    """What each of `count` devices of a pipeline stage holds.

    Attributes:
        stage: 0 is the first. count: equal devices. layers: executed by it.
        weights: by tensor. caches: of equal layers.
    """

    stage: int
    count: int  # type: ignore[assignment]  # not the method that tuples have
    layers: int
    weights: tuple[Piece, ...]
    caches: tuple[Piece, ...]

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights of one device."""
        return sum(piece.bytes for piece in self.weights)

    @property
    def cache_bytes(self) -> int:
        """Bytes of caches of one device."""
        return sum(piece.bytes for piece in self.caches)

    @property
    def replicated(self) -> dict[str, int]:
        """Bytes of one device that other ranks hold too, though they divide other tensors, by name."""
        found: Counter[str] = Counter()
        for piece in (*self.weights, *self.caches):
            if piece.parts < piece.group:
                found[piece.name] += piece.bytes
        return dict(found)

    @property
    def padding_bytes(self) -> int:
        """Bytes of one device that it needs only because tensors are divided: rows of no token, scales of cut blocks."""
        return sum(piece.padding_bytes // piece.parts for piece in self.weights)


# --- what is allowed


class Limit(NamedTuple):
    """Something that ranks must divide, or be a multiple of."""

    split: Split
    path: str
    routed: bool

    def allows(self, parallel: Parallel) -> bool:
        """Return whether it can be divided so."""
        return _fits(self.split, parallel.ranks(self.split, routed=self.routed))


def _fits(each: Split, ranks: int) -> bool:
    return each.units % ranks == 0 or (each.repeats and ranks % each.units == 0) or each.unit == "vocabulary"


def _limits(model: Model) -> tuple[Limit, ...]:
    """Return what bounds tp, each once."""
    found: dict[tuple[Split, bool], str] = {}
    for place in model.places:
        for each in place.leaf.split if place.stack not in TOWERS else ():
            found.setdefault((each._replace(size=0, along="out"), place.leaf.work == "experts"), place.path)
    for stack in model.stacks:
        for each in (each for cache in stack.caches for each in cache.split):
            found.setdefault((each._replace(size=0), False), f"the {stack.name}'s cache")
    return tuple(Limit(each, path, routed) for (each, routed), path in found.items() if each.unit != "vocabulary")


def _experts(model: Model) -> dict[int, str]:
    """Return the numbers of routed experts of a layer, and where."""
    return {place.leaf.copies: place.path for place in model.places if place.leaf.work == "experts"}


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _listed(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes[:SHOWN])) + ", ..." * (len(sizes) > SHOWN)


def legal_tp(model: Model, parallel: Parallel | None = None) -> list[int]:
    """Return the tensor-parallel sizes that divide everything, with the other sizes as given; up to 64 if nothing bounds."""
    base = parallel or Parallel()
    limits = _limits(model)
    most = gcd(*(limit.split.units for limit in limits if not limit.split.repeats)) * base.attention_groups * base.ep
    sizes = _divisors(most) if most else [1, 2, 4, 8, 16, 32, 64]
    tried = [base._replace(tp=n) for n in sizes]
    return [p.tp for p in tried if not _illegal_groups(p) and all(limit.allows(p) for limit in limits)]


def depth(model: Model) -> int:
    """Return the layers that pipeline stages divide."""
    return sum(stack.depth for stack in model.stacks if stack.name not in TOWERS)


def legal(model: Model, parallel: Parallel, precision: Precision | None = None) -> PlanError | None:
    """Return why a model can't be spread so; None: it can.

    Args:
        model: as described.
        parallel: sizes.
        precision: weights, whose groups of elements with common scales must not be cut; None: not looked at.
    """
    for name, size in parallel._asdict().items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            return PlanError(f"found {size!r}, a whole number from 1 is needed", where=_option(name), fix="correct it")
    return (
        _illegal_groups(parallel)
        or _illegal_tp(model, parallel)
        or _illegal_ep(model, parallel)
        or _illegal_pp(model, parallel.pp)
        or (_cut_scales(model, parallel, precision) if precision else None)
    )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _illegal_groups(parallel: Parallel) -> PlanError | None:
    if parallel.tp % parallel.attention_groups:
        return PlanError(
            f"found {parallel.attention_groups}, which doesn't divide --tp {parallel.tp}",
            where="--attention-groups", fix=f"choose one of {_listed(_divisors(parallel.tp))}",
        )  # fmt: skip
    return None


def _illegal_tp(model: Model, parallel: Parallel) -> PlanError | None:
    bad = [limit for limit in _limits(model) if not limit.allows(parallel)]
    if not bad:
        return None
    causes = [
        f"the {each.split.units:,} {each.split.unit} of {each.path} "
        + ("neither divide by it nor divide it" if each.split.repeats else "don't divide by it")
        for each in bad
    ]
    causes += [
        f"the vocabulary of {n:,} doesn't either, and would be padded to {padded(n, parallel.tp):,} rows"
        for n in _vocabularies(model)
        if n % parallel.tp
    ]
    sizes = _listed(legal_tp(model, parallel))
    return PlanError(f"found {parallel.tp}, but {'; '.join(causes)}", where="--tp", fix=f"{model.name} allows {sizes}")


def _vocabularies(model: Model) -> list[int]:
    """Return the rows of the tables that ranks divide, smallest first."""
    return sorted({cut.units for place in model.places for cut in place.leaf.split if cut.unit == "vocabulary"})


def _illegal_ep(model: Model, parallel: Parallel) -> PlanError | None:
    tp, ep, all_ = parallel.tp, parallel.ep, parallel.stage_devices
    counts = _experts(model)
    if ep == 1:
        return None
    if not counts:
        return PlanError(f"found {ep}, but {model.name} has no routed experts", where="--ep", fix="leave it out")

    def fits(size: int) -> bool:
        spread = tp % size == 0 or (size % tp == 0 and all_ % size == 0)
        return spread and all(count % size == 0 for count in counts)

    if fits(ep):
        return None
    count, path = next(((n, path) for n, path in counts.items() if n % ep), (0, ""))
    cause = (
        f"the {count:,} experts of {path} don't divide by it"
        if count
        else f"it neither divides --tp {tp} nor is a multiple of it that divides the {all_} devices of a stage"
    )
    sizes = _listed([n for n in _divisors(gcd(*counts)) if fits(n)])
    return PlanError(f"found {ep}, but {cause}", where="--ep", fix=f"{model.name} allows {sizes} there")


def _illegal_pp(model: Model, pp: int) -> PlanError | None:
    layers = depth(model)
    if pp > max(layers, 1):
        return PlanError(
            f"found {pp}, but there are {layers} layers", where="--pp", fix=f"choose 1 to {max(layers, 1)}"
        )
    if pp > 1 and any(run.repeats > 1 for stack in model.stacks for run in stack.runs):
        return PlanError(
            f"found {pp}, but {model.name} runs the same layers several times, so that rows would go round",
            where="--pp", fix="choose 1",
        )  # fmt: skip
    return None


def _cut_scales(model: Model, parallel: Parallel, precision: Precision) -> PlanError | None:
    """Return the matrices whose quantised blocks the ranks would cut, which engines refuse; sizes that cut none."""
    cut_by: dict[tuple[int, int], str] = {}
    allowed = set(_divisors(parallel.tp))
    whole_experts = False
    for each in stored(model, precision):
        leaf, form = each.place.leaf, format_named(each.format)
        if form.mixture or form.flat or form.name in PADDED or each.place.stack in TOWERS:
            continue
        routed = leaf.work == "experts"
        for cut in leaf.split:
            width, block = (leaf.n_in, form.group) if cut.along == "in" else (cut.size or leaf.n_out, form.group_out)
            if cut.along in {"rows", "copies"} or not block or block == 1:
                continue
            allowed -= {n for n in allowed if _cuts(cut, width, block, parallel._replace(tp=n), routed)}
            if _cuts(cut, width, block, parallel, routed):
                held = held_elements(width, (cut._replace(size=0),), parallel, routed=routed)
                whole_experts |= routed
                cut_by.setdefault(
                    (width, block),
                    f"a rank's {held:,} of the {width:,} of {each.path} "
                    f"aren't whole blocks of {block} that share a scale ({each.format})",
                )
    if not cut_by:
        return None
    return PlanError(
        f"found {parallel.tp}, but {'; '.join(cut_by.values())}",
        where="--tp",
        fix=f"choose one of {_listed(sorted(allowed))}" + ", or divide whole experts with --ep" * whole_experts,
    )


def _cuts(cut: Split, width: int, block: int, parallel: Parallel, routed: bool) -> bool:
    if parallel.tp % parallel.attention_groups or (routed and parallel.tp < parallel.ep):
        return False
    ranks = parallel.ranks(cut, routed=routed)
    return ranks > 1 and held_elements(width, (cut._replace(size=0),), parallel, routed=routed) % block != 0


class Size(NamedTuple):
    """One way to spread a model over a number of devices.

    Attributes:
        tp, pp, dp: whose product is that number. problem: why not, None: allowed.
    """

    tp: int
    pp: int
    dp: int
    problem: PlanError | None


def legal_sizes(model: Model, gpus: int, precision: Precision | None = None) -> tuple[Size, ...]:
    """Return all (tp, pp) whose product divides the number of devices; copies (dp) take the rest."""
    return tuple(
        Size(tp, pp, gpus // (tp * pp), legal(model, Parallel(tp, pp, dp=gpus // (tp * pp)), precision))
        for tp in _divisors(gpus)
        for pp in _divisors(gpus // tp)
    )


# --- what each device holds


def overlap(part: range, first: int, stop: int) -> range:
    """Return the layers of a stage that are among those from `first` to `stop`."""
    return range(max(part.start, first), min(part.stop, stop))


def stages(layers: int, pp: int) -> list[range]:
    """Return the layers of each stage: equally many, further ones to the last stages but the very last, with the head.

    So does vLLM (distributed/utils.py, get_pp_indices).
    """
    sizes = [layers // pp] * pp
    for further in range(layers % pp):
        sizes[-2 - further] += 1
    ends = [sum(sizes[: stage + 1]) for stage in range(pp)]
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _offsets(model: Model) -> dict[str, int]:
    """Return the number of each stack's first layer among those that stages divide."""
    found: dict[str, int] = {}
    before = 0
    for stack in model.stacks:
        found[stack.name] = before
        before += stack.depth * (stack.name not in TOWERS)
    return found


def _stage_of(
    each: Tensors, model: Model, parts: list[range], offsets: dict[str, int]
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield the stages that hold some of equal tensors, how many, and of which layers; none: beside the layers."""
    stack = model.stack(each.place.stack)
    assert stack is not None
    if stack.name in TOWERS:
        yield 0, each.count, ()
        return
    start = offsets[stack.name]
    if each.place.end != "layers":
        last = max(start + stack.depth - 1, start)
        at = start if each.place.end == "front" else last
        yield next((i for i, part in enumerate(parts) if at in part), len(parts) - 1), each.count, ()
        return
    ends = [part.stop for part in parts[:-1]]
    for index, layers in groupby((start + layer for layer in each.layers), key=partial(bisect_right, ends)):
        here = tuple(layers)
        yield index, len(here), here


def held_elements(size: int, splits: Splits, parallel: Parallel, *, routed: bool = False) -> int:
    """Return what one rank holds of so many elements of a dimension."""
    if not splits:
        return size
    held = 0
    for each in splits:
        ranks = parallel.ranks(each, routed=routed)
        whole = each.size or size
        if each.unit == "vocabulary":
            held += (padded(whole, ranks) if ranks > 1 else whole) // ranks
        else:
            held += whole * max(each.units // ranks, 1) // each.units
    return held


def padded(rows: int, ranks: int) -> int:
    """Return the rows of a vocabulary that ranks divide evenly."""
    step = lcm(VOCABULARY_ROWS, ranks)
    return -(-rows // step) * step


def _parts(each: Split, parallel: Parallel, *, routed: bool = False) -> int:
    ranks = parallel.ranks(each, routed=routed)
    return min(ranks, each.units) if each.repeats else ranks


def divided_by(leaf: Leaf, stack: str, parallel: Parallel) -> Splits:
    """Return how a leaf is split: not at all by one rank, nor a tower's where its heads don't divide."""
    routed = leaf.work == "experts"
    ranks = [parallel.ranks(each, routed=routed) for each in leaf.split]
    whole = stack in TOWERS and not all(map(_fits, leaf.split, ranks))
    return () if whole or set(ranks) == {1} else leaf.split


def _pieces(each: Tensors, count: int, layers: tuple[int, ...], parallel: Parallel, *, owner: bool) -> Iterator[Piece]:
    """Yield what one device holds of `count` equal tensors: of their matrices, segment by segment, and of their biases."""
    leaf, form = each.place.leaf, format_named(each.format)
    routed = leaf.work == "experts"
    ep = parallel.ep if routed else 1
    group = ep * parallel.expert_ranks if routed else parallel.tp
    cuts: tuple[Split | None, ...] = divided_by(leaf, each.place.stack, parallel) or (None,)
    left = each.matrix_bytes
    element = each.bias_bytes // (leaf.copies * leaf.n_out)
    for cut in cuts:
        along = cut.along if cut else ""
        columns = cut.size or leaf.n_out if cut else leaf.n_out
        sizes = {"copies": leaf.copies // ep, "in": leaf.n_in, "out": columns}
        if cut:
            axis = "in" if along == "rows" else along
            sizes[axis] = held_elements(sizes[axis], (cut,), parallel, routed=routed)
        parts = ep * _parts(cut, parallel, routed=routed) if cut else ep
        if owner:
            held = sizes["copies"] * _matrix_bytes(form, leaf, sizes["in"], sizes["out"])
            whole = left if cut is cuts[-1] else leaf.copies * _matrix_bytes(form, leaf, leaf.n_in, columns)
            left -= whole
            yield Piece(each.path, count * held, parts, count * (parts * held - whole), group, leaf.part, layers)
        if leaf.bias:
            parts = ep if along in {"in", "rows"} else parts  # one vector is added to a sum
            held, whole = sizes["copies"] * sizes["out"] * element, leaf.copies * columns * element
            padding = count * (parts * held - whole)
            yield Piece(f"{each.path}.bias", count * held, parts, padding, group, leaf.part, layers)


def _matrix_bytes(form: Format, leaf: Leaf, n_in: int, n_out: int) -> int:
    """Return the bytes of one matrix in a format; tables are stored by row."""
    return form.matrix_bytes(n_out, n_in) if leaf.part == "embedding" else form.matrix_bytes(n_in, n_out)


def _cache_piece(
    cache: Cache, layers: range, model: Model, work: Workload, precision: Precision, parallel: Parallel
) -> Iterator[Piece]:
    """Yield what one device holds of these layers' equal caches: the fullest, where sequences or rows don't divide evenly."""
    bits = cache_bits(precision, cache)
    tokens = work.source if cache.kind == "cross" else work.context
    sequences = -(-work.batch // (parallel.dp * parallel.attention_groups))
    kept = cache.stored(tokens, model.engine)
    rest = cache.elements(tokens, model.engine) - cache.row * kept
    total = rest + cache.row * -(-kept // parallel.cp)
    per = cache.row or cache.fixed
    for cut in cache.split or (None,):
        size = per if cut is None else cut.size or per
        held = size if cut is None else held_elements(size, (cut,), parallel)
        elements = sequences * total * held // per if per else 0
        parts = 1 if cut is None else _parts(cut, parallel)
        held_bytes = int(-(-elements * bits // 8)) * len(layers)
        yield Piece(f"cache.{cache.kind}", held_bytes, parts, 0, parallel.attention_ranks, layers=tuple(layers))


def device_shares(model: Model, precision: Precision, work: Workload, parallel: Parallel) -> tuple[Share, ...]:
    """Return what the devices hold, one entry for the equal ones of each pipeline stage.

    Tied tensors are stored once on each stage that uses them.

    Raises:
        PlanError: the model can't be spread so.
    """
    problem = legal(model, parallel)
    if problem:
        raise problem
    parts = stages(depth(model), parallel.pp)
    offsets = _offsets(model)
    weights: list[list[Piece]] = [[] for _ in parts]
    owned: set[tuple[int, str]] = set()
    for each in stored(model, precision):
        tie = each.place.leaf.tie
        for stage, count, layers in _stage_of(each, model, parts, offsets):
            owner = tie is None or (stage, tie) not in owned
            if tie:
                owned.add((stage, tie))
            weights[stage] += _pieces(each, count, layers, parallel, owner=owner)
    caches: list[list[Piece]] = [[] for _ in parts]
    for stack, run, first in _runs(model):
        for stage, part in enumerate(parts):
            here = overlap(part, first, first + run.count * run.repeats)
            for cache in run.layer.caches if stack.name == "decoder" and here else ():
                if cache.owner:
                    caches[stage] += _cache_piece(cache, here, model, work, precision, parallel)
    return tuple(
        Share(stage, parallel.stage_devices, len(part), tuple(weights[stage]), tuple(caches[stage]))
        for stage, part in enumerate(parts)
    )


def _runs(model: Model) -> Iterator[tuple[Stack, Run, int]]:
    """Yield the runs that stages divide, and the number of the first layer of each."""
    first = 0
    for stack in model.stacks:
        for run in stack.runs if stack.name not in TOWERS else ():
            yield stack, run, first
            first += run.count * run.repeats


def notes(model: Model, parallel: Parallel) -> list[str]:
    """Return what a user should know of a legal way to spread a model."""
    cuts = {cut._replace(along="out", size=0) for place in model.places for cut in place.leaf.split}
    ranks, own = parallel.tp, parallel.attention_ranks
    rows = [n for n in _vocabularies(model) if ranks > 1 and n < padded(n, ranks)]
    shared = sorted((cut.units, cut.unit) for cut in cuts if cut.repeats and cut.units < own)
    caches = (cache for stack in model.stacks if stack.name == "decoder" for cache in stack.caches)
    undivided = sorted({cache.row for cache in caches if cache.owner and cache.row and not cache.split and own > 1})
    return [
        *(f"the vocabulary of {n:,} is padded to {padded(n, ranks):,} rows, for --tp {ranks}" for n in rows),
        *(f"{n} {unit} on {own} ranks: each is held {own // n} times, weights and cache" for n, unit in shared),
        *(f"cache rows of {n:,} elements have no heads to divide: each of {own} ranks holds them" for n in undivided),
        *(_stage_notes(model) if parallel.pp > 1 else ()),
    ]


def _stage_notes(model: Model) -> Iterator[str]:
    """Yield what layers of one stage need of another's, which isn't counted."""
    for stack in model.stacks:
        runs = [run for run in stack.runs if stack.name not in TOWERS]
        tables = sum(run.count for run in runs for leaf in run.layer.leaves if leaf.name == "relative_attention_bias")
        if 0 < tables < stack.depth:
            yield f"later stages of the {stack.name} need the first layer's table of position biases, not counted"
        if any(not cache.owner for cache in stack.caches):
            yield f"layers of the {stack.name} that read an earlier layer's cache must be on its stage, not checked"
