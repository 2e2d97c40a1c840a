"""Progress of long work, on a terminal only, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagec.backend.writer import Progress as Written


@contextmanager
def writing_progress(quiet: bool) -> Iterator[Callable[[Written], None] | None]:
    """A bar over ranks, with rate and remaining time."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    with counting_progress(quiet, "writing", "ranks") as count:
        assert count is not None
        yield lambda done: count(done.ranks_done, done.ranks_total)


@contextmanager
def counting_progress(quiet: bool, what: str, things: str) -> Iterator[Callable[..., None] | None]:
    """A bar over things of which the number is known. It is told how much is done, of how much, and of which part of the work, if that has several."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(f"{{task.completed:,}} of {{task.total:,}} {things}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=1, rate="")

        def count(done: int, of: int, part: str = "") -> None:
            speed = progress.tasks[0].speed
            rate = f"{speed:,.0f} {things}/s" if speed else ""
            said = f"{what}: {part}" if part else what
            progress.update(task, description=said, completed=done, total=of, rate=rate)

        yield count


@contextmanager
def pass_progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Names the pass that has just ended."""
    if quiet or not sys.stderr.isatty():
        yield lambda name: None
        return
    from rich.console import Console

    with Console(stderr=True).status("compiling") as status:
        yield lambda name: status.update(f"compiling: {name}")
