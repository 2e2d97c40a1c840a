"""Who waits for whom, when ranks are stuck: the cycle that an error names."""

from collections.abc import Callable

from stagec.arrays import Ints
from stagec.schedules.errors import InvalidSchedule
from stagec.schedules.table import Schedule, action_text


def find_cycle(waits_for: dict[int, int]) -> list[int]:
    """A cycle of the ranks that wait, from the lowest of them; `waits_for` leads into one."""
    rank, seen = min(waits_for), {}
    while rank not in seen:
        seen[rank] = len(seen)
        rank = waits_for[rank]
    cycle = list(seen)[seen[rank] :]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


def deadlock(
    schedule: Schedule,
    heads: dict[int, int],
    awaited: Callable[[int], int],
    *,
    what: str,
    reason: str,
    help: str = "",
) -> InvalidSchedule:
    """The error for ranks that wait at `heads`, each for the action that `awaited` gives."""
    targets = {rank: awaited(head) for rank, head in heads.items()}
    cycle = find_cycle({rank: int(schedule.rank[target]) for rank, target in targets.items()})

    def name(index: int) -> str:
        return action_text(schedule.action(index), schedule)

    lines = tuple(
        f"rank {rank} waits at {name(heads[rank])} for {name(targets[rank])} "
        f"of rank {int(schedule.rank[targets[rank]])}"
        for rank in cycle
    )
    head = name(heads[cycle[0]])
    message = f"{what}: rank {cycle[0]} never gets past `{head}`"
    return InvalidSchedule(
        message, reason=reason, rank=cycle[0], action=head, cycle=lines, help=help
    )


def no_order(schedule: Schedule, after: Ints, heads: dict[int, int]) -> InvalidSchedule:
    """The error for a compute order in which some ranks wait for each other's results."""
    return deadlock(
        schedule,
        heads,
        lambda head: int(after[head]),
        what=f"schedule `{schedule.name}` deadlocks",
        reason="stuck",
        help="let each rank do an action only after those whose results it reads",
    )
