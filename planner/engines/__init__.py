"""Whose rules: what differs between the published model and the programs that run it, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from planner.errors import PlanError

QUIRKS = {
    "ties_t5_heads": "transformers ties the head to the input table; the published checkpoint has a separate one",
    "unties_all_tables": "where the head isn't tied, transformers keeps three tables instead of one",
    "repeats_falcon_groups": "transformers caches grouped keys and values once per query head; the model needs them once",
    "keeps_masked_rows": "transformers keeps all rows of layers with windows, which are in the mask only",
    "rescores_differences": "transformers computes the scores of differential attention once for each set of values",
    "runs_all_llama4_experts": "transformers runs every token through every expert, whatever its router says",
    "stores_identity_experts": "transformers stores two matrices of experts that the model doesn't have (identity experts)",
    "doubles_shared_values": "transformers stores the key of layers without a compressed past once more as value",
    "pads_convolutions": "transformers computes positions at the edges of short convolutions that it throws away",
    "ignores_window_widths": "transformers gives layers with windows the heads and widths of the others, whatever their own keys say",
    "pads_heads": "transformers pads queries, keys and values to the multiple that the config names",
    "keeps_pooled_keys": "transformers keeps every token's key and gate of an indexer that scores means of several",
    "ignores_flat_text": "transformers ignores the text model's keys outside of text_config",
}
"""What a program does otherwise than the published model needs, where it costs something; a plan notes those it met."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The rules of one program.

    Attributes:
        name: as in `--engine`. version: as asked, or the newest whose rules are known; "" where it doesn't matter.
        window_margin: rows fewer than the window that a sliding layer keeps between passes.
        absorbs_latents: a decode step scores MLA's latents directly; else it expands the whole context again.
        quirks: keys of `QUIRKS` that it has.
        block_tokens: rows of a sequence are stored in whole blocks of so many.
        window_slack: rows that a layer stores beyond its window, for the prompts' chunks; None: windows are in the mask only,
            and all rows are stored.
        windowed: families whose windows it knows; others' layers keep all rows. None: all.
        packs_choosers: keys that choose rows are 8 bits with scales, whatever the cache is.
        packs_latents: 8-bit latents beside such keys are packed with their scales (`fp8_ds_mla`).
        cache_dtype: of rows where nothing else is asked, whatever the config says.
        casts_float32: runs models whose config says float32 in bfloat16, where nothing else is asked.
        longest_tokens: of a request, as it is started; None: the model's.
        flags: what it is started with, after defaults; its module's `Flags`.
    """

    name: str
    version: str = ""
    window_margin: int = 0
    absorbs_latents: bool = True
    quirks: frozenset[str] = frozenset()
    block_tokens: int = 1
    window_slack: int | None = 0
    windowed: frozenset[str] | None = None
    packs_choosers: bool = False
    packs_latents: bool = False
    cache_dtype: str | None = None
    casts_float32: bool = False
    longest_tokens: int | None = None
    flags: Any = None

    def knows_windows(self, family: str) -> bool:
        """Return whether a family's windows bound what it stores."""
        return self.windowed is None or family in self.windowed


IDEAL = Engine("ideal")
"""The published checkpoint, with caches no larger than the mask needs."""

TRANSFORMERS = Engine("transformers", window_margin=1, absorbs_latents=False, quirks=frozenset(QUIRKS))
"""transformers 5.24: sliding layers keep W - 1 rows between passes, MLA re-expands its latents in every step."""

ENGINES = {engine.name: engine for engine in (IDEAL, TRANSFORMERS)}

SERVING = {
    "vllm": "planner.engines.vllm",
    "sglang": "planner.engines.sglang",
    "trtllm": "planner.engines.trtllm",
    "llama.cpp": "planner.engines.llama",
}
"""Programs that serve, and the modules that know their rules: `engine(version, settings)`, `capacity`, `reserve`."""


def engine_by_name(text: str, settings: Sequence[str] = ()) -> Engine:
    """Return an engine.

    Args:
        text: its name, "@version" may follow. settings: flags that it is started with, "name=value", by its own names.

    Raises:
        PlanError: it is not one whose rules are known, or has no such version or flag.
    """
    name, _, version = text.partition("@")
    if name in SERVING:
        found: Engine = import_module(SERVING[name]).engine(version, settings)
        return found
    if name not in ENGINES:
        raise PlanError(
            f"no rules for the engine {name!r}; known: {', '.join((*ENGINES, *SERVING))}",
            where="--engine",
            fix="choose one of these",
        )
    if version:
        raise PlanError(f"found {text!r}, but {name} has one version only", where="--engine", fix=f"say {name}")
    if settings:
        raise PlanError(f"{name} is not started with flags", where="--engine-set", fix="leave it out")
    return ENGINES[name]
