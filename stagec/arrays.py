"""Numpy arrays, called by what they hold. Their shapes stand in brackets where they are made."""

import numpy as np

Bools = np.ndarray
Ints = np.ndarray
Floats = np.ndarray


def widened(rows: Ints, width: int, filling: int) -> Ints:
    """The rows `[n, columns]` with columns of a number behind them: `[n, width]`. `np.pad` takes ten times as long for it."""
    found = np.full((len(rows), width), filling, rows.dtype)
    found[:, : rows.shape[1]] = rows
    return found


def places_of_each(labels: Ints) -> list[Ints]:
    """Where each label from 0 stands, for one after the other of those that there are."""
    order = np.argsort(labels, kind="stable")
    found = labels[order]
    begins = np.flatnonzero(np.diff(found, prepend=-1))
    return (
        np.split(order[np.searchsorted(found, 0) :], begins[1:] - begins[0]) if len(begins) else []
    )


def laid_out(template: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """Lay instances of templates out one after the other: for each part, the number of its instance, and which of the parts of all templates it is."""
    count = lengths[template]
    instance = np.repeat(np.arange(len(template), dtype=np.int32), count)
    begin = (np.cumsum(lengths) - lengths)[template] - (np.cumsum(count) - count)
    part = begin.astype(np.int32)[instance]
    part += np.arange(len(instance), dtype=np.int32)
    return instance, part


def distinct(numbers: Ints) -> Ints:
    """The numbers of an array, each once and in order: `np.unique`, which loads masked arrays first."""
    ordered = np.sort(numbers, axis=None)
    is_first = np.ones(len(ordered), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


def distinct_rows(table: Ints) -> tuple[Ints, Ints, Ints]:
    """The rows of a table `[n, columns]` of whole numbers, each once and in order; for each the first that is like it; for each row of the table which it is.

    What `np.unique` says with `axis=0`, which compares rows column by column: here rows are numbers.
    """
    key, most = np.zeros(len(table), np.int64), 1
    for column in table.T if len(table) else ():
        number, span = _numbered(column)
        if most * span > np.iinfo(np.int64).max:
            key, most = _numbered_anew(key)
            number, span = _numbered_anew(number)
        key, most = key * span + number, most * span
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return table[first], first, which.reshape(-1)


def _numbered(column: Ints) -> tuple[Ints, int]:
    """A column by its numbers from the least on, and how far they go."""
    is_whole = column.dtype.kind in "ib"
    least, most = (int(column.min()), int(column.max())) if is_whole else (0, 0)
    if not is_whole or most - least >= np.iinfo(np.int64).max:
        return _numbered_anew(column)
    return column.astype(np.int64, copy=False) - least, most - least + 1


def _numbered_anew(column: Ints) -> tuple[Ints, int]:
    """A column by the places of its numbers among those that it has."""
    found, which = np.unique(column, return_inverse=True)
    return which.reshape(-1), len(found)
