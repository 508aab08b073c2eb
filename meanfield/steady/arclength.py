"""Pseudo-arclength continuation: the curve of zeros of n equations in n + 1 unknowns, folds and all.

A point of the curve is predicted along the tangent and corrected by Newton in the plane normal to it, where the bordered
matrix is regular at folds too (H. B. Keller, in Applications of Bifurcation Theory, 1977).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

Float = NDArray[np.float64]
# z (n + 1,) → the equations (n,) and their derivatives (n, n + 1)
System = Callable[[Float], tuple[Float, Float]]

LARGEST_STEP, SMALLEST_STEP = 0.05, 1e-9
# The cosine between two successive tangents; below it the step is halved.
STRAIGHT = 0.98
NEWTON_STEPS, NEWTON_TOLERANCE = 12, 1e-13


class ContinuationError(ArithmeticError):
    """Newton's iteration finds no further point of the curve."""


def corrected(system: System, z: Float, normal: Float) -> Float:
    """The zero near z in the plane through z with this normal. Raises ContinuationError where Newton does not converge."""
    moved = z.copy()
    for _ in range(NEWTON_STEPS):
        equations, derivatives = system(moved)
        border = np.append(equations, normal @ (moved - z))
        step = np.linalg.solve(np.vstack([derivatives, normal]), border)
        moved = moved - step
        if not np.all(np.isfinite(moved)):
            break
        if np.max(np.abs(step)) < NEWTON_TOLERANCE * max(1.0, float(np.max(np.abs(moved)))):
            return moved
    raise ContinuationError("Newton's iteration does not converge")


def tangent(system: System, z: Float, along: Float) -> Float:
    """The unit tangent of the curve at z that points along `along`."""
    matrix = np.vstack([system(z)[1], along])
    direction = np.linalg.solve(matrix, np.append(np.zeros(len(z) - 1), 1.0))
    return direction / np.linalg.norm(direction)


def followed(system: System, first: Float, second: Float) -> Iterator[tuple[Float, Float]]:
    """Points of the curve and their tangents, from `second` on, away from `first`; without end.

    Raises ContinuationError where even the smallest step finds no point.
    """
    z, along = second, tangent(system, second, second - first)
    yield z, along
    step = float(np.linalg.norm(second - first))
    while True:
        try:
            trial = corrected(system, z + step * along, along)
            turned = tangent(system, trial, along)
            accepted = bool(turned @ along > STRAIGHT)
        except (ContinuationError, np.linalg.LinAlgError):
            accepted = False
        if accepted:
            z, along = trial, turned
            yield z, along
            step = min(1.4 * step, LARGEST_STEP)
        else:
            step /= 2
            if step < SMALLEST_STEP:
                raise ContinuationError("the curve cannot be followed any further")


def located(system: System, start: Float, end: Float, value: Callable[[Float, Float], float]) -> Float:
    """The point between two points of the curve where value(z, direction from start to end) changes its sign."""
    chord = end - start
    normal = chord / np.linalg.norm(chord)

    def at(share: float) -> Float:
        return corrected(system, start + share * chord, normal)

    return at(float(brentq(lambda share: value(at(share), normal), 0.0, 1.0, xtol=1e-15, rtol=1e-14)))
