"""The model, attention under a normalisation with or without noise, and the one right-hand side."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array

from . import schedule
from .attention import Attention, Field
from .noise import Noise
from .normalization import PostLN
from .pytree import pytree


@pytree
class Model:
    """Attention under a normalisation scheme, with noise if any.

    Continuum: ∂_tμ + div_θ(μ P_θA/s) + ∂_r(μ dr/dt) = κ⁻¹Δ_θμ (2510.22026; without noise the right side is 0). Every state,
    density or ensemble, moves by `rate`.
    """

    attention: Attention
    normalization: Any = PostLN()
    noise: Noise | None = None

    @property
    def restores(self) -> bool:
        """Whether radii stay."""
        return self.normalization.restores

    @property
    def dissipates(self) -> bool:
        """Whether the interaction energy is known to grow along the exact flow."""
        return self.attention.is_gradient and self.noise is None

    def field(self, state: Any, t: Array) -> Field:
        """The attention field where the state needs it."""
        return self.attention(t, state.source(), state.points)

    def push(self, state: Any, t: Array, field: Field) -> Array:
        """The scheme's push at the state's points: (..., point, axis)."""
        return self.normalization.push(jnp.asarray(state.directions), field.vector, t)

    def drift(self, state: Any, t: Array) -> Array:
        """d(moving)/dt without noise, for one branch of the scheme."""
        return state.transport(self.push(state, t, self.field(state, t)), self.restores)

    def rate(self, state: Any, t: Array) -> Array:
        """d(moving)/dt: the right-hand side, for one branch of the scheme. With noise, of a state that has harmonics."""
        drift = self.drift(state, t)
        return drift if self.noise is None else drift + state.diffusion(self.noise.kappa) * state.moving

    def segments(self) -> list[tuple[Any, Model]]:
        """(depth at which the segment ends, model of that segment), in order of depth; the last end is infinite."""
        ends = (*self.normalization.breaks(), jnp.inf)
        return [
            (end, Model(self.attention, branch, self.noise))
            for end, branch in zip(ends, self.normalization.branches(), strict=True)
        ]

    def next_break(self, t: Array) -> Array:
        """The next depth after t, within a segment, on which a step must end: a knot of a schedule, the end of a layer."""
        knot = schedule.next_knot((self.attention, self.normalization), t)
        return knot if self.attention.weights is None else jnp.minimum(knot, self.attention.weights.next_break(t))

    def at_depth(self, state: Any, t: Array) -> Model:
        """The model for a step that begins at depth t and ends by the next break: random matrices drawn, schedules linear."""
        width, trials = _widths(state)
        drawn = Model(self.attention.at_depth(t, width, trials), self.normalization, self.noise)
        return schedule.within_step(drawn, t)

    def of_layers(self, step: float) -> Model:
        """The model of a network whose layers have step η: a draw of random matrices lasts one layer."""
        weights = self.attention.weights
        if weights is None:
            return self
        attention = dataclasses.replace(self.attention, weights=dataclasses.replace(weights, interval=step))
        return Model(attention, self.normalization, self.noise)


def _widths(state: Any) -> tuple[int, int | None]:
    """The length of a token vector, and the number of trials where there is an axis of them."""
    shape = jnp.shape(state.directions)
    return shape[-1], shape[0] if len(shape) == 3 else None
