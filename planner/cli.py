"""The command `plan`. Everything heavy is imported by the sub-command that needs it."""

# ruff: noqa: E402 - the collector is switched off before anything is imported

from __future__ import annotations

import gc

gc.disable()  # a short-lived command: collecting while it imports costs 7 ms of CPU

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.errors import PlanError

if TYPE_CHECKING:
    from planner.plan import Plan

app = typer.Typer(
    name="plan",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

MODEL, WORK, WIDTH, DEVICES, OUT = "Model", "Workload", "Precision", "Hardware", "Output"

ConfigOption = Annotated[
    str | None,
    typer.Option("--config", "-c", metavar="FILE_OR_NAME", rich_help_panel=MODEL,
                 help="config.json, params.json or .gguf file, a folder that holds one, hf:ORG/NAME, or a bundled name (`plan models`)"),
]  # fmt: skip
Assume = Annotated[
    str | None,
    typer.Option(
        metavar="FAMILY", rich_help_panel=MODEL, help="read an unknown model_type as this family; flagged everywhere"
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", rich_help_panel=MODEL, help="change a value of the config; may be repeated"
    ),
]
Mtp = Annotated[bool, typer.Option("--mtp", rich_help_panel=MODEL, help="count multi-token-prediction layers too")]
Strict = Annotated[
    bool, typer.Option("--strict", rich_help_panel=MODEL, help="refuse every key of the config that nothing reads")
]
EngineOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        rich_help_panel=MODEL,
        help="whose rules: ideal (the published checkpoint), transformers, vllm, sglang, trtllm, llama.cpp; @version may follow",
    ),
]
EngineSet = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FLAG=VALUE", rich_help_panel=MODEL, help="a flag of the engine, by its own name; may be repeated"
    ),
]
Batch = Annotated[int, typer.Option(metavar="SEQUENCES", rich_help_panel=WORK, help="sequences at once")]
Prompt = Annotated[
    int | None,
    typer.Option(metavar="TOKENS", rich_help_panel=WORK, help="tokens of each prompt (default 1024, or what fits)"),
]
Generate = Annotated[
    int | None,
    typer.Option(metavar="TOKENS", rich_help_panel=WORK, help="tokens generated after it (default 256, or what fits)"),
]
SourceOption = Annotated[
    int | None,
    typer.Option(
        "--source", metavar="POSITIONS", rich_help_panel=WORK, help="positions entering an encoder-decoder's encoder"
    ),
]
Prefix = Annotated[
    int,
    typer.Option(metavar="TOKENS", rich_help_panel=WORK, help="first tokens that see each other both ways (prefix LM)"),
]
GlobalTokens = Annotated[
    int,
    typer.Option(
        metavar="TOKENS", rich_help_panel=WORK, help="Longformer: tokens that see, and are seen by, all others"
    ),
]
Capacity = Annotated[
    float | None,
    typer.Option(
        metavar="FACTOR", rich_help_panel=WORK, help="Switch: room per expert, in even shares; drops the rest"
    ),
]
Images = Annotated[
    int,
    typer.Option(
        metavar="N", rich_help_panel=WORK, help="images in each prompt, beside its text: tower work and tokens"
    ),
]
AudioSeconds = Annotated[
    float,
    typer.Option(
        "--audio-seconds", metavar="T", rich_help_panel=WORK, help="seconds of sound in each prompt, beside its text"
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(metavar="DTYPE", rich_help_panel=WIDTH, help="activations (default: the config's, else bf16)"),
]
WeightFormat = Annotated[
    str | None,
    typer.Option("--weights", metavar="FORMAT", rich_help_panel=WIDTH, help="weight format (`plan models --formats`)"),
]
CacheDtype = Annotated[
    str | None, typer.Option(metavar="DTYPE", rich_help_panel=WIDTH, help="rows of the key-value cache")
]
StateDtype = Annotated[
    str | None, typer.Option(metavar="DTYPE", rich_help_panel=WIDTH, help="recurrent state (default fp32)")
]
HardwareOption = Annotated[
    str | None,
    typer.Option(
        "--hardware", metavar="NAME_OR_FILE", rich_help_panel=DEVICES, help="devices (`plan hardware`): does it fit"
    ),
]
Gpus = Annotated[
    int | None, typer.Option(metavar="N", rich_help_panel=DEVICES, help="devices; tp and pp are chosen where not given")
]
Tp = Annotated[
    int | None, typer.Option("--tp", metavar="N", rich_help_panel=DEVICES, help="ranks that divide heads and widths")
]
Pp = Annotated[int | None, typer.Option("--pp", metavar="N", rich_help_panel=DEVICES, help="stages of layers")]
Ep = Annotated[
    int | None, typer.Option("--ep", metavar="N", rich_help_panel=DEVICES, help="ranks that divide routed experts")
]
Dp = Annotated[
    int | None, typer.Option("--dp", metavar="N", rich_help_panel=DEVICES, help="copies that divide sequences")
]
Cp = Annotated[
    int | None, typer.Option("--cp", metavar="N", rich_help_panel=DEVICES, help="ranks that divide cache rows")
]
OffloadExperts = Annotated[
    str | None,
    typer.Option(
        metavar="all|N",
        rich_help_panel=DEVICES,
        help="routed experts (of the first N such layers) in the host's memory",
    ),
]
OffloadLayers = Annotated[
    int | None,
    typer.Option(
        metavar="N", rich_help_panel=DEVICES, help="the first N layers, weights and cache, in the host's memory"
    ),
]
OffloadGb = Annotated[
    float | None,
    typer.Option(metavar="GIB", rich_help_panel=DEVICES, help="so much of each device's weights in the host's memory"),
]
RequireFit = Annotated[
    bool, typer.Option("--require-fit", rich_help_panel=DEVICES, help="exit code 1 where the plan doesn't fit")
]
Json = Annotated[bool, typer.Option("--json", rich_help_panel=OUT, help="print the plan as JSON, and nothing else")]
Csv = Annotated[bool, typer.Option("--csv", rich_help_panel=OUT, help="print path,value rows, and nothing else")]
Explain = Annotated[
    str | None,
    typer.Option(metavar="PATH", rich_help_panel=OUT, help="how a figure came about, for instance params.total"),
]


@app.callback(invoke_without_command=True)
def main_job(  # noqa: PLR0913, PLR0917 - one for each option
    context: typer.Context,
    config: ConfigOption = None,
    assume: Assume = None,
    set_: Set = None,
    mtp: Mtp = False,
    strict: Strict = False,
    engine: EngineOption = "ideal",
    engine_set: EngineSet = None,
    batch: Batch = 1,
    prompt: Prompt = None,
    generate: Generate = None,
    source: SourceOption = None,
    prefix: Prefix = 0,
    global_tokens: GlobalTokens = 0,
    capacity_factor: Capacity = None,
    images: Images = 0,
    audio_seconds: AudioSeconds = 0,
    dtype: Dtype = None,
    weights: WeightFormat = None,
    cache_dtype: CacheDtype = None,
    state_dtype: StateDtype = None,
    hardware: HardwareOption = None,
    gpus: Gpus = None,
    tp: Tp = None,
    pp: Pp = None,
    ep: Ep = None,
    dp: Dp = None,
    cp: Cp = None,
    offload_experts: OffloadExperts = None,
    offload_layers: OffloadLayers = None,
    offload_gb: OffloadGb = None,
    require_fit: RequireFit = False,
    as_json: Json = False,
    as_csv: Csv = False,
    explain: Explain = None,
) -> None:
    """What a transformer costs: exact parameters, weight and cache bytes, FLOPs, and generation with and without a cache.

    The main job needs no sub-command:

    plan --config llama3-8b

    plan --config path/to/config.json --batch 8 --prompt 4096
    """
    if context.invoked_subcommand is not None:
        return
    if config is None:
        raise PlanError(
            "missing", where="--config", fix="name a config.json or a bundled model, for instance --config llama3-8b"
        )
    from planner.api import load, plan  # noqa: PLC0415

    model = load(
        config,
        engine=engine,
        engine_set=tuple(engine_set or ()),
        assume=assume,
        set=tuple(set_ or ()),
        mtp=mtp,
        strict=strict,
    )
    made = plan(
        model, batch=batch, prompt=prompt, generate=generate, source=source, prefix=prefix, global_tokens=global_tokens,
        capacity_factor=capacity_factor, images=images, audio_seconds=audio_seconds, dtype=dtype, weights=weights, cache_dtype=cache_dtype, state_dtype=state_dtype,
        hardware=hardware, gpus=gpus, tp=tp, pp=pp, ep=ep, dp=dp, cp=cp,
        offload_experts=offload_experts, offload_layers=offload_layers, offload_gb=offload_gb,
    )  # fmt: skip
    if require_fit and made.memory is None:
        raise PlanError("given without --hardware", where="--require-fit", fix="name it: `plan hardware` lists some")
    if explain is not None:
        from planner.explain import explain as explained  # noqa: PLC0415

        sys.stdout.write(explained(model, made, explain) + "\n")
    elif as_json:
        _print_json(made.to_dict())
    elif as_csv:
        sys.stdout.write(_rows(made))
    else:
        from reports.table import show  # noqa: PLC0415

        show(made)
    if require_fit and made.memory and not made.memory["fits"]:
        raise typer.Exit(1)


@app.command(rich_help_panel="Other jobs")
def compare(
    configs: Annotated[
        list[str], typer.Argument(metavar="FILE_OR_NAME...", help="two or more configs; ratios are to the first")
    ],
    *,
    batch: Batch = 1,
    prompt: Prompt = None,
    generate: Generate = None,
    engine: EngineOption = "ideal",
    engine_set: EngineSet = None,
    dtype: Dtype = None,
    weights: WeightFormat = None,
    cache_dtype: CacheDtype = None,
    as_json: Json = False,
) -> None:
    """Compare architectures side by side: one table, with ratios to the first."""
    from planner.compare import compare as compared  # noqa: PLC0415

    found = compared(
        configs, batch=batch, prompt=prompt, generate=generate, engine=engine, engine_set=tuple(engine_set or ()), dtype=dtype, weights=weights,
        cache_dtype=cache_dtype,
    )  # fmt: skip
    if as_json:
        _print_json(found)
    else:
        from reports.compare import show  # noqa: PLC0415

        show(found)


@app.command(rich_help_panel="Other jobs")
def fit(  # noqa: PLR0913, PLR0917 - one for each option
    config: Annotated[str, typer.Option("--config", "-c", metavar="FILE_OR_NAME", help="as in the main job")],
    hardware: HardwareOption = None,
    gpus: Gpus = None,
    tp: Tp = None,
    pp: Pp = None,
    ep: Ep = None,
    dp: Dp = None,
    cp: Cp = None,
    offload_experts: OffloadExperts = None,
    offload_layers: OffloadLayers = None,
    offload_gb: OffloadGb = None,
    assume: Assume = None,
    set_: Set = None,
    mtp: Mtp = False,
    strict: Strict = False,
    engine: EngineOption = "ideal",
    engine_set: EngineSet = None,
    batch: Batch = 1,
    prompt: Prompt = None,
    generate: Generate = None,
    source: SourceOption = None,
    prefix: Prefix = 0,
    global_tokens: GlobalTokens = 0,
    capacity_factor: Capacity = None,
    images: Images = 0,
    audio_seconds: AudioSeconds = 0,
    dtype: Dtype = None,
    weights: WeightFormat = None,
    cache_dtype: CacheDtype = None,
    state_dtype: StateDtype = None,
    require_fit: RequireFit = False,
    as_json: Json = False,
) -> None:
    """Does it fit, on how many devices, in which formats, and what is the smallest change that makes it fit."""
    from planner.fit import fit as fitted  # noqa: PLC0415

    found = fitted(
        config, hardware=hardware, gpus=gpus, tp=tp, pp=pp, ep=ep, dp=dp, cp=cp, assume=assume, set=tuple(set_ or ()), mtp=mtp,
        strict=strict, engine=engine, engine_set=tuple(engine_set or ()), batch=batch, prompt=prompt, generate=generate, source=source, prefix=prefix, global_tokens=global_tokens,
        capacity_factor=capacity_factor, images=images, audio_seconds=audio_seconds, dtype=dtype, weights=weights, cache_dtype=cache_dtype,
        state_dtype=state_dtype, offload_experts=offload_experts, offload_layers=offload_layers, offload_gb=offload_gb,
    )  # fmt: skip
    if as_json:
        _print_json(found)
    else:
        from reports.fit import show  # noqa: PLC0415

        show(found)
    if require_fit and not found["fits"]:
        raise typer.Exit(1)


@app.command(rich_help_panel="Other jobs")
def verify(
    config: Annotated[str, typer.Option("--config", "-c", metavar="FILE_OR_NAME", help="as in the main job")],
    *,
    runner: Annotated[
        str, typer.Option(help="twin: a torch model of the same description; transformers: the reference")
    ] = "twin",
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    full: Annotated[bool, typer.Option("--full", help="the twin at full size, not shrunk")] = False,
    as_json: Json = False,
) -> None:
    """Run real forward passes and check the predictions: parameters, cache bytes, FLOPs, logits.

    Needs the extra "measure".
    """
    try:
        from measure.verify import verify as verified  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise PlanError(
            f"{error.name} is not installed", where="plan verify", fix="install it: pip install 'planformer[measure]'"
        ) from error
    found = verified(config, runner=runner, device=device, full=full)
    if as_json:
        _print_json(found)
    else:
        from reports.verification import show  # noqa: PLC0415

        show(found)
    if not found["ok"]:
        raise typer.Exit(1)


@app.command(rich_help_panel="Other jobs")
def check(
    log: Annotated[
        str,
        typer.Argument(metavar="LOGFILE", help="start-up log of vLLM 0.6 to 0.32, SGLang, TensorRT-LLM or llama.cpp"),
    ],
    *,
    config: Annotated[
        str | None,
        typer.Option(
            "--config", "-c", metavar="FILE_OR_NAME", help="config of its model (default: by the name that it prints)"
        ),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            "--hardware", metavar="NAME_OR_FILE", help="devices that vLLM ran on: what it sets aside is predicted too"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare an engine's start-up log with the planner, line by line; exit code 1 where something differs."""
    from planner.engines.log import check as checked  # noqa: PLC0415
    from planner.engines.log import differs  # noqa: PLC0415

    found = checked(log, config, hardware)
    if as_json:
        _print_json(found)
    else:
        from reports.check import show  # noqa: PLC0415

        show(found)
    if differs(found):
        raise typer.Exit(1)


@app.command(rich_help_panel="Other jobs")
def sweep(
    config: Annotated[str, typer.Option("--config", "-c", metavar="FILE_OR_NAME", help="as in the main job")],
    *,
    batch: Annotated[str, typer.Option(metavar="A,B,... or A:B:STEP", help="batch sizes")] = "1,2,4,8,16,32,64,128",
    context_: Annotated[
        str, typer.Option("--context", metavar="A,B,... or A:B:STEP", help="tokens in each sequence")
    ] = "1024,4096,16384",
    engine: EngineOption = "ideal",
    engine_set: EngineSet = None,
    cache_dtype: CacheDtype = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write the table there; else it is printed as CSV")
    ] = None,
) -> None:
    """Cost of a decode step and of the cache over a grid of batch sizes and contexts. Needs the extra "reports"."""
    from planner.api import load  # noqa: PLC0415
    from planner.sweep import grid, table  # noqa: PLC0415

    model = load(config, engine=engine, engine_set=tuple(engine_set or ()))
    found = table(model, grid(batch, "--batch"), grid(context_, "--context"), cache_dtype=cache_dtype)
    text = found.to_csv(index=False)
    if csv is None:
        sys.stdout.write(text)
        return
    try:
        csv.write_text(text)
    except OSError as error:
        raise PlanError(
            f"can't be written: {error.strerror}", where=f"--csv {csv}", fix="choose another file"
        ) from error


@app.command(rich_help_panel="Look things up")
def models(
    *,
    families: Annotated[bool, typer.Option("--families", help="list the families (model_type) instead")] = False,
    formats: Annotated[bool, typer.Option("--formats", help="list the weight formats instead")] = False,
    as_json: Json = False,
) -> None:
    """List bundled models, the families that can be planned, or the weight formats."""
    from reports.lists import entries, show  # noqa: PLC0415

    if families and formats:
        raise PlanError("found both", where="--families, --formats", fix="give one of them")
    rows = entries("families" if families else "formats" if formats else "models")
    if as_json:
        _print_json(rows)
    else:
        show(rows)


@app.command(name="hardware", rich_help_panel="Look things up")
def hardware_command(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME_OR_FILE]", help="show this one, with its sources")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """List bundled hardware profiles, or show one: memory, bandwidth, peaks, links, each with its source."""
    from profiles.hardware import hardware as profile  # noqa: PLC0415
    from profiles.hardware import names  # noqa: PLC0415

    found = [profile(each) for each in ([name] if name else names())]
    if as_json:
        shown = [each.model_dump(mode="json", exclude_none=True) for each in found]
        _print_json(shown[0] if name else shown)
        return
    from reports.hardware import show, show_all  # noqa: PLC0415

    if name:
        show(found[0])
    else:
        show_all(found)


def _print_json(value: Any) -> None:
    import json  # noqa: PLC0415

    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def _rows(made: Plan) -> str:
    """Return path,value rows of all leaves of the JSON."""
    import csv  # noqa: PLC0415
    import io  # noqa: PLC0415

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("path", "value"))

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{path}.{key}" if path else key, inner)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                walk(f"{path}[{index}]", inner)
        else:
            writer.writerow((path, "" if value is None else value))

    walk("", made.to_dict())
    return out.getvalue()


def main() -> None:
    """Run the command; a PlanError is one message on stderr and exit code 2."""
    try:
        app()
    except PlanError as error:
        sys.stderr.write(f"plan: {error}\n")
        raise SystemExit(2) from None
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(0) from None


if __name__ == "__main__":
    main()
