"""A job in encoded form: all that is needed to make any rank's trace.

`encode.py` makes it of a `TraceSet`, `expand.py` makes bytes of it, `bundle.py` stores it. Its size
does not depend on the number of ranks, and hardly on those of layers and microbatches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stagec.backend import wire
from stagec.backend.class_map import ClassMap
from stagec.backend.groups import GroupIds
from stagec.backend.node_records import NameStyle
from stagec.backend.program import Mesh
from stagec.backend.ranks import shifted

SCHEMA_VERSION = "0.0.4"


@dataclass(frozen=True)
class TraceOptions:
    """What decides a trace's bytes, besides the program."""

    names: NameStyle = "full"
    provenance: bool = False


@dataclass(frozen=True, slots=True)
class GroupOf:
    """A number that depends on the rank: the id of its group of kind `kind`."""

    kind: int


@dataclass(frozen=True, slots=True)
class RankAt:
    """A number that depends on the rank: the rank `shift` further along `axes`; () is itself."""

    axes: tuple[str, ...] = ()
    shift: int = 0


Variable = GroupOf | RankAt


@dataclass(frozen=True)
class EncodedClass:
    """One rank class. `payload` is its packed `ClassTable`; `variables` those its traces contain."""

    name: str
    where: tuple[tuple[str, tuple[int, ...]], ...]
    num_nodes: int
    num_bytes: int
    """Of each of its traces."""
    variables: tuple[int, ...]
    payload: bytes


@dataclass(frozen=True)
class RankFormulas:
    """The numbers that depend on the rank, as functions of its coordinates."""

    mesh: Mesh
    groups: GroupIds
    variables: tuple[Variable, ...]

    def values(self, variable: int, ranks: np.ndarray) -> np.ndarray:
        """A variable's value at each rank."""
        source = self.variables[variable]
        if isinstance(source, GroupOf):
            return self.groups.of_ranks(source.kind, self.mesh, ranks)
        return shifted(self.mesh, source.axes, source.shift, ranks)


@dataclass(frozen=True)
class ClassTraces:
    """One class and what its traces need besides: what a worker is given."""

    header: bytes
    """The record before the first node."""
    tag_span: int
    formulas: RankFormulas
    encoded: EncodedClass


@dataclass(frozen=True)
class EncodedTraces:
    """A whole job."""

    model: str
    options: TraceOptions
    header: bytes
    tag_span: int
    """A transfer's tag is `channel * tag_span + tag of the instance`."""
    formulas: RankFormulas
    classes: tuple[EncodedClass, ...]

    @property
    def mesh(self) -> Mesh:
        return self.formulas.mesh

    @cached_property
    def class_map(self) -> ClassMap:
        return ClassMap.make(self.mesh, [dict(c.where) for c in self.classes])

    def class_traces(self, number: int) -> ClassTraces:
        return ClassTraces(self.header, self.tag_span, self.formulas, self.classes[number])

    def by_class(self, ranks: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """The classes that `ranks` belong to, each with its own, in the order of both."""
        owner = self.class_map.of(ranks)
        for number in np.unique(owner).tolist():
            yield number, ranks[owner == number]

    def group_users(self, ranks: np.ndarray) -> list[np.ndarray]:
        """For each kind of group, those of `ranks` whose traces name a group of it."""
        owner = self.class_map.of(ranks)
        users: list[np.ndarray] = []
        for kind in range(len(self.formulas.groups.kinds)):
            variable = self.formulas.variables.index(GroupOf(kind))
            using = np.array([variable in c.variables for c in self.classes])
            users.append(ranks[using[owner]])
        return users


def header_record() -> bytes:
    """The `GlobalMetadata` that every trace starts with."""
    body = wire.text(1, SCHEMA_VERSION)
    return wire.varint(len(body)) + body
