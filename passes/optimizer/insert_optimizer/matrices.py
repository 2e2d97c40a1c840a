"""Which matrix a weight is: rows are what products sum over, columns what they make.

`wq[D, H, E]` is one of D x (H E) where `x @ wq` sums over D; `up[X, D, F]` is X of D x F, as products keep X, the experts. A table that
is looked up, and a weight that makes logits, are not taken for matrices: Moonlight (arXiv:2502.16982, section 2.2) and Megatron-LM
(`is_embedding_or_output_parameter`) leave embeddings and heads to AdamW. Of optimizers that have blocks of any weight (`every_weight`), a table is
one of widths x words, heads are matrices like others, what is no operand of a product is one of all its dims but the last one by that, and a weight of one dim
is a vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects.builtin import ArrayAttr
from xdsl.ir import Operation, SSAValue

from stagec.dialects import dist, stg
from stagec.dialects.types import TensorType, tensor_of

VIEWS = (stg.CastOp, stg.QuantizeOp, dist.ReshardOp)
"""What a product reads a weight through."""


def matrices_of(
    program: stg.ProgramOp, weights: Sequence[SSAValue], every_weight: bool = False
) -> ArrayAttr[stg.MatrixAttr]:
    """What matrix each weight of a program is."""
    if every_weight:
        return ArrayAttr(stg.MatrixAttr(blocked_of(weight)) for weight in weights)
    classes = {
        stg.tensor_type(op.operands[0]).names[-1]
        for op in program.walk()
        if isinstance(op, stg.LOSSES)
    }
    return ArrayAttr(stg.MatrixAttr(matrix_of(weight, classes)) for weight in weights)


def matrix_of(weight: SSAValue, classes: set[str]) -> stg.Matrix:
    """The matrix that a weight of a program is. `classes` are the dims along which logits have one element for each class."""
    found, own = stg.Matrix(), tensor_of(weight.type).names
    if classes & {*own}:
        return found
    for op, value in readers(weight):
        if isinstance(op, stg.EmbeddingOp):
            return stg.Matrix()
        # Of what sums over columns in the backward pass, rows and columns are the other way round.
        if isinstance(op, stg.ContractOp) and (not found.rows or stg.phase_of(op) == "fwd"):
            other = op.right if op.left is value else op.left
            assert isinstance(other.type, TensorType)
            rows = tuple(n for n in own if n in op.over.data)
            columns = tuple(n for n in own if n not in other.type.names)
            if rows and columns:
                found = stg.Matrix(rows, columns)
    return found


def blocked_of(weight: SSAValue) -> stg.Matrix:
    """The matrix, or vector, that is cut into blocks: of any weight. Columns are what modules store first, outputs and words. One that is stored as a
    vector, whatever dims the text gives it, is one (`bq[H, E |]`)."""
    found, own = matrix_of(weight, set()), tensor_of(weight.type).names
    stored = weight.owner
    if isinstance(stored, stg.WeightOp) and stored.rows is not None and stored.num_rows == len(own):
        return stg.Matrix(own)
    if found.rows:
        return found
    if any(isinstance(op, stg.EmbeddingOp) for op, _ in readers(weight)):
        return stg.Matrix(own[1:], own[:1])
    return stg.Matrix(own[-1:], own[:-1])


def readers(value: SSAValue) -> Iterator[tuple[Operation, SSAValue]]:
    """The ops that compute with a weight, and what of it they read: through repeats, casts and changes of placement."""
    for use in value.uses:
        op = use.operation
        if isinstance(op, stg.RepeatOp):
            index = use.index - (len(op.operands) - len(op.stacks))
            if index >= 0:
                yield from readers(op.body.block.args[op.num_carried + index])
        elif isinstance(op, VIEWS):
            yield from readers(op.results[0])
        else:
            yield op, value
