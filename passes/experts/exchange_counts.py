"""Exchange how many tokens go to each expert, before the tokens.

Before `exchange-counts`:

    %x, %i = "test.op"() : () -> (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>)
    %r, %n = stg.dispatch %x by %i to "X" "C" dropless
      : (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>) -> (!stg.tensor<[X, C/ep, D], bf16>, !stg.tensor<[X], i64>)
    %e = dist.all_to_all %r gather "C" scatter "X" over [ep] : !stg.tensor<[X, C/ep, D], bf16> -> !stg.tensor<[X/ep, C, D], bf16>

After:

    %x, %i = "test.op"() : () -> (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>)
    %r, %n = stg.dispatch %x by %i to "X" "C" dropless
      : (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>) -> (!stg.tensor<[X, C/ep, D], bf16>, !stg.tensor<[X], i64>)
    %m = dist.exchange_counts %n over [ep] {made_by = "exchange-counts"} : !stg.tensor<[X], i64> -> !stg.tensor<[X], i64>
    %e = dist.all_to_all %r gather "C" scatter "X" over [ep] : !stg.tensor<[X, C/ep, D], bf16> -> !stg.tensor<[X/ep, C, D], bf16>

Without drops the sizes of the exchange are known only when routing is done: 8 bytes for each expert, as torchtitan exchanges them.
With a capacity sizes are fixed, and the way back knows them from the way there.

With `gathered` each device is told what all send, also to experts of others: an all-gather over all axes over which tokens
are then gathered for a part of an expert, too (`MoEAlltoAllTokenDispatcher.preprocess` in Megatron-LM, over `tp_ep_group`).
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern
from xdsl.rewriter import InsertPoint

from stagec.dialects import dist, stg
from stagec.rewriting import rewrite

NAME = "exchange-counts"


@dataclass(frozen=True)
class ExchangeCounts(ModulePass):
    name = NAME

    gathered: bool = False
    """Tell each device what all send to all experts."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite(op, ExchangeBefore(self.gathered), NAME, once=True)


@dataclass(frozen=True)
class ExchangeBefore(RewritePattern):
    gathered: bool

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: dist.AllToAllOp, rewriter: PatternRewriter) -> None:
        sender = op.operand.owner
        if isinstance(sender, stg.SendsTokens) and sender.dropless is not None:
            axes = (*op.axes.data, *gathering_axes(op)) if self.gathered else op.axes.data
            counts = dist.ExchangeCountsOp(sender.counts, axes, gathered=self.gathered)
            rewriter.insert(counts, InsertPoint.before(op))


def gathering_axes(exchange: dist.AllToAllOp) -> tuple[str, ...]:
    """The axes over which what arrives is gathered for parts of experts."""
    readers = [use.operation for use in exchange.result.uses]
    gathers = [each for each in readers if isinstance(each, dist.AllGatherOp)]
    return tuple(dict.fromkeys(axis for each in gathers for axis in each.axes.data))
