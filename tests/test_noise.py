"""Noise: the exponential method, growth about the uniform density, steady states, the free energy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from small_runs import assert_same_bits, two_bumps

import meanfield as mf
from meanfield import exponential, integrate
from meanfield.keys import InputError
from meanfield.theory import growth, noise

TIGHT = {"rtol": 1e-10, "atol": 1e-12}


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def usa(beta: float, kappa: float, scheme=None) -> mf.Model:
    return mf.Model(mf.Attention(beta, normalized=False), scheme or mf.PostLN(), mf.Noise(kappa))


class TestMethod:
    def test_phi_functions_to_round_off(self):
        z = -np.concatenate([np.geomspace(1e-12, 1e6, 60), [0.0, 1.0, 0.999999, 1.000001]])
        with mpmath.workdps(60):
            for k, values in enumerate(exponential.phi(z), start=1):
                for x, value in zip(z, np.asarray(values), strict=True):
                    m = mpmath.mpf(float(x))
                    exact = mpmath.mpf(1) / mpmath.factorial(k)
                    if m != 0:
                        exact = (mpmath.exp(m) - sum(m**j / mpmath.factorial(j) for j in range(k))) / m**k
                    assert value == pytest.approx(float(exact), rel=1e-14)

    def test_without_stiffness_the_weights_are_those_of_the_classical_method(self):
        A, decay = exponential.tableau(jnp.zeros(1))
        A = np.asarray(A)[..., 0]
        np.testing.assert_allclose(A.sum(axis=1), exponential.C, atol=1e-15)
        np.testing.assert_allclose(A[5, :5] @ exponential.C[:5, None] ** np.arange(4), 1 / np.arange(1, 5), atol=1e-15)
        assert np.all(np.asarray(decay) == 1)

    @pytest.mark.parametrize("degree", [8, 64])
    def test_steps_are_of_order_four_at_any_degree(self, degree):
        """On the circle at β = 2, κ = 1: eigenvalues reach −4096, h·Λ/κ is 40 and more."""
        chosen = usa(2.0, 1.0)
        grid = mf.Circle().grid(degree)
        state = mf.Density(grid, mf.vmf_mixture(mf.Circle(), [[1.0, 0.0]], [0.9]).coefficients(grid))
        step = jax.jit(exponential.step)
        exact = mf.evolve(chosen, state, 0.0, 0.8, 1e-12, 1e-14).coefficients
        counts, errors = (8, 16, 32), []
        for count in counts:
            now, h = state, 0.8 / count
            for k in range(count):
                now = now.moved(step(chosen, now, k * h, h, 1.0, 1.0).moving)
            errors.append(np.abs(now.coefficients - exact).max())
        order = -np.polyfit(np.log(counts), np.log(errors), 1)[0]
        assert order > 3.8

    def test_it_agrees_with_an_implicit_method_of_another_library(self):
        chosen = mf.Model(mf.Attention(2.0), mf.SqrtScaling(), mf.Noise(3.0))
        grid = mf.Circle().grid(12)
        state = mf.Density(grid, mf.vmf_mixture(mf.Circle(), [[1.0, 0.0]], [1.0]).coefficients(grid))
        rate = jax.jit(lambda t, c: chosen.rate(state.moved(c), t))
        solved = solve_ivp(
            lambda t, c: np.asarray(rate(t, c)), (0, 1.5), state.coefficients, "Radau", rtol=1e-11, atol=1e-13
        )
        end = mf.evolve(chosen, state, 0.0, 1.5, 1e-11, 1e-13)
        np.testing.assert_allclose(end.coefficients, solved.y[:, -1], atol=1e-9)

    def test_the_error_follows_the_tolerance(self):
        chosen = usa(2.0, 2.0)
        grid = mf.Circle().grid(24)
        state = mf.Density(grid, mf.vmf_mixture(mf.Circle(), [[1.0, 0.0]], [1.0]).coefficients(grid))
        exact = mf.evolve(chosen, state, 0.0, 1.0, 1e-13, 1e-15).coefficients
        for rtol in (1e-5, 1e-7, 1e-9):
            error = np.abs(mf.evolve(chosen, state, 0.0, 1.0, rtol, 1e-2 * rtol).coefficients - exact).max()
            assert 1e-4 * rtol < error < 5 * rtol

    def test_steps_do_not_grow_in_number_with_the_degree(self):
        counts = []
        for degree in (16, 64, 256):
            grid = mf.Circle().grid(degree)
            state = mf.Density(grid, mf.vmf_mixture(mf.Circle(), [[1.0, 0.0]], [1.0]).coefficients(grid))
            limits = integrate.Limits(1e-8, 1e-10, np.inf, -np.inf)
            done = jax.jit(integrate.advance)(usa(2.0, 2.0), state, integrate.start(state, 0.0), 2.0, limits)
            counts.append(int(done.accepted) + int(done.rejected))
        assert max(counts) <= 1.1 * min(counts)


@pytest.mark.parametrize("kind", ["softmax", "unnormalized"])
@pytest.mark.parametrize(
    ("space", "mode"), [(mf.Circle(), [2, 2]), (mf.Sphere(), [2, -1]), (mf.Zonal(8), [2, 0])], ids=["d=2", "d=3", "d=8"]
)
def test_modes_grow_at_their_rate_less_the_damping(space, mode, kind):
    """σ_l − Λ_l/κ, relative 1e-5."""
    beta, kappa, t = 2.0, 6.0, 1.5
    law = mf.perturbed_uniform(space, [[*mode, 1e-6]])
    chosen = mf.Model(mf.Attention(beta, normalized=kind == "softmax"), noise=mf.Noise(kappa))
    run = mf.solve(chosen, law, t, 2, degree=6, rtol=1e-13, atol=1e-18)
    index = int(np.flatnonzero(law.coefficients(space.grid(6)) == 1e-6)[0])
    grown = np.log(run.arrays["density/coefficients"][-1, index] / 1e-6) / t
    l, d = mode[0], space.dimension
    expected = growth.growth_rates(d, beta, l, kind)[l] - l * (l + d - 2) / kappa
    assert grown == pytest.approx(expected, rel=1e-5)


def test_heat_alone_decays_exactly():
    """Heads that send every value to 0 leave the heat equation: e^{−Λt/κ} of every mode, in a step of any size."""
    nothing = mf.Heads(np.eye(3), np.eye(3), np.zeros((3, 3)))
    chosen = mf.Model(mf.Attention(1.0, heads=nothing), noise=mf.Noise(2.0))
    run = mf.solve(chosen, two_bumps(), 0.7, 2, degree=16)
    grid, c = run.state().grid, run.arrays["density/coefficients"]
    np.testing.assert_allclose(c[1], np.exp(grid.laplacian * 0.7 / 2.0) * c[0], atol=1e-14)


@pytest.mark.parametrize(
    ("space", "d"), [(mf.Circle(), 2), (mf.Sphere(), 3), (mf.Zonal(8), 8)], ids=["d=2", "d=3", "d=8"]
)
def test_at_beta_zero_the_order_parameter_is_that_of_the_steady_state(space, d):
    """m = I_{d/2}(κm)/I_{d/2−1}(κm); the steady density is a von Mises–Fisher law of concentration κm."""
    kappa = 1.6 * d
    m = float(noise.order_parameter(d, [kappa])[0])
    steady = mf.vmf_mixture(space, [space.axis], [kappa * m])
    stays = mf.solve(usa(0.0, kappa), steady, 10.0, 6, degree=24)
    np.testing.assert_allclose(stays.observables["order_parameter"], m, atol=1e-8)
    np.testing.assert_allclose(
        stays.arrays["density/coefficients"], np.tile(steady.coefficients(space.grid(24)), (6, 1)), atol=1e-7
    )
    comes = mf.solve(usa(0.0, kappa), mf.vmf_mixture(space, [space.axis], [0.3]), 100.0, 3, degree=24)
    assert comes.observables["order_parameter"][-1] == pytest.approx(m, abs=1e-7)


def test_the_printed_order_parameter():
    """d = 2, κ = 3: .72415872 (mathematics page, 3.5), found by running to the steady state."""
    run = mf.solve(usa(0.0, 3.0), mf.vmf_mixture(mf.Circle(), [[1.0, 0.0]], [1.0]), 100.0, 3, degree=32)
    assert run.observables["order_parameter"][-1] == pytest.approx(0.72415872, abs=2e-8)


def test_the_free_energy_falls_and_the_energy_need_not():
    """F = ∫ρ log ρ dσ − κ E with E = (2β)⁻¹∬ e^{β⟨x,y⟩} dμdμ, unnormalised attention."""
    beta, kappa = 2.0, 1.2
    run = mf.solve(usa(beta, kappa), two_bumps(), 3.0, 31, degree=20, **TIGHT)
    assert run.message == ""
    nodes, weights = mf.Sphere().quadrature(40)
    entropies = []
    for t in run.times:
        rho = run.density(t)(nodes)
        entropies.append(weights @ (rho * np.log(rho)))
    free = np.array(entropies) - kappa * np.exp(beta) * run.observables["energy"]
    assert np.diff(free).max() < 0
    assert np.diff(run.observables["energy"]).min() < 0
    np.testing.assert_array_equal(run.observables["mass"], run.observables["mass"][0])


def test_a_resumed_run_has_the_same_bits(tmp_path):
    options = {"final_time": 1.0, "frames": 5, "degree": 12}
    whole = mf.solve(usa(1.0, 3.0), two_bumps(), **options)

    def stop(report):
        if report.frame == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mf.solve(usa(1.0, 3.0), two_bumps(), **options, path=tmp_path / "run.h5", progress=stop)
    assert_same_bits(mf.solve(usa(1.0, 3.0), two_bumps(), **options, path=tmp_path / "run.h5", resume=True), whole)
    assert float(mf.open(tmp_path / "run.h5").model.noise.kappa) == 3.0


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"noise.kappa": 0.0}, "noise.kappa"),
        ({"noise.kappa": float("nan")}, "noise.kappa"),
        ({"noise.kapa": 1.0}, "noise.kapa"),
        ({"noise.kappa": 1.0, "solver.method": "characteristics"}, "solver.method"),
        ({"noise.kappa": 1.0, "solver.method": "particles", "time": {"layers": 2, "step": 0.1}}, "layers"),
        ({"noise.kappa": 1.0, "normalization.scheme": "pre-ln"}, "solver.method"),
    ],
)
def test_what_noise_does_not_go_with_is_refused_by_name(changes, key):
    with pytest.raises(InputError) as refused:
        mf.read_case("cases/three_bumps.toml", changes).solve()
    assert key in str(refused.value)
