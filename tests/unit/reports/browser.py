"""A page in a real browser without a window: Debian's Chromium, where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def browser() -> str:
    """Its path. Where there is none the test says so, and is skipped."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no browser is installed: `apt-get install chromium` brings one")
    return found


def rendered(page: Path, script: str = "") -> str:
    """The page's elements after its scripts have run, without a network. Any error of a script or a style fails.

    `script` runs when all is there, in a copy of the page: it may click and look, and `document.title` tells what it saw.
    """
    if script:
        text = page.read_text()
        page = page.with_suffix(".driven.html")
        page.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                browser(),
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--host-resolver-rules=MAP * ~NOTFOUND",
                "--enable-logging=stderr",
                f"--user-data-dir={profile}",
                "--virtual-time-budget=2000",
                "--dump-dom",
                page.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    said = re.findall(r".*:CONSOLE.*", done.stderr)
    assert not said, said
    return done.stdout
