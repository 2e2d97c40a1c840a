"""Types of the dialects: text, sizes and bytes on one device."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.ir import Attribute
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from stagec.dialects.attributes import NamesAttr, PlacementAttr, SizeAttr
from stagec.dialects.dist import Dist, MeshAttr
from stagec.dialects.dist.mesh import MeshAxes
from stagec.dialects.stg import Stg
from stagec.dialects.types import (
    BLOCKS,
    DTYPE_BITS,
    SCALES,
    TIME_AXIS,
    Dim,
    ShardType,
    StackType,
    TensorType,
    tensor_of,
    unscaled_bytes,
)
from stagec.symbolic import constant, parse, symbol
from tests.unit.seldom import some

DIMS = ("B", "S", "D", "H")
AXES = ("dp", "cp", "tp", "ep")
SIZES = {"B": 16, "S": 32, "D": 48, "H": 64, "dp": 2, "cp": 2, "tp": 4, "ep": 2, "L": 3}


def context() -> Context:
    made = Context()
    for dialect in (Builtin, Stg, Dist):
        made.load_dialect(dialect)
    return made


def read(text: str) -> Attribute:
    return Parser(context(), text).parse_attribute()


@st.composite
def tensors(draw: st.DrawFn) -> TensorType:
    """Each axis splits one dim, or is summed over, or does neither."""
    names = draw(st.lists(st.sampled_from(DIMS), unique=True))
    places = {a: draw(st.sampled_from([*names, "partial", "none"])) for a in AXES}
    order = draw(st.permutations(AXES))
    dims = [Dim(n, tuple(a for a in order if places[a] == n)) for n in names]
    partial = [a for a in order if places[a] == "partial"]
    return TensorType.of(dims, draw(st.sampled_from(sorted(DTYPE_BITS))), partial)


values = st.recursive(
    tensors() | st.builds(ShardType.of, tensors(), st.just(("zero",))),
    lambda inner: st.builds(StackType.of, st.sampled_from([symbol("L"), parse("2*L")]), inner),
    max_leaves=3,
)


@given(values)
def test_types_print_and_parse(value_type: Attribute):
    assert read(str(value_type)) == value_type


@pytest.mark.parametrize(
    "attribute",
    [
        SizeAttr(parse("2*B*S/dp + ceildiv(S, 3)")),
        NamesAttr(("cp", "tp")),
        NamesAttr(()),
        PlacementAttr.of({"B": ("dp",), "S": ("cp", "tp"), "D": ()}),
        MeshAttr(MeshAxes((("dp", 2), ("tp", 4)))),
    ],
)
def test_attributes_print_and_parse(attribute: Attribute):
    assert read(str(attribute)) == attribute


@given(tensors())
def test_local_elements_times_splits_are_global_elements(tensor: TensorType):
    ways = 1
    for axis in tensor.split_axes:
        ways *= SIZES[axis]
    local, whole = (t.num_elements.evaluate(SIZES) for t in (tensor, tensor.unsplit))
    assert local * ways == whole
    assume(tensor.dtype not in BLOCKS)
    sharing, scale_bytes = SCALES.get(tensor.dtype, (1, 0))
    scales = -(-local // sharing) * scale_bytes
    assert tensor.num_bytes.evaluate(SIZES) == local * DTYPE_BITS[tensor.dtype] / 8 + scales


@pytest.mark.parametrize("dtype", some(BLOCKS, 3))
@given(
    sizes=st.lists(st.sampled_from([1, 3, 16, 33, 129]), min_size=1, max_size=3),
    kinds=st.lists(st.sampled_from(["over", "free", "apart"]), min_size=3, max_size=3),
    seed=st.randoms(use_true_random=False),
)
def test_each_tile_has_a_scale(
    dtype: str, sizes: list[int], kinds: list[str], seed: random.Random
) -> None:
    """Elements are walked through, one by one; those with a scale in common are of one tile of one matrix."""
    assume(np.prod(sizes) <= 129 * 129 * 3)
    names: list[str] = ["B", "S", "D"][: len(sizes)]
    roles = dict(zip(names, kinds, strict=False))
    chosen = {role: [n for n in names if roles[n] == role] for role in ("over", "free", "apart")}
    tensor = TensorType.of(names, "bf16").quantized(dtype, chosen["over"], chosen["apart"])
    tensor = tensor.transposed(seed.sample(names, len(names)))
    assert read(str(tensor)) == tensor
    numbers = dict(zip(names, np.indices(sizes).reshape(len(sizes), -1), strict=True))
    sides: dict[str, int] = dict(zip(("over", "free"), BLOCKS[dtype], strict=False))
    shared = []
    for role, members in chosen.items():
        row = np.zeros(np.prod(sizes), int)
        for name in members:
            row = row * sizes[names.index(name)] + numbers[name]
        shared.append(row // sides.get(role, 1))
    scales = len(np.unique(np.stack(shared), axis=1).T)
    elements = unscaled_bytes(constant(int(np.prod(sizes))), dtype).evaluate({})
    found = tensor.num_bytes.evaluate(dict(zip(names, sizes, strict=True)))
    assert found == elements + scales * SCALES[dtype][1]


@given(tensors())
def test_splits_describe_a_tensor(tensor: TensorType):
    again = tensor.unsplit.with_splits(tensor.splits).with_partial(tensor.partial)
    assert again == tensor


def test_elements_of_one_device():
    tensor = TensorType.of([Dim("B", ("dp",)), Dim("S", ("cp", "tp")), "D"], "bf16", ["ep"])
    assert str(tensor) == "!stg.tensor<[B/dp, S/(cp*tp), D], bf16, partial [ep]>"
    assert tensor.num_elements == parse("B*S*D/(dp*cp*tp)")
    assert tensor.num_bytes == parse("2*B*S*D/(dp*cp*tp)")


def test_a_number_is_one_element():
    assert TensorType.of((), "fp32").num_bytes == 4


def test_stacks_count_through_levels():
    tensor = TensorType.of(["D"], "bf16")
    nested = StackType.of(symbol("L"), StackType.of(symbol("M"), tensor))
    assert nested.num_bytes == parse("2*D*L*M")
    assert nested.leaf == tensor_of(nested) == tensor
    shard = ShardType.of(tensor, ("dp",))
    assert nested.with_tensor(shard).num_elements == parse("L*M*ceildiv(D, dp)")


@pytest.mark.parametrize(
    ("dims", "ranks", "elements"),
    [
        # FSDP2 pads dim 0: 10 rows over 4 ranks are 3 each (torch.chunk: 3, 3, 3, 1).
        ((10, 8), 4, 24),
        ((12, 8), 4, 24),
        # A bias has a row per element.
        ((10,), 4, 3),
        # Fewer rows than ranks: the first ones have one each, the others padding.
        ((3, 8), 4, 8),
        # All dims but the last are rows.
        ((2, 5, 8), 4, 24),
        ((), 4, 1),
    ],
)
def test_stored_shards_are_padded_rows(dims: tuple[int, ...], ranks: int, elements: int):
    names = DIMS[: len(dims)]
    shard = ShardType.of(TensorType.of(names, "fp32"), ("dp",))
    sizes = {**dict(zip(names, dims, strict=True)), "dp": ranks}
    assert shard.num_elements.integer(sizes) == elements
    assert shard.num_bytes.integer(sizes) == 4 * elements


def test_nothing_is_partial_over_time():
    tensor = TensorType.of([Dim("B", (TIME_AXIS, "dp"))], "fp32", [TIME_AXIS, "tp"])
    assert tensor.partial == ("tp",)
    assert tensor.with_partial([TIME_AXIS]).partial == ()


def test_time_is_the_major_axis():
    tensor = TensorType.of([Dim("B", ("dp",)), "D"], "fp32")
    assert str(tensor.split_in_time("B", TIME_AXIS)) == "!stg.tensor<[B/(mb*dp), D], fp32>"
    assert tensor.split_in_time("S", TIME_AXIS) == tensor


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!stg.tensor<[B], float>", "`float` is not a dtype"),
        ("!stg.tensor<[B, B], fp32>", r"a dim appears twice in \[B, B\]"),
        ("!stg.tensor<[B/tp, S/tp], fp32>", "an axis is used twice"),
        ("!stg.tensor<[B/tp], fp32, partial [tp]>", "an axis is used twice"),
        ("!stg.tensor<[B/(tp*tp)], fp32>", "an axis is used twice"),
        ("!stg.stack<3 x !stg.tensor<[B], fp32>>", "expected a size"),
        ('!stg.stack<"L" x i32>', "expected a tensor, a shard or a stack"),
        ('!stg.stack<"L L" x !stg.tensor<[B], fp32>>', "`L L` is not a size"),
        ("!dist.shard<i32 over [dp]>", "expected a tensor"),
        ("!dist.shard<!stg.tensor<[B/dp], fp32> over [dp]>", "an axis is used twice"),
    ],
)
def test_types_that_are_none(text: str, message: str):
    with pytest.raises((ParseError, VerifyException), match=message):
        read(text)
