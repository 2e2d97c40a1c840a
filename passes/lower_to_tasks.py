"""Write down what each op costs and on which stream it runs.

Before `lower-to-tasks`:

    dist.mesh <dp = 1, tp = 2>
    stg.program "M" (%x : !stg.tensor<[B, D], bf16, partial [tp]>) {
      %w = stg.weight "w" : !stg.tensor<[D, F/tp], bf16>
      %s = dist.all_reduce "sum" %x over [tp] : !stg.tensor<[B, D], bf16, partial [tp]> -> !stg.tensor<[B, D], bf16>
      %y = stg.contract %s, %w over [D]
        : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[B, F/tp], bf16>
      stg.output
    }

After:

    dist.mesh <dp = 1, tp = 2>
    stg.program "M" (%x : !stg.tensor<[B, D], bf16, partial [tp]>) {
      %w = stg.weight "w" : !stg.tensor<[D, F/tp], bf16>
      %s = sched.collective "all_reduce" %x over [tp] on "comm.tp"
        : !stg.tensor<[B, D], bf16, partial [tp]> -> !stg.tensor<[B, D], bf16>
      %y = sched.compute "contract" (%s, %w) flops "2*B*D*F/tp" reads "2*B*D + 2*D*F/tp" writes "2*B*F/tp" on "compute"
        : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[B, F/tp], bf16>
      stg.output
    }

What follows (streams, memory, the trace) needs no more of an op than this. Collectives over axes of size one are views:
no simulator completes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec.analysis.cost import flops, is_free, op_bytes
from stagec.analysis.placement import is_input
from stagec.analysis.sizes import mesh_of
from stagec.dialects import dist, sched, stg
from stagec.rewriting import inherit, programs

NAME = "lower-to-tasks"


@dataclass(frozen=True)
class LowerToTasks(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        mesh = mesh_of(op)
        for program in programs(op):
            for inner in list(program.walk()):
                lowered = lower(inner, mesh)
                if lowered is not None:
                    replace(inner, lowered)


def lower(op: Operation, mesh: dict[str, int]) -> Operation | None:
    """The `sched` op for an op; nothing for structure, which stays."""
    if isinstance(op, dist.Collective):
        axes = [a for a in mesh if a in op.axes.data and mesh[a] > 1]
        if not axes:
            return sched.ViewOp(op.operand, op.target)
        kind = op.name.removeprefix("dist.")
        return sched.CollectiveOp(kind, op.operand, axes, op.target)
    if isinstance(op, dist.SliceOp) and (is_input(op.operand) or trivial(op, mesh)):
        return sched.ViewOp(op.operand, op.target)
    if isinstance(op, stg.TensorOp) and is_free(op):
        return sched.ViewOp(op.operands[0], op.results[0].type)
    if isinstance(op, stg.TensorOp | stg.OptimizerStepOp | stg.ZerosOp | dist.SliceOp):
        moved = op_bytes(op)
        return sched.ComputeOp(
            op.name.partition(".")[2],
            op.operands,
            op.result_types,
            flops(op),
            moved.read,
            moved.written,
        )
    return None


def trivial(op: dist.SliceOp, mesh: dict[str, int]) -> bool:
    return all(mesh.get(a, 1) == 1 for a in op.axes.data)


def replace(op: Operation, lowered: Operation) -> None:
    inherit(lowered, op)
    lowered.attributes |= {
        k: v for k, v in op.attributes.items() if k in ("made_by", "scope", "phase")
    }
    names = [r.name_hint for r in op.results]
    Rewriter.replace_op(op, lowered)
    for result, name in zip(lowered.results, names, strict=True):
        result.name_hint = name
