"""A rank class in encoded form, still rolled: what unrolling needs, and what a bundle stores.

A *variant* is a segment together with what all its instances have in common (which slots are none
or equal, whether there is a layer): all instances of a variant have records of the same bytes but
for the holes. A class is its variants and one row of numbers per instance.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np

from stagec.backend.bodies import Bodies

HOLE = np.dtype(
    [("offset", "<i4"), ("width", "u1"), ("form", "u1"), ("source", "u1"), ("argument", "<i4")]
)


@dataclass(frozen=True)
class ClassTable:
    """Variant v has the bytes `data[data_ends[v-1] : data_ends[v]]`, and likewise its holes."""

    data: np.ndarray  # uint8
    data_ends: np.ndarray  # int64 [v]
    holes: np.ndarray  # HOLE
    hole_ends: np.ndarray  # int64 [v]
    num_nodes: np.ndarray  # int64 [v]
    variant: np.ndarray  # int32 [n], of each instance
    back: (
        np.ndarray
    )  # int64 [n, k]: how far before the instance's first node slot k's node is numbered
    layer: np.ndarray  # int32 [n]
    microbatch: np.ndarray  # int32 [n]
    stage: np.ndarray  # int32 [n]
    tag: np.ndarray  # int64 [n]
    ahead: np.ndarray  # int64 [n]: how many nodes before its place an instance is numbered
    bodies: Bodies | None = None
    """What stands for each iteration of a series. Tags are those of the first iteration."""
    sizes: np.ndarray = field(default_factory=lambda: np.zeros((0, 1), np.int64))
    """int64 [columns, iterations]: numbers of nodes in each iteration"""

    @property
    def num_iterations(self) -> int:
        return self.sizes.shape[1]

    @property
    def num_nodes_unrolled(self) -> int:
        """The number of nodes of all iterations."""
        return self.total(self.first_node)

    @property
    def num_bytes_unrolled(self) -> int:
        return self.total(self.first_byte)

    def total(self, firsts: np.ndarray) -> int:
        """What instances have together in all iterations, from where each begins, and where the last ends."""
        return int(firsts[-1]) if self.bodies is None else self.bodies.total(firsts)

    def in_full(self) -> tuple[ClassTable, np.ndarray]:
        """With the instances of all iterations, and the iteration of each."""
        if self.bodies is None:
            return self, np.zeros(len(self.variant), np.int64)
        order, ends = self.bodies.order, self.bodies.ends
        lengths = np.diff(ends, prepend=0)[order]
        iteration = np.repeat(np.arange(len(order)), lengths)
        before = np.cumsum(lengths) - lengths
        rows = np.arange(len(iteration)) + (ends[order] - lengths - before)[iteration]
        of_instances = {name: getattr(self, name)[rows] for name in OF_INSTANCES}
        of_instances["tag"] = of_instances["tag"] + iteration * self.bodies.tags
        return replace(self, **of_instances), iteration

    @property
    def num_variants(self) -> int:
        return len(self.data_ends)

    def variant_data(self, v: int) -> np.ndarray:
        return self.data[self.data_ends[v - 1] if v else 0 : self.data_ends[v]]

    def variant_holes(self, v: int) -> np.ndarray:
        return self.holes[self.hole_ends[v - 1] if v else 0 : self.hole_ends[v]]

    @property
    def first_node(self) -> np.ndarray:
        """Absolute position of each instance's first node; one more row holds the total."""
        return np.concatenate([[0], np.cumsum(self.num_nodes[self.variant])])

    @property
    def first_byte(self) -> np.ndarray:
        """Offset of each instance's first record; one more row holds the total."""
        lengths = np.diff(self.data_ends, prepend=0)
        return np.concatenate([[0], np.cumsum(lengths[self.variant])])


OF_INSTANCES = ("variant", "back", "layer", "microbatch", "stage", "tag", "ahead")


_ARRAYS = tuple(name for name in ClassTable.__dataclass_fields__ if name not in ("bodies", "sizes"))


def unsized_arrays(table: ClassTable) -> dict[str, np.ndarray]:
    """All of a table but the sizes of a series."""
    found = {name: getattr(table, name) for name in _ARRAYS}
    if table.bodies is not None:
        found |= {"ends": table.bodies.ends, "order": table.bodies.order}
        found |= {"tags": np.array([table.bodies.tags]), "handed": table.bodies.handed}
    return found


def digest_of(arrays: Mapping[str, np.ndarray], *numbers: int) -> bytes:
    """The digest of arrays and numbers. What is equal in all of them has the same digest."""
    digest = blake2b(str(numbers).encode(), digest_size=16)
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.digest()


def pack(table: ClassTable) -> bytes:
    """The table as compressed bytes. Equal tables give equal bytes."""
    found = unsized_arrays(table)
    if table.bodies is not None:
        # From one iteration to the next little changes.
        found["sizes"] = np.diff(table.sizes, axis=1, prepend=0)
    arrays = [_narrowest(a) if a.dtype.kind == "i" else a for a in found.values()]
    shapes = [
        (name, array.dtype.descr if array.dtype.fields else array.dtype.str, array.shape)
        for name, array in zip(found, arrays, strict=True)
    ]
    head = json.dumps(shapes).encode()
    body = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    return zlib.compress(
        len(head).to_bytes(4, "little") + head + body, 3 if table.bodies is None else 1
    )


def unpack(payload: bytes) -> ClassTable:
    """The table again; ValueError where the bytes are none."""
    try:
        data = zlib.decompress(payload)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    at = 4 + int.from_bytes(data[:4], "little")
    arrays: dict[str, np.ndarray] = {}
    for name, kind, shape in json.loads(data[4:at]):
        dtype = np.dtype([tuple(f) for f in kind]) if isinstance(kind, list) else np.dtype(kind)
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(data, dtype, count, at).reshape(shape)
        at += array.nbytes
        arrays[name] = array.astype(np.int64) if array.dtype.kind == "i" else array
    bodies, sizes = None, np.zeros((0, 1), np.int64)
    if {"ends", "order", "tags", "handed", "sizes"} <= arrays.keys():
        ends, order, tags, handed = map(arrays.pop, ("ends", "order", "tags", "handed"))
        bodies = Bodies(ends, order, int(tags[0]), handed)
        sizes = np.cumsum(arrays.pop("sizes"), axis=1)
    if set(arrays) != set(_ARRAYS) or arrays["holes"].dtype != HOLE or at != len(data):
        raise ValueError("its arrays are not those of a rank class")
    return ClassTable(**arrays, bodies=bodies, sizes=sizes)


def _narrowest(array: np.ndarray) -> np.ndarray:
    """The same integers in the fewest bytes, little-endian on every machine."""
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    for dtype in ("i1", "<i2", "<i4"):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return array.astype(dtype)
    return array.astype("<i8")
