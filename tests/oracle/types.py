"""Every model_type of transformers' language and speech mappings, on its default config, as the library builds and runs it.

The stored file, tests/oracle/types.jsonl, has a line a type; what a record holds is said at `record_type`. The planner is
never imported.

    python -m tests.oracle.types TYPE... [--all] [--limit 120]
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from multiprocessing.connection import Connection
from typing import Any, Final

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn
from transformers.models.auto import modeling_auto as tables

from tests.oracle import reference
from tests.oracle.reference import Built, Runs, describe
from tests.oracle.store import TYPES, load_types, save_types

MAPPINGS: Final = (
    tables.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    tables.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    tables.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    tables.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    tables.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)
"""In order: BERT, BART and Whisper stand among the causal models too, with halves of themselves."""

LIMIT_SECONDS: Final = 120
LARGEST_LIVE: Final = 700_000_000
"""Parameters up to which a model is run on real float32 tensors where data-free ones fail."""

_IMMATERIAL: Final = re.compile(
    r"transformers_version|architectures|dtype|id2label|label2id|problem_type|return_dict|output_hidden_states"
    r"|output_attentions|chunk_size_feed_forward|_name_or_path|.*token_id|.*dropout.*|.*_pdrop|.*layerdrop|initializer.*"
)
_UNBUILDABLE: Final = (*reference.FAILURES, ImportError, StrictDataclassError)

Record = dict[str, Any]


def model_types() -> list[str]:
    """Return every model_type of the mappings, sorted."""
    return sorted({name for mapping in MAPPINGS for name in mapping})


def class_name(model_type: str) -> str:
    """Return the class of the first mapping that has a type."""
    found = next(mapping[model_type] for mapping in MAPPINGS if model_type in mapping)
    return found if isinstance(found, str) else found[0]


def record_type(model_type: str) -> Record:
    """Return the record of a type's default config, built in bfloat16 on the meta device.

    Returns:
        class, kind (decoder, encoder, encoder-decoder); config without what can't matter; params; layers as {list of
        modules: [[how many, parameters of each] ...]}; buffers, stored elements; cache, {case: bytes at 2 an element};
        flops, {case: total, null where it could not be counted}; reasons, {case: why}; source, positions that an encoder
        made of its input. Of a type that can't be built: class, and error in its place.
    """
    return {**dict(_parts(model_type))}


def _parts(model_type: str) -> Iterator[tuple[str, Any]]:
    """Yield a record's fields, those of the forwards last."""
    name = class_name(model_type)
    yield "class", name
    try:
        built = _build(name, model_type)
    except _UNBUILDABLE as error:
        yield "error", describe(error)
        return
    yield "kind", built.kind
    yield "config", material(transformers.CONFIG_MAPPING[model_type]().to_dict())
    yield from _stored(built)
    runs = _runs(built, model_type)
    yield "cache", {case: _total(slots) for case, slots in runs.cache.items()}
    yield "flops", {case: flops["total"] if flops else None for case, flops in runs.flops.items()}
    reasons = {case: why for case, why in runs.reasons.items() if case != "cache" or built.kind != "encoder"}
    yield from ((key, value) for key, value in (("reasons", reasons), ("source", runs.source)) if value)


def _build(name: str, model_type: str) -> Built:
    """Build a type's class from its default config on the meta device."""
    model_class = getattr(transformers, name)
    return reference.build_class(model_class, lambda: _config(model_class, model_type))


def _config(model_class: type[transformers.PreTrainedModel], model_type: str) -> transformers.PreTrainedConfig:
    """Return the default config that a class is built from, the part of it that the class is of, with a cache."""
    whole = transformers.CONFIG_MAPPING[model_type]()
    parts = [whole, *(getattr(whole, key, None) for key in whole.sub_configs)]
    config = next((part for part in parts if isinstance(part, model_class.config_class)), whole)
    for part in (config, config.get_text_config(decoder=True)):
        if hasattr(part, "use_cache"):
            part.use_cache = True
    return config


def material(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without keys that no size, cache or FLOP depends on, nested ones too."""
    return {
        key: material(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if not (isinstance(key, str) and _IMMATERIAL.fullmatch(key))
    }


def _stored(built: Built) -> Iterator[tuple[str, Any]]:
    """Yield params, layers and buffers, in elements; a shared tensor counts where it first appears."""
    unique, _, _ = reference.unique_parameters(built.model)
    lists = _layer_lists(built.model)
    sums = {stack: [0] * size for stack, size in lists.items()}
    for name, parameter in unique.items():
        _, stack, index = reference.pattern(name, lists)
        if index is not None:
            sums[stack][index] += parameter.numel()
    yield "params", sum(parameter.numel() for parameter in unique.values())
    yield "layers", {stack: run_lengths(sizes) for stack, sizes in sums.items() if any(sizes)}
    yield "buffers", sum(buffer.numel() for buffer in reference.stored_buffers(built.model).values())


def _layer_lists(model: nn.Module) -> dict[str, int]:
    """Return the outer lists of modules and their lengths; of a list of lists (Funnel's blocks), the lists in it."""
    found: dict[str, int] = {}
    for name, size in reference.outer_lists(model).items():
        items = list(model.get_submodule(name).named_children())
        inner = {f"{name}.{key}": len(item) for key, item in items if isinstance(item, nn.ModuleList)}
        found |= inner if len(inner) == size else {name: size}
    return found


def run_lengths(sizes: Sequence[int]) -> list[list[int]]:
    """Return [[how many, value] ...] of equal neighbours."""
    return [[len(list(equal)), size] for size, equal in groupby(sizes)]


def _runs(built: Built, model_type: str) -> Runs:
    """Run every case on data-free tensors; where none can be, and the model is small, on real ones."""
    runs = reference.run(built)
    size = sum(parameter.numel() for parameter in built.model.parameters())
    if runs.cache or runs.flops_without_experts or any(runs.flops.values()) or size > LARGEST_LIVE:
        return runs
    torch.manual_seed(0)
    model_class = type(built.model)
    try:
        live = reference.instantiate(model_class, _config(model_class, model_type), "eager", "cpu", torch.float32)
    except _UNBUILDABLE:
        return runs
    return reference.run(replace(built, model=live))


def _total(slots: Any) -> int:
    """Return the sum of nested lists and dicts of bytes."""
    if isinstance(slots, dict):
        return sum(_total(each) for each in slots.values())
    return sum(_total(each) for each in slots) if isinstance(slots, list) else int(slots)


# --- command ----------------------------------------------------------------------------------------------------------


def guarded(model_type: str, limit: float = LIMIT_SECONDS) -> Record:
    """Return a type's record from a process of its own; what it had after `limit` seconds where it takes longer."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(model_type, sender))
    child.start()
    sender.close()
    record = dict(_received(receiver, time.monotonic() + limit))
    with _ended(child):
        if "error" not in record and "flops" not in record:
            why = f"the library takes longer than {limit:.0f} s" if child.is_alive() else "the library ends the process"
            record |= (
                {"cache": {}, "flops": {}, "reasons": {"cache": why, "flops": why}}
                if "params" in record
                else {"error": why}
            )
    return record


def _send(model_type: str, sender: Connection) -> None:
    """Send the fields of a record one by one, then None."""
    transformers.logging.set_verbosity_error()
    for field in _parts(model_type):
        sender.send(field)
    sender.send(None)


def _received(receiver: Connection, end: float) -> Iterator[tuple[str, Any]]:
    """Yield fields until there are no more, or the clock (seconds, monotonic) passes `end`."""
    while receiver.poll(max(0.0, end - time.monotonic())):
        try:
            field = receiver.recv()
        except EOFError:
            return
        if field is None:
            return
        yield field


@contextmanager
def _ended(child: Any) -> Iterator[None]:
    """Give a process a second to end, and end it afterwards."""
    child.join(1)
    yield
    child.kill()
    child.join()


def main(arguments: Sequence[str] | None = None) -> int:
    """Record types and merge them into the stored file; return 1 where one could not be recorded in full."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.types", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("types", nargs="*", metavar="TYPE", help="model_types")
    parser.add_argument("--all", action="store_true", help="every model_type of the mappings")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds for a type")
    options = parser.parse_args(arguments)
    known = model_types()
    unknown = sorted(set(options.types) - set(known))
    if unknown or not (options.types or options.all):
        parser.error(f"unknown types: {', '.join(unknown)}" if unknown else "name types, or --all")
    return _record_all(known if options.all else options.types, options.limit)


def _record_all(names: Sequence[str], limit: float) -> int:
    """Record each type in turn under a progress bar, saving after each; return 1 where one has an error."""
    console = Console(stderr=True)
    failed = False
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(names))
        for name in names:
            progress.update(task, description=name)
            start = time.perf_counter()
            record = guarded(name, limit)
            save_types({**load_types(), name: record}, TYPES)
            failed |= "error" in record
            said = record.get("error") or "; ".join(dict.fromkeys((record.get("reasons") or {}).values()))
            console.print(f"{name} {time.perf_counter() - start:.1f} s {said}", markup=False, highlight=False)
            progress.advance(task)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
