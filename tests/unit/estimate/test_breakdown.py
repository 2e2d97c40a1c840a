"""Of which rank a step's parts are."""

import pytest

from stagec.dialects.sched.actions import Compute
from stagec.driver import compile_text
from stagec.estimate.step import estimate
from stagec.reports.headline import headline
from tests.resuming.texts import TEXT
from tests.unit.seldom import some

SCHEDULES = ("1f1b", "interleaved_1f1b, virtual_stages = 2", "zb_v")


@pytest.mark.parametrize("schedule", some(SCHEDULES, 2))
def test_parts_are_of_the_rank_that_computes_longest(schedule: str) -> None:
    """Whatever the schedule, and whichever rank ends last."""
    clauses = f"pipeline L over pp {{ schedule = {schedule} }}\n  device h100"
    job = compile_text(TEXT.format(pp=2, tp=1, clauses=clauses))
    found = estimate(job)
    busy: dict[str, float] = {}
    for number, each in enumerate(job.trace_set.classes):
        program = each.program
        nodes = [node for at in program.segment for node in program.segments[at].nodes]
        times = zip(nodes, *found.timeline.of_class(number), strict=True)
        computing = [end - start for node, start, end in times if isinstance(node.action, Compute)]
        busy[each.name] = sum(computing)
    assert len(busy) > 1
    which, parts = found.breakdown.rank_class, found.breakdown.parts
    waits = sum(us for name, us in parts.items() if name.startswith(("exposed", "bubble")))
    assert busy[which] == pytest.approx(max(busy.values()))
    assert waits == pytest.approx(found.step_time_us - busy[which])
    assert (
        headline(job).share_lines()[0].startswith(f"time    of {which}, which computes longest: ")
    )


@pytest.mark.parametrize("batch", some(range(2, 26, 2), 4))
def test_a_rank_that_waits_for_nobody_has_no_bubble(batch: int) -> None:
    """Times that are added up in another order differ in their last digits."""
    text = TEXT.format(pp=1, tp=1, clauses="microbatch 1\n  device h100")
    found = estimate(compile_text(text.replace("dim B = 16", f"dim B = {batch}")))
    assert found.breakdown.parts["bubble"] == 0


def test_ranks_that_are_all_alike_have_no_name() -> None:
    job = compile_text(TEXT.format(pp=1, tp=2, clauses="device h100"))
    assert estimate(job).breakdown.rank_class == ""
    assert "of " not in headline(job).share_lines()[0]
