"""What has no memory of its own."""

from __future__ import annotations

from xdsl.ir import SSAValue

from stagec.dialects import sched


def is_multiplied(value: SSAValue) -> bool:
    """Whether a product reads a value, or a view of it."""
    readers = [use.operation for use in value.uses]
    views = [op.results[0] for op in readers if isinstance(op, sched.ViewOp)]
    products = [
        op for op in readers if isinstance(op, sched.ComputeOp) and op.op.data == "contract"
    ]
    return bool(products) or any(map(is_multiplied, views))
