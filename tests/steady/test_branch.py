"""Stationary states with noise: printed thresholds, and densities, folds, crossings and stability by other methods."""

import functools
import math

import netCDF4
import numpy as np
import pytest
import xarray
from scipy.linalg import eigvalsh
from scipy.optimize import brentq
from scipy.special import roots_jacobi

from meanfield import steady, store
from meanfield.keys import InputError
from meanfield.theory import growth, noise

branch = functools.lru_cache(steady.branch)


class Ring:
    """The circle as 96 equally spaced points and a dense kernel: no harmonics, no continuation."""

    def __init__(self, beta, points=96):
        self.angle = 2 * np.pi * np.arange(points) / points
        self.beta, self.points = beta, points
        self.kernel = np.exp(beta * np.cos(self.angle[:, None] - self.angle)) / (beta * points)

    def density(self, kappa, potential):
        exponent = kappa * (potential - np.max(potential))
        return np.exp(exponent) / np.mean(np.exp(exponent))

    def with_mean(self, m, start=None):
        """The stationary density whose mean cosine of the angle is m, its κ and F − F(uniform): Newton in V and κ."""
        cosine = np.cos(self.angle)
        potential, kappa = start or (self.kernel @ self.density(1.5, cosine), 0.19)
        for _ in range(20):
            rho = self.density(kappa, potential)
            spread = np.diag(rho) - np.outer(rho, rho) / self.points
            left = np.eye(self.points) - kappa * self.kernel @ spread
            by_kappa = -self.kernel @ spread @ potential
            mean = cosine / self.points
            last = np.append(kappa * mean @ spread, mean @ spread @ potential)
            rows = np.vstack([np.column_stack([left, by_kappa]), last])
            residual = np.append(potential - self.kernel @ rho, mean @ rho - m)
            step = np.linalg.lstsq(rows, residual, rcond=None)[0]  # the rotation is in its kernel
            potential, kappa = potential - step[:-1], kappa - step[-1]
            if np.max(np.abs(step)) < 1e-12:
                break
        rho = self.density(kappa, potential)
        energy = np.mean(rho * np.log(rho)) - kappa / 2 * np.mean(rho * (self.kernel @ rho) - np.sum(self.kernel[0]))
        return kappa, energy, rho, (potential, kappa)


@pytest.fixture(scope="module")
def ring():
    return Ring(5.0)


@pytest.fixture(scope="module")
def five():
    return branch(2, 5.0)


class TestPrinted:
    def test_the_branch_begins_at_the_critical_coupling(self, five):
        assert five.states.kappa[0] == pytest.approx(0.205460, abs=0.51e-6)
        assert five.order_parameter()[0] == 0.0

    def test_saddle_node(self, five):
        assert five.folds.kappa == pytest.approx([0.184301], abs=0.51e-6)

    def test_order_parameter_at_beta_zero(self):
        free = branch(2, 0.0, largest_kappa=3.0)
        assert free.order_parameter()[-1] == pytest.approx(0.72415872, abs=0.51e-8)

    @pytest.mark.parametrize(("dimension", "printed"), [(2, 2.44691831), (3, 1.81615453), (8, 1.26655302)])
    def test_continuous_up_to_beta_star_and_discontinuous_beyond(self, dimension, printed):
        for beta, discontinuous in ((printed - 2e-3, False), (printed + 2e-3, True)):
            found = branch(dimension, beta)
            assert len(found.folds) == len(found.crossings) == discontinuous

    @pytest.mark.parametrize(("dimension", "printed"), [(2, 2.44691831), (3, 1.81615453), (8, 1.26655302)])
    def test_the_curvature_at_the_onset_vanishes_at_beta_star(self, dimension, printed):
        def curvature(beta):  # κ/κ_# = 1 + curvature · m² + …
            found = branch(dimension, beta, largest_kappa=1.01 * steady.bifurcation_coupling(dimension, beta))
            near = slice(1, 6)
            m2 = found.order_parameter()[near] ** 2
            return (
                np.polynomial.Polynomial.fit(m2, found.states.kappa[near] / found.states.kappa[0] - 1, 2)
                .convert()
                .coef[1]
            )

        assert brentq(curvature, printed - 0.1, printed + 0.1, xtol=1e-9) == pytest.approx(printed, abs=2e-6)


class TestAgainstTheRing:
    def test_the_saddle_node_is_the_least_coupling_of_the_curve_over_the_order_parameter(self, five, ring):
        start = ring.with_mean(0.6)[3]

        def slope(m):
            ends = [ring.with_mean(m + h, start)[0] for h in (1e-3, -1e-3, 5e-4, -5e-4)]
            return (8 * (ends[2] - ends[3]) - (ends[0] - ends[1])) / 6e-3

        m = brentq(slope, 0.61, 0.62, xtol=1e-9)
        assert five.folds.kappa[0] == pytest.approx(ring.with_mean(m, start)[0], abs=1e-11)
        assert five.order_parameter(five.folds)[0] == pytest.approx(m, abs=1e-8)

    def test_the_crossing_is_where_the_free_energy_is_that_of_the_uniform_density(self, five, ring):
        start = ring.with_mean(0.75)[3]
        m = brentq(lambda m: ring.with_mean(m, start)[1], 0.74, 0.76, xtol=1e-11)
        kappa, *_ = ring.with_mean(m, start)
        assert five.crossings.kappa[0] == pytest.approx(kappa, abs=1e-11)
        assert five.order_parameter(five.crossings)[0] == pytest.approx(m, abs=1e-9)
        assert (kappa, m) == pytest.approx((0.18797583, 0.74803098), abs=0.51e-8)

    def test_density_and_free_energy(self, five, ring):
        index = int(np.argmin(np.abs(five.order_parameter() - 0.7)))
        kappa, energy, rho, _ = ring.with_mean(five.order_parameter()[index])
        assert five.states.kappa[index] == pytest.approx(kappa, rel=1e-12)
        assert five.states.free_energy[index] == pytest.approx(energy, abs=1e-13)
        even = (rho + np.roll(rho[::-1], 1)) / 2  # on the ring it may be turned by round-off
        np.testing.assert_allclose(five.density(index, np.cos(ring.angle)), even, rtol=1e-11)

    def test_fixed_point_iteration_ends_at_the_stable_state(self, five, ring):
        states = five.at(0.19)
        rho = ring.density(3.0, np.cos(ring.angle))
        for _ in range(400):
            rho = ring.density(0.19, ring.kernel @ rho)
        assert list(states.stable) == [False, True]
        assert np.mean(rho * np.cos(ring.angle)) == pytest.approx(five.order_parameter(states)[1], rel=1e-12)

    def test_the_fokker_planck_equation_returns_to_stable_states_and_leaves_unstable_ones(self, five, ring):
        # ρ_t = κ⁻¹ρ_θθ − (ρV_θ)_θ in Fourier space, by the implicit-explicit Euler method: its fixed points are exact
        states, kappa, step = five.at(0.19), 0.19, 2e-3
        k = 1j * np.fft.rfftfreq(ring.points, 1 / ring.points)
        for index, returns in ((0, False), (1, True)):
            m0 = five.order_parameter(states)[index]
            rho = ring.with_mean(m0)[2] * (1 + 1e-4 * np.cos(ring.angle))
            rho /= np.mean(rho)
            pushed = abs(np.mean(rho * np.cos(ring.angle)) - m0)
            for _ in range(1500):
                drift = np.fft.irfft(k * np.fft.rfft(ring.kernel @ rho), ring.points)
                hat = np.fft.rfft(rho) - step * k * np.fft.rfft(rho * drift)
                rho = np.fft.irfft(hat / (1 - step * k**2 / kappa), ring.points)
            away = abs(np.mean(rho * np.cos(ring.angle)) - m0)
            assert (away < 0.1 * pushed) if returns else (away > 3 * pushed)

    @pytest.mark.parametrize("degree", [1, 2, 3])
    def test_stability_is_that_of_the_linearised_fokker_planck_equation(self, ring, degree):
        found = branch(2, 5.0, degree)
        n, half = ring.points, 40
        k = np.concatenate([np.arange(half + 1), np.arange(1, half + 1)])
        modes = np.vstack([np.cos(np.outer(k[: half + 1], ring.angle)), np.sin(np.outer(k[half + 1 :], ring.angle))])
        modes[1:] *= math.sqrt(2)
        slopes = np.vstack([-np.sin(np.outer(k[: half + 1], ring.angle)), np.cos(np.outer(k[half + 1 :], ring.angle))])
        slopes *= k[:, None] * math.sqrt(2)
        attraction = np.exp(-5.0) * np.fft.rfft(np.exp(5.0 * np.cos(ring.angle))).real / n * math.exp(5.0) / 5.0
        for index in range(2, len(found.states), 7):
            kappa, c = found.states.kappa[index], np.zeros(len(k))
            seen = found.states.coefficients.shape[1]
            c[:seen] = found.states.coefficients[index]
            rho = found.density(index, np.cos(ring.angle))
            drift = (attraction[k] * c) @ slopes
            # d⟨Y_k⟩/dt = ∫Y_k′(ρV′ + …): the response to each mode
            response = slopes @ (rho * slopes * attraction[k][:, None] + drift * modes).T / n - np.diag(k**2 / kappa)
            rates = np.linalg.eigvals(response[1:, 1:]).real
            rates = np.delete(rates, np.argmin(np.abs(rates)))  # the rotation
            states = found.states
            assert (np.max(rates) < 0) == states.stable[index]
            least = min(states.least_eigenvalue[index], states.least_transverse_eigenvalue[index])
            assert np.sign(np.max(rates)) == -np.sign(least)


def direct_potential(dimension, beta, found, index, u):
    """V by quadrature over latitude and azimuth: no Funk–Hecke."""
    v, weights = roots_jacobi(120, (dimension - 3) / 2, (dimension - 3) / 2)
    eta, across = roots_jacobi(60, (dimension - 4) / 2, (dimension - 4) / 2)
    weights, across = weights / weights.sum(), across / across.sum()
    product = u[:, None, None] * v[:, None] + np.sqrt((1 - u[:, None] ** 2) * (1 - v**2))[..., None] * eta
    return np.exp(beta * product) @ across @ (weights * found.density(index, v)) / beta, weights @ found.density(
        index, v
    )


@pytest.mark.parametrize(("dimension", "beta"), [(3, 5.0), (8, 3.0)])
@pytest.mark.parametrize(("degree", "sign"), [(1, 1), (2, 1), (2, -1)])
def test_the_density_is_the_exponential_of_its_own_potential(dimension, beta, degree, sign):
    found, u = branch(dimension, beta, degree, sign=sign), np.linspace(-1, 1, 11)
    for index in (3, len(found.states) // 2, -1):
        potential, mass = direct_potential(dimension, beta, found, index, u)
        flat = np.log(found.density(index, u)) - found.states.kappa[index] * potential
        assert mass == pytest.approx(1.0, rel=1e-12)
        assert np.ptp(flat) < 1e-10


@pytest.mark.parametrize(("degree", "sign", "indices"), [(1, 1, (20, 28)), (2, -1, (12, 24))])
def test_on_the_sphere_the_least_eigenvalues_are_those_of_the_whole_hessian(degree, sign, indices):
    # 1 − (κ/β)∫e^{β⟨x,y⟩}ρ on L²(ρ), mean zero, on a product grid of the sphere
    found = branch(3, 5.0, degree, sign=sign)
    z, weights = np.polynomial.legendre.leggauss(20)
    phi = 2 * np.pi * np.arange(32) / 32
    s = np.sqrt(1 - z**2)
    points = np.stack([np.outer(s, np.cos(phi)), np.outer(s, np.sin(phi)), np.outer(z, np.ones(32))], -1).reshape(-1, 3)
    for index in indices:
        share = np.repeat(weights / 64 * found.density(index, z), 32)
        root = np.sqrt(share)
        kernel = found.states.kappa[index] / 5.0 * np.exp(5.0 * points @ points.T) * np.outer(root, root)
        lifted = kernel @ root
        projected = kernel - np.outer(lifted, root) - np.outer(root, lifted) + (root @ lifted) * np.outer(root, root)
        eigenvalues = 1 - eigvalsh(projected)
        rotations = np.argsort(np.abs(eigenvalues))[:2]
        np.testing.assert_allclose(eigenvalues[rotations], 0, atol=1e-8)
        expected = np.min(np.delete(eigenvalues, rotations))
        states = found.states
        least = min(states.least_eigenvalue[index], states.least_transverse_eigenvalue[index])
        assert least == pytest.approx(expected, abs=1e-8)


class TestShape:
    def test_the_branch_at_beta_zero_is_the_closed_form_in_every_dimension(self):
        for dimension in (2, 3, 8, 512):
            found = branch(dimension, 0.0)
            expected = noise.order_parameter(dimension, found.states.kappa[1:])
            np.testing.assert_allclose(found.order_parameter()[1:], expected, rtol=1e-7)
            np.testing.assert_allclose(found.order_parameter()[8:], expected[7:], rtol=1e-10)

    def test_the_onset_is_a_parabola_with_the_curvature_of_weakly_nonlinear_theory(self):
        # κ/κ_# = 1 + m²d(1 − (d−1)g/(1−g))/(d+2), g = a_2/a_1
        for dimension, beta in ((2, 5.0), (2, 1.0), (3, 3.0), (8, 0.5)):
            found = branch(dimension, beta)
            g = growth.consecutive_ratios(dimension, beta, 2)[1]
            expected = dimension * (1 - (dimension - 1) * g / (1 - g)) / (dimension + 2)
            s = found.states.kappa[1:4] / found.states.kappa[0] - 1
            np.testing.assert_allclose(s / found.order_parameter()[1:4] ** 2, expected, rtol=1e-4)

    def test_degree_two_leaves_by_a_slope_on_the_sphere_and_by_a_parabola_on_the_circle(self):
        # κ/κ_2 = 1 − ½E[p_2³]c_2, E[p_2³] = 2√5/7 in three dimensions; the two sides of the curve differ
        for sign in (1, -1):
            found = branch(3, 5.0, 2, sign=sign)
            assert found.states.kappa[1] / found.states.kappa[0] - 1 == pytest.approx(
                -math.sqrt(5) / 7 * found.states.coefficients[1, 2], rel=5e-3
            )
        circle = branch(2, 5.0, 2)
        assert abs(circle.states.kappa[1] / circle.states.kappa[0] - 1) < 1e-5

    def test_branches_of_degree_l_on_the_circle_have_l_peaks(self):
        c = branch(2, 5.0, 3).states.coefficients
        others = np.arange(c.shape[1]) % 3 != 0
        assert np.max(np.abs(c[:, others])) < 1e-10
        assert np.min(c[1:, 3]) > 0

    def test_stability_changes_at_the_fold_alone(self, five):
        m = five.order_parameter()
        np.testing.assert_array_equal(five.states.stable[1:], m[1:] > five.order_parameter(five.folds)[0])
        assert abs(five.folds.least_eigenvalue[0]) < 1e-8
        assert np.all(five.states.least_transverse_eigenvalue[1:] > 0)

    def test_free_energy_falls_as_half_the_interaction_along_the_branch(self, five):
        # dF/dκ = −(1/2β)Σ_{l≥1} a_l c_l² along stationary states
        s = five.states
        attraction = growth.growth_rates(2, 5.0, s.coefficients.shape[1] - 1, "unnormalized")
        l = np.arange(1, len(attraction))
        slope = -0.5 * s.coefficients[:, 1:] ** 2 @ (attraction[1:] / l**2)
        index = len(s) - 5
        steps = np.linspace(s.kappa[index] - 1e-3, s.kappa[index] + 1e-3, 3)
        energies = [five.at(kappa).free_energy[-1] for kappa in steps]
        assert (energies[2] - energies[0]) / 2e-3 == pytest.approx(slope[index], rel=1e-5)

    def test_a_curve_in_beta_passes_through_the_branches_in_kappa(self, five):
        index = int(np.flatnonzero(five.order_parameter() > 0.9)[0])
        kappa = five.states.kappa[index]
        down, up = (steady.branch_in_beta(five, index, beta) for beta in (3.0, 5.5))
        np.testing.assert_array_equal(up.states.kappa, kappa)
        assert up.states.beta[[0, -1]] == pytest.approx([5.0, 5.5], rel=1e-14)
        there = branch(2, 5.5)
        assert up.order_parameter()[-1] == pytest.approx(there.order_parameter(there.at(kappa))[-1], rel=1e-11)
        # its fold is the fold of the branch at that β, its crossing the crossing
        assert branch(2, float(down.folds.beta[0])).folds.kappa[0] == pytest.approx(kappa, rel=1e-10)
        assert branch(2, float(down.crossings.beta[0])).crossings.kappa[0] == pytest.approx(kappa, rel=1e-10)

    def test_states_at_one_coupling_lie_on_it(self, five):
        states = five.at(0.19)
        np.testing.assert_allclose(states.kappa, 0.19, rtol=1e-15)
        assert len(five.at(0.18)) == 0
        assert len(five.at(float(five.states.kappa[0]))) == 2  # the uniform density and the ordered one


class TestFile:
    def test_a_branch_comes_back_with_the_same_bits(self, five, tmp_path):
        five.save(tmp_path / "branch.h5")
        again = steady.read_branch(tmp_path / "branch.h5")
        assert (again.dimension, again.degree) == (2, 1)
        for part in ("states", "folds", "crossings"):
            for name, values in vars(getattr(five, part)).items():
                np.testing.assert_array_equal(getattr(getattr(again, part), name), values)

    def test_branches_without_folds_come_back_too(self, five, tmp_path):
        steady.save([branch(2, 1.0), five], tmp_path / "both.h5")
        again = steady.read_branches(tmp_path / "both.h5")
        assert [len(one.folds) for one in again] == [0, 1]
        assert again[0].folds.coefficients.shape == (0, again[0].states.coefficients.shape[1])

    def test_xarray_and_the_netcdf_library_read_it(self, five, tmp_path):
        five.save(tmp_path / "branch.h5")
        with xarray.open_datatree(tmp_path / "branch.h5", engine="h5netcdf") as tree:
            kappa = tree["branch_0/states/kappa"]
            assert kappa.dims == ("branch_0_states",)
            np.testing.assert_array_equal(kappa, five.states.kappa)
        with netCDF4.Dataset(tmp_path / "branch.h5") as file:
            stored = file["branch_0/states/coefficients"]
            assert stored.dimensions == ("branch_0_states", "branch_0_mode")
            np.testing.assert_array_equal(file["branch_0/folds/kappa"][:], five.folds.kappa)
            np.testing.assert_array_equal(file["branch_0/states/order_parameter"][:], five.order_parameter())

    def test_an_existing_file_stays_unless_overwritten(self, five, tmp_path):
        path = tmp_path / "branch.h5"
        path.write_text("precious")
        with pytest.raises(InputError, match="exists"):
            five.save(path)
        assert path.read_text() == "precious"
        five.save(path, overwrite=True)
        assert len(steady.read_branch(path).states) == len(five.states)
        assert [file.name for file in tmp_path.iterdir()] == ["branch.h5"]

    def test_what_is_no_branch_is_refused(self, five, tmp_path):
        store.write_tables(tmp_path / "other.h5", "sweep", [], {})
        (tmp_path / "text.h5").write_text("no")
        steady.save([five, five], tmp_path / "two.h5")
        for name, key in (("other.h5", "content"), ("text.h5", "path"), ("none.h5", "path"), ("two.h5", "path")):
            with pytest.raises(InputError) as error:
                steady.read_branch(tmp_path / name)
            assert error.value.key == key
        with pytest.raises(InputError, match="content = 'branches'"):
            store.read(tmp_path / "two.h5")


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: steady.branch(1, 5.0), "dimension"),
        (lambda: steady.branch(2, -1.0), "beta"),
        (lambda: steady.branch(2, math.nan), "beta"),
        (lambda: steady.branch(2, 800.0), "beta"),
        (lambda: steady.branch(2, 5.0, 0), "degree"),
        (lambda: steady.branch(2, 0.0, 2), "degree"),
        (lambda: steady.branch(2, 5.0, sign=0), "sign"),
        (lambda: steady.branch(2, 5.0, largest_kappa=0.1), "largest_kappa"),
        (lambda: steady.branch(2, 5.0, largest_kappa=math.inf), "largest_kappa"),
        (lambda: steady.branch(64, 9.0), "kappa"),
        (lambda: steady.branch_in_beta(branch(2, 5.0), 0, 4.0), "index"),
        (lambda: steady.branch_in_beta(branch(2, 5.0), 9, 5.0), "final_beta"),
        (lambda: steady.branch_in_beta(branch(2, 5.0), 9, -1.0), "final_beta"),
        (lambda: steady.branch_in_beta(branch(2, 5.0), -1, 30.0), "kappa"),
        (lambda: steady.branch_in_beta(branch(2, 5.0), -1, 5.1).at(0.2), "branch"),
    ],
)
def test_wrong_input_is_refused_by_key(call, key):
    with pytest.raises(InputError) as error:
        call()
    assert error.value.key == key
