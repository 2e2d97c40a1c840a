"""Let the keys and values of attention go round the devices that their sequence is split over.

Before `expand-ring-attention`:

    dist.mesh <cp = 4>
    dist.context "ring" over [cp] rotate "all_to_all" balance "head_tail"
    %q, %k, %v = "test.op"()
      : () -> (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>)
    %o, %lse = stg.attention %q, %k, %v causal count "causal"
      : (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>)
      -> (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>)
    "test.op"(%o) : (!stg.tensor<[S/cp, H, E], fp32>) -> ()

After:

    dist.mesh <cp = 4>
    dist.context "ring" over [cp] rotate "all_to_all" balance "head_tail"
    %q, %k, %v = "test.op"()
      : () -> (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>)
    %k1, %v1 = dist.rotate (%k, %v) over [cp]
      : (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>) -> (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>)
    %o0, %lse0 = stg.attention %q, %k, %v causal count "causal" pairs "S**2/(2*cp**2)"
      : (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>)
      -> (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>)
    %kn, %vn, %on, %lsen = stg.repeat "cp - 2"
      carry(%ki = %k1 : !stg.tensor<[S/cp, H, E], fp32>, %vi = %v1 : !stg.tensor<[S/cp, H, E], fp32>,
            %oi = %o0 : !stg.tensor<[S/cp, H, E], fp32>, %lsei = %lse0 : !stg.tensor<[S/cp, H], fp32>)
      -> (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>)
      attributes {steps} {
      %kj, %vj = dist.rotate (%ki, %vi) over [cp]
        : (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>) -> (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>)
      %ob, %lseb = stg.attention %q, %ki, %vi causal count "causal" pairs "S**2/(2*cp**2)"
        : (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>)
        -> (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>)
      %oj, %lsej = stg.merge_attention %oi, %lsei and %ob, %lseb
        : (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>, !stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>)
        -> (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>)
      stg.yield %kj, %vj, %oj, %lsej
        : !stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>
    }
    %oc, %lsec = stg.attention %q, %kn, %vn causal count "causal" pairs "S**2/(2*cp**2)"
      : (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H, E], fp32>)
      -> (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>)
    %o, %lse = stg.merge_attention %on, %lsen and %oc, %lsec
      : (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>, !stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>)
      -> (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>)
    "test.op"(%o) : (!stg.tensor<[S/cp, H, E], fp32>) -> ()

Ring attention (Liu et al. 2023) as PyTorch does it (`_templated_ring_attention`), n devices in n steps: each device asks for the
next block before it computes with the one at hand, so that transfers overlap computation. Keys and values are one flat buffer.
Backward (`stg.attention_grad`) the blocks go round again, and after each block go the gradients of its keys and values, in fp32,
until they are home: n - 1 transfers forward, 2n - 1 backward. With `rotate = all_gather` the blocks of all others come at once, each
way; gradients still go round, n times. Outputs, too, add up in fp32.

A rank that has nothing to compute in a step (`balance = none`: the keys are later than its queries) takes part in its transfers all
the same, and waits for the last of them as PyTorch's loop does. Else it would run ahead, and a reduction of gradients hold the slot
for communication while others still need what it is to hand on. How many such steps there are depends on `cp.index`. Nothing is
unrolled: a step is a repeat's body whatever n is.
TransformerEngine's ring needs 2n - 2 transfers backward, for it keeps the block that came last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from stagec import symbolic
from stagec.analysis.contexts import AttentionOps, Contexts, RingSteps, ring_of, ring_steps
from stagec.analysis.documents import PackedDocuments
from stagec.analysis.sizes import mesh_of, size_values
from stagec.dialects import dist, stg
from stagec.dialects.attributes import SizeAttr
from stagec.rewriting import inherit, insert_before, rewrite
from stagec.symbolic import Size

NAME = "expand-ring-attention"

ACCUMULATED = "fp32"
"""Dtype of outputs and gradients that add up from step to step, also while they travel."""

KEYS, GRADIENTS = 0, 1
"""Channels of what is sent round."""

Values = Sequence[SSAValue]

Made = TypeVar("Made", bound=Operation)


@dataclass(frozen=True)
class ExpandRingAttention(ModulePass):
    name = NAME

    sequence: str = ""
    """The dim into which documents are packed, if any are."""
    lengths: tuple[int, ...] = ()
    """The lengths of these documents, one after the other."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        values = size_values(op)
        count = values.get(self.sequence, 1)
        documents = PackedDocuments.packed(self.sequence, self.lengths, count)
        pattern = ExpandOne(Contexts.of(op), mesh_of(op), values, documents)
        rewrite(op, pattern, NAME, once=True)
        verify_expanded(op)


@dataclass(frozen=True)
class ExpandOne(RewritePattern):
    contexts: Contexts
    mesh: Mapping[str, int]
    values: Mapping[str, int]
    documents: PackedDocuments

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AttentionOps, rewriter: PatternRewriter) -> None:
        if axes := ring_of(op, self.mesh):
            known = self.documents
            block = known.block(op, self.values) if known.are_of(op) else None
            steps = ring_steps(op, axes, self.contexts.balanced(axes), block)
            ring = ForwardRing if isinstance(op, stg.AttentionOp) else BackwardRing
            rewriter.replace(op, [], ring(op, axes, self.contexts.rotation(axes), steps).expanded())


@dataclass(frozen=True)
class InsertionPoint:
    """Where the ops that replace `origin` are added: before it, or in the body of a repeat before it."""

    origin: Operation
    body: Block | None = None
    apart: bool = False
    """Whether ops are issued apart from their neighbours, so that gradients which are ready may be reduced before them."""

    def add(self, op: Made) -> Made:
        if self.apart:
            stg.marks(op)["apart"] = UnitAttr()
        if self.body is None:
            insert_before(self.origin, [op], NAME)
        else:
            inherit(op, self.origin, NAME)
            self.body.add_op(op)
        return op

    def repeat(
        self,
        count: Size,
        carried: Values,
        body: Callable[[InsertionPoint, Values, Values], Values],
        stacks: Values = (),
    ) -> Values:
        """Steps that `body` adds, given what is carried and an element of each stack."""
        block = Block(arg_types=[v.type for v in carried])
        for stack in stacks:
            stg.slice_arg(block, stack)
        arguments = list(block.args)
        results = body(
            InsertionPoint(self.origin, block), arguments[: len(carried)], arguments[len(carried) :]
        )
        block.add_op(stg.YieldOp(results))
        op = stg.RepeatOp(count, carried, stacks, block)
        stg.marks(op)[stg.STEPS] = UnitAttr()
        return self.add(op).results


@dataclass(frozen=True)
class Ring(ABC):
    """One attention, forward or backward, whose keys go round `axes`.

    Its *state* is what adds up from step to step.
    """

    op: AttentionOps
    axes: tuple[str, ...]
    rotation: str
    steps: RingSteps

    @abstractmethod
    def finish(self, place: InsertionPoint, state: Values) -> Values:
        """The op's results, from the state after the last step."""

    @abstractmethod
    def compute(self, place: InsertionPoint, keys: Values, state: Values) -> Values:
        """The state after a step with another device's keys and values."""

    @abstractmethod
    def hand_on(self, place: InsertionPoint, state: Values) -> Values:
        """The state where the blocks are next."""

    def expanded(self) -> Values:
        """Add the steps; the op's results."""
        start, keys = InsertionPoint(self.op), (self.op.k, self.op.v)
        blocks = self.first_transfer(
            InsertionPoint(self.op, apart=stg.phase_of(self.op) == "bwd"), keys
        )
        state = [cast(start, v, ACCUMULATED) for v in self.attend(start, keys, self.steps.own)]
        state = self.hand_on(start, state)
        go_on = self.look_at if self.rotation == "all_gather" else self.go_round
        return self.finish(start, go_on(start, blocks, state))

    def first_transfer(self, place: InsertionPoint, keys: Values) -> Values:
        """Ask for the blocks of all others, as stacks; or for the next block."""
        if self.rotation == "all_gather":
            count = self.steps.num_computed
            blocks = place.add(dist.GatherBlocksOp(keys, self.axes, count)).blocks
        else:
            blocks = self.rotate(place, keys, KEYS)
        return blocks

    def look_at(self, place: InsertionPoint, blocks: Values, state: Values) -> Values:
        """Steps 1 to n-1 where every block is at hand."""

        def step(inner: InsertionPoint, carried: Values, block: Values) -> Values:
            return self.hand_on(inner, self.compute(inner, block, carried))

        def skip(inner: InsertionPoint, carried: Values, _: Values) -> Values:
            return self.hand_on(inner, carried)

        state = place.repeat(self.steps.num_computed, state, step, blocks)
        if self.skips and isinstance(self, BackwardRing):
            state = place.repeat(self.num_others - self.steps.num_computed, state, skip)
        return self.in_step(place, blocks, state)

    def go_round(self, place: InsertionPoint, block: Values, state: Values) -> Values:
        """Steps 1 to n-1: each asks for the next block, computes with its own, hands the state on.

        The last step asks for nothing more. Steps that a rank skips come last; blocks and state go round all the same.
        """
        computed, others, width = self.steps.num_computed, self.num_others, len(block)

        def step(inner: InsertionPoint, carried: Values, _: Values) -> Values:
            following = self.rotate(inner, carried[:width], KEYS)
            reached = self.compute(inner, carried[:width], carried[width:])
            return [*following, *self.hand_on(inner, reached)]

        def skip(inner: InsertionPoint, carried: Values, _: Values) -> Values:
            following = self.rotate(inner, carried[:width], KEYS)
            return [*following, *self.hand_on(inner, carried[width:])]

        if not self.skips:
            after = place.repeat(others - 1, [*block, *state], step)
            state = self.compute(place, after[:width], after[width:])
            return self.hand_on(place, state)
        in_loop = symbolic.call("min", computed, others - 1)
        after = place.repeat(in_loop, [*block, *state], step)
        last = after[:width]

        def last_step(inner: InsertionPoint, carried: Values, _: Values) -> Values:
            return self.compute(inner, last, carried)

        after = place.repeat(others - 1 - in_loop, after, skip)
        state = place.repeat(computed - in_loop, after[width:], last_step)
        return self.hand_on(place, self.in_step(place, after[:width], state))

    def in_step(self, place: InsertionPoint, blocks: Values, state: Values) -> Values:
        """The state, on ranks that skip steps only when the last of the blocks are there."""
        if not self.skips:
            return state

        def wait(inner: InsertionPoint, carried: Values, _: Values) -> Values:
            inner.add(dist.WaitOp(blocks))
            return carried

        skipping = symbolic.call("min", symbolic.ONE, self.num_others - self.steps.num_computed)
        return place.repeat(skipping, state, wait)

    @property
    def num_others(self) -> Size:
        return symbolic.product(map(symbolic.symbol, self.axes)) - 1

    @property
    def skips(self) -> bool:
        """Whether some ranks have nothing to compute in some steps."""
        return self.steps.num_computed != self.num_others

    def rotate(self, place: InsertionPoint, values: Values, channel: int) -> Values:
        if self.rotation == "send_recv":
            place.add(dist.SendOp(values, 1, self.axes, channel))
            types = [v.type for v in values]
            return place.add(dist.RecvOp(-1, self.axes, channel, like=types)).outputs
        return place.add(dist.RotateOp(values, self.axes)).outputs

    def attend(self, place: InsertionPoint, keys: Values, pairs: Size) -> Values:
        """Attention, or its gradients, with one block of keys and values."""
        block = self.op.clone()
        first = 1 if isinstance(block, stg.AttentionOp) else 2
        block.operands[first], block.operands[first + 1] = keys
        block.properties["pairs"] = SizeAttr(pairs)
        stg.marks(block).pop("made_by", None)
        return place.add(block).results


class ForwardRing(Ring):
    """The state: the output for the keys so far, and its log-sum-exp."""

    def finish(self, place: InsertionPoint, state: Values) -> Values:
        output, lse = state
        return [cast(place, output, stg.tensor_type(self.op.results[0]).dtype), lse]

    def compute(self, place: InsertionPoint, keys: Values, state: Values) -> Values:
        sofar_output, sofar_lse = state
        output, lse = self.attend(place, keys, self.steps.other)
        merged = stg.MergeAttentionOp(sofar_output, sofar_lse, output, lse)
        return place.add(merged).results

    def hand_on(self, place: InsertionPoint, state: Values) -> Values:
        return state


class BackwardRing(Ring):
    """The state: the gradient of the queries, and those of the keys and values of the block at hand."""

    def finish(self, place: InsertionPoint, state: Values) -> Values:
        wanted = [stg.tensor_type(result).dtype for result in self.op.results]
        return [cast(place, v, dtype) for v, dtype in zip(state, wanted, strict=True)]

    def compute(self, place: InsertionPoint, keys: Values, state: Values) -> Values:
        terms = self.attend(place, keys, self.steps.other)
        return [place.add(stg.AddOp(*pair)).result for pair in zip(state, terms, strict=True)]

    def hand_on(self, place: InsertionPoint, state: Values) -> Values:
        dq, dk, dv = state
        return [dq, *self.rotate(place, [dk, dv], GRADIENTS)]


def cast(place: InsertionPoint, value: SSAValue, dtype: str) -> SSAValue:
    if stg.tensor_type(value).dtype == dtype:
        return value
    return place.add(stg.CastOp(value, dtype)).result


def verify_expanded(module: ModuleOp) -> None:
    """Check the promise: no attention is left whose keys have still to go round."""
    mesh = mesh_of(module)
    for op in module.walk():
        assert not (isinstance(op, AttentionOps) and ring_of(op, mesh)), op
