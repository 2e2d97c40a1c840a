"""One node template as the record of a trace file, with holes where instances and ranks differ.

The rules of ASTRA-sim that concern single nodes are here: which attributes a node has and of which
type, that costs are at least 1, what `comm_size` means.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from stagec.backend.groups import ALL_RANKS
from stagec.backend.program import SAME_LAYER, Dep, Node, TraceTensor
from stagec.backend.wire import (
    Form,
    NumberSource,
    Piece,
    delimited,
    delimited_piece,
    handed_argument,
    integer,
    key,
    text,
    varint,
)
from stagec.dialects.sched.actions import (
    Collective,
    Compute,
    HostCopy,
    HostUpdate,
    NodeAction,
    Transfer,
)

NameStyle = Literal["full", "short", "typed", "none"]
"""What the names of nodes say: where they are from; their op; their op behind Chakra's name of their type; nothing."""
FIRST_ID = 1
"""Node ids count from 1: protobuf does not tell an id of 0 from none."""
DepSource = tuple[NumberSource, int]
"""Whose id a dependency is: `NumberSource.NODE` and an index, or `NumberSource.SLOT` and a slot."""

# NodeType
MEM_LOAD, MEM_STORE, COMP, COMM_SEND, COMM_RECV, COMM_COLL = 2, 3, 4, 5, 6, 7

TYPE_WORDS = {
    MEM_LOAD: "MEM_LOAD_NODE REMOTE_MEMORY",
    MEM_STORE: "MEM_STORE_NODE REMOTE_MEMORY",
    COMP: "COMP_NODE",
    COMM_SEND: "COMM_SEND_NODE",
    COMM_RECV: "COMM_RECV_NODE",
    COMM_COLL: "COMM_COLL_NODE",
}
"""What Chakra's timeline visualizer (1.0.0) finds the row of an event by, in the name of its node."""

# CollectiveCommType
COMM_TYPES = {"all_reduce": 0, "all_gather": 2, "all_to_all": 6, "reduce_scatter": 7}

# Fields of Node and of AttributeProto
_ID, _NAME, _TYPE, _CTRL_DEPS, _DATA_DEPS, _DURATION, _ATTR = 1, 2, 3, 4, 5, 7, 10
_INT32, _INT64, _UINT64, _BOOL, _STRING, _STRINGS = 7, 9, 13, 27, 29, 30


@dataclass(frozen=True, slots=True)
class Widths:
    """Bytes of each kind of hole, the same in all traces of a set."""

    node: int
    tag: int
    rank: int
    group: int
    layer: int
    microbatch: int
    stage: int
    tensor: int
    """Digits of a node's id in the name of a tensor."""
    iteration: int = 0
    """Digits of the number of an iteration; 0 where there is one."""
    sizes: tuple[int, ...] = ()
    """The sizes of the columns of a series."""


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """Which of an instance's numbers there are, to be shown in names."""

    layer: bool
    microbatch: bool
    stage: bool
    iteration: bool = False


@dataclass(frozen=True, slots=True)
class RankVariables:
    """The numbers of the rank variables that a node refers to."""

    group: int = -1
    source: int = -1
    destination: int = -1


@dataclass(frozen=True, slots=True)
class NodeStyle:
    names: NameStyle
    provenance: bool
    widths: Widths


@dataclass(frozen=True, slots=True)
class RecordFrame:
    """The record of a node without its length and what a simulator reads of its action: what comes before that, and after."""

    head: Piece
    tail: Piece


def frame(
    node: Node,
    index: int,
    task: str,
    labels: NodeLabels,
    ctrl_deps: Sequence[DepSource],
    data_deps: Sequence[DepSource],
    style: NodeStyle,
    slots: Sequence[int] = (),
    durations: int | None = None,
) -> RecordFrame:
    """For node `index` of a segment. `slots`: the first slot equal to each; `durations`: the column of a series that has what the node takes."""
    head = (
        Piece().add(key(_ID, 0)).add_hole(style.widths.node, Form.VARINT, NumberSource.NODE, index)
    )
    name = _name(node, labels, style)
    if name.data:
        head.add(delimited_piece(_NAME, name))
    head.add(integer(_TYPE, _node_type(node)))
    for number, deps in ((_CTRL_DEPS, ctrl_deps), (_DATA_DEPS, data_deps)):
        if deps:
            packed = Piece()
            for source, argument in deps:
                packed.add_hole(style.widths.node, Form.VARINT, source, argument)
            head.add(delimited_piece(number, packed))
    if durations is not None:
        head.add(key(_DURATION, 0))
        width = style.widths.sizes[durations]
        head.add_hole(width, Form.VARINT, NumberSource.SIZE, durations)
    elif node.duration_us:
        head.add(integer(_DURATION, node.duration_us))
    head.add(_attribute("is_cpu_op", integer(_BOOL, isinstance(node.action, HostUpdate))))
    tail = Piece()
    for list_name, tensors in (("inputs", node.inputs), ("outputs", node.outputs)):
        if tensors is not None:
            tail.add(_tensor_list(list_name, tensors, slots, style))
    if style.provenance:
        _add_provenance(tail, node, task, labels, style.widths)
    return RecordFrame(head, tail)


def frame_key(node: Node) -> Hashable:
    """All of a node but the numbers of its action."""
    action = node.action
    kind = "" if isinstance(action, Compute) else action.kind
    dtype = action.dtype if isinstance(action, Collective | Transfer) else ""
    said = (node.op, node.phase, node.scope, node.stream, node.location, node.made_by)
    return (
        *said,
        type(action),
        kind,
        dtype,
        node.data_deps,
        node.ctrl_deps,
        node.inputs,
        node.outputs,
        node.duration_us,
        node.durations,
    )


def add_record(
    piece: Piece,
    made: RecordFrame,
    action: NodeAction,
    variables: RankVariables,
    widths: Widths,
    columns: Sequence[int] = (),
) -> None:
    """The record of a node, its length first. `columns` are those of a series that its numbers are in."""
    numbers = Piece()
    _add_action(numbers, action, variables, widths, columns)
    length = len(made.head.data) + len(numbers.data) + len(made.tail.data)
    piece.add(varint(length)).add(made.head).add(numbers).add(made.tail)


def _name(node: Node, labels: NodeLabels, style: NodeStyle) -> Piece:
    """`bwd/Block.Attention.wq/contract/L003/m01`; a communication's op ends in its dtype. In other styles `contract`, `COMP_NODE contract`, or nothing."""
    if style.names == "none":
        return Piece()
    if style.names == "short":
        return Piece(bytearray(node.op.encode()))
    if style.names == "typed":
        return Piece(bytearray(f"{TYPE_WORDS[_node_type(node)]} {node.op}".encode()))
    op = node.op
    if isinstance(node.action, Collective | Transfer):
        op = f"{op}[{node.action.dtype}]"
    name = Piece(bytearray("/".join(p for p in (node.phase, node.scope, op) if p).encode()))
    if labels.layer:
        name.add(b"/L").add_hole(style.widths.layer, Form.DIGITS, NumberSource.LAYER)
    if labels.microbatch:
        name.add(b"/m").add_hole(style.widths.microbatch, Form.DIGITS, NumberSource.MICROBATCH)
    if labels.iteration:
        name.add(b"/i").add_hole(style.widths.iteration, Form.DIGITS, NumberSource.ITERATION)
    return name


def _node_type(node: Node) -> int:
    match node.action:
        case Compute() | HostUpdate():
            return COMP
        case Collective():
            return COMM_COLL
        case Transfer(kind=kind):
            return {"send": COMM_SEND, "recv": COMM_RECV}[kind]
        case HostCopy(kind=kind):
            return MEM_LOAD if kind in ("load", "read") else MEM_STORE


def _add_action(
    body: Piece,
    action: NodeAction,
    variables: RankVariables,
    widths: Widths,
    columns: Sequence[int] = (),
) -> None:
    """The attributes that a simulator reads, each of the type in which Chakra's first feeder reads
    it; later feeders read any integer. No cost may be 0: what depends on such a node never starts.
    """

    def number(name: str, kind: int, place: int, said: bytes) -> Piece | bytes:
        """A number that all iterations have, or the hole of its column."""
        if not columns:
            return said
        column = columns[place]
        hole = (
            Piece()
            .add(key(kind, 0))
            .add_hole(widths.sizes[column], Form.VARINT, NumberSource.SIZE, column)
        )
        return _attribute_piece(name, hole)

    match action:
        case Compute() | HostUpdate():
            body.add(number("num_ops", _INT64, 0, _num_ops(action.num_ops)))
            body.add(number("tensor_size", _UINT64, 1, _tensor_size(action.num_bytes)))
        case HostCopy():
            body.add(number("tensor_size", _UINT64, 0, _tensor_size(action.num_bytes)))
        case Collective():
            # The shard that one rank contributes to an all_gather; else the whole buffer of one
            # rank. Both are what the rank puts in.
            body.add(_attribute("comm_type", integer(_INT64, COMM_TYPES[action.kind])))
            body.add(number("comm_size", _INT64, 0, _comm_size(action.operand_bytes)))
            group = Piece(bytearray(str(ALL_RANKS).encode()))
            if not action.ranks:
                group = Piece().add_hole(
                    widths.group, Form.DIGITS, NumberSource.RANK, variables.group
                )
            body.add(_attribute_piece("pg_name", delimited_piece(_STRING, group)))
        case Transfer():
            body.add(number("comm_size", _INT64, 0, _comm_size(action.num_bytes)))
            source, place = NumberSource.TAG, action.channel
            if action.peer is not None and action.peer.handed is not None:
                source = NumberSource.HANDED
                place = handed_argument(action.channel, action.peer.handed)
            for name, width, of_hole, argument in (
                ("comm_src", widths.rank, NumberSource.RANK, variables.source),
                ("comm_dst", widths.rank, NumberSource.RANK, variables.destination),
                ("comm_tag", widths.tag, source, place),
            ):
                value = Piece().add(key(_INT32, 0))
                body.add(
                    _attribute_piece(name, value.add_hole(width, Form.VARINT, of_hole, argument))
                )


def _add_provenance(body: Piece, node: Node, task: str, labels: NodeLabels, widths: Widths) -> None:
    """Where the node comes from, and its place in the schedule: `B/s03/L007/m01`."""
    for name, value in (
        ("location", node.location),
        ("made_by", node.made_by),
        ("stream", node.stream),
    ):
        if value:
            body.add(_attribute(name, text(_STRING, value)))
    slot = Piece(bytearray(task.encode()))
    for shown, letter, width, source in (
        (labels.stage, b"/s", widths.stage, NumberSource.STAGE),
        (labels.layer, b"/L", widths.layer, NumberSource.LAYER),
        (labels.microbatch, b"/m", widths.microbatch, NumberSource.MICROBATCH),
        (labels.iteration, b"/i", widths.iteration, NumberSource.ITERATION),
    ):
        if shown:
            slot.add(letter).add_hole(width, Form.DIGITS, source)
    body.add(_attribute_piece("schedule_slot", delimited_piece(_STRING, slot)))


def _tensor_list(
    name: str, tensors: Sequence[TraceTensor], slots: Sequence[int], style: NodeStyle
) -> Piece:
    """`[name, bytes, name, bytes, ...]`, as ASTRA-sim's tracker of local memory reads it."""
    strings = Piece()
    for tensor in tensors:
        strings.add(delimited_piece(1, _tensor_name(tensor, slots, style)))
        strings.add(text(1, str(tensor.num_bytes)))
    return _attribute_piece(name, delimited_piece(_STRINGS, strings))


def _tensor_name(tensor: TraceTensor, slots: Sequence[int], style: NodeStyle) -> Piece:
    """`fwd/Block.wq/contract/000017.0`: what node 17 writes first. `parameter/Block.wq/L003`: what stays."""
    widths = style.widths
    if tensor.writer is None:
        name = Piece(bytearray(tensor.label.encode()))
        if tensor.layer == SAME_LAYER:
            name.add(b"/L").add_hole(widths.layer, Form.DIGITS, NumberSource.LAYER)
        elif tensor.layer >= 0:
            name.add(f"/L{tensor.layer:0{widths.layer}d}".encode())
        return name
    name = Piece(bytearray(f"{tensor.label}/".encode() if style.names == "full" else b"t"))
    if isinstance(tensor.writer, Dep):
        is_near = tensor.writer.slot < 0
        source = NumberSource.NODE if is_near else NumberSource.SLOT
        argument = tensor.writer.node if is_near else slots[tensor.writer.slot]
        name.add_hole(widths.tensor, Form.DIGITS, source, argument)
    else:
        name.add(f"{tensor.writer + FIRST_ID:0{widths.tensor}d}".encode())
    return name.add(f".{tensor.output}".encode())


@lru_cache(maxsize=1 << 14)
def _num_ops(number: int) -> bytes:
    return _attribute("num_ops", integer(_INT64, max(1, number)))


@lru_cache(maxsize=1 << 14)
def _tensor_size(num_bytes: int) -> bytes:
    return _attribute("tensor_size", integer(_UINT64, max(1, num_bytes)))


@lru_cache(maxsize=1 << 14)
def _comm_size(num_bytes: int) -> bytes:
    return _attribute("comm_size", integer(_INT64, max(1, num_bytes)))


def _attribute(name: str, value: bytes) -> bytes:
    return delimited(_ATTR, text(1, name) + value)


def _attribute_piece(name: str, value: Piece) -> Piece:
    return delimited_piece(_ATTR, Piece(bytearray(text(1, name))).add(value))
