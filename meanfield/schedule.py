"""A number that changes with depth: given at some depths, linear between them, constant before and after."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .keys import InputError, Key, require
from .pytree import pytree


@pytree
class Schedule:
    """t ↦ the value at depth t, linear between (times, values): (knot,) each, times increasing.

    A step ends on every knot, so that the kinks cost no accuracy. InputError for other lengths or numbers.
    """

    times: Any
    values: Any

    case_keys: ClassVar[dict[str, Key]] = {
        "times": Key(list[float], "increasing depths"),
        "values": Key(list[float], "the value at each depth; linear between"),
    }

    def __post_init__(self) -> None:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((self.times, self.values))):
            return
        for key in ("times", "values"):
            numbers = np.asarray(getattr(self, key), dtype=float)
            fine = numbers.ndim == 1 and numbers.size > 0 and bool(np.all(np.isfinite(numbers)))
            require(fine, key, getattr(self, key), "a non-empty list of finite numbers")
            object.__setattr__(self, key, numbers)
        require(bool(np.all(np.diff(self.times) > 0)), "times", self.times, "increasing depths")
        require(self.times.shape == self.values.shape, "values", self.values, f"{self.times.size} numbers, one a depth")

    def __call__(self, t: Any) -> Array:
        """The value at depth t."""
        return self.piece(t)(t)

    def piece(self, t: Any) -> Line:
        """The line that the schedule follows from depth t to the next knot."""
        times, values = jnp.asarray(self.times), jnp.asarray(self.values)
        right = jnp.searchsorted(jax.lax.stop_gradient(times), jax.lax.stop_gradient(t), side="right")
        last = times.shape[0] - 1
        left, right = jnp.clip(right - 1, 0, last), jnp.clip(right, 0, last)
        width = times[right] - times[left]
        flat = left == right  # before the first knot and from the last on
        slope = jnp.where(flat, 0.0, (values[right] - values[left]) / jnp.where(flat, 1.0, width))
        return Line(times[left], values[left], slope)


@pytree
class Line:
    """t ↦ value + slope (t − origin): a Schedule as one step sees it, at either end of which it may have a knot.

    There a Schedule has two slopes in its knots' depths, of which the step must see its own.
    """

    origin: Any
    value: Any
    slope: Any

    def __call__(self, t: Any) -> Array:
        """The value at depth t."""
        return self.value + self.slope * (t - self.origin)


# What a case file may say for such a number.
NUMBER_OR_SCHEDULE = float | dict[str, list[float]]


def from_case(key: str, value: float | dict[str, list[float]]) -> float | Schedule:
    """The number or Schedule { times, values } that a case file gives for `key`."""
    if not isinstance(value, dict):
        return value
    for name in Schedule.case_keys:
        require(name in value, f"{key}.{name}", None, f"a value: {Schedule.case_keys[name].meaning}")
    for name in value:
        require(name in Schedule.case_keys, f"{key}.{name}", value[name], "no such key but times, values")
    try:
        return Schedule(**value)
    except InputError as problem:
        raise problem.under(key) from None


def at(quantity: Any, t: Any) -> Array:
    """The value at depth t of a number, a Schedule or a Line."""
    return quantity(t) if isinstance(quantity, Schedule | Line) else jnp.asarray(quantity, dtype=float)


def values(quantity: Any) -> np.ndarray:
    """Every value that a number or a Schedule is given by, of which each value between is a mean: (knot,)."""
    return np.atleast_1d(np.asarray(quantity.values if isinstance(quantity, Schedule) else quantity, dtype=float))


def is_traced(quantity: Any) -> bool:
    """Whether a number or a Schedule is being traced, so that its range cannot be checked."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(quantity))


def is_number(quantity: Any) -> bool:
    """Whether this is one finite real number."""
    number = isinstance(quantity, int | float | np.number | np.ndarray | jax.Array) and np.ndim(quantity) == 0
    return number and not isinstance(quantity, bool) and bool(np.isfinite(quantity))


def next_knot(tree: Any, t: Array) -> Array:
    """The first depth after t at which some Schedule in a pytree has a kink; infinite where there is none."""
    knots = [node.times for node in jax.tree.leaves(tree, is_leaf=_is_schedule) if _is_schedule(node)]
    later = jnp.asarray(jnp.inf)
    for times in knots:
        times = jax.lax.stop_gradient(jnp.asarray(times, dtype=float))
        later = jnp.minimum(later, jnp.min(jnp.where(times > t, times, jnp.inf)))
    return later


def within_step(tree: Any, t: Array) -> Any:
    """The same pytree for a step that begins at depth t and ends by the next knot: a Line for every Schedule."""
    return jax.tree.map(lambda node: node.piece(t) if _is_schedule(node) else node, tree, is_leaf=_is_schedule)


def _is_schedule(node: Any) -> bool:
    return isinstance(node, Schedule)
