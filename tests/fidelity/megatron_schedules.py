"""Compare interleaved 1F1B, and the overlapped one, with Megatron-LM's code: `python -m tests.fidelity.megatron_schedules CHECKOUT N SEED`.

CHECKOUT is a clone of NVIDIA/Megatron-LM, and sizes are drawn at random. `forward_backward_pipelining_with_interleaving` runs once for each rank, without
PyTorch: stand-ins write down which passes it runs, and what it sends and receives between them, from and to the ranks before and behind it. It is that
with `--no-overlap-p2p-communication`, whose order is `transfers = batched` here.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from stagec.schedules import build
from tests.fidelity.orders_of_code import Done, differences, told

FILE = "megatron/core/pipeline_parallel/schedules.py"
NAMES = ("interleaved_1f1b", "overlapped_1f1b")


@dataclass
class Value:
    """What a pass makes; what is received is known when a pass reads it."""

    of: str = ""
    """Stage and microbatch, with a place for the kind of the action: `2{}0`."""


Transfer = tuple[str, Value, int]


@dataclass
class Log:
    """What a rank does, and of each transfer the value and with whom."""

    actions: list[str | list[Transfer]] = field(default_factory=list)

    def transfer(self, *ops: tuple[str, Value | None, int]) -> None:
        """Communications that follow one another are one batch."""
        batch = [(kind, value, peer) for kind, value, peer in ops if value is not None]
        if batch and self.actions and isinstance(self.actions[-1], list):
            self.actions[-1] += batch
        elif batch:
            self.actions.append(batch)

    def words(self) -> Iterator[str]:
        for each in self.actions:
            if isinstance(each, str):
                yield each
                continue
            words = [value.of.format(kind) for kind, value, _ in each]
            yield words[0] if len(words) == 1 else f"[{' '.join(words)}]"

    def peers(self) -> list[int]:
        batches = [each for each in self.actions if not isinstance(each, str)]
        return [peer for batch in batches for _, _, peer in batch]


class Communicator:
    """In place of `P2PCommunicator`."""

    config = None

    def __init__(self, log: Log, rank: int, ranks: int, chunks: int) -> None:
        self.log, self.virtual_pipeline_model_parallel_size = log, chunks
        self.pp_group = SimpleNamespace(size=lambda: ranks, rank=lambda: rank)
        self.next_rank, self.prev_rank = (rank + 1) % ranks, (rank - 1) % ranks

    def send_forward_backward_recv_forward_backward(
        self, made: Any, grad: Any, recv_prev: bool, recv_next: bool, **_: Any
    ) -> tuple[Value | None, Value | None]:
        there = Value() if recv_prev else None, Value() if recv_next else None
        ahead, behind = self.next_rank, self.prev_rank
        sent = ("SEND_F", made, ahead), ("SEND_B", grad, behind)
        self.log.transfer(*sent, ("RECV_F", there[0], behind), ("RECV_B", there[1], ahead))
        return there

    def send_forward_recv_forward(self, made: Any, recv_prev: bool, **_: Any) -> Value | None:
        both = self.send_forward_backward_recv_forward_backward
        return both(made, None, recv_prev, False)[0]

    def send_backward_recv_backward(self, grad: Any, recv_next: bool, **_: Any) -> Value | None:
        both = self.send_forward_backward_recv_forward_backward
        return both(None, grad, False, recv_next)[1]

    def recv_forward(self, _: Any, is_first_stage: bool) -> Value | None:
        return self.send_forward_recv_forward(None, not is_first_stage)

    def recv_backward(self, _: Any, is_last_stage: bool) -> Value | None:
        return self.send_backward_recv_backward(None, not is_last_stage)


def order_of_rank(source: str, name: str, p: int, v: int, m: int, rank: int) -> Done:
    """What their code does on one rank."""
    log = Log()

    def forward(stage: int, microbatch: int, read: Value | None) -> Value:
        made = Value(f"{stage}{{}}{microbatch}")
        if read is not None:
            read.of = made.of
        log.actions.append(made.of.format("F"))
        return made

    def backward(made: Value, grad: Value | None) -> Value:
        if grad is not None:
            grad.of = made.of
        log.actions.append(made.of.format("B"))
        return made

    def forward_step(*given: Any, current_microbatch: int, vp_stage: int, **_: Any) -> Any:
        return forward(vp_stage * p + rank, current_microbatch, given[4]), 0

    def backward_step(_: Any, made: Value, grad: Value | None, __: Any) -> Value:
        return backward(made, grad)

    def together(*given: Any, **named: Any) -> tuple[Value | None, Value | None]:
        """In place of `combined_1f1b_schedule_for_interleaved_pipelining`."""
        before_forward, behind_forward, before_backward, behind_backward = given[6:10]
        microbatch_of, chunk_of = given[10:12]
        made = grad = None
        at, back = named["f_virtual_microbatch_id"], named["b_virtual_microbatch_id"]
        if at is not None:
            chunk, microbatch = chunk_of(at, forward=True), microbatch_of(at, forward=True)
            read = before_forward(at, chunk, microbatch)
            made = forward(chunk * p + rank, microbatch, read)
        if back is not None:
            _, saved, read = before_backward(back, chunk_of(back, forward=False))
            grad = backward(saved, read)
            behind_backward(back)
        if at is not None:
            behind_forward(chunk_of(at, forward=True), made, 0)
        if made is not None and grad is not None:
            log.actions[-2:] = ["&".join(map(str, log.actions[-2:]))]
        return made, grad

    run = loaded(source)
    space = run.__globals__
    space |= {"forward_step": forward_step, "backward_step": backward_step}
    space |= {"combined_1f1b_schedule_for_interleaved_pipelining": together}
    config = mock.MagicMock(
        microbatch_group_size_per_vp_stage=m // max(1, m // p),
        overlap_moe_expert_parallel_comm=name == "overlapped_1f1b",
        virtual_pipeline_model_parallel_size=v,
        no_sync_func=nullcontext,
        hidden_size=1,
    )
    for setting in (
        *("overlap_p2p_comm", "overlap_p2p_comm_warmup_flush", "timers", "grad_sync_func"),
        *("param_sync_func", "finalize_model_grads_func", "moe_paged_stash", "sequence_parallel"),
        *("num_microbatches_with_partial_activation_checkpoints", "cuda_graph_impl"),
        *("fine_grained_activation_offloading", "deallocate_pipeline_outputs"),
    ):
        setattr(config, setting, None)
    space["get_model_config"] = lambda _: config
    groups = SimpleNamespace(tp=SimpleNamespace(size=lambda: 1), cp=SimpleNamespace(size=lambda: 1))
    run(
        forward_step_func=None,
        data_iterator=[None] * v,
        model=[object()] * v,
        num_microbatches=m,
        seq_length=1,
        micro_batch_size=1,
        p2p_communicator=Communicator(log, rank, p, v),
        pg_collection=groups,
    )
    return list(log.words()), log.peers()


def loaded(source: str) -> Callable[..., Any]:
    """Their function, of a module whose imports are stand-ins."""
    torch = mock.MagicMock()
    torch.nn.Module = torch.Tensor = torch.Size = torch.device = object
    torch.zeros.return_value = 0
    utils = SimpleNamespace(
        is_pp_first_stage=lambda group: group.rank() == 0,
        is_pp_last_stage=lambda group: group.rank() == group.size() - 1,
        is_vp_first_stage=lambda vp_stage, vp_size: vp_stage == 0,
        is_vp_last_stage=lambda vp_stage, vp_size: vp_stage == vp_size - 1,
    )
    imported = [line.split()[1] for line in source.splitlines() if "import" in line.split()[:3:2]]
    package = "megatron.core.pipeline_parallel"
    names = [f"{package}{name}" if name[0] == "." else name for name in imported]
    parts = {name.rsplit(".", n)[0] for name in names for n in range(name.count(".") + 1)}
    found: dict[str, Any] = {
        name: mock.MagicMock() for name in parts if name.split(".")[0] in ("megatron", "nemo")
    }
    found |= {"torch": torch, "torch.autograd": torch.autograd, f"{package}.utils": utils}
    found["torch.autograd.variable"] = torch.autograd.variable
    space: dict[str, Any] = {"__package__": package, "__name__": f"{package}.schedules"}
    with mock.patch.dict(sys.modules, found):
        exec(compile(source, FILE, "exec"), space)
    return space["forward_backward_pipelining_with_interleaving"]


def drawn(number: int, seed: int) -> Iterator[tuple[str, int, int, int]]:
    """Sizes whose microbatches go through all stages in rounds of p, and of more."""
    rng = random.Random(seed)
    for _ in range(number):
        p, v, rounds = rng.randrange(2, 9), rng.randrange(2, 5), rng.randrange(1, 5)
        yield rng.choice(NAMES), p, v, rounds * (p + rng.choice([0, 0, rng.randrange(p)]) // rounds)


def main() -> int:
    folder, number, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    source = (folder / FILE).read_text()
    return told(
        differences(build(*sizes, transfers="batched"), partial(order_of_rank, source, *sizes))
        for sizes in drawn(number, seed)
    )


if __name__ == "__main__":
    sys.exit(main())
