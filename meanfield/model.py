"""The model, attention under a normalisation, and the one right-hand side."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from .attention import Attention, Field
from .normalization import PostLN
from .pytree import pytree


@pytree
class Model:
    """Attention under a normalisation scheme.

    Continuum: ∂_tμ + div_θ(μ P_θA/s) + ∂_r(μ dr/dt) = 0 (2510.22026). Every state, density or ensemble, moves by `rate`.
    """

    attention: Attention
    normalization: Any = PostLN()

    @property
    def restores(self) -> bool:
        """Whether radii stay."""
        return self.normalization.restores

    def field(self, state: Any, t: Array) -> Field:
        """The attention field where the state needs it."""
        return self.attention(t, state.source(), state.points)

    def push(self, state: Any, t: Array, field: Field) -> Array:
        """The scheme's push at the state's points: (..., point, axis)."""
        return self.normalization.push(jnp.asarray(state.directions), field.vector, t)

    def rate(self, state: Any, t: Array) -> Array:
        """d(moving)/dt: the right-hand side, for one branch of the scheme."""
        return state.transport(self.push(state, t, self.field(state, t)), self.restores)

    def segments(self) -> list[tuple[Any, Model]]:
        """(depth at which the segment ends, model of that segment), in order of depth; the last end is infinite."""
        ends = (*self.normalization.breaks(), jnp.inf)
        return [
            (end, Model(self.attention, branch))
            for end, branch in zip(ends, self.normalization.branches(), strict=True)
        ]
