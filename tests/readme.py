"""Fills the outputs in README.md and docs/questions.md from real runs: `python -m tests.readme`; a test asserts that they are true."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
QUESTIONS = README.parent / "docs" / "questions.md"
BLOCK = re.compile(r"(<!-- output: (.+?) -->\n```text\n).*?(```\n)", re.DOTALL)


def run(command: str) -> str:
    """Return what a command of the README prints, 80 columns wide."""
    words = shlex.split(command)
    assert words[0] == "plan"
    env = {**os.environ, "COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "planner.cli", *words[1:]], capture_output=True, text=True, check=True, env=env
    )
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


def filled(text: str, only: str = "") -> str:
    """Return the README with the outputs of its commands; of those that contain `only`, where given."""
    return BLOCK.sub(lambda m: f"{m[1]}{run(m[2])}{m[3]}" if only in m[2] else m[0], text)


if __name__ == "__main__":
    for page in (README, QUESTIONS):
        page.write_text(filled(page.read_text()))
