"""Give every value its sharding and every op its placement, by the plan's rules.

Before `propagate-shardings`:

    dist.mesh <dp = 2, tp = 4>
    dist.rule [B] over [dp]
    dist.rule [F] over [tp]
    dist.rule [S] over [tp]
    stg.program "M" (%x : !stg.tensor<[B, S, D], bf16>) {
      %w = stg.weight "up" : !stg.tensor<[D, F], bf16>
      %n = stg.unary "silu" %x : (!stg.tensor<[B, S, D], bf16>) -> !stg.tensor<[B, S, D], bf16>
      %y = stg.contract %n, %w over [D]
        : (!stg.tensor<[B, S, D], bf16>, !stg.tensor<[D, F], bf16>) -> !stg.tensor<[B, S, F], bf16>
      stg.output %y : !stg.tensor<[B, S, F], bf16>
    }

After:

    dist.mesh <dp = 2, tp = 4>
    dist.rule [B] over [dp]
    dist.rule [F] over [tp]
    dist.rule [S] over [tp]
    stg.program "M" (%x : !stg.tensor<[B, S, D], bf16>) {
      %w = stg.weight "up" : !stg.tensor<[D, F/tp], bf16>
      %n = stg.unary "silu" %x {placement = #dist.placement<[B/dp, S/tp]>}
        : (!stg.tensor<[B, S, D], bf16>) -> !stg.tensor<[B/dp, S/tp, D], bf16>
      %y = stg.contract %n, %w over [D] {placement = #dist.placement<[B/dp, F/tp]>}
        : (!stg.tensor<[B/dp, S/tp, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[B/dp, S, F/tp], bf16>
      stg.output %y : !stg.tensor<[B/dp, S, F/tp], bf16>
    }

Rules place values; an op has one placement of its own, over the indices of its iteration space, as in
Shardy's op sharding rules. Weights are stored as their first reader needs them, inputs stay whole: they
arrive as each reader needs them. `localize-shapes` then makes operands agree with their ops.
A sequence that attention reads keys from may be split only where a `dist.context` says how attention sees it (E0309),
and in parts that come out even (E0301). Keys that are `spread` over axes split the op over these, and nothing else of it: queries come of all heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from stagec.analysis.contexts import Contexts
from stagec.analysis.placement import (
    PlacementRule,
    SharesHeads,
    Splits,
    copies_of,
    is_input,
    is_weight,
    needed_type,
    op_splits,
    own_splits,
    placings,
    rules_of,
    unplaced,
    wanted_splits,
)
from stagec.analysis.sharding_errors import ShardingErrors
from stagec.diagnostics import refused, span_of
from stagec.dialects import dist, stg
from stagec.dialects.attributes import NamesAttr
from stagec.dialects.types import StackType, TensorType, tensor_of
from stagec.passes.sharding.propagate_shardings.context_errors import check_attention
from stagec.rewriting import insert_before, programs, set_type

NAME = "propagate-shardings"


@dataclass(frozen=True)
class PropagateShardings(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rules, contexts = rules_of(op), Contexts.of(op)
        errors = ShardingErrors(op)
        for program in programs(op):
            check_whole(program)
            settle_carried(program)
            place_ops(program, rules, contexts, errors)
            place_values(program, rules, errors)
            place_weights(program, rules)
        errors.report()
        verify_placed(op)


def check_whole(program: stg.ProgramOp) -> None:
    """E0705 where a weight is stored in parts already: its placement is decided."""
    for op in program.body.block.ops:
        if isinstance(op, stg.WeightOp | stg.CacheOp):
            stored = op.results[0].type
            if not isinstance(stored, TensorType | StackType) or (
                isinstance(stored, StackType)
                and not isinstance(stored.element, TensorType | StackType)
            ):
                message = f"`{NAME}` places whole tensors, and this one is stored in parts already"
                help_ = f"run `{NAME}` before `shard-parameters`"
                raise refused("E0705", message, span_of(op.location), help=help_)


def place_ops(
    program: stg.ProgramOp,
    rules: Sequence[PlacementRule],
    contexts: Contexts,
    errors: ShardingErrors,
) -> None:
    """Decide each op's placement. Values still have their global types."""
    for op in program.walk():
        if isinstance(op, SharesHeads):
            note_copies(op, rules, contexts)
        if isinstance(op, stg.TensorOp) and not isinstance(op, stg.PlaceOp):
            splits = op_splits(op, rules, contexts)
            if isinstance(op, stg.AttentionOp):
                check_attention(op, splits, rules, contexts, errors)
            errors.check_op(op, splits)
            stg.marks(op)[stg.PLACEMENT] = stg.PlacementAttr.of(splits)


def note_copies(op: SharesHeads, rules: Sequence[PlacementRule], contexts: Contexts) -> None:
    """Let an op know the axes along which ranks share heads of keys: those of a rule that split its queries' heads."""
    if isinstance(op, stg.RepeatHeadsOp):
        heads, key_heads = op.new.data, op.old.data
    else:
        heads, key_heads = (tensor_of(x.type).names[-2] for x in (op.q, op.k))
    copies = copies_of(key_heads, rules) if key_heads != heads else ()
    if not copies:
        return
    op.properties["copies"] = NamesAttr(copies)
    split = op_splits(op, rules, contexts).get(heads, ())
    if not set(copies) <= set(split):
        del op.properties["copies"]


def settle_carried(program: stg.ProgramOp) -> None:
    """What a repeat carries has one placement. Overrides that are not of all that it can be are not of it, but of what others read, if any do."""
    for op in program.walk():
        if isinstance(op, stg.RepeatOp):
            for index, argument in enumerate(op.carry_args):
                for reader in () if placings(argument) else (op, op.yield_op):
                    value = reader.operands[index]
                    if not all(isinstance(u.operation, CARRIES) for u in value.uses):
                        reader.operands[index] = unplaced(value)


CARRIES = (stg.RepeatOp, stg.YieldOp)


def place_values(
    program: stg.ProgramOp, rules: Sequence[PlacementRule], errors: ShardingErrors
) -> None:
    """Give each value but weights and inputs the type of its own sharding."""

    def place(value: SSAValue) -> None:
        if isinstance(value.type, TensorType) and not is_input(value) and not is_weight(value):
            splits = own_splits(value, rules)
            wanted = wanted_splits(value, rules)
            if wanted is not None and wanted == made_splits(value):
                # The op makes it as readers want it.
                splits = wanted
            elif is_dispatched(value) or is_of_parts(value):
                splits = made_splits(value)
            elif is_brought_back(value):
                splits = (first_need(value, {}) or tensor_of(value.type)).splits
            errors.check_value(value, splits)
            set_type(value, value.type.with_splits(splits))

    for op in program.walk():
        for region in op.regions:
            for argument in region.block.args:
                place(argument)
        for result in op.results:
            place(result)
    for op in reversed(list(program.walk())):
        if isinstance(op, stg.RepeatOp):
            place_carried(op)
            retype_stacks(op)


def is_dispatched(value: SSAValue) -> bool:
    """Whether these are tokens that experts on another pool are sent: as the dispatch makes them."""
    sends = all(isinstance(use.operation, dist.TowerSendOp) for use in value.uses)
    return isinstance(value.owner, stg.SendsTokens) and value is value.owner.sent and sends


def is_of_parts(value: SSAValue) -> bool:
    """Whether it is a result for each part of the keys: as a rank makes it of its own, until parts are combined."""
    op = value.owner
    return isinstance(op, stg.FusedAttention) and op.spread is not None


def is_brought_back(value: SSAValue) -> bool:
    """Whether this is what experts on another pool made of tokens: it comes as it is combined."""
    combines = any(isinstance(use.operation, stg.CollectsTokens) for use in value.uses)
    return isinstance(value.owner, dist.TowerRecvOp) and combines


def made_splits(value: SSAValue) -> Splits:
    """How an op, placed as it is, makes a result."""
    assert isinstance(value, OpResult) and isinstance(value.op, stg.TensorOp)
    names = value.op.indices().results[value.index]
    return stg.placed(tensor_of(value.type), names, stg.placement_of(value.op)).splits


def place_carried(repeat: stg.RepeatOp) -> None:
    """Bring an input that a repeat carries, or is handed by its body, to the sharding of what is carried."""
    for reader in (repeat, repeat.yield_op):
        for position, argument in enumerate(repeat.carry_args):
            value = reader.operands[position]
            if value.type != argument.type:
                place = stg.PlaceOp(value, (), ())
                set_type(place.result, argument.type)
                insert_before(reader, [place], NAME)
                reader.operands[position] = place.result


def retype_stacks(repeat: stg.RepeatOp) -> None:
    """Stacks that come out of a repeat are stacks of what is yielded."""
    yielded = repeat.yield_op.values[repeat.num_carried :]
    for value, result in zip(yielded, repeat.stack_results, strict=True):
        if isinstance(value.type, TensorType | StackType):  # Not stored in parts already.
            set_type(result, repeat.stack_of(value.type))


def place_weights(program: stg.ProgramOp, rules: Sequence[PlacementRule]) -> None:
    """Store each weight and each cache as its first reader needs it; one that nothing reads, by the rules."""
    places: Places = {}
    for op in program.body.block.ops:
        if isinstance(op, stg.WeightOp | stg.CacheOp):
            (stored,) = op.results
            need = first_need(stored, places)
            if need is None:
                need = tensor_of(stored.type).with_splits(own_splits(stored, rules))
            retype(stored, need)


def first_need(value: SSAValue, places: Places) -> TensorType | None:
    """The type in which the first op that reads a weight, a slice or override of it needs it."""
    readers = [use for use in value.uses]
    readers.sort(key=lambda use: position_in_block(use.operation, places))
    for use in readers:
        need = need_of_use(use.operation, use.index, places)
        if need is not None:
            return need
    return None


Places = dict[Block, dict[Operation, int]]
"""Where each op of a block is, for blocks that were asked for."""


def position_in_block(op: Operation, places: Places) -> int:
    block = op.parent_block()
    assert isinstance(block, Block)
    if block not in places:
        places[block] = {each: number for number, each in enumerate(block.ops)}
    return places[block][op]


def need_of_use(op: Operation, position: int, places: Places) -> TensorType | None:
    if isinstance(op, stg.PlaceOp):
        return first_need(op.result, places)
    if isinstance(op, stg.RepeatOp):
        return first_need(op.body.block.args[position], places)
    if isinstance(op, stg.TensorOp):
        return needed_type(op, position, stg.placement_of(op))
    return None


def retype(value: SSAValue, need: TensorType) -> None:
    """Give a weight, and what slices and overrides make of it, the sharding of `need`."""
    old = value.type
    assert isinstance(old, TensorType | StackType)
    local = tensor_of(old).with_splits(need.splits)
    new = old.with_tensor(local) if isinstance(old, StackType) else local
    set_type(value, new)
    for use in list(value.uses):
        if isinstance(use.operation, stg.PlaceOp):
            retype(use.operation.result, need)
        elif isinstance(use.operation, stg.RepeatOp):
            retype(use.operation.body.block.args[use.index], need)


def verify_placed(module: ModuleOp) -> None:
    """Check the promise: every op on tensors has a placement."""
    for op in module.walk():
        if isinstance(op, stg.TensorOp) and not isinstance(op, stg.PlaceOp):
            assert stg.PLACEMENT in op.properties, op


__all__ = ["PropagateShardings", "Splits"]
