"""Statements: weights, assignments, repeats, returns; and the bodies that they make up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from stagec.diagnostics import Diagnostic, Mistake, Span, closest, quoted
from stagec.dialects import stg
from stagec.frontend import syntax
from stagec.frontend.checker.calls import CallChecker
from stagec.frontend.checker.context import CheckerContext
from stagec.frontend.checker.steps import (
    CacheStep,
    Carried,
    CheckedBody,
    NameStep,
    ReadStep,
    RepeatStep,
    Value,
    WeightStep,
)
from stagec.frontend.checker.types import Typed, shown
from stagec.frontend.numbers import whole
from stagec.frontend.printing import text_of

LOSS = "loss"
"""What a model assigns to is its result, if it returns nothing."""


def check_body(item: syntax.Module | syntax.Model, context: CheckerContext) -> CheckedBody:
    """The body of a module or a model. Mistakes are findings; then it is not to be lowered."""
    return BodyChecker(context, item.name.text).body(item)


class BodyChecker(CallChecker):
    """Checks the statements of one body."""

    def body(self, item: syntax.Module | syntax.Model) -> CheckedBody:
        context = self.context
        signature = context.types.signature(item, context.precision.activations)
        self.misnamed += context.types.misnamed(item)
        parameters: list[NameStep] = []
        for parameter in signature.parameters:
            self.environment[parameter.name] = None
            if parameter.type is not None:
                passed = Value(parameter.type, parameter.span)
                parameters.append(self.named(passed, parameter.name, parameter.span))
        body = CheckedBody(item.name.text, item.name.span, parameters, self.steps)
        self.first_weights: dict[str, Span] = {}
        self.weights: list[NameStep] = []
        self.returned_inside = False
        self.bindings: list[tuple[Value, Span]] = []
        statements = list(item.body.statements)
        returns: syntax.Return | None = None
        for position, statement in enumerate(statements):
            if isinstance(statement, syntax.Return):
                returns = statement
                if position + 1 < len(statements):
                    message = "nothing after `return` is reached"
                    where = [(statement.span, "returns here")]
                    help_ = "leave it out, or move it before `return`"
                    after = statements[position + 1].span
                    self.error("E0213", message, after, help_, secondary=where)
                break
            self.statement(statement)
        self.finish(item, returns, signature.results, body)
        self.tell_names()
        self.warn_unused()
        return body

    def tell_names(self) -> None:
        """Say which names mean something else already, and which values are not there: that may follow from the former, or from a line that is missing."""
        missing = dict(self.undefined)
        for each in self.misnamed:
            if len(missing) == 1:
                help_ = (
                    f"{quoted(missing)} is read, and nothing has that name: is one of them meant?"
                )
                each = replace(each, help=help_)
            elif missing:
                each = replace(each, notes=[f"nothing defines {quoted(missing)} either"])
            self.findings.add(each)
            missing = {}
        if self.misnamed:
            return
        unused = [name for name, value in self.environment.items() if value and not value.used]
        meant = {name: closest(name, unused) for name in missing}
        if len(missing) < 2 or all(meant.values()):
            for _, each in self.undefined:
                self.findings.add(each)
            return
        first, *others = missing.values()
        names, declared = quoted(missing), ", ".join(f"{name}[...]" for name in missing)
        help_ = [f"did you mean `{other}` for `{name}`?" for name, other in meant.items() if other]
        help_.append(f"define them before they are read, or declare them: `weight {declared}`")
        where = [(each.span, "and here") for each in others if each.span is not None]
        message = f"there are no values {names}"
        self.findings.say("E0201", message, first.span, secondary=where, help=help_)

    def statement(self, statement: syntax.Statement) -> None:
        if isinstance(statement, syntax.Weights):
            known = self.known_of(statement.weights)
            for weight in statement.weights:
                self.weight(weight)
            self.defined_twice("weight", known)
        elif isinstance(statement, syntax.Caches):
            known = self.known_of(statement.caches)
            for cache in statement.caches:
                self.cache(cache)
            self.defined_twice("cache", known)
        elif isinstance(statement, syntax.Assign):
            self.assign(statement)
        elif isinstance(statement, syntax.Repeat):
            self.repeat(statement)
        else:
            self.returned_inside = True
            message = "`return` stands inside a repeat"
            self.error("E0213", message, statement.span, "return after the repeat")

    def known_of(
        self, declared: Sequence[syntax.Weight | syntax.Cache]
    ) -> list[tuple[syntax.Name, Span]]:
        """The declarations whose names are taken, and by what."""
        found: list[tuple[syntax.Name, Span]] = []
        first: dict[str, Span] = {}
        for name in (each.name for each in declared):
            known = self.environment.get(name.text)
            taken = self.first_weights.get(name.text, known.span if known else None)
            taken = first.get(name.text, taken)
            if taken is not None:
                found.append((name, taken))
            first.setdefault(name.text, name.span)
        return found

    def defined_twice(self, kind: str, taken: Sequence[tuple[syntax.Name, Span]]) -> None:
        """E0202 for names of one line that are taken, all of which it may have by mistake."""
        if not taken:
            return
        for name, _ in taken:
            # Which of them is read is not known.
            self.environment[name.text] = None
        (name, known), *others = taken
        help_ = f"a {kind} has a name of its own in its module: leave one of them out, or give it another name"
        message = (
            f"{quoted(each.text for each, _ in taken)} {'are' if others else 'is'} defined twice"
        )
        where = [(known, "first here"), *((each.span, "and here") for each, _ in others)]
        self.misnamed.append(Diagnostic("E0202", message, name.span, secondary=where, help=help_))

    def named(self, value: Value, name: str, span: Span) -> NameStep:
        """`name` now stands for that value. The step is not added."""
        result = Value(value.type, span, name)
        self.environment[name] = result
        return NameStep(value, result, span)

    def is_dim(self, name: syntax.Name) -> bool:
        """Whether a name is taken by a dim, after a finding."""
        if name.text not in self.context.sizes:
            return False
        dim = self.context.definitions.dims.get(name.text)
        secondary = [(dim.name.span, "defined here")] if dim else []
        help_ = f"give the tensor another name, such as `{name.text.lower()}_`"
        message = f"`{name}` is a dim already"
        mistake = Mistake("name of a dim", name.text)
        found = Diagnostic(
            "E0202", message, name.span, secondary=secondary, help=help_, mistake=mistake
        )
        self.misnamed.append(found)
        return True

    def weight(self, weight: syntax.Weight) -> None:
        if weight.stored.num_rows == 0:
            message, help_ = (
                "no dim stands before the bar",
                "the bar stands after the rows: `[H, E | D]`",
            )
            self.error("E0210", message, weight.stored.span, help_)
            self.environment[weight.name.text] = None
            return
        shape = weight.stored.shape
        value = self.declared(weight, shape, self.context.precision.computed)
        if value is None:
            return
        is_own, rows = weight.dtype is not None, weight.stored.num_rows
        self.steps.append(WeightStep(value.name, value, weight.span, rows, is_own))
        computed = value if is_own else self.as_activation(value)
        step = self.named(computed, value.name, value.span)
        self.steps.append(step)
        self.weights.append(step)

    def as_activation(self, stored: Value) -> Value:
        """A weight whose dtype the text leaves to the plan, in the dtype of activations: converted where a plan stores it in another."""
        dtype = self.context.precision.activations
        if stored.type.dtype == dtype:
            return stored
        result = Value(stored.type.with_dtype(dtype), stored.span, stored.name)
        self.steps.append(
            ReadStep([stored], [result], lambda xs: stg.CastOp(xs[0], dtype), stored.span)
        )
        return result

    def cache(self, cache: syntax.Cache) -> None:
        value = self.declared(cache, cache.shape, self.context.precision.cache)
        if value is None:
            return
        value.is_cache = True
        self.environment[value.name] = value
        self.steps.append(CacheStep(value.name, value, cache.span))
        self.bindings.append((value, value.span))

    def declared(
        self, weight: syntax.Weight | syntax.Cache, shape: syntax.Shape, dtype: str
    ) -> Value | None:
        """What a declaration makes, in a dtype unless it names one; None after a finding, or where its name is taken (`defined_twice`)."""
        name, span = weight.name.text, weight.name.span
        found = self.context.types.type(shape, weight.dtype, dtype)
        if self.is_dim(weight.name) or name in self.first_weights or self.environment.get(name):
            return None
        self.first_weights[name] = span
        self.environment[name] = None
        return None if found is None else Value(found, span, name)

    def warn_unused(self) -> None:
        """W0201 and W0202. A name that starts with `_` may go unused."""
        for step in self.weights:
            if not step.result.used and not step.name.startswith("_"):
                message = f"weight `{step.name}` is not used"
                label = "has no gradient, and nothing updates it"
                help_ = f"call it `_{step.name}` if that is meant"
                self.findings.say("W0201", message, step.span, label, help=help_)
        for value, span in self.bindings:
            if not value.used and not value.name.startswith("_"):
                help_ = f"call it `_{value.name}` if that is meant"
                message = f"`{value.name}` is not used"
                self.findings.say("W0202", message, span, help=help_)

    # ---- assignments ----

    def assign(self, statement: syntax.Assign) -> None:
        targets = statement.targets
        if len(targets) == 1:
            shape = targets[0].shape
            want = self.context.types.names(shape) if shape else None
            value = self.expression(statement.value, want)
            self.bind(targets[0], value, want, statement)
            return
        call = statement.value
        values: list[Value | None] = [None] * len(targets)
        if isinstance(call, syntax.Call):
            values = self.call(call, len(targets))
        else:
            message = f"{len(targets)} names are assigned, but this is one value"
            help_ = f"write one name before `=`: `{targets[0].name} = ...`"
            self.error("E0211", message, call.span, help_)
        seen: dict[str, Span] = {}
        for target, value in zip(targets, values, strict=True):
            name = target.name.text
            if name in seen and name != "_":
                where = [(seen[name], "first here")]
                message, place = f"`{name}` is assigned twice", target.name.span
                help_ = "give one of them another name; what nothing reads is called `_`"
                self.misnamed.append(
                    Diagnostic("E0202", message, place, secondary=where, help=help_)
                )
                continue
            seen[name] = target.name.span
            want = self.context.types.names(target.shape) if target.shape else None
            self.bind(target, value, want, statement)

    def bind(
        self,
        target: syntax.Target,
        value: Value | None,
        want: Sequence[str] | None,
        statement: syntax.Assign,
    ) -> None:
        """Give a value its name, and check the shape that is written with it."""
        name, span = target.name.text, target.name.span
        self.environment[name] = None
        if self.is_dim(target.name):
            return
        self.local_to_repeat.pop(name, None)
        if value is None:
            return
        if target.shape is not None:
            if want is None:
                return
            value = self.shaped(value, want, target.shape.span, statement.value)
            if value is None:
                return
        step = self.named(value, name, span)
        self.steps.append(step)
        self.bindings.append((step.result, span))

    def shaped(
        self, value: Value, want: Sequence[str], span: Span, expr: syntax.Expr
    ) -> Value | None:
        """The value in the shape that the text says it has."""
        if set(want) == set(value.type.names):
            return self.ordered(value, want, span)
        notes, help_ = self.differences(value.type.names, want)
        help_ = help_ or self.contraction_help(expr, value.type.names, want)
        help_ = help_ or f"declare what it makes: `{shown(value.type)}`"
        message = f"this is {shown(value.type)}, not [{', '.join(want)}]"
        self.error(
            "E0205",
            message,
            span,
            help_,
            secondary=[(expr.span, f"makes {shown(value.type)}")],
            notes=notes,
        )
        return None

    # ---- repeats ----

    def repeat(self, statement: syntax.Repeat) -> None:
        sizes = self.context.sizes
        count = whole(statement.count, sizes, self.findings, "the number of iterations")
        before = dict(self.environment)
        assigned = [n for n in _assigned(statement.body.statements) if n.text in before]
        names = list(dict.fromkeys(n.text for n in assigned))
        inner: dict[str, Value] = {}
        for name in names:
            value = before[name]
            if value is not None:
                value.used = True
                inner[name] = Value(value.type, value.span, name)
                self.environment[name] = inner[name]
        outer_steps, self.steps = self.steps, []
        for step in statement.body.statements:
            self.statement(step)
        steps, self.steps = self.steps, outer_steps
        outer_steps, self.steps = self.steps, steps
        carried = [
            c
            for name in names
            if name in inner
            if (c := self.carry(name, before, inner, statement))
        ]
        self.steps = outer_steps
        inside = self.environment
        self.environment = dict(before)
        for name in inside:
            if name not in before:
                places = [n.span for n in _assigned(statement.body.statements) if n.text == name]
                self.local_to_repeat[name] = places[0] if places else statement.span
        for name in names:
            results = [c.after for c in carried if c.after.name == name]
            self.environment[name] = results[0] if results else None
            self.bindings += [(r, statement.span) for r in results]
        if count is not None:
            text = text_of(statement.count)
            self.steps.append(RepeatStep(count.size, text, carried, steps, statement.span))

    def carry(
        self,
        name: str,
        before: dict[str, Value | None],
        inner: dict[str, Value],
        statement: syntax.Repeat,
    ) -> Carried | None:
        """What goes from one iteration to the next, which has to keep its type."""
        start, end = before[name], self.environment.get(name)
        if start is None or end is None:
            return None
        end.used = True
        span = end.span
        if set(start.type.names) != set(end.type.names):
            notes, help_ = self.differences(end.type.names, start.type.names)
            message = f"`{name}` goes into the repeat as {shown(start.type)} and comes out of an "
            message += f"iteration as {shown(end.type)}"
            where = [(start.span, f"{shown(start.type)} before the repeat")]
            self.error("E0212", message, span, help_, secondary=where, notes=notes)
            return None
        end = self.in_dtype(end, start.type.dtype, span)
        if start.type.dtype != end.type.dtype:
            message = f"`{name}` goes into the repeat as {start.type.dtype} and comes out of an "
            message += f"iteration as {end.type.dtype}"
            where = [(start.span, f"{start.type.dtype} before the repeat")]
            help_ = f"convert it with `cast({name}, dtype = {start.type.dtype})`"
            self.error("E0212", message, span, help_, secondary=where)
            return None
        after = Value(start.type, statement.span, name)
        return Carried(start, inner[name], end, after)

    # ---- results ----

    def finish(
        self,
        item: syntax.Module | syntax.Model,
        returns: syntax.Return | None,
        results: Sequence[Typed],
        body: CheckedBody,
    ) -> None:
        """Check what the body returns, or a model's loss."""
        if isinstance(item, syntax.Model):
            body.results = self.model_results(item, returns)
            return
        if returns is None and self.returned_inside:
            return
        if returns is None:
            help_ = "end its body with `return`"
            self.error("E0213", f"module `{item.name}` returns nothing", item.name.span, help_)
            return
        if len(returns.values) != len(results):
            given = len(returns.values)
            message = f"`{item.name}` returns {given} value{'s' * (given != 1)}, not {len(results)}"
            where = [(results[0].span, f"{len(results)} declared")] if results else []
            help_ = "declare as many as it returns, or return as many as it declares"
            self.error("E0211", message, returns.span, help_, secondary=where)
            for value in returns.values:
                self.expression(value)
            return
        for expr, result in zip(returns.values, results, strict=True):
            value = self.returned(expr, result)
            if value is not None:
                body.results.append(value)

    def returned(self, expr: syntax.Expr, result: Typed) -> Value | None:
        want = result.type.names if result.type else None
        value = self.expression(expr, want)
        if value is None or result.type is None or want is None:
            return None
        if set(want) != set(value.type.names):
            notes, help_ = self.differences(value.type.names, want)
            help_ = help_ or self.contraction_help(expr, value.type.names, want)
            help_ = help_ or f"declare what it makes: `-> {shown(value.type)}`"
            message = f"this returns {shown(value.type)}, not {shown(result.type)}"
            declared = (result.span, f"declared as {shown(result.type)}")
            where = [declared, *self.origins((expr, value))]
            self.error("E0205", message, expr.span, help_, secondary=where, notes=notes)
            return None
        value = self.in_dtype(value, result.type.dtype, expr.span)
        if value.type.dtype != result.type.dtype:
            message = f"this returns {value.type.dtype}, not {result.type.dtype}"
            declared = (result.span, f"declared as {result.type.dtype}")
            where = [declared, *self.origins((expr, value), dtypes=True)]
            self.wrong_dtype(message, value.type.dtype, result.type.dtype, expr.span, where)
            return None
        return self.ordered(value, want, expr.span)

    def contraction_help(self, expr: syntax.Expr, have: Sequence[str], want: Sequence[str]) -> str:
        """For dims that a contraction inside of a sum or a product has summed over: what is declared does not reach it."""
        inside = None if set(want) <= set(have) else next(self.products_beside(expr), None)
        if inside is None:
            return ""
        example = f"`a[{', '.join(want)}] = {text_of(inside)}`"
        return f"a declared shape keeps dims of an `@` only where that stands alone: give each `@` a statement of its own, {example}"

    def products_beside(
        self, expr: syntax.Value, is_beside: bool = False
    ) -> Iterator[syntax.Binary]:
        """The contractions in an expression that are one of several tensors that something is made of."""
        if isinstance(expr, syntax.Binary):
            if expr.operator == "@" and is_beside:
                yield expr
                return
            sides = (expr.left, expr.right)
            for side in sides:
                alone = any(self.is_number(other) for other in sides if other is not side)
                yield from self.products_beside(side, is_beside or not alone)
        elif isinstance(expr, syntax.Call):
            values = [each.value for each in expr.arguments if each.name is None]
            for value in values:
                yield from self.products_beside(value, is_beside or len(values) > 1)
        elif isinstance(expr, syntax.Negate | syntax.Rename):
            yield from self.products_beside(expr.operand, is_beside)

    def model_results(self, item: syntax.Model, returns: syntax.Return | None) -> list[Value]:
        if returns is not None:
            values = [self.expression(value) for value in returns.values]
            return [v for v in values if v is not None]
        if self.returned_inside:
            return []
        if LOSS not in self.environment and self.misnamed:
            return []  # one of these may be its result
        if LOSS not in self.environment:
            help_ = f"end it with `{LOSS} = ...`, or with `return`"
            message = f"model `{item.name}` has no result"
            self.error("E0213", message, item.name.span, help_)
            return []
        loss = self.environment[LOSS]
        if loss is None:
            return []
        loss.used = True
        if loss.type.names:
            message = f"the loss is {shown(loss.type)}, and not a single number"
            dims = ", ".join(loss.type.names)
            help_ = f"take its mean: `loss = mean(..., over = [{dims}])`"
            self.error("E0205", message, loss.span, help_)
            return []
        return [loss]


def _assigned(statements: Iterable[syntax.Statement]) -> list[syntax.Name]:
    """The names that statements assign to, in nested repeats too."""
    names: list[syntax.Name] = []
    for statement in statements:
        if isinstance(statement, syntax.Assign):
            names += [target.name for target in statement.targets]
        elif isinstance(statement, syntax.Repeat):
            names += _assigned(statement.body.statements)
    return names
