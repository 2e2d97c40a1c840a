"""What the class of an op says that cannot be: told when it is loaded, before any model uses it.

What its methods answer is seen where they are asked (`stagec.analysis.plug_in_ops`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from xdsl.ir import Operation
from xdsl.irdl import IRDLOperation, OpDef, OperandDef, OptionalDef, ResultDef, VariadicDef

from stagec.dialects.interfaces import CostInterface
from stagec.dialects.op import DialectOp
from stagec.dialects.stg.base import StatefulOp, TensorOp
from stagec.dialects.stg.interface import OPTION_KINDS, Signature
from stagec.dialects.work import Work

NAME = re.compile(r"[a-z_]\w*(\.[A-Za-z_]\w*)+")
OF_THE_CLASS = ("check_call", "from_call")
COSTS = ("flops", "flops_again", "moved_bytes", "lowered")


def mistakes_of_class(op: type[Operation]) -> Iterator[str]:
    """What is wrong with a class of ops."""
    if issubclass(op, IRDLOperation) and not inspect.isabstract(op) and defined(op) is None:
        yield f"`{op.name}`: its class `{op.__name__}` is no `@irdl_op_definition`"
        return
    if not NAME.fullmatch(op.name):
        yield f"`{op.name}` is no name of an op: one is `dialect.kind`, as `fused.add_rms_norm`"
    if issubclass(op, TensorOp):
        wrong_methods = list(mistakes_of_methods(op))
        yield from wrong_methods
        yield from mistakes_of_attributes(op)
        if not wrong_methods:
            yield from mistakes_of_signatures(op)
    elif hasattr(op, "SIGNATURES"):
        yield f"`{op.name}`: it has `SIGNATURES`, and is no `stg.TensorOp`, which models call"


def mistakes_of_methods(op: type[TensorOp]) -> Iterator[str]:
    for name in OF_THE_CLASS:
        if not inspect.ismethod(getattr(op, name)):
            yield f"`{op.name}`: `{name}` is to be a `classmethod`"


def mistakes_of_attributes(op: type[TensorOp]) -> Iterator[str]:
    """Mistakes in what a class states about all of its ops: numbers of operands and results that they do not have."""
    has = defined(op)
    if not isinstance(op.WORK, Work):
        kinds = ", ".join(f"Work.{each.name}" for each in Work)
        yield f"`{op.name}`: `WORK` is a kind of `stagec.dialects.work`, not {op.WORK!r}: {kinds}"
    like: Any = op.LIKE
    if like is not None and not is_number(like, most(has, OperandDef)):
        yield f"`{op.name}`: `LIKE` is the number of {one_of(op, OperandDef)}, not {like!r}"
    linear: Any = op.LINEAR_OPERANDS
    if not isinstance(linear, tuple):
        yield f"`{op.name}`: `LINEAR_OPERANDS` is a tuple of numbers of operands, not {linear!r}"
    else:
        for each in linear:
            if not is_number(each, most(has, OperandDef)):
                yield f"`{op.name}`: `LINEAR_OPERANDS` has {each!r}, which is not the number of {one_of(op, OperandDef)}"
    source: Any = op.SOURCE
    if not isinstance(source, str):
        yield f"`{op.name}`: `SOURCE` is a text, not {source!r}"
    hidden: Any = op.NUM_STATISTICS
    # A function of the language returns something.
    limit = most(has, ResultDef)
    if not is_number(hidden, None if limit is None else limit + (not op.SIGNATURES)):
        least = ", of which a call returns one at least" if op.SIGNATURES else ""
        yield f"`{op.name}`: `NUM_STATISTICS` is how many of its {counted(op, ResultDef)}{least}, are for the backward pass alone, not {hidden!r}"
    flops: Any = op.FLOPS
    names = ("", *(name for name, _ in (*has.operands, *has.results)))
    is_row = isinstance(flops, tuple) and len(flops) == 2
    if not is_row or type(flops[0]) is not int or flops[1] not in names:
        yield f'`{op.name}`: `FLOPS` is how many there are for each element, and of which operand or result, as `(4, "{names[-1]}")`, not {flops!r}'
    yield from mistakes_of_view(op)


def mistakes_of_view(op: type[TensorOp]) -> Iterator[str]:
    """A view is no kernel: nothing that it said of costs would be heard."""
    is_view: Any = op.IS_VIEW
    if not isinstance(is_view, bool):
        yield f"`{op.name}`: `IS_VIEW` is True or False, not {is_view!r}"
    elif is_view:
        said = [f"`{name}`" for name in COSTS if is_own(op, name)]
        if said:
            yield f"`{op.name}`: it `IS_VIEW`, of which there is no kernel, and says what it costs: {', '.join(said)}"
        if not defined(op).operands:
            yield f"`{op.name}`: it `IS_VIEW`, and has no operand to be one of"


def mistakes_of_signatures(op: type[TensorOp]) -> Iterator[str]:
    signatures: Any = op.SIGNATURES
    if not isinstance(signatures, tuple) or not all(isinstance(s, Signature) for s in signatures):
        yield f"`{op.name}`: `SIGNATURES` is a tuple of `stg.Signature`"
        return
    makes_itself = op.from_call.__func__ is TensorOp.from_call.__func__
    for signature in op.SIGNATURES:
        options = {option.name for option in signature.options}
        for option in signature.options:
            if option.kind not in OPTION_KINDS or (option.kind == "choice") > bool(option.choices):
                kinds = ", ".join(OPTION_KINDS)
                yield f"`{op.name}`: the option `{option.name}` is of a kind `{option.kind}`; there are {kinds}, and a `choice` has choices"
        if "state" in options and (not issubclass(op, StatefulOp) or inspect.isabstract(op)):
            yield f"`{op.name}` has the option `state`, and is no `StatefulOp` with its methods"
        if makes_itself and not takes(op, options - {"state"}):
            yield f"`{op.name}` has options, and no `from_call` that reads them"
        elif makes_itself and "state" not in options:
            yield from mistakes_of_constructor(op, signature)


def takes(op: type[TensorOp], options: set[str]) -> bool:
    """Whether its constructor has arguments of these names."""
    arguments = inspect.signature(op).parameters
    any_name = any(each.kind == each.VAR_KEYWORD for each in arguments.values())
    has_own = op.__init__ not in (TensorOp.__init__, DialectOp.__init__)
    return not options or (has_own and (any_name or options <= arguments.keys()))


def mistakes_of_constructor(op: type[TensorOp], signature: Signature) -> Iterator[str]:
    """Where no `from_call` says otherwise, a call's operands are the constructor's."""
    if op.__init__ is DialectOp.__init__:
        yield f"`{op.name}` has no `__init__` that says the types of its results; of a `stg.LikeOp` or a `stg.InferredOp` they are inferred"
        return
    count = len(signature.operands)
    for given in range(count - signature.optional_operands, count + 1):
        try:
            options = dict.fromkeys(option.name for option in signature.options)
            inspect.signature(op).bind(*signature.operands[:given], **options)
        except TypeError as error:
            operands = ", ".join(signature.operands[:given])
            yield f"`{op.name}`: its constructor does not take ({operands}), as `{signature.name}` is called: {error}; there is no `from_call`"
            return


def defined(op: type[IRDLOperation]) -> OpDef:
    return op.get_irdl_definition()


def most(has: OpDef, kind: type[OperandDef] | type[ResultDef]) -> int | None:
    """How many operands or results an op has at most; None where there may be any number."""
    each: list[Any] = [d for _, d in (has.operands if kind is OperandDef else has.results)]
    unbounded = any(isinstance(d, VariadicDef) and not isinstance(d, OptionalDef) for d in each)
    return None if unbounded else len(each)


def counted(op: type[IRDLOperation], kind: type[OperandDef] | type[ResultDef]) -> str:
    limit = most(defined(op), kind)
    what = "operands" if kind is OperandDef else "results"
    return what if limit is None else f"{limit} {what}"


def one_of(op: type[IRDLOperation], kind: type[OperandDef] | type[ResultDef]) -> str:
    return f"one of its {counted(op, kind)}, from 0"


def is_number(value: Any, limit: int | None) -> bool:
    """Whether it counts from 0, and stays below what there is."""
    return type(value) is int and value >= 0 and (limit is None or value < limit)


def is_own(op: type[TensorOp], name: str) -> bool:
    """Whether a class, and none of those that all ops are of, defines a method."""
    return getattr(op, name) not in (getattr(TensorOp, name), getattr(CostInterface, name))
