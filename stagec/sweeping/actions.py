"""The numbers of a trace node (FLOPs, bytes, sizes of its kernel) for many plans at once: symbolic sizes that are evaluated for all plans together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from xdsl.ir import Operation

from stagec.analysis.kernels import Forms, known_form
from stagec.arrays import distinct_rows
from stagec.dialects import sched
from stagec.dialects.sched.actions import (
    Collective,
    Compute,
    HostCopy,
    HostUpdate,
    NodeAction,
    Transfer,
)
from stagec.dialects.types import tensor_of
from stagec.symbolic import Size
from stagec.unrolling.stage import RowBody


@dataclass(frozen=True)
class ActionForm:
    """The symbolic sizes from which the numbers of an op's action follow, in the order in which `numbers_of` gives and `with_numbers` takes the numbers."""

    sizes: tuple[Size, ...]

    @staticmethod
    def of(op: Operation, known: Forms) -> ActionForm | None:
        """The form of one op of a task's body, or None if sizes alone do not describe the op, as with attention over several kinds of sequences.

        `known` keeps the forms of kernels that were already derived.
        """
        match op:
            case sched.ComputeOp():
                form = known_form(op, known)
                own = (op.flops.data, op.reads.data, op.writes.data)
                if form is None:
                    return ActionForm(own)
                if form.requests:
                    return None
                return ActionForm((*own, *(size for _, size in form.sizes)))
            case sched.CollectiveOp():
                return ActionForm((op.bytes_in.data, op.bytes_out.data))
            case sched.StageSendOp() | sched.StageRecvOp():
                return ActionForm((tensor_of(op.value.type).num_bytes,))
            case sched.HostUpdateOp():
                return ActionForm((op.flops.data, op.num_bytes.data))
            case sched.SendOp() | sched.RecvOp() | sched.HostCopyOp():
                return ActionForm((op.num_bytes.data,))
            case _:
                return None


def action_sizes(body: RowBody, known: Forms) -> list[tuple[tuple[Size, ...], ...]] | None:
    """For each node of a body, its numbers in the order of `ActionForm`. Each number is a tuple of sizes that are to be added.

    A bucket is one node, whose numbers are sums over all of its ops. None if sizes alone do not describe one of the ops (`ActionForm.of`). `known` keeps the
    forms of kernels that were already derived.
    """
    forms = [ActionForm.of(op, known) for op in body.ops]
    sizes = [form.sizes for form in forms if form is not None]
    if len(sizes) != len(forms):
        return None
    if body.is_bucket:
        return [tuple(zip(*sizes, strict=True))]
    return [tuple((size,) for size in own) for own in sizes]


def numbers_of(action: NodeAction) -> tuple[int, ...]:
    """The numbers of an action (FLOPs, bytes, then sizes of its kernel), in the order in which `with_numbers` takes them."""
    match action:
        case Compute():
            sizes = tuple(size for _, size in action.kernel.sizes) if action.kernel else ()
            reads = action.num_bytes - action.num_written
            return (action.num_ops, reads, action.num_written, *sizes)
        case Collective():
            return action.operand_bytes, action.result_bytes
        case HostUpdate():
            return action.num_ops, action.num_bytes
        case Transfer() | HostCopy():
            return (action.num_bytes,)


def with_numbers(action: NodeAction, numbers: Sequence[int]) -> NodeAction:
    """The same action with these numbers instead of its own: the values of the sizes of its `ActionForm`."""
    match action:
        case Compute():
            flops, reads, writes, *sizes = numbers
            kernel = action.kernel
            if kernel is not None:
                named = zip((name for name, _ in kernel.sizes), sizes, strict=True)
                kernel = replace(kernel, sizes=tuple(named))
            return replace(
                action,
                num_ops=flops,
                num_bytes=reads + writes,
                num_written=writes,
                kernel=kernel,
            )
        case Collective():
            before, after = numbers
            return replace(action, operand_bytes=before, result_bytes=after)
        case HostUpdate():
            flops, num_bytes = numbers
            return HostUpdate(flops, num_bytes)
        case Transfer() | HostCopy():
            (num_bytes,) = numbers
            return replace(action, num_bytes=num_bytes)


@dataclass(frozen=True)
class DistinctRows:
    """The different rows of a table with a row for each plan, so that what depends on the row is computed once for plans that have the same."""

    rows: list[tuple[int, ...]]
    inverse: np.ndarray
    """`[plan]`: which of `rows` a plan has."""

    @staticmethod
    def of(columns: Sequence[np.ndarray], count: int) -> DistinctRows:
        """The different rows of a table of `count` plans. Its columns are `[plan]` each."""
        if not columns:
            return DistinctRows([()], np.zeros(count, np.int64))
        if any(column.dtype == object for column in columns):
            found: dict[tuple[int, ...], int] = {}
            rows = zip(*(column.tolist() for column in columns), strict=True)
            inverse = np.array([found.setdefault(row, len(found)) for row in rows], np.int64)
            return DistinctRows(list(found), inverse)
        table = np.stack(columns, axis=1)
        kept, _, inverse = distinct_rows(table)
        return DistinctRows([tuple(row) for row in kept.tolist()], inverse)
