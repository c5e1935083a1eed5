"""What generation costs with a cache, O(N^2) pairs, and without one, O(N^3): both counted exactly.

Step i of G works at n = P + i tokens. With a cache it scores n pairs; without one it starts again from nothing. Sums over
steps are closed forms (`Pass.phase` "decode" and "recompute"), so that a million steps cost no more than one.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

from planner.count import tetrahedron
from planner.engines import Engine
from planner.masks import Mask
from planner.model import Model, whole
from planner.workload import Pass, Workload


class Generation(NamedTuple):
    """The cost of G steps after a prompt of P tokens.

    Attributes:
        steps: G.
        cached_pairs, uncached_pairs: query-key pairs of one head of one full-attention layer of one sequence.
        uncached_dense_pairs: the same with full n x n rectangles; with a cache there is nothing to leave out.
        cached_flops, uncached_flops: of the whole model and all sequences, without the prompt's prefill and the encoder.
        prefill_flops: of the prompt, the encoder included.
    """

    steps: int
    cached_pairs: int
    uncached_pairs: int
    uncached_dense_pairs: int
    cached_flops: int
    uncached_flops: int
    prefill_flops: int

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON section."""
        return {
            "steps": self.steps,
            "cached": {
                "pairs": self.cached_pairs,
                "dense_pairs": self.cached_pairs,
                "flops": self.cached_flops,
                "prefill_flops": self.prefill_flops,
            },
            "uncached": {
                "pairs": self.uncached_pairs,
                "dense_pairs": self.uncached_dense_pairs,
                "flops": self.uncached_flops,
            },
            "pairs_ratio": _ratio(self.uncached_pairs, self.cached_pairs),
            "dense_ratio": _ratio(self.uncached_dense_pairs, self.cached_pairs),
            "flops_ratio": _ratio(self.uncached_flops, self.cached_flops),
        }


def generation(model: Model, work: Workload, engine: Engine, prefill_flops: int) -> Generation | None:
    """Return what generating costs, or None for a model that doesn't generate."""
    decoder = model.stack("decoder")
    if decoder is None:
        return None
    first, last = work.prompt, work.prompt + work.generate
    one = Pass(1, work.generate, first, "decode")
    again = Pass(1, work.generate, first, "recompute", prefix=work.prefix)
    cached = Mask().pairs(one)
    squares = 2 * (tetrahedron(last) - tetrahedron(first)) - cached  # n^2 = 2 triangle(n) - n
    steps = Pass(work.batch, work.generate, first, "decode", work.source)
    reruns = Pass(work.batch, work.generate, first, "recompute", work.source, work.prefix)
    return Generation(
        work.generate,
        cached,
        Mask().pairs(again),
        squares,
        sum(decoder.flops(steps, engine).values()),
        sum(decoder.flops(reruns, engine).values()),
        prefill_flops,
    )


def _ratio(a: int, b: int) -> int | float | None:
    return whole(Fraction(a, b)) if b else None
