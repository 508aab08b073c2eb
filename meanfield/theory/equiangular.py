"""Equiangular tokens: one cosine γ between any two of n tokens, exact under all six schemes (n ≤ d).

With q = e^{−β(1−γ)}, the weight of another token relative to the own one, everything is a rational function of γ and q;
no exponential of +β is ever formed. Softmax, Q = K = V = I. Sources: 2510.22026, 2512.01868, derived and checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meanfield.keys import require
from meanfield.theory.clusters import late_decay, late_scale
from meanfield.theory.ode import integrate, integrate_at
from meanfield.theory.schemes import Scheme, depths


class Path(NamedTuple):
    """Cosine γ and radius r of equiangular tokens at the asked depths, all of the same shape.

    `distance` is 1 − γ, known to relative accuracy where γ itself has rounded to 1.
    """

    cosine: NDArray[np.float64]
    distance: NDArray[np.float64]
    radius: NDArray[np.float64]


def require_equiangular(beta: float, tokens: int, cosine: float) -> None:
    """Raise InputError unless β ≥ 0, n ≥ 2 is an integer and −1/(n−1) < γ < 1, where such tokens exist and move."""
    require(0.0 <= beta < math.inf, "beta", beta, "zero or more, and finite")
    require(tokens == int(tokens) and tokens >= 2, "tokens", tokens, "an integer of at least 2")
    require(-1.0 / (tokens - 1) < cosine < 1.0, "cosine", cosine, "a number strictly between -1/(tokens-1) and 1")


def attention_projection(cosine: float, beta: float, tokens: int) -> float:
    """⟨θ,A⟩ = (u+(n−1)γw)/Z with u = e^β, w = e^{βγ}, Z = u+(n−1)w. Softmax, Q = K = V = I. Source: 2510.22026."""
    others = (tokens - 1) * math.exp(-beta * (1.0 - cosine))
    return (1.0 + others * cosine) / (1.0 + others)


def attention_norm(cosine: float, beta: float, tokens: int) -> float:
    """‖A‖, ‖A‖² = [u² + 2(n−1)γuw + w²(n−1)(1+(n−2)γ)]/Z². Softmax, Q = K = V = I. Source: 2510.22026, derived."""
    q = math.exp(-beta * (1.0 - cosine))
    others = (tokens - 1) * q
    return math.sqrt(1.0 + 2.0 * others * cosine + others * q * (1.0 + (tokens - 2) * cosine)) / (1.0 + others)


def closing_rate(cosine: float, beta: float, tokens: int) -> float:
    """−d log(1−γ)/dt at unit speed s = 1: 2w(1+(n−1)γ)/Z. Softmax, Q = K = V = I. Source: 2510.22026, 2512.01868."""
    q = math.exp(-beta * (1.0 - cosine))
    return 2.0 * q * (1.0 + (tokens - 1) * cosine) / (1.0 + (tokens - 1) * q)


def cosine_rate(scheme: Scheme, t: float, cosine: float, radius: float, beta: float, tokens: int) -> float:
    """dγ/dt = (2/s) w(1−γ)(1+(n−1)γ)/Z at depth t. Softmax, Q = K = V = I. Source: 2510.22026, 2512.01868.

    Raises InputError for β < 0, n < 2 or γ out of range.
    """
    require_equiangular(beta, tokens, cosine)
    s = scheme.speed(t, radius, attention_norm(cosine, beta, tokens))
    return (1.0 - cosine) * closing_rate(cosine, beta, tokens) / s


def initial_speed(scheme: Scheme, beta: float, tokens: int) -> float:
    """dγ/dt of orthogonal tokens (γ = 0) at t = 0.

    2/(e^β+n−1) (Post-LN, Mix-LN, sqrt-scaling), that over r₀ (Pre-LN), 2/(r₀√(e^{2β}+n−1)) (Peri-LN),
    2α₀/√(e^{2β}+n−1) (nGPT). Softmax, Q = K = V = I. Source: 2510.22026. Raises InputError for β < 0 or n < 2.
    """
    return cosine_rate(scheme, 0.0, 0.0, scheme.initial_radius, beta, tokens)


def late_speed(scheme: Scheme, times: ArrayLike) -> NDArray[np.float64]:
    """dγ/dt as t → ∞ up to a constant factor: `late_decay` over `late_scale`; same shape as `times`.

    e^{−2t} (Post-LN), t^{−3} (Pre-, Mix-, Peri-LN), α e^{−2∫α} (nGPT), e^{−4√t}/√t (sqrt-scaling). Softmax, Q = K = V = I.
    Source: 2510.22026 (nGPT corrected).
    Raises InputError for times that are not positive.
    """
    t = depths(times)
    require(bool(np.all(t > 0.0)), "times", times, "positive: the law holds at late times")
    return late_decay(scheme, t) / late_scale(scheme, t)


def _rates(scheme: Scheme, beta: float, tokens: int) -> Callable[[float, NDArray[np.float64]], list[float]]:
    """The right-hand side for (log(1−γ), r): the logarithm keeps full accuracy at both ends, γ near 0 and γ near 1."""

    def rates(t: float, state: NDArray[np.float64]) -> list[float]:
        cosine, radius = -math.expm1(state[0]), float(state[1])
        norm = attention_norm(cosine, beta, tokens)
        closing = closing_rate(cosine, beta, tokens) / scheme.speed(t, radius, norm)
        return [-closing, scheme.radial_rate(t, attention_projection(cosine, beta, tokens), norm)]

    return rates


def flow(scheme: Scheme, beta: float, tokens: int, times: ArrayLike, initial_cosine: float = 0.0) -> Path:
    """γ(t), 1 − γ(t) and r(t) of n equiangular tokens at `times`, any shape.

    dγ/dt = (2/s) w(1−γ)(1+(n−1)γ)/Z, dr/dt = 0, ⟨θ,A⟩ or ⟨θ,A⟩/‖A‖. Softmax, Q = K = V = I, one common initial
    radius. Source: 2510.22026, 2512.01868. DOP853 at relative tolerance 1e−12, each asked
    time the end of a step; Mix-LN is split at τ. Raises InputError for β < 0, n < 2, γ(0) outside (−1/(n−1), 1) or a
    negative time.
    """
    require_equiangular(beta, tokens, initial_cosine)
    t = depths(times)
    states = np.empty((t.size, 2))
    state = np.array([math.log1p(-initial_cosine), scheme.initial_radius])
    for start, end, branch in scheme.branches():
        rates = _rates(branch, beta, tokens)
        here = ((t.ravel() > start) | (start == 0.0)) & (t.ravel() <= end)
        states[here] = integrate_at(rates, start, state, t.ravel()[here])
        if end < t.max(initial=0.0):
            state = integrate(rates, start, state, end)
    log_distance, radius = (np.reshape(states[:, i], t.shape) for i in (0, 1))
    return Path(-np.expm1(log_distance), np.exp(log_distance), radius)


def time_to_cosine(scheme: Scheme, beta: float, tokens: int, final_cosine: float, initial_cosine: float = 0.0) -> float:
    """The depth at which n equiangular tokens reach `final_cosine`: the phase curve of 2312.10794 for Post-LN.

    γ increases under every scheme, so log(1−γ) serves as the independent variable and the time is the solution itself:
    no root search. Softmax, Q = K = V = I. Source: 2312.10794, derived for the other schemes. Raises InputError for
    β < 0, n < 2 or unless −1/(n−1) < γ(0) ≤ γ < 1.
    """
    require_equiangular(beta, tokens, initial_cosine)
    require_equiangular(beta, tokens, final_cosine)
    require(initial_cosine <= final_cosine, "final_cosine", final_cosine, "at least initial_cosine")
    state = np.array([math.log1p(-initial_cosine), scheme.initial_radius])
    arrival = 0.0
    for start, end, branch in scheme.branches():
        rates = _rates(branch, beta, tokens)

        def inverted(
            log_distance: float,
            y: NDArray[np.float64],
            rates: Callable[[float, NDArray[np.float64]], list[float]] = rates,
        ) -> list[float]:
            approach, radial = rates(y[0], np.array([log_distance, y[1]]))
            return [1.0 / approach, radial / approach]

        entry = np.array([start, state[1]])
        arrival = float(integrate(inverted, float(state[0]), entry, math.log1p(-final_cosine))[0])
        if arrival <= end:
            break
        state = integrate(rates, start, state, end)
    return arrival
