"""Which sequences an iteration of serving computes, where they are not the same on every device or in every iteration.

    dist.sequences over [dp] sums {S = "sequence.new", T = "sequence.context + sequence.new"} of "1x512@0 63x1@1500|64x1@1500, 64x1@1501|64x1@1501"

One iteration after the other, with commas between; in each the sequences of every device along `over`, with bars between: so many, of so many new
positions, after so many others; `64x4@1500*4` are such that logits of four new positions are made of each, and not of one.
The names of `sums` are sizes: each is a sum over the sequences of a device in an iteration. What numbers they have is `stagec.analysis.sequences`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from xdsl.dialects.builtin import DenseArrayBase, DictionaryAttr, i64
from xdsl.ir import Data
from xdsl.irdl import IRDLOperation, irdl_attr_definition, irdl_op_definition, prop_def
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import NamesAttr, SizeAttr, parse_quoted
from stagec.symbolic import Size
from stagec.symbolic.columns import LIMIT, Columns

COUNT, NEW, CONTEXT = "sequence.count", "sequence.new", "sequence.context"
SAMPLED = "sequence.sampled"
"""Names of sizes that a sum is over: sequences that are alike, their new positions, those before them, and of the new ones those that logits are made of."""

OF_ONE = (COUNT, NEW, CONTEXT, SAMPLED)
"""These names, in the order of a `Kind`."""

KIND = re.compile(r"(\d{1,15})x(\d{1,15})@(\d{1,15})(?:\*(\d{1,15}))?")

Kind = tuple[int, int, int, int]
"""How many sequences, of how many new positions, after how many others, with logits of how many."""


@dataclass(frozen=True, eq=False)
class DealtSequences:
    """The sequences of a series of iterations, on each of some devices."""

    kinds: np.ndarray
    """int64 [n, 4]: count, new positions, positions before, positions with logits."""
    ends: np.ndarray
    """int64 [iterations, devices]: where the kinds of each end."""
    _sums: dict[Size, np.ndarray] = field(default_factory=dict, init=False, repr=False)

    @staticmethod
    def of(iterations: Sequence[Sequence[Sequence[Kind]]]) -> DealtSequences:
        """From the kinds of each device in each iteration."""
        lengths = [[len(device) for device in devices] for devices in iterations]
        kinds = [kind for devices in iterations for device in devices for kind in device]
        ends = np.cumsum(np.array(lengths, np.int64).reshape(-1))
        shape = (len(lengths), len(lengths[0]) if lengths else 0)
        return DealtSequences(np.array(kinds, np.int64).reshape(-1, 4), ends.reshape(shape))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, DealtSequences)
            and np.array_equal(self.kinds, other.kinds)
            and np.array_equal(self.ends, other.ends)
        )

    def __hash__(self) -> int:
        return hash((self.kinds.tobytes(), self.ends.tobytes()))

    @property
    def num_iterations(self) -> int:
        return len(self.ends)

    @property
    def num_devices(self) -> int:
        return self.ends.shape[1]

    @cached_property
    def starts(self) -> np.ndarray:
        """Where the kinds of each device begin, by iteration."""
        return np.concatenate([[0], self.ends.reshape(-1)[:-1]]).reshape(self.ends.shape)

    def sums(self, of_one: Size) -> np.ndarray:
        """What sequences have of a size in the names of `OF_ONE`, added up: [devices, iterations], exact. Found once for all who ask."""
        if of_one not in self._sums:
            columns: dict[str, np.ndarray] = dict(zip(OF_ONE, self.kinds.T, strict=True))
            terms, counts = Columns(columns, len(self.kinds)).number(of_one), self.kinds[:, 0]
            is_small = terms.dtype != object and (terms.astype(float) * counts).sum() < LIMIT
            terms = terms if is_small else terms.astype(object)
            ends = np.concatenate([[0], np.cumsum(terms * counts)])
            found = ends[self.ends] - ends[self.starts]
            self._sums[of_one] = np.ascontiguousarray(found.T)
        return self._sums[of_one]

    def at(self, iteration: int, device: int) -> list[Kind]:
        """The sequences of a device in an iteration."""
        here = slice(int(self.starts[iteration, device]), int(self.ends[iteration, device]))
        return [
            (count, new, before, logits) for count, new, before, logits in self.kinds[here].tolist()
        ]

    def __str__(self) -> str:
        words = [
            f"{count}x{new}@{context}" + (f"*{sampled}" if sampled != 1 else "")
            for count, new, context, sampled in self.kinds.tolist()
        ]
        places = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return ", ".join(
            "|".join(" ".join(words[a:b]) for a, b in zip(first, last, strict=True))
            for first, last in places
        )


def read_sequences(text: str) -> DealtSequences:
    """The same from text. ValueError where it is none."""
    iterations: list[list[list[Kind]]] = []
    for iteration in text.split(","):
        iterations.append([kinds_in(device) for device in iteration.split("|")])
    if len({len(devices) for devices in iterations}) > 1:
        raise ValueError("iterations are on as many devices each")
    return DealtSequences.of(iterations)


def kinds_in(text: str) -> list[Kind]:
    found: list[Kind] = []
    for word in text.split():
        match = KIND.fullmatch(word)
        if match is None:
            raise ValueError(f"`{word}` are not sequences, like `64x1@1500`")
        count, new, context, sampled = map(int, match.groups("1"))
        if not count or not new or not 0 < sampled <= new:
            raise ValueError(f"`{word}` computes nothing")
        found.append((count, new, context, sampled))
    return found


@irdl_attr_definition
class SequencesAttr(Data[DealtSequences]):
    """The sequences of iterations: `"1x512@0 63x1@1500, 64x1@1501"`."""

    name = "dist.sequences_of"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> DealtSequences:
        return parse_quoted(parser, "sequences", read_sequences)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f'"{self.data}"')


@irdl_op_definition
class SequencesOp(IRDLOperation):
    """The sequences of one iteration, or of a series of them, on the devices along `over`; and the sizes that are sums over them.

    A sum is a size in `sequence.new` and `sequence.context`, of one sequence. Of a size that no sum is, and that does not follow from one, all
    devices and all iterations have the same.
    """

    name = "dist.sequences"

    over = prop_def(NamesAttr)
    sums = prop_def(DictionaryAttr)
    sequences = prop_def(SequencesAttr)

    assembly_format = "`over` $over `sums` $sums `of` $sequences attr-dict"

    def __init__(
        self, over: Iterable[str], sums: Mapping[str, Size], sequences: DealtSequences
    ) -> None:
        super().__init__(
            properties={
                "over": NamesAttr(tuple(over)),
                "sums": DictionaryAttr({name: SizeAttr(size) for name, size in sums.items()}),
                "sequences": SequencesAttr(sequences),
            }
        )

    @property
    def sizes(self) -> dict[str, Size]:
        """The sum of each name."""
        return {n: each.data for n, each in self.sums.data.items() if isinstance(each, SizeAttr)}

    def verify_(self) -> None:
        if len(self.sizes) < len(self.sums.data):
            raise VerifyException("dist.sequences: a sum is a size of one sequence")
        sequences = self.sequences.data
        if not sequences.num_iterations:
            raise VerifyException("dist.sequences: there is no iteration")
        if not len(self.over.data) and sequences.num_devices != 1:
            raise VerifyException("dist.sequences: without axes there is one device")


@irdl_op_definition
class HandedNumbersOp(IRDLOperation):
    """How much an iteration of a pool hands over or takes, in each iteration: sizes that are no sums over its own sequences.

    dist.handed_numbers {handed.0 = array<i64: 2048, 512>}
    """

    name = "dist.handed_numbers"

    numbers = prop_def(DictionaryAttr)

    assembly_format = "$numbers attr-dict"

    def __init__(self, numbers: Mapping[str, Sequence[int]]) -> None:
        arrays = {n: DenseArrayBase.from_list(i64, list(own)) for n, own in numbers.items()}
        super().__init__(properties={"numbers": DictionaryAttr(arrays)})

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """By name."""
        return {
            name: np.array(own.get_values(), np.int64)
            for name, own in self.numbers.data.items()
            if isinstance(own, DenseArrayBase)
        }

    def verify_(self) -> None:
        columns = self.columns
        if len(columns) < len(self.numbers.data):
            raise VerifyException("dist.handed_numbers: a name has a number in each iteration")
        if len({len(own) for own in columns.values()}) > 1:
            raise VerifyException("dist.handed_numbers: names are of as many iterations")
