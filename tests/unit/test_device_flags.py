"""What `--device` says on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagec.cli import main
from stagec.diagnostics import CompileError, Span
from stagec.frontend import check, parse_text
from stagec.frontend.typed_device import device_said

ROOT = Path(__file__).parents[2]
WRONG = (
    *("nodes = 4", "node = x", "node = 4, node = 8", "kernels = fusd", "node =", "node 4"),
    *("memory = 1", "flops_per_s = 1e99", "node = 0", "graphs = 1", "captured = [A] ]"),
)


@pytest.mark.parametrize("settings", WRONG)
@pytest.mark.parametrize("before", ["", "kernels = eager, "])
def test_a_mistake_in_a_setting_of_device_is_shown_where_it_was_typed(settings: str, before: str):
    """On the command line as in a plan: what is said of the same words, but for the code."""

    def words(span: Span | None, text: str) -> str:
        assert span is not None
        assert span.line <= 1
        return text[span.column - 1 : span.end_column - 1]

    flag = f"h100  {{ {before}{settings} }}"
    plan = f"plan p {{ device {flag} }}"
    with pytest.raises(CompileError) as on_line:
        device_said(flag)
    with pytest.raises(CompileError) as in_plan:
        check(parse_text(f"{plan}\nmodel M(x[B]) {{ return x }}\ndim B = 1"))
    found = [
        [
            (each.message, words(each.span, text), each.label, each.helps)
            for each in raised.value.diagnostics
        ]
        for raised, text in ((on_line, f"--device {flag}"), (in_plan, plan))
    ]
    assert found[0] == found[1]
    assert {each.code for each in on_line.value.diagnostics} == {"E0710"}
    assert on_line.value.render().split("\n")[1] == f" --> --device {flag}"


@pytest.mark.parametrize("settings", ["{}", "{ node = 4 }", "{ kernels = eager }"])
def test_settings_alone_are_no_device(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With them the plan's own would be gone, and its times."""
    assert main([str(ROOT / "examples" / "gpt.stg"), "-q", "--device", settings]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error[E0710]: a device without a name says `flops_per_s`")
    assert f"`h100 {settings}`" in said
