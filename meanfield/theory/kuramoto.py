"""β = 0: the exact nonlinear mean field on a sphere of any dimension, densities f_w with one parameter |w| < 1.

At β = 0 attention is the mean A = M = ∫ω dμ and Post-LN is the Kuramoto flow of the sphere; the images of the uniform
measure under the conformal maps of the ball form an invariant family. Source: derived; with time changes for nGPT and
sqrt-scaling. Pre-, Mix- and Peri-LN leave the family, because their radii depend on direction.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import hyp2f1

from meanfield.keys import require
from meanfield.theory.growth import require_sphere
from meanfield.theory.ode import integrate_at
from meanfield.theory.schemes import Scheme, depths


def density(points: ArrayLike, parameter: ArrayLike) -> NDArray[np.float64]:
    """f_w(x) = ((1−|w|²)/|x−w|²)^{d−1}, with respect to the uniform probability measure.

    `points` unit vectors (..., d), `parameter` w (d,); returns (...). Mass ∫f_w dσ = 1. Source: derived.
    Raises InputError for |w| ≥ 1 or a length that does not match the points.
    """
    x, w = np.asarray(points, dtype=np.float64), np.asarray(parameter, dtype=np.float64)
    require(w.ndim == 1 and w.size >= 2, "parameter", parameter, "one vector of at least 2 numbers")
    require(x.shape[-1:] == w.shape, "parameter", parameter, "as many coordinates as the points")
    square = float(w @ w)
    require(square < 1.0, "parameter", parameter, "shorter than 1")
    separation = np.sum((x - w) ** 2, axis=-1)
    return np.asarray(((1.0 - square) / separation) ** (w.size - 1))


def order_parameter(parameter_norm: ArrayLike, dimension: int) -> NDArray[np.float64]:
    """|∫x f_w dσ| as a function of ρ = |w|, same shape: 2(d−1)/d · ρ · ₂F₁(1, 1−d/2; 1+d/2; ρ²).

    Source: derived from the Gegenbauer expansion of f_w and Euler's transformation. d=2: ρ; d=3: (1+ρ²)/(2ρ) − (1−ρ²)²/(4ρ²)
    ln((1+ρ)/(1−ρ)), which cancels at small ρ where this form does not. Even d: a polynomial. It is 1 at ρ = 1.
    Raises InputError for d < 2 or ρ outside [0, 1].
    """
    require_sphere(dimension, 0.0)
    rho = np.asarray(parameter_norm, dtype=np.float64)
    require(bool(np.all((rho >= 0.0) & (rho <= 1.0))), "parameter", parameter_norm, "a number between 0 and 1")
    half = dimension / 2
    if dimension <= 8:
        series = hyp2f1(1.0, 1.0 - half, 1.0 + half, rho**2)
    else:  # its own terms fall at least like k^{−d} here, and the library function fails near ρ = 1 for d = 513
        k = np.arange(200 + math.ceil(6.0 * math.sqrt(dimension)))
        series = np.polynomial.polynomial.polyval(
            rho**2, np.cumprod(np.append(1.0, (k + 1.0 - half) / (k + 1.0 + half)))
        )
    return np.asarray(2.0 * (dimension - 1) / dimension * rho * series)


def parameter_norm(scheme: Scheme, times: ArrayLike, initial_norm: float, dimension: int) -> NDArray[np.float64]:
    """|w(t)|, from |w(0)| = `initial_norm`; same shape as `times`. The direction of w is constant.

    Assumes β = 0, Q = K = V = I. Source: derived. d|w|/dt = ½(1−|w|²)|Z|/s, that is du/dt = ½|Z|/s for u =
    artanh|w|, Z the mean of f_w. Post-LN s = 1; sqrt-scaling
    runs on the clock 2(√(t+1)−1); nGPT has s = |Z|/α, hence u = u(0) + ½∫α in every dimension. Post-LN on the circle
    is |w| = [1+(1−ρ₀²)ρ₀⁻²e^{−t}]^{−1/2}; for d ≥ 3 DOP853 at relative tolerance 1e−12.
    Raises InputError for another scheme, |w(0)| outside [0, 1), |w(0)| = 0 under nGPT (A vanishes), d < 2, a negative
    time.
    """
    allowed = ("post-ln", "ngpt", "sqrt-scaling")
    require(scheme.name in allowed, "scheme", scheme.name, f"one of {', '.join(allowed)} for the exact family")
    require_sphere(dimension, 0.0)
    require(0.0 <= initial_norm < 1.0, "parameter", initial_norm, "at least 0 and below 1")
    t = depths(times)
    start = math.atanh(initial_norm)
    if scheme.name == "ngpt":
        require(initial_norm > 0.0, "parameter", initial_norm, "more than zero: ngpt divides by ‖A‖")
        return np.tanh(start + 0.5 * scheme.alpha_integral(t))
    if initial_norm == 0.0:
        return np.zeros_like(t)
    clock = t if scheme.name == "post-ln" else 2.0 * t / (np.sqrt(t + 1.0) + 1.0)
    if dimension == 2:
        return 1.0 / np.sqrt(1.0 + (1.0 / initial_norm**2 - 1.0) * np.exp(-clock))

    # log u: |w| may start anywhere below 1 and keeps its relative accuracy
    def rate(_: float, y: NDArray[np.float64]) -> list[float]:
        u = math.exp(y[0])
        return [0.5 * float(order_parameter(math.tanh(u), dimension)) / u]

    states = integrate_at(rate, 0.0, np.array([math.log(start)]), clock.ravel())
    return np.reshape(np.tanh(np.exp(states[:, 0])), t.shape)


def order_parameter_at(scheme: Scheme, times: ArrayLike, initial_norm: float, dimension: int) -> NDArray[np.float64]:
    """|∫x dμ_t| of the exact solution that starts from f_w with |w| = `initial_norm`; same shape as `times`.

    Assumes β = 0, Q = K = V = I. Source: derived. Raises InputError as `parameter_norm` does.
    """
    return order_parameter(parameter_norm(scheme, times, initial_norm, dimension), dimension)
