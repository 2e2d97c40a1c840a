"""The codes of `stagec check`, from `finding_codes.toml`: what each means and what to do about it.

E06xx are faults: a consumer fails, hangs or computes something else. W06xx are suspicions. Those
below E0620 belong to the writer of traces.
"""

import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class Code:
    """`title` for the list of codes, `help` for whoever meets it."""

    title: str
    help: str


_TEXT = resources.files("stagec.checking").joinpath("finding_codes.toml").read_text("utf-8")
CODES = {code: Code(**said) for code, said in tomllib.loads(_TEXT).items()}
