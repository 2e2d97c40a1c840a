"""docs/tour.md says what the compiler prints: its lines appear, in order, in the IR after each step."""

import re
from pathlib import Path

import pytest

from stagec.cli import main
from stagec.driver import Stops, compile_text

TOUR = (Path(__file__).parents[2] / "docs" / "tour.md").read_text()
MODEL = re.search(r"```stg\n(.*?)```", TOUR, re.DOTALL)
STEPS = re.findall(r"--stop-after (\S+) --print-ir\n```\n.*?```mlir\n(.*?)```", TOUR, re.DOTALL)


def plain(line: str) -> str:
    """A line without attributes, types, and the names of values."""
    line = re.sub(r" ?(attributes )?\{[^{}]*\}", "", line.strip())
    line = re.sub(r" :( .*)?$", "", line.split(" : ")[0])
    return re.sub(r"%\w+", "%", line).rstrip()


def test_tour_has_every_step() -> None:
    assert MODEL is not None
    assert len(STEPS) == TOUR.count("--stop-after")


@pytest.mark.parametrize(("step", "block"), STEPS, ids=[step for step, _ in STEPS])
def test_lines_appear_in_order(step: str, block: str) -> None:
    assert MODEL is not None
    printed: list[str] = []
    stops = Stops(after=step, on_pass=lambda name, module: printed.append(str(module)))
    compile_text(MODEL.group(1), "tour.stg", "eight", stops=stops)
    lines = iter([plain(line) for line in printed[-1].split("\n")])
    for wanted in block.strip().split("\n"):
        assert plain(wanted) in lines, f"after {step}: {wanted}"


def test_timeline_is_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MODEL is not None
    found = re.search(
        r"```sh\nstagec ([^\n]* --timeline)\n```.*?```text\n(.*?)```", TOUR, re.DOTALL
    )
    assert found is not None
    (tmp_path / "tour.stg").write_text(MODEL.group(1))
    monkeypatch.chdir(tmp_path)
    assert main(found.group(1).split()) == 0
    assert capsys.readouterr().out.strip() == found.group(2).strip()
