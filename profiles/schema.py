"""The form of bundled files, checked by pydantic: a figure without its source and date can't be bundled."""

from __future__ import annotations

from datetime import date
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class BundledModel(BaseModel):
    """profiles/models/NAME.json: a config as published, and where it was published.

    Attributes:
        name: the file's. title: for people. aliases: further names, lower case.
        source: where the hyperparameters stand. date: of that source.
        confidence: "read" off the source, or "recalled".
        published: figures as their authors print them, and where; never used to compute.
        config: keys of a config.json.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z0-9.-]+$")
    title: str
    aliases: list[str] = []
    source: str = Field(min_length=10)
    date: date
    confidence: Literal["read", "recalled"]
    published: dict[str, Any]
    config: dict[str, Any]
