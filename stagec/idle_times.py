"""Settings that decide nothing but times, where none depends on them: W0304.

These are what attention multiplies in, switches that add up what passes through them, whose all-reduce or layers of experts an engine runs, and copies of
what is gathered.
Whether one decides something is asked of each node that ranks run: it costs as much without the setting. Nothing is unrolled for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeGuard

from stagec.analysis.sequences import ModuleSequences
from stagec.analysis.sizes import mesh_of
from stagec.backend.program import Mesh, Node, TraceProgram, TraceSet
from stagec.compiled import Compiled
from stagec.diagnostics import Diagnostic, Span, quoted
from stagec.dialects.sched import COMPUTE_STREAM
from stagec.dialects.sched.actions import Collective, Compute, NodeAction
from stagec.dialects.work import Work
from stagec.plans.clauses import Plan

if TYPE_CHECKING:
    from stagec.estimate.kernels import KernelPrices

LEAVE = "leave it out"
MEASURED = "it needs a `device` whose kernels are measured"

Costs = Callable[[Node, Mesh], tuple[object, object]]
"""What decides the time of a node, as a plan is, and without one of its settings."""


@dataclass(frozen=True)
class TimedSetting:
    """A setting that only times depend on, and that a plan says itself."""

    message: str
    span: Span
    concerns: Callable[[NodeAction], bool]
    """Whether the times of nodes that do this may depend on it."""
    costs: Costs | None
    """Of such a node; nothing where the device has no such times."""
    reason: Callable[[Sequence[Node]], str]
    """Why it changes nothing, where it does not for any of the nodes that it concerns."""
    help: str = LEAVE

    def decides(self, node: Node, mesh: Mesh) -> bool:
        """Whether the time of a node that it concerns is another one without it."""
        if self.costs is None:
            return False
        own, other = self.costs(node, mesh)
        return own != other


def idle_in_times(compiled: Compiled) -> list[Diagnostic]:
    """W0304 for each such setting on which no time depends, unless that is told already; nothing of IR of which no programs of ranks were built yet."""
    told = [each.span for each in compiled.idle]
    settings = [each for each in timed_settings(compiled) if each.span not in told]
    if not settings or not compiled.has_programs:
        return []
    nodes, found = nodes_of(compiled), list[Diagnostic]()
    mesh = Mesh.of(mesh_of(compiled.module))
    for each in settings:
        own = [node for node in nodes if each.concerns(node.action)]
        if not any(each.decides(node, mesh) for node in own):
            label = each.reason(own)
            found.append(Diagnostic("W0304", each.message, each.span, label=label, help=each.help))
    return found


def timed_settings(compiled: Compiled) -> Iterator[TimedSetting]:
    """The settings that only times depend on and that the plan says itself."""
    yield from of_attention(compiled)
    yield from of_sums(compiled)
    yield from of_engine(compiled)
    yield from of_copies(compiled)


def nodes_of(compiled: Compiled) -> list[Node]:
    """What ranks run, each op once."""
    known: dict[tuple[NodeAction, str], Node] = {}
    for ranks in compiled.counts:
        for each in ranks.operations:
            node = each.node()
            known.setdefault((node.action, node.phase), node)
    return list(known.values())


def is_own(span: Span | None, compiled: Compiled) -> TypeGuard[Span]:
    """Whether a setting at `span` is one that the plan says itself, or a command."""
    own = compiled.model.own_settings if compiled.model else ()
    return span is not None and (span.is_flag or span in own)


def of_attention(compiled: Compiled) -> Iterator[TimedSetting]:
    """What fused attention multiplies in."""
    plan, span = compiled.plan, compiled.plan.precision.unusual.get("attention")
    if not is_own(span, compiled):
        return
    device, dtype = plan.device.model, plan.precision.attention
    if device is not None and dtype is not None and not device.multiplies(dtype):
        return  # W0502 says so
    sequences = ModuleSequences.of(compiled.module)
    kinds = sequences.dealt.kinds if sequences is not None and compiled.num_iterations > 1 else None
    if kinds is not None and (kinds[:, 1] > 1).any():
        return
    help_ = LEAVE
    if device is None:
        help_ = MEASURED
    elif not compiled.stated.is_training:
        help_ = "leave it out: the time of a single new token depends on `cache`"
    other = replace(plan, precision=replace(plan.precision, attention=None))
    yield TimedSetting(
        "`attention` of `precision` changes nothing here",
        span,
        lambda action: isinstance(action, Compute) and action.work in ATTENTION,
        of_kernels(compiled, other, price),
        lambda nodes: "no time depends on what fused attention multiplies in",
        help_,
    )


ATTENTION = (Work.ATTENTION, Work.ATTENTION_GRAD, Work.LATENT_ATTENTION)


def of_engine(compiled: Compiled) -> Iterator[TimedSetting]:
    """The engine that computes experts: of what is served it decides times of those that it has a table for, in a step that trains whether they take turns."""
    plan, span = compiled.plan, compiled.plan.device.unusual.get("experts")
    trains, device = compiled.stated.is_training, plan.device
    if not is_own(span, compiled) or (trains and device.experts != "grouped"):
        return  # The plan alone tells of engines that serve, where nothing is served.
    other = replace(plan, device=replace(device, experts="trtllm"))
    costs = of_kernels(compiled, other, price_and_launches if trains else layer_tables)
    label = f"`{device.preset}` has no table of `{device.experts}` for these experts"
    if trains:
        label = f"with `kernels = {device.kernels}` no kernel of experts takes another time"
    yield TimedSetting(
        "`experts` of `device` changes nothing here",
        span,
        lambda action: isinstance(action, Compute),
        costs,
        lambda nodes: label if costs is not None else "",
        LEAVE if costs is not None else MEASURED,
    )


def of_copies(compiled: Compiled) -> Iterator[TimedSetting]:
    """Kernels that copy what was gathered of parameters into place."""
    zero = compiled.plan.zero
    span = None if zero is None else zero.unusual.get("copies")
    if zero is None or zero.level != 3 or not is_own(span, compiled):
        return  # The plan alone tells of other levels.
    other = replace(compiled.plan, zero=replace(zero, copies=not zero.copies))
    costs = of_kernels(compiled, other, price)
    yield TimedSetting(
        "`copies` of `zero` changes nothing here",
        span,
        lambda action: isinstance(action, Compute),
        costs,
        lambda nodes: "no parameters are gathered where they are read" if costs else "",
        LEAVE if costs is not None else MEASURED,
    )


def of_sums(compiled: Compiled) -> Iterator[TimedSetting]:
    """Switches that add up what passes through them, and an engine's all-reduce."""
    plan = compiled.plan
    if plan.device.flops_per_s is None:
        return
    for number, link in enumerate(plan.links):
        span = link.unusual.get("reduces")
        if not is_own(span, compiled):
            continue
        others = (*plan.links[:number], replace(link, reduces=False), *plan.links[number + 1 :])
        axes = link.axes

        def reason(sums: Sequence[Node], axes: tuple[str, ...] = axes) -> str:
            if any(set(axes_of(each)) <= set(axes) for each in sums):
                return f"all-reduces over {quoted(axes)} stay in a node, where what switches do is measured"
            return f"nothing is all-reduced over {quoted(axes)} alone"

        yield TimedSetting(
            "`reduces` of `link` changes nothing here",
            span,
            is_all_reduce,
            of_networks(plan, replace(plan, links=others)),
            reason,
        )
    span = plan.device.unusual.get("all_reduce")
    if not is_own(span, compiled):
        return
    # Iterations of a series have sums of other sizes: with some it may decide something.
    other = replace(plan, device=replace(plan.device, all_reduce="nccl"))
    yield TimedSetting(
        "`all_reduce` of `device` changes nothing here",
        span,
        is_all_reduce,
        of_networks(plan, other) if compiled.num_iterations == 1 else lambda node, mesh: (1, 0),
        lambda sums: "NCCL's all-reduces take no longer here" if sums else "nothing is all-reduced",
    )


def is_all_reduce(action: NodeAction) -> bool:
    return isinstance(action, Collective) and action.kind == "all_reduce"


def axes_of(node: Node) -> tuple[str, ...]:
    return node.action.axes if isinstance(node.action, Collective) else ()


def of_networks(plan: Plan, other: Plan) -> Costs:
    """The times of collectives."""
    from stagec.estimate.network import Network

    known: dict[Mesh, tuple[Network, Network]] = {}

    def costs(node: Node, mesh: Mesh) -> tuple[object, object]:
        assert isinstance(node.action, Collective)
        if mesh not in known:
            known[mesh] = Network.of(plan, mesh), Network.of(other, mesh)
        own, without = known[mesh]
        return own.collective(node.action), without.collective(node.action)

    return costs


def of_kernels(
    compiled: Compiled, other: Plan, asked: Callable[[KernelPrices, Node, Mesh], object]
) -> Costs | None:
    """What is asked of the times of kernels; nothing where none are measured."""
    from stagec.estimate.prices import kernel_prices

    trains = compiled.stated.is_training
    own, without = kernel_prices(compiled.plan, trains), kernel_prices(other, trains)
    if own is None or without is None:
        return None
    return lambda node, mesh: (asked(own, node, mesh), asked(without, node, mesh))


def price(kernels: KernelPrices, node: Node, mesh: Mesh) -> object:
    from stagec.estimate.prices import BACKWARD

    assert isinstance(node.action, Compute)
    found = kernels.price(node.action, node.phase in BACKWARD)
    return found.on_slowest(kernels.device.slowest_of(mesh.num_ranks)), found.basis


def price_and_launches(kernels: KernelPrices, node: Node, mesh: Mesh) -> object:
    return price(kernels, node, mesh), kernels.further_launches(node.action)


def layer_tables(kernels: KernelPrices, node: Node, mesh: Mesh) -> object:
    return kernels.experts.layer_tables(node.action)


def idle_exchanges(compiled: Compiled, unrolled: Callable[[], TraceSet]) -> Iterator[Diagnostic]:
    """W0304 for `overlap { ep = true }` of what is served in one microbatch, where computation waits for all that communicates by its data anyway."""
    span = compiled.plan.overlap.unusual.get("ep")
    told = [each.span for each in compiled.idle]
    if compiled.stated.is_training or span in told or not is_own(span, compiled):
        return
    if all(in_turn(each.program) for each in unrolled().classes):
        message = "`ep` of `overlap` changes nothing here"
        label = "with one microbatch, what is computed waits for its own exchanges"
        note = "in the traces, a computation may name the one before its exchange too, which it waits for by that"
        help_ = "leave it out, or serve in several microbatches"
        yield Diagnostic("W0304", message, span, label=label, notes=[note], help=help_)


def in_turn(program: TraceProgram) -> bool:
    """Whether a program of one microbatch computes nothing beside what communicates: what is issued before an exchange ends before it, what is issued after
    it begins after it, whether it is `serial` or not.
    """
    if program.ahead is not None or len(set(program.microbatch.tolist()) - {-1}) > 1:
        return False
    first, slots = program.first_node.tolist(), program.slots.tolist()
    behind: list[dict[str, int]] = []
    """For each node, and for each queue, the last node there that it is or waits for."""
    issued: dict[str, int] = {}
    for i, number in enumerate(program.segment.tolist()):
        for node in program.segments[number].nodes:
            known: dict[str, int] = {}
            for dep in (*node.data_deps, *node.ctrl_deps):
                place = slots[i][dep.slot] if dep.slot >= 0 else first[i] + dep.node
                for queue, last in behind[place].items() if place >= 0 else ():
                    known[queue] = max(known.get(queue, -1), last)
            is_computing = node.serial or node.stream == COMPUTE_STREAM
            queue = COMPUTE_STREAM if is_computing else node.stream
            others = issued if is_computing else (COMPUTE_STREAM,)
            if any(known.get(each) != issued.get(each) for each in others):
                return False
            issued[queue] = known[queue] = len(behind)
            behind.append(known)
    return True
