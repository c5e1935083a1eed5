"""Whole-number arithmetic that also works elementwise on NumPy arrays, without importing NumPy.

A sweep over a million (batch, context) points runs the same formulas as one plan: `if` and `min` would not work on
arrays, so branches are written as products with a comparison. Python ints stay exact at any size.
"""

from __future__ import annotations

from typing import Any

Number = Any
"""A Python int, or a NumPy array of int64 or float64."""


def least(a: Number, b: Number) -> Number:
    """Return the smaller of two counts, elementwise."""
    return a * (a < b) + b * (a >= b)


def most(a: Number, b: Number) -> Number:
    """Return the larger of two counts, elementwise."""
    return a * (a > b) + b * (a <= b)


def triangle(n: Number) -> Number:
    """Return 1 + 2 + ... + n."""
    return n * (n + 1) // 2


def tetrahedron(n: Number) -> Number:
    """Return triangle(1) + ... + triangle(n)."""
    return n * (n + 1) * (n + 2) // 6
