"""Will it fit: whole answers with their arithmetic, and laws of what is found: it fits, and less doesn't."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import planner
from planner.cli import app
from planner.errors import PlanError
from planner.engines.flags_named import OWN
from planner.fit import MOST_DEVICES, fit
from planner.precision import resolve
from planner.shard import legal_sizes

runner = CliRunner()

PLAIN = dict(ep=1, dp=1, cp=1)

LONG = dict(prompt=131_072 - 256, generate=256)


def held(config: Any, hardware: str, **options: Any) -> dict[str, Any]:
    """Return the memory section of a plan."""
    found = planner.plan(config, hardware=hardware, **options).memory
    assert found is not None
    return found


def rows(found: dict[str, Any], key: str) -> dict[str, tuple[Any, ...]]:
    """Return bytes, fits, max_batch and max_context by format."""
    name = "weights" if key == "formats" else "cache_dtype"
    return {row[name]: tuple(row[k] for k in ("bytes", "fits", "max_batch", "max_context")) for row in found[key]}


def test_llama_8b_at_128k_on_a_24_gb_card() -> None:
    """It is short of 16.8 GiB; a context of 42,792 fits, or two cards.

    Cache 131,072 x 131,072 bytes = 16 GiB; activations 130,816 rows x (2 x 4,096 + 2 x 14,336) x 2. One card: 131,072 T +
    73,728 (T - 256) <= 25,383,256,719 - 16,060,522,496 - 577,765,376 gives T <= 42,792.2. Two, with tp 2: half of the
    weights and of the norms once more, 8,030,527,488; 65,536 T + 45,056 (T - 256) <= 25,383,256,719 - 8,030,527,488 -
    577,765,376 - 411,041,792 gives T <= 148,070.9.
    """
    found = fit("llama3.1-8b", hardware="rtx-4090", **LONG)
    assert not found["fits"]
    assert found["asked"] == held("llama3.1-8b", "rtx-4090", **LONG)
    assert found["asked"]["cache"] == 16 * 2**30
    assert found["asked"]["activations"] == 130_816 * 73_728
    assert found["fewest_devices"] == {"gpus": 2, "tp": 2, "pp": 1} | PLAIN | {"max_batch": 1, "max_context": 148_070}
    assert found["smallest_change"] == {
        "option": "--prompt",
        "value": 42_536,
        "text": "It fits with a context of 42,792 tokens: --prompt 42536 --generate 256.",
        "options": {"prompt": 42_536, "generate": 256},
        "flags": None,
    }
    assert found["changes"][-1]["text"] == "It fits on 2 x rtx-4090: --gpus 2 --tp 2."
    assert {name: row[3] for name, row in rows(found, "formats").items()} == {
        "bf16": 42_792, "fp8": 76_870, "int8": 76_857, "awq-int4-g128": 93_244, "q4_k_m": 97_223,
    }  # fmt: skip
    # T <= (25,383,256,719 - 16,060,522,496 - 577,765,376 + 256 x 73,728) / (65,536 + 73,728)
    assert rows(found, "cache_dtypes")["fp8"] == (8 * 2**30, False, 0, 62_929)


def test_llama_2_70b_needs_two_a100_80gb() -> None:
    """In its 16 bits: 128.5 GiB of weights, 79.15 usable on a card; in fp8 one is enough.

    On each of two: room 84,986,665,370 - 68,977,967,104 - 988,807,168 for sequences of 1,280 x 163,840 bytes of cache and
    1,024 x (2 x 8,192 + 2 x 14,336) x 2 of activations: 15,019,891,098 / 301,989,888 = 49.7.
    """
    found = fit("llama2-70b", hardware="a100-80gb")
    assert not found["fits"]
    least = found["fewest_devices"]
    assert {key: least[key] for key in ("gpus", "tp", "pp", "max_batch")} == dict(gpus=2, tp=2, pp=1, max_batch=49)
    assert found["smallest_change"]["text"] == "It fits with fp8 weights: --weights fp8."
    assert found["changes"][-1]["text"] == "It fits on 2 x a100-sxm: --gpus 2 --tp 2."
    assert {name: row[1] for name, row in rows(found, "formats").items()} == {
        "fp16": False, "bf16": False, "fp8": True, "int8": True, "awq-int4-g128": True, "q4_k_m": True,
    }  # fmt: skip


def test_qwen_72b_in_4_bits_fits_a_48_gb_card() -> None:
    """Matrices of 80 layers: 877,658,112 x 4.15625 bits (a scale and a zero point each 128); the two tables in 16 bits.

    80 x 877,658,112 x 4.15625 / 8 = 36,477,665,280; tables 2 x 152,064 x 8,192 x 2 = 4,982,833,152; norms 161 x 8,192 x 2;
    biases of q, k, v 80 x 10,240 x 2.
    """
    found = fit("qwen2.5-72b", hardware="l40s", weights="awq-int4-g128")
    assert found["fits"]
    assert found["smallest_change"] is None
    assert found["changes"] == []
    assert found["asked"]["weights"] == 36_477_665_280 + 4_982_833_152 + 2_637_824 + 1_638_400
    assert found["fewest_devices"] == {"gpus": 1, "tp": 1, "pp": 1} | PLAIN | {"max_batch": 9, "max_context": 11_822}
    fits = {name: row[1] for name, row in rows(found, "formats").items()}
    assert fits == {"bf16": False, "fp8": False, "int8": False, "awq-int4-g128": True, "q4_k_m": False}


def test_deepseek_v3_on_eight_h200() -> None:
    """Its own fp8 fits, 79.3 GiB on each of 139.8; in bf16 it doesn't; with stages, six hold it."""
    found = fit("deepseek-v3", hardware="h200", gpus=8)
    assert found["fits"]
    assert found["asked"]["parallel"]["tp"] == 8
    formats = rows(found, "formats")
    assert formats["fp8-block"][:2] == (85_140_130_848, True)
    assert formats["bf16"][:2] == (169_560_743_936, False)
    least = found["fewest_devices"]
    assert (least["gpus"], least["tp"], least["pp"]) == (6, 2, 3)
    assert "without stages of layers it takes 8 devices: --gpus 8 --tp 8" in found["notes"]


def test_what_fits_nowhere_is_said() -> None:
    """DeepSeek-V3 in bf16, 1,250 GiB: 64 T4 have 932."""
    found = fit("deepseek-v3", hardware="t4", weights="bf16")
    assert not found["fits"]
    assert found["fewest_devices"] is None
    assert found["smallest_change"] is None
    assert f"it fits on no number of t4 up to {MOST_DEVICES}, however it is spread" in found["notes"]
    assert "no single change makes it fit" in found["notes"]


def test_memory_that_suffices_is_not_enough() -> None:
    """Qwen2.5-72B in groups of 128 on tp 2: a rank would have 29,568 / 2 = 115.5 groups, which engines refuse."""
    found = fit("qwen2.5-72b", hardware="l40s", weights="awq-int4-g128", tp=2)
    assert found["asked"]["fits"]
    assert not found["fits"]
    assert any(note.startswith("engines refuse it: --tp: found 2") for note in found["notes"])
    row = next(row for row in found["formats"] if row["asked"])
    assert (row["fits"], row["bytes"]) == (False, None)
    assert "128" in row["problem"]
    assert found["smallest_change"]["text"] == "It fits on 1 x l40s: --gpus 1 --tp 1."


def test_changes_stand_in_the_order_tried() -> None:
    """Context, cache, weights, devices; where the generated tokens alone don't fit, there are fewer of them.

    Llama-3.1-8B on a 24 GB card, 300 sequences of 1 + 256 tokens: cache 300 x 257 x 131,072 = 10.1 GB beside 16.1 of
    weights, in fp8 5.05; usable are 25.4, a process has 0.58.
    """
    found = fit("llama3.1-8b", hardware="rtx-4090", batch=300, prompt=1, generate=256)
    assert [each["option"] for each in found["changes"]] == ["--prompt", "--cache-dtype", "--weights", "--gpus"]
    assert found["smallest_change"]["options"]["generate"] < 256


def test_copies_are_left_out_where_they_must_be() -> None:
    """The change of devices names the options that it replaces."""
    found = fit("llama2-70b", hardware="a100-80gb", dp=2, batch=2)
    last = found["changes"][-1]
    assert last["text"] == "It fits on 2 x a100-sxm: --gpus 2 --tp 2, without --dp."
    assert held("llama2-70b", "a100-80gb", batch=2, **last["options"])["fits"]


@settings(deadline=None, max_examples=20)
@given(
    config=st.sampled_from(
        ["llama3.1-8b", "gpt2", "mixtral-8x7b", "gemma3-1b", "t5-small", "bert-base", "qwen2.5-72b"]
    ),
    hardware=st.sampled_from(["rtx-4090", "a100-80gb", "t4"]),
    batch=st.integers(1, 600),
    prompt=st.integers(1, 500),
    weights=st.sampled_from([None, "fp8", "awq-int4-g128"]),
)
def test_laws(config: str, hardware: str, batch: int, prompt: int, weights: str | None) -> None:
    """The fewest devices fit and no legal sizes of fewer do; every change, applied, fits; rows are those of plans."""
    options: dict[str, Any] = dict(batch=batch, prompt=prompt, weights=weights)
    model = planner.load(config)
    found = fit(model, hardware=hardware, **options)
    assert found["fits"] == held(model, hardware, **options)["fits"]
    least = found["fewest_devices"]
    if least:
        sizes = {key: least[key] for key in ("gpus", "tp", "pp")}
        there = held(model, hardware, **options, **sizes)
        assert there["fits"]
        assert {key: there[key] for key in ("max_batch", "max_context")} == {
            key: least[key] for key in ("max_batch", "max_context")
        }
    for gpus in range(1, least["gpus"] if least else 3):
        for size in legal_sizes(model, gpus, resolve(model, weights=weights)):
            if size.dp == 1 and not size.problem:
                assert not held(model, hardware, **options, tp=size.tp, pp=size.pp)["fits"]
    assert (found["smallest_change"] is None) == (not found["changes"])
    for change in found["changes"]:
        applied = options | change["options"]
        assert held(model, hardware, **applied)["fits"], change
        if change["option"] == "--prompt":
            assert not held(model, hardware, **applied | {"prompt": applied["prompt"] + 1})["fits"]
    for row in (*found["formats"], *found["cache_dtypes"]):
        name = "weights" if "weights" in row else "cache_dtype"
        there = held(model, hardware, **options | {name: row[name]})
        assert (row["fits"], row["max_batch"]) == (there["fits"], there["max_batch"])
    assert {*OWN.compared} <= rows(found, "formats").keys()
    assert {*OWN.cached} <= rows(found, "cache_dtypes").keys()


def run(*words: str) -> Any:
    """Run the command, 80 columns wide."""
    return runner.invoke(app, ["fit", *words], env={"COLUMNS": "80"})


def test_json_is_what_the_call_returns() -> None:
    """With the same options."""
    done = run("--config", "mixtral-8x7b", "--hardware", "a100-80gb", "--batch", "4", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == fit("mixtral-8x7b", hardware="a100-80gb", batch=4)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--config", "llama3.1-8b", "--hardware", "rtx-4090", "--prompt", "130816"), "DOES NOT FIT"),
        (("--config", "llama3.1-8b", "--hardware", "rtx-4090", "--prompt", "130816"), "--prompt 42536"),
        (("--config", "deepseek-v3", "--hardware", "t4", "--weights", "bf16"), "Fewest devices: none"),
        (
            ("--config", "qwen2.5-72b", "--hardware", "l40s", "--weights", "awq-int4-g128", "--tp", "2"),
            "engines refuse",
        ),
        (("--config", "gpt2", "--hardware", "t4"), "gpt2 on 1 x t4: fits"),
    ],
)
def test_the_report_fits_80_columns(words: tuple[str, ...], part: str) -> None:
    """The verdict first; nothing is cut."""
    done = run(*words)
    assert done.exit_code == 0
    assert part in done.stdout
    assert "…" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


@pytest.mark.parametrize(("gpus", "code"), [("1", 1), ("2", 0)])
def test_require_fit(gpus: str, code: int) -> None:
    """Exit code 1 where it doesn't fit."""
    words = ("--config", "llama2-70b", "--hardware", "a100-80gb", "--gpus", gpus, "--require-fit")
    assert run(*words).exit_code == code


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (dict(hardware=None), "--hardware"),
        (dict(hardware="h1000"), "--hardware"),
        (dict(hardware="h100", tp=3), "--tp"),
        (dict(hardware="h100", batch=0), "--batch"),
        (dict(hardware="h100", weights="fp9"), "--weights"),
        (dict(hardware="h100", cache_dtype="fp9"), "--cache-dtype"),
        (dict(hardware="h100", colour="red"), "colour"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], part: str) -> None:
    """With where and why."""
    with pytest.raises(PlanError, match=part):
        fit("llama3.1-8b", **options)


def test_a_loaded_model_takes_no_options_of_its_own() -> None:
    """They were load's."""
    with pytest.raises(PlanError, match=r"load\(\)"):
        fit(planner.load("gpt2"), hardware="t4", engine="transformers")
