"""What crosses the boundary of two pipeline stages, as `dist` and `sched` both say it."""

from __future__ import annotations

from xdsl.utils.exceptions import VerifyException

DIRECTIONS = ("forward", "backward")


def verify_crossing(name: str, direction: str, number: int) -> None:
    """What crosses a stage boundary goes one way or the other, and has a number from 0 on."""
    if direction not in DIRECTIONS:
        raise VerifyException(f"{name}: a value goes forward or backward, not `{direction}`")
    verify_number(name, number)


def verify_number(name: str, number: int) -> None:
    if number < 0:
        raise VerifyException(f"{name}: numbers count from 0, not from {number}")
