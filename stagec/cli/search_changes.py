"""`stagec search --like`: each single change of a plan, the best first."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence

from stagec.backend.executors import open_executor
from stagec.backend.running_tasks import run_tasks
from stagec.cli.inputs import read_text
from stagec.cli.search_page import limit_text, percent, tell_idle
from stagec.cli.search_question import ONE_MESH, capacity, with_device
from stagec.cli.tables import plain_table, seconds, text_of
from stagec.cli.usage import usage_error
from stagec.diagnostics import CompileError, quoted, suggestion
from stagec.frontend import Source, check, parse_text
from stagec.frontend.checker import pools_in
from stagec.frontend.checker.definitions import plans_of
from stagec.pictures.scales import amount
from stagec.searching.changes import PlanChange, changes
from stagec.searching.model import read_model
from stagec.searching.objective import TOKENS, objective
from stagec.searching.whole_plans import WholeAnswer, WholePlan, compiled_whole, without_memory
from stagec.sweeping.run import PEAK, STEP_TIME
from stagec.trust import as_here


def show_changes(options: argparse.Namespace) -> int:
    """Compile each changed plan, and print them. The mistake of the plan itself if it does not compile."""
    text = read_text(options.model)
    source = parse_text(text, options.model)
    check_plan(options.like, source)
    checked = check(source, options.like, options.sizes, options.plug_ins.functions)
    device = (f"device {options.device}",) if options.device else ()
    found = list(changes(checked, read_model(checked)))
    asked = with_device(options, text, found[0].text(options.like, device))
    texts = [f"{text}\n{change.text(options.like, device)}" for change in found]
    answers = compiled_plans(options, found, texts)
    if answers[0].error:
        raise CompileError(answers[0].diagnostics)
    why = {n: each.error or found[n].why_idle(each.idle) for n, each in enumerate(answers)}
    good = [each for each in answers if not why[each.number]]
    tell_idle(options, (), [each.idle for each in good])
    # No change is one of tokens.
    alike = {"ranks": float(checked.plan.num_ranks), TOKENS: 1.0}
    minimised = options.minimise or STEP_TIME
    value = objective(minimised)
    numbers = {
        each.number: value({STEP_TIME: each.step_time, PEAK: float(each.peak_bytes), **alike})
        for each in good
    }
    good.sort(key=lambda each: (numbers[each.number], each.number))
    limit = capacity(asked, options)
    no_plans = {found[n].title: reason for n, reason in why.items() if reason}
    titles = [found[each.number].title for each in good]
    if options.format == "json":
        rows = [
            {
                "change": title,
                "step_time": each.step_time,
                "memory_peak": each.peak_bytes,
                "value": numbers[each.number],
                "fits": limit is None or each.peak_bytes <= limit,
            }
            for title, each in zip(titles, good, strict=True)
        ]
        said = {"version": 1, "changes": rows, "no_plans": no_plans}
        sys.stdout.write(json.dumps(said, indent=1) + "\n")
        return 0
    table = changes_table(titles, good, numbers, limit)
    sys.stdout.write(f"minimises {minimised}{limit_text(limit, options)}\n\n{table}")
    if no_plans:
        listed = "".join(f"  {title}: {reason}\n" for title, reason in no_plans.items())
        sys.stdout.write(f"\nno plans\n{listed}")
    return 0


def check_plan(name: str, source: Source) -> None:
    """E0401 for a plan that neither the file has nor what it imports, E0422 for one of several meshes."""
    plans = plans_of(source)
    if name not in plans:
        message, help_ = f"there is no plan `{name}`", suggestion(name, plans)
        raise usage_error(f"--like {name}", message, "E0401", help_)
    if pools := pools_in(source, name):
        message = f"`{name}` has the pools {quoted(pools)}, and {ONE_MESH}"
        help_ = "write what one of them says as a plan of its own"
        raise usage_error(f"--like {name}", message, "E0422", help_)


def compiled_plans(
    options: argparse.Namespace, found: Sequence[PlanChange], texts: Sequence[str]
) -> list[WholeAnswer]:
    """What whole compilations say of each changed plan."""
    plans = [
        WholePlan(
            options.model,
            text,
            number,
            tuple({**options.sizes, **dict(change.sizes)}.items()),
            plug_ins=tuple(options.load_pass),
        )
        for number, (change, text) in enumerate(zip(found, texts, strict=True))
    ]
    with open_executor(options.executor) as executor:
        answers = run_tasks(executor, as_here(compiled_whole), plans, without_memory)
        return sorted(answers, key=lambda each: each.number)


def changes_table(
    titles: Sequence[str],
    answers: Sequence[WholeAnswer],
    numbers: Mapping[int, float],
    limit: int | None,
) -> str:
    """The changed plans, with how much less or more of what is minimised each has than the plan itself (number 0)."""
    shown = plain_table("each single change of the plan")
    for name in ("step_time", "", "memory.peak", "change"):
        shown.add_column(name, justify="left" if name == "change" else "right", no_wrap=True)
    for title, each in zip(titles, answers, strict=True):
        change = (numbers[each.number] - numbers[0]) / abs(numbers[0]) if numbers[0] else 0.0
        small = limit is not None and each.peak_bytes > limit
        shown.add_row(
            seconds(each.step_time),
            percent(change),
            f"{amount(each.peak_bytes)}B",
            title + (" (does not fit)" if small else ""),
        )
    return text_of(shown)
