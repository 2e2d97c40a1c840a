"""`python -m tests.fidelity DIR [--only NAME...] [--show-text]`: compare traces with measured runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fidelity.attention_text import NotInTheLanguage
from tests.fidelity.oracle import read_case
from tests.fidelity.report import outcome_text, summary_text
from tests.fidelity.run import run_case
from tests.fidelity.stg_text import stg_text


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fidelity", description=__doc__)
    parser.add_argument("directory", type=Path, help="where the measured cases are (*.json)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these cases alone")
    parser.add_argument("--show-text", action="store_true", help="print each case's .stg text")
    options = parser.parse_args(arguments)
    paths = sorted(options.directory.glob("*.json"))
    if options.only:
        unknown = set(options.only) - {path.stem for path in paths}
        if unknown:
            parser.error(f"not in {options.directory}: {', '.join(sorted(unknown))}")
        paths = [path for path in paths if path.stem in options.only]
    if not paths:
        parser.error(f"{options.directory} has no cases")
    outcomes = []
    for path in paths:
        case = read_case(path)
        if options.show_text:
            try:
                print(stg_text(case))
            except NotInTheLanguage as reason:
                print(f"# {case.name}: there are no words for {reason}\n")
        outcome = run_case(case)
        print(outcome_text(outcome), end="\n\n", flush=True)
        outcomes.append(outcome)
    print(summary_text(outcomes))
    return 0 if all(outcome.agrees for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
