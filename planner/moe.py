"""How many experts a pass visits, and how many tokens find no room, where tokens choose evenly.

Letters: E experts, k experts of a token, R rows of a pass.
"""

from __future__ import annotations

from fractions import Fraction
from math import exp, expm1, floor, lgamma, log, log1p, sqrt


def distinct_experts(experts: int, top_k: int | Fraction, rows: int) -> float:
    """Return the expected number of distinct experts that R rows visit: E (1 - (1 - k/E)^R)."""
    if top_k == experts or rows == 0:
        return float(experts * bool(rows))
    return experts * -expm1(rows * log1p(-top_k / experts))


def expert_capacity(experts: int, top_k: int, rows: int, factor: float) -> int:
    """Return the rows that each expert has room for: R k / E times the factor, at least 1 (Switch, arXiv:2101.03961)."""
    return max(1, floor(rows * top_k / experts * factor))


def dropped_share(experts: int, top_k: int, rows: int, capacity: int) -> float:
    """Return the expected share of choices that exceed an expert's room.

    An expert is chosen by each row with probability k/E, so its load is binomial; what exceeds the room is dropped:
    E max(0, load - capacity) / (R k / E). Terms beyond twelve standard deviations are below 1e-30 and left out.
    """
    p = top_k / experts
    mean = rows * p
    if rows == 0 or capacity >= rows:
        return 0.0
    if top_k == experts:
        return 1.0 - capacity / rows
    spread = 12 * sqrt(mean * (1 - p)) + 12
    low, high = max(capacity + 1, floor(mean - spread)), min(rows, floor(mean + spread))
    if capacity < mean - spread:
        return 1.0 - capacity / mean

    def probability(load: int) -> float:
        chosen = lgamma(rows + 1) - lgamma(load + 1) - lgamma(rows - load + 1)
        return exp(chosen + load * log(p) + (rows - load) * log1p(-p))

    return sum((load - capacity) * probability(load) for load in range(low, high + 1)) / mean
