"""Plans that are like Megatron-LM, beside the rules that were read in its code."""

import json
import random

import pytest

from tests.fidelity.megatron import FACTS, Parameter, Run, buckets, compare, draw


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(4))
def test_plans_are_cut_into_buckets_by_its_rules(seed: int) -> None:
    result = compare(draw(random.Random(seed)))
    assert not result.wrong


@pytest.mark.seldom
def test_ranks_of_a_pipeline_whose_rows_wait_for_more_have_segments_of_their_own() -> None:
    """Experts under an interleaved schedule, with a shared table: what the last rank's rows wait for is more than what the first one's do."""
    run = Run(
        32, 2, 24, 100, 8, 16, True, 1, 4, 4, 2, overlap=False, bucket=0, experts=8, top_k=2, ep=2
    )
    assert not compare(run).wrong


def test_every_fact_says_where_it_is_from_and_how_it_is_here() -> None:
    data = json.loads(FACTS.read_text())
    assert "commit" in data["source"]
    for fact in data["facts"]:
        assert all(fact[key] for key in ("name", "file", "where", "fact", "here"))


def test_a_bucket_ends_with_the_parameter_that_fills_it() -> None:
    run = Run(8, 1, 8, 8, 1, 8, True, 1, 2, 2, 1, overlap=True, bucket=100)
    sizes = [Parameter(60), Parameter(60), Parameter(10), Parameter(5, is_shared=True)]
    assert [[p.elements for p in each] for each in buckets(run, sizes, 0)] == [[60, 60], [10], [5]]
    assert [[p.elements for p in each] for each in buckets(run, sizes, 1)] == [[60, 60, 10], [5]]
