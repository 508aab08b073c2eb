"""How far particles are from the continuum: distances between measures of directions through their moments."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .density import Density
from .ensemble import Ensemble
from .joint_density import JointDensity

# H^{−s} needs s > (d−1)/2 for n^{−1/2} convergence; s = 2 serves d = 2, 3.
SMOOTHNESS = 2.0
DISTANCE_DEGREE = 32

State = Density | JointDensity | Ensemble


def moments(state: State, grid: Any) -> NDArray:
    """∫Y_k dμ of the directions of a state, for the modes of `grid`: (..., mode)."""
    if isinstance(state, JointDensity):
        state = state.marginal()
    if isinstance(state, Density):
        return np.asarray(state.grid.resized(state.coefficients, grid.degree))
    x = np.asarray(state.x)
    return np.asarray(grid.moments(x / np.linalg.norm(x, axis=-1, keepdims=True), np.asarray(state.weights)))


def distance(
    first: Density | JointDensity | Ensemble,
    second: Density | JointDensity | Ensemble,
    space: Any,
    smoothness: float = SMOOTHNESS,
) -> NDArray:
    """H^{−s} distance D, D² = Σ_{l≥1} (1+Λ_l)^{−s} Σ_m (μ̂_lm − ν̂_lm)², over degrees ≤ 32; one for each trial.

    (The mathematics page, 3.6: its mean square for n independent tokens is known exactly at t = 0.)
    """
    grid = space.grid(DISTANCE_DEGREE)
    difference = moments(first, grid) - moments(second, grid)
    weights = np.where(grid.degrees > 0, (1 - grid.laplacian) ** -smoothness, 0.0)
    return np.sqrt(np.sum(weights * difference**2, axis=-1))
