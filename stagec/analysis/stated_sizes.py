"""What a module says of sizes, weights and its plan, held against each other. For IR that was read, and for what passes of others leave. A mistake is E0709."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import prod

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute, Operation

from stagec.analysis.sizes import mesh_of, size_values
from stagec.diagnostics import CompileError, did_you_mean, quoted, refused, span_of
from stagec.dialects import dist, sched, stg
from stagec.dialects.attributes import NamesAttr, PlacementAttr, sizes_in
from stagec.dialects.op import first_op
from stagec.dialects.types import ALL_POOLS, DTYPE_BITS, TIME_AXIS, StackType, ValueType, tensor_of
from stagec.symbolic import Size
from stagec.symbolic.conditions import unread


def wrong(op: Operation, message: str, help_: str | Sequence[str] = "") -> CompileError:
    return refused("E0709", f"`{op.name}`: {message}", span_of(op.location), help=help_)


def check_stated(module: ModuleOp) -> None:
    """Check that nothing is said twice, that dims have sizes, that axes divide what they split, and that weights have names of their own."""
    check_places(module)
    check_said_once(module)
    values, sequences = unread(size_values(module)), first_op(module, dist.SequencesOp)
    # What a device has none of in the first iteration, it may have in others.
    summed = () if sequences is None else sequences.sizes
    for op in module.body.ops:
        if type(op) is stg.DimOp:
            name, least = op.dim.data, int(op.dim.data not in summed)
            if (number := values.get(name, 1)) < least:
                raise wrong(op, f"`{name}` is {number}, and a dim has {least} or more")
        if type(op) is stg.ProgramOp:
            check_paths(op)
    check_axes(module)
    check_streams(module)
    check_shapes(module, values)
    check_costs(module, values)


SAID_ONCE: dict[type[Operation], str] = {
    **dict.fromkeys((dist.PlanOp, dist.PassesOp, dist.MeshOp, dist.StagesOp), ""),
    **dict.fromkeys((dist.SequencesOp, dist.PoolOp, dist.TowersOp, dist.ExpertsOp), ""),
    sched.ScheduleOp: "",
    stg.DimOp: "dim",
    stg.ProgramOp: "kind",
    dist.ContextOp: "axes",
    dist.SharedOp: "weight",
    dist.ExpertLoadOp: "dim",
    dist.SentLoadOp: "dim",
    sched.ArenaOp: "class_name",
}
"""Of what ops say, each reader takes one: the property by which those of a kind differ, or nothing where a module has one of them."""


OF_THE_MODULE = (
    *SAID_ONCE,
    *(dist.RuleOp, dist.GivesOp, dist.TakesOp, dist.HandedNumbersOp),
    *(sched.StoredOp, sched.TasksOp, sched.RankProgramOp, sched.RanksOp),
)
"""What is read beside programs alone."""


def check_places(module: ModuleOp) -> None:
    """Check that what computes is in a program, what says things of the module beside them, weights in front of loops; and that sums are over microbatches."""
    for op in module.body.ops:
        if op.results or op.operands:
            raise wrong(op, "it is in no `stg.program`")
        for inner in op.walk():
            if inner is not op and isinstance(inner, OF_THE_MODULE):
                raise wrong(inner, f"it is in a `{op.name}`, and is read beside programs alone")
            is_kept = isinstance(inner, stg.WeightOp | stg.CacheOp)
            if is_kept and inner.parent_op() is not op:
                raise wrong(inner, "it is in a loop, and is read in front of them alone")
            if isinstance(inner, stg.AccumulateOp) and inner.axis.data != TIME_AXIS:
                message = f"it is over `{inner.axis.data}`, and microbatches are `{TIME_AXIS}`"
                raise wrong(inner, message)


def check_said_once(module: ModuleOp) -> None:
    """Check that no two ops of a module say the same thing, and no dim is called as an axis."""
    mesh, seen = mesh_of(module), set[tuple[type[Operation], Attribute | None]]()
    for op in module.body.ops:
        by = SAID_ONCE.get(type(op))
        if by is None:
            continue
        key = (type(op), op.properties.get(by))
        if key in seen:
            of = f" with the same `{by}`" if key[1] is not None else ""
            raise wrong(op, f"the module has another one{of}")
        seen.add(key)
        if type(op) is stg.DimOp and op.dim.data in mesh:
            raise wrong(op, f"`{op.dim.data}` is an axis of the mesh")


def check_axes(module: ModuleOp) -> None:
    """Check that ops run over axes that there are, each once, and that only such split what they run over."""
    mesh = axes_of(module)
    for op in module.walk():
        axes = op.properties.get("axes")
        over = axes.data if isinstance(axes, NamesAttr) else ()
        for axis in (*over, *axes_of_placements(op)):
            if axis not in mesh:
                raise wrong(op, f"the mesh has no axis `{axis}`", did_you_mean(axis, mesh))
        for number, axis in enumerate(over):
            if axis in over[:number]:
                raise wrong(op, f"it is over `{axis}` twice")


def axes_of_placements(op: Operation) -> Iterator[str]:
    for attribute in op.properties.values():
        if isinstance(attribute, PlacementAttr):
            for split in attribute.splits.values():
                yield from split


def axes_of(module: ModuleOp) -> Mapping[str, int]:
    """The axes of the mesh, and of a pool that trains with others what goes through all their ranks."""
    pools = first_op(module, dist.TowersOp)
    return mesh_of(module) if pools is None else {**mesh_of(module), ALL_POOLS: 1}


def check_streams(module: ModuleOp) -> None:
    """Check that nodes are on streams that there are, or on one of someone's own beside it: `comm.dp`, `comm.dp.late`."""
    known = [*sched.STREAMS, *map(sched.comm_stream, zip(axes_of(module)))]
    for op in module.walk():
        if isinstance(op, sched.NodeOp):
            name = op.stream.data
            if not any(name == each or name.startswith(f"{each}.") for each in known):
                help_ = did_you_mean(name, known)
                own = f"a stream of your own is called as one of {quoted(known, 'or')} with a dot and a name behind it"
                raise wrong(op, f"there is no stream `{name}`", [*filter(None, [help_]), own])


def check_paths(program: stg.ProgramOp) -> None:
    """Check that each weight and each cache of a program has a path of its own."""
    seen: dict[str, Operation] = {}
    for op in program.walk():
        if isinstance(op, stg.WeightOp | stg.CacheOp):
            if op.path.data in seen:
                raise wrong(op, f"there are two of the path `{op.path.data}`")
            seen[op.path.data] = op


def check_shapes(module: ModuleOp, values: Mapping[str, int]) -> None:
    """Check that axes divide the weights that they split."""
    exact = values.keys() - uneven_dims(module)
    for op in module.walk():
        if isinstance(op, stg.WeightOp | stg.CacheOp):
            for size in sizes_of_type(op.results[0].type):
                number = size.evaluate(values) if size.names <= exact else Fraction(1)
                if number.denominator != 1:
                    raise wrong(op, f"`{size}` is {number}, not a whole number")


def uneven_dims(module: ModuleOp) -> set[str]:
    """The dims that a plan splits into parts that are not all as large."""
    found: set[str] = set()
    for op in module.body.ops:
        rules = op.clauses.data.get("rules") if isinstance(op, dist.PlanOp) else None
        for rule in rules if isinstance(rules, ArrayAttr) else ():
            if isinstance(rule, DictionaryAttr) and "uneven" in rule.data:
                dims = rule.data.get("dims", ArrayAttr(()))
                names = dims if isinstance(dims, ArrayAttr) else ()
                found |= {each.data for each in names if isinstance(each, StringAttr)}
    return found


def sizes_of_type(value_type: Attribute) -> Iterator[Size]:
    """The sizes of a value's dims on one device, and how many elements a stack has."""
    if not isinstance(value_type, ValueType):
        return
    while isinstance(value_type, StackType):
        yield value_type.count
        value_type = value_type.element
    yield from (dim.size for dim in tensor_of(value_type).dims)


RATIOS = {
    "all_gather": (1, 0),
    "reduce_scatter": (0, 1),
    "all_reduce": (0, 0),
    "all_to_all": (0, 0),
}
"""For each collective: whether what goes in, and what comes out, is one part of as many as there are ranks."""


class OneElse(dict[str, int]):
    """Numbers of sizes; 1 for a name that has one on some rank only."""

    def __missing__(self, name: str) -> int:
        return 1


def check_costs(module: ModuleOp, numbers: Mapping[str, int]) -> None:
    """Check what nodes cost and keep.

    Nothing costs less than nothing, a collective leaves what its kind makes of what goes in, and results have room where they are put. (That nothing is read
    when it has been overwritten, is checked of what ranks run: `stagec.memory.value_table`.)
    """
    known: dict[Size, Fraction] = {}
    mesh, values = axes_of(module), OneElse(numbers)

    def number(size: Size) -> Fraction:
        if size not in known:
            known[size] = size.evaluate(values)
        return known[size]

    for op in module.walk():
        if not isinstance(op, sched.NodeOp):
            continue
        for name, each in op.properties.items():
            for size in sizes_in(each):
                if number(size) < 0:
                    raise wrong(op, f"`{name}` is less than nothing: `{size}` is {number(size)}")
        for each in op.memory_effects.overwrites:
            made, taken = op.results[each.result].type, op.operands[each.operand].type
            if not isinstance(made, ValueType) or not isinstance(taken, ValueType):
                continue
            if stg.is_with_positions(tensor_of(taken), tensor_of(made)):
                continue
            if number(made.num_bytes) > number(taken.num_bytes):
                message = f"it puts `{made.num_bytes}` bytes into the memory of operand {each.operand}, which has `{taken.num_bytes}`"
                raise wrong(op, message)
        if isinstance(op, sched.CollectiveOp):
            ranks = prod(mesh[axis] for axis in op.axes.data)
            before, after = (ranks if part else 1 for part in RATIOS[op.kind.data])
            given, left = op.bytes_in.data, op.bytes_out.data
            # Of a bucket that is padded at its end ranks have whole elements of each member: what is over is part of what the end has.
            over = ranks * DTYPE_BITS[op.dtype.data] // 8 if "bucket_end" in stg.marks(op) else 0
            if abs(number(given) * before - number(left) * after) > max(over - 1, 0):
                message = (
                    f"`{op.kind.data}` over {ranks} ranks does not make `{left}` bytes of `{given}`"
                )
                raise wrong(op, message)
