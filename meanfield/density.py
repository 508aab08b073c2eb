"""A smooth density of directions, held as coefficients of the orthonormal harmonics of a grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from .attention import Moments
from .precision import float64
from .pytree import pytree


@pytree
class Density:
    """ρ = Σ c_k Y_k with respect to the uniform probability measure: coefficients (mode,) on `grid`; c_0 is the mass.

    It knows directions only: schemes that restore the norm move it, schemes whose radius moves do not.
    moment_grid: the grid on whose nodes attention heads see the density, of the degree that their kernel feels; its own
    grid when None, and wherever Q = K = V = I.
    """

    grid: Any
    coefficients: Any
    moment_grid: Any = None

    name: ClassVar[str] = "density"
    needed: ClassVar[tuple[str, ...]] = ("density/coefficients", "density/degree")
    holds_radii: ClassVar[bool] = False

    @property
    def moving(self) -> Array:
        """The array that time advances: the coefficients."""
        return self.coefficients

    def moved(self, coefficients: Any) -> Density:
        """The same density with other coefficients."""
        return Density(self.grid, coefficients, self.moment_grid)

    def framed(self, frame: Mapping[str, Any]) -> Density:
        """The same density with the named arrays of a frame."""
        return self.moved(frame["density/coefficients"])

    @classmethod
    def from_arrays(
        cls, space: Any, frame: Mapping[str, Any], fixed: Mapping[str, Any], moment_grid: Callable[[int], Any]
    ) -> Density:
        """The density that the named arrays of a file describe."""
        grid = space.grid(int(fixed["density/degree"].max()))
        return cls(grid, frame["density/coefficients"], moment_grid(len(grid.weights)))

    def settled(self, previous: Density) -> Density:
        """Nothing is to be restored after a step."""
        return self

    def source(self) -> Moments:
        """What attention sees."""
        if self.moment_grid is None:
            return Moments(self.grid, self.coefficients)
        return Moments(self.moment_grid, self.grid.resized(self.coefficients, self.moment_grid.degree))

    @property
    def points(self) -> Any:
        """The field is needed at the grid's own nodes: None where attention looks from there."""
        return None if self.moment_grid is None else self.grid.nodes

    @property
    def directions(self) -> Any:
        """The grid's nodes: (node, axis)."""
        return self.grid.nodes

    @property
    def weights(self) -> Any:
        """ρ times the quadrature weights: what integrates functions of direction over the measure, (node,)."""
        return self.grid.synthesize(self.coefficients) * self.grid.weights

    def transport(self, push: Array, restores: bool) -> Array:
        """dc/dt = −(div ρv)_k with v = P_θ p. (node, axis) → (mode,). The scheme must restore the norm."""
        if not restores:
            raise TypeError("a Density has no radii, so it cannot follow a scheme whose radius moves")
        theta = self.directions
        velocity = push - jnp.sum(theta * push, axis=-1, keepdims=True) * theta
        return -self.grid.divergence(self.grid.synthesize(self.coefficients)[..., None] * velocity)

    def diffusion(self, kappa: Any) -> Array:
        """Eigenvalues −Λ_l/κ of κ⁻¹Δ on the coefficients: (mode,)."""
        return jnp.asarray(self.grid.laplacian) / kappa

    def error_norm(self, error: Array, rtol: Array, atol: Array) -> Array:
        """‖error‖ / (atol + rtol ‖ρ‖) in L²(σ), the same at every degree by Parseval's identity."""
        return jnp.sqrt(jnp.sum(error**2)) / (atol + rtol * jnp.sqrt(jnp.sum(self.coefficients**2)))

    @float64
    def resolution(self) -> Array:
        """Share of the spectrum in the top tenth of degrees: the L² norm there over that of all degrees ≥ 1."""
        degrees = self.grid.degrees
        top = degrees > 0.9 * self.grid.degree
        square = self.coefficients**2
        return jnp.sqrt(jnp.sum(square * top) / jnp.maximum(jnp.sum(square * (degrees > 0)), 1e-300))

    @float64
    def quadrature_error(self) -> Array:
        """Not a notion of a density; NaN."""
        return jnp.asarray(np.nan)

    @float64
    def mean_direction(self) -> Array:
        """∫θ dμ from the moments of degree 1: (axis,)."""
        return self.grid.space.mean_part(jnp.einsum("nc,n->c", jnp.asarray(self.directions), self.weights))

    @float64
    def mean_cosine(self, order_parameter: Array) -> Array:
        """|∫θdμ|², the mean cosine of two independent tokens."""
        return order_parameter**2

    @float64
    def mass(self) -> Array:
        """∫ρ dσ, the first coefficient."""
        return self.coefficients[0]

    @float64
    def radii(self) -> tuple[Array, Array]:
        """Mean and standard deviation of the radius: a Density's tokens keep the radius 1."""
        return jnp.asarray(1.0), jnp.asarray(0.0)

    @float64
    def min_density(self) -> Array:
        """The least nodal value of ρ."""
        return jnp.min(self.grid.synthesize(self.coefficients))

    def arrays(self) -> dict[str, tuple[tuple[str, ...], Any, str]]:
        """Named arrays of a frame: name → (dimensions, value, long name)."""
        meaning = "coefficients of the real harmonics, orthonormal with respect to the uniform probability measure"
        return {"density/coefficients": (("mode",), self.coefficients, meaning)}

    def fixed_arrays(self) -> dict[str, tuple[tuple[str, ...], Any, str]]:
        """Named arrays that no frame changes."""
        orders = "order m: cosine for m >= 0, sine for m < 0"
        return {
            "density/degree": (("mode",), self.grid.degrees, "degree l of the mode"),
            "density/order": (("mode",), self.grid.orders, orders),
        }
