# ruff: noqa: E402  (torch is looked for first)
"""The device script on the CPU: facts, verifications and samples, a JSON object a line, within its time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="times torch's operations")

from measure import device, library


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave transformers out, and verify one model only."""
    monkeypatch.setattr(library, "missing", lambda _family: "left out of this test")
    monkeypatch.setattr(device, "MODELS", ("gpt2",))


def lines(path: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """Run the script; return its exit code and what it wrote."""
    code = device.main(["--out", str(path), "--device", "cpu", *options])
    return code, [json.loads(line) for line in path.read_text().splitlines()]


def test_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts first, then what was verified, then every operation with its times."""
    monkeypatch.setattr(device, "REPEATS", 3)
    code, found = lines(tmp_path / "samples.jsonl", "--seconds", "120")
    assert code == 0
    facts, verified, *samples = found
    assert (facts["kind"], facts["device"], facts["versions"]["torch"]) == ("facts", "cpu", torch.__version__)
    assert 0 < facts["memory_free_bytes"] <= facts["memory_total_bytes"]
    assert (verified["kind"], verified["model"], verified["ok"]) == ("verification", "gpt2", True)
    assert len(samples) == len(device.operations("cpu"))
    assert {sample["kind"] for sample in samples} == {"launch", "copy", "gemm", "attention_prefill", "attention_decode"}
    for sample in samples:
        assert sample["error"] == ""
        assert 1 <= len(sample["seconds"]) <= 3
        assert min(sample["seconds"]) > 0
        assert {"shape", "dtype", "device", "flops", "bytes"} <= sample.keys()


def test_the_time_limit(tmp_path: Path) -> None:
    """Where time is up, the rest is left out."""
    code, found = lines(tmp_path / "samples.jsonl", "--seconds", "0")
    assert code == 0
    assert [line["kind"] for line in found] == ["facts", "verification"]


def test_a_verification_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is 1."""
    monkeypatch.setattr(device, "verify", lambda _name, **_: {"ok": False})
    assert lines(tmp_path / "samples.jsonl", "--seconds", "0")[0] == 1


def test_an_operation_that_fails() -> None:
    """Its line says why, and the script goes on."""

    def make() -> Any:
        raise RuntimeError("out of memory")

    sample = device.timed(device.Operation("gemm", dict(m=1), "float32", 1, 1, make), "cpu", 1.0)
    assert (sample.seconds, sample.error) == ([], "out of memory")


def test_flops_and_bytes() -> None:
    """From their definitions, at float32's 4 bytes."""
    bench = device.Bench("cpu", torch.float32)
    gemm = bench.gemm(2, 3, 5)
    assert (gemm.flops, gemm.bytes) == (2 * 2 * 3 * 5, 4 * (2 * 5 + 3 * 5 + 2 * 3))
    prompt = bench.attention(2, 7, 7, 4, 2, 8)
    assert (prompt.flops, prompt.bytes) == (2 * 2 * 2 * 4 * 8 * 28, 4 * 2 * 8 * (2 * 4 * 7 + 2 * 2 * 7))
    step = bench.attention(2, 1, 7, 4, 2, 8)
    assert (step.flops, step.bytes) == (2 * 2 * 2 * 4 * 8 * 7, 4 * 2 * 8 * (2 * 4 + 2 * 2 * 7))
    assert bench.copy(10).bytes == 20


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_operations_are_distinct(kind: str) -> None:
    """No shape is timed twice, on either kind of device."""
    keys = [(one.kind, tuple(one.shape.items())) for one in device.operations(kind)]
    assert len(set(keys)) == len(keys)
