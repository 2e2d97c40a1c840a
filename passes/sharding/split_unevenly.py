"""Give ranks parts of different sizes where the rules say so and axes do not divide a dim.

Before `split-unevenly`:

    stg.dim "X" = "10"
    stg.dim "T" = "64"
    dist.mesh <ep = 4>
    dist.rule [X] over [ep] uneven "balanced"
    stg.program "M" (%r : !stg.tensor<[X, T/ep, D], bf16>) {
      %w = stg.weight "up" : !stg.tensor<[X/ep, D, F], bf16>
      %e = dist.all_to_all %r gather "T" scatter "X" over [ep] : !stg.tensor<[X, T/ep, D], bf16> -> !stg.tensor<[X/ep, T, D], bf16>
      %y = stg.contract %e, %w over [D]
        : (!stg.tensor<[X/ep, T, D], bf16>, !stg.tensor<[X/ep, D, F], bf16>) -> !stg.tensor<[X/ep, T, F], bf16>
      stg.output
    }

After:

    stg.dim "X" = "10"
    stg.dim "T" = "64"
    dist.mesh <ep = 4>
    dist.rule [X] over [ep] uneven "balanced"
    stg.dim "X.part" = "ep*ceildiv(X - ep.index, ep)" parts "X"
    stg.dim "X.part.max" = "ep*ceildiv(X, ep)"
    stg.program "M" (%r : !stg.tensor<[X, T/ep, D], bf16>) {
      %w = stg.weight "up" : !stg.tensor<[X.part/ep, D, F], bf16>
      %e = dist.all_to_all %r gather "T" scatter "X" over [ep] uneven [X] : !stg.tensor<[X, T/ep, D], bf16> -> !stg.tensor<[X.part/ep, T, D], bf16>
      %y = stg.contract %e, %w over [D]
        : (!stg.tensor<[X.part/ep, T, D], bf16>, !stg.tensor<[X.part/ep, D, F], bf16>) -> !stg.tensor<[X.part/ep, T, F], bf16>
      stg.output
    }

`X.part/ep` is a rank's own part: a function of its coordinate, as all sizes are that differ between ranks. Those with the same parts are a class. What is
exchanged is as large for all members of a group: the largest part. Of a dim that is cut into others (`stg.split`, `stg.concat`) a rank has the sum of
its parts of these. Of tokens of which devices send other numbers (`dist.sent_load`) what is exchanged is what the busiest sends, or what the one with most
experts gets, if that is more.

It runs last, when every collective is there: nothing before it knows which rank has more. How ranks divide a dim is `stagec.dialects.uneven_parts`.

Exchanging as much as the largest part is what PyTorch's DTensor does, which pads the parts of an uneven `Shard`
for its collectives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass

from stagec.analysis.coordinates import joint_index
from stagec.analysis.sizes import module_of, size_values, slots_in_words
from stagec.diagnostics import CompileError, Diagnostic, quoted, span_of
from stagec.dialects import dist, stg
from stagec.dialects.attributes import NamesAttr, SizeAttr
from stagec.dialects.types import TIME_AXES, ShardType, StackType, TensorType, ValueType, tensor_of
from stagec.dialects.uneven_parts import INTERLEAVED, PART, part_of
from stagec.rewriting import insert_before, programs, rename_dims, set_type
from stagec.symbolic import call, ceildiv, conditions, product, symbol, total

NAME = "split-unevenly"


@dataclass(frozen=True)
class SplitUnevenly(ModulePass):
    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rules, values = uneven_rules(op), size_values(op)
        known = {op.dim.data for op in op.body.ops if isinstance(op, stg.DimOp)}
        uneven = {
            dim: rule
            for dim, rule in rules.items()
            if (f"{dim}{PART}" in known if is_interleaved(rule) else not divides(dim, rule, values))
        }
        leaders = linked(op, rules, uneven) if uneven else {}
        uneven |= {dim: rules[dim] for dim in leaders}
        groups = grouped(op, uneven) if uneven else {}
        sums = joined(op, rules, uneven) if uneven else {}
        split: dict[str, dist.RuleOp] = {}
        for program in programs(op):
            split |= rename(program, uneven)
        for dim, rule in split.items():
            if not is_interleaved(rule) and dim not in sums:
                define(op, dim, rule, leaders.get(dim, dim), groups.get(dim, ()))
        for dim in split.keys() & sums.keys():
            define_sum(op, dim, sums[dim])
        for load in op.body.ops:
            if isinstance(load, dist.ExpertLoadOp) and load.experts.data in split:
                load.properties["uneven"] = split[load.experts.data].properties["uneven"]
            if isinstance(load, dist.SentLoadOp) and load.experts.data in split:
                receive_most(op, load)


def receive_most(module: ModuleOp, load: dist.SentLoadOp) -> None:
    """Let an exchange be as large as what the device with most experts gets, where that is more than any sends."""
    experts, tokens = load.experts.data, load.dim.data
    dims = {op.dim.data: op for op in module.body.ops if isinstance(op, stg.DimOp)}
    sent = dims[f"{tokens}{dist.MAX}"]
    largest = dims[f"{experts}{PART}{dist.MAX}"].size.data
    received = dims[tokens].size.data * largest / symbol(experts)
    sent.size = SizeAttr(call("max", sent.size.data, received))


def uneven_rules(module: ModuleOp) -> dict[str, dist.RuleOp]:
    """The rule of each dim whose parts may differ."""
    rules = [op for op in module.body.ops if isinstance(op, dist.RuleOp)]
    return {dim: rule for rule in rules if rule.uneven is not None for dim in rule.dims.data}


def is_interleaved(rule: dist.RuleOp) -> bool:
    """Whether parts are positions that are dealt out in turns: how many those are is said in the module, if they may differ."""
    assert rule.uneven is not None
    return rule.uneven.data == INTERLEAVED


def divides(dim: str, rule: dist.RuleOp, values: Mapping[str, int]) -> bool:
    """Whether the axes of a rule divide a dim of it."""
    ways = product(map(symbol, rule.axes.data))
    return dim not in values or conditions.whole(symbol(dim) / ways, values)


def linked(
    module: ModuleOp, rules: Mapping[str, dist.RuleOp], uneven: Collection[str]
) -> dict[str, str]:
    """The dims whose parts are as many times those of another, and which: heads of queries are where the heads of keys are that they share."""
    found: dict[str, str] = {}
    for op in module.walk():
        if isinstance(op, stg.TensorOp):
            for operand, indices in zip(op.operands, op.indices().operands, strict=True):
                for name, index in zip(tensor_of(operand.type).names, indices, strict=True):
                    if name != index and name in uneven and index in rules:
                        found[index] = name
    return found


def grouped(module: ModuleOp, uneven: Mapping[str, dist.RuleOp]) -> dict[str, tuple[str, ...]]:
    """Heads of queries whose keys devices have copies of: those of a head of keys are cut for themselves. Along which axes these heads differ."""
    found: dict[str, tuple[str, ...]] = {}
    for op in module.walk():
        if isinstance(op, stg.AttentionOp) and op.copies is not None:
            heads, keys = (each.dims[-2] for each in op.scored[:2])
            if heads.name in uneven and heads.split[: len(keys.split)] == keys.split:
                found[heads.name] = keys.split
    return found


def joined(
    module: ModuleOp, rules: Mapping[str, dist.RuleOp], uneven: dict[str, dist.RuleOp]
) -> dict[str, tuple[str, ...]]:
    """The dims that others are parts of, side by side, and which. If one of these is split unevenly, all of them are, and a device has of the whole what it has
    of its parts. `uneven` gets the rules of those. E0303 where rules do not say so of all, or parts are dealt out in turns.
    """
    found: dict[str, tuple[str, ...]] = {}
    for op in module.walk():
        if isinstance(op, stg.ConcatOp):
            whole, parts = op.to.data, op.over.data
        elif isinstance(op, stg.SplitOp):
            whole, parts = op.over.data, op.to.data
        else:
            continue
        types = [tensor_of(value.type) for value in (*op.operands, *op.results)]
        split = {d.name for t in types for d in t.dims if d.name in (whole, *parts) and d.split}
        concerned = [dim for dim in (whole, *parts) if dim in uneven and dim in split]
        if not concerned:
            continue
        rule = uneven[concerned[0]]
        for dim in (whole, *parts):
            other = rules.get(dim)
            same = other is not None and other.axes == rule.axes and other.uneven == rule.uneven
            if dim not in split or not same or is_interleaved(rule):
                note = (
                    f"`{whole}` is `{' + '.join(parts)}`, and `{dim}` is not split in the same way"
                )
                raise CompileError([apart(op, rule, note)])
        uneven |= {dim: rules[dim] for dim in (whole, *parts)}
        found[whole] = tuple(parts)
    return found


def rename(program: stg.ProgramOp, rules: Mapping[str, dist.RuleOp]) -> dict[str, dist.RuleOp]:
    """Rename dims where they are split by an uneven rule, and what ops say of them. Which were."""
    renamed: dict[SSAValue, tuple[str, ...]] = {}
    for op in program.walk():
        values = [a for region in op.regions for a in region.block.args]
        for value in (*values, *op.results):
            dims = uneven_dims(value, rules)
            if dims:
                set_type(value, with_parts(value.type, {d: f"{d}{PART}" for d in dims}))
                renamed[value] = dims
    for op in program.walk():
        values = [*op.operands, *op.results]
        if isinstance(op, stg.DispatchOp):
            values.remove(op.counts)
        dims = dict.fromkeys(d for v in values for d in renamed.get(v, ()))
        whole = tuple(d for d in dims if any(d in names_of(v.type) for v in values))
        if isinstance(op, dist.Movement):
            if whole:
                op.properties["uneven"] = NamesAttr(whole)
        elif isinstance(op, stg.TensorOp | stg.UpdateRowsOp) and dims:
            if whole:
                raise CompileError([apart(op, rules[whole[0]], f"`{whole[0]}` is whole here, too")])
            rename_dims(op, {d: f"{d}{PART}" for d in dims})
        elif isinstance(op, stg.OptimizerStepOp) and op.algorithm.data == stg.FACTORED:
            rename_matrices(op, rules)
        check_made_for(op, dims, rules)
    return {dim: rules[dim] for dims in renamed.values() for dim in dims}


def uneven_dims(value: SSAValue, rules: Mapping[str, dist.RuleOp]) -> tuple[str, ...]:
    """The dims of a value that are split by the rules; by all axes of a rule, and no other, else E0303."""
    leaf = tensor_in(value.type)
    split = [d for d in leaf.dims if d.name in rules and d.split] if leaf is not None else []
    for dim in split:
        rule = rules[dim.name]
        if dim.split != rule.axes.data:
            owner = value.owner if isinstance(value.owner, Operation) else rule
            note = f"here it is not split over {quoted(rule.axes.data)} alone"
            if set(dim.split) & set(TIME_AXES):
                note = "each microbatch, or chunk, has as much of it on each device, also where there is only one"
            raise CompileError([apart(owner, rule, note)])
    return tuple(d.name for d in split)


def check_made_for(op: Operation, dims: Collection[str], rules: Mapping[str, dist.RuleOp]) -> None:
    """E0303: ops that count on equal parts. What pools hand over of positions that are dealt out is as much on each rank."""
    handed = [rules[dim] for dim in dims if not is_interleaved(rules[dim])]
    if isinstance(op, dist.PoolSendOp | dist.PoolRecvOp) and handed:
        raise CompileError([apart(op, handed[0], "pools hand it over")])
    if isinstance(op, stg.FanOutOp) and dims:
        note = "a hierarchical exchange counts copies for nodes with as many experts"
        raise CompileError([apart(op, rules[next(iter(dims))], note)])
    if isinstance(op, dist.TakeApartOp) and dims:
        note = "each is a parameter in Megatron-LM's buffers, as many on each rank; with `experts = joined` in `zero` all of a rank are one"
        raise CompileError([apart(op, rules[next(iter(dims))], note)])
    if isinstance(op, stg.GradientStatisticOp) and isinstance(op.result.type, StackType):
        for dim in dims:
            if dim in op.result.type.total_count.names:
                note = "Adafactor adds up a number for each of its rows over ranks, as many on each"
                raise CompileError([apart(op, rules[dim], note)])
    if isinstance(op, stg.OptimizerStepOp) and op.matrices is not None:
        for each, weight in zip(op.matrices.data, op.weights, strict=True):
            for dim in (*each.data.rows, *each.data.columns):
                if dim in rules and dim not in names_of(weight.type):
                    raise CompileError(
                        [apart(op, rules[dim], "the optimizer updates matrices of it")]
                    )


def rename_matrices(step: stg.OptimizerStepOp, rules: Mapping[str, dist.RuleOp]) -> None:
    """Sums over rows and columns are of what a device has."""
    assert step.matrices is not None
    matrices: list[stg.MatrixAttr] = []
    for each, weight in zip(step.matrices.data, step.weights, strict=True):
        parts = {f"{dim}{PART}" for dim in rules} & {*names_of(weight.type)}
        rows, columns = (
            tuple(f"{dim}{PART}" if f"{dim}{PART}" in parts else dim for dim in side)
            for side in (each.data.rows, each.data.columns)
        )
        matrices.append(stg.MatrixAttr(stg.Matrix(rows, columns)))
    step.properties["matrices"] = ArrayAttr(matrices)


def names_of(value_type: Attribute) -> tuple[str, ...]:
    leaf = tensor_in(value_type)
    return leaf.names if leaf is not None else ()


def tensor_in(value_type: Attribute) -> TensorType | None:
    """The tensor that a value is, is part of, or has several of."""
    return tensor_of(value_type) if isinstance(value_type, ValueType) else None


def with_parts(value_type: Attribute, names: Mapping[str, str]) -> ValueType:
    if isinstance(value_type, StackType):
        leaf = with_parts(value_type.leaf, names)
        assert not isinstance(leaf, StackType)
        return value_type.with_tensor(leaf)
    if isinstance(value_type, ShardType):
        return ShardType.of(value_type.tensor.with_names(names), value_type.axes, value_type.rows)
    assert isinstance(value_type, TensorType)
    return value_type.with_names(names)


def define(
    module: ModuleOp, dim: str, rule: dist.RuleOp, leader: str, group: Sequence[str]
) -> None:
    """Say what a part is: as many times that of a leader as the dim is larger. What a rank along `group` has of it is cut along the other axes."""
    axes = rule.axes.data
    assert rule.uneven is not None
    within = axes[len(group) :]
    size, ways = symbol(leader) / product(map(symbol, group)), product(map(symbol, within))
    own = part_of(rule.uneven.data, size, ways, joint_index(within))
    times = product(map(symbol, axes)) * symbol(dim) / symbol(leader)
    largest = stg.DimOp(f"{dim}{PART}{dist.MAX}", times * ceildiv(size, ways))
    program = programs(module)[0]
    for op in (stg.DimOp(f"{dim}{PART}", times * own, parts=dim), largest):
        insert_before(program, [op])


def define_sum(module: ModuleOp, dim: str, parts: Sequence[str]) -> None:
    """Say what a part of a dim is that others are parts of. The first rank has the most of each, and so of all."""
    program = programs(module)[0]
    sizes = {op.dim.data: op.size.data for op in module.body.ops if isinstance(op, stg.DimOp)}
    for suffix in (PART, f"{PART}{dist.MAX}"):
        size = total(sizes[f"{part}{suffix}"] for part in parts)
        insert_before(
            program, [stg.DimOp(f"{dim}{suffix}", size, parts=dim if suffix == PART else None)]
        )


def apart(op: Operation, rule: dist.RuleOp, note: str) -> Diagnostic:
    """E0303: something that uneven parts are not made for."""
    slots = slots_in_words(module_of(rule))
    return Diagnostic(
        "E0303",
        f"{quoted(slots.get(name, name) for name in rule.dims.data)} cannot be split unevenly in this plan",
        span_of(rule.location),
        secondary=[(span, "here")] if (span := span_of(op.location)) and op is not rule else [],
        notes=[note],
        help="pad it instead: `{ pad = 1 }`",
    )
