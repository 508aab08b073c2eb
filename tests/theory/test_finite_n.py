"""Finitely many tokens: exact constants against sums, quadrature and seeded Monte Carlo."""

import math

import numpy as np
import pytest
from scipy.special import roots_jacobi, zeta

from meanfield.keys import InputError
from meanfield.theory import equiangular, finite_n, growth


def test_the_distance_of_uniform_tokens_in_closed_form():
    # circle, s = 1: Σ 2/(1+l²) = π coth π − 1;  S³: Σ (l+1)²(l+1)^{−2s} = ζ(2s−2) − 1;  S², s = 2, by direct sum
    uniform = ([1.0], [0])
    assert finite_n.mean_squared_distance(1, *uniform, 2, 1.0) == pytest.approx(
        math.pi / math.tanh(math.pi) - 1, rel=1e-13
    )
    for order in (1.6, 2.5, 6.0):
        expected = zeta(2 * order - 2) - 1
        assert finite_n.mean_squared_distance(1, *uniform, 4, order) == pytest.approx(expected, rel=1e-12)
    l = np.arange(1, 200_000, dtype=np.float64)
    direct = np.sum((2 * l + 1) / (1 + l * (l + 1)) ** 2) + 200_000.0**-2
    assert finite_n.mean_squared_distance(1, *uniform, 3, 2.0) == pytest.approx(direct, rel=1e-12)


@pytest.mark.parametrize("dimension", [3, 5, 8, 24])
def test_all_degrees_are_the_limit_of_many(dimension):
    # the tail beyond L falls like L^{d−1−2s} = L^{−8}
    order = (dimension - 1) / 2 + 4.0
    full = finite_n.mean_squared_distance(1, [1.0], [0], dimension, order)
    many = finite_n.mean_squared_distance(1, [1.0], [0], dimension, order, 4000)
    assert many == pytest.approx(full, rel=1e-12)


def test_the_mean_squared_distance_of_von_mises_tokens():
    n, trials, degree, kappa, order = 12, 20_000, 6, 1.5, 1.0
    l = np.arange(1, degree + 1)
    moments = math.sqrt(2) * growth.bessel_ratios(2, kappa, degree)[1:]  # ∫ √2 cos lθ dρ; the sines vanish
    angles = np.random.default_rng(0).vonmises(0.0, kappa, (trials, n))
    empirical = math.sqrt(2) * np.mean(np.exp(1j * l * angles[..., None]), axis=1)
    squares = np.sum((1.0 + l**2.0) ** -order * np.abs(empirical - moments) ** 2, axis=1)
    expected = finite_n.mean_squared_distance(n, moments, l, 2, order, degree)
    assert np.mean(squares) == pytest.approx(expected, abs=4 * np.std(squares) / math.sqrt(trials))
    assert np.std(squares) / math.sqrt(trials) < 0.01 * expected


def test_a_point_mass_is_at_no_distance_from_its_tokens():
    # Σ_m ρ̂_lm² = dim_l for δ: every token equals the law
    dimension, degree = 3, 9
    l = np.arange(degree + 1)
    assert finite_n.mean_squared_distance(5, np.sqrt(2 * l + 1), l, dimension, 1.5, degree) == pytest.approx(
        0, abs=1e-14
    )


def test_the_distance_falls_like_one_over_n_and_ignores_degree_zero_and_what_is_cut_off():
    coefficients, degrees = [1.0, 0.3, 0.2, 0.1], [0, 1, 2, 7]
    one, ten = (finite_n.mean_squared_distance(n, coefficients, degrees, 3, 2.0) for n in (1, 10))
    assert one / ten == pytest.approx(10.0, rel=1e-14)
    cut = finite_n.mean_squared_distance(1, coefficients, degrees, 3, 2.0, 2)
    assert cut == pytest.approx((3 - 0.09) / 3**2 + (5 - 0.04) / 7**2, rel=1e-14)


def test_printed_velocity_variances():
    assert finite_n.velocity_variance(3, 2.0, "unnormalized") == pytest.approx(2.56072, abs=0.51e-5)
    assert finite_n.velocity_variance(3, 2.0) == pytest.approx(0.77868, abs=0.51e-5)


@pytest.mark.parametrize(("dimension", "beta"), [(2, 1.0), (3, 2.0), (8, 5.0), (8, 0.0)])
def test_the_velocity_variance_is_the_second_moment_of_one_summand(dimension, beta):
    # E|P_θω e^{β⟨θ,ω⟩}|² = ∫(1−x²)e^{2βx}dσ
    x, weights = roots_jacobi(60, (dimension - 3) / 2, (dimension - 3) / 2)
    weights = weights / weights.sum()
    second = weights @ ((1 - x**2) * np.exp(2 * beta * x))
    assert finite_n.velocity_variance(dimension, beta, "unnormalized") == pytest.approx(second, rel=1e-12)
    partition = weights @ np.exp(beta * x)
    assert finite_n.velocity_variance(dimension, beta) == pytest.approx(second / partition**2, rel=1e-12)


def test_the_velocity_variance_of_random_tokens():
    beta, n, trials = 2.0, 400, 10_000
    rng = np.random.default_rng(1)
    x, azimuth = rng.uniform(-1, 1, (trials, n)), rng.uniform(0, 2 * np.pi, (trials, n))
    weights = np.exp(beta * x)
    tangential = weights * np.sqrt(1 - x**2) * np.exp(1j * azimuth)
    unnormalized = n * np.mean(np.abs(tangential.mean(axis=1)) ** 2)
    softmax = n * np.mean(np.abs(tangential.mean(axis=1) / weights.mean(axis=1)) ** 2)
    assert unnormalized == pytest.approx(finite_n.velocity_variance(3, beta, "unnormalized"), rel=0.03)
    assert softmax == pytest.approx(finite_n.velocity_variance(3, beta), rel=0.03)


@pytest.mark.parametrize(
    ("tokens", "dimension", "beta", "trials"),
    [(16, 256, 1.0, 400), (64, 128, 1.0, 200), (256, 64, 1.0, 60), (64, 128, 3.0, 200)],
)
def test_the_attention_norm_of_random_uniform_tokens(tokens, dimension, beta, trials):
    rng = np.random.default_rng(2)
    squares, mean_squares = [], []
    for _ in range(trials):
        theta = rng.standard_normal((tokens, dimension))
        theta /= np.linalg.norm(theta, axis=1, keepdims=True)
        weights = np.exp(beta * theta @ theta.T)
        A = weights @ theta / weights.sum(axis=1, keepdims=True)
        squares.append(np.mean(np.sum(A**2, axis=1)))
        mean_squares.append(np.sum(theta.mean(axis=0) ** 2) - 1 / tokens)
    # |mean θ|² has the known mean 1/n and carries most of the scatter: it serves as control variate
    slope = np.cov(squares, mean_squares)[0, 1] / np.var(mean_squares)
    measured = np.mean(squares) - slope * np.mean(mean_squares)
    assert finite_n.uniform_attention_norm_squared(tokens, dimension, beta) == pytest.approx(measured, rel=0.012)


def test_the_attention_norm_of_uniform_tokens_in_its_limits():
    # d → ∞: orthogonal tokens; n → ∞: the continuum, where A = (a_1/a_0) θ; β = 0: A is the mean, E|mean θ|² = 1/n
    orthogonal = equiangular.attention_norm(0.0, 2.0, 32) ** 2
    assert finite_n.uniform_attention_norm_squared(32, 10**6, 2.0) == pytest.approx(orthogonal, rel=1e-4)
    continuum = growth.mean_attention(5, 2.0) ** 2
    assert finite_n.uniform_attention_norm_squared(10**8, 5, 2.0) == pytest.approx(continuum, rel=1e-6)
    assert finite_n.uniform_attention_norm_squared(7, 3, 0.0) == pytest.approx(1 / 7, rel=1e-14)
    assert finite_n.uniform_attention_norm_squared(1, 3, 4.0) == pytest.approx(1.0, rel=1e-14)


def test_the_attention_norm_of_uniform_tokens_at_beta_1_to_second_order():
    n, d = 4e4, 3e4
    second_order = 1 / n + (math.e - 1) ** 2 / n**2 + (2 * math.e + 1) / (n * d) + 1 / d**2
    value = finite_n.uniform_attention_norm_squared(int(n), int(d))
    assert (value - 1 / n) / (second_order - 1 / n) == pytest.approx(1.0, rel=1e-3)


def cosine_after_one_layer(cosine, gamma, log_n):
    """⟨A_i,A_j⟩/‖A‖² of n equiangular tokens at β = γ log n."""
    n, q = math.exp(log_n), math.exp(-gamma * log_n * (1 - cosine))
    # A_i ∝ (1−q)θ_i + qS with S = Σθ: ⟨S,θ_i⟩ = 1+(n−1)ρ, |S|² = n⟨S,θ_i⟩
    mean = q * (1 + (n - 1) * cosine)
    shared = 2 * (1 - q) * mean + q * n * mean
    return ((1 - q) ** 2 * cosine + shared) / ((1 - q) ** 2 + shared)


@pytest.mark.parametrize("cosine", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("position", [0.0, 0.5, 1.0, 1.5])
def test_the_long_context_map_is_the_limit_of_one_layer(cosine, position):
    gamma = position / (1 - cosine)
    limit = finite_n.long_context_map(cosine, gamma)
    assert cosine_after_one_layer(cosine, gamma, math.log(1e80)) == pytest.approx(limit, rel=1e-12)


def test_the_three_values_of_the_long_context_map():
    assert [finite_n.long_context_map(0.5, gamma) for gamma in (1.9, 2.0, 2.1)] == [1.0, 0.8, 0.5]


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: finite_n.mean_squared_distance(1, [1.0], [0], 3, 1.0), "order"),
        (lambda: finite_n.mean_squared_distance(0, [1.0], [0], 3, 2.0), "tokens"),
        (lambda: finite_n.mean_squared_distance(1, [1.0], [0, 1], 3, 2.0), "degrees"),
        (lambda: finite_n.mean_squared_distance(1, [1.0], [0], 65, 40.0), "dimension"),
        (lambda: finite_n.velocity_variance(3, 1.0, "doubly-stochastic"), "kind"),
        (lambda: finite_n.velocity_variance(3, 500.0, "unnormalized"), "beta"),
        (lambda: finite_n.uniform_attention_norm_squared(0, 3), "tokens"),
        (lambda: finite_n.long_context_map(1.0, 1.0), "cosine"),
        (lambda: finite_n.long_context_map(0.5, -1.0), "gamma"),
    ],
)
def test_wrong_input_is_refused_by_key(call, key):
    with pytest.raises(InputError) as error:
        call()
    assert error.value.key == key
