"""Which keys a query may use, as data; and how many query-key pairs a pass scores, in closed form.

Letters: n tokens so far, W window, C chunk, K prefix, g global tokens, b block size, r random blocks.
Every formula here is proven against a double loop over queries and keys in tests/test_masks.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.count import Number, least, most, tetrahedron, triangle
from planner.workload import Pass


@dataclass(frozen=True, slots=True)
class Mask:
    """The keys that one query may use.

    Attributes:
        causal: only keys up to the query itself; a workload's prefix of K tokens is seen both ways.
        window: W; keys less than W positions away (causal: W keys, itself included; else W - 1 on either side).
        chunk: C; only keys of the query's own chunk of C positions (Llama 4).
        block: b; BigBird's blocks: first and last block global, three blocks of window, `random_blocks` more.
        random_blocks: r; random key blocks of each query block. BigBird draws them outside the window and the global
            blocks, so their number of pairs doesn't depend on the draw.
        first_chunk: positions of a first, shorter chunk, 0: it is as long as the others (Pegasus-X, both ways only).
        relayed: further rows that see all tokens reach every token (LongT5).
        ahead: keys after the query are less than this many positions away, where that isn't W (both ways only).
        chosen: k; of all keys so far an indexer chooses k, in blocks of `grain` that end at multiples of it (the query's
            own block among them), so that k - grain + (its place in its block) are scored (DeepSeek-V3.2, MiniMax-M3).
        grain: g; divides k.
    """

    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    block: int | None = None
    random_blocks: int = 0
    first_chunk: int = 0
    relayed: bool = False
    chosen: int | None = None
    grain: int = 1
    ahead: int | None = None

    def pairs(self, p: Pass) -> Number:
        """Return the query-key pairs that one head of one sequence scores in this pass, exactly."""
        total = p.past + p.new
        if not self.causal:
            return self._two_way(p.new, p.global_tokens)
        if p.recompute:
            passes = self._causal_summed(total) - self._causal_summed(p.past)
            return passes + p.new * self._ahead(p.prefix)
        prefix = least(p.prefix, total)
        return self._causal(total) - self._causal(p.past) + self._ahead(prefix) * (p.past < prefix)

    @property
    def reach(self) -> int | None:
        """Further tokens that one layer draws on, both sides together; None: all there are."""
        if self.window is None or self.block is not None or self.relayed:
            return None
        if self.ahead is not None:
            return self.window - 1 + max(self.ahead - 1, 0)
        return (1 if self.causal else 2) * (self.window - 1)

    def _causal(self, n: Number) -> Number:
        """Pairs of the first n queries."""
        if self.chunk is not None:
            return (n // self.chunk) * triangle(self.chunk) + triangle(n % self.chunk)
        if (k := self.chosen) is not None:
            ramp, g = least(n, k), self.grain
            return triangle(ramp) + (n - ramp) * (k - g) + (n - ramp) // g * triangle(g) + triangle((n - ramp) % g)
        return n + _behind(n, self.window)

    def _causal_summed(self, n: Number) -> Number:
        """Pairs of n passes, over 1, 2, ... n tokens."""
        if (c := self.chunk) is not None:
            full, rest = n // c, n % c
            whole = c * triangle(c) * triangle(full - 1) + full * tetrahedron(c - 1)
            return whole + (rest + 1) * full * triangle(c) + tetrahedron(rest)
        if (k := self.chosen) is not None:
            g, ramp, flat = self.grain, least(n, k), most(n - k, n * 0)
            full, rest = flat // g, flat % g
            own = (
                triangle(g) * (g * triangle(full - 1) + full * (rest + 1))
                + full * tetrahedron(g - 1)
                + tetrahedron(rest)
            )
            return tetrahedron(ramp) + flat * triangle(k) + triangle(flat) * (k - g) + own
        if (w := self.window) is None:
            return tetrahedron(n)
        ramp, flat = least(n, w), most(n - w, n * 0)
        return triangle(n) + tetrahedron(ramp - 1) + flat * triangle(w - 1) + (w - 1) * triangle(flat)

    def _ahead(self, prefix: Number) -> Number:
        """Pairs with a later key inside the first `prefix` tokens, which see each other both ways."""
        if (c := self.chunk) is not None:
            return (prefix // c) * triangle(c - 1) + triangle(prefix % c - 1)
        if (k := self.chosen) is not None:
            return prefix * least(prefix, k) - self._causal(prefix)
        return _behind(prefix, self.window)

    def _two_way(self, n: Number, global_tokens: Number) -> Number:
        """Pairs of n tokens that see each other both ways."""
        if (b := self.block) is not None:
            return self._blocks(n, b)
        if (c := self.chunk) is not None:
            first = least(n, self.first_chunk)
            rest = n - first
            return first * first + (rest // c) * c * c + (rest % c) * (rest % c)
        if self.window is None:
            return n * n
        if self.ahead is not None:
            return n + _behind(n, self.window) + _behind(n, max(self.ahead, 1))
        outside = most(n - self.window, n * 0)  # keys a corner query can't see
        reached = least(global_tokens, outside)  # one more row and one more column for each global token
        return n + 2 * _behind(n, self.window) + 2 * (reached * outside - triangle(reached - 1))

    def _blocks(self, n: Number, b: int) -> Number:
        """BigBird: block-sparse above (5 + 2 r) b tokens, else full (the reference switches there too).

        Query blocks: the first and the last see all; the second and the last but one 3 b + (last) + r b keys; the
        others 4 b + (last) + r b. The last block holds what is left of n.
        """
        blocks = -(-n // b)
        last, r = n - (blocks - 1) * b, self.random_blocks
        edge, middle = 3 * b + last + r * b, 4 * b + last + r * b
        sparse = b * n + last * n + 2 * b * edge + (blocks - 4) * b * middle
        large = n > (5 + 2 * r) * b
        return sparse * large + n * n * (1 - large)


def _behind(n: Number, window: int | None) -> Number:
    """Pairs of n queries with an earlier key less than `window` away: the sum of min(i, W - 1) for i < n."""
    if window is None:
        return triangle(n - 1)
    ramp = least(n, window)
    return triangle(ramp - 1) + (n - ramp) * (window - 1)
