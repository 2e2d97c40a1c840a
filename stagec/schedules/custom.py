"""Schedules that a user brings: a table in a file, or a Python function.

A table (CSV) has a row per pp rank and an action per cell, in order; empty cells and lines that
begin with `#` mean nothing. The actions are written as `text` prints them and PyTorch's tables do:

    F0            F of microbatch 0, where each rank has one stage
    2B5  2I5 2W5  whole backward of stage 2, microbatch 5; its two halves
    0F3&3B1       a forward and a backward that overlap; also (0F3;3B1)OVERLAP_F_B
    [2SEND_F0 2RECV_B1]   transfers issued together

What PyTorch's tables say about parameters (0UNSHARD, 0RESHARD, 0REDUCE_GRAD) is passed over.
A table without transfers gets them by a rule, `as_sent` if none is named; one with any transfer must have all.
Where stages are is what the table says; every rank has v of them.
"""

import contextlib
import csv
import importlib.util
import io
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

from stagec.reading import read_whole_text
from stagec.schedules.errors import ScheduleError
from stagec.schedules.table import KIND_OF_SYMBOL, Action, ActionColumns, Schedule, columns
from stagec.schedules.transfers import Rule, as_sent
from stagec.schedules.validator import Proof

Cell = str | Action | None
UserFunction = Callable[[int, int, int], Sequence[Iterable[Cell]]]
"""f(p, v, m): for each rank its actions, as text or as `Action`s; None is an empty cell."""

ACTION = re.compile(r"(\d*)(SEND_F|RECV_F|SEND_B|RECV_B|F|B|I|W)(\d+)")
PARAMETERS = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD)")
OVERLAPPED = re.compile(r"\((.*)\)OVERLAP_F_B")


def from_csv(path: str | Path, p: int, v: int, m: int, rule: Rule | None = None) -> Schedule:
    """Read a table; see the module's docstring for its form. Raises `ScheduleError`."""
    try:
        rows = [row for _, row in rows_of(path)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ScheduleError(
            f"cannot read the schedule `{path}`: {why}",
            "name a CSV file with a row per pipeline rank",
            "unreadable",
        ) from None
    return from_rows(str(path), rows, p, v, m, rule)


def rows_of(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table, each with the number of its line, or of the last one if it has several."""
    reader = csv.reader(io.StringIO(read_whole_text(path), newline=""))
    for row in reader:
        if row and not row[0].startswith("#"):
            yield reader.line_num, row


def from_function(
    function: UserFunction | str,
    p: int,
    v: int,
    m: int,
    directory: str | Path = ".",
    rule: Rule | None = None,
) -> Schedule:
    """Call `function(p, v, m)`, or the one that `FILE.py:NAME` names, for the actions of each rank."""
    name = function if isinstance(function, str) else function.__name__
    call = load(function, Path(directory)) if isinstance(function, str) else function
    with foreign_code(name):
        found = call(p, v, m)
        rows = [list_of(row) for row in found] if is_list(found) else None
    if rows is None or None in rows:
        wrong = found if rows is None else next(row for row in found if not is_list(row))
        raise ScheduleError(
            f"`{name}` returned {shown(wrong)}"
            + (", not the actions of each rank" if rows is None else " as the actions of a rank"),
            'return a list with a list of actions per rank, as [["F0", "B0"], ["F0", "B0"]]',
            "not-an-action",
        )
    return from_rows(name, [row for row in rows if row is not None], p, v, m, rule)


def is_list(value: object) -> bool:
    """Whether a value can be gone through more than once, in an order that means something."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def list_of(value: Iterable[Cell]) -> list[Cell] | None:
    return list(value) if is_list(value) else None


def shown(value: object) -> str:
    """What a value is, short enough for a line."""
    plain = value is None or isinstance(value, int | float | str | list | tuple | dict)
    text = repr(value)
    return f"`{text}`" if plain and len(text) <= 40 else f"a {type(value).__name__}"


@contextlib.contextmanager
def foreign_code(name: str) -> Iterator[None]:
    """Whatever a user's code raises, also an exit, is a mistake in it: where, and what."""
    try:
        yield
    except (Exception, SystemExit) as error:
        text = traceback.format_exception_only(error)[-1].strip()
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
        where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        if isinstance(error, SyntaxError):
            where = f" ({Path(error.filename or '').name}, line {error.lineno})"
        raise ScheduleError(
            f"the schedule `{name}` failed: {text}{where}",
            "a schedule is a function of p ranks, v stages of each, and m microbatches: f(p, v, m)",
            "failed",
        ) from error


def load(spec: str, directory: Path) -> UserFunction:
    """The function that `FILE.py:NAME` names; the file is relative to `directory`."""
    file, _, name = spec.rpartition(":")
    path = directory / file
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or module_spec is None or module_spec.loader is None:
        raise ScheduleError(
            f"there is no file `{path}` for the schedule `{spec}`",
            "write FILE.py:FUNCTION, the file relative to the model",
            "unreadable",
        )
    module = importlib.util.module_from_spec(module_spec)
    with foreign_code(spec):
        module_spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise ScheduleError(
            f"`{path}` has no function `{name}`",
            f"define {name or 'schedule'}(p, v, m), which returns the actions of each rank",
            "unreadable",
        )
    return cast(UserFunction, function)


def from_rows(
    name: str,
    rows: Sequence[Iterable[Cell]],
    p: int,
    v: int,
    m: int,
    rule: Rule | None = None,
) -> Schedule:
    """A schedule from the actions of each rank; sends and receives are put in if it has none, by `rule` if there is one."""
    if len(rows) != p:
        raise ScheduleError(
            f"schedule `{name}` has {len(rows)} {'row' if len(rows) == 1 else 'rows'}, "
            f"one per rank, and there are {p} ranks",
            f"write {p} {'row' if p == 1 else 'rows'}",
            "ranks",
        )
    parsed: list[ActionColumns] = []
    for rank, row in enumerate(rows):
        try:
            parsed.append(parse_row(name, rank, row, p, v, m))
        except ScheduleError as error:
            error.row = rank
            raise
    schedule = Schedule.of_rows(name, p, v, m, parsed)
    if schedule.is_transfer.any():
        if rule is not None:
            raise ScheduleError(
                f"schedule `{name}` has transfers of its own",
                "leave out `transfers`, or the sends and receives of the table",
                "has-transfers",
            )
        return schedule
    Proof(schedule).run_compute()
    return (rule or as_sent)(schedule)


def parse_row(name: str, rank: int, row: Iterable[Cell], p: int, v: int, m: int) -> ActionColumns:
    actions: list[Action] = []
    joined: list[bool] = []
    for number, cell in enumerate(row):
        text = str(cell) if isinstance(cell, Action) else cell
        words = words_of(text or "") if isinstance(text, str | None) else [shown(cell).strip("`")]
        for position, word in enumerate(words):
            match = ACTION.fullmatch(word)
            if match is None or (not match[1] and v > 1):
                form = "F0" if v == 1 else "2F0 (stage 2, microbatch 0)"
                raise ScheduleError(
                    f"`{word}` in schedule `{name}` is not an action (row {rank + 1}, "
                    f"column {number + 1})",
                    f"write actions as {form}; the kinds are {', '.join(KIND_OF_SYMBOL)}",
                    "not-an-action",
                )
            stage = int(match[1]) if match[1] else rank
            action = Action(KIND_OF_SYMBOL[match[2]], stage, int(match[3]))
            if action.stage >= p * v or action.microbatch >= m:
                raise ScheduleError(
                    f"`{word}` in schedule `{name}` is outside of {p * v} stages and {m} "
                    f"microbatches (row {rank + 1}, column {number + 1})",
                    "stages and microbatches count from 0",
                    "unknown",
                )
            actions.append(action)
            joined.append(position > 0)
    kinds, stages, microbatches = zip(*actions, strict=True) if actions else ((), (), ())
    return columns(kinds, stages, microbatches, joined)


def words_of(cell: str) -> list[str]:
    """The actions of one cell: one, a batch, an overlapped pair, or none."""
    cell = cell.strip()
    if PARAMETERS.fullmatch(cell):
        return []
    if overlapped := OVERLAPPED.fullmatch(cell):
        return overlapped[1].split(";")
    if cell.startswith("[") and cell.endswith("]"):
        return cell[1:-1].split()
    return cell.split("&") if cell else []
