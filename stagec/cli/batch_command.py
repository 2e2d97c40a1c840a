"""`stagec batch REQUESTS.csv MODEL.stg`: the iterations in which an engine serves requests, as a file for `--iterations`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stagec.backend.files import write_whole
from stagec.cli.inputs import has_pools, is_ir
from stagec.cli.tables import seconds
from stagec.cli.usage import (
    CommandParser,
    a_file,
    add_flag,
    add_load_pass,
    add_repeated,
    add_switch,
    add_trust_flags,
    overrides,
    usage_error,
    whole_number,
)
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError, refused, refused_line
from stagec.dialects.dist.sequences import DealtSequences
from stagec.driver import Stops, compile_checked
from stagec.estimate.batcher import (
    BatchedPool,
    Batches,
    Kind,
    Policy,
    Request,
    Running,
    batch,
    batch_pools,
    unfit,
)
from stagec.estimate.pool_series import time_together_us
from stagec.estimate.pools import order, transfer_s
from stagec.estimate.series import Clock
from stagec.explaining.cache_room import cache_room
from stagec.explaining.job import NamedJob
from stagec.frontend import Source, check, parse_file
from stagec.frontend.checker import plan_of_pool
from stagec.frontend.plans.iterations import Iterations
from stagec.pictures.scales import digits
from stagec.plans.clauses import Serve
from stagec.plugins import Registry, registry
from stagec.pools import CompiledPools, compile_pools, overrides_by_pool
from stagec.reading import parse_csv, read_whole_text
from stagec.shipped_models import model_named
from stagec.text_places import csv_place

COLUMNS = ("arrival", "prompt", "output")
MOST_ENGINES = 4096
EPILOG = """\
REQUESTS.csv names the columns `arrival` (seconds), `prompt` and `output` (tokens), and has a line for each request.

  stagec batch requests.csv llama3_70b --plan serve_tp8 -o rows.csv
  stagec llama3_70b --plan serve_tp8 --iterations rows.csv -o traces/
"""


def run(arguments: Sequence[str]) -> int:
    options = make_parser().read(arguments)
    policy = Policy(
        options.tokens, options.sequences, options.block, options.blocks, not options.whole_prompts
    )
    if options.model is not None:
        options.model = model_named(options.model)
    asked = read_requests(options.requests)
    check_fit(asked, policy)
    if options.model is not None and has_pools(options.model, options.plan):
        sys.stdout.write(serve_in_pools(options, asked, policy))
        return 0
    lines = serve_on_one(options, asked, policy, clock_of(options, policy))
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def serve_on_one(
    options: argparse.Namespace, asked: RequestFile, policy: Policy, pool: BatchedPool
) -> list[str]:
    """All of it on devices that compute each iteration together; one file of iterations."""
    check_fit(asked, pool.policy(policy))
    found = batch(asked.requests, policy, pool)
    served, *waits = users_lines(found.served, found.iterations[-1].end_s)
    iterations, *cache = engine_lines(found, pool.policy(policy))
    return [served, iterations, *waits, *cache, *written(options.out, found)]


@dataclass
class RequestFile:
    """A file of requests: what it says, and in which line it says each."""

    path: str
    text: str = ""
    requests: list[Request] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def wrong(self, line: int, message: str, help_: str, cell: int | None = None) -> CompileError:
        """E0421 in a line, or in a cell of it."""
        place = line if cell is None else csv_place(self.text, self.path, line, cell)
        return refused_line(self.path, place, message, help_)


def check_fit(asked: RequestFile, policy: Policy) -> None:
    """E0421 for a request that no engine can serve."""
    for number in unfit(asked.requests, policy):
        request = asked.requests[number]
        message = f"request {number + 1} fits no engine: {request.prompt:,} tokens and {request.output:,} more"
        help_ = "allow more `--tokens`, more `--blocks`, or chunks"
        raise asked.wrong(asked.lines[number], message, help_)


def serve_in_pools(options: argparse.Namespace, asked: RequestFile, policy: Policy) -> str:
    """Prompts in one pool of the plan, further tokens in the other; a file of iterations for each. E0422 for more pools than two."""
    source, plug_ins = parse_file(options.model), registry(options.load_pass)
    sizes = overrides(options.set)
    compiled = compile_pools(source, options.plan, sizes, known=plug_ins)
    first = compiled.first
    if first.model is not None and first.model.part is not None:
        pool = clock_of_parts(source, options, plug_ins, policy)
        return "\n".join(serve_on_one(options, asked, policy, pool)) + "\n"
    names = order(compiled.traces)
    if len(names) != 2:
        message = f"plan `{compiled.name}` has {len(names)} pools, and a batcher knows two: one that computes prompts, and one that goes on with them"
        help_ = (
            f"ask about one of them: {' or '.join(f'`--plan {compiled.name}.{n}`' for n in names)}"
        )
        raise refused("E0422", message, compiled.first.plan.span, help=help_)
    own = overrides_by_pool(source, options.plan, names, sizes)
    of_pools = [(plan_of_pool(source, options.plan, name), own[name]) for name in names]
    first, second = (
        clock_in(source, *each, options.step_time, plug_ins, policy) for each in of_pools
    )
    for pool in (first, second):
        check_fit(asked, pool.policy(policy))
    requests = asked.requests
    ways = transfer_s(compiled.pools, names[0], names[1], (first.engines, second.engines))
    prompts, further = batch_pools(requests, policy, first, second, ways)
    both = zip(prompts.served, sorted(requests, key=lambda r: r.arrival_s), strict=True)
    served = [prompt for prompt, request in both if request.output == 1] + further.served
    lines = users_lines(served, max(each.end_s for each in served))
    if further.served:
        late = float(np.mean([each.late_s for each in further.served]))
        took = spread(np.array([each.handover_s for each in further.served]))
        exposed = f"{seconds(late)} of it" if late else "none of it"
        lines.append(f"handover    {took}; {exposed} behind the first token")
    for name, pool, found in zip(names, (first, second), (prompts, further), strict=True):
        if not found.iterations:
            continue
        out = None
        if options.out is not None:
            stem, dot, ending = options.out.rpartition(".")
            out = f"{stem}.{name}.{ending}" if dot else f"{options.out}.{name}"
        lines += [f"pool {name}", *engine_lines(found, pool.policy(policy)), *written(out, found)]
    return "\n".join(lines) + "\n"


def written(out: str | None, found: Batches) -> list[str]:
    """Write the iterations of an engine, and say so."""
    if out is None:
        return []
    write_whole(out, rows_of(found).encode())
    return [f"{out}: {len(found.iterations):,} iterations, for `--iterations`"]


def make_parser() -> CommandParser:
    parser = CommandParser(
        "stagec batch",
        "Serve requests by continuous batching: the iterations, and how long users wait.",
        EPILOG,
    )
    parser.add_argument(
        "requests",
        metavar="REQUESTS.csv",
        help="a line for each request: when it comes, and its tokens",
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL.stg", help="whose estimated times are the clock"
    )
    add_flag(parser, "--plan", "NAME", "a plan that serves")
    add_repeated(parser, "--set", "NAME=SIZE", "the size of a dim or a mesh axis")
    add_flag(
        parser, "-o", "FILE.csv", "write the iterations, for `--iterations`", a_file, dest="out"
    )
    add_flag(
        parser,
        "--step-time",
        "SECONDS",
        "what each iteration takes, instead of an estimate",
        positive,
    )
    add_flag(
        parser,
        "--tokens",
        "N",
        "new tokens of an iteration, at most (8192)",
        whole_number,
        default=8192,
    )
    add_flag(
        parser,
        "--sequences",
        "N",
        "sequences that run at a time, at most (256)",
        whole_number,
        default=256,
    )
    add_flag(
        parser, "--block", "N", "positions of a block of the cache (16)", whole_number, default=16
    )
    add_flag(
        parser,
        "--blocks",
        "N",
        "blocks of the cache of one engine (what its devices have room for)",
        whole_number,
    )
    add_switch(parser, "--whole-prompts", help="compute no prompt in parts")
    add_load_pass(parser)
    add_trust_flags(parser)
    return parser


def positive(flag: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e9:
        message = f"`{text}` is not a time in seconds"
        raise usage_error(f"{flag} {text}", message, "E0710", f"for example `{flag} 0.05`")
    return found


def read_requests(path: str) -> RequestFile:
    """E0421 for a file that cannot be read, or a line that is no request."""
    help_ = (
        "write `arrival,prompt,output` above the requests, and a line like `0.25,1500,120` for each"
    )
    found = RequestFile(path)
    try:
        found.text = read_whole_text(path)
        rows = parse_csv(found.text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise found.wrong(0, f"cannot read `{path}`: {reason}", help_) from None
    names = [word.strip() for word in rows[0][1]] if rows else []
    if not all(name in names for name in COLUMNS):
        message = "the first line does not name `arrival`, `prompt` and `output`"
        raise found.wrong(rows[0][0] if rows else 0, message, help_)
    places = [names.index(name) for name in COLUMNS]
    for number, words in rows[1:]:
        if not any(words):
            continue
        if any(words[len(names) :]):
            message = f"a line of {len(words)} cells, where {len(names)} columns have names"
            raise found.wrong(number, message, help_, len(names))
        if len(words) <= max(places):
            raise found.wrong(number, "this is not a request", help_)
        said: list[float] = []
        for at, kind in zip(places, (float, int, int), strict=True):
            try:
                said.append(kind(words[at]))
            except ValueError:
                message = (
                    f"this is not a request: `{words[at].strip()}` is no number of {names[at]}"
                )
                raise found.wrong(number, message, help_, at) from None
        request = Request(said[0], int(said[1]), int(said[2]))
        if request.prompt < 1 or request.output < 1:
            at = places[1 if request.prompt < 1 else 2]
            raise found.wrong(number, "a request has a prompt, and an output", help_, at)
        if not 0 <= request.arrival_s < 1e12:
            message = (
                f"a request comes so many seconds after the first, not `{words[places[0]].strip()}`"
            )
            raise found.wrong(number, message, help_, places[0])
        found.requests.append(request)
        found.lines.append(number)
    if not found.requests:
        raise found.wrong(0, "there are no requests in it", help_)
    return found


def clock_of(options: argparse.Namespace, policy: Policy) -> BatchedPool:
    """How long an iteration takes, and how many devices have sequences of their own."""
    if options.model is None:
        if options.step_time is None:
            message = "nothing says how long an iteration takes"
            raise usage_error("", message, help="name a model and its plan, or a `--step-time`")
        for flag, said in (("--plan", options.plan), ("--set", " ".join(options.set))):
            if said:
                message = f"`{flag}` is of a model, and none is named"
                raise usage_error(f"{flag} {said}", message, "E0711", f"leave out `{flag}`")
        return BatchedPool(1, lambda _: options.step_time)
    path = options.model
    if is_ir(path):
        message = "a batcher wants a model, and this is IR"
        raise usage_error(path, message, "E0711", "name its text: `MODEL.stg`")
    plug_ins = registry(options.load_pass)
    sizes = overrides(options.set)
    return clock_in(parse_file(path), options.plan, sizes, options.step_time, plug_ins, policy)


def clock_in(
    source: Source,
    plan: str | None,
    sizes: Mapping[str, str],
    step_time: float | None,
    plug_ins: Registry,
    policy: Policy,
) -> BatchedPool:
    """Likewise of a plan of one mesh. `step_time` is that of every iteration, where it is given."""

    def compiled(row: Sequence[Sequence[Kind]]) -> Compiled:
        stub = iteration_of(row)
        return compile_checked(
            lambda: check(source, plan, sizes, plug_ins.functions, stub),
            stops=Stops(),
            load_pass=plug_ins.make_pass,
        )

    checked = compiled([[(1, 1, n + 1) for n in range(MOST_ENGINES)]]).checked
    assert checked.batch is not None
    assert checked.batch.sums is not None
    engines, serve = checked.batch.sums.sequences.num_devices, checked.batch.serve
    clocks: dict[tuple[bool, int], Clock] = {}

    def step_s(devices: Sequence[Sequence[Kind]]) -> float:
        number = num_microbatches(serve, devices)
        begins = checked.computes_once and any(not c for each in devices for *_, c in each)
        if (begins, number) not in clocks:
            # Other sequences on each device, so that each is a class of its own.
            alike = [[(number + n, 1, int(not begins))] for n in range(engines)]
            clocks[begins, number] = Clock(compiled(alike))
        return clocks[begins, number].time_of_us(devices) / 1e6

    blocks = blocks_of(policy, lambda row: [compiled(row)], engines)
    if step_time is not None:
        return BatchedPool(engines, lambda _: step_time, blocks, checked.computes_once)
    return BatchedPool(engines, step_s, blocks, checked.computes_once)


def blocks_of(
    policy: Policy, compiled: Callable[[Sequence[Sequence[Kind]]], Sequence[Compiled]], engines: int
) -> int | None:
    """What the devices of an engine have room for beside an iteration of as many tokens as it may have; nothing where they do not say, or `--blocks` does."""
    if policy.blocks is not None:
        return None
    sequences = min(policy.sequences, policy.tokens)
    most = [(sequences, policy.tokens // sequences, 0)]
    rooms = [cache_room(NamedJob(each), policy.block) for each in compiled([most] * engines)]
    return min((room.positions // policy.block for room in rooms if room), default=None)


def clock_of_parts(
    source: Source, options: argparse.Namespace, plug_ins: Registry, policy: Policy
) -> BatchedPool:
    """The clock of pools that compute parts of each iteration: the devices with attention are the engines, and both pools share one axis of time."""
    sizes = overrides(options.set)

    def compiled(row: Sequence[Sequence[Kind]]) -> CompiledPools:
        stub = iteration_of(row)
        return compile_pools(source, options.plan, sizes, known=plug_ins, iterations=stub)

    first = compiled([[(1, 1, n + 1) for n in range(MOST_ENGINES)]])
    batches = (each.checked.batch for each in first.pools.values())
    own = next(b for b in batches if b is not None and b.serve.part == "attention")
    assert own.sums is not None
    engines, serve = own.sums.sequences.num_devices, own.serve
    blocks = blocks_of(policy, lambda row: [*compiled(row).pools.values()], engines)
    if options.step_time is not None:
        return BatchedPool(engines, lambda _: options.step_time, blocks)
    clocks: dict[int, dict[str, Clock]] = {}

    def step_s(devices: Sequence[Sequence[Kind]]) -> float:
        number = num_microbatches(serve, devices)
        if number not in clocks:
            pools = compiled([[(number + n, 1, 1)] for n in range(engines)]).pools
            clocks[number] = {name: Clock(each) for name, each in pools.items()}
        return time_together_us(clocks[number], devices) / 1e6

    return BatchedPool(engines, step_s, blocks)


def iteration_of(row: Sequence[Sequence[Kind]]) -> Iterations:
    kinds = tuple(tuple((*kind, 1) for kind in device) for device in row)
    return Iterations("the batcher", [kinds], [0])


def num_microbatches(serve: Serve, devices: Sequence[Sequence[Kind]]) -> int:
    """The number of microbatches of an iteration."""
    dealt = DealtSequences.of([[[(*kind, 1) for kind in kinds] for kinds in devices]])
    return min(serve.microbatches, int(dealt.most_microbatches(serve.split)[0]))


def rows_of(found: Batches) -> str:
    """The file of the iterations, with what they take from those of another pool, if there is one."""
    taken: dict[int, Counter[tuple[int, int]]] = {}
    for each in found.served:
        if each.given is not None:
            assert each.begun is not None
            taken.setdefault(each.begun, Counter())[each.request.prompt, each.given] += 1
    lines = ["prefill,decode,taken" if taken else "prefill,decode"]
    for number, each in enumerate(found.iterations):
        prefills = [
            " ".join(f"{n}x{new}@{before}" for n, new, before in kinds if new > 1 or not before)
            for kinds in each.devices
        ]
        decodes = [
            " ".join(f"{n}@{before}" for n, new, before in kinds if new == 1 and before)
            for kinds in each.devices
        ]
        line = f"{'|'.join(prefills)},{'|'.join(decodes)}"
        if taken:
            own = sorted(taken.get(number, {}).items(), key=lambda item: item[0][::-1])
            line += "," + " ".join(f"{n}x{positions}@{given}" for (positions, given), n in own)
        lines.append(line)
    return "\n".join(lines) + "\n"


def users_lines(served: Sequence[Running], end_s: float) -> list[str]:
    """What users ask."""
    first = np.array([each.first_s - each.request.arrival_s for each in served])
    later = np.array(
        [
            (each.end_s - each.first_s) / (each.request.output - 1)
            for each in served
            if each.request.output > 1
        ]
    )
    took = end_s - min(each.request.arrival_s for each in served)
    made = sum(each.request.output for each in served)
    return [
        f"requests    {len(served):,}, {made:,} tokens made in {seconds(took)}: {digits(made / took)} tokens/s",
        f"TTFT        {spread(first)}",
        *([f"TPOT        {spread(later)}"] if len(later) else []),
    ]


def engine_lines(found: Batches, policy: Policy) -> list[str]:
    """What operators ask."""
    used = np.array([each.used for each in found.iterations], float)
    lengths = np.array([each.end_s - each.begin_s for each in found.iterations])
    blocks = float((used * lengths).sum() / lengths.sum())
    whole = (
        "" if policy.blocks is None else f" of {policy.blocks * len(found.iterations[0].devices):,}"
    )
    return [
        f"iterations  {len(found.iterations):,}, {seconds(float(lengths.mean()))} each",
        f"cache       {digits(blocks)} blocks{whole} on average, {int(used.max()):,} at most; {found.preempted:,} sequences thrown out",
    ]


def spread(times: np.ndarray) -> str:
    """How times in seconds are spread: their mean, their median, and the time that 99 % are below."""
    numbers = (float(times.mean()), *(float(np.percentile(times, q)) for q in (50, 99)))
    mean, median, high = map(seconds, numbers)
    return f"{mean} on average, {median} in the middle, {high} for 99 %"
