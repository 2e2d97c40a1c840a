"""`kv`: what a position of a sequence keeps in the memory of those who serve it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil

from stagec.diagnostics import CompileError, line_of
from stagec.dialects import stg
from stagec.dialects.types import ValueType, tensor_of
from stagec.explaining.job import NamedJob
from stagec.explaining.quantities import Answer, ClassAnswer, Contribution, of_parts
from stagec.explaining.rolled_operations import Amount, ClassOperations
from stagec.symbolic import Size, product, symbol, total

Unknown = Callable[[str, str, Sequence[str]], CompileError]
"""Makes the diagnostic of a word that means nothing."""


def kv(job: NamedJob, words: Sequence[str], what: str, unknown: Unknown) -> Answer:
    """Bytes of the caches for one position of one sequence: of all layers, on a rank and in all. `kv.Mtp`: of one module."""
    every = list(of_model(job))
    all_caches = [(op, bytes_each(op)) for op in every if is_positional(op)]
    states = [(op, bytes_each(op)) for op in every if not is_positional(op)]
    for word in words:
        known = {name for op in every for name in op.path.data.split(".")}
        if word not in known:
            raise unknown(what, word, sorted(known))
    classes = tuple(of_class(job, each, words) for each in job.classes)
    notes: list[str] = []
    if job.compiled.checked.batch is None and every:
        notes = ["the plan serves nothing, so ranks keep nothing; all of them together would"]
    state = total(size for op, size in states if is_chosen(op, words))
    if state:
        size = f"{state.integer(job.names.values):,} bytes"
        notes += [f"and {size} of state for each sequence, however long, on all ranks together"]
    title = "bytes of cache for each position of a sequence"
    form = total(size for op, size in all_caches if is_chosen(op, words))
    whole = Amount(form, form.integer(job.names.values)) if form else None
    return Answer(title, "B", classes, tuple(notes), is_additive=False, whole=whole)


def is_chosen(cache: stg.CacheOp, words: Sequence[str]) -> bool:
    return set(words) <= set(cache.path.data.split("."))


def of_class(job: NamedJob, each: ClassOperations, words: Sequence[str]) -> ClassAnswer:
    """On a rank: of what is cut over an axis its part."""
    parts = [
        Contribution(
            stg.scope_of(op),
            line_of(op.location),
            op.path.data,
            stg.made_by(op),
            job.names.write(form, stage.stage),
            ceil(form.evaluate(stage.values)),
        )
        for stage in each.run.stages
        for op, form in caches(stage.program)
        if is_chosen(op, words)
    ]
    return of_parts(each.name, each.where, parts)


def caches(program: stg.ProgramOp) -> Iterator[tuple[stg.CacheOp, Size]]:
    """The caches that hold positions, and their bytes for each."""
    for op in program.body.block.ops:
        if isinstance(op, stg.CacheOp) and is_positional(op):
            yield op, bytes_each(op)


def is_positional(cache: stg.CacheOp) -> bool:
    """Whether a cache grows with the positions of a sequence; state does not."""
    return any(stg.is_stored(name) for name in tensor_of(cache.cache.type).names)


def bytes_each(cache: stg.CacheOp) -> Size:
    """Bytes for one position of a sequence, or for one sequence. Of positions that devices share one has its part, on average."""
    kept = cache.cache.type
    assert isinstance(kept, ValueType)
    sequences, *others = tensor_of(kept).dims
    counted = [symbol(d.name) for d in others if stg.is_stored(d.name) or d.name == stg.SEQUENCES]
    return kept.num_bytes / product([sequences.size, *counted])


def of_model(job: NamedJob) -> Iterator[stg.CacheOp]:
    """The caches of the whole model, however it is spread over devices."""
    module = job.compiled.with_caches
    for op in module.body.ops if module is not None else ():
        if isinstance(op, stg.ProgramOp):
            yield from (each for each in op.body.block.ops if isinstance(each, stg.CacheOp))
