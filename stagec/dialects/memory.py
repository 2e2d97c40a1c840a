"""What nodes do with memory, and what becomes of what they make.

    sched.compute "optimizer_step" (%w, %g, %m) ... updates 1 states 2 "fp32" overwrites 0 by 2
    sched.collective "all_gather" (%s) ... memory <[gathered], frees 0>

*Effects* are an op's own: it says them of itself (`TaskInterface.effects`), and they hold wherever it stands. The *plan* is
`plan-memory`'s: it depends on the program around the op, and on what a framework does with its buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition, prop_def
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from stagec.dialects.attributes import print_lines
from stagec.dialects.op import DefaultBuilder, DialectOp, op_definition
from stagec.dialects.text_forms import (
    NUMBER,
    SIZE,
    WrittenData,
    angled,
    behind,
    flag,
    listed,
    one_of,
    option,
    pair,
    quoted,
    record,
    repeated,
    text,
    word,
)
from stagec.dialects.types import DTYPE_BITS
from stagec.symbolic import Size


class Kind(IntEnum):
    """What memory is used for, in the order in which tables and charts show it."""

    PARAMETERS = 0
    TRANSPOSED = 1
    """Second copies of quantized weights, as products along the other dim read them."""
    MASTER = 2
    OPTIMIZER = 3
    GRADIENTS = 4
    CACHE = 5
    PROCESS = 6
    """What a process keeps beside the tensors of its program."""
    SAVED = 7
    RECOMPUTED = 8
    DEFERRED = 9
    GATHERED = 10
    FETCHED = 11
    COMMUNICATION = 12
    INPUTS = 13
    TEMPORARIES = 14
    HOST = 15
    """In the memory of the host: no part of a device's."""
    NVME = 16
    """Beyond that memory, on NVMe."""


BEYOND = (Kind.HOST, Kind.NVME)
"""Kinds that are no memory of a device: the last ones."""


class MemoryLevel(IntEnum):
    """Where what stays from step to step is."""

    DEVICE = 0
    HOST = 1
    NVME = 2


STORED: tuple[Kind, ...] = (
    Kind.PARAMETERS,
    Kind.TRANSPOSED,
    Kind.MASTER,
    Kind.OPTIMIZER,
    Kind.GRADIENTS,
    Kind.CACHE,
    Kind.PROCESS,
)
"""What stays from step to step."""

CONTIGUOUS, PARTITIONED, COPIED, KEPT = "contiguous", "partitioned", "copied", "kept"
GRADIENTS = (CONTIGUOUS, PARTITIONED, COPIED, KEPT)
WHOLE_GRADIENTS = (CONTIGUOUS, KEPT)
"""What a framework does with the memory of gradients: see `passes/memory/plan_memory/__init__.py`."""

ALWAYS, ALONE, WHOLE = "always", "alone", "whole"
WHEN = (ALWAYS, ALONE, WHOLE)


@dataclass(frozen=True)
class Overwrite:
    """A result that takes the memory of an operand: `overwrites 0 by 1 alone`."""

    operand: int
    result: int
    when: str = ALWAYS
    """`always`; `alone`: where nobody else reads the operand; `whole`: where ranks keep gradients whole, of which it is a part."""


@dataclass(frozen=True)
class Repetition:
    """The first result repeats each of `count` elements of the first operand: of one, repetitions are strides of no bytes."""

    count: Size
    dim: str = ""
    """The dim of the result along which the repetitions lie."""


@dataclass(frozen=True)
class Update:
    """The first operands are weights, as many more their gradients; state that it overwrites comes from the host."""

    states: tuple[Size, ...]
    """Bytes of what a rank keeps of each weight, beside a master copy."""
    master: str | None = None
    """The dtype of the copy that is updated, if weights are narrower."""
    from_rows: bool = False
    """What follows the weights are no gradients: rows are updated from what flows back to them."""


@dataclass(frozen=True)
class Effects:
    """What an op does with memory besides reading its operands and writing results into memory of their own."""

    overwrites: tuple[Overwrite, ...] = ()
    repeats: Repetition | None = None
    reads_dense: bool = False
    """It copies an operand that is a repetition of one element, before it reads it, unless that is the only one along the batch dims."""
    batch: tuple[tuple[str, Size], ...] = ()
    """The dims, and their sizes, along which it computes side by side."""
    one_buffer: bool = False
    """Its results are one buffer, there until the last part of it was read."""
    makes: Kind | None = None
    """What its results are for. None: for what reads them."""
    replaces: str = ""
    """The name of a buffer of which there is one at a time: its results take the place of what was put there before."""
    updates: Update | None = None

    def __str__(self) -> str:
        return EFFECTS.written(self)


PLAIN = Effects()


def known_dtype(found: str) -> str:
    if found not in DTYPE_BITS:
        raise ValueError(f"there is no dtype `{found}`")
    return found


DTYPE = quoted("a dtype", known_dtype)
DIM, BUFFER = text("the name of a dim"), text("the name of a buffer")
KINDS = {kind.name.lower(): kind for kind in Kind}
KIND = word("what memory is for", KINDS)
EFFECTS = record(
    Effects,
    updates=option(
        "updates",
        record(
            Update,
            states=listed(SIZE),
            master=option("master", DTYPE, None),
            from_rows=flag("rows"),
        ),
        None,
    ),
    overwrites=repeated(
        "overwrites",
        record(Overwrite, operand=NUMBER, result=behind("by", NUMBER), when=one_of(*WHEN)),
    ),
    repeats=option("repeats", record(Repetition, count=SIZE, dim=option("along", DIM, "")), None),
    reads_dense=flag("dense"),
    batch=option("batch", listed(pair(DIM, SIZE)), ()),
    one_buffer=flag("one_buffer"),
    makes=option("makes", KIND, None),
    replaces=option("replaces", BUFFER, ""),
)


@irdl_attr_definition
class EffectsAttr(WrittenData[Effects]):
    """What an op does with memory: `<overwrites 0 by 0 makes gradients>`."""

    name = "sched.effects"
    FORM: ClassVar = angled(EFFECTS)


OWN, OPERAND, REPETITION, FIRST, STAYS, ADDED = "own", "in", "repeats", "with", "stored", "added"


@dataclass(frozen=True)
class Buffer:
    """A result, as the plan has it: `temporaries in 0 of "fp32" until 3`."""

    kind: Kind
    where: str = OWN
    """`own` memory; `in` that of an operand; in that of the operand that it `repeats`, if that is one element; `with` the first result;
    `stored`: where it stays from step to step; `added`: nowhere, as the node itself adds it to the sum over microbatches."""
    operand: int = 0
    count: Size | None = None
    """How many elements a repetition repeats."""
    total: str = ""
    """The dtype of the sum over microbatches that it is a term of."""
    stays: bool = False
    """Whether that sum is a buffer that stays from step to step."""
    until: int = -1
    """The number of those with whose last it is freed, in the same iteration or, if none is in that, around it; -1: with its last reader."""
    before: bool = False
    """Whether it is freed just before that one."""

    def __str__(self) -> str:
        text = self.kind.name.lower()
        if self.where == OPERAND:
            text += f" in {self.operand}"
        elif self.where == REPETITION:
            text += f' repeats {self.operand} "{self.count}"'
        elif self.where != OWN:
            text += f" {self.where}"
        if self.total:
            text += f' of "{self.total}"' + " stays" * self.stays
        when = "before" if self.before else "until"
        return text + (f" {when} {self.until}" if self.until >= 0 else "")


@dataclass(frozen=True)
class NodeMemory:
    """What becomes of a node's results and operands."""

    buffers: tuple[Buffer, ...]
    """The buffer of each result."""
    frees: tuple[int, ...] = ()
    """The operands of which it is the last reader, in some iteration at least."""
    lasts: tuple[int, ...] = ()
    """What is freed with the last of these is freed here."""
    keeps: tuple[tuple[int, int], ...] = ()
    """Operands that are freed with the last of some, by their number."""
    replaces: str = ""
    """See `Effects`."""

    def __str__(self) -> str:
        parts = [f"[{', '.join(map(str, self.buffers))}]"]
        parts += [f"frees {' '.join(map(str, self.frees))}"] if self.frees else []
        parts += [f"keeps {operand} until {number}" for operand, number in self.keeps]
        parts += [f"last {number}" for number in self.lasts]
        parts += [f'replaces "{self.replaces}"'] if self.replaces else []
        return ", ".join(parts)


BECOMES = word(
    "what becomes of it", {each: each for each in ("frees", "keeps", "last", "replaces")}
)


@irdl_attr_definition
class MemoryAttr(Data[NodeMemory]):
    """The plan of a node's memory: `<[saved, temporaries in 0], frees 0 1>`."""

    name = "sched.memory"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> NodeMemory:
        with parser.in_angle_brackets():
            buffers = parser.parse_comma_separated_list(
                parser.Delimiter.SQUARE, lambda: parse_buffer(parser)
            )
            frees: list[int] = []
            lasts: list[int] = []
            keeps: list[tuple[int, int]] = []
            replaces = ""
            while parser.parse_optional_punctuation(","):
                what = BECOMES.read(parser)
                if what == "frees":
                    while (
                        number := parser.parse_optional_integer(allow_boolean=False)
                    ) is not None:
                        frees.append(number)
                elif what == "keeps":
                    operand = NUMBER.read(parser)
                    parser.parse_keyword("until")
                    keeps.append((operand, NUMBER.read(parser)))
                elif what == "last":
                    lasts.append(NUMBER.read(parser))
                else:
                    replaces = BUFFER.read(parser)
            return NodeMemory(tuple(buffers), tuple(frees), tuple(lasts), tuple(keeps), replaces)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")


def parse_buffer(parser: AttrParser) -> Buffer:
    made = KIND.read(parser)
    where, operand, count = OWN, 0, None
    for each in (OPERAND, REPETITION, FIRST, STAYS, ADDED):
        if parser.parse_optional_keyword(each):
            where = each
            operand = NUMBER.read(parser) if each in (OPERAND, REPETITION) else 0
            count = SIZE.read(parser) if each == REPETITION else None
            break
    total = DTYPE.read(parser) if parser.parse_optional_keyword("of") else ""
    stays = bool(total) and parser.parse_optional_keyword("stays") is not None
    before = parser.parse_optional_keyword("before") is not None
    until = NUMBER.read(parser) if before or parser.parse_optional_keyword("until") else -1
    return Buffer(made, where, operand, count, total, stays, until, before)


def verify_memory(op: DialectOp, effects: Effects, memory: NodeMemory | None) -> None:
    """Check that what is said is about operands and results that there are."""

    def need(count: int, numbers: list[int], what: str) -> None:
        if any(not 0 <= number < count for number in numbers):
            raise op.mistake(f"there is no {what} {max(numbers)}, of {count}")

    def need_other(taken: list[int]) -> None:
        if (twice := next((n for i, n in enumerate(taken) if n in taken[:i]), None)) is not None:
            raise op.mistake(f"two results are put into the memory of operand {twice}")

    operands, results = len(op.operands), len(op.results)
    need(operands, [each.operand for each in effects.overwrites], "operand")
    need_other([each.operand for each in effects.overwrites])
    need(results, [each.result for each in effects.overwrites], "result")
    if effects.repeats is not None and not (operands and results):
        raise op.mistake("a repetition has an operand and a result")
    made = effects.updates
    if made is not None and operands < (2 - made.from_rows) * len(made.states):
        raise op.mistake("an update has a weight and a gradient for each")
    if memory is None:
        return
    if len(memory.buffers) != results:
        raise op.mistake(f"a plan of {len(memory.buffers)} buffers for {results} results")
    need(
        operands, [b.operand for b in memory.buffers if b.where in (OPERAND, REPETITION)], "operand"
    )
    need_other([b.operand for b in memory.buffers if b.where == OPERAND])
    need(operands, list(memory.frees), "operand")
    need(operands, [operand for operand, _ in memory.keeps], "operand")


@dataclass(frozen=True)
class Stored:
    """What a rank keeps of a weight from step to step: `"Block.wq" optimizer "8*D*D/tp" on_host`; or its process: `"context" process "600000000"`."""

    path: str
    kind: Kind
    num_bytes: Size
    on_host: bool = False
    """It is not on the device."""
    on_nvme: bool = False
    """Nor in the memory of the host: it passes through that."""
    of_buffers: bool = False
    """It is what buffers of weights have beside them, and no weight's own."""

    @property
    def level(self) -> MemoryLevel:
        if self.on_nvme:
            return MemoryLevel.NVME
        return MemoryLevel.HOST if self.on_host else MemoryLevel.DEVICE

    @property
    def is_always(self) -> bool:
        """Whether it is there all the time. Gradients have lifetimes of their own, but for what their buffers have beside them."""
        return self.kind != Kind.GRADIENTS or self.of_buffers

    @property
    def is_of_program(self) -> bool:
        """Whether it is no weight's nor cache's own: its path is but a name."""
        return self.kind == Kind.PROCESS or self.of_buffers


STORED_ROW = record(
    Stored,
    path=text("the path of a weight"),
    kind=word("what stays", {kind.name.lower(): kind for kind in STORED}),
    num_bytes=SIZE,
    on_host=flag("on_host"),
    on_nvme=flag("on_nvme"),
    of_buffers=flag("of_buffers"),
)


@irdl_attr_definition
class StoredAttr(WrittenData[tuple[Stored, ...]]):
    """What stays from step to step, a row for each weight and kind."""

    name = "sched.stored_rows"
    FORM: ClassVar = listed(STORED_ROW, "{}")

    def print_parameter(self, printer: Printer) -> None:
        print_lines(printer, map(STORED_ROW.written, self.data))


@op_definition
class StoredOp(DefaultBuilder):
    """What a rank of a kind of stage keeps from step to step: parameters, master weights, optimizer state, caches, and what its process and
    its buffers keep beside them."""

    name = "sched.stored"

    kind = prop_def(StringAttr)
    rows = prop_def(StoredAttr)

    assembly_format = "`of` $kind $rows attr-dict"

    def verify_(self) -> None:
        for row in self.rows.data:
            if not row.is_always:
                raise self.mistake(
                    f"gradients of `{row.path}` are buffers of nodes, and said by these"
                )
