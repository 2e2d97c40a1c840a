"""Gradients that the capture tool's runs sum over fewer ranks than hold the same weights. A step of training sums them."""

from __future__ import annotations

from dataclasses import replace

from tests.fidelity.oracle import Case, coordinates
from tests.fidelity.parameters import parameters_of
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


def without_sums_of_experts(case: Case, rank: int, traced: RankRecord) -> RankRecord:
    """Without the reductions over `edp`, if they are those of the rank's experts, whole; where each microbatch reduces, as often."""
    sums = [c for c in traced.communications if c.reduces_gradient and c.axis == "edp"]
    experts = [each for each in parameters_of(case, rank) if each.is_expert]
    whole = sum(each.rows * each.row for each in experts) * case.element_bytes
    times = case.degree("grad_accum") if case.parallel.get("sync_every_mb") else 1
    if sum(c.bytes_in for c in sums) != times * whole:
        return traced
    kept = tuple(c for c in traced.communications if c not in sums)
    return replace(traced, communications=kept)
