"""The bytes that a rank keeps, as stagec plans them, and what of them is comparable with a measured run."""

from __future__ import annotations

import numpy as np

from stagec.driver import Compiled
from stagec.memory import ClassPlan, Kind
from tests.fidelity.left_out import has_other_weights
from tests.fidelity.oracle import DTYPE_BYTES, Case, coordinates
from tests.fidelity.peaks import fullest_moment
from tests.fidelity.record import Memory
from tests.fidelity.sublayers import has_part

LOSSES = ("log_softmax_loss", "loss_of_statistics")


def planned_memory(case: Case, compiled: Compiled, rank: int) -> Memory:
    plan = class_of(case, compiled, rank)
    kept = plan.static.num_bytes
    optimizer = kept[Kind.OPTIMIZER] + kept[Kind.MASTER]
    saved = saved_bytes(case, plan) if has_comparable_activations(case) else None
    if saved is not None and "embed" in case.frozen and 0 in case.stages.get(rank, (0,)):
        # Nobody needs the tokens for the gradient of a table that is not trained, and no other table is looked up by them.
        saved -= case.model["batch"] * case.model["seq"] * DTYPE_BYTES["i64"]
    holds_loss = any(said.op in LOSSES for table in plan.tables for said in table.abouts)
    moment = fullest_moment(case, plan) if case.is_fake else None
    return Memory(
        kept[Kind.PARAMETERS],
        kept[Kind.GRADIENTS],
        optimizer,
        saved,
        holds_loss,
        moment.planned if moment is not None else None,
        beside_peak=moment.beside if moment is not None else 0,
        cache=None if case.is_training else kept[Kind.CACHE],
    )


def class_of(case: Case, compiled: Compiled, rank: int) -> ClassPlan:
    """The rank class that a rank is in."""
    at = coordinates(rank, case.mesh)
    for plan in compiled.memory:
        if all(at[axis] in places for axis, places in plan.where.items()):
            return plan
    raise AssertionError(f"rank {rank} of {case.name} is in no class")


def saved_bytes(case: Case, plan: ClassPlan) -> int:
    """Of all microbatches."""
    if not case.is_training:
        return 0
    lives = plan.lives
    kept = np.isin(lives.kind, (Kind.SAVED, Kind.INPUTS))
    return int(lives.num_bytes[kept].sum())


def has_comparable_activations(case: Case) -> bool:
    """Cases whose saved tensors PyTorch reports whole, and that its CPU kernels keep as they are.

    What is left out, and why, is in docs/fidelity.md.
    """
    own_way = (
        case.model["arch"] == "moe"
        or case.degree("cp") > 1
        or str(case.parallel.get("ac", "")).startswith("sac")
        or case.model["fused_qkv"]
        or has_part(case, "conv")
        or (case.degree("pp") > 1 and (case.compute_dtype != "fp32" or has_other_weights(case)))
    )
    return (case.model["norm"] == "module" or case.is_fake) and not own_way
