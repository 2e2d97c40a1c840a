"""Changing IR without losing where it came from.

xDSL gives an op made by a pattern the location `unknown`. `rewrite` gives it the location, scope and
phase of the op that the pattern matched, so that each trace node can name its source line.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import UnionType

from xdsl.dialects.builtin import LocationAttr, ModuleOp, StringAttr, UnknownLoc
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator

from stagec.diagnostics import CompileError, Diagnostic, refused, span_of
from stagec.dialects import stg
from stagec.dialects.attributes import NamesAttr
from stagec.dialects.marks import marks_of_class
from stagec.dialects.types import StackType
from stagec.symbolic import Size

INHERITED = ("scope", "phase", "late", stg.OF_STAGE)
"""Attributes that a new op takes over from the op that it replaces or serves."""


def inherit(new: Operation, origin: Operation | Origin, pass_name: str = "") -> None:
    """Give `new` the location, scope and phase of `origin`, where it has none of its own. What ends a block is made by nobody."""
    if isinstance(new.location, UnknownLoc):
        new.location = origin.location
    old = origin.marks if isinstance(origin, Origin) else stg.marks(origin)
    own = stg.marks(new)
    own.take({key: old[key] for key in INHERITED if key in old and key not in own})
    if pass_name and stg.MADE_BY not in own and not new.has_trait(IsTerminator):
        own[stg.MADE_BY] = StringAttr(pass_name)


@dataclass(frozen=True)
class Origin:
    """What is inherited, of an op that may be gone by then."""

    location: LocationAttr
    marks: Mapping[str, Attribute]


def rewrite(
    within: Operation, pattern: RewritePattern, pass_name: str = "", *, once: bool = False
) -> None:
    """Apply a pattern everywhere in a module, or a part of it, until nothing changes, or `once` to each op that is there now.

    Raises:
        CompileError: all that the pattern raised, of any op; E0713 for a pattern that goes on changing what it made.
    """
    kinds, ops = kinds_of(type(pattern)), list(within.walk())
    if not any(isinstance(op, kinds) for op in ops):
        return
    most = MOST_PER_OP * len(ops) + MOST_AT_LEAST
    inheriting = _Inheriting(pattern, kinds, pass_name, most)
    walker = _KindsWalker(inheriting, apply_recursively=not once, kinds=kinds)
    walker.rewrite_region(within.regions[0])
    if inheriting.failure is not None:
        raise inheriting.failure
    if inheriting.found:
        raise CompileError(list(dict.fromkeys(inheriting.found)))
    if inheriting.left < 0:
        name = pass_name or "a pass"
        message = f"the pass `{name}` does not end: `{type(pattern).__name__}` has changed {most} ops, and goes on"
        help_ = "a pattern leaves alone what it made itself; `rewrite(..., once=True)` visits only what is there before"
        raise refused("E0713", message, help=help_)


@cache
def kinds_of(pattern: type[RewritePattern]) -> type[Operation] | UnionType:
    """The ops that a pattern is for: `op_type_rewrite_pattern` passes over all others, which most are."""
    said = inspect.getclosurevars(pattern.match_and_rewrite).nonlocals
    return said.get("expected_type", Operation)


MOST_PER_OP, MOST_AT_LEAST = 4, 1000
"""How often a pattern may change something."""


@dataclass(eq=False, repr=False)
class _KindsWalker(PatternRewriteWalker):
    """Visits only the ops that a pattern is for, which are few."""

    kinds: type[Operation] | UnionType = Operation

    def _populate_worklist(self, op: Operation | Region | Block) -> None:
        for each in op.walk(reverse=True, region_first=True):
            if isinstance(each, self.kinds):
                self._worklist.push(each)


@dataclass
class _Inheriting(RewritePattern):
    pattern: RewritePattern
    kinds: type[Operation] | UnionType
    pass_name: str
    left: int
    """How many more changes there may be."""
    found: list[Diagnostic] = field(default_factory=list)
    """Mistakes. xDSL would wrap them in an exception of its own."""
    refused: set[Operation] = field(default_factory=set)
    """Where they are: left alone, for what was changed before a mistake would be changed again."""
    failure: Exception | None = None
    """What else a pattern raised, after which it is left alone: xDSL would put the whole module in its place."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, self.kinds) or self.left < 0 or self.failure or op in self.refused:
            return
        # As it is before the pattern changes it; what of that are marks is asked if something is inserted.
        location, properties, attributes = op.location, dict(op.properties), dict(op.attributes)

        def inserted(new: Operation) -> None:
            known = marks_of_class(type(op))
            places = {key: properties if key in known else attributes for key in INHERITED}
            marks = {key: place[key] for key, place in places.items() if key in place}
            inherit(new, Origin(location, marks), self.pass_name)

        rewriter.operation_insertion_handler.insert(0, inserted)
        try:
            self.pattern.match_and_rewrite(op, rewriter)
        except CompileError as error:
            self.found += error.diagnostics
            self.refused.add(op)
        except Exception as error:
            self.failure = error
        rewriter.operation_insertion_handler.pop(0)
        self.left -= rewriter.has_done_action


def insert_before(
    op: Operation, new: Sequence[Operation], pass_name: str = "", origin: Operation | None = None
) -> None:
    """Insert ops that serve `op`, or another one that they come from."""
    for made in new:
        inherit(made, origin or op, pass_name)
    Rewriter.insert_op(new, InsertPoint.before(op))


def insert_after(op: Operation, new: Sequence[Operation], pass_name: str) -> None:
    """Insert ops that use what `op` makes."""
    for made in new:
        inherit(made, op, pass_name)
    Rewriter.insert_op(new, InsertPoint.after(op))


def programs(module: ModuleOp) -> list[stg.ProgramOp]:
    """The programs of a module."""
    return [op for op in module.body.ops if type(op) is stg.ProgramOp]


def programs_by_kind(module: ModuleOp) -> dict[str, stg.ProgramOp]:
    """The programs of a module, by the kind of stage that runs each."""
    return {stg.text(program, "kind"): program for program in programs(module)}


def defined(module: ModuleOp, origin: Operation, sizes: Mapping[str, Size]) -> list[str]:
    """Names of these sizes. One that means another size already gets a number."""
    known = {op.dim.data: op.size.data for op in module.body.ops if type(op) is stg.DimOp}
    found: list[str] = []
    for wanted, size in sizes.items():
        name, number = wanted, 1
        while known.get(name, size) != size:
            number += 1
            name = f"{wanted}{number}"
        if name not in known:
            op = stg.DimOp(name, size)
            op.location = origin.location
            module.body.block.insert_op_before(op, programs(module)[0])
        found.append(name)
    return found


def output_of(program: stg.ProgramOp) -> stg.OutputOp:
    """What a program ends in. E0709 if it does not end so."""
    last = program.body.block.last_op
    if isinstance(last, stg.OutputOp):
        return last
    message = f"`{program.model.data}` does not end in `stg.output`"
    raise refused("E0709", message, span_of(program.location), help="end it with `stg.output`")


def set_operand(op: Operation, index: int, value: SSAValue) -> None:
    """Let an op read another value. A repeat's slices of a stack become elements of the new one."""
    op.operands[index] = value
    if isinstance(op, stg.RepeatOp) and isinstance(value.type, StackType):
        inner = op.body.block.args[index]
        if inner.type != value.type.element:
            set_type(inner, value.type.element)
            for use in list(inner.uses):
                set_operand(use.operation, use.index, inner)


def set_type(value: SSAValue, value_type: Attribute) -> None:
    """Change a value's type. Unlike xDSL's `replace_value_with_new_type` the value stays the same one,
    so that tables keyed by values stay right."""
    value._type = value_type


LITERAL = frozenset(("kind", "function", "count", "rate", "softcap", "op"))
"""Properties of ops that are words, and no names of dims."""


def rename_dims(op: Operation, names: Mapping[str, str]) -> None:
    """Say other names of dims in an op's properties."""
    for key, attribute in list(op.properties.items()):
        if key in stg.marks(op) or key in LITERAL:
            continue
        if isinstance(attribute, NamesAttr):
            op.properties[key] = NamesAttr(tuple(names.get(n, n) for n in attribute.data))
        elif isinstance(attribute, StringAttr):
            op.properties[key] = StringAttr(names.get(attribute.data, attribute.data))
