"""What a step costs each rank of a class, added up without unrolling it.

Pure data: `stagec.cli` shows it. Every number is a sum over the count of a step, which comes to what the class' trace nodes say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.sequences import MICROBATCH, ModuleSequences
from stagec.analysis.sizes import mesh_of, size_values, slots_in_words
from stagec.backend.program import Mesh
from stagec.dialects import stg
from stagec.dialects.types import ValueType
from stagec.rewriting import programs
from stagec.step_count import ClassCount, Costs, CountedOp, pads_of, weights_of_stages
from stagec.symbolic import conditions, symbol
from stagec.unrolling.rank import StageRun


@dataclass(frozen=True)
class Traffic:
    """Collectives, transfers or copies of one kind on one rank."""

    axes: tuple[str, ...]
    """The axes of the mesh; none for a copy between host and device."""
    kind: str
    count: int
    operand_bytes: int
    result_bytes: int


@dataclass(frozen=True)
class Parameters:
    """How many numbers, and in how many bytes."""

    count: int
    num_bytes: int


@dataclass(frozen=True)
class ClassSummary:
    """One rank of a class, in one step; of a series, in all of its iterations."""

    name: str
    where: Mapping[str, tuple[int, ...]]
    num_ranks: int
    num_nodes: int
    matrix_flops: int
    other_flops: int
    bytes_moved: int
    """Read from and written to device memory."""
    traffic: tuple[Traffic, ...]
    parameters: Parameters
    """Stored on the rank, in the dtype of the weights."""


@dataclass(frozen=True)
class Padded:
    """A dim that a rule pads, and that is larger for it."""

    dim: str
    size: int
    unpadded: int


@dataclass(frozen=True)
class Summary:
    """A compiled job."""

    model: str
    plan: str
    mesh: Mesh
    num_parameters: int
    """The number of parameters of the model, each counted once, with those of padding."""
    padded: tuple[Padded, ...]
    num_padding: int
    """Parameters that are there because dims are padded."""
    classes: tuple[ClassSummary, ...]
    num_iterations: int = 1
    """The number of iterations of a series, which are added up."""

    @property
    def num_ranks(self) -> int:
        return self.mesh.num_ranks


def summarize(module: ModuleOp, counts: Sequence[ClassCount], plan: str = "") -> Summary:
    """The totals of a job: of its last IR, and the count of its step."""
    stages = {stage.stage: stage for each in counts for stage in each.run.stages}
    pads = pads_of(module)
    slots = slots_in_words(module)
    whole = padding = 0
    parts = {op.dim.data: symbol(op.parts.data) for op in dims_of(module) if op.parts is not None}
    for op, stage in weights_of_stages(stages.values()):
        elements = op.num_parameters.substitute(parts)
        whole += (count := elements.integer(stage.values))
        if not pads.keys().isdisjoint(elements.names):
            unpadded = {name: stage.values[hidden] for name, hidden in pads.items()}
            padding += count - elements.integer({**stage.values, **unpadded})
    values = conditions.unread(size_values(module)) if pads else {}
    sizes = mesh_of(module)
    mesh = Mesh.of(sizes)
    sequences = ModuleSequences.of(module)
    return Summary(
        model=programs(module)[0].model.data,
        plan=plan,
        mesh=mesh,
        num_parameters=whole,
        padded=tuple(
            Padded(slots.get(name, name), values[name], values[hidden])
            for name, hidden in pads.items()
            if values[name] != values[hidden]
        ),
        num_padding=padding,
        classes=tuple(class_summary(mesh, each, sequences) for each in counts),
        num_iterations=1 if sequences is None else sequences.num_iterations,
    )


def dims_of(module: ModuleOp) -> Iterator[stg.DimOp]:
    return (op for op in module.body.ops if isinstance(op, stg.DimOp))


def class_summary(
    mesh: Mesh, counted: ClassCount, sequences: ModuleSequences | None = None
) -> ClassSummary:
    """The summary of a rank class; of a series, over all of its iterations."""
    times = 1 if sequences is None else sequences.num_iterations
    num_nodes = matrix = other = moved = 0
    traffic: dict[tuple[tuple[str, ...], str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for each in counted.operations:
        runs, numbers = each.runs, each.numbers
        if sequences is not None and times > 1:
            numbers = in_all_iterations(each, sequences)
        num_nodes += times * each.nodes
        if each.is_computation:
            if each.on_matrix_units:
                matrix += runs * numbers.flops
            else:
                other += runs * numbers.flops
            moved += runs * (numbers.read + numbers.written)
            continue
        total = traffic[each.axes, each.name]
        total[0] += times * each.nodes
        total[1] += runs * numbers.before
        total[2] += runs * numbers.after
    return ClassSummary(
        name=counted.name,
        where=counted.where,
        num_ranks=counted.num_ranks(mesh),
        num_nodes=num_nodes,
        matrix_flops=matrix,
        other_flops=other,
        bytes_moved=moved,
        traffic=tuple(
            Traffic(axes, kind, *traffic[axes, kind]) for axes, kind in sorted_keys(mesh, traffic)
        ),
        parameters=stored_parameters(counted.run.stages),
    )


def in_all_iterations(counted: CountedOp, sequences: ModuleSequences) -> Costs[int]:
    """What one op of each iteration costs, added up."""
    values = counted.values
    columns, at = sequences.columns(sequences.device(values)), int(values.get(MICROBATCH, -1))
    return counted.costs.evaluated(
        lambda size: int(
            columns.number(sequences.in_numbers(sequences.size_in(at, size), values)).sum()
        )
    )


def sorted_keys(
    mesh: Mesh, keys: Iterable[tuple[tuple[str, ...], str]]
) -> list[tuple[tuple[str, ...], str]]:
    """In the order of the mesh, then by kind; what goes to other pools comes last."""
    number = {axis: at for at, axis in enumerate(mesh.axes)}
    return sorted(keys, key=lambda key: ([number.get(a, len(number)) for a in key[0]], key))


def stored_parameters(stages: Sequence[StageRun]) -> Parameters:
    """What one rank holds. A weight that two of its stages share it holds once."""
    count = num_bytes = 0
    for op, stage in weights_of_stages(stages):
        kind = op.weight.type
        assert isinstance(kind, ValueType)
        count += kind.num_elements.integer(stage.values)
        num_bytes += kind.num_bytes.integer(stage.values)
    return Parameters(count, num_bytes)
