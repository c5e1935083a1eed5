"""The form of a family: a topology, and the traits that its config.json doesn't say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.topology import Anatomy


@dataclass(frozen=True, slots=True)
class Family:
    """A row.

    Attributes:
        build: the topology.
        architecture: class where the config names none.
        traits: what the topology needs to know.
        names: keys that the family calls otherwise, canonical name first; those of its config class's attribute map stand
            in planner/defaults.
        ignores: structural keys that its configs carry without effect.
    """

    build: Callable[..., Anatomy]
    architecture: str
    traits: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    ignores: tuple[str, ...] = ()


def row(
    build: Callable[..., Anatomy],
    architecture: str,
    names: Mapping[str, str] | None = None,
    ignores: tuple[str, ...] = (),
    **traits: Any,
) -> Family:
    """Return a family."""
    return Family(build, architecture, traits, names or {}, ignores)
