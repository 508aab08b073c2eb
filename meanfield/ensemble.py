"""An ensemble of weighted tokens: drawn at random, or laid on a quadrature and carried along characteristics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from .attention import Moments, Tokens
from .precision import float64
from .pytree import pytree, static


@pytree
class Ensemble:
    """N tokens x = rθ with weights of sum 1: x (..., token, axis), weights (token,); leading axes are independent trials.

    grid: the grid of the moments through which tokens see each other, or None for the direct sum.
    coarser: weights (token,) of a coarser rule embedded in the same nodes, or None; it prices the quadrature.
    sampled: whether the tokens were drawn at random (its mean cosine then runs over pairs of distinct tokens).
    """

    x: Any
    weights: Any
    grid: Any = None
    coarser: Any = None
    sampled: bool = static(default=False)

    name: ClassVar[str] = "ensemble"
    needed: ClassVar[tuple[str, ...]] = ("ensemble/direction", "ensemble/radius", "ensemble/weight")
    holds_radii: ClassVar[bool] = True

    @property
    def moving(self) -> Array:
        """The array that time advances: the tokens."""
        return self.x

    def moved(self, x: Any) -> Ensemble:
        """The same ensemble with other tokens."""
        return Ensemble(x, self.weights, self.grid, self.coarser, self.sampled)

    def framed(self, frame: Mapping[str, Any]) -> Ensemble:
        """The same ensemble with the named arrays of a frame."""
        return self.moved(frame["ensemble/radius"][..., None] * frame["ensemble/direction"])

    @classmethod
    def from_arrays(
        cls, space: Any, frame: Mapping[str, Any], fixed: Mapping[str, Any], moment_grid: Callable[[int], Any]
    ) -> Ensemble:
        """The ensemble that the named arrays of a file describe; one without an embedded coarser rule was sampled."""
        weights, coarser = fixed["ensemble/weight"], fixed.get("ensemble/coarser_weight")
        empty = cls(frame["ensemble/direction"], weights, moment_grid(len(weights)), coarser, sampled=coarser is None)
        return empty.framed(frame)

    def settled(self, previous: Ensemble) -> Ensemble:
        """Tokens brought back to their previous radii, which a step keeps only to its tolerance."""
        return self.moved(self.x * (previous.radius / self.radius)[..., None])

    @property
    def radius(self) -> Array:
        """R = ‖x‖: (..., token)."""
        # Written for NumPy arrays too: outside a computation with x64 on, jnp would round them to float32.
        return (self.x**2).sum(axis=-1) ** 0.5

    @property
    def directions(self) -> Array:
        """θ = x/‖x‖: (..., token, axis)."""
        return self.x / self.radius[..., None]

    @property
    def points(self) -> Array | None:
        """Where the field is needed: at the tokens, which is what None says of a measure seen token by token."""
        return None if self.grid is None else self.directions

    def source(self) -> Moments | Tokens:
        """What attention sees."""
        if self.grid is None:
            return Tokens(self.directions, self.weights)
        return Moments(self.grid, self.grid.moments(self.directions, self.weights))

    def transport(self, push: Array, restores: bool) -> Array:
        """dx/dt = p, or r P_θ p where the norm is restored. (..., token, axis)."""
        if not restores:
            return push
        theta = self.directions
        return self.radius[..., None] * (push - jnp.sum(theta * push, axis=-1, keepdims=True) * theta)

    def layer(self, push: Array, step: Array, restores: bool) -> Array:
        """The tokens after one layer of the network: x + ηp, or r N(θ + ηp) where the norm is restored (2510.22026)."""
        if not restores:
            return self.x + step * push
        moved = self.directions + step * push
        length = jnp.sqrt(jnp.sum(moved**2, axis=-1, keepdims=True))
        return self.radius[..., None] * moved / length

    def error_norm(self, error: Array, rtol: Array, atol: Array) -> Array:
        """Root mean square over the measure of ‖error‖/(atol + rtol r), the worst of the trials."""
        scale = atol + rtol * self.radius
        square = jnp.sum(error**2, axis=-1) / scale**2
        # quadrature weights of a density carry its sign, which may be negative where it is next to nothing
        return jnp.sqrt(jnp.max(jnp.sum(jnp.abs(jnp.asarray(self.weights)) * square, axis=-1)))

    @float64
    def resolution(self) -> Array:
        """Not a notion of an ensemble; NaN for each trial."""
        return jnp.full(np.shape(self.x)[:-2], np.nan)

    @float64
    def quadrature_error(self) -> Array:
        """|∫θdμ − ∫θdμ_coarser| with the embedded coarser rule; NaN where there is none."""
        if self.coarser is None:
            return jnp.full(np.shape(self.x)[:-2], np.nan)
        difference = self._mean(self.weights - self.coarser)
        return jnp.sqrt(jnp.sum(difference**2, axis=-1))

    @float64
    def mean_direction(self) -> Array:
        """∫θ dμ: (..., axis)."""
        return self._mean(self.weights)

    def _mean(self, weights: Any) -> Array:
        """Σ w θ: (..., axis); rings are seen through moments, so a direct sum is never one over rings."""
        mean = jnp.einsum("...nc,n->...c", self.directions, jnp.asarray(weights))
        return mean if self.grid is None else self.grid.space.mean_part(mean)

    @float64
    def mean_cosine(self, order_parameter: Array) -> Array:
        """|∫θdμ|², or for sampled tokens the mean over pairs of distinct ones: (|∫θdμ|² − Σw²)/(1 − Σw²)."""
        if not self.sampled:
            return order_parameter**2
        squares = jnp.asarray(self.weights) ** 2
        # the cosine of a token with itself: 1, or for a ring the mean over pairs of its directions
        own = self.directions if self.grid is None else self.grid.space.mean_part(self.directions)
        return (order_parameter**2 - jnp.sum(squares * jnp.sum(own**2, axis=-1), axis=-1)) / (1 - jnp.sum(squares))

    @float64
    def mass(self) -> Array:
        """The sum of the weights."""
        return jnp.full(np.shape(self.x)[:-2], jnp.sum(jnp.asarray(self.weights)))

    @float64
    def radii(self) -> tuple[Array, Array]:
        """Mean and standard deviation of the radius under the weights."""
        mean = jnp.sum(self.weights * self.radius, axis=-1)
        variance = jnp.sum(self.weights * (self.radius - mean[..., None]) ** 2, axis=-1)
        return mean, jnp.sqrt(variance)

    @float64
    def min_density(self) -> Array:
        """Not known to an ensemble; NaN for each trial."""
        return jnp.full(np.shape(self.x)[:-2], np.nan)

    def arrays(self) -> dict[str, tuple[tuple[str, ...], Any, str]]:
        """Named arrays of a frame: name → (dimensions, value, long name)."""
        trial = ("trial",) * (np.ndim(self.x) - 2)
        return {
            "ensemble/direction": ((*trial, "token", "axis"), self.directions, "directions of the tokens"),
            "ensemble/radius": ((*trial, "token"), self.radius, "radii of the tokens"),
        }

    def fixed_arrays(self) -> dict[str, tuple[tuple[str, ...], Any, str]]:
        """Named arrays that no frame changes."""
        fixed: dict[str, tuple[tuple[str, ...], Any, str]] = {}
        fixed["ensemble/weight"] = (("token",), self.weights, "weights of the tokens, sum 1")
        if self.coarser is not None:
            meaning = "weights of the coarser rule embedded in the same nodes, which prices the quadrature"
            fixed["ensemble/coarser_weight"] = (("token",), self.coarser, meaning)
        return fixed
