"""What installed packages bring under a name of their entry points.

`importlib.metadata` knows all of a package, and reads mails for it: 2 MiB of memory and a fiftieth of a second. Most have nothing for us, which the
files where packages list their entry points say by themselves
(https://packaging.python.org/en/latest/specifications/entry-points/).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

INFO = ".dist-info", ".egg-info"
"""How folders end that say what a package is."""
FILE = "entry_points.txt"


def entry_points(group: str, ours: Collection[str] = ()) -> list[EntryPoint]:
    """The entry points of a group, by their names, but for `ours`."""
    if not may_bring(group, ours):
        return []
    from importlib.metadata import entry_points

    found = [point for point in entry_points(group=group) if point.name not in ours]
    return sorted(found, key=lambda point: point.name)


def may_bring(group: str, ours: Collection[str]) -> bool:
    """Whether there may be others: packages list some, or are where only `importlib.metadata` can look, in archives or wherever finders of others find them."""
    if any(
        each is not PathFinder and hasattr(each, "find_distributions") for each in sys.meta_path
    ):
        return True
    folders = [folder or os.curdir for folder in sys.path]
    if any(os.path.isfile(folder) for folder in folders):
        return True
    listed = (name for folder in folders if os.path.isdir(folder) for name in names(folder, group))
    return any(name not in ours for name in listed)


def names(folder: str, group: str) -> Iterator[str]:
    """The names in a group of entry points that packages in a folder list."""
    with os.scandir(folder) as found:
        infos = [each.path for each in found if each.name.endswith(INFO)]
    for info in infos:
        try:
            with open(os.path.join(info, FILE), encoding="utf-8") as file:
                yield from names_in(file.read(), group)
        except OSError:
            continue


def names_in(text: str, group: str) -> Iterator[str]:
    """The names in a group, of a file in the form of `configparser`."""
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[] ")
        elif section == group and "=" in line and not line.startswith(("#", ";")):
            yield line.partition("=")[0].strip()
