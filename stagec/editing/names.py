"""What each name of a text and of what it imports stands for: where it is defined, and where else it is meant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from itertools import chain

from stagec.diagnostics import Span
from stagec.frontend import syntax

AXIS = "axis"
"""The owner of mesh axes: plans that extend one another share them."""


@dataclass(frozen=True)
class Symbol:
    """A name and what it belongs to: a module, whose values and weights are its own, `axis`, or the whole program (empty)."""

    owner: str
    name: str


@dataclass(frozen=True)
class NamePlace:
    """A name in the text."""

    symbol: Symbol
    span: Span
    is_definition: bool
    kind: str
    """`dim`, `module`, `model`, `op`, `plan`, `pool`, `axis`, `weight`, `cache`, `value`; of a reference that of its definition."""


@dataclass
class Index:
    """All names of a program's files that stand for something in it."""

    places: list[NamePlace] = field(default_factory=list)

    def at(self, file: str, line: int, column: int) -> NamePlace | None:
        """The name at a place; lines and columns count from 1, and the end of a name is one more."""
        for place in self.places:
            span = place.span
            if span.file == file and span.line == line and span.column <= column <= span.end_column:
                return place
        return None

    def of(self, symbol: Symbol) -> list[NamePlace]:
        return [place for place in self.places if place.symbol == symbol]

    def definition(self, symbol: Symbol) -> NamePlace | None:
        return next((place for place in self.of(symbol) if place.is_definition), None)


def index_of(*files: syntax.Program) -> Index:
    """The index of the files of one program, which see each other's definitions. What is imported comes first, as in `Source.files`."""
    defined: dict[Symbol, str] = {}
    found: list[tuple[Symbol, Span, bool]] = []
    for owner, name, kind in chain.from_iterable(map(definitions, files)):
        symbol = Symbol(owner, name.text)
        first = symbol not in defined
        defined.setdefault(symbol, kind)
        found.append((symbol, name.span, first))
    known = {span: True for _, span, _ in found}
    for owner, name in chain.from_iterable(map(names_of, files)):
        if name.span in known:
            continue
        candidates = (Symbol(owner, name.text), Symbol("", name.text))
        symbol = next((each for each in candidates if each in defined), None)
        if symbol is not None:
            found.append((symbol, name.span, False))
    places = [NamePlace(symbol, span, first, defined[symbol]) for symbol, span, first in found]
    return Index(sorted(places, key=lambda place: place.span))


def definitions(program: syntax.Program) -> Iterator[tuple[str, syntax.Name, str]]:
    """Owner, name and kind of everything that is defined."""
    for item in program.items:
        match item:
            case syntax.Dim():
                yield "", item.name, "dim"
            case syntax.Module() | syntax.Model() | syntax.Op():
                kind = type(item).__name__.lower()
                yield "", item.name, kind
                for parameter in item.parameters:
                    yield item.name.text, parameter.name, "value"
                if not isinstance(item, syntax.Op):
                    yield from inside(item.name.text, item.body)
            case syntax.Plan():
                yield "", item.name, "plan"
                pools = [clause for clause in item.clauses if isinstance(clause, syntax.Pool)]
                for pool in pools:
                    yield item.name.text, pool.name, "pool"
                for clause in (*item.clauses, *(own for pool in pools for own in pool.clauses)):
                    if isinstance(clause, syntax.Mesh):
                        for axis in clause.axes:
                            yield AXIS, axis.name, "axis"
            case _:
                pass


def inside(owner: str, body: syntax.Body) -> Iterator[tuple[str, syntax.Name, str]]:
    for statement in body.statements:
        match statement:
            case syntax.Weights():
                for weight in statement.weights:
                    yield owner, weight.name, "weight"
            case syntax.Caches():
                for cache in statement.caches:
                    yield owner, cache.name, "cache"
            case syntax.Assign():
                for target in statement.targets:
                    yield owner, target.name, "value"
            case syntax.Repeat():
                yield from inside(owner, statement.body)
            case _:
                pass


def names_of(program: syntax.Program) -> Iterator[tuple[str, syntax.Name]]:
    """Every name that may refer to something, and the item that it is in. Options and settings are words of their own."""
    for item in program.items:
        owner = AXIS if isinstance(item, syntax.Plan) else ""
        if isinstance(item, syntax.Module | syntax.Model | syntax.Op):
            owner = item.name.text
        stack: list[object] = [item]
        while stack:
            node = stack.pop()
            if isinstance(node, tuple):
                stack += node
            elif isinstance(node, syntax.Name):
                yield owner, node
            elif isinstance(node, syntax.Argument | syntax.Setting):
                stack.append(node.value)
            elif isinstance(node, syntax.Path):
                stack.append(node.names[0])
            elif isinstance(node, syntax.SyntaxNode):
                stack += [getattr(node, each.name) for each in fields(node)]
