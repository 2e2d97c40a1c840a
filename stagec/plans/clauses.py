"""A plan as passes read it: every clause resolved to plain values, each with its place in the text.

The settings of a clause are the fields of its class: `kind` in a field's metadata says what a user
may write there (see `stagec/frontend/plans/settings.py`), the default is what holds if nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from stagec.devices import LIMITS, DeviceModel, load
from stagec.devices.model import TAKEN_UNITS
from stagec.diagnostics import Span
from stagec.dialects.stg import NUM_STATES, ROW_STATES
from stagec.dialects.types import FLOATS, QUANTIZED
from stagec.dialects.uneven_parts import UNEVEN
from stagec.plans.presets import PRESETS
from stagec.schedules.catalogue import (
    FORWARD_ONLY,
    TRANSFERS,
    has_one_stage,
    names as schedule_names,
)
from stagec.symbolic.quantity import Quantity

ALL = "true"
"""Said for a list: all that there are."""


@dataclass(frozen=True)
class SettingKind:
    """What may be written for a setting."""

    name: str
    """`whole`, `number`, `rate`, `bandwidth`, `bytes`, `bool`, `choice`, `schedule`, `text`; `microbatch`, a number of sequences; `wholes` and `words` for a
    list. Words among `choices` may be `true` for all of them."""
    choices: tuple[str, ...] = ()
    least: int = 0


def setting(kind: str, default: Any, *choices: str, least: int = 0) -> Any:
    """A field that a user sets."""
    return field(default=default, metadata={"kind": SettingKind(kind, choices, least)})


@dataclass(frozen=True, kw_only=True)
class Clause:
    """A clause, or what holds without it: then it has no span."""

    span: Span | None = None
    given: Mapping[str, Span] = field(default_factory=dict, compare=False)
    """Which settings were written, and where; after the name of a list and a dot, what it lists."""

    def place(self, name: str, listed: str) -> Span | None:
        """Where a name of a list stands."""
        return self.given.get(f"{name}.{listed}", self.given.get(name, self.span))

    @property
    def unusual(self) -> dict[str, Span]:
        """The settings that were written and differ from what holds without them."""
        known = self.usual
        return {
            name: span
            for name, span in self.given.items()
            if name in known and getattr(self, name) != known[name]
        }

    @property
    def places(self) -> set[Span]:
        """Where it stands, and what it says that would not hold without it, each name of a list by itself."""
        new = {name for name, value in self.usual.items() if getattr(self, name) != value}
        found = {span for name, span in self.given.items() if name.partition(".")[0] in new}
        return found if self.span is None else found | {self.span}

    @property
    def usual(self) -> dict[str, Any]:
        """What holds of each setting without it."""
        return {each.name: each.default for each in fields(self)}


@dataclass(frozen=True)
class Axis:
    """One direction of the mesh."""

    name: str
    size: int
    span: Span | None = None


@dataclass(frozen=True)
class Rule:
    """`shard H, K over tp`: `axes` are axes of the mesh, products taken apart."""

    dims: tuple[str, ...]
    axes: tuple[str, ...]
    span: Span
    dim_spans: Mapping[str, Span] = field(default_factory=dict, compare=False)
    copies: tuple[str, ...] = ()
    """Axes of the mesh along which ranks have the same of the dims."""
    uneven: str | None = None
    """How parts differ where the axes do not divide a dim."""


@dataclass(frozen=True, kw_only=True)
class Shard(Clause):
    """`{ pad = 128 }`: what a rule does where its axes do not divide a dim. The sizes that it leads to are those of the `SizeTable`."""

    pad: int | None = setting("whole", None, least=1)
    """Each device's part is a multiple of it."""
    replicate: bool = setting("bool", False)
    """Whether several ranks have the same part of a dim that is smaller than its axis."""
    uneven: str | None = setting("choice", None, *UNEVEN)
    """Ranks have parts of different sizes."""


@dataclass(frozen=True)
class Override:
    """`shard Block.h[S] over cp`, for readers of that value. No axes: it is whole everywhere.

    `dims` is None for all of the value's dims.
    """

    path: tuple[str, ...]
    axes: tuple[str, ...]
    span: Span
    dims: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Pipeline(Clause):
    """`pipeline L over pp { ... }`: the repeats that are cut into stages, and how they are run."""

    counts: tuple[str, ...]
    axis: str
    schedule: str = setting("schedule", "1f1b", *schedule_names())
    virtual_stages: int = setting("whole", 1, least=1)
    microbatch: int | None = setting("microbatch", None, least=1)
    """Sequences per device; nothing for all at once."""
    first: int = setting("whole", 0, least=-(2**31))
    last: int = setting("whole", 0, least=-(2**31))
    layers: tuple[int, ...] | None = setting("wholes", None)
    scatter_gather: bool = setting("bool", False)
    transfers: str | None = setting("choice", None, *TRANSFERS)
    """In which order ranks send and receive; that of the schedule if nothing is said."""
    first_backward: str = setting("choice", "split", "split", "whole")
    """What the first stage does, which needs no gradient of its input, under schedules that split backward passes."""


@dataclass(frozen=True, kw_only=True)
class Zero(Clause):
    """`zero 3 over dp { ... }`: what is split over the axes, besides the computation."""

    level: int
    axes: tuple[str, ...]
    reshard: bool = setting("bool", True)
    reshard_over: tuple[str, ...] = setting("words", ())
    """Axes over which a part of what is freed after the forward pass stays, for the backward pass to gather."""
    prefetch: int = setting("whole", 1)
    persist: int = setting("whole", 0)
    """Parameters of so many elements or fewer stay whole under level 3."""
    copies: bool = setting("bool", True)
    """Whether kernels copy what each pass gathers under level 3 into place, for times."""
    shards: str | None = setting("choice", None, "rows", "flat")
    like: str | None = setting("choice", None, *PRESETS)
    """A framework whose settings hold where the plan says nothing (`presets.py`)."""
    experts: str | None = setting("choice", None, "apart", "joined")
    """In a framework's buffers: whether each expert of a rank is a parameter by itself, or all are one."""

    @property
    def reshards_root(self) -> bool:
        """Whether the plan says that what is gathered is freed, and so of the root unit too: without a word FSDP2 keeps that one."""
        return self.reshard and "reshard" in self.given

    @property
    def shards_flat(self) -> bool:
        """Whether a parameter is split as one row of elements: at levels 1 and 2 unless the plan says otherwise."""
        return self.shards == "flat" or (self.shards is None and self.level < 3)


@dataclass(frozen=True, kw_only=True)
class Recompute(Clause):
    """`recompute attention in Block`: ops and values that the backward pass computes again."""

    what: tuple[str, ...] = ("none",)
    modules: tuple[str, ...] | None = None


PRODUCTS = {
    "fp8": ("fp8", "fp8"),
    "fp8_1x128": ("fp8_1x128", "fp8_128x128"),
    "mxfp8": ("mxfp8", "mxfp8"),
    "fp4": ("nvfp4", "nvfp4"),
}
"""What products may be of, and the formats of activations and of weights then: DeepSeek-V3 scales tiles of weights (arXiv:2412.19437, section 3.3.2)."""


@dataclass(frozen=True, kw_only=True)
class Precision(Clause):
    """dtypes. `master` is that of the copy of the weights which the optimizer updates, if any."""

    weights: str = setting("choice", "fp32", *FLOATS)
    activations: str = setting("choice", "fp32", *FLOATS)
    gradients: str = setting("choice", "fp32", *FLOATS)
    optimizer: str = setting("choice", "fp32", *FLOATS)
    master: str | None = setting("choice", None, *FLOATS, "none")
    reduce: str = setting("choice", "fp32", *FLOATS)
    gather: str = setting("choice", "fp32", *FLOATS)
    dispatch: str | None = setting("choice", None, *FLOATS)
    """The dtype of tokens on the way to experts on other devices. None: as they are."""
    combine: str | None = setting("choice", None, *FLOATS)
    """And on the way back."""
    cache: str = setting("choice", "fp32", *FLOATS)
    """The dtype of what caches hold."""
    loss: str | None = setting("choice", None, "fp32", "bf16", "fp16")
    """What cross-entropy reads logits in. None: as they are."""
    computed: str = "fp32"
    """The dtype of weights in the program: as they are stored, or as they are gathered where each layer gathers them (ZeRO 3)."""
    products: str | None = setting("choice", None, "bf16", *PRODUCTS)
    """What linear layers of blocks multiply in, of quantized operands. None: what they read."""
    weight_gradients: str | None = setting("choice", None, "bf16")
    """What their weights' gradients are products of, if not of the same."""
    product_weights: str | None = setting(
        "choice", None, "fp8", "fp8_128x128", "mxfp8", "nvfp4", "nf4"
    )
    """How weights are stored that quantized products alone read, or, where products are not quantized, frozen ones. None: as others."""
    product_gather: str | None = setting("choice", None, "bf16", "fp16", "fp32")
    """In which dtype they are gathered once they are updated, before each device quantizes them. None: as they are stored."""
    scaling: str = setting("choice", "delayed", "delayed", "current")
    """Where the one scale of an `fp8` operand comes from, for times: earlier steps, or the tensor itself, which is read once more for it."""
    maxima: tuple[str, ...] = setting("words", ("all",))
    """Axes along which ranks agree on the maxima of `delayed` scaling; `all` that are not stages of a pipeline, or `none`."""
    attention: str | None = setting("choice", None, "bf16", "fp8", "mxfp8")
    """What fused attention multiplies in, for times. None: as most of them do, bf16."""
    saved: str = setting("choice", "fp8_1x128", "fp8", "fp8_1x128", "mxfp8", "nvfp4")
    """What saved values are kept in that `saved_values` names."""
    saved_values: tuple[str, ...] = setting("words", ())
    """Ops, values and modules whose saved values are kept in fewer bits."""
    unquantized: tuple[str, ...] = setting("words", ())
    """Modules and weights whose products are of what they read."""

    @property
    def usual(self) -> dict[str, Any]:
        """What holds of each without it, which follows from the others: all dtypes are as wide as that of weights."""
        found = super().usual
        said = {name: getattr(self, name) for name in self.given if name in found}
        for name in said:
            others = {each: value for each, value in said.items() if each != name}
            found[name] = self.defaults(others).get(name, found[name])
        return found

    @property
    def is_quantized(self) -> bool:
        """Whether products are of quantized operands."""
        return self.products in PRODUCTS

    @staticmethod
    def defaults(given: Mapping[str, str]) -> dict[str, str | None]:
        """What follows from what is written.

        Activations, gradients and gathers are in the weights' dtype, reductions in the gradients'; gradients of quantized weights in
        that of the activations. Weights
        narrower than the optimizer's dtype, those of quantized products among them, have a master copy in that (Micikevicius et al. 2018).
        """
        weights = given.get("weights", "fp32")
        optimizer = given.get("optimizer", "fp32")
        activations = given.get("activations", weights)
        narrowest = min(weights, given.get("product_weights", weights), key=FLOATS.index)
        narrower = FLOATS.index(narrowest) < FLOATS.index(optimizer)
        is_quantized = weights in QUANTIZED
        gradients = given.get("gradients", activations if is_quantized else weights)
        return {
            "weights": weights,
            "activations": weights,
            "gradients": gradients,
            "optimizer": optimizer,
            "master": optimizer if narrower else None,
            "reduce": gradients,
            "gather": weights,
            "cache": activations,
        }


@dataclass(frozen=True, kw_only=True)
class Optimizer(Clause):
    """`optimizer sgd { momentum = 0.9 }`."""

    name: str = "adamw"
    momentum: float = setting("number", 0)
    clip: float | None = setting("rate", None)
    """The norm to which gradients are clipped."""
    loss_scale: str | None = setting("choice", None, "dynamic", "static")
    """Under a dynamic one ranks find out whether all gradients are finite."""
    average: str | None = setting("choice", None, *FLOATS)
    """The dtype of a moving average of the weights."""
    bits: int = setting("whole", 32)
    """The bits of a state's element: 8, with a scale for 256 elements, or as `precision` says."""
    steps: int = setting("whole", 5, least=1)
    """Newton-Schulz iterations of Muon."""
    block: int = setting("whole", 1024, least=1)
    """Rows and columns, at most, of the blocks that Shampoo and SOAP cut matrices into."""
    frequency: int = setting("whole", 1, least=1)
    """Steps from one computation of their roots, or eigenvectors, to the next."""
    copies: bool = setting("bool", False)
    """Whether gradients are copied to fp32 before they are used, and master weights to what is stored, each by a kernel of its own."""
    graft: bool = setting("bool", False)
    """Whether Shampoo's steps have the length of Adam's."""
    tables: str | None = setting("choice", None, *ROW_STATES)
    """What updates rows of tables where the backward pass comes to their lookups; None: tables have gradients, as other weights."""

    @property
    def algorithm(self) -> str:
        """A key of `stg.NUM_STATES`."""
        with_momentum = f"{self.name}_momentum"
        return with_momentum if self.momentum and with_momentum in NUM_STATES else self.name


OPTIMIZERS = tuple(name for name in NUM_STATES if not name.endswith("_momentum"))


@dataclass(frozen=True, kw_only=True)
class Collectives(Clause):
    """When partial terms are reduced and biases added to them, whether backward keeps what forward gathered, and how tokens reach experts."""

    reduce: str = setting("choice", "lazy", "lazy", "eager")
    keep: str = setting("choice", "gathered", "gathered", "shard")
    keep_in: tuple[str, ...] = setting("words", ())
    """Modules in whose calls `keep` holds. None: everywhere."""
    exchange: str = setting("choice", "direct", "direct", "hierarchical", "all_gather")
    bias: str = setting("choice", "after", "after", "before")
    like: str | None = setting("choice", None, "megatron")
    """A framework whose dispatcher says what travels beside tokens."""


@dataclass(frozen=True, kw_only=True)
class Context(Clause):
    """`context cp { ... }`: how attention sees a sequence that is split over an axis."""

    axis: str
    method: str = setting("choice", "ring", "ring", "all_gather", "ulysses", "partial")
    rotate: str = setting("choice", "send_recv", "all_to_all", "all_gather", "send_recv")
    balance: str = setting("choice", "head_tail", "head_tail", "none", "documents")
    combine: str = setting("choice", "reduce_scatter", "reduce_scatter", "all_to_all")
    """Of `partial`: how the results for each device's part of the keys are put together."""
    interleave: int = setting("whole", 1, least=1)
    """Of `partial`: so many positions of a sequence are on one device, and as many after them on the next."""


@dataclass(frozen=True, kw_only=True)
class Gradients(Clause):
    """How gradients are reduced. No bucket size: each on its own."""

    bucket_bytes: int | None = setting("bytes", None, least=1)
    first_bucket_bytes: int | None = setting("bytes", None, least=1)
    overlap: bool = setting("bool", True)
    late: tuple[str, ...] = setting("words", ())
    """Weights and modules whose gradients are reduced after the backward pass, though others overlap with it."""
    reduce: str | None = setting("choice", None, "step", "microbatch")
    """None: as the stage of ZeRO has it, see `Plan.reduces_each_microbatch`."""
    average: str | None = setting("choice", None, "collective", "before")
    """What divides sums by the number of ranks, for times: the collective, or a kernel that reads and writes a rank's sum before. None: the collective,
    or as the framework does that `zero` is like (`presets.py`)."""
    check: bool = setting("bool", False)
    """Whether the host reads the norm of what a bucket reduces before it launches that: for times."""
    inputs: bool = setting("bool", False)
    """What is looked up in frozen tables has a gradient, as if the tables were trained."""


@dataclass(frozen=True, kw_only=True)
class Overlap(Clause):
    """Which communication may run while something is computed."""

    zero: bool = setting("bool", True)
    param_gather: bool = setting("bool", False)
    """Under `zero` 1 and 2 parameters are gathered for the next step's forward pass, beside it, and not after their update."""
    p2p: bool = setting("bool", True)
    tp: bool = setting("bool", False)
    pieces: int = setting("whole", 4, least=1)
    """Into how many gathers, products and reductions of tensor parallelism are split where they overlap."""
    bulk: bool = setting("bool", True)
    """Whether what tensor parallelism does not split overlaps whole, above all sums of input gradients beside the gradients of weights."""
    cp: bool = setting("bool", True)
    ep: bool = setting("bool", False)


@dataclass(frozen=True, kw_only=True)
class Offload(Clause):
    """What is kept in the memory of the host. `prefetch` is in units: layers."""

    activations: tuple[str, ...] = setting("words", ())
    optimizer: bool = setting("bool", False)
    parameters: bool = setting("bool", False)
    update: str = setting("choice", "device", "device", "host")
    """Where the optimizer's step is computed."""
    nvme: tuple[str, ...] = setting("words", (), "optimizer", "parameters", "activations")
    """What of that is on NVMe, and passes through the memory of the host: `true` is all of it."""
    prefetch: int = setting("whole", 1)


@dataclass(frozen=True, kw_only=True)
class Process(Clause):
    """What a process keeps beside the tensors of its program: see `stagec.passes.memory.plan_memory.process_memory`."""

    dummy_gradients: bool = setting("bool", False)
    transposed_weights: bool = setting("bool", False)
    cached_weights: bool = setting("bool", False)
    workspace: int = setting("bytes", 0)
    context: int = setting("bytes", 0)
    communicator: int = setting("bytes", 0)
    reserve: int = setting("bytes", 0)


@dataclass(frozen=True, kw_only=True)
class Device(Clause):
    """The device that the plan is for. None: not said, by the plan or by the preset it names."""

    preset: str | None = None
    """The device that the plan names: one that ships, or the path of a file."""
    capacity: int | None = None
    """Bytes of memory that the preset has: more on a rank are a warning, W0501."""
    memory: int | None = setting("bytes", None, least=1)
    """More than this many bytes on a rank are an error, E0501."""
    flops_per_s: float | None = setting("rate", None)
    memory_bytes_per_s: float | None = setting("bandwidth", None)
    link_bytes_per_s: float | None = setting("bandwidth", None)
    """To devices of the same node, in one direction."""
    link_latency_us: float | None = setting("number", None)
    network_bytes_per_s: float | None = setting("bandwidth", None)
    """To devices of other nodes. None: as to those of the same node."""
    network_latency_us: float | None = setting("number", None)
    host_bytes_per_s: float | None = setting("bandwidth", None)
    """To and from the memory of the host, in one direction."""
    host_memory_bytes_per_s: float | None = setting("bandwidth", None)
    """Of the memory of the host, as far as it is one device's share: what the host reads and writes."""
    nvme_bytes_per_s: float | None = setting("bandwidth", None)
    """From NVMe to the memory of the host, or back, a device's share."""
    node: int | None = setting("whole", None, least=1)
    """Devices of a node: so many ranks, one after the other. None: all are in one."""
    kernels: str = setting("choice", "fused", "eager", "fused", "compiled")
    """Which ops of little arithmetic share a kernel: none; elementwise ones that follow each other; norms and reductions too."""
    graphs: bool = setting("bool", True)
    """Whether the host launches graphs of kernels, and so no computation waits for it."""
    captured: tuple[str, ...] = setting("words", ())
    """Modules each of whose passes a graph launches at once, where the host launches all else kernel by kernel."""
    collective_units: int | None = setting("whole", None, least=1)
    """Multiprocessors that gathers, scatters and sums take from what is computed beside them. None: NCCL's, by the device's file."""
    exchange_units: int | None = setting("whole", None, least=1)
    """The same of exchanges, of experts' tokens or of heads."""
    message_units: int | None = setting("whole", None, least=1)
    """The same of a message between stages of a pipeline, or around a ring, on the rank that sends it. None: where tiles are dealt out beforehand, NCCL's; else
    so few that they are not counted."""
    tile_scheduler: str = setting("choice", "dynamic", "dynamic", "static")
    """How kernels of products deal out their tiles among multiprocessors: as blocks ask for them, or beforehand, so that blocks wait which a collective
    leaves none."""
    all_reduce: str = setting("choice", "nccl", "nccl", "vllm", "sglang", "trtllm")
    """Whose all-reduce runs in a node: NCCL's, or an inference engine's own where that is faster."""
    experts: str = setting("choice", "trtllm", "vllm", "sglang", "trtllm", "grouped")
    """Whose kernels multiply the tokens of experts, where a device has tables of several engines. `grouped`: in a step that trains one kernel does so for all
    experts of a device, in place of Transformer Engine's, one for each."""
    swizzle: str = setting("choice", "stored", "each", "stored", "none")
    """Which operands of products whose blocks have scales have those put into the order that products read, by a kernel in front of each product."""
    fused_activations: bool = setting("bool", False)
    """Whether activations are kernels that do for the quantization behind them what norms do (Transformer Engine's op fuser)."""
    norms: str = setting("choice", "maxima", "plain", "maxima", "cudnn")
    """What kernels of norms do for the quantization behind them: find the largest number of what they write, write `mxfp8` themselves, or neither."""
    price_per_hour: float | None = setting("number", None)
    """The price of a device, for what tokens cost."""

    @classmethod
    def uses(cls) -> tuple[str, ...]:
        """The settings that say how a plan uses a device, and describe none."""
        kinds = {each.name: each.metadata["kind"].name for each in fields(cls) if each.metadata}
        numbers = ("rate", "bandwidth", "number")
        return tuple(n for n, kind in kinds.items() if kind not in numbers and n != "node")

    @property
    def model(self) -> DeviceModel | None:
        """What the file says, but for what the plan sets. Made anew each time."""
        if self.preset is None:
            return None
        model = load(self.preset)
        given = {name: getattr(self, name, None) for name in model.preset}
        numbers = {
            name: number if given[name] is None else given[name]
            for name, number in model.numbers.items()
        }
        if given["flops_per_s"] in (None, model.preset["flops_per_s"]):
            return replace(model, numbers=numbers)
        # What a plan sets is the peak of bf16: those of other dtypes are as many times as high as before, and so is what is kept up.
        faster = given["flops_per_s"] / model.preset["flops_per_s"]
        rates = {
            name: {dtype: rate * faster for dtype, rate in getattr(model, name).items()}
            for name in ("peaks", *LIMITS)
        }
        return replace(model, numbers=numbers, **rates)

    @property
    def too_many_units(self) -> dict[str, str]:
        """For each setting by which communication takes as many multiprocessors as there are, or more: what is wrong with it."""
        model = self.model
        if model is None or model.units <= 1:
            return {}
        asked = {name: getattr(self, name) for name in TAKEN_UNITS}
        return {
            name: f"`{name}` is {number}, and `{model.name}` has {model.units} multiprocessors"
            for name, number in asked.items()
            if number is not None and number >= model.units
        }

    @staticmethod
    def of(name: str | None, **settings: Any) -> Device:
        """What the file of that name says, but for what is set."""
        model = None if name is None else load(name)
        known: dict[str, Any] = dict(model.preset) if model else {}
        if model is not None and model.price_per_hour is not None:
            known["price_per_hour"] = model.price_per_hour
        return Device(preset=name, **{**known, **settings})


@dataclass(frozen=True, kw_only=True)
class Link(Clause):
    """`link tp { bytes_per_s = 450GB }`: what joins the ranks along an axis, wherever they are.

    None: what the device has there. `axes` are axes of the mesh, a product taken apart.
    """

    axes: tuple[str, ...]
    bytes_per_s: float | None = setting("bandwidth", None)
    latency_us: float | None = setting("number", None)
    reduces: bool = setting("bool", False)
    """Whether switches add up what passes through them."""


@dataclass(frozen=True)
class Sequences:
    """`decode 128 x 4 at 1500`: sequences that are alike."""

    count: Quantity
    new: Quantity
    """Positions of each that the iteration computes."""
    context: Quantity
    """Positions that are in the cache before."""
    span: Span
    shared: Quantity | None = None
    """Of the positions before: those at the beginning that are the same for all sequences of the entry, and stored once on a device."""
    shared_at: Span | None = None
    """Where that is said."""
    source: str = ""
    """The pool that computes those in this iteration, and hands them over; empty: they are here."""
    is_verified: bool = False
    """Whether the new positions are drafted tokens: logits of each say whether it is kept."""
    named: frozenset[str] = frozenset()
    """The dims that say how many sequences an entry of several lengths has, of which these are some."""

    @property
    def is_continued(self) -> bool:
        return self.context.value > 0

    @property
    def numbers(self) -> tuple[Quantity, Quantity, Quantity]:
        """How many, of how many new positions, after how many others."""
        return self.count, self.new, self.context


@dataclass(frozen=True, kw_only=True)
class Serve(Clause):
    """`serve { prefill 4 x 2048, decode 128 at 1500 }`: the batch of an iteration."""

    sequences: tuple[Sequences, ...] = ()
    logits: str = setting("choice", "sampled", "sampled", "last", "all")
    """Of which new positions: of those that tokens are sampled from (all of what is verified, else each sequence's last), of the last, or of all."""
    drafts: bool = setting("bool", False)
    """Whether tokens further on are drafted, by what reads the ones before them."""
    block: int = setting("whole", 1, least=1)
    """Positions that a cache is allotted at a time, for each sequence."""
    experts: str = setting("choice", "exact", "exact", "padded", "average")
    """Whether each expert has the tokens that are sent to it, as many as the next whole number, or their average, whole or not."""
    redundant: int = setting("whole", 0)
    """Copies of experts, beside those of the text."""
    microbatches: int = setting("whole", 1, least=1)
    """In which a device computes what it serves, whatever sequences these are."""
    split: str = setting("choice", "tokens", "tokens", "sequences")
    """What these microbatches have as much of."""
    part: str | None = setting("choice", None, "attention", "experts")
    """Of a pool: what of each layer it computes, the experts or everything else."""
    modules: tuple[str, ...] = setting("words", ())
    """That the pool of experts computes, beside what is between `dispatch` and `combine`."""


@dataclass(frozen=True, kw_only=True)
class Load(Clause):
    """`load { zipf = 1.2, seed = 0 }`: how busy experts are, in one of three ways."""

    zipf: float | None = setting("number", None)
    seed: int = setting("whole", 0)
    shares: tuple[int, ...] | None = setting("wholes", None)
    file: str | None = setting("text", None)


@dataclass(frozen=True, kw_only=True)
class Documents(Clause):
    """`documents S [1000, 3000, 96]`: what is packed into the sequences of the batch, one document after the other."""

    dim: str
    lengths: tuple[int, ...]


Argument = int | float | bool | str | tuple[int | float | bool | str, ...]


@dataclass(frozen=True, kw_only=True)
class PassCall(Clause):
    """`pass NAME { key = value }`: a third party's pass, with its arguments."""

    name: str
    arguments: Mapping[str, Argument]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that a plan says. Without a plan: one device, and the defaults."""

    name: str = ""
    span: Span | None = None
    axes: tuple[Axis, ...] = ()
    """The mesh, the slowest-varying axis in rank order first."""
    products: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Axes that are products of axes of the mesh: `dp = edp * ep`."""
    rules: tuple[Rule, ...] = ()
    overrides: tuple[Override, ...] = ()
    pipeline: Pipeline | None = None
    microbatch: int | None = None
    """Sequences per microbatch, if the plan says so outside of `pipeline`."""
    microbatch_span: Span | None = None
    zero: Zero | None = None
    units: tuple[str, ...] | None = None
    """Modules that are gathered as a whole under `zero 3`; `unit none`, (), leaves one for all. None: not
    said."""
    units_span: Span | None = None
    frozen: tuple[str, ...] = ()
    """Weights, and modules of which all weights, are not trained."""
    frozen_span: Span | None = None
    given: Mapping[str, Span] = field(default_factory=dict, compare=False)
    """Where each name of `unit` and `freeze` stands: `freeze.embed`."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Modules whose calls are calls of another one."""
    replaced_span: Span | None = None
    recompute: Recompute = Recompute()
    precision: Precision = Precision()
    optimizer: Optimizer = Optimizer()
    collectives: Collectives = Collectives()
    contexts: tuple[Context, ...] = ()
    gradients: Gradients = Gradients()
    overlap: Overlap = Overlap()
    offload: Offload = Offload()
    process: Process = Process()
    loss_chunks: int = 1
    """Parts of the sequence in which logits and cross-entropy are computed."""
    device: Device = Device()
    links: tuple[Link, ...] = ()
    load: Load | None = None
    """None: all experts have the same."""
    documents: Documents | None = None
    """None: a sequence is one document."""
    passes: tuple[PassCall, ...] = ()
    formulas: Mapping[str, str] = field(default_factory=dict)
    """What the plan writes for numbers of settings that follow from sizes: `L / pp`."""

    def says(self, span: Span) -> bool:
        """Whether it says something there that would not hold without it; of its mesh that is not asked."""
        return span in self.places or any(span in rule.span for rule in self.rules)

    @cached_property
    def places(self) -> frozenset[Span]:
        """Where clauses and settings stand that change what holds, and where each begins."""
        found = {self.microbatch_span, self.units_span, self.frozen_span, *self.given.values()}
        found.update(each.span for each in self.overrides)
        for each in fields(self):
            value = getattr(self, each.name)
            said = value if isinstance(value, tuple) else (value,)
            found.update(*(clause.places for clause in said if isinstance(clause, Clause)))
        return frozenset(place for span in found - {None} for place in (span, span.start))

    @property
    def mesh(self) -> dict[str, int]:
        """The size of each axis, the slowest first."""
        return {axis.name: axis.size for axis in self.axes}

    @property
    def microbatch_size(self) -> int:
        """Sequences per microbatch on one data-parallel rank; 0 if the plan says nothing: all at once."""
        if self.pipeline is not None:
            return self.pipeline.microbatch or 0
        return self.microbatch or 0

    @property
    def with_nccl(self) -> Plan:
        """Without an inference engine's all-reduce, which nobody trains with."""
        return replace(self, device=replace(self.device, all_reduce="nccl"))

    def as_served(self, in_microbatches: bool) -> Plan:
        """With what plans that serve do unless they say otherwise, in a pipeline too: all sequences of a device at once, in forward passes alone.

        What an engine schedules for an iteration goes through each stage as one batch (`EngineCore.step_with_batch_queue` of vLLM's `v1/engine/core.py`; of
        TensorRT-LLM's `PyExecutor` each of the `micro_batches` is scheduled by itself). If the clause `serve` says microbatches, no other is asked. Schedules
        of one stage on each rank differ in backward passes alone.
        """
        pipeline, microbatch = self.pipeline, None if in_microbatches else self.microbatch
        if pipeline is None:
            return replace(self, microbatch=microbatch)
        is_said = microbatch is not None or "microbatch" in pipeline.given
        if in_microbatches or not is_said:
            pipeline = replace(pipeline, microbatch=None)
        if "schedule" not in pipeline.given or has_one_stage(pipeline.schedule):
            pipeline = replace(pipeline, schedule=FORWARD_ONLY)
        return replace(self, microbatch=microbatch, pipeline=pipeline)

    @property
    def zero_level(self) -> int:
        """0 without ZeRO."""
        return self.zero.level if self.zero is not None else 0

    def data_axes(self, batch_dim: str) -> tuple[str, ...]:
        """The axes whose ranks hold different data: those that split the batch, and contexts."""
        axes = [axis for rule in self.rules if batch_dim in rule.dims for axis in rule.axes]
        for context in self.contexts:
            axes += self.products.get(context.axis, (context.axis,))
        return tuple(dict.fromkeys(axes))

    @property
    def reduces_each_microbatch(self) -> bool:
        """Whether gradients are reduced after each microbatch, and only their shards add up; else whole ones do, and are reduced once.

        Unless the plan says so: ZeRO 2 and 3 reduce each. So does DeepSpeed (`allreduce_gradients` of `engine.py`, where
        `no_sync` is refused for both), and FSDP2, whose `set_requires_gradient_sync` is true until someone sets it. Someone is the runtime of
        pipelines (`backward_maybe_with_nosync` of `torch/distributed/pipelining/stage.py`): under ZeRO 3 it keeps gradients whole up to the last
        microbatch. Without ZeRO, and with its first stage, a step reduces once: Megatron-LM's buffers, DeepSpeed's `is_gradient_accumulation_boundary`.
        """
        if self.gradients.reduce is not None:
            return self.gradients.reduce == "microbatch"
        level = self.zero_level
        return level == 2 or (level == 3 and self.pipeline is None)

    @property
    def reduces_with_stages(self) -> bool:
        """Whether the gradients of a pipeline's stage are reduced when it has done its last backward pass, unit by unit.

        Under ZeRO 3 without overlap: so PyTorch's runtime has it (`perform_reduce_grad` of `torch/distributed/pipelining/stage.py`).
        """
        once = not self.gradients.overlap and not self.reduces_each_microbatch
        return self.pipeline is not None and self.zero_level == 3 and once

    @property
    def num_ranks(self) -> int:
        count = 1
        for axis in self.axes:
            count *= axis.size
        return count


CLAUSES: tuple[type[Clause], ...] = (
    *(Shard, Pipeline, Zero, Recompute, Precision, Optimizer, Collectives, Context, Gradients),
    *(Overlap, Offload, Process, Device, Link, Serve, Load),
)


def settings_of(clause: str) -> tuple[str, ...]:
    """The settings of a clause, by the word that begins it."""
    owner = next((each for each in CLAUSES if each.__name__.lower() == clause), Clause)
    return tuple(each.name for each in fields(owner) if "kind" in each.metadata)
