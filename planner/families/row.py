"""The form of a family: a topology, and the traits that its config.json doesn't say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Family(NamedTuple):
    """A row.

    Attributes:
        build: the topology; that of a part of a model returns the part.
        architecture: class where the config names none.
        traits: what the topology needs to know.
        names: keys that the family calls otherwise, canonical name first; those of its config class's attribute map stand
            in planner/defaults.
        ignores: structural keys that its configs carry without effect.
        classes: further classes that the topology knows how to build (text parts of multimodal families).
    """

    build: Callable[..., Any]
    architecture: str
    traits: Mapping[str, Any]
    names: Mapping[str, str]
    ignores: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


def row(
    build: Callable[..., Any],
    architecture: str,
    names: Mapping[str, str] | None = None,
    ignores: tuple[str, ...] = (),
    classes: tuple[str, ...] = (),
    **traits: Any,
) -> Family:
    """Return a family."""
    return Family(build, architecture, traits, names or {}, ignores, classes)
