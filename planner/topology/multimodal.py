"""Models that also read images or sound: a text model of any family, towers beside it, and projectors between them.

`text_config` is read by the row of its own model_type, each tower's config by a row of `TOWERS`; what a wrapper's config
class takes where one of them is missing stands in planner/defaults ("parts").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from planner.blocks import Block
from planner.errors import PlanError
from planner.fields import Config
from planner.model import Input, Run, Stack
from planner.topology import Anatomy, Request
from planner.topology.towers import Tower, stack

if TYPE_CHECKING:
    from planner.families.row import Family

Projector = Callable[[Config, Config, Tower, int], Sequence[Block]]
"""Wrapper's config, tower's config, tower, width of the text model: the blocks between them."""

Layers = Callable[[Config, Config, Tower, int], Sequence[Run]]
"""The same arguments: layers of their own between them (a Q-Former's)."""

Tokens = Callable[[Config, Config, Tower], tuple[int, int] | None]
"""Wrapper's config, tower's config, tower: rows that enter its layers for one image, or window of sound, and tokens that they
add to the prompt; None where the config doesn't say."""


def leaving(_c: Config, _inner: Config, tower: Tower) -> tuple[int, int] | None:
    """As many tokens as rows leave the tower."""
    return None if tower.rows is None or tower.leaving is None else (tower.rows, tower.leaving)


class Sense(NamedTuple):
    """One kind of input beside text.

    Attributes:
        stack: name of its stack. key: of its config. at: path of its tower in checkpoints.
        projector: what stands between it and the text model. tokens: that it adds.
        lacking: what isn't in the config where it doesn't determine the tokens. seconds: of sound in a window.
        aliases: model_types of towers that are read as others.
        layers: what else runs after the tower's layers, in its stack.
    """

    stack: Literal["vision", "audio"]
    key: str
    at: str
    projector: Projector
    tokens: Tokens = leaving
    lacking: str = "the size of the image"
    seconds: int = 30
    aliases: Mapping[str, str] = {}
    layers: Layers | None = None


COMMON = (
    "vocab_size", "max_position_embeddings", "type_vocab_size", "num_key_value_heads", "is_decoder", "add_cross_attention",
    "tie_word_embeddings", "rope_parameters", "rope_scaling", "rope_theta", "rms_norm_eps", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types",
)  # fmt: skip
"""Keys that config classes write into every part, and that towers don't use."""


def multimodal(
    c: Config,
    request: Request,
    *,
    senses: tuple[Sense, ...],
    text: str = "text_config",
    ties: Literal["own", "either", "text"] = "own",
    flat: bool | Literal["published"] = False,
    text_classes: tuple[str, ...] = (),
    aliases: Mapping[str, str] | None = None,
    merged: bool = False,
    own: Family | None = None,
    instead: Callable[[Config], Mapping[str, Any]] | None = None,
    extra: Callable[[Config, int], Sequence[Stack]] | None = None,
    at: str = "model.language_model.",
) -> Anatomy:
    """Return the text model's stack, and one for each tower.

    Args:
        c: the wrapper's config.
        request: engine and extras.
        senses: its towers.
        text: key of the text model's config.
        ties: whether the wrapper's own key ties head and table, its own or the text model's, or the text model's.
        flat: without a `text_config`, the text model's keys stand among the wrapper's own (Qwen2-VL); "published": but
            transformers ignores them.
        text_classes: classes that are the text model alone.
        aliases: model_types of text models that are read as others.
        merged: a given text config is completed with the wrapper's defaults (Voxtral), not only a missing one.
        instead: values that replace the text model's, read off its config. own: row of the text model where all its keys are the wrapper's own.
        extra: further stacks (or what stands on the text model's) that the wrapper's own keys and the text model's width determine.
        at: path of the text model in checkpoints.
    """
    alone = request.architecture in text_classes
    flat = flat is True or (flat == "published" and not request.does("ignores_flat_text"))
    inner, anatomy = (
        (c, own.build(c, request, **own.traits))
        if own
        else _text(
            c, request, text, "text" if alone else ties, aliases or {}, flat=flat, merged=merged, changed=instead
        )
    )
    if alone:
        c.ignore(*(sense.key for sense in senses))
        c.ignore(*(key for key in c.values if key in inner.read))
        return anatomy._replace(stacks=tuple(replace(each, scope=None) for each in anatomy.stacks))
    width = inner.count("hidden_size")
    stacks = [replace(each, scope=at) for each in anatomy.stacks]
    inputs: list[Input] = []
    for sense in senses:
        made = _tower(c, sense, width)
        if made:
            stacks.append(made[0])
            inputs.append(made[1])
    for more in extra(c, width) if extra else ():
        if more.name == "decoder":
            stacks[0] = replace(stacks[0], back=(*stacks[0].back, *more.front))
        elif like := [i for i, each in enumerate(stacks) if each.name == more.name]:
            stacks[like[0]] = _longer(stacks[like[0]], more)
        else:
            stacks.append(more)
    if inner.read is not c.read:
        c.ignore(*(key for key in c.values if key in inner.read))
    return anatomy._replace(stacks=tuple(stacks), inputs=tuple(inputs))


def _longer(stack: Stack, more: Stack) -> Stack:
    """Return a stack with what another stores, whose lists have names of their own."""
    front, back = (*stack.front, *more.front), (*stack.back, *more.back)
    return replace(stack, front=front, runs=(*stack.runs, *more.runs), back=back)


def part(c: Config, key: str) -> Config:
    """Return a reader of a part that is neither the text model nor a tower (a Q-Former between them)."""
    from planner.families import defaults  # noqa: PLC0415

    spec = _part(c, key)
    known = defaults(spec["model_type"]) if spec["model_type"] else {"names": {}, "defaults": spec["defaults"]}
    taken = {**known["defaults"], **(spec["values"] if c.values.get(key) is None else {})}
    return c.nested(key, spec["model_type"] or key, known["names"], taken)


def _part(c: Config, key: str) -> dict[str, Any]:
    """Return what the wrapper's config class says of a part: {model_type, fixed, optional, values}."""
    from planner.families import defaults  # noqa: PLC0415

    found: dict[str, Any] = defaults(c.family)["parts"][key]
    return found


def _kind(c: Config, key: str, part: Mapping[str, Any], aliases: Mapping[str, str]) -> str:
    """Return the model_type that a part is read as."""
    given = c.values.get(key)
    named = given.get("model_type") if isinstance(given, Mapping) and not part["fixed"] else None
    kind = named or part["model_type"]
    if not isinstance(kind, str):
        raise PlanError(
            f"found {kind!r}, a text is needed", where=f"{c.source}, {c.scope}{key}.model_type", fix="correct the file"
        )
    return aliases.get(kind, kind)


def _text(
    c: Config,
    request: Request,
    key: str,
    ties: str,
    aliases: Mapping[str, str],
    *,
    flat: bool,
    merged: bool,
    changed: Callable[[Config], Mapping[str, Any]] | None = None,
) -> tuple[Config, Anatomy]:
    """Read the text model with the row of its own family."""
    from planner.families import FAMILIES, defaults  # noqa: PLC0415

    part = _part(c, key)
    given = c.values.get(key)
    among = flat and given is None and c.values.get("hidden_size") is not None
    kind = _kind(c, key, part, aliases)
    if kind not in FAMILIES:
        raise PlanError(
            f"the text model is of the family {kind!r}, which the planner doesn't model yet",
            where=f"{c.source}, {c.scope}{key}.model_type",
            fix="if it is built like another family, name that one here; --set "
            f"{c.scope}{key}.model_type=FAMILY does it for one run",
        )
    row, known = FAMILIES[kind], defaults(kind)
    names = {**known["names"], **row.names}
    taken = {**known["defaults"], **(part["values"] if given is None or merged else {})}
    own = names.get("tie_word_embeddings", "tie_word_embeddings")
    probe = c.nested(None if among else key, kind, names, taken)
    tied = probe.flag("tie_word_embeddings", False) if ties in {"either", "text"} else False
    more = changed(probe) if changed else {}
    c.below.remove(probe)
    if ties != "text":
        tied = c.flag("tie_word_embeddings", False) or tied
    instead = {"tie_word_embeddings": None, own: tied, **more}
    inner = c.nested(None if among else key, kind, names, taken, instead)
    anatomy = row.build(inner, request._replace(architecture=""), **row.traits)
    inner.ignore(*row.ignores)
    return inner, anatomy


def _tower(c: Config, sense: Sense, width: int) -> tuple[Stack, Input] | None:
    """Read a tower and what stands between it and the text model; None where there is none."""
    from planner.families import defaults  # noqa: PLC0415
    from planner.families.multimodal import TOWERS  # noqa: PLC0415

    part = _part(c, sense.key)
    if part["optional"] and c.values.get(sense.key) is None:
        c.ignore(sense.key)
        return None
    kind = _kind(c, sense.key, part, sense.aliases)
    if kind not in TOWERS:
        raise PlanError(
            f"the tower is a {kind!r}, which the planner doesn't model",
            where=f"{c.source}, {c.scope}{sense.key}.model_type",
            fix="plan the text model alone: save its text_config as a file of its own",
        )
    row, known = TOWERS[kind], defaults(kind)
    given = c.values.get(sense.key)
    taken = {**known["defaults"], **(part["values"] if given is None else {})}
    inner = c.nested(sense.key, kind, {**known["names"], **row.names}, taken)
    tower = row.build(inner, **row.traits)
    inner.ignore(*COMMON, *row.ignores)
    blocks = sense.projector(c, inner, tower, width)
    rows, tokens = sense.tokens(c, inner, tower) or (None, None)
    more = sense.layers(c, inner, tower, width) if sense.layers else ()
    made = stack(sense.stack, tower, sense.at, blocks, more)
    return made, Input(sense.stack, rows, tokens, sense.seconds, sense.lacking)
