"""What of a plan turns out to change nothing in its program: a pass, W0703; a setting, W0304.

Settings of which the plan alone says so are found before: `stagec/frontend/plans/idle_settings.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple, TypeVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from stagec.analysis.communication import communication_kind
from stagec.analysis.contexts import Contexts
from stagec.analysis.recompute_choice import Choice
from stagec.analysis.sizes import at_first, mesh_of, size_values
from stagec.diagnostics import CompileError, Diagnostic, Span
from stagec.dialects import dist, sched, stg
from stagec.dialects.op import around, is_our_class
from stagec.dialects.stg.optimizer import EIGHT_BIT, is_small
from stagec.dialects.types import DTYPE_BITS, tensor_of
from stagec.pass_arguments import sums_whole_gradients
from stagec.passes import load_pass
from stagec.plans.clauses import Overlap, Plan
from stagec.rewriting import programs
from stagec.rewriting.saved_values import levels_of
from stagec.symbolic import conditions

LEAVE = "leave it out"


class ProgramNeed(NamedTuple):
    """What a setting is about, and what a program without it says."""

    clause: str
    setting: str
    kind: str
    """A kind of communication, one of the names below, or the pass that the setting adds or leaves out."""
    reason: str
    help: str = LEAVE


GRADIENTS = "reduced gradients"
REDUCED = (dist.AllReduceGradientOp, dist.ReduceShardOp, dist.AllReduceShardOp)
SUMMED = "gradients that are reduced, or wait for that, in a dtype of their own"
PERSISTENT = "parameters that stay whole"
IN_EIGHT_BITS = "states in 8 bits"
NARROW = "gradients or weights that are narrower than what a step computes with"
EXPERTS = "experts"
GATHERED = "gathered parameters"
SUMS = "gathers, scatters and sums"
EXCHANGES = "all-to-alls beside computation"
BESIDE_EP = "leave it out, or have exchanges beside computation: `overlap { ep = true }`"
NOT_AWAITED = "communication within layers for which computation does not wait"
MESSAGES = "messages beside computation"
BESIDE = "communication that products may run beside"
CONVERTED = "logits that are converted for a loss"
NORMED = "norms that nothing but quantizations reads"
RECOMPUTE = "recompute-activations"
PLAN_MEMORY = "plan-memory"
LOWERING = "lower-to-tasks"
"""The pass in front of which communication still says what it is for."""
REGATHER = "regather-operands"
BIASES_FIRST = "add-biases-first"
UPDATE_ROWS = "update-rows"
QUANTIZE_PRODUCTS = "quantize-products"
OFFLOAD_PARAMETERS, OFFLOAD_OPTIMIZER = "offload-parameters", "offload-optimizer"
DEFER, BEHIND_DEFER = "defer-reductions", "decompose-statistics"
"""The pass that `reduce = eager` leaves out, and the one that would come next."""
OF_ONE_PASS = (
    *(REGATHER, BIASES_FIRST, UPDATE_ROWS, QUANTIZE_PRODUCTS, DEFER),
    *(OFFLOAD_PARAMETERS, OFFLOAD_OPTIMIZER),
)
"""Passes that one setting adds, or leaves out."""
WITH = {"reduce-maxima": QUANTIZE_PRODUCTS}
"""Passes that such a setting adds too: those of fused attention are reduced whatever linear layers multiply in."""
OVERLAPPED = "overlapped_1f1b"
"""What `overlap { ep = true }` makes of interleaved 1F1B: another order, whether tokens are sent or not."""
NEEDS = (
    ProgramNeed("overlap", "zero", "zero", "no gradients are reduced, and no parameters gathered"),
    ProgramNeed("overlap", "tp", "tp", "no values are gathered or summed within layers"),
    ProgramNeed(
        "overlap",
        "tp",
        NOT_AWAITED,
        "nothing comes in pieces, and with `bulk = false` computation waits for all else",
        "leave `bulk` out, or have pieces: these need `shard S over tp`, and a number that divides what a rank has",
    ),
    ProgramNeed("overlap", "ep", "ep", "no tokens are sent to experts on other devices"),
    ProgramNeed("collectives", "reduce", DEFER, "no partial sums meet in a sum"),
    ProgramNeed(
        "collectives", "keep", REGATHER, "nothing that backward reads was gathered for a layer"
    ),
    ProgramNeed("collectives", "bias", BIASES_FIRST, "no bias is added to a sum over ranks"),
    ProgramNeed(
        "precision",
        "products",
        QUANTIZE_PRODUCTS,
        "only linear layers in a `repeat` are quantized, and all there are `unquantized`, or none",
    ),
    *(
        ProgramNeed("device", each, QUANTIZE_PRODUCTS, "no product is quantized")
        for each in ("swizzle", "fused_activations")
    ),
    ProgramNeed("device", "norms", NORMED, "no norm is read by quantized products alone"),
    ProgramNeed("precision", "loss", CONVERTED, "no `cross_entropy` reads logits of another dtype"),
    ProgramNeed(
        "zero",
        "persist",
        PERSISTENT,
        "no parameter that is split has so few elements and is stored as it is gathered",
    ),
    ProgramNeed("device", "experts", EXPERTS, "the model has no experts"),
    ProgramNeed(
        "precision",
        "gather",
        GATHERED,
        "no parameters are gathered whose dtype the text leaves open",
    ),
    ProgramNeed("device", "collective_units", SUMS, "ranks gather, scatter and add up nothing"),
    ProgramNeed(
        "device", "exchange_units", EXCHANGES, "no all-to-all runs beside computation", BESIDE_EP
    ),
    ProgramNeed(
        "device", "message_units", MESSAGES, "no message between ranks runs beside computation"
    ),
    ProgramNeed("device", "tile_scheduler", BESIDE, "no communication runs beside products"),
    ProgramNeed(
        "optimizer",
        "bits",
        IN_EIGHT_BITS,
        "no device stores 4,096 elements of a tensor: fewer have states in 32 bits",
    ),
    ProgramNeed(
        "optimizer",
        "copies",
        NARROW,
        "gradients are in fp32, and no weight has a master copy",
    ),
    ProgramNeed(
        "optimizer",
        "tables",
        UPDATE_ROWS,
        "no gradient is that of lookups in a table which axes split",
    ),
    ProgramNeed(
        "offload", "parameters", OFFLOAD_PARAMETERS, "all parameters stay whole on the device"
    ),
    ProgramNeed(
        "offload", "optimizer", OFFLOAD_OPTIMIZER, "the update keeps nothing beside the weights"
    ),
    ProgramNeed(
        "precision", "reduce", SUMMED, "no gradients are reduced between ranks of other data"
    ),
    *(
        ProgramNeed(
            "gradients", each, GRADIENTS, "no gradients are reduced between ranks of other data"
        )
        for each in ("average", "bucket_bytes", "check")
    ),
)


class PassNeed(NamedTuple):
    """A setting that decides something of one pass alone, and what the pass is told without it."""

    clause: str
    setting: str
    of_pass: str
    without: tuple[tuple[str, object], ...]
    reason: str
    help: str = LEAVE


OF_PASSES = (
    PassNeed(
        "zero",
        "reshard",
        "shard-parameters",
        (("reshard", True), ("reshard_root", False)),
        "all that is gathered is there until the backward pass needs it, also without this",
    ),
    PassNeed(
        "zero",
        "reshard_over",
        "shard-parameters",
        (("reshard_over", ()),),
        "nothing is freed after the forward pass, and gathered again",
    ),
    PassNeed(
        "zero", "prefetch", "shard-parameters", (("prefetch", 1),), "no parameters are gathered"
    ),
    PassNeed(
        "zero",
        "experts",
        "reduce-gradients",
        (("experts_apart", True),),
        "no rank has several experts whose gradients are reduced",
    ),
    PassNeed(
        "precision",
        "product_gather",
        QUANTIZE_PRODUCTS,
        (("gathered", ""),),
        "no weight that learns is stored as products read it",
    ),
    PassNeed(
        "overlap",
        "pieces",
        "split-products",
        (("pieces", 1),),
        "nothing that linear layers gather or scatter is split into so many",
        "all-reduces have no pieces: these need `shard S over tp`, and a number that divides what a rank has",
    ),
    PassNeed(
        "overlap",
        "bulk",
        "split-products",
        (("bulk", True),),
        "all tensor-parallel communication is in pieces",
    ),
    PassNeed(
        "optimizer",
        "steps",
        "orthogonalize-updates",
        (("steps", 5),),
        "no matrix of a product is trained",
    ),
    PassNeed(
        "pipeline",
        "scatter_gather",
        "split-stages",
        (("scatter_gather", False),),
        "no value that is sent is the same on several devices of a stage",
    ),
    PassNeed(
        "pipeline",
        "transfers",
        "schedule-pipeline",
        (("transfers", ""),),
        "ranks send and receive in this order without it too, or do not at all",
    ),
    PassNeed(
        "pipeline",
        "first_backward",
        "cut-segments",
        (("first_whole", False),),
        "no backward pass of the first of several stages is split",
        "it needs several stages, and a schedule that splits backward passes, as `zb_h1` does",
    ),
    PassNeed(
        "process",
        "dummy_gradients",
        PLAN_MEMORY,
        (("dummy_gradients", False),),
        "no weight of linear layers in repeated blocks is trained",
    ),
    *(
        PassNeed(
            "process", each, PLAN_MEMORY, ((each, False),), "no product reads a weight that is so"
        )
        for each in ("transposed_weights", "cached_weights")
    ),
    PassNeed(
        "process",
        "communicator",
        PLAN_MEMORY,
        (("communicator", 0),),
        "no rank sends another one anything",
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
    ListedNames(
        "precision",
        "saved_values",
        "quantize-saved",
        "what",
        "nothing of it is saved that has more bits",
    ),
    ListedNames(
        "collectives",
        "keep_in",
        "regather-operands",
        "modules",
        "the same is gathered again without it",
    ),
    ListedNames(
        "offload",
        "activations",
        "offload-activations",
        "what",
        "nothing of it is saved that is not on the host anyway",
    ),
)


class IdleParts:
    """Watches the passes of a plan that may change nothing, for its own calls of passes and the settings that it says itself, at `own`."""

    def __init__(self, plan: Plan, own: Collection[Span] = ()) -> None:
        self.plan = plan
        self.needs = said_of(NEEDS, plan, own)
        self.of_passes = said_of(OF_PASSES, plan, own)
        self.decided: list[Diagnostic] = []
        self.has: set[str] = set()
        """What of `needs` the program has."""
        self.is_lowered = False
        self.changes = {call.name: False for call in plan.passes}
        """For each pass that is watched: whether the program was another one behind it."""
        self.changes |= {need.kind: False for need in self.needs if need.kind in OF_ONE_PASS}
        self.without_times = without_times(plan, own)
        self.lists = {
            each.of_pass: each
            for each in LISTS
            if getattr(plan, each.clause).unusual.get(each.setting) in own
        }
        self.names: list[Diagnostic] = []
        self.recomputes = True
        self.ran: set[str] = set()

    @contextmanager
    def watching(self, each: ModulePass, module: ModuleOp) -> Iterator[None]:
        """What runs inside is the pass."""
        others = {
            need: made_by(other, module)
            for need in self.of_passes
            if need.of_pass == each.name and is_our_class(type(each))
            if (other := replace(each, **dict(need.without))) != each
        }
        with self.watching_program(each, module):
            yield
        for need, other in others.items():
            if are_same(module, other):
                span = self.of_passes[need]
                self.decided.append(
                    Diagnostic(
                        "W0304", unchanged(title_of(need)), span, label=need.reason, help=need.help
                    )
                )

    @contextmanager
    def watching_program(self, each: ModulePass, module: ModuleOp) -> Iterator[None]:
        """The same for what the program has, or another pass would make of it."""
        if each.name == LOWERING and self.needs:
            with conditions.unrecorded():
                self.has |= set(kinds(module))
                exchanges = any(map(is_exchange, beside(module, self.plan.overlap)))
                if exchanges:
                    self.has.add(EXCHANGES)
                # Exchanges of which nothing is said take what sums do.
                device = self.plan.device
                are_alike = not (
                    device.exchange_units or ((m := device.model) and m.exchange_units)
                )
                if (exchanges and are_alike) or not all(map(is_exchange, collectives(module))):
                    self.has.add(SUMS)
                sends = sends_beside(module, self.plan)
                if sends:
                    self.has.add(MESSAGES)
                if sends or runs_beside(module, self.plan.overlap):
                    self.has.add(BESIDE)
            if self.plan.pipeline is not None and self.plan.pipeline.schedule == OVERLAPPED:
                self.has.add("ep")
            if GRADIENTS in self.has or sums_whole_gradients(self.plan):
                self.has.add(SUMMED)
            if self.plan.zero_level == 3 and leaves_a_dtype(module):
                # Weights are converted to it, gathered or not, where layers read them so.
                self.has.add(GATHERED)
            self.is_lowered = True
        if each.name in self.lists and is_our_class(type(each)):
            listed = self.lists[each.name]
            clause = getattr(self.plan, listed.clause)
            self.names += [
                Diagnostic(
                    "W0304",
                    unchanged(f"`{name}` in {title_of(listed)}"),
                    clause.place(listed.setting, name),
                    label=listed.reason,
                    help=LEAVE,
                )
                for name in idle_names(each, module, listed.parameter)
            ]
        if each.name == BEHIND_DEFER and DEFER in self.changes:
            self.changes[DEFER] = would_change(load_pass(DEFER)(), module)
        if each.name == RECOMPUTE:
            recompute, number = self.plan.recompute, sum(1 for _ in module.walk())
            said = getattr(each, "what", ()) == recompute.what and len(recompute.what) > 1
            said = said and is_our_class(type(each))
            idle = idle_names(each, module, "what", made_again_of(module)) if said else []
            yield
            self.recomputes = sum(1 for _ in module.walk()) != number
            self.names += [
                Diagnostic(
                    "W0304",
                    unchanged(f"`{name}` in `recompute`"),
                    recompute.place("what", name),
                    help=LEAVE,
                )
                for name in (idle if self.recomputes else ())
            ]
            return
        name = WITH.get(each.name, each.name)
        if name not in self.changes:
            yield
            return
        seen = parts_of if is_our_class(type(each)) else str
        before = seen(module)
        yield
        self.ran.add(name)
        self.changes[name] |= seen(module) != before

    def diagnostics(self) -> list[Diagnostic]:
        """A warning for each that changed nothing, of the passes that ran."""
        found = [*self.passes(), *self.settings(), *self.recomputing(), *self.decided, *self.names]
        places = {each.span for each in found}
        return [*found, *(each for each in self.without_times if each.span not in places)]

    def passes(self) -> Iterator[Diagnostic]:
        for call in self.plan.passes:
            if call.name in self.ran and not self.changes[call.name]:
                message = f"the pass `{call.name}` changes nothing in this plan"
                help_ = f"`--stop-after {call.name}` shows the IR that it sees; `stagec passes {call.name}` what it looks for"
                yield Diagnostic("W0703", message, call.span, help=help_)

    def settings(self) -> Iterator[Diagnostic]:
        places: list[Span | None] = []
        for need, span in self.needs.items() if self.is_lowered else ():
            is_met = self.changes[need.kind] if need.kind in OF_ONE_PASS else need.kind in self.has
            # The plan alone says that nothing is updated, or quantized.
            is_known = need.kind in (OFFLOAD_OPTIMIZER, QUANTIZE_PRODUCTS) and (
                need.kind not in self.ran
            )
            if not is_met and not is_known and span not in places:
                places.append(span)
                yield Diagnostic(
                    "W0304", unchanged(title_of(need)), span, label=need.reason, help=need.help
                )

    def recomputing(self) -> Iterator[Diagnostic]:
        if not self.recomputes:
            message = "`recompute` changes nothing here"
            label = "nothing that the backward pass reads is made by that"
            help_ = "name what makes what is saved, which `--memory` lists, or leave it out"
            yield Diagnostic("W0304", message, self.plan.recompute.span, label=label, help=help_)


AnyNeed = TypeVar("AnyNeed", ProgramNeed, PassNeed)


def said_of(
    needs: Iterable[AnyNeed], plan: Plan, own: Collection[Span]
) -> dict[AnyNeed, Span | None]:
    """The needs of settings that the plan says itself."""
    return {
        need: span
        for need in needs
        if (clause := getattr(plan, need.clause)) is not None
        and (span := clause.unusual.get(need.setting)) in own
    }


def title_of(need: ProgramNeed | PassNeed | ListedNames) -> str:
    return f"`{need.setting}` of `{need.clause}`"


def unchanged(what: str) -> str:
    return f"{what} changes nothing here"


def parts_of(module: ModuleOp) -> list[object]:
    """The ops of a module as they are, with all that they say: less work than its text, which another's pass might make anew as it was."""
    return [
        (op, *op.operands, *op.result_types, dict(op.properties), dict(op.attributes))
        for op in module.walk()
    ]


def without_times(plan: Plan, own: Collection[Span]) -> list[Diagnostic]:
    """What the plan says itself for times alone, where there are none: its device, which a command may have given it, does not say how fast it computes."""
    if plan.device.flops_per_s is not None and plan.device.memory_bytes_per_s is not None:
        return []
    help_ = "it needs a `device`, without which there are no times"
    said = [(each, "link", name) for each in plan.links for name in each.unusual]
    said += [
        (clause, field, name)
        for field, name in OF_TIMES
        if (clause := getattr(plan, field)) is not None and name in clause.unusual
    ]
    return [
        Diagnostic("W0304", unchanged(f"`{name}` of `{title}`"), clause.unusual[name], help=help_)
        for clause, title, name in said
        if clause.unusual[name] in own
    ]


OF_TIMES = (("gradients", "average"), ("gradients", "check"), ("zero", "copies"))
"""Settings, beside those of links, that only times depend on."""


Seen = Callable[[ModulePass], object]


def idle_names(
    each: ModulePass, module: ModuleOp, parameter: str, seen: Seen = lambda each: None
) -> list[str]:
    """The names of a pass without which, and without those found before, it makes the same program.

    Where what is `seen` of the pass is another without a name, the program is another, and need not be made.
    """
    left: tuple[str, ...] = getattr(each, parameter)
    of_all = seen(each)
    whole: list[ModuleOp | None] = []
    found: list[str] = []
    for place in reversed(range(len(left))):
        others = left[:place] + left[place + 1 :]
        other = replace(each, **{parameter: others})
        if seen(other) != of_all:
            continue
        whole = whole or [made_by(each, module)]
        if are_same(made_by(other, module), whole[0]):
            found.append(left[place])
            left = others
    return found


def made_again_of(module: ModuleOp) -> Seen:
    """What `recompute-activations` makes again of what the backward pass reads, which reads all else as it was saved."""
    parts: list[tuple[list[Operation], bool, set[SSAValue]]] = []
    for program in programs(module):
        for level in levels_of(program):
            ops = level.forward_ops()
            made = {result for op in ops for result in op.results}
            read = {value for _, _, _, value in level.reads_of(made)}
            parts.append((ops, level.outer is not None, read))

    def seen(each: ModulePass) -> set[SSAValue]:
        choice = Choice(getattr(each, "what", ()), getattr(each, "modules", ()))
        return {
            value
            for ops, is_repeated, read in parts
            for value in choice.dropped(ops, is_repeated).values & read
        }

    return seen


def made_by(each: ModulePass, module: ModuleOp) -> ModuleOp | None:
    """The program that a pass would make; none where it would be an error, which is a difference too, and of which a sweep has a condition."""
    tried = module.clone()
    try:
        with conditions.unrecorded():
            each.apply(Context(), tried)
    except CompileError:
        return None
    return tried


def are_same(one: ModuleOp | None, other: ModuleOp | None) -> bool:
    """Whether two programs are there, and are the same but for places in the text."""
    return one is not None and other is not None and one.is_structurally_equivalent(other)


def would_change(left_out: ModulePass, module: ModuleOp) -> bool:
    """Whether a pass that does not run would make another program of it."""
    return not are_same(made_by(left_out, module), module)


READ_LOGITS = (*stg.LOSSES, stg.MaxLogitOp)
"""What reads logits first, whole or in steps of a split vocabulary."""


def leaves_a_dtype(module: ModuleOp) -> bool:
    """Whether the text leaves the dtype of a weight to the plan."""
    return any(isinstance(op, stg.WeightOp) and op.own is None for op in module.walk())


def runs_beside(module: ModuleOp, overlap: Overlap) -> bool:
    """Whether there is a collective for which products leave no multiprocessors, and which may run beside them."""
    goes_on = multiplies_later(module)
    return any(
        "leaves_units" not in stg.marks(op) and (goes_on or not is_behind_backward(op))
        for op in beside(module, overlap)
    )


def collectives(module: ModuleOp) -> Iterator[Operation]:
    """The collectives of several ranks."""
    mesh = mesh_of(module)
    kinds = (dist.CollectiveBase, dist.StorageOp, dist.RotateOp, dist.GatherBlocksOp)
    found = (op for op in module.walk() if isinstance(op, kinds))
    return (op for op in found if any(conditions.is_split(axis, mesh) for axis in op.axes.data))


def beside(module: ModuleOp, overlap: Overlap) -> Iterator[Operation]:
    """The collectives that computation does not wait for as they begin."""
    contexts = Contexts.of(module).axes()
    for op in collectives(module):
        if getattr(overlap, communication_kind(op, contexts)) and "serial" not in stg.marks(op):
            yield op


def sends_beside(module: ModuleOp, plan: Plan) -> bool:
    """Whether there are messages around a ring, or between stages of a pipeline, that computation does not wait for as they begin."""
    mesh, contexts = mesh_of(module), Contexts.of(module).axes()
    stages = [plan.pipeline.axis] if plan.pipeline is not None else []
    return any(
        isinstance(op, dist.SendOp | dist.StageSendOp)
        and getattr(plan.overlap, communication_kind(op, contexts))
        and any(
            conditions.is_split(axis, mesh)
            for axis in (op.axes.data if isinstance(op, dist.SendOp) else stages)
        )
        for op in module.walk()
    )


def is_exchange(op: Operation) -> bool:
    """An all-to-all, which a ring may rotate by, too."""
    return isinstance(op, dist.AllToAllOp | dist.RotateOp)


def multiplies_later(module: ModuleOp) -> bool:
    """Whether a rank has products when the backward pass of a stage is done: of another stage that it has, or of the update."""
    updates = (stg.OrthogonalizeOp, stg.PreconditionOp)
    return any(
        isinstance(op, updates)
        or (isinstance(op, sched.ScheduleOp) and op.virtual_stages.value.data > 1)
        for op in module.walk()
    )


def is_behind_backward(op: Operation) -> bool:
    """Whether a collective comes when all microbatches are done: with the update, or as a reduction that is late."""
    phase = stg.phase_of(op)
    is_late = phase == "grad_reduce" and "late" in stg.marks(op)
    return phase == "optim" or (
        is_late and not any(isinstance(each, stg.AccumulateOp) for each in around(op))
    )


def kinds(module: ModuleOp) -> Iterator[str]:
    """What a program has, of what settings are about."""
    mesh, contexts = mesh_of(module), Contexts.of(module).axes()
    is_left = leaves_a_dtype(module)
    sizes: dict[str, int] = {}
    for op in module.walk():
        axes = op.axes.data if isinstance(op, dist.CollectiveBase | dist.StorageOp) else ()
        if axes and all(mesh.get(axis) == 1 for axis in axes):  # `all_pools` is no axis
            continue
        kind = communication_kind(op, contexts)
        yield kind
        if kind == "tp" and "serial" not in stg.marks(op):
            yield NOT_AWAITED
        if isinstance(op, REDUCED):
            yield GRADIENTS
        if isinstance(op, stg.WeightOp) and op.persistent is not None:
            yield PERSISTENT
        if isinstance(op, stg.DispatchOp):
            yield EXPERTS
        if isinstance(op, dist.UnshardOp) and is_left:
            yield GATHERED
        if isinstance(op, dist.StateOp) and tensor_of(op.state.type).dtype == EIGHT_BIT:
            yield IN_EIGHT_BITS
        if isinstance(op, stg.OptimizerStepOp) and op.states.data == EIGHT_BIT:
            sizes = sizes or size_values(module)
            small = (at_first(is_small(weight), sizes).evaluate(sizes) for weight in op.weights)
            if not all(small):
                yield IN_EIGHT_BITS
        if isinstance(op, stg.OptimizerStepOp) and op.copies is not None:
            narrow = any(DTYPE_BITS[tensor_of(each.type).dtype] < 32 for each in op.gradients)
            if narrow or op.master is not None:
                yield NARROW
        if isinstance(op, stg.RmsNormOp | stg.LayerNormOp):
            readers = [use.operation for use in op.results[0].uses]
            if readers and all(isinstance(each, stg.QuantizeOp) for each in readers):
                yield NORMED
        # A conversion in the model's text has a place of its own.
        if isinstance(op, stg.CastOp) and any(
            isinstance(use.operation, READ_LOGITS) and use.operation.location == op.location
            for use in op.result.uses
        ):
            yield CONVERTED
