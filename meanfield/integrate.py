"""Error-controlled stepping in depth on any state, judged on every accepted step; `evolve` and its reverse rule.

A run is a chain of calls of `advance`, one a frame, each of which ends on its depth exactly. Scheme breaks split a
frame: each segment is integrated with its own branch, so that no stage is evaluated on the wrong side. Within a segment
a step ends on every knot of a schedule and on the end of every random layer.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from . import exponential, runge_kutta
from .keys import require
from .model import Model
from .observables import Watch
from .precision import float64, float64_leaves
from .runge_kutta import Step

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
    marks: Any  # of events at the last accepted state that was judged: (event,)
    marked_at: Any  # its depth
    brackets: Any  # depths of the accepted states between which a mark first changed its sign: (event, 2)


def start(state: Any, t0: Any, step: Any = FIRST_STEP, events: int = 0) -> Progress:
    """A run that has not moved yet, and in which so many events may happen."""
    zero = jnp.asarray(0)
    depth, step = jnp.asarray(t0, dtype=float), jnp.asarray(step, dtype=float)
    moving, none, infinite = jnp.asarray(state.moving), jnp.asarray(0.0), jnp.asarray(jnp.inf)
    energy = jnp.full(jnp.shape(state.mass()), -jnp.inf)
    marks, brackets = jnp.full(events, jnp.nan), jnp.full((events, 2), jnp.inf)
    counts = zero, zero, zero
    return Progress(moving, depth, step, *counts, none, infinite, infinite, energy, none, marks, depth, brackets)


def advance(
    model: Model, state: Any, progress: Progress, t1: Any, limits: Limits, marks: tuple[Any, ...] = ()
) -> Progress:
    """Carry a run on to depth t1 exactly, or to where a judgement stops it (`status`). Traceable.

    `state` lends everything that does not move; its own moving array is not looked at.
    """
    t1 = jnp.asarray(t1, dtype=float)
    for end, branch in model.segments():
        progress = advance_segment(branch, state, progress, jnp.minimum(t1, end), limits, marks)
    return progress


class _Loop(NamedTuple):
    progress: Progress
    in_a_row: Array


def _take_step(model: Model, state: Any, t: Array, h: Array, limits: Limits, marks: tuple[Any, ...] = ()) -> Step:
    """One step by the method that suits the model, within one layer of it."""
    method = runge_kutta if model.noise is None else exponential
    return method.step(model.at_depth(state, t), state, t, h, limits.rtol, limits.atol, marks)


def _step_size(model: Model, now: Progress, end: Array) -> tuple[Array, Array, Array]:
    """The size of the next step, the depth that bounds it, and whether the step ends there."""
    stop, step = jnp.minimum(end, model.next_break(now.t)), now.step
    remaining = stop - now.t
    last = step >= remaining * (1 - 1e-12)
    # Two halves rather than a step and a sliver. Derivatives are those of the steps taken: only the length of one that ends
    # on `stop` depends on the parameters.
    chosen = jax.lax.stop_gradient(jnp.minimum(step, jnp.maximum(remaining / 2, remaining - step)))
    return jnp.where(last, remaining, chosen), stop, last


def advance_segment(
    model: Model, template: Any, progress: Progress, end: Array, limits: Limits, marks: tuple[Any, ...] = ()
) -> Progress:
    """Integrate one branch of the scheme from progress.t to `end`; nothing to do where end ≤ t.

    Every accepted state is judged where the next step starts from it; the one at `end` by whoever asked for it.
    """
    loop = _Loop(progress, jnp.asarray(0))
    unfinished = lambda loop: _unfinished(loop, end)  # noqa: E731
    attempt = lambda loop: _attempt(model, template, loop, end, limits, marks)  # noqa: E731
    return jax.lax.while_loop(unfinished, attempt, loop).progress


def _unfinished(loop: _Loop, end: Array) -> Array:
    return (loop.progress.t < end) & (loop.progress.status == COMPLETE)


def _attempt(
    model: Model, template: Any, loop: _Loop, end: Array, limits: Limits, marks: tuple[Any, ...] = ()
) -> _Loop:
    """One step tried: taken where it is accurate, and the size of the next."""
    now = loop.progress
    state = template.moved(now.moving)
    h, stop, last = _step_size(model, now, end)
    new, error, seen = _take_step(model, state, now.t, h, limits, marks)
    judged = judge(now, seen, limits)
    finite = jnp.isfinite(error) & jnp.all(jnp.isfinite(new))
    accept = finite & (error <= 1) & (judged.status == COMPLETE)
    order = runge_kutta.ORDER if model.noise is None else exponential.ORDER
    growth = jnp.where(finite, jnp.clip(0.9 * jnp.maximum(error, 1e-12) ** (-1 / order), 0.2, 5.0), 0.2)
    # A step shortened to end on a frame does not shorten the next.
    wished = jnp.maximum(h * growth, jnp.where(h < now.step, now.step, 0.0))
    size = jnp.where(accept, wished, h * jnp.minimum(growth, 0.9))
    t = jnp.where(accept, jnp.where(last, stop, now.t + h), now.t)
    in_a_row = jnp.where(accept, 0, loop.in_a_row + 1)
    too_small = size < 1e-14 * jnp.maximum(1.0, jnp.abs(t))
    stuck = ~accept & (judged.status == COMPLETE) & (too_small | (in_a_row >= MAX_REJECTED_IN_A_ROW))
    reason = jnp.where(finite, jnp.where(too_small, UNDERFLOW, REJECTED), NONFINITE)
    moved = judged._replace(
        moving=jnp.where(accept, new, now.moving),
        t=t,
        step=size,
        status=jnp.where(stuck, reason, judged.status),
        accepted=now.accepted + accept,
        rejected=now.rejected + ~accept,
    )
    return _Loop(moved, in_a_row)


def judge(progress: Progress, seen: Watch, limits: Limits) -> Progress:
    """What a state that was watched adds to the extremes of a run, and whether it stops the run."""
    status = progress.status
    status = jnp.where((status == COMPLETE) & (seen.resolution > limits.resolution), UNRESOLVED, status)
    status = jnp.where((status == COMPLETE) & (seen.accuracy < limits.accuracy), INACCURATE, status)
    crossed = (progress.marks * seen.marks < 0) | ((seen.marks == 0) & (jnp.abs(progress.marks) > 0))
    new = crossed & jnp.isinf(progress.brackets[:, 0])
    between = jnp.broadcast_to(jnp.stack([progress.marked_at, progress.t]), progress.brackets.shape)
    return progress._replace(
        marks=seen.marks,
        marked_at=progress.t,
        brackets=jnp.where(new[:, None], between, progress.brackets),
        status=status,
        max_resolution=jnp.fmax(progress.max_resolution, seen.resolution),
        min_attention=jnp.fmin(progress.min_attention, seen.min_attention),
        attention_ratio=jnp.fmin(progress.attention_ratio, seen.attention_ratio),
        energy=seen.energy,
        energy_drop=jnp.fmax(progress.energy_drop, jnp.max(progress.energy - seen.energy)),
    )


@float64
def evolve(
    model: Model,
    state: Any,
    t0: Any,
    t1: Any,
    rtol: Any = 1e-8,
    atol: Any = 1e-10,
    *,
    derivative: Literal["reverse", "forward"] = "reverse",
    max_steps: int = 1024,
) -> Any:
    """The state at depth t1 from that at t0 ≤ t1: the traceable core, which stops for nothing.

    Traced by jax.jit and jax.vmap. jax.grad gives the derivative of the steps taken, in β, α, their schedules, heads, τ, κ,
    t0, t1, the moving array and the weights: accepted steps are stored, at most `max_steps` a branch, and replayed
    backwards; beyond, gradients are NaN. Tolerances, grids and the interval of random heads are constants, of gradient 0.
    With derivative = "forward" jax.jvp and jax.jacfwd work instead.
    InputError for depths that are not finite or decrease, tokens with noise, another derivative, and max_steps below 1.
    Where the integrator cannot go on (non-finite values, step underflow), and where traced depths decrease, the moving
    array comes back as NaN.
    """
    if not any(isinstance(depth, jax.core.Tracer) for depth in (t0, t1)):
        require(bool(np.isfinite(t0)) and bool(np.isfinite(t1)), "t1", (t0, t1), "finite depths t0 and t1")
        require(bool(t0 <= t1), "t1", t1, f"a depth of at least t0 = {t0}: depth only grows")
    fine = model.noise is None or hasattr(state, "diffusion")
    require(fine, "noise", "given", "absent for tokens, whose noise is drawn: solve moves them, or stochastic.advance")
    require(derivative in ("reverse", "forward"), "derivative", derivative, '"reverse" or "forward"')
    whole = isinstance(max_steps, int) and not isinstance(max_steps, bool) and max_steps >= 1
    require(whole, "max_steps", max_steps, "an integer of at least 1")
    return _evolve(derivative == "reverse", max_steps, *float64_leaves((model, state, t0, t1, rtol, atol)))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _evolve(
    reverse: bool, max_steps: int, model: Model, state: Any, t0: Array, t1: Array, rtol: Array, atol: Array
) -> Any:
    limits = Limits(rtol, atol, jnp.inf, -jnp.inf)
    t, moving, step = t0, jnp.asarray(state.moving), jnp.asarray(FIRST_STEP)
    for end, branch in model.segments():
        end = jnp.maximum(jnp.minimum(t1, end), t)
        if reverse:
            moving, step = _differentiable_segment(max_steps, branch, state, moving, t, end, step, limits)
        else:
            moving, step = _arrived(_segment(branch, state, moving, t, end, step, limits), end)
        t = end
    return state.moved(jnp.where(t1 >= t0, moving, jnp.nan))


def _segment(
    model: Model, template: Any, moving: Array, t0: Array, end: Array, step: Array, limits: Limits
) -> Progress:
    begun = start(template.moved(moving), t0, step)
    return advance_segment(model, template, begun, end, limits)


def _arrived(done: Progress, end: Array) -> tuple[Array, Array]:
    """The moving array at `end`, NaN where the integrator did not get there, and the next step size."""
    return jnp.where((done.status == COMPLETE) & (done.t >= end), done.moving, jnp.nan), done.step


class _Tape(NamedTuple):
    """Accepted steps: where each began, its size, and how many there were."""

    moving: Array
    t: Array
    h: Array
    length: Array


def _differentiable_segment(
    max_steps: int, model: Model, template: Any, moving: Array, t0: Array, end: Array, step: Array, limits: Limits
) -> tuple[Array, Array]:
    """`_segment` with a reverse rule. Grid tables, integers and what steers the steps are constants to it."""
    leaves, structure = jax.tree_util.tree_flatten_with_path((model, template))
    free = [_is_free(path, leaf) for path, leaf in leaves]
    given = [leaf for _, leaf in leaves]

    def rebuilt(parameters: list[Any], constants: list[Any]) -> tuple[Model, Any]:
        of = {True: iter(parameters), False: iter(constants)}
        return jax.tree.unflatten(structure, [next(of[is_free]) for is_free in free])

    @jax.custom_vjp
    def carried(parameters: Any, constants: Any, moving: Any, t0: Any, end: Any, step: Any, limits: Any) -> Any:
        return _arrived(_segment(*rebuilt(parameters, constants), moving, t0, end, step, limits), end)

    def forward(parameters: Any, constants: Any, moving: Any, t0: Any, end: Any, step: Any, limits: Any) -> Any:
        model, template = rebuilt(parameters, constants)
        begun = start(template.moved(moving), t0, step)
        done, tape = _recorded(model, template, begun, end, limits, max_steps)
        result = _arrived(done, end)
        return result, (parameters, constants, tape, result[0], t0, end, limits)

    def backward(residuals: Any, cotangents: Any) -> Any:
        parameters, constants, tape, final, t0, end, limits = residuals

        def taken(parameters: Any, moving: Any, t: Any, h: Any) -> Any:
            model, template = rebuilt(parameters, constants)
            return _take_step(model, template.moved(moving), t, h, limits).moving

        def speed(moving: Any, t: Any, weight: Any) -> Any:
            model, template = rebuilt(parameters, constants)
            state = template.moved(moving)
            return jnp.sum(weight * model.at_depth(state, t).rate(state, t))

        def earlier(carry: Any) -> Any:
            index, weight, slopes = carry
            index = index - 1
            pull = jax.vjp(lambda p, m: taken(p, m, tape.t[index], tape.h[index]), parameters, tape.moving[index])[1]
            slope, weight = pull(weight)
            return index, weight, jax.tree.map(jnp.add, slopes, slope)

        weight = jnp.where(tape.length > max_steps, jnp.nan, cotangents[0])
        at_end = speed(final, end, weight)
        none = jax.tree.map(jnp.zeros_like, parameters)
        _, weight, slopes = jax.lax.while_loop(lambda carry: carry[0] > 0, earlier, (tape.length, weight, none))
        return slopes, None, weight, -speed(tape.moving[0], t0, weight), at_end, None, None

    carried.defvjp(forward, backward)
    parameters = [jnp.asarray(leaf) for leaf, is_free in zip(given, free, strict=True) if is_free]
    constants = [leaf for leaf, is_free in zip(given, free, strict=True) if not is_free]
    return carried(parameters, constants, moving, t0, end, step, limits)


def _is_free(path: tuple[Any, ...], leaf: Any) -> bool:
    """Whether a leaf of (model, template) is a parameter to differentiate in: a real number that is no table of a grid."""
    names = {entry.name for entry in path if isinstance(entry, jax.tree_util.GetAttrKey)}
    return not names & {"grid", "moment_grid"} and jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def _recorded(
    model: Model, template: Any, progress: Progress, end: Array, limits: Limits, max_steps: int
) -> tuple[Progress, _Tape]:
    """`advance_segment`, with the steps that were accepted."""

    def attempt(carry: tuple[_Loop, _Tape]) -> tuple[_Loop, _Tape]:
        loop, tape = carry
        now = loop.progress
        after = _attempt(model, template, loop, end, limits)
        h, _, _ = _step_size(model, now, end)
        # a step that is rejected is written over by the next; beyond the tape nothing is written
        at = tape.length
        tape = _Tape(
            tape.moving.at[at].set(now.moving, mode="drop"),
            tape.t.at[at].set(now.t, mode="drop"),
            tape.h.at[at].set(h, mode="drop"),
            at + (after.progress.accepted - now.accepted),
        )
        return after, tape

    states, none = jnp.zeros((max_steps, *jnp.shape(progress.moving))), jnp.zeros(max_steps)
    # the state where it began is there even if no step is taken
    empty = _Tape(states.at[0].set(progress.moving), none, none, jnp.asarray(0))
    loop, tape = jax.lax.while_loop(
        lambda carry: _unfinished(carry[0], end), attempt, (_Loop(progress, jnp.asarray(0)), empty)
    )
    return loop.progress, tape
