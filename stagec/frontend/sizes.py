"""The sizes of dims and of mesh axes: definitions, a plan's `set`, `--set`, resolved together."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from graphlib import CycleError, TopologicalSorter
from math import ceil, floor

from stagec import symbolic
from stagec.diagnostics import (
    Diagnostics,
    Mistake,
    Span,
    TypedWord,
    closest,
    did_you_mean,
    quoted,
    suggestion,
)
from stagec.dialects.types import ALL_POOLS, TIME_AXIS
from stagec.frontend import padding, replication, syntax
from stagec.frontend.numbers import LARGEST, Sizes, condition, facts, names_in, quantity, whole
from stagec.frontend.plans.merge import Merged
from stagec.frontend.printing import text_of
from stagec.symbolic import Size, conditions
from stagec.symbolic.quantity import Quantity

_NO_AXES = {"none": "no axis", TIME_AXIS: "the microbatches", ALL_POOLS: "all ranks of a job"}


@dataclass(frozen=True)
class NamedSize:
    """A dim or an axis: its expression over other names, its number, where it is defined."""

    size: Size
    value: int
    span: Span


@dataclass(frozen=True)
class ServedSize(NamedSize):
    """A dim that `serve` gives its size."""

    text: NamedSize | None
    """What it is in the text: numbers of the clause mean that."""
    differs: bool
    """Whether it is not the same on every device, or in every iteration."""


class _Without(Mapping[str, int | None]):
    """Numbers of all names but some. A view: a copy for each of many dims takes long."""

    def __init__(self, values: Mapping[str, int | None], hidden: Container[str]) -> None:
        self.all, self.hidden = values, hidden

    def __getitem__(self, name: str) -> int | None:
        if name in self.hidden:
            raise KeyError(name)
        return self.all[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.all if name not in self.hidden)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass
class SizeTable:
    """What every name of a size is. None in `values` if its definition is wrong."""

    dims: dict[str, NamedSize] = field(default_factory=dict)
    axes: dict[str, NamedSize] = field(default_factory=dict)
    products: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """`dp = edp * ep`: names of axes that are others together, in the order of the mesh."""
    values: dict[str, int | None] = field(default_factory=dict)
    """The values of all names, for expressions in a plan."""
    dim_names: tuple[str, ...] = ()
    unpadded: dict[str, str] = field(default_factory=dict)
    """The dims that rules pad, and what is called their size in the text."""
    copied: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Axes that are larger than a dim of which their ranks share the parts: the axis that splits it, and that of the copies."""
    shared: dict[str, str] = field(default_factory=dict)
    """These dims, and their axes."""
    refused: set[str] = field(default_factory=set)
    """Dims whose parts ranks cannot share, as E0303 says."""
    served: Mapping[str, NamedSize | None] = field(default_factory=dict)
    """The dims that `serve` gives their sizes, and what these are in the text."""
    origins: dict[str, str] = field(default_factory=dict)
    """`--set tp=4`, for the names that are sized so."""
    redundant: dict[str, int] = field(default_factory=dict)
    """Dims of experts that have copies, and how many there are."""
    multiples: dict[str, Size] = field(default_factory=dict)
    """What rules pad these and their copies to: a multiple of it."""
    averages: set[str] = field(default_factory=set)
    """Dims that need be no whole numbers; their values are the next ones."""

    @property
    def known(self) -> dict[str, int]:
        """The names whose definition is right."""
        return conditions.observed(
            {n: value for n, value in self.values.items() if value is not None}
        )

    def formula(self, dim: str) -> str:
        """How the text computes a dim of others; nothing of a plain number, or of one that something else than the text says."""
        found = self.dims.get(dim)
        is_plain = found is None or isinstance(found, ServedSize) or dim in self.origins
        return str(found.size) if found is not None and not is_plain and found.size.names else ""

    @property
    def dim_values(self) -> dict[str, int | None]:
        """The values of dims alone, without axes, for expressions in a model."""
        return conditions.observed({name: self.values[name] for name in self.dim_names})


@dataclass(frozen=True)
class Routed:
    """The dims of a model that dispatches call `experts`, and the `tokens` of one; how many copies of experts there are."""

    experts: frozenset[str] = frozenset()
    tokens: frozenset[str] = frozenset()
    copies: int = 0


TRAINED = "trained"
"""Of tokens of experts: an average where it is not whole, as dispatchers that drop none leave it to the router how many an expert has."""

NOT_ROUTED = Routed()


def resolve_sizes(
    dims: Mapping[str, syntax.Dim],
    merged: Merged,
    overrides: Mapping[str, str],
    findings: Diagnostics,
    served: Mapping[str, ServedSize] | None = None,
    shares: Mapping[str, str] | None = None,
    routed: Routed = NOT_ROUTED,
) -> SizeTable:
    """Size every dim and axis. `overrides` are those of `--set`; what is `served` says the sizes of some dims.

    `shares` has the dims of experts' tokens, and whether they are `exact`, `padded`, an `average` or `TRAINED`; `routed` has those of the model, and of
    experts.
    """
    resolver = _SizeResolver(dims, merged, overrides, findings, served or {}, shares or {}, routed)
    return resolver.resolve()


class _SizeResolver:
    def __init__(
        self,
        dims: Mapping[str, syntax.Dim],
        merged: Merged,
        overrides: Mapping[str, str],
        findings: Diagnostics,
        served: Mapping[str, ServedSize],
        shares: Mapping[str, str],
        routed: Routed,
    ) -> None:
        self.dims, self.merged, self.findings = dims, merged, findings
        self.overrides, self.served = overrides, served
        self.shares, self.routed = dict(shares), routed
        self.multiples: dict[str, syntax.Expr] = {}
        """Of dims of experts that have copies, what rules pad both to."""
        self.axes = self.mesh_axes()
        self.table = SizeTable(dim_names=(*dims, *(name for name in served if name not in dims)))
        self.table.served = {name: size.text for name, size in served.items()}
        if routed.copies:
            self.table.redundant = dict.fromkeys(sorted(routed.experts), routed.copies)
        self.fixed: dict[str, int] = {}
        self.exprs: dict[str, syntax.Expr] = {}
        """What defines each name that `--set` does not."""
        self.sized = set(merged.sizes)
        """Names whose size the plan says: in expressions that may name axes."""

    def mesh_axes(self) -> dict[str, syntax.MeshAxis]:
        """The axes of the mesh by name; clashes are findings."""
        axes: dict[str, syntax.MeshAxis] = {}
        mesh = self.merged.get(syntax.Mesh)
        for axis in mesh.axes if mesh else ():
            name = axis.name.text
            first = self.dims.get(name) or axes.get(name)
            if name in _NO_AXES:
                message = f"`{name}` cannot be an axis: it means {_NO_AXES[name]}"
                self.error("E0306", message, axis.name.span, "choose another name")
            elif first is not None:
                what = "a dim" if name in self.dims else "an axis"
                self.findings.say(
                    "E0202",
                    f"`{name}` is already {what}",
                    axis.name.span,
                    secondary=[(first.name.span, "defined here")],
                    help="give the axis another name",
                    mistake=Mistake("name of a dim", name) if name in self.dims else None,
                )
            else:
                axes[name] = axis
        return axes

    def error(
        self,
        code: str,
        message: str,
        span: Span,
        help_: str = "",
        mistake: Mistake | None = None,
    ) -> None:
        self.findings.say(code, message, span, help=help_, mistake=mistake)

    def resolve(self) -> SizeTable:
        self.find_products()
        self.read_overrides()
        for name, dim in self.dims.items():
            self.exprs[name] = dim.size
        for name, axis in self.axes.items():
            is_product = name in self.table.products or name in self.table.values
            if axis.size is not None and not is_product:
                self.exprs[name] = axis.size
        self.read_plan_sizes()
        self.pad()
        for name, size in self.served.items():
            self.table.dims[name], self.table.values[name] = size, size.value
            self.exprs.pop(name, None)
            differs = symbolic.symbol(conditions.of_each(name))
            conditions.redefine(name, differs if size.differs else size.size)
        for name in self.order():
            self.evaluate(name)
        for name, parts in self.table.products.items():
            known = [self.table.values.get(part) for part in parts]
            if None not in known:
                self.table.values[name] = _product([k for k in known if k is not None])
        for name, expr in self.multiples.items():
            if (multiple := whole(expr, self.table.values, Diagnostics(), "")) is not None:
                self.table.multiples[name] = multiple.size
        self.share()
        for name in self.table.products:
            conditions.know(name, self.table.values.get(name))
        return self.table

    def share(self) -> None:
        """Make two axes of those that are larger than a dim that their rules replicate: one splits it, the other has copies.

        Neighbours share: `tp = 8` over `K = 4` is `tp.K = 4` times `tp.copies = 2`, as in vLLM (`QKVParallelLinear`).
        """
        table = self.table
        for dim, axis in replication.replicated(self.merged, table.products).items():
            entry, size = table.axes.get(axis), table.values.get(dim)
            if entry is None or size is None or dim not in table.dims:
                continue
            whole, part = symbolic.symbol(axis), symbolic.symbol(dim)
            if not conditions.note(">", whole, part, holds=entry.value > size):
                continue
            if not conditions.note("whole", whole / part, holds=entry.value % size == 0):
                continue
            if axis in table.copied:
                first = table.axes[table.copied[axis][0]]
                if conditions.note("==", part, first.size, holds=first.value == size):
                    table.shared[dim] = axis
                else:
                    self.shared_otherwise(dim, size, axis, entry.value)
                continue
            names = table.copied[axis] = (f"{axis}.{dim}", f"{axis}.{replication.COPIES}")
            table.shared[dim] = axis
            sizes = {names[0]: part, names[1]: whole / part}
            for name, value in zip(names, (size, entry.value // size), strict=True):
                table.axes[name] = NamedSize(sizes[name], value, entry.span)
                table.values[name] = value
                conditions.define(name, sizes[name])
            for product, parts in table.products.items():
                apart = (p for part in parts for p in (names if part == axis else (part,)))
                table.products[product] = tuple(apart)
            table.products[axis] = names

    def shared_otherwise(self, dim: str, size: int, axis: str, ways: int) -> None:
        """E0303: ranks of an axis share the parts of dims of one size."""
        other = next(name for name, own in self.table.shared.items() if own == axis)
        message = f"ranks along `{axis} = {ways}` share parts of `{other} = {self.table.values[other]}`, and not of `{dim} = {size}` too"
        self.table.refused.add(dim)
        larger = max(size, self.table.values[other] or 1)
        help_ = f"choose `{axis} = {larger}`, where one of them is replicated"
        self.error("E0303", message, self.dims[dim].name.span, help_)

    def find_products(self) -> None:
        """Axes whose size is a product of axes are those axes together."""
        for name, axis in self.axes.items():
            if axis.size is None:
                continue
            mentioned = [n for n in names_in(axis.size) if n in self.axes]
            if not mentioned:
                continue
            factors = _factors(axis.size)
            wrong = factors is None or len(set(factors)) != len(factors)
            if wrong or any(f not in self.axes or f == name for f in factors or ()):
                help_ = f"write `{name} = {' * '.join(m for m in mentioned if m != name) or 8}`"
                message = f"`{name}` is not a product of different axes"
                unknown = [f for f in factors or () if f not in self.axes]
                if unknown:
                    message += f": the mesh has no axis {quoted(unknown)}"
                    help_ = did_you_mean(unknown[0], self.axes) or help_
                mistake = Mistake("no axis", unknown[0]) if len(unknown) == 1 else None
                self.error("E0306", message, axis.size.span, help_, mistake)
                self.table.values[name] = None
            else:
                self.table.products[name] = tuple(f for f in self.axes if f in (factors or ()))
        apart = {name: self.taken_apart(name) for name in self.table.products}
        for name, factors in apart.items():
            if len(set(factors)) == len(factors) and name not in factors:
                self.table.products[name] = tuple(f for f in self.axes if f in factors)
                continue
            size = self.axes[name].size
            assert size is not None
            message = f"`{name}` is not a product of different axes"
            self.error("E0306", message, size.span, "name each axis that it consists of once")
            self.table.values[name] = None
            del self.table.products[name]

    def taken_apart(self, name: str) -> list[str]:
        """The factors of a product, those of products among them. One that is a factor of itself is left as it is."""
        factors, seen = [name], set[str]()
        while inner := [f for f in factors if f in self.table.products and f not in seen]:
            seen.add(inner[0])
            place = factors.index(inner[0])
            factors[place : place + 1] = self.table.products[inner[0]]
        return factors

    def read_overrides(self) -> None:
        """`--set NAME=VALUE`, which no text defines: so the diagnostics have an origin."""
        for name, text in self.overrides.items():
            origin = text.origin if isinstance(text, TypedWord) else f"--set {name}={text}"
            known = [*self.dims, *(a for a in self.axes if a not in self.table.products)]
            if name in self.table.products:
                parts = quoted(self.table.products[name])
                message = f"`{name}` is a product of axes"
                self.usage(message, origin, f"set {parts} instead")
            elif name not in known:
                message = f"there is no dim or axis `{name}`"
                close = closest(name, known)
                help_ = f"did you mean `{close}`?" if close else f"there are {quoted(known)}"
                if name == "microbatch":
                    help_ = "a plan says it, `microbatch 2`, and `--sweep microbatch=1,2` varies it"
                self.usage(message, origin, help_ if known else "")
            elif not re.fullmatch(r"-?[0-9]{1,40}", text.strip()):
                self.usage(f"`{text}` is not a whole number", origin, whole_meant(name, text))
            elif not 1 <= int(text) <= LARGEST:
                what = "less than 1" if int(text) < 1 else "more than 64 bits can count"
                help_ = "sizes are whole numbers from 1 on" if int(text) < 1 else ""
                self.usage(f"a size of {int(text)} is {what}", origin, help_)
            else:
                self.fixed[name] = int(text)
                self.table.origins[name] = origin

    def usage(self, message: str, origin: str, help_: str) -> None:
        self.findings.say("E0702", message, origin=origin, help=help_)

    def read_plan_sizes(self) -> None:
        """`set S = 131072` in a plan."""
        for name, new in self.merged.sizes.items():
            known = [*self.dims, *self.axes]
            if name not in known:
                message = f"there is no dim or axis `{name}`"
                help_ = suggestion(name, known)
                self.error("E0201", message, new.name.span, help_, Mistake("no dim", name))
            elif name in self.table.products:
                help_ = f"set {quoted(self.table.products[name])} instead"
                self.error("E0306", f"`{name}` is a product of axes", new.name.span, help_)
            else:
                self.exprs[name] = new.size

    def pad(self) -> None:
        """Make multiples of the dims that rules pad. Other sizes are made of what they were, but for tokens of experts: padding is sent, too.

        So is a padded dim that is the sum of others, all of them padded: fused products have the padding of their parts.
        """
        found = padding.multiples(self.merged, self.table.products)
        found = {n: e for n, e in found.items() if n in self.dims and n not in self.served}
        self.multiples = {n: found.pop(n) for n in self.table.redundant if n in found}
        names = self.table.unpadded = {name: padding.unpadded(name) for name in found}
        if not names:
            return
        of_experts = {n: hidden for n, hidden in names.items() if n in self.routed.experts}
        sums = {
            name: self.exprs[name]
            for name in names
            if (terms := padding.terms_of(self.exprs[name])) and names.keys() >= set(terms)
        }
        for name, expr in self.exprs.items():
            sent = name in self.routed.tokens
            self.exprs[name] = padding.with_names(expr, of_experts if sent else names)
        for name, hidden in names.items():
            if name in self.shares:
                self.shares[hidden] = self.shares[name]
            self.dims = {**self.dims, hidden: self.dims[name]}
            self.exprs[hidden] = self.exprs[name]
            if name in self.fixed:
                self.fixed[hidden] = self.fixed.pop(name)
            if name in self.merged.sizes:
                self.sized.add(hidden)
            place = self.dims[name].name.span
            known = syntax.Reference(syntax.Name(hidden, span=place), span=place)
            # Of a fused dim a device has what it has of its parts.
            self.exprs[name] = padding.rounded_up(sums.get(name, known), found[name])
        dims = (each for n in self.table.dim_names for each in (names.get(n), n) if each)
        self.table.dim_names = tuple(dims)

    def order(self) -> list[str]:
        """Names, each after those that its size mentions. A circle is a finding."""
        graph = {
            name: [n for n in names_in(expr) if n in self.exprs]
            for name, expr in self.exprs.items()
            if name not in self.fixed
        }
        graph |= {name: [] for name in self.fixed if name not in self.served}
        while True:
            try:
                return list(TopologicalSorter(graph).static_order())
            except CycleError as error:
                circle: list[str] = error.args[1][::-1]
                start = min(circle[:-1])
                turn = circle.index(start)
                circle = [*circle[turn:-1], *circle[:turn], start]
                span = self.exprs[start].span
                notes = (" -> ".join(circle),) if len(circle) > 2 else ()
                message = f"the size of `{start}` depends on itself"
                help_ = "let one of them be a number"
                self.findings.say("E0206", message, span, notes=notes, help=help_)
                for name in circle:
                    self.table.values[name] = None
                    graph[name] = []

    def evaluate(self, name: str) -> None:
        """Fill in one name."""
        table = self.table.dims if name in self.dims else self.table.axes
        definition = self.dims.get(name) or self.axes[name]
        if name in self.fixed:
            value = self.fixed[name]
            self.table.values[name] = value
            table[name] = NamedSize(symbolic.constant(value), value, definition.name.span)
            return
        if name in self.table.values:
            return
        what = f"the size of `{definition.name}`"
        is_padded = name in self.table.unpadded
        is_plan = name in self.axes or name in self.sized or is_padded
        visible = self.table.values if is_plan else _Without(self.table.values, self.axes)
        found = self.whole(name, visible, what)
        self.table.values[name] = None
        if found is not None:
            self.table.values[name] = int(found.value)
            if self.served:
                conditions.redefine(name, found.size, by_others=True)
            span = definition.name.span
            table[name] = NamedSize(found.size, int(found.value), span)

    def whole(self, name: str, visible: Sizes, what: str) -> Quantity | None:
        """The size of a dim or axis; that of experts' tokens may be rounded up."""
        expr = self.exprs[name]
        if name in self.table.unpadded:
            # What is wrong with `pad` is said where the plan's rules are read.
            return whole(expr, visible, Diagnostics(), what)
        own = Diagnostics()
        found = self.share_of(name, visible, own, what)
        for each in own.found:
            self.findings.add(padding.as_written(each, self.table.unpadded))
        return found

    def share_of(
        self, name: str, visible: Sizes, findings: Diagnostics, what: str
    ) -> Quantity | None:
        """The size of a dim as the text has it: exact, if it is not of experts' tokens."""
        expr, how = self.exprs[name], self.shares.get(name, "exact")
        if how == TRAINED and self.divides(expr, visible):
            return whole(expr, visible, findings, what)
        if how != "exact":
            found = whole(rounded_up(expr), visible, findings, what)
            exact = quantity(not_rounded_up(expr), visible, Diagnostics())
            if found is None or exact is None or how == "padded":
                return found
            self.table.averages.add(name)
            return Quantity(exact.size, found.value)
        help_ = "serve numbers of tokens that divide, or let experts have their average: `serve { ..., experts = average }`"
        return whole(expr, visible, findings, what, help_=help_ if name in self.shares else "")

    def divides(self, expr: syntax.Expr, visible: Sizes) -> bool:
        """Whether a size is whole, or a mistake that is said of it anyway."""
        found = quantity(expr, visible, Diagnostics())
        if found is None:
            return True
        return conditions.note("whole", found.size, holds=Fraction(found.value).denominator == 1)


def not_rounded_up(expr: syntax.Expr) -> syntax.Expr:
    """What `ceildiv(a, b)` rounds up."""
    if not (isinstance(expr, syntax.Call) and expr.function.text == "ceildiv"):
        return expr
    match [argument.value for argument in expr.arguments]:
        case [top, bottom] if not isinstance(top, syntax.Text | syntax.ListValue):
            if not isinstance(bottom, syntax.Text | syntax.ListValue):
                return syntax.Binary(top, "/", bottom, span=expr.span)
    return expr


def rounded_up(expr: syntax.Expr) -> syntax.Expr:
    one = syntax.Number("1", span=expr.span)
    arguments = tuple(syntax.Argument(None, each, span=expr.span) for each in (expr, one))
    return syntax.Call(syntax.Name("ceildiv", span=expr.span), arguments, span=expr.span)


def missing_axis_sizes(merged: Merged, table: SizeTable, findings: Diagnostics) -> None:
    """Axes that neither the mesh nor `--set` sizes."""
    mesh = merged.get(syntax.Mesh)
    for axis in mesh.axes if mesh else ():
        name = axis.name.text
        if axis.size is None and name not in table.values and name not in table.products:
            message = f"axis `{name}` has no size"
            help_ = f"write `{name} = 8`, or give it with `--set {name}=8`"
            findings.say("E0306", message, axis.name.span, help=help_)
            table.values[name] = None


def check_requirements(
    requires: list[syntax.Require],
    table: SizeTable,
    findings: Diagnostics,
    of_one: Mapping[str, int] | None = None,
) -> None:
    """`require H % K == 0`, with the sizes that are in force; where sequences are one row, with those `of_one`, the longest."""
    for require in requires:
        asked = padding.with_names(require.condition, table.unpadded)
        if of_one and not of_one.keys().isdisjoint(names_in(asked)):
            values = {**conditions.unread(table.dim_values), **of_one}
            with conditions.unrecorded():
                holds = condition(asked, values, findings)
        else:
            values = table.dim_values
            holds = condition(asked, values, findings)
        if holds is False:
            findings.say(
                "E0207",
                f"`{text_of(require.condition)}` does not hold",
                require.condition.span,
                notes=facts(asked, values),
                help=f"choose other sizes of {quoted(dict.fromkeys(names_in(require.condition)), last='or')}, or another requirement",
            )


def _factors(expr: syntax.Expr) -> list[str] | None:
    """`a * b * c` as names, or None for anything else."""
    if isinstance(expr, syntax.Reference):
        return [expr.name.text]
    if isinstance(expr, syntax.Binary) and expr.operator == "*":
        left, right = _factors(expr.left), _factors(expr.right)
        return None if left is None or right is None else left + right
    return None


def _product(numbers: list[int]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result


def whole_meant(name: str, text: str) -> str:
    """How a size that is no whole number is written."""
    if not re.fullmatch(r"-?[0-9]{1,40}\.[0-9]{1,40}|[0-9]{1,20}e[0-9]", text.strip(), re.ASCII):
        return "write it out in digits"
    size = Fraction(text.strip())
    least, most = max(1, floor(size)), max(1, ceil(size))
    other = f", or `{name}={most}`" if most != least else ""
    return f"sizes are whole numbers from 1 on: write `{name}={least}`{other}"
