"""How errors fall: exponentially with the degree, and with the tolerance; the family that is exact at β = 0."""

from __future__ import annotations

import numpy as np
import pytest

import meanfield as mf
from meanfield.theory import kuramoto
from meanfield.theory.schemes import Scheme

W0, DEPTH = 0.2, 1.5
SPACES = [mf.Circle(), mf.Sphere(), mf.Zonal(8)]
TIGHT = {"rtol": 1e-12, "atol": 1e-14}


def error(space, method: str, degree: int, scheme=None, t: float = DEPTH, **options) -> float:
    """|order parameter − that of the Kuramoto family| at depth t."""
    scheme = scheme or mf.PostLN()
    chosen = mf.Model(mf.Attention(0.0), scheme)
    law = mf.kuramoto(space, W0)
    run = mf.solve(chosen, law, t, 2, method=method, degree=degree, **{**TIGHT, **options})
    exact = kuramoto.order_parameter_at(Scheme(scheme.case_name), [t], W0, space.dimension)[0]
    return abs(float(run.observables["order_parameter"][-1] - exact))


@pytest.mark.parametrize("method", ["density", "characteristics"])
@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_at_beta_zero_the_order_parameter_is_exact(space, method):
    """1e-10, and better, as long as the density is resolved."""
    assert error(space, method, 64) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [mf.NGPT(), mf.SqrtScaling()], ids=lambda scheme: scheme.case_name)
@pytest.mark.parametrize("space", SPACES[:2], ids=repr)
def test_at_beta_zero_it_is_exact_under_the_other_clocks(space, scheme):
    assert error(space, "density", 64, scheme, t=1.0) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("method", ["density", "characteristics"])
@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_the_error_falls_exponentially_with_the_degree(space, method):
    """log error against degree is a line, steep enough that 3 degrees gain a factor 10 and more."""
    law, degrees, errors = mf.kuramoto(space, W0), [3, 5, 7, 9], []
    exact = kuramoto.order_parameter_at(Scheme("post-ln"), [DEPTH], W0, space.dimension)[0]
    for degree in degrees:
        if method == "density":
            grid = space.grid(degree)
            state = mf.Density(grid, law.coefficients(grid))
        else:
            nodes, weights = space.quadrature(degree)
            weights = weights * law.density(nodes)
            state = mf.Ensemble(nodes, weights / weights.sum(), space.grid(8))
        end = mf.evolve(mf.Model(mf.Attention(0.0)), state, 0.0, DEPTH, 1e-12, 1e-14)
        errors.append(abs(np.linalg.norm(end.mean_direction()) - exact))
    (slope, _), (residual,) = np.polyfit(degrees, np.log10(errors), 1, full=True)[:2]
    assert slope < -1 / 3
    assert residual < 0.02 * np.var(np.log10(errors)) * len(degrees)  # R² > 0.98


@pytest.mark.parametrize("space", SPACES[:2], ids=repr)
@pytest.mark.parametrize("method", ["density", "characteristics"])
def test_the_error_follows_the_tolerance(space, method):
    for rtol in (1e-5, 1e-7, 1e-9):
        assert error(space, method, 48, t=1.0, rtol=rtol, atol=1e-2 * rtol) < 5 * rtol
