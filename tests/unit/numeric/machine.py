"""Values spread over a mesh, and what moves between its devices.

A value is one array: first the axes of the mesh, then the local shape, so that `value[1, 0]` is what the device at
(1, 0) holds. Everything is float64 or int64: what is checked is where terms go, not how they round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stagec.dialects.attributes import Dim
from stagec.dialects.types import TIME_AXES, TIME_AXIS, ShardType, TensorType

Array = np.ndarray


@dataclass(frozen=True)
class Machine:
    """A mesh, the numbers of all sizes, and the microbatch that runs."""

    mesh: Mapping[str, int]
    sizes: Mapping[str, int]
    microbatch: int = 0
    lengths: dict[Dim, int] = field(default_factory=dict)
    """Of the dims that were asked for, on one device."""
    axes: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple(self.mesh))

    def at(self, microbatch: int) -> Machine:
        return replace(self, microbatch=microbatch)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.mesh.values())

    @property
    def depth(self) -> int:
        """Array axes before those of the tensor."""
        return len(self.mesh)

    def length(self, dim: Dim) -> int:
        """Of a dim, on one device."""
        if dim not in self.lengths:
            self.lengths[dim] = dim.size.integer(self.sizes)
        return self.lengths[dim]

    def local_shape(self, tensor: TensorType) -> tuple[int, ...]:
        return tuple(self.length(d) for d in tensor.dims)

    def ways(self, axes: Sequence[str]) -> int:
        return int(np.prod([self.sizes[a] for a in axes], dtype=int))

    def index(self, axes: Sequence[str]) -> Array:
        """Each device's number among those that differ along `axes`, the first axis the slowest."""
        number = np.zeros(self.shape, int)
        for axis in axes:
            if axis == TIME_AXIS:
                number = number * self.sizes[axis] + self.microbatch
            else:
                place = [1] * self.depth
                place[self.axes.index(axis)] = self.mesh[axis]
                number = number * self.mesh[axis] + np.arange(self.mesh[axis]).reshape(place)
        return number

    def start(self, dim: Dim) -> Array:
        """The global position of each device's first element of a dim."""
        return self.index(dim.split) * self.length(dim)

    def everywhere(self, one: Array) -> Array:
        """The same array on each device."""
        return np.broadcast_to(one, (*self.shape, *one.shape)).copy()

    # Between a value and the global array that it stands for

    def spread(self, whole: Array, tensor: TensorType) -> Array:
        """Each device's part of a global array."""
        assert not tensor.partial, tensor.body
        return self.sliced(self.everywhere(whole), tensor.unsplit.dims, tensor.dims)

    def sliced(self, value: Array, before: Sequence[Dim], after: Sequence[Dim]) -> Array:
        """Each device's part of what it has, where `after` splits dims further than `before`."""
        for position, (old, new) in enumerate(zip(before, after, strict=True)):
            assert new.split[: len(old.split)] == old.split, (old, new)
            further = new.split[len(old.split) :]
            if further:
                value = self.part(value, position, further)
        return value

    def part(self, value: Array, position: int, axes: Sequence[str]) -> Array:
        """Each device keeps its part of one dim, by its number along `axes`."""
        index, ways = self.index(axes), self.ways(axes)
        shape = list(value.shape)
        at = self.depth + position
        assert shape[at] % ways == 0
        shape[at] //= ways
        result = np.empty(shape, value.dtype)
        before = (slice(None),) * position
        for device in np.ndindex(self.shape):
            start = int(index[device]) * shape[at]
            result[device] = value[device][(*before, slice(start, start + shape[at]))]
        return result

    def whole(self, value: Array, tensor: TensorType) -> Array:
        """The global array. Devices that should hold the same must do so."""
        summed = self.summed(value, tensor.partial)
        for position, dim in enumerate(tensor.dims):
            if dim.split:
                summed = self.gathered(summed, position, dim.split)
        first = summed[(0,) * self.depth]
        np.testing.assert_allclose(
            summed, self.everywhere(first), rtol=1e-9, atol=1e-9, err_msg=tensor.body
        )
        return first

    # Collectives

    def summed(self, value: Array, axes: Sequence[str]) -> Array:
        """All-reduce."""
        over = tuple(self.axes.index(a) for a in axes)
        return np.broadcast_to(value.sum(axis=over, keepdims=True), value.shape).copy()

    def largest(self, value: Array, axes: Sequence[str]) -> Array:
        over = tuple(self.axes.index(a) for a in axes)
        return np.broadcast_to(value.max(axis=over, keepdims=True), value.shape).copy()

    def gathered(self, value: Array, position: int, axes: Sequence[str]) -> Array:
        """All-gather: the parts of a dim one after the other, in the order of `axes`."""
        index, ways = self.index(axes), self.ways(axes)
        others = tuple(i for i, a in enumerate(self.axes) if a not in axes)
        parts: dict[tuple[tuple[int, ...], int], Array] = {}
        for device in np.ndindex(self.shape):
            group = tuple(device[i] for i in others)
            parts[group, int(index[device])] = value[device]
        shape = list(value.shape)
        shape[self.depth + position] *= ways
        result = np.empty(shape, value.dtype)
        for device in np.ndindex(self.shape):
            group = tuple(device[i] for i in others)
            result[device] = np.concatenate([parts[group, i] for i in range(ways)], axis=position)
        return result

    def resharded(self, value: Array, source: TensorType, target: TensorType) -> Array:
        """Any change of placement, by way of whole dims."""
        value = self.summed(value, [a for a in source.partial if a not in target.partial])
        for position, dim in enumerate(source.dims):
            if dim.split:
                value = self.gathered(value, position, self.in_space(dim))
        time = [Dim(d.name, tuple(a for a in d.split if a in TIME_AXES)) for d in source.dims]
        return self.sliced(value, time, target.dims)

    def in_space(self, dim: Dim) -> tuple[str, ...]:
        """The axes of the mesh that split a dim: one microbatch never sees another."""
        return tuple(a for a in dim.split if a not in TIME_AXES)

    # Stored shards: rows, divided evenly and padded

    def stored(self, value: Array, shard: ShardType) -> Array:
        """Each device's rows of a whole parameter that it holds."""
        rows, width = self.rows(shard)
        ways = self.ways(shard.axes)
        index = self.index(shard.axes)
        result = np.zeros((*self.shape, rows, width))
        for device in np.ndindex(self.shape):
            flat = np.zeros((rows * ways, width))
            whole = value[device].reshape(-1, width)
            flat[: len(whole)] = whole
            start = index[device] * rows
            result[device] = flat[start : start + rows]
        return result

    def unstored(self, value: Array, shard: ShardType) -> Array:
        """The whole parameter from all rows."""
        shape = self.local_shape(shard.tensor)
        _, width = self.rows(shard)
        flat = self.gathered(value, 0, shard.axes)
        number = int(np.prod(shape, dtype=int)) // width
        return flat[..., :number, :].reshape(*self.shape, *shape)

    def rows(self, shard: ShardType) -> tuple[int, int]:
        """Rows that one device stores, and their width."""
        shape = self.local_shape(shard.tensor)
        width = int(np.prod(shape[shard.rows :], dtype=int))
        elements = shard.num_elements.integer(self.sizes)
        assert elements % width == 0
        return elements // width, width
