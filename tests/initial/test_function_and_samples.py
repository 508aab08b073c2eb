"""Densities that are given as Python functions, and densities fitted to samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import assert_same_bits, model

import meanfield as mf
from meanfield.case import from_document, parsed
from meanfield.initial.finite import likeliest_concentration
from meanfield.keys import InputError

SPACES = [mf.Circle(), mf.Sphere(), mf.Zonal(5)]
RNG = np.random.default_rng


def tilted(space):
    """A smooth density that is no von Mises–Fisher law, not normalised: (2 + u)² + e^u along the axis."""
    return lambda points: (2 + points @ space.axis) ** 2 + np.exp(points @ space.axis)


@pytest.mark.parametrize("space", SPACES, ids=repr)
class TestFunction:
    def test_it_has_mass_one_and_is_its_own_series(self, space):
        law = mf.function(space, tilted(space))
        nodes, weights = space.quadrature(40)
        assert weights @ law.density(nodes) == pytest.approx(1, abs=1e-14)
        ratio = law.density(nodes) / tilted(space)(nodes)
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-14)
        grid = space.grid(24)
        c = law.coefficients(grid)
        assert c[0] == pytest.approx(1, abs=1e-14)
        np.testing.assert_allclose(grid.evaluate(c, nodes), law.density(nodes), atol=1e-13)

    def test_samples_have_its_moments(self, space):
        law, grid = mf.function(space, tilted(space)), space.grid(3)
        drawn = law.sample(40_000, RNG(1))
        error = np.asarray(grid.moments(drawn, np.full(len(drawn), 1 / len(drawn)))) - law.coefficients(grid)
        deviation = np.sqrt([np.max(grid.evaluate(np.eye(grid.size)[k], drawn) ** 2) for k in range(grid.size)])
        assert np.all(np.abs(error) < 5 * deviation / np.sqrt(len(drawn)) + 1e-14)

    def test_a_vmf_law_written_as_a_function_runs_as_the_law(self, space):
        law = mf.vmf_mixture(space, [space.axis], [1.5])
        written = mf.function(space, lambda points: np.exp(1.5 * (points @ space.axis)))
        first, second = (mf.solve(model(), start, 0.5, 2, degree=16) for start in (law, written))
        np.testing.assert_allclose(
            first.observables["order_parameter"], second.observables["order_parameter"], atol=1e-12
        )
        assert second.attributes["case"] == ""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda points: points[:, 0], "values of at least 0"),
        (lambda points: np.full(len(points), np.nan), "finite values"),
        (lambda points: np.ones(3), "values ["),
        (lambda points: np.zeros(len(points)), "positive mass"),
        (lambda points: np.exp(300 * (points[:, 2] - 1)), "larger degree"),
    ],
    ids=["negative", "nan", "shape", "nothing", "unresolved"],
)
def test_a_function_that_is_no_density_is_refused(function, words):
    with pytest.raises(InputError, match="function") as refused:
        mf.function(mf.Sphere(), function, degree=8)
    assert words in str(refused.value)


def test_a_density_with_a_peak_between_the_fine_points_is_sampled_without_bias():
    space = mf.Circle()
    peak = np.array([np.cos(0.123), np.sin(0.123)])
    law = mf.function(space, lambda points: np.exp(900 * (points @ peak - 1)) + 0.01, degree=512)
    law._ceiling = 1e-3  # a ceiling that is far too low is raised, not believed
    drawn = law.sample(4000, RNG(0))
    inside = np.mean(drawn @ peak > np.cos(0.2))
    angle = np.linspace(-0.2, 0.2, 20001)
    points = np.stack([np.cos(0.123 + angle), np.sin(0.123 + angle)], axis=-1)
    expected = np.trapezoid(law.density(points), angle) / (2 * np.pi)
    assert inside == pytest.approx(expected, abs=5 * np.sqrt(expected * (1 - expected) / 4000))


class TestSamples:
    def test_with_its_concentration_it_is_the_mixture(self):
        points = mf.uniform(mf.Sphere()).sample(7, RNG(0))
        law = mf.samples(mf.Sphere(), 3.0 * points, concentration=9.0)
        mixture = mf.vmf_mixture(mf.Sphere(), points, [9.0] * 7)
        nodes, weights = mf.Sphere().quadrature(24)
        np.testing.assert_allclose(law.density(nodes), mixture.density(nodes), rtol=1e-13)
        assert weights @ law.density(nodes) == pytest.approx(1, abs=1e-13)
        assert law.tokens() is None

    @pytest.mark.parametrize("space", [mf.Circle(), mf.Sphere()], ids=repr)
    def test_the_likeliest_concentration_is_the_maximum_of_the_likelihood(self, space):
        points = mf.vmf_mixture(space, [space.axis], [4.0]).sample(300, RNG(3))

        def likelihood(kappa: float) -> float:
            logs = []
            for i in range(len(points)):
                others = np.delete(points, i, axis=0)
                logs.append(np.log(mf.vmf_mixture(space, others, [kappa] * len(others)).density(points[i : i + 1])[0]))
            return float(np.sum(logs))

        best = likeliest_concentration(points)
        assert likelihood(best) > likelihood(1.1 * best)
        assert likelihood(best) > likelihood(best / 1.1)

    def test_the_fitted_density_tends_to_the_law(self):
        space = mf.Sphere()
        law = mf.vmf_mixture(space, [[0, 0, 1.0], [1.0, 0, 0]], [6.0, 6.0])
        nodes, weights = space.quadrature(24)
        errors = [
            weights @ np.abs(mf.samples(space, law.sample(n, RNG(n))).density(nodes) - law.density(nodes))
            for n in (100, 10_000)
        ]
        assert errors[1] < errors[0] / 3
        assert errors[1] < 0.1

    def test_a_file_has_a_case_and_an_array_has_none(self, tmp_path):
        points = mf.uniform(mf.Sphere()).sample(50, RNG(0))
        np.save(tmp_path / "seen.npy", points)
        runs = [
            mf.solve(model(), mf.samples(mf.Sphere(), seen, concentration=5.0), 0.2, 2, degree=24)
            for seen in (points, tmp_path / "seen.npy")
        ]
        assert_same_bits(*runs)
        assert runs[0].attributes["case"] == ""
        case = from_document(parsed(runs[1].attributes["case"]), tmp_path)
        assert case.law.fitted == 5.0

    @pytest.mark.parametrize("wrong", [np.ones((4, 2)), np.zeros((4, 3)), np.ones(3), np.full((2, 3), np.nan)])
    def test_samples_of_no_direction_are_refused(self, wrong):
        with pytest.raises(InputError, match="samples"):
            mf.samples(mf.Sphere(), wrong)

    def test_one_sample_needs_a_concentration(self):
        with pytest.raises(InputError, match="concentration"):
            mf.samples(mf.Sphere(), [[0, 0, 1.0]])

    @given(st.integers(2, 40), st.integers(0, 1000))
    @settings(max_examples=20, deadline=None)
    def test_the_likeliest_concentration_does_not_depend_on_the_frame(self, count, seed):
        points = mf.uniform(mf.Sphere()).sample(count, RNG(seed))
        turn, _ = np.linalg.qr(RNG(seed).standard_normal((3, 3)))
        assert likeliest_concentration(points @ turn) == pytest.approx(likeliest_concentration(points), rel=1e-4)
