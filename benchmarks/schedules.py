"""What it costs to build and prove a schedule for p = 64, v = 8, m = 512, in CPU seconds.

    python benchmarks/schedules.py [P V M]

Every schedule of the catalogue is built with its transfers and validated; one that takes only
another v gets that one. Exit status 1 if any of them takes 5 s or more.
"""

import sys
import time

from stagec.schedules import CATALOGUE, build, names, validate

LIMIT_S = 5.0


def main(arguments: list[str]) -> int:
    p, v, m = (int(word) for word in arguments) if arguments else (64, 8, 512)
    worst = 0.0
    print(f"{'schedule':24} {'v':>2} {'actions':>9} {'build s':>8} {'prove s':>8}")
    for name in names():
        stages = CATALOGUE[name].stages_per_rank or v
        begin = time.process_time()
        schedule = build(name, p, stages, m)
        built = time.process_time()
        report = validate(schedule)
        proved = time.process_time()
        worst = max(worst, proved - begin)
        print(
            f"{name:24} {stages:2} {len(schedule):9} {built - begin:8.2f} {proved - built:8.2f}"
            f"   bubble {report.bubble:g}, {report.in_flight.rank_peak.max()} in flight"
        )
    print(f"worst: {worst:.2f} s of {LIMIT_S:g} s")
    return int(worst >= LIMIT_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
