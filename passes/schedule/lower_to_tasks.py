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
      %s = sched.collective "all_reduce" (%x) over [tp] in "bf16" bytes "2*B*D" to "2*B*D" on "comm.tp" effects <overwrites 0 by 0 alone>
        : (!stg.tensor<[B, D], bf16, partial [tp]>) -> !stg.tensor<[B, D], bf16>
      %y = sched.compute "contract" (%s, %w) flops "2*B*D*F/tp" reads "2*B*D + 2*D*F/tp" writes "2*B*F/tp" on "compute" as product effects <dense>
        : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[B, F/tp], bf16>
      stg.output
    }

What follows (streams, memory, the trace) needs no more of an op than this. Collectives over axes of size one are views:
no simulator completes them. An op that reads terms of a sum over ranks, and makes no terms of one, is E0709: nobody sums them.

The nodes are those of Chakra (arXiv:2305.14516): computation with its FLOPs and bytes, communication with its size, as
STAGE writes them (arXiv:2511.10480).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from stagec.analysis.communication import COMMUNICATION_KINDS, communication_kind
from stagec.analysis.contexts import Contexts
from stagec.analysis.plug_in_ops import check_lowered
from stagec.analysis.sizes import averages, mesh_of, size_values
from stagec.diagnostics import refused, span_of
from stagec.dialects import sched, stg
from stagec.dialects.attributes import SizeAttr
from stagec.dialects.interfaces import CostInterface, TaskInterface
from stagec.dialects.types import ValueType, tensor_of
from stagec.rewriting import programs, rewrite
from stagec.symbolic import Size, conditions
from stagec.symbolic.conditions import unread, unrecorded

NAME = "lower-to-tasks"


@dataclass(frozen=True)
class LowerToTasks(ModulePass):
    name = NAME

    serial: tuple[str, ...] = ()
    """Kinds of communication that computation waits for, and that wait for it: `tp`, `zero`, `p2p`, ..."""

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.serial if kind not in COMMUNICATION_KINDS]
        if unknown:
            known = ", ".join(COMMUNICATION_KINDS)
            raise ValueError(f"`serial` lists kinds of communication: {known}, not `{unknown[0]}`")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        mesh, contexts = mesh_of(op), Contexts.of(op).axes()
        with unrecorded():
            values = unread(size_values(op))
        rewrite(op, LowerOne(mesh, contexts, self.serial, averages(op), values), once=True)
        note_what_runs(op)


def note_what_runs(module: ModuleOp) -> None:
    """Note which repeats run at all: ops of one that does not are in no row of any rank, so that nobody counts them."""
    values = size_values(module)
    for program in programs(module):
        for op in program.walk():
            if isinstance(op, stg.RepeatOp) and op.count.data.names <= values.keys():
                conditions.compare(op.count.data, ">", 0, values)


KEPT = (
    "scope",
    "phase",
    "late",
    stg.LEAVES,
    stg.OF_STAGE,
    stg.ISSUED,
    stg.UNIT,
    stg.EVICTED,
    "made_by",
    "prefetch",
    "lag",
    "apart",
    "gives_way",
    "leaves_units",
    "home",
    stg.BEGINS_UNIT,
    stg.HOOK,
    stg.GRADIENT_OF,
    stg.FOLLOWS_UNIT,
)
"""What passes said of an op that still holds."""


@dataclass(frozen=True)
class LowerOne(RewritePattern):
    """Each op says itself which tasks it becomes; structure (`stg.repeat`, `stg.accumulate`) stays."""

    mesh: Mapping[str, int]
    contexts: Sequence[str]
    """The axes that attention's sequence is split over."""
    serial: Sequence[str]
    averages: Mapping[str, Size]
    """The dims that need be no whole numbers: costs are of their exact sizes."""
    values: Mapping[str, int]
    """Of sizes, against which what ops become is held."""

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, TaskInterface):
            return
        check_sums(op, self.mesh)
        lowered = op.lowered(self.mesh)
        check_lowered(op, lowered, self.values)
        purpose = communication_kind(op, self.contexts)
        is_serial = purpose in self.serial or "serial" in stg.marks(op)
        gives_way = purpose == "ep" and not is_serial and stg.phase_of(op) != "grad_reduce"
        marks = stg.marks(op)
        said = set(marks)
        kept = {key: marks[key] for key in KEPT if key in said}
        for made in lowered:
            self.write_out(made)
            if (
                is_serial
                and isinstance(made, sched.NodeOp)
                and not isinstance(made, sched.ComputeOp)
            ):
                stg.marks(made)["serial"] = UnitAttr()
            if gives_way and isinstance(made, sched.CollectiveOp):
                stg.marks(made)["gives_way"] = UnitAttr()
            stg.marks(made).take(kept)
            # Of what an op becomes, the first.
            kept.pop(stg.BEGINS_UNIT, None)
            kept.pop(stg.FOLLOWS_UNIT, None)
        results = [r for made in lowered for r in made.results]
        rewriter.replace(op, lowered, results[len(results) - len(op.results) :])

    def write_out(self, made: Operation) -> None:
        """Say costs in names that are whole numbers."""
        for name, attribute in made.properties.items() if self.averages else ():
            if isinstance(attribute, SizeAttr) and attribute.data.names & self.averages.keys():
                made.properties[name] = SizeAttr(attribute.data.substitute(self.averages))


def check_sums(op: TaskInterface, mesh: Mapping[str, int]) -> None:
    """E0709 for an op that computes with terms of a sum over ranks as if they were the sum: what it makes is no terms of one."""
    if not isinstance(op, CostInterface):
        return
    made = {axis for result in op.results for axis in terms_over(result)}
    for operand in op.operands:
        for axis in terms_over(operand):
            if axis not in made and mesh.get(axis, 1) > 1:
                message = f"`{op.name}` reads terms of a sum over `{axis}`, which nobody has summed"
                notes = (f"an operand is a `{operand.type}`",)
                help_ = "reduce it first: `reduce-gradients` does that of gradients, `insert-collectives` of others"
                raise refused("E0709", message, span_of(op.location), notes=notes, help=help_)


def terms_over(value: SSAValue) -> tuple[str, ...]:
    """The axes along which each rank has a term of a sum."""
    return tensor_of(value.type).partial if isinstance(value.type, ValueType) else ()
