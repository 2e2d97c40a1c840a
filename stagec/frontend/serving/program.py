"""What serving makes of a model's text: its logits without a loss, of the positions that are asked for, attention by sequence."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Operation, OpResult, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from stagec import symbolic
from stagec.analysis.placement import split_dims
from stagec.diagnostics import CompileError, Diagnostic, Span, quoted, refused, span_of
from stagec.dialects import stg
from stagec.dialects.attributes import Dim, NamesAttr, RequestsAttr
from stagec.dialects.types import StackType, TensorType, ValueType, tensor_of
from stagec.frontend.serving.attended import pairs
from stagec.frontend.serving.batch import Batch, begins
from stagec.frontend.serving.spreads import WHOLE, Share, Spread, rules_of
from stagec.plans.clauses import Plan
from stagec.rewriting import set_type
from stagec.symbolic import ONE, ZERO, Size, conditions

WRITERS = (stg.AppendOp, stg.FillOp, stg.ResumedOp)
"""Ops that write what requests keep, whether or not anything reads their results."""

INTO_ROWS = (stg.FillOp, stg.InRowsOp)
"""Ops whose operand `x` is of sequences that begin, and whose result is of rows."""
BETWEEN_ROWS = (*INTO_ROWS, stg.OutOfRowsOp)


ON_CACHES = ("all_gather", "ulysses")
"""How attention may see new positions that are split: what caches get is gathered, or exchanged for heads."""


Loss = stg.CrossEntropyOp | stg.LogSoftmaxLossOp


@dataclass(frozen=True)
class ServedResults:
    """What an iteration returns, and what of the model it has no use for."""

    values: list[SSAValue]
    dropped: set[Operation] = field(default_factory=set)
    """Ops of drafts alone: what they write, and the weights that they read."""


def served_results(results: Sequence[SSAValue], batch: Batch) -> ServedResults:
    """What an iteration returns: for a loss the logits that it is made of, in a decoder those of each sequence's last position, and of all that are verified.

    Engines pick those positions just before the product that makes the logits (`logits_indices` in vLLM, `logits_to_keep` in transformers): of
    a sequence with drafted tokens one for each of these and one more (`SpecDecodeMetadata` in vLLM).
    Logits that read what others are to predict are drafts of tokens further on (DeepSeek-V3's multi-token prediction, arXiv:2412.19437, section
    2.2): in an iteration the token that they read is not known before it is sampled. They are computed where the plan asks for them. E0401 if there are none.
    """
    found: list[SSAValue] = []
    drafts: list[SSAValue] = []
    for result in results:
        if tensor_of(result.type).dims:
            found.append(result)
            continue
        losses = losses_of(result)
        if not losses and not batch.is_imagined:
            message = (
                "the loss of this model is not a cross-entropy, so it does not say what is served"
            )
            owner = result.owner
            place = span_of(owner.location) if isinstance(owner, Operation) else None
            raise refused("E0217", message, place, help="end the model with `return`")
        ahead = [loss for loss in losses if is_draft(loss, losses)]
        found += [loss.logits for loss in losses if loss not in ahead or batch.serve.drafts]
        drafts += [loss.logits for loss in ahead]
    if batch.serve.drafts and not drafts and not batch.is_imagined:
        message = (
            "the model has no logits that read what others predict, so there is nothing to draft"
        )
        span = batch.serve.given.get("drafts", batch.serve.span)
        raise refused("E0401", message, span, help="leave out `drafts`")
    dropped: set[Operation] = set()
    if drafts and not batch.serve.drafts and not batch.is_imagined:
        dropped = behind(drafts).ops - behind(found).ops
    kept = batch.positions_with_logits
    if kept != batch.roles.new:
        found = [kept_only(value, batch.roles.new, kept) for value in found]
    return ServedResults(found, dropped)


@dataclass(frozen=True)
class Behind:
    """What values are made of."""

    ops: set[Operation] = field(default_factory=set)
    inputs: set[SSAValue] = field(default_factory=set)
    """The inputs of the program."""


def behind(values: Iterable[SSAValue], until: tuple[type[Operation], ...] = ()) -> Behind:
    """All ops, with those inside of repeats, and inputs that lead to some values; nothing behind the ops `until` which."""
    found = Behind()
    waiting, seen = list(values), set[SSAValue]()
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        owner = value.owner
        if isinstance(owner, Operation):
            for op in owner.walk():
                found.ops.add(op)
                waiting += () if isinstance(op, until) else op.operands
        elif not isinstance(owner.parent_op(), stg.RepeatOp):
            found.inputs.add(value)
    return found


def is_draft(loss: Loss, losses: Sequence[Loss]) -> bool:
    """Whether logits read what other ones are to predict."""
    others = behind(other.targets for other in losses if other is not loss)
    return bool(behind([loss.logits]).inputs & others.inputs)


def losses_of(result: SSAValue) -> list[Loss]:
    """The cross-entropies that a loss is made of."""
    found: list[Loss] = []
    waiting, seen = [result], set[SSAValue]()
    while waiting:
        value = waiting.pop()
        if value in seen or not isinstance(value, OpResult):
            continue
        seen.add(value)
        if isinstance(value.op, stg.LOSSES):
            found.append(value.op)
        else:
            waiting += value.op.operands
    return list(reversed(found))


def kept_only(value: SSAValue, new_dim: str, kept: str) -> SSAValue:
    """A value of the positions alone that are kept: picked before the product that makes it, if elementwise ops lead back to one."""
    chain: list[Operation] = []
    source = value
    while isinstance(source, OpResult) and new_dim in tensor_of(source.type).names:
        op = source.op
        carriers = [i for i, x in enumerate(op.operands) if new_dim in names_of(x)]
        is_product = isinstance(op, stg.ContractOp)
        keeps_shape = isinstance(op, stg.TensorOp) and not op.indices().statistics
        if len(carriers) != 1 or not (is_product or keeps_shape) or op.regions:
            break
        chain.append(op)
        source = op.operands[carriers[0]]
        if is_product:
            return rebuilt(chain, source, new_dim, kept)
    return picked(value, new_dim, kept)


def names_of(value: SSAValue) -> tuple[str, ...]:
    return value.type.names if isinstance(value.type, TensorType) else ()


def picked(value: SSAValue, new_dim: str, kept: str) -> SSAValue:
    """The positions of a value that are kept."""
    if new_dim not in names_of(value):
        return value
    op = stg.LastPositionsOp(value, new_dim, kept)
    owner = value.owner
    if isinstance(owner, Block):
        owner.insert_ops_before([op], owner.first_op)  # pyright: ignore[reportArgumentType]
    else:
        put_after(op, owner)
    return op.result


def rebuilt(chain: Sequence[Operation], source: SSAValue, new_dim: str, kept: str) -> SSAValue:
    """The ops of a chain again, the last one first, on the positions that are kept of what it starts from."""
    values = {source: picked(source, new_dim, kept)}
    for op in reversed(chain):
        twin = op.clone(dict(values))
        for position, operand in enumerate(op.operands):
            twin.operands[position] = values.get(operand, operand)
        for old, made in zip(op.results, twin.results, strict=True):
            set_type(made, tensor_of(old.type).with_names({new_dim: kept}))
            made.name_hint = old.name_hint
            values[old] = made
        put_after(twin, op)
    return values[chain[0].results[0]]


def put_after(op: Operation, other: Operation) -> None:
    """Insert an op right behind another, with its place in the text."""
    op.location = other.location
    if "scope" in stg.marks(other):
        stg.marks(op)["scope"] = stg.marks(other)["scope"]
    Rewriter.insert_op(op, InsertPoint.after(other))


def drop_unread(program: stg.ProgramOp, dropped: Collection[Operation] = ()) -> None:
    """Take away what leads to a loss alone, or to what is in a cache already, and inputs that nothing reads; and what else is `dropped`."""
    block = program.body.block
    for op in reversed(list(program.walk())):
        if (is_pure(op) or op in dropped) and not any(list(result.uses) for result in op.results):
            op.detach()
            op.erase()
    for argument in reversed(block.args):
        if not list(argument.uses):
            block.erase_arg(argument)


def is_pure(op: Operation) -> bool:
    """Whether an op does nothing but make its results."""
    if isinstance(op, stg.RepeatOp):
        return not any(isinstance(inner, WRITERS) for inner in op.walk())
    return isinstance(op, stg.TensorOp | stg.ConstantOp) and not isinstance(op, WRITERS)


def has_bias(op: stg.FusedAttention) -> bool:
    """Whether something is added to its scores, whose dims tell queries and keys apart."""
    return isinstance(op, stg.AttentionOp) and op.bias is not None


def share_of_queries(
    op: stg.FusedAttention, plan: Plan, known: Mapping[str, int], batch: Batch, span: Span
) -> Share:
    """What a rank has of the queries of attention, which a context may split.

    E0309 where rules split new positions, and no context says so, or one in whose way no cache is read: blocks of keys that go round would have to stay where
    they are. E0301 where chunks of a sequence do not come out even.
    """
    name = op.query_dim
    split = split_dims(names_of(op.operands[0]), rules_of(plan)).get(name, ())
    axes = tuple(axis for axis in split if conditions.is_split(axis, known))
    if name != batch.roles.new or not axes:
        return WHOLE
    contexts = {
        part: each for each in plan.contexts for part in plan.products.get(each.axis, (each.axis,))
    }
    others = [a for a in axes if a not in contexts or contexts[a].method not in ON_CACHES]
    if others:
        message = f"attention needs all new positions on a device, but `{name}` is split over {quoted(others)}"
        where = [(c.span, "here") for a in others if (c := contexts.get(a)) is not None and c.span]
        help_ = f"split heads, or sequences, over that axis, or say how attention sees those of others: `context {others[0]} {{ method = all_gather }}`"
        raise refused("E0309", message, span, secondary=where, help=help_)
    stay = tuple(axis for axis in axes if contexts[axis].method != "ulysses")
    share = Share(stay, all(contexts[axis].balance != "none" for axis in stay))
    for new in batch.new_positions if stay else ():
        reason = f"`{new / share.chunks}` is not a whole number"
        if not conditions.whole(new / share.chunks, known, reason):
            count = share.chunks.integer(known)
            message = f"sequences are cut in {count} chunks along {quoted(f'{a} = {known[a]}' for a in stay)}, and one has {new.integer(known)} new positions"
            help_ = f"serve multiples of {count}"
            if share.balanced and conditions.whole(2 * new / share.chunks, known):
                help_ += ", or write `balance = none` in the context"
            raise refused("E0301", message, span, help=help_)
    return share


def spread_of(value: SSAValue, name: str, plan: Plan, batch: Batch) -> Spread | None:
    """How devices share the positions of a value, if it is split over them."""
    spread = batch.spreads.get(name)
    split = split_dims(names_of(value), rules_of(plan)).get(name, ())
    return spread if spread is not None and split == spread.axes else None


def spread_keys(op: stg.FusedAttention, plan: Plan, batch: Batch, span: Span) -> Spread | None:
    """Let attention have a result for each part of its keys, where devices share these. E0309 for what engines do not take apart so."""
    spread = spread_of(op.operands[op.KEY_OPERANDS[0]], op.key_dim, plan, batch)
    if spread is None:
        return None
    has = ""
    if isinstance(op, stg.AttentionOp):
        has = "a window" if op.window else "chunks" if op.chunk else has
        has = "a bias" if op.bias is not None else "sinks" if op.sinks is not None else has
    heads = split_dims(names_of(op.results[0]), rules_of(plan)).get(names_of(op.results[0])[-2], ())
    if has:
        message = f"attention with {has} needs its keys whole, but {quoted(spread.axes)} split{'s' if len(spread.axes) == 1 else ''} `{op.key_dim}`"
        raise refused("E0309", message, span, help="split heads, or sequences, over that axis")
    if spread.by == "all_to_all" and heads[-len(spread.axes) :] != spread.axes:
        message = f"parts of attention are exchanged for heads along {quoted(spread.axes)}, which do not split the heads of queries last"
        help_ = "split them so, or write `combine = reduce_scatter`"
        raise refused("E0309", message, span, help=help_)
    op.properties["spread"] = NamesAttr(spread.axes)
    for result in op.results:
        whole = tensor_of(result.type)
        parts = stg.parts_over(spread.axes)
        set_type(result, TensorType.of([parts, *whole.dims], whole.dtype))
    return spread


def count_pairs(
    op: stg.FusedAttention, batch: Batch, spread: Spread | None = None, share: Share = WHOLE
) -> None:
    """Say how many pairs of positions attention is about in each row: those of the same sequence, of queries and keys that a device has."""
    keys = op.key_dim
    causal = op.causal is not None
    seen = stg.Reach()
    if isinstance(op, stg.AttentionOp):
        causal = causal and op.count.data == "causal"
        seen = op.reach
    if keys in batch.roles.positions:
        cached = True
    elif keys == batch.roles.new:
        cached = False  # as in an encoder
    else:
        return

    def pairs_of_first(new: Size, context: Size) -> Size:
        if spread is not None:
            return spread.pairs(new, context, causal)
        return pairs(new, context, causal, seen)

    def pairs_of_one(new: Size, context: Size) -> Size:
        before = context if cached else ZERO
        chunks = share.of(new)
        if not causal:
            return pairs_of_first(new, before) * symbolic.total(n for _, n in chunks) / new
        return symbolic.total(pairs_of_first(n, before + start) for start, n in chunks)

    op.properties["pairs"] = stg.SizeAttr(batch.in_a_row(pairs_of_one))
    if batch.is_packed:
        kinds = batch.kinds_of_row(seen, cached, share)
        if spread is not None:
            kinds = tuple((count, new, spread.of_first(keys)) for count, new, keys in kinds)
        op.properties["requests"] = RequestsAttr(kinds)


def split_sources(
    program: stg.ProgramOp, kept: Sequence[stg.CacheOp], batch: Batch
) -> dict[str, Size]:
    """Where all sequences are one row: let what is computed once have a row for each that begins, and what is `kept` of it be that of all.

    The dims that are made for it. E0415 for what reads what is computed once, or makes it of what the row has; and for what takes all that is kept for one.
    """
    dims: dict[str, Size] = {}
    for op in kept:
        one = tensor_of(op.cache.type).names[1]
        dims[stg.of_sources(one)] = symbolic.symbol(one) * batch.in_a_row(lambda *_: ONE)
        keep_all(op.cache, one, batch)
    name, made = batch.roles.batch, stg.begun(batch.roles.batch)
    into_rows = [op for op in program.walk() if isinstance(op, INTO_ROWS)]
    if into_rows:
        dims[made] = batch.sequences_begun
    for op in into_rows:
        if isinstance(op, stg.InRowsOp):
            one = tensor_of(op.x.type).names[1]
            of_row = batch.in_a_row(lambda _, before: begins(before))
            dims[stg.begun(one)] = symbolic.symbol(one) * of_row
    side = behind((op.x for op in into_rows), until=(stg.OutOfRowsOp,))
    renamed: set[SSAValue] = set()

    def rename(value: SSAValue) -> None:
        if name in names_of(value):
            set_type(value, tensor_of(value.type).with_names({name: made}))
            renamed.add(value)

    for value in side.inputs:
        rename(value)
    for op in side.ops:
        for value in (*op.results, *(a for region in op.regions for a in region.block.args)):
            rename(value)
        for key, attribute in op.properties.items():
            if isinstance(attribute, stg.SizeAttr) and name in attribute.data.names:
                size = attribute.data.substitute({name: symbolic.symbol(made)})
                op.properties[key] = stg.SizeAttr(size)
    for op in program.walk():
        if isinstance(op, BETWEEN_ROWS) or op.regions:
            continue
        own = [value for value in op.operands if name in names_of(value)]
        if (op in side.ops and own) or (op not in side.ops and renamed & set(op.operands)):
            message = (
                "what is computed once, for sequences that begin, meets what is computed for all"
            )
            help_ = "keep what both need in a cache: `once(cache, x)`"
            raise refused("E0415", message, span_of(op.location), help=help_)
    return dims


def split_pairs(program: stg.ProgramOp, batch: Batch) -> dict[str, Size]:
    """Where all sequences are one row: let what is of each query and key, as biases of scores are, be of those of each sequence.

    The dims that are made for it.
    """
    new, dims = batch.roles.new, dict[str, Size]()
    values = [*program.body.block.args]
    for op in program.walk():
        values += [*op.results, *(a for region in op.regions for a in region.block.args)]
    for value in dict.fromkeys(values):
        for keys in keys_of_pairs(value, batch):
            name, window = stg.paired(new, keys), batch.roles.positions[keys]
            seen = batch.positions(None if window is None else window.size)
            dims[name] = batch.in_a_row(lambda new, before, seen=seen: new * seen(new, before))
            tensor = tensor_of(value.type)
            left = [Dim(name) if d.name == new else d for d in tensor.data.dims if d.name != keys]
            set_type(value, TensorType.of(left, tensor.dtype, tensor.partial))
    return dims


def keys_of_pairs(value: SSAValue, batch: Batch) -> list[str]:
    """The positions that a value has for each new one, if it does."""
    names = tensor_of(value.type).names if isinstance(value.type, ValueType) else ()
    return [n for n in batch.roles.positions if n in names] if batch.roles.new in names else []


def keep_all(cache: SSAValue, one: str, batch: Batch) -> None:
    """Let a cache, and what is read from it, be of all sequences of a row. Attention says its pairs: of each sequence, with its own source."""
    size, waiting = symbolic.symbol(one), [cache]
    while waiting:
        value = waiting.pop()
        kind = value.type
        assert isinstance(kind, TensorType | StackType)
        tensor = tensor_of(kind).with_names({one: stg.of_sources(one)})
        set_type(value, kind.with_tensor(tensor) if isinstance(kind, StackType) else tensor)
        for use in list(value.uses):
            op = use.operation
            if isinstance(op, stg.RepeatOp):
                waiting.append(op.slice_args[list(op.stacks).index(value)])
            elif isinstance(op, stg.FillOp | stg.CastOp | stg.RepeatHeadsOp | stg.PlaceOp):
                waiting += op.results
            elif (
                isinstance(op, stg.AttentionOp)
                and use.index in op.KEY_OPERANDS
                and op.causal is None
            ):
                op.properties["pairs"] = stg.SizeAttr(batch.in_a_row(lambda new, _: new * size))
                op.properties["requests"] = RequestsAttr(batch.of_sources(size))
            elif not isinstance(op, stg.OutputOp):
                raise CompileError([mixing(op, batch)])


def pad_experts(program: stg.ProgramOp) -> None:
    """Let dispatches have as many places as dims say, rounded up, rather than as many as there are tokens."""
    for op in program.walk():
        if isinstance(op, stg.DispatchOp):
            op.dropless = None


def check_states(program: stg.ProgramOp, batch: Batch) -> None:
    """E0416 where an op sees earlier tokens, and nothing keeps what it needs of them from iteration to iteration."""
    found: list[Diagnostic] = []
    for op in program.walk():
        if isinstance(op, stg.StatefulOp):
            over, function = op.goes_along, op.SIGNATURES[0].name
            help_ = f"give it a state: `cache {op.STATE}`, and `{function}(..., state = h)`"
        elif isinstance(op, stg.UserOp) and op.over is not None:
            over, function = op.over.data, op.op.data
            help_ = f"give it a state, as its declaration says: `{function}(..., state = h)`"
        elif isinstance(op, stg.AttentionOp) and op.causal is not None:
            over, function = names_of(op.k)[-3], "attention"
            help_ = "append its keys and values to caches: `append(keys, x @ wk)`"
        else:
            continue
        if over == batch.roles.new:
            message = f"`{function}` goes on from earlier tokens, but keeps nothing of them"
            found.append(Diagnostic("E0416", message, span_of(op.location), help=help_))
    if found:
        raise CompileError(found)


def mixing(op: Operation, batch: Batch) -> Diagnostic:
    help_ = "write `attention(q, k, v)`, or serve sequences of one kind"
    if isinstance(op, stg.FusedAttention):
        help_ = "compute what a sequence attends to when it begins, `once(cache, k)`, or serve sequences of one kind"
        if has_bias_of_one(op, batch):
            help_ = "serve sequences of one kind: a bias is of the positions of one"
    elif mixes_pairs(op, batch) and not isinstance(op, stg.ContractOp):
        help_ = "read what is of each query and key from an input, or serve sequences of one kind"
    return Diagnostic(
        "E0415",
        "sequences of several lengths are served, and this takes them for one",
        span_of(op.location),
        notes=[
            f"their `{batch.roles.new}` is one row on each device, one sequence after the other"
        ],
        help=help_,
    )


def check_packed(program: stg.ProgramOp, batch: Batch) -> None:
    """E0415 where an op would mix the sequences of a row: pairs of positions that are written out count all of a row."""
    new, positions = batch.roles.new, set(batch.roles.positions)
    found: list[Diagnostic] = []
    for op in program.walk():
        if isinstance(op, stg.FusedAttention):
            of_rows = names_of(op.operands[0])[0] == stg.begun(batch.roles.batch)
            mixes = has_bias_of_one(op, batch) or (op.pairs is None and not of_rows)
        else:
            mixes = (
                isinstance(op, stg.ContractOp)
                and new in names_of(op.result)
                and bool(positions & {n for x in op.operands for n in names_of(x)})
            )
            is_cut = isinstance(op, stg.RenameOp) and op.new.data[0] in batch.roles.in_front
            mixes = mixes or (isinstance(op, stg.RenameOp) and new in op.old.data and not is_cut)
            mixes = mixes or mixes_pairs(op, batch)
        if mixes:
            found.append(mixing(op, batch))
    if found:
        raise CompileError(found)


def has_bias_of_one(op: stg.FusedAttention, batch: Batch) -> bool:
    """Whether its scores have a bias of new positions that is not of those which a cache holds."""
    return (
        has_bias(op) and op.query_dim == batch.roles.new and op.key_dim not in batch.roles.positions
    )


def mixes_pairs(op: Operation, batch: Batch) -> bool:
    """Whether an op that is no attention has what is of pairs of positions with what is of one side, or stores it: inputs alone have it of each sequence."""
    own = (*op.operands, *op.results)
    if op.regions or not any(keys_of_pairs(value, batch) for value in own):
        return False
    sides = {batch.roles.new, *batch.roles.positions}
    apart = (value for value in own if not keys_of_pairs(value, batch))
    named = (
        {*each.data} if isinstance(each, NamesAttr) else {each.data}
        for each in op.properties.values()
        if isinstance(each, NamesAttr | StringAttr)
    )
    is_stored = isinstance(op, stg.WeightOp | stg.CacheOp)
    return is_stored or any(
        sides & names for names in (*(set(names_of(value)) for value in apart), *named)
    )
