"""What must hold on every geometry with harmonics: one set of statements, over circle, sphere and zonal densities."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meanfield.geometry import SPACES, Circle, Euclidean, Sphere, Zonal, funk_hecke, gegenbauer
from meanfield.keys import InputError
from meanfield.precision import float64

DEGREE = 20
GEOMETRIES = [Circle(), Sphere(), Zonal(3), Zonal(8), Zonal(512)]
multipliers = float64(funk_hecke.multipliers)

every_geometry = pytest.mark.parametrize("space", GEOMETRIES, ids=repr)


def uniform_points(space, count, rng):
    """Points drawn from σ."""
    if space.rings:
        return np.stack(gegenbauer.tilted(space.dimension, np.zeros(count), rng), axis=-1)
    x = rng.standard_normal((count, space.coordinates))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def with_poles(space, points):
    return np.concatenate([points, [space.axis, -space.axis]])


def project(theta, vectors):
    """P_θ v."""
    return vectors - np.sum(theta * vectors, axis=-1, keepdims=True) * theta


def mean_kernel(space, beta, points, tokens):
    """e^{β⟨θ,ω⟩} and e^{β⟨θ,ω⟩}ω: (point, token) and (point, token, axis).

    Between rings, their means over the angle between the parts across the axis, by Gauss quadrature in d − 1.
    """
    if not space.rings:
        kernel = np.exp(beta * points @ tokens.T)
        return kernel, kernel[..., None] * tokens
    v, w = gegenbauer.gauss(space.dimension - 1, 90)
    along = points[:, :1] * tokens[:, 0]
    across = points[:, 1:] * tokens[:, 1]
    terms = w * np.exp(beta * (along[..., None] + across[..., None] * v))
    kernel, tilt = terms.sum(axis=-1), terms @ v
    return kernel, np.stack([kernel * tokens[:, 0], tilt * tokens[:, 1]], axis=-1)


def mean_over_sphere(space, beta):
    """a_0 = ∫e^{β⟨e,θ⟩}dσ by Gauss quadrature."""
    u, w = gegenbauer.gauss(space.dimension, 120)
    return w @ np.exp(beta * u)


@every_geometry
@settings(max_examples=12, deadline=None)
@given(degree=st.sampled_from([1, 2, 7, DEGREE]), seed=st.integers(0, 2**32 - 1))
def test_analysis_inverts_synthesis(space, degree, seed):
    grid = space.grid(degree)
    c = np.random.default_rng(seed).uniform(-1, 1, (2, 3, grid.size))
    np.testing.assert_allclose(grid.analyze(grid.synthesize(c)), c, atol=1e-13)


@every_geometry
def test_harmonics_are_orthonormal_under_the_weights(space):
    grid = space.grid(DEGREE)
    Y = np.asarray(grid.synthesize(np.eye(grid.size)))
    np.testing.assert_allclose((Y * grid.weights) @ Y.T, np.eye(grid.size), atol=1e-13)


@every_geometry
def test_weights_are_positive_and_sum_to_one(space):
    grid = space.grid(DEGREE)
    for weights in (grid.weights, space.quadrature(DEGREE)[1]):
        assert np.all(weights > 0)
        assert abs(weights.sum() - 1) < 1e-14
    np.testing.assert_allclose(np.linalg.norm(grid.nodes, axis=1), 1, atol=1e-15)


@every_geometry
def test_quadrature_is_exact_up_to_twice_the_degree_plus_one(space):
    degree = 6
    nodes, weights = space.quadrature(degree)
    grid, beyond = space.grid(2 * degree + 1), space.grid(2 * degree + 2)
    np.testing.assert_allclose(grid.moments(nodes, weights), grid.degrees == 0, atol=1e-13)
    assert np.max(np.abs(np.asarray(beyond.moments(nodes, weights))[grid.size :])) > 0.01


@every_geometry
@pytest.mark.parametrize("degree", [1, 2, 15, 16])
def test_the_coarser_rule_has_half_the_nodes_and_half_the_degree(space, degree):
    nodes, _ = space.quadrature(degree)
    coarser = space.coarser(degree)
    assert np.count_nonzero(coarser) == -(-len(nodes) // 2)
    assert np.abs(coarser).sum() < 1.06
    exact = degree // 2 if space.rings else degree
    grid = space.grid(degree)
    low = grid.degrees <= exact
    np.testing.assert_allclose(np.asarray(grid.moments(nodes, coarser))[low], (grid.degrees == 0)[low], atol=1e-13)


@every_geometry
def test_laplacian_is_divergence_of_gradient(space):
    grid = space.grid(DEGREE)
    c = np.random.default_rng(1).standard_normal((3, grid.size))
    largest = np.abs(grid.laplacian).max()
    np.testing.assert_allclose(grid.divergence(grid.gradient(c)), grid.laplacian * c, atol=1e-13 * largest, rtol=0)
    np.testing.assert_array_equal(grid.laplacian, -grid.degrees * (grid.degrees + space.dimension - 2.0))


@every_geometry
def test_divergence_of_any_field_carries_no_mass(space):
    grid = space.grid(DEGREE)
    field = np.random.default_rng(2).standard_normal((4, *grid.nodes.shape))
    divergence = np.asarray(grid.divergence(field))
    assert np.all(divergence[:, 0] == 0)
    assert np.all(np.max(np.abs(divergence[:, 1:]), axis=1) > 0)


@every_geometry
def test_divergence_is_minus_the_transpose_of_gradient(space):
    """∫ f div F dσ = −∫ F·∇f dσ."""
    rng = np.random.default_rng(3)
    grid = space.grid(DEGREE)
    c, field = rng.standard_normal(grid.size), rng.standard_normal(grid.nodes.shape)
    terms = grid.weights[:, None] * field * np.asarray(grid.gradient(c))
    assert abs(c @ np.asarray(grid.divergence(field)) + terms.sum()) < 1e-13 * np.abs(terms).sum()


@every_geometry
def test_gradient_is_tangential(space):
    grid = space.grid(DEGREE)
    gradient = np.asarray(grid.gradient(np.random.default_rng(4).standard_normal(grid.size)))
    radial = np.sum(gradient * grid.nodes, axis=1)
    assert np.all(np.abs(radial) <= 1e-12 * (1 + np.linalg.norm(gradient, axis=1)))


@every_geometry
def test_evaluation_at_nodes_is_synthesis(space):
    grid = space.grid(DEGREE)
    c = np.random.default_rng(5).standard_normal((2, grid.size))
    error = (np.asarray(grid.evaluate(c, grid.nodes)) - grid.synthesize(c)) * np.sqrt(grid.weights)
    assert np.max(np.abs(error)) < 1e-13


@every_geometry
def test_moments_are_the_transpose_of_evaluation(space):
    rng = np.random.default_rng(6)
    grid = space.grid(DEGREE)
    points, weights = with_poles(space, uniform_points(space, 3000, rng)), rng.uniform(-1, 1, 3002)
    c = rng.standard_normal(grid.size)
    values = np.asarray(grid.evaluate(c, points))
    difference = values @ weights - c @ np.asarray(grid.moments(points, weights))
    assert abs(difference) < 1e-14 * np.sum(np.abs(values * weights))


@every_geometry
def test_evaluation_at_a_pole_is_the_limit(space):
    grid = space.grid(DEGREE)
    c = np.random.default_rng(7).standard_normal(grid.size)
    across = np.eye(space.coordinates)[1 if space.rings else 0]
    for pole in (space.axis, -space.axis):
        at, beside = np.asarray(grid.evaluate(c, np.stack([pole, np.cos(1e-9) * pole + np.sin(1e-9) * across])))
        assert abs(beside - at) < 1e-6 * abs(at)


@every_geometry
@pytest.mark.parametrize("beta", [0.0, 0.7, 4.0])
def test_partition_is_the_sum_of_kernels_over_tokens(space, beta):
    """Z and G from moments equal the sum over tokens, or over rings with the mean kernel; poles included."""
    rng = np.random.default_rng(8)
    grid = space.grid(funk_hecke.attention_degree(beta, space.dimension))
    tokens = with_poles(space, uniform_points(space, 60, rng))
    weights = rng.dirichlet(np.ones(62))
    c, scale = grid.moments(tokens, weights), mean_over_sphere(space, beta)
    for points in (with_poles(space, uniform_points(space, 40, rng)), None):
        kernel, vector = mean_kernel(space, beta, grid.nodes if points is None else points, tokens)
        Z, G = grid.partition(c, multipliers(beta, grid.degree, space.dimension), points)
        largest = np.max(kernel @ weights) / scale
        np.testing.assert_allclose(Z, kernel @ weights / scale, atol=1e-13 * largest, rtol=0)
        expected = np.einsum("ijc,j->ic", vector, weights) / scale
        np.testing.assert_allclose(G, expected, atol=1e-13 * largest, rtol=0)


@pytest.mark.slow
@every_geometry
def test_partition_differentiates_to_the_attention_vector(space):
    """∂_β log(a_0 Z) = ⟨θ,A⟩ and ∇_θ log Z = β P_θ A, by JAX forward and in reverse, at the poles too."""
    rng = np.random.default_rng(9)
    beta = 2.0
    grid = space.grid(16)
    c = np.asarray(grid.moments(uniform_points(space, 30, rng), np.full(30, 1 / 30)))
    points = with_poles(space, uniform_points(space, 20, rng))
    Z, G = grid.partition(c, multipliers(beta, grid.degree, space.dimension), points)
    A = np.asarray(G) / np.asarray(Z)[:, None]
    along = np.sum(points * A, axis=1)
    tangent = project(points, rng.standard_normal(points.shape))

    def log_partition(beta, points):
        value = grid.partition(c, funk_hecke.multipliers(beta, grid.degree, space.dimension), points)[0]
        return jnp.log(value) + funk_hecke.log_scaled_a0(beta, space.dimension) + beta

    with jax.enable_x64(True):
        by_beta, by_point = (
            jax.jit(lambda dot: jax.jvp(log_partition, (beta, points), dot)[1])(dot)
            for dot in ((1.0, np.zeros_like(points)), (0.0, tangent))
        )
        by_beta_reverse, by_point_reverse = jax.jit(
            jax.grad(lambda b, p: jnp.sum(log_partition(b, p)), argnums=(0, 1))
        )(beta, points)
    np.testing.assert_allclose(by_beta, along, atol=1e-13)
    np.testing.assert_allclose(by_beta_reverse, along.sum(), atol=1e-12)
    np.testing.assert_allclose(by_point, beta * np.sum(tangent * A, axis=1), atol=1e-12)
    np.testing.assert_allclose(project(points, np.asarray(by_point_reverse)), beta * project(points, A), atol=1e-12)


@pytest.mark.slow
@every_geometry
def test_derivatives_at_points_agree_with_the_gradient_at_nodes(space):
    """d f(θ+εv) = ⟨∇f,v⟩ forward; ∂/∂θ_j Σ w_j f(θ_j) = w_j ∇f(θ_j) in reverse, through evaluation and moments."""
    rng = np.random.default_rng(10)
    grid = space.grid(9)
    c = rng.standard_normal(grid.size) / (1.0 + grid.degrees) ** 2
    nodes, weights = grid.nodes, grid.weights
    tangent = project(nodes, rng.standard_normal(nodes.shape))
    gradient = np.asarray(grid.gradient(c))
    root = np.sqrt(weights)
    with jax.enable_x64(True):
        change = jax.jit(lambda dot: jax.jvp(lambda p: grid.evaluate(c, p), (nodes,), (dot,))[1])(tangent)
        moved = jax.jit(lambda dot: jax.jvp(lambda p: grid.moments(p, weights), (nodes,), (dot,))[1])(tangent)
        through_values = jax.jit(jax.grad(lambda p: grid.evaluate(c, p) @ weights))(nodes)
        through_moments, by_weight = jax.jit(jax.grad(lambda p, w: c @ grid.moments(p, w), argnums=(0, 1)))(
            nodes, weights
        )
    change, moved, by_weight = (np.asarray(array) for array in (change, moved, by_weight))
    np.testing.assert_allclose(root * change, root * np.sum(gradient * tangent, axis=1), atol=1e-12)
    np.testing.assert_allclose(c @ moved, np.sum(weights[:, None] * gradient * tangent), atol=1e-12)
    for cotangent in (through_values, through_moments):
        force = root[:, None] * project(nodes, np.asarray(cotangent))
        np.testing.assert_allclose(force, (root * weights)[:, None] * gradient, atol=1e-12)
    np.testing.assert_allclose(root * by_weight, root * np.asarray(grid.evaluate(c, nodes)), atol=1e-12)


@every_geometry
def test_leading_axes_of_points_are_trials(space):
    rng = np.random.default_rng(11)
    grid = space.grid(8)
    trials = uniform_points(space, 60, rng).reshape(2, 3, 10, -1)
    weights = rng.dirichlet(np.ones(10))
    c = np.asarray(grid.moments(trials, weights))
    table = multipliers(1.5, 8, space.dimension)
    Z, G = grid.partition(c, table, trials)
    assert c.shape == (2, 3, grid.size)
    assert G.shape == trials.shape
    for i, j in itertools.product(range(2), range(3)):
        np.testing.assert_allclose(c[i, j], grid.moments(trials[i, j], weights), atol=1e-13)
        Z_ij, G_ij = grid.partition(c[i, j], table, trials[i, j])
        np.testing.assert_allclose(Z[i, j], Z_ij, atol=1e-14)
        np.testing.assert_allclose(G[i, j], G_ij, atol=1e-14)


@every_geometry
def test_a_lower_degree_is_a_prefix(space):
    rng = np.random.default_rng(12)
    low, high = space.grid(5), space.grid(11)
    np.testing.assert_array_equal(high.degrees[: low.size], low.degrees)
    np.testing.assert_array_equal(high.orders[: low.size], low.orders)
    assert np.all(high.degrees[low.size :] > 5)
    c, points = rng.standard_normal((2, low.size)), uniform_points(space, 30, rng)
    padded = np.asarray(low.resized(c, 11))
    assert padded.shape == (2, high.size)
    np.testing.assert_allclose(high.evaluate(padded, points), low.evaluate(c, points), rtol=1e-13, atol=1e-13)
    np.testing.assert_array_equal(high.resized(padded, 5), padded[:, : low.size])


@every_geometry
def test_results_are_float64_with_x64_off(space):
    assert not jax.config.jax_enable_x64
    rng = np.random.default_rng(13)
    grid = space.grid(6)
    points, c = uniform_points(space, 20, rng), rng.standard_normal(grid.size)
    table = multipliers(1.0, 6, space.dimension)
    field = grid.gradient(c)
    results = [
        grid.synthesize(c), grid.analyze(grid.synthesize(c)), field, grid.divergence(field), grid.resized(c, 9),
        grid.moments(points, np.ones(20)), grid.evaluate(c, points), *grid.partition(c, table),
        *grid.partition(c, table, points),
    ]  # fmt: skip
    assert {np.asarray(result).dtype for result in results} == {np.dtype(np.float64)}
    assert not jax.config.jax_enable_x64


@every_geometry
def test_a_grid_is_built_once_and_its_tables_are_leaves(space):
    assert space.grid(7) is space.grid(7)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(space.grid(7)))
    assert space.grid(7).space == space


@every_geometry
@pytest.mark.parametrize("degree", [0, -3, 1 << 23])
def test_a_degree_out_of_range_is_refused(space, degree):
    for build in (space.grid, space.quadrature):
        with pytest.raises(InputError, match="degree"):
            build(degree)


def test_spaces_are_equal_only_to_themselves():
    spaces = [*GEOMETRIES, Euclidean(3), Euclidean(512)]
    for a, b in itertools.product(range(len(spaces)), repeat=2):
        assert (spaces[a] == spaces[b]) == (a == b)
    assert len({*spaces, Circle(), Sphere(), Zonal(8), Euclidean(3)}) == len(spaces)
    assert {space.case_name for space in SPACES} == {"circle", "sphere", "zonal", "euclidean"}
