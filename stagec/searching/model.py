"""Find the roles that the dims of a model have (heads, feed-forward widths, vocabulary, experts, ...), by how ops use them, whatever their names are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from stagec.analysis.sizes import size_values
from stagec.analysis.units import is_call
from stagec.dialects import dist, stg
from stagec.dialects.types import TensorType, tensor_of
from stagec.frontend import CheckedModel, lower, plan_of_model
from stagec.pipelines import make
from stagec.rewriting import programs


@dataclass(frozen=True)
class ModelDims:
    """The names of a model's dims, by their role."""

    values: Mapping[str, int]
    """The size of each dim by its name."""
    batch: str
    """The dim of sequences in the batch."""
    sequence: tuple[str, ...]
    """Dims of tokens, which context and sequence parallelism split."""
    heads: tuple[str, ...]
    """Dims of heads: of queries, and of keys and values."""
    key_heads: tuple[str, ...]
    """Those of `heads` that keys and values have, if queries have more heads."""
    inner: tuple[str, ...]
    """Feed-forward widths: dims that one product of a layer makes and another sums over."""
    vocabulary: tuple[str, ...]
    experts: tuple[str, ...]
    expert_inner: tuple[str, ...]
    """Those of `inner` that experts alone have."""
    expert_tokens: tuple[str, ...]
    """Dims of the tokens that are dealt to an expert."""
    positions: tuple[str, ...]
    """Dims of the positions of caches that attention sees as a whole, under no window."""
    caches: tuple[tuple[str, ...], ...]
    """The dims of each cache that has such positions."""
    layers: tuple[str, ...]
    """Dims that say how often the repeats in the model's own body run. A pipeline can cut these into stages."""
    cuts_several: bool
    """Whether a pipeline cuts several repeats, or one whose first layer is another than the rest. Then its stages are not alike."""
    units: tuple[str, ...]
    """The modules that layers call, whose weights FSDP gathers together."""
    has_layers: bool
    """Whether anything is repeated."""
    has_attention: bool
    is_training: bool
    num_parameters: int
    own_parameters: Mapping[str, int]
    """How many of these are of weights whose dtype the text gives, by that dtype."""

    @property
    def tensor_parallel(self) -> tuple[str, ...]:
        """The dims that tensor parallelism splits (Shoeybi et al. 2019)."""
        return (*self.heads, *self.inner, *self.vocabulary)


def read_model(checked: CheckedModel) -> ModelDims:
    """The dims of a model by their role."""
    module = lower(checked)
    values = dict(size_values(module))
    stated = plan_of_model(checked, module)
    ops = list(module.walk())
    attention = [op for op in ops if isinstance(op, stg.AttentionOp)]
    routed = [op for op in ops if isinstance(op, stg.DispatchOp)]
    heads = unique(tensor_of(v.type).names[-2] for op in attention for v in (op.q, op.k))
    scanned = unique(name for op in ops for name in heads_of_scan(op))
    heads = unique((*heads, *scanned))
    queries = {tensor_of(op.q.type).names[-2] for op in attention} | set(scanned)
    experts = unique(tensor_of(op.routed.type).names[0] for op in routed)
    tokens = unique(tensor_of(op.routed.type).names[1] for op in routed)
    carried = {name for op in repeats(module) for v in op.carried for name in names_of(v.type)}
    tables = [op for op in ops if isinstance(op, stg.EmbeddingOp)]
    losses = [op for op in ops if isinstance(op, stg.LOSSES)]
    # The loss knows the vocabulary. Tables tell it only where there is no loss, since positions may have one too.
    rows = unique(tensor_of(op.operands[1].type).names[0] for op in tables)
    words = unique(tensor_of(op.operands[0].type).names[-1] for op in losses)
    vocabulary = words or rows
    taken = {*carried, *experts, *tokens}
    sequence = unique(tensor_of(op.q.type).names[-3] for op in attention)
    products = list(weights_of_products(ops, {stated.batch_dim, *sequence, *tokens}))
    fused = fused_dims(ops, {name for made, _ in products for name in made})
    heads = unique((*heads, *(n for own in fused if {*heads} & own for n in sorted(own))))
    own = [{*made}.union(*(f for f in fused if f & made)) for made, _ in products]
    products = [(made, over) for made, (_, over) in zip(own, products, strict=True)]
    inner = inner_dims(products, taken, {*heads, *vocabulary}, values)
    inner = unique((*inner, *(n for own in fused if {*inner} & own for n in sorted(own))))
    roles = checked.roles
    positions = tuple(n for n, window in roles.positions.items() if not window) if roles else ()
    shapes = sorted(roles.shapes) if roles else []
    others = {n for made, over in products if not {*experts} & (made | over) for n in made | over}
    weights = [op for op in ops if isinstance(op, stg.WeightOp)]
    return ModelDims(
        values=values,
        batch=stated.batch_dim,
        sequence=sequence,
        heads=heads,
        key_heads=tuple(name for name in heads if name not in queries),
        inner=inner,
        vocabulary=vocabulary,
        experts=experts,
        expert_inner=tuple(name for name in inner if experts and name not in others),
        expert_tokens=tokens,
        positions=positions,
        caches=tuple(shape for shape in shapes if {*shape} & {*positions}),
        layers=layers_of(repeats(module)),
        cuts_several=len(counts_of(repeats(module))) > 1 or has_first_apart(module, stated),
        units=units_of(module),
        has_layers=bool(repeats(module)),
        has_attention=bool(attention),
        is_training=stated.is_training,
        num_parameters=sum(op.num_parameters.integer(values) for op in weights),
        own_parameters=own_parameters(weights, values),
    )


def unique(names: Iterator[str] | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Each name once, in the order of their first use."""
    return tuple(dict.fromkeys(names))


def heads_of_scan(op: Operation) -> tuple[str, ...]:
    """The dims of heads that a recurrence has; empty for other ops."""
    if isinstance(op, stg.SsdScanOp):
        return (tensor_of(op.x.type).names[-2],)
    if isinstance(op, stg.GatedDeltaRuleOp):
        return tuple(tensor_of(each.type).names[-2] for each in (op.q, op.v))
    return ()


def names_of(kind: object) -> tuple[str, ...]:
    """The names of a tensor type's dims; empty for other types."""
    return kind.names if isinstance(kind, TensorType) else ()


def repeats(module: ModuleOp) -> list[stg.RepeatOp]:
    """The repeats in the model's own body. A pipeline can cut these into stages."""
    return [
        op
        for program in programs(module)
        for op in program.body.block.ops
        if isinstance(op, stg.RepeatOp)
    ]


def weights_of_products(
    ops: list[Operation], tokens: set[str]
) -> Iterator[tuple[set[str], set[str]]]:
    """For each weight of a product, the dims that are in the result, and those that are summed over. An operand without a dim of `tokens` is a weight."""
    for op in ops:
        if isinstance(op, stg.ContractOp):
            result = set(tensor_of(op.result.type).names)
            shapes = (set(tensor_of(value.type).names) for value in op.operands)
            yield from ((names & result, names - result) for names in shapes if not tokens & names)


def fused_dims(ops: list[Operation], made: set[str]) -> list[set[str]]:
    """The dims that products make and that are then cut (`split`), each with its parts and the other names that these have."""
    found: list[set[str]] = []
    renamed = [op for op in ops if isinstance(op, stg.RenameOp)]
    for op in ops:
        if isinstance(op, stg.SplitOp) and op.over.data in made:
            own = {op.over.data, *op.to.data}
            for each in renamed:
                pairs = zip(each.old.data, each.new.data, strict=True)
                own |= {new for old, new in pairs if old in own}
            found.append(own)
    return found


def inner_dims(
    weights: Iterable[tuple[set[str], set[str]]],
    taken: set[str],
    split: set[str],
    values: Mapping[str, int],
) -> tuple[str, ...]:
    """Dims that one product makes and another sums over, as feed-forward widths are.

    Tensor parallelism splits a weight along one dim. So weights that have heads or the vocabulary are left out, and of several such dims of one weight only
    the largest counts.
    """
    free = [(made - taken, over - taken) for made, over in weights if not split & (made | over)]
    made = unique([name for names, _ in free for name in sorted(names)])
    both = {name for _, over in free for name in over}.intersection(made)
    narrow: set[str] = set()
    for names, over in free:
        narrow.update(sorted(both & (names | over), key=lambda name: (values[name], name))[:-1])
    return tuple(name for name in made if name in both - narrow)


def layers_of(found: list[stg.RepeatOp]) -> tuple[str, ...]:
    """The counts of repeats that are dims by themselves, as a `pipeline` clause has to name them."""
    return unique(counts_of(found))


def counts_of(found: list[stg.RepeatOp]) -> list[str]:
    """The same dims, one for each repeat."""
    return [text for op in found if (text := str(op.count.data)).isidentifier()]


def has_first_apart(module: ModuleOp, stated: dist.PlanOp) -> bool:
    """Whether the first layer of a repeat is one by itself where the model is trained, because nothing in front of it is: a pipeline then cuts two repeats."""
    peeled = module.clone()
    if stated.is_training:
        make("peel-layers").apply(Context(), peeled)
    return len(repeats(peeled)) > len(repeats(module))


def units_of(module: ModuleOp) -> tuple[str, ...]:
    """The modules that layers call, whose weights FSDP gathers together. The second call of a module has the name `Block_2`, and is left out."""
    calls = {call for op in module.walk() for call in stg.scope_of(op).split(".")}
    found: dict[str, None] = {}
    for repeat in repeats(module):
        around = stg.scope_of(repeat)
        for op in repeat.walk():
            call = stg.scope_of(op).removeprefix(around).removeprefix(".").partition(".")[0]
            if call:
                found.setdefault(min((each for each in calls if is_call(call, each)), key=len))
    return tuple(found)


def own_parameters(weights: Iterable[stg.WeightOp], values: Mapping[str, int]) -> Mapping[str, int]:
    """How many parameters have a dtype that the text gives, by that dtype."""
    found: Counter[str] = Counter()
    for op in weights:
        if op.own is not None:
            found[tensor_of(op.weight.type).dtype] += op.num_parameters.integer(values)
    return found
