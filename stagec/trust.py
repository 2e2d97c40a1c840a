"""Whose text may do what: a model is a text of anyone's, and may neither run code nor show files that it was not given.

A model may name a Python file (a schedule of its own): that runs when the user allows code, or trusts the folder that it
is in. It may name other files, to import or to read numbers or devices from: those of its own folder and of the folders below it,
of stagec's examples, and of folders that the user trusts.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from stagec.diagnostics import Diagnostic, Span, refused
from stagec.reading import without_detours

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Trust:
    """What a user allows. `--allow-code`, `--trust DIR`."""

    code: bool = False
    """Whether Python that a model names is run."""
    folders: tuple[str, ...] = ()
    """Whose files models may import and read, and whose code runs."""
    files: tuple[str, ...] = ()
    """The real paths of what the user names beside the model, and plans that a command writes name: models may read these files."""
    in_python: bool = False
    """Whether a program says it, in arguments, and no flags."""

    def of_folder(self, folder: str) -> str:
        """How more of it is said: `--trust models`."""
        return f"trust={folder!r}" if self.in_python else f"--trust {folder}"

    @property
    def of_code(self) -> tuple[str, str]:
        return ("allow_code=True", "trust") if self.in_python else ("--allow-code", "--trust")


_NOTHING = Trust()
_ALLOWED: ContextVar[Trust] = ContextVar("trust", default=_NOTHING)


def allow(trust: Trust) -> None:
    """From here on."""
    _ALLOWED.set(trust)


def allow_files(files: Sequence[str]) -> None:
    """From here on, these files too."""
    allow(replace(allowed(), files=(*allowed().files, *map(os.path.realpath, files))))


@contextmanager
def trusting(trust: Trust) -> Iterator[None]:
    """Within a `with`."""
    token = _ALLOWED.set(trust)
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def trusted(code: bool, folders: Sequence[str], in_python: bool = False) -> Trust:
    """What somebody allows. E0710 for what is no folder."""
    said = "trust" if in_python else "--trust"
    for folder in folders:
        if not os.path.isdir(folder):
            message = f"`{said}` names a folder, and `{folder}` is none"
            help_ = "leave it out, or make it"
            raise refused("E0710", message, origin=f"{said} {folder}", help=help_)
    return Trust(code, tuple(folders), in_python=in_python)


def as_here(work: Callable[[T], R]) -> Callable[[T], R]:
    """The same work with what is allowed here, wherever it is done: in another thread or process nothing is."""
    return partial(_within, _ALLOWED.get(), work)


def _within(trust: Trust, work: Callable[[T], R], task: T) -> R:
    with trusting(trust):
        return work(task)


def allowed() -> Trust:
    return _ALLOWED.get()


def may_read(path: str, root: str) -> bool:
    """Whether a text below the folder `root` may have a file read."""
    trust = _ALLOWED.get()
    if os.path.realpath(path) in trust.files:
        return True
    folders = (root or ".", examples(), *trust.folders)
    return any(is_below(path, folder) for folder in folders if folder)


def may_run(path: str) -> bool:
    """Whether the Python of a file that a text names may run."""
    trust = _ALLOWED.get()
    return trust.code or any(is_below(path, folder) for folder in trust.folders)


def is_below(path: str, folder: str) -> bool:
    real = os.path.realpath(folder)
    return os.path.commonpath([real, os.path.realpath(path)]) == real


def examples() -> str:
    """The folder of the shipped examples, installed as well as in a clone; nothing where somebody left them out."""
    folder = (Path(__file__).parent / "examples").resolve()
    return str(folder) if folder.is_dir() else ""


def outside(file: str, span: Span | None) -> Diagnostic:
    """E0721: a text names a file that it may not have read."""
    file = without_detours(file)
    return Diagnostic(
        "E0721",
        f"`{file}` is outside of the model's folder",
        span,
        help=f"if you trust what the model does with it, add `{allowed().of_folder(os.path.dirname(file) or '.')}`",
    )
