"""Quantize what is gathered for products before it travels.

Before `gather-quantized`:

    %x = "test.op"() : () -> !stg.tensor<[B, S/tp, D], bf16>
    %g = dist.reshard %x : !stg.tensor<[B, S/tp, D], bf16> -> !stg.tensor<[B, S, D], bf16>
    %q = stg.quantize %g : (!stg.tensor<[B, S, D], bf16>) -> !stg.tensor<[B, S, D], fp8_1x128>
    "test.op"(%q) : (!stg.tensor<[B, S, D], fp8_1x128>) -> ()

After:

    %x = "test.op"() : () -> !stg.tensor<[B, S/tp, D], bf16>
    %q = stg.quantize %x : (!stg.tensor<[B, S/tp, D], bf16>) -> !stg.tensor<[B, S/tp, D], fp8_1x128>
    %g = dist.reshard %q {made_by = "gather-quantized"} : !stg.tensor<[B, S/tp, D], fp8_1x128> -> !stg.tensor<[B, S, D], fp8_1x128>
    "test.op"(%g) : (!stg.tensor<[B, S, D], fp8_1x128>) -> ()

Half of the bytes, and each rank quantizes its own part: so Transformer Engine gathers the input of a column-parallel layer and the output's gradient of a
row-parallel one (`gather_along_first_dim` with a quantizer). A gathered tensor that something else reads travels as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from stagec.dialects import dist, stg
from stagec.rewriting import rewrite, set_type

NAME = "gather-quantized"


@dataclass(frozen=True)
class GatherQuantized(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite(op, QuantizeFirst(), NAME)


@dataclass(frozen=True)
class QuantizeFirst(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: dist.ReshardOp, rewriter: PatternRewriter) -> None:
        reader, *others = [use.operation for use in op.result.uses] or [None]
        if others or not isinstance(reader, stg.QuantizeOp) or not is_gather(op):
            return
        form = stg.tensor_type(reader.result)
        small = stg.QuantizeOp(op.operand, form.dtype)
        set_type(small.result, op.source.with_form_of(form))
        stg.marks(small).take(stg.marks(reader))
        moved = dist.ReshardOp(small.result, op.target.with_form_of(form))
        stg.marks(moved).take(stg.marks(op))
        reader.result.replace_all_uses_with(moved.result)
        rewriter.erase(reader)
        rewriter.replace(op, [small, moved])


def is_gather(op: dist.ReshardOp) -> bool:
    """Whether each device ends up with more of the same tensor."""
    source, target = op.source, op.target
    if source.partial or target.partial or source.names != target.names:
        return False
    pairs = [(a.split, b.split) for a, b in zip(source.dims, target.dims, strict=True)]
    return all(before[: len(after)] == after for before, after in pairs)
