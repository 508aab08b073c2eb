"""The circle: Fourier modes by name, derivatives, sums over many points, and exact solutions of the whole solver."""

import jax
import numpy as np
import pytest

from meanfield.attention import Attention
from meanfield.density import Density
from meanfield.ensemble import Ensemble
from meanfield.geometry import Circle, funk_hecke
from meanfield.initial import kuramoto, perturbed_uniform
from meanfield.integrate import evolve
from meanfield.keys import InputError
from meanfield.model import Model

CIRCLE = Circle()


def at_angles(phi):
    return np.stack([np.cos(phi), np.sin(phi)], axis=-1)


def test_modes_are_one_then_sine_and_cosine_of_each_degree():
    grid = CIRCLE.grid(3)
    np.testing.assert_array_equal(grid.degrees, [0, 1, 1, 2, 2, 3, 3])
    np.testing.assert_array_equal(grid.orders, [0, -1, 1, -2, 2, -3, 3])
    phi = np.linspace(-4, 4, 23)
    for mode, (degree, order) in enumerate(zip(grid.degrees, grid.orders, strict=True)):
        name = np.sqrt(2) * (np.sin(degree * phi) if order < 0 else np.cos(degree * phi)) if degree else np.ones(23)
        np.testing.assert_allclose(grid.evaluate(np.eye(7)[mode], at_angles(phi)), name, atol=1e-14)


def test_gradient_is_the_derivative_along_the_angle():
    grid = CIRCLE.grid(5)
    c = np.eye(grid.size)[2 * 4]  # √2 cos 4φ
    phi = np.arctan2(grid.nodes[:, 1], grid.nodes[:, 0])
    along = np.stack([-np.sin(phi), np.cos(phi)], axis=-1)
    expected = (-4 * np.sqrt(2) * np.sin(4 * phi))[:, None] * along
    np.testing.assert_allclose(grid.gradient(c), expected, atol=1e-13)


def test_second_derivative_along_the_circle_is_the_laplacian():
    grid = CIRCLE.grid(6)
    c = np.random.default_rng(0).standard_normal(grid.size)
    phi = np.linspace(0, 6, 9)
    with jax.enable_x64(True):

        def along(t):
            points = jax.numpy.stack([jax.numpy.cos(phi + t), jax.numpy.sin(phi + t)], axis=-1)
            return grid.evaluate(c, points)

        second = np.asarray(jax.jit(jax.jacfwd(jax.jacfwd(along)))(0.0))
    np.testing.assert_allclose(second, grid.evaluate(grid.laplacian * c, at_angles(phi)), atol=1e-11)


@pytest.mark.parametrize("count", [1023, 1024, 1025, 5000])
def test_sums_over_many_points_do_not_depend_on_how_they_are_cut(count):
    grid = CIRCLE.grid(4)
    rng = np.random.default_rng(1)
    phi, weights, c = rng.uniform(0, 7, count), rng.uniform(0, 1, count), rng.standard_normal(9)
    k = np.arange(1, 5)[:, None] * phi
    basis = np.concatenate([np.ones((1, count)), np.sqrt(2) * np.stack([np.sin(k), np.cos(k)], axis=1).reshape(8, -1)])
    np.testing.assert_allclose(grid.moments(at_angles(phi), weights), basis @ weights, atol=1e-13 * count)
    np.testing.assert_allclose(grid.evaluate(c, at_angles(phi)), c @ basis, atol=1e-13)


def test_other_dimensions_are_refused():
    with pytest.raises(InputError, match="dimension = 3"):
        Circle(3)


def exact_kuramoto(rho, t):
    """|w(t)| = Z(w(t)) for d = 2 (mathematics page, 3.1)."""
    return (1 + (1 - rho**2) / rho**2 * np.exp(-t)) ** -0.5


@pytest.mark.parametrize(("t", "printed"), [(1.0, 0.3189650), (4.0, 0.8334562)])
def test_post_ln_at_beta_zero_keeps_the_kuramoto_family(t, printed):
    """At β = 0 the density stays f_w with the exact w(t), and so does the law carried along characteristics."""
    model, law = Model(Attention(0.0)), kuramoto(CIRCLE, 0.2)
    w = exact_kuramoto(0.2, t)
    assert abs(w - printed) < 5e-8
    grid = CIRCLE.grid(160)
    end = evolve(model, Density(grid, law.coefficients(grid)), 0.0, t, 1e-12, 1e-13)
    np.testing.assert_allclose(end.coefficients, kuramoto(CIRCLE, w).coefficients(grid), atol=1e-10)
    nodes, weights = CIRCLE.quadrature(100)
    tokens = Ensemble(nodes, weights * law.density(nodes), CIRCLE.grid(8))
    moved = evolve(model, tokens, 0.0, t, 1e-12, 1e-13)
    np.testing.assert_allclose(np.asarray(moved.x).T @ moved.weights, [0.0, w], atol=1e-10)


def test_modes_grow_about_the_uniform_density_at_the_rates_of_the_linear_theory():
    """c_l(t) = c_l(0) e^{σ_l t} under Post-LN at β = 5 (mathematics page, 3.2): a printed rate for each degree."""
    rates = np.array([0.178677, 0.514117, 0.682678, 0.600089])
    amplitude = 1e-6
    law = perturbed_uniform(CIRCLE, [[1, 1, amplitude], [2, -2, amplitude], [3, 3, amplitude], [4, -4, amplitude]])
    grid = CIRCLE.grid(24)
    start = law.coefficients(grid)
    end = np.asarray(evolve(Model(Attention(5.0)), Density(grid, start), 0.0, 1.0, 1e-13, 1e-14).coefficients)
    grown = start != 0
    growth = np.log(end[grown] / start[grown])
    np.testing.assert_allclose(growth[1:], rates, atol=1e-5)
    np.testing.assert_allclose(end[~grown], 0, atol=1e-10)
    table = jax.tree.map(np.asarray, funk_hecke.multipliers(5.0, 4, 2))
    np.testing.assert_allclose(rates, (np.arange(5) ** 2 * table.tangential)[1:], atol=1e-6)
