"""Discrete depth: the layer maps of a network of finite depth, applied to an ensemble.

On quadrature nodes this is the mean-field limit of the network; as the step η → 0 it tends to the flow at first order.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .integrate import COMPLETE, NONFINITE, Limits, Progress, judge
from .keys import require
from .model import Model
from .observables import watch
from .precision import float64, float64_leaves

# A layer that begins this close (in layers) before a switch of the scheme belongs to the branch after it.
SWITCH_SLACK = 1e-9


def layer(model: Model, state: Any, index: Array, step: Array) -> Any:
    """The state after layer `index`, which stands at depth η·index: x + ηp, or r N(θ + ηp) (2510.22026)."""
    t = step * index
    model = model.at_depth(state, t)
    push = model.push(state, t, model.field(state, t))
    return state.moved(state.layer(push, step, model.restores))


def advance(
    model: Model,
    template: Any,
    progress: Progress,
    last: Array,
    step: Array,
    limits: Limits,
    marks: tuple[Any, ...] = (),
) -> Progress:
    """Apply layers of one branch of the scheme until `last` of them are done, or a judgement stops the run.

    `progress.accepted` counts layers. Every layer's input is judged; the output of the last by whoever asked for it.
    """

    def unfinished(now: Progress) -> Array:
        return (now.accepted < last) & (now.status == COMPLETE)

    def body(now: Progress) -> Progress:
        state, t = template.moved(now.moving), step * now.accepted
        here = model.at_depth(state, t)
        field = here.field(state, t)
        judged = judge(now, watch(here.attention, state, t, field, marks), limits)
        new = state.layer(here.push(state, t, field), step, here.restores)
        finite = jnp.all(jnp.isfinite(new))
        accept = (judged.status == COMPLETE) & finite
        count = now.accepted + accept
        status = jnp.where((judged.status == COMPLETE) & ~finite, NONFINITE, judged.status)
        return judged._replace(moving=jnp.where(accept, new, now.moving), t=step * count, status=status, accepted=count)

    return jax.lax.while_loop(unfinished, body, progress)


def branches(model: Model, step: float) -> list[tuple[int | None, Model]]:
    """(layer at which the branch ends, model of that branch); None at the last, which never ends."""
    segments = model.segments()
    ends = [int(np.ceil(float(end) / step - SWITCH_SLACK)) for end, _ in segments[:-1]]
    return list(zip([*ends, None], (branch for _, branch in segments), strict=True))


@float64
def apply_layers(model: Model, state: Any, count: int, step: float) -> Any:
    """The ensemble after `count` layers of step η from depth 0: the network of finite depth itself. Traceable.

    Mix-LN's switch and the step are Python numbers. InputError for a count below 0, a step of at most 0, or a state
    without radii.
    """
    require(isinstance(count, int) and count >= 0, "count", count, "an integer of at least 0")
    require(bool(np.isfinite(step)) and step > 0, "step", step, "a finite number above 0")
    require(hasattr(state, "layer"), "state", type(state).__name__, "an Ensemble: layers move tokens")
    done = 0
    for end, branch in branches(model.of_layers(step), step):
        until = count if end is None else min(max(end, done), count)
        branch, state = float64_leaves((branch, state))
        state = _applied(branch, state, done, until - done, np.float64(step))
        done = until
    return state


def _applied(model: Model, state: Any, first: int, count: int, step: Any) -> Any:
    body = lambda state, index: (layer(model, state, index, step), None)  # noqa: E731
    return jax.lax.scan(body, state, first + jnp.arange(count))[0] if count else state
