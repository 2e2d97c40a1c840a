"""Which nodes of a segment are one kernel.

A node joins the kernel of what it reads where their kinds of work allow it, and where nothing lies between: a kernel runs as a whole, so it can hold no node
that waits for another kernel which waits for it. In `h = x + a(x)` and `y = h + b(h)`, with products in `b`, the second sum is no part of the first one's
kernel, and reads `h` from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from stagec.backend.program import Node
from stagec.dialects.sched.actions import Compute
from stagec.dialects.work import Work

Joins = Callable[[Node], Collection[Work] | None]
"""The kinds of work that a node can join; None if it never shares its kernel."""


def joined_kernels(
    nodes: Sequence[Node], joins: Joins
) -> tuple[dict[int, int], dict[int, list[int]]]:
    """For each node that may share a kernel, the first node of its kernel, and the nodes before it whose values its kernel hands to it."""
    kernel_of = [*range(len(nodes))]
    behind = [0] * len(nodes)
    """`[kernel]`: for which kernels it waits, directly or not, a bit for each."""
    joined: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        read = [dep.node for dep in node.data_deps if dep.slot < 0]
        kernels = {kernel_of[j] for j in read}
        after = joins(node)
        if after is not None:
            joinable = [j for j in read if j in joined and work_of(nodes[j]) in after]
            own = {kernel_of[j] for j in joinable}
            # Not those for which others wait that this node reads too.
            own -= {k for k in own for each in kernels if behind[each] >> k & 1}
            joined[i] = [j for j in joinable if kernel_of[j] in own]
            kernel = kernel_of[i] = min(own, default=i)
            if len(own) > 1:
                kernel_of[:] = [kernel if each in own else each for each in kernel_of]
        else:
            own, kernel = set[int](), i
        members = sum(1 << each for each in own | {kernel})
        for each in kernels | own:
            behind[kernel] |= (1 << each | behind[each]) & ~members
        for each in range(i if own else 0):
            if behind[each] & members:
                behind[each] |= 1 << kernel | behind[kernel]
    return {i: kernel_of[i] for i in joined}, joined


def work_of(node: Node) -> Work:
    """The kind of work of a computing node; communication and copies have the kind `OTHER`."""
    return node.action.work if isinstance(node.action, Compute) else Work.OTHER
