"""Collectives that passes rewrite: rings move the same bytes, and the same is computed."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod

from hypothesis import given, strategies as st
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from stagec.analysis.sizes import size_values
from stagec.dialects import dist
from stagec.ir_text import parse_ir, verify_ir
from stagec.passes.collectives.decompose_all_reduce import DecomposeAllReduce
from stagec.passes.collectives.split_collectives import SplitCollectives
from stagec.plugins import registry


def parse(text: str) -> ModuleOp:
    context = Context()
    for name, factory in registry().dialects.items():
        context.register_dialect(name, factory)
    return parse_ir(context, text, "case.mlir")


def after(text: str, passes: Sequence[ModulePass]) -> ModuleOp:
    module = parse(text)
    for step in passes:
        step.apply(Context(), module)
        verify_ir(module)
    return module


def ring_bytes(module: ModuleOp) -> Fraction:
    """What a device sends on rings (Thakur et al. 2005, section 4).

    An all-gather and a reduce-scatter over n devices send (n-1)/n of the whole, an all-reduce both.
    """
    sizes = size_values(module)
    total = Fraction(0)
    for op in module.walk():
        if isinstance(op, dist.AllReduceOp | dist.ReduceScatterOp | dist.AllGatherOp):
            ways = prod(sizes[a] for a in op.axes.data)
            whole = op.target if isinstance(op, dist.AllGatherOp) else op.source
            times = 2 if isinstance(op, dist.AllReduceOp) else 1
            total += times * whole.num_bytes.evaluate(sizes) * Fraction(ways - 1, ways)
    return total


def kinds(module: ModuleOp) -> list[str]:
    return [op.name for op in module.walk() if isinstance(op, dist.CollectiveBase)]


WAYS = st.integers(min_value=1, max_value=9)
ROWS = st.integers(min_value=1, max_value=50)
DTYPES = st.sampled_from(["bf16", "fp32"])


@given(WAYS, WAYS, ROWS, ROWS, DTYPES)
def test_decomposed_all_reduce_sends_the_same(tp: int, dp: int, rows: int, width: int, dtype: str):
    text = f"""
stg.dim "S" = "{rows * tp}"
stg.dim "D" = "{width}"
dist.mesh <dp = {dp}, tp = {tp}>
%x, %y = "test.op"() : () -> (!stg.tensor<[S, D], {dtype}, partial [tp]>, !stg.tensor<[S, D], {dtype}, partial [dp]>)
%a = dist.all_reduce "sum" %x over [tp] : !stg.tensor<[S, D], {dtype}, partial [tp]> -> !stg.tensor<[S, D], {dtype}>
%b = dist.all_reduce "sum" %y over [dp] : !stg.tensor<[S, D], {dtype}, partial [dp]> -> !stg.tensor<[S, D], {dtype}>
"""
    made = after(text, [DecomposeAllReduce("tp", "S")])
    assert kinds(made) == ["dist.reduce_scatter", "dist.all_gather", "dist.all_reduce"]
    assert ring_bytes(made) == ring_bytes(parse(text))


@given(WAYS, WAYS, WAYS, ROWS, st.permutations(["a", "b", "c"]))
def test_levels_of_gathers_and_scatters_send_the_same(
    a: int, b: int, c: int, rows: int, order: list[str]
):
    axes, split = ", ".join(order), "*".join(order)
    text = f"""
stg.dim "S" = "{rows * a * b * c}"
dist.mesh <a = {a}, b = {b}, c = {c}>
%x, %y = "test.op"() : () -> (!stg.tensor<[S/({split})], bf16>, !stg.tensor<[S], bf16, partial [a, b, c]>)
%g = dist.all_gather %x dim "S" over [{axes}] : !stg.tensor<[S/({split})], bf16> -> !stg.tensor<[S], bf16>
%r = dist.reduce_scatter %y dim "S" over [{axes}] : !stg.tensor<[S], bf16, partial [a, b, c]> -> !stg.tensor<[S/({split})], bf16>
"""
    made = after(text, [SplitCollectives(("a", "b", "c"))])
    assert kinds(made) == ["dist.all_gather"] * 3 + ["dist.reduce_scatter"] * 3
    assert ring_bytes(made) == ring_bytes(parse(text))


@given(WAYS, WAYS, ROWS)
def test_levels_of_an_all_reduce_send_as_much_as_each_alone(a: int, b: int, rows: int):
    """The second level reduces all of it again: that is why it is worth it only over slow links."""
    text = f"""
stg.dim "S" = "{rows}"
dist.mesh <a = {a}, b = {b}>
%x = "test.op"() : () -> !stg.tensor<[S], bf16, partial [a, b]>
%r = dist.all_reduce "sum" %x over [a, b] : !stg.tensor<[S], bf16, partial [a, b]> -> !stg.tensor<[S], bf16>
"""
    made = after(text, [SplitCollectives(("a", "b"))])
    assert ring_bytes(made) == 2 * 2 * rows * (Fraction(a - 1, a) + Fraction(b - 1, b))
    assert ring_bytes(made) >= ring_bytes(parse(text))
