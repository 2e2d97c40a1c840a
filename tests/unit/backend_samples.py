"""Small jobs for the backend's tests, and a slow encoder that says what their traces must be.

The slow encoder shares nothing with the backend: it makes one protobuf message after another, with
plain Python arithmetic on coordinates.
"""

import itertools
from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from stagec.backend import et_def_pb2 as et
from stagec.backend.program import Dep, Mesh, Node, RankClass, TraceProgram, TraceSegment, TraceSet
from stagec.dialects.sched.actions import Collective, Compute, HostCopy, NodeAction, Transfer


def own(node: int) -> Dep:
    return Dep(-1, node)


def slot(number: int) -> Dep:
    return Dep(number, 0)


class ProgramBuilder:
    """Instances one after another; `run` returns the position of the instance's last node."""

    def __init__(self, *segments: TraceSegment) -> None:
        self.segments = segments
        self.rows: list[tuple[int, tuple[int, ...], int, int, int, int]] = []
        self.total = 0

    def run(
        self,
        segment: int,
        slots: tuple[int, ...] = (),
        layer: int = -1,
        microbatch: int = -1,
        stage: int = -1,
        tag: int = -1,
    ) -> int:
        assert len(slots) == self.segments[segment].num_slots
        self.rows.append((segment, slots, layer, microbatch, stage, tag))
        self.total += len(self.segments[segment].nodes)
        return self.total - 1

    def build(self) -> TraceProgram:
        widest = max(s.num_slots for s in self.segments)
        padded = [row[1] + (-1,) * (widest - len(row[1])) for row in self.rows]
        return TraceProgram(
            segments=self.segments,
            segment=np.array([row[0] for row in self.rows], dtype=np.int32),
            slots=np.array(padded, dtype=np.int64).reshape(len(self.rows), widest),
            layer=np.array([row[2] for row in self.rows], dtype=np.int32),
            microbatch=np.array([row[3] for row in self.rows], dtype=np.int32),
            stage=np.array([row[4] for row in self.rows], dtype=np.int32),
            tag=np.array([row[5] for row in self.rows], dtype=np.int64),
        )


def _chain(
    phase: str, scope: str, actions: list[tuple[str, NodeAction]], num_slots: int
) -> TraceSegment:
    """Nodes in a row: each reads the one before; the first reads all slots."""
    nodes = []
    for i, (op, action) in enumerate(actions):
        communicates = isinstance(action, Collective | Transfer)
        nodes.append(
            Node(
                op=op,
                phase=phase,
                scope=scope,
                action=action,
                stream="comm" if communicates else "compute",
                data_deps=tuple(slot(k) for k in range(num_slots)) if i == 0 else (own(i - 1),),
                ctrl_deps=(own(i - 2),) if i >= 2 else (),
                location=f"sample.stg:{10 + i}:3",
                made_by="build-backward" if phase == "bwd" else "lower",
            )
        )
    return TraceSegment(f"{scope or 'step'}_{phase}", tuple(nodes), num_slots, phase[0].upper())


def pipelined_job(
    dp: int = 2, pp: int = 2, cp: int = 1, tp: int = 2, layers: int = 4, microbatches: int = 3
) -> TraceSet:
    """A model of `layers` blocks in `pp` stages, forward and backward per microbatch (GPipe), an
    embedding shared by first and last stage, gradients reduced over dp and cp."""
    mesh = Mesh(("dp", "pp", "cp", "tp"), (dp, pp, cp, tp))
    classes = tuple(
        RankClass(f"stage{p}", {"pp": (p,)}, _stage(mesh, p, layers // pp, microbatches))
        for p in range(pp)
    )
    return TraceSet("sample", mesh, classes)


def _stage(mesh: Mesh, p: int, layers: int, microbatches: int) -> TraceProgram:
    first, last = p == 0, p == mesh.size("pp") - 1
    tp = mesh.size("tp")
    act = 1 << 20

    def over(axes: tuple[str, ...], op: str, nbytes: int, grown: int = 1) -> list:
        if mesh.size(axes[0]) == 1 and all(mesh.size(a) == 1 for a in axes):
            return []
        return [(op, Collective(op, axes, nbytes, nbytes * grown, "bf16"))]

    def block(phase: str) -> TraceSegment:
        actions: list[tuple[str, NodeAction]] = [
            ("rms_norm", Compute(5 * act, 2 * act)),
            *over(("tp",), "all_gather", act // tp, tp),
            ("contract", Compute(2**35 + 1, 3 * act)),
            ("attention", Compute(2**33, act)),
            ("contract", Compute(2**34, 3 * act)),
            *over(("tp",), "reduce_scatter", act),
            ("add", Compute(0, act)),
        ]
        return _chain(phase, "Block.Attention", actions if phase == "fwd" else actions[::-1], 2)

    def hop(phase: str, kind: str, shift: int, channel: int) -> TraceSegment:
        transfer = Transfer(kind, ("pp",), shift, act // tp, channel, "bf16")
        return _chain(phase, "", [(kind, transfer)], 1)

    step = _chain(
        "grad_reduce",
        "",
        [
            *over(("dp", "cp"), "all_reduce", 4 * act),
            ("adam", Compute(12 * act, 16 * act)),
            ("offload", HostCopy("store", 8 * act)),
            ("onload", HostCopy("load", 8 * act)),
        ],
        1,
    )
    tied = TraceSegment(
        "tied",
        (
            Node(
                "all_reduce",
                "grad_reduce",
                "embed",
                Collective(
                    "all_reduce",
                    ("pp",),
                    act,
                    act,
                    "fp32",
                    among=(("pp", (0, mesh.size("pp") - 1)),),
                ),
                "comm.pp",
                data_deps=(slot(0),),
            ),
        ),
        1,
    )
    segments = (
        block("fwd"),
        block("bwd"),
        hop("p2p", "recv", -1, 0),
        hop("p2p", "send", 1, 0),
        hop("p2p", "recv", 1, 1),
        hop("p2p", "send", -1, 1),
        step,
        tied,
    )
    builder = ProgramBuilder(*segments)
    outs, before = [], -1
    for m in range(microbatches):
        here = dict(microbatch=m, stage=p)
        x = -1 if first else builder.run(2, (before,), tag=m, **here)
        for layer in range(layers):
            x = builder.run(0, (x, before), layer=p * layers + layer, **here)
        outs.append(x)
        before = x
        if not last:
            builder.run(3, (x,), tag=m, **here)
    for m in reversed(range(microbatches)):
        here = dict(microbatch=m, stage=p)
        g = outs[m] if last else builder.run(4, (before,), tag=m, **here)
        for layer in reversed(range(layers)):
            g = builder.run(1, (g, before), layer=p * layers + layer, **here)
        before = g
        if not first:
            builder.run(5, (g,), tag=m, **here)
    if (first or last) and mesh.size("pp") > 1:
        builder.run(7, (before,))
    builder.run(6, (before,))
    return builder.build()


def coordinates(mesh: Mesh, rank: int) -> dict[str, int]:
    found = {}
    for axis, size in reversed(list(zip(mesh.axes, mesh.sizes, strict=True))):
        found[axis] = rank % size
        rank //= size
    return found


def rank_at(mesh: Mesh, where: dict[str, int]) -> int:
    rank = 0
    for axis, size in zip(mesh.axes, mesh.sizes, strict=True):
        rank = rank * size + where[axis]
    return rank


def group_of(mesh: Mesh, collective: Collective, rank: int) -> list[int]:
    """The members of the group over which `rank` runs a collective."""
    here, among = coordinates(mesh, rank), dict(collective.among)
    choices = [
        among.get(axis, range(size)) if axis in collective.axes else (here[axis],)
        for axis, size in zip(mesh.axes, mesh.sizes, strict=True)
    ]
    return sorted(
        rank_at(mesh, dict(zip(mesh.axes, chosen, strict=True)))
        for chosen in itertools.product(*choices)
    )


def peer_of(mesh: Mesh, transfer: Transfer, rank: int) -> int:
    here = coordinates(mesh, rank)
    joint, length = 0, 1
    for axis in transfer.axes:
        joint = joint * mesh.size(axis) + here[axis]
        length *= mesh.size(axis)
    joint = (joint + transfer.shift) % length
    for axis in reversed(transfer.axes):
        here[axis] = joint % mesh.size(axis)
        joint //= mesh.size(axis)
    return rank_at(mesh, here)


def class_of(job: TraceSet, rank: int) -> RankClass:
    here = coordinates(job.mesh, rank)
    found = [
        c for c in job.classes if all(here[axis] in chosen for axis, chosen in c.where.items())
    ]
    assert len(found) == 1
    return found[0]


def slow_nodes(
    job: TraceSet,
    rank: int,
    group_ids: dict[tuple[int, ...], int],
    names: str = "full",
    provenance: bool = False,
) -> Iterator[et.Node]:
    """What a rank's trace must contain, message by message."""
    program = class_of(job, rank).program
    tag_span = 1 + max(int(c.program.tag.max()) for c in job.classes)
    digits = {}
    for field, least in (("layer", 3), ("microbatch", 2), ("stage", 2)):
        most = max(int(getattr(c.program, field).max()) for c in job.classes)
        digits[field] = max(least, len(str(most)))
    first = program.first_node.tolist()
    for i in range(len(program.segment)):
        segment = program.segments[program.segment[i]]
        numbers = {
            field: f"{letter}{int(getattr(program, field)[i]):0{digits[field]}}"
            for field, letter in (("stage", "s"), ("layer", "L"), ("microbatch", "m"))
            if int(getattr(program, field)[i]) >= 0
        }
        for j, node in enumerate(segment.nodes):

            def ids(deps: tuple[Dep, ...], i: int = i) -> list[int]:
                found = []
                for dep in deps:
                    at = first[i] + dep.node if dep.slot < 0 else int(program.slots[i, dep.slot])
                    if at >= 0 and at + 1 not in found:
                        found.append(at + 1)
                return found

            data = ids(node.data_deps)
            message = et.Node(
                id=first[i] + j + 1,
                data_deps=data,
                ctrl_deps=[d for d in ids(node.ctrl_deps) if d not in data],
            )
            if names == "short":
                message.name = node.op
            elif names == "full":
                op = node.op
                if isinstance(node.action, Collective | Transfer):
                    op += f"[{node.action.dtype}]"
                parts = [node.phase, node.scope, op]
                parts += [numbers[f] for f in ("layer", "microbatch") if f in numbers]
                message.name = "/".join(p for p in parts if p)
            attributes: dict[str, tuple[str, object]] = {"is_cpu_op": ("bool_val", False)}
            match node.action:
                case Compute(num_ops, num_bytes):
                    message.type = et.COMP_NODE
                    attributes["num_ops"] = ("int64_val", max(1, num_ops))
                    attributes["tensor_size"] = ("uint64_val", max(1, num_bytes))
                case HostCopy(kind, num_bytes):
                    message.type = et.MEM_LOAD_NODE if kind == "load" else et.MEM_STORE_NODE
                    attributes["tensor_size"] = ("uint64_val", max(1, num_bytes))
                case Collective():
                    message.type = et.COMM_COLL_NODE
                    kind = et.CollectiveCommType.Value(node.action.kind.upper())
                    attributes["comm_type"] = ("int64_val", kind)
                    attributes["comm_size"] = ("int64_val", max(1, node.action.operand_bytes))
                    group = group_ids[tuple(group_of(job.mesh, node.action, rank))]
                    attributes["pg_name"] = ("string_val", str(group))
                case Transfer(kind):
                    message.type = et.COMM_SEND_NODE if kind == "send" else et.COMM_RECV_NODE
                    attributes["comm_size"] = ("int64_val", max(1, node.action.num_bytes))
                    ends = [rank, peer_of(job.mesh, node.action, rank)]
                    source, target = ends if kind == "send" else ends[::-1]
                    attributes["comm_src"] = ("int32_val", source)
                    attributes["comm_dst"] = ("int32_val", target)
                    tag = node.action.channel * tag_span + int(program.tag[i])
                    attributes["comm_tag"] = ("int32_val", tag)
            if provenance:
                for name in ("location", "made_by", "stream"):
                    if getattr(node, name):
                        attributes[name] = ("string_val", getattr(node, name))
                slot_name = "/".join([segment.task, *numbers.values()])
                attributes["schedule_slot"] = ("string_val", slot_name)
            for name, (field, value) in attributes.items():
                message.attr.append(et.AttributeProto(name=name, **{field: value}))
            yield message


_sizes = st.one_of(st.just(0), st.integers(1, 300), st.integers(0, 2**62))


@st.composite
def jobs(draw: st.DrawFn) -> TraceSet:
    """Any job that the passes could hand over: meshes of up to four axes, classes along one of them,
    whose collectives are over the others."""
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    mesh = Mesh(("a", "b", "c", "d")[: len(sizes)], sizes)
    split = draw(st.sampled_from([None, *mesh.axes]))
    wide = [axis for axis in mesh.axes if mesh.size(axis) > 1]
    groupable = [axis for axis in wide if axis != split]
    actions: list[st.SearchStrategy[NodeAction]] = [
        st.builds(Compute, _sizes, _sizes),
        st.builds(HostCopy, st.sampled_from(["load", "store"]), _sizes),
    ]
    if groupable:
        actions.append(
            st.builds(
                Collective,
                st.sampled_from(["all_gather", "all_reduce", "reduce_scatter", "all_to_all"]),
                st.lists(st.sampled_from(groupable), min_size=1, unique=True).map(tuple),
                _sizes,
                _sizes,
                st.sampled_from(["bf16", "fp32"]),
            )
        )
    if wide:
        shiftable = st.lists(st.sampled_from(wide), min_size=1, unique=True).map(tuple)
        actions.append(
            st.builds(
                Transfer,
                st.sampled_from(["send", "recv"]),
                shiftable,
                st.sampled_from([-1, 1]),
                _sizes,
                st.integers(0, 3),
                st.just("bf16"),
            )
        )
    text = st.text("abc.é", max_size=5)

    def segment(number: int) -> TraceSegment:
        num_slots = draw(st.integers(0, 3))
        nodes = []
        for i in range(draw(st.integers(1, 4))):
            options = [slot(k) for k in range(num_slots)] + [own(j) for j in range(i)]
            deps = st.just(())
            if options:
                deps = st.lists(st.sampled_from(options), max_size=4).map(tuple)
            nodes.append(
                Node(
                    op=draw(text),
                    phase=draw(st.sampled_from(["fwd", "bwd"])),
                    scope=draw(text),
                    action=draw(st.one_of(actions)),
                    stream=draw(text),
                    data_deps=draw(deps),
                    ctrl_deps=draw(deps),
                    location=draw(text),
                    made_by=draw(text),
                )
            )
        return TraceSegment(f"s{number}", tuple(nodes), num_slots)

    segments = [segment(n) for n in range(draw(st.integers(1, 3)))]
    numbers = st.integers(-1, 1200)

    def program() -> TraceProgram:
        builder = ProgramBuilder(*segments)
        # All classes run every segment first, so that all members of a group use it.
        order = [*range(len(segments)), *draw(st.lists(st.integers(0, len(segments) - 1)))]
        for s in order:
            slots = tuple(
                draw(st.integers(-1, builder.total - 1)) for _ in range(segments[s].num_slots)
            )
            builder.run(
                s, slots, draw(numbers), draw(numbers), draw(numbers), draw(st.integers(0, 99))
            )
        return builder.build()

    if split is None:
        return TraceSet("any", mesh, (RankClass("all", {}, program()),))
    cut = draw(st.integers(0, mesh.size(split)))
    parts = [tuple(range(cut)), tuple(range(cut, mesh.size(split)))]
    return TraceSet(
        "any",
        mesh,
        tuple(RankClass(f"part{i}", {split: p}, program()) for i, p in enumerate(parts) if p),
    )
