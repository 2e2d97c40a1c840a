"""Experts of which there are copies, so that tokens of busy ones can go to several devices: `serve { ..., redundant = 32 }`.

    weight up[X, D, F]          -> [X.slots, D, F], X.slots = X + 32
    dispatch(x, chosen, experts = X, tokens = T) -> [X.slots, T, D], T of as many slots

The router chooses among the experts that the text has; each slot has an expert's weights, and its even part of the tokens (DeepSeek-V3/R1
Inference System Overview, February 2025: 32 redundant experts beside 256, over 32 devices in prefill and 144 in decode). Which experts have copies
is decided from the load as it was (EPLB), and changes no cost.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation, SSAValue

from stagec.diagnostics import CompileError, Diagnostic, span_of
from stagec.dialects import stg
from stagec.dialects.types import StackType, TensorType, ValueType, tensor_of
from stagec.rewriting import rename_dims, set_type

CHOOSERS = (stg.TopkOp,)


def slots(name: str) -> str:
    """What the dim of experts and their copies is called."""
    return f"{name}.slots"


def add_copies(program: stg.ProgramOp) -> dict[str, str]:
    """Give experts' weights and tokens the dim of slots; which dims of experts have some, and their tokens'. E0401 where copies reach a router."""
    found: dict[str, str] = {}
    for op in program.walk():
        if isinstance(op, stg.DispatchOp):
            found[op.over.data] = op.tokens.data
    for experts in found:
        rename(program, experts)
    return found


def rename(program: stg.ProgramOp, experts: str) -> None:
    names = {experts: slots(experts)}
    ops = list(program.walk())
    marked: dict[SSAValue, None] = {}
    for op in ops:
        if isinstance(op, stg.DispatchOp) and op.over.data == experts:
            marked |= dict.fromkeys(op.results)
    count = -1
    while count < len(marked):
        count = len(marked)
        for op in ops:
            for group in together(op):
                if any(value in marked for value in group):
                    marked |= dict.fromkeys(v for v in group if experts in dims_of(v))
    for op in ops:
        if any(value in marked for value in (*op.operands, *op.results)):
            if isinstance(op, CHOOSERS):
                raise CompileError([chosen(op, experts)])
            if not isinstance(op, stg.RepeatOp):
                rename_dims(op, names)
    for value in marked:
        set_type(value, with_names(value.type, names))


def together(op: Operation) -> Iterator[list[SSAValue]]:
    """Values of an op that have the same experts: all of them, but of a repeat each with what it is in the body."""
    if isinstance(op, stg.RepeatOp):
        yielded = op.yield_op.operands
        for at, (outside, inside) in enumerate(zip(op.operands, op.body.block.args, strict=True)):
            carried = [yielded[at], op.results[at]] if at < op.num_carried else []
            yield [outside, inside, *carried]
        yield from (
            [made, stack]
            for made, stack in zip(
                yielded[op.num_carried :], op.results[op.num_carried :], strict=True
            )
        )
    elif not isinstance(op, stg.YieldOp | stg.ProgramOp):
        yield [*op.operands, *op.results]


def dims_of(value: SSAValue) -> tuple[str, ...]:
    return tensor_of(value.type).names if isinstance(value.type, ValueType) else ()


def with_names(value_type: object, names: dict[str, str]) -> ValueType:
    if isinstance(value_type, StackType):
        return value_type.with_tensor(value_type.tensor.with_names(names))
    assert isinstance(value_type, TensorType)
    return value_type.with_names(names)


def chosen(op: Operation, experts: str) -> Diagnostic:
    return Diagnostic(
        "E0401",
        f"copies of experts are no choice of the router's, and here it reads weights of `{experts}` that experts have, too",
        span_of(op.location),
        help="give the router weights of its own, or leave `redundant` out",
    )
