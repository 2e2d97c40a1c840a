"""How long a step takes, in outline: a rough time from sums of the times of its ops, for all plans of a structure at once.

A rank takes as long as its forward and backward passes, each of which is followed by itself (`passes_alone`), or as long as its busiest stream if that is
longer. Collectives beside computation slow it down. The ranks of a pipeline also idle and wait for transfers: as long as in their schedule with stages of
equal cost. What runs once per step is added, unless a pass of another stage hides it. Outlines only rank plans. The times that a search reports are whole
estimates (`stagec.estimate`), which follow every node of all ranks.

The schedule of a pipeline decides only how long ranks idle, how often values go from rank to rank, and how often parameters that are split are gathered. So
plans that differ in their schedules, or in the number of stages of a rank, are one structure; `Turns` says how each of them runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from xdsl.ir import Operation

from stagec.analysis.communication import gathers_updated
from stagec.analysis.dataflow import behind_views
from stagec.arrays import Floats
from stagec.dialects import stg
from stagec.dialects.sched import COMPUTE_STREAM, work_of
from stagec.dialects.sched.actions import Collective, Compute, Transfer
from stagec.dialects.sched.tasks import COMPUTE_TASKS, ONCE, TRANSFER_TASKS
from stagec.estimate.interference import (
    is_product,
    pause_by_node,
    share_by_node,
    slowdown,
    takes_units,
)
from stagec.estimate.prices import ATTENTION
from stagec.explaining.job import NamedJob
from stagec.explaining.rolled_operations import ClassOperations, Term
from stagec.rewriting.saved_values import levels_of
from stagec.schedules import CATALOGUE, ActionCosts, build, simulate
from stagec.schedules.transfers import RESIDENT_STAGES
from stagec.searching.last_reductions import LastReductions, Reduction
from stagec.searching.passes_alone import PassAlone, PassNode, Streams, latest
from stagec.searching.term_prices import TermPrices, TermTime
from stagec.sweeping.structures import Structure
from stagec.symbolic import ceildiv, symbol
from stagec.symbolic.columns import Columns
from stagec.unrolling.rank import StageRun

Total = np.ndarray | float
STEP = "step"
"""The name of the rough time of a step in seconds."""
LEAST = "least"
"""The name of a lower bound on a step's time in seconds: microbatches and bubble alone. Plans that also compute something again, or split their storage, take
no less."""
NOTHING, SOMETHING, CORE_ATTENTION, LAYERS = "", "something", "attention", "layers"
"""What a plan surely computes once more: nothing; something; the core of its layers' attention, and perhaps other ops; or all that the backward pass of a layer
reads, as only the layer's input is saved."""


def bound_name(again: str = NOTHING, adds_shards: bool = False) -> str:
    """The name of the lower bound for plans that compute `again` what this says.

    Those whose data-parallel ranks split gradients add no gradient to a sum before it is reduced (`adds_shards`).
    """
    return ", ".join(filter(None, (LEAST, again, "shards" * adds_shards)))


BOUNDS = tuple(
    bound_name(again, adds_shards)
    for adds_shards in (False, True)
    for again in (NOTHING, SOMETHING, CORE_ATTENTION, LAYERS)
)
GRADIENTS = "grad_reduce"
SHORT = 1e-3
"""The latency of a transfer between stages, as a share of a forward pass, with which a schedule is simulated to count the transfers that ranks wait for. It
is short enough to change nothing else."""
ROUNDS = 4
"""How many rounds of microbatches (as many as there are ranks) are simulated. Each further round idles and waits as the last one does."""
FORWARDS = 3
"""How long a forward and a backward pass take together, as a multiple of a forward pass, in the schedules that are simulated."""
SAME_ROUNDS = 4
"""The number of the round of microbatches from which on each gathers as many stages as the round before."""


@dataclass(frozen=True)
class Turns:
    """How the ranks of a pipeline run their stages: a schedule, and the stages of each rank."""

    schedule: str = ""
    virtual_stages: int = 1


@dataclass
class ClassSeconds:
    """The times of a rank of one class in a step, with all of its microbatches. All are seconds, `[plan]`.

    Dictionaries are by part of a step: `F` for forward passes, `B` for backward passes, `once` for what runs once per step.
    """

    compute: dict[str, Total] = field(default_factory=lambda: defaultdict(float))
    """Computation, by part."""
    waited: dict[str, Total] = field(default_factory=lambda: defaultdict(float))
    """Communication that computation waits for, by part."""
    beside: dict[str, dict[str, Total]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )
    """Communication that runs beside computation, by part and stream."""
    passes: Total = 0.0
    """The forward and backward passes of all microbatches, each followed by itself."""
    behind: Total = 0.0
    """How long reductions of gradients that are put off go on after the last pass has computed."""
    put_off: dict[str, Total] = field(default_factory=lambda: defaultdict(float))
    """Reductions of gradients that begin when the backward pass of their microbatch has ended, by stream."""
    once: Total = 0.0
    """What runs once per step, without what passes can hide."""
    moving: Total = 0.0
    """Communication that computation of the forward and backward passes may run beside."""
    taking: Total = 0.0
    """How much longer computation would take if it ran beside all of these collectives."""
    pausing: Total = 0.0
    """How much longer products would."""
    products: Total = 0.0
    """Products in the forward and backward passes."""
    gathers: Floats = field(default_factory=lambda: np.zeros(1))
    """Gathers of parameters that run once per step, for the first forward pass."""
    gradients: Floats = field(default_factory=lambda: np.zeros(1))
    """Reductions of gradients that run once per step."""
    last_gradients: dict[str, Total] = field(default_factory=lambda: defaultdict(float))
    """By part, how much later all that runs once per step ends because of reductions of gradients that no backward pass hides (`last_reductions`)."""
    attention: Floats = field(default_factory=lambda: np.zeros(1))
    """Attention in the forward passes of layers, which selective recomputation runs again."""
    layers: Floats = field(default_factory=lambda: np.zeros(1))
    """Ops in the forward passes of layers that full recomputation has to run again, each in a kernel of its own."""
    adding: Floats = field(default_factory=lambda: np.zeros(1))
    """Where gradients of weights are added to those of earlier microbatches as they are, and not as shards: at most what of `compute` is that."""
    joining: Floats = field(default_factory=lambda: np.zeros(1))
    """Ops in the backward passes of layers that may take less if what they read is computed again in front of them, by the same kernel."""
    recomputed: Total = 0.0
    """Recomputation in the backward passes. It waits for no gradient, so ranks may do it while they would idle."""

    def working(self, again: Total = 0.0) -> Floats:
        """How long the forward and backward passes take if all communication that can run beside computation does, and if they also compute `again`.

        Reductions of a backward pass also run beside the next forward pass.
        """
        found = np.zeros(1) + again
        beside: dict[str, Total] = defaultdict(float)
        for part in ("F", "B"):
            found = found + self.compute[part] + self.waited[part]
            for stream, seconds in self.beside[part].items():
                beside[stream] = beside[stream] + seconds
        for seconds in beside.values():
            found = np.maximum(found, seconds)
        return found

    def again(self, what: str) -> Floats:
        """How long it takes at least to compute this once more."""
        return {CORE_ATTENTION: self.attention, LAYERS: self.layers}.get(what, np.zeros(1))

    def left_out(self, again: str, adds_shards: bool) -> Floats:
        """What plans may do in less time than this one, if they compute something `again`, or add shards of gradients."""
        return self.adding * adds_shards + self.joining * (again != NOTHING)

    @property
    def alone(self) -> Floats:
        """How long the forward and backward passes take at least, with what they wait for, and without what runs beside them or is computed again."""
        found = np.zeros(1) - self.recomputed
        for part in ("F", "B"):
            found = found + self.compute[part] + self.waited[part]
        return found

    @property
    def lasting(self) -> Floats:
        """How long the forward and backward passes take, with what they wait for."""
        return np.maximum(self.working(), self.passes)

    def add(self, other: ClassSeconds, factor: Total = 1.0) -> None:
        """Add the communication of another class, `factor` times."""
        for part, seconds in other.waited.items():
            self.waited[part] = self.waited[part] + factor * seconds
        for part, streams in other.beside.items():
            for stream, seconds in streams.items():
                self.beside[part][stream] = self.beside[part][stream] + factor * seconds


def part_of(term: Term) -> str:
    """The part of a step that a term belongs to: `F`, `B` or `once`."""
    if term.task in (*ONCE, "GATHER"):
        return "once"
    return "F" if term.task in ("F", "GATHER_F", "SEND_F", "RECV_F") else "B"


def outline(structure: Structure, sizes: Columns, turns: Sequence[Turns] = ()) -> dict[str, Floats]:
    """The outline of a step: its seconds on the rank that takes longest, and its `BOUNDS`, by name, `[plan]` each.

    `turns` says how each plan runs its pipeline. If it is empty, all plans run as the structure does.
    """
    job = structure.job
    microbatches = sizes.number(job.names.num_microbatches).astype(float)
    turns = turns or own_turns(structure, sizes)
    idle = bubbles(structure, sizes, turns)
    prices = TermPrices(job, sizes)
    gathers = gathers_of(structure, sizes, turns)
    again = RunAgain.of(structure.programs.values())
    every = [sums_of(each, prices, sizes, gathers, again) for each in job.classes]
    for each, (sums, _) in zip(job.classes, every, strict=True):
        sums.passes, sums.behind = passes_of(each, prices, sizes, microbatches, sums.put_off)
        sums.once = once_of(each, prices, sizes)
        for part, reductions in last_reductions_of(each, prices, sizes).items():
            sums.last_gradients[part] = once_of(each, prices, sizes, reductions.ends()) - sums.once
    between = transfers_between(structure, [travel for _, travel in every])
    more = np.array([each.virtual_stages for each in turns], float) if turns else np.ones(1)
    more = more / structure.names.virtual_stages - 1
    sent = sum((sum(each.values()) for each in between.beside.values()), 0.0)
    for sums, travel in every:
        sums.add(travel)
        sums.add(between, more)
    of_classes = [sums for sums, _ in every]
    forwards = microbatches * (FORWARDS if job.compiled.stated.is_training else 1)
    units = while_idle([each.lasting / forwards for each in of_classes], ranks_of(structure, sizes))
    last = max(len(every) - 1, 1)
    places = [at * (PLACES - 1) // last for at in range(len(every))]
    found = [
        of_class(job, sums, microbatches, Idleness(idle, at, unit, sent / (2 * microbatches)))
        for at, sums, unit in zip(places, of_classes, units, strict=True)
    ]
    # Of several repeats that are cut, one need not wait for another: each may have a loss of its own, and what it reads.
    held_up = [NO_PIPELINE] * sizes.count if structure.cuts_several else idle
    return {
        STEP: np.max(found, axis=0),
        **dict(
            zip(
                BOUNDS,
                least_times(of_classes, places, held_up, microbatches, forwards),
                strict=True,
            )
        ),
    }


def least_times(
    of_classes: Sequence[ClassSeconds],
    places: Sequence[int],
    idle: Sequence[Bubble],
    microbatches: Floats,
    forwards: Floats,
) -> Iterator[Floats]:
    """The bounds on a step's time in seconds, `[plan]` each, in the order of `BOUNDS`.

    A rank works, and besides waits for the forward passes of ranks before it when it begins, and they have its backward passes before them when it has ended.
    Each of those works at least as long as the rank that works least, without what runs beside. What a rank waits for in between it may hide: where the first
    rank works longest, it waits for nobody.
    """
    ends, begins = (
        np.array([getattr(each, name) for each in idle])[:, places].T for name in ("ends", "begins")
    )
    forward = np.min([each.compute["F"] + 0 * microbatches for each in of_classes], axis=0)
    for adds_shards in (False, True):
        for again in (NOTHING, SOMETHING, CORE_ATTENTION, LAYERS):
            less = [each.left_out(again, adds_shards) for each in of_classes]
            pairs = [*zip(of_classes, less, strict=True)]
            alone = [each.alone - own + 0 * microbatches for each, own in pairs]
            waits = ends * np.min(alone, axis=0) / forwards + begins * forward / microbatches
            own = [each.working(each.again(again) - own) for each, own in pairs]
            yield np.max(np.stack(own) + waits, axis=0)


def ranks_of(structure: Structure, sizes: Columns) -> Floats:
    """`[plan]`: the number of ranks of the pipeline; 1 without one."""
    stages = structure.names.stages
    return np.ones(sizes.count) if stages is None else sizes.names[stages.axis.data].astype(float)


def while_idle(units: Sequence[Total], ranks: Floats) -> list[Total]:
    """For each class, the mean time of a forward pass on the other ranks of the pipeline: a rank idles while others begin and end.

    `units` are the times of a forward pass on a rank of each class. There is one first rank and one last rank; all ranks between are alike.
    """
    if len(units) == 1:
        return [*units]
    number = [np.ones(len(ranks)) for _ in units]
    for middle in range(1, len(units) - 1):
        number[middle] = (ranks - 2) / (len(units) - 2)
    together = sum(n * unit for n, unit in zip(number, units, strict=True))
    return [(together - unit) / np.maximum(sum(number) - 1, 1) for unit in units]


def own_turns(structure: Structure, sizes: Columns) -> Sequence[Turns]:
    """The turns of plans that all run as the text of the structure says; empty without a pipeline."""
    pipeline = structure.plan.pipeline
    if pipeline is None:
        return ()
    return [Turns(pipeline.schedule, structure.names.virtual_stages)] * sizes.count


def transfers_between(structure: Structure, of_classes: Sequence[ClassSeconds]) -> ClassSeconds:
    """The communication of a stage that sends to and receives from neighbours on both sides."""
    if structure.names.stages is None:
        return ClassSeconds()
    if len(of_classes) > 2:
        return of_classes[1]
    found = ClassSeconds()
    for each in of_classes:
        found.add(each)
    return found


@dataclass(frozen=True)
class Bubble:
    """How long a schedule leaves ranks idle, with stages of equal cost and short transfers. The unit of time is a microbatch's forward pass through a rank."""

    idle: float
    """How long the rank idles that idles most."""
    waits: float
    """How many transfers between stages follow one another that nothing hides."""
    ahead: Floats
    """`[rank, stage]`, for the first, a middle and the last rank: when each of its stages begins, in ascending order."""
    behind: Floats
    """`[rank, stage]`: how long before the end of the step each stage has ended its last pass, in ascending order."""
    ends: Floats
    """`[rank]`: before a rank begins and after it has ended, how long others run passes of one microbatch, however long these take. It is 0 where backward
    passes have two parts, since either may be the longer one."""
    begins: Floats
    """`[rank]`: where backward passes have two parts, when each rank begins, after forward passes of other ranks; else 0."""

    def grown(self, before: Bubble, times: int) -> Bubble:
        """The bubble with more microbatches: `times` as many more as this one has than `before`."""
        pairs = zip(vars(self).values(), vars(before).values(), strict=True)
        return Bubble(*(now + (now - then) * times for now, then in pairs))


PLACES = 3
"""How many ranks of a pipeline are looked at: the first, one in the middle, and the last."""
NOT_HELD_UP = np.zeros(PLACES)
NO_PIPELINE = Bubble(
    0.0, 0.0, np.zeros((PLACES, 1)), np.zeros((PLACES, 1)), NOT_HELD_UP, NOT_HELD_UP
)


def bubbles(structure: Structure, sizes: Columns, turns: Sequence[Turns]) -> Sequence[Bubble]:
    """The bubble of each plan."""
    names = structure.names
    if names.stages is None:
        return [NO_PIPELINE] * sizes.count
    ranks = sizes.names[names.stages.axis.data].tolist()
    microbatches = sizes.number(names.num_microbatches).tolist()
    return [bubble(*each) for each in zip(turns, ranks, microbatches, strict=True)]


@cache
def bubble(turns: Turns, ranks: int, microbatches: int) -> Bubble:
    """The bubble of a schedule. With many microbatches one of the catalogue is extrapolated from two simulations of fewer rounds."""
    rounds, rest = divmod(microbatches, ranks)
    entry = CATALOGUE.get(turns.schedule)
    if entry is not None and rounds > ROUNDS:
        before, now = (bubble(turns, ranks, n * ranks + rest) for n in (ROUNDS - 1, ROUNDS))
        return now.grown(before, rounds - ROUNDS)
    stages = entry.stages_per_rank if entry is not None else None
    schedule = build(turns.schedule, ranks, stages or turns.virtual_stages, microbatches)
    timing, later = simulate(schedule), simulate(schedule, ActionCosts(latency=SHORT))
    computes = ~schedule.is_transfer
    ahead, behind = np.zeros((2, PLACES, schedule.stages_per_rank))
    for at, rank in enumerate((0, ranks // 2, ranks - 1)):
        own = np.flatnonzero(computes & (schedule.rank == rank))
        stages = schedule.table.stage[own]
        of_stages = [own[stages == stage] for stage in np.unique(stages)]
        ahead[at] = sorted(timing.start[each].min() for each in of_stages)
        behind[at] = sorted(timing.makespan - timing.end[each].max() for each in of_stages)
    # Each stage's forward pass takes one.
    unit = schedule.stages_per_rank
    waits = (later.makespan - timing.makespan) / SHORT
    idle, ahead, behind = float(timing.idle.max()) / unit, ahead / unit, behind / unit
    if schedule.some_in_halves:
        return Bubble(idle, waits, ahead, behind, NOT_HELD_UP, ahead[:, 0])
    # As many backward passes come behind as forward passes came ahead, and each is twice as long.
    ends = FORWARDS * np.minimum(ahead[:, 0], behind[:, 0] / (FORWARDS - 1))
    return Bubble(idle, waits, ahead, behind, ends, NOT_HELD_UP)


@dataclass(frozen=True)
class Idleness:
    """How long ranks of a class idle and wait for transfers. All times are seconds, `[plan]`."""

    bubbles: Sequence[Bubble]
    """The bubble of each plan."""
    place: int
    """Which of the `PLACES` of a bubble the ranks of the class correspond to."""
    unit: Total
    """A microbatch's forward pass through a rank."""
    transfer: Total
    """One transfer between stages."""

    def of(self, number: Callable[[Bubble], float]) -> Floats:
        """`[plan]`: a number of each plan's bubble."""
        return np.array([number(each) for each in self.bubbles])

    def idling(self, forward: Total) -> Floats:
        """No less than others take for the forward passes that the first one here waits for: `forward` each."""
        begins = self.of(lambda each: each.begins[self.place]) * forward
        return np.maximum(self.of(lambda each: each.idle) * self.unit, begins)

    @property
    def waiting(self) -> Floats:
        """How long ranks wait for transfers that nothing hides."""
        return self.of(lambda each: each.waits) * self.transfer

    def at_the_end(self, seconds: Total) -> Floats:
        """The part that is left when the step of the last rank ends, of what begins when the last stage of a rank of the class has ended."""
        return np.maximum(seconds - self.of(lambda each: each.behind[self.place][0]) * self.unit, 0)

    def exposed(self, seconds: Floats, beside: Total, is_ahead: bool) -> Floats:
        """The part that nothing hides of communication that runs once per step for each stage in turn.

        It takes `seconds` for all stages, before a stage begins (`is_ahead`) or after it has ended. A pass through all stages takes `beside`, and hides a part.
        """
        found = np.zeros(len(self.bubbles))
        zeros = np.zeros(len(found))
        lasting, unit, own = seconds + zeros, self.unit + zeros, beside + zeros
        for row, each in enumerate(self.bubbles):
            windows = (each.ahead if is_ahead else each.behind)[self.place] * unit[row]
            shares = np.arange(1, len(windows) + 1) / len(windows)
            found[row] = (lasting[row] * shares - windows).max() - own[row] / len(windows)
        return np.maximum(found, 0)


def of_class(job: NamedJob, sums: ClassSeconds, microbatches: Floats, idleness: Idleness) -> Floats:
    """`[plan]`: the seconds of a step on a rank of one class."""
    compute = sums.compute["F"] + sums.compute["B"]
    waiting = sums.lasting - compute + idleness.waiting
    once = sums.once - sums.compute["once"]
    if job.compiled.plan.gradients.overlap:
        backward = (sums.compute["B"] + sums.waited["B"]) / microbatches
        exposed = idleness.exposed(sums.gradients, backward, is_ahead=False)
        once = once + np.maximum(exposed, idleness.at_the_end(sums.last_gradients["once"]))
    else:
        once = once + sums.gradients
    once = once + idleness.exposed(sums.behind + np.zeros(1), 0.0, is_ahead=False)
    # Where communication takes longer than the passes, these are part of it.
    ends = sums.passes + sums.last_gradients["B"] - sums.lasting
    once = once + idleness.at_the_end(np.maximum(ends, 0))
    forward = (sums.compute["F"] + sums.waited["F"]) / microbatches
    once = once + idleness.exposed(sums.gathers, forward, is_ahead=True)
    if takes_units(job.compiled.plan.device):
        hidden = np.maximum(sums.moving - (sums.lasting - compute), 0)
        part = np.divide(sums.products, compute, out=0 * hidden, where=compute > 0)
        taken = part * sums.pausing + (1 - part) * sums.taking
        lost = np.divide(hidden * taken, sums.moving, out=0 * hidden, where=hidden > 0)
        compute = compute * slowdown(np.array([compute]), np.array([lost]))[0]
    exposed = waiting + once
    idling = idleness.idling(sums.compute["F"] / microbatches)
    return compute + sums.compute["once"] + exposed + idling + np.zeros(len(microbatches))


def gathers_of(structure: Structure, sizes: Columns, turns: Sequence[Turns]) -> Floats:
    """`[plan]`: how often the parameters of each stage are gathered in a step, where the structure itself gathers them once.

    That is more than once in plans whose ranks have too many stages to keep the gathered parameters of all.
    """
    names, zero = structure.names, structure.plan.zero
    found = np.ones(sizes.count)
    resident = names.virtual_stages <= RESIDENT_STAGES
    if names.stages is None or zero is None or zero.level < 3 or not resident:
        return found
    rounds = sizes.number(ceildiv(names.num_microbatches, symbol(names.stages.axis.data))).tolist()
    for row, each in enumerate(turns):
        if each.virtual_stages > RESIDENT_STAGES:
            found[row] = gathers_per_stage(each, rounds[row])
    return found


@cache
def gathers_per_stage(turns: Turns, rounds: int) -> float:
    """How often a stage of the first rank gathers its parameters, in the mean over the rank's stages. The rank runs through its stages in rounds of as many
    microbatches as there are ranks. After a few rounds all are alike.
    """
    if rounds > SAME_ROUNDS:
        one, two = (gathers_per_stage(turns, SAME_ROUNDS - n) for n in (1, 0))
        return two + (two - one) * (rounds - SAME_ROUNDS)
    schedule = build(turns.schedule, 2, turns.virtual_stages, 2 * rounds)
    return float((schedule.gathers[:, 0] == 0).sum()) / turns.virtual_stages


@dataclass
class RunAgain:
    """What a plan runs again in the backward passes of layers that saves no value of them but their inputs."""

    ops: set[Operation] = field(default_factory=set)
    """The ops of forward passes on which values depend that backward passes read."""
    read_by: dict[Operation, set[Operation]] = field(default_factory=lambda: defaultdict(set))
    """For each op of a backward pass that reads such values, those of these ops that make them."""

    @staticmethod
    def of(programs: Iterable[stg.ProgramOp]) -> RunAgain:
        """What it is in the layers of some programs."""
        found = RunAgain()
        for level in (each for program in programs for each in levels_of(program)):
            saved = {*level.saved().values()}
            waiting = [*saved]
            while waiting:
                owner = waiting.pop().owner
                if not isinstance(owner, Operation) or owner.parent is not level.forward:
                    continue
                if owner not in found.ops:
                    found.ops.add(owner)
                    waiting += owner.operands
            for _, op, _, value in level.reads_of(saved):
                made = behind_views(value)
                if isinstance(made, Operation):
                    found.read_by[op].add(made)
        return found


def sums_of(
    each: ClassOperations,
    prices: TermPrices,
    sizes: Columns,
    gathers: Floats,
    again: RunAgain,
) -> tuple[ClassSeconds, ClassSeconds]:
    """The times of a rank class: of its own work, and of its transfers to and from other stages.

    `gathers` says how often parameters are gathered, `[plan]`; `again`, what full recomputation runs again.
    """
    own, travel = ClassSeconds(), ClassSeconds()
    device = prices.job.compiled.plan.device
    share, pause = share_by_node(device), pause_by_node(device)
    for term, one in zip(each.terms, prices.of_class(each), strict=True):
        times = sizes.number(term.count.form).astype(float)
        seconds = times * one.seconds
        node = term.node
        if is_beside(term) and share(node):
            own.moving = own.moving + seconds
            own.taking = own.taking + seconds * share(node)
            own.pausing = own.pausing + seconds * pause(node)
        if is_gather(term):
            seconds = seconds * gathers
        part = part_of(term)
        sums = travel if term.task in TRANSFER_TASKS else own
        if isinstance(node.action, Compute):
            own.compute[part] = own.compute[part] + seconds
            own.adding = own.adding + times * one.adding
            if node.phase == "recompute":
                own.recomputed = own.recomputed + seconds
            if is_product(node) and part != "once":
                own.products = own.products + seconds
            kernel = node.action.kernel
            is_again = kernel is not None and kernel.kind in ATTENTION
            if is_again and part == "F" and term.counted.in_layer:
                own.attention = own.attention + seconds
            # Else it may share a kernel of the backward pass that reads it.
            if part == "F" and term.counted.op in again.ops and not prices.prices.may_share(node):
                own.layers = own.layers + seconds
            read = map(work_of, again.read_by.get(term.counted.op, ()))
            if part == "B" and any(prices.prices.may_join(node, each) for each in read):
                own.joining = own.joining + seconds
        elif node.phase == GRADIENTS and part == "once":
            own.gradients = own.gradients + seconds
        elif is_gather(term) and not node.serial:
            own.gathers = own.gathers + seconds
        elif node.serial or node.stream == COMPUTE_STREAM:
            sums.waited[part] = sums.waited[part] + seconds
        else:
            sums.beside[part][node.stream] = sums.beside[part][node.stream] + seconds
            if is_put_off(term, prices.job):
                sums.put_off[node.stream] = sums.put_off[node.stream] + seconds
    return own, travel


def is_beside(term: Term) -> bool:
    """Whether a term is communication that computation of passes may run beside: of layers, or to another stage."""
    node = term.node
    in_layers = isinstance(node.action, Collective | Transfer) and term.task in COMPUTE_TASKS
    to_stages = isinstance(node.action, Transfer) and term.task in TRANSFER_TASKS
    return in_layers or (to_stages and node.stream != COMPUTE_STREAM)


def passes_of(
    each: ClassOperations,
    prices: TermPrices,
    sizes: Columns,
    microbatches: Floats,
    put_off: Mapping[str, Total],
) -> tuple[Total, Total]:
    """Two times in seconds, `[plan]`, of a rank for which all values of other ranks are there: how long the passes of all microbatches take, and how long
    reductions that are put off go on after the last pass.

    Two microbatches are followed; each further one takes as long as the second. The second time is at most that of the passes of one microbatch, since
    reductions that take longer than that already delay every microbatch.
    """
    passes, streams = passes_alone(each, COMPUTE_TASKS, prices, sizes)
    ends: list[Total] = []
    for _ in range(2):
        for each_pass in passes:
            each_pass.run_once()
        ends.append(streams.computed)
        for stream, seconds in put_off.items():
            begins = latest([streams.free.get(stream, 0.0), streams.computed])
            streams.free[stream] = begins + seconds / microbatches
    further = ends[1] - ends[0]
    behind = np.minimum(latest(streams.free.values()) - ends[1], further) if put_off else 0.0
    return ends[0] + (microbatches - 1) * further, behind


def last_reductions_of(
    each: ClassOperations, prices: TermPrices, sizes: Columns
) -> dict[str, LastReductions]:
    """Of the stage whose backward pass ends last, the first one: the reductions that run once per step, and those of a microbatch that are not put off."""
    stage = min((term.counted.stage.stage for term in each.terms), default=0)
    found: dict[str, list[Reduction]] = defaultdict(list)
    for term, one in zip(each.terms, prices.of_class(each), strict=True):
        node, is_of_stage = term.node, term.counted.stage.stage == stage
        is_reduction = isinstance(node.action, Collective) and node.phase == GRADIENTS
        is_beside = not node.serial and not is_put_off(term, prices.job)
        if is_of_stage and is_reduction and is_beside:
            found[part_of(term)].append(Reduction(term, one.seconds))
    return {part: LastReductions(own, sizes) for part, own in found.items()}


def once_of(
    each: ClassOperations,
    prices: TermPrices,
    sizes: Columns,
    reduced: Mapping[str, Floats] | None = None,
) -> Total:
    """How long everything takes that runs once per step, in seconds, `[plan]`. Reductions of gradients and the first gathers of parameters are left out, since
    passes can hide them.

    `reduced` says when streams have reduced the last gradients, for which the optimizer waits. States that come from the host need not wait.
    """
    passes, streams = passes_alone(each, ONCE, prices, sizes)
    if reduced:
        streams.free |= {**reduced, COMPUTE_STREAM: latest(reduced.values())}
    for each_pass in passes:
        each_pass.run_once()
    return latest(streams.free.values())


def passes_alone(
    each: ClassOperations, tasks: Sequence[str], prices: TermPrices, sizes: Columns
) -> tuple[list[PassAlone], Streams]:
    """The passes of a rank that are these tasks, in their order, and the streams that they share."""
    terms: dict[tuple[int, str], list[tuple[Term, TermTime]]] = defaultdict(list)
    for term, one in zip(each.terms, prices.of_class(each), strict=True):
        if term.task in tasks and not is_hidden(term) and not is_put_off(term, prices.job):
            terms[term.counted.stage.stage, term.task].append((term, one))
    streams = Streams()
    passes: list[PassAlone] = []
    for key in sorted(terms, key=lambda key: (tasks.index(key[1]), key[0])):
        own = terms[key]
        stage = own[0][0].counted.stage
        nodes: dict[Operation, PassNode] = {
            term.counted.op: PassNode(
                one.seconds,
                term.node.stream,
                term.node.serial or gathers_updated(term.counted.op),
                one.launching,
            )
            for term, one in own
        }

        def count(repeat: stg.RepeatOp, stage: StageRun = stage) -> Floats:
            return sizes.number(prices.job.names.write(repeat.count.data, stage.stage)).astype(
                float
            )

        passes.append(PassAlone(stage.program.body.block, nodes, count, streams))
    return passes, streams


def is_hidden(term: Term) -> bool:
    """Whether a term runs once per step, beside passes that can hide it."""
    if isinstance(term.node.action, Compute) or part_of(term) != "once":
        return False
    return term.node.phase == GRADIENTS or (is_gather(term) and not term.node.serial)


def is_put_off(term: Term, job: NamedJob) -> bool:
    """Whether a term reduces the gradients of a microbatch, and begins only when the microbatch's backward pass has ended."""
    is_reduction = part_of(term) == "B" and term.node.phase == GRADIENTS and not term.node.serial
    return is_reduction and not job.compiled.plan.gradients.overlap


def is_gather(term: Term) -> bool:
    """Whether a term gathers parameters before the first microbatch."""
    return term.task == "pre" and term.op == "all_gather"
