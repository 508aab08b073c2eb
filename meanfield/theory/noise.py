"""Noise: where the uniform density loses stability, and the ordered state at β = 0.

∂_tρ + div(ρv) = κ⁻¹Δρ with unnormalised attention. The coupling κ is twice the K of 2606.05140.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from meanfield.keys import require
from meanfield.theory.growth import consecutive_ratios, log_a0, require_sphere


def critical_coupling(dimension: int, beta: float) -> float:
    """κ_# = β/a_1(β), above which the uniform density is unstable; d at β = 0.

    Unnormalised attention, Q = K = V = I. The first degree to lose stability is l = 1, since a_l decreases with l.
    Source: 2606.05140 and derived.
    Raises InputError for d < 2 or β < 0.
    """
    second = consecutive_ratios(dimension, beta, 2)[1]
    return float((dimension + beta * second) * math.exp(-log_a0(dimension, beta)))  # β a_0/a_1 = d + β a_2/a_1


def continuity_threshold(dimension: int) -> float:
    """β_*: the transition at κ_# is continuous for β ≤ β_*, discontinuous beyond; I_{d/2+1}/I_{d/2}(β_*) = 1/d.

    Unnormalised attention, Q = K = V = I. Source: 2606.05140 and derived. Raises InputError for d < 2.
    """
    require_sphere(dimension, 0.0)

    def excess(beta: float) -> float:
        return float(consecutive_ratios(dimension, beta, 2)[1]) - 1.0 / dimension

    # a_2/a_1 = β/(d+2+β a_3/a_2) increases with β and exceeds 4/(d+6) ≥ 1/d at β = 4
    return float(brentq(excess, 0.0, 4.0, xtol=1e-14, rtol=1e-14))


def order_parameter(dimension: int, kappas: ArrayLike) -> NDArray[np.float64]:
    """|∫x dμ| = m of the stable stationary state at β = 0: m = I_{d/2}(κm)/I_{d/2−1}(κm); same shape as `kappas`.

    Assumes Q = K = V = I. m = 0 for κ ≤ κ_c = d. Beyond, x = κm solves d + x a_2(x)/a_1(x) = κ: one root, no
    cancellation near κ_c.
    Source: 2606.05140 and derived. Raises InputError for d < 2 or κ ≤ 0.
    """
    require_sphere(dimension, 0.0)
    kappa = np.asarray(kappas, dtype=np.float64)
    require(bool(np.all(np.isfinite(kappa) & (kappa > 0.0))), "kappa", kappas, "positive and finite")

    def ordered(coupling: float) -> float:
        if coupling <= dimension:
            return 0.0

        def excess(x: float) -> float:
            return dimension + x * float(consecutive_ratios(dimension, x, 2)[1]) - coupling

        return float(brentq(excess, 0.0, coupling, xtol=1e-15, rtol=1e-14)) / coupling

    return np.reshape(np.array([ordered(float(coupling)) for coupling in kappa.flat]), kappa.shape)
