"""Zonal densities: rings against polynomials, the whole sphere, and exact solutions in any dimension."""

import jax
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.special import eval_gegenbauer, hyp2f1
from test_every_geometry import mean_kernel, mean_over_sphere, multipliers, uniform_points

from meanfield.attention import Attention
from meanfield.density import Density
from meanfield.ensemble import Ensemble
from meanfield.geometry import Sphere, Zonal, funk_hecke, gegenbauer
from meanfield.initial import kuramoto, perturbed_uniform, vmf_mixture
from meanfield.integrate import evolve
from meanfield.keys import InputError
from meanfield.model import Model
from meanfield.normalization import PeriLN, PreLN

DIMENSIONS = [3, 4, 8, 64, 512]


@pytest.mark.parametrize("d", [3, 4, 8, 64])
def test_basis_is_gegenbauer(d):
    """p_l = √dim_l C_l/C_l(1)."""
    u = np.linspace(-1, 1, 17)
    p = gegenbauer.orthonormal(d, 9, u)
    for degree in range(10):
        C = eval_gegenbauer(degree, d / 2 - 1, u) / eval_gegenbauer(degree, d / 2 - 1, 1.0)
        root = np.exp(gegenbauer.log_harmonics(d, degree) / 2)
        np.testing.assert_allclose(p[degree], root * C, atol=1e-13 * root)


def test_number_of_harmonics():
    np.testing.assert_allclose(np.exp(gegenbauer.log_harmonics(3, np.arange(5))), [1, 3, 5, 7, 9])
    np.testing.assert_allclose(np.exp(gegenbauer.log_harmonics(2, np.arange(5))), [1, 2, 2, 2, 2])
    np.testing.assert_allclose(np.exp(gegenbauer.log_harmonics(4, np.arange(5))), [1, 4, 9, 16, 25])


@pytest.mark.parametrize("d", DIMENSIONS)
def test_slopes_are_polynomials_of_two_dimensions_more(d):
    u = np.linspace(-1, 1, 21) / np.sqrt(d / 3)
    h = 1e-5 / np.sqrt(d)
    slope = (gegenbauer.orthonormal(d, 6, u + h) - gegenbauer.orthonormal(d, 6, u - h)) / (2 * h)
    exact = gegenbauer.slope_factors(d, 6)[:, None] * gegenbauer.orthonormal(d + 2, 5, u)
    np.testing.assert_allclose(slope[1:], exact, rtol=1e-6, atol=1e-7 * np.sqrt(d) * np.abs(exact).max())


@pytest.mark.parametrize("d", DIMENSIONS)
def test_gauss_rule_gives_the_moments_of_a_coordinate(d):
    """∫u² dσ = 1/d and ∫u⁴ dσ = 3/(d(d+2)), with 60 nodes whose least weight may be as small as 1e-40."""
    u, w = gegenbauer.gauss(d, 60)
    np.testing.assert_allclose([w @ u**2, w @ u**4], [1 / d, 3 / (d * (d + 2))], rtol=1e-13)
    p = gegenbauer.orthonormal(d, 59, u)
    np.testing.assert_allclose((p * w) @ p.T, np.eye(60), atol=1e-13)


@pytest.mark.parametrize(("d", "kappa"), [(2, 3.0), (3, 0.0), (8, 2.0), (512, 0.0), (512, 100.0)])
def test_draws_follow_the_tilted_weight(d, kappa):
    """Mean and mean square of u under e^{κu} within five standard errors; s is √(1−u²)."""
    count = 100_000
    u, s = gegenbauer.tilted(d, np.full(count, kappa), np.random.default_rng(0))
    nodes, w = gegenbauer.gauss(d, 120)
    w = w * np.exp(kappa * (nodes - 1))
    w /= w.sum()
    for power in (1, 2):
        mean, square = w @ nodes**power, w @ nodes ** (2 * power)
        assert abs(np.mean(u**power) - mean) < 5 * np.sqrt((square - mean**2) / count)
    np.testing.assert_allclose(u**2 + s**2, 1, atol=1e-14)
    assert np.all(s >= 0)


def test_axisymmetric_harmonics_of_the_sphere_are_the_zonal_basis():
    zonal, sphere = Zonal(3).grid(9), Sphere().grid(9)
    c = np.random.default_rng(1).standard_normal(10)
    full = np.zeros(sphere.size)
    full[np.flatnonzero(sphere.orders == 0)] = c
    u = np.linspace(-1, 1, 31)
    s = np.sqrt(1 - u**2)
    points = np.stack([0.6 * s, -0.8 * s, u], axis=-1)
    np.testing.assert_allclose(zonal.evaluate(c, np.stack([u, s], axis=-1)), sphere.evaluate(full, points), atol=1e-12)


@pytest.mark.parametrize(("d", "beta"), [(8, 30.0), (512, 20.0), (512, 100.0)])
def test_partition_of_rings_at_large_beta(d, beta):
    """Z and G of tilted rings against the mean kernel, relative to the largest Z."""
    space, rng = Zonal(d), np.random.default_rng(2)
    grid = space.grid(funk_hecke.attention_degree(beta, d))
    tokens = np.stack(gegenbauer.tilted(d, np.full(50, beta / 2), rng), axis=-1)
    points = np.concatenate([tokens[:10], uniform_points(space, 10, rng), [space.axis, -space.axis]])
    weights = rng.dirichlet(np.ones(50))
    kernel, vector = mean_kernel(space, beta, points, tokens)
    Z, G = grid.partition(grid.moments(tokens, weights), multipliers(beta, grid.degree, d), points)
    expected = kernel @ weights / mean_over_sphere(space, beta)
    np.testing.assert_allclose(Z, expected, atol=1e-13 * expected.max(), rtol=0)
    expected_G = np.einsum("ijc,j->ic", vector, weights) / mean_over_sphere(space, beta)
    np.testing.assert_allclose(G, expected_G, atol=1e-13 * expected.max(), rtol=0)


@pytest.mark.parametrize("d", [3, 512])
def test_nothing_is_special_at_the_poles(d):
    """There the attention vector points along the axis exactly, and every derivative is finite."""
    space = Zonal(d)
    grid = space.grid(12)
    c = np.asarray(grid.moments(uniform_points(space, 40, np.random.default_rng(3)), np.full(40, 1 / 40)))
    poles = np.array([space.axis, -space.axis])
    _, G = grid.partition(c, multipliers(1.0, 12, d), poles)
    np.testing.assert_array_equal(np.asarray(G)[:, 1], 0)
    with jax.enable_x64(True):
        slope = np.asarray(jax.jit(jax.grad(lambda p: grid.evaluate(c, p).sum()))(poles))
    np.testing.assert_array_equal(slope, 0)


def test_second_derivative_along_a_meridian():
    """Δf = f_tt + (d−2) cot t f_t with u = cos t."""
    d = 8
    grid = Zonal(d).grid(6)
    c = np.random.default_rng(4).standard_normal(7)
    angles = np.linspace(0.3, 2.8, 7)

    def along(shift):
        t = angles + shift
        return grid.evaluate(c, jax.numpy.stack([jax.numpy.cos(t), jax.numpy.sin(t)], axis=-1))

    with jax.enable_x64(True):
        first = np.asarray(jax.jit(jax.jacfwd(along))(0.0))
        second = np.asarray(jax.jit(jax.jacfwd(jax.jacfwd(along)))(0.0))
    laplacian = grid.evaluate(grid.laplacian * c, np.stack([np.cos(angles), np.sin(angles)], axis=-1))
    np.testing.assert_allclose(second + (d - 2) / np.tan(angles) * first, laplacian, atol=1e-10)


@pytest.mark.parametrize("dimension", [2, 0, 2_000_000])
def test_other_dimensions_are_refused(dimension):
    with pytest.raises(InputError, match="dimension"):
        Zonal(dimension)


def test_a_degree_whose_harmonics_overflow_is_refused():
    assert Zonal(512).largest_degree == 288
    with pytest.raises(InputError, match="1 to 288 in dimension 512"):
        Zonal(512).grid(289)
    assert np.all(np.isfinite(Zonal(512).grid(288).values))


def axisymmetric_pair():
    means = np.array([[0.0, 0, 1], [0, 0, -1]])
    options = {"concentrations": [2.0, 3.0], "weights": [0.6, 0.4]}
    return vmf_mixture(Sphere(), means, **options), vmf_mixture(Zonal(3), [[1.0, 0], [-2, 0]], **options)


@pytest.mark.slow
def test_density_on_the_sphere_stays_axisymmetric_and_equals_the_zonal_one():
    """Post-LN, softmax, β = 2, t = 1."""
    model = Model(Attention(2.0))
    ends = []
    for law in axisymmetric_pair():
        grid = law.space.grid(48)
        ends.append(
            np.asarray(evolve(model, Density(grid, law.coefficients(grid)), 0.0, 1.0, 1e-12, 1e-13).coefficients)
        )
    orders = Sphere().grid(48).orders
    np.testing.assert_allclose(ends[0][orders == 0], ends[1], atol=1e-12)
    np.testing.assert_allclose(ends[0][orders != 0], 0, atol=1e-12)
    assert abs(ends[1][1] - law.coefficients(grid)[1]) > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [PreLN(), PeriLN()], ids=lambda s: s.case_name)
def test_characteristics_on_the_sphere_equal_those_on_rings(scheme):
    """Moments of degree ≤ 8 and the mean radius at t = 1, β = 2, with radii that move."""
    model = Model(Attention(2.0), scheme)
    moments, radii = [], []
    for law in axisymmetric_pair():
        nodes, weights = law.space.quadrature(36)
        start = Ensemble(nodes, weights * law.density(nodes), law.space.grid(24))
        x = np.asarray(evolve(model, start, 0.0, 1.0, 1e-12, 1e-13).x)
        radius = np.linalg.norm(x, axis=1)
        grid = law.space.grid(8)
        moments.append(np.asarray(grid.moments(x / radius[:, None], start.weights))[grid.orders == 0])
        radii.append(start.weights @ radius)
    np.testing.assert_allclose(moments[0], moments[1], atol=1e-12)
    assert abs(radii[0] - radii[1]) < 1e-12
    assert abs(radii[0] - 1) > 0.1


def order_parameter_of_family(rho, d):
    """Z(w) = |∫x f_w dσ| = 2ρ (d−1)/d ₂F₁(1−d/2, 1; 1+d/2; ρ²)."""
    return 2 * rho * (d - 1) / d * hyp2f1(1 - d / 2, 1, 1 + d / 2, rho**2)


def test_order_parameter_of_the_family_has_its_closed_form_in_three_dimensions():
    rho = np.array([0.1, 0.5, 0.9])
    closed = (1 + rho**2) / (2 * rho) - (1 - rho**2) ** 2 / (4 * rho**2) * np.log((1 + rho) / (1 - rho))
    np.testing.assert_allclose(order_parameter_of_family(rho, 3), closed, rtol=1e-12)


@pytest.mark.parametrize(
    ("d", "rho", "t", "degree"),
    [(3, 0.2, 2.0, 96), (8, 0.1, 1.0, 48), (512, 0.01, 1.0, 32)],
    ids=["d=3", "d=8", "d=512"],
)
def test_post_ln_at_beta_zero_keeps_the_kuramoto_family(d, rho, t, degree):
    """At β = 0, dw/dt = ½(1−w²) Z(w) (mathematics page, 3.1): density and characteristics to 1e-10."""
    space, model = Zonal(d), Model(Attention(0.0))
    law, grid = kuramoto(space, rho), space.grid(degree)
    rate = lambda _, w: (1 - w**2) * order_parameter_of_family(w, d) / 2  # noqa: E731
    w = solve_ivp(rate, (0, t), [rho], method="DOP853", rtol=1e-13, atol=1e-15).y[0, -1]
    assert w > 2 * rho
    end = evolve(model, Density(grid, law.coefficients(grid)), 0.0, t, 1e-12, 1e-13)
    np.testing.assert_allclose(end.coefficients, kuramoto(space, w).coefficients(grid), atol=1e-10)
    nodes, weights = space.quadrature(degree)
    start = Ensemble(nodes, weights * law.density(nodes), space.grid(8))
    moved = evolve(model, start, 0.0, t, 1e-12, 1e-13)
    order = order_parameter_of_family(w, d)
    assert abs(moved.weights @ np.asarray(moved.x)[:, 0] - order) < 1e-10
    if d == 3:
        assert abs(order - 0.7347274) < 5e-8


def test_modes_grow_about_the_uniform_density_at_the_rates_of_the_linear_theory():
    """c_l(t) = c_l(0) e^{σ_l t} under Post-LN at d = 8, β = 9 (mathematics page, 3.2): a printed rate a degree."""
    rates = [0.521209, 0.718813, 0.662604, 0.488184]
    amplitude = 1e-6
    law = perturbed_uniform(Zonal(8), [[degree, 0, amplitude] for degree in range(1, 5)])
    grid = Zonal(8).grid(24)
    start = law.coefficients(grid)
    end = np.asarray(evolve(Model(Attention(9.0)), Density(grid, start), 0.0, 1.0, 1e-13, 1e-14).coefficients)
    np.testing.assert_allclose(np.log(end[1:5] / amplitude), rates, atol=3e-5)
    np.testing.assert_allclose(end[5:], 0, atol=1e-9)
