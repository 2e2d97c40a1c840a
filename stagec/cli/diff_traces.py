"""`stagec diff` of two sets of traces."""

from __future__ import annotations

import argparse
import json
import sys

from stagec.checking.findings import ranges
from stagec.cli.diff_tables import comparison_json, section_text, sections_text
from stagec.cli.progress import counting_progress
from stagec.cli.usage import usage_error
from stagec.comparing.comparison import AmountChange, Comparison
from stagec.comparing.traces import TraceComparison, TraceSide, compare_traces

SAME = "no difference in any class of node, on any rank"
MOST_CLASSES = 8
"""Classes of ranks that are printed."""


def diff_traces(a: str, b: str, options: argparse.Namespace) -> bool:
    """Compare two directories and print what differs; whether anything does."""
    refuse_model_flags(options)
    with counting_progress(options.quiet, "reading", "files") as progress:
        found = compare_traces(a, b, progress)
    if options.quiet:
        return found.differs
    sys.stdout.write(
        json.dumps(as_dict(found), indent=2) + "\n"
        if options.format == "json"
        else as_text(found, options.all)
    )
    return found.differs


def as_text(found: TraceComparison, show_all: bool) -> str:
    parts = [f"A: {describe(found.before)}\nB: {describe(found.after)}\n\n"]
    for name, ranks in zip("AB", found.only, strict=True):
        if ranks:
            parts.append(f"only in {name}: {count_ranks(ranks)}\n\n")
    if not found.differs:
        bytes_ = "the files are equal byte for byte"
        other = "the files differ in more than that, such as dependencies or the order of nodes"
        parts.append(f"{SAME}; {bytes_ if found.same_bytes else other}\n")
        return "".join([*parts, sections_text([found.totals], show_all)])
    parts.append(sections_text([found.totals], show_all))
    groups = alike(found)
    for changes, ranks in list(groups.items())[:MOST_CLASSES]:
        title = f"on {count_ranks(ranks)}"
        parts.append("\n" + section_text(Comparison(title, KEYS, changes), show_all))
    if len(groups) > MOST_CLASSES:
        rest = f"{len(groups) - MOST_CLASSES:,} more classes of ranks"
        parts.append(f"\n{rest} differ; `--format json` lists them\n")
    return "".join(parts)


KEYS = ("node", "with", "name")


def alike(found: TraceComparison) -> dict[tuple[AmountChange, ...], list[int]]:
    """The ranks in which the same differs."""
    groups: dict[tuple[AmountChange, ...], list[int]] = {}
    for each in found.classes:
        groups.setdefault(each.comparison.changes, []).extend(each.ranks)
    return groups


def describe(side: TraceSide) -> str:
    ranks = "1 rank" if len(side.files) == 1 else f"{len(side.files):,} ranks"
    classes = len(set(side.class_of.values()))
    return f"{side.directory}: {ranks}, {'1 class' if classes == 1 else f'{classes:,} classes'}"


def count_ranks(ranks: list[int] | tuple[int, ...]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks):,} ranks: {ranges(ranks)}"


def as_dict(found: TraceComparison) -> dict[str, object]:
    def side(each: TraceSide) -> dict[str, object]:
        return {
            "directory": each.directory,
            "ranks": len(each.files),
            "classes": len(set(each.class_of.values())),
        }

    def every(ranks: tuple[int, ...] | list[int]) -> str:
        return ranges(ranks, most=len(ranks) + 1)

    return {
        "version": 1,
        "same": not found.differs,
        "same_bytes": found.same_bytes,
        "a": side(found.before),
        "b": side(found.after),
        "only_a": every(found.only[0]),
        "only_b": every(found.only[1]),
        "totals": comparison_json(found.totals),
        "classes": [
            {"ranks": every(ranks), **comparison_json(Comparison("nodes", KEYS, changes))}
            for changes, ranks in alike(found).items()
        ],
    }


def refuse_model_flags(options: argparse.Namespace) -> None:
    """An option that is accepted is obeyed: E0711 for one about models, beside traces."""
    for flag in ("--set", "--set-a", "--set-b", "--load-pass", "--allow-code", "--trust"):
        if getattr(options, flag.removeprefix("--").replace("-", "_")):
            message = f"`{flag}` is about models, and these are traces"
            raise usage_error(flag, message, "E0711", "leave it out")
