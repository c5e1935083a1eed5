"""Names, shapes and types of tensors from the headers of safetensors files, without reading the weights."""

from __future__ import annotations

import json
from pathlib import Path

from planner.errors import PlanError
from planner.formats import Checkpoint, Tensor

LARGEST_HEADER_BYTES = 100 * 2**20
"""The format's own limit."""


def headers(folder: Path) -> Checkpoint | None:
    """Return the tensors of all *.safetensors files of a folder, None where there are none.

    Raises:
        PlanError: a file's header can't be read.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    return Checkpoint(len(files), tuple(tensor for file in files for tensor in _header(file)))


def _header(file: Path) -> list[Tensor]:
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 0 < length <= LARGEST_HEADER_BYTES:
                raise ValueError(f"header of {length:,} bytes")
            entries = json.loads(stream.read(length))
        return [
            Tensor(name, tuple(entry["shape"]), entry["dtype"], entry["data_offsets"][1] - entry["data_offsets"][0])
            for name, entry in entries.items()
            if name != "__metadata__"
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanError(
            f"not a readable safetensors file ({error})", where=str(file), fix="download it again"
        ) from error
