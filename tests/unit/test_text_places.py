"""Where what TOML and other files say stands in their text."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from stagec.cli import main
from stagec.cli.batch_command import check_fit, read_requests
from stagec.diagnostics import CompileError, Span
from stagec.estimate.batcher import Policy
from stagec.frontend.plans.iterations import read_iterations
from stagec.importing.launch import import_plan
from stagec.plans.expert_histograms import read_histograms
from stagec.text_places import NoToml, TomlText, csv_place, read_toml

Path_ = tuple[str | int, ...]


def drawn(draws: random.Random, depth: int = 0) -> tuple[list[str], dict[Path_, int]]:
    """Lines of a TOML text, and the line of each key."""
    lines: list[str] = []
    places: dict[Path_, int] = {}
    keys = iter("abcdefghijklmnop")
    values = ("1", '"a # b"', "[1, # [\n 2]", "'''\n[x]\ny = 1\n'''", "{ u = 1 }", "2.5 # z = 3")

    def add_keys(header: Path_) -> None:
        for _ in range(draws.randrange(3)):
            key = next(keys)
            places[*header, key] = sum(line.count("\n") + 1 for line in lines) + 1
            lines.append(f"{' ' * draws.randrange(3)}{key} = {draws.choice(values)}")

    add_keys(())
    lines.append("# t = 1")
    for name in ("t", "v.w"):
        if draws.random() < 0.7:
            header: Path_ = tuple(name.split("."))
            places[header] = sum(line.count("\n") + 1 for line in lines) + 1
            lines.append(f"[{name}] # [q]")
            add_keys(header)
    for number in range(draws.randrange(3)):
        places["s", number] = sum(line.count("\n") + 1 for line in lines) + 1
        lines.append("[[s]]")
        add_keys(("s", number))
    return lines, places


def value_at(data: Any, path: Path_) -> Any:
    for each in path:
        data = data[each]
    return data


@pytest.mark.parametrize("seed", range(40))
def test_each_key_is_found_in_its_line(seed: int):
    lines, places = drawn(random.Random(seed))
    text = "\n".join(lines)
    found, data = TomlText(text, "x.toml"), tomllib.loads(text)
    for path, line in places.items():
        value_at(data, path)  # tomllib has it too
        place = found.place(*path)
        assert place is not None
        assert place.line == line
        written = text.split("\n")[line - 1][place.column - 1 : place.end_column - 1]
        assert re.match(rf"\[|{path[-1]}\b", written)
        assert found.place(*path, "missing") == place
    assert found.place("missing") is None


def test_what_is_no_toml_is_placed():
    for text, line, column in (("a = = 1", 1, 5), ("a = 1\n[b", 2, 3), ("x\n", 1, 2)):
        with pytest.raises(NoToml) as caught:
            read_toml(text, "x.toml")
        assert (caught.value.span.line, caught.value.span.column) == (line, column)


DEEP = f"a = {'[' * 10_000}{']' * 10_000}"
LONG = f"a = {'1' * 10_000}"


@pytest.mark.parametrize(
    ("text", "why"),
    [(DEEP, "it nests too deeply"), (LONG, "a number has thousands of digits")],
)
def test_what_python_cannot_read_is_no_toml(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "own.toml"
    path.write_text(text)
    for command, what in (
        (f"devices {path}", "`own.toml`"),
        (f"import {path} --kind torchtitan", "this"),
        (f"search gpt --devices 8 --device h100 --space {path}", f"`{path}`"),
    ):
        assert main(command.split()) == 1
        said = capsys.readouterr().err
        assert f"{what} is no TOML: {why}\n" in said
        assert f" {path}:1:1\n" in said
        assert said.count("error") == 1


@pytest.mark.parametrize("flags", [[], ["--kind", "deepspeed"]])
def test_what_is_no_json_is_placed(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "config.json"
    path.write_text('{\n  "a": 1\n  "b": 2\n}')
    assert main(["import", str(path), *flags]) == 1
    said = capsys.readouterr().err
    assert f" --> {path}:3:3\n" in said
    assert "= help: write a value behind each colon, and a comma between two\n" in said


def underlined(span: Span | None, text: str) -> str:
    assert span is not None
    line = text.split("\n")[span.line - 1]
    return line if span.end_line > span.line else line[span.column - 1 : span.end_column - 1]


@pytest.mark.parametrize(
    ("kind", "text", "word"),
    [
        ("megatron", "torchrun x.py \\\n  --micro-batch-size 2 # --seq\n  --seq 5", "--seq"),
        ("megatron", "torchrun x.py \\\n  --micro-batch-size $A", "--micro-batch-size"),
        ("torchtitan", "[parallelism]\nfoo_parallel_degree = 3", "foo_parallel_degree = 3"),
        ("deepspeed", json.dumps({"bf16": {"enabled": True}, "zeros": 1}, indent=1), "zeros"),
        ("nemo", "micro_batch_size: 1\ncontxt_parallel_size: 2", "contxt_parallel_size"),
        ("mlperf", "export TP_PARALLELL=2\nexport MINIBS=1", "TP_PARALLELL"),
    ],
)
def test_a_word_that_is_not_known_is_placed(kind: str, text: str, word: str):
    file = "run.toml" if kind == "torchtitan" else "run"
    with pytest.raises(CompileError) as caught:
        import_plan(text, file, kind)
    first = caught.value.diagnostics[0]
    assert underlined(first.span, text) == word
    assert first.helps
    assert "^" * len(word) in caught.value.render()


def test_a_network_that_is_no_yaml_is_placed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("infragraph")
    file = tmp_path / "net.yaml"
    file.write_text("devices: [\n  a: 3\n")
    example = str(Path(__file__).parents[2] / "examples" / "gpt.stg")
    assert main([example, "-q", "--network", str(file)]) == 1
    assert f" ::: {file}:3:1\n" in capsys.readouterr().err


def test_lines_of_tables_are_placed(tmp_path: Path):
    here = Span("p.stg", 1, 1, 1, 2)
    file = tmp_path / "x.csv"
    for text, shown in (("1, 2\n3, x", "x"), ("# a\n1, 2\n3", "3")):
        file.write_text(text)
        with pytest.raises(CompileError) as caught:
            read_histograms(str(file), here)
        (found,) = caught.value.diagnostics
        assert underlined(found.span, text) == shown
        assert [place for place, _ in found.secondary] == [here]
    file.write_text("prefill,decode\n1x2,\n,3\n")
    with pytest.raises(CompileError) as caught:
        read_iterations(str(file))
    assert underlined(caught.value.diagnostics[0].span, file.read_text()) == "3"


@pytest.mark.parametrize("seed", range(6))
def test_cells_of_a_table_are_found(seed: int):
    """Each cell of a random line that the csv module reads, and each word of it."""
    draws = random.Random(seed)
    words = ("1x2", "3@4", "1x2|3", '"5"', "a,b", "x")
    rows = [[" ".join(draws.sample(words, 2)) for _ in range(4)] for _ in range(5)]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    text = out.getvalue()
    for line, row in enumerate(rows, 1):
        for at, cell in enumerate(row):
            found = underlined(csv_place(text, "f", line, at), text)
            assert next(csv.reader([found]))[0] == cell
            if not set(cell) & {'"', "|"}:
                word = draws.choice(cell.split())
                assert underlined(csv_place(text, "f", line, at, word), text) == word
        assert underlined(csv_place(text, "f", line, 9), text) == text.split("\n")[line - 1]


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        ("prefill,decode\n1x2, 63@1500 3|4@5\n", " 63@1500 3|4@5"),
        ("prefill,decode\n1x2, 63@1500 64\n", "64"),
        ("decode,prefill,taken\n3@1, 1x2, 1x0@1\n", "1x0@1"),
        ("prefill,decode\n1x2,3@0\n", "3@0"),
        ("prefill,decode\n,3@1,x\n", "x"),
        ("prefill,decode,other\n", "other"),
    ],
)
def test_words_of_iterations_are_placed(rows: str, shown: str, tmp_path: Path):
    file = tmp_path / "x.csv"
    file.write_text(rows)
    with pytest.raises(CompileError) as caught:
        read_iterations(str(file))
    (found,) = caught.value.diagnostics
    assert found.helps
    assert underlined(found.span, rows) == shown.strip()


@pytest.mark.parametrize(
    ("line", "shown", "says"),
    [
        ("0, 5, x", "x", "`x` is no number of output"),
        ("0, 0, 5", "0", "a request has a prompt"),
        ("-1, 5, 5", "-1", "so many seconds after the first"),
        ("0, 5, 5, 5", "5", "a line of 4 cells"),
        ("0, 5", "0, 5", "this is not a request"),
    ],
)
def test_cells_of_requests_are_placed(line: str, shown: str, says: str, tmp_path: Path):
    file = tmp_path / "x.csv"
    file.write_text(f"arrival,prompt,output\n0,1,1\n{line}\n")
    with pytest.raises(CompileError) as caught:
        read_requests(str(file))
    (found,) = caught.value.diagnostics
    assert says in found.message
    assert found.span is not None
    assert found.span.line == 3
    assert underlined(found.span, file.read_text()) == shown


def test_a_request_that_fits_no_engine_is_placed(tmp_path: Path):
    file = tmp_path / "x.csv"
    file.write_text("arrival,prompt,output\n0,1,1\n\n0,100,1\n")
    with pytest.raises(CompileError) as caught:
        check_fit(read_requests(str(file)), Policy(tokens=10, chunked=False))
    (found,) = caught.value.diagnostics
    assert found.span == Span.whole_line(str(file), 4)
