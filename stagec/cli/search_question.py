"""What `stagec search` is asked: a goal and spaces of plans, from its flags, its file and the model."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf
from pathlib import Path

from stagec.cli.inputs import read_text
from stagec.cli.solve_page import CONDITION, SECONDS, bound
from stagec.cli.usage import usage_error
from stagec.devices import names
from stagec.devices.file import is_path
from stagec.diagnostics import CompileError, file_meant, quoted, refused, suggestion
from stagec.frontend import CheckedModel, Source, check, parse_text, syntax as written
from stagec.frontend.checker.definitions import plans_of
from stagec.frontend.moving import path_from
from stagec.frontend.numbers import names_in
from stagec.frontend.plans.files import texts_in
from stagec.frontend.printing import text_of as clause_text
from stagec.frontend.typed_device import InText, of_flag
from stagec.plans.clause_text import name_text, written as written_clause
from stagec.plans.clauses import Device
from stagec.searching.evaluation import NAME, source_with
from stagec.searching.model import ModelDims, read_model
from stagec.searching.objective import asks_time, objective, rises
from stagec.searching.results import Goal
from stagec.searching.serving_space import ServedIteration, serving_space
from stagec.searching.space import (
    NAMES,
    SERVING_NAMES,
    Space,
    default_space,
    fix,
    forbid,
    is_file,
    read_space,
    word_of,
)
from stagec.searching.texts import LINKED, axis_of_link
from stagec.simulators.infragraph import on_network
from stagec.sweeping.run import PEAK, STEP_TIME
from stagec.trust import may_read, outside

NETWORK_NUMBERS = (
    "node",
    "link_bytes_per_s",
    "link_latency_us",
    "network_bytes_per_s",
    "network_latency_us",
)
CHOSEN: dict[str, dict[str, tuple[int | str, ...]]] = {
    "context": {"context": ("ring",)},
    "device": {},
    "mesh": {"tp": (2,)},
    "microbatch": {"microbatch": (1, 2)},
    "pipeline": {"pp": (4,), "schedule": ("1f1b",)},
    "zero": {"zero": (1, 3)},
}
"""Clauses that a search writes, or cannot write, and names of a space with values, which say the like."""
TOO = {"context": ", or `dcp` of plans that serve", "mesh": ", and `cp`, `pp` and `ep` so too"}


def instead(word: str, in_file: bool) -> str:
    """What to do in place of a clause that stands in a file of `--space`, or behind `--clause`."""
    if word == "device":
        return "say it with `--device`"
    known = [(name, [*values]) for name, values in CHOSEN[word].items()]
    in_space = (f"`{name} = {json.dumps(values)}`" for name, values in known)
    fixed = (f"`--fix {name}={','.join(map(str, values))}`" for name, values in known)
    return f"write {' and '.join(in_space if in_file else fixed)}{TOO.get(word, '')}"


OF_THE_MODEL = {"freeze", "recompute", "unit"}
"""Clauses that name modules, weights and values."""
OF_TRAINING = {"freeze", "gradients"}
"""Clauses that say what has gradients: the first layer of a repeat is one by itself where its input alone has none."""
ONE_MESH = "a search has plans of one mesh"
PLANNED = ("tp", "cp", "pp", "dp", "ep", "edp")
"""Axes of most plans."""
TESTED = 3
"""Plans whose times are told for other devices."""
SIZES = tuple(2**n for n in range(18))


@dataclass(frozen=True)
class Question:
    """What a search is asked."""

    goal: Goal
    spaces: Sequence[Space]
    """The plans to choose from, for each number of devices."""
    space_at: Callable[[int], Space]
    """The plans of any number of devices."""


def read_question(options: argparse.Namespace, text: str, source: Source) -> Question:
    """What the flags of a command ask of a model. E0710, E0711 and others for flags that do not go together, or not with the model."""
    check_names(options, source)
    checked = probed(options, text)
    dims = read_model(checked)
    device = checked.plan.device
    check_numbers(options, device)
    clauses = clauses_of(options)
    files = check_clauses(options, text, clauses)
    if trained := [clause for clause in clauses if word_of(clause) in OF_TRAINING]:
        dims = read_model(probed(options, text, *trained))
    iteration = iteration_of(options, text, dims, clauses)
    if options.minimise is None:
        options.minimise = "step_time" if iteration is None else "token_cost"
    tokens = dims.values[dims.sequence[0]] if dims.sequence else 1
    batch = sequences_of(options, dims, iteration, tokens)
    space_at = partial(space_of, options, checked, dims, clauses=clauses, iteration=iteration)
    spaces = [space_at(count) for count in options.numbers]
    if iteration is None:
        tell_frozen(spaces[0], source, clauses)
    elif options.batch is not None or dims.batch in options.sizes:
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
            [sorted(checked.source.texts.items()), repr(device), texts_of(options, files, spaces)]
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
    return Question(goal, spaces, space_at)


def sequences_of(
    options: argparse.Namespace, dims: ModelDims, iteration: ServedIteration | None, tokens: int
) -> int:
    """The sequences of a step: the model's own, or those of `--batch`, of so many `tokens` each. E0711 if they are said elsewhere too."""
    if options.batch is None:
        return dims.values[dims.batch] if dims.batch else 1
    flag = f"--batch {options.batch}"
    if dims.batch in options.sizes:
        message = f"the batch is said twice, by `--batch` and by `--set {dims.batch}`"
        raise usage_error(flag, message, "E0711", "leave out one")
    if iteration is not None and not iteration.batch:
        message = "`serve` says how many sequences there are"
        help_ = f"write `decode {dims.batch} at 1500`, or leave out `--batch`"
        raise usage_error(flag, message, "E0711", help_)
    if iteration is not None and "tokens" in options.batch:
        message = "an iteration serves a number of sequences"
        raise usage_error(flag, message, "E0710", "write `--batch 128`")
    return batch_of(options.batch, tokens)


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
    name = known.preset or ""
    if is_path(name):
        name = path_from(Path(options.model).parent, name)
    return written_clause(name_text(name), known, **others)


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
    whole = f"{text}\n{plan}"
    try:
        return check(parse_text(whole, options.model), NAME, options.sizes, functions)
    except CompileError as error:
        if options.device is None:
            raise
        raise of_flag(error, flag_in(options, whole)) from None


def flag_in(options: argparse.Namespace, whole: str) -> InText:
    """Where what `--device` says stands in a text, which calls a file by its path from the model: the settings alone are there as they were typed."""
    said, typed = options.device, options.typed_device
    alike = len(said) if said == typed else len(said) - said.find("{") if "{" in said else 0
    begins = whole.rindex(said) + len(said) - alike
    return InText(typed, len(typed) - alike, whole, begins)


def check_names(options: argparse.Namespace, source: Source) -> None:
    """E0710 for names of the text that a search gives to what it makes."""
    items = (item for program in source.files.values() for item in program.items)
    dims = {item.name.text for item in items if isinstance(item, written.Dim)}
    taken = [f"`{name}` is a dim, and axes" for name in PLANNED if name in dims]
    taken += [f"`{NAME}` is a plan, and the plans" for name in plans_of(source) if name == NAME]
    if taken:
        message = f"{taken[0]} of a search are called so"
        raise usage_error(options.model, message, "E0710", "give it another name in the text")


def texts_of(
    options: argparse.Namespace, of_clauses: Sequence[str], spaces: Sequence[Space]
) -> list[str]:
    """The texts of the files of plug-ins, and of those that plans name: a schedule of the user's own, or those of clauses."""
    schedules = [str(s) for each in spaces for s in each.values.get("schedule", ()) if is_file(s)]
    named = [schedule.partition(":")[0] for schedule in schedules]
    files = [Path(options.model).parent / name for name in dict.fromkeys([*named, *of_clauses])]
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
        raise usage_error(f"--device {options.typed_device}", message, "E0410", help_)


def check_clauses(options: argparse.Namespace, text: str, clauses: Sequence[str]) -> list[str]:
    """E0710 for what a space says of all plans, and no plan can say; the files that it names."""
    files: list[str] = []
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
            help_ = instead(word, in_file=clause not in options.clause)
            raise usage_error(origin_of(options, clause), message, "E0710", help_)
        if (axis := axis_of_link(clause)) not in ("", *LINKED):
            message = f"`{axis}` is no axis that plans of a search have links along"
            help_ = suggestion(axis, LINKED)
            raise usage_error(origin_of(options, clause), message, "E0710", help_)
        own = [each.text for each in texts_in([plan])]
        check_files_of_clause(options, clause, own)
        files += own
        if word in OF_THE_MODEL:
            check_of_the_model(options, text, clause)
    return files


def check_files_of_clause(options: argparse.Namespace, clause: str, names: Sequence[str]) -> None:
    """E0701 for a file of a clause that is not there, and E0721 for one that the model may not have read. Plans of a search stand in the model's text."""
    folder, origin = os.path.dirname(options.model), origin_of(options, clause)
    for name in names:
        path = os.path.join(folder, name)
        if not may_read(path, folder):
            raise CompileError([replace(outside(path, None), origin=origin)])
        if os.path.isfile(path):
            continue
        from_here = path_from(folder, name) if os.path.isfile(name) else ""
        meant = f"write `{from_here}`" if from_here else file_meant(path)
        help_ = f"the path is from the folder of the model, `{folder or '.'}`"
        message = f"cannot read `{path}`: it is not there"
        raise usage_error(origin, message, "E0701", f"{help_}; {meant}" if meant else help_)


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
