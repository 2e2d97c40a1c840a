"""What a pass of a plug-in puts into ops as their attributes, held against what IR can say.

Python takes any object as an attribute. What is none, or is not read as it is written, would fail in a verifier or as the IR is printed, or be lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from io import StringIO

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.ir import Attribute, Data, Operation
from xdsl.parser import Parser
from xdsl.printer import Printer

from stagec.dialects import dist, sched, stg

Known = Mapping[int, object]
"""Attributes by their identity, which lasts as long as they do: what a pass put there may have no hash."""


LONGEST = 60
"""So much is shown of what is no attribute."""


def attributes_in(module: ModuleOp) -> Known:
    return {id(each): each for op in module.walk() for _, each in said_of(op)}


def said_of(op: Operation) -> Iterator[tuple[str, object]]:
    yield from op.properties.items()
    yield from op.attributes.items()


def mistakes_of_attributes(module: ModuleOp, before: Known) -> Iterator[tuple[Operation, str]]:
    """Ops with an attribute, which was not there `before`, that IR cannot say."""
    known = dict(before)
    for op in module.walk():
        for name, each in said_of(op):
            if id(each) not in known:
                known[id(each)] = each
                for what in mistakes_of_attribute(each):
                    yield op, f"`{name}` of `{op.name}` {what}"


def mistakes_of_attribute(each: object) -> Iterator[str]:
    if not isinstance(each, Attribute):
        said = repr(each)
        shown = (
            said if len(said) <= LONGEST and said.isprintable() else f"a `{type(each).__name__}`"
        )
        yield f"{shown}, which is no attribute, as `StringAttr(...)` is"
    elif isinstance(each, Data) and type(each).__module__.startswith("stagec."):
        kind = type(each).__name__
        try:
            text = StringIO()
            # By itself: some are written without a name in front, as they stand behind a word of their op.
            each.print_parameter(Printer(text))
            same = each.parse_parameter(Parser(our_dialects(), text.getvalue())) == each.data
        except Exception as error:
            what = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            yield f"a value of `{kind}` that cannot be written and read: {what[0].strip()}"
            return
        if not same:
            said = " ".join(text.getvalue().split())
            yield f"a value of `{kind}` that is written `{said}`, which says something else"


@cache
def our_dialects() -> Context:
    context = Context()
    for dialect in (Builtin, stg.Stg, dist.Dist, sched.Sched):
        context.load_dialect(dialect)
    return context
