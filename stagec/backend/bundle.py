"""A bundle: a whole job in one small file, from which any rank's trace can be made.

    magic, length of the head (8 bytes, little-endian), SHA-256 of the head (32 bytes),
    head (JSON), payloads of the classes

The head describes the job and gives each payload's length and SHA-256. Nothing in it grows with the
number of ranks.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stagec import symbolic
from stagec.backend.encoded import (
    Encoded,
    EncodedClass,
    EncodedPools,
    EncodedTraces,
    GroupOf,
    RankAt,
    RankFormulas,
    RankOf,
    TraceOptions,
    Variable,
)
from stagec.backend.errors import TraceError
from stagec.backend.files import read_whole, write_whole
from stagec.backend.groups import GroupIds, GroupKind
from stagec.backend.program import Mesh

MAGIC = b"stagec bundle 1\n"


@dataclass(frozen=True)
class Bundle:
    """`about` is what the manifest says besides (inputs, versions)."""

    traces: Encoded
    about: Mapping[str, Any] = field(default_factory=dict)


def describe(traces: Encoded) -> dict[str, Any]:
    """Everything that decides the traces' bytes, as JSON; payloads by their SHA-256."""
    if isinstance(traces, EncodedPools):
        pairs = zip(traces.names, traces.pools, strict=True)
        return {"pools": [{"name": name, **describe_one(pool)} for name, pool in pairs]}
    return describe_one(traces)


def describe_one(traces: EncodedTraces) -> dict[str, Any]:
    """The same of one mesh."""
    formulas = traces.formulas
    groups = formulas.groups
    return {
        "model": traces.model,
        "options": asdict(traces.options),
        "header": traces.header.hex(),
        "tag_span": traces.tag_span,
        "mesh": dict(zip(formulas.mesh.axes, formulas.mesh.sizes, strict=True)),
        "groups": {
            "kinds": [{"axes": k.axes, "among": dict(k.among)} for k in groups.kinds],
            "first": groups.first,
            "stride": groups.stride,
            "width": groups.width,
            "of_job": groups.of_job,
        },
        "variables": [described(v) for v in formulas.variables],
        **({"first_rank": formulas.first} if formulas.first else {}),
        "classes": [
            {
                "name": c.name,
                "where": dict(c.where),
                "num_nodes": c.num_nodes,
                "num_bytes": c.num_bytes,
                "variables": c.variables,
                "payload_bytes": len(c.payload),
                "sha256": hashlib.sha256(c.payload).hexdigest(),
            }
            for c in traces.classes
        ],
    }


def described(variable: Variable) -> dict[str, Any]:
    if isinstance(variable, GroupOf):
        return {"group": variable.kind}
    if isinstance(variable, RankOf):
        return {"rank": str(variable.formula)}
    return {"axes": variable.axes, "shift": variable.shift}


def variable_of(said: Mapping[str, Any]) -> Variable:
    if "group" in said:
        return GroupOf(said["group"])
    if "rank" in said:
        return RankOf(symbolic.parse(said["rank"]))
    return RankAt(tuple(said["axes"]), said["shift"])


def digest_of(traces: Encoded, chosen: Mapping[str, Any]) -> str:
    """SHA-256 of what decides the files of a set: equal digests, equal files."""
    return hashlib.sha256(_json([describe(traces), dict(chosen)])).hexdigest()


def to_bytes(bundle: Bundle) -> bytes:
    head = _json({"about": bundle.about} | describe(bundle.traces))
    payloads = b"".join(c.payload for c in bundle.traces.classes)
    return b"".join(
        [MAGIC, len(head).to_bytes(8, "little"), hashlib.sha256(head).digest(), head, payloads]
    )


MAKE_ANEW = "copy it again, or make it anew with `stagec MODEL --bundle FILE`"


def from_bytes(data: bytes, name: str = "bundle") -> Bundle:
    """E0606 where the bytes are no bundle, or a damaged one."""
    if not data.startswith(MAGIC):
        raise TraceError(
            "E0606", f"`{name}` is not a bundle", help="make one with `stagec MODEL --bundle FILE`"
        )
    try:
        return _parse(data)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        message = f"the bundle `{name}` is damaged"
        raise TraceError("E0606", message, help=MAKE_ANEW, note=str(error)) from None


def write_bundle(path: str | Path, bundle: Bundle) -> int:
    """Write a bundle, whole or not at all; its size in bytes."""
    data = to_bytes(bundle)
    write_whole(str(path), data)
    return len(data)


def read_bundle(path: str | Path) -> Bundle:
    return from_bytes(read_whole(str(path)), str(path))


def _parse(data: bytes) -> Bundle:
    length, check = data[len(MAGIC) :][:8], data[len(MAGIC) + 8 :][:32]
    at = len(MAGIC) + 40
    end = at + int.from_bytes(length, "little")
    if hashlib.sha256(data[at:end]).digest() != check:
        raise ValueError("its head is not what it was")
    head = json.loads(data[at:end])
    if "pools" in head:
        names: list[str] = []
        pools: list[EncodedTraces] = []
        for each in head["pools"]:
            traces, end = parse_one(each, data, end)
            names.append(each["name"])
            pools.append(traces)
        traces = EncodedPools(tuple(names), tuple(pools))
    else:
        traces, end = parse_one(head, data, end)
    if end != len(data):
        raise ValueError("there is more in it than its head says")
    return Bundle(traces, head["about"])


def parse_one(head: Mapping[str, Any], data: bytes, end: int) -> tuple[EncodedTraces, int]:
    """The traces of one mesh, whose payloads begin at `end`; and where they end."""
    mesh = Mesh(tuple(head["mesh"]), tuple(map(int, head["mesh"].values())))
    if not all(size >= 1 for size in mesh.sizes):
        raise ValueError("an axis has no ranks")
    kinds = tuple(
        GroupKind(
            tuple(k["axes"]), tuple((axis, tuple(chosen)) for axis, chosen in k["among"].items())
        )
        for k in head["groups"]["kinds"]
    )
    variables = tuple(variable_of(v) for v in head["variables"])
    classes: list[EncodedClass] = []
    for c in head["classes"]:
        payload = data[end : end + c["payload_bytes"]]
        if hashlib.sha256(payload).hexdigest() != c["sha256"]:
            raise ValueError(f"the class `{c['name']}` is not what it was")
        end += len(payload)
        classes.append(
            EncodedClass(
                c["name"],
                tuple((axis, tuple(chosen)) for axis, chosen in c["where"].items()),
                c["num_nodes"],
                c["num_bytes"],
                tuple(c["variables"]),
                payload,
            )
        )
    groups = head["groups"]
    return (
        EncodedTraces(
            head["model"],
            TraceOptions(**head["options"]),
            bytes.fromhex(head["header"]),
            head["tag_span"],
            RankFormulas(
                mesh,
                GroupIds(
                    kinds, groups["first"], groups["stride"], groups["width"], groups["of_job"]
                ),
                variables,
                head.get("first_rank", 0),
            ),
            tuple(classes),
        ),
        end,
    )


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
