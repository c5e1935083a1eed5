"""Recurrent and hybrid families, a row each."""

from __future__ import annotations

from planner.families.row import Family

HYBRIDS: dict[str, Family] = {}
