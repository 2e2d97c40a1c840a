"""Keep what layers save for the backward pass in fewer bits.

Before `quantize-saved{what="exp" form="fp8_1x128"}`:

    stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
      %y, %es = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>)
          -> (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !stg.tensor<[B, D], bf16>>) {
        %e = stg.unary "exp" %h : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %e, %e : !stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>
      }
      %dx = stg.repeat "L" reverse carry(%dy = %y : !stg.tensor<[B, D], bf16>)
          slice(%s = %es : !stg.stack<"L" x !stg.tensor<[B, D], bf16>>)
          -> (!stg.tensor<[B, D], bf16>) attributes {phase = "bwd"} {
        %dm = stg.mul %dy, %s {phase = "bwd"}
          : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %dm : !stg.tensor<[B, D], bf16>
      }
      stg.output
    }

After:

    stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
      %y, %qs = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>)
          -> (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !stg.tensor<[B, D], fp8_1x128>>) {
        %e = stg.unary "exp" %h : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        %q = stg.quantize %e {phase = "fwd", made_by = "quantize-saved"} : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], fp8_1x128>
        stg.yield %e, %q : !stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], fp8_1x128>
      }
      %dx = stg.repeat "L" reverse carry(%dy = %y : !stg.tensor<[B, D], bf16>)
          slice(%s = %qs : !stg.stack<"L" x !stg.tensor<[B, D], fp8_1x128>>)
          -> (!stg.tensor<[B, D], bf16>) attributes {phase = "bwd"} {
        %d = stg.cast %s {phase = "bwd", made_by = "quantize-saved"} : (!stg.tensor<[B, D], fp8_1x128>) -> !stg.tensor<[B, D], bf16>
        %dm = stg.mul %dy, %d {phase = "bwd"}
          : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %dm : !stg.tensor<[B, D], bf16>
      }
      stg.output
    }

So DeepSeek-V3 keeps the inputs of SwiGLU, whose output is computed again of them (arXiv:2412.19437, section 3.3.3). `what` has names of ops, values and
modules, as for `recompute-activations`. Partial terms, whole numbers and what is in few bits already stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass

from stagec.analysis.recompute_choice import call_of, kinds_of
from stagec.diagnostics import CompileError, Diagnostic, Span, quoted
from stagec.dialects import dist, stg
from stagec.dialects.op import ancestor_in
from stagec.dialects.types import FLOATS, QUANTIZED, TensorType
from stagec.rewriting import inherit, insert_before, programs
from stagec.rewriting.saved_values import BlockPair, levels_of, remove_unread

NAME = "quantize-saved"


@dataclass(frozen=True)
class QuantizeSaved(ModulePass):
    name = NAME

    what: tuple[str, ...]
    """Names of ops, values and modules. One that nothing saved is called is E0401."""
    form: str = "fp8_1x128"
    """The format in which they are kept."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        met: set[str] = set()
        saved: dict[str, None] = {}
        for program in programs(op):
            levels = levels_of(program)
            for level in levels:
                if level.outer is not None:
                    Quantizing(self, level, met, saved).run()
            remove_unread(levels)
        if unmet := [word for word in self.what if word not in met]:
            found = programs(op)
            span = dist.clause_span(found[0], "precision.given.saved_values") if found else None
            raise CompileError([nothing_saved(word, self.form, span, [*saved]) for word in unmet])


def nothing_saved(word: str, form: str, span: Span | None, saved: Sequence[str]) -> Diagnostic:
    message = f"no repeated layer saves a value of `{word}` that could be kept in {form}"
    help_ = "leave `saved_values` out: no repeated layer saves any value that could"
    if saved:
        help_ = f"there are values of {quoted(saved)}"
    return Diagnostic("E0401", message, span, help=help_)


@dataclass
class Quantizing:
    """One level: a layer's forward pass, and its backward pass."""

    options: QuantizeSaved
    level: BlockPair
    met: set[str]
    saved: dict[str, None]
    """What may be named of the values that could be kept in fewer bits: a word for each."""

    def run(self) -> None:
        for argument, value in self.level.saved().items():
            readers = [ancestor_in(self.level.backward, use.operation) for use in argument.uses]
            if readers and self.is_chosen(value):
                small = self.level.use(self.quantized(value))
                argument.replace_all_uses_with(self.wide(small, argument, readers))

    def is_chosen(self, value: SSAValue) -> bool:
        """Whether a value is this layer's, floats of a width that can be less, and asked for."""
        if isinstance(value, BlockArgument) or not self.level.defines(value):
            return False
        op, kind = value.owner, value.type
        assert isinstance(op, Operation)
        if not isinstance(kind, TensorType) or kind.partial:
            return False
        if kind.dtype not in FLOATS or kind.dtype in QUANTIZED:
            return False
        words = {*stg.names_of(op), *kinds_of(op)}
        self.saved |= dict.fromkeys([*stg.names_of(op), *sorted(kinds_of(op))][:1])
        while isinstance(op, dist.CollectiveBase) and isinstance(op.operand.owner, Operation):
            # What arrives is what was sent.
            op = op.operand.owner
            words |= {*stg.names_of(op)}
        words |= {word for word in self.options.what if call_of(op, (word,))}
        asked = words.intersection(self.options.what)
        self.met |= asked
        return bool(asked)

    def quantized(self, value: SSAValue) -> SSAValue:
        """In the forward pass, where the value is made."""
        maker = value.owner
        assert isinstance(maker, Operation)
        op = stg.QuantizeOp(value, self.options.form)
        stg.marks(op)["phase"] = StringAttr("fwd")
        inherit(op, maker, NAME)
        self.level.forward.insert_op_after(op, maker)
        return op.result

    def wide(self, small: SSAValue, argument: SSAValue, readers: list[Operation]) -> SSAValue:
        """In the backward pass, before the first op that reads it."""
        block = self.level.backward
        first = min(readers, key=block.get_operation_index)
        assert isinstance(argument.type, TensorType)
        op = stg.CastOp(small, argument.type.dtype)
        late = all(stg.phase_of(reader) == "wgrad" for reader in readers)
        stg.marks(op)["phase"] = StringAttr("wgrad" if late else "bwd")
        insert_before(first, [op], NAME)
        return op.result
