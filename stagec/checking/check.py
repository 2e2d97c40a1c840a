"""`stagec check`: prove that a set of traces can run, or say why not."""

import os
from collections.abc import Callable

from stagec.checking.as_written import check_written, written_files
from stagec.checking.comm_groups import find_group_file, read_groups
from stagec.checking.deadlock import NOT_CHECKED, check_deadlock
from stagec.checking.findings import Findings, Place, ranges
from stagec.checking.group_rules import check_collectives, check_group_use
from stagec.checking.rank_analyses import RankAnalyses
from stagec.checking.report import Report, SetSummary
from stagec.checking.scan import scan_traces
from stagec.checking.trace_file import TraceFiles, find_traces
from stagec.checking.trace_set import CheckedSet
from stagec.checking.transfer_rules import check_transfers

TARGETS = ("astra-sim", "none")
"""`none` leaves out the rules of a simulator, and asks only what any consumer must."""

MUST_HOLD = (
    *(f"E069{number}" for number in range(10)),
    *("E0620", "E0621", "E0622"),
    *("E0630", "E0631", "E0632", "E0633", "E0640", "E0641", "E0642", "E0643", "E0644", "E0647"),
    *(f"E06{number}" for number in range(48, 58)),
)
"""Faults after which a replay would only repeat them in other words."""

Progress = Callable[[int, int], None]


def check_traces(
    directory: str | os.PathLike[str],
    comm_group: str | os.PathLike[str] | None = None,
    target: str = "astra-sim",
    jobs: int | None = None,
    progress: Progress | None = None,
    stress: int = 0,
) -> Report:
    """Check every trace set in a directory.

    `comm_group` is the file of groups; without it `comm_group.json`, or `PREFIX.json`, beside the
    traces. `jobs` processes read files (all cores by default). `progress` is called with the number
    of files read and of all. `stress` adds that many replays with random run times.
    """
    assert target in TARGETS, target
    directory = os.fspath(directory)
    findings = Findings()
    sets, stray = find_traces(directory)
    for code, name, detail in stray:
        message = "the directory cannot be read" if code == "E0690" else "a file is left out"
        findings.add(code, message, Place(file=name, detail=detail))
    if not sets and not findings.has(["E0690"]):
        message = "there are no files PREFIX.<rank>.et"
        findings.add("E0690", message, Place(file=directory))
    if len(sets) > 1:
        names = ", ".join(s.prefix[:40] for s in sets[:6]) + (", ..." if len(sets) > 6 else "")
        detail = f"{len(sets)} of them: {names}"
        findings.add("W0690", "the directory holds several sets", Place(detail=detail))
    written = written_files(directory)
    crcs: dict[str, int] = {}
    summaries = [
        _check_set(
            directory,
            trace_set,
            findings,
            comm_group,
            target,
            jobs,
            progress,
            stress,
            crcs if written else None,
        )
        for trace_set in sets
    ]
    check_written(directory, written, crcs, findings)
    return Report(directory, target, findings.all(), _joined(summaries))


def _check_set(
    directory: str,
    trace_set: TraceFiles,
    findings: Findings,
    comm_group: str | os.PathLike[str] | None,
    target: str,
    jobs: int | None,
    progress: Progress | None,
    stress: int,
    crcs: dict[str, int] | None,
) -> SetSummary:
    """What is in a set; what is wrong with it goes to `findings`, the CRC-32 of each file to `crcs`, if there is one."""
    astra_sim = target == "astra-sim"
    _check_files(trace_set, findings, astra_sim)
    files = [trace_set.files[rank] for rank in sorted(trace_set.files)]
    scan = scan_traces(files, astra_sim, jobs, progress, crcs is not None)
    if crcs is not None:
        crcs.update(scan.crcs)
    reader = RankAnalyses(trace_set.files, astra_sim)
    for rank in sorted(scan.summaries):
        for local in scan.summaries[rank].found:
            for node, name, detail in local.examples:
                place = Place(reader.file(rank), rank, node, name, detail)
                findings.add(local.code, local.message, place)
            more = local.count - len(local.examples)
            if more:
                findings.add_unshown(local.code, local.message, rank, more)
        if astra_sim and scan.summaries[rank].compressed:
            place = Place(reader.file(rank), rank)
            findings.add("E0680", "the target does not read compressed traces", place)
    path = os.fspath(comm_group) if comm_group else find_group_file(directory, trace_set.prefix)
    groups = read_groups(path, set(trace_set.files), findings, astra_sim)
    checked = CheckedSet(scan, groups, findings, reader, astra_sim)
    check_group_use(checked)
    orders = check_collectives(checked)
    check_transfers(checked)
    deadlock = NOT_CHECKED
    if scan.summaries and not findings.has(MUST_HOLD):
        deadlock = check_deadlock(checked, orders, stress)
    return SetSummary(
        num_files=len(files),
        num_distinct=len({id(summary) for summary in scan.summaries.values()}),
        num_programs=len({s.program for s in scan.summaries.values() if s.program}),
        num_nodes=sum(summary.num_nodes for summary in scan.summaries.values()),
        num_groups=len(checked.used_groups),
        deadlock=deadlock,
    )


def _check_files(trace_set: TraceFiles, findings: Findings, astra_sim: bool) -> None:
    messages = {"E0691": "the file cannot be read", "E0697": "a file name is not understood"}
    for code, name, detail in trace_set.faults:
        findings.add(code, messages[code], Place(file=name, detail=detail))
    ranks = sorted(trace_set.files)
    unreadable = {name for code, name, _ in trace_set.faults if code == "E0691"}
    last = ranks[-1] if ranks else -1
    # A rank number beyond all reason is a name, not a count of files: do not list what is missing.
    num_missing = last + 1 - len(ranks)
    if num_missing > len(unreadable):
        present = set(ranks)
        missing = [r for r in range(min(last, len(ranks) + 1000)) if r not in present]
        findings.add(
            "E0696",
            "ranks have no trace",
            Place(
                file=f"{trace_set.prefix}.{missing[0]}.et",
                detail=f"of ranks 0-{last}, {num_missing:,} are missing: {ranges(missing)}",
            ),
        )
    if astra_sim and len(ranks) == 1 and last == 0:
        place = Place(trace_set.files[0].name, 0)
        findings.add("E0682", "there is only one rank", place)
    for rank in ranks if astra_sim else ():
        if not trace_set.files[rank].writable:
            place = Place(trace_set.files[rank].name, rank)
            findings.add("E0681", "the trace is not writable", place)


def _joined(summaries: list[SetSummary]) -> SetSummary:
    if len(summaries) == 1:
        return summaries[0]
    return SetSummary(
        num_files=sum(s.num_files for s in summaries),
        num_distinct=sum(s.num_distinct for s in summaries),
        num_programs=sum(s.num_programs for s in summaries),
        num_nodes=sum(s.num_nodes for s in summaries),
        num_groups=sum(s.num_groups for s in summaries),
        deadlock="; ".join(dict.fromkeys(s.deadlock for s in summaries)),
    )
