"""How long a rank's forward and backward passes take: each op when what it reads is there, and its stream is free.

Ops stand in their stream's queue in the order of the program, serial communication in that of computation as well. So it is found out what communication hides
behind what: the first piece of a split product waits for nothing that could hide it, and what attention reads of other ranks is waited for, behind the
gradients on the same stream. Layers are alike: of a repeat that runs more than a few times three iterations are followed, and those behind repeat the last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from stagec.arrays import Floats
from stagec.dialects import sched, stg
from stagec.dialects.sched import COMPUTE_STREAM

UNROLLED = 8
"""Iterations that are followed one by one, if all plans have so many: pieces of a product, of which one is handed on before the next."""
FOLLOWED = 3
LAUNCHES = "launches"
"""Where a stream would be called: when the host has launched what it has until now."""
When = Floats | float
"""Seconds from the start of the pass, of each plan."""
Stack = list[When]
"""Of each iteration of a repeat."""


@dataclass(frozen=True)
class PassNode:
    """An op that becomes a node of the pass."""

    seconds: Floats
    stream: str
    is_serial: bool
    launching: float = 0.0
    """Seconds that the host takes to launch it, one behind the other."""


@dataclass
class Streams:
    """When each is free again, of a rank."""

    free: dict[str, When] = field(default_factory=dict)

    @property
    def computed(self) -> When:
        """When it has computed all passes until now."""
        return self.free.get(COMPUTE_STREAM, 0.0)


@dataclass
class PassAlone:
    """A pass through a stage. What it reads of other passes and other ranks is there."""

    block: Block
    nodes: Mapping[Operation, PassNode]
    count: Callable[[stg.RepeatOp], Floats]
    """How often a repeat runs, of each plan."""
    streams: Streams
    _ready: dict[SSAValue, When | Stack] = field(default_factory=dict)
    _sent: deque[When] = field(default_factory=deque)
    _inside: set[Operation] = field(default_factory=set)

    def __post_init__(self) -> None:
        for op in self.nodes:
            around = op.parent_op()
            while around is not None and around not in self._inside:
                self._inside.add(around)
                around = around.parent_op()

    def run_once(self) -> None:
        self._ready.clear()
        self.follow(self.block)

    def follow(self, block: Block) -> None:
        for op in block.ops:
            if op in self.nodes:
                self.run(op, self.nodes[op])
            elif isinstance(op, stg.RepeatOp):
                if op in self._inside:
                    self.repeat(op)
            elif op in self._inside:
                for region in op.regions:
                    self.follow(region.block)
            elif not isinstance(op, sched.NodeOp):
                self.hand_on(op)

    def hand_on(self, op: Operation) -> None:
        """A view: what it sees is there when that is which it is a view of."""
        found = latest(self.there(value) for value in op.operands)
        if isinstance(found, np.ndarray):
            self._ready.update(dict.fromkeys(op.results, found))

    def run(self, op: Operation, node: PassNode) -> None:
        queues = {node.stream, COMPUTE_STREAM} if node.is_serial else {node.stream}
        if node.launching:
            launched = self.streams.free.get(LAUNCHES, 0.0) + node.launching
            self.streams.free[LAUNCHES] = launched
        waits = [self.streams.free.get(each, 0.0) for each in (*queues, LAUNCHES)]
        begins = latest([*map(self.there, op.operands), *waits])
        if isinstance(op, sched.RecvOp) and self._sent:
            # Ranks keep step: what is received was sent as this rank sends its own.
            begins = latest([begins, self._sent.popleft()])
        end = begins + node.seconds
        if isinstance(op, sched.SendOp):
            self._sent.append(end)
        self.streams.free.update(dict.fromkeys(queues, end))
        self._ready.update(dict.fromkeys(op.results, end))

    def there(self, value: SSAValue) -> When:
        found = self._ready.get(value, 0.0)
        return latest(found) if isinstance(found, list) else found

    def repeat(self, op: stg.RepeatOp) -> None:
        times = self.count(op)
        most = int(times.max())
        is_unrolled = most <= UNROLLED and bool((times == most).all())
        yielded = op.yield_op.values
        carried = [self.there(value) for value in op.carried]
        kept: list[list[When]] = []
        states: list[dict[str | int, When]] = []
        for iteration in range(most if is_unrolled else min(most, FOLLOWED)):
            self._ready.update(zip(op.carry_args, carried, strict=True))
            for argument, stack in zip(op.slice_args, op.stacks, strict=True):
                at = most - 1 - iteration if op.reverse is not None else iteration
                self._ready[argument] = self.element(stack, at, most)
            self.follow(op.body.block)
            carried = [self.there(value) for value in yielded[: op.num_carried]]
            kept.append([self.there(value) for value in yielded[op.num_carried :]])
            states.append({**self.streams.free, **dict(enumerate(carried))})
        if is_unrolled:
            stacks = [list(each) for each in zip(*kept, strict=True)]
            if op.reverse is not None:
                stacks = [each[::-1] for each in stacks]
        else:
            state = at_the_end(states, times)
            self.streams.free.update({n: when for n, when in state.items() if isinstance(n, str)})
            carried = [state[number] for number in range(op.num_carried)]
            stacks = [[latest(self.streams.free.values())] for _ in op.stack_results]
        self._ready.update(zip(op.carry_results, carried, strict=True))
        self._ready.update(zip(op.stack_results, stacks, strict=True))

    def element(self, stack: SSAValue, at: int, of: int) -> When:
        found = self._ready.get(stack, 0.0)
        if isinstance(found, list):
            return found[at] if len(found) == of else latest(found)
        return found


def latest(times: Iterable[When]) -> When:
    found: When = 0.0
    for each in times:
        found = each if isinstance(found, float) and found == 0 else np.maximum(found, each)
    return found


def at_the_end(states: list[dict[str | int, When]], times: Floats) -> dict[str | int, When]:
    """Of plans with so many iterations, each behind those that were followed as long as the last of them."""
    found: dict[str | int, When] = {}
    for name in states[-1]:
        ends = [np.asarray(each.get(name, 0.0), float) for each in states]
        last = ends[-1] + 0 * times
        for number in range(len(ends) - 1, 0, -1):
            last = np.where(times == number, ends[number - 1], last)
        if len(ends) == FOLLOWED:
            last = last + np.maximum(times - FOLLOWED, 0) * (ends[-1] - ends[-2])
        found[name] = last
    return found
