"""Numpy arrays, called by what they hold. Their shapes stand in brackets where they are made."""

from math import prod

import numpy as np

Bools = np.ndarray
Ints = np.ndarray
Floats = np.ndarray


def widened(rows: Ints, width: int, filling: int) -> Ints:
    """The rows `[n, columns]` with columns of a number behind them: `[n, width]`. `np.pad` takes ten times as long for it."""
    found = np.full((len(rows), width), filling, rows.dtype)
    found[:, : rows.shape[1]] = rows
    return found


def distinct_rows(table: Ints) -> tuple[Ints, Ints, Ints]:
    """The rows of a table `[n, columns]` of whole numbers, each once and in order; for each the first that is like it; for each row of the table which it is.

    What `np.unique` says with `axis=0`, which compares rows column by column: here rows are numbers, as long as these are not too large.
    """
    if not table.size or table.dtype.kind not in "ib":
        return _distinct_by_column(table)
    table = table.astype(np.int64, copy=False)
    low = table.min(axis=0)
    spans = [
        high - least + 1
        for high, least in zip(table.max(axis=0).tolist(), low.tolist(), strict=True)
    ]
    if prod(spans) > np.iinfo(np.int64).max:
        return _distinct_by_column(table)
    key = np.zeros(len(table), np.int64)
    for column, least, span in zip(table.T, low.tolist(), spans, strict=True):
        key = key * span + (column - least)
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return table[first], first, which.reshape(-1)


def _distinct_by_column(table: Ints) -> tuple[Ints, Ints, Ints]:
    found, first, which = np.unique(table, axis=0, return_index=True, return_inverse=True)
    return found, first, which.reshape(-1)
