"""Towers of multimodal models: what turns an image or a second of sound into rows of the decoder's width.

A tower is a stack of its own, "vision" or "audio": patches or frames enter through a convolution, layers see them both
ways, and neighbours are merged before a projector gives them the decoder's width. Only workloads with images or sound run
it; its weights are stored in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from planner.blocks import Attention, Block, FeedForward, Leaf, Norm, Part, Weights, linear, vector
from planner.errors import PlanError
from planner.fields import REQUIRED, Config
from planner.masks import Mask
from planner.model import Layer, Run, Stack, Sublayer, runs
from planner.workload import Feed


class Tower(NamedTuple):
    """What a tower's config describes.

    Attributes:
        front: patch convolution, tables. layers: in order. back: norms, mergers.
        width: of a row that leaves it.
        rows: that enter its layers for one image, or one window of sound; None: the config doesn't say.
        leaving: rows that leave it; None: as many, or unknown. list: what its layers are called in checkpoints.
        own: rows of `rows` that are the tower's own (class token). more: further lists of layers, with names of their own.
    """

    front: tuple[Block, ...]
    layers: tuple[Layer, ...]
    back: tuple[Block, ...]
    width: int
    rows: int | None = None
    leaving: int | None = None
    list: str = "layers"
    own: int = 0
    more: tuple[Run, ...] = ()


def stack(
    name: Literal["vision", "audio"], tower: Tower, at: str, projector: Sequence[Block] = (), more: Sequence[Run] = ()
) -> Stack:
    """Return a tower as a stack; `at` is its path in checkpoints ("vision_tower"), `more` runs after its layers."""
    front = tuple(_below(block, at) for block in tower.front)
    back = (*(_below(block, at) for block in tower.back), *projector)
    return Stack(name, front, (*runs(list(tower.layers)), *tower.more, *more), back, "model.", f"{at}.{tower.list}")


def _below(block: Block, at: str) -> Block:
    """Return a block outside of the layers with its path in front of its leaves' names."""
    return Weights(tuple(replace(leaf, name=f"{at}.{leaf.name}") for leaf in block.leaves()))


def two(c: Config, key: str) -> tuple[int, int]:
    """Return height and width: a number, or a list of two.

    Raises:
        PlanError: it is neither.
    """
    value = c.raw(key)
    sides = value if isinstance(value, list | tuple) else [value, value]
    if len(sides) != 2 or not all(type(n) is int and 0 < n < 2**20 for n in sides):
        raise PlanError(
            f"found {value!r}, allowed are a whole number above 0 and a list of two",
            where=c.where(key),
            fix="correct the file",
        )
    return sides[0], sides[1]


def multiple(c: Config, width: str, ratio: str) -> int:
    """Return a width times a ratio.

    Raises:
        PlanError: nothing is left.
    """
    found = c.scaled(ratio, REQUIRED, c.count(width))
    if found < 1:
        raise PlanError("found a ratio that leaves nothing", where=c.where(ratio), fix="give one above 0")
    return found


def merger(
    name: str,
    width: int,
    hidden: int,
    out: int,
    *,
    norm: Norm | None = None,
    bias: bool = True,
    out_bias: bool = True,
    names: tuple[str, str, str] = ("norm", "linear_1", "linear_2"),
    feeds: Feed = "merged",
) -> Weights:
    """Return two matrices with an activation between them: [width, hidden] and [hidden, out], a norm before them.

    Args:
        name: path in checkpoints.
        width, hidden, out: elements.
        norm: of a row before neighbours are merged, or after.
        bias, out_bias: vectors added.
        names: of the norm and of both matrices.
        feeds: rows that visit them.
    """
    normed = [vector(f"{name}.{names[0]}", norm.width, "other", bias=norm.bias)] if norm else []
    return Weights(
        (
            *normed,
            linear(f"{name}.{names[1]}", width, hidden, "other", bias=bias, feeds=feeds),
            linear(f"{name}.{names[2]}", hidden, out, "other", bias=out_bias, feeds=feeds),
        )
    )


def table(name: str, rows: int, width: int) -> Weights:
    """Return positions that are learned, or tokens of the tower's own."""
    return Weights((Leaf(name, rows, width, "embedding"),))


def _none(_c: Config, _d: int) -> tuple[Block, ...]:
    return ()


def _no_leaf(_c: Config) -> tuple[Leaf, ...]:
    return ()


class Further(NamedTuple):
    """What else a tower stores before its layers, in each of them, and after them."""

    front: Callable[[Config, int], tuple[Block, ...]] = _none
    each: Callable[[Config], tuple[Leaf, ...]] = _no_leaf
    back: Callable[[Config, int], tuple[Block, ...]] = _none


def vit(
    c: Config,
    *,
    norm: Literal["rms", "layer"] = "layer",
    epsilon: float | str = 1e-6,
    width: str = "hidden_size",
    hidden: Callable[[Config], int] | str = "intermediate_size",
    gated: bool = False,
    biases: str = "qkv out mlp",
    grouped: bool = False,
    qk_norm: bool | Literal["all"] = False,
    own_head: bool = False,
    wiring: Literal["pre", "sandwich", "scaled"] = "pre",
    patch: Literal["conv", "linear"] = "conv",
    patch_bias: bool = False,
    frames: bool = False,
    class_token: bool = False,
    positions: Callable[[Config, int], int] | None = None,
    norms: str = "",
    windows: Callable[[Config, int], list[Mask]] | None = None,
    pooling: str | bool | None = None,
    image: str | None = "image_size",
    further: Further | None = None,
    leaving: Callable[[Config, int], int] | None = None,
    paths: tuple[str, str] = ("embeddings.patch_embedding", "encoder.layers"),
) -> Tower:
    """Return a vision transformer.

    Args:
        c: its config.
        norm, epsilon: kind of norm; its epsilon, or the key of it.
        width: key of D. hidden: key of F, or what reads it.
        gated: three feed-forward matrices. biases: which projections add vectors, of "qkv", "out" and "mlp".
        grouped: key-value heads of their own number. qk_norm: norm of every head's queries and keys, or of "all" heads together.
        own_head: the head's width is a key of its own.
        wiring: norms before each block, or on both sides, or what a block adds is multiplied by a vector.
        patch, patch_bias: the patch projection, a convolution or a plain matrix.
        frames: a patch spans `temporal_patch_size` frames.
        class_token: one more row (CLIP).
        positions: rows of the learned table, read off the config and the number of patches; None: rotary only.
        norms: "pre" before the first layer, "post" after the last.
        windows: masks of the layers; None: every patch sees every patch.
        pooling: whether, or the flag that says whether an attention pooler stands on top (SigLIP).
        image: key of the image's side; None: it is free.
        further: what else it stores. leaving: rows that leave it of so many.
        paths: of the patch projection and of the list of layers in checkpoints.
    """
    d, layers = c.count(width), c.count("num_hidden_layers")
    f = c.count(hidden) if isinstance(hidden, str) else hidden(c)
    heads = c.count("num_attention_heads") if own_head else c.heads("num_attention_heads", d)
    head = c.count("head_dim") if own_head else d // heads
    if not own_head:
        c.ignore("head_dim")
    kv_heads = c.count("num_key_value_heads", heads) if grouped else heads
    high, wide = two(c, "patch_size")
    depth = two(c, "temporal_patch_size")[0] if frames else 1
    eps = c.number(epsilon, 1e-6) if isinstance(epsilon, str) else epsilon
    a_norm = Norm(d, norm, norm == "layer", eps)
    act = c.text("hidden_act", None) or c.text("hidden_activation", "gelu")
    sides = two(c, image) if image else None
    patches = (sides[0] // high) * (sides[1] // wide) if sides else None
    rows = patches + class_token if patches is not None else None
    qkv_bias, out_bias, mlp_bias = (name in biases for name in ("qkv", "out", "mlp"))
    more = further or Further()
    block = Attention(
        d, heads, kv_heads, head, Mask(causal=False), qkv_bias, qkv_bias, qkv_bias, out_bias,
        qk_norm=Norm(d if qk_norm == "all" else head, epsilon=eps) if qk_norm else None,
    )  # fmt: skip
    masks = windows(c, layers) if windows else [Mask(causal=False)] * layers
    mlp = FeedForward(d, f, gated, mlp_bias, mlp_bias, act)
    made = {mask: _layer(block, mask, mlp, a_norm, wiring, more.each(c)) for mask in dict.fromkeys(masks)}
    projection = linear(
        paths[0], c.count("num_channels", 3) * depth * high * wide, d, "conv", bias=patch_bias, work=patch,
        further=-int(class_token),
    )  # fmt: skip
    first: list[Block] = [Weights((projection,)), *more.front(c, d)]
    if class_token:
        first.append(table("embeddings.class_embedding", 1, d))
    if positions:
        first.append(table("embeddings.position_embedding", positions(c, patches or 0), d))
    if "pre" in norms:
        first.append(Weights((vector("pre_layernorm", d, "norm", bias=a_norm.bias),)))
    top: list[Block] = [Weights((vector("post_layernorm", d, "norm", bias=a_norm.bias),))] if "post" in norms else []
    if pooling is True or (pooling and c.flag(pooling, True)):
        top.append(_pooler(d, f))
    top += more.back(c, d)
    left = leaving(c, patches) if leaving and patches is not None else rows
    return Tower(
        tuple(first), tuple(made[mask] for mask in masks), tuple(top), d, rows, left, paths[1], int(class_token)
    )


def _layer(block: Attention, mask: Mask, mlp: FeedForward, norm: Norm, wiring: str, more: tuple[Leaf, ...]) -> Layer:
    """Wire a layer."""
    after = norm if wiring == "sandwich" else None
    attend = Sublayer(replace(block, mask=mask), before=norm, after=after)
    feed = Sublayer(mlp, before=norm, after=after)
    scales = (
        (vector("lambda_1", norm.width, "other"), vector("lambda_2", norm.width, "other")) if wiring == "scaled" else ()
    )
    others = (*scales, *more)
    return Layer((attend, feed, *((Sublayer(Weights(others)),) if others else ())))


def _pooler(width: int, hidden: int) -> Weights:
    """SigLIP's: a learned query attends to all patches, then a feed-forward block. It stands in checkpoints, but no decoder reads it."""
    part: Part = "other"
    return Weights(
        (
            Leaf("head.probe", 1, width, part),
            Leaf("head.attention.in_proj", width, 3 * width, part, bias=True),
            Leaf("head.attention.out_proj", width, width, part, bias=True),
            vector("head.layernorm", width, part, bias=True),
            Leaf("head.mlp.fc1", width, hidden, part, bias=True),
            Leaf("head.mlp.fc2", hidden, width, part, bias=True),
        )
    )


def every_patch(_c: Config, patches: int) -> int:
    """A row for each patch of an image of the config's size."""
    return patches


def and_class(_c: Config, patches: int) -> int:
    """One more for the class token."""
    return patches + 1


def counted(key: str) -> Callable[[Config, int], int]:
    """Return what reads the number of rows under a key."""

    def rows(c: Config, _patches: int) -> int:
        return int(c.count(key))

    return rows


def square_windows(c: Config, layers: int) -> list[Mask]:
    """Qwen 2.5 VL: windows of `window_size` pixels, but for the layers of `fullatt_block_indexes`."""
    full = whole_numbers(c, "fullatt_block_indexes")
    side = max(c.count("window_size") // two(c, "patch_size")[0], 1)
    return [Mask(causal=False) if i in full else Mask(causal=False, chunk=side * side) for i in range(layers)]


def whole_numbers(c: Config, key: str, default: Any = None) -> list[int]:
    """Return a list of whole numbers.

    Raises:
        PlanError: it isn't one.
    """
    value = c.raw(key, default) if default is not None else c.raw(key)
    if not isinstance(value, list | tuple) or not all(type(n) is int and n >= -1000 for n in value):
        raise PlanError(
            f"found {value!r}, a list of whole numbers is needed", where=c.where(key), fix="correct the file"
        )
    return list(value)


def waves(
    c: Config,
    *,
    norm: Literal["rms", "layer"] = "layer",
    epsilon: float = 1e-5,
    gated: bool = False,
    key_bias: bool = False,
    up_bias: bool = True,
    positions: str | None = "max_source_positions",
    rows: str = "max_source_positions",
    merge: int = 1,
    own_head: bool = False,
    at: str = "",
) -> Tower:
    """Return an encoder of sound like Whisper's: two convolutions over mel bands, then layers that see all of a window.

    Args:
        c: its config.
        norm, epsilon: of its layers. gated, up_bias: of its feed-forward blocks. key_bias: whether keys add a vector.
        positions: key of the learned table's rows; None: rotary only.
        rows: key of the rows of a window.
        merge: neighbours of which the mean leaves it.
        own_head: the head's width and the key-value heads are keys of their own.
        at: path of the convolutions below the tower.
    """
    d, layers = c.count("hidden_size"), c.count("num_hidden_layers")
    heads = c.count("num_attention_heads") if own_head else c.heads("num_attention_heads", d)
    head = c.count("head_dim", d // heads) if own_head else d // heads
    groups = c.count("num_key_value_heads", heads)
    if positions is None and not own_head:
        c.ignore("head_dim")
    a_norm = Norm(d, norm, norm == "layer", epsilon)
    act = c.text("activation_function", None) or c.text("hidden_act", "gelu")
    block = Attention(d, heads, groups, head, Mask(causal=False), True, key_bias, True, True)
    mlp = FeedForward(d, c.count("intermediate_size"), gated, up_bias, True, act)
    layer = Layer((Sublayer(block, before=a_norm), Sublayer(mlp, before=a_norm)))
    bands, size = c.count("num_mel_bins"), c.count(rows)
    front: list[Block] = [
        Weights(
            (
                linear(f"{at}conv1", 3 * bands, d, "conv", bias=True, work="conv", rate=2),
                linear(f"{at}conv2", 3 * d, d, "conv", bias=True, work="conv"),
            )
        )
    ]
    if positions:
        front.append(table("embed_positions", c.count(positions), d))
    back = (Weights((vector("layer_norm", d, "norm", bias=a_norm.bias),)),)
    return Tower(tuple(front), (layer,) * layers, back, d, size, size // merge)
