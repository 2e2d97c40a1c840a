"""Experts that weight what they make of tokens themselves, in place of the combine that adds it up."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from stagec.dialects import dist, stg
from stagec.dialects.types import tensor_of


def last_product(change: dist.ReshardOp, tokens: str) -> tuple[Operation, int]:
    """What reads tokens of experts last as a factor, and as which operand: a product with weights, else the way back itself."""
    value = change.operand
    while isinstance(value.owner, dist.ReshardOp):
        value = value.owner.operand
    product = value.owner
    if isinstance(product, stg.ContractOp) and product.parent is change.parent:
        for place, operand in enumerate(product.operands):
            if tensor_of(operand.type).names[1:2] == (tokens,):
                return product, place
    return change, 0


def weighted(reader: Operation, place: int, copies: SSAValue) -> list[Operation]:
    """The ops that weight what a reader reads, to be inserted before it. `copies`: a weight for each."""
    given = tensor_of(reader.operands[place].type)
    made: list[Operation] = []
    beside = tensor_of(copies.type).with_splits({d.name: d.split for d in given.dims[:2]})
    if beside != copies.type:
        made.append(dist.ReshardOp(copies, beside))
        copies = made[-1].results[0]
    made.append(stg.WeightCopiesOp(reader.operands[place], copies))
    reader.operands[place] = made[-1].results[0]
    return made
