"""Running passes: which there are, one after the other with the verifier between them, to where one stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from stagec.analysis.plug_in_attributes import attributes_in, mistakes_of_attributes
from stagec.analysis.plug_in_ops import check_answers
from stagec.analysis.sequences import check_alike
from stagec.analysis.sizes import dim_sizes, mesh_of, size_values
from stagec.analysis.stated_sizes import check_stated
from stagec.diagnostics import CompileError, Diagnostic, quoted, refused, span_of, suggestion
from stagec.dialects import dist, stg
from stagec.dialects.op import is_our_class
from stagec.ir_text import Verifier, place_of, verify_order
from stagec.plans.clauses import Argument, Plan
from stagec.plans.in_ir import check_plan, read_plan, stated_plan
from stagec.plugins import written_passes
from stagec.rewriting import output_of, programs
from stagec.symbolic import NoNumberError, conditions
from stagec.symbolic.conditions import unread, unrecorded
from stagec.unrolling.checks import check_module
from stagec.unrolling.module import KeepsRows, UnrollingContext, made_of

PassLoader = Callable[[str, Mapping[str, Argument]], ModulePass]
"""Makes a pass from its name and its arguments."""


Watching = Callable[[ModulePass, ModuleOp], AbstractContextManager[None]]


def not_watched(each: ModulePass, module: ModuleOp) -> AbstractContextManager[None]:
    return nullcontext()


PLACE_BUFFERS = "place-buffers"


@dataclass(frozen=True)
class Stops:
    """Where to stop, and what to do on the way."""

    after: str | None = None
    """A pass' name, or `lower` for the IR of the frontend."""
    on_pass: Callable[[str, ModuleOp], None] | None = None
    """Told the IR after each pass."""
    unroll: bool = True
    """Whether trace programs are made of what the last pass leaves."""
    verify: bool = True
    """Whether IR is held against its rules: after passes that are not ours, after each where ops are not ours (our passes ask them for
    gradients, and for what they lower to), after the last one, and after each where somebody looks at what it leaves. Doing so after all
    of ours is half of a compilation's time. A search, which compiles hundreds of plans on the way, verifies those that it proposes. Nor is
    it looked then for what changes nothing."""

    shows_each: bool = False
    """Whether somebody is shown what each pass leaves."""
    places_buffers: bool = False
    """Whether buffers are given offsets, which no trace depends on."""

    @property
    def further(self) -> tuple[str, ...]:
        """The passes that run because somebody asks for what they find."""
        is_asked = self.places_buffers or self.after == PLACE_BUFFERS
        return (PLACE_BUFFERS,) if is_asked else ()

    def verifies(self, is_last: bool, is_all_ours: bool) -> bool:
        """Whether IR is held against its rules after a pass: `is_all_ours` where the pass, and all ops before and after it, are."""
        looked_at = self.after is not None or self.shows_each
        return self.verify and (is_last or looked_at or not is_all_ours)


def write_down(module: ModuleOp, plan: dist.PlanOp, passes: Sequence[ModulePass]) -> None:
    """Let the module say all that its compilation depends on: the plan, and the passes to come."""
    first = module.body.block.first_op
    assert first is not None, "a module has a program"
    texts = ArrayAttr(StringAttr(str(each.pipeline_pass_spec())) for each in passes)
    module.body.block.insert_ops_before([plan, dist.PassesOp(texts)], first)


def remaining_passes(module: ModuleOp, load_pass: PassLoader) -> list[ModulePass]:
    """The passes that a module has before it."""
    made: list[ModulePass] = []
    for op in module.body.ops:
        if isinstance(op, dist.PassesOp):
            for each in written_passes(",".join(op.texts)):
                try:
                    made.append(each.made(load_pass))
                except CompileError as error:
                    found = [replace(d, span=span_of(op.location)) for d in error.diagnostics]
                    raise CompileError(found) from error
    return made


def check_whole(module: ModuleOp, load_pass: PassLoader) -> tuple[Plan, list[ModulePass]]:
    """Check that one can go on from IR which verifies: its plan, and the passes that it has before it. What ops say of one another is E0709."""
    check_stated(module)
    check_module(module)
    plan = read_plan(stated_plan(module), mesh_of(module))
    check_plan(module, stated_plan(module), plan)
    for program in programs(module):
        output_of(program)
    return plan, remaining_passes(module, load_pass)


def plan_passes(plan: Plan, load_pass: PassLoader) -> list[ModulePass]:
    """The third-party passes that a plan calls."""
    made: list[ModulePass] = []
    found: list[Diagnostic] = []
    for call in plan.passes:
        try:
            made.append(load_pass(call.name, call.arguments))
        except CompileError as error:
            found += [replace(d, span=call.span) for d in error.diagnostics]
    if found:
        raise CompileError(found)
    return made


AXES = ("axis", "axes")
DIMS = ("dim", "dims", "scatter")
MODULES = ("module", "modules")
"""What a pass calls a parameter that names an axis of the mesh, a dim, a module: one that is not there would change nothing."""


def check_names(module: ModuleOp, plan: Plan) -> None:
    """E0705 for an argument of a plan's pass that names nothing of the model or the mesh."""
    if not plan.passes:
        return
    axes = [*mesh_of(module), *plan.products]
    modules = list(dict.fromkeys(name for op in module.walk() for name in scopes(op)))
    kinds = {
        **dict.fromkeys(AXES, ("axis of the mesh", axes)),
        **dict.fromkeys(DIMS, ("dim", list(dim_sizes(module)))),
        **dict.fromkeys(MODULES, ("module", modules)),
    }
    found: list[Diagnostic] = []
    for call in plan.passes:
        for key in sorted(call.arguments.keys() & kinds.keys()):
            what, known = kinds[key]
            value = call.arguments[key]
            for name in value if isinstance(value, tuple) else (value,):
                if isinstance(name, str) and name and name not in known:
                    message = (
                        f"the pass `{call.name}` is given the {what} `{name}`, which does not exist"
                    )
                    help_ = suggestion(name, known)
                    found.append(Diagnostic("E0705", message, call.span, help=help_))
    if found:
        raise CompileError(found)


def scopes(op: Operation) -> list[str]:
    """The modules that an op of the model is in: `Block`, `Attention` and `Block.Attention`."""
    path = stg.text(op, "scope")
    parts = path.split(".") if path else []
    return [path, *parts] if path else []


def check_stop(stops: Stops, passes: Sequence[ModulePass]) -> None:
    """A `--stop-after` that never comes is a mistake."""
    names = [p.name for p in passes]
    if stops.after is not None and stops.after not in names:
        raise refused(
            "E0706",
            f"`{stops.after}` is not a pass of this compilation",
            origin=f"--stop-after {stops.after}",
            help=f"its passes are {', '.join(['lower', *names])}",
        )


def run_passes(
    module: ModuleOp,
    passes: Sequence[ModulePass],
    stops: Stops,
    watching: Watching = not_watched,
    context: UnrollingContext | None = None,
) -> bool:
    """Run the passes, each while somebody is `watching`; whether it stopped at the one asked for. `context` keeps what the last of them unrolled."""
    context, verifier = context or UnrollingContext(), Verifier()
    others = ops_of_others(module)
    if others and stops.verify:
        check_others(module)
    for each in passes:
        promised = made_of(module) if isinstance(each, KeepsRows) and not is_ours(each) else None
        with watching(each, module):
            apply_pass(each, context, module)
        if promised is not None and made_of(module) != promised:
            raise CompileError([broken_promise(each, module)])
        context.after(each)
        take_off(module, each.name)
        if not is_ours(each):
            others = ops_of_others(module)
        if stops.verifies(each is passes[-1], is_ours(each) and not others):
            verify(module, each, others, verifier)
        if told(stops, each.name, module):
            return True
    return False


NEEDED: tuple[type[Operation], ...] = (stg.ProgramOp, dist.MeshOp, dist.PlanOp, dist.PassesOp)
"""What a module never is without, once it has it."""


def apply_pass(each: ModulePass, context: Context, module: ModuleOp) -> None:
    """Run a pass. E0208 where the IR names a size that it has not, E0713 where somebody else's gives an op what is no attribute."""
    before = {type(op) for op in module.body.ops}
    attributes = None if is_ours(each) else attributes_in(module)
    try:
        each.apply(context, module)
    except SystemExit as error:
        raise RuntimeError("it ends the whole run: `sys.exit`") from error
    except NoNumberError as error:
        notes = [f"in the pass `{each.name}`"]
        help_ = "each name of a size is a `stg.dim`, or an axis of `dist.mesh`"
        raise refused("E0208", str(error), place_of(module), notes=notes, help=help_) from error
    gone = (before & set(NEEDED)) - {type(op) for op in module.body.ops}
    if gone:
        message = f"the pass `{each.name}` took the module's {quoted(sorted(kind.name for kind in gone))} away"
        help_ = "leave them there, beside the program that the pass changes"
        raise refused("E0709", message, place_of(module), help=help_)
    if attributes is not None:
        for op, what in mistakes_of_attributes(module, attributes):
            message, help_ = f"the pass `{each.name}` gives {what}", "give it an attribute of xDSL"
            raise refused("E0713", message, place_of(op), help=help_)


def broken_promise(each: ModulePass, module: ModuleOp) -> Diagnostic:
    """E0723: what others have unrolled would not be true any more."""
    message = f"the pass `{each.name}` is `KeepsRows`, and changed what rows are made of"
    help_ = "leave `KeepsRows` out of its bases: rows are made again behind it"
    return Diagnostic("E0723", message, place_of(module), help=help_)


def take_off(module: ModuleOp, name: str) -> None:
    """A pass that has run is none to come."""
    for op in module.body.ops:
        if type(op) is dist.PassesOp and op.passes.data:
            first, *rest = op.passes.data
            if first.data.partition("{")[0] == name:
                op.passes = ArrayAttr(rest)


def is_ours(each: ModulePass | Operation) -> bool:
    return is_our_class(type(each))


def ops_of_others(module: ModuleOp) -> list[str]:
    """The names of a module's ops that a plug-in brought."""
    return sorted({op.name for op in module.walk() if not is_ours(op)})


def check_others(module: ModuleOp) -> None:
    """E0713 for what ops of plug-ins answer that cannot be."""
    found = [op for op in module.walk() if isinstance(op, stg.TensorOp) and not is_ours(op)]
    if found:
        with unrecorded():
            values = unread(size_values(module))
        for op in found:
            check_answers(op, values)


def verify(module: ModuleOp, after: ModulePass, others: Sequence[str], verifier: Verifier) -> None:
    """IR that does not verify is the mistake of a pass, or of an op that our passes ask: where all are ours, it is no user's."""
    try:
        check_others(module)
        verifier.verify(module)
        verify_order(module)
        if not is_ours(after):
            check_stated(module)
            check_module(module)
    except CompileError as error:
        assert others or not is_ours(after), f"`{after.name}` leaves what does not verify: {error}"
        notes = [f"after the pass `{after.name}`"]
        if is_ours(after):
            notes.append(f"which asks ops of plug-ins what they become: {quoted(others)}")
        culprit = "the ops" if is_ours(after) else "the pass"
        help_ = (
            f"mend {culprit}: `stagec-opt -p` runs a pass alone, on IR that `--stop-after` prints"
        )
        raise CompileError(
            [replace(d, notes=notes, help=d.helps or help_) for d in error.diagnostics]
        ) from error


def told(stops: Stops, name: str, module: ModuleOp) -> bool:
    if stops.on_pass is not None:
        stops.on_pass(name, module)
    return stops.after == name


LAST_OF_STRUCTURE = "lower-to-tasks"
"""The last pass that makes ops. Those behind it put them in rows, which follow from how many layers there are."""


def with_notes_closed(stops: Stops, numbers: Sequence[int]) -> Stops:
    """After the structure is made, nothing more is noted of sizes: what was has to hold for all devices and iterations, of which these have `numbers`."""
    asked, on_pass = conditions.recorder(), stops.on_pass
    if asked is None:
        return stops

    def passed(name: str, module: ModuleOp) -> None:
        if name == LAST_OF_STRUCTURE:
            with conditions.unrecorded():
                check_alike(module, asked, numbers)
            asked.is_closed = True
        if on_pass is not None:
            on_pass(name, module)

    return replace(stops, on_pass=passed)
