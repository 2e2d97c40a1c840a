import random

import numpy as np

from stagec.arrays import distinct, distinct_rows, laid_out, places_of_each


def test_distinct_rows_are_those_of_numpy() -> None:
    draw = random.Random(15)
    for _ in range(60):
        rows, columns = draw.choice((0, 1, 5, 60)), draw.randint(1, 4)
        most = draw.choice((1, 3, 1 << 20, 1 << 62))
        table = np.array(
            [[draw.randint(-most, most) for _ in range(columns)] for _ in range(rows)], np.int64
        ).reshape(rows, columns)
        table = table.astype(draw.choice((np.int64, np.int64, np.float64)))
        found, first, which = distinct_rows(table)
        wanted = np.unique(table, axis=0, return_index=True, return_inverse=True)
        assert np.array_equal(found, wanted[0])
        assert np.array_equal(distinct(table), np.unique(table))
        assert np.array_equal(first, wanted[1])
        assert np.array_equal(which, wanted[2].reshape(-1))


def test_places_of_each_label() -> None:
    labels = np.array([2, -1, 0, 2, -1, 2], np.int16)
    assert [each.tolist() for each in places_of_each(labels)] == [[2], [0, 3, 5]]
    assert places_of_each(np.array([-1, -1])) == []


def test_instances_of_templates_are_laid_out() -> None:
    instance, part = laid_out(np.array([1, 0, 1, 2]), np.array([2, 1, 0]))
    assert instance.tolist() == [0, 1, 1, 2]
    assert part.tolist() == [2, 0, 1, 2]
