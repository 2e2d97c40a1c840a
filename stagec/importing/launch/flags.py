"""Tables: what each flag or field of a launcher says in a plan.

A row is a name, what it sets of a `Launch`, how its value is read, and the clause that it becomes. Names without effect on a plan
stand in lists; a name in neither is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from stagec.diagnostics import did_you_mean
from stagec.importing.launch.training_run import Launch, NotAPlan


@dataclass(frozen=True)
class Word:
    """What a flag says."""

    clause: str
    """For people: the clause that it becomes."""
    apply: Callable[[Launch, Any], None]
    has_value: bool = True


def size(
    name: str, least: int = 1, most: int | None = None, unsaid: int | None = None
) -> Callable[[Launch, Any], None]:
    """A whole number in a range, or one that says nothing."""

    def apply(run: Launch, value: Any) -> None:
        number = whole(value)
        if number == unsaid:
            return
        if number < least or (most is not None and number > most):
            said = f"from {least} on" if most is None else f"from {least} to {most}"
            raise NotAPlan(f"`{value}` is not a number {said}", f"write a number {said}")
        run.set(name, number)

    return apply


def none_of(value: Any, known: Collection[str]) -> NotAPlan:
    help_ = did_you_mean(str(value), known) or "write one of these"
    return NotAPlan(f"`{value}` is none of {', '.join(known)}", help_)


def whole(value: Any) -> int:
    """A whole number, also one that is written `5e8`."""
    try:
        number = float(str(value).replace("_", ""))
        if number != int(number):
            raise ValueError
        return int(number)
    except (ValueError, OverflowError):
        raise NotAPlan(f"`{value}` is not a whole number", "write a whole number") from None


def number(value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = -1.0
    if not 0 <= found < float("inf"):
        raise NotAPlan(f"`{value}` is not a number from 0 on", "write a number from 0 on")
    return found


def clipping(run: Launch, value: Any) -> None:
    """The norm to which gradients are clipped; none with 0."""
    run.clip = number(value)


def clipping_of_trainer(run: Launch, value: Any) -> None:
    """`auto` is what the trainer of transformers clips to (`max_grad_norm`), 1 unless its user says otherwise."""
    clipping(run, 1 if value == "auto" else value)


def loss_scale(run: Launch, value: Any) -> None:
    """What the loss is multiplied by; with 0 by what fits."""
    run.fixed_loss_scale = number(value) > 0


def constant(name: str, value: Any) -> Callable[[Launch, Any], None]:
    return lambda run, _: run.set(name, value)


def truth(name: str) -> Callable[[Launch, Any], None]:
    """Yes or no; a flag without a value says yes."""
    return lambda run, value: run.set(name, value is None or is_true(value))


def is_true(value: Any) -> bool:
    return str(value).strip().lower() in ("true", "1", "yes", "on")


def when(name: str, value: Any) -> Callable[[Launch, Any], None]:
    """Sets a value if the field is true."""

    def apply(run: Launch, given: Any) -> None:
        if is_true(given):
            run.set(name, value)

    return apply


def flag(name: str, value: Any) -> Callable[[Launch, Any], None]:
    """Sets a value if the flag stands there, and says nothing or yes."""
    return lambda run, given: run.set(name, value if given is None or is_true(given) else "")


def titan_offload(run: Launch, value: Any) -> None:
    """FSDP2's `CPUOffloadPolicy`: shards, their gradients and the optimizer's state are on the host."""
    for name in ("offload_optimizer", "offload_parameters"):
        when(name, "cpu")(run, value)


def shards_at_least(level: int) -> Callable[[Launch, Any], None]:
    """ZeRO of that level, unless a strategy says another or the value says no."""

    def apply(run: Launch, value: Any) -> None:
        if value is None or is_true(value):
            run.zero = max(run.zero, level)

    return apply


def fully_sharded(run: Launch, value: Any) -> None:
    """FSDP, all of it unless a strategy says less."""
    if value is None or is_true(value):
        run.fsdp = True


def half(dtype: str) -> Callable[[Launch, Any], None]:
    def apply(run: Launch, value: Any) -> None:
        if value is None or is_true(value):
            if run.half not in ("", dtype):
                # An assertion of `validate_args` in Megatron-LM's `training/arguments.py`, and of `DeepSpeedConfig` in DeepSpeed's `runtime/config.py`.
                raise NotAPlan(f"{run.half} is said too", "leave one of them out")
            run.half = dtype
            gradients = "fp32" if dtype == "bf16" else "fp16"
            run.precision = {
                "weights": dtype,
                "activations": dtype,
                "gradients": gradients,
                "optimizer": "fp32",
            }

    return apply


def gradients_in(dtype: str) -> Callable[[Launch, Any], None]:
    def apply(run: Launch, value: Any) -> None:
        if value is None or is_true(value):
            run.precision["gradients"] = dtype

    return apply


def one_of(name: str, values: Mapping[str, Any]) -> Callable[[Launch, Any], None]:
    def apply(run: Launch, value: Any) -> None:
        key = str(value).strip().lower()
        if key not in values:
            raise none_of(value, values)
        run.set(name, values[key])

    return apply


def granularity(run: Launch, value: Any) -> None:
    # Its checkpoints run the whole function again: `CheckpointFunction` in megatron/core/tensor_parallel/random.py.
    one_of("recompute", {"full": "whole", "selective": "attention", "none": "", "null": ""})(
        run, value
    )


OF_ALL_LAYERS = "recompute whole, if each layer is computed again by itself"


def recompute_method(run: Launch, value: Any) -> None:
    known = {"uniform": "uniform", "block": "block", "none": "", "null": ""}
    one_of("recompute_method", known)(run, value)


def recompute_layers(run: Launch, value: Any) -> None:
    if str(value).strip().lower() not in ("", "0", "none", "null"):
        size("recompute_layers")(run, value)


def checkpoint_method(run: Launch, value: Any) -> None:
    run.recompute = "whole"
    recompute_method(run, value)


def megatron_optimizer(run: Launch, value: Any) -> None:
    known = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd { momentum = 0.9 }", "muon": "muon"}
    one_of("optimizer", known)(run, value)


def products_in(dtype: str) -> Callable[[Launch, Any], None]:
    """Products of linear layers in a narrower type, unless the value says no."""

    def apply(run: Launch, value: Any) -> None:
        if str(value).strip().lower() not in ("", "0", "false", "null", "none"):
            run.products = dtype

    return apply


RECIPES = ("delayed", "tensorwise", "blockwise", "mxfp8")
"""What scales products in fp8 have (`Fp8Recipe` of Megatron-LM)."""


def scaled(run: Launch, value: Any) -> None:
    if value is not None and str(value) != "null":
        one_of("recipe", {each: each for each in RECIPES})(run, value)


def stored_in_fp8(run: Launch, value: Any) -> None:
    if value is None or is_true(value):
        run.stores_fp8 = True


def gradient_dtype(run: Launch, value: Any) -> None:
    names = {"bf16": "bf16", "fp32": "fp32", "16": "fp16", "32": "fp32"}
    if str(value) not in names:
        raise none_of(value, names)
    run.precision["gradients"] = names[str(value)]


def bucket_mebibytes(run: Launch, value: Any) -> None:
    run.bucket_bytes = whole(value) * 2**20


def trainer_precision(run: Launch, value: Any) -> None:
    """The precision of Lightning's trainer: `bf16`, `bf16-mixed`, `16` or `32`."""
    kind = str(value).removesuffix("-mixed")
    if kind not in ("bf16", "16", "32", "fp16"):
        raise none_of(value, ("bf16", "16", "32"))
    if kind != "32":
        kept = run.precision.get("gradients")
        half("bf16" if kind == "bf16" else "fp16")(run, None)
        run.precision["gradients"] = kept or run.precision["gradients"]


def distributed_adam(run: Launch, value: Any) -> None:
    run.optimizer = "adamw"
    run.zero = max(run.zero, 1)


DISPATCHERS = {"allgather": "all_gather", "alltoall": "", "alltoall_seq": "", "flex": ""}


def dispatcher(run: Launch, value: Any) -> None:
    one_of("exchange", DISPATCHERS)(run, value)
    run.is_flexible = str(value) == "flex"


UNITS = Word("device { exchange_units = N } of a `flex` dispatcher", size("exchange_units"))
FSDP_SHARDING = {"full": 3, "hybrid": 3, "grad": 2}

CONTEXTS = {"p2p": "ring", "all_gather": "all_gather", "allgather": "all_gather", "a2a": "ulysses"}

LOSSES = {"te": "te", "native": "native"}

SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}

MEGATRON: dict[str, Word] = {
    "tensor-model-parallel-size": Word("mesh tp = N; shard H, K, F, V over tp", size("tp")),
    "pipeline-model-parallel-size": Word("mesh pp = N; pipeline L over pp", size("pp")),
    "context-parallel-size": Word("mesh cp = N; shard S over cp; context cp", size("cp")),
    "expert-model-parallel-size": Word("mesh ep = N, of cp first; shard X over ep", size("ep")),
    "expert-tensor-parallel-size": Word("experts whole (1) or cut as the rest", size("etp")),
    "sequence-parallel": Word("shard S over tp", truth("sequence_parallel"), False),
    "num-layers-per-virtual-pipeline-stage": Word(
        "pipeline { virtual_stages = layers / pp / N }", size("layers_per_virtual_stage")
    ),
    "num-virtual-stages-per-pipeline-rank": Word(
        "pipeline { virtual_stages = N }", size("virtual_stages")
    ),
    "decoder-first-pipeline-num-layers": Word(
        "pipeline { layers = [N, ...] }", size("first_layers", least=0)
    ),
    "decoder-last-pipeline-num-layers": Word(
        "pipeline { layers = [..., N] }", size("last_layers", least=0)
    ),
    "account-for-embedding-in-pipeline-split": Word(
        "pipeline { first = -1 }", truth("embedding_in_split"), False
    ),
    "account-for-loss-in-pipeline-split": Word(
        "pipeline { last = -1 }", truth("loss_in_split"), False
    ),
    "num-layers": Word("layers, for virtual and uneven stages", size("layers")),
    "num-experts": Word("shard T over dp, cp", size("experts", least=0)),
    "num-query-groups": Word(
        "shard K over tp { replicate = true }, of fewer than ranks (it gathers instead)",
        size("key_heads"),
    ),
    "make-vocab-size-divisible-by": Word(
        "shard V over tp { pad = N }; 128 without it", size("vocabulary_multiple")
    ),
    "micro-batch-size": Word("pipeline { microbatch = N }, or microbatch N", size("micro_batch")),
    "global-batch-size": Word("set B = N", size("global_batch")),
    "seq-length": Word("set S = N", size("sequence")),
    "cp-comm-type": Word("context cp { method }", one_of("context", CONTEXTS)),
    "use-distributed-optimizer": Word("zero 1 over dp, cp", shards_at_least(1), False),
    "data-parallel-sharding-strategy": Word("zero 0 to 3", one_of("strategy", SHARDING)),
    "use-torch-fsdp2": Word("zero 3 over dp, cp", shards_at_least(3), False),
    "use-megatron-fsdp": Word("zero 3 over dp, cp", fully_sharded, False),
    "use-custom-fsdp": Word("zero 3 over dp, cp", fully_sharded, False),
    "recompute-activations": Word("recompute attention", constant("recompute", "attention"), False),
    "recompute-granularity": Word("recompute whole, or attention", granularity),
    "recompute-method": Word(OF_ALL_LAYERS, recompute_method),
    "recompute-num-layers": Word(OF_ALL_LAYERS, recompute_layers),
    "bf16": Word("precision { weights = bf16, gradients = fp32, ... }", half("bf16"), False),
    "fp16": Word("precision { weights = fp16, ... }", half("fp16"), False),
    "accumulate-allreduce-grads-in-fp32": Word(
        "precision { gradients = fp32 }", gradients_in("fp32"), False
    ),
    "grad-reduce-in-bf16": Word("precision { gradients = bf16 }", gradients_in("bf16"), False),
    "optimizer": Word("optimizer", megatron_optimizer),
    "clip-grad": Word("optimizer { clip = N }; 1 without it", clipping),
    "loss-scale": Word("optimizer { loss_scale = dynamic } in fp16 without it", loss_scale),
    "optimizer-cpu-offload": Word(
        "offload { optimizer = true, update = host }", flag("offload_optimizer", "cpu"), False
    ),
    "overlap-grad-reduce": Word("gradients { overlap = true }", truth("overlap_gradients"), False),
    "overlap-param-gather": Word(
        "overlap { param_gather = true }", truth("overlap_parameters"), False
    ),
    "tp-comm-overlap": Word(
        "overlap { tp = true }; without it, where S is split over tp, in one piece",
        truth("overlap_tensor"),
        False,
    ),
    "overlap-moe-expert-parallel-comm": Word(
        "overlap { ep = true }", truth("overlap_experts"), False
    ),
    "moe-token-dispatcher-type": Word("collectives { exchange = all_gather }", dispatcher),
    "moe-flex-dispatcher-num-sms": UNITS,
    "moe-deepep-num-sms": UNITS,
    "moe-hybridep-num-sms": UNITS,
    "use-transformer-engine-op-fuser": Word(
        "device { fused_activations = true }, without experts, in fp8 or mxfp8",
        truth("fuses_ops"),
        False,
    ),
    "muon-num-ns-steps": Word("optimizer muon { steps = N }", size("steps")),
    "no-overlap-p2p-communication": Word(
        "overlap { p2p = false }", constant("overlap_pipeline", False), False
    ),
    "ddp-bucket-size": Word(
        "gradients { bucket_bytes = N elements }", size("bucket_elements", least=0)
    ),
    "ddp-average-in-collective": Word(
        "gradients { average = before } without it", constant("averages_before", False), False
    ),
    "no-check-for-nan-in-loss-and-grad": Word(
        "gradients { check = true } without it", constant("checks", False), False
    ),
    "use-tp-pp-dp-mapping": Word("rank_order", constant("rank_order", "tp-pp-dp"), False),
    "nproc_per_node": Word("GPUs of a node", size("gpus_per_node")),
    "nproc-per-node": Word("GPUs of a node", size("gpus_per_node")),
    "nnodes": Word("nodes", size("nodes")),
    "world-size": Word("GPUs", size("gpus")),
    "fp8-format": Word(
        "precision { products = fp8 }, process { cached_weights = true } unless weights are stored so",
        products_in("fp8"),
    ),
    "fp8-hybrid": Word("precision { products = fp8 }", constant("products", "fp8"), False),
    "fp8-recipe": Word(
        "precision { scaling }, or products = fp8_1x128, mxfp8",
        scaled,
    ),
    "cross-entropy-loss-fusion": Word(
        "precision { loss = fp32 } without it", truth("fuses_loss"), False
    ),
    "cross-entropy-fusion-impl": Word(
        "precision { loss = fp32 }, unless it is `te`", one_of("fused_loss", LOSSES)
    ),
    "tp-only-amax-red": Word("precision { maxima = tp }", truth("agrees_in_tp"), False),
    "fp4-format": Word("precision { products = fp4 }", products_in("fp4")),
    "fp8-param-gather": Word("precision { product_weights = fp8 }", stored_in_fp8, False),
    "reuse-grad-buf-for-mxfp8-param-ag": Word(
        "precision { product_gather = bf16 }", truth("gathers_wide"), False
    ),
    "disable-parameter-transpose-cache": Word(
        "process { cached_weights = true } without it", truth("quantizes_anew"), False
    ),
    "virtual-pipeline-model-parallel-size": Word(
        "pipeline { virtual_stages = N }", size("virtual_stages")
    ),
    "torch-fsdp2-no-reshard-after-forward": Word(
        "zero 3 { reshard = false }", constant("reshard", False), False
    ),
    "model-parallel-size": Word("mesh tp = N, before there were pipelines", size("tp")),
    "batch-size": Word("microbatch N, before there were global batches", size("micro_batch")),
    "activations-checkpoint-method": Word("recompute whole", checkpoint_method),
    "activations-checkpoint-num-layers": Word(OF_ALL_LAYERS, recompute_layers),
    "checkpoint-activations": Word("recompute whole", constant("recompute", "whole"), False),
}
"""Flags of Megatron-LM and Megatron-Core, and of torchrun before them."""

FIELDS: dict[str, Word] = {
    "tensor_model_parallel_size": MEGATRON["tensor-model-parallel-size"],
    "pipeline_model_parallel_size": MEGATRON["pipeline-model-parallel-size"],
    "virtual_pipeline_model_parallel_size": MEGATRON["virtual-pipeline-model-parallel-size"],
    "context_parallel_size": MEGATRON["context-parallel-size"],
    "expert_model_parallel_size": MEGATRON["expert-model-parallel-size"],
    "expert_tensor_parallel_size": MEGATRON["expert-tensor-parallel-size"],
    "sequence_parallel": MEGATRON["sequence-parallel"],
    "num_layers": MEGATRON["num-layers"],
    "num_moe_experts": MEGATRON["num-experts"],
    "num_query_groups": MEGATRON["num-query-groups"],
    "make_vocab_size_divisible_by": MEGATRON["make-vocab-size-divisible-by"],
    "num_layers_in_first_pipeline_stage": MEGATRON["decoder-first-pipeline-num-layers"],
    "num_layers_in_last_pipeline_stage": MEGATRON["decoder-last-pipeline-num-layers"],
    "account_for_embedding_in_pipeline_split": MEGATRON["account-for-embedding-in-pipeline-split"],
    "account_for_loss_in_pipeline_split": MEGATRON["account-for-loss-in-pipeline-split"],
    "micro_batch_size": MEGATRON["micro-batch-size"],
    "global_batch_size": MEGATRON["global-batch-size"],
    "seq_length": MEGATRON["seq-length"],
    "encoder_seq_length": MEGATRON["seq-length"],
    "cp_comm_type": MEGATRON["cp-comm-type"],
    "cross_entropy_loss_fusion": MEGATRON["cross-entropy-loss-fusion"],
    "cross_entropy_fusion_impl": MEGATRON["cross-entropy-fusion-impl"],
    "clip_grad": MEGATRON["clip-grad"],
    "gradient_clip_val": MEGATRON["clip-grad"],
    "use_distributed_optimizer": MEGATRON["use-distributed-optimizer"],
    "use_megatron_fsdp": MEGATRON["use-megatron-fsdp"],
    "use_custom_fsdp": MEGATRON["use-custom-fsdp"],
    "use_torch_fsdp2": MEGATRON["use-torch-fsdp2"],
    "data_parallel_sharding_strategy": MEGATRON["data-parallel-sharding-strategy"],
    "recompute_granularity": MEGATRON["recompute-granularity"],
    "activations_checkpoint_granularity": MEGATRON["recompute-granularity"],
    "recompute_method": MEGATRON["recompute-method"],
    "activations_checkpoint_method": MEGATRON["recompute-method"],
    "recompute_num_layers": MEGATRON["recompute-num-layers"],
    "activations_checkpoint_num_layers": MEGATRON["recompute-num-layers"],
    "bf16": MEGATRON["bf16"],
    "fp16": MEGATRON["fp16"],
    "grad_reduce_in_fp32": MEGATRON["accumulate-allreduce-grads-in-fp32"],
    "overlap_grad_reduce": MEGATRON["overlap-grad-reduce"],
    "overlap_param_gather": MEGATRON["overlap-param-gather"],
    "tp_comm_overlap": MEGATRON["tp-comm-overlap"],
    "overlap_moe_expert_parallel_comm": MEGATRON["overlap-moe-expert-parallel-comm"],
    "moe_token_dispatcher_type": MEGATRON["moe-token-dispatcher-type"],
    "moe_flex_dispatcher_num_sms": UNITS,
    "moe_deepep_num_sms": UNITS,
    "moe_hybridep_num_sms": UNITS,
    "optimizer_cpu_offload": MEGATRON["optimizer-cpu-offload"],
    "muon_num_ns_steps": MEGATRON["muon-num-ns-steps"],
    "use_tp_pp_dp_mapping": Word("rank_order", when("rank_order", "tp-pp-dp")),
    "overlap_p2p_comm": Word("overlap { p2p }", truth("overlap_pipeline")),
    "bucket_size": MEGATRON["ddp-bucket-size"],
    "check_for_nan_in_grad": Word("gradients { check = true }", truth("checks")),
    "num_nodes": MEGATRON["nnodes"],
    "num_gpus_per_node": MEGATRON["nproc-per-node"],
    "gpus_per_node": MEGATRON["nproc-per-node"],
    "num_gpus": MEGATRON["world-size"],
    "devices": MEGATRON["nproc-per-node"],
    "fp8": MEGATRON["fp8-format"],
    "fp8_recipe": MEGATRON["fp8-recipe"],
    "use_transformer_engine_op_fuser": MEGATRON["use-transformer-engine-op-fuser"],
    "tp_only_amax_red": MEGATRON["tp-only-amax-red"],
    "reduce_amax": Word("precision { maxima = none } if it is false", truth("agrees")),
    "fp4": MEGATRON["fp4-format"],
    "fp8_param_gather": MEGATRON["fp8-param-gather"],
    "disable_parameter_transpose_cache": MEGATRON["disable-parameter-transpose-cache"],
    "reuse_grad_buf_for_mxfp8_param_ag": MEGATRON["reuse-grad-buf-for-mxfp8-param-ag"],
    "ub_tp_comm_overlap": MEGATRON["tp-comm-overlap"],
    "overlap_grad_sync": MEGATRON["overlap-grad-reduce"],
    "overlap_param_sync": MEGATRON["overlap-param-gather"],
    "grad_sync_dtype": Word("precision { gradients }", gradient_dtype),
    "bucket_cap_mb": Word("gradients { bucket_bytes = N MiB }", bucket_mebibytes),
    "precision": Word("precision { weights, ... }", trainer_precision),
    "fsdp": MEGATRON["use-megatron-fsdp"],
    "fsdp_sharding_strategy": Word("zero 2 or 3", one_of("strategy", FSDP_SHARDING)),
}
"""Fields of recipes of NeMo and Megatron-Bridge."""

NEMO_OPTIMIZERS: dict[str, Word] = {
    "distributed_fused_adam": Word("zero 1 over dp, cp; optimizer adamw", distributed_adam),
    "mcore_distributed_optim": Word("zero 1 over dp, cp; optimizer adamw", distributed_adam),
    "fused_adam": Word("optimizer adamw", constant("optimizer", "adamw")),
    "adamw": Word("optimizer adamw", constant("optimizer", "adamw")),
}
"""Names of optimizers in recipes of NeMo."""

MLPERF: dict[str, Word] = {
    "TENSOR_MODEL_PARALLEL": FIELDS["tensor_model_parallel_size"],
    "TP": FIELDS["tensor_model_parallel_size"],
    "PIPELINE_MODEL_PARALLEL": FIELDS["pipeline_model_parallel_size"],
    "PP": FIELDS["pipeline_model_parallel_size"],
    "INTERLEAVED_PIPELINE": FIELDS["virtual_pipeline_model_parallel_size"],
    "VIRTUAL_PIPELINE_MODEL_PARALLEL": FIELDS["virtual_pipeline_model_parallel_size"],
    "CONTEXT_PARALLEL": FIELDS["context_parallel_size"],
    "CP": FIELDS["context_parallel_size"],
    "EXPERT_PARALLEL": FIELDS["expert_model_parallel_size"],
    "SEQ_PARALLEL": FIELDS["sequence_parallel"],
    "SEQUENCE_PARALLEL": FIELDS["sequence_parallel"],
    "SP": FIELDS["sequence_parallel"],
    "ASYM_PP_EMBED": FIELDS["account_for_embedding_in_pipeline_split"],
    "ASYM_PP_LOSS": FIELDS["account_for_loss_in_pipeline_split"],
    "FP8": FIELDS["fp8"],
    "FP4": FIELDS["fp4"],
    "FP8_PARAM_GATHER": FIELDS["fp8_param_gather"],
    "FP8_PARAMS": FIELDS["fp8_param_gather"],
    "FP8_RECIPE": FIELDS["fp8_recipe"],
    "FP8_REDUCE_AMAX": FIELDS["reduce_amax"],
    "TP_ONLY_AMAX_RED": FIELDS["tp_only_amax_red"],
    "TP_PP_DP_MAPPING": FIELDS["use_tp_pp_dp_mapping"],
    "BUCKET_SIZE": FIELDS["bucket_size"],
    "MICRO_BATCH_SIZE": FIELDS["micro_batch_size"],
    "MBS": FIELDS["micro_batch_size"],
    "GLOBAL_BATCH_SIZE": FIELDS["global_batch_size"],
    "GBS": FIELDS["global_batch_size"],
    "MINIBS": Word(
        "microbatches: sequences of a data-parallel rank in a step", size("accumulation")
    ),
    "SEQ_LEN": FIELDS["seq_length"],
    "DGXNNODES": FIELDS["num_nodes"],
    "DGXNGPU": FIELDS["num_gpus_per_node"],
    "USE_DIST_OPTIMIZER": FIELDS["use_distributed_optimizer"],
    "USE_TE_OPS": FIELDS["use_transformer_engine_op_fuser"],
    "OVERLAP_GRAD_REDUCE": FIELDS["overlap_grad_reduce"],
    "OVERLAP_PARAM_GATHER": FIELDS["overlap_param_gather"],
    "TP_COMM_OVERLAP": FIELDS["tp_comm_overlap"],
    "OVERLAP_P2P_COMM": FIELDS["overlap_p2p_comm"],
    "ACT_CKPT_GRANULARITY": FIELDS["recompute_granularity"],
    "FSDP": FIELDS["use_megatron_fsdp"],
    "CROSS_ENTROPY_LOSS_FUSION": FIELDS["cross_entropy_loss_fusion"],
    "CE_FUSION_IMPL": FIELDS["cross_entropy_fusion_impl"],
    "DDP_BUCKET_SIZE": FIELDS["bucket_size"],
}
"""Variables of configuration scripts of MLPerf Training submissions with NeMo."""

SCHEDULES = {
    "1f1b": "1f1b",
    "interleaved1f1b": "interleaved_1f1b",
    "gpipe": "gpipe",
    "interleavedzerobubble": "interleaved_zero_bubble",
    "loopedbfs": "looped_bfs",
    "zbvzerobubble": "zb_v",
    "dualpipev": "dualpipe_v",
}


def titan_schedule(run: Launch, value: Any) -> None:
    one_of("schedule", SCHEDULES)(run, value)
    if run.schedule not in ("1f1b", "gpipe"):
        run.virtual_stages = 2


def titan_checkpoint(run: Launch, value: Any) -> None:
    one_of("recompute", {"none": "", "full": "full", "selective": "", "memory_budget": ""})(
        run, value
    )


def titan_dtype(*settings: str) -> Callable[[Launch, Any], None]:
    def apply(run: Launch, value: Any) -> None:
        names = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}
        dtype = names.get(str(value))
        if dtype is None:
            raise none_of(value, names)
        run.precision |= dict.fromkeys(settings, dtype)

    return apply


def titan_shards(run: Launch, value: Any) -> None:
    """-1, as without it: as many as other degrees leave of all GPUs."""
    run.shards = shards if (shards := whole(value)) > 0 else None


def titan_converters(run: Launch, value: Any) -> None:
    """What rewrites the model: `float8` and `mx` have products in fp8, whose scales are of the tensors themselves, or of their blocks."""
    names = [str(name) for name in value] if isinstance(value, list) else []
    for part, recipe in (("float8", "tensorwise"), ("mx", "mxfp8")):
        if any(part in name for name in names):
            run.products, run.recipe = "fp8", recipe


def titan_components(run: Launch, value: Any) -> None:
    """What is compiled, if anything is."""
    run.compiles_loss = "loss" in (value if isinstance(value, list) else [value])


TORCHTITAN: dict[str, Word] = {
    "parallelism.data_parallel_shard_degree": Word("mesh dp or fsdp; zero 3", titan_shards),
    "parallelism.data_parallel_replicate_degree": Word(
        "mesh rep = N; dp = rep * fsdp", size("replicas")
    ),
    "parallelism.tensor_parallel_degree": Word(
        "mesh tp = N; shard H, K, F, V, S over tp", size("tp")
    ),
    "parallelism.pipeline_parallel_degree": Word("mesh pp = N; pipeline L over pp", size("pp")),
    "parallelism.context_parallel_degree": Word("mesh cp = N; context cp", size("cp")),
    "parallelism.expert_parallel_degree": Word(
        "mesh ep = N, of cp first; shard X over ep", size("ep")
    ),
    "parallelism.expert_tensor_parallel_degree": Word(
        "experts whole (1) or cut as the rest", size("etp")
    ),
    "parallelism.pipeline_parallel_schedule": Word("pipeline { schedule }", titan_schedule),
    "parallelism.pipeline_parallel_microbatch_size": Word(
        "pipeline { microbatch = N }; 1 without it", size("pipeline_batch")
    ),
    "parallelism.context_parallel_rotate_method": Word(
        "context cp { method }", one_of("context", {"allgather": "all_gather", "alltoall": "ring"})
    ),
    "parallelism.fsdp_reshard_after_forward": Word(
        "zero 3 { reshard }", one_of("reshard", {"default": True, "always": True, "never": False})
    ),
    "parallelism.enable_async_tensor_parallel": Word("overlap { tp }", truth("overlap_tensor")),
    "training.local_batch_size": Word("microbatch N; in a pipeline set B", size("micro_batch")),
    "training.batch_size": Word("microbatch N; in a pipeline set B", size("micro_batch")),
    "training.global_batch_size": Word("set B = N", size("global_batch", unsaid=-1)),
    "training.seq_len": Word("set S = N", size("sequence")),
    "training.mixed_precision_param": Word("precision { activations }", titan_dtype("activations")),
    "training.mixed_precision_reduce": Word("precision { reduce }", titan_dtype("reduce")),
    "training.enable_cpu_offload": Word(
        "offload { optimizer = true, parameters = true, update = host }", titan_offload
    ),
    "activation_checkpoint.mode": Word(
        "recompute full; `selective` in no clause", titan_checkpoint
    ),
    "model.converters": Word(
        "precision { products = fp8, scaling = current }, or products = mxfp8", titan_converters
    ),
    "compile.enable": Word("precision { loss = fp32 } without it", truth("compiles")),
    "training.compile": Word("precision { loss = fp32 } without it", truth("compiles")),
    "compile.components": Word("precision { loss = fp32 } without `loss`", titan_components),
    "training.max_norm": Word("optimizer { clip = N }; 1 without it", clipping),
    "optimizer.name": Word("optimizer", one_of("optimizer", {"adamw": "adamw", "adam": "adam"})),
}
"""Settings of torchtitan's TOML files."""

PERSISTENT = Word("zero 3 { persist = N }", size("persist", least=0))

HOSTS = {"cpu": "cpu", "nvme": "nvme", "none": ""}

DEEPSPEED: dict[str, Word] = {
    "train_batch_size": Word("set B = N", size("global_batch")),
    "train_micro_batch_size_per_gpu": Word("microbatch N", size("micro_batch")),
    "gradient_accumulation_steps": Word("set B = N * micro batch * ranks", size("accumulation")),
    "zero_optimization.stage": Word(
        "zero N over dp { like = deepspeed }", size("zero", least=0, most=3)
    ),
    "zero_optimization.zero_hpz_partition_size": Word(
        "mesh dp = node * gpu; zero 3 { reshard_over = gpu }", size("secondary")
    ),
    "zero_optimization.stage3_param_persistence_threshold": PERSISTENT,
    "zero_optimization.param_persistence_threshold": PERSISTENT,
    "zero_optimization.overlap_comm": Word("gradients { overlap }", truth("overlap_gradients")),
    "zero_optimization.reduce_bucket_size": Word(
        "gradients { bucket_bytes = N elements }", size("bucket_elements", least=0)
    ),
    "zero_optimization.offload_optimizer.device": Word(
        "offload { optimizer = true, update = host }, with nvme = optimizer",
        one_of("offload_optimizer", HOSTS),
    ),
    "zero_optimization.offload_param.device": Word(
        "offload { parameters = true }, with nvme = parameters",
        one_of("offload_parameters", HOSTS),
    ),
    "zero_optimization.cpu_offload": Word(
        "offload { optimizer = true, update = host }", when("offload_optimizer", "cpu")
    ),
    "zero_optimization.cpu_offload_params": Word(
        "offload { parameters = true }", when("offload_parameters", "cpu")
    ),
    "gradient_clipping": Word("optimizer { clip = N }; 1 for `auto`", clipping_of_trainer),
    "bf16.enabled": Word("precision { weights = bf16, ... }", half("bf16")),
    "bfloat16.enabled": Word("precision { weights = bf16, ... }", half("bf16")),
    "fp16.loss_scale": Word("optimizer { loss_scale = dynamic }, with 0", loss_scale),
    "fp16.enabled": Word("precision { weights = fp16, ... }", half("fp16")),
    "optimizer.type": Word(
        "optimizer (Lamb keeps the state of Adam)",
        one_of(
            "optimizer",
            {
                "adam": "adamw",
                "adamw": "adamw",
                "fusedadam": "adamw",
                "lamb": "adamw",
                "fusedlamb": "adamw",
                "sgd": "sgd",
            },
        ),
    ),
    "tensor_parallel.autotp_size": Word("mesh tp = N", size("tp")),
    "sequence_parallel_size": Word("mesh cp = N; context cp { method = ulysses }", size("cp")),
}
"""Settings of DeepSpeed's JSON files."""
