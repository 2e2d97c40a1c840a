"""The plans that a model's file has."""

import re
from pathlib import Path


def plans_of(path: Path) -> list[str]:
    return re.findall(r"^plan (\w+)", path.read_text(), re.MULTILINE)
