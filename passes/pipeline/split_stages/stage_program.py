"""The program of one kind of pipeline stage, cut out of a copy of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter

from stagec.dialects import dist, stg
from stagec.dialects.op import ancestor_in
from stagec.dialects.types import StackType, TensorType, tensor_of
from stagec.passes.pipeline.split_stages.cuts import Cuts, StageContents, is_portable
from stagec.passes.pipeline.split_stages.transfer_parts import TransferParts
from stagec.rewriting import inherit, output_of, set_type
from stagec.symbolic import ONE, Size, symbol

NAME = "split-stages"
"""The pass that these ops are made by."""


@dataclass
class StageProgram:
    """The program of one kind of stage, cut out of a copy of the whole."""

    program: stg.ProgramOp
    cuts: Cuts
    part: StageContents
    entry: int | None
    """The repeat whose carried values come from the stage before; None for the first stage."""
    leave: int | None
    """The repeat whose carried values go to the stage after; None for the last."""
    travel: TransferParts = field(default_factory=TransferParts.whole)
    clone: stg.ProgramOp = field(init=False)
    values: dict[SSAValue, SSAValue] = field(default_factory=dict)
    ops: dict[Operation, Operation] = field(default_factory=dict)
    arrived: dict[str, list[SSAValue]] = field(default_factory=dict)
    """What is received in each direction, carried values first."""
    parts: dict[SSAValue, SSAValue] = field(default_factory=dict)
    """For a value that was gathered on arrival, what was received."""

    def build(self, name: str) -> None:
        self.clone = self.program.clone(self.values)
        stg.marks(self.clone)["kind"] = StringAttr(name)
        for old, new in zip(self.program.walk(), self.clone.walk(), strict=True):
            self.ops[old] = new
            new.location = old.location
        has_backward = bool(self.cuts.backward)
        arrivals = [self.receive("forward", self.entry)]
        departures = [self.departing("forward", self.leave)]
        if has_backward:
            arrivals.append(self.receive("backward", self.leave))
            departures.append(self.departing("backward", self.entry))
        for direction, values in zip(("forward", "backward"), departures, strict=False):
            self.send(direction, values)
        self.keep_gradients()
        self.prune()
        self.forget_wholes()
        self.rename_counts()

    # What is here

    def has(self, op: Operation) -> bool:
        """Whether a top-level op of the whole loop is in this stage."""
        if op in self.cuts.sections:
            return self.cuts.sections[op] in self.part.sections
        return self.part.layers[self.cuts.element(op) // 2]

    def holder(self, op: Operation) -> Operation:
        """The top-level op of the loop that contains an op."""
        return ancestor_in(self.cuts.loop.body.block, op)

    def cut(self, direction: str, at: int) -> stg.RepeatOp | None:
        """The repeat that is cut; nothing in the backward pass if that has none."""
        return (self.cuts.forward if direction == "forward" else self.cuts.backward)[at]

    def is_between(self, direction: str, arriving: bool) -> bool:
        """Whether the cut that values cross is between two repeats: all layers before it are done."""
        return self.part.between[0 if arriving is (direction == "forward") else 1]

    def carried(self, direction: str, at: int, arriving: bool) -> list[int]:
        """What a cut repeat carries, by position, that crosses: not the sums that each stage begins itself."""
        cut = self.cut(direction, at)
        if cut is None:
            return []
        backward = direction == "backward"
        between = self.is_between(direction, arriving)
        return [
            position
            for position, (start, end) in enumerate(zip(cut.carried, cut.results, strict=False))
            if not (backward and isinstance(start.owner, stg.ZerosOp))
            or not (between or self.is_collected(end))
        ]

    def is_collected(self, value: SSAValue) -> bool:
        """Whether it is a weight's gradient, or a term of it, and nothing else: then each stage has a term of its own."""
        return all(self.collects(use.operation) for use in value.uses)

    def collects(self, user: Operation) -> bool:
        """Whether an op adds up, or hands on, a weight's gradient and nothing else."""
        return self.holder(user) is user and (
            isinstance(user, stg.YieldOp)
            or is_weight_sum(user)
            or (hands_on(user) and self.is_collected(user.results[0]))
        )

    def crossing(self, direction: str, at: int, arriving: bool) -> list[SSAValue]:
        """Values of the whole program that cross in a repeat besides what it carries, in their order."""
        forward = direction == "forward"
        done = forward and self.is_between(direction, arriving)
        cut, middle = self.cut(direction, at), 2 * at + 1
        found: list[SSAValue] = []
        for op in self.cuts.loop.body.block.ops:
            if isinstance(op, stg.YieldOp) or self.cuts.is_forward(op) is not forward:
                continue
            element = self.cuts.element(op)
            upstream = element < middle if forward else element > middle
            if not upstream:
                continue
            found += [
                result
                for result in op.results
                if isinstance(result.type, TensorType)
                and not is_portable(result)
                and self.is_read_beyond(result, None if done else cut, middle, forward)
            ]
        return found

    def is_read_beyond(
        self, value: SSAValue, cut: stg.RepeatOp | None, middle: int, forward: bool
    ) -> bool:
        """Whether it is read in the repeat that is cut, if it is not done, or after it."""
        for use in value.uses:
            holder = self.holder(use.operation)
            if self.collects(use.operation):
                continue
            if self.cuts.is_forward(holder) is not forward:
                continue
            if holder is cut:
                if use.operation is not cut:
                    return True
                continue
            element = self.cuts.element(holder)
            if element > middle if forward else element < middle:
                return True
        return False

    # What is handed over

    def receive(self, direction: str, at: int | None) -> list[Operation]:
        """Replace what other stages make by what is received."""
        if at is None:
            return []
        forward = direction == "forward"
        cut = self.cut(direction, at)
        made: list[Operation] = []
        anchor = self.first_op(direction)
        self.arrived[direction] = []

        def arrive(value_type: object) -> SSAValue:
            whole = tensor_of(value_type)
            recv = dist.StageRecvOp(direction, len(made), like=self.on_the_way(whole, forward))
            self.insert(recv, anchor, direction)
            made.append(recv)
            value = self.place(recv.value, whole, anchor, direction)
            self.parts[value] = recv.value
            self.arrived[direction].append(value)
            return value

        for position in self.carried(direction, at, arriving=True):
            assert cut is not None
            arrived = arrive(cut.carried[position].type)
            if self.has(cut):
                self.ops[cut].operands[position] = arrived
            else:
                self.replace(cut.results[position], arrived)
        for value in self.crossing(direction, at, arriving=True):
            self.replace(value, arrive(value.type))
        return made

    def replace(self, value: SSAValue, arrived: SSAValue) -> None:
        """Here a value of the whole program is what arrived."""
        self.values[value].replace_all_uses_with(arrived)
        self.values[value] = arrived

    def on_the_way(self, tensor: TensorType, before: bool) -> TensorType:
        """As what a value travels between this stage and the one before or after it."""
        is_scattered = self.part.scattered[0 if before else 1]
        return self.travel.type_of(tensor) if is_scattered else tensor

    def place(
        self, value: SSAValue, target: TensorType, before: Operation, direction: str
    ) -> SSAValue:
        """A value in another placement, if that is one."""
        if value.type == target:
            return value
        reshard = dist.ReshardOp(value, target)
        self.insert(located(reshard, value), before, direction)
        return reshard.result

    def departing(self, direction: str, at: int | None) -> list[SSAValue]:
        """What goes to the next stage in a direction: carried values, then others that cross."""
        if at is None:
            return []
        cut = self.cut(direction, at)
        crossing = [self.values[v] for v in self.crossing(direction, at, arriving=False)]
        if cut is None:
            return crossing
        clone = self.ops[cut]
        assert isinstance(clone, stg.RepeatOp)
        positions = self.carried(direction, at, arriving=False)
        if not self.has(cut) and not self.leads_to(direction, at):
            # A stage without layers, between others: what comes goes on.
            return [*self.arrived[direction][: len(positions)], *crossing]
        carried = clone.results if self.has(cut) else clone.carried
        return [*(carried[position] for position in positions), *crossing]

    def leads_to(self, direction: str, at: int) -> bool:
        """Whether the stage has the section whose results the cut repeat starts from."""
        return (at if direction == "forward" else at + 1) in self.part.sections

    def send(self, direction: str, values: Sequence[SSAValue]) -> None:
        anchor = self.first_op("backward") if direction == "forward" else self.yield_op
        for number, value in enumerate(values):
            target = self.on_the_way(tensor_of(value.type), before=direction == "backward")
            part = self.parts.get(value)
            if part is None or part.type != target:
                part = self.place(value, target, anchor, direction)
            send = dist.StageSendOp(part, direction, number)
            self.insert(located(send, value), anchor, direction)

    @property
    def loop(self) -> stg.AccumulateOp:
        clone = self.ops[self.cuts.loop]
        assert isinstance(clone, stg.AccumulateOp)
        return clone

    @property
    def yield_op(self) -> stg.YieldOp:
        return self.loop.yield_op

    def first_op(self, direction: str) -> Operation:
        """Before this op things of a direction begin."""
        for op in self.loop.body.block.ops:
            is_backward = stg.phase_of(op) != "fwd"
            if is_backward == (direction == "backward") or isinstance(op, stg.YieldOp):
                return op
        return self.yield_op

    def insert(self, op: Operation, before: Operation, direction: str) -> None:
        stg.marks(op)["phase"] = StringAttr("fwd" if direction == "forward" else "bwd")
        inherit(op, before, NAME)
        stg.marks(op).pop("scope", None)
        self.loop.body.block.insert_op_before(op, before)

    # What stays

    def keep_gradients(self) -> None:
        """Yield the gradients that this stage makes, or its terms of them."""
        whole = self.cuts.loop.yield_op
        loop, output = self.loop, output_of(self.clone)
        kept: list[tuple[SSAValue, SSAValue, SSAValue]] = []
        for value, total in zip(whole.values, self.cuts.loop.sums, strict=True):
            term = self.term(value)
            if term is None:
                continue
            clone_total = self.values[total]
            for weight, gradient in zip(output.weights, output.gradients, strict=True):
                if gradient is clone_total:
                    kept.append((term, clone_total, weight))
        terms = [term for term, _, _ in kept]
        end = stg.YieldOp(terms)
        end.location = self.yield_op.location
        Rewriter.replace_op(self.yield_op, end)
        finished = stg.OutputOp([], [], [])
        inherit(finished, output)
        Rewriter.replace_op(output, finished)
        types = [total.type for _, total, _ in kept]
        grown = stg.AccumulateOp(loop.axis.data, loop.detach_region(loop.body), types)
        inherit(grown, loop)
        stg.marks(grown).take(stg.marks(loop))
        self.ops[self.cuts.loop] = grown
        block = self.clone.body.block
        block.insert_op_before(grown, loop)
        loop.detach()
        loop.erase(safe_erase=False)
        weights = [weight for _, _, weight in kept]
        values = self.loss(grown)
        last = stg.OutputOp(values, weights, grown.sums)
        inherit(last, finished)
        Rewriter.replace_op(finished, last)

    def loss(self, loop: stg.AccumulateOp) -> list[SSAValue]:
        return []

    def term(self, value: SSAValue) -> SSAValue | None:
        """The part of a gradient that is made here; a sum over stages keeps the terms of this one."""
        owner = value.owner
        assert isinstance(owner, Operation)
        holder = self.holder(owner)
        if is_weight_sum(owner) and owner is holder:
            terms = [t for t in map(self.term, owner.operands) if t is not None]
            if terms == [self.values[t] for t in owner.operands] and self.has(holder):
                return self.values[value]
            if len(terms) == 2:
                made = stg.AddOp(terms[0], terms[1])
                self.insert(located(made, terms[0]), self.yield_op, "backward")
                stg.marks(made)["phase"] = StringAttr("wgrad")
                return made.result
            return terms[0] if terms else None
        if hands_on(owner) and owner is holder:
            inner = self.term(owner.operands[0])
            if inner is None or (self.has(holder) and inner is self.values[owner.operands[0]]):
                return None if inner is None else self.values[value]
            made = owner.clone({owner.operands[0]: inner})
            self.insert(located(made, inner), self.yield_op, "backward")
            stg.marks(made)["phase"] = StringAttr("wgrad")
            return made.results[0]
        return self.values[value] if self.has(holder) else None

    def prune(self) -> None:
        """Erase what belongs to other stages, and weights that are not used here."""
        unused: set[Operation] = set()
        for op in reversed(list(self.loop.body.block.ops)):
            if (is_weight_sum(op) or hands_on(op)) and not list(op.results[0].uses):
                unused.add(op)
                op.detach()
                op.erase()
        absent = [
            self.ops[op]
            for op in self.cuts.loop.body.block.ops
            if not isinstance(op, stg.YieldOp) and not self.has(op) and self.ops[op] not in unused
        ]
        for op in reversed(absent):
            portable = bool(op.results) and all(is_portable(r) for r in op.results)
            used = any(list(r.uses) for r in op.results)
            if portable and used:
                continue
            assert not used, f"{op.name} of another stage is used"
            op.detach()
            op.erase()
        for op in list(self.clone.body.block.ops):
            if isinstance(op, stg.WeightOp | stg.CacheOp) and not list(op.results[0].uses):
                op.detach()
                op.erase()

    def forget_wholes(self) -> None:
        """Erase the gathers of what is only handed on."""
        for whole, part in self.parts.items():
            if whole is not part and not list(whole.uses):
                reshard = whole.owner
                assert isinstance(reshard, dist.ReshardOp)
                reshard.detach()
                reshard.erase()

    def rename_counts(self) -> None:
        """Repeats run as often as the stage has layers. One that runs once does so here, or not at all."""
        names: dict[Size, Size] = {}
        several = [(n, each) for n, each in enumerate(self.cuts.forward) if each.count.data != ONE]
        for index, repeat in several:
            names[repeat.count.data] = symbol(dist.local_count(index))
        for index, repeat in several:
            local = symbol(dist.local_count(index))
            for whole in (repeat, *self.cuts.backward[index : index + 1]):
                if whole is not None and self.has(whole):
                    clone = self.ops[whole]
                    rename_repeat(clone, local)  # pyright: ignore[reportArgumentType]
        self.retype_stacks(names)

    def retype_stacks(self, names: dict[Size, Size]) -> None:
        """Stacks of weights, saved values and gradients are as long as the stage's repeats."""
        block = self.clone.body.block
        for op in [*block.ops, *self.loop.body.block.ops]:
            for result in op.results:
                value_type = result.type
                if isinstance(value_type, StackType) and value_type.count in names:
                    local = self.local_of(result, names[value_type.count])
                    set_type(result, StackType.of(local, value_type.element, value_type.first))

    def local_of(self, value: SSAValue, default: Size) -> Size:
        """The count of the repeat that makes or slices a stack."""
        if isinstance(value.owner, stg.RepeatOp):
            return value.owner.count.data
        if isinstance(value.owner, stg.AccumulateOp):
            return self.local_of(value.owner.yield_op.operands[value.index], default)  # pyright: ignore
        for use in value.uses:
            if isinstance(use.operation, stg.RepeatOp):
                return use.operation.count.data
        return default


def located(op: Operation, value: SSAValue) -> Operation:
    """An op that a cut makes stands where its value is made."""
    if isinstance(value.owner, Operation):
        op.location = value.owner.location
    return op


def rename_repeat(repeat: stg.RepeatOp, count: Size) -> None:
    repeat.properties["count"] = stg.SizeAttr(count)


def is_weight_sum(op: Operation) -> bool:
    """Whether an op adds up terms of a weight's gradient."""
    return isinstance(op, stg.AddOp) and stg.phase_of(op) == "wgrad"


def hands_on(op: Operation) -> bool:
    """Whether an op makes of a gradient, or of each of its terms, what is to be stored."""
    is_cast = isinstance(op, stg.CastOp) and stg.phase_of(op) == "wgrad"
    return is_cast or isinstance(op, dist.ReshardOp)
