"""Models that ship with stagec, by their names: `llama3_8b`."""

from __future__ import annotations

import os
import re

from stagec.diagnostics import closest, file_meant
from stagec.trust import examples

STG = ".stg"
"""How files end that have models and plans."""


def shipped_names() -> list[str]:
    """What ships, in the order of the alphabet."""
    folder = examples()
    found = os.listdir(folder) if folder else []
    return sorted(each.removesuffix(STG) for each in found if each.endswith(STG))


def shipped(name: str) -> str:
    """The file of a model that ships; nothing if there is none of that name."""
    path = os.path.join(examples(), f"{name}{STG}")
    return path if examples() and os.path.isfile(path) else ""


def model_named(text: str) -> str:
    """The file that a model's name means: `llama3_8b` is one that ships, unless there is something of that name here; other texts are what they are."""
    if "." in text or os.sep in text or os.path.exists(text):
        return text
    return shipped(text) or text


def with_plan(text: str) -> tuple[str, str | None]:
    """Likewise where a plan may stand behind: `llama3_8b:tp8`, `model.stg:serving`, or a pool of one, `model.stg:serving.decode`."""
    match = None if os.path.exists(text) else WITH_PLAN.fullmatch(text)
    return (model_named(match["model"]), match["plan"]) if match else (model_named(text), None)


WITH_PLAN = re.compile(
    r"(?P<model>.+):(?P<plan>[A-Za-z_]\w*(\.[A-Za-z_]\w*)?)", re.DOTALL | re.ASCII
)


def model_meant(path: str) -> str:
    """A help for a model that is not there: one that ships, or a file beside it."""
    model, plan = with_plan(path)
    if plan is not None and os.path.isfile(model):
        return f"name the plan apart: `--plan {plan}`, in Python `plan={plan!r}`"
    name, ending = os.path.splitext(path)
    if os.sep in path or ending not in ("", STG) or os.path.exists(path):
        return file_meant(path, ending or STG)
    beside = "" if shipped(name) else file_meant(path, STG)
    close = name if shipped(name) else closest(name, shipped_names())
    if close is None or beside.startswith("did you"):
        return beside
    return f"did you mean `{close}`, which ships?"
