"""What a sweep over 10,000 plans costs, in CPU seconds, with the compilations that it starts from.

    python benchmarks/sweeps.py [--timed] [--pipelines] [MODEL.stg PLAN SETTING...]

A SETTING is as for `stagec explain --sweep`: `tp=1,2,4,8`. `--timed` asks for the time of a step on an H100. `--pipelines` sweeps Llama 3 70B over stages
and microbatches, each number of which has a graph of its own. Garbage is collected as seldom as the command does. Exit status 1 if it takes 10 s or more,
20 s if timed.
"""

import gc
import sys
import time
from pathlib import Path

from stagec.cli import SELDOM
from stagec.estimate.step import on_device
from stagec.frontend import check, parse_text
from stagec.sweeping.grid import grid
from stagec.sweeping.plans import SweepRequest
from stagec.sweeping.run import sweep

LIMIT_S = {False: 10.0, True: 20.0}
COLUMNS = {False: ("flops", "comm", "memory.peak"), True: ("step_time",)}
EXAMPLES = Path(__file__).parents[1] / "examples"
DEFAULT = (
    str(EXAMPLES / "llama3_8b.stg"),
    "dp8_tp8",
    "tp=1,2,4,8",
    "dp=1,2,4,8,16,32,64,128",
    "microbatch=1,2,4,8",
    "B=128,256,512,1024,2048,4096",
    "S=1024..1036",
)
PIPELINES = (
    str(EXAMPLES / "llama3_70b.stg"),
    "pipelined",
    "pp=1,2,4,8",
    "tp=1,2,4,8",
    "dp=4,8,16,32",
    "microbatch=1,2",
    "B=256,512,1024,2048",
    f"S={','.join(str(512 * number) for number in range(1, 21))}",
)
PLAN = """
plan pipelined extends dp8_tp8 {
  mesh dp = 8, pp = 4, tp = 8
  pipeline L over pp { schedule = 1f1b, microbatch = 1 }
}
"""


def main(arguments: list[str]) -> int:
    timed = "--timed" in arguments
    default = PIPELINES if "--pipelines" in arguments else DEFAULT
    model, plan, *settings = [a for a in arguments if not a.startswith("--")] or default
    source = parse_text(Path(model).read_text() + PLAN * (default is PIPELINES), model)
    sizes = check(source, plan).sizes
    known = [*sizes.dims, *sizes.axes, "microbatch"]
    listed = grid(settings, known)
    asked = SweepRequest(
        source, plan, {}, listed, COLUMNS[timed], lambda own: on_device(own, "h100")
    )
    gc.set_threshold(*SELDOM)
    begin = time.process_time()
    table = sweep(asked)
    took = time.process_time() - begin
    print(
        f"{table.num_points:,} plans, {table.num_rows:,} of them feasible: {took:.2f} s of {LIMIT_S[timed]:g} s"
    )
    return int(took >= LIMIT_S[timed])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
