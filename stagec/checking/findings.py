"""What a check found: diagnostics with a code, the places they hold, and what to do.

The same fault on thousands of ranks is one finding. Findings are told apart by code and message,
which never quote the trace; what differs from place to place is in the details.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stagec.checking.finding_codes import CODES

MAX_PLACES = 12
"""Places shown of one finding; more are only counted."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a finding holds: a node of a file, a file, or the whole set. `detail` says what is there."""

    file: str = ""
    rank: int | None = None
    node: int | None = None
    name: str = ""
    detail: str = ""


@dataclass(slots=True)
class SharedPlace:
    """The ranks that share a node and a detail."""

    first: Place
    ranks: set[int]


@dataclass
class Finding:
    """One fault, wherever it is."""

    code: str
    message: str
    help: str
    places: list[SharedPlace] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    count: int = 0
    """Nodes (or files, or groups) that have it, on all ranks together."""
    unshown: int = 0
    """How many of these are at no place in `places`."""

    @property
    def is_error(self) -> bool:
        return self.code.startswith("E")


class Findings:
    """Collects findings and merges those that are the same."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], Finding] = {}
        self._by_place: dict[tuple[str, str, int | None, str, str], SharedPlace] = {}

    def add(
        self,
        code: str,
        message: str,
        place: Place,
        ranks: Sequence[int] = (),
        count: int = 1,
    ) -> None:
        """Add a finding that `count` nodes have on each of `ranks` (or on that of `place` alone).

        `place` is one of them. The same place on another rank is added to the first.
        """
        if not ranks and place.rank is not None:
            ranks = (place.rank,)
        finding = self._by_key.get((code, message))
        if finding is None:
            finding = self._by_key[code, message] = Finding(code, message, CODES[code].help)
        total = count * max(1, len(ranks))
        finding.count += total
        finding.ranks.update(ranks)
        key = (code, message, place.node, place.name, place.detail)
        shared = self._by_place.get(key) if place.node is not None or place.detail else None
        if shared is None and len(finding.places) < MAX_PLACES:
            shared = self._by_place[key] = SharedPlace(place, set())
            finding.places.append(shared)
        if shared is None:
            finding.unshown += total
        else:
            finding.unshown += total - max(1, len(set(ranks) - shared.ranks))
            shared.ranks.update(ranks)

    def add_unshown(self, code: str, message: str, rank: int, count: int) -> None:
        """Count more nodes of a finding that was added before."""
        finding = self._by_key[code, message]
        finding.count += count
        finding.unshown += count
        finding.ranks.add(rank)

    def is_full(self, code: str, message: str) -> bool:
        """Whether no further place of this finding will be shown."""
        finding = self._by_key.get((code, message))
        return finding is not None and len(finding.places) >= MAX_PLACES

    def has(self, codes: Iterable[str]) -> bool:
        wanted = set(codes)
        return any(code in wanted for code, _ in self._by_key)

    def all(self) -> list[Finding]:
        """Errors first; within each, by code."""
        found = list(self._by_key.values())
        for finding in found:
            finding.places.sort(key=lambda s: (s.first.rank or 0, s.first.node or 0))
        return sorted(found, key=lambda f: (not f.is_error, f.code, f.message))


def ranges(ranks: Iterable[int], most: int = 6) -> str:
    """`0-3, 8, 12-15`: ranks as ranges, at most `most` of them."""
    parts: list[str] = []
    ordered = sorted(ranks)
    at = 0
    while at < len(ordered):
        stop = at
        while stop + 1 < len(ordered) and ordered[stop + 1] == ordered[stop] + 1:
            stop += 1
        if len(parts) == most:
            return ", ".join(parts) + ", ..."
        parts.append(str(ordered[at]) if at == stop else f"{ordered[at]}-{ordered[stop]}")
        at = stop + 1
    return ", ".join(parts)
