"""Node templates: what each op of `sched` is in a trace, in numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Operation

from stagec.analysis.kernels import kernel_form
from stagec.backend.lowering.rows import Bucket
from stagec.backend.program import (
    Action,
    Collective,
    Compute,
    Dep,
    HostCopy,
    Kernel,
    Node,
    Segment,
    Transfer,
)
from stagec.diagnostics import CompileError, Diagnostic, span_of
from stagec.dialects import sched, stg
from stagec.dialects.types import tensor_of
from stagec.symbolic import Size

Owners = Mapping[str, tuple[tuple[str, tuple[int, ...]], ...]]
"""For a weight that several ranks have, by path: the axis of the stages, and the ranks' coordinates on it."""


def sizes_of_node(op: Operation) -> tuple[Size, ...]:
    """What the numbers of a node are made of."""
    if isinstance(op, sched.ComputeOp):
        return op.flops.data, op.reads.data, op.writes.data
    if isinstance(op, sched.CollectiveOp):
        return op.bytes_in.data, op.bytes_out.data
    return ()


MOST_FLOPS = 2**63 - 1
"""What a trace has room for."""
MOST_BYTES = 2**60
"""An EiB: so much that sums of many are counted in 64 bits all the same."""


class TooLargeError(Exception):
    """A number that a trace has no room for."""


@dataclass
class Templates:
    """Makes nodes, with the numbers that sizes have."""

    values: Mapping[str, int | Fraction]
    owners: Owners
    _numbers: dict[Size, int] = field(default_factory=dict)

    def node(self, op: Operation, deps: tuple[Dep, ...]) -> Node:
        location = op.location
        assert isinstance(op, sched.NODES)
        return Node(
            op=sched.node_name(op),
            phase=stg.phase_of(op),
            scope=stg.scope_of(op),
            action=self.action(op),
            stream=op.stream.data,
            data_deps=deps,
            location=(
                f"{location.filename.data}:{location.line.data}:{location.column.data}"
                if isinstance(location, FileLineColLoc)
                else ""
            ),
            made_by=stg.made_by(op),
            serial="serial" in op.attributes,
        )

    def action(self, op: Operation) -> Action:
        """What an op is in a trace. Numbers that this has no room for are E0216."""
        try:
            return self._action(op)
        except TooLargeError as error:
            message = f"an op {error} on one device, more than can be counted"
            help_ = "look for a size of one digit too many"
            raise CompileError(
                [Diagnostic("E0216", message, span_of(op.location), help=help_)]
            ) from None

    def _action(self, op: Operation) -> Action:
        if isinstance(op, sched.ComputeOp):
            written = self.num_bytes(op.writes.data)
            flops = self.number(op.flops.data)
            if flops > MOST_FLOPS:
                raise TooLargeError(f"takes {flops:.3g} FLOPs")
            return Compute(flops, self.num_bytes(op.reads.data) + written, written, self.kernel(op))
        if isinstance(op, sched.HostCopyOp):
            return HostCopy(op.direction.data, self.num_bytes(op.num_bytes.data))
        if isinstance(op, sched.SendOp | sched.RecvOp):
            return Transfer(
                sched.node_name(op),
                op.axes.data,
                op.shift.value.data,
                self.num_bytes(op.num_bytes.data),
                op.channel.value.data,
                op.dtype.data,
            )
        if isinstance(op, sched.StageSendOp | sched.StageRecvOp):
            tensor = tensor_of(op.value.type)
            kind = "send" if isinstance(op, sched.StageSendOp) else "recv"
            num_bytes = self.num_bytes(tensor.num_bytes)
            # Which boundary it is, and how far the peer: `assemble` knows.
            return Transfer(kind, (), 0, num_bytes, op.number.value.data, tensor.dtype)
        assert isinstance(op, sched.CollectiveOp)
        return Collective(
            op.kind.data,
            op.axes.data,
            self.num_bytes(op.bytes_in.data),
            self.num_bytes(op.bytes_out.data),
            op.dtype.data,
            self.among(op),
        )

    def kernel(self, op: sched.ComputeOp) -> Kernel | None:
        form = kernel_form(op)
        if form is None:
            return None
        sizes = tuple((name, self.number(size)) for name, size in form.sizes)
        return Kernel(form.kind, form.dtype, sizes, form.is_linear)

    def among(self, op: Operation) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The ranks that share a weight, where a collective is over those only."""
        path = stg.text(op, "tied")
        return self.owners.get(path, ()) if path else ()

    def num_bytes(self, size: Size) -> int:
        found = self.number(size)
        if found > MOST_BYTES:
            raise TooLargeError(f"moves {found:.3g} bytes")
        return found

    def number(self, size: Size) -> int:
        """The number of a size; a fraction of an operation counts as a whole one."""
        if size not in self._numbers:
            exact = size.evaluate(self.values)
            self._numbers[size] = -(-exact.numerator // exact.denominator)
        return self._numbers[size]


def with_numbers(segment: Segment, ops: Sequence[Operation], templates: Templates) -> Segment:
    """A segment of these ops with other numbers."""
    nodes = list(segment.nodes)
    for position, (op, node) in enumerate(zip(ops, nodes, strict=True)):
        action = templates.action(op)
        if action != node.action:
            nodes[position] = replace(node, action=action)
    return replace(segment, nodes=tuple(nodes))


def bucket_node(bucket: Bucket, templates: Templates) -> tuple[Node, int]:
    """The collective that a bucket becomes, and how many values it reads."""
    ops = [member.op for member in bucket.members]
    first = bucket.first
    num_slots = sum(len(op.operands) for op in ops)
    bytes_in = sum(templates.number(op.bytes_in.data) for op in ops)  # pyright: ignore
    bytes_out = sum(templates.number(op.bytes_out.data) for op in ops)  # pyright: ignore
    node = templates.node(first, tuple(Dep(k, 0) for k in range(num_slots)))
    action = Collective(first.kind.data, first.axes.data, bytes_in, bytes_out, first.dtype.data)
    return replace(node, action=action, scope="bucket"), num_slots
