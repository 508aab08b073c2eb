"""Linear growth about the uniform density: printed values, limits, and the nonlinear equation itself."""

import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.special import ive, jv

from meanfield.keys import InputError
from meanfield.theory import SCHEMES, Scheme, growth


@pytest.mark.parametrize("dimension", [2, 3, 8, 33])
@pytest.mark.parametrize("beta", [0.3, 5.0, 100.0])
def test_ratios_are_ratios_of_bessel_functions(dimension, beta):
    orders = np.arange(13) + dimension / 2 - 1
    expected = ive(orders, beta) / ive(orders[0], beta)
    np.testing.assert_allclose(growth.bessel_ratios(dimension, beta, 12), expected, rtol=2e-13)


def test_ratios_where_bessel_functions_underflow():
    # two terms of the power series are enough at d = 512: a_1/a_0 = (β/d)(1 − β²/(d(d+2)) + ...)
    beta, d = 1e-2, 512
    assert growth.bessel_ratios(d, beta, 1)[1] == pytest.approx(beta / d * (1 - beta**2 / (d * (d + 2))), rel=1e-14)
    assert ive(d / 2 + 40, beta) == 0.0
    assert growth.bessel_ratios(d, beta, 40)[40] > 0.0


def test_ratios_at_large_beta_follow_the_heat_kernel():
    # e^{−Λ_l/(2β)} to leading order: the kernel e^{β⟨x,y⟩} is a Gaussian of variance 1/β
    ratios = growth.bessel_ratios(3, 1e4, 30)
    np.testing.assert_allclose(np.log(ratios), -growth.eigenvalues(3, 30) / 2e4, rtol=1e-3, atol=1e-12)


def test_ratios_at_beta_zero_are_those_of_the_constant():
    np.testing.assert_array_equal(growth.bessel_ratios(5, 0.0, 3), [1.0, 0.0, 0.0, 0.0])


def test_the_constant_multiplier():
    for beta in (1e-3, 1.0, 7.0, 300.0):
        assert growth.log_a0(2, beta) == pytest.approx(beta + math.log(ive(0, beta)), rel=1e-12)
        assert growth.log_a0(3, beta) == pytest.approx(
            beta + math.log(-math.expm1(-2 * beta) / (2 * beta)), rel=1e-12, abs=1e-17
        )
    assert growth.log_a0(7, 0.0) == 0.0
    # the first two terms of the power series at large d, where a_0 = 1 + β²/(2d) + β⁴/(8d(d+2)) + ...
    assert math.exp(growth.log_a0(512, 1.0)) == pytest.approx(1 + 1 / 1024 + 1 / (8 * 512 * 514), rel=1e-9)


def test_multiplicities_of_known_spheres():
    np.testing.assert_allclose(np.exp(growth.log_multiplicities(2, 4)), [1, 2, 2, 2, 2], rtol=1e-13)
    np.testing.assert_allclose(np.exp(growth.log_multiplicities(3, 4)), [1, 3, 5, 7, 9], rtol=1e-13)
    np.testing.assert_allclose(np.exp(growth.log_multiplicities(4, 4)), [1, 4, 9, 16, 25], rtol=1e-13)


@pytest.mark.parametrize(
    ("dimension", "beta", "printed"),
    [
        (2, 5.0, [0.178677, 0.514117, 0.682678, 0.600089]),
        (3, 5.0, [0.320036, 0.623935, 0.672349, 0.510968]),
        (8, 9.0, [0.521209, 0.718813, 0.662604, 0.488184]),
    ],
)
def test_printed_growth_rates(dimension, beta, printed):
    np.testing.assert_allclose(growth.growth_rates(dimension, beta, 4)[1:], printed, rtol=0, atol=0.51e-6)


@pytest.mark.parametrize(
    ("dimension", "printed", "digits"),
    [
        (2, [1.04446, 3.16543, 6.2113, 10.2285, 15.2363], [5, 5, 4, 4, 4]),
        (3, [1.81615, 4.42529, 7.96238, 12.4774, 17.9849], [5, 5, 5, 4, 4]),
    ],
)
def test_printed_steps_of_the_fastest_mode(dimension, printed, digits):
    for degree, (value, places) in enumerate(zip(printed, digits, strict=True), start=1):
        step = growth.step_beta(dimension, degree)
        assert step == pytest.approx(value, abs=0.51 * 10.0**-places)
        assert growth.fastest_degree(dimension, step * (1 - 1e-9)) == degree
        assert growth.fastest_degree(dimension, step * (1 + 1e-9)) == degree + 1
        assert growth.step_beta(dimension, degree, "unnormalized") == step


def test_the_fastest_mode_on_the_circle_is_3_at_beta_5_and_4_at_beta_7():
    assert (growth.fastest_degree(2, 5.0), growth.fastest_degree(2, 7.0)) == (3, 4)


def test_the_doubly_stochastic_mode_steps_where_its_own_two_rates_meet():
    step = growth.step_beta(3, 2, "doubly-stochastic")
    rates = growth.growth_rates(3, step, 3, "doubly-stochastic")
    assert rates[3] == pytest.approx(rates[2], rel=1e-12)
    assert growth.fastest_degree(3, step * (1 + 1e-9), "doubly-stochastic") == 3


def circle_velocity(kind, beta, kernel, density):
    """v on an equispaced grid of the circle, by direct sums and (doubly stochastic) Sinkhorn iteration."""
    nodes = density.size
    wavenumbers = 1j * np.fft.rfftfreq(nodes, 1.0 / nodes)
    scaling = np.ones(nodes)
    if kind == "doubly-stochastic":
        for _ in range(400):
            scaling = np.sqrt(scaling / (kernel @ (scaling * density) / nodes))
        potential = -np.log(scaling)
    else:
        partition = kernel @ density / nodes
        potential = partition if kind == "unnormalized" else np.log(partition)
    return np.fft.irfft(wavenumbers * np.fft.rfft(potential), nodes) / beta


@pytest.mark.parametrize("kind", growth.KINDS)
@pytest.mark.parametrize("degree", [1, 3])
def test_rates_are_those_of_the_continuity_equation_on_the_circle(kind, degree):
    beta, nodes, size = 2.0, 128, 1e-5
    angle = 2 * np.pi * np.arange(nodes) / nodes
    kernel = np.exp(beta * np.cos(angle[:, None] - angle))
    mode = np.cos(degree * angle)
    responses = []
    for sign in (1, -1):  # the even part of the response is of second order
        density = 1 + sign * size * mode
        flux = np.fft.rfft(density * circle_velocity(kind, beta, kernel, density))
        change = -np.fft.irfft(1j * np.fft.rfftfreq(nodes, 1.0 / nodes) * flux, nodes)
        responses.append(sign * 2 * np.mean(change * mode) / size)
    expected = growth.growth_rates(2, beta, degree, kind)[degree]
    assert np.mean(responses) == pytest.approx(expected, rel=1e-8)


def test_rates_at_beta_zero_are_the_limit():
    for kind in growth.KINDS:
        np.testing.assert_allclose(growth.growth_rates(3, 0.0, 3, kind), [0, 2 / 3, 0, 0], rtol=1e-15)
        near = growth.growth_rates(3, 1e-9, 3, kind)
        np.testing.assert_allclose(near, [0, 2 / 3, 0, 0], rtol=0, atol=1e-9)


def test_noise_subtracts_the_eigenvalue_over_kappa():
    difference = growth.growth_rates(8, 4.0, 5) - growth.growth_rates(8, 4.0, 5, kappa=3.0)
    np.testing.assert_allclose(difference, growth.eigenvalues(8, 5) / 3.0, rtol=1e-13)


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("post-ln", 2.848128),
        ("pre-ln", 1.758785),
        ("peri-ln", 2.000000),
        ("ngpt", 4.481689),
        ("sqrt-scaling", 2.009276),
    ],
)
def test_printed_amplifications(name, printed):
    assert growth.amplification(Scheme(name), 3.0, 2, 2.0) == pytest.approx(printed, abs=0.51e-6)


def test_degree_one_grows_by_d_minus_1_over_beta_on_the_clock_of_ngpt():
    for dimension, beta in ((2, 2.0), (3, 5.0), (64, 9.0)):
        amplified = growth.log_amplification(Scheme("ngpt", alpha=0.7), 3.0, dimension, beta)
        assert amplified == pytest.approx((dimension - 1) / beta * 0.7 * 3.0, rel=1e-13)


@pytest.mark.parametrize("name", SCHEMES)
def test_the_clock_is_the_integral_of_one_over_the_speed(name):
    scheme = Scheme(name, initial_radius=0.6, alpha=lambda t: 1 + 0.5 * math.sin(t), switch_time=1.25)
    c, times = 0.37, [0.5, 1.25, 4.0]

    clock, radius, expected = 0.0, 0.6, []
    for start, end in ((0.0, 0.5), (0.5, 1.25), (1.25, 4.0)):
        # on each stretch one rule holds, so a depth inside it names the rule: Mix-LN at τ is still Post-LN
        def rate(t, y, start=start):
            inside = max(t, math.nextafter(start, math.inf))
            return [1 / scheme.speed(inside, y[1], c), scheme.radial_rate(inside, c, c)]

        clock, radius = solve_ivp(rate, (start, end), [clock, radius], method="DOP853", rtol=1e-12, atol=1e-14).y[:, -1]
        expected.append(clock)
    np.testing.assert_allclose(growth.uniform_clock(scheme, times, c), expected, rtol=1e-11)


def test_the_clock_of_pre_ln_at_beta_zero_is_its_limit():
    scheme = Scheme("pre-ln", initial_radius=2.0)
    assert growth.uniform_clock(scheme, 3.0, 0.0) == 1.5
    assert growth.uniform_clock(scheme, 3.0, 1e-9) == pytest.approx(1.5, rel=1e-8)


def test_noise_damps_in_depth_and_not_in_the_clock_of_the_scheme():
    for name in SCHEMES:
        quiet = growth.log_amplification(Scheme(name), 5.0, 3, 2.0, degree=2)
        noisy = growth.log_amplification(Scheme(name), 5.0, 3, 2.0, degree=2, kappa=4.0)
        assert quiet - noisy == pytest.approx(6.0 * 5.0 / 4.0, rel=1e-12)


@pytest.mark.parametrize("beta", [0.5, 3.0])
def test_unnormalised_attention_exceeds_softmax_by_a0(beta):
    a0 = jv(0, 1j * beta).real
    assert growth.mean_attention(2, beta, "unnormalized") == pytest.approx(
        growth.mean_attention(2, beta) * a0, rel=1e-13
    )
    np.testing.assert_allclose(
        growth.growth_rates(2, beta, 4, "unnormalized"), growth.growth_rates(2, beta, 4) * a0, rtol=1e-13
    )


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: growth.growth_rates(1, 1.0, 3), "dimension"),
        (lambda: growth.growth_rates(3, -1.0, 3), "beta"),
        (lambda: growth.growth_rates(3, 1.0, 3, "linear"), "kind"),
        (lambda: growth.growth_rates(3, 1.0, 3, kappa=0.0), "kappa"),
        (lambda: growth.growth_rates(3, 800.0, 3, "unnormalized"), "beta"),
        (lambda: growth.amplification(Scheme("post-ln"), 1.0, 3, 1.0, kappa=-2.0), "kappa"),
        (lambda: growth.amplification(Scheme("ngpt"), 1.0, 3, 0.0), "beta"),
        (lambda: growth.amplification(Scheme("peri-ln"), 1.0, 3, 0.0), "beta"),
        (lambda: growth.amplification(Scheme("post-ln"), -1.0, 3, 1.0), "times"),
        (lambda: growth.step_beta(3, 0), "degree"),
    ],
)
def test_wrong_input_is_refused_by_key(call, key):
    with pytest.raises(InputError) as error:
        call()
    assert error.value.key == key
