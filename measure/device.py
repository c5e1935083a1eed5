"""A device in under five minutes: does what the planner describes run there, and how fast are its operations.

    python -m measure.device --out samples.jsonl [--seconds 240]

The first line of the file holds the device's facts; then a line for every verified model and every timed operation. Times
are of single runs on cold caches: a buffer larger than the last-level cache is written before each.

Letters: m rows, n out, k in; b sequences, t new tokens, s keys, h heads, g key-value heads, d head width.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch
from rich.console import Console
from rich.progress import Progress
from torch.nn import functional as f

from measure.verify import verify, versions
from planner.errors import PlanError

Run = Callable[[], object]

MODELS = ("llama3-8b", "gpt2", "mixtral-8x7b", "t5-small")
"""Verified first, shrunk."""

DEFAULT_SECONDS = 240
MOST_PER_OPERATION_SECONDS = 3.0
REPEATS, WARM_UPS = 20, 3
LAUNCHES = 1000
"""Launches that share one measurement: a single one is shorter than a clock's tick."""

FLUSH_BYTES = {"cuda": 256 * 2**20, "cpu": 32 * 2**20}
"""Larger than the last-level cache."""


@dataclass(frozen=True)
class Operation:
    """Something to time.

    Attributes:
        kind: "gemm", "attention_prefill", "attention_decode", "copy" or "launch".
        shape: its sizes, by letter.
        dtype: of its operands.
        flops: 2 per multiply-add, pairs that a causal mask allows. bytes: read and written at least.
        make: allocates the operands and returns what runs.
        times: runs that one measurement holds.
    """

    kind: str
    shape: dict[str, int]
    dtype: str
    flops: int
    bytes: int
    make: Callable[[], Run]
    times: int = 1


@dataclass
class Sample:
    """One line of the file."""

    kind: str
    shape: dict[str, int]
    dtype: str
    device: str
    flops: int
    bytes: int
    seconds: list[float] = field(default_factory=list)
    error: str = ""


# --- operations -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """Where operations run, and in what dtype."""

    device: str
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """The dtype's name."""
        return str(self.dtype).removeprefix("torch.")

    def random(self, *shape: int) -> torch.Tensor:
        """Return random operands."""
        return torch.randn(shape, device=self.device, dtype=self.dtype)

    def gemm(self, m: int, n: int, k: int) -> Operation:
        """Return [m, k] times [k, n], the weights stored as [n, k]."""

        def make() -> Run:
            x, w = self.random(m, k), self.random(n, k)
            return lambda: f.linear(x, w)

        size = self.dtype.itemsize
        return Operation("gemm", dict(m=m, n=n, k=k), self.name, 2 * m * n * k, size * (m * k + n * k + m * n), make)

    def attention(self, b: int, t: int, s: int, h: int, g: int, d: int) -> Operation:
        """Return scaled_dot_product_attention: causal over a prompt (t = s), or one step on s keys (t = 1)."""
        prefill = t == s

        def make() -> Run:
            q, k, v = self.random(b, h, t, d), self.random(b, g, s, d), self.random(b, g, s, d)
            return lambda: f.scaled_dot_product_attention(q, k, v, is_causal=prefill, enable_gqa=g != h)

        pairs = t * (t + 1) // 2 if prefill else t * s
        moved = self.dtype.itemsize * b * d * (2 * h * t + 2 * g * s)
        kind = "attention_prefill" if prefill else "attention_decode"
        return Operation(kind, dict(b=b, t=t, s=s, h=h, g=g, d=d), self.name, 4 * b * h * d * pairs, moved, make)

    def copy(self, size: int) -> Operation:
        """Return a copy of so many bytes, each read once and written once."""

        def make() -> Run:
            source = torch.ones(size, device=self.device, dtype=torch.uint8)
            target = torch.empty_like(source)
            return lambda: target.copy_(source)

        return Operation("copy", dict(bytes=size), "uint8", 0, 2 * size, make)

    def launch(self) -> Operation:
        """Return launches of a kernel that has nothing to do."""

        def make() -> Run:
            one = torch.ones(1, device=self.device)

            def run() -> None:
                for _ in range(LAUNCHES):
                    one.mul_(1.0)

            return run

        return Operation("launch", dict(launches=LAUNCHES), "float32", 0, 0, make, LAUNCHES)


def operations(device: str) -> list[Operation]:
    """Return the short set: Llama 3 8B's shapes on a GPU, small ones on a CPU."""
    gpu = device == "cuda"
    bench = Bench(device, torch.bfloat16 if gpu else torch.float32)
    large = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)]
    matrices = large if gpu else [(768, 512), (512, 512), (1792, 512), (512, 1792)]
    rows = [1, 8, 64, 512, 4096] if gpu else [1, 8, 64, 256]
    contexts, batches = ([512, 2048, 8192], [1, 16, 64]) if gpu else ([128, 512], [1, 4])
    heads = (32, 8, 128) if gpu else (8, 2, 64)
    copies = range(20, 31, 2) if gpu else range(16, 27, 2)
    return [
        bench.launch(),
        *(bench.copy(2**power) for power in copies),
        *(bench.gemm(m, n, k) for m in rows for n, k in matrices),
        *(bench.attention(1, s, s, *heads) for s in contexts),
        *(bench.attention(b, 1, s, *heads) for b in batches for s in contexts),
    ]


# --- timing -----------------------------------------------------------------------------------------------------------


def timed(operation: Operation, device: str, budget_seconds: float) -> Sample:
    """Return an operation's times, as many as the budget has room for, up to REPEATS."""
    sample = Sample(operation.kind, operation.shape, operation.dtype, device, operation.flops, operation.bytes)
    try:
        run = operation.make()
        flush = torch.empty(FLUSH_BYTES[device], device=device, dtype=torch.uint8)
        once = _once_cuda if device == "cuda" else _once_cpu
        end = time.perf_counter() + budget_seconds
        for _ in range(WARM_UPS):
            once(run, flush)
        while len(sample.seconds) < REPEATS and (not sample.seconds or time.perf_counter() < end):
            sample.seconds.append(once(run, flush) / operation.times)
    except RuntimeError as error:  # out of memory, or no kernel for this dtype
        sample.error = " ".join(str(error).split())[:200]
    return sample


def _once_cpu(run: Run, flush: torch.Tensor) -> float:
    """Return the seconds of one run."""
    flush.zero_()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _once_cuda(run: Run, flush: torch.Tensor) -> float:
    """Return the seconds between two events around one run; the flush before it hides the launch."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flush.zero_()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1000


# --- facts and verification -------------------------------------------------------------------------------------------


def facts(device: str) -> dict[str, Any]:
    """Return what the device is."""
    common = {"kind": "facts", "device": device, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "versions": versions()}
    if device != "cuda":
        pages = {name: os.sysconf(name) for name in ("SC_PAGE_SIZE", "SC_PHYS_PAGES", "SC_AVPHYS_PAGES")}
        total, free = (pages["SC_PAGE_SIZE"] * pages[name] for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
        name = _cpu_name()
        return common | dict(
            name=name, memory_total_bytes=total, memory_free_bytes=free, threads=torch.get_num_threads()
        )
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    return common | dict(
        name=properties.name,
        memory_total_bytes=total,
        memory_free_bytes=free,
        multiprocessors=properties.multi_processor_count,
        capability=f"{properties.major}.{properties.minor}",
        l2_bytes=getattr(properties, "L2_cache_size", None),
        cuda=torch.version.cuda,
        driver=_driver(),
    )


def _cpu_name() -> str:
    """Return the processor's name as Linux says it, else its architecture."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _driver() -> str | None:
    """Return the driver's version, where Linux shows it."""
    file = Path("/sys/module/nvidia/version")
    return file.read_text().strip() if file.is_file() else None


def verified(name: str, device: str) -> dict[str, Any]:
    """Return one model's verification as a line, with what failed."""
    try:
        found = verify(name, device=device)
    except (PlanError, RuntimeError) as error:
        return {"kind": "verification", "model": name, "ok": False, "error": " ".join(str(error).split())[:300]}
    return {"kind": "verification", "model": name, **found}


# --- command ----------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file; return 1 where a verification failed."""
    parser = argparse.ArgumentParser(prog="python -m measure.device", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="file to write, a JSON object a line")
    parser.add_argument(
        "--seconds", type=float, default=DEFAULT_SECONDS, help="time limit; what is left then is not timed"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    end = time.perf_counter() + options.seconds
    with options.out.open("w") as file:
        results = list(_lines(options.device, end, file))
    return int(not all(results))


def _lines(device: str, end: float, file: TextIO) -> Iterator[bool]:
    """Write all lines under a progress bar; yield whether each verification held."""
    console = Console(stderr=True, highlight=False)
    todo = operations(device)
    _write(file, facts(device))
    with Progress(console=console, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(device, total=len(MODELS) + len(todo))
        for name in MODELS:
            progress.update(task, description=f"verify {name}")
            line = verified(name, device)
            _write(file, line)
            console.print(f"verify {name}: {'ok' if line['ok'] else line.get('error', 'FAILED')}")
            yield line["ok"]
            progress.advance(task)
        for index, operation in enumerate(todo):
            left = end - time.perf_counter()
            if left <= 0:
                console.print(f"time is up: {len(todo) - index} operations are not timed")
                return
            progress.update(task, description=f"{operation.kind} {operation.shape}")
            sample = timed(operation, device, min(MOST_PER_OPERATION_SECONDS, left / (len(todo) - index)))
            _write(file, asdict(sample))
            console.print(_shown(sample), markup=False)
            progress.advance(task)


def _write(file: TextIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()


def _shown(sample: Sample) -> str:
    """Return a sample in one line, with the rates of its median."""
    what = f"{sample.kind} {' '.join(f'{key}={value}' for key, value in sample.shape.items())} {sample.dtype}"
    if sample.error:
        return f"{what}: {sample.error}"
    median = sorted(sample.seconds)[len(sample.seconds) // 2]
    rates = f"{sample.flops / median / 1e12:.3g} TFLOP/s, {sample.bytes / median / 1e9:.4g} GB/s" if median else ""
    digits = max(0, 3 - math.floor(math.log10(median * 1e6)) - 1) if median else 0
    return f"{what}: {median * 1e6:,.{digits}f} us, {rates}"


if __name__ == "__main__":
    raise SystemExit(main())
