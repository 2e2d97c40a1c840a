"""What one rank does in a step, in words that a measured run and a trace share.

Phases are `fwd`, `bwd`, `recompute`, `p2p`, `optim`, `clip`. A reduction of gradients counts as `bwd`:
PyTorch's phases say when something was issued, a trace's also what it is for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MATMUL, ATTENTION, ATTENTION_GRAD = "matmul", "attention", "attention backward"
CONVOLUTION = "convolution"
"""Of forward passes and what is computed again. PyTorch's formula for the gradients takes no note of groups of channels (`conv_backward_flop`)."""


@dataclass(frozen=True)
class Compute:
    """One op that has FLOPs. `kind` is one of those above."""

    phase: str
    kind: str
    flops: int
    weight: tuple[int, ...] = field(default=(), compare=False)
    """The shape of a product's second operand, as it was measured."""


@dataclass(frozen=True)
class Communication:
    """One collective, or one end of a transfer.

    `axis` joins the mesh axes along which members differ with `+`. `ranks` are those of the group, or
    the two ends of a transfer, ascending. `scope` is the place in the model that it serves, where
    that is known, and does not compare.
    """

    phase: str
    kind: str
    dtype: str
    bytes_in: int
    bytes_out: int
    axis: str
    ranks: tuple[int, ...]
    scope: str = field(default="", compare=False)
    reduces_gradient: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.dtype} {self.bytes_in} -> {self.bytes_out} "
            f"{self.axis} {shown_ranks(self.ranks)}"
        )


@dataclass(frozen=True)
class Memory:
    """Bytes that stay on the device from step to step."""

    parameters: int
    gradients: int
    optimizer: int
    saved: int | None = None
    """Activations kept for the backward pass, of all microbatches; none where they do not compare."""
    holds_loss: bool = False
    """Whether the rank computes the loss."""
    live_peak: int | None = None
    """The most that is alive at once; none where it does not compare. Of a plan, what is alive then."""
    beside_peak: int = 0
    """Of a plan: what PyTorch has then beside it, which is taken off the measured peak."""
    attended: int = 0
    """Elements of the keys and values that attention reads, as it was measured."""
    cache: int | None = None
    """What requests keep from step to step; none under training."""


@dataclass(frozen=True)
class RankRecord:
    """One rank's step: computations in any order, communications in order of issue."""

    computes: tuple[Compute, ...]
    communications: tuple[Communication, ...]
    memory: Memory | None

    def flops(self) -> Counter[tuple[str, str]]:
        """FLOPs by phase and kind."""
        totals: Counter[tuple[str, str]] = Counter()
        for compute in self.computes:
            totals[compute.phase, compute.kind] += compute.flops
        return totals

    def ops(self) -> dict[tuple[str, str], Counter[int]]:
        """By phase and kind, how many ops have how many FLOPs."""
        sizes: dict[tuple[str, str], Counter[int]] = {}
        for compute in self.computes:
            sizes.setdefault((compute.phase, compute.kind), Counter())[compute.flops] += 1
        return sizes

    def phases(self) -> list[str]:
        """The phases in which something is communicated, in order of their first."""
        return list(dict.fromkeys(c.phase for c in self.communications))

    def in_phase(self, phase: str) -> list[Communication]:
        return [c for c in self.communications if c.phase == phase]


def shown_ranks(ranks: tuple[int, ...]) -> str:
    """`[0, 1]`, or `[0, 8 .. 56]` when there are many."""
    if len(ranks) <= 4:
        return str(list(ranks))
    return f"[{ranks[0]}, {ranks[1]} .. {ranks[-1]}]"
