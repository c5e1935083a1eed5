"""What stands in the host's memory: both parts are the whole, whole models by hand, and what can't be moved."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import planner
from planner.cli import app
from planner.errors import PlanError
from planner.offload import ALL, NOTHING, Offload, divide, expert_layers, offload_of
from planner.precision import resolve
from planner.shard import Parallel, depth, device_shares, legal_tp
from planner.workload import workload
from tests.strategies import llamas, mixtrals, t5s

GIB = 2**30

runner = CliRunner()


def held(config: Any, **options: Any) -> dict[str, Any]:
    """Return the memory section of a plan on a 24 GB card."""
    found = planner.plan(config, hardware="rtx-4090", **options).memory
    assert found is not None
    return found


@settings(max_examples=60, deadline=None)
@given(st.one_of(llamas(), mixtrals(), t5s()), st.data())
def test_both_parts_are_the_whole(config: dict[str, Any], data: st.DataObject) -> None:
    """On every device, of weights and of caches, to the byte; what moves is of the layers named, and more of them moves more."""
    model = planner.load(config)
    work, _ = workload(model, batch=3, prompt=7, generate=5)
    parallel = Parallel(data.draw(st.sampled_from(legal_tp(model))), data.draw(st.integers(1, depth(model))))
    shares = device_shares(model, resolve(model), work, parallel)
    routed = expert_layers(shares)
    experts = data.draw(st.integers(0, len(routed)))
    layers = data.draw(st.integers(0, depth(model)))
    moved = data.draw(st.sampled_from([0, 1, 1000, 2**40]))
    parts = divide(model, shares, Offload(experts, layers, moved))
    for share, (device, host) in zip(shares, parts, strict=True):
        assert device.weight_bytes + host.weight_bytes == share.weight_bytes
        assert device.cache_bytes + host.cache_bytes == share.cache_bytes
        assert min((piece.bytes for piece in (*device.weights, *host.weights)), default=0) >= 0
        assert all(set(piece.layers) <= set(range(layers)) for piece in host.caches)
        beside = sum(piece.bytes for piece in share.weights if not piece.layers)
        assert device.weight_bytes >= beside
        if layers == depth(model) or moved == 2**40:
            assert device.weight_bytes == beside
    without = divide(model, shares, Offload(experts, layers))
    for share, (device, host), (fewer, _) in zip(shares, parts, without, strict=True):
        beside = sum(piece.bytes for piece in share.weights if not piece.layers)
        assert fewer.weight_bytes - device.weight_bytes == min(moved, fewer.weight_bytes - beside)
        assert all(set(piece.layers) <= {*range(layers), *routed[:experts]} or moved for piece in host.weights)


@settings(max_examples=20, deadline=None)
@given(mixtrals())
def test_all_experts_are_what_the_plan_calls_so(config: dict[str, Any]) -> None:
    """2 bytes each; the rest stays, with all caches."""
    whole, found = held(config, batch=2), held(config, batch=2, offload_experts="all")
    routed = planner.plan(config).params["by_block"]["routed_experts"] * 2
    assert found["host_bytes"] == routed
    assert found["weights"] == whole["weights"] - routed
    assert found["cache"] == whole["cache"]


def test_mixtral_without_its_experts_on_the_card() -> None:
    """Question 15: 32 layers x 8 experts x 3 x 4,096 x 14,336 x 2 bytes = 84 GiB in RAM; 1,605,636,096 x 2 stay."""
    found = held("mixtral-8x7b", offload_experts=True)
    assert found["host_bytes"] == 32 * 8 * 3 * 4096 * 14_336 * 2
    assert found["weights"] == 46_702_792_704 * 2 - found["host_bytes"]
    assert found["fits"]
    assert not held("mixtral-8x7b")["fits"]


def test_experts_of_the_first_layers_that_have_some() -> None:
    """DeepSeek-V2-Lite: layer 0 has none, so 2 are layers 1 and 2: 64 experts x 3 x 2,048 x 1,408 x 2 bytes each."""
    found = held("deepseek-v2-lite", offload_experts=2)
    assert found["host_bytes"] == 2 * 64 * 3 * 2048 * 1408 * 2


def test_layers_leave_with_their_caches() -> None:
    """Llama 3 8B: 218,112,000 weights a layer and 1,280 rows x 2,048 elements, 2 bytes each; 19 of 32 layers."""
    whole, found = held("llama3-8b"), held("llama3-8b", offload_layers=19)
    assert found["host_bytes"] == 19 * (218_112_000 + 1280 * 2048) * 2
    assert whole["weights"] - found["weights"] == 19 * 218_112_000 * 2
    assert whole["cache"] - found["cache"] == 19 * 1280 * 2048 * 2
    assert whole["activations"] == found["activations"]


def test_first_layers_are_of_the_first_stage() -> None:
    """20 of 32 layers on two stages of 16: all of the first, 4 of the second."""
    first, second = held("llama3-8b", pp=2, offload_layers=20)["devices"]
    layer = (218_112_000 + 1280 * 2048) * 2
    assert (first["host_bytes"], second["host_bytes"]) == (16 * layer, 4 * layer)
    assert first["weights"] == 128_256 * 4096 * 2  # the table


def test_bytes_are_of_each_device() -> None:
    """1.5 GiB of each of two, and no more than its layers have."""
    found = held("llama3-8b", tp=2, offload_gb=1.5)
    assert [each["host_bytes"] for each in found["devices"]] == [GIB * 3 // 2] * 2
    assert found["host_bytes"] == 3 * GIB
    assert held("llama3-8b", offload_gb=1000)["host_bytes"] == 32 * 218_112_000 * 2


def test_what_is_moved_adds_up() -> None:
    """Layers 0 and 1, the experts of layers 0 to 4, and half a GiB more of what is left."""
    some = held("mixtral-8x7b", offload_layers=2)["host_bytes"]
    expert = 8 * 3 * 4096 * 14_336 * 2
    found = held("mixtral-8x7b", offload_layers=2, offload_experts=5, offload_gb=0.5)
    assert found["host_bytes"] == some + 3 * expert + GIB // 2


def test_more_room_holds_more() -> None:
    """Sequences and context are searched with what is left."""
    counts = [held("llama3-8b", offload_layers=n)["max_batch"] for n in (0, 8, 16)]
    assert counts == sorted(set(counts))


@pytest.mark.parametrize(
    ("given_", "moved"),
    [
        ((None, None, None), NOTHING),
        (("all", None, None), Offload(ALL)),
        ((True, None, None), Offload(ALL)),
        (("3", None, None), Offload(3)),
        ((1, 2, 0.25), Offload(1, 2, 2**28)),
        ((False, 0, 0), NOTHING),
    ],
)
def test_what_the_options_say(given_: tuple[Any, ...], moved: Offload) -> None:
    """All, a number as text or not, layers, GiB."""
    assert offload_of(*given_) == moved


@pytest.mark.parametrize(
    ("config", "options", "part"),
    [
        ("llama3-8b", dict(offload_experts="all"), "no routed experts"),
        ("llama3-8b", dict(offload_layers=33), "there are 32 layers"),
        ("llama3-8b", dict(offload_layers=-1), "--offload-layers"),
        ("llama3-8b", dict(offload_layers=1.5), "--offload-layers"),
        ("llama3-8b", dict(offload_gb=-1), "--offload-gb"),
        ("llama3-8b", dict(offload_gb="x"), "--offload-gb"),
        ("llama3-8b", dict(offload_gb=float("nan")), "--offload-gb"),
        ("mixtral-8x7b", dict(offload_experts=33), "32 layers have routed experts"),
        ("mixtral-8x7b", dict(offload_experts="some"), "all, or a whole number"),
    ],
)
def test_what_cannot_be_moved_is_refused(config: str, options: dict[str, Any], part: str) -> None:
    """With where and why."""
    with pytest.raises(PlanError, match=part):
        held(config, **options)


def test_without_hardware_there_is_nothing_to_move_from() -> None:
    """As for sizes."""
    with pytest.raises(PlanError, match="--offload-layers: given without --hardware"):
        planner.plan("llama3-8b", offload_layers=1)


@pytest.mark.parametrize("command", [[], ["fit"]])
def test_the_command_takes_the_same_options(command: list[str]) -> None:
    """In the table and in the JSON."""
    words = ["--config", "mixtral-8x7b", "--hardware", "rtx-4090", "--offload-experts", "all", "--offload-gb", "1"]
    done = runner.invoke(app, [*command, *words], env={"COLUMNS": "80"})
    assert done.exit_code == 0
    assert "host's memory, in all" in done.stdout
    found = json.loads(runner.invoke(app, [*command, *words, "--json"]).stdout)
    section = found["asked" if command else "memory"]
    assert section == held("mixtral-8x7b", offload_experts="all", offload_gb=1.0)
