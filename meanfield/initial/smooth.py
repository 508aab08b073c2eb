"""Laws with a density in closed form: uniform, von Mises–Fisher mixtures, a few harmonics, the Kuramoto family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, ive

from ..geometry import funk_hecke, gegenbauer
from ..keys import Key, require
from ..precision import float64
from .law import HEADROOM, Float, Law, by_rejection, fine_points, spread_directions, units

# The series for a_0 reaches κ = 1400; beyond, the scaled Bessel function neither under- nor overflows up to d = 1000.
SERIES_CONCENTRATION = 1000.0
# How far the masses that two quadratures see of a function may lie apart.
MASS_ACCURACY = 1e-8


class Uniform(Law):
    """The uniform law of directions."""

    case_name: ClassVar[str] = "uniform"

    def __init__(self, space: Any) -> None:
        self.space = space

    def density(self, points: ArrayLike) -> Float:
        return np.ones(np.shape(points)[:-1])

    def coefficients(self, grid: Any) -> Float:
        return np.where(grid.degrees == 0, 1.0, 0.0)

    def sample(self, count: int, rng: np.random.Generator) -> Float:
        return spread_directions(self.space, np.tile(self.space.axis, (count, 1)), np.zeros(count), rng)


class VmfMixture(Law):
    """Σ_i w_i e^{κ_i⟨m_i,θ⟩}/a_0(κ_i): a mixture of von Mises–Fisher laws.

    means (component, axis) are normalised, weights are normalised to sum 1. In zonal geometry a mean lies on the axis:
    [along, 0]. InputError for a zero mean, a negative concentration or weight, or lengths that differ.
    """

    case_name: ClassVar[str] = "vmf-mixture"
    case_keys: ClassVar[dict[str, Key]] = {
        "means": Key(list[list[float]], "mean directions, one row each; normalised on reading"),
        "concentrations": Key(list[float], "concentration κ ≥ 0 of each component"),
        "weights": Key(list[float], "weight of each component; equal when absent", None),
    }

    def __init__(
        self, space: Any, means: ArrayLike, concentrations: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        self.space = space
        self.means = _directions("means", means, space.coordinates)
        on_axis = not space.rings or not np.any(self.means[:, 1])
        require(on_axis, "means", means, "means on the axis in zonal geometry, [1, 0] or [-1, 0] (along, across)")
        count = len(self.means)
        self.concentrations = _numbers("concentrations", concentrations, count)
        require(bool(np.all(self.concentrations >= 0)), "concentrations", self.concentrations, "numbers of at least 0")
        largest = 1e6
        require(bool(np.all(self.concentrations <= largest)), "concentrations", self.concentrations, "at most 1e6 each")
        equal = np.full(count, 1 / count)
        self.weights = equal if weights is None else _numbers("weights", weights, count)
        positive = bool(np.all(self.weights >= 0)) and bool(np.any(self.weights > 0))
        require(positive, "weights", self.weights, "numbers of at least 0, not all 0")
        self.weights = self.weights / self.weights.max()  # the sum of the largest floats would overflow
        self.weights = self.weights / self.weights.sum()

    def density(self, points: ArrayLike) -> Float:
        total = np.zeros(np.shape(points)[:-1])
        norm_of = {kappa: log_norm(kappa, self.space.dimension) for kappa in np.unique(self.concentrations)}
        for mean, kappa, weight in zip(self.means, self.concentrations, self.weights, strict=True):
            total += weight * np.exp(kappa * (np.asarray(points) @ mean - 1) - norm_of[kappa])
        return total

    def coefficients(self, grid: Any) -> Float:
        total = np.zeros(grid.size)
        for kappa in np.unique(self.concentrations):
            same = self.concentrations == kappa
            spread = np.asarray(float64(funk_hecke.spreading)(kappa, grid.degree, self.space.dimension))
            total += spread[grid.degrees] * np.asarray(grid.moments(self.means[same], self.weights[same]))
        return total

    def sample(self, count: int, rng: np.random.Generator) -> Float:
        component = rng.choice(len(self.weights), size=count, p=self.weights)
        return spread_directions(self.space, self.means[component], self.concentrations[component], rng)


class Kuramoto(Law):
    """f_w = ((1−|w|²)/|x−w|²)^{d−1}, w along the last axis of R^d: the family that Post-LN leaves invariant at β = 0.

    (mathematics page, 3.1.) InputError unless 0 ≤ |w| < 1.
    """

    case_name: ClassVar[str] = "kuramoto"
    case_keys: ClassVar[dict[str, Key]] = {"parameter": Key(float, "|w|, at least 0 and below 1, along the last axis")}

    def __init__(self, space: Any, parameter: float) -> None:
        require(0 <= parameter < 1, "parameter", parameter, "a number of at least 0 and below 1")
        self.space, self.parameter = space, float(parameter)

    def _profile(self, cosine: Float) -> Float:
        rho = self.parameter
        return ((1 - rho**2) / (1 + rho**2 - 2 * rho * cosine)) ** (self.space.dimension - 1)

    def density(self, points: ArrayLike) -> Float:
        return self._profile(np.asarray(points) @ self.space.axis)

    def coefficients(self, grid: Any) -> Float:
        # the profile is analytic up to cosine (1+ρ²)/2ρ, so Gauss quadrature converges like ρ^(2 nodes)
        nodes = grid.degree + 16 + int(np.ceil(40 / max(1 - self.parameter, 1e-3)))
        per_degree = axial_multipliers(self._profile, grid.degree, self.space.dimension, nodes)
        return per_degree[grid.degrees] * np.asarray(grid.moments(self.space.axis[None], np.ones(1)))

    def sample(self, count: int, rng: np.random.Generator) -> Float:
        # f_w is the image of the uniform law under the Möbius map x ↦ w + (1−|w|²)(x+w)/|x+w|²
        uniform = Uniform(self.space).sample(count, rng)
        w = self.parameter * self.space.axis
        shifted = uniform + w
        return units(w + (1 - w @ w) * shifted / np.sum(shifted**2, axis=1, keepdims=True))


class PerturbedUniform(Law):
    """1 + Σ amplitude Y_lm in the orthonormal basis.

    modes: rows [l, m, amplitude], l ≥ 1; on the circle m = ±l, on the sphere |m| ≤ l (negative orders are sines), in
    zonal geometry m = 0. InputError that names the mode where there is no such harmonic, or for a density that is
    negative somewhere.
    """

    case_name: ClassVar[str] = "perturbed-uniform"
    case_keys: ClassVar[dict[str, Key]] = {
        "modes": Key(list[list[float]], "rows [l, m, amplitude] of the orthonormal basis; circle m = ±l, zonal m = 0")
    }

    def __init__(self, space: Any, modes: Sequence[Sequence[float]]) -> None:
        require(hasattr(space, "grid"), "kind", self.case_name, f"a law that needs no harmonics: {space!r} has none")
        self.space = space
        self.modes = [_mode(space, mode) for mode in modes]
        require(len(self.modes) > 0, "modes", modes, "a non-empty list of [l, m, amplitude]")
        self.degree = int(max(row[0] for row in self.modes))
        self._grid = space.grid(self.degree)
        self._coefficients = self.coefficients(self._grid)
        points = fine_points(space, self.degree)
        values = self.density(points)
        lowest = int(values.argmin())
        allowed = f"smaller amplitudes: the density falls to {values[lowest]:.6g} at {points[lowest].round(4).tolist()}"
        require(values[lowest] >= -1e-12, "modes", self.modes, allowed)

    def density(self, points: ArrayLike) -> Float:
        """1 + Σ amplitude Y_lm at unit vectors: (point, axis) → (point,)."""
        return np.asarray(self._grid.evaluate(self._coefficients, np.asarray(points, dtype=float)))

    def coefficients(self, grid: Any) -> Float:
        """The amplitudes, each on its mode. InputError for a grid that lacks one."""
        allowed = f"at least {self.degree}, the largest degree of the modes"
        require(grid.degree >= self.degree, "degree", grid.degree, allowed)
        total = np.where(grid.degrees == 0, 1.0, 0.0)
        for degree, order, amplitude in self.modes:
            total += amplitude * ((grid.degrees == degree) & (grid.orders == order))
        return total

    def sample(self, count: int, rng: np.random.Generator) -> Float:
        """`count` independent directions, by rejection from the uniform law: (token, axis)."""
        # |Y_lm| ≤ √dim_l
        ceiling = 1 + sum(
            abs(amplitude) * np.exp(gegenbauer.log_harmonics(self.space.dimension, degree) / 2)
            for degree, _, amplitude in self.modes
        )
        return by_rejection(self.space, self.density, float(ceiling), count, rng)


class FunctionLaw(Law):
    """A density given as a Python function of unit vectors: (point, axis) → (point,), up to a constant factor.

    degree: of the quadrature that finds its mass; its coefficients are found by one at least twice as fine as the grid.
    No case file can name it. InputError for values that are negative, not finite or of another shape, and where the
    quadratures of this degree and of twice it see masses that differ by more than 1e-8.
    """

    def __init__(self, space: Any, function: Callable[[Float], ArrayLike], degree: int = 64) -> None:
        require(hasattr(space, "quadrature"), "space", space, "a space with a quadrature: circle, sphere or zonal")
        self.space, self.function, self.degree = space, function, degree
        self._mass = 1.0
        masses = []
        for finer in (degree, 2 * degree):
            nodes, weights = space.quadrature(finer)
            values = self.density(nodes)
            masses.append(float(weights @ values))
        require(masses[0] > 0, "function", function, "a function of positive mass")
        apart = abs(masses[1] / masses[0] - 1)
        allowed = f"a function that degree {degree} resolves: its mass there is off by {apart:.1e}; use a larger degree"
        require(apart < MASS_ACCURACY, "function", function, allowed)
        self._mass = masses[1]
        self._ceiling = HEADROOM * float(self.density(fine_points(space, degree)).max())

    def density(self, points: ArrayLike) -> Float:
        points = np.asarray(points, dtype=float)
        values = np.asarray(self.function(points), dtype=float)
        require(values.shape == points.shape[:-1], "function", list(values.shape), f"values {list(points.shape[:-1])}")
        require(bool(np.all(np.isfinite(values))), "function", self.function, "finite values")
        require(bool(np.all(values >= 0)), "function", float(values.min()), "values of at least 0")
        return values / self._mass

    def coefficients(self, grid: Any) -> Float:
        nodes, weights = self.space.quadrature(max(self.degree, 2 * grid.degree))
        return np.asarray(grid.moments(nodes, weights * self.density(nodes)))

    def sample(self, count: int, rng: np.random.Generator) -> Float:
        return by_rejection(self.space, self.density, self._ceiling, count, rng)


def axial_multipliers(profile: Callable[[Float], Float], degree: int, dimension: int, nodes: int) -> Float:
    """∫ f(u) C_l(u)/C_l(1) dσ, l ≤ degree, of a density f(⟨e,θ⟩) symmetric about an axis e, by Gauss quadrature."""
    u, weights = gegenbauer.gauss(dimension, nodes)
    at_pole = gegenbauer.orthonormal(dimension, degree, 1.0)
    return gegenbauer.orthonormal(dimension, degree, u) @ (weights * profile(u)) / at_pole


def _mode(space: Any, row: Sequence[float]) -> list[float]:
    """[l, m, amplitude] of a harmonic that the space has."""
    require(np.shape(row) == (3,), "modes", row, "rows [l, m, amplitude]")
    degree, order, amplitude = (float(number) for number in row)
    largest = space.largest_degree
    allowed = (
        f"[l, m, amplitude], l an integer from 1 to {largest} and {space.order_rule} in {space.case_name} geometry"
    )
    require(degree.is_integer() and 1 <= degree <= largest, "modes", row, allowed)
    grid = space.grid(degree)
    require(bool(np.any((grid.degrees == degree) & (grid.orders == order))), "modes", row, allowed)
    require(bool(np.isfinite(amplitude)), "modes", row, "a finite amplitude")
    return [int(degree), int(order), amplitude]


def log_norm(concentration: float, dimension: int) -> float:
    """log(e^{−κ} a_0(κ)): by its series while that holds, and by the scaled Bessel function where κ is large."""
    if concentration <= SERIES_CONCENTRATION:
        return float(float64(funk_hecke.log_scaled_a0)(concentration, dimension))
    nu = dimension / 2 - 1
    return float(gammaln(dimension / 2) + nu * np.log(2 / concentration) + np.log(ive(nu, concentration)))


def _numbers(key: str, values: ArrayLike, count: int) -> Float:
    numbers = np.asarray(values, dtype=float)
    require(numbers.shape == (count,), key, values, f"{count} numbers, one for each row of means")
    require(bool(np.all(np.isfinite(numbers))), key, values, "finite numbers")
    return numbers


def _directions(key: str, values: ArrayLike, dimension: int) -> Float:
    try:
        vectors = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        vectors = np.empty(0)
    allowed = f"a non-empty list of vectors of {dimension} numbers"
    require(vectors.ndim == 2 and vectors.shape[1:] == (dimension,) and len(vectors) > 0, key, values, allowed)
    require(bool(np.all(np.isfinite(vectors))), key, values, "finite numbers")
    lengths = np.linalg.norm(vectors, axis=1)
    require(bool(np.all(lengths > 0)), key, values, "vectors other than zero")
    return vectors / lengths[:, None]
