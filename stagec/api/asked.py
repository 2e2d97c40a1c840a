"""What a program asks for: a model or IR, the sizes and the device that it is to have, and what it may do; and its compilation."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from threading import RLock
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from stagec.api.tables import SweptTable
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError, Diagnostic, refused
from stagec.driver import Stops, compile_checked, compile_ir
from stagec.estimate.step import on_device
from stagec.frontend import CheckedModel, check, lower, parse_file, parse_text, warnings_of
from stagec.frontend.files import Source, read_text, uncapitalised
from stagec.frontend.typed_device import device_said, of_file
from stagec.ir_text import is_ir_file, refuse_about_ir
from stagec.plans.clauses import Plan
from stagec.plug_in_errors import mistakes_of_plug_ins
from stagec.plugins import Registry, registry
from stagec.shipped_models import model_named
from stagec.simulators.infragraph import on_network
from stagec.sweeping.grid import grid
from stagec.sweeping.plans import SweepRequest, computed
from stagec.sweeping.pools import names_of_plan, table_of
from stagec.trust import Trust, trusted, trusting

Sizes = Mapping[str, int | str]
Files = str | Path | Sequence[str | Path]
"""One file or folder, or several."""
P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound="HasAsked")


@dataclass(frozen=True)
class IrFile:
    """What `--stop-after` printed."""

    file: str
    text: str


@dataclass(frozen=True)
class Asked:
    """The arguments of a compilation; a sweep compiles them again with other sizes."""

    source: Source | IrFile
    plan: str | None
    sizes: Mapping[str, str]
    plug_ins: Registry
    adapt: Callable[[Plan], Plan]
    """Puts a plan on the device, and on the network, that are asked for."""
    trust: Trust
    folder: str
    """Where the program asked: paths of files are from there, wherever it goes then."""

    @contextmanager
    def working(self) -> Iterator[None]:
        """Within a `with`: what a model does is held against what is allowed, and what a plug-in raises is E0713. Files are those of where it was asked."""
        with mistakes_of_plug_ins(), trusting(self.trust), in_folder(self.folder):
            try:
                yield
            except CompileError as error:
                error.keep_texts()
                raise

    @property
    def text(self) -> Source:
        """The model's text. E0711 for IR, which is of one plan."""
        if isinstance(self.source, IrFile):
            message = f"`{self.source.file}` is IR, of one plan: other sizes and pools are compiled from the model's text"
            raise refused("E0711", message, help="name the model, and the plan")
        return self.source

    def compiled(self, stops: Stops | None = None) -> Compiled:
        with self.working():
            plug_ins = self.plug_ins
            if isinstance(self.source, IrFile):
                file, text = self.source.file, self.source.text
                return compile_ir(text, file, stops=stops, plug_ins=plug_ins, adapt=self.adapt)
            return compile_checked(self._checked, stops=stops, load_pass=plug_ins.make_pass)

    def doubts(self) -> Sequence[Diagnostic]:
        """What is doubtful about a model before any pass; who printed IR has been told already."""
        if isinstance(self.source, IrFile):
            return ()
        with self.working():
            checked = self._checked()
            return warnings_of(checked, lower(checked))

    def sweep(
        self, quantities: Sequence[str], varied: Mapping[str, int | str | Sequence[int]]
    ) -> SweptTable:
        texts = [f"{name}={listed(values)}" for name, values in varied.items()]
        with self.working():
            names = grid(texts, names_of_plan(self.text, self.plan))
            request = SweepRequest(
                self.text,
                self.plan,
                self.sizes,
                names,
                computed(quantities, names),
                self.adapt,
                self.plug_ins,
            )
            return SweptTable(table_of(request))

    def _checked(self) -> CheckedModel:
        checked = check(self.text, self.plan, self.sizes, self.plug_ins.functions)
        return checked.adapted(self.adapt)


class HasAsked(Protocol):
    @property
    def _asked(self) -> Asked: ...


def while_allowed(method: Callable[Concatenate[H, P], R]) -> Callable[Concatenate[H, P], R]:
    """A method of a job that does later what a command does at once: what was allowed is so there too."""

    @wraps(method)
    def call(self: H, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._asked.working():  # pyright: ignore[reportPrivateUsage]
            return method(self, *args, **kwargs)

    return call


def asked_for(
    source: str | Path,
    plan: str | None,
    set: Sizes | None,
    device: str | Path | None,
    network: str | Path | None,
    load_pass: Files,
    *,
    allow_code: bool,
    trust: Files,
) -> Asked:
    """Read what functions of the API take, alike."""
    allowed = trusted(allow_code, names_of(trust), in_python=True)
    with trusting(allowed), IN_ONE_FOLDER:
        folder, read = current_folder(), read_source(source)
    if isinstance(read, IrFile):
        refuse_about_ir(read.file, {"plan": plan, "set": set})
    sizes = {name: str(size) for name, size in (set or {}).items()}
    typed = "" if device is None else os.fspath(device)
    said = None if device is None else device_said(typed, "device =")

    def adapt(plan: Plan) -> Plan:
        if said is not None:
            try:
                plan = on_device(plan, said)
            except CompileError as error:
                raise of_file(error, typed, "device =") from None
        return plan if network is None else on_network(plan, os.fspath(network), "network =")

    known = registry(names_of(load_pass))
    return Asked(read, plan, sizes, known, adapt, allowed, folder)


def current_folder() -> str:
    """Where the program runs; nothing where somebody has removed that folder."""
    try:
        return os.getcwd()
    except OSError:
        return ""


IN_ONE_FOLDER = RLock()
"""A process has one folder: one thread at a time reads files, or goes where a job was compiled."""


@contextmanager
def in_folder(folder: str) -> Iterator[None]:
    """Within a `with`, the program runs in another folder, if it is not in that one. E0701 where the folder is no more."""
    with IN_ONE_FOLDER, ExitStack() as stack:
        if current_folder() == folder:
            yield
            return
        try:
            stack.enter_context(chdir(folder))
        except OSError as error:
            why = uncapitalised(error.strerror or str(error))
            message = f"cannot read files from `{folder}`, where the program compiled: {why}"
            raise refused("E0701", message, help="ask before the folder is removed") from None
        yield


def read_source(source: str | Path) -> Source | IrFile:
    """A path, the name of a model that ships, or a text if there is a line break in it."""
    if isinstance(source, str) and "\n" in source:
        return parse_text(source)
    path = model_named(os.fspath(source))
    return IrFile(path, read_text(path)) if is_ir_file(path) else parse_file(path)


def names_of(files: Files) -> tuple[str, ...]:
    several = (files,) if isinstance(files, str | Path) else files
    return tuple(os.fspath(each) for each in several)


def listed(values: int | str | Sequence[int]) -> str:
    if isinstance(values, str) or not isinstance(values, Collection):
        return str(values)
    return ",".join(map(str, values))
