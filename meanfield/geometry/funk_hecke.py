"""Funk–Hecke multipliers of the kernel e^{β⟨x,y⟩} on S^{d-1}, for any d and any β ≥ 0.

∫ e^{β⟨x,y⟩} Y_l(y) dσ(y) = a_l(β) Y_l(x),   a_l(β) = Γ(d/2) (2/β)^ν I_{ν+l}(β),   ν = d/2 − 1.

Only ratios of the a_l are formed, by the backward recurrence of r_l = a_l/a_{l−1}, which is exact at β = 0, neither
overflows nor underflows, and is differentiable in β.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp
from jax.typing import ArrayLike
from scipy.special import gammaln as log_gamma

# The error of the starting ratio shrinks by Π r_l² ≈ exp(−((l+EXTRA)² − l²)/β): below 1e-17 for β ≤ 1000 and every l.
EXTRA_TERMS = 200
# Σ_k (β²/4)^k / (k! (d/2)_k) peaks at k ≈ β/2 with width √β/2; 1024 terms reach β = 1400.
SERIES_TERMS = 1024
# Degrees are rounded up to this ladder, so that within a rung a new β keeps every array shape.
LADDER = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


class Multipliers(NamedTuple):
    """Per degree l ≤ degree: value a_l, tangential a_l/β, radial ∂_β a_l, each divided by a_0."""

    value: Array
    tangential: Array
    radial: Array


def bessel_ratios(beta: ArrayLike, degree: int, dimension: int) -> Array:
    """r_l = a_l/a_{l−1} = I_{ν+l}(β)/I_{ν+l−1}(β) for l = 1 … degree, by r_l = β/(2(ν+l) + β r_{l+1}). Shape (degree,)."""
    nu = dimension / 2 - 1
    beta = jnp.asarray(beta, dtype=float)
    orders = nu + np.arange(degree + EXTRA_TERMS, 0, -1)
    # Amos' bound (Math. Comp. 28, 1974) starts the recurrence within O(1/(ν+l)²).
    start = beta / (orders[0] + 0.5 + jnp.sqrt((orders[0] + 1.5) ** 2 + beta**2))

    def step(ratio: Array, order: Array) -> tuple[Array, Array]:
        ratio = beta / (2 * order + beta * ratio)
        return ratio, ratio

    _, ratios = jax.lax.scan(step, start, jnp.asarray(orders), unroll=1)
    return ratios[::-1][:degree]


def multipliers(beta: ArrayLike, degree: int, dimension: int) -> Multipliers:
    """Multipliers of Z = ∫e^{β⟨θ,ω⟩}dμ/a_0 and of its gradient ∇F(βθ)/a_0 = Σ_l [(a_l/β) ∇Y_l + a_l′ Y_l θ] μ_l/a_0.

    Each of shape (degree + 1,). The tangential multiplier of l = 0 multiplies ∇Y_0 = 0 and is set to 0.
    """
    nu = dimension / 2 - 1
    beta = jnp.asarray(beta, dtype=float)
    ratios = bessel_ratios(beta, degree + 1, dimension)
    value = jnp.concatenate([jnp.ones(1), jnp.cumprod(ratios)])
    degrees = np.arange(1, degree + 1)
    tangential = jnp.concatenate([jnp.zeros(1), value[:degree] / (2 * (nu + degrees) + beta * ratios[1:])])
    radial = value[1:] + np.arange(degree + 1) * tangential
    return Multipliers(value[:-1], tangential, radial)


def spreading(concentration: ArrayLike, degree: int, dimension: int) -> Array:
    """a_l(κ)/a_0(κ), l = 0 … degree: what spreading by a von Mises–Fisher kernel does to degree-l moments.

    Shape (..., degree + 1) for concentrations of shape (...).
    """
    concentration = jnp.asarray(concentration, dtype=float)
    rows = jax.vmap(lambda kappa: multipliers(kappa, degree, dimension).value)(concentration.reshape(-1))
    return rows.reshape(*concentration.shape, degree + 1)


def log_scaled_a0(beta: ArrayLike, dimension: int) -> Array:
    """log(e^{−β} a_0(β)), a_0 = ₀F₁(; d/2; β²/4) = ∫ e^{β⟨x,y⟩} dσ(y); exactly 0 at β = 0. Valid for β ≤ 1400."""
    beta = jnp.asarray(beta, dtype=float)
    k = np.arange(SERIES_TERMS)
    half = dimension / 2
    fixed = log_gamma(half) - log_gamma(k + 1.0) - log_gamma(k + half)
    safe = jnp.where(beta > 0, beta, 1.0)
    log_a0 = logsumexp(fixed + 2 * k * jnp.log(safe / 2)[..., None], axis=-1)
    # a_0′(0) = 0, so that at β = 0 the slope −1 of −β is the whole derivative.
    return jnp.where(beta > 0, log_a0, 0.0) - beta


def attention_degree(beta: float, dimension: int, tolerance: float = 1e-15) -> int:
    """L(β): the least degree on the ladder beyond which a_l dim_l/a_0, the most degree l adds to Z, is below `tolerance`."""
    degrees = np.arange(1, LADDER[-1] + 1)
    log_dim = (
        np.log(2 * degrees + dimension - 2)
        + log_gamma(degrees + dimension - 2)
        - log_gamma(degrees + 1)
        - log_gamma(dimension - 1)
    )
    with np.errstate(divide="ignore"):
        size = np.cumsum(np.log(_numpy_ratios(beta, LADDER[-1], dimension))) + log_dim
    above = np.flatnonzero(size > np.log(tolerance))
    needed = int(degrees[above[-1]]) if above.size else 0
    return next((rung for rung in LADDER if rung >= needed), LADDER[-1])


def _numpy_ratios(beta: float, degree: int, dimension: int) -> np.ndarray:
    nu = dimension / 2 - 1
    ratios = np.empty(degree + EXTRA_TERMS + 1)
    ratios[-1] = 0.0
    for index in range(degree + EXTRA_TERMS - 1, -1, -1):
        ratios[index] = beta / (2 * (nu + index + 1) + beta * ratios[index + 1])
    return ratios[:degree]
