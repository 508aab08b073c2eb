"""The six normalisation schemes as the closed forms need them: the speed s and the radial rate dr/dt."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import quad

from meanfield.keys import require

SCHEMES = ("post-ln", "pre-ln", "mix-ln", "peri-ln", "ngpt", "sqrt-scaling")


@dataclasses.dataclass(frozen=True)
class Scheme:
    """One row of the table of schemes: dθ/dt = P_θA/s(t, r, ‖A‖), dr/dt = 0, ⟨θ,A⟩ or ⟨θ,A⟩/‖A‖ (2510.22026).

    `name` is one of `SCHEMES`; `initial_radius` r₀ is common to all tokens; `alpha` (nGPT) is a positive number or a
    function of depth; `switch_time` τ is where Mix-LN turns from Post-LN to Pre-LN. What a scheme does not use is
    ignored. Written independently of the solver, so that each can be tested against the other.

    Raises InputError for an unknown name, or a radius, α or τ out of range.
    """

    name: str
    initial_radius: float = 1.0
    alpha: float | Callable[[float], float] = 1.0
    switch_time: float = 1.0

    def __post_init__(self) -> None:
        require(self.name in SCHEMES, "scheme", self.name, f"one of {', '.join(SCHEMES)}")
        positive = 0.0 < self.initial_radius < math.inf
        require(positive, "initial_radius", self.initial_radius, "positive and finite")
        if not callable(self.alpha):
            require(0.0 < self.alpha < math.inf, "alpha", self.alpha, "positive and finite")
        require(0.0 <= self.switch_time < math.inf, "switch_time", self.switch_time, "zero or more, and finite")

    def branches(self) -> tuple[tuple[float, float, Scheme], ...]:
        """(start, end, scheme) of each stretch of depth on which one smooth rule holds; only Mix-LN has two."""
        if self.name != "mix-ln":
            return ((0.0, math.inf, self),)
        tau = self.switch_time
        post, pre = (dataclasses.replace(self, name=name) for name in ("post-ln", "pre-ln"))
        return ((0.0, tau, post), (tau, math.inf, pre)) if tau > 0.0 else ((0.0, math.inf, pre),)

    def speed(self, t: float, radius: float, attention_norm: float) -> float:
        """The s in dθ/dt = P_θA/s. At τ itself Mix-LN is still Post-LN. Source: 2510.22026."""
        match self.name:
            case "post-ln":
                return 1.0
            case "pre-ln":
                return radius
            case "mix-ln":
                return 1.0 if t <= self.switch_time else radius
            case "peri-ln":
                return radius * attention_norm
            case "ngpt":
                return attention_norm / self.alpha_at(t)
            case _:
                return math.sqrt(t + 1.0)

    def radial_rate(self, t: float, projection: float, attention_norm: float) -> float:
        """dr/dt, where `projection` is ⟨θ,A⟩. Source: 2510.22026."""
        match self.name:
            case "pre-ln":
                return projection
            case "mix-ln":
                return projection if t > self.switch_time else 0.0
            case "peri-ln":
                return projection / attention_norm
            case _:
                return 0.0

    def alpha_at(self, t: float) -> float:
        """α(t) of nGPT."""
        return float(self.alpha(t)) if callable(self.alpha) else float(self.alpha)

    def alpha_integral(self, times: ArrayLike) -> NDArray[np.float64]:
        """∫₀ᵗ α of nGPT at each of `times`, any shape."""
        t = np.asarray(times, dtype=np.float64)
        if not callable(self.alpha):
            return np.asarray(self.alpha * t)
        integrals = [quad(self.alpha, 0.0, end, epsabs=0.0, epsrel=1e-12, limit=500)[0] for end in t.flat]
        return np.reshape(np.asarray(integrals, dtype=np.float64), t.shape)


def depths(times: ArrayLike) -> NDArray[np.float64]:
    """`times` as float64. Raises InputError unless every depth is zero or more, and finite."""
    t = np.asarray(times, dtype=np.float64)
    require(bool(np.all(np.isfinite(t) & (t >= 0.0))), "times", times, "zero or more, and finite")
    return t
