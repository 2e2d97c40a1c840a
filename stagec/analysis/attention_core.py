"""Which ops of a block are the core of attention: all between the queries, keys and values and what is mixed of them.

A fused attention is one op. Written out, the core is found from each softmax over a dim (of keys):

- up from it, every op whose result has that dim, as far as the product of two activations that makes the scores: casts,
  masks, scales, biases of the scores, and what these are made of if it has that dim (distances, but no table);
- down from it, every op whose result has that dim (casts, dropout), as far as the product of two activations that sums
  over it;
- both products, and what lies directly before them but costs nothing: views, and heads repeated for the queries.

A softmax without such products is none of attention: a router's. Korthikanti et al. 2022 (section 5) recompute just
that: it has the tensors of S x T elements, and few of the FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.ir import Operation, OpResult, SSAValue

from stagec.analysis.placement import is_weight
from stagec.dialects import dist, stg
from stagec.dialects.types import TensorType


def attention_core(ops: Sequence[Operation]) -> set[Operation]:
    """The ops of all attentions among the ops of a block's forward pass."""
    here = set(ops)
    core = {op for op in ops if is_fused(op)}
    softmaxes = [op for op in ops if is_softmax(op)]
    for softmax, over in zip(softmaxes, dims_of(softmaxes), strict=True):
        core |= Core(here, over).around(softmax)
    # The statistics of a softmax that was taken apart, and what moves them, have no such dim.
    if any(is_softmax(op) and op in core for op in ops):
        core |= {op for op in softmaxes if stg.part_of(op) == "softmax"}
    return core | {op for op in ops if isinstance(op, dist.Movement) and moves_statistics(op, core)}


def is_fused(op: Operation) -> bool:
    """Fused attention, or a step of one that was taken apart."""
    return any(isinstance(each, stg.AttentionOp) for each in op.walk()) or (
        stg.part_of(op) == "attention"
    )


def is_softmax(op: Operation) -> bool:
    return isinstance(op, stg.SoftmaxOp) or stg.part_of(op) == "softmax"


def dims_of(softmaxes: Iterable[Operation]) -> list[set[str]]:
    """The dims that each is over. Only the reductions of one that was taken apart say."""
    softmaxes = list(softmaxes)
    reduced = {d for op in softmaxes if isinstance(op, stg.ReduceOp) for d in op.over.data}
    return [set(op.over.data) if isinstance(op, stg.SoftmaxOp) else reduced for op in softmaxes]


def moves_statistics(op: dist.Movement, core: set[Operation]) -> bool:
    maker = op.operand.owner
    return isinstance(maker, stg.ReduceOp) and maker in core and stg.part_of(maker) == "softmax"


class Core:
    """The search around one softmax."""

    def __init__(self, here: set[Operation], over: set[str]) -> None:
        self.here, self.over = here, over
        self.found: set[Operation] = set()
        self.scores: list[stg.ContractOp] = []
        self.mixes: list[stg.ContractOp] = []

    def around(self, softmax: Operation) -> set[Operation]:
        """The core that a softmax is part of; nothing if it is none of attention."""
        self.found.add(softmax)
        self.up(softmax.operands)
        self.down(softmax)
        if not self.scores or not self.mixes:
            return set()
        for product in (*self.scores, *self.mixes):
            self.found.add(product)
            for operand in product.operands:
                self.prepared(operand)
        return self.found

    def up(self, values: Iterable[SSAValue]) -> None:
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            op = value.owner
            if op not in self.here or op in self.found or not self.has_dim(value):
                continue
            if isinstance(op, stg.ContractOp):
                if of_activations(op) and op not in self.scores:
                    self.scores.append(op)
            else:
                assert isinstance(op, Operation)
                self.found.add(op)
                waiting += op.operands

    def down(self, softmax: Operation) -> None:
        waiting = [softmax]
        while waiting:
            maker = waiting.pop()
            for reader in {use.operation for result in maker.results for use in result.uses}:
                if reader not in self.here or reader in self.found:
                    continue
                if isinstance(reader, stg.ContractOp):
                    mixes = self.over & set(reader.over.data) and of_activations(reader)
                    if mixes and reader not in self.mixes:
                        self.mixes.append(reader)
                elif any(self.has_dim(result) for result in reader.results):
                    self.found.add(reader)
                    waiting.append(reader)
                    self.up(reader.operands)

    def prepared(self, value: SSAValue) -> None:
        """Views and repeated heads of what goes into a product."""
        while isinstance(value, OpResult) and value.op in self.here:
            op = value.op
            is_view = isinstance(op, stg.TensorOp) and op.IS_VIEW
            if not is_view and not isinstance(op, stg.RepeatHeadsOp):
                break
            self.found.add(op)
            value = op.operands[0]

    def has_dim(self, value: SSAValue) -> bool:
        return isinstance(value.type, TensorType) and bool(self.over & set(value.type.names))


def of_activations(op: stg.ContractOp) -> bool:
    return not is_weight(op.left) and not is_weight(op.right)
