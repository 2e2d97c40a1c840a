"""Random models under random plans: every pass keeps what they compute."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, event, given, seed, settings

from stagec.diagnostics import CompileError
from tests.unit.numeric.random_models import Case, cases
from tests.unit.numeric.training import Model


@seed(20240601)
@settings(
    max_examples=20,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(cases())
def test_spread_as_on_one_device(case: Case):
    model = Model(case.model)
    gradients = model.reference.gradients
    assume(all(np.isfinite(g).all() for g in gradients.values()))
    for path, gradient, difference in model.differences():
        assert gradient == pytest.approx(difference, rel=1e-4, abs=1e-6), path
    try:
        model.check(case.plan)
    except CompileError as error:
        # A dim's axes in one order here and in another there.
        assert {d.code for d in error.diagnostics} == {"E0307"}
        event("cannot be resharded")
