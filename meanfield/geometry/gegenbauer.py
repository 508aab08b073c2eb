"""Orthonormal Gegenbauer polynomials p_l, their Gauss rules, and draws from their weight, for any dimension d ≥ 2.

For x uniform on S^{d−1} the law of u = ⟨e,x⟩ is proportional to (1−u²)^{(d−3)/2}, and

    u p_l = b_{l+1} p_{l+1} + b_l p_{l−1},   b_l² = l(l+d−3)/((2l+d−2)(2l+d−4)),   p_0 = 1,
    p_l′(u) = √(l(l+d−2) d/(d−1)) q_{l−1}(u),   q_l the same polynomials in dimension d+2,   p_l(1)² = dim_l.

Everything is relative to that law, so that no Gamma function appears and d = 512 is as good as d = 3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh_tridiagonal
from scipy.special import gammaln

Float = NDArray[np.float64]


def recurrence(dimension: int, degree: int) -> Float:
    """b_1 … b_degree: (degree,). The first is 1/√d, which the general formula leaves undefined on the circle."""
    k = np.arange(2.0, degree + 1)
    square = k * (k + dimension - 3) / ((2 * k + dimension - 2) * (2 * k + dimension - 4))
    return np.sqrt(np.concatenate([[1 / dimension], square]))[:degree]


def orthonormal(dimension: int, degree: int, u: ArrayLike) -> Float:
    """p_0(u) … p_degree(u): (degree + 1, *u.shape)."""
    u = np.asarray(u, dtype=float)
    b = recurrence(dimension, degree)
    table = np.empty((degree + 1, *u.shape))
    table[0] = 1.0
    if degree > 0:
        table[1] = u / b[0]
    for k in range(2, degree + 1):
        table[k] = (u * table[k - 1] - b[k - 2] * table[k - 2]) / b[k - 1]
    return table


def slope_factors(dimension: int, degree: int) -> Float:
    """√(l(l+d−2) d/(d−1)) for l = 1 … degree: p_l′ over the polynomial of degree l−1 in dimension d+2. (degree,)."""
    k = np.arange(1.0, degree + 1)
    return np.sqrt(k * (k + dimension - 2) * (dimension / (dimension - 1)))


def gauss(dimension: int, count: int) -> tuple[Float, Float]:
    """Increasing nodes and positive weights (count,), sum 1, exact up to degree 2·count − 1.

    Nodes are eigenvalues of the Jacobi matrix after one Newton step, weights 1/Σ_{l<count} p_l², which unlike squared
    components of eigenvectors are accurate relative to themselves however small they are.
    """
    nodes = eigh_tridiagonal(np.zeros(count), recurrence(dimension, count)[: count - 1], eigvals_only=True)
    nodes = (nodes - nodes[::-1]) / 2
    value = orthonormal(dimension, count, nodes)[count]
    slope = slope_factors(dimension, count)[-1] * orthonormal(dimension + 2, count - 1, nodes)[count - 1]
    nodes = nodes - value / slope
    nodes = (nodes - nodes[::-1]) / 2
    weights = 1 / np.sum(orthonormal(dimension, count - 1, nodes) ** 2, axis=0)
    return nodes, weights / weights.sum()


def log_harmonics(dimension: int, degree: ArrayLike) -> Float:
    """Logarithm of dim_l = p_l(1)², the number of harmonics of degree l on S^{d−1}."""
    k = np.asarray(degree, dtype=float)
    # (2l+d−2)/(l+d−2) Γ(l+d−1)/(Γ(l+1) Γ(d−1)); the first factor is 1 for l = 0 on the circle, too
    first = np.log1p(k / np.maximum(k + dimension - 2, 1))
    return first + gammaln(k + dimension - 1) - gammaln(k + 1) - gammaln(dimension - 1)


def tilted(dimension: int, concentrations: ArrayLike, rng: np.random.Generator) -> tuple[Float, Float]:
    """Draws of u = ⟨m,θ⟩ and s = √(1−u²) under e^{κu}: one for each concentration κ ≥ 0, (token,) each.

    u = (1 − (1+b)z)/(1 − (1−b)z) with z from a Beta law, accepted by rejection (Wood, Commun. Stat. 23, 1994); s is
    formed from z, and so is accurate relative to itself next to the pole.
    """
    kappa = np.asarray(concentrations, dtype=float)
    m = dimension - 1
    b = m / (2 * kappa + np.sqrt(4 * kappa**2 + m**2))
    peak = (1 - b) / (1 + b)
    ceiling = kappa * peak + m * np.log1p(-(peak**2))
    u, s = np.empty(kappa.shape), np.empty(kappa.shape)
    pending = np.arange(kappa.size)
    while pending.size:
        z = rng.beta(m / 2, m / 2, pending.size)
        narrow, below = b[pending], 1 - (1 - b[pending]) * z
        draw = (1 - (1 + narrow) * z) / below
        bound = kappa[pending] * draw + m * np.log1p(-peak[pending] * draw) - ceiling[pending]
        accepted = bound >= np.log(1 - rng.random(pending.size))
        kept = pending[accepted]
        u[kept] = draw[accepted]
        s[kept] = (2 * np.sqrt(narrow * z * (1 - z)) / below)[accepted]
        pending = pending[~accepted]
    return u, s
