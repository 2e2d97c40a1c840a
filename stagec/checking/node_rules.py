"""Rules for single nodes: which types run, which attributes they need, which numbers make sense.

What ASTRA-sim demands was read from its source (commit 518bd51): `Workload::issue` and the feeder's
`ETFeederNode::get_attr`. Rules of other consumers are a subset: communication must be complete.
"""

from collections.abc import Callable

import numpy as np

from stagec.checking.node_decoding import FileFindings
from stagec.checking.node_table import NodeTable
from stagec.checking.schema import (
    ABSENT,
    COLL,
    COLLECTIVES,
    COMP,
    INVALID,
    MEM_LOAD,
    MEM_STORE,
    METADATA,
    NO_VALUE,
    NODE_TYPES,
    RECV,
    SEND,
    STRING,
    VALUE_KINDS,
)

REQUIRED = {
    COMP: ("num_ops", "tensor_size"),
    COLL: ("comm_type", "comm_size"),
    SEND: ("comm_dst", "comm_size", "comm_tag"),
    RECV: ("comm_src", "comm_size", "comm_tag"),
    MEM_LOAD: ("tensor_size",),
    MEM_STORE: ("tensor_size",),
}
OPTIONAL = {COLL: ("is_cpu_op",), SEND: ("comm_src", "is_cpu_op"), RECV: ("comm_dst", "is_cpu_op")}
OPTIONAL[COMP] = ("is_cpu_op",)

SUPPORTED_COLLECTIVES = ("ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", "ALL_TO_ALL")
COMMON_SPLITS = 4
"""`preferred-dataset-splits` in most system configurations that come with ASTRA-sim."""
HUGE_BYTES = 1 << 46
HUGE_OPS = 10**18
A_NANOSECOND = {"num_ops": 312_000, "tensor_size": 2_039}
"""What an A100 does in one, at 312 TFLOP/s and 2.039 TB/s; later devices do more."""


def check_nodes(table: NodeTable, found: FileFindings, astra_sim: bool) -> None:
    """Every rule that one node can break, whatever the other nodes are."""
    for node_type in REQUIRED:
        rows = np.flatnonzero(table.type == node_type)
        if rows.size:
            _check_type(table, found, node_type, rows, astra_sim)
    _check_repeated(table, found)
    if not astra_sim:
        _check_groups(table, found)
    if astra_sim:
        _check_runnable(table, found)
        _check_collective_kinds(table, found)
        _check_start(table, found)


def communication_is_known(table: NodeTable) -> bool:
    """Whether all communication has what it takes to compare it with that of other ranks."""
    for node_type in (COLL, SEND, RECV):
        rows = np.flatnonzero(table.type == node_type)
        for name in REQUIRED[node_type]:
            column = table.attributes[name]
            if not (column.is_integer(rows) & ~column.is_negative(rows)).all():
                return False
        if node_type == COLL and not _names_group(table, rows).all():
            return False
    return True


def is_cpu_op(table: NodeTable, rows: np.ndarray) -> np.ndarray:
    column = table.attributes["is_cpu_op"]
    return column.is_integer(rows) & (column.value[rows] != 0)


def _check_type(
    table: NodeTable, found: FileFindings, node_type: int, rows: np.ndarray, astra_sim: bool
) -> None:
    kind_of_node = NODE_TYPES[node_type]
    cpu = is_cpu_op(table, rows)
    if node_type in (COLL, SEND, RECV) and astra_sim:
        found.add_rows(table, "E0637", "a communication is marked as an op of the CPU", rows[cpu])
    if node_type in (COMP, MEM_LOAD, MEM_STORE):
        if not astra_sim:
            return
        # An op of the CPU takes its recorded duration.
        costs = table.attributes["num_ops"].kind[rows] != ABSENT
        message = "compute with a cost is marked as an op of the CPU"
        found.add_rows(table, "W0642", message, rows[cpu & costs])
        rows = rows[~cpu]
    costless = np.zeros(rows.size, dtype=bool)
    for name in REQUIRED[node_type]:
        absent = table.attributes[name].kind[rows] == ABSENT
        if node_type == COMP:
            timed = absent & (table.duration[rows] > 0)
            absent &= ~timed
            costless |= timed
        found.add_rows(table, "E0631", f"`{name}` is missing on a {kind_of_node}", rows[absent])
    found.add_rows(
        table,
        "W0631",
        "compute has a duration but no cost",
        rows[costless],
        lambda row: f"it takes {table.duration[row]} microseconds",
    )
    for name in REQUIRED[node_type] + OPTIONAL.get(node_type, ()):
        _check_number(table, found, kind_of_node, name, rows)
    _check_costs(table, found, node_type, rows)


def _check_number(
    table: NodeTable, found: FileFindings, kind_of_node: str, name: str, rows: np.ndarray
) -> None:
    column = table.attributes[name]
    kind = column.kind[rows]
    integer = column.is_integer(rows)
    wrong = rows[~integer & (kind != ABSENT)]
    for number in np.unique(column.kind[wrong]):
        found.add_rows(
            table,
            "E0632",
            f"`{name}` of a {kind_of_node} {_kind_in_words(int(number))}",
            wrong[column.kind[wrong] == number],
        )
    negative = rows[integer & column.is_negative(rows)]
    found.add_rows(
        table,
        "E0633",
        f"`{name}` is negative",
        negative,
        lambda row: f"it is {int(column.value[row]) - (1 << 64)}",
    )
    positive = rows[integer & ~column.is_negative(rows)]
    value = column.value[positive]
    if name in ("comm_src", "comm_dst", "comm_tag"):
        over, code, what = value >= 1 << 32, "W0633", "needs more than 32 bits"
    elif name == "num_ops":
        over, code, what = value > HUGE_OPS, "W0636", "is implausibly large"
    elif name in ("tensor_size", "comm_size"):
        over, code, what = value > HUGE_BYTES, "W0636", "is implausibly large"
    else:
        return
    found.add_rows(table, code, f"`{name}` {what}", positive[over], _value(table, name))


def _kind_in_words(number: int) -> str:
    if number == NO_VALUE:
        return "has no value"
    kind = VALUE_KINDS[number]
    return f"is {'an' if kind.startswith('int') else 'a'} {kind}"


def _check_costs(table: NodeTable, found: FileFindings, node_type: int, rows: np.ndarray) -> None:
    if node_type == COMP:
        zeros = (("num_ops", "E0634"), ("tensor_size", "E0634"))
    elif node_type in (MEM_LOAD, MEM_STORE):
        zeros = (("tensor_size", "W0639"),)
    else:
        zeros = (("comm_size", "E0635"),)
    for name, code in zeros:
        column = table.attributes[name]
        zero = column.is_integer(rows) & (column.value[rows] == 0)
        message = f"`{name}` of a {NODE_TYPES[node_type]} is 0"
        found.add_rows(table, code, message, rows[zero])
    if node_type in (COLL, SEND, RECV):
        column = table.attributes["comm_size"]
        value = column.value[rows]
        odd = column.is_integer(rows) & ((value & np.uint64(1)) == 1) & (value > 1)
        found.add_rows(
            table,
            "W0634",
            "`comm_size` is odd: no whole number of 2-byte or 4-byte elements",
            rows[odd & ~column.is_negative(rows)],
            _value(table, "comm_size"),
        )


def _check_runnable(table: NodeTable, found: FileFindings) -> None:
    for node_type in (INVALID, METADATA):
        rows = np.flatnonzero(table.type == node_type)
        found.add_rows(
            table,
            "E0630",
            f"a node is an {NODE_TYPES[node_type]}"
            if node_type == INVALID
            else f"a node is a {NODE_TYPES[node_type]}",
            rows,
        )
    found.add_rows(
        table,
        "E0630",
        "a node has an unknown type",
        np.flatnonzero((table.type < 0) | (table.type >= len(NODE_TYPES))),
        lambda row: f"its type is {table.type[row]}",
    )


def _check_groups(table: NodeTable, found: FileFindings) -> None:
    """The id of a group is a text or a number."""
    rows = np.flatnonzero(table.type == COLL)
    wrong = rows[~_names_group(table, rows)]
    found.add_rows(table, "E0632", "`pg_name` is neither a text nor a number", wrong)


def _names_group(table: NodeTable, rows: np.ndarray) -> np.ndarray:
    """Whether each row says what group it is of, or of none: as a text or as a number."""
    group = table.attributes["pg_name"]
    is_number = group.is_integer(rows) & ~group.is_negative(rows)
    return np.isin(group.kind[rows], (ABSENT, STRING)) | is_number


def _check_collective_kinds(table: NodeTable, found: FileFindings) -> None:
    rows = np.flatnonzero(table.type == COLL)
    if not rows.size:
        return
    kind = table.attributes["comm_type"]
    rows = rows[kind.is_integer(rows) & ~kind.is_negative(rows)]
    value = kind.value[rows]
    for number, name in enumerate(COLLECTIVES):
        same = rows[value == number]
        if name == "BROADCAST":
            found.add_rows(table, "W0637", "a BROADCAST moves nothing", same)
        elif name not in SUPPORTED_COLLECTIVES:
            found.add_rows(table, "E0636", f"the target has no {name}", same)
    unknown = rows[value >= len(COLLECTIVES)]
    found.add_rows(
        table, "E0636", "a collective has an unknown kind", unknown, _value(table, "comm_type")
    )
    size = table.attributes["comm_size"]
    gathers = rows[(value == COLLECTIVES.index("ALL_GATHER")) & size.is_integer(rows)]
    tiny = (size.value[gathers] > 0) & (size.value[gathers] < COMMON_SPLITS)
    found.add_rows(
        table,
        "W0638",
        "an ALL_GATHER is smaller than the number of its chunks",
        gathers[tiny],
        _value(table, "comm_size"),
    )
    group = table.attributes["pg_name"]
    wrong = rows[(group.kind[rows] != ABSENT) & (group.kind[rows] != STRING)]
    found.add_rows(table, "E0632", "`pg_name` is not a string", wrong)


def _check_start(table: NodeTable, found: FileFindings) -> None:
    """Run times are whole nanoseconds, rounded down. `EventQueue::proceed` asserts that time moves on, and its
    first event is where no node has run: a root that takes 0 ns ends the simulation there.
    """
    root = table.type == COMP
    root[table.dep_owner] = False
    rows = np.flatnonzero(root)
    rows = rows[~is_cpu_op(table, rows)]
    for name, most in A_NANOSECOND.items():
        column = table.attributes[name]
        rows = rows[column.is_integer(rows) & ~column.is_negative(rows)]
        rows = rows[(column.value[rows] > 0) & (column.value[rows] < most)]
    found.add_rows(
        table,
        "W0643",
        "compute that waits for nothing takes less than a nanosecond",
        rows,
        lambda row: " and ".join(
            f"`{n}` is {table.attributes[n].value[row]}" for n in A_NANOSECOND
        ),
    )


def _check_repeated(table: NodeTable, found: FileFindings) -> None:
    for name, column in table.attributes.items():
        found.add_rows(table, "W0630", f"`{name}` is there more than once", column.repeated)


def _value(table: NodeTable, name: str) -> Callable[[int], str]:
    return lambda row: f"it is {table.attributes[name].value[row]}"
