"""What each layer remembers on one rank, in elements: keys and values, latents, an indexer's keys, states.

Engines differ in how they store it (blocks, pools, packed rows); their modules take it from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from planner.activations import Place
from planner.blocks import Attention, Block, LatentAttention
from planner.engines.serving import Part, bounded
from planner.errors import PlanError
from planner.model import Model
from planner.shard import Parallel, depth, stages

if TYPE_CHECKING:
    from profiles.hardware import Hardware

Kind = Literal["rows", "latent", "cross", "state"]


class Held(NamedTuple):
    """One layer's cache of one kind, on one of the ranks that divide heads.

    Attributes:
        layer: its number. kind: keys and values of tokens, latents of tokens, keys and values of the encoder's rows, a state.
        key, value: elements of a token; latents have no values of their own.
        index: of an indexer's key of a token.
        span: W of a window, C of a chunk, 0: all tokens.
        convolution, recurrent: elements of a request's state.
    """

    layer: int
    kind: Kind
    key: int = 0
    value: int = 0
    index: int = 0  # type: ignore[assignment]  # not the method that tuples have
    span: int = 0
    convolution: int = 0
    recurrent: int = 0

    @property
    def row(self) -> int:
        """Elements of a token's keys and values, or of its latent."""
        return self.key + self.value


def held(model: Model, tp: int, pp: int) -> tuple[list[range], list[Held]]:
    """Return the decoder's layers of each stage of a pipeline, and what all layers remember on one of `tp` ranks.

    Raises:
        PlanError: a cache that serving engines aren't known to have, or one that can't be divided so.
    """
    found: list[Held] = []
    layers = 0
    decoder = model.stack("decoder")
    for run in decoder.runs if decoder else ():
        for layer in range(layers, layers + run.count * run.repeats):
            for block in remembering(*run.layer.blocks):
                found += _of_block(block, layer, model, tp)
        layers += run.count * run.repeats
    if pp > layers > 0:
        raise PlanError(f"found {pp}, but there are {layers} layers", where="pp", fix="choose at most as many")
    return stages(layers, pp), found


def remembering(*blocks: Block) -> Iterator[Block]:
    """Yield what remembers something in blocks: the parts of one that has several, and what others are around."""
    from planner import recurrent as mixers  # noqa: PLC0415

    for block in blocks:
        caches, inner = block.caches(), getattr(block, "block", None)
        if isinstance(block, mixers.Together):
            yield from remembering(*block.parts)
        elif isinstance(block, mixers.SharedTransformer):
            yield from remembering(block.attention)
        elif inner is not None and hasattr(inner, "caches") and inner.caches() == caches:
            yield from remembering(inner)
        elif caches:
            yield block


def _of_block(block: Block, layer: int, model: Model, tp: int) -> Iterator[Held]:
    from planner import recurrent as mixers  # noqa: PLC0415

    caches = block.caches()
    match block:
        case Attention(chooser=None, borrows=False):
            yield _rows(block, layer, model, tp)
        case LatentAttention():
            latent, *keys = caches
            index = keys[0].row if keys else 0
            yield Held(layer, "latent", latent.row, index=index, span=latent.window or 0)
        case (
            mixers.Mamba()
            | mixers.Mamba2()
            | mixers.DeltaRule()
            | mixers.LightningAttention()
            | mixers.ShortConvolution()
        ):
            yield _state(block, layer, tp)
        case _:
            raise PlanError(
                f"how {model.engine.name} stores the cache of {type(block).__name__} isn't known",
                where=model.source,
                fix="plan() gives the bytes that the model itself needs",
            )


def _rows(block: Attention, layer: int, model: Model, tp: int) -> Held:
    """Return keys and values: whole heads on each rank, repeated where there are fewer than ranks."""
    (cache,) = block.caches()
    heads = block.cached_heads or block.kv_heads
    if heads % tp and tp % heads:
        raise PlanError(
            f"found {tp}, which neither divides the {heads} key-value heads nor is divided by them",
            where=f"tp, {model.source}",
            fix="choose a divisor or a multiple",
        )
    own, value = max(heads // tp, 1), block.value or block.head
    kind: Kind = "cross" if block.cross else "rows"
    return Held(layer, kind, own * block.head, own * value, span=cache.window or cache.chunk or 0)


def _state(block: Block, layer: int, tp: int) -> Held:
    """Return a state: the rows before the next one of a convolution, and what is recurrent."""
    from planner.recurrent import LightningAttention, Mamba2  # noqa: PLC0415

    sizes = [cache.fixed for cache in block.caches()]
    taps = 0 if isinstance(block, LightningAttention) else int(getattr(block, "taps", 0))
    channels = sizes.pop(0) // taps if taps else 0
    if isinstance(block, Mamba2) and block.groups % tp:  # every rank has a group of its own
        channels += 2 * (tp - block.groups) * block.state
    for size in (channels, *sizes):
        if size % tp:
            raise PlanError(f"found {tp}, which doesn't divide a state of {size:,}", where="tp", fix="choose a divisor")
    return Held(layer, "state", convolution=channels * max(taps - 1, 0) // tp, recurrent=sum(sizes) // tp)


def remembered(model: Model, tp: int, pp: int) -> tuple[list[range], list[Held]]:
    """Return the same of a model that remembers something.

    Raises:
        PlanError: it doesn't, or as `held`.
    """
    parts, layers = held(model, tp, pp)
    if not layers:
        raise PlanError(
            f"{model.family} keeps no cache between steps, so that there is nothing to print", where=model.source
        )
    return parts, layers


def place(model: Model, parallel: Parallel, stage: int) -> Place:
    """Return where a stage's activations are computed: its layers of the decoder, whether it embeds, whether it predicts."""
    decoder = model.stack("decoder")
    before = depth(model) - (decoder.depth if decoder else 0)
    part = stages(depth(model), parallel.pp)[stage]
    layers = range(max(part.start - before, 0), max(part.stop - before, 0)) if parallel.pp > 1 else None
    return Place(parallel, layers, stage == 0, stage == parallel.pp - 1)


def process(hardware: Hardware, parallel: Parallel) -> Part:
    """Return what a process takes of a device before it loads a model: context, libraries, buffers of ranks' messages."""
    bounds = hardware.process_bytes(exchanges=parallel.stage_devices > 1)
    return bounded(bounds, "context, libraries and buffers of messages", hardware.source(hardware.runtime_bytes))
