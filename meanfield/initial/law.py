"""What every law of directions offers, and how directions are drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..geometry import gegenbauer
from ..keys import Key

Float = NDArray[np.float64]


# Proposals of a rejection sampler at a time.
BATCH = 1 << 14
# A proposal denser than the ceiling starts the sampler again, under a ceiling higher by this factor.
HEADROOM = 1.25


class Tokens(NamedTuple):
    """Weighted tokens x (..., token, axis) of another run; coarser: weights of its embedded rule, None where it has none."""

    x: Float
    weights: Float
    coarser: Float | None


class Law:
    """A law of directions on a space."""

    case_name: ClassVar[str]
    case_keys: ClassVar[dict[str, Key]] = {}
    space: Any

    def __init__(self, space: Any, **values: Any) -> None:
        self.space = space

    @classmethod
    def from_case(cls, space: Any, folder: Path, **values: Any) -> Law:
        """The law that the keys of a case file describe; paths are relative to the folder of the case."""
        return cls(space, **values)

    def density(self, points: ArrayLike) -> Float:
        """ρ at unit vectors (point, axis), with respect to the uniform probability measure."""
        raise NotImplementedError

    def coefficients(self, grid: Any) -> Float:
        """ρ_k = ∫ρ Y_k dσ for the modes of `grid`."""
        raise NotImplementedError

    def sample(self, count: int, rng: np.random.Generator) -> Float:
        """`count` independent directions: (token, axis)."""
        raise NotImplementedError

    def tokens(self) -> Float | None:
        """Definite tokens x (token, axis) where the law is a set of them, else None."""
        return None

    def ensemble(self) -> Tokens | None:
        """Tokens with their weights where the law is a state that goes on, else None."""
        return None

    @property
    def smooth(self) -> bool:
        """Whether the law has a density."""
        return True


def spread_directions(space: Any, means: Float, concentrations: Float, rng: np.random.Generator) -> Float:
    """One von Mises–Fisher draw about each mean: (token, axis), (token,) → (token, axis)."""
    along, across = gegenbauer.tilted(space.dimension, concentrations, rng)
    if space.rings:
        return np.stack([along * means[:, 0], across], axis=-1)
    tangent = rng.standard_normal(means.shape)
    tangent -= np.sum(tangent * means, axis=1, keepdims=True) * means
    return units(along[:, None] * means + across[:, None] * units(tangent))


def units(vectors: Float) -> Float:
    """The directions of vectors: (..., axis)."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def fine_points(space: Any, degree: int) -> Float:
    """Points so dense that a series of this degree shows its least value there, poles included."""
    if space.coordinates == 2:
        angle = np.linspace(0, 2 * np.pi, 32 * degree, endpoint=False)
        return np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    axes = np.eye(space.coordinates)
    return np.concatenate([space.quadrature(min(4 * degree, 4096))[0], axes, -axes])


def by_rejection(
    space: Any, density: Callable[[Float], Float], ceiling: float, count: int, rng: np.random.Generator
) -> Float:
    """`count` independent directions of a density, by rejection from the uniform law: (token, axis).

    Where a proposal is denser than the ceiling, everything is drawn again under a higher one, so that no draw is biased.
    """
    drawn: list[Float] = []
    missing = count
    while missing > 0:
        proposed = spread_directions(space, np.tile(space.axis, (BATCH, 1)), np.zeros(BATCH), rng)
        values = density(proposed)
        kept = proposed[values > ceiling * rng.random(BATCH)][:missing]
        if values.max() > ceiling * (1 + 1e-9):
            drawn, missing, ceiling = [], count, HEADROOM * float(values.max())
            continue
        drawn.append(kept)
        missing -= len(kept)
    return np.concatenate(drawn) if drawn else np.empty((0, space.coordinates))
