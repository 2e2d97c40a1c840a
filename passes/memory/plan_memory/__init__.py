"""Write down what lives where and until when: the memory of each node's results, who frees what, and what stays from step to step.

Before `plan-memory`:

    !t = !stg.tensor<[B, D], bf16>
    !w = !stg.tensor<[D, F], bf16>
    stg.dim "mb" = "2"
    dist.mesh <dp = 2>
    stg.program "M" (%x : !t) {
      %w = stg.weight "w" : !w
      %sum = stg.accumulate over "mb" -> (!w) {
        %h = sched.compute "gelu" (%x) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t) -> !t
        %g = sched.compute "contract" (%h, %x) flops "B" reads "B" writes "B" on "compute" in B.1 {phase = "wgrad"} : (!t, !t) -> !w
        stg.yield %g : !w
      }
      %r = sched.collective "all_reduce" (%sum) over [dp] in "bf16" bytes "2*D*F" to "2*D*F" on "comm.dp" in step.2
        effects <overwrites 0 by 0 makes gradients> : (!w) -> !w
      sched.compute "optimizer_step" (%w, %r) flops "D" reads "D" writes "D" on "compute" in step.3
        effects <updates ["8*D*F"] master "fp32"> : (!w, !w) -> ()
      stg.output
    }

After:

    !t = !stg.tensor<[B, D], bf16>
    !w = !stg.tensor<[D, F], bf16>
    stg.dim "mb" = "2"
    dist.mesh <dp = 2>
    stg.program "M" (%x : !t) {
      %w = stg.weight "w" : !w
      %sum = stg.accumulate over "mb" -> (!w) {
        %h = sched.compute "gelu" (%x) flops "B" reads "B" writes "B" on "compute" in F.0
          memory <[temporaries]> : (!t) -> !t
        %g = sched.compute "contract" (%h, %x) flops "B" reads "B" writes "B" on "compute" in B.1
          memory <[gradients of "bf16"], frees 0 1> {phase = "wgrad"} : (!t, !t) -> !w
        stg.yield %g : !w
      }
      %r = sched.collective "all_reduce" (%sum) over [dp] in "bf16" bytes "2*D*F" to "2*D*F" on "comm.dp" in step.2
        effects <overwrites 0 by 0 makes gradients> memory <[gradients in 0], frees 0> : (!w) -> !w
      sched.compute "optimizer_step" (%w, %r) flops "D" reads "D" writes "D" on "compute" in step.3
        effects <updates ["8*D*F"] master "fp32"> memory <[], frees 1> : (!w, !w) -> ()
      stg.output
    }
    sched.stored of "" {
      "w" parameters "2*D*F",
      "w" optimizer "8*D*F",
      "w" master "4*D*F"
    }

A buffer is the result of a node. It is there from that node on until the last of those that free it, in the order of tasks and rows; a sum over
microbatches from its first term on. `frees` names the operands of which a node is the last reader in some iteration: readers that another
always follows free nothing. `stagec.memory` unrolls this, for layers and microbatches, and decides nothing.

What nodes do with memory they say themselves (`effects`); the rest depends on what is around them:

- A result `in` the memory of an operand: where the op says so; an all-reduce, where nobody else reads what it reduces.
- Gradients are what an update reads, back to what made them. Values that a forward task makes and a backward task reads are saved
  activations: tasks say that.
- What ops read that make the gradients of one op (`gradient_of`) is freed with the last of them, as a node of autograd does.
- What a collective reads is there until somebody waits for what it makes, as `ProcessGroupNCCL` keeps it.
- What a unit gathered last is there until its gradients are made, as FSDP frees it: also a table, which no gradient reads, and layers whose weights
  were converted, so that copies are read (`torch.autocast`).
- What a forward pass gathered is there until its module returns: behind the collective over what the last reader makes, if there is one.

`gradients` is what a framework does with theirs, and each name stands for one (`docs/decisions/memory-plan.md`):

| | the sum over microbatches | its reduction | who |
|---|---|---|---|
| `contiguous` | whole, in a buffer that stays where its dtype is not that of its terms | in place | DDP (`gradient_as_bucket_view`) |
| `kept` | the same, there at any time, also for one microbatch | in place | Megatron-LM (`like = megatron`, `_ParamAndGradBuffer`) |
| `partitioned` | whole until it is reduced, a part stays | into memory of its own | DeepSpeed's ZeRO 2 |
| `copied` | of parts, each copied into the one buffer of reductions | into memory of its own | FSDP2 (`foreach_reduce`), ZeRO 3 |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from stagec import symbolic
from stagec.analysis.buffers import (
    gradient_values,
    ops_inside,
    reduced_from,
    roots,
    steps_back,
    stored_by,
    summed_results,
    updates,
)
from stagec.analysis.dataflow import is_node
from stagec.analysis.placement import source_of
from stagec.dialects import sched, stg
from stagec.dialects.memory import (
    ADDED,
    ALONE,
    ALWAYS,
    BEYOND,
    CONTIGUOUS,
    COPIED,
    FIRST,
    GRADIENTS,
    KEPT,
    OPERAND,
    OWN,
    REPETITION,
    STAYS,
    WHOLE_GRADIENTS,
    Buffer,
    Effects,
    Kind,
    MemoryAttr,
    NodeMemory,
    Repetition,
    StoredOp,
)
from stagec.dialects.sched.tasks import TASKS, Rows
from stagec.dialects.types import ShardType, leaf_of, tensor_of
from stagec.dialects.use_def import followed, from_body, from_stack, through
from stagec.passes.memory.plan_memory.buffer_padding import padding_rows
from stagec.passes.memory.plan_memory.process_memory import (
    ProcessTerms,
    copy_rows,
    makes_dummy,
    process_rows,
)
from stagec.rewriting import programs
from stagec.symbolic import Size
from stagec.unrolling.module import KeepsRows

NAME = "plan-memory"

FOLLOWING = {"F": ("B", "I", "W"), "I": ("W",)}
"""Tasks of a microbatch that come after another, whatever the schedule, unless they overlap."""


@dataclass(frozen=True)
class PlanMemory(KeepsRows, ModulePass):
    name = NAME

    gradients: str = CONTIGUOUS
    """What becomes of the memory of gradients: `contiguous`, `kept`, `partitioned` or `copied`."""
    dummy_gradients: bool = False
    """Whether Transformer Engine's products add gradients of weights to their sums, and it keeps one that nobody reads for each shape."""
    transposed_weights: bool = False
    """Whether quantized weights are kept a second time, as the backward pass reads them."""
    cached_weights: bool = False
    """Whether quantized copies of weights that are stored wide are kept from microbatch to microbatch."""
    workspace: int = 0
    """Bytes of what libraries keep for themselves."""
    context: int = 0
    """Bytes of the context of the device, and of loaded kernels."""
    communicator: int = 0
    """Bytes of each set of ranks that a rank communicates with."""
    reserve: int = 0
    """Bytes that the allocator has beyond its peak."""

    def __post_init__(self) -> None:
        if self.gradients not in GRADIENTS:
            raise ValueError(f"gradients are one of {', '.join(GRADIENTS)}")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        ops = list(op.body.ops)
        for old in ops:
            if isinstance(old, StoredOp):
                old.detach()
                old.erase()
        tables = [each for each in ops if isinstance(each, sched.TasksOp)]
        side_by_side = overlapping(each for each in ops if isinstance(each, sched.RankProgramOp))
        for program in programs(op):
            kind = stg.text(program, "kind")
            rows = [each.rows.data for each in tables if each.kind.data == kind]
            Planner(program, self.gradients, self.dummy_gradients, rows, side_by_side).run()
            updated = updates(program).items()
            trained = [op.path.data for op, each in updated if each.gradient is not None]
            stored = (
                *stored_by(program),
                *copy_rows(program, cached=self.cached_weights, transposed=self.transposed_weights),
                *padding_rows(program, rows),
                *process_rows(program, self.terms, trained),
            )
            op.body.block.add_op(StoredOp(kind, stored))

    @property
    def terms(self) -> ProcessTerms:
        return ProcessTerms(
            self.dummy_gradients, self.workspace, self.context, self.communicator, self.reserve
        )


@dataclass
class Draft:
    """The plan of a node, while it is made."""

    buffers: list[Buffer]
    frees: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    keeps: list[tuple[int, int]] = field(default_factory=list)
    replaces: str = ""

    def attribute(self) -> MemoryAttr:
        buffers, frees, lasts = tuple(self.buffers), tuple(self.frees), tuple(self.lasts)
        return MemoryAttr(NodeMemory(buffers, frees, lasts, tuple(self.keeps), self.replaces))


class Planner:
    """Plans the memory of one program."""

    def __init__(
        self,
        program: stg.ProgramOp,
        gradients: str,
        dummy_gradients: bool,
        rows: Sequence[Mapping[str, Rows]],
        side_by_side: Collection[tuple[str, str]],
    ) -> None:
        self.program = program
        self.policy = gradients
        self.dummy_gradients = dummy_gradients
        self.gradients = gradient_values(program)
        self.sums = summed_results(program)
        self.nodes: dict[Operation, Draft] = {}
        self.last_readers = LastReaders(rows, side_by_side)
        self.groups = 0

    def run(self) -> None:
        for op in self.program.walk():
            if is_node(op):
                self.nodes[op] = self.draft(op)
        self.keep_what_gradients_read()
        self.keep_units()
        self.keep_what_is_sent()
        inside = ops_inside(self.program)
        for op in self.nodes:
            for number, operand in enumerate(op.operands):
                for value, is_every in behind(operand):
                    if not (isinstance(value, OpResult) and is_stored(value)):
                        self.last_readers.add(value, Read(op, number, is_every, op in inside))
        for op, number in self.last_readers.found():
            if number not in self.nodes[op].frees:
                self.nodes[op].frees.append(number)
        known: dict[MemoryAttr, MemoryAttr] = {}
        for op, draft in self.nodes.items():
            draft.frees.sort()
            attribute = draft.attribute()
            op.properties["memory"] = known.setdefault(attribute, attribute)

    def draft(self, op: Operation) -> Draft:
        effects = sched.effects_of(op)
        return Draft(
            [self.buffer(op, effects, result) for result in op.results], replaces=effects.replaces
        )

    def buffer(self, op: Operation, effects: Effects, result: OpResult) -> Buffer:
        kind, where, operand = self.kind(op, effects, result), OWN, 0
        for each in effects.overwrites:
            if each.result == result.index and self.is_overwritten(op, each.when, each.operand):
                where, operand = OPERAND, each.operand
                if isinstance(behind_views(op.operands[operand]).owner, stg.CacheOp):
                    where, operand = STAYS, 0
        count = None
        if effects.repeats is not None and result.index == 0:
            count = elements_in_all(effects.repeats, result)
            where = OWN if count is None else REPETITION
        if effects.one_buffer and result.index and kind != Kind.PARAMETERS:
            where = FIRST
        if kind in BEYOND and is_kept(result):
            # What an update stores is where it was.
            where = STAYS
        total = self.sums.get(result, "")
        # A sum in the dtype of its terms begins with the first of them, unless its buffer is there before.
        stays = bool(total) and (
            self.policy == KEPT or (self.policy != COPIED and total != tensor_of(result.type).dtype)
        )
        if stays and self.dummy_gradients and makes_dummy(op):
            where = ADDED
        return Buffer(kind, where, operand, count, total, stays)

    def kind(self, op: Operation, effects: Effects, result: OpResult) -> Kind:
        is_updated = task_of(op) == "step"
        if effects.makes == Kind.GATHERED and (is_updated or is_stored(result)):
            # What ranks store whole is filled itself. What else a step gathers are momenta, whose matrices are then whole.
            is_weight = isinstance(weight_behind(result).owner, stg.WeightOp)
            return Kind.PARAMETERS if is_weight else Kind.TEMPORARIES
        if effects.makes is not None:
            return effects.makes
        if result in self.gradients:
            return Kind.GRADIENTS
        return Kind.RECOMPUTED if stg.phase_of(op) == "recompute" else Kind.TEMPORARIES

    def is_overwritten(self, op: Operation, when: str, operand: int) -> bool:
        if when == ALONE:
            return is_alone(op.operands[operand])
        return when == ALWAYS or self.policy in WHOLE_GRADIENTS

    # What is freed together

    def group(self) -> int:
        self.groups += 1
        return self.groups - 1

    def keep_what_gradients_read(self) -> None:
        """Both factors of a product are there until both of their gradients are made."""
        together: dict[tuple[object, ...], list[Operation]] = {}
        for op in self.nodes:
            number = op.properties.get(stg.GRADIENT_OF)
            if isinstance(number, IntegerAttr):
                key = (number.value.data, op.parent_block(), task_of(op))
                together.setdefault(key, []).append(op)
        for ops in together.values():
            made = {result for op in ops for result in op.results}
            read = [
                (op, n)
                for op in ops
                for n, x in enumerate(op.operands)
                if x not in made and any(behind(x))
            ]
            last = read[-1][0] if read else ops[-1]
            kept = [(op, n) for op, n in read if op.operands[n] not in last.operands]
            if kept:
                group = self.group()
                self.nodes[last].lasts.append(group)
                for op, n in kept:
                    self.nodes[op].keeps.append((n, group))

    def keep_what_is_sent(self) -> None:
        """What a collective reads is there until somebody waits for what it makes, behind what is computed beside it: `ProcessGroupNCCL` keeps it until
        then (`stashed_for_allocator_safety_`)."""
        for op in self.nodes:
            if not isinstance(op, sched.CollectiveOp):
                continue
            last, following = op, following_node(op)
            while following is not None and not reads(following, op):
                last, following = following, following_node(following)
            sent = [followed(x, through(sched.ViewOp)) for x in op.operands]
            kept = [
                n
                for n, x in enumerate(sent)
                if x.owner in self.nodes and x not in self.sums and x.owner.parent is op.parent
            ]
            if following is None or last is op or task_of(last) != task_of(op) or not kept:
                continue
            group = self.group()
            self.nodes[last].lasts.append(group)
            self.nodes[op].keeps += [(n, group) for n in kept]

    def keep_units(self) -> None:
        """What a unit gathered last, which a backward pass may not read, is there until its gradients are made, as FSDP frees it.

        In layers gradients read it, or all of its weights are converted, and they read the copies. What a forward pass gathered is that
        where nothing is gathered again (`reshard = false`).
        """
        gathers: dict[SSAValue, list[OpResult]] = {}
        read = self.read_by_gradients()
        for op, draft in self.nodes.items():
            if any(buffer.kind == Kind.GATHERED for buffer in draft.buffers):
                for shard, whole in zip(op.operands, op.results, strict=True):
                    stored = followed(shard, from_stack, from_body, gathered_from)
                    gathers.setdefault(stored, []).append(whole)
                self.keep_parts_of(op)
                self.keep_until_returned(op)
        freed_by: dict[OpResult, dict[Operation, None]] = {}
        for weight, update in updates(self.program).items() if gathers else ():
            # FSDP frees it before it copies gradients into the buffer that is reduced (`FSDPParamGroup.post_backward`).
            gradient = update.gradient
            for v in roots(gradient, through_reductions=True) if gradient is not None else ():
                if isinstance(v, OpResult) and reduced_from(v) is None and v.op in self.nodes:
                    layer = layer_of(v.op)
                    whole = gathered_last(gathers.get(weight.weight, []), layer)
                    if whole and (layer_of(whole.op) is None or read.isdisjoint(whole.op.results)):
                        freed_by.setdefault(whole, {})[v.op] = None
        for whole, last in freed_by.items():
            group = self.group()
            buffers = self.nodes[whole.op].buffers
            buffers[whole.index] = replace(buffers[whole.index], until=group)
            for op in last:
                self.nodes[op].lasts.append(group)

    def keep_until_returned(self, gather: Operation) -> None:
        """FSDP frees what a forward pass gathered when the module has returned (`FSDPState._post_forward`), and what tensor parallelism does with a result is
        a hook of a module inside (`distribute_module`): it comes first. Experts, whose results an exchange takes back, have returned before it."""
        block = gather.parent_block()
        own = [op for op in forward_readers(gather.results) if op.parent_block() is block]
        if block is None or stg.phase_of(gather) != "fwd" or not own:
            return
        last = max(own, key=block.get_operation_index)
        for move in forward_readers(last.results):
            is_hook = isinstance(move, sched.CollectiveOp) and move.kind.data != "all_to_all"
            if is_hook and move.parent_block() is block:
                group = self.group()
                self.nodes[move].lasts.append(group)
                buffers = self.nodes[gather].buffers
                buffers[0] = replace(buffers[0], until=group)
                return

    def keep_parts_of(self, gather: Operation) -> None:
        """The parts that a gather was given by a forward pass are there until its first reader waits for it (`FSDPParam.to_unsharded`)."""
        parts = [followed(part, from_stack, from_body) for part in gather.operands]
        kept = [part for part in parts if isinstance(part, OpResult) and gathered_from(part)]
        if not kept or not isinstance(gather, sched.CollectiveOp):
            return
        readers = {use.operation for whole in gather.results for use in whole.uses}
        following = gather.next_op
        while following is not None and following not in readers:
            following = following.next_op
        if following is not None and following in self.nodes:
            group = self.group()
            self.nodes[following].lasts.append(group)
            for part in kept:
                buffers = self.nodes[part.op].buffers
                buffers[part.index] = replace(buffers[part.index], until=group, before=True)

    def read_by_gradients(self) -> set[SSAValue]:
        """What units gathered that the backward pass reads, for more than what is computed again."""
        if not any(b.kind == Kind.GATHERED for draft in self.nodes.values() for b in draft.buffers):
            return set()
        later = [op for op in self.nodes if stg.phase_of(op) not in ("fwd", "recompute")]
        return {value for op in later for operand in op.operands for value, _ in behind(operand)}


def following_node(op: Operation) -> Operation | None:
    """The next node of its block; None at its end, and where a loop comes before one."""
    following = op.next_op
    while isinstance(following, sched.ViewOp):
        following = following.next_op
    return following if following is not None and is_node(following) else None


def reads(op: Operation, made_by: Operation) -> bool:
    """Whether an op reads what another makes, or a view of it."""
    return any(followed(x, through(sched.ViewOp)).owner is made_by for x in op.operands)


def forward_readers(values: Iterable[SSAValue]) -> Iterator[Operation]:
    """The nodes of forward passes that read values, or views of them."""
    for use in (use for value in values for use in value.uses):
        if isinstance(use.operation, sched.ViewOp):
            yield from forward_readers(use.operation.results)
        elif is_node(use.operation) and stg.phase_of(use.operation) == "fwd":
            yield use.operation


def gathered_last(gathers: Sequence[OpResult], layer: Block | None) -> OpResult | None:
    """The gathered form of a weight that is in memory when the weight's gradient is made in a layer: gathered again there, or only in the forward pass."""
    here = [whole for whole in gathers if layer_of(whole.op) is layer]
    if here or not gathers:
        return here[-1] if here else None
    return gathers[-1] if layer is not None and stg.phase_of(gathers[-1].op) == "fwd" else None


def layer_of(op: Operation) -> Block | None:
    """The layers that an op is in; None for one beside them."""
    return op.parent_block() if isinstance(op.parent_op(), stg.RepeatOp) else None


def is_stored(made: OpResult) -> bool:
    """Whether ranks store all of what a gather makes: it gathers their parts of a weight, and nobody frees that."""
    op = made.op
    if not isinstance(op, sched.CollectiveOp) or sched.effects_of(op).makes != Kind.GATHERED:
        return False
    weight = weight_behind(made)
    return isinstance(weight.owner, stg.WeightOp) and not isinstance(
        leaf_of(weight.type), ShardType
    )


def weight_behind(made: OpResult) -> SSAValue:
    """The weight whose parts a gather reads, or what else it gathers."""
    return followed(made.op.operands[made.index], from_stack, through(sched.ViewOp))


def gathered_from(value: SSAValue) -> SSAValue | None:
    """From what was gathered, or the part of it that a rank keeps, to what it was gathered from."""
    if isinstance(value, OpResult) and isinstance(value.op, sched.CollectiveOp | sched.ComputeOp):
        is_gathered = sched.effects_of(value.op).makes == Kind.GATHERED
        return value.op.operands[value.index] if is_gathered else None
    return None


def is_kept(result: OpResult) -> bool:
    """Whether a result on the host is what the optimizer keeps: an update made it, there or on the device."""
    value: SSAValue = result
    while isinstance(value, OpResult) and isinstance(value.op, sched.HostCopyOp):
        value = value.op.operands[value.index]
    made = value.owner
    return isinstance(made, Operation) and sched.effects_of(made).updates is not None


def is_alone(value: SSAValue) -> bool:
    """Whether a value has one reader, and the stack that it is an element of too."""
    if isinstance(value, OpResult):
        return value.has_one_use()
    repeat = value.owner.parent_op()
    if not isinstance(repeat, stg.RepeatOp) or not isinstance(value, BlockArgument):
        return False
    is_slice = value.index >= repeat.num_carried
    return value.has_one_use() and is_slice and is_alone(repeat.operands[value.index])


def task_of(op: Operation) -> str:
    segment = op.properties.get("segment")
    return segment.task if isinstance(segment, sched.SegmentAttr) else ""


def behind_views(value: SSAValue) -> SSAValue:
    """The weight, cache, input or result whose memory a value is."""
    value = source_of(value)
    while isinstance(value.owner, sched.ViewOp):
        value = source_of(value.owner.operand)
    return value


def elements_in_all(repeats: Repetition, value: SSAValue) -> Size | None:
    """How many elements a repetition has in memory of its own, if they are more than one: those that it repeats, times those along the other batch dims of
    readers that copy what has strides. None: some such reader has no batch dim along which it lies."""
    counts = [repeats.count]
    for batch in dense_readers(value):
        if repeats.dim not in batch:
            return None
        others = (size for name, size in batch.items() if name != repeats.dim)
        counts.append(symbolic.product((repeats.count, *others)))
    return counts[0] if len(counts) == 1 else symbolic.call("max", *dict.fromkeys(counts[1:]))


def dense_readers(value: SSAValue) -> Iterator[Mapping[str, Size]]:
    """The batch dims of each reader of a value, or of a view of it, that copies what has strides."""
    for use in value.uses:
        if isinstance(use.operation, sched.ViewOp):
            yield from dense_readers(use.operation.result)
        elif (effects := sched.effects_of(use.operation)).reads_dense:
            yield dict(effects.batch)


# Last readers


def behind(value: SSAValue) -> Iterator[tuple[SSAValue, bool]]:
    """The results of nodes, or inputs, that a reader may see in a value, and whether it sees the instance of every iteration."""
    ahead, seen = [(value, True)], set[SSAValue]()
    while ahead:
        value, is_every = ahead.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value, OpResult) and is_node(value.op):
            yield value, is_every
            continue
        further = steps_back(value)
        if isinstance(value, BlockArgument) and not further:
            yield value, is_every
        ahead += [(source, is_every and each) for source, each in further]


@dataclass(frozen=True)
class Read:
    """An operand of a node, as a reader of some value."""

    op: Operation
    number: int
    is_every: bool
    """Whether each instance of the value has such a reader."""
    is_inside: bool
    """Whether it is in the loop over microbatches: else it may read a sum."""


class LastReaders:
    """The last readers of each value: those that no other reader follows in every iteration."""

    def __init__(
        self, rows: Sequence[Mapping[str, Rows]], side_by_side: Collection[tuple[str, str]]
    ) -> None:
        self.rows, self.side_by_side = rows, side_by_side
        self.reads: dict[SSAValue, list[Read]] = {}
        self.positions: dict[Operation, int] = {}
        self._follows: dict[tuple[str, int, int], bool] = {}

    def add(self, value: SSAValue, read: Read) -> None:
        self.positions.setdefault(read.op, len(self.positions))
        self.reads.setdefault(value, []).append(read)

    def found(self) -> Iterator[tuple[Operation, int]]:
        for reads in self.reads.values():
            for read in reads:
                if not any(self.comes_after(other, read) for other in reads):
                    yield read.op, read.number

    def comes_after(self, other: Read, read: Read) -> bool:
        """Whether another reader of all that one reads is issued after it, in every iteration."""
        if not (other.is_every and other.is_inside and read.is_inside) or other.op is read.op:
            return False
        mine, theirs = task_of(read.op), task_of(other.op)
        if mine != theirs:
            return theirs in FOLLOWING.get(mine, ()) and (mine, theirs) not in self.side_by_side
        if read.op.parent_block() is not other.op.parent_block() or not read.is_every:
            return False
        first, second = segment_of(read.op), segment_of(other.op)
        if first == second:
            return self.positions[other.op] > self.positions[read.op]
        return self.follows(mine, first, second)

    def follows(self, task: str, first: int, second: int) -> bool:
        """Whether all rows of a segment come after those of another in the same iteration."""
        key = (task, first, second)
        if key not in self._follows:
            self._follows[key] = bool(self.rows) and all(
                are_ordered(each[task], first, second) for each in self.rows if task in each
            )
        return self._follows[key]


def overlapping(programs_: Iterable[sched.RankProgramOp]) -> set[tuple[str, str]]:
    """The tasks of one microbatch that overlap on some rank: their rows are issued in turns, so that neither comes after the other."""
    found: set[tuple[str, str]] = set()
    for program in programs_:
        order = program.order.data
        group = np.cumsum(order.joined == 0)
        in_groups = np.isin(group, group[order.joined > 0])
        known: dict[tuple[int, ...], set[str]] = {}
        for number, (task, *of) in zip(
            group[in_groups].tolist(), order.table[in_groups, :3].tolist(), strict=True
        ):
            known.setdefault((number, *of), set()).add(TASKS[task])
        found |= {pair for tasks in known.values() for pair in permutations(tasks, 2)}
    return found


def segment_of(op: Operation) -> int:
    segment = op.properties.get("segment")
    return segment.number if isinstance(segment, sched.SegmentAttr) else -1


def are_ordered(rows: Rows, first: int, second: int) -> bool:
    if (rows.behind_task >= 0).any():
        return False
    one, other = np.flatnonzero(rows.segment == first), np.flatnonzero(rows.segment == second)
    if len(one) != len(other):
        return False
    one = one[np.lexsort(rows.path[one].T)] if rows.path.shape[1] else one
    other = other[np.lexsort(rows.path[other].T)] if rows.path.shape[1] else other
    same = np.array_equal(rows.path[one], rows.path[other])
    return same and bool((one < other).all())
