"""One figure, predicted and measured, and whether they agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Number = int | float


@dataclass(frozen=True, slots=True)
class Quantity:
    """A figure of the plan beside its measurement.

    Attributes:
        name: as in the plan's JSON, where it stands there.
        unit: of both.
        predicted: what the description says. measured: what ran; None where nothing did.
        kind: "exact": equal to the last digit; "within": as near as the tolerance.
        tolerance: largest difference, in the unit.
        reason: why nothing was measured.
    """

    name: str
    unit: str
    predicted: Number
    measured: Number | None
    kind: Literal["exact", "within"] = "exact"
    tolerance: float = 0
    reason: str = ""

    @property
    def difference(self) -> Number | None:
        """Measured minus predicted."""
        return None if self.measured is None else self.measured - self.predicted

    @property
    def verdict(self) -> Literal["pass", "fail", "skipped"]:
        """Whether they agree; a measurement that isn't a number doesn't."""
        if self.difference is None:
            return "skipped"
        return "pass" if abs(self.difference) <= self.tolerance else "fail"

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of the JSON."""
        entry = dict(
            name=self.name,
            unit=self.unit,
            predicted=self.predicted,
            measured=self.measured,
            difference=self.difference,
            kind=self.kind,
            tolerance=self.tolerance,
            verdict=self.verdict,
        )
        return entry | ({"reason": self.reason} if self.reason else {})
