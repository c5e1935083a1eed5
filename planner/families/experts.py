"""Decoders with experts, latent or sparse attention, a row each."""

from __future__ import annotations

from planner.families.row import Family

EXPERTS: dict[str, Family] = {}
