# ruff: noqa: E402  (torch is looked for first)
"""The twin itself: names and shapes of its tensors, what it keeps, prefixes, and what it refuses to build."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the twin is a torch model")

from measure.build import Twin, build, weight_shape
from measure.traits import COMPUTED
from planner.blocks import Leaf
from planner.engines import IDEAL, TRANSFORMERS, Engine
from planner.errors import PlanError
from planner.frontend import describe
from planner.masks import Mask
from planner.model import Run
from tests.measure.configs import BERT, DEEPSEEK, FALCON, LLAMA, SMALL, T5


def twin(config: dict[str, Any], engine: Engine = IDEAL, **options: Any) -> Twin:
    """Return a filled twin."""
    made = build(describe(config, engine=engine, **options))
    made.randomize()
    return made


def tokens(length: int, seed: int = 0) -> Any:
    """Return random token ids [2, length]."""
    return torch.randint(0, 64, (2, length), generator=torch.Generator().manual_seed(seed))


def test_names() -> None:
    """Tensors are called after stack, layer, block and leaf; a tied head has none of its own."""
    names = [name for name, _ in twin(LLAMA | dict(num_hidden_layers=1)).named_parameters()]
    layer = "decoder.layers.0"
    assert names == [
        "decoder.front.embed_tokens.weight",
        *(f"{layer}.self_attn.{leaf}_proj.weight" for leaf in "qkvo"),
        f"{layer}.self_attn.before.norm.weight",
        *(f"{layer}.mlp.{leaf}_proj.weight" for leaf in ("gate", "up", "down")),
        f"{layer}.mlp.before.norm.weight",
        "decoder.back.norm.weight",
        "decoder.back.lm_head.weight",
    ]
    tied = twin(LLAMA | dict(tie_word_embeddings=True))
    assert "decoder.back.lm_head.weight" not in dict(tied.named_parameters())
    assert tied.by_part().get("head", 0) == 0


def test_every_leaf_has_its_tensor() -> None:
    """Names lead back to leaves, and sizes are the leaves'."""
    made = twin(SMALL["deepseek_v3 plain"])
    for name, tensor in (*made.named_parameters(), *made.named_buffers()):
        leaf = made.places[name].leaf
        assert tensor.numel() == (leaf.copies * leaf.n_out if name.endswith("bias") else leaf.matrix), name
    buffers = dict(made.named_buffers())
    assert {name.rsplit(".", 2)[1] for name in buffers} == {"e_score_correction_bias"}
    assert all(buffer.dtype == torch.float32 for buffer in buffers.values())


@pytest.mark.parametrize(
    ("leaf", "shape"),
    [
        (Leaf("q", 3, 5, "attention", "linear"), (5, 3)),
        (Leaf("e", 3, 5, "routed_experts", "experts", copies=4, active=2), (4, 5, 3)),
        (Leaf("gate", 3, 1, "shared_experts", "linear"), (1, 3)),
        (Leaf("norm", 1, 5, "norm"), (5,)),
        (Leaf("table", 7, 5, "embedding"), (7, 5)),
        (Leaf("types", 1, 5, "embedding"), (1, 5)),
    ],
    ids=lambda value: value.name if isinstance(value, Leaf) else "",
)
def test_shapes(leaf: Leaf, shape: tuple[int, ...]) -> None:
    """Matrices are [out, in], tables [rows, width], vectors [width], copies first."""
    assert weight_shape(leaf) == shape


@pytest.mark.parametrize(("engine", "kept"), [(IDEAL, 5), (TRANSFORMERS, 4)], ids=["ideal", "transformers"])
def test_windows_are_kept_as_the_engine_does(engine: Engine, kept: int) -> None:
    """A window of 5 holds 5 rows, in transformers 4; a layer without one holds all."""
    made = twin(SMALL["mistral window"], engine)
    after = made(tokens(9)).kept
    assert [slot.tensors[0].shape for slot in after.slots] == [(2, 2, kept, 8)] * 2
    after = made(tokens(1), kept=after).kept
    assert (after.tokens, after.slots[0].tensors[1].shape) == (10, (2, 2, kept, 8))
    full = twin(LLAMA, engine)(tokens(9)).kept
    assert full.slots[0].tensors[0].shape == (2, 2, 9, 8)
    assert full.bytes() == full.bytes("self") == 2 * 2 * 2 * 2 * 9 * 8 * 4


def test_a_pass_leaves_the_cache_before_it_alone() -> None:
    """Steps can be taken again from the same cache."""
    made = twin(LLAMA)
    first = made(tokens(5)).kept
    again = [made(tokens(1), kept=first).logits_btv for _ in range(2)]
    assert torch.equal(*again)
    assert first.tokens == 5


@pytest.mark.parametrize("split", [1, 4, 8])
@pytest.mark.parametrize("name", ["llama", "mistral window", "gemma3 two ropes", "deepseek_v2 groups", "gpt2 inner"])
def test_any_split_of_a_prompt_gives_the_same_logits(name: str, split: int) -> None:
    """A prompt in two passes is the prompt in one, whatever the cache dropped between them."""
    made = twin(SMALL[name], TRANSFORMERS)
    whole = made(tokens(9)).logits_btv
    first = made(tokens(9)[:, :split])
    second = made(tokens(9)[:, split:], kept=first.kept)
    assert torch.allclose(torch.cat((first.logits_btv, second.logits_btv), dim=1), whole, atol=1e-5)


def test_absorbed_latents_are_expanded_ones() -> None:
    """DeepSeek's decode step on latents computes what the expanded one does, with other work."""
    ideal, expanding = (twin(SMALL["deepseek_v2 groups"], engine) for engine in (IDEAL, TRANSFORMERS))
    outputs = [made(tokens(1), kept=made(tokens(9)).kept).logits_btv for made in (ideal, expanding)]
    assert torch.allclose(*outputs, atol=1e-5)
    assert not torch.equal(*outputs)


def test_prefix() -> None:
    """Tokens inside a prefix see later ones; tokens after it don't, and nothing else changes."""
    made, changed = twin(LLAMA), tokens(9).clone()
    changed[:, 3] = (changed[:, 3] + 1) % 64

    def differs(prefix: int) -> list[bool]:
        a, b = (made(ids, prefix=prefix).logits_btv for ids in (tokens(9), changed))
        return [not torch.equal(a[:, t], b[:, t]) for t in range(9)]

    assert differs(0) == [False] * 3 + [True] * 6
    assert differs(3) == [False] * 3 + [True] * 6
    assert differs(4) == [True] * 9


def test_last_position_only() -> None:
    """Decoders answer for the last position where asked; a masked-LM head always answers for all."""
    made = twin(LLAMA)
    assert torch.allclose(made(tokens(9), last_only=True).logits_btv, made(tokens(9)).logits_btv[:, -1:], atol=1e-6)
    assert twin(BERT)(tokens(9), last_only=True).logits_btv.shape == (2, 9, 64)


def test_encoder_decoder_needs_a_source() -> None:
    """Cross-attention without an encoder's output is refused; afterwards its cache serves."""
    made = twin(T5)
    with pytest.raises(PlanError, match="pass source or memory"):
        made(tokens(3))
    first = made(tokens(3), source=tokens(7))
    assert made(tokens(1), kept=first.kept).logits_btv.shape == (2, 1, 64)
    assert first.kept.bytes("cross") == 2 * 2 * 2 * 7 * 40 * 4


def test_lower_precision() -> None:
    """A bfloat16 twin runs, keeps bfloat16, and is near the float32 one."""
    model = describe(LLAMA, engine=IDEAL)
    low, high = build(model, dtype=torch.bfloat16), build(model)
    high.randomize()
    low.load_state_dict(high.state_dict())
    step = low(tokens(9))
    assert step.kept.bytes() * 2 == high(tokens(9)).kept.bytes()
    assert torch.allclose(step.logits_btv.float(), high(tokens(9)).logits_btv, atol=0.1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (FALCON | dict(alibi=True), "doesn't compute Attention.alibi = True"),
        (LLAMA | dict(hidden_act="swiglu_of_my_own"), "no activation 'swiglu_of_my_own'"),
        (LLAMA | dict(rope_scaling=dict(rope_type="longrope", factor=2.0)), "no rotary scaling 'longrope'"),
        (BERT | dict(model_type="big_bird", block_size=2, num_random_blocks=1), "up to 14"),
        (BERT | dict(max_position_embeddings=8), "the table position_embeddings has 8"),
    ],
    ids=["alibi", "activation", "rope", "blocks", "positions"],
)
def test_traits_that_it_refuses(config: dict[str, Any], message: str) -> None:
    """What the twin can't compute is named, not approximated."""
    with pytest.raises(PlanError, match=message):
        twin(config)(tokens(16))


def test_blocks_that_it_refuses() -> None:
    """A bag of weights has no meaning to compute, and repeated runs of several layers no order."""
    predictors = DEEPSEEK | dict(model_type="deepseek_v3", q_lora_rank=None, num_nextn_predict_layers=1)
    with pytest.raises(PlanError, match="can't build the block Weights"):
        twin(predictors, mtp=True)
    model = describe(LLAMA, engine=IDEAL)
    (stack,) = model.stacks
    looped = replace(model, stacks=(replace(stack, runs=(Run(2, stack.runs[0].layer, 2),)),))
    with pytest.raises(PlanError, match="order"):
        build(looped)


def test_traits_that_come_later() -> None:
    """A field that the twin doesn't read is refused where it isn't at its default, however deep it stands."""
    for kind, names in COMPUTED.items():
        assert names <= {field.name for field in fields(kind)}, kind
    model = describe(LLAMA, engine=IDEAL)
    (stack,) = model.stacks
    run = stack.runs[0]
    attention = run.layer.sublayers[0]
    relayed = replace(attention, block=replace(attention.block, mask=Mask(relayed=True)))
    layer = replace(run.layer, sublayers=(relayed, *run.layer.sublayers[1:]))
    with pytest.raises(PlanError, match=r"decoder: the twin doesn't compute Mask.relayed = True"):
        build(replace(model, stacks=(replace(stack, runs=(Run(2, layer),)),)))


def test_repeated_layers() -> None:
    """One stored layer that is executed three times: its tensors once, its cache three times."""
    model = describe(LLAMA, engine=IDEAL)
    (stack,) = model.stacks
    looped = replace(model, stacks=(replace(stack, runs=(Run(1, stack.runs[0].layer, 3),)),))
    made = build(looped)
    made.randomize()
    assert sum(p.numel() for p in made.parameters()) == looped.tally.total
    assert len(made(tokens(4)).kept.slots) == 3
