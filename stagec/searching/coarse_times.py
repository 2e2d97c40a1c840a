"""How long a step takes, in outline: sums of what its ops cost, for all plans of a structure at once.

A rank works through its forward and backward passes; communication that computation waits for is added, what runs beside it counts
as far as it lasts longer. The ranks of a pipeline idle for the share that their schedule leaves them with stages of equal cost, over the
slowest rank. What runs once per step comes on top. So plans are ranked; the times that a search reports are whole estimates
(`stagec.estimate`), which follow every node.

How a pipeline's stages take turns decides nothing of this but the idle share, how often values change ranks, and how often parameters that are split are
gathered. So plans that differ in their schedules, or in the stages of a rank, are one structure: `Turns` says how each of them runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache

import numpy as np
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Operation

from stagec.analysis.coordinates import SUFFIX
from stagec.arrays import Floats
from stagec.backend.program import Compute
from stagec.dialects import sched, stg
from stagec.dialects.sched import COMPUTE_STREAM
from stagec.dialects.sched.tasks import ONCE, TRANSFER_TASKS
from stagec.estimate.kernels import KernelPrices
from stagec.estimate.prices import ATTENTION, kernel_prices
from stagec.explaining.bubble import FORMS, idle_share
from stagec.explaining.job import NamedJob
from stagec.explaining.rolled_operations import ClassOperations, Term
from stagec.rewriting.saved_values import levels_of
from stagec.schedules import build
from stagec.schedules.transfers import RESIDENT_STAGES
from stagec.sweeping.actions import ActionForm
from stagec.sweeping.op_costs import PriceColumns
from stagec.sweeping.structures import Structure
from stagec.symbolic import Size, call, ceildiv, constant, product, symbol
from stagec.symbolic.columns import Columns

Total = np.ndarray | float
PARTS = ("compute", "exposed", "idle")
"""What a step consists of: computing, waiting for communication, and a pipeline's bubble."""
LEAST = "least"
"""Seconds of the microbatches and of the bubble alone: plans that besides compute something again, or split what they store, take no less."""
LEAST_AGAIN = "least, again"
"""The same for plans that run the attention of their layers once more, and perhaps other ops."""
LEAST_WHOLE = "least, layers again"
"""The same for plans that save of each layer what comes into it alone: all that its backward pass reads is computed once more."""
BOUNDS: tuple[str, ...] = (LEAST, LEAST_AGAIN, LEAST_WHOLE)
GRADIENTS = "grad_reduce"
SAME_ROUNDS = 4
"""From the round before on, each round of microbatches gathers as many stages as the last."""


@dataclass(frozen=True)
class Turns:
    """How the ranks of a pipeline run their stages: a schedule, and the stages of each rank."""

    schedule: str = ""
    virtual_stages: int = 1


@dataclass
class ClassSeconds:
    """Of one rank class, in seconds, for each plan."""

    compute: dict[str, Total] = field(default_factory=lambda: defaultdict(float))
    """By part of a step: `F`, `B`, `once`."""
    waited: dict[str, Total] = field(default_factory=lambda: defaultdict(float))
    beside: dict[str, dict[str, Total]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )
    """By part and stream."""
    gathers: Floats = field(default_factory=lambda: np.zeros(1))
    """Of parameters, once a step, for the first forward pass."""
    gradients: Floats = field(default_factory=lambda: np.zeros(1))
    attention: Floats = field(default_factory=lambda: np.zeros(1))
    """Of the forward passes of layers."""
    layers: Floats = field(default_factory=lambda: np.zeros(1))
    """What of these has to run for all that their backward passes read."""

    def add(self, other: ClassSeconds, factor: Total = 1.0) -> None:
        """So many times what another has of communication."""
        for part, seconds in other.waited.items():
            self.waited[part] = self.waited[part] + factor * seconds
        for part, streams in other.beside.items():
            for stream, seconds in streams.items():
                self.beside[part][stream] = self.beside[part][stream] + factor * seconds


def part_of(term: Term) -> str:
    if term.task in (*ONCE, "GATHER"):
        return "once"
    return "F" if term.task in ("F", "GATHER_F", "SEND_F", "RECV_F") else "B"


def outline(structure: Structure, sizes: Columns, turns: Sequence[Turns] = ()) -> dict[str, Floats]:
    """Seconds of a step and of its parts, of the rank that takes longest.

    `turns` are those of each plan. Without any the plans run as the structure does.
    """
    job = structure.job
    microbatches = sizes.number(job.names.num_microbatches).astype(float)
    turns = turns or own_turns(structure, sizes)
    idle = idle_shares(structure, sizes, turns)
    prices = TermPrices(job, sizes)
    gathers = gathers_of(structure, sizes, turns)
    again = saved_by(structure.programs.values())
    every = [sums_of(each, prices, sizes, gathers, again) for each in job.classes]
    between = transfers_between(structure, [travel for _, travel in every])
    more = np.array([each.virtual_stages for each in turns], float) if turns else np.ones(1)
    more = more / structure.names.virtual_stages - 1
    found: list[dict[str, Floats]] = []
    for sums, travel in every:
        sums.add(travel)
        sums.add(between, more)
        found.append(of_class(job, sums, microbatches, idle))
    worst = np.argmax(np.stack([each["step"] for each in found]), axis=0)
    rows = np.arange(sizes.count)
    columns = {
        name: np.stack([each[name] for each in found])[worst, rows] for name in ("step", *PARTS)
    }
    least = {name: np.max([each[name] for each in found], axis=0) for name in BOUNDS}
    return {**columns, **least}


def own_turns(structure: Structure, sizes: Columns) -> Sequence[Turns]:
    """Plans that run as the structure's own text says."""
    pipeline = structure.plan.pipeline
    if pipeline is None:
        return ()
    return [Turns(pipeline.schedule, structure.names.virtual_stages)] * sizes.count


def transfers_between(structure: Structure, of_classes: Sequence[ClassSeconds]) -> ClassSeconds:
    """What a stage with neighbours on both sides sends and receives."""
    if structure.names.stages is None:
        return ClassSeconds()
    if len(of_classes) > 2:
        return of_classes[1]
    found = ClassSeconds()
    for each in of_classes:
        found.add(each)
    return found


def idle_shares(structure: Structure, sizes: Columns, turns: Sequence[Turns]) -> Floats:
    """Idle over computing time: as the schedule's paper says it, or simulated."""
    names = structure.names
    found = np.zeros(sizes.count)
    if names.stages is None:
        return found
    axis = names.stages.axis.data
    rows_of: Mapping[Turns, list[int]] = defaultdict(list)
    for row, each in enumerate(turns):
        rows_of[each].append(row)
    for each, rows in rows_of.items():
        own = Columns({name: column[rows] for name, column in sizes.names.items()}, len(rows))
        if each.schedule in FORMS:
            form = FORMS[each.schedule]
            share = own.ratio(form(symbol(axis), each.virtual_stages, names.num_microbatches))
            found[rows] = np.asarray(share.top, float) / np.asarray(share.bottom, float)
            continue
        ranks, microbatches = own.names[axis], own.number(names.num_microbatches)
        pairs = list(zip(ranks.tolist(), microbatches.tolist(), strict=True))
        known = {
            pair: float(idle_share(build(each.schedule, pair[0], each.virtual_stages, pair[1]))[1])
            for pair in dict.fromkeys(pairs)
        }
        found[rows] = [known[pair] for pair in pairs]
    return found


def of_class(
    job: NamedJob, sums: ClassSeconds, microbatches: Floats, idle: Floats
) -> dict[str, Floats]:
    compute = sums.compute["F"] + sums.compute["B"]

    def waits(again: Total = 0.0) -> Total:
        """Besides what is computed: for communication, beside which the backward passes compute so much again."""
        waiting = sums.waited["F"] + sums.waited["B"]
        for part, more in (("F", 0.0), ("B", again)):
            busy = sums.compute[part] + sums.waited[part] + more
            for lasting in sums.beside[part].values():
                waiting = waiting + np.maximum(0, lasting - busy)
        return waiting

    waiting = waits()
    once = sums.waited["once"] + sum(sums.beside["once"].values())
    window = 0.0
    if job.compiled.plan.gradients.overlap:
        # Those of the last microbatch's backward pass are all that can hide them.
        window = (sums.compute["B"] + sums.waited["B"]) / microbatches
    once = once + np.maximum(0, sums.gradients - window)
    forward = (sums.compute["F"] + sums.waited["F"]) / microbatches
    once = once + np.maximum(0, sums.gathers - forward)
    bubble = (compute + waiting) * idle
    own = compute + sums.compute["once"]
    exposed = waiting + once
    zeros = np.zeros(len(microbatches))
    return {
        LEAST: (compute + waiting) * (1 + idle) + zeros,
        **{
            name: (compute + again + waits(again)) * (1 + idle) + zeros
            for name, again in ((LEAST_AGAIN, sums.attention), (LEAST_WHOLE, sums.layers))
        },
        "compute": own + zeros,
        "exposed": exposed + zeros,
        "idle": bubble + zeros,
        "step": own + exposed + bubble,
    }


def gathers_of(structure: Structure, sizes: Columns, turns: Sequence[Turns]) -> Floats:
    """How often each stage's parameters are gathered in a step, for a structure that gathers them once: more often where not all of a rank's stay."""
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
    """Of the first rank, in the mean over its stages: it goes round them with as many microbatches as there are ranks, and rounds are alike."""
    if rounds > SAME_ROUNDS:
        one, two = (gathers_per_stage(turns, SAME_ROUNDS - n) for n in (1, 0))
        return two + (two - one) * (rounds - SAME_ROUNDS)
    schedule = build(turns.schedule, 2, turns.virtual_stages, 2 * rounds)
    return float((schedule.gathers[:, 0] == 0).sum()) / turns.virtual_stages


def saved_by(found: Iterable[stg.ProgramOp]) -> set[Operation]:
    """Ops of layers' forward passes behind what the backward passes read: a plan that saves nothing of it runs these again."""
    again: set[Operation] = set()
    for level in (each for program in found for each in levels_of(program)):
        waiting = [] if level.outer is None else list(level.saved().values())
        while waiting:
            owner = waiting.pop().owner
            if (
                isinstance(owner, Operation)
                and level.forward is owner.parent
                and owner not in again
            ):
                again.add(owner)
                waiting += owner.operands
    return again


def sums_of(
    each: ClassOperations,
    prices: TermPrices,
    sizes: Columns,
    gathers: Floats,
    again: Collection[Operation] = (),
) -> tuple[ClassSeconds, ClassSeconds]:
    """Of a rank's own work, and of what travels to and from other stages; parameters are gathered so often, and ops may run `again`."""
    own, travel = ClassSeconds(), ClassSeconds()
    for term in each.terms:
        times = sizes.number(term.count.form).astype(float)
        seconds = times * prices.seconds(term, each.where)
        node = term.node
        if is_gather(term):
            seconds = seconds * gathers
        part = part_of(term)
        sums = travel if term.task in TRANSFER_TASKS else own
        if isinstance(node.action, Compute):
            own.compute[part] = own.compute[part] + seconds
            kernel = node.action.kernel
            is_again = kernel is not None and kernel.kind in ATTENTION
            if is_again and part == "F" and term.counted.in_layer:
                own.attention = own.attention + seconds
            if part == "F" and term.counted.op in again:
                own.layers = own.layers + seconds
        elif node.phase == GRADIENTS and part == "once":
            own.gradients = own.gradients + seconds
        elif is_gather(term) and not node.serial:
            own.gathers = own.gathers + seconds
        elif node.serial or node.stream == COMPUTE_STREAM:
            sums.waited[part] = sums.waited[part] + seconds
        else:
            sums.beside[part][node.stream] = sums.beside[part][node.stream] + seconds
    return own, travel


def is_gather(term: Term) -> bool:
    """Of parameters, before the first microbatch."""
    return term.task == "pre" and term.op == "all_gather"


@lru_cache(maxsize=4)
def shared(prices: KernelPrices) -> KernelPrices:
    """The same ones for all structures, which ask for kernels of the same sizes."""
    return prices


@dataclass
class TermPrices:
    """Seconds of one run of each op, for each plan."""

    job: NamedJob
    sizes: Columns
    _forms: dict[int, tuple[Size, ...] | None] = field(default_factory=dict)

    @cached_property
    def columns(self) -> PriceColumns:
        terms = [term for each in self.job.classes for term in each.terms]
        works = {sched.work_of(term.counted.op) for term in terms}
        found = kernel_prices(self.job.compiled.plan, works)
        kernels = None
        if found is not None:
            kernels = shared(found)
        return PriceColumns(self.job.compiled.plan, self.sizes, tuple(self.job.names.mesh), kernels)

    def seconds(self, term: Term, where: Mapping[str, Sequence[int]]) -> Floats:
        """As its own node: what neighbours share is not told here. Of what joins a bucket, its share of a full one."""
        counted, share = term.counted, 1.0
        if id(counted.op) not in self._forms:
            form = ActionForm.of(counted.op, counted.known.forms)
            self._forms[id(counted.op)] = None if form is None else form.sizes
        form = self._forms[id(counted.op)]
        if form is None:
            return self.one_by_one(term)
        stage = counted.stage.stage
        own = [self.at(where, self.job.names.write(size, stage)) for size in form]
        bucket = counted.op.properties.get("bucket_bytes")
        if isinstance(counted.op, sched.CollectiveOp) and isinstance(bucket, IntegerAttr):
            numbers = [self.sizes.number(size).astype(float) for size in own]
            most = own[int(numbers[1].max() > numbers[0].max())]
            full = call("max", most, bucket.value.data)
            share = self.sizes.number(most) / self.sizes.number(full)
            ways = product(map(symbol, counted.op.axes.data))
            own = [full if size == most else full / ways for size in own]
        sizes = [(size,) for size in own]
        return share * self.columns.of(term.node, sizes).us / 1e6

    def at(self, where: Mapping[str, Sequence[int]], size: Size) -> Size:
        """On the first rank of a class, where a size depends on that: what a window sees of a sequence in parts."""
        places = {
            name: constant(where.get(name.removesuffix(SUFFIX), (0,))[0]) for name in size.names
        }
        return size.substitute({n: at for n, at in places.items() if n.endswith(SUFFIX)})

    def one_by_one(self, term: Term) -> Floats:
        """Of an op whose numbers are no sizes alone."""
        found = np.empty(self.sizes.count)
        for row in range(self.sizes.count):
            sizes = {name: int(column[row]) for name, column in self.sizes.names.items()}
            prices = self.columns.prices(int(self.columns.mesh[row]))
            found[row] = prices.node(term.counted.node(sizes)).us / 1e6
        return found
