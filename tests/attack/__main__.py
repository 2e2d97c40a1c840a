"""`python -m tests.attack [--seed N] [--budget SECONDS] [--only KIND ...]`: random cases of all kinds."""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.attack.case import Failure, Kind, attempt, shrink
from tests.attack.devices import DEVICES
from tests.attack.executors import EXECUTORS
from tests.attack.files import FILES
from tests.attack.ir import IR
from tests.attack.large import SIZED
from tests.attack.plans import PLANS, SWEEPS
from tests.attack.processes import DISKS, KILLS, STREAMS
from tests.attack.seeded import SEEDED as FAULTS, SETS, found_in
from tests.attack.slips import SLIPS, TYPOS
from tests.attack.texts import TEXTS
from tests.attack.traces import SEEDED, TRACES

KINDS = {
    kind.name: kind
    for kind in (
        TEXTS,
        SIZED,
        PLANS,
        SWEEPS,
        IR,
        TRACES,
        SEEDED,
        SETS,
        TYPOS,
        DEVICES,
        FILES,
        DISKS,
        STREAMS,
        KILLS,
        EXECUTORS,
    )
}
SLICE_SECONDS = 4
MOST_SHOWN = 20


def case_of(kind: Kind, seed: int, number: int) -> Any:
    """A case, by the seed of a run and its number in it."""
    return kind.make(random.Random(f"{kind.name} {seed} {number}"))


def where(error: Exception) -> str:
    """What failures of one cause have in common."""
    if isinstance(error, Failure):
        return f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {frame.filename.rpartition('/')[2]}:{frame.lineno}"


def attack(kinds: Sequence[Kind], seed: int, budget: float, cases: int, first: int = 0) -> int:
    """Run cases in turns until time is up, or there were so many of each kind; how many causes of failure were found."""
    end = time.monotonic() + budget
    number = dict.fromkeys((kind.name for kind in kinds), first)
    causes: Counter[str] = Counter()
    waiting = list(kinds)
    while waiting and time.monotonic() < end:
        for kind in list(waiting):
            turn = min(end, time.monotonic() + SLICE_SECONDS)
            while time.monotonic() < turn and number[kind.name] < first + cases:
                case = case_of(kind, seed, number[kind.name])
                error = attempt(kind, case)
                if error is not None:
                    cause = f"{kind.name}: {where(error)}"
                    causes[cause] += 1
                    if causes[cause] == 1 and len(causes) <= MOST_SHOWN:
                        show(kind, seed, number[kind.name], case, error)
                number[kind.name] += 1
            if number[kind.name] >= first + cases:
                waiting.remove(kind)
    for kind in kinds:
        print(f"{kind.name}: {number[kind.name] - first:,} cases")
    for cause, count in causes.most_common():
        print(f"{count:6} x {cause}")
    return len(causes)


def show(kind: Kind, seed: int, number: int, case: Any, error: Exception) -> None:
    case, error = shrink(kind, case, error)
    line = (
        "".join(traceback.format_exception(error)[-3:])
        if not isinstance(error, Failure)
        else str(error)
    )
    print(f"\n{kind.name}: {where(error)}\n{line}\n{kind.show(case)}")
    print(
        f"again: python -m tests.attack --only {kind.name} --seed {seed} --first {number} --cases 1\n",
        flush=True,
    )


def list_faults() -> int:
    """All seeded faults and slips, with what finds them; how many are not found."""
    wrong = 0
    for fault in FAULTS:
        error = attempt(SETS, fault)
        wrong += error is not None
        found = ", ".join(sorted(found_in(fault)[1])) or "W0692"
        says = f"changes no run: {fault.why}" if fault.why else found
        print(f"{fault.name}: {says if error is None else f'NOT FOUND: {error}'}")
    for slip in SLIPS:
        error = attempt(TYPOS, slip)
        wrong += error is not None
        print(f"{slip.name}: {slip.codes if error is None else f'NOT FOUND: {error}'}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.attack", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=60, metavar="SECONDS")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--cases", type=int, default=1 << 40, help="of each kind at most")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument(
        "--faults",
        action="store_true",
        help="try each seeded fault and slip, and list what finds it",
    )
    options = parser.parse_args()
    if options.faults:
        return int(list_faults() > 0)
    # What is imported stays: looking through it for garbage again and again is a fifth of the time.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    kinds = [KINDS[name] for name in options.only]
    return int(attack(kinds, options.seed, options.budget, options.cases, options.first) > 0)


if __name__ == "__main__":
    sys.exit(main())
