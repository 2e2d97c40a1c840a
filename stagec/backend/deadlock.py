"""Proof, before anything is written, that no rank of a set can wait for ever, whatever the run times.

The machine is that of `stagec check` (docs/decisions/one-order-of-communication.md): one slot for a rank's communication, which
the ready node of lowest number takes, and a collective keeps until its last member has come. Nothing here replays a rank or
looks at each of them. Three things are shown:

1. *Numbers are an order.* What a node waits for has a lower number, and nodes of a stream follow one another.
2. *The slot keeps to it.* When a collective is ready, what each collective of a lower number waits for is done, or is a
   collective of a still lower number. A send or a copy of which that is not certain is issued behind the collective. As
   nodes of a stream follow one another, a number for each stream says what is done: that of its last node.
3. *Ranks that each do one thing after the other, in that order, all get to their ends.* Ranks that differ only along
   axes that no class and no transfer between classes tells apart do the same, so there is one *cell* for all of them. Only
   what cells have to do with each other is looked at, and whether members of a group issue the same collectives. Where they
   do not get through (an order is more than they need), what waits for what is looked at node by node.

1 and 2 are in `stagec.backend.issue_order`. By them every wait that times can bring about goes from a higher number to a lower one on its rank,
or across ranks to what a message or a collective needs; by 3 such waits form no circle.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from stagec.arrays import Ints, distinct
from stagec.backend.groups import GroupKind, kind_of
from stagec.backend.issue_order import IssueOrder, SegmentOrders, doubt
from stagec.backend.pool_links import Key, Party, PoolLink, handed, links, unequal
from stagec.backend.program import PooledTraces, RankClass, TraceSet
from stagec.backend.ranks import ranks_where
from stagec.dialects.sched.actions import Collective, Transfer

Cell = Key
"""Coordinates along the axes that tell ranks apart; of one pool of several its name before them."""


def check_progress(traces: TraceSet) -> None:
    """E0613 if it is not certain that all ranks get to the end; what other pools send is there."""
    ranks: dict[_Key, IssueOrder] = {}
    check_alone(traces, ranks)
    _AllRanks(traces, ranks).world().check()


def check_progress_of_pools(traces: PooledTraces) -> None:
    """The same of pools that wait for each other, each for what the others send."""
    ranks: dict[_Key, IssueOrder] = {}
    pools: list[_AllRanks] = []
    for name, each in traces.pools:
        check_alone(each, ranks)
        pools.append(_AllRanks(each, ranks, name))
    joined = _joined([pool.world() for pool in pools])
    for once in (False, True):
        parties = [
            party for pool in pools for party in pool.parties(traces.firsts[pool.pool], once)
        ]
        joined.link(links(parties), {party.key: party for party in parties})
    joined.check()


def check_alone(traces: TraceSet, ranks: dict[_Key, IssueOrder]) -> None:
    segments = SegmentOrders()
    for each in traces.classes:
        key = _key(each)
        if key not in ranks:
            ranks[key] = IssueOrder(each, segments)
            ranks[key].check()


_Key = tuple[int, int]


def _key(rank_class: RankClass) -> _Key:
    """What programs have in common that differ in the numbers of their nodes alone."""
    return id(rank_class.program.slots), id(rank_class.program.segment)


def of_job(action: Transfer | Collective) -> bool:
    """Whether it is over all pools."""
    return isinstance(action, Collective) and action.ranks > 0


def is_handed(action: Transfer | Collective) -> bool:
    """Whether another pool is at its other end."""
    return isinstance(action, Transfer) and action.peer is not None


_Found = tuple[Ints, Ints, Ints]
"""What was found of nodes: number, action, tag."""


@dataclass(frozen=True)
class _Events:
    """The events of a class in the order of their numbers: sends, receives, and collectives that other cells take part in."""

    actions: tuple[Transfer | Collective, ...]
    action: list[int]
    tag: list[int]
    number: list[int]


@dataclass(frozen=True)
class _Issued:
    """The collectives of a rank on a group, in order: their kinds and bytes, as `stagec check` compares them, and their numbers."""

    alike: list[tuple[str, int]]
    numbers: list[int]


def issued_by_group(events: _Events, codes: list[tuple[int, int]]) -> dict[int, _Issued]:
    found: dict[int, _Issued] = {}
    for at, number in zip(events.action, events.number, strict=True):
        action = events.actions[at]
        if isinstance(action, Collective):
            issued = found.setdefault(codes[at][1], _Issued([], []))
            issued.alike.append((action.kind, action.operand_bytes))
            issued.numbers.append(number)
    return found


_SENDS, _WAITS, _MEETS, _HANDS, _TAKES = range(5)
"""What an action is to a cell: of a message in its own mesh, of a meeting, of a message between pools."""
_OF_JOB = -1
"""The group in which all cells of all pools meet."""


class _AllRanks:
    """The cells of one mesh, and what they have to do with each other."""

    def __init__(self, traces: TraceSet, ranks: Mapping[_Key, IssueOrder], pool: str = "") -> None:
        self.traces, self.mesh, self.ranks = traces, traces.mesh, ranks
        self.pool = pool
        """Of several that wait for each other."""
        self.axes = self._telling_apart()
        self.sizes = [self.mesh.size(axis) for axis in self.axes]

    def _telling_apart(self) -> tuple[str, ...]:
        """The axes along which ranks are of different classes, and those of transfers along these."""
        axes = {axis for each in self.traces.classes for axis in each.where}
        along = {
            frozenset(node.action.axes)
            for each in self.traces.classes
            for node in each.program.nodes_that_run()
            if isinstance(node.action, Transfer) and node.action.axes
        }
        while more := {axis for some in along if some & axes for axis in some} - axes:
            axes |= more
        return tuple(axis for axis in self.mesh.axes if axis in axes and self.mesh.size(axis) > 1)

    def world(self) -> _World:
        events = {id(each): self._events(each) for each in self.traces.classes}
        cells: dict[tuple[int, ...], RankClass] = {}
        if any(each.action for each in events.values()):
            for each in self.traces.classes:
                for cell in self._cells(each.where):
                    cells[cell] = each
        codes, num_members = self._meanings(cells, events)
        before: Cell = (self.pool,) if self.pool else ()
        return _World(
            self.ranks,
            {(*before, *cell): each for cell, each in cells.items()},
            events,
            {(*before, *cell): own for cell, own in codes.items()},
            num_members,
        )

    def parties(self, first: int, once: bool) -> Iterator[Party]:
        """The ranks of each cell, with what they hand over."""
        for each in self.traces.classes:
            sends, takes = (handed(each.program, kind, once) for kind in ("send", "recv"))
            if not sends.actions and not takes.actions:
                continue
            for cell in self._cells(each.where):
                here = {axis: (at,) for axis, at in zip(self.axes, cell, strict=True)}
                ranks = ranks_where(self.mesh, {**each.where, **here})
                yield Party((self.pool, *cell), ranks, first, self.mesh, sends, takes)

    def _cells(self, where: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
        sizes = zip(self.axes, self.sizes, strict=True)
        return product(*(where.get(axis, range(size)) for axis, size in sizes))

    def _is_inside(self, action: Transfer | Collective) -> bool:
        """Whether all who take part are in one cell."""
        alone = not any(axis in self.axes for axis in action.axes)
        return alone and not is_handed(action) and not of_job(action)

    def _events(self, rank_class: RankClass) -> _Events:
        rank = self.ranks[_key(rank_class)]
        actions: dict[Transfer | Collective, int] = {}
        said = [
            actions.setdefault(node.action, len(actions))
            if isinstance(node.action, Transfer | Collective) and self._concerns(node.action)
            else -1
            for segment in rank_class.program.segments
            for node in segment.nodes
        ]
        code = np.array(said, np.int64)[rank.node]
        at = np.flatnonzero(code >= 0)
        if not len(at):
            return _Events((), [], [], [])
        here, code, tag = rank.number[at], code[at], rank_class.program.tag[rank.instance[at]]
        inside = np.array([self._is_inside(action) for action in actions])[code]
        if inside.any():
            found = here[inside], code[inside], tag[inside]
            self._check_inside(rank_class, tuple(actions), found)
        here, code, tag = here[~inside], code[~inside], tag[~inside]
        order = np.lexsort((here, rank.place[here]))
        code, tag, here = (each[order].tolist() for each in (code, tag, here))
        return _Events(tuple(actions), code, tag, here)

    def _concerns(self, action: Transfer | Collective) -> bool:
        """Whether cells have to do with others, or ranks of one with each other, by a message."""
        if is_handed(action) or of_job(action):
            # Of another pool, which may not wait for this one: `check_pairs` looks at those.
            return bool(self.pool)
        return isinstance(action, Transfer) or not self._is_inside(action)

    def _check_inside(
        self, rank_class: RankClass, actions: tuple[Transfer | Collective, ...], found: _Found
    ) -> None:
        """Check that ranks of one cell send each message before they wait for it: all are equally far."""
        at, code, tag = found
        rank = self.ranks[_key(rank_class)]
        ways: dict[object, int] = {}
        way, sends = np.zeros(len(actions), np.int64), np.zeros(len(actions), bool)
        for number, action in enumerate(actions):
            if isinstance(action, Transfer) and self._is_inside(action):
                sends[number] = action.kind == "send"
                way[number] = ways.setdefault(self._way(action), len(ways))
        order = np.lexsort((at, rank.place[at], tag, way[code]))
        at, code, tag = at[order], code[order], tag[order]
        is_send = sends[code]
        sent, got = np.flatnonzero(is_send), np.flatnonzero(~is_send)
        same = len(sent) == len(got) and bool(
            (way[code[sent]] == way[code[got]]).all() and (tag[sent] == tag[got]).all()
        )
        if not same:
            raise doubt(rank_class, int(at[0]), "has no other end")
        sent, got = at[sent], at[got]
        if (rank.place[sent] > rank.place[got]).any():
            rank.receive_behind(got, sent)
        late = np.flatnonzero(rank.place[sent] > rank.place[got])
        if len(late):
            raise doubt(rank_class, int(got[late[0]]), "is waited for before it is sent")

    def _way(self, action: Transfer) -> tuple[object, ...]:
        """What a message and its other end have in common, but for where they are."""
        axes = tuple(axis for axis in action.axes if self.mesh.size(axis) > 1)
        length = math.prod(self.mesh.size(axis) for axis in axes)
        shift = action.shift if action.kind == "send" else -action.shift
        return axes, shift % length, action.channel, action.num_bytes

    def _meanings(
        self, cells: Mapping[tuple[int, ...], RankClass], events: Mapping[int, _Events]
    ) -> tuple[dict[tuple[int, ...], list[tuple[int, int]]], dict[int, int]]:
        """What each action of a cell is: a send, a receive or a meeting (0, 1, 2), and which; how many meet in each group."""
        ways: dict[object, int] = {}
        groups: dict[object, int] = {}
        num_members: dict[int, int] = {}
        codes: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for cell, each in cells.items():
            own: list[tuple[int, int]] = []
            for action in events[id(each)].actions:
                if is_handed(action):
                    own.append((_HANDS if action.kind == "send" else _TAKES, 0))
                elif self._is_inside(action):
                    own.append((0, 0))
                elif isinstance(action, Transfer):
                    sends = action.kind == "send"
                    source = cell if sends else self._moved(cell, action)
                    key = source, self._way(action)
                    own.append((_SENDS if sends else _WAITS, ways.setdefault(key, len(ways))))
                elif of_job(action):
                    own.append((_MEETS, _OF_JOB))
                else:
                    kind = kind_of(action, self.mesh)
                    fixed = tuple(
                        c for axis, c in zip(self.axes, cell, strict=True) if axis not in kind.axes
                    )
                    group = groups.setdefault((kind, fixed), len(groups))
                    num_members[group] = self._num_members(kind)
                    own.append((_MEETS, group))
            codes[cell] = own
        return codes, num_members

    def _moved(self, cell: tuple[int, ...], action: Transfer) -> tuple[int, ...]:
        """The cell of the rank at the other end."""
        axes = [axis for axis in action.axes if axis in self.axes]
        places = [self.axes.index(axis) for axis in axes]
        joint = 0
        for place in places:
            joint = joint * self.sizes[place] + cell[place]
        joint = (joint + action.shift) % math.prod(self.sizes[place] for place in places)
        other = list(cell)
        for place in reversed(places):
            joint, other[place] = divmod(joint, self.sizes[place])
        return tuple(other)

    def _num_members(self, kind: GroupKind) -> int:
        """How many cells meet in a group of a kind."""
        among = dict(kind.among)
        return math.prod(
            len(among.get(axis, range(size)))
            for axis, size in zip(self.axes, self.sizes, strict=True)
            if axis in kind.axes
        )


@dataclass
class _World:
    """3, for all cells: of one mesh, or of all pools."""

    ranks: Mapping[_Key, IssueOrder]
    cells: dict[Cell, RankClass]
    events: dict[int, _Events]
    codes: dict[Cell, list[tuple[int, int]]]
    """For each of a cell's actions: what it is, and which way, or which group."""
    num_members: dict[int, int]
    """How many cells meet in a group."""
    sources: dict[tuple[Cell, int], list[tuple[Cell, int]]] = field(default_factory=dict)
    """Of what a cell takes from other pools, by its number among the cell's events: what of other cells it waits for."""

    def check(self) -> None:
        self._check_alike()
        if not self._get_through():
            self._check_graph()

    def link(self, found: Sequence[PoolLink], parties: Mapping[Key, Party]) -> None:
        """Let what is taken wait for what is sent."""
        steps = {cell: self._steps(each) for cell, each in self.cells.items()}
        for link in found:
            giver, taker = parties[link.giver], parties[link.taker]
            if not np.array_equal(giver.sends.tags, taker.takes.tags):
                raise unequal("pools hand over other microbatches than are waited for")
            sent = self._numbers(giver.key, giver.sends.position[:, link.sent])
            taken = self._numbers(taker.key, taker.takes.position[:, link.taken])
            for here, there in zip(sent, taken, strict=True):
                source = giver.key, steps[giver.key][here]
                self.sources.setdefault((taker.key, steps[taker.key][there]), []).append(source)

    def _numbers(self, cell: Cell, positions: Ints) -> list[int]:
        return self.cells[cell].program.numbers(positions).tolist()

    def _steps(self, rank_class: RankClass) -> dict[int, int]:
        """The place of each event of a cell among them, by the number of its node."""
        return {number: step for step, number in enumerate(self.events[id(rank_class)].number)}

    def _check_alike(self) -> None:
        """Check that the n-th collective of a group is the same on all its members, as far as these have one: what meets is counted, not compared."""
        cells, events, codes = self.cells, self.events, self.codes
        known: dict[tuple[int, tuple[tuple[int, int], ...]], dict[int, _Issued]] = {}
        first: dict[int, _Issued] = {}
        for cell, each in cells.items():
            key = id(each), tuple(codes[cell])
            if key not in known:
                known[key] = issued_by_group(events[id(each)], codes[cell])
            for group, here in known[key].items():
                there = first.setdefault(group, here)
                if here is there or here.alike == there.alike:
                    continue
                pairs = zip(here.alike, there.alike, strict=False)
                at = next((n for n, (own, other) in enumerate(pairs) if own != other), None)
                if at is not None:
                    why = "meets another collective of its group on other ranks"
                    raise doubt(each, here.numbers[at], why)

    def _get_through(self) -> bool:
        """Let each cell go on as far as it can, until all are through; whether they get there."""
        cells, events, codes = self.cells, self.events, self.codes
        num_members = self.num_members
        span = 1 + max((max(each.tag) for each in events.values() if each.tag), default=0)
        sent: dict[int, int] = defaultdict(int)
        got: dict[int, int] = defaultdict(int)
        came: dict[tuple[int, int], int] = defaultdict(int)
        turn: dict[tuple[Cell, int], int] = defaultdict(int)
        waiting: dict[object, list[Cell]] = defaultdict(list)
        at = dict.fromkeys(cells, 0)
        pending = list(cells)
        while pending:
            cell = pending.pop()
            own = events[id(cells[cell])]
            code, action, tag, step = codes[cell], own.action, own.tag, at[cell]
            while step < len(action):
                kind, number = code[action[step]]
                if kind == _HANDS:
                    pending += waiting.pop((cell, step), ())
                elif kind == _TAKES:
                    source = next((s for s in self.sources[cell, step] if at[s[0]] <= s[1]), None)
                    if source is not None:
                        waiting[source].append(cell)
                        break
                elif kind == _SENDS:
                    message = number * span + tag[step]
                    sent[message] += 1
                    pending += waiting.pop(message, ())
                elif kind == _WAITS:
                    message = number * span + tag[step]
                    if got[message] == sent[message]:
                        waiting[message].append(cell)
                        break
                    got[message] += 1
                else:
                    meeting = number, turn[cell, number]
                    if meeting[1] >= 0:
                        came[meeting] += 1
                        if came[meeting] < num_members[number]:
                            waiting[meeting].append(cell)
                            turn[cell, number] = ~meeting[1]
                            break
                        pending += waiting.pop(meeting, ())
                        turn[cell, number] += 1
                    else:
                        turn[cell, number] = ~meeting[1] + 1
                step += 1
            at[cell] = step
        return all(at[cell] == len(events[id(each)].action) for cell, each in cells.items())

    def _check_graph(self) -> None:
        """The same without an order of a rank's own: what waits for what, of one rank of each cell, forms no circle."""
        cells, events, codes = self.cells, self.events, self.codes
        num_members = self.num_members
        first: dict[Cell, int] = {}
        total = 0
        for cell, each in cells.items():
            first[cell] = total
            total += self.ranks[_key(each)].total
        num_nodes = total
        ends: tuple[dict[tuple[int, int], list[int]], ...] = (defaultdict(list), defaultdict(list))
        meetings: dict[tuple[int, int], int] = {}
        met: list[tuple[int, int]] = []
        owners: list[Ints] = []
        deps: list[Ints] = []
        for cell, each in cells.items():
            rank, own, start = self.ranks[_key(each)], events[id(each)], first[cell]
            stands_for = np.arange(rank.total) + start
            turn: dict[int, int] = defaultdict(int)
            for action, tag, number in zip(own.action, own.tag, own.number, strict=True):
                kind, which = codes[cell][action]
                if kind in (_HANDS, _TAKES):
                    continue
                if kind != _MEETS:
                    ends[kind][which, tag].append(start + number)
                    continue
                meeting = meetings.setdefault((which, turn[which]), total)
                total += meeting == total
                turn[which] += 1
                stands_for[number] = meeting
                met.append((start + number, meeting))
            for owner, dep in ((rank.owner, rank.dep), rank.added):
                owners.append(stands_for[owner])
                deps.append(dep + start)
        sends, receives = ends
        pairs = [
            pair
            for key, got in receives.items()
            for pair in zip(sorted(got), _ended(sorted(sends[key]), got), strict=False)
        ]
        for (cell, step), sources in self.sources.items():
            owner = first[cell] + events[id(cells[cell])].number[step]
            pairs += [(owner, first[c] + events[id(cells[c])].number[s]) for c, s in sources]
        came = np.bincount([meeting for _, meeting in met], minlength=total)
        missed = [m for (which, _), m in meetings.items() if came[m] < num_members[which]]
        pairs += [(meeting, meeting) for meeting in missed]
        for extra in (pairs, met):
            both = np.array(extra, np.int64).reshape(-1, 2)
            owners.append(both[:, 0])
            deps.append(both[:, 1])
        stuck = in_a_circle(np.concatenate(owners), np.concatenate(deps), total)
        stuck = stuck[stuck < num_nodes]
        if len(stuck):
            cell = max((c for c in cells if first[c] <= stuck[0]), key=lambda c: first[c])
            why = "waits for what other ranks do after it"
            raise doubt(cells[cell], int(stuck[0]) - first[cell], why)


def _joined(worlds: Sequence[_World]) -> _World:
    """The worlds of all pools as one. Ways and groups belong to one mesh each."""
    whole = _World(worlds[0].ranks, {}, {}, {}, {})
    above = 0
    for each in worlds:
        whole.cells |= each.cells
        whole.events |= each.events
        whole.codes |= {
            cell: [(kind, moved(number, above)) for kind, number in own]
            for cell, own in each.codes.items()
        }
        whole.num_members |= {moved(group, above): n for group, n in each.num_members.items()}
        above += 1 + max((n for own in each.codes.values() for _, n in own), default=0)
    whole.num_members[_OF_JOB] = len(whole.cells)
    return whole


def moved(number: int, above: int) -> int:
    """The number of a way or a group among those of all pools."""
    return number if number == _OF_JOB else number + above


def _ended(sends: list[int], receives: list[int]) -> list[int]:
    """The sends of receives; one that has none waits for itself."""
    return [*sends, *sorted(receives)[len(sends) :]]


def in_a_circle(owner: Ints, dep: Ints, total: int) -> Ints:
    """Nodes in or behind a circle of what waits for what, ascending: what is left when those that wait for nothing are taken away."""
    order = np.argsort(dep, kind="stable")
    reader = owner[order]
    begin = np.concatenate([[0], np.cumsum(np.bincount(dep, minlength=total))])
    left = np.bincount(owner, minlength=total)
    free = np.flatnonzero(left == 0)
    while len(free):
        count = begin[free + 1] - begin[free]
        at = np.repeat(begin[free] - np.concatenate([[0], np.cumsum(count)[:-1]]), count)
        behind = reader[at + np.arange(len(at))]
        np.subtract.at(left, behind, 1)
        free = distinct(behind[left[behind] == 0])
    return np.flatnonzero(left)
