"""Harmonics of S² against SciPy's, operator identities on random fields, and sums over points against double sums."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation
from scipy.special import eval_legendre, sph_harm_y

from meanfield.geometry import Sphere, funk_hecke
from meanfield.geometry.points import CHUNK
from meanfield.geometry.sphere import SphereGrid
from meanfield.keys import InputError

POLES = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]])


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def grid() -> SphereGrid:
    return Sphere().grid(9)


@pytest.fixture(scope="module")
def points() -> np.ndarray:
    """Scattered directions, both poles and points near them."""
    near = np.array([[1e-9, 0.0, 1.0], [0.0, -1e-5, -1.0]])
    return np.concatenate([POLES, np.eye(3), units(40, 0), near / np.linalg.norm(near, axis=1, keepdims=True)])


def units(count: int, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((count, 3))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def random(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def harmonics(grid: SphereGrid, points: np.ndarray, derivatives: bool = False):
    """Y_lm(θ) by SciPy, (mode, point): √4π times the usual real harmonics; with (∂_θ, ∂_φ) if asked."""
    x, y, z = points.T
    colatitude, longitude = np.arctan2(np.hypot(x, y), z), np.arctan2(y, x)
    rows, slopes = [], []
    for degree, order in zip(grid.degrees.tolist(), grid.orders.tolist(), strict=True):
        value, jacobian = sph_harm_y(degree, abs(order), colatitude, longitude, diff_n=1)
        scale = np.sqrt(4 * np.pi) * (np.sqrt(2) * (-1) ** order if order else 1)
        part = np.imag if order < 0 else np.real
        rows.append(scale * part(value))
        slopes.append(scale * part(jacobian))
    return (np.array(rows), np.array(slopes)) if derivatives else np.array(rows)


# ------------------------------------------------------------------ values


def test_modes_run_through_the_orders_of_each_degree(grid):
    expected = [(degree, order) for degree in range(10) for order in range(-degree, degree + 1)]
    assert list(zip(grid.degrees.tolist(), grid.orders.tolist(), strict=True)) == expected
    assert grid.size == len(expected) == 100


def test_values_at_points_poles_included(grid, points):
    np.testing.assert_allclose(grid.evaluate(np.eye(100), points), harmonics(grid, points), atol=1e-13)


def test_values_at_nodes(grid):
    np.testing.assert_allclose(grid.synthesize(np.eye(100)), harmonics(grid, grid.nodes), atol=1e-13)


def test_the_lowest_harmonics_are_coordinates(grid, points):
    x, y, z = points.T
    basis = np.asarray(grid.evaluate(np.eye(100)[:9], points))
    expected = [0 * x + 1, np.sqrt(3) * y, np.sqrt(3) * z, np.sqrt(3) * x]
    second = [np.sqrt(15) * v for v in (x * y, y * z, (3 * z**2 - 1) / np.sqrt(12), x * z, (x**2 - y**2) / 2)]
    np.testing.assert_allclose(basis, [*expected, *second], atol=1e-14)


def test_the_grid_integrates_products_orthonormally(grid):
    basis = np.asarray(grid.synthesize(np.eye(100)))
    np.testing.assert_allclose((basis * grid.weights) @ basis.T, np.eye(100), atol=1e-13)
    assert grid.weights.sum() == pytest.approx(1, abs=1e-15)
    assert np.abs(np.linalg.norm(grid.nodes, axis=1) - 1).max() < 1e-15


@pytest.mark.parametrize("degree", [1, 2, 9, 32, 128])
def test_analysis_inverts_synthesis(degree):
    grid = Sphere().grid(degree)
    c = random(grid.size)
    np.testing.assert_allclose(grid.analyze(grid.synthesize(c)), c, atol=1e-13 * np.abs(c).max())


def test_products_of_two_fields_are_analysed_without_aliasing(grid):
    f, g = random(2, grid.size)
    fine = Sphere().grid(18)
    padded = fine.synthesize(fine.resized(f, 18)) * fine.synthesize(fine.resized(g, 18))
    exact = grid.resized(fine.analyze(padded), 9)
    np.testing.assert_allclose(grid.analyze(grid.synthesize(f) * grid.synthesize(g)), exact, atol=1e-12)


def test_resizing_pads_with_zeros_or_truncates(grid):
    c = random(grid.size)
    np.testing.assert_array_equal(grid.resized(c, 11), [*c, *np.zeros(44)])
    np.testing.assert_array_equal(grid.resized(grid.resized(c, 11), 9), c)
    np.testing.assert_array_equal(grid.resized(c, 4), c[:25])


directions = st.one_of(
    st.sampled_from([*np.eye(3), *-np.eye(3)]),
    st.tuples(*[st.floats(-1, 1)] * 3).map(np.array).filter(lambda v: np.linalg.norm(v) > 1e-3),
).map(lambda v: v / np.linalg.norm(v))


@settings(deadline=None, max_examples=200)
@given(directions, directions)
def test_addition_theorem(x, y):
    # Σ_m Y_lm(x) Y_lm(y) = (2l+1) P_l(⟨x,y⟩)
    grid = Sphere().grid(9)
    both = np.asarray(grid.evaluate(np.eye(100), np.stack([x, y])))
    sums = np.bincount(grid.degrees, weights=both[:, 0] * both[:, 1])
    degrees = np.arange(10)
    expected = (2 * degrees + 1) * eval_legendre(degrees, np.clip(x @ y, -1, 1))
    np.testing.assert_allclose(sums, expected, atol=1e-12)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_a_rotation_of_the_points_keeps_the_power_of_each_degree(seed):
    grid, theta, weights = Sphere().grid(9), units(12, seed), random(12, seed=seed)
    rotated = theta @ Rotation.random(rng=seed).as_matrix().T
    power = [np.bincount(grid.degrees, weights=np.asarray(grid.moments(p, weights)) ** 2) for p in (theta, rotated)]
    np.testing.assert_allclose(power[0], power[1], atol=1e-11 * max(1.0, power[0].max()))


# ------------------------------------------------------------------ derivatives


def test_gradient_at_the_nodes(grid):
    _, slopes = harmonics(grid, grid.nodes, derivatives=True)
    z = grid.nodes[:, 2]
    sine = np.sqrt(1 - z**2)
    x, y = grid.nodes[:, 0] / sine, grid.nodes[:, 1] / sine
    south, east = np.stack([z * x, z * y, -sine], axis=-1), np.stack([-y, x, 0 * z], axis=-1)
    exact = slopes[..., 0, None] * south + (slopes[..., 1] / sine)[..., None] * east
    np.testing.assert_allclose(grid.gradient(np.eye(100)), exact, atol=2e-12)


def test_gradient_is_tangential_and_is_what_jax_differentiates(grid):
    c = random(grid.size)
    gradient = np.asarray(grid.gradient(c))
    assert np.abs(np.sum(gradient * grid.nodes, axis=-1)).max() < 1e-12
    by_jax = jax.grad(lambda p: grid.evaluate(c, p).sum())(jnp.asarray(grid.nodes))
    tangential = by_jax - np.sum(by_jax * grid.nodes, axis=-1, keepdims=True) * grid.nodes
    np.testing.assert_allclose(tangential, gradient, atol=1e-11)


def test_derivative_at_the_poles():
    # √3 x, √3 y and √15 xz, √15 yz near z = ±1
    grid = Sphere().grid(2)
    tangent = np.array([[1.0, 0.0, 0.0], [1.0, 2.0, 0.0]])
    basis = np.eye(9)[[3, 1, 7, 5]]
    _, along = jax.jvp(lambda p: grid.evaluate(basis, p), (jnp.asarray(POLES),), (jnp.asarray(tangent),))
    expected = [[np.sqrt(3), np.sqrt(3)], [0, 2 * np.sqrt(3)], [np.sqrt(15), -np.sqrt(15)], [0, -2 * np.sqrt(15)]]
    np.testing.assert_allclose(along, expected, atol=1e-13)


def test_laplacian_is_the_divergence_of_the_gradient(grid):
    np.testing.assert_array_equal(grid.laplacian, -grid.degrees * (grid.degrees + 1.0))
    divergences = grid.divergence(grid.gradient(np.eye(100)))
    np.testing.assert_allclose(divergences, np.diag(grid.laplacian), atol=1e-11)


def test_the_second_derivative_of_evaluation_is_the_laplacian(grid):
    # ∂² along two orthogonal great circles through a point sum to Δ
    c, point = random(grid.size), units(1, 3)[0]
    first = np.cross(point, [0.0, 0.0, 1.0])
    first /= np.linalg.norm(first)

    def on_circle(tangent):
        return jax.jit(
            jax.grad(jax.grad(lambda s: grid.evaluate(c, (jnp.cos(s) * point + jnp.sin(s) * tangent)[None])[0]))
        )

    total = on_circle(first)(0.0) + on_circle(np.cross(point, first))(0.0)
    assert float(total) == pytest.approx(float(grid.evaluate(grid.laplacian * c, point[None])[0]), abs=1e-9)


def test_divergence_is_the_weak_one_and_keeps_the_mass_exactly(grid):
    density = grid.synthesize(np.eye(100)[0] + 0.1 * random(grid.size))
    potential = random(grid.size, seed=2)
    flux = np.asarray(density)[:, None] * np.asarray(grid.gradient(potential))
    divergence = np.asarray(grid.divergence(flux))
    gradients = np.asarray(grid.gradient(np.eye(100)))
    np.testing.assert_allclose(divergence, -np.einsum("n,nc,knc->k", grid.weights, flux, gradients), atol=1e-10)
    assert divergence[0] == 0


def test_a_field_that_turns_about_the_gradient_has_no_divergence(grid):
    turning = np.cross(grid.nodes, grid.gradient(random(grid.size)))
    assert np.abs(grid.divergence(turning)).max() < 1e-11


def test_coordinates_times_harmonics(grid):
    # θ_i Y_l = (degree l+1) + (degree l−1), by the tables that derivatives at points rest on
    size = 121
    indices = (grid.up_index, grid.down_index), (grid.up_value, grid.down_value)
    padded = np.concatenate([np.eye(100), np.zeros((100, 69))], axis=1)
    parts = [np.sum(value * padded[:, index], axis=-1)[..., :size] for index, value in zip(*indices, strict=True)]
    fine = Sphere().grid(10)
    values = np.asarray(fine.synthesize(fine.resized(np.eye(100), 10)))
    exact = np.asarray(fine.analyze(values[:, None] * fine.nodes.T))
    np.testing.assert_allclose(parts[0] + parts[1], exact, atol=1e-13)
    assert np.abs(parts[0][:, :, fine.degrees == 0]).max() == 0
    for part, step in zip(parts, (1, -1), strict=True):
        elsewhere = fine.degrees[None] != grid.degrees[:, None] + step
        assert np.abs(np.moveaxis(part, 1, -1)[elsewhere]).max() == 0


# ------------------------------------------------------------------ sums over points


def test_moments_are_sums_of_harmonics(grid, points):
    weights = random(len(points))
    np.testing.assert_allclose(
        grid.moments(points, weights), harmonics(grid, points) @ weights, atol=1e-13 * len(points)
    )


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_moments_are_the_transpose_of_evaluation(seed):
    grid, theta = Sphere().grid(9), units(12, seed)
    c, w = random(100, seed=seed), random(12, seed=seed)
    assert float(w @ grid.evaluate(c, theta)) == pytest.approx(float(c @ grid.moments(theta, w)), abs=1e-11)


@pytest.mark.slow
def test_moments_move_with_their_points(grid, points):
    weights, tangent = random(len(points)), random(len(points), 3)
    tangent -= np.sum(tangent * points, axis=1, keepdims=True) * points

    def derivative(function):
        return jax.jvp(function, (jnp.asarray(points),), (jnp.asarray(tangent),))[1]

    expected = derivative(lambda p: grid.evaluate(np.eye(100), p)) @ weights
    np.testing.assert_allclose(derivative(lambda p: grid.moments(p, weights)), expected, atol=1e-11)


@pytest.mark.slow
def test_more_points_than_a_chunk_are_summed_like_fewer(grid):
    count = 2 * CHUNK + 17
    theta, weights, c = units(count, 5), random(count), random(grid.size)
    pieces = [np.arange(CHUNK), np.arange(CHUNK, 2 * CHUNK), np.arange(count - CHUNK, count)]
    whole = np.asarray(grid.evaluate(c, theta))
    for piece in pieces:
        np.testing.assert_allclose(whole[piece], grid.evaluate(c, theta[piece]), atol=1e-12)
    fresh = [1.0, 1.0, pieces[2] >= 2 * CHUNK]
    moments = [grid.moments(theta[piece], weights[piece] * new) for piece, new in zip(pieces, fresh, strict=True)]
    np.testing.assert_allclose(grid.moments(theta, weights), sum(moments), atol=1e-10)


@pytest.mark.parametrize("beta", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("where", ["points", "nodes"])
def test_partition_function_and_attention_sum_against_the_double_sum(beta, where, points):
    grid = Sphere().grid(funk_hecke.attention_degree(4.0, 3))
    omega, weights = units(30, 7), np.random.default_rng(8).dirichlet(np.ones(30))
    theta = points if where == "points" else grid.nodes
    kernel = np.exp(beta * theta @ omega.T) * weights
    moments = grid.moments(omega, weights)
    multipliers = funk_hecke.multipliers(beta, grid.degree, 3)
    total, vector = grid.partition(moments, multipliers, points if where == "points" else None)
    a0 = np.exp(float(funk_hecke.log_scaled_a0(beta, 3)) + beta)
    round_off = 1e-13 * np.exp(beta)
    np.testing.assert_allclose(a0 * np.asarray(total), kernel.sum(axis=1), atol=round_off)
    np.testing.assert_allclose(a0 * np.asarray(vector), kernel @ omega, atol=round_off)


@pytest.mark.slow
def test_leading_axes_broadcast(grid, points):
    c, field = random(2, 3, grid.size), random(2, 3, len(grid.nodes), 3)
    trials, weights = units(10, 9).reshape(2, 5, 3), random(5)
    for transform in (grid.synthesize, grid.gradient, lambda c: grid.evaluate(c, points)):
        np.testing.assert_allclose(transform(c)[1, 2], transform(c[1, 2]), atol=1e-12)
    np.testing.assert_allclose(grid.analyze(field[..., 0])[1, 2], grid.analyze(field[1, 2, :, 0]), atol=1e-13)
    np.testing.assert_allclose(grid.divergence(field)[1, 2], grid.divergence(field[1, 2]), atol=1e-10)
    moments = grid.moments(trials, weights)
    np.testing.assert_allclose(moments[1], grid.moments(trials[1], weights), atol=1e-13)
    multipliers = funk_hecke.multipliers(1.0, grid.degree, 3)
    for all_trials, one in ((trials, trials[1]), (None, None)):
        whole, alone = (grid.partition(m, multipliers, p) for m, p in ((moments, all_trials), (moments[1], one)))
        for part, single in zip(whole, alone, strict=True):
            np.testing.assert_allclose(part[1], single, atol=1e-13)


# ------------------------------------------------------------------ quadrature and the space


@pytest.mark.parametrize("degree", [1, 4, 10])
def test_quadrature_is_exact_up_to_degree_2l_plus_1_and_no_further(degree):
    nodes, weights = Sphere().quadrature(degree)
    grid = Sphere().grid(2 * degree + 2)
    integrals = harmonics(grid, nodes) @ weights
    exact = np.eye(grid.size)[0]
    within = grid.degrees <= 2 * degree + 1
    np.testing.assert_allclose(integrals[within], exact[within], atol=1e-14)
    assert np.abs((integrals - exact)[~within]).max() > 0.1
    assert (weights > 0).all()


def test_the_coarser_rule_keeps_every_other_longitude_and_is_exact_to_half_the_order():
    nodes, weights = Sphere().quadrature(8)
    coarser = Sphere().coarser(8)
    assert np.count_nonzero(coarser) == np.count_nonzero(weights) / 2
    grid = Sphere().grid(10)
    errors = np.abs(harmonics(grid, nodes) @ coarser - np.eye(grid.size)[0])
    # 18 longitudes become 9, which take order 9 for a constant
    assert errors[np.abs(grid.orders) < 9].max() < 1e-14
    assert errors[np.abs(grid.orders) == 9].max() > 0.1


def test_a_grid_is_built_once_a_degree():
    assert Sphere().grid(9) is Sphere().grid(9)
    assert Sphere() == Sphere(3)
    assert hash(Sphere()) == hash(Sphere(3))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Sphere(4), "dimension = 4: expected 3 on the sphere"),
        (lambda: Sphere().grid(0), "degree = 0: expected an integer from 1 to"),
        (lambda: Sphere().grid(5000), "degree = 5000: expected an integer from 1 to"),
        (lambda: Sphere().quadrature(0), "degree = 0: expected an integer from 1 to"),
    ],
)
def test_what_is_no_sphere_and_no_degree_is_refused(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()
