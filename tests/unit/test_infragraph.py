"""Networks as InfraGraph: what is written says what the plan says, to the package of MLCommons and read again."""

from __future__ import annotations

import json
import random
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import infragraph
import networkx
import pytest
from infragraph.blueprints.devices.nvidia.dgx import NvidiaDGX
from infragraph.infragraph_service import InfraGraphService

from stagec.cli import main
from stagec.cli.search_question import device_of_network, probed
from stagec.diagnostics import CompileError
from stagec.driver import Compiled, compile_text
from stagec.estimate.step import estimate
from stagec.plugins import registry
from stagec.simulators.infragraph import InfraGraph, infragraph_json, on_network

MODEL = """
dim B = 48
dim D = 96
dim E = 96
module Up(x[B, D]) -> [B, E] {
  weight w[D, E]
  return x @ w
}
module Down(y[B, E]) -> [B, E] {
  return relu(y)
}
model Net(x[B, D]) {
  y = Down(Up(x))
  loss = mean(mean(y, over = E), over = B)
}
plan p {
  mesh dp = DP, tp = TP
  shard B over dp
  shard E over tp
  DEVICE
}
"""


def compiled(dp: int, tp: int, device: str) -> Compiled:
    text = MODEL.replace("DP", str(dp)).replace("TP", str(tp)).replace("DEVICE", device)
    return compile_text(text)


def test_a_flag_and_a_network_do_not_both_say_how_large_a_node_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E0711; a plan's own nodes give way to those of the network."""
    made = compiled(4, 2, "device h100 { node = 4 }")
    file, model = tmp_path / "network.json", tmp_path / "net.stg"
    file.write_text(infragraph_json(made.trace_set.mesh, made.plan))
    text = MODEL.replace("DP", "4").replace("TP", "2")
    model.write_text(text.replace("DEVICE", "device h100 { node = 8 }"))
    line = [str(model), "--network", str(file), "-q", "-o", str(tmp_path / "traces")]
    assert main([*line, "--device", "h100 { node = 2 }"]) == 1
    said = capsys.readouterr().err
    assert "E0711" in said
    assert "`node` is said twice, by the device and by the network" in said
    assert not (tmp_path / "traces").exists()
    assert main([*line, "--device", "h100 { kernels = eager }"]) == 0
    assert main(line) == 0


def test_a_search_takes_nodes_and_links_of_a_network(tmp_path: Path) -> None:
    speeds = "link_bytes_per_s = 300000000000, network_bytes_per_s = 25000000000"
    made = compiled(4, 2, f"device h100 {{ node = 4, {speeds} }}")
    file = tmp_path / "network.json"
    file.write_text(infragraph_json(made.trace_set.mesh, made.plan))
    options = Namespace(
        model="net.stg",
        device="h100 { kernels = eager, captured = [Up, Down], memory = 40GiB }",
        network=str(file),
        numbers=(8,),
        sizes={},
        plug_ins=registry(),
    )
    text = MODEL.partition("plan")[0]
    options.typed_device = options.device
    options.device = device_of_network(options, text)
    device = probed(options, text).plan.device
    assert (device.node, device.link_bytes_per_s, device.network_bytes_per_s) == (4, 3e11, 25e9)
    assert (device.preset, device.kernels, device.memory) == ("h100", "eager", 40 << 30)
    assert device.captured == ("Up", "Down")
    with pytest.raises(CompileError, match="8 XPUs"):
        device_of_network(Namespace(**{**vars(options), "numbers": (16,)}), text)


def expanded(text: str) -> networkx.Graph:
    service = InfraGraphService()
    service.set_graph(text)
    return service.get_networkx_graph()


@pytest.mark.seldom
def test_written_networks_are_read_again(tmp_path: Path) -> None:
    """Random meshes, nodes and links: a step on the network that is read takes what it takes on the plan's."""
    rng = random.Random(7)
    for _ in range(12):
        dp, tp = rng.choice([1, 2, 3, 4]), rng.choice([2, 4, 8])
        node = rng.choice([1, 2, 4, 8, 64])
        speeds = [rng.randrange(1, 900) * 10**9 for _ in range(2)]
        device = f"device h100 {{ node = {node}, link_bytes_per_s = {speeds[0]}, network_bytes_per_s = {speeds[1]} }}"
        if rng.random() < 0.4:
            for axis in ("dp", "tp"):
                device += f"\n  link {axis} {{ bytes_per_s = {rng.randrange(1, 99)}GB, latency_us = {rng.randrange(9)} }}"
        job = compiled(dp, tp, device)
        path = tmp_path / "network.json"
        path.write_text(infragraph_json(job.trace_set.mesh, job.plan))
        graph = expanded(path.read_text())
        xpus = [name for name, kind in graph.nodes(data="type") if kind == "xpu"]
        assert len(xpus) >= dp * tp
        assert networkx.is_connected(graph)
        links = job.plan.links
        bare = replace(job.plan, device=replace(job.plan.device, node=None), links=())
        if links:
            # Which ranks are in a node, links of axes do not say.
            unknown = tuple(replace(link, bytes_per_s=1.0) for link in links)
            bare = replace(job.plan, links=unknown)
        read = on_network(bare, str(path))
        assert read.device.node == min(node, dp * tp) or links
        before, after = (estimate(job, plan).step_time_us for plan in (job.plan, read))
        assert after == pytest.approx(before, rel=1e-12)


def test_a_cluster_of_the_blueprints(tmp_path: Path) -> None:
    """Nodes of DGX H100 behind one switch: eight GPUs, links as they are given, over a NIC of 400 Gbit/s each."""
    node = NvidiaDGX("dgx_h100")
    speeds = {"xpu_fabric": 112.5, "pcie": 63.0}
    for link in node.links:
        if link.name in speeds:
            link.physical.bandwidth.gigabytes_per_second = speeds[link.name]
            link.physical.latency.ns = 300
    cluster = infragraph.Infrastructure(name="cluster")
    switch = infragraph.Device(name="switch")
    switch.components.add(name="asic", count=1).choice = "switch"
    switch.components.add(name="port", count=32).choice = "port"
    switch.links.add(name="inside")
    edge = switch.edges.add(scheme="many2many", link="inside")
    edge.ep1.component, edge.ep2.component = "asic", "port"
    cluster.devices.append(node).append(switch)
    cluster.instances.add(name="dgx", device=node.name, count=4)
    cluster.instances.add(name="leaf", device="switch", count=1)
    wire = cluster.links.add(name="wire")
    wire.physical.bandwidth.gigabits_per_second = 400
    wire.physical.latency.us = 2
    edge = cluster.edges.add(scheme="one2one", link="wire")
    edge.ep1.instance, edge.ep1.component = "dgx", "cx7"
    edge.ep2.instance, edge.ep2.component = "leaf", "port"
    path = tmp_path / "cluster.yaml"
    path.write_text(cluster.serialize(infragraph.Infrastructure.YAML))
    plan = compiled(4, 8, "device a100").plan
    device = on_network(plan, str(path)).device
    assert device.node == 8
    assert device.link_bytes_per_s == pytest.approx(4 * 112.5e9)
    assert device.link_latency_us == pytest.approx(0.6)
    assert device.network_bytes_per_s == pytest.approx(50e9)
    assert device.network_latency_us is not None
    assert 4 <= device.network_latency_us < 6
    assert device.flops_per_s == plan.device.flops_per_s


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda graph: graph["instances"][0].update(count=1), "8 XPUs, and the plan 16 ranks"),
        (lambda graph: graph["devices"][0]["components"][0].update(count=0), "has no XPU"),
        (lambda graph: graph["instances"][0].update(device="nothing"), "is not InfraGraph"),
        (lambda graph: graph.update(edges=[]), "nothing joins"),
        (
            lambda graph: graph["devices"][0]["edges"].append(
                {
                    "ep1": {"component": "xpu[4:8]"},
                    "ep2": {"component": "switch"},
                    "link": "host",
                    "scheme": "many2many",
                }
            ),
            "joins neither",
        ),
        (
            lambda graph: graph["links"][0]["physical"]["bandwidth"].update(
                choice="gigatransfers_per_second", gigatransfers_per_second=32.0
            ),
            "GT/s",
        ),
        (
            lambda graph: graph["links"][0]["physical"]["latency"].update(us=-1.0),
            "latency of -1.0",
        ),
    ],
)
def test_networks_that_do_not_fit(tmp_path: Path, change, said: str) -> None:
    job = compiled(2, 8, "device h100")
    graph = json.loads(infragraph_json(job.trace_set.mesh, job.plan))
    change(graph)
    path = tmp_path / "network.json"
    path.write_text(json.dumps(graph))
    with pytest.raises(CompileError) as caught:
        on_network(job.plan, str(path))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E0419"
    assert said in diagnostic.message


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--for infragraph` beside traces, `--network` of what it wrote."""
    model = tmp_path / "model.stg"
    text = MODEL.replace("DP", "2").replace("TP", "8").replace("DEVICE", "device h100")
    model.write_text(text)
    assert main([str(model), "-o", str(tmp_path / "t"), "--for", "infragraph"]) == 0
    first = capsys.readouterr().out.splitlines()
    network = tmp_path / "t" / "infragraph.json"
    assert main([str(model), "--network", str(network)]) == 0
    assert capsys.readouterr().out.splitlines()[1] == first[1]


@pytest.mark.parametrize("text", ["", "[1, 2]", "devices: 3"])
def test_what_is_no_graph_is_told_in_words(tmp_path: Path, text: str) -> None:
    file = tmp_path / "network.yaml"
    file.write_text(text)
    with pytest.raises(CompileError, match="no YAML of `devices`, `instances` and `edges`"):
        InfraGraph(str(file))
