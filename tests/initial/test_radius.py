"""Laws of the starting radii."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from small_runs import model, two_bumps

import meanfield as mf
from meanfield.keys import InputError

LAWS = [mf.ConstantRadius(1.3), mf.NormalRadius(2.5, 0.25), mf.LogNormalRadius(2.0, 0.3)]


def moments(law):
    """Mean and standard deviation."""
    if isinstance(law, mf.ConstantRadius):
        return law.value, 0.0
    if isinstance(law, mf.NormalRadius):
        return law.mean, law.std
    return law.mean, law.mean * np.sqrt(np.expm1(law.sigma**2))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.case_name)
def test_samples_and_quadrature_have_the_mean_and_deviation(law):
    mean, deviation = moments(law)
    radii, weights = law.quadrature()
    assert weights.sum() == pytest.approx(1, abs=1e-14)
    assert weights @ radii == pytest.approx(mean, rel=1e-13)
    assert np.sqrt(weights @ (radii - mean) ** 2) == pytest.approx(deviation, rel=1e-12, abs=1e-12)
    drawn = law.sample(100_000, np.random.default_rng(0))
    assert (drawn > 0).all()
    assert drawn.mean() == pytest.approx(mean, abs=5 * deviation / np.sqrt(1e5) + 1e-12)
    assert drawn.std() == pytest.approx(deviation, rel=0.02, abs=1e-12)


@pytest.mark.parametrize("law", LAWS[1:], ids=lambda law: law.case_name)
def test_density_and_interval_agree(law):
    low, high = law.interval(1e-6)
    assert quad(law.density, low, high, epsabs=1e-13)[0] == pytest.approx(1 - 2e-6, abs=1e-11)
    assert quad(lambda r: r * law.density(r), 1e-12, 4 * high, points=[low, high], limit=200)[0] == pytest.approx(
        law.mean
    )


@given(st.floats(0.01, 1.0), st.floats(6.0, 50.0))
def test_no_radius_of_a_normal_law_is_below_zero(std, ratio):
    radii, _ = mf.NormalRadius(ratio * std * (1 + 1e-12), std).quadrature()
    assert radii.min() > 0


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: mf.NormalRadius(1.0, 0.2), "mean"),
        (lambda: mf.NormalRadius(1.0, 0.0), "std"),
        (lambda: mf.NormalRadius(np.nan, 0.1), "mean"),
        (lambda: mf.LogNormalRadius(-1.0, 0.1), "mean"),
        (lambda: mf.LogNormalRadius(1.0, 3.0), "sigma"),
        (lambda: mf.ConstantRadius(0.0), "value"),
    ],
)
def test_a_law_of_no_positive_radii_is_refused(make, key):
    with pytest.raises(InputError, match=key):
        make()


def test_twelve_radii_are_enough_for_pre_ln_from_a_normal_law():
    """Tensor nodes of directions and 12 radii against 32: the number is justified here."""

    class More(mf.NormalRadius):
        def quadrature(self, count=32):
            return super().quadrature(count)

    runs = [
        mf.solve(model(mf.PreLN()), two_bumps(), 2.0, 2, radius=law, method="characteristics", degree=10, rtol=1e-10)
        for law in (mf.NormalRadius(2.5, 0.25), More(2.5, 0.25))
    ]
    for name in ("order_parameter", "mean_radius", "std_radius"):
        first, second = (run.observables[name] for run in runs)
        np.testing.assert_allclose(first, second, atol=1e-9)


def test_radius_laws_come_from_a_case(tmp_path):
    changes = {"normalization.scheme": "pre-ln", "solver.method": "characteristics", "solver.degree": 8}
    changes |= {"time": {"final": 0.2, "frames": 2}, "initial.radius": {"kind": "lognormal", "mean": 2.0, "sigma": 0.1}}
    case = mf.read_case("cases/three_bumps.toml", changes)
    run = case.solve(tmp_path / "run.h5")
    assert run.observables["mean_radius"][0] == pytest.approx(2.0, rel=1e-12)
    assert mf.open(tmp_path / "run.h5").state(0.0).x.shape == (12 * 9 * 18, 3)
    with pytest.raises(InputError, match=r"initial.radius.mean"):
        mf.read_case("cases/three_bumps.toml", {"initial.radius": {"kind": "normal", "mean": 1.0, "std": 0.5}})
