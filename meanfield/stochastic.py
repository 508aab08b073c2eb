"""Tokens with noise: fixed steps in depth, in which directions diffuse and tokens drift by turns.

dθ = P_θA/s dt + √(2/κ) P_θ∘dW in Stratonovich's sense, dr/dt as without noise: noise turns directions and leaves radii. A
step is symmetric (Strang): noise for h/2, drift for h, noise for h/2. Noise goes along great circles, by an arc whose
mean cosine is that of Brownian motion, e^{−(d−1)δ/κ} in a duration δ of any size; drift is a classical Runge–Kutta step.

Weak order 2. Strong order 1 on the circle, where the noise is one number a token; on other spheres ½, as projected noise
does not commute and no scheme that sees only increments of W does better (Clark, Cameron, Lecture Notes in Control and
Information Sciences 25, 1980).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .integrate import COMPLETE, NONFINITE, Limits, Progress, judge
from .keys import require
from .model import Model
from .observables import Watch, watch
from .runge_kutta import unseen

# Sets the draws of noise apart from those of random heads of the same seed.
NOISE = 0x6E6F6973
# The classical method of order four: where each stage stands, from the stage before it, and its weight.
C, B = np.array([0.0, 0.5, 0.5, 1.0]), np.array([1.0, 2.0, 2.0, 1.0]) / 6
# Terms of the mean cosine of an arc, and Newton's steps to where it is as wished: round-off for arguments up to 1.
TERMS, NEWTON_STEPS = 24, 6
# A step this close (in steps) to where it must end, ends there.
SLACK = 1e-9


class Walk(NamedTuple):
    """How noise is drawn and how long a step is at most: traced, so that others compile nothing."""

    seed: Any
    step: Any


def refuse_step(step: float | None, kappa: float, dimension: int) -> None:
    """Raise InputError unless a step is short enough for noise of this strength: (d−1)h/κ ≤ 1."""
    largest = kappa / (dimension - 1)
    allowed = f"a number above 0 and at most κ/(d−1) = {largest:.6g}: tokens with noise move by fixed steps"
    require(step is not None and 0 < step <= largest, "step", step, allowed)


def arc_square(variance: Array, dimension: int) -> Array:
    """The c for which arcs √c·|g|, g normal in d−1 dimensions of variance v each, have mean cosine e^{−(d−1)v/2}.

    c = 1 − (d−2)v/6 + …, which gives the moments of Brownian motion on the sphere up to terms of order v³. 1 on the circle.
    """
    m = dimension - 1
    if m == 1:
        return jnp.ones_like(variance)
    # E cos(a χ_m) = Σ (−2a²)^k (m/2)_k/(2k)!, in powers of u = m a²
    terms = [1.0]
    for k in range(TERMS - 1):
        terms.append(-terms[-1] * (m + 2 * k) / m / ((2 * k + 1) * (2 * k + 2)))
    series, slopes = jnp.asarray(terms), jnp.asarray(terms[1:]) * np.arange(1, TERMS)
    wished = jnp.exp(-m * variance / 2)

    def newton(_: int, u: Array) -> Array:
        return u - (jnp.polyval(series[::-1], u) - wished) / jnp.polyval(slopes[::-1], u)

    first = m * variance * (1 - (m - 1) * variance / 6)
    return jax.lax.fori_loop(0, NEWTON_STEPS, newton, first) / (m * variance)


def turned(x: Array, increments: Array, kappa: Array, duration: Array) -> Array:
    """Tokens after noise alone: x (..., token, axis), increments of W over the duration, (..., token, axis), or one
    number a token on the circle. Along the great circle towards √(2/κ) P_θ ΔW; radii stay.
    """
    dimension = x.shape[-1]
    radius = jnp.sqrt(jnp.sum(x**2, axis=-1, keepdims=True))
    theta = x / radius
    if dimension == 2:
        tangent = increments * jnp.stack([-theta[..., 1], theta[..., 0]], axis=-1)
    else:
        tangent = increments - jnp.sum(theta * increments, axis=-1, keepdims=True) * theta
    scale = jnp.sqrt(2 / kappa * arc_square(2 * duration / kappa, dimension))
    arc = scale * jnp.sqrt(jnp.sum(tangent**2, axis=-1, keepdims=True))
    return radius * (jnp.cos(arc) * theta + jnp.sinc(arc / math.pi) * scale * tangent)


def increments(walk: Walk, number: Array, shape: tuple[int, ...], h: Array) -> Array:
    """Increments of W over the halves of step `number`: (half, ..., token, axis), or one number a token on the circle."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(walk.seed), NOISE), number)
    return jnp.sqrt(h / 2) * jax.random.normal(key, (2, *shape[:-1], 1 if shape[-1] == 2 else shape[-1]))


def step(
    model: Model, state: Any, t: Array, h: Array, noise: Array, marks: tuple[Any, ...] = ()
) -> tuple[Array, Watch]:
    """The tokens after one step of size h from depth t, and what was watched where the drift began.

    noise: increments of W over both halves, as `increments` gives them.
    """
    kappa = model.noise.kappa  # type: ignore[union-attr]
    begun = state.moved(turned(state.moving, noise[0], kappa, h / 2))

    def stage(i: Array, carry: tuple[Array, Array, Watch]) -> tuple[Array, Array, Watch]:
        rate, moving, seen = carry
        inner, depth = begun.moved(begun.moving + h * jnp.asarray(C)[i] * rate), t + jnp.asarray(C)[i] * h
        field = model.field(inner, depth)
        now = watch(model.attention, inner, depth, field, marks)
        rate = inner.transport(model.push(inner, depth, field), model.restores)
        seen = jax.tree.map(lambda new, old: jnp.where(i == 0, new, old), now, seen)
        return rate, moving + h * jnp.asarray(B)[i] * rate, seen

    nothing = (jnp.zeros_like(begun.moving), begun.moving, unseen(model, begun, t, marks))
    _, moving, seen = jax.lax.fori_loop(0, len(C), stage, nothing)
    drifted = begun.moved(moving)
    drifted = drifted.settled(state) if model.restores else drifted
    return turned(drifted.moving, noise[1], kappa, h / 2), seen


def advance(
    model: Model,
    template: Any,
    progress: Progress,
    end: Array,
    walk: Walk,
    limits: Limits,
    marks: tuple[Any, ...] = (),
) -> Progress:
    """Carry a run on to depth `end` exactly under one branch of the scheme, by equal steps no longer than the walk's.

    Steps end on the knots of schedules and the ends of random layers. Step k of a run draws from the seed and k alone, and
    `progress.accepted` counts them, so that a frame is all that the next one needs.
    """

    def unfinished(now: Progress) -> Array:
        return (now.t < end) & (now.status == COMPLETE)

    def body(now: Progress) -> Progress:
        state = template.moved(now.moving)
        stop = jnp.minimum(end, model.next_break(now.t))
        left = jnp.maximum(jnp.ceil((stop - now.t) / walk.step - SLACK), 1.0)
        h = (stop - now.t) / left
        noise = increments(walk, now.accepted, now.moving.shape, h)
        new, seen = step(model.at_depth(state, now.t), state, now.t, h, noise, marks)
        judged = judge(now, seen, limits)
        finite = jnp.all(jnp.isfinite(new))
        accept = (judged.status == COMPLETE) & finite
        return judged._replace(
            moving=jnp.where(accept, new, now.moving),
            t=jnp.where(accept, jnp.where(left <= 1, stop, now.t + h), now.t),
            step=h,
            status=jnp.where((judged.status == COMPLETE) & ~finite, NONFINITE, judged.status),
            accepted=now.accepted + accept,
        )

    return jax.lax.while_loop(unfinished, body, progress)
