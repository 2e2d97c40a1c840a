"""How long the forward and backward passes of one rank take, if everything that they read of other passes and other ranks is there.

Each op starts when the values that it reads are there and its stream is free. The ops of a stream run in the order of the program; serial communication also
waits for its turn among computation. So it is found which communication is hidden: the first piece of a split product waits for a gather that nothing hides,
and attention waits for what it reads of other ranks, which runs behind the gradients on the same stream. Layers are alike, so of a repeat that runs more
than a few times, three iterations are followed, and all further ones take as long as the last.
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
"""A repeat with at most this many iterations, the same number in all plans, is followed iteration by iteration. Such are the pieces of a split product."""
FOLLOWED = 3
"""How many iterations of other repeats are followed."""
LAUNCHES = "launches"
"""The name, among those of streams, of the host that launches kernels one after the other."""
When = Floats | float
"""A time for each plan, `[plan]`, in seconds from the start of the pass; or one for all."""
Stack = list[When]
"""The times at which the elements of a stack are there, one for each iteration of a repeat."""


@dataclass(frozen=True)
class PassNode:
    """An op of a pass that takes time."""

    seconds: Floats
    """`[plan]`: how long it takes."""
    stream: str
    is_serial: bool
    """Whether it is communication that computation waits for."""
    launching: float = 0.0
    """Seconds that the host takes to launch it."""


@dataclass
class Streams:
    """When each stream of a rank is free again."""

    free: dict[str, When] = field(default_factory=dict)

    @property
    def computed(self) -> When:
        """When the rank has computed all passes that were run so far."""
        return self.free.get(COMPUTE_STREAM, 0.0)


@dataclass
class PassAlone:
    """A forward or backward pass through a stage. Values of other passes and other ranks are there from its start."""

    block: Block
    nodes: Mapping[Operation, PassNode]
    """The ops that take time. All others take none."""
    count: Callable[[stg.RepeatOp], Floats]
    """How often a repeat runs, `[plan]`."""
    streams: Streams
    """The streams of the rank, which its passes share."""
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
        """Run the pass on its streams, from when these are free."""
        self._ready.clear()
        self.follow(self.block)

    def follow(self, block: Block) -> None:
        """Run the ops of a block in their order."""
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
        """Note when the results of an op that takes no time, such as a view, are there: when all of its operands are."""
        found = latest(self.there(value) for value in op.operands)
        if isinstance(found, np.ndarray):
            self._ready.update(dict.fromkeys(op.results, found))

    def run(self, op: Operation, node: PassNode) -> None:
        """Run an op that takes time."""
        queues = {node.stream, COMPUTE_STREAM} if node.is_serial else {node.stream}
        if node.launching:
            launched = self.streams.free.get(LAUNCHES, 0.0) + node.launching
            self.streams.free[LAUNCHES] = launched
        waits = [self.streams.free.get(each, 0.0) for each in (*queues, LAUNCHES)]
        begins = latest([*map(self.there, op.operands), *waits])
        if isinstance(op, sched.RecvOp) and self._sent:
            # All ranks do the same at the same time, so a value is sent to this rank when it sends its own.
            begins = latest([begins, self._sent.popleft()])
        end = begins + node.seconds
        if isinstance(op, sched.SendOp):
            self._sent.append(end)
        self.streams.free.update(dict.fromkeys(queues, end))
        self._ready.update(dict.fromkeys(op.results, end))

    def there(self, value: SSAValue) -> When:
        """When a value is there; a stack, when all of its elements are."""
        found = self._ready.get(value, 0.0)
        return latest(found) if isinstance(found, list) else found

    def repeat(self, op: stg.RepeatOp) -> None:
        """Run the iterations of a repeat: a few of them, or all if they are few."""
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
        """When an element of a stack is there: the one at `at` of `of`, if each is known by itself."""
        found = self._ready.get(stack, 0.0)
        if isinstance(found, list):
            return found[at] if len(found) == of else latest(found)
        return found


def latest(times: Iterable[When]) -> When:
    """The latest of some times, in each plan."""
    found: When = 0.0
    for each in times:
        found = each if isinstance(found, float) and found == 0 else np.maximum(found, each)
    return found


def at_the_end(states: list[dict[str | int, When]], times: Floats) -> dict[str | int, When]:
    """The times after the last iteration of a repeat, by name. `states` are those after each iteration that was followed; `times`, `[plan]`, says how many
    iterations a plan has. Each further iteration takes as long as the last one that was followed.
    """
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
