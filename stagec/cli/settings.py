"""What flags say: `--set tp=4`."""

from __future__ import annotations

from collections.abc import Iterable

from stagec.cli.usage import usage_error


def overrides(settings: Iterable[str]) -> dict[str, str]:
    """`--set NAME=SIZE`, each. E0710 for one without a size, or a second one for a name."""
    found: dict[str, str] = {}
    for setting in settings:
        name, equals, size = setting.partition("=")
        name, size = name.strip(), size.strip()
        origin = f"--set {setting}"
        if not (name and equals and size):
            raise usage_error(
                origin, "`--set` wants a name and a size", "E0710", "for example `--set tp=4`"
            )
        if found.setdefault(name, size) != size:
            message = f"`{name}` is set twice, to {found[name]} and to {size}"
            raise usage_error(origin, message, "E0711", "leave out one")
    return found
