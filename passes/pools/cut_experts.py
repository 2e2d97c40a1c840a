"""Keep of a model what one of two pools serves: the experts of its layers, or everything else.

Before `cut-experts`:

    !x = !stg.tensor<[B, D], bf16>
    !r = !stg.tensor<[X, T, D], bf16>
    !i = !stg.tensor<[B, A], i32>
    !n = !stg.stack<"L" x !stg.tensor<[D], bf16>>
    !w = !stg.stack<"L" x !stg.tensor<[X, D], bf16>>
    dist.experts on "experts" others on "attention"
    dist.pool "experts" ranks 4 to 8 of 8
    stg.program "M" (%x : !x, %i : !i) {
      %n = stg.weight "n" : !n
      %w = stg.weight "w" : !w
      %z = stg.repeat "L" carry(%h = %x : !x) slice(%n1 = %n : !n, %w1 = %w : !w) -> (!x) {
        %a = stg.mul %h, %n1 : (!x, !stg.tensor<[D], bf16>) -> !x
        %r, %c = stg.dispatch %a by %i to "X" "T" dropless : (!x, !i) -> (!r, !stg.tensor<[X], i64>)
        %y = stg.mul %r, %w1 : (!r, !stg.tensor<[X, D], bf16>) -> !r
        %o = stg.combine %y by %i : (!r, !i) -> !x
        stg.yield %o : !x
      }
      stg.output %z : !x
    }

After:

    !r = !stg.tensor<[X, T, D], bf16>
    dist.experts on "experts" others on "attention"
    dist.pool "experts" ranks 4 to 8 of 8
    stg.program "M" () {
      %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[X, D], bf16>>
      stg.repeat "L" slice(%w1 = %w : !stg.stack<"L" x !stg.tensor<[X, D], bf16>>) {
        %r = dist.tower_recv "forward" 0 of "attention" tokens "T" chosen [B, A] {made_by = "cut-experts"} : !r
        %y = stg.mul %r, %w1 : (!r, !stg.tensor<[X, D], bf16>) -> !r
        dist.tower_send "backward" 1 to "attention" %y {made_by = "cut-experts"} : !r
        stg.yield
      }
      stg.output
    }

Experts are what lies between a dispatch and its combine. Each layer's tokens go to them as the dispatch makes them, a copy for each of a token's
experts, and what these make of them comes back to be combined: routers, weights of the sum, and experts that all tokens go to (which read what
was not dispatched) are on the other pool, with attention and its caches, but for the modules that `dist.experts` names. What does not depend
on inputs, each pool computes that reads it.

The program is cut before anything is placed, so that each pool is placed and cut into microbatches as a model by itself. Values have
one number each in the whole model, in its order, so that both pools number them alike.

E0423: a model without experts or without a module that is named, and what experts make of tokens that leaves them without a combine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec.diagnostics import CompileError, did_you_mean, refused, span_of
from stagec.dialects import dist, stg
from stagec.dialects.op import block_of, first_op
from stagec.dialects.types import TensorType
from stagec.rewriting import inherit, insert_after, insert_before, output_of, programs
from stagec.rewriting.saved_values import without_unread_slices

NAME = "cut-experts"


@dataclass(frozen=True)
class CutExperts(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pool, parts = dist.pool_of(op), first_op(op, dist.ExpertsOp)
        if pool is None or parts is None:
            return
        for program in programs(op):
            split = ExpertsOf(program, parts.modules.data if parts.modules is not None else ())
            split.find()
            crossings = list(split.crossings())
            if pool.pool == parts.experts:
                keep_experts(split, crossings, parts.others.data)
            else:
                keep_others(split, crossings, parts.experts.data)


@dataclass(frozen=True)
class Crossing:
    """A value that one pool makes and the other reads."""

    number: int
    value: SSAValue
    goes_to_experts: bool
    dispatch: stg.DispatchOp | None = None
    """That of copies which are dispatched."""

    @property
    def direction(self) -> str:
        return "forward" if self.goes_to_experts else "backward"


@dataclass
class ExpertsOf:
    """Which ops of a program are experts: they read tokens that were dispatched, and no combine's results, or are of the modules beside them."""

    program: stg.ProgramOp
    modules: Sequence[str]
    ops: dict[Operation, None] = field(default_factory=dict)
    data: set[SSAValue] = field(default_factory=set)
    """What depends on inputs or caches."""

    def find(self) -> None:
        self.visit(self.program.body.block)
        scopes = {name for op in self.program.walk() for name in scope_of(op)}
        for module in self.modules:
            if module not in scopes:
                message = f"`{self.program.model.data}` computes nothing in a module `{module}`"
                help_ = did_you_mean(module, scopes) or "name modules that the model calls"
                raise wrong(message, self.program, help_)
        if not self.ops:
            message = (
                f"`{self.program.model.data}` has no experts that a pool of their own could run"
            )
            help_ = "leave `part` out of `serve`, and the pool of experts"
            raise wrong(message, self.program, help_)

    def visit(self, block: Block) -> None:
        routed: set[SSAValue] = set()
        repeat = block.parent_op()
        slices = (
            dict(zip(repeat.slice_args, repeat.stacks, strict=True))
            if isinstance(repeat, stg.RepeatOp)
            else {}
        )
        self.data |= {a for a in block.args if a not in slices or slices[a] in self.data}
        for op in block.ops:
            is_named = not set(self.modules).isdisjoint(scope_of(op))
            if is_named and isinstance(op, stg.TensorOp):
                self.ops[op] = None
            elif isinstance(op, stg.DispatchOp):
                routed.add(op.routed)
            elif not isinstance(op, stg.CollectsTokens) and routed & set(operands_within(op)):
                if not isinstance(op, stg.TensorOp):
                    message = "what experts make of their tokens leaves them without `combine`"
                    help_ = "combine it: experts are what is between `dispatch` and `combine`"
                    raise wrong(
                        message, op if isinstance(op, stg.RepeatOp) else self.program, help_
                    )
                self.ops[op] = None
                routed |= set(op.results)
            if isinstance(op, stg.CacheOp) or self.data & set(op.operands):
                self.data |= set(op.results)
            for region in op.regions:
                self.visit(region.block)

    def crossings(self) -> Iterator[Crossing]:
        """In the order of the program."""
        number = 0
        for value in self.values():
            is_made = value.owner in self.ops
            readers = [use.operation in self.ops for use in value.uses]
            if (is_made and not all(readers)) or (
                not is_made and value in self.data and any(readers)
            ):
                op = value.owner
                dispatch = op if isinstance(op, stg.DispatchOp) else None
                yield Crossing(number, value, not is_made, dispatch)
                number += 1

    def values(self) -> Iterator[SSAValue]:
        yield from self.program.body.block.args
        for op in self.program.walk():
            yield from op.results
            if isinstance(op, stg.RepeatOp):
                yield from op.body.block.args


def scope_of(op: Operation) -> list[str]:
    """The modules that an op is in."""
    return stg.text(op, "scope").split(".")


def operands_within(op: Operation) -> list[SSAValue]:
    return [operand for inner in op.walk() for operand in inner.operands]


def keep_experts(split: ExpertsOf, crossings: Sequence[Crossing], other: str) -> None:
    """Nothing goes from layer to layer here: what iterations hand on, and what they leave, is the other pool's."""
    for each in crossings:
        if each.goes_to_experts:
            readers = [use.operation for use in each.value.uses]
            receive(each, other, [op for op in readers if op in split.ops])
        else:
            send(each, other)
    block, output = split.program.body.block, output_of(split.program)
    empty = stg.OutputOp([])
    inherit(empty, output)
    Rewriter.replace_op(output, empty)
    keep_alone(block, split)
    for argument in reversed(block.args):
        block.erase_arg(argument)


def keep_alone(block: Block, split: ExpertsOf) -> None:
    """Keep of a block the experts, what they read of weights, and what crosses."""
    for op in reversed(list(block.ops)):
        if isinstance(op, stg.RepeatOp) and any(
            isinstance(each, dist.TowerCrossing) for each in op.walk()
        ):
            op.yield_op.operands = []
            keep_alone(op.body.block, split)
            carrying_nothing(op)
        elif isinstance(op, stg.YieldOp | stg.OutputOp | dist.TowerCrossing) or op in split.ops:
            continue
        elif not any(result.uses for result in op.results):
            op.detach()
            op.erase()


def carrying_nothing(op: stg.RepeatOp) -> None:
    """A repeat whose iterations hand nothing on."""
    for argument in reversed(op.carry_args):
        op.body.block.erase_arg(argument)
    new = stg.RepeatOp(op.count.data, [], op.stacks, op.detach_region(op.body), first=op.first)
    insert_before(op, [new], NAME)
    op.detach()
    op.erase()
    without_unread_slices(new)


def keep_others(split: ExpertsOf, crossings: Sequence[Crossing], other: str) -> None:
    read = {op for op in split.program.walk() if any(result.uses for result in op.results)}
    for each in crossings:
        if each.goes_to_experts:
            send(each, other)
        else:
            readers = [use.operation for use in each.value.uses]
            receive(each, other, [op for op in readers if op not in split.ops])
    for op in reversed(split.ops):
        op.detach()
        op.erase()
    drop_weights(split.program.body.block, read)


def drop_weights(block: Block, read: Set[Operation]) -> None:
    """Erase what only experts read: weights, and what is made of weights alone."""
    for op in reversed(list(block.ops)):
        if isinstance(op, stg.RepeatOp):
            drop_weights(op.body.block, read)
            without_unread_slices(op)
        elif op in read and not any(result.uses for result in op.results):
            op.detach()
            op.erase()


def send(crossing: Crossing, pool: str) -> None:
    value = crossing.value
    made = dist.TowerSendOp(value, pool, crossing.direction, crossing.number)
    if isinstance(value.owner, Operation):
        insert_after(value.owner, [made], NAME)
    else:
        first = value.owner.first_op
        assert first is not None
        insert_before(first, [made], NAME)


def receive(crossing: Crossing, pool: str, readers: Sequence[Operation]) -> None:
    value = crossing.value
    assert isinstance(value.type, TensorType)
    block = block_of(readers[0])
    first = next(op for op in block.ops if op in readers)
    tokens = chosen = None
    if crossing.dispatch is not None:
        tokens = crossing.dispatch.tokens.data
        chosen = stg.tensor_type(crossing.dispatch.experts).names
    made = dist.TowerRecvOp(
        None, tokens, chosen, pool, crossing.direction, crossing.number, like=value.type
    )
    made.value.name_hint = value.name_hint
    insert_before(first, [made], NAME)
    value.replace_uses_with_if(made.value, lambda use: use.operation in readers)


def wrong(message: str, op: Operation, help_: str) -> CompileError:
    return refused("E0423", message, span_of(op.location), help=help_)
