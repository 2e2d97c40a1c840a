"""Send tokens to experts, and bring them back, in the dtypes that the plan says.

Before `cast-exchanges{dispatch="fp8" combine="bf16"}`:

    %x, %i = "test.op"() : () -> (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>)
    %r, %n = stg.dispatch %x by %i to "X" "C" dropless
      : (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>) -> (!stg.tensor<[X, C/ep, D], bf16>, !stg.tensor<[X], i64>)
    %e = dist.all_to_all %r gather "C" scatter "X" over [ep] : !stg.tensor<[X, C/ep, D], bf16> -> !stg.tensor<[X/ep, C, D], bf16>
    %b = dist.all_to_all %e gather "X" scatter "C" over [ep] : !stg.tensor<[X/ep, C, D], bf16> -> !stg.tensor<[X, C/ep, D], bf16>
    %y = stg.combine %b by %i : (!stg.tensor<[X, C/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>) -> !stg.tensor<[B/ep, D], bf16>

After:

    %x, %i = "test.op"() : () -> (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>)
    %q = stg.cast %x {made_by = "cast-exchanges"} : (!stg.tensor<[B/ep, D], bf16>) -> !stg.tensor<[B/ep, D], fp8>
    %r, %n = stg.dispatch %q by %i to "X" "C" dropless
      : (!stg.tensor<[B/ep, D], fp8>, !stg.tensor<[B/ep, A], i32>) -> (!stg.tensor<[X, C/ep, D], fp8>, !stg.tensor<[X], i64>)
    %s = dist.all_to_all %r gather "C" scatter "X" over [ep] : !stg.tensor<[X, C/ep, D], fp8> -> !stg.tensor<[X/ep, C, D], fp8>
    %e = stg.cast %s {made_by = "cast-exchanges"} : (!stg.tensor<[X/ep, C, D], fp8>) -> !stg.tensor<[X/ep, C, D], bf16>
    %b = dist.all_to_all %e gather "X" scatter "C" over [ep] : !stg.tensor<[X/ep, C, D], bf16> -> !stg.tensor<[X, C/ep, D], bf16>
    %y = stg.combine %b by %i : (!stg.tensor<[X, C/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>) -> !stg.tensor<[B/ep, D], bf16>

Tokens are cast before they are copied, as DeepEP does, and cast back where they arrive. DeepSeek-V3 dispatches in fp8 and combines
in bf16, forward and backward (arXiv:2412.19437, section 3.3.3): what goes back along a combine is dispatched too. Scales are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec.diagnostics import CompileError, Diagnostic, span_of
from stagec.dialects import dist, stg
from stagec.rewriting import insert_after, insert_before, programs, set_type

NAME = "cast-exchanges"


@dataclass(frozen=True)
class CastExchanges(ModulePass):
    name = NAME

    dispatch: str = ""
    """Dtype of tokens on the way to experts; empty: that which they have."""
    combine: str = ""
    """Dtype of what comes back."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        found = False
        for exchange in list(op.walk()):
            if not isinstance(exchange, dist.AllToAllOp):
                continue
            sender = exchange.operand.owner
            is_combine = any(
                isinstance(use.operation, stg.CombineOp | stg.FanInOp)
                for use in exchange.result.uses
            )
            sends = isinstance(sender, stg.DispatchOp | stg.FanOutOp)
            found = found or is_combine or sends
            if self.dispatch and sends:
                cast_dispatch(sender, exchange, self.dispatch)
            elif self.combine and is_combine:
                cast_combine(exchange, self.combine)
        if not found:
            raise CompileError([nothing_exchanged(op)])


def nothing_exchanged(module: ModuleOp) -> Diagnostic:
    programs_ = programs(module)
    return Diagnostic(
        "E0312",
        "no tokens go to experts on other devices, so that no dtype is one of theirs",
        span_of(programs_[0].location) if programs_ else None,
        help="leave `dispatch` and `combine` out of `precision`, or split the experts: `shard X over ep`",
    )


def cast_dispatch(
    sender: stg.DispatchOp | stg.FanOutOp, exchange: dist.AllToAllOp, dtype: str
) -> None:
    """Cast what is sent before it is copied. A dispatch that somebody else reads stays as it is.

    What arrived in this dtype goes on as it came.
    """
    sent = sender.results[0]
    if exchange.source.dtype == dtype or not sent.has_one_use():
        return
    came = sender.x.owner
    if isinstance(came, stg.CastOp) and stg.tensor_type(came.x).dtype == dtype:
        sender.operands[0] = came.x
        if not came.result.uses:
            Rewriter.erase_op(came)
    else:
        cast = stg.CastOp(sender.x, dtype)
        insert_before(sender, [cast], NAME)
        sender.operands[0] = cast.result
    set_type(sent, exchange.source.with_dtype(dtype))
    cast_back(exchange, exchange.source)


def cast_combine(exchange: dist.AllToAllOp, dtype: str) -> None:
    if exchange.source.dtype == dtype:
        return
    cast = stg.CastOp(exchange.operand, dtype)
    insert_before(exchange, [cast], NAME)
    exchange.operands[0] = cast.result
    cast_back(exchange, exchange.source)


def cast_back(exchange: dist.AllToAllOp, sent: stg.TensorType) -> None:
    """What arrives is cast to the dtype that its readers know."""
    target = exchange.target
    readers = list(exchange.result.uses)
    set_type(exchange.result, target.with_dtype(sent.dtype))
    cast = stg.CastOp(exchange.result, target.dtype)
    cast.result.name_hint = exchange.result.name_hint
    insert_after(exchange, [cast], NAME)
    for use in readers:
        use.operation.operands[use.index] = cast.result
