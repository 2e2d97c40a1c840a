"""Everything that a first run of ASTRA-sim needs, from the plan: `astra_sim_files`.

For the analytical backends (github.com/astra-sim/astra-sim, commit 518bd51, with the Chakra feeder v3). The network has a dimension for the devices
of a node and one for the nodes, or one for each mesh axis where the plan has links of its own. Bandwidths are in GiB/s there, in GB/s
everywhere else; latencies are in ns.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagec.backend.program import Mesh, PooledTraces, TraceSet
from stagec.diagnostics import Diagnostic, refused
from stagec.dialects.sched.actions import Compute, HostCopy
from stagec.dialects.work import Work
from stagec.estimate.costs import require_numbers
from stagec.estimate.network import Network
from stagec.plans.clauses import Device, Plan

GIB = 1 << 30
ALGORITHMS = {
    "all-reduce": "ring",
    "all-gather": "ring",
    "reduce-scatter": "ring",
    "all-to-all": "direct1",
}
"""Of each collective: those that cost what the estimate counts. `direct1` sends one message after the other, as one port does."""

RUN = """\
#!/bin/sh
# Runs these traces in ASTRA-sim: ./run.sh PATH/TO/AstraSim_Analytical_Congestion_Unaware [more flags]
# The exit status of ASTRA-sim says little: `stagec check . --log log/*` counts what has finished.
set -u
[ $# -ge 1 ] || {{ echo "usage: $0 PATH/TO/AstraSim_Analytical_Congestion_Unaware" >&2; exit 2; }}
simulator=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
shift
cd "$(dirname "$0")" || exit 2
rm -rf log
"$simulator" \\
  --workload-configuration=./{model} \\
  --comm-group-configuration=./comm_group.json \\
  --system-configuration=./system.json \\
  --network-configuration=./network.yml \\
  --remote-memory-configuration=./memory.json "$@"
echo "ASTRA-sim ended with status $?" >&2
"""


@dataclass(frozen=True)
class Dimension:
    """One level of the network, the fastest-varying ranks first."""

    size: int
    bytes_per_s: float
    latency_us: float


def astra_sim_files(traces: TraceSet, plan: Plan, track_memory: bool = False) -> dict[str, str]:
    """The text of each file by its name. E0410 if the plan does not say how fast its device is, E0719 for a single rank."""
    require_numbers(plan, traces.classes)
    if traces.mesh.num_ranks < 2:
        message = "ASTRA-sim runs no single rank"
        help_ = "add a rank to the mesh: `mesh dp = 2`"
        raise refused("E0719", message, plan.span, help=help_)
    levels = dimensions(traces, plan)
    return {
        "network.yml": network_yml(levels),
        "system.json": system_json(traces, plan.device, len(levels), track_memory),
        "memory.json": memory_json(traces, plan.device),
        "run.sh": RUN.format(model=traces.model),
    }


def as_one(plans: Mapping[str, Plan], traces: PooledTraces) -> tuple[TraceSet, Plan]:
    """Pools as ranks of one cluster. E0719 where a simulator would need several kinds of device, or links of the axes of several meshes."""
    (first, plan), *others = plans.items()
    for name, other in others:
        if replace(other.device, span=None) != replace(plan.device, span=None):
            message = f"`{first}` and `{name}` run on different devices, and a simulator's cluster has one kind"
            help_ = (
                f"say `device` beside the pools, or write the files of one: `--plan {plan.name}`"
            )
            raise refused("E0719", message, other.device.span, help=help_)
    for name, each in plans.items():
        link = next(iter(each.links), None)
        if link is not None:
            message = f"`{name}` gives axes links of their own, and the pools together are not a mesh with axes"
            help_ = "give the device its nodes and a network instead: `device { node = 8, network_bytes_per_s = ... }`"
            raise refused("E0719", message, link.span or each.span, help=help_)
    classes = tuple(each for _, pool in traces.pools for each in pool.classes)
    mesh = Mesh(("rank",), (traces.num_ranks,))
    return TraceSet(traces.pools[0][1].model, mesh, classes), plan


def dimensions(traces: TraceSet, plan: Plan) -> list[Dimension]:
    """The levels of the network: their sizes multiply to the number of ranks."""
    mesh, device = traces.mesh, plan.device
    network = Network.of(plan, mesh)
    if plan.links:
        found: list[Dimension] = []
        for axis, size in reversed(list(zip(mesh.axes, mesh.sizes, strict=True))):
            if size > 1:
                link = network.own_or_route(axis)
                found.append(Dimension(size, link.bytes_per_s or 0.0, link.latency_us or 0.0))
        return found
    node, ranks = device.node or mesh.num_ranks, mesh.num_ranks
    near, far = network.near, network.far
    inside = Dimension(min(node, ranks), near.bytes_per_s or 0.0, near.latency_us or 0.0)
    if ranks <= node:
        return [inside]
    if fills_no_nodes(traces, plan) or node == 1:
        return [Dimension(ranks, far.bytes_per_s or 0.0, far.latency_us or 0.0)]
    return [inside, Dimension(ranks // node, far.bytes_per_s or 0.0, far.latency_us or 0.0)]


def fills_no_nodes(traces: TraceSet, plan: Plan) -> bool:
    """Whether the last node is not full: the ranks are then no product of two sizes, and all are joined as nodes are."""
    node, ranks = plan.device.node, traces.mesh.num_ranks
    return not plan.links and node is not None and ranks > node > 1 and ranks % node > 0


def doubts_of_network(traces: TraceSet, plan: Plan) -> list[Diagnostic]:
    """W0704 where the simulated network has no nodes although the device has."""
    if not fills_no_nodes(traces, plan):
        return []
    ranks, node = traces.mesh.num_ranks, plan.device.node
    divisors = [n for n in range(2, int(node or 0) + 1) if ranks % n == 0]
    or_node = f", or give the device `node = {max(divisors)}`" if divisors else ""
    return [
        Diagnostic(
            "W0704",
            f"{ranks:,} ranks do not fill nodes of {node}: all are simulated as if each were a node of its own",
            plan.device.span or plan.span,
            label="what stays within a node is simulated at the speed of the network",
            help=f"let the ranks be a multiple of {node}{or_node}; `--timeline` knows nodes that are not full",
        )
    ]


def network_yml(levels: Sequence[Dimension]) -> str:
    """`topology: [ FullyConnected ]`, sizes, GiB/s, ns."""
    columns = {
        "topology": ["FullyConnected"] * len(levels),
        "npus_count": [str(level.size) for level in levels],
        "bandwidth": [number(level.bytes_per_s / GIB) for level in levels],
        "latency": [number(level.latency_us * 1000) for level in levels],
    }
    comments = {"bandwidth": "GiB/s", "latency": "ns"}
    lines = []
    for name, values in columns.items():
        note = f"  # {comments[name]}" if name in comments else ""
        lines.append(f"{name}: [ {', '.join(values)} ]{note}\n")
    return "".join(lines)


def system_json(traces: TraceSet, device: Device, levels: int, track_memory: bool) -> str:
    """One list of algorithms for each collective, as long as the network has levels."""
    assert device.memory_bytes_per_s is not None
    said: dict[str, object] = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 1,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
    }
    said |= {f"{kind}-implementation": [name] * levels for kind, name in ALGORITHMS.items()}
    said |= {
        "collective-optimization": "localBWAware",
        "local-mem-bw": float(number(device.memory_bytes_per_s / 1e9)),
        "boost-mode": 0,
        "roofline-enabled": 1,
        "peak-perf": float(number(peak_of_products(traces, device) / 1e12)),
        "trace-enabled": 1,
        "track-local-mem": int(track_memory),
    }
    return json.dumps(said, indent=2) + "\n"


def peak_of_products(traces: TraceSet, device: Device) -> float:
    """FLOP/s at which all products of the traces take as long as each does at the peak of what it multiplies in: a simulator has one number."""
    assert device.flops_per_s is not None
    model = device.model
    ops: dict[str, int] = defaultdict(int)
    for each in traces.classes if model is not None else ():
        ran, times = np.unique(each.program.segment, return_counts=True)
        for index, count in zip(ran.tolist(), times.tolist(), strict=True):
            for node in each.program.segments[index].nodes:
                kernel = node.action.kernel if isinstance(node.action, Compute) else None
                if kernel is not None and kernel.kind == Work.PRODUCT:
                    ops[kernel.dtype] += count * node.action.num_ops
    if model is None or not any(ops.values()):
        return device.flops_per_s
    peaks = {dtype: model.peak(model.multiplied(dtype)) or device.flops_per_s for dtype in ops}
    if len(set(peaks.values())) == 1:
        return next(iter(peaks.values()))
    return sum(ops.values()) / sum(n / peaks[dtype] for dtype, n in ops.items())


def memory_json(traces: TraceSet, device: Device) -> str:
    """The host's memory, where the plan keeps something there."""
    copies = any(
        isinstance(node.action, HostCopy)
        for each in traces.classes
        for segment in each.program.segments
        for node in segment.nodes
    )
    said: dict[str, object] = {"memory-type": "NO_MEMORY_EXPANSION"}
    if copies:
        assert device.host_bytes_per_s is not None
        said = {
            "memory-type": "PER_NPU_MEMORY_EXPANSION",
            "remote-mem-latency": 0,
            "remote-mem-bw": float(number(device.host_bytes_per_s / 1e9)),
        }
    return json.dumps(said, indent=2) + "\n"


def number(value: float) -> str:
    """`419.1`, `3400`: six digits."""
    return f"{value:.6g}" if value < 1e6 else f"{value:.0f}"
