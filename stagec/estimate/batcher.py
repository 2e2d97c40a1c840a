"""Continuous batching: which sequences an engine computes in each iteration, from requests that arrive over time.

The policy is that of vLLM's scheduler (`Scheduler.schedule`, version 1). In each iteration, with a budget of tokens:

1. Sequences that run go first, in the order in which they were admitted: a prompt goes on by as many tokens as are left of the budget, a decode by one.
   If the cache has no block left for a sequence, the one that was admitted last is preempted: it gives up its blocks, waits again, before all others,
   and is computed anew.
2. If nothing was preempted, waiting sequences are admitted, in the order in which they came, while there are places, tokens and blocks.

A sequence whose tokens are all computed has one more token at the end of the iteration. Several engines (devices that have sequences of their own) run
their iterations at the same time; a request goes to the engine that has fewest.

Two pools can share the work (`batch_pools`): the first one computes each prompt and the first token after it, the second one all further tokens. The second
has a clock of its own, and a sequence arrives there when its cache has been handed over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

Kind = tuple[int, int, int]
"""A kind of sequences: how many there are, how many new positions each has, and how many positions came before these."""


@dataclass(frozen=True)
class Request:
    """A request to the engine: a prompt, for which `output` tokens are generated. Computing the prompt makes the first of them."""

    arrival_s: float
    prompt: int
    """Tokens of the prompt."""
    output: int
    """Tokens to generate."""


@dataclass(frozen=True)
class Policy:
    """The limits by which an engine chooses the sequences of an iteration."""

    tokens: int = 8192
    """How many new tokens an iteration may have at most."""
    sequences: int = 256
    """How many sequences may run at a time at most."""
    block: int = 16
    """How many positions one block of the cache has."""
    blocks: int | None = None
    """Blocks of the cache of one engine. None: as many as its devices have room for, or no limit if that is not known."""
    chunked: bool = True
    """Whether a prompt may be computed in parts."""


@dataclass(eq=False)
class Running:
    """A request that an engine has, whether it waits, runs or has ended, and how far it is."""

    request: Request
    computed: int = 0
    """How many of its positions are computed, and in the cache."""
    made: int = 0
    """How many tokens of its output are generated."""
    blocks: int = 0
    """How many blocks of the cache it has."""
    first_s: float = 0.0
    """When its first token was generated."""
    end_s: float = 0.0
    """When its last token was generated, which is the end of its last iteration."""
    began_s: float = 0.0
    """When its last iteration began."""
    ended: int = 0
    """The number of its last iteration."""
    beside: int = 0
    """How many positions the sequences have together that its engine completed in its last iteration, its own included."""
    begun: int | None = None
    """The number of the first iteration that computed anything of it."""
    given: int | None = None
    """If another pool computed its prompt: the number of the iteration of that pool that completed it."""
    handover_s: float = 0.0
    """If another pool computed its prompt: how long it takes to hand over what that pool completed in the same iteration."""
    late_s: float = 0.0
    """How much of that is after the end of that iteration; the rest runs while the iteration computes."""

    @property
    def known(self) -> int:
        """How many of its tokens are known, and so can be computed: those of the prompt, and those that were generated."""
        return self.request.prompt + self.made


@dataclass
class Engine:
    """One device, or a group of devices that work on the same sequences, with its requests and its cache."""

    policy: Policy
    waiting: deque[Running] = field(default_factory=deque)
    running: list[Running] = field(default_factory=list)
    used: int = 0
    """How many blocks of the cache are in use."""
    preempted: int = 0
    """How many times a sequence was preempted."""

    @property
    def load(self) -> int:
        """How many requests it has, waiting or running."""
        return len(self.waiting) + len(self.running)

    def schedule(self) -> list[tuple[Running, int]]:
        """Choose the sequences of the next iteration, each with the number of its tokens that the iteration computes."""
        chosen: list[tuple[Running, int]] = []
        left, before = self.policy.tokens, self.preempted
        at = 0
        while at < len(self.running) and left:
            each = self.running[at]
            new = min(each.known - each.computed, left)
            while not self.take(each, new):
                last = self.running.pop()
                self.preempt(last)
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
        """Give a sequence the blocks that `new` more positions need. Returns whether the cache has as many; if not, nothing changes."""
        needed = -(-(each.computed + new) // self.policy.block) - each.blocks
        if self.policy.blocks is not None and self.used + needed > self.policy.blocks:
            return False
        each.blocks += needed
        self.used += needed
        return True

    def preempt(self, each: Running) -> None:
        """Take a sequence's blocks away. It waits before all others, and all of its tokens have to be computed anew."""
        self.free(each)
        each.computed = 0
        self.preempted += 1
        self.waiting.appendleft(each)

    def free(self, each: Running) -> None:
        """Give the blocks of a sequence back."""
        self.used -= each.blocks
        each.blocks = 0

    def finish(
        self, chosen: Sequence[tuple[Running, int]], begin_s: float, now_s: float, number: int
    ) -> None:
        """Note at the end of iteration `number`, which ran from `begin_s` to `now_s`, what it computed of the sequences that were chosen."""
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
    """One iteration: when it ran, and what it computed."""

    begin_s: float
    end_s: float
    devices: tuple[tuple[Kind, ...], ...]
    """For each engine, the kinds of sequences that it computed."""
    used: int
    """How many blocks of the cache were in use, of all engines together."""


@dataclass
class Batches:
    """The result of serving requests: the iterations, and when each request was served."""

    iterations: list[Iteration] = field(default_factory=list)
    served: list[Running] = field(default_factory=list)
    preempted: int = 0


IDLE: Kind = (1, 1, 0)
"""What an engine computes that has no sequences while others have some: one token that nobody reads."""

GOES_ON: Kind = (1, 1, 1)
"""The same in an iteration in which no sequence may begin: one token after another one."""


@dataclass(frozen=True)
class BatchedPool:
    """The engines that run iterations together, and how long an iteration takes."""

    engines: int
    """How many engines there are: devices, or groups of them, that have sequences of their own."""
    step_s: Callable[[Sequence[Sequence[Kind]]], float]
    """How many seconds an iteration takes, given the kinds of sequences of each engine."""
    blocks: int | None = None
    """How many blocks the cache of each engine has, if the policy does not say it."""
    begins_together: bool = False
    """Whether sequences begin on all of them in an iteration, or on none: encoders run in the one program that all have."""

    def policy(self, wanted: Policy) -> Policy:
        """The policy of the engines: the one that is `wanted`, with the blocks that the engines have if it says none."""
        return wanted if wanted.blocks is not None else replace(wanted, blocks=self.blocks)

    def devices(
        self, chosen: Sequence[Sequence[tuple[Running, int]]]
    ) -> tuple[tuple[Kind, ...], ...]:
        """The kinds of sequences that each engine computes in an iteration, with the token of those that have nothing to do, or nothing to begin."""
        kinds = [tuple(kinds_of(each)) for each in chosen]
        begins = [any(not before for *_, before in each) for each in kinds]
        if not self.begins_together:
            return tuple(each or (IDLE,) for each in kinds)
        if not any(begins):
            return tuple(each or (GOES_ON,) for each in kinds)
        return tuple(k if begin else (*k, IDLE) for k, begin in zip(kinds, begins, strict=True))


def batch(requests: Sequence[Request], policy: Policy, pool: BatchedPool) -> Batches:
    """Serve all requests with the engines of one pool."""
    return serve_from([(each.arrival_s, Running(each)) for each in requests], policy, pool)


def serve_from(
    coming: Sequence[tuple[float, Running]], policy: Policy, pool: BatchedPool
) -> Batches:
    """Serve requests that another pool may have begun. Each comes with the time in seconds at which it arrives."""
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
    """Serve requests in two pools: the first computes prompts and first tokens, the second goes on with each request that wants more than one token.

    The cache that an engine of the first pool completes in an iteration is handed over while the iteration computes. It is there at the end of the
    iteration or, if that is later, `transfer_s` (seconds, by the number of positions) after its beginning. A sequence that waits for a place in the second
    pool waits in memory that is not counted.
    """
    prompts = serve_from(
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
    return prompts, serve_from(coming, policy, second)


def kinds_of(chosen: Sequence[tuple[Running, int]]) -> Iterator[Kind]:
    """The kinds of the sequences of an iteration, in the order in which the first of each kind was chosen."""
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
