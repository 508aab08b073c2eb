"""One step of Dormand–Prince 8(5,3): explicit, for every state without noise."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.integrate import DOP853

from .model import Model
from .observables import Watch, watch

STAGES = 12
# Dormand, Prince; tableau as published with scipy.integrate.DOP853 (Hairer, Nørsett, Wanner, Solving ODEs I, II.10).
A = np.asarray(DOP853.A[:STAGES, :STAGES])
B = np.asarray(DOP853.B)
C = np.asarray(DOP853.C[:STAGES])
ERROR5, ERROR3 = np.asarray(DOP853.E5[:STAGES]), np.asarray(DOP853.E3[:STAGES])
# The local error estimate falls like h to this power.
ORDER = 8


class Step(NamedTuple):
    """What a step gives: the new moving array, the local error in units of the tolerance, what was watched at its start."""

    moving: Any
    error: Array
    seen: Watch


def step(model: Model, state: Any, t: Array, h: Array, rtol: Array, atol: Array, marks: tuple[Any, ...] = ()) -> Step:
    """One step of size h from depth t, under one branch of the scheme.

    The right-hand side stands here once, inside a loop over stages, so that it is compiled once.
    """

    def stage(i: Array, carry: tuple[Array, Watch]) -> tuple[Array, Watch]:
        stages, seen = carry
        inner = state.moved(state.moving + h * jnp.tensordot(jnp.asarray(A)[i], stages, axes=1))
        depth = t + jnp.asarray(C)[i] * h
        field = model.field(inner, depth)
        now = watch(model.attention, inner, depth, field, marks)
        rate = inner.transport(model.push(inner, depth, field), model.restores)
        return stages.at[i].set(rate), jax.tree.map(lambda new, old: jnp.where(i == 0, new, old), now, seen)

    nothing = (jnp.zeros((STAGES, *state.moving.shape)), unseen(model, state, t, marks))
    stages, seen = jax.lax.fori_loop(0, STAGES, stage, nothing)
    new = state.moved(state.moving + h * jnp.tensordot(jnp.asarray(B), stages, axes=1))
    new = new.settled(state) if model.restores else new
    fifth = state.error_norm(jnp.tensordot(jnp.asarray(ERROR5), stages, axes=1), rtol, atol)
    third = state.error_norm(jnp.tensordot(jnp.asarray(ERROR3), stages, axes=1), rtol, atol)
    denominator = jnp.sqrt(fifth**2 + 0.01 * third**2)
    return Step(new.moving, h * fifth**2 / jnp.where(denominator > 0, denominator, 1.0), seen)


def unseen(model: Model, state: Any, t: Array, marks: tuple[Any, ...]) -> Watch:
    """A Watch of zeros in the shapes that this state gives."""
    shapes = jax.eval_shape(lambda: watch(model.attention, state, t, model.field(state, t), marks))
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
