"""Collectives that passes rewrite: rings move the same bytes, and the same is computed."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from stagec.analysis.cost import flops
from stagec.analysis.sizes import size_values
from stagec.backend.encode import encode_traces
from stagec.backend.program import Collective, Transfer
from stagec.backend.writer import write_traces
from stagec.checking import check_traces
from stagec.dialects import dist, stg
from stagec.dialects.types import tensor_of
from stagec.driver import Compiled, compile_text
from stagec.ir_text import parse_ir, verify_ir
from stagec.passes.decompose_all_reduce import DecomposeAllReduce
from stagec.passes.overlap_gathers import OverlapGathers
from stagec.passes.split_collectives import SplitCollectives
from stagec.plugins import registry
from tests.fidelity.totals import model_flops, nodes_of


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
    return [op.name for op in module.walk() if isinstance(op, dist.Collective)]


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


# Gathers round a ring


def gather_text(tp: int, rows: int, width: int, products: int) -> str:
    lines = [
        f'stg.dim "S" = "{rows * tp}"',
        f'stg.dim "D" = "{width}"',
        f'stg.dim "F" = "{3 * tp}"',
        f"dist.mesh <tp = {tp}>",
        '%x, %w = "test.op"() : () -> (!stg.tensor<[S/tp, D], bf16>, !stg.tensor<[D, F/tp], bf16>)',
        '%g = dist.all_gather %x dim "S" over [tp] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>',
    ]
    for number in range(products):
        lines.append(
            f"%y{number} = stg.contract %g, %w over [D] : (!stg.tensor<[S, D], bf16>, "
            "!stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, F/tp], bf16>"
        )
        lines.append(f'"test.op"(%y{number}) : (!stg.tensor<[S, F/tp], bf16>) -> ()')
    return "\n".join(lines) + "\n"


def work(module: ModuleOp) -> tuple[Fraction, Fraction, Fraction]:
    """FLOPs, and how many sends and bytes sent, with each repeat as often as it runs."""
    sizes = size_values(module)
    computed = sent = num_bytes = Fraction(0)
    for op in module.walk():
        parent = op.parent_op()
        times = Fraction(1)
        if isinstance(parent, stg.RepeatOp):
            times = Fraction(parent.count.data.evaluate(sizes))
        if isinstance(op, stg.ContractOp):
            computed += times * flops(op).evaluate(sizes)
        elif isinstance(op, dist.SendOp):
            sent += times
            for value in op.values:
                num_bytes += times * tensor_of(value.type).num_bytes.evaluate(sizes)
    return computed, sent, num_bytes


@given(st.integers(min_value=2, max_value=9), ROWS, ROWS, st.integers(min_value=1, max_value=3))
def test_ring_computes_the_same_and_hands_on_all_other_shards(
    tp: int, rows: int, width: int, products: int
):
    text = gather_text(tp, rows, width, products)
    whole = parse(text)
    computed, sent, num_bytes = work(after(text, [OverlapGathers("tp")]))
    assert computed == work(whole)[0] == products * 2 * rows * tp * width * 3
    assert sent == tp - 1
    assert num_bytes == ring_bytes(whole)


MODEL = """
dim B = 2
dim S = 32
dim D = 16
dim F = 64

model Net(x[B, S, D]) {
  weight norm[D], up[D, F], gate[D, F], down[F, D]
  h = x * norm
  loss = mean(h + (silu(h @ up) * (h @ gate)) @ down, over = [B, S, D])
}

plan p {
  mesh tp = 4
  shard F over tp
  shard S over tp
  CLAUSES
}
"""


def compiled(clauses: str, tp: int = 4) -> Compiled:
    text = MODEL.replace("CLAUSES", clauses).replace("tp = 4", f"tp = {tp}")
    return compile_text(text, "net.stg", "p")


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_overlapped_model_computes_the_same(tp: int):
    plain, overlapped = compiled("", tp), compiled('pass overlap-gathers { axis = "tp" }', tp)
    assert model_flops(plain.trace_set) == model_flops(overlapped.trace_set)

    def gathers(compilation: Compiled) -> int:
        return sum(
            count
            for rank_class in compilation.trace_set.classes
            for node, count in nodes_of(rank_class)
            if isinstance(node.action, Collective) and node.op == "all_gather"
        )

    for rank_class in overlapped.trace_set.classes:
        sent = sum(
            count
            for node, count in nodes_of(rank_class)
            if isinstance(node.action, Transfer) and node.op == "send"
        )
        replaced = gathers(plain) - gathers(overlapped)
        assert replaced > 0
        assert sent == replaced * (tp - 1)


@pytest.mark.parametrize("tp", [2, 4])
def test_traces_of_rings_hold_together(tmp_path: Path, tp: int):
    made = compiled('pass overlap-gathers { axis = "tp" }', tp)
    write_traces(encode_traces(made.trace_set), str(tmp_path))
    report = check_traces(tmp_path)
    assert not report.findings, report.findings
