"""docs/tutorial.md and docs/explain.md, followed to the letter; and links of all pages, which lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from stagec.cli import main

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!`)\[[^\]`]*(?:`[^`]*`)?[^\]`]*\]\(([^)\s:]+)\)")


def squeezed(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.seldom
@pytest.mark.parametrize(
    ("page", "number"),
    [("tutorial", 8), ("explain", 5)],
)
def test_a_page_followed(
    page: str,
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    printed, commands = "", 0
    for kind, name, text in BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text()):
        if name:
            Path(name).write_text(text)
        elif kind == "sh":
            for line in text.splitlines():
                words = shlex.split(line)
                assert words[0] == "stagec"
                assert main(words[1:]) == 0, line
                commands += 1
            printed = squeezed(capsys.readouterr().out)
        elif kind == "text":
            for line in text.splitlines():
                assert squeezed(line) in printed, (line, printed)
    assert commands == number


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        for link in LINK.findall(page.read_text()):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), (page.name, link)
            if anchor and target.suffix == ".md":
                headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
                assert anchor in {slug(each) for each in headings}, (page.name, link)


def slug(heading: str) -> str:
    kept = re.sub(r"[^\w\s-]", "", heading.lower())
    return re.sub(r"\s", "-", kept)
