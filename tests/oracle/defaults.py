"""Writes planner/defaults/*.json: what transformers' config classes take where a key is missing.

`python -m tests.oracle.defaults [TYPE ...]` rewrites those named, or all; run it after adding a family.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from planner.families import FAMILIES, MODULES, _rows
from planner.families.encoder_decoders import PARTS
from planner.families.multimodal import TOWERS
from planner.fields import VOCABULARY

FOLDER = Path(__file__).parents[2] / "planner" / "defaults"
OWN = {
    "phi3_v",
    "transformer", "palm", "chatglm", "baichuan", "internlm", "internlm2", "qwen", "minicpm", "mimo", "phi-msft", "orion", "xverse",
    "deci", "nemotron-nas", "openelm", "bailing_moe", "deepseek", "deepseek_ref", "kimi_k2", "minimax_m3",
    "minimax_text_01", "minimax_m1", "kimi_vl", "moonvit",
}  # fmt: skip
"""Families without a class in transformers: written by hand."""


def class_defaults(model_type: str) -> dict[str, Any]:
    """Return {names, defaults} of a config class: its attribute map, and declared defaults under canonical names.

    A composite's {parts} says which model_type each part is read as, whether the config can't choose another ("fixed"), whether a
    missing part is left out ("optional"), and the values that a missing part takes.

    Only keys of the planner's vocabulary are kept. A default that the class derives from other values (head_dim of Llama) is
    null in its declaration and left out.
    """
    from transformers import CONFIG_MAPPING  # noqa: PLC0415

    cls = CONFIG_MAPPING[model_type]
    declared = {f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}
    mapped = {key: own for key, own in (getattr(cls, "attribute_map", None) or {}).items() if key in VOCABULARY}
    row = FAMILIES[model_type] if model_type in FAMILIES else {**TOWERS, **PARTS}[model_type]
    names = {**mapped, **row.names}
    aliases = {own: key for key, own in (getattr(cls, "attribute_map", None) or {}).items()}
    found = {
        key: value
        for key, own in {**{key: key for key in VOCABULARY}, **names}.items()
        for value in [
            next((declared[name] for name in (own, key, aliases.get(own)) if declared.get(name) is not None), None)
        ]
        if isinstance(value, bool | int | float | str) or _is_list(value)
    }
    if "rope_parameters" in declared:
        base = cls.default_theta
        two = isinstance(base, dict)  # Gemma 3: layers with windows have a base of their own
        wide = (base.get("global") or base["full_attention"]) if two else base
        near = {"rope_local_base_freq": base.get("local") or base["sliding_attention"]} if two else {}
        found |= {"rope_theta": wide, **near}
    parts = {"parts": {key: _part(spec) for key, spec in specs.items()}} if (specs := cls.sub_configs_defaults) else {}
    return {"names": dict(sorted(mapped.items())), "defaults": dict(sorted(found.items())), **parts}


def _is_list(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(each, bool | int | float | str) for each in value)
    )


def _part(spec: Any) -> dict[str, Any]:
    """Return what a composite's class says of one of its parts, values under canonical names."""
    from transformers import PreTrainedConfig  # noqa: PLC0415

    kind = spec.model_type
    row = FAMILIES[kind] if kind in FAMILIES else {**TOWERS, **PARTS}.get(kind)
    own = {
        **(getattr(spec.get_config_class(kind) if kind else spec.config_class, "attribute_map", None) or {}),
        **(row.names if row else {}),
    }
    canonical = {name: key for key, name in own.items() if key in VOCABULARY}
    values = {canonical.get(key, key): value for key, value in spec.init_kwargs.items()}
    nameless = {f.name: f.default for f in dataclasses.fields(spec.config_class)} if not kind else {}
    return {
        "model_type": kind,
        **(
            {"defaults": {key: value for key, value in nameless.items() if key in VOCABULARY and value is not None}}
            if nameless
            else {}
        ),
        "fixed": issubclass(spec.config_class, PreTrainedConfig),
        "optional": spec.optional,
        "values": {key: value for key, value in values.items() if key in VOCABULARY},
    }


def main() -> None:
    """Write the files of the families named on the command line, or of all."""
    import transformers  # noqa: PLC0415

    FOLDER.mkdir(exist_ok=True)
    for model_type in sys.argv[1:] or sorted((FAMILIES.keys() | TOWERS.keys() | PARTS.keys()) - OWN):
        module = next((module for module in MODULES if model_type in _rows(module)), None)
        text = {
            "source": f"config class of transformers {transformers.__version__}",
            **({"module": module} if module else {}),
            **class_defaults(model_type),
        }
        (FOLDER / f"{model_type}.json").write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
