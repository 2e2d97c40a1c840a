"""Passes and dialects: ours, xDSL's, and those of third parties.

They arrive through xDSL's entry point `xdsl.universe`, or as a file for `--load-pass`. A broken
package costs a warning with its name, never the run; a broken file was asked for, and is an error.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from xdsl.ir import Dialect
from xdsl.irdl import IRDLOperation
from xdsl.passes import ModulePass
from xdsl.universe import XDSL_UNIVERSE, Universe
from xdsl.utils.arg_spec import ArgSpec
from xdsl.utils.hints import isa, type_repr
from xdsl.utils.target import Target

from stagec.diagnostics import (
    CompileError,
    Diagnostic,
    closest,
    did_you_mean,
    file_meant,
    quoted,
    refused,
)
from stagec.dialects import stg
from stagec.dialects.stg.op_classes import mistakes_of_class
from stagec.entry_points import entry_points
from stagec.frontend.keywords import RESERVED
from stagec.passes import pass_factories
from stagec.reading import read_file

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "xdsl.universe"
LOADED = "stagec_loaded_"
OURS = ("xdsl", "stagec")

PassFactory = Callable[[], type[ModulePass]]
Scalar = int | float | bool | str
Argument = Scalar | tuple[Scalar, ...]
T = TypeVar("T")


def _dialect(name: str) -> Callable[[], Dialect]:
    """Imports the dialect when it is used."""
    return lambda: getattr(import_module(f"stagec.dialects.{name}"), name.capitalize())


STAGEC_UNIVERSE = Universe(
    all_dialects={name: _dialect(name) for name in ("stg", "dist", "sched")},
    all_passes=pass_factories(),
)
"""What stagec adds to every tool built on xDSL."""


class MistakenClass(TypeError):
    """A class of ops says what cannot be."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


@dataclass
class Registry:
    """Everything that has a name on the command line. What came first keeps a contested name."""

    dialects: dict[str, Callable[[], Dialect]] = field(default_factory=dict)
    passes: dict[str, PassFactory] = field(default_factory=dict)
    targets: dict[str, Callable[[], type[Target]]] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    """Who brought each pass."""
    dialect_owners: dict[str, str] = field(default_factory=dict)
    warnings: list[Diagnostic] = field(default_factory=list)
    loaded_dialects: list[str] = field(default_factory=list)
    """Those that files of `--load-pass` bring: several files may bring ops of one."""
    functions: dict[str, stg.Function] = field(default_factory=lambda: dict(stg.FUNCTIONS))
    """The functions of the language: those of our ops, and of the ops of plug-ins."""

    def add(self, owner: str, universe: Universe) -> None:
        """Take over a package's contents."""
        clashes = [
            *_merge(self.dialects, universe.all_dialects, "dialect"),
            *_merge(self.passes, universe.all_passes, "pass"),
            *_merge(self.targets, universe.all_targets, "target"),
        ]
        for name in universe.all_passes:
            self.owners.setdefault(name, owner)
        for name in universe.all_dialects:
            self.dialect_owners.setdefault(name, owner)
        if owner not in OURS:
            for name, factory in universe.all_dialects.items():
                try:
                    clashes += self.add_functions(factory())
                except Exception as error:
                    self.warnings.append(
                        Diagnostic(
                            "W0701",
                            f"the dialect `{name}` of the plug-in `{owner}` cannot be loaded",
                            notes=[last_line(error)],
                            help="update or uninstall its package",
                        )
                    )
        for clash in clashes:
            self.warnings.append(
                Diagnostic(
                    "W0702",
                    f"the {clash} of the plug-in `{owner}` is left out: the name is taken",
                    help="rename it, or uninstall one of the two packages",
                )
            )

    def add_functions(self, dialect: Dialect) -> list[str]:
        """Let models call the ops of a dialect; the functions whose names are taken.

        Raises:
            MistakenClass: what a class says of its ops cannot be.
        """
        mistakes = [each for op in dialect.operations for each in mistakes_of_class(op)]
        functions = {} if mistakes else stg.functions_of(dialect.operations)
        mistakes += [
            f"`{function.op.name}`: `{name}` is a word of the language, and no function can be called so"
            for name, function in functions.items()
            if name in RESERVED
        ]
        if mistakes:
            raise MistakenClass(mistakes)
        taken: list[str] = []
        for name, function in functions.items():
            if self.functions.setdefault(name, function) is not function:
                taken.append(f"function `{name}`")
        return taken

    def find_pass(self, name: str) -> type[ModulePass]:
        """The class of a pass. E0704 if there is none, E0712 if it cannot be imported."""
        if name not in self.passes:
            advice = "`stagec passes` lists them; `--load-pass FILE.py` adds yours"
            helps = [each for each in (did_you_mean(name, self.passes), advice) if each]
            raise refused("E0704", f"there is no pass `{name}`", help=helps)
        try:
            return self.passes[name]()
        except Exception as error:
            owner = self.owners.get(name, "a plug-in")
            raise refused(
                "E0712",
                f"the pass `{name}` of `{owner}` cannot be imported",
                notes=[last_line(error)],
                help="update or uninstall its package",
            ) from error

    def make_pass(self, name: str, arguments: Mapping[str, Argument]) -> ModulePass:
        """A pass with its arguments. E0705 if they do not fit."""
        return instantiate(self.find_pass(name), arguments)

    def load_file(self, path: str) -> None:
        """Take over the passes and ops of a Python file. E0712 if it is broken or has none."""
        classes = classes_of_file(path)
        passes = {c.name: c for c in classes if issubclass(c, ModulePass)}
        dialects = dialects_of([c for c in classes if issubclass(c, IRDLOperation)])
        for name, pass_class in passes.items():
            own = vars(pass_class).get("__annotations__", {}).keys() - {"name"}
            if own and "__dataclass_fields__" not in vars(pass_class):
                fields_are = f"`{min(own)}` of `{pass_class.__name__}` is a parameter only of a `@dataclass(frozen=True)`"
                raise _broken(path, fields_are)
            if name in self.passes:
                raise exists_already("pass", name, self.owners.get(name, "another file"), path)
            self.passes[name] = _always(pass_class)
            self.owners[name] = path
        for name, dialect in dialects.items():
            known = self.dialects[name]() if name in self.loaded_dialects else None
            if known is not None:
                twice = {op.name for op in known.operations} & {o.name for o in dialect.operations}
                if twice:
                    raise exists_already("op", min(twice), self.dialect_owners[name], path)
            elif name in self.dialects:
                raise exists_already("dialect", name, self.dialect_owners[name], path)
            if known is None:
                self.loaded_dialects.append(name)
                self.dialect_owners[name] = path
            both = [*(known.operations if known else ()), *dialect.operations]
            self.dialects[name] = _always(Dialect(name, both))
            try:
                taken = self.add_functions(dialect)
            except MistakenClass as error:
                raise _broken(path, *error.mistakes) from error
            if taken:
                raise _broken(path, f"the {taken[0]} exists already")


def registry(files: Iterator[str] | list[str] | tuple[str, ...] = ()) -> Registry:
    """xDSL, stagec, what is installed, and then what `--load-pass` names."""
    found = installed()
    made = Registry(
        dict(found.dialects),
        dict(found.passes),
        dict(found.targets),
        dict(found.owners),
        dict(found.dialect_owners),
        list(found.warnings),
        functions=dict(found.functions),
    )
    for path in files:
        made.load_file(path)
    return made


@cache
def loaded(files: tuple[str, ...]) -> Registry:
    """The registry of files that a process loads once: what workers of a search and a server of editors go by."""
    return registry(files)


@cache
def installed() -> Registry:
    """What packages bring. A broken one is a warning."""
    found = Registry()
    found.add("xdsl", XDSL_UNIVERSE)
    found.add("stagec", STAGEC_UNIVERSE)
    for point in entry_points(GROUP, OURS):
        _add_entry_point(found, point)
    return found


def _add_entry_point(found: Registry, point: EntryPoint) -> None:
    try:
        universe = point.load()
        if not isinstance(universe, Universe):
            raise TypeError(f"it is of type `{type(universe).__name__}`, not a `Universe`")
    except (Exception, SystemExit) as error:
        found.warnings.append(
            Diagnostic(
                "W0701",
                f"the plug-in `{point.name}` cannot be loaded and is left out",
                notes=[f"{point.value}: {last_line(error)}"],
                help="update or uninstall its package",
            )
        )
        return
    found.add(point.name, universe)


def _merge(known: dict[str, T], new: Mapping[str, T], kind: str) -> Iterator[str]:
    for name, factory in new.items():
        if known.setdefault(name, factory) is not factory:
            yield f"{kind} `{name}`"


def instantiate(pass_class: type[ModulePass], arguments: Mapping[str, Argument]) -> ModulePass:
    """The pass with its arguments, each checked against its field's type. E0705."""
    name = pass_class.name
    known = [field.name for field in fields(pass_class)]
    given = {key.replace("-", "_"): value for key, value in arguments.items()}
    unknown = sorted(given.keys() - set(known))
    missing = sorted(pass_class.required_fields() - given.keys())
    there_are = f"there are {quoted(known)}" if known else "it has none"
    found = [
        Diagnostic(
            "E0705",
            f"the pass `{name}` has no argument `{key}`",
            help=did_you_mean(key, known) or there_are,
        )
        for key in unknown
    ]
    misspelt = {closest(key, known) for key in unknown}
    found += [
        Diagnostic(
            "E0705",
            f"the pass `{name}` wants `{key}`",
            help=f"write `{name} {{ {key} = ... }}`",
        )
        for key in missing
        if key not in misspelt
    ]
    hints = get_type_hints(pass_class)
    values: dict[str, tuple[Scalar, ...]] = {}
    for key in given.keys() & set(known):
        value = given[key]
        values[key] = fitting(value if isinstance(value, tuple) else (value,), hints[key])
        if not fits(values[key], hints[key]):
            message = f"`{key}` of the pass `{name}` has to be `{type_repr(hints[key])}`"
            help_ = f"write what is a `{type_repr(hints[key])}`"
            notes = [f"it is {shown(values[key])}"]
            found.append(Diagnostic("E0705", message, notes=notes, help=help_))
    if found:
        raise CompileError(found)
    try:
        return pass_class.from_spec(ArgSpec(name, values))
    except (TypeError, ValueError) as error:
        message = f"the pass `{name}` cannot be run so"
        help_ = "give it other arguments: `stagec passes` says what each means"
        raise refused("E0705", message, notes=[str(error)], help=help_) from error


def fitting(value: tuple[Scalar, ...], hint: object) -> tuple[Scalar, ...]:
    """A whole number is a number too."""
    return tuple(float(v) if hint is float and type(v) is int else v for v in value)


def fits(value: tuple[Scalar, ...], hint: Any) -> bool:
    """Whether xDSL takes the value for a field: alone, or as a tuple. An option without one is None."""
    if not value:
        return isa(None, hint) or isa(value, hint)
    return (len(value) == 1 and isa(value[0], hint)) or isa(value, hint)


def shown(value: tuple[Scalar, ...]) -> str:
    """As it is written on a command line."""
    return f"`{', '.join(str(v).lower() if isinstance(v, bool) else str(v) for v in value)}`"


def _always(value: T) -> Callable[[], T]:
    return lambda: value


def dialects_of(ops: Sequence[type[IRDLOperation]]) -> dict[str, Dialect]:
    """The dialects that ops are of by their names: `fused.add_rms_norm` is of `fused`."""
    names = dict.fromkeys(op.name.partition(".")[0] for op in ops)
    return {n: Dialect(n, [op for op in ops if op.name.partition(".")[0] == n]) for n in names}


def exists_already(kind: str, name: str, owner: str, path: str) -> CompileError:
    return refused(
        "E0712",
        f"the {kind} `{name}` exists already",
        origin=path,
        notes=[f"it comes from {owner}"],
        help="give yours another name",
    )


def classes_of_file(path: str) -> list[type[ModulePass] | type[IRDLOperation]]:
    """The passes and ops that a Python file defines."""
    module_name = f"{LOADED}{Path(path).stem}"
    try:
        read_file(path)
    except OSError as error:
        message = f"cannot read `{path}`: {error.strerror}"
        raise refused("E0701", message, origin=path, help=file_meant(path, ".py")) from None
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise _broken(path, "its name does not end in `.py`")
    module = importlib.util.module_from_spec(spec)
    # Files that are loaded after it import it by its name, unless Python has another module of that.
    stem = Path(path).stem
    known = {module_name, stem} if is_free(stem, path) else {module_name}
    for each in known:
        sys.modules[each] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        for each in known:
            del sys.modules[each]
        raise _broken(path, *_trace(error, path)) from error
    classes = [
        value
        for value in dict.fromkeys(each for each in vars(module).values() if inspect.isclass(each))
        if issubclass(value, ModulePass | IRDLOperation) and value.__module__ == module_name
    ]
    for each in classes:
        if not isinstance(vars(each).get("name", ""), str):
            raise _broken(path, f"`name` of `{each.__name__}` is a text, not {each.name!r}")
    found = [each for each in classes if getattr(each, "name", "")]
    known_as: dict[str, type] = {}
    for each in found:
        if known_as.setdefault(each.name, each) is not each:
            both = f"`{known_as[each.name].__name__}` and `{each.__name__}`"
            raise _broken(path, f"{both} have one name, `{each.name}`")
    if not found:
        raise refused(
            "E0712",
            f"`{path}` defines no pass and no op",
            help="a pass is a subclass of `xdsl.passes.ModulePass` with a `name`, an op one of `stg.TensorOp`",
        )
    return found


def is_free(stem: str, path: str) -> bool:
    """Whether files may import this one by the name: nobody has it, or a file that was loaded before."""
    if stem in sys.modules:
        return sys.modules[stem].__name__.startswith(LOADED)
    try:
        found = importlib.util.find_spec(stem)
    except (ImportError, ValueError):
        return False
    return found is None or (found.origin is not None and os.path.samefile(found.origin, path))


def _broken(path: str, *notes: str) -> CompileError:
    help_ = "mend it, or leave out `--load-pass`"
    return refused("E0712", f"`{path}` cannot be loaded", notes=notes, help=help_)


def _trace(error: BaseException, path: str) -> Iterator[str]:
    """Where in the file it went wrong, and what Python says."""
    own = os.path.abspath(path)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in (path, own)]
    if isinstance(error, SyntaxError) and error.filename in (path, own):
        yield f"line {error.lineno}: `{(error.text or '').strip()}`"
    elif frames:
        yield f"line {frames[-1].lineno}: `{frames[-1].line}`"
    yield last_line(error)


def last_line(error: BaseException) -> str:
    """What Python prints last of an exception."""
    return traceback.format_exception_only(error)[-1].strip()
