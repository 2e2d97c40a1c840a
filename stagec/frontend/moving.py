"""Write a text for another folder: the files that it names are no more where it says."""

from __future__ import annotations

import os
from pathlib import Path

from stagec.frontend.files import parse_text
from stagec.frontend.plans.files import texts_in


def moved(text: str, file: str, folder: str | Path) -> str:
    """The text of `file` as it is to stand in another folder, with the same files of imports, devices, schedules and lengths."""
    old = Path(file).parent
    if os.path.realpath(old) == os.path.realpath(folder):
        return text
    lines = text.split("\n")
    named = texts_in(parse_text(text, file).files[file].items)
    for each in sorted(named, key=lambda each: (each.span.line, each.span.column), reverse=True):
        # A schedule in Python has its function behind the name of the file.
        name, colon, function = each.text.partition(":")
        if os.path.isabs(name) or not (old / name).is_file():
            continue
        there = path_from(folder, old / name)
        number, first, last = each.span.line - 1, each.span.column - 1, each.span.end_column - 1
        line = lines[number]
        lines[number] = f'{line[:first]}"{there}{colon}{function}"{line[last:]}'
    return "\n".join(lines)


def path_from(folder: str | Path, file: str | Path) -> str:
    """The path of a file from a folder. Over a link to a folder, `..` is not the way back: the folders are then those that links lead to."""
    path = os.path.relpath(file, folder)
    if os.path.realpath(Path(folder, path)) != os.path.realpath(file):
        there = os.path.join(os.path.realpath(os.path.dirname(file)), os.path.basename(file))
        path = os.path.relpath(there, os.path.realpath(folder))
    return Path(path).as_posix()
