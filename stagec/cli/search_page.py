"""What `stagec search` prints and writes: the best plans, why each is better than the next, and what the answer hangs on."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice, pairwise
from math import inf
from pathlib import Path

from stagec.backend.executors import open_executor
from stagec.backend.files import write_whole
from stagec.cli.inputs import read_text
from stagec.cli.progress import counting_progress
from stagec.cli.search_question import TESTED, device_of_network, origin_of, read_question
from stagec.cli.tables import plain_table, seconds, text_of
from stagec.diagnostics import Diagnostic, Span, in_all, render
from stagec.frontend import parse_text, syntax
from stagec.frontend.checker.definitions import plans_of
from stagec.frontend.moving import moved
from stagec.pictures.scales import amount
from stagec.reports.plans_chart import plans_page
from stagec.searching.candidates import STATE_TOO_LARGE, TOO_LARGE, TOO_LATE, Candidates
from stagec.searching.evaluation import NAME
from stagec.searching.objective import asks_time
from stagec.searching.results import Goal, Outcome, Proved, compare
from stagec.searching.search import Search
from stagec.searching.sensitivity import DEVICE_NUMBERS
from stagec.searching.space import NAMES, Point, Space, nearest_batch, points
from stagec.searching.whole_plans import IdleSetting
from stagec.sweeping.run import PEAK

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
ALWAYS = ("tp", "pp", "dp", "batch")
AXES = ("cp", "dcp", "ep")
PLAIN = ("step_time", "memory.peak")
WIDEST = 16
"""Characters of an expression that stands above its column; the page says above what is minimised."""
UNITS = {"cost": "cost (device-seconds)", "token_cost": "device-seconds/token"}
ABOUT_PLOT = (
    "Each was compiled whole. Plans that cannot be among the best by a lower bound on their time were not evaluated, "
    "however little memory they may need."
)
ABOUT_SERVING_PLOT = "All that fit: time between tokens against device-seconds for a token."


def show_search(options: argparse.Namespace) -> int:
    """`stagec search` of whole plans: the best of a space."""
    text = read_text(options.model)
    source = parse_text(text, options.model)
    if options.network is not None:
        options.device = options.typed_device = device_of_network(options, text)
    question = read_question(options, text, source)
    goal = question.goal
    cache = Path(options.cache) if options.cache else None
    with (
        counting_progress(options.quiet, "searching", "plans") as progress,
        open_executor(options.executor) as executor,
    ):
        told = (lambda stage, *numbers: progress(*numbers, stage)) if progress else None
        search = Search(goal, question.spaces, executor, cache, told, on_interrupt=tell_interrupted)
        outcome = search.run()
    first = outcome.proved[:TESTED]
    tested = first if all(each.with_twice for each in first) else []
    tell_idle(options, goal.clauses[:-1], [each.idle for each in outcome.proved])
    if options.output and outcome.proved:
        found = plans_text(options, outcome.proved)
        found = moved(found, options.model, Path(options.output).parent)
        write_whole(options.output, found.encode())
    if options.plot:
        plot(options, goal, search.candidates)
    if options.format == "json":
        sys.stdout.write(as_json(options, outcome, tested))
    else:
        sys.stdout.write(page(options, goal, outcome, tested))
        if not outcome.num_points and goal.iteration is None and not outcome.interrupted:
            for number in options.numbers:
                sys.stdout.write(nearest_with_plans(question.space_at, goal, number))
    return 0 if outcome.proved else 1


def tell_interrupted() -> None:
    """Say what follows Ctrl-C."""
    sys.stderr.write("\nnote: the best plans so far are compiled; Ctrl-C once more ends that\n")


def tell_idle(
    options: argparse.Namespace, clauses: Sequence[str], plans: Sequence[Sequence[IdleSetting]]
) -> None:
    """W0304 for what the command says of all plans, and changes nothing in any of those that were compiled whole."""
    said = {clause: f"--clause {clause}" for clause in clauses if clause in options.clause}
    said |= {clause: origin_of(options, clause) for clause in clauses if clause not in said}
    if options.device is not None:
        said[f"device {options.device}"] = f"--device {options.typed_device}"
    found: list[Diagnostic] = []
    for each in in_all(plans, lambda each: (each.message, each.line)):
        clause = next((clause for clause in said if each.line in clause), None)
        if clause is None:
            continue
        flag = said[clause]
        is_shown = flag.endswith(clause[clause.index(each.line) + each.start :])
        start = len(flag) - len(clause) + clause.index(each.line) + each.start
        ends = (start, start + each.end - each.start) if is_shown else ()
        place = Span.flag(re.sub(r"\s", " ", flag), *ends)
        found.append(Diagnostic("W0304", each.message, place, each.label, help=each.help))
    sys.stderr.write(render(found))


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


def nearest_with_plans(space_at: Callable[[int], Space], goal: Goal, devices: int) -> str:
    """The nearest batch, and the nearest smaller number of devices, of which a space has plans where it has none."""
    dims, batch = goal.dims, goal.batch
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
    """`best1`, `best2`, ..., but for those that plans of the file have, or of those that it imports."""
    taken = plans_of(parse_text(read_text(options.model), options.model))
    return (name for n in count(1) if (name := f"best{n}") not in taken)


def named(text: str, name: str) -> str:
    return text.replace(f"plan {NAME} ", f"plan {name} ", 1)


def plans_text(options: argparse.Namespace, proved: Sequence[Proved]) -> str:
    """The model's file with the plans before its own, so that the best is the one that `stagec FILE.stg` compiles. An import would not bring the model."""
    model = read_text(options.model)
    plans: list[str] = []
    for name, each in zip(best_names(options), proved, strict=False):
        about = f"# Found by `stagec search`: {seconds(each.step_time)} a step, {amount(each.peak_bytes)}B.\n"
        plans.append(about + named(each.text, name))
    at = start_of_plans(model, options.model)
    parts = [model[:at].rstrip(), *(plan.rstrip() for plan in plans), model[at:].strip()]
    return "\n\n".join(filter(None, parts)) + "\n"


def start_of_plans(text: str, file: str) -> int:
    """Where the first plan of a file begins, with the comment that stands above it; the end of a text that has none."""
    own = (p for p in parse_text(text, file).files[file].items if isinstance(p, syntax.Plan))
    first = next(own, None)
    if first is None:
        return len(text)
    lines = text.split("\n")
    number, column = first.span.line - 1, first.span.column - 1
    if lines[number][:column].strip():
        return len("\n".join([*lines[:number], lines[number][:column]]))
    while number and lines[number - 1].lstrip().startswith("#"):
        number -= 1
    return sum(len(line) + 1 for line in lines[:number])


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
