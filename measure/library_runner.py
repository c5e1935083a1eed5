"""Reads parameters, caches and FLOPs off transformers' own model, in full size on torch's meta device, without data."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from measure import library
from measure.build import build
from measure.quantity import Quantity
from measure.twin_runner import Shape, cache_bytes, predicted_flops
from measure.weights import pairs
from planner.blocks import AudioFrontEnd
from planner.errors import PlanError
from planner.model import Model

PROMPT, SOURCE, BEYOND_WINDOW = 512, 512, 8
"""Tokens; prompts are longer where a window is."""

MULTIPLIES = re.compile(
    r"(^|_)(mm|bmm|addmm|baddbmm|mv|dot|matmul|linear|einsum|conv\w*|\w*convolution\w*)(_|\d|$)|attention"
)
"""Names of operators that multiply matrices; one without a FLOP formula would count as 0."""

OTHER_RECTANGLES = {
    "longformer": "its code multiplies overlapping blocks of keys, neither the mask nor the full rectangle"
}
"""Families whose code computes another number of pairs than a tracer's rectangle."""

UNTRACEABLE = (RuntimeError, IndexError, ValueError, NotImplementedError)


def quantities(model: Model, config: Mapping[str, Any], device: str) -> Iterator[Quantity]:  # noqa: ARG001
    """Yield parameters, cache bytes and dense FLOPs of one sequence."""
    if reason := library.missing(model.family):
        raise PlanError(reason, where="--runner transformers", fix="use --runner twin")
    other = library.build(config, model.architecture, device="meta", dtype=torch.bfloat16)
    yield from _parameters(model, other)
    shape = _shape(model)
    if model.family in OTHER_RECTANGLES:
        yield from _skipped(model, shape, OTHER_RECTANGLES[model.family])
        return
    try:
        yield from list(_passes(model, other, shape))
    except UNTRACEABLE as error:
        yield from _skipped(
            model, shape, f"can't run without data: {type(error).__name__}: {' '.join(str(error).split())[:100]}"
        )


def _parameters(model: Model, other: nn.Module) -> Iterator[Quantity]:
    """Yield parameters in all and by component, each tensor placed by its counterpart in the description."""
    twin = build(model, device="meta", dtype=torch.bfloat16)
    yield Quantity("params.total", "parameters", model.tally.total, sum(p.numel() for p in other.parameters()))
    try:
        paired = pairs(twin, other)
    except PlanError as error:
        yield Quantity("tensors without a counterpart", "tensors", 0, 1, reason=str(error))
        return
    measured: Counter[str] = Counter()
    buffers = 0
    for pair in paired:
        if pair.place.leaf.buffer:
            buffers += pair.value.numel()
        else:
            measured[pair.place.leaf.part] += pair.value.numel()
    for part, size in model.tally.by_part.items():
        yield Quantity(f"params.by_block.{part}", "parameters", size, measured[part])
    yield Quantity("params.buffers", "elements", model.tally.buffers, buffers)


def _skipped(model: Model, shape: Shape, reason: str) -> Iterator[Quantity]:
    """Yield the FLOPs that can't be measured, and why."""
    yield Quantity("flops.prefill.dense", "FLOPs", _prefill(model, shape), None, reason=reason)
    if model.generates:
        yield Quantity("flops.decode.dense", "FLOPs", _decode(model, shape), None, reason=reason)


def _prefill(model: Model, shape: Shape) -> int:
    passes = {"decoder" if model.generates else "encoder": shape.prefill()}
    return predicted_flops(model, passes | ({"encoder": shape.encode()} if shape.source else {}), dense=True)


def _decode(model: Model, shape: Shape) -> int:
    return predicted_flops(model, {"decoder": shape.decode(1)}, dense=True)


def _shape(model: Model) -> Shape:
    """Return one sequence, longer than the windows where the model's positions allow it."""
    windows = [mask.window or mask.chunk or 0 for stack in model.stacks for mask in stack.masks]
    wanted = max(PROMPT, max(windows, default=0) + BEYOND_WINDOW)
    room = model.positions or wanted + 1
    source = (model.source_positions if model.source_fixed else min(SOURCE, model.source_positions or SOURCE)) or 0
    two = model.kind == "encoder-decoder"
    return Shape(1, min(wanted if not two else PROMPT // 4, room - 1), 1, source if two else 0)


def _passes(model: Model, other: nn.Module, shape: Shape) -> Iterator[Quantity]:
    """Yield the prompt's pass and one step after it."""
    output, flops = _run(other, library.inputs_of(other, _ids(shape.prompt), _source(model, shape)))
    yield Quantity("flops.prefill.dense", "FLOPs", _prefill(model, shape), flops)
    if not model.generates:
        return
    past = getattr(output, "past_key_values", None)
    if past is None:
        reason = f"{type(other).__name__} keeps no cache"
        yield Quantity("flops.decode.dense", "FLOPs", _decode(model, shape), None, reason=reason)
        return
    yield from _cache(model, shape, shape.prompt, past)
    after, flops = _run(other, library.step_inputs(output, _ids(1)))
    yield Quantity("flops.decode.dense", "FLOPs", _decode(model, shape), flops)
    yield from _cache(model, shape, shape.prompt + 1, after.past_key_values)


def _cache(model: Model, shape: Shape, tokens: int, past: Any) -> Iterator[Quantity]:
    """Yield the bytes that the library's cache holds, by kind."""
    decoder = model.stack("decoder")
    assert decoder is not None
    held = {"self": getattr(past, "self_attention_cache", past), "cross": getattr(past, "cross_attention_cache", None)}
    for kind, predicted in cache_bytes(decoder, shape, tokens, model.engine, torch.bfloat16.itemsize).items():
        layers = held[kind].layers
        measured = sum(t.numel() * t.element_size() for layer in layers for t in _tensors(vars(layer).values()))
        yield Quantity(f"cache.parts.{kind} after {tokens} tokens", "bytes", predicted, measured)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield floating-point tensors out of values, and out of the lists among them."""
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _run(model: nn.Module, inputs: Mapping[str, Any]) -> tuple[Any, int]:
    """Run one forward pass and return its output and its FLOPs."""
    with (
        warnings.catch_warnings(action="ignore"),
        torch.no_grad(),
        _WithoutData(),
        FlopCounterMode(display=False) as counter,
    ):
        output = model(**inputs)
    return output, int(counter.get_total_flops())


class _WithoutData(TorchDispatchMode):  # type: ignore[misc]
    """Runs a model that has no values.

    A condition on values is read as false (no padding, no global tokens), and an operator that multiplies matrices and has
    no FLOP formula is refused, since it would count as 0.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func._overloadpacket  # noqa: SLF001
        if packet not in flop_registry and MULTIPLIES.search(packet.__name__):
            raise PlanError(f"{func} has no FLOP formula", where="torch.utils.flop_counter")
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta and args[0].dtype == torch.bool:  # noqa: SLF001
            return False
        return func(*args, **(kwargs or {}))


def _ids(tokens: int) -> Tensor:
    return torch.empty((1, tokens), dtype=torch.long, device="meta")


def _source(model: Model, shape: Shape) -> Tensor | None:
    """Return a source without data: ids, or audio features."""
    if not shape.source:
        return None
    front = model.stacks[0].front[0]
    if not isinstance(front, AudioFrontEnd):
        return _ids(shape.source)
    return torch.empty((1, front.bands, 2 * shape.source), dtype=torch.bfloat16, device="meta")
