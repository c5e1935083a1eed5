"""Two models joined by cross-attention: an encoder of any family, and a decoder that gets one in each layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from planner.blocks import Attention, Block, Head, Weights, linear
from planner.errors import PlanError
from planner.fields import Config
from planner.masks import Mask
from planner.model import Layer, Run, Stack, runs
from planner.topology import Anatomy, Request
from planner.topology.multimodal import COMMON
from planner.topology.paired import inside

CROSSED = frozenset(
    [
        "bert",
        "bert-generation",
        "big_bird",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "gpt2",
        "megatron-bert",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "trocr",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    ]
)
"""Families whose reference has cross-attention of the self-attention's shape, in each layer (`add_cross_attention`)."""

READS_ANY_WIDTH = frozenset(["trocr"])
"""Of these, those that read rows as wide as their `cross_attention_hidden_size` says."""

HALVES = frozenset(["bart", "mbart"])
"""Families of two stacks whose decoder alone serves here, with the cross-attention that it has."""

PICTURED = "the source is an image: --source counts the rows that the encoder makes of it"
"""Note on encoders of images."""

SEEING = frozenset(["deit", "donut-swin", "vit"])
"""Towers that read images as an encoder (vision-encoder-decoder)."""

Side = Literal["encoder", "decoder"]


def joined(c: Config, request: Request) -> Anatomy:
    """Return the encoder and the decoder that a config holds, each read by the row of its own family."""
    source, encoder = _heard(c, request) or _seen(c) or _read(c, request, "encoder", head=False)
    target, decoder = _read(c, request, "decoder", head=True)
    wide, width = source.count("hidden_size"), target.count("hidden_size")
    read = target.count("cross_attention_hidden_size", None)
    if read is not None and read != wide:
        raise PlanError(
            f"found {read}, but the encoder's rows are {wide} wide",
            where=target.where("cross_attention_hidden_size"), fix="correct the file",
        )  # fmt: skip
    any_width = target.family in READS_ANY_WIDTH
    if any_width and not target.flag("use_learned_position_embeddings", True):
        raise PlanError(
            "found false; the planner models TrOCR's learned table of positions",
            where=target.where("use_learned_position_embeddings"), fix="set it to true",
        )  # fmt: skip
    if read is not None and read != width and not any_width:
        raise PlanError(
            f"found {read}, but this decoder reads rows of its own width {width}",
            where=target.where("cross_attention_hidden_size"), fix="set it to null; a projection is then planned",
        )  # fmt: skip
    c.ignore("tie_word_embeddings")
    first, second = encoder.stacks[0], decoder.stacks[0]
    memory = read if any_width and read != width else None
    bridge = (
        (Weights((linear("enc_to_dec_proj", wide, width, "other", bias=True, feeds="memory"),)),)
        if wide != width and (read is None or not any_width)
        else ()
    )
    return Anatomy(
        "encoder-decoder",
        (
            _named(first, "encoder", first.front, first.runs, first.back),
            _named(
                second, "decoder", (*second.front, *bridge),
                second.runs if target.family in HALVES else tuple(_crossed(run, memory) for run in second.runs),
                second.back,
            ),
        ),
        decoder.positions, decoder.learned_positions, encoder.positions, encoder.source_fixed,
        notes=(*encoder.notes, *decoder.notes), source_learned=encoder.learned_positions,
    )  # fmt: skip


def _heard(c: Config, request: Request) -> tuple[Config, Anatomy] | None:
    """Return the reader of an encoder of sound, and what it makes of it; None where the encoder reads tokens."""
    from planner.families.encoder_decoders import PARTS  # noqa: PLC0415

    given = c.values.get("encoder")
    named = given.get("model_type") if isinstance(given, Mapping) else _part(c, "encoder")
    if not isinstance(named, str) or named not in PARTS or c.family != "speech-encoder-decoder":
        return None
    made = inside("encoder")(c, request)
    stack = Stack("encoder", made.front, runs(made.layers), made.back)
    return made.c, Anatomy("encoder", (stack,), made.positions, made.learned)


def _seen(c: Config) -> tuple[Config, Anatomy] | None:
    """Return the reader of an encoder of images, and what it makes of it; None where the encoder reads something else.

    Raises:
        PlanError: it is a tower that isn't modelled as an encoder.
    """
    from planner.families import defaults  # noqa: PLC0415
    from planner.families.multimodal import TOWERS  # noqa: PLC0415

    if c.family != "vision-encoder-decoder":
        return None
    given = c.values.get("encoder")
    kind = given.get("model_type") if isinstance(given, Mapping) else _part(c, "encoder")
    if kind not in SEEING:
        raise PlanError(
            f"found {kind!r}, which isn't modelled there; it models {', '.join(sorted(SEEING))}",
            where=f"{c.source}, {c.scope}encoder.model_type", fix="correct the file",
        )  # fmt: skip
    row, known = TOWERS[kind], defaults(kind)
    inner = c.nested("encoder", kind, {**known["names"], **row.names}, known["defaults"])
    tower = row.build(inner, **row.traits)
    inner.ignore(*row.ignores, "cross_attention_hidden_size", *COMMON)
    stack = Stack("encoder", tower.front, runs(list(tower.layers)), tower.back, list=tower.list)
    inner = replace(inner, values={**inner.values, "hidden_size": tower.width})
    return inner, Anatomy("encoder", (stack,), tower.rows, source_fixed=True, notes=(PICTURED,))


def _part(c: Config, side: Side) -> str:
    """Return the model_type of a side that the config leaves out."""
    from planner.families import defaults  # noqa: PLC0415

    return str(defaults(c.family)["parts"][side]["model_type"])


def _read(c: Config, request: Request, side: Side, *, head: bool) -> tuple[Config, Anatomy]:
    """Return the reader of one side, and what its family makes of it."""
    from planner.families import FAMILIES, defaults  # noqa: PLC0415

    given = c.values.get(side)
    kind = given.get("model_type") if isinstance(given, Mapping) else _part(c, side)
    where = f"{c.source}, {c.scope}{side}.model_type"
    if not isinstance(kind, str):
        raise PlanError("missing, the family of this side is needed", where=where, fix="correct the file")
    if kind not in FAMILIES or (side == "decoder" and kind not in CROSSED | HALVES):
        several = ", ".join(sorted(CROSSED | HALVES))
        allowed = f"decoders with cross-attention: {several}" if side == "decoder" else "encoders"
        raise PlanError(
            f"found {kind!r}, which isn't modelled there; it models {allowed}", where=where, fix="correct the file"
        )
    row, known = FAMILIES[kind], defaults(kind)
    instead: dict[str, Any] = {"is_decoder": False, "add_cross_attention": False} if side == "decoder" else {}
    inner = c.nested(side, kind, {**known["names"], **row.names}, known["defaults"], instead)
    traits = {key: value for key, value in row.traits.items() if key != "beside"}  # TrOCR alone: what isn't crossed
    anatomy = row.build(inner, request._replace(head=head, architecture=""), **traits)
    inner.ignore(*row.ignores, *(() if head else ("tie_word_embeddings",)))
    if side == "decoder" and kind in HALVES:
        half = anatomy.stacks[1]
        back = tuple(replace(each, logits_bias=False) if isinstance(each, Head) else each for each in half.back)
        anatomy = anatomy._replace(kind="decoder", stacks=(replace(half, back=back),))
    if side == "encoder" and anatomy.kind != "encoder":
        raise PlanError(f"found {kind!r}, an encoder is needed", where=where, fix="correct the file")
    if len(anatomy.stacks) != 1:
        raise PlanError(f"found {kind!r}, a model of one stack is needed", where=where, fix="correct the file")
    return inner, anatomy


def _named(stack: Stack, side: Side, front: tuple[Block, ...], body: tuple[Run, ...], back: tuple[Block, ...]) -> Stack:
    """Return a stack whose shared matrices are its own side's."""
    return replace(
        stack, name=side, front=tuple(_apart(block, side) for block in front), runs=body,
        back=tuple(_apart(block, side) for block in back),
    )  # fmt: skip


def _apart(block: Block, side: Side) -> Block:
    """Return a block whose leaves share matrices within one side only."""
    leaves = block.leaves()
    if not any(leaf.tie for leaf in leaves):
        return block
    return Weights(tuple(replace(leaf, tie=f"{side}.{leaf.tie}") if leaf.tie else leaf for leaf in leaves))


def _crossed(run: Run, memory: int | None = None) -> Run:
    """Return a run of causal layers, each with a cross-attention wired like its self-attention; `memory`: width that it reads."""
    found: list[Any] = []
    for each in run.layer.sublayers:
        block = each.block
        if isinstance(block, Attention):
            causal = replace(block, mask=replace(block.mask, causal=True))
            cross = replace(
                block, cross=True, mask=Mask(causal=False), rope=None, memory_width=memory, name="crossattention"
            )
            found += [replace(each, block=causal), replace(each, block=cross)]
        else:
            found.append(each)
    if len(found) == len(run.layer.sublayers):
        raise PlanError("the decoder has a layer without attention", where="decoder", fix="choose another decoder")
    return replace(run, layer=Layer(tuple(found), run.layer.parallel, run.layer.before))
