"""The balance of drift and noise: the equations of a stationary density, its free energy, and the Hessian there.

Unknowns are x_l = ∫P_l dμ, l = 1 … L, of densities symmetric about an axis, P_l = p_l/√dim_l (so that P_l = 1 at the pole).
By Funk–Hecke κV = Σ_l W_l x_l P_l + constant with W_l = w_l dim_l, w_l = κ a_l(β)/β. Hence ρ = e^{κV}/N when x_l = ⟨P_l⟩, with
derivatives δ_lk − Cov(P_l, P_k)W_k, and F − F(uniform) = ½Σ W_l x_l² − log N.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from ..geometry.gegenbauer import gauss, orthonormal
from ..keys import require
from ..theory.growth import consecutive_ratios, eigenvalues, growth_rates, log_multiplicities

Float = NDArray[np.float64]

# κe^β bounds d(κV)/du at the pole, hence the sharpness of ρ and the nodes that its quadrature needs.
SHARPEST = 1e5


def attraction(dimension: int, beta: float, degree: int) -> Float:
    """a_l/β for l = 1 … degree, finite at β = 0: (degree,). InputError as `growth_rates`."""
    rates = growth_rates(dimension, beta, degree, "unnormalized")[1:]
    return np.asarray(rates / eigenvalues(dimension, degree)[1:])


def attraction_slope(dimension: int, beta: float, degree: int) -> Float:
    """d(a_l/β)/dβ for l = 1 … degree, finite at β = 0: (degree,).

    a_{l+1}/β + (l−1)a_l/β², from a_l′ = a_{l+1} + (l/β)a_l, where a_l/β² = (a_{l−1}/β)/(2l+d−2+β a_{l+1}/a_l).
    """
    over_beta = attraction(dimension, beta, degree + 1)
    l = np.arange(2, degree + 1)
    ratios = consecutive_ratios(dimension, beta, degree + 1)
    twice = over_beta[: degree - 1] / (2 * l + dimension - 2 + beta * ratios[2:])
    return over_beta[1:] + np.append(0.0, (l - 1) * twice)


def seen_degree(dimension: int, beta: float, kappa: float, least: int = 1) -> int:
    """L ≥ least + 1, beyond which no W_l exceeds 1e-17: those moments are seen by nobody, whatever the density."""
    top = 40 + math.ceil(beta + 12.0 * math.sqrt(beta)) + least
    with np.errstate(divide="ignore"):
        size = np.log(kappa * attraction(dimension, beta, top)) + log_multiplicities(dimension, top)[1:]
    return max(int(np.max(np.flatnonzero(size > math.log(1e-17)), initial=0)) + 1, least + 1)


class Family(Protocol):
    """A line in the plane of β and κ with one parameter."""

    @property
    def dimension(self) -> int:
        """The d of S^{d−1}."""
        ...

    def at(self, parameter: float) -> tuple[float, float]:
        """β and κ."""
        ...

    def weights(self, parameter: float, degree: int) -> tuple[Float, Float]:
        """w_l = κ a_l/β, l = 1 … degree, and its derivative by the parameter: (degree,) each."""
        ...


@dataclass(frozen=True)
class Coupling:
    """β is fixed and κ is `scale` times the parameter."""

    dimension: int
    beta: float
    scale: float

    def at(self, parameter: float) -> tuple[float, float]:
        return self.beta, self.scale * parameter

    def weights(self, parameter: float, degree: int) -> tuple[Float, Float]:
        slope = self.scale * attraction(self.dimension, self.beta, degree)
        return parameter * slope, slope


@dataclass(frozen=True)
class Temperature:
    """κ is fixed and β is `scale` times the parameter."""

    dimension: int
    kappa: float
    scale: float

    def at(self, parameter: float) -> tuple[float, float]:
        return self.scale * parameter, self.kappa

    def weights(self, parameter: float, degree: int) -> tuple[Float, Float]:
        beta = self.scale * parameter
        value = self.kappa * attraction(self.dimension, abs(beta), degree)
        slope = self.kappa * self.scale * attraction_slope(self.dimension, abs(beta), degree)
        # a_l(−β) = (−1)^l a_l(β): the last step towards β = 0 may pass it.
        parity = (-1.0) ** np.arange(1, degree + 1) if beta < 0 else -np.ones(degree)
        return -parity * value, parity * slope if beta < 0 else slope


class Rule(NamedTuple):
    """Quadrature for sector m: log_weights of the law of u in dimension d + 2m; P_l in d, 1 … L, and orthonormal q in d + 2m."""

    log_weights: Float
    P: Float
    q: Float


@functools.lru_cache(maxsize=32)
def _rule(dimension: int, degree: int, count: int, order: int = 0) -> Rule:
    # Gauss in 2 or 3 dimensions and a power of 1 − u² in the weight, a polynomial: in high dimension the Gauss rule itself has
    # neither nodes where sharp densities are, nor weights within the range of floating point.
    low = 2 + dimension % 2
    u, weights = gauss(low, count)
    log_weights = np.log(weights) + (dimension + 2 * order - low) / 2 * np.log1p(-(u**2))
    P = orthonormal(dimension, degree, u)[1:] / _heights(dimension, degree)[:, None]
    q = orthonormal(dimension + 2 * order, max(degree - order, 0), u)
    return Rule(log_weights - logsumexp(log_weights), P, q)


@functools.lru_cache(maxsize=128)
def _heights(dimension: int, degree: int) -> Float:
    """√dim_l = p_l(1) for l = 1 … degree."""
    return np.exp(log_multiplicities(dimension, degree)[1:] / 2)


@dataclass(frozen=True)
class Balance:
    """The equations along a family, at a degree L and a number of quadrature nodes. A point is z = (x_1 … x_L, parameter)."""

    family: Family
    degree: int
    nodes: int

    @classmethod
    def along(cls, family: Family, sharpest: float, degree: int) -> Balance:
        """With as many nodes as any density needs up to the parameter `sharpest`. InputError where that is too many."""
        beta, kappa = family.at(sharpest)
        steepest = kappa * math.exp(beta)
        most = f"at most {SHARPEST * math.exp(-beta):.6g} at beta = {beta:g}: beyond, densities are too sharp to be followed"
        require(steepest <= SHARPEST, "kappa", kappa, most)
        # At its peak log(ρ(1−u²)^{d/2−1}) curves by up to z = 2κe^β + d in the angle, so its spectrum falls like e^{−l²/2z}:
        # 1e-17 at l = 9√z. Gauss integrates twice its degree.
        sharp = 2.0 * steepest + family.dimension
        return cls(family, degree, degree + 30 + math.ceil(4.5 * math.sqrt(sharp)))

    @property
    def heights(self) -> Float:
        """√dim_l, by which x_l becomes the orthonormal coefficient c_l: (degree,)."""
        return _heights(self.family.dimension, self.degree)

    def __call__(self, z: Float) -> tuple[Float, Float]:
        """x_l − ⟨P_l⟩ and its derivatives by z: (degree,), (degree, degree + 1)."""
        x = z[:-1]
        weights, slope = (w * self.heights**2 for w in self.family.weights(float(z[-1]), self.degree))
        rule = self._rule()
        share, _ = self._shares(weights * x, rule)
        means = rule.P @ share
        covariance = (rule.P * share) @ rule.P.T - np.outer(means, means)
        derivatives = np.column_stack([np.eye(self.degree) - covariance * weights, -covariance @ (slope * x)])
        return x - means, derivatives

    def free_energy(self, z: Float) -> float:
        """F − F(uniform) = ½Σ W_l x_l² − log N."""
        weights = self.family.weights(float(z[-1]), self.degree)[0] * self.heights**2
        return float(0.5 * np.sum(weights * z[:-1] ** 2) - self.log_normalizer(weights * z[:-1]))

    def log_normalizer(self, exponent: Float) -> float:
        """The logarithm of N = ∫exp(Σ exponent_l P_l)dσ."""
        return self._shares(exponent, self._rule())[1]

    def least_eigenvalues(self, z: Float) -> tuple[float, float]:
        """The least eigenvalue of the Hessian with the symmetry of the density (m = 0), and that of the sectors m ≥ 1.

        In sector m the eigenvalues other than 1 are those of 1 − √w M √w, M = ∫ρ q q under the law of u in dimension d + 2m
        (m = 0: the covariance of the p_l). The zero of the rotation, in sector 1, is left out, unless the density is uniform.
        """
        x = z[:-1]
        w = self.family.weights(float(z[-1]), self.degree)[0]
        exponent = w * self.heights**2 * x
        if np.max(np.abs(x)) < 1e-8:
            return float(1 - np.max(w)), float(1 - np.max(w))
        rule = self._rule()
        share, log_n = self._shares(exponent, rule)
        p = rule.P * self.heights[:, None]
        means = p @ share
        least = _spectrum(w, (p * share) @ p.T - np.outer(means, means))[0]
        # Sector m has the kernel e^{βuu′}a_m(βss′), s = √(1−u²), with a_m in dimension d − 1: positive and pointwise decreasing
        # in m, so its largest eigenvalue decreases, too (Perron and Frobenius): no sector beyond 2 goes lower than sector 2.
        transverse = []
        for order in range(1, 2 if self.family.dimension == 2 else 3):
            rule = self._rule(order)
            share = np.exp(rule.log_weights + exponent @ rule.P - log_n)
            sector = _spectrum(w[order - 1 :], (rule.q * share) @ rule.q.T)
            if order == 1:
                sector = np.delete(sector, np.argmin(np.abs(sector)))
            transverse.append(float(sector[0]))
        return float(least), min(transverse)

    def _rule(self, order: int = 0) -> Rule:
        return _rule(self.family.dimension, self.degree, self.nodes, order)

    def _shares(self, exponent: Float, rule: Rule) -> tuple[Float, float]:
        """ρ times the quadrature weights, sum 1, and log N."""
        values = rule.log_weights + exponent @ rule.P
        log_n = float(logsumexp(values))
        return np.exp(values - log_n), log_n


def _spectrum(w: Float, covariance: Float) -> Float:
    """Eigenvalues of 1 − √w M √w, increasing."""
    root = np.sqrt(w)
    return np.asarray(np.linalg.eigvalsh(np.eye(len(w)) - root[:, None] * covariance * root))
