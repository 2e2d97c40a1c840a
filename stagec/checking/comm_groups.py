"""The groups of a set: `comm_group.json`, and which ranks use which groups.

ASTRA-sim: keys are positive integers as text, members are ranks in ring order. Each rank builds
every group of the file. Ids that are equal modulo 500 share message tags.
"""

import json
import os
import re
from dataclasses import dataclass, field

from stagec.checking.findings import Findings, Place
from stagec.reading import read_file

MAX_GROUP_FILE_BYTES = 32 << 20
TAG_PERIOD = 500
_POSITIVE = re.compile(r"[1-9][0-9]{0,9}")


@dataclass
class Groups:
    """Members by id; `usable` is false when a file was there and could not be read."""

    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    file: str = ""
    usable: bool = True


def find_group_file(directory: str, prefix: str) -> str | None:
    """`comm_group.json` beside the traces, or PREFIX.json as STAGE names it."""
    for name in ("comm_group.json", f"{prefix}.json"):
        path = os.path.join(directory, name)
        if os.path.exists(path):
            return path
    return None


def read_groups(path: str | None, ranks: set[int], findings: Findings, astra_sim: bool) -> Groups:
    """Read the file, reporting what in it cannot be used."""
    if path is None:
        return Groups()
    groups = Groups(file=os.path.basename(path))
    if astra_sim and "empty" in path:
        _report(findings, groups, "W0641", 'the path of the groups has the word "empty" in it')
    loaded = _load(path, groups, findings)
    if loaded is None:
        groups.usable = False
        return groups
    for name, members in loaded:
        _add_group(name, members, groups, ranks, findings, astra_sim)
    return groups


def _load(path: str, groups: Groups, findings: Findings) -> list[tuple[str, object]] | None:
    message = "the file of groups cannot be read"
    try:
        text = read_file(path, MAX_GROUP_FILE_BYTES)
        loaded = json.loads(text, object_pairs_hook=_Pairs)
    except RecursionError:
        _report(findings, groups, "E0640", message, "it is nested too deeply")
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        _report(findings, groups, "E0640", message, reason)
        return None
    if not isinstance(loaded, _Pairs):
        _report(findings, groups, "E0640", message, "it is not an object of lists")
        return None
    return loaded.pairs


class _Pairs:
    """A JSON object as it is written: a key may be there twice."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        self.pairs = pairs


def _add_group(
    name: str,
    members: object,
    groups: Groups,
    ranks: set[int],
    findings: Findings,
    astra_sim: bool,
) -> None:
    at = f"group `{name[:80]}`"
    if astra_sim and not (_POSITIVE.fullmatch(name) and int(name) < 1 << 31):
        _report(findings, groups, "E0641", "the id of a group is not a positive integer", at)
    name = str(int(name)) if name.isascii() and name.isdigit() and len(name) < 10 else name
    if name in groups.members:
        _report(findings, groups, "E0640", "a group is there twice", at)
        return
    if not isinstance(members, list) or not all(type(m) is int for m in members):
        _report(findings, groups, "E0640", "a group is not a list of ranks", at)
        return
    unknown = [rank for rank in members if rank not in ranks]
    if unknown:
        detail = f"{at} has {len(unknown)} of them, rank {unknown[0]} for one"
        _report(findings, groups, "E0647", "a group has members without a trace", detail)
    if len(set(members)) < len(members):
        _report(findings, groups, "E0647", "a group lists a rank twice", at)
    groups.members[name] = tuple(dict.fromkeys(members))


def _report(findings: Findings, groups: Groups, code: str, message: str, detail: str = "") -> None:
    findings.add(code, message, Place(file=groups.file, detail=detail))


def check_group_ids(groups: Groups, used: set[str], findings: Findings) -> None:
    """ASTRA-sim's rule for ids: those of one rank differ modulo 500."""
    by_residue: dict[int, list[str]] = {}
    for name in sorted(used & groups.members.keys(), key=_as_number):
        if name.isdigit():
            by_residue.setdefault(int(name) % TAG_PERIOD, []).append(name)
    for names in by_residue.values():
        owner: dict[int, str] = {}
        for name in names if len(names) > 1 else ():
            clash = [rank for rank in groups.members[name] if rank in owner]
            if clash:
                detail = f"rank {clash[0]} is in groups {owner[clash[0]]} and {name}"
                findings.add(
                    "E0645",
                    "groups of one rank have ids that are equal modulo 500",
                    Place(file=groups.file, detail=detail),
                    ranks=clash,
                )
            owner.update(dict.fromkeys(groups.members[name], name))


def check_idle_groups(groups: Groups, used: set[str], findings: Findings) -> None:
    """No group is in the file for nothing: in ASTRA-sim every rank builds every group."""
    idle = sorted(groups.members.keys() - used, key=_as_number)
    if idle:
        shown = ", ".join(name[:20] for name in idle[:6]) + (", ..." if len(idle) > 6 else "")
        detail = f"{len(idle)} of {len(groups.members)}: {shown}"
        _report(findings, groups, "W0640", "groups of the file are used by no node", detail)


def _as_number(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() and len(name) < 20 else (1 << 62, name)
