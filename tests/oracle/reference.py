"""Parameters, cache bytes and FLOPs of a config as the transformers library builds, keeps and runs it.

Models are built in bfloat16 on torch's meta device: nothing is allocated and nothing is computed from a formula of
our own. Parameters are counted on the modules, caches are read off the cache objects after a forward, FLOPs come from
`torch.utils.flop_counter.FlopCounterMode`. The planner is never imported.

    python -m tests.oracle.reference NAME... [--all] [--out tests/oracle/reference.json]
"""

from __future__ import annotations

import argparse
import json
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from unittest.mock import patch

import torch
import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn.utils.parametrize import ParametrizationList
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry
from transformers.modeling_outputs import MoEModelOutput
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from tests.oracle.components import component
from tests.oracle.store import STORE, load, save

ROOT: Final = Path(__file__).resolve().parents[2]
MODELS: Final = ROOT / "profiles" / "models"
FOREIGN_TYPES: Final = frozenset({"transformer", "palm"})
FOREIGN_NAMES: Final = frozenset({"gpt3-175b"})

TOKENS: Final = 512
LONG: Final = 5000
TARGET: Final = 128
SAMPLES: Final = 320 * (TOKENS + 1)
MOONSHINE_SAMPLES: Final = 197_119
"""Sound that makes 512 positions: a stride of wav2vec 2.0's convolutions each and one more, the fewest for Moonshine's."""

BYTES: Final = 2
_DECODER_CASES: Final = (f"prefill{TOKENS}", f"decode{TOKENS}")
_ENCODER_CASES: Final = (f"forward{TOKENS}",)
_SEQ2SEQ_CASES: Final = (f"source{TOKENS}-1", f"source{TOKENS}-{TARGET}", f"decode{TARGET}")

_MATMUL_LIKE: Final = re.compile(
    r"(^|_)(mm|bmm|addmm|addbmm|baddbmm|mv|addmv|addr|dot|vdot|matmul|linear|bilinear|einsum|inner|outer|tensordot"
    r"|conv\w*|\w*convolution\w*|lstm\w*|gru\w*|rnn\w*|cdist|fft\w*)(_|\d|$)|attention"
)
_UNTRACEABLE: Final = (RuntimeError, IndexError, ValueError)
_EXPERT: Final = re.compile(r"\.experts\.(expert_)?(\d+)\.")
_CACHE_NAMES: Final = ("cache", "past_key_values", "cache_params", "state", "mems")
_MOST_CALLS: Final = 60_000

Flops = dict[str, int]
Row = list[Any]
T = TypeVar("T")


class UncountedOpError(Exception):
    """An operator that multiplies matrices and has no FLOP formula, so that it would count as 0."""


FAILURES: Final = (*_UNTRACEABLE, UncountedOpError, LookupError, TypeError, AttributeError, AssertionError)


@dataclass(frozen=True)
class Built:
    """A model on the meta device, its kind (decoder, encoder or encoder-decoder) and its attention implementation."""

    model: transformers.PreTrainedModel
    model_type: str
    kind: str
    attention: str


@dataclass(frozen=True)
class Tracing:
    """Why a forward on data-free tensors reads conditions as false, and why it skips the experts; "" if it does not."""

    false_conditions: str = ""
    stub_experts: str = ""


@dataclass(frozen=True)
class Runs:
    """Cache bytes and FLOPs per case, FLOPs with the experts stubbed, and why a case is missing or null.

    Attributes:
        cache: bytes of each slot by case. flops: of each case, None where it could not be counted.
        flops_without_experts: instead of those. reasons: why a case is missing. notes: what tracing left out.
        source: positions that the encoder made of its input, None without one.
    """

    cache: dict[str, Any]
    flops: dict[str, Flops | None]
    flops_without_experts: dict[str, Flops]
    reasons: dict[str, str]
    notes: list[str]
    source: int | None = None


class Ran(NamedTuple):
    """A forward: its output, its {total, head} FLOPs, and how many operators it called."""

    output: Any
    flops: Flops
    calls: int


def record(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reference record of a config dict: counts in parameters, bytes and FLOPs (2 per multiply-add)."""
    built = build(config)
    runs = run(built)
    uncounted = [why for why in runs.reasons.values() if why.startswith(UncountedOpError.__name__)]
    if uncounted:
        raise UncountedOpError(uncounted[0])
    optional = {
        "flops_without_experts": runs.flops_without_experts,
        "reasons": runs.reasons,
        "notes": runs.notes,
    }
    return {
        "class": type(built.model).__name__,
        "kind": built.kind,
        "attention": built.attention,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        **_parameters(built),
        "cache": runs.cache,
        "flops": runs.flops,
        **{key: value for key, value in optional.items() if value},
    }


def build(config: Mapping[str, Any]) -> Built:
    """Build `architectures[0]` of a config dict in bfloat16 on the meta device, without its quantization."""
    name = config["architectures"][0]
    bare = {**{key: value for key, value in config.items() if key != "quantization_config"}, "use_cache": True}
    return build_class(getattr(transformers, name), lambda: transformers.AutoConfig.for_model(**bare))


def build_class(
    model_class: type[transformers.PreTrainedModel], config: Callable[[], transformers.PreTrainedConfig]
) -> Built:
    """Build a class from a fresh config in bfloat16 on the meta device, with sdpa where it has that."""
    try:
        model, attention = instantiate(model_class, config(), "sdpa"), "sdpa"
    except ValueError as error:
        if "scaled_dot_product_attention" not in str(error):
            raise
        model, attention = instantiate(model_class, config(), "eager"), "eager"
    return Built(model, model.config.model_type, _kind(model), attention)


def instantiate(
    model_class: type[transformers.PreTrainedModel],
    config: transformers.PreTrainedConfig,
    attention: str,
    device: str = "meta",
    dtype: torch.dtype = torch.bfloat16,
) -> transformers.PreTrainedModel:
    """Return the model in evaluation mode, its experts (if any) as batched matrix products."""
    with torch.device(device):
        model = model_class._from_config(config, dtype=dtype, attn_implementation=attention)
    for part in model.modules():
        if isinstance(part, transformers.PreTrainedModel) and part._can_set_experts_implementation():
            part.set_experts_implementation("batched_mm")
    if hasattr(model, "set_default_language"):
        model.set_default_language(model.config.languages[0])
    return model.requires_grad_(requires_grad=False).eval()


def _kind(model: transformers.PreTrainedModel) -> str:
    """Return decoder, encoder or encoder-decoder, from the library's own tables of classes."""
    if type(model).__name__ in set(_flat(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())):
        return "decoder"
    if model.config.is_encoder_decoder:
        return "encoder-decoder"
    return "encoder" if model.config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES else "decoder"


def _flat(names: Iterable[str | tuple[str, ...]]) -> Iterator[str]:
    """Yield class names out of names and tuples of names."""
    for name in names:
        yield from (name,) if isinstance(name, str) else name


# --- parameters -------------------------------------------------------------------------------------------------------


def _parameters(built: Built) -> dict[str, Any]:
    """Return tensors, ties, persistent buffers and parameter counts by component, layer and role."""
    model = built.model
    unique, tied, owners = unique_parameters(model)
    lists = outer_lists(model)
    where = {name: component(built.model_type, pattern(name, lists)[0]) for name in unique}
    sizes = {name: parameter.numel() for name, parameter in unique.items()}
    by_block = _sum_by((where[name], sizes[name]) for name in unique)
    return {
        "tensors": _rows(unique, lists),
        "tied": tied,
        "buffers": _rows(stored_buffers(model), lists),
        "by_block": by_block,
        "layers": _layers(built.kind, where, sizes, lists),
        "params": sum(sizes.values()),
        "params_embedding": by_block.get("embedding", 0),
        "params_head": _head_parameters(model, where, owners),
    }


def unique_parameters(model: nn.Module) -> tuple[dict[str, nn.Parameter], list[str], dict[int, str]]:
    """Return parameters by their first name, the names of those tied to one, and {storage: first name}."""
    unique: dict[str, nn.Parameter] = {}
    tied: list[str] = []
    owners: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        storage = parameter.untyped_storage()._cdata
        if storage in owners:
            tied.append(name)
        else:
            owners[storage] = name
            unique[name] = parameter
    return unique, tied, owners


def stored_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the persistent buffers by name."""
    stored = set(model.state_dict())
    return {name: buffer for name, buffer in model.named_buffers() if name in stored}


def _head_parameters(model: transformers.PreTrainedModel, where: Mapping[str, str], owners: Mapping[int, str]) -> int:
    """Return the parameters of the output projection, bias included, that no input table owns."""
    head = model.get_output_embeddings()
    if head is None:
        return 0
    own = {owners[parameter.untyped_storage()._cdata]: parameter.numel() for parameter in head.parameters()}
    return sum(size for name, size in own.items() if where[name] != "embedding")


def outer_lists(model: nn.Module) -> dict[str, int]:
    """Return the module lists that lie in no other list, as {dotted name: length}: the layer stacks."""
    found = {
        name: len(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and not isinstance(module, ParametrizationList)
    }
    return {name: size for name, size in found.items() if not any(name.startswith(f"{other}.") for other in found)}


def pattern(name: str, lists: Iterable[str]) -> tuple[str, str, int | None]:
    """Return a tensor name with its layer index replaced by {}, its stack's name ("" for none) and that index."""
    for stack in lists:
        if name.startswith(f"{stack}."):
            index, _, rest = name[len(stack) + 1 :].partition(".")
            return f"{stack}.{{}}.{rest}", stack, int(index)
    return name, "", None


def _rows(tensors: Mapping[str, Tensor], lists: Iterable[str]) -> list[Row]:
    """Return [name pattern, shape, layer indices] per kind of tensor, in the order of first appearance."""
    grouped: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for name, tensor in tensors.items():
        general, _, index = pattern(name, lists)
        grouped.setdefault((general, tuple(tensor.shape)), []).extend([] if index is None else [index])
    return _collapsed([[general, list(shape), _ranges(indices)] for (general, shape), indices in grouped.items()])


def _collapsed(rows: Iterable[Row]) -> list[Row]:
    """Return rows with those that differ by the index of an expert as one: expert_0 to expert_7 are expert_{0-7}."""
    experts: dict[tuple[str, ...], list[int]] = {}
    for name, shape, layers in rows:
        found = _EXPERT.search(name)
        general = _EXPERT.sub(r".experts.\1{}.", name) if found else name
        experts.setdefault((general, str(shape), layers), []).extend([int(found[2])] if found else [])
    return [
        [(f"{{{_ranges(indices)}}}".join(name.rsplit("{}", 1)) if indices else name), json.loads(shape), layers]
        for (name, shape, layers), indices in experts.items()
    ]


def _ranges(indices: Sequence[int]) -> str:
    """Return sorted integers compactly: [0, 1, 2, 5] is "0-2,5"; nothing is ""."""
    ordered = sorted(indices)
    starts = [i for i in ordered if i - 1 not in ordered]
    ends = [i for i in ordered if i + 1 not in ordered]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def _layers(
    kind: str, where: Mapping[str, str], sizes: Mapping[str, int], lists: Mapping[str, int]
) -> dict[str, list[dict[str, int]]]:
    """Return {decoder|encoder: [{component: parameters} per layer]}; a shared tensor counts where it first appears."""
    counts: dict[str, list[Counter[str]]] = {
        _stack_role(kind, stack): [Counter() for _ in range(size)] for stack, size in lists.items()
    }
    if len(counts) != len(lists):
        raise ValueError(f"two layer stacks with one role: {sorted(lists)}")
    for name, size in sizes.items():
        _, stack, index = pattern(name, lists)
        if index is not None:
            counts[_stack_role(kind, stack)][index][where[name]] += size
    return {role: [dict(layer) for layer in layers] for role, layers in counts.items()}


def _stack_role(kind: str, stack: str) -> str:
    """Return decoder or encoder for a layer stack's dotted name."""
    if kind != "encoder-decoder":
        return kind
    return next(part for part in stack.split(".") if part in ("encoder", "decoder"))


def _sum_by(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return {key: sum of its values}."""
    total: Counter[str] = Counter()
    for key, value in pairs:
        total[key] += value
    return dict(total)


# --- forwards ---------------------------------------------------------------------------------------------------------


def run(built: Built) -> Runs:
    """Run every case of a model's kind; null FLOPs with a reason, and no cache, where it cannot be traced."""
    runner, cases = {
        "decoder": (_decoder_runs, _DECODER_CASES),
        "encoder": (_encoder_runs, _ENCODER_CASES),
        "encoder-decoder": (_seq2seq_runs, _SEQ2SEQ_CASES),
    }[built.kind]
    try:
        return runner(built.model)
    except FAILURES as error:
        reasons = dict.fromkeys(("cache", *(f"flops.{case}" for case in cases)), describe(error))
        return Runs({}, dict.fromkeys(cases), {}, reasons, [])


def _decoder_runs(model: transformers.PreTrainedModel) -> Runs:
    """Run a prompt of 512, one step after it, and a prompt of 5000 (B = 1), logits at every position."""
    prompt, step = _DECODER_CASES
    tracing, first, asked = _first_with_cache(model, _prompt(model, TOKENS))
    name = _cache_name(model, first.output)
    if name is None:
        absent = f"{type(model).__name__} keeps no cache"
        return _finish(tracing, {}, {prompt: first.flops, step: None}, {f"flops.{step}": absent, "cache": absent})
    past = getattr(first.output, name)
    cache: dict[str, Any] = {f"{TOKENS}": _slots(past)}
    reasons: dict[str, str] = {}
    after = _attempt(
        reasons,
        (f"flops.{step}", f"cache.{TOKENS}+1"),
        lambda: _forward(model, tracing, _prompt(model, 1) | asked | {name: past}),
    )
    if after:
        cache[f"{TOKENS}+1"] = _slots(getattr(after.output, name))
    if first.calls > _MOST_CALLS:
        reasons[f"cache.{LONG}"] = f"not run: {first.calls:,} operators for {TOKENS} tokens, one token after the other"
    elif model.device.type != "meta":
        reasons[f"cache.{LONG}"] = "not run on real tensors"
    elif long := _attempt(reasons, (f"cache.{LONG}",), lambda: _forward(model, tracing, _prompt(model, LONG) | asked)):
        cache[f"{LONG}"] = _slots(getattr(long.output, name))
    return _finish(tracing, cache, {prompt: first.flops, step: after.flops if after else None}, reasons)


def _cache_name(model: transformers.PreTrainedModel, output: Any) -> str | None:
    """Return what an output calls its cache, by the name that a forward takes it back under; None without one."""
    held = [name for name in _CACHE_NAMES if getattr(output, name, None) is not None]
    taken = signature(model.forward).parameters
    return next((name for name in held if name in taken), held[0] if held else None)


def _attempt(reasons: dict[str, str], cases: Iterable[str], call: Callable[[], T]) -> T | None:
    """Return a call's result; where it fails, None, and why as the reason of each case."""
    try:
        return call()
    except FAILURES as error:
        reasons.update(dict.fromkeys(cases, describe(error)))
        return None


def _encoder_runs(model: transformers.PreTrainedModel) -> Runs:
    """Run 512 tokens (B = 1) through an encoder."""
    tracing, first = _first(model, {"input_ids": _ids(model, 1, TOKENS)})
    return _finish(tracing, {}, dict.fromkeys(_ENCODER_CASES, first.flops), {})


def _seq2seq_runs(model: transformers.PreTrainedModel) -> Runs:
    """Run a source of 512 (or Whisper's fixed frames) with 1 and 128 decoder tokens, then one step after 128."""
    short, full, step = _SEQ2SEQ_CASES
    tracing, first, asked = _first_with_cache(model, _source(model) | _target(model, TARGET))
    memory, name = first.output.encoder_last_hidden_state, _cache_name(model, first.output) or ""
    past = getattr(first.output, name, None)
    cache: dict[str, Any] = {f"{TARGET}": _pair_slots(past)} if name else {}
    reasons = {} if cache else {"cache": f"{type(model).__name__} keeps no cache"}
    encoded = MoEModelOutput(last_hidden_state=memory)
    encoded.attention_mask = None  # some decoders read one there
    decode = {"encoder_outputs": encoded, name or "past_key_values": past, **_target(model, 1), **asked}
    after = _attempt(reasons, (f"flops.{step}", f"cache.{TARGET}+1"), lambda: _forward(model, tracing, decode))
    one = _attempt(
        reasons,
        (f"flops.{short}", "cache.1"),
        lambda: _forward(model, tracing, _source(model) | _target(model, 1) | asked),
    )
    if cache and after:
        cache[f"{TARGET}+1"] = _pair_slots(getattr(after.output, name))
    if cache and one:
        cache["1"] = _pair_slots(getattr(one.output, name))
    flops = {short: one.flops if one else None, full: first.flops, step: after.flops if after else None}
    return replace(_finish(tracing, cache, flops, reasons), source=memory.shape[1])


def _finish(
    tracing: Tracing, cache: dict[str, Any], flops: Mapping[str, Flops | None], reasons: dict[str, str]
) -> Runs:
    """Return runs with FLOPs nulled where the experts were stubbed, and with what tracing left out."""
    notes = [f"conditions on values read as false ({tracing.false_conditions})"] if tracing.false_conditions else []
    if not tracing.stub_experts:
        return Runs(cache, dict(flops), {}, reasons, notes)
    stubbed = {case: value for case, value in flops.items() if value is not None}
    why = f"experts stubbed, their forward depends on values ({tracing.stub_experts})"
    nulled = {f"flops.{case}": why for case in stubbed}
    return Runs(cache, dict.fromkeys(flops), stubbed, {**reasons, **nulled}, notes)


def _first_with_cache(
    model: transformers.PreTrainedModel, inputs: Mapping[str, Any]
) -> tuple[Tracing, Ran, dict[str, bool]]:
    """Return `_first`, and the argument that asks for a cache where a model keeps none unasked."""
    tracing, first = _first(model, inputs)
    if _cache_name(model, first.output) is None:
        asked = {"use_cache": True}
        answer = _attempt({}, (), lambda: _first(model, {**inputs, **asked}))
        if answer and _cache_name(model, answer[1].output):
            return *answer, asked
    return tracing, first, {}


def _first(model: transformers.PreTrainedModel, inputs: Mapping[str, Tensor]) -> tuple[Tracing, Ran]:
    """Run a first forward, leaving out no more than it takes; return what was left out, and the forward."""
    tracing = Tracing()
    while True:
        try:
            return tracing, _forward(model, tracing, inputs)
        except _UNTRACEABLE as error:
            tracing = _leave_out(tracing, error)


def _leave_out(tracing: Tracing, error: Exception) -> Tracing:
    """Return a tracing that avoids an error, or raise that error again where none does."""
    message = str(error)
    if "Tensor.item()" in message and not tracing.false_conditions:
        return replace(tracing, false_conditions=describe(error))
    if ("nonzero" in message or "no data" in message) and not tracing.stub_experts:
        return replace(tracing, stub_experts=describe(error))
    raise error


def _forward(model: transformers.PreTrainedModel, tracing: Tracing, inputs: Mapping[str, Any]) -> Ran:
    """Run one forward; return its output and {total, head} FLOPs, head being the output projection's."""
    counter, guard = FlopCounterMode(display=False), _OnlyCounted()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings(action="ignore", category=FutureWarning))
        stack.enter_context(torch.no_grad())
        if tracing.false_conditions:
            stack.enter_context(_FalseConditions())
        if tracing.stub_experts:
            stack.enter_context(_stubbed_experts(model))
        stack.enter_context(guard)
        stack.enter_context(counter)
        output = model(**inputs)
    counts = counter.get_flop_counts()
    head = model.get_output_embeddings()
    name = next((name for name, module in model.named_modules() if module is head), None)
    scope = f"{type(model).__name__}.{name}"
    in_head = sum(counts.get(scope, {}).values()) if name else 0
    return Ran(output, {"total": counter.get_total_flops(), "head": in_head}, guard.calls)


class _OnlyCounted(TorchDispatchMode):
    """Count operators; refuse those that multiply matrices and that the FLOP counter would count as 0."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        self.calls += 1
        packet = func._overloadpacket
        if packet not in flop_registry and _MATMUL_LIKE.search(packet.__name__):
            raise UncountedOpError(f"{func} has no FLOP formula")
        return func(*args, **(kwargs or {}))


class _FalseConditions(TorchDispatchMode):
    """Read every boolean scalar of a data-free tensor as false: no padding, no global tokens."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta and args[0].dtype == torch.bool:
            return False
        return func(*args, **(kwargs or {}))


@contextmanager
def _stubbed_experts(model: nn.Module) -> Iterator[None]:
    """Let every module of experts return zeros of its input's shape (tokens, hidden)."""
    with ExitStack() as stack:
        for module in model.modules():
            if type(module).__name__.endswith("Experts"):
                stack.enter_context(patch.object(module, "forward", _zeros))
        yield


def _zeros(hidden: Tensor, *_: Tensor) -> Tensor:
    """Return zeros of the shape (tokens, hidden) of the first argument."""
    return torch.zeros_like(hidden)


def _ids(model: transformers.PreTrainedModel, *shape: int) -> Tensor:
    """Return token ids of a shape: data-free on the meta device, else from the middle of the vocabulary."""
    device = model.device
    if device.type == "meta":
        return torch.empty(shape, dtype=torch.long, device=device)
    entries = getattr(model.config.get_text_config(), "vocab_size", 64)
    return torch.arange(prod(shape), device=device).reshape(shape) % (entries // 4) + entries // 4


def _prompt(model: transformers.PreTrainedModel, tokens: int) -> dict[str, Any]:
    """Return a decoder's input of a number of tokens: ids (1, tokens), or of every codebook."""
    config = model.config
    shape: tuple[int, ...] = (1, tokens)
    if config.model_type.startswith("musicgen"):
        shape = (config.num_codebooks, tokens)
    elif config.model_type == "kyutai_speech_to_text":
        shape = (1, tokens, config.num_codebooks + 1)
    return {"input_ids": _ids(model, *shape)}


def _target(model: transformers.PreTrainedModel, tokens: int) -> dict[str, Any]:
    """Return the decoder's input of an encoder-decoder: ids (1, tokens), or of every channel."""
    channels = (model.config.decoder_config.num_channels,) if model.config.model_type == "dia" else ()
    return {"decoder_input_ids": _ids(model, 1, tokens, *channels)}


def _source(model: transformers.PreTrainedModel) -> dict[str, Tensor]:
    """Return an encoder's input: ids (1, 512), features of 512 or Whisper's fixed frames, or samples of sound."""
    name = model.main_input_name
    if name not in ("input_features", "input_values", "inputs"):
        return {"input_ids": _ids(model, 1, TOKENS)}
    samples = MOONSHINE_SAMPLES if model.config.model_type.startswith("moonshine") else SAMPLES
    shape = _frames(model) if name == "input_features" else (1, samples)
    return {name: torch.zeros(shape, dtype=model.dtype, device=model.device)}


def _frames(model: transformers.PreTrainedModel) -> tuple[int, ...]:
    """Return the shape of sound as features: (1, mel bins, frames) of Whisper, else (1, 512, features)."""
    config = model.config
    if config.model_type == "whisper":
        return 1, config.num_mel_bins, 2 * config.max_source_positions
    inner = getattr(config, "encoder_config", config)
    names = ("num_mel_bins", "input_feat_per_channel", "feature_size", "d_model", "hidden_size")
    return 1, TOKENS, next(getattr(inner, name) for name in names if getattr(inner, name, None))


def describe(error: BaseException) -> str:
    """Return an exception's type and the start of its message, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def _slots(cache: Any) -> list[int]:
    """Return the bytes of each cache slot in layer order, and of what lies beside the layers."""
    if isinstance(cache, transformers.EncoderDecoderCache):
        return _slots(cache.self_attention_cache) + _slots(cache.cross_attention_cache)
    if not hasattr(cache, "layers"):
        return [_bytes(cache if isinstance(cache, (list, tuple)) else vars(cache).values())]
    beside = _bytes(value for key, value in vars(cache).items() if key != "layers")
    return [*(_bytes(vars(layer).values()) for layer in cache.layers), *([beside] if beside else [])]


def _bytes(values: Iterable[Any]) -> int:
    """Return bytes at 2 per element of every state among values, one tensor under two names once."""
    distinct = {
        (state.untyped_storage()._cdata, state.storage_offset(), state.shape): state.numel()
        for state in _states(values)
    }
    return int(BYTES * sum(distinct.values()))


def _states(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield floating-point tensors out of values, and out of the lists and dicts among them."""
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _states(value)
        elif isinstance(value, dict):
            yield from _states(value.values())


def _pair_slots(cache: Any) -> dict[str, list[int]]:
    """Return the bytes of each slot of the decoder's own and of its cross-attention cache."""
    if not isinstance(cache, transformers.EncoderDecoderCache):
        return {"self": _slots(cache)}
    return {"self": _slots(cache.self_attention_cache), "cross": _slots(cache.cross_attention_cache)}


# --- command ----------------------------------------------------------------------------------------------------------


def bundled(folder: Path = MODELS) -> dict[str, dict[str, Any]]:
    """Return the configs of the bundled models that the library can build, by name."""
    configs = {path.stem: json.loads(path.read_text())["config"] for path in sorted(folder.glob("*.json"))}
    return {
        name: config
        for name, config in configs.items()
        if config["model_type"] not in FOREIGN_TYPES and name not in FOREIGN_NAMES
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Record bundled models and merge them into the stored file; return 1 where a model failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.reference", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="bundled models")
    parser.add_argument("--all", action="store_true", help="every bundled model that the library can build")
    parser.add_argument("--out", type=Path, default=STORE, help="the file to merge into")
    options = parser.parse_args(arguments)
    configs = bundled()
    unknown = sorted(set(options.names) - set(configs))
    if unknown or not (options.names or options.all):
        parser.error(f"unknown models: {', '.join(unknown)}" if unknown else "name models, or --all")
    transformers.logging.set_verbosity_error()
    chosen = configs if options.all else {name: configs[name] for name in options.names}
    return _record_all(chosen, options.out)


def _record_all(configs: Mapping[str, Mapping[str, Any]], store: Path) -> int:
    """Record each config in turn under a progress bar, saving after each; return 1 where one failed."""
    console = Console(stderr=True)
    failed = False
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(configs))
        for name, config in configs.items():
            progress.update(task, description=name)
            start = time.perf_counter()
            try:
                save({**load(store), name: record(config)}, store)
                console.print(f"{name} {time.perf_counter() - start:.1f} s", highlight=False)
            except FAILURES as error:
                failed = True
                console.print(f"{name} failed: {describe(error)}", markup=False, highlight=False)
            progress.advance(task)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
