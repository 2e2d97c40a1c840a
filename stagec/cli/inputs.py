"""What a command compiles: a model, or IR that was printed after a pass."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp

from stagec.compiled import Compiled, CompiledSeries
from stagec.diagnostics import CompileError, refused, render
from stagec.driver import Stops, compile_checked, compile_ir
from stagec.frontend import (
    CheckedModel,
    Source,
    check,
    parse_file,
    warnings_of,
    warnings_of_pools,
)
from stagec.frontend.checker import pools_in
from stagec.frontend.files import decode, read_text
from stagec.frontend.plans.iterations import Iterations, read_iterations
from stagec.ir_text import is_ir_file, refuse_about_ir
from stagec.plans.clauses import Plan
from stagec.plugins import Registry, registry
from stagec.reading import MOST_BYTES, too_long
from stagec.series import compile_series


def compile_input(
    path: str,
    plan: str | None,
    sizes: Mapping[str, str],
    *,
    stops: Stops,
    source: Source | None = None,
    plug_ins: Registry | None = None,
    warn: Callable[[str], object] | None = None,
    adapt: Callable[[Plan], Plan] = lambda plan: plan,
) -> Compiled:
    """Compile a file, or its `source` where it was read already. `warn` is told what is doubtful about a model, or standard error; IR has been told already.

    `adapt` changes what of the plan decides no program: its device.
    """
    known = plug_ins or registry()
    if is_ir(path):
        refuse_about_ir(path, {"--plan": plan, "--set": sizes})
        return compile_ir(text_of_ir(path), path, stops=stops, plug_ins=known, adapt=adapt)
    text = source or parse_file(path)

    tell = warn or once(set())

    def told(checked: CheckedModel, module: ModuleOp) -> None:
        tell_doubts(checked, module, tell)

    if (around := pool_with_part(text, plan)) is not None:
        whole, pool = around
        settings = {
            name if "." in name else f"{pool}.{name}": value for name, value in sizes.items()
        }
        pools = compile_told_pools(
            text, whole, settings, stops=stops, plug_ins=known, tell=tell, adapt=adapt
        )
        return pools[pool]

    def checked() -> CheckedModel:
        found = check(text, plan, sizes, known.functions)
        return found.adapted(adapt)

    return compile_checked(checked, stops=stops, load_pass=known.make_pass, seen=told)


def pool_with_part(source: Source, plan: str | None) -> tuple[str, str] | None:
    """For a pool that has a part of the model: the plan of all pools, and the pool's own name."""
    if plan is None:
        return None
    from stagec.pools import plan_around

    return plan_around(source, plan)


def compile_iterations(
    path: str,
    iterations: str,
    plan: str | None = None,
    sizes: Mapping[str, str] | None = None,
    *,
    stops: Stops | None = None,
    source: Source | None = None,
    plug_ins: Registry | None = None,
    adapt: Callable[[Plan], Plan] = lambda plan: plan,
) -> CompiledSeries:
    """Compile the iterations of a file."""
    known = plug_ins or registry()
    series = read_iterations(iterations)
    text = source or parse_file(path)
    tell = once(set())

    def checked(some: Iterations) -> CheckedModel:
        found = check(text, plan, sizes or {}, known.functions, some)
        tell(render(series.idle_taken(found.plan.name)))
        return found.adapted(adapt)

    return compile_series(
        checked,
        series,
        stops=stops,
        load_pass=known.make_pass,
        seen=lambda checked, module: tell_doubts(checked, module, tell),
    )


def once(heard: set[str]) -> Callable[[str], object]:
    """Tells standard error what nobody has `heard` yet: programs of a series, and pools, are of one text."""

    def tell(text: str) -> None:
        if text not in heard:
            heard.add(text)
            sys.stderr.write(text)

    return tell


@contextmanager
def plan_written(text: str, plan: str | None) -> Iterator[None]:
    """`MODEL.stg:PLAN` names a plan without a flag: a diagnostic of that name points at what was written."""
    try:
        yield
    except CompileError as error:
        flag = f"--plan {plan}"
        found = [
            replace(d, origin=text if d.origin == flag else d.origin) for d in error.diagnostics
        ]
        raise CompileError(found, error.sources) from None


ONE_MESH = ""
"""Instead of the name of a pool: the plan is one by itself."""


def compile_parts(
    path: str,
    plan: str | None,
    sizes: Mapping[str, str],
    *,
    stops: Stops,
    plug_ins: Registry,
    warn: Callable[[str], object] | None = None,
    adapt: Callable[[Plan], Plan] = lambda plan: plan,
) -> Mapping[str, Compiled]:
    """Likewise; of a plan with pools each of them by name, as a part of the job."""
    if not has_pools(path, plan):
        alone = compile_input(
            path, plan, sizes, stops=stops, plug_ins=plug_ins, warn=warn, adapt=adapt
        )
        return {ONE_MESH: alone}
    tell, source = warn or once(set()), parse_file(path)
    return compile_told_pools(
        source, plan, sizes, stops=stops, plug_ins=plug_ins, tell=tell, adapt=adapt
    )


def compile_told_pools(
    source: Source,
    plan: str | None,
    sizes: Mapping[str, str],
    *,
    stops: Stops,
    plug_ins: Registry,
    tell: Callable[[str], object],
    adapt: Callable[[Plan], Plan],
) -> Mapping[str, Compiled]:
    """Compile the pools of a plan, by name, and `tell` what is doubtful about them before."""
    from stagec.pools import compile_pools

    return compile_pools(
        source,
        plan,
        sizes,
        known=plug_ins,
        stops=lambda pool: stops,
        seen=lambda pools: tell_doubts_of_pools(pools, tell),
        adapt=adapt,
    ).pools


def has_pools(path: str, plan: str | None) -> bool:
    """Whether the plan is one of several pools."""
    return not is_ir(path) and bool(pools_in(parse_file(path), plan))


def tell_doubts(
    checked: CheckedModel, module: ModuleOp, tell: Callable[[str], object] | None = None
) -> None:
    """Say what is doubtful about a model, on standard error if not elsewhere."""
    if found := warnings_of(checked, module):
        (tell or sys.stderr.write)(render(found, checked.source.texts))


def tell_doubts_of_pools(
    pools: Sequence[tuple[CheckedModel, ModuleOp]], tell: Callable[[str], object]
) -> None:
    """Likewise about a model on several pools."""
    if found := warnings_of_pools(pools):
        tell(render(found, pools[0][0].source.texts))


STANDARD_INPUT = "-"


def is_ir(path: str) -> bool:
    """Whether it is IR: a file of its ending, or standard input, where `stagec-opt` hands it on."""
    return path == STANDARD_INPUT or is_ir_file(path)


SEPARATOR = "// -----\n"
"""Between modules that are printed one behind the other: those of the pools of a plan."""


def modules_of_ir(path: str) -> list[str]:
    """The text of each module of IR in a file, each of its lines in its place; of standard input, which is read once, nothing."""
    if path == STANDARD_INPUT:
        return []
    found: list[str] = []
    num_lines = 0
    for text in text_of_ir(path).split(SEPARATOR):
        found.append("\n" * num_lines + text)
        num_lines += text.count("\n") + 1
    return found


def text_of_ir(path: str) -> str:
    """The text of IR in a file, or on standard input."""
    if path != STANDARD_INPUT:
        return read_text(path)
    content = sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        message = f"cannot read `{path}`: {too_long(MOST_BYTES).strerror}"
        help_ = "compile the model's text instead: `stagec MODEL.stg`"
        raise refused("E0701", message, origin="standard input", help=help_)
    return decode(content, path)
