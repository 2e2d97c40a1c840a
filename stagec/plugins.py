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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from xdsl.ir import Dialect
from xdsl.irdl import IRDLOperation
from xdsl.passes import ModulePass
from xdsl.universe import XDSL_UNIVERSE, Universe
from xdsl.utils.arg_spec import ArgSpec, PipelineLexer, SpecTokenKind, parse_pipeline
from xdsl.utils.hints import isa, type_repr
from xdsl.utils.target import Target

from stagec.diagnostics import (
    CompileError,
    Diagnostic,
    Span,
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
IN_A_PLAN = "{name} {{ {key} = {value} }}"
IN_A_LIST = "{name}{{{key}={value}}}"
"""How an argument of a pass is written, in a plan and in a list of passes."""
KINDS: dict[object, tuple[str, str, str]] = {
    bool: ("`true` or `false`", "true", "false"),
    int: ("a whole number", "2", "4"),
    float: ("a number", "0.5", "1.5"),
    str: ("a word, or a text in quotes", '"a"', '"b"'),
}
"""What the arguments of passes are, in words, and two of each."""
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
    packages: dict[str, str] = field(default_factory=dict)
    """What to install otherwise, of who brought something: the package and its version."""
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
                            help=self.other_package(owner),
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
                f"the pass `{name}` of the plug-in `{owner}` cannot be imported",
                notes=[last_line(error), raised_in(error)],
                help=self.other_package(owner),
            ) from error

    def other_package(self, owner: str) -> str:
        """A help where what is installed does not work."""
        package = self.packages.get(owner)
        return f"update or uninstall {package}" if package else "update or uninstall its package"

    def make_pass(
        self, name: str, arguments: Mapping[str, Argument], form: str = IN_A_PLAN
    ) -> ModulePass:
        """A pass with its arguments. E0705 if they do not fit; `form` is how one is written."""
        return instantiate(self.find_pass(name), arguments, form)

    def load_file(self, path: str) -> None:
        """Take over the passes and ops of a Python file. E0712 if it is broken or has none."""
        classes = classes_of_file(path)
        passes = {c.name: c for c in classes if issubclass(c, ModulePass)}
        dialects = dialects_of([c for c in classes if issubclass(c, IRDLOperation)])
        for name, pass_class in passes.items():
            own = vars(pass_class).get("__annotations__", {}).keys() - {"name"}
            if own and "__dataclass_fields__" not in vars(pass_class):
                fields_are = f"`{min(own)}` of `{pass_class.__name__}` is a parameter only of a `@dataclass(frozen=True)`"
                span = _class_in(path, pass_class)
                help_ = f"write `@dataclass(frozen=True)` above `class {pass_class.__name__}`"
                raise _broken(path, fields_are, span=span, help=help_)
            if name in self.passes:
                owner = self.owners.get(name, "another file")
                raise exists_already("pass", name, owner, path, _class_in(path, pass_class))
            self.passes[name] = _always(pass_class)
            self.owners[name] = path
        for name, dialect in dialects.items():
            known = self.dialects[name]() if name in self.loaded_dialects else None
            if known is not None:
                twice = {op.name for op in known.operations} & {o.name for o in dialect.operations}
                if twice:
                    owner, first = self.dialect_owners[name], min(twice)
                    own = next(op for op in dialect.operations if op.name == first)
                    raise exists_already("op", first, owner, path, _class_in(path, own))
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
        dict(found.packages),
        list(found.warnings),
        functions=dict(found.functions),
    )
    for path in dict.fromkeys(files):
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
    if point.dist is not None:
        found.packages[point.name] = f"`{point.dist.name}` {point.dist.version}"
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
                help=found.other_package(point.name),
            )
        )
        return
    found.add(point.name, universe)


def _merge(known: dict[str, T], new: Mapping[str, T], kind: str) -> Iterator[str]:
    for name, factory in new.items():
        if known.setdefault(name, factory) is not factory:
            yield f"{kind} `{name}`"


@dataclass(frozen=True)
class WrittenPass:
    """A pass in a list, `a,b{c=1}`, and where it stands there."""

    spec: ArgSpec
    start: int
    end: int
    twice: Sequence[str] = ()
    """Arguments that are given more than once, of which `spec` has the last."""

    def made(self, load: Callable[[str, Mapping[str, Argument]], ModulePass]) -> ModulePass:
        """E0705 for an argument that is given twice, or what `load` raises."""
        if self.twice:
            raise CompileError(
                Diagnostic(
                    "E0705",
                    f"the pass `{self.spec.name}` is given `{key}` twice",
                    help="leave out one; several values of one argument have commas between",
                )
                for key in self.twice
            )
        return load(self.spec.name, self.spec.parameters)


def written_passes(text: str) -> list[WrittenPass]:
    """The passes of a list. `ArgSpecParseError` for what is none."""
    found: list[WrittenPass] = []
    tokens, kind = PipelineLexer(text), SpecTokenKind
    for spec in parse_pipeline(text):
        first = token = tokens.lex()
        given: list[str] = []
        depth, end, before = 0, first.span.end, token.kind
        while token.kind is not kind.EOF and (depth or token.kind is not kind.COMMA):
            if token.kind is kind.IDENT and before in (kind.L_BRACE, kind.SPACE):
                given.append(token.span.text.replace("-", "_"))
            depth += (token.kind is kind.L_BRACE) - (token.kind is kind.R_BRACE)
            end, before = token.span.end, token.kind
            token = tokens.lex()
        twice = tuple(key for key, count in Counter(given).items() if count > 1)
        found.append(WrittenPass(spec, first.span.start, end, twice))
    return found


def instantiate(
    pass_class: type[ModulePass], arguments: Mapping[str, Argument], form: str = IN_A_PLAN
) -> ModulePass:
    """The pass with its arguments, each checked against its field's type. E0705."""
    name = pass_class.name
    known = [field.name for field in fields(pass_class)]
    given = {key.replace("-", "_"): value for key, value in arguments.items()}
    unknown = sorted(given.keys() - set(known))
    missing = sorted(pass_class.required_fields() - given.keys())
    hints = get_type_hints(pass_class)
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
            help=f"write {wanted(name, key, hints[key], form)}",
        )
        for key in missing
        if key not in misspelt
    ]
    values: dict[str, tuple[Scalar, ...]] = {}
    for key in given.keys() & set(known):
        value = given[key]
        values[key] = fitting(value if isinstance(value, tuple) else (value,), hints[key])
        if not fits(values[key], hints[key]):
            message = f"`{key}` of the pass `{name}` has to be `{type_repr(hints[key])}`"
            help_ = f"write {wanted(name, key, hints[key], form)}"
            notes = [f"it is {shown(values[key])}" if values[key] else "it is given no value"]
            found.append(Diagnostic("E0705", message, notes=notes, help=help_))
    if found:
        raise CompileError(found)
    try:
        return pass_class.from_spec(ArgSpec(name, values))
    except (TypeError, ValueError) as error:
        message = f"the pass `{name}` cannot be run so"
        help_ = f"give it other arguments: `stagec passes {name}` says what each means"
        raise refused("E0705", message, notes=[str(error)], help=help_) from error


def wanted(name: str, key: str, hint: Any, form: str) -> str:
    """What an argument has to be, in words, and how one is written."""
    kinds = [each for each in get_args(hint) or (hint,) if each is not NoneType]
    kind = kinds[0] if get_origin(hint) in (Union, UnionType) else hint
    several = get_origin(kind) is tuple
    one = get_args(kind)[0] if several else kind
    words, value, other = KINDS.get(one, (f"`{type_repr(hint)}`", "...", "..."))
    if several:
        words, value = f"one or more, each {words}", f"{value}, {other}"
        value = f"[{value}]" if form == IN_A_PLAN else value.replace(" ", "")
    return f"{words}: `{form.format(name=name, key=key, value=value)}`"


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


def exists_already(
    kind: str, name: str, owner: str, path: str, span: Span | None = None
) -> CompileError:
    return refused(
        "E0712",
        f"the {kind} `{name}` exists already",
        span,
        origin="" if span else path,
        notes=[f"it comes from {owner}"],
        help="give yours another name",
        sources=_texts(span),
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
        name = f"{os.path.splitext(path)[0]}.py"
        note = "its name does not end in `.py`"
        raise _broken(path, note, help=f"rename it to `{name}`")
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
        raise _raised(error, path) from error
    classes = [
        value
        for value in dict.fromkeys(each for each in vars(module).values() if inspect.isclass(each))
        if issubclass(value, ModulePass | IRDLOperation) and value.__module__ == module_name
    ]
    for each in classes:
        if not isinstance(vars(each).get("name", ""), str):
            note = f"`name` of `{each.__name__}` is a text, not {each.name!r}"
            raise _broken(path, note, span=_class_in(path, each))
    found = [each for each in classes if getattr(each, "name", "")]
    known_as: dict[str, type] = {}
    for each in found:
        if known_as.setdefault(each.name, each) is not each:
            both = f"`{known_as[each.name].__name__}` and `{each.__name__}`"
            note, help_ = f"{both} have one name, `{each.name}`", "give one of them another name"
            raise _broken(path, note, span=_class_in(path, each), help=help_)
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


MEND = "mend it, or leave out `--load-pass`"


def _broken(path: str, *notes: str, span: Span | None = None, help: str = MEND) -> CompileError:
    message = f"`{path}` cannot be loaded"
    return refused("E0712", message, span, notes=notes, help=help, sources=_texts(span))


def _raised(error: BaseException, path: str) -> CompileError:
    """Where in the file it went wrong, and what Python says."""
    span, own = None, os.path.abspath(path)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in (path, own)]
    if isinstance(error, SyntaxError) and error.filename in (path, own):
        span = Span.point(path, error.lineno or 1, max(error.offset or 1, 1))
    elif frames:
        span = Span.point(path, frames[-1].lineno or 1, (frames[-1].colno or 0) + 1)
    help_ = MEND
    if isinstance(error, ModuleNotFoundError) and error.name:
        help_ = f"install `{error.name}` where stagec runs, or leave out `--load-pass`"
    return _broken(path, last_line(error), span=span, help=help_)


def _class_in(path: str, made: type) -> Span | None:
    """Where a class of a file begins."""
    try:
        lines, first = inspect.getsourcelines(made)
    except (OSError, TypeError):
        return None
    words = f"class {made.__name__}"
    places = ((first + n, line.find(words)) for n, line in enumerate(lines))
    found = next(((line, at) for line, at in places if at >= 0), None)
    return Span.point(path, found[0], found[1] + 1 + len("class ")) if found else None


def _texts(span: Span | None) -> dict[str, str]:
    """What is shown of the file that a place is in."""
    if span is None:
        return {}
    return {span.file: read_file(span.file).decode("utf-8-sig", errors="replace")}


def raised_in(error: BaseException) -> str:
    """The file and the line that raised an exception."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"in `{os.path.basename(last.filename)}`, line {last.lineno}"


def last_line(error: BaseException) -> str:
    """What Python prints last of an exception."""
    return traceback.format_exception_only(error)[-1].strip()
