"""A plan as an op of the module, and back: each clause that says other than its default.

    dist.plan "fsdp8" batch "B" trains {zero = {level = 3, axes = ["dp"]}} at {zero.span = "gpt.stg:40:3-40:15"}

Places in the text are kept apart, by the path of what stands there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cached_property, lru_cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from xdsl.dialects.builtin import (
    ArrayAttr,
    BoolAttr,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    UnitAttr,
    f64,
    i1,
    i64,
)
from xdsl.ir import Attribute

from stagec.diagnostics import Span, quoted, refused, span_of, suggestion
from stagec.dialects import dist, stg
from stagec.dialects.op import first_op
from stagec.ir_text import place_of
from stagec.plans.clauses import Plan, SettingKind


def plan_op(plan: Plan, batch: str, new: str | None, trains: bool) -> dist.PlanOp:
    """The op that says what a plan says, and of what model."""
    places: dict[str, str] = {}
    clauses = written_fields(plan, "", places)
    for key in ("name", "axes"):
        clauses.pop(key, None)
    return dist.PlanOp(plan.name, batch, new, trains, clauses, places)


def read_plan(op: dist.PlanOp, mesh: Mapping[str, int]) -> Plan:
    """The plan that an op says. E0709 where it says what no plan can."""
    axes = tuple({"name": StringAttr(a), "size": IntegerAttr(n, i64)} for a, n in mesh.items())
    clauses = {
        "name": op.plan_name,
        "axes": ArrayAttr([DictionaryAttr(axis) for axis in axes]),
        **op.clauses.data,
    }
    try:
        places = ClauseReader({}).value(Mapping[str, str], op.places, "at")
        reader = ClauseReader({path: span_at(place) for path, place in places.items()})
        plan = reader.clause(Plan, DictionaryAttr(clauses), "")
        for path in places.keys() - reader.placed:
            raise WrongClause(f"`at` has the place of `{path}`, and the plan says nothing there")
        return plan
    except WrongClause as error:
        help_ = "write what `stagec MODEL.stg --stop-after lower` prints of a plan that says it"
        message = f"`dist.plan`: {error}"
        raise refused("E0709", message, span_of(op.location), help=help_) from None


def stated_plan(module: ModuleOp) -> dist.PlanOp:
    """What a module says of its plan. E0716 if it says nothing."""
    has_program = any(isinstance(op, stg.ProgramOp) for op in module.body.ops)
    found = first_op(module, dist.PlanOp)
    if found is None or not has_program:
        what = "`dist.plan`" if has_program else "`stg.program`"
        message = f"there is no {what} in the IR, which says what is compiled"
        help_ = "start from what `stagec MODEL.stg --stop-after PASS` prints"
        raise refused("E0716", message, place_of(module), help=help_)
    return found


def check_plan(module: ModuleOp, op: dist.PlanOp, plan: Plan) -> None:
    """E0709 for a plan that speaks of a dim or an axis that the module has not."""
    dims = [each.dim.data for each in module.body.ops if isinstance(each, stg.DimOp)]
    batch = (op.batch_dim,) if op.batch_dim else ()
    new = (op.new_dim,) if op.new_dim is not None else ()
    named: list[tuple[str, str, Sequence[str], Sequence[str]]] = [
        ("batch", "dim", batch, dims),
        ("new", "dim", new, dims),
    ]
    mesh = [axis.name for axis in plan.axes]
    for number, rule in enumerate(plan.rules):
        named.append((f"rules.{number}.dims", "dim", rule.dims, dims))
        named.append((f"rules.{number}.axes", "axis of the mesh", rule.axes, mesh))
        named.append((f"rules.{number}.copies", "axis of the mesh", rule.copies, mesh))
    for path, what, names, known in named:
        unknown = [name for name in names if name not in known]
        if unknown:
            message = f"`dist.plan`: `{path}` names the {what} `{unknown[0]}`, which does not exist"
            help_ = suggestion(unknown[0], known) or "declare it in the module"
            raise refused("E0709", message, span_of(op.location), help=help_)


class WrongClause(Exception):
    """An attribute that is no clause of a plan."""


def written(value: object, path: str, places: dict[str, str]) -> Attribute:
    """A value of a plan as an attribute. `places` is told where things stand in the text."""
    match value:
        case None:
            return UnitAttr()
        case bool():
            return BoolAttr.from_bool(value)
        case int():
            return IntegerAttr(value, i64)
        case float():
            return FloatAttr(value, f64)
        case str():
            return StringAttr(value)
        case tuple():
            return ArrayAttr([written(each, f"{path}.{i}", places) for i, each in enumerate(value)])
        case Mapping():
            return DictionaryAttr(
                {str(key): written(each, f"{path}.{key}", places) for key, each in value.items()}
            )
        case _:
            assert is_dataclass(value), value
            return DictionaryAttr(written_fields(value, path, places))


def written_fields(value: Any, path: str, places: dict[str, str]) -> dict[str, Attribute]:
    """The fields of a clause that differ from what holds by default."""
    found: dict[str, Attribute] = {}
    for each in fields(value):
        own, inside = getattr(value, each.name), f"{path}.{each.name}" if path else each.name
        if own == default_of(each):
            continue
        if isinstance(own, Span):
            places[inside] = dist.place_of(own)
        elif each.name in SPANS:
            places |= {f"{inside}.{key}": dist.place_of(span) for key, span in own.items()}
        else:
            found[each.name] = written(own, inside, places)
    return found


SPANS = ("given", "dim_spans")
"""Fields that have a place for each name."""


LISTS = {"unit": "units", "freeze": "frozen"}
"""Clauses of a plan that are lists of names, each with a place of its own, and what the plan calls these."""


def is_setting(kind: type, found: Mapping[str, Any], name: str) -> bool:
    """Whether a name that has a place is that of a setting of a clause, with a dot and what it lists behind it."""
    setting, _, listed = name.partition(".")
    if kind is Plan:
        return setting in LISTS and listed in (*(found.get(LISTS[setting]) or ()), "none")
    return setting in {each.name for each in fields(kind)}


def span_at(text: str) -> Span:
    if (span := dist.span_at(text)) is None:
        raise WrongClause(f"`{text}` is not a place in a text")
    return span


def default_of(each: Field[Any]) -> object:
    return each.default if each.default_factory is MISSING else each.default_factory()


@lru_cache
def hints_of(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


@dataclass
class ClauseReader:
    """Reads clauses. `places` has what stands in the text, by path."""

    places: Mapping[str, Span]
    placed: set[str] = field(default_factory=set)
    """The paths of those that belong to what was read."""

    @cached_property
    def places_in(self) -> Mapping[str, Mapping[str, str]]:
        """For each path that others begin with, what they go on with, and these."""
        found: dict[str, dict[str, str]] = {}
        for path in self.places:
            for dot in re.finditer(r"\.", path):
                found.setdefault(path[: dot.start()], {})[path[dot.end() :]] = path
        return found

    def value(self, hint: Any, attribute: Attribute, path: str) -> Any:
        """The value of an attribute that is to be of a type."""
        if get_origin(hint) in (Union, UnionType):
            return self.one_of(get_args(hint), attribute, path)
        if is_dataclass(hint):
            assert isinstance(hint, type)
            return self.clause(hint, attribute, path)
        origin = get_origin(hint)
        if origin is tuple and isinstance(attribute, ArrayAttr):
            inner = get_args(hint)[0]
            return tuple(self.value(inner, each, f"{path}.{i}") for i, each in enumerate(attribute))
        is_mapping = origin is not None and issubclass(origin, Mapping)
        if is_mapping and isinstance(attribute, DictionaryAttr):
            inner = get_args(hint)[1]
            return {
                key: self.value(inner, each, f"{path}.{key}")
                for key, each in attribute.data.items()
            }
        value = plain(attribute)
        if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
            return value
        if value is None or type(value) is not hint:
            raise WrongClause(f"`{path}` is not to be {attribute}")
        return value

    def one_of(self, hints: tuple[Any, ...], attribute: Attribute, path: str) -> Any:
        """The value by the first of some types that it can have."""
        if NoneType in hints and isinstance(attribute, UnitAttr):
            return None
        *others, last = (hint for hint in hints if hint is not NoneType)
        for hint in others:
            try:
                return self.value(hint, attribute, path)
            except WrongClause:
                continue
        return self.value(last, attribute, path)

    def clause(self, kind: type, attribute: Attribute, path: str) -> Any:
        """A clause: its fields, those that are not there by default."""
        if not isinstance(attribute, DictionaryAttr):
            raise WrongClause(f"`{path}` is not to be {attribute}")
        hints, found = hints_of(kind), dict[str, Any]()
        known = {each.name for each in fields(kind)}
        for key, each in attribute.data.items():
            inside = f"{path}.{key}" if path else key
            if key not in known:
                raise WrongClause(f"no clause of a plan has `{inside}`")
            found[key] = self.value(hints[key], each, inside)
        for each in fields(kind):
            if each.name in found:
                inside = f"{path}.{each.name}" if path else each.name
                check_setting(each, found[each.name], inside)
        for key in known:
            inside = f"{path}.{key}" if path else key
            if key in SPANS:
                named = self.places_in.get(inside, {})
                if key == "given":
                    named = {name: p for name, p in named.items() if is_setting(kind, found, name)}
                found[key] = {name: self.places[p] for name, p in named.items()}
                self.placed.update(named.values())
            elif inside in self.places and Span in (hints[key], *get_args(hints[key])):
                found[key] = self.places[inside]
                self.placed.add(inside)
        try:
            return kind(**found)
        except TypeError:
            raise WrongClause(f"`{path}` does not say all that it has to") from None


def check_setting(each: Field[Any], value: object, path: str) -> None:
    """Check that a setting has a value that a plan can give it."""
    kind = each.metadata.get("kind", SettingKind(""))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and value < kind.least:
        raise WrongClause(f"`{path}` is {kind.least} or more, not {value}")
    given = value if isinstance(value, tuple) else (value,)
    for word in given if kind.name == "choice" else ():
        if isinstance(word, str) and word not in (*kind.choices, each.default):
            raise WrongClause(f"`{path}` is one of {quoted(kind.choices)}, not `{word}`")


def plain(attribute: Attribute) -> bool | int | float | str | None:
    match attribute:
        case IntegerAttr():
            number = attribute.value.data
            return bool(number) if attribute.type == i1 else number
        case FloatAttr():
            return attribute.value.data
        case StringAttr():
            return attribute.data
        case _:
            return None
