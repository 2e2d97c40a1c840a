"""The positions that those of one sequence attend to, and the pairs of both."""

from __future__ import annotations

from stagec import symbolic
from stagec.dialects import stg
from stagec.symbolic import ONE, Size

HALF = ONE / 2


def reach(positions: Size, window: Size | None, more: int) -> Size:
    return positions if window is None else symbolic.call("min", positions, window + more)


def before_new(positions: Size, seen: stg.Reach) -> Size:
    """How many of the positions before the new ones the first new position sees."""
    if seen.chunk is not None:
        return symbolic.call("mod", positions, seen.chunk)
    return reach(positions, seen.window, -1)


def pairs(new: Size, context: Size, causal: bool, seen: stg.Reach) -> Size:
    """Pairs of s queries and the c + s keys up to their own; without a mask, of each with all, or with W around it under a window of W.

    A query at position p, counted from 1, sees p keys, W under a window of W, or those of its chunk
    up to itself: the sum of min(p, W), for instance, for p from c + 1 to c + s.
    """
    keys = context + new
    if seen.both_ways:
        assert seen.window is not None
        width = symbolic.call("min", seen.window, 2 * keys - 1)
        return new * (width - symbolic.call("floordiv", width * width, 4) / keys)
    if not causal:
        most = seen.window or seen.chunk
        return new * (keys if most is None else symbolic.call("min", keys, most))
    return below(context + new, seen) - below(context, seen)


def below(position: Size, seen: stg.Reach) -> Size:
    """How many keys the queries up to a position see: a triangle, then a band, or a triangle for each chunk."""
    if seen.chunk is not None:
        whole = symbolic.call("floordiv", position, seen.chunk)
        rest = position - whole * seen.chunk
        return (whole * seen.chunk * (seen.chunk + 1) + rest * (rest + 1)) * HALF
    if seen.window is None:
        return position * (position + 1) * HALF
    edge = symbolic.call("min", position, seen.window)
    return edge * (edge + 1) * HALF + (position - edge) * seen.window
