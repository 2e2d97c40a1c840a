"""The recurrence of gated delta nets, forward and backward, and from a state of earlier tokens.

    %y = stg.gated_delta_rule %q, %k, %v, %decay, %beta chunk "Q"

For each head a state [E, G] decays, and takes in what a value has beyond what the state says of its key; each step's result is read from it:

    state[s] = exp(decay[s]) * state[s-1]
    state[s] = state[s] + beta[s] * k[s] (outer) (v[s] - k[s] @ state[s])        y[s] = q[s] @ state[s]

q and k are [..., S, K, E], v and y [..., S, H, G], decay and beta [..., S, H]; K and H are one index at two granularities: heads of values share keys.
A decay [..., S, H, E] is one of each channel of keys: row e of the state decays by its own (Kimi Delta Attention, arXiv:2510.26692).
It is computed chunk by chunk (Yang, Kautz and Hatamizadeh, arXiv:2412.06464, section 3.3): what the values of a chunk add is solved for within it, and
states are passed on between chunks. Kernels are those of flash-linear-attention (`fla/ops/gated_delta_rule/chunk.py`, version 0.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, result_def

from stagec import symbolic
from stagec.dialects.attributes import RequestsAttr
from stagec.dialects.interfaces import Bytes, all_bytes, elements, num_bytes
from stagec.dialects.op import op_definition
from stagec.dialects.stg.base import PLACEMENT, Indices, LikeOp, RequestsOp, TensorOp, tensor_type
from stagec.dialects.stg.interface import Call, CallError, Requests, Signature, dims_in_words
from stagec.dialects.stg.recurrent import (
    SEQUENCES,
    RecurrenceGradOp,
    RecurrenceOp,
    ResumedRecurrenceOp,
    counts_of_chunks,
)
from stagec.dialects.types import TensorType
from stagec.dialects.work import Work
from stagec.symbolic import ZERO, Size

PAPER = "Yang, Kautz and Hatamizadeh, Gated Delta Networks, 2024 (arXiv:2412.06464), section 3.3"


def delta_indices(op: DeltaRule) -> tuple[tuple[str, ...], ...]:
    """The index of each dim of q, k, v, decay and beta: heads of keys are heads."""
    q, v = tensor_type(op.q).names, tensor_type(op.v).names
    key = (*v[:-1], q[-1])
    return key, key, v, key if decays_by_channel(op) else v[:-1], v[:-1]


def decays_by_channel(op: DeltaRule) -> bool:
    """Whether each channel of keys has a decay of its own."""
    return len(tensor_type(op.decay).dims) == len(tensor_type(op.v).dims)


def blocked(op: DeltaRule) -> frozenset[str]:
    """Each device needs the whole sequence and whole keys."""
    return frozenset((tensor_type(op.v).names[-3], tensor_type(op.q).names[-1]))


def verify_delta_rule(op: DeltaRule) -> None:
    """Operands are of the shapes that the module names."""
    q, k, v, decay, beta = (tensor_type(x) for x in (op.q, op.k, op.v, op.decay, op.beta))
    if len(v.dims) < 3:
        raise op.mistake(f"<{v.body}> does not end in sequence, heads, width")
    rows = v.names[:-1]
    of_decay = (*rows, q.names[-1]) if decays_by_channel(op) else rows
    for name, each, wanted in (("decay", decay, of_decay), ("beta", beta, rows)):
        if each.names != wanted:
            raise op.mistake(f"`{name}` is <{each.body}>, not over [{', '.join(wanted)}]")
    if k.names != q.names or len(q.dims) != len(v.dims) or q.names[:-2] != v.names[:-2]:
        raise op.mistake(
            f"q is <{q.body}>, k <{k.body}>, not over [{', '.join(v.names[:-2])}], heads and width"
        )
    if PLACEMENT not in op.properties:
        for tensor, position in ((v, -3), (q, -1)):
            if tensor.dims[position].split:
                name = tensor.names[position]
                raise op.mistake(f"each device needs all of `{name}` in <{tensor.body}>")


class DeltaWidths:
    """Sizes on a device that costs are made of."""

    def __init__(self, op: DeltaRule) -> None:
        self.tokens: Size = elements(op.beta)
        """The tokens of all heads."""
        self.key: Size = tensor_type(op.q).dims[-1].size
        self.value: Size = tensor_type(op.v).dims[-1].size
        self.state: Size = self.key * self.value
        self.bytes: Size = num_bytes(op.v) / elements(op.v)
        """The bytes of an element that kernels hand on."""
        self.decays: Size = ZERO
        """Bytes of what a token hands on more where channels decay: its decays so far in the chunk, in fp32, and its key with them."""
        if decays_by_channel(op):
            self.decays = (4 + self.bytes) * self.key

    def within(self, of_keys: int, of_values: int) -> Size:
        """FLOPs of products with the pairs of a chunk, for each pair: so many as wide as keys, so many as wide as values."""
        return 2 * (of_keys * self.key + of_values * self.value)


def chunk_of(op: GatedDeltaRuleOp | GatedDeltaRuleGradOp) -> Size:
    return symbolic.call("min", op.chunk.data, tensor_type(op.v).dims[-3].size)


def states(op: GatedDeltaRuleOp | GatedDeltaRuleGradOp) -> Size:
    """Elements of the states of all chunks."""
    *rows, sequence, heads, width = tensor_type(op.v).dims
    chunks = symbolic.ceildiv(sequence.size, op.chunk.data)
    return (
        chunks
        * symbolic.product(d.size for d in (*rows, heads, width))
        * tensor_type(op.q).dims[-1].size
    )


@op_definition
class GatedDeltaRuleOp(RecurrenceOp, LikeOp):
    """Run the recurrence. Nothing but its operands is kept: the backward pass solves its chunks again.

    Linear in v. An axis that splits heads of values splits those of keys.

    `q` and `k` [B, S, K, E], `v` [B, S, H, G], `decay` and `beta` [B, S, H] -> [B, S, H, G]. `decay` of channels is [B, S, H, E], with the same products
    (`fla/ops/kda/chunk_fwd.py`).
    FLOPs: within chunks k k^T, the solution times keys and values, q k^T, and that times values; three products with states (Yang et al., arXiv:2412.06464,
    section 3.3). All pairs of a chunk count; elementwise work and the inverse of a chunk's triangle do not.
    """

    name = "stg.gated_delta_rule"
    SOURCE: ClassVar[str] = PAPER
    WORK: ClassVar[Work] = Work.DELTA_RULE
    LINEAR_OPERANDS: ClassVar[tuple[int, ...]] = (2,)
    LIKE: ClassVar[int | None] = 2
    # `chunk_size` of its kernels.
    DEFAULT_CHUNK: ClassVar[int] = 64
    STATE: ClassVar[str] = "h[B, H, E, G]"
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of(
            "gated_delta_rule(q, k, v, decay, beta, chunk? = size, state? = cache)",
            "the recurrence of gated delta nets, chunk by chunk",
        ),
    )

    q = operand_def(TensorType)
    k = operand_def(TensorType)
    v = operand_def(TensorType)
    decay = operand_def(TensorType)
    beta = operand_def(TensorType)
    result = result_def(TensorType)

    @classmethod
    def check_call(cls, call: Call) -> None:
        q, k, v, decay, beta = call.types
        call.need_float(0, 1, 2, 3, 4)
        if len(v.names) < 3:
            raise CallError(
                f"`v` ends in sequence, heads, width, but is {dims_in_words(v)}", operand=2
            )
        *rows, keys, width = q.names if len(q.names) == len(v.names) else ("",) * len(v.names)
        if rows != list(v.names[:-2]) or width in v.names or keys in (*rows, v.names[-1]):
            wanted = ", ".join(v.names[:-2])
            help_ = f"write `dim {width}K = {width}`, as keys' width has a name of its own"
            raise CallError(
                f"this is [{wanted}], heads of keys and their width",
                operand=0,
                notes=[f"`v` is {dims_in_words(v)}"],
                help=help_ if width in v.names else "",
            )
        if k.names != q.names:
            raise CallError(f"`q` is {dims_in_words(q)}, `k` is {dims_in_words(k)}", operand=1)
        beside, by_channel = v.names[:-1], (*v.names[:-1], width)
        for position, operand in ((3, decay), (4, beta)):
            if operand.names != beside and (position == 4 or operand.names != by_channel):
                wanted = ", ".join(beside)
                raise CallError(
                    f"this is [{wanted}] for `v` of {dims_in_words(v)}", operand=position
                )
        total, shared = call.sizes[v.names[-2]], call.sizes[keys]
        if total is not None and shared is not None and total % shared:
            message = f"`{keys} = {shared}` does not divide `{v.names[-2]} = {total}`"
            raise CallError(message, operand=0)

    @classmethod
    def state_of(cls, call: Call) -> tuple[str, tuple[str, ...]]:
        *rows, new, heads, width = call.types[2].names
        return new, (*rows, heads, call.types[0].names[-1], width)

    @classmethod
    def with_state(
        cls, call: Call, operands: Sequence[SSAValue], state: SSAValue, requests: Requests
    ) -> TensorOp:
        counts, kinds = counts_of_chunks(cls.chunk_said(call), requests), requests.packed_kinds
        of_kinds = RequestsAttr(kinds) if kinds else None
        return ResumedDeltaRuleOp(*operands, state, **counts, requests=of_kinds)

    @property
    def goes_along(self) -> str:
        return tensor_type(self.v).names[-3]

    def indices(self) -> Indices:
        operands = delta_indices(self)
        return Indices(operands, (operands[2],), blocked=blocked(self))

    def verify_(self) -> None:
        verify_delta_rule(self)
        super().verify_()

    def flops(self) -> Size:
        w = DeltaWidths(self)
        return w.tokens * (chunk_of(self) * w.within(3, 2) + 6 * w.state)

    def moved_bytes(self) -> Bytes:
        # Written by one kernel and read by the next: the solution of each chunk, times keys and times values, values as they are added, and states.
        w = DeltaWidths(self)
        between = w.bytes * (w.tokens * (chunk_of(self) + w.key + 2 * w.value) + states(self))
        between += w.tokens * w.decays
        return Bytes(all_bytes(self.operands) + between, all_bytes(self.results) + between)

    def gradient_op(self, dy: SSAValue) -> TensorOp:
        return GatedDeltaRuleGradOp(dy, self)


@op_definition
class GatedDeltaRuleGradOp(RecurrenceGradOp):
    """Gradients of the recurrence for all five operands: chunks and states again, then a recurrence from the end.

    Operands and gradients as those of `stg.gated_delta_rule`: `v` [B, S, H, G].

    FLOPs as `chunk_gated_delta_rule_bwd` of flash-linear-attention multiplies: with pairs of chunks nine products as wide as keys, five as wide as values and
    two as long as chunks; eight with states.
    """

    name = "stg.gated_delta_rule_grad"
    SOURCE: ClassVar[str] = (
        f"{PAPER}; products again as in flash-linear-attention's gated_delta_rule/chunk.py"
    )
    WORK: ClassVar[Work] = Work.DELTA_RULE_GRAD

    dy = operand_def(TensorType)
    q = operand_def(TensorType)
    k = operand_def(TensorType)
    v = operand_def(TensorType)
    decay = operand_def(TensorType)
    beta = operand_def(TensorType)
    dq = result_def(TensorType)
    dk = result_def(TensorType)
    dv = result_def(TensorType)
    ddecay = result_def(TensorType)
    dbeta = result_def(TensorType)

    def indices(self) -> Indices:
        operands = delta_indices(self)
        return Indices((operands[2], *operands), operands, blocked=blocked(self))

    def verify_(self) -> None:
        verify_delta_rule(self)
        dy, v = tensor_type(self.dy), tensor_type(self.v)
        if dy.names != v.names:
            raise self.mistake(f"dy is <{dy.body}>, v <{v.body}>")
        super().verify_()

    def flops(self) -> Size:
        # Again: the solution times keys and values, states and what is added to them, q k^T, k k^T. dv of a chunk: (q k^T)^T dy. From the end: k dstate,
        # q^T dy, w^T dv. dq, dk and dw: dy v^T; dy, v and dv times states; that times k and q. Of the solution: dw k^T, dv v^T, it times dw and dv, and it
        # on both sides of its gradient; that times k, twice.
        w, chunk = DeltaWidths(self), chunk_of(self)
        return w.tokens * (chunk * w.within(9, 5) + 4 * chunk * chunk + 16 * w.state)

    def flops_again(self) -> Size:
        w = DeltaWidths(self)
        return w.tokens * (chunk_of(self) * w.within(3, 1) + 4 * w.state)

    def moved_bytes(self) -> Bytes:
        # As forward, and gradients of the same; those of values are written twice.
        w = DeltaWidths(self)
        between = w.tokens * (chunk_of(self) + 2 * w.key + 4 * w.value) + 2 * states(self)
        between = w.bytes * between + 2 * w.tokens * w.decays
        return Bytes(all_bytes(self.operands) + between, all_bytes(self.results) + between)


@op_definition
class ResumedDeltaRuleOp(ResumedRecurrenceOp, LikeOp, RequestsOp):
    """The recurrence of gated delta nets from a state: by chunks for sequences with several new tokens, else one step of it.

    v is [B, S, H, G], the state [B, sequences, H, E, G]; the others as of `stg.gated_delta_rule`.

    FLOPs: in chunks as that. One step (`fused_recurrent_gated_delta_rule` of flash-linear-attention): for each element of a state its decay, and two to read it
    for the key, to add to it, and to read it for the query.
    """

    name = "stg.resumed_delta_rule"
    SOURCE: ClassVar[str] = f"{PAPER}; one token: flash-linear-attention's fused_recurrent.py"
    WORK: ClassVar[Work] = Work.DELTA_RULE
    LIKE: ClassVar[int | None] = 2

    q = operand_def(TensorType)
    k = operand_def(TensorType)
    v = operand_def(TensorType)
    decay = operand_def(TensorType)
    beta = operand_def(TensorType)
    state = operand_def(TensorType)
    result = result_def(TensorType)

    def indices(self) -> Indices:
        operands = delta_indices(self)
        rows, _, heads, width = operands[2]
        state = (rows, SEQUENCES, heads, operands[0][-1], width)
        return Indices((*operands, state), (operands[2],), blocked=blocked(self) | {SEQUENCES})

    def verify_(self) -> None:
        q, v, state = (tensor_type(x) for x in (self.q, self.v, self.state))
        if len(v.dims) != 4:
            raise self.mistake(f"<{v.body}> is not sequences, positions, heads, width")
        heads, width = v.names[2:]
        if state.names != (v.names[0], SEQUENCES, heads, q.names[-1], width):
            raise self.mistake(f"<{state.body}> is not a state of <{v.body}>")
        super().verify_()

    def flops(self) -> Size:
        w, counts = DeltaWidths(self), self.counts(tensor_type(self.v))
        heads = tensor_type(self.v).dims[2].size
        of_chunks = counts.pairs * w.within(3, 2) + 6 * counts.in_chunks * w.state
        return heads * (of_chunks + 7 * counts.alone * w.state)

    def moved_bytes(self) -> Bytes:
        w, counts = DeltaWidths(self), self.counts(tensor_type(self.v))
        heads = tensor_type(self.v).dims[2].size
        of_tokens = counts.pairs + counts.in_chunks * (w.key + 2 * w.value)
        between = w.bytes * heads * (of_tokens + counts.chunks * w.state)
        between += heads * counts.in_chunks * w.decays
        return self.traffic(between)


DeltaRule = GatedDeltaRuleOp | GatedDeltaRuleGradOp | ResumedDeltaRuleOp
