"""Peak activations: the fold, by hand; and against what is alive in a real run of transformers."""

from __future__ import annotations

import inspect
import weakref
from typing import Any

import pytest

from planner.activations import EAGER, FUSED, Place, moments, peak
from planner.api import load, plan
from planner.engines import engine_by_name
from planner.precision import resolve
from planner.shard import Parallel
from planner.workload import workload

LLAMA: dict[str, Any] = dict(
    model_type="llama", hidden_size=256, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8,
    num_key_value_heads=2, vocab_size=1000, max_position_embeddings=4096, torch_dtype="bfloat16",
)  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "qwen2": LLAMA | dict(model_type="qwen2"),
    "qwen3": LLAMA | dict(model_type="qwen3", head_dim=32),
    "gemma2": LLAMA | dict(model_type="gemma2", head_dim=32, sliding_window=64, query_pre_attn_scalar=32),
    "gemma3_text": LLAMA | dict(model_type="gemma3_text", head_dim=32, sliding_window=64, query_pre_attn_scalar=32),
    "mixtral": LLAMA | dict(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": LLAMA
    | dict(model_type="qwen3_moe", num_experts=16, num_experts_per_tok=4, moe_intermediate_size=128, head_dim=32),
    "gpt2": dict(model_type="gpt2", n_embd=256, n_layer=2, n_head=8, vocab_size=1000, n_positions=1024),
    "bert": dict(
        model_type="bert", architectures=["BertForMaskedLM"], hidden_size=256, num_hidden_layers=2, num_attention_heads=8,
        intermediate_size=1024, vocab_size=1000,
    ),
}  # fmt: skip
CLOSE = {"gpt2": 0.06, "gemma2": 0.06, "mixtral": 0.03, "qwen3_moe": 0.03}
"""Relative difference allowed; others 0.5 %."""


def predicted(config: Any, rules: Any, parallel: Parallel | None = None, **options: Any) -> int:
    """Return the peak in bytes."""
    engine = "transformers" if rules is EAGER else "ideal"
    model = load(config, engine=engine)
    work, _ = workload(model, **options)
    place = Place(parallel) if parallel else Place()
    return peak(model, work, resolve(model, dtype="bf16"), rules, place).alive_bytes


def test_the_fold_by_hand() -> None:
    """R 1,024 rows, D 4,096, F 14,336, bf16: residual, normed rows, gate and up while a gated block opens.

    1024 x (2 x 4096 + 2 x 14336) x 2 = 75,497,472. Eager: embeddings, the layer's input, residual and normed rows, and
    gate, up and their product; cosines and sines of 128 and the position numbers:
    1024 x (4 x 4096 + 3 x 14336 + 2 x 128) x 2 + 1024 x 8 = 122,167,296.
    """
    assert predicted("llama3-8b", FUSED, prompt=1024) == 75_497_472
    assert predicted("llama3-8b", EAGER, prompt=1024) == 122_167_296


def test_logits_are_written_for_the_last_position_only() -> None:
    """Decoding 4 sequences: 4 rows of 128,256 logits and the normed rows; eager ones in float32 too.

    4 x (128256 + 4096) x 2 = 1,058,816 for both residual ... eager: residual and normed rows 4 x 2 x 4096 x 2 and logits
    4 x 128256 x (2 + 4).
    """
    assert predicted("llama3-8b", FUSED, batch=4, prompt=0) == 4 * (128256 + 4096) * 2
    assert predicted("llama3-8b", EAGER, batch=4, prompt=0) == 4 * 2 * 4096 * 2 + 4 * 128256 * 6


def test_an_encoder_writes_logits_of_every_position() -> None:
    """BERT-base, 512 tokens: logits 512 x 30,522 beside the rows that they are made of, 512 x 768, bf16."""
    assert predicted("bert-base", FUSED, prompt=512) == 512 * (30522 + 768) * 2


def test_ranks_divide_what_their_weights_divide() -> None:
    """With tp 4 the residual and normed rows stay whole, gate and up are a quarter: 1024 x (2 x 4096 + 2 x 3584) x 2."""
    assert predicted("llama3-8b", FUSED, Parallel(tp=4), prompt=1024) == 1024 * (2 * 4096 + 2 * 3584) * 2


def test_copies_divide_sequences_and_context_ranks_tokens() -> None:
    """8 x 1,024 rows over dp 4: as 2 x 1,024; over cp 8: as 1,024."""
    whole = dict(batch=8, prompt=1024)
    assert predicted("llama3-8b", FUSED, Parallel(dp=4), **whole) == predicted("llama3-8b", FUSED, batch=2, prompt=1024)
    assert predicted("llama3-8b", FUSED, Parallel(cp=8), **whole) == predicted("llama3-8b", FUSED, prompt=1024)


def test_depth_changes_nothing() -> None:
    """Layers run one after the other."""
    assert predicted(LLAMA, FUSED, prompt=64) == predicted(LLAMA | {"num_hidden_layers": 9}, FUSED, prompt=64)


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3", "mixtral-8x7b", "t5-small", "whisper-tiny", "gpt2"])
def test_fused_is_never_more_than_eager(name: str) -> None:
    """Fusion only saves."""
    assert predicted(name, FUSED) <= predicted(name, EAGER)


def test_every_moment_has_a_name() -> None:
    """Which operation, of which stack and pass."""
    model = load("t5-small")
    work, _ = workload(model)
    found = {moment.name for moment in moments(model, work, resolve(model), FUSED)}
    assert {"encoder prefill, mlp, opening products", "decoder decode, lm_head"} <= found


@pytest.mark.oracle
@pytest.mark.parametrize("family", CONFIGS)
def test_what_is_alive_in_transformers(family: str) -> None:
    """The peak of live tensors of a real forward pass on a CPU, weights and cache apart."""
    config = CONFIGS[family]
    measured = _measured(config, batch=2, tokens=192)
    model = load(config, engine="transformers")
    work, _ = workload(model, batch=2, prompt=192, **({"generate": 0} if model.generates else {}))
    cache = plan(model, batch=2, prompt=192, dtype="bf16", **({"generate": 0} if model.generates else {})).cache[
        "bytes"
    ]
    foretold = peak(model, work, resolve(model, dtype="bf16"), EAGER).alive_bytes
    assert foretold == pytest.approx(measured - cache, rel=CLOSE.get(family, 0.005))
    assert engine_by_name("transformers") is model.engine


def _measured(config: dict[str, Any], batch: int, tokens: int) -> int:
    """Return the peak bytes of tensors that a forward pass makes."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415
    from torch.utils._pytree import tree_iter  # noqa: PLC0415

    class Alive(TorchDispatchMode):  # type: ignore[misc]
        """Counts the bytes of storages from when an operation makes them until nothing refers to them."""

        now = most = 0

        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            """Run an operation and note the storages that are new."""
            before = {
                id(each.untyped_storage()) for each in tree_iter((args, kwargs)) if isinstance(each, torch.Tensor)
            }
            made = func(*args, **(kwargs or {}))
            for each in tree_iter(made):
                if isinstance(each, torch.Tensor) and id(store := each.untyped_storage()) not in before | self.known:
                    self.known.add(id(store))
                    self.now += store.nbytes()
                    weakref.finalize(store, self.gone, id(store), store.nbytes())
            self.most = max(self.most, self.now)
            return made

        def gone(self, key: int, size: int) -> None:
            """Note that a storage is freed."""
            self.known.discard(key)
            self.now -= size

    values = dict(config)
    described = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    kinds = transformers.AutoModelForMaskedLM if config["model_type"] == "bert" else transformers.AutoModelForCausalLM
    model = kinds.from_config(described, dtype=torch.bfloat16).eval()
    last = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    ids = torch.randint(0, 100, (batch, tokens))
    alive = Alive()
    alive.known = set()
    with torch.no_grad(), alive:
        model(ids, **last)
    return alive.most
