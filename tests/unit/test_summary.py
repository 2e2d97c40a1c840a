"""A summary's numbers are those of the traces, and of a calculation by hand."""

from __future__ import annotations

from collections import Counter

from stagec.backend.encode import encode_traces
from stagec.backend.et_def_pb2 import COMM_COLL_NODE, COMP_NODE, Node
from stagec.backend.et_file import read_records
from stagec.backend.writer import iterate_traces
from stagec.driver import compile_text
from stagec.summary import Parameters, Traffic, summarize

MODEL = """
dim B = 32
dim D = 16
dim F = 64
dim V = 128
dim L = 3

module Mlp(x[B, D]) -> [B, D] {
  weight up[D, F], down[F, D]
  return relu(x @ up) @ down
}

model Net(tokens[B]: i32, targets[B]: i32) {
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = Mlp(x) }
  loss = cross_entropy(x @ head, targets)
}

plan p {
  mesh dp = 2, tp = 4
  shard B over dp
  shard F over tp
  microbatch 4
  precision { weights = bf16, activations = bf16, gradients = fp32, optimizer = fp32 }
}
"""


def test_by_hand():
    compiled = compile_text(MODEL, "net.stg")
    summary = summarize(compiled.module, compiled.counts, "p")
    (each,) = summary.classes
    b, d, f, v, layers, tp, microbatches = 4, 16, 64, 128, 3, 4, 4
    per_microbatch = 3 * 2 * b * (layers * 2 * d * f // tp + d * v)
    assert each.matrix_flops == microbatches * per_microbatch
    assert summary.num_parameters == layers * 2 * d * f + 2 * v * d
    stored = layers * 2 * d * f // tp + 2 * v * d
    assert each.parameters == Parameters(stored, 2 * stored)
    assert (summary.num_ranks, each.num_ranks) == (8, 8)
    # The gradient of each weight, once per step and layer, in fp32.
    (row,) = (row for row in each.traffic if row.axes == ("dp",))
    assert row == Traffic(("dp",), "all_reduce", 2 * layers + 2, 4 * stored, 4 * stored)
    # One all-reduce of x per layer forward, one of its gradient backward, in bf16.
    size = microbatches * 2 * layers * b * d * 2
    (row,) = (row for row in each.traffic if row.axes == ("tp",))
    assert row == Traffic(("tp",), "all_reduce", microbatches * 2 * layers, size, size)


def test_sums_of_the_traces():
    compiled = compile_text(MODEL, "net.stg")
    (each,) = summarize(compiled.module, compiled.counts).classes
    _, data = next(iterate_traces(encode_traces(compiled.trace_set)))
    _, *records = read_records(iter([data]), "trace")
    nodes = [Node.FromString(record) for record in records]
    assert len(nodes) == each.num_nodes
    totals: Counter[str] = Counter()
    for node in nodes:
        values = {a.name: a.int64_val or a.uint64_val for a in node.attr}
        if node.type == COMP_NODE:
            totals["tensor_size"] += values["tensor_size"]
            # An op without FLOPs says 1: ASTRA-sim takes no 0.
            totals["num_ops"] += values["num_ops"] * (values["num_ops"] > 1)
        if node.type == COMM_COLL_NODE:
            totals.update({"collectives": 1, "comm_size": values["comm_size"]})
    assert totals == {
        "num_ops": each.matrix_flops + each.other_flops,
        "tensor_size": each.bytes_moved,
        "collectives": sum(row.count for row in each.traffic),
        "comm_size": sum(row.operand_bytes for row in each.traffic),
    }
