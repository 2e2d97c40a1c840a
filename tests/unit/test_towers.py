"""Random models whose towers train on pools of ranks of their own: together they are the model on one mesh."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import pytest

from stagec.backend.encode import encode_traces
from stagec.backend.errors import TraceError
from stagec.backend.program import PooledTraces, TraceSet
from stagec.backend.writer import write_traces
from stagec.checking import check_traces
from stagec.cli import main
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError
from stagec.dialects.sched.actions import Collective, Compute, Transfer
from stagec.driver import compile_program
from stagec.estimate.pools import estimate_pools
from stagec.frontend import check, parse_file, parse_text
from stagec.pools import CompiledPools, compile_pools
from stagec.step_count import matrix_flops
from stagec.summary import summarize
from tests.replay.machine import replay
from tests.replay.models import traces_of
from tests.unit.estimate.test_pools_on_one_axis import ends
from tests.unit.examples import FOLDER
from tests.unit.seldom import some

TOWER_WIDTH = 16
WIDTH, INNER, PATCHES, TOKENS, MICROBATCHES, BATCH, BYTES = 24, 48, 4, 8, 6, 36, 4


@dataclass(frozen=True)
class Drawn:
    """A pool's mesh, and how many layers it runs."""

    name: str
    count: str
    layers: int
    dp: int
    tp: int
    pp: int
    zero: int
    frozen: bool = False
    scatters: bool = False

    def clauses(self) -> str:
        zero = f"zero {self.zero} over dp" if self.zero else ""
        return f"""pool {self.name} {{
          mesh pp = {self.pp}, dp = {self.dp}, tp = {self.tp}
          shard B over dp
          shard F, V over tp
          shard {"N" if self.name == "text" else "P"} over tp
          pipeline {self.count} over pp {{ schedule = SCHEDULE, microbatch = {BATCH // self.dp // MICROBATCHES}{", scatter_gather = true" * self.scatters} }}
          {zero}
        }}"""


def drawn(seed: int) -> tuple[list[Drawn], str]:
    rng = random.Random(seed)
    towers = rng.choice([1, 1, 2])
    found: list[Drawn] = []
    for number in range(towers + 1):
        is_last = number == towers
        name, count = ("text", "L") if is_last else (f"tower{number}", f"K{number}")
        pp = rng.choice([1, 2])
        dp, tp, zero = rng.choice([1, 2, 3]), rng.choice([1, 2]), rng.choice([0, 1, 3])
        frozen = not is_last and rng.random() < 0.25
        layers, scatters = pp * rng.choice([1, 2]), rng.random() < 0.5
        found.append(Drawn(name, count, layers, dp, tp, pp, zero, frozen, scatters))
    return found, rng.choice(["1f1b", "gpipe", "zb_h1"])


def model_of(pools: list[Drawn], chained: bool, shared: bool) -> str:
    towers = pools[:-1]
    # What a tower makes before its layers is read behind those of the language model.
    late = " + mean(early0, over = [B, P, W])" if chained else ""
    dims = "\n".join(f"dim {each.count} = {each.layers}" for each in pools)
    inputs = ", ".join(f"image{n}[B, P, C]" for n in range(len(towers)))
    lines: list[str] = []
    for n in range(len(towers)):
        link = f" + y{n - 1} @ link{n}" if chained and n else ""
        lines.append(
            f"weight stem{n}[C, W], out{n}[W, D], link{n}[D, W]"
            if chained and n
            else f"weight stem{n}[C, W], out{n}[W, D]"
        )
        lines.append(f"early{n} = image{n} @ stem{n}{link}")
        lines.append(f"x{n} = early{n} * 1")
        lines.append(f"repeat K{n} {{ x{n} = Tower(x{n}) }}")
        lines.append(f"y{n} = x{n} @ out{n}{SHARED * shared}")
    # What all pools have is in the first stage of the last one, and in its last.
    first = f"embedding(tokens, embed){SHARED * shared}"
    parts = ", ".join([*(f"y{n}" for n in range(len(towers))), first])
    names = ", ".join([*("P" for _ in towers), "S"])
    return f"""
dim B = {BATCH}
dim C = 12
dim D = {WIDTH}
dim W = {TOWER_WIDTH}
dim F = {INNER}
dim P = {PATCHES}
dim S = {TOKENS}
dim V = 64
dim N = {len(towers)} * P + S
{dims}
module Tower(x[B, P, W]) -> [B, P, W] {{
  weight norm[W], up[W, F], down[F, W]
  return x + gelu(rms_norm(x, norm) @ up) @ down
}}
module Block(x[B, N, D]) -> [B, N, D] {{
  weight norm[D], up[D, F], down[F, D]
  return x + gelu(rms_norm(x, norm) @ up) @ down
}}
model Net({inputs}, tokens[B, S]: i32, targets[B, N]: i32) {{
  weight embed[V, D], head[D, V]
  {"weight mix[D, F], back[F, D]" * shared}
  {chr(10).join(lines)}
  x = concat({parts}, over = [{names}], to = N)
  repeat L {{ x = Block(x) }}
  loss = cross_entropy(x{SHARED * shared} @ head, targets){late}
}}
"""


SHARED = " @ mix @ back"
"""By weights that all pools have."""
OPTIMIZERS = ("adamw", "adamw { clip = 1 }", "sgd { clip = 1, loss_scale = dynamic }")
NUMBERS = (lambda pools: 0, lambda pools: pools, lambda pools: pools + 1)
"""What a rank hears of all pools' gradients: a norm of each, and a flag."""


def text_of(
    pools: list[Drawn],
    schedule: str,
    chained: bool,
    optimizer: str = OPTIMIZERS[0],
    shared: bool = False,
) -> str:
    frozen = [w for n, p in enumerate(pools) if p.frozen for w in (f"stem{n}", f"out{n}")]
    # A tower is frozen with its layers, and what all towers share is one module.
    frozen += ["Tower"] if any(p.frozen for p in pools) else []
    frozen += [f"link{n}" for n, p in enumerate(pools) if p.frozen and chained and n]
    freeze = f"freeze {', '.join(frozen)}" if frozen else ""
    split = "\n".join(each.clauses() for each in pools).replace("SCHEDULE", schedule)
    stages, counts = [], [each.count for each in pools]
    for each in pools:
        stages += [each.layers // each.pp] * each.pp
    ranks, dp = len(stages), pools[0].dp
    pipeline = f"pipeline {', '.join(counts)} over pp {{ schedule = {schedule}, layers = {stages}, microbatch = {BATCH // dp // MICROBATCHES} }}"
    return f"""{model_of(pools, chained, shared)}
plan p {{ device h100 optimizer {optimizer} {freeze}
{split} }}
plan one {{ optimizer {optimizer} {freeze} }}
plan piped {{ optimizer {optimizer} {freeze} mesh pp = {ranks}, dp = {dp} shard B over dp {pipeline} }}
"""


def is_shared(seed: int) -> bool:
    return bool(seed // 2 % 2)


def made(seed: int) -> tuple[list[Drawn], str, CompiledPools]:
    pools, schedule = drawn(seed)
    text = text_of(pools, schedule, bool(seed % 2), OPTIMIZERS[seed % 3], is_shared(seed))
    return pools, text, compile_pools(parse_text(text), "p", {})


def alone(text: str, plan: str) -> Compiled:
    return compile_program(check(parse_text(text), plan))


def parameters(compiled: Compiled) -> int:
    return summarize(compiled.module, compiled.counts, "").num_parameters


@pytest.mark.parametrize("seed", some(range(6), 6))
def test_towers_are_the_model_in_parts(seed: int, tmp_path: Path) -> None:
    pools, text, compiled = made(seed)
    one = alone(text, "one")
    each = list(compiled.pools.values())
    again = is_shared(seed) * (len(pools) - 1) * 2 * WIDTH * INNER
    assert sum(map(parameters, each)) == parameters(one) + again
    flops = [matrix_flops(c.module, c.counts).model for c in each]
    assert sum(flops) == matrix_flops(one.module, one.counts).model
    for name, traces in compiled.traces.pools:
        ranks = traces.mesh.num_ranks
        assert work(traces)["all_reduce", "all_pools"] == 4 * ranks * NUMBERS[seed % 3](
            len(pools)
        ), name
    for pool in pools:
        check_bytes(compiled, pools, pool, chained=bool(seed % 2), shared=is_shared(seed))
    encoded = encode_traces(compiled.traces)
    assert not replay(*traces_of(encoded)).missing
    write_traces(encoded, str(tmp_path / "set"))
    report = check_traces(tmp_path / "set", jobs=1)
    assert all(finding.code.startswith("W") for finding in report.findings), report.text()
    assert "whatever the run times" in report.text()


def check_bytes(
    compiled: CompiledPools, pools: list[Drawn], pool: Drawn, chained: bool, shared: bool
) -> None:
    """A device is sent every byte of what it holds once per microbatch, and of what others have of a gradient once per step."""
    traces = dict(compiled.traces.pools)[pool.name]
    came: Counter[str] = Counter()
    told: Counter[str] = Counter()
    for each in traces.classes:
        for index, segment in enumerate(each.program.segments):
            rows = each.program.segment == index
            counted = told if (each.program.microbatch[rows] < 0).any() else came
            for node in segment.nodes:
                action = node.action
                if isinstance(action, Transfer) and action.peer and action.kind == "recv":
                    counted[action.peer.pool] += int(rows.sum()) * action.num_bytes
    others = {each.name for each in pools} - {pool.name}
    holders = pool.pp if pool.name == "text" else 1
    own = holders * 2 * WIDTH * INNER * BYTES // pool.tp
    assert told == (dict.fromkeys(others, own) if shared else {})
    # Patches are split over `tp` in towers, by their rules, and whole where they are concatenated, if they do not arrive in parts.
    split = 1 if pool.name == "text" and not pool.scatters else pool.tp
    for other, num_bytes in came.items():
        # What links a tower to the next one is computed on the first.
        width = WIDTH if "text" in (pool.name, other) else TOWER_WIDTH
        width += TOWER_WIDTH * (chained and {pool.name, other} == {"tower0", "text"})
        assert num_bytes == BATCH // pool.dp * PATCHES * width * BYTES // split
    # A gradient goes back through a frozen tower to those before it that are trained.
    behind = pools[: pools.index(pool) + 1] if chained else [pool]
    is_last, is_trained = pool.name == "text", shared or any(not p.frozen for p in behind)
    givers = set(came) & {p.name for p in pools[pools.index(pool) + 1 :]}
    assert is_last or ("text" in givers) == is_trained


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(3))
def test_with_the_meshes_of_one_pipeline_ranks_do_the_same_in_all(seed: int) -> None:
    pools, schedule = drawn(seed)
    dp = pools[0].dp
    pools = [Drawn(p.name, p.count, p.layers, dp, 1, p.pp, 0, p.frozen) for p in pools]
    text = text_of(pools, schedule, bool(seed % 2), OPTIMIZERS[seed % 3])
    compiled = compile_pools(parse_text(text), "p", {})
    split = sum((work(traces) for _, traces in compiled.traces.pools), Counter[tuple[str, str]]())
    piped = work(alone(text, "piped").trace_set)
    # The number that stages tell each other: 4 bytes, twice under a dynamic loss scale.
    ranks, numbers = compiled.traces.num_ranks, NUMBERS[seed % 3](1)
    for over in ("pp", "pp+dp"):
        assert piped.pop(("all_reduce", over), 0) in (0, 4 * ranks * numbers)
        split.pop(("all_reduce", over), 0)
    split.pop(("all_reduce", "all_pools"), 0)
    assert split == piped


def work(traces: TraceSet) -> Counter[tuple[str, str]]:
    """FLOPs of products and of the optimizer, and bytes of collectives, of all ranks."""
    found: Counter[tuple[str, str]] = Counter()
    for each in traces.classes:
        ranks = prod(len(each.where.get(a, range(traces.mesh.size(a)))) for a in traces.mesh.axes)
        for index, segment in enumerate(each.program.segments):
            runs = ranks * int((each.program.segment == index).sum())
            for node in segment.nodes:
                action = node.action
                if isinstance(action, Compute) and (
                    action.work.on_matrix_units or node.phase == "optim"
                ):
                    found["flops", node.phase] += runs * action.num_ops
                elif isinstance(action, Collective):
                    found[action.kind, action.over] += runs * action.operand_bytes
    return found


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(4))
def test_on_one_time_axis_nothing_comes_before_it_is_sent(seed: int) -> None:
    _, _, compiled = made(seed)
    found = estimate_pools(compiled.pools)
    names = list(compiled.pools)
    sent = {n: ends(compiled.traces, found, n, "send") for n in names}
    got = {n: ends(compiled.traces, found, n, "recv") for n in names}
    given = {key: rows for of_pool in sent.values() for key, rows in of_pool.items()}
    taken = {key: rows for of_pool in got.values() for key, rows in of_pool.items()}
    assert given.keys() == taken.keys()
    for key, rows in taken.items():
        for (when, _, _), (end, _, before) in zip(given[key], rows, strict=True):
            assert end >= max([when, *before]) - 1e-6
    assert found.mfu is not None and 0 < found.mfu < 1
    assert np.isclose(found.end_us, max(e.timeline.makespan_us for e in found.pools.values()))


def one_tower(schedule: str, frozen: bool = False, optimizer: str = "adamw") -> CompiledPools:
    pools = [Drawn("tower0", "K0", 1, 2, 1, 1, 0, frozen), Drawn("text", "L", 1, 3, 1, 1, 0)]
    return compile_pools(parse_text(text_of(pools, schedule, False, optimizer)), "p", {})


@pytest.mark.seldom
def test_side_by_side_pools_stand_as_parts_of_their_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each begins the next step when all are done: what `stagec` says of them, its reports say too."""
    pools = [Drawn("tower0", "K0", 1, 2, 1, 1, 0), Drawn("text", "L", 1, 3, 1, 1, 0)]
    model = tmp_path / "towers.stg"
    model.write_text(text_of(pools, "1f1b", False, "adamw"))
    assert main([str(model)]) == 0
    alone = capsys.readouterr().out
    assert main(["report", str(model)]) == 0
    (steps, rates) = (
        re.findall(r"[\d,.]+", line)
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(("step", "tokens"))
    )
    assert re.findall(r"^step +([\d,.]+) ", alone, re.MULTILINE) == steps
    found = estimate_pools(compile_pools(parse_file(model), "p", {}).pools)
    (text,) = (each for name, each in found.pools.items() if name == "text")
    per_s = BATCH * TOKENS / found.end_us * 1e6
    assert text.step_time_us < found.end_us
    assert float(rates[-1].replace(",", "")) == pytest.approx(per_s, rel=1e-3)


def test_pools_that_would_wait_for_each_other_are_refused() -> None:
    """A tower that waits for a gradient before it goes on, and a model that wants all microbatches first."""
    one, other = one_tower("1f1b"), one_tower("gpipe")
    (first, _), (_, second) = one.traces.pools, other.traces.pools
    with pytest.raises(CompileError, match="might wait for each other for ever"):
        encode_traces(PooledTraces((first, second)))
    with pytest.raises(CompileError, match="wait for each other for ever"):
        estimate_pools({"tower0": one.pools["tower0"], "text": other.pools["text"]})
    (other_first, _), (_, own_second) = other.traces.pools, one.traces.pools
    encode_traces(PooledTraces((other_first, own_second)))  # who sends all, waits for nobody


def test_a_gradient_that_nobody_waits_for_is_found_out() -> None:
    (first, _), (_, second) = one_tower("1f1b", True).traces.pools, one_tower("1f1b").traces.pools
    with pytest.raises(TraceError, match="do not agree on what is handed over"):
        encode_traces(PooledTraces((first, second)))


@pytest.mark.seldom
def test_a_norm_that_one_pool_does_not_tell_is_found_out() -> None:
    (first, _), (_, second) = (
        one_tower("1f1b", optimizer=each).traces.pools for each in OPTIMIZERS[:2]
    )
    with pytest.raises(CompileError, match="might wait for each other for ever"):
        encode_traces(PooledTraces((first, second)))


@pytest.mark.seldom
def test_of_a_frozen_tower_the_projector_alone_is_trained() -> None:
    """LLaVA-1.5 13B: 322,376,704 parameters beside the language model, of which the 31,467,520 of the projector have gradients."""
    compiled = compile_pools(parse_file(FOLDER / "llava1_5_13b.stg"), "frozen_tower", {"B": "16"})
    vision, text = compiled.pools.values()
    assert (parameters(vision), parameters(text)) == (322_376_704, 13_015_864_320)
    reduced = work(vision.trace_set)["reduce_scatter", "dp"]
    assert reduced == vision.trace_set.mesh.num_ranks * 31_467_520 * 4
