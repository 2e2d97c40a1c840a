"""A schedule of ours beside what the code of a framework does, which ran once for each rank, without PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from stagec.schedules import Schedule, prove, text

Done = tuple[list[str], list[int]]
"""What a rank does, as `text` prints it, and with whom, of each transfer in turn."""


def differences(schedule: Schedule, theirs: Callable[[int], Done]) -> Iterator[str]:
    """Where a rank does something else: word for word, also within batches."""
    prove(schedule)
    title = f"{schedule.name} p{schedule.num_ranks} v{schedule.stages_per_rank} m{schedule.num_microbatches}"
    for rank, line in enumerate(text(schedule, transfers=True).splitlines()):
        words, peers = theirs(rank)
        other = f"rank {rank}: {' '.join(words)}"
        if line != other:
            yield f"{title}\n  ours   {line}\n  theirs {other}"
        own = slice(int(schedule.starts[rank]), int(schedule.starts[rank + 1]))
        ours = schedule.peer[own][schedule.is_transfer[own]].tolist()
        if ours != peers:
            yield f"{title}, rank {rank}: with ranks {ours}, theirs {peers}"


def told(compared: Iterable[Iterable[str]]) -> int:
    """Print what is different in each of them, and how many are alike; nothing else is 0, the status to exit with."""
    found = [list(lines) for lines in compared]
    for lines in found:
        print(*lines, sep="\n", end="\n" * bool(lines))
    print(f"{sum(not lines for lines in found)} of {len(found)} agree")
    return 1 if any(found) else 0
