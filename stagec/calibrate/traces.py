"""Durations of operators in a trace of a real run: Kineto's JSON, as `torch.profiler` exports it, or Chakra's `.et`.

Of Kineto, kernels are joined to the operator that launched them by `External id` (or by the correlation of the launch), which has its shapes
in `Input Dims` if the profiler recorded them (`record_shapes=True`). Products and attention are taken by shape, collectives by bytes and
group (PyTorch 2.3 and later write both beside the kernel), other kernels by the bytes of their operator's inputs. Of Chakra, collectives
and what has `duration_micros` and tensor sizes.
"""

from __future__ import annotations

import gzip
import io
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from stagec.backend.et_def_pb2 import Node as ChakraNode, NodeType
from stagec.calibrate.folder import unreadable
from stagec.calibrate.measured import Measured, Row, gathered
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
ATTENTION = ("flash_attention_forward", "efficient_attention_forward", "cudnn_attention_forward")
BACKWARD = "backward"
MOST_BYTES = 2 << 30
"""The most bytes of a trace, unpacked."""


def read_trace(path: Path) -> dict[Key, Measured]:
    """What a trace measured. E0418 if it is none."""
    rows = chakra_rows(path) if path.suffix == ".et" else kineto_rows(path)
    found = gathered(rows)
    if not found:
        raise unreadable(f"`{path.name}` has no kernel whose operator says its shapes")
    return found


def kineto_rows(path: Path) -> Iterator[Row]:
    try:
        raw = read_file(path, MOST_BYTES)
        data: Any = parse_json(unpacked(raw) if path.suffix == ".gz" else raw)
        events: Sequence[Event] = data["traceEvents"] if isinstance(data, dict) else data
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise unreadable(f"`{path.name}` is not a trace of Kineto: {error}") from None
    operators = {
        event["args"]["External id"]: event
        for event in events
        if event.get("cat") == "cpu_op" and "External id" in event.get("args", {})
    }
    busy: dict[int, float] = defaultdict(float)
    for event in events:
        if event.get("cat") != "kernel":
            continue
        arguments = event.get("args", {})
        if "Collective name" in arguments:
            row = collective(arguments, float(event["dur"]))
            if row is not None:
                yield row
        elif arguments.get("External id") in operators:
            busy[arguments["External id"]] += float(event["dur"])
    for number, duration in busy.items():
        row = operator(operators[number], duration)
        if row is not None:
            yield row


def collective(arguments: Mapping[str, Any], us: float) -> Row | None:
    kind = NCCL.get(arguments["Collective name"])
    if kind is None:
        return None
    width = {"BFloat16": 2, "Half": 2, "Float": 4, "Byte": 1}.get(str(arguments.get("dtype")), 2)
    elements = max(int(arguments.get("In msg nelems", 0)), int(arguments.get("Out msg nelems", 0)))
    ranks = float(arguments.get("Group size", 0))
    if elements <= 0 or ranks < 2:
        return None
    return ("collective", kind), (ranks, float(elements * width)), us, "primary"


def operator(event: Event, us: float) -> Row | None:
    name = str(event["name"])
    arguments = event["args"]
    shapes = [shape for shape in arguments.get("Input Dims", []) if isinstance(shape, list)]
    types = [DTYPES[t] for t in arguments.get("Input type", []) if t in DTYPES]
    if not types:
        return None
    dtype, width = types[0]
    matrices = [
        shape for shape in shapes if len(shape) >= 2 and all(isinstance(d, int) for d in shape)
    ]
    if name in PRODUCTS and len(matrices) >= 2:
        left, right = matrices[-2], matrices[-1]
        if len(left) != 2:
            return None
        return ("product", dtype), (float(left[0]), float(right[-1]), float(left[1])), us, "primary"
    if any(each in name for each in ATTENTION) and BACKWARD not in name:
        return attention(name, matrices, dtype, us)
    elements = sum(
        math.prod(shape) for shape in shapes if shape and all(isinstance(d, int) for d in shape)
    )
    if elements and BACKWARD not in name and name not in PRODUCTS:
        largest = max(math.prod(s) for s in shapes if s and all(isinstance(d, int) for d in s))
        return ("memory",), (float(width * (elements + largest)),), us, "primary"
    return None


def attention(name: str, shapes: Sequence[Sequence[int]], dtype: str, us: float) -> Row | None:
    """[B, S, H, E], or [B, H, S, E] as scaled_dot_product_attention has it."""
    if len(shapes) < 2 or len(shapes[0]) != 4:
        return None
    batch, a, b, width = shapes[0]
    keys = shapes[1]
    heads_first = "scaled_dot_product" in name or "cudnn" in name
    heads, seq, kv_heads = (a, b, keys[1]) if heads_first else (b, a, keys[2])
    sizes = (batch, seq, heads, kv_heads, width, 0, element_bytes(dtype))
    return ("attention", dtype, str(width)), tuple(map(float, sizes)), us, "primary"


COLLECTIVES = {0: "all_reduce", 2: "all_gather", 7: "reduce_scatter", 6: "all_to_all"}
"""`CollectiveCommType` of Chakra's schema."""


def chakra_rows(path: Path) -> Iterator[Row]:
    """Nodes that have a duration. A group's size is only in names of groups: two ranks are the least."""
    for node in chakra_nodes(path):
        us = float(node.duration_micros)
        values = {attribute.name: attribute for attribute in node.attr}
        if not us:
            continue
        if node.type == NodeType.COMM_COLL_NODE and "comm_type" in values:
            kind = COLLECTIVES.get(int(values["comm_type"].int64_val))
            size = float(values["comm_size"].int64_val) if "comm_size" in values else 0.0
            ranks = float(values["group_size"].int64_val) if "group_size" in values else 0.0
            if kind is not None and size and ranks > 1:
                yield ("collective", kind), (ranks, size), us, "primary"
        elif node.type == NodeType.COMP_NODE and "tensor_size" in values:
            size = float(values["tensor_size"].uint64_val or values["tensor_size"].int64_val)
            if size and not int(values["num_ops"].int64_val if "num_ops" in values else 0):
                yield ("memory",), (size,), us, "primary"


def unpacked(raw: bytes) -> bytes:
    """What is in gzip. `ValueError` if it has no end in sight."""
    with gzip.open(io.BytesIO(raw)) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
    return data


def chakra_nodes(path: Path) -> Iterator[Any]:
    """Length-delimited messages: the metadata, then nodes."""
    try:
        data = read_file(path, MOST_BYTES)
    except OSError as error:
        raise unreadable(f"`{path.name}` cannot be read: {error.strerror}") from None
    at, first = 0, True
    while at < len(data):
        length = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise unreadable(
                    f"`{path.name}` is not a trace of Chakra: it ends inside a message"
                )
            byte = data[at]
            at += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if not first:
            try:
                yield ChakraNode.FromString(data[at : at + length])
            except DecodeError as error:
                raise unreadable(f"`{path.name}` is not a trace of Chakra: {error}") from None
        first, at = False, at + length
