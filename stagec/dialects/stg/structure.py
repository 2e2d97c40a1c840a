"""The skeleton of a program: repeats, the microbatch loop, outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, StringAttr, UnitAttr, i32, i64
from xdsl.ir import Attribute, Block, BlockArgument, OpResult, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    ParsePropInAttrDict,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator, NoTerminator, SingleBlockImplicitTerminator

from stagec.dialects.attributes import SizeAttr, parse_size
from stagec.dialects.marks import MarkedOp, flag_mark, marks, put_marks, text_mark
from stagec.dialects.op import DefaultBuilder, op_definition
from stagec.dialects.types import (
    ShardType,
    StackType,
    TensorType,
    ValueType,
    first_as_text,
    parse_first,
    tensor_of,
)
from stagec.symbolic import Size, size


def parse_end(parser: Parser) -> tuple[Sequence[Attribute], Mapping[str, Attribute]]:
    """The types of results, if there are any, and the marks of an op with a body."""
    result_types: Sequence[Attribute] = ()
    if parser.parse_optional_punctuation("->") is not None:
        result_types = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
    attributes = parser.parse_optional_attr_dict_with_keyword()
    return result_types, attributes.data if attributes else {}


def print_end(printer: Printer, op: ProgramOp | RepeatOp | AccumulateOp) -> None:
    """Likewise, and the body."""
    if op.results:
        printer.print_string(" -> ")
        with printer.in_parens():
            printer.print_list(op.result_types, printer.print_attribute)
    printer.print_op_attributes(dict(marks(op)), print_keyword=True)
    printer.print_string(" ")
    printer.print_region(op.body, print_entry_block_args=False)


@op_definition
class ProgramOp(MarkedOp):
    """A model, later a training step: inputs, weights, computation, one `stg.output`."""

    name = "stg.program"

    model = prop_def(StringAttr)
    kind = text_mark("kind")
    """The kind of stages that it belongs to; it belongs to all where nothing is stated."""
    body = region_def("single_block")

    traits = traits_def(NoTerminator())

    def __init__(self, model: str, body: Region) -> None:
        super().__init__(regions=[body], model=model)

    @classmethod
    def parse(cls, parser: Parser) -> ProgramOp:
        model = parser.parse_str_literal()
        arguments = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
        _, attributes = parse_end(parser)
        op = cls(model, parser.parse_region(arguments))
        put_marks(op, attributes)
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(' "' + self.model.data + '" ')
        with printer.in_parens():
            printer.print_list(self.body.block.args, printer.print_block_argument)
        print_end(printer, self)


@op_definition
class YieldOp(DefaultBuilder, MarkedOp):
    """Ends the body of a repeat (carried values first, then stacked ones) or of an accumulate."""

    name = "stg.yield"

    values = var_operand_def()

    traits = traits_def(IsTerminator())
    assembly_format = "($values^ `:` type($values))? attr-dict"

    def verify_(self) -> None:
        for value in self.values:
            if not isinstance(value.type, ValueType):
                raise self.mistake(f"a body hands on tensors, shards and stacks, not {value.type}")


class LoopOp(MarkedOp):
    """Shared by ops whose body runs several times, and yields."""

    body = region_def("single_block")

    traits = traits_def(SingleBlockImplicitTerminator(YieldOp))

    @property
    def yield_op(self) -> YieldOp:
        last = self.body.block.last_op
        assert isinstance(last, YieldOp)
        return last


@op_definition
class RepeatOp(LoopOp):
    """Run the body `count` times.

    `carry` values go from one iteration to the next and come out of the last. A `slice` argument is
    one element of a stack: iteration i sees element i. What the body yields after the carried
    values comes out as stacks. A `reverse` repeat runs from the last iteration to the first, as
    gradients do. Values from outside may be read as they are: they are the same in each iteration.

        %y, %saved = stg.repeat "L" carry(%h = %x : T) slice(%w = %ws : !stg.stack<"L" x W>) -> (T, ...) {
          ...
          stg.yield %next, %kept : T, U
        }
    """

    name = "stg.repeat"

    carried = var_operand_def()
    stacks = var_operand_def()
    count = prop_def(SizeAttr)
    first_number = opt_prop_def(IntegerAttr, prop_name="first")
    """`"L - 1" from 1`: the number of its first layer in the model, if that is not 0."""
    reverse = opt_prop_def(UnitAttr)
    steps = flag_mark("steps")
    """Its iterations are steps of one op, not layers of a model."""
    makes_gradients = flag_mark("makes_gradients")
    """It is of the forward pass and computes gradients too: recomputation leaves it alone."""
    layers_of: StringAttr | None = text_mark("layers_of")  # pyright: ignore[reportAssignmentType]
    """The count of the model's layers, of which it has some: the first one, or the others (`peel-layers`)."""
    outputs = var_result_def()

    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())

    def __init__(
        self,
        count: Size,
        carried: Sequence[SSAValue],
        stacks: Sequence[SSAValue],
        body: Block | Region,
        result_types: Sequence[Attribute] | None = None,
        reverse: bool = False,
        first: int | None = None,
    ) -> None:
        """Its results have the types of what is carried, then stacks of what else the body yields, unless they are said.

        Its layers are those of its stacks, unless the number of the first is said.
        """
        if first is None:
            first = next((s.type.first for s in stacks if isinstance(s.type, StackType)), 0)
        region = body if isinstance(body, Region) else Region(body)
        last = region.block.last_op
        if result_types is None:
            own = last.values[len(carried) :] if isinstance(last, YieldOp) else ()
            made = [StackType.of(count, value.type, first) for value in own]  # pyright: ignore
            result_types = [*(value.type for value in carried), *made]
        super().__init__(
            [list(carried), list(stacks)],
            [list(result_types)],
            regions=[region],
            count=count,
            first=IntegerAttr(first, i64) if first else None,
            reverse=reverse,
        )

    @classmethod
    def over(
        cls, stacks: Sequence[SSAValue], body: Block | Region, reverse: bool = False
    ) -> RepeatOp:
        """A repeat of the layers that stacks have, which carries nothing."""
        stack = stacks[0].type
        assert isinstance(stack, StackType), stack
        return cls(stack.count, [], stacks, body, reverse=reverse)

    @property
    def total_layers(self) -> Size:
        """How often the model repeats what it repeats, here or in another repeat."""
        return self.count.data if self.layers_of is None else size(self.layers_of.data)

    @property
    def first(self) -> int:
        """The number of the first layer."""
        return self.first_number.value.data if self.first_number is not None else 0

    def stack_of(self, element: Attribute) -> StackType:
        """What comes out where each iteration yields one of these."""
        return StackType.of(self.count.data, element, self.first)  # pyright: ignore

    @property
    def num_carried(self) -> int:
        """How many values are carried. Operand i is what argument i of the body begins with, or is a slice of."""
        sizes = self.properties[AttrSizedOperandSegments.attribute_name]
        assert isinstance(sizes, DenseArrayBase)
        return int(next(iter(sizes.iter_values())))

    @property
    def carry_args(self) -> Sequence[BlockArgument]:
        return self.body.block.args[: self.num_carried]

    @property
    def slice_args(self) -> Sequence[BlockArgument]:
        return self.body.block.args[self.num_carried :]

    @property
    def carry_results(self) -> Sequence[OpResult]:
        return self.results[: self.num_carried]

    @property
    def stack_results(self) -> Sequence[OpResult]:
        return self.results[self.num_carried :]

    def verify_(self) -> None:
        num_carried = self.num_carried
        arguments, yielded = self.body.block.args, self.yield_op.values
        if len(arguments) != num_carried + len(self.stacks):
            raise self.mistake("one body argument per carried value and slice")
        if len(yielded) != len(self.results):
            raise self.mistake("one yielded value per result")
        if len(self.results) < num_carried:
            raise self.mistake(
                f"{num_carried} values are carried, but {len(self.results)} come out"
            )
        for value, argument, next_, result in zip(
            self.carried, arguments, yielded, self.results, strict=False
        ):
            if not value.type == argument.type == next_.type == result.type:
                raise self.mistake(
                    f"a carried value keeps its type, but goes in as {value.type}, "
                    f"is used as {argument.type} and comes out as {next_.type}"
                )
        for stack, argument in zip(self.stacks, self.slice_args, strict=True):
            if not isinstance(stack.type, StackType) or stack.type.element != argument.type:
                raise self.mistake(f"a slice of {stack.type} is not {argument.type}")
            if (stack.type.count, stack.type.first) != (self.count.data, self.first):
                one, other = self.stack_of(argument.type), stack.type
                raise self.mistake(f"it slices {one}, but is given {other}")
        for value, result in zip(yielded[num_carried:], self.stack_results, strict=True):
            if result.type != self.stack_of(value.type):
                raise self.mistake(f"{value.type} comes out as {result.type}")

    @classmethod
    def parse(cls, parser: Parser) -> RepeatOp:
        def binding():
            argument = parser.parse_argument(expect_type=False)
            parser.parse_punctuation("=")
            operand = parser.parse_unresolved_operand()
            parser.parse_punctuation(":")
            operand_type = parser.parse_type()
            return argument, parser.resolve_operand(operand, operand_type), operand_type

        def bindings(keyword: str):
            if parser.parse_optional_keyword(keyword) is None:
                return []
            return parser.parse_comma_separated_list(parser.Delimiter.PAREN, binding)

        count, first = parse_size(parser), parse_first(parser)
        reverse = parser.parse_optional_keyword("reverse") is not None
        carried, slices = bindings("carry"), bindings("slice")
        arguments = [a.resolve(t) for a, _, t in carried]
        for argument, _, stack in slices:
            if not isinstance(stack, StackType):
                parser.raise_error("only a stack can be sliced")
            arguments.append(argument.resolve(stack.element))
        result_types, attributes = parse_end(parser)
        body = parser.parse_region(arguments)
        values, stacks = ([value for _, value, _ in each] for each in (carried, slices))
        op = cls(count, values, stacks, body, result_types, first=first)
        if reverse:
            op.properties["reverse"] = UnitAttr()
        put_marks(op, attributes)
        return op

    def print(self, printer: Printer) -> None:
        def binding(pair: tuple[BlockArgument, SSAValue]) -> None:
            printer.print_ssa_value(pair[0])
            printer.print_string(" = ")
            printer.print_ssa_value(pair[1])
            printer.print_string(" : ")
            printer.print_attribute(pair[1].type)

        printer.print_string(f' "{self.count.data}"{first_as_text(self.first)}')
        if self.reverse is not None:
            printer.print_string(" reverse")
        for keyword, arguments, values in (
            ("carry", self.carry_args, self.carried),
            ("slice", self.slice_args, self.stacks),
        ):
            if values:
                printer.print_string(f" {keyword}")
                with printer.in_parens():
                    printer.print_list(list(zip(arguments, values, strict=True)), binding)
        print_end(printer, self)


@op_definition
class AccumulateOp(LoopOp):
    """Run the body once per microbatch; each result is the sum of what the microbatches yield.

    `axis` is the time axis that splits the batch: inside, sizes are those of one microbatch. A result
    may have a wider dtype than the value yielded: gradients add up in fp32.
    """

    name = "stg.accumulate"

    axis = prop_def(StringAttr)
    sums = var_result_def()

    def __init__(self, axis: str, body: Region, result_types: Sequence[Attribute]) -> None:
        super().__init__(result_types=[list(result_types)], regions=[body], axis=axis)

    def verify_(self) -> None:
        yielded = self.yield_op.values
        if len(yielded) != len(self.sums):
            raise self.mistake("one result per yielded value")
        for value, total in zip(yielded, self.sums, strict=True):
            if not adds_up(value.type, total.type):
                raise self.mistake(f"{value.type} adds up to {total.type}")

    @classmethod
    def parse(cls, parser: Parser) -> AccumulateOp:
        parser.parse_keyword("over")
        axis = parser.parse_str_literal()
        result_types, attributes = parse_end(parser)
        op = cls(axis, parser.parse_region(), result_types)
        put_marks(op, attributes)
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(f' over "{self.axis.data}"')
        print_end(printer, self)


def adds_up(term: Attribute, total: Attribute) -> bool:
    """Whether the types differ in their dtype at most."""
    if isinstance(term, StackType) and isinstance(total, StackType):
        return term.count == total.count and adds_up(term.element, total.element)
    if isinstance(term, TensorType | ShardType) and isinstance(total, TensorType | ShardType):
        return term.with_dtype(tensor_of(total).dtype) == total
    return False


@op_definition
class OutputOp(DefaultBuilder, MarkedOp):
    """What a program computes: the loss of a training step, or any values of a forward pass.

    After `build-backward` it also names the gradient of each weight.
    """

    name = "stg.output"

    values = var_operand_def()
    weights = var_operand_def()
    gradients = var_operand_def()

    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    traits = traits_def(IsTerminator())
    assembly_format = (
        "($values^ `:` type($values))? "
        "(`weights` $weights^ `:` type($weights))? "
        "(`gradients` $gradients^ `:` type($gradients))? attr-dict"
    )

    def verify_(self) -> None:
        if len(self.weights) != len(self.gradients):
            raise self.mistake("one gradient per weight")


def slice_arg(body: Block, stack: SSAValue) -> BlockArgument:
    """One more argument of the body of a repeat, for an element of a stack."""
    assert isinstance(stack.type, StackType)
    return body.insert_arg(stack.type.element, len(body.args))


def add_slice(op: RepeatOp, stack: SSAValue) -> BlockArgument:
    """Slice one more stack, the last."""
    op.operands = [*op.operands, stack]
    sizes = [op.num_carried, len(op.operands) - op.num_carried]
    op.properties[AttrSizedOperandSegments.attribute_name] = DenseArrayBase.from_list(i32, sizes)
    return slice_arg(op.body.block, stack)


def grown(op: RepeatOp, values: Sequence[SSAValue]) -> RepeatOp:
    """Replace a repeat by one of the same body that yields some more values, as stacks; its first results keep their uses."""
    op.yield_op.operands = [*op.yield_op.operands, *values]
    body = op.detach_region(op.body)
    new = RepeatOp(
        op.count.data, op.carried, op.stacks, body, reverse=op.reverse is not None, first=op.first
    )
    marks(new).take(marks(op))
    new.location = op.location
    Rewriter.insert_op(new, InsertPoint.before(op))
    for old, result in zip(op.results, new.results, strict=False):
        old.replace_all_uses_with(result)
    op.detach()
    op.erase(safe_erase=False)
    return new
