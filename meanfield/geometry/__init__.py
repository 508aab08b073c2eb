"""Where directions live: spaces, their grids, transforms, and sums over scattered points."""

from __future__ import annotations

from .euclidean import Euclidean
from .sphere import Sphere, SphereGrid

SPACES = (Sphere, Euclidean)

__all__ = ["SPACES", "Euclidean", "Sphere", "SphereGrid"]
