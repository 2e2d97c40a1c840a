"""A rank class in encoded form, still rolled: what unrolling needs, and what a bundle stores.

A *variant* is a segment together with what all its instances have in common (which slots are none
or equal, whether there is a layer): all instances of a variant have records of the same bytes but
for the holes. A class is its variants and one row of numbers per instance.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field, replace

import numpy as np

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
    period: int = 0
    """Of a series of iterations: the instances of the first; as many behind them stand for each that follows."""
    sizes: np.ndarray = field(default_factory=lambda: np.zeros((0, 1), np.int64))
    """int64 [columns, iterations]: numbers of nodes in each iteration"""

    @property
    def num_iterations(self) -> int:
        return self.sizes.shape[1]

    @property
    def num_nodes_unrolled(self) -> int:
        """Of all iterations."""
        return unrolled(self.first_node, self.period, self.num_iterations)

    @property
    def num_bytes_unrolled(self) -> int:
        return unrolled(self.first_byte, self.period, self.num_iterations)

    def in_full(self) -> tuple[ClassTable, np.ndarray]:
        """With the instances of all iterations, and the iteration of each."""
        if not self.period:
            return self, np.zeros(len(self.variant), np.int64)
        period, later = self.period, self.num_iterations - 1
        rows = np.concatenate([np.arange(period), np.tile(np.arange(period, 2 * period), later)])
        iteration = np.repeat(np.arange(1 + later), period)
        tags = int(self.tag[period] - self.tag[0])
        of_instances = {name: getattr(self, name)[rows] for name in OF_INSTANCES}
        of_instances["tag"] = of_instances["tag"] + np.maximum(iteration - 1, 0) * tags
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


def unrolled(ends: np.ndarray, period: int, iterations: int) -> int:
    """A total over all iterations, from where each instance begins."""
    if not period:
        return int(ends[-1])
    return int(ends[period] + (ends[-1] - ends[period]) * (iterations - 1))


_ARRAYS = tuple(name for name in ClassTable.__dataclass_fields__ if name not in ("period", "sizes"))


def pack(table: ClassTable) -> bytes:
    """The table as compressed bytes. Equal tables give equal bytes."""
    found = {name: getattr(table, name) for name in _ARRAYS}
    if table.period:
        # From one iteration to the next little changes.
        found["period"] = np.array([table.period])
        found["sizes"] = np.diff(table.sizes, axis=1, prepend=0)
    arrays = [_narrowest(a) if a.dtype.kind == "i" else a for a in found.values()]
    shapes = [
        (name, array.dtype.descr if array.dtype.fields else array.dtype.str, array.shape)
        for name, array in zip(found, arrays, strict=True)
    ]
    head = json.dumps(shapes).encode()
    body = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    return zlib.compress(len(head).to_bytes(4, "little") + head + body, 1 if table.period else 6)


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
    if "period" in arrays and "sizes" in arrays:
        sizes = np.cumsum(arrays.pop("sizes"), axis=1)
        series = {"period": int(arrays.pop("period")[0]), "sizes": sizes}
    else:
        series = {}
    if set(arrays) != set(_ARRAYS) or arrays["holes"].dtype != HOLE or at != len(data):
        raise ValueError("its arrays are not those of a rank class")
    return ClassTable(**arrays, **series)


def _narrowest(array: np.ndarray) -> np.ndarray:
    """The same integers in the fewest bytes, little-endian on every machine."""
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    for dtype in ("i1", "<i2", "<i4"):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return array.astype(dtype)
    return array.astype("<i8")
