"""The readable form of a trace: the same nodes as JSON, one line each."""

import json
from typing import Any

from stagec.backend.et_def_pb2 import AttributeProto, CollectiveCommType, Node, NodeType
from stagec.backend.et_file import TraceReader


def readable_trace(data: bytes, name: str) -> bytes:
    """A trace file's bytes, as JSON text."""
    trace = TraceReader.of_bytes(data, name)
    nodes = ",\n".join(f"  {json.dumps(readable_node(node), ensure_ascii=False)}" for node in trace)
    version = json.dumps(trace.metadata.version)
    return f'{{"version": {version}, "nodes": [\n{nodes}\n]}}\n'.encode()


def readable_node(node: Node) -> dict[str, Any]:
    """One node. Attributes by name; the kind of a collective by its name too."""
    found: dict[str, Any] = {"id": node.id}
    if node.name:
        found["name"] = node.name
    found["type"] = NodeType.Name(node.type)
    if node.ctrl_deps:
        found["ctrl_deps"] = list(node.ctrl_deps)
    if node.data_deps:
        found["data_deps"] = list(node.data_deps)
    if node.duration_micros:
        found["duration_micros"] = node.duration_micros
    for attribute in node.attr:
        value = _value(attribute)
        if attribute.name == "comm_type":
            value = CollectiveCommType.Name(value)
        found[attribute.name] = value
    return found


def _value(attribute: AttributeProto) -> Any:
    field = attribute.WhichOneof("value")
    if field is None:
        return None
    value = getattr(attribute, field)
    return list(value.values) if field.endswith("_list") else value
