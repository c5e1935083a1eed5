"""What vLLM's start-up log says of a cache, against what the planner says; `remake.py` beside this makes the facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import planner
from planner import PlanError
from planner.api import load
from planner.engines import vllm
from planner.engines.capacity import Asked
from tests.engines.remake import CASES, DEEPSEEK, FLAGS, GEMMA3, GPT_OSS, LLAMA, QWEN3_NEXT

GIB = 2**30
FACTS = [json.loads(file.read_text()) for file in sorted((Path(__file__).parent / "facts").glob("*.json"))]
REFUSED = [fact for fact in FACTS if "longest" in fact]
STARTED = [fact for fact in FACTS if "longest" not in fact]
GIVEN = sorted((Path(__file__).parents[3] / "shared" / "cases" / "vllm_tiny").glob("*.json"))
NOT_GIVEN = [pytest.param(None, marks=pytest.mark.skip("../shared/cases is not beside this checkout"), id="given")]

OPTIONS = {
    "kv_cache_dtype": "cache_dtype", "enable_prefix_caching": "prefix_caching", "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp", "mamba_ssm_cache_dtype": "state_dtype",
}  # fmt: skip
"""What vLLM calls otherwise."""

KINDS = {
    "FullAttentionSpec": "full", "SlidingWindowSpec": "sliding", "ChunkedLocalAttentionSpec": "chunked",
    "MLAAttentionSpec": "latent", "MambaSpec": "mamba", "CrossAttentionSpec": "cross",
}  # fmt: skip

ORDER = ("layers", "kind", "block_size", "page_bytes")
"""Keys of a group; groups themselves come in the order in which an engine makes a layer's parts."""

SMALL: dict[str, Any] = {"device": "cpu", "cache_memory_bytes": GIB, "max_model_len": 4096, "max_num_seqs": 8}


def capacity(config: dict[str, Any] | str, **options: Any) -> dict[str, Any]:
    """Return what a small engine on a CPU would say."""
    return planner.engine_capacity(config, **{**SMALL, **options})


def asked(fact: dict[str, Any]) -> dict[str, Any]:
    """Return what the planner is asked, for an engine's flags."""
    flags = {OPTIONS.get(flag, flag): value for flag, value in fact["flags"].items() if flag != "kv_cache_memory_bytes"}
    return {
        "version": fact["engine"].split()[1], "device": fact["device"], "cache_memory_bytes": fact["cache_memory_bytes"], **flags,
    }  # fmt: skip


@pytest.mark.parametrize("fact", STARTED, ids=lambda fact: fact["name"])
def test_what_an_engine_printed(fact: dict[str, Any]) -> None:
    """Tokens, concurrency, blocks and groups are those of the engine, exactly."""
    said = planner.engine_capacity(fact["config"], **asked(fact))
    groups = [
        {**{key: group[key] for key in ("layers", "block_size", "page_bytes")}, "kind": KINDS[group["spec"]]}
        for group in fact["groups"]
    ]
    keys = ("tokens", "concurrency", "blocks", "block_size")
    assert {key: said[key] for key in keys} == {key: fact[key] for key in keys}
    assert sorted(said["groups"], key=str) == sorted(({key: group[key] for key in ORDER} for group in groups), key=str)


@pytest.mark.parametrize("fact", REFUSED, ids=lambda fact: fact["name"])
def test_what_an_engine_refused(fact: dict[str, Any]) -> None:
    """The longest request that fits, and what was needed and there, are those that the engine named."""
    options = asked(fact)
    assert vllm.longest(load(fact["config"]), Asked(**options)) == fact["longest"]
    with pytest.raises(PlanError) as error:
        planner.engine_capacity(fact["config"], **options)
    figures = (f"({fact['needed_gib']} GiB)", f"({fact['available_gib']} GiB)", f"fits is {fact['longest']:,} tokens")
    assert all(figure in str(error.value) for figure in figures)


def test_facts_are_those_of_the_cases() -> None:
    """Every stored fact has a case that remakes it, with the same config and flags."""
    stored = {fact["name"]: (fact["config"], fact["flags"]) for fact in FACTS}
    assert stored == {name: (config, {**FLAGS, **flags}) for name, (config, flags) in CASES.items()}


@pytest.mark.parametrize("file", GIVEN or NOT_GIVEN, ids=lambda file: file.stem)
def test_what_other_engines_printed(file: Path) -> None:
    """The same for facts that lie beside the checkout."""
    fact = json.loads(file.read_text())
    said = capacity(fact["config"], max_model_len=fact["max_model_len"], max_num_seqs=fact["max_num_seqs"])
    assert (said["tokens"], said["concurrency"]) == (fact["tokens"], fact["concurrency"])
    if "groups" in fact:
        assert said["blocks"] == fact["groups"]["num_blocks"]
        groups = [(group["layers"], group["page_bytes"], group["block_size"]) for group in said["groups"]]
        assert groups == [(group["layers"], group["page"], group["block"]) for group in fact["groups"]["groups"]]


LOGS = [
    ("llama3.1-8b", 58.11, {}, 476016, 58.11),
    ("llama3.1-8b", 67.44, {"tp": 4}, 2209792, 269.75),
    ("llama3.1-8b", 58.11, {"cache_dtype": "fp8"}, 952032, 116.21),
    ("llama3.1-8b", 42.80, {"dtype": "float32"}, 175296, 21.40),
    ("deepseek-v2-lite", 43.61, {}, 1505552, 183.78),
    ("gemma2-2b", 66.47, {}, 670160, 81.73),
    ("gemma3-27b-text", 19.53, {}, 36560, 4.46),
]
"""vLLM 0.19.0 on an H100, max_model_len 8192 (github.com/llm-d-incubation/llm-d-planner, accuracy/results/v0.19.0)."""


@pytest.mark.parametrize(("model", "gib", "flags", "tokens", "concurrency"), LOGS)
def test_logs_of_an_older_version(
    model: str, gib: float, flags: dict[str, Any], tokens: int, concurrency: float
) -> None:
    """Tokens and concurrency agree as far as the memory is printed, to 0.01 GiB."""
    said = planner.engine_capacity(
        model, version="v0.19.0", device="cuda", cache_memory_bytes=int(gib * GIB), max_model_len=8192, **flags
    )
    assert said["tokens"] == pytest.approx(tokens, rel=1e-3)
    assert said["concurrency"] == pytest.approx(concurrency, rel=1e-3, abs=0.01)


def test_tokens_printed_by_an_older_version() -> None:
    """Until 0.20 tokens are those of a group's share of the blocks; from 0.21, concurrency times the length."""
    old, new = (capacity(GEMMA3, version=version, max_num_batched_tokens=256) for version in ("0.20.2", "0.21.0"))
    assert old["tokens"] == old["blocks"] // 6 * 128
    assert new["tokens"] == int(new["blocks"] / (32 + 5 * (6 + 1)) * 4096)


def test_hybrids_of_an_older_version() -> None:
    """Before 0.26 a request holds one state a group, and its page isn't aligned to Mamba-2's checkpoint."""
    old, new = (capacity(QWEN3_NEXT, device="cuda", version=version) for version in ("0.25.0", "0.26.0"))
    assert old["groups"][0]["kind"] == "mamba"
    assert old["concurrency"] > new["concurrency"]
    again = capacity(QWEN3_NEXT, device="cuda", version="0.25.0", prefix_caching=True)
    assert again["concurrency"] == new["concurrency"]


LITE = {"version": "", "cache_memory_bytes": 10 * GIB, "max_model_len": 8192}


@pytest.mark.parametrize(
    ("version", "bytes_per_token"),
    [
        ("0.6.6", 27 * 16 * (256 + 256) * 2),  # keys and values of 16 heads, padded from 192
        ("0.7.0", 27 * 16 * (192 + 192) * 2),
        ("0.7.1", 27 * (512 + 64) * 2),  # one latent
        ("0.7.3", 27 * (512 + 64 + 64) * 2),  # 1,152 bytes are padded to 1,280
        ("0.8.0", 27 * (512 + 64) * 2),
    ],
)
def test_latents_of_older_versions(version: str, bytes_per_token: int) -> None:
    """MLA's latents are kept from 0.7.1 on, 27 layers of DeepSeek-V2-Lite."""
    said = planner.engine_capacity("deepseek-v2-lite", **{**LITE, "version": version})
    assert said["bytes_per_token"] == bytes_per_token
    assert said["tokens"] == 10 * GIB // (16 * bytes_per_token) * 16
    assert said["concurrency"] == float(f"{said['tokens'] / 8192:.2f}")


def test_windows_of_older_versions() -> None:
    """One table holds full rows of all 26 layers of Gemma 2; from 0.9.1 on two groups of 13 share the blocks."""
    old, new = (planner.engine_capacity("gemma2-2b", **{**LITE, "version": version}) for version in ("0.9.0", "0.9.1"))
    row = 2 * 4 * 256 * 2
    assert [(group["layers"], group["page_bytes"]) for group in old["groups"]] == [(26, 16 * row)]
    assert [(group["layers"], group["page_bytes"]) for group in new["groups"]] == [(13, 16 * row)] * 2
    assert old["blocks"] == 10 * GIB // (26 * 16 * row)
    assert new["blocks"] == 10 * GIB // (13 * 16 * row)


def test_lengths_of_older_versions() -> None:
    """Before 0.6.4 Gemma 2 is served up to its window of 4,096 tokens."""
    options = {"cache_memory_bytes": 10 * GIB, "version": "0.6.3"}
    assert planner.engine_capacity("gemma2-2b", **options) == planner.engine_capacity(
        "gemma2-2b", **options, max_model_len=4096
    )
    with pytest.raises(PlanError, match="4,096"):
        planner.engine_capacity("gemma2-2b", **options, max_model_len=8192)


def test_a_last_block_of_older_versions() -> None:
    """Before 0.9.1 concurrency is tokens / length; then a request takes whole blocks, 3 for 33 tokens."""
    length = {"cache_memory_bytes": GIB, "max_model_len": 33, "max_num_seqs": 8}
    old, new = (planner.engine_capacity("llama3.1-8b", version=version, **length) for version in ("0.9.0", "0.9.1"))
    assert (old["tokens"], old["concurrency"]) == (8192, float(f"{8192 / 33:.2f}"))
    assert (new["tokens"], new["concurrency"]) == (8192, float(f"{512 / 3:.2f}"))


def test_states_of_older_versions() -> None:
    """Until 0.10.1 states lie outside of the blocks: attention's rows are all there is."""
    config, _ = CASES["granitemoehybrid"]
    said = capacity(config, device="cuda", version="0.10.0")
    assert said["groups"] == [{"layers": 2, "kind": "full", "block_size": 16, "page_bytes": 16 * 2 * 2 * 32 * 2}]
    with pytest.raises(PlanError, match="keeps no rows"):
        capacity(CASES["mamba2"][0], device="cuda", version="0.10.0")


def test_stages_of_older_versions() -> None:
    """Before 0.8 the last stage takes all further layers: 6 on 4 stages are 1, 1, 1 and 3."""
    old, new = (capacity(LLAMA, device="cuda", version=version, pp=4) for version in ("0.7.3", "0.8.0"))
    assert (old["groups"][0]["layers"], new["groups"][0]["layers"]) == (3, 2)


def test_packed_latents() -> None:
    """An 8-bit cache of chosen latents has 656 bytes a token on a GPU, beside 132 of an indexer's key."""
    config = {
        **DEEPSEEK, "model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"], "kv_lora_rank": 512,
        "qk_rope_head_dim": 64, "index_head_dim": 128, "index_n_heads": 4, "index_topk": 64, "q_lora_rank": 64,
    }  # fmt: skip
    wide, packed = (capacity(config, device="cuda", cache_dtype=dtype)["bytes_per_token"] for dtype in ("auto", "fp8"))
    assert capacity(config, device="cuda", cache_dtype="fp8_ds_mla")["bytes_per_token"] == packed
    assert (wide, packed) == (6 * (576 * 2 + 132), 6 * (656 + 132))
    assert capacity(config, device="cuda", version="0.11.0")["bytes_per_token"] == packed


def test_longest_of_an_older_version() -> None:
    """16 GiB for 131,072 tokens of Llama 3.1 8B are needed, 0.71 are there: 363 blocks of 16 tokens and 131,072 bytes each."""
    asked = Asked(int(0.71 * GIB), version="0.9.2", max_model_len=131072)
    assert vllm.longest(load("llama3.1-8b"), asked) == int(0.71 * GIB) // (16 * 131072) * 16 == 5808


@pytest.mark.parametrize("name", CASES)
def test_twice_the_memory(name: str) -> None:
    """Twice the memory holds at least twice the blocks, and at most one more."""
    config, _ = CASES[name]
    longest = 448 if name == "whisper" else 4096
    once, twice = (capacity(config, cache_memory_bytes=size, max_model_len=longest) for size in (GIB, 2 * GIB))
    assert 0 <= twice["blocks"] - 2 * once["blocks"] <= 1


def test_an_8_bit_cache_doubles_tokens() -> None:
    """Rows of half the width, twice the tokens."""
    plain, half = capacity(LLAMA), capacity(LLAMA, cache_dtype="fp8")
    assert half["bytes_per_token"] * 2 == plain["bytes_per_token"]
    assert half["blocks"] - 2 * plain["blocks"] in {0, 1}


def test_ranks_share_heads() -> None:
    """As many ranks as heads divide the bytes of a token; further ones repeat heads."""
    tokens = {tp: capacity(LLAMA, tp=tp)["bytes_per_token"] for tp in (1, 2, 4)}
    assert tokens[1] == 2 * tokens[2] == 2 * tokens[4]


def test_ranks_repeat_latents() -> None:
    """Latents are whole on every rank."""
    config, _ = CASES["deepseek_v3_block_16"]
    assert capacity(config, tp=8)["bytes_per_token"] == capacity(config)["bytes_per_token"]


def test_stages_share_layers() -> None:
    """The fullest stage decides: 6 layers on 4 stages are 1, 2, 2 and 1."""
    whole, four = capacity(LLAMA), capacity(LLAMA, pp=4)
    assert four["bytes_per_token"] * 3 == whole["bytes_per_token"]
    assert four["groups"] == [{"layers": 2, "kind": "full", "block_size": 128, "page_bytes": 32768}]
    assert len(capacity(GPT_OSS, pp=3)["groups"]) == len(capacity(GPT_OSS)["groups"]) == 2


def test_batches_in_flight() -> None:
    """On a GPU a window makes room for two steps, since 0.26; on a CPU for one."""
    options = {"max_num_batched_tokens": 256, "block_size": 128}
    cpu, gpu = (capacity(GEMMA3, device=device, **options)["concurrency"] for device in ("cpu", "cuda"))
    assert cpu == pytest.approx(32768 / (32 + 5 * 7), abs=0.005)
    assert gpu == pytest.approx(32768 / (32 + 5 * 9), abs=0.005)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "lmdeploy"}, ("engine", "lmdeploy", "vllm, sglang, trtllm")),
        ({"version": "0.99"}, ("version", "0.99", "0.32")),
        ({"version": "0.2.7"}, ("version", "0.2.7", "0.3 to 0.32")),
        ({"version": "0.10.0"}, ("version", "0.10.0", "CPU", "0.11")),
        ({"version": "new"}, ("version", "new")),
        ({"device": "tpu"}, ("device", "tpu", "cuda")),
        ({"cache_dtype": "q4_0"}, ("cache_dtype", "q4_0", "fp8")),
        ({"cache_dtype": "fp8_ds_mla"}, ("cache_dtype", "fp8_ds_mla", "say fp8")),
        ({"tp": 3}, ("tp", "3", "2 key-value heads")),
        ({"pp": 7}, ("pp", "7", "6 layers")),
        ({"block_size": 0}, ("block_size", "0")),
        ({"cache_memory_bytes": 1000}, ("cache_memory_bytes", "1,000", "4,096 tokens")),
    ],
)
def test_refusals(options: dict[str, Any], words: tuple[str, ...]) -> None:
    """A flag that the engine refuses is refused, with what was found and what is allowed."""
    with pytest.raises(PlanError) as error:
        capacity(LLAMA, **options)
    assert all(word in str(error.value) for word in words)


def test_a_cache_without_a_spec() -> None:
    """What vLLM keeps for xLSTM isn't known, and BERT keeps nothing."""
    with pytest.raises(PlanError, match="MatrixMemory"):
        capacity({"model_type": "xlstm"})
    with pytest.raises(PlanError, match="keeps no cache"):
        capacity("bert-base")


@pytest.mark.parametrize("text", ["v0.19.0", "0.19", "0.19.1rc1", "0.19.x", "0.19.0 dev", "0.19-ish"])
def test_versions_as_people_write_them(text: str) -> None:
    """The numbers count, whatever stands behind them: 20 GiB // (128 KiB x 16) = 10,240 blocks of 16."""
    said = planner.engine_capacity("llama3-8b", version=text, cache_memory_bytes=20 * 2**30, max_model_len=8192)
    assert said["tokens"] == 163840
