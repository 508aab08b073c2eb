"""a_l(β) = Γ(d/2) (2/β)^ν I_{ν+l}(β), ν = d/2 − 1: ratios, derivatives and degrees, against 50-digit arithmetic."""

from __future__ import annotations

import functools

import jax
import mpmath
import numpy as np
import pytest
from scipy.special import binom

from meanfield.geometry import funk_hecke

DIMENSIONS = [2, 3, 8, 512]
BETAS = [0.0, 1e-8, 0.3, 1.0, 4.0, 9.0, 50.0, 100.0, 300.0, 700.0, 1000.0]
DEGREE = 40


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


bessel_ratios = jax.jit(funk_hecke.bessel_ratios, static_argnums=(1, 2))
multipliers = jax.jit(funk_hecke.multipliers, static_argnums=(1, 2))
log_scaled_a0 = jax.jit(funk_hecke.log_scaled_a0, static_argnums=1)


@functools.cache
def a(degree: int, beta: float, dimension: int) -> mpmath.mpf:
    """a_l(β) to 50 digits: (β/2)^l Γ(d/2)/Γ(d/2+l) ₀F₁(; d/2+l; β²/4), which is I_{ν+l} without its singular factor."""
    with mpmath.workdps(50):
        half, b = mpmath.mpf(dimension) / 2, mpmath.mpf(beta)
        series = mpmath.hyp0f1(half + degree, b**2 / 4)
        return (b / 2) ** degree * mpmath.gamma(half) / mpmath.gamma(half + degree) * series


def quotients(numerators, denominator) -> np.ndarray:
    with mpmath.workdps(50):
        return np.array([float(n / denominator) for n in numerators])


def test_the_reference_is_the_bessel_function_of_the_definition():
    with mpmath.workdps(50):
        for d, k, beta in ((2, 3, 1.0), (3, 5, 9.0), (8, 2, 300.0)):
            nu, b = mpmath.mpf(d) / 2 - 1, mpmath.mpf(beta)
            definition = mpmath.gamma(nu + 1) * (2 / b) ** nu * mpmath.besseli(nu + k, b)
            assert abs(a(k, beta, d) / definition - 1) < 1e-40


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize("beta", BETAS[1:])
def test_ratios_of_neighbouring_degrees(beta, dimension):
    exact = [float(a(k, beta, dimension) / a(k - 1, beta, dimension)) for k in range(1, DEGREE + 1)]
    np.testing.assert_allclose(bessel_ratios(beta, DEGREE, dimension), exact, rtol=1e-14)


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize("beta", BETAS[1:])
def test_value_tangential_and_radial_multipliers(beta, dimension):
    a0, degrees = a(0, beta, dimension), range(DEGREE + 1)
    value, tangential, radial = multipliers(beta, DEGREE, dimension)
    np.testing.assert_allclose(value, quotients([a(k, beta, dimension) for k in degrees], a0), rtol=1e-13, atol=1e-300)
    with mpmath.workdps(50):
        slopes = [a(k, beta, dimension) / mpmath.mpf(beta) for k in degrees[1:]]
        # ∂_β a_l = a_{l+1} + (l/β) a_l
        derivatives = [a(k + 1, beta, dimension) + k / mpmath.mpf(beta) * a(k, beta, dimension) for k in degrees]
    np.testing.assert_allclose(tangential, [0.0, *quotients(slopes, a0)], rtol=1e-13, atol=1e-300)
    np.testing.assert_allclose(radial, quotients(derivatives, a0), rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_at_zero_temperature_parameter_the_kernel_sees_degree_one_alone(dimension):
    value, tangential, radial = multipliers(0.0, 6, dimension)
    np.testing.assert_array_equal(value, [1, 0, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(tangential, [0, 1 / dimension, 0, 0, 0, 0, 0], rtol=1e-15)
    np.testing.assert_allclose(radial, [0, 1 / dimension, 0, 0, 0, 0, 0], rtol=1e-15)


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize("beta", [0.0, 0.3, 4.0, 100.0])
def test_derivatives_in_beta_are_those_that_jax_takes(beta, dimension):
    value, value_dot = jax.jvp(lambda b: multipliers(b, 8, dimension).value, (beta,), (1.0,))
    radial = multipliers(beta, 8, dimension).radial
    # (a_l/a_0)′ = a_l′/a_0 − (a_l/a_0)(a_0′/a_0)
    np.testing.assert_allclose(value_dot, radial - value * radial[0], atol=1e-14)
    # (log e^{−β} a_0)′ = a_0′/a_0 − 1
    slope = jax.grad(lambda b: log_scaled_a0(b, dimension))(beta)
    np.testing.assert_allclose(slope, radial[0] - 1, atol=1e-13)


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize("beta", BETAS)
def test_log_of_the_scaled_mean_of_the_kernel(beta, dimension):
    with mpmath.workdps(50):
        exact = float(mpmath.log(a(0, beta, dimension)) - mpmath.mpf(beta))
    computed = float(log_scaled_a0(beta, dimension))
    assert abs(computed - exact) <= 2e-15 * max(beta, 1.0)
    if beta == 0:
        assert computed == 0


def test_spreading_takes_concentrations_of_any_shape():
    kappa = np.array([[0.0, 1.0, 50.0], [2.0, 9.0, 1000.0]])
    spread = funk_hecke.spreading(kappa, 5, 3)
    assert spread.shape == (2, 3, 6)
    for index in np.ndindex(2, 3):
        np.testing.assert_allclose(spread[index], multipliers(kappa[index], 5, 3).value, rtol=1e-15)


def dimensions_of_degrees(degree: int, d: int) -> np.ndarray:
    """Number of harmonics of each degree on S^{d−1}."""
    k = np.arange(1, degree + 1)
    return np.concatenate([[1.0], (2 * k + d - 2) / k * binom(k + d - 3, k - 1)])


@pytest.mark.parametrize(("beta", "rung"), [(0.0, 8), (1.0, 16), (4.0, 24), (9.0, 32)])
def test_degrees_that_attention_needs_on_the_sphere(beta, rung):
    assert funk_hecke.attention_degree(beta, 3) == rung
    assert rung in funk_hecke.LADDER


@pytest.mark.parametrize("dimension", [2, 3, 8, 64])
@pytest.mark.parametrize("beta", [0.5, 1.0, 4.0, 9.0, 25.0, 100.0])
def test_those_degrees_are_enough_and_the_next_lower_rung_is_not(beta, dimension):
    # e^{βu}/a_0 = Σ_l (a_l/a_0) dim_l C_l(u)/C_l(1), whose terms are largest at u = 1, the place of a point mass
    terms = dimensions_of_degrees(600, dimension) * multipliers(beta, 600, dimension).value
    enough = funk_hecke.attention_degree(beta, dimension)
    lower = max((rung for rung in funk_hecke.LADDER if rung < enough), default=0)
    assert terms[enough + 1 :].sum() < 1e-14
    assert lower == 0 or terms[lower + 1 :].max() > 1e-15


@pytest.mark.parametrize("beta", [1.0, 4.0, 9.0])
def test_the_series_so_truncated_is_the_exponential(beta):
    u = np.linspace(-1, 1, 41)
    value = np.asarray(multipliers(beta, funk_hecke.attention_degree(beta, 3), 3).value)
    series = np.polynomial.legendre.legval(u, value * (2 * np.arange(value.size) + 1))
    a0 = np.exp(float(log_scaled_a0(beta, 3)) + beta)
    np.testing.assert_allclose(series, np.exp(beta * u) / a0, atol=1e-14 * np.exp(beta) / a0)


def test_a_new_beta_within_a_rung_keeps_every_shape():
    assert {funk_hecke.attention_degree(beta, 3) for beta in (2.0, 3.0, 4.0)} == {24}
