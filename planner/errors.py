"""The one error a person can cause: it says what is wrong, where, and what to do."""

from __future__ import annotations


class PlanError(ValueError):
    """Bad input, in one message: where it stands, what was found, what is allowed, and the next step.

    Args:
        problem: what was found and what is allowed, a sentence without its full stop.
        where: the file and the field ("llama.json, hidden_size"), or the option ("--batch"); empty if neither.
        fix: what to do next.
    """

    def __init__(self, problem: str, *, where: str = "", fix: str = "") -> None:
        self.problem, self.where, self.fix = problem, where, fix
        super().__init__(f"{where}: {problem}" * bool(where) or problem, fix)

    def __str__(self) -> str:
        """Return the whole message in one line."""
        head = f"{self.where}: {self.problem}" if self.where else self.problem
        return f"{head}. {self.fix}." if self.fix else f"{head}."
