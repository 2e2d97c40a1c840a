"""Coordinates, selections of ranks, and the ids of groups."""

import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from stagec.backend.errors import TraceError
from stagec.backend.groups import GroupIds, GroupKind, comm_group_json, comm_groups, kind_of
from stagec.backend.program import Mesh
from stagec.backend.ranks import format_ranks, parse_ranks, ranks_where, shifted
from stagec.dialects.sched.actions import Collective, Transfer
from tests.unit.backend_samples import coordinates, group_of, peer_of, rank_at

meshes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(
    lambda sizes: Mesh(("a", "b", "c", "d")[: len(sizes)], tuple(sizes))
)


@given(meshes, st.data())
def test_where(mesh, data) -> None:
    where = {
        axis: tuple(data.draw(st.sets(st.integers(0, mesh.size(axis) - 1), min_size=1)))
        for axis in data.draw(st.sets(st.sampled_from(mesh.axes)))
    }
    wanted = [
        rank
        for rank in range(mesh.num_ranks)
        if all(coordinates(mesh, rank)[axis] in chosen for axis, chosen in where.items())
    ]
    assert ranks_where(mesh, where).tolist() == wanted


@given(meshes, st.data())
def test_shifted(mesh, data) -> None:
    axes = tuple(data.draw(st.lists(st.sampled_from(mesh.axes), unique=True)))
    shift = data.draw(st.integers(-7, 7))
    ranks = np.arange(mesh.num_ranks)
    transfer = Transfer("send", axes, shift, 1, 0, "bf16")
    wanted = [peer_of(mesh, transfer, rank) for rank in range(mesh.num_ranks)]
    assert shifted(mesh, axes, shift, ranks).tolist() == wanted


@given(st.sets(st.integers(0, 99)))
def test_selection_round_trip(ranks) -> None:
    array = np.array(sorted(ranks), dtype=np.int64)
    if ranks:
        assert parse_ranks(format_ranks(array), 100).tolist() == array.tolist()
    else:
        assert format_ranks(array) == ""


def test_selection() -> None:
    assert parse_ranks(" 8, 0 ,10-12,8", 13).tolist() == [0, 8, 10, 11, 12]
    assert format_ranks(np.array([0, 1, 2, 5, 7, 8])) == "0-2,5,7-8"
    for text, words in (
        ("1,,2", "`` is not a rank"),
        ("-3", "`-3` is not a rank"),
        ("x", "`x` is not a rank"),
        ("5-3", "`5-3` ends before it starts"),
        ("0-13", "there is no rank 13"),
        ("\u0663", "is not a rank"),
    ):
        with pytest.raises(TraceError) as error:
            parse_ranks(text, 13)
        assert error.value.code == "E0604"
        assert words in error.value.message


def all_kinds(mesh: Mesh) -> list[GroupKind]:
    wide = [axis for axis in mesh.axes if mesh.size(axis) > 1]
    return [
        GroupKind(tuple(a for i, a in enumerate(wide) if mask >> i & 1))
        for mask in range(1, 2 ** len(wide))
    ]


@given(meshes, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_ids_of_all_kinds_at_once(mesh, random) -> None:
    kinds = all_kinds(mesh)
    random.shuffle(kinds)
    ids = GroupIds.assign(kinds, mesh)
    assert ids == GroupIds.assign(kinds[::-1], mesh)
    ranks = np.arange(mesh.num_ranks)
    found = dict(comm_groups(ids, mesh, [ranks] * len(kinds)))
    assert len(found) == len({tuple(members) for members in found.values()})
    assert all(number > 0 and len(str(number)) == ids.width for number in found)
    assert list(found) == sorted(found)
    of_ranks = np.array([ids.of_ranks(k, mesh, ranks) for k in range(len(kinds))])
    for rank in range(mesh.num_ranks):
        named = {int(number) for number in of_ranks[:, rank]} if kinds else set()
        assert named == {number for number, members in found.items() if rank in members}
        assert len({number % 500 for number in named}) == len(named)
    for number, kind in enumerate(ids.kinds):
        collective = Collective("all_reduce", kind.axes, 1, 1, "fp32")
        # Groups of a kind share no rank: each is compared once.
        groups: dict[int, list[int]] = {}
        for rank, group in enumerate(of_ranks[number].tolist()):
            if group not in groups:
                groups[group] = group_of(mesh, collective, rank)
                assert found[group] == groups[group]
            assert rank in groups[group]


def test_kinds_are_canonical() -> None:
    mesh = Mesh(("dp", "cp", "tp"), (4, 1, 2))

    def kind(axes, among=()):
        return kind_of(Collective("all_reduce", axes, 1, 1, "fp32", among), mesh)

    assert kind(("tp", "cp", "dp")) == kind(("dp", "tp")) == GroupKind(("dp", "tp"))
    assert kind(("dp",), (("dp", (0, 1, 2, 3)),)) == kind(("dp",))
    assert kind(("dp",), (("dp", (3, 0)),)) == GroupKind(("dp",), (("dp", (0, 3)),))
    for axes, among in (
        (("cp",), ()),
        (("dp",), (("dp", (1,)),)),
        (("dp",), (("tp", (0,)),)),
        (("dp",), (("dp", (0, 4)),)),
        (("dp",), (("dp", (0, 0)),)),
    ):
        with pytest.raises(AssertionError):
            kind(axes, among)


def test_world_has_an_id() -> None:
    mesh = Mesh(("dp", "tp"), (3, 2))
    ids = GroupIds.assign([GroupKind(("dp", "tp"))], mesh)
    ranks = np.arange(6)
    assert dict(comm_groups(ids, mesh, [ranks])) == {1: [0, 1, 2, 3, 4, 5]}


def test_file_of_many_ranks_is_readable() -> None:
    mesh = Mesh(("dp", "pp", "tp"), (1024, 4, 8))
    kinds = all_kinds(mesh)
    ids = GroupIds.assign(kinds, mesh)
    users = [np.arange(mesh.num_ranks)] * len(kinds)
    text = comm_group_json(comm_groups(ids, mesh, users))
    assert len(text) < 2_000_000
    assert max(map(len, text.splitlines())) < 300_000
    groups = json.loads(text)
    assert sum(map(len, groups.values())) == len(kinds) * mesh.num_ranks
    assert comm_group_json(iter([])) == b"{}\n"
    assert [rank_at(mesh, coordinates(mesh, 777))] == [777]
