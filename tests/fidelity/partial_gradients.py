"""Gradients of norms' weights under sequence parallelism, which are partial over `tp` when PyTorch's backward pass is over.

DTensor reduces them each time they are read. One reduction each would do, where the gradient is complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from stagec.schedules import build
from stagec.schedules.table import Action, ActionKind
from tests.fidelity.oracle import Case, coordinates
from tests.fidelity.parameters import layers_of
from tests.fidelity.plan_text import SCHEDULES, SPLIT
from tests.fidelity.record import Communication, RankRecord
from tests.fidelity.sublayers import reads_source, steps_of
from tests.fidelity.unsummed import ranks_along

READS_OF_CLIPPING = 1
READS_OF_UPDATE = {True: 1, False: 3}
"""Of the fused AdamW, and of the one with a loop over tensors: `lerp_` reads a gradient once, `addcmul_` twice (`torch/optim/adam.py`)."""


def norms_of_layer(case: Case) -> int:
    """One before attention, one before the feed-forward network, or one before each step of other blocks."""
    return len(steps_of(case)) or 2


def inputs_of_layer(case: Case) -> int:
    """What a layer gathers, and reduce-scatters in the backward pass: what follows each norm, and what other layers read too."""
    return norms_of_layer(case) + sum(step.count("cross") for step in steps_of(case))


def is_read(communication: Communication) -> bool:
    return communication.phase in ("optim", "clip") and communication.axis == "tp"


def with_single_reductions(case: Case, rank: int, measured: RankRecord) -> RankRecord:
    """As if each partial gradient were reduced once: in the last backward pass of its stage, those of a layer behind its last reduce-scatter, those of the
    last norm behind the head's. Where a schedule has passes of their own for weights, behind the last of these; the first stage has none.

    The record as it is if it has other reads than clipping and the update make, or other backward passes than its schedule."""
    reduction = reduction_of_gradient(case, rank)
    found = [c for c in measured.communications if not is_read(c)]
    places = places_of_gradients(case, rank, found)
    reads = Counter(c for c in measured.communications if is_read(c))
    if places is None or reads != expected_reads(case, reduction, places.total()):
        return measured
    for place in sorted(places, reverse=True):
        found[place:place] = [reduction] * places[place]
    return replace(measured, communications=tuple(found))


def reduction_of_gradient(case: Case, rank: int) -> Communication:
    size = case.model["dim"] * case.element_bytes
    members = ranks_along(case, rank, ("tp",))
    return Communication("bwd", "all_reduce", case.dtype, size, size, "tp", members)


def partial_tensors(case: Case) -> int:
    """Of a norm: a layer norm has a shift beside its scale."""
    return 2 if case.model["arch"] == "gpt" else 1


def expected_reads(case: Case, reduction: Communication, number: int) -> Counter[Communication]:
    """What reads `number` partial gradients."""
    times = {"optim": READS_OF_UPDATE[bool(case.opts.get("fused"))]}
    if case.opts.get("clip"):
        times["clip"] = READS_OF_CLIPPING
    return Counter({replace(reduction, phase=phase): n * number for phase, n in times.items()})


@dataclass(frozen=True)
class Pass:
    """What a backward pass of a stage communicates over `tp`."""

    layers: int
    scatters_head: bool
    gathers: int
    scatters: int


def pass_of(case: Case, stage: int) -> Pass:
    """The gradients of the tables of tokens and positions are made of gathered ones."""
    layers = layers_of(case, stage)
    tables = (2 if case.model["arch"] == "gpt" else 1) * (stage == 0)
    is_last = stage == case.degree("pp") * case.degree("vstages") - 1
    gathers = norms_of_layer(case) * layers + tables
    return Pass(layers, is_last, gathers, inputs_of_layer(case) * layers + is_last)


def places_of_gradients(
    case: Case, rank: int, communications: list[Communication]
) -> Counter[int] | None:
    """Before which communications how many partial gradients are complete; nothing if the backward passes are not those of the rank's schedule."""
    tensors, norms = partial_tensors(case), norms_of_layer(case)
    scatters, backward, transfers = [0], [0], [0]
    for place, each in enumerate(communications, 1):
        if each.phase == "p2p":
            transfers.append(place)
        elif each.phase == "bwd" and each.axis == "tp":
            backward.append(place)
            if each.kind == "reduce_scatter":
                scatters.append(place)
    actions = list(actions_of(case, rank))
    passes = [pass_of(case, a.stage) for a in actions if makes_input_gradient(a)]
    expected = [sum(p.scatters for p in passes), sum(p.scatters + p.gathers for p in passes)]
    sent = sum(action.is_transfer for action in actions)
    if [len(scatters) - 1, len(backward) - 1, len(transfers) - 1] != [*expected, sent]:
        return None
    found: Counter[int] = Counter()
    last = {action.stage: n for n, action in enumerate(actions) if completes(case, action)}
    scattered = communicated = moved = 0
    for number, action in enumerate(actions):
        each = pass_of(case, action.stage)
        if action.is_transfer:
            moved += 1
        elif makes_input_gradient(action):
            scattered += each.scatters
            communicated += each.scatters + each.gathers
        if last.get(action.stage) != number:
            continue
        if has_weight_passes(case, action.stage):
            place = max(backward[communicated], transfers[moved])
            found[place] += tensors * (each.scatters_head + norms * each.layers)
            continue
        before = scattered - each.scatters + each.scatters_head
        if each.scatters_head:
            found[scatters[before]] += tensors
        for layer in range(1, each.layers + 1):
            found[scatters[before + inputs_of_layer(case) * layer]] += norms * tensors
        found[scatters[scattered]] += tensors * (action.stage == 0 and reads_source(case))
    return found


def actions_of(case: Case, rank: int) -> Iterator[Action]:
    """Of a rank, in order. `python -m tests.fidelity.pipelines` holds the schedules against PyTorch's own."""
    if case.degree("pp") == 1:
        for microbatch in range(case.accumulated):
            yield Action(ActionKind.BACKWARD, 0, microbatch)
        return
    name = SCHEDULES[case.parallel["schedule"]]
    sizes = case.degree("pp"), case.degree("vstages"), int(case.parallel["microbatches"])
    for group in build(name, *sizes).groups(coordinates(rank, case.mesh)["pp"]):
        yield from group


def makes_input_gradient(action: Action) -> bool:
    return action.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)


def has_weight_passes(case: Case, stage: int) -> bool:
    """PyTorch's first stage, which has no input gradient, does all in the first half."""
    return case.parallel.get("schedule") in SPLIT and stage > 0


def completes(case: Case, action: Action) -> bool:
    """Whether it makes gradients of weights."""
    if has_weight_passes(case, action.stage):
        return action.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)
    return makes_input_gradient(action)
