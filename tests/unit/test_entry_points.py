"""Entry points of installed packages: those that `importlib.metadata` finds, asked only where there are some."""

from __future__ import annotations

import random
import sys
import zipfile
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from stagec.entry_points import entry_points, may_bring, names_in

OURS = ("xdsl", "stagec")


def test_only_ours_are_installed():
    assert {point.name for point in metadata.entry_points(group="xdsl.universe")} == {*OURS}
    assert not may_bring("xdsl.universe", OURS)
    assert may_bring("xdsl.universe", OURS[:1])
    assert may_bring("console_scripts", ())


@pytest.mark.parametrize("seed", range(20))
def test_as_importlib_finds_them(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Packages with a few groups each, in the forms that files may have."""
    draw = random.Random(seed)
    groups = ["a.b", "a", "console_scripts"]
    folders = [tmp_path / "one", tmp_path / "two"]
    for number in range(draw.randrange(5)):
        info = draw.choice(folders) / f"p{number}{draw.choice(['-1.0.dist-info', '.egg-info'])}"
        info.mkdir(parents=True)
        (info / draw.choice(["METADATA", "PKG-INFO"])).write_text(f"Name: p{number}\n")
        lines: list[str] = []
        for group in draw.sample(groups, draw.randrange(4)):
            lines += [draw.choice(["", "# x = y"]), f"{draw.choice(['', ' '])}[{group}]"]
            for each in range(draw.randrange(3)):
                equals = draw.choice(["=", " = ", "  ="])
                lines.append(f"n{number}{each}{equals}some.module:thing{each} [extra]")
        if lines:
            (info / "entry_points.txt").write_text("\n".join(lines))
    for folder in folders:
        monkeypatch.syspath_prepend(str(folder))
    for group in groups:
        everywhere = {point.name for point in metadata.entry_points(group=group)}
        assert {point.name for point in entry_points(group)} == everywhere
        assert may_bring(group, ()) == bool(everywhere)
        ours = draw.sample(sorted(everywhere), min(2, len(everywhere)))
        assert {point.name for point in entry_points(group, ours)} == everywhere - {*ours}


def test_a_comment_and_another_group_are_no_name():
    text = "[a]\n# b = c\nd = e\n\n[f]\ng = h\n"
    assert (list(names_in(text, "a")), list(names_in(text, "b"))) == (["d"], [])


def test_archives_and_finders_of_others_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    archive = tmp_path / "p.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("p-1.0.dist-info/METADATA", "Name: p\nVersion: 1.0\n")
        file.writestr("p-1.0.dist-info/entry_points.txt", "[a.b]\nzipped = p:x\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(archive))
        assert [point.name for point in entry_points("a.b")] == ["zipped"]
    assert not may_bring("a.b", ())

    class Finder(metadata.DistributionFinder):
        def find_distributions(self, context=None):
            return PathFinder.find_distributions(
                metadata.DistributionFinder.Context(path=[str(archive)])
            )

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert [point.name for point in entry_points("a.b")] == ["zipped"]
