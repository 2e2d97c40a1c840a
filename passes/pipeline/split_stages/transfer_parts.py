"""In which parts a value travels from stage to stage.

Ranks along an axis that neither splits a value nor sums it all have the whole of it. Instead of each sending the same, each may send its
part, and the receivers gather it (Narayanan et al. 2021, arXiv:2104.04473, section 4.1, "scatter/gather optimization").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.sizes import mesh_of, size_values
from stagec.dialects.attributes import Dim
from stagec.dialects.types import TensorType
from stagec.symbolic import conditions


@dataclass(frozen=True)
class TransferParts:
    """The axes over which values are scattered before they are sent; none: they travel as they are."""

    axes: Sequence[str]
    values: Mapping[str, int]

    @staticmethod
    def whole() -> TransferParts:
        return TransferParts((), {})

    @staticmethod
    def scattered(module: ModuleOp, stages: str) -> TransferParts:
        """Over every axis with several ranks but that of the stages."""
        mesh = mesh_of(module)
        wide = [a for a in mesh if a != stages and conditions.is_split(a, mesh)]
        return TransferParts(wide, size_values(module))

    def type_of(self, tensor: TensorType) -> TensorType:
        """What one rank sends: each axis that is free splits the first dim that it divides evenly, if there is one."""
        for axis in self.axes:
            if axis not in tensor.split_axes and axis not in tensor.partial:
                tensor = self.scatter(tensor, axis)
        return tensor

    def scatter(self, tensor: TensorType, axis: str) -> TensorType:
        for dim in tensor.dims:
            further = Dim(dim.name, (*dim.split, axis))
            if conditions.whole(further.size, self.values):
                return tensor.with_splits({**tensor.splits, dim.name: further.split})
        return tensor
