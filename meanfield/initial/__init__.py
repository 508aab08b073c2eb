"""Initial laws of directions and radii: their densities, their moments, and samples of them.

A law of directions offers `coefficients(grid)` and `density(points)` with respect to the uniform probability measure,
and `sample(count, rng)`. A law that is a set of definite tokens offers `tokens()` instead, or as well; one that is the
state of another run, `ensemble()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .finite import Equiangular, Orthogonal, Samples, TokenFile, project
from .frame import Frame
from .law import Law, Tokens
from .radius import ConstantRadius, LogNormalRadius, NormalRadius
from .smooth import FunctionLaw, Kuramoto, PerturbedUniform, Uniform, VmfMixture

LAWS = (Uniform, VmfMixture, PerturbedUniform, Kuramoto, TokenFile, Samples, Frame, Equiangular, Orthogonal)
RADII = (ConstantRadius, NormalRadius, LogNormalRadius)


def uniform(space: Any) -> Uniform:
    """The uniform law of directions."""
    return Uniform(space)


def vmf_mixture(
    space: Any, means: ArrayLike, concentrations: ArrayLike, weights: ArrayLike | None = None
) -> VmfMixture:
    """A mixture of von Mises–Fisher laws: see `VmfMixture`."""
    return VmfMixture(space, means, concentrations, weights)


def perturbed_uniform(space: Any, modes: Sequence[Sequence[float]]) -> PerturbedUniform:
    """The uniform law plus a few harmonics: see `PerturbedUniform`."""
    return PerturbedUniform(space, modes)


def kuramoto(space: Any, parameter: float) -> Kuramoto:
    """The invariant family of Post-LN at β = 0: see `Kuramoto`."""
    return Kuramoto(space, parameter)


def tokens(space: Any, file: str | Path, **options: Any) -> TokenFile:
    """The tokens of a file: see `TokenFile`."""
    return TokenFile(space, file, **options)


def equiangular(space: Any, cosine: float, count: int | None = None) -> Equiangular:
    """Tokens with one common cosine: see `Equiangular`."""
    return Equiangular(space, cosine, count)


def orthogonal(space: Any, count: int | None = None) -> Orthogonal:
    """Orthogonal tokens: see `Orthogonal`."""
    return Orthogonal(space, count)


def function(space: Any, density: Callable[[NDArray[np.float64]], ArrayLike], degree: int = 64) -> FunctionLaw:
    """A density given as a Python function of unit vectors: see `FunctionLaw`."""
    return FunctionLaw(space, density, degree)


def samples(space: Any, vectors: ArrayLike | str | Path, **options: Any) -> Samples:
    """A density fitted to samples: see `Samples`."""
    return Samples(space, vectors, **options)


def frame(space: Any, path: str | Path, index: int = -1) -> Frame:
    """A frame of another run: see `Frame`."""
    return Frame(space, path, index)


__all__ = [
    "LAWS",
    "RADII",
    "ConstantRadius",
    "Equiangular",
    "Frame",
    "FunctionLaw",
    "Kuramoto",
    "Law",
    "LogNormalRadius",
    "NormalRadius",
    "Orthogonal",
    "PerturbedUniform",
    "Samples",
    "TokenFile",
    "Tokens",
    "Uniform",
    "VmfMixture",
    "equiangular",
    "frame",
    "function",
    "kuramoto",
    "orthogonal",
    "perturbed_uniform",
    "project",
    "samples",
    "tokens",
    "uniform",
    "vmf_mixture",
]
