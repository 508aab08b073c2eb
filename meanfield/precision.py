"""float64 whatever the global JAX setting, without changing it.

JAX computes in float32 unless x64 is on, and casts float64 arrays down without a word. Everything here runs with x64
on; where that is impossible, because the caller is already tracing with x64 off, it refuses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

TURN_ON = (
    "use `with jax.enable_x64(True):` around jax.jit, jax.vmap or jax.jvp, or jax.config.update('jax_enable_x64', True)"
)


class PrecisionError(RuntimeError):
    """Raised when a float64 computation is traced while x64 is off."""


def float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` with x64 on. Raises PrecisionError if it is being traced with x64 off.

    Where x64 was off the result holds NumPy arrays, as JAX would round its own to float32 in the next operation.
    """

    def refuse_tracing(tree: Any) -> None:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree)):
            raise PrecisionError(f"{function.__qualname__} computes in float64 but is traced with x64 off: {TURN_ON}")

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        if jax.config.read("jax_enable_x64"):
            return function(*args, **kwargs)
        refuse_tracing((args, kwargs))
        with jax.enable_x64(True):
            result = function(*args, **kwargs)
            refuse_tracing(result)  # constants under an outer jax.jit
            return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, result)

    return wrapped


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """`jax.jit(function)` in float64; the form in which pure functions of arrays are offered to users."""
    return float64(functools.wraps(function)(jax.jit(function)))


def float64_leaves(tree: Any) -> Any:
    """The same pytree with numeric leaves as arrays: floats, Python ints and float32 become float64, integer arrays stay."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, jax.core.Tracer):
            return leaf
        integer = isinstance(leaf, np.ndarray | jax.Array) and not np.issubdtype(leaf.dtype, np.floating)
        return leaf if integer else np.asarray(leaf, dtype=np.float64)

    return jax.tree.map(convert, tree)
