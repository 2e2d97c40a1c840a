"""Which dims of a weight are the rows and columns of its matrix, for optimizers that work on matrices."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Data, SSAValue
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import parse_names
from stagec.dialects.types import tensor_of


@dataclass(frozen=True)
class Matrix:
    """The dims of a weight that are the rows of its matrix, and its columns; others count matrices, as experts do. None of either: it is no matrix."""

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@irdl_attr_definition
class MatrixAttr(Data[Matrix]):
    """`#stg.matrix<[D] x [H, E]>`: the matrices of a weight [D, H, E]; `#stg.matrix<[] x []>` of what is none."""

    name = "stg.matrix"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Matrix:
        with parser.in_angle_brackets():
            rows = parse_names(parser)
            parser.parse_characters("x")
            return Matrix(rows, parse_names(parser))

    def print_parameter(self, printer: Printer) -> None:
        rows, columns = (", ".join(names) for names in (self.data.rows, self.data.columns))
        printer.print_string(f"<[{rows}] x [{columns}]>")


def verify_matrix(name: str, matrix: Matrix, value: SSAValue, vectors: bool = False) -> None:
    """That rows and columns are different dims of what a value is of. A vector, where there may be some, has rows only."""
    named = (*matrix.rows, *matrix.columns)
    known = tensor_of(value.type).names
    if len(set(named)) != len(named) or not set(named) <= set(known):
        raise VerifyException(f"{name}: {value.type} is not a matrix of {', '.join(named)}")
    if bool(matrix.rows) != bool(matrix.columns) and not (vectors and matrix.rows):
        raise VerifyException(f"{name}: a matrix has rows and columns")
