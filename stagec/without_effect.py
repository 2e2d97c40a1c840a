"""What of a plan turns out to change nothing in its program: a pass, W0703; a setting, W0304.

Settings of which the plan alone says so are found before: `stagec/frontend/plans/idle_settings.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from stagec.analysis.communication import communication_kind
from stagec.analysis.contexts import Contexts
from stagec.analysis.sizes import mesh_of
from stagec.diagnostics import Diagnostic, Span
from stagec.dialects import dist, stg
from stagec.frontend.plans.idle_settings import is_idle
from stagec.pass_manager import is_our_class
from stagec.passes import load_pass
from stagec.plans.clauses import Plan
from stagec.symbolic import conditions


class ProgramNeed(NamedTuple):
    """What a setting is about, and what a program without it says."""

    clause: str
    setting: str
    kind: str
    """A kind of communication, `GRADIENTS`, `PERSISTENT`, `CONVERTED`, or the pass that the setting adds or leaves out."""
    reason: str


GRADIENTS = "reduced gradients"
PERSISTENT = "parameters that stay whole"
CONVERTED = "logits that are converted for a loss"
RECOMPUTE = "recompute-activations"
LOWERING = "lower-to-tasks"
"""The pass in front of which communication still says what it is for."""
REGATHER = "regather-operands"
BIASES_FIRST = "add-biases-first"
UPDATE_ROWS = "update-rows"
DEFER, BEHIND_DEFER = "defer-reductions", "decompose-statistics"
"""The pass that `reduce = eager` leaves out, and the one that would come next."""
OF_ONE_PASS = (REGATHER, BIASES_FIRST, UPDATE_ROWS, DEFER)
"""Passes that one setting adds, or leaves out."""
OVERLAPPED = "overlapped_1f1b"
"""What `overlap { ep = true }` makes of interleaved 1F1B: another order, whether tokens are sent or not."""
NEEDS = (
    ProgramNeed("overlap", "zero", "zero", "no gradients are reduced, and no parameters gathered"),
    ProgramNeed("overlap", "tp", "tp", "no values are gathered or summed within layers"),
    ProgramNeed("overlap", "ep", "ep", "no tokens are sent to experts on other devices"),
    ProgramNeed("collectives", "reduce", DEFER, "no partial sums meet in a sum"),
    ProgramNeed(
        "collectives", "keep", REGATHER, "nothing that backward reads was gathered for a layer"
    ),
    ProgramNeed("collectives", "bias", BIASES_FIRST, "no bias is added to a sum over ranks"),
    ProgramNeed("precision", "loss", CONVERTED, "no `cross_entropy` reads logits of another dtype"),
    ProgramNeed(
        "zero",
        "persist",
        PERSISTENT,
        "no parameter that is split has so few elements and is stored as it is gathered",
    ),
    ProgramNeed(
        "optimizer",
        "tables",
        UPDATE_ROWS,
        "no gradient is that of lookups in a table which axes split",
    ),
    *(
        ProgramNeed(
            "gradients", each, GRADIENTS, "no gradients are reduced between ranks of other data"
        )
        for each in ("average", "bucket_bytes")
    ),
)


class ListedNames(NamedTuple):
    """Names that a setting lists, and that a pass looks for."""

    clause: str
    setting: str
    of_pass: str
    parameter: str
    reason: str


LISTS = (
    ListedNames(
        "precision",
        "unquantized",
        "quantize-products",
        "wide",
        "no product of it would be quantized",
    ),
    ListedNames(
        "gradients",
        "late",
        "reduce-gradients",
        "late",
        "no gradient of it would be reduced earlier",
    ),
)


class IdleParts:
    """Watches the passes of a plan that may change nothing, for its own calls of passes and the settings that it says itself, at `own`."""

    def __init__(self, plan: Plan, own: Collection[Span] = ()) -> None:
        self.plan = plan
        self.needs = {
            need: span
            for need in NEEDS
            if (clause := getattr(plan, need.clause)) is not None
            and (span := clause.unusual.get(need.setting)) in own
            and not is_idle(plan, need.clause, need.setting)
        }
        self.has: set[str] = set()
        """What of `needs` the program has."""
        self.is_lowered = False
        self.changes = {call.name: False for call in plan.passes}
        """For each pass that is watched: whether the program was another one behind it."""
        self.changes |= {need.kind: False for need in self.needs if need.kind in OF_ONE_PASS}
        self.links = idle_links(plan, own)
        self.lists = {
            each.of_pass: (each, span)
            for each in LISTS
            if (span := getattr(plan, each.clause).unusual.get(each.setting)) in own
        }
        self.names: list[Diagnostic] = []
        self.recomputes = True
        self.ran: set[str] = set()

    @contextmanager
    def watching(self, each: ModulePass, module: ModuleOp) -> Iterator[None]:
        """What runs inside is the pass."""
        if each.name == LOWERING and self.needs:
            with conditions.unrecorded():
                self.has |= set(kinds(module))
            if self.plan.pipeline is not None and self.plan.pipeline.schedule == OVERLAPPED:
                self.has.add("ep")
            self.is_lowered = True
        if each.name in self.lists and is_our_class(type(each)):
            self.names += idle_names(each, module, *self.lists[each.name])
        if each.name == BEHIND_DEFER and DEFER in self.changes:
            self.changes[DEFER] = would_change(load_pass(DEFER)(), module)
        if each.name == RECOMPUTE:
            number = sum(1 for _ in module.walk())
            yield
            self.recomputes = sum(1 for _ in module.walk()) != number
            return
        if each.name not in self.changes:
            yield
            return
        seen = parts_of if is_our_class(type(each)) else str
        before = seen(module)
        yield
        self.ran.add(each.name)
        self.changes[each.name] |= seen(module) != before

    def diagnostics(self) -> list[Diagnostic]:
        """A warning for each that changed nothing, of the passes that ran."""
        return [*self.passes(), *self.settings(), *self.recomputing(), *self.names, *self.links]

    def passes(self) -> Iterator[Diagnostic]:
        for call in self.plan.passes:
            if call.name in self.ran and not self.changes[call.name]:
                message = f"the pass `{call.name}` changes nothing in this plan"
                help_ = f"`--stop-after {call.name}` shows the IR that it sees; `stagec passes {call.name}` what it looks for"
                yield Diagnostic("W0703", message, call.span, help=help_)

    def settings(self) -> Iterator[Diagnostic]:
        for need, span in self.needs.items() if self.is_lowered else ():
            is_met = self.changes[need.kind] if need.kind in OF_ONE_PASS else need.kind in self.has
            if not is_met:
                message = f"`{need.setting}` of `{need.clause}` changes nothing here"
                yield Diagnostic("W0304", message, span, label=need.reason, help="leave it out")

    def recomputing(self) -> Iterator[Diagnostic]:
        if not self.recomputes:
            message = "`recompute` changes nothing here"
            label = "nothing that the backward pass reads is made by that"
            help_ = "name what makes what is saved, which `--memory` lists, or leave it out"
            yield Diagnostic("W0304", message, self.plan.recompute.span, label=label, help=help_)


def parts_of(module: ModuleOp) -> list[object]:
    """The ops of a module as they are, with all that they say: less work than its text, which another's pass might make anew as it was."""
    return [
        (op, *op.operands, *op.result_types, dict(op.properties), dict(op.attributes))
        for op in module.walk()
    ]


def idle_links(plan: Plan, own: Collection[Span]) -> list[Diagnostic]:
    """Links that the plan says itself, where there are no times: its device, which a command may have given it, does not say how fast it computes."""
    if plan.device.flops_per_s is not None and plan.device.memory_bytes_per_s is not None:
        return []
    help_ = "it needs a `device`, without which there are no times"
    return [
        Diagnostic("W0304", f"`{name}` of `link` changes nothing here", span, help=help_)
        for link in plan.links
        for name, span in link.unusual.items()
        if span in own
    ]


def idle_names(
    each: ModulePass, module: ModuleOp, listed: ListedNames, span: Span | None
) -> Iterator[Diagnostic]:
    """A warning for each name without which the pass makes the same program."""
    names: tuple[str, ...] = getattr(each, listed.parameter)
    whole = made_by(each, module)
    for name in names:
        others = tuple(other for other in names if other != name)
        if made_by(replace(each, **{listed.parameter: others}), module) == whole:
            message = f"`{name}` in `{listed.setting}` of `{listed.clause}` changes nothing here"
            yield Diagnostic("W0304", message, span, label=listed.reason, help="leave it out")


def made_by(each: ModulePass, module: ModuleOp) -> str:
    """The program that a pass would make."""
    tried = module.clone()
    with conditions.unrecorded():
        each.apply(Context(), tried)
    return str(tried)


def would_change(left_out: ModulePass, module: ModuleOp) -> bool:
    """Whether a pass that does not run would make another program of it."""
    return made_by(left_out, module) != str(module)


READ_LOGITS = (*stg.LOSSES, stg.MaxLogitOp)
"""What reads logits first, whole or in steps of a split vocabulary."""


def kinds(module: ModuleOp) -> Iterator[str]:
    """What a program has, of what settings are about."""
    mesh, contexts = mesh_of(module), Contexts.of(module).axes()
    for op in module.walk():
        axes = op.axes.data if isinstance(op, dist.CollectiveBase | dist.StorageOp) else ()
        if axes and all(mesh.get(axis) == 1 for axis in axes):  # `all_pools` is no axis
            continue
        yield communication_kind(op, contexts)
        if isinstance(op, dist.AllReduceGradientOp | dist.ReduceShardOp):
            yield GRADIENTS
        if isinstance(op, stg.WeightOp) and op.persistent is not None:
            yield PERSISTENT
        # A conversion in the model's text has a place of its own.
        if isinstance(op, stg.CastOp) and any(
            isinstance(use.operation, READ_LOGITS) and use.operation.location == op.location
            for use in op.result.uses
        ):
            yield CONVERTED
