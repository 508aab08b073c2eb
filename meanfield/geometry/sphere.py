"""The sphere S² (d = 3): real spherical harmonics, Gauss–Legendre grid, transforms, and sums over scattered points.

A spherical harmonic series is also a double Fourier series in colatitude and longitude. Evaluation at points goes
through it: a table turns latitudes into cos kθ and sin kθ, and points need only powers of e^{iθ} and e^{iφ} and two
matrix products. Derivatives with respect to points are again harmonic series (θ_i Y_l couples l ± 1), so there is no
division by sinθ and nothing special at the poles.
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
from . import sphere_tables
from .funk_hecke import Multipliers
from .points import chunked, resized
from .space import Space

# Vector fields of degree L reach degree L + 1 in Cartesian components, and their derivatives L + 2.
HEADROOM = 2


class Sphere(Space):
    """The unit sphere S² in R³, where directions live."""

    case_name: ClassVar[str] = "sphere"
    case_keys: ClassVar[dict[str, Key]] = {"dimension": Key(int, "dimension d of the tokens; 3 on the sphere", 3)}
    dimension: int = 3
    coordinates: int = 3
    order_rule: ClassVar[str] = "-l <= m <= l"
    largest_degree: int = 1024

    def __init__(self, dimension: int = 3) -> None:
        require(dimension == 3, "dimension", dimension, "3 on the sphere (zonal and euclidean take others)")

    def __repr__(self) -> str:
        return "Sphere()"

    def grid(self, degree: int) -> SphereGrid:
        """The grid that resolves products of degree-`degree` fields; built once a degree. InputError if degree < 1."""
        return _grid(int(degree))

    def quadrature(self, degree: int) -> tuple[NDArray, NDArray]:
        """Nodes (node, 3) and positive weights (node,), sum 1: exact for harmonics of degree ≤ 2·degree + 1.

        Gauss–Legendre in latitude times an even number of equally spaced longitudes, which vary fastest.
        """
        require(1 <= degree <= 4096, "degree", degree, "an integer from 1 to 4096")
        z, weights = np.polynomial.legendre.leggauss(degree + 1)
        return _product_nodes(z, weights, 2 * degree + 2)

    def coarser(self, degree: int) -> NDArray:
        """Weights of the rule embedded in `quadrature(degree)` that keeps every other longitude: (node,), sum 1."""
        _, weights = self.quadrature(degree)
        return weights * np.tile([2.0, 0.0], weights.size // 2)

    def cells(self, degree: int) -> NDArray:
        """Triangles between nodes of `quadrature(degree)` that cover the sphere, polar caps included: (cell, 3)."""
        count = 2 * degree + 2
        index = np.arange((degree + 1) * count).reshape(degree + 1, count)
        here, east = index[:-1], np.roll(index, -1, axis=1)[:-1]
        above, beside = index[1:], np.roll(index, -1, axis=1)[1:]
        cells = [np.stack([here, east, above], axis=-1), np.stack([beside, above, east], axis=-1)]
        # a cap is covered by triangles inscribed in the last latitude, turned against each other
        corners = np.stack([np.roll(np.arange(count), -(count * k) // 3) for k in range(3)], axis=-1)
        return np.concatenate([*(c.reshape(-1, 3) for c in cells), index[0][corners], index[-1][corners]])


def _product_nodes(z: NDArray, weights: NDArray, longitudes: int) -> tuple[NDArray, NDArray]:
    phi = 2 * np.pi * np.arange(longitudes) / longitudes
    sine = np.sqrt((1 - z) * (1 + z))
    nodes = np.stack(np.broadcast_arrays(sine[:, None] * np.cos(phi), sine[:, None] * np.sin(phi), z[:, None]), axis=-1)
    return nodes.reshape(-1, 3), np.repeat(weights / weights.sum() / longitudes, longitudes)


@functools.lru_cache(maxsize=8)
def _grid(degree: int) -> SphereGrid:
    largest = Sphere.largest_degree
    require(1 <= degree <= largest, "degree", degree, f"an integer from 1 to {largest}")
    top = degree + HEADROOM
    # Quadratic terms of degree L need 3(L+1)/2 latitudes and 3L+1 longitudes; points need every degree up to `top`.
    half = -(-max(-(-3 * (degree + 1) // 2), top + 1) // 2)
    longitudes = next_fast_len(max(3 * degree + 1, 2 * top + 2), real=True)
    z, weights = np.polynomial.legendre.leggauss(2 * half)
    z, weights = z[::-1], weights[::-1] / 2  # north to south
    nodes, node_weights = _product_nodes(z, weights, longitudes)
    phi = 2 * np.pi * np.arange(longitudes) / longitudes
    sine = np.sqrt((1 - z) * (1 + z))
    table = sphere_tables.by_parity(sphere_tables.legendre(top, z[:half]))
    index = sphere_tables.parity_index(top)
    degrees, orders = sphere_tables.degrees_and_orders(top)
    up_index, up_value, down_index, down_value = sphere_tables.coordinate_products(top)
    l, m = degrees.astype(float), orders.astype(float)
    return SphereGrid(
        degree=degree,
        latitudes=2 * half,
        longitudes=longitudes,
        nodes=nodes,
        weights=node_weights,
        latitude_weights=weights,
        sine=sine,
        east=np.stack([-np.sin(phi), np.cos(phi), 0 * phi], axis=-1),
        south=np.stack(
            np.broadcast_arrays(z[:, None] * np.cos(phi), z[:, None] * np.sin(phi), -sine[:, None]), axis=-1
        ),
        synthesis=table,
        analysis=np.ascontiguousarray(np.swapaxes(table, -1, -2)),
        slots=index,
        modes=sphere_tables.slot_of_mode(index, degrees.size),
        # sinθ ∂_θ Y_lm = l α_{l+1,m} Y_{l+1,m} − (l+1) α_lm Y_{l−1,m}
        slope_up=l * sphere_tables.alpha(l + 1, m),
        slope_down=-(l + 1) * sphere_tables.alpha(l, m),
        trigonometric=sphere_tables.trigonometric_from_nodes(top, np.arccos(z)),
        up_index=up_index,
        up_value=up_value,
        down_index=down_index,
        down_value=down_value,
    )


@pytree
class SphereGrid:
    """S² at a degree L: nodes, quadrature, transforms of real orthonormal coefficients, and sums over points.

    Coefficients c have shape (..., (L+1)²), mode l² + l + m; nodal values (..., node), latitudes north to south,
    longitudes fastest. Every table reaches degree L + 2, which vector fields need.
    """

    degree: int = static()
    latitudes: int = static()
    longitudes: int = static()
    nodes: Any
    weights: Any
    latitude_weights: Any
    sine: Any
    east: Any
    south: Any
    synthesis: Any
    analysis: Any
    slots: Any
    modes: Any
    slope_up: Any
    slope_down: Any
    trigonometric: Any
    up_index: Any
    up_value: Any
    down_index: Any
    down_value: Any

    space: ClassVar[Sphere] = Sphere()

    @property
    def size(self) -> int:
        """Number of modes, (L+1)²."""
        return (self.degree + 1) ** 2

    @property
    def degrees(self) -> NDArray:
        """Degree l of each mode: (mode,)."""
        return sphere_tables.degrees_and_orders(self.degree)[0]

    @property
    def orders(self) -> NDArray:
        """Order m of each mode: (mode,); m ≥ 0 cosine, m < 0 sine."""
        return sphere_tables.degrees_and_orders(self.degree)[1]

    @property
    def laplacian(self) -> NDArray:
        """Eigenvalues −l(l+1) of the Laplace–Beltrami operator: (mode,)."""
        return -(self.degrees * (self.degrees + 1.0))

    @float64
    def resized(self, c: Array, degree: int) -> Array:
        """Coefficients of another degree: padded with zeros (exact) or truncated."""
        return resized(jnp.asarray(c), (degree + 1) ** 2)

    @compiled
    def synthesize(self, c: Array) -> Array:
        """f(node) = Σ c_lm Y_lm(node). (..., mode) → (..., node)."""
        return _leading(functools.partial(_synthesize, self), c)

    @compiled
    def analyze(self, f: Array) -> Array:
        """c_lm = ∫ f Y_lm dσ by quadrature, exact for f of degree ≤ 2L + 1. (..., node) → (..., mode)."""
        return _leading(functools.partial(_analyze, self), f)[..., : self.size]

    @compiled
    def gradient(self, c: Array) -> Array:
        """Tangential gradient at the nodes in Cartesian components. (..., mode) → (..., node, 3)."""
        fields = _leading(functools.partial(_synthesize, self), self._slopes(c))
        return self._cartesian(fields[..., 0, :], fields[..., 1, :])

    @compiled
    def divergence(self, field: Array) -> Array:
        """(div F)_lm = −∫ F·∇Y_lm dσ of a tangential field at the nodes. (..., node, 3) → (..., mode); mass-free exactly."""
        shaped = field.reshape(*field.shape[:-2], self.latitudes, self.longitudes, 3)
        scaled = shaped / jnp.asarray(self.sine)[:, None, None]
        southward = jnp.einsum("...ijc,ijc->...ij", scaled, self.south)
        eastward = jnp.einsum("...ijc,jc->...ij", scaled, self.east)
        parts = jnp.stack([southward, eastward], axis=-3).reshape(*field.shape[:-2], 2, -1)
        south_hat, east_hat = jnp.moveaxis(_leading(functools.partial(_analyze, self), parts), -2, 0)
        l, m = self.degrees, self.orders
        index, size = l * (l + 1) + m, self.size
        raised = self.slope_up[:size] * south_hat[..., index + 2 * l + 2]
        lowered = self.slope_down[:size] * south_hat[..., np.maximum(index - 2 * l, 0)]
        # ∂_φ Y_{l,m} = −m Y_{l,−m}
        return -(raised + lowered) + m * east_hat[..., index - 2 * m]

    @compiled
    def evaluate(self, c: Array, points: Array) -> Array:
        """f(θ) = Σ c_lm Y_lm(θ) at unit vectors, poles included. (..., mode), (point, 3) → (..., point)."""
        c = jnp.asarray(c)
        return _evaluate(self, c.reshape(-1, c.shape[-1]), points).reshape(*c.shape[:-1], -1)

    @compiled
    def moments(self, points: Array, weights: Array) -> Array:
        """Σ_j w_j Y_lm(θ_j), the transpose of `evaluate`. (..., point, 3), (point,) → (..., mode)."""
        single = lambda p: _moments(self, p, jnp.asarray(weights)[None])[0, : self.size]  # noqa: E731
        return jnp.vectorize(single, signature="(n,c)->(k)")(points)

    @compiled
    def partition(self, c: Array, multipliers: Multipliers, points: Array | None = None) -> tuple[Array, Array]:
        """Z = ∫e^{β⟨θ,ω⟩}dμ/a_0 and G = ∫e^{β⟨θ,ω⟩}ω dμ/a_0 from the moments c of μ, at points or at the nodes.

        G = Σ [(a_l/β) ∇Y_l + a_l′ Y_l θ] c_l / a_0. (..., mode) → (..., point), (..., point, 3). Leading axes of `c` and of
        `points` (..., point, 3) agree.
        """
        value, tangential, radial = (a[self.degrees] for a in multipliers)
        if points is None:
            slopes = self._slopes(tangential * c)
            scalars = [resized(part, slopes.shape[-1])[..., None, :] for part in (value * c, radial * c)]
            parts = jnp.concatenate([*scalars, slopes], axis=-2)
            fields = _leading(functools.partial(_synthesize, self), parts)
            along = fields[..., 1, :, None] * self.nodes
            return fields[..., 0, :], along + self._cartesian(fields[..., 2, :], fields[..., 3, :])
        l = self.degrees
        raised, lowered = (radial - l * tangential) * c, (radial + (l + 1) * tangential) * c
        size = (self.degree + 2) ** 2
        vector = _gather(self.up_index, self.up_value, raised, size) + _gather(
            self.down_index, self.down_value, lowered, size
        )
        parts = jnp.concatenate([resized(value * c, size)[..., None, :], vector], axis=-2)
        fields = jnp.vectorize(functools.partial(_evaluate, self), signature="(f,k),(n,c)->(f,n)")(parts, points)
        return fields[..., 0, :], jnp.moveaxis(fields[..., 1:, :], -2, -1)

    def _slopes(self, c: Array) -> Array:
        """Coefficients of sinθ ∂_θ f and ∂_φ f at degree L + 1: (..., 2, mode)."""
        l, m = sphere_tables.degrees_and_orders(self.degree + 1)
        index = l * (l + 1) + m
        padded = resized(c, (self.degree + 3) ** 2)
        below = np.maximum(index - 2 * l, 0)
        south = self.slope_up[below] * padded[..., below] * (np.abs(m) < l) + (
            self.slope_down[index + 2 * l + 2] * padded[..., index + 2 * l + 2]
        )
        return jnp.stack([south, m * padded[..., index - 2 * m]], axis=-2)

    def _cartesian(self, south: Array, east: Array) -> Array:
        """Cartesian vector (sinθ-scaled southward and eastward parts)/sinθ: (..., node) twice → (..., node, 3)."""
        shape = (*south.shape[:-1], self.latitudes, self.longitudes)
        over_sine = 1 / jnp.asarray(self.sine)[:, None]
        southward = (south.reshape(shape) * over_sine)[..., None] * self.south
        eastward = (east.reshape(shape) * over_sine)[..., None] * self.east
        return (southward + eastward).reshape(*south.shape, 3)


def _leading(transform: Any, array: Array) -> Array:
    """Apply a transform of (field, x) to (..., x)."""
    array = jnp.asarray(array)
    result = transform(array.reshape(-1, array.shape[-1]))
    return result.reshape(*array.shape[:-1], -1)


def _by_latitude(grid: SphereGrid, c: Array) -> Array:
    """Σ_l c_lm P̄_lm(z_i) for cosine and sine: (field, mode) → (order, 2, field, latitude)."""
    fields = c.shape[0]
    padded = resized(c, (grid.degree + HEADROOM + 1) ** 2 + 1)
    slots = jnp.moveaxis(padded[:, grid.slots], 0, -1)  # (parity, order, k, 2, field)
    slots = slots.reshape(*slots.shape[:3], -1)
    even, odd = jnp.einsum("pmkf,pmki->pmfi", slots, grid.synthesis)
    both = jnp.concatenate([even + odd, (even - odd)[..., ::-1]], axis=-1)
    return both.reshape(both.shape[0], 2, fields, grid.latitudes)


def _by_latitude_transposed(grid: SphereGrid, values: Array) -> Array:
    """The transpose of `_by_latitude`: (order, 2, field, latitude) → (field, mode)."""
    half = grid.latitudes // 2
    north, south = values[..., :half], values[..., ::-1][..., :half]
    folded = jnp.stack([north + south, north - south]).reshape(2, values.shape[0], -1, half)
    slots = jnp.einsum("pmfi,pmik->pmkf", folded, grid.analysis)
    slots = slots.reshape(-1, values.shape[2])  # (parity, order, k, 2) flat, field
    return slots[grid.modes].T


def _synthesize(grid: SphereGrid, c: Array) -> Array:
    fields = c.shape[0]
    cosine, sine = jnp.moveaxis(_by_latitude(grid, c), 1, 0)
    # the inverse real FFT counts orders m > 0 twice; √2 belongs to the basis
    spectrum = jax.lax.complex(cosine, -sine) * jnp.sqrt(0.5)
    spectrum = jnp.moveaxis(spectrum.at[0].set(cosine[0]), 0, -1)  # (field, latitude, order)
    return jnp.fft.irfft(spectrum, n=grid.longitudes, axis=-1, norm="forward").reshape(fields, -1)


def _analyze(grid: SphereGrid, f: Array) -> Array:
    """Coefficients up to degree L + 2: (field, node) → (field, mode)."""
    shaped = f.reshape(-1, grid.latitudes, grid.longitudes)
    orders = grid.degree + HEADROOM + 1
    spectrum = jnp.fft.rfft(shaped, axis=-1, norm="forward")[..., :orders]
    scale = jnp.where(np.arange(orders) == 0, 1.0, jnp.sqrt(2.0)) * jnp.asarray(grid.latitude_weights)[:, None]
    parts = jnp.stack([spectrum.real * scale, -spectrum.imag * scale])  # (2, field, latitude, order)
    return _by_latitude_transposed(grid, jnp.moveaxis(parts, -1, 0))


def _gather(index: Any, value: Any, c: Any, size: int) -> Array:
    """Σ_k value·c[index] for the first `size` target modes: (..., mode) → (..., 3, mode)."""
    index, value = jnp.asarray(index)[:, :size], jnp.asarray(value)[:, :size]
    padded = resized(c, (int(np.sqrt(size)) + 1) ** 2)
    return jnp.sum(value * padded[..., index], axis=-1)


def _gradient_coefficients(grid: SphereGrid, c: Array) -> Array:
    """Cartesian components of ∇f as harmonic series one degree higher: (field, mode) → (field, 3, mode)."""
    degree = int(np.sqrt(c.shape[-1])) - 1
    size = (min(degree + 1, grid.degree + HEADROOM) + 1) ** 2
    l = sphere_tables.degrees_and_orders(degree)[0]
    return _gather(grid.up_index, grid.up_value, -l * c, size) + _gather(
        grid.down_index, grid.down_value, (l + 1) * c, size
    )


def _harmonic_angles(points: Array, count: int) -> tuple[Array, Array]:
    """e^{ikθ} and e^{ikφ}, k < count, of unit vectors: (count, cos|sin, point) each.

    At a pole φ = 0, which no value there feels. A scan over k compiles in a fraction of the time that powers by
    doubling take, and runs as fast.
    """
    x, y, z = points[:, 0], points[:, 1], points[:, 2]
    sine = jnp.sqrt(x * x + y * y)
    off_pole = sine > 0
    safe = jnp.where(off_pole, sine, 1.0)
    real = jnp.stack([z, jnp.where(off_pole, x / safe, 1.0)])
    imaginary = jnp.stack([sine, jnp.where(off_pole, y / safe, 0.0)])

    def next_power(power: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        c, s = power
        return (c * real - s * imaginary, c * imaginary + s * real), jnp.stack([c, s], axis=1)

    one = (jnp.ones_like(real), jnp.zeros_like(real))
    _, powers = jax.lax.scan(next_power, one, None, length=count)  # (count, θ|φ, cos|sin, point)
    return powers[:, 0], powers[:, 1]


@jax.custom_jvp
def _evaluate(grid: SphereGrid, c: Array, points: Array) -> Array:
    """(field, mode), (point, 3) → (field, point) for any degree ≤ L + 2."""
    fields, count = c.shape[0], grid.degree + HEADROOM + 1
    by_latitude = _by_latitude(grid, c)  # (order, 2, field, latitude)
    scale = jnp.where(np.arange(count) == 0, 1.0, jnp.sqrt(2.0))[:, None, None, None]
    series = [
        jnp.einsum("ki,mtfi->kftm", grid.trigonometric[parity], (scale * by_latitude)[parity::2]).reshape(count, -1)
        for parity in range(2)
    ]

    def chunk(points: Array) -> Array:
        colatitude, longitude = _harmonic_angles(points, count)
        total = jnp.zeros((fields, points.shape[0]))
        for parity in range(2):
            orders = (series[parity].T @ colatitude[:, parity]).reshape(fields, 2, -1, points.shape[0])
            # A sum of products, not an einsum, which XLA would turn into one small product a point.
            total += jnp.sum(orders * jnp.moveaxis(longitude[parity::2], 1, 0), axis=(1, 2))
        return total

    stacked = chunked(chunk, (points,))
    return jnp.moveaxis(stacked, 0, 1).reshape(fields, -1)[:, : points.shape[0]]


@_evaluate.defjvp
def _evaluate_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    grid, c, points = primals
    _, c_dot, points_dot = tangents
    slopes = _gradient_coefficients(grid, c)
    gradient = _evaluate(grid, slopes.reshape(-1, slopes.shape[-1]), points).reshape(c.shape[0], 3, -1)
    along = jnp.einsum("fcn,nc->fn", gradient, points_dot)
    return _evaluate(grid, c, points), _evaluate(grid, c_dot, points) + along


@jax.custom_jvp
def _moments(grid: SphereGrid, points: Array, weights: Array) -> Array:
    """(point, 3), (field, point) → (field, mode) up to degree L + 2."""
    fields, count = weights.shape[0], grid.degree + HEADROOM + 1

    def chunk(points: Array, weights: Array) -> tuple[Array, Array]:
        colatitude, longitude = _harmonic_angles(points, count)
        sums = []
        for parity in range(2):
            weighted = weights.T[:, None, None] * jnp.moveaxis(longitude[parity::2], 1, 0)  # (field, 2, order, point)
            flat = weighted.reshape(-1, points.shape[0])
            sums.append((colatitude[:, parity] @ flat.T).reshape(count, fields, 2, -1))
        return sums[0], sums[1]

    even, odd = (part.sum(axis=0) for part in chunked(chunk, (points, weights.T)))
    by_latitude = jnp.zeros((count, 2, fields, grid.latitudes))
    for parity, part in ((0, even), (1, odd)):
        transposed = jnp.einsum("ki,kftm->mtfi", grid.trigonometric[parity], part)
        by_latitude = by_latitude.at[parity::2].set(transposed)
    scale = jnp.where(np.arange(count) == 0, 1.0, jnp.sqrt(2.0))[:, None, None, None]
    return _by_latitude_transposed(grid, scale * by_latitude)


@_moments.defjvp
def _moments_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    grid, points, weights = primals
    _, points_dot, weights_dot = tangents
    fields = weights.shape[0]
    moved = _moments(grid, points, (weights[:, None] * points_dot.T).reshape(fields * 3, -1))
    basis = jax.linear_transpose(functools.partial(_gradient_coefficients, grid), _like(moved, grid))
    (change,) = basis(resized(moved.reshape(fields, 3, -1), (grid.degree + HEADROOM + 1) ** 2))
    change = resized(change, moved.shape[-1]) + _moments(grid, points, weights_dot)
    return _moments(grid, points, weights), change


def _like(moved: Array, grid: SphereGrid) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((moved.shape[0] // 3, (grid.degree + HEADROOM) ** 2), moved.dtype)
