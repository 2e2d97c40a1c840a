"""What all ops of the three dialects are: xDSL's, with properties that are given as plain values.

super().__init__([x, weight], [x.type], over=over, normalise=True)
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, StringAttr, UnitAttr, i64
from xdsl.ir import (
    Attribute,
    Block,
    BlockArgument,
    Data,
    Operation,
    OpResult,
    Region,
    SSAValue,
    SSAValues,
)
from xdsl.irdl import (
    AnyAttr,
    AttrConstraint,
    AttrSizedSegments,
    BaseAttr,
    EqIntConstraint,
    IRDLOperation,
    OpDef,
    OperandDef,
    OptPropertyDef,
    ParsePropInAttrDict,
    PropertyDef,
    RangeConstraint,
    RangeLengthConstraint,
    RangeOf,
    RegionDef,
    ResultDef,
    SameVariadicSize,
    VarOperandDef,
    VarResultDef,
    get_accessors_from_op_def,
)
from xdsl.irdl.constraints import VerificationContext
from xdsl.irdl.declarative_assembly_format import FormatProgram
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import OpTrait
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import NamesAttr, SizeAttr


def is_our_class(each: type) -> bool:
    """Whether stagec or xDSL brings it, and no plug-in."""
    return each.__module__.startswith(("stagec.", "xdsl."))


PlainValue = Any
"""`None` and `False` are properties that an op has not; nor are no names, if it need not have them."""


class OpClass(ABCMeta):
    """The class of our classes of ops, of which an object is one by inheritance alone: nobody registers others with them, as one may with a
    class of `abc`, whose own check is several times slower, and remembers for each class, and for all below it, what is none of it. Passes ask so some
    thirty thousand times in a small compilation."""

    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__


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
        parts = parts_of(type(self))
        given = {name: value for name, value in values.items() if value is not None}
        if not given.keys() <= parts.properties.keys():
            unknown = min(given.keys() - parts.properties.keys())
            raise TypeError(f"`{self.name}` has no property `{unknown}`")
        said = {name: as_attribute(value, parts.properties[name]) for name, value in given.items()}
        if properties:
            said |= properties
        row = in_a_row(operands, parts.operands)
        made = in_a_row(result_types, parts.results)
        if (
            row is None
            or made is None
            or not VALUES.issuperset(map(type, row))
            or not NO_TYPES.isdisjoint(map(type, made))
            or [*map(type, regions)] != [Region] * parts.num_regions
        ):
            super().__init__(
                operands=operands, result_types=result_types, regions=regions, properties=said
            )
            return
        Operation.__init__(
            self,
            operands=row,
            result_types=made,
            properties={name: each for name, each in said.items() if each is not None},
            regions=regions,
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


OpT = TypeVar("OpT", bound=IRDLOperation)


def op_definition(kind: type[OpT]) -> type[OpT]:
    """What `irdl_op_definition` of xDSL does, but for the `assembly_format`: how an op is written is looked at when the first of its kind is printed
    or read, which few commands do. To look at all of them takes an eighth of what a command does before its work. And whether operands, results and
    properties are what the op has is asked once for all ops that have them of the same classes."""
    op, own = OpDef.from_pyrdl(kind), kind.verify_
    form, op.assembly_format = op.assembly_format, None
    accessors = get_accessors_from_op_def(op, own)
    if form is not None:
        op.assembly_format = form
        accessors |= {"parse": classmethod(parse_written), "print": print_written}
    if is_told_by_classes(op):
        accessors["verify_"] = once_for_classes(op, own)
    for name, value in accessors.items():
        setattr(kind, name, value)
    return kind


def is_told_by_classes(op: OpDef) -> bool:
    """Whether of an op's parts but some properties only their classes matter."""
    return (
        not (op.regions or op.successors or op.attributes)
        and all(isinstance(option, ParsePropInAttrDict) for option in op.options)
        and all(type(trait).verify is OpTrait.verify for trait in op.traits)
        and all(are_of_classes(each.constr) for _, each in (*op.operands, *op.results))
    )


def are_of_classes(constraint: RangeConstraint) -> bool:
    if isinstance(constraint, RangeLengthConstraint):
        return isinstance(constraint.length, EqIntConstraint) and are_of_classes(
            constraint.constraint
        )
    return isinstance(constraint, RangeOf) and isinstance(constraint.constr, BaseAttr | AnyAttr)


def once_for_classes(op: OpDef, own: Callable[[OpT], None]) -> Callable[[OpT], None]:
    """A `verify_` that asks what xDSL makes of the op's parts where the first have these classes, and of the values of those properties that have rules."""
    rules = {n: p.constr for n, p in op.properties.items() if not isinstance(p.constr, BaseAttr)}
    known: set[tuple[object, ...]] = set()

    def verify_(self: OpT) -> None:
        classes = (
            *[type(value.type) for value in self.operands],
            None,
            *[type(value.type) for value in self.results],
            *self.properties,
            *map(type, self.properties.values()),
            len(self.regions),
            len(self.successors),
        )
        if classes not in known:
            op.verify(self)
            known.add(classes)
        else:
            for name, value in self.properties.items():
                if name in rules:
                    rules[name].verify(value, VerificationContext())
        own(self)

    return verify_


def parse_written(kind: type[OpT], parser: Parser) -> OpT:
    return form_of(kind).parse(parser, kind)


def print_written(op: IRDLOperation, printer: Printer) -> None:
    form_of(type(op)).print(printer, op)


@cache
def form_of(kind: type[IRDLOperation]) -> FormatProgram:
    op = kind.get_irdl_definition()
    assert op.assembly_format is not None, op.name
    return FormatProgram.from_str(op.assembly_format, op)


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
        if None in values:
            self.check_given([name for name, v in zip(operands, values, strict=True) if v is None])
        super().__init__(values, unknown_results(type(self)), **said)
        known = [like] if isinstance(like, Attribute) else like
        types = [*known, *self.made()[len(known) :]]
        if len(types) != len(self.results) and parts_of(type(self)).has_each_result:
            raise TypeError(
                f"`{self.name}` has {len(self.results)} results, and `made` and `like` say the types of {len(types)}"
            )
        self.retype(types)

    def check_given(self, left_out: Sequence[str]) -> None:
        """Operands that are left out may be."""
        needed = {n for n, each in self.get_irdl_definition().operands if type(each) is OperandDef}
        missing = [f"`{name}`" for name in left_out if name in needed]
        if missing:
            raise TypeError(f"`{self.name}` is made without its operand {', '.join(missing)}")

    def made(self) -> Sequence[Attribute]:
        """The types of results that follow from operands and properties."""
        return ()

    def retype(self, types: Iterable[Attribute]) -> None:
        """Other results, which nobody reads yet."""
        self.results = SSAValues(OpResult(each, self, n) for n, each in enumerate(types))


UNKNOWN = UnitAttr()


@cache
def unknown_results(kind: type[DialectOp]) -> list[Attribute | Sequence[Attribute]]:
    results = kind.get_irdl_definition().results
    return [() if isinstance(each, VarResultDef) else UNKNOWN for _, each in results]


class MadeOf(NamedTuple):
    """What an op is made of; of each operand and result, whether it is a list."""

    properties: dict[str, PropertyDef]
    operands: list[bool] | None
    """Nothing of an op that xDSL alone makes: it writes down how long its lists are, or what it has may be left out."""
    results: list[bool] | None
    num_regions: int

    @property
    def has_each_result(self) -> bool:
        """Whether it has each result that its class defines, once."""
        return self.results is not None and not any(self.results)


@cache
def parts_of(kind: type[DialectOp]) -> MadeOf:
    op = kind.get_irdl_definition()
    defined = [each for _, each in (*op.operands, *op.results, *op.regions)]
    is_plain = not op.successors and not any(
        isinstance(option, AttrSizedSegments | SameVariadicSize) for option in op.options
    )
    if not is_plain or not {type(each) for each in defined} <= PLAIN:
        return MadeOf(op.properties, None, None, 0)
    operands = [type(each) is VarOperandDef for _, each in op.operands]
    results = [type(each) is VarResultDef for _, each in op.results]
    return MadeOf(op.properties, operands, results, len(op.regions))


PLAIN = {OperandDef, VarOperandDef, ResultDef, VarResultDef, RegionDef}
VALUES = {OpResult, BlockArgument}


def in_a_row(given: Sequence[Any], are_lists: list[bool] | None) -> list[Any] | None:
    """Operands, or types of results, with those of lists among them. Nothing where xDSL has more to do than that, or a mistake to tell: it asks
    three functions of each, which is most of the time that it takes to make an op."""
    if are_lists is None or len(given) != len(are_lists):
        return None
    row: list[Any] = []
    for each, is_list in zip(given, are_lists, strict=True):
        if type(each) in SEQUENCES and is_list:
            row += each
        else:
            row.append(each)
    return row


SEQUENCES = {list, tuple, SSAValues}
NO_TYPES = {*SEQUENCES, type(None)}


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
