"""What all ops of the three dialects are: xDSL's, with properties that are given as plain values.

super().__init__([x, weight], [x.type], over=over, normalise=True)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from xdsl.dialects.builtin import IntegerAttr, StringAttr, UnitAttr, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import IRDLOperation, OptPropertyDef
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import NamesAttr, SizeAttr
from stagec.symbolic import Size

PlainValue = Attribute | str | int | Size | Iterable[str] | None
"""`None` and `False` are properties that an op has not; nor are no names, if it need not have them."""


class DialectOp(IRDLOperation):
    """An op of `stg`, `dist` or `sched`, or of a user."""

    def __init__(
        self,
        operands: Sequence[SSAValue | Operation | Sequence[SSAValue | Operation] | None] = (),
        result_types: Sequence[Attribute | Sequence[Attribute] | None] = (),
        regions: Sequence[Region] = (),
        properties: Mapping[str, Attribute | None] | None = None,
        **values: PlainValue,
    ) -> None:
        known = type(self).get_irdl_definition().properties
        said = {
            name: None
            if value == () and isinstance(known[name], OptPropertyDef)
            else as_attribute(value)
            for name, value in values.items()
        }
        super().__init__(
            operands=operands,
            result_types=result_types,
            regions=regions,
            properties=said | dict(properties or {}),
        )

    def mistake(self, text: str) -> VerifyException:
        """What does not hold of it, to be raised."""
        return VerifyException(f"{self.name}: {text}")


def as_attribute(value: PlainValue) -> Attribute | None:
    """A flag, a text, a whole number, a size, names; what is an attribute stays one."""
    if value is None or isinstance(value, Attribute):
        return value
    if isinstance(value, bool):
        return UnitAttr() if value else None
    if isinstance(value, str):
        return StringAttr(value)
    if isinstance(value, int):
        return IntegerAttr(value, i64)
    return SizeAttr(value) if isinstance(value, Size) else NamesAttr(tuple(value))


Found = TypeVar("Found", bound=Operation)


def first_op(within: Operation | Block, kind: type[Found]) -> Found | None:
    """The first op of a kind among those of a module, a program or a block, not of what is in these; None if there is none."""
    block = within if isinstance(within, Block) else within.regions[0].block
    return next((op for op in block.ops if isinstance(op, kind)), None)
