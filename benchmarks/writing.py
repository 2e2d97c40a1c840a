"""How fast traces are written, beside how fast the machine copies the same files.

    PYTHONPATH=. python benchmarks/writing.py [--directory DIR] [--executor threads] [CASE ...]

Jobs are synthetic: a pipelined model of the tests, as large as a case says. `user` is CPU time of
our own, `system` that of the kernel, which is file writing; both of this process and its children.
"""

import argparse
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stagec.backend.bundle import Bundle, read_bundle, write_bundle
from stagec.backend.encode import encode_unproved
from stagec.backend.encoded import EncodedTraces, TraceOptions
from stagec.backend.node_records import NameStyle
from stagec.backend.stamping import Compression, recent_stamps
from stagec.backend.writer import WriteOptions, iterate_traces, write_traces
from tests.unit.backend_samples import pipelined_job


@dataclass(frozen=True)
class Case:
    """A job: its mesh, layers and microbatches."""

    dp: int
    pp: int
    tp: int
    layers: int
    microbatches: int
    names: NameStyle = "short"
    compress: Compression = "none"

    def encode(self) -> EncodedTraces:
        job = pipelined_job(self.dp, self.pp, 1, self.tp, self.layers, self.microbatches)
        return encode_unproved(job, TraceOptions(self.names))


CASES = {
    "32k ranks, 500 nodes": Case(1024, 4, 8, 36, 4),
    "131k ranks, 130 nodes, no names": Case(4096, 4, 8, 36, 1, names="none"),
    "2k ranks, 25k nodes": Case(16, 16, 8, 128, 220),
    "2k ranks, 25k nodes, full names": Case(16, 16, 8, 128, 220, names="full"),
    "2k ranks, 25k nodes, gzip": Case(16, 16, 8, 128, 220, compress="gzip"),
}
MILLION = Case(2**13, 16, 8, 128, 16)


@dataclass(frozen=True)
class Cost:
    """Seconds."""

    wall: float
    user: float
    system: float

    def __str__(self) -> str:
        return f"{self.wall:6.2f} s wall, {self.user:.2f} s user, {self.system:.2f} s system"


def clock(action: Callable[[], object]) -> Cost:
    wall, before = time.perf_counter(), _times()
    action()
    after = _times()
    return Cost(time.perf_counter() - wall, after[0] - before[0], after[1] - before[1])


def _times() -> tuple[float, float]:
    both = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime for u in both), sum(u.ru_stime for u in both)


def memory_mb() -> float:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(name: str, case: Case, directory: Path, executor: str) -> None:
    recent_stamps.clear()
    traces = case.encode()
    options = WriteOptions(executor=executor, compress=case.compress)
    out = directory / "traces"
    write = clock(lambda: write_traces(traces, str(out), options))
    num_bytes = sum(path.stat().st_size for path in out.iterdir())
    num_ranks = traces.mesh.num_ranks
    nodes = sum(
        len(m) * traces.classes[n].num_nodes for n, m in traces.by_class(np.arange(num_ranks))
    )
    copy = clock(
        lambda: subprocess.run(["cp", "-r", str(out), str(directory / "copy")], check=True)
    )
    groups = (out / "comm_group.json").stat().st_size
    print(
        f"{name}: {num_bytes / 1e9:.2f} GB, {num_bytes / nodes:.0f} bytes a node, "
        f"comm_group.json {groups / 1e6:.2f} MB\n"
        f"  write {write}: {write.user / num_ranks * 1e3:.3f} ms user a rank, "
        f"{num_bytes / write.wall / 1e9:.2f} GB/s\n"
        f"  cp -r {copy}\n"
        f"  ratio {write.wall / copy.wall:.2f}, peak memory {memory_mb():.0f} MB",
        flush=True,
    )
    shutil.rmtree(out)
    shutil.rmtree(directory / "copy")


def measure_million(directory: Path) -> None:
    path = directory / "job.bundle"
    write = clock(lambda: write_bundle(path, Bundle(MILLION.encode())))
    recent_stamps.clear()
    read = clock(lambda: next(iterate_traces(read_bundle(path).traces, "777777")))
    one = clock(
        lambda: write_traces(
            read_bundle(path).traces, str(directory / "one"), WriteOptions(ranks="777777")
        )
    )
    ranks = read_bundle(path).traces.num_ranks
    print(
        f"bundle of {ranks} ranks: {path.stat().st_size / 1e3:.0f} kB in {write.wall:.2f} s; "
        f"one rank of it in {read.wall:.2f} s, as a set in {one.wall:.2f} s; "
        f"peak memory {memory_mb():.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[*CASES, "bundle"])
    parser.add_argument("--directory", help="where to write; a temporary one by default")
    parser.add_argument("--executor", default="threads")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.directory) as directory:
        if "bundle" in chosen.cases:
            measure_million(Path(directory))
        for name in chosen.cases:
            if name in CASES:
                measure(name, CASES[name], Path(directory), chosen.executor)


if __name__ == "__main__":
    main()
