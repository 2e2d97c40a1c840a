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
in bf16, forward and backward (arXiv:2412.19437, section 3.3.3): what goes back along a combine is dispatched too. Scales
are counted if the dtype has some (`fp8_1x128`). A product that multiplies in this dtype reads what arrives as it came: one that it was quantized for, and,
in an engine, one by a quantized weight beside `inputs` of this dtype (DeepGEMM's kernels behind DeepEP's). So it is where experts are on another pool
(`cut-experts`): each cuts and casts its own end.

Where experts take their tokens from those of all devices (`gather-tokens`), these are cast before they are gathered, as TensorRT-LLM's `CutlassFusedMoE` does
(`run_post_quant_allgather`), and so are gradients of results. What comes back there is a sum, reduced in the dtype of its terms: a `combine` is E0312, as is
a dtype of an exchange that the model does not have.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern
from xdsl.rewriter import InsertPoint

from stagec.diagnostics import CompileError, Diagnostic
from stagec.dialects import dist, stg
from stagec.dialects.types import FLOATS, QUANTIZED
from stagec.rewriting import inherit, programs, rewrite, set_type

NAME = "cast-exchanges"


@dataclass(frozen=True)
class CastExchanges(ModulePass):
    name = NAME

    dispatch: str = ""
    """Dtype of tokens on the way to experts; empty: that which they have."""
    combine: str = ""
    """Dtype of what comes back."""
    inputs: str = ""
    """What products by quantized weights multiply these by, whether an op says so or their kernels convert it; empty: what they read."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        apart = any(isinstance(each, dist.ExpertsOp) for each in op.body.ops)
        gathers = [each for each in op.walk() if takes_gathered(each)]
        if gathers and self.combine:
            raise CompileError([summed(gathers[0])])
        exchanged = gathers or any(sender_of(each) or is_combined(each) for each in op.walk())
        if not apart and not exchanged:
            raise CompileError([nothing_exchanged(op)])
        if apart:
            rewrite(op, CastEnd(self.dispatch, self.combine), NAME, once=True)
        if self.dispatch:
            rewrite(op, CastDispatch(self.dispatch), NAME, once=True)
            rewrite(op, CastGathered(self.dispatch), NAME, once=True)
        if self.combine:
            rewrite(op, CastCombine(self.combine), NAME, once=True)
        rewrite(op, ReadAsItCame(self.inputs), NAME, once=True)


@dataclass(frozen=True)
class ReadAsItCame(RewritePattern):
    """Lets a product by a quantized weight read what arrived in the dtype that it multiplies."""

    dtype: str

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: stg.ContractOp, rewriter: PatternRewriter) -> None:
        for position, other in ((0, op.right), (1, op.left)):
            cast = op.operands[position].owner
            if not isinstance(cast, stg.CastOp) or stg.tensor_type(other).dtype not in QUANTIZED:
                continue
            if stg.tensor_type(cast.x).dtype == self.dtype:
                op.operands[position] = cast.x
                if not cast.result.uses:
                    rewriter.erase(cast)


def takes_gathered(op: Operation) -> bool:
    """Whether experts take their tokens from what was gathered of all devices."""
    is_own = isinstance(op, stg.DispatchOp) and bool(stg.tensor_type(op.routed).dims[0].split)
    return is_own and isinstance(op.operands[0].owner, dist.AllGatherOp)


def sender_of(op: Operation) -> stg.SendsTokens | None:
    """The op whose tokens an exchange brings to their experts, if it is one."""
    sender = op.operand.owner if isinstance(op, dist.AllToAllOp) else None
    return sender if isinstance(sender, stg.SendsTokens) else None


def is_combined(op: Operation) -> bool:
    """Whether an exchange brings back what experts made of tokens."""
    return isinstance(op, dist.AllToAllOp) and any(
        isinstance(use.operation, stg.CollectsTokens) for use in op.result.uses
    )


DTYPES = ("precision.given.dispatch", "precision.given.combine")


def nothing_exchanged(module: ModuleOp) -> Diagnostic:
    return Diagnostic(
        "E0312",
        "no tokens go to experts on other devices, so that no dtype is one of theirs",
        dist.clause_span(programs(module)[0], *DTYPES),
        help="leave `dispatch` and `combine` out of `precision`, or split the experts: `shard X over ep`",
    )


def summed(dispatch: Operation) -> Diagnostic:
    return Diagnostic(
        "E0312",
        "what experts make of gathered tokens is added up by a reduce-scatter, in the dtype of its terms",
        dist.clause_span(dispatch, DTYPES[1]),
        help="leave `combine` out of `precision`, or `exchange = all_gather` out of `collectives`",
    )


@dataclass(frozen=True)
class CastDispatch(RewritePattern):
    """Casts what is sent before it is copied. A dispatch that somebody else reads stays as it is. What arrived in this dtype goes on as it came."""

    dtype: str

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: dist.AllToAllOp, rewriter: PatternRewriter) -> None:
        sender = sender_of(op)
        if sender is None or op.source.dtype == self.dtype or not sender.sent.has_one_use():
            return
        cast_before_copies(sender, self.dtype, rewriter)
        cast_back(op.result, self.dtype, rewriter)


@dataclass(frozen=True)
class CastGathered(RewritePattern):
    """Casts tokens before they are gathered; experts take theirs of what came so, and whoever else reads it has it cast back."""

    dtype: str

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: stg.DispatchOp, rewriter: PatternRewriter) -> None:
        gather = op.x.owner
        if not takes_gathered(op) or not isinstance(gather, dist.AllGatherOp):
            return
        if gather.target.dtype != self.dtype:
            cast_operand(gather, self.dtype, rewriter)
            cast_back(gather.result, self.dtype, rewriter)
        if stg.tensor_type(op.routed).dtype != self.dtype:
            cast_operand(op, self.dtype, rewriter)
            cast_back(op.routed, self.dtype, rewriter)


def cast_before_copies(sender: stg.SendsTokens, dtype: str, rewriter: PatternRewriter) -> None:
    cast_operand(sender, dtype, rewriter)
    set_type(sender.sent, stg.tensor_type(sender.sent).with_dtype(dtype))


def cast_operand(
    op: stg.SendsTokens | dist.AllGatherOp, dtype: str, rewriter: PatternRewriter
) -> None:
    """Cast what an op moves, unless it came in this dtype."""
    came = op.operands[0].owner
    if isinstance(came, stg.CastOp) and stg.tensor_type(came.x).dtype == dtype:
        op.operands[0] = came.x
        if not came.result.uses:
            rewriter.erase(came)
    else:
        cast = stg.CastOp(op.operands[0], dtype)
        inherit(cast, op, NAME)
        rewriter.insert(cast, InsertPoint.before(op))
        op.operands[0] = cast.result


@dataclass(frozen=True)
class CastEnd(RewritePattern):
    """Casts at one end of a way to experts on another pool, or back."""

    dispatch: str
    combine: str

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self, op: dist.TowerSendOp | dist.TowerRecvOp, rewriter: PatternRewriter
    ) -> None:
        dtype = self.dispatch if op.direction.data == "forward" else self.combine
        value = op.value
        known = stg.tensor_type(value).dtype
        if not dtype or known == dtype or known not in FLOATS:
            return
        if isinstance(op, dist.TowerRecvOp):
            cast_back(value, dtype, rewriter)
        elif isinstance(value.owner, stg.SendsTokens) and value.has_one_use():
            cast_before_copies(value.owner, dtype, rewriter)
        else:
            op.operands[0] = rewriter.insert(stg.CastOp(value, dtype)).result


@dataclass(frozen=True)
class CastCombine(RewritePattern):
    """Casts what comes back on its way."""

    dtype: str

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: dist.AllToAllOp, rewriter: PatternRewriter) -> None:
        if is_combined(op) and op.source.dtype != self.dtype:
            op.operands[0] = rewriter.insert(stg.CastOp(op.operand, self.dtype)).result
            cast_back(op.result, self.dtype, rewriter)


def cast_back(arrived: SSAValue, dtype: str, rewriter: PatternRewriter) -> None:
    """What arrives in a dtype is cast to the one that its readers know."""
    target = stg.tensor_type(arrived)
    readers = list(arrived.uses)
    for use in list(readers):
        reader = use.operation
        if isinstance(reader, stg.QuantizeOp) and reader.result.type == target.with_dtype(dtype):
            # It arrives as a product reads it.
            readers.remove(use)
            reader.result.replace_all_uses_with(arrived)
            rewriter.erase(reader)
    set_type(arrived, target.with_dtype(dtype))
    if not readers:
        return
    cast = stg.CastOp(arrived, target.dtype)
    cast.result.name_hint = arrived.name_hint
    assert isinstance(arrived, OpResult)
    rewriter.insert(cast, InsertPoint.after(arrived.op))
    for use in readers:
        use.operation.operands[use.index] = cast.result
