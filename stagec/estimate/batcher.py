"""Continuous batching: which sequences an engine computes in each iteration, from requests that arrive over time.

The policy is that of vLLM's scheduler (`Scheduler.schedule`, version 1). In each iteration, with a budget of tokens:

1. Sequences that run go first, in the order in which they were admitted: a prompt goes on by as many tokens as are left of the budget, a decode by one.
   One that gets no block of the cache takes those of the sequence that was admitted last, which waits again, before all others, and is computed
   anew.
2. If nobody was thrown out, those that wait are admitted, the first that came first, while there are places, tokens and blocks.

A sequence whose tokens are all computed has one more at the end of the iteration. Several engines (devices that have sequences of their own) keep
step; a request goes to the one that has fewest.

Of two pools (`batch_pools`) the first computes prompts and each prompt's token, the second goes on: it has a clock of its own, and a
sequence arrives when its cache is handed over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

Kind = tuple[int, int, int]
"""A number of sequences, their new positions, and the positions before these."""


@dataclass(frozen=True)
class Request:
    """A request. `output` tokens are made; computing the prompt makes the first of them."""

    arrival_s: float
    prompt: int
    output: int


@dataclass(frozen=True)
class Policy:
    """The limits of an iteration of an engine."""

    tokens: int = 8192
    """New tokens of an iteration, at most."""
    sequences: int = 256
    """The most sequences that run at a time."""
    block: int = 16
    """Positions of the cache that are allotted at a time."""
    blocks: int | None = None
    """Blocks of the cache of one engine. None: as many as its devices have room for, or no limit if that is not known."""
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
    began_s: float = 0.0
    """The iteration in which it ended: when that began."""
    ended: int = 0
    """The number of that iteration."""
    beside: int = 0
    """Positions of the sequences that its engine completed in that iteration, its own too."""
    begun: int | None = None
    """The number of the first iteration that computed anything of it."""
    given: int | None = None
    """Where another pool computed its prompt: the number of the iteration that completed it."""
    handover_s: float = 0.0
    """Where another pool computed its prompt: how long what that computed in its last iteration is on its way."""
    late_s: float = 0.0
    """Of that, what is behind the end of that iteration: before, it overlaps."""

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
            wanted = each.known - each.computed
            new = min(wanted, left)
            whole = self.policy.chunked or new == wanted
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

    def finish(
        self, chosen: Sequence[tuple[Running, int]], begin_s: float, now_s: float, number: int
    ) -> None:
        """At the end of an iteration."""
        done = [each for each, new in chosen if each.computed + new == each.known]
        completed = sum(each.known for each in done)
        for each, new in chosen:
            each.begun = number if each.begun is None else each.begun
            each.computed += new
            if each.computed < each.known:
                continue
            each.made += 1
            each.first_s = each.first_s or now_s
            if each.made == each.request.output:
                each.end_s, each.began_s, each.beside = now_s, begin_s, completed
                each.ended = number
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
    """The results of requests."""

    iterations: list[Iteration] = field(default_factory=list)
    served: list[Running] = field(default_factory=list)
    preempted: int = 0


IDLE: Kind = (1, 1, 0)
"""What an engine computes that has nothing to do while others have: one token that nobody reads."""

GOES_ON: Kind = (1, 1, 1)
"""Likewise where none may begin."""


@dataclass(frozen=True)
class BatchedPool:
    """Devices that have sequences of their own, each an engine, and how long an iteration of theirs takes, by the sequences of each."""

    engines: int
    step_s: Callable[[Sequence[Sequence[Kind]]], float]
    blocks: int | None = None
    """Of the cache of each engine, where the policy does not say."""
    begins_together: bool = False
    """Whether sequences begin on all of them in an iteration, or on none: encoders run in the one program that all have."""

    def policy(self, wanted: Policy) -> Policy:
        """What its engines do: as is wanted, with as many blocks as they have."""
        return wanted if wanted.blocks is not None else replace(wanted, blocks=self.blocks)

    def devices(
        self, chosen: Sequence[Sequence[tuple[Running, int]]]
    ) -> tuple[tuple[Kind, ...], ...]:
        """What they compute, those that have nothing to do or to begin too."""
        kinds = [tuple(kinds_of(each)) for each in chosen]
        begins = [any(not before for *_, before in each) for each in kinds]
        if not self.begins_together:
            return tuple(each or (IDLE,) for each in kinds)
        if not any(begins):
            return tuple(each or (GOES_ON,) for each in kinds)
        return tuple(k if begin else (*k, IDLE) for k, begin in zip(kinds, begins, strict=True))


def batch(requests: Sequence[Request], policy: Policy, pool: BatchedPool) -> Batches:
    """Serve all requests."""
    return go_on([(each.arrival_s, Running(each)) for each in requests], policy, pool)


def go_on(coming: Sequence[tuple[float, Running]], policy: Policy, pool: BatchedPool) -> Batches:
    """Serve requests of which something may be computed already, from when they come."""
    found = Batches()
    policy = pool.policy(policy)
    own = [Engine(policy) for _ in range(pool.engines)]
    left = deque(sorted(coming, key=lambda each: each[0]))
    found.served = [each for _, each in left]
    now = 0.0
    while left or any(engine.load for engine in own):
        if not any(engine.load for engine in own):
            now = max(now, left[0][0])
        while left and left[0][0] <= now:
            min(own, key=lambda engine: engine.load).waiting.append(left.popleft()[1])
        chosen = [engine.schedule() for engine in own]
        assert any(chosen), "a request fits no engine"
        devices = pool.devices(chosen)
        end = now + pool.step_s(devices)
        used = sum(engine.used for engine in own)
        found.iterations.append(Iteration(now, end, devices, used))
        for engine, each in zip(own, chosen, strict=True):
            engine.finish(each, now, end, len(found.iterations) - 1)
        now = end
    found.preempted = sum(engine.preempted for engine in own)
    return found


def batch_pools(
    requests: Sequence[Request],
    policy: Policy,
    first: BatchedPool,
    second: BatchedPool,
    transfer_s: Callable[[int], float],
) -> tuple[Batches, Batches]:
    """Prompts in one pool, further tokens in another. The second has a request for each that wants more than one token.

    What an engine of the first completes in an iteration is handed over while it computes: it is there at the end of the iteration, or,
    from its beginning on, when `transfer_s` of so many positions is over. What waits for a place in the second waits in memory that is not counted.
    """
    prompts = go_on(
        [(r.arrival_s, Running(Request(r.arrival_s, r.prompt, 1))) for r in requests],
        policy,
        first,
    )
    wanted = deque(sorted(requests, key=lambda each: each.arrival_s))
    coming: list[tuple[float, Running]] = []
    for done in prompts.served:
        request = wanted.popleft()
        if request.output > 1:
            handover_s = transfer_s(done.beside)
            there = max(done.end_s, done.began_s + handover_s)
            goes_on = Running(
                request,
                computed=request.prompt,
                made=1,
                first_s=done.first_s,
                given=done.ended,
                handover_s=handover_s,
                late_s=there - done.end_s,
            )
            coming.append((there, goes_on))
    return prompts, go_on(coming, policy, second)


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
