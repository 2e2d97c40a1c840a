"""Trace sets that run: what the checker must not complain about."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.corpus.traces import (
    ALL_GATHER,
    ALL_REDUCE,
    COLL,
    COMP,
    MEM_LOAD,
    RECV,
    REDUCE_SCATTER,
    SEND,
    Node,
    Traces,
)


@dataclass
class Rank:
    """Builds one trace: ids ascend, and communication is in one order."""

    nodes: list[Node] = field(default_factory=list)
    first_id: int = 0

    def add(self, name: str, node_type: int, deps: Sequence[Node | None], **numbers: int) -> Node:
        node = Node(self.first_id + len(self.nodes), name, node_type, [d.id for d in deps if d])
        node.attributes.append(("is_cpu_op", "bool", 0))
        for key, value in numbers.items():
            node.attributes.append((key, "int64", value))
        self.nodes.append(node)
        return node

    def comp(self, name: str, *deps: Node | None) -> Node:
        return self.add(name, COMP, deps, num_ops=4096, tensor_size=4096)

    def coll(self, name: str, kind: int, size: int, group: str, *deps: Node | None) -> Node:
        node = self.add(name, COLL, deps, comm_type=kind, comm_size=size)
        if group:
            node.attributes.append(("pg_name", "string", group))
        return node

    def send(self, name: str, to: int, size: int, tag: int, *deps: Node | None) -> Node:
        return self.add(name, SEND, deps, comm_dst=to, comm_size=size, comm_tag=tag)

    def recv(self, name: str, source: int, size: int, tag: int, *deps: Node | None) -> Node:
        return self.add(name, RECV, deps, comm_src=source, comm_size=size, comm_tag=tag)


def data_parallel(ranks: int = 4, layers: int = 3) -> Traces:
    """Forward, backward, and a bucket of gradients per layer, over the whole world."""
    nodes: dict[int, list[Node]] = {}
    for rank in range(ranks):
        build = Rank()
        last: Node | None = None
        for layer in range(layers):
            last = build.comp(f"forward{layer}", last)
        bucket: Node | None = None
        for layer in reversed(range(layers)):
            last = build.comp(f"backward{layer}", last)
            size = 1024 * (layer + 1)
            bucket = build.coll(f"reduce{layer}", ALL_REDUCE, size, "", last, bucket)
        build.comp("step", bucket, last)
        nodes[rank] = build.nodes
    return Traces(nodes)


def mesh(
    pp: int = 2, dp: int = 2, tp: int = 2, microbatches: int = 3, memory: bool = True
) -> Traces:
    """A 1F1B pipeline of tensor-parallel stages, gradients reduced over `dp`: ranks are numbered
    with `tp` fastest, then `dp`, then `pp`."""
    groups: dict[str, list[int]] = {}
    of_rank: dict[tuple[str, int], str] = {}
    for p in range(pp):
        for d in range(dp):
            members = [(p * dp + d) * tp + t for t in range(tp)]
            _name_group(groups, of_rank, "tp", members)
        for t in range(tp):
            members = [(p * dp + d) * tp + t for d in range(dp)]
            _name_group(groups, of_rank, "dp", members)
    nodes = {
        rank: _stage(rank, rank // (dp * tp), pp, dp * tp, of_rank, microbatches)
        for rank in range(pp * dp * tp)
    }
    if memory:
        for trace in nodes.values():
            add_memory(trace)
    return Traces(nodes, groups)


def _name_group(
    groups: dict[str, list[int]], of_rank: dict[tuple[str, int], str], axis: str, members: list[int]
) -> None:
    if len(members) > 1:
        name = str(len(groups) + 1)
        groups[name] = members
        of_rank.update({(axis, rank): name for rank in members})


def _stage(
    rank: int,
    stage: int,
    stages: int,
    stride: int,
    group_of: dict[tuple[str, int], str],
    microbatches: int,
) -> list[Node]:
    build = Rank(first_id=100 * stage)
    tp, dp = group_of.get(("tp", rank)), group_of.get(("dp", rank))
    forward: dict[int, Node] = {}
    size = 2048
    last: Node | None = None
    comm: Node | None = None

    def tensor_parallel(name: str, kind: int, work: Node) -> Node:
        nonlocal comm
        if tp is None:
            return work
        # The name of a reduce-scatter's size is the whole buffer, of an all-gather's the shard.
        comm = build.coll(name, kind, size // 2 if kind == ALL_GATHER else size, tp, work, comm)
        return comm

    for kind, m in one_f_one_b(stage, stages, microbatches):
        source: Node | None = None
        if kind == "F":
            if stage > 0:
                source = build.recv(f"recvF{m}", rank - stride, size, 2 * m)
            last = build.comp(f"F{m}a", source, last)
            last = tensor_parallel(f"F{m}gather", ALL_GATHER, last)
            last = build.comp(f"F{m}b", last)
            last = tensor_parallel(f"F{m}scatter", REDUCE_SCATTER, last)
            forward[m] = last
            if stage < stages - 1:
                comm = build.send(f"sendF{m}", rank + stride, size, 2 * m, last, comm)
        else:
            if stage < stages - 1:
                source = build.recv(f"recvB{m}", rank + stride, size, 2 * m + 1)
            last = build.comp(f"B{m}", source, forward[m], last)
            last = tensor_parallel(f"B{m}scatter", REDUCE_SCATTER, last)
            if stage > 0:
                comm = build.send(f"sendB{m}", rank - stride, size, 2 * m + 1, last, comm)
    if dp is not None:
        comm = build.coll("reduce", ALL_REDUCE, 1 << 16, dp, last, comm)
    state = build.add("load", MEM_LOAD, (), tensor_size=4096)
    build.comp("step", comm, last, state)
    return build.nodes


def one_f_one_b(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """The order of one stage (arXiv:2006.09503)."""
    warm_up = min(microbatches, stages - stage - 1)
    order = [("F", m) for m in range(warm_up)]
    for m in range(microbatches - warm_up):
        order += [("F", warm_up + m), ("B", m)]
    return order + [("B", m) for m in range(microbatches - warm_up, microbatches)]


def add_memory(nodes: list[Node]) -> None:
    """Each node writes a tensor and reads those of its dependencies."""
    by_id = {node.id: node for node in nodes}
    for node in nodes:
        reads = [text for dep in node.deps for text in (by_id[dep].name, "2048")]
        node.attributes.append(("inputs", "strings", [*reads, "weights", "64"]))
        node.attributes.append(("outputs", "strings", [node.name, "2048"]))


def ring(ranks: int = 4, rounds: int = 3) -> Traces:
    """Blocks travel round a ring while each is worked on; ids do not follow dependencies."""
    nodes: dict[int, list[Node]] = {}
    for rank in range(ranks):
        build = Rank(first_id=7)
        block = build.comp("first")
        for step in range(rounds):
            send = build.send(f"send{step}", (rank + 1) % ranks, 4096, 5, block)
            recv = build.recv(f"recv{step}", (rank - 1) % ranks, 4096, 5, block)
            work = build.comp(f"work{step}", block, send)
            block = build.comp(f"join{step}", work, recv)
        # Number them backwards: ids then say nothing about order.
        last = build.nodes[-1].id
        for node in build.nodes:
            node.id = last + 7 - node.id
            node.deps = [last + 7 - dep for dep in node.deps]
        nodes[rank] = build.nodes
    return Traces(nodes)


GOOD = {
    "data_parallel": data_parallel,
    "data_parallel_wide": lambda: data_parallel(9, 1),
    "mesh": mesh,
    "mesh_without_memory": lambda: mesh(memory=False),
    "pipeline": lambda: mesh(pp=4, dp=1, tp=1, microbatches=5),
    "tensor_parallel": lambda: mesh(pp=1, dp=1, tp=4, microbatches=2),
    "mesh_of_24": lambda: mesh(pp=3, dp=2, tp=4, microbatches=4),
    "ring": ring,
}
