"""Reads settings of clauses, and the axes that they name."""

from __future__ import annotations

from collections.abc import Iterable

from stagec.diagnostics import Diagnostics, Mistake, Span, did_you_mean, quoted
from stagec.frontend import syntax
from stagec.frontend.plans.merge import Merged
from stagec.frontend.plans.settings import BatchRows, SettingsReader
from stagec.frontend.sizes import SizeTable


def places_of(title: str, names: Iterable[syntax.Path]) -> dict[str, Span]:
    """Where each name of a list stands."""
    return {f"{title}.{name}": name.span for name in names}


class PlanReader:
    """What clauses of a plan are read with: the merged plan, known sizes, and where mistakes go."""

    def __init__(
        self,
        merged: Merged,
        table: SizeTable,
        findings: Diagnostics,
        rows: BatchRows = BatchRows.SEQUENCES,
    ) -> None:
        self.merged, self.table, self.findings = merged, table, findings
        self.settings = SettingsReader(table.values, findings, rows)
        mesh = merged.get(syntax.Mesh)
        self.axes = [a.name for a in mesh.axes] if mesh else []
        self.axis_names = [name.text for name in self.axes]
        self.without_mesh: list[syntax.Name] = []
        """The axes that a plan names which has none."""

    def error(
        self,
        code: str,
        message: str,
        node: syntax.SyntaxNode,
        help_: str = "",
        mistake: Mistake | None = None,
    ) -> None:
        self.findings.say(code, message, node.span, help=help_, mistake=mistake)

    def tell_mesh(self) -> None:
        """E0302 for all axes of a plan without a mesh."""
        names = list(dict.fromkeys(name.text for name in self.without_mesh))
        message = f"the mesh has no {'axis' if len(names) == 1 else 'axes'} {quoted(names)}"
        help_ = f"add `mesh {', '.join(f'{name} = 8' for name in names)}`"
        for name in self.without_mesh:
            self.error("E0302", message, name, help_, mistake=Mistake("no mesh"))

    def real_axes(self, names: Iterable[syntax.Name], where: str) -> list[str]:
        """Axes of the mesh; products are taken apart. Unknown and repeated ones are findings."""
        found: dict[str, syntax.Name] = {}
        for name in names:
            text = name.text
            if text not in self.axis_names:
                is_dim = text in self.table.dim_names
                help_ = did_you_mean(text, self.axis_names)
                if is_dim:
                    help_ = f"`{text}` is a dim; axes stand in `mesh`"
                elif not help_ and self.axis_names:
                    help_ = f"the mesh has {quoted(self.axis_names)}"
                elif not self.axis_names:
                    self.without_mesh.append(name)
                    continue
                message = f"the mesh has no axis `{text}`"
                self.error("E0302", message, name, help_, mistake=Mistake("no axis", text))
                continue
            for part in self.table.products.get(text, (text,)):
                if part in found:
                    self.findings.say(
                        "E0303",
                        f"axis `{part}` stands twice in {where}",
                        name.span,
                        secondary=[(found[part].span, "first here")],
                        help="leave one of them out",
                    )
                found.setdefault(part, name)
        return list(found)

    def apart(self, names: Iterable[syntax.Name]) -> list[str]:
        """Axes as the mesh names them, products among them taken apart."""
        copied = self.table.copied
        parts = {
            name: [name] if name in copied else list(self.table.products.get(name, (name,)))
            for name in (n.text for n in names)
        }
        return [part for found in parts.values() for part in found]

    def only_settings(self, kind: type, target: type):
        clause = self.merged.get(kind)
        if clause is None:
            return target()
        title = f"`{kind.__name__.lower()}`"
        return target(span=clause.span, **self.settings.read(clause.settings, target, title))
