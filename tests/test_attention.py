"""A(θ) = (1/Z) ∫ e^{β⟨θ,ω⟩} ω dμ(ω), against a double sum in plain NumPy, token by token and through moments."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from scipy.stats import ortho_group

from meanfield import attention as attention_module
from meanfield.attention import Attention, Moments, Tokens
from meanfield.geometry import Sphere, funk_hecke
from meanfield.keys import InputError

field = jax.jit(lambda attention, source, points=None: attention(0.0, source, points))


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def units(count: int, dimension: int, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((count, dimension))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def tokens(count: int, dimension: int = 3, seed: int = 0) -> Tokens:
    """A measure of `count` directions with unequal weights."""
    weights = np.random.default_rng(seed).dirichlet(np.ones(count))
    return Tokens(units(count, dimension, seed), weights)


def double_sum(beta: float, source: Tokens, points: np.ndarray, normalized: bool) -> tuple[np.ndarray, np.ndarray]:
    """A and e^{−β}Z, slowly and readably."""
    vectors, partitions = [], []
    for theta in points:
        Z, total = 0.0, np.zeros(len(theta))
        for omega, weight in zip(source.directions, source.weights, strict=True):
            kernel = weight * np.exp(beta * (theta @ omega - 1))
            Z += kernel
            total += kernel * omega
        vectors.append(total / Z if normalized else total * np.exp(beta))
        partitions.append(Z)
    return np.array(vectors), np.array(partitions)


def moments(source: Tokens, beta: float) -> Moments:
    grid = Sphere().grid(funk_hecke.attention_degree(beta, 3))
    return Moments(grid, grid.moments(source.directions, source.weights))


@pytest.mark.parametrize("normalized", [True, False], ids=["softmax", "unnormalized"])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("dimension", [2, 3, 17])
def test_token_by_token_it_is_the_double_sum(dimension, beta, normalized):
    source, points = tokens(12, dimension), units(7, dimension, 1)
    A, Z = double_sum(beta, source, points, normalized)
    computed = field(Attention(beta, normalized), source, points)
    np.testing.assert_allclose(computed.vector, A, atol=1e-14 * (1 if normalized else np.exp(beta)))
    np.testing.assert_allclose(computed.partition, Z, rtol=2e-14)


@pytest.mark.parametrize("normalized", [True, False], ids=["softmax", "unnormalized"])
@pytest.mark.parametrize("beta", [0.0, 1.0, 4.0])
def test_through_moments_it_is_the_double_sum(beta, normalized):
    source, points = tokens(50), units(20, 3, 1)
    A, Z = double_sum(beta, source, points, normalized)
    computed = field(Attention(beta, normalized), moments(source, 4.0), points)
    # moments know Z to round-off of its largest value e^β: in softmax the least Z of the points divides that
    atol = 1e-13 * (1 / Z.min() if normalized else np.exp(beta))
    np.testing.assert_allclose(computed.vector, A, atol=atol)
    np.testing.assert_allclose(computed.partition, Z, atol=1e-13)


def test_through_moments_of_a_measure_in_reach_of_every_token_it_agrees_to_round_off():
    source = tokens(200)
    A, _ = double_sum(1.0, source, source.directions[:20], True)
    computed = field(Attention(1.0), moments(source, 1.0), source.directions[:20]).vector
    assert np.abs(computed - A).max() < 1e-13


def test_where_no_points_are_given_the_field_is_at_the_tokens_or_at_the_nodes():
    source = tokens(12)
    np.testing.assert_allclose(
        field(Attention(2.0), source).vector, field(Attention(2.0), source, source.directions).vector, atol=1e-15
    )
    seen = moments(source, 2.0)
    A, _ = double_sum(2.0, source, seen.grid.nodes, True)
    np.testing.assert_allclose(field(Attention(2.0), seen).vector, A, atol=1e-12)


@pytest.mark.parametrize("normalized", [True, False], ids=["softmax", "unnormalized"])
def test_at_beta_zero_every_token_sees_the_mean(normalized):
    source, points = tokens(12), units(7, 3, 1)
    mean = source.weights @ source.directions
    for seen in (source, moments(source, 0.0)):
        computed = field(Attention(0.0, normalized), seen, points)
        np.testing.assert_allclose(computed.vector, np.broadcast_to(mean, (7, 3)), atol=1e-15)
        np.testing.assert_allclose(computed.partition, 1, rtol=1e-14)


@pytest.mark.parametrize("beta", [710.0, 1000.0, 1e6])
def test_softmax_overflows_at_no_beta(beta):
    source = tokens(12, 5)
    computed = field(Attention(beta), source)
    # every token sees itself alone
    np.testing.assert_allclose(computed.vector, source.directions, atol=1e-6)
    np.testing.assert_allclose(computed.partition, source.weights, rtol=1e-6)
    # a token opposite to all others: each e^{β⟨θ,ω⟩} underflows, their ratios do not
    cluster = Tokens(np.array([[1.0, 0.0], [np.cos(1e-3), np.sin(1e-3)]]), np.array([0.5, 0.5]))
    opposite = field(Attention(beta), cluster, np.array([[-1.0, 0.0]]))
    share = 1 / (1 + np.exp(-beta * (1 - np.cos(1e-3))))
    np.testing.assert_allclose(opposite.vector[0], [1 - share, share] @ cluster.directions, atol=1e-9)


def test_a_token_without_weight_is_not_there():
    # its kernel e^{β} would be the largest, and a shift by it would leave Z = 0
    source = Tokens(np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), np.array([0.0, 0.25, 0.75]))
    computed = field(Attention(1000.0), source, source.directions[:1])
    np.testing.assert_array_equal(computed.vector, [[0.0, 1.0]])


@pytest.mark.parametrize("through", ["tokens", "moments"])
def test_the_field_turns_with_the_measure(through):
    source, points = tokens(30), units(9, 3, 1)
    R = Rotation.random(rng=3).as_matrix()
    turned = Tokens(source.directions @ R.T, source.weights)
    seen, seen_turned = (s if through == "tokens" else moments(s, 2.0) for s in (source, turned))
    A, B = field(Attention(2.0), seen, points).vector, field(Attention(2.0), seen_turned, points @ R.T).vector
    np.testing.assert_allclose(B, A @ R.T, atol=1e-13)


def test_the_field_turns_with_the_measure_in_any_dimension():
    source, R = tokens(30, 11), ortho_group.rvs(11, random_state=4)
    A = field(Attention(2.0), source).vector
    turned = field(Attention(2.0), Tokens(source.directions @ R.T, source.weights)).vector
    np.testing.assert_allclose(turned, A @ R.T, atol=1e-14)


def test_tangentially_softmax_is_the_gradient_of_log_z_over_beta():
    source, theta, beta = tokens(12), units(1, 3, 1), 3.0
    slope = jax.grad(lambda p: jnp.log(field(Attention(beta), source, p).partition[0]))(jnp.asarray(theta))
    A = np.asarray(field(Attention(beta), source, theta).vector)
    tangential = [v - np.sum(v * theta) * theta for v in (slope / beta, A)]
    np.testing.assert_allclose(*tangential, atol=1e-14)


def test_in_blocks_of_rows_the_sum_is_the_same(monkeypatch):
    source = tokens(12)
    whole = Attention(2.0)(0.0, source)
    monkeypatch.setattr(attention_module, "BLOCK_ENTRIES", 60)
    for part, all_at_once in zip(Attention(2.0)(0.0, source), whole, strict=True):
        np.testing.assert_allclose(part, all_at_once, rtol=1e-14, atol=1e-15)


def test_trials_do_not_see_each_other():
    directions = np.stack([units(8, 4, seed) for seed in range(3)])
    weights = np.full(8, 1 / 8)
    together = field(Attention(2.0), Tokens(directions, weights))
    for trial in range(3):
        alone = field(Attention(2.0), Tokens(directions[trial], weights))
        np.testing.assert_allclose(together.vector[trial], alone.vector, rtol=1e-14)


@pytest.mark.parametrize("through", ["tokens", pytest.param("moments", marks=pytest.mark.slow)])
@pytest.mark.parametrize("normalized", [True, False], ids=["softmax", "unnormalized"])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_the_slope_in_beta_is_the_covariance(beta, normalized, through):
    # ∂_β A = ∫e^{βs}(s − ⟨s⟩) ω dμ / Z with s = ⟨θ,ω⟩ (softmax), ∫ e^{βs} s ω dμ (unnormalised): at β = 0 too
    source, theta = tokens(12), units(4, 3, 1)
    s = theta @ source.directions.T
    kernel = np.exp(beta * s) * source.weights
    if normalized:
        kernel /= kernel.sum(axis=1, keepdims=True)
        exact = (kernel * (s - np.sum(kernel * s, axis=1, keepdims=True))) @ source.directions
    else:
        exact = (kernel * s) @ source.directions
    seen = source if through == "tokens" else moments(source, 1.0)
    slope = jax.jacfwd(lambda b: field(Attention(b, normalized), seen, theta).vector)(beta)
    np.testing.assert_allclose(slope, exact, atol=1e-13)


@pytest.mark.parametrize("beta", [0.0, 1e-3, 2.0])
def test_energy_is_the_double_integral(beta):
    # e^{−β}E = (2β)⁻¹ Σ w_i w_j e^{β(⟨θ_i,θ_j⟩−1)}, and half the squared order parameter at β = 0
    source = tokens(12)
    order = np.linalg.norm(source.weights @ source.directions)
    kernel = np.exp(beta * (source.directions @ source.directions.T - 1))
    exact = source.weights @ kernel @ source.weights / (2 * beta) if beta else order**2 / 2
    energy = Attention(beta).energy(0.0, field(Attention(beta), source).partition, source.weights, order)
    assert float(energy) == pytest.approx(exact, rel=1e-13)


@pytest.mark.parametrize("beta", [-1.0, -1e-300, np.nan, np.inf, [1.0, 2.0]])
def test_a_beta_that_is_no_number_of_at_least_zero_is_refused(beta):
    with pytest.raises(InputError, match=r"^beta = .*: expected a (finite )?number of at least 0"):
        Attention(beta)


def test_unnormalised_attention_is_refused_where_its_exponential_overflows():
    with pytest.raises(InputError, match=r"^beta = 701\.0: expected at most 700 for unnormalized attention"):
        Attention(701.0, normalized=False)
    largest = field(Attention(700.0, normalized=False), tokens(5))
    assert np.isfinite(largest.vector).all()
    Attention(701.0)
