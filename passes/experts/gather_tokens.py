"""Let each device take the tokens of its experts from the tokens of all, and add up what experts made of them: no token travels by itself.

Before `gather-tokens`:

    dist.mesh <ep = 4>
    stg.program "M" (%x : !stg.tensor<[B/ep, D], bf16>, %g : !stg.tensor<[B/ep, A], bf16>, %i : !stg.tensor<[B/ep, A], i32>) {
      %r, %n = stg.dispatch %x by %i to "X" "T" dropless
        : (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>) -> (!stg.tensor<[X, T/ep, D], bf16>, !stg.tensor<[X], i64>)
      %e = dist.reshard %r : !stg.tensor<[X, T/ep, D], bf16> -> !stg.tensor<[X/ep, T, D], bf16>
      %b = dist.reshard %e : !stg.tensor<[X/ep, T, D], bf16> -> !stg.tensor<[X, T/ep, D], bf16>
      %o = stg.combine %b by %i weights %g : (!stg.tensor<[X, T/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>,
        !stg.tensor<[B/ep, A], bf16>) -> !stg.tensor<[B/ep, D], bf16>
      stg.output
    }

After:

    dist.mesh <ep = 4>
    stg.program "M" (%x : !stg.tensor<[B/ep, D], bf16>, %g : !stg.tensor<[B/ep, A], bf16>, %i : !stg.tensor<[B/ep, A], i32>) {
      %j = dist.reshard %i {at_once} : !stg.tensor<[B/ep, A], i32> -> !stg.tensor<[B, A], i32>
      %w = dist.reshard %g {at_once} : !stg.tensor<[B/ep, A], bf16> -> !stg.tensor<[B, A], bf16>
      %y = dist.reshard %x {at_once} : !stg.tensor<[B/ep, D], bf16> -> !stg.tensor<[B, D], bf16>
      %e, %n = stg.dispatch %y by %j to "X" "T" dropless
        : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, A], i32>) -> (!stg.tensor<[X/ep, T, D], bf16>, !stg.tensor<[X], i64>)
      %p = stg.combine %e by %j weights %w : (!stg.tensor<[X/ep, T, D], bf16>, !stg.tensor<[B, A], i32>,
        !stg.tensor<[B, A], bf16>) -> !stg.tensor<[B, D], bf16, partial [ep]>
      %o = dist.reshard %p {at_once} : !stg.tensor<[B, D], bf16, partial [ep]> -> !stg.tensor<[B/ep, D], bf16>
      stg.output
    }

Megatron-LM's `MoEAllGatherTokenDispatcher`: numbers and weights of experts are gathered, then tokens; results are reduce-scattered. The backward pass is
what follows: gradients of results are gathered, those of tokens and of weights reduce-scattered. Each is one collective over all axes that split tokens and not
what their experts work on: those of the experts, and those over which tensor parallelism splits tokens and experts' weights (`tp_ep_group`). What such ranks
make of a token is a term of the same sum.

With `rows` (Megatron-LM's own form) what is gathered of a choice is a row for each token: a boolean for each of all experts, and a weight, of which those of
experts that were not chosen are zero (`routing_map` and `probs`). Experts then weight what goes into their last product, as under `send-weights`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec import symbolic
from stagec.analysis.exchanges import Routed, exchanges, placements
from stagec.diagnostics import CompileError, Diagnostic
from stagec.dialects import dist, stg
from stagec.dialects.attributes import Dim
from stagec.dialects.types import TensorType, tensor_of
from stagec.rewriting import defined, insert_before, programs
from stagec.rewriting.weighted_copies import last_product, make_weights_early, weighted

NAME = "gather-tokens"


@dataclass(frozen=True)
class GatherTokens(ModulePass):
    name = NAME

    rows: bool = False
    """Gather a boolean and a weight for each of all experts, in place of numbers and weights of the chosen ones."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        found = [each for program in programs(op) for each in exchanges(program)]
        if not found:
            raise CompileError([nothing_exchanged(op)])
        for routed, _ in found if self.rows else ():
            if isinstance(routed, stg.CombineOp) and routed.weights is not None:
                make_weights_early(routed, routed.weights)
        gathers = Gathers(op, self.rows)
        for routed, change in found:
            own, sent = placements(routed, change)
            axes = [a for a in sent.dims[1].split if a not in own.dims[1].split]
            if isinstance(routed, stg.DispatchOp):
                gathers.there(routed, change, axes)
            else:
                gathers.back(routed, change, axes)
        for routed, _ in found:
            if routed.parent is not None:
                Rewriter.erase_op(routed)


@dataclass
class Gathers:
    """What is gathered once for both ways."""

    module: ModuleOp
    rows: bool
    whole: dict[tuple[SSAValue, tuple[str, ...]], SSAValue] = field(default_factory=dict)
    copies: dict[SSAValue, SSAValue] = field(default_factory=dict)
    """Of weights that are there before tokens go to their experts, those of the copies."""

    def there(self, dispatch: stg.DispatchOp, change: dist.ReshardOp, axes: list[str]) -> None:
        experts = self.choice(dispatch, None, axes)
        rows = {each: self.choice(dispatch, each, axes) for each in weights_with(dispatch)}
        x = self.gathered(dispatch.x, axes, dispatch)
        own, sent = change.target, change.source
        rest = tuple(a for a in sent.dims[1].split if a not in axes)
        arrives = TensorType.of(
            [own.dims[0], Dim(own.names[1], rest), own.dims[2]], own.dtype, own.partial
        )
        taken = stg.DispatchOp(
            x,
            experts,
            over=dispatch.over,
            tokens=dispatch.tokens,
            dropless=dispatch.dropless,
            like=arrives,
        )
        made: list[Operation] = []
        for weights, whole in rows.items() if self.rows else ():
            made.append(stg.SendWeightsOp(whole, experts, arrives.dims[:2]))
            self.copies[weights] = made[-1].results[0]
        made.append(taken)
        if arrives != own:
            made.append(dist.ReshardOp(taken.routed, own))
        insert(made, dispatch, change)
        replace(change, made[-1].results[0])

    def back(self, combine: stg.CombineOp, change: dist.ReshardOp, axes: list[str]) -> None:
        experts = self.choice(combine, None, axes)
        own, sent = change.source, change.target
        rest = tuple(a for a in sent.dims[1].split if a not in axes)
        weights = combine.weights
        if weights is not None:
            whole = self.choice(combine, weights, axes)
            if self.rows:
                dims = [own.dims[0], Dim(own.names[1], rest)]
                self.weight_at_experts(combine, change, experts, whole, dims)
            weights = whole if not self.rows else None
        made: list[Operation] = []
        value = terms(change.operand, axes)
        partial = [a for a in tensor_of(value.type).partial if a in axes]
        needed = TensorType.of(
            [own.dims[0], Dim(own.names[1], rest), own.dims[2]], own.dtype, partial
        )
        if value.type != needed:
            # What is no term of the sum over experts is added up before it is weighted.
            made.append(dist.ReshardOp(value, needed))
            value = made[-1].results[0]
        summed = stg.CombineOp(value, experts, weights)
        result = dist.ReshardOp(summed.result, tensor_of(combine.result.type), at_once=True)
        insert([*made, summed, result], combine, combine)
        replace(combine, result.result)
        unread: Operation | Block = change
        while isinstance(unread, dist.ReshardOp) and not unread.result.uses:
            maker = unread.operand.owner
            Rewriter.erase_op(unread)
            unread = maker

    def weight_at_experts(
        self,
        combine: stg.CombineOp,
        change: dist.ReshardOp,
        experts: SSAValue,
        whole: SSAValue,
        dims: list[Dim],
    ) -> None:
        """Weight what goes into the last product of experts."""
        made: list[Operation] = []
        copies = self.copies.get(combine.weights) if combine.weights is not None else None
        if copies is None:
            made.append(stg.SendWeightsOp(whole, experts, dims))
            copies = made[0].results[0]
        reader, place = last_product(change, dims[1].name)
        insert([*made, *weighted(reader, place, copies)], combine, reader)

    def choice(self, reader: Routed, weights: SSAValue | None, axes: list[str]) -> SSAValue:
        """The numbers of the chosen experts, or their weights, whole over axes."""
        value = reader.experts if weights is None else weights
        return self.gathered(value, axes, reader, is_choice=True)

    def gathered(
        self, value: SSAValue, axes: list[str], reader: Routed, *, is_choice: bool = False
    ) -> SSAValue:
        """A value of tokens, whole over axes."""
        key = value, tuple(axes)
        if key not in self.whole:
            made: list[Operation] = []
            given = value
            if is_choice and self.rows:
                made.append(self.row(value, reader))
                given = made[0].results[0]
            source = tensor_of(given.type)
            made.append(
                dist.ReshardOp(given, source.with_splits(without(source, axes)), at_once=True)
            )
            insert(made, reader, reader)
            self.whole[key] = made[-1].results[0]
        return self.whole[key]

    def row(self, value: SSAValue, reader: Routed) -> stg.SpreadChoiceOp:
        """A row of all experts for each token: of their weights, or of whether they are chosen."""
        experts = tensor_of(reader.routed.type).names[0]
        (every,) = defined(self.module, reader, {f"{experts}.all": symbolic.symbol(experts)})
        weights = value if value is not reader.experts else None
        return stg.SpreadChoiceOp(reader.experts, weights, every)


def terms(value: SSAValue, axes: Collection[str]) -> SSAValue:
    """What is added up over some of these axes, before it is: a reduce-scatter over all of them adds up the rest."""
    made = value.owner
    if isinstance(made, dist.ReshardOp) and made.source.dims == made.target.dims:
        summed = set(made.source.partial) - set(made.target.partial)
        return made.operand if summed <= set(axes) else value
    return value


def without(source: TensorType, axes: Collection[str]) -> dict[str, tuple[str, ...]]:
    return {d.name: tuple(a for a in d.split if a not in axes) for d in source.dims}


def weights_with(dispatch: stg.DispatchOp) -> list[SSAValue]:
    """The weights of the same choice, where they are there already: they travel with the numbers."""
    block = dispatch.parent_block()
    found: list[SSAValue] = []
    for use in dispatch.experts.uses:
        reader = use.operation
        if isinstance(reader, stg.CombineOp) and reader.weights is not None:
            maker = reader.weights.owner
            is_there = not isinstance(maker, Operation) or (
                maker.parent_block() is block and maker.is_before_in_block(dispatch)
            )
            if is_there and reader.parent_block() is block and reader.weights not in found:
                found.append(reader.weights)
    return found


def insert(made: list[Operation], routed: Routed, before: Operation) -> None:
    insert_before(before, made, NAME, routed)
    for each in made:
        stg.add_names(each, stg.names_of(routed))


def replace(op: Operation, result: SSAValue) -> None:
    op.results[0].replace_all_uses_with(result)
    Rewriter.erase_op(op)


def nothing_exchanged(module: ModuleOp) -> Diagnostic:
    """E0313: the experts are where the tokens are."""
    return Diagnostic(
        "E0313",
        "no tokens go to experts on other devices, so that none are gathered for them",
        dist.clause_span(programs(module)[0], "collectives.given.exchange"),
        help="leave `exchange` out of `collectives`, or split the experts over an axis of the tokens: `shard X over dp`",
    )
