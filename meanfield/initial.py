"""Initial laws of directions and radii: their densities, their moments, and samples of them.

A law of directions offers `coefficients(grid)` and `density(points)` with respect to the uniform probability measure,
and `sample(count, rng)`. A law that is a set of definite tokens offers `tokens()` instead, or as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, ive

from .geometry import funk_hecke, gegenbauer
from .keys import Key, require
from .precision import float64
from .store import read_tokens

Float = NDArray[np.float64]

REJECTION_BATCH = 1 << 14
# The series for a_0 reaches κ = 1400; beyond, the scaled Bessel function neither under- nor overflows up to d = 1000.
SERIES_CONCENTRATION = 1000.0


class Law:
    """A law of directions on a space."""

    case_name: ClassVar[str]
    case_keys: ClassVar[dict[str, Key]] = {}
    space: Any

    def __init__(self, space: Any, **values: Any) -> None:
        self.space = space

    @classmethod
    def from_case(cls, space: Any, folder: Path, **values: Any) -> Law:
        """The law that the keys of a case file describe; paths are relative to the folder of the case."""
        return cls(space, **values)

    def density(self, points: ArrayLike) -> Float:
        """ρ at unit vectors (point, axis), with respect to the uniform probability measure."""
        raise NotImplementedError

    def coefficients(self, grid: Any) -> Float:
        """ρ_k = ∫ρ Y_k dσ for the modes of `grid`."""
        raise NotImplementedError

    def sample(self, count: int, rng: np.random.Generator) -> Float:
        """`count` independent directions: (token, axis)."""
        raise NotImplementedError

    def tokens(self) -> Float | None:
        """Definite tokens x (token, axis) where the law is a set of them, else None."""
        return None

    @property
    def smooth(self) -> bool:
        """Whether the law has a density."""
        return True


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
        norm_of = {kappa: _log_norm(kappa, self.space.dimension) for kappa in np.unique(self.concentrations)}
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
        return _units(w + (1 - w @ w) * shifted / np.sum(shifted**2, axis=1, keepdims=True))


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
        points = _fine_points(space, self.degree)
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
        drawn: list[Float] = []
        missing = count
        while missing > 0:
            proposed = uniform(self.space).sample(REJECTION_BATCH, rng)
            kept = proposed[self.density(proposed) > ceiling * rng.random(REJECTION_BATCH)][:missing]
            drawn.append(kept)
            missing -= len(kept)
        return np.concatenate(drawn)


class TokenFile(Law):
    """The hidden states of a real model, read from a file (.h5, .npy, .npz, .csv) of vectors.

    In a space of their own dimension the tokens are taken as they are; in a space of lower dimension d, their directions
    after projection on the first d principal components (centred on their mean). With a concentration, each token is
    spread by a von Mises–Fisher kernel, which makes a smooth density; without, the law is the tokens themselves.
    """

    case_name: ClassVar[str] = "tokens"
    case_keys: ClassVar[dict[str, Key]] = {
        "file": Key(str, "file of token vectors, relative to the case file"),
        "dataset": Key(str, "name of the array in an .h5 or .npz file; the only one when absent", None),
        "layer": Key(int, "which layer of a (layer, token, axis) array", 0),
        "concentration": Key(
            float, "concentration κ > 0 of the kernel that spreads each token; none when absent", None
        ),
    }

    def __init__(
        self,
        space: Any,
        file: str | Path,
        dataset: str | None = None,
        layer: int = 0,
        concentration: float | None = None,
    ) -> None:
        _refuse_rings(space, self.case_name)
        self.space, self.file, self.dataset, self.layer = space, str(file), dataset, layer
        self.concentration = concentration
        if concentration is not None:
            require(0 < concentration <= 1e6, "concentration", concentration, "a number above 0 and at most 1e6")
        vectors = read_tokens(file, dataset, layer=layer)
        dimension = space.dimension
        require(vectors.shape[1] >= dimension, "file", str(file), f"vectors of at least {dimension} components")
        self.components = None if vectors.shape[1] == dimension else principal_components(vectors, dimension)
        self.vectors = vectors if self.components is None else project(vectors, *self.components)
        zero = np.flatnonzero(np.linalg.norm(self.vectors, axis=1) == 0)
        place = f"; token {zero[0]} is zero" if zero.size else ""
        require(zero.size == 0, "file", str(file), f"tokens other than the zero vector{place}")
        self.kernel = None
        if concentration is not None:
            count = len(self.vectors)
            self.kernel = VmfMixture(space, self.vectors, np.full(count, concentration), np.full(count, 1 / count))

    @classmethod
    def from_case(cls, space: Any, folder: Path, **values: Any) -> TokenFile:
        """The law that the keys of a case file describe; `file` is relative to the folder of the case."""
        return cls(space, **{**values, "file": str(folder / values["file"])})

    @property
    def smooth(self) -> bool:
        return self.kernel is not None

    def density(self, points: ArrayLike) -> Float:
        return self._smooth_kernel().density(points)

    def coefficients(self, grid: Any) -> Float:
        return self._smooth_kernel().coefficients(grid)

    def sample(self, count: int, rng: np.random.Generator) -> Float:
        if self.kernel is not None:
            return self.kernel.sample(count, rng)
        return _units(self.vectors[rng.integers(len(self.vectors), size=count)])

    def tokens(self) -> Float | None:
        return None if self.smooth else self.vectors

    def _smooth_kernel(self) -> VmfMixture:
        allowed = "a number above 0 for a density: without it the law is the tokens themselves"
        require(self.kernel is not None, "concentration", None, allowed)
        assert self.kernel is not None
        return self.kernel


class Equiangular(Law):
    """n tokens with ⟨θ_i,θ_j⟩ = γ for all i ≠ j, in d ≥ n: InputError unless −1/(n−1) ≤ γ ≤ 1 and n ≤ d."""

    case_name: ClassVar[str] = "equiangular"
    case_keys: ClassVar[dict[str, Key]] = {
        "count": Key(int, "number of tokens n, at most the dimension; the dimension when absent", None),
        "cosine": Key(float, "the common cosine γ, from −1/(n−1) to 1"),
    }

    def __init__(self, space: Any, cosine: float, count: int | None = None) -> None:
        _refuse_rings(space, self.case_name)
        self.space, self.cosine, self.count = space, float(cosine), count
        n = space.dimension if count is None else count
        require(2 <= n <= space.dimension, "count", n, f"an integer from 2 to the dimension {space.dimension}")
        require(-1 / (n - 1) <= cosine <= 1, "cosine", cosine, f"a number from {-1 / (n - 1):.6g} to 1 for {n} tokens")
        # the square root of the Gram matrix (1−γ)I + γ11ᵀ
        root = np.sqrt(1 - cosine) * np.eye(n)
        root += (np.sqrt(max(1 + (n - 1) * cosine, 0.0)) - np.sqrt(1 - cosine)) / n
        self._tokens = _units(np.pad(root, [(0, 0), (0, space.dimension - n)]))

    def tokens(self) -> Float:
        return self._tokens

    @property
    def smooth(self) -> bool:
        return False


class Orthogonal(Equiangular):
    """n ≤ d orthogonal tokens: equiangular ones with cosine 0."""

    case_name: ClassVar[str] = "orthogonal"
    case_keys: ClassVar[dict[str, Key]] = {"count": Equiangular.case_keys["count"]}

    def __init__(self, space: Any, count: int | None = None) -> None:
        super().__init__(space, 0.0, count)


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


LAWS = (Uniform, VmfMixture, PerturbedUniform, Kuramoto, TokenFile, Equiangular, Orthogonal)
RADII = (ConstantRadius,)


def uniform(space: Any) -> Uniform:
    """The uniform law of directions."""
    return Uniform(space)


def vmf_mixture(
    space: Any, means: ArrayLike, concentrations: ArrayLike, weights: ArrayLike | None = None
) -> VmfMixture:
    """A mixture of von Mises–Fisher laws: see `VmfMixture`."""
    return VmfMixture(space, means, concentrations, weights)


def perturbed_uniform(space: Any, modes: Sequence[Sequence[float]]) -> PerturbedUniform:
    """The uniform law plus a few harmonics: see `PerturbedUniform`."""
    return PerturbedUniform(space, modes)


def kuramoto(space: Any, parameter: float) -> Kuramoto:
    """The invariant family of Post-LN at β = 0: see `Kuramoto`."""
    return Kuramoto(space, parameter)


def tokens(space: Any, file: str | Path, **options: Any) -> TokenFile:
    """The tokens of a file: see `TokenFile`."""
    return TokenFile(space, file, **options)


def equiangular(space: Any, cosine: float, count: int | None = None) -> Equiangular:
    """Tokens with one common cosine: see `Equiangular`."""
    return Equiangular(space, cosine, count)


def orthogonal(space: Any, count: int | None = None) -> Orthogonal:
    """Orthogonal tokens: see `Orthogonal`."""
    return Orthogonal(space, count)


def spread_directions(space: Any, means: Float, concentrations: Float, rng: np.random.Generator) -> Float:
    """One von Mises–Fisher draw about each mean: (token, axis), (token,) → (token, axis)."""
    along, across = gegenbauer.tilted(space.dimension, concentrations, rng)
    if space.rings:
        return np.stack([along * means[:, 0], across], axis=-1)
    tangent = rng.standard_normal(means.shape)
    tangent -= np.sum(tangent * means, axis=1, keepdims=True) * means
    return _units(along[:, None] * means + across[:, None] * _units(tangent))


def axial_multipliers(profile: Callable[[Float], Float], degree: int, dimension: int, nodes: int) -> Float:
    """∫ f(u) C_l(u)/C_l(1) dσ, l ≤ degree, of a density f(⟨e,θ⟩) symmetric about an axis e, by Gauss quadrature."""
    u, weights = gegenbauer.gauss(dimension, nodes)
    at_pole = gegenbauer.orthonormal(dimension, degree, 1.0)
    return gegenbauer.orthonormal(dimension, degree, u) @ (weights * profile(u)) / at_pole


def principal_components(vectors: Float, count: int) -> tuple[Float, Float]:
    """Mean (axis,) and first principal components (count, axis), signed so that the mean direction is positive in each."""
    mean = vectors.mean(axis=0)
    components = np.linalg.svd(vectors - mean, full_matrices=False)[2][:count]
    towards = _units((vectors - mean) @ components.T).mean(axis=0)
    return mean, components * np.where(towards < 0, -1.0, 1.0)[:, None]


def project(vectors: Float, mean: Float, components: Float) -> Float:
    """Coordinates of `vectors` in the frame of `components` centred on `mean`: (token, component)."""
    return (vectors - mean) @ components.T


def _refuse_rings(space: Any, kind: str) -> None:
    names = ", ".join(law.case_name for law in (Uniform, VmfMixture, PerturbedUniform, Kuramoto))
    require(not space.rings, "kind", kind, f"one of {names} in zonal geometry, where tokens are rings about the axis")


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


def _fine_points(space: Any, degree: int) -> Float:
    """Points so dense that a series of this degree shows its least value there, poles included."""
    if space.coordinates == 2:
        angle = np.linspace(0, 2 * np.pi, 32 * degree, endpoint=False)
        return np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    axes = np.eye(space.coordinates)
    return np.concatenate([space.quadrature(min(4 * degree, 4096))[0], axes, -axes])


def _units(vectors: Float) -> Float:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _log_norm(concentration: float, dimension: int) -> float:
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
