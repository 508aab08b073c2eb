"""Branches of stationary densities: points, folds, crossings of free energy, stability, and the file of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..geometry.gegenbauer import orthonormal
from ..keys import InputError, require
from ..store import Variable, read_tables, write_tables
from ..theory.growth import require_sphere, unnormalized_scale
from ..theory.noise import critical_coupling
from .arclength import ContinuationError, corrected, followed, located, tangent
from .balance import Balance, Coupling, Temperature, attraction, seen_degree

Float = NDArray[np.float64]

# How far into a branch its first point lies, in x_l, and where a curve in β is about to meet the uniform density: there two
# curves cross and Newton's iteration loses its accuracy.
ONSET, NEARLY_UNIFORM = 1e-3, 1e-2
MOST_POINTS = 4000
# Free energies below this are round-off: no crossing is read from their sign.
ENERGY_NOISE = 1e-14
PARTS = ("states", "folds", "crossings")


@dataclass(frozen=True)
class States:
    """Stationary densities of one family, numbered along the first axis.

    kappa, beta (state,); coefficients c_l = ∫p_l dμ, c_0 = 1 (state, degree + 1); free_energy F − F(uniform) (state,);
    least_eigenvalue of the Hessian of F among densities with the same axis, least_transverse_eigenvalue among all others,
    with the rotation of the density left out (state,).
    """

    kappa: Float
    beta: Float
    coefficients: Float
    free_energy: Float
    least_eigenvalue: Float
    least_transverse_eigenvalue: Float

    def __len__(self) -> int:
        return len(self.kappa)

    @property
    def stable(self) -> NDArray[np.bool_]:
        """Whether no small perturbation of the density grows: (state,)."""
        return (self.least_eigenvalue > 0) & (self.least_transverse_eigenvalue > 0)


@dataclass(frozen=True)
class Branch:
    """A curve of stationary densities on S^{d−1}, its points in order, with the folds and crossings located on it.

    `degree` is that of the mode by which it leaves the uniform density. At a fold (saddle-node) the curve turns back in its
    parameter; at a crossing its free energy is that of the uniform density.
    """

    dimension: int
    degree: int
    states: States
    folds: States
    crossings: States

    def order_parameter(self, states: States | None = None) -> Float:
        """|∫θdμ| = |c_1|/√d of the points, or of other states in this dimension: (state,)."""
        chosen = self.states if states is None else states
        return np.abs(chosen.coefficients[:, 1]) / math.sqrt(self.dimension)

    def density(self, index: int, u: ArrayLike) -> Float:
        """ρ = e^{κV}/N of point `index`, with respect to σ, at ⟨axis, θ⟩ = u, anywhere: the shape of u."""
        kappa, beta = float(self.states.kappa[index]), float(self.states.beta[index])
        c = self.states.coefficients[index]
        balance = Balance.along(Coupling(self.dimension, beta, kappa), 1.0, len(c) - 1)
        exponent = balance.family.weights(1.0, balance.degree)[0] * c[1:]
        log_n = balance.log_normalizer(exponent * balance.heights)
        return np.exp(np.tensordot(exponent, orthonormal(self.dimension, balance.degree, u)[1:], 1) - log_n)

    def at(self, kappa: float) -> States:
        """The states of a branch in κ at one κ, in the order of the curve; none where it does not pass there."""
        s = self.states
        require(bool(np.all(s.beta == s.beta[0])), "branch", "in beta", "a branch in kappa")
        scale = float(np.max(s.kappa))
        balance = Balance.along(Coupling(self.dimension, float(s.beta[0]), scale), 1.0, s.coefficients.shape[1] - 1)
        z = np.column_stack([s.coefficients[:, 1:] / balance.heights, s.kappa / scale])
        return _states(balance, _level(balance, list(z), kappa / scale))

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the branch to an HDF5 file that is valid netCDF-4, too. InputError where that cannot be."""
        save([self], path, overwrite=overwrite)


def bifurcation_coupling(dimension: int, beta: float, degree: int = 1) -> float:
    """κ_l = β/a_l(β), above which the mode of degree l of the uniform density grows; κ_1 = κ_#.

    Raises InputError for d < 2, β < 0 or where a_0 overflows, l < 1, or where κ_l is infinite (l > 1 at β = 0).
    """
    require_sphere(dimension, beta)
    require(degree >= 1, "degree", degree, "at least 1")
    unnormalized_scale(dimension, beta)  # refuses a β where it overflows
    if degree == 1:
        return critical_coupling(dimension, beta)
    strength = float(attraction(dimension, beta, degree)[-1])
    require(strength > 0.0, "degree", degree, f"1: degree {degree} stays stable for every kappa at beta = {beta:g}")
    return 1.0 / strength


def branch(
    dimension: int, beta: float, degree: int = 1, *, sign: int = 1, largest_kappa: float | None = None
) -> Branch:
    """The branch of stationary densities that leaves the uniform one at κ_l = β/a_l, followed to `largest_kappa`.

    `sign` is that of x_l at the start; only for even l and d ≥ 3 do the two sides differ. `largest_kappa` is 2κ_l when absent.
    The first point is the uniform density itself. Folds and crossings are located to round-off (β_* separates branches that
    have them, l = 1, from those that have not: 2606.05140). Raises InputError for d < 2, β < 0 or too large, l < 1, a sign other
    than ±1, largest_kappa ≤ κ_l, or where densities grow too sharp to be followed (κe^β > 10⁵).
    """
    start = bifurcation_coupling(dimension, beta, degree)
    require(sign in (1, -1), "sign", sign, "1 or -1")
    end = 2.0 * start if largest_kappa is None else float(largest_kappa)
    require(start < end < math.inf, "largest_kappa", end, f"more than {start:.6g}, where the branch begins")
    family = Coupling(dimension, beta, start)
    balance = Balance.along(family, end / start, seen_degree(dimension, beta, end, degree))
    uniform = np.zeros(balance.degree + 1)
    uniform[-1] = 1.0
    onset = np.zeros_like(uniform)
    onset[degree - 1] = sign
    second = corrected(balance, uniform + ONSET * onset, onset)
    return _curve(balance, degree, uniform, second, end / start)


def branch_in_beta(start: Branch, index: int, final_beta: float) -> Branch:
    """The curve of stationary densities at the κ of one point of a branch, from its β on towards `final_beta`.

    It ends at final_beta, or where it has turned back to the β it began at, or just before it meets the uniform density.
    Raises InputError for the uniform density, β < 0, or densities too sharp.
    """
    kappa, beta, old = (getattr(start.states, name)[index] for name in ("kappa", "beta", "coefficients"))
    require(0.0 <= final_beta < math.inf, "final_beta", final_beta, "zero or more, and finite")
    require(final_beta != beta, "final_beta", final_beta, "another beta than that of the point")
    require(bool(np.max(np.abs(old[1:])) > 1e-6), "index", index, "a point that is not the uniform density")
    sharpest = max(float(beta), final_beta)
    degree = max(seen_degree(start.dimension, sharpest, float(kappa)), len(old) - 1)
    scale = max(sharpest, 1.0)
    balance = Balance.along(Temperature(start.dimension, float(kappa), scale), sharpest / scale, degree)
    first = np.zeros(degree + 1)
    first[: len(old) - 1] = old[1:] / balance.heights[: len(old) - 1]
    first[-1] = beta / scale
    along = np.zeros_like(first)
    along[-1] = math.copysign(1.0, final_beta - beta)
    first = corrected(balance, first, along)
    step = min(ONSET, abs(final_beta - float(beta)) / (2 * scale))
    second = corrected(balance, first + step * along, along)
    return _curve(balance, start.degree, first, second, final_beta / scale)


def _curve(balance: Balance, degree: int, first: Float, second: Float, end: float) -> Branch:
    """Follow the curve until its parameter passes `end`, or in β the one it began at, or it meets the uniform density."""
    points = [first]
    begin = float(first[-1])
    leading = int(np.argmax(np.abs(second[:-1])))
    in_beta = isinstance(balance.family, Temperature)
    try:
        for z, _ in followed(balance, first, second):
            if z[leading] * math.copysign(1.0, second[leading]) < (NEARLY_UNIFORM if in_beta else ONSET / 2):
                break
            points.append(z)
            level = end if (z[-1] - end) * (begin - end) <= 0 else begin
            if level == end or (in_beta and (z[-1] - begin) * (end - begin) < 0):
                points[-1:] = _level(balance, points[-2:], level)
                break
            if len(points) == MOST_POINTS:
                raise ContinuationError("the curve is too long")
    except ContinuationError as problem:
        beta, kappa = balance.family.at(float(points[-1][-1]))
        raise InputError("kappa", kappa, f"another coupling: at beta = {beta:g} {problem}") from None

    def slope(z: Float, along: Float) -> float:
        return float(tangent(balance, z, along)[-1])

    states, pairs = _states(balance, points), list(itertools.pairwise(points))
    # Not at the first point: a pitchfork begins without slope.
    slopes = [slope(end, end - start) for start, end in pairs]
    folds = [located(balance, *pairs[i + 1], slope) for i in range(len(pairs) - 1) if slopes[i] * slopes[i + 1] < 0]
    significant = np.where(np.abs(states.free_energy) > ENERGY_NOISE, states.free_energy, 0.0)
    meets = np.flatnonzero(significant[:-1] * significant[1:] < 0)
    crossings = [located(balance, *pairs[i], lambda z, _: balance.free_energy(z)) for i in meets]
    return Branch(balance.family.dimension, degree, states, _states(balance, folds), _states(balance, crossings))


def _level(balance: Balance, points: list[Float], parameter: float) -> list[Float]:
    """Where the curve through `points` passes a value of its parameter, in order."""
    found = []
    for start, end in itertools.pairwise(points):
        if start[-1] == parameter:
            found.append(start)
        elif (start[-1] - parameter) * (end[-1] - parameter) < 0:
            found.append(located(balance, start, end, lambda z, _: float(z[-1]) - parameter))
    if points[-1][-1] == parameter:
        found.append(points[-1])
    return found


def _states(balance: Balance, points: Sequence[Float]) -> States:
    z = np.reshape(np.array(points), (-1, balance.degree + 1))
    beta, kappa = np.reshape([balance.family.at(float(parameter)) for parameter in z[:, -1]], (-1, 2)).T
    coefficients = np.column_stack([np.ones(len(z)), z[:, :-1] * balance.heights])
    eigenvalues = np.reshape([balance.least_eigenvalues(point) for point in z], (-1, 2))
    energies = np.array([balance.free_energy(point) for point in z])
    return States(kappa, beta, coefficients, energies, *eigenvalues.T)


def save(branches: Sequence[Branch], path: str | Path, *, overwrite: bool = False) -> None:
    """Write branches into one file, /branch_0, /branch_1, …: HDF5 that is valid netCDF-4, too (docs/file-format.md).

    Raises InputError where it cannot be written, or is there already without `overwrite`.
    """
    variables = []
    for number, one in enumerate(branches):
        group = f"branch_{number}"
        variables += [_variable(f"{group}/{name}", (), getattr(one, name)) for name in ("dimension", "degree")]
        for part in PARTS:
            table: States = getattr(one, part)
            if len(table) == 0:  # netCDF knows no dimension of length 0
                continue
            dims = (f"{group}_{part}", f"{group}_mode")
            values = {field.name: getattr(table, field.name) for field in fields(States)}
            values |= {"order_parameter": one.order_parameter(table), "stable": table.stable.astype(np.int8)}
            variables += [_variable(f"{group}/{part}/{key}", dims[: v.ndim], v) for key, v in values.items()]
    write_tables(path, "branches", variables, {"branches": len(branches)}, overwrite=overwrite)


def read_branches(path: str | Path) -> list[Branch]:
    """The branches of a file of `save`. InputError where it is missing, broken, or holds something else."""
    arrays, attributes = read_tables(path, "branches")
    found = []
    for number in range(int(attributes["branches"])):
        group = f"branch_{number}"
        modes = arrays[f"{group}/states/coefficients"].shape[1]
        parts = [_stored(arrays, f"{group}/{part}", modes) for part in PARTS]
        found.append(Branch(int(arrays[f"{group}/dimension"]), int(arrays[f"{group}/degree"]), *parts))
    return found


def read_branch(path: str | Path) -> Branch:
    """The branch of a file of `Branch.save`. InputError as `read_branches`, or where the file holds several."""
    branches = read_branches(path)
    require(len(branches) == 1, "path", str(path), f"a file of one branch; it holds {len(branches)}")
    return branches[0]


def _stored(arrays: dict[str, NDArray], group: str, modes: int) -> States:
    empty = {field.name: np.empty((0, modes) if field.name == "coefficients" else 0) for field in fields(States)}
    return States(**{name: arrays.get(f"{group}/{name}", none) for name, none in empty.items()})


def _variable(name: str, dims: tuple[str, ...], value: ArrayLike) -> Variable:
    array = np.asarray(value)
    meaning = name.rsplit("/", 1)[-1].replace("_", " ")
    return Variable(name, dims, array.shape, array.dtype, long_name=meaning, timed=False, value=array)
