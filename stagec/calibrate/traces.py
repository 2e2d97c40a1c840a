"""Durations of operators in a trace of a real run: Kineto's JSON, as `torch.profiler` exports it, or Chakra's `.et`.

Of Kineto, kernels are joined to the operator that launched them by `External id` (or by the correlation of the launch), which has its shapes
in `Input Dims` if the profiler recorded them (`record_shapes=True`). Products and attention are taken by shape, collectives by bytes and
group (PyTorch 2.3 and later write both beside the kernel), elementwise operators by the bytes of what they read and write.

Of Chakra, as its converter writes traces of PyTorch (mlcommons/chakra at 072c562, `src/converter`), a kernel has the shapes of its operator in
`inputs`, and that operator among its `ctrl_deps`. Collectives are taken by `comm_size`, which is what a rank puts in, and by their group in
`comm_group.json` beside the trace, as ASTRA-sim reads it; what moves data alone (at most one FLOP) by `tensor_size`. So a trace that stagec wrote
with `--durations` has its collectives and copies; its products say no shapes.
"""

from __future__ import annotations

import ast
import gzip
import io
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stagec.backend.errors import TraceError
from stagec.backend.et_def_pb2 import Node as ChakraNode, NodeType
from stagec.backend.et_file import TraceReader
from stagec.calibrate.folder import MOST, unreadable
from stagec.calibrate.measured import LeftOut, Measured, Row, gathered
from stagec.checking.comm_groups import MAX_GROUP_FILE_BYTES, find_group_file
from stagec.devices.model import Key
from stagec.devices.rules import element_bytes
from stagec.reading import parse_json, read_file

Event = Mapping[str, Any]
DTYPES = {
    "c10::BFloat16": ("bf16", 2),
    "c10::Half": ("bf16", 2),
    "float": ("fp32", 4),
    "c10::Float8_e4m3fn": ("fp8", 1),
}
"""Names in Kineto; fp16 runs on the same units at the same speed as bf16."""
NCCL = {
    "allreduce": "all_reduce",
    "_allgather_base": "all_gather",
    "allgather": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all",
}
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear")
ELEMENTWISE = tuple(
    f"aten::{name}"
    for name in (
        "add",
        "sub",
        "mul",
        "div",
        "neg",
        "copy",
        "silu",
        "gelu",
        "relu",
        "sigmoid",
        "tanh",
    )
)
"""With and without `_` behind, as they write what they read or something new."""
ATTENTION = ("flash_attention_forward", "efficient_attention_forward", "cudnn_attention_forward")
BACKWARD = "backward"
WHOLE = ("int32", "int64", "uint32", "uint64", "bool")
MOST_BYTES = 2 << 30
"""The most bytes of a trace, unpacked."""


OF_NO_OPERATOR = "kernels of no operator that the trace has"
OTHER_OPERATOR = "operators of which no table is made"
OTHER_COLLECTIVE = "collectives of which no table is made"


KINETO = "record it with `torch.profiler.profile(record_shapes = True)`, and export it"


def read_trace(path: Path, node: int | None, left_out: Counter[LeftOut]) -> dict[Key, Measured]:
    """What a trace measured on devices of which a node has so many; None: all are in one. Collectives that leave a node are left out. E0418 if it is none."""
    rows = chakra_rows(path, node) if path.suffix == ".et" else kineto_rows(path, node)
    found = gathered(rows, left_out)
    if not found:
        message = f"`{path.name}` has no kernel whose operator says its shapes"
        raise unreadable(message, path, KINETO)
    return found


def kineto_rows(path: Path, node: int | None) -> Iterator[Row | LeftOut]:
    try:
        raw = read_file(path, MOST_BYTES)
        data: Any = parse_json(unpacked(raw) if path.suffix == ".gz" else raw)
    except (OSError, EOFError, ValueError) as error:
        raise unreadable(f"`{path.name}` is not a trace of Kineto: {error}", path, KINETO) from None
    listed = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(listed, list):
        message = f"`{path.name}` is not a trace of Kineto: it has no `traceEvents`"
        raise unreadable(message, path, KINETO)
    events: list[Event] = [
        event for event in listed if isinstance(event, dict) and isinstance(event.get("args"), dict)
    ]
    operators = {
        number: event
        for event in events
        if event.get("cat") == "cpu_op" and type(number := event["args"].get("External id")) is int
    }
    busy: dict[int, float] = defaultdict(float)
    for event in events:
        us = event.get("dur")
        if event.get("cat") != "kernel":
            continue
        if not isinstance(us, int | float) or not 0 < us < MOST:
            yield "kernels without a time"
            continue
        arguments = event["args"]
        number = arguments.get("External id")
        if "Collective name" in arguments:
            yield collective(arguments, float(us), node)
        elif type(number) is int and number in operators:
            busy[number] += float(us)
        else:
            yield OF_NO_OPERATOR
    for number, duration in busy.items():
        event = operators[number]
        arguments = event["args"]
        dims, types = arguments.get("Input Dims", []), arguments.get("Input type", [])
        yield operator(str(event.get("name")), dims, types, duration)


def collective(arguments: Mapping[str, Any], us: float, node: int | None) -> Row | LeftOut:
    kind = NCCL.get(str(arguments["Collective name"]))
    sizes = [arguments.get(name, 0) for name in ("In msg nelems", "Out msg nelems", "Group size")]
    if kind is None:
        return OTHER_COLLECTIVE
    if not all(type(each) is int and 0 <= each < MOST for each in sizes):
        return "collectives without sizes"
    width = {"BFloat16": 2, "Half": 2, "Float": 4, "Byte": 1}.get(str(arguments.get("dtype")), 2)
    *given, ranks = sizes
    elements = max(given)
    listed = written_list(str(arguments.get("Process Group Ranks")))
    members = listed if len(listed) == ranks else range(ranks)
    if elements <= 0 or ranks < 2:
        return "collectives that move nothing"
    if not in_a_node(members, node):
        return "collectives that leave a node"
    return ("collective", kind), (float(ranks), float(elements * width)), us, "primary"


def operator(name: str, dims: object, types: object, us: float) -> Row | LeftOut:
    """What an operator of PyTorch measures, given the shapes and the dtypes of its inputs, `[]` and other names for what is no tensor."""
    if not isinstance(dims, list) or not isinstance(types, list):
        return "operators without shapes"
    tensors = [
        (shape, *DTYPES[of])
        for shape, of in zip(dims, types, strict=False)
        if isinstance(of, str) and of in DTYPES and isinstance(shape, list) and shape
        if all(type(size) is int and 0 < size < MOST for size in shape)
    ]
    matrices = [shape for shape, *_ in tensors if len(shape) >= 2]
    if name in PRODUCTS and len(matrices) >= 2:
        left, right = matrices[-2:]
        if len(left) != 2:
            return OTHER_OPERATOR
        wide = right[0] if name == "aten::linear" else right[-1]
        dtype = tensors[-1][1]
        return ("product", dtype), (float(left[0]), float(wide), float(left[1])), us, "primary"
    if any(each in name for each in ATTENTION) and BACKWARD not in name and tensors:
        return attention(name, matrices, tensors[0][1], us)
    if name.removesuffix("_") in ELEMENTWISE and tensors:
        moved = sum(math.prod(shape) * width for shape, _, width in tensors)
        if name != "aten::copy_":  # which has what it writes among its inputs
            moved += max(math.prod(shape) * width for shape, _, width in tensors)
        return ("memory",), (float(moved),), us, "primary"
    return OTHER_OPERATOR if tensors else "operators without shapes"


def attention(name: str, shapes: Sequence[Sequence[int]], dtype: str, us: float) -> Row | LeftOut:
    """[B, S, H, E], or [B, H, S, E] as scaled_dot_product_attention has it."""
    if len(shapes) < 2 or len(shapes[0]) != 4:
        return OTHER_OPERATOR
    batch, a, b, width = shapes[0]
    keys = shapes[1]
    heads_first = "scaled_dot_product" in name or "cudnn" in name
    heads, seq, kv_heads = (a, b, keys[1]) if heads_first else (b, a, keys[2])
    sizes = (batch, seq, heads, kv_heads, width, 0, element_bytes(dtype))
    return ("attention", dtype, str(width)), tuple(map(float, sizes)), us, "primary"


COLLECTIVES = {0: "all_reduce", 2: "all_gather", 7: "reduce_scatter", 6: "all_to_all"}
"""`CollectiveCommType` of Chakra's schema."""


def chakra_rows(path: Path, node_size: int | None) -> Iterator[Row | LeftOut]:
    nodes = {node.id: node for node in chakra_nodes(path)}
    groups = {
        name: len(ranks)
        for name, ranks in groups_beside(path).items()
        if in_a_node(ranks, node_size)
    }
    busy: dict[int, float] = defaultdict(float)
    for node in nodes.values():
        us = float(node.duration_micros)
        values = {attribute.name: attribute for attribute in node.attr}
        if number_of(values, "is_cpu_op"):
            continue
        if not us and node.type in (NodeType.COMM_COLL_NODE, NodeType.COMP_NODE):
            yield "nodes without a time"
            continue
        if node.type == NodeType.COMM_COLL_NODE and "comm_type" in values:
            kind = COLLECTIVES.get(number_of(values, "comm_type"))
            size = number_of(values, "comm_size")
            ranks = groups.get(values["pg_name"].string_val, 0) if "pg_name" in values else 0
            if kind is not None and size and ranks > 1:
                larger = size * ranks if kind == "all_gather" else size
                yield ("collective", kind), (float(ranks), float(larger)), us, "primary"
            elif kind is None:
                yield OTHER_COLLECTIVE
            else:
                yield "collectives that leave a node, or of which the trace does not say the ranks"
        elif node.type == NodeType.COMP_NODE:
            if node.inputs.shapes:
                parents = [each for each in node.ctrl_deps if each in nodes]
                busy.update({each: busy[each] + us for each in parents})
                if not parents:
                    yield OF_NO_OPERATOR
            elif number_of(values, "tensor_size") and number_of(values, "num_ops") <= 1:
                yield ("memory",), (float(number_of(values, "tensor_size")),), us, "primary"
            else:
                yield OTHER_OPERATOR
    for parent, duration in busy.items():
        inputs = nodes[parent].inputs
        types = written_list(inputs.types)
        of_tensors = [
            each.removeprefix("Tensor(").removesuffix(")") if isinstance(each, str) else each
            for each in types
        ]
        yield operator(nodes[parent].name, written_list(inputs.shapes), of_tensors, duration)


def number_of(values: Mapping[str, Any], name: str) -> int:
    """A number that a node has, of whatever type; 0 without it."""
    if name not in values:
        return 0
    field = values[name].WhichOneof("value")
    return int(getattr(values[name], field)) if field and field.rpartition("_")[0] in WHOLE else 0


def written_list(text: str) -> list[Any]:
    """A list as Python writes it; an empty one for anything else."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    return found if isinstance(found, list) else []


def in_a_node(ranks: Sequence[Any], node: int | None) -> bool:
    """Whether ranks are numbers, and all of one node, of which each has so many ranks in a row."""
    return all(type(rank) is int for rank in ranks) and (
        node is None or len({rank // node for rank in ranks}) == 1
    )


def groups_beside(path: Path) -> dict[str, list[Any]]:
    """The ranks of each group, by the file of groups beside a trace; none if there is no such file, or it says something else."""
    file = find_group_file(str(path.parent), path.name.split(".")[0])
    if file is None:
        return {}
    try:
        found = parse_json(read_file(file, MAX_GROUP_FILE_BYTES))
    except (OSError, ValueError):
        return {}
    groups = found if isinstance(found, dict) else {}
    return {name: ranks for name, ranks in groups.items() if isinstance(ranks, list)}


def unpacked(raw: bytes) -> bytes:
    """What is in gzip. `ValueError` if it has no end in sight."""
    with gzip.open(io.BytesIO(raw)) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
    return data


def chakra_nodes(path: Path) -> list[ChakraNode]:
    try:
        return list(TraceReader.of_bytes(read_file(path, MOST_BYTES), path.name))
    except OSError as error:
        message = f"`{path.name}` cannot be read: {error.strerror}"
        raise unreadable(message, path, "name a file that is there, and yours") from None
    except TraceError as error:
        message = f"{error.message}{f': {error.note}' if error.note else ''}"
        raise unreadable(message, path, error.help) from None
