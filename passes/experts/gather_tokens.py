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
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern
from xdsl.rewriter import InsertPoint

from stagec import symbolic
from stagec.analysis.exchanges import Routed, changes_beside, check_exchanges, placements
from stagec.dialects import dist, stg
from stagec.dialects.attributes import Dim
from stagec.dialects.types import TensorType, tensor_of
from stagec.rewriting import defined, rewrite
from stagec.rewriting.weighted_copies import EarlyWeights, last_product, weighted

NAME = "gather-tokens"


@dataclass(frozen=True)
class GatherTokens(ModulePass):
    name = NAME

    rows: bool = False
    """Gather a boolean and a weight for each of all experts, in place of numbers and weights of the chosen ones."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        axis = "an axis of the tokens: `shard X over dp`"
        check_exchanges(op, "none are gathered for them", "exchange", axis)
        if self.rows:
            rewrite(op, EarlyWeights(changes_beside), NAME, once=True)
        rewrite(op, GatherFirst(op, self.rows), NAME, once=True)


@dataclass(frozen=True)
class GatherFirst(RewritePattern):
    """Lets experts take their tokens of what is gathered, and adds up what they made. What is gathered once serves both ways."""

    module: ModuleOp
    rows: bool
    whole: dict[tuple[SSAValue, tuple[str, ...]], SSAValue] = field(default_factory=dict)
    copies: dict[SSAValue, SSAValue] = field(default_factory=dict)
    """Of weights that are there before tokens go to their experts, those of the copies."""

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self, op: stg.DispatchOp | stg.CombineOp, rewriter: PatternRewriter
    ) -> None:
        changes = changes_beside(op)
        for change in changes:
            own, sent = placements(op, change)
            axes = [a for a in sent.dims[1].split if a not in own.dims[1].split]
            way = Way(self, op, change, axes, rewriter)
            if isinstance(op, stg.DispatchOp):
                way.there(op)
            else:
                way.back(op)
        if changes and isinstance(op, stg.DispatchOp):
            rewriter.erase(op)


@dataclass(frozen=True)
class Way:
    """One way of tokens: to their experts, or back."""

    gathers: GatherFirst
    routed: Routed
    change: dist.ReshardOp
    axes: list[str]
    """Those that split tokens, and not what their experts work on."""
    rewriter: PatternRewriter

    def there(self, dispatch: stg.DispatchOp) -> None:
        experts = self.choice(None)
        rows = {each: self.choice(each) for each in weights_with(dispatch)}
        x = self.gathered(dispatch.x)
        own = self.change.target
        arrives = TensorType.of([*self.dims(own), own.dims[2]], own.dtype, own.partial)
        taken = stg.DispatchOp(
            x,
            experts,
            over=dispatch.over,
            tokens=dispatch.tokens,
            dropless=dispatch.dropless,
            like=arrives,
        )
        made: list[Operation] = []
        for weights, whole in rows.items() if self.gathers.rows else ():
            made.append(stg.SendWeightsOp(whole, experts, arrives.dims[:2]))
            self.gathers.copies[weights] = made[-1].results[0]
        made.append(taken)
        if arrives != own:
            made.append(dist.ReshardOp(taken.routed, own))
        self.named(made)
        self.rewriter.replace(self.change, made, [made[-1].results[0]])

    def back(self, combine: stg.CombineOp) -> None:
        experts, own = self.choice(None), self.change.source
        weights = combine.weights
        if weights is not None:
            whole = self.choice(weights)
            if self.gathers.rows:
                self.weight_at_experts(weights, experts, whole)
            weights = whole if not self.gathers.rows else None
        made: list[Operation] = []
        value = terms(self.change.operand, self.axes)
        partial = [a for a in tensor_of(value.type).partial if a in self.axes]
        needed = TensorType.of([*self.dims(own), own.dims[2]], own.dtype, partial)
        if value.type != needed:
            # What is no term of the sum over experts is added up before it is weighted.
            made.append(dist.ReshardOp(value, needed))
            value = made[-1].results[0]
        summed = stg.CombineOp(value, experts, weights)
        result = dist.ReshardOp(summed.result, tensor_of(combine.result.type), at_once=True)
        self.rewriter.replace(combine, self.named([*made, summed, result]))
        unread: Operation | Block = self.change
        while isinstance(unread, dist.ReshardOp) and not unread.result.uses:
            maker = unread.operand.owner
            self.rewriter.erase(unread)
            unread = maker

    def weight_at_experts(self, weights: SSAValue, experts: SSAValue, whole: SSAValue) -> None:
        """Weight what goes into the last product of experts."""
        made: list[Operation] = []
        dims = self.dims(self.change.source)
        copies = self.gathers.copies.get(weights)
        if copies is None:
            made.append(stg.SendWeightsOp(whole, experts, dims))
            copies = made[0].results[0]
        reader, place = last_product(self.change, dims[1].name)
        self.insert([*made, *weighted(reader, place, copies)], reader)

    def dims(self, own: TensorType) -> list[Dim]:
        """Experts and their tokens where experts are, which take theirs of all."""
        sent = placements(self.routed, self.change)[1]
        rest = tuple(a for a in sent.dims[1].split if a not in self.axes)
        return [own.dims[0], Dim(own.names[1], rest)]

    def choice(self, weights: SSAValue | None) -> SSAValue:
        """The numbers of the chosen experts, or their weights, whole over axes."""
        return self.gathered(self.routed.experts if weights is None else weights, is_choice=True)

    def gathered(self, value: SSAValue, *, is_choice: bool = False) -> SSAValue:
        """A value of tokens, whole over axes."""
        known, key = self.gathers.whole, (value, tuple(self.axes))
        if key not in known:
            made: list[Operation] = []
            given = value
            if is_choice and self.gathers.rows:
                made.append(self.row(value))
                given = made[0].results[0]
            source = tensor_of(given.type)
            whole = source.with_splits(without(source, self.axes))
            made.append(dist.ReshardOp(given, whole, at_once=True))
            self.insert(made, self.routed)
            known[key] = made[-1].results[0]
        return known[key]

    def row(self, value: SSAValue) -> stg.SpreadChoiceOp:
        """A row of all experts for each token: of their weights, or of whether they are chosen."""
        experts = tensor_of(self.routed.routed.type).names[0]
        sizes = {f"{experts}.all": symbolic.symbol(experts)}
        (every,) = defined(self.gathers.module, self.routed, sizes)
        weights = value if value is not self.routed.experts else None
        return stg.SpreadChoiceOp(self.routed.experts, weights, every)

    def insert(self, made: list[Operation], before: Operation) -> None:
        self.rewriter.insert(self.named(made), InsertPoint.before(before))

    def named(self, made: list[Operation]) -> list[Operation]:
        for each in made:
            stg.add_names(each, stg.names_of(self.routed))
        return made


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
