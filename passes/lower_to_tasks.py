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
      %s = sched.collective "all_reduce" (%x) over [tp] in "bf16" bytes "2*B*D" to "2*B*D" on "comm.tp"
        : (!stg.tensor<[B, D], bf16, partial [tp]>) -> !stg.tensor<[B, D], bf16>
      %y = sched.compute "contract" (%s, %w) flops "2*B*D*F/tp" reads "2*B*D + 2*D*F/tp" writes "2*B*F/tp" on "compute"
        : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[B, F/tp], bf16>
      stg.output
    }

What follows (streams, memory, the trace) needs no more of an op than this. Collectives over axes of size one are views:
no simulator completes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, UnitAttr
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec import symbolic
from stagec.analysis.contexts import Contexts
from stagec.analysis.cost import elements, flops, is_free, num_bytes, op_bytes
from stagec.analysis.placement import is_input
from stagec.analysis.sizes import mesh_of
from stagec.dialects import dist, sched, stg
from stagec.dialects.types import tensor_of, with_dtype
from stagec.rewriting import inherit, programs
from stagec.symbolic import Size

NAME = "lower-to-tasks"


@dataclass(frozen=True)
class LowerToTasks(ModulePass):
    name = NAME

    serial: tuple[str, ...] = ()
    """Kinds of communication that computation waits for, and that wait for it: `tp`, `zero`, `p2p`, ..."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        mesh, along = mesh_of(op), Contexts.of(op).axes()
        for program in programs(op):
            for inner in list(program.walk()):
                lowered = lower(inner, mesh)
                if lowered:
                    replace(inner, lowered, communication_kind(inner, along) in self.serial)


KEPT = ("made_by", "scope", "phase", "prefetch", "lag", "late", "apart", "in_place")
"""What passes said of an op that still holds."""


def lower(op: Operation, mesh: dict[str, int]) -> list[Operation]:
    """The `sched` ops for an op; none for structure, which stays."""
    if isinstance(op, dist.Collective):
        return lower_collective(op, mesh)
    if isinstance(op, dist.StorageOp):
        return lower_storage(op, mesh)
    if isinstance(op, dist.RotateOp | dist.GatherBlocksOp | dist.SendOp | dist.RecvOp):
        return [lower_transfer(op, mesh)]
    if isinstance(op, dist.ExchangeCountsOp):
        axes, size = spread(op.axes.data, mesh), num_bytes(op.counts)
        if not axes:
            return [sched.ViewOp(op.counts, op.result.type)]
        dtype = tensor_of(op.counts.type).dtype
        types = [op.result.type]
        return [sched.CollectiveOp("all_to_all", [op.counts], axes, types, dtype, size, size)]
    if isinstance(op, dist.WaitOp):
        return [sched.ComputeOp("wait", op.values, [], symbolic.ZERO, symbolic.ZERO, symbolic.ZERO)]
    if isinstance(op, dist.PieceOp):
        return [sched.ViewOp(op.shard, op.piece.type)]
    if isinstance(op, stg.ChunkOp | stg.JoinChunksOp):
        return [sched.ViewOp(op.operands[0], op.results[0].type)]
    if isinstance(op, dist.JoinPiecesOp):
        # The last piece is there when all are: they came one after the other.
        return [sched.ViewOp(op.pieces[-1], op.whole.type)]
    if isinstance(op, dist.TakeGradientOp):
        return [lower_take(op)]
    if isinstance(op, dist.StageSendOp):
        return [sched.StageSendOp(op.direction.data, op.number.value.data, op.value)]
    if isinstance(op, dist.HostOp):
        size = symbolic.total(num_bytes(v) for v in op.values)
        direction = op.name.removeprefix("dist.")
        return [sched.HostCopyOp(direction, op.values, op.result_types, size)]
    if isinstance(op, dist.StageRecvOp):
        return [
            sched.StageRecvOp(op.direction.data, op.number.value.data, tensor_of(op.value.type))
        ]
    if isinstance(op, dist.SliceOp) and (is_input(op.operand) or not spread(op.axes.data, mesh)):
        return [sched.ViewOp(op.operand, op.target)]
    if isinstance(op, stg.TensorOp) and is_free(op):
        return [sched.ViewOp(op.operands[0], result.type) for result in op.results]
    if isinstance(op, stg.TensorOp | stg.OptimizerStepOp | stg.ZerosOp | dist.SliceOp):
        return [lower_compute(op)]
    return []


def communication_kind(op: Operation, contexts: Sequence[str]) -> str:
    """What a communication is for, in the words of a plan's `overlap`; empty for computation.

    `contexts` are the axes that attention's sequence is split over.
    """
    moves = (dist.Collective, dist.RotateOp, dist.GatherBlocksOp, dist.SendOp, dist.RecvOp)
    if isinstance(op, moves) and set(op.axes.data) <= set(contexts):
        return "cp"
    if isinstance(op, dist.StorageOp):
        return "zero"
    if isinstance(op, dist.StageSendOp | dist.StageRecvOp):
        return "p2p"
    return stg.text(op, "purpose", "tp") if isinstance(op, moves) else ""


def lower_compute(op: Operation) -> Operation:
    moved = op_bytes(op)
    return sched.ComputeOp(
        op.name.partition(".")[2],
        op.operands,
        op.result_types,
        flops(op),
        moved.read,
        moved.written,
    )


def lower_take(op: dist.TakeGradientOp) -> Operation:
    """Another stage's gradient is there; adding it reads both and writes one."""
    taken = sched.TakenOp(op.weight.data, op.number.value.data, op.gradient.type)
    inherit(taken, op)
    block = op.parent_block()
    assert block is not None
    block.insert_op_before(taken, op)
    values = [op.gradient, taken.value]
    size = num_bytes(op.gradient)
    return sched.ComputeOp("add", values, [op.total.type], elements(op.gradient), 2 * size, size)


def spread(axes: Sequence[str], mesh: Mapping[str, int]) -> list[str]:
    """The axes along which there is more than one rank, in mesh order."""
    return [a for a in mesh if a in axes and mesh[a] > 1]


def lower_collective(op: dist.Collective, mesh: Mapping[str, int]) -> list[Operation]:
    axes = spread(op.axes.data, mesh)
    if not axes:
        return [sched.ViewOp(op.operand, op.target)]
    kind = op.name.removeprefix("dist.")
    source, target = op.source, op.target
    sizes = (source.num_bytes, target.num_bytes)
    if isinstance(op, dist.AllToAllOp) and op.load is not None:
        sizes = (exchanged(op, op.load.data),) * 2
    return [sched.CollectiveOp(kind, [op.operand], axes, [target], source.dtype, *sizes)]


def exchanged(op: dist.AllToAllOp, load: str) -> Size:
    """The size that all members name: what the one that gets most gets."""
    own = next(t for t in (op.source, op.target) if load in t.names)
    return own.with_names({load: f"{load}{dist.MAX}"}).num_bytes


def lower_transfer(
    op: dist.RotateOp | dist.GatherBlocksOp | dist.SendOp | dist.RecvOp, mesh: Mapping[str, int]
) -> Operation:
    """One flat buffer of all values, handed on or gathered."""
    axes = spread(op.axes.data, mesh)
    values = op.outputs if isinstance(op, dist.RecvOp) else op.values
    dtype = tensor_of(values[0].type).dtype
    size = symbolic.total(num_bytes(v) for v in values)
    match op:
        case dist.RotateOp():
            return sched.CollectiveOp(
                "all_to_all", op.values, axes, op.result_types, dtype, size, size
            )
        case dist.GatherBlocksOp():
            whole = size * symbolic.product(map(symbolic.symbol, axes))
            return sched.CollectiveOp(
                "all_gather", op.values, axes, op.result_types, dtype, size, whole
            )
        case dist.SendOp():
            return sched.SendOp(
                op.values, axes, op.to.value.data, op.channel.value.data, dtype, size
            )
        case dist.RecvOp():
            return sched.RecvOp(
                op.result_types, axes, op.source.value.data, op.channel.value.data, dtype, size
            )


STORAGE_KINDS = {
    dist.UnshardOp: "all_gather",
    dist.ReduceShardOp: "reduce_scatter",
    dist.AllReduceShardOp: "all_reduce",
    dist.AllReduceGradientOp: "all_reduce",
    dist.AllReduceTiedOp: "all_reduce",
}


def lower_storage(op: dist.StorageOp, mesh: Mapping[str, int]) -> list[Operation]:
    """One collective for all parameters of a unit, of the bytes that travel: padded shards, in `dtype`."""
    axes = spread(op.axes.data, mesh)
    if isinstance(op, dist.TakeShardOp) or not axes:
        pairs = zip(op.values, op.outputs, strict=True)
        return [sched.ViewOp(value, output.type) for value, output in pairs]
    kind = STORAGE_KINDS[type(op)]
    smaller = op.values if kind == "all_gather" else op.outputs
    part = symbolic.total(elements(v) for v in smaller) * op.element_bytes
    whole = part * symbolic.product(map(symbolic.symbol, axes))
    sizes = {"all_gather": (part, whole), "reduce_scatter": (whole, part)}.get(kind, (part, part))
    copies = [copy_in(op)] if "copied" in op.attributes else []
    values = copies[0].outputs if copies else op.values
    made = sched.CollectiveOp(
        kind, values, axes, op.result_types, op.dtype.data, *sizes, bucket=bucket_of(op)
    )
    if isinstance(op, dist.AllReduceTiedOp):
        made.attributes["tied"] = op.weight
    return [*copies, made]


def copy_in(op: dist.StorageOp) -> sched.ComputeOp:
    """The kernel that fills the buffer that is sent, in its dtype (`foreach_reduce_scatter_copy_in` in FSDP2)."""
    types = [with_dtype(value.type, op.dtype.data) for value in op.values]
    read = symbolic.total(num_bytes(value) for value in op.values)
    written = symbolic.total(elements(value) for value in op.values) * op.element_bytes
    return sched.ComputeOp(sched.COPY_IN, op.values, types, symbolic.ZERO, read, written)


def bucket_of(op: Operation) -> tuple[int, int] | None:
    """Bucket sizes that `bucket-gradients` asked for."""
    sizes = [op.attributes.get(key) for key in ("bucket_bytes", "first_bucket_bytes")]
    numbers = [s.value.data for s in sizes if isinstance(s, IntegerAttr)]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None


def replace(op: Operation, lowered: Sequence[Operation], serial: bool) -> None:
    for made in lowered:
        inherit(made, op)
        if serial and isinstance(made, sched.NODES) and not isinstance(made, sched.ComputeOp):
            made.attributes["serial"] = UnitAttr()
        made.attributes |= {k: v for k, v in op.attributes.items() if k in KEPT}
    names = [r.name_hint for r in op.results]
    results = [r for made in lowered for r in made.results][-len(names) :] if names else []
    Rewriter.replace_op(op, list(lowered), results)
    for result, name in zip(results, names, strict=True):
        result.name_hint = name
