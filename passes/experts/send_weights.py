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
from xdsl.rewriter import Rewriter

from stagec.analysis.exchanges import exchanges, placements
from stagec.diagnostics import CompileError, Diagnostic
from stagec.dialects import dist, stg
from stagec.dialects.types import TensorType, tensor_of
from stagec.rewriting import insert_before, programs
from stagec.rewriting.weighted_copies import dispatch_of, last_product, make_weights_early, weighted

NAME = "send-weights"


@dataclass(frozen=True)
class SendWeights(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        found = [each for program in programs(op) for each in exchanges(program)]
        if not found:
            raise CompileError([nothing_exchanged(op)])
        for routed, change in found:
            if isinstance(routed, stg.CombineOp) and routed.weights is not None:
                weight_at_experts(routed, routed.weights, change)


def weight_at_experts(combine: stg.CombineOp, weights: SSAValue, change: dist.ReshardOp) -> None:
    """Weight before the way back in place of behind it."""
    make_weights_early(combine, weights)
    own, sent = placements(combine, change)
    reader, place = last_product(change, own.names[1])
    sends = stg.SendWeightsOp(weights, combine.experts, sent.dims[:2])
    made: list[Operation] = [sends]
    value, behind = sends.copies, maker(weights, combine.parent_block())
    for way in way_of_tokens(combine):
        behind = way if behind is None or behind.is_before_in_block(way) else behind
        made.append(
            dist.ReshardOp(value, TensorType.of(way.target.dims[:2], tensor_of(value.type).dtype))
        )
        assert behind.next_op is not None
        insert_before(behind.next_op, made, NAME, combine)
        value, behind, made = made[-1].results[0], made[-1], []
    insert_before(reader, [*made, *weighted(reader, place, value)], NAME, combine)
    added = stg.CombineOp(combine.routed, combine.experts)
    stg.add_names(added, stg.names_of(combine))
    added.result.name_hint = combine.result.name_hint
    insert_before(combine, [added], NAME)
    combine.result.replace_all_uses_with(added.result)
    Rewriter.erase_op(combine)


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


def nothing_exchanged(module: ModuleOp) -> Diagnostic:
    """E0313: the experts are where the tokens are."""
    return Diagnostic(
        "E0313",
        "no tokens go to experts on other devices, so that nothing travels with them",
        dist.clause_span(programs(module)[0], "collectives.given.like"),
        help="leave `like` out of `collectives`, or split the experts over an axis of the tokens: `shard X over dp`",
    )
