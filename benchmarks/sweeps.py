"""What a sweep over 10,000 plans costs, in CPU seconds, with the compilations that it starts from.

    python benchmarks/sweeps.py [--timed] [MODEL.stg PLAN SETTING...]

A SETTING is as for `stagec explain --sweep`: `tp=1,2,4,8`. `--timed` asks for the time of a step on an H100.
Exit status 1 if it takes 10 s or more, 20 s if timed.
"""

import sys
import time
from pathlib import Path

from stagec.estimate.step import on_device
from stagec.frontend import check, parse_file
from stagec.sweeping.grid import grid
from stagec.sweeping.plans import SweepRequest
from stagec.sweeping.run import sweep

LIMIT_S = {False: 10.0, True: 20.0}
COLUMNS = {False: ("flops", "comm", "memory.peak"), True: ("step_time",)}
DEFAULT = (
    str(Path(__file__).parents[1] / "examples" / "llama3_8b.stg"),
    "dp8_tp8",
    "tp=1,2,4,8",
    "dp=1,2,4,8,16,32,64,128",
    "microbatch=1,2,4,8",
    "B=128,256,512,1024,2048,4096",
    "S=1024..1036",
)


def main(arguments: list[str]) -> int:
    timed = "--timed" in arguments
    model, plan, *settings = [a for a in arguments if a != "--timed"] or DEFAULT
    source = parse_file(model)
    sizes = check(source, plan).sizes
    known = [*sizes.dims, *sizes.axes, "microbatch"]
    listed = grid(settings, known)
    asked = SweepRequest(
        source, plan, {}, listed, COLUMNS[timed], lambda own: on_device(own, "h100")
    )
    begin = time.process_time()
    table = sweep(asked)
    took = time.process_time() - begin
    print(
        f"{table.num_points:,} plans, {table.num_rows:,} of them feasible: {took:.2f} s of {LIMIT_S[timed]:g} s"
    )
    return int(took >= LIMIT_S[timed])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
