"""The alpha-beta formulas, by hand."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from stagec.backend.program import Mesh
from stagec.devices.rules import exchange_us
from stagec.dialects.sched.actions import Collective, Transfer
from stagec.estimate.network import PROTOCOLS, Network
from stagec.plans.clauses import Device, Link

MESH = Mesh(("pp", "dp", "tp"), (2, 4, 4))
FLAT = Device(link_bytes_per_s=1e6, link_latency_us=2)
NODES = Device(
    link_bytes_per_s=1e6,
    link_latency_us=2,
    network_bytes_per_s=1e5,
    network_latency_us=10,
    node=8,
)


def collective(kind: str, *axes: str, num_bytes: int = 800, result: int = 800) -> Collective:
    return Collective(kind, axes, num_bytes, result, "bf16")


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        # Three steps of 2 µs, and 3/4 of 800 bytes at a byte per µs; twice for an all-reduce.
        (collective("all_gather", "tp", num_bytes=200), 6 + 600),
        (collective("reduce_scatter", "tp", result=200), 6 + 600),
        (collective("all_to_all", "tp"), 6 + 600),
        (collective("all_reduce", "tp"), 2 * (6 + 600)),
        (collective("all_reduce", "dp", "tp"), 2 * (30 + 750)),
    ],
    ids=lambda x: getattr(x, "kind", ""),
)
def test_rings(action: Collective, expected: float):
    assert Network(MESH, FLAT).ring_collective_us(action) == pytest.approx(expected)


def test_between_nodes_a_ring_has_as_many_ports_as_a_node_has_members():
    network = Network(MESH, NODES)
    # `tp` is in a node; of the 16 ranks along `dp` and `tp`, 8 are in each of two nodes.
    assert network.ring_collective_us(collective("all_gather", "tp")) == pytest.approx(6 + 600)
    both = network.ring_collective_us(collective("all_gather", "dp", "tp"))
    assert both == pytest.approx(14 * 2 + 10 + 750 / 0.8)
    # Of the four along `dp`, two are in each node: two ports of 0.1 bytes per µs.
    assert network.ring_collective_us(collective("all_gather", "dp")) == pytest.approx(
        14 + 600 / 0.2
    )
    # Each along `pp` is in another.
    assert network.ring_collective_us(collective("all_gather", "pp")) == pytest.approx(
        10 + 400 / 0.1
    )


def test_all_to_all_goes_both_ways_at_once():
    network = Network(MESH, NODES)
    # Of each rank's 800 bytes 200 go to the other rank of its node and 400 elsewhere, by its own port.
    found = network.ring_collective_us(collective("all_to_all", "dp"))
    assert found == pytest.approx(14 + 400 / 0.1)


def test_transfers():
    def send(shift: int, *axes: str) -> Transfer:
        return Transfer("send", axes, shift, 100, 0, "bf16")

    network = Network(MESH, NODES)
    assert network.transfer_us(send(1, "tp")) == pytest.approx(2 + 100)
    assert network.transfer_us(send(1, "pp")) == pytest.approx(10 + 1000)
    assert network.transfer_us(send(1, "dp")) == pytest.approx(10 + 1000)
    assert Network(MESH, FLAT).transfer_us(send(1, "pp")) == pytest.approx(2 + 100)


def test_an_axis_has_its_own_link():
    links = (Link(axes=("dp",), bytes_per_s=1e4), Link(axes=("pp",), latency_us=1))
    network = Network(MESH, NODES, links)
    # The latency stays that of the network, which ranks along `dp` need.
    assert network.ring_collective_us(collective("all_gather", "dp")) == pytest.approx(
        30 + 600 / 0.01
    )
    # Together with `tp` 3 of 15 steps are over it, by the ports of the four ranks that `tp` joins.
    both = network.ring_collective_us(collective("all_gather", "dp", "tp"))
    assert both == pytest.approx(12 * 2 + 3 * 10 + 750 / 0.04)
    assert network.transfer_us(Transfer("send", ("pp",), 1, 100, 0, "bf16")) == pytest.approx(1001)


def test_switches_reduce():
    """Two steps, and each byte once, however many ranks there are; along axes of which one has no such switch a ring does it."""
    links = (Link(axes=("dp",), reduces=True), Link(axes=("tp",), reduces=True, latency_us=3))
    network = Network(MESH, NODES, links)
    assert network.collective(collective("all_reduce", "tp")).us == pytest.approx(6 + 800)
    # Up through a node's switches and those of the network, and down, over the ports of both ranks that a node has.
    found = network.collective(collective("all_reduce", "dp")).us
    assert found == pytest.approx(24 + 4000)
    assert network.collective(collective("all_gather", "tp")).us == pytest.approx(9 + 600)
    plain = Network(MESH, NODES, (Link(axes=("dp",)), Link(axes=("tp",), latency_us=3)))
    assert found < plain.collective(collective("all_reduce", "dp")).us
    mixed = Network(MESH, NODES, (links[0],))
    both = collective("all_reduce", "dp", "tp")
    ring = Network(MESH, NODES, (Link(axes=("dp",)),))
    assert mixed.collective(both).us == ring.collective(both).us
    # The slower of two ways in a node, and one between nodes, whose eight ranks have a port of 0.1 bytes per µs each.
    assert network.collective(both).us == pytest.approx(2 * (3 + 10) + 800 / 0.8)


KINDS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


@pytest.mark.parametrize("seed", range(20))
def test_a_link_that_says_what_the_device_says_changes_nothing_and_a_better_one_takes_no_longer(
    seed: int,
):
    """Axes that stay in a node, and axes whose ranks are each in another one: of all others no one number is the device's."""
    random = Random(seed)
    inside = [random.choice((1, 2, 4)), 2]
    mesh = Mesh(("out", "far", "near", "nearest"), (2, random.choice((2, 3)), *inside))
    name = random.choice(["a100", "h100", "b200"])
    device = Device.of(name, node=inside[0] * inside[1])

    def said(axis: str, faster: float = 1.0, shorter: float = 1.0) -> Link:
        inner = axis.startswith("near")
        speed = device.link_bytes_per_s if inner else device.network_bytes_per_s
        latency = device.link_latency_us if inner else device.network_latency_us
        assert speed and latency
        return Link(axes=(axis,), bytes_per_s=speed * faster, latency_us=latency * shorter)

    for _ in range(20):
        axes = [axis for axis in mesh.axes if random.random() < 0.6] or ["near"]
        num_bytes = 1 << random.randrange(4, 34)
        asked = collective(random.choice(KINDS), *axes, num_bytes=num_bytes, result=num_bytes)
        own = random.sample(mesh.axes, random.randint(1, 4))

        def us(*links: Link, asked: Collective = asked) -> float:
            return Network(mesh, device, links).collective(asked).us

        same = [said(axis) for axis in own]
        assert us(*same) == pytest.approx(us(), rel=1e-9)
        better = [said(a, random.uniform(1, 4), random.uniform(0.2, 1)) for a in own[:1]]
        assert us(*better, *same[1:]) <= us() * (1 + 1e-9)
        # NCCL reduces in switches where that is expected to take less.
        assert us(*(replace(link, reduces=True) for link in same)) <= us() * (1 + 1e-9)


@pytest.mark.parametrize("num_bytes", [2**16, 2**24, 2**30])
def test_switches_between_nodes_are_no_slower_than_rings_and_no_faster_than_a_node(num_bytes: int):
    """A clause that only says that switches reduce takes no port away, and inside a node measurements hold."""
    reduces = (Link(axes=("far", "near"), reduces=True),)

    def us(axes: tuple[str, ...], links: tuple[Link, ...] = ()) -> float:
        found = collective("all_reduce", *axes, num_bytes=num_bytes, result=num_bytes)
        return Network(MANY, H100, links).collective(found).us

    assert us(("near",), reduces) == us(("near",))
    assert us(("near",)) <= us(("far", "near"), reduces) <= us(("far", "near"))


def test_a_collective_of_some():
    action = Collective("all_reduce", ("dp",), 800, 800, "fp32", (("dp", (0, 1)),))
    assert Network(MESH, FLAT).ring_collective_us(action) == pytest.approx(2 * (2 + 400))


MANY = Mesh(("far", "near"), (32, 8))
H100 = Device.of("h100")


def gathered(num_bytes: int) -> float:
    return Network(MANY, H100).ring_collective_us(
        collective("all_gather", "far", "near", num_bytes=num_bytes // 256, result=num_bytes)
    )


def test_a_ring_between_nodes_has_the_fastest_of_three_protocols():
    # 31 of 255 steps are over the network; LL takes 1 and 2.7 µs, Simple 3.4 and 14 (tuning.cc).
    assert gathered(256) == pytest.approx(6.6 + 224 * 1.0 + 31 * 2.7, rel=0.01)
    slowest = min(450e9 * 0.82, 8 * 50e9 * 0.94) / 1e6
    large = 1 << 34
    assert gathered(large) == pytest.approx(
        8.4 + 224 * 3.4 + 31 * 14 + large * 255 / 256 / slowest, rel=1e-3
    )
    sizes = [gathered(1 << power) for power in range(8, 35)]
    assert sizes == sorted(sizes)
    # Two passes start once.
    whole = collective("all_reduce", "far", "near", num_bytes=large, result=large)
    twice = Network(MANY, Device.of("h100")).ring_collective_us(whole)
    assert twice <= 2 * gathered(large) - 8.4 + 1e-3


@pytest.mark.parametrize(("phase", "width"), [("dispatch", 1.03), ("combine", 2)])
@pytest.mark.parametrize("nodes", [2, 4, 8])
@pytest.mark.parametrize("tokens", [8, 32, 128, 256])
def test_exchanges_between_nodes_are_those_of_deepep(
    phase: str, width: float, nodes: int, tokens: int
):
    """Its low-latency kernels, as measured: a copy of each token straight to each of its experts."""
    device = Device.of("h100")
    assert device.model is not None
    table = device.model.table("exchange", phase, "low_latency")
    assert table is not None
    numbers = {"nodes": nodes, "hidden": 7168, "tokens": tokens, "topk": 8, "experts": 256}
    sizes = {name: np.float64(number) for name, number in numbers.items()}
    measured = float(exchange_us(device.model, phase, sizes) * table.factor(sizes))
    num_bytes = round(tokens * 8 * 7168 * width)
    sent = collective("all_to_all", "ep", num_bytes=num_bytes, result=num_bytes)
    network = Network(Mesh(("ep",), (8 * nodes,)), device)
    assert network.collective(sent).us == pytest.approx(measured, rel=0.35)


def test_a_plugin_of_the_network_adds_its_latency_to_each_step_twice_where_buffers_are_flushed():
    """NCCL's `interLat`: 75 µs for `aws-ofi-nccl` on a p5.48xlarge."""
    plugin = Device.of("h100", network_latency_us=14 + 2 * 75.0)
    small = collective("all_gather", "far", "near", num_bytes=1, result=256)
    assert Network(MANY, plugin).ring_collective_us(small) == pytest.approx(
        6.6 + 224 * 1.0 + 31 * (2.7 + 75), rel=0.01
    )
    assert [each.over_network_us(14 + 2 * 75.0) for each in PROTOCOLS] == [164, 79, 77.7]
    # A network that is faster than NCCL's model has it is so for all three.
    assert [each.over_network_us(7) for each in PROTOCOLS] == pytest.approx([7, 2, 1.35])


def test_between_racks_sums_grow_as_measured_and_no_plan_needs_fewer_ports():
    """nccl-tests on 20 racks of GB200 (coreweave/nccl-tests, pull request 48): 14,980 µs for 2 GiB, 24,782 for 4."""
    mesh = Mesh(("rack", "device"), (20, 72))

    def us(kind: str, num_bytes: int, **given: float) -> float:
        action = collective(kind, *mesh.axes, num_bytes=num_bytes, result=num_bytes)
        return Network(mesh, Device.of("gb200", **given)).collective(action).us

    more = us("all_reduce", 4 << 30) - us("all_reduce", 2 << 30)
    assert more == pytest.approx(24782 - 14980, rel=0.03)
    assert us("all_reduce", 4 << 30) < 24782
    # What ports carry is the limit of slower ones, and no faster ones help.
    for kind in ("all_gather", "reduce_scatter"):
        known = [us(kind, 1 << 30, network_bytes_per_s=speed) for speed in (5e9, 50e9, 400e9)]
        assert known[0] > known[1] == known[2]
    # Within a rack nothing crosses.
    one = collective("all_gather", "device", num_bytes=1 << 30, result=1 << 30)
    assert Network(mesh, Device.of("gb200")).route(one).bytes_per_s == pytest.approx(0.78 * 900e9)


@pytest.mark.parametrize("kind", KINDS)
def test_more_devices_on_the_same_links_take_no_less(kind: str):
    """Tables know eight; an NVL72 has 72."""
    mesh = Mesh(("a", "b"), (8, 8))
    network = Network(mesh, Device.of("gb200"))
    for power in range(10, 31, 4):
        few, many = (
            network.collective(collective(kind, *axes, num_bytes=1 << power, result=1 << power)).us
            for axes in (("b",), ("a", "b"))
        )
        assert few <= many < few + 56 * 3.4 * 2 + 2e6 * (1 << power) / 700e9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("setting", "num_bytes"), [("link_latency_us", 800), ("link_bytes_per_s", 2**30)]
)
def test_a_plan_sets_the_links_of_a_measured_device(kind: str, setting: str, num_bytes: int):
    action = collective(kind, "tp", num_bytes=num_bytes, result=num_bytes)
    mesh = Mesh(("tp",), (8,))

    def us(factor: float) -> float:
        as_measured = Device.of("h100")
        changed = Device.of("h100", **{setting: getattr(as_measured, setting) * factor})
        return Network(mesh, changed).collective(action).us

    assert us(1) == Network(mesh, Device.of("h100")).collective(action).us
    slower, faster = (100, 0.01) if setting == "link_latency_us" else (0.01, 100)
    assert us(slower) > 10 * us(1)
    assert us(faster) < us(1)
