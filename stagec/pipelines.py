"""The default pass lists, as data: what a plan's clauses ask for, in the order in which it is done."""

from __future__ import annotations

import os

from xdsl.passes import ModulePass

from stagec.diagnostics import CompileError, Diagnostic
from stagec.dialects import dist
from stagec.dialects.memory import CONTIGUOUS, COPIED, KEPT, PARTITIONED
from stagec.dialects.stg import MUON, PRECONDITIONED
from stagec.passes import load_pass
from stagec.pipeline_schedule import unwanted_code
from stagec.plans import presets
from stagec.plans.clauses import PRODUCTS, Pipeline, Plan
from stagec.plans.expert_histograms import read_histograms
from stagec.schedules.catalogue import CATALOGUE
from stagec.schedules.transfers import RESIDENT_STAGES
from stagec.symbolic import conditions
from stagec.trust import may_read, may_run, outside


def default_pipeline(
    plan: Plan, stated: dist.PlanOp, sends_unequally: bool = False
) -> list[ModulePass]:
    """The passes from a model to the tasks of each rank class. `sends_unequally`: devices have other sequences, and experts an average of their tokens."""
    precision = plan.precision
    passes: list[ModulePass] = [
        make("propagate-shardings"),
        make("localize-shapes"),
    ]
    if plan.collectives.bias == "before":
        passes.append(make("add-biases-first"))
    if plan.collectives.exchange == "hierarchical":
        size = microbatch_size(plan)
        conditions.read(conditions.setting("microbatch", size), size)
        passes.append(make("split-exchanges", batch=stated.batch_dim, microbatch=size))
    like = plan.collectives.like
    if plan.collectives.exchange == "all_gather":
        passes.append(make("gather-tokens", rows=like == "megatron"))
    elif like == "megatron":
        passes.append(make("send-weights"))
    passes += backward_passes(plan) if stated.is_training else []
    passes.append(
        make(
            "split-microbatches",
            dim=stated.batch_dim,
            size=microbatch_size(plan),
            gradients=precision.reduce if sums_whole_gradients(plan) else precision.gradients,
        )
    )
    passes += pipeline_passes(plan)
    if stated.is_training:
        passes += [
            reduce_gradients(plan, stated),
            make(
                "insert-optimizer",
                algorithm=plan.optimizer.algorithm,
                states=precision.optimizer,
                master=precision.master or "",
                average=plan.optimizer.average or "",
                block=plan.optimizer.block,
                frequency=plan.optimizer.frequency,
                grafted=plan.optimizer.graft,
                by_rows=plan.zero is not None
                and plan.zero.level == 3
                and not plan.zero.shards_flat,
            ),
            *clip_passes(plan),
        ]
    if plan.collectives.reduce == "lazy":
        passes.append(make("defer-reductions"))
    passes += [make("decompose-statistics"), make("insert-collectives")]
    if precision.dispatch or precision.combine:
        dispatch, combine = precision.dispatch or "", precision.combine or ""
        passes.append(make("cast-exchanges", dispatch=dispatch, combine=combine))
    if stated.is_training and plan.loss_chunks > 1:
        passes.append(make("chunk-loss", chunks=plan.loss_chunks))
    if stated.is_training:
        passes += saved_value_passes(plan)
    passes += [
        make("exchange-counts", gathered=like == "megatron"),
        *load_passes(plan, sends_unequally),
    ]
    pieces = [make("split-products", pieces=plan.overlap.pieces)] if plan.overlap.tp else []
    return (
        passes
        + storage_passes(plan, stated.is_training)
        + context_passes(plan)
        + offload_passes(plan, stated)
        + pieces
    )


def backward_passes(plan: Plan) -> list[ModulePass]:
    """The gradients, and products of quantized operands before and among them."""
    precision, backward = plan.precision, make("build-backward")
    form = precision.products or ""
    if form not in PRODUCTS:
        return [backward]
    quantize = make(
        "quantize-products",
        inputs=form,
        weights=PRODUCTS[form],
        wide=precision.unquantized,
        wide_weight_gradient=precision.weight_gradients == "bf16",
        stored=precision.product_weights or "",
    )
    return [quantize, backward, make("gather-quantized")]


def context_passes(plan: Plan) -> list[ModulePass]:
    """What attention does where its sequence is split."""
    if not plan.contexts:
        return []
    return [make("count-attention-pairs"), make("expand-ring-attention")]


def pipeline_passes(plan: Plan) -> list[ModulePass]:
    """Cut the model into stages, and order what they run."""
    pipeline = plan.pipeline
    if pipeline is None:
        return []
    return [
        make(
            "schedule-pipeline",
            schedule=schedule_path(pipeline),
            axis=pipeline.axis,
            virtual=virtual_stages(pipeline),
        ),
        make(
            "split-stages",
            counts=pipeline.counts,
            axis=pipeline.axis,
            first=pipeline.first,
            last=pipeline.last,
            layers=pipeline.layers or (),
            scatter_gather=pipeline.scatter_gather,
        ),
        make("tie-weights"),
    ]


def schedule_path(pipeline: Pipeline) -> str:
    """A schedule's name; a file of the user's own as seen from here: the plan names it from its own folder."""
    if not is_file(pipeline) or "schedule" not in pipeline.given:
        return pipeline.schedule
    span = pipeline.given["schedule"]
    folder = os.path.dirname(span.file)
    path = os.path.join(folder, pipeline.schedule)
    file = path.rpartition(":")[0] or path
    if path.endswith(".csv") and not may_read(path, folder):
        raise CompileError([outside(path, span)])
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
        raise CompileError(
            [
                Diagnostic(
                    "E0408",
                    f"`{pipeline.schedule}` runs {wanted} virtual stages on each rank, "
                    f"not {pipeline.virtual_stages}",
                    pipeline.given["virtual_stages"],
                    help=f"write `virtual_stages = {wanted}`",
                )
            ]
        )
    return wanted


def sums_whole_gradients(plan: Plan) -> bool:
    """Whether the whole gradients of shards wait for the last microbatch. FSDP2 adds them up in the dtype that they are reduced in
    (`FSDPParam.to_accumulated_grad_if_needed`); that of its shards is another."""
    is_sharded = plan.zero is not None and plan.zero.level == 3
    return is_sharded and bool(microbatch_size(plan)) and not plan.reduces_each_microbatch


def reduce_gradients(plan: Plan, stated: dist.PlanOp) -> ModulePass:
    """How gradients are summed over data-parallel ranks."""
    zero = plan.zero
    level = zero.level if zero is not None else 0
    each = (
        plan.reduces_each_microbatch
        # FSDP2 reduces a gradient as it was computed, unless it is a sum over microbatches.
        or (level == 3 and not microbatch_size(plan))
    )
    return make(
        "reduce-gradients",
        axes=data_axes(plan, stated.batch_dim),
        shard_axes=zero.axes if zero is not None and level else (),
        dtype=plan.precision.reduce,
        join=level == 3,
        units=plan.units or (),
        one_unit=plan.units == (),
        flat=zero is not None and zero.shards_flat,
        overlap=plan.gradients.overlap,
        late=plan.gradients.late,
        of_stage=plan.reduces_with_stages,
        stored=plan.precision.gradients if sums_whole_gradients(plan) else "",
        every_microbatch=each,
        buffers=buffers_of(plan) is not None and not each,
        experts_apart=zero is not None and zero.experts == "apart",
    )


def buffers_of(plan: Plan) -> presets.Buffers | None:
    """How the framework that ZeRO is like lays out parameters and gradients, if in buffers."""
    zero = plan.zero
    return presets.KNOWN[zero.like].buffers if zero is not None and zero.like else None


def clip_passes(plan: Plan) -> list[ModulePass]:
    """What is to be known of all gradients before they are used."""
    optimizer = plan.optimizer
    norm, finite = optimizer.clip is not None, optimizer.loss_scale == "dynamic"
    if not norm and not finite:
        return []
    is_sharded = plan.zero is not None and plan.zero.level == 3
    axis = plan.pipeline.axis if plan.pipeline is not None else ""
    return [make("clip-gradients", norm=norm, finite=finite, axis=axis, apart=is_sharded)]


def saved_value_passes(plan: Plan) -> list[ModulePass]:
    """What is computed or gathered again instead of saved."""
    passes: list[ModulePass] = []
    recompute = plan.recompute
    if recompute.what != ("none",):
        passes.append(
            make("recompute-activations", what=recompute.what, modules=recompute.modules or ())
        )
    precision = plan.precision
    if precision.saved_values:
        passes.append(make("quantize-saved", what=precision.saved_values, form=precision.saved))
    if plan.collectives.keep == "shard":
        passes.append(make("regather-operands", modules=plan.collectives.keep_in))
    return passes


def load_passes(plan: Plan, sends_unequally: bool) -> list[ModulePass]:
    """Experts that are not equally busy, or that devices send other numbers of tokens."""
    load = plan.load
    if load is None:
        return [make("spread-load", sent=True)] if sends_unequally else []
    rows = [load.shares] if load.shares else []
    if load.file is not None:
        folder = os.path.dirname(load.given["file"].file)
        path = os.path.join(folder, load.file)
        if not may_read(path, folder):
            raise CompileError([outside(path, load.given["file"])])
        rows = read_histograms(path, load.given["file"])
    shares = tuple(" ".join(map(str, row)) for row in rows)
    zipf = "" if load.zipf is None else str(load.zipf)
    return [make("spread-load", zipf=zipf, seed=load.seed, shares=shares)]


def storage_passes(plan: Plan, is_training: bool) -> list[ModulePass]:
    """ZeRO, the buckets in which gradients travel, and updates that are computed of whole matrices."""
    passes: list[ModulePass] = []
    zero, gradients, precision = plan.zero, plan.gradients, plan.precision
    buffers = buffers_of(plan)
    if zero is not None and zero.level:
        passes.append(
            make(
                "shard-parameters",
                level=zero.level,
                axes=zero.axes,
                gather=precision.gather,
                storage=precision.weights,
                units=plan.units or (),
                one_unit=plan.units == (),
                reshard=zero.reshard,
                reshard_root=zero.reshards_root,
                flat=zero.shards_flat,
                once_per_step=plan.pipeline is not None,
                evicted=plan.pipeline is not None
                and virtual_stages(plan.pipeline) > RESIDENT_STAGES,
                at_first_use=plan.pipeline is not None and virtual_stages(plan.pipeline) == 1,
                prefetch=zero.prefetch,
                in_buckets=buffers is not None and gradients.bucket_bytes is not None,
            )
        )
    if gradients.bucket_bytes is not None:
        passes.append(
            make(
                "bucket-gradients",
                bucket_bytes=gradients.bucket_bytes,
                first_bucket_bytes=gradients.first_bucket_bytes or 0,
                aligned=buffers.aligned if buffers is not None else 0,
                bucket_end=buffers.bucket_end if buffers is not None else 0,
            )
        )
    if is_training and plan.optimizer.algorithm == MUON:
        is_dealt = zero is not None and zero.level == 3
        passes.append(make("orthogonalize-updates", steps=plan.optimizer.steps, dealt=is_dealt))
    if is_training and plan.optimizer.algorithm in PRECONDITIONED:
        passes.append(make("precondition-updates"))
    return passes


def offload_passes(plan: Plan, stated: dist.PlanOp) -> list[ModulePass]:
    """What is kept in the memory of the host."""
    offload = plan.offload
    passes: list[ModulePass] = []
    if offload.activations and stated.is_training:
        passes.append(
            make("offload-activations", what=offload.activations, prefetch=offload.prefetch)
        )
    if offload.parameters:
        passes.append(make("offload-parameters", prefetch=offload.prefetch))
    if (offload.parameters or offload.optimizer) and stated.is_training:
        passes.append(
            make(
                "offload-optimizer",
                prefetch=offload.prefetch,
                states=offload.optimizer,
                parameters=offload.parameters,
                on_host=offload.update == "host",
                nvme=offload.nvme,
            )
        )
    return passes


def final_passes(plan: Plan) -> list[ModulePass]:
    """What comes after a user's own passes."""
    overlap = plan.overlap
    kinds = ("tp", "cp", "ep", "zero", "p2p")
    serial = tuple(kind for kind in kinds if not getattr(overlap, kind))
    return [
        *([make("split-unevenly")] if any(rule.uneven for rule in plan.rules) else []),
        make("lower-to-tasks", serial=serial),
        make(
            "cut-segments",
            first_whole=plan.pipeline is not None and plan.pipeline.first_backward == "whole",
        ),
        make("build-programs"),
        make("prefetch-gathers"),
        make("fill-buckets"),
        make("place-reductions"),
        make("interleave-tasks"),
        make(
            "plan-memory",
            gradients=gradient_buffers(plan),
            dummy_gradients=plan.process.dummy_gradients,
            transposed_weights=plan.process.transposed_weights,
            workspace=plan.process.workspace,
            context=plan.process.context,
            communicator=plan.process.communicator,
            reserve=plan.process.reserve,
        ),
        make("chain-streams"),
        make("order-communication"),
    ]


def pool_passes(is_pool: bool) -> list[ModulePass]:
    """What comes after the passes of its plan, in one pool of several."""
    return [make("hand-over-caches")] if is_pool else []


def gradient_buffers(plan: Plan) -> str:
    """What becomes of the memory of gradients, by the stage of ZeRO, and by how often a step reduces them."""
    level = plan.zero.level if plan.zero is not None else 0
    like = plan.zero.like if plan.zero is not None else None
    if like is not None and presets.KNOWN[like].keeps_gradients:
        return KEPT
    if level == 3:
        return COPIED
    return PARTITIONED if level == 2 and plan.reduces_each_microbatch else CONTIGUOUS


def make(name: str, **arguments: object) -> ModulePass:
    return load_pass(name)(**arguments)


def microbatch_size(plan: Plan) -> int:
    """Sequences per microbatch on one data-parallel rank; 0 if the plan says nothing: all at once."""
    if plan.pipeline is not None:
        return plan.pipeline.microbatch
    return plan.microbatch or 0


def data_axes(plan: Plan, batch_dim: str) -> tuple[str, ...]:
    """The axes whose ranks hold different data: those that split the batch, and contexts."""
    axes = [a for rule in plan.rules if batch_dim in rule.dims for a in rule.axes]
    axes += [
        a for context in plan.contexts for a in plan.products.get(context.axis, (context.axis,))
    ]
    return tuple(dict.fromkeys(axes))
