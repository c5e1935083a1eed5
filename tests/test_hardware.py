"""Hardware profiles: every figure has its source, names are found however spelled, mistakes in a file are named."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from planner.cli import app
from planner.errors import PlanError
from profiles import hardware

SPECS = Path(__file__).parents[2] / "shared" / "latency" / "hardware_specs.csv"
LOGS = Path(__file__).parents[2] / "shared" / "cases" / "logs.jsonl"
GIB = 2**30

runner = CliRunner()


def printed(*words: str) -> str:
    """Return stdout of a run, 80 columns wide."""
    done = runner.invoke(app, [*words], env={"COLUMNS": "80"}, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


@pytest.mark.parametrize("name", hardware.names())
def test_a_bundled_profile_has_its_form(name: str) -> None:
    """The schema holds, the name is the file's, no source is unused."""
    found = hardware.hardware(name)
    assert found.name == name
    assert {figure.source for _, figure in found.figures()} == found.sources.keys()


def test_names_and_aliases_are_unique() -> None:
    """No alias stands for two profiles, or hides a name; all are as `canonical` spells them."""
    found = [each for name in hardware.names() for each in (name, *hardware.hardware(name).aliases)]
    assert len(found) == len(set(found))
    assert found == [hardware.canonical(each) for each in found]


@pytest.mark.parametrize("name", ["h100-sxm", "h100_sxm", "H100_SXM", "h100", "H100 80GB", "h100-sxm.json"])
def test_a_name_is_found_however_spelled(name: str) -> None:
    """Case, hyphens, underscores and blanks don't matter."""
    assert hardware.hardware(name).name == "h100-sxm"


@pytest.mark.parametrize(
    ("name", "usable_gib"),
    [("h100-sxm", 79.19), ("a100-sxm", 79.15), ("a100-40gb", 39.39), ("h200-sxm", 139.80), ("rtx-3090", 23.58),
     ("rtx-4090", 23.64), ("l40s", 44.39), ("b200-sxm", 178.35), ("mi300x", 191.98)],
)  # fmt: skip
def test_usable_memory_is_what_programs_saw(name: str, usable_gib: float) -> None:
    """In GiB, as engines and PyTorch print it; less than the label."""
    found = hardware.hardware(name)
    assert found.usable_bytes.value == round(usable_gib * GIB)
    assert found.usable_bytes.value < found.nameplate_bytes.value


def test_an_h100_in_whole() -> None:
    """80 GiB, 3.35 TB/s, 989 TFLOP/s bf16 and twice that in fp8, 450 GB/s a direction over NVLink."""
    found = hardware.hardware("h100")
    assert found.nameplate_bytes.value == 80 * GIB
    assert found.bandwidth_bytes_per_second.value == 3_350_000_000_000
    assert {dtype: figure.value for dtype, figure in found.flops_per_second.items()} == {
        "fp32": 66_900_000_000_000, "tf32": 494_700_000_000_000, "bf16": 989_000_000_000_000,
        "fp16": 989_000_000_000_000, "fp8": 1_978_000_000_000_000, "int8": 1_978_000_000_000_000,
    }  # fmt: skip
    assert {kind: figure.value for kind, figure in found.link_bytes_per_second.items()} == {
        "nvlink": 450_000_000_000, "pcie": 64_000_000_000,
    }  # fmt: skip


def test_a_turing_card_has_no_bf16() -> None:
    """A dtype that the device doesn't have isn't listed."""
    assert hardware.hardware("t4").flops_per_second.keys() == {"fp32", "fp16", "int8"}


@pytest.mark.skipif(not SPECS.exists(), reason="the table of figures with provenance lies beside the checkout")
def test_figures_agree_with_the_table_of_figures() -> None:
    """Bandwidth, 16-bit and fp8 peaks, of every device of the table that is bundled."""
    checked = 0
    for row in csv.DictReader(SPECS.open()):
        try:
            found = hardware.hardware(row["gpu"])
        except PlanError:
            continue
        checked += 1
        assert found.bandwidth_bytes_per_second.value == float(row["mem_gbps"]) * 1e9
        for column, dtype in (("bf16_dense_tflops", "bf16"), ("fp8_dense_tflops", "fp8"), ("fp4_dense_tflops", "fp4")):
            if row[column] and dtype in found.flops_per_second:
                assert found.flops_per_second[dtype].value == pytest.approx(float(row[column]) * 1e12)  # type: ignore[index]
    assert checked > 20


@pytest.mark.skipif(not LOGS.exists(), reason="the engines' logs lie beside the checkout")
def test_usable_memory_agrees_with_engines_logs() -> None:
    """79.18 to 79.22 GiB of an H100, 39.38 and 39.39 of an A100-40, 23.58 of a 3090: within what the profile allows."""
    names = {"NVIDIA H100": "h100-sxm", "H100": "h100-sxm", "A100 40GB": "a100-40gb", "RTX 3090": "rtx-3090"}
    checked = 0
    for line in LOGS.read_text().splitlines():
        text = str(json.loads(line)["hardware"])
        name = next((names[each] for each in names if each in text and "GiB" in text), None)
        if name is None:
            continue
        seen = float(re.findall(r"\(([0-9.]+) GiB", text)[0]) * GIB
        usable = hardware.hardware(name).usable_bytes
        assert (usable.low or usable.value) - 0.01 * GIB <= seen <= (usable.high or usable.value) + 0.01 * GIB
        checked += 1
    assert checked > 40


def profile(**changes: Any) -> dict[str, Any]:
    """Return a profile of one's own."""
    return json.loads((hardware.FOLDER / "cpu.json").read_text()) | {"name": "mine"} | changes


def test_a_file_is_a_profile_too(tmp_path: Path) -> None:
    """Of the form that `plan hardware NAME --json` prints."""
    file = tmp_path / "mine.json"
    file.write_text(printed("hardware", "l4", "--json"))
    assert hardware.hardware(str(file)) == hardware.hardware("l4")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"usable_bytes": {"value": -1, "source": "seen"}}, ["usable_bytes.value", "greater than 0", "found -1"]),
        ({"usable_bytes": {"value": 2**60, "source": "seen"}}, ["more than nameplate_bytes"]),
        ({"usable_bytes": {"value": 1, "source": "hearsay"}}, ["usable_bytes.source", "hearsay", "sources are"]),
        ({"runtime_bytes": {"value": 1, "low": 2, "source": "seen"}}, ["runtime_bytes", "not in order"]),
        ({"sources": {}}, ["sources are"]),
        ({"colour": "green"}, ["colour", "not permitted"]),
        ({"flops_per_second": {}}, ["no dtype"]),
        ({"flops_per_second": {"fp3": {"value": 1, "source": "spec"}}}, ["flops_per_second.fp3"]),
        (
            {"bandwidth_bytes_per_second": {"value": float("nan"), "source": "spec"}},
            ["bandwidth_bytes_per_second.value"],
        ),
    ],
)
def test_a_mistake_names_file_and_field(tmp_path: Path, changes: dict[str, Any], parts: list[str]) -> None:
    """And says what is allowed."""
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(profile(**changes)))
    with pytest.raises(PlanError) as caught:
        hardware.hardware(str(file))
    assert all(part in str(caught.value) for part in ("mine.json", *parts)), str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 100_000, '{"name": "x"}'])
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    """With one message."""
    file = tmp_path / "mine.json"
    file.write_text(text)
    with pytest.raises(PlanError, match=r"mine\.json"):
        hardware.hardware(str(file))


@pytest.mark.parametrize(
    ("name", "near"), [("h10", "h100"), ("rtx-4091", "rtx-4090"), ("", "plan hardware"), ("a/b.json", "no such file")]
)
def test_an_unknown_name_is_refused(name: str, near: str) -> None:
    """With the nearest ones, and where to find all."""
    with pytest.raises(PlanError, match=near):
        hardware.hardware(name)


def test_the_list_and_one_profile_fit_80_columns() -> None:
    """Nothing is cut."""
    listed, one = printed("hardware"), printed("hardware", "h100_sxm")
    assert max(len(line) for line in (listed + one).splitlines()) <= 80
    assert "…" not in listed + one
    assert all(name in listed for name in hardware.names())
    assert "79.19 GiB" in one


def test_the_list_is_json() -> None:
    """All profiles, in their files' form."""
    found = json.loads(printed("hardware", "--json"))
    assert [each["name"] for each in found] == hardware.names()
