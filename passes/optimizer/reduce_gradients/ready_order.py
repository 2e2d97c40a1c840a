"""When the backward pass has made gradients."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from xdsl.ir import Block, Operation, SSAValue

from stagec.dialects import stg
from stagec.dialects.op import block_of
from stagec.dialects.types import StackType
from stagec.dialects.use_def import followed, from_body


def maker(gradient: SSAValue) -> Operation | None:
    """The op in the innermost loop that makes a gradient."""
    op = followed(gradient, from_body).owner
    return op if isinstance(op, Operation) else None


class ReadyOrder:
    """Sorts gradients as the backward pass makes them.

    Blocks are numbered once, when they are first asked for: what makes gradients stays where it is.
    """

    def __init__(self) -> None:
        self._positions: dict[Block, dict[Operation, int]] = {}
        self._moved: dict[SSAValue, list[int]] = {}

    def move(
        self, gradients: Mapping[str, SSAValue], behind: Mapping[str, Collection[str]]
    ) -> None:
        """Let the gradients of some weights come behind those of others."""
        for path, others in behind.items():
            orders = [self.of(gradients[other]) for other in others if other in gradients]
            if path in gradients and orders:
                own = self.of(gradients[path])
                self._moved[gradients[path]] = max(own, [*max(orders), 1, *own])

    def of(self, gradient: SSAValue) -> list[int]:
        """The position of its maker, outermost block first; of one that is moved behind others, theirs and more."""
        if gradient in self._moved:
            return self._moved[gradient]
        op = maker(gradient)
        order: list[int] = []
        while op is not None and not isinstance(op, stg.ProgramOp):
            block = block_of(op)
            if block not in self._positions:
                self._positions[block] = {each: k for k, each in enumerate(block.ops)}
            order.insert(0, self._positions[block][op])
            op = block.parent_op()
        return order

    def of_group(self, group: Sequence[SSAValue]) -> list[int]:
        """When a group is ready to be reduced: a group of layers with its first, a unit when all of it is."""
        orders = [self.of(gradient) for gradient in group]
        return min(orders) if isinstance(group[0].type, StackType) else max(orders)


def loop_of(gradient: SSAValue) -> Operation | None:
    """The repeat over layers that makes a stack of gradients."""
    op = gradient.owner
    if isinstance(op, stg.AccumulateOp) and (inside := from_body(gradient)) is not None:
        op = inside.owner
    return op if isinstance(op, stg.RepeatOp) else None
