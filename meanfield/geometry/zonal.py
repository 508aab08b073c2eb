"""Densities on S^{d−1}, any d ≥ 3, that are symmetric about the last axis: orthonormal Gegenbauer series in u = ⟨e,θ⟩.

A token is a ring: the directions (u e, s ξ) with ξ uniform on the unit sphere across the axis, written (u, s) = (along,
across), s = √(1−u²). The kernel between rings is its mean over both, which moments carry by themselves: a ring of
weight w has the moments w p_l(u). Gradients are f′(u) (1−u², −us), so nothing is divided by s and the poles are plain.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from ..keys import Key, require
from ..precision import compiled, float64
from ..pytree import pytree, static
from . import gegenbauer
from .funk_hecke import Multipliers
from .points import chunked, resized
from .space import Space

# Σ_{l<count} p_l² at the outermost node, at most the number of harmonics, must stay a float64.
LARGEST_LOG_HARMONICS = 650.0
LARGEST_COUNT = 2049


class Zonal(Space):
    """The unit sphere S^{d−1} of R^d, d ≥ 3, where directions are rings about the last axis."""

    case_name: ClassVar[str] = "zonal"
    case_keys: ClassVar[dict[str, Key]] = {"dimension": Key(int, "dimension d ≥ 3 of the tokens")}
    rings: ClassVar[bool] = True
    coordinates: int = 2
    order_rule: ClassVar[str] = "m = 0"

    def __init__(self, dimension: int) -> None:
        require(3 <= dimension <= 1_000_000, "dimension", dimension, "an integer of at least 3 (and at most 1000000)")
        self.dimension = int(dimension)

    @functools.cached_property
    def _largest_count(self) -> int:
        """The most Gauss nodes whose weights are float64 numbers."""
        counts = np.arange(1, LARGEST_COUNT + 1)
        return int(np.sum(gegenbauer.log_harmonics(self.dimension + 2, counts) <= LARGEST_LOG_HARMONICS))

    @property
    def largest_degree(self) -> int:  # type: ignore[override]
        """The largest degree of a grid: 1024, or less where the harmonics would overflow (288 for d = 512)."""
        return min(1024, 2 * self._largest_count // 3 - 1)

    def grid(self, degree: int) -> ZonalGrid:
        """The grid that resolves products of degree-`degree` fields; built once a degree.

        InputError if degree < 1 or above `largest_degree`.
        """
        return _grid(self, int(degree))

    def quadrature(self, degree: int) -> tuple[NDArray, NDArray]:
        """Gauss nodes (node, 2) and positive weights (node,), sum 1: exact for degree ≤ 2·degree + 1, north to south.

        InputError if degree < 1 or where weights would underflow.
        """
        largest = self._largest_count - 1
        require(
            1 <= degree <= largest, "degree", degree, f"an integer from 1 to {largest} in dimension {self.dimension}"
        )
        return _rings(self.dimension, degree + 1)

    def coarser(self, degree: int) -> NDArray:
        """Weights of the interpolatory rule on every other node of `quadrature(degree)`: (node,), sum 1.

        Exact below degree (degree + 1)/2. For large d a few weights are negative, but Σ|w| ≤ 1.053 wherever tried.
        """
        nodes, weights = self.quadrature(degree)
        u, scale = nodes[::2, 0], np.sqrt(weights[::2])
        # scaled by Gauss weights the columns are those of an orthogonal matrix, which tames the equations
        exact = np.eye(u.size)[0]
        coarse = np.zeros_like(weights)
        coarse[::2] = scale * np.linalg.solve(gegenbauer.orthonormal(self.dimension, u.size - 1, u) * scale, exact)
        return coarse

    def cells(self, degree: int) -> NDArray:
        """Pairs of neighbouring rings of `quadrature(degree)`, north to south: (cell, 2)."""
        return np.stack([np.arange(degree), np.arange(1, degree + 1)], axis=-1)


def _rings(dimension: int, count: int) -> tuple[NDArray, NDArray]:
    u, weights = gegenbauer.gauss(dimension, count)
    u = u[::-1]
    return np.stack([u, np.sqrt((1 - u) * (1 + u))], axis=-1), weights[::-1].copy()


@functools.lru_cache(maxsize=8)
def _grid(space: Zonal, degree: int) -> ZonalGrid:
    largest = space.largest_degree
    require(1 <= degree <= largest, "degree", degree, f"an integer from 1 to {largest} in dimension {space.dimension}")
    # Quadratic terms of degree L need 3(L+1)/2 Gauss nodes.
    nodes, weights = _rings(space.dimension, -(-3 * (degree + 1) // 2))
    slopes = gegenbauer.orthonormal(space.dimension + 2, degree - 1, nodes[:, 0])
    slopes *= gegenbauer.slope_factors(space.dimension, degree)[:, None]
    return ZonalGrid(
        space=space,
        degree=degree,
        nodes=nodes,
        weights=weights,
        values=gegenbauer.orthonormal(space.dimension, degree, nodes[:, 0]),
        slopes=np.concatenate([np.zeros((1, len(weights))), slopes]),
    )


@pytree
class ZonalGrid:
    """Rings of S^{d−1} at a degree L: nodes, quadrature, transforms of orthonormal coefficients, and sums over rings.

    Coefficients c have shape (..., L + 1); nodal values (..., node), north to south. values, slopes: p_l, p_l′ there.
    """

    space: Zonal = static()
    degree: int = static()
    nodes: Any
    weights: Any
    values: Any
    slopes: Any

    @property
    def size(self) -> int:
        """Number of modes, L + 1."""
        return self.degree + 1

    @property
    def degrees(self) -> NDArray:
        """Degree l of each mode: (mode,)."""
        return np.arange(self.size)

    @property
    def orders(self) -> NDArray:
        """Order of each mode, 0: (mode,)."""
        return np.zeros(self.size, dtype=int)

    @property
    def laplacian(self) -> NDArray:
        """Eigenvalues −l(l+d−2) of the Laplace–Beltrami operator: (mode,)."""
        return -(self.degrees * (self.degrees + self.space.dimension - 2.0))

    @float64
    def resized(self, c: Array, degree: int) -> Array:
        """Coefficients of another degree: padded with zeros (exact) or truncated."""
        return resized(jnp.asarray(c), degree + 1)

    @compiled
    def synthesize(self, c: Array) -> Array:
        """f(node) = Σ c_l p_l(node). (..., mode) → (..., node)."""
        return jnp.asarray(c, dtype=float) @ self.values

    @compiled
    def analyze(self, f: Array) -> Array:
        """c_l = ∫ f p_l dσ by quadrature, exact for f of degree ≤ 2L + 2. (..., node) → (..., mode)."""
        return (jnp.asarray(f, dtype=float) * self.weights) @ jnp.asarray(self.values).T

    @compiled
    def gradient(self, c: Array) -> Array:
        """Tangential gradient f′(u) (1−u², −us) at the nodes, along and across. (..., mode) → (..., node, 2)."""
        return (jnp.asarray(c, dtype=float) @ self.slopes)[..., None] * _southward(jnp.asarray(self.nodes))

    @compiled
    def divergence(self, field: Array) -> Array:
        """(div F)_l = −∫ F·∇p_l dσ of a tangential field at nodes; exactly mass-free. (..., node, 2) → (..., mode)."""
        along = jnp.sum(field * _southward(jnp.asarray(self.nodes)), axis=-1)
        return -(along * self.weights) @ jnp.asarray(self.slopes).T

    @compiled
    def evaluate(self, c: Array, points: Array) -> Array:
        """f(u) = Σ c_l p_l(u) at rings (u, s), poles included. (..., mode), (..., point, 2) → (..., point)."""
        series = functools.partial(_series, self.space.dimension)
        return jnp.vectorize(series, signature="(k),(n)->(n)")(jnp.asarray(c, dtype=float), _unit(points)[..., 0])

    @compiled
    def moments(self, points: Array, weights: Array) -> Array:
        """Σ_j w_j p_l(u_j), the transpose of `evaluate`. (..., point, 2), (..., point) → (..., mode)."""
        sums = functools.partial(_moments, self.space.dimension, self.degree)
        weights = jnp.asarray(weights, dtype=float)
        return jnp.vectorize(sums, signature="(n),(n)->(k)")(_unit(points)[..., 0], weights)

    @compiled
    def partition(self, c: Array, multipliers: Multipliers, points: Array | None = None) -> tuple[Array, Array]:
        """Z = ∫e^{β⟨θ,ω⟩}dμ/a_0 and G = ∫e^{β⟨θ,ω⟩}ω dμ/a_0 from the moments c of μ, at rings or at the nodes.

        G = Σ [(a_l/β) ∇p_l + a_l′ p_l θ] c_l / a_0, along and across. (..., mode) → (..., point), (..., point, 2).
        Leading axes of `c` and of `points` (..., point, 2) agree.
        """
        value, tangential, radial = multipliers
        c = jnp.asarray(c, dtype=float)
        parts = jnp.stack([value * c, radial * c], axis=-2)
        if points is None:
            theta = jnp.asarray(self.nodes)
            fields, slope = parts @ self.values, (tangential * c) @ self.slopes
        else:
            theta, dimension = _unit(points), self.space.dimension
            series = jnp.vectorize(_series, signature="(k),(n)->(n)", excluded=(0,))
            fields = series(dimension, parts, theta[..., None, :, 0])
            slope = series(dimension + 2, _derivative(dimension, tangential * c), theta[..., 0])
        return fields[..., 0, :], fields[..., 1, :, None] * theta + slope[..., None] * _southward(theta)


def _unit(points: Array) -> Array:
    """Points of norm 1, so that derivatives with respect to them are tangential."""
    points = jnp.asarray(points, dtype=float)
    return points / jnp.sqrt(jnp.sum(points**2, axis=-1, keepdims=True))


def _southward(points: Array) -> Array:
    """The gradient of u, (1−u², −us) = s (s, −u): (..., 2)."""
    u, s = points[..., 0], points[..., 1]
    return s[..., None] * jnp.stack([s, -u], axis=-1)


def _derivative(dimension: int, c: Array) -> Array:
    """Coefficients of f′(u) in the polynomials of dimension d + 2, one degree lower: (..., mode) → (..., mode − 1)."""
    return jnp.asarray(gegenbauer.slope_factors(dimension, c.shape[-1] - 1)) * c[..., 1:]


def _polynomials(dimension: int, degree: int, u: Array) -> Array:
    """p_0(u) … p_degree(u): (point,) → (mode, point)."""
    b = gegenbauer.recurrence(dimension, degree)

    def raise_degree(pair: tuple[Array, Array], step: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        (below, now), (lower, upper) = pair, step
        above = (u * now - lower * below) / upper
        return (now, above), above

    one = jnp.ones_like(u)
    steps = (jnp.asarray(np.concatenate([[0.0], b])[:degree]), jnp.asarray(b))
    _, rest = jax.lax.scan(raise_degree, (jnp.zeros_like(u), one), steps)
    return jnp.concatenate([one[None], rest])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _series(dimension: int, c: Array, u: Array) -> Array:
    """Σ c_l p_l(u): (mode,), (point,) → (point,)."""
    stacked = chunked(lambda u: c @ _polynomials(dimension, c.shape[0] - 1, u), (u,))
    return stacked.reshape(-1)[: u.shape[0]]


@_series.defjvp
def _series_jvp(dimension: int, primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (c, u), (c_dot, u_dot) = primals, tangents
    change = _series(dimension, c_dot, u)
    if c.shape[0] > 1:
        change += u_dot * _series(dimension + 2, _derivative(dimension, c), u)
    return _series(dimension, c, u), change


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _moments(dimension: int, degree: int, u: Array, weights: Array) -> Array:
    """Σ_j w_j p_l(u_j): (point,), (point,) → (mode,)."""
    return chunked(lambda u, w: _polynomials(dimension, degree, u) @ w, (u, weights)).sum(axis=0)


@_moments.defjvp
def _moments_jvp(
    dimension: int, degree: int, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    (u, weights), (u_dot, weights_dot) = primals, tangents
    change = _moments(dimension, degree, u, weights_dot)
    if degree > 0:
        moved = _moments(dimension + 2, degree - 1, u, weights * u_dot)
        change = change.at[1:].add(gegenbauer.slope_factors(dimension, degree) * moved)
    return _moments(dimension, degree, u, weights), change
