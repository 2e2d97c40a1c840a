"""The grid of devices, and a plan's rules for spreading values over it.

    dist.mesh <dp = 4, tp = 8>
    dist.rule [H, K] over [tp]

What follows from rules is `stagec.analysis.placement`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import irdl_attr_definition, opt_prop_def, prop_def

from stagec.dialects.attributes import DIM_OR_AXIS, NamesAttr
from stagec.dialects.op import DefaultBuilder, op_definition
from stagec.dialects.text_forms import NUMBER, WrittenData, listed, mapped, pair
from stagec.dialects.uneven_parts import INTERLEAVED, UNEVEN

MOST_RANKS = 2**22
MOST_AXES = 64
"""More of them in a mesh are a slip of the pen."""


@dataclass(frozen=True)
class MeshAxes:
    """Axis names and sizes, the slowest-varying in rank order first."""

    axes: tuple[tuple[str, int], ...]


@irdl_attr_definition
class MeshAttr(WrittenData[MeshAxes]):
    """`<dp = 4, tp = 8>`"""

    name = "dist.axes"
    FORM: ClassVar = mapped(
        listed(pair(DIM_OR_AXIS, NUMBER), "<>"), MeshAxes, lambda mesh: mesh.axes
    )


@op_definition
class MeshOp(DefaultBuilder):
    """The named grid of devices that the program runs on."""

    name = "dist.mesh"

    mesh = prop_def(MeshAttr)

    assembly_format = "$mesh attr-dict"

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self.mesh.data.axes)

    def verify_(self) -> None:
        if len(self.sizes) != len(self.mesh.data.axes):
            raise self.mistake("an axis appears twice")
        for name, size in self.mesh.data.axes:
            if size < 1:
                raise self.mistake(f"axis `{name}` has size {size}")
        if len(self.sizes) > MOST_AXES:
            raise self.mistake(f"it has more than {MOST_AXES} axes")
        if prod(self.sizes.values()) > MOST_RANKS:
            raise self.mistake(f"it has more than {MOST_RANKS} ranks")


@op_definition
class RuleOp(DefaultBuilder):
    """`shard H, K over tp` of a plan. Rules are tried in the order of their ops.

    Ranks along `copies` have the same of these dims: of a tensor that has one, no other dim is split over them. An `uneven` rule
    splits dims that its axes do not divide, too: `split-unevenly` says how.
    """

    name = "dist.rule"

    dims = prop_def(NamesAttr)
    axes = prop_def(NamesAttr)
    copies = opt_prop_def(NamesAttr)
    uneven = opt_prop_def(StringAttr)

    assembly_format = "$dims `over` $axes (`copies` $copies^)? (`uneven` $uneven^)? attr-dict"

    def verify_(self) -> None:
        if self.uneven is not None and self.uneven.data not in (*UNEVEN, INTERLEAVED):
            raise self.mistake(f"parts are {' or '.join(UNEVEN)}")
        if not self.dims.data or not self.axes.data:
            raise self.mistake("a rule has dims and axes")
        if self.copies is not None and set(self.copies.data) & set(self.axes.data):
            raise self.mistake("an axis that splits has no copies")
        beside = self.parent_block()
        # The mesh stands in front of its rules, of which there may be thousands.
        mesh = next((op for op in beside.ops if isinstance(op, MeshOp)), None) if beside else None
        for axis in self.axes.data:
            if mesh is not None and axis not in mesh.sizes:
                raise self.mistake(f"the mesh has no axis `{axis}`")
