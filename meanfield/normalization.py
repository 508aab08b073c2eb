"""The six normalisation schemes: a push, a flag, and the depths at which the scheme changes.

The push p(θ, A, t) moves a token x = rθ: dx/dt = p where the norm is free, dx/dt = r P_θ p where it is restored; a
layer of step η is x + ηp, or r N(θ + ηp). Everything in the table of 2510.22026 follows from that.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import jax.numpy as jnp
from jax import Array

from . import schedule
from .keys import Key, require
from .pytree import pytree
from .schedule import NUMBER_OR_SCHEDULE, Schedule


class Scheme(Protocol):
    """What the right-hand side and the integrator ask of a normalisation."""

    restores: ClassVar[bool]  # the norm is restored: radii stay, directions alone move
    divides_by_attention: ClassVar[bool]  # the speed blows up where ‖A‖ → 0

    def push(self, theta: Array, A: Array, t: Array) -> Array:
        """The push at unit vectors theta (..., axis) under the attention A (..., axis) at depth t."""

    def breaks(self) -> tuple[Any, ...]:
        """Increasing depths on which a step must end."""

    def branches(self) -> tuple[Any, ...]:
        """The scheme on each segment between breaks: one more than there are breaks."""


class _Plain:
    """A scheme that is the same at every depth."""

    case_keys: ClassVar[dict[str, Key]] = {}
    restores: ClassVar[bool]
    divides_by_attention: ClassVar[bool] = False

    def breaks(self) -> tuple[Any, ...]:
        return ()

    def branches(self) -> tuple[Any, ...]:
        return (self,)


def unit(A: Array) -> Array:
    """A/‖A‖, and 0 where A is exactly 0; differentiable there too."""
    square = jnp.sum(A * A, axis=-1, keepdims=True)
    return jnp.where(square > 0, A / jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


@pytree
class PostLN(_Plain):
    """Post-LN: θ ← N(θ + ηA); dθ/dt = P_θA, dr/dt = 0 (2510.22026)."""

    case_name: ClassVar[str] = "post-ln"
    restores: ClassVar[bool] = True

    def push(self, theta: Array, A: Array, t: Array) -> Array:
        return A


@pytree
class PreLN(_Plain):
    """Pre-LN: x ← x + ηA; dθ/dt = P_θA/r, dr/dt = ⟨θ,A⟩ (2510.22026)."""

    case_name: ClassVar[str] = "pre-ln"
    restores: ClassVar[bool] = False

    def push(self, theta: Array, A: Array, t: Array) -> Array:
        return A


@pytree
class MixLN:
    """Mix-LN: Post-LN while t ≤ τ, then Pre-LN (2510.22026). InputError unless τ ≥ 0."""

    switch_time: Any = 1.0

    case_name: ClassVar[str] = "mix-ln"
    case_keys: ClassVar[dict[str, Key]] = {"switch_time": Key(float, "depth τ ≥ 0 of the switch to Pre-LN", 1.0)}
    restores: ClassVar[bool] = False
    divides_by_attention: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_positive("switch_time", self.switch_time, zero=True)

    def push(self, theta: Array, A: Array, t: Array) -> Array:
        raise NotImplementedError("Mix-LN has one push on each side of its switch: use branches()")

    def breaks(self) -> tuple[Any, ...]:
        return (self.switch_time,)

    def branches(self) -> tuple[Any, ...]:
        return (PostLN(), PreLN())


@pytree
class PeriLN(_Plain):
    """Peri-LN: x ← x + ηA/‖A‖; dθ/dt = P_θA/(r‖A‖), dr/dt = ⟨θ,A⟩/‖A‖ (2510.22026)."""

    case_name: ClassVar[str] = "peri-ln"
    restores: ClassVar[bool] = False
    divides_by_attention: ClassVar[bool] = True

    def push(self, theta: Array, A: Array, t: Array) -> Array:
        return unit(A)


@pytree
class NGPT(_Plain):
    """nGPT: θ ← N(θ + ηα(N(A) − θ)); dθ/dt = αP_θA/‖A‖, dr/dt = 0 (2510.22026).

    alpha: a number, or a Schedule of depth. InputError unless α > 0.
    """

    alpha: Any = 1.0

    case_name: ClassVar[str] = "ngpt"
    case_keys: ClassVar[dict[str, Key]] = {"alpha": Key(NUMBER_OR_SCHEDULE, "step α > 0 towards the attention", 1.0)}
    restores: ClassVar[bool] = True
    divides_by_attention: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.alpha, Schedule):
            for value in () if schedule.is_traced(self.alpha) else self.alpha.values:
                require_positive("alpha.values", value)
        else:
            require_positive("alpha", self.alpha)

    @classmethod
    def from_case(cls, alpha: Any) -> NGPT:
        """The scheme that the keys of a case file describe."""
        return cls(schedule.from_case("alpha", alpha))

    def push(self, theta: Array, A: Array, t: Array) -> Array:
        return schedule.at(self.alpha, t) * (unit(A) - theta)


@pytree
class SqrtScaling(_Plain):
    """sqrt-scaling: θ ← N(θ + ηA/√(t+1)) with t = ηl at layer l; dθ/dt = P_θA/√(t+1), dr/dt = 0 (2510.22026)."""

    case_name: ClassVar[str] = "sqrt-scaling"
    restores: ClassVar[bool] = True

    def push(self, theta: Array, A: Array, t: Array) -> Array:
        return A / jnp.sqrt(t + 1)


SCHEMES = (PostLN, PreLN, MixLN, PeriLN, NGPT, SqrtScaling)


def require_positive(key: str, value: Any, *, zero: bool = False) -> None:
    """Raise InputError unless `value`, where it is known, is a finite number above 0, or at least 0."""
    if schedule.is_traced(value):
        return
    allowed = "a finite number of at least 0" if zero else "a finite number greater than 0"
    require(schedule.is_number(value) and bool(value >= 0 if zero else value > 0), key, value, allowed)
