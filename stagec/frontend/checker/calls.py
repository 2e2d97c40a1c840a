"""Calls: of built-in ops, of modules, of ops that the user declares."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

from xdsl.ir import SSAValue

from stagec.diagnostics import Diagnostics, Mistake, Span, did_you_mean, quoted
from stagec.dialects import stg
from stagec.dialects.types import DTYPE_BITS, FLOATS, TensorType
from stagec.frontend import syntax
from stagec.frontend.checker.expressions import ExpressionChecker
from stagec.frontend.checker.steps import (
    AppendStep,
    CallStep,
    OnceStep,
    OpStep,
    PartsStep,
    StateStep,
    Value,
)
from stagec.frontend.checker.types import ModuleSignature, Typed, shown
from stagec.frontend.checker.user_ops import Declared
from stagec.frontend.foreign_names import written_here
from stagec.frontend.numbers import SIZE_FUNCTIONS, Sizes, quantity, shown as shown_number, whole
from stagec.frontend.printing import text_of
from stagec.symbolic import conditions
from stagec.symbolic.quantity import Quantity


class CallChecker(ExpressionChecker):
    """Checks calls."""

    def call(
        self, call: syntax.Call, num_results: int, want: Sequence[str] | None = None
    ) -> list[Value | None]:
        """The results of a call, as many as are wanted."""
        name = call.function.text
        nothing: list[Value | None] = [None] * num_results
        definitions = self.context.definitions
        results: Sequence[Value] | None
        if name in self.context.signatures:
            results = self.call_signature(call, self.context.signatures[name])
        elif name in definitions.functions and definitions.functions[name].op is stg.AppendOp:
            results = self.append(call, definitions.functions[name].signature)
        elif name in definitions.functions and definitions.functions[name].op is stg.FillOp:
            results = self.once(call, definitions.functions[name].signature)
        elif name in definitions.functions:
            results = self.call_function(call, definitions.functions[name], want)
        else:
            self.unknown(call, definitions.callables)
            return nothing
        if results is None:
            return nothing
        if len(results) != num_results:
            makes = f"{len(results)} result{'s' * (len(results) != 1)}"
            names = ", ".join(["a", "b", "c", "d", "e"][: len(results)])
            help_ = f"assign {'them' if len(results) > 1 else 'it'}: `{names} = {name}(...)`"
            message = f"`{name}` makes {makes}, but {num_results} {_is(num_results)} wanted"
            self.error("E0211", message, call.span, help_)
            return nothing
        return list(results)

    def unknown(self, call: syntax.Call, known: Sequence[str]) -> None:
        name = call.function.text
        help_: str | list[str] = did_you_mean(name, known)
        message = f"there is no op or module `{name}`"
        if name in self.environment:
            message = f"`{name}` is a tensor and cannot be called"
            help_ = f"to rename its dims, write `{name}[S -> T]`"
        elif name in SIZE_FUNCTIONS:
            message = f"`{name}` is a function of sizes, not of tensors"
        else:
            declare = (
                "declare one with `op` or `module`; `stagec ops` lists those that are built in"
            )
            own = "`--load-pass FILE.py` brings ops of your own"
            help_ = written_here(name) or [help_ or declare, own]
        self.error(
            "E0201", message, call.function.span, help_, mistake=Mistake("no callable", name)
        )

    def operands(
        self, call: syntax.Call, want: Sequence[str] | None = None
    ) -> list[tuple[syntax.Argument, Value | None]]:
        """The arguments without a name, checked. `want` is the first one's shape, if that is known."""
        found: list[tuple[syntax.Argument, Value | None]] = []
        for argument in call.arguments:
            if argument.name is None:
                found.append((argument, self.expression(argument.value, None if found else want)))
        return found

    def wrong_count(
        self,
        call: syntax.Call,
        names: Sequence[str],
        given: int,
        optional: int = 0,
        *,
        is_told: bool = False,
    ) -> bool:
        """Whether the number of operands is wrong, after a finding: that, unless it `is_told` what is wrong with one of them."""
        if len(names) - optional <= given <= len(names):
            return False
        if is_told:
            return True
        takes = f"{len(names)} operand{'s' * (len(names) != 1)}"
        if optional:
            takes = f"{len(names) - optional} to {takes}"
        listed = f" ({quoted(names)})" if names else ""
        message = f"`{call.function}` takes {takes}{listed}, {given} {_is(given)} given"
        help_ = (
            f"write `{call.function}({', '.join(names)})`, with what you have for {quoted(names)}"
        )
        self.error("E0203", message, call.span, help_ if names else "leave the brackets empty")
        return True

    # ---- state ----

    def cache_and_new(
        self, call: syntax.Call, signature: stg.Signature
    ) -> tuple[list[syntax.Argument], Value, Value] | None:
        """The arguments of what puts something into a cache, and both operands."""
        options = self.options(call, signature)
        given = [argument for argument in call.arguments if argument.name is None]
        if self.wrong_count(call, signature.operands, len(given)) or options is None:
            return None
        cache, new = self.cache_of(given[0].value), self.expression(given[1].value)
        if cache is None or new is None:
            return None
        cache.used = True
        return given, cache, new

    def append(self, call: syntax.Call, signature: stg.Signature) -> list[Value] | None:
        """`append(k, x, window = W)`: a cache with new positions."""
        if (operands := self.cache_and_new(call, signature)) is None:
            return None
        given, cache, new = operands
        before, after = new.type.names, cache.type.names
        added = [name for name in before if name not in after]
        positions = [name for name in after if name not in before]
        if len(added) != 1 or len(positions) != 1:
            message = f"this is {shown(new.type)}, and the cache is {shown(cache.type)}"
            help_ = "they differ in one dim: that of new positions, and that of all; `cache k[B, T, K, E]` takes `[B, S, K, E]`"
            where = [(cache.span, shown(cache.type)), *self.origins((given[1].value, new))]
            mistake = Mistake(
                "shape of a cache", f"{shown(new.type)}{shown(cache.type)}", self.name
            )
            span = given[1].value.span
            self.error("E0205", message, span, help_, secondary=where, mistake=mistake)
            return None
        names = [added[0] if name == positions[0] else name for name in after]
        new = self.ordered(new, names, given[1].value.span)
        result = Value(cache.type.with_dtype(new.type.dtype), call.span)
        window = self.window_of(call)
        self.steps.append(AppendStep(cache, new, result, added[0], positions[0], window, call.span))
        return [result]

    def once(self, call: syntax.Call, signature: stg.Signature) -> list[Value] | None:
        """`once(k, x)`: what a cache holds of a sequence from its first iteration on."""
        if (operands := self.cache_and_new(call, signature)) is None:
            return None
        given, cache, new = operands
        if set(new.type.names) != set(cache.type.names):
            message = f"this is {shown(new.type)}, and the cache is {shown(cache.type)}"
            where = [(cache.span, shown(cache.type)), *self.origins((given[1].value, new))]
            help_ = f"declare it so: `cache {cache.name}{shown(new.type)}`"
            self.error("E0205", message, given[1].value.span, help_, secondary=where)
            return None
        new = self.ordered(new, cache.type.names, given[1].value.span)
        result = Value(cache.type.with_dtype(new.type.dtype), call.span)
        self.steps.append(OnceStep(cache, new, result, call.span))
        return [result]

    def cache_of(self, expr: syntax.Value) -> Value | None:
        """The cache that an expression names, or None after a finding."""
        name = expr.name.text if isinstance(expr, syntax.Reference) else None
        value = self.environment.get(name) if name is not None else None
        if name is not None and name in self.environment and value is None:
            return None
        if value is None or not value.is_cache:
            message = f"`{text_of(expr)}` is not a cache"
            help_ = "declare it: `cache k[B, T, K, E]`"
            undeclared = None if value is not None else Mistake("no caches", within=self.name)
            self.error("E0210", message, expr.span, help_, mistake=undeclared)
            return None
        return value

    def window_of(self, call: syntax.Call) -> Quantity | None:
        given = [a.value for a in call.arguments if a.name and a.name.text == "window"]
        return whole(given[0], self.context.sizes, Diagnostics(), "`window`") if given else None

    # ---- modules and the user's ops ----

    def call_signature(self, call: syntax.Call, signature: ModuleSignature) -> list[Value] | None:
        definitions = self.context.definitions
        kind = "module" if signature.name in definitions.modules else "op"
        declared = self.context.declared.get(signature.name)
        if declared is not None and declared.state:
            return self.user_op_with_state(call, signature, declared)
        arguments = self.operands(call)
        options = [argument.name for argument in call.arguments if argument.name]
        if options:
            message = f"{kind} `{signature.name}` has no options"
            self.error("E0204", message, options[0].span, "pass tensors in order, without names")
        names = [p.name for p in signature.parameters]
        is_told = is_wrong(arguments)
        if options or self.wrong_count(call, names, len(arguments), is_told=is_told):
            return None
        passed = self.all_passed(arguments, signature)
        if passed is None:
            return None
        given, known = passed
        if signature.name in definitions.ops:
            return self.user_op(call, given, known)
        results = [Value(t, call.span) for t in known]
        instance = self.instance_of(signature.name)
        self.steps.append(CallStep(signature.name, instance, given, results, call.span))
        return results

    def all_passed(
        self, arguments: Sequence[tuple[syntax.Argument, Value | None]], signature: ModuleSignature
    ) -> tuple[list[Value], list[TensorType]] | None:
        """The operands as the parameters want them, and the types of the results; None after a finding."""
        values = [
            self.passed(argument, value, parameter, signature)
            for (argument, value), parameter in zip(arguments, signature.parameters, strict=True)
        ]
        types = [result.type for result in signature.results]
        given = [v for v in values if v is not None]
        known = [t for t in types if t is not None]
        if len(given) < len(values) or len(known) < len(types):
            return None
        return given, known

    def instance_of(self, module: str) -> str:
        """`Attention`, then `Attention_2`: no two calls in one body share weights."""
        number, instance = 1, module
        while instance in self.instances:
            number += 1
            instance = f"{module}_{number}"
        self.instances[instance] = module
        return instance

    def passed(
        self, argument: syntax.Argument, value: Value | None, parameter: Typed, to: ModuleSignature
    ) -> Value | None:
        """The operand as the parameter wants it."""
        if value is None or parameter.type is None:
            return None
        span = argument.value.span
        origin = (argument.value, value)
        if set(value.type.names) != set(parameter.type.names):
            notes, help_ = self.differences(value.type.names, parameter.type.names)
            self.error(
                "E0205",
                f"`{to.name}` takes {shown(parameter.type)}, not {shown(value.type)}",
                span,
                help_ or at_its_making(value.type.names, parameter.type.names),
                label=f"this is {shown(value.type)}",
                secondary=[
                    (parameter.span, f"`{parameter.name}` is {shown(parameter.type)}"),
                    *self.origins(origin),
                ],
                notes=notes,
            )
            return None
        value = self.in_dtype(value, parameter.type.dtype, span)
        if value.type.dtype != parameter.type.dtype:
            message = f"`{to.name}` takes {parameter.type.dtype}, not {value.type.dtype}"
            declared = (parameter.span, f"`{parameter.name}` is {parameter.type.dtype}")
            secondary = [declared, *self.origins(origin, dtypes=True)]
            self.wrong_dtype(message, value.type.dtype, parameter.type.dtype, span, secondary)
            return None
        return self.ordered(value, parameter.type.names, span)

    def in_dtype(self, value: Value, dtype: str, span: Span) -> Value:
        """Floating-point values as they are declared, whichever dtypes the plan gives to what the text leaves open."""
        if value.type.dtype == dtype or not {value.type.dtype, dtype} <= {*FLOATS}:
            return value
        return self.emit([value], lambda xs: stg.CastOp(xs[0], dtype), span)[0]

    def differences(self, have: Sequence[str], want: Sequence[str]) -> tuple[list[str], str]:
        """How two shapes differ, and what to do about it."""
        missing = [n for n in want if n not in have]
        extra = [n for n in have if n not in want]
        notes = [f"{quoted(missing)} {_is(len(missing))} missing"] if missing else []
        notes += [f"{quoted(extra)} {_is(len(extra))} too many"] if extra else []
        sizes = self.context.sizes
        same = [(a, b) for a in extra for b in missing if sizes[a] == sizes[b]]
        if not same:
            return notes, ""
        old, new = same[0]
        return notes, f"if `{old}` is `{new}` under another name, rename it: `[{old} -> {new}]`"

    def wrong_dtype(
        self,
        message: str,
        have: str,
        want: str,
        span: Span,
        secondary: Sequence[tuple[Span, str]] = (),
    ) -> None:
        """E0209, with where the default comes from."""
        activations = self.context.precision.activations
        notes = []
        if activations in (have, want):
            plan = f" of plan `{self.context.plan_name}`" if self.context.plan_name else ""
            notes = [f"floats are {activations} unless the text says otherwise: `precision`{plan}"]
        help_ = f"convert it with `cast(x, dtype = {want})`, or declare it as `: {have}`"
        self.error("E0209", message, span, help_, secondary=secondary, notes=notes)

    def user_op(
        self, call: syntax.Call, operands: list[Value], types: list[TensorType]
    ) -> list[Value] | None:
        name = call.function.text
        declared = self.context.declared[name]
        if declared is None:
            return None
        reads = declared.backward_reads
        return self.emit(
            operands,
            lambda values: stg.UserOp(
                values,
                op=name,
                over=declared.over or None,
                backward_reads=None if reads is None else stg.NumbersAttr(reads),
                **declared.costs,
                like=types,
            ),
            call.span,
        )

    def user_op_with_state(
        self, call: syntax.Call, signature: ModuleSignature, declared: Declared
    ) -> list[Value] | None:
        """The same of an op that keeps something of each request, where a call says in which cache."""
        names = tuple(p.name for p in signature.parameters)
        state = stg.Signature(signature.name, names, "", (stg.Option("state", "cache"),))
        options, arguments = self.options(call, state), self.operands(call)
        is_told = is_wrong(arguments)
        if self.wrong_count(call, names, len(arguments), is_told=is_told) or options is None:
            return None
        passed = self.all_passed(arguments, signature)
        if passed is None:
            return None
        operands, types = passed
        cache = options.get("state")
        if isinstance(cache, Value) and not self.is_state(cache, declared.state, call):
            return None
        results = self.user_op(call, operands, types)
        if results is None or not isinstance(cache, Value):
            return results
        step = self.steps[-1]
        assert isinstance(step, OpStep)
        self.steps[-1] = StateStep(
            operands=step.operands,
            results=results,
            build=step.build,
            span=call.span,
            cache=cache,
            new_dim=declared.over,
            resume=lambda operands, cache, requests: stg.ResumedUserOp(
                signature.name,
                operands,
                cache,
                types,
                declared.costs["flops"],
                declared.costs["bytes"],
                declared.costs["kernels"],
                declared.costs["scalars"],
                declared.over,
                requests,
            ),
        )
        return results

    # ---- built-in ops ----

    def call_function(
        self, call: syntax.Call, function: stg.Function, want: Sequence[str] | None
    ) -> list[Value] | None:
        signature = function.signature
        options = self.options(call, signature)
        arguments = self.operands(call, want if function.keeps_shape else None)
        names, optional = signature.operands, signature.optional_operands
        if signature.more_operands:
            names += names[-1:] * (len(arguments) - len(names))
        is_told = is_wrong(arguments)
        if self.wrong_count(call, names, len(arguments), optional, is_told=is_told):
            return None
        values = [value for _, value in arguments if value is not None]
        if is_told or options is None:
            return None
        if signature.more_operands:
            values = self.in_one_dtype(values, call.span)
        if issubclass(function.op, stg.CrossEntropyOp) and self.context.precision.loss is not None:
            values[0] = self.in_dtype(values[0], self.context.precision.loss, call.span)
        types = [value.type for value in values]
        state = options.pop("state", None)
        checked = stg.Call(signature.name, types, options, self.sizes_of_call(function.op, options))
        try:
            function.op.check_call(checked)
        except stg.CallError as error:
            self.call_error(call, arguments, error)
            return None
        op = function.op

        def build(operands: Sequence[SSAValue]) -> stg.TensorOp:
            return op.from_call(checked, operands)

        if issubclass(op, stg.ConcatOp | stg.SplitOp):
            results = self.emit(values, build, call.span)
            joins = issubclass(op, stg.ConcatOp)
            parts = stg.joined_dims(checked) if joins else checked.dims("to")
            whole = checked.dim("to" if joins else "over")
            self.steps[-1] = PartsStep(values, results, build, call.span, parts, whole, joins)
            return results
        if not isinstance(state, Value) or not issubclass(op, stg.StatefulOp):
            return self.emit(values, build, call.span)
        new_dim, shape = op.state_of(checked)
        if not self.is_state(state, shape, call):
            return None
        results = self.emit(values, build, call.span)
        self.steps[-1] = StateStep(
            operands=values,
            results=results,
            build=build,
            span=call.span,
            cache=state,
            new_dim=new_dim,
            resume=lambda operands, cache, requests: op.with_state(
                checked, operands, cache, requests
            ),
        )
        return results

    def sizes_of_call(self, op: type[stg.TensorOp], options: Mapping[str, object]) -> Sizes:
        """The sizes of the dims of a call.

        What stands in front of the sequences of a row adds up with their text as `serve` states it, not as the model's text does.
        """
        sizes = self.context.sizes
        match options:
            case {"over": (*front, str(text)), "to": str(whole)} if issubclass(op, stg.ConcatOp):
                parts = (*front, text)
            case {"over": str(whole), "to": (*front, str(text))} if issubclass(op, stg.SplitOp):
                parts = (*front, text)
            case _:
                return sizes
        if text not in self.context.served:
            return sizes
        return ChainMap(dict.fromkeys((*parts, whole)), sizes)  # pyright: ignore[reportArgumentType]

    def in_one_dtype(self, values: list[Value], span: Span) -> list[Value]:
        """Floating-point values that stand side by side, in the widest dtype of any."""
        dtypes = [value.type.dtype for value in values]
        if not {*dtypes} <= {*FLOATS}:
            return values
        widest = max(dtypes, key=FLOATS.index)
        return [self.in_dtype(value, widest, span) for value in values]

    def is_state(self, cache: Value, wanted: tuple[str, ...], call: syntax.Call) -> bool:
        """Whether a cache has the shape of an op's state, or else a finding."""
        cache.used = True
        cache.is_state = True
        if cache.type.names == wanted:
            return True
        given = next(a for a in call.arguments if a.name and a.name.text == "state")
        message = (
            f"the state of this is [{', '.join(wanted)}], and the cache is {shown(cache.type)}"
        )
        where = [(cache.span, shown(cache.type))]
        help_ = f"declare it so: `cache {cache.name}[{', '.join(wanted)}]`"
        self.error("E0205", message, given.value.span, help_, secondary=where)
        return False

    def call_error(
        self,
        call: syntax.Call,
        arguments: Sequence[tuple[syntax.Argument, Value | None]],
        error: stg.CallError,
    ) -> None:
        span, label, code = call.span, "", "E0205"
        secondary: list[tuple[Span, str]] = []
        if error.operand is not None and error.operand < len(arguments):
            argument, value = arguments[error.operand]
            span = argument.value.span
            if value is not None:
                label = f"this is {shown(value.type)}"
                secondary = self.origins((argument.value, value))
        elif error.option is not None:
            code = "E0204"
            given = [a for a in call.arguments if a.name and a.name.text == error.option]
            span = given[0].span if given else span
            secondary = self.origins(*[(a.value, v) for a, v in arguments if v is not None])
        message = f"`{call.function}`: {error.message}"
        help_ = error.help or f"`stagec ops {call.function}` says what it takes"
        self.error(code, message, span, help_, label=label, secondary=secondary, notes=error.notes)

    def options(self, call: syntax.Call, signature: stg.Signature) -> dict[str, object] | None:
        """The named arguments, as `stg.Call` has them; None after a finding."""
        known = {option.name: option for option in signature.options}
        found: dict[str, object] = {}
        first: dict[str, Span] = {}
        right = True
        for argument in call.arguments:
            if argument.name is None:
                continue
            name = argument.name.text
            if name not in known:
                right = False
                help_ = did_you_mean(name, known)
                if not help_:
                    listed = quoted(known)
                    help_ = f"its options are {listed}" if known else "it has no options"
                message = f"`{signature.name}` has no option `{name}`"
                self.error("E0204", message, argument.name.span, help_)
            elif name in first:
                right = False
                where = [(first[name], "first here")]
                message = f"option `{name}` is given twice"
                help_ = "leave one of them out"
                self.error("E0204", message, argument.name.span, help_, secondary=where)
            else:
                first[name] = argument.name.span
                value = self.option(argument.value, known[name])
                right = right and value is not None
                found[name] = value
        for option in signature.options if right else ():
            if option.required and option.name not in first:
                right = False
                message = f"`{signature.name}` needs the option `{option.name}`"
                help_ = f"add `{option.name} = {_EXAMPLES.get(option.kind, '...')}`"
                self.error("E0204", message, call.span, help_)
        return found if right else None

    def option(self, value: syntax.Value, option: stg.Option) -> Any:
        """The value of one option by its kind; None after a finding."""
        word = value.name.text if isinstance(value, syntax.Reference) else None
        if option.kind == "bool" and isinstance(value, syntax.Boolean):
            return value.text == "true"
        if option.kind == "cache":
            return self.cache_of(value)
        if option.kind == "dim" and word is not None:
            return self.dim(value, word)
        if option.kind in ("dims", "parts"):
            return self.dims(value, option)
        if option.kind == "size":
            found = whole(value, self.context.sizes, self.findings, f"`{option.name}`")
            return found.size if found else None
        if option.kind == "number" and not isinstance(value, syntax.Boolean | syntax.Text):
            number = quantity(value, self.context.sizes, self.findings)
            if number is not None:
                conditions.read(number.size, number.value)
            return shown_number(number.value) if number else None
        if option.kind == "dtype" and word in DTYPE_BITS:
            return word
        if option.kind == "choice" and word in option.choices:
            return word
        choices = tuple(DTYPE_BITS) if option.kind == "dtype" else option.choices
        self.wrong_option(value, option, choices)
        return None

    def wrong_option(
        self, value: syntax.Value, option: stg.Option, choices: Sequence[str] = ()
    ) -> None:
        wanted = quoted(choices, last="or") if choices else _WANTED[option.kind]
        known = ("true", "false") if option.kind == "bool" else choices
        help_ = did_you_mean(text_of(value), known)
        if known and not help_:
            help_ = f"write {quoted(known, last='or')}"
        help_ = help_ or f"write `{option.name} = {_EXAMPLES.get(option.kind, '...')}`"
        message = f"`{option.name}` is {wanted}, not `{text_of(value)}`"
        self.error("E0204", message, value.span, help_)

    def dim(self, value: syntax.Value, name: str) -> str | None:
        if name in self.context.sizes:
            return name
        help_ = did_you_mean(name, self.context.sizes) or f"define it: `dim {name} = 1024`"
        self.error(
            "E0201", f"there is no dim `{name}`", value.span, help_, mistake=Mistake("no dim", name)
        )
        return None

    def dims(self, value: syntax.Value, option: stg.Option) -> tuple[str, ...] | None:
        """`D` or `[S, D]`."""
        items = value.values if isinstance(value, syntax.ListValue) else (value,)
        names: list[str | None] = []
        for item in items:
            if not isinstance(item, syntax.Reference):
                self.wrong_option(item, option)
                return None
            names.append(self.dim(item, item.name.text))
        known = tuple(n for n in names if n is not None)
        if len(set(known)) < len(known) and option.kind == "dims":
            message, help_ = f"`{option.name}` names a dim twice", "leave one of them out"
            self.error("E0204", message, value.span, help_)
            return None
        return known if known and len(known) == len(names) else None


def is_wrong(arguments: Sequence[tuple[syntax.Argument, Value | None]]) -> bool:
    """Whether one of them was found to be wrong."""
    return any(value is None for _, value in arguments)


_WANTED = {
    "bool": "`true` or `false`",
    "dim": "a dim",
    "dims": "a dim, or a list of dims",
    "parts": "a list of dims",
    "number": "a number",
}
_EXAMPLES = {
    "dim": "D",
    "dims": "D",
    "parts": "[N, R]",
    "bool": "true",
    "dtype": "fp32",
    "number": "0.1",
}


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def at_its_making(have: Sequence[str], want: Sequence[str]) -> str:
    """A help for a value that has other dims than it should."""
    missing = [name for name in want if name not in have]
    extra = [name for name in have if name not in want]
    if missing and extra:
        return f"where it is made, write {quoted(missing)} for {quoted(extra)}"
    if missing:
        return f"where it is made, give it {quoted(missing)} too"
    return f"where it is made, leave {quoted(extra)} out" if extra else ""
