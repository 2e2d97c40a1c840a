"""The state-space scan of Mamba-2, forward and backward.

    %y = stg.ssd_scan %x, %dt, %a, %b, %c chunk "Q"

For each head a state [E, N] decays and takes in, step by step, and each step's result is read from it:

    state[s] = exp(dt[s] * a) * state[s-1] + dt[s] * x[s] (outer) b[s]        y[s] = state[s] @ c[s]

x and y are [..., S, H, E], dt [..., S, H], a [H]; b and c [..., S, N], or [..., S, G, N] for groups of heads: H and G are then one index at two
granularities. It is computed chunk by chunk (Dao and Gu, arXiv:2405.21060, section 6): products within a chunk of Q steps, and a
recurrence over the states between chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, result_def

from stagec import symbolic
from stagec.dialects.interfaces import Bytes, all_bytes
from stagec.dialects.op import op_definition
from stagec.dialects.stg.base import PLACEMENT, Indices, LikeOp, TensorOp, tensor_type
from stagec.dialects.stg.interface import Call, CallError, Requests, Signature, dims_in_words
from stagec.dialects.stg.recurrent import (
    STATE_BYTES,
    RecurrenceGradOp,
    RecurrenceOp,
    ResumedScanOp,
    counts_of_chunks,
)
from stagec.dialects.types import TensorType
from stagec.dialects.work import Work
from stagec.symbolic import Size


def scan_indices(op: SsdScanOp | SsdScanGradOp) -> tuple[tuple[str, ...], ...]:
    """The index of each dim of x, dt, a, b and c: groups of heads are heads."""
    x, b = tensor_type(op.x).names, tensor_type(op.b).names
    heads, rows = x[-2], x[:-2]
    state = (*rows, heads, b[-1]) if len(b) == len(x) else (*rows, b[-1])
    return x, x[:-1], (heads,), state, state


def verify_scan(op: SsdScanOp | SsdScanGradOp) -> None:
    """Operands are of the shapes that the module names; the sequence is whole on each device."""
    x, dt, a, b, c = (tensor_type(v) for v in (op.x, op.dt, op.a, op.b, op.c))
    if len(x.dims) < 3:
        raise op.mistake(f"<{x.body}> does not end in sequence, heads, width")
    wanted = {"dt": (dt, x.names[:-1]), "a": (a, x.names[-2:-1]), "c": (c, b.names)}
    for name, (operand, names) in wanted.items():
        if operand.names != names:
            raise op.mistake(f"`{name}` is <{operand.body}>, not over [{', '.join(names)}]")
    rows = b.names[: len(x.names) - 2]
    if rows != x.names[:-2] or len(b.names) - len(rows) not in (1, 2):
        raise op.mistake(
            f"`b` is <{b.body}>, not over [{', '.join(x.names[:-2])}], groups and state"
        )
    if PLACEMENT not in op.properties and x.dims[-3].split:
        raise op.mistake(f"each device needs all of `{x.names[-3]}` in <{x.body}>")


def scan_products(op: SsdScanOp | SsdScanGradOp) -> tuple[Size, Size, Size, Size]:
    """FLOPs of the four products of a scan by chunks (Dao and Gu 2024, section 6.3).

    With T steps of H heads, chunks of Q, width E, state N and G groups: c b^T within chunks, 2 T Q N G; that times x, 2 T Q E H; the state
    that each chunk makes, and what each step reads of the state before its chunk, 2 T N E H each. All Q x Q pairs of a chunk count, as its kernels compute
    them; elementwise work (decay, cumulative sums) does not.
    """
    x, b = tensor_type(op.x), tensor_type(op.b)
    chunk = symbolic.call("min", op.chunk.data, x.dims[-3].size)
    inner = 2 * chunk * b.num_elements
    outer = 2 * chunk * x.num_elements
    state = 2 * x.num_elements * b.dims[-1].size
    return inner, outer, state, state


def recurrence(op: SsdScanOp | SsdScanGradOp) -> Size:
    """FLOPs from chunk to chunk: each element of a state decays and takes in another, 2 (T/Q) N E H."""
    return 2 * states(op)


def states(op: SsdScanOp | SsdScanGradOp) -> Size:
    """Elements of the states of all chunks."""
    x, b = tensor_type(op.x), tensor_type(op.b)
    *rows, sequence, heads, width = x.dims
    chunks = symbolic.ceildiv(sequence.size, op.chunk.data)
    return chunks * symbolic.product(d.size for d in (*rows, heads, width, b.dims[-1]))


def pair_elements(op: SsdScanOp | SsdScanGradOp) -> Size:
    """Elements of c b^T, a Q x Q square per chunk and group."""
    x, b = tensor_type(op.x), tensor_type(op.b)
    chunk = symbolic.call("min", op.chunk.data, x.dims[-3].size)
    return symbolic.product(d.size for d in b.dims[:-1]) * chunk


@op_definition
class SsdScanOp(RecurrenceOp, LikeOp):
    """Run the recurrence. Nothing but its operands is kept: the backward pass makes the states of chunks again.

    Linear in x. An axis that splits heads splits groups; without groups b and c are the same for all heads.

    `x` [B, S, H, E], `dt` [B, S, H], `a` [H], `b` and `c` [B, S, G, N] -> [B, S, H, E].
    FLOPs: four products by chunk (Dao and Gu 2024, arXiv:2405.21060, section 6), and the recurrence between chunks.
    """

    name = "stg.ssd_scan"
    SOURCE: ClassVar[str] = "Dao and Gu, Transformers are SSMs, 2024 (arXiv:2405.21060), section 6"
    WORK: ClassVar[Work] = Work.SCAN
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)
    DEFAULT_CHUNK: ClassVar[int] = 256
    STATE: ClassVar[str] = "h[B, H, E, N]"
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of(
            "ssd_scan(x, dt, a, b, c, chunk? = size, state? = cache)",
            "the state-space recurrence of Mamba-2, chunk by chunk",
        ),
    )

    x = operand_def(TensorType)
    dt = operand_def(TensorType)
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    c = operand_def(TensorType)
    result = result_def(TensorType)

    @classmethod
    def check_call(cls, call: Call) -> None:
        x, dt, a, b, c = call.types
        call.need_float(0, 1, 2, 3, 4)
        if len(x.names) < 3:
            raise CallError(
                f"`x` ends in sequence, heads, width, but is {dims_in_words(x)}", operand=0
            )
        *rows, heads, _ = x.names
        for position, operand, names in ((1, dt, [*rows, heads]), (2, a, [heads])):
            if list(operand.names) != names:
                raise CallError(
                    f"this is [{', '.join(names)}] for `x` of {dims_in_words(x)}", operand=position
                )
        added = b.names[len(rows) :]
        if list(b.names[: len(rows)]) != rows or len(added) not in (1, 2):
            raise CallError(
                f"this is [{', '.join(rows)}], groups of heads if there are several, and the state's width",
                operand=3,
            )
        if added[-1] in x.names or (len(added) == 2 and added[0] in (*rows, x.names[-1])):
            raise CallError("groups and the state's width are dims of their own", operand=3)
        if c.names != b.names:
            raise CallError(f"`b` is {dims_in_words(b)}, `c` is {dims_in_words(c)}", operand=4)
        if len(added) == 2:
            total, groups = call.sizes[heads], call.sizes[added[0]]
            if total is not None and groups is not None and total % groups:
                raise CallError(
                    f"`{added[0]} = {groups}` does not divide `{heads} = {total}`", operand=3
                )

    @classmethod
    def state_of(cls, call: Call) -> tuple[str, tuple[str, ...]]:
        *rows, new, heads, width = call.types[0].names
        return new, (*rows, heads, width, call.types[3].names[-1])

    @classmethod
    def with_state(
        cls, call: Call, operands: Sequence[SSAValue], state: SSAValue, requests: Requests
    ) -> TensorOp:
        return ResumedScanOp(*operands, state, **counts_of_chunks(cls.chunk_said(call), requests))

    @property
    def goes_along(self) -> str:
        return tensor_type(self.x).names[-3]

    def indices(self) -> Indices:
        x, *others = scan_indices(self)
        return Indices((x, *others), (x,), blocked=frozenset(x[-3:-2]))

    def verify_(self) -> None:
        verify_scan(self)
        super().verify_()

    def flops(self) -> Size:
        return symbolic.total(scan_products(self)) + recurrence(self)

    def moved_bytes(self) -> Bytes:
        # Five kernels (mamba_ssm, ssd_combined.py): states are written, passed on from chunk to chunk (read, written) and
        # read again; c b^T is written and read.
        between = STATE_BYTES * (2 * states(self) + pair_elements(self))
        return Bytes(all_bytes(self.operands) + between, all_bytes(self.results) + between)

    def gradient_op(self, dy: SSAValue) -> TensorOp:
        return SsdScanGradOp(dy, self)


@op_definition
class SsdScanGradOp(RecurrenceGradOp):
    """Gradients of the scan: states of chunks again, then a recurrence from the end, for all five operands.

    Operands and gradients as those of `stg.ssd_scan`: `x` [B, S, H, E].

    FLOPs: twice those of each of the four products, and once more those whose results were not kept; the recurrence
    twice (Mamba's `_mamba_chunk_scan_combined_bwd`).
    """

    name = "stg.ssd_scan_grad"
    SOURCE: ClassVar[str] = (
        "Dao and Gu, Transformers are SSMs, 2024 (arXiv:2405.21060), section 6; products again as in mamba_ssm's ssd_combined.py"
    )
    WORK: ClassVar[Work] = Work.SCAN_GRAD

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    dt = operand_def(TensorType)
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    c = operand_def(TensorType)
    dx = result_def(TensorType)
    ddt = result_def(TensorType)
    da = result_def(TensorType)
    db = result_def(TensorType)
    dc = result_def(TensorType)

    def indices(self) -> Indices:
        operands = scan_indices(self)
        return Indices((operands[0], *operands), operands, blocked=frozenset(operands[0][-3:-2]))

    def verify_(self) -> None:
        verify_scan(self)
        dy, x = tensor_type(self.dy), tensor_type(self.x)
        if dy.names != x.names:
            raise self.mistake(f"dy is <{dy.body}>, x <{x.body}>")
        super().verify_()

    def flops(self) -> Size:
        # For both operands of each of the four products, and again of those whose results were not kept: c b^T, the states, and
        # dy x^T, which the gradients of c b^T and of the decay make apart (`_mamba_chunk_scan_combined_bwd`). The recurrence runs
        # forward again, and backward.
        inner, outer, made, read = scan_products(self)
        return 3 * inner + 3 * outer + 3 * made + 2 * read + 2 * recurrence(self)

    def flops_again(self) -> Size:
        inner, outer, made, _ = scan_products(self)
        return inner + outer + made + recurrence(self)

    def moved_bytes(self) -> Bytes:
        # Both states and their gradients go through memory as in the forward pass, c b^T and its gradient too.
        between = STATE_BYTES * 2 * (2 * states(self) + pair_elements(self))
        return Bytes(all_bytes(self.operands) + between, all_bytes(self.results) + between)
