"""Laws of the starting radii."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import lognorm, norm

from ..keys import Key, require
from .law import Float

# Gauss radii of a quadrature: the outermost lies 5.5 standard deviations out.
GAUSS_RADII = 12


class ConstantRadius:
    """Every token starts at one radius. InputError unless it is positive."""

    case_name: ClassVar[str] = "constant"
    case_keys: ClassVar[dict[str, Key]] = {"value": Key(float, "the common radius, above 0", 1.0)}

    def __init__(self, value: float = 1.0) -> None:
        require(bool(np.isfinite(value)) and value > 0, "value", value, "a finite number above 0")
        self.value = float(value)

    def sample(self, count: int, rng: np.random.Generator) -> Float:
        """`count` radii."""
        return np.full(count, self.value)

    def quadrature(self) -> tuple[Float, Float]:
        """Radii and weights (sum 1) that integrate functions of the radius."""
        return np.array([self.value]), np.ones(1)


class NormalRadius:
    """Radii with the law N(mean, std²), whose mass below 0 must be negligible: InputError unless mean ≥ 6 std > 0."""

    case_name: ClassVar[str] = "normal"
    case_keys: ClassVar[dict[str, Key]] = {
        "mean": Key(float, "mean of the radius, at least 6 standard deviations"),
        "std": Key(float, "standard deviation of the radius, above 0"),
    }

    def __init__(self, mean: float, std: float) -> None:
        require(bool(np.isfinite(std)) and std > 0, "std", std, "a finite number above 0")
        allowed = f"a finite number of at least 6 standard deviations, {6 * std:g}, so that no radius is below 0"
        require(bool(np.isfinite(mean)) and mean >= 6 * std, "mean", mean, allowed)
        self.mean, self.std = float(mean), float(std)

    def sample(self, count: int, rng: np.random.Generator) -> Float:
        """`count` radii; a negative one, of probability 1e-9, is drawn again."""
        radii = rng.normal(self.mean, self.std, count)
        while np.any(radii <= 0):
            radii = np.where(radii > 0, radii, rng.normal(self.mean, self.std, count))
        return radii

    def quadrature(self, count: int = GAUSS_RADII) -> tuple[Float, Float]:
        """Gauss–Hermite radii and weights, exact for polynomials of the radius up to degree 2·count − 1."""
        z, weights = _hermite(count)
        return self.mean + self.std * z, weights

    def density(self, radii: ArrayLike) -> Float:
        """The density with respect to dr."""
        return np.asarray(norm.pdf(radii, self.mean, self.std))

    def interval(self, tail: float) -> tuple[float, float]:
        """Radii below and above which there is mass `tail` each; not below 0."""
        low, high = norm.interval(1 - 2 * tail, self.mean, self.std)
        return max(float(low), 0.0), float(high)


class LogNormalRadius:
    """Radii with log r ~ N(log mean − σ²/2, σ²), whose mean is `mean`. InputError unless mean and sigma are positive."""

    case_name: ClassVar[str] = "lognormal"
    case_keys: ClassVar[dict[str, Key]] = {
        "mean": Key(float, "mean of the radius, above 0"),
        "sigma": Key(float, "standard deviation of the logarithm of the radius, above 0 and at most 2"),
    }

    def __init__(self, mean: float, sigma: float) -> None:
        require(bool(np.isfinite(mean)) and mean > 0, "mean", mean, "a finite number above 0")
        require(bool(np.isfinite(sigma)) and 0 < sigma <= 2, "sigma", sigma, "a number above 0 and at most 2")
        self.mean, self.sigma = float(mean), float(sigma)
        self._centre = float(np.log(mean) - sigma**2 / 2)

    def sample(self, count: int, rng: np.random.Generator) -> Float:
        """`count` radii."""
        return np.exp(rng.normal(self._centre, self.sigma, count))

    def quadrature(self, count: int = GAUSS_RADII) -> tuple[Float, Float]:
        """Radii and weights exact for polynomials of log r up to degree 2·count − 1."""
        z, weights = _hermite(count)
        return np.exp(self._centre + self.sigma * z), weights

    def density(self, radii: ArrayLike) -> Float:
        """The density with respect to dr."""
        return np.asarray(lognorm.pdf(radii, self.sigma, scale=np.exp(self._centre)))

    def interval(self, tail: float) -> tuple[float, float]:
        """Radii below and above which there is mass `tail` each."""
        low, high = lognorm.interval(1 - 2 * tail, self.sigma, scale=np.exp(self._centre))
        return float(low), float(high)


def _hermite(count: int) -> tuple[Float, Float]:
    """Nodes and weights (sum 1) of Gauss quadrature for the standard normal law."""
    require(1 <= count <= 64, "radii", count, "an integer from 1 to 64")
    z, weights = np.polynomial.hermite_e.hermegauss(count)
    return z, weights / weights.sum()
