"""β = 0: the invariant family, its mean, and the exact solution against weighted tokens on a quadrature."""

import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.special import roots_jacobi

from meanfield.keys import InputError
from meanfield.theory import Scheme, kuramoto

DIMENSIONS = [2, 3, 5, 8]


def zonal_quadrature(dimension, nodes=200):
    """Nodes x = ⟨e, θ⟩ and weights of σ for functions of x alone."""
    x, weights = roots_jacobi(nodes, (dimension - 3) / 2, (dimension - 3) / 2)
    return x, weights / weights.sum()


def zonal_density(x, rho, dimension):
    """f_w at any point with ⟨e, θ⟩ = x, w = ρe."""
    points = np.zeros((*np.shape(x), dimension))
    points[..., 0], points[..., 1] = x, np.sqrt(1 - np.square(x))
    return kuramoto.density(points, [rho, *[0.0] * (dimension - 1)])


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_the_density_has_mass_one_and_the_stated_mean(dimension):
    x, weights = zonal_quadrature(dimension)
    for rho in (0.01, 0.2, 0.7):
        f = zonal_density(x, rho, dimension)
        assert weights @ f == pytest.approx(1.0, rel=1e-12)
        assert weights @ (x * f) == pytest.approx(kuramoto.order_parameter(rho, dimension), rel=1e-11)


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_the_family_is_invariant(dimension):
    # ∂_tf + div(f P_θZe) = 0 with dρ/dt = ½(1−ρ²)Z; zonal: div(f P_θe) = (1−x²)f′ − (d−1)xf
    rho, x, h = 0.45, np.linspace(-0.9, 0.9, 13), 1e-5
    in_rho = (zonal_density(x, rho + h, dimension) - zonal_density(x, rho - h, dimension)) / (2 * h)
    in_x = (zonal_density(x + h, rho, dimension) - zonal_density(x - h, rho, dimension)) / (2 * h)
    divergence = (1 - x**2) * in_x - (dimension - 1) * x * zonal_density(x, rho, dimension)
    residual = 0.5 * (1 - rho**2) * in_rho + divergence
    assert np.max(np.abs(residual)) < 1e-7 * np.max(np.abs(divergence))


def test_the_mean_on_the_circle_is_w_and_on_the_sphere_the_stated_logarithm():
    rho = np.array([0.1, 0.3, 0.6, 0.9, 0.99])
    np.testing.assert_allclose(kuramoto.order_parameter(rho, 2), rho, rtol=1e-15)
    logarithm = np.log((1 + rho) / (1 - rho))
    expected = (1 + rho**2) / (2 * rho) - (1 - rho**2) ** 2 / (4 * rho**2) * logarithm
    np.testing.assert_allclose(kuramoto.order_parameter(rho, 3), expected, rtol=1e-13)


@pytest.mark.parametrize("dimension", [2, 3, 8, 9, 64, 513])
def test_the_mean_at_both_ends(dimension):
    slope = 2 * (dimension - 1) / dimension
    for rho in (1e-12, 1e-7):
        assert kuramoto.order_parameter(rho, dimension) == pytest.approx(slope * rho, rel=1e-12)
    assert kuramoto.order_parameter(0.0, dimension) == 0.0
    assert kuramoto.order_parameter(1.0, dimension) == pytest.approx(1.0, rel=1e-13)
    assert np.all(np.diff(kuramoto.order_parameter(np.linspace(0, 1, 200), dimension)) > 0)


@pytest.mark.parametrize(
    ("dimension", "printed"),
    [(2, [0.3189650, 0.4851828, 0.8334562]), (3, [0.4747501, 0.7347274, 0.9809040])],
)
def test_printed_order_parameters(dimension, printed):
    values = kuramoto.order_parameter_at(Scheme("post-ln"), [1.0, 2.0, 4.0], 0.2, dimension)
    np.testing.assert_allclose(values, printed, rtol=0, atol=0.51e-7)


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize("name", ["post-ln", "ngpt", "sqrt-scaling"])
def test_the_exact_solution_is_that_of_weighted_tokens(dimension, name):
    x, weights = zonal_quadrature(dimension)
    carried = weights * zonal_density(x, 0.2, dimension)

    def alpha(t):
        return 1.0 + 0.5 * math.sin(t)

    def rate(t, x):
        mean = carried @ x
        speed = {"post-ln": 1.0, "ngpt": mean / alpha(t), "sqrt-scaling": math.sqrt(t + 1)}[name]
        return (1 - x**2) * mean / speed

    tokens = solve_ivp(rate, (0.0, 1.5), x, method="DOP853", rtol=1e-12, atol=1e-13).y[:, -1]
    exact = kuramoto.order_parameter_at(Scheme(name, alpha=alpha), 1.5, 0.2, dimension)
    assert carried @ tokens == pytest.approx(exact, rel=1e-10)


def test_the_circle_and_the_general_equation_agree():
    # d = 2 has its own closed form; the equation for u = artanh|w| must give the same
    times = np.array([0.5, 3.0])
    closed = kuramoto.parameter_norm(Scheme("post-ln"), times, 0.3, 2)
    derivative = 0.5 * (1 - closed**2) * closed
    h = 1e-5
    later, earlier = (kuramoto.parameter_norm(Scheme("post-ln"), times + k * h, 0.3, 2) for k in (1, -1))
    np.testing.assert_allclose((later - earlier) / (2 * h), derivative, rtol=1e-9)


def test_a_tiny_parameter_grows_at_the_linear_rate():
    # rate ½ · 2(d−1)/d = (d−1)/d, the growth rate of degree 1 at β = 0
    for dimension in DIMENSIONS:
        grown = kuramoto.parameter_norm(Scheme("post-ln"), 4.0, 1e-12, dimension)
        assert grown == pytest.approx(1e-12 * math.exp(4.0 * (dimension - 1) / dimension), rel=1e-10)


def test_the_uniform_density_stays():
    np.testing.assert_array_equal(kuramoto.parameter_norm(Scheme("post-ln"), [0.0, 9.0], 0.0, 3), [0.0, 0.0])


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: kuramoto.density([[1.0, 0.0]], [0.8, 0.6]), "parameter"),
        (lambda: kuramoto.density([[1.0, 0.0]], [0.1, 0.1, 0.1]), "parameter"),
        (lambda: kuramoto.order_parameter(1.5, 3), "parameter"),
        (lambda: kuramoto.order_parameter_at(Scheme("pre-ln"), 1.0, 0.2, 3), "scheme"),
        (lambda: kuramoto.order_parameter_at(Scheme("ngpt"), 1.0, 0.0, 3), "parameter"),
        (lambda: kuramoto.order_parameter_at(Scheme("post-ln"), 1.0, 1.0, 3), "parameter"),
        (lambda: kuramoto.order_parameter_at(Scheme("post-ln"), 1.0, 0.2, 1), "dimension"),
    ],
)
def test_wrong_input_is_refused_by_key(call, key):
    with pytest.raises(InputError) as error:
        call()
    assert error.value.key == key
