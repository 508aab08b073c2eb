"""Statistics of random tokens, frame by frame and for each trial: what a file keeps in place of the tokens themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from .ensemble import Ensemble
from .keys import Key, require
from .model import Model
from .observables import norm
from .precision import float64, float64_leaves

QUANTILES = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
# Pairs of tokens are formed among at most so many, spread evenly over the order of the tokens.
MOST_PAIRED = 2048
# Eigenvalues of a Gram matrix below this share of the largest are round-off.
RANK_TOLERANCE = 1e-12

# name → its dimensions beside time and trial, long name
NAMES: dict[str, tuple[tuple[str, ...], str]] = {
    "cosine_quantiles": (("quantile",), "quantiles of the cosine over pairs of distinct tokens"),
    "radius_quantiles": (("quantile",), "quantiles of the radius over tokens"),
    "mean_speed": ((), "mean over tokens of the speed of the direction, without noise"),
    "cluster_count": ((), "number of connected components of the graph of cosines above the threshold"),
    "largest_cluster": ((), "share of the tokens in the largest component"),
    "gram_rank": ((), "numerical rank of the Gram matrix of directions"),
}


@dataclass(frozen=True)
class Statistics:
    """Which statistics: tokens i, j are in one cluster where a chain of cosines above the threshold joins them.

    Called with a model, an Ensemble and its depth it gives name → (...), leading axes being trials: `NAMES`. Of more than
    2048 tokens, cosines and clusters are those of 2048 of them. InputError unless −1 < cluster_threshold < 1.
    """

    cluster_threshold: float = 0.999

    case_keys: ClassVar[dict[str, Key]] = {
        "cluster_threshold": Key(float, "cosine above which two tokens are in one cluster", 0.999)
    }

    def __post_init__(self) -> None:
        fine = -1 < self.cluster_threshold < 1
        require(fine, "cluster_threshold", self.cluster_threshold, "a number above -1 and below 1")

    def __call__(self, model: Model, state: Ensemble, t: float) -> dict[str, NDArray]:
        """Every statistic of a state at depth t."""
        x = np.asarray(state.x)
        trials = x.reshape(-1, *x.shape[-2:])
        each = [self._of_one(trial) for trial in trials]
        values = {name: np.stack([one[name] for one in each]) for name in each[0]}
        values = {name: value.reshape((*x.shape[:-2], *value.shape[1:])) for name, value in values.items()}
        branch = next(branch for end, branch in model.segments() if t <= float(end))
        return {**values, "mean_speed": np.asarray(mean_speed(branch, state, t))}

    def _of_one(self, x: NDArray) -> dict[str, NDArray]:
        radius = np.sqrt(np.sum(x**2, axis=-1))
        theta = x / radius[:, None]
        some = theta[paired(len(theta))]
        cosines = some @ some.T
        count, largest = clusters(cosines, self.cluster_threshold)
        pairs = cosines[np.triu_indices(len(some), 1)]
        return {
            "cosine_quantiles": np.quantile(pairs, QUANTILES) if pairs.size else np.full(QUANTILES.shape, np.nan),
            "radius_quantiles": np.quantile(radius, QUANTILES),
            "cluster_count": np.asarray(float(count)),
            "largest_cluster": np.asarray(largest),
            "gram_rank": np.asarray(float(gram_rank(theta))),
        }


def refuse_statistics(state: Any, space: Any) -> None:
    """Raise InputError unless a state is random tokens whose cosines are known."""
    fine = isinstance(state, Ensemble) and state.sampled and not space.rings
    allowed = 'false but for solver.method = "particles" in circle, sphere and euclidean geometry'
    require(fine, "statistics", True, allowed)


def paired(count: int) -> NDArray:
    """Which of `count` tokens pairs are formed of: all, or 2048 spread evenly over their order."""
    if count <= MOST_PAIRED:
        return np.arange(count)
    return np.linspace(0, count - 1, MOST_PAIRED).round().astype(int)


def clusters(cosines: NDArray, threshold: float) -> tuple[int, float]:
    """Number of connected components of the graph of cosines (token, token) above a threshold, share of the largest."""
    count, label = connected_components(csr_array(cosines > threshold), directed=False)
    return int(count), float(np.bincount(label).max() / len(label))


def gram_rank(theta: NDArray) -> int:
    """Eigenvalues of the Gram matrix of directions (token, axis) above 10⁻¹² of the largest; of 2048 tokens where both
    sides of theta are longer.
    """
    few = theta if min(theta.shape) <= MOST_PAIRED else theta[paired(len(theta))]
    small = few @ few.T if len(few) <= few.shape[1] else few.T @ few
    eigenvalues = np.linalg.eigvalsh(small)
    return int(np.sum(eigenvalues > RANK_TOLERANCE * eigenvalues[-1]))


@float64
def mean_speed(branch: Model, state: Ensemble, t: float) -> Any:
    """Σ_j w_j |dθ_j/dt| at depth t under one branch of the scheme, noise aside: (...)."""
    return _mean_speed(*float64_leaves((branch, state, t)))


@jax.jit
def _mean_speed(branch: Model, state: Ensemble, t: Array) -> Array:
    theta, rate = state.directions, branch.at_depth(state, t).drift(state, t) / state.radius[..., None]
    tangential = rate - jnp.sum(theta * rate, axis=-1, keepdims=True) * theta
    return jnp.sum(state.weights * norm(tangential), axis=-1)
