"""What `stagec search` prints and writes: the best plans, why each is better than the next, and what the answer hangs on."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, islice, pairwise
from math import ceil, inf
from pathlib import Path

from stagec.backend.executors import open_executor
from stagec.backend.files import write_whole
from stagec.backend.running_tasks import run_tasks
from stagec.cli.device_flags import InText, of_flag
from stagec.cli.inputs import read_text
from stagec.cli.progress import counting_progress
from stagec.cli.solve_page import CONDITION, SECONDS, bound
from stagec.cli.tables import plain_table, seconds, text_of
from stagec.cli.usage import usage_error
from stagec.devices import names
from stagec.diagnostics import (
    CompileError,
    Diagnostic,
    Span,
    in_all,
    quoted,
    refused,
    render,
    suggestion,
)
from stagec.frontend import CheckedModel, Source, check, parse_text, syntax as written
from stagec.frontend.checker import pools_in
from stagec.frontend.numbers import names_in
from stagec.frontend.printing import text_of as clause_text
from stagec.pictures.scales import amount
from stagec.plans.clause_text import name_text, written as written_clause
from stagec.plans.clauses import Device
from stagec.reports.plans_chart import plans_page
from stagec.searching.candidates import STATE_TOO_LARGE, TOO_LARGE, TOO_LATE, Candidates
from stagec.searching.changes import changes
from stagec.searching.evaluation import NAME, source_with
from stagec.searching.model import ModelDims, read_model
from stagec.searching.objective import TOKENS, asks_time, objective, rises
from stagec.searching.results import Goal, Outcome, Proved, compare
from stagec.searching.search import Search
from stagec.searching.sensitivity import DEVICE_NUMBERS
from stagec.searching.serving_space import ServedIteration, serving_space
from stagec.searching.space import (
    NAMES,
    SERVING_NAMES,
    Point,
    Space,
    default_space,
    fix,
    forbid,
    is_file,
    nearest_batch,
    points,
    read_space,
    word_of,
)
from stagec.searching.texts import LINKED, axis_of_link
from stagec.searching.whole_plans import (
    IdleSetting,
    WholePlan,
    compiled_whole,
    without_memory,
)
from stagec.simulators.infragraph import on_network
from stagec.sweeping.run import PEAK, STEP_TIME
from stagec.trust import as_here

FIRST = (
    *("tp", "dcp", "combine", "cp", "pp", "dp", "ep", "batch", "microbatches", "microbatch"),
    *("schedule", "zero", "recompute"),
)
SHOWN = ("devices", *FIRST, *(name for name in NAMES if name not in FIRST))
MOST_REASONS = 8
TOO_MUCH = {STATE_TOO_LARGE, TOO_LARGE, TOO_LATE}
"""Reasons for which plans that compile are left out."""
MOST_FEWER = 1000
"""Devices fewer than asked for, of which a plan is looked for where there is none."""
NETWORK_NUMBERS = (
    "node",
    "link_bytes_per_s",
    "link_latency_us",
    "network_bytes_per_s",
    "network_latency_us",
)
CHOSEN = {
    "context": 'write `context = ["ring"]`, or `dcp = [2]` of plans that serve',
    "device": "say it with `--device`",
    "mesh": "write `tp = [2]`, and `cp`, `pp` and `ep` so too",
    "microbatch": "write `microbatch = [1, 2]`",
    "pipeline": 'write `pp = [4]` and `schedule = ["1f1b"]`',
    "zero": "write `zero = [1, 3]`",
}
"""Clauses that a search writes, or cannot write, and what to do instead."""
OF_THE_MODEL = {"freeze", "recompute", "unit"}
"""Clauses that name modules, weights and values."""
OF_TRAINING = {"freeze", "gradients"}
"""Clauses that say what has gradients: the first layer of a repeat is one by itself where its input alone has none."""
ONE_MESH = "a search has plans of one mesh"
PLANNED = ("tp", "cp", "pp", "dp", "ep", "edp")
"""Axes of most plans."""
TESTED = 3
"""Plans whose times are told for other devices."""


def show_search(options: argparse.Namespace) -> int:
    text = read_text(options.model)
    source = parse_text(text, options.model)
    if options.like is not None:
        return show_changes(options, text, source)
    if options.network is not None:
        options.device = device_of_network(options, text)
    if options.plug_ins.warnings:
        sys.stderr.write(render(options.plug_ins.warnings))
    check_names(options, source)
    checked = probed(options, text)
    dims = read_model(checked)
    device = checked.plan.device
    check_numbers(options, device)
    clauses = clauses_of(options)
    check_clauses(options, text, clauses)
    if trained := [clause for clause in clauses if word_of(clause) in OF_TRAINING]:
        dims = read_model(probed(options, text, *trained))
    iteration = iteration_of(options, text, dims, clauses)
    if options.minimise is None:
        options.minimise = "step_time" if iteration is None else "token_cost"
    batch = dims.values[dims.batch] if dims.batch else 1
    tokens = dims.values[dims.sequence[0]] if dims.sequence else 1
    if options.batch is not None:
        if dims.batch in options.sizes:
            message = f"the batch is said twice, by `--batch` and by `--set {dims.batch}`"
            raise usage_error(f"--batch {options.batch}", message, "E0711", "leave out one")
        if iteration is not None and not iteration.batch:
            message = "`serve` says how many sequences there are"
            help_ = f"write `decode {dims.batch} at 1500`, or leave out `--batch`"
            raise usage_error(f"--batch {options.batch}", message, "E0711", help_)
        if iteration is not None and "tokens" in options.batch:
            message = "an iteration serves a number of sequences"
            raise usage_error(f"--batch {options.batch}", message, "E0710", "write `--batch 128`")
        batch = batch_of(options.batch, tokens)
    spaces = [
        space_of(options, checked, dims, count, clauses, iteration) for count in options.numbers
    ]
    if iteration is None:
        tell_frozen(spaces[0], source, clauses)
    if iteration is not None and (options.batch is not None or dims.batch in options.sizes):
        for space in spaces:
            space.values["batch"] = (batch,)
    memory, within = limits_of(options, checked)
    goal = Goal(
        file=options.model,
        text=text,
        dims=dims,
        devices=options.numbers,
        batch=batch,
        clauses=(*clauses, f"device {options.device}"),
        memory=memory,
        minimised=objective(options.minimise),
        top=options.top,
        overrides=tuple(options.sizes.items()),
        plug_ins=tuple(options.load_pass),
        beside=json.dumps(
            [sorted(checked.source.texts.items()), repr(device), texts_of(options, clauses, spaces)]
        ),
        wants_front=options.plot is not None and iteration is None,
        tested=TESTED,
        rises=rises(options.minimise),
        is_timed=asks_time(options.minimise)
        or not rises(options.minimise)
        or within < inf
        or options.plot is not None
        or iteration is not None,
        tokens=batch * tokens,
        iteration=iteration,
        within=within,
    )
    cache = Path(options.cache) if options.cache else None
    with (
        counting_progress(options.quiet, "searching", "plans") as progress,
        open_executor(options.executor) as executor,
    ):
        told = (lambda stage, *numbers: progress(*numbers, stage)) if progress else None
        search = Search(goal, spaces, executor, cache, told, on_interrupt=tell_interrupted)
        outcome = search.run()
    first = outcome.proved[:TESTED]
    tested = first if all(each.with_twice for each in first) else []
    tell_idle(options, clauses, [each.idle for each in outcome.proved])
    if options.output and outcome.proved:
        write_whole(options.output, plans_text(options, outcome.proved).encode())
    if options.plot:
        plot(options, goal, search.candidates)
    if options.format == "json":
        sys.stdout.write(as_json(options, outcome, tested))
    else:
        sys.stdout.write(page(options, goal, outcome, tested))
        if not outcome.num_points and iteration is None and not outcome.interrupted:
            space_at = partial(space_of, options, checked, dims, clauses=clauses, iteration=None)
            for number in options.numbers:
                sys.stdout.write(nearest_with_plans(space_at, dims, number, batch))
    return 0 if outcome.proved else 1


def tell_interrupted() -> None:
    """Say what follows Ctrl-C."""
    sys.stderr.write("\nnote: the best plans so far are compiled; Ctrl-C once more ends that\n")


def device_of_network(options: argparse.Namespace, text: str) -> str:
    """What `--device` says, with the nodes and links of `--network`. E0419 for a network that has no nodes of one size, or too few devices."""
    plan = probed(options, text, f"mesh ranks_of_network = {max(options.numbers)}").plan
    known, device = plan.device, on_network(plan, options.network).device
    if device is known:
        message = (
            "the network joins no devices into nodes, and links of single axes belong to a plan"
        )
        help_ = "leave `--network` out, and say links in `--device`: `h100 { network_bytes_per_s = 50e9 }`"
        raise usage_error(f"--network {options.network}", message, "E0419", help_)
    numbers = {name: getattr(device, name) for name in NETWORK_NUMBERS}
    others = {n: x for n, x in numbers.items() if x is not None and x != getattr(known, n)}
    return written_clause(name_text(known.preset or ""), known, **others)


def probed(options: argparse.Namespace, text: str, *clauses: str) -> CheckedModel:
    """The model under a plan with nothing but the device and these clauses. E0710 for a device that there is not."""
    functions = options.plug_ins.functions
    # Whatever is wrong with the model; the plans of the file are none of a search's.
    check(source_with(text, f"plan {NAME} {{ }}\n", options.model), NAME, options.sizes, functions)
    lines = "".join(f"  {each}\n" for each in (*clauses, f"device {options.device}"))
    plan = f"plan {NAME} {{\n{lines}}}\n"
    return with_device(options, text, plan)


def with_device(options: argparse.Namespace, text: str, plan: str) -> CheckedModel:
    """The model under a plan with the device that is asked for. E0710 for one that there is not."""
    functions = options.plug_ins.functions
    whole, said = f"{text}\n{plan}", options.device
    try:
        return check(parse_text(whole, options.model), NAME, options.sizes, functions)
    except CompileError as error:
        if said is None:
            raise
        raise of_flag(error, InText(said, 0, whole, whole.rindex(said))) from None


def check_names(options: argparse.Namespace, source: Source) -> None:
    """E0710 for names of the text that a search gives to what it makes."""
    items = (item for program in source.files.values() for item in program.items)
    dims = {item.name.text for item in items if isinstance(item, written.Dim)}
    taken = [f"`{name}` is a dim, and axes" for name in PLANNED if name in dims]
    taken += [f"`{NAME}` is a plan, and the plans" for name in plans_of(source) if name == NAME]
    if taken:
        message = f"{taken[0]} of a search are called so"
        raise usage_error(options.model, message, "E0710", "give it another name in the text")


def plans_of(source: Source) -> list[str]:
    """The names of a file's own plans."""
    items = source.files[source.file].items
    return [item.name.text for item in items if isinstance(item, written.Plan)]


def texts_of(
    options: argparse.Namespace, clauses: Sequence[str], spaces: Sequence[Space]
) -> list[str]:
    """The texts of the files of plug-ins, and of those that plans name: a schedule of the user's own, or what a clause has in quotes."""
    schedules = [str(s) for each in spaces for s in each.values.get("schedule", ()) if is_file(s)]
    named = [schedule.partition(":")[0] for schedule in schedules]
    named += [name for clause in clauses for name in re.findall(r'"([^"]+)"', clause)]
    files = [Path(options.model).parent / name for name in dict.fromkeys(named)]
    return [*map(read_text, options.load_pass), *(read_text(str(f)) for f in files if f.is_file())]


def check_numbers(options: argparse.Namespace, device: Device) -> None:
    """E0410 for a device of which no time is known."""
    wanted = ["flops_per_s", "memory_bytes_per_s"]
    wanted += ["link_bytes_per_s"] if max(options.numbers) > 1 else []
    missing = [name for name in wanted if getattr(device, name) is None]
    if missing:
        message = f"how long a step takes depends on the device's {quoted(missing, 'and')}"
        settings = ", ".join(f"{name} = ..." for name in missing)
        help_ = f"add `{settings}`, or name a device: {quoted(names())}"
        raise usage_error(f"--device {options.device}", message, "E0410", help_)


def tell_idle(
    options: argparse.Namespace, clauses: Sequence[str], plans: Sequence[Sequence[IdleSetting]]
) -> None:
    """W0304 for what the command says of all plans, and changes nothing in any of those that were compiled whole."""
    said = {clause: f"--clause {clause}" for clause in clauses if clause in options.clause}
    said |= {clause: origin_of(options, clause) for clause in clauses if clause not in said}
    if options.device is not None:
        said[f"device {options.device}"] = f"--device {options.device}"
    found: list[Diagnostic] = []
    for each in in_all(plans, lambda each: (each.message, each.line)):
        clause = next((clause for clause in said if each.line in clause), None)
        if clause is None:
            continue
        flag = said[clause]
        is_shown = flag.endswith(clause)
        start = len(flag) - len(clause) + clause.index(each.line) + each.start
        ends = (start, start + each.end - each.start) if is_shown else ()
        place = Span.flag(re.sub(r"\s", " ", flag), *ends)
        found.append(Diagnostic("W0304", each.message, place, each.label, help=each.help))
    sys.stderr.write(render(found))


def check_clauses(options: argparse.Namespace, text: str, clauses: Sequence[str]) -> None:
    """E0710 for what a space says of all plans, and no plan can say."""
    for clause in clauses:
        try:
            source = parse_text(f"{text}\nplan {NAME} {{\n{clause}\n}}\n", options.model)
        except CompileError as error:
            message = f"`{clause}` is no clause of a plan: {error.diagnostics[0].message}"
            help_ = "; ".join(error.diagnostics[0].helps) or "write a clause as a plan has it"
            raise usage_error(origin_of(options, clause), message, "E0710", help_) from None
        plan = source.files[source.file].items[-1]
        if isinstance(plan, written.Plan) and (number := len(plan.clauses)) != 1:
            message = f"`{clause}` is {number or 'no'} clause{'s' * (number > 1)} of a plan"
            help_ = "give each by itself, as in `--clause 'freeze embed' --clause 'optimizer sgd'`"
            raise usage_error(origin_of(options, clause), message, "E0710", help_)
        word = word_of(clause)
        if word == "pool":
            message = f"`{clause}` is a mesh of its own, and {ONE_MESH}"
            raise usage_error(origin_of(options, clause), message, "E0710", "leave it out")
        if word in CHOSEN:
            message = f"`{clause}` says what a search chooses: `{word}` stands in each of its plans"
            raise usage_error(origin_of(options, clause), message, "E0710", CHOSEN[word])
        if (axis := axis_of_link(clause)) not in ("", *LINKED):
            message = f"`{axis}` is no axis that plans of a search have links along"
            help_ = suggestion(axis, LINKED)
            raise usage_error(origin_of(options, clause), message, "E0710", help_)
        if word in OF_THE_MODEL:
            check_of_the_model(options, text, clause)


def check_of_the_model(options: argparse.Namespace, text: str, clause: str) -> None:
    """E0710 for a clause that names what the model does not have, whatever the mesh."""
    plan = parse_text(f"{text}\nplan {NAME} {{\n{clause}\n}}\n", options.model)
    try:
        check(plan, NAME, options.sizes, options.plug_ins.functions)
    except CompileError as error:
        first = error.diagnostics[0]
        origin = origin_of(options, clause)
        raise usage_error(origin, first.message, "E0710", "; ".join(first.helps)) from None


def tell_frozen(space: Space, source: Source, clauses: Sequence[str]) -> None:
    """Say that a plan of the file freezes weights, where those of the search do not."""
    if any(word_of(clause) == "freeze" for clause in clauses):
        return
    for item in source.files[source.file].items:
        if not isinstance(item, written.Plan):
            continue
        for clause in item.clauses:
            text = clause_text(clause)
            if isinstance(clause, written.Freeze) and text != "freeze none":
                why = f"`{item.name}` has `{text}`, and here all is trained unless you add `--clause '{text}'`"
                space.untried["freeze"] = why
                return


def origin_of(options: argparse.Namespace, clause: str) -> str:
    """The flag that a clause of all plans comes from."""
    return f"--clause {clause!r}" if clause in options.clause else f"--space {options.space}"


def clauses_of(options: argparse.Namespace) -> tuple[str, ...]:
    """The clauses of every plan, as `--clause` and the file of `--space` state them."""
    space = Space({}, names={**NAMES, **SERVING_NAMES})
    if options.space:
        read_space(space, read_text(options.space), options.space)
    return (*space.clauses, *options.clause)


def iteration_of(
    options: argparse.Namespace, text: str, dims: ModelDims, clauses: Sequence[str]
) -> ServedIteration | None:
    """What plans serve. The mistake if they cannot."""
    served = [each for each in clauses if word_of(each) == "serve"]
    if not served:
        return None
    if len(served) > 1:
        message, help_ = "`serve` is said twice", "leave out one"
        raise usage_error(origin_of(options, served[1]), message, "E0711", help_)
    entries = entries_of(served[0])
    if any(isinstance(e, written.Setting) and e.name.text == "microbatches" for e in entries):
        message = "`microbatches` is what a search chooses, and `serve` says it of all plans"
        help_ = "leave it out; `--fix microbatches=2` has plans of that number alone"
        raise usage_error(origin_of(options, served[0]), message, "E0711", help_)
    batch = dims.batch if dims.batch in names_of_counts(served[0]) else ""

    def checked_at(size: int, beside: str = "") -> CheckedModel:
        sized = f"set {batch} = {size}\n" if batch and size else ""
        axis = axis_of_link(beside)
        mesh = f"mesh {axis} = 1\n" if axis else ""
        plan = f"plan {NAME} {{\n{sized}{mesh}{served[0]}\n{beside}\n}}\n"
        source = source_with(text, plan, options.model)
        return check(source, NAME, options.sizes, options.plug_ins.functions)

    size = 0
    for each in ("", *(clause for clause in clauses if clause not in served)):
        try:
            try:
                checked_at(size, each)
            except CompileError:
                # What the text says of its batch need be nothing that experts divide.
                size = next(filter(partial(is_right, checked_at), SIZES if batch else ()), size)
                checked_at(size, each)
        except CompileError as error:
            first = error.diagnostics[0]
            origin = origin_of(options, each or served[0])
            raise refused(first.code, first.message, origin=origin, help=first.help) from None
    return ServedIteration(served[0], batch, checked_at, size)


def entries_of(clause: str) -> list[written.Prefill | written.Decode | written.Setting]:
    """What a `serve` clause says; nothing of `serve none`."""
    (item,) = parse_text(f"plan {NAME} {{\n{clause}\n}}\n", "").files[""].items
    assert isinstance(item, written.Plan)
    served = [each.what for each in item.clauses if isinstance(each, written.Serve)]
    return [e for what in served if isinstance(what, written.Served) for e in what.entries]


def names_of_counts(clause: str) -> list[str]:
    """The names by which a `serve` clause says how many sequences there are."""
    entries = entries_of(clause)
    counts = [e.count for e in entries if isinstance(e, written.Prefill | written.Decode)]
    return [name for count in counts for name in names_in(count)]


SIZES = tuple(2**n for n in range(18))


def is_right(checked_at: Callable[[int], CheckedModel], size: int) -> bool:
    try:
        checked_at(size)
    except CompileError:
        return False
    return True


def limits_of(options: argparse.Namespace, checked: CheckedModel) -> tuple[int | None, float]:
    """Bytes and seconds that a plan may take at most. E0710 for a limit of something else."""
    memory, within = capacity(checked, options), inf
    for text in options.within:
        match = CONDITION.fullmatch(text)
        what, sign, number, unit = match.groups() if match else ("", "", "", "")
        is_known = what in (STEP_TIME, PEAK) and sign in ("<", "<=")
        if not is_known or (what == STEP_TIME) != (unit in SECONDS):
            help_ = 'write `--within "step_time < 50ms"`, or `"memory.peak < 70GiB"`'
            raise usage_error(f"--within {text!r}", f"`{text}` is no limit", "E0710", help_)
        limit = bound(number, unit or "")
        if what == STEP_TIME:
            within = min(within, float(limit))
        else:
            least = int(limit) if sign == "<=" else ceil(limit) - 1
            memory = least if memory is None else min(memory, least)
    return memory, within


def space_of(
    options: argparse.Namespace,
    checked: CheckedModel,
    dims: ModelDims,
    devices: int,
    clauses: Sequence[str],
    iteration: ServedIteration | None,
) -> Space:
    node = checked.plan.device.node
    if iteration is None:
        space = default_space(dims, devices, node)
    else:
        space = serving_space(dims, devices, node, iteration)
    if options.space:
        read_space(space, read_text(options.space), options.space)
    fixed: dict[str, str] = {}
    for each in options.fix:
        fix(space, each)
        name = each.partition("=")[0].strip()
        if name in fixed:
            message = f"`{name}` is fixed twice, as `{fixed[name]}` and as `{each}`"
            both = f"{fixed[name]},{each.partition('=')[2].strip()}"
            raise usage_error(f"--fix {each}", message, "E0711", f"for both, write `--fix {both}`")
        fixed[name] = each
    for each in options.forbid:
        forbid(space, each)
    for clause in clauses:
        space.leave_to(clause)
    return space


# The page


def page(
    options: argparse.Namespace, goal: Goal, outcome: Outcome, tested: Sequence[Proved]
) -> str:
    out = [summary(goal, outcome, options)]
    if outcome.proved:
        out.append(plans_table(goal, outcome.proved, options.minimise) + sure(goal, outcome))
        is_timed = asks_time(options.minimise)
        why = reasons(outcome.proved, is_timed) if goal.iteration is None else ""
        if why:
            out.append(f"why each is better than the next\n{why}")
        out.append(f"the best\n\n{named(outcome.proved[0].text, next(best_names(options)))}")
    out += [sensitivity_text(tested)] if tested else []
    if outcome.untried:
        listed = sorted(f"  {name}: {why}\n" for name, why in outcome.untried.items())
        out.append(f"not tried\n{''.join(listed)}")
    left = sorted(outcome.reasons.items(), key=lambda item: (-item[1], item[0]))
    lines = [f"  {number:,}: {reason}\n" for reason, number in left[:MOST_REASONS] if number]
    rest = [number for _, number in left[MOST_REASONS:] if number]
    if rest:
        lines.append(f"  {sum(rest):,}: {len(rest):,} further reasons (`--format json` has all)\n")
    if lines:
        out.append(f"left out\n{''.join(lines)}")
    out += [f"closed forms and compilations differ: {each}\n" for each in outcome.mismatches]
    if outcome.interrupted:
        known = "this is the best of what was known" if outcome.proved else "no plan was compiled"
        out.append(f"interrupted: {known} until then\n")
    elif not outcome.proved:
        fits = "no plan fits\n" if outcome.reasons.keys() & TOO_MUCH else "no plan compiles\n"
        out.append(fits if outcome.num_points else "the space has no plan\n")
    return "\n".join(out)


def nearest_with_plans(
    space_at: Callable[[int], Space], dims: ModelDims, devices: int, batch: int
) -> str:
    """The nearest batch, and the nearest smaller number of devices, of which a space has plans where it has none."""
    near = nearest_batch(space_at(devices), dims, devices, batch)
    tried = range(devices - 1, max(devices - 1 - MOST_FEWER, 0), -1)
    fewer = (n for n in tried if any(points(space_at(n), dims, n, batch)))
    found = [f"`--batch {near}`"] if near else []
    found += [f"`--devices {n}`" for n in islice(fewer, 1)]
    return (
        f"in place of {devices:,} devices and a batch of {batch:,}, {' or '.join(found)} would do\n"
        if found
        else ""
    )


def summary(goal: Goal, outcome: Outcome, options: argparse.Namespace) -> str:
    compiled = f"{len(outcome.proved):,} proposed, each compiled whole"
    limit = limit_text(goal.memory, options)
    if goal.within < inf:
        limit += f"; {step_of(goal)} at most {seconds(goal.within)}"
    undecided = ""
    if outcome.num_slower:
        undecided += f"; {outcome.num_slower:,} cannot be better than these, by a lower bound"
    if outcome.num_undecided:
        undecided += f"; {outcome.num_undecided:,} are slower in outline than all that fit"
    return (
        f"{outcome.num_points:,} plans, {outcome.num_outlined:,} by closed forms"
        f"{undecided}; {compiled}\n"
        f"minimises {options.minimise}{limit}\n"
    )


def step_of(goal: Goal) -> str:
    return "step" if goal.iteration is None else "iteration"


def plans_table(goal: Goal, proved: Sequence[Proved], minimised: str) -> str:
    names = told_apart([each.point for each in proved])
    shown = plain_table(f"one {step_of(goal)}")
    shown.add_column("", justify="right", no_wrap=True)
    is_plain = minimised in PLAIN or (minimised == "token_cost" and goal.iteration is not None)
    of_goal = UNITS.get(minimised, minimised if len(minimised) <= WIDEST else "minimised")
    further = ["tokens/s/device"] if goal.iteration is not None else []
    further += [] if is_plain else [of_goal]
    for name in ("step_time", "memory.peak", *further, *names):
        shown.add_column(name, justify="right", no_wrap=True)
    for number, each in enumerate(proved, 1):
        value = [f"{each.tokens_per_s:,.0f}"] if goal.iteration is not None else []
        value += [] if is_plain else [f"{each.value:.6g}"]
        shown.add_row(
            str(number),
            seconds(each.step_time),
            f"{amount(each.peak_bytes)}B",
            *value,
            *(str(each.point.get(name, "")) for name in names),
        )
    return text_of(shown)


def sure(goal: Goal, outcome: Outcome) -> str:
    """Whether a plan that was not compiled may belong among these."""
    if goal.iteration is not None:
        of = " that was asked for" if outcome.num_not_asked else ""
        found = f"\nthese are the best: memory and time of each plan{of} were found exactly\n"
        return "" if outcome.interrupted else found
    number, of = outcome.num_sure, len(outcome.proved)
    if outcome.interrupted:
        return ""
    if number:
        said = "these are the best" if number == of else f"the first {number} are the best"
        said = said if number > 1 else "the first is the best"
        return f"\n{said}: lower bounds say of each other plan that it is no better\n"
    if not of:
        return ""
    one = outcome.num_rivals == 1
    plans = "1 plan that was" if one else f"{outcome.num_rivals:,} plans that were"
    bounds, which = (
        ("its lower bound", "it is") if one else ("their lower bounds", "one of them is")
    )
    said = f"{plans} not compiled may be better than the first by {bounds}"
    if outcome.nearest:
        said += (
            f": {which} if it takes less than {100 * outcome.nearest:.1f} % of its rough time; "
            f"those that were compiled take {100 * outcome.least_ratio:.1f} % of theirs or more"
        )
    return f"\n{said}\n"


ALWAYS = ("tp", "pp", "dp", "batch")
AXES = ("cp", "dcp", "ep")
PLAIN = ("step_time", "memory.peak")
WIDEST = 16
"""Characters of an expression that stands above its column; the page says above what is minimised."""
UNITS = {"cost": "cost (device-seconds)", "token_cost": "device-seconds/token"}


def reasons(proved: Sequence[Proved], is_timed: bool) -> str:
    lines = [
        f"  {number}: {compare(one, other, is_timed=is_timed)}\n"
        for number, (one, other) in enumerate(pairwise(proved), 1)
    ]
    return "".join(lines)


def sensitivity_text(tested: Sequence[Proved]) -> str:
    """With twice of each number of the device: how long the best takes, and which would be the best."""
    lines: list[str] = []
    base = tested[0].step_time
    fastest = min(range(len(tested)), key=lambda number: tested[number].step_time)
    for name, title in DEVICE_NUMBERS.items():
        times = [each.with_twice[name] for each in tested if name in each.with_twice]
        if len(times) < len(tested):
            continue
        change = (times[0] - base) / base if base else 0.0
        first = min(range(len(times)), key=lambda number: times[number])
        then = f"; plan {first + 1} is the fastest then" if first != fastest else ""
        lines.append(f"  {title} twice as high: {percent(change)}{then}\n")
    return f"what limits the best plan\n{''.join(lines)}"


def best_names(options: argparse.Namespace) -> Iterator[str]:
    """`best1`, `best2`, ..., but for those that plans of the file have."""
    taken = plans_of(parse_text(read_text(options.model), options.model))
    return (name for n in count(1) if (name := f"best{n}") not in taken)


def named(text: str, name: str) -> str:
    return text.replace(f"plan {NAME} ", f"plan {name} ", 1)


def plans_text(options: argparse.Namespace, proved: Sequence[Proved]) -> str:
    """The model's file with the plans behind its own: an import would not bring the model."""
    out = [f"{read_text(options.model).rstrip()}\n"]
    for name, each in zip(best_names(options), proved, strict=False):
        about = f"# Found by `stagec search`: {seconds(each.step_time)} a step, {amount(each.peak_bytes)}B.\n"
        out.append(about + named(each.text, name))
    return "\n".join(out)


ABOUT_PLOT = (
    "Each was compiled whole. Plans that cannot be among the best by a lower bound on their time were not evaluated, "
    "however little memory they may need."
)
ABOUT_SERVING_PLOT = "All that fit: time between tokens against device-seconds for a token."


def plot(options: argparse.Namespace, goal: Goal, candidates: Candidates) -> None:
    """The plans that were compiled, step time against memory; or all that serve, against what a token costs."""
    rows: list[dict[str, int | float | str]] = []
    if goal.iteration is None:
        pair, about = ("step_time", "memory.peak"), ABOUT_PLOT
        compiled = candidates.outcome.compiled
        found = [(each.point, each.step_time, each.peak_bytes) for each in compiled]
    else:
        pair, about = ("step_time", "token_cost"), ABOUT_SERVING_PLOT
        known = ((candidates.points[n], candidates.known[n]) for n in candidates.ranked())
        found = [(point, each["step"], each[PEAK]) for point, each in known]
    names = told_apart([point for point, *_ in found])
    for point, step, peak in found:
        row = {**{name: point[name] for name in names}, "step_time": step, "memory.peak": peak}
        if goal.iteration is not None:
            row["token_cost"] = step * int(point["devices"]) / int(point["tokens"])
        rows.append(row)
    if not rows:
        return
    title = f"Plans of {Path(options.model).stem} on {options.devices} devices"
    write_whole(options.plot, plans_page(title, rows, pair, pair, about).encode())


def told_apart(points: Sequence[Point]) -> list[str]:
    """The names in which plans differ, those that are always shown, and axes, so that their product is the number of devices."""
    values = {name: {each.get(name) for each in points} for name in SHOWN}
    axes = [name for name in AXES if values[name] - {1, None}]
    always = [name for name in ALWAYS if values[name] != {None}]
    return [name for name in SHOWN if len(values[name]) > 1 or name in (*always, *axes)]


def as_json(options: argparse.Namespace, outcome: Outcome, tested: Sequence[Proved]) -> str:
    said = {
        "version": 1,
        "plans": outcome.num_points,
        "bounded": outcome.num_bounded,
        "by_closed_forms": outcome.num_outlined,
        "slower_by_bound": outcome.num_slower,
        "undecided": outcome.num_undecided,
        "sure": outcome.num_sure,
        "interrupted": outcome.interrupted,
        "not_tried": outcome.untried,
        "left_out": dict(outcome.reasons),
        "mismatches": outcome.mismatches,
        "best": [
            {
                "step_time": each.step_time,
                "memory_peak": each.peak_bytes,
                "value": each.value,
                "choices": dict(each.point),
                "outline": {"step": each.rough_step},
                "parts": each.parts,
                "plan": named(each.text, name),
            }
            for name, each in zip(best_names(options), outcome.proved, strict=False)
        ],
        "with_twice": [each.with_twice for each in tested],
    }
    return json.dumps(said, indent=1) + "\n"


# One plan's changes


def show_changes(options: argparse.Namespace, text: str, source: Source) -> int:
    """`--like`: each single change of a plan, the best first."""
    plans = plans_of(source)
    if options.like not in plans:
        raise known_plan(options.like, plans)
    if pools := pools_in(source, options.like):
        message = f"`{options.like}` has the pools {quoted(pools)}, and {ONE_MESH}"
        help_ = "write what one of them says as a plan of its own"
        raise usage_error(f"--like {options.like}", message, "E0422", help_)
    checked = check(source, options.like, options.sizes, options.plug_ins.functions)
    dims = read_model(checked)
    device = (f"device {options.device}",) if options.device else ()
    found = list(changes(checked, dims))
    asked = with_device(options, text, found[0].text(options.like, device))
    proofs = [
        WholePlan(
            options.model,
            f"{text}\n{change.text(options.like, device)}",
            number,
            tuple({**options.sizes, **dict(change.sizes)}.items()),
            plug_ins=tuple(options.load_pass),
        )
        for number, change in enumerate(found)
    ]
    with open_executor(options.executor) as executor:
        answers = run_tasks(executor, as_here(compiled_whole), proofs, without_memory)
        answers = sorted(answers, key=lambda each: each.number)
    base = answers[0]
    if base.error:
        raise CompileError(base.diagnostics)
    limit = capacity(asked, options)
    minimised = options.minimise or STEP_TIME
    value = objective(minimised)
    ranks = float(checked.plan.num_ranks)
    why = {n: each.error or found[n].why_idle(each.idle) for n, each in enumerate(answers)}
    good = [each for each in answers if not why[each.number]]
    tell_idle(options, (), [each.idle for each in good])
    refused = [each for each in answers if why[each.number]]
    # No change is one of tokens.
    alike = {"ranks": ranks, TOKENS: 1.0}
    numbers = {
        each.number: value({STEP_TIME: each.step_time, PEAK: float(each.peak_bytes), **alike})
        for each in good
    }
    good.sort(key=lambda each: (numbers[each.number], each.number))
    if options.format == "json":
        rows = [
            {
                "change": found[each.number].title,
                "step_time": each.step_time,
                "memory_peak": each.peak_bytes,
                "value": numbers[each.number],
                "fits": limit is None or each.peak_bytes <= limit,
            }
            for each in good
        ]
        no_plans = {found[each.number].title: why[each.number] for each in refused}
        said = {"version": 1, "changes": rows, "no_plans": no_plans}
        sys.stdout.write(json.dumps(said, indent=1) + "\n")
        return 0
    shown = plain_table("each single change of the plan")
    for name in ("step_time", "", "memory.peak", "change"):
        shown.add_column(name, justify="left" if name == "change" else "right", no_wrap=True)
    for each in good:
        change = (numbers[each.number] - numbers[0]) / abs(numbers[0]) if numbers[0] else 0.0
        small = limit is not None and each.peak_bytes > limit
        title = found[each.number].title + (" (does not fit)" if small else "")
        shown.add_row(
            seconds(each.step_time),
            percent(change),
            f"{amount(each.peak_bytes)}B",
            title,
        )
    sys.stdout.write(f"minimises {minimised}{limit_text(limit, options)}\n\n{text_of(shown)}")
    if refused:
        listed = "".join(f"  {found[n].title}: {reason}\n" for n, reason in why.items() if reason)
        sys.stdout.write(f"\nno plans\n{listed}")
    return 0


def percent(change: float) -> str:
    """A change in per cent, which has a sign if it is any."""
    said = f"{100 * change:+.1f} %"
    return said if said[1:] != "0.0 %" else "0.0 %"


def limit_text(limit: int | None, options: argparse.Namespace) -> str:
    """What memory a plan may need, and what is left of the device's."""
    if limit is None:
        return ""
    said = f", memory at most {amount(limit)}B"
    if any(PEAK in each for each in options.within):
        return said
    return f"{said}: {options.margin} % are left to the allocator and to libraries"


def capacity(checked: CheckedModel, options: argparse.Namespace) -> int | None:
    """The bytes that a rank may need of its device, with the margin left."""
    device = checked.plan.device
    limit = device.memory if device.memory is not None else device.capacity
    return None if limit is None else limit * (100 - options.margin) // 100


def batch_of(text: str, tokens: int) -> int:
    """`1024` sequences, or `4Mtokens` of so many `tokens` in a sequence. E0710 for anything else."""
    units = {"": 1, "k": 10**3, "M": 10**6, "Ki": 2**10, "Mi": 2**20}
    number, is_tokens = text.strip(), False
    for word in ("sequences", "tokens"):
        if number.endswith(word):
            number, is_tokens = number.removesuffix(word).strip(), word == "tokens"
    digits = number.rstrip("kKMi")
    unit = number[len(digits) :].strip()
    if not digits.strip().isdecimal() or unit not in units or int(digits) < 1:
        help_ = "write `--batch 1024`, or `--batch 4Mtokens`"
        raise usage_error(f"--batch {text}", f"`{text}` is not a batch", "E0710", help_)
    amount = int(digits) * units[unit]
    if not is_tokens:
        return amount
    if amount < tokens:
        message = f"`{text}` is less than one sequence of {tokens:,} tokens"
        help_ = f"write `--batch {tokens}tokens`, or more"
        raise usage_error(f"--batch {text}", message, "E0710", help_)
    return amount // tokens


def known_plan(name: str, known: Sequence[str]) -> CompileError:
    help_ = suggestion(name, known)
    return usage_error(f"--like {name}", f"there is no plan `{name}`", "E0401", help_)
