"""What the pipeline needs to know of a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelFacts:
    """Read off the IR that the frontend makes."""

    batch_dim: str
    """The leading dim of the first input: what microbatches and data parallelism split."""
    is_training: bool
    """Whether the output is a loss that the step is to make smaller."""
