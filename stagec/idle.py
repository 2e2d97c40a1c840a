"""What of a plan turns out to change nothing in its program: a pass, W0703; a setting, W0304.

Settings of which the plan alone says so are found before: `stagec/frontend/plans/idle_settings.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from stagec.analysis.communication import communication_kind
from stagec.analysis.contexts import Contexts
from stagec.analysis.sizes import mesh_of, size_values
from stagec.diagnostics import Diagnostic, Span
from stagec.dialects import dist, sched, stg
from stagec.plans.clauses import Plan
from stagec.symbolic import conditions


class Need(NamedTuple):
    """What a setting is about, and what a program without it says."""

    clause: str
    setting: str
    kind: str
    """A kind of communication, `MICROBATCHES`, `GRADIENTS`, or the pass that the setting adds."""
    reason: str


MICROBATCHES = "several microbatches"
GRADIENTS = "reduced gradients"
NO_GRADIENTS = "no gradients are reduced between ranks of other data"
LOWERING = "lower-to-tasks"
"""The pass in front of which communication still says what it is for."""
REGATHER = "regather-operands"
BIASES_FIRST = "add-biases-first"
NEEDS = (
    Need("overlap", "zero", "zero", "no gradients are reduced, and no parameters gathered"),
    Need("overlap", "tp", "tp", "no values are gathered or summed within layers"),
    Need("overlap", "ep", "ep", "no tokens are sent to experts on other devices"),
    Need("collectives", "reduce", "tp", "no partial sums are reduced within layers"),
    Need("collectives", "keep", REGATHER, "nothing that backward reads was gathered for a layer"),
    Need("collectives", "bias", BIASES_FIRST, "no bias is added to a sum over ranks"),
    Need("gradients", "bucket_bytes", GRADIENTS, NO_GRADIENTS),
    Need("gradients", "overlap", GRADIENTS, NO_GRADIENTS),
    Need("gradients", "reduce", MICROBATCHES, "a step has one microbatch"),
)


class IdleParts:
    """Watches the passes of a plan that may change nothing, for its own calls of passes and the settings that it says itself, at `own`."""

    def __init__(self, plan: Plan, own: Collection[Span] = ()) -> None:
        self.plan = plan
        self.own = own
        self.needs = {
            need: span
            for need in NEEDS
            if (span := getattr(plan, need.clause).unusual.get(need.setting)) in own
        }
        self.found: set[str] = set()
        """The names of passes that changed the program, and what it was found to have."""
        self.watched = {call.name for call in plan.passes}
        self.watched |= {need.kind for need in self.needs if need.kind in (REGATHER, BIASES_FIRST)}
        self.ran: set[str] = set()

    @contextmanager
    def watching(self, each: ModulePass, module: ModuleOp) -> Iterator[None]:
        """What runs inside is the pass."""
        if each.name == LOWERING and self.needs:
            with conditions.unrecorded():
                self.found |= set(kinds(module))
            self.ran.add(LOWERING)
        if each.name not in self.watched:
            yield
            return
        before = str(module)
        yield
        self.ran.add(each.name)
        if str(module) != before:
            self.found.add(each.name)

    def diagnostics(self) -> list[Diagnostic]:
        """A warning for each that changed nothing, of the passes that ran."""
        return [*self.passes(), *self.settings()]

    def passes(self) -> Iterator[Diagnostic]:
        for call in self.plan.passes:
            if call.name in self.ran - self.found:
                message = f"the pass `{call.name}` changes nothing in this plan"
                help_ = f"`--stop-after {call.name}` shows the IR that it sees; `stagec passes {call.name}` what it looks for"
                yield Diagnostic("W0703", message, call.span, help=help_)

    def settings(self) -> Iterator[Diagnostic]:
        if LOWERING not in self.ran:
            return
        for need, span in self.needs.items():
            if need.kind not in self.found:
                message = f"`{need.setting}` of `{need.clause}` changes nothing here"
                yield Diagnostic("W0304", message, span, label=need.reason, help="leave it out")


def kinds(module: ModuleOp) -> Iterator[str]:
    """What a program has, of what settings are about."""
    mesh, contexts, sizes = mesh_of(module), Contexts.of(module).axes(), size_values(module)
    for op in module.walk():
        if isinstance(op, stg.AccumulateOp) and sizes[op.axis.data] > 1:
            yield MICROBATCHES
        if isinstance(op, sched.ScheduleOp) and op.microbatches.data.evaluate(sizes) > 1:
            yield MICROBATCHES
        axes = op.axes.data if isinstance(op, dist.Collective | dist.StorageOp) else ()
        if axes and all(mesh[axis] == 1 for axis in axes):
            continue
        yield communication_kind(op, contexts)
        if isinstance(op, dist.AllReduceGradientOp | dist.ReduceShardOp):
            yield GRADIENTS
