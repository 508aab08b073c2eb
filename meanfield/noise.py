"""Noise: a Brownian motion on the sphere beside the drift, which turns transport into a Fokker–Planck equation."""

from __future__ import annotations

from typing import Any, ClassVar

from .keys import Key
from .normalization import require_positive
from .pytree import pytree


@pytree
class Noise:
    """dX = drift dt + √(2/κ) dW on the sphere: ∂_tρ + div(ρv) = κ⁻¹Δρ (mathematics page, 2). InputError unless κ > 0."""

    kappa: Any

    case_keys: ClassVar[dict[str, Key]] = {
        "kappa": Key(float, "inverse strength κ > 0 of the noise, dX = … + √(2/κ) dW")
    }

    def __post_init__(self) -> None:
        require_positive("kappa", self.kappa)
