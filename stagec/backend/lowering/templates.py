"""Node templates: what each op of `sched` is in a trace, in numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from stagec.analysis.expert_loads import Loads
from stagec.analysis.kernels import Forms, known_form, read_before
from stagec.analysis.sequences import ITERATION, ModuleSequences
from stagec.backend.program import Dep, Node, TraceSegment
from stagec.diagnostics import CompileError, refused, span_of
from stagec.dialects import sched, stg
from stagec.dialects.dist.sequences import OF_ONE
from stagec.dialects.sched.actions import Collective, Kernel, NodeAction, Sum
from stagec.dialects.sched.node import NodeNumbers
from stagec.dialects.types import PIECE_AXIS
from stagec.symbolic import Size, symbol
from stagec.unrolling.rank import Owners, RankBody, StageRun

MOST_FLOPS = 2**63 - 1
"""What a trace has room for."""
MOST_BYTES = 2**60
"""An EiB: so much that sums of many are counted in 64 bits all the same."""
MAX_CROSSING = 64
"""Values that may cross one stage boundary in one direction; a channel numbers boundary, direction and value."""


Neighbour = tuple[tuple[str, ...], int, int]
"""The axis of the stages, how far along it a peer is, and a channel."""


class TooLargeError(Exception):
    """A number that a trace has no room for."""


@dataclass
class StageTemplates:
    """Makes the segments of one stage."""

    stage: StageRun
    axis: str
    sequences: ModuleSequences | None = None
    """The sequences of its devices and iterations, where these differ."""
    forms: Forms = field(default_factory=dict)
    _of_layers: dict[tuple[int | None, int], Templates] = field(default_factory=dict)

    def segment(self, rank_body: RankBody) -> TraceSegment:
        body, templates = rank_body.body, self.templates(rank_body)
        actions = self.actions(rank_body)
        sizes = self.sizes(rank_body)
        nodes = [
            replace(
                templates.node(op, body.scope(at), action, tuple(Dep(*dep) for dep in deps)),
                sizes=own,
            )
            for at, (op, action, deps, own) in enumerate(
                zip(body.nodes, actions, body.deps, sizes, strict=True)
            )
        ]
        return TraceSegment(body.name, tuple(nodes), body.num_slots, body.task)

    def actions(self, rank_body: RankBody) -> list[NodeAction]:
        """The numbers of each node."""
        body, templates = rank_body.body, self.templates(rank_body)
        if body.is_bucket:
            return [templates.bucket(body.ops)]
        if any(op.CROSSES for op in body.ops):
            templates = replace(templates, neighbours=partial(self.neighbour, rank_body))
        return [templates.action(op) for op in body.ops]

    def sizes(self, rank_body: RankBody) -> list[tuple[Sum, ...]]:
        """What the numbers of each node are in a series; nothing where all iterations have the same."""
        body = rank_body.body
        is_one = ITERATION in self.stage.values
        if self.sequences is None or not self.sequences.is_series or is_one:
            return [() for _ in body.nodes]
        if body.is_bucket:
            joined = zip(*(op.sums for op in body.ops), strict=True)
            return [self.varying([tuple(s for own in each for s in own) for each in joined])]
        return [self.varying(op.sums, rank_body.microbatch) for op in body.ops]

    def varying(self, sums: Sequence[Sum], microbatch: int = -1) -> tuple[Sum, ...]:
        """The sums of a node in names that iterations differ in, if there are any."""
        series = self.sequences
        assert series is not None
        if not any(series.concern(size) for own in sums for size in own):
            return ()
        values = self.stage.values
        return tuple(
            tuple(series.in_numbers(series.size_in(microbatch, size), values) for size in own)
            for own in sums
        )

    def templates(self, rank_body: RankBody) -> Templates:
        """With the numbers that sizes have in a layer and a microbatch."""
        layer = rank_body.body.layer
        key = layer, rank_body.microbatch
        if key not in self._of_layers:
            stage = self.stage.at(rank_body.microbatch)
            values: Mapping[str, int | Fraction] = stage.values
            if layer is not None:
                loads = Loads.around(stage.program)
                values = {**values, **loads.sizes(layer, stage.values)}
            self._of_layers[key] = Templates(
                values, stage.owners, self.sequences, layer, self.forms
            )
        return self._of_layers[key]

    def neighbour(self, rank_body: RankBody, op: sched.NodeOp) -> Neighbour:
        """The peer to which an op sends across a boundary of stages, or from which it receives, and the channel, which both ends know."""
        assert isinstance(op, sched.StageSendOp | sched.StageRecvOp)
        stage = self.stage.stage
        boundary = stage if rank_body.body.task in ("SEND_F", "RECV_B") else stage - 1
        direction, number = op.crossing
        channel = (2 * boundary + (direction == "backward")) * MAX_CROSSING + number
        return (self.axis,), rank_body.shift, channel


@dataclass
class Templates(NodeNumbers):
    """Makes nodes, with the numbers that sizes have."""

    values: Mapping[str, int | Fraction]
    owners: Owners = field(default_factory=dict)
    sequences: ModuleSequences | None = None
    layer: int | None = None
    """The layer of the nodes, where layers have other numbers or peers."""
    forms: Forms = field(default_factory=dict)
    neighbours: Callable[[sched.NodeOp], Neighbour] | None = None
    _numbers: dict[Size, int] = field(default_factory=dict)

    def node(self, op: sched.NodeOp, scope: str, action: NodeAction, deps: tuple[Dep, ...]) -> Node:
        place = span_of(op.location)
        return Node(
            op=op.node_name,
            phase="p2p" if op.CROSSES else stg.phase_of(op),
            scope=scope,
            action=action,
            stream=op.stream.data,
            data_deps=deps,
            location=f"{place.file}:{place.line}:{place.column}" if place is not None else "",
            made_by=stg.made_by(op),
            serial="serial" in op.properties,
            told="told" in op.properties,
            checked="checked" in op.properties,
            leaves_units="leaves_units" in op.properties,
            pieces=self.pieces(op),
        )

    def pieces(self, op: Operation) -> int:
        """The number of pieces into which the op was cut, of which this is one."""
        loop = op.parent_op()
        is_one = isinstance(loop, stg.RepeatOp) and loop.count.data == symbol(PIECE_AXIS)
        return int(self.values[PIECE_AXIS]) if is_one else 1

    def bucket(self, ops: tuple[Operation, ...]) -> Collective:
        """One collective of all that a bucket joins."""
        first, bytes_in, bytes_out = ops[0], 0, 0
        assert isinstance(first, sched.CollectiveOp)
        for op in ops:
            assert isinstance(op, sched.CollectiveOp)
            bytes_in += self.number(op.bytes_in.data)
            bytes_out += self.number(op.bytes_out.data)
        return Collective(first.kind.data, first.axes.data, bytes_in, bytes_out, first.dtype.data)

    def action(self, op: sched.NodeOp) -> NodeAction:
        """What an op is in a trace. Numbers that this has no room for are E0216."""
        try:
            return op.action(self)
        except TooLargeError as error:
            raise too_large(op, error) from None

    def flops(self, size: Size) -> int:
        found = self.number(size)
        if found > MOST_FLOPS:
            raise TooLargeError(f"takes {found:.3g} FLOPs")
        return found

    def neighbour(self, op: sched.NodeOp) -> Neighbour:
        assert self.neighbours is not None
        return self.neighbours(op)

    @property
    def layer_of_node(self) -> int:
        return -1 if self.layer is None else self.layer

    def kernel(self, op: sched.NodeOp) -> Kernel | None:
        assert isinstance(op, sched.ComputeOp)
        form = known_form(op, self.forms)
        if form is None:
            return None
        sizes = tuple((name, self.number(size)) for name, size in form.sizes)
        requests = tuple(
            (self.number(count), self.number(new), self.number(keys))
            for count, new, keys in self.requests(op, form.requests)
        )
        return Kernel(form.kind, form.dtype, sizes, requests, form.stored, form.agreed, form.behind)

    def read_before(self, op: sched.NodeOp) -> float:
        assert isinstance(op, sched.ComputeOp)
        return read_before(op)

    def requests(
        self, op: sched.ComputeOp, kinds: tuple[tuple[Size, Size, Size], ...]
    ) -> Iterator[tuple[Size, Size, Size]]:
        """The sequences that attention is about. Where ranks or iterations differ it says one, for all that there are."""
        if not any(size.names & set(OF_ONE) for kind in kinds for size in kind):
            yield from kinds
            return
        sequences = self.sequences
        if sequences is None:
            module = op.get_toplevel_object()
            assert isinstance(module, ModuleOp)
            sequences = ModuleSequences.of(module)
        assert sequences is not None
        for numbers in sequences.kinds(self.values):
            known: dict[str, Size | int] = dict(zip(OF_ONE, numbers, strict=True))
            for count, new, keys in kinds:
                yield count.substitute(known), new.substitute(known), keys.substitute(known)

    def among(self, weight: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return self.owners.get(weight, ()) if weight else ()

    def num_bytes(self, size: Size) -> int:
        found = self.number(size)
        if found > MOST_BYTES:
            raise TooLargeError(f"moves {found:.3g} bytes")
        return found

    def number(self, size: Size) -> int:
        if size not in self._numbers:
            exact = size.evaluate(self.values)
            self._numbers[size] = -(-exact.numerator // exact.denominator)
        return self._numbers[size]


def too_large(op: Operation, error: TooLargeError) -> CompileError:
    message = f"an op {error} on one device, more than can be counted"
    help_ = "look for a size of one digit too many"
    return refused("E0216", message, span_of(op.location), help=help_)
