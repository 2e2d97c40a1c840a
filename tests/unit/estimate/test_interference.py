"""What communication takes from the computation that hides it: multiprocessors, more of them in an exchange."""

from __future__ import annotations

import numpy as np
import pytest

from stagec.devices import named
from stagec.diagnostics import CompileError
from stagec.driver import compile_text
from stagec.estimate.interference import lost_in, lost_in_waves
from stagec.estimate.intervals import Covered, intersection, length, union
from stagec.estimate.step import step_summary
from tests.unit.estimate.test_experts_in_turn import LAYER
from tests.unit.seldom import some


def test_of_several_that_run_at_once_the_one_that_takes_most_counts() -> None:
    """Computation from 0 to 10, beside an exchange from 2 to 6 and a sum from 4 to 9, of which nothing computes behind 8."""
    starts, ends = np.array([0.0, 2.0, 4.0, 7.0]), np.array([7.0, 6.0, 9.0, 8.0])
    moving = {0.5: np.array([1]), 0.1: np.array([1, 2])}
    lost = lost_in(starts, ends, np.array([0, 3]), moving)
    assert lost == pytest.approx(0.5 * 4 + 0.1 * 2)
    factors = np.array([1.0, 3.0])
    several = lost_in(starts[:, None] * factors, ends[:, None] * factors, np.array([0, 3]), moving)
    np.testing.assert_allclose(several, lost * factors)


@pytest.mark.parametrize("seed", range(20))
def test_what_both_cover_is_counted_once(seed: int) -> None:
    """Against the length of the intersection of both sets."""
    draw = np.random.default_rng(seed)
    begins = [draw.uniform(0, 20, (draw.integers(8), 3)) for _ in range(2)]
    sets = [(each, each + draw.uniform(0, 4, each.shape)) for each in begins]
    found = Covered.of(*sets[0]).shared_with(Covered.of(*sets[1]))
    for plan in range(3):
        one, other = (union(begin[:, plan], end[:, plan]) for begin, end in sets)
        assert found[plan] == pytest.approx(length(intersection(one, other)))


def seconds(device: str) -> tuple[float, float]:
    """Of a step, and of what it computes."""
    text = (
        LAYER.split("precision {")[0]
        .replace("mesh ep = 2", "mesh ep = 8")
        .replace("dim L = 2", "dim L = 8")
    )
    plan = f"  microbatch 1\n  zero 1 over ep\n  overlap {{ ep = true }}\n  {device}\n}}\n"
    found = step_summary(compile_text(text.replace("dim B = 8", "dim B = 64") + plan))
    computed = sum(found.breakdown.parts[each] for each in ("products", "attention"))
    return found.step_s, computed


@pytest.mark.seldom
def test_exchanges_take_what_the_plan_says() -> None:
    """Else what NCCL's messages do, by the device's file: more than its sums."""
    assert named("h100").exchange_units == 32 > named("h100").collective_units
    few, default, nccl, many = (
        seconds(f"device h100 {{ {each} }}")
        for each in ("exchange_units = 1", "", "exchange_units = 32", "exchange_units = 64")
    )
    assert default == nccl
    assert few < default < many
    # In the time that exchanges run beside it, computation has 131, 100 and 68 multiprocessors of 132.
    grown = [(each[1] - few[1]) / few[1] for each in (default, many)]
    assert grown[1] / grown[0] == pytest.approx((64 / 68 - 1 / 131) / (32 / 100 - 1 / 131), rel=0.1)


def blocks_in_waves(starts: list[float], us: list[float], begin: float, lasting: float) -> float:
    """When the last of some products ends, one by one and no earlier than at their `starts`: of each, blocks that a collective leaves no room run when it has
    ended, or the others have. It begins with the first product that starts behind `begin`.
    """
    now, until = 0.0, None
    for start, each in zip(starts, us, strict=True):
        now = max(now, start)
        if until is None and now >= begin:
            until = now + lasting
        free = now if until is None else min(max(until, now), now + each)
        now = free + each
    return now


@pytest.mark.parametrize("seed", range(20))
def test_products_in_waves_lose_what_blocks_wait_for(seed: int) -> None:
    """Beside one collective, products that follow each other at once end as much later as blocks that are followed one by one."""
    draw = np.random.default_rng(seed)
    us = draw.uniform(1, 20, draw.integers(1, 12))
    starts = np.concatenate([[0.0], np.cumsum(us)[:-1]])
    first, lasting = int(draw.integers(len(us))), float(draw.uniform(0.5, 60))
    begin = float(starts[first])
    nodes = np.arange(len(us))
    lost = lost_in_waves(
        np.append(starts, begin),
        np.append(starts + us, begin + lasting),
        nodes,
        np.array([len(us)]),
    )
    whole = blocks_in_waves(starts.tolist(), us.tolist(), begin, lasting)
    assert lost == pytest.approx(whole - us.sum())


@pytest.mark.parametrize("seed", range(20))
def test_products_behind_collectives_wait_for_none(seed: int) -> None:
    """Of ranks on which products and collectives take turns, however their times were added up."""
    draw = np.random.default_rng(seed)
    us = draw.uniform(1, 20, 40)
    ends = np.cumsum(us)
    again = np.array([us[: number + 1][::-1].sum() for number in range(len(us))])
    starts = np.concatenate([[0.0], again[:-1]])
    assert (starts[1:] != ends[:-1]).any()
    assert lost_in_waves(starts, ends, np.arange(0, 40, 2), np.arange(1, 40, 2)) == 0


LAYERS = """
dim L = 8
dim B = 64
dim S = 2048
dim D = 4096
dim F = 16384
module Mlp(x[B, S, D]) -> [B, S, D] {
  weight up[D, F], down[F, D]
  return relu(x @ up) @ down
}
model Net(x[B, S, D], y[B, S, D]) {
  repeat L {
    x = x + Mlp(x)
  }
  loss = mean(square(x - y), over = [B, S, D])
}
"""


@pytest.mark.seldom
def test_products_with_tiles_dealt_out_beforehand_wait_for_collectives() -> None:
    """Up to as long as they take, and none of those that have fewer blocks beside what tensor parallelism sends in pieces."""
    text = f"""{LAYERS}
plan data {{ mesh dp = 8  shard B over dp  zero 3 over dp  unit Mlp  microbatch 2  precision {{ activations = bf16, weights = bf16 }}
  device h100 {{ tile_scheduler = TILES }} }}
plan tensors {{ mesh tp = 8  shard F, S over tp  overlap {{ tp = true }}  microbatch 2  precision {{ activations = bf16, weights = bf16 }}
  device h100 {{ tile_scheduler = TILES }} }}
"""
    found = {
        (plan, tiles): step_summary(compile_text(text.replace("TILES", tiles), plan=plan))
        for plan in ("data", "tensors")
        for tiles in ("dynamic", "static")
    }
    parts = {each: summary.breakdown.parts for each, summary in found.items()}
    assert found["data", "static"].step_s > 1.02 * found["data", "dynamic"].step_s
    assert parts["data", "static"]["products"] < 2 * parts["data", "dynamic"]["products"]
    # What is left there of collectives are sums of norms and of weights that all ranks have.
    assert found["tensors", "static"].step_s < 1.005 * found["tensors", "dynamic"].step_s


STAGES = f"""{LAYERS}
plan p {{ mesh dp = 8, pp = 4  shard B over dp
  pipeline L over pp {{ schedule = interleaved_1f1b, microbatch = 1, virtual_stages = 2 }}
  precision {{ activations = bf16, weights = bf16 }}  overlap {{ p2p = WAITS }}  device h100 {{ SETTINGS }} }}
"""


def of_stages(settings: str, beside: bool = True) -> float:
    """The seconds of a step with these settings of the device; `beside`: computation does not wait for messages."""
    text = STAGES.replace("WAITS", str(beside).lower()).replace("SETTINGS", settings)
    return step_summary(compile_text(text)).step_s


@pytest.mark.seldom
def test_messages_between_stages_take_multiprocessors_of_their_sender() -> None:
    """In proportion, and more where products deal out their tiles beforehand; none where computation waits for them."""
    assert named("h100").message_units == 2
    default, few, half, most = (
        of_stages(each) for each in ("", *map("message_units = {}".format, (2, 33, 66)))
    )
    assert default == pytest.approx(few, rel=1e-3)
    assert default <= few
    # Computation beside messages has 130, 99 and 66 multiprocessors of 132.
    shares = [each / (132 - each) for each in (2, 33, 66)]
    expected = (shares[1] - shares[0]) / (shares[2] - shares[0])
    assert (half - few) / (most - few) == pytest.approx(expected, rel=0.05)
    assert of_stages("tile_scheduler = static") > 1.01 * default
    waiting = [of_stages(each, beside=False) for each in ("", "message_units = 66")]
    assert waiting[0] == waiting[1]


def test_a_ring_takes_multiprocessors_for_as_long_as_its_messages() -> None:
    """Of attention, which computes beside them."""
    text = """
dim B = 8
dim S = 32768
dim D = 4096
dim H = 32
dim E = D / H
module Attention(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D]
  return attention(x @ wq, x @ wk, x @ wv, causal = true) @ wo
}
model Net(x[B, S, D], y[B, S, D]) {
  repeat 2 {
    x = x + Attention(x)
  }
  loss = mean(square(x - y), over = [B, S, D])
}
plan p { mesh cp = 4  shard S over cp  context cp { method = ring }  microbatch 1
  precision { activations = bf16, weights = bf16 }  device h100 { message_units = UNITS } }
"""
    few, many = (
        step_summary(compile_text(text.replace("UNITS", each))).step_s for each in ("1", "66")
    )
    assert few < many < 2 * few


def of_gradients(units: str, device: str) -> tuple[float, float]:
    """The seconds of a step whose gradients are reduced over 64 devices, and the share of them that shows."""
    text = f"""{LAYERS}
plan p {{ mesh dp = 64  shard B over dp  zero 1 over dp  precision {{ activations = bf16, weights = bf16 }}
  device {device} {{ {units} }} }}
"""
    found = step_summary(compile_text(text))
    return found.step_s, found.breakdown.parts["exposed dp"] / found.step_s / 1e6


@pytest.mark.parametrize("device", some(["a100", "h100", "b200"], 3))
def test_few_blocks_take_little_and_carry_little(device: str) -> None:
    """So no number of blocks is for nothing; as many as NCCL has are no limit."""
    own = named(device).collective_units
    assert of_gradients(f"collective_units = {own}", device) == of_gradients("", device)
    one, few = (of_gradients(f"collective_units = {each}", device) for each in (1, 2))
    assert one[0] > few[0]
    assert one[1] > few[1]
    # One block alone is the limit of each reduction and each gather: 2 passes of 63 / 64 of the bytes.
    weights = 8 * 2 * 4096 * 16384 * 2
    assert one[0] > 2 * 63 / 64 * weights / named(device).block_bytes_per_s


def test_another_device_has_as_many_multiprocessors_as_a_plan_gives_communication() -> None:
    """Else its time would be nonsense without a word."""
    made = compile_text(STAGES.replace("WAITS", "true").replace("SETTINGS", "message_units = 120"))
    assert step_summary(made, "b200").step_s
    with pytest.raises(CompileError) as told:
        step_summary(made, "a100")
    (mistake,) = told.value.diagnostics
    assert mistake.code == "E0710"
    assert "120" in mistake.message
    assert "108" in mistake.message
