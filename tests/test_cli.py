"""The command: JSON is the plan and nothing else, tables fit 80 columns, the README is true."""

from __future__ import annotations

import csv
import inspect
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import planner
from planner.cli import app, fit, main_job
from tests import readme

runner = CliRunner()


def printed(*words: str) -> str:
    """Return stdout of a run in this process, 80 columns wide."""
    done = runner.invoke(app, [*words], env={"COLUMNS": "80"}, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_json_is_the_plan() -> None:
    """What is printed is to_dict() of the Python call with the same options."""
    words = (
        "--config",
        "mixtral-8x7b",
        "--batch",
        "3",
        "--prompt",
        "70",
        "--generate",
        "9",
        "--cache-dtype",
        "fp8",
        "--json",
    )
    made = planner.plan("mixtral-8x7b", batch=3, prompt=70, generate=9, cache_dtype="fp8")
    assert json.loads(printed(*words)) == made.to_dict()


def test_csv_has_a_row_for_every_value() -> None:
    """path,value rows."""
    rows = list(csv.reader(printed("--config", "gpt2", "--csv").splitlines()))
    assert rows[0] == ["path", "value"]
    assert ["params.total", "124439808"] in rows


@pytest.mark.parametrize(
    "name", ["llama3-8b", "deepseek-v3", "switch-base-8", "whisper-tiny", "bert-base", "nllb-moe-54b"]
)
def test_the_table_fits_80_columns(name: str) -> None:
    """No line is longer, nothing is cut."""
    text = printed("--config", name)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    assert f"{planner.plan(name).params['total']:,} parameters" in text


def test_a_bundled_name_works_in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`plan --config llama3-8b.json` where there is no such file."""
    monkeypatch.chdir(tmp_path)
    assert "8,030,261,248 parameters" in printed("--config", "llama3-8b.json")


def test_a_file_wins_over_a_bundled_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An existing file of that name is read."""
    monkeypatch.chdir(tmp_path)
    config = planner.load("gpt2").source
    assert config == "gpt2.json"
    (tmp_path / "llama3-8b.json").write_text(json.dumps({"model_type": "gpt2"}))
    assert "124,439,808 parameters" in printed("--config", "llama3-8b.json")


def test_set_changes_the_config() -> None:
    """Half the layers: half of their parameters."""
    whole, half = (
        json.loads(printed("--config", "llama3-8b", "--json", *more))["params"]["stacks"]["decoder"]["layers"]
        for more in ((), ("--set", "num_hidden_layers=16"))
    )
    assert half == whole[:16]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("params.by_block.attention", "536,870,912  decoder: 32 x q_proj [4,096, 4,096]"),
        ("cache.bytes", "167,772,160  32 layers x 1 sequences x self: 2,048 elements x 1,280 rows x 2 bytes"),
        (
            "flops.decode.total",
            "decoder attention: 32 layers x 2 x 1 sequences x 32 heads x 256 (key + value width) x 1,025 pairs",
        ),
        ("weights.bytes", "embed_tokens"),
        ("generation.dense_ratio", "(2 N + 1) / 3"),
        ("traffic.decode.flops_per_byte", "formula: each weight that a row visits is read once"),
        ("params.stacks.decoder.layers[3]", "= 218,112,000"),
    ],
)
def test_a_figure_is_explained(path: str, line: str) -> None:
    """With the numbers that it sums."""
    assert line in printed("--config", "llama3-8b", "--explain", path)


def test_a_comparison_has_ratios_to_the_first() -> None:
    """The same figures for all, and each divided by the first's."""
    found = json.loads(printed("compare", "llama2-7b", "llama3-8b", "--json"))
    total = next(figure for figure in found["figures"] if figure["path"] == "params.total")
    assert total == {
        "path": "params.total",
        "unit": "parameters",
        "values": [6_738_415_616, 8_030_261_248],
        "ratios": [1.0, 8_030_261_248 / 6_738_415_616],
    }


@pytest.mark.parametrize("more", [(), ("--families",), ("--formats",)])
def test_lists_are_printed_and_are_json(more: tuple[str, ...]) -> None:
    """A row for each entry, in both forms."""
    rows = json.loads(printed("models", "--json", *more))
    text = printed("models", *more)
    assert all(row["name"][:8] in text for row in rows)


def test_help_names_the_main_job_and_every_option() -> None:
    """A newcomer finds how to start."""
    text = printed("--help")
    assert "plan --config llama3-8b" in text
    assert all(
        word in text
        for word in ("--batch", "--prompt", "--generate", "--weights", "--json", "--explain", "compare", "verify")
    )


def test_the_readme_shows_what_the_commands_print() -> None:
    """Its outputs are those of today's code (python -m tests.readme)."""
    text = readme.README.read_text()
    shown = [command for _, command, _ in readme.BLOCK.findall(text)]
    assert len(shown) == 3
    assert readme.filled(text, only="--config llama3-8b.json") == text
    assert readme.filled(text, only="compare") == text


def test_the_questions_are_answered_with_what_the_commands_print() -> None:
    """docs/questions.md (python -m tests.readme)."""
    text = readme.QUESTIONS.read_text()
    assert len(readme.BLOCK.findall(text)) == text.count("<!-- output: ")
    assert readme.filled(text) == text


def test_options_stand_in_one_list() -> None:
    """`plan`, `plan fit` and planner.plan take the same, but for what is printed."""
    from planner.api import _known  # noqa: PLC0415

    with pytest.raises(planner.PlanError) as refused:
        _known({"no_such": 1})
    allowed = set(str(refused.value).partition("allowed are ")[2].rstrip(".").split(", "))
    printing = {"context", "config", "require_fit", "as_json", "as_csv", "explain"}
    for command in (main_job, fit):
        names = {name.rstrip("_") for name in inspect.signature(command).parameters}
        assert names - printing == allowed
