"""`--track-memory` of random plans: a tracker that adds up the tensors of the traces, and the plan of memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import numpy as np

from stagec.backend.encode import encode_traces
from stagec.backend.encoded import TraceOptions
from stagec.backend.et_def_pb2 import Node
from stagec.backend.et_file import TraceReader
from stagec.backend.writer import iterate_traces
from stagec.diagnostics import CompileError
from stagec.driver import Compiled, compile_text
from stagec.memory import ClassPlan
from stagec.tracking.releases import RELEASE
from tests.differential.further_plans import draw_further
from tests.differential.random_plans import Drawn, draw

UNEVEN = {"D": (18, 22, 37), "F": (53, 70), "V": (33, 41), "E": (6, 10), "L": (2, 3, 5)}
"""Sizes that few numbers of ranks divide."""
STORED = (
    "zero 1 over dp { like = megatron }",
    "zero 1 over dp { like = megatron }",
    "zero 1 over dp { like = deepspeed }",
    "zero 2 over dp { like = deepspeed }",
    "zero 2 over dp",
    "zero 2 over dp { shards = rows }",
    "zero 3 over dp",
    "zero 3 over dp { like = fsdp2 }",
)


def draw_tracked(rng: Random) -> Drawn:
    """A random plan; two of three with sizes that do not divide, and as many with parameters, gradients or states that `zero` splits."""
    drawn = rng.choice((draw, draw, draw_further))(rng)
    text = drawn.text
    if rng.random() < 0.67:
        for name, sizes in UNEVEN.items():
            if rng.random() < 0.5:
                text = re.sub(rf"dim {name} = .*", f"dim {name} = {rng.choice(sizes)}", text)
    if rng.random() < 0.67:
        text = re.sub(r"\n  (zero|unit) .*", "", text)
        text = f"{text.rstrip()[:-1]}  {rng.choice(STORED)}\n}}\n"
        text = re.sub(r"microbatch [B/d p2]+\n", "microbatch 1\n", text)
    return replace(drawn, text=text)


def wrong_tracking(drawn: Drawn) -> list[str]:
    """Where the bytes that are tracked are not those of the plan of memory. Nothing of what does not compile."""
    try:
        compiled = compile_text(drawn.text, drawn.file, drawn.plan)
    except CompileError:
        return []
    found: list[str] = []
    for plan, nodes in traces_of_classes(compiled):
        tracked, planned = tracked_bytes(nodes), plan.timeline()
        if tracked.max() != plan.peak_bytes:
            found.append(f"{plan.name}: the peak is {plan.peak_bytes}, tracked {tracked.max()}")
        own = tracked[~are_releases(nodes)][1:]
        for at in np.flatnonzero(own != planned)[:1].tolist():
            found.append(f"{plan.name}: node {at} has {planned[at]}, tracked {own[at]}")
        found += [f"{plan.name}: {each}" for each in read_early(nodes)]
    return found


def traces_of_classes(compiled: Compiled) -> Iterator[tuple[ClassPlan, list[Node]]]:
    """The plan of each class of ranks, and the tracked nodes of one of these."""
    encoded = encode_traces(compiled.tracked, TraceOptions(provenance=True))
    ranks = np.arange(encoded.mesh.num_ranks)
    leaders = {number: int(members[0]) for number, members in encoded.by_class(ranks)}
    traces = dict(iterate_traces(encoded, ",".join(map(str, leaders.values()))))
    for number, plan in enumerate(compiled.memory):
        yield plan, list(TraceReader.of_bytes(bytes(traces[leaders[number]])))


def are_releases(nodes: Sequence[Node]) -> np.ndarray:
    """Which nodes only read what nobody else reads."""
    return np.array([RELEASE in node.name.split("/") for node in nodes])


def tensors(node: Node, name: str) -> list[tuple[str, int]]:
    (found,) = (a.string_list.values for a in node.attr if a.name == name)
    return [(found[i], int(found[i + 1])) for i in range(0, len(found), 2)]


def tracked_bytes(nodes: Sequence[Node]) -> np.ndarray:
    """`LocalMemUsageTracker` of ASTRA-sim, if nodes run one after the other: bytes during each of them."""
    size: dict[str, int] = {}
    written: dict[str, int] = {}
    last_read: dict[str, int] = {}
    for position, node in enumerate(nodes):
        for name, num_bytes in tensors(node, "inputs"):
            assert size[name] == num_bytes, f"{name} is read before it is written, or in part"
            last_read[name] = position
        for name, num_bytes in tensors(node, "outputs"):
            assert name not in size, f"{name} is written twice"
            size[name], written[name] = num_bytes, position
    change = np.zeros(len(nodes) + 1, np.int64)
    for name, num_bytes in size.items():
        change[written[name]] += num_bytes
        change[last_read[name] + 1] -= num_bytes
    return np.cumsum(change)[:-1]


def read_early(nodes: Sequence[Node]) -> Iterator[str]:
    """What is read by a node that may run before its writer, however a simulator overlaps nodes."""
    before: dict[int, int] = {}
    writer: dict[str, int] = {}
    for node in nodes:
        # Bits of a number: the nodes that have ended.
        before[node.id] = 0
        for dep in (*node.data_deps, *node.ctrl_deps):
            before[node.id] |= before[dep] | 1 << dep
        for tensor, _ in tensors(node, "inputs"):
            if not before[node.id] >> writer[tensor] & 1:
                yield f"{node.name} may read {tensor} before it is written"
        writer |= dict.fromkeys((t for t, _ in tensors(node, "outputs")), node.id)
