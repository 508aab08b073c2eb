"""The unit sphere of R^d for any d, with nothing but directions: particles and direct sums, no harmonics, no grid."""

from __future__ import annotations

from typing import ClassVar

from ..keys import Key, require
from .space import Space


class Euclidean(Space):
    """The unit sphere S^{d-1} of R^d, where directions of tokens of any dimension d ≥ 2 live."""

    case_name: ClassVar[str] = "euclidean"
    case_keys: ClassVar[dict[str, Key]] = {"dimension": Key(int, "dimension d ≥ 2 of the tokens")}

    def __init__(self, dimension: int) -> None:
        require(2 <= dimension <= 1_000_000, "dimension", dimension, "an integer of at least 2 (and at most 1000000)")
        self.dimension = self.coordinates = int(dimension)
