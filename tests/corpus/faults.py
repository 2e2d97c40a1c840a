"""The broken sets: each with the code that names the fault and the node that has it."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.corpus import mutations as m
from tests.corpus.traces import BROADCAST, INVALID, METADATA, REDUCE, Traces


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


FAULTS = [
    # The graph of one rank.
    Fault("repeated_id", "E0620", "data_parallel", m.repeat_id, (2, "backward0")),
    Fault("missing_data_dependency", "E0621", "mesh", m.missing_dependency, (1, "F1a")),
    Fault("missing_control_dependency", "E0621", "mesh", m.missing_control, (1, "F1a")),
    Fault("cycle", "E0622", "data_parallel", m.cycle, (3, "forward0")),
    Fault("depends_on_itself", "E0622", "data_parallel", m.self_dependency, (0, "step")),
    Fault("no_root", "E0622", "data_parallel", m.no_root),
    # Single nodes.
    Fault("metadata_node", "E0630", "data_parallel", m.retype(0, "step", METADATA), (0, "step")),
    Fault("invalid_node", "E0630", "data_parallel", m.retype(0, "step", INVALID), (0, "step")),
    Fault("unknown_type", "E0630", "data_parallel", m.retype(0, "step", 9), (0, "step")),
    Fault("no_num_ops", "E0631", "mesh", m.drop(0, "F0a", "num_ops"), (0, "F0a")),
    Fault("no_tensor_size", "E0631", "mesh", m.drop(0, "F0a", "tensor_size"), (0, "F0a")),
    Fault("no_comm_size", "E0631", "mesh", m.drop_everywhere("reduce", "comm_size"), (0, "reduce")),
    Fault("no_comm_type", "E0631", "mesh", m.drop_everywhere("reduce", "comm_type"), (0, "reduce")),
    Fault("no_comm_dst", "E0631", "mesh", m.drop(0, "sendF0", "comm_dst"), (0, "sendF0")),
    Fault("no_comm_src", "E0631", "mesh", m.drop(4, "recvF0", "comm_src"), (4, "recvF0")),
    Fault("no_comm_tag", "E0631", "mesh", m.drop_everywhere("sendF2", "comm_tag"), (0, "sendF2")),
    Fault("load_without_size", "E0631", "mesh", m.drop(5, "load", "tensor_size"), (5, "load")),
    Fault(
        "double_num_ops", "E0632", "mesh", m.change(3, "F0a", "num_ops", 4.0, "double"), (3, "F0a")
    ),
    Fault(
        "float_size", "E0632", "mesh", m.change(3, "F0a", "tensor_size", 4.0, "float"), (3, "F0a")
    ),
    Fault("text_size", "E0632", "mesh", m.change(3, "F0a", "num_ops", "4", "string"), (3, "F0a")),
    Fault(
        "number_as_group",
        "E0632",
        "data_parallel",
        m.everywhere("reduce0", "pg_name", 0, "int32"),
        (0, "reduce0"),
    ),
    Fault("negative_ops", "E0633", "mesh", m.change(2, "F0a", "num_ops", -5), (2, "F0a")),
    Fault("negative_size", "E0633", "mesh", m.everywhere("reduce", "comm_size", -8), (0, "reduce")),
    Fault(
        "negative_sint", "E0633", "mesh", m.change(2, "F0a", "num_ops", -5, "sint64"), (2, "F0a")
    ),
    Fault("no_ops", "E0634", "mesh", m.change(7, "F0b", "num_ops", 0), (7, "F0b")),
    Fault("no_bytes", "E0634", "mesh", m.change(7, "F0b", "tensor_size", 0), (7, "F0b")),
    Fault(
        "empty_collective", "E0635", "mesh", m.everywhere("reduce", "comm_size", 0), (0, "reduce")
    ),
    Fault(
        "broadcast", "W0637", "mesh", m.everywhere("reduce", "comm_type", BROADCAST), (0, "reduce")
    ),
    Fault("reduce", "E0636", "mesh", m.everywhere("reduce", "comm_type", REDUCE), (0, "reduce")),
    Fault("barrier", "E0636", "mesh", m.everywhere("reduce", "comm_type", 9), (0, "reduce")),
    Fault("unknown_kind", "E0636", "mesh", m.everywhere("reduce", "comm_type", 44), (0, "reduce")),
    Fault(
        "collective_on_cpu",
        "E0637",
        "mesh",
        m.change(6, "reduce", "is_cpu_op", 1, "bool"),
        (6, "reduce"),
    ),
    Fault("huge_ops", "W0636", "mesh", m.change(0, "F0a", "num_ops", 10**19, "uint64"), (0, "F0a")),
    Fault("huge_bytes", "W0636", "mesh", m.change(0, "F0a", "tensor_size", 1 << 60), (0, "F0a")),
    Fault("odd_size", "W0634", "mesh", m.everywhere("reduce", "comm_size", 1001), (0, "reduce")),
    Fault(
        "tiny_gather", "W0638", "mesh", m.everywhere("F0gather", "comm_size", 2), (0, "F0gather")
    ),
    Fault("empty_load", "W0639", "mesh", m.change(4, "load", "tensor_size", 0), (4, "load")),
    Fault("attribute_twice", "W0630", "mesh", m.repeated_attribute, (0, "reduce")),
    Fault("compute_on_cpu", "W0642", "mesh", m.change(2, "F0b", "is_cpu_op", 1), (2, "F0b")),
    Fault("instant_root", "W0643", "mesh", m.change(0, "F0a", "tensor_size", 400), (0, "F0a")),
    Fault("timed_compute", "W0631", "data_parallel", m.timed_compute, (1, "forward0")),
    Fault("wide_tag", "W0633", "mesh", m.both("B2", "comm_tag", 1 << 33), (4, "sendB2")),
    # Groups and collectives.
    Fault("bad_group_key", "E0641", "mesh", m.bad_group_key),
    Fault(
        "unknown_group", "E0642", "mesh", lambda t: m.own_group(t, "reduce", "77"), (0, "reduce")
    ),
    Fault("no_group_file", "E0642", "mesh", lambda t: t.groups.clear()),
    Fault("not_a_member", "E0643", "mesh", m.not_a_member, (2, "reduce"), ("E0648",)),
    Fault("group_of_one", "E0644", "mesh", m.group_of_one, (3, "reduce")),
    Fault("equal_modulo_500", "E0645", "mesh", m.modulo),
    Fault(
        "world_without_id", "E0646", "mesh", m.drop_everywhere("reduce", "pg_name"), (0, "reduce")
    ),
    Fault("duplicate_member", "E0647", "mesh", m.duplicate_member),
    Fault("member_without_trace", "E0647", "mesh", m.unknown_member),
    Fault("missing_collective", "E0648", "data_parallel", m.remove(2, "reduce1")),
    Fault("extra_collective", "E0648", "data_parallel", m.extra_collective, (2, "extra")),
    Fault("other_order", "E0649", "data_parallel", m.two_orders, (0, "reduce2")),
    Fault("other_kind", "E0650", "mesh", m.change(6, "reduce", "comm_type", 6), (6, "reduce")),
    Fault("other_size", "E0651", "mesh", m.change(6, "reduce", "comm_size", 128), (6, "reduce")),
    Fault("unused_group", "W0640", "mesh", m.unused_group),
    # Sends and receives.
    Fault("no_send", "E0652", "mesh", m.remove(1, "sendF1"), (5, "recvF1")),
    Fault("no_receive", "E0653", "mesh", m.remove(5, "recvF1"), (1, "sendF1")),
    Fault("other_bytes", "E0654", "mesh", m.receiver_size, (0, "sendF1")),
    Fault("other_tag", "E0655", "mesh", m.receiver_tag, (0, "sendF1")),
    Fault(
        "unknown_peer",
        "E0656",
        "mesh",
        m.change(0, "sendF0", "comm_dst", 50),
        (0, "sendF0"),
        ("E0652",),
    ),
    Fault(
        "sends_to_itself",
        "E0657",
        "mesh",
        m.change(0, "sendF0", "comm_dst", 0),
        (0, "sendF0"),
        ("E0652",),
    ),
    Fault(
        "receives_from_itself",
        "E0657",
        "mesh",
        m.change(4, "recvF0", "comm_src", 4),
        (4, "recvF0"),
        ("E0653",),
    ),
    Fault("other_source", "E0658", "mesh", m.change(1, "sendF0", "comm_src", 3), (1, "sendF0")),
    Fault(
        "other_destination", "E0658", "mesh", m.change(5, "recvF0", "comm_dst", 3), (5, "recvF0")
    ),
    Fault("empty_send", "E0635", "mesh", m.both("F1", "comm_size", 0), (0, "sendF1")),
    # Deadlock.
    Fault("cross_rank_cycle", "E0660", "mesh", m.cross_rank_cycle),
    Fault("receive_before_send", "E0660", "ring", m.receive_before_send),
    Fault("opposite_orders", "E0661", "data_parallel", m.slot_deadlock),
    Fault("send_behind_collective", "E0661", "data_parallel", m.send_behind_collective),
    Fault("crossing_collectives", "E0662", "data_parallel", m.crossing),
    Fault("times_decide", "W0660", "data_parallel", m.times_decide),
    # Memory.
    Fault("odd_list", "E0670", "mesh", m.change(1, "F0b", "inputs", ["x"], "strings"), (1, "F0b")),
    Fault(
        "bytes_in_words", "E0670", "mesh", m.change(1, "F0b", "inputs", ["x", "many"]), (1, "F0b")
    ),
    Fault("list_is_text", "E0670", "mesh", m.change(1, "F0b", "inputs", "x", "string"), (1, "F0b")),
    Fault("decimal_point", "W0670", "mesh", m.change(1, "F0b", "inputs", ["x", "8.0"]), (1, "F0b")),
    Fault("elements_for_bytes", "W0635", "mesh", m.halve_sizes, (0, "F0gather")),
    Fault("gathered_size", "W0632", "mesh", m.gathered_size, (0, "F0gather")),
    Fault("scattered_size", "W0632", "mesh", m.scattered_size, (0, "F0scatter")),
    Fault("tensor_written_twice", "E0671", "mesh", m.tensor_twice, (1, "F1b")),
    Fault("read_before_write", "E0672", "mesh", m.read_early, (1, "F0b")),
    Fault("read_by_its_writer", "E0672", "mesh", m.in_place, (1, "F0b")),
    Fault("some_without_lists", "E0673", "mesh", m.drop(1, "F0b", "inputs"), (1, "F0b")),
    # Header.
    Fault("no_header", "E0694", "data_parallel", lambda t: t.headless.add(1)),
    Fault("other_schema", "W0691", "data_parallel", lambda t: setattr(t, "version", "0.0.1")),
    Fault("no_nodes", "E0695", "data_parallel", lambda t: t.nodes[1].clear()),
]
