"""Shapes and dtypes as written, to types; the signatures of modules and ops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stagec.diagnostics import Diagnostic, Diagnostics, Mistake, Span, closest, quoted
from stagec.dialects.types import DTYPE_BITS, TensorType
from stagec.frontend import syntax
from stagec.frontend.printing import text_of

_ELSEWHERE = {
    "float": "fp32",
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8": "fp8",
    "f64": "fp64",
    "f32": "fp32",
    "f16": "fp16",
    "f8": "fp8",
    "half": "fp16",
    "tf32": "fp32",
    "int": "i32",
    "integer": "i32",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "long": "i64",
    "uint8": "u8",
    "i1": "bool",
}
"""What other tools call our dtypes."""


@dataclass(frozen=True)
class Typed:
    """A parameter or a result: None if what is written is wrong."""

    type: TensorType | None
    span: Span
    name: str = ""


@dataclass(frozen=True)
class ModuleSignature:
    """What a module or an op of the user takes and makes."""

    name: str
    parameters: Sequence[Typed]
    results: Sequence[Typed]
    span: Span

    @property
    def unknown(self) -> ModuleSignature:
        """The same without types: what is passed is not held against them, and what is made is not known."""
        parameters, results = (
            [replace(each, type=None) for each in typed]
            for typed in (self.parameters, self.results)
        )
        return replace(self, parameters=parameters, results=results)


class TypeReader:
    """Turns shapes into types. `dims` are the known ones."""

    def __init__(self, dims: Mapping[str, object], findings: Diagnostics) -> None:
        self.dims, self.findings = dims, findings

    def names(self, shape: syntax.Shape) -> tuple[str, ...] | None:
        """The dims of a shape, or None after a finding."""
        found: dict[str, Span] = {}
        wrong = False
        for dim in shape.dims:
            if not isinstance(dim, syntax.Reference):
                help_ = f"give it a name: `dim X = {text_of(dim)}`"
                message = "a dim of a shape is a name"
                self.findings.say("E0210", message, dim.span, help=help_)
                wrong = True
                continue
            name = dim.name.text
            if name not in self.dims:
                close = closest(name, self.dims)
                help_ = f"did you mean `{close}`?" if close else f"define it: `dim {name} = 1024`"
                message = f"there is no dim `{name}`"
                self.findings.say(
                    "E0201", message, dim.span, help=help_, mistake=Mistake("no dim", name)
                )
                wrong = True
            elif name in found:
                message = f"dim `{name}` stands twice in one shape"
                help_ = f"a dim is an index: give the second a name, `dim {name}2 = {name}`"
                first = [(found[name], "first here")]
                self.findings.say("E0205", message, dim.span, secondary=first, help=help_)
                wrong = True
            found.setdefault(name, dim.span)
        return None if wrong else tuple(found)

    def dtype(self, name: syntax.Name | None, default: str) -> str | None:
        """The dtype as written, or the default; None after a finding."""
        if name is None:
            return default
        if name.text in DTYPE_BITS:
            return name.text
        close = _ELSEWHERE.get(name.text.lower()) or closest(name.text, DTYPE_BITS)
        help_ = f"did you mean `{close}`?" if close else f"there are {quoted(DTYPE_BITS)}"
        message = f"there is no dtype `{name}`"
        self.findings.say("E0209", message, name.span, help=help_)
        return None

    def type(
        self, shape: syntax.Shape, dtype: syntax.Name | None, default: str
    ) -> TensorType | None:
        names, read = self.names(shape), self.dtype(dtype, default)
        return None if names is None or read is None else TensorType.of(names, read)

    def signature(
        self, item: syntax.Module | syntax.Op | syntax.Model, default: str
    ) -> ModuleSignature:
        """The signature of a definition."""
        parameters = [
            Typed(self.type(p.shape, p.dtype, default), p.span, p.name.text)
            for p in item.parameters
        ]
        results: list[Typed] = []
        if not isinstance(item, syntax.Model):
            results = [Typed(self.type(r.shape, r.dtype, default), r.span) for r in item.results]
        return ModuleSignature(item.name.text, parameters, results, item.name.span)

    def misnamed(self, item: syntax.Module | syntax.Op | syntax.Model) -> Iterator[Diagnostic]:
        """E0202 for parameters whose names mean something else already."""
        first: dict[str, Span] = {}
        for name in (parameter.name for parameter in item.parameters):
            if name.text in first:
                secondary = [(first[name.text], "first here")]
                message = f"`{name}` is defined twice"
                help_ = "give the second another name"
                yield Diagnostic("E0202", message, name.span, secondary=secondary, help=help_)
            elif name.text in self.dims:
                help_ = f"give the tensor another name, such as `{name.text.lower()}_`"
                message, mistake = f"`{name}` is a dim already", Mistake("name of a dim", name.text)
                yield Diagnostic("E0202", message, name.span, help=help_, mistake=mistake)
            first.setdefault(name.text, name.span)


def shown(tensor: TensorType) -> str:
    """`[B, S, D]`, as a user writes it."""
    return f"[{', '.join(tensor.names)}]"
