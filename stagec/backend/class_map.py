"""Which class a rank belongs to, without going through the ranks.

Coordinates of an axis that no class tells apart form a *cell*. On the mesh of cells, which is small
however many ranks there are, classes are numbered and their promises checked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stagec.arrays import distinct
from stagec.backend.program import Mesh
from stagec.backend.ranks import coordinate

Where = Mapping[str, Sequence[int]]
"""A box of coordinates: those listed, for each axis named; all of the other axes."""


@dataclass(frozen=True)
class ClassMap:
    """`cells[i][c]` is the cell of coordinate c of axis i; `owner[cells]` the number of the class."""

    mesh: Mesh
    cells: tuple[np.ndarray, ...]
    owner: np.ndarray

    @staticmethod
    def make(mesh: Mesh, wheres: Sequence[Where], also: Sequence[Where] = ()) -> "ClassMap":
        """The map of classes with these boxes, which must be a partition. `also` are other boxes
        that cells must not cross."""
        cells = tuple(_cells(axis, mesh.size(axis), [*wheres, *also]) for axis in mesh.axes)
        shape = tuple(int(numbers.max()) + 1 for numbers in cells)
        owner = np.full(shape, -1, dtype=np.int32)
        for number, where in enumerate(wheres):
            box = np.ix_(*(_inside(a, where, c) for a, c in zip(mesh.axes, cells, strict=True)))
            assert (owner[box] == -1).all(), "a rank is in two classes"
            owner[box] = number
        assert (owner >= 0).all(), "a rank is in no class"
        return ClassMap(mesh, cells, owner)

    def of(self, ranks: np.ndarray) -> np.ndarray:
        """The number of each rank's class."""
        cells = tuple(
            cells[coordinate(self.mesh, axis, ranks)]
            for axis, cells in zip(self.mesh.axes, self.cells, strict=True)
        )
        # Without a mesh there is one rank, of the only class.
        return np.broadcast_to(self.owner[cells], ranks.shape)

    def inside(self, where: Where) -> tuple[np.ndarray, ...]:
        """For each axis, the cells in a box."""
        return tuple(
            _inside(axis, where, cells)
            for axis, cells in zip(self.mesh.axes, self.cells, strict=True)
        )


def _cells(axis: str, size: int, wheres: Sequence[Where]) -> np.ndarray:
    """The cell of each coordinate of one axis."""
    chosen = {tuple(where[axis]) for where in wheres if axis in where}
    member = np.zeros((len(chosen), size), dtype=bool)
    for row, coordinates in zip(member, sorted(chosen), strict=True):
        row[list(coordinates)] = True
    if not len(member):
        return np.zeros(size, dtype=np.int64)
    return np.unique(member, axis=1, return_inverse=True)[1].reshape(-1)


def _inside(axis: str, where: Where, cells: np.ndarray) -> np.ndarray:
    return distinct(cells[list(where[axis])] if axis in where else cells)
