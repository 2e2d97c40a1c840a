"""A whole step: `step_summary(compiled)` is what a first screen shows, `estimate(compiled)` all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from xdsl.ir import SSAValue

from stagec.analysis.sequences import ModuleSequences
from stagec.analysis.sizes import size_values
from stagec.backend.program import RankClass, TraceSet
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError, Diagnostic
from stagec.dialects import sched, stg
from stagec.dialects.work import Work
from stagec.estimate.breakdown import Breakdown as Breakdown, breakdown
from stagec.estimate.costs import missing_numbers, require_numbers
from stagec.estimate.graph import PieceGraph
from stagec.estimate.interference import slowed
from stagec.estimate.kernels.price import Basis as Basis
from stagec.estimate.prices import Prices, notes_on_kernels
from stagec.estimate.timeline import Arrivals, Timeline as Timeline
from stagec.memory import TimedPeak, peak_along_time
from stagec.plans.clauses import Device, Plan
from stagec.rewriting import programs
from stagec.step_count import matrix_flops, pads_of


@dataclass(frozen=True)
class Estimate:
    """The estimated step of a whole job: when every node runs, and what follows from that."""

    timeline: Timeline
    compiled: Compiled = field(repr=False, compare=False)
    prices: Prices = field(repr=False, compare=False)
    others_us: float = 0.0
    """When the last pool ends, in µs, if the compilation is one of several pools that compute a step together; else 0."""

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: the matrix FLOPs that the model asks for, over what the devices could have done in that
        time (`step_count.MatrixFlops`)."""
        return self.utilisation[0]

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation: the same with the matrix FLOPs that devices compute, recomputation and padding included."""
        return self.utilisation[1]

    @cached_property
    def utilisation(self) -> tuple[float, float]:
        """MFU and HFU, as shares of 1; 0 if the device's peak is not known."""
        device, mesh = self.prices.plan.device, self.compiled.trace_set.mesh
        could = (device.flops_per_s or 0) * mesh.num_ranks * self.period_us / 1e6
        if not could:
            return 0.0, 0.0
        flops = matrix_flops(self.compiled.module, self.compiled.counts)
        return flops.model / could, flops.hardware / could

    @property
    def period_us(self) -> float:
        """The time from one step to the next in µs: with several pools, until all of them are done."""
        return max(self.step_time_us, self.others_us)

    @property
    def step_time_us(self) -> float:
        """The time until the last rank is done, in µs."""
        return self.timeline.makespan_us

    @property
    def about(self) -> str:
        """A few words for the user on what the times are based on."""
        device = self.prices.plan.device.model
        if device is None or not device.tables:
            return "a roofline with an alpha-beta network, not a simulator"
        return f"measured operators of `{device.name}`, in the traces' order"

    @cached_property
    def timed_peaks(self) -> list[TimedPeak]:
        """The peak of memory of each rank class along the time of the step."""
        memory = enumerate(self.compiled.memory)
        return [peak_along_time(plan, *self.timeline.of_class(number)) for number, plan in memory]

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where the time goes, on the rank that computes longest."""
        return breakdown(self.compiled.trace_set, self.timeline, self.prices)


def estimate_if_known(compiled: Compiled) -> Estimate | None:
    """The estimate of a compiled step. None if the plan does not say how fast its device is, and for a series of iterations."""
    is_step = compiled.traces is not None and compiled.num_iterations == 1
    if not is_step or missing_numbers(compiled.plan, compiled.trace_set.classes):
        return None
    return estimate(compiled)


def estimate(
    compiled: Compiled,
    plan: Plan | None = None,
    graph: PieceGraph | None = None,
    arrived: Arrivals | None = None,
) -> Estimate:
    """Estimate a compiled step on the plan's device, or on the device of another `plan`. E0410 if that does not say how fast its device is.

    A caller who asks about several devices gives the `graph` of what waits for what, so that it is built once. `arrived` says when values that other pools
    hand over are there; without it, from the start.
    """
    traces, plan = compiled.trace_set, plan or compiled.plan
    require_numbers(plan, traces.classes)
    prices = Prices.of(traces, plan)
    return Estimate(slowed(traces, prices, graph, arrived), compiled, prices)


def with_durations(traces: TraceSet, plan: Plan) -> TraceSet:
    """The traces, each node with what it is estimated to take in whole µs, at least 1. E0410 if the plan does not say how fast its device is."""
    require_numbers(plan, traces.classes)
    prices = Prices.of(traces, plan)
    return replace(traces, classes=tuple(with_own_durations(c, prices) for c in traces.classes))


def with_own_durations(rank_class: RankClass, prices: Prices) -> RankClass:
    """A rank class whose nodes say how long each takes, in whole µs, at least 1."""
    program = rank_class.program
    segments = tuple(
        replace(
            segment,
            nodes=tuple(
                replace(node, duration_us=max(1, round(float(us))))
                for node, us in zip(
                    segment.nodes, prices.segment(rank_class, index).us, strict=True
                )
            ),
        )
        for index, segment in enumerate(program.segments)
    )
    return replace(rank_class, program=replace(program, segments=segments))


@dataclass(frozen=True)
class StepSummary:
    """An estimated step in a few numbers, as a report shows them."""

    device: str
    """The name of the device; empty for one without a file."""
    step_s: float
    """How long the step takes, in seconds."""
    mfu: float
    """Share of the peak of bf16 products. Each FLOP of the model counts once, masked scores as the model counts them (`count = causal` leaves them out)."""
    hfu: float
    """The same share of all FLOPs that devices compute: also those of recomputation, of ranks that repeat work, and of padding."""
    samples: int
    """Samples of the batch dim in one step."""
    tokens: int | None
    """Elements of the first input of whole numbers in one step; None if no such input has a sequence."""
    num_ranks: int
    measured: float
    """Share of the time outside of bubbles that rests on measured tables; `rules` and `roofline` are the other shares."""
    rules: float
    roofline: float
    breakdown: Breakdown
    price_per_hour: float | None = None
    notes: Sequence[str] = ()
    """Notes on settings that decide which kernels were timed."""

    @property
    def tokens_per_s(self) -> float | None:
        return None if self.tokens is None else self.tokens / self.step_s

    @property
    def tokens_per_s_per_device(self) -> float | None:
        found = self.tokens_per_s
        return None if found is None else found / self.num_ranks

    @property
    def cost_per_million(self) -> float | None:
        """Cost of a million tokens, or of a million samples if the model has no tokens, in the currency of `price_per_hour`."""
        if self.price_per_hour is None:
            return None
        made = self.samples if self.tokens is None else self.tokens
        return self.price_per_hour / 3600 * self.step_s * self.num_ranks / made * 1e6


def on_device(plan: Plan, device: str | Device) -> Plan:
    """The plan with another device, which is given itself or by its name or the path of its file. Settings of how the plan uses a device stay.

    E0710 if the device has too few multiprocessors for them.
    """
    old, new = plan.device, device if isinstance(device, Device) else Device.of(device)
    kept = {
        name: getattr(old, name)
        for name in Device.uses()
        if name in old.given and name not in new.given
    }
    places = {name: span for name, span in old.given.items() if name.partition(".")[0] in kept}
    device = replace(new, span=old.span or plan.span, given={**new.given, **places}, **kept)
    say = "say another number for this device: "
    many = [
        Diagnostic(
            "E0710", f"of the plan {message}", help=f"{say}`{device.preset} {{ {name} = N }}`"
        )
        for name, message in device.too_many_units.items()
    ]
    if many:
        raise CompileError(many)
    return replace(plan, device=device)


def step_summary(compiled: Compiled, device: str | None = None) -> StepSummary:
    """Estimate a step on the plan's device, or on another one, given by its name or the path of its file. E0410 if there is no device."""
    plan = compiled.plan if device is None else on_device(compiled.plan, device)
    found = estimate(compiled, plan)
    parts = found.breakdown
    samples, tokens = batch_of(compiled)
    return StepSummary(
        device=plan.device.model.name if plan.device.model else "",
        step_s=found.step_time_us / 1e6,
        mfu=found.mfu,
        hfu=found.hfu,
        samples=samples,
        tokens=tokens,
        num_ranks=compiled.trace_set.mesh.num_ranks,
        measured=parts.basis[Basis.MEASURED],
        rules=parts.basis[Basis.RULE],
        roofline=parts.basis[Basis.ROOFLINE],
        breakdown=parts,
        price_per_hour=plan.device.price_per_hour,
        notes=notes_on_kernels(plan, compiled.works) if compiled.stated.is_training else [],
    )


def names_bags(value: SSAValue) -> bool:
    """Whether an input of whole numbers holds categories, for each of which rows of a table are added up (as in DLRM), rather than tokens."""
    readers = [use.operation for use in value.uses]
    return any(
        sched.work_of(op) == Work.BAG
        if isinstance(op, sched.ComputeOp)
        else isinstance(op, sched.CollectiveOp | sched.ViewOp) and any(map(names_bags, op.results))
        for op in readers
    )


def batch_of(compiled: Compiled) -> tuple[int, int | None]:
    """How many samples and tokens a step has, without padding: the size of the batch dim, and of the first input of whole numbers with a sequence.

    In an iteration that serves these are sequences and new tokens, whatever else is read, and if tokens come as vectors.
    No tokens (None) if no input has a sequence.
    """
    served = ModuleSequences.of(compiled.module)
    if served is not None:
        counts, new = served.dealt.kinds[:, :2].T
        return int(counts.sum()), int((counts * new).sum())
    sizes = dict(size_values(compiled.module))
    sizes |= {name: sizes[hidden] for name, hidden in pads_of(compiled.module).items()}
    samples = int(sizes.get(compiled.stated.batch_dim) or 1)
    if (new := compiled.stated.new_dim) is not None:
        # Where all are in one row, `samples` is 1.
        return samples * int(sizes.get(stg.SEQUENCES) or 1), samples * int(sizes[new])
    tokens, vectors = None, None
    names: Sequence[str]
    for program in programs(compiled.module):
        for argument in program.body.block.args:
            kind = stg.tensor_type(argument)
            names = kind.names
            known = [int(sizes[name]) for name in names if sizes.get(name)]
            if len(known) != len(names) or not names:
                continue
            if kind.dtype in ("i32", "i64") and len(names) > 1 and names_bags(argument):
                continue
            if kind.dtype in ("i32", "i64") and len(names) > 1 and tokens is None:
                tokens = int(np.prod(known))
            elif len(names) > 1 and vectors is None:
                vectors = known[0] * known[1]
    # One number of each sample, such as an image's label, is no sequence.
    return samples, tokens if tokens != samples else None
