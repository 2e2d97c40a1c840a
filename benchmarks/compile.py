"""What compiling costs: CPU seconds from text to rank classes, ops of IR, and the command line itself.

    PYTHONPATH=. python benchmarks/compile.py [MODEL.stg ...]

Each plan of each example, once in a fresh process (`whole`: what a user waits for, start-up and imports
included, in CPU of user and system) and once in this one (`warm`). `ops` is the largest IR of all
passes. Exit status 1 if a limit is exceeded.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from stagec.diagnostics import CompileError
from stagec.driver import Compiled, Stops, compile_model
from stagec.frontend import parse_file
from stagec.frontend.syntax import Plan

ROOT = Path(__file__).parents[1]
STAGEC = [sys.executable, "-c", "import sys; from stagec.cli import main; sys.exit(main())"]

COMPILE_S = 3.0
"""CPU from text to rank classes."""
VERSION_S = 0.060
"""Wall time of `stagec --version`."""
LLAMA_S = 10.0
"""CPU of Llama 3 70B on 64 ranks, files included."""
MOST_OPS = 3000


def main(arguments: Sequence[str]) -> int:
    paths = [Path(a) for a in arguments] or sorted((ROOT / "examples").glob("*.stg"))
    exceeded = compile_examples(paths)
    exceeded += version()
    exceeded += llama()
    print(f"{exceeded} limits exceeded")
    return int(exceeded > 0)


def compile_examples(paths: Sequence[Path]) -> int:
    """How many plans exceed a limit."""
    print(
        f"{'model':16} {'plan':16} {'ranks':>8} {'classes':>8} {'ops':>6} {'warm s':>7} {'whole s':>8}"
    )
    exceeded = 0
    for path in paths:
        for plan in plans_of(path):
            most_ops = 0

            def count(_: str, module: ModuleOp) -> None:
                nonlocal most_ops
                most_ops = max(most_ops, sum(1 for _ in module.walk()))

            try:
                compiled, warm = timed(path, plan, Stops(on_pass=count))
            except CompileError as error:
                print(f"{path.stem:16} {plan:16} {error.diagnostics[0].message}")
                exceeded += 1
                continue
            whole = cpu_of([*STAGEC, str(path), "--plan", plan, "-q"])
            traces = compiled.trace_set
            row = f"{traces.mesh.num_ranks:8,} {len(traces.classes):8} {most_ops:6,}"
            print(f"{path.stem:16} {plan:16} {row} {warm:7.2f} {whole:8.2f}")
            exceeded += whole >= COMPILE_S or most_ops >= MOST_OPS
    return exceeded


def plans_of(path: Path) -> list[str]:
    program = parse_file(path).files[str(path)]
    return [item.name.text for item in program.items if isinstance(item, Plan)]


def timed(path: Path, plan: str, stops: Stops) -> tuple[Compiled, float]:
    """The compiled model, and CPU seconds of a second compilation without counting."""
    compiled = compile_model(path, plan, stops=stops)
    begin = time.process_time()
    compile_model(path, plan)
    return compiled, time.process_time() - begin


def cpu_of(command: Sequence[str]) -> float:
    """User and system seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=ROOT, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def version() -> int:
    """The best of twenty: what the program takes, not what else the machine does."""
    times: list[float] = []
    for _ in range(20):
        begin = time.perf_counter()
        subprocess.run([*STAGEC, "--version"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    best, median = min(times), sorted(times)[len(times) // 2]
    print(f"--version: {1000 * best:.0f} ms, {1000 * median:.0f} ms the median (wall)")
    return int(best >= VERSION_S)


def llama() -> int:
    """Text to files."""
    model = ROOT / "examples" / "llama3_70b.stg"
    with tempfile.TemporaryDirectory() as out:
        command = [*STAGEC, str(model), "--plan", "dp8_tp8", "-q", "-o", f"{out}/traces"]
        seconds = cpu_of(command)
        num_bytes = sum(p.stat().st_size for p in Path(out, "traces").iterdir())
    print(f"llama3_70b on 64 ranks: {seconds:.2f} s of CPU, {num_bytes / 1e6:.0f} MB in files")
    return int(seconds >= LLAMA_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
