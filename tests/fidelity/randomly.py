"""Draw cases, run them with PyTorch and with stagec, compare, and shrink what differs."""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fidelity.archive import write_archive
from tests.fidelity.capture import NotCaptured, capture
from tests.fidelity.compare import Outcome
from tests.fidelity.draw import Words, draw, draw_composed, draw_fake, text_of
from tests.fidelity.oracle import case_of
from tests.fidelity.report import outcome_text, summary_text
from tests.fidelity.run import run_case
from tests.fidelity.shrink import shrunk

AT_ONCE = 8
"""Cases of one run of the capture tool, which takes seconds to begin."""


def run_random(options: Namespace) -> int:
    """0 if all that PyTorch runs agrees."""
    rng = random.Random(options.seed)
    one, letter = draw, "r"
    if options.fake or options.composed:
        one, letter = (draw_fake, "f") if options.fake else (draw_composed, "c")
    drawn = [one(rng, f"{letter}{options.seed}_{i}") for i in range(options.random)]
    outcomes: list[Outcome] = []
    recorded: list[dict[str, Any]] = []
    missed = 0
    for start in range(0, len(drawn), AT_ONCE):
        group = drawn[start : start + AT_ONCE]
        for words, data in zip(group, captured_in_order(options.capture, group), strict=True):
            if isinstance(data, NotCaptured):
                missed += 1
                print(f"{words['name']}  NOT RUN BY PYTORCH: {text_of(words)}\n{data}\n")
                continue
            recorded.append(data)
            outcome = run_case(case_of(data, str(words["name"])))
            outcomes.append(outcome)
            print(f"{text_of(words)}\n{outcome_text(outcome)}\n", flush=True)
            if not outcome.agrees and options.shrink:
                wrong = subjects(outcome)
                small = shrunk(words, lambda w, wrong=wrong: differs(options.capture, w, wrong))
                print(f"  smallest that differs: {text_of(small)}\n", flush=True)
        if options.keep:
            # After each group: what was run is there even if somebody stops the rest.
            write_archive(options.keep, recorded)
    print(summary_text(outcomes))
    if missed:
        print(f"{missed} not run by PyTorch")
    return 0 if all(o.agrees and not o.not_yet for o in outcomes) else 1


def captured_in_order(tool: Path, group: Sequence[Words]) -> list[dict[str, Any] | NotCaptured]:
    found = capture(tool, group)
    return [found[str(words["name"])] for words in group]


def differs(tool: Path, words: Words, wrong: set[str]) -> bool:
    """Whether a simpler case differs in something that the first one differs in."""
    (data,) = captured_in_order(tool, [words])
    if isinstance(data, NotCaptured):
        return False
    outcome = run_case(case_of(data, str(words["name"])))
    return bool(subjects(outcome) & wrong)


def subjects(outcome: Outcome) -> set[str]:
    """What differs of a case."""
    if outcome.not_yet or outcome.error:
        return {outcome.not_yet or "compiles"}
    return {f.subject for findings in outcome.findings.values() for f in findings if not f.agrees}
