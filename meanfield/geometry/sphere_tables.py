"""Tables of real spherical harmonics on a Gauss–Legendre grid, in NumPy: built once a grid, then passed as arguments.

Y_{l,0} = P̄_l0(z),  Y_{l,±m} = √2 P̄_lm(z) (cos mφ | sin mφ),  with ½∫P̄_lm² dz = 1 and no Condon–Shortley phase.
Modes are stored at index l² + l + m, so that a lower degree is a prefix of a higher one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Int = NDArray[np.int32]


def degrees_and_orders(degree: int) -> tuple[Int, Int]:
    """Degree l and order m of every mode: (mode,) each; m ≥ 0 cosine, m < 0 sine."""
    degrees = np.repeat(np.arange(degree + 1), 2 * np.arange(degree + 1) + 1)
    orders = np.arange(degrees.size) - degrees * (degrees + 1)
    return degrees.astype(np.int32), orders.astype(np.int32)


def alpha(degrees: NDArray, orders: NDArray) -> Float:
    """α_lm of z P̄_lm = α_{l+1,m} P̄_{l+1,m} + α_lm P̄_{l−1,m}: √((l²−m²)/(4l²−1)), 0 where l ≤ |m|."""
    l = np.asarray(degrees, dtype=float)
    return np.sqrt(np.maximum(l**2 - np.asarray(orders, dtype=float) ** 2, 0.0) / np.maximum(4 * l**2 - 1, 1.0))


def legendre(degree: int, z: Float) -> Float:
    """P̄_lm(z) for 0 ≤ m ≤ l ≤ degree: (order, degree, point), zero where l < m. Stable for z in [−1, 1]."""
    table = np.zeros((degree + 1, degree + 1, z.size))
    sine = np.sqrt((1 - z) * (1 + z))
    sectoral = np.ones_like(z)
    for m in range(degree + 1):
        table[m, m] = sectoral
        if m < degree:
            table[m, m + 1] = np.sqrt(2 * m + 3.0) * z * sectoral
        sectoral = sectoral * sine * np.sqrt((2 * m + 3.0) / (2 * m + 2.0))
    orders = np.arange(degree + 1)[:, None]
    for l in range(2, degree + 1):
        rows = slice(0, l - 1)
        here = orders[rows]
        upper, lower = alpha(np.full_like(here, l), here), alpha(np.full_like(here, l - 1), here)
        table[rows, l] = (z * table[rows, l - 1] - lower * table[rows, l - 2]) / upper
    return table


def by_parity(table: Float) -> Float:
    """(order, degree, point) → (parity of l−m, order, k, point) with l = m + parity + 2k, zero past the last degree."""
    count = table.shape[1]
    split = np.zeros((2, count, (count + 1) // 2, table.shape[2]))
    for parity in range(2):
        for m in range(count - parity):
            rows = table[m, m + parity :: 2]
            split[parity, m, : rows.shape[0]] = rows
    return split


def parity_index(degree: int) -> Int:
    """Mode of each (parity, order, k, cosine|sine) slot of `by_parity`; slots without a mode point past the last."""
    size = (degree + 1) ** 2
    index = np.full((2, degree + 1, degree // 2 + 1, 2), size, dtype=np.int32)
    for parity in range(2):
        for m in range(degree + 1 - parity):
            l = np.arange(m + parity, degree + 1, 2)
            index[parity, m, : l.size, 0] = l * (l + 1) + m
            if m:
                index[parity, m, : l.size, 1] = l * (l + 1) - m
    return index


def slot_of_mode(index: Int, size: int) -> Int:
    """Inverse of `parity_index`: the flat slot of each mode."""
    flat = index.reshape(-1)
    slots = np.empty(size + 1, dtype=np.int32)
    slots[flat] = np.arange(flat.size)
    return slots[:size]


def trigonometric_from_nodes(degree: int, colatitudes: Float) -> Float:
    """Coefficients of cos kθ (parity 0 of m) and sin kθ (parity 1), k ≤ degree, from values at Gauss nodes: (2, k, node).

    A harmonic of even order is a polynomial in cosθ, one of odd order sinθ times a polynomial, so both are exact.
    """
    k = np.arange(degree + 1)
    weight = np.sqrt(np.sin(colatitudes))[:, None]
    cosine = np.linalg.pinv(weight * np.cos(np.outer(colatitudes, k))) * weight.T
    sine = np.linalg.pinv(weight * np.sin(np.outer(colatitudes, k[1:]))) * weight.T
    return np.stack([cosine, np.concatenate([np.zeros((1, colatitudes.size)), sine])])


def coordinate_products(degree: int) -> tuple[Int, Float, Int, Float]:
    """θ_i Y_l = (part of degree l+1) + (part of degree l−1), for i = x, y, z, as gathers of at most two modes.

    Returns (up_index, up_value, down_index, down_value), each (3, mode, 2): the target mode takes Σ_k value·c[index].
    """
    degrees, orders = degrees_and_orders(degree)
    source = np.arange(degrees.size)
    l, m, sign = degrees.astype(float), np.abs(orders), np.where(orders < 0, -1, 1)
    # sinθ P̄_lm = raised P̄_{l+1,m+1} − lowered P̄_{l−1,m+1} = −raised′ P̄_{l+1,m−1} + lowered′ P̄_{l−1,m−1}
    outward = np.sqrt((l + m + 1) * (l + m + 2) / ((2 * l + 1) * (2 * l + 3)))
    outward_down = -np.sqrt(np.maximum((l - m) * (l - m - 1), 0) / np.maximum((2 * l - 1) * (2 * l + 1), 1))
    inward = -np.sqrt((l - m + 1) * (l - m + 2) / ((2 * l + 1) * (2 * l + 3)))
    inward_down = np.sqrt(np.maximum((l + m) * (l + m - 1), 0) / np.maximum((2 * l - 1) * (2 * l + 1), 1))
    zonal, first = m == 0, m == 1
    widen = np.where(zonal, np.sqrt(0.5), 0.5)  # Y_l0 carries no √2
    narrow = np.where(zonal, 0.0, np.where(first, np.sqrt(0.5), 0.5))
    cosine = sign > 0
    tables: dict[int, list[list[tuple[NDArray, NDArray, NDArray, NDArray]]]] = {1: [[], [], []], -1: [[], [], []]}
    for step, out, into in ((1, outward, inward), (-1, outward_down, inward_down)):
        # x: cosφ cos mφ = ½[cos(m+1)φ + cos(m−1)φ], cosφ sin mφ = ½[sin(m+1)φ + sin(m−1)φ]
        tables[step][0] += [(source, m + 1, sign, widen * out), (source, m - 1, sign, narrow * into)]
        # y: sinφ cos mφ = ½[sin(m+1)φ − sin(m−1)φ], sinφ sin mφ = ½[cos(m−1)φ − cos(m+1)φ]
        tables[step][1] += [
            (source, m + 1, -sign, np.where(cosine, 1, -1) * widen * out),
            (source, m - 1, -sign, np.where(cosine, -1, 1) * narrow * into),
        ]
        z_factor = alpha(degrees + 1, orders) if step == 1 else alpha(degrees, orders)
        tables[step][2] += [(source, m, sign, z_factor)]
    gathers: list[tuple[Int, Float]] = []
    for step in (1, -1):
        index: Int = np.zeros((3, source.size, 2), dtype=np.int32)
        value = np.zeros((3, source.size, 2))
        for axis in range(3):
            filled = np.zeros(source.size, dtype=int)
            for modes, order, kind, factor in tables[step][axis]:
                target_degree = degrees + step
                # a sine of order 0 does not exist, nor an order past its degree
                exists = (factor != 0) & (order >= 0) & (order <= target_degree) & (target_degree <= degree)
                exists &= target_degree >= 0
                exists &= (order > 0) | (kind > 0)
                target = (target_degree * (target_degree + 1) + order * kind)[exists]
                index[axis, target, filled[target]] = modes[exists]
                value[axis, target, filled[target]] = factor[exists]
                filled[target] += 1
        gathers.append((index, value))
    return (*gathers[0], *gathers[1])
