"""Expressions of tensors: what an operator, a renaming or a number makes of its operands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from xdsl.ir import Operation, SSAValue

from stagec.diagnostics import Diagnostic, Mistake, Span, closest, did_you_mean, quoted, suggestion
from stagec.dialects import stg
from stagec.dialects.stg.base import union_names
from stagec.dialects.types import FLOATS
from stagec.frontend import syntax
from stagec.frontend.checker.context import BodyState
from stagec.frontend.checker.steps import Value
from stagec.frontend.checker.types import shown
from stagec.frontend.numbers import SIZE_FUNCTIONS
from stagec.frontend.printing import text_of

_ELEMENTWISE: dict[str, Callable[[SSAValue, SSAValue], Operation]] = {
    "+": stg.AddOp,
    "-": stg.SubOp,
    "*": stg.MulOp,
    "/": stg.DivOp,
}
_SWAPS = ("+", "*")
_OF_NUMBERS = ("+", "-", "*", "/", "%", "**")
_FUNCTIONS_OF_NUMBERS = (*SIZE_FUNCTIONS, "sqrt", "rsqrt")


class ExpressionChecker(BodyState, ABC):
    """Checks expressions and adds their ops. Results are None after a finding."""

    @abstractmethod
    def call(
        self, call: syntax.Call, num_results: int, want: Sequence[str] | None = None
    ) -> list[Value | None]:
        """The results of a call."""

    def expression(self, expr: syntax.Value, want: Sequence[str] | None = None) -> Value | None:
        """The tensor that an expression makes.

        `want` are the dims that the text says the result has: a contraction keeps shared ones of them.
        They reach it through what leaves a shape as it is, and there only: in `y[B, D] = x * (x @ g)`
        they say nothing of `x @ g`.
        """
        if self.is_number(expr):
            text = f"({text_of(expr)})" if isinstance(expr, syntax.Binary) else text_of(expr)
            help_ = f"use it in an expression with a tensor: `x * {text}`"
            message, mistake = "a number is not a tensor", named_by(expr)
            self.error("E0210", message, expr.span, help_, mistake=mistake)
            return None
        if isinstance(expr, syntax.Reference):
            return self.reference(expr)
        if isinstance(expr, syntax.Call):
            return self.call(expr, 1, want)[0]
        if isinstance(expr, syntax.Rename):
            return self.rename(expr, want)
        if isinstance(expr, syntax.Negate):
            return self.negate(expr, want)
        if isinstance(expr, syntax.Binary):
            if expr.operator == "@":
                return self.contract(expr, want)
            return self.elementwise(expr, want)
        help_ = "write a tensor here, or leave it out"
        self.error("E0210", f"`{text_of(expr)}` is not a tensor", expr.span, help_)
        return None

    def is_number(self, expr: syntax.Value) -> bool:
        """Whether an expression is of literals and dims alone, such as `1 / sqrt(E)`."""
        if isinstance(expr, syntax.Number):
            return True
        if isinstance(expr, syntax.Reference):
            name = expr.name.text
            return name in self.context.sizes and name not in self.environment
        if isinstance(expr, syntax.Negate):
            return self.is_number(expr.operand)
        if isinstance(expr, syntax.Call):
            return expr.function.text in _FUNCTIONS_OF_NUMBERS and all(
                a.name is None and self.is_number(a.value) for a in expr.arguments
            )
        if isinstance(expr, syntax.Binary):
            both = self.is_number(expr.left) and self.is_number(expr.right)
            return both and expr.operator in _OF_NUMBERS
        return False

    def constant(self, expr: syntax.Value, dtype: str) -> Value:
        """A number as a tensor without dims."""
        text = text_of(expr)
        return self.emit([], lambda _: stg.ConstantOp(text, dtype), expr.span)[0]

    def reference(self, expr: syntax.Reference) -> Value | None:
        name = expr.name.text
        if name in self.environment:
            value = self.environment[name]
            if value is not None and value.is_cache:
                where = [(value.span, "declared here")]
                help_ = f"append what is new, and read the result: `append({name}, x)`"
                self.error("E0210", f"`{name}` is a cache", expr.span, help_, secondary=where)
                return None
            if value is not None:
                value.used = True
            return value
        help_, secondary = did_you_mean(name, self.environment), []
        if name in self.local_to_repeat:
            secondary = [(self.local_to_repeat[name], "assigned only inside this repeat")]
            help_ = f"give `{name}` a value before the repeat"
        elif name in self.context.definitions.callables:
            help_ = f"`{name}` is called: `{name}(...)`"
        help_ = help_ or f"give `{name}` a value before this line, or declare it as a `weight`"
        message, mistake = f"there is no value `{name}`", Mistake("no value", name, self.name)
        found = Diagnostic(
            "E0201", message, expr.span, secondary=secondary, help=help_, mistake=mistake
        )
        self.undefined.append((name, found))
        return None

    def negate(self, expr: syntax.Negate, want: Sequence[str] | None) -> Value | None:
        operand = self.expression(expr.operand, want)
        if operand is None:
            return None
        return self.apply(operand, lambda x: stg.UnaryOp("neg", x), expr.span)

    # ---- elementwise ----

    def elementwise(self, expr: syntax.Binary, want: Sequence[str] | None) -> Value | None:
        if expr.operator not in _ELEMENTWISE:
            message = f"`{expr.operator}` is for sizes, not for tensors"
            help_ = "write `square(x)`" if expr.operator == "**" else ""
            self.error("E0210", message, expr.span, help_)
            return None
        sides = self.sides(expr, want)
        if sides is None:
            return None
        left, right = sides
        names = max(left.type.names, right.type.names, key=len)
        if not _contains(left, right) and not _contains(right, left):
            names = tuple(want or ())
            if {*names} != {*left.type.names, *right.type.names}:
                self.broadcast_error(expr, left, right)
                return None
        if expr.operator in _SWAPS and len(right.type.names) > len(left.type.names):
            left, right = right, left
        build = _ELEMENTWISE[expr.operator]
        (value,) = self.emit([left, right], lambda v: build(v[0], v[1]), expr.span)
        return self.ordered(value, names, expr.span)

    def sides(self, expr: syntax.Binary, want: Sequence[str] | None) -> tuple[Value, Value] | None:
        """Both sides, a number on one as a constant of the other's dtype."""
        if self.is_number(expr.left):
            right = self.expression(expr.right, want)
            return None if right is None else (self.constant(expr.left, right.type.dtype), right)
        if self.is_number(expr.right):
            left = self.expression(expr.left, want)
            return None if left is None else (left, self.constant(expr.right, left.type.dtype))
        left, right = self.expression(expr.left), self.expression(expr.right)
        return None if left is None or right is None else (left, right)

    def broadcast_error(self, expr: syntax.Binary, left: Value, right: Value) -> None:
        only_left = [n for n in left.type.names if n not in right.type.names]
        only_right = [n for n in right.type.names if n not in left.type.names]
        sizes = self.context.sizes
        same = [(a, b) for a in only_right for b in only_left if sizes[a] == sizes[b]]
        help_ = ""
        if same:
            old, new = same[0]
            help_ = f"if `{old}` is `{new}` under another name, rename it: `[{old} -> {new}]`"
        self.error(
            "E0205",
            f"neither side of `{expr.operator}` has all dims of the other",
            expr.span,
            help_
            or f"for each pair, let a value of its own declare all dims: `y[{', '.join(union_names(left.type, right.type))}] = a {expr.operator} b`",
            label=f"{shown(left.type)} {expr.operator} {shown(right.type)}",
            secondary=self.origins((expr.left, left), (expr.right, right)),
            notes=[f"{quoted(only_left)} only left, {quoted(only_right)} only right"],
        )

    def origins(
        self, *sides: tuple[syntax.Value, Value], dtypes: bool = False
    ) -> list[tuple[Span, str]]:
        """Where values that are read by name come from, with their shapes or dtypes."""
        return [
            (
                value.span,
                f"`{text_of(expr)}` is {value.type.dtype if dtypes else shown(value.type)}",
            )
            for expr, value in sides
            if isinstance(expr, syntax.Reference) and value.span != expr.span
        ]

    def ordered(self, value: Value, names: Sequence[str], span: Span) -> Value:
        """The value with its dims in that order, which must be its dims."""
        if tuple(names) == value.type.names:
            return value
        return self.apply(value, lambda x: stg.TransposeOp(x, tuple(names)), span)

    # ---- contractions and renamings ----

    def contract(self, expr: syntax.Binary, want: Sequence[str] | None) -> Value | None:
        for side in (expr.left, expr.right):
            if self.is_number(side):
                help_ = "multiply by a number with `*`"
                message, mistake = "a number has no dims to contract", named_by(side)
                self.error("E0210", message, side.span, help_, mistake=mistake)
                return None
        left, right = self.expression(expr.left), self.expression(expr.right)
        if left is None or right is None:
            return None
        for side, value in ((expr.left, left), (expr.right, right)):
            if value.type.dtype not in FLOATS:
                message = f"a contraction is of floating-point tensors, not {value.type.dtype}"
                where = self.origins((side, value), dtypes=True)
                help_ = f"convert it: `cast({text_of(side)}, dtype = bf16)`"
                self.error("E0209", message, side.span, help_, secondary=where)
                return None
        all_names = union_names(left.type, right.type)
        shared = [n for n in left.type.names if n in right.type.names]
        over = [n for n in shared if want is None or n not in want]
        if want is not None and set(want) | set(over) == set(all_names):
            names = list(want)
        elif not shared:
            self.no_shared_dim(expr, left, right)
            return None
        else:
            # What is wanted does not fit: show what the operands make without it.
            over = shared
            names = [n for n in all_names if n not in over]
        return self.emit(
            [left, right],
            lambda values: stg.ContractOp(values[0], values[1], over, order=names),
            expr.span,
        )[0]

    def no_shared_dim(self, expr: syntax.Binary, left: Value, right: Value) -> None:
        sizes = self.context.sizes
        same = [(a, b) for a in right.type.names for b in left.type.names if sizes[a] == sizes[b]]
        helps = ["for an outer product, name the dims of the result: `y[A, B] = a @ b`"]
        if same:
            old, new = same[0]
            helps.insert(0, f"to contract `{old}` with `{new}`, rename it: `[{old} -> {new}]`")
        self.error(
            "E0205",
            "the operands of `@` share no dim",
            expr.span,
            helps,
            label=f"{shown(left.type)} @ {shown(right.type)}",
            secondary=self.origins((expr.left, left), (expr.right, right)),
            mistake=Mistake("no shared dim", f"{text_of(expr.left)}{shown(left.type)}", self.name),
        )

    def rename(self, expr: syntax.Rename, want: Sequence[str] | None) -> Value | None:
        old = [r.old.text for r in expr.renamings]
        new = [r.new.text for r in expr.renamings]
        if want is not None:
            before = dict(zip(new, old, strict=True))
            want = [before.get(n, n) for n in want]
        operand = self.expression(expr.operand, want)
        if operand is None:
            return None
        names = list(operand.type.names)
        kept = [n for n in names if n not in old]
        for renaming in expr.renamings:
            if not self.renames(renaming, names, kept, old, new, expr, operand):
                return None
        return self.apply(operand, lambda x: stg.RenameOp(x, old, new), expr.span)

    def renames(
        self,
        renaming: syntax.Renaming,
        names: Sequence[str],
        kept: Sequence[str],
        old: Sequence[str],
        new: Sequence[str],
        expr: syntax.Rename,
        operand: Value,
    ) -> bool:
        """Whether one dim can be renamed so."""
        sizes = self.context.sizes
        was, becomes = renaming.old.text, renaming.new.text
        where = self.origins((expr.operand, operand))
        if was not in names:
            message = f"there is no dim `{was}` in {shown(operand.type)}"
            help_ = suggestion(was, names) or "a number has no dims to rename"
            self.error("E0214", message, renaming.old.span, help_, secondary=where)
        elif becomes not in sizes:
            close = closest(becomes, sizes)
            help_ = f"did you mean `{close}`?" if close else f"define it: `dim {becomes} = {was}`"
            message = f"there is no dim `{becomes}`"
            self.error(
                "E0201", message, renaming.new.span, help_, mistake=Mistake("no dim", becomes)
            )
        elif becomes in kept or new.count(becomes) > 1 or old.count(was) > 1:
            twice = was if old.count(was) > 1 else becomes
            message = f"`{twice}` would be there twice"
            help_ = "leave one of them out" if was == twice else "rename it to another dim"
            self.error("E0214", message, renaming.span, help_, secondary=where)
        elif None not in (sizes[was], sizes[becomes]) and sizes[was] != sizes[becomes]:
            message = f"`{was} = {sizes[was]}` cannot be called `{becomes} = {sizes[becomes]}`"
            help_ = "a renaming keeps the size"
            secondary = [
                (dim.name.span, f"`{name}` is {sizes[name]}")
                for name in (was, becomes)
                if (dim := self.context.definitions.dims.get(name))
            ]
            self.error("E0214", message, renaming.span, help_, secondary=secondary)
        else:
            return True
        return False


def _contains(value: Value, other: Value) -> bool:
    return set(other.type.names) <= set(value.type.names)


def named_by(expr: syntax.Value) -> Mistake | None:
    """The mistake that a dim's name is, where a tensor's is wanted."""
    return Mistake("name of a dim", expr.name.text) if isinstance(expr, syntax.Reference) else None
