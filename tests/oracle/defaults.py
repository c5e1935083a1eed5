"""Writes planner/defaults/*.json: what transformers' config classes take where a key is missing.

`python -m tests.oracle.defaults` rewrites all; run it after adding a family, with the versions of constraints.txt.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from planner.families import FAMILIES
from planner.fields import VOCABULARY

FOLDER = Path(__file__).parents[2] / "planner" / "defaults"
OWN = {"transformer", "palm"}  # families without a class in transformers: written by hand


def class_defaults(model_type: str) -> dict[str, Any]:
    """Return the defaults of a config class under the planner's canonical names.

    A default that the class derives from other values (head_dim of Llama) is null in its declaration and left out.
    """
    from transformers import CONFIG_MAPPING  # noqa: PLC0415

    cls = CONFIG_MAPPING[model_type]
    declared = {f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}
    names = {own: key for key, own in (getattr(cls, "attribute_map", None) or {}).items()}
    names |= {own: key for key, own in FAMILIES[model_type].names.items()}
    both = {own: key for own, key in names.items() if own in declared}
    found: dict[str, Any] = {}
    for own, value in declared.items():
        for key in [own, *(k for k, o in FAMILIES[model_type].names.items() if o == own), both.get(own, own)]:
            if key in VOCABULARY and isinstance(value, bool | int | float | str):
                found[key] = value
    if "rope_parameters" in declared:
        theta = cls.default_theta
        both_kinds = isinstance(theta, dict)  # Gemma 3: windowed layers have a base of their own
        found |= (
            {"rope_theta": theta["global"], "rope_local_base_freq": theta["local"]}
            if both_kinds
            else {"rope_theta": theta}
        )
    return dict(sorted(found.items()))


def main() -> None:
    """Write one file a family."""
    import transformers  # noqa: PLC0415

    FOLDER.mkdir(exist_ok=True)
    for model_type in sorted(FAMILIES.keys() - OWN):
        text = {
            "source": f"config class of transformers {transformers.__version__}",
            "defaults": class_defaults(model_type),
        }
        (FOLDER / f"{model_type}.json").write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
