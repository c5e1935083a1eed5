"""Families with vision or audio towers, and the text models inside them, a row each."""

from __future__ import annotations

from planner.families.row import Family

MULTIMODAL: dict[str, Family] = {}
