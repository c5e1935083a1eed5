"""Encoder-only families, a row each."""

from __future__ import annotations

from planner.families.row import Family, row
from planner.topology.encoder import around, blocks_of_keys, encoder

ENCODERS: dict[str, Family] = {
    "bert": row(encoder, "BertForMaskedLM"),
    "longformer": row(encoder, "LongformerForMaskedLM", masks=around, offset=2, global_projections=True),
    "big_bird": row(encoder, "BigBirdForMaskedLM", masks=blocks_of_keys, projection_bias="use_bias", pooled=True),
}  # fmt: skip
