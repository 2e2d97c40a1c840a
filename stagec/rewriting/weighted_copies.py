"""Experts that weight what they make of tokens themselves, in place of the combine that adds it up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.ir import Block, Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from stagec.diagnostics import CompileError, Diagnostic, span_of
from stagec.dialects import dist, stg
from stagec.dialects.types import tensor_of
from stagec.dialects.use_def import before_placing, followed


def dispatch_of(combine: stg.CombineOp) -> stg.DispatchOp | None:
    """What sends tokens to the experts whose work is combined."""
    block = combine.parent_block()
    for use in combine.experts.uses:
        if isinstance(use.operation, stg.DispatchOp) and use.operation.parent is block:
            return use.operation
    return None


@dataclass(frozen=True)
class EarlyWeights(RewritePattern):
    """Lets weights be there when tokens go to their experts, wherever the text computes them. E0313 where they are made of what comes back."""

    comes_back: Callable[[Operation], object]
    """Whether what a combine adds up comes from experts on other devices."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: stg.CombineOp, rewriter: PatternRewriter) -> None:
        dispatch, block = dispatch_of(op), op.parent_block()
        if op.weights is None or dispatch is None or block is None or not self.comes_back(op):
            return
        late: set[Operation] = set()
        asked = [op.weights.owner]
        while asked:
            maker = asked.pop()
            while isinstance(maker, Operation) and maker.parent_block() is not block:
                maker = maker.parent_op() or block
            if isinstance(maker, Block) or maker in late or maker.is_before_in_block(dispatch):
                continue
            if maker is dispatch:
                raise CompileError([made_late(op)])
            late.add(maker)
            asked += [operand.owner for each in maker.walk() for operand in each.operands]
        for each in [each for each in block.ops if each in late]:
            each.detach()
            block.insert_op_before(each, dispatch)


def made_late(combine: stg.CombineOp) -> Diagnostic:
    return Diagnostic(
        "E0313",
        "the weights of these tokens are made of what their experts return, so that they cannot go there with them",
        span_of(combine.location),
        help="leave `like = megatron` out of `collectives`: tokens are then weighted where they come back",
    )


def last_product(change: dist.ReshardOp, tokens: str) -> tuple[Operation, int]:
    """What reads tokens of experts last as a factor, and as which operand: a product with weights, else the way back itself."""
    product = followed(change.operand, before_placing).owner
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
