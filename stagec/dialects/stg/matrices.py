"""Which dims of a weight are the rows and columns of its matrix, for optimizers that work on matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl import irdl_attr_definition
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import NAMES
from stagec.dialects.text_forms import WrittenData, angled, mapped, pair
from stagec.dialects.types import tensor_of


@dataclass(frozen=True)
class Matrix:
    """The dims of a weight that are the rows of its matrix, and its columns; others count matrices, as experts do. None of either: it is no matrix."""

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@irdl_attr_definition
class MatrixAttr(WrittenData[Matrix]):
    """`#stg.matrix<[D] x [H, E]>`: the matrices of a weight [D, H, E]; `#stg.matrix<[] x []>` of what is none."""

    name = "stg.matrix"
    FORM: ClassVar = mapped(
        angled(pair(NAMES, NAMES, "x")), lambda sides: Matrix(*sides), lambda m: (m.rows, m.columns)
    )


def verify_matrix(name: str, matrix: Matrix, value: SSAValue, vectors: bool = False) -> None:
    """Check that rows and columns are different dims of what a value is of. A vector, where there may be some, has rows only."""
    named = (*matrix.rows, *matrix.columns)
    known = tensor_of(value.type).names
    if len(set(named)) != len(named) or not set(named) <= set(known):
        raise VerifyException(f"{name}: {value.type} is not a matrix of {', '.join(named)}")
    if bool(matrix.rows) != bool(matrix.columns) and not (vectors and matrix.rows):
        raise VerifyException(f"{name}: a matrix has rows and columns")
