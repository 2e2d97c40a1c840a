"""Send the weight of each copy of a token to its expert, which weights what it makes; combines then only add up.

Before `send-weights`:

    dist.mesh <ep = 4>
    stg.program "M" (%x : !stg.tensor<[B/ep, D], bf16>, %g : !stg.tensor<[B/ep, A], fp32>, %i : !stg.tensor<[B/ep, A], i32>,
        %w : !stg.tensor<[X/ep, D, F], bf16>, %v : !stg.tensor<[X/ep, F, D], bf16>) {
      %r, %n = stg.dispatch %x by %i to "X" "T" dropless
        : (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>) -> (!stg.tensor<[X, T/ep, D], bf16>, !stg.tensor<[X], i64>)
      %e = dist.reshard %r : !stg.tensor<[X, T/ep, D], bf16> -> !stg.tensor<[X/ep, T, D], bf16>
      %h = stg.contract %e, %w over [D]
        : (!stg.tensor<[X/ep, T, D], bf16>, !stg.tensor<[X/ep, D, F], bf16>) -> !stg.tensor<[X/ep, T, F], bf16>
      %y = stg.contract %h, %v over [F]
        : (!stg.tensor<[X/ep, T, F], bf16>, !stg.tensor<[X/ep, F, D], bf16>) -> !stg.tensor<[X/ep, T, D], bf16>
      %b = dist.reshard %y : !stg.tensor<[X/ep, T, D], bf16> -> !stg.tensor<[X, T/ep, D], bf16>
      %o = stg.combine %b by %i weights %g : (!stg.tensor<[X, T/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>,
        !stg.tensor<[B/ep, A], fp32>) -> !stg.tensor<[B/ep, D], bf16>
      stg.output
    }

After:

    dist.mesh <ep = 4>
    stg.program "M" (%x : !stg.tensor<[B/ep, D], bf16>, %g : !stg.tensor<[B/ep, A], fp32>, %i : !stg.tensor<[B/ep, A], i32>,
        %w : !stg.tensor<[X/ep, D, F], bf16>, %v : !stg.tensor<[X/ep, F, D], bf16>) {
      %r, %n = stg.dispatch %x by %i to "X" "T" dropless
        : (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>) -> (!stg.tensor<[X, T/ep, D], bf16>, !stg.tensor<[X], i64>)
      %e = dist.reshard %r : !stg.tensor<[X, T/ep, D], bf16> -> !stg.tensor<[X/ep, T, D], bf16>
      %s = stg.send_weights %g by %i to "X" "T" {made_by = "send-weights"}
        : (!stg.tensor<[B/ep, A], fp32>, !stg.tensor<[B/ep, A], i32>) -> !stg.tensor<[X, T/ep], fp32>
      %c = dist.reshard %s {made_by = "send-weights"} : !stg.tensor<[X, T/ep], fp32> -> !stg.tensor<[X/ep, T], fp32>
      %h = stg.contract %e, %w over [D]
        : (!stg.tensor<[X/ep, T, D], bf16>, !stg.tensor<[X/ep, D, F], bf16>) -> !stg.tensor<[X/ep, T, F], bf16>
      %m = stg.weight_copies %h by %c {made_by = "send-weights"}
        : (!stg.tensor<[X/ep, T, F], bf16>, !stg.tensor<[X/ep, T], fp32>) -> !stg.tensor<[X/ep, T, F], bf16>
      %y = stg.contract %m, %v over [F]
        : (!stg.tensor<[X/ep, T, F], bf16>, !stg.tensor<[X/ep, F, D], bf16>) -> !stg.tensor<[X/ep, T, D], bf16>
      %b = dist.reshard %y : !stg.tensor<[X/ep, T, D], bf16> -> !stg.tensor<[X, T/ep, D], bf16>
      %o = stg.combine %b by %i {made_by = "send-weights"}
        : (!stg.tensor<[X, T/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>) -> !stg.tensor<[B/ep, D], bf16>
      stg.output
    }

Megatron-LM's `MoEAlltoAllTokenDispatcher`: after the exchange of tokens one of their weights, a number for each copy, and in the backward pass one of
the gradients of weights. Experts weight what goes into their last product (`TEGroupedMLP.forward` in `moe/experts.py`), which is the same as weighting
what comes out of it; where no product comes last, what comes out. The backward pass so needs what experts made of no token: only what they were given.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern
from xdsl.rewriter import InsertPoint

from stagec.analysis.exchanges import changes_beside, check_exchanges, placements
from stagec.dialects import dist, stg
from stagec.dialects.types import TensorType, tensor_of
from stagec.rewriting import rewrite
from stagec.rewriting.weighted_copies import EarlyWeights, dispatch_of, last_product, weighted

NAME = "send-weights"


@dataclass(frozen=True)
class SendWeights(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        axis = "an axis of the tokens: `shard X over dp`"
        check_exchanges(op, "nothing travels with them", "like", axis)
        rewrite(op, EarlyWeights(changes_beside), NAME, once=True)
        rewrite(op, WeightAtExperts(), NAME, once=True)


class WeightAtExperts(RewritePattern):
    """Weights before the way back in place of behind it."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: stg.CombineOp, rewriter: PatternRewriter) -> None:
        changes, weights = changes_beside(op), op.weights
        if not changes or weights is None:
            return
        (change,) = changes
        own, sent = placements(op, change)
        reader, place = last_product(change, own.names[1])
        sends = stg.SendWeightsOp(weights, op.experts, sent.dims[:2])
        made: list[Operation] = [sends]
        value, behind = sends.copies, maker(weights, op.parent_block())
        for way in way_of_tokens(op):
            behind = way if behind is None or behind.is_before_in_block(way) else behind
            dtype = tensor_of(value.type).dtype
            made.append(dist.ReshardOp(value, TensorType.of(way.target.dims[:2], dtype)))
            rewriter.insert(made, InsertPoint.after(behind))
            value, behind, made = made[-1].results[0], made[-1], []
        rewriter.insert([*made, *weighted(reader, place, value)], InsertPoint.before(reader))
        added = stg.CombineOp(op.routed, op.experts)
        stg.add_names(added, stg.names_of(op))
        rewriter.replace(op, added)


def way_of_tokens(combine: stg.CombineOp) -> list[dist.ReshardOp]:
    """The changes of placement that bring copies of the same tokens to their experts, one after the other."""
    found: list[dist.ReshardOp] = []
    dispatch = dispatch_of(combine)
    value = dispatch.routed if dispatch is not None else None
    while value is not None:
        readers = [each.operation for each in value.uses]
        changes = [op for op in readers if isinstance(op, dist.ReshardOp)]
        found += changes[:1]
        value = changes[0].result if changes else None
    return found


def maker(value: SSAValue, block: Block | None) -> Operation | None:
    """The op of this block that makes a value."""
    owner = value.owner
    return owner if isinstance(owner, Operation) and owner.parent_block() is block else None
