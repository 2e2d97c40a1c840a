"""What the files define, by name. A name is defined once."""

from __future__ import annotations

from dataclasses import dataclass, field

from stagec.diagnostics import Diagnostic, Findings
from stagec.dialects.stg import BUILTINS
from stagec.frontend import syntax
from stagec.frontend.checker.numbers import SIZE_FUNCTIONS
from stagec.frontend.files import Source


@dataclass
class Definitions:
    """The items of a file and of all that it imports."""

    file: str
    dims: dict[str, syntax.Dim] = field(default_factory=dict)
    modules: dict[str, syntax.Module] = field(default_factory=dict)
    ops: dict[str, syntax.Op] = field(default_factory=dict)
    plans: dict[str, syntax.Plan] = field(default_factory=dict)
    """The plans of the file itself come first."""
    requires: list[syntax.Require] = field(default_factory=list)
    model: syntax.Model | None = None

    @property
    def callables(self) -> list[str]:
        """Everything that can be called in a body."""
        return [*BUILTINS, *self.modules, *self.ops]


def collect(source: Source, findings: Findings) -> Definitions:
    """Gather the definitions; duplicates and a missing model are findings."""
    definitions = Definitions(source.file)
    names: dict[str, syntax.Name] = {}
    ordered = [source.file, *(f for f in source.files if f != source.file)]
    for file in ordered:
        for item in source.files[file].items:
            if isinstance(item, syntax.Require):
                definitions.requires.append(item)
            elif isinstance(item, syntax.Plan):
                _define(item, definitions.plans, {n: p.name for n, p in definitions.plans.items()})
                _once(item.name, {}, findings)
            elif isinstance(item, syntax.Model):
                if file == source.file:
                    _model(item, definitions, names, findings)
            elif not isinstance(item, syntax.ImportFile) and _once(item.name, names, findings):
                if isinstance(item, syntax.Dim):
                    definitions.dims[item.name.text] = item
                elif isinstance(item, syntax.Module):
                    definitions.modules[item.name.text] = item
                else:
                    definitions.ops[item.name.text] = item
    if definitions.model is None:
        help_ = "add `model Name(inputs) { ... }`"
        message = f"`{source.file}` has no model"
        findings.add(Diagnostic("E0215", message, help=help_, origin=source.file))
    return definitions
