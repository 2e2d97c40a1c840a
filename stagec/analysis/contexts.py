"""What a plan's contexts say, and how much of a causal mask falls to each rank.

Pairs of a query and a key are counted as areas: a causal mask over s queries and s keys leaves s^2 / 2 of s^2, as
FlashAttention's authors count them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from stagec import symbolic
from stagec.analysis.coordinates import joint_index
from stagec.dialects import dist, stg
from stagec.dialects.attributes import Dim
from stagec.symbolic import ONE, Size, conditions

HALF = ONE / 2

AttentionOps = stg.AttentionOp | stg.AttentionGradOp


@dataclass(frozen=True)
class Contexts:
    """The `dist.context` ops of a module."""

    ops: tuple[dist.ContextOp, ...] = ()

    @staticmethod
    def of(module: ModuleOp) -> Contexts:
        return Contexts(tuple(op for op in module.body.ops if isinstance(op, dist.ContextOp)))

    def axes(self, method: str | None = None) -> tuple[str, ...]:
        """The axes of all contexts, or of those with a method."""
        return tuple(
            axis for op in self.ops if method in (None, op.method.data) for axis in op.axes.data
        )

    def along(self, axes: Sequence[str]) -> list[dist.ContextOp]:
        """The contexts over some of these axes."""
        return [op for op in self.ops if set(axes) & set(op.axes.data)]

    def rotation(self, axes: Sequence[str]) -> str:
        """How blocks go round these axes."""
        return self.along(axes)[0].rotate.data

    def balanced(self, axes: Sequence[str]) -> bool:
        """Whether each rank has a chunk from the head and one from the tail of the sequence, or of each document."""
        return all(op.balance.data != "none" for op in self.along(axes))

    def by_documents(self, axes: Sequence[str]) -> bool:
        """Whether each rank has as much of each document as others."""
        along = self.along(axes)
        return bool(along) and all(op.balance.data == "documents" for op in along)


def ring_of(op: AttentionOps, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes with more than one rank round which the keys have still to go."""
    axes = op.ring_axes
    return axes if any(conditions.is_split(axis, mesh) for axis in axes) else ()


def is_masked(op: AttentionOps) -> bool:
    """Whether queries see only the keys before them."""
    return op.causal is not None


def is_of_itself(op: AttentionOps) -> bool:
    """Whether keys are those of the queries' own sequence: positions of one name, or of two that a mask, a window, slopes or a bias compare."""
    same = stg.tensor_type(op.q).names[-3] == stg.tensor_type(op.k).names[-3]
    compared = (op.causal, op.window, op.alibi, op.bias)
    return same or any(each is not None for each in compared)


def chunk_pairs(chunk: Size, length: Size, keys: Size, reach: stg.Reach) -> Size:
    """Pairs of the queries of chunk number `chunk`, all chunks of `length`, with all `keys` of the sequence."""
    start = chunk * length
    return reach.area(start + length, keys) - reach.area(start, keys)


def share_of_mask(queries: Dim, reach: stg.Reach, balanced: bool) -> Size:
    """Pairs of a rank's queries with all keys that a mask or a window leaves."""
    ways = symbolic.product(map(symbolic.symbol, queries.split))
    rank, keys = joint_index(queries.split), queries.size * ways
    if not balanced:
        return chunk_pairs(rank, queries.size, keys, reach)
    half = queries.size / 2
    head, tail = rank, 2 * ways - 1 - rank
    return chunk_pairs(head, half, keys, reach) + chunk_pairs(tail, half, keys, reach)


@dataclass(frozen=True)
class RingSteps:
    """What the steps of a ring compute. Step 0 is a device's queries with its own keys."""

    own: Size
    """Pairs in step 0."""
    other: Size
    """Pairs in each later step that is not skipped."""
    num_computed: Size
    """Later steps that are not skipped; these come first."""


def ring_steps(
    op: AttentionOps, axes: Sequence[str], balanced: bool, block: Size | None = None
) -> RingSteps:
    """Pairs of each step, as a ring computes them block by block (PyTorch, `_templated_ring_attention`).

    Under a causal mask, with head-tail chunks, every later step needs either half of the keys or half of the queries;
    without, the keys of later ranks are skipped. `count = full` counts all of the masked block of step 0. `block`: pairs of two ranks' parts, if not all.
    """
    queries, keys = stg.tensor_type(op.q).dims[-3], stg.tensor_type(op.k).dims[-3]
    devices = symbolic.product(map(symbolic.symbol, axes))
    block = queries.size * keys.size if block is None else block
    if not is_masked(op):
        return RingSteps(block, block, devices - 1)
    if op.count.data == "full":
        own = block
    elif balanced:
        own = block * HALF
    else:
        # Other axes may split the queries further: their keys end with the rank's own queries.
        within = joint_index([a for a in queries.split if a not in axes])
        own = chunk_pairs(within, queries.size, keys.size, stg.Reach())
    if balanced:
        return RingSteps(own, block * HALF, devices - 1)
    return RingSteps(own, block, joint_index(axes))
