"""Ways to break a set that runs: functions on a set that is not yet written."""

from tests.corpus.good import Rank
from tests.corpus.traces import ALL_REDUCE, COLL, Node, Traces


def change(rank: int, node: str, attribute: str, value: object, kind: str | None = None):
    def mutate(traces: Traces) -> None:
        traces.find(rank, node).set(attribute, value, kind)  # pyright: ignore[reportArgumentType]

    return mutate


def everywhere(node: str, attribute: str, value: object, kind: str | None = None):
    def mutate(traces: Traces) -> None:
        for nodes in traces.nodes.values():
            for n in nodes:
                if n.name == node:
                    n.set(attribute, value, kind)  # pyright: ignore[reportArgumentType]

    return mutate


def both(transfer: str, attribute: str, value: int):
    """Set an attribute of a send and of its receive, on all ranks."""

    def mutate(traces: Traces) -> None:
        everywhere(f"send{transfer}", attribute, value)(traces)
        everywhere(f"recv{transfer}", attribute, value)(traces)

    return mutate


def drop(rank: int, node: str, attribute: str):
    return lambda traces: traces.find(rank, node).drop(attribute)


def drop_everywhere(node: str, attribute: str):
    def mutate(traces: Traces) -> None:
        for nodes in traces.nodes.values():
            for n in nodes:
                if n.name == node:
                    n.drop(attribute)

    return mutate


def remove(rank: int, node: str):
    return lambda traces: traces.remove(rank, node)


def retype(rank: int, node: str, node_type: int):
    def mutate(traces: Traces) -> None:
        traces.find(rank, node).type = node_type

    return mutate


def repeat_id(traces: Traces) -> None:
    traces.find(2, "forward1").id = traces.find(2, "backward0").id


def missing_dependency(traces: Traces) -> None:
    traces.find(1, "F1a").deps.append(77777)


def missing_control(traces: Traces) -> None:
    traces.find(1, "F1a").ctrl.append(77777)


def cycle(traces: Traces) -> None:
    traces.find(3, "forward0").deps.append(traces.find(3, "forward2").id)


def self_dependency(traces: Traces) -> None:
    node = traces.find(0, "step")
    node.deps.append(node.id)


def no_root(traces: Traces) -> None:
    for node in traces.nodes[1]:
        if not node.deps:
            node.ctrl.append(traces.nodes[1][-1].id)


def two_orders(traces: Traces) -> None:
    """Rank 0 reduces its buckets in another order, as its dependencies allow."""
    first, second = traces.find(0, "reduce2"), traces.find(0, "reduce1")
    first.attributes, second.attributes = second.attributes, first.attributes


def cross_rank_cycle(traces: Traces) -> None:
    """Stage 0 sends its first activations only after it has received their gradients."""
    for rank in (0, 1, 2, 3):
        traces.find(rank, "sendF0").deps.append(traces.find(rank, "recvB0").id)


def receive_before_send(traces: Traces) -> None:
    for rank in traces.nodes:
        traces.find(rank, "send0").deps.append(traces.find(rank, "recv0").id)


def slot_deadlock(traces: Traces) -> None:
    """Two independent collectives on each of two ranks, issued in opposite orders."""
    traces.groups = {"1": [0, 1], "2": [0, 1]}
    traces.nodes = {}
    for rank in (0, 1):
        build = Rank()
        order = ("1", "2") if rank == 0 else ("2", "1")
        for group in order:
            build.coll(f"on{group}", ALL_REDUCE, 4096, group)
        traces.nodes[rank] = build.nodes


def send_behind_collective(traces: Traces) -> None:
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


def crossing(traces: Traces) -> None:
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


def times_decide(traces: Traces) -> None:
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


def own_group(traces: Traces, node: str, group: str) -> None:
    for nodes in traces.nodes.values():
        for n in nodes:
            if n.name == node:
                n.set("pg_name", group, "string")


def group_of_one(traces: Traces) -> None:
    traces.groups["9"] = [3]
    traces.find(3, "reduce").set("pg_name", "9", "string")
    traces.find(1, "reduce").set("pg_name", "10", "string")
    traces.groups["10"] = [1]


def modulo(traces: Traces) -> None:
    """Renumber the groups over `dp` so that each shares tags with one over `tp`."""
    renamed = {"3": "501"}
    traces.groups = {renamed.get(k, k): v for k, v in traces.groups.items()}
    for nodes in traces.nodes.values():
        for node in nodes:
            if node.get("pg_name") in renamed:
                node.set("pg_name", renamed[str(node.get("pg_name"))], "string")


def not_a_member(traces: Traces) -> None:
    group = traces.groups[str(traces.find(2, "reduce").get("pg_name"))]
    group.remove(2)
    group.append(7)


def extra_collective(traces: Traces) -> None:
    last = traces.nodes[2][-1]
    node = Node(last.id + 1, "extra", COLL, [last.id])
    node.attributes = list(traces.find(2, "reduce0").attributes)
    traces.nodes[2].append(node)


def duplicate_member(traces: Traces) -> None:
    traces.groups["1"].append(traces.groups["1"][0])


def unknown_member(traces: Traces) -> None:
    traces.groups["1"].append(99)


def bad_group_key(traces: Traces) -> None:
    traces.groups["tensor"] = traces.groups.pop("1")
    for nodes in traces.nodes.values():
        for node in nodes:
            if node.get("pg_name") == "1":
                node.set("pg_name", "tensor", "string")


def tensor_twice(traces: Traces) -> None:
    node = traces.find(1, "F1b")
    node.set("outputs", ["F0b", "2048"], "strings")


def read_early(traces: Traces) -> None:
    traces.find(1, "F0b").set("inputs", ["step", "2048"], "strings")


def in_place(traces: Traces) -> None:
    traces.find(1, "F0b").set("inputs", ["F0b", "2048"], "strings")


def repeated_attribute(traces: Traces) -> None:
    traces.find(0, "reduce").attributes.append(("comm_size", "int64", 4))


def unused_group(traces: Traces) -> None:
    traces.groups["400"] = [0, 1, 2]


def halve_sizes(traces: Traces) -> None:
    """Count elements of two bytes where bytes are meant, and say of tensors what they have."""
    for nodes in traces.nodes.values():
        for node in nodes:
            size = node.get("comm_size")
            if isinstance(size, int):
                node.set("comm_size", size // 2)
                node.set("inputs", [f"input of {node.name}", str(size)])


def gathered_size(traces: Traces) -> None:
    """Give the size of what an all-gather makes for that of what it takes."""
    _resize_result(traces, "F0gather", 2)


def scattered_size(traces: Traces) -> None:
    """Give the size of what a reduce-scatter leaves for that of what it takes."""
    _resize_result(traces, "F0scatter", 0.5)


def _resize_result(traces: Traces, name: str, factor: float) -> None:
    for nodes in traces.nodes.values():
        for node in nodes:
            if node.name == name:
                size = int(str(node.get("comm_size")))
                node.set("inputs", [f"input of {name}", str(size)])
                node.set("outputs", [name, str(int(size * factor))])
                node.set("comm_size", int(size * factor))


def receiver_size(traces: Traces) -> None:
    traces.find(4, "recvF1").set("comm_size", 4096)


def receiver_tag(traces: Traces) -> None:
    traces.find(4, "recvF1").set("comm_tag", 100)


def timed_compute(traces: Traces) -> None:
    node = traces.find(1, "forward0")
    node.drop("num_ops")
    node.drop("tensor_size")
    node.duration = 10
