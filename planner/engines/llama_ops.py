"""The operations that llama.cpp runs for one batch, in its order, as a graph whose memory `llama_graph.peak` follows.

What is wired how was read in llama.cpp as of llama-cpp-python 0.3.36 and compared with what it printed (tests/engines/facts_llama).
Operations that only overwrite their operand (scales, soft caps, turned keys) change no memory and are left out where they do.

Letters: D model width, H heads, N key-value heads, K head width, F hidden width, E experts, k experts that a row visits, T tokens of
the batch, S sequences, C cells of a cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from planner.blocks import Attention, Block, FeedForward, Head, LatentAttention, MixtureOfExperts, Norm, Table
from planner.engines.llama_graph import ALIGNMENT, WEIGHT, Graph, Tensor, given, like, op, store, view
from planner.errors import PlanError
from planner.model import Layer, Model, Sublayer

if TYPE_CHECKING:
    from planner.recurrent import Mamba, Mamba2, ShortConvolution

Kind = Literal["full", "sliding", "latent", "state"]


class Wiring(NamedTuple):
    """How llama.cpp's graph of a family differs from the usual one.

    Attributes:
        fused_heads: queries, keys and values come from one matrix. fused_gate: gate and up come from one.
        residual_first: sums behind the mixer, and behind the feed-forward block, name the residual stream first, whose
            place they then take.
        rows_last: unused rows are dropped before the last norm, not in the last layer.
        keeps_weights: the chosen experts' weights aren't divided by their sum.
        divided_gate: the shared expert's gate is made of two operations.
        summed: what sublayers side by side are added to, and in which order: attention, feed-forward, residual stream.
    """

    fused_heads: bool = False
    fused_gate: bool = False
    residual_first: tuple[bool, bool] = (False, False)
    rows_last: bool = False
    keeps_weights: bool = False
    divided_gate: bool = False
    summed: tuple[int, int, int] = (1, 2, 0)


WIRINGS = {
    "phi3": Wiring(fused_heads=True, fused_gate=True, residual_first=(False, True)),
    "jamba": Wiring(residual_first=(True, True), keeps_weights=True),
    "lfm2": Wiring(residual_first=(True, True)),
    "gpt_oss": Wiring(rows_last=True),
    "glm4": Wiring(fused_gate=True),
    "gpt2": Wiring(fused_heads=True),
    "falcon": Wiring(fused_heads=True, summed=(1, 0, 2)),
    "phi": Wiring(summed=(0, 1, 2)),
    "qwen2_moe": Wiring(divided_gate=True),
}
"""Families that aren't wired the usual way."""

CHECKED = frozenset({
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "phi3", "gpt_oss", "cohere2",
    "deepseek_v2", "deepseek_v3", "mamba", "mamba2", "falcon_h1", "jamba", "granitemoehybrid", "lfm2", "gemma", "olmo2", "olmoe",
    "qwen2_moe", "starcoder2", "granite", "glm4", "phi", "gpt2", "falcon", "smollm3",
})  # fmt: skip
"""Families whose graph was compared with the program; others are taken to be wired the usual way."""


class Batch(NamedTuple):
    """What a graph is made for.

    Attributes:
        tokens: T. sequences: S. outputs: rows that logits are asked for. unified: all sequences share one cache.
        flash: attention in one operation. cells: C of each kind of cache, of one stream.
        key_bytes, wide: of an element of a latent cache; whether caches are 32 bits wide (keys, values).
        turned: width of the matrix that keys and values are turned with before they are rounded, 0: they aren't, by kind.
        widest_value: elements of the widest layer's values.
    """

    tokens: int
    sequences: int
    outputs: int
    unified: bool
    flash: bool
    cells: Mapping[Kind, int]
    key_bytes: int
    wide: tuple[bool, bool]
    turned: Mapping[Kind, tuple[int, int]]
    widest_value: int

    @property
    def streams(self) -> int:
        """Caches side by side."""
        return 1 if self.unified else self.sequences


class Part(NamedTuple):
    """What one device runs: some layers, all if None (with the head behind the last); on a card others look rows up."""

    layers: range | None = None
    card: bool = False


WHOLE = Part()


@dataclass(slots=True)
class Inputs:
    """What every layer with one kind of cache reads: which cells to write, which to see, and matrices that turn rows."""

    key_cells: Tensor
    value_cells: Tensor
    mask: Tensor
    turn_keys: Tensor | None
    turn_values: Tensor | None


@dataclass(slots=True)
class Build:
    """A graph while it is made."""

    batch: Batch
    wiring: Wiring
    graph: Graph = field(default_factory=Graph)
    kinds: dict[Kind, Inputs] = field(default_factory=dict)
    positions: Tensor = field(init=False)
    rows: Tensor = field(init=False)
    copies: Tensor = field(init=False)

    def __post_init__(self) -> None:
        """Make the inputs that all kinds of layers share."""
        self.positions = given(self.batch.tokens)
        self.rows = given(self.batch.outputs)
        self.copies = given(self.batch.sequences)

    def inputs(self, kind: Kind) -> Inputs:
        """Return the inputs of a kind of cache."""
        if kind not in self.kinds:
            batch = self.batch
            cells = batch.tokens if batch.flash else batch.tokens * batch.widest_value
            keys, values = (given(size, size) if size else None for size in batch.turned[kind])
            shape = (batch.cells[kind], batch.tokens // batch.streams, 1, batch.streams)
            mask = given(*shape, width=2 if batch.flash else 4)
            self.kinds[kind] = Inputs(given(batch.tokens, width=8), given(cells, width=8), mask, keys, values)
        return self.kinds[kind]


def graph(model: Model, batch: Batch, part: Part = WHOLE) -> Graph:
    """Return the graph of one batch, or the part of it that one device runs.

    Raises:
        PlanError: the order of its operations isn't known.
    """
    decoder = model.stack("decoder")
    if decoder is None or len([stack for stack in model.stacks if stack.name in {"decoder", "encoder"}]) > 1:
        raise _unknown(model, "a stack of its own")
    build = Build(batch, WIRINGS.get(model.family, Wiring()))
    width = decoder.front[0].leaves()[0].n_out
    if part.card:
        rows = given(width, batch.tokens)  # looked up by the processor, or made by the device before
    else:
        rows = op("get_rows", (width, batch.tokens), WEIGHT, given(batch.tokens))
        build.graph.want(rows, given(width, batch.tokens))
    if any(isinstance(block, Table) and block.index == "position" for block in decoder.front):
        rows = like("add", rows, op("get_rows", rows.shape, WEIGHT, build.positions))
    layers = [run.layer for run in decoder.runs for _ in range(run.count * run.repeats)]
    for number in part.layers or range(len(layers)):
        last = number == len(layers) - 1 and not build.wiring.rows_last
        rows = _layer(build, layers[number], rows, model, last=last)
    if part.layers and part.layers.stop < len(layers):
        rows.asked = True
        build.graph.want(rows)
        return build.graph
    norms = [block for block in decoder.back if isinstance(block, Norm)]
    head = next((block for block in decoder.back if isinstance(block, Head)), None)
    if head is None:
        raise _unknown(model, "no head")
    if build.wiring.rows_last:
        rows.asked = True
        rows = op("get_rows", (width, batch.outputs), rows, build.rows)
    for each in norms:
        rows = norm(rows, each)
    rows.asked = True
    logits = op("mul_mat", (head.vocabulary, batch.outputs), WEIGHT, rows)
    if head.bias:
        logits = like("add", logits, WEIGHT)
    logits.asked = True
    build.graph.want(logits)
    return build.graph


def host_bytes(made: Graph) -> int:
    """Return what the processor's part of a graph takes whose layers run on cards: all inputs, and the rows looked up."""
    return sum(-(-each.size // ALIGNMENT) * ALIGNMENT for each in (*made.leaves, made.nodes[0]) if not each.stored)


def _unknown(model: Model, what: str) -> PlanError:
    return PlanError(
        f"the graph of {what} isn't known", where=model.source or model.name, fix="read it in llama.cpp's log"
    )


def norm(rows: Tensor, block: Norm | None) -> Tensor:
    """Return normed rows, scaled where the norm stores scales."""
    if block is None:
        return rows
    rows = like("rms_norm" if block.kind == "rms" else "norm", rows)
    if block.affine:
        rows = like("mul", rows, WEIGHT)
    return like("add", rows, WEIGHT) if block.bias else rows


def _layer(build: Build, layer: Layer, rows: Tensor, model: Model, *, last: bool) -> Tensor:
    """Return the residual stream behind a layer; in the last one only rows that are asked for go on."""
    if layer.parallel:
        return _parallel(build, layer, rows, model, last=last)
    for number, sub in enumerate(layer.sublayers):
        if sub.join:
            raise _unknown(model, "norms behind sums")
        first = build.wiring.residual_first[min(number, 1)]
        rows = _sublayer(build, sub, rows, model, last=last and number == 0, residual_first=first)
    return rows


def _sublayer(build: Build, sub: Sublayer, rows: Tensor, model: Model, *, last: bool, residual_first: bool) -> Tensor:
    from planner.recurrent import Together  # noqa: PLC0415

    if isinstance(sub.block, Together):
        if sub.after or len(sub.block.parts) != 2:
            raise _unknown(model, "such blocks together")
        parts = sorted(sub.block.parts, key=lambda part: not isinstance(part, Attention))
        first, second = (_block(build, part, norm(rows, sub.before), model) for part in parts)
        summed = like("add", like("add", first, second), rows)
        return _asked(build, summed) if last else summed
    found = _block(build, sub.block, norm(rows, sub.before), model)
    if last:
        found, rows = _asked(build, found), _asked(build, rows)
    found = norm(found, sub.after)
    return like("add", rows, found) if residual_first else like("add", found, rows)


def _parallel(build: Build, layer: Layer, rows: Tensor, model: Model, *, last: bool) -> Tensor:
    """Return the sum of sublayers that read the same rows (Cohere)."""
    if len(layer.sublayers) != 2 or any(sub.after for sub in layer.sublayers):
        raise _unknown(model, "such sublayers side by side")
    first, second = layer.sublayers
    own = first.before or layer.before
    normed = norm(rows, own)
    mixed = _block(build, first.block, normed, model)
    other = normed if second.before is None or layer.before else norm(rows, second.before)
    if last:
        mixed, rows, other = _asked(build, mixed), _asked(build, rows), _asked(build, other)
    fed = _block(build, second.block, other, model)
    one, two, three = ((mixed, fed, rows)[index] for index in build.wiring.summed)
    return like("add", like("add", one, two), three)


def _asked(build: Build, rows: Tensor) -> Tensor:
    return op("get_rows", (rows.shape[0], build.batch.outputs), rows, build.rows)


def _block(build: Build, block: Block, rows: Tensor, model: Model) -> Tensor:
    from planner.recurrent import Mamba, Mamba2, ShortConvolution  # noqa: PLC0415

    match block:
        case Attention(cross=False, chooser=None, gate=None, borrows=False, same_values=False, mixes=1, alibi=False):
            return _attention(build, block, rows)
        case LatentAttention(chooser=None, gate=False, gated_queries=False):
            return _latent(build, block, rows)
        case FeedForward():
            return _feed_forward(block, rows, fused=build.wiring.fused_gate)
        case MixtureOfExperts(identities=0, latent=None, token_table=0, chooser=()) if block.top_k:
            return _experts(build, block, rows)
        case Mamba(heads=1, bias=False):
            return _mamba(build, block, rows)
        case Mamba2(bias=False):
            return _mamba2(build, block, rows)
        case ShortConvolution(bias=False):
            return _short_convolution(build, block, rows)
        case _:
            raise _unknown(model, type(block).__name__)


def _projected(rows: Tensor, width: int, *, bias: bool = False) -> Tensor:
    found = op("mul_mat", (width, *rows.shape[1:]), WEIGHT, rows)
    return like("add", found, WEIGHT) if bias else found


class Heads(NamedTuple):
    """How an attention scores: its kind of cache, H, N, widths of keys and of values."""

    kind: Kind
    heads: int
    kv_heads: int
    key: int
    value: int


def _attention(build: Build, block: Attention, rows: Tensor) -> Tensor:
    """Return [D, T]: queries, keys and values are projected, turned, stored, and scored against the cache."""
    tokens = rows.shape[1]
    kind: Kind = "sliding" if "sliding" in build.batch.cells and (block.mask.window or block.mask.chunk) else "full"
    value = block.value or block.head
    sizes = (block.heads * block.head, block.kv_heads * block.head, block.kv_heads * value)
    shapes = ((block.head, block.heads), (block.head, block.kv_heads), (value, block.kv_heads))
    fused = build.wiring.fused_heads
    if fused:
        every = _projected(rows, sum(sizes), bias=block.q_bias)
        q, k, v = (view(every, *shape, tokens) for shape in shapes)
    else:
        biases = (block.q_bias, block.k_bias, block.v_bias)
        flat = [_projected(rows, size, bias=bias) for size, bias in zip(sizes, biases, strict=True)]
        if block.qk_norm and block.qk_norm.width != block.head:
            flat[:2] = [norm(each, block.qk_norm) for each in flat[:2]]
        q, k, v = (view(each, *shape, tokens) for each, shape in zip(flat, shapes, strict=True))
    apart = (fused, fused)
    if block.qk_norm and block.qk_norm.width == block.head:
        q, k, apart = norm(q, block.qk_norm), norm(k, block.qk_norm), (False, fused)
    if block.rope:
        q, k, apart = like("rope", q, build.positions), like("rope", k, build.positions), (False, fused)
    made = Heads(kind, block.heads, block.kv_heads, block.head, value)
    return _projected(_attended(build, made, q, k, v, apart), block.width, bias=block.out_bias)


def _attended(build: Build, made: Heads, q: Tensor, k: Tensor, v: Tensor, apart: tuple[bool, bool]) -> Tensor:
    """Return [H V, T]: keys and values stored, and the mix of all cached values.

    `apart`: queries and keys, and values, are pieces of larger rows, so that some operations need a copy of them.
    """
    inputs, tokens = build.inputs(made.kind), q.shape[2]
    keys_apart, values_apart = apart
    if inputs.turn_keys:
        q, k = (_turned(_plain(each) if keys_apart else each, inputs.turn_keys) for each in (q, k))
    if inputs.turn_values:
        v = _turned(_plain(v) if values_apart else v, inputs.turn_values)
        values_apart = False
    build.graph.want(q, k, v) if "sliding" in build.batch.cells else build.graph.want(q, v, k)
    build.graph.want(store(view(k, made.kv_heads * made.key, tokens), inputs.key_cells))
    size = made.kv_heads * made.value
    if build.batch.flash:
        values = view(v, size, tokens)
    else:
        whole = view(_plain(v) if values_apart else v, size, tokens)
        if size < build.batch.widest_value:
            whole = op("pad", (build.batch.widest_value, tokens), whole)
        values = view(whole, 1, whole.shape[0] * tokens)
    build.graph.want(store(values, inputs.value_cells))
    mixed = _scored(build, q, *made)
    return _turned(mixed, inputs.turn_values) if inputs.turn_values else mixed


def _plain(rows: Tensor) -> Tensor:
    return op("cont", rows.shape, rows, width=rows.width)


def _turned(rows: Tensor, matrix: Tensor) -> Tensor:
    """Return rows turned piece by piece, so that rounding hurts them less."""
    size = matrix.shape[0]
    pieces = view(rows, size, rows.size // rows.width // size)
    return view(op("mul_mat", pieces.shape, matrix, pieces), *rows.shape)


def _scored(build: Build, q: Tensor, kind: Kind, heads: int, kv_heads: int, key: int, value: int) -> Tensor:
    """Return [H V, T], the mix of cached values."""
    batch, inputs = build.batch, build.inputs(kind)
    cells, streams = batch.cells[kind], batch.streams
    tokens = batch.tokens // streams
    queries = view(view(q, key, heads, tokens, streams), key, tokens, heads, streams)
    keys = view(WEIGHT, key, cells, kv_heads, streams)
    values = view(WEIGHT, value, cells, kv_heads, streams)
    if batch.flash:
        wide_keys, wide_values = batch.wide
        if wide_keys:
            keys = op("cast", keys.shape, keys, width=2)
        if wide_values:
            values = op("cast", values.shape, values, width=2)
        mixed = op("flash_attn", (value, heads, tokens, streams), queries, keys, values, inputs.mask)
        mixed = view(mixed, value * heads, batch.tokens)
    else:
        scores = op("mul_mat", (cells, tokens, heads, streams), keys, queries)
        scores = like("soft_max", scores, inputs.mask)
        each = op("mul_mat", (value, tokens, heads, streams), values, scores)
        mixed = op("cont", (value * heads, batch.tokens), view(each, value, heads, tokens, streams))
    build.graph.want(mixed)
    return mixed


def _latent(build: Build, block: LatentAttention, rows: Tensor) -> Tensor:
    """Return [D, T] of latent attention: queries score the latents themselves, whose mix is expanded to values.

    Files from before 2025 hold both projections of the latents in one piece: keys and values are expanded, and cached so.
    """
    batch, tokens = build.batch, rows.shape[1]
    heads, rank, rope, nope = block.heads, block.kv_rank, block.rope, block.nope
    q = rows
    if block.q_rank:
        q = like("mul", like("rms_norm", _projected(rows, block.q_rank)), WEIGHT)
    q = view(_projected(q, heads * (nope + rope)), nope + rope, heads, tokens)
    both = _projected(rows, rank + rope)
    turned = like("rope", view(both, rope, 1, tokens), build.positions)
    latent = like("mul", like("rms_norm", view(both, rank, tokens)), WEIGHT)
    if "latent" not in batch.cells:
        every = _projected(latent, heads * (nope + block.value))
        v = _plain(view(every, block.value, heads, tokens))
        repeated = op("repeat", (rope, heads, tokens), turned)
        k = op("concat", (nope + rope, heads, tokens), view(every, nope, heads, tokens), repeated)
        made = Heads("full", heads, heads, nope + rope, block.value)
        attended = _attended(build, made, like("rope", q, build.positions), k, v, (False, False))
        return _projected(attended, block.width)
    inputs = build.inputs("latent")
    q_turned = like("rope", view(q, rope, heads, tokens), build.positions)
    q_plain = view(view(q, nope, heads, tokens), nope, tokens, heads)
    absorbed = view(op("mul_mat", (rank, tokens, heads), WEIGHT, q_plain), rank, heads, tokens)
    queries = op("concat", (rank + rope, heads, tokens), absorbed, q_turned)
    latent = view(latent, rank, 1, tokens)
    key = op("concat", (rank + rope, 1, tokens), latent, turned)
    build.graph.want(queries, latent, key)
    build.graph.want(store(view(key, rank + rope, tokens), inputs.key_cells))
    cells, streams = batch.cells["latent"], batch.streams
    each = tokens // streams
    asked = view(view(queries, rank + rope, heads, each, streams), rank + rope, each, heads, streams)
    keys = view(WEIGHT, rank + rope, cells, 1, streams)
    values = view(WEIGHT, rank, cells, 1, streams)
    if batch.flash:
        if batch.wide[0]:
            keys = op("cast", keys.shape, keys, width=2)
            values = op("cast", values.shape, values, width=2)
        mixed = op("flash_attn", (rank, heads, each, streams), asked, keys, values, inputs.mask)
        expanded = op("mul_mat", (block.value, each, heads, streams), WEIGHT, view(mixed, rank, each, heads, streams))
        mixed = view(_plain(view(expanded, block.value, heads, each, streams)), block.value * heads, tokens)
    else:
        scores = op("mul_mat", (cells, each, heads, streams), keys, asked)
        scores = like("soft_max", scores, inputs.mask)
        values = op("cont", (cells, rank, 1, streams), values, width=batch.key_bytes)
        mixed = op("mul_mat", (rank, each, heads, streams), values, scores)
        expanded = op("mul_mat", (block.value, each, heads, streams), WEIGHT, mixed)
        mixed = op("cont", (block.value * heads, tokens), view(expanded, block.value, heads, each, streams))
    build.graph.want(mixed)
    return _projected(mixed, block.width)


def _feed_forward(block: FeedForward, rows: Tensor, *, fused: bool = False) -> Tensor:
    """Return [D, T]."""
    if block.gated and fused:
        hidden = op("glu", (block.hidden, *rows.shape[1:]), _projected(rows, 2 * block.hidden))
    elif block.gated:
        gate, up = (_projected(rows, block.hidden, bias=block.up_bias) for _ in range(2))
        hidden = op("glu", gate.shape, gate, up)
    else:
        hidden = like("unary", _projected(rows, block.hidden, bias=block.up_bias))
    return _projected(hidden, block.width, bias=block.down_bias)


def _experts(build: Build, block: MixtureOfExperts, rows: Tensor) -> Tensor:
    """Return [D, T]: k experts for each row, weighted and summed; and the shared expert."""
    tokens, experts, chosen = rows.shape[1], block.experts, block.top_k
    logits = _projected(rows, experts, bias=block.router_bias)
    scores = logits
    if block.scoring in {"softmax", "softmax_top_k"} and not _weighs_last(block):
        scores = like("soft_max", logits)
    elif block.scoring == "sigmoid":
        scores = like("unary", logits)
    elif block.scoring == "sqrtsoftplus":
        scores = like("sqrt", like("unary", logits))
    ranked = like("add", scores, WEIGHT) if block.correction_bias else scores
    if block.groups > 1:
        ranked = _grouped(block, ranked, tokens)
    order = op("argsort", (experts, tokens), ranked)
    ids = view(order, chosen, tokens)
    weights = op("get_rows", (1, chosen, tokens), view(scores, 1, experts, tokens), ids)
    if _weighs_last(block):
        weights = view(like("soft_max", view(weights, chosen, tokens)), 1, chosen, tokens)
    elif block.normalized or (block.scoring == "softmax_top_k" and not build.wiring.keeps_weights):
        flat = view(weights, chosen, tokens)
        total = like("clamp", op("sum_rows", (1, tokens), flat))
        weights = view(like("div", flat, total), 1, chosen, tokens)
    if block.weight_scale != 1:
        weights = like("scale", weights)
    build.graph.want(weights)
    single = view(rows, block.width, 1, tokens)
    up = op("mul_mat_id", (block.hidden, chosen, tokens), WEIGHT, single, ids)
    if block.bias:
        up = like("add_id", up, WEIGHT, ids)
    hidden = up
    if block.gated:
        gate = op("mul_mat_id", (block.hidden, chosen, tokens), WEIGHT, single, ids)
        if block.bias:
            gate = like("add_id", gate, WEIGHT, ids)
        hidden = op("glu", gate.shape, gate, up)
    else:
        hidden = like("unary", hidden)
    out = op("mul_mat_id", (block.width, chosen, tokens), WEIGHT, hidden, ids)
    if block.bias:
        out = like("add_id", out, WEIGHT, ids)
    out = like("mul", out, weights)
    build.graph.want(out)
    parts = [view(out, block.width, tokens) for _ in range(chosen)]
    build.graph.want(*parts)
    summed = parts[0] if chosen > 1 else _plain(parts[0])
    for part in parts[1:]:
        summed = like("add", summed, part)
        build.graph.want(summed)
    if block.shared:
        shared = _feed_forward(FeedForward(block.width, block.shared, block.gated), rows)
        if block.shared_gate:
            gate = _projected(rows, 1)
            gate = like("div", like("unary", gate), gate) if build.wiring.divided_gate else like("unary", gate)
            shared = like("mul", shared, gate)
        summed = like("add", summed, shared)
    return summed


def _weighs_last(block: MixtureOfExperts) -> bool:
    """Return whether only the chosen scores go through the softmax (gpt-oss), not all that are then divided by their sum."""
    return block.scoring == "softmax_top_k" and block.router_bias


def _grouped(block: MixtureOfExperts, ranked: Tensor, tokens: int) -> Tensor:
    """Return scores of the experts in the best groups, minus infinity elsewhere (DeepSeek-V3)."""
    groups, size = block.groups, block.experts // block.groups
    split = view(ranked, size, groups, tokens)
    best = view(op("argsort", split.shape, split), 2, groups, tokens)
    values = op("get_rows", (1, 2, groups, tokens), view(split, 1, size, groups, tokens), best)
    summed = view(op("sum_rows", (1, groups, tokens), view(values, 2, groups, tokens)), groups, tokens)
    chosen = view(op("argsort", (groups, tokens), summed), block.top_groups, tokens)
    kept = op("get_rows", (size, block.top_groups, tokens), split, chosen)
    empty = like("fill", split)
    filled = Tensor(empty.shape, 4, "store", (kept, chosen, empty), empty)
    return view(filled, block.experts, tokens)


def _restored(build: Build, size: int) -> Tensor:
    """Return [size, S], the states that the batch's sequences go on from."""
    states = view(WEIGHT, size, build.batch.sequences)
    build.graph.want(Tensor((0, 1, 1, 1), 4, "scale", (view(states, 0),), WEIGHT))
    found = op("get_rows", (size, build.batch.sequences), states, view(build.copies, build.batch.sequences))
    build.graph.want(found)
    _keep(build, op("get_rows", (size, 0), states, view(build.copies, 0)))
    return found


def _keep(build: Build, rows: Tensor) -> None:
    """Write rows to the cache of states."""
    build.graph.want(Tensor(rows.shape, 4, "copy", (rows, view(WEIGHT, *rows.shape)), WEIGHT))


def _convolved(build: Build, rows: Tensor, taps: int, channels: int, start: Tensor, *, bias: bool) -> Tensor:
    """Return rows behind a convolution over the rows before them, whose last ones are stored."""
    each = build.batch.tokens // build.batch.sequences
    turned = view(rows, each, channels, build.batch.sequences)
    longer = op("concat", (taps - 1 + each, channels, build.batch.sequences), start, turned)
    _keep(build, view(longer, taps - 1, channels, build.batch.sequences))
    found = op("ssm_conv", (channels, each, build.batch.sequences), longer, WEIGHT)
    return like("add", found, WEIGHT) if bias else found


def _scanned(build: Build, inner: int, state: int, *sources: Tensor) -> Tensor:
    """Return outputs and new states in one tensor, the states stored."""
    sequences = build.batch.sequences
    states = view(WEIGHT, inner * state, sequences)
    build.graph.want(Tensor((0, 1, 1, 1), 4, "scale", (view(states, 0),), WEIGHT))
    size = inner * build.batch.tokens + inner * state * sequences
    scanned = op("ssm_scan", (size,), view(states, state, inner, sequences), *sources, view(build.copies, sequences))
    build.graph.want(scanned)
    _keep(build, op("get_rows", (inner * state, 0), states, view(build.copies, 0)))
    _keep(build, view(scanned, inner * state * sequences))
    return scanned


def _mamba(build: Build, block: Mamba, rows: Tensor) -> Tensor:
    """Return [D, T] of Mamba: convolved channels, step sizes, the scan and a gate."""
    sequences = build.batch.sequences
    each = build.batch.tokens // sequences
    inner, state, rank = block.inner, block.state, block.rank
    start = view(_restored(build, (block.taps - 1) * inner), block.taps - 1, inner, sequences)
    both = _projected(view(rows, block.width, each, sequences), 2 * inner)
    x, z = (view(both, inner, each, sequences) for _ in range(2))
    x = like("unary", _convolved(build, x, block.taps, inner, start, bias=block.conv_bias))
    steps = _projected(x, rank + 2 * state)
    dt, b, c = view(steps, rank, each, sequences), *(view(steps, state, 1, each, sequences) for _ in range(2))
    if block.inner_norms:
        dt, b, c = (like("mul", like("rms_norm", part), WEIGHT) for part in (dt, b, c))
    else:
        dt = _plain(dt)
    dt = like("add", _projected(dt, inner), WEIGHT)
    scanned = _scanned(build, inner, state, view(x, 1, inner, each, sequences), dt, WEIGHT, b, c)
    y = view(scanned, inner, each, sequences)
    y = like("add", y, like("mul", x, WEIGHT))
    y = op("glu", y.shape, _plain(z), y)
    return view(_projected(y, block.width), block.width, build.batch.tokens)


def _mamba2(build: Build, block: Mamba2, rows: Tensor) -> Tensor:
    """Return [D, T] of Mamba-2."""
    sequences, tokens = build.batch.sequences, build.batch.tokens
    each = tokens // sequences
    inner, heads, head, state, groups = block.inner, block.heads, block.head, block.state, block.groups
    start = view(_restored(build, (block.taps - 1) * block.channels), block.taps - 1, block.channels, sequences)
    flat = _projected(rows, inner + block.channels + heads)
    every = view(flat, flat.shape[0], each, sequences)
    z = view(every, head, heads, each, sequences)
    x = view(every, block.channels, each, sequences)
    dt = view(every, heads, each, sequences)
    x = like("unary", _convolved(build, x, block.taps, block.channels, start, bias=block.conv_bias))
    seen = view(x, head, heads, each, sequences)
    b, c = (view(x, state, groups, each, sequences) for _ in range(2))
    dt = like("add", _plain(dt), WEIGHT)
    scanned = _scanned(build, inner, state, seen, dt, WEIGHT, b, c)
    y = view(scanned, head, heads, each, sequences)
    y = like("add", y, like("mul", seen, WEIGHT))
    y = op("glu", y.shape, _plain(z), y)
    if block.norm:
        y = view(y, inner // groups, groups, each, sequences)
        y = like("mul", like("rms_norm", y), WEIGHT)
    return _projected(view(y, inner, tokens), block.width)


def _short_convolution(build: Build, block: ShortConvolution, rows: Tensor) -> Tensor:
    """Return [D, T] of a gated short convolution."""
    sequences, width = build.batch.sequences, block.width
    each = build.batch.tokens // sequences
    every = _projected(view(rows, width, each, sequences), 3 * width)
    b, c, x = (view(every, width, each, sequences) for _ in range(3))
    mixed = like("mul", b, x)
    start = view(_restored(build, (block.taps - 1) * width), block.taps - 1, width, sequences)
    found = _convolved(build, mixed, block.taps, width, start, bias=False)
    gated = _projected(like("mul", c, found), width)
    return view(gated, width, build.batch.tokens)
