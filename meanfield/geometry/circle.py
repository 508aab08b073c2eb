"""The circle S¹ (d = 2): Fourier series, equally spaced nodes, and sums over scattered points.

Y_0 = 1,  Y_{k,k} = √2 cos kφ,  Y_{k,−k} = √2 sin kφ  at (cos φ, sin φ), orthonormal with respect to dφ/2π. At points
the series runs through powers of x + iy, so no angle is ever formed.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.fft import next_fast_len

from ..keys import Key, require
from ..precision import compiled, float64
from ..pytree import pytree, static
from .funk_hecke import Multipliers
from .points import chunked, resized
from .space import Space


class Circle(Space):
    """The unit circle S¹ in R², where directions live."""

    case_name: ClassVar[str] = "circle"
    case_keys: ClassVar[dict[str, Key]] = {"dimension": Key(int, "dimension d of the tokens; 2 on the circle", 2)}
    dimension: int = 2
    coordinates: int = 2
    order_rule: ClassVar[str] = "m = -l or l"
    largest_degree: int = 1 << 16

    def __init__(self, dimension: int = 2) -> None:
        require(dimension == 2, "dimension", dimension, "2 on the circle; use sphere, zonal or euclidean for others")

    def __repr__(self) -> str:
        return "Circle()"

    def grid(self, degree: int) -> CircleGrid:
        """The grid that resolves products of degree-`degree` fields; built once a degree. InputError if degree < 1."""
        return _grid(int(degree))

    def quadrature(self, degree: int) -> tuple[NDArray, NDArray]:
        """Equally spaced nodes (node, 2) and weights (node,), sum 1: exact for harmonics of degree ≤ 2·degree + 1."""
        require(1 <= degree <= 1 << 22, "degree", degree, "an integer from 1 to 4194304")
        return _equally_spaced(2 * degree + 2)

    def coarser(self, degree: int) -> NDArray:
        """Weights of the rule embedded in `quadrature(degree)` that keeps every other node: (node,), sum 1."""
        return np.tile([1 / (degree + 1), 0.0], degree + 1)

    def cells(self, degree: int) -> NDArray:
        """Pairs of neighbouring nodes of `quadrature(degree)`, anticlockwise: (cell, 2)."""
        count = 2 * degree + 2
        return np.stack([np.arange(count), (np.arange(count) + 1) % count], axis=-1)


def _equally_spaced(count: int) -> tuple[NDArray, NDArray]:
    phi = 2 * np.pi * np.arange(count) / count
    return np.stack([np.cos(phi), np.sin(phi)], axis=-1), np.full(count, 1 / count)


@functools.lru_cache(maxsize=8)
def _grid(degree: int) -> CircleGrid:
    largest = Circle.largest_degree
    require(1 <= degree <= largest, "degree", degree, f"an integer from 1 to {largest}")
    # Quadratic terms of degree L need 3L + 1 nodes.
    return CircleGrid(degree, *_equally_spaced(next_fast_len(3 * degree + 1, real=True)))


@pytree
class CircleGrid:
    """S¹ at a degree L: nodes, quadrature, transforms of real orthonormal coefficients, and sums over points.

    Coefficients c have shape (..., 2L + 1): degree 0, then sine and cosine of degrees 1 … L; nodal values (..., node).
    """

    degree: int = static()
    nodes: Any
    weights: Any

    space: ClassVar[Circle] = Circle()

    @property
    def size(self) -> int:
        """Number of modes, 2L + 1."""
        return 2 * self.degree + 1

    @property
    def degrees(self) -> NDArray:
        """Degree k of each mode: (mode,)."""
        return np.abs(self.orders)

    @property
    def orders(self) -> NDArray:
        """Order ±k of each mode: (mode,); positive cosine, negative sine."""
        return _orders(self.size)

    @property
    def laplacian(self) -> NDArray:
        """Eigenvalues −k² of the second derivative: (mode,)."""
        return -(self.degrees.astype(float) ** 2)

    @float64
    def resized(self, c: Array, degree: int) -> Array:
        """Coefficients of another degree: padded with zeros (exact) or truncated."""
        return resized(jnp.asarray(c), 2 * degree + 1)

    @compiled
    def synthesize(self, c: Array) -> Array:
        """f(node) = Σ c_k Y_k(node). (..., mode) → (..., node)."""
        c = jnp.asarray(c, dtype=float)
        spectrum = jax.lax.complex(c[..., 2::2], -c[..., 1::2]) * np.sqrt(0.5)
        spectrum = jnp.concatenate([c[..., :1].astype(spectrum.dtype), spectrum], axis=-1)
        return jnp.fft.irfft(spectrum, n=len(self.weights), axis=-1, norm="forward")

    @compiled
    def analyze(self, f: Array) -> Array:
        """c_k = ∫ f Y_k dσ by quadrature, exact for f of degree ≤ 2L. (..., node) → (..., mode)."""
        spectrum = jnp.fft.rfft(jnp.asarray(f, dtype=float), axis=-1, norm="forward")[..., : self.degree + 1]
        pairs = np.sqrt(2) * jnp.stack([-spectrum.imag, spectrum.real], axis=-1)[..., 1:, :]
        return jnp.concatenate([spectrum.real[..., :1], pairs.reshape(*pairs.shape[:-2], -1)], axis=-1)

    @compiled
    def gradient(self, c: Array) -> Array:
        """Tangential gradient f′(φ) e_φ at the nodes, Cartesian. (..., mode) → (..., node, 2)."""
        return self.synthesize(_turned(jnp.asarray(c, dtype=float)))[..., None] * _across(jnp.asarray(self.nodes))

    @compiled
    def divergence(self, field: Array) -> Array:
        """(div F)_k = −∫ F·∇Y_k dσ of a tangential field at nodes; exactly mass-free. (..., node, 2) → (..., mode)."""
        return _turned(self.analyze(jnp.sum(field * _across(jnp.asarray(self.nodes)), axis=-1)))

    @compiled
    def evaluate(self, c: Array, points: Array) -> Array:
        """f(θ) = Σ c_k Y_k(θ) at unit vectors. (..., mode), (..., point, 2) → (..., point)."""
        c, points = jnp.asarray(c, dtype=float), jnp.asarray(points, dtype=float)
        return jnp.vectorize(_evaluate, signature="(k),(n,c)->(n)")(c, points)

    @compiled
    def moments(self, points: Array, weights: Array) -> Array:
        """Σ_j w_j Y_k(θ_j), the transpose of `evaluate`. (..., point, 2), (..., point) → (..., mode)."""
        sums = functools.partial(_moments, self.degree)
        points, weights = jnp.asarray(points, dtype=float), jnp.asarray(weights, dtype=float)
        return jnp.vectorize(sums, signature="(n,c),(n)->(k)")(points, weights)

    @compiled
    def partition(self, c: Array, multipliers: Multipliers, points: Array | None = None) -> tuple[Array, Array]:
        """Z = ∫e^{β⟨θ,ω⟩}dμ/a_0 and G = ∫e^{β⟨θ,ω⟩}ω dμ/a_0 from the moments c of μ, at points or at the nodes.

        G = Σ [(a_k/β) ∇Y_k + a_k′ Y_k θ] c_k / a_0. (..., mode) → (..., point), (..., point, 2). Leading axes of `c`
        and of `points` (..., point, 2) agree.
        """
        value, tangential, radial = (a[self.degrees] for a in multipliers)
        c = jnp.asarray(c, dtype=float)
        parts = jnp.stack([value * c, radial * c, _turned(tangential * c)], axis=-2)
        if points is None:
            theta = jnp.asarray(self.nodes)
            fields = self.synthesize(parts)
        else:
            points = jnp.asarray(points, dtype=float)
            theta = points / jnp.sqrt(jnp.sum(points**2, axis=-1, keepdims=True))
            fields = self.evaluate(parts, theta[..., None, :, :])
        along, across = fields[..., 1, :, None], fields[..., 2, :, None]
        return fields[..., 0, :], along * theta + across * _across(theta)


def _orders(size: int) -> NDArray:
    pairs = np.arange(1, size // 2 + 1)
    return np.concatenate([[0], np.stack([-pairs, pairs], axis=-1).reshape(-1)])


def _across(points: Array) -> Array:
    """e_φ, the points turned by a right angle: (..., 2)."""
    return jnp.stack([-points[..., 1], points[..., 0]], axis=-1)


def _turned(c: Array) -> Array:
    """Coefficients of f′(φ): cosine takes k times the sine's, sine −k times the cosine's. (..., mode)."""
    orders = _orders(c.shape[-1])
    partner = np.arange(c.shape[-1]) - np.sign(orders)
    return jnp.asarray(orders) * c[..., partner]


def _harmonics(degree: int, points: Array) -> Array:
    """Every Y_k at unit vectors: (point, 2) → (mode, point)."""
    x, y = points[:, 0], points[:, 1]

    def next_power(power: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        c, s = power
        c, s = c * x - s * y, c * y + s * x
        return (c, s), jnp.stack([s, c])

    one = jnp.ones_like(x)
    _, powers = jax.lax.scan(next_power, (one, jnp.zeros_like(x)), None, length=degree)  # (degree, sin|cos, point)
    return jnp.concatenate([one[None], np.sqrt(2) * powers.reshape(2 * degree, -1)])


@jax.custom_jvp
def _evaluate(c: Array, points: Array) -> Array:
    degree = c.shape[0] // 2
    stacked = chunked(lambda p: c @ _harmonics(degree, p), (points,))
    return stacked.reshape(-1)[: points.shape[0]]


@_evaluate.defjvp
def _evaluate_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (c, points), (c_dot, points_dot) = primals, tangents
    turn = jnp.sum(_across(points) * points_dot, axis=-1)
    return _evaluate(c, points), _evaluate(c_dot, points) + turn * _evaluate(_turned(c), points)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _moments(degree: int, points: Array, weights: Array) -> Array:
    return chunked(lambda p, w: _harmonics(degree, p) @ w, (points, weights)).sum(axis=0)


@_moments.defjvp
def _moments_jvp(degree: int, primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (points, weights), (points_dot, weights_dot) = primals, tangents
    turn = jnp.sum(_across(points) * points_dot, axis=-1)
    # the transpose of differentiation is its negative
    change = _moments(degree, points, weights_dot) - _turned(_moments(degree, points, weights * turn))
    return _moments(degree, points, weights), change
