"""Any mutation that breaks a rule is found, wherever in whichever good set it is made."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from stagec.checking import Report, check_traces
from tests.corpus.good import GOOD, Rank
from tests.corpus.traces import ALL_REDUCE, COLL, COMP, RECV, SEND, Node, Traces, encode_trace

REQUIRED = {
    COMP: ["num_ops", "tensor_size"],
    COLL: ["comm_type", "comm_size"],
    SEND: ["comm_dst", "comm_size", "comm_tag"],
    RECV: ["comm_src", "comm_size", "comm_tag"],
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each example writes over the one before."""
    return tmp_path_factory.mktemp("set")


def check(traces: Traces, directory: Path) -> Report:
    for file in directory.iterdir():
        file.unlink()
    traces.write(directory)
    return check_traces(directory)


def pick(traces: Traces, rng: random.Random, *types: int) -> tuple[int, Node]:
    """A rank and one of its nodes of these types."""
    found = [
        (rank, node)
        for rank, nodes in traces.nodes.items()
        for node in nodes
        if not types or node.type in types
    ]
    return rng.choice(found)


Mutation = Callable[[Traces, random.Random], set[str]]
"""Breaks a rule; returns the codes of which one must be found."""


def drop_attribute(traces: Traces, rng: random.Random) -> set[str]:
    _, node = pick(traces, rng, *REQUIRED)
    node.drop(rng.choice(REQUIRED[node.type]))
    return {"E0631"}


def spoil_attribute(traces: Traces, rng: random.Random) -> set[str]:
    _, node = pick(traces, rng, *REQUIRED)
    kind, value = rng.choice([("double", 1.0), ("string", "1"), ("float", 2.0), ("strings", ["1"])])
    node.set(rng.choice(REQUIRED[node.type]), value, kind)
    return {"E0632"}


def make_negative(traces: Traces, rng: random.Random) -> set[str]:
    _, node = pick(traces, rng, *REQUIRED)
    node.set(rng.choice(REQUIRED[node.type]), -rng.randint(1, 1 << 40), "int64")
    return {"E0633"}


def make_zero(traces: Traces, rng: random.Random) -> set[str]:
    _, node = pick(traces, rng, COMP, COLL, SEND, RECV)
    names = ["num_ops", "tensor_size"] if node.type == COMP else ["comm_size"]
    node.set(rng.choice(names), 0)
    return {"E0634", "E0635"}


def point_nowhere(traces: Traces, rng: random.Random) -> set[str]:
    _, node = pick(traces, rng)
    rng.choice([node.deps, node.ctrl]).append(10**6 + rng.randrange(10**6))
    return {"E0621"}


def close_cycle(traces: Traces, rng: random.Random) -> set[str]:
    """Make a node depend on one that depends on it, or on itself."""
    rank, node = pick(traces, rng)
    by_id = {n.id: n for n in traces.nodes[rank]}
    above = node
    for _ in range(rng.randrange(4)):
        if above.deps:
            above = by_id[rng.choice(above.deps)]
    rng.choice([above.deps, above.ctrl]).append(node.id)
    return {"E0622"}


def repeat_id(traces: Traces, rng: random.Random) -> set[str]:
    rank, node = pick(traces, rng)
    other = rng.choice([n for n in traces.nodes[rank] if n is not node])
    other.id = node.id
    return {"E0620"}


def change_type(traces: Traces, rng: random.Random) -> set[str]:
    _, node = pick(traces, rng)
    node.type = rng.choice([0, 1, 8, 9, 12])
    return {"E0630"}


def drop_communication(traces: Traces, rng: random.Random) -> set[str]:
    rank, node = pick(traces, rng, COLL, SEND, RECV)
    traces.remove(rank, node.name)
    return {"E0648", "E0652", "E0653"}


def resize_communication(traces: Traces, rng: random.Random) -> set[str]:
    _, node = pick(traces, rng, COLL, SEND, RECV)
    node.set("comm_size", 10**6 + 2 * rng.randrange(1000))
    return {"E0651", "E0654"}


def retag(traces: Traces, rng: random.Random) -> set[str]:
    _, node = pick(traces, rng, SEND, RECV)
    node.set("comm_tag", 10**6 + rng.randrange(1000))
    return {"E0655"}


def change_kind(traces: Traces, rng: random.Random) -> set[str]:
    _, node = pick(traces, rng, COLL)
    node.set("comm_type", rng.choice([k for k in (0, 2, 6, 7) if k != node.get("comm_type")]))
    return {"E0650"}


def change_peer(traces: Traces, rng: random.Random) -> set[str]:
    rank, node = pick(traces, rng, SEND, RECV)
    name = "comm_dst" if node.type == SEND else "comm_src"
    peer = rng.choice([p for p in (*traces.nodes, 10**4) if p != node.get(name)])
    node.set(name, peer)
    if peer == rank:
        return {"E0657"}
    return {"E0656"} if peer == 10**4 else {"E0652", "E0653", "E0654", "E0655"}


def change_group(traces: Traces, rng: random.Random) -> set[str]:
    _, node = pick(traces, rng, COLL)
    groups = [g for g in (*traces.groups, "4711", "text") if g != node.get("pg_name")]
    node.set("pg_name", rng.choice(groups), "string")
    return {"E0641", "E0642", "E0643", "E0648"}


def cut(traces: Traces, rng: random.Random) -> set[str]:
    """Cut a file inside a message. Between two, only what is missed can tell."""
    rank, _ = pick(traces, rng)
    nodes = traces.nodes[rank]
    last = rng.randrange(len(nodes))
    whole, more = len(encode_trace(nodes[:last])), len(encode_trace(nodes[: last + 1]))
    traces.cut[rank] = rng.randrange(whole + 1, more)
    return {"E0692"}


MUTATIONS: dict[str, Mutation] = {
    "drop_attribute": drop_attribute,
    "spoil_attribute": spoil_attribute,
    "make_negative": make_negative,
    "make_zero": make_zero,
    "point_nowhere": point_nowhere,
    "close_cycle": close_cycle,
    "repeat_id": repeat_id,
    "change_type": change_type,
    "drop_communication": drop_communication,
    "resize_communication": resize_communication,
    "retag": retag,
    "change_kind": change_kind,
    "change_peer": change_peer,
    "change_group": change_group,
    "cut": cut,
}
NEED_TRANSFERS = ("retag", "change_peer")
NEED_GROUPS = ("change_kind", "change_group")


@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@pytest.mark.parametrize("mutation", MUTATIONS)
@given(name=st.sampled_from(sorted(GOOD)), seed=st.integers(0, 1 << 30))
def test_mutations_are_found(mutation: str, name: str, seed: int, directory: Path) -> None:
    traces = GOOD[name]()
    types = {node.type for nodes in traces.nodes.values() for node in nodes}
    if (mutation in NEED_TRANSFERS and SEND not in types) or (
        mutation in NEED_GROUPS and not (COLL in types and traces.groups)
    ):
        traces = GOOD["mesh"]()
    rng = random.Random(seed)
    expected = MUTATIONS[mutation](traces, rng)
    report = check(traces, directory)
    found = {finding.code for finding in report.findings}
    assert found & expected, (name, expected, report.text())
    assert report.has_errors
    # What is said can be rendered, for people and for machines.
    assert report.text()
    assert report.json()


def naive(chains: list[list[tuple[str, int]]], groups: list[list[int]]) -> bool:
    """Whether ranks that do one thing after the other come to their ends. Sends are eager."""
    at = [0] * len(chains)
    mail: dict[tuple[int, int], int] = {}
    while True:
        moved = False
        for rank, chain in enumerate(chains):
            if at[rank] == len(chain):
                continue
            kind, what = chain[at[rank]]
            if kind == "send":
                mail[rank, what] = mail.get((rank, what), 0) + 1
            elif kind == "recv":
                if not mail.get((what, rank)):
                    continue
                mail[what, rank] -= 1
            else:
                here = [m for m in groups[what] if at[m] < len(chains[m])]
                if len(here) < len(groups[what]) or any(
                    chains[m][at[m]] != ("coll", what) for m in here
                ):
                    continue
                for m in here:
                    at[m] += 1
                moved = True
                continue
            at[rank] += 1
            moved = True
        if not moved:
            return all(at[rank] == len(chain) for rank, chain in enumerate(chains))


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 1 << 30), ranks=st.integers(2, 5))
def test_deadlock_is_found_exactly_when_there_is_one(
    seed: int, ranks: int, directory: Path
) -> None:
    """Chains leave no choice to a schedule: a naive run tells whether they end."""
    rng = random.Random(seed)
    groups = [sorted(rng.sample(range(ranks), rng.randint(2, ranks))) for _ in range(3)]
    chains: list[list[tuple[str, int]]] = [[] for _ in range(ranks)]
    for _ in range(rng.randint(1, 6)):
        if rng.random() < 0.5:
            group = rng.randrange(3)
            for member in groups[group]:
                chains[member].append(("coll", group))
        else:
            one, other = rng.sample(range(ranks), 2)
            chains[one].append(("send", other))
            chains[other].append(("recv", one))
    # Half of the sets are spoilt by exchanging two steps of a rank.
    long = [chain for chain in chains if len(chain) > 1]
    if long and rng.random() < 0.6:
        chain = rng.choice(long)
        k = rng.randrange(len(chain) - 1)
        chain[k], chain[k + 1] = chain[k + 1], chain[k]
    traces = Traces({}, {str(k + 1): members for k, members in enumerate(groups)})
    for rank, chain in enumerate(chains):
        build = Rank()
        last = build.comp("start")
        for kind, what in chain:
            name = f"{kind}{what}"
            if kind == "coll":
                # One size each: a group that meets itself in another order is the same.
                last = build.coll(name, ALL_REDUCE, 1024, str(what + 1), last)
            elif kind == "send":
                last = build.send(name, what, 64, 1, last)
            else:
                last = build.recv(name, what, 64, 1, last)
        traces.nodes[rank] = build.nodes
    report = check(traces, directory)
    codes = {finding.code for finding in report.findings if finding.is_error}
    if naive(chains, groups):
        assert not codes, report.text()
        assert report.summary.deadlock == "none, whatever the run times"
    else:
        assert codes == {"E0660"}, report.text()
