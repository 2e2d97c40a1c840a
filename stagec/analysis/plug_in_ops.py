"""What an op of a plug-in answers when it is asked for its costs, its memory and its loops, held against what there is.

Our own are held against them by tests. A wrong answer is E0713, where the model has the op.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from xdsl.ir import Operation, SSAValue

from stagec.diagnostics import CompileError, Span, refused, span_of
from stagec.dialects import sched, stg
from stagec.dialects.attributes import SizeAttr
from stagec.dialects.interfaces import Bytes, TaskInterface
from stagec.dialects.memory import WHEN, Effects, Overwrite
from stagec.dialects.op import is_our_class
from stagec.dialects.types import DTYPE_BITS, FLOATS, TensorType, ValueType
from stagec.symbolic import Size

LOWERED = (
    *(each for each in sched.Sched.operations if issubclass(each, sched.NodeOp)),
    sched.ViewOp,
    sched.TakenOp,
)
"""What an op may become."""


ANSWERS = "docs/adding_an_op.md says what an op answers, and how"


def check_made(op: object, span: Span) -> None:
    """E0713 for what a call of an op of a plug-in makes, where that is no op with results."""
    if is_our_class(type(op)):
        return
    if not isinstance(op, stg.TensorOp):
        message = f"`from_call` makes {op!r}, and it is to make a `stg.TensorOp`"
        raise refused("E0713", message, span, help=ANSWERS)
    message = ""
    if not op.results:
        message = "its `__init__` makes no results: `super().__init__` is given operands and the types of results"
    elif wrong := [r for r in op.results if not isinstance(r.type, TensorType)]:
        message = f"its `__init__` makes a result of type {wrong[0].type}, which is no tensor's: `x.type` is that of a value"
    for each in [message] if message else mistakes_of_indices(op):
        raise refused("E0713", f"the op `{op.name}`: {each}", span, help=ANSWERS)


def check_answers(op: stg.TensorOp, values: Mapping[str, int]) -> None:
    """E0713 for the first answer that cannot be. `values` are those of sizes."""
    for message in mistakes(op, values):
        raise mistaken(op, message)


def mistaken(op: Operation, message: str) -> CompileError:
    message = f"the op `{op.name}`: {message}"
    return refused("E0713", message, span_of(op.location), help=ANSWERS)


def mistakes(op: stg.TensorOp, values: Mapping[str, int]) -> Iterator[str]:
    name: object = op.node_name
    if callable(name):
        yield "`node_name` is a `property`"
    elif not isinstance(name, str) or not name:
        yield f"`node_name` is to be a text, not {name!r}"
    yield from mistakes_of_indices(op)
    yield from mistakes_of_dtypes(op)
    for what, cost in (("flops", op.flops()), ("flops_again", op.flops_again())):
        yield from mistakes_of_cost(f"`{what}`", cost, values)
    moved: object = op.moved_bytes()
    if not isinstance(moved, Bytes):
        yield f"`moved_bytes` is to be `Bytes(read, written)`, not {moved!r}"
    else:
        yield from mistakes_of_cost("`read` of `moved_bytes`", moved.read, values)
        yield from mistakes_of_cost("`written` of `moved_bytes`", moved.written, values)
    yield from mistakes_of_effects(op, op.effects(), values)


def mistakes_of_indices(op: stg.TensorOp) -> Iterator[str]:
    indices: object = op.indices()
    if not isinstance(indices, stg.Indices):
        yield f"`indices` is to be `stg.Indices`, not {indices!r}"
        return
    for what, own, known in (
        ("operand", op.operands, indices.operands),
        ("result", op.results, indices.results),
    ):
        if len(known) != len(own):
            yield f"`indices` are of {len(known)} {what}s, and it has {len(own)}"
            return
        for number, (value, names) in enumerate(zip(own, known, strict=True)):
            if isinstance(value.type, TensorType) and len(names) != len(value.type.dims):
                yield f"`indices` has {len(names)} of {what} {number}, which is <{value.type.body}>"
    known = {name for names in (*indices.operands, *indices.results) for name in names}
    for what in ("blocked", "statistics"):
        said: object = getattr(indices, what)
        if not isinstance(said, frozenset):
            yield f"`{what}` of `indices` is a `frozenset` of names, not {said!r}"
        elif unknown := sorted(map(str, said - known)):
            yield f"`{what}` of `indices` has `{unknown[0]}`, which no operand and no result has"
    linear: object = op.linear_operands
    numbers = range(len(op.operands))
    if not isinstance(linear, tuple) or any(each not in numbers for each in linear):
        yield f"`linear_operands` are numbers of its {len(numbers)} operands, not {linear!r}"


def mistakes_of_dtypes(op: stg.TensorOp) -> Iterator[str]:
    """No operand has the precision of a result that is wider than all of them, and than that in which sums are kept."""
    floats = [each for value in op.operands if (each := dtype_of(value)) in FLOATS]
    if not floats or op.WORK.keeps_values:
        return
    widest = max([*floats, "fp32"], key=lambda each: DTYPE_BITS[each])
    for number, result in enumerate(op.results):
        made = dtype_of(result)
        if made in FLOATS and DTYPE_BITS[made] > DTYPE_BITS[widest]:
            yield f"result {number} is {made}, and nothing that it reads is: a result has the dtype of an operand, or of sums ({widest})"


def dtype_of(value: SSAValue) -> str:
    return value.type.dtype if isinstance(value.type, TensorType) else ""


def mistakes_of_cost(what: str, cost: object, values: Mapping[str, int]) -> Iterator[str]:
    if not isinstance(cost, Size):
        yield f"{what} is to be a `Size`, as `elements(x)` is, not {cost!r}"
    elif is_below_zero(cost, values):
        yield f"{what} is negative: {cost}"


def is_below_zero(size: Size, values: Mapping[str, int]) -> bool:
    if all(factor > 0 for _, factor in size.terms):
        return False
    return size.names <= values.keys() and size.evaluate(values) < 0


def mistakes_of_effects(
    op: stg.TensorOp, effects: object, values: Mapping[str, int]
) -> Iterator[str]:
    if not isinstance(effects, Effects):
        yield f"`effects` is to be `Effects`, not {effects!r}"
        return
    overwrites: object = effects.overwrites
    if not isinstance(overwrites, tuple) or not all(isinstance(o, Overwrite) for o in overwrites):
        yield f"`effects` has as `overwrites` a tuple of `Overwrite`, not {overwrites!r}"
        return
    for each in effects.overwrites:
        if each.operand not in range(len(op.operands)) or each.result not in range(len(op.results)):
            yield f"`effects` overwrites operand {each.operand} by result {each.result}, of {len(op.operands)} operands and {len(op.results)} results"
        elif each.when not in WHEN:
            yield f"`effects` overwrites operand {each.operand} `{each.when}`; there are {', '.join(f'`{w}`' for w in WHEN)}"
        elif is_larger(op.results[each.result], op.operands[each.operand], values):
            taken, made = op.operands[each.operand].type, op.results[each.result].type
            yield f"`effects` puts result {each.result}, {made}, into the memory of operand {each.operand}, which is smaller: {taken}"


def is_larger(result: SSAValue, operand: SSAValue, values: Mapping[str, int]) -> bool:
    if not isinstance(result.type, ValueType) or not isinstance(operand.type, ValueType):
        return False
    made, taken = result.type.num_bytes, operand.type.num_bytes
    if made == taken or not (made.names | taken.names) <= values.keys():
        return False
    return made.evaluate(values) > taken.evaluate(values)


def check_lowered(
    op: TaskInterface, lowered: Sequence[Operation], values: Mapping[str, int]
) -> None:
    """Check that an op becomes tasks, whose last results are its own."""
    given: object = lowered
    if not isinstance(given, Sequence):
        raise mistaken(op, f"`lowered` returns a list of tasks, not {given!r}")
    for made in lowered:
        if not isinstance(made, LOWERED):
            what = f"`{made.name}`" if isinstance(made, Operation) else repr(made)
            raise mistaken(
                op, f"`lowered` makes {what}, which is no task: all that it becomes is of `sched`"
            )
        if isinstance(made, sched.ComputeOp):
            for name in ("flops", "reads", "writes"):
                cost = made.properties.get(name)
                data = cost.data if isinstance(cost, SizeAttr) else cost
                for message in mistakes_of_cost(f"`{name}` of what `lowered` makes", data, values):
                    raise mistaken(op, message)
    results = [r.type for made in lowered for r in made.results]
    wanted = list(op.result_types)
    if results[len(results) - len(wanted) :] != wanted:
        have = ", ".join(str(each) for each in results) or "none"
        raise mistaken(
            op,
            f"`lowered` has the results {have}: the last of them are to be the op's, {', '.join(map(str, wanted))}",
        )
