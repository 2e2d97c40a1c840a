"""The goal of a search and its outcome: the plans that were compiled whole, why each is better than the next, and why others were left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from stagec.estimate.breakdown import BUBBLE, EXPOSED, HOST, LAUNCHES
from stagec.pictures.scales import DECIMAL_BYTES, SECONDS, in_unit
from stagec.searching.model import ModelDims
from stagec.searching.objective import TOKENS
from stagec.searching.serving_space import ServedIteration
from stagec.searching.space import Point
from stagec.searching.whole_plans import IdleSetting
from stagec.sweeping.run import PEAK, STEP_TIME


@dataclass(frozen=True)
class Goal:
    """What a search is asked for."""

    file: str
    text: str
    """The text of the model's file."""
    dims: ModelDims
    devices: tuple[int, ...]
    """The numbers of devices to search plans for."""
    batch: int
    """Sequences in the global batch."""
    clauses: tuple[str, ...]
    """Clauses that every plan has: its device, and what else the user asks for."""
    memory: int | None
    """The bytes that a rank may need at most, after the margin was subtracted; None for no limit."""
    minimised: Callable[[dict[str, float]], float]
    """What is minimised, as a function of `step_time`, `ranks`, `memory.peak` and `tokens`."""
    top: int = 10
    """How many plans are wanted."""
    overrides: tuple[tuple[str, str], ...] = ()
    plug_ins: tuple[str, ...] = ()
    """The files of `--load-pass`."""
    beside: str = ""
    """Everything but the text that answers depend on: imported files, plug-ins, the device's file. It is part of the key in the cache."""
    wants_front: bool = False
    """Whether to compile also the plans on the front of time and memory: those that no other plan beats in both."""
    tested: int = 0
    """For how many of the best plans to estimate the step with twice of each number of the device."""
    rises: bool = True
    """Whether `minimised` never falls when one of its numbers grows. Then bounds can leave out points that cannot be among the best."""
    is_timed: bool = True
    """Whether times decide which plans are the best. If not, only memory is asked before plans are compiled."""
    tokens: int = 1
    """Tokens of a step."""
    iteration: ServedIteration | None = None
    """What plans serve; None if they train."""
    within: float = inf
    """The seconds that a step may take at most."""

    def value(self, point: Point, step_time: float, peak: float) -> float:
        """What is minimised, for a plan with this time in seconds and this peak in bytes."""
        tokens = float(point.get(TOKENS, self.tokens))
        numbers = {
            STEP_TIME: step_time,
            "ranks": float(point["devices"]),
            PEAK: peak,
            TOKENS: tokens,
        }
        return self.minimised(numbers)


@dataclass(frozen=True)
class Proved:
    """A plan that was compiled whole."""

    point: Point
    text: str
    step_time: float
    """Seconds of a step, estimated node by node."""
    peak_bytes: int
    """Bytes of the rank that needs most."""
    rough_step: float
    """The rough time of a step by closed forms, in seconds."""
    parts: Mapping[str, float]
    """Where these go on the rank that computes longest, in seconds (`stagec.estimate.breakdown`). The parts add up to the step."""
    value: float
    """What is minimised."""
    with_twice: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a step on a device with twice of one number, by the number's name, if that was asked."""
    idle: Sequence[IdleSetting] = ()
    """Settings that change nothing."""

    @property
    def num_ranks(self) -> int:
        return int(self.point["devices"])

    @property
    def tokens_per_s(self) -> float:
        """New tokens that each device makes in a second, in an iteration that serves."""
        return int(self.point[TOKENS]) / self.step_time / self.num_ranks


@dataclass
class Outcome:
    """What a search found. Counts are of points."""

    proved: list[Proved] = field(default_factory=list)
    """The best plans that were compiled whole, the best first."""
    num_points: int = 0
    num_bounded: int = 0
    """Points that a bound on memory left out before anything was compiled."""
    num_outlined: int = 0
    """Points that were evaluated by closed forms."""
    num_slower: int = 0
    """Points whose lower bound was worse than all plans that were to be compiled, so that they were not evaluated."""
    num_undecided: int = 0
    """Points whose outline was worse than all plans that were to be compiled, so that their memory was not asked for."""
    num_not_asked: int = 0
    """Points of plans that serve which were not asked about, as each would have been a compilation."""
    num_sure: int = 0
    """How many of `proved`, from the first on, are certain to be the best by the lower bounds of all other points."""
    num_rivals: int = 0
    """Points that were not compiled, and may be better than the first of `proved` by their bounds."""
    nearest: float = 0.0
    """For the most promising of these points, the ratio to its outline at or below which it would be better than the best; 0 if that is not known."""
    least_ratio: float = 1.0
    """The smallest ratio of a compiled plan's time to its outline."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Why points are no plans, and how many for each reason."""
    untried: dict[str, str] = field(default_factory=dict)
    """The names of a space of which some values were not tried at all, and why not."""
    mismatches: list[str] = field(default_factory=list)
    """Where a compilation gave another number than closed forms. There are none, unless there is a bug."""
    interrupted: bool = False
    compiled: list[Proved] = field(default_factory=list)
    """All plans that were compiled whole and fit, with those on the front of time and memory if these were asked for."""


def least_ratio(found: Sequence[Proved]) -> float:
    """The smallest ratio of a compiled plan's time to its outline."""
    return min(each.step_time / each.rough_step for each in found)


def in_order(each: Proved) -> tuple[float, int, str]:
    """The key by which plans are sorted: the best first; of equally good ones the one that needs less memory, and then by text."""
    return each.value, each.peak_bytes, each.text


WORDS_OF_PARTS = {
    BUBBLE: "bubble",
    HOST: "copying to and from the host",
    LAUNCHES: "waiting for launches",
}
"""What parts of a step are called. All that are not among these, and no exposed communication, are computation."""


def parts_in_words(parts: Mapping[str, float]) -> dict[str, float]:
    """The parts of a step (`stagec.estimate.breakdown`), with those as one that compute, and with those as one in which nothing but communication runs."""
    found = dict.fromkeys(("computation", "exposed communication", *WORDS_OF_PARTS.values()), 0.0)
    for name, seconds in parts.items():
        is_exposed = name.partition(" ")[0] == EXPOSED
        found[
            "exposed communication" if is_exposed else WORDS_OF_PARTS.get(name, "computation")
        ] += seconds
    return found


def compare(one: Proved, other: Proved, *, is_timed: bool = True) -> str:
    """Why one plan is better than another, in words for the user: which parts of a step take less, and which take more.

    If times do not decide which plan is better (`is_timed`), memory comes first.
    """
    parts = [parts_in_words(each.parts) for each in (one, other)]
    less: list[str] = []
    more: list[str] = []
    for title in parts[0]:
        change = parts[0][title] - parts[1][title]
        if abs(change) >= 0.001 * other.step_time:
            said = f"{in_unit(abs(change), SECONDS)} {'less' if change < 0 else 'more'} {title}"
            (less if change < 0 else more).append(said)
    found = ", ".join(less)
    if more:
        found = f"{found}, for {', '.join(more)}" if found else ", ".join(more)
    if is_timed and not found:
        found = "the same time but for a thousandth"
    devices = one.num_ranks - other.num_ranks
    if devices:
        count = f"{abs(devices):,} device{'s' * (abs(devices) > 1)}"
        size = f"{count} {'fewer' if devices < 0 else 'more'}"
        found = f"{size}; {found}" if found else size
    memory = one.peak_bytes - other.peak_bytes
    if abs(memory) >= (0.02 if is_timed else 0) * max(other.peak_bytes, 1) and memory:
        size = f"{in_unit(abs(memory), DECIMAL_BYTES)} {'less' if memory < 0 else 'more'} memory"
        parts = [found, size] if is_timed else [size, found]
        found = "; ".join(filter(None, parts))
    return found or "the same"
