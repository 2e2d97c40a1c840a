"""Let linear layers multiply quantized operands, as in training in fp8.

Before `quantize-products{inputs="fp8_1x128" weights="fp8_128x128"}`:

    stg.program "M" (%x : !stg.tensor<[B, S/tp, D], bf16>) {
      %w = stg.weight "up" : !stg.stack<"L" x !stg.tensor<[D, F/tp], bf16>>
      %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, S/tp, D], bf16>)
          slice(%u = %w : !stg.stack<"L" x !stg.tensor<[D, F/tp], bf16>>) -> (!stg.tensor<[B, S/tp, D], bf16>) {
        %g = dist.reshard %h : !stg.tensor<[B, S/tp, D], bf16> -> !stg.tensor<[B, S, D], bf16>
        %p = stg.contract %g, %u over [D]
          : (!stg.tensor<[B, S, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[B, S, F/tp], bf16>
        "test.op"(%p) : (!stg.tensor<[B, S, F/tp], bf16>) -> ()
        stg.yield %h : !stg.tensor<[B, S/tp, D], bf16>
      }
      stg.output %y : !stg.tensor<[B, S/tp, D], bf16>
    }

After:

    stg.program "M" (%x : !stg.tensor<[B, S/tp, D], bf16>) {
      %w = stg.weight "up" : !stg.stack<"L" x !stg.tensor<[D, F/tp], bf16>>
      %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, S/tp, D], bf16>)
          slice(%u = %w : !stg.stack<"L" x !stg.tensor<[D, F/tp], bf16>>) -> (!stg.tensor<[B, S/tp, D], bf16>) {
        %g = dist.reshard %h : !stg.tensor<[B, S/tp, D], bf16> -> !stg.tensor<[B, S, D], bf16>
        %q = stg.quantize %g {made_by = "quantize-products"} : (!stg.tensor<[B, S, D], bf16>) -> !stg.tensor<[B, S, D], fp8_1x128>
        %v = stg.quantize %u {made_by = "quantize-products"} : (!stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[D, F/tp], fp8_128x128>
        %p = stg.contract %q, %v over [D] {made_by = "quantize-products"}
          : (!stg.tensor<[B, S, D], fp8_1x128>, !stg.tensor<[D, F/tp], fp8_128x128>) -> !stg.tensor<[B, S, F/tp], bf16>
        "test.op"(%p) : (!stg.tensor<[B, S, F/tp], bf16>) -> ()
        stg.yield %h : !stg.tensor<[B, S/tp, D], bf16>
      }
      stg.output %y : !stg.tensor<[B, S/tp, D], bf16>
    }

A linear layer is a product by a weight in a repeat, as Transformer Engine's modules stand in layers; the head, embeddings and attention stay wide
(DeepSeek-V3, arXiv:2412.19437, section 3.3.1), and so do modules and weights that are named (`wide`). `build-backward` then quantizes what comes
back, multiplies that by quantized operands too, and saves them instead of wide ones. What several products read is quantized once. `stored` is how weights
are stored that these products alone read; empty: as they are, and they are quantized where they are used. Those that learn may be `gathered` wider under ZeRO 1
and 2 than they are stored, as Megatron-LM does it in mxfp8. A weight that is stored in the format already is
read as it is.

Without formats for products (`weights` is empty) frozen weights alone are stored in fewer bits, and each product reads what a kernel makes of one: so QLoRA
has its base (`MatMul4Bit` in bitsandbytes, which does it again in the backward pass; `recompute-activations` sees to that by the name `dequantize`).
E0401 if there are none.

Without a backward pass (`inputs` is empty) weights alone change: engines read quantized checkpoints, and their measured products convert what else they read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.ir import Block, Operation, SSAValue, Use
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from stagec.analysis.recompute_choice import call_of, kinds_of
from stagec.analysis.units import names_weight
from stagec.diagnostics import CompileError, Diagnostic
from stagec.dialects import dist, stg
from stagec.dialects.op import block_of
from stagec.dialects.types import StackType, TensorType, tensor_of
from stagec.dialects.use_def import followed, from_stack, through
from stagec.rewriting import programs, rewrite, set_type

NAME = "quantize-products"
DEQUANTIZE = "dequantize"
"""The name of what is made of a weight."""


@dataclass(frozen=True)
class QuantizeProducts(ModulePass):
    name = NAME

    inputs: str
    """The format of activations, and of what comes back; empty: they stay as they are."""
    weights: str
    """The format of weights; empty: products are of what is made of them again."""
    wide: tuple[str, ...] = ()
    """Modules and weights whose products stay as they are."""
    wide_weight_gradient: bool = False
    """Weights' gradients are products of what was quantized."""
    stored: str = ""
    """How weights are stored that only these products read; empty: as they are."""
    gathered: str = ""
    """In which dtype those of them are gathered that learn, before each device makes what it stores; empty: as they are stored."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in programs(op):
            quantize = QuantizeOperands(self)
            rewrite(program, quantize, NAME, once=True)
            if self.stored:
                rewrite(program, StoreQuantized(self.gathered), NAME, once=True)
            if not self.weights and not quantize.made:
                message = "no frozen weight is one of a product of repeated blocks"
                span = dist.clause_span(program, "precision.given.product_weights")
                help_ = "name some in `freeze`, or leave `product_weights` out"
                raise CompileError([Diagnostic("E0401", message, span, help=help_)])


@dataclass(frozen=True)
class QuantizeOperands(RewritePattern):
    """Quantizes what a layer's product by a weight reads; or a frozen weight alone, of which what the product reads is made again."""

    options: QuantizeProducts
    made: dict[tuple[Block, SSAValue], SSAValue] = field(default_factory=dict)
    """What is quantized in a block already."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: stg.ContractOp, rewriter: PatternRewriter) -> None:
        weights = [position for position in (0, 1) if weight_behind(op.operands[position])]
        if len(weights) != 1 or not is_in_layer(op):
            return
        (position,) = weights
        weight, read = op.operands[position], op.operands[1 - position]
        cast = weight.owner
        weight = as_stored(weight, self.options.weights)
        if self.is_wide(op, weight):
            return
        if not self.options.weights:
            self.dequantize(op, position, rewriter)
        elif not tensor_of(read.type).partial:
            quantized = stg.ContractOp(
                self.quantized(read, self.options.inputs, op, rewriter),
                self.quantized(weight, self.options.weights, op, rewriter),
                op.over.data,
                tensor_of(op.result.type).names,
                tensor_of(op.result.type).dtype,
            )
            stg.marks(quantized).take(stg.marks(op))
            if self.options.wide_weight_gradient:
                stg.marks(quantized)[stg.WIDE_WEIGHT_GRADIENT] = UnitAttr()
            rewriter.replace(op, quantized)
        if isinstance(cast, stg.CastOp) and not cast.result.uses:
            rewriter.erase(cast)

    def dequantize(self, op: stg.ContractOp, position: int, rewriter: PatternRewriter) -> None:
        """Let a product read what is made of a frozen weight in fewer bits."""
        read = op.operands[position]
        weight = read.owner.x if isinstance(read.owner, stg.CastOp) else read
        found = followed(weight, from_stack).owner
        if isinstance(found, stg.WeightOp) and found.frozen is not None:
            narrow = self.quantized(weight, self.options.stored, op, rewriter)
            made = stg.CastOp(narrow, tensor_of(read.type).dtype)
            stg.add_names(made, [DEQUANTIZE])
            op.operands[position] = rewriter.insert(made).result

    def is_wide(self, op: Operation, weight: SSAValue) -> bool:
        source, wide = source_of(weight), self.options.wide
        assert isinstance(source, stg.WeightOp)
        is_peeled = stg.marks(source).get("made_by") == StringAttr("peel-layers")
        return bool(call_of(op, wide)) or names_weight(source.path.data, wide, is_peeled)

    def quantized(
        self, value: SSAValue, form: str, before: stg.ContractOp, rewriter: PatternRewriter
    ) -> SSAValue:
        if not form or tensor_of(value.type).dtype == form:
            return value
        key = (block_of(before), value)
        if key not in self.made:
            op = stg.QuantizeOp(value, form, before.over.data, before.products_apart())
            if isinstance(value.owner, stg.TensorOp):
                # It goes with what it is made of: computed again where that is.
                stg.add_names(op, [*stg.names_of(value.owner), *sorted(kinds_of(value.owner))])
            self.made[key] = rewriter.insert(op).result
        return self.made[key]


def is_in_layer(op: Operation) -> bool:
    parent = op.parent_op()
    return isinstance(parent, stg.RepeatOp) and stg.STEPS not in stg.marks(parent)


def weight_behind(value: SSAValue) -> str:
    """The path of the weight that a value is, in the dtype or the place that its readers want; nothing if it is none."""
    found = source_of(value)
    return found.path.data if isinstance(found, stg.WeightOp) else ""


def source_of(value: SSAValue) -> Operation | Block:
    """What makes the weight that a value is, or what else it is."""
    same = through(stg.CastOp, stg.RenameOp, stg.TransposeOp, dist.ReshardOp)
    return followed(value, from_stack, same).owner


def as_stored(value: SSAValue, form: str) -> SSAValue:
    """A weight that is stored in a format already, and that others read in a wider one."""
    made = value.owner
    if isinstance(made, stg.CastOp) and tensor_of(made.x.type).dtype == form:
        return made.x
    return value


@dataclass(frozen=True)
class StoreQuantized(RewritePattern):
    """Stores what only quantized products read as these read it, and lets it be `gathered` in that dtype, if any."""

    gathered: str

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: stg.WeightOp, rewriter: PatternRewriter) -> None:
        readers = [use.operation for use in uses_of(op.weight)]
        if not readers or not all(isinstance(each, stg.QuantizeOp) for each in readers):
            return
        quantized = tensor_of(readers[0].results[0].type)
        op.properties["own"] = UnitAttr()
        if self.gathered and op.frozen is None:
            op.properties["gathered"] = StringAttr(self.gathered)
        for value in values_of(op.weight):
            assert isinstance(value.type, TensorType | StackType)
            stored = tensor_of(value.type).with_form_of(quantized)
            if isinstance(value.type, StackType):
                set_type(value, value.type.with_tensor(stored))
            else:
                set_type(value, stored)
        for reader in dict.fromkeys(readers):
            rewriter.replace(reader, [], reader.operands)


def values_of(value: SSAValue) -> Iterator[SSAValue]:
    """A stack and its slices, in repeats of repeats too."""
    yield value
    for use in value.uses:
        if isinstance(use.operation, stg.RepeatOp):
            yield from values_of(use.operation.body.block.args[use.index])


def uses_of(value: SSAValue) -> Iterator[Use]:
    """Who reads a value, or slices of it."""
    for each in values_of(value):
        yield from (use for use in each.uses if not isinstance(use.operation, stg.RepeatOp))
