"""What every space has in common: identity by kind and dimension, and how a token's coordinates are read."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..keys import Key


class Space:
    """Where directions live: static and hashable, without a resolution.

    dimension: d of R^d. coordinates: the length of a token vector, d except where tokens are rings.
    """

    case_name: ClassVar[str]
    case_keys: ClassVar[dict[str, Key]]
    # A token stands for a ring about the axis, written (along, across). Sums over pairs of tokens then need the mean of
    # the kernel over rings, and a mean of directions keeps its part along the axis alone.
    rings: ClassVar[bool] = False
    # Which orders m go with a degree l ≥ 1, and the largest degree of a grid: what a list of modes is checked against.
    order_rule: ClassVar[str] = ""
    largest_degree: int = 0

    dimension: int
    coordinates: int

    @property
    def axis(self) -> NDArray:
        """The distinguished axis of R^d, the last one, in token coordinates: (coordinate,)."""
        return np.eye(self.coordinates)[0 if self.rings else -1]

    def mean_part(self, vectors: Any) -> Any:
        """What a mean over directions leaves of vectors (..., coordinate): all, but for rings the part along the axis."""
        return vectors * np.array([1.0, 0.0]) if self.rings else vectors

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.dimension == self.dimension

    def __hash__(self) -> int:
        return hash((type(self), self.dimension))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dimension})"
