"""Gemma 3n's alternating updates (AltUp, arXiv:2301.13310): several versions of the residual stream, of which a layer computes one.

A layer predicts all of them from each other, runs on one, and corrects the others by what it learned.

Letters: D model width, A versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.blocks import Cache, Leaf, Work, linear, vector
from planner.count import Number
from planner.engines import Engine
from planner.workload import Pass


@dataclass(frozen=True, slots=True)
class Mixture:
    """A versions of a row are mixed by an A x A matrix that the row itself chose: D A A multiply-adds a token."""

    width: int
    versions: int
    work: ClassVar[Work] = "linear"

    @property
    def row_elements(self) -> int:
        """Elements that one token's row brings and takes."""
        return 2 * self.width * self.versions

    def flops(self, p: Pass, engine: Engine, *, dense: bool = False) -> Number:  # noqa: ARG002
        """Return 2 FLOPs per multiply-add."""
        return 2 * self.width * self.versions**2 * p.rows("new")

    def told(self, p: Pass, engine: Engine, *, dense: bool = False) -> str:  # noqa: ARG002
        """Return the factors of `flops` in words."""
        return f"2 x {self.width:,} wide x {self.versions} x {self.versions} versions x {p.rows('new'):,} tokens"


@dataclass(frozen=True, slots=True)
class AltUp:
    """Predicts and corrects the versions; the router runs for both.

    Attributes:
        width: D. versions: A.
    """

    width: int
    versions: int
    name: str = "altup"

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the router [D, A], the coefficients [A, A A] and [A, A], and a vector of scales."""
        d, a = self.width, self.versions
        return (
            vector("correct_output_scale", d, "other"),
            linear("correction_coefs", a, a, "other"),
            linear("prediction_coefs", a, a * a, "other"),
            linear("modality_router", d, a, "other", rate=2),
            vector("router_norm", d, "norm"),
        )

    def caches(self) -> tuple[Cache, ...]:
        """Return nothing."""
        return ()

    def cores(self) -> tuple[Mixture, ...]:
        """Return the mixture of versions."""
        return (Mixture(self.width, self.versions),)
