"""A density is right as long as its run says that it is resolved."""

from __future__ import annotations

import numpy as np
import pytest

import meanfield as mf

BUMPS = mf.vmf_mixture(mf.Sphere(), [[1, 0, 0], [0, 1, 0], [0.3, -0.4, 0.6]], [2.0, 3.0, 1.5], [0.5, 0.3, 0.2])
TIGHT = {"rtol": 1e-10, "atol": 1e-12}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [mf.PostLN(), mf.SqrtScaling()], ids=lambda scheme: scheme.case_name)
@pytest.mark.parametrize(("beta", "quadrature"), [(1.0, 64), (4.0, 128)])
def test_up_to_its_last_resolved_frame_a_density_agrees_with_characteristics(scheme, beta, quadrature):
    model = mf.Model(mf.Attention(beta), scheme)
    density = mf.solve(model, BUMPS, final_time=6.0, frames=25, method="density", degree=48, **TIGHT)
    assert density.status == "unresolved"
    assert 1e-7 < density.observables["resolution"][-1] <= 1e-4
    last = [density.times[-1]]
    tokens = mf.solve(model, BUMPS, times=last, method="characteristics", degree=quadrature, state="last", **TIGHT)
    difference = density.observables["order_parameter"][-1] - tokens.observables["order_parameter"][-1]
    assert abs(difference) < 1e-8
    assert abs(tokens.observables["quadrature_error"][-1]) >= abs(difference)


@pytest.mark.slow
def test_in_a_spread_cloud_under_ngpt_the_estimated_error_bounds_the_true_one():
    model = mf.Model(mf.Attention(2.0), mf.NGPT())
    runs = {}
    for degree in (19, 63):
        with pytest.warns(mf.AccuracyWarning, match="void.*quadrature error is estimated"):
            runs[degree] = mf.solve(model, BUMPS, final_time=1.0, frames=2, method="characteristics", degree=degree)
    coarse, fine = (run.observables["order_parameter"][-1] for run in runs.values())
    assert 1e-9 < abs(coarse - fine) <= runs[19].observables["quadrature_error"][-1]
    assert np.isfinite(runs[63].observables["quadrature_error"][-1])
