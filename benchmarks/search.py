"""Plans per second of `stagec search`: `python -m benchmarks.search [MODEL.stg] [--devices 64] [--batch 256]`.

Told are the points of the space, how many were evaluated by closed forms in how many seconds, how many a lower bound on their time
leaves out, and which share of the space was decided: left out by a bound on memory, a condition or its memory, or compiled whole.
What is left is slower in outline than all that was compiled.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from stagec.backend.executors import open_executor
from stagec.frontend import check, parse_text
from stagec.searching.model import read_model
from stagec.searching.objective import asks_time, objective, rises
from stagec.searching.results import Goal
from stagec.searching.search import Search
from stagec.searching.space import default_space, fix


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.search", description=__doc__)
    parser.add_argument("model", nargs="?", default="examples/llama3_8b.stg")
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--fix", action="append", default=[])
    parser.add_argument("--minimise", default="step_time")
    parser.add_argument("--executor", default="processes")
    options = parser.parse_args()
    text = Path(options.model).read_text()
    dims = read_model(check(parse_text(text, options.model)))
    space = default_space(dims, options.devices, 8)
    for each in options.fix:
        fix(space, each)
    goal = Goal(
        options.model,
        text,
        dims,
        (options.devices,),
        options.batch,
        ("device h100",),
        80 * 2**30 * 94 // 100,
        objective(options.minimise),
        rises=rises(options.minimise),
        is_timed=asks_time(options.minimise),
    )
    started = time.perf_counter()
    with open_executor(options.executor) as executor:
        search = Search(goal, [space], executor)
        listed = time.perf_counter() - started
        outcome = search.run()
    seconds = time.perf_counter() - started
    decided = outcome.num_points - outcome.num_undecided - outcome.num_slower
    sys.stdout.write(
        f"{outcome.num_points:,} plans listed in {listed:.1f} s; {outcome.num_bounded:,} left out by a bound, "
        f"{outcome.num_outlined:,} by closed forms; {seconds:.1f} s in all, "
        f"{outcome.num_points / seconds:,.0f} plans/s\n"
        f"{outcome.num_slower:,} cannot be better than the best, by a lower bound on their time; "
        f"decided by their memory or by a whole compilation: {100 * decided / max(outcome.num_points, 1):.1f} % of the space; "
        f"{len(outcome.mismatches)} differ from their closed forms\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
