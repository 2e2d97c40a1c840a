"""Continuous batching: which sequences an engine computes in each iteration, from requests that arrive over time.

The policy is that of vLLM's scheduler (`Scheduler.schedule`, version 1). In each iteration, with a budget of tokens:

1. Sequences that run go first, in the order in which they were admitted: a prompt goes on by as many tokens as are left of the budget, a decode by one.
   One that gets no block of the cache takes those of the sequence that was admitted last, which waits again, before all others, and is computed
   anew.
2. If nobody was thrown out, those that wait are admitted, the first that came first, while there are places, tokens and blocks.

A sequence whose tokens are all computed has one more at the end of the iteration. Several engines (devices that have sequences of their own) keep
step; a request goes to the one that has fewest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

Kind = tuple[int, int, int]
"""How many sequences, of how many new positions, after how many others."""


@dataclass(frozen=True)
class Request:
    """What somebody asks for. `output` tokens are made, the first of them by the prompt."""

    arrival_s: float
    prompt: int
    output: int


@dataclass(frozen=True)
class Policy:
    """What an engine may do in an iteration."""

    tokens: int = 8192
    """New tokens of an iteration, at most."""
    sequences: int = 256
    """That run at a time, at most."""
    block: int = 16
    """Positions of the cache that are allotted at a time."""
    blocks: int | None = None
    """Of one engine; None: as many as it takes."""
    chunked: bool = True
    """Whether a prompt may be computed in parts."""


@dataclass(eq=False)
class Running:
    """A request, and how far it is."""

    request: Request
    computed: int = 0
    """Positions in the cache."""
    made: int = 0
    """Tokens of the output."""
    blocks: int = 0
    first_s: float = 0.0
    """When its first token was there."""
    end_s: float = 0.0

    @property
    def known(self) -> int:
        """Tokens that there are to compute: the prompt, and what was made."""
        return self.request.prompt + self.made


@dataclass
class Engine:
    """One device, or a group that has its sequences in common."""

    policy: Policy
    waiting: deque[Running] = field(default_factory=deque)
    running: list[Running] = field(default_factory=list)
    used: int = 0
    """Blocks."""
    preempted: int = 0

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.running)

    def schedule(self) -> list[tuple[Running, int]]:
        """The sequences of an iteration, and how many new tokens of each."""
        chosen: list[tuple[Running, int]] = []
        left, before = self.policy.tokens, self.preempted
        at = 0
        while at < len(self.running) and left:
            each = self.running[at]
            new = min(each.known - each.computed, left)
            while not self.take(each, new):
                last = self.running.pop()
                self.throw_out(last)
                if last is each:
                    break
            else:
                chosen.append((each, new))
                left -= new
                at += 1
        while self.preempted == before and self.waiting and left:
            each = self.waiting[0]
            new = min(each.known, left)
            whole = self.policy.chunked or new == each.known
            if len(self.running) >= self.policy.sequences or not whole or not self.take(each, new):
                break
            self.running.append(self.waiting.popleft())
            chosen.append((each, new))
            left -= new
        return chosen

    def take(self, each: Running, new: int) -> bool:
        """Allot what `new` positions more need; whether there is as much."""
        needed = -(-(each.computed + new) // self.policy.block) - each.blocks
        if self.policy.blocks is not None and self.used + needed > self.policy.blocks:
            return False
        each.blocks += needed
        self.used += needed
        return True

    def throw_out(self, each: Running) -> None:
        self.free(each)
        each.computed = 0
        self.preempted += 1
        self.waiting.appendleft(each)

    def free(self, each: Running) -> None:
        self.used -= each.blocks
        each.blocks = 0

    def finish(self, chosen: Sequence[tuple[Running, int]], now_s: float) -> None:
        """At the end of an iteration."""
        for each, new in chosen:
            each.computed += new
            if each.computed < each.known:
                continue
            each.made += 1
            each.first_s = each.first_s or now_s
            if each.made == each.request.output:
                each.end_s = now_s
                self.free(each)
                self.running.remove(each)


@dataclass(frozen=True)
class Iteration:
    """What was computed from when to when."""

    begin_s: float
    end_s: float
    devices: tuple[tuple[Kind, ...], ...]
    used: int
    """Blocks of the cache, of all engines."""


@dataclass
class Batches:
    """What came of requests."""

    iterations: list[Iteration] = field(default_factory=list)
    served: list[Running] = field(default_factory=list)
    preempted: int = 0


IDLE: Kind = (1, 1, 0)
"""What an engine computes that has nothing to do while others have: one token that nobody reads."""


def batch(
    requests: Sequence[Request],
    policy: Policy,
    step_s: Callable[[Sequence[Sequence[Kind]]], float],
    engines: int = 1,
) -> Batches:
    """Serve all requests. `step_s` says how long an iteration takes, by the sequences of each engine."""
    found = Batches()
    own = [Engine(policy) for _ in range(engines)]
    coming = deque(
        sorted((Running(request) for request in requests), key=lambda r: r.request.arrival_s)
    )
    found.served = list(coming)
    now = 0.0
    while coming or any(engine.load for engine in own):
        if not any(engine.load for engine in own):
            now = max(now, coming[0].request.arrival_s)
        while coming and coming[0].request.arrival_s <= now:
            min(own, key=lambda engine: engine.load).waiting.append(coming.popleft())
        chosen = [engine.schedule() for engine in own]
        assert any(chosen), "a request fits no engine"
        devices = tuple(tuple(kinds_of(each)) or (IDLE,) for each in chosen)
        end = now + step_s(devices)
        used = sum(engine.used for engine in own)
        found.iterations.append(Iteration(now, end, devices, used))
        for engine, each in zip(own, chosen, strict=True):
            engine.finish(each, end)
        now = end
    found.preempted = sum(engine.preempted for engine in own)
    return found


def kinds_of(chosen: Sequence[tuple[Running, int]]) -> Iterator[Kind]:
    """Sequences that are alike together, in the order in which they were chosen."""
    counts: dict[tuple[int, int], int] = {}
    for each, new in chosen:
        counts[new, each.computed] = counts.get((new, each.computed), 0) + 1
    for (new, before), count in counts.items():
        yield count, new, before


def unfit(requests: Sequence[Request], policy: Policy) -> Iterator[int]:
    """The numbers of requests that no engine can serve, however long they wait."""
    for number, each in enumerate(requests):
        most = each.prompt + each.output - 1
        too_long = policy.blocks is not None and -(-most // policy.block) > policy.blocks
        if too_long or (not policy.chunked and most > policy.tokens):
            yield number
