"""What a function of the language is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from stagec.dialects.stg.inference import Options, Sizes, Types
from stagec.dialects.types import TensorType

Values = Sequence[SSAValue]


@dataclass(frozen=True)
class Option:
    """A named argument. `kind`: `bool`, `dim`, `dims`, `parts` (dims, also the same one again), `size`, `number`, `dtype`, or `choice`.

    Values reach `infer` and `build` as bool, str, tuple of str, `Size`, decimal text, str, str.
    """

    name: str
    kind: str
    choices: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True)
class Builtin:
    """A function of the language."""

    name: str
    operands: tuple[str, ...]
    summary: str
    infer: Callable[[Types, Options], tuple[TensorType, ...]]
    """Result types from operand types and options; raises `InferError`."""
    build: Callable[[Values, Options], Operation]
    """The op; its first results are the function's results."""
    options: tuple[Option, ...] = ()
    optional_operands: int = 0
    """How many of the last operands may be left out."""
    more_operands: bool = False
    """Whether further operands like the last may follow."""
    check_sizes: Callable[[Types, Options, Sizes], None] | None = None
    """What sizes of dims have to meet; raises `InferError`."""
