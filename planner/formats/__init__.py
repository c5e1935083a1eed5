"""Other forms that a model comes in, translated to a config: params.json, GGUF, safetensors headers, a hub's name."""

from __future__ import annotations

from typing import NamedTuple


class Tensor(NamedTuple):
    """A tensor as a file's header lists it: name, shape, dtype as the file calls it, and stored bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    stored_bytes: int

    @property
    def elements(self) -> int:
        """Product of the shape."""
        product = 1
        for size in self.shape:
            product *= size
        return product


class Checkpoint(NamedTuple):
    """The tensors of a model's files."""

    files: int
    tensors: tuple[Tensor, ...]
