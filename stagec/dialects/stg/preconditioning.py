"""Shampoo and SOAP: what is kept of the blocks of a matrix, and what a step computes of them.

A matrix [n, m] is cut into blocks of at most `block` rows and columns. Of a block [r, c] two statistics are kept, sums of `G G'` [r, r] and of `G' G` [c, c],
and of each what gradients are multiplied by: an inverse root (Shampoo), or eigenvectors (SOAP, which runs Adam among them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    ParsePropInAttrDict,
    irdl_attr_definition,
    opt_operand_def,
    prop_def,
    var_operand_def,
    var_result_def,
)
from xdsl.utils.exceptions import VerifyException

from stagec import symbolic
from stagec.dialects.attributes import NAMES
from stagec.dialects.interfaces import Bytes, CostInterface, elements
from stagec.dialects.op import DefaultBuilder, op_definition
from stagec.dialects.stg.matrices import Matrix, MatrixAttr, verify_matrix
from stagec.dialects.text_forms import NUMBER, WrittenData, angled, behind, flag, option, record
from stagec.dialects.types import (
    ShardType,
    StackType,
    TensorType,
    ValueType,
    bytes_of,
    tensor_of,
    with_dtype,
)
from stagec.dialects.work import Work
from stagec.symbolic import ONE, ZERO, Size

SHAMPOO, SOAP = "shampoo", "soap"
PRECONDITIONED = (SHAMPOO, SOAP)

FACTORS = "fp32"
"""The dtype of statistics, of roots and eigenvectors, and of the products with them (`factor_matrix_dtype` of `distributed_shampoo`)."""

ROUNDS = {SHAMPOO: 2, SOAP: 4}
"""How often a block is multiplied from both sides: statistics, and the gradient by roots (Gupta et al., arXiv:1802.09568, algorithm 1); statistics,
the gradient and the average of gradients into the eigenbasis, the quotient out of it (Vyas et al., arXiv:2409.11321, algorithm 3)."""

CUBES = {SHAMPOO: 33, SOAP: 32}
"""Three times a decomposition's FLOPs in n^3. Shampoo: eigenvectors of a symmetric matrix, 9 (Golub and Van Loan, Matrix Computations, section 8.3.3), and the
product `Q l Q'`, 2. SOAP: `Q' A Q`, a QR factorization with its Q, 8/3 (section 5.2), `R Q`, and old eigenvectors by new ones, once (`DefaultSOAPConfig` of
`distributed_shampoo`)."""

COLUMNS_READ = {SHAMPOO: 1, SOAP: 0}
"""How often eigenvectors read, for each column, what is left of the matrix: n^3 / 3 elements.

Half of the 4/3 n^3 FLOPs that make a matrix tridiagonal are products with a vector, one after the other, and each reads the matrix that is left
(Dongarra, Sorensen and Hammarling 1989, Block reduction of matrices to condensed forms). So they go as fast as memory: on H100 1.7 TFLOP/s in fp64, 2.5 %
of its peak; cuSOLVER is found to reach less than 3 % (Wang et al., Extracting the Potential of Emerging Hardware Accelerators for Symmetric Eigenvalue
Decomposition). A QR factorization is products of matrices."""

ELEMENTWISE = {SHAMPOO: 3, SOAP: 9}
"""Operations for each element: the average of gradients; of SOAP a square and its average, a root, a sum and a quotient besides."""

GRAFTED = 10
"""More of them where a step has the length of Adam's: squares and their average, a root, a sum, a quotient, two norms, and a product."""


@dataclass(frozen=True)
class Preconditioner:
    """How a step cuts matrices into blocks, and how often roots or eigenvectors are computed."""

    block: int = 1024
    frequency: int = 1
    grafted: bool = False
    """Steps have the length of Adam's, for which squares of gradients are kept."""
    by_rows: bool = False
    """A rank cuts the part of a matrix that it stores; else ranks that store parts deal out blocks of whole ones."""
    replicas: tuple[str, ...] = ()
    """Axes whose ranks store the same parts, and deal their blocks out."""

    def ranks_of(self, value_type: Attribute) -> Size:
        """How many replicas a value has that deal its blocks out."""
        split = tensor_of(value_type).split_axes
        return symbolic.product(symbolic.symbol(a) for a in self.replicas if a not in split)


@irdl_attr_definition
class PreconditionerAttr(WrittenData[Preconditioner]):
    """`#stg.preconditioner<block 1024 every 10 grafted by_rows dealt over [rep]>`."""

    name = "stg.preconditioner"
    FORM: ClassVar = angled(
        record(
            Preconditioner,
            block=behind("block", NUMBER),
            frequency=behind("every", NUMBER),
            grafted=flag("grafted"),
            by_rows=flag("by_rows"),
            replicas=option("dealt", behind("over", NAMES), ()),
        )
    )

    def verify(self) -> None:
        if not self.data.block or not self.data.frequency:
            raise VerifyException("blocks have rows, and decompositions a period")


@dataclass(frozen=True)
class MatrixSide:
    """The rows of a matrix, or its columns, and the blocks that they are cut into."""

    size: Size
    block: int

    @property
    def num_blocks(self) -> Size:
        return symbolic.ceildiv(self.size, self.block)

    def sum_of_powers(self, exponent: int) -> Size:
        """The sum of powers of the sizes of blocks, of which all but the last are whole."""
        whole = self.num_blocks - 1
        last, found = symbolic.call("mod", self.size - 1, self.block) + 1, ONE
        for _ in range(exponent):
            found = found * last
        return whole * self.block**exponent + found

    @property
    def largest(self) -> Size:
        return symbolic.call("min", self.size, self.block)


@dataclass(frozen=True)
class Blocks:
    """The blocks of all matrices that a value is. A vector has one side, and so has a matrix of no more elements than a block has rows: it is `merged` to one
    (`merge_small_dims`, with `target_parameter_dimensionality = 1`)."""

    count: Size
    rows: MatrixSide
    columns: MatrixSide | None
    ranks: Size
    """The number of ranks that deal them out."""
    merged: Size = ZERO
    """One if it is so small, else 0; then columns are one."""

    @staticmethod
    def of(value: SSAValue, matrix: Matrix, how: Preconditioner) -> Blocks:
        value_type, layers = value.type, ONE
        assert isinstance(value_type, ValueType)
        if isinstance(value_type, StackType):
            layers, value_type = value_type.total_count, value_type.leaf
        ranks = ONE
        if isinstance(value_type, ShardType):
            ranks = symbolic.product(map(symbolic.symbol, value_type.axes))
        dims = tensor_of(value.type).dims
        rows = symbolic.product(d.size for d in dims if d.name in matrix.rows)
        columns = symbolic.product(d.size for d in dims if d.name in matrix.columns)
        others = (*matrix.rows, *matrix.columns)
        count = layers * symbolic.product(d.size for d in dims if d.name not in others)
        if how.by_rows:
            # Dim 0 as modules store it: the outputs of a linear layer, the words of a table.
            columns = symbolic.ceildiv(columns, ranks) if matrix.columns else columns
            rows = rows if matrix.columns else symbolic.ceildiv(rows, ranks)
            ranks = how.ranks_of(value.type)
        if not matrix.columns:
            return Blocks(count, MatrixSide(rows, how.block), None, ranks)
        elements = rows * columns
        merged = ONE - symbolic.call("min", ONE, symbolic.call("floordiv", elements - 1, how.block))
        # One name each, of which powers stay short.
        apart = ONE - merged
        one_or_columns = symbolic.call("max", ONE, apart * columns)
        all_or_rows = symbolic.call("max", apart * rows, merged * elements)
        sides = MatrixSide(all_or_rows, how.block), MatrixSide(one_or_columns, how.block)
        return Blocks(count, *sides, ranks, merged)

    def both(self, of_side: Callable[[MatrixSide], Size]) -> Size:
        """A sum over blocks of what each of their sides has."""
        if self.columns is None:
            return of_side(self.rows)
        by_rows = of_side(self.rows) * self.columns.num_blocks
        return by_rows + (ONE - self.merged) * of_side(self.columns) * self.rows.num_blocks

    def squares(self) -> Size:
        return self.count * self.both(lambda side: side.sum_of_powers(2))

    def triangles(self) -> Size:
        """Elements of symmetric matrices, of which half is stored (`use_symmetric_packing`)."""
        lengths = self.count * self.both(lambda side: side.sum_of_powers(1))
        return (self.squares() + lengths) / 2

    def cubes(self) -> Size:
        return self.count * self.both(lambda side: side.sum_of_powers(3))

    def round(self) -> Size:
        """FLOPs of one product from each side: `2 (r r c + r c c)` of a block [r, c]."""
        if self.columns is None:
            return 2 * self.squares()
        left = self.rows.sum_of_powers(2) * self.columns.size
        right = (ONE - self.merged) * self.rows.size * self.columns.sum_of_powers(2)
        return 2 * self.count * (left + right)

    def elements(self) -> Size:
        columns = self.columns.size if self.columns is not None else ONE
        return self.count * self.rows.size * columns

    def largest(self) -> Blocks:
        """One block by itself, as large as any."""
        columns = self.columns
        if columns is not None:
            columns = MatrixSide(columns.largest, columns.block)
        rows = MatrixSide(self.rows.largest, self.rows.block)
        return Blocks(ONE, rows, columns, ONE, self.merged)


def factor_bytes(algorithm: str, blocks: Blocks) -> Size:
    """Bytes that a rank keeps of statistics, and of their inverse roots or eigenvectors."""
    computed = blocks.triangles() if algorithm == SHAMPOO else blocks.squares()
    everything = bytes_of(blocks.triangles() + computed, FACTORS)
    return symbolic.ceildiv(everything, blocks.ranks)


@op_definition
class PreconditionOp(DefaultBuilder, CostInterface):
    """Multiply each block of gradients by inverse roots of its statistics (`shampoo`), or run Adam in their eigenbasis (`soap`).

    Statistics, averages of gradients and what is computed of them are kept as `stg.optimizer_step` says. A block [r, c] takes `2 (r r c + r c c)` FLOPs for
    each of `ROUNDS`, and every `frequency` steps its decompositions, of which a step has its share. Ranks that store parts of a matrix deal its blocks out:
    the busiest has an equal share, rounded up, but a whole block at least; or each cuts its own part (`by_rows`). Facebook's `distributed_shampoo` does so
    (Shi et al., arXiv:2309.06497).

    Gradients [n, m] each -> the same, in fp32.
    """

    name = "stg.precondition"
    WORK: ClassVar[Work] = Work.PRECONDITIONING

    algorithm = prop_def(StringAttr)
    matrices = prop_def(ArrayAttr[MatrixAttr])
    how = prop_def(PreconditionerAttr)
    gradients = var_operand_def()
    scale = opt_operand_def(TensorType)
    updates = var_result_def()

    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = (
        "$algorithm $how `(` $gradients `)` `as` $matrices (`scaled` `by` $scale^ `:` type($scale))? attr-dict "
        "`:` `(` type($gradients) `)` `->` `(` type($updates) `)`"
    )

    def made(self) -> Sequence[Attribute]:
        return [with_dtype(g.type, FACTORS) for g in self.gradients]

    def verify_(self) -> None:
        if self.algorithm.data not in PRECONDITIONED:
            raise self.mistake(f"`{self.algorithm.data}` has no factors")
        if len(self.matrices.data) != len(self.gradients):
            raise self.mistake("one matrix per gradient")
        for each, gradient in zip(self.matrices.data, self.gradients, strict=True):
            verify_matrix(self.name, each.data, gradient, vectors=True)
            if not each.data.rows:
                raise self.mistake(f"{gradient.type} has no rows")
        if [with_dtype(g.type, FACTORS) for g in self.gradients] != [*self.updates.types]:
            raise self.mistake(f"gradients come out in {FACTORS}")

    def blocks(self) -> Iterator[Blocks]:
        for each, gradient in zip(self.matrices.data, self.gradients, strict=True):
            yield Blocks.of(gradient, each.data, self.how.data)

    def own_elements(self, value: SSAValue) -> Size:
        """The elements that one rank has of what its replicas deal out among themselves: an equal share."""
        return symbolic.ceildiv(elements(value), self.how.data.ranks_of(value.type))

    def shared(self, cost: Callable[[Blocks], Size]) -> Size:
        """What the busiest rank has: of those who deal blocks out an equal share, and one block at least."""
        by_ranks: dict[Size, list[Blocks]] = {}
        for blocks in self.blocks():
            by_ranks.setdefault(blocks.ranks, []).append(blocks)
        return symbolic.total(share(ranks, found, cost) for ranks, found in by_ranks.items())

    def flops(self) -> Size:
        algorithm, how = self.algorithm.data, self.how.data

        def of(blocks: Blocks) -> Size:
            decompositions = symbolic.ceildiv(CUBES[algorithm] * blocks.cubes(), 3 * how.frequency)
            return ROUNDS[algorithm] * blocks.round() + decompositions

        each = ELEMENTWISE[algorithm] + (GRAFTED if how.grafted else 0)
        return self.shared(of) + symbolic.total(map(self.own_elements, self.gradients)) * each

    def moved_bytes(self) -> Bytes:
        # A round reads the block for each of its products; the first one writes statistics, others read factors and write blocks.
        algorithm, how = self.algorithm.data, self.how.data
        rounds = ROUNDS[algorithm]

        def read(blocks: Blocks) -> Size:
            columns = COLUMNS_READ[algorithm] * blocks.cubes()
            decomposed = symbolic.ceildiv(3 * blocks.squares() + columns, 3 * how.frequency)
            found = rounds * (2 * blocks.elements() + blocks.squares()) + decomposed
            return bytes_of(found, FACTORS)

        def written(blocks: Blocks) -> Size:
            decomposed = symbolic.ceildiv(blocks.squares(), how.frequency)
            found = (rounds - 1) * 2 * blocks.elements() + blocks.squares() + decomposed
            return bytes_of(found, FACTORS)

        gradients, updates = (
            symbolic.total(bytes_of(self.own_elements(x), tensor_of(x.type).dtype) for x in values)
            for values in (self.gradients, self.updates)
        )
        averages = updates * (1 + (algorithm == SOAP) + how.grafted)
        return Bytes(
            gradients + averages + self.shared(read), averages + updates + self.shared(written)
        )


def share(ranks: Size, found: Sequence[Blocks], cost: Callable[[Blocks], Size]) -> Size:
    everything = symbolic.total(map(cost, found))
    if ranks == ONE:
        return everything
    largest = cost(found[0].largest())
    for blocks in found[1:]:
        largest = symbolic.call("max", largest, cost(blocks.largest()))
    return symbolic.call("max", largest, symbolic.ceildiv(everything, ranks))
