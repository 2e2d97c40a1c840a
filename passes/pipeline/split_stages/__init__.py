"""Cut the layers into pipeline stages: one program per kind of stage, values handed over between them.

Before `split-stages{counts="L" axis="pp" stages=2}`:

    stg.dim "L" = "4"
    dist.mesh <pp = 2>
    stg.program "M" (%t : !stg.tensor<[B, D], bf16>) {
      %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
      stg.accumulate over "mb" {
        %x = stg.unary "exp" %t : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>)
            slice(%v = %w : !stg.stack<"L" x !stg.tensor<[D], bf16>>) -> (!stg.tensor<[B, D], bf16>) {
          %n = stg.mul %h, %v : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
          stg.yield %n : !stg.tensor<[B, D], bf16>
        }
        %z = stg.unary "log" %y : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield
      }
      stg.output
    }

After:

    stg.dim "L" = "4"
    dist.mesh <pp = 2>
    dist.stages ["first" 2, "last" 2] over "pp"
    stg.program "M" (%t : !stg.tensor<[B, D], bf16>) attributes {kind = "first"} {
      %w = stg.weight "w" : !stg.stack<"stage.layers0" x !stg.tensor<[D], bf16>>
      stg.accumulate over "mb" {
        %x = stg.unary "exp" %t : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        %y = stg.repeat "stage.layers0" carry(%h = %x : !stg.tensor<[B, D], bf16>)
            slice(%v = %w : !stg.stack<"stage.layers0" x !stg.tensor<[D], bf16>>) -> (!stg.tensor<[B, D], bf16>) {
          %n = stg.mul %h, %v : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
          stg.yield %n : !stg.tensor<[B, D], bf16>
        }
        dist.stage_send "forward" 0 %y {made_by = "split-stages", phase = "fwd"} : !stg.tensor<[B, D], bf16>
        stg.yield
      }
      stg.output
    }
    stg.program "M" (%t : !stg.tensor<[B, D], bf16>) attributes {kind = "last"} {
      %w = stg.weight "w" : !stg.stack<"stage.layers0" x !stg.tensor<[D], bf16>>
      stg.accumulate over "mb" {
        %x = dist.stage_recv "forward" 0 {made_by = "split-stages", phase = "fwd"} : !stg.tensor<[B, D], bf16>
        %y = stg.repeat "stage.layers0" carry(%h = %x : !stg.tensor<[B, D], bf16>)
            slice(%v = %w : !stg.stack<"stage.layers0" x !stg.tensor<[D], bf16>>) -> (!stg.tensor<[B, D], bf16>) {
          %n = stg.mul %h, %v : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
          stg.yield %n : !stg.tensor<[B, D], bf16>
        }
        %z = stg.unary "log" %y : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield
      }
      stg.output
    }

What comes before the layers is the first stage's, what comes after them the last one's. A value that is used further down than
the next stage is handed from stage to stage, and so is its cotangent on the way back. A weight used on two stages (tied
embeddings) is on both; its gradient is summed over their ranks.

A pipeline over what is not repeated is E0405; where another pass made repeats of the same count,
it cannot be run (E0705).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec.analysis.sizes import size_values
from stagec.diagnostics import CompileError, Diagnostic, refused
from stagec.dialects import dist, stg
from stagec.dialects.types import tensor_of
from stagec.passes.pipeline.split_stages.cuts import (
    Cuts,
    Range,
    boundary,
    find_cuts,
    kind_names,
    stage_ranges,
)
from stagec.passes.pipeline.split_stages.stage_program import StageProgram
from stagec.passes.pipeline.split_stages.transfer_parts import TransferParts
from stagec.pipeline_schedule import num_stages, stage_placement
from stagec.rewriting import insert_after, insert_before, programs, set_type
from stagec.schedules import Placement
from stagec.symbolic import Size, conditions, constant, size

NAME = "split-stages"
LISTED = 1024
"""A help lists the layers of at most so many stages."""


@dataclass(frozen=True)
class SplitStages(ModulePass):
    name = NAME

    counts: tuple[str, ...]
    """The repeats that are cut, by their counts."""
    axis: str
    """The mesh axis of the stages."""
    stages: int = 0
    """Virtual stages in all; 0: as many as the schedule runs."""
    first: int = 0
    """Layers that the first stage has more than others; negative: fewer."""
    last: int = 0
    """The same of the last stage."""
    layers: tuple[int, ...] = ()
    """Layers of each virtual stage, instead of an even division."""
    scatter_gather: bool = False
    """Whether ranks that have the same value send a part of it each, which the receivers gather."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        values = size_values(op)
        stages = self.stages or len(stage_placement(op) or [()])
        every = constant(self.stages) if self.stages else num_stages(op)
        for program in programs(op):
            if self.scatter_gather:
                scatter_received(program, TransferParts.scattered(op, self.axis))
            cuts = find_cuts(program, [size(c) for c in self.counts])
            if cuts is None:
                raise CompileError([nothing_to_cut(program, self.counts)])
            if len(cuts.forward) == 1 and not self.layers:
                note_division(self, every, cuts.forward[0].count.data, values)
                values = conditions.unread(values)
            else:
                conditions.read(every, stages)
            totals = [r.count.data.integer(values) for r in cuts.forward]
            per_stage = layers_per_stage(self, stages, sum(totals), program)
            split(op, program, cuts, totals, per_stage, self)


def scatter_received(program: stg.ProgramOp, travel: TransferParts) -> None:
    """Let what other pools hand over arrive in parts, which the receivers gather. Those that send the same send a share each anyhow."""
    for op in list(program.walk()):
        if isinstance(op, dist.TowerRecvOp):
            whole = tensor_of(op.value.type)
            part = travel.type_of(whole)
            if part != whole:
                set_type(op.value, part)
                gather = dist.ReshardOp(op.value, whole)
                insert_after(op, [gather], NAME)
                op.value.replace_uses_with_if(
                    gather.result, lambda use, gather=gather: use.operation is not gather
                )


LAYERS = ("given.layers", "given.first", "given.last", "span")
"""Where a `pipeline` says how many layers a stage has."""


def nothing_to_cut(program: stg.ProgramOp, counts: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        "E0405",
        f"no repeat of `{program.model.data}` runs {' or '.join(f'`{c}`' for c in counts)} times",
        dist.clause_span(program, "pipeline.span"),
        help="name the count of a repeat in the model's own body",
    )


def layers_per_stage(
    options: SplitStages, stages: int, total: int, program: stg.ProgramOp
) -> list[int]:
    """Layers of each virtual stage. A division that does not come out even is E0407."""
    if options.layers:
        if sum(options.layers) == total and len(options.layers) == stages:
            return list(options.layers)
        problem = (
            f"`layers` has {len(options.layers)} stages with {sum(options.layers)} layers in all, "
            f"but there are {stages} stages and {total} layers"
        )
    else:
        even, rest = divmod(total - options.first - options.last, stages)
        if stages == 1:
            return [total]
        if not rest and min(even, even + options.first, even + options.last) >= 0:
            per_stage = [even] * stages
            per_stage[0] += options.first
            per_stage[-1] += options.last
            return per_stage
        problem = f"{total} layers do not divide into {stages} stages"
        if options.first or options.last:
            problem += f" with {options.first:+} on the first and {options.last:+} on the last"
    even, rest = divmod(total, stages)
    if stages > LISTED:
        advice = "choose fewer stages, or write how many layers each has in `layers`"
    elif even:
        example = [even + (s < rest) for s in range(stages)]
        advice = f"write how many each has: `layers = {example}`"
    else:
        empty = stages - total
        example = [0] * (empty // 2) + [1] * total + [0] * (empty - empty // 2)
        advice = f"choose {total} stages or fewer, or write which have none: `layers = {example}`"
    raise refused(
        "E0407",
        problem,
        dist.clause_span(program, *(f"pipeline.{place}" for place in LAYERS)),
        help=advice,
    )


def note_division(
    options: SplitStages, stages: Size, total: Size, values: Mapping[str, int]
) -> None:
    """What an even division asks of the number of layers: that it divides, and which stages have some."""
    if not conditions.compare(stages, ">", 1, values):
        return
    even = (total - options.first - options.last) / stages
    reason = f"the layers `{total}` do not divide into stages"
    if conditions.whole(even, values, reason):
        for each in (even, even + options.first, even + options.last):
            if conditions.compare(each, ">=", 0, values, reason):
                conditions.compare(each, ">", 0, values)


def scattered(ranges: Sequence[Range], ranks: Placement) -> list[Range]:
    """Stages whose values travel in parts, but for those that stay on their rank."""
    apart = [a != b or len(a) > 1 for a, b in pairwise(ranks)] or [True] * (len(ranges) - 1)
    sides = zip([False, *apart], [*apart, False], strict=True)
    return [
        replace(each, part=replace(each.part, scattered=side))
        for each, side in zip(ranges, sides, strict=True)
    ]


def split(
    module: ModuleOp,
    program: stg.ProgramOp,
    cuts: Cuts,
    totals: Sequence[int],
    per_stage: Sequence[int],
    options: SplitStages,
) -> None:
    """Replace a program by one per kind of stage."""
    ranges = stage_ranges(totals, per_stage)
    if options.scatter_gather:
        ranges = scattered(ranges, stage_placement(module) or ())
    names = kind_names([r.part for r in ranges], len(totals))
    stages = [dist.Stage(names[r.part], r.counts) for r in ranges]
    block = module.body.block
    listed = dist.StagesOp(tuple(stages), options.axis)
    insert_before(program, [listed])
    made: dict[str, StageProgram] = {}
    travel = (
        TransferParts.scattered(module, options.axis)
        if options.scatter_gather
        else TransferParts.whole()
    )
    before = 0
    for stage, each in enumerate(ranges):
        name = names[each.part]
        after = before + sum(each.counts)
        if name not in made:
            entry = boundary(totals, before) if stage else None
            leave = boundary(totals, after) if stage < len(ranges) - 1 else None
            made[name] = StageProgram(program, cuts, each.part, entry, leave, travel)
            made[name].build(name)
            block.insert_op_before(made[name].clone, program)
        before = after
    Rewriter.erase_op(program)
