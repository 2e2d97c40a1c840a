"""The peak of memory along the time of the estimated step. The memory plan itself knows only the order in which nodes are issued, not when they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stagec.memory import TimedPeak

if TYPE_CHECKING:
    from stagec.estimate.step import Estimate


def timed_peaks(found: Estimate | None) -> Sequence[TimedPeak]:
    """The peak of each rank class along the time of a step; empty where that is not known."""
    return found.timed_peaks if found is not None else []


def most_along_time(peaks: Sequence[TimedPeak]) -> tuple[int, TimedPeak] | None:
    """The highest of the peaks of all classes, and the number of its class; None if there are no peaks."""
    if not peaks:
        return None
    number = max(range(len(peaks)), key=lambda each: peaks[each].num_bytes)
    return number, peaks[number]
