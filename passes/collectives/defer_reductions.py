"""Add the partial terms of a sum first, and reduce once.

Before `defer-reductions`:

    %a, %b = "test.op"() : () -> (!stg.tensor<[B, D], bf16, partial [tp]>, !stg.tensor<[B, D], bf16, partial [tp]>)
    %x = dist.reshard %a : !stg.tensor<[B, D], bf16, partial [tp]> -> !stg.tensor<[B/tp, D], bf16>
    %y = dist.reshard %b : !stg.tensor<[B, D], bf16, partial [tp]> -> !stg.tensor<[B/tp, D], bf16>
    %z = stg.add %x, %y : (!stg.tensor<[B/tp, D], bf16>, !stg.tensor<[B/tp, D], bf16>) -> !stg.tensor<[B/tp, D], bf16>
    "test.op"(%z) : (!stg.tensor<[B/tp, D], bf16>) -> ()

After:

    %a, %b = "test.op"() : () -> (!stg.tensor<[B, D], bf16, partial [tp]>, !stg.tensor<[B, D], bf16, partial [tp]>)
    %s = stg.add %a, %b {made_by = "defer-reductions"}
      : (!stg.tensor<[B, D], bf16, partial [tp]>, !stg.tensor<[B, D], bf16, partial [tp]>) -> !stg.tensor<[B, D], bf16, partial [tp]>
    %z = dist.reshard %s {made_by = "defer-reductions"} : !stg.tensor<[B, D], bf16, partial [tp]> -> !stg.tensor<[B/tp, D], bf16>
    "test.op"(%z) : (!stg.tensor<[B/tp, D], bf16>) -> ()

This is what Megatron-LM does with the input gradients of linears that share an input, and what
`collectives { reduce = lazy }` asks for; plain DTensor modules reduce each term (`eager`: no such pass).
Terms that differ in axes of size 1 alone are reduced together, too.
Chains are flattened: in `x + a + b` the partial `a` and `b` are added before either is reduced. Each is added as it is made, behind the gradients that are
made with it. They are reduced as soon as the last of them is there, in the module that makes it, whatever is added to them later: PyTorch's gradients of a
module's inputs are whole when its backward pass is over (`PrepareModuleInput`).

A `stg.combine` is a sum too, of what a token's experts made. Terms of experts that are cut (`shard F over tp`) are combined as they are, which leaves one
term of each token to reduce in place of one of each copy, as vLLM does (`FusedMoE`, `maybe_all_reduce_tensor_model_parallel`): unless something else,
such as the gradient of its weights, reads what experts made whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern
from xdsl.rewriter import InsertPoint

from stagec.analysis.sizes import mesh_of
from stagec.dialects import dist, stg
from stagec.dialects.types import TensorType
from stagec.rewriting import inherit, rewrite
from stagec.symbolic.conditions import is_split

NAME = "defer-reductions"


@dataclass(frozen=True)
class DeferReductions(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite(op, CombineTerms(), NAME, once=True)
        rewrite(op, AddTerms(mesh_of(op)), NAME, once=True)


class CombineTerms(RewritePattern):
    """Reduces what a combine makes in place of what it reads."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: stg.CombineOp, rewriter: PatternRewriter) -> None:
        reduced = reduction(op.routed)
        if reduced is None or reduced.source.with_partial(reduced.target.partial) != reduced.target:
            return
        summed = stg.CombineOp(reduced.operand, op.experts, op.weights)
        stg.add_names(summed, stg.names_of(op))
        rewriter.insert(summed)
        for reader in [use.operation for use in op.result.uses]:
            if isinstance(reader, dist.ReshardOp):
                at_once = dist.ReshardOp(summed.result, reader.target)
                inherit(at_once, reader, NAME)
                rewriter.replace(reader, at_once)
        if op.result.uses:
            rewriter.replace(op, dist.ReshardOp(summed.result, stg.tensor_type(op.result)))
        else:
            rewriter.erase(op)
        rewriter.erase(reduced)


def is_root(add: stg.AddOp) -> bool:
    """Whether no further term is added to this sum alone."""
    uses = list(add.result.uses)
    if len(uses) != 1:
        return True
    reader = uses[0].operation
    return not (isinstance(reader, stg.AddOp) and reader.parent is add.parent)


def terms_of(add: stg.AddOp) -> list[SSAValue]:
    """The terms of a sum, through sums that only it reads."""
    terms: list[SSAValue] = []
    for operand in add.operands:
        inner = operand.owner
        if isinstance(inner, stg.AddOp) and inner.parent is add.parent and not is_root(inner):
            terms += terms_of(inner)
        else:
            terms.append(operand)
    return terms


def reduction(term: SSAValue) -> dist.ReshardOp | None:
    """The reshard that reduces a term for this sum only, if that is what it is."""
    if not isinstance(term, OpResult) or not isinstance(term.op, dist.ReshardOp):
        return None
    reshard = term.op
    reduces = set(reshard.source.partial) - set(reshard.target.partial)
    return reshard if reduces and len(list(term.uses)) == 1 else None


@dataclass(frozen=True)
class AddTerms(RewritePattern):
    """Adds up the terms of a sum that are reduced alike, and reduces them together."""

    mesh: Mapping[str, int]

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: stg.AddOp, rewriter: PatternRewriter) -> None:
        if is_root(op):
            merge_terms(op, rewriter, self.are_alike)

    def are_alike(self, one: dist.ReshardOp, other: dist.ReshardOp) -> bool:
        """Whether two terms are sums over the same ranks, and are brought to one sharding."""
        if one.target != other.target:
            return False
        if one.source == other.source:
            return True
        axes = {*used_axes(one.source), *used_axes(other.source)}
        idle = [a for a in sorted(axes) if a in self.mesh and not is_split(a, self.mesh)]
        return without(one.source, idle) == without(other.source, idle)


def used_axes(tensor: TensorType) -> tuple[str, ...]:
    return (*tensor.split_axes, *tensor.partial)


def without(tensor: TensorType, axes: Collection[str]) -> TensorType:
    """What a type is if these axes split nothing, and nothing is partial over them."""
    splits = {name: [a for a in own if a not in axes] for name, own in tensor.splits.items()}
    return tensor.with_splits(splits).with_partial(a for a in tensor.partial if a not in axes)


def merge_terms(
    root: stg.AddOp,
    rewriter: PatternRewriter,
    are_alike: Callable[[dist.ReshardOp, dist.ReshardOp], bool],
) -> None:
    groups: list[list[dist.ReshardOp]] = []
    rest: list[SSAValue] = []
    for term in terms_of(root):
        reshard = reduction(term)
        if reshard is None or reshard.parent is not root.parent:
            rest.append(term)
            continue
        group = next((each for each in groups if are_alike(each[0], reshard)), None)
        if group is None:
            groups.append(group := [])
        group.append(reshard)
    if all(len(group) == 1 for group in groups):
        return
    names = stg.tensor_type(root.result).names
    dead = sum_ops(root)
    sums = Sums(rewriter, [name for op in dead for name in stg.names_of(op)])
    values = [*rest, *map(sums.reduced, groups)]
    # A sum has the dims of its first term first: a bias does not begin one.
    first, *others = sorted(values, key=lambda value: stg.tensor_type(value).names != names)
    total = first
    for value in others:
        total = sums.add(total, value)
    if stg.tensor_type(total).names != names:
        total = rewriter.insert(stg.TransposeOp(total, names)).result
    rewriter.replace_all_uses_with(root.result, total)
    total.name_hint = total.name_hint or root.result.name_hint
    for op in (*dead, *(reshard for group in groups for reshard in group)):
        if not any(result.uses for result in op.results):
            rewriter.erase(op)


def sum_ops(root: stg.AddOp) -> list[Operation]:
    """The ops of a sum, the root first."""
    ops: list[Operation] = [root]
    for operand in root.operands:
        inner = operand.owner
        if isinstance(inner, stg.AddOp) and inner.parent is root.parent and not is_root(inner):
            ops += sum_ops(inner)
    return ops


@dataclass(frozen=True)
class Sums:
    """What is added up in place of a sum, and keeps its names."""

    rewriter: PatternRewriter
    names: Sequence[str]

    def add(self, left: SSAValue, right: SSAValue) -> SSAValue:
        made = stg.AddOp(left, right)
        stg.add_names(made, self.names)
        return self.rewriter.insert(made).result

    def reduced(self, group: Sequence[dist.ReshardOp]) -> SSAValue:
        """The terms of a group added up, then brought to their sharding at once."""
        if len(group) == 1:
            return group[0].result
        first, *others = sorted(group, key=position)
        over = set[str].intersection(*({*each.source.partial} for each in group))
        of_last = others[-1].source
        source = of_last.with_partial(a for a in of_last.partial if a in over)
        total, end = self.brought_to(source, first, last_beside(first))
        for each in others:
            end = max(end, last_beside(each), key=position)
            term, end = self.brought_to(source, each, end)
            made = stg.AddOp(total, term)
            stg.add_names(made, self.names)
            total, end = self.insert(made, each, end)
        return self.insert(dist.ReshardOp(total, first.target), others[-1], end)[0]

    def brought_to(
        self, source: TensorType, reduced: dist.ReshardOp, end: Operation
    ) -> tuple[SSAValue, Operation]:
        """What is reduced, of this type, and behind what the next op goes."""
        if reduced.source == source:
            return reduced.operand, end
        return self.insert(dist.ReshardOp(reduced.operand, source), reduced, end)

    def insert(
        self, op: Operation, reduced: dist.ReshardOp, end: Operation
    ) -> tuple[SSAValue, Operation]:
        inherit(op, reduced, NAME)
        self.rewriter.insert(op, InsertPoint.after(end))
        return op.results[0], op


def position(op: Operation) -> int:
    block = op.parent
    assert block is not None
    return block.get_operation_index(op)


def last_beside(reduced: dist.ReshardOp) -> Operation:
    """The last of the gradients that are made with a term, and stand behind it: autograd makes them at once."""
    number = gradient_number(reduced.operand.owner)
    last: Operation = reduced
    while number is not None and (op := last.next_op) and gradient_number(op) == number:
        last = op
    return last


def gradient_number(op: object) -> Attribute | None:
    return stg.marks(op).get(stg.GRADIENT_OF) if isinstance(op, Operation) else None
