"""A structure is one compiled plan that stands for all plans which make the same program with other sizes; its forms are evaluated for all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.buffers import owners
from stagec.analysis.kernels import kernel_form
from stagec.compiled import Compiled
from stagec.dialects import dist, sched, stg
from stagec.dialects.memory import STORED
from stagec.dialects.sched.tasks import Order
from stagec.dialects.types import TIME_AXIS, StackType
from stagec.estimate.few_microbatches import in_order
from stagec.estimate.repetition import fewest
from stagec.explaining.bubble import idle_share
from stagec.explaining.job import NamedJob
from stagec.explaining.memory import KINDS
from stagec.explaining.names import Names
from stagec.explaining.quantities import Answer
from stagec.explaining.rows_at_sizes import layout_with
from stagec.memory import Kind, MemoryLevel
from stagec.memory.value_table import ValueTable, value_table
from stagec.pipeline_schedule import num_together, schedule_of_ranks, schedule_op, transfers
from stagec.pipelines import BEFORE_ORDER
from stagec.rank_orders import (
    first_shared,
    gathers_before,
    plain_order,
    rank_order,
)
from stagec.rewriting import programs_by_kind
from stagec.schedules import Schedule, build
from stagec.sweeping.equal_memory import OrderSignature, signature
from stagec.sweeping.peaks import KindsAtPeak, LiveCounts, RankLives, rank_lives
from stagec.symbolic import Size, total
from stagec.symbolic.columns import Columns
from stagec.unrolling.rank import StageRun, arrange
from stagec.unrolling.stage import StageLayout

OF_PEAK = "memory.peak."
"""The start of a quantity's name, before a kind of buffer: the bytes of that kind at the moment at which a rank needs most memory."""

PEAKS: dict[str, Callable[[RankLives], RankLives]] = {
    "memory.peak": lambda lives: lives.on_device,
    "memory.in_flight": lambda lives: lives.saved,
    "memory.activations": lambda lives: lives.saved_by_one,
    "memory.host": lambda lives: lives.on_host,
    "memory.nvme": lambda lives: lives.on_nvme,
}
"""Quantities that are the most bytes alive at once, each with the buffers of a rank that it counts."""


NOTHING: tuple[Collection[Kind], MemoryLevel] = ((), MemoryLevel.DEVICE)
"""What stays from step to step of a quantity that is about passing things alone."""

RankOrders = list[tuple[list[int], Order]]
"""For each rank of a pipeline, its stages, and the order of its tasks."""


@dataclass
class Begun:
    """A compilation, with its IR before tasks have an order: up to there it is the same for other numbers of microbatches, but for the size of the batch."""

    compiled: Compiled | None = None
    module: ModuleOp | None = None

    def see(self, name: str, module: ModuleOp) -> None:
        """Look at what a pass leaves."""
        if name == BEFORE_ORDER:
            self.module = module.clone()


class Structure:
    """One compiled plan (`job`), evaluated for plans that make the same program with other sizes.

    `begun` has its IR before tasks have an order, where somebody wants it with other numbers of microbatches.
    """

    def __init__(self, job: NamedJob, begun: Begun | None = None) -> None:
        self.job, self.begun = job, begun
        self.module = job.compiled.module
        self.plan = job.compiled.plan
        self._tables: dict[StageLayout, ValueTable] = {}
        self._layouts: dict[object, StageLayout] = {}
        self._schedules: dict[tuple[int, int], Schedule] = {}
        self._live: dict[object, dict[str, LiveCounts | KindsAtPeak]] = {}
        self._signatures: dict[object, OrderSignature] = {}

    @property
    def names(self) -> Names:
        return self.job.names

    @property
    def cuts_several(self) -> bool:
        """Whether a pipeline cuts several repeats."""
        stages = self.names.stages
        return stages is not None and len(stages.stages.data[0].layers) > 1

    @cached_property
    def programs(self) -> dict[str, stg.ProgramOp]:
        """The program of each kind of stage, by the name of the kind."""
        return programs_by_kind(self.module)

    @cached_property
    def trip_counts(self) -> tuple[Size, ...]:
        """The sizes that say how often repeats run, and so how many nodes a program has, except the number of layers of a stage."""
        found: dict[Size, None] = {}
        for op in self.module.walk():
            if isinstance(op, stg.RepeatOp):
                found[op.count.data] = None
            for result in op.results:
                if isinstance(result.type, StackType):
                    found[result.type.count] = None
        return tuple(size for size in found if dist.local_count(0) not in size.names)

    # Sums

    def highest(self, answer: Answer, sizes: Columns) -> np.ndarray:
        """`[plan]`: the value of a quantity on the rank that has most of it."""
        values = [sizes.number(each.form) for each in answer.classes]
        best = values[0]
        for other in values[1:]:
            best = np.where(other > best, other, best)
        return best

    # Memory

    def memory(
        self, quantities: Collection[str], sizes: Columns, microbatches: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Quantities of memory by name, `[plan]` each, in bytes on the rank that has most: those of `PEAKS` and `memory.peak.KIND`.

        `microbatches` is `[plan]`: how many a step has.
        """
        found = {what: np.zeros(sizes.count, np.int64) for what in quantities}
        peaks = [what for what in quantities if what in PEAKS]
        kinds = {
            what: KINDS[what.removeprefix(OF_PEAK)] for what in quantities if what not in PEAKS
        }
        static: dict[str, tuple[Collection[Kind], MemoryLevel]] = {
            "memory.peak": (STORED, MemoryLevel.DEVICE),
            "memory.host": (STORED, MemoryLevel.HOST),
            "memory.nvme": (STORED, MemoryLevel.NVME),
            **{what: ([kind], MemoryLevel.DEVICE) for what, kind in kinds.items()},
        }

        for rows, own, values, key in self.groups(sizes, microbatches):
            of_classes: list[tuple[str, Sequence[StageRun], np.ndarray]] = []
            for stages, live in self.classes(values, key, peaks) if peaks else ():
                for what in peaks:
                    counts = live[what]
                    assert isinstance(counts, LiveCounts)
                    of_classes.append((what, stages, counts.highest(own)))
            # A rank that needs no more than another may still have more of one kind when it needs most.
            for stages, live in self.classes(values, key, [OF_PEAK]) if kinds else ():
                moments = live[OF_PEAK]
                assert isinstance(moments, KindsAtPeak)
                for what, kind in kinds.items():
                    of_classes.append((what, stages, moments.bytes_of(kind, own)))
            for what, stages, live_bytes in of_classes:
                total = live_bytes + own.number(self.stored(stages, *static.get(what, NOTHING)))
                found[what][rows] = np.maximum(found[what][rows], total)
        return found

    def groups(
        self, sizes: Columns, microbatches: np.ndarray
    ) -> Iterator[tuple[np.ndarray, Columns, Mapping[str, int], tuple[int, ...]]]:
        """Groups of plans whose buffers are born and die at the same nodes. For each: the numbers of its plans, their sizes, the sizes of the first of them,
        and the key that they have in common (the number of microbatches, then `grouping_keys`).
        """
        keys = np.column_stack([microbatches.astype(np.int64), self.grouping_keys(sizes)])
        groups, inverse = np.unique(keys, axis=0, return_inverse=True)
        for number in range(len(groups)):
            rows = np.flatnonzero(inverse.ravel() == number)
            own = Columns({name: column[rows] for name, column in sizes.names.items()}, len(rows))
            values = {name: int(column[0]) for name, column in own.names.items()}
            values[TIME_AXIS] = int(microbatches[rows[0]])
            own.names = {**own.names, TIME_AXIS: microbatches[rows]}
            yield rows, own, values, tuple(groups[number].tolist())

    def grouping_keys(self, sizes: Columns) -> np.ndarray:
        """`[plan, key]`: numbers that decide, with the number of microbatches, which nodes a plan has and what waits for what. Plans with equal rows agree."""
        keys = [sizes.number(size) for size in self.trip_counts]
        axis = self.names.stages.axis.data if self.names.stages is not None else None
        if axis is not None:
            assert self.plan.pipeline is not None
            keys += [sizes.names[axis], sizes.names[self.plan.pipeline.counts[0]]]
        keys += [sizes.number(self.names.write(size, 0)) for size in self.bucketed_bytes]
        keys += [sizes.number(self.names.write(size, 0)) > 1 for size in self.num_experts]
        return np.stack([sizes.constant(0), *keys], axis=1).astype(np.int64)

    @cached_property
    def bucketed_bytes(self) -> tuple[Size, ...]:
        """The sizes in bytes of gradients that may share buckets. They decide which gradients share one."""
        found: dict[Size, None] = {}
        for op in self.module.walk():
            if isinstance(op, sched.CollectiveOp) and op.bucket_bytes is not None:
                found[op.bytes_in.data] = None
        return tuple(found)

    @cached_property
    def num_experts(self) -> tuple[Size, ...]:
        """The numbers of experts that a device has, in a plan that serves: with several, the measured time of their kernels includes the ops around them
        (`KernelPrices.is_in_layer_of_experts`).
        """
        if self.job.compiled.stated.is_training:
            return ()
        forms = (kernel_form(op) for op in self.module.walk() if isinstance(op, sched.ComputeOp))
        known = (dict(form.sizes) for form in forms if form is not None)
        return tuple(dict.fromkeys(own["batch"] for own in known if "hidden" in own))

    def bubble(self, sizes: Columns, microbatches: np.ndarray) -> np.ndarray:
        """`[plan]`: the bubble, which is idle time over computing time, of the rank that idles most."""
        if self.names.stages is None:
            return np.zeros(sizes.count)
        ranks = sizes.names[self.names.stages.axis.data]
        pairs = list(zip(ranks.tolist(), microbatches.tolist(), strict=True))
        known = {
            pair: float(idle_share(self.whole_schedule(*pair))[1]) for pair in dict.fromkeys(pairs)
        }
        return np.array([known[pair] for pair in pairs])

    def stored(
        self,
        stages: Sequence[StageRun],
        kinds: Collection[Kind],
        level: MemoryLevel = MemoryLevel.DEVICE,
    ) -> Size:
        """The bytes that a rank with these virtual stages has at a level all the time, in buffers of these kinds. What stages share counts once."""
        seen: dict[tuple[Kind, int, str], Size] = {}
        for stage in stages:
            for row, owner in owners(stage.program, with_gradients=False):
                if row.kind in kinds and row.level == level:
                    stacked = owner.is_of_stage
                    own = row.num_bytes.substitute(
                        {
                            dist.local_count(0): stage.values.get(dist.local_count(0), 0),
                            TIME_AXIS: stage.values[TIME_AXIS],
                        }
                    )
                    seen.setdefault((row.kind, stage.stage if stacked else -1, row.path), own)
        return total(seen.values())

    def classes(
        self, values: Mapping[str, int], key: tuple[int, ...], wanted: Sequence[str]
    ) -> Iterator[tuple[Sequence[StageRun], Mapping[str, LiveCounts | KindsAtPeak]]]:
        """The ranks that may need most memory, each as its virtual stages, with the moments at which it may need it, for each quantity in `wanted`.

        A rank is left out if another one needs at least as much (`OrderSignature`), unless kinds at the peak are wanted: then every rank is told.
        """
        if self.names.stages is None:
            axis, ranks = "", 1
            (program,) = self.programs.values()
            every = [self.stage_run(program, values, 0)]
        else:
            axis = self.names.stages.axis.data
            ranks = values[axis]
            num_stages = self.schedule(ranks, values[TIME_AXIS]).num_stages
            every = self.stage_runs(values, num_stages)
        known = cache(partial(self.orders, every, ranks))
        number = fewest(
            self.plan, ranks, values[TIME_AXIS], lambda n: [order for _, order in known(n)]
        )
        orders = known(number)
        without_layers = key[1:-2] if axis else key[1:]
        seen: list[tuple[tuple[object, ...], OrderSignature]] = []
        for rank, (own, order) in enumerate(orders):
            stages = [every[stage] for stage in own]
            kinds = tuple((id(c.program), c.values.get(dist.local_count(0))) for c in stages)
            found = self.signature((ranks, number, rank), order, len(stages))
            if OF_PEAK in wanted:
                # Of several moments that need most the first one counts. Signatures do not keep the order of moments, so no rank is left out.
                yield stages, self.live(axis, stages, order, (key, kinds, rank), wanted)
                continue
            if any(other == kinds and found.needs_no_more_than(sig) for other, sig in seen):
                continue
            seen.append((kinds, found))
            yield stages, self.live(axis, stages, order, (without_layers, kinds, found), wanted)

    def orders(self, every: Sequence[StageRun], ranks: int, microbatches: int) -> RankOrders:
        """For each rank, its stages, and the order of its tasks in a step of some microbatches. `every` has the run of each stage."""
        tasks = [each.layout.tasks for each in every]
        if self.names.stages is None:
            together = num_together(self.module, microbatches)
            return [([0], plain_order(microbatches, tasks[0], together))]
        schedule = self.schedule(ranks, microbatches)
        first_tied = first_shared([each.program for each in every])
        gathered = [gathers_before(each.program) for each in every]
        found: RankOrders = []
        for rank in range(ranks):
            own = schedule.stages_of(rank)
            rows, gathers, weights = (
                [tasks[stage] for stage in own],
                [gathered[stage] for stage in own],
                [first_tied[stage] for stage in own],
            )
            found.append((own, rank_order(schedule, rank, own, rows, gathers, weights)))
        return found

    def schedule(self, ranks: int, microbatches: int) -> Schedule:
        """The schedule of the module's own ranks. In a pool that trains a part of the model these are some ranks of a pipeline."""
        found = self.whole_schedule(ranks, microbatches)
        return found if self.part is None else schedule_of_ranks(found, self.part[0], ranks)

    def whole_schedule(self, ranks: int, microbatches: int) -> Schedule:
        """The schedule of a whole pipeline: of `ranks` ranks, or, in a pool that trains a part of the model, of the ranks of all pools."""
        total = ranks if self.part is None else self.part[1]
        key = (total, microbatches)
        if key not in self._schedules:
            op = schedule_op(self.module)
            assert op is not None
            name, virtual = op.schedule.data, op.virtual_stages.value.data
            self._schedules[key] = build(
                name, total, virtual, microbatches, transfers=transfers(op)
            )
        return self._schedules[key]

    @cached_property
    def part(self) -> tuple[int, int] | None:
        """For a pool that trains a part of the model: the place of its first rank in the pipeline, and how many ranks the pipeline has. None for others."""
        op = schedule_op(self.module)
        return None if op is None else op.part

    def signature(self, key: object, order: Order, num_stages: int) -> OrderSignature:
        """The signature of an order of tasks, kept under `key`."""
        if key not in self._signatures:
            self._signatures[key] = signature(order, num_stages)
        return self._signatures[key]

    def stage_runs(self, values: Mapping[str, int], stages: int) -> list[StageRun]:
        """The run of each of `stages` virtual stages: its program, with its own number of layers. `values` are the sizes of one plan."""
        pipeline, listed = self.plan.pipeline, self.names.stages
        assert pipeline is not None
        assert listed is not None
        kinds = [stage.kind for stage in listed.stages.data]
        count = dist.local_count(0)
        if pipeline.layers:
            return [
                self.stage_run(self.programs[kind], {**values, count: own}, s)
                for s, (kind, own) in enumerate(zip(kinds, pipeline.layers, strict=True))
            ]
        layers = values[pipeline.counts[0]]
        even = (layers - pipeline.first - pipeline.last) // stages
        own = [even] * stages
        own[0] += pipeline.first
        own[-1] += pipeline.last
        if stages == 1:
            own = [layers]
        return [
            self.stage_run(
                self.programs[kinds[0 if s == 0 else -1 if s == stages - 1 else 1]],
                {**values, count: own[s]},
                s,
            )
            for s in range(stages)
        ]

    def live(
        self,
        axis: str,
        stages: Sequence[StageRun],
        order: Order,
        key: object,
        wanted: Sequence[str],
    ) -> Mapping[str, LiveCounts | KindsAtPeak]:
        """The moments of a rank with this order of tasks, for each quantity in `wanted`. They are computed once for all plans that have the same `key`."""
        known = self._live.setdefault(key, {})
        if any(what not in known for what in wanted):
            arrangement = arrange(in_order(stages, axis, order))
            tables: list[ValueTable] = []
            for stage in stages:
                if stage.layout not in self._tables:
                    self._tables[stage.layout] = value_table(stage)
                tables.append(self._tables[stage.layout])
            layers = [layers_of(stage) for stage in stages]
            lives = rank_lives(arrangement, tables, layers)
            for what in wanted:
                known[what] = (
                    lives.on_device.kinds_at_peak
                    if what == OF_PEAK
                    else PEAKS[what](lives).moments_of_most
                )
        return known

    def stage_run(self, program: stg.ProgramOp, values: Mapping[str, int], stage: int) -> StageRun:
        """The run of a virtual stage with the sizes `values`. Stages of one program with equal trip counts share a layout: the first one's sizes make it."""
        count = dist.local_count(0)
        counts = tuple(size.evaluate(values) for size in self.trip_counts)
        key = (program, values.get(count), counts)
        own = {**values, dist.first_layer(count): 0}

        def lay_out() -> StageLayout:
            if key not in self._layouts:
                self._layouts[key] = layout_with(program, own)
            return self._layouts[key]

        return StageRun(program, lay_out, own, stage)


def layers_of(stage: StageRun) -> dict[str, Size | int]:
    """The number of layers of a virtual stage, under the name by which sizes refer to it; empty without a pipeline."""
    name = dist.local_count(0)
    return {name: stage.values[name]} if name in stage.values else {}
