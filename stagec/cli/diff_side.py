"""One of the two that `stagec diff` compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class DiffSide:
    """What one of the two names: a directory of traces, or a model with a plan and sizes."""

    text: str
    path: str
    is_traces: bool
    plan: str | None = None
    settings: Sequence[str] = ()
