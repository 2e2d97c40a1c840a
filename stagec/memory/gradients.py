"""What becomes of the memory of gradients when they are reduced over ranks."""

from __future__ import annotations

from dataclasses import dataclass

from stagec.plans.clauses import Plan


@dataclass(frozen=True)
class GradientBuffers:
    """By the stage of ZeRO."""

    are_kept: bool
    """A rank keeps gradients whole, and reduces them in place: without ZeRO, under its first stage, and under the second where a step
    reduces once."""
    are_copied: bool
    """Gradients of a unit are copied into one buffer in the dtype of the reduction, and are freed then: under ZeRO 3,
    as in FSDP2 (`foreach_reduce`). Else sums in another dtype than their terms are buffers that stay from step to step."""


def gradient_buffers(plan: Plan) -> GradientBuffers:
    level = plan.zero.level if plan.zero is not None else 0
    are_kept = level < 2 or (level == 2 and not plan.reduces_each_microbatch)
    return GradientBuffers(are_kept=are_kept, are_copied=level == 3)
