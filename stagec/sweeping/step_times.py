"""How long a step takes, for many plans of a structure at once: node by node, with the result that each plan would have if it were compiled by itself.

Which node waits for which follows from the structure, the layers, the ranks of the pipeline and the microbatches (`Structure.grouping_keys`). Plans that
have these in common share one graph of nodes, for which one of them is compiled; only the durations of their nodes differ. So durations and ends of nodes
are arrays with a column for each plan. A step of many microbatches is not solved in full: two steps of few microbatches are, and the rest is
extrapolated for each plan where these show that it repeats them (`stagec.estimate.repetition`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from stagec.analysis.sizes import size_values
from stagec.arrays import Bools, Floats, Ints
from stagec.backend.program import Node, TraceProgram, TraceSegment, TraceSet
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError
from stagec.dialects import stg
from stagec.dialects.attributes import SizeAttr
from stagec.dialects.types import TIME_AXIS
from stagec.estimate.costs import require_numbers
from stagec.estimate.graph import AskedNodes, PieceGraph, build_graph
from stagec.estimate.interference import (
    Neighbours,
    computing_us,
    neighbours,
    slowdown,
    takes_units,
)
from stagec.estimate.prices import NodeCosts, Prices
from stagec.estimate.repetition import (
    SAME,
    RepeatedNodes,
    is_put_in,
    may_repeat,
    repeated_nodes,
    timed_pairs,
)
from stagec.estimate.timeline import Hosts, Times, slower, solve
from stagec.explaining.job import NamedJob
from stagec.sweeping.actions import action_sizes, numbers_of, with_numbers
from stagec.sweeping.op_costs import PriceColumns
from stagec.sweeping.structures import Begun, Structure
from stagec.symbolic import Size, constant
from stagec.symbolic.columns import Columns
from stagec.unrolling.rank import RankBody, RankRun

AT_ONCE = 2**22
"""How many times of nodes are computed together at most: the number of nodes whose times are asked for times the number of plans. It bounds memory."""

CompileAt = Callable[[int, Mapping[str, int]], Begun]
"""Compiles the plan of a row, with other values for some of its sizes."""


class UnlikeError(Exception):
    """Raised when plans differ in more than the numbers of their nodes, so that they cannot be timed together."""


@dataclass(frozen=True)
class NodeForm:
    """A node of a segment, and the symbolic sizes from which its numbers follow."""

    node: Node
    numbers: tuple[tuple[Size, ...], ...]
    """The numbers of its action in the order of `ActionForm`, each a sum of sizes."""

    @property
    def without_numbers(self) -> NodeForm:
        """The same, but for the numbers that its sizes come to in the step that was compiled."""
        action = with_numbers(self.node.action, [0] * len(self.numbers))
        return replace(self, node=replace(self.node, action=action))


@dataclass
class CompiledStep:
    """The step of one compiled plan, prepared so that it can be timed with the numbers of other plans."""

    traces: TraceSet
    graph: PieceGraph
    prices: Prices
    forms: dict[tuple[int, int], list[NodeForm]]
    """The nodes of each segment, by the number of the rank class and that of the segment."""

    @cached_property
    def hosts(self) -> Hosts | None:
        """How the hosts launch the nodes; None if the device says nothing of launches."""
        return Hosts.of(self.graph, [(self.traces, self.prices)] * len(self.graph.pieces))

    def segments(self, number: int) -> list[tuple[int, TraceSegment, list[NodeForm]]]:
        """The segments that a rank class runs, by their numbers, and their nodes with symbolic sizes in place of numbers."""
        own = self.traces.classes[number].program.segments
        return [
            (index, replace(own[index], nodes=()), [each.without_numbers for each in forms])
            for (of_class, index), forms in self.forms.items()
            if of_class == number
        ]

    @cached_property
    def neighbours(self) -> list[Neighbours]:
        """For each rank class what may run beside its computation, by positions; empty if nothing is slowed by that."""
        device = self.prices.plan.device
        return neighbours(device, self.graph) if takes_units(device) else []

    @cached_property
    def watched(self) -> AskedNodes:
        """The nodes whose times say how much computation is slowed by what runs beside it."""
        begins = self.graph.begins
        return self.graph.with_nodes(
            np.concatenate(
                [np.zeros(0, np.int64)]
                + [
                    each.positions + begin
                    for each, begin in zip(self.neighbours, begins, strict=False)
                ]
            )
        )

    @cached_property
    def watched_neighbours(self) -> list[Neighbours]:
        """The same as `neighbours` by the numbers of nodes among those that are watched."""
        index = self.watched.index
        return [
            each.numbered(index[begin:])
            for each, begin in zip(self.neighbours, self.graph.begins, strict=False)
        ]

    def solve(self, durations: list[Floats], asked: AskedNodes) -> Times:
        """When nodes that are asked for start and end, if nodes take these `durations` in µs: for each piece of the graph, `[node, plan]`."""
        return solve(asked, durations, hosts=self.hosts)

    def computing(self, durations: list[Floats]) -> Floats:
        """`[class, plan]`: how long ranks compute, in µs."""
        parts: list[list[tuple[int, Sequence[Node], Floats]]] = [[] for _ in self.graph.classes]
        for piece, us in zip(self.graph.pieces, durations, strict=True):
            parts[piece.rank_class].append((len(piece.first), piece.nodes, us))
        return np.stack([computing_us(own) for own in parts])

    def lost(self, times: Times) -> Floats:
        """`[class, plan]`: how much longer ranks would compute because of what runs beside that, in µs. `times` are those of all watched nodes."""
        return np.stack(
            [each.lost(times.starts, times.ends[:-1]) for each in self.watched_neighbours]
        )

    def durations(self, columns: PriceColumns, rows: Ints) -> list[Floats]:
        """The durations of the nodes of each piece of the graph in µs, `[node, plan]`, in the plans with the numbers `rows`."""
        of_segments: dict[tuple[int, int], Floats] = {}
        for (number, index), forms in self.forms.items():
            found = [columns.of(each.node, each.numbers) for each in forms]
            moved, written = zip(
                *(columns.bytes_of(each.node, each.numbers) for each in forms), strict=True
            )
            costs = NodeCosts(
                np.stack([each.us[rows] for each in found]),
                np.stack([each.basis[rows] for each in found]),
                np.stack([each[rows] for each in moved]),
                np.stack([each[rows] for each in written]),
            )
            escaping = self.prices.escaping(self.traces.classes[number].program)[index]
            self.prices.share([each.node for each in forms], escaping, costs)
            of_segments[number, index] = costs.us
        return [
            of_segments[p.rank_class, p.segment][p.begin : p.begin + len(p.nodes)]
            for p in self.graph.pieces
        ]


@dataclass
class StepTimes:
    """Computes the time of a step for the plans of a structure."""

    structure: Structure
    sizes: Columns
    """The sizes of the plans, one row each."""
    compile_at: CompileAt
    resumed: Callable[[Compiled, ModuleOp], Compiled]
    """Runs the passes that a module has before it, whose plan is that of a compiled one but for sizes."""
    _begun: dict[object, Begun] = field(default_factory=dict)
    """By `grouping_keys` the plan that was compiled first, whose IR others with these start from."""
    _steps: dict[object, CompiledStep] = field(default_factory=dict)
    _columns: PriceColumns | None = None

    def __post_init__(self) -> None:
        names = self.structure.names
        self.microbatches = self.sizes.number(names.num_microbatches).astype(np.int64)
        axis = names.stages.axis.data if names.stages is not None else None
        self.ranks = self.sizes.names[axis] if axis else self.sizes.constant(1)
        self.grouping_keys = self.structure.grouping_keys(self.sizes)
        self.batch = self.structure.job.compiled.stated.batch_dim
        if self.structure.begun is not None:
            own = size_values(self.structure.module)
            sizes = Columns({n: np.array([v], np.int64) for n, v in own.items()}, 1)
            key = tuple(self.structure.grouping_keys(sizes)[0].tolist())
            self.keep(self.structure.begun, key)

    def seconds(self) -> Floats:
        """`[plan]`: the time of a step in seconds; NaN where the plan has to be compiled by itself."""
        found, is_whole = np.full(self.sizes.count, np.nan), np.zeros(self.sizes.count, bool)
        waiting, more = np.arange(self.sizes.count), 0
        while len(waiting):
            for rows, few in self.groups(waiting, more):
                is_whole[rows] = not few
                try:
                    found[rows] = self.extended(rows, few) if few else self.whole(rows)
                except UnlikeError:
                    continue
            # Steps of a few microbatches did not repeat themselves in these plans: try more microbatches, in the end all.
            waiting, more = waiting[np.isnan(found[waiting]) & ~is_whole[waiting]], more + 1
        return found / 1e6

    def shorter_steps(self, row: int, more: int) -> tuple[int, ...]:
        """Two numbers of microbatches whose steps may tell how long the step of a plan takes. Empty where only a step with all of its microbatches does.

        `more` counts the pairs that were tried before.
        """
        plan, number = self.structure.plan, int(self.microbatches[row])
        if not may_repeat(plan):
            return ()
        return next(islice(timed_pairs(plan, int(self.ranks[row]), number), more, None), ())

    def groups(self, rows: Ints, more: int) -> Iterator[tuple[Ints, tuple[int, ...]]]:
        """The plans that are timed together, and by steps of which two numbers of microbatches (`shorter_steps`); empty for steps with all of their own.

        A plan with too few microbatches for two steps of its own may share those of others (at first; `more` says that they did not tell).
        """
        alike: dict[tuple[int, ...], dict[int, list[int]]] = {}
        for row in rows.tolist():
            own = alike.setdefault(tuple(self.grouping_keys[row].tolist()), {})
            own.setdefault(int(self.microbatches[row]), []).append(row)
        for by_number in alike.values():
            members: dict[tuple[int, ...], list[int]] = {}
            for number in sorted(by_number, reverse=True):
                own = by_number[number]
                few = self.shorter_steps(own[0], more)
                others = members if not (few or more) and may_repeat(self.structure.plan) else ()
                shared = (each for each in others if goes_on_from(each, number))
                members.setdefault(few or next(shared, (number,)), []).extend(own)
            for few, own in members.items():
                yield np.sort(np.array(own, np.int64)), few if len(few) > 1 else ()

    # Steps

    def step(self, row: int, microbatches: int) -> CompiledStep:
        """The compiled step that a plan has in common with others, with this number of microbatches. `UnlikeError` if there is none."""
        key = (tuple(self.grouping_keys[row].tolist()), microbatches)
        if key not in self._steps:
            self._steps[key] = self.compiled(row, microbatches)
        return self._steps[key]

    def compiled(self, row: int, microbatches: int) -> CompiledStep:
        """The step of a plan that has the `grouping_keys` of a row, with a batch that makes this number of microbatches. `UnlikeError` if there is none."""
        key = tuple(self.grouping_keys[row].tolist())
        begun = self._begun.get(key)
        try:
            made = NamedJob(
                self.compiled_anew(row, microbatches, key)
                if begun is None
                else self.with_microbatches(begun, microbatches)
            ).unrolled
        except CompileError as error:
            raise UnlikeError from error
        own = size_values(made.module)
        if own.get(TIME_AXIS, 1) != microbatches:
            raise UnlikeError
        require_numbers(made.plan, made.trace_set.classes)
        found = step_of(made, self.sizes.names.keys())
        if self._columns is None:
            names, kernels = self.structure.names, found.prices.kernels
            self._columns = PriceColumns(made.plan, self.sizes, tuple(names.mesh), kernels)
        check_forms(found, own)
        if begun is None and microbatches == self.microbatches[row]:
            here = {name: int(column[row]) for name, column in self.sizes.names.items()}
            check_forms(found, here)
        return found

    def compiled_anew(self, row: int, microbatches: int, key: object) -> Compiled:
        """The plan of a row, compiled with a batch that makes this number of microbatches; others with this `key` start from it."""
        others: dict[str, int] = {}
        if microbatches != self.microbatches[row]:
            size, rest = divmod(
                int(self.sizes.names[self.batch][row]) * microbatches, int(self.microbatches[row])
            )
            if rest:
                raise UnlikeError
            others[self.batch] = size
        begun = self.compile_at(row, others)
        assert begun.compiled is not None
        self.keep(begun, key)
        return begun.compiled

    def keep(self, begun: Begun, key: object) -> None:
        """Let others start from a compilation, if nothing but the size of its batch has to be another one."""
        if begun.module is not None and batch_of(begun.module, self.batch) is not None:
            self._begun[key] = begun

    def with_microbatches(self, begun: Begun, microbatches: int) -> Compiled:
        """A compiled plan with another batch, which makes this number of microbatches. `UnlikeError` if that is not possible."""
        assert begun.module is not None and begun.compiled is not None
        module = begun.module.clone()
        batch, own = batch_of(module, self.batch), size_values(begun.module)
        assert batch is not None
        size, rest = divmod(own[self.batch] * microbatches, own.get(TIME_AXIS, 1))
        if rest:
            raise UnlikeError
        batch.size = SizeAttr(constant(size))
        return self.resumed(begun.compiled, module)

    @property
    def columns(self) -> PriceColumns:
        assert self._columns is not None
        return self._columns

    # Times in µs

    def whole(self, rows: Ints) -> Floats:
        """The times of plans that share a step with all of their microbatches: `[plan]`."""
        step = self.step(int(rows[0]), int(self.microbatches[rows[0]]))
        found = [
            slowed_times([step], own, lambda us: us[0])[0].makespan
            for own in self.durations([step], rows)
        ]
        return np.concatenate(found)

    def extended(self, rows: Ints, few: Sequence[int]) -> Floats:
        """The times of plans, `[plan]`, extrapolated from steps of two numbers of microbatches; NaN where the longer step does not repeat the shorter one."""
        steps = [self.step(int(rows[0]), number) for number in few]
        blocks = blocks_of(*steps)
        if blocks is None:
            return np.full(len(rows), np.nan)
        times = (self.microbatches[rows] - few[1]) / (few[1] - few[0])
        found: list[Floats] = []
        at = 0
        for own in self.durations(steps, rows):
            here = times[at : at + own[0][0].shape[1]]
            at += len(here)
            found.append(self.repeated(steps, own, blocks, here))
        return np.concatenate(found)

    def repeated(
        self,
        steps: Sequence[CompiledStep],
        durations: Sequence[list[Floats]],
        blocks: Sequence[RepeatedNodes],
        times: Floats,
    ) -> Floats:
        """`[plan]`: the longer of two steps, and `times` more of what it takes longer than the shorter one. NaN where the steps do not show that this holds."""

        def grown(of: Sequence[Floats]) -> Floats:
            return of[1] + times * (of[1] - of[0])

        is_behind = loses_behind(steps, blocks)
        few, more = steps
        watched = [few.graph.exits_alone if is_behind else few.watched, more.watched]
        alone = [
            step.solve(own, asked)
            for step, own, asked in zip(steps, durations, watched, strict=True)
        ]
        holds = shifts_evenly(alone, blocks)
        # Where that holds, what is behind the blocks is only later in the longer step, and loses as much however many blocks there are.
        lost = more.lost(alone[1]) if is_behind and more.neighbours else None
        made = slowed_times(steps, durations, grown, alone, lost)
        holds &= shifts_evenly(made, blocks)
        return np.where(holds, grown([each.makespan for each in made]), np.nan)

    def durations(self, steps: Sequence[CompiledStep], rows: Ints) -> Iterator[list[list[Floats]]]:
        """The durations of the nodes of each step (`CompiledStep.durations`), for some of the plans at a time, so that arrays stay small (`AT_ONCE`)."""
        nodes = max(step.watched.count for step in steps)
        size = max(1, AT_ONCE // max(nodes, 1))
        for at in range(0, len(rows), size):
            yield [step.durations(self.columns, rows[at : at + size]) for step in steps]


def goes_on_from(few: Sequence[int], microbatches: int) -> bool:
    """Whether a step may be the longer of two of fewer microbatches with whole blocks put in, or with none."""
    step, rest = few[-1] - few[0], microbatches - few[-1]
    return step > 0 and rest >= 0 and rest % step == 0


def batch_of(module: ModuleOp, batch: str) -> stg.DimOp | None:
    """The op that says how large the batch is; None if that follows from other sizes."""
    dims = (op for op in module.body.ops if isinstance(op, stg.DimOp))
    found = next((op for op in dims if op.dim.data == batch), None)
    return None if found is None or found.size.data.constant is None else found


def check_forms(step: CompiledStep, values: Mapping[str, int]) -> None:
    """`UnlikeError` unless the forms of all nodes come to the numbers that the step has, which was compiled with these sizes.

    A step of fewer microbatches than its plan has is compared at its own sizes: what a step does once is a larger part of each of fewer.
    """
    known: dict[Size, int] = {}

    def number(size: Size) -> int:
        if size not in known:
            exact = size.evaluate(values)
            known[size] = -(-exact.numerator // exact.denominator)
        return known[size]

    for forms in step.forms.values():
        for each in forms:
            own = tuple(sum(map(number, sizes)) for sizes in each.numbers)
            if own != numbers_of(each.node.action):
                raise UnlikeError


def step_of(compiled: Compiled, known: Collection[str]) -> CompiledStep:
    """A compiled plan's step with the sizes behind the numbers of all nodes, written in names that are `known` of each plan."""
    traces, runs = compiled.trace_set, compiled.runs
    forms: dict[tuple[int, int], list[NodeForm]] = {}
    in_numbers: dict[object, Size] = {}
    for number, (rank_class, run) in enumerate(zip(traces.classes, runs, strict=True)):
        program = rank_class.program
        for index, body in bodies_of(program, run, compiled):
            values = run.stages[body.stage].values
            sizes = action_sizes(body.body, compiled.unroller.forms)
            if sizes is None:
                raise UnlikeError
            nodes = program.segments[index].nodes
            forms[number, index] = [
                NodeForm(node, tuple(named(each, known, values, in_numbers) for each in own))
                for node, own in zip(nodes, sizes, strict=True)
            ]
    try:
        prices = Prices.of(traces, compiled.plan)
        graph = build_graph(traces, launches=prices.host_launch_us > 0)
    except CompileError as error:
        # The ranks of this plan wait for each other in a circle: when the plan is compiled by itself, the error says so.
        raise UnlikeError from error
    return CompiledStep(traces, graph, prices, forms)


def bodies_of(
    program: TraceProgram, run: RankRun, compiled: Compiled
) -> Iterator[tuple[int, RankBody]]:
    """The body behind each segment that a rank's program runs, with the number of the segment."""
    rank = compiled.unroller.arrangements.of(run)
    used, first = np.unique(program.segment, return_index=True)
    for index, at in zip(used.tolist(), first.tolist(), strict=True):
        yield index, rank.bodies[int(rank.body[rank.order[at]])]


def named(
    sizes: tuple[Size, ...],
    known: Collection[str],
    values: Mapping[str, int],
    found: dict[object, Size],
) -> tuple[Size, ...]:
    """The sizes with numbers in place of the names that are a stage's own, such as its number of layers. `known` names stay. `found` keeps them."""

    def in_numbers(size: Size) -> Size:
        own = tuple((name, values[name]) for name in sorted(size.names) if name not in known)
        if (size, own) not in found:
            found[size, own] = size.substitute(dict(own))
        return found[size, own]

    return tuple(map(in_numbers, sizes))


def slowed_times(
    steps: Sequence[CompiledStep],
    durations: Sequence[list[Floats]],
    of_whole: Callable[[Sequence[Floats]], Floats],
    alone: Sequence[Times] | None = None,
    lost: Floats | None = None,
) -> list[Times]:
    """When the nodes of each step end, where computation is slowed by the communication that runs beside it (`stagec.estimate.interference`).

    The factor is that of the whole step: `of_whole` extrapolates to it what these steps lose (µs, `[plan]` for each step). `alone`: the times without slowing.
    `lost`: what the whole step loses, where that is known.
    """
    alone = alone or [s.solve(own, s.watched) for s, own in zip(steps, durations, strict=True)]
    if not steps[0].neighbours:
        return list(alone)
    computing = [step.computing(own) for step, own in zip(steps, durations, strict=True)]
    if lost is None:
        lost = of_whole([step.lost(own) for step, own in zip(steps, alone, strict=True)])
    factors = slowdown(of_whole(computing), lost)
    if (factors == 1).all():
        return list(alone)
    return [
        step.solve(slower(step.graph, own, factors), step.graph.exits_alone)
        for step, own in zip(steps, durations, strict=True)
    ]


def blocks_of(few: CompiledStep, more: CompiledStep) -> list[RepeatedNodes] | None:
    """The nodes of each rank class that the longer step has and the shorter one has not, if they repeat others; None if they do not in some class.

    Nodes are the same if they have the same symbolic sizes. Numbers may differ: what a step does once is a larger part of each of fewer microbatches.
    """
    found: list[RepeatedNodes] = []
    for number, (one, other) in enumerate(
        zip(few.traces.classes, more.traces.classes, strict=True)
    ):
        same = few.segments(number) == more.segments(number)
        block = repeated_nodes(one.program, other.program) if same else None
        before, after = (step.graph.exits_of(number) for step in (few, more))
        if block is None or not is_put_in(before.astype(np.int8), after.astype(np.int8), block, 0):
            return None
        found.append(block)
    return found


def loses_behind(steps: Sequence[CompiledStep], blocks: Sequence[RepeatedNodes]) -> bool:
    """Whether all computation that may be slowed is behind the nodes that the longer step has more, in the same places, as is what runs beside it."""
    for few, more, block in zip(*(step.neighbours for step in steps), blocks, strict=False):
        here = more.positions
        later = more.numbered(np.arange(here.max(initial=-1) + 1) - (block.stop - block.start))
        if here.min(initial=block.stop) < block.stop or not few.is_same(later):
            return False
    return True


def shifts_evenly(times: Sequence[Times], blocks: Sequence[RepeatedNodes]) -> Bools:
    """`[plan]`: whether the exits of the nodes that the longer step has more (`blocks`) delay all later ones of every rank class by the same time.

    Nodes of a piece that are no exits are as much later as what the piece waits for.
    """
    few, more = times
    delay = more.makespan - few.makespan
    near = SAME * more.makespan
    holds = np.ones(len(delay), bool)
    for number, block in enumerate(blocks):
        before, after = (each.exits_of(number) for each in times)
        exits = np.cumsum(np.append(0, more.asked.graph.exits_of(number)))
        own = RepeatedNodes(*exits[[block.start, block.stop]].tolist())
        holds &= is_put_in(before, after, own, delay, near)
    return holds
