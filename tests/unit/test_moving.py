"""Texts that are written into another folder, as `stagec search -o` does it."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from stagec.cli.search_command import beside
from stagec.frontend import parse_text
from stagec.frontend.moving import files_named, moved
from stagec.trust import trusted, trusting

FOLDERS = (".", "a", "a/b", "a/b/c", "d", "d/e")
TEXT = """
import "{0}"
dim B = 4 dim L = 2
plan p {{
  mesh pp = 2 device "{1}" {{ memory = 4GiB }}  # "{1}" is not a name of a file here
  pipeline L over pp {{ schedule = "{2}:order", microbatch = 1 }} documents B file "{3}"
  offload {{ activations = ["Block.h"] }}
  pass decompose-all-reduce {{ axis = "{0}" }}
}}
"""


@pytest.mark.parametrize("seed", range(8))
def test_files_are_the_same_from_another_folder(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    old, new = (tmp_path / rng.choice(FOLDERS) for _ in range(2))
    names: list[str] = []
    for name in ("m.stg", "mine.toml", "s.py", "lengths.csv"):
        folder = tmp_path / rng.choice(FOLDERS)
        for each in (old, new, folder):
            each.mkdir(parents=True, exist_ok=True)
        content = "dim S = 8\n" if name == "m.stg" else ""
        (folder / name).write_text(content)
        names.append(Path(os.path.relpath(folder / name, old)).as_posix())
    text = TEXT.format(*names)

    def named(text: str, folder: Path) -> list[str]:
        program = parse_text(text, str(folder / "x.stg")).files[str(folder / "x.stg")]
        found = sorted((e.span.line, e.span.column, e.text) for e in files_named(program))
        return [os.path.realpath(folder / name.partition(":")[0]) for *_, name in found]

    with trusting(trusted(False, (str(tmp_path),))):
        there = moved(text, str(old / "x.stg"), new)
        assert named(there, new) == named(text, old)
        assert len(named(text, old)) == 4
        assert moved(there, str(new / "x.stg"), old) == text
    assert there.count(f'axis = "{names[0]}"') == there.count(f'# "{names[1]}" is') == 1


def test_what_is_no_file_stays(tmp_path: Path) -> None:
    text = 'plan p { device "none.toml" }'
    assert moved(text, str(tmp_path / "a" / "x.stg"), tmp_path) == text


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("h100", "h100"),
        ("h100 { node = 4 }", "h100 { node = 4 }"),
        ("models/mine.toml", '"mine.toml"'),
        ("mine.toml { node = 4 }", '"../mine.toml" { node = 4 }'),
        ('"mine.toml"{ node = 4 }', '"../mine.toml"{ node = 4 }'),
        ("/x/mine.toml", '"/x/mine.toml"'),
        ("{ flops_per_s = 1e12 }", "{ flops_per_s = 1e12 }"),
    ],
)
def test_a_device_of_the_command_line_stands_in_the_model(said: str, written: str) -> None:
    """Its file is looked for from where the command runs, and from beside the model where a plan names it."""
    assert beside(said, "models/m.stg") == written
