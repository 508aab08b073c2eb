"""Initial laws on circle, sphere and rings: density, coefficients and samples of a law say the same thing."""

import numpy as np
import pytest
from scipy.special import hyp2f1, poch

from meanfield.geometry import Circle, Euclidean, Sphere, Zonal, gegenbauer
from meanfield.initial import equiangular, kuramoto, orthogonal, perturbed_uniform, uniform, vmf_mixture
from meanfield.keys import InputError

LAWS = [
    uniform(Circle()),
    uniform(Sphere()),
    uniform(Zonal(512)),
    vmf_mixture(Circle(), [[1, 1], [0, -2]], [2.0, 0.0], [1, 3]),
    vmf_mixture(Sphere(), [[1, 1, 0], [0, 0, -2]], [2.0, 0.0], [1, 3]),
    vmf_mixture(Zonal(3), [[2, 0], [-1, 0]], [2.0, 3.0], [1, 3]),
    vmf_mixture(Zonal(512), [[1, 0], [-1, 0]], [12.0, 20.0]),
    kuramoto(Circle(), 0.4),
    kuramoto(Sphere(), 0.4),
    kuramoto(Zonal(8), 0.2),
    kuramoto(Zonal(512), 0.02),
    perturbed_uniform(Circle(), [[1, -1, 0.3], [3, 3, 0.2]]),
    perturbed_uniform(Sphere(), [[2, -1, 0.2], [1, 0, 0.1]]),
    perturbed_uniform(Zonal(8), [[2, 0, 0.4]]),
    perturbed_uniform(Zonal(512), [[1, 0, 0.03], [2, 0, 0.002]]),
]
every_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.case_name}-{law.space!r}")


@every_law
def test_coefficients_are_those_of_the_density(law):
    """∫ρ Y_k dσ by quadrature, and mass 1."""
    grid = law.space.grid(8)
    nodes, weights = law.space.quadrature(60)
    expected = grid.moments(nodes, weights * law.density(nodes))
    np.testing.assert_allclose(law.coefficients(grid), expected, atol=2e-13)
    assert abs(law.coefficients(grid)[0] - 1) < 1e-13


@every_law
def test_samples_follow_the_density(law):
    """Moments of degree ≤ 3 of 40,000 draws within five standard errors, on unit vectors; rings have s ≥ 0."""
    count = 40_000
    points = law.sample(count, np.random.default_rng(0))
    assert points.shape == (count, law.space.coordinates)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1, atol=1e-14)
    assert not law.space.rings or np.all(points[:, 1] >= 0)
    grid = law.space.grid(3)
    basis = np.asarray(grid.evaluate(np.eye(grid.size), points))
    error = basis.mean(axis=1) - law.coefficients(grid)
    assert np.all(np.abs(error[1:]) < 5 * basis.std(axis=1)[1:] / np.sqrt(count))


@pytest.mark.parametrize("d", [2, 3, 8, 64])
def test_kuramoto_coefficients_have_a_closed_form(d):
    """∫f_w C_l/C_l(1) dσ = ρ^l (d−1)_l/(d/2)_l ₂F₁(1−d/2, l; l+d/2; ρ²): ρ^l on the circle."""
    rho, degrees = 0.3, np.arange(9)
    space = Circle() if d == 2 else Zonal(d)
    law = kuramoto(space, rho)
    nodes, weights = space.quadrature(90)
    cosine = nodes @ space.axis
    zonal = gegenbauer.orthonormal(d, 8, cosine) / gegenbauer.orthonormal(d, 8, 1.0)[:, None]
    closed = rho**degrees * poch(d - 1, degrees) / poch(d / 2, degrees)
    closed *= hyp2f1(1 - d / 2, degrees, degrees + d / 2, rho**2)
    np.testing.assert_allclose(zonal @ (weights * law.density(nodes)), closed, atol=1e-13)


def test_kuramoto_parameter_lies_along_the_last_axis():
    for space in (Circle(), Sphere(), Zonal(5)):
        mean = kuramoto(space, 0.5).sample(4000, np.random.default_rng(1)) @ space.axis
        assert mean.mean() > 0.4


def test_perturbed_uniform_is_one_plus_its_modes():
    phi = np.linspace(0, 6, 11)
    points = np.stack([np.cos(phi), np.sin(phi)], axis=-1)
    law = perturbed_uniform(Circle(), [[1, 1, 0.2], [2, -2, 0.1]])
    np.testing.assert_allclose(
        law.density(points), 1 + np.sqrt(2) * (0.2 * np.cos(phi) + 0.1 * np.sin(2 * phi)), atol=1e-14
    )
    assert law.modes == [[1, 1, 0.2], [2, -2, 0.1]]


@pytest.mark.parametrize(
    ("space", "mode"),
    [
        (Circle(), [2, 1, 0.1]),
        (Circle(), [0, 0, 0.1]),
        (Sphere(), [1, 2, 0.1]),
        (Sphere(), [1.5, 0, 0.1]),
        (Sphere(), [2, 0.5, 0.1]),
        (Zonal(5), [2, 1, 0.1]),
        (Zonal(512), [400, 0, 0.1]),
        (Sphere(), [1, 0, float("nan")]),
        (Sphere(), [1, 0]),
    ],
)
def test_a_mode_that_does_not_fit_is_named(space, mode):
    with pytest.raises(InputError, match="modes") as caught:
        perturbed_uniform(space, [[1, 0 if space != Circle() else 1, 0.01], mode])
    assert caught.value.value == mode


@pytest.mark.parametrize(
    ("space", "mode", "limit"),
    [
        (Circle(), [3, -3, 1.0], 1 / np.sqrt(2)),
        (Sphere(), [1, 0, 1.0], 1 / np.sqrt(3)),
        (Zonal(8), [1, 0, 1.0], 1 / np.sqrt(8)),
        (Zonal(512), [1, 0, -1.0], 1 / np.sqrt(512)),
    ],
)
def test_a_density_that_would_be_negative_is_refused(space, mode, limit):
    """1 + c Y is a density up to |c| = 1/max|Y|, which at high dimension is reached only at a pole."""
    perturbed_uniform(space, [[*mode[:2], mode[2] * limit * 0.999]])
    with pytest.raises(InputError, match="smaller amplitudes"):
        perturbed_uniform(space, [[*mode[:2], mode[2] * limit * 1.02]])


def test_a_grid_too_coarse_for_the_modes_is_refused():
    law = perturbed_uniform(Circle(), [[5, 5, 0.1]])
    with pytest.raises(InputError, match="degree = 4: expected at least 5"):
        law.coefficients(Circle().grid(4))


def test_means_off_the_axis_are_refused_for_rings():
    with pytest.raises(InputError, match="means on the axis"):
        vmf_mixture(Zonal(8), [[1.0, 0.0], [1.0, 0.1]], [1.0, 1.0])
    with pytest.raises(InputError, match="vectors of 2 numbers"):
        vmf_mixture(Zonal(8), np.eye(8)[:1], [1.0])


@pytest.mark.parametrize("law", [lambda s: equiangular(s, 0.1), orthogonal])
def test_definite_tokens_are_no_rings(law):
    with pytest.raises(InputError, match="kind"):
        law(Zonal(8))
    assert law(Euclidean(8)).tokens().shape == (8, 8)


def test_uniform_perturbed_needs_harmonics():
    with pytest.raises(InputError, match="kind"):
        perturbed_uniform(Euclidean(4), [[1, 0, 0.1]])
