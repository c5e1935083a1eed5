"""From what a person has, a file, a folder, a bundled name or a dict, to a described Model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import profiles
from planner.engines import QUIRKS, Engine
from planner.errors import PlanError
from planner.families import FAMILIES, Family, defaults
from planner.fields import MOST_LAYERS, VOCABULARY, Config
from planner.formats import Checkpoint
from planner.model import Model, Stack
from planner.topology import Request

LARGEST_FILE_BYTES = 64 * 2**20
"""A config.json is below 3 MB (per-tensor quantisation lists); anything much larger is not one."""

SHAPES = (
    ("kv_lora_rank", "deepseek_v3"),
    ("num_local_experts", "mixtral"),
    ("sliding_window", "mistral"),
    ("n_embd", "gpt2"),
    ("d_kv", "t5"),
    ("encoder_layers", "bart"),
    ("hidden_size", "llama"),
)
"""Keys that give away a family where a config has no model_type, first match first."""


class Source(NamedTuple):
    """A config as found: its values, what to call it in messages, the model's name, and the weights beside it."""

    values: Mapping[str, Any]
    label: str
    name: str
    checkpoint: Checkpoint | None = None


def find(config: str | Path | Mapping[str, Any]) -> Source:
    """Read a config from where it is.

    Args:
        config: an existing config.json, params.json or .gguf file, or a folder that holds one; hf:ORG/NAME; else a bundled
            name, with or without ".json"; or a dict.

    Raises:
        PlanError: there is nothing of that name, or it isn't a JSON object.
    """
    if isinstance(config, Mapping):
        return _unwrap(config, "config", str(config.get("_name_or_path") or config.get("model_type") or "config"))
    if not isinstance(config, str | Path):
        raise PlanError(f"found {type(config).__name__}, a path, a name or a dict is needed", where="config")
    if str(config).startswith("hf:"):
        from planner.formats.hub import fetch  # noqa: PLC0415

        name = str(config).removeprefix("hf:")
        return _unwrap(_parse(fetch(name)), str(config), name.rpartition("/")[2])
    path = Path(config).expanduser()
    if path.is_dir():
        return _folder(path, str(config))
    if path.is_file():
        return _file(path, str(config))
    name = str(config).removesuffix(".json").lower()
    bundled = profiles.model(name)
    if bundled is None:
        from difflib import get_close_matches  # noqa: PLC0415

        near = get_close_matches(name, profiles.model_names(), n=3, cutoff=0.4)
        hint = f"; near bundled names: {', '.join(near)}" if near else ""
        raise PlanError(
            f"no such file, and no bundled model of that name{hint}",
            where=f"--config {config}",
            fix="give the path of a config.json, or a name that `plan models` lists",
        )
    return _unwrap(bundled, f"{name}.json", name)


CONFIG_FILES = ("config.json", "params.json")


def _folder(folder: Path, label: str) -> Source:
    """Read the config that a folder holds, and the headers of the weights beside it."""
    file = next((folder / name for name in CONFIG_FILES if (folder / name).is_file()), None)
    if file:
        from planner.formats.safetensors import headers  # noqa: PLC0415

        return _unwrap(_parse(file), f"{label}/{file.name}", folder.name)._replace(checkpoint=headers(folder))
    models = sorted(folder.glob("*.gguf"))
    if len(models) == 1:
        return _file(models[0], str(models[0]))
    found = f"{len(models)} .gguf files" if models else "none of config.json, params.json and a .gguf file"
    raise PlanError(f"the folder holds {found}", where=label, fix="name the file itself")


def _file(path: Path, label: str) -> Source:
    """Read a config.json, params.json or .gguf file."""
    if path.suffix == ".gguf":
        from planner.formats.gguf import read  # noqa: PLC0415

        config, checkpoint = read(path)
        return Source(config, label, path.stem, checkpoint)
    return _unwrap(_parse(path), label, path.absolute().parent.name if path.name in CONFIG_FILES else path.stem)


def _parse(path: Path) -> Any:
    """Return the JSON value in a file."""
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise PlanError(
                f"the file has {path.stat().st_size:,} bytes, a config.json has less than {LARGEST_FILE_BYTES:,}",
                where=str(path),
                fix="name the config.json, not the weights",
            )
        return json.loads(path.read_bytes())
    except UnicodeDecodeError as error:
        raise PlanError("not a text file", where=str(path), fix="name a config.json") from error
    except json.JSONDecodeError as error:
        raise PlanError(
            f"not valid JSON: {error.msg} in line {error.lineno}, column {error.colno}",
            where=str(path),
            fix="correct the file",
        ) from error
    except RecursionError as error:
        raise PlanError("nested too deeply", where=str(path), fix="name a config.json") from error
    except OSError as error:
        raise PlanError(
            f"can't be read: {error.strerror}", where=str(path), fix="check the path and its permissions"
        ) from error


def _unwrap(value: Any, label: str, name: str) -> Source:
    """Return a config; a bundled file holds it beside its source."""
    if not isinstance(value, Mapping):
        raise PlanError(f"holds {type(value).__name__}, an object with a config's keys is needed", where=label)
    if isinstance(value.get("config"), Mapping) and "source" in value:
        return Source(value["config"], label, str(value.get("name", name)))
    from planner.formats.params import is_params, translate  # noqa: PLC0415

    return Source(translate(value, label) if is_params(value) else value, label, name)


def describe(
    config: str | Path | Mapping[str, Any],
    *,
    engine: Engine,
    assume: str | None = None,
    settings: tuple[str, ...] = (),
    mtp: bool = False,
    strict: bool = False,
) -> Model:
    """Return the model that a config describes.

    Args:
        config: see `find`.
        engine: whose rules.
        assume: family to read an unknown type as.
        settings: "key=value" texts that change the config first; values are JSON, else texts.
        mtp: count multi-token-prediction layers.
        strict: refuse every unread key.

    Raises:
        PlanError: anything about the config that can't be planned, with file and field.
    """
    source = find(config)
    values = _changed(dict(source.values), settings)
    family, notes = _family(values, source.label, assume)
    row = FAMILIES[family]
    architecture = _architecture(values, source.label, row)
    head = (
        architecture == row.architecture or not architecture.endswith("Model") or architecture.endswith("LMHeadModel")
    )
    known = defaults(family)
    reader = Config(values, source.label, family, {**known["names"], **row.names}, known["defaults"])
    request = Request(engine, mtp, head, architecture, {})
    anatomy = row.build(reader, request, **row.traits)
    if (deepest := max(stack.depth for stack in anatomy.stacks)) > MOST_LAYERS:
        raise PlanError(
            f"describes a stack that executes {deepest:,} layers, allowed are {MOST_LAYERS:,}",
            where=source.label,
            fix="correct the number of layers, or how often they run",
        )
    reader.ignore(*row.ignores, *(() if head else ("tie_word_embeddings",)))
    notes += _notes(reader, strict=strict)
    if not head:
        notes.append(f"{architecture} has no language-model head; none is counted")
    if architecture not in (values.get("architectures") or [architecture]):
        notes.append(f"ASSUMED: {values['architectures'][0]} is no known class of {family}; counted as {architecture}")
    notes += [*_engine_notes(anatomy.stacks, request), *anatomy.notes]
    dtype, state, quantization = _widths(values, source.label)
    return Model(
        source.name, family, architecture, anatomy.kind, anatomy.stacks, engine, anatomy.positions, anatomy.learned_positions,
        anatomy.source_positions, anatomy.source_fixed, dtype, quantization, tuple(notes), source.label,
        anatomy.inputs, source.checkpoint, state, anatomy.source_learned,
    )  # fmt: skip


def _notes(reader: Config, *, strict: bool) -> list[str]:
    """Return what a person should know of missing and unread keys; refuse unread ones where asked to."""
    unread = sorted(reader.unread())
    if unread and strict:
        raise PlanError(
            f"nothing reads {', '.join(unread)}",
            where=f"{reader.source}, --strict",
            fix="remove the keys, or leave --strict out",
        )
    taken = {
        each.scope + key: value
        for each in reader.readers()
        for key, value in each.defaulted.items()
        if value not in (False, 0, None) and _matters(key, each.names)
    }
    listed = ", ".join(f"{key} = {value}" for key, value in sorted(taken.items()))
    return [
        *([f"missing keys took the defaults of {reader.family}: {listed}"] if taken else []),
        *([f"keys that nothing read: {', '.join(unread)}"] if unread else []),
        *(note for each in reader.readers() for note in each.notes),
    ]


def _engine_notes(stacks: tuple[Stack, ...], request: Request) -> list[str]:
    """Return where the engine differs from the published model, of what this model has."""
    engine = request.engine
    caches = [cache for stack in stacks for cache in stack.caches]
    notes = [QUIRKS[quirk] for quirk in request.met]
    if engine.window_margin and any(cache.window or cache.chunk for cache in caches):
        notes.append(f"{engine.name} keeps {engine.window_margin} row less than the window between passes")
    absorbed = any(getattr(core, "absorbed_qk", 0) for stack in stacks for core in stack.cores)
    if absorbed and not engine.absorbs_latents:
        notes.append(f"{engine.name} expands all cached latents again in every decode step; ideal works on the latents")
    return notes


def _widths(values: Mapping[str, Any], label: str) -> tuple[str | None, str | None, Mapping[str, Any] | None]:
    """Return the dtypes of weights and of recurrent states, and the quantisation, of a config or of its text part."""
    given = values.get("text_config")
    parts = (values, given if isinstance(given, Mapping) else {})

    def first(*keys: str) -> Any:
        return next((part[key] for part in parts for key in keys if part.get(key)), None)

    quantization = values.get("compression_config") or first("quantization_config")
    if quantization is not None and not isinstance(quantization, Mapping):
        raise PlanError("an object is needed", where=f"{label}, quantization_config", fix="correct the file")
    if quantization is not None and values.get("expert_dtype") is not None:
        quantization = {"expert_dtype": values["expert_dtype"], **quantization}
    dtype = first("dtype", "torch_dtype")
    if dtype is not None and not isinstance(dtype, str):
        raise PlanError(f"found {dtype!r}, a text is needed", where=f"{label}, torch_dtype", fix="correct the file")
    state = first("mamba_ssm_dtype", "mamba_ssm_cache_dtype", "inference_state_dtype")
    return dtype, state if state is None else str(state), quantization


def _matters(own: str, names: Mapping[str, str]) -> bool:
    """Return whether a key, as the family spells it, changes sizes."""
    canonical = {name: key for key, name in names.items()}
    return VOCABULARY[canonical.get(own, own)].structural


def _changed(values: dict[str, Any], settings: tuple[str, ...]) -> dict[str, Any]:
    """Apply "key=value" and "outer.inner=value" texts."""
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise PlanError(
                f"found {setting!r}, key=value is needed", where="--set", fix="for instance --set num_hidden_layers=16"
            )
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        *outer, last = key.split(".")
        inner = values
        for name in outer:
            copy = dict(inner[name]) if isinstance(inner.get(name), Mapping) else {}
            inner[name] = copy
            inner = copy
        inner[last] = value
    return values


def _family(values: Mapping[str, Any], label: str, assume: str | None) -> tuple[str, list[str]]:
    """Return the family to read a config as, and what was assumed to get there."""
    given = values.get("model_type")
    if given is not None and not isinstance(given, str):
        raise PlanError(f"found {given!r}, a text is needed", where=f"{label}, model_type", fix="correct the file")
    if assume is not None:
        if assume not in FAMILIES:
            raise PlanError(
                f"no family {assume!r}{_near(assume)}", where="--assume", fix="`plan models --families` lists all"
            )
        if given == assume:
            return assume, []
        return assume, [f"ASSUMED: read as {assume} by --assume; the config says {given or 'no model_type'}"]
    if given is not None:
        if given not in FAMILIES:
            raise PlanError(
                f"{given!r} is not a family that the planner models{_near(given)}",
                where=f"{label}, model_type",
                fix="if it is built like one of those, say so with --assume FAMILY; every figure is then flagged",
            )
        return given, []
    classes = values.get("architectures") or [None]
    if isinstance(classes, list):
        for name, row in FAMILIES.items():
            if classes[0] and _stem(str(classes[0])) == _stem(row.architecture):
                return name, [f"ASSUMED: no model_type; read as {name} by its architectures"]
    for key, name in SHAPES:
        if values.get(key) is not None:
            return name, [f"ASSUMED: no model_type; read as {name} because it has {key}"]
    raise PlanError(
        "no model_type, and none of the keys that would give a shape away (hidden_size, n_embd, d_model ...)",
        where=label,
        fix="add the model_type, or name a family with --assume",
    )


def _near(name: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415

    near = get_close_matches(name, FAMILIES, n=3, cutoff=0.4)
    return f"; nearest: {', '.join(near)}" if near else ""


CLASS_ENDINGS = (
    "ForConditionalGeneration",
    "ForCausalLM",
    "ForMaskedLM",
    "ForPreTraining",
    "WithLMHeadModel",
    "LMHeadModel",
    "MTModel",
    "Model",
)


def _stem(architecture: str) -> str:
    return next((architecture.removesuffix(end) for end in CLASS_ENDINGS if architecture.endswith(end)), architecture)


def _architecture(values: Mapping[str, Any], label: str, row: Family) -> str:
    """Return the class that the reference would build.

    Raises:
        PlanError: it is one of another purpose (classification ...), whose head isn't modelled.
    """
    given = values.get("architectures")
    if not given:
        return row.architecture
    if not isinstance(given, list) or not isinstance(given[0], str):
        raise PlanError(
            f"found {given!r}, a list of class names is needed", where=f"{label}, architectures", fix="correct the file"
        )
    name = str(given[0])
    stem = _stem(row.architecture)
    if name in row.classes:
        return name
    if name != row.architecture and name.startswith(stem) and name != f"{stem}Model":
        raise PlanError(
            f"the class {name} isn't modelled; allowed are {', '.join((row.architecture, *row.classes))} and {stem}Model",
            where=f"{label}, architectures",
            fix=f"--set 'architectures=[\"{row.architecture}\"]' plans the language model",
        )
    return name if name.startswith(stem) else row.architecture
