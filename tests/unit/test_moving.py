"""Texts that are written into another folder, as `stagec search -o` does it."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from stagec.cli import main
from stagec.cli.search_command import beside
from stagec.frontend import parse_text
from stagec.frontend.moving import moved
from stagec.frontend.plans.files import texts_in
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
        found = sorted((e.span.line, e.span.column, e.text) for e in texts_in(program.items))
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
        ("models/my own.toml", '"my own.toml"'),
        ("models/my own.toml { node = 4 }", '"my own.toml" { node = 4 }'),
        ('"link/mine.toml"', '"link/mine.toml"'),
    ],
)
def test_a_device_of_the_command_line_stands_in_the_model(
    said: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is looked for from where the command runs, and from beside the model where a plan names it."""
    written = written.replace("/x", str(tmp_path)).replace("link", "../link")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to("far")
    for name in ("mine.toml", "models/mine.toml", "models/my own.toml", "far/mine.toml"):
        (tmp_path / name).write_text('base = "h100"\n')
    assert beside(said.replace("/x", str(tmp_path)), "models/m.stg") == written


ALONE = ["--executor", "serial"]
FEW = [*ALONE, "--fix", "microbatch=1", "--fix", "zero=0", "--fix", "recompute=none"]

MODEL = """
dim B = 16
dim D = 64
dim E = 32
model Net(x[B, D]) {
  weight w[D, E]
  loss = mean(mean(x @ w, over = E), over = B)
}
"""


ATTENDING = """
dim B = 16
dim S = 16
dim D = 64
dim H = 4
dim E = D / H
dim L = 2
module Layer(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wo[H, E, D]
  q = x @ wq
  return x + attention(q, q, q, causal = true) @ wo
}
model Net(x[B, S, D]) {
  repeat L { x = Layer(x) }
  loss = mean(x, over = [B, S, D])
}
"""


def test_a_search_finds_files_where_folders_are_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the folder that a link leads to, `..` is not where the link is."""
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "here" / "out").mkdir(parents=True)
    (tmp_path / "here" / "models").symlink_to(tmp_path / "far" / "deep")
    (tmp_path / "far" / "deep" / "net.stg").write_text(MODEL)
    (tmp_path / "here" / "mine.toml").write_text('base = "h100"\n')
    monkeypatch.chdir(tmp_path / "here")
    asked = ["search", "models/net.stg", "--devices", "2", "--device", "mine.toml", "-q"]
    asked += [*FEW, "--top", "1"]
    assert main([*asked, "-o", "out/found.stg"]) == 0
    assert 'device "../mine.toml"' in (tmp_path / "here" / "out" / "found.stg").read_text()
    assert main(["out/found.stg", "-q"]) == 0
    assert main([*asked, "-o", "models/found.stg"]) == 0
    assert main(["models/found.stg", "-q"]) == 0
    assert main([str(tmp_path / "far" / "deep" / "found.stg"), "-q"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("settings", ["", " { node = 4 }"])
def test_a_device_file_that_is_not_there_is_told_as_of_a_compilation(
    settings: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "devices").mkdir()
    (tmp_path / "models" / "net.stg").write_text(MODEL)
    said = ["--device", f"devices/nix.toml{settings}"]
    assert main(["models/net.stg", "-q", *said]) == 1
    compiled = capsys.readouterr().err
    assert main(["search", "models/net.stg", "--devices", "2", "-q", *said]) == 1
    assert capsys.readouterr().err == compiled
    assert f"--> --device devices/nix.toml{settings}\n" in compiled


@pytest.mark.parametrize(
    ("clause", "help_"),
    [
        ('documents S file "models/lengths.csv"', "write `lengths.csv`"),
        ('documents S file "length.csv"', "did you mean `models/lengths.csv`?"),
    ],
)
def test_a_file_of_a_clause_is_beside_the_model(
    clause: str,
    help_: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "net.stg").write_text(ATTENDING)
    (tmp_path / "models" / "lengths.csv").write_text("10\n6\n")
    (tmp_path / "other.csv").write_text("10\n6\n")
    asked = ["search", "models/net.stg", "--devices", "2", "--device", "h100", "-q"]
    asked += [*FEW, "--top", "1", "--clause"]
    assert main([*asked, clause]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error[E0701]")
    assert f"--> --clause '{clause}'" in said
    assert help_ in said
    assert "from the folder of the model, `models`" in said
    assert main([*asked, 'documents S file "../other.csv"']) == 1
    said = capsys.readouterr().err
    assert said.startswith("error[E0721]")
    assert "add `--trust .`" in said
    assert main([*asked, 'documents S file "lengths.csv"']) == 0, capsys.readouterr().err


def test_the_plan_of_an_imported_file_is_changed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `--plan` finds it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plans.stg").write_text("plan split { mesh dp = 2 shard B over dp device h100 }\n")
    (tmp_path / "net.stg").write_text(f'import "plans.stg"\n{MODEL}')
    asked = ["search", "net.stg", "-q", *ALONE, "--like"]
    assert main([*asked, "split"]) == 0
    assert "as it is" in capsys.readouterr().out
    assert main([*asked, "splits"]) == 1
    assert "did you mean `split`" in capsys.readouterr().err


def test_a_mistake_in_settings_of_a_search_is_shown_where_it_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "net.stg").write_text(MODEL)
    (tmp_path / "my own.toml").write_text('base = "h100"\n')
    said = ["--device", "my own.toml { node = 4, nod = 4 }"]
    assert main(["search", "models/net.stg", "--devices", "2", "-q", *said]) == 1
    _, typed, carets, *_ = capsys.readouterr().err.split("\n")
    assert typed == " --> --device my own.toml { node = 4, nod = 4 }"
    assert carets.index("^^^") == typed.index("nod =")
