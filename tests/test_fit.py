"""Will it fit: whole answers with their arithmetic, and laws of what is found: it fits, and less doesn't."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import planner
from planner.cli import app
from planner.engines.flags_named import NAMED, OWN
from planner.errors import PlanError
from planner.fit import MOST_DEVICES, fit
from planner.fit import least as least_
from planner.precision import resolve
from planner.shard import legal_sizes

runner = CliRunner()

PLAIN = dict(ep=1, dp=1, cp=1)

LONG = dict(prompt=131_072 - 256, generate=256)


def held(config: Any, hardware: str, **options: Any) -> dict[str, Any]:
    """Return the memory section of a plan."""
    found = planner.plan(config, hardware=hardware, **options).memory
    assert found is not None
    return found


def rows(found: dict[str, Any], key: str) -> dict[str, tuple[Any, ...]]:
    """Return bytes, fits, max_batch and max_context by format."""
    name = "weights" if key == "formats" else "cache_dtype"
    return {row[name]: tuple(row[k] for k in ("bytes", "fits", "max_batch", "max_context")) for row in found[key]}


def test_llama_8b_at_128k_on_a_24_gb_card() -> None:
    """It is short of 16.8 GiB; a context of 42,792 fits, or two cards.

    Cache 131,072 x 131,072 bytes = 16 GiB; activations 130,816 rows x (2 x 4,096 + 2 x 14,336) x 2. One card: 131,072 T +
    73,728 (T - 256) <= 25,383,256,719 - 16,060,522,496 - 577,765,376 gives T <= 42,792.2. Two, with tp 2: half of the
    weights and of the norms once more, 8,030,527,488; 65,536 T + 45,056 (T - 256) <= 25,383,256,719 - 8,030,527,488 -
    577,765,376 - 411,041,792 gives T <= 148,070.9.
    """
    found = fit("llama3.1-8b", hardware="rtx-4090", **LONG)
    assert not found["fits"]
    assert found["asked"] == held("llama3.1-8b", "rtx-4090", **LONG)
    assert found["asked"]["cache"] == 16 * 2**30
    assert found["asked"]["activations"] == 130_816 * 73_728
    assert found["fewest_devices"] == {"gpus": 2, "tp": 2, "pp": 1} | PLAIN | {"max_batch": 1, "max_context": 148_070}
    assert found["smallest_change"] == {
        "option": "--prompt",
        "value": 42_536,
        "text": "It fits with a context of 42,792 tokens: --prompt 42536 --generate 256.",
        "options": {"prompt": 42_536, "generate": 256},
        "flags": None,
    }
    assert found["changes"][-1]["text"] == "It fits on 2 x rtx-4090: --gpus 2 --tp 2."
    assert {name: row[3] for name, row in rows(found, "formats").items()} == {
        "bf16": 42_792, "fp8": 76_870, "int8": 76_857, "awq-int4-g128": 93_244, "q4_k_m": 97_223,
    }  # fmt: skip
    # T <= (25,383,256,719 - 16,060,522,496 - 577,765,376 + 256 x 73,728) / (65,536 + 73,728)
    assert rows(found, "cache_dtypes")["fp8"] == (8 * 2**30, False, 0, 62_929)


def test_llama_2_70b_needs_two_a100_80gb() -> None:
    """In its 16 bits: 128.5 GiB of weights, 79.15 usable on a card; in fp8 one is enough.

    On each of two: room 84,986,665,370 - 68,977,967,104 - 988,807,168 for sequences of 1,280 x 163,840 bytes of cache and
    1,024 x (2 x 8,192 + 2 x 14,336) x 2 of activations: 15,019,891,098 / 301,989,888 = 49.7.
    """
    found = fit("llama2-70b", hardware="a100-80gb")
    assert not found["fits"]
    least = found["fewest_devices"]
    assert {key: least[key] for key in ("gpus", "tp", "pp", "max_batch")} == dict(gpus=2, tp=2, pp=1, max_batch=49)
    assert found["smallest_change"]["text"] == "It fits with fp8 weights: --weights fp8."
    assert found["changes"][-1]["text"] == "It fits on 2 x a100-sxm: --gpus 2 --tp 2."
    assert {name: row[1] for name, row in rows(found, "formats").items()} == {
        "fp16": False, "bf16": False, "fp8": True, "int8": True, "awq-int4-g128": True, "q4_k_m": True,
    }  # fmt: skip


def test_qwen_72b_in_4_bits_fits_a_48_gb_card() -> None:
    """Matrices of 80 layers: 877,658,112 x 4.15625 bits (a scale and a zero point each 128); the two tables in 16 bits.

    80 x 877,658,112 x 4.15625 / 8 = 36,477,665,280; tables 2 x 152,064 x 8,192 x 2 = 4,982,833,152; norms 161 x 8,192 x 2;
    biases of q, k, v 80 x 10,240 x 2.
    """
    found = fit("qwen2.5-72b", hardware="l40s", weights="awq-int4-g128")
    assert found["fits"]
    assert found["smallest_change"] is None
    assert found["changes"] == []
    assert found["asked"]["weights"] == 36_477_665_280 + 4_982_833_152 + 2_637_824 + 1_638_400
    assert found["fewest_devices"] == {"gpus": 1, "tp": 1, "pp": 1} | PLAIN | {"max_batch": 9, "max_context": 11_822}
    fits = {name: row[1] for name, row in rows(found, "formats").items()}
    assert fits == {"bf16": False, "fp8": False, "int8": False, "awq-int4-g128": True, "q4_k_m": False}


def test_deepseek_v3_on_eight_h200() -> None:
    """Its own fp8 fits, 79.3 GiB on each of 139.8; in bf16 it doesn't; with stages, six hold it."""
    found = fit("deepseek-v3", hardware="h200", gpus=8)
    assert found["fits"]
    assert found["asked"]["parallel"]["tp"] == 8
    formats = rows(found, "formats")
    assert formats["fp8-block"][:2] == (85_140_130_848, True)
    assert formats["bf16"][:2] == (169_560_743_936, False)
    least = found["fewest_devices"]
    assert (least["gpus"], least["tp"], least["pp"]) == (6, 2, 3)
    assert "without stages of layers it takes 8 devices: --gpus 8 --tp 8" in found["notes"]


def test_what_fits_nowhere_is_said(told: Callable[[str], None]) -> None:
    """DeepSeek-V3 in bf16, 1,250 GiB: 64 T4 have 932, and TensorRT-LLM isn't told to use the host's memory."""
    told("trtllm")
    found = fit("deepseek-v3", hardware="t4", weights="bf16")
    assert not found["fits"]
    assert found["fewest_devices"] is None
    assert found["smallest_change"] is None
    assert f"it fits on no number of t4 up to {MOST_DEVICES}, however it is spread" in found["notes"]
    assert "no single change makes it fit" in found["notes"]


def test_memory_that_suffices_is_not_enough() -> None:
    """Qwen2.5-72B in groups of 128 on tp 2: a rank would have 29,568 / 2 = 115.5 groups, which engines refuse."""
    found = fit("qwen2.5-72b", hardware="l40s", weights="awq-int4-g128", tp=2)
    assert found["asked"]["fits"]
    assert not found["fits"]
    assert any(note.startswith("engines refuse it: --tp: found 2") for note in found["notes"])
    row = next(row for row in found["formats"] if row["asked"])
    assert (row["fits"], row["bytes"]) == (False, None)
    assert "128" in row["problem"]
    assert found["smallest_change"]["text"] == "It fits on 1 x l40s: --gpus 1 --tp 1."


def test_changes_stand_in_the_order_tried() -> None:
    """Context, batch, cache, weights, host, devices; where the generated tokens alone don't fit, there are fewer of them.

    Llama-3.1-8B on a 24 GB card, 300 sequences of 1 + 256 tokens: cache 300 x 257 x 131,072 = 10.1 GB beside 16.1 of
    weights, in fp8 5.05; usable are 25.4, a process has 0.58.
    """
    found = fit("llama3.1-8b", hardware="rtx-4090", batch=300, prompt=1, generate=256)
    assert [each["option"] for each in found["changes"]] == [
        "--prompt", "--batch", "--cache-dtype", "--weights", "--offload-gb", "--offload-layers", "--gpus",
    ]  # fmt: skip
    assert held("llama3.1-8b", "rtx-4090", batch=300, prompt=1, generate=256)["max_batch"] == 257
    assert found["changes"][1]["options"] == {"batch": 257}
    assert found["smallest_change"]["options"]["generate"] < 256


def test_copies_are_left_out_where_they_must_be() -> None:
    """The change of devices names the options that it replaces."""
    found = fit("llama2-70b", hardware="a100-80gb", dp=2, batch=2)
    last = found["changes"][-1]
    assert last["text"] == "It fits on 2 x a100-sxm: --gpus 2 --tp 2, without --dp."
    assert held("llama2-70b", "a100-80gb", batch=2, **last["options"])["fits"]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what makes plans under the plain rules be told as an engine is."""
    return lambda engine: monkeypatch.setitem(NAMED, "ideal", NAMED.get(engine, OWN))  # type: ignore[arg-type]


def changes_of(found: dict[str, Any]) -> dict[str, tuple[Any, str | None]]:
    """Return value and the engine's flags of the changes, by option."""
    return {each["option"]: (each["value"], each["flags"]) for each in found["changes"]}


def test_the_least_that_the_host_holds() -> None:
    """Mixtral on 24 GB is short of 64.17 GiB: in tenths, in layers of 2.7 GiB with their cache, in experts of 2.6 GiB.

    A layer: 8 x 3 x 4,096 x 14,336 x 2 bytes = 2.625 GiB of experts, 80 MiB of attention and 5 MiB of cache: 24 x 2.708 =
    65.0 GiB, 25 x 2.625 = 65.6 GiB; one fewer don't do.
    """
    found = fit("mixtral-8x7b", hardware="rtx-4090")
    assert [each["option"] for each in found["changes"]] == [
        "--offload-gb", "--offload-layers", "--offload-experts", "--gpus",
    ]  # fmt: skip
    assert changes_of(found) | {"--gpus": None} == {
        "--offload-gb": (64.2, None), "--offload-layers": (24, None), "--offload-experts": (25, None), "--gpus": None,
    }  # fmt: skip
    assert not held("mixtral-8x7b", "rtx-4090", offload_layers=23)["fits"]
    assert not held("mixtral-8x7b", "rtx-4090", offload_experts=24)["fits"]
    assert found["changes"][1]["text"] == (
        "It fits with 24 of 32 layers in the host's memory: --offload-layers 24 (65.0 GiB in all)."
    )


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm", {"--prompt": "--max-model-len {c}", "--batch": "--max-num-seqs {b}", "--cache-dtype": "--kv-cache-dtype fp8"}),
        ("sglang", {"--prompt": "--context-length {c}", "--batch": "--max-running-requests {b}",
                    "--cache-dtype": "--kv-cache-dtype fp8_e4m3"}),
        ("trtllm", {"--prompt": "--max_seq_len {c}", "--batch": "--max_batch_size {b}", "--cache-dtype": "--kv_cache_dtype fp8"}),
    ],
)  # fmt: skip
def test_changes_are_said_as_the_engine_is_told(
    told: Callable[[str], None], engine: str, flags: dict[str, str]
) -> None:
    """Its own flags, for the same sizes; the text has them too."""
    told(engine)
    found = fit("llama3-70b", hardware="a100-80gb", tp=2, batch=64)
    there = found["asked"]
    told = {option: text.format(c=there["max_context"], b=there["max_batch"]) for option, text in flags.items()}
    assert {option: flag for option, (_, flag) in changes_of(found).items() if option in told} == told
    assert all(told[each["option"]] in each["text"] for each in found["changes"] if each["option"] in told)


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm", "--tensor-parallel-size 2"),
        ("sglang", "--tp-size 2"),
        ("trtllm", "--tp_size 2"),
        ("llama.cpp", "--split-mode layer"),
        ("transformers", None),
    ],
)
def test_devices_are_said_as_the_engine_is_told(told: Callable[[str], None], engine: str, flags: str | None) -> None:
    """Llama 2 70B on two cards of 80 GB; llama.cpp divides layers only."""
    told(engine)
    last = fit("llama2-70b", hardware="a100-80gb")["changes"][-1]
    assert last["flags"] == flags
    assert last["text"] == f"It fits on 2 x a100-sxm: {flags or '--gpus 2 --tp 2'}."


def test_a_loaded_engine_is_told_by_its_own_flags() -> None:
    """Llama 3 70B on two cards of 80 GB: its fp8, and a third and fourth card."""
    found = fit("llama3-70b", hardware="a100-80gb", tp=2, batch=64, engine="vllm")
    assert changes_of(found)["--weights"] == ("fp8", "--quantization fp8")
    assert found["changes"][-1]["flags"].startswith("--tensor-parallel-size ")


def test_llama_cpp_counts_what_is_on_the_gpu(told: Callable[[str], None]) -> None:
    """Layers and the head that are not in the host's memory; experts up to a layer; tokens of all sequences; its own formats."""
    told("llama.cpp")
    found = fit("mixtral-8x7b", hardware="rtx-4090", batch=4)
    changes = changes_of(found)
    layers, experts = changes["--offload-layers"], changes["--offload-experts"]
    assert layers[1] == f"--n-gpu-layers {32 + 1 - layers[0]}"
    assert experts[1] == f"--n-cpu-moe {experts[0]}"
    assert "--offload-gb" not in changes
    assert {row["weights"] for row in found["formats"]} == {"bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m"}
    assert {row["cache_dtype"] for row in found["cache_dtypes"]} == {"bf16", "fp16", "q8_0", "q4_0"}
    lite = fit("deepseek-v2-lite", hardware="rtx-4090", batch=4)
    count, flag = changes_of(lite)["--offload-experts"]
    assert flag == f"--n-cpu-moe {count + 1}"  # its first layer has none
    small = fit("llama3.1-8b", hardware="rtx-4090", batch=4, prompt=16_000, generate=256)
    longest = small["asked"]["max_context"]
    assert changes_of(small)["--prompt"][1] == f"--ctx-size {4 * longest}"
    most = small["asked"]["max_batch"]
    assert changes_of(small)["--batch"][1] == f"--ctx-size {most * 16_256} --parallel {most}"
    assert changes_of(small)["--cache-dtype"] == ("q4_0", "--cache-type-k q4_0 --cache-type-v q4_0")


def test_all_ways_to_use_eight_devices() -> None:
    """Qwen2.5-7B has 28 heads: tp 8 is refused; stages have the table first and the head last; 4 key-value heads on 4 ranks.

    A layer: 3,584 x (3,584 + 2 x 512) x 2 + 4,608 biases... so sums are compared: with one rank they are the model's.
    """
    found = fit("qwen2.5-7b", hardware="l4", gpus=8)
    rows_ = {(row["tp"], row["pp"], row["dp"]): row for row in found["layouts"]}
    assert {key for key, row in rows_.items() if row["problem"]} == {(8, 1, 1)}
    assert "28 heads" in rows_[8, 1, 1]["problem"]
    table = 152_064 * 3584 * 2
    for (tp, pp, dp), row in rows_.items():
        if row["problem"]:
            continue
        assert tp * pp * dp == 8
        assert [stage["embedding"] for stage in row["stages"]] == [table // tp] + [0] * (pp - 1)
        assert [stage["head"] for stage in row["stages"]] == [0] * (pp - 1) + [table // tp]
        assert sum(stage["layers"] for stage in row["stages"]) == 28
        assert row["copies_of_cache"] == 1
        there = held("qwen2.5-7b", "l4", tp=tp, pp=pp, dp=dp)
        assert row["fits"] == there["fits"]
        assert max(stage["total"] for stage in row["stages"]) == there["total"]
        if tp == 1:
            assert sum(stage["weights"] for stage in row["stages"]) == planner.plan("qwen2.5-7b").weights["bytes"]


@pytest.mark.parametrize(
    ("config", "options", "sizes"),
    [
        ("qwen2.5-7b", {}, [1, 2, 4]),
        ("llama3-8b", {}, [1, 2, 4, 8, 16, 32]),
        ("qwen2.5-72b", dict(weights="awq-int4-g128"), [1]),  # 29,568 channels are 231 = 3 x 7 x 11 groups
    ],
)
def test_legal_ranks(config: str, options: dict[str, Any], sizes: list[int]) -> None:
    """Heads, channels and groups of weights bound them."""
    assert fit(config, hardware="h200", **options)["legal_tp"] == sizes


def test_caches_that_ranks_hold_several_times() -> None:
    """8 key-value heads on 16 ranks: 2 times; latents on 8: 8 times; both are noted."""
    (wide,) = [row for row in fit("llama3-8b", hardware="l4", gpus=16)["layouts"] if row["tp"] == 16]
    assert wide["copies_of_cache"] == 2
    assert wide["notes"] == ["8 key-value heads on 16 ranks: each is held 2 times, weights and cache"]
    (latent,) = [row for row in fit("deepseek-v3", hardware="h200", gpus=8)["layouts"] if row["tp"] == 8]
    assert latent["copies_of_cache"] == 8
    assert latent["notes"] == ["cache rows of 576 elements have no heads to divide: each of 8 ranks holds them"]


def test_llama_cpp_is_not_told_to_divide_heads(told: Callable[[str], None]) -> None:
    """Two devices are two stages; rows with tp or copies say so, and who asks for them is told."""
    told("llama.cpp")
    found = fit("llama3-8b", hardware="l4", gpus=2)
    assert (found["asked"]["parallel"]["tp"], found["asked"]["parallel"]["pp"]) == (1, 2)
    no = "ideal has no flags for {} 2: it knows pp. choose others."
    assert {(row["tp"], row["pp"]): row["problem"] for row in found["layouts"]} == {
        (1, 1): "--dp: " + no.format("dp"), (1, 2): None, (2, 1): "--tp: " + no.format("tp"),
    }  # fmt: skip
    asked = fit("llama3-8b", hardware="l4", tp=2)
    assert not asked["fits"]
    assert "engines refuse it: --tp: " + no.format("tp") in asked["notes"]


@pytest.mark.parametrize(
    ("engine", "sizes", "fits"),
    [
        ("vllm", dict(tp=2, ep=2), True),
        ("vllm", dict(tp=2, dp=2, ep=2), False),
        ("vllm", dict(tp=2, dp=2, ep=4), True),
        ("sglang", dict(tp=4, ep=2), True),
        ("sglang", dict(tp=2, dp=2, ep=4), False),
        ("trtllm", dict(tp=4, dp=2), False),
        ("transformers", dict(tp=2, dp=2, ep=2, cp=2), True),
    ],
)
def test_ranks_of_experts_that_engines_know(
    told: Callable[[str], None], engine: str, sizes: dict[str, int], fits: bool
) -> None:
    """All devices of a stage divide experts in vLLM, some of tp in SGLang and TensorRT-LLM."""
    told(engine)
    found = fit("mixtral-8x7b", hardware="h200", batch=2, **sizes)
    assert found["fits"] is fits


def test_copies_divide_sequences() -> None:
    """64 sequences of 7,256 rows on T4: 4 ranks hold a quarter of the weights, 3.7 GiB, and of 21.3 sequences' caches."""
    found = fit("llama3-8b", hardware="t4", batch=64, prompt=7000)
    least = found["fewest_devices"]
    assert (least["gpus"], least["tp"], least["dp"]) == (12, 4, 3)
    assert found["changes"][-1]["text"] == "It fits on 12 x t4: --gpus 12 --tp 4 --dp 3."
    assert least["max_batch"] >= 64


def test_experts_that_would_be_cut_are_divided_whole() -> None:
    """Experts of 768 in blocks of 128: 6 blocks aren't divided by 4; with --ep 4 each rank has whole ones."""
    config = dict(
        model_type="qwen3_moe", hidden_size=2048, intermediate_size=6144, num_hidden_layers=48, num_attention_heads=32,
        num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
        vocab_size=151936, max_position_embeddings=40960, tie_word_embeddings=False, torch_dtype="bfloat16",
    )  # fmt: skip
    found = fit(config, hardware="t4", weights="fp8-block", batch=32, prompt=2000)
    least = found["fewest_devices"]
    assert held(
        config,
        "t4",
        weights="fp8-block",
        batch=32,
        prompt=2000,
        **{k: least[k] for k in ("tp", "pp", "ep", "dp", "cp")},
    )["fits"]
    asked = fit(config, hardware="t4", weights="fp8-block", tp=4)
    assert any("divide whole experts with --ep" in note for note in asked["notes"])
    assert not asked["fits"]
    assert fit(config, hardware="t4", weights="fp8-block", tp=4, ep=4)["fits"]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (("--config", "palm-8b", "--prefix", "100"), dict(config="palm-8b", prefix=100)),
        (("--config", "longformer-base", "--global-tokens", "8"), dict(config="longformer-base", global_tokens=8)),
        (("--config", "switch-base-8", "--capacity-factor", "1.5"), dict(config="switch-base-8", capacity_factor=1.5)),
    ],
)
def test_the_command_takes_all_options_of_the_workload(words: tuple[str, ...], options: dict[str, Any]) -> None:
    """As the main job."""
    done = run(*words, "--hardware", "a100-80gb", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["workload"]
    assert found.items() >= {key: value for key, value in options.items() if key != "config"}.items()


@pytest.mark.parametrize(("most_", "enough", "found"), [(9, 5, 5), (9, 1, 1), (9, 9, 9), (9, 10, None), (0, 0, None)])
def test_the_search_finds_the_least(most_: int, enough: int, found: int | None) -> None:
    """Bisection; None where not even the most is enough."""
    assert least_(most_, lambda n: n >= enough) == found


@settings(deadline=None, max_examples=12)
@given(
    config=st.sampled_from(
        ["llama3.1-8b", "gpt2", "mixtral-8x7b", "gemma3-1b", "t5-small", "bert-base", "qwen2.5-72b"]
    ),
    hardware=st.sampled_from(["rtx-4090", "a100-80gb", "t4"]),
    batch=st.integers(1, 600),
    prompt=st.integers(1, 500),
    weights=st.sampled_from([None, "fp8", "awq-int4-g128"]),
)
def test_laws(config: str, hardware: str, batch: int, prompt: int, weights: str | None) -> None:
    """The fewest devices fit and no legal sizes of fewer do; every change, applied, fits; rows are those of plans."""
    options: dict[str, Any] = dict(batch=batch, prompt=prompt, weights=weights)
    model = planner.load(config)
    found = fit(model, hardware=hardware, **options)
    assert found["fits"] == held(model, hardware, **options)["fits"]
    least = found["fewest_devices"]
    if least:
        sizes = {key: least[key] for key in ("gpus", "tp", "pp", "ep", "dp", "cp")}
        there = held(model, hardware, **options, **sizes)
        assert there["fits"]
        assert {key: there[key] for key in ("max_batch", "max_context")} == {
            key: least[key] for key in ("max_batch", "max_context")
        }
    for gpus in range(1, least["gpus"] if least else 3):
        for size in legal_sizes(model, gpus, resolve(model, weights=weights)):
            if size.dp == 1 and not size.problem:
                assert not held(model, hardware, **options, tp=size.tp, pp=size.pp)["fits"]
    assert (found["smallest_change"] is None) == (not found["changes"])
    for change in found["changes"]:
        applied = options | change["options"]
        assert held(model, hardware, **applied)["fits"], change
        if change["option"] == "--batch":
            assert not held(model, hardware, **applied | {"batch": applied["batch"] + 1})["fits"]
        if change["option"] in {"--offload-layers", "--offload-experts"}:
            key = change["option"][2:].replace("-", "_")
            assert not held(model, hardware, **applied | {key: applied[key] - 1})["fits"]
        if change["option"] == "--prompt":
            assert not held(model, hardware, **applied | {"prompt": applied["prompt"] + 1})["fits"]
    for row in (*found["formats"], *found["cache_dtypes"]):
        name = "weights" if "weights" in row else "cache_dtype"
        there = held(model, hardware, **options | {name: row[name]})
        assert (row["fits"], row["max_batch"]) == (there["fits"], there["max_batch"])
    assert {*OWN.compared} <= rows(found, "formats").keys()
    assert {*OWN.cached} <= rows(found, "cache_dtypes").keys()


def run(*words: str) -> Any:
    """Run the command, 80 columns wide."""
    return runner.invoke(app, ["fit", *words], env={"COLUMNS": "80"})


def test_json_is_what_the_call_returns() -> None:
    """With the same options."""
    done = run("--config", "mixtral-8x7b", "--hardware", "a100-80gb", "--batch", "4", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == fit("mixtral-8x7b", hardware="a100-80gb", batch=4)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--config", "llama3.1-8b", "--hardware", "rtx-4090", "--prompt", "130816"), "DOES NOT FIT"),
        (("--config", "llama3.1-8b", "--hardware", "rtx-4090", "--prompt", "130816"), "--prompt 42536"),
        (("--config", "deepseek-v3", "--hardware", "t4", "--weights", "bf16"), "Fewest devices: none"),
        (
            ("--config", "qwen2.5-72b", "--hardware", "l40s", "--weights", "awq-int4-g128", "--tp", "2"),
            "engines refuse",
        ),
        (("--config", "gpt2", "--hardware", "t4"), "gpt2 on 1 x t4: fits"),
    ],
)
def test_the_report_fits_80_columns(words: tuple[str, ...], part: str) -> None:
    """The verdict first; nothing is cut."""
    done = run(*words)
    assert done.exit_code == 0
    assert part in done.stdout
    assert "…" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


@pytest.mark.parametrize(("gpus", "code"), [("1", 1), ("2", 0)])
def test_require_fit(gpus: str, code: int) -> None:
    """Exit code 1 where it doesn't fit."""
    words = ("--config", "llama2-70b", "--hardware", "a100-80gb", "--gpus", gpus, "--require-fit")
    assert run(*words).exit_code == code


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (dict(hardware=None), "--hardware"),
        (dict(hardware="h1000"), "--hardware"),
        (dict(hardware="h100", tp=3), "--tp"),
        (dict(hardware="h100", batch=0), "--batch"),
        (dict(hardware="h100", weights="fp9"), "--weights"),
        (dict(hardware="h100", cache_dtype="fp9"), "--cache-dtype"),
        (dict(hardware="h100", colour="red"), "colour"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], part: str) -> None:
    """With where and why."""
    with pytest.raises(PlanError, match=part):
        fit("llama3.1-8b", **options)


def test_a_loaded_model_takes_no_options_of_its_own() -> None:
    """They were load's."""
    with pytest.raises(PlanError, match=r"load\(\)"):
        fit(planner.load("gpt2"), hardware="t4", engine="transformers")


def test_a_larger_share_of_the_device() -> None:
    """42,256 tokens of 128 KiB are 112 MiB more than 92 % of a card leaves, and 93 % is 242 MiB more."""
    found = fit("llama3.1-8b", hardware="rtx-4090", engine="vllm", prompt=42000, generate=256)
    change = found["smallest_change"]
    assert (change["option"], change["value"]) == ("--engine-set", "gpu_memory_utilization=0.93")
    assert change["flags"] == "--gpu-memory-utilization 0.93"
    assert -found["asked"]["headroom"] < 25383256719 // 100
    again = fit("llama3.1-8b", hardware="rtx-4090", engine="vllm", prompt=42000, generate=256, **change["options"])
    assert again["fits"]


def test_an_engine_that_does_not_start_for_the_longest_request() -> None:
    """The workload fits, the request that the engine is told to expect doesn't: it doesn't fit, and the longest that does is said."""
    found = fit("llama3.1-8b", hardware="rtx-4090", engine="vllm", engine_set={"max_model_len": 100000})
    assert found["asked"]["headroom"] > 0
    assert not found["fits"]
    change = found["smallest_change"]
    assert (change["option"], change["value"]) == ("--engine-set", "max_model_len=41344")
    assert "41,344 tokens" in found["asked"]["engine"]["problem"]
