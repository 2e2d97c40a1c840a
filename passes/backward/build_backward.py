"""Append the gradient of the loss for every weight.

Before `build-backward`:

    stg.program "M" (%t : !stg.tensor<[B, V], bf16>, %c : !stg.tensor<[B], i32>) {
      %w = stg.weight "w" : !stg.tensor<[V, U], bf16>
      %y = stg.contract %t, %w over [V]
        : (!stg.tensor<[B, V], bf16>, !stg.tensor<[V, U], bf16>) -> !stg.tensor<[B, U], bf16>
      %loss, %lse = stg.cross_entropy %y, %c
        : (!stg.tensor<[B, U], bf16>, !stg.tensor<[B], i32>) -> (!stg.tensor<[], fp32>, !stg.tensor<[B], fp32>)
      stg.output %loss : !stg.tensor<[], fp32>
    }

After:

    stg.program "M" (%t : !stg.tensor<[B, V], bf16>, %c : !stg.tensor<[B], i32>) {
      %w = stg.weight "w" : !stg.tensor<[V, U], bf16>
      %y = stg.contract %t, %w over [V]
        : (!stg.tensor<[B, V], bf16>, !stg.tensor<[V, U], bf16>) -> !stg.tensor<[B, U], bf16>
      %loss, %lse = stg.cross_entropy %y, %c
        : (!stg.tensor<[B, U], bf16>, !stg.tensor<[B], i32>) -> (!stg.tensor<[], fp32>, !stg.tensor<[B], fp32>)
      %one = stg.constant "1" {made_by = "build-backward", phase = "bwd"} : !stg.tensor<[], fp32>
      %dy = stg.cross_entropy_grad %one, %y, %c, %lse {made_by = "build-backward", phase = "bwd"}
        : (!stg.tensor<[], fp32>, !stg.tensor<[B, U], bf16>, !stg.tensor<[B], i32>, !stg.tensor<[B], fp32>) -> !stg.tensor<[B, U], bf16>
      %dw = stg.contract %dy, %t over [B] {made_by = "build-backward", phase = "wgrad"}
        : (!stg.tensor<[B, U], bf16>, !stg.tensor<[B, V], bf16>) -> !stg.tensor<[V, U], bf16>
      stg.output %loss : !stg.tensor<[], fp32> weights %w : !stg.tensor<[V, U], bf16> gradients %dw : !stg.tensor<[V, U], bf16>
    }

Reverse-mode differentiation of the rolled program: a repeat gets a second one, in reverse, that slices what
the first one saved. What is saved is what gradient rules read, no more. Gradients of weights carry the phase
`wgrad`, so that they can be scheduled apart (Qi et al. 2024). Where the gradient of one op is several ops, `gradient_of` says so: what
they read is freed together, as a node of autograd frees what it saved.

On a program of one device a cotangent has its value's sharding. One that comes out partial is reduced,
except over axes that nothing the value depends on is split over: there it stays partial on its way to the
weights, where it is reduced with their gradients. So does the cotangent of a head of keys over ranks that share it (`dist.rule ... copies`).

A model without a loss is E0217, an op without a gradient E0218, a program with a backward pass E0705.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec.analysis.dependence import Dependence
from stagec.analysis.placement import PlacementRule, rules_of
from stagec.analysis.sizes import module_of
from stagec.diagnostics import refused, span_of
from stagec.dialects import dist, stg
from stagec.dialects.op import block_of, first_op
from stagec.dialects.types import TensorType, tensor_of
from stagec.dialects.use_def import before_placing, followed, from_stack, through, weight_path
from stagec.rewriting import inherit, output_of, programs
from stagec.symbolic import ONE

NAME = "build-backward"

before_converting = through(stg.CastOp, stg.QuantizeOp, dist.ReshardOp)


@dataclass(frozen=True)
class BuildBackward(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rules = rules_of(op)
        for program in programs(op):
            differentiate(program, rules)


def losses_of(program: stg.ProgramOp, output: stg.OutputOp) -> Sequence[SSAValue]:
    """The loss; nothing of a part that hands over what it computes. E0217 where there is none, E0705 where there is a backward pass."""
    if any(stg.phase_of(op) in ("bwd", "wgrad") for op in program.walk()):
        message = f"`{program.model.data}` has a backward pass already"
        help_ = f"run `{NAME}` once, on IR from before it: `--stop-after lower` prints some"
        raise refused("E0705", message, span_of(output.location), help=help_)
    hands_over = any(isinstance(op, dist.TowerSendOp) for op in program.body.block.ops)
    losses = list(output.values)
    if len(losses) == (not hands_over) and not any(stg.tensor_type(loss).dims for loss in losses):
        return losses
    notes, help_ = [], "end the model with `loss = ...`, a single number"
    if is_served(program):
        # The text may have a loss.
        notes = ["the plan serves, and what it serves is computed without a loss"]
        help_ = "choose a plan without `serve`"
    message = f"`{program.model.data}` has no loss to differentiate"
    raise refused("E0217", message, span_of(output.location), notes=notes, help=help_)


def is_served(program: stg.ProgramOp) -> bool:
    """Whether a program is an iteration of serving."""
    plan = first_op(module_of(program), dist.PlanOp)
    has_caches = any(isinstance(op, stg.CacheOp) for op in program.body.block.ops)
    return has_caches or (plan is not None and plan.new_dim is not None)


def differentiate(program: stg.ProgramOp, rules: Sequence[PlacementRule]) -> None:
    """Append the backward pass of the program's loss, its one output."""
    block = program.body.block
    output = output_of(program)
    losses = losses_of(program, output)
    weights = [op.weight for op in block.ops if isinstance(op, stg.WeightOp)]
    level = BackwardBlock(Dependence(program, rules), block, output)
    forward = [op for op in block.ops if op is not output]
    for loss in losses:
        one = level.add(stg.ConstantOp("1", stg.tensor_type(loss).dtype), output, "bwd")
        level.contribute(loss, one.results[0])
    level.run(forward)
    for op in forward:
        if isinstance(op, stg.EmbeddingOp) and op.has_gradient is not None:
            level.leave_as_read(op.result)
    reached = [w for w in weights if w in level.terms]
    gradients = []
    for weight in reached:
        level.current = weight.op
        gradients.append(level.cotangent(weight))
    finished = stg.OutputOp(losses, reached, gradients)
    inherit(finished, output)
    Rewriter.replace_op(output, finished)


@dataclass
class BackwardBlock(stg.BackwardPass):
    """The backward pass of one block: of the program, or of the body of a repeat.

    Ops go before `end`, in the block where the backward pass is built.
    """

    dependence: Dependence
    forward: Block
    end: Operation
    outer: BackwardBlock | None = None
    repeat: stg.RepeatOp | None = None
    """The forward repeat whose body this is."""
    mirrored: Block | None = None
    """The body of the backward repeat."""
    terms: dict[SSAValue, list[SSAValue]] = field(default_factory=dict)
    """The cotangent of each forward value so far, as terms of a sum."""
    seen: dict[SSAValue, SSAValue] = field(default_factory=dict)
    """Forward values of this body as the backward body sees them: as slices."""
    slices: list[SSAValue] = field(default_factory=list)
    """The stacks that the backward repeat slices, as forward values of the outer block."""
    current: Operation | None = None
    numbers: Iterator[int] = field(default_factory=itertools.count)
    """The numbers of the ops that are differentiated."""
    made: list[Operation] = field(default_factory=list)
    """The ops of the gradient that is being built."""
    added_to: dict[SSAValue, None] = field(default_factory=dict)
    """The values whose cotangents have got another term."""
    contributed: set[SSAValue] = field(default_factory=set)
    """The operands that it has contributed to."""

    def leave_as_read(self, rows: SSAValue) -> None:
        """What is looked up in a frozen table has its gradient where it is read: that is not placed as the lookup makes it."""
        for term in self.terms.get(rows, ()):
            if isinstance(term.owner, dist.ReshardOp) and not term.uses.get_length():
                Rewriter.erase_op(term.owner)

    # What gradients of ops may do (see `stg.BackwardPass`)

    def wants(self, operand: SSAValue) -> bool:
        return self.dependence.on_weights(operand)

    def use(self, value: SSAValue) -> SSAValue:
        """A forward value where the backward pass can read it: it is kept until then. What the backward pass makes is itself."""
        if self.repeat is None:
            return value
        if value in self.seen:
            return self.seen[value]
        if is_inside(value, self.forward):
            stack = self.save(value)
            self.seen[value] = self.slice(stack)
            return self.seen[value]
        assert self.outer is not None
        return self.outer.use(value)

    def insert(self, op: Operation, operand: SSAValue) -> Operation:
        assert self.current is not None
        if not isinstance(op, Operation) or op.parent is not None:
            what = (
                f"`{op.name}`, which is somewhere already"
                if isinstance(op, Operation)
                else repr(op)
            )
            message = f"the op `{self.current.name}`: `gradient` inserts {what}, and not a new op"
            raise refused("E0713", message, span_of(self.current.location))
        phase = "bwd" if self.dependence.on_data(operand) else "wgrad"
        op.operands = [self.use(operand) for operand in op.operands]
        return self.add(op, self.current, phase)

    def contribute(self, operand: SSAValue, cotangent: SSAValue) -> None:
        self.check_cotangent(operand, cotangent)
        self.contributed.add(operand)
        source = followed(operand, before_placing)
        if not self.wants(source):
            return
        if source is not operand and not self.is_reduced(cotangent, source):
            # Readers of one gathered value: their terms are added up before they move.
            source = operand
        self.add_term(source, cotangent, at_once=moves_at_once(operand))

    def reduced(self, cotangent: SSAValue, partial: Sequence[str], operand: SSAValue) -> SSAValue:
        source = stg.tensor_type(cotangent)
        if set(source.partial) == set(partial):
            return cotangent
        target = source.with_partial(partial)
        return self.insert(dist.ReshardOp(cotangent, target), operand).results[0]

    def added(self, terms: Sequence[SSAValue], operand: SSAValue) -> SSAValue:
        common = set.intersection(*(set(stg.tensor_type(term).partial) for term in terms))
        total, *others = (self.reduced(term, sorted(common), operand) for term in terms)
        for term in others:
            total = self.insert(stg.AddOp(total, term), operand).results[0]
        return total

    def add_term(self, source: SSAValue, cotangent: SSAValue, *, at_once: bool = False) -> None:
        term = self.converted(cotangent, source, at_once=at_once)
        self.terms.setdefault(source, []).append(term)
        self.added_to[source] = None

    def is_reduced(self, cotangent: SSAValue, source: SSAValue) -> bool:
        """Whether a term is reduced on its way to the value that was moved."""
        spread = self.dependence.split_axes(source)
        return any(axis in spread for axis in stg.tensor_type(cotangent).partial)

    # The walk

    def run(self, ops: Sequence[Operation]) -> None:
        for op in reversed(ops):
            self.add_up()
            if isinstance(op, dist.TowerSendOp):
                self.take_gradient(op)
                continue
            if isinstance(op, dist.TowerRecvOp):
                self.give_gradient(op)
                continue
            if not any(r in self.terms for r in op.results):
                continue
            self.current = op
            if isinstance(op, stg.RepeatOp):
                RepeatGradient(self, op).build()
            elif isinstance(op, dist.ReshardOp):
                source, at_once = followed(op.operand, before_placing), moves_at_once(op.result)
                self.add_term(source, self.cotangent(op.result), at_once=at_once)
            elif not isinstance(op, stg.WeightOp | stg.ConstantOp):
                dys = [self.cotangent(r) if r in self.terms else None for r in op.results]
                self.differentiate(op, dys)

    def take_gradient(self, op: dist.TowerSendOp) -> None:
        """Go on from what another pool reads, which hands its gradient back."""
        if self.wants(op.value):
            self.current = op
            made = stg.tensor_type(op.value).with_partial(())
            taken = dist.TowerRecvOp(
                pool=op.pool, direction="backward", number=op.number, like=made
            )
            self.add(taken, op, "bwd")
            self.contribute(op.value, taken.value)

    def give_gradient(self, op: dist.TowerRecvOp) -> None:
        """Hand the gradient of what another pool made back to it, if it trains that: zeros where the loss does not depend on it."""
        if op.trained is None:
            return
        self.current = op
        if op.value in self.terms:
            gradient = self.reduced_to(self.cotangent(op.value), set())
        else:
            gradient = self.add(stg.ZerosOp(like=stg.tensor_type(op.value)), op, "bwd").results[0]
        self.add(dist.TowerSendOp(gradient, op.pool, "backward", op.number), op, "bwd")

    def differentiate(self, op: Operation, dys: stg.Cotangents) -> None:
        if not isinstance(op, stg.TensorOp):
            message = f"`{op.name}` has no gradient rule"
            help = "an op with a gradient is a `stg.TensorOp`"
            raise refused("E0218", message, span_of(op.location), help=help)
        self.made.clear()
        self.contributed.clear()
        op.gradient(dys, self)
        self.check_contributed(op, dys)
        self.mark_made()

    def add_up(self) -> None:
        """Add what the gradients of an op contributed to what others have, as autograd does once it has them all."""
        for source in self.added_to:
            first, *others = self.terms[source]
            terms = [first]
            for term in others:
                if term.type == terms[-1].type:
                    terms[-1] = self.add_terms(terms[-1], term, source)
                else:
                    terms.append(term)
            self.terms[source] = terms
        self.added_to.clear()

    def check_cotangent(self, operand: SSAValue, cotangent: SSAValue) -> None:
        """E0713 for what is no cotangent of an operand: that has its dims, and an op of the backward pass makes it."""
        message = ""
        if not isinstance(operand, SSAValue):
            message = f"contributes to {operand!r}, and an operand is a value, as `self.x` is"
        elif not isinstance(cotangent, SSAValue) or not isinstance(cotangent.type, TensorType):
            message = f"is given {cotangent} as a cotangent: it is a tensor that an op makes"
        elif isinstance(cotangent, OpResult) and cotangent.op.parent is None:
            message = f"is given what `{cotangent.op.name}` makes, which is nowhere: `gradients.insert` puts it into the backward pass"
        elif set(cotangent.type.names) != set(stg.tensor_type(operand).names):
            own = stg.tensor_type(operand).body
            message = f"makes <{cotangent.type.body}> the cotangent of an operand that is <{own}>: it has the same dims"
        if message:
            op = self.current
            assert op is not None
            text = f"the op `{op.name}`: `gradient` {message}"
            raise refused("E0713", text, span_of(op.location))

    def check_contributed(self, op: stg.TensorOp, dys: stg.Cotangents) -> None:
        """E0713 for an operand that the gradient forgot, where the loss depends on all results that are not kept for it alone."""
        shown = dys[: len(dys) - op.NUM_STATISTICS]
        if None in shown:
            return
        for number, operand in enumerate(op.operands):
            if self.wants(operand) and not self.is_contributed(operand):
                message = f"the op `{op.name}`: `gradient` says nothing of operand {number}, <{stg.tensor_type(operand).body}>, behind which weights are"
                help = "contribute its cotangent"
                raise refused("E0713", message, span_of(op.location), help=help)

    def is_contributed(self, operand: SSAValue) -> bool:
        """Whether a cotangent is contributed to this operand, or directly to the value that the operand is a form of in fewer bits."""
        value: SSAValue | None = operand
        while value is not None and value not in self.contributed:
            value = before_converting(value)
        return value is not None

    def mark_made(self) -> None:
        """Several ops that make the gradients of one free what they read of it together, as a node of autograd does."""
        made = {result for op in self.made for result in op.results}
        read = [[x for x in op.operands if x not in made] for op in self.made]
        last = max((number for number, values in enumerate(read) if values), default=0)
        if any(x not in read[last] for values in read[:last] for x in values):
            number = IntegerAttr(next(self.numbers), i64)
            for op in self.made:
                stg.marks(op)[stg.GRADIENT_OF] = number

    def add(self, op: Operation, origin: Operation, phase: str) -> Operation:
        stg.marks(op)["phase"] = StringAttr(phase)
        inherit(op, origin, NAME)
        block_of(self.end).insert_op_before(op, self.end)
        self.made.append(op)
        return op

    def converted(self, cotangent: SSAValue, source: SSAValue, *, at_once: bool) -> SSAValue:
        """A term in the sharding of its value; partial only where that may be carried on."""
        value_type, term_type = stg.tensor_type(source), stg.tensor_type(cotangent)
        spread = self.dependence.split_axes(source)
        spread -= axes_of_tokens(source)
        carried = sorted(a for a in term_type.partial if a not in spread)
        target = TensorType.of(value_type.dims, term_type.dtype, carried)
        if target == term_type:
            return cotangent
        phase = "bwd" if self.dependence.on_data(source) else "wgrad"
        assert self.current is not None
        reshard = dist.ReshardOp(cotangent, target, at_once=at_once)
        return self.add(reshard, self.current, phase).results[0]

    def cotangent(self, value: SSAValue) -> SSAValue:
        """The sum of a value's terms, where they are all known."""
        terms = self.terms[value]
        common = set(tensor_of(terms[0].type).partial)
        for term in terms[1:]:
            common &= set(tensor_of(term.type).partial)
        total = self.reduced_to(terms[0], common)
        for term in terms[1:]:
            term = self.reduced_to(term, common)
            total = self.add_terms(total, term, value)
        self.terms[value] = [total]
        return total

    def add_terms(self, left: SSAValue, right: SSAValue, value: SSAValue) -> SSAValue:
        assert self.current is not None
        phase = "bwd" if self.dependence.on_data(value) else "wgrad"
        return self.add(stg.AddOp(left, right), self.current, phase).results[0]

    def reduced_to(self, term: SSAValue, partial: set[str]) -> SSAValue:
        term_type = tensor_of(term.type)
        if set(term_type.partial) == partial:
            return term
        assert self.current is not None
        target = term_type.with_partial(sorted(partial))
        return self.add(dist.ReshardOp(term, target), self.current, "bwd").results[0]

    # Values of the forward pass

    def save(self, value: SSAValue) -> SSAValue:
        """Let the forward repeat stack a value of its body; a slice's stack exists already."""
        repeat = self.repeat
        assert repeat is not None
        if isinstance(value, BlockArgument) and value.index >= repeat.num_carried:
            return repeat.operands[value.index]
        yield_op = repeat.yield_op
        for position, yielded in enumerate(yield_op.values):
            if yielded is value and position >= repeat.num_carried:
                return repeat.results[position]
        return self.grow(value)

    def grow(self, value: SSAValue) -> SSAValue:
        """Yield one more value from the forward repeat."""
        old = self.repeat
        assert old is not None
        results = list(old.results)
        grown = stg.grown(old, [value])
        moved: dict[SSAValue, SSAValue] = dict(zip(results, grown.results, strict=False))
        self.slices = [moved.get(stack, stack) for stack in self.slices]
        self.repeat = grown
        assert self.outer is not None
        self.outer.replaced(moved, grown.results[-1])
        return grown.results[-1]

    def replaced(self, moved: Mapping[SSAValue, SSAValue], saved: SSAValue) -> None:
        """A repeat of this block gave way to one that also stacks `saved`."""
        for before, after in moved.items():
            if before in self.terms:
                self.terms[after] = self.terms.pop(before)
            if before in self.added_to:
                self.added_to[after] = self.added_to.pop(before)
            if before in self.seen:
                self.seen[after] = self.seen.pop(before)
            self.dependence.moved(before, after)
        self.slices = [moved.get(stack, stack) for stack in self.slices]
        self.dependence.saved(saved)

    def slice(self, stack: SSAValue) -> SSAValue:
        """A slice of a stack, as an argument of the backward body."""
        assert self.mirrored is not None
        self.slices.append(stack)
        return stg.slice_arg(self.mirrored, stack)


def is_weight(value: SSAValue) -> bool:
    """Whether it is a weight, or a layer's of a stack."""
    return bool(weight_path(followed(value, from_stack)))


@dataclass
class RepeatGradient:
    """Builds the backward repeat of one forward repeat."""

    level: BackwardBlock
    repeat: stg.RepeatOp

    def build(self) -> None:
        level, repeat = self.level, self.repeat
        wanted = [
            i for i, r in enumerate(repeat.carry_results) if level.wants(r) or r in level.terms
        ]
        # What one layer alone is given may need no gradient: then no more is made of it.
        ends = {
            i for i in wanted if repeat.count.data == ONE and not level.wants(repeat.carry_args[i])
        }
        active = [i for i in wanted if i not in ends]
        body = Block()
        inner_end = stg.YieldOp([])
        body.add_op(inner_end)
        inner = BackwardBlock(level.dependence, repeat.body.block, inner_end, level, repeat, body)
        inner.numbers = level.numbers
        inner.current = repeat
        starts = [self.start(i) for i in active]
        for position in sorted(ends):
            inner.contribute(repeat.yield_op.operands[position], self.start(position))
        for position in active:
            argument = repeat.carry_args[position]
            carried_type = stg.tensor_type(argument).with_partial(())
            cotangent = body.insert_arg(carried_type, len(body.args))
            inner.contribute(repeat.yield_op.operands[position], cotangent)
        forward_ops = [op for op in repeat.body.block.ops if not isinstance(op, stg.YieldOp)]
        inner.run(forward_ops)
        captured = Captured(inner, len(active))
        starts += captured.start(level)
        self.finish(inner, active, captured, starts)

    def start(self, position: int) -> SSAValue:
        """The cotangent of what a carried value is in the end."""
        result = self.repeat.carry_results[position]
        if result in self.level.terms:
            return self.level.reduced_to(self.level.cotangent(result), set())
        zeros = stg.ZerosOp(like=stg.tensor_type(result).with_partial(()))
        return self.level.add(zeros, self.repeat, "bwd").results[0]

    def finish(
        self,
        inner: BackwardBlock,
        active: Sequence[int],
        captured: Captured,
        starts: Sequence[SSAValue],
    ) -> None:
        level, repeat = self.level, inner.repeat
        assert repeat is not None and inner.mirrored is not None
        carried = [self.carried_on(inner, repeat.carry_args[i]) for i in active]
        carried += captured.totals()
        weights = [a for a in repeat.slice_args if a in inner.terms]
        yielded = [inner.cotangent(a) for a in weights]
        finished = stg.YieldOp([*carried, *yielded])
        Rewriter.replace_op(inner.end, finished)
        stacks = [level.use(stack) for stack in inner.slices]
        is_back = repeat.reverse is None
        backward = stg.RepeatOp(
            repeat.count.data, starts, stacks, inner.mirrored, reverse=is_back, first=repeat.first
        )
        backward.layers_of = repeat.layers_of
        level.current = repeat
        level.add(backward, repeat, "bwd")
        for position, result in zip(active, backward.results, strict=False):
            level.contribute(repeat.operands[position], result)
        captured.contribute(level, backward.results[len(active) : len(starts)])
        for argument, result in zip(weights, backward.results[len(starts) :], strict=True):
            stack = repeat.operands[argument.index]
            level.terms.setdefault(stack, []).append(result)

    def carried_on(self, inner: BackwardBlock, argument: BlockArgument) -> SSAValue:
        """The cotangent that one iteration hands to the one before it, in the dtype in which the last one gets it."""
        dtype = stg.tensor_type(argument).dtype
        if argument in inner.terms:
            total = inner.reduced_to(inner.cotangent(argument), set())
            if stg.tensor_type(total).dtype == dtype:
                return total
            # A cast from few bits leaves what comes back as it is.
            return inner.add(stg.CastOp(total, dtype), self.repeat, "bwd").results[0]
        zeros = stg.ZerosOp(like=stg.tensor_type(argument).with_partial(()))
        return inner.add(zeros, self.repeat, "bwd").results[0]


@dataclass
class Captured:
    """Values from outside that a repeat's body reads: their cotangents add up over iterations.

    A sum may stay partial where its terms may: it is reduced once, at the end.
    """

    inner: BackwardBlock
    num_carried: int
    """What the backward repeat carries before these sums."""
    values: list[SSAValue] = field(init=False)
    terms: list[SSAValue] = field(init=False)

    def __post_init__(self) -> None:
        inner = self.inner
        self.values = [v for v in inner.terms if not is_inside(v, inner.forward)]
        self.terms = [inner.cotangent(v) for v in self.values]

    def start(self, level: BackwardBlock) -> list[SSAValue]:
        """Zeros, outside of the repeat."""
        zeros = [stg.ZerosOp(like=stg.tensor_type(term)) for term in self.terms]
        return [level.add(op, self.repeat, "bwd").results[0] for op in zeros]

    def totals(self) -> list[SSAValue]:
        """The sums after one more iteration."""
        made = []
        assert self.inner.mirrored is not None
        for position, (value, term) in enumerate(zip(self.values, self.terms, strict=True)):
            so_far = self.inner.mirrored.insert_arg(term.type, self.num_carried + position)
            made.append(self.inner.add_terms(so_far, term, value))
        return made

    @property
    def repeat(self) -> stg.RepeatOp:
        assert self.inner.repeat is not None
        return self.inner.repeat

    def contribute(self, level: BackwardBlock, totals: Sequence[SSAValue]) -> None:
        for value, total in zip(self.values, totals, strict=True):
            level.contribute(value, total)


def is_inside(value: SSAValue, block: Block) -> bool:
    """Whether a value is defined in a block or in a region within it."""
    return block.is_ancestor(value.owner)


def moves_at_once(value: SSAValue) -> bool:
    """Whether what makes this placement does several dims in one: then what brings its cotangent back does, too."""
    while isinstance(value, OpResult) and isinstance(value.op, dist.ReshardOp):
        if value.op.at_once is not None:
            return True
        value = value.op.operand
    return False


def axes_of_tokens(value: SSAValue) -> set[str]:
    """The axes over which tokens were gathered for their experts, or weights of these were. The terms of their cotangents are added up on the way back."""
    if not isinstance(value, OpResult) or not isinstance(
        value.op, stg.DispatchOp | stg.SendWeightsOp
    ):
        return set()
    gather = value.op.operands[0].owner
    if not isinstance(gather, dist.ReshardOp) or gather.at_once is None:
        return set()
    return set(gather.source.split_axes) - set(gather.target.split_axes)
