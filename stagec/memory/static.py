"""Bytes that stay from step to step, on a device, its host and NVMe: parameters, master weights, optimizer state, gradients.

`sched.stored` has them as closed forms. What ZeRO splits is padded as it is stored: a shard has ceil(rows / ranks) rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stagec.analysis.buffers import owners
from stagec.diagnostics import line_of
from stagec.dialects import stg
from stagec.dialects.dist.stages import is_first_layer
from stagec.dialects.memory import STORED, Kind, MemoryLevel
from stagec.dialects.types import tensor_of
from stagec.unrolling.rank import StageRun


@dataclass(frozen=True)
class StaticBytes:
    """What a rank keeps on its device, by kind."""

    num_bytes: Mapping[Kind, int]


@dataclass(frozen=True)
class StoredBytes:
    """One parameter: what a rank keeps of it."""

    path: str
    scope: str
    location: str
    kind: Kind
    num_bytes: int
    level: MemoryLevel
    split_axes: frozenset[str]
    """The mesh axes that its dims are split over; what `zero` splits besides is not among them."""
    is_always: bool
    """Whether it is there all the time (`Stored.is_always`)."""


@dataclass
class StoredWeights:
    """What each program stores, worked out once for all stages that run it with the same number of layers."""

    _stored: dict[object, list[tuple[StoredBytes, bool]]] = field(default_factory=dict)

    def of(self, stage: StageRun) -> list[tuple[StoredBytes, bool]]:
        """Each parameter of a stage, and whether it is one that its stages may share."""
        program = stage.program
        numbers = (each for each in stage.values.items() if not is_first_layer(each[0]))
        key = (program, frozenset(numbers))
        if key not in self._stored:
            self._stored[key] = [
                (
                    StoredBytes(
                        row.path,
                        stg.scope_of(owner.op),
                        line_of(owner.op.location),
                        row.kind,
                        row.num_bytes.integer(stage.values),
                        row.level,
                        frozenset(
                            a for x in owner.op.results for a in tensor_of(x.type).split_axes
                        ),
                        row.is_always,
                    ),
                    not owner.is_of_stage,
                )
                for row, owner in owners(program)
            ]
        return self._stored[key]


def stored_by(stages: Sequence[StageRun], weights: StoredWeights) -> list[StoredBytes]:
    """What a rank that has these stages stores from step to step. A weight that two of them share is stored once."""
    found: list[StoredBytes] = []
    seen: set[tuple[Kind, str]] = set()
    for stage in stages:
        for each, is_shared in weights.of(stage):
            if is_shared and (each.kind, each.path) in seen:
                continue
            seen.add((each.kind, each.path))
            found.append(each)
    return found


def by_kind(rows: Iterable[StoredBytes]) -> dict[Kind, int]:
    """The bytes of each kind that stays."""
    found = dict.fromkeys(STORED, 0)
    for each in rows:
        found[each.kind] += each.num_bytes
    return found
