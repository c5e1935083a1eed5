"""Everything that a person can get wrong ends in one message: where, what was found, what is allowed, what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import planner
import profiles
from tests.test_known_figures import SNIPPET

LLAMA = {"model_type": "llama", **SNIPPET}


def refused(config: Any, **options: Any) -> str:
    """Return the message that a call is refused with."""
    with pytest.raises(planner.PlanError) as caught:
        planner.plan(config, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "config, hidden_size: found null, a value is needed."),
        ({"hidden_size": -1}, "config, hidden_size: found -1, allowed are whole numbers from 1 to"),
        ({"hidden_size": 0}, "config, hidden_size: found 0, allowed are whole numbers from 1 to"),
        ({"hidden_size": 4096.5}, "config, hidden_size: found 4096.5, allowed are whole numbers"),
        ({"hidden_size": "4096"}, "config, hidden_size: found '4096', allowed are whole numbers"),
        ({"hidden_size": True}, "config, hidden_size: found True, allowed are whole numbers"),
        ({"hidden_size": 10**30}, "config, hidden_size: found 1000000000000000000000000000000, allowed are"),
        (
            {"num_hidden_layers": 10**6},
            "config, num_hidden_layers: found 1000000, allowed are whole numbers from 1 to 10,000",
        ),
        ({"num_attention_heads": 33}, "config, num_attention_heads: found 33, which does not divide the width 4096"),
        ({"num_key_value_heads": 5}, "config, num_key_value_heads: found 5, which does not divide the 32 query heads"),
        ({"tie_word_embeddings": "yes"}, "config, tie_word_embeddings: found 'yes', allowed are true and false"),
        (
            {"model_type": "mistral", "sliding_window": 0},
            "config, sliding_window: found 0, allowed are whole numbers from 1",
        ),
        ({"sliding_window": 4096}, "config, sliding_window: found 4096, but the family 'llama' doesn't read this key"),
        ({"kv_lora_rank": 512}, "config, kv_lora_rank: found 512, but the family 'llama' doesn't read this key"),
        ({"model_type": "lama"}, "config, model_type: 'lama' is not a family that the planner models; nearest: llama"),
        ({"model_type": 3}, "config, model_type: found 3, a text is needed"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "config, architectures: the class LlamaForSequenceClassification",
        ),
        ({"torch_dtype": 16}, "config, torch_dtype: found 16, a text is needed"),
        ({"quantization_config": "fp8"}, "config, quantization_config: an object is needed"),
        ({"rope_scaling": 2}, "config, rope_scaling: found 2, an object is needed"),
    ],
)
def test_a_config_that_cannot_be_planned(change: dict[str, Any], message: str) -> None:
    """The message names the field, what was found, and what is allowed."""
    assert message in refused(LLAMA | change)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "--batch: found 0, allowed are whole numbers from 1"),
        ({"prompt": -5}, "--prompt: found -5, allowed are whole numbers from 0"),
        ({"generate": 1.5}, "--generate: found 1.5, allowed are whole numbers"),
        ({"source": 7}, "--source: llama has no encoder beside a decoder"),
        ({"prompt": 5, "prefix": 6}, "--prefix: found 6, allowed are 0 to 5"),
        ({"global_tokens": 3}, "--global-tokens: llama has no global tokens"),
        ({"capacity_factor": 1.0}, "--capacity-factor: llama drops no tokens"),
        ({"engine": "warp"}, "--engine: no rules for the engine 'warp'; known: ideal, transformers"),
        ({"dtype": "bf17"}, "bf17"),
        ({"weights": "q9"}, "q9"),
        ({"assume": "lama"}, "--assume: no family 'lama'; nearest: llama"),
        ({"set": ("hidden_size",)}, "--set: found 'hidden_size', key=value is needed"),
        ({"promt": 7}, "plan(..., promt=): no such option; nearest: prompt"),
    ],
)
def test_options_that_cannot_be_planned(options: dict[str, Any], message: str) -> None:
    """The message names the option, what was found, and what is allowed."""
    assert message in refused(LLAMA, **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gpt2", {"prompt": 1024, "generate": 1}, "found 1,025 positions, but gpt2 has a learned table of 1,024"),
        ("bert-base", {"generate": 5}, "--generate: bert is an encoder and generates nothing"),
        ("t5-small", {"prefix": 1}, "--prefix: t5 is no decoder-only model"),
        ("whisper-tiny", {"source": 1501}, "found 1,501 positions, but whisper-tiny has a learned table of 1,500"),
        (
            "llama3",
            {},
            "--config llama3: no such file, and no bundled model of that name; near bundled names: llama3-8b",
        ),
    ],
)
def test_workloads_that_a_model_cannot_take(name: str, options: dict[str, Any], message: str) -> None:
    """A learned table can't be exceeded, an encoder can't generate."""
    assert message in refused(name, **options)


def test_rotary_positions_may_be_exceeded_with_a_note() -> None:
    """Llama-3-8B says 8,192 positions; more is a note."""
    notes = planner.plan("llama3-8b", prompt=8192, generate=1).model["notes"]
    assert any(note.startswith("--prompt and --generate make 8,193 positions, the config says 8,192") for note in notes)


def test_no_recognisable_shape() -> None:
    """Without model_type and sizes there is nothing to go by."""
    assert refused({"foo": 1}).startswith("config: no model_type, and none of the keys that would give a shape away")


def test_a_key_that_nothing_reads_is_a_note_and_under_strict_refused() -> None:
    """An unknown key may matter; a person decides."""
    odd = LLAMA | {"frobnication_level": 3}
    assert "keys that nothing read: frobnication_level" in planner.plan(odd).model["notes"]
    assert "nothing reads frobnication_level" in refused(odd, strict=True)


def test_a_decoder_that_is_told_to_see_both_ways_is_refused() -> None:
    """EmbeddingGemma's switch makes an encoder of Gemma 3: no cache, other pairs; it must not be planned as a decoder."""
    gemma = (profiles.model("gemma3-270m") or {})["config"]
    assert "use_bidirectional_attention: found True, but the family" in refused(
        gemma | {"use_bidirectional_attention": True}
    )


def test_no_name_hides_a_key_that_changes_sizes() -> None:
    """`output_` starts harmless keys, but output_vocab_size changes the head of another family."""
    assert "output_vocab_size: found 8, but the family 'llama'" in refused(LLAMA | {"output_vocab_size": 8})


def test_two_spellings_that_disagree() -> None:
    """GPT-2 calls the width n_embd; a hidden_size beside it must agree."""
    assert "n_embd: found 8, but hidden_size says 16; both mean the same" in refused(
        {"model_type": "gpt2", "n_embd": 8, "hidden_size": 16}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON: Expecting property name enclosed in double quotes in line 1, column 2"),
        ("[1]", "holds list, an object with a config's keys is needed"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_no_config(tmp_path: Path, text: str, message: str) -> None:
    """The message names the file, and the line where there is one."""
    file = tmp_path / "config.json"
    file.write_text(text)
    found = refused(file)
    assert found.startswith(str(file))
    assert message in found


def command(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run(
        [sys.executable, "-m", "planner.cli", *words], capture_output=True, text=True, check=False, cwd=cwd
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--config", "missing.json"),
        ("--config", "llama3-8b", "--batch", "0"),
        ("--config", "llama3-8b", "--batch", "x"),
        ("--config", "llama3-8b", "--explain", "params.totl"),
        ("--config", "llama3-8b", "--frob"),
        ("compare", "llama3-8b"),
        ("compare", "llama3-8b", "nothing"),
        ("models", "--families", "--formats"),
        ("sweep", "--config", "llama3-8b", "--batch", "4:1:1"),
        ("sweep", "--config", "bert-base"),
    ],
)
def test_the_command_ends_with_code_2_and_one_message(words: tuple[str, ...]) -> None:
    """Nothing on stdout, no traceback."""
    done = command(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


def test_a_folder_holds_its_config(tmp_path: Path) -> None:
    """A model's folder may be named instead of the file."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert planner.plan(tmp_path).params["total"] == 8_030_261_248
    (tmp_path / "config.json").unlink()
    assert "the folder holds none of config.json, params.json and a .gguf file" in refused(tmp_path)
