"""What is installed and imported: light where it can be, and nothing bundled without its source."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import profiles
from planner.families import FAMILIES
from planner.families.encoder_decoders import PARTS
from planner.families.multimodal import TOWERS
from profiles.schema import BundledModel

HEAVY = ("torch", "numpy", "pandas", "matplotlib", "transformers", "pydantic")
PROBE = """
import sys
from planner.cli import app
sys.argv = ["plan", *{words!r}]
try:
    app(standalone_mode=False)
finally:
    print("LOADED", sorted(set({heavy!r}) & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words", [("--config", "llama3-8b"), ("--config", "deepseek-v3", "--json"), ("compare", "gpt2", "t5-small")]
)
def test_the_command_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    """Neither torch, NumPy, pandas, matplotlib, transformers nor pydantic is in sys.modules after a plan."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(words=words, heavy=HEAVY)], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "LOADED []"


@pytest.mark.parametrize("name", profiles.model_names())
def test_a_bundled_model_has_its_form_and_its_source(name: str) -> None:
    """The schema holds, the name is the file's, and the family is known."""
    entry = BundledModel.model_validate(profiles.model(name))
    assert entry.name == name
    assert entry.config["model_type"] in FAMILIES


def test_bundled_names_and_aliases_are_unique() -> None:
    """No alias stands for two models, or hides a name."""
    entries = [profiles.model(name) or {} for name in profiles.model_names()]
    names = [entry["name"] for entry in entries] + [alias for entry in entries for alias in entry["aliases"]]
    assert len(names) == len(set(names))


def test_every_family_has_its_defaults() -> None:
    """A file for each family, tower and part, with its source; a family's says where its row is."""
    folder = Path(__file__).parents[1] / "planner" / "defaults"
    found = {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}
    assert found.keys() == FAMILIES.keys() | TOWERS.keys() | PARTS.keys()
    assert all(entry["source"] for entry in found.values())
    assert [name for name in FAMILIES if "module" not in found[name]] == []
