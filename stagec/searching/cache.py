"""A file that keeps the answers of earlier searches, so that nothing is computed twice (`stagec search --cache FILE`)."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from stagec.backend.files import disk_error
from stagec.diagnostics import CompileError, refused
from stagec.reading import read_whole_text
from stagec.searching.evaluation import FormsTask, Found
from stagec.searching.whole_plans import IdleSetting, WholeAnswer, WholePlan

MOST_CACHE_BYTES = 1 << 30
BEGIN = '{"key": '
"""How each line of the file begins."""


class SearchCache:
    """The answers of earlier searches, one line of JSON each. A search that was interrupted goes on from there.

    A line has a hash of the question that it answers (`key`) and its own CRC-32 (`crc`). A line that was cut off or changed is ignored. Without a path
    nothing is kept. E0701 for a file that cannot be read, or is no cache.
    """

    def __init__(self, path: Path | None, beside: str = "") -> None:
        self.path = path
        self.lines: dict[str, Mapping[str, Any]] = {}
        self.about = "" if path is None else f"{version()}\n{beside}"
        self.ends_in_line = True
        if path is not None and path.exists():
            try:
                text = read_whole_text(path, MOST_CACHE_BYTES)
            except OSError as error:
                raise no_cache(path, str(error.strerror)) from None
            # The first line may have been cut off anywhere.
            if text[: len(BEGIN)] != BEGIN[: len(text)]:
                raise no_cache(path, "it is no cache of a search")
            self.ends_in_line = not text or text.endswith("\n")
            for line in text.splitlines():
                self.read(line)
        if path is not None:
            self.append("")

    def append(self, text: str) -> None:
        """Append text to the file. E0603 where the disk takes nothing."""
        assert self.path is not None
        try:
            with self.path.open("a") as file:
                file.write(text)
        except OSError as error:
            raise disk_error(error, str(self.path)) from None

    def read(self, line: str) -> None:
        """Note the answer that a line has, if it is whole."""
        try:
            said = json.loads(line)
            if said.pop("crc") != crc_of(said):
                return
            self.lines[said.pop("key")] = said
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            return

    def key(self, task: FormsTask) -> str:
        """The hash of all that the answer to a task depends on."""
        return self.key_of(
            [
                task.text,
                task.plan,
                task.names,
                task.rows,
                task.exactly,
                task.memory,
                task.overrides,
                [(each.schedule, each.virtual_stages) for each in task.turns],
                task.columns,
            ]
        )

    def key_of(self, asked: Sequence[object]) -> str:
        """The hash of a question, the compiler's version and what else answers depend on."""
        return hashlib.sha256(f"{self.about}\n{json.dumps(asked)}".encode()).hexdigest()

    def get(self, task: FormsTask) -> Found | None:
        """The answer to a task, if an earlier search had it."""
        said = self.lines.get(self.key(task)) if self.path is not None else None
        if said is None:
            return None
        columns = {
            name: [float("nan") if v is None else v for v in column]
            for name, column in said["columns"].items()
        }
        return Found(task.numbers, columns, said["reasons"])

    def put(self, task: FormsTask, found: Found) -> None:
        """Keep the answer to a task."""
        if self.path is None:
            return
        columns = {
            name: [None if v != v else v for v in column] for name, column in found.columns.items()
        }
        self.keep(self.key(task), {"columns": columns, "reasons": found.reasons})

    def key_of_whole(self, plan: WholePlan) -> str:
        """The hash of all that the answer of a whole compilation depends on."""
        return self.key_of(["whole", plan.text, plan.overrides, plan.wants_twice])

    def get_whole(self, plan: WholePlan) -> WholeAnswer | None:
        """The answer of a whole compilation, if an earlier search had it."""
        said = self.lines.get(self.key_of_whole(plan)) if self.path is not None else None
        if said is None:
            return None
        idle = tuple(IdleSetting(*each) for each in said["idle"])
        return WholeAnswer(plan.number, *said["whole"], idle=idle)

    def put_whole(self, plan: WholePlan, found: WholeAnswer) -> None:
        """Keep the answer of a whole compilation. Errors are not kept, since they point to places in the text; they are found again."""
        if self.path is not None and not found.diagnostics:
            numbers = [found.step_time, found.peak_bytes, found.parts, found.with_twice]
            self.keep(self.key_of_whole(plan), {"whole": numbers, "idle": found.idle})

    def keep(self, key: str, answer: Mapping[str, object]) -> None:
        """Append a line with an answer."""
        said = {"key": key, **answer}
        begin = "" if self.ends_in_line else "\n"
        self.append(f"{begin}{json.dumps({**said, 'crc': crc_of(said)})}\n")
        self.ends_in_line = True


def no_cache(path: Path, why: str) -> CompileError:
    """E0701 for a file that cannot be used as a cache."""
    message = f"cannot read `{path}`: {why}"
    help_ = "name another file: one that is not there is made"
    return refused("E0701", message, origin=f"--cache {path}", help=help_)


def crc_of(said: Mapping[str, object]) -> int:
    """The CRC-32 of a line's content."""
    return zlib.crc32(json.dumps(said, sort_keys=True).encode())


def version() -> str:
    """The compiler's version and when its files last changed: answers depend on both."""
    return f"{installed('stagec')} {newest_source()}"


def newest_source() -> str:
    """The time of the latest change of the compiler's files, in nanoseconds."""
    root = Path(__file__).parents[1]
    # Two of its folders are links in a source tree, which `rglob` does not follow.
    folders = (root, root / "passes", root / "grammar")
    files = (path for folder in folders for path in folder.resolve().rglob("*.*"))
    kinds = (".py", ".lark", ".toml")
    return str(max(os.stat(path).st_mtime_ns for path in files if path.suffix in kinds))
