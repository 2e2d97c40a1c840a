"""Let experts have as many tokens as the plan says, instead of all the same.

Before `spread-load{zipf="1.2" seed=3}`:

    stg.dim "X" = "8"
    stg.dim "A" = "2"
    stg.dim "T" = "64"
    dist.mesh <ep = 4>
    stg.program "M" (%x : !stg.tensor<[T/ep, D], bf16>, %i : !stg.tensor<[T/ep, A], i32>) {
      %r, %n = stg.dispatch %x by %i to "X" "T" dropless
        : (!stg.tensor<[T/ep, D], bf16>, !stg.tensor<[T/ep, A], i32>) -> (!stg.tensor<[X, T/ep, D], bf16>, !stg.tensor<[X], i64>)
      %e = dist.all_to_all %r gather "T" scatter "X" over [ep] : !stg.tensor<[X, T/ep, D], bf16> -> !stg.tensor<[X/ep, T, D], bf16>
      %y = stg.unary "silu" %e : (!stg.tensor<[X/ep, T, D], bf16>) -> !stg.tensor<[X/ep, T, D], bf16>
      stg.output
    }

After:

    stg.dim "X" = "8"
    stg.dim "A" = "2"
    stg.dim "T" = "64"
    dist.mesh <ep = 4>
    stg.dim "T.load" = "T"
    stg.dim "T.load.max" = "T"
    dist.expert_load "T.load" of "T" experts "X" chosen "A" over [ep] among [] zipf "1.2" seed 3
    stg.program "M" (%x : !stg.tensor<[T/ep, D], bf16>, %i : !stg.tensor<[T/ep, A], i32>) {
      %r, %n = stg.dispatch %x by %i to "X" "T" dropless
        : (!stg.tensor<[T/ep, D], bf16>, !stg.tensor<[T/ep, A], i32>) -> (!stg.tensor<[X, T/ep, D], bf16>, !stg.tensor<[X], i64>)
      %e = dist.all_to_all %r gather "T" scatter "X" over [ep] load "T.load"
        : !stg.tensor<[X, T/ep, D], bf16> -> !stg.tensor<[X/ep, T.load, D], bf16>
      %y = stg.unary "silu" %e : (!stg.tensor<[X/ep, T.load, D], bf16>) -> !stg.tensor<[X/ep, T.load, D], bf16>
      stg.output
    }

On average `T.load` is `T`. What it is on a rank and in a layer is a number that the backend fills in when it unrolls layers: nothing is
unrolled here. Each device sends as many tokens as before; what arrives differs. All members of a group have to name
one size for an exchange, and it ends when the device that gets most has all: that is the size, `T.load.max`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from stagec.analysis.loads import num_layers
from stagec.analysis.sizes import size_values
from stagec.diagnostics import CompileError, Diagnostic, span_of
from stagec.dialects import dist, stg
from stagec.dialects.attributes import NamesAttr
from stagec.dialects.types import ShardType, StackType, TensorType
from stagec.rewriting import inherit, programs, set_type
from stagec.symbolic import symbol

NAME = "spread-load"


@dataclass(frozen=True)
class SpreadLoad(ModulePass):
    name = NAME

    zipf: str = ""
    """The share of the i-th busiest expert is i to minus this power."""
    seed: int = 0
    """Draws which expert that is, in each layer."""
    shares: tuple[str, ...] = ()
    """Instead: the share of each expert, as whole numbers with spaces between; for all layers, or a row for each."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rows = tuple(tuple(map(int, row.split())) for row in self.shares)
        distribution = dist.Distribution(self.zipf, self.seed, rows)
        made: dict[str, dist.ExpertLoadOp] = {}
        for program in programs(op):
            for exchange, dispatch in dispatched(program):
                load = made.get(dispatch.tokens.data)
                if load is None:
                    load = load_of(exchange, dispatch, distribution)
                    check(op, load, exchange)
                    define(op, load, program)
                    made[dispatch.tokens.data] = load
        if not made:
            raise CompileError([nothing_dispatched(op)])
        for program in programs(op):
            for load in made.values():
                spread(program, load)


def dispatched(program: stg.ProgramOp) -> Iterator[tuple[dist.AllToAllOp, stg.DispatchOp]]:
    """The exchanges that bring tokens to experts, as many as there are."""
    for op in program.walk():
        if isinstance(op, dist.AllToAllOp):
            dispatch = op.operand.owner
            if isinstance(dispatch, stg.DispatchOp) and dispatch.dropless is not None:
                yield op, dispatch


def load_of(
    exchange: dist.AllToAllOp, dispatch: stg.DispatchOp, distribution: dist.Distribution
) -> dist.ExpertLoadOp:
    target = exchange.target
    return dist.ExpertLoadOp(
        dispatch.tokens.data,
        dispatch.over.data,
        stg.tensor_type(dispatch.experts).names[-1],
        target.dim(dispatch.over.data).split,
        target.dim(dispatch.tokens.data).split,
        distribution,
    )


def check(module: ModuleOp, load: dist.ExpertLoadOp, exchange: dist.AllToAllOp) -> None:
    """A share for each expert, and one row or as many as there are layers: else E0311."""
    rows, experts = load.distribution.shares, size_values(module)[load.experts.data]
    wrong = next((row for row in rows if len(row) != experts), None)
    layers = num_layers(module)
    if wrong is not None:
        message = f"a load of {len(wrong)} experts, but `{load.experts.data} = {experts}`"
    elif len(rows) not in (0, 1) and len(rows) < layers:
        message = f"a load of {len(rows)} layers, but there are {layers}"
    else:
        return
    raise CompileError([Diagnostic("E0311", message, span_of(exchange.location))])


def nothing_dispatched(module: ModuleOp) -> Diagnostic:
    return Diagnostic(
        "E0311",
        "no tokens go to experts on other devices, so that their load makes no difference",
        span_of(programs(module)[0].location),
        notes=["a load is of a dispatch without drops whose experts are split over an axis"],
        help="leave `load` out of the plan, or split the experts: `shard X over ep`",
    )


def define(module: ModuleOp, load: dist.ExpertLoadOp, program: stg.ProgramOp) -> None:
    name, average = load.dim.data, symbol(load.tokens.data)
    for op in (stg.DimOp(name, average), stg.DimOp(f"{name}{dist.MAX}", average), load):
        inherit(op, program)
        module.body.block.insert_op_before(op, programs(module)[0])


def spread(program: stg.ProgramOp, load: dist.ExpertLoadOp) -> None:
    """Rename the dim of tokens wherever the experts are split, and what ops say of it."""
    renamed: set[SSAValue] = set()
    for op in program.walk():
        values = [a for region in op.regions for a in region.block.args]
        for value in (*values, *op.results):
            if is_spread(value, load):
                retype(value, load)
                renamed.add(value)
    for op in program.walk():
        concerned = [v in renamed for v in (*op.operands, *op.results)]
        if isinstance(op, dist.AllToAllOp):
            if any(concerned):
                op.properties["load"] = load.dim
        elif any(concerned):
            rename_dims(op, load)


def is_spread(value: SSAValue, load: dist.ExpertLoadOp) -> bool:
    if not isinstance(value.type, TensorType | StackType | ShardType):
        return False
    leaf = value.type.leaf if isinstance(value.type, StackType) else value.type
    if not isinstance(leaf, TensorType):
        return False
    names = leaf.names
    return (
        load.tokens.data in names
        and load.experts.data in names
        and bool(leaf.dim(load.experts.data).split)
    )


def retype(value: SSAValue, load: dist.ExpertLoadOp) -> None:
    value_type = value.type
    assert isinstance(value_type, TensorType | StackType)
    tensor = value_type.tensor if isinstance(value_type, StackType) else value_type
    local = tensor.with_names({load.tokens.data: load.dim.data})
    new = value_type.with_tensor(local) if isinstance(value_type, StackType) else local
    set_type(value, new)


def renamed(name: str, load: dist.ExpertLoadOp) -> str:
    return load.dim.data if name == load.tokens.data else name


def rename_dims(op: Operation, load: dist.ExpertLoadOp) -> None:
    for key, attribute in list(op.properties.items()):
        if isinstance(attribute, NamesAttr):
            op.properties[key] = NamesAttr(tuple(renamed(n, load) for n in attribute.data))
        elif isinstance(attribute, StringAttr):
            op.properties[key] = StringAttr(renamed(attribute.data, load))
