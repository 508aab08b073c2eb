"""Closed forms and exactly solvable cases, in NumPy and SciPy alone: what the solver is measured against."""

from meanfield.theory import clusters, equiangular, finite_n, growth, kuramoto, noise
from meanfield.theory.schemes import SCHEMES, Scheme

__all__ = ["SCHEMES", "Scheme", "clusters", "equiangular", "finite_n", "growth", "kuramoto", "noise"]
