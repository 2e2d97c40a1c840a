"""What an op may say of itself beside its costs: how the language calls it, and its gradient.

A `Signature` is a function of the language. `TensorOp.SIGNATURES` lists those that make an op; the functions that
`stagec ops` shows, the checker looks up and the documentation's table names are collected from there.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from xdsl.ir import Operation, SSAValue

from stagec.diagnostics import quoted
from stagec.dialects.types import DTYPE_BITS, FLOATS, TensorType
from stagec.symbolic import Size

if TYPE_CHECKING:
    from stagec.dialects.stg.base import TensorOp

Cotangents = Sequence[SSAValue | None]
"""The gradient of the loss for each result of an op; None where the loss does not depend on it."""


OPTION_KINDS = ("bool", "dim", "dims", "parts", "size", "number", "dtype", "cache", "choice")
"""What an option may be: `parts` are dims, also the same one again."""


USAGE = re.compile(r"[a-z_]\w*\(((\w+\??|\.\.\.|\w+\?? = \w+( \| \w+)*)(, |(?=\))))*\)")
"""How a function is written that is called."""


@dataclass(frozen=True)
class Option:
    """A named argument, of a kind of `OPTION_KINDS`."""

    name: str
    kind: str
    choices: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True)
class Signature:
    """A function of the language, as it is called."""

    name: str
    operands: tuple[str, ...]
    summary: str
    options: tuple[Option, ...] = ()
    optional_operands: int = 0
    """How many of the last operands may be left out."""
    more_operands: bool = False
    """Whether further operands like the last may follow."""

    @staticmethod
    def of(usage: str, summary: str) -> Signature:
        """From how it is called: `attention(q, k, v, sinks?, window? = size)`; `...` stands for further operands, and `a | b` for choices."""
        if not USAGE.fullmatch(usage):
            raise ValueError(
                f"`{usage}` is no signature, like `attention(q, k, sinks?, window? = size)`"
            )
        name, _, rest = usage.removesuffix(")").partition("(")
        parts = [part.partition(" = ") for part in rest.split(", ")]
        operands = [operand for operand, given, _ in parts if not given and operand != "..."]
        options = [
            Option(
                option.removesuffix("?"),
                kind if kind in OPTION_KINDS else "choice",
                tuple(DTYPE_BITS) if kind == "dtype" else choices if len(choices) > 1 else (),
                required=not option.endswith("?"),
            )
            for option, given, kind in parts
            if given and (choices := tuple(kind.split(" | ")))
        ]
        return Signature(
            name,
            tuple(operand.removesuffix("?") for operand in operands),
            summary,
            tuple(options),
            sum(operand.endswith("?") for operand in operands),
            "..." in rest,
        )

    @property
    def usage(self) -> str:
        """How it is called: `rms_norm(x, weight?, over = dims)`."""
        needed = len(self.operands) - self.optional_operands
        operands = [f"{name}{'?' * (i >= needed)}" for i, name in enumerate(self.operands)]
        options = [f"{o.name} = {' | '.join(o.choices) or o.kind}" for o in self.options]
        return f"{self.name}({', '.join([*operands, *options])})"


class Requests(Protocol):
    """The sequences of an iteration."""

    @property
    def packed_kinds(self) -> tuple[tuple[Size, Size, Size], ...]:
        """Sequences of a row by kind, where it has several: how many, and, twice, their new positions."""
        ...

    def in_a_row(self, of_one: Callable[[Size, Size], Size]) -> Size:
        """A sum over the sequences of a row, of what their new tokens and the tokens before them make."""
        ...


class CallError(Exception):
    """Operands or options that an op cannot take: a user's mistake, told by the frontend at the operand or option."""

    def __init__(
        self,
        message: str,
        *,
        operand: int | None = None,
        option: str | None = None,
        notes: Sequence[str] = (),
        help: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.operand = operand
        self.option = option
        self.notes = tuple(notes)
        self.help = help


@dataclass(frozen=True)
class Call:
    """A call in a model's text: `softmax(x, over = T)`. Names and kinds of options are right; the rest is the op's to check."""

    function: str
    types: Sequence[TensorType]
    """The types of the operands, as many as the signature allows."""
    options: Mapping[str, object]
    sizes: Mapping[str, int | None]
    """The sizes of all dims; None where a size is wrong, which has been reported."""

    def flag(self, option: str, default: bool = False) -> bool:
        return bool(self.options.get(option, default))

    def dim(self, option: str) -> str:
        """The name of a dim, or another word."""
        return str(self.options[option])

    def optional_dim(self, option: str) -> str | None:
        return self.dim(option) if option in self.options else None

    word = dim
    optional_word = optional_dim

    def dims(self, option: str) -> tuple[str, ...]:
        names = self.options.get(option, ())
        assert isinstance(names, tuple)
        return names

    def size(self, option: str) -> Size | None:
        size = self.options.get(option)
        assert size is None or isinstance(size, Size)
        return size

    def number_of(self, size: Size) -> int:
        """What a size comes to."""
        known = {name: self.sizes[name] for name in size.names}
        return size.integer({name: n for name, n in known.items() if n is not None})

    # What is needed of operands and options; else a `CallError`

    def need_float(self, *positions: int) -> None:
        """Operands are floating point, those that are given."""
        for position in positions:
            if position < len(self.types) and self.types[position].dtype not in FLOATS:
                dtype = self.types[position].dtype
                raise CallError(f"this has to be floating point, but is {dtype}", operand=position)

    def need_ids(self, position: int) -> None:
        """An operand is of whole numbers."""
        dtype = self.types[position].dtype
        if dtype not in ("i8", "i16", "i32", "i64"):
            raise CallError(
                f"this has to be whole numbers, but is {dtype}",
                operand=position,
                help="declare it as `: i32`",
            )

    def need_dim(self, position: int, name: str, option: str) -> None:
        """An operand has the dim that an option names."""
        names = self.types[position].names
        if name not in names:
            help_ = f"its dims are {quoted(names)}: choose one" if names else "a number has no dims"
            message = f"there is no dim `{name}` in [{', '.join(names)}]"
            raise CallError(message, option=option, help=help_)


class BackwardPass(ABC):
    """The backward pass under construction, as the gradient of an op sees it."""

    @abstractmethod
    def wants(self, operand: SSAValue) -> bool:
        """Whether a weight is behind the operand, so that its cotangent matters."""

    @abstractmethod
    def insert(self, op: Operation, operand: SSAValue) -> Operation:
        """Add a helper op on the way to the cotangent of `operand`. What it reads of the forward pass is kept until then."""

    @abstractmethod
    def contribute(self, operand: SSAValue, cotangent: SSAValue) -> None:
        """Add a term to the cotangent of an operand."""

    @abstractmethod
    def reduced(self, cotangent: SSAValue, partial: Sequence[str], operand: SSAValue) -> SSAValue:
        """A cotangent that is partial over these axes alone, on the way to that of `operand`."""

    @abstractmethod
    def added(self, terms: Sequence[SSAValue], operand: SSAValue) -> SSAValue:
        """The sum of several cotangents, on the way to that of `operand`."""

    def emit(self, operand: SSAValue, make: Callable[[], Operation]) -> None:
        """Make the cotangent of an operand, unless nobody wants it."""
        if self.wants(operand):
            op = self.insert(make(), operand)
            self.contribute(operand, op.results[0])

    def emit_all(
        self, operands: Sequence[SSAValue], make: Callable[[], Operation], on_the_way_to: SSAValue
    ) -> None:
        """Make the cotangents of several operands by one op, in their order, unless nobody wants any."""
        wanted = [operand for operand in operands if self.wants(operand)]
        made = self.insert(make(), on_the_way_to).results if wanted else ()
        for operand, cotangent in zip(operands, made, strict=False):
            if operand in wanted:
                self.contribute(operand, cotangent)


def only(dys: Cotangents) -> SSAValue:
    """The cotangent of an op with one result that the loss can depend on."""
    dy = dys[0]
    assert dy is not None
    return dy


def dims_in_words(tensor: TensorType) -> str:
    """The dims of a tensor, as they are written."""
    return f"[{', '.join(tensor.names)}]"


class Decomposition(ABC):
    """The steps under construction that take the place of an op whose statistics are split over `axes`."""

    axes: tuple[str, ...]

    @abstractmethod
    def do(self, step: Operation) -> SSAValue:
        """Add a step; its first result."""

    @abstractmethod
    def total(self, partial: SSAValue) -> SSAValue:
        """The sum over the axes of a partial value."""

    @abstractmethod
    def largest(self, x: SSAValue) -> SSAValue:
        """The maximum over the axes of what each device has."""

    def taken_apart(self, op: TensorOp) -> Sequence[SSAValue]:
        """The results of an op that is nowhere, from steps of its own: for what is made of known ops."""
        results = op.decomposed(self)
        assert results is not None, op
        op.drop_all_references()
        return results
