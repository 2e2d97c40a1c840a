"""Measured cases: a folder with a JSON file each, or one archive with a case per line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.fidelity.oracle import Case, case_of

RECORDED = Path(__file__).parent / "cases" / "recorded.jsonl.gz"
"""The cases of the repository."""


def names_in(place: Path) -> list[str]:
    """The cases of a folder or an archive."""
    if place.is_dir():
        return sorted(path.stem for path in place.glob("*.json"))
    return [data["name"] for data in lines_of(place)]


def read_cases(place: Path, names: Iterable[str] | None = None) -> Iterator[Case]:
    """All cases, or those of these names."""
    chosen = None if names is None else set(names)
    if place.is_dir():
        for path in sorted(place.glob("*.json")):
            if chosen is None or path.stem in chosen:
                yield case_of(json.loads(path.read_text()), path.stem)
        return
    for data in lines_of(place):
        if chosen is None or data["name"] in chosen:
            yield case_of(whole(data), data["name"])


def lines_of(archive: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(archive, "rt") as file:
        for line in file:
            yield json.loads(line)


def write_archive(archive: Path, cases: Iterable[dict[str, Any]]) -> int:
    """Write cases, each once, by name. The same cases make the same bytes. Returns how many they are."""
    by_name = {data["name"]: compact(data) for data in cases}
    lines = [json.dumps(by_name[name], separators=(",", ":")) for name in sorted(by_name)]
    text = "".join(f"{line}\n" for line in lines)
    archive.write_bytes(gzip.compress(text.encode(), mtime=0))
    return len(lines)


KEPT = ("coord", "stages", "flops", "matmuls", "collectives", "memory")
"""What is compared of a rank."""


def compact(data: dict[str, Any]) -> dict[str, Any]:
    """Without what is not compared. Communications that a case repeats are said once, and by number then."""
    table: dict[str, int] = {}
    ranks: dict[str, Any] = {}
    for rank, entry in data["ranks"].items():
        kept = {key: entry[key] for key in KEPT if key in entry}
        kept["collectives"] = [
            table.setdefault(json.dumps(row), len(table)) for row in entry["collectives"]
        ]
        ranks[rank] = kept
    return {**data, "ranks": ranks, "communications": [json.loads(row) for row in table]}


def whole(data: dict[str, Any]) -> dict[str, Any]:
    """A case as it was recorded, from its line."""
    rows = data["communications"]
    ranks = {
        rank: {**entry, "collectives": [rows[number] for number in entry["collectives"]]}
        for rank, entry in data["ranks"].items()
    }
    return {**data, "ranks": ranks}
