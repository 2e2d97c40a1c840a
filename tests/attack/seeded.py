"""Named faults, seeded into a set that stagec wrote: a pipeline of two stages, data and tensor parallelism, ZeRO 1.

Each is found by a rule of `stagec check`, which knows nothing of who wrote a set, or (`CHANGED`) because the manifest has
another CRC-32: such a set runs, as another program than the one that was compiled. Those that change no run are listed with why.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from stagec.backend.encode import encode_traces
from stagec.backend.et_def_pb2 import AttributeProto, GlobalMetadata, Node, NodeType
from stagec.backend.et_file import read_trace
from stagec.backend.writer import WriteOptions, write_traces
from stagec.checking import check_traces
from stagec.driver import compile_text
from tests.attack.case import Failure, Kind
from tests.attack.models import MODELS
from tests.corpus.traces import varint

PLAN = """
plan p {
  mesh pp = 2, dp = 2, tp = 2
  shard B over dp
  shard H, K, F, V over tp
  shard S over tp
  pipeline L over pp { schedule = 1f1b, microbatch = 2 }
  zero 1 over dp
  precision { weights = bf16, activations = bf16, gradients = fp32, optimizer = fp32 }
}
"""
SOUND = frozenset({"W0643", "W0638", "W0634"})
"""What sizes as small as these have anyway."""
COMP, COLL = NodeType.COMP_NODE, NodeType.COMM_COLL_NODE
SEND, RECV = NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE
CHANGED = frozenset({"W0692"})


@lru_cache
def template() -> str:
    """The set as it was written."""
    folder = tempfile.mkdtemp(prefix="seeded")
    traces = encode_traces(compile_text(MODELS["dense"] + PLAN, "model.stg", "p").trace_set)
    write_traces(traces, f"{folder}/set", WriteOptions(executor="serial"))
    return f"{folder}/set"


class Set:
    """A copy of the set, to be spoilt."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.groups: dict[str, list[int]] = json.loads((directory / "comm_group.json").read_text())

    def path(self, rank: int) -> Path:
        return self.directory / f"Net.{rank}.et"

    def read(self, rank: int) -> list[Node]:
        return read_trace(self.path(rank))[1]

    def write(self, rank: int, nodes: list[Node]) -> None:
        messages = [GlobalMetadata(version="0.0.4").SerializeToString()]
        messages += [node.SerializeToString() for node in nodes]
        data = b"".join(varint(len(message)) + message for message in messages)
        self.path(rank).write_bytes(data)

    def write_groups(self, text: str = "") -> None:
        (self.directory / "comm_group.json").write_text(text or json.dumps(self.groups))


Mutate = Callable[[Set], object]


def of_type(nodes: list[Node], node_type: int) -> list[Node]:
    return [node for node in nodes if node.type == node_type]


def attribute(node: Node, name: str) -> AttributeProto:
    return next(a for a in node.attr if a.name == name)


def number_of(node: Node, name: str) -> int:
    found = attribute(node, name)
    return getattr(found, found.WhichOneof("value"))  # pyright: ignore[reportArgumentType]


def set_number(node: Node, name: str, value: int) -> None:
    found = attribute(node, name)
    kind = found.WhichOneof("value")
    assert kind is not None
    if value < 0 or value >= 1 << 31:
        found.ClearField(kind)
        kind = "int64_val"
    setattr(found, kind, value)


def one(node_type: int, spoil: Callable[[Node], object], rank: int = 0, at: int = 3) -> Mutate:
    """Spoil one node of a kind, the `at`-th of a rank."""

    def mutate(traces: Set) -> None:
        nodes = traces.read(rank)
        spoil(of_type(nodes, node_type)[at])
        traces.write(rank, nodes)

    return mutate


def everywhere(node_type: int, spoil: Callable[[Node], object]) -> Mutate:
    """Spoil all nodes of a kind, on all ranks."""

    def mutate(traces: Set) -> None:
        for rank in range(8):
            nodes = traces.read(rank)
            for node in of_type(nodes, node_type):
                spoil(node)
            traces.write(rank, nodes)

    return mutate


def graph(spoil: Callable[[list[Node]], object], rank: int = 0) -> Mutate:
    """Spoil the nodes of a rank."""

    def mutate(traces: Set) -> None:
        nodes = traces.read(rank)
        spoil(nodes)
        traces.write(rank, nodes)

    return mutate


def bytes_of(spoil: Callable[[bytearray], object], rank: int = 0) -> Mutate:
    """Spoil the bytes of a rank's file."""

    def mutate(traces: Set) -> None:
        data = bytearray(traces.path(rank).read_bytes())
        spoil(data)
        traces.path(rank).write_bytes(data)

    return mutate


def groups(spoil: Callable[[dict[str, list[int]]], object]) -> Mutate:
    def mutate(traces: Set) -> None:
        spoil(traces.groups)
        traces.write_groups()

    return mutate


def without(name: str) -> Callable[[Node], None]:
    def spoil(node: Node) -> None:
        node.attr.remove(attribute(node, name))

    return spoil


def putting(name: str, value: int) -> Callable[[Node], None]:
    return lambda node: set_number(node, name, value)


def scaling(name: str, factor: float) -> Callable[[Node], None]:
    return lambda node: set_number(node, name, max(1, int(number_of(node, name) * factor)))


def as_text(name: str) -> Callable[[Node], None]:
    def spoil(node: Node) -> None:
        found = attribute(node, name)
        kind = found.WhichOneof("value")
        assert kind is not None
        found.ClearField(kind)
        found.string_val = "12"

    return spoil


def as_double(name: str) -> Callable[[Node], None]:
    def spoil(node: Node) -> None:
        value = float(number_of(node, name))
        found = attribute(node, name)
        found.ClearField(found.WhichOneof("value"))  # pyright: ignore[reportArgumentType]
        found.double_val = value

    return spoil


def in_group(name: str) -> Callable[[Node], None]:
    return lambda node: setattr(attribute(node, "pg_name"), "string_val", name)


def in_another_group(node: Node) -> None:
    found = attribute(node, "pg_name")
    found.string_val = "2" if found.string_val == "1" else "1"


def typed(node_type: int) -> Callable[[Node], None]:
    return lambda node: setattr(node, "type", node_type)


def remove(nodes: list[Node], gone: Node) -> None:
    """Take a node out; what waited for it waits for what it waited for."""
    nodes.remove(gone)
    for node in nodes:
        for kind in ("data_deps", "ctrl_deps"):
            waits = getattr(node, kind)
            if gone.id in waits:
                kept = [i for i in waits if i != gone.id]
                kept += [i for i in getattr(gone, kind) if i not in kept]
                del waits[:]
                waits.extend(kept)


def without_node(node_type: int, at: int = 3) -> Callable[[list[Node]], None]:
    return lambda nodes: remove(nodes, of_type(nodes, node_type)[at])


def twice(node_type: int, at: int = 3) -> Callable[[list[Node]], None]:
    def spoil(nodes: list[Node]) -> None:
        copy = Node()
        copy.CopyFrom(of_type(nodes, node_type)[at])
        copy.id = max(node.id for node in nodes) + 1
        nodes.append(copy)

    return spoil


def exchanged(node_type: int, one: int, other: int) -> Callable[[list[Node]], None]:
    """Two nodes of a kind change places in the order of ids: each does what the other one did."""

    def spoil(nodes: list[Node]) -> None:
        first, second = of_type(nodes, node_type)[one], of_type(nodes, node_type)[other]
        attributes = [[*first.attr], [*second.attr]]
        names = first.name, second.name
        for node, found, name in (
            (first, attributes[1], names[1]),
            (second, attributes[0], names[0]),
        ):
            copies = []
            for each in found:
                copy = AttributeProto()
                copy.CopyFrom(each)
                copies.append(copy)
            del node.attr[:]
            node.attr.extend(copies)
            node.name = name

    return spoil


def cycle(nodes: list[Node]) -> None:
    later = next(n for n in nodes if n.data_deps)
    earlier = next(n for n in nodes if n.id == later.data_deps[0])
    earlier.data_deps.append(later.id)


def no_root(nodes: list[Node]) -> None:
    for node in nodes:
        if not node.data_deps and not node.ctrl_deps:
            node.data_deps.append(nodes[-1].id)


def receive_waits_for_the_answer(traces: Set) -> None:
    """The first send of a stage waits for what the other stage sends after it got this."""
    nodes = traces.read(0)
    of_type(nodes, SEND)[0].data_deps.append(of_type(nodes, RECV)[0].id)
    traces.write(0, nodes)


def loses_what_it_waits_for(node: Node) -> None:
    del node.data_deps[:]
    del node.ctrl_deps[:]


def files_exchanged(one: int, other: int) -> Mutate:
    def mutate(traces: Set) -> None:
        first, second = traces.path(one).read_bytes(), traces.path(other).read_bytes()
        traces.path(one).write_bytes(second)
        traces.path(other).write_bytes(first)

    return mutate


def copied(source: int, target: int) -> Mutate:
    return lambda traces: traces.path(target).write_bytes(traces.path(source).read_bytes())


def cut_between_nodes(traces: Set) -> None:
    traces.write(0, traces.read(0)[:-1])


def extend(more: bytes) -> Callable[[bytearray], None]:
    return lambda data: data.extend(more)


def first_tag(data: bytearray) -> None:
    """The first node begins with a field of a kind that protobuf has not."""
    at = 1 + data[0]
    while data[at] & 0x80:
        at += 1
    data[at + 1] = 0x07


def first_of(found: dict[str, list[int]], number: int = 0) -> str:
    return sorted(found, key=int)[number]


def merge(found: dict[str, list[int]]) -> None:
    """Two groups change ids."""
    one, other = first_of(found), first_of(found, 1)
    found[one], found[other] = found[other], found[one]


@dataclass(frozen=True)
class Seeded:
    name: str
    codes: frozenset[str]
    """One of these is found."""
    mutate: Mutate
    why: str = ""
    """Of one that changes no run: why."""
    adds: bool = False
    """Whether there is a file more, and none that is another."""


def fault(name: str, codes: str, mutate: Mutate) -> Seeded:
    return Seeded(name, frozenset(codes.split()), mutate)


def changed(name: str, mutate: Mutate) -> Seeded:
    """A set that runs, and is another one."""
    return Seeded(name, CHANGED, mutate)


def harmless(name: str, mutate: Mutate, why: str) -> Seeded:
    return Seeded(name, frozenset(), mutate, why)


GRAPH = [
    fault("a data dependency on no node", "E0621", one(COMP, lambda n: n.data_deps.append(999_999))),
    fault("a control dependency on no node", "E0621", one(COMP, lambda n: n.ctrl_deps.append(999_999))),
    fault("a node that waits for itself", "E0622", one(COMP, lambda n: n.data_deps.append(n.id))),
    fault("two nodes that wait for each other", "E0622", graph(cycle)),
    fault("no node to begin with", "E0622", graph(no_root)),
    fault("an id twice", "E0620", graph(lambda nodes: setattr(nodes[4], "id", nodes[5].id))),
    fault("a send that waits for its answer", "E0660", receive_waits_for_the_answer),
    fault("a node gone, its children not told", "E0621", graph(lambda nodes: nodes.pop(4))),
    changed("a computation gone", graph(without_node(COMP))),
    changed("a computation twice", graph(twice(COMP))),
    changed("a computation that waits for nothing", one(COMP, loses_what_it_waits_for, at=20)),
    fault("the last node cut off", "E0648", cut_between_nodes),
]  # fmt: skip
NODES = [
    fault("a computation that is metadata", "E0630", one(COMP, typed(1))),
    fault("an invalid type", "E0630", one(COMP, typed(0))),
    fault("a type beyond all", "E0630", one(COMP, typed(44))),
    fault("a collective that is a send", "E0631", one(COLL, typed(SEND))),
    fault("a send that is a receive", "E0652", one(SEND, typed(RECV))),
    fault("a receive that is a computation", "E0631", one(RECV, typed(COMP))),
    fault("no FLOPs", "E0631", one(COMP, without("num_ops"))),
    fault("no bytes moved", "E0631", one(COMP, without("tensor_size"))),
    fault("no size of a collective", "E0631", one(COLL, without("comm_size"))),
    fault("no kind of a collective", "E0631", one(COLL, without("comm_type"))),
    fault("no group", "E0646 E0648 E0643", one(COLL, without("pg_name"))),
    fault("no peer of a send", "E0631", one(SEND, without("comm_dst"))),
    fault("no peer of a receive", "E0631", one(RECV, without("comm_src"))),
    fault("no tag", "E0631", one(SEND, without("comm_tag"))),
    fault("FLOPs as text", "E0632", one(COMP, as_text("num_ops"))),
    fault("bytes as a double", "E0632", one(COMP, as_double("tensor_size"))),
    fault("a size as text", "E0632", one(COLL, as_text("comm_size"))),
    fault("negative FLOPs", "E0633", one(COMP, putting("num_ops", -7))),
    fault("a negative size", "E0633", one(COLL, putting("comm_size", -8))),
    fault("a negative peer", "E0633", one(SEND, putting("comm_dst", -1))),
    fault("nothing to do", "E0634", one(COMP, lambda n: [set_number(n, a, 0) for a in ("num_ops", "tensor_size")])),
    fault("implausibly many FLOPs", "W0636", one(COMP, putting("num_ops", 1 << 62))),
    fault("a collective on the CPU", "E0637", one(COLL, putting("is_cpu_op", 1))),
    fault("a computation on the CPU", "W0642", one(COMP, putting("is_cpu_op", 1))),
    changed("half of the FLOPs of a node", one(COMP, scaling("num_ops", 0.5))),
    changed("half of the FLOPs of all nodes", everywhere(COMP, scaling("num_ops", 0.5))),
    changed("twice the bytes that a node moves", one(COMP, scaling("tensor_size", 2))),
]  # fmt: skip
COLLECTIVES = [
    fault("a collective of nothing", "E0635 E0651", one(COLL, putting("comm_size", 0))),
    fault("a member's other size", "E0651", one(COLL, scaling("comm_size", 2))),
    fault("a member's other kind", "E0650", one(COLL, putting("comm_type", 6))),
    fault("a kind that there is not", "E0636", one(COLL, putting("comm_type", 44))),
    fault("a broadcast", "W0637", one(COLL, putting("comm_type", 5))),
    fault("a member's collective gone", "E0648", graph(without_node(COLL))),
    fault("a member's collective twice", "E0648", graph(twice(COLL))),
    fault("a member's last collective gone", "E0648", graph(without_node(COLL, -1))),
    fault("a member's other order", "E0649 E0650 E0651 E0661", graph(exchanged(COLL, 0, -1))),
    fault("another axis's group", "E0643 E0648", one(COLL, in_another_group)),
    fault("a group that there is not", "E0642", one(COLL, in_group("4711"))),
    fault("a group with a name", "E0641 E0642", one(COLL, in_group("world"))),
    changed("twice the bytes of all collectives", everywhere(COLL, scaling("comm_size", 2))),
]  # fmt: skip
GROUPS = [
    fault("a group without a member", "E0643 E0644", groups(lambda g: g[first_of(g)].pop())),
    fault("a group with a member too many", "E0647 E0648 E0643", groups(lambda g: g[first_of(g)].append(7))),
    fault("a member twice", "E0647", groups(lambda g: g[first_of(g)].append(g[first_of(g)][0]))),
    fault("a member that there is not", "E0647", groups(lambda g: g[first_of(g)].append(4711))),
    fault("a group gone", "E0642", groups(lambda g: g.pop(first_of(g)))),
    fault("ids of two groups exchanged", "E0643", groups(merge)),
    fault("groups gone", "E0642", lambda s: (s.directory / "comm_group.json").unlink()),
    fault("groups cut short", "E0640", lambda s: s.write_groups(json.dumps(s.groups)[:-5])),
    fault("groups as a list", "E0640", lambda s: s.write_groups("[[0, 1], [2, 3]]")),
    fault("a group that nobody uses", "W0640", groups(lambda g: g.update({"4711": [0, 7]}))),
    fault("an id equal to another modulo 500", "E0645 E0642", groups(lambda g: g.update({str(500 + int(first_of(g))): g.pop(first_of(g, 1))}))),
]  # fmt: skip
TRANSFERS = [
    fault("a send gone", "E0652", graph(without_node(SEND))),
    fault("a receive gone", "E0653", graph(without_node(RECV))),
    fault("a send twice", "E0653", graph(twice(SEND))),
    fault("a receive twice", "E0652", graph(twice(RECV))),
    fault("a tag of its own", "E0655", one(SEND, putting("comm_tag", 54_321))),
    fault("other bytes than the receiver's", "E0654", one(SEND, scaling("comm_size", 2))),
    fault("a peer that there is not", "E0656", one(SEND, putting("comm_dst", 99))),
    fault("a rank as its own peer", "E0657", one(SEND, putting("comm_dst", 0))),
    fault("another stage's rank as peer", "E0652 E0653 E0658", one(SEND, putting("comm_dst", 5))),
    fault("a send of nothing", "E0635 E0654", one(SEND, putting("comm_size", 0))),
]  # fmt: skip
FILES = [
    fault("files of two stages exchanged", "E0643 E0657 E0658 E0652", files_exchanged(0, 4)),
    fault("files of two replicas exchanged", "E0643 E0658 E0652", files_exchanged(0, 2)),
    fault("files of two parts of a layer exchanged", "E0643 E0658 E0652", files_exchanged(0, 1)),
    fault("a rank's file in place of another's", "E0643 E0658 E0652", copied(0, 3)),
    fault("a rank missing", "E0696 E0647", lambda s: s.path(3).unlink()),
    fault("the last rank missing", "E0647 E0656", lambda s: s.path(7).unlink()),
    replace(fault("a rank too many", "E0643 E0648 E0652", copied(0, 8)), adds=True),
    fault("a file of another name", "E0696 W0690", lambda s: s.path(3).rename(s.directory / "Nets.3.et")),
    fault("an empty file", "E0695", lambda s: s.path(0).write_bytes(b"")),
    fault("a file cut in a node", "E0692", bytes_of(lambda d: d.__delitem__(slice(-5, None)))),
    fault("a length without its end", "E0692", bytes_of(extend(b"\xff\xff"))),
    fault("a varint of 40 bytes", "E0692", bytes_of(extend(b"\xff" * 40))),
    fault("noise behind the last node", "E0692 E0693", bytes_of(extend(b"\x05noise and more"))),
    fault("a tag that there is not", "E0693 E0692", bytes_of(first_tag)),
    fault("no header", "E0694", bytes_of(lambda d: d.__delitem__(slice(0, d[0] + 1)))),
]  # fmt: skip


def renamed(node: Node) -> None:
    node.name = f"other {node.name}"


def attributes_reversed(node: Node) -> None:
    kept = [*node.attr]
    copies = [AttributeProto.FromString(a.SerializeToString()) for a in kept]
    del node.attr[:]
    node.attr.extend(reversed(copies))


HARMLESS = [
    harmless("nodes of other names", everywhere(COMP, renamed), "no consumer reads what a node is called"),
    harmless("attributes in another order", everywhere(COMP, attributes_reversed), "they are looked up by their names"),
    harmless("an attribute that nobody knows", one(COMP, lambda n: n.attr.add(name="x", int64_val=3)), "what is not known is not read"),
    harmless("a dependency twice", one(COMP, lambda n: n.data_deps.extend(n.data_deps), at=20), "one that has ended has ended for both"),
    harmless("nodes in another order of the file", graph(lambda nodes: nodes.reverse()), "ids and dependencies say when a node runs"),
    harmless("members of a group in another order", groups(lambda g: [m.reverse() for m in g.values()]), "a group is a set of ranks"),
    harmless("groups in another order of the file", groups(lambda g: [g.update({k: g.pop(k)}) for k in list(g)[:2]]), "they are looked up by their ids"),
    replace(harmless("a file that is not a trace", lambda s: (s.directory / "notes.txt").write_text("mine"), "it is not read"), adds=True),
]  # fmt: skip

SEEDED = [*GRAPH, *NODES, *COLLECTIVES, *GROUPS, *TRANSFERS, *FILES, *HARMLESS]


def found_in(each: Seeded) -> tuple[set[str], set[str]]:
    """The codes of what is found in the set with the fault: with the manifest, and by rules alone."""
    with tempfile.TemporaryDirectory(prefix="set") as parent:
        directory = Path(parent, "set")
        shutil.copytree(template(), directory)
        each.mutate(Set(directory))
        written = {f.code for f in check_traces(directory, jobs=1).findings}
        (directory / "manifest.json").unlink()
        alone = {f.code for f in check_traces(directory, jobs=1).findings}
    return written - SOUND, alone - SOUND


def run(each: Seeded) -> None:
    written, alone = found_in(each)
    if each.why:
        if alone:
            raise Failure(f"`{each.name}` changes nothing, and is {sorted(alone)}")
    elif each.codes == CHANGED:
        if alone:
            raise Failure(f"`{each.name}` is found by rules, {sorted(alone)}: say so")
    elif not alone & each.codes:
        raise Failure(f"`{each.name}` is not found: {sorted(alone)}")
    if not each.adds and "W0692" not in written:
        raise Failure(f"`{each.name}` changes a file, and its CRC-32 is not looked at")


def make(draw: random.Random) -> Seeded:
    return draw.choice(SEEDED)


SETS = Kind("sets", make, run, show=lambda each: each.name)
