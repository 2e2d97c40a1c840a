"""Pages are whole, small and self-contained, and show what the compiler says."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from stagec.cli import main
from stagec.pictures.charts import Bar, ChartSeries, Marker, Point, areas, bars, front, heat, points
from stagec.pictures.page import chosen, page
from stagec.pictures.scales import Scale
from tests.unit.examples import FOLDER
from tests.unit.reports.browser import rendered
from tests.unit.seldom import some

VOID = {"meta", "input", "br", "link"}


class Balanced(HTMLParser):
    """Each element ends, in order; no attribute asks for anything elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        assert "src" not in names, tag
        href = names.get("href") or "#"
        assert href.startswith(("#", "data:")), names
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_whole(text: str) -> list[str]:
    parser = Balanced()
    parser.feed(text)
    parser.close()
    assert not parser.open
    assert len(text) < 1_000_000
    assert "nan" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    return parser.seen


finite = st.floats(-1e12, 1e12, allow_nan=False)


@settings(max_examples=40)
@given(st.floats(0, 1e15), st.floats(0.001, 1e15), st.integers(1, 12))
def test_ticks_are_inside_and_few(low: float, span: float, about: int) -> None:
    scale = Scale(low, low + span, 0, 100)
    ticks = scale.ticks(about)
    if low + span > low:
        assert len(ticks) <= 2 * about + 2
        near = span * 1e-6 + math.ulp(low + span)  # the closest that numbers of this size get
        assert all(low - near <= t <= low + span + near for t in ticks)


@pytest.mark.seldom
@settings(max_examples=30)
@given(st.data(), st.integers(1, 20), st.integers(0, 4), st.text(max_size=8))
def test_any_chart_is_whole(data: st.DataObject, count: int, kinds: int, name: str) -> None:
    x = np.sort(np.array(data.draw(st.lists(finite, min_size=count, max_size=count))))
    values = st.lists(st.floats(0, 1e9), min_size=count, max_size=count)
    series = [ChartSeries(f"{name}{k}", np.array(data.draw(values))) for k in range(kinds)]
    mark = Marker(float(x[-1]), name)
    square = np.abs(np.outer(x, x)) / (np.abs(x).max() + 1)
    drawn = [
        areas(name, x, series, ("a", "b"), [mark], [Marker(1.0, name)]),
        points(name, ("a", "b"), [Point(float(v), float(-v), name, v > 0) for v in x], "best"),
        bars(name, "a", ["one", name], [Bar(name, [abs(float(v)), 1.0], name) for v in x]),
        heat(name, [f"{name}{i}" for i in range(count)], square, ("from", "to"), "B"),
    ]
    check_whole(page(name, *drawn, chosen("c", [(name, d) for d in drawn])))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12))
def test_the_front_is_what_none_beats(pairs: list[tuple[int, int]]) -> None:
    kept = {pairs[i] for i in front(pairs)}
    beaten = {p for p in pairs if any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in pairs)}
    assert kept == set(pairs) - beaten


@pytest.mark.parametrize("clause", some(["", "device h100"], 2))
def test_memory_page(clause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With times where the plan names a device, by node where it does not."""
    model = tmp_path / "gpt.stg"
    text = (FOLDER / "gpt.stg").read_text()
    text = re.sub(r"\n *device h100", "", text).replace("microbatch 4", f"microbatch 4 {clause}")
    model.write_text(text)
    path = tmp_path / "memory.html"
    assert main([str(model), "-q", "--memory", str(path)]) == 0
    written = path.read_text()
    assert check_whole(written).count("svg") == 3
    assert ("time in the step (ms)" in written) == bool(clause)
    assert main([str(model), "--memory"]) == 0
    table = capsys.readouterr().out.split("peak\n", 1)[1]
    found = re.search(r"^all .* (\d+\.\d\d)$", table, re.MULTILINE)
    assert found
    assert f"{found[1]} GiB at " in written


@pytest.mark.seldom
def test_a_browser_shows_the_pages(tmp_path: Path) -> None:
    memory, plot = tmp_path / "memory.html", tmp_path / "plans.html"
    model = str(FOLDER / "llama3_8b.stg")
    assert main([model, "-q", "--memory", str(memory)]) == 0
    sweep = ["--sweep", "tp=1,2,4,8", "microbatch=1,2", "--plot", str(plot)]
    assert main(["explain", model, "comm,memory.peak", *sweep]) == 0
    assert "Memory of" in rendered(memory)
    assert "<circle" in rendered(plot)
