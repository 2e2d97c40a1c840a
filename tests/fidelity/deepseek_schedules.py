"""Compare `dualpipe` and `dualpipe_v` with the code of their authors, of sizes drawn at random: `python -m tests.fidelity.deepseek_schedules CHECKOUT N SEED`.

CHECKOUT is a clone of deepseek-ai/DualPipe. Its `step` runs once for each rank, without PyTorch: stand-ins write down what it computes, and which transfers it
issues in one batch (`batch_isend_irecv`), with whom. Our order has to be the same word for word, also within batches.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from stagec.schedules import build
from tests.fidelity.orders_of_code import Done, differences, told

FILES = {"dualpipe": ("dualpipe.py", "DualPipe"), "dualpipe_v": ("dualpipev.py", "DualPipeV")}


class Endless(list[Any]):
    """In place of the tensors of all microbatches: nothing, for each."""

    def __getitem__(self, _: Any) -> Any:
        return []

    def __setitem__(self, *_: Any) -> None:
        return None


class Log:
    """What a rank does, as `text` prints it."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.peers: list[int] = []
        """Of each transfer in turn."""
        self.owed: deque[str] = deque()
        """Weight gradients that are late."""

    def batch(self, ops: list[tuple[str, int]]) -> list[Any]:
        words = [word for word, _ in ops]
        self.words.append(words[0] if len(words) == 1 else f"[{' '.join(words)}]")
        self.peers += [peer for _, peer in ops]
        return []

    def pop(self) -> None:
        self.words.append(self.owed.popleft())


def modules_of(log: Log) -> dict[str, ModuleType]:
    """What their files import."""
    nothing = mock.MagicMock()
    nothing.nn.Module, nothing.nn.ModuleList, nothing.Tensor = object, list, object
    nothing.is_grad_enabled.return_value = True
    nothing.device = nothing.cuda.current_device = lambda *_: 0
    nothing.distributed.batch_isend_irecv = log.batch
    store = mock.MagicMock(pop=log.pop)
    store.funcs_queue.empty.side_effect = lambda: not log.owed
    found = {"torch": nothing, "torch.nn": nothing.nn, "torch.distributed": nothing.distributed}
    package = SimpleNamespace(
        comm=SimpleNamespace(
            TENSOR_SHAPES=[],
            TENSOR_DTYPE=0,
            append_irecv=lambda ops, peer, _: ops.append(("", peer)),
            append_isend=lambda ops, _, peer, __: ops.append(("", peer)),
        ),
        utils=SimpleNamespace(
            WeightGradStore=store,
            run_backward=nothing,
            scatter=lambda *_: Endless(),
            gather=lambda *_: Endless(),
        ),
    )
    found |= {"dualpipe": package, "dualpipe.comm": package.comm, "dualpipe.utils": package.utils}
    return found


def logged(base: Any, log: Log, stage_of: Any) -> Any:
    """Their class, of which a pass only writes down that it runs. `stage_of` gives the stage and the first microbatch of a phase."""

    def word(own: Any, kind: str, phase: int, counter: str, back: int = 0) -> str:
        phase ^= getattr(own, "is_in_second_half", False)
        stage, first = stage_of(own.rank, phase)
        return f"{stage}{kind}{first + getattr(own, counter)[phase] - back}"

    def counted(own: Any, kind: str, phase: int, counter: str) -> str:
        found = word(own, kind, phase, counter)
        getattr(own, counter)[phase ^ getattr(own, "is_in_second_half", False)] += 1
        return found

    class Logged(base):
        def _reset_states(self) -> None:
            super()._reset_states()
            for name in ("input", "output", "input_grad", "output_grad"):
                setattr(self, f"{name}_chunks", (Endless(), Endless()))

        def _forward_compute_chunk(self, phase: int) -> None:
            log.words.append(counted(self, "F", phase, "current_f_chunk_id"))

        def _backward_compute_chunk(self, phase: int, enable_zb: bool = False) -> None:
            if enable_zb:
                log.owed.append(word(self, "W", phase, "current_b_chunk_id"))
            log.words.append(counted(self, "BI"[enable_zb], phase, "current_b_chunk_id"))

        def _forward_backward_compute_chunk(self, phase0: int, phase1: int) -> None:
            self._forward_compute_chunk(phase0)
            self._backward_compute_chunk(phase1)
            log.words[-2:] = ["&".join(log.words[-2:])]

    def named(name: str, kind: str, counter: str) -> None:
        def transfer(self: Any, phase: int) -> None:
            before = len(self.comm_ops)
            getattr(base, name)(self, phase)
            for at in range(before, len(self.comm_ops)):
                self.comm_ops[at] = word(self, kind, phase, counter, 1), self.comm_ops[at][1]

        setattr(Logged, name, transfer)

    for way, kind in (("recv", "RECV"), ("send", "SEND")):
        for direction in ("forward", "backward"):
            letter = direction[0]
            counter = f"current_{way}_{letter}_chunk_id"
            named(f"_{way}_{direction}", f"{kind}_{letter.upper()}", counter)
    return Logged


def order_of_rank(source: str, name: str, ranks: int, microbatches: int, rank: int) -> Done:
    """What their code does on one rank."""
    log, half = Log(), microbatches // 2

    def stage_of(own: int, phase: int) -> tuple[int, int]:
        if name == "dualpipe":
            return (own, 0) if phase == 0 else (ranks - 1 - own, half)
        return own if phase == 0 else 2 * ranks - 1 - own, 0

    with mock.patch.dict(sys.modules, modules_of(log)):
        space: dict[str, Any] = {}
        exec(compile(source, FILES[name][0], "exec"), space)
        made = logged(space[FILES[name][1]], log, stage_of)
        module = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=0)]))
        group = SimpleNamespace(size=lambda: ranks, rank=lambda: rank)
        made((module, module), process_group=group).step(num_chunks=microbatches, criterion=mock)
    return log.words, log.peers


def drawn(number: int, seed: int) -> Iterator[tuple[str, int, int]]:
    """Sizes among which microbatches are few, many, and odd where they may be."""
    rng = random.Random(seed)
    for _ in range(number):
        name = rng.choice(sorted(FILES))
        step = 2 if name == "dualpipe" else 1
        ranks = step * rng.randrange(1, 13 // step)
        yield name, ranks, 2 * ranks + step * rng.choice([0, 1, 2, 3, rng.randrange(30)])


def main() -> int:
    folder, number, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    sources = {name: (folder / "dualpipe" / file).read_text() for name, (file, _) in FILES.items()}
    return told(
        differences(
            build(name, ranks, 2, microbatches),
            partial(order_of_rank, sources[name], name, ranks, microbatches),
        )
        for name, ranks, microbatches in drawn(number, seed)
    )


if __name__ == "__main__":
    sys.exit(main())
