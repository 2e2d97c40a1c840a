"""The passes of a compilation, in the order in which they run. Each line is a pass, below what it takes for it to run.

What a plan tells a pass is in `stagec.pass_arguments`; what a pass does, on its own page in a folder of `passes/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.ir import Operation
from xdsl.passes import ModulePass

from stagec import pass_arguments as arguments
from stagec.dialects import dist
from stagec.dialects.stg import FACTORED, MUON, PRECONDITIONED
from stagec.passes import load_pass
from stagec.plans.clauses import Plan


def default_pipeline(
    plan: Plan,
    stated: dist.PlanOp,
    sends_unequally: bool = False,
    handed: Sequence[Operation] = (),
) -> Iterator[ModulePass]:
    """The passes that turn a model into what one device of each stage computes, keeps and sends. Those that a plan calls by name come next.

    `sends_unequally`: devices have other sequences, and experts an average of their tokens. `handed` says of one pool of several which it is, and
    what it hands over.
    """
    said = {type(op) for op in handed}
    trains, collectives, precision = stated.is_training, plan.collectives, plan.precision
    like_megatron = collectives.like == "megatron"

    # Which part of the model a pool has
    if dist.TowersOp in said:
        yield make("cut-towers")
    if dist.ExpertsOp in said:
        yield make("cut-experts")

    # Layers of which the first needs no gradient of its input
    if trains:
        yield make("peel-layers")

    # Which part of each tensor a device has
    yield make("propagate-shardings")
    yield make("localize-shapes")
    if collectives.bias == "before":
        yield make("add-biases-first")
    if collectives.exchange == "hierarchical":
        yield make("split-exchanges", **arguments.split_exchanges(plan, stated))
    if collectives.exchange == "all_gather":
        yield make("gather-tokens", rows=like_megatron)
    elif like_megatron:
        yield make("send-weights")

    # The backward pass
    is_quantized = precision.is_quantized
    dequantizes = not is_quantized and precision.product_weights is not None and bool(plan.frozen)
    if is_quantized or dequantizes:
        yield make("quantize-products", **arguments.quantize_products(plan, stated))
    if trains:
        yield make("build-backward")
        if plan.optimizer.tables is not None:
            yield make("update-rows", **arguments.update_rows(plan))
        if is_quantized:
            yield make("gather-quantized")

    # Microbatches, and stages of layers
    yield make("split-microbatches", **arguments.split_microbatches(plan, stated))
    if plan.pipeline is not None:
        yield make("schedule-pipeline", **arguments.schedule_pipeline(plan.pipeline, plan.overlap))
        yield make("split-stages", **arguments.split_stages(plan.pipeline))
        yield make("tie-weights")
        if dist.TowersOp in said and trains:
            yield make("sum-over-pools", **arguments.sum_over_pools(plan, stated))

    # Gradients and the update
    if trains:
        yield make("reduce-gradients", **arguments.reduce_gradients(plan, stated))
        yield make("insert-optimizer", **arguments.insert_optimizer(plan, stated))
        if plan.optimizer.clip is not None or plan.optimizer.loss_scale == "dynamic":
            yield make("clip-gradients", **arguments.clip_gradients(plan))

    # What devices send each other
    if collectives.reduce == "lazy":
        yield make("defer-reductions")
    yield make("decompose-statistics")
    yield make("insert-collectives")
    if precision.dispatch or precision.combine:
        yield make("cast-exchanges", **arguments.cast_exchanges(plan))

    # What the backward pass reads
    if trains:
        if plan.loss_chunks > 1:
            yield make("chunk-loss", chunks=plan.loss_chunks)
        if dequantizes:
            yield make("recompute-activations", what=("dequantize",))
        if plan.recompute.what != ("none",):
            yield make("recompute-activations", **arguments.recompute_activations(plan))
        if precision.saved_values:
            yield make("quantize-saved", what=precision.saved_values, form=precision.saved)
        if collectives.keep == "shard":
            yield make("regather-operands", modules=collectives.keep_in)
        if maxima := arguments.reduced_maxima(plan):
            yield make("reduce-maxima", axes=maxima, wide=precision.unquantized)

    # How busy experts are
    yield make("exchange-counts", gathered=like_megatron)
    if plan.load is not None or sends_unequally:
        yield make("spread-load", **arguments.spread_load(plan.load))

    # Where parameters, gradients and updates are
    if plan.zero_level:
        yield make("shard-parameters", **arguments.shard_parameters(plan))
    if plan.gradients.bucket_bytes is not None:
        yield make("bucket-gradients", **arguments.bucket_gradients(plan))
    if trains and plan.optimizer.algorithm == MUON:
        steps = plan.optimizer.steps
        yield make("orthogonalize-updates", steps=steps, dealt=plan.zero_level == 3)
    if trains and plan.optimizer.algorithm in PRECONDITIONED:
        yield make("precondition-updates")
    if trains and plan.optimizer.algorithm == FACTORED:
        yield make("sum-factors", **arguments.sum_factors(plan))

    # Attention over a split sequence
    documents = arguments.documents(plan.documents)
    if plan.contexts or plan.documents is not None:
        yield make("count-attention-pairs", **documents)
    if plan.contexts:
        yield make("expand-ring-attention", **documents)

    # What the host keeps
    if trains and plan.offload.activations:
        yield make("offload-activations", **arguments.offload_activations(plan.offload))
    if plan.offload.parameters:
        yield make("offload-parameters", **arguments.offload_parameters(plan.offload))
    if trains and (plan.offload.parameters or plan.offload.optimizer):
        yield make("offload-optimizer", **arguments.offload_optimizer(plan))

    # What is done in pieces, and between pools
    if plan.overlap.tp:
        yield make("split-products", pieces=plan.overlap.pieces, bulk=plan.overlap.bulk)
    if said & {dist.TowersOp, dist.ExpertsOp}:
        yield make("hand-over-activations")
    elif handed:
        yield make("hand-over-caches")


BEFORE_ORDER = "cut-segments"
"""The last pass before tasks get their order. Up to there a module is the same however many microbatches there are: their number is a size."""


def final_passes(plan: Plan) -> Iterator[ModulePass]:
    """From there to tasks: their order, their streams, their memory."""
    if any(rule.uneven for rule in plan.rules):
        yield make("split-unevenly")
    yield make("lower-to-tasks", **arguments.lower_to_tasks(plan.overlap))

    # What runs when
    yield make(BEFORE_ORDER, **arguments.cut_segments(plan))
    yield make("build-programs")
    yield make("prefetch-gathers")
    yield make("fill-buckets")
    yield make("place-reductions")
    yield make("interleave-tasks")

    # What lives where, and what waits for what
    yield make("plan-memory", **arguments.plan_memory(plan))
    yield make("chain-streams")
    yield make("order-communication")


def make(name: str, **given: object) -> ModulePass:
    return load_pass(name)(**given)
