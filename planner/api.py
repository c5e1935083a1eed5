"""The Python call: `plan(config, **options)`, with the command's options, and `load` for a model planned many times."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.engines import engine_by_name
from planner.errors import PlanError
from planner.frontend import describe
from planner.model import Model
from planner.plan import Plan, make_plan
from planner.precision import resolve
from planner.workload import workload

MODEL_OPTIONS = ("engine", "engine_set", "assume", "set", "mtp", "strict")
LARGEST_COUNT = 2**40


def load(
    config: str | Path | Mapping[str, Any],
    *,
    engine: str = "ideal",
    engine_set: Mapping[str, Any] | tuple[str, ...] | list[str] = (),
    assume: str | None = None,
    set: Mapping[str, Any] | tuple[str, ...] | list[str] = (),  # noqa: A002
    mtp: bool = False,
    strict: bool = False,
) -> Model:
    """Return the model that a config describes, to be planned under many workloads.

    Args:
        config: path of a config.json or of its folder, a bundled name, or a dict.
        engine: whose rules, "@version" may follow. engine_set: flags of it, as `set`: {"max_num_seqs": 256}.
        assume: family to read an unknown model_type as.
        set: values to change first, as "key=value" texts or as a mapping.
        mtp: count multi-token-prediction layers.
        strict: refuse every key that nothing reads.

    Raises:
        PlanError: the config can't be planned; the message says which field, and what to do.
    """
    rules = engine_by_name(engine, _texts(engine_set))
    return describe(config, engine=rules, assume=assume, settings=_texts(set), mtp=mtp, strict=strict)


def plan(config: str | Path | Mapping[str, Any] | Model, **options: Any) -> Plan:
    """Return the plan of a config, or of a model from `load`.

    Args:
        config: path, bundled name, dict or loaded model.
        **options: batch, prompt, generate, source, prefix (tokens), global_tokens, capacity_factor, images, audio_seconds,
            dtype, weights,
            cache_dtype, state_dtype, engine, engine_set, assume, set, mtp, strict, hardware, gpus, tp, pp, ep, dp, cp,
            offload_experts, offload_layers, offload_gb; as in `plan --help`.

    Raises:
        PlanError: anything that a person can get wrong.

    >>> plan("llama3-8b").params["total"]
    8030261248
    """
    return _plan(config, **_known(options))


def _plan(
    config: str | Path | Mapping[str, Any] | Model,
    *,
    batch: int = 1,
    prompt: int | None = None,
    generate: int | None = None,
    source: int | None = None,
    prefix: int = 0,
    global_tokens: int = 0,
    capacity_factor: float | None = None,
    images: int = 0,
    audio_seconds: float = 0,
    dtype: str | None = None,
    weights: str | None = None,
    cache_dtype: str | None = None,
    state_dtype: str | None = None,
    hardware: str | Path | None = None,
    gpus: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    ep: int | None = None,
    dp: int | None = None,
    cp: int | None = None,
    offload_experts: int | str | bool | None = None,
    offload_layers: int | None = None,
    offload_gb: float | None = None,
    **model_options: Any,
) -> Plan:
    for option, value, low in (
        ("batch", batch, 1), ("prompt", prompt, 0), ("generate", generate, 0), ("source", source, 1), ("prefix", prefix, 0),
        ("global_tokens", global_tokens, 0), ("images", images, 0),
        ("gpus", gpus, 1), ("tp", tp, 1), ("pp", pp, 1), ("ep", ep, 1), ("dp", dp, 1), ("cp", cp, 1),
    ):  # fmt: skip
        _count(option, value, low)
    if capacity_factor is not None and not (_real(capacity_factor) and 0 < capacity_factor < LARGEST_COUNT):
        raise PlanError(f"found {capacity_factor!r}, a number above 0 is needed", where="--capacity-factor")
    if not (_real(audio_seconds) and 0 <= audio_seconds < LARGEST_COUNT):
        raise PlanError(f"found {audio_seconds!r}, a number of seconds is needed", where="--audio-seconds")
    if isinstance(config, Model):
        if model_options:
            raise PlanError(f"{', '.join(model_options)} must be given to load()", where="plan(model)")
        model = config
    else:
        model = load(config, **model_options)
    work, notes = workload(
        model, batch=batch, prompt=prompt, generate=generate, source=source, prefix=prefix, global_tokens=global_tokens,
        capacity_factor=capacity_factor, images=images, audio_seconds=audio_seconds,
    )  # fmt: skip
    precision = resolve(model, dtype=dtype, weights=weights, cache_dtype=cache_dtype, state_dtype=state_dtype)
    made = make_plan(model, work, precision, notes)
    sizes = {"gpus": gpus, "tp": tp, "pp": pp, "ep": ep, "dp": dp, "cp": cp}
    moved = {"offload_experts": offload_experts, "offload_layers": offload_layers, "offload_gb": offload_gb}
    if hardware is None:
        given = [name for name, size in sizes.items() if size not in {None, 1}]
        given += [name.replace("_", "-") for name, value in moved.items() if value]
        if spread := [f"--{name}" for name in given]:
            raise PlanError(
                "given without --hardware", where=", ".join(spread), fix="name it: `plan hardware` lists some"
            )
        return made
    from planner.memory import on_hardware  # noqa: PLC0415
    from planner.offload import offload_of  # noqa: PLC0415

    offload = offload_of(offload_experts, offload_layers, offload_gb)
    return on_hardware(made, model, work, precision, hardware, sizes, offload)


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options, all of which `_plan` or `load` takes."""
    code = _plan.__code__
    allowed = (*code.co_varnames[1 : 1 + code.co_kwonlyargcount], *MODEL_OPTIONS)
    for name in options:
        if name not in allowed:
            from difflib import get_close_matches  # noqa: PLC0415

            near = get_close_matches(name, allowed, n=1)
            hint = f"; nearest: {near[0]}" if near else ""
            allowed_list = ", ".join(allowed)
            raise PlanError(f"no such option{hint}", where=f"plan(..., {name}=)", fix=f"allowed are {allowed_list}")
    return options


def _count(option: str, value: Any, low: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= LARGEST_COUNT:
        where = f"--{option.replace('_', '-')}"
        raise PlanError(f"found {value!r}, allowed are whole numbers from {low} to {LARGEST_COUNT:,}", where=where)


def _real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _texts(settings: Mapping[str, Any] | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Return "key=value" texts of a mapping, or the texts themselves."""
    if isinstance(settings, Mapping):
        return tuple(f"{key}={_json(value)}" for key, value in settings.items())
    return tuple(settings)


def _json(value: Any) -> str:
    import json  # noqa: PLC0415

    return json.dumps(value)
