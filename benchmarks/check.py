"""Check 4,096 ranks of Llama 3 70B: wall time and memory of `stagec check`.

    python -m benchmarks.check [--ranks 4096] [--microbatches 8] [--layers 80] [--keep DIR]
    python -m benchmarks.check --directory DIR

The traces are written by this script, without the compiler: one program per pipeline stage, tensor
and data parallel within, each node with its name, costs and group. Each rank has a file of its own.
"""

import argparse
import json
import os
import resource
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from stagec.checking import check_traces
from tests.corpus.good import Rank, one_f_one_b
from tests.corpus.traces import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Node, encode_node, varint

# Llama 3 70B (arXiv:2407.21783, table 3), sequences of 8,192 tokens, bf16.
DIM, FFN, HEADS, KV_HEADS, VOCABULARY, SEQUENCE = 8192, 28672, 64, 8, 128256, 8192
TP, PP = 8, 8
GROUP_DIGITS, RANK_BYTES = 5, 3


@dataclass
class Hole:
    """Bytes of a template that differ between ranks."""

    at: int
    kind: str  # "tp" | "dp" | "before" | "after"


def stage_nodes(stage: int, layers: int, microbatches: int) -> list[Node]:
    build = Rank()
    last: Node | None = None
    comm: Node | None = None
    saved: dict[int, Node] = {}
    hidden = 2 * SEQUENCE * DIM
    shard = hidden // TP

    def comp(name: str, flops: int, num_bytes: int) -> None:
        nonlocal last
        last = build.comp(name, last)
        last.set("num_ops", flops)
        last.set("tensor_size", num_bytes)

    def coll(name: str, kind: int, group: str, size: int) -> None:
        nonlocal last, comm
        last = comm = build.coll(name, kind, size, group, last, comm)

    def layer_pass(prefix: str, factor: int) -> None:
        matmul = 2 * SEQUENCE * DIM
        coll(f"{prefix}/attention/gather", ALL_GATHER, "tp", shard)
        for name, width in (("wq", DIM), ("wk", DIM // 8), ("wv", DIM // 8)):
            comp(f"{prefix}/attention/{name}", factor * matmul * width // TP, hidden)
        comp(f"{prefix}/attention/rope", SEQUENCE * DIM, hidden)
        comp(f"{prefix}/attention/sdpa", factor * 2 * SEQUENCE * SEQUENCE * DIM // TP, hidden)
        comp(f"{prefix}/attention/wo", factor * matmul * DIM // TP, hidden)
        coll(f"{prefix}/attention/scatter", REDUCE_SCATTER, "tp", hidden)
        comp(f"{prefix}/norm", 4 * SEQUENCE * DIM, hidden)
        coll(f"{prefix}/ffn/gather", ALL_GATHER, "tp", shard)
        for name in ("gate", "up", "silu", "down"):
            comp(f"{prefix}/ffn/{name}", factor * matmul * FFN // TP, hidden)
        coll(f"{prefix}/ffn/scatter", REDUCE_SCATTER, "tp", hidden)

    for kind, m in one_f_one_b(stage, PP, microbatches):
        if kind == "F":
            if stage > 0:
                last = build.recv(f"fwd/recv/m{m:03}", 0, shard, 2 * m, last)
            for layer in range(layers):
                layer_pass(f"fwd/Block/L{layer:03}/m{m:03}", 1)
            assert last is not None
            saved[m] = last
            if stage < PP - 1:
                comm = build.send(f"fwd/send/m{m:03}", 1, shard, 2 * m, last, comm)
        else:
            if stage < PP - 1:
                last = build.recv(f"bwd/recv/m{m:03}", 1, shard, 2 * m + 1, last, saved[m])
            for layer in reversed(range(layers)):
                layer_pass(f"bwd/Block/L{layer:03}/m{m:03}", 2)
            if stage > 0:
                comm = build.send(f"bwd/send/m{m:03}", 0, shard, 2 * m + 1, last, comm)
    for layer in reversed(range(layers)):
        size = (2 * DIM * DIM * 9 // 8 + 3 * DIM * FFN) * 4 // TP
        coll(f"grad/Block/L{layer:03}", ALL_REDUCE, "dp", size)
    comp("optimizer/adamw", 10**9, 10**9)
    return build.nodes


def template(stage: int, layers: int, microbatches: int) -> tuple[bytearray, list[Hole]]:
    """A stage's trace, and where the ranks of the stage differ."""
    data = bytearray(varint(0))
    holes: list[Hole] = []
    for node in stage_nodes(stage, layers, microbatches):
        kind = node.get("pg_name")
        if kind:
            node.set("pg_name", "#" * GROUP_DIGITS)
        marker = b"#" * GROUP_DIGITS
        widths = {"comm_src": RANK_BYTES, "comm_dst": RANK_BYTES}
        message = encode_node(node, widths)
        start = len(data) + len(varint(len(message)))
        if isinstance(kind, str):
            holes.append(Hole(start + message.index(marker), kind))
        for name in ("comm_src", "comm_dst"):
            side = node.get(name)
            if side is not None:
                # The value follows the name and the field's tag.
                at = message.index(name.encode()) + len(name) + 1
                holes.append(Hole(start + at, ("before", "after")[int(str(side))]))
        data += varint(len(message)) + message
    return data, holes


def write_set(directory: Path, ranks: int, layers: int, microbatches: int) -> int:
    """Write the set; returns its bytes."""
    dp = ranks // (TP * PP)
    groups: dict[str, list[int]] = {}
    stride = dp * TP
    total = 0
    for stage in range(PP):
        data, holes = template(stage, layers // PP, microbatches)
        for d in range(dp):
            for t in range(TP):
                rank = (stage * dp + d) * TP + t
                # Even and odd: the two groups of a rank must differ modulo 500.
                tp_group, dp_group = 10000 + 2 * (rank // TP), 10001 + 2 * (stage * TP + t)
                groups.setdefault(str(tp_group), []).append(rank)
                groups.setdefault(str(dp_group), []).append(rank)
                values = {
                    "tp": str(tp_group).encode(),
                    "dp": str(dp_group).encode(),
                    "before": varint(max(0, rank - stride), RANK_BYTES),
                    "after": varint(rank + stride, RANK_BYTES),
                }
                patched = bytearray(data)
                for hole in holes:
                    value = values[hole.kind]
                    patched[hole.at : hole.at + len(value)] = value
                (directory / f"llama3_70b.{rank}.et").write_bytes(patched)
                total += len(patched)
    (directory / "comm_group.json").write_text(json.dumps(groups))
    return total


def peak_bytes() -> int:
    """The largest resident size of this process and the largest of its children, together."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(resource.getrusage(kind).ru_maxrss * 1024 for kind in kinds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--keep", type=Path, help="write the set here, and leave it")
    parser.add_argument("--directory", type=Path, help="check this set instead")
    arguments = parser.parse_args()
    if arguments.ranks < TP * PP or arguments.layers < PP:
        parser.error(f"it takes {TP * PP} ranks or more, and {PP} layers")
    made = arguments.directory is None
    directory = arguments.directory or arguments.keep or Path(tempfile.mkdtemp(prefix="check"))
    directory.mkdir(exist_ok=True)
    try:
        if made:
            begin = time.perf_counter()
            size = write_set(directory, arguments.ranks, arguments.layers, arguments.microbatches)
            print(f"wrote {size / 1e9:.2f} GB in {time.perf_counter() - begin:.1f} s")
        begin, cpu = time.perf_counter(), os.times()
        report = check_traces(directory, jobs=arguments.jobs)
        wall, after = time.perf_counter() - begin, os.times()
        used = sum(after[:4]) - sum(cpu[:4])
        print(report.text())
        print(f"{wall:.1f} s wall, {used:.1f} s CPU, {peak_bytes() / 1e6:.0f} MB (parent + worker)")
    finally:
        if made and not arguments.keep:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
