"""`python -m tests.differential [--seed 1] [--number 100] [--points 12] [--serving | --ways | --further | --examples | --solve | --track] [--names 8]`."""

from __future__ import annotations

import argparse
import sys
from random import Random

from tests.differential.further_plans import draw_further
from tests.differential.of_examples import draw_example
from tests.differential.random_plans import draw
from tests.differential.random_serving import draw_serving
from tests.differential.solutions import wrong_solutions
from tests.differential.sweeps import differences
from tests.differential.tracking import draw_tracked, wrong_tracking
from tests.differential.ways_to_write import DEVICE, differences_between_ways


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.differential", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first of the random plans")
    parser.add_argument("--number", type=int, default=100, help="how many")
    parser.add_argument("--points", type=int, default=12, help="points of a sweep, at most")
    parser.add_argument("--serving", action="store_true", help="plans that serve")
    parser.add_argument("--ways", action="store_true", help="one program in several ways")
    parser.add_argument("--further", action="store_true", help="plans with rarer clauses")
    parser.add_argument("--examples", action="store_true", help="plans of the examples")
    parser.add_argument("--solve", action="store_true", help="conditions on sizes")
    parser.add_argument("--track", action="store_true", help="tracked tensors")
    parser.add_argument("--names", type=int, default=8, help="further quantities, so many a plan")
    options = parser.parse_args()
    wrong = 0
    for seed in range(options.seed, options.seed + options.number):
        rng = Random(seed)
        plain = draw_further if options.further else draw
        if options.track:
            drawn = draw_tracked(rng)
        elif options.examples or options.serving:
            drawn = draw_example(rng) if options.examples else draw_serving(rng)
        else:
            drawn = plain(rng, DEVICE * options.ways)
        try:
            if options.ways:
                found = differences_between_ways(drawn, rng)
            elif options.track:
                found = wrong_tracking(drawn)
            elif options.solve:
                found = wrong_solutions(drawn, rng)
            else:
                found = differences(drawn, rng, options.points, options.names)
        except Exception as error:
            found = [f"{type(error).__name__}: {error}"]
        if found:
            wrong += 1
            lines = "\n  ".join(found[:6])
            plan = f"{drawn.plan} of {drawn.file}, {dict(drawn.sizes)}"
            if not options.examples:
                plan = drawn.text[drawn.text.index("plan p") :]
            asked = "" if options.ways or options.track else f"--sweep {' '.join(drawn.varied)}"
            sys.stdout.write(f"seed {seed}: {asked}\n  {lines}\n{plan}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{wrong} of {options.number} are wrong\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
