"""Where directions live: spaces, their grids, transforms, and sums over scattered points."""

from __future__ import annotations

from .circle import Circle, CircleGrid
from .euclidean import Euclidean
from .space import Space
from .sphere import Sphere, SphereGrid
from .zonal import Zonal, ZonalGrid

SPACES = (Circle, Sphere, Zonal, Euclidean)

__all__ = ["SPACES", "Circle", "CircleGrid", "Euclidean", "Space", "Sphere", "SphereGrid", "Zonal", "ZonalGrid"]
