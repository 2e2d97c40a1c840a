"""Compare stagec's schedules with what PyTorch ran, action for action.

    python -m tests.fidelity.pipelines PLACE

PLACE is a folder with a JSON file per schedule and size, as `shared/oracles/pipelines` describes them, or an archive with
a line per file; in the repository `tests/fidelity/cases/pipelines.jsonl.gz`. For each
file: the order of every rank's compute and transfers (`runtime`), the stages of every rank, the
microbatches in flight, and that our validator accepts the schedule; of a size that PyTorch rejects,
that we reject it for the same reason. If there is a `published.json` beside PLACE, the bubbles and in-flight
counts that papers publish are compared too. Exit status 1 if anything differs.
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from stagec.schedules import Schedule, ScheduleError, build, validate
from tests.fidelity.archive import lines_of
from tests.fidelity.published_pipelines import compare_published

OURS = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved_1f1b",
    "LoopedBFS": "looped_bfs",
    "InterleavedZeroBubble": "interleaved_zero_bubble",
    "ZBVZeroBubble": "zb_v",
    "DualPipeV": "dualpipe_v",
}

REASONS = {
    r"greater than\s+or equal to the number of stages": "too-few-microbatches",
    r"at least as many microbatches as stages": "too-few-microbatches",
    r"requires exactly \d+ stages? per rank": "stages-per-rank",
    r"multiple of the number of rounds": "uneven-rounds",
    r"can't schedule sends/recvs": "stuck",
}
"""What PyTorch's messages say, as `ScheduleError.reason`."""


@dataclass(frozen=True)
class Line:
    """The outcome of one comparison; `note` says what differs, or why there was none."""

    case: str
    verdict: str
    actions: int = 0
    note: str = ""


def runtime(schedule: Schedule, rank: int) -> list[str]:
    """A rank's order in the oracle's spelling: batches in brackets, an overlapped pair as two."""
    order: list[str] = []
    for group in schedule.groups(rank):
        words = [str(action) for action in group]
        batch = len(group) > 1 and group[0].is_transfer
        order += [f"[{' '.join(words)}]"] if batch else words
    return order


def first_difference(ours: list[str], theirs: list[str]) -> str:
    for number, (a, b) in enumerate(zip_longest(ours, theirs, fillvalue="nothing")):
        if a != b:
            return f"action {number}: ours {a}, theirs {b}"
    return ""


def differences(schedule: Schedule, oracle: dict[str, Any]) -> Iterator[str]:
    """What differs between our schedule and a measured one."""
    report = validate(schedule)
    for rank in range(schedule.num_ranks):
        key = str(rank)
        if where := first_difference(runtime(schedule, rank), oracle["runtime"][key]):
            yield f"rank {rank}, {where}"
        stages = schedule.stages_of(rank)
        if stages != oracle["stages_of_rank"][key]:
            yield f"rank {rank} has stages {stages}, theirs {oracle['stages_of_rank'][key]}"
        peak = int(report.in_flight.rank_peak[rank])
        if peak != oracle["peak_inflight_chunks_per_rank"][key]:
            yield f"rank {rank} peaks at {peak} in flight, theirs " + str(
                oracle["peak_inflight_chunks_per_rank"][key]
            )
        peaks = {str(s): int(report.in_flight.stage_peak[rank, s]) for s in stages}
        if peaks != oracle["peak_inflight_microbatches_per_stage"][key]:
            yield f"rank {rank} peaks per stage at {peaks}, theirs " + str(
                oracle["peak_inflight_microbatches_per_stage"][key]
            )


def reason_of(message: str) -> str:
    """What a message of PyTorch's rejects a schedule for; empty if we do not know it."""
    return next((reason for said, reason in REASONS.items() if re.search(said, message)), "")


def runs_in(place: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """What was measured, by name."""
    if place.is_dir():
        for path in sorted(place.glob("*.json")):
            yield path.stem, json.loads(path.read_text())
    else:
        for run in lines_of(place):
            yield run["name"], run


def compare(case: str, oracle: dict[str, Any]) -> Line:
    """Compare one run."""
    name = OURS.get(oracle["schedule"])
    if name is None:
        return Line(case, "not ours", note=f"no schedule for {oracle['schedule']}")
    rejected = oracle.get("rejected")
    sizes = oracle["ranks"], oracle["stages_per_rank"], oracle["microbatches"]
    try:
        schedule = build(name, *sizes, transfers="as_sent" if sizes[1] > 1 else None)
    except ScheduleError as error:
        if rejected is None:
            return Line(case, "DIFFERS", note=f"we reject it: {error.message}")
        if error.reason != reason_of(rejected):
            return Line(case, "DIFFERS", note=f"we reject it for {error.reason}, they: {rejected}")
        return Line(case, "agrees", note=f"both reject it: {error.reason}")
    if rejected is not None:
        return Line(case, "DIFFERS", note=f"we accept it, they do not: {rejected}")
    if oracle.get("errors"):
        return Line(case, "no oracle", note=f"their run failed: {oracle['errors']}")
    try:
        found = list(differences(schedule, oracle))
    except ScheduleError as error:
        found = [f"our validator refutes it: {error}"]
    return Line(case, "DIFFERS" if found else "agrees", len(schedule), "; ".join(found[:2]))


def compare_all(place: Path) -> list[Line]:
    """Compare every run, and the papers' formulas beside them."""
    lines = [compare(case, oracle) for case, oracle in runs_in(place)]
    published = place.parent / "published.json"
    if published.exists():
        formulas = json.loads(published.read_text())["pipeline"]
        for case, count, note in compare_published(formulas):
            lines.append(Line(case, "DIFFERS" if note else "agrees", count, note))
    return lines


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not Path(arguments[0]).exists():
        print(__doc__)
        return 2
    lines = compare_all(Path(arguments[0]))
    width = max((len(line.case) for line in lines), default=0)
    for line in lines:
        count = str(line.actions) if line.actions else ""
        print(f"{line.case:{width}}  {line.verdict:9}  {count:>7}  {line.note}".rstrip())
    differ = sum(line.verdict == "DIFFERS" for line in lines)
    agree = sum(line.verdict == "agrees" for line in lines)
    print(f"{agree} agree, {differ} differ, {len(lines) - agree - differ} not compared")
    return 1 if differ or not lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
