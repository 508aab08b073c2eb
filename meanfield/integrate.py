"""Error-controlled stepping in depth: Dormand–Prince 8(5,3) on any state, judged on every accepted step.

A run is a chain of calls of `advance`, one a frame, each of which ends on its depth exactly. Scheme breaks split a
frame: each segment is integrated with its own branch, so that no stage is evaluated on the wrong side.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.integrate import DOP853

from .keys import require
from .model import Model
from .observables import Watch, watch
from .precision import float64, float64_leaves

STAGES = 12
# Dormand, Prince; tableau as published with scipy.integrate.DOP853 (Hairer, Nørsett, Wanner, Solving ODEs I, II.10).
A = np.asarray(DOP853.A[:STAGES, :STAGES])
B = np.asarray(DOP853.B)
C = np.asarray(DOP853.C[:STAGES])
ERROR5, ERROR3 = np.asarray(DOP853.E5[:STAGES]), np.asarray(DOP853.E3[:STAGES])
ORDER = 8

COMPLETE, UNRESOLVED, UNDERFLOW, NONFINITE, REJECTED, INACCURATE = range(6)
MAX_REJECTED_IN_A_ROW = 60
# Where a run starts; rejections and growth find the right size within a few steps.
FIRST_STEP = 0.05


class Limits(NamedTuple):
    """Numbers that steer and stop a run; traced, so that new ones compile nothing."""

    rtol: Any
    atol: Any
    resolution: Any = 1.0  # the largest share of the spectrum allowed in the top tenth of degrees
    accuracy: Any = 0.0  # the least min Z / max Z at which sums through moments are trusted


class Progress(NamedTuple):
    """Where a run stands: everything that the next call of `advance` needs, and what was seen on the way.

    Only the moving array travels; tables and weights stay outside, where no loop copies them.
    """

    moving: Any
    t: Any
    step: Any  # the step size to try next
    status: Any
    accepted: Any
    rejected: Any
    max_resolution: Any
    min_attention: Any
    attention_ratio: Any  # the least ratio of the smallest to the largest ‖A‖
    energy: Any  # of the last accepted state that was judged, for each trial
    energy_drop: Any  # the largest decrease of the energy from one accepted step to the next


def start(state: Any, t0: Any, step: Any = FIRST_STEP) -> Progress:
    """A run that has not moved yet."""
    zero = jnp.asarray(0)
    depth, step = jnp.asarray(t0, dtype=float), jnp.asarray(step, dtype=float)
    moving, none, infinite = jnp.asarray(state.moving), jnp.asarray(0.0), jnp.asarray(jnp.inf)
    energy = jnp.full(jnp.shape(state.mass()), -jnp.inf)
    return Progress(moving, depth, step, zero, zero, zero, none, infinite, infinite, energy, none)


def advance(model: Model, state: Any, progress: Progress, t1: Any, limits: Limits) -> Progress:
    """Carry a run on to depth t1 exactly, or to where a judgement stops it (`status`). Traceable.

    `state` lends everything that does not move; its own moving array is not looked at.
    """
    t1 = jnp.asarray(t1, dtype=float)
    for end, branch in model.segments():
        progress = advance_segment(branch, state, progress, jnp.minimum(t1, end), limits)
    return progress


class _Loop(NamedTuple):
    progress: Progress
    in_a_row: Array


def _step(model: Model, state: Any, t: Array, h: Array) -> tuple[Any, Array, Watch]:
    """One step: the new state, the stages (stage, ...), and what is watched on `state`.

    The right-hand side stands here once, inside a loop over stages, so that it is compiled once.
    """

    def stage(i: Array, carry: tuple[Array, Watch]) -> tuple[Array, Watch]:
        stages, seen = carry
        inner = state.moved(state.moving + h * jnp.tensordot(jnp.asarray(A)[i], stages, axes=1))
        depth = t + jnp.asarray(C)[i] * h
        field = model.field(inner, depth)
        now = watch(model.attention, inner, depth, field)
        rate = inner.transport(model.push(inner, depth, field), model.restores)
        return stages.at[i].set(rate), jax.tree.map(lambda new, old: jnp.where(i == 0, new, old), now, seen)

    shapes = jax.eval_shape(lambda: watch(model.attention, state, t, model.field(state, t)))
    nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    stages, seen = jax.lax.fori_loop(0, STAGES, stage, (jnp.zeros((STAGES, *state.moving.shape)), nothing))
    new = state.moved(state.moving + h * jnp.tensordot(jnp.asarray(B), stages, axes=1))
    return (new.settled(state) if model.restores else new), stages, seen


def _scaled_error(state: Any, h: Array, stages: Array, limits: Limits) -> Array:
    """The size of the local error in units of the tolerance, from the embedded fifth- and third-order formulas."""
    fifth = state.error_norm(jnp.tensordot(jnp.asarray(ERROR5), stages, axes=1), limits.rtol, limits.atol)
    third = state.error_norm(jnp.tensordot(jnp.asarray(ERROR3), stages, axes=1), limits.rtol, limits.atol)
    denominator = jnp.sqrt(fifth**2 + 0.01 * third**2)
    return h * fifth**2 / jnp.where(denominator > 0, denominator, 1.0)


def advance_segment(model: Model, template: Any, progress: Progress, end: Array, limits: Limits) -> Progress:
    """Integrate one branch of the scheme from progress.t to `end`; nothing to do where end ≤ t.

    Every accepted state is judged where the next step starts from it; the one at `end` by whoever asked for it.
    """

    def unfinished(loop: _Loop) -> Array:
        return (loop.progress.t < end) & (loop.progress.status == COMPLETE)

    def body(loop: _Loop) -> _Loop:
        now = loop.progress
        state = template.moved(now.moving)
        remaining = end - now.t
        last = now.step >= remaining * (1 - 1e-12)
        # Two halves rather than a step and a sliver.
        h = jnp.where(last, remaining, jnp.minimum(now.step, jnp.maximum(remaining / 2, remaining - now.step)))
        new, stages, seen = _step(model, state, now.t, h)
        judged = _judge(now, seen, limits)
        error = _scaled_error(state, h, stages, limits)
        finite = jnp.isfinite(error) & jnp.all(jnp.isfinite(new.moving))
        accept = finite & (error <= 1) & (judged.status == COMPLETE)
        growth = jnp.where(finite, jnp.clip(0.9 * jnp.maximum(error, 1e-12) ** (-1 / ORDER), 0.2, 5.0), 0.2)
        # A step shortened to end on a frame does not shorten the next.
        wished = jnp.maximum(h * growth, jnp.where(h < now.step, now.step, 0.0))
        step = jnp.where(accept, wished, h * jnp.minimum(growth, 0.9))
        t = jnp.where(accept, jnp.where(last, end, now.t + h), now.t)
        in_a_row = jnp.where(accept, 0, loop.in_a_row + 1)
        too_small = step < 1e-14 * jnp.maximum(1.0, jnp.abs(t))
        stuck = ~accept & (judged.status == COMPLETE) & (too_small | (in_a_row >= MAX_REJECTED_IN_A_ROW))
        reason = jnp.where(finite, jnp.where(too_small, UNDERFLOW, REJECTED), NONFINITE)
        moved = judged._replace(
            moving=jnp.where(accept, new.moving, now.moving),
            t=t,
            step=step,
            status=jnp.where(stuck, reason, judged.status),
            accepted=now.accepted + accept,
            rejected=now.rejected + ~accept,
        )
        return _Loop(moved, in_a_row)

    return jax.lax.while_loop(unfinished, body, _Loop(progress, jnp.asarray(0))).progress


def _judge(progress: Progress, seen: Watch, limits: Limits) -> Progress:
    status = progress.status
    status = jnp.where((status == COMPLETE) & (seen.resolution > limits.resolution), UNRESOLVED, status)
    status = jnp.where((status == COMPLETE) & (seen.accuracy < limits.accuracy), INACCURATE, status)
    return progress._replace(
        status=status,
        max_resolution=jnp.fmax(progress.max_resolution, seen.resolution),
        min_attention=jnp.fmin(progress.min_attention, seen.min_attention),
        attention_ratio=jnp.fmin(progress.attention_ratio, seen.attention_ratio),
        energy=seen.energy,
        energy_drop=jnp.fmax(progress.energy_drop, jnp.max(progress.energy - seen.energy)),
    )


@float64
def evolve(model: Model, state: Any, t0: Any, t1: Any, rtol: Any = 1e-8, atol: Any = 1e-10) -> Any:
    """The state at depth t1 from that at t0 ≤ t1: the traceable core, which stops for nothing.

    Traced by jax.jit, jax.vmap and forward differentiation (jax.jvp, jax.jacfwd). InputError for depths that are not
    finite or decrease. Where the integrator cannot go on (non-finite values, step underflow), and where traced depths
    decrease, the moving array comes back as NaN.
    """
    if not any(isinstance(depth, jax.core.Tracer) for depth in (t0, t1)):
        require(bool(np.isfinite(t0)) and bool(np.isfinite(t1)), "t1", (t0, t1), "finite depths t0 and t1")
        require(bool(t0 <= t1), "t1", t1, f"a depth of at least t0 = {t0}: depth only grows")
    return _evolve(*float64_leaves((model, state, t0, t1, rtol, atol)))


@jax.jit
def _evolve(model: Model, state: Any, t0: Array, t1: Array, rtol: Array, atol: Array) -> Any:
    done = advance(model, state, start(state, t0), t1, Limits(rtol, atol, jnp.inf, -jnp.inf))
    arrived = (done.status == COMPLETE) & (done.t >= t1) & (t1 >= t0)
    return state.moved(jnp.where(arrived, done.moving, jnp.nan))
