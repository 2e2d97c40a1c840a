"""Offload to the host: what moves, what is freed, and what stays as it is."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from stagec.backend.program import RankClass
from stagec.diagnostics import CompileError
from stagec.dialects.sched.actions import Collective, Compute, HostCopy, HostUpdate
from stagec.driver import Compiled, Stops, compile_text
from stagec.estimate.prices import Prices
from stagec.explaining.job import NamedJob
from stagec.explaining.questions import ask
from stagec.frontend import parse_text
from stagec.memory import ClassPlan, Kind
from stagec.memory.static import by_kind
from stagec.summary import ClassSummary, summarize
from stagec.sweeping.run import sweep
from tests.differential.sweeps import request
from tests.fidelity.totals import nodes_of
from tests.unit.seldom import some

TEXT = """
dim B = 16
dim S = 64
dim V = 1024
dim D = 64
dim F = 256
dim L = 8

module Block(x[B, S, D]) -> [B, S, D] {
  weight up[D, F], down[F, D]
  h = gelu(x @ up)
  return x + h @ down
}

model Net(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  loss = cross_entropy(x @ head, targets)
}

plan p {
  mesh dp = 2, pp = 2
  shard B over dp
  microbatch 4
  precision { weights = bf16, gradients = fp32 }
  CLAUSES
}
"""

TOKENS = 4 * 64
"""Of one microbatch."""
LAYER = 2 * 64 * 256
"""Parameters."""


def compiled(*clauses: str) -> Compiled:
    return compile_text(TEXT.replace("CLAUSES", "\n".join(clauses)), "net.stg")


def one(*clauses: str) -> ClassPlan:
    (plan,) = compiled(*clauses).memory
    return plan


def copies(ranks: RankClass) -> Counter[tuple[str, int]]:
    """How often each size goes in each direction."""
    found: Counter[tuple[str, int]] = Counter()
    for node, count in nodes_of(ranks):
        if isinstance(node.action, HostCopy):
            found[node.action.kind, node.action.num_bytes] += count
    return found


def test_a_named_value_goes_and_comes_back_once() -> None:
    (ranks,) = compiled('offload { activations = ["Block.h"] }').trace_set.classes
    size = 2 * TOKENS * 256
    # What gelu makes, and the unnamed product that it is made from: 8 layers, 2 microbatches.
    assert copies(ranks) == {("store", size): 32, ("load", size): 32}


def test_the_device_has_a_layer_and_those_fetched_ahead() -> None:
    kept, size = one(), 2 * TOKENS * 256

    def most(kind: Kind, prefetch: int) -> int:
        plan = one(f"offload {{ activations = [gelu], prefetch = {prefetch} }}")
        return int(plan.timeline_by_kind()[kind].max())

    assert most(Kind.FETCHED, 0) == size
    assert most(Kind.FETCHED, 1) == 2 * size
    assert most(Kind.FETCHED, 3) == 4 * size
    assert kept.peak_bytes - one("offload { activations = all }").peak_bytes > 5 * size


def test_the_host_has_what_the_device_has_not() -> None:
    plan = one("offload { activations = [gelu] }")
    assert plan.host_bytes == {Kind.HOST: 8 * 2 * TOKENS * 256}
    plan = one("offload { optimizer = true, parameters = true }")
    parameters = 8 * LAYER + 2 * 1024 * 64
    assert plan.host_bytes == {
        Kind.PARAMETERS: 2 * parameters,
        Kind.MASTER: 4 * parameters,
        Kind.OPTIMIZER: 8 * parameters,
    }
    assert plan.always_bytes == 0


def test_state_stays_where_parameters_alone_are_on_the_host() -> None:
    """Adam's moments and the master copy are updated where they are."""
    parameters = 8 * LAYER + 2 * 1024 * 64
    here = {Kind.MASTER: 4 * parameters, Kind.OPTIMIZER: 8 * parameters}
    for zero in ("", "zero 3 over dp"):
        plan = one(zero, "offload { parameters = true }")
        ways = 2 if zero else 1
        assert plan.host_bytes == {Kind.PARAMETERS: 2 * parameters // ways}
        assert plan.always_bytes == sum(here.values()) // ways


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(5))
def test_each_weight_is_counted_where_it_is(seed: int) -> None:
    """Random levels, and weights that `persist` keeps whole on the device: by hand, and the same in the plan of memory, in answers and in sweeps."""
    draw = random.Random(seed)
    update = draw.choice(("", ", update = host"))
    below = draw.choice(("", "optimizer", "parameters", "optimizer, parameters"))
    below = below if update else below.replace("optimizer, ", "").replace("optimizer", "")
    nvme = f", nvme = [{below}]" if below else ""
    text = TEXT.replace("pp = 2", "pp = 1").replace("up[D, F]", "up[D, F], norm[D]")
    text = text.replace("gelu(x @ up)", "gelu(x * norm @ up)")
    sizes = {64: 8 * 64, LAYER: 8 * LAYER, 2 * LAYER: 2 * 1024 * 64}
    parameters, persist = sum(sizes.values()), draw.choice((32, *sizes))
    whole = sum(size for most, size in sizes.items() if most <= persist)
    clauses = f"zero 3 over dp {{ persist = {persist} }} "
    clauses += f"offload {{ parameters = true, optimizer = true{update}{nvme} }}"
    text = text.replace("CLAUSES", clauses)
    job = compile_text(text, "net.stg")
    (plan,) = job.memory
    levels = {"host": 0, "nvme": 0}
    levels["nvme" if "parameters" in below else "host"] += 2 * (parameters - whole) // 2
    levels["nvme" if "optimizer" in below else "host"] += 12 * parameters // 2
    found = {
        "parameters": 2 * whole,
        "master": 0,
        "optimizer": 0,
        "gradients": 4 * parameters // 2,
        "static": 2 * whole + 4 * parameters // 2,
        "host": levels["host"] + plan.host_bytes.get(Kind.HOST, 0),
        "nvme": levels["nvme"] + plan.nvme_bytes.get(Kind.NVME, 0),
        "peak": sum(plan.at_peak().values()),
    }
    assert plan.static.num_bytes[Kind.PARAMETERS] == plan.at_peak()[Kind.PARAMETERS] == 2 * whole
    assert plan.peak_bytes == found["peak"] == sum(p.num_bytes for p in plan.parts_at_peak())
    assert {what: ask(NamedJob(job), f"memory.{what}").worst.value for what in found} == found
    asked = [f"memory.{what}" for what in found]
    table = sweep(request(parse_text(text, "net.stg"), "p", asked, "dp=2")).row(0)
    assert {what: table[f"memory.{what}"] for what in found} == found
    notes = ask(NamedJob(job), "memory.optimizer").notes
    assert notes == (
        ("more of that is on NVMe: `memory.nvme`",)
        if "optimizer" in below
        else ("more of that is on the host: `memory.host`",)
    )


@pytest.mark.parametrize("schedule", some(["1f1b", "interleaved_1f1b", "zb_v", "dualpipe_v"], 2))
def test_parameters_are_loaded_for_each_gather_of_a_stage(schedule: str) -> None:
    """What a schedule gathers for several microbatches is loaded for all of them once, and once more for the update."""
    virtual = 1 if schedule == "1f1b" else 2
    pipeline = f"pipeline L over pp {{ schedule = {schedule}, microbatch = 1, virtual_stages = {virtual} }}"
    text = TEXT.replace("microbatch 4", pipeline)
    clauses = "zero 3 over dp\noffload { parameters = true }"
    for ranks in compile_text(text.replace("CLAUSES", clauses), "net.stg").trace_set.classes:
        layer = LAYER  # two bytes a parameter, over two ranks
        gathers = sum(
            count
            for node, count in nodes_of(ranks)
            if isinstance(node.action, Collective)
            and node.action.kind == "all_gather"
            and node.action.operand_bytes == layer
        )
        assert gathers >= 8
        loads = copies(ranks)["load", layer]
        assert loads == gathers + copies(ranks)["store", layer]


@pytest.mark.parametrize("name", some(["muon", "adafactor", "shampoo", "soap"], 4))
def test_what_is_kept_of_matrices_stays_where_parameters_alone_are_on_the_host(name: str) -> None:
    """Momenta, sums and factors of each matrix, however its update is cut out of the step."""
    clauses = (f"optimizer {name}", "offload { parameters = true }")
    there, gone = one(clauses[0]), one(*clauses)
    for kind in (Kind.OPTIMIZER, Kind.MASTER):
        assert gone.static.num_bytes[kind] == there.static.num_bytes[kind] > 0
    # Each pass leaves what verifies, matrices and all.
    text = TEXT.replace("CLAUSES", "\n".join(clauses))
    compile_text(text, "net.stg", stops=Stops(after="lower-to-tasks"))


def test_state_passes_through_layer_by_layer() -> None:
    (ranks,) = compiled("offload { optimizer = true }").trace_set.classes
    layer, table = 12 * LAYER, 12 * 1024 * 64
    assert copies(ranks) == Counter(
        {(way, size): n for way in ("load", "store") for size, n in ((layer, 8), (table, 2))}
    )
    fetched = one("offload { optimizer = true, prefetch = 1 }").timeline_by_kind()[Kind.FETCHED]
    assert fetched.max() == table + layer


def test_parameters_are_loaded_for_both_passes() -> None:
    (ranks,) = compiled("offload { parameters = true }").trace_set.classes
    layer, table = 2 * LAYER, 2 * 1024 * 64
    # Per microbatch: each layer forward and backward; the embedding forward, the head both times. Then the update.
    assert copies(ranks) == {
        ("load", layer): 2 * 16 + 8,
        ("store", layer): 8,
        ("load", table): 2 * 3 + 2,
        ("store", table): 2,
    }


def test_the_host_updates() -> None:
    """Of random plans: gradients go to the host, weights come back as the device has them; the host keeps what the device would, and moves its bytes."""
    draw = random.Random(16)
    for _ in range(6):
        zero, wide = draw.choice(["", "zero 1 over dp", "zero 3 over dp"]), draw.randint(0, 1)
        name, states = draw.choice([("adamw", 2), ("sgd { momentum = 0.9 }", 1), ("lion", 1)])
        dtype, width = draw.choice([("fp32", 4), ("bf16", 2)])
        said = "fp32" if wide else "bf16"
        text = TEXT.replace("pp = 2", f"pp = {draw.choice([1, 2])}").replace(
            "weights = bf16, gradients = fp32", f"weights = {said}, gradients = {dtype}"
        )
        nvme = draw.randint(0, 1)
        level = ", nvme = true" * nvme
        clauses = [
            f"optimizer {name}",
            zero,
            f"offload {{ optimizer = true, update = host{level} }}",
        ]
        if "pp = 2" in text:
            clauses.append("pipeline L over pp { microbatch = 4 }")
        job = compile_text(text.replace("CLAUSES", "\n".join(clauses)), "net.stg")
        stored = 4 if wide else 2
        for ranks, plan in zip(job.trace_set.classes, job.memory, strict=True):
            found = copies(ranks)
            parameters = plan.static.num_bytes[Kind.PARAMETERS] // stored
            if zero == "zero 1 over dp":
                parameters //= 2
            gone = sum(size * n for (way, size), n in found.items() if way == "store")
            back = sum(size * n for (way, size), n in found.items() if way == "load")
            assert (gone, back) == (width * parameters, stored * parameters), (text, clauses)
            update = [
                (n.action, count)
                for n, count in nodes_of(ranks)
                if isinstance(n.action, HostUpdate)
            ]
            # Gradients, master weights and moments are read; all but gradients written, and the weights as they travel.
            moved = sum(action.num_bytes * count for action, count in update)
            copy = 0 if wide else stored
            assert moved == parameters * (width + 2 * 4 * (states + 1) + copy)
            through = sum(size * n for (way, size), n in found.items() if way == "read")
            assert through == sum(size * n for (way, size), n in found.items() if way == "write")
            # Gradients wait there for the update, too.
            assert through == nvme * (width + 4 * (states + 1)) * parameters
            kept = plan.nvme_bytes if nvme else plan.host_bytes
            assert not nvme or plan.host_bytes.keys() == {Kind.HOST}
            assert kept[Kind.OPTIMIZER] + kept.get(Kind.MASTER, 0) == 4 * (states + 1) * parameters
            assert not {Kind.OPTIMIZER, Kind.MASTER} & {k for k, n in plan.at_peak().items() if n}


def random_levels(draw: random.Random) -> tuple[str, list[str]]:
    """Clauses of a random plan, and some of what it offloads."""
    kept = draw.sample(["parameters", "activations", "optimizer"], draw.randint(1, 3))
    update = "optimizer" in kept and draw.random() < 0.7
    below = [word for word in kept if word != "optimizer" or update]
    words = {"parameters": "parameters = true", "optimizer": "optimizer = true"}
    words["activations"] = f"activations = {draw.choice(('all', 'inputs'))}"
    said = [words[word] for word in kept] + ["update = host"] * update
    clauses = ["optimizer " + draw.choice(("adamw", "sgd", "lion"))]
    clauses.append(
        draw.choice(("", "zero 3 over dp", "zero 3 over dp { prefetch = 2 } unit Block"))
    )
    clauses.append(draw.choice(("", "recompute gelu", "pipeline L over pp { microbatch = 4 }")))
    said.append(f"prefetch = {draw.randint(0, 2)}")
    text = " ".join(clauses) + f" offload {{ {', '.join(said)} NVME }}"
    return text, draw.sample(below, draw.randint(1, len(below))) if below else []


@pytest.mark.parametrize("seed", some(range(4), 2))
def test_nvme_is_a_level_behind_the_host(seed: int) -> None:
    """The same step, and on the device the same memory: what is on NVMe is read before it is loaded, and written behind each store."""
    draw = random.Random(seed)
    clauses, below = random_levels(draw)
    wide = draw.random() < 0.5
    weights = "weights = fp32, activations = bf16, gradients = fp32, master = none" if wide else ""
    text = TEXT.replace("weights = bf16, gradients = fp32", weights or "weights = bf16")
    text = text.replace("pp = 2", "pp = 1") if "pipeline" not in clauses else text
    named = f", nvme = [{', '.join(below)}]" if below else ""
    jobs = [
        compile_text(text.replace("CLAUSES", clauses.replace("NVME", said)), "net.stg")
        for said in ("", named)
    ]
    assert costs(jobs[0]) == costs(jobs[1])
    ranks = zip(
        *(job.trace_set.classes for job in jobs), *(job.memory for job in jobs), strict=True
    )
    for near, far, here, there in ranks:
        before, after = passed(near), passed(far)
        assert here.peak_bytes == there.peak_bytes and here.at_peak() == there.at_peak()
        for way, back in (("load", "read"), ("store", "write")):
            for what in ("activations", "parameters", "optimizer"):
                assert after[what, way] == before[what, way]
                if what != "optimizer":
                    assert after[what, back] == before[what, way] * (what in below)
        sizes = by_kind(here.stored)
        state = sizes[Kind.OPTIMIZER] + sizes[Kind.MASTER] + gradients_sent(before, clauses)
        state *= "optimizer" in below
        parameters = sizes[Kind.PARAMETERS] * ("parameters" in below)
        # Narrow weights of a master copy are made anew.
        made = 0 if "update = host" in clauses and not wide else parameters
        assert after["optimizer", "read"] == state + made, (clauses, below)
        assert after["optimizer", "write"] == state + parameters
        assert {k: n for k, n in there.nvme_bytes.items() if k != Kind.NVME} == {
            kind: sizes[kind]
            for kind, word in LEVELS.items()
            if word in below and sizes[kind] and kind in here.host_bytes
        }


def gradients_sent(moved: Counter[tuple[str, str]], clauses: str) -> int:
    """Bytes that leave for the host's update: all that is stored for it."""
    return moved["optimizer", "store"] if "update = host" in clauses else 0


LEVELS = {
    Kind.PARAMETERS: "parameters",
    Kind.MASTER: "optimizer",
    Kind.OPTIMIZER: "optimizer",
}


def passed(ranks: RankClass) -> Counter[tuple[str, str]]:
    """Bytes that pass in each direction, by the pass that makes them do so."""
    found: Counter[tuple[str, str]] = Counter()
    for node, count in nodes_of(ranks):
        if isinstance(node.action, HostCopy):
            what = node.made_by.removeprefix("offload-")
            found[what, node.action.kind] += count * node.action.num_bytes
    return found


@pytest.mark.parametrize("clip", ["", "{ clip = 1 }"])
@pytest.mark.parametrize(
    ("zero", "stores", "loads", "sums"),
    some(
        [
            ("zero 3 over dp", 1, 0, 0),
            # FSDP2 stores after every microbatch, and the CPU adds (`foreach_reduce`).
            ("zero 3 over dp { like = fsdp2 }", 4, 0, 4),
            # DeepSpeed's sum goes there and comes back in each, and once more when it is complete (`partition_grads`).
            ("zero 3 over dp { like = deepspeed }", 5, 4, 0),
            ("zero 2 over dp { like = deepspeed }", 5, 4, 0),
        ],
        2,
    ),
)
def test_sums_of_microbatches_are_where_frameworks_have_them(
    zero: str, stores: int, loads: int, sums: int, clip: str
) -> None:
    offload = "offload { optimizer = true, update = host }"
    text = TEXT.replace("microbatch 4", "microbatch 2").replace("pp = 2", "pp = 1")
    job = compile_text(text.replace("CLAUSES", f"{zero} optimizer adamw {clip} {offload}"), "n.stg")
    (ranks,), (plan,) = job.trace_set.classes, job.memory
    parameters = (8 * LAYER + 2 * 1024 * 64) // 2
    numbers = 4 if clip and sums else 0
    moved = {way: 0 for way in ("store", "load")}
    for (way, size), count in copies(ranks).items():
        moved[way] += size * count
    assert moved["store"] == stores * 4 * parameters
    assert moved["load"] == loads * 4 * parameters + 2 * parameters + numbers
    added = [(n.action, k) for n, k in nodes_of(ranks) if n.op == "host_sum"]
    assert sum(a.num_bytes * k for a, k in added if isinstance(a, HostUpdate)) == (
        sums * 12 * parameters
    )
    if stores > 1:
        assert plan.host_bytes[Kind.HOST] >= 4 * parameters
    if stores > 1 and "3" in zero:
        # A rank has gradients of a layer or two; the sums are on the host.
        assert plan.static.num_bytes[Kind.GRADIENTS] == 0
        assert plan.timeline_by_kind()[Kind.GRADIENTS].max() < 2 * parameters
    assert job.memory[0].at_peak()[Kind.OPTIMIZER] == 0
    norms = [n for n, _ in nodes_of(ranks) if n.op == "host_norm"]
    assert len(norms) == bool(clip and sums)


@pytest.mark.parametrize(
    ("zero", "stores", "loads"),
    [
        ("zero 3 over dp { like = fsdp2 }", 1, 0),
        # Its first microbatch copies there and back (`partition_grads`), and the last once more; below level 3 gradients go once (`copy_grads_in_partition`).
        ("zero 3 over dp { like = deepspeed }", 2, 1),
        ("zero 2 over dp { like = deepspeed }", 1, 0),
    ],
)
def test_gradients_of_one_microbatch_are_not_added_up(zero: str, stores: int, loads: int) -> None:
    offload = "offload { optimizer = true, update = host }"
    text = TEXT.replace("microbatch 4", "microbatch 8").replace("pp = 2", "pp = 1")
    (ranks,) = compile_text(text.replace("CLAUSES", f"{zero} {offload}"), "n.stg").trace_set.classes
    parameters = (8 * LAYER + 2 * 1024 * 64) // 2
    moved: Counter[str] = Counter()
    for (way, size), count in copies(ranks).items():
        moved[way] += size * count
    assert moved == {"store": stores * 4 * parameters, "load": (loads * 4 + 2) * parameters}
    assert not [n for n, _ in nodes_of(ranks) if n.op == "host_sum"]


def test_the_host_scales_what_the_device_found_the_norm_of() -> None:
    """DeepSpeed takes norms on the device (`set_norm_for_param_grad_in_gpu`), two operations and a reading of each element, and multiplies what is on the host
    (`unscale_and_clip_grads`), one operation, a reading and a writing."""
    parameters = (8 * LAYER + 2 * 1024 * 64) // 2
    found: list[Counter[str]] = []
    for clip in ("", "{ clip = 1 }"):
        text = TEXT.replace("pp = 2", "pp = 1")
        clauses = (
            f"zero 1 over dp optimizer adamw {clip} offload {{ optimizer = true, update = host }}"
        )
        (ranks,) = compile_text(text.replace("CLAUSES", clauses), "n.stg").trace_set.classes
        cost: Counter[str] = Counter()
        for node, count in nodes_of(ranks):
            action = node.action
            if isinstance(action, HostUpdate):
                cost["host operations"] += count * action.num_ops
                cost["host bytes"] += count * action.num_bytes
            elif isinstance(action, Compute) and node.op == "gradient_statistic":
                cost["operations"] += count * action.num_ops
        found.append(cost)
    without, clipped = found
    assert clipped["host operations"] - without["host operations"] == parameters
    assert clipped["host bytes"] - without["host bytes"] == 2 * 4 * parameters
    # Beside the sum of the terms: one of 8 layers and two of tables.
    assert clipped["operations"] == 2 * parameters + 3 * 10


@pytest.mark.parametrize("seed", some(range(3), 3))
def test_gradients_leave_while_the_backward_pass_goes_on(seed: int) -> None:
    """Of random plans: each is stored once, before the backward pass of the layers after the next; the norm of all is what it was, but for the scaling."""
    draw = random.Random(seed)
    zero = draw.choice(("", "zero 2 over dp", "zero 3 over dp", "zero 3 over dp unit Block"))
    buckets = "gradients { bucket_bytes = 40KiB }" if zero == "zero 2 over dp" else ""
    optimizer = (
        f"optimizer adamw {draw.choice(('', '{ clip = 1 }', '{ clip = 1, loss_scale = dynamic }'))}"
    )
    text = TEXT.replace("weights = bf16, gradients = fp32", "weights = bf16, gradients = bf16")
    text = text.replace("microbatch 4", "").replace("pp = 2", "pp = 1")
    kept, sent = (
        compile_text(text.replace("CLAUSES", f"{zero} {buckets} {optimizer} {offload}"), "net.stg")
        for offload in ("", "offload { optimizer = true, update = host }")
    )
    shards = 2 if zero else 1
    parameters = (8 * LAYER + 2 * 1024 * 64) // shards
    (ranks,), (plan,) = sent.trace_set.classes, sent.memory
    stored = copies(ranks)
    assert sum(s * n for (way, s), n in stored.items() if way == "store") == 2 * parameters
    most = [int(each.timeline_by_kind()[Kind.GRADIENTS].max()) for each in (plan, kept.memory[0])]
    assert most[0] < most[1] * 2 / 3, (zero, optimizer, most)

    def statistics(job: Compiled) -> tuple[int, int]:
        (only,) = job.trace_set.classes
        found = [(n, k) for n, k in nodes_of(only) if n.op == "gradient_statistic"]
        flops = sum(k * n.action.num_ops for n, k in found if isinstance(n.action, Compute))
        return flops, sum(k for n, k in found if n.phase == "grad_reduce")

    (before, none), (after, terms) = statistics(kept), statistics(sent)
    kinds = optimizer.count("=")
    assert none == 0 and terms == kinds * (8 + 2)
    # The host scales them.
    assert 0 <= after + kinds * parameters - before <= 3 * terms


def test_times_of_each_level() -> None:
    """Bytes over the bandwidth of the level that they pass."""
    device = (
        "device { flops_per_s = 1e15, memory_bytes_per_s = 1TB, link_bytes_per_s = 1TB, "
        "host_bytes_per_s = 10GB, host_memory_bytes_per_s = 50GB, nvme_bytes_per_s = 2GB }"
    )
    job = compiled("offload { optimizer = true, update = host, nvme = true }", device)
    (ranks,) = job.trace_set.classes
    prices = Prices.of(job.trace_set, job.plan)
    speeds = {"store": 1e10, "load": 1e10, "read": 2e9, "write": 2e9, "update": 5e10}
    seen = set[str]()
    for segment in ranks.program.segments:
        for node in segment.nodes:
            if isinstance(node.action, HostCopy | HostUpdate):
                seen.add(node.action.kind)
                seconds = node.action.num_bytes / speeds[node.action.kind]
                assert prices.node(node).us == pytest.approx(1e6 * seconds)
    assert seen == speeds.keys()


def test_gathers_wait_for_what_comes_back() -> None:
    """Under ZeRO 1 the weights that are gathered are those that the host sent."""
    (ranks,) = compiled(
        "zero 1 over dp", "offload { optimizer = true, update = host }"
    ).trace_set.classes
    nodes = [n for s in ranks.program.segments for n in s.nodes]
    gathers = [n for n in nodes if n.phase == "optim" and isinstance(n.action, Collective)]
    assert gathers and all(n.data_deps for n in gathers)


PLANS = [
    (),
    ("zero 1 over dp",),
    ("zero 3 over dp", "unit Block", "recompute full in Block"),
    ("zero 3 over dp", "unit Block", "freeze embed"),
    ("pipeline L over pp { schedule = zb_h1, microbatch = 2 }",),
]


@pytest.mark.parametrize("plan", PLANS, ids=["plain", "zero_1", "zero_3", "frozen", "pipeline"])
def test_operations_and_communication_stay(plan: tuple[str, ...]) -> None:
    words = ["activations = all", "optimizer = true"]
    if "zero 1 over dp" not in plan:
        words.append("parameters = true")
    before = costs(compiled(*plan))
    after = costs(compiled(*plan, f"offload {{ {', '.join(words)} }}"))
    assert before == after


def costs(job: Compiled) -> list[object]:
    def of_class(each: ClassSummary) -> object:
        traffic = [t for t in each.traffic if t.axes]
        return each.matrix_flops, each.other_flops, each.bytes_moved, traffic

    return [of_class(c) for c in summarize(job.module, job.counts).classes]


def test_a_loop_over_layers_stays_one() -> None:
    """Nodes grow with the layers, templates do not."""

    def templates(layers: int) -> int:
        text = TEXT.replace("dim L = 8", f"dim L = {layers}")
        clause = "offload { activations = all, optimizer = true, parameters = true }"
        (ranks,) = compile_text(text.replace("CLAUSES", clause), "net.stg").trace_set.classes
        return len(ranks.program.segments)

    assert templates(4) == templates(64)


@pytest.mark.parametrize(
    ("clause", "code"),
    [
        ("offload { activations = nothing }", "E0401"),
        ("offload { activations = [softmax] }", "E0401"),
        ("offload { activations = 3 }", "E0403"),
        ("offload { optimizer = yes }", "E0403"),
        ("offload { gradients = true }", "E0402"),
        ("offload { prefetch = -1 }", "E0208"),
        ("zero 2 over dp offload { parameters = true }", "E0401"),
        ("offload { update = host }", "E0402"),
        ("offload { optimizer = true, nvme = true }", "E0402"),
        ("offload { optimizer = true, update = cpu }", "E0403"),
    ],
)
def test_mistakes(clause: str, code: str) -> None:
    with pytest.raises(CompileError) as caught:
        compiled(clause)
    assert [d.code for d in caught.value.diagnostics] == [code]
