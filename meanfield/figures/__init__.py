"""Figures for papers: density spheres (`render`) and curves against depth (`plots`)."""

from meanfield.figures.plots import (
    Curve,
    cosine_against_depth,
    cosine_figure,
    measured_cosine,
    observable_against_depth,
    save,
    style,
)
from meanfield.figures.render import Panel, backend, sphere_painter, sphere_strip

__all__ = [
    "Curve",
    "Panel",
    "backend",
    "cosine_against_depth",
    "cosine_figure",
    "measured_cosine",
    "observable_against_depth",
    "save",
    "sphere_painter",
    "sphere_strip",
    "style",
]
