"""Ordinary differential equations to the accuracy that a reference value needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

RTOL = 1e-12
ATOL = 1e-14


def integrate(
    rate: Callable[[float, NDArray[np.float64]], Sequence[float]], start: float, state: NDArray[np.float64], end: float
) -> NDArray[np.float64]:
    """The state at `end` of dy/dt = rate(t, y), y(start) = state; DOP853 at relative tolerance 1e-12.

    Raises ArithmeticError if the step size collapses.
    """
    if end == start:
        return state
    solution = solve_ivp(rate, (start, end), state, method="DOP853", rtol=RTOL, atol=ATOL)
    if not solution.success:
        raise ArithmeticError(f"no solution between {start} and {end}: {solution.message}")
    final: NDArray[np.float64] = solution.y[:, -1]
    return final


def integrate_at(
    rate: Callable[[float, NDArray[np.float64]], Sequence[float]],
    start: float,
    state: NDArray[np.float64],
    times: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The states (time, component) at `times`, in any order, none before `start`.

    Each time is the end of a step: the interpolant between steps is less accurate than the steps.
    """
    states = np.empty((times.size, state.size))
    t = start
    for index in np.argsort(times, kind="stable"):
        state = integrate(rate, t, state, float(times[index]))
        t = float(times[index])
        states[index] = state
    return states
