"""`ask`: from the words of a question to its answer. A word that means nothing here is E0715."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from stagec.diagnostics import CompileError, did_you_mean, line_of, quoted, refused
from stagec.dialects import dist, stg
from stagec.dialects.op import first_op
from stagec.dialects.types import ValueType
from stagec.explaining.bubble import bubble
from stagec.explaining.cache_room import cache_room
from stagec.explaining.job import NamedJob
from stagec.explaining.kv_cache import kv
from stagec.explaining.memory import memory
from stagec.explaining.papers import sources
from stagec.explaining.quantities import (
    MEASURES,
    Answer,
    ClassAnswer,
    Contribution,
    bytes_of,
    chosen_terms,
    flops_of,
    of_parts,
    summed,
)
from stagec.explaining.rolled_operations import Amount, ClassOperations, Term
from stagec.step_count import weights_of_stages
from stagec.symbolic import product, symbol

Asker = Callable[[NamedJob, Sequence[str], str], Answer]

KINDS = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter", "send", "recv")
"""The kinds of communication."""


def ask(job: NamedJob, what: str) -> Answer:
    """The answer to `flops`, `comm.tp.all_gather`, ..."""
    subject, *words = what.split(".")
    if "," in what:
        message = f"`{what}` are several quantities, and one is explained at a time"
        help_ = "ask for one of them, or for a table of all: `--sweep tp=1,2,4`"
        raise refused("E0715", message, origin=f"explain {what}", help=help_)
    if subject == "step_time":
        help_ = (
            "`stagec explain MODEL.stg step_time` lists its parts, "
            "and in Python `Job.step_time` and `Job.headline` have it"
        )
        raise refused(
            "E0715", "`step_time` is no sum of costs", origin=f"explain {what}", help=help_
        )
    if subject not in SUBJECTS:
        known = (*SUBJECTS, "step_time")
        raise unknown(what, subject, known, f"there are {quoted(known)}")
    answer = SUBJECTS[subject](job, words, what)
    if subject != "ranks":
        answer = replace(answer, notes=(*answer.notes, *of_these_sizes(job)))
    if not job.names.parts:
        return answer
    classes = (each.with_names(job.names.parts_at(each.where)) for each in answer.classes)
    return replace(answer, classes=tuple(classes))


def of_these_sizes(job: NamedJob) -> Iterator[str]:
    """What is a number in a form, though it follows from sizes: with others the form is another."""
    if numbers := [str(number) for number in sorted(job.names.layers_as_numbers)]:
        yield f"layers of stages are numbers in the form ({', '.join(numbers)}): of others it may be another"
    if any("pads" in stg.marks(op) for op in job.compiled.module.walk()):
        yield "what pads the ends of buckets is a number in the form: with other sizes it may be another"
    if first_op(job.compiled.module, dist.ExpertLoadOp) is not None:
        yield "tokens of single experts are numbers in the form, layer by layer: with other sizes it is another"
    for setting, formula in job.compiled.plan.formulas.items():
        yield f"`{setting}` of the plan is a number in the form: with other sizes `{formula}` may be another"


def unknown(what: str, word: str, known: Iterable[str], otherwise: str = "") -> CompileError:
    """A word of a question that stands for nothing."""
    known = sorted(known)
    subject = what.partition(".")[0]
    message = f"nothing of `{subject}` is called `{word}`"
    if word == subject:
        message = f"there is no quantity `{word}`"
    listed = f"there are {quoted(known)}" if known else f"ask for `{what.removesuffix(f'.{word}')}`"
    help_ = did_you_mean(word, known) or otherwise or listed
    return refused("E0715", message, origin=f"explain {what}", help=help_)


def check_words(
    job: NamedJob, words: Sequence[str], what: str, wants: Callable[[Term], bool]
) -> None:
    """Each word is one of the terms', or one that some plan has terms for."""
    known = {word for c in job.classes for term in c.terms if wants(term) for word in term.words}
    known |= {*stg.PHASES, "matrix", "other", "load", "store", "read", "write"}
    known |= {"host_update", "host_sum", "host_norm", "host_finite"}
    for word in words:
        if word not in known:
            raise unknown(what, word, known)


def of_terms(
    job: NamedJob,
    title: str,
    unit: str,
    choose: Callable[[ClassOperations], Sequence[Term]],
    measure: Callable[[Term], Amount],
    notes: Sequence[str] = (),
) -> Answer:
    """The sum of a measure over the terms that are chosen."""
    classes = tuple(
        summed(each.name, each.where, ((term, measure(term)) for term in choose(each)))
        for each in job.classes
    )
    parts = [part for each in classes for part in each.parts]
    found = sources((part.made_by for part in parts), (part.op for part in parts))
    return Answer(title, unit, classes, tuple(notes), found)


def flops(job: NamedJob, words: Sequence[str], what: str) -> Answer:
    """`flops`, `flops.matrix`, `flops.bwd`, `flops.contract`, `flops.SwiGLU`."""
    check_words(job, words, what, lambda term: term.is_computation)
    notes = free_nodes(job) if not words else []
    title = "floating-point operations of one step"
    return of_terms(job, title, "FLOPs", lambda c: chosen_terms(c, words), flops_of, notes)


def free_nodes(job: NamedJob) -> list[str]:
    """Traces say 1 for nodes that cost nothing: simulators never end one of 0."""
    free = {
        sum(t.count.number for t in c.terms if t.is_computation and not t.amounts.flops.number)
        for c in job.classes
    }
    most = max(free, default=0)
    if not most:
        return []
    number = f"{most:,}" if len(free) == 1 else f"up to {most:,}"
    return [f"{number} nodes of a rank compute nothing; a trace says 1 for each"]


def moved_bytes(job: NamedJob, words: Sequence[str], what: str) -> Answer:
    """`bytes`, `bytes.read`, `bytes.written`, and as for FLOPs."""
    measures = {"read": lambda t: t.amounts.read, "written": lambda t: t.amounts.written}
    measure = bytes_of
    rest = list(words)
    for word in words:
        if word in measures:
            measure = measures[word]
            rest.remove(word)
    check_words(job, rest, what, lambda term: term.is_computation)
    title = "bytes read from and written to device memory in one step"
    return of_terms(job, title, "B", lambda c: chosen_terms(c, rest), measure)


def communication(job: NamedJob, words: Sequence[str], what: str) -> Answer:
    """`comm`, `comm.tp`, `comm.dp+tp.all_reduce.count`, `comm.tp.SwiGLU`; with another pool, `comm.decode`."""
    measure, axes, rest = "operand_bytes", None, []
    products, over = job.compiled.plan.products, [*job.names.mesh, *job.names.pools]
    for word in with_parts_of_axes(words, over):
        parts = [a for part in word.split("+") for a in products.get(part, (part,))]
        if word in MEASURES:
            measure = word
        elif axes is None and all(part in over for part in parts):
            axes = frozenset(parts)
        else:
            rest.append(word)
    known = {*KINDS, *MEASURES, *over, *products}
    if rest:
        known |= {w for c in job.classes for t in c.terms if t.is_communication for w in t.words}
    for word in rest:
        if word not in known:
            raise unknown(what, word, known, f"there are {quoted([*over, *KINDS, *MEASURES])}")

    counts = COUNTS[measure] if not TRANSFERS & {*rest} else lambda term: term.is_communication

    def choose(each: ClassOperations) -> list[Term]:
        found = [term for term in chosen_terms(each, rest) if counts(term)]
        return found if axes is None else [term for term in found if set(term.axes) == axes]

    title = COUNTED[measure]
    if axes is not None:
        title += f" over {' x '.join(sorted(axes))}"
    unit = "" if measure == "count" else "B"
    notes = []
    if measure == "count" and job.compiled.plan.gradients.bucket_bytes:
        notes = ["gradients travel in buckets: a trace has fewer collectives, of the same bytes"]
    return of_terms(job, title, unit, choose, MEASURES[measure], notes)


def with_parts_of_axes(words: Sequence[str], axes: Iterable[str]) -> list[str]:
    """The words of a question, in which an axis that a rule has divided (`tp.copies`) is one word."""
    text, hidden = ".".join(words), "\0"
    for axis in (axis for axis in axes if "." in axis):
        one_word = axis.replace(".", hidden)
        text = re.sub(rf"(?<![^.+]){re.escape(axis)}(?![^.+])", one_word, text)
    return [word.replace(hidden, ".") for word in text.split(".")] if words else []


TRANSFERS = {"send", "recv"}
"""Ends of a transfer. Whoever asks for one has the bytes that travel; else these count once in all ranks together, where they are sent or received."""

COUNTS: dict[str, Callable[[Term], bool]] = {
    "operand_bytes": lambda term: term.counted.puts_in,
    "result_bytes": lambda term: term.counted.gets_out,
    "sent_bytes": lambda term: term.is_communication,
    "count": lambda term: term.is_communication,
}
"""The communication of which each measure is taken."""

COUNTED = {
    "operand_bytes": "bytes that a rank puts into collectives and sends in one step",
    "result_bytes": "bytes that a rank has after communication in one step",
    "sent_bytes": "bytes that a rank sends in one step, collectives on a ring",
    "count": "communications in one step",
}


def host_copies(job: NamedJob, words: Sequence[str], what: str) -> Answer:
    """`host`, `host.load`, `host.store`."""
    check_words(job, words, what, lambda term: term.is_copy)
    title = "bytes copied between host and device in one step"

    def choose(each: ClassOperations) -> list[Term]:
        return [term for term in chosen_terms(each, words) if term.is_copy]

    return of_terms(job, title, "B", choose, lambda term: term.amounts.before)


def parameters(job: NamedJob, words: Sequence[str], what: str) -> Answer:
    """`params`: stored on a rank, and of the model."""
    known = {
        word
        for c in job.classes
        for op, _ in weights_of_stages(c.run.stages)
        for word in op.path.data.split(".")
    }
    for word in words:
        if word not in known:
            raise unknown(what, word, known)
    classes = tuple(parameters_of(job, each, words) for each in job.classes)
    whole = None
    if not words:
        form = job.whole_parameters
        whole = Amount(form, form.integer(job.names.values))
    return Answer("parameters", "", classes, is_additive=False, whole=whole)


def parameters_of(job: NamedJob, each: ClassOperations, words: Sequence[str]) -> ClassAnswer:
    """A weight that two stages of a rank share is there once."""
    parts: list[Contribution] = []
    for op, stage in weights_of_stages(each.run.stages):
        if set(words) <= set(op.path.data.split(".")):
            kind = op.weight.type
            assert isinstance(kind, ValueType)
            form = kind.num_elements
            parts.append(
                Contribution(
                    stg.scope_of(op),
                    line_of(op.location),
                    op.path.data,
                    stg.made_by(op),
                    job.names.write(form, stage.stage),
                    form.integer(stage.values),
                )
            )
    return of_parts(each.name, each.where, parts)


def kept_memory(job: NamedJob, words: Sequence[str], what: str) -> Answer:
    return memory(job, words, what, unknown)


def cache_of_a_position(job: NamedJob, words: Sequence[str], what: str) -> Answer:
    """With how many a device has room for, if the plan serves on one."""
    found = kv(job, words, what, unknown)
    room = None if words or job.sampled else cache_room(job)
    return found if room is None else replace(found, notes=(*found.notes, *room.notes))


def idle_time(job: NamedJob, words: Sequence[str], what: str) -> Answer:
    if words:
        raise unknown(what, words[0], ())
    return bubble(job)


def ranks(job: NamedJob, words: Sequence[str], what: str) -> Answer:
    """`ranks`: devices of the mesh."""
    if words:
        raise unknown(what, words[0], ())
    form = product(symbol(axis) for axis in job.names.mesh)
    found = ClassAnswer("all", {}, form, form.integer(job.names.values), ())
    return Answer("devices of the mesh", "", (found,), is_additive=False)


SUBJECTS: dict[str, Asker] = {
    "flops": flops,
    "bytes": moved_bytes,
    "comm": communication,
    "bubble": idle_time,
    "host": host_copies,
    "kv": cache_of_a_position,
    "memory": kept_memory,
    "params": parameters,
    "ranks": ranks,
}
"""What can be asked for, by its first word."""

OVERVIEW = (
    "params",
    "memory.peak",
    "memory.static",
    "memory.activations",
    "flops.matrix",
    "flops.other",
    "bytes",
)
"""What an overview shows, besides communication by axis."""
