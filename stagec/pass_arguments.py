"""What a plan tells each pass: one function for each that is told more than a word, with the name of the pass."""

from __future__ import annotations

import os

from stagec.analysis.communication import COMMUNICATION_KINDS
from stagec.diagnostics import CompileError, refused
from stagec.dialects import dist, stg
from stagec.dialects.memory import CONTIGUOUS, COPIED, KEPT, PARTITIONED
from stagec.pipeline_schedule import unwanted_code
from stagec.plans import presets
from stagec.plans.clauses import (
    PRODUCTS,
    Documents,
    Load,
    Offload,
    Overlap,
    Pipeline,
    Plan,
    Precision,
)
from stagec.plans.expert_histograms import read_histograms
from stagec.schedules.catalogue import CATALOGUE
from stagec.schedules.transfers import RESIDENT_STAGES
from stagec.symbolic import conditions
from stagec.trust import may_run

Arguments = dict[str, object]


def split_exchanges(plan: Plan, stated: dist.PlanOp) -> Arguments:
    size = plan.microbatch_size
    conditions.read(conditions.setting("microbatch", size), size)
    return {"batch": stated.batch_dim, "microbatch": size}


def quantize_products(plan: Plan, stated: dist.PlanOp) -> Arguments:
    precision = plan.precision
    if not precision.is_quantized:
        stored = precision.product_weights or ""
        return {"inputs": "", "weights": "", "wide": precision.unquantized, "stored": stored}
    inputs, weights = PRODUCTS[precision.products or ""]
    # Weights that no step changes are not quantized in each iteration. What converts the rest is part of the products' measured times.
    stored = precision.product_weights or ("" if stated.is_training else weights)
    gathers = stated.is_training and plan.zero_level in (1, 2)
    return {
        "inputs": inputs if stated.is_training else "",
        "weights": weights,
        "wide": precision.unquantized,
        "wide_weight_gradient": precision.weight_gradients == "bf16",
        "stored": stored,
        "gathered": (precision.product_gather or "") if gathers else "",
    }


def reduced_maxima(plan: Plan) -> tuple[str, ...]:
    """The axes along which ranks agree on the maxima of delayed scaling."""
    said, pipeline = plan.precision.maxima, plan.pipeline
    if plan.precision.products != "fp8" or plan.precision.scaling != "delayed" or said == ("none",):
        return ()
    if said != ("all",):
        return tuple(part for axis in said for part in plan.products.get(axis, (axis,)))
    return tuple(axis for axis in plan.mesh if pipeline is None or axis != pipeline.axis)


def split_microbatches(plan: Plan, stated: dist.PlanOp) -> Arguments:
    precision, whole = plan.precision, sums_whole_gradients(plan)
    return {
        "dim": stated.batch_dim,
        "size": plan.microbatch_size,
        "gradients": precision.reduce if whole else precision.gradients,
        "own": own_reductions(precision) if whole else own_gradients(precision),
    }


def own_gradients(precision: Precision) -> str:
    """What gradients are in of weights that have a dtype of their own."""
    return stg.WIDER if "gradients" in precision.given else stg.OWN_DTYPE


def own_reductions(precision: Precision) -> str:
    """What they are reduced in."""
    return stg.AS_OTHERS if "reduce" in precision.given else own_gradients(precision)


def schedule_pipeline(pipeline: Pipeline, overlap: Overlap) -> Arguments:
    return {
        "schedule": schedule_path(pipeline),
        "axis": pipeline.axis,
        "virtual": virtual_stages(pipeline),
        "transfers": pipeline.transfers or "",
        "waits": not overlap.p2p,
    }


def split_stages(pipeline: Pipeline) -> Arguments:
    return {
        "counts": pipeline.counts,
        "axis": pipeline.axis,
        "first": pipeline.first,
        "last": pipeline.last,
        "layers": pipeline.layers or (),
        "scatter_gather": pipeline.scatter_gather,
    }


def reduce_gradients(plan: Plan, stated: dist.PlanOp) -> Arguments:
    """How gradients are summed over data-parallel ranks."""
    zero, level = plan.zero, plan.zero_level
    each = (
        plan.reduces_each_microbatch
        # FSDP2 reduces a gradient as it was computed, unless it is a sum over microbatches.
        or (level == 3 and not plan.microbatch_size)
    )
    return {
        "axes": plan.data_axes(stated.batch_dim),
        "shard_axes": zero.axes if zero is not None and level else (),
        "dtype": plan.precision.reduce,
        "own": own_reductions(plan.precision),
        "join": level == 3,
        "units": plan.units or (),
        "one_unit": plan.units == (),
        "flat": zero is not None and zero.shards_flat,
        "overlap": plan.gradients.overlap,
        "late": plan.gradients.late,
        "of_stage": plan.reduces_with_stages,
        "stored": plan.precision.gradients if sums_whole_gradients(plan) else "",
        "own_stored": own_gradients(plan.precision),
        "every_microbatch": each,
        "buffers": buffers_of(plan) is not None and not each,
        "experts_apart": zero is not None and zero.experts == "apart",
    }


def sum_over_pools(plan: Plan, stated: dist.PlanOp) -> Arguments:
    """What of that holds for weights that several pools train."""
    found = reduce_gradients(plan, stated)
    return {name: found[name] for name in ("axes", "shard_axes", "dtype", "own", "flat")}


def insert_optimizer(plan: Plan, stated: dist.PlanOp) -> Arguments:
    optimizer, precision, zero = plan.optimizer, plan.precision, plan.zero
    by_rows = stores_rows(plan)
    shards = zero.axes if zero is not None else ()
    others = [axis for axis in plan.data_axes(stated.batch_dim) if axis not in shards]
    return {
        "algorithm": optimizer.algorithm,
        "states": precision.optimizer,
        "master": precision.master or "",
        "average": optimizer.average or "",
        "block": optimizer.block,
        "frequency": optimizer.frequency,
        "grafted": optimizer.graft,
        "copies": optimizer.copies and not plan.offload.optimizer,
        "by_rows": by_rows,
        "replicas": tuple(others) if by_rows else (),
    }


def update_rows(plan: Plan) -> Arguments:
    states = "fp32" if plan.optimizer.bits == 8 else plan.precision.optimizer
    in_stages = plan.pipeline is not None
    return {"algorithm": plan.optimizer.tables, "states": states, "in_stages": in_stages}


def sum_factors(plan: Plan) -> Arguments:
    return {"by_rows": stores_rows(plan)}


def stores_rows(plan: Plan) -> bool:
    """Whether ranks store rows of each weight under ZeRO."""
    return plan.zero is not None and plan.zero.level == 3 and not plan.zero.shards_flat


def clip_gradients(plan: Plan) -> Arguments:
    """What is to be known of all gradients before they are used."""
    return {
        "norm": plan.optimizer.clip is not None,
        "finite": plan.optimizer.loss_scale == "dynamic",
        "axis": plan.pipeline.axis if plan.pipeline is not None else "",
        "apart": plan.zero_level == 3,
    }


def cast_exchanges(plan: Plan) -> Arguments:
    precision = plan.precision
    inputs, _ = PRODUCTS.get(precision.products or "", ("", ""))
    return {
        "dispatch": precision.dispatch or "",
        "combine": precision.combine or "",
        "inputs": inputs,
    }


def recompute_activations(plan: Plan) -> Arguments:
    return {"what": plan.recompute.what, "modules": plan.recompute.modules or ()}


def documents(packed: Documents | None) -> Arguments:
    """What attention has to know of the documents in a sequence."""
    return {} if packed is None else {"sequence": packed.dim, "lengths": packed.lengths}


def spread_load(load: Load | None) -> Arguments:
    """Experts that are not equally busy, or, without a `load`, devices that send other numbers of tokens."""
    if load is None:
        return {"sent": True}
    rows = [load.shares] if load.shares else []
    if load.file is not None:
        span = load.given["file"]
        rows = read_histograms(os.path.join(os.path.dirname(span.file), load.file), span)
    return {
        "zipf": "" if load.zipf is None else str(load.zipf),
        "seed": load.seed,
        "shares": tuple(" ".join(map(str, row)) for row in rows),
    }


def shard_parameters(plan: Plan) -> Arguments:
    zero, pipeline = plan.zero, plan.pipeline
    assert zero is not None
    virtual = virtual_stages(pipeline) if pipeline is not None else 0
    return {
        "level": zero.level,
        "axes": zero.axes,
        "gather": plan.precision.gather,
        "storage": plan.precision.weights,
        "units": plan.units or (),
        "one_unit": plan.units == (),
        "reshard": zero.reshard,
        "reshard_root": zero.reshards_root,
        "reshard_over": zero.reshard_over,
        "flat": zero.shards_flat,
        "once_per_step": pipeline is not None,
        "evicted": virtual > RESIDENT_STAGES,
        "at_first_use": virtual <= 1,
        "in_forward": plan.overlap.param_gather,
        "prefetch": zero.prefetch,
        "persist": zero.persist,
        "in_buckets": buffers_of(plan) is not None and plan.gradients.bucket_bytes is not None,
    }


def bucket_gradients(plan: Plan) -> Arguments:
    buffers = buffers_of(plan)
    return {
        "bucket_bytes": plan.gradients.bucket_bytes,
        "first_bucket_bytes": plan.gradients.first_bucket_bytes or 0,
        "aligned": buffers.aligned if buffers is not None else 0,
        "bucket_end": buffers.bucket_end if buffers is not None else 0,
        "checked": plan.gradients.check,
    }


def offload_activations(offload: Offload) -> Arguments:
    nvme = "activations" in offload.nvme
    return {"what": offload.activations, "prefetch": offload.prefetch, "nvme": nvme}


def offload_parameters(offload: Offload) -> Arguments:
    return {"prefetch": offload.prefetch, "nvme": "parameters" in offload.nvme}


def offload_optimizer(plan: Plan) -> Arguments:
    offload, zero = plan.offload, plan.zero
    preset = presets.KNOWN.get(zero.like or "") if zero is not None else None
    return {
        "prefetch": offload.prefetch,
        "states": offload.optimizer,
        "parameters": offload.parameters,
        "on_host": offload.update == "host",
        "sums": "device" if zero is None or preset is None else preset.sums_offloaded(zero.level),
        "states_on_nvme": "optimizer" in offload.nvme,
        "parameters_on_nvme": "parameters" in offload.nvme,
    }


def lower_to_tasks(overlap: Overlap) -> Arguments:
    return {"serial": tuple(k for k in COMMUNICATION_KINDS if not getattr(overlap, k))}


def cut_segments(plan: Plan) -> Arguments:
    pipeline = plan.pipeline
    return {"first_whole": pipeline is not None and pipeline.first_backward == "whole"}


def plan_memory(plan: Plan) -> Arguments:
    process = plan.process
    return {
        "gradients": gradient_buffers(plan),
        "dummy_gradients": process.dummy_gradients,
        "transposed_weights": process.transposed_weights,
        "cached_weights": process.cached_weights,
        "workspace": process.workspace,
        "context": process.context,
        "communicator": process.communicator,
        "reserve": process.reserve,
    }


def gradient_buffers(plan: Plan) -> str:
    """What becomes of the memory of gradients, by the stage of ZeRO, and by how often a step reduces them."""
    level = plan.zero_level
    like = plan.zero.like if plan.zero is not None else None
    if like is not None and presets.KNOWN[like].keeps_gradients:
        return KEPT
    if level == 3:
        return COPIED
    return PARTITIONED if level == 2 and plan.reduces_each_microbatch else CONTIGUOUS


def sums_whole_gradients(plan: Plan) -> bool:
    """Whether the whole gradients of shards wait for the last microbatch. FSDP2 adds them up in the dtype that they are reduced in
    (`FSDPParam.to_accumulated_grad_if_needed`); that of its shards is another."""
    is_sum = bool(plan.microbatch_size) and not plan.reduces_each_microbatch
    return plan.zero_level == 3 and is_sum


def buffers_of(plan: Plan) -> presets.Buffers | None:
    """How the framework that ZeRO is like lays out parameters and gradients, if in buffers."""
    zero = plan.zero
    return presets.KNOWN[zero.like].buffers if zero is not None and zero.like else None


def schedule_path(pipeline: Pipeline) -> str:
    """A schedule's name; a file of the user's own as seen from here: the plan names it from its own folder."""
    if not is_file(pipeline) or "schedule" not in pipeline.given:
        return pipeline.schedule
    span = pipeline.given["schedule"]
    path = os.path.join(os.path.dirname(span.file), pipeline.schedule)
    file = path.rpartition(":")[0] or path
    if not path.endswith(".csv") and not may_run(file):
        raise CompileError([unwanted_code(file, span)])
    return path


def is_file(pipeline: Pipeline) -> bool:
    """Whether a schedule is a table or a function of the user's own."""
    return pipeline.schedule.endswith(".csv") or ":" in pipeline.schedule


def schedule_files(plan: Plan) -> list[str]:
    """The file that a plan's schedule is read from, if it is."""
    if plan.pipeline is None or not is_file(plan.pipeline):
        return []
    path = schedule_path(plan.pipeline)
    return [path if path.endswith(".csv") else path.rpartition(":")[0]]


def virtual_stages(pipeline: Pipeline) -> int:
    """Stages of a rank, by the schedule's rule. One that wants another number than the plan says is E0408."""
    entry = CATALOGUE.get(pipeline.schedule)
    wanted = entry.stages_per_rank if entry is not None else None
    if wanted is None:
        return pipeline.virtual_stages
    if "virtual_stages" in pipeline.given and pipeline.virtual_stages != wanted:
        raise refused(
            "E0408",
            f"`{pipeline.schedule}` runs {wanted} virtual {'stage' if wanted == 1 else 'stages'} on each rank, "
            f"not {pipeline.virtual_stages}",
            pipeline.given["virtual_stages"],
            help=f"write `virtual_stages = {wanted}`",
        )
    return wanted
