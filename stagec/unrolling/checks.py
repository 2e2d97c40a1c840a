"""What ops of `sched` say of one another, which no op can verify by itself. A mistake is E0709, where it stands."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from stagec.analysis.buffers import owned
from stagec.analysis.coordinates import SUFFIX
from stagec.analysis.dataflow import Dataflow
from stagec.analysis.loads import Loads
from stagec.analysis.placement import source_of
from stagec.analysis.segments import Segment, segments_of, whole
from stagec.analysis.sequences import ModuleSequences
from stagec.analysis.sizes import mesh_of, size_values
from stagec.diagnostics import CompileError, Diagnostic, span_of
from stagec.dialects import dist, sched, stg
from stagec.dialects.attributes import NamesAttr, sizes_in
from stagec.dialects.types import ValueType
from stagec.rewriting import programs
from stagec.symbolic import Size
from stagec.symbolic.conditions import unread


def wrong(op: Operation, message: str, help_: str = "") -> CompileError:
    span = span_of(op.location)
    return CompileError([Diagnostic("E0709", f"`{op.name}`: {message}", span, help=help_)])


def check_module(module: ModuleOp) -> None:
    """That programs of ranks are of what there is. For IR that was read, and for what passes of others leave."""
    listed = (sched.TasksOp, sched.RankProgramOp, sched.RanksOp)
    if not any(isinstance(op, listed) for op in module.body.ops):
        return
    kinds = {stg.text(each, "kind"): each for each in programs(module)}
    segments = {kind: segments_of(program) for kind, program in kinds.items()}
    ops = list(module.body.ops)
    stages = next((op for op in ops if isinstance(op, dist.StagesOp)), None)
    names = numbers_of(module, [op for op in ops if isinstance(op, sched.TasksOp)])
    for program in kinds.values():
        check_nodes(program, mesh_of(module), names)
        check_units(program)
    for own in segments.values():
        check_segments(own)
    check_stored([op for op in ops if isinstance(op, sched.StoredOp)], kinds, names)
    for op in ops:
        if isinstance(op, sched.TasksOp):
            if op.kind.data not in kinds:
                raise wrong(op, f"there is no `stg.program` of the kind `{op.kind.data}`")
            check_rows(
                op,
                segments[op.kind.data],
                Dataflow(numbers_at(module, op, names)),
            )
        elif isinstance(op, sched.RankProgramOp):
            check_stages(op, ops, stages)
    classes = [op for op in ops if isinstance(op, sched.RanksOp)]
    if classes:
        check_classes(module, classes)


def numbers_at(module: ModuleOp, tasks: sched.TasksOp, names: Collection[str]) -> dict[str, int]:
    """Of sizes, and of the tasks' layers; 1 for what else has a number on some rank."""
    return {**dict.fromkeys(names, 1), **unread(size_values(module)), **tasks.counts}


def numbers_of(module: ModuleOp, tasks: Sequence[sched.TasksOp]) -> set[str]:
    """The names that have a number on some rank."""
    counts = {name for op in tasks for name in op.counts}
    firsts = {dist.first_layer(name) for name in counts}
    places = {f"{axis}{SUFFIX}" for axis in mesh_of(module)}
    loads = {name for load in Loads.of(module).loads for name in load.names}
    sequences = ModuleSequences.of(module)
    of_one = sequences.names_of_one if sequences is not None else ()
    return {*size_values(module), *counts, *firsts, *places, *loads, *of_one}


def check_nodes(program: stg.ProgramOp, mesh: Mapping[str, int], names: Collection[str]) -> None:
    for op in program.walk():
        sizes = [size for each in op.properties.values() for size in sizes_in(each)]
        sizes += [r.type.num_bytes for r in op.results if isinstance(r.type, ValueType)]
        check_names(op, sizes, names)
        axes = op.properties.get("axes")
        if isinstance(op, sched.NODES) and isinstance(axes, NamesAttr):
            unknown = [axis for axis in axes.data if axis not in mesh]
            if unknown:
                raise wrong(op, f"the mesh has no axis `{unknown[0]}`")


def check_names(op: Operation, sizes: Iterable[Size], names: Collection[str]) -> None:
    """That what sizes are made of has numbers."""
    unknown = sorted({name for size in sizes for name in size.names}.difference(names))
    if unknown:
        raise wrong(op, f"the size `{unknown[0]}` has no number")


def check_units(program: stg.ProgramOp) -> None:
    """That gathers of one unit gather the same weights."""
    known: dict[int, set[SSAValue]] = {}
    for op in program.walk():
        number = whole(op, stg.UNIT, -1) if isinstance(op, sched.CollectiveOp) else -1
        if number >= 0:
            weights = set(map(source_of, op.operands))
            if known.setdefault(number, weights) != weights:
                raise wrong(
                    op, f"it gathers other weights than the gather of unit {number} before it"
                )


def check_stored(
    stored: Sequence[sched.StoredOp], kinds: Mapping[str, stg.ProgramOp], names: Collection[str]
) -> None:
    """That what stays from step to step is said of programs that there are, and of what these have."""
    seen: set[str] = set()
    for op in stored:
        kind = op.kind.data
        if kind not in kinds or kind in seen:
            message = "is said twice" if kind in seen else "is of no `stg.program`"
            raise wrong(op, f"what `{kind}` stores {message}")
        seen.add(kind)
        known = owned(kinds[kind])
        for row in op.rows.data:
            if not (row.is_of_program or row.path in known):
                raise wrong(op, f"there is no weight or cache `{row.path}`")
            check_names(op, [row.num_bytes], names)


def check_segments(segments: Mapping[int, Segment]) -> None:
    for segment in segments.values():
        places: dict[tuple[str, Block | None], None] = {}
        for op in segment.ops:
            assert isinstance(op, sched.NODES)
            assert op.segment is not None
            places[op.segment.task, op.parent_block()] = None
            if len(places) > 1:
                message = f"segment {segment.number} has ops of other tasks, or in other loops"
                raise wrong(op, message)


def check_rows(op: sched.TasksOp, segments: Mapping[int, Segment], flow: Dataflow) -> None:
    """That each row is a segment of its task, in an iteration that there is, once."""
    for task, rows in op.rows.data.items():
        seen: set[tuple[int, ...]] = set()
        for number, path in zip(rows.segment.tolist(), rows.path.tolist(), strict=True):
            at = tuple(each for each in path if each >= 0)
            segment = segments.get(number)
            if segment is None or segment.task != task:
                raise wrong(op, f"`{task}` has no segment {number}")
            counts = [flow.count(repeat) for repeat in segment.repeats]
            inside = len(at) == len(counts)
            if not inside or any(i >= count for i, count in zip(at, counts, strict=True)):
                raise wrong(op, f"segment {number} of `{task}` has no run {'.'.join(map(str, at))}")
            if (number, *at) in seen:
                raise wrong(op, f"segment {number} of `{task}` runs twice in one iteration")
            seen.add((number, *at))
        first = [int(n) for n in rows.segment.tolist()]
        for (before, number), joins in zip(pairwise(first), rows.joins[1:].tolist(), strict=True):
            ops = segments[before].first, segments[number].first
            if joins and not all(
                isinstance(each, sched.CollectiveOp) and each.bucket_bytes for each in ops
            ):
                raise wrong(op, f"segment {number} of `{task}` joins what is not a bucket")


def check_stages(
    op: sched.RankProgramOp, ops: Sequence[Operation], stages: dist.StagesOp | None
) -> None:
    kinds = [stage.kind for stage in stages.stages.data] if stages is not None else [""]
    known = {each.sym_name.data: each for each in ops if isinstance(each, sched.TasksOp)}
    for stage in op.stages.data:
        if stage.tasks not in known:
            raise wrong(op, f"there are no `sched.tasks @{stage.tasks}`")
        if stage.number >= len(kinds) or kinds[stage.number] != known[stage.tasks].kind.data:
            raise wrong(op, f"stage {stage.number} does not run `@{stage.tasks}`")
    order = op.order.data
    for task, stage, microbatch in dict.fromkeys(map(tuple, order.table[:, :3].tolist())):
        if sched.TASKS[task] not in known[op.stages.data[stage].tasks].rows.data:
            name = f"{sched.TASKS[task]}:{stage}" + (f".{microbatch}" if microbatch >= 0 else "")
            raise wrong(op, f"`{name}` has no rows")


def check_classes(module: ModuleOp, classes: Sequence[sched.RanksOp]) -> None:
    """That every rank is in one class."""
    mesh = mesh_of(module)
    count, seen = 0, set[str]()
    for number, op in enumerate(classes):
        where = dict(op.at.data)
        for axis, at in where.items():
            if axis not in mesh or max(at) >= mesh[axis] or len(set(at)) != len(at):
                raise wrong(op, f"no such ranks: `{axis}` of the mesh has no {list(at)}")
        if op.class_name.data in seen:
            raise wrong(op, f"there are two classes `{op.class_name.data}`")
        seen.add(op.class_name.data)
        count += prod(len(where.get(axis, range(size))) for axis, size in mesh.items())
        for other in classes[:number]:
            both = dict(other.at.data)
            shared = where.keys() & both.keys()
            if all(set(where[axis]) & set(both[axis]) for axis in shared):
                raise wrong(op, f"ranks are in `{other.class_name.data}` too")
    if count != prod(mesh.values()):
        last = classes[-1] if classes else next(iter(programs(module)))
        raise wrong(last, "there are ranks in no class")
