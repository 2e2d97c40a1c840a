"""Whom a node communicates with, in words that are the same on every rank.

Two sets number their groups as they like; what can be compared is how a group lies in the mesh.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stagec.backend.program import Mesh
from stagec.checking.program import WORLD
from stagec.reading import read_file

MOST_MANIFEST_BYTES = 256 << 20


def mesh_of_manifest(directory: str) -> Mesh | None:
    """The mesh that the manifest of a set of ours names; none if there is no such manifest."""
    path = Path(directory, "manifest.json")
    try:
        found = json.loads(read_file(path, MOST_MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    axes = found.get("mesh") if isinstance(found, dict) else None
    if not isinstance(axes, dict) or not axes:
        return None
    sizes = tuple(axes.values())
    if not all(type(size) is int and 0 < size < 1 << 31 for size in sizes):
        return None
    return Mesh(tuple(map(str, axes)), sizes)


@dataclass
class Labels:
    """Groups and peers by the axes of a mesh, or, without one, by how far ranks are apart."""

    members: Mapping[str, tuple[int, ...]]
    num_ranks: int
    mesh: Mesh | None = None
    _groups: dict[str, str] = field(default_factory=dict)

    def group(self, name: str) -> str:
        """`dp, cp`; or `8 ranks, 4 apart`."""
        if name not in self._groups:
            self._groups[name] = self._group(name)
        return self._groups[name]

    def _group(self, name: str) -> str:
        if name == WORLD:
            return "all ranks"
        members = self.members.get(name)
        if not members:
            return f"group {name[:40]}"
        if self.mesh is not None and max(members) < self.mesh.num_ranks:
            return self._along(members)
        if len(members) == self.num_ranks:
            return "all ranks"
        ordered = sorted(members)
        steps = {b - a for a, b in itertools.pairwise(ordered)}
        apart = f", {steps.pop()} apart" if len(steps) == 1 else ""
        return f"{len(members)} ranks{apart}"

    def _along(self, members: tuple[int, ...]) -> str:
        """The axes along which members differ; how many they are if not all there are along these."""
        assert self.mesh is not None
        axes: list[str] = []
        product = 1
        for axis in self.mesh.axes:
            places = {rank // self.mesh.stride(axis) % self.mesh.size(axis) for rank in members}
            if len(places) > 1:
                axes.append(axis)
                product *= self.mesh.size(axis)
        part = "" if product == len(members) else f" ({len(members)} ranks)"
        return (", ".join(axes) or "one rank") + part

    def peer(self, rank: int, peer: int) -> str:
        """`pp`; or `rank + 8`."""
        if self.mesh is not None and max(rank, peer) < self.mesh.num_ranks:
            return self._along((rank, peer)).partition(" (")[0]
        return f"rank {'+' if peer >= rank else '-'} {abs(peer - rank)}"
