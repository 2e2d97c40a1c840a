"""The space of a search: the choices that practitioners have for a plan, as far as a model and the nodes permit, and why the other ones are left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import Any

from stagec.diagnostics import CompileError, Span, did_you_mean, quoted, refused
from stagec.schedules.catalogue import CATALOGUE, check_sizes
from stagec.schedules.errors import ScheduleError
from stagec.searching.model import ModelDims
from stagec.text_places import NoToml, TomlText, read_toml

Value = int | str
Point = Mapping[str, Value]
"""One choice: a value for each name of `NAMES`, and for `dp` and `devices`, which follow from the others."""

NO_EXPERTS = "none"

NAMES: dict[str, str] = {
    "tp": "tensor parallelism: heads, feed-forward widths and the vocabulary",
    "pad": "of a vocabulary that tp does not divide: a rank's part is the next multiple of this; 0: none such",
    "replicate": "heads of keys and values that are fewer than tp: on, neighbours share them; off, none such",
    "sequence": "sequence parallelism between the layers, over tp: on, off",
    "cp": "context parallelism: ranks that a sequence is split over",
    "context": "how attention sees a split sequence: all_gather, ring, ulysses",
    "pp": "pipeline parallelism: ranks with different layers",
    "schedule": "of the pipeline: none, or a schedule of the language",
    "virtual_stages": "stages of each rank",
    "uneven": "layers fewer on the first and last stage together: 0, 1 (on the last), 2 (on both), 3 (one and two; 0 to 2 by default)",
    "ep": "expert parallelism: ranks that share the experts out, of tp as far as these do not cut them, all of cp or none, and of dp",
    "etp": "expert tensor parallelism: of the ranks of tp, those that an expert is cut over (1 and tp by default)",
    "zero": "what data-parallel ranks split: 0 nothing, 1 optimizer state, 2 gradients too, 3 weights as well",
    "replicas": "groups that each hold all that zero splits (hybrid sharding)",
    "microbatch": "sequences that a rank computes with at a time",
    "recompute": "none, selective (the core of attention), full (whole layers), or what the language takes",
    "offload": "none, optimizer, activations, or both",
    "keep": "what the backward pass reads of gathered values: gathered, shard",
    "reduce": "gradients are reduced while the backward pass goes on: overlapped, after",
    "bucket": "MiB in which gradients are joined, but for zero 3 (the default is Megatron-LM's least: 40 million of fp32); 0: each on its own",
    "gather": "under zero 1 and 2, of updated parameters: overlapped with the next step's forward pass, after the update",
    "overlap": "what runs in pieces beside its communication: none, tp (products), ep (the exchanges of experts)",
    "exchange": "how tokens come to experts: all_to_all, all_gather, hierarchical (a copy for each node, which hands it on)",
    "precision": "dtype of weights and activations: bf16, fp16, fp32",
}
"""The names of a space for plans that train, each with a description for the user."""
SERVING_NAMES: dict[str, str] = {
    **{name: NAMES[name] for name in ("tp", "pad", "replicate", "pp", "precision")},
    "dcp": "decode context parallelism: of ranks of tp that would have the same keys or latent vectors, those that share positions (1 by default)",
    "combine": "what these found of attention is put together by: reduce_scatter, all_to_all",
    "ep": "expert parallelism: tp, or so many times tp as divide dp; 1: experts are cut as other products are",
    "batch": "sequences of an iteration, where `serve` counts them by the batch dim",
    "microbatches": "parts of an iteration, for a pipeline, or in turns while tokens travel to experts",
}
"""The names of a space for plans that serve."""

DEFAULT: dict[str, tuple[Value, ...]] = {
    "pad": (128,),
    "replicate": ("on",),
    "sequence": ("on", "off"),
    "context": ("all_gather", "ring", "ulysses"),
    "schedule": ("1f1b", "interleaved_1f1b", "zb_h1"),
    "virtual_stages": (1, 2, 4, 8),
    "uneven": (0, 1, 2),
    "zero": (0, 1, 2, 3),
    "replicas": (1,),
    "recompute": ("none", "selective", "full"),
    "offload": ("none",),
    "keep": ("shard",),
    "reduce": ("overlapped",),
    "bucket": (153,),
    "gather": ("overlapped",),
    "overlap": ("none",),
    "exchange": ("all_to_all",),
    "precision": ("bf16",),
}
"""The values that are tried by default, for names whose values do not follow from the model and the devices."""

NUMBERS: dict[str, int] = {
    **dict.fromkeys(
        (
            *("tp", "cp", "pp", "ep", "etp", "replicas", "microbatch", "virtual_stages"),
            *("batch", "microbatches", "dcp"),
        ),
        1,
    ),
    **dict.fromkeys(("pad", "uneven", "zero", "bucket"), 0),
}
"""Names whose values are whole numbers, each with the smallest."""
MOST: dict[str, int] = {"zero": 3, "uneven": 3}
"""The largest value of names that have one."""
WORDS: dict[str, tuple[str, ...]] = {
    "replicate": ("on", "off"),
    "sequence": ("on", "off"),
    "context": ("all_gather", "ring", "ulysses"),
    "combine": ("reduce_scatter", "all_to_all"),
    "offload": ("none", "optimizer", "activations", "both"),
    "keep": ("gathered", "shard"),
    "reduce": ("overlapped", "after"),
    "gather": ("overlapped", "after"),
    "overlap": ("none", "tp", "ep"),
    "exchange": ("all_to_all", "all_gather", "hierarchical"),
    "precision": ("bf16", "fp16", "fp32"),
}
"""Names whose values are words, each with all of them. The words for `recompute` and `schedule` are those of the language."""
SAID_BY: dict[str, tuple[str, ...]] = {
    "recompute": ("recompute",),
    "offload": ("offload",),
    "gradients": ("reduce", "bucket"),
    "overlap": ("overlap", "gather"),
    "collectives": ("keep", "exchange"),
    "precision": ("precision",),
}
"""Clauses that stand in place of what a search says itself, if the user gives them: of each, the names whose values it then says."""
LARGEST_CP = 64
VIRTUAL = ("interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble")
"""Schedules in which a rank has several stages."""


@dataclass
class Space:
    """The choices of a search."""

    values: dict[str, tuple[Value, ...]]
    """The values of each name that are tried."""
    forbidden: list[dict[str, Value]] = field(default_factory=list)
    """Values that no point may have together."""
    clauses: tuple[str, ...] = ()
    """Clauses that all plans have."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Why combinations are no points, and how many for each reason."""
    untried: dict[str, str] = field(default_factory=dict)
    """The names of which some values are not tried at all, and why not."""
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)
    """The names of the space, each with a description for the user."""
    node: int | None = None
    """How many devices a node has; None if all are in one node."""
    asked: dict[str, str] = field(default_factory=dict)
    """The names whose values the user chooses or forbids, each with where that is said."""
    limits: dict[str, tuple[Callable[[Value], bool], str]] = field(default_factory=dict)
    """Names of which the model does not permit all values: which it permits, and why no others."""

    def limit(self, name: str, permitted: Callable[[Value], bool], why: str) -> None:
        """Try no values of a name that the model does not permit, whoever asks for them."""
        self.limits[name] = permitted, why
        if name in self.values:
            self.values[name] = tuple(filter(permitted, self.values[name]))

    def permits(self, point: Point) -> bool:
        """Whether a point has no values together that are forbidden."""
        return not any(
            all(point.get(name) == value for name, value in together.items())
            for together in self.forbidden
        )

    def choose(self, name: str, values: tuple[Value, ...], origin: str) -> None:
        """Try these values of a name and no others: why some of its own values are left out is then beside the point. E0710 if the model permits none."""
        self.check_values(name, values, origin)
        self.asked[name] = origin
        values = tuple(dict.fromkeys(values))
        self.untried.pop(name, None)
        permitted, why = self.limits.get(name, (lambda value: True, ""))
        self.values[name] = tuple(filter(permitted, values))
        if values and not self.values[name]:
            raise wrong(
                origin, f"`{name}` is never {quoted(map(str, values), 'or')} here: {why}", ""
            )
        if len(self.values[name]) < len(values):
            self.untried[name] = why

    def leave_to(self, clause: str) -> None:
        """Choose nothing that a clause of all plans says: plans would differ in words alone. E0711 if the user asks for values of it as well."""
        for name in SAID_BY.get(word_of(clause), ()):
            if name in self.asked:
                message = f"`{name}` is chosen, and `{clause}` says it of all plans"
                raise refused("E0711", message, origin=self.asked[name], help="leave out one")
            if name in self.values:
                self.values[name] = DEFAULT[name][:1]

    def check_values(self, name: str, values: Sequence[Value], origin: str) -> None:
        """E0710 for a name that a space does not have, or a value that the name cannot have."""
        if name not in self.names:
            help_ = did_you_mean(name, self.names) or f"there are {quoted(self.names)}"
            raise wrong(origin, f"a space has no `{name}`", help_)
        least, most, words = NUMBERS.get(name), MOST.get(name), WORDS.get(name)
        if name == "schedule":
            named = [v for v in values if not is_file(v)]
            words, values = ("none", *CATALOGUE), named
        for value in values:
            if words is not None and value not in words:
                help_ = did_you_mean(str(value), words) or f"there are {quoted(words)}"
                raise wrong(origin, f"`{name}` is never `{value}`", help_)
            if least is None and isinstance(value, int):
                raise wrong(origin, f"`{name}` is a word, and `{value}` is none", self.names[name])
            if least is not None and (
                not isinstance(value, int) or not least <= value <= (most or value)
            ):
                range_ = f"from {least} on" if most is None else f"from {least} to {most}"
                message = f"`{name}` is a whole number {range_}, and `{value}` is none"
                raise wrong(origin, message, self.names[name])


def default_space(dims: ModelDims, devices: int, node: int | None) -> Space:
    """The choices that the model's sizes and the nodes permit. `node` is the number of devices in a node."""
    space = Space(dict(DEFAULT), node=node)
    widest = min(devices, node or devices)
    powers = divisors(devices)
    space.values["tp"] = tuple(n for n in powers if n <= widest)
    space.values["cp"] = tuple(n for n in powers if n <= LARGEST_CP)
    space.values["pp"] = tuple(powers)
    space.values["ep"] = (1,)
    if not dims.tensor_parallel:
        why = "the model has no heads, widths or vocabulary to split"
        space.limit("tp", is_one, why)
        space.untried["tp"] = why
    elif widest < devices:
        space.untried["tp"] = f"more ranks than the {widest} devices of a node"
    if len(dims.sequence) != 1:
        why = "the model has not one sequence that attention sees"
        space.limit("cp", is_one, why)
        space.untried["cp"] = why
    if not dims.sequence:
        space.limit("sequence", "off".__eq__, "the model has no sequence")
    if dims.layers:
        layers = sum(dims.values[name] for name in dims.layers)
        space.values["pp"] = tuple(n for n in powers if n <= layers)
    else:
        why = "no repeat of the model's own body runs as often as a dim says"
        space.limit("pp", is_one, why)
        space.limit("schedule", "none".__eq__, why)
        space.limit("virtual_stages", is_one, why)
        space.untried["pp"] = why
    if dims.experts:
        experts = min(dims.values[name] for name in dims.experts)
        space.values["ep"] = tuple(n for n in divisors(experts) if n <= devices)
    else:
        for name in ("ep", "etp"):
            space.limit(name, is_one, "the model has no experts")
    if not dims.is_training:
        why = "the model trains nothing"
        space.limit("zero", (0).__eq__, why)
        space.limit("recompute", "none".__eq__, why)
        space.values["schedule"] = ("forward_only",)
    elif not dims.has_layers:
        why = "the model has no layers that are repeated"
        space.limit("recompute", "none".__eq__, why)
        space.untried["recompute"] = why
    elif not dims.has_attention:
        space.limit("recompute", "selective".__ne__, "the model has no attention")
    return space


def is_one(value: Value) -> bool:
    return value == 1


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


# What users narrow and widen


def read_space(space: Space, text: str, file: str) -> None:
    """Change a space as a TOML file says: `tp = [1, 2]`, `forbid = ["zero=3 pp=2"]`, `clauses = ["overlap { tp = true }"]`. E0710 for anything else."""
    try:
        said, places = read_toml(text, file), TomlText(text, file)
    except NoToml as error:
        message, help_ = f"`{file}` is no TOML: {error.message}", "write `tp = [1, 2]`"
        raise wrong(f"--space {file}", message, help_, error.span) from None
    for name, value in said.items():
        try:
            read_choice(space, name, value, file)
        except CompileError as error:
            found = [replace(each, span=places.place(name)) for each in error.diagnostics]
            raise CompileError(found, {file: text}) from None


def read_choice(space: Space, name: str, value: Any, file: str) -> None:
    """Likewise, what one name of it says."""
    origin = f"--space {file}"
    if name == "forbid":
        for each in value if isinstance(value, list) else [value]:
            forbid(space, str(each), origin)
    elif name == "clauses":
        space.clauses += tuple(map(str, value if isinstance(value, list) else [value]))
    else:
        listed = value if isinstance(value, list) else [value]
        if not listed or any(isinstance(v, bool | float | dict | list) for v in listed):
            message = f"`{name}` is a list of whole numbers or words"
            raise wrong(origin, message, f"write `{name} = [1, 2]`")
        space.choose(name, tuple(listed), origin)


def fix(space: Space, text: str) -> None:
    """Give a name of a space other values, as `--fix tp=8` or `--fix tp=4,8` says."""
    origin = f"--fix {text}"
    name, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not values:
        raise wrong(origin, f"`{text}` fixes nothing", "write `--fix tp=8`")
    listed = tuple(read_value(v) for v in values.split(","))
    space.choose(name, listed, origin)


def forbid(space: Space, text: str, origin: str = "") -> None:
    """Forbid values, as `--forbid zero=3` says, or a combination of values, as `--forbid "zero=3 pp=2"` says."""
    origin = origin or f"--forbid {text}"
    together: dict[str, Value] = {}
    for part in re.split(r"[\s,]+", text.strip()):
        name, equals, value = part.partition("=")
        if not equals or not value:
            raise wrong(origin, f"`{part}` forbids nothing", "write `--forbid zero=3`")
        together[name] = read_value(value)
        space.check_values(name, [together[name]], origin)
        space.asked[name] = origin
    space.forbidden.append(together)


def read_value(text: str) -> Value:
    return int(text) if text.strip().isdecimal() else text.strip()


def word_of(clause: str) -> str:
    """The word that a clause begins with."""
    found = re.match(r"\s*(\w+)", clause)
    return found[1] if found else ""


def is_file(value: Value) -> bool:
    """Whether a schedule is a user's own."""
    return isinstance(value, str) and ("/" in value or "." in value)


def wrong(origin: str, message: str, help_: str, span: Span | None = None) -> CompileError:
    return refused("E0710", message, span, origin=origin, help=help_)


# Points


def points(space: Space, dims: ModelDims, devices: int, batch: int) -> Iterator[dict[str, Value]]:
    """Every point of a space. Combinations that the sizes do not permit are counted in `left_out`."""
    values = space.values
    layers = sum(dims.values[name] for name in dims.layers)
    for tp, cp, pp in product(values["tp"], values["cp"], values["pp"]):
        assert isinstance(tp, int) and isinstance(cp, int) and isinstance(pp, int)
        if devices % (tp * cp * pp):
            space.left_out[f"tp x cp x pp does not divide the {devices:,} devices"] += 1
            continue
        dp = devices // (tp * cp * pp)
        if batch % dp:
            space.left_out[f"dp does not divide the batch of {batch:,}"] += 1
            continue
        for micro in values.get("microbatch") or microbatches(batch // dp):
            if not isinstance(micro, int) or (batch // dp) % micro:
                space.left_out["the microbatch does not divide the batch of a rank"] += 1
                continue
            sizes = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "microbatch": micro}
            for cut in parts_of_ranks(space, dims, tp, leave=dims.expert_inner):
                own: dict[str, Value] = {"devices": devices, **sizes, **cut}
                yield from of_mesh(space, dims, own, layers, batch)


def nearest_batch(space: Space, dims: ModelDims, devices: int, batch: int) -> int | None:
    """The batch nearest to one that a space has no plan of, of which it has one: a multiple of the ranks that could share it."""
    multiples = {n * near for n in divisors(devices) for near in (batch // n, batch // n + 1)}
    nearest = sorted(multiples - {0, batch}, key=lambda size: (abs(size - batch), size))
    asked = replace(space, left_out=Counter())
    return next((n for n in nearest if any(points(asked, dims, devices, n))), None)


def microbatches(sequences: int) -> list[int]:
    """The sizes of microbatches that are tried, in sequences: powers of two that divide the sequences of a rank, and all of them."""
    powers = [2**n for n in range(sequences.bit_length()) if sequences % 2**n == 0]
    return powers if sequences in powers else [*powers, sequences]


def parts_of_ranks(
    space: Space, dims: ModelDims, tp: int, *, leave: Collection[str] = ()
) -> Iterator[dict[str, Value]]:
    """The choices for dims that tp splits but does not divide: a vocabulary is padded, and heads of keys are shared. Dims in `leave` are not looked at."""
    names = [name for name in dims.tensor_parallel if name not in leave]
    rest = [name for name in names if dims.values[name] % tp] if tp > 1 else []
    shared = [n for n in rest if n in dims.key_heads and tp % dims.values[n] == 0]
    padded = [n for n in rest if n in dims.vocabulary]
    for name in rest:
        if name not in (*shared, *padded):
            space.left_out[f"tp does not divide `{name} = {dims.values[name]:,}`"] += 1
            return
    pads = space.values["pad"] if padded else (0,)
    shares = space.values["replicate"] if shared else ("off",)
    for pad, share in product(pads, shares):
        if (padded and not pad) or (shared and share != "on"):
            space.left_out[f"tp does not divide `{rest[0]} = {dims.values[rest[0]]:,}`"] += 1
            continue
        yield {"pad": pad, "replicate": share}


def of_mesh(
    space: Space, dims: ModelDims, own: dict[str, Value], layers: int, batch: int
) -> Iterator[dict[str, Value]]:
    """The points that have these sizes of a mesh and this microbatch (`own`)."""
    values = space.values
    cp, dp = own["cp"], own["dp"]
    assert isinstance(dp, int) and isinstance(cp, int)
    sequences = values["sequence"] if own["tp"] != 1 else ("off",)
    sequences = [each for each in sequences if divides(space, dims, own, str(each))]
    contexts = values["context"] if cp != 1 else ("none",)
    zeros = values["zero"] if dp * cp > 1 else (0,)
    experts = list(degrees_of_experts(space, dims, own))
    cuts = list(stages(space, own, layers, batch))
    names = ("recompute", "offload", "keep", "reduce", "bucket", "gather")
    names += ("overlap", "exchange", "precision")
    rest = product(sequences, contexts, zeros, *(values[name] for name in names))
    for (sequence, context, zero, *others), cut, (ep, etp) in product(rest, cuts, experts):
        if etp not in (own["tp"], NO_EXPERTS) and sequence != "on":
            space.left_out["experts on ranks of tp that have the same tokens"] += 1
            continue
        point: dict[str, Value] = {**own, "sequence": sequence, "context": context}
        point |= {**cut, "ep": ep, "etp": etp, "zero": zero}
        point |= dict(zip(names, others, strict=True))
        if is_idle(point):
            space.left_out["`overlap` or `exchange` of what a plan has not"] += 1
            continue
        if point["exchange"] == "hierarchical":
            local = in_node(space, point)
            if not local:
                why = "ranks that share experts are in one node, or are not as many in each"
                space.left_out[f"exchange = hierarchical: {why}"] += 1
                continue
            point["local"] = local
        for replicas in values["replicas"] if zero else (1,):
            assert isinstance(replicas, int)
            if replicas > 1 and (ep != 1 or dp % replicas or replicas == dp):
                space.left_out["replicas do not divide dp, or experts are split over it"] += 1
                continue
            point["replicas"] = replicas
            if space.permits(point):
                yield dict(point)
            else:
                space.left_out["forbidden"] += 1


def is_idle(point: Point) -> bool:
    """Whether a point chooses how something runs that its plan does not have."""
    without = {"tp": point["tp"] == 1, "ep": point["ep"] == 1, "none": False}
    return without[str(point["overlap"])] or (
        point["ep"] == 1 and point["exchange"] != "all_to_all"
    )


def degrees_of_experts(
    space: Space, dims: ModelDims, own: Mapping[str, Value]
) -> Iterator[tuple[int, Value]]:
    """How many ranks share experts out, of dp and of those of tp that do not cut them, and how many ranks of tp cut each."""
    tp, dp = int(own["tp"]), int(own["dp"])
    if not dims.experts:
        yield 1, NO_EXPERTS
        return
    usual = dict.fromkeys((tp, 1)) if dims.expert_inner else (tp,)
    for ep, etp in product(space.values["ep"], space.values.get("etp", usual)):
        assert isinstance(ep, int) and isinstance(etp, int)
        whole = tp // etp
        if tp % etp:
            space.left_out["etp does not divide tp"] += 1
        elif whole > 1 and not dims.expert_inner:
            space.left_out["etp is not tp, and no width is of experts alone"] += 1
        elif ep % whole or dp % experts_of_data({**own, "ep": ep, "etp": etp}):
            why = "ep divides no ranks of dp, cp, and of tp that do not cut experts"
            space.left_out[why] += 1
        elif uneven := [n for n in dims.expert_inner if dims.values[n] % etp]:
            space.left_out[f"etp does not divide `{uneven[0]} = {dims.values[uneven[0]]:,}`"] += 1
        else:
            yield ep, etp


def whole_experts(point: Point) -> int:
    """Ranks of tp that share experts out, each of which is cut over the others."""
    return 1 if point["etp"] == NO_EXPERTS else int(point["tp"]) // int(point["etp"])


def experts_of_context(point: Point) -> int:
    """Of the ranks that share experts out, those of cp: all, if they are enough, which come before those of dp as in Megatron-LM."""
    return (
        int(point["cp"]) if int(point["ep"]) // whole_experts(point) % int(point["cp"]) == 0 else 1
    )


def experts_of_data(point: Point) -> int:
    """Of the ranks that share experts out, those of dp."""
    return int(point["ep"]) // whole_experts(point) // experts_of_context(point)


def in_node(space: Space, point: Point) -> int:
    """Of the ranks that share experts out, those in one node; none where a hierarchical exchange would not be over two axes."""
    whole, within = whole_experts(point), int(point["tp"]) * int(point["cp"])
    nodes = experts_of_data(point)
    if space.node is None or space.node % within or experts_of_context(point) > 1:
        return 0
    if whole > 1:
        return whole if nodes > 1 and space.node == within else 0
    local = space.node // within
    return local if 1 < local < nodes and nodes % local == 0 else 0


def divides(space: Space, dims: ModelDims, own: Mapping[str, Value], sequence: str) -> bool:
    """Whether the ranks that split a sequence divide it, if sequence parallelism is `sequence`: on or off."""
    ranks = int(own["cp"]) * (int(own["tp"]) if sequence == "on" else 1)
    for name in dims.sequence:
        if dims.values[name] % ranks:
            what = "cp and tp do not divide" if sequence == "on" else "cp does not divide"
            space.left_out[f"{what} `{name} = {dims.values[name]:,}`"] += 1
            return False
    return True


@cache
def unfit(schedule: str, ranks: int, virtual: int, microbatches: int) -> str:
    """Why a schedule does not run with these numbers of ranks, stages of a rank and microbatches; empty if it does, or is a user's own."""
    if schedule not in CATALOGUE:
        return ""
    try:
        check_sizes(schedule, ranks, CATALOGUE[schedule].stages_per_rank or virtual, microbatches)
    except ScheduleError:
        return f"`{schedule}` does not run so few or so many microbatches"
    return ""


def fewer_at_ends(layers: int, number: int) -> list[int]:
    """How many layers fewer the first and last of `number` stages may have together, so that all others have equally many; the fewest first."""
    return [
        fewer
        for fewer in range(MOST["uneven"] + 1)
        if (layers + fewer) % number == 0 and (layers + fewer) // number >= max(ends(fewer))
    ]


def ends(fewer: int) -> tuple[int, int]:
    """How many layers fewer the first stage has, and how many the last, which also has the head, if both together have `fewer` layers fewer."""
    return fewer // 2, fewer - fewer // 2


def stages(
    space: Space, own: Mapping[str, Value], layers: int, batch: int
) -> Iterator[dict[str, Value]]:
    """The choices of how layers are cut into stages, and of the schedule."""
    values, pp, dp, micro = space.values, own["pp"], own["dp"], own["microbatch"]
    assert isinstance(pp, int) and isinstance(dp, int) and isinstance(micro, int)
    microbatches = batch // dp // micro
    if pp == 1:
        yield {"schedule": "none", "virtual_stages": 1, "uneven": 0}
        return
    for schedule, virtual in product(values["schedule"], values["virtual_stages"]):
        assert isinstance(virtual, int)
        if (virtual > 1) != (schedule in VIRTUAL):
            continue
        fitting = fewer_at_ends(layers, pp * virtual)
        uneven = next((each for each in fitting if each in values["uneven"]), None)
        if uneven is None:
            why = f", but with `uneven` of {fitting[0]}" if fitting else ""
            space.left_out[f"the {layers} layers do not divide into stages{why}"] += 1
            continue
        refused = unfit(str(schedule), pp, virtual, microbatches)
        if refused:
            space.left_out[refused] += 1
            continue
        yield {"schedule": schedule, "virtual_stages": virtual, "uneven": uneven}
