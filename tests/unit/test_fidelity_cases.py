"""Traces against PyTorch's own runs, recorded in the repository: as many as have all that recorded runs have.

`python -m tests.fidelity` compares all of them, as `.ci/run` does.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from stagec.driver import compile_text
from tests.fidelity.archive import RECORDED, compact, lines_of, names_in, read_cases, whole
from tests.fidelity.cover import covering, words
from tests.fidelity.draw import draw, text_of
from tests.fidelity.report import outcome_text
from tests.fidelity.run import run_case
from tests.fidelity.shrink import shrunk
from tests.fidelity.stg_text import stg_text
from tests.unit.seldom import some

NAMES = names_in(RECORDED)
WORDS = {data["name"]: words(data) for data in lines_of(RECORDED)}
CHOSEN = covering(WORDS)
AT_ONCE = 2
GROUPS = [CHOSEN[start : start + AT_ONCE] for start in range(0, len(CHOSEN), AT_ONCE)][:2]
"""`python -m tests.fidelity` compares all recorded runs."""


@pytest.mark.parametrize("names", some(GROUPS, 16), ids=lambda names: names[0])
def test_traces_agree_with_recorded_runs(names: list[str]) -> None:
    for case in read_cases(RECORDED, names):
        outcome = run_case(case)
        assert not outcome.not_yet, f"{case.name}: {outcome.not_yet}"
        assert outcome.agrees, "\n" + outcome_text(outcome)


@pytest.mark.parametrize("vocabulary", [0, 1])
def test_a_table_alone_is_split_also_in_unequal_parts(vocabulary: int) -> None:
    """Where `tp` does not divide the vocabulary, only a rule of the dim says how its parts differ, and the head is left out of it."""
    name = next(
        data["name"]
        for data in lines_of(RECORDED)
        if "tp_head" in data["parallel"] and "tp_embed" not in data["parallel"]
    )
    (case,) = read_cases(RECORDED, [name])
    model = {**case.model, "vocab": int(case.model["vocab"]) + vocabulary}
    text = stg_text(replace(case, model=model))
    compile_text(text)
    said = "shard V over tp { uneven = chunk }", ".head[V] over none", ".logits[V] over none"
    assert [each in text for each in said] == [vocabulary == 1] * 3


def test_there_are_hundreds_of_cases() -> None:
    assert len(NAMES) >= 280


def test_whatever_a_case_has_a_chosen_one_has() -> None:
    chosen = frozenset[str]().union(*(WORDS[name] for name in CHOSEN))
    for name in NAMES:
        assert WORDS[name] <= chosen, name


def test_an_archive_gives_back_what_was_recorded() -> None:
    row = ["fwd", "all_gather", "float32", 4, 8, "dp", [0, 1]]
    rank = {"coord": {"dp": 0}, "flops": {}, "matmuls": [], "collectives": [row, row], "memory": {}}
    data = {"name": "x", "ranks": {"0": rank}}
    kept = json.loads(json.dumps(compact(data)))
    assert len(kept["communications"]) == 1
    assert whole(kept)["ranks"]["0"]["collectives"] == [row, row]


def test_cases_are_drawn_by_their_seed() -> None:
    first, again = ([text_of(draw(random.Random(7), "x")) for _ in "ab"] for _ in "ab")
    assert first == again
    assert len({text_of(draw(random.Random(seed), "x")) for seed in range(20)}) == 20


def test_a_case_shrinks_to_what_still_differs() -> None:
    rng = random.Random(3)
    drawn = next(
        words
        for _ in range(1000)
        if {"ac", "mp"} <= (words := draw(rng, "x")).keys() and "pp" not in words
    )
    small = shrunk(drawn, lambda words: "ac" in words, attempts=100)
    assert "ac" in small and "mp" not in small
    assert small["layers"] == 1 and int(str(small["vocab"])) <= 128
