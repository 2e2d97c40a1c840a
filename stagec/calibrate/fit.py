"""Fitting a table to measurements: the smoothest grid near them, by least squares that outliers do not pull.

The grid holds log2 of measured over the rule's time. Wanted are values whose interpolation meets the measurements, and whose second
differences are small, so that points that nothing was measured near lie on the line through their neighbours. scipy's `lsqr` solves
it, three times more with the weights of the least absolute deviations (iteratively reweighted: Holland and Welsch 1977).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import coo_matrix, csr_matrix, vstack
from scipy.sparse.linalg import lsqr

from stagec.calibrate.measured import Measured
from stagec.devices.model import DeviceModel, GridAxis, TimeTable
from stagec.devices.rules import KINDS

SMOOTHNESS = 0.15
"""Weight of a second difference beside that of a measurement."""
NEAR = 0.02
"""Below this deviation, in powers of two, squares count; above it, absolute values."""


def fit(device: DeviceModel, measured: Measured) -> TimeTable:
    """A table for the rows that are there."""
    kind = KINDS[measured.key[0]]
    sizes = kind.axes(measured.sizes)
    axes = tuple(axis_of(name, sizes[name], kind.steps[name]) for name in sizes)
    shape = [axis.count for axis in axes]
    blank = TimeTable(measured.key, axes, np.zeros(shape))
    wanted = np.log2(measured.us / measured.rule_us(device))
    inner, bent = interpolation(blank, sizes), second_differences(shape)
    weight = np.ones(len(wanted))
    values = np.zeros(blank.values.size)
    for _ in range(4):
        system: Any = vstack([inner.multiply(weight[:, None]), SMOOTHNESS * bent]).tocsr()
        target = np.concatenate([weight * wanted, np.zeros(bent.shape[0])])
        values = np.asarray(lsqr(system, target, damp=1e-3, iter_lim=600)[0])
        off = np.abs(inner @ values - wanted)
        weight = np.maximum(1 / np.sqrt(np.maximum(off, NEAR) / NEAR), 0.1)
    return TimeTable(measured.key, axes, values.reshape(shape))


def axis_of(name: str, values: np.ndarray, step: float) -> GridAxis:
    """From the least to the largest that was measured."""
    places = np.log2(np.maximum(values, 1e-9))
    first = float(np.floor(places.min() / step) * step)
    count = int(np.ceil(round((places.max() - first) / step, 6))) + 1
    return GridAxis(name, first, step, count)


def interpolation(table: TimeTable, sizes: dict[str, np.ndarray]) -> Any:
    """[rows, points]: what each row's value is made of."""
    shape = table.values.shape
    rows, columns, weights = [], [], []
    for at, weight in table.corners(sizes):
        rows.append(np.arange(len(weight)))
        columns.append(np.ravel_multi_index(at, shape))
        weights.append(weight)
    entries = (np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns)))
    return coo_matrix(entries, shape=(len(rows[0]), table.values.size)).tocsr()


def second_differences(shape: list[int]) -> Any:
    """The second differences of neighbours along each axis."""
    points = np.arange(int(np.prod(shape))).reshape(shape)
    found = [csr_matrix((0, points.size))]
    for number in range(len(shape)):
        along = np.moveaxis(points, number, 0)
        if along.shape[0] < 3:
            if along.shape[0] == 2:
                found.append(differences((along[0], along[1]), (0.3, -0.3), points.size))
            continue
        found.append(differences((along[:-2], along[1:-1], along[2:]), (1, -2, 1), points.size))
    return vstack(found).tocsr()


def differences(at: tuple[np.ndarray, ...], weights: tuple[float, ...], width: int) -> Any:
    flat = [each.ravel() for each in at]
    rows = np.arange(len(flat[0]))
    values = np.concatenate([np.full(len(rows), weight) for weight in weights])
    places = (np.concatenate([rows] * len(flat)), np.concatenate(flat))
    return coo_matrix((values, places), shape=(len(rows), width)).tocsr()
