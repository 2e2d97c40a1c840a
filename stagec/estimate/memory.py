"""The peak of memory along the time of the estimated step. The memory plan itself knows only the order in which nodes are issued, not when they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stagec.compiled import Compiled
from stagec.memory import TimedPeak, peak_along_time

if TYPE_CHECKING:
    from stagec.estimate.timeline import Timeline


def timed_peaks(compiled: Compiled, timeline: Timeline | None) -> list[TimedPeak]:
    """The peak of each rank class along the time of a step; empty if `timeline` is None, as the time is not known."""
    if timeline is None:
        return []
    return [
        peak_along_time(each, *timeline.of_class(number))
        for number, each in enumerate(compiled.memory)
    ]


def most_along_time(peaks: Sequence[TimedPeak]) -> tuple[int, TimedPeak] | None:
    """The highest of the peaks of all classes, and the number of its class; None if there are no peaks."""
    if not peaks:
        return None
    number = max(range(len(peaks)), key=lambda each: peaks[each].num_bytes)
    return number, peaks[number]
