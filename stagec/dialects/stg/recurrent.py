"""Recurrences and filters that go on from what earlier tokens left: state of a request, as large for one token as for a million.

    %y = stg.resumed_scan %x, %dt, %a, %b, %c, %state chunk "Q" ...     // state [B, sequences, H, E, N]
    %y = stg.resumed_delta_rule %q, %k, %v, %decay, %beta, %state ...   // state [B, sequences, H, E, G]
    %y = stg.resumed_conv %x, %kernel, %state over "S" ...              // state [B, sequences, W, channels]

Each sequence's state is read, if it has tokens before, and written in place. A row may hold several sequences, one after the other, so
what depends on where each begins is said as sums over the sequences of a row. Nothing is differentiated through them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, prop_def, result_def

from stagec import symbolic
from stagec.dialects.attributes import SizeAttr
from stagec.dialects.interfaces import Bytes, all_bytes, elements, num_bytes
from stagec.dialects.op import op_definition
from stagec.dialects.stg.base import Indices, InferredOp, LikeOp, StatefulOp, TensorOp, tensor_type
from stagec.dialects.stg.interface import BackwardPass, Call, Cotangents, Requests, only
from stagec.dialects.types import TensorType
from stagec.dialects.work import Work
from stagec.symbolic import ONE, ZERO, Size

SEQUENCES = "sequences"
"""The dim of what is one of each sequence of a row: its last position, its state."""


STATE_BYTES = 4
"""The bytes of an element of a chunk's state, and of c b^T: mamba_ssm's kernels hand both on in fp32."""


def num_resumed(requests: Requests) -> Size:
    """Sequences of a row that have tokens before."""
    return requests.in_a_row(lambda _, context: symbolic.call("min", ONE, context))


def is_single(new: Size) -> Size:
    """1 of a sequence with one new token, 0 of one with more."""
    return symbolic.call("max", ZERO, 2 - new)


def state_traffic(state: SSAValue, resumed: Size) -> Bytes:
    """Each sequence's state is written, and read if it has tokens before."""
    kept = tensor_type(state)
    return Bytes(num_bytes(state) * resumed / kept.dim(SEQUENCES).size, num_bytes(state))


class RecurrenceOp(StatefulOp, ABC):
    """A recurrence along a sequence, chunk by chunk. Nothing but its operands is kept: the backward pass makes the states of chunks again."""

    DEFAULT_CHUNK: ClassVar[int]

    chunk = prop_def(SizeAttr)

    @classmethod
    def chunk_said(cls, call: Call) -> Size:
        return call.size("chunk") or symbolic.constant(cls.DEFAULT_CHUNK)

    @classmethod
    def from_call(cls, call: Call, operands: Sequence[SSAValue]) -> TensorOp:
        return cls(*operands, chunk=cls.chunk_said(call))  # pyright: ignore[reportCallIssue, reportArgumentType]

    @abstractmethod
    def gradient_op(self, dy: SSAValue) -> TensorOp:
        """The op that makes the gradients of all operands."""

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        first = self.operands[self.LIKE or 0]
        gradients.emit_all(self.operands, lambda: self.gradient_op(only(dys)), first)


class RecurrenceGradOp(InferredOp, ABC):
    """The gradients of all operands of a recurrence, from that of its result: made of the cotangent and the op."""

    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (0,)

    chunk = prop_def(SizeAttr)

    def __init__(self, dy: SSAValue, op: RecurrenceOp) -> None:
        super().__init__(dy, *op.operands, op.chunk)

    def made(self) -> Sequence[TensorType]:
        return [tensor_type(v) for v in self.operands[1:]]


class ResumedOp(TensorOp, ABC):
    """An op that reads and writes a state of each sequence, its last operand."""

    resumed = prop_def(SizeAttr)
    """Sequences of a row that have a state."""

    def traffic(self, between: Size) -> Bytes:
        """Operands are read and results written, what kernels hand on both; of states as many as there are."""
        *others, state = self.operands
        kept = state_traffic(state, self.resumed.data)
        read, written = all_bytes(others) + kept.read, all_bytes(self.results) + kept.written
        return Bytes(read + between, written + between)


@dataclass(frozen=True)
class Counts:
    """The counts for all rows on a device."""

    pairs: Size
    """Tokens, each with all of its chunk."""
    in_chunks: Size
    """Tokens of sequences that go by chunks."""
    chunks: Size
    alone: Size
    """Tokens that are their sequences' only ones."""


def counts_of_chunks(chunk: Size, requests: Requests) -> dict[str, Any]:
    """The properties of a `ResumedRecurrenceOp`, of one row."""

    def in_chunks(new: Size) -> Size:
        return (1 - is_single(new)) * new

    return {
        "resumed": num_resumed(requests),
        "pairs": requests.in_a_row(
            lambda new, _: in_chunks(new) * symbolic.call("min", chunk, new)
        ),
        "chunks": requests.in_a_row(
            lambda new, _: (1 - is_single(new)) * symbolic.ceildiv(new, chunk)
        ),
        "steps": requests.in_a_row(lambda new, _: is_single(new)),
    }


class ResumedRecurrenceOp(ResumedOp, ABC):
    """A recurrence from a state: by chunks for sequences with several new tokens, else one step of it.

    Of a row, `pairs` are steps within the same chunk as another (all Q x Q of a chunk), `chunks` their chunks, `steps` the tokens that are alone.
    """

    WORK: ClassVar[Work] = Work.SCAN

    pairs = prop_def(SizeAttr)
    chunks = prop_def(SizeAttr)
    steps = prop_def(SizeAttr)

    def counts(self, tokens: TensorType) -> Counts:
        """What there is of tokens [B, S, ...]."""
        rows, new = (d.size for d in tokens.dims[:2])
        alone = self.steps.data
        return Counts(
            rows * self.pairs.data, rows * (new - alone), rows * self.chunks.data, rows * alone
        )


@op_definition
class ResumedScanOp(ResumedRecurrenceOp, LikeOp):
    """The state-space recurrence of Mamba-2 from a state: by chunks for sequences with several new tokens, else one step of it.

    x is [B, S, H, E]; b and c as of `stg.ssd_scan`.

    FLOPs: 2 for each pair within chunks, head and element of c b^T and of what it makes; for each state element 4 a step in chunks, 2 a chunk, 5 a step alone.
    """

    name = "stg.resumed_scan"
    SOURCE: ClassVar[str] = (
        "Dao and Gu, Transformers are SSMs, 2024 (arXiv:2405.21060), section 6; one token: mamba_ssm's selective_state_update.py"
    )

    x = operand_def(TensorType)
    dt = operand_def(TensorType)
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    c = operand_def(TensorType)
    state = operand_def(TensorType)
    result = result_def(TensorType)

    def indices(self) -> Indices:
        x, b = tensor_type(self.x).names, tensor_type(self.b).names
        rows, new, heads, width = x
        inner = (rows, new, heads, b[-1]) if len(b) == len(x) else (rows, new, b[-1])
        state = (rows, SEQUENCES, heads, width, b[-1])
        operands = (x, (rows, new, heads), (heads,), inner, inner, state)
        return Indices(operands, (x,), blocked=frozenset((new, SEQUENCES)))

    def verify_(self) -> None:
        x, b, state = (tensor_type(v) for v in (self.x, self.b, self.state))
        if len(x.dims) != 4:
            raise self.mistake(f"<{x.body}> is not sequences, positions, heads, width")
        if state.names != (x.names[0], SEQUENCES, *x.names[2:], b.names[-1]):
            raise self.mistake(f"<{state.body}> is not a state of <{x.body}>")
        super().verify_()

    def _widths(self) -> tuple[Size, Size, Size]:
        """Elements for each token: of b, of x, and of a state."""
        x, b = tensor_type(self.x), tensor_type(self.b)
        inner = symbolic.product(d.size for d in b.dims[2:])
        heads, width = (d.size for d in x.dims[2:])
        return inner, heads * width, heads * width * b.dims[-1].size

    def flops(self) -> Size:
        # In chunks as `stg.ssd_scan`. One step (`selective_state_update` of mamba_ssm): decay, b x and their sum, and two to read it.
        n = self.counts(tensor_type(self.x))
        inner, outer, state = self._widths()
        return (
            2 * n.pairs * (inner + outer) + (4 * n.in_chunks + 2 * n.chunks + 5 * n.alone) * state
        )

    def moved_bytes(self) -> Bytes:
        n = self.counts(tensor_type(self.x))
        inner, _, state = self._widths()
        of_pairs = n.pairs * inner / tensor_type(self.b).dims[-1].size
        between = STATE_BYTES * (2 * n.chunks * state + of_pairs)
        return self.traffic(between)


@op_definition
class ResumedConvOp(ResumedOp, LikeOp):
    """`stg.causal_conv` whose first elements see the last ones of an earlier iteration; the state is the last of this one.

    `x` [B, S, C], `kernel` [W, C], `state` [B, sequences, W, C] -> [B, S, C]. FLOPs: 2 W for each element of `x`.
    """

    name = "stg.resumed_conv"
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = ()

    x = operand_def(TensorType)
    kernel = operand_def(TensorType)
    state = operand_def(TensorType)
    over = prop_def(StringAttr)
    result = result_def(TensorType)

    def indices(self) -> Indices:
        x, kernel, state = (tensor_type(v).names for v in (self.x, self.kernel, self.state))
        blocked = frozenset((self.over.data, kernel[0], SEQUENCES))
        return Indices((x, kernel, state), (x,), blocked=blocked)

    def verify_(self) -> None:
        x, kernel, state = (tensor_type(v) for v in (self.x, self.kernel, self.state))
        channels = [name for name in x.names[1:] if name != self.over.data]
        if list(state.names) != [x.names[0], SEQUENCES, kernel.names[0], *channels]:
            raise self.mistake(f"<{state.body}> is not a state of <{x.body}>")
        super().verify_()

    def flops(self) -> Size:
        return 2 * elements(self.x) * tensor_type(self.kernel).dims[0].size

    def moved_bytes(self) -> Bytes:
        return self.traffic(ZERO)
