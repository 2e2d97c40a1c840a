"""Ways to break a set that runs: each with the code that names it and the node that has it.

`FAULTS` change nodes or groups before the set is written, `FILE_FAULTS` the files of a written one.
"""

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.corpus.good import Rank
from tests.corpus.traces import (
    ALL_REDUCE,
    BROADCAST,
    COLL,
    INVALID,
    METADATA,
    REDUCE,
    Node,
    Traces,
    delimited,
    varint,
)


@dataclass(frozen=True)
class Fault:
    """`mutate` breaks the good set `base`. `at` is (rank, node name) of a place of the finding."""

    name: str
    code: str
    base: str
    mutate: Callable[[Traces], None]
    at: tuple[int, str] | None = None
    also: tuple[str, ...] = ()
    """Codes of what else is then wrong."""


@dataclass(frozen=True)
class FileFault:
    name: str
    code: str
    base: str
    mutate: Callable[[Path], None]
    file: str = ""
    also: tuple[str, ...] = ()
    """Codes of what else is then wrong."""


def _set(rank: int, node: str, attribute: str, value: object, kind: str | None = None):
    def mutate(traces: Traces) -> None:
        traces.find(rank, node).set(attribute, value, kind)  # pyright: ignore[reportArgumentType]

    return mutate


def _everywhere(node: str, attribute: str, value: object, kind: str | None = None):
    def mutate(traces: Traces) -> None:
        for nodes in traces.nodes.values():
            for n in nodes:
                if n.name == node:
                    n.set(attribute, value, kind)  # pyright: ignore[reportArgumentType]

    return mutate


def _both(transfer: str, attribute: str, value: int):
    """Set an attribute of a send and of its receive, on all ranks."""

    def mutate(traces: Traces) -> None:
        _everywhere(f"send{transfer}", attribute, value)(traces)
        _everywhere(f"recv{transfer}", attribute, value)(traces)

    return mutate


def _drop(rank: int, node: str, attribute: str):
    return lambda traces: traces.find(rank, node).drop(attribute)


def _drop_everywhere(node: str, attribute: str):
    def mutate(traces: Traces) -> None:
        for nodes in traces.nodes.values():
            for n in nodes:
                if n.name == node:
                    n.drop(attribute)

    return mutate


def _remove(rank: int, node: str):
    return lambda traces: traces.remove(rank, node)


def _type(rank: int, node: str, node_type: int):
    def mutate(traces: Traces) -> None:
        traces.find(rank, node).type = node_type

    return mutate


def _repeat_id(traces: Traces) -> None:
    traces.find(2, "forward1").id = traces.find(2, "backward0").id


def _missing_dependency(traces: Traces) -> None:
    traces.find(1, "F1a").deps.append(77777)


def _missing_control(traces: Traces) -> None:
    traces.find(1, "F1a").ctrl.append(77777)


def _cycle(traces: Traces) -> None:
    traces.find(3, "forward0").deps.append(traces.find(3, "forward2").id)


def _self_dependency(traces: Traces) -> None:
    node = traces.find(0, "step")
    node.deps.append(node.id)


def _no_root(traces: Traces) -> None:
    for node in traces.nodes[1]:
        if not node.deps:
            node.ctrl.append(traces.nodes[1][-1].id)


def _two_orders(traces: Traces) -> None:
    """Rank 0 reduces its buckets in another order, as its dependencies allow."""
    first, second = traces.find(0, "reduce2"), traces.find(0, "reduce1")
    first.attributes, second.attributes = second.attributes, first.attributes


def _cross_rank_cycle(traces: Traces) -> None:
    """Stage 0 sends its first activations only after it has received their gradients."""
    for rank in (0, 1, 2, 3):
        traces.find(rank, "sendF0").deps.append(traces.find(rank, "recvB0").id)


def _receive_before_send(traces: Traces) -> None:
    for rank in traces.nodes:
        traces.find(rank, "send0").deps.append(traces.find(rank, "recv0").id)


def _slot_deadlock(traces: Traces) -> None:
    """Two independent collectives on each of two ranks, issued in opposite orders."""
    traces.groups = {"1": [0, 1], "2": [0, 1]}
    traces.nodes = {}
    for rank in (0, 1):
        build = Rank()
        order = ("1", "2") if rank == 0 else ("2", "1")
        for group in order:
            build.coll(f"on{group}", ALL_REDUCE, 4096, group)
        traces.nodes[rank] = build.nodes


def _send_behind_collective(traces: Traces) -> None:
    """Rank 0 issues a collective before a send that rank 1 needs to reach that collective."""
    traces.groups = {"1": [0, 1]}
    traces.nodes = {}
    build = Rank()
    build.coll("together", ALL_REDUCE, 4096, "1")
    build.send("late", 1, 4096, 3)
    traces.nodes[0] = build.nodes
    build = Rank()
    got = build.recv("early", 0, 4096, 3)
    build.coll("together", ALL_REDUCE, 4096, "1", got)
    traces.nodes[1] = build.nodes


def _crossing(traces: Traces) -> None:
    """Same order of ids everywhere, but one rank's first collective waits for long compute."""
    traces.groups = {"1": [0, 1]}
    traces.nodes = {}
    for rank in (0, 1):
        build = Rank()
        work = build.comp("work")
        work.set("num_ops", 10**12 if rank else 1)
        build.coll("first", ALL_REDUCE, 4096, "1", work)
        build.coll("second", ALL_REDUCE, 8192, "1", *([work] if rank == 0 else []))
        traces.nodes[rank] = build.nodes


def _times_decide(traces: Traces) -> None:
    """While `long` holds the slot of rank 0, what is ready next depends on compute times; rank 1
    has one order whatever they are."""
    traces.groups = {"1": [0, 1]}
    traces.nodes = {}
    for rank in (0, 1):
        build = Rank()
        build.coll("long", ALL_REDUCE, 4096, "1")
        early, late = build.comp("early"), build.comp("late")
        early.set("num_ops", 10**12)
        second = build.coll("second", ALL_REDUCE, 8192, "1", late)
        first = build.coll("first", ALL_REDUCE, 2048, "1", early)
        if rank == 1:
            second.deps.append(first.id)
        traces.nodes[rank] = build.nodes


def _own_group(traces: Traces, node: str, group: str) -> None:
    for nodes in traces.nodes.values():
        for n in nodes:
            if n.name == node:
                n.set("pg_name", group, "string")


def _group_of_one(traces: Traces) -> None:
    traces.groups["9"] = [3]
    traces.find(3, "reduce").set("pg_name", "9", "string")
    traces.find(1, "reduce").set("pg_name", "10", "string")
    traces.groups["10"] = [1]


def _modulo(traces: Traces) -> None:
    """Renumber the groups over `dp` so that each shares tags with one over `tp`."""
    renamed = {"3": "501"}
    traces.groups = {renamed.get(k, k): v for k, v in traces.groups.items()}
    for nodes in traces.nodes.values():
        for node in nodes:
            if node.get("pg_name") in renamed:
                node.set("pg_name", renamed[str(node.get("pg_name"))], "string")


def _not_a_member(traces: Traces) -> None:
    group = traces.groups[str(traces.find(2, "reduce").get("pg_name"))]
    group.remove(2)
    group.append(7)


def _extra_collective(traces: Traces) -> None:
    last = traces.nodes[2][-1]
    node = Node(last.id + 1, "extra", COLL, [last.id])
    node.attributes = list(traces.find(2, "reduce0").attributes)
    traces.nodes[2].append(node)


def _duplicate_member(traces: Traces) -> None:
    traces.groups["1"].append(traces.groups["1"][0])


def _unknown_member(traces: Traces) -> None:
    traces.groups["1"].append(99)


def _bad_group_key(traces: Traces) -> None:
    traces.groups["tensor"] = traces.groups.pop("1")
    for nodes in traces.nodes.values():
        for node in nodes:
            if node.get("pg_name") == "1":
                node.set("pg_name", "tensor", "string")


def _tensor_twice(traces: Traces) -> None:
    node = traces.find(1, "F1b")
    node.set("outputs", ["F0b", "2048"], "strings")


def _read_early(traces: Traces) -> None:
    traces.find(1, "F0b").set("inputs", ["step", "2048"], "strings")


def _in_place(traces: Traces) -> None:
    traces.find(1, "F0b").set("inputs", ["F0b", "2048"], "strings")


def _repeated_attribute(traces: Traces) -> None:
    traces.find(0, "reduce").attributes.append(("comm_size", "int64", 4))


def _unused_group(traces: Traces) -> None:
    traces.groups["400"] = [0, 1, 2]


def _halve_sizes(traces: Traces) -> None:
    """Count elements of two bytes where bytes are meant, and say of tensors what they have."""
    for nodes in traces.nodes.values():
        for node in nodes:
            size = node.get("comm_size")
            if isinstance(size, int):
                node.set("comm_size", size // 2)
                node.set("inputs", [f"input of {node.name}", str(size)])


def _receiver_size(traces: Traces) -> None:
    traces.find(4, "recvF1").set("comm_size", 4096)


def _receiver_tag(traces: Traces) -> None:
    traces.find(4, "recvF1").set("comm_tag", 100)


def _timed_compute(traces: Traces) -> None:
    node = traces.find(1, "forward0")
    node.drop("num_ops")
    node.drop("tensor_size")
    node.duration = 10


FAULTS = [
    # The graph of one rank.
    Fault("repeated_id", "E0620", "data_parallel", _repeat_id, (2, "backward0")),
    Fault("missing_data_dependency", "E0621", "mesh", _missing_dependency, (1, "F1a")),
    Fault("missing_control_dependency", "E0621", "mesh", _missing_control, (1, "F1a")),
    Fault("cycle", "E0622", "data_parallel", _cycle, (3, "forward0")),
    Fault("depends_on_itself", "E0622", "data_parallel", _self_dependency, (0, "step")),
    Fault("no_root", "E0622", "data_parallel", _no_root),
    # Single nodes.
    Fault("metadata_node", "E0630", "data_parallel", _type(0, "step", METADATA), (0, "step")),
    Fault("invalid_node", "E0630", "data_parallel", _type(0, "step", INVALID), (0, "step")),
    Fault("unknown_type", "E0630", "data_parallel", _type(0, "step", 9), (0, "step")),
    Fault("no_num_ops", "E0631", "mesh", _drop(0, "F0a", "num_ops"), (0, "F0a")),
    Fault("no_tensor_size", "E0631", "mesh", _drop(0, "F0a", "tensor_size"), (0, "F0a")),
    Fault("no_comm_size", "E0631", "mesh", _drop_everywhere("reduce", "comm_size"), (0, "reduce")),
    Fault("no_comm_type", "E0631", "mesh", _drop_everywhere("reduce", "comm_type"), (0, "reduce")),
    Fault("no_comm_dst", "E0631", "mesh", _drop(0, "sendF0", "comm_dst"), (0, "sendF0")),
    Fault("no_comm_src", "E0631", "mesh", _drop(4, "recvF0", "comm_src"), (4, "recvF0")),
    Fault("no_comm_tag", "E0631", "mesh", _drop_everywhere("sendF2", "comm_tag"), (0, "sendF2")),
    Fault("load_without_size", "E0631", "mesh", _drop(5, "load", "tensor_size"), (5, "load")),
    Fault("double_num_ops", "E0632", "mesh", _set(3, "F0a", "num_ops", 4.0, "double"), (3, "F0a")),
    Fault("float_size", "E0632", "mesh", _set(3, "F0a", "tensor_size", 4.0, "float"), (3, "F0a")),
    Fault("text_size", "E0632", "mesh", _set(3, "F0a", "num_ops", "4", "string"), (3, "F0a")),
    Fault(
        "number_as_group",
        "E0632",
        "data_parallel",
        _everywhere("reduce0", "pg_name", 0, "int32"),
        (0, "reduce0"),
    ),
    Fault("negative_ops", "E0633", "mesh", _set(2, "F0a", "num_ops", -5), (2, "F0a")),
    Fault("negative_size", "E0633", "mesh", _everywhere("reduce", "comm_size", -8), (0, "reduce")),
    Fault("negative_sint", "E0633", "mesh", _set(2, "F0a", "num_ops", -5, "sint64"), (2, "F0a")),
    Fault("no_ops", "E0634", "mesh", _set(7, "F0b", "num_ops", 0), (7, "F0b")),
    Fault("no_bytes", "E0634", "mesh", _set(7, "F0b", "tensor_size", 0), (7, "F0b")),
    Fault(
        "empty_collective", "E0635", "mesh", _everywhere("reduce", "comm_size", 0), (0, "reduce")
    ),
    Fault(
        "broadcast", "W0637", "mesh", _everywhere("reduce", "comm_type", BROADCAST), (0, "reduce")
    ),
    Fault("reduce", "E0636", "mesh", _everywhere("reduce", "comm_type", REDUCE), (0, "reduce")),
    Fault("barrier", "E0636", "mesh", _everywhere("reduce", "comm_type", 9), (0, "reduce")),
    Fault("unknown_kind", "E0636", "mesh", _everywhere("reduce", "comm_type", 44), (0, "reduce")),
    Fault(
        "collective_on_cpu",
        "E0637",
        "mesh",
        _set(6, "reduce", "is_cpu_op", 1, "bool"),
        (6, "reduce"),
    ),
    Fault("huge_ops", "W0636", "mesh", _set(0, "F0a", "num_ops", 10**19, "uint64"), (0, "F0a")),
    Fault("huge_bytes", "W0636", "mesh", _set(0, "F0a", "tensor_size", 1 << 60), (0, "F0a")),
    Fault("odd_size", "W0634", "mesh", _everywhere("reduce", "comm_size", 1001), (0, "reduce")),
    Fault("tiny_gather", "W0638", "mesh", _everywhere("F0gather", "comm_size", 2), (0, "F0gather")),
    Fault("empty_load", "W0639", "mesh", _set(4, "load", "tensor_size", 0), (4, "load")),
    Fault("attribute_twice", "W0630", "mesh", _repeated_attribute, (0, "reduce")),
    Fault("timed_compute", "W0631", "data_parallel", _timed_compute, (1, "forward0")),
    Fault("wide_tag", "W0633", "mesh", _both("B2", "comm_tag", 1 << 33), (4, "sendB2")),
    # Groups and collectives.
    Fault("bad_group_key", "E0641", "mesh", _bad_group_key),
    Fault("unknown_group", "E0642", "mesh", lambda t: _own_group(t, "reduce", "77"), (0, "reduce")),
    Fault("no_group_file", "E0642", "mesh", lambda t: t.groups.clear()),
    Fault("not_a_member", "E0643", "mesh", _not_a_member, (2, "reduce"), ("E0648",)),
    Fault("group_of_one", "E0644", "mesh", _group_of_one, (3, "reduce")),
    Fault("equal_modulo_500", "E0645", "mesh", _modulo),
    Fault(
        "world_without_id", "E0646", "mesh", _drop_everywhere("reduce", "pg_name"), (0, "reduce")
    ),
    Fault("duplicate_member", "E0647", "mesh", _duplicate_member),
    Fault("member_without_trace", "E0647", "mesh", _unknown_member),
    Fault("missing_collective", "E0648", "data_parallel", _remove(2, "reduce1")),
    Fault("extra_collective", "E0648", "data_parallel", _extra_collective, (2, "extra")),
    Fault("other_order", "E0649", "data_parallel", _two_orders, (0, "reduce2")),
    Fault("other_kind", "E0650", "mesh", _set(6, "reduce", "comm_type", 6), (6, "reduce")),
    Fault("other_size", "E0651", "mesh", _set(6, "reduce", "comm_size", 128), (6, "reduce")),
    Fault("unused_group", "W0640", "mesh", _unused_group),
    # Sends and receives.
    Fault("no_send", "E0652", "mesh", _remove(1, "sendF1"), (5, "recvF1")),
    Fault("no_receive", "E0653", "mesh", _remove(5, "recvF1"), (1, "sendF1")),
    Fault("other_bytes", "E0654", "mesh", _receiver_size, (0, "sendF1")),
    Fault("other_tag", "E0655", "mesh", _receiver_tag, (0, "sendF1")),
    Fault(
        "unknown_peer",
        "E0656",
        "mesh",
        _set(0, "sendF0", "comm_dst", 50),
        (0, "sendF0"),
        ("E0652",),
    ),
    Fault(
        "sends_to_itself",
        "E0657",
        "mesh",
        _set(0, "sendF0", "comm_dst", 0),
        (0, "sendF0"),
        ("E0652",),
    ),
    Fault(
        "receives_from_itself",
        "E0657",
        "mesh",
        _set(4, "recvF0", "comm_src", 4),
        (4, "recvF0"),
        ("E0653",),
    ),
    Fault("other_source", "E0658", "mesh", _set(1, "sendF0", "comm_src", 3), (1, "sendF0")),
    Fault("other_destination", "E0658", "mesh", _set(5, "recvF0", "comm_dst", 3), (5, "recvF0")),
    Fault("empty_send", "E0635", "mesh", _both("F1", "comm_size", 0), (0, "sendF1")),
    # Deadlock.
    Fault("cross_rank_cycle", "E0660", "mesh", _cross_rank_cycle),
    Fault("receive_before_send", "E0660", "ring", _receive_before_send),
    Fault("opposite_orders", "E0661", "data_parallel", _slot_deadlock),
    Fault("send_behind_collective", "E0661", "data_parallel", _send_behind_collective),
    Fault("crossing_collectives", "E0662", "data_parallel", _crossing),
    Fault("times_decide", "W0660", "data_parallel", _times_decide),
    # Memory.
    Fault("odd_list", "E0670", "mesh", _set(1, "F0b", "inputs", ["x"], "strings"), (1, "F0b")),
    Fault("bytes_in_words", "E0670", "mesh", _set(1, "F0b", "inputs", ["x", "many"]), (1, "F0b")),
    Fault("list_is_text", "E0670", "mesh", _set(1, "F0b", "inputs", "x", "string"), (1, "F0b")),
    Fault("decimal_point", "W0670", "mesh", _set(1, "F0b", "inputs", ["x", "8.0"]), (1, "F0b")),
    Fault("elements_for_bytes", "W0635", "mesh", _halve_sizes, (0, "F0gather")),
    Fault("tensor_written_twice", "E0671", "mesh", _tensor_twice, (1, "F1b")),
    Fault("read_before_write", "E0672", "mesh", _read_early, (1, "F0b")),
    Fault("read_by_its_writer", "E0672", "mesh", _in_place, (1, "F0b")),
    Fault("some_without_lists", "E0673", "mesh", _drop(1, "F0b", "inputs"), (1, "F0b")),
    # Header.
    Fault("no_header", "E0614", "data_parallel", lambda t: t.headless.add(1)),
    Fault("other_schema", "W0611", "data_parallel", lambda t: setattr(t, "version", "0.0.1")),
    Fault("no_nodes", "E0615", "data_parallel", lambda t: t.nodes[1].clear()),
]


def _cut(path: Path) -> None:
    file = path / "model.1.et"
    file.write_bytes(file.read_bytes()[:-5])


def _cut_length(path: Path) -> None:
    file = path / "model.1.et"
    file.write_bytes(file.read_bytes() + b"\xff\xff")


def _flip(path: Path) -> None:
    """Make the third message's first tag one that does not exist."""
    file = path / "model.1.et"
    data = bytearray(file.read_bytes())
    at = 0
    for _ in range(2):
        at += 1 + data[at]
    data[at + 1] = 0x07
    file.write_bytes(data)


def _text(path: Path) -> None:
    (path / "model.1.et").write_text("this is not a trace at all\n" * 40)


def _empty(path: Path) -> None:
    (path / "model.1.et").write_bytes(b"")


def _missing(path: Path) -> None:
    (path / "model.1.et").unlink()


def _directory(path: Path) -> None:
    _missing(path)
    (path / "model.1.et").mkdir()


def _pipe(path: Path) -> None:
    _missing(path)
    os.mkfifo(path / "model.1.et")


def _loop(path: Path) -> None:
    _missing(path)
    (path / "model.1.et").symlink_to(path / "model.1.et")


def _zip(path: Path) -> None:
    for file in list(path.glob("*.et")):
        (path / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()


def _cut_zip(path: Path) -> None:
    file = path / "model.1.et"
    file.write_bytes(gzip.compress(file.read_bytes())[:-9])


def _read_only(path: Path) -> None:
    (path / "model.2.et").chmod(0o444)


def _alone(path: Path) -> None:
    for file in path.glob("model.[1-9].et"):
        file.unlink()


def _zeros(path: Path) -> None:
    (path / "model.1.et").rename(path / "model.01.et")


def _two_files(path: Path) -> None:
    data = (path / "model.1.et").read_bytes()
    (path / "model.1.et.gz").write_bytes(gzip.compress(data))


def _stray(path: Path) -> None:
    (path / "notes.et").write_bytes(b"")


def _two_sets(path: Path) -> None:
    for file in list(path.glob("model.*.et")):
        (path / file.name.replace("model", "other")).write_bytes(file.read_bytes())


def _no_set(path: Path) -> None:
    for file in path.glob("*.et"):
        file.unlink()


def _many_fields(path: Path) -> None:
    """A node with more attributes than anyone needs."""
    body = varint(1 << 3) + varint(9000) + delimited(10, b"") * 20000
    file = path / "model.1.et"
    file.write_bytes(file.read_bytes() + varint(len(body)) + body)


def _large_message(path: Path) -> None:
    body = varint(1 << 3) + varint(9000) + delimited(2, b"x" * (5 << 20))
    file = path / "model.1.et"
    file.write_bytes(file.read_bytes() + varint(len(body)) + body)


def _groups(text: str):
    return lambda path: (path / "comm_group.json").write_text(text)


def _group_key(path: Path) -> None:
    file = path / "comm_group.json"
    groups = json.loads(file.read_text())
    file.write_text(json.dumps(groups | {"0": [0, 1]}))


FILE_FAULTS = [
    FileFault("cut_in_a_message", "E0612", "data_parallel", _cut, "model.1.et"),
    FileFault("cut_in_a_length", "E0612", "data_parallel", _cut_length, "model.1.et"),
    FileFault("bad_tag", "E0613", "data_parallel", _flip, "model.1.et"),
    FileFault("text_file", "E0612", "data_parallel", _text, "model.1.et", ("E0613", "E0614")),
    FileFault("empty_file", "E0615", "data_parallel", _empty, "model.1.et"),
    FileFault("missing_rank", "E0616", "data_parallel", _missing),
    FileFault("directory", "E0611", "data_parallel", _directory, "model.1.et"),
    FileFault("pipe", "E0611", "data_parallel", _pipe, "model.1.et"),
    FileFault("link_to_itself", "E0611", "data_parallel", _loop, "model.1.et"),
    FileFault("compressed", "E0680", "mesh", _zip, "model.0.et.gz"),
    FileFault("cut_compressed", "E0619", "data_parallel", _cut_zip, "model.1.et"),
    FileFault("read_only", "E0681", "data_parallel", _read_only, "model.2.et"),
    FileFault("one_rank", "E0682", "data_parallel", _alone, "model.0.et"),
    FileFault("leading_zeros", "E0617", "data_parallel", _zeros, "model.01.et"),
    FileFault("rank_twice", "E0617", "data_parallel", _two_files, "model.1.et.gz"),
    FileFault("stray_file", "W0610", "data_parallel", _stray, "notes.et"),
    FileFault("two_sets", "W0610", "data_parallel", _two_sets),
    FileFault("no_set", "E0610", "data_parallel", _no_set),
    FileFault("too_many_fields", "E0618", "data_parallel", _many_fields, "model.1.et"),
    FileFault("message_too_long", "E0618", "data_parallel", _large_message, "model.1.et"),
    FileFault("groups_no_json", "E0640", "mesh", _groups("{"), "comm_group.json"),
    FileFault("groups_no_object", "E0640", "mesh", _groups("[1]"), "comm_group.json"),
    FileFault("groups_nested", "E0640", "mesh", _groups("[" * 100000), "comm_group.json"),
    FileFault(
        "group_no_list", "E0640", "mesh", _groups('{"1": "0 1"}'), "comm_group.json", ("E0642",)
    ),
    FileFault(
        "group_of_text", "E0640", "mesh", _groups('{"1": ["0"]}'), "comm_group.json", ("E0642",)
    ),
    FileFault("group_zero", "E0641", "mesh", _group_key, "comm_group.json", ("W0640",)),
]
