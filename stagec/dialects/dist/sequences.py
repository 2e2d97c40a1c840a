"""Which sequences an iteration of serving computes, where they are not the same on every device or in every iteration.

    dist.sequences over [dp] sums {S = "sequence.new", T = "sequence.context + sequence.new"} of "1x512@0 63x1@1500|64x1@1500, 64x1@1501|64x1@1501"

One iteration after the other, with commas between; in each the sequences of every device along `over`, with bars between: so many, of so many new
positions, after so many others; `64x4@1500*4` are such that logits of four new positions are made of each, and not of one.
The names of `sums` are sizes: each is a sum over the sequences of a device in an iteration. What numbers they have is `stagec.analysis.sequences`.
`in 2 by "tokens"` says that a device computes them in two microbatches, and what these have alike. `together`: the devices are of another pool, whose
tokens all come to each of this one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np
from xdsl.dialects.builtin import (
    DenseArrayBase,
    DictionaryAttr,
    IntegerAttr,
    StringAttr,
    UnitAttr,
    i64,
)
from xdsl.irdl import irdl_attr_definition, opt_prop_def, prop_def

from stagec.dialects.attributes import NamesAttr, SizeAttr
from stagec.dialects.op import DialectOp, op_definition
from stagec.dialects.text_forms import WrittenData, quoted
from stagec.symbolic import ONE, Size, symbol
from stagec.symbolic.columns import LIMIT, Columns

COUNT, NEW, CONTEXT = "sequence.count", "sequence.new", "sequence.context"
SAMPLED = "sequence.sampled"
"""Names of sizes that a sum is over: sequences that are alike, their new positions, those before them, and of the new ones those that logits are made of."""

OF_ONE = (COUNT, NEW, CONTEXT, SAMPLED)
"""These names, in the order of a `Kind`."""

KIND = re.compile(r"(\d{1,15})x(\d{1,15})@(\d{1,15})(?:\*(\d{1,15}))?")

Kind = tuple[int, int, int, int]
"""How many sequences, of how many new positions, after how many others, with logits of how many."""

TOKENS, SEQUENCES = "tokens", "sequences"
"""What microbatches have as much of: of new positions, for which a sequence may be cut, or of whole sequences as nearly as these allow."""


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

    def most_microbatches(self, by: str) -> np.ndarray:
        """[iterations]: as many as every device can have that have something to compute."""
        units = self.sums(ONE if by == SEQUENCES else symbol(NEW))
        return np.asarray(units.min(axis=0), np.int64)

    def microbatches(self, number: int, by: str) -> list[DealtSequences]:
        """The same in so many microbatches, in the order of the sequences: what of a cut one is behind the cut goes on after what is before it.

        By tokens all have as many, and the last what is left (`create_ubatch_slices` of vLLM, where a request may be in several). By sequences one
        ends where a sequence does, as near to its share of tokens as can be (`_split_array_by_balanced_sum` of SGLang's two-batch overlap).
        """
        tokens, sequences = (self.sums(each).T.reshape(-1) for each in (symbol(NEW), ONE))
        if by == TOKENS:
            edges = [tokens // number * at for at in range(number)]
        else:
            edges = [np.zeros_like(tokens)]
            passed = np.zeros_like(sequences)
            for at in range(1, number):
                least, most = passed + 1, sequences - (number - at)
                passed = np.clip(self.nearest_end(tokens * at, number), least, most)
                edges.append(self.tokens_of_first(passed))
        return [self.between(*pair) for pair in pairwise([*edges, tokens])]

    @property
    def together(self) -> DealtSequences:
        """The sequences of all devices, as if one device had them."""
        return DealtSequences(self.kinds, self.ends[:, -1:])

    @cached_property
    def cells(self) -> np.ndarray:
        """For each kind, which device in which iteration it belongs to. The devices of an iteration stand together."""
        return np.repeat(np.arange(self.ends.size), np.diff(self.ends.reshape(-1), prepend=0))

    def before(self, of_kinds: np.ndarray) -> np.ndarray:
        """What of some number the kinds have that stand before each on its device."""
        ends = np.cumsum(of_kinds)
        return ends - of_kinds - np.concatenate([[0], ends])[self.starts.reshape(-1)][self.cells]

    def nearest_end(self, tokens: np.ndarray, parts: int) -> np.ndarray:
        """[cells]: behind how many sequences a device has computed most nearly so many new tokens, each of which counts as `parts`; of two, the later."""
        counts, new = self.kinds[:, 0], self.kinds[:, 1]
        begin, wanted = self.before(counts * new) * parts, tokens[self.cells]
        of_kind = np.clip((2 * (wanted - begin) + parts * new) // (2 * parts * new), 0, counts)
        found = self.before(counts) + of_kind
        away = np.abs(begin + of_kind * new * parts - wanted)
        order = np.lexsort((-found, away, self.cells))
        return found[order[np.unique(self.cells[order], return_index=True)[1]]]

    def tokens_of_first(self, sequences: np.ndarray) -> np.ndarray:
        """[cells]: the new tokens of so many sequences of each device, the first ones."""
        counts, new = self.kinds[:, 0], self.kinds[:, 1]
        here = np.clip(sequences[self.cells] - self.before(counts), 0, counts) * new
        ends = np.concatenate([[0], np.cumsum(here)])
        return (ends[self.ends] - ends[self.starts]).reshape(-1)

    def between(self, low: np.ndarray, high: np.ndarray) -> DealtSequences:
        """What of the new tokens of each device in each iteration is from one to another."""
        count, new, before, sampled = self.kinds.T
        begin = self.before(count * new)
        low, high = (np.clip(edge[self.cells] - begin, 0, count * new) for edge in (low, high))
        (first, skipped), (last, rest) = np.divmod(low, new), np.divmod(high, new)
        inside, is_cut = first == last, skipped > 0
        head = np.where(inside, rest, np.where(is_cut, new, 0)) - skipped
        parts = (
            (np.minimum(head, 1), head, before + skipped),
            (np.where(inside, 0, last - first - is_cut), new, before),
            (np.where(inside, 0, np.minimum(rest, 1)), rest, before),
        )
        kinds = np.stack([[*part, np.where(sampled > 1, part[1], 1)] for part in parts])
        kinds = kinds.transpose(2, 0, 1).reshape(-1, 4)
        there = kinds[:, 0] > 0
        ends = np.concatenate([[0], np.cumsum(there)])[3 * self.ends]
        return DealtSequences(np.ascontiguousarray(kinds[there]), ends)

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
class SequencesAttr(WrittenData[DealtSequences]):
    """The sequences of iterations: `"1x512@0 63x1@1500, 64x1@1501"`."""

    name = "dist.sequences_of"
    FORM: ClassVar = quoted("sequences", read_sequences)


@op_definition
class SequencesOp(DialectOp):
    """The sequences of one iteration, or of a series of them, on the devices along `over`; and the sizes that are sums over them.

    A sum is a size in `sequence.new` and `sequence.context`, of one sequence. Of a size that no sum is, and that does not follow from one, all
    devices and all iterations have the same.
    """

    name = "dist.sequences"

    over = prop_def(NamesAttr)
    sums = prop_def(DictionaryAttr)
    sequences = prop_def(SequencesAttr)
    number = opt_prop_def(IntegerAttr.constr(i64))
    """The number of microbatches, and below what they have alike."""
    by = opt_prop_def(StringAttr)
    together = opt_prop_def(UnitAttr)

    assembly_format = "`over` $over `sums` $sums `of` $sequences (`in` $number^ `by` $by)? (`together` $together^)? attr-dict"

    def __init__(
        self,
        over: Iterable[str],
        sums: Mapping[str, Size],
        sequences: DealtSequences,
        microbatches: int = 1,
        by: str = TOKENS,
        together: bool = False,
    ) -> None:
        several = microbatches > 1
        super().__init__(
            over=over,
            sums=DictionaryAttr({name: SizeAttr(size) for name, size in sums.items()}),
            sequences=SequencesAttr(sequences),
            number=microbatches if several else None,
            by=by if several else None,
            together=together,
        )

    @property
    def num_microbatches(self) -> int:
        return 1 if self.number is None else self.number.value.data

    @property
    def sizes(self) -> dict[str, Size]:
        """The sum of each name."""
        return {n: each.data for n, each in self.sums.data.items() if isinstance(each, SizeAttr)}

    def verify_(self) -> None:
        if len(self.sizes) < len(self.sums.data):
            raise self.mistake("a sum is a size of one sequence")
        sequences = self.sequences.data
        if not sequences.num_iterations:
            raise self.mistake("there is no iteration")
        is_one = not len(self.over.data) and self.together is None
        if is_one and sequences.num_devices != 1:
            raise self.mistake("without axes there is one device")
        if (self.number is None) != (self.by is None):
            raise self.mistake("microbatches have something alike")
        if self.by is None:
            return
        if self.by.data not in (TOKENS, SEQUENCES):
            raise self.mistake(f"microbatches are no `{self.by.data}` each")
        if not 1 < self.num_microbatches <= sequences.most_microbatches(self.by.data).min():
            raise self.mistake("a microbatch has nothing to compute")


@op_definition
class HandedNumbersOp(DialectOp):
    """How much an iteration of a pool hands over or takes, in each iteration: sizes that are no sums over its own sequences.

    dist.handed_numbers {handed.0 = array<i64: 2048, 512>}
    """

    name = "dist.handed_numbers"

    numbers = prop_def(DictionaryAttr)

    assembly_format = "$numbers attr-dict"

    def __init__(self, numbers: Mapping[str, Sequence[int]]) -> None:
        arrays = {n: DenseArrayBase.from_list(i64, list(own)) for n, own in numbers.items()}
        super().__init__(numbers=DictionaryAttr(arrays))

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
            raise self.mistake("a name has a number in each iteration")
        if len({len(own) for own in columns.values()}) > 1:
            raise self.mistake("names are of as many iterations")
