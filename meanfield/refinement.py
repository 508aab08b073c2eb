"""More nodes where a void opens: a quadrature that is finer about one direction, glued in by a smooth partition of unity.

Under schemes that divide by ‖A‖ tokens near a zero of A are torn apart, and the error of a quadrature comes from the nodes
that began about there. With χ = 1 near that direction and 0 far from it, ∫f = ∫(1−χ)f + ∫χf, each by a rule of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

# χ is 1 up to the first angle from the centre, 0 beyond the second, and so smooth between them that a rule of degree 31 keeps
# seven digits of moments of degree ≤ 6, and one of degree 63 eleven: (1−χ) and χ are both integrated.
INNER, OUTER, SMOOTHNESS = 0.4, 1.3, 10
# The fine rule has so many times the degree.
FACTOR = 3


class Rule(NamedTuple):
    """Nodes (node, axis), weights and the weights of an embedded coarser rule, (node,) each with sum 1 to the rule's error."""

    nodes: NDArray
    weights: NDArray
    coarser: NDArray


def plain(space: Any, degree: int) -> Rule:
    """The quadrature of a degree."""
    nodes, weights = space.quadrature(degree)
    return Rule(nodes, weights, space.coarser(degree))


def refined(space: Any, degree: int, centre: NDArray) -> Rule:
    """The quadrature of a degree, and about `centre` one of three times that degree. The nodes of the first all stay, first."""
    coarse, fine = plain(space, degree), plain(space, FACTOR * (degree + 1) - 1)
    outside, inside = 1 - window(coarse.nodes, centre), window(fine.nodes, centre)
    kept = inside > 0
    return Rule(
        np.concatenate([coarse.nodes, fine.nodes[kept]]),
        np.concatenate([coarse.weights * outside, (fine.weights * inside)[kept]]),
        np.concatenate([coarse.coarser * outside, (fine.coarser * inside)[kept]]),
    )


def window(points: NDArray, centre: NDArray) -> NDArray:
    """χ, an incomplete beta function of the angle from the centre: (point, axis) → (point,)."""
    angle = np.arccos(np.clip(points @ centre, -1, 1))
    return np.asarray(1 - betainc(SMOOTHNESS, SMOOTHNESS, np.clip((angle - INNER) / (OUTER - INNER), 0, 1)))
