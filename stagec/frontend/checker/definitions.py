"""What the files define, by name. A name is defined once, whatever it names; plans are apart."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from stagec.diagnostics import Diagnostics
from stagec.dialects import stg
from stagec.dialects.types import TIME_AXIS
from stagec.frontend import syntax
from stagec.frontend.files import Source
from stagec.frontend.numbers import SIZE_FUNCTIONS


@dataclass
class Definitions:
    """The items of a file and of all that it imports, but for the models of imported files."""

    dims: dict[str, syntax.Dim] = field(default_factory=dict)
    modules: dict[str, syntax.Module] = field(default_factory=dict)
    ops: dict[str, syntax.Op] = field(default_factory=dict)
    plans: dict[str, syntax.Plan] = field(default_factory=dict)
    """The plans of the file itself come first."""
    requires: list[syntax.Require] = field(default_factory=list)
    models: list[syntax.Model] = field(default_factory=list)
    functions: Mapping[str, stg.Function] = field(default_factory=dict)
    """The functions that are built in, and those of plug-ins."""

    @property
    def callables(self) -> list[str]:
        """Everything that can be called in a body."""
        return [*self.functions, *self.modules, *self.ops]


def collect(
    source: Source, findings: Diagnostics, functions: Mapping[str, stg.Function] = stg.FUNCTIONS
) -> Definitions:
    """Gather the definitions; duplicates, and another number of models than one, are findings."""
    definitions = Definitions(functions=functions)
    names: dict[str, syntax.Name] = {}
    plan_names: dict[str, syntax.Name] = {}
    lent: list[syntax.Model] = []
    for file in [source.file, *(f for f in source.files if f != source.file)]:
        for item in source.files[file].items:
            if isinstance(item, syntax.ImportFile):
                continue
            if isinstance(item, syntax.Require):
                definitions.requires.append(item)
            elif isinstance(item, syntax.Model):
                if file == source.file:
                    definitions.models.append(item)
                    _is_new(item.name, names, findings, functions)
                else:
                    lent.append(item)
            elif isinstance(item, syntax.Plan):
                if _is_new(item.name, plan_names, findings, (), "plan "):
                    definitions.plans[item.name.text] = item
            elif _is_new(item.name, names, findings, functions):
                _add(item, definitions)
    _check_calls(definitions, findings)
    _check_models(source, definitions, lent, findings)
    return definitions


LATER_CALL = re.compile(r"(.+)_([2-9]|[1-9]\d+)")
"""What the second and later calls of a module in a body are called."""


def _check_calls(definitions: Definitions, findings: Diagnostics) -> None:
    """No module has the name of a call of another: paths of weights, and the units of plans, go by such names."""
    for name, module in definitions.modules.items():
        found = LATER_CALL.fullmatch(name)
        if found and (other := definitions.modules.get(found[1])) is not None:
            message = f"`{name}` is what call {found[2]} of `{found[1]}` in a body is called"
            secondary = [(other.name.span, f"`{found[1]}` is a module")]
            help_ = "choose a name without a number at its end"
            findings.say("E0202", message, module.name.span, help=help_, secondary=secondary)


def plans_of(source: Source) -> dict[str, syntax.Plan]:
    """The plans of a file, then those of what it imports; the first one of a name."""
    found: dict[str, syntax.Plan] = {}
    for file in [source.file, *(f for f in source.files if f != source.file)]:
        for item in source.files[file].items:
            if isinstance(item, syntax.Plan):
                found.setdefault(item.name.text, item)
    return found


def _add(item: syntax.Dim | syntax.Module | syntax.Op, definitions: Definitions) -> None:
    if isinstance(item, syntax.Dim):
        definitions.dims[item.name.text] = item
    elif isinstance(item, syntax.Module):
        definitions.modules[item.name.text] = item
    else:
        definitions.ops[item.name.text] = item


def _is_new(
    name: syntax.Name,
    names: dict[str, syntax.Name],
    findings: Diagnostics,
    functions: Collection[str],
    kind: str = "",
) -> bool:
    first = names.setdefault(name.text, name)
    if first is not name:
        message = f"{kind}`{name}` is defined twice"
        secondary = [(first.span, "first here")]
        help_ = "leave one of them out, or give it another name"
        findings.say("E0202", message, name.span, secondary=secondary, help=help_)
        return False
    if not kind and name.text in (*functions, *SIZE_FUNCTIONS, TIME_AXIS):
        message = f"`{name}` is built in"
        help_ = "choose another name"
        findings.say("E0202", message, name.span, help=help_)
        return False
    return True


def _check_models(
    source: Source, definitions: Definitions, lent: list[syntax.Model], findings: Diagnostics
) -> None:
    """A file without a model, such as one of plans, has that of what it imports."""
    if not definitions.models and len(lent) == 1:
        definitions.models.append(lent[0])
    if not definitions.models:
        message = f"`{source.file}` has no model"
        help_ = "add `model Name(inputs) { ... }`, or import a file that has one"
        if lent:
            message += f", and what it imports has {len(lent)}"
            help_ = "import one of them alone"
        elif definitions.plans and not definitions.modules:
            plan = next(iter(definitions.plans))
            help_ = f"import the model's file, or give it a plan of this one: `stagec MODEL.stg --plan {source.file}:{plan}`"
        findings.say("E0215", message, origin=source.file, help=help_)
    for model in definitions.models[1:]:
        first = definitions.models[0].name.span
        findings.say(
            "E0215",
            "a file has one model",
            model.name.span,
            secondary=[(first, "first here")],
            help="move it to a file of its own, and share modules with `import`",
        )
