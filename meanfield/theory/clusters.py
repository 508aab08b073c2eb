"""Late times: how a narrow cloud closes under each scheme, and how two clusters merge."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import quad

from meanfield.keys import require
from meanfield.theory.ode import integrate_at
from meanfield.theory.schemes import Scheme, depths


def late_decay(scheme: Scheme, times: ArrayLike) -> NDArray[np.float64]:
    """The law, up to a constant factor, by which 1 − |∫θdμ|² decays as t → ∞; same shape as `times`.

    e^{−2t} (Post-LN), t^{−2} (Pre-, Mix-, Peri-LN), e^{−2∫α} (nGPT), e^{−4√t} (sqrt-scaling). Assumes that all tokens
    gather in one point, Q = K = V = I. Source: 2510.22026, derived; the nGPT rate printed there is inverted.
    Raises InputError for a negative time, or zero where the law is t^{−2}.
    """
    t = depths(times)
    match scheme.name:
        case "post-ln":
            return np.exp(-2.0 * t)
        case "ngpt":
            return np.exp(-2.0 * scheme.alpha_integral(t))
        case "sqrt-scaling":
            return np.exp(-4.0 * np.sqrt(t))
    require(bool(np.all(t > 0.0)), "times", times, "positive: the late law is a power of depth")
    return t**-2.0


def late_scale(scheme: Scheme, times: ArrayLike) -> NDArray[np.float64]:
    """The scale S in dVar/dt = −Θ(Var/S) inside a narrow cone: 1, t, t, t, 1/α, √t; same shape as `times`.

    In the order Post-LN, Pre-LN, Mix-LN, Peri-LN, nGPT, sqrt-scaling. Assumes Q = K = V = I, all tokens in the cone.
    Source: 2510.22026 (nGPT corrected).
    Raises InputError for a negative time.
    """
    t = depths(times)
    match scheme.name:
        case "post-ln":
            return np.ones_like(t)
        case "ngpt":
            alphas = [scheme.alpha_at(float(depth)) for depth in t.flat]
            return 1.0 / np.reshape(np.asarray(alphas, dtype=np.float64), t.shape)
        case "sqrt-scaling":
            return np.sqrt(t)
    return t


def require_clusters(beta: float, mass: float) -> None:
    """Raise InputError unless β ≥ 0 is finite and 0 < m < 1."""
    require(0.0 <= beta < math.inf, "beta", beta, "zero or more, and finite")
    require(0.0 < mass < 1.0, "mass", mass, "a number strictly between 0 and 1")


def require_angle(key: str, angle: float) -> None:
    """Raise InputError unless the angle lies strictly between 0 and π."""
    require(0.0 < angle < math.pi, key, angle, "a number strictly between 0 and π")


def closing_rate(angle: float, beta: float, mass: float = 0.5) -> float:
    """−(dφ/dt)/sin φ of two clusters at angle φ with masses m and 1−m, under softmax and Post-LN.

    (1−m)/(mE+1−m) + m/((1−m)E+m), E = e^{β(1−cos φ)}. Assumes Q = K = V = I; any dimension. Source: derived.
    Raises InputError for β < 0 or m outside (0, 1).
    """
    require_clusters(beta, mass)
    cross = math.exp(-beta * (1.0 - math.cos(angle)))  # 1/E: cannot overflow
    return (1.0 - mass) * cross / (mass + (1.0 - mass) * cross) + mass * cross / (1.0 - mass + mass * cross)


def cluster_angle(times: ArrayLike, initial_angle: float, beta: float, mass: float = 0.5) -> NDArray[np.float64]:
    """Angle φ(t) of two clusters, dφ/dt = −sin φ · `closing_rate`; same shape as `times`.

    Softmax, Post-LN, Q = K = V = I, any dimension. Source: derived. Integrated for log tan(φ/2), whose rate is the
    bare closing rate, so that small angles keep their relative accuracy.
    Raises InputError for an angle outside (0, π), β < 0, m outside (0, 1) or a negative time.
    """
    require_clusters(beta, mass)
    require_angle("initial_angle", initial_angle)
    t = depths(times)
    start = np.array([math.log(math.tan(initial_angle / 2.0))])
    states = integrate_at(
        lambda _, y: [-closing_rate(2.0 * math.atan(math.exp(y[0])), beta, mass)], 0.0, start, t.ravel()
    )
    return np.reshape(2.0 * np.arctan(np.exp(states[:, 0])), t.shape)


def merging_time(initial_angle: float, final_angle: float, beta: float, mass: float = 0.5) -> float:
    """Time that two clusters take from one angle to a smaller one: ∫ dφ/(sin φ · `closing_rate`).

    Softmax, Post-LN, Q = K = V = I, any dimension. Source: derived. Raises InputError unless 0 < final_angle ≤
    initial_angle < π, β ≥ 0, 0 < m < 1.
    """
    require_clusters(beta, mass)
    require_angle("initial_angle", initial_angle)
    require_angle("final_angle", final_angle)
    require(final_angle <= initial_angle, "final_angle", final_angle, "at most initial_angle")
    low, high = (math.log(math.tan(angle / 2.0)) for angle in (final_angle, initial_angle))
    time, _ = quad(
        lambda y: 1.0 / closing_rate(2.0 * math.atan(math.exp(y)), beta, mass),
        low,
        high,
        epsabs=0.0,
        epsrel=1e-12,
        limit=500,
    )
    return float(time)
