"""Blocks of decoders that look at images through cross-attention (Llama 3.2 Vision)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.blocks import Block, Cache, Core, Leaf


@dataclass(frozen=True, slots=True)
class OnlySeeing:
    """A block that text runs only where there are images to look at; else its layer is left out."""

    block: Block
    name: str

    def leaves(self) -> tuple[Leaf, ...]:
        """Return the block's, whose rows are none without images."""
        return tuple(replace(leaf, feeds="seeing") if leaf.feeds == "new" else leaf for leaf in self.block.leaves())

    def caches(self) -> tuple[Cache, ...]:
        """Return the block's."""
        return self.block.caches()

    def cores(self) -> tuple[Core, ...]:
        """Return the block's."""
        return self.block.cores()
