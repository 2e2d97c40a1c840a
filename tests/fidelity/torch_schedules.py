"""Compare stagec's schedules with PyTorch's own, of sizes drawn at random: `python -m tests.fidelity.torch_schedules N SEED`.

PyTorch's runtime (`torch.distributed.pipelining`) drives stages that write down what they are told to do, without processes; `recorded("1F1B", 3, 1, 7)` is
in the form of the recorded runs that `tests.fidelity.pipelines` compares.
"""

# PyTorch is not installed with the tests: this file alone needs it.
# pyright: reportMissingImports=false
from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.distributed.pipelining import schedules

from tests.fidelity.draw import ONE_STAGE
from tests.fidelity.pipelines import OURS, Line, compare

V_SCHEDULES = ("ZBVZeroBubble", "DualPipeV")
"""Those that are shaped like a V, whose stages come back along the ranks that they went out on."""


class Stage:
    """In place of `PipelineStage`: computes and sends nothing. `log` is that of its rank."""

    has_backward = True

    def __init__(self, index: int, num_stages: int, ranks: int, rank: int, log: list[str]) -> None:
        self.stage_index, self.num_stages, self.group_size = index, num_stages, ranks
        self.group_rank, self.log, self.submod = rank, log, torch.nn.Identity()
        self.is_first, self.is_last = index == 0, index == num_stages - 1
        self.stage_index_to_group_rank: dict[int, int] = {}

    def transfer(self, said: str, microbatch: int, neighbour: int) -> list[str]:
        return [f"{self.stage_index}{said}{microbatch}"] if 0 <= neighbour < self.num_stages else []

    def get_fwd_recv_ops(self, microbatch: int) -> list[str]:
        return self.transfer("RECV_F", microbatch, self.stage_index - 1)

    def get_fwd_send_ops(self, microbatch: int) -> list[str]:
        return self.transfer("SEND_F", microbatch, self.stage_index + 1)

    def get_bwd_recv_ops(self, microbatch: int) -> list[str]:
        return self.transfer("RECV_B", microbatch, self.stage_index + 1)

    def get_bwd_send_ops(self, microbatch: int) -> list[str]:
        return self.transfer("SEND_B", microbatch, self.stage_index - 1)

    def forward_one_chunk(self, microbatch: int, *_: Any, **__: Any) -> None:
        self.log.append(f"{self.stage_index}F{microbatch}")

    def backward_one_chunk(self, microbatch: int, *, full_backward: bool = True, **_: Any) -> None:
        self.log.append(f"{self.stage_index}{'B' if full_backward else 'I'}{microbatch}")

    def backward_weight_one_chunk(self, microbatch: int, **_: Any) -> None:
        self.log.append(f"{self.stage_index}W{microbatch}")

    def nothing(self, *_: Any) -> None:
        """What moves values within a rank, or its gradients once all is done."""

    perform_reduce_grad = set_local_fwd_input = set_local_bwd_input = get_local_bwd_output = nothing


def stage_of(schedule: str, ranks: int, chunk: int, rank: int, chunks: int) -> int:
    if schedule in V_SCHEDULES and chunk:
        return ranks * chunks - 1 - rank
    return chunk * ranks + rank


def order_of_rank(name: str, ranks: int, chunks: int, microbatches: int, rank: int) -> list[str]:
    """What the runtime does on one rank, transfers of one batch in brackets."""
    log: list[str] = []
    made = schedules.get_schedule_class(name)
    indices = [stage_of(name, ranks, chunk, rank, chunks) for chunk in range(chunks)]
    stages = [Stage(index, ranks * chunks, ranks, rank, log) for index in indices]

    def batch(ops: list[str], desc: str | None = None) -> list[Any]:
        if ops:
            log.append(ops[0] if len(ops) == 1 else f"[{' '.join(ops)}]")
        return []

    def by_peer(ops: list[str], desc: str | None = None) -> dict[int, list[Any]]:
        return {0: batch(ops)}

    loss = mock.Mock(return_value=None)  # schedules ask only whether there is one
    is_single = issubclass(made, schedules.PipelineScheduleSingle)
    schedule = made(stages[0] if is_single else stages, microbatches, loss_fn=loss)
    nothing = mock.Mock(return_value=None)
    own = {"_initialize_stage": nothing} if is_single else {"_initialize_stages": nothing}
    own |= {"_maybe_compute_loss": nothing, "_maybe_get_loss": nothing, "_update_losses": nothing}
    inputs = [()] * microbatches, [{}] * microbatches
    with (
        mock.patch.multiple(schedule, _check_inputs=mock.Mock(return_value=inputs), **own),
        mock.patch.multiple(schedules, _batch_p2p=batch, _sorted_batch_p2p=by_peer),
    ):
        schedule._step_microbatches()
    return log


def in_flight(order: list[str]) -> tuple[dict[str, int], int]:
    """The most microbatches that wait for a backward pass, by stage and of the rank. A pass in halves is over with its second one."""
    now, most = Counter[str](), Counter[str]()
    peak = 0
    for action in order:
        stage = action.rstrip("0123456789")[:-1]
        kind = action[len(stage)] if stage.isdigit() else ""
        now[stage] += {"F": 1, "B": -1, "W": -1}.get(kind, 0)
        most[stage] = max(most[stage], now[stage])
        peak = max(peak, now.total())
    return {stage: most[stage] for stage in most if stage.isdigit()}, peak


def recorded(name: str, ranks: int, chunks: int, microbatches: int) -> dict[str, Any]:
    found = SimpleNamespace(runtime={}, stages={}, by_stage={}, by_rank={}, rejected=None)
    for rank in range(ranks):
        try:
            order = order_of_rank(name, ranks, chunks, microbatches, rank)
        except (ValueError, AssertionError, RuntimeError) as error:
            found.rejected = str(error)
            break
        key = str(rank)
        found.runtime[key] = order
        found.stages[key] = [stage_of(name, ranks, c, rank, chunks) for c in range(chunks)]
        found.by_stage[key], found.by_rank[key] = in_flight(order)
    return {
        "schedule": name,
        "ranks": ranks,
        "stages_per_rank": chunks,
        "microbatches": microbatches,
        "rejected": found.rejected,
        "runtime": found.runtime,
        "stages_of_rank": found.stages,
        "peak_inflight_microbatches_per_stage": found.by_stage,
        "peak_inflight_chunks_per_rank": found.by_rank,
    }


def drawn(number: int, seed: int) -> Iterator[Line]:
    """Sizes that do not divide one another among them, and some that PyTorch rejects."""
    rng = random.Random(seed)
    for _ in range(number):
        name, ranks = rng.choice(sorted(OURS)), rng.choice([2, 3, 4, 5, 6, 7, 8, 11])
        several = 2 if name in V_SCHEDULES else rng.choice([1, 2, 3, 4, 5])
        chunks = 1 if name in ONE_STAGE else several
        least = chunks * ranks if name in V_SCHEDULES else ranks
        # Of microbatches about as few as there may be, several rounds, or any number.
        few = least + rng.choice([-1, 0, 0, 1, 2, rng.randrange(3 * ranks)])
        microbatches = rng.choice([few, ranks * rng.randrange(1, 5), rng.randrange(1, 30)])
        case = f"{name}_p{ranks}_v{chunks}_m{microbatches}"
        yield compare(case, recorded(name, ranks, chunks, microbatches))


def main() -> int:
    number, seed = map(int, sys.argv[1:])
    lines = list(drawn(number, seed))
    for line in lines:
        if line.verdict != "agrees":
            print(f"{line.case}  {line.verdict}  {line.note}")
    agree = sum(line.verdict == "agrees" for line in lines)
    print(f"{agree} of {len(lines)} agree")
    return 0 if agree == len(lines) else 1


if __name__ == "__main__":
    sys.exit(main())
