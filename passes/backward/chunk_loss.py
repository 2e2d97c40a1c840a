"""Compute logits, cross-entropy and their gradients in chunks of the sequence, so that one chunk's logits are there at a time.

Before `chunk-loss{chunks=8}`:

    stg.dim "S" = "1024"
    stg.program "M" (%x : !stg.tensor<[S, D], bf16>, %t : !stg.tensor<[S], i32>) {
      %w = stg.weight "w" : !stg.tensor<[D, V], bf16>
      %l = stg.contract %x, %w over [D] : (!stg.tensor<[S, D], bf16>, !stg.tensor<[D, V], bf16>) -> !stg.tensor<[S, V], bf16>
      %loss, %lse = stg.cross_entropy %l, %t
        : (!stg.tensor<[S, V], bf16>, !stg.tensor<[S], i32>) -> (!stg.tensor<[], fp32>, !stg.tensor<[S], fp32>)
      %one = stg.constant "1" {phase = "bwd"} : !stg.tensor<[], fp32>
      %dl = stg.cross_entropy_grad %one, %l, %t, %lse {phase = "bwd"}
        : (!stg.tensor<[], fp32>, !stg.tensor<[S, V], bf16>, !stg.tensor<[S], i32>, !stg.tensor<[S], fp32>) -> !stg.tensor<[S, V], bf16>
      %dx = stg.contract %dl, %w over [V] {phase = "bwd"}
        : (!stg.tensor<[S, V], bf16>, !stg.tensor<[D, V], bf16>) -> !stg.tensor<[S, D], bf16>
      %dw = stg.contract %x, %dl over [S] {phase = "wgrad"}
        : (!stg.tensor<[S, D], bf16>, !stg.tensor<[S, V], bf16>) -> !stg.tensor<[D, V], bf16>
      "test.op"(%dx) {phase = "bwd"} : (!stg.tensor<[S, D], bf16>) -> ()
      stg.output weights %w : !stg.tensor<[D, V], bf16> gradients %dw : !stg.tensor<[D, V], bf16>
    }

After:

    stg.dim "S" = "1024"
    stg.dim "loss.chunk" = "8"
    stg.program "M" (%x : !stg.tensor<[S, D], bf16>, %t : !stg.tensor<[S], i32>) {
      %w = stg.weight "w" : !stg.tensor<[D, V], bf16>
      %one = stg.constant "1" {phase = "fwd"} : !stg.tensor<[], fp32>
      %xs = stg.chunk %x dim "S" {phase = "fwd", made_by = "chunk-loss"}
        : !stg.tensor<[S, D], bf16> -> !stg.stack<"loss.chunk" x !stg.tensor<[S/loss.chunk, D], bf16>>
      %ts = stg.chunk %t dim "S" {phase = "fwd", made_by = "chunk-loss"}
        : !stg.tensor<[S], i32> -> !stg.stack<"loss.chunk" x !stg.tensor<[S/loss.chunk], i32>>
      %zero = stg.zeros {phase = "fwd", made_by = "chunk-loss"} : !stg.tensor<[D, V], bf16>
      %dw, %dxs = stg.repeat "loss.chunk" carry(%sum = %zero : !stg.tensor<[D, V], bf16>)
          slice(%xc = %xs : !stg.stack<"loss.chunk" x !stg.tensor<[S/loss.chunk, D], bf16>>,
            %tc = %ts : !stg.stack<"loss.chunk" x !stg.tensor<[S/loss.chunk], i32>>)
          -> (!stg.tensor<[D, V], bf16>, !stg.stack<"loss.chunk" x !stg.tensor<[S/loss.chunk, D], bf16>>)
          attributes {phase = "fwd", steps, makes_gradients, made_by = "chunk-loss"} {
        %l = stg.contract %xc, %w over [D] {phase = "fwd", made_by = "chunk-loss"}
          : (!stg.tensor<[S/loss.chunk, D], bf16>, !stg.tensor<[D, V], bf16>) -> !stg.tensor<[S/loss.chunk, V], bf16>
        %loss, %lse = stg.cross_entropy %l, %tc {phase = "fwd", made_by = "chunk-loss"}
          : (!stg.tensor<[S/loss.chunk, V], bf16>, !stg.tensor<[S/loss.chunk], i32>)
          -> (!stg.tensor<[], fp32>, !stg.tensor<[S/loss.chunk], fp32>)
        %dl = stg.cross_entropy_grad %one, %l, %tc, %lse {phase = "fwd", made_by = "chunk-loss"}
          : (!stg.tensor<[], fp32>, !stg.tensor<[S/loss.chunk, V], bf16>, !stg.tensor<[S/loss.chunk], i32>, !stg.tensor<[S/loss.chunk], fp32>)
          -> !stg.tensor<[S/loss.chunk, V], bf16>
        %dxc = stg.contract %dl, %w over [V] {phase = "fwd", made_by = "chunk-loss"}
          : (!stg.tensor<[S/loss.chunk, V], bf16>, !stg.tensor<[D, V], bf16>) -> !stg.tensor<[S/loss.chunk, D], bf16>
        %dwc = stg.contract %xc, %dl over [S] {phase = "fwd", made_by = "chunk-loss"}
          : (!stg.tensor<[S/loss.chunk, D], bf16>, !stg.tensor<[S/loss.chunk, V], bf16>) -> !stg.tensor<[D, V], bf16>
        %next = stg.add %sum, %dwc {in_place, phase = "fwd", made_by = "chunk-loss"}
          : (!stg.tensor<[D, V], bf16>, !stg.tensor<[D, V], bf16>) -> !stg.tensor<[D, V], bf16>
        stg.yield %next, %dxc : !stg.tensor<[D, V], bf16>, !stg.tensor<[S/loss.chunk, D], bf16>
      }
      %dx = stg.join_chunks %dxs dim "S" {phase = "fwd", made_by = "chunk-loss"}
        : !stg.stack<"loss.chunk" x !stg.tensor<[S/loss.chunk, D], bf16>> -> !stg.tensor<[S, D], bf16>
      "test.op"(%dx) {phase = "bwd"} : (!stg.tensor<[S, D], bf16>) -> ()
      stg.output weights %w : !stg.tensor<[D, V], bf16> gradients %dw : !stg.tensor<[D, V], bf16>
    }

The gradient of the logits is known as soon as they are, so it is computed in the forward pass and nothing of the size of the vocabulary is
saved or computed twice (fused linear cross-entropy of Liger Kernel, Hsu et al. 2024, arXiv:2410.10989, section 3.2). Matrix operations stay
the same; added are the sums of the weight's gradient, one addition of it per chunk, in its dtype and in place. Over a split vocabulary each chunk has the
three all-reduces of cross-entropy, of a chunk's size. What the backward pass still has to do begins with the gradient of the head's input.

What is moved into the loop is all that makes or reads a tensor over tokens and vocabulary, and what lies between: a bias, a
soft cap, a cast of the logits too. A loss that is not a sum over tokens up to there is E0412.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.ir import Block, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from stagec import symbolic
from stagec.analysis.sizes import size_values
from stagec.diagnostics import CompileError, refused, span_of
from stagec.dialects import dist, stg
from stagec.dialects.op import ancestor_in, block_of
from stagec.dialects.types import CHUNK_AXIS, TensorType
from stagec.dialects.use_def import followed, through
from stagec.rewriting import inherit, insert_before, programs, set_type
from stagec.symbolic import conditions

NAME = "chunk-loss"

SUMS = (stg.ContractOp, stg.ReduceOp, stg.CrossEntropyOp, stg.LossOfStatisticsOp)
"""What adds up over tokens: its results of the chunks add up to that of the whole."""


@dataclass(frozen=True)
class ChunkLoss(ModulePass):
    name = NAME

    chunks: int
    """How many chunks. A number that does not divide the sequence on a device is E0412."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        values, found = size_values(op), False
        for program in programs(op):
            for loss in [each for each in program.walk() if is_loss(each)]:
                found = True
                if loss.parent is None:
                    continue  # It reads the logits of one before, and is computed with that.
                Chunking(loss, targets_of(loss)).run(self.chunks, values)
        all_programs = programs(op)
        if not found:
            raise refusal(
                all_programs[0],
                "there is no cross-entropy to compute in chunks",
                "the loss is `cross_entropy(logits, targets)`, fused, outside of repeats",
            )
        define_axis(all_programs[0], self.chunks)


def define_axis(program: stg.ProgramOp, chunks: int) -> None:
    size = stg.DimOp(CHUNK_AXIS, symbolic.constant(chunks))
    insert_before(program, [size])


def refusal(
    op: Operation, message: str, help_: str = "", notes: Sequence[str] = ()
) -> CompileError:
    return refused("E0412", message, span_of(op.location), help=help_, notes=notes)


def is_loss(op: Operation) -> bool:
    """A fused cross-entropy, or the last of its steps, in the forward pass and in no repeat."""
    is_step = isinstance(op, stg.LossOfStatisticsOp) and stg.part_of(op) == "cross_entropy"
    outside = isinstance(op.parent_op(), stg.AccumulateOp | stg.ProgramOp)
    return outside and (is_step or isinstance(op, stg.CrossEntropyOp))


def targets_of(loss: Operation) -> tuple[SSAValue, SSAValue]:
    """The logits and the targets of a loss; of its steps, as the step reads them that takes the target's logit."""
    if isinstance(loss, stg.CrossEntropyOp):
        return loss.logits, loss.targets
    assert isinstance(loss, stg.LossOfStatisticsOp)
    value: SSAValue = loss.target
    while isinstance(value, OpResult) and not isinstance(value.op, stg.TargetLogitOp):
        value = value.op.operands[0]
    assert isinstance(value, OpResult) and isinstance(value.op, stg.TargetLogitOp)
    return value.op.logits, value.op.targets


@dataclass
class Chunking:
    """One loss, and the ops that are moved into the loop over its chunks."""

    loss: Operation
    read: tuple[SSAValue, SSAValue]
    region: dict[Operation, None] = field(default_factory=dict)
    """In their order."""

    def __post_init__(self) -> None:
        logits, targets = (stg.tensor_type(value) for value in self.read)
        self.tokens, self.vocabulary = targets.names, logits.names[-1]
        self.dim = targets.names[-1]
        block = block_of(self.loss)
        self.block = block

    def run(self, chunks: int, values: dict[str, int]) -> None:
        self.check_size(chunks, values)
        self.find_region()
        self.check_region()
        self.hoist()
        self.build()

    def check_size(self, chunks: int, values: dict[str, int]) -> None:
        if chunks < 1:
            raise refusal(self.loss, f"{chunks} is not a number of chunks", "choose 1 or more")
        size = stg.tensor_type(self.read[1]).dim(self.dim).size
        reason = f"{chunks} chunks do not divide the `{size}` of `{self.dim}` on each rank"
        if not conditions.whole(size / chunks, values, reason):
            on_device = size.evaluate(values)
            raise refusal(
                self.loss,
                f"{chunks} chunks do not divide the {on_device} of `{self.dim}` on each rank",
                "choose a number of `loss_chunks` that divides it",
                [f"`{self.dim} = {values[self.dim]}` in all"],
            )

    # What is chunked

    def is_wide(self, value: SSAValue) -> bool:
        """Whether a value has a number for each token and each word."""
        if not isinstance(value.type, TensorType):
            return False
        return {self.vocabulary, *self.tokens} <= set(value.type.names)

    def find_region(self) -> None:
        """What makes or reads wide values, and what lies between."""
        ops = list(self.block.ops)
        touching = {op for op in ops if any(map(self.is_wide, (*op.operands, *op.results)))}
        touching.add(self.loss)
        after, before = set(touching), set(touching)
        for op in ops:
            if any(isinstance(x, OpResult) and x.op in after for x in op.operands):
                after.add(op)
        for op in reversed(ops):
            uses = [use.operation for result in op.results for use in result.uses]
            if any(ancestor_in(self.block, reader) in before for reader in uses):
                before.add(op)
        region = {op for op in ops if op in after and op in before}
        own = self.connected(region)
        self.region = {op: None for op in ops if op in own}

    def connected(self, region: set[Operation]) -> set[Operation]:
        """What of a region is about this loss: of a sum of two, each has its own logits."""
        found: set[Operation] = {self.loss}
        waiting: list[Operation] = [self.loss]
        while waiting:
            op = waiting.pop()
            near = [x.op for x in op.operands if isinstance(x, OpResult)]
            near += [use.operation for result in op.results for use in result.uses]
            for other in near:
                if other in region and other not in found:
                    found.add(other)
                    waiting.append(other)
        return found

    def check_region(self) -> None:
        for op in self.region:
            if not isinstance(op, stg.TensorOp | dist.CollectiveBase):
                raise refusal(op, "this cannot be computed in chunks of the sequence")
            if isinstance(op, stg.TensorOp):
                mixes = self.dim in op.indices().statistics
            else:
                mixes = op.source.splits.get(self.dim) != op.target.splits.get(self.dim)
            if mixes:
                raise refusal(op, f"this needs all of `{self.dim}`, and is part of a chunked loss")
        read_elsewhere = self.results()
        for value in (result for op in self.region for result in op.results):
            if self.dim in stg.tensor_type(value).names:
                continue
            # A sum over tokens is known when all chunks are.
            if any(ancestor_in(self.block, use.operation) in self.region for use in value.uses):
                raise refusal(self.loss, "a gradient depends on the loss, which needs all chunks")
            if value in read_elsewhere and not is_sum(value):
                raise refusal(self.loss, "the loss is not a sum over tokens, so it has no chunks")

    def inputs(self) -> list[SSAValue]:
        found = (x for op in self.region for x in op.operands)
        return [
            x for x in dict.fromkeys(found) if not (isinstance(x, OpResult) and x.op in self.region)
        ]

    def results(self) -> list[SSAValue]:
        """What is read elsewhere."""
        return [
            result
            for op in self.region
            for result in op.results
            if any(ancestor_in(self.block, use.operation) not in self.region for use in result.uses)
        ]

    # Moving

    def hoist(self) -> None:
        """Make what the gradients start from before the loss: it depends on no chunk."""
        position = {op: i for i, op in enumerate(self.block.ops)}
        here = position[self.loss]
        waiting = [x.op for x in self.inputs() if isinstance(x, OpResult)]
        late: set[Operation] = set()
        while waiting:
            op = waiting.pop()
            if op not in position or position[op] < here or op in late:
                continue
            late.add(op)
            waiting += [x.op for x in op.operands if isinstance(x, OpResult)]
        for op in sorted(late, key=position.__getitem__):
            op.detach()
            stg.marks(op)["phase"] = StringAttr("fwd")
            self.block.insert_op_before(op, self.loss)

    def add(self, op: Operation) -> Operation:
        stg.marks(op)["phase"] = StringAttr("fwd")
        inherit(op, self.loss, NAME)
        self.block.insert_op_before(op, self.loss)
        return op

    def build(self) -> None:
        """The loop, and what its results replace."""
        body = Block()
        outputs = self.results()
        sums = [v for v in outputs if self.dim not in stg.tensor_type(v).names]
        parts = [v for v in outputs if v not in sums]
        chunked = [
            x for x in self.inputs() if isinstance(x.type, TensorType) and self.dim in x.type.names
        ]
        stacks = [self.add(stg.ChunkOp(x, self.dim)).results[0] for x in chunked]
        zeros = [self.add(stg.ZerosOp(like=stg.tensor_type(v))).results[0] for v in sums]
        carried = [body.insert_arg(v.type, len(body.args)) for v in sums]
        mapping: dict[SSAValue, SSAValue] = {
            x: body.insert_arg(stg.chunked(stg.tensor_type(x), self.dim), len(body.args))
            for x in chunked
        }
        for op in self.region:
            copy = op.clone(mapping)
            copy.location = op.location
            for old, new in zip(op.results, copy.results, strict=True):
                set_type(new, stg.chunked(stg.tensor_type(old), self.dim))
                mapping[old] = new
            self.put(copy, body)
        totals = [
            self.put(stg.AddOp(before, mapping[v]), body, in_place=True)
            for before, v in zip(carried, sums, strict=True)
        ]
        yielded = [*(op.results[0] for op in totals), *(mapping[v] for v in parts)]
        body.add_op(stg.YieldOp(yielded))
        loop = stg.RepeatOp(symbolic.symbol(CHUNK_AXIS), zeros, stacks, body)
        stg.marks(loop).update({stg.STEPS: UnitAttr(), stg.MAKES_GRADIENTS: UnitAttr()})
        self.add(loop)
        made: list[SSAValue] = list(loop.results[: len(sums)])
        for part, stack in zip(parts, loop.results[len(sums) :], strict=True):
            joined = stg.JoinChunksOp(stack, self.dim, stg.tensor_type(part))
            made.append(self.add(joined).results[0])
        for old, new in zip([*sums, *parts], made, strict=True):
            old.replace_all_uses_with(new)
        for op in reversed(list(self.region)):
            op.detach()
            op.erase(safe_erase=False)

    def put(self, op: Operation, body: Block, in_place: bool = False) -> Operation:
        """Add an op to a chunk's work."""
        stg.marks(op).update({"phase": StringAttr("fwd"), "made_by": StringAttr(NAME)})
        if in_place:
            stg.marks(op)["in_place"] = UnitAttr()
        inherit(op, self.loss, NAME)
        body.add_op(op)
        return op


def is_sum(value: SSAValue) -> bool:
    """Whether a value adds up over tokens: through changes of placement and dtype."""
    op = followed(value, through(stg.CastOp, dist.CollectiveBase)).owner
    if isinstance(op, stg.ReduceOp) and op.kind.data == "max":
        return False
    return isinstance(op, SUMS)
