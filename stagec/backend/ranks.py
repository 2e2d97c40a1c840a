"""Which ranks there are: coordinates on the mesh, peers, classes, and selections of ranks.

Everything is an array over ranks or over one axis; nothing loops over ranks.
"""

import re
from collections.abc import Iterable, Mapping

import numpy as np

from stagec.analysis.coordinates import SUFFIX as INDEX
from stagec.arrays import distinct
from stagec.backend.errors import TraceError
from stagec.backend.program import Mesh
from stagec.symbolic import Size
from stagec.symbolic.columns import Columns


def coordinate(mesh: Mesh, axis: str, ranks: np.ndarray) -> np.ndarray:
    """Position of each rank along `axis`."""
    return ranks // mesh.stride(axis) % mesh.size(axis)


def joint_coordinate(mesh: Mesh, axes: Iterable[str], ranks: np.ndarray) -> np.ndarray:
    """Position along `axes` taken as one axis, the first of them the slowest."""
    joint = np.zeros_like(ranks)
    for axis in axes:
        joint = joint * mesh.size(axis) + coordinate(mesh, axis, ranks)
    return joint


def shifted(mesh: Mesh, axes: tuple[str, ...], shift: int, ranks: np.ndarray) -> np.ndarray:
    """The rank `shift` further along `axes` (as one axis, modulo its size)."""
    target = joint_coordinate(mesh, axes, ranks) + shift
    moved = ranks.copy()
    for axis in reversed(axes):
        size, stride = mesh.size(axis), mesh.stride(axis)
        moved += (target % size - coordinate(mesh, axis, ranks)) * stride
        target //= size
    return moved


def at_coordinates(mesh: Mesh, formula: Size, ranks: np.ndarray) -> np.ndarray:
    """A size in the coordinates (`tp.index`) of each rank."""
    names = {f"{axis}{INDEX}": coordinate(mesh, axis, ranks) for axis in mesh.axes}
    return Columns(names, len(ranks)).number(formula).astype(np.int64)


def ranks_where(mesh: Mesh, where: Mapping[str, tuple[int, ...]]) -> np.ndarray:
    """Ranks whose coordinates lie in `where`, ascending; all coordinates of an axis not named."""
    ranks = np.zeros(1, dtype=np.int64)
    for axis, size in zip(mesh.axes, mesh.sizes, strict=True):
        chosen = np.array(sorted(where.get(axis, range(size))), dtype=np.int64)
        ranks = (ranks[:, None] * size + chosen).ravel()
    return ranks


def parse_ranks(selection: str, num_ranks: int) -> np.ndarray:
    """`0,8,1024-1031` as ascending rank numbers, each once."""
    chosen: list[np.ndarray] = []
    for part in selection.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part, flags=re.ASCII)
        if match is None:
            raise TraceError(
                "E0604",
                f"`{part.strip()}` is not a rank or a range of ranks",
                help="write numbers and ranges with commas between them: `0,8,1024-1031`",
            )
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise TraceError(
                "E0604", f"the range `{part.strip()}` ends before it starts", help="swap its ends"
            )
        if last >= num_ranks:
            raise TraceError(
                "E0604",
                f"there is no rank {last}",
                note=f"the mesh has {num_ranks} ranks, 0 to {num_ranks - 1}",
                help=f"write `{num_ranks - 1}`, the last, in place of `{last}`",
            )
        chosen.append(np.arange(first, last + 1, dtype=np.int64))
    return distinct(np.concatenate(chosen))


def format_ranks(ranks: np.ndarray) -> str:
    """Ascending rank numbers as `parse_ranks` reads them."""
    if not len(ranks):
        return ""
    breaks = np.flatnonzero(np.diff(ranks) != 1)
    firsts = ranks[np.concatenate([[0], breaks + 1])].tolist()
    lasts = ranks[np.concatenate([breaks, [len(ranks) - 1]])].tolist()
    return ",".join(
        str(first) if first == last else f"{first}-{last}"
        for first, last in zip(firsts, lasts, strict=True)
    )
