"""The page of `--report`, and the numbers that the first screen shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from stagec.cli import main
from stagec.dialects.sched.actions import Collective
from stagec.driver import compile_text
from stagec.estimate.intervals import at_most, difference, length, overlap, union
from stagec.estimate.step import estimate
from stagec.reports.headline import headline
from stagec.reports.step_report import report_page
from stagec.reports.traffic import factor, traffic
from tests.fidelity.totals import nodes_of, ranks_of
from tests.unit.examples import FOLDER, compile_example
from tests.unit.reports.browser import rendered
from tests.unit.reports.test_pages import check_whole

TINY = """
dim B = 8
dim S = 16
dim D = 32
dim F = 64
dim L = 4

module Block(x[B, S, D]) -> [B, S, D] {
  weight up[D, F], down[F, D]
  return x + (x @ up) @ down
}

model Net(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[F, D]
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  loss = cross_entropy(x @ embed, targets)
}

plan p {
  mesh dp = 2, pp = 2, tp = 2
  shard B over dp
  shard F over tp
  pipeline L over pp { schedule = zb_h1, microbatch = 1 }
  device h100
}
"""
stretches = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


def covers(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for start, length in pairs for t in range(start, start + length)}


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    starts = np.array([start for start, _ in pairs], float)
    return starts, starts + np.array([length for _, length in pairs], float)


@settings(max_examples=60)
@given(stretches, stretches, st.integers(1, 5))
def test_spans_are_sets_of_moments(
    one: list[tuple[int, int]], other: list[tuple[int, int]], count: int
) -> None:
    first, second = union(*arrays(one)), union(*arrays(other))
    assert length(first) == len(covers(one))
    assert length(difference(first, second)) == len(covers(one) - covers(other))
    few = at_most(first, count)
    assert len(few) <= count
    assert length(difference(first, few)) == 0
    assert overlap(first, *few.T).sum() == pytest.approx(length(first))


def test_headline() -> None:
    compiled = compile_text(TINY)
    head = headline(compiled)
    assert sum(head.shares.values()) == pytest.approx(1.0)
    assert head.step_us == estimate(compiled).step_time_us
    assert (head.samples, head.tokens) == (8, 8 * 16)
    assert sum(head.kinds.values()) == head.peak_bytes
    assert head.fits


def test_a_label_of_each_sample_is_no_token() -> None:
    compiled = compile_text("""
dim B = 8
dim D = 4
dim O = 1
dim K = 3
model Net(x[B, D], labels[B, O]: i32) {
  weight head[D, K, O]
  logits[B, O, K] = x @ head
  loss = cross_entropy(logits, labels)
}
""")
    assert (headline(compiled).samples, headline(compiled).tokens) == (8, None)


def test_traffic_is_what_ranks_send() -> None:
    """The sums of the rows are those of rings, computed class by class."""
    compiled = compile_text(TINY)
    traces = compiled.trace_set
    values, block = traffic(compiled)
    assert block == 1
    expected = 0.0
    for each in traces.classes:
        for node, count in nodes_of(each):
            action = node.action
            if isinstance(action, Collective):
                size = np.prod([traces.mesh.size(a) for a in action.axes])
                whole = max(action.operand_bytes, action.result_bytes)
                expected += ranks_of(traces, each) * count * factor(action.kind, size) * whole
            elif getattr(action, "kind", "") == "send":
                expected += ranks_of(traces, each) * count * action.num_bytes
    assert values.sum() == pytest.approx(expected)
    assert not values.diagonal().any()


@pytest.mark.seldom
def test_page_of_a_large_plan_is_small() -> None:
    page = report_page([compile_example(FOLDER / "llama3_405b.stg", "h100_16k")])
    assert "canvas" in check_whole(page)


def test_pages_in_a_browser(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The timeline is drawn and zooms; plans stand side by side; nothing is asked of a network."""
    model, page = tmp_path / "tiny.stg", tmp_path / "report.html"
    model.write_text(TINY + TINY[TINY.index("plan p") :].replace("plan p", "plan q"))
    assert main([str(model), "-q", "--report", str(page)]) == 0
    check_whole(page.read_text())
    script = """
      const canvas = document.querySelector("canvas"), context = canvas.getContext("2d");
      const before = canvas.shownRange();
      const colours = new Set(context.getImageData(0, 0, canvas.width, 60).data);
      canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -400, offsetX: 300, bubbles: true }));
      const after = canvas.shownRange();
      document.title = `${colours.size > 20} ${after[1] - after[0] < before[1] - before[0]}`;
    """
    assert "<title>true true</title>" in rendered(page, script)
    both = [f"{model}:p", f"{model}:q"]
    capsys.readouterr()
    assert main(["report", *both]) == 0
    assert "peak memory" in capsys.readouterr().out
    assert main(["report", *both, "-o", str(page)]) == 0
    assert "Plans side by side" in rendered(page)
