"""SGLang's pools beside what it printed, and the share of a device that it takes.

Facts: tests/engines/facts_other, one start-up log each, with its source; sizes are what SGLang calls GB, which are GiB.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import PlanError, engine_capacity, load, plan
from planner.engines.sglang import Flags, Machine, fraction, slot_bytes

GIB = 2**30

FACTS = sorted((Path(__file__).parent / "facts_other").glob("sglang_*.json"))


def read(path: Path) -> dict[str, Any]:
    """Return a fact."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def model_of(fact: dict[str, Any], **flags: Any) -> Any:
    """Return the model of a fact's log, with the engine of its version."""
    config, changed = fact["config"], {}
    if "base" in config:
        config, changed = config["base"], config["set"]
    return load(config, engine=f"{fact['engine']}@{fact['version']}", engine_set=flags, set=changed)


def made(fact: dict[str, Any], memory: int, **flags: Any) -> dict[str, Any]:
    """Return what SGLang makes of memory with a fact's model."""
    asked = {"version": fact["version"], **fact["asked"], "cache_memory_bytes": memory}
    return engine_capacity(model_of(fact, **flags), engine=fact["engine"], **asked)


@pytest.mark.parametrize("path", FACTS, ids=lambda path: path.stem)
def test_sizes(path: Path) -> None:
    """Bytes of a token, and the sizes of pools of the printed tokens, to the printed digits."""
    fact = read(path)
    found = made(fact, 2**50)
    assert found["bytes_per_token"] == fact["bytes_per_token"]
    groups = [each for each in found["groups"] if each["kind"] != "mamba"]
    page = found["block_size"]
    for group, printed in zip(groups, fact["pools"], strict=True):
        assert {"K", "V"} <= group.keys() or "KV" in printed
        for name in {"K", "V", "KV"} & printed.keys():
            assert abs(group[name] * (printed["tokens"] + page) / (group["tokens"] + page) - printed[name]) <= 0.005


@pytest.mark.parametrize("path", [path for path in FACTS if "after" in read(path)], ids=lambda path: path.stem)
def test_tokens(path: Path) -> None:
    """Tokens and slots from free memory before and after loading, both printed to 0.01."""
    fact = read(path)
    spare = fact["before"] * (1 - fact["fraction"]) + fact.get("aside", 0)
    found = [made(fact, int((fact["after"] + off - spare) * GIB)) for off in (-0.007, 0.007)]
    assert found[0]["tokens"] <= fact["pools"][0]["tokens"] <= found[1]["tokens"]
    if "slots" in fact:
        slots = [next(each["slots"] for each in one["groups"] if each["kind"] == "mamba") for one in found]
        assert slots[0] <= fact["slots"] <= slots[1]
    if "requests" in fact:
        assert found[1]["max_running_requests"] == fact["requests"]


def test_two_pools() -> None:
    """A window's pool has 0.8 of the tokens, both in whole pages: 12.13 GiB // (5 x 4,096 + 0.8 x 25 x 8,192) of Gemma 4."""
    fact = read(Path(__file__).parent / "facts_other" / "sglang_diffusiongemma.json")
    groups = made(fact, int(12.13 * GIB))["groups"]
    assert [each["tokens"] for each in groups] == [each["tokens"] for each in fact["pools"]]
    half = made(fact, int(12.13 * GIB), swa_full_tokens_ratio=0.5)["groups"]
    assert [each["tokens"] for each in half] == [105984, 52992]  # 12.13 GiB // (20,480 + 102,400) = 105,993
    whole = made(fact, int(12.13 * GIB), disable_hybrid_swa_memory=True)["groups"]
    assert [each["tokens"] for each in whole] == [57600]  # 12.13 GiB // 225,280 = 57,815


@pytest.mark.parametrize("name", ["sglang_granite_4_h_micro", "sglang_qwen3_5_27b"])
def test_states(name: str) -> None:
    """Sizes of states: one slot more than is printed."""
    fact = read(Path(__file__).parent / "facts_other" / f"{name}.json")
    convolutions, states = slot_bytes(model_of(fact), 1, Flags())
    assert round((fact["slots"] + 1) * convolutions / GIB, 2) == fact["convolutions"]
    assert round((fact["slots"] + 1) * states / GIB, 2) == fact["states"]


def test_slots() -> None:
    """Slots: as asked, as requests where no prefix is kept, by their share; and what is left for rows."""
    fact = read(Path(__file__).parent / "facts_other" / "sglang_qwen3_5_27b.json")
    slot = sum(slot_bytes(model_of(fact), 1, Flags()))
    rows = 65536

    def tokens(**flags: Any) -> tuple[int, int]:
        found = made(fact, 40 * GIB, **flags)
        return found["groups"][-1]["slots"], found["tokens"]

    assert tokens(max_mamba_cache_size=10) == (10, (40 * GIB - 10 * slot) // rows)
    assert tokens(max_running_requests=7, disable_radix_cache=True) == (7, (40 * GIB - 7 * slot) // rows)
    equal = tokens(mamba_full_memory_ratio=1)
    assert equal == (20 * GIB // slot - 1, (40 * GIB - equal[0] * slot) // rows)


# Of H100 (81,559 MiB), as start-up logs print them: 0.835 in notebooks of SGLang's documents of February 2026 with at most 128
# requests, 0.83 from May 2026 on, when prompts run as graphs too (0.5.10); 0.828 with two ranks (sgl-project/sglang/issues/29092).
# The table by ranks up to 0.4.5: QwQ-32B's log has 0.85, DeepSeek-R1-Distill-Qwen-7B's 0.88 (facts_other).
FRACTIONS = [
    ((0, 5, 9), 81559, 1, {}, 0.835),
    ((0, 5, 11), 81559, 1, {}, 0.83),
    ((0, 5, 14), 81559, 2, {}, 0.828),
    ((0, 4, 3), 24564, 1, {}, 0.88),
    ((0, 4, 3), 24564, 2, {}, 0.87),
    ((0, 4, 3), 23034, 4, {}, 0.85),
    ((0, 4, 3), 81559, 8, {}, 0.81),
    ((0, 4, 3), 81559, 16, {}, 0.79),
    ((0, 5, 9), 81559, 1, {"cuda_graph_max_bs": 8}, 0.841),  # 512 + 12,288 + 128 + 16 = 12,944
    ((0, 5, 9), 24576, 1, {}, 0.847),  # 512 + 1.5 x 2,048 + 128 + 2 x 24 = 3,760
    ((0, 5, 9), 81559, 1, {"chunked_prefill_size": 4096}, 0.874),  # at least 10 GiB
]


@pytest.mark.parametrize(("version", "mib", "tp", "flags", "said"), FRACTIONS)
def test_fraction(version: Any, mib: float, tp: int, flags: dict[str, Any], said: float) -> None:
    """The default of each version, by device, ranks and flags."""
    assert fraction(Machine(version, Flags(**flags), tp, tp, mib)) == said


@pytest.mark.parametrize(("name", "hardware"), [("sglang_qwq_32b_l4", "l4"), ("sglang_r1_distill_qwen_7b", "rtx-3090")])
def test_reserve(name: str, hardware: str) -> None:
    """Weights and pools from flags alone: what was printed lies between the least and the most."""
    fact = read(Path(__file__).parent / "facts_other" / f"{name}.json")
    found = plan(model_of(fact), hardware=hardware, prompt=100, generate=100, **fact["asked"]).to_dict()
    engine = found["memory"]["engine"]
    assert engine["flags"]["mem_fraction_static"] == fact["fraction"]
    assert engine["starts"]
    assert engine["budget"] == engine["available_cache"] + engine["weights"]
    pools = sum(each["K"] + each["V"] for each in fact["pools"])
    for part, printed in (("weights", fact["weights"]), ("available_cache", pools)):
        basis = found["basis"][f"memory.engine.{part}"]
        assert basis["low"] <= printed * GIB <= basis["high"]
    assert abs(engine["available_cache"] / GIB - pools) < 0.5


def test_reserve_of_stages() -> None:
    """Each stage has its own weights; the one that leaves least is shown; ranks of attention hold what one would."""
    config = load("llama3.1-70b", engine="sglang")
    engine = plan(config, hardware="h100-sxm", pp=2, tp=2, prompt=10, generate=10).to_dict()["memory"]["engine"]
    assert engine["stage"] == 1
    assert engine["starts"]
    config = load("deepseek-v3", engine="sglang", engine_set={"enable_dp_attention": True, "dp_size": 8})
    shared = plan(config, hardware="h200", tp=8, prompt=10, generate=10).to_dict()["memory"]["engine"]
    assert shared["capacity"]["bytes_per_token"] == 61 * 576 * 2


@pytest.mark.parametrize("version", ["0.4.2", "0.4.7", "0.4.9", "0.5.2", "0.5.12", "0.5.16", "0.5.23"])
@pytest.mark.parametrize("hardware", ["rtx-3090", "h100-sxm", "b200-sxm"])
def test_versions(version: str, hardware: str) -> None:
    """Every version starts Llama 3.1 8B with a share of the device between a half and all of it."""
    for flags in ({}, {"speculative_algorithm": "EAGLE"}):
        config = load("llama3.1-8b", engine=f"sglang@{version}", engine_set=flags)
        engine = plan(config, hardware=hardware, prompt=10, generate=10).to_dict()["memory"]["engine"]
        assert 0.5 < engine["flags"]["mem_fraction_static"] < 0.95
        assert engine["starts"]
        assert engine["capacity"]["tokens"] > 3_000


@pytest.mark.parametrize(
    ("flags", "page"),
    [({}, 1), ({"page_size": 16}, 16), ({"attention_backend": "flashmla"}, 64), ({"attention_backend": "fa3"}, 1)],
)
def test_pages(flags: dict[str, Any], page: int) -> None:
    """Pages by flag and backend; a plan stores whole ones."""
    config = load("llama3.1-8b", engine="sglang", engine_set=flags)
    found = engine_capacity(config, engine="sglang", cache_memory_bytes=GIB)
    assert found["block_size"] == page
    assert found["tokens"] == 8192
    assert plan(config, prompt=1, generate=1).to_dict()["cache"]["bytes"] == 131072 * max(page, 2)


def test_limits() -> None:
    """max_total_tokens bounds the pool; ranks beyond the heads repeat them."""
    config = load("llama3.1-8b", engine="sglang", engine_set={"max_total_tokens": 1000, "page_size": 64})
    assert engine_capacity(config, engine="sglang", cache_memory_bytes=GIB)["tokens"] == 960
    found = engine_capacity("llama3.1-8b", engine="sglang", cache_memory_bytes=GIB, tp=16)
    assert found["bytes_per_token"] == 32 * 2 * 128 * 2
    assert engine_capacity("llama3.1-8b", engine="sglang", cache_memory_bytes=GIB, pp=2)["bytes_per_token"] == 65536


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ("llama3.1-8b", {"cache_memory_bytes": 1000}, "SGLang doesn't start"),
    ("llama3.1-8b", {"cache_memory_bytes": GIB, "tp": 3}, "3, which neither divides"),
    ("llama3.1-8b", {"cache_memory_bytes": GIB, "pp": 33}, "there are 32 layers"),
    ("llama3.1-8b", {"cache_memory_bytes": GIB, "cache_dtype": "int8"}, "int8"),
    ("llama3.1-8b", {"cache_memory_bytes": GIB, "version": "0.6"}, "known are 0.4.0 to 0.5.23"),
    ("whisper-base", {"cache_memory_bytes": GIB}, "encoder's rows isn't known"),
    ("bert-base", {"cache_memory_bytes": GIB}, "keeps no cache between steps"),
]


@pytest.mark.parametrize(("model", "asked", "text"), REFUSED)
def test_refused(model: Any, asked: dict[str, Any], text: str) -> None:
    """Messages say what isn't known or doesn't fit."""
    with pytest.raises(PlanError, match=text):
        engine_capacity(model, engine="sglang", **asked)


@pytest.mark.parametrize(("version", "times"), [((0, 4, 7), 1), ((0, 4, 9), 0.9), ((0, 5, 9), 0.95)])
def test_fraction_beside_a_tower(version: Any, times: float) -> None:
    """Images get a tenth, from 0.5.1 on a twentieth beside a tower like ViT-L, at most a fifth more beside a larger one."""
    on = Machine(version, Flags(), 1, 1, 81559)
    assert fraction(on._replace(tower=24 * 1024**2)) == pytest.approx(times * fraction(on))
    if times == 0.95:
        assert fraction(on._replace(tower=24e9)) == pytest.approx(0.8 * 0.95 * fraction(on))


@given(
    memory=st.integers(2**27, 2**38),
    tp=st.sampled_from([1, 2, 4]),
    version=st.sampled_from(["0.4.3", "0.5.6", "0.5.23"]),
)
@settings(max_examples=60, deadline=None)
def test_pools_fit(memory: int, tp: int, version: str) -> None:
    """Pools and slots take no more than there is, and one token more wouldn't fit."""
    for name in ("sglang_qwen3_5_27b", "sglang_diffusiongemma", "sglang_deepseek_v32"):
        fact = read(Path(__file__).parent / "facts_other" / f"{name}.json") | {"version": version}
        fact["asked"] = {"tp": tp}
        try:
            found = made(fact, memory)
        except PlanError:
            continue
        rows = [each for each in found["groups"] if each["kind"] != "mamba"]
        states = sum(each["slots"] * each["layers"] * each["page_bytes"] for each in found["groups"] if "slots" in each)
        each_token = [each["layers"] * each["page_bytes"] // found["block_size"] for each in rows]
        each_token = each_token if len(rows) > 1 else [found["bytes_per_token"]]
        taken = sum(each["tokens"] * size for each, size in zip(rows, each_token, strict=True))
        indexed = version < "0.5.4" and name == "sglang_deepseek_v32"  # keys of the indexer weren't counted
        assert indexed or taken + states <= memory
        assert taken + states + 2 * found["block_size"] * sum(each_token) > memory or len(rows) > 1


def test_what_remembers_nothing() -> None:
    """An encoder starts, and has no pool to speak of; what SGLang does with a CPU's memory isn't known."""
    engine = plan("bert-base", engine="sglang", hardware="l4", prompt=100).to_dict()["memory"]["engine"]
    assert engine["starts"]
    assert engine["capacity"] is None
    with pytest.raises(PlanError, match="isn't known"):
        plan("llama3.1-8b", engine="sglang", hardware="cpu", prompt=10, generate=10)
