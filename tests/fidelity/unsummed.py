"""Gradients that the capture tool's runs sum over fewer ranks than hold the same weights. A step of training sums them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.fidelity.oracle import Case, coordinates
from tests.fidelity.parameters import layers_of, parameters_of
from tests.fidelity.record import Communication, RankRecord


def leaves_out_rings(case: Case) -> bool:
    """HSDP beside context parallelism: the mesh of its gradients is `dp` by `dp_shard` (`Job.data_mesh`)."""
    return case.parallel.get("dp_mode") == "hsdp" and case.has_rings


def with_sums_over_rings(case: Case, rank: int, measured: RankRecord) -> RankRecord:
    """As if what is all-reduced over `dp` were all-reduced over `cp` with it."""
    members = ranks_along(case, rank, ("dp", "cp"))
    axis = "+".join(name for name in case.mesh if name in ("dp", "cp"))

    def summed(each: Communication) -> Communication:
        if each.kind != "all_reduce" or each.axis != "dp" or each.phase != "bwd":
            return each
        return replace(each, axis=axis, ranks=members)

    return replace(measured, communications=tuple(map(summed, measured.communications)))


def ranks_along(case: Case, rank: int, axes: tuple[str, ...]) -> tuple[int, ...]:
    at = coordinates(rank, case.mesh)
    return tuple(
        each
        for each in range(case.world_size)
        if all(
            place == at[name]
            for name, place in coordinates(each, case.mesh).items()
            if name not in axes
        )
    )


def leaves_out_experts(case: Case) -> bool:
    """DDP that is told to ignore experts, which some ranks have in common (`Job.replicate`)."""
    is_ddp = case.parallel.get("dp_mode", "ddp") == "ddp"
    return is_ddp and "edp" in case.mesh and case.is_training


def with_sums_of_experts(case: Case, rank: int, measured: RankRecord) -> RankRecord:
    """As if another DDP, over `edp`, had the rank's experts: each bucket behind the layer that fills it, in each backward pass that reduces."""
    backward = [n for n, c in enumerate(measured.communications) if c.phase == "bwd"]
    exchanges = [n for n in backward if measured.communications[n].kind == "all_to_all"]
    layers, times = layers_of_rank(case, rank), backward_passes(case)
    if len(exchanges) != 2 * layers * times:
        return measured
    every = bool(case.parallel.get("sync_every_mb"))
    found = list(measured.communications)
    for turn in reversed(range(times)):
        if turn < times - 1 and not every:
            continue
        for bucket in reversed(expert_buckets(case, rank)):
            # Behind the second exchange of the layer, counted from the last one.
            place = exchanges[2 * (layers * turn + bucket.layers) - 1] + 1
            found.insert(place, reduction(case, rank, bucket.num_bytes))
    return replace(measured, communications=tuple(found))


def layers_of_rank(case: Case, rank: int) -> int:
    """Of its stage: a rank under DDP has one."""
    return layers_of(case, coordinates(rank, case.mesh).get("pp", 0))


def backward_passes(case: Case) -> int:
    """Of a rank with one stage. In a pipeline the last one reduces."""
    return int(case.parallel["microbatches"]) if case.degree("pp") > 1 else case.accumulated


@dataclass(frozen=True)
class Bucket:
    num_bytes: int
    layers: int
    """With whose backward passes it is full."""


def expert_buckets(case: Case, rank: int) -> list[Bucket]:
    """DDP's: one ends with the parameter that fills it, the first at 1 MiB or the user's cap, others at 25."""
    experts = [each for each in parameters_of(case, rank) if each.is_expert]
    of_a_layer = len(experts) // layers_of_rank(case, rank)
    cap = int(case.parallel.get("bucket_mb", 25)) << 20
    found: list[Bucket] = []
    held = 0
    for number, each in enumerate(experts):
        held += each.rows * each.row * case.element_bytes
        limit = cap if found or "bucket_mb" in case.parallel else 1 << 20
        if held >= limit or number == len(experts) - 1:
            found.append(Bucket(held, number // of_a_layer + 1))
            held = 0
    return found


def reduction(case: Case, rank: int, num_bytes: int) -> Communication:
    members = ranks_along(case, rank, ("edp",))
    return Communication("bwd", "all_reduce", case.dtype, num_bytes, num_bytes, "edp", members)
