import random

import numpy as np

from stagec.arrays import distinct_rows


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
        assert np.array_equal(first, wanted[1])
        assert np.array_equal(which, wanted[2].reshape(-1))
