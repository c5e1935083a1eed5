"""Runs the twin: what it stores, keeps and computes, counted on real tensors, beside what the description says.

FLOPs are what `torch.utils.flop_counter` counts while the twin runs. It counts full rectangles of query-key pairs; for the
exact figures, pairs that the twin's own masks forbade are taken off again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from measure import library
from measure.build import Kept, Twin, build
from measure.quantity import Quantity
from measure.weights import RULES, copy_weights
from planner.blocks import AudioFrontEnd, Table
from planner.engines import Engine
from planner.errors import PlanError
from planner.model import Model, Stack
from planner.workload import Pass

BATCH, PROMPT, STEPS, SOURCE, PREFIX = 2, 13, 4, 11, 5
"""Small, odd and longer than the windows of a shrunk config."""

LOGIT_TOLERANCE = 1e-4
"""Of float32 logits of about unit size: a hundred times what orders of summation differ by, a ten-thousandth of an error."""

WRONG_IN_LIBRARY = {
    "nllb-moe": "transformers 5.24 encodes the router's one-hot mask one-hot again, so that experts 0 and 1 serve all tokens"
}
"""Families whose logits in transformers aren't those of the published model."""

T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """What is run: B sequences, P tokens of a prompt, G steps after it, S positions of a source."""

    batch: int
    prompt: int
    steps: int
    source: int

    @classmethod
    def of(cls, model: Model) -> Shape:
        """Return a shape that the model's positions have room for."""
        room = model.positions or PROMPT + STEPS
        steps = min(STEPS, room - 1) if model.generates else 0
        source = (model.source_positions if model.source_fixed else min(SOURCE, model.source_positions or SOURCE)) or 0
        return cls(BATCH, min(PROMPT, room - steps), steps, source if model.kind == "encoder-decoder" else 0)

    def encode(self) -> Pass:
        """Return the encoder's pass."""
        return Pass(self.batch, self.source)

    def prefill(self, prefix: int = 0) -> Pass:
        """Return the pass over the prompts."""
        return Pass(self.batch, self.prompt, memory=self.source, prefix=prefix)

    def decode(self, steps: int) -> Pass:
        """Return steps on a cache."""
        return Pass(self.batch, steps, self.prompt, "decode", self.source)

    def recompute(self) -> Pass:
        """Return the steps without a cache."""
        return Pass(self.batch, self.steps, self.prompt, "recompute", self.source)


@dataclass(frozen=True)
class Inputs:
    """Token ids [b, t], and what the encoder reads: ids [b, s], features [b, bands, 2 s] or nothing."""

    tokens_bt: Tensor
    source: Tensor | None


@dataclass(frozen=True)
class Counted:
    """FLOPs of one run: full rectangles, and allowed pairs only."""

    dense: int
    exact: int


def quantities(model: Model, config: Mapping[str, Any], device: str) -> Iterator[Quantity]:
    """Yield every quantity of a model that fits the device."""
    twin, other = build(model, device=device), None
    twin.randomize()
    yield from parameters(twin)
    reason = library.missing(model.family)
    if not reason:
        other, reason = _built(model, config, device)
    if other is not None:
        reason = _copied(twin, other)
        if model.family in RULES:
            yield Quantity(
                "tensors without a counterpart in transformers", "tensors", 0, int(bool(reason)), reason=reason
            )
    shape = Shape.of(model)
    inputs = make_inputs(model, shape, device)
    yield from _prefill(twin, shape, inputs)
    if _remembers(model):
        yield from _generation(twin, shape, inputs)
    yield _logits(twin, other, inputs, reason or WRONG_IN_LIBRARY.get(model.family, ""))


def _remembers(model: Model) -> bool:
    """Say whether a step can follow on what was kept; a decoder that sees both ways keeps nothing."""
    decoder = model.stack("decoder")
    return decoder is not None and any(cache.kind != "cross" for cache in decoder.caches)


def _built(model: Model, config: Mapping[str, Any], device: str) -> tuple[Any, str]:
    """Return transformers' model, or None and why it can't be built."""
    try:
        return library.build(config, model.architecture, device=device), ""
    except PlanError as error:
        return None, str(error)


def _copied(twin: Twin, other: Any) -> str:
    """Give both models the same random weights; return what stands in the way, or an empty text."""
    library.randomize(other)
    try:
        copy_weights(twin, other)
    except PlanError as error:
        return str(error) if twin.description.family in RULES else "no rules that name this family's tensors"
    return ""


def make_inputs(model: Model, shape: Shape, device: str, seed: int = 0) -> Inputs:
    """Return random tokens, none of them a special one (ids below 4), and a random source."""
    generator = torch.Generator().manual_seed(seed)

    tokens = vocabulary(model)

    def ids(length: int) -> Tensor:
        return torch.randint(min(4, tokens - 1), tokens, (shape.batch, length), generator=generator).to(device)

    prompt = ids(shape.prompt)
    if not shape.source:
        return Inputs(prompt, None)
    front = model.stacks[0].front[0]
    if not isinstance(front, AudioFrontEnd):
        return Inputs(prompt, ids(shape.source))
    features = torch.randn(shape.batch, front.bands, 2 * shape.source, generator=generator)
    return Inputs(prompt, features.to(device))


def vocabulary(model: Model) -> int:
    """Return the number of tokens that every stack knows."""
    tables = (block for stack in model.stacks for block in stack.front if isinstance(block, Table))
    return min(table.rows for table in tables if table.index == "token")


def parameters(twin: Twin) -> Iterator[Quantity]:
    """Yield parameters, in all and by component."""
    tally = twin.description.tally
    measured, predicted = twin.by_part(), {part: size for part, size in tally.by_part.items() if size}
    yield Quantity("params.total", "parameters", tally.total, sum(p.numel() for p in twin.parameters()))
    for part in dict.fromkeys((*predicted, *measured)):
        yield Quantity(f"params.by_block.{part}", "parameters", predicted.get(part, 0), measured.get(part, 0))


def count(twin: Twin, run: Callable[[], T]) -> tuple[Counted, T]:
    """Run something on the twin and return its FLOPs and its result."""
    twin.scored = []
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        result = run()
    forbidden = sum(one.dense_flops - one.exact_flops for one in twin.scored)
    twin.scored = None
    dense = int(counter.get_total_flops())
    return Counted(dense, dense - forbidden), result


def predicted_flops(model: Model, passes: Mapping[str, Pass], *, dense: bool) -> int:
    """Return the FLOPs of passes through stacks, by stack name."""
    stacks = ((model.stack(name), p) for name, p in passes.items())
    return sum(sum(stack.flops(p, model.engine, dense=dense).values()) for stack, p in stacks if stack)


def cache_bytes(stack: Stack, shape: Shape, tokens: int, engine: Engine, element_bytes: int) -> dict[str, int]:
    """Return the predicted bytes of all sequences by kind of cache, after so many tokens."""
    sums: Counter[str] = Counter()
    for cache, times in stack.caches.items():
        rows = shape.source if cache.kind == "cross" else tokens
        sums[cache.kind] += shape.batch * times * cache.elements(rows, engine) * element_bytes
    return dict(sums)


def _cache(twin: Twin, shape: Shape, tokens: int, kept: Kept, when: str) -> Iterator[Quantity]:
    decoder = twin.description.stack("decoder")
    assert decoder is not None
    element_bytes = next(twin.parameters()).element_size()
    for kind, predicted in cache_bytes(decoder, shape, tokens, twin.description.engine, element_bytes).items():
        yield Quantity(f"cache.parts.{kind} after {when}", "bytes", predicted, kept.bytes(kind))


def _prefill(twin: Twin, shape: Shape, inputs: Inputs) -> Iterator[Quantity]:
    """Yield the pass over the prompts: FLOPs as a tracer counts, exact FLOPs, and what is kept after it."""
    model = twin.description
    if not model.generates:
        passes = {"encoder": shape.prefill()}
    else:
        passes = (
            {"encoder": shape.encode(), "decoder": shape.prefill()} if shape.source else {"decoder": shape.prefill()}
        )
    for dense in (True, False):
        counted, step = count(twin, lambda: twin(inputs.tokens_bt, source=inputs.source, last_only=not dense))  # noqa: B023
        name = "flops.prefill.dense" if dense else "flops.prefill.total"
        measured = counted.dense if dense else counted.exact
        yield Quantity(name, "FLOPs", predicted_flops(model, passes, dense=dense), measured)
    if model.generates:
        yield from _cache(twin, shape, shape.prompt, step.kept, f"{shape.prompt} tokens")
    if model.kind == "decoder":
        prefix = min(PREFIX, shape.prompt)
        counted, _ = count(twin, lambda: twin(inputs.tokens_bt, prefix=prefix, last_only=True))
        predicted = predicted_flops(model, {"decoder": shape.prefill(prefix)}, dense=False)
        yield Quantity(f"flops.prefill.total with a prefix of {prefix}", "FLOPs", predicted, counted.exact)


def _generation(twin: Twin, shape: Shape, inputs: Inputs) -> Iterator[Quantity]:
    """Yield greedy steps with a cache and without: FLOPs, what is kept, and that both say the same."""
    model = twin.description
    with torch.no_grad():
        memory = None if inputs.source is None else twin.encode(inputs.source)
        first = twin(inputs.tokens_bt, memory_bsd=memory, last_only=True)
    token = _next(twin, first.logits_btv)
    counted, step = count(twin, lambda: twin(token, kept=first.kept))
    one = {"decoder": shape.decode(1)}
    yield Quantity("flops.decode.dense", "FLOPs", predicted_flops(model, one, dense=True), counted.dense)
    yield Quantity("flops.decode.total", "FLOPs", predicted_flops(model, one, dense=False), counted.exact)
    yield from _cache(twin, shape, shape.prompt + 1, step.kept, f"{shape.prompt + 1} tokens")
    cached, ours = count(twin, lambda: _with_cache(twin, token, first.kept, shape.steps))
    steps = predicted_flops(model, {"decoder": shape.decode(shape.steps)}, dense=False)
    yield Quantity("generation.cached.flops", "FLOPs", steps, cached.exact)
    again, theirs = count(twin, lambda: _without_cache(twin, inputs.tokens_bt, token, memory, shape.steps))
    reruns = predicted_flops(model, {"decoder": shape.recompute()}, dense=False)
    yield Quantity("generation.uncached.flops", "FLOPs", reruns, again.exact)
    equal = int((ours.argmax(-1) == theirs.argmax(-1)).sum())
    yield Quantity(
        "generation: tokens that are equal with a cache and without", "tokens", shape.batch * shape.steps, equal
    )
    apart = float((ours - theirs).abs().max()) if shape.steps else 0.0
    yield Quantity(
        "generation: largest difference of logits with a cache and without",
        "logits",
        0,
        apart,
        "within",
        LOGIT_TOLERANCE,
    )


def _with_cache(twin: Twin, token_b1: Tensor, kept: Kept, steps: int) -> Tensor:
    """Return the logits [b, g, v] of greedy steps that remember."""
    logits = []
    for _ in range(steps):
        step = twin(token_b1, kept=kept)
        kept, token_b1 = step.kept, _next(twin, step.logits_btv)
        logits.append(step.logits_btv)
    return torch.cat(logits, dim=1)


def _without_cache(twin: Twin, tokens_bt: Tensor, token_b1: Tensor, memory_bsd: Tensor | None, steps: int) -> Tensor:
    """Return the logits [b, g, v] of greedy steps that start from nothing each time."""
    logits = []
    for _ in range(steps):
        tokens_bt = torch.cat((tokens_bt, token_b1), dim=1)
        step = twin(tokens_bt, memory_bsd=memory_bsd, last_only=True)
        token_b1 = _next(twin, step.logits_btv)
        logits.append(step.logits_btv[:, -1:])
    return torch.cat(logits, dim=1)


def _next(twin: Twin, logits_btv: Tensor) -> Tensor:
    """Return the likeliest next tokens [b, 1]; of a model without a head, the row's largest element as a token."""
    return logits_btv[:, -1:].argmax(-1) % vocabulary(twin.description)


def _logits(twin: Twin, other: Any, inputs: Inputs, reason: str) -> Quantity:
    """Return how far the twin's logits are from those of transformers' model with the same weights.

    Only families with rules of their own claim to compute the same; for others a difference is told, and no failure.
    """
    name = "logits: largest difference from transformers"
    apart = None
    if not reason:
        with torch.no_grad():
            theirs = library.logits(other, inputs.tokens_bt, inputs.source)
            ours = twin(inputs.tokens_bt, source=inputs.source).logits_btv
        apart = float((ours - theirs).abs().max())
        if twin.description.family not in RULES and not apart <= LOGIT_TOLERANCE:
            reason = f"they differ by {apart:.3g}: what this family computes is not described, only how much"
    return Quantity(name, "logits", 0, None if reason else apart, "within", LOGIT_TOLERANCE, reason)
