from pathlib import Path

import pytest

from stagec.diagnostics import CompileError
from stagec.frontend.plans.iterations import read_iterations
from stagec.reading import parse_csv, parse_json


def test_rows_have_the_numbers_of_their_lines() -> None:
    assert parse_csv('a,b\n\n"c\nd",e\n') == [(1, ["a", "b"]), (2, []), (4, ["cd", "e"])]


def test_a_line_as_long_as_no_cell_is_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("prefill,decode\n" + "x" * 200_000 + ",\n")
    with pytest.raises(CompileError, match=r"E0421[\s\S]*line 2"):
        read_iterations(str(path))


def test_bytes_that_are_no_text_are_told_without_a_codec(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"prefill\n\xff\n")
    with pytest.raises(CompileError, match="it is not text: byte 8 is not UTF-8"):
        read_iterations(str(path))


def test_a_number_of_thousands_of_digits_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="a number has thousands of digits"):
        parse_json("[" + "9" * 5000 + "]")
