"""`python -m tests.fidelity [CASES] [--only NAME...] [--show-text]`: compare traces with measured runs.

`python -m tests.fidelity --random N --seed S` draws cases and runs them with PyTorch first.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.fidelity.archive import RECORDED, names_in, read_cases
from tests.fidelity.capture import DEFAULT
from tests.fidelity.oracle import NotInTheLanguage
from tests.fidelity.randomly import run_random
from tests.fidelity.report import outcome_text, summary_text
from tests.fidelity.run import run_case
from tests.fidelity.stg_text import stg_text

CASES_AT_ONCE = 4
"""How many cases a process is given at a time."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fidelity", description=__doc__)
    parser.add_argument(
        "cases",
        type=Path,
        nargs="?",
        default=RECORDED,
        help="a folder of measured cases (*.json) or an archive (*.jsonl.gz); by default those of the repository",
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these cases alone")
    parser.add_argument("--show-text", action="store_true", help="print each case's .stg text")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="draw N cases")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument(
        "--fake",
        action="store_true",
        help="draw runs on fake tensors, whose live peaks are compared",
    )
    parser.add_argument(
        "--composed", action="store_true", help="draw blocks of other parts than a transformer's"
    )
    parser.add_argument("--capture", type=Path, default=DEFAULT, help="the capture tool")
    parser.add_argument("--keep", type=Path, help="write what was drawn and run to this archive")
    parser.add_argument(
        "--no-shrink", dest="shrink", action="store_false", help="show what differs as it was drawn"
    )
    options = parser.parse_args(arguments)
    if options.random:
        if not options.capture.is_file():
            parser.error(
                f"there is no capture tool at {options.capture}: say where, with --capture"
            )
        return run_random(options)
    if not options.cases.exists():
        parser.error(f"there is no {options.cases}")
    known = names_in(options.cases)
    if options.only and (unknown := set(options.only) - set(known)):
        parser.error(f"not in {options.cases}: {', '.join(sorted(unknown))}")
    if not known:
        parser.error(f"{options.cases} has no cases")
    outcomes = []
    with ProcessPoolExecutor() as pool:
        cases = read_cases(options.cases, options.only)
        # In the order of the archive, whichever is done first.
        for outcome in pool.map(run_case, cases, chunksize=CASES_AT_ONCE):
            if options.show_text:
                try:
                    print(stg_text(outcome.case))
                except NotInTheLanguage as reason:
                    print(f"# {outcome.case.name}: there are no words for {reason}\n")
            print(outcome_text(outcome), end="\n\n", flush=True)
            outcomes.append(outcome)
    print(summary_text(outcomes))
    return 0 if all(outcome.agrees and not outcome.not_yet for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
