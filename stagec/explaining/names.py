"""Names of sizes that the compiler made, by names that the user knows.

The number of microbatches is `B/(dp*microbatch)`, the layers of a stage are `L/pp`: sums of sizes are written in the dims of the
model, the axes of the mesh and the plan's `microbatch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from xdsl.dialects.builtin import ModuleOp

from stagec import symbolic
from stagec.analysis.coordinates import SUFFIX
from stagec.analysis.sequences import ModuleSequences
from stagec.analysis.sizes import dim_sizes, dims_by_place, mesh_of, size_values
from stagec.dialects import dist, stg
from stagec.dialects.dist.pools import HandedOp
from stagec.dialects.types import ALL_POOLS, TIME_AXIS
from stagec.pipeline_schedule import schedule_op
from stagec.plans.clauses import Plan
from stagec.rewriting import programs
from stagec.symbolic import ONE, Size, constant, symbol

MICROBATCH = "microbatch"
"""The plan's setting, as a name in closed forms."""


Written = tuple[dict[str, Size], dict[Size, Size]]
"""What to write for names, and the sizes that were written so."""


@dataclass(frozen=True)
class Names:
    """What the names in a compiled module stand for, and their numbers."""

    module: ModuleOp
    plan: Plan
    rounded: bool = False
    """Whether costs are rounded up in their forms too, so that these hold for sizes which do not divide."""
    values: Mapping[str, int] = field(init=False)
    """The values of dims, axes and the plan's microbatch."""

    def __post_init__(self) -> None:
        found = dict(size_values(self.module))
        if self.sequences is not None:
            found |= self.sequences.sizes(found)
        if self.microbatch is not None:
            found[self.microbatch] = self.plan.microbatch_size
        object.__setattr__(self, "values", found)

    @cached_property
    def pools(self) -> list[str]:
        """The pool that the module is, those that it exchanges something with, and all of them together if they train."""
        ops = list(self.module.body.ops)
        found = [op.pool.data for op in ops if isinstance(op, dist.PoolOp | HandedOp)]
        together = [ALL_POOLS] if any(isinstance(op, dist.TowersOp) for op in ops) else []
        return [*dict.fromkeys(found), *together]

    @cached_property
    def sequences(self) -> ModuleSequences | None:
        return ModuleSequences.of(self.module)

    def in_microbatch(self, size: Size, microbatch: int) -> Size:
        """A size in one microbatch, where these are not alike."""
        return size if self.sequences is None else self.sequences.size_in(microbatch, size)

    @cached_property
    def mesh(self) -> dict[str, int]:
        return mesh_of(self.module)

    @cached_property
    def microbatch(self) -> str | None:
        """The name of the plan's setting; nothing if the whole batch runs at once."""
        if not self.plan.microbatch_size or (self.sequences and self.sequences.parts):
            return None
        taken = {*dim_sizes(self.module), *self.mesh}
        return MICROBATCH if MICROBATCH not in taken else f"plan.{MICROBATCH}"

    @cached_property
    def definitions(self) -> dict[str, Size]:
        """What the text defines by other names: `F` is `4*D`."""
        return {
            name: size
            for name, size in dim_sizes(self.module).items()
            if size.names and name != TIME_AXIS
        }

    @cached_property
    def parts(self) -> dict[str, Size]:
        """Parts of dims that are not as large on each rank."""
        return dims_by_place(self.module)

    def parts_at(self, where: Mapping[str, Sequence[int]]) -> dict[str, Size]:
        """What those are on the ranks of a class."""
        places = {f"{axis}{SUFFIX}": constant(at[0]) for axis, at in where.items()}
        return {name: size.substitute(places) for name, size in self.parts.items()}

    @cached_property
    def num_microbatches(self) -> Size:
        """In one step, on one rank."""
        size = dim_sizes(self.module).get(TIME_AXIS, ONE)
        if self.microbatch is None:
            return size
        return size * self.values[self.microbatch] / symbol(self.microbatch)

    @cached_property
    def stages(self) -> dist.StagesOp | None:
        return dist.stages_of(self.module)

    @cached_property
    def num_stages(self) -> Size:
        """Virtual stages, of all ranks."""
        if self.stages is None:
            return ONE
        number, axis = len(self.stages.stages.data), self.stages.axis.data
        per_rank, rest = divmod(number, self.mesh[axis])
        return constant(number) if rest else symbol(axis) * per_rank

    @cached_property
    def virtual_stages(self) -> int:
        """The number of virtual stages of each rank."""
        found = schedule_op(self.module)
        return 1 if found is None else found.virtual_stages.value.data

    def write(self, size: Size, stage: int) -> Size:
        """A size of one virtual stage without the compiler's own names."""
        if stage not in self._stages:
            found = self.of_stage(stage)
            self._stages[stage] = self._written.setdefault(tuple(found.items()), (found, {}))
        written, known = self._stages[stage]
        if size not in known:
            known[size] = size.substitute(written)
        return known[size]

    @cached_property
    def _stages(self) -> dict[int, Written]:
        return {}

    @cached_property
    def _written(self) -> dict[tuple[tuple[str, Size], ...], Written]:
        """What is known of stages that are alike."""
        return {}

    def of_stage(self, stage: int) -> dict[str, Size]:
        """What to write for the compiler's own names in sizes of one virtual stage."""
        found = {TIME_AXIS: self.num_microbatches}
        if self.stages is not None:
            for index, number in enumerate(self.stages.stages.data[stage].layers):
                found[dist.local_count(index)] = self.layers(stage, index, number)
        return found

    def layers(self, stage: int, index: int, number: int) -> Size:
        """The layers of a stage: of an even division as its formula, else as a number."""
        pipeline, stages = self.plan.pipeline, self.stages
        assert pipeline is not None
        assert stages is not None
        count, *others = pipeline.counts
        if others or pipeline.layers or index or not number:
            return constant(number)
        last = len(stages.stages.data) - 1
        total = symbol(count)
        if not last:
            return total
        form = (total - pipeline.first - pipeline.last) / self.num_stages
        if stage == 0:
            form = form + pipeline.first
        elif stage == last:
            form = form + pipeline.last
        return form if form.evaluate(self.values) == number else constant(number)

    @cached_property
    def layers_as_numbers(self) -> set[int]:
        """The numbers of layers of stages that have no formula; 1 where the only layer is one that was peeled."""
        stages = self.stages.stages.data if self.stages is not None else ()
        found = {
            number
            for stage, each in enumerate(stages)
            for index, number in enumerate(each.layers)
            if not self.layers(stage, index, number).names
        }
        for program in programs(self.module):
            counts: dict[Size, set[str]] = {}
            for op in program.walk():
                if isinstance(op, stg.RepeatOp) and op.layers_of is not None:
                    counts.setdefault(op.total_layers, set()).update(op.count.data.names)
            found |= {1 for names in counts.values() if not names}
        return found

    def written_out(self, size: Size, *wanted: str) -> Size:
        """A size with the definitions of names that depend on `wanted` in their place; all of them if none is."""
        names = [n for n in self.definitions if not wanted or self.depends(n, wanted)]
        while chosen := {n: self.definitions[n] for n in names if n in size.names}:
            size = size.substitute(chosen)
        return size

    def depends(self, name: str, wanted: tuple[str, ...]) -> bool:
        """Whether a name is defined by way of one of these."""
        inner = self.definitions.get(name)
        return inner is not None and any(
            n in wanted or self.depends(n, wanted) for n in inner.names
        )

    def times(self, size: Size, part: int, whole: int) -> Size:
        """`part/whole` of a size."""
        return size * symbolic.constant(part) / whole if part != whole else size
