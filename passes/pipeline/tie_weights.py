"""Sum the gradients of weights that several pipeline stages have.

Before `tie-weights`:

    dist.mesh <pp = 2>
    sched.schedule "1f1b" ranks "pp" virtual 1 microbatches "2"
    dist.stages ["first", "last"] over "pp"
    stg.program "M" () attributes {kind = "first"} {
      %w = stg.weight "embed" : !stg.tensor<[V, D], bf16>
      %g = "test.op"() : () -> !stg.tensor<[V, D], fp32>
      stg.output weights %w : !stg.tensor<[V, D], bf16> gradients %g : !stg.tensor<[V, D], fp32>
    }
    stg.program "M" () attributes {kind = "last"} {
      %w = stg.weight "embed" : !stg.tensor<[V, D], bf16>
      %g = "test.op"() : () -> !stg.tensor<[V, D], fp32>
      stg.output weights %w : !stg.tensor<[V, D], bf16> gradients %g : !stg.tensor<[V, D], fp32>
    }

After:

    dist.mesh <pp = 2>
    sched.schedule "1f1b" ranks "pp" virtual 1 microbatches "2"
    dist.stages ["first", "last"] over "pp"
    stg.program "M" () attributes {kind = "first"} {
      %w = stg.weight "embed" : !stg.tensor<[V, D], bf16>
      %g = "test.op"() : () -> !stg.tensor<[V, D], fp32>
      %s = dist.all_reduce_tied "embed" (%g) over [pp] in "fp32" {scope = "embed", phase = "grad_reduce", made_by = "tie-weights"}
        : (!stg.tensor<[V, D], fp32>) -> !stg.tensor<[V, D], fp32>
      stg.output weights %w : !stg.tensor<[V, D], bf16> gradients %s : !stg.tensor<[V, D], fp32>
    }
    stg.program "M" () attributes {kind = "last"} {
      %w = stg.weight "embed" : !stg.tensor<[V, D], bf16>
      %g = "test.op"() : () -> !stg.tensor<[V, D], fp32>
      %s = dist.all_reduce_tied "embed" (%g) over [pp] in "fp32" {scope = "embed", phase = "grad_reduce", made_by = "tie-weights"}
        : (!stg.tensor<[V, D], fp32>) -> !stg.tensor<[V, D], fp32>
      stg.output weights %w : !stg.tensor<[V, D], bf16> gradients %s : !stg.tensor<[V, D], fp32>
    }

Where the schedule puts such stages on one rank (a V has the first and the last there), that rank's first stage with the weight
takes the gradients of the others and adds them; only that one updates the weight. Then ranks with terms of one gradient
all-reduce them, as Megatron-LM does over its embedding group. DualPipe has each stage on two ranks: every weight is tied.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from stagec.dialects import dist, stg
from stagec.dialects.types import StackType, tensor_of
from stagec.pipeline_schedule import stage_placement
from stagec.rewriting import inherit, insert_before, output_of, programs_by_kind
from stagec.schedules import Placement

NAME = "tie-weights"


@dataclass(frozen=True)
class TieWeights(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        stages = dist.stages_of(op)
        placement = stage_placement(op)
        if stages is None or placement is None:
            return
        kinds = [stage.kind for stage in stages.stages.data]
        by_kind = programs_by_kind(op)
        roles = roles_of_stages([gradients_of(by_kind[kind]) for kind in kinds], placement)
        names: dict[tuple[str, Role], str] = {}
        programs_of: dict[str, stg.ProgramOp] = {}
        for kind, role in zip(kinds, roles, strict=True):
            if (kind, role) not in names:
                name = names[kind, role] = name_of(kind, by_kind, programs_of)
                programs_of[name] = by_kind[kind] if name == kind else copied(by_kind[kind], name)
        for (_, role), name in names.items():
            tie(programs_of[name], role, stages.axis.data)
        renamed = [
            dist.Stage(names[stage.kind, role], stage.layers)
            for stage, role in zip(stages.stages.data, roles, strict=True)
        ]
        stages.stages = dist.StagesAttr(tuple(renamed))


@dataclass(frozen=True)
class Role:
    """What a stage does with its gradients, by weight."""

    gives: frozenset[str] = frozenset()
    """The weights whose gradients an earlier stage of the same rank adds up."""
    takes: frozenset[tuple[str, int]] = frozenset()
    """How many it takes from later stages of its rank."""
    reduces: frozenset[str] = frozenset()
    """The weights whose gradients are summed over ranks."""


@dataclass
class RoleMaker:
    """A role while it is found out."""

    gives: set[str] = field(default_factory=set)
    takes: dict[str, int] = field(default_factory=dict)
    reduces: set[str] = field(default_factory=set)

    def made(self) -> Role:
        return Role(frozenset(self.gives), frozenset(self.takes.items()), frozenset(self.reduces))


def gradients_of(program: stg.ProgramOp) -> dict[str, bool]:
    """The weights of a program that have gradients, by path; whether each is in a layer."""
    output = output_of(program)
    return {path_of(w): isinstance(w.type, StackType) for w in output.weights}


def path_of(weight: SSAValue) -> str:
    assert isinstance(weight.owner, stg.WeightOp)
    return weight.owner.path.data


def roles_of_stages(weights: Sequence[Mapping[str, bool]], placement: Placement) -> list[Role]:
    """The role of each stage. A weight in a layer is only ever that of one stage."""
    made = [RoleMaker() for _ in weights]
    holders: dict[str, list[int]] = defaultdict(list)
    for stage, paths in enumerate(weights):
        for path, in_layer in paths.items():
            if not in_layer:
                holders[path].append(stage)
            elif len(placement[stage]) > 1:
                made[stage].reduces.add(path)
    for path, stages in holders.items():
        ranks = {rank for stage in stages for rank in placement[stage]}
        for stage in stages:
            mates = [s for s in stages if set(placement[s]) & set(placement[stage])]
            if mates[0] != stage:
                made[stage].gives.add(path)
                continue
            if len(mates) > 1:
                made[stage].takes[path] = len(mates) - 1
            if len(ranks) > 1:
                made[stage].reduces.add(path)
    return [each.made() for each in made]


def name_of(kind: str, *taken: Mapping[str, stg.ProgramOp]) -> str:
    """The kind itself, or the first free name like it if another role has that."""
    programs_of_kinds, made = taken
    if kind not in made:
        return kind
    number = 2
    while f"{kind}_{number}" in programs_of_kinds or f"{kind}_{number}" in made:
        number += 1
    return f"{kind}_{number}"


def copied(program: stg.ProgramOp, kind: str) -> stg.ProgramOp:
    """The same program, to be that of another kind of stage."""
    clone = program.clone()
    for old, new in zip(program.walk(), clone.walk(), strict=True):
        new.location = old.location
    stg.marks(clone)["kind"] = StringAttr(kind)
    Rewriter.insert_op(clone, InsertPoint.after(program))
    return clone


def tie(program: stg.ProgramOp, role: Role, axis: str) -> None:
    """Give, take and reduce the gradients of one program."""
    output = output_of(program)
    takes = dict(role.takes)
    kept: list[tuple[SSAValue, SSAValue]] = []
    for weight, gradient in zip(output.weights, output.gradients, strict=True):
        path = path_of(weight)
        if path in role.gives:
            insert(dist.GiveGradientOp(gradient, path), path, output)
            continue
        total = gradient
        for number in range(takes.get(path, 0)):
            taken = dist.TakeGradientOp(total, path, number, like=total.type)
            total = insert(taken, path, output).results[0]
        if path in role.reduces:
            dtype = tensor_of(gradient.type).dtype
            reduced = dist.AllReduceTiedOp([total], path, (axis,), dtype)
            total = insert(reduced, path, output).results[0]
        kept.append((weight, total))
    finished = stg.OutputOp(output.values, [w for w, _ in kept], [g for _, g in kept])
    inherit(finished, output)
    Rewriter.replace_op(output, finished)


def insert(op: Operation, path: str, before: Operation) -> Operation:
    stg.marks(op)["scope"] = StringAttr(path)
    stg.marks(op)["phase"] = StringAttr("grad_reduce")
    insert_before(before, [op], NAME)
    return op
