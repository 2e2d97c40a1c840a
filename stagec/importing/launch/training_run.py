"""What a training run says about how it is spread, in nobody's words, and its text as a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from stagec.formatting import format_text
from stagec.importing.launch.roles import Names


class NotAPlan(Exception):
    """What keeps a run from being a plan."""

    def __init__(self, message: str, help: str, about: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.help = help
        self.about = about
        """What of a `Launch`: the mistake is shown where the first of these that was said stands. Nothing for what says one thing by itself."""


OF_PIPELINES = (
    *("virtual_stages", "layers_per_virtual_stage", "first_layers", "last_layers"),
    *("embedding_in_split", "loss_in_split"),
)
"""What is of runs with pipeline parallelism alone."""
SAY_LAYERS = "say how many layers the model has, too"


@dataclass
class Launch:
    """A training run. None: nothing is said."""

    gpus: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    """Tensor parallelism of experts; that of the rest unless it is said."""
    dp: int | None = None
    shards: int | None = None
    """How many ways FSDP shards weights, the rest of data parallelism being replicas."""
    replicas: int = 1
    """How many groups of ranks shard all weights; `shards`, unless said, are what that leaves."""
    virtual_stages: int = 1
    layers: int | None = None
    layers_per_virtual_stage: int | None = None
    first_layers: int | None = None
    last_layers: int | None = None
    embedding_in_split: bool = False
    loss_in_split: bool = False
    schedule: str = ""
    micro_batch: int | None = None
    pipeline_batch: int | None = None
    """Sequences of a microbatch in torchtitan's pipelines, which cut what a rank has at once."""
    global_batch: int | None = None
    accumulation: int | None = None
    minibatch: int | None = None
    """Sequences that a rank of data parallelism has in a step."""
    sequence: int | None = None
    key_heads: int | None = None
    """Heads of keys and values, where fewer than those of queries are said."""
    vocabulary_multiple: int | None = None
    """What each rank's part of the vocabulary is padded to a multiple of."""
    sequence_parallel: bool = False
    keeps_shard: bool = False
    """Whether backward gathers a split sequence again instead of keeping it (Megatron-LM's linear layers)."""
    context: str = "ring"
    zero: int = 0
    like: str = ""
    """The framework whose settings hold for what the run leaves out."""
    fsdp: bool = False
    strategy: int | None = None
    """The level of ZeRO that the strategy of FSDP names."""
    reshard: bool = True
    secondary: int = 1
    """How many ranks have all of what a forward pass gathered between them, for the backward pass (ZeRO++); 1 for none."""
    experts: int | None = None
    has_experts: bool = False
    """Whether the model has experts, whatever is said of them."""
    recompute: str = ""
    """`attention`, `full`, or as a plan says it."""
    recompute_method: str = ""
    """`uniform` or `block`, in the words of Megatron-LM."""
    recompute_layers: int | None = None
    half: str = ""
    """The dtype of 16 bits that was said."""
    precision: dict[str, str] = field(default_factory=dict)
    averages_before: bool = False
    """Whether a kernel of its own divides gradients by the number of ranks, and not the collective that sums them."""
    copies: bool = False
    """Whether kernels of their own copy gradients to fp32, and master weights to what is stored."""
    checks: bool = False
    """Whether the host waits for the norm of each bucket of gradients before it launches what reduces it."""
    widens_loss: bool = False
    """Whether the framework converts logits to fp32 for the loss, unless one of Transformer Engine's kernels is the loss."""
    fuses_loss: bool = True
    fused_loss: str = ""
    """Whose loss it is, in the words of Megatron-LM (`te` or `native`), where it is fused."""
    compiles: bool = False
    compiles_loss: bool = True
    """Whether `torch.compile` makes kernels of the loss, if of anything: they convert logits as they read them, and what is kept is as it was."""
    products: str = ""
    """The type of products of linear layers, if a narrower one than that of activations."""
    recipe: str = "delayed"
    """How products in fp8 are scaled, in the words of Megatron-LM."""
    agrees: bool = True
    """Whether ranks agree on the maxima from which scales follow."""
    agrees_in_tp: bool = False
    """Whether ranks agree on maxima along tensor parallelism alone."""
    stores_fp8: bool = False
    """Whether weights that products in fp8 read are stored so, and gathered (`fp8_model_init` of Transformer Engine)."""
    gathers_wide: bool = False
    """Whether weights that are stored in mxfp8 are gathered in bf16, in the buffer of gradients."""
    quantizes_anew: bool = False
    """Whether weights that are stored wide are quantized in each microbatch, and not in the first of a step alone."""
    fuses_ops: bool = False
    """Whether dense layers are of Transformer Engine's op fuser."""
    optimizer: str = ""
    steps: int | None = None
    """Newton-Schulz iterations of Muon."""
    clip: float = 0.0
    """The most that the norm of all gradients may be; 0 for no clipping."""
    fixed_loss_scale: bool = False
    """Of fp16: whether the loss is scaled by a number that stays, not by one that follows the gradients."""
    overlap_gradients: bool | None = None
    overlap_parameters: bool | None = None
    overlap_tensor: bool | None = None
    overlap_pipeline: bool | None = None
    overlap_experts: bool | None = None
    exchange: str | None = None
    """How tokens reach experts, if not by a copy for each."""
    is_flexible: bool = False
    """Whether DeepEP or HybridEP sends tokens to experts."""
    exchange_units: int | None = None
    """Multiprocessors that these take."""
    bucket_bytes: int | None = None
    persist: int | None = None
    bucket_elements: int | None = None
    offload_optimizer: str = ""
    offload_parameters: str = ""
    """Where to, `cpu` or `nvme`."""
    rank_order: str = ""

    def set(self, name: str, value: Any) -> None:
        assert name in {f.name for f in fields(self)}, name
        setattr(self, name, value)

    @property
    def fuses_activations(self) -> bool:
        """Whether activations do what norms do for the quantization behind them: in `TEFusedMLP`, which Megatron-LM has for layers without experts
        (`get_mlp_module_spec` in `core/models/gpt/gpt_layer_specs.py`)."""
        has_kernels = self.products == "fp8" and self.recipe in ("delayed", "tensorwise", "mxfp8")
        return self.fuses_ops and has_kernels and not self.is_moe

    @property
    def is_moe(self) -> bool:
        return bool(self.experts) or self.ep > 1 or self.has_experts

    @property
    def without_effect(self) -> list[str]:
        """What says something of a part that the run does not have, if it was said."""
        found = {
            **dict.fromkeys(OF_PIPELINES, self.pp == 1),
            "fuses_ops": not self.products,
            "exchange_units": not self.takes_units,
            "steps": self.optimizer != "muon",
            "recompute_method": not self.recomputed_otherwise,
            "recompute_layers": not self.recomputed_otherwise,
        }
        return [name for name, is_idle in found.items() if is_idle]

    @property
    def recomputed_otherwise(self) -> str:
        """What is computed again, where that is not each layer by itself (`checkpointed_forward` in `megatron/core/recompute.py`, which the
        block of layers of each virtual stage runs): under `block` the first layers of it, under `uniform` several at once."""
        layers, most = self.recompute_layers or 1, max(self.layers_of_stages, default=None)
        if self.recompute != "whole" or most == 1:
            return ""
        if self.recompute_method == "block" and (most is None or layers < most):
            what = f"first {layers} layers" if layers > 1 else "first layer"
            stage = "virtual stage" if self.num_virtual_stages > 1 else "stage"
            each = f"the {what} of each {stage} {'are' if layers > 1 else 'is'} computed again"
            return f"that only {each} (`block`), and not all"
        if self.recompute_method != "block" and layers > 1:
            return f"that inputs of every {layers} layers are kept (`uniform`), and not of each"
        return ""

    @property
    def num_virtual_stages(self) -> int:
        """Of each stage."""
        if not self.layers_per_virtual_stage:
            return self.virtual_stages
        if not self.layers:
            raise NotAPlan(
                "layers of a virtual stage are said, but not how many layers there are",
                SAY_LAYERS,
                ["layers_per_virtual_stage"],
            )
        stage = self.split_layers // self.pp
        if self.has_equal_stages and self.split_layers % (self.pp * self.layers_per_virtual_stage):
            raise NotAPlan(
                f"{self.counted_layers} do not divide over {self.pp} stages into virtual stages of {self.layers_per_virtual_stage}",
                "choose another number of layers for a virtual stage, or of layers",
                ["layers_per_virtual_stage", "layers"],
            )
        return stage // self.layers_per_virtual_stage

    @property
    def split_layers(self) -> int:
        """The embedding and the loss count as a layer each where they have one layer less beside them."""
        return (self.layers or 0) + self.embedding_in_split + self.loss_in_split

    @property
    def counted_layers(self) -> str:
        also = [*["the embedding"] * self.embedding_in_split, *["the loss"] * self.loss_in_split]
        return " and ".join([f"{self.layers} layers", *also])

    @property
    def has_equal_stages(self) -> bool:
        """Whether neither the first nor the last has a number of layers of its own."""
        return self.first_layers is None and self.last_layers is None

    @property
    def layers_of_stages(self) -> list[int]:
        """Of each virtual stage, along the pipeline (`get_num_layers_to_build` in Megatron-LM's `core/transformer/transformer_block.py`);
        nothing if the number of layers is not said."""
        if not self.layers or self.pp == 1:
            return [self.layers] if self.layers else []
        virtual = self.num_virtual_stages
        of_ranks = uneven(self) or [-(-self.split_layers // self.pp)] * self.pp
        found = [-(-layers // virtual) for layers in of_ranks] * virtual
        found[0] -= self.embedding_in_split
        found[-1] -= self.loss_in_split
        return found

    @property
    def takes_units(self) -> bool:
        return self.exchange_units is not None and self.is_flexible and self.ep > 1

    @property
    def keeps_parts(self) -> bool:
        """Whether backward passes gather from some of the ranks alone."""
        return self.level == 3 and 1 < self.secondary < self.data

    @property
    def level(self) -> int:
        """The level of ZeRO."""
        if self.replicas > 1 and self.ways == 1:
            return 0
        if not self.fsdp:
            return self.zero
        return 3 if self.strategy is None else max(self.zero, self.strategy)

    @property
    def ranks(self) -> int:
        """World size."""
        if self.gpus:
            return self.gpus
        if self.nodes and not self.gpus_per_node:
            raise NotAPlan(
                f"{self.nodes} nodes are said, but not how many GPUs each has",
                "say `--gpus N`",
                ["nodes"],
            )
        if self.nodes or self.gpus_per_node:
            return (self.nodes or 1) * (self.gpus_per_node or 1)
        if self.dp:
            return self.dp * self.tp * self.pp * self.cp
        raise NotAPlan("nothing says how many GPUs there are", "say `--gpus N`")

    @property
    def data(self) -> int:
        """Data parallelism: what the other axes leave."""
        others = self.tp * self.pp * self.cp
        if self.ranks % others:
            raise NotAPlan(
                f"{self.ranks} GPUs do not divide over {others} of tensor, pipeline and context parallelism",
                f"choose a multiple of {others} GPUs, or other degrees",
                [name for name in ("tp", "pp", "cp") if getattr(self, name) > 1],
            )
        found = self.ranks // others
        if self.dp and self.dp != found:
            raise NotAPlan(
                f"data parallelism over {self.dp} ranks is said, and {self.ranks} GPUs have {found}",
                f"`--gpus {self.dp * others}`, or leave degrees of data parallelism out",
                ["dp", "shards", "replicas"],
            )
        return found

    @property
    def ways(self) -> int:
        """How many ways weights are sharded: fewer than data parallelism has ranks where shards are replicated."""
        if self.shards:
            found, left = self.shards, self.data % self.shards
        else:
            found, left = divmod(self.data, self.replicas)
        if left:
            what = f"{self.shards} shards" if self.shards else f"{self.replicas} replicas of shards"
            raise NotAPlan(
                f"{self.data} ranks of data parallelism do not divide into {what}",
                f"choose a number that divides {self.data}",
                ["shards", "replicas"],
            )
        return found

    @property
    def batch(self) -> int | None:
        """Sequences in the global batch."""
        if self.micro_batch and self.accumulation:
            made = self.micro_batch * self.accumulation * self.data
            if self.global_batch not in (None, made):
                said = f"{self.accumulation} microbatches of {self.micro_batch} on each of {self.data} ranks"
                message = f"a batch of {self.global_batch} is not {said}, which are {made}"
                raise NotAPlan(message, f"write {made}, or leave it out", ["global_batch"])
            return made
        if self.global_batch:
            return self.global_batch
        if self.minibatch:
            return self.minibatch * self.data
        return None


def plan_text(
    run: Launch,
    name: str,
    remarks: list[str],
    model: str = "",
    names: Names | None = None,
) -> str:
    """The plan, with what it leaves out as comments above it.

    `names` are those of the model's dims: rules name no others.
    """
    rules = [r for rule in shards(run, names) if (r := known_dims(rule, names))]
    clauses = [*sizes(run), *mesh(run), *rules, *pipeline(run), *rest(run)]
    comments = "".join(f"# {line}\n" for line in remarks)
    imported = f'import "{model}"\n\n' if model else ""
    body = "".join(f"  {clause}\n" for clause in clauses)
    return format_text(f"{imported}{comments}plan {name} {{\n{body}}}\n", "plan")


def known_dims(rule: str, names: Names | None) -> str:
    """A rule for those of its dims that the model has, by their names there; nothing if it has none of them."""
    if names is None or not rule.startswith("shard "):
        return rule
    letters, _, axes = rule.removeprefix("shard ").partition(" over ")
    kept = dict.fromkeys(name for n in letters.split(", ") for name in names.get(n, ()))
    return f"shard {', '.join(kept)} over {axes}" if kept else ""


def sizes(run: Launch) -> list[str]:
    found = []
    if run.batch:
        at_once = (run.micro_batch or 1) * run.data
        if run.micro_batch and run.batch % at_once:
            raise NotAPlan(
                f"a batch of {run.batch} does not divide into microbatches of {run.micro_batch} on {run.data} ranks",
                f"choose a multiple of {at_once}, or other microbatches",
                ["global_batch", "micro_batch"],
            )
        found.append(f"B = {run.batch}")
    if run.sequence:
        found.append(f"S = {run.sequence}")
    return [f"set {', '.join(found)}"] if found else []


def mesh(run: Launch) -> list[str]:
    """Axes, slowest first, as Megatron-LM orders ranks: tensor, context, expert, data, pipeline from the fastest."""
    axes: list[str] = []
    products: list[str] = []
    if run.pp > 1:
        axes.append(f"pp = {run.pp}")
    axes += data_axes(run, products)
    if run.cp > 1:
        axes.append(f"cp = {run.cp}")
    if run.tp > 1:
        axes.append(f"tp = {run.tp}")
    clauses = [f"mesh {', '.join([*axes, *products])}"]
    if run.rank_order == "tp-pp-dp" and run.pp > 1:
        names = [a.partition(" ")[0] for a in axes]
        names = (
            [n for n in names if n not in ("pp", "tp", "cp")]
            + ["pp"]
            + [n for n in names if n in ("cp", "tp")]
        )
        clauses.append(f"rank_order {', '.join(names)}")
    return clauses


def folded(run: Launch) -> bool:
    """Experts are whole where the rest is cut (Megatron-LM's `--expert-tensor-parallel-size 1`)."""
    return run.ep > 1 and run.etp == 1 and run.tp > 1


def data_axes(run: Launch, products: list[str]) -> list[str]:
    dp = run.data
    if run.ways < dp:
        if run.ep > 1:
            raise NotAPlan(
                "experts over ranks and replicas of shards do not go together here",
                "leave one of the two out",
                ["ep", "replicas", "shards"],
            )
        products.append("dp = rep * fsdp")
        return [f"rep = {dp // run.ways}", f"fsdp = {run.ways}"]
    if run.keeps_parts:
        if run.ep > 1 or dp % run.secondary:
            what = "experts over ranks" if run.ep > 1 else f"{dp} data-parallel ranks"
            help_ = "leave one of the two out"
            if run.ep == 1:
                help_ = f"choose partitions whose size divides {dp}"
            raise NotAPlan(
                f"{what} and partitions of {run.secondary} do not go together here",
                help_,
                ["secondary"],
            )
        products.append("dp = node * gpu")
        return [f"node = {dp // run.secondary}", f"gpu = {run.secondary}"]
    if run.ep == 1:
        return [f"dp = {dp}"]
    ways = run.ep // run.tp if folded(run) else run.ep
    if folded(run) and run.ep % run.tp:
        raise NotAPlan(
            f"experts over {run.ep} ranks do not contain all {run.tp} of tensor parallelism",
            f"choose a multiple of {run.tp}, or cut experts as the rest is cut",
            ["ep"],
        )
    if run.etp not in (None, 1, run.tp):
        raise NotAPlan(
            f"experts cut {run.etp} ways beside {run.tp} of the rest are not in the language",
            f"cut them {run.tp} ways, or have them whole: 1"
            if run.tp > 1
            else "have them whole: 1",
            ["etp"],
        )
    # Megatron-LM counts ranks of context parallelism first (`expert_decoder_rank_generator`).
    context = ["cp"] if run.cp > 1 and ways % run.cp == 0 else []
    of_data = ways // run.cp if context else ways
    if dp % of_data:
        raise NotAPlan(
            f"experts over {run.ep} ranks are spread over all {run.cp} of context parallelism or none, and over some of {dp} with other data",
            f"choose a number that divides {dp * run.cp}, a multiple of {run.cp} if it is larger than {dp}"
            if run.cp > 1
            else f"choose a number that divides {dp}",
            ["ep"],
        )
    inner = "el" if folded(run) or context else "ep"
    axes = [f"{inner} = {of_data}"] if of_data > 1 else []
    if dp // of_data > 1 or not axes:
        axes.insert(0, f"edp = {dp // of_data}")
    products.append(f"dp = {' * '.join(a.partition(' ')[0] for a in axes)}")
    if inner == "el":
        parts = [*([inner] if of_data > 1 else []), *context, *(["tp"] if folded(run) else [])]
        products.append(f"ep = {' * '.join(parts)}")
    return axes


def shards(run: Launch, names: Names | None) -> list[str]:
    """Rules for experts come behind the others, so that every rank has a router for its own tokens."""
    clauses, context = ["shard B over dp"], ["cp"] if run.cp > 1 else []
    moe = run.is_moe
    if run.tp > 1:
        shares = run.key_heads is not None and run.key_heads < run.tp
        heads = ["H"] if shares else ["H", "K"]
        clauses += ["shard K over tp { replicate = true }"] if shares else []
        width_of_experts = "M" if names is None or "M" in names else "F"
        inner = ["F", "M"] if moe else ["F"]
        cut = [*heads, *(name for name in inner if not (folded(run) and name == width_of_experts))]
        if run.vocabulary_multiple is None:
            clauses.append(f"shard {', '.join([*cut, 'V'])} over tp")
        else:
            clauses.append(f"shard {', '.join(cut)} over tp")
            clauses.append(f"shard V over tp {{ pad = {run.vocabulary_multiple} }}")
    sequence = ["tp"] if run.tp > 1 and run.sequence_parallel else []
    if context or sequence:
        clauses.append(f"shard S over {', '.join([*context, *sequence])}")
    if run.cp > 1:
        clauses.append(f"context cp {{ method = {run.context} }}")
    if run.ep > 1:
        clauses.append("shard X over ep")
    if moe:
        shared = sequence if folded(run) else []
        clauses.append(f"shard T over {', '.join(['dp', *context, *shared])}")
    return clauses


def pipeline(run: Launch) -> list[str]:
    if run.pp == 1:
        return [f"microbatch {run.micro_batch}"] if run.micro_batch else []
    virtual = run.num_virtual_stages
    schedule = run.schedule or ("interleaved_1f1b" if virtual > 1 else "1f1b")
    settings = [f"schedule = {schedule}"]
    if virtual > 1:
        settings.append(f"virtual_stages = {virtual}")
    settings.append(f"microbatch = {run.micro_batch or 1}")
    listed = uneven(run)
    if listed:
        settings.append(f"layers = [{', '.join(map(str, listed))}]")
    else:
        if run.embedding_in_split:
            settings.append("first = -1")
        if run.loss_in_split:
            settings.append("last = -1")
    return [f"pipeline L over pp {{ {', '.join(settings)} }}"]


def uneven(run: Launch) -> list[int] | None:
    """Layers of stages where the first or the last has another number."""
    if run.has_equal_stages:
        return None
    about = ["first_layers", "last_layers"]
    if not run.layers:
        raise NotAPlan(
            "layers of the first or last stage are said, but not how many layers there are",
            SAY_LAYERS,
            about,
        )
    if run.embedding_in_split or run.loss_in_split:
        # An assertion of `get_num_layers_to_build`.
        what = "the embedding" if run.embedding_in_split else "the loss"
        raise NotAPlan(
            f"layers of the first or last stage are said, and {what} counts as a layer too",
            "leave one of the two out",
            ["embedding_in_split", "loss_in_split"],
        )
    said = [n for n in (run.first_layers, run.last_layers) if n is not None]
    between = run.pp - len(said)
    left = run.layers - sum(said)
    if left < 0 or (left % between if between else left):
        message = f"{sum(said)} layers are said of {len(said)} of {run.pp} stages, and there are {run.layers}"
        if left > 0 and between:
            message = f"{left} layers do not divide over the other {between} stages"
        raise NotAPlan(
            message, "choose other numbers of layers for the first and the last stage", about
        )
    middle = [left // between] * between if between else []
    first = [run.first_layers] if run.first_layers is not None else []
    last = [run.last_layers] if run.last_layers is not None else []
    return [*first, *middle, *last]


def rest(run: Launch) -> list[str]:
    clauses = []
    zero = run.level
    if zero:
        over = ["fsdp"] if run.ways < run.data else ["dp"]
        over += ["cp"] if run.cp > 1 else []
        settings = [f"like = {run.like}"] if run.like else []
        settings += ["reshard = false"] if zero == 3 and not run.reshard else []
        settings += ["reshard_over = gpu"] if run.keeps_parts else []
        settings += [f"persist = {run.persist}"] if zero == 3 and run.persist is not None else []
        inner = f" {{ {', '.join(settings)} }}" if settings else ""
        clauses.append(f"zero {zero} over {', '.join(over)}{inner}")
    if run.recompute:
        clauses.append(f"recompute {run.recompute}")
    collectives = ["keep = shard"] if run.keeps_shard and run.sequence_parallel else []
    if run.exchange and run.ep > 1:
        collectives.append(f"exchange = {run.exchange}")
    if collectives:
        clauses.append(f"collectives {{ {', '.join(collectives)} }}")
    precision = dict(run.precision)
    is_te = run.fuses_loss and run.fused_loss == "te"
    is_wide = run.widens_loss and not is_te and not (run.compiles and run.compiles_loss)
    if is_wide and precision.get("activations") in ("bf16", "fp16"):
        precision["loss"] = "fp32"
    if run.products:
        precision |= scaled_products(run)
    if precision:
        inner = ", ".join(f"{key} = {value}" for key, value in precision.items())
        clauses.append(f"precision {{ {inner} }}")
    if caches_weights(run):
        clauses.append("process { cached_weights = true }")
    clauses += optimizer_clause(run)
    gradients = []
    if run.bucket_bytes:
        gradients.append(f"bucket_bytes = {run.bucket_bytes}B")
    if run.bucket_elements:
        wide = {"fp32": 4, "bf16": 2, "fp16": 2}[run.precision.get("gradients", "fp32")]
        gradients.append(f"bucket_bytes = {run.bucket_elements * wide}B")
    if run.overlap_gradients is not None:
        gradients.append(f"overlap = {str(run.overlap_gradients).lower()}")
    if run.level < 2 and run.data * run.cp > 1:
        gradients += ["average = before"] * run.averages_before
        # Nor under a loss scale that follows the gradients (`validate_args` in Megatron-LM's `training/arguments.py`).
        gradients += ["check = true"] * (run.checks and not scales_loss(run))
    if gradients:
        clauses.append(f"gradients {{ {', '.join(gradients)} }}")
    # What Megatron-LM's and Transformer Engine's linear layers do by themselves: backward they gather what was split, and scatter the gradient of it, beside
    # products (`LinearWithGradAccumulationAndAsyncCommunication`; `module/linear.py`).
    whole = run.keeps_shard and run.sequence_parallel and not run.overlap_tensor
    overlaps = {
        "param_gather": (run.overlap_parameters and run.level in (1, 2)) or None,
        "tp": whole or run.overlap_tensor,
        "pieces": 1 if whole else None,
        "p2p": run.overlap_pipeline,
        "ep": run.overlap_experts,
    }
    said = [f"{key} = {str(value).lower()}" for key, value in overlaps.items() if value is not None]
    if said:
        clauses.append(f"overlap {{ {', '.join(said)} }}")
    device = ["fused_activations = true"] * run.fuses_activations
    device += [f"exchange_units = {run.exchange_units}"] * run.takes_units
    if device:
        clauses.append(f"device {{ {', '.join(device)} }}")
    kept = {"optimizer": run.offload_optimizer, "parameters": run.offload_parameters}
    offloads = [f"{name} = true" for name, where in kept.items() if where]
    if offloads:
        # Frameworks that keep the optimizer's state on the host update there.
        offloads += ["update = host"] if run.offload_optimizer else []
        beyond = [name for name, where in kept.items() if where == "nvme"]
        offloads += [f"nvme = [{', '.join(beyond)}]"] if beyond else []
        clauses.append(f"offload {{ {', '.join(offloads)} }}")
    return clauses


def caches_weights(run: Launch) -> bool:
    """Whether layers keep what products read of weights that are stored wide: Transformer Engine's, which Megatron-LM tells the first microbatch of a step
    (`is_first_microbatch` in `megatron/core/extensions/transformer_engine.py`). What is gathered for each pass leaves nothing to keep."""
    narrows = run.products in ("fp8", "fp4") and not (run.stores_fp8 or run.quantizes_anew)
    return run.keeps_shard and narrows and run.level < 3 and not run.offload_parameters


def scaled_products(run: Launch) -> dict[str, str]:
    """What linear layers multiply in, and where scales are from. Those of blocks are of the blocks themselves."""
    if run.products != "fp8":
        return {"products": run.products}
    products, weights = OF_RECIPE.get(run.recipe, ("fp8", "fp8"))
    found = {"products": products}
    if run.recipe == "tensorwise":
        found["scaling"] = "current"
    elif run.recipe == "delayed" and not run.agrees:
        found["maxima"] = "none"
    elif run.recipe == "delayed" and run.agrees_in_tp:
        # `_TENSOR_AND_CONTEXT_PARALLEL_GROUP` in megatron/core/parallel_state.py.
        axes = [axis for axis in ("cp", "tp") if getattr(run, axis) > 1]
        found["maxima"] = f"[{', '.join(axes)}]" if axes else "none"
    if run.stores_fp8:
        found["product_weights"] = weights
        if run.gathers_wide and weights == "mxfp8" and run.level in (1, 2):
            found["product_gather"] = "bf16"
    return found


OF_RECIPE = {"blockwise": ("fp8_1x128", "fp8_128x128"), "mxfp8": ("mxfp8", "mxfp8")}
"""Formats of products, and of weights that are stored so."""


def scales_loss(run: Launch) -> bool:
    """Whether the loss is scaled by a number that follows the gradients."""
    return run.precision.get("activations") == "fp16" and not run.fixed_loss_scale


def optimizer_clause(run: Launch) -> list[str]:
    name, _, settings = run.optimizer.partition(" { ")
    said = [settings.removesuffix(" }")] if settings else []
    said += [f"clip = {run.clip:g}"] if run.clip else []
    said += [f"steps = {run.steps}"] if run.steps is not None and name == "muon" else []
    if scales_loss(run):
        said.append("loss_scale = dynamic")
    is_plain = not name or name in ("sgd", "adam", "adamw")
    narrows = run.precision.get("weights") in ("bf16", "fp16")
    if run.copies and narrows and is_plain and run.level < 2 and not run.offload_optimizer:
        said.append("copies = true")
    if said:
        return [f"optimizer {name or 'adamw'} {{ {', '.join(said)} }}"]
    return [f"optimizer {name}"] if name else []
