"""A measured case: what was run, and what each rank did.

The form is that of `oracles/README.md`. Nothing here knows a case by its name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.fidelity.record import (
    ATTENTION,
    ATTENTION_GRAD,
    CONVOLUTION,
    MATMUL,
    Communication,
    Compute,
    Memory,
    RankRecord,
)

DTYPES = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "int64": "i64",
    "int32": "i32",
}
DTYPE_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "i64": 8, "i32": 4}


class NotInTheLanguage(Exception):
    """The case has something for which the language has no words."""


@dataclass(frozen=True)
class Case:
    """One file."""

    name: str
    model: Mapping[str, Any]
    parallel: Mapping[str, Any]
    opts: Mapping[str, Any]
    world_size: int
    coordinates: Mapping[int, Mapping[str, int]]
    stages: Mapping[int, tuple[int, ...]]
    """The stages of a rank's own, where the case has a pipeline."""
    ranks: Mapping[int, RankRecord]
    is_fake: bool = False
    """Whether it ran on tensors without data, which tell sizes and lifetimes of real ones."""

    @property
    def dtype(self) -> str:
        """Of the parameters as they are stored."""
        return DTYPES[self.model["dtype"]]

    @property
    def compute_dtype(self) -> str:
        """Of activations, and of the parameters as they are gathered."""
        return str(self.parallel.get("mp", self.dtype))

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def mesh(self) -> dict[str, int]:
        """Axes and their sizes, slowest first. Experts over part of `dp` make two axes of it, and so does what stays of units that are freed."""
        named = next(iter(self.coordinates.values()))
        sizes: dict[str, int] = {}
        for axis in named:
            if axis == "dp" and "ep" not in named and 1 < self.degree("ep") < self.degree("dp"):
                sizes |= {"edp": self.degree("dp") // self.degree("ep"), "ep": self.degree("ep")}
            elif self.kept_ways and axis == self.storage_axis:
                sizes |= {"outer": self.degree(axis) // self.kept_ways, "inner": self.kept_ways}
            else:
                sizes[axis] = self.degree(axis)
        return sizes

    @property
    def frozen(self) -> tuple[str, ...]:
        """What is not trained: modules and weights, as PyTorch's model names them."""
        if self.adapted:
            return ("embed", "norm", "head", "norm1", "norm2", "ffn", "wq", "wk", "wv", "wo")
        return tuple(filter(None, str(self.model.get("frozen", "")).split("+")))

    @property
    def adapted(self) -> tuple[str, ...]:
        """Weights beside which a product of two of low rank is trained, and nothing else: LoRA."""
        return tuple(self.model["lora_on"].split("+")) if self.model.get("lora") else ()

    @property
    def kept_ways(self) -> int:
        """Over how many ranks FSDP2 splits what it keeps of a unit that it frees, `reshard_after_forward` being a number; else 0."""
        reshard = self.parallel.get("reshard", True)
        return 0 if isinstance(reshard, bool) else int(reshard)

    @property
    def storage_axis(self) -> str:
        """What PyTorch calls the ranks over which FSDP splits parameters."""
        return "dp_shard" if self.parallel.get("dp_mode") == "hsdp" else "dp"

    @property
    def is_training(self) -> bool:
        return not self.opts.get("infer")

    @property
    def is_served(self) -> bool:
        """Whether it is an iteration of inference: a prefill, or one more token of each sequence."""
        return not self.is_training

    @property
    def has_rings(self) -> bool:
        """Whether sequences are split: `context_parallel` is entered around a step of training."""
        return self.degree("cp") > 1 and self.is_training

    @property
    def context(self) -> int:
        """Positions that a sequence has in its cache before."""
        return int(self.opts.get("context", 0)) if self.opts.get("infer") == "decode" else 0

    @property
    def new_positions(self) -> int:
        """Of a sequence, in a step."""
        return 1 if self.opts.get("infer") == "decode" else int(self.model["seq"])

    @property
    def has_unit_of_head(self) -> bool:
        """Whether the embedding is an FSDP unit, and the last norm and the head together are one (torchtitan)."""
        return self.parallel.get("fsdp_group") == "titan" and not self.is_tied

    @property
    def is_tied(self) -> bool:
        """Whether embedding and head are one weight. Not if each is on a stage of its own, nor if tensor parallelism gives one or both a parameter of their
        own (`distribute_module` makes a new one for each module)."""
        whole = "tp_embed" in self.parallel and "tp_head" in self.parallel
        is_one = self.degree("pp") == 1 and (self.degree("tp") == 1 or whole)
        return bool(self.model["tie"]) and is_one

    @property
    def accumulated(self) -> int:
        """Microbatches of a step without a pipeline."""
        return self.degree("grad_accum")

    @property
    def samples(self) -> int:
        """What a rank computes at once of its batch, without a pipeline."""
        return int(self.model["batch"]) // (self.accumulated if self.is_training else 1)

    def degree(self, axis: str) -> int:
        return int(self.parallel.get(axis, 1))


def read_case(path: Path) -> Case:
    return case_of(json.loads(path.read_text()), path.stem)


def case_of(data: Mapping[str, Any], name: str) -> Case:
    """A case as it was recorded."""
    ranks = {int(rank): entry for rank, entry in data["ranks"].items()}
    case = Case(
        name=data.get("name", name),
        model=data["model"],
        parallel=data["parallel"],
        opts=data["opts"],
        world_size=data["world_size"],
        coordinates={rank: entry["coord"] for rank, entry in ranks.items()},
        stages={rank: tuple(entry["stages"]) for rank, entry in ranks.items() if "stages" in entry},
        ranks={rank: read_rank(rank, entry) for rank, entry in ranks.items()},
        is_fake="FakeTensorMode" in data.get("backend", ""),
    )
    case = replace(case, ranks={r: on_mesh(record, case.mesh) for r, record in case.ranks.items()})
    product = 1
    for size in case.mesh.values():
        product *= size
    assert product == case.world_size, f"{case.name}: {case.mesh} is not {case.world_size} ranks"
    return case


def on_mesh(record: RankRecord, mesh: Mapping[str, int]) -> RankRecord:
    """Communications by the axes of the mesh, whatever PyTorch calls a group of ranks."""
    communications = []
    for each in record.communications:
        axis = axes_of(each.ranks, mesh)
        assert each.axis not in mesh or each.axis == axis, f"{each} is over {axis}"
        communications.append(replace(each, axis=axis))
    return replace(record, communications=tuple(communications))


def coordinates(rank: int, mesh: Mapping[str, int]) -> dict[str, int]:
    """A rank's place along each axis, the fastest-varying last."""
    found: dict[str, int] = {}
    for axis in reversed(list(mesh)):
        rank, found[axis] = divmod(rank, mesh[axis])
    return found


def axes_of(ranks: Sequence[int], mesh: Mapping[str, int]) -> str:
    """The axes along which ranks differ."""
    places = [coordinates(rank, mesh) for rank in ranks]
    return "+".join(axis for axis in mesh if len({place[axis] for place in places}) > 1)


def read_rank(rank: int, entry: Mapping[str, Any]) -> RankRecord:
    computes: list[Compute] = []
    for matmul in entry["matmuls"]:
        each, rest = divmod(matmul["flops"], matmul["count"])
        assert not rest, matmul
        shapes = matmul["shapes"]
        weight = tuple(shapes[-1]) if shapes else ()
        made = Compute(matmul["phase"], op_kind(matmul["op"]), each, weight)
        computes += [made] * matmul["count"]
    memory = entry["memory"]
    record = RankRecord(
        tuple(computes),
        tuple(read_communication(rank, row) for row in entry["collectives"]),
        Memory(
            memory["param_bytes"],
            memory["grad_bytes"],
            memory["optim_state_bytes_total"],
            memory.get("saved_activation_bytes", {}).get("total_unique_storage_bytes_over_step"),
            live_peak=memory.get("live", {}).get("peak"),
            attended=attended_elements(entry["matmuls"]),
        ),
    )
    check_totals(record, entry["flops"])
    computes = [c for c in computes if not (c.kind == CONVOLUTION and c.phase == "bwd")]
    return replace(record, computes=tuple(computes))


def attended_elements(matmuls: Sequence[Mapping[str, Any]]) -> int:
    """Elements of the keys and values that attention reads in a forward pass. Unfused, they are second operands of batched products."""
    found = 0
    for matmul in matmuls:
        if matmul["phase"] != "fwd":
            continue
        operands = {ATTENTION: (1, 2)}.get(op_kind(matmul["op"]), ())
        if matmul["op"] == "aten.bmm":
            operands = (1,)
        found += matmul["count"] * sum(math.prod(matmul["shapes"][i]) for i in operands)
    return found


def check_totals(record: RankRecord, flops: Mapping[str, Mapping[str, int]]) -> None:
    """The list of matmuls adds up to the totals that stand beside it."""
    totals: dict[tuple[str, str], int] = {}
    for phase, by_op in flops.items():
        for op, number in by_op.items():
            key = (phase, op_kind(op))
            totals[key] = totals.get(key, 0) + number
    assert dict(record.flops()) == totals, totals


def op_kind(op: str) -> str:
    """`aten.addmm` is a matmul; the fused attentions of all devices are one kind."""
    if "convolution" in op:
        return CONVOLUTION
    if "attention" in op:
        return ATTENTION_GRAD if op.endswith("backward") else ATTENTION
    assert op.endswith("mm"), op
    return MATMUL


def read_communication(rank: int, row: list[Any]) -> Communication:
    phase, kind, dtype, bytes_in, bytes_out, axis, group = row
    ranks = tuple(group) if isinstance(group, list) else tuple(sorted((rank, group)))
    return Communication(
        "bwd" if phase == "grad_reduce" else phase,
        kind,
        DTYPES[dtype],
        bytes_in,
        bytes_out,
        axis,
        ranks,
    )
