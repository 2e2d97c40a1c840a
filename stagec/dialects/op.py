"""What all ops of the three dialects are: xDSL's, with properties that are given as plain values.

super().__init__([x, weight], [x.type], over=over, normalise=True)
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, StringAttr, UnitAttr, i64
from xdsl.ir import Attribute, Block, Data, Operation, OpResult, Region, SSAValue, SSAValues
from xdsl.irdl import (
    AttrConstraint,
    BaseAttr,
    IRDLOperation,
    OpDef,
    OptPropertyDef,
    PropertyDef,
    VarOperandDef,
    VarResultDef,
)
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import NamesAttr, SizeAttr

PlainValue = Any
"""`None` and `False` are properties that an op has not; nor are no names, if it need not have them."""


class OpClass(ABCMeta):
    """The class of our classes of ops, of which an object is one by inheritance alone: nobody registers others with them, as one may with a
    class of `abc`, whose own check is several times slower. Passes ask so some thirty thousand times in a small compilation."""

    __instancecheck__ = type.__instancecheck__


class DialectOp(IRDLOperation, metaclass=OpClass):
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
        given = ((name, value) for name, value in values.items() if value is not None)
        said = {name: as_attribute(value, known[name]) for name, value in given}
        super().__init__(
            operands=operands,
            result_types=result_types,
            regions=regions,
            properties=said | dict(properties or {}),
        )

    def __post_init__(self) -> None:
        """xDSL looks for the default of each property that is not given; of few kinds of ops has one any."""
        if has_defaults(type(self)):
            super().__post_init__()
        else:
            Operation.__post_init__(self)

    def mistake(self, text: str) -> VerifyException:
        """What does not hold of it, to be raised."""
        return VerifyException(f"{self.name}: {text}")


def as_attribute(value: PlainValue, definition: PropertyDef) -> Attribute | None:
    """A flag, a text, a whole number, a size, names, or what the property's own kind of attribute holds; what is an attribute stays one."""
    if isinstance(value, Attribute):
        return value
    if isinstance(value, bool):
        return UnitAttr() if value else None
    if value == () and isinstance(definition, OptPropertyDef):
        return None
    if isinstance(value, int):
        return IntegerAttr(value, i64)
    if isinstance(value, Mapping):
        texts = {key: StringAttr(text) for key, text in value.items() if isinstance(text, str)}
        return DictionaryAttr({**value, **texts})
    kind = definition.constr.attr if isinstance(definition.constr, BaseAttr) else None
    if kind is NamesAttr:
        return NamesAttr(tuple(value))
    if kind is not None and issubclass(kind, Data):
        return kind(value)
    return StringAttr(value) if isinstance(value, str) else SizeAttr(value)


class DefaultBuilder(DialectOp):
    """An op that is made from its operands and properties, in order or by name, as ODS builds ops of MLIR by default."""

    def __init__(
        self, *given: Any, like: Attribute | Sequence[Attribute] = (), **named: Any
    ) -> None:
        """`like`: types of results that operands and properties do not say."""
        operands, properties = fields_of(type(self))
        assert len(given) <= len(operands) + len(properties), self.name
        said = dict(zip((*operands, *properties), given, strict=False)) | named
        values = [said.pop(name, () if is_list else None) for name, is_list in operands.items()]
        results = type(self).get_irdl_definition().results
        unknown = [() if isinstance(each, VarResultDef) else UNKNOWN for _, each in results]
        super().__init__(values, unknown, **said)
        known = [like] if isinstance(like, Attribute) else like
        self.retype([*known, *self.made()[len(known) :]])

    def made(self) -> Sequence[Attribute]:
        """The types of results that follow from operands and properties."""
        return ()

    def retype(self, types: Iterable[Attribute]) -> None:
        """Other results, which nobody reads yet."""
        self.results = SSAValues(OpResult(each, self, n) for n, each in enumerate(types))


UNKNOWN = UnitAttr()


@cache
def has_defaults(kind: type[DialectOp]) -> bool:
    """Whether a property or an attribute that is not given has a value by default."""
    op = kind.get_irdl_definition()
    return any(
        each.default_value is not None
        for each in (*op.properties.values(), *op.attributes.values())
    )


@cache
def fields_of(kind: type[DialectOp]) -> tuple[dict[str, bool], tuple[str, ...]]:
    """The names of operands, and whether each is a list; and of properties that are no marks."""
    op = kind.get_irdl_definition()
    lists = {name: type(each) is VarOperandDef for name, each in op.operands}
    return lists, tuple(plain_properties(op))


def shared_properties(op: DialectOp, kind: type[DialectOp]) -> dict[str, Any]:
    """What an op says of itself that ops of a kind say, too: to make one of it."""
    return {n: op.properties[n] for n in fields_of(kind)[1] if n in op.properties}


def plain_properties(op: OpDef) -> dict[str, bool]:
    """Properties that are no marks, and whether an op has to have them."""
    return {
        name: not isinstance(each, OptPropertyDef)
        for name, each in op.properties.items()
        if not isinstance(each.constr, MarkConstraint) and name not in SEGMENT_SIZES
    }


SEGMENT_SIZES = ("operandSegmentSizes", "resultSegmentSizes")
"""Properties that xDSL adds, where an op has several lists."""


class MarkConstraint(AttrConstraint[Attribute]):
    """The constraint of a property that states nothing about what an op is, but what passes found out (`stagec.dialects.marks`)."""


Found = TypeVar("Found", bound=Operation)


def first_op(within: Operation | Block, kind: type[Found]) -> Found | None:
    """The first op of a kind among those of a module, a program or a block, not of what is in these; None if there is none."""
    block = within if isinstance(within, Block) else within.regions[0].block
    return next((op for op in block.ops if isinstance(op, kind)), None)


def around(op: Operation) -> Iterator[Operation]:
    """The ops that an op is in, the nearest first."""
    while (outer := op.parent_op()) is not None:
        yield outer
        op = outer


def block_of(op: Operation) -> Block:
    """The block that an op is in: it is in a program."""
    block = op.parent_block()
    assert block is not None, op
    return block


def ancestor_in(block: Block, op: Operation) -> Operation:
    """The op of a block that this one is, or is in."""
    found = block.find_ancestor_op_in_block(op)
    assert found is not None, op
    return found
