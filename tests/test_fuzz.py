"""Mutated configs end in a plan or in one PlanError: no other exception, and none takes a second."""

from __future__ import annotations

import copy
import os
import random
import time
from typing import Any

import planner
import profiles
from planner.families import FAMILIES, defaults

COUNT = int(os.environ.get("PLANFORMER_FUZZ", "1500"))
ODD: tuple[Any, ...] = (
    None, 0, -1, 1, 2, 3, 7, 1.5, float("nan"), float("inf"), True, False, "", "x", "64", [], [1], [None], {}, {"a": 1}, {"type": 3},
    2**31, 2**63, 10**30, -(10**30), 1e308, "\u0000", ["full_attention"], [0] * 100, {"rope_theta": "x"}, "none",
)  # fmt: skip
SECONDS = 1.0


def bases() -> list[dict[str, Any]]:
    """Return the bundled configs, and one of bare defaults for every family."""
    found = [(profiles.model(name) or {})["config"] for name in profiles.model_names()]
    return found + [{**defaults(name)["defaults"], "model_type": name} for name in FAMILIES]


def mutated(base: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a copy with one to four keys dropped, replaced by something odd, or scaled absurdly; nested ones too."""
    config = copy.deepcopy(base)
    for _ in range(rng.randint(1, 4)):
        target = config
        nested = [value for value in config.values() if isinstance(value, dict) and value]
        if nested and rng.random() < 0.3:
            target = rng.choice(nested)
        key = (
            rng.choice(list(target))
            if target and rng.random() < 0.9
            else rng.choice(("sliding_window", "kv_lora_rank", "zzz"))
        )
        match rng.randint(0, 4):
            case 0:
                target.pop(key, None)
            case 1 if isinstance(target.get(key), int) and not isinstance(target.get(key), bool):
                target[key] = target[key] * rng.choice((0, -1, 2, 3, 10**6, 10**18))
            case 2 if isinstance(target.get(key), list):
                target[key] = target[key][: rng.randint(0, 5)] * rng.randint(0, 3)
            case _:
                target[key] = rng.choice(ODD)
    return config


def test_mutated_configs_end_in_a_plan_or_one_message() -> None:
    """Every family, under both engines; set PLANFORMER_FUZZ=20000 for more."""
    rng = random.Random(20261130)  # noqa: S311
    configs = bases()
    endings = [
        ending(mutated(configs[i % len(configs)], rng), rng.choice(("ideal", "transformers"))) for i in range(COUNT)
    ]
    assert [each for each in endings if each not in {"planned", "refused"}] == []
    assert 0.02 * COUNT < endings.count("planned") < 0.98 * COUNT


def ending(config: dict[str, Any], engine: str) -> str:
    """Return "planned", "refused", or what went wrong and with what."""
    start = time.process_time()
    try:
        planner.plan(config, engine=engine).to_dict()
        found = "planned"
    except planner.PlanError as error:
        found = "refused" if str(error) else f"empty message: {config}"
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error} from {config}"
    seconds = time.process_time() - start
    return found if seconds < SECONDS else f"{seconds:.1f} s of CPU: {config}"
