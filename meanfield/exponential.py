"""One step of an exponential Runge–Kutta method, for densities with noise: diffusion exactly, drift explicitly.

dc/dt = Lc + N(c, t) with L = −Λ/κ diagonal. The step size is bounded by what the drift does, not by the largest
eigenvalue, and a steady state Lc + N = 0 is a fixed point of every stage.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .model import Model
from .observables import Watch, watch
from .runge_kutta import Step, unseen

# Five stages of order four in the stiff sense too (Hochbruck, Ostermann, SIAM J. Numer. Anal. 43, 2005, eq. 5.19), and the
# rate at the new state.
STAGES = 6
C = np.array([0.0, 0.5, 0.5, 1.0, 0.5, 1.0])
ORDER = 4
# Below this |z| the φ functions are summed as series; 20 terms reach round-off.
SERIES_BELOW, SERIES_TERMS = 1.0, 20


def phi(z: Array) -> tuple[Array, Array, Array]:
    """φ_1, φ_2, φ_3 at z ≤ 0: φ_1 = (e^z − 1)/z, φ_{k+1} = (φ_k − 1/k!)/z, to round-off everywhere."""
    z = jnp.asarray(z, dtype=float)
    small = jnp.abs(z) < SERIES_BELOW
    near, far = jnp.where(small, z, 0.0), jnp.where(small, -SERIES_BELOW, z)
    third = jnp.zeros_like(z)
    for n in range(SERIES_TERMS, -1, -1):  # φ_3 = Σ z^n/(n+3)! = (1 + z/4 (1 + z/5 (…)))/6
        third = 1 + near / (n + 4) * third
    series = third / 6
    series_2 = 0.5 + near * series
    first = jnp.expm1(far) / far
    second = (first - 1) / far
    return (
        jnp.where(small, 1 + near * series_2, first),
        jnp.where(small, series_2, second),
        jnp.where(small, series, (second - 0.5) / far),
    )


def tableau(z: Array) -> tuple[Array, Array]:
    """Stage weights A (stage, stage, mode) and decay e^{c_i z} (stage, mode) for z = hL (mode,).

    Stage 6 is the step itself, so that its rate is at hand.
    """
    one, two, three = phi(z)
    one_half, two_half, three_half = phi(z / 2)
    a52 = two_half / 2 - three + two / 4 - three_half / 2
    a54 = two_half / 4 - a52
    zero = jnp.zeros_like(one)
    rows = [
        [zero] * 6,
        [one_half / 2, zero, zero, zero, zero, zero],
        [one_half / 2 - two_half, two_half, zero, zero, zero, zero],
        [one - 2 * two, two, two, zero, zero, zero],
        [one_half / 2 - 2 * a52 - a54, a52, a52, a54, zero, zero],
        [one - 3 * two + 4 * three, zero, zero, 4 * three - two, 4 * two - 8 * three, zero],
    ]
    return jnp.stack([jnp.stack(row) for row in rows]), jnp.exp(jnp.asarray(C)[:, None] * z)


def step(model: Model, state: Any, t: Array, h: Array, rtol: Array, atol: Array, marks: tuple[Any, ...] = ()) -> Step:
    """One step of size h from depth t. The state has harmonics, on which the noise of the model acts diagonally.

    The error is estimated by what the rate at the new state, in place of the fourth stage's, would change: of third order.
    """
    z = h * state.diffusion(model.noise.kappa)  # type: ignore[union-attr]
    A, decay = tableau(z)
    start = jnp.asarray(state.moving)

    def stage(i: Array, carry: tuple[Array, Array, Watch]) -> tuple[Array, Array, Watch]:
        rates, _, seen = carry
        moving = decay[i] * start + h * jnp.einsum("jk,jk->k", A[i], rates)
        inner, depth = state.moved(moving), t + jnp.asarray(C)[i] * h
        field = model.field(inner, depth)
        now = watch(model.attention, inner, depth, field, marks)
        rate = inner.transport(model.push(inner, depth, field), model.restores)
        return rates.at[i].set(rate), moving, jax.tree.map(lambda new, old: jnp.where(i == 0, new, old), now, seen)

    nothing = (jnp.zeros((STAGES, *start.shape)), start, unseen(model, state, t, marks))
    rates, new, seen = jax.lax.fori_loop(0, STAGES, stage, nothing)
    error = state.error_norm(h * A[5, 3] * (rates[3] - rates[5]), rtol, atol)
    return Step(new, error, seen)
