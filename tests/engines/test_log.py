"""Start-up logs beside predictions: figures are those that engines printed, lines are written here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from planner import PlanError
from planner.cli import app
from planner.engines.log import check, differs, parse
from tests.engines.configs import CODELLAMA, QWEN3_MOE


def v1(model: str, weights: float, memory: float, tokens: int, concurrency: float, **flags: Any) -> str:
    """Return what vLLM 0.19 prints, shortened."""
    flags = {"dtype": "torch.bfloat16", "max_seq_len": 8192, "kv_cache_dtype": "auto", "quantization": None, **flags}
    said = ", ".join(f"{name}={value}" for name, value in flags.items())
    lines = (
        f"non-default args: {{'model': '{model}', 'max_model_len': 8192, 'gpu_memory_utilization': 0.95}}",
        "Chunked prefill is enabled with max_num_batched_tokens=8192.",
        f"Initializing a V1 LLM engine (v0.19.0) with config: model='{model}', speculative_config=None, {said}",
        f"Model loading took {weights} GiB memory and 3.1 seconds",
        f"Available KV cache memory: {memory} GiB",
        f"GPU KV cache size: {tokens:,} tokens",
        f"Maximum concurrency for {flags['max_seq_len']:,} tokens per request: {concurrency}x",
    )
    return "".join(f"INFO 11-30 06:00:00 [core.py:1] {line}\n" for line in lines)


LOGS: dict[str, tuple[str, dict[str, Any] | None, list[float | int | None]]] = {
    # 8,030,261,248 x 2 bytes and a table of 131,072 x 128 x 2; 58.11 GiB // (131,072 x 16) = 29,752 blocks
    "llama": (
        v1("meta-llama/Llama-3.1-8B-Instruct", 14.99, 58.11, 476016, 58.11),
        None, [14.9888, None, 476032, 58.11],
    ),
    "llama, fp8 weights": (
        v1("meta-llama/Llama-3.1-8B-Instruct", 8.49, 64.61, 529248, 64.61, quantization="fp8"),
        None, [8.4888, None, 529280, 64.61],
    ),
    "llama, fp8 cache": (
        v1("meta-llama/Llama-3.1-8B-Instruct", 14.99, 58.11, 952032, 116.21, kv_cache_dtype="fp8"),
        None, [14.9888, None, 952064, 116.22],
    ),
    # two ranks, each with 2 of 4 heads: 28 x 2 x 2 x 128 x 2 = 28,672 bytes a token
    "qwen, tp 2": (
        v1("Qwen/Qwen2.5-7B-Instruct", 7.12, 63.84, 2390592, 291.82, tensor_parallel_size=2),
        None, [7.145, None, 2390752, 291.84],
    ),
    "qwen 72b, tp 2": (
        v1("Qwen/Qwen2.5-72B-Instruct", 67.8, 3.04, 19920, 2.43, tensor_parallel_size=2),
        None, [67.8235, None, 19920, 2.43],
    ),
    # latents: 27 x (512 + 64) x 2 = 31,104 bytes a token
    "latents": (
        v1("deepseek-ai/DeepSeek-V2-Lite-Chat", 29.43, 43.61, 1505552, 183.78),
        None, [29.426, None, 1505456, 183.77],
    ),
    # 23 full and 23 sliding layers, two groups: 20.59 GiB // (23 x 16 x 2 x 16 x 128 x 2) = 7,333 blocks, half of them each
    "windows": (v1("google/gemma-2-27b-it", 50.72, 20.59, 58672, 7.16), None, [50.7164, None, 58656, 7.15]),
    "windows, text alone": (v1("google/gemma-3-27b-it", 51.45, 19.53, 36560, 4.46), None, [None, None, 36560, 4.46]),
    "codellama": (v1("codellama/CodeLlama-7b-hf", 12.56, 61.66, 126256, 15.41), CODELLAMA, [12.5554, None, 126272, 15.41]),
    "experts": (v1("Qwen/Qwen3-30B-A3B", 56.88, 15.41, 168288, 20.54), QWEN3_MOE, [56.8813, None, 168304, 20.54]),
}  # fmt: skip
"""vLLM 0.19.0 on an H100 (github.com/llm-d-incubation/llm-d-planner, accuracy/results/v0.19.0), and what is predicted."""


def checked(folder: Path, text: str, config: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the check of a log with such a text."""
    file, beside = folder / "start.log", folder / "config.json"
    file.write_text(text)
    if config:
        beside.write_text(json.dumps(config))
    return check(file, str(beside) if config else None)


@pytest.mark.parametrize("name", LOGS)
def test_printed_figures_agree(name: str, tmp_path: Path) -> None:
    """Weights, tokens and concurrency of ten starts; a line where memory is printed is where predictions start."""
    text, config, predicted = LOGS[name]
    found = checked(tmp_path, text, config)
    assert [line["predicted"] for line in found["lines"]] == predicted
    known = "not compared" if predicted[0] is None else "agrees"
    assert [line["verdict"] for line in found["lines"]] == [known, "given", "agrees", "agrees"]
    assert not differs(found)


OLD = """
INFO llm_engine.py:249] Initializing an LLM engine (v0.6.4) with config: model='meta-llama/Llama-3.1-8B-Instruct', \
tokenizer='x', dtype=torch.bfloat16, max_seq_len=20000, tensor_parallel_size=1, quantization=None, kv_cache_dtype=auto
INFO model_runner.py:1077] Loading model weights took 14.9888 GB
INFO worker.py:232] Memory profiling results: initial_memory_usage=15.34GiB non_torch_memory=0.35GiB kv_cache_size=3.81GiB
INFO gpu_executor.py:113] # GPU blocks: 1952, # CPU blocks: 2048
INFO gpu_executor.py:117] Maximum concurrency for 20000 tokens per request: 1.56x
"""


def test_an_older_version(tmp_path: Path) -> None:
    """Before 0.11 (github.com/vllm-project/vllm/issues/10517, some 0.6): blocks of 2 MiB of 3.81 GiB, and of 4 GiB of swap space."""
    found = checked(tmp_path, OLD)
    assert [(line["quantity"], line["predicted"]) for line in found["lines"]] == [
        ("weights", 14.9888), ("cache memory", None), ("blocks", 1950), ("blocks on the CPU", 2048), ("concurrency", 1.56),
    ]  # fmt: skip
    assert not differs(found)
    assert (found["version"], found["flags"]["max_model_len"]) == ("v0.6.4", 20000)


def test_memory_is_worked_back_from_blocks(tmp_path: Path) -> None:
    """Where none is printed the blocks are given, and concurrency follows: 1,952 x 16 / 20,000."""
    found = checked(tmp_path, re.sub(r".*kv_cache_size.*\n", "", OLD))
    assert [(line["predicted"], line["verdict"]) for line in found["lines"]] == [
        (14.9888, "agrees"), (None, "given"), (2048, "agrees"), (1.56, "agrees"),
    ]  # fmt: skip


def test_an_engine_that_does_not_start(tmp_path: Path) -> None:
    """What one request needs, 131,072 tokens of 131,072 bytes, and how many tokens there is room for."""
    text = """
    vLLM API server version 0.10.1
    non-default args: {'model': 'meta-llama/Llama-3.1-8B', 'kv_cache_dtype': 'auto'}
    ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, \
which is larger than the available KV cache memory (0.71 GiB). Based on the available memory, the estimated maximum model length is 5808.
    """
    found = checked(tmp_path, text)
    # 0.71 GiB // (16 x 131,072) = 363 blocks
    assert [(line["quantity"], line["predicted"], line["verdict"]) for line in found["lines"]] == [
        ("cache memory", None, "given"), ("cache memory of one request", 16.0, "agrees"), ("longest request", 5808, "agrees"),
    ]  # fmt: skip
    # 2.89 GiB // 2 MiB = 1,479 blocks of 16
    text = """
    Initializing an LLM engine (v0.6.4) with config: model='meta-llama/Llama-3.1-8B-Instruct', dtype=torch.bfloat16
    the rest of the memory reserved for KV Cache is 2.89GiB.
    ValueError: The model's max seq len (29000) is larger than the maximum number of tokens that can be stored in \
KV cache (23648).
    """
    found = checked(tmp_path, text)
    assert [(line["predicted"], line["verdict"]) for line in found["lines"]] == [(None, "given"), (23664, "agrees")]


def test_stages(tmp_path: Path) -> None:
    """A line's rank says of which stage it is; tokens follow the stage with least memory, if all are printed."""
    alone = v1("meta-llama/Llama-3.1-8B-Instruct", 7.51, 66.54, 1075312, 131.26, pipeline_parallel_size=2)
    found = checked(tmp_path, alone)
    assert [line["verdict"] for line in found["lines"]] == ["agrees", "given", "not compared", "not compared"]
    assert "rank 0" in found["notes"][-1]
    # the second stage's memory wasn't published; it is worked back from the tokens: 65.63 GiB // (16 layers x 4,096 x 16) = 67,205
    both = alone + "(Worker_PP1 pid=7) INFO Available KV cache memory: 65.63 GiB\n"
    found = checked(tmp_path, both)
    assert [line["predicted"] for line in found["lines"]] == [7.51, None, 1075280, 131.26, None]
    assert not differs(found)


def test_a_difference(tmp_path: Path) -> None:
    """A tenth fewer tokens: the line differs, the command says so with its exit code, and a note names a possible cause."""
    text = v1("Qwen/Qwen2.5-7B-Instruct", 7.12, 63.84, 2151533, 291.82, tensor_parallel_size=2)
    found = checked(tmp_path, text)
    assert [line["verdict"] for line in found["lines"]] == ["agrees", "given", "differs", "agrees"]
    assert found["lines"][2]["difference"] == -10.006
    assert (
        found["notes"][-1] == "2 ranks, but not all print their cache memory: the rank that has least decides for all"
    )
    assert run(tmp_path / "start.log").exit_code == 1


def run(*words: object) -> Any:
    """Return the end of the command."""
    return CliRunner().invoke(app, ["check", *map(str, words)], env={"COLUMNS": "80"})


def test_command(tmp_path: Path) -> None:
    """The JSON is the check; the table fits 80 columns; exit code 0."""
    text, _, _ = LOGS["llama"]
    found = checked(tmp_path, text)
    done = run(tmp_path / "start.log", "--json")
    assert (json.loads(done.stdout), done.exit_code) == (found, 0)
    assert list(found) == ["engine", "version", "model", "flags", "lines", "notes"]
    assert found["flags"] == {
        "model": "meta-llama/Llama-3.1-8B-Instruct", "max_model_len": 8192, "max_num_batched_tokens": 8192, "dtype": "bfloat16",
        "gpu_memory_utilization": 0.95,
    }  # fmt: skip
    assert found["lines"][0] == {
        "line_number": 4, "text": "INFO 11-30 06:00:00 [core.py:1] Model loading took 14.99 GiB memory and 3.1 seconds",
        "quantity": "weights", "unit": "GiB", "printed": 14.99, "predicted": 14.9888, "difference": 0.008, "verdict": "agrees",
    }  # fmt: skip
    table = run(tmp_path / "start.log").stdout
    assert max(map(len, table.splitlines())) <= 80
    assert "476,016" in table


def test_refusals(tmp_path: Path) -> None:
    """No file, no known line, an unknown model: each with the way on."""
    with pytest.raises(PlanError, match="can't be read"):
        check(tmp_path / "none.log")
    with pytest.raises(PlanError, match="no line is known"):
        checked(tmp_path, "hello\n")
    with pytest.raises(PlanError, match=r"no bundled model for me/mine.*--config"):
        checked(tmp_path, v1("me/mine", 1.0, 2.0, 3, 4.0))
    with pytest.raises(PlanError, match=r"no line names the model.*--config"):
        checked(tmp_path, "Available KV cache memory: 1.0 GiB\n")


def test_a_quantised_checkpoint_needs_its_config(tmp_path: Path) -> None:
    """The bundled config says nothing of AWQ: its weights aren't compared, its cache is."""
    found = checked(tmp_path, v1("meta-llama/Llama-3.1-8B", 5.38, 58.11, 476016, 58.11, quantization="awq_marlin"))
    assert [line["verdict"] for line in found["lines"]] == ["not compared", "given", "agrees", "agrees"]
    assert any("awq_marlin" in note and "--config" in note for note in found["notes"])


def test_flags_and_colours() -> None:
    """Later lines win; colours are no part of a line; a name that ends alike is another flag."""
    log = parse(
        "non-default args: {'served_model_name': ['x'], 'model': 'a/b', 'max_model_len': 4096, 'enable_prefix_caching': False}\n"
        "\x1b[1;36m(EngineCore)\x1b[0;0m Initializing a V1 LLM engine (v0.19.0) with config: model='a/b', max_seq_len=2048\n"
        "\x1b[32mGPU KV cache size: 1,024 tokens\x1b[0m\n"
    )
    assert log.flags == {"model": "a/b", "max_model_len": 2048, "enable_prefix_caching": False}
    assert [(entry.number, entry.text, entry.value) for entry in log.entries] == [
        (3, "GPU KV cache size: 1,024 tokens", 1024)
    ]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 900), st.sampled_from([*"0129.,'{}= abx-\n", ""])), max_size=8), st.integers(0, 2)
)
def test_a_damaged_log_is_checked_or_refused(changes: list[tuple[int, str]], which: int) -> None:
    """Whatever characters are lost, there is a check or a message."""
    text = list((OLD, LOGS["qwen, tp 2"][0], LLAMA_CPP["cells"][0])[which])
    for place, character in changes:
        text[place % len(text)] = character
    with TemporaryDirectory() as folder:
        try:
            found = checked(Path(folder), "".join(text))
        except PlanError:
            return
    assert {line["verdict"] for line in found["lines"]} <= {"agrees", "differs", "given", "not compared"}


LLAMA_CPP: dict[str, tuple[str, list[tuple[float, float]]]] = {
    # github.com/ollama/ollama/pull/6279: q4_0, the head in q6_k
    "file": (
        """build: 3500 (abc) with gcc
        print_info: general.name     = Meta Llama 3.1 70B Instruct
        print_info: file type   = Q4_0
        print_info: file size   = 37.22 GiB (4.53 BPW)
        print_info: model params     = 70.55 B""",
        [(37.22, 37.2174), (70.55, 70.5537)],
    ),
    # github.com/JamePeng/llama-cpp-python/pull/1: 28 x 2 x 512 x 2,048 x 2
    "cells": (
        """print_info: general.name     = Qwen2.5 7B Instruct
        llama_kv_cache: size =  112.00 MiB (  2048 cells,  28 layers,  1/1 seqs), K (f16):   56.00 MiB, V (f16):   56.00 MiB""",
        [(112.0, 112.0)],
    ),
    # github.com/ikawrakow/ik_llama.cpp/pull/259, DeepSeek-R1, of V3's shape: 61 x 576 x 32,768 x 34 / 32
    "latents": (
        """llm_load_print_meta: general.name     = DeepSeek V3
        llama_new_context_with_model: n_ctx      = 32768
        llama_new_context_with_model: KV self size  = 1166.62 MiB, K (q8_0): 1166.62 MiB, V (f16):    0.00 MiB""",
        [(1166.62, 1166.625)],
    ),
    # github.com/ollama/ollama/pull/17037: 5 full and 29 windowed layers, 4,096 bytes a token of each
    "windows": (
        """print_info: general.name     = Gemma 3 4b It
        llama_kv_cache: size = 2560.00 MiB (131072 cells,   5 layers,  1/1 seqs), K (f16): 1280.00 MiB, V (f16): 1280.00 MiB
        llama_kv_cache: size =  174.00 MiB (  1536 cells,  29 layers,  1/1 seqs), K (f16):   87.00 MiB, V (f16):   87.00 MiB""",
        [(2560.0, 2560.0), (174.0, 174.0)],
    ),
    # printed by llama-cpp-python 0.3.36 (tests/engines/facts_llama): 3 streams of 1,792 and of 512 + 512 cells
    "a context": (
        """llama_context: constructing llama_context
        llama_context: n_seq_max             = 3
        llama_context: n_ctx                 = 5376
        llama_context: n_batch               = 2048
        llama_context: n_ubatch              = 512
        llama_context: flash_attn            = auto
        llama_context: kv_unified            = false
        llama_context: n_outputs_max         = 2048
        print_info: general.name          = Gemma3 270m
        llama_context:        CPU  output buffer size =     3.00 MiB
        llama_kv_cache: size =   15.75 MiB (  1792 cells,   3 layers,  3/3 seqs), K (f16):    7.88 MiB, V (f16):    7.88 MiB
        llama_kv_cache_iswa: creating     SWA KV cache, size = 1024 cells
        llama_kv_cache: size =   45.00 MiB (  1024 cells,  15 layers,  3/3 seqs), K (f16):   22.50 MiB, V (f16):   22.50 MiB
        sched_reserve:        CPU compute buffer size =   514.50 MiB""",
        [(3.0, 3.0), (15.75, 15.75), (1024.0, 1024.0), (45.0, 45.0), (514.5, 514.5044)],
    ),
    # github.com/ollama/ollama/issues/8098, Llama-3.2-3B's shape: 28 x 2 x 1,024 x 2 x 8,192
    "ollama": (
        """msg="offload to cuda" layers.model=29 layers.offload=29 memory.required.kv="896.0 MiB" memory.graph.full="424.0 MiB"
        msg="starting llama server" cmd="runner --ctx-size 8192 --batch-size 512 --n-gpu-layers 29 --parallel 4"
        print_info: general.name          = Llama 3.2 3B""",
        [(896.0, 896.0)],
    ),
}  # fmt: skip


LLAMA_32 = {
    "model_type": "llama", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.parametrize("name", LLAMA_CPP)
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    """Sizes of files, caches and buffers, cells of windows."""
    text, figures = LLAMA_CPP[name]
    found = checked(tmp_path, text, LLAMA_32 if name == "ollama" else None)
    assert found["engine"] == "llama.cpp"
    assert [(line["printed"], line["predicted"]) for line in found["lines"]] == figures
    assert {line["verdict"] for line in found["lines"]} == {"agrees"}


def test_layers_that_llama_cpp_does_not_have(tmp_path: Path) -> None:
    """A cache of another number of layers isn't compared; one of another size differs."""
    text, _ = LLAMA_CPP["cells"]
    found = checked(tmp_path, text.replace("28 layers", "27 layers"))
    assert [line["verdict"] for line in found["lines"]] == ["not compared"]
    assert "27 layers" in found["notes"][-1]
    assert differs(checked(tmp_path, text.replace("2048 cells", "4096 cells")))


def test_buffers_that_are_not_compared(tmp_path: Path) -> None:
    """Of several contexts or devices, or of builds before they were reserved so, buffers aren't compared; caches are."""
    text, _ = LLAMA_CPP["a context"]
    twice = checked(tmp_path, f"{text}\nllama_context: constructing llama_context")
    kinds = {line["quantity"]: line["verdict"] for line in twice["lines"]}
    assert kinds["compute buffer"] == kinds["output buffer"] == "not compared"
    assert kinds["cache"] == "agrees"
    spread = text.replace("CPU compute", "CUDA0 compute") + "\nsched_reserve: CUDA1 compute buffer size = 514.50 MiB"
    assert {line["verdict"] for line in checked(tmp_path, spread)["lines"] if "CUDA" in line["text"]} == {
        "not compared"
    }
    assert not differs(checked(tmp_path, text.replace("sched_reserve: ", "llama_context: ")))


def test_a_buffer_that_differs(tmp_path: Path) -> None:
    """Logits of 16 rows only are told apart from those of 512."""
    text, _ = LLAMA_CPP["a context"]
    assert differs(checked(tmp_path, text.replace("n_outputs_max         = 2048", "n_outputs_max = 16")))


def test_memory_from_flags(tmp_path: Path) -> None:
    """With the devices named, what is set aside is predicted too: printed by 0.19 on an H100 (llm-d-planner#205)."""
    text = v1("meta-llama/Llama-3.1-8B-Instruct", 14.99, 58.11, 476000, 58.11) + (
        "Desired GPU memory utilization is (0.95, 75.23 GiB). Actual usage is 14.99 GiB for weight, 1.89 GiB for peak activation, "
        "0.25 GiB for non-torch memory, and 0.91 GiB for CUDAGraph memory.\n"
    )
    log = tmp_path / "start.log"
    log.write_text(text)
    found = check(log, hardware="h100-sxm")
    said = {line["quantity"]: (line["predicted"], line["verdict"]) for line in found["lines"]}
    assert said["cache memory"] == (58.102, "agrees")
    assert {name: verdict for name, (_, verdict) in said.items() if name in {"activations", "runtime", "graphs"}} == {
        "activations": "agrees", "runtime": "agrees", "graphs": "agrees",
    }  # fmt: skip
    assert not differs(found)
    less = text.replace("Available KV cache memory: 58.11", "Available KV cache memory: 50.11")
    log.write_text(less)
    found = check(log, hardware="h100-sxm")
    beyond = [line["quantity"] for line in found["lines"] if line["verdict"] == "differs"]
    assert beyond == ["cache memory", "tokens", "concurrency"]
    assert run(log, "--hardware", "h100-sxm").exit_code == 1
