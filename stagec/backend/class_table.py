"""A rank class in encoded form, still rolled: what unrolling needs, and what a bundle stores.

A *variant* is a segment together with what all its instances have in common (which slots are none
or equal, whether there is a layer): all instances of a variant have records of the same bytes but
for the holes. A class is its variants and one row of numbers per instance.
"""

import json
import zlib
from dataclasses import dataclass

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


_ARRAYS = tuple(ClassTable.__dataclass_fields__)


def pack(table: ClassTable) -> bytes:
    """The table as compressed bytes. Equal tables give equal bytes."""
    arrays: list[np.ndarray] = []
    for name in _ARRAYS:
        array = getattr(table, name)
        arrays.append(_narrowest(array) if array.dtype.kind == "i" else array)
    shapes = [
        (name, array.dtype.descr if array.dtype.fields else array.dtype.str, array.shape)
        for name, array in zip(_ARRAYS, arrays, strict=True)
    ]
    head = json.dumps(shapes).encode()
    body = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    return zlib.compress(len(head).to_bytes(4, "little") + head + body, 6)


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
    if set(arrays) != set(_ARRAYS) or arrays["holes"].dtype != HOLE or at != len(data):
        raise ValueError("its arrays are not those of a rank class")
    return ClassTable(**arrays)


def _narrowest(array: np.ndarray) -> np.ndarray:
    """The same integers in the fewest bytes, little-endian on every machine."""
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    for dtype in ("i1", "<i2", "<i4"):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return array.astype(dtype)
    return array.astype("<i8")
