"""A job in encoded form: all that is needed to make any rank's trace.

`encode.py` makes it of a `TraceSet`, `expand.py` makes bytes of it, `bundle.py` stores it. Its size
does not depend on the number of ranks, and hardly on those of layers and microbatches.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from stagec.arrays import distinct
from stagec.backend import wire
from stagec.backend.class_map import ClassMap
from stagec.backend.groups import ALL_RANKS, GroupIds, comm_groups
from stagec.backend.node_records import NameStyle
from stagec.backend.program import Mesh
from stagec.backend.ranks import at_coordinates, shifted
from stagec.symbolic import Size

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


@dataclass(frozen=True, slots=True)
class RankOf:
    """A number that depends on the rank: a rank of another pool, as a size in the rank's coordinates."""

    formula: Size


Variable = GroupOf | RankAt | RankOf


@dataclass(frozen=True)
class EncodedClass:
    """One rank class. `payload` is its packed `ClassTable`; `variables` those its traces contain."""

    name: str
    where: tuple[tuple[str, tuple[int, ...]], ...]
    num_nodes: int
    num_bytes: int
    """The bytes of each of its traces."""
    variables: tuple[int, ...]
    payload: bytes


@dataclass(frozen=True)
class RankFormulas:
    """The numbers that depend on the rank, as functions of its coordinates."""

    mesh: Mesh
    groups: GroupIds
    variables: tuple[Variable, ...]
    first: int = 0
    """The rank at the mesh's origin: those of other pools come before it."""

    def values(self, variable: int, ranks: np.ndarray) -> np.ndarray:
        """A variable's value at each rank."""
        source, own = self.variables[variable], ranks - self.first
        if isinstance(source, GroupOf):
            return self.groups.of_ranks(source.kind, self.mesh, own)
        if isinstance(source, RankOf):
            return self.at(source.formula, own)
        return self.first + shifted(self.mesh, source.axes, source.shift, own)

    def at(self, formula: Size, own: np.ndarray) -> np.ndarray:
        """A size in the coordinates of ranks of the mesh."""
        return at_coordinates(self.mesh, formula, own)


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

    @property
    def num_ranks(self) -> int:
        return self.mesh.num_ranks

    @property
    def meshes(self) -> dict[str, Any]:
        """The mesh as a manifest says it."""
        return {"mesh": dict(zip(self.mesh.axes, self.mesh.sizes, strict=True))}

    @cached_property
    def class_map(self) -> ClassMap:
        return ClassMap.make(self.mesh, [dict(c.where) for c in self.classes])

    def class_traces(self, number: int) -> ClassTraces:
        return ClassTraces(self.header, self.tag_span, self.formulas, self.classes[number])

    def by_class(self, ranks: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """The classes that `ranks` belong to, each with its own, in the order of both."""
        owner = self.class_map.of(ranks - self.formulas.first)
        for number in distinct(owner).tolist():
            yield number, ranks[owner == number]

    def group_users(self, ranks: np.ndarray) -> list[np.ndarray]:
        """For each kind of group, those of `ranks` whose traces name a group of it."""
        owner = self.class_map.of(ranks - self.formulas.first)
        users: list[np.ndarray] = []
        for kind in range(len(self.formulas.groups.kinds)):
            variable = self.formulas.variables.index(GroupOf(kind))
            using = np.array([variable in c.variables for c in self.classes])
            users.append(ranks[using[owner]])
        return users

    def comm_groups(self, ranks: np.ndarray) -> Iterator[tuple[int, list[int]]]:
        """Ids and members, by ascending id, of the groups that traces of `ranks` name."""
        first = self.formulas.first
        users = [own - first for own in self.group_users(ranks)]
        for number, members in comm_groups(self.formulas.groups, self.mesh, users):
            yield number, [first + rank for rank in members] if first else members


@dataclass(frozen=True)
class EncodedPools:
    """A whole job of several pools. The ranks of the first come first, and its groups have the lowest ids."""

    names: tuple[str, ...]
    pools: tuple[EncodedTraces, ...]

    @property
    def model(self) -> str:
        return self.pools[0].model

    @property
    def options(self) -> TraceOptions:
        return self.pools[0].options

    @property
    def num_ranks(self) -> int:
        return sum(pool.num_ranks for pool in self.pools)

    @property
    def meshes(self) -> dict[str, Any]:
        """The meshes as a manifest says them."""
        return {
            "pools": [
                {"name": name, "first": pool.formulas.first, **pool.meshes}
                for name, pool in zip(self.names, self.pools, strict=True)
            ]
        }

    @property
    def classes(self) -> tuple[EncodedClass, ...]:
        """The classes of the first pool, then those of the next, each with the name of its pool."""
        return tuple(
            replace(each, name=f"{name} {each.name}")
            for name, pool in zip(self.names, self.pools, strict=True)
            for each in pool.classes
        )

    def class_traces(self, number: int) -> ClassTraces:
        for pool in self.pools:
            if number < len(pool.classes):
                return pool.class_traces(number)
            number -= len(pool.classes)
        raise IndexError(number)

    def by_class(self, ranks: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """The classes that `ranks` belong to, each with its own, in the order of both."""
        before = 0
        for pool, own in self.by_pool(ranks):
            for number, members in pool.by_class(own):
                yield before + number, members
            before += len(pool.classes)

    def by_pool(self, ranks: np.ndarray) -> Iterator[tuple[EncodedTraces, np.ndarray]]:
        """All pools, each with those of `ranks` that are its."""
        for pool in self.pools:
            first = pool.formulas.first
            yield pool, ranks[(ranks >= first) & (ranks < first + pool.num_ranks)]

    def comm_groups(self, ranks: np.ndarray) -> Iterator[tuple[int, list[int]]]:
        """Ids and members, by ascending id, of the groups that traces of `ranks` name."""
        if len(ranks) and any(pool.formulas.groups.of_job for pool in self.pools):
            yield ALL_RANKS, list(range(self.num_ranks))
        for pool, own in self.by_pool(ranks):
            yield from pool.comm_groups(own)


Encoded = EncodedTraces | EncodedPools
"""A job, of one mesh or of several pools."""


def header_record() -> bytes:
    """The `GlobalMetadata` that every trace starts with."""
    body = wire.text(1, SCHEMA_VERSION)
    return wire.varint(len(body)) + body
