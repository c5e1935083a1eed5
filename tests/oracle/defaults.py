"""Writes planner/defaults/*.json: what transformers' config classes take where a key is missing.

`python -m tests.oracle.defaults [TYPE ...]` rewrites those named, or all; run it after adding a family.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from planner.families import FAMILIES
from planner.fields import VOCABULARY

FOLDER = Path(__file__).parents[2] / "planner" / "defaults"
OWN = {"transformer", "palm"}  # families without a class in transformers: written by hand


def class_defaults(model_type: str) -> dict[str, Any]:
    """Return {names, defaults} of a config class: its attribute map, and declared defaults under canonical names.

    Only keys of the planner's vocabulary are kept. A default that the class derives from other values (head_dim of Llama) is
    null in its declaration and left out.
    """
    from transformers import CONFIG_MAPPING  # noqa: PLC0415

    cls = CONFIG_MAPPING[model_type]
    declared = {f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}
    mapped = {key: own for key, own in (getattr(cls, "attribute_map", None) or {}).items() if key in VOCABULARY}
    names = {**mapped, **FAMILIES[model_type].names}
    found = {
        key: declared[own]
        for key, own in {**{key: key for key in VOCABULARY}, **names}.items()
        if isinstance(declared.get(own), bool | int | float | str)
    }
    if "rope_parameters" in declared:
        base = cls.default_theta
        two = isinstance(base, dict)  # Gemma 3: layers with windows have a base of their own
        found |= {"rope_theta": base["global"], "rope_local_base_freq": base["local"]} if two else {"rope_theta": base}
    return {"names": dict(sorted(mapped.items())), "defaults": dict(sorted(found.items()))}


def main() -> None:
    """Write the files of the families named on the command line, or of all."""
    import transformers  # noqa: PLC0415

    FOLDER.mkdir(exist_ok=True)
    for model_type in sys.argv[1:] or sorted(FAMILIES.keys() - OWN):
        text = {"source": f"config class of transformers {transformers.__version__}", **class_defaults(model_type)}
        (FOLDER / f"{model_type}.json").write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
