"""Write the largest examples whole, and compare with copying the same files: `python -m benchmarks.examples`.

Prints wall time, the time of `cp -r` on the files just written, CPU time per rank, peak memory and bytes per node; then a job of a
million ranks as a bundle, and one rank out of it. Wants 30 GB of disk for everything; `--only NAME` takes one.
"""

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import stagec
from stagec.backend.bundle import Bundle, write_bundle
from stagec.backend.encode import encode_traces
from stagec.backend.encoded import TraceOptions
from stagec.backend.node_records import NameStyle
from stagec.backend.writer import WriteOptions, write_traces
from stagec.driver import compile_model

EXAMPLES = Path(__file__).parents[1] / "examples"

JOBS: dict[str, tuple[str, str, dict[str, str], NameStyle]] = {
    "llama3_70b": ("llama3_70b.stg", "ranks_32k", {}, "short"),
    "llama3_405b": ("llama3_405b.stg", "h100_16k", {}, "short"),
    "131072": ("llama3_70b.stg", "ranks_32k", {"dp": "4096", "B": "4096"}, "none"),
}
"""File, plan, sizes, node names."""

MILLION = ("llama3_70b.stg", "ranks_32k", {"dp": "32768", "B": "32768"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[*JOBS, "bundle"])
    parser.add_argument(
        "--directory", type=Path, help="where to write; a temporary one if not given"
    )
    options = parser.parse_args()
    for name, (file, plan, sizes, names) in JOBS.items():
        if options.only in (None, name):
            with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
                measure(name, file, plan, sizes, names, Path(scratch))
    if options.only in (None, "bundle"):
        measure_bundle(*MILLION)


def measure(
    name: str, file: str, plan: str, sizes: dict[str, str], names: NameStyle, scratch: Path
) -> None:
    start, cpu = time.perf_counter(), time.process_time()
    compiled = compile_model(EXAMPLES / file, plan, sizes)
    traces = encode_traces(compiled.trace_set, TraceOptions(names=names))
    compiled_s, compile_cpu = time.perf_counter() - start, time.process_time() - cpu
    report = write_traces(traces, str(scratch / "set"), WriteOptions())
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    nodes = sum(
        int(c.program.first_node[-1]) * ranks_of(compiled.trace_set, c)
        for c in compiled.trace_set.classes
    )
    copy = time.perf_counter()
    subprocess.run(["cp", "-r", scratch / "set", scratch / "copy"], check=True)
    copied = time.perf_counter() - copy
    shutil.rmtree(scratch / "copy")
    groups_mb = (scratch / "set" / "comm_group.json").stat().st_size / 1e6
    print(f"{name}: {report.num_ranks} ranks, {report.bytes_written / 1e9:.2f} GB")
    print(
        f"  wall {wall:.1f} s (compile {compiled_s:.1f} s), cp {copied:.1f} s: {wall / copied:.2f} x"
    )
    print(
        f"  CPU {used:.1f} s, of it compile {compile_cpu:.1f} s; {1e3 * used / report.num_ranks:.2f} ms a rank"
    )
    print(
        f"  {report.bytes_written / nodes:.0f} bytes a node; {peak_mb():.0f} MB at most; "
        f"comm_group.json {groups_mb:.2f} MB, {report.num_groups} groups"
    )


def ranks_of(traces, each) -> int:
    product = 1
    for axis, size in zip(traces.mesh.axes, traces.mesh.sizes, strict=True):
        product *= len(each.where.get(axis, range(size)))
    return product


def measure_bundle(file: str, plan: str, sizes: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "job.bundle"
        start = time.perf_counter()
        compiled = compile_model(EXAMPLES / file, plan, sizes)
        size = write_bundle(path, Bundle(encode_traces(compiled.trace_set)))
        ranks = compiled.trace_set.mesh.num_ranks
        print(f"{ranks} ranks to a bundle: {time.perf_counter() - start:.1f} s, {size} bytes")
        start = time.perf_counter()
        ((_, data),) = stagec.traces(path, ranks=str(ranks // 2 + 1))
        print(f"  one rank out of it: {time.perf_counter() - start:.3f} s, {len(data)} bytes")


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
