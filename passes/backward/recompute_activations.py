"""Save less in the forward pass, and compute again in the backward pass what it reads.

Before `recompute-activations{what="exp"}`:

    stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
      %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
      %y, %es = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>)
          slice(%v = %w : !stg.stack<"L" x !stg.tensor<[D], bf16>>)
          -> (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !stg.tensor<[B, D], bf16>>) {
        %m = stg.mul %h, %v : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
        %e = stg.unary "exp" %m : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %e, %e : !stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>
      }
      %dx = stg.repeat "L" reverse carry(%dy = %y : !stg.tensor<[B, D], bf16>)
          slice(%s = %es : !stg.stack<"L" x !stg.tensor<[B, D], bf16>>)
          -> (!stg.tensor<[B, D], bf16>) attributes {phase = "bwd"} {
        %dm = stg.mul %dy, %s {phase = "bwd"}
          : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %dm : !stg.tensor<[B, D], bf16>
      }
      stg.output
    }

After:

    stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
      %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
      %y, %ms = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>)
          slice(%v = %w : !stg.stack<"L" x !stg.tensor<[D], bf16>>)
          -> (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !stg.tensor<[B, D], bf16>>) {
        %m = stg.mul %h, %v : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
        %e = stg.unary "exp" %m : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %e, %m : !stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>
      }
      %dx = stg.repeat "L" reverse carry(%dy = %y : !stg.tensor<[B, D], bf16>)
          slice(%s = %ms : !stg.stack<"L" x !stg.tensor<[B, D], bf16>>)
          -> (!stg.tensor<[B, D], bf16>) attributes {phase = "bwd"} {
        %e = stg.unary "exp" %s {phase = "recompute", made_by = "recompute-activations"}
          : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        %dm = stg.mul %dy, %e {phase = "bwd"}
          : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %dm : !stg.tensor<[B, D], bf16>
      }
      stg.output
    }

A value that the backward pass reads and that is not to be saved is made again by the ops that made it, as far back as values that are
saved: weights, what the body is given, and results of ops that nobody asked to recompute (these are saved from now on). All this happens
before the first op that reads of it: under full recomputation at the start of the body, for an op alone just in time. What is made again of
a layer under `full`, or of a call of `modules`, is one checkpoint, made at once in the order of the forward pass, and ends with the last
value that autograd keeps, weights among them, as PyTorch's checkpoint stops (`_StopRecomputationError` in `torch/utils/checkpoint.py`): the
last product of a block is not made again, nor is its collective; what stands before that end is, whether it is read or not, such as the
last product of an attention beside which a feed-forward network stands. Else nothing is made again that nobody reads. Dropout replays its
random numbers.

`what` names ops (`softmax`, `silu`, `contract`), values that the plan names (the frontend writes their `names` on the ops that
make them, unnamed steps included), modules, or

- `full`: all ops of the repeated layers, or of `modules`, in a repeat or not. What leaves a call of a module is kept for those who
  read it, as the checkpoint of a module keeps its arguments: that is how two calls in one layer are two checkpoints;
- `whole`: the same, to the end, also what nobody reads: Megatron-LM runs the whole function of a checkpoint again
  (`CheckpointFunction.backward` in megatron/core/tensor_parallel/random.py), so that a layer has six all-reduces over tensor-parallel ranks, and not five;
- `attention`: the core of attention, fused or not (`analysis/attention_core.py`), whose result is kept too, for the projection
  after it reads it: selective recomputation as in Korthikanti et al. 2022, section 5.

Ops named by kind are meant where layers are repeated, or in `modules` (calls anywhere on an op's path). A change of placement
goes with the value that it moves; steps of an op that was taken apart (`part_of`) with the op; constants are never saved.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from stagec.analysis.recompute_choice import (
    FULL,
    WHOLE,
    Choice,
    Dropped,
    call_of,
    can_be_repeated,
)
from stagec.diagnostics import CompileError, Diagnostic, quoted
from stagec.dialects import dist, stg
from stagec.dialects.use_def import followed, from_stack, weight_path
from stagec.rewriting import programs
from stagec.rewriting.saved_values import BlockPair, inputs_of, levels_of, reads_of, remove_unread

NAME = "recompute-activations"


@dataclass(frozen=True)
class RecomputeActivations(ModulePass):
    name = NAME

    what: tuple[str, ...]
    """`full`, `attention`, or names of ops, values and modules. One that is nowhere is E0401."""
    modules: tuple[str, ...] = ()
    """Where: in calls of these modules. None: in every repeated layer."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        choice = Choice(self.what, self.modules)
        chosen: list[tuple[list[BlockPair], Mapping[BlockPair, Dropped]]] = []
        for program in programs(op):
            levels = levels_of(program)
            chosen.append((levels, {level: choose(choice, level) for level in levels}))
            meet_layers_that_save_nothing(choice, program, levels)
        if choice.unmet:
            raise CompileError(problems(choice, programs(op)))
        for levels, dropped in chosen:
            for level in levels:
                at_once = choice.at_once(level.forward_ops(), is_repeated=level.outer is not None)
                Rebuilding(level, dropped[level], self.modules, at_once, choice.is_whole).run()
            remove_unread(levels)
            verify_dropped(dropped)


def choose(choice: Choice, level: BlockPair) -> Dropped:
    return choice.dropped(level.forward_ops(), is_repeated=level.outer is not None)


def meet_layers_that_save_nothing(
    choice: Choice, program: stg.ProgramOp, levels: Sequence[BlockPair]
) -> None:
    """A word that means an op there is no mistake."""
    seen = {level.forward for level in levels}
    for op in program.walk():
        if isinstance(op, stg.RepeatOp) and op.body.block not in seen and stg.phase_of(op) == "fwd":
            choice.dropped(op.body.block.ops, is_repeated=True)


def problems(choice: Choice, found_in: Sequence[stg.ProgramOp]) -> list[Diagnostic]:
    """E0401 for each word that means no op."""
    span = dist.clause_span(found_in[0], "recompute.span") if found_in else None
    modules = [word for word in choice.unmet if word in choice.modules]
    if modules:
        message = f"no op is in a call of {quoted(modules, 'or')} to recompute"
        named = [word for word in choice.modules if word not in modules]
        ops = [op for each in found_in for op in each.walk()]
        called = sorted({name for op in ops for name in stg.scope_of(op).split(".") if name})
        help_ = f"leave {quoted(modules)} out" if named else f"there are calls of {quoted(called)}"
        return [Diagnostic("E0401", message, span, help=help_)]
    where = f" in {quoted(choice.modules, 'or')}" if choice.modules else " in a repeated layer"
    help_ = "" if choice.modules else "for ops outside of repeats, name their module: `in Block`"
    return [
        Diagnostic(
            "E0401",
            f"there is no {'op' if word in (FULL, WHOLE) else f'`{word}`'}{where} to recompute",
            span,
            help=help_,
        )
        for word in choice.unmet
    ]


@dataclass
class Rebuilding:
    """Makes dropped values again in the backward block of one level."""

    level: BlockPair
    dropped: Dropped
    modules: Sequence[str] = ()
    """What is made again of a call of these modules is made at once."""
    at_once: Sequence[Operation] = ()
    """What is made again whether it is read or not, with what is read of the same checkpoint:"""
    is_whole: bool = False
    """all of it, or what stands before the last op that makes something that is read."""
    made: dict[SSAValue, SSAValue] = field(default_factory=dict)
    """What the repeated ops make, by the value of the forward pass."""
    repeated: set[Operation] = field(default_factory=set)
    saving: set[Operation] = field(default_factory=set)
    """Ops for whose gradient a weight is kept, which a checkpoint counts among what it makes again."""

    def run(self) -> None:
        level = self.level
        self.position = {op: i for i, op in enumerate(level.forward_ops())}
        read = {path for op in level.backward_ops() for path in weights_of(op)}
        self.saving = {op for op in self.position if not read.isdisjoint(weights_of(op))}
        self.layers = [
            i
            for op, i in self.position.items()
            if isinstance(op, stg.RepeatOp) and not can_be_repeated(op)
        ]
        reads = [
            each
            for each in level.reads_of(self.dropped.values)
            if self.is_made_for(each[3], call_of(each[1], self.modules))
        ]
        together: dict[str, list[SSAValue]] = {}
        for _, _, _, value in reads:
            together.setdefault(self.call_of(value), []).append(value)
        for reader, op, index, value in reads:
            call = self.call_of(value)
            needed = self.slice_of(together[call] if call or self.at_once else [value], ())
            unread = self.unread_with(needed, call)
            first = self.first_of(call, reader) if unread else reader
            for again in self.slice_of([], [*needed, *unread]):
                self.repeat(again, first)
            op.operands[index] = self.made[value]

    def call_of(self, value: SSAValue) -> str:
        """The checkpoint that a value is in: the call of one of the modules. None: it is made again when it is read."""
        return call_of(value.owner, self.modules) if isinstance(value.owner, Operation) else ""

    def is_made_for(self, value: SSAValue, reader: str) -> bool:
        """Whether what is of a checkpoint reads a value that is made again."""
        return self.dropped.is_made_for(value, reader, self.call_of(value))

    def unread_with(self, needed: Sequence[Operation], call: str) -> list[Operation]:
        """What nobody reads of the checkpoint that these ops are made again of, and is made again with them. Inner layers, which do not run again with it, end
        a checkpoint."""
        ends: dict[int, int] = {}
        for op in needed:
            part = self.layers_before(op)
            ends[part] = max(ends.get(part, 0), self.position[op])
        own = [op for op in self.at_once if call_of(op, self.modules) == call and op not in needed]
        for op in self.saving.intersection(own):
            part = self.layers_before(op)
            ends[part] = max(ends.get(part, 0), self.position[op])
        if self.is_whole:
            return own
        return [op for op in own if self.position[op] < ends.get(self.layers_before(op), 0)]

    def layers_before(self, op: Operation) -> int:
        """How many repeats of layers stand before an op."""
        return bisect(self.layers, self.position[op])

    def first_of(self, call: str, reader: Operation) -> Operation:
        """Where the backward pass of a call begins, or what reads of it before that. A function that runs again as a whole does so before all of it."""
        phases = ("bwd", "wgrad")
        return next(
            op
            for op in self.level.backward_ops()
            if op is reader or (call_of(op, self.modules) == call and stg.phase_of(op) in phases)
        )

    def slice_of(self, values: Sequence[SSAValue], unread: Sequence[Operation]) -> list[Operation]:
        """The ops to repeat for values, and those that nothing reads, in their order."""
        needed = {op for op in unread if op not in self.repeated}
        waiting = [*values, *(x for op in needed for x in self.made_again(op))]
        while waiting:
            value = waiting.pop()
            op = value.owner
            if value in self.made or op in needed:
                continue
            assert isinstance(op, Operation)
            for each in (op, *self.sends_for(op)):
                needed.add(each)
                waiting += self.made_again(each)
        return sorted(needed, key=lambda op: self.position[op])

    def made_again(self, op: Operation) -> list[SSAValue]:
        """What an op that runs again reads that is made again, too."""
        own = call_of(op, self.modules)
        return [x for x in inputs_of(op) if self.is_made_for(x, own)]

    def sends_for(self, op: Operation) -> list[Operation]:
        """What the neighbours of a rank receive when it receives: its own sends of that channel."""
        if not isinstance(op, dist.RecvOp):
            return []
        sends = [each for each in self.position if isinstance(each, dist.SendOp)]
        return [each for each in sends if each.channel == op.channel and each.axes == op.axes]

    def repeat(self, op: Operation, before: Operation) -> None:
        made = {x: self.made[x] for x in self.made_again(op)}
        again = op.clone({x: made.get(x) or self.level.use(x) for x in inputs_of(op)})
        self.repeated.add(op)
        self.made |= dict(zip(op.results, again.results, strict=True))
        for each in again.walk():
            stg.marks(each).update({"phase": StringAttr("recompute"), "made_by": StringAttr(NAME)})
        Rewriter.insert_op(again, InsertPoint.before(before))


def weights_of(op: Operation) -> set[str]:
    """The paths of the weights that an op reads, and those in it."""
    read = (value for each in op.walk() for value in each.operands)
    return {path for value in read if (path := weight_path(followed(value, from_stack)))}


def verify_dropped(dropped: Mapping[BlockPair, Dropped]) -> None:
    """Check the promise: the backward pass reads no dropped value that the forward pass made."""
    for level, each in dropped.items():
        values = each.values - each.returned
        assert values.isdisjoint(level.saved().values())
        if level.outer is None:
            for op in level.backward_ops():
                assert not list(reads_of(op, dict.fromkeys(values))), op
