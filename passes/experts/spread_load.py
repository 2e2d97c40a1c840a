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
    dist.expert_load "T.load" of "T" experts "X" chosen [T, A] over [ep] among [] zipf "1.2" seed 3
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

Experts that take as many tokens as choose them are those of MegaBlocks (arXiv:2211.15841) and of Megatron-LM without a capacity
factor (`MoEAlltoAllTokenDispatcher`).

With `sent` experts are equally busy, and have what devices send that serve other sequences (`dist.sent_load`): `T.load` is the average over all of them, and
an exchange is as large as what the device sends that has most tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from stagec.analysis.expert_loads import ExpertLoad, num_layers
from stagec.analysis.sequences import ModuleSequences
from stagec.analysis.sizes import averages, module_of, size_values
from stagec.analysis.token_copies import chooser, numbers_of
from stagec.diagnostics import CompileError, Diagnostic, refused, span_of
from stagec.dialects import dist, stg
from stagec.dialects.op import first_op
from stagec.dialects.types import TIME_AXES, StackType, TensorType, leaf_of
from stagec.rewriting import insert_before, programs, rename_dims, set_type
from stagec.symbolic import Size, product, symbol

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
    sent: bool = False
    """Instead: as many as devices with other sequences send on average, where tokens are averages."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.sent:
            share_what_is_sent(op)
            return
        rows = tuple(tuple(map(int, row.split())) for row in self.shares)
        distribution = dist.Distribution(self.zipf, self.seed, rows)
        made: dict[str, dist.ExpertLoadOp] = {}
        for program in programs(op):
            for way in ways(program):
                load = load_of(way, distribution)
                known = made.get(load.tokens.data)
                if known is None:
                    check(op, load, way.begin)
                    define(op, load, program)
                    made[load.tokens.data] = load
                elif differ(known, load, way.topk):
                    raise CompileError([shared(load, way.begin)])
        pool, parts = dist.pool_of(op), first_op(op, dist.ExpertsOp)
        if not made and pool is not None and parts is not None and pool.pool == parts.others:
            return  # nothing is dispatched here, but in the other pool
        if not made:
            raise CompileError([nothing_dispatched(op)])
        for program in programs(op):
            for load in made.values():
                spread(program, load)


def share_what_is_sent(module: ModuleOp) -> None:
    """Give experts the average of what devices send that have sequences of their own. Exchanges along other axes than the first one's keep what they have."""
    sequences, exact = ModuleSequences.of(module), averages(module)
    if sequences is None:
        return
    made: dict[str, dist.SentLoadOp] = {}
    for program in programs(module):
        for dispatch in program.walk():
            for exchange in (
                exchanges(dispatch.routed) if isinstance(dispatch, stg.DispatchOp) else ()
            ):
                experts, tokens = exchange.target.dims[:2]
                axes = tuple(axis for axis in experts.split if axis in sequences.axes)
                known = next(iter(made.values()), None)
                if tokens.name not in exact or not axes or tokens.name in made:
                    continue
                if known is None or known.over.data == axes:
                    size = sequences.in_sums(exact[tokens.name])
                    sums = tuple(sorted(size.names & sequences.op.sizes.keys()))
                    load = dist.SentLoadOp(tokens.name, experts.name, axes, sums)
                    define_sent(module, load, size)
                    made[tokens.name] = load
        for load in made.values():
            spread(program, load)


def define_sent(module: ModuleOp, load: dist.SentLoadOp, size: Size) -> None:
    """Say what experts have, in what all devices send and in what the one sends that has most."""
    program = programs(module)[0]
    ways = product(map(symbol, load.over.data))
    every = {name: symbol(f"{name}{dist.TOTAL}") for name in load.sums.data}
    most = {name: symbol(f"{name}{dist.MOST}") for name in load.sums.data}
    dims = [stg.DimOp(f"{name}{dist.TOTAL}", ways * symbol(name)) for name in every]
    dims += [stg.DimOp(f"{name}{dist.MOST}", symbol(name)) for name in most]
    mean = size.substitute({name: total / ways for name, total in every.items()})
    dims.append(stg.DimOp(load.dim.data, mean, average=True))
    dims.append(stg.DimOp(f"{load.dim.data}{dist.MAX}", size.substitute(most), average=True))
    known = {op.dim.data for op in module.body.ops if isinstance(op, stg.DimOp)}
    insert_before(program, [*(dim for dim in dims if dim.dim.data not in known), load])


@dataclass(frozen=True)
class TokenWay:
    """How tokens reach experts on other devices."""

    begin: stg.DispatchOp | dist.TowerRecvOp
    arrived: TensorType
    """The tokens of a device's own experts."""
    copies: tuple[str, ...] = ()
    """The dims of copies for nodes and for devices, if they go by way of these."""
    elsewhere: int | None = None
    """How many devices of another pool they are sent to."""

    @property
    def chosen(self) -> tuple[str, ...]:
        """The dims of the numbers of tokens' experts."""
        if isinstance(self.begin, dist.TowerRecvOp):
            assert self.begin.chosen is not None
            return self.begin.chosen.data
        return stg.tensor_type(numbers_of(self.begin)).names

    @property
    def topk(self) -> stg.TopkOp | None:
        return chooser(self.begin) if isinstance(self.begin, stg.DispatchOp) else None


def ways(program: stg.ProgramOp) -> Iterator[TokenWay]:
    """The exchanges that bring tokens to experts, as many as there are; or dispatches of a device's own experts from the tokens of all (`gather-tokens`).

    Between pools what brings them is a message.
    """
    for dispatch in program.walk():
        if isinstance(dispatch, dist.TowerRecvOp):
            taken = stg.tensor_type(dispatch.value)
            if dispatch.tokens is not None and taken.dims[0].split:
                yield TokenWay(dispatch, taken)
        if not isinstance(dispatch, stg.DispatchOp) or dispatch.dropless is None:
            continue
        taken = stg.tensor_type(dispatch.routed)
        if taken.dims[0].split:
            yield TokenWay(dispatch, taken)
        for sent in readers(dispatch.routed):
            if isinstance(sent, dist.TowerSendOp):
                there = split_there(sent, taken.dims[0].name)
                yield TokenWay(dispatch, taken, elsewhere=there)
        for exchange in exchanges(dispatch.routed):
            forwards = [r for r in readers(exchange.result) if isinstance(r, stg.FanOutOp)]
            if not forwards:
                yield TokenWay(dispatch, exchange.target)
            for forward in forwards:
                yield from forwarded(dispatch, forward)


def split_there(op: dist.TowerSendOp, experts: str) -> int:
    """Over how many devices of the other pool experts are split."""
    said = next(
        each
        for each in module_of(op).body.ops
        if isinstance(each, dist.HandedOp) and each.path.data == op.path
    )
    sizes = dict(said.mesh.data.axes)
    return prod(sizes[axis] for axis in said.holds.dim(experts).split)


def forwarded(dispatch: stg.DispatchOp, forward: stg.FanOutOp) -> Iterator[TokenWay]:
    """The second step of an exchange."""
    copies = (dispatch.tokens.data, forward.tokens.data)
    for exchange in exchanges(forward.copies):
        for last in readers(exchange.result):
            if isinstance(last, stg.FanOutOp):
                yield TokenWay(dispatch, stg.tensor_type(last.copies), copies)


def exchanges(value: SSAValue) -> Iterator[dist.AllToAllOp]:
    return (r for r in readers(value) if isinstance(r, dist.AllToAllOp))


def readers(value: SSAValue) -> Iterator[Operation]:
    """Who reads a value, in this dtype or in another."""
    for use in value.uses:
        if isinstance(use.operation, stg.CastOp):
            yield from readers(use.operation.result)
        else:
            yield use.operation


def load_of(way: TokenWay, distribution: dist.Distribution) -> dist.ExpertLoadOp:
    experts, tokens, _ = way.arrived.dims
    topk = way.topk if way.copies else None
    among = tokens.split
    if way.elsewhere is not None:
        among = tuple(axis for axis in among if axis in TIME_AXES)
    return dist.ExpertLoadOp(
        tokens.name,
        experts.name,
        way.chosen,
        experts.split,
        among,
        distribution,
        way.copies,
        topk.groups if topk is not None else None,
        topk.limit if topk is not None else None,
        way.elsewhere,
    )


def check(module: ModuleOp, load: dist.ExpertLoadOp, dispatch: Operation) -> None:
    """A share for each expert, and one row or as many as there are layers: else E0311."""
    rows, experts = load.distribution.shares, size_values(module)[load.experts.data]
    wrong = next((row for row in rows if len(row) != experts), None)
    layers = num_layers(module)
    if wrong is not None:
        message = f"a load of {len(wrong)} experts, but `{load.experts.data} = {experts}`"
        help_ = f"give each of the {experts} experts a share"
    elif len(rows) not in (0, 1) and len(rows) < layers:
        message = f"a load of {len(rows)} layers, but there are {layers}"
        help_ = f"give each of the {layers} layers a row, or all of them one"
    else:
        return
    span = dist.clause_span(dispatch, "load.given.file", "load.given.shares", "load.span")
    raise refused("E0311", message, span, help=help_)


def nothing_dispatched(module: ModuleOp) -> Diagnostic:
    return Diagnostic(
        "E0311",
        "no tokens go to experts on other devices, so that their load makes no difference",
        dist.clause_span(programs(module)[0], "load.span"),
        notes=["a load is of a dispatch without drops whose experts are split over an axis"],
        help="leave `load` out of the plan, or split the experts: `shard X over ep`",
    )


def differ(known: dist.ExpertLoadOp, load: dist.ExpertLoadOp, topk: stg.TopkOp | None) -> bool:
    """Whether tokens of one dim reach experts in two ways. What is computed again may not see what chose the experts."""
    if known.copies != load.copies:
        return True
    limits = [(each.groups, each.limit) for each in (known, load)]
    return load.copies is not None and topk is not None and limits[0] != limits[1]


def shared(load: dist.ExpertLoadOp, dispatch: Operation) -> Diagnostic:
    return Diagnostic(
        "E0311",
        f"two routers share `{load.tokens.data}`, but their tokens reach experts in other ways",
        span_of(dispatch.location),
        help="give the tokens of each router a dim of its own",
    )


def define(module: ModuleOp, load: dist.ExpertLoadOp, program: stg.ProgramOp) -> None:
    names = [load.dim.data, f"{load.dim.data}{dist.MAX}"]
    if load.elsewhere is not None:
        names = sorted(ExpertLoad(load).names)
    sizes = {name: symbol(load.tokens.data) for name in names}
    for copies in copies_of(load):
        own = f"{copies}{dist.SUFFIX}"
        sizes |= dict.fromkeys((f"{copies}{dist.SENT}", own, f"{own}{dist.MAX}"), symbol(copies))
    dims = [stg.DimOp(name, average) for name, average in sizes.items()]
    insert_before(programs(module)[0], [*dims, load], origin=program)


def copies_of(load: dist.ExpertLoadOp | dist.SentLoadOp) -> tuple[str, ...]:
    """The dims of copies for nodes and for devices, if tokens go by way of these."""
    if not isinstance(load, dist.ExpertLoadOp) or load.copies is None:
        return ()
    return load.copies.data


def spread(program: stg.ProgramOp, load: dist.ExpertLoadOp | dist.SentLoadOp) -> None:
    """Rename the dims of tokens and of their copies where they are not as many on each device, and what ops say of them."""
    if isinstance(load, dist.ExpertLoadOp) and load.elsewhere is not None:
        return
    renamed: dict[SSAValue, dict[str, str]] = {}
    for op in program.walk():
        values = [a for region in op.regions for a in region.block.args]
        for value in (*values, *op.results):
            names = new_names(value, load)
            if names:
                retype(value, names)
                renamed[value] = names
    for op in program.walk():
        names = {o: n for v in (*op.operands, *op.results) for o, n in renamed.get(v, {}).items()}
        if isinstance(op, dist.AllToAllOp):
            if names:
                op.properties["load"] = StringAttr(f"{next(iter(names))}{dist.SUFFIX}")
        elif names:
            unequal = any(load.tokens.data in names_of(v) for v in (*op.operands, *op.results))
            if unequal and isinstance(op, stg.TensorOp):
                raise CompileError([added_up(op, load)])
            rename_dims(op, names)


def added_up(op: Operation, load: dist.ExpertLoadOp | dist.SentLoadOp) -> Diagnostic:
    """An op has tokens by expert on one side only."""
    tokens, experts = load.tokens.data, load.experts.data
    return Diagnostic(
        "E0311",
        f"`{tokens}` is a number of tokens of each expert, but here `{experts}` is lost",
        span_of(op.location),
        notes=[
            f"under a load experts have different numbers of tokens, so that none adds up over `{experts}`"
        ],
        help=f"name what the result keeps: a product of values with `{experts}` sums over it otherwise, "
        f"as in `h[{experts}, {tokens}, F] = x @ w`",
    )


def names_of(value: SSAValue) -> tuple[str, ...]:
    """The dims of a tensor, or of each of a stack; none of a shard."""
    leaf = leaf_of(value.type)
    return leaf.names if isinstance(leaf, TensorType) else ()


def new_names(value: SSAValue, load: dist.ExpertLoadOp | dist.SentLoadOp) -> dict[str, str]:
    """What to call a value's dim of tokens, or of copies."""
    leaf = leaf_of(value.type)
    if not isinstance(leaf, TensorType):
        return {}
    if load.tokens.data in leaf.names:
        experts = load.experts.data
        split = experts in leaf.names and leaf.dim(experts).split
        return {load.tokens.data: load.dim.data} if split else {}
    for level, copies in enumerate(copies_of(load), 1):
        if copies in leaf.names:
            # Copies are there when their parts are split as far as they go: nodes over one axis, devices over both.
            there = len(leaf.dims[0].split) == level
            return {copies: f"{copies}{dist.SUFFIX if there else dist.SENT}"}
    return {}


def retype(value: SSAValue, names: Mapping[str, str]) -> None:
    value_type = value.type
    assert isinstance(value_type, TensorType | StackType)
    tensor = value_type.tensor if isinstance(value_type, StackType) else value_type
    local = tensor.with_names(names)
    new = value_type.with_tensor(local) if isinstance(value_type, StackType) else local
    set_type(value, new)
