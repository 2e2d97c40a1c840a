"""The tensors of a rank class as a simulator is told of them: each is written by one node and read by others.

They are the buffers of the plan (`lifetimes`), so that their live bytes add up to its timeline, and what stays from step
to step. A tensor lives from its writer to its last reader, both included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from stagec.analysis.dataflow import Dataflow
from stagec.arrays import Bools, Ints
from stagec.dialects import stg
from stagec.dialects.memory import Kind
from stagec.dialects.types import StackType, ValueType
from stagec.memory.lifetimes import Places
from stagec.memory.plan import ClassPlan
from stagec.unrolling.rank import StageRun

ON_ENTRY = -1
"""The writer of what stays: it is there when the step begins."""

PREFIX = {
    Kind.PARAMETERS: "parameter",
    Kind.TRANSPOSED: "transposed",
    Kind.MASTER: "master",
    Kind.OPTIMIZER: "optimizer",
    Kind.GRADIENTS: "gradient",
    Kind.CACHE: "cache",
    Kind.PROCESS: "process",
}


@dataclass(frozen=True)
class TensorTable:
    """One row per tensor, and one row per tensor and reader. Writers and readers are nodes of the program."""

    label: list[str]
    layer: list[int]
    """The layer of what stays; -1 for none."""
    writer: Ints
    num_bytes: Ints
    read_tensor: Ints
    read_node: Ints

    def released(self, is_early: Bools, position: Ints) -> TensorTable:
        """The same for a program whose nodes are at other positions. The node behind reads what nobody else does, and what a node would read that
        may run before its writer."""
        behind = position[self.read_node] + is_early
        unread = self.unread
        writer = np.where(self.writer == ON_ENTRY, ON_ENTRY, position[self.writer])
        tensor = np.concatenate([self.read_tensor, unread])
        node = np.concatenate([behind, writer[unread] + 1])
        return replace(self, writer=writer, read_tensor=tensor, read_node=node)

    @property
    def unread(self) -> Ints:
        """The tensors that nobody reads."""
        return np.setdiff1d(np.arange(len(self.writer)), self.read_tensor)


def tensor_table(plan: ClassPlan) -> TensorTable:
    """The tensors of one rank class. Some are read by nobody: the plan frees them with their writer."""
    return TensorMaker(plan).table()


class TensorMaker:
    def __init__(self, plan: ClassPlan) -> None:
        self.plan = plan
        self.places = Places(plan.arrangement)
        self.last = plan.lives.num_nodes - 1
        self.label: list[str] = []
        self.layer: list[int] = []
        self.writer: list[Ints] = []
        self.num_bytes: list[Ints] = []
        self.reads: list[tuple[Ints, Ints]] = []
        """Tensors, and the nodes that read them."""

    def table(self) -> TensorTable:
        self.add_buffers()
        self.add_parameters()
        self.add_states()
        tensor = np.concatenate([tensors for tensors, _ in self.reads])
        node = np.concatenate([nodes for _, nodes in self.reads])
        writer, num_bytes = np.concatenate(self.writer), np.concatenate(self.num_bytes)
        # To the end of the step there is what stays.
        stays = np.flatnonzero(writer == ON_ENTRY)
        tensor = np.concatenate([tensor, stays])
        node = np.concatenate([node, np.full(len(stays), self.last)])
        tensor, node = np.unique(np.stack([tensor, node]), axis=1)
        return TensorTable(self.label, self.layer, writer, num_bytes, tensor, node)

    def add(self, writer: Ints, num_bytes: Ints) -> None:
        self.writer.append(writer)
        self.num_bytes.append(num_bytes)

    # The buffers of the plan

    def add_buffers(self) -> None:
        lives = self.plan.lives
        key = np.stack([lives.stage, lives.value, lives.microbatch], dtype=np.int64)
        # What waits after its arrival and what is read then is one buffer.
        (stage, value, microbatch), tensor = np.unique(key, axis=1, return_inverse=True)
        tensor = tensor.reshape(-1)
        birth = np.full(len(stage), self.last, np.int64)
        death, num_bytes = np.zeros((2, len(stage)), np.int64)
        np.minimum.at(birth, tensor, lives.birth)
        np.maximum.at(death, tensor, lives.death)
        np.maximum.at(num_bytes, tensor, lives.num_bytes)
        stays = (birth == 0) & (death == self.last) & (microbatch < 0)
        self.name_buffers(stage, value, stays)
        self.add(np.where(stays, ON_ENTRY, birth), num_bytes)
        tensors, nodes = self.buffer_reads(stage, value, microbatch)
        within = (nodes > birth[tensors]) & (nodes <= death[tensors])
        within |= stays[tensors] & (nodes >= 0)
        tensors, nodes = tensors[within], nodes[within]
        later = np.flatnonzero(death > birth)
        tensors, nodes = np.concatenate([tensors, later]), np.concatenate([nodes, death[later]])
        self.reads.append((tensors, nodes))

    def name_buffers(self, stage: Ints, value: Ints, stays: Ints) -> None:
        tables, numbers = self.plan.tables, dict[tuple[int, object], int]()
        for c, v, is_static in zip(stage.tolist(), value.tolist(), stays.tolist(), strict=True):
            about = tables[c].abouts[int(tables[c].about[v])]
            layer = -1
            if is_static:
                number = numbers.setdefault((c, tables[c].results[v]), len(numbers))
                parts = (PREFIX[Kind.GRADIENTS], about.scope, str(number))
                layer = self.layer_of(c, v)
            else:
                parts = (about.phase, about.scope, about.op)
            self.label.append("/".join(part for part in parts if part))
            self.layer.append(layer)

    def layer_of(self, stage: int, value: int) -> int:
        table = self.plan.tables[stage]
        run = self.plan.stages[stage]
        layers = run.layout.layers(run.values)[table.tasks[int(table.task[value])]]
        return layers[int(table.row[value])]

    def buffer_reads(self, stage: Ints, value: Ints, microbatch: Ints) -> tuple[Ints, Ints]:
        """Tensors and nodes: who reads a value, who reads or adds to a sum over microbatches."""
        index = {
            key: i
            for i, key in enumerate(
                zip(stage.tolist(), value.tolist(), microbatch.tolist(), strict=True)
            )
        }
        tensors: list[int] = []
        found: list[int] = []
        for c, table in enumerate(self.plan.tables):
            microbatches = self.places.microbatches(c)
            reads = self.places.nodes(
                c, table.tasks, microbatches, table.read_task, table.read_row, table.read_node
            ).tolist()
            made = self.places.nodes(
                c, table.tasks, microbatches, table.task, table.row, table.node
            ).tolist()
            summed = np.flatnonzero(table.accumulated).tolist()
            wanted = list(zip(table.read_value.tolist(), table.of_sum.tolist(), strict=True))
            for m, nodes, terms in zip(microbatches.tolist(), reads, made, strict=True):
                pairs = [(v, of_sum, n) for (v, of_sum), n in zip(wanted, nodes, strict=True)]
                pairs += [(v, True, terms[v]) for v in summed]
                for v, of_sum, node in pairs:
                    # What runs once per step has no microbatch, and a sum has none.
                    tensor = index.get((c, v, -1 if of_sum else m))
                    if tensor is None:
                        tensor = index.get((c, v, m if of_sum else -1))
                    if tensor is not None:
                        tensors.append(tensor)
                        found.append(node)
        return np.array(tensors, np.int64), np.array(found, np.int64)

    # What stays from step to step

    def add_parameters(self) -> None:
        index: dict[tuple[str, int], int] = {}
        start, sizes = len(self.label), list[int]()
        there = {each.path for each in self.plan.always if each.kind == Kind.PARAMETERS}
        for stage in self.plan.stages:
            flow = Dataflow(stage.values)
            for op in stage.program.body.block.ops:
                if isinstance(op, stg.WeightOp) and op.path.data in there:
                    size = leaf_bytes(op, stage.values)
                    for layer in flow.weight_layers(op):
                        key = (op.path.data, layer)
                        if key not in index:
                            index[key] = start + len(sizes)
                            sizes.append(size)
        for path, layer in index:
            self.label.append(f"{PREFIX[Kind.PARAMETERS]}/{path}")
            self.layer.append(layer)
        self.add(np.full(len(sizes), ON_ENTRY), np.array(sizes, np.int64))
        for c, stage in enumerate(self.plan.stages):
            self.reads.append(self.parameter_reads(c, stage, index))

    def parameter_reads(
        self, stage: int, run: StageRun, index: dict[tuple[str, int], int]
    ) -> tuple[Ints, Ints]:
        layout, flow = run.layout, Dataflow(run.values)
        tasks = tuple(layout.tasks)
        columns: list[tuple[int, int, int, int]] = []
        for source, place in layout.places.items():
            for operand in source.op.operands:
                for weight, layer in flow.weights(operand, source.path):
                    tensor = index.get((weight.path.data, layer))
                    if tensor is not None:
                        columns.append((tensor, tasks.index(place.task), place.row, place.node))
        tensor, task, row, node = np.array(columns, np.int64).reshape(-1, 4).T
        nodes = self.places.nodes(stage, tasks, self.places.microbatches(stage), task, row, node)
        tensors = np.broadcast_to(tensor, nodes.shape)
        return tensors[nodes >= 0], nodes[nodes >= 0]

    def add_states(self) -> None:
        """Master weights and optimizer state, of each weight one tensor; and what is of no weight, such as the padding of buffers."""
        sizes: dict[tuple[Kind, str], int] = defaultdict(int)
        weights = {
            op.path.data
            for stage in self.plan.stages
            for op in stage.program.body.block.ops
            if isinstance(op, stg.WeightOp)
        }
        for each in self.plan.always:
            if each.kind != Kind.PARAMETERS or each.path not in weights:
                sizes[each.kind, each.path] += each.num_bytes
        for kind, path in sizes:
            self.label.append(f"{PREFIX[kind]}/{path}")
            self.layer.append(-1)
        self.add(np.full(len(sizes), ON_ENTRY), np.array(list(sizes.values()), np.int64))


def leaf_bytes(weight: stg.WeightOp, values: Mapping[str, int]) -> int:
    """The bytes of one layer's part of a weight."""
    kept = weight.weight.type
    assert isinstance(kept, ValueType)
    leaf = kept.leaf if isinstance(kept, StackType) else kept
    return leaf.num_bytes.integer(values)
