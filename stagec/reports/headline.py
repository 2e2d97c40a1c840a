"""The first things that one asks of a plan: how long a step takes, how well it uses the devices, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stagec.analysis.sizes import size_values
from stagec.backend.program import RankClass
from stagec.compiled import Compiled
from stagec.dialects import stg
from stagec.dialects.memory import BEYOND
from stagec.dialects.sched.actions import Compute, HostCopy, HostUpdate
from stagec.dialects.types import TIME_AXIS
from stagec.estimate.costs import why_unknown
from stagec.estimate.intervals import Intervals, union
from stagec.estimate.memory import most_along_time
from stagec.estimate.step import Estimate, batch_of, estimate_if_known
from stagec.memory import TITLES
from stagec.pictures.scales import MICROSECONDS, behind_the_point, digits, in_unit
from stagec.plans.presets import KNOWN

GIB = 1 << 30
UNITS = ((GIB, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
MOST_PARTS = 4
COMPUTE = "compute"


@dataclass(frozen=True)
class Headline:
    """A step in a few numbers. Times are None where the plan does not say how fast its device is."""

    device: str
    about: str
    """What the times rest on."""
    step_us: float | None
    period_us: float | None
    """Until the next step: longer than the step of a pool whose others take longer."""
    mfu: float | None
    tokens: int | None
    """In one step; None for a model that reads no tokens."""
    samples: int
    """The number of samples of the batch, in one step."""
    shares: Mapping[str, float]
    """The shares of the step of the rank that computes longest, by what it does: `products`, ..., `exposed tp`, ..., `bubble`; they add up to 1."""
    rank_class: str
    """The class of that rank; empty where all ranks are in one class."""
    peak_bytes: int
    """In the order in which nodes are issued."""
    timed_bytes: int | None
    """The peak along the estimated time, where that is known: communication that lags behind keeps its buffers."""
    capacity: int | None
    """Bytes of the device's memory."""
    kinds: Mapping[str, int]
    """Bytes at the peak, by kind, the largest first."""
    iterations: int
    """The number of iterations of a series, whose times are not estimated here, one by one."""
    reduction: str
    """When gradients are reduced, where ZeRO and several microbatches leave a choice."""
    why_unknown: str = ""
    """Why no times are known."""

    @property
    def per_s(self) -> float | None:
        """Tokens, or samples where there are none, in a second."""
        if not self.period_us:
            return None
        return (self.tokens or self.samples) / self.period_us * 1e6

    @property
    def fits(self) -> bool | None:
        """Both in issue order and along the estimated time."""
        if self.capacity is None:
            return None
        return max(self.peak_bytes, self.timed_bytes or 0) <= self.capacity

    def lines(self) -> list[str]:
        """What the command line prints."""
        reduction = [f"zero    {self.reduction}"] if self.reduction else []
        return [self.time_line(), *self.share_lines(), self.memory_line(), *reduction]

    def time_line(self) -> str:
        if self.iterations > 1:
            return f"series  {self.iterations:,} iterations, {self.tokens:,} new tokens (`--timeline` says how long they take)"
        if self.step_us is None or self.mfu is None or self.per_s is None:
            return f"step    not known: {self.why_unknown}"
        what = "tokens" if self.tokens else "samples"
        took = in_unit(self.step_us, MICROSECONDS)
        rate = f"{digits(self.per_s)} {what}/s"
        device = self.device or "its device"
        return f"step    {took}, {self.mfu:.1%} MFU, {rate} on {device} ({self.about})"

    def share_lines(self) -> list[str]:
        if self.step_us is None:
            return []
        shown = sorted(self.shares.items(), key=lambda item: -item[1])
        parts = [f"{name} {share:.1%}" for name, share in shown if share >= 5e-4]
        of = f"of {self.rank_class}, which computes longest: " if self.rank_class else ""
        return [f"time    {of}{', '.join(parts)}"]

    def memory_line(self) -> str:
        unit, name = next(each for each in UNITS if self.peak_bytes >= each[0] / 10 or each[0] == 1)
        behind = behind_the_point(max(self.peak_bytes, self.timed_bytes or 0) / unit)

        def shown(num_bytes: int) -> str:
            return f"{num_bytes / unit:,.{behind}f}"

        peak, timed = shown(self.peak_bytes), shown(self.timed_bytes or 0)
        verdict: dict[bool | None, str] = {None: f"{peak} {name}"}
        if self.capacity is not None:
            has = f"{peak if unit == GIB else verdict[None]} of {self.capacity / GIB:.4g} GiB"
            verdict |= {True: f"{has}, fits", False: f"{has}, DOES NOT FIT"}
        is_more = (self.timed_bytes or 0) > self.peak_bytes and timed != peak
        lagging = f" ({timed} along the estimated time)" if is_more else ""
        largest = list(self.kinds.items())[:MOST_PARTS]
        rest = sum(self.kinds.values()) - sum(size for _, size in largest)
        parts = [f"{kind} {shown(size)}" for kind, size in largest]
        parts += [f"other {shown(rest)}"] if rest >= unit / 2 / 10**behind else []
        return f"memory  {verdict[self.fits]}{lagging}: {', '.join(parts)}"


def headline(
    compiled: Compiled, found: Estimate | None = None, microbatches: int | None = None
) -> Headline:
    """The headline of a job. An estimate that was made already, and the number of microbatches that the text is to name, may be given."""
    plan = compiled.plan
    worst = max(compiled.memory, key=lambda each: each.peak_bytes)
    kinds = {TITLES[kind]: size for kind, size in worst.at_peak().items() if kind not in BEYOND}
    step_us = period_us = mfu = None
    shares: dict[str, float] = {}
    about = rank_class = ""
    found = found or estimate_if_known(compiled)
    most = None
    if found is not None:
        most = most_along_time(found.timed_peaks)
        step_us, period_us, mfu = found.step_time_us, found.period_us, found.mfu
        parts = found.breakdown
        shares = {name: time / parts.total_us for name, time in parts.parts.items() if time}
        about, rank_class = found.about, parts.rank_class
    samples, tokens = batch_of(compiled)
    return Headline(
        device=plan.device.preset or "",
        about=about,
        step_us=step_us,
        period_us=period_us,
        mfu=mfu,
        tokens=tokens,
        samples=samples,
        shares=shares,
        rank_class=rank_class,
        peak_bytes=worst.peak_bytes,
        timed_bytes=most[1].num_bytes if most is not None else None,
        capacity=plan.device.memory or plan.device.capacity,
        iterations=compiled.num_iterations,
        reduction=reduction_of(compiled, microbatches),
        why_unknown=""
        if found or compiled.traces is None
        else why_unknown(plan, compiled.trace_set.classes),
        kinds=dict(sorted((k for k in kinds.items() if k[1]), key=lambda item: -item[1])),
    )


def reduction_of(compiled: Compiled, microbatches: int | None = None) -> str:
    """What a plan with ZeRO does that its level does not say: which parameters stay whole, and how often gradients of several microbatches are reduced."""
    plan, zero = compiled.plan, compiled.plan.zero
    number = microbatches or size_values(compiled.module)[TIME_AXIS]
    if zero is None or not compiled.stated.is_training:
        return ""
    said = []
    weights = (op for op in compiled.module.walk() if isinstance(op, stg.WeightOp))
    if any(weight.persistent is not None for weight in weights):
        said.append(f"parameters of up to {zero.persist:,} elements stay whole")
    if number > 1:
        is_each = plan.reduces_each_microbatch
        how = "reduced after each of" if is_each else "reduced once after"
        said.append(f"gradients {how} {number:,} microbatches")
    if not said:
        return ""
    like = f", like {KNOWN[zero.like].title}" if zero.like is not None else ""
    return f"{zero.level} over {', '.join(zero.axes)}{like}: {', '.join(said)}"


def stream_spans(
    rank_class: RankClass, starts: np.ndarray, ends: np.ndarray
) -> dict[str, Intervals]:
    """When a rank computes, and when it communicates over which axes."""
    program = rank_class.program
    chosen: dict[str, list[np.ndarray]] = {}
    for index, segment in enumerate(program.segments):
        first = program.first_node[np.flatnonzero(program.segment == index)]
        for i, node in enumerate(segment.nodes):
            action = node.action
            name = COMPUTE
            if not node.computes:
                if isinstance(action, Compute):
                    continue  # a part of an exchange
                name = "host" if isinstance(action, HostCopy | HostUpdate) else action.over
            chosen.setdefault(name, []).append(first + i)
    found: dict[str, Intervals] = {}
    for name, parts in chosen.items():
        at = np.concatenate(parts)
        found[name] = union(starts[at], ends[at])
    return found
