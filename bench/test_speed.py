"""How fast plans, sweeps and the command are; figures in docs/LOG.md, no timed asserts."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture

import planner
import profiles
from planner.sweep import sweep

EMPTY = (
    "import typer\napp = typer.Typer(add_completion=False)\n@app.command()\ndef f(config: str = '') -> None: ...\napp()"
)


def test_plan_of_a_loaded_model(benchmark: BenchmarkFixture) -> None:
    """Goal: 0.1 ms, at most 1 ms."""
    model = planner.load("llama3-8b")
    assert benchmark(planner.plan, model).params["total"] == 8_030_261_248


def test_plan_from_parsed_json(benchmark: BenchmarkFixture) -> None:
    """At most 3 ms."""
    config = (profiles.model("llama3-8b") or {})["config"]
    assert benchmark(planner.plan, config).params["total"] == 8_030_261_248


def test_sweep_of_a_million_points(benchmark: BenchmarkFixture) -> None:
    """At most 1 s."""
    model = planner.load("llama3-8b")
    batch, context = (each.ravel() for each in np.meshgrid(np.arange(1, 1001), np.arange(1, 100_001, 100)))
    found = benchmark(sweep, model, batch, context)
    assert found["exact"]
    assert len(found["decode_flops"]) == 1_000_000


def test_the_command(benchmark: BenchmarkFixture) -> None:
    """At most 60 ms of CPU above the empty typer application below."""
    benchmark(
        subprocess.run, [sys.executable, "-m", "planner.cli", "--config", "llama3-8b"], check=True, capture_output=True
    )


def test_the_command_with_json(benchmark: BenchmarkFixture) -> None:
    """The same without a table."""
    done: Any = benchmark(
        subprocess.run,
        [sys.executable, "-m", "planner.cli", "--config", "llama3-8b", "--json"],
        check=True,
        capture_output=True,
    )
    assert json.loads(done.stdout)["schema"] == 1


def test_an_empty_typer_application(benchmark: BenchmarkFixture) -> None:
    """What any command of typer costs."""
    benchmark(subprocess.run, [sys.executable, "-c", EMPTY, "--config", "x"], check=True, capture_output=True)
