"""Result types of the language's functions, from the types of their operands and from their options.

A call that does not fit is an `InferError`, which names the operand or the option.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stagec.dialects.stg.attention import is_positive
from stagec.dialects.stg.base import InferError
from stagec.dialects.stg.joining import joined_names
from stagec.dialects.types import TensorType
from stagec.symbolic import Size

Options = Mapping[str, object]
Sizes = Mapping[str, int | None]
"""Of dims; none where a size is wrong, as has been said."""
Types = Sequence[TensorType]


def need_float(types: Types, *positions: int) -> None:
    for position in positions:
        if position < len(types) and not types[position].dtype.startswith(("fp", "bf")):
            raise InferError(
                f"this has to be floating point, but is {types[position].dtype}", operand=position
            )


def need_ids(types: Types, position: int) -> None:
    if types[position].dtype not in ("i8", "i16", "i32", "i64"):
        raise InferError(
            f"this has to be whole numbers, but is {types[position].dtype}",
            operand=position,
            help="declare it as `: i32`",
        )


def need_dim(operand: TensorType, name: str, option: str) -> None:
    if name not in operand.names:
        raise InferError(f"there is no dim `{name}` in [{', '.join(operand.names)}]", option=option)


def infer_first(types: Types, options: Options) -> tuple[TensorType, ...]:
    need_float(types, 0)
    return (types[0],)


def infer_embedding(types: Types, options: Options) -> tuple[TensorType, ...]:
    ids, table = types
    need_ids(types, 0)
    need_float(types, 1)
    if len(table.names) < 2:
        raise InferError(
            "a table has rows, and a dim along each row", operand=1, help="declare it as `[V, D]`"
        )
    for name in table.names:
        if name in ids.names and name != table.names[0]:
            raise InferError(f"`{name}` is a dim of the numbers and of the rows", operand=1)
    return (TensorType.of([*ids.names, *table.names[1:]], table.dtype),)


def normalised_dims(types: Types, options: Options) -> tuple[str, ...]:
    over = options.get("over")
    if over is not None:
        assert isinstance(over, tuple)
        for name in over:
            need_dim(types[0], name, "over")
        return over
    if len(types) > 1:
        return types[1].names
    return types[0].names[-1:]


def infer_norm(types: Types, options: Options) -> tuple[TensorType, ...]:
    need_float(types, 0, 1, 2)
    over = normalised_dims(types, options)
    for position, affine in enumerate(types[1:], start=1):
        if affine.names != over:
            missing = [n for n in affine.names if n not in types[0].names]
            if missing:
                raise InferError(
                    f"the values have no dim `{missing[0]}`",
                    operand=position,
                    notes=[f"they are [{', '.join(types[0].names)}]"],
                )
            raise InferError(
                f"this is [{', '.join(affine.names)}], but the norm is over [{', '.join(over)}]",
                operand=position,
            )
    if not over:
        raise InferError("there is nothing to normalise over", operand=0)
    return (types[0],)


def infer_softmax(types: Types, options: Options) -> tuple[TensorType, ...]:
    need_float(types, 0)
    over = options["over"]
    assert isinstance(over, tuple)
    for name in over:
        need_dim(types[0], name, "over")
    return (types[0],)


def infer_reduce(types: Types, options: Options) -> tuple[TensorType, ...]:
    infer_softmax(types, options)
    over = options["over"]
    assert isinstance(over, tuple)
    return (TensorType.of([n for n in types[0].names if n not in over], types[0].dtype),)


def infer_rope(types: Types, options: Options) -> tuple[TensorType, ...]:
    need_float(types, 0)
    if not types[0].names:
        raise InferError("a number has no positions to rotate", operand=0)
    return (types[0],)


def infer_attention(types: Types, options: Options) -> tuple[TensorType, ...]:
    need_float(types, 0, 1, 2)
    q, k, v = types
    for position, (role, operand) in enumerate(zip("qkv", types, strict=True)):
        if len(operand.names) < 3:
            raise InferError(
                f"`{role}` ends in sequence, heads, width, but is [{', '.join(operand.names)}]",
                operand=position,
            )
    if k.names[-1] != q.names[-1]:
        raise InferError(f"queries have width `{q.names[-1]}`, keys `{k.names[-1]}`", operand=1)
    if k.names[:-1] != v.names[:-1]:
        raise InferError(
            f"keys are [{', '.join(k.names)}], values [{', '.join(v.names)}]",
            operand=2,
            notes=["they differ in their last dim at most"],
        )
    if q.names[:-3] != k.names[:-3]:
        raise InferError(
            f"queries start with [{', '.join(q.names[:-3])}], keys with "
            f"[{', '.join(k.names[:-3])}]",
            operand=1,
        )
    softcap = str(options.get("softcap", "1"))
    if not is_positive(softcap):
        raise InferError(f"a cap is above 0, not {softcap}", option="softcap")
    return (TensorType.of([*q.names[:-1], v.names[-1]], q.dtype),)


def joined_dims(types: Types, options: Options) -> tuple[str, ...]:
    """The dim of each operand that is joined: as `over` says, one for all or one each; else its last."""
    over = options.get("over") or tuple(t.names[-1] for t in types)
    assert isinstance(over, tuple)
    return over * len(types) if len(over) == 1 else over


def infer_concat(types: Types, options: Options) -> tuple[TensorType, ...]:
    to = str(options["to"])
    for position, operand in enumerate(types):
        if not operand.names:
            raise InferError("a number has no dim to join", operand=position)
        if operand.dtype != types[0].dtype:
            raise InferError(
                f"this is {operand.dtype}, but the first operand {types[0].dtype}",
                operand=position,
                help=f"convert it with `cast(x, dtype = {types[0].dtype})`",
            )
    over = joined_dims(types, options)
    if len(over) != len(types):
        raise InferError(f"{len(over)} dims for {len(types)} operands", option="over")
    rests = [[n for n in t.names if n != dim] for t, dim in zip(types, over, strict=True)]
    widest = max(rests, key=len)
    for position, (operand, dim, rest) in enumerate(zip(types, over, rests, strict=True)):
        need_dim(operand, dim, "over")
        extra = [n for n in rest if n not in widest]
        if extra:
            raise InferError(
                f"`{extra[0]}` is not a dim of all that is joined",
                operand=position,
                notes=[f"the dims besides those that are joined are [{', '.join(widest)}]"],
            )
    if to in widest:
        raise InferError(f"`{to}` is already a dim of the operands", option="to")
    return (TensorType.of(joined_names(types, over, to), types[0].dtype),)


def infer_split(types: Types, options: Options) -> tuple[TensorType, ...]:
    (x,), over, to = types, str(options["over"]), options["to"]
    assert isinstance(to, tuple)
    need_dim(x, over, "over")
    for name in to:
        if name in x.names and name != over:
            raise InferError(f"`{name}` is already a dim of the operand", option="to")
    return tuple(TensorType.of([name if n == over else n for n in x.names], x.dtype) for name in to)


def concat_sizes(types: Types, options: Options, sizes: Sizes) -> None:
    add_up(joined_dims(types, options), str(options["to"]), sizes)


def split_sizes(types: Types, options: Options, sizes: Sizes) -> None:
    to = options["to"]
    assert isinstance(to, tuple)
    add_up(to, str(options["over"]), sizes)


def topk_sizes(types: Types, options: Options, sizes: Sizes) -> None:
    """As many can be chosen as asked for; groups are equal and have two experts or more each."""
    many, chosen = sizes[str(options["over"])], sizes[str(options["to"])]
    if many is None or chosen is None:
        return
    available, where = many, ""
    groups, limit = options.get("groups"), options.get("limit")
    if groups is not None:
        assert isinstance(groups, Size) and isinstance(limit, Size)
        parts, allowed = (value.integer(known(sizes)) for value in (groups, limit))
        if parts < 1 or many % parts or many // parts < 2:
            raise InferError(
                f"`{options['over']} = {many}` does not divide into {parts} groups of two or more",
                option="groups",
            )
        if not 1 <= allowed <= parts:
            raise InferError(f"{allowed} of {parts} groups cannot be chosen", option="limit")
        available, where = many // parts * allowed, f" in {allowed} group" + "s" * (allowed != 1)
    if chosen > available:
        raise InferError(
            f"`{options['to']} = {chosen}` is more than there are: {available}{where}", option="to"
        )


def known(sizes: Sizes) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size is not None}


def add_up(parts: Sequence[str], whole: str, sizes: Sizes) -> None:
    lengths = [sizes[part] for part in parts]
    total = sum(size or 0 for size in lengths)
    if None not in (*lengths, sizes[whole]) and total != sizes[whole]:
        terms = " + ".join(f"{part} = {sizes[part]}" for part in parts)
        raise InferError(
            f"the parts `{terms}` make {total}, not `{whole} = {sizes[whole]}`",
            option="to",
            help=f"write `dim {whole} = {' + '.join(parts)}`",
        )


def infer_causal_mask(types: Types, options: Options) -> tuple[TensorType, ...]:
    need_float(types, 0)
    for option in ("query", "key"):
        need_dim(types[0], str(options[option]), option)
    return (types[0],)


def infer_repeat_heads(types: Types, options: Options) -> tuple[TensorType, ...]:
    need_float(types, 0)
    heads, to = str(options["heads"]), str(options["to"])
    need_dim(types[0], heads, "heads")
    if to in types[0].names and to != heads:
        raise InferError(f"`{to}` is already a dim of the operand", option="to")
    names = [to if n == heads else n for n in types[0].names]
    return (TensorType.of(names, types[0].dtype),)


def infer_cast(types: Types, options: Options) -> tuple[TensorType, ...]:
    return (types[0].with_dtype(str(options["dtype"])),)


def infer_cross_entropy(types: Types, options: Options) -> tuple[TensorType, ...]:
    logits, targets = types
    need_float(types, 0)
    need_ids(types, 1)
    if logits.names[:-1] != targets.names:
        raise InferError(
            f"the logits are [{', '.join(logits.names)}], the targets [{', '.join(targets.names)}]",
            operand=1,
            help="targets have all dims of the logits but the last",
        )
    return (TensorType.of((), "fp32"),)


def infer_topk(types: Types, options: Options) -> tuple[TensorType, ...]:
    need_float(types, 0)
    over, to = str(options["over"]), str(options["to"])
    need_dim(types[0], over, "over")
    if to in types[0].names:
        raise InferError(f"`{to}` is already a dim of the scores", option="to")
    if len(types) > 1:
        need_float(types, 1)
        if types[1].names != (over,):
            raise InferError(
                f"a bias is [{over}], one number for each, not [{', '.join(types[1].names)}]",
                operand=1,
            )
    for option, other in (("groups", "limit"), ("limit", "groups")):
        if option in options and other not in options:
            raise InferError(
                f"`{option}` needs `{other}`",
                option=option,
                help="`groups` says into how many the experts are divided, `limit` of how many a token's experts are",
            )
    names = [*(n for n in types[0].names if n != over), to]
    return TensorType.of(names, types[0].dtype), TensorType.of(names, "i32")


def infer_dispatch(types: Types, options: Options) -> tuple[TensorType, ...]:
    x, experts = types
    need_float(types, 0)
    need_ids(types, 1)
    if experts.names[:-1] != x.names[:-1]:
        raise InferError(
            f"tokens are [{', '.join(x.names)}], their experts [{', '.join(experts.names)}]",
            operand=1,
            notes=["they differ in their last dim"],
        )
    over, tokens = str(options["experts"]), str(options["tokens"])
    if over == tokens or {over, tokens} & set(x.names):
        raise InferError("the dims of experts and of their tokens are new ones", option="tokens")
    return (TensorType.of([over, tokens, x.names[-1]], x.dtype),)


def infer_combine(types: Types, options: Options) -> tuple[TensorType, ...]:
    routed, weights, experts = types
    need_float(types, 0, 1)
    need_ids(types, 2)
    if len(routed.names) != 3:
        raise InferError(
            f"experts' tokens are [experts, tokens, width], but this is [{', '.join(routed.names)}]",
            operand=0,
        )
    if weights.names != experts.names:
        raise InferError(
            f"weights are [{', '.join(weights.names)}], experts [{', '.join(experts.names)}]",
            operand=2,
        )
    return (TensorType.of([*experts.names[:-1], routed.names[-1]], routed.dtype),)
