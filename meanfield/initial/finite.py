"""Laws made of tokens: those of a file as they are, samples that a density is fitted to, equiangular and orthogonal ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from ..keys import Key, require
from ..store import read_tokens
from .law import Float, Law, units
from .smooth import Kuramoto, PerturbedUniform, Uniform, VmfMixture, log_norm

# Pairs of more samples than this would take long and much memory.
MOST_PAIRED = 2048


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
        refuse_rings(space, self.case_name)
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
        return units(self.vectors[rng.integers(len(self.vectors), size=count)])

    def tokens(self) -> Float | None:
        return None if self.smooth else self.vectors

    def _smooth_kernel(self) -> VmfMixture:
        allowed = "a number above 0 for a density: without it the law is the tokens themselves"
        require(self.kernel is not None, "concentration", None, allowed)
        assert self.kernel is not None
        return self.kernel


class Samples(Law):
    """A density fitted to directions drawn from an unknown law: (1/n) Σ_i e^{κ⟨θ_i,θ⟩}/a_0(κ).

    vectors (token, axis), of which the directions count, or a file of them. Without a concentration, κ is the one that
    makes each sample most likely under the others (leave-one-out likelihood), found on at most 2048 samples spread evenly
    through the list and scaled by n^{2/(d+3)} to all of them. InputError for vectors of another dimension, or zero.
    """

    case_name: ClassVar[str] = "samples"
    case_keys: ClassVar[dict[str, Key]] = {
        "file": Key(str, "file of vectors, relative to the case file"),
        "dataset": TokenFile.case_keys["dataset"],
        "layer": TokenFile.case_keys["layer"],
        "concentration": Key(float, "concentration κ > 0 of the kernel; by likelihood when absent", None),
    }

    def __init__(
        self,
        space: Any,
        vectors: ArrayLike | str | Path,
        dataset: str | None = None,
        layer: int = 0,
        concentration: float | None = None,
    ) -> None:
        refuse_rings(space, self.case_name)
        self.space, self.dataset, self.layer, self.concentration = space, dataset, layer, concentration
        if isinstance(vectors, str | Path):
            self.file = str(vectors)
            vectors = read_tokens(vectors, dataset, layer=layer)
        array = np.asarray(vectors, dtype=float)
        fine = array.ndim == 2 and array.shape[1] == space.dimension and len(array) > 0
        require(fine, "samples", list(array.shape), f"an array (token, {space.dimension})")
        lengths = np.linalg.norm(array, axis=1)
        require(
            bool(np.all(np.isfinite(lengths)) and np.all(lengths > 0)), "samples", vectors, "vectors other than zero"
        )
        if concentration is not None:
            require(0 < concentration <= 1e6, "concentration", concentration, "a number above 0 and at most 1e6")
        count = len(array)
        require(concentration is not None or count > 1, "concentration", None, "a number above 0 for a single sample")
        self.fitted = likeliest_concentration(units(array)) if concentration is None else float(concentration)
        self._kernel = VmfMixture(space, array, np.full(count, self.fitted), np.full(count, 1 / count))

    @classmethod
    def from_case(cls, space: Any, folder: Path, **values: Any) -> Samples:
        """The law that the keys of a case file describe; `file` is relative to the folder of the case."""
        file = values.pop("file")
        return cls(space, str(folder / file), **values)

    def density(self, points: ArrayLike) -> Float:
        return self._kernel.density(points)

    def coefficients(self, grid: Any) -> Float:
        return self._kernel.coefficients(grid)

    def sample(self, count: int, rng: np.random.Generator) -> Float:
        return self._kernel.sample(count, rng)


def likeliest_concentration(directions: Float) -> float:
    """The κ of a von Mises–Fisher kernel density under which each direction is likeliest, given the others.

    Between 0.1 and 10⁴; (token, axis). On at most 2048 of them, then scaled like n^{2/(d+3)}, the rate of the best κ.
    """
    count, dimension = directions.shape
    used = directions[np.unique(np.linspace(0, count - 1, min(count, MOST_PAIRED)).astype(int))]
    below = used @ used.T - 1  # ⟨θ_i,θ_j⟩ − 1
    np.fill_diagonal(below, -np.inf)

    def minus_likelihood(log_kappa: float) -> float:
        kappa = float(np.exp(log_kappa))
        return float(log_norm(kappa, dimension) - np.mean(logsumexp(kappa * below, axis=1)))

    trial = np.linspace(np.log(0.1), np.log(1e4), 24)
    best = int(np.argmin([minus_likelihood(x) for x in trial]))
    around = trial[max(best - 1, 0)], trial[min(best + 1, len(trial) - 1)]
    found = minimize_scalar(minus_likelihood, bounds=around, method="bounded", options={"xatol": 1e-6}).x
    return float(min(np.exp(found) * (count / len(used)) ** (2 / (dimension + 3)), 1e6))


class Equiangular(Law):
    """n tokens with ⟨θ_i,θ_j⟩ = γ for all i ≠ j, in d ≥ n: InputError unless −1/(n−1) ≤ γ ≤ 1 and n ≤ d."""

    case_name: ClassVar[str] = "equiangular"
    case_keys: ClassVar[dict[str, Key]] = {
        "count": Key(int, "number of tokens n, at most the dimension; the dimension when absent", None),
        "cosine": Key(float, "the common cosine γ, from −1/(n−1) to 1"),
    }

    def __init__(self, space: Any, cosine: float, count: int | None = None) -> None:
        refuse_rings(space, self.case_name)
        self.space, self.cosine, self.count = space, float(cosine), count
        n = space.dimension if count is None else count
        require(2 <= n <= space.dimension, "count", n, f"an integer from 2 to the dimension {space.dimension}")
        require(-1 / (n - 1) <= cosine <= 1, "cosine", cosine, f"a number from {-1 / (n - 1):.6g} to 1 for {n} tokens")
        # the square root of the Gram matrix (1−γ)I + γ11ᵀ
        root = np.sqrt(1 - cosine) * np.eye(n)
        root += (np.sqrt(max(1 + (n - 1) * cosine, 0.0)) - np.sqrt(1 - cosine)) / n
        self._tokens = units(np.pad(root, [(0, 0), (0, space.dimension - n)]))

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


def principal_components(vectors: Float, count: int) -> tuple[Float, Float]:
    """Mean (axis,) and first principal components (count, axis), signed so that the mean direction is positive in each."""
    mean = vectors.mean(axis=0)
    components = np.linalg.svd(vectors - mean, full_matrices=False)[2][:count]
    towards = units((vectors - mean) @ components.T).mean(axis=0)
    return mean, components * np.where(towards < 0, -1.0, 1.0)[:, None]


def project(vectors: Float, mean: Float, components: Float) -> Float:
    """Coordinates of `vectors` in the frame of `components` centred on `mean`: (token, component)."""
    return (vectors - mean) @ components.T


def refuse_rings(space: Any, kind: str) -> None:
    """Raise InputError in zonal geometry, for a law that is not symmetric about the axis."""
    names = ", ".join(law.case_name for law in (Uniform, VmfMixture, PerturbedUniform, Kuramoto))
    require(not space.rings, "kind", kind, f"one of {names} in zonal geometry, where tokens are rings about the axis")
