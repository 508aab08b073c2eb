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
        return jnp.interp(t, jnp.asarray(self.times), jnp.asarray(self.values))


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
    """The value at depth t of a number or a Schedule."""
    return quantity(t) if isinstance(quantity, Schedule) else jnp.asarray(quantity, dtype=float)


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
    is_schedule = lambda node: isinstance(node, Schedule)  # noqa: E731
    knots = [node.times for node in jax.tree.leaves(tree, is_leaf=is_schedule) if is_schedule(node)]
    later = jnp.asarray(jnp.inf)
    for times in knots:
        times = jax.lax.stop_gradient(jnp.asarray(times, dtype=float))
        later = jnp.minimum(later, jnp.min(jnp.where(times > t, times, jnp.inf)))
    return later
