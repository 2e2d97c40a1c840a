"""The network as MLCommons InfraGraph, written and read: `infragraph_json`, `on_network`.

InfraGraph (github.com/mlcommons/infragraph, schema 3) is a graph of components: `xpu`, `nic`, `switch` and others, of devices that are joined by
links with a bandwidth and a latency. The order of XPUs in it is that of ranks. Bandwidths are of one direction, a GB is 10^9 bytes.
"""

from __future__ import annotations

import importlib
import itertools
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stagec.backend.program import Mesh
from stagec.diagnostics import CompileError, Span, file_meant, quoted, refused
from stagec.estimate.network import Network
from stagec.plans.clauses import Device, Link, Plan
from stagec.reading import read_file

UNITS = {"GBps": 1e9, "Gbps": 1e9 / 8, "ms": 1e3, "us": 1.0, "ns": 1e-3}
"""To bytes per second, and to microseconds. Transfers (`GT/s`) say nothing without the width of a link."""


# Out


def infragraph_json(mesh: Mesh, plan: Plan) -> str:
    """The plan's network: nodes behind one switch; or, where axes have links of their own, a switch for each of their groups."""
    said = axes_graph(mesh, plan) if plan.links else nodes_graph(mesh, plan.device)
    return json.dumps(said, indent=1) + "\n"


def nodes_graph(mesh: Mesh, device: Device) -> dict[str, Any]:
    """Nodes of `device.node` XPUs with a NIC each, as many as there have to be."""
    per_node = min(device.node or mesh.num_ranks, mesh.num_ranks)
    num_nodes = -(-mesh.num_ranks // per_node)
    components = [component("xpu", "xpu", per_node), component("switch", "switch", 1)]
    links = [link("link", device.link_bytes_per_s, half(device.link_latency_us))]
    inside = [edge({"component": "xpu"}, {"component": "switch"}, "link", "many2many")]
    graph: dict[str, Any] = {"name": "network", "instances": [instance("node", "node", num_nodes)]}
    devices = [{"name": "node", "components": components, "links": links, "edges": inside}]
    if num_nodes > 1:
        components.append(component("nic", "nic", per_node))
        links.append({"name": "host"})
        inside.append(edge({"component": "xpu"}, {"component": "nic"}, "host", "one2one"))
        speed, latency = device.network_bytes_per_s, device.network_latency_us
        if speed is None:
            speed, latency = device.link_bytes_per_s, device.link_latency_us
        devices.append(switch_of("fabric", num_nodes * per_node))
        graph["instances"].append(instance("fabric", "fabric", 1))
        graph["links"] = [link("network", speed, half(latency))]
        ends = {"instance": "node", "component": "nic"}, {"instance": "fabric", "component": "port"}
        graph["edges"] = [edge(*ends, "network", "one2one")]
    return {**graph, "devices": devices}


def axes_graph(mesh: Mesh, plan: Plan) -> dict[str, Any]:
    """XPUs that have a link for each axis, to the switch of their group."""
    network = Network.of(plan, mesh)
    devices: list[dict[str, Any]] = [
        {"name": "rank", "components": [component("xpu", "xpu", 1)], "links": [], "edges": []}
    ]
    instances = [instance("rank", "rank", mesh.num_ranks)]
    links, edges = [], []
    for axis, size in zip(mesh.axes, mesh.sizes, strict=True):
        if size == 1:
            continue
        own, stride = network.said_of(axis), mesh.stride(axis)
        devices.append(switch_of(f"switch_{axis}", size))
        instances.append(instance(axis, f"switch_{axis}", mesh.num_ranks // size))
        links.append(link(axis, own.bytes_per_s, half(own.latency_us)))
        for group in range(mesh.num_ranks // size):
            first = group // stride * stride * size + group % stride
            ranks = f"rank[{first}:{first + stride * size}:{stride}]"
            ends = (
                {"instance": ranks, "component": "xpu"},
                {"instance": f"{axis}[{group}]", "component": "port"},
            )
            edges.append(edge(*ends, axis, "one2one"))
    graph = {"name": "network", "devices": devices, "links": links}
    return {**graph, "instances": instances, "edges": edges}


def component(name: str, kind: str, count: int) -> dict[str, Any]:
    return {"name": name, "count": count, "choice": kind, kind: {}}


def instance(name: str, device: str, count: int) -> dict[str, Any]:
    return {"name": name, "device": device, "count": count}


def edge(one: dict[str, str], other: dict[str, str], link: str, scheme: str) -> dict[str, Any]:
    return {"ep1": one, "ep2": other, "scheme": scheme, "link": link}


def link(name: str, bytes_per_s: float | None, latency_us: float | None) -> dict[str, Any]:
    physical: dict[str, Any] = {}
    if bytes_per_s is not None:
        unit = "gigabytes_per_second"
        physical["bandwidth"] = {"choice": unit, unit: bytes_per_s / 1e9}
    if latency_us is not None:
        physical["latency"] = {"choice": "us", "us": latency_us}
    return {"name": name, **({"physical": physical} if physical else {})}


def switch_of(name: str, ports: int) -> dict[str, Any]:
    """A switch with that many ports, which nothing in it slows down."""
    return {
        "name": name,
        "components": [component("switch", "switch", 1), component("port", "port", ports)],
        "links": [{"name": f"inside_{name}"}],
        "edges": [
            edge({"component": "switch"}, {"component": "port"}, f"inside_{name}", "many2many")
        ],
    }


def half(latency_us: float | None) -> float | None:
    """The latency of each of the two links of a way over a switch."""
    return None if latency_us is None else latency_us / 2


# In


@dataclass(frozen=True)
class AxisLinks:
    """The links of axes that a network has, and the axes of the mesh that it has none for."""

    found: list[Link]
    missing: list[str]


@dataclass(frozen=True)
class Speed:
    """What a rank reaches others at; None where no link on the way says it."""

    bytes_per_s: float | None
    latency_us: float | None


def on_network(plan: Plan, path: str, word: str = "--network") -> Plan:
    """The plan on the network of a file, in YAML or JSON. E0419 if it cannot be read, or does not fit the mesh, E0711 if a flag says another.

    What the file leaves open (a link without a bandwidth or a latency) stays as the plan's device has it. `word` is the flag or the argument that asks
    for it.
    """
    graph = InfraGraph(path, word)
    sizes = dict(plan.mesh)
    num_ranks = 1
    for size in sizes.values():
        num_ranks *= size
    if len(graph.xpus) < num_ranks:
        what = f"has {len(graph.xpus):,} XPUs, and the plan {num_ranks:,} ranks"
        most = len(graph.xpus)
        help_ = f"choose a mesh of at most {most:,} ranks; of a search, `--devices {most}`"
        raise graph.unfit(what, help_)
    nodes = graph.nodes()
    links = graph.links_of_axes(sizes, nodes)
    near = graph.inside(nodes[0])
    if not links.missing and (plan.links or near is None):
        return replace(plan, links=tuple(links.found))
    if near is None:
        raise graph.unfit(
            f"joins neither all XPUs of a node by one kind of link, nor the ranks of {quoted(links.missing)}",
            "say in the plan what joins them: "
            + ", ".join(f"`link {axis} {{ bytes_per_s = 450e9 }}`" for axis in links.missing),
        )
    if len({len(node) for node in nodes}) > 1:
        counts = ", ".join(sorted({f"{len(node):,}" for node in nodes}))
        what = f"has nodes of different sizes, {counts} XPUs, and a plan has one size"
        raise graph.unfit(what, "describe those nodes alone that the plan runs on")
    found: dict[str, Any] = {"node": len(nodes[0])}
    found |= said("link", near)
    if len(nodes) > 1:
        far = graph.between(nodes)
        device = plan.device
        if device.network_bytes_per_s is None and far.bytes_per_s is None:
            # Without a network, other nodes would be reached over the links of a node.
            what = "does not say how fast the links between nodes are"
            help_ = "give them a `bandwidth`, or the device `network_bytes_per_s = 50e9`"
            raise graph.unfit(what, help_)
        found |= said("network", far)
    check_said_once(plan, found)
    return replace(plan, device=replace(plan.device, **found), links=())


def check_said_once(plan: Plan, found: Iterable[str]) -> None:
    """E0711 for a setting that `--device` says too. A plan's own gives way: the network is another then."""
    for name in found:
        place = plan.device.given.get(name)
        if place is not None and place.is_flag:
            message = f"`{name}` is said twice, by the device and by the network"
            raise refused("E0711", message, place, help="leave out one of the two")


def said(what: str, speed: Speed) -> dict[str, float]:
    numbers = {f"{what}_bytes_per_s": speed.bytes_per_s, f"{what}_latency_us": speed.latency_us}
    return {name: value for name, value in numbers.items() if value is not None}


class InfraGraph:
    """The expanded graph of a file: a networkx graph of components."""

    def __init__(self, path: str, word: str = "--network") -> None:
        self.said = f"{word} {path}"
        try:
            service = importlib.import_module("infragraph.infragraph_service")
            self.nx = importlib.import_module("networkx")
        except ImportError:
            help_ = "`pip install '.[infragraph]'` in stagec's clone"
            raise self.unfit("cannot be read without the package infragraph", help_) from None
        try:
            text = read_file(path).decode(errors="replace")
        except OSError as error:
            raise self.unfit(f"cannot be read: {error.strerror}", file_meant(path)) from None
        reader = service.InfraGraphService()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of components that nothing is joined to
                reader.set_graph(text)
        except Exception as error:  # it raises whatever its parsers do
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            if isinstance(error, AttributeError | TypeError | KeyError):
                first = "it is no YAML of `devices`, `instances` and `edges`"
            help_ = "`stagec MODEL -o DIR --for infragraph` writes one: compare it"
            mark: Any = getattr(error, "problem_mark", None)  # of YAML, which JSON is too
            if mark is None:
                raise self.unfit(f"is not InfraGraph: {first}", help_) from None
            what = f"is not InfraGraph: {getattr(error, 'problem', None) or first}"
            span = Span.point(path, mark.line + 1, mark.column + 1)
            raise self.unfit(what, help_, span) from None
        self.graph: Any = reader.get_networkx_graph()
        for one, other, about in self.graph.edges(data=True):
            about |= self.numbers(one, other, about)
        self.xpus = [name for name, kind in self.graph.nodes(data="type") if kind == "xpu"]
        if not self.xpus:
            raise self.unfit("has no XPU", "give a component of a device `choice: xpu`")

    def unfit(self, what: str, help: str = "", span: Span | None = None) -> CompileError:
        return refused("E0419", f"the network {what}", span, origin=self.said, help=help)

    def numbers(self, one: str, other: str, about: Mapping[str, str]) -> dict[str, float]:
        """`{"bandwidth": "450 GBps", "latency": "500 ns"}` as a capacity in bytes per second and a weight in microseconds."""
        found: dict[str, float] = {"us": 0.0}
        for name, key in (("bandwidth", "capacity"), ("latency", "us")):
            value = re.fullmatch(r"(\S+) (\S+)", about.get(name, ""))
            if value is None:
                continue
            if value[2] not in UNITS:
                what = (
                    f"has a link `{about['link']}` in {value[2]}: bytes or bits per second are read"
                )
                raise self.unfit(what, f"units are {quoted(UNITS)}")
            try:
                found[key] = float(value[1]) * UNITS[value[2]]
            except ValueError:
                found[key] = -1.0
            if not (found[key] > 0 or (found[key] == 0 and name == "latency")):
                what = f"has a link `{about['link']}` from `{one}` to `{other}` with a {name} of {value[1]}"
                raise self.unfit(what, "write a number above 0, such as `450 GBps`")
        return found

    def nodes(self) -> list[list[str]]:
        """The XPUs of each node, by their order: what devices join, and links that end at an XPU. All else is the network."""
        self.near = self.nx.Graph()
        self.near.add_nodes_from(self.graph)
        for one, other, about in self.graph.edges(data=True):
            together = one.split(".")[:2] == other.split(".")[:2]
            if together or "xpu" in (self.kind(one), self.kind(other)):
                self.near.add_edge(one, other, **about)
        self.part = {}
        for number, members in enumerate(self.nx.connected_components(self.near)):
            self.part |= dict.fromkeys(members, number)
        found: dict[int, list[str]] = {}
        for xpu in self.xpus:
            found.setdefault(self.part[xpu], []).append(xpu)
        return list(found.values())

    def kind(self, name: str) -> str:
        return self.graph.nodes[name].get("type", "")

    def inside(self, node: list[str]) -> Speed | None:
        """Between XPUs of a node: over the fastest link that joins them all. None if there is none such."""
        if len(node) == 1:
            return Speed(None, None)
        found = []
        for name in self.kinds_of_links(node):
            ways = self.by_one_link(node, name)
            reached = self.nx.node_connected_component(ways, node[0])
            if reached >= set(node):
                found.append(self.speed(ways, node[:1], node[1:]))
        return max(found, key=lambda speed: speed.bytes_per_s or 0.0, default=None)

    def kinds_of_links(self, node: Iterable[str]) -> list[str]:
        """Names of the links that XPUs have, in the order of the file."""
        return list(
            dict.fromkeys(
                about["link"] for xpu in node for _, _, about in self.near.edges(xpu, data=True)
            )
        )

    def by_one_link(self, node: Iterable[str], name: str) -> Any:
        """A node's graph without the other links of its XPUs."""
        members = self.nx.node_connected_component(self.near, next(iter(node)))
        ways = self.near.subgraph(members).copy()
        others = [
            (one, other)
            for one, other, about in ways.edges(data=True)
            if about["link"] != name and "xpu" in (self.kind(one), self.kind(other))
        ]
        ways.remove_edges_from(others)
        return ways

    def between(self, nodes: list[list[str]]) -> Speed:
        """From a node to others, for each of its XPUs: what leaves the node, over as many as share it."""
        own = set(self.nx.node_connected_component(self.near, nodes[0][0]))
        outside = {other for one in own for other in self.graph[one] if other not in own}
        if not outside:
            raise self.unfit("has nodes that nothing joins", "join them by an edge")
        ways = self.graph.subgraph(own | outside)
        flow = self.speed(ways, nodes[0], list(outside)).bytes_per_s
        near_xpu, far_xpu = nodes[0][0], nodes[1][0]
        share = None if flow is None else flow / len(nodes[0])
        return Speed(share, self.latency(self.graph, near_xpu, far_xpu))

    def speed(self, ways: Any, sources: list[str], targets: list[str]) -> Speed:
        """The most that flows from some components to others (Ford and Fulkerson 1956), and the latency of the shortest way."""
        directed = self.nx.DiGraph()
        for one, other, about in ways.edges(data=True):
            limit = {"capacity": about["capacity"]} if "capacity" in about else {}
            directed.add_edge(one, other, **limit)
            directed.add_edge(other, one, **limit)
        directed.add_edges_from(("source", each) for each in sources)
        directed.add_edges_from((each, "target") for each in targets)
        try:
            flow = self.nx.maximum_flow_value(directed, "source", "target")
        except self.nx.NetworkXUnbounded:
            flow = None
        return Speed(flow, self.latency(ways, sources[0], targets[0]))

    def latency(self, ways: Any, source: str, target: str) -> float | None:
        try:
            way = self.nx.dijkstra_path(ways, source, target, weight="us")
        except self.nx.NetworkXNoPath:
            raise self.unfit(
                f"has no way from `{source}` to `{target}`", "join them by an edge"
            ) from None
        steps = [ways.edges[pair] for pair in itertools.pairwise(way)]
        if not any("latency" in step for step in steps):
            return None
        return sum(step["us"] for step in steps)

    def links_of_axes(self, sizes: Mapping[str, int], nodes: list[list[str]]) -> AxisLinks:
        """The links of a network in which each axis of the mesh has links of its own: which groups each kind of link joins."""
        mesh = Mesh.of(sizes)
        groups = {
            axis: [mesh.stride(axis) * place for place in range(size)]
            for axis, size in sizes.items()
            if size > 1
        }
        ranks = {xpu: rank for rank, xpu in enumerate(self.xpus)}
        found: dict[str, Link] = {}
        for name in self.kinds_of_links(self.xpus):
            ways = self.by_one_link(nodes[0], name)
            joined = self.nx.node_connected_component(ways, self.xpus[0])
            group = sorted(ranks[each] for each in joined if each in ranks)
            for axis in groups:
                if groups[axis] == group:
                    others = [self.xpus[rank] for rank in group[1:]]
                    speed = self.speed(ways, self.xpus[:1], others)
                    found[axis] = Link(
                        axes=(axis,), bytes_per_s=speed.bytes_per_s, latency_us=speed.latency_us
                    )
        return AxisLinks(list(found.values()), [axis for axis in groups if axis not in found])
