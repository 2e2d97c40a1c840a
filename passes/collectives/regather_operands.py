"""Save the shard of what was gathered, and gather again where the backward pass reads it.

Before `regather-operands`:

    stg.program "M" (%x : !stg.tensor<[S/tp, D], bf16>, %dy : !stg.tensor<[S, F], bf16>) {
      %g = dist.all_gather %x dim "S" over [tp] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>
      %e = stg.unary "exp" %g : (!stg.tensor<[S, D], bf16>) -> !stg.tensor<[S, D], bf16>
      %dw = stg.contract %dy, %g over [S] {phase = "wgrad"}
        : (!stg.tensor<[S, F], bf16>, !stg.tensor<[S, D], bf16>) -> !stg.tensor<[F, D], bf16>
      stg.output
    }

After:

    stg.program "M" (%x : !stg.tensor<[S/tp, D], bf16>, %dy : !stg.tensor<[S, F], bf16>) {
      %g = dist.all_gather %x dim "S" over [tp] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>
      %e = stg.unary "exp" %g : (!stg.tensor<[S, D], bf16>) -> !stg.tensor<[S, D], bf16>
      %h = dist.all_gather %x dim "S" over [tp] {phase = "wgrad", made_by = "regather-operands"}
        : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>
      %dw = stg.contract %dy, %h over [S] {phase = "wgrad"}
        : (!stg.tensor<[S, F], bf16>, !stg.tensor<[S, D], bf16>) -> !stg.tensor<[F, D], bf16>
      stg.output
    }

Under sequence parallelism the operand of a column-parallel product is gathered, and its weight gradient reads it whole. Megatron-LM
keeps the rank's shard instead (Korthikanti et al. 2022, section 4.2.2): 1/n of the memory for one more all-gather per gathered
operand, so that a layer has 6 all-gathers and 4 reduce-scatters. It is gathered before its first reader, in phase `wgrad` if
only weight gradients read it. The same holds for what recomputation gathers: that is gathered once more for the backward pass.

With `modules`, only what no other op of the backward pass reads than those of calls of these modules is gathered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from stagec.analysis.recompute_choice import call_of
from stagec.dialects import dist, stg
from stagec.rewriting import programs
from stagec.rewriting.saved_values import BlockPair, levels_of, reads_of, remove_unread

NAME = "regather-operands"

Read = tuple[Operation, Operation, int]
"""An op of the backward block, the op in it (or itself) that reads, and at which position."""


@dataclass(frozen=True)
class RegatherOperands(ModulePass):
    name = NAME

    modules: tuple[str, ...] = ()
    """In whose calls. None: everywhere."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in programs(op):
            levels = levels_of(program)
            for level in levels:
                regather_recomputed(level, self.modules)
                regather_saved(level, self.modules)
            remove_unread(levels)
            verify_not_saved(levels, self.modules)


def regather_saved(level: BlockPair, modules: Sequence[str]) -> None:
    """Gather again what the forward pass gathered."""
    for op in level.forward_ops():
        gather: Operation | Block = op
        # What is gathered over several axes is gathered one after the other: then the first result is read.
        while isinstance(gather, dist.AllGatherOp) and regather_one(level, gather, modules):
            gather = gather.operand.owner


def regather_one(level: BlockPair, gather: dist.AllGatherOp, modules: Sequence[str]) -> bool:
    """Gather again what one gather made; whether the backward pass reads it."""
    view = level.seen(gather.result)
    if view is None:
        return False
    reads = reads_in(level, view)
    if not are_in(reads, modules):
        return False
    recomputing, others = by_phase(reads)
    for reads in (recomputing, others):
        if reads:
            regather(gather, level.use(gather.operand), reads)
    return bool(recomputing or others)


def are_in(reads: Iterable[Read], modules: Sequence[str]) -> bool:
    """Whether all that read are in calls of these modules."""
    return not modules or all(call_of(reader, modules) for _, reader, _ in reads)


def regather_recomputed(level: BlockPair, modules: Sequence[str]) -> None:
    """Gather again what was gathered to compute something again, if the backward pass reads it too."""
    for gather in level.backward_ops():
        if isinstance(gather, dist.AllGatherOp) and stg.phase_of(gather) == "recompute":
            recomputing, others = by_phase(reads_in(level, gather.result))
            if recomputing and others and are_in(others, modules):
                regather(gather, gather.operand, others)


def reads_in(level: BlockPair, value: SSAValue) -> list[Read]:
    return [
        (op, reader, index)
        for op in level.backward_ops()
        for reader, index in reads_of(op, {value: None})
    ]


def by_phase(reads: Iterable[Read]) -> tuple[list[Read], list[Read]]:
    """The reads of recomputation, and those of the backward pass proper."""
    recomputing: list[Read] = []
    others: list[Read] = []
    for read in reads:
        (recomputing if stg.phase_of(read[1]) == "recompute" else others).append(read)
    return recomputing, others


def regather(gather: dist.AllGatherOp, shard: SSAValue, reads: list[Read]) -> None:
    """Gather a shard before the first of its readers, for all of them."""
    phases = {stg.phase_of(reader) for _, reader, _ in reads}
    phase = next((p for p in ("recompute", "wgrad") if phases == {p}), "bwd")
    again = gather.clone({gather.operand: shard})
    stg.marks(again).update({"phase": StringAttr(phase), "made_by": StringAttr(NAME)})
    first = reads[0][0]
    Rewriter.insert_op(again, InsertPoint.before(first))
    for _, reader, index in reads:
        reader.operands[index] = again.result


def verify_not_saved(levels: Iterable[BlockPair], modules: Sequence[str]) -> None:
    """Check the promise: nothing that a gather made is saved, unless other modules read it."""
    for level in levels:
        for value in level.saved().values():
            if isinstance(value.owner, dist.AllGatherOp):
                view = level.seen(value)
                assert view is not None, value
                assert not are_in(reads_in(level, view), modules), value
