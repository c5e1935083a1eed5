"""What one forward pass is asked to do: how many sequences, how many new tokens, on top of how many cached ones.

Letters: B sequences (batch), P prompt tokens, G generated tokens, S source positions of an encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.count import Number, least, triangle

Feed = Literal["new", "last", "sequence", "memory", "latent", "global", "global_keys"]
"""Whose rows visit a weight: see `Pass.rows`."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One phase of work of one stack, over `batch` sequences.

    Attributes:
        phase: "prefill": one pass over `new` tokens. "decode": `new` single-token steps on a cache, the first on top of
            `past` tokens. "recompute": `new` passes without a cache, over past + 1, ..., past + new tokens.
        new: tokens (prefill) or steps (decode, recompute).
        past: tokens before the first new one.
        memory: encoder positions that a cross-attention reads.
        prefix: first tokens of each sequence that see each other both ways (prefix LM).
        global_tokens: tokens that see, and are seen by, all others (Longformer).
    """

    batch: Number
    new: Number
    past: Number = 0
    phase: Literal["prefill", "decode", "recompute"] = "prefill"
    memory: Number = 0
    prefix: Number = 0
    global_tokens: Number = 0

    @property
    def recompute(self) -> bool:
        """Whether every step starts from nothing."""
        return self.phase == "recompute"

    def rows(self, feed: Feed, *, dense: bool = False, expand: bool = False) -> Number:
        """Return the rows of a matrix product fed by this stream, over all sequences.

        Args:
            feed: "new" every token that the pass works on; "last" only those whose next token is asked for; "sequence" one a sequence (poolers); "memory" the
                encoder's output, once per pass that has no cross-attention cache yet; "latent" what a latent cache is
                expanded for; "global" Longformer's global tokens; "global_keys" all tokens, where there are global ones.
            dense: count the output head on every position, as a tracer of the plain forward pass does.
            expand: whether a decode step expands all cached latents again (transformers) or works on them (absorbed).
        """
        tokens = self.new if not self.recompute else triangle(self.past + self.new) - triangle(self.past)
        match feed:
            case "last" if not dense:
                return self.batch * (least(self.new, 1) if self.phase == "prefill" else self.new)
            case "sequence":
                return self.batch * least(self.new, 1)
            case "memory":
                passes = {"prefill": 1, "decode": 0, "recompute": self.new}[self.phase]
                return self.batch * self.memory * passes
            case "latent" if expand and self.phase == "decode":
                return self.batch * (self.new * self.past + triangle(self.new))
            case "global":
                return self.batch * self.global_tokens
            case "global_keys":
                return self.batch * tokens * (self.global_tokens > 0)
        return self.batch * tokens
