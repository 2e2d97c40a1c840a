"""What a search is asked for, and what it found: plans that were compiled whole, why each is better than the next, and why others are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from stagec.pictures.scales import DECIMAL_BYTES, SECONDS, in_unit
from stagec.searching.model import ModelDims
from stagec.searching.objective import TOKENS
from stagec.searching.serving_space import ServedIteration
from stagec.searching.space import Point
from stagec.sweeping.run import PEAK, STEP_TIME


@dataclass(frozen=True)
class Goal:
    """What is searched for."""

    file: str
    text: str
    """Of the model's file."""
    dims: ModelDims
    devices: tuple[int, ...]
    batch: int
    clauses: tuple[str, ...]
    """Of every plan: the device, and what else is said."""
    memory: int | None
    """Bytes that a plan may take at most, the margin taken off; nothing for no limit."""
    minimised: Callable[[dict[str, float]], float]
    """Of `step_time`, `ranks`, `memory.peak` and `tokens`."""
    top: int = 10
    overrides: tuple[tuple[str, str], ...] = ()
    plug_ins: tuple[str, ...] = ()
    """The files of `--load-pass`."""
    beside: str = ""
    """What answers depend on besides the text: the files that it imports, plug-ins, what is known of the device."""
    wants_front: bool = False
    """Whether plans are compiled, too, of which none is faster and needs less memory."""
    tested: int = 0
    """Of so many of the best it is asked what they would take on other devices."""
    rises: bool = True
    """Whether that is no less where each of these is no less: then bounds leave out what cannot be among the best."""
    is_timed: bool = True
    """Whether times decide which plans are the best; else only what they hold is asked before they are compiled."""
    tokens: int = 1
    """Of a step."""
    iteration: ServedIteration | None = None
    """What plans serve; nothing if they train."""
    within: float = inf
    """Seconds that a step may take at most."""

    def value(self, point: Point, step_time: float, peak: float) -> float:
        """What is minimised, of a plan."""
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
    """Seconds, estimated node by node."""
    peak_bytes: int
    outline: dict[str, float]
    compute: float
    """Seconds that the rank which computes longest does so."""
    exposed: float
    """Seconds of the step in which it does nothing else but communicate, or waits."""
    value: float
    with_twice: Mapping[str, float] = field(default_factory=dict)
    """Seconds on a device with twice of one number, where that was asked."""

    @property
    def num_ranks(self) -> int:
        return int(self.point["devices"])

    @property
    def tokens_per_s(self) -> float:
        """New ones of an iteration that serves, by each device."""
        return int(self.point[TOKENS]) / self.step_time / self.num_ranks


@dataclass
class Outcome:
    """What a search found."""

    proved: list[Proved] = field(default_factory=list)
    """The best first."""
    num_points: int = 0
    num_bounded: int = 0
    """Left out by a bound on their memory, without a compilation."""
    num_outlined: int = 0
    """Evaluated by closed forms."""
    num_slower: int = 0
    """Slower by a lower bound than all that were to be compiled, so never evaluated."""
    num_undecided: int = 0
    """Slower in outline than all that were to be compiled, so their memory was never asked for."""
    num_not_asked: int = 0
    """Of those that serve, and of which each would be a compilation."""
    num_sure: int = 0
    """Of those that were proved, the first so many: no other plan can be better by a lower bound."""
    num_rivals: int = 0
    """Plans that were not compiled and may be better than the first by their bounds."""
    nearest: float = 0.0
    """Of what its outline says, what the best of these is worth at most if it is better; 0 where nobody knows."""
    least_ratio: float = 1.0
    """The least that one that was compiled takes, of what its outline says."""
    reasons: Counter[str] = field(default_factory=Counter)
    mismatches: list[str] = field(default_factory=list)
    """Where a compilation said otherwise than its closed forms. There are none."""
    interrupted: bool = False
    compiled: list[Proved] = field(default_factory=list)
    """All that were compiled whole and fit; those too of which none is faster and needs less memory, if that was asked."""


def least_ratio(found: Sequence[Proved]) -> float:
    """The least that a plan takes, in times of its outline."""
    return min(each.step_time / each.outline["step"] for each in found)


def in_order(each: Proved) -> tuple[float, int, str]:
    """Of two that are as good, the one that needs less memory; whoever was answered first."""
    return each.value, each.peak_bytes, each.text


PARTS_IN_WORDS = (
    ("compute", "computation"),
    ("exposed", "exposed communication"),
    ("idle", "bubble"),
)


def compare(one: Proved, other: Proved, *, is_timed: bool = True) -> str:
    """Why one plan is better than another, in words: what of a step is less, and what is more. Where times do not decide it, memory comes first."""
    scale = [each.step_time / max(each.outline["step"], 1e-12) for each in (one, other)]
    less: list[str] = []
    more: list[str] = []
    for name, title in PARTS_IN_WORDS:
        change = one.outline[name] * scale[0] - other.outline[name] * scale[1]
        if abs(change) >= 0.001 * other.step_time:
            said = f"{in_unit(abs(change), SECONDS)} {'less' if change < 0 else 'more'} {title}"
            (less if change < 0 else more).append(said)
    found = ", ".join(less)
    if more:
        found = f"{found}, for {', '.join(more)}" if found else ", ".join(more)
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
    return found or "the same but for a thousandth"
