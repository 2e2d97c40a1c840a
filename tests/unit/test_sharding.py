"""Rules, and changes of placement: what they are, what they move, what their gradients are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import event, given, settings, strategies as st
from xdsl.context import Context
from xdsl.dialects import test as xdsl_test
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.utils.test_value import create_ssa_value

from stagec.analysis.placement import PlacementRule, op_splits, split_dims
from stagec.analysis.sizes import size_values
from stagec.diagnostics import CompileError
from stagec.dialects import dist, stg
from stagec.dialects.attributes import Dim
from stagec.dialects.types import TensorType
from stagec.driver import Stops, compile_text
from stagec.passes import load_pass
from stagec.rewriting import set_type
from tests.unit.numeric.interpreter import Runner
from tests.unit.numeric.machine import Array, Machine
from tests.unit.numeric.models import GPT, LLAMA
from tests.unit.numeric.training import ONE_DEVICE, Model
from tests.unit.seldom import some

DIMS = ("B", "S", "D")
AXES = ("dp", "cp", "tp")
SIZES = {"dp": 2, "cp": 2, "tp": 2, "B": 8, "S": 8, "D": 8}
MESH = {a: SIZES[a] for a in AXES}

# Rules


rules = st.builds(
    PlacementRule,
    st.lists(st.sampled_from(DIMS), min_size=1, unique=True).map(tuple),
    st.lists(st.sampled_from(AXES), min_size=1, unique=True).map(tuple),
)


@given(st.lists(st.sampled_from(DIMS), unique=True), st.lists(rules, max_size=4), rules)
def test_an_axis_splits_one_dim_and_earlier_rules_win(
    names: list[str], known: list[PlacementRule], last: PlacementRule
):
    splits = split_dims(names, known)
    used = [axis for axes in splits.values() for axis in axes]
    assert len(used) == len(set(used))
    assert splits.keys() <= set(names)
    more = split_dims(names, [*known, last])
    for dim, axes in splits.items():
        assert more[dim][: len(axes)] == axes


def test_within_a_rule_dims_then_axes():
    assert split_dims(["S", "B"], [PlacementRule(("B", "S"), ("dp", "tp"))]) == {"B": ("dp", "tp")}
    two = [PlacementRule(("S",), ("cp",)), PlacementRule(("B", "S"), ("dp", "cp"))]
    assert split_dims(["B", "S"], two) == {"S": ("cp",), "B": ("dp",)}


@given(st.lists(rules, max_size=4))
def test_an_op_is_split_where_a_value_of_it_is(known: list[PlacementRule]):
    left = create_ssa_value(TensorType.of(["B", "D"], "bf16"))
    right = create_ssa_value(TensorType.of(["D", "S"], "bf16"))
    op = stg.ContractOp(left, right, ["D"])
    splits = op_splits(op, known)
    used = [axis for axes in splits.values() for axis in axes]
    assert len(used) == len(set(used))
    values = [split_dims(v, known) for v in (("B", "D"), ("D", "S"), ("B", "S"))]
    for index, axes in splits.items():
        assert set(axes) <= {a for value in values for a in value.get(index, ())}


# Changes of placement


@st.composite
def placements(draw: st.DrawFn, partial: bool) -> TensorType:
    kinds = [*DIMS, "none", *(["partial"] if partial else [])]
    places = {a: draw(st.sampled_from(kinds)) for a in AXES}
    order = draw(st.permutations(AXES))
    dims = [Dim(n, tuple(a for a in order if places[a] == n)) for n in DIMS]
    return TensorType.of(dims, "fp32", sorted(a for a in AXES if places[a] == "partial"))


def value_of(tensor: TensorType, whole: Array, machine: Machine) -> Array:
    """What devices hold of a global array: parts, or terms of it."""
    generator = np.random.default_rng(0)
    value = machine.spread(whole, tensor.with_partial(()))
    for axis in tensor.partial:
        shares = generator.uniform(-1, 1, MESH[axis])
        shares[-1] += 1 - shares.sum()
        place = [1] * value.ndim
        place[machine.axes.index(axis)] = MESH[axis]
        value = value * shares.reshape(place)
    return value


def steps(
    source: TensorType, target: TensorType, *, at_once: bool = False
) -> tuple[list[dist.Movement], Operation]:
    """What `insert-collectives` makes of a change of placement, and what reads the result."""
    start = xdsl_test.TestOp(result_types=[source])
    reshard = dist.ReshardOp(start.results[0], target, at_once=at_once)
    end = xdsl_test.TestOp(operands=[reshard.result])
    module = ModuleOp([start, reshard, end])
    load_pass("insert-collectives")().apply(Context(), module)
    module.verify()
    return [op for op in module.body.ops if isinstance(op, dist.Movement)], end


@settings(max_examples=150, deadline=None)
@given(placements(partial=True), placements(partial=False), st.booleans())
def test_collectives_make_the_change(source: TensorType, target: TensorType, at_once: bool):
    machine = Machine(MESH, SIZES)
    whole = np.random.default_rng(1).normal(size=(8, 8, 8))
    try:
        moves, end = steps(source, target, at_once=at_once)
    except CompileError as error:
        # Only an axis that has to leave, or to enter, before one that stays.
        assert [d.code for d in error.diagnostics] == ["E0307"]
        event("permutes")
        return
    runner = Runner(machine, {}, [])
    value = value_of(source, whole, machine)
    for op in moves:
        runner.values[op.operand] = value
        value = runner.moved(op)
        check_bytes(op)
        runner.values[op.result] = value
    if not moves:
        assert source == target
        return
    if at_once:
        assert sum(isinstance(op, dist.AllGatherOp) for op in moves) <= 1
    assert end.operands[0].type == target
    np.testing.assert_allclose(value, machine.spread(whole, target), atol=1e-12)


def check_bytes(op: dist.Movement) -> None:
    """What a collective makes of the bytes of a device."""
    before, after = (t.num_bytes.evaluate(SIZES) for t in (op.source, op.target))
    axes = op.axes.data if isinstance(op, dist.CollectiveBase | dist.SliceOp) else ()
    ways = int(np.prod([SIZES[a] for a in axes]))
    match op:
        case dist.AllGatherOp():
            assert after == before * ways
        case dist.ReduceScatterOp() | dist.SliceOp():
            assert after * ways == before
        case dist.AllReduceOp() | dist.AllToAllOp():
            assert after == before


@settings(max_examples=100, deadline=None)
@given(placements(partial=False), placements(partial=False))
def test_a_split_can_be_undone_from_the_minor_axis(source: TensorType, target: TensorType):
    """A placement whose axes follow another's, or lead them, is never refused."""
    for before, after in zip(source.dims, target.dims, strict=True):
        shorter, longer = sorted((before.split, after.split), key=len)
        if longer[: len(shorter)] != shorter:
            return
    moves, _ = steps(source, target)
    assert len([op for op in moves if isinstance(op, dist.CollectiveBase)]) <= len(AXES)


# Gradients of changes


def parse_type(text: str) -> TensorType:
    """`B/dp S D; tp`: dims, then the axes that the value is partial over."""
    dims, _, partial = text.partition(";")
    named = [
        Dim(name, tuple(filter(None, axes.split("*"))))
        for name, _, axes in (d.partition("/") for d in dims.split())
    ]
    return TensorType.of(named, "fp32", partial.split())


@pytest.mark.parametrize(
    ("before", "after", "forward", "backward"),
    [
        ("S/tp D", "S D", "all_gather", "slice"),
        ("S D", "S/tp D", "slice", "all_gather"),
        ("S/tp D", "S D/tp", "all_to_all", "all_to_all"),
        ("S D; tp", "S/tp D", "reduce_scatter", "all_gather"),
        ("S D; tp", "S D", "all_reduce", ""),
        ("S/cp*tp D", "S D", "all_gather", "slice"),
        ("S/cp D; tp", "S D", "all_reduce all_gather", "slice"),
        ("S D; cp tp", "S/tp D", "reduce_scatter all_reduce", "all_gather"),
    ],
)
def test_the_gradient_of_a_change_is_its_transpose(
    before: str, after: str, forward: str, backward: str
):
    """With a reader that needs what it gets: each device then has the same cotangent of the same."""
    weight = stg.WeightOp("w", like=TensorType.of(["S", "D"], "fp32"))
    source = parse_type(before)
    made = stg.UnaryOp("exp", weight.weight)
    start = PlacedSo(made.result, source)
    moved = dist.ReshardOp(start.result, parse_type(after))
    read = stg.UnaryOp("tanh", moved.result)
    loss = stg.ReduceOp("sum", read.result, ["S", "D"])
    block = Block([weight, made, start, moved, read, loss, stg.OutputOp([loss.result])])
    module = ModuleOp([stg.ProgramOp("M", Region(block))])
    for name in ("build-backward", "insert-collectives"):
        load_pass(name)().apply(Context(), module)
    kinds: dict[bool, list[str]] = {True: [], False: []}
    for op in module.walk():
        if isinstance(op, dist.Movement):
            kinds[stg.phase_of(op) == "fwd"].append(op.name.removeprefix("dist."))
    assert " ".join(kinds[True]) == forward
    assert " ".join(kinds[False][:1]) == backward


class PlacedSo(stg.CastOp):
    """Makes a value of any placement, as an op on a weight would."""

    def __init__(self, x: SSAValue, result_type: TensorType) -> None:
        super().__init__(x, "fp32")
        set_type(self.result, result_type)


# FLOPs


def products(module: ModuleOp) -> Iterator[tuple[stg.ContractOp, int]]:
    """The contractions of a module, and how often each runs."""
    sizes = size_values(module)
    for op in module.walk():
        if isinstance(op, stg.ContractOp):
            times, parent = 1, op.parent_op()
            while parent is not None:
                if isinstance(parent, stg.RepeatOp):
                    times *= parent.count.data.integer(sizes)
                if isinstance(parent, stg.AccumulateOp):
                    times *= sizes[parent.axis.data]
                parent = parent.parent_op()
            yield op, times


def total_flops(module: ModuleOp) -> int:
    sizes = size_values(module)
    return sum(op.flops().integer(sizes) * times for op, times in products(module))


@pytest.mark.parametrize("model", some([LLAMA, GPT], 3), ids=["llama", "gpt"])
@pytest.mark.parametrize(
    ("plan", "ranks"),
    [
        ("mesh dp = 4\nshard B over dp", 4),
        ("mesh dp = 2\nshard B over dp\nmicrobatch 1", 2),
        ("mesh dp = 2, tp = 2\nshard B over dp\nshard H, K, F, V over tp", 4),
        ("mesh dp = 2, tp = 2\nshard B over dp\nshard H, K, F, V over tp\nshard S over tp", 4),
    ],
)
def test_ranks_share_what_one_device_computes(model: Model, plan: str, ranks: int):
    """Every contraction is split over every axis: FLOPs summed over ranks are those of one device."""
    stops = Stops(after="insert-collectives")
    text = f"{model.text}\nplan spread {{\n{plan}\noptimizer sgd\n}}\n{ONE_DEVICE}"
    one = compile_text(text, plan="one_device", stops=stops).module
    spread = compile_text(text, plan="spread", stops=stops).module
    assert total_flops(spread) * ranks == total_flops(one)


def test_replicated_ranks_compute_the_same():
    """Over an axis that splits nothing each rank does all of it."""
    stops = Stops(after="insert-collectives")
    text = f"{LLAMA.text}\nplan spread {{ mesh tp = 2\n optimizer sgd }}\n{ONE_DEVICE}"
    one = compile_text(text, plan="one_device", stops=stops).module
    spread = compile_text(text, plan="spread", stops=stops).module
    assert total_flops(spread) == total_flops(one)
    assert not Counter(op.name for op in spread.walk() if isinstance(op, dist.CollectiveBase))
