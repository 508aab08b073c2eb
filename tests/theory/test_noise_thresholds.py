"""Noise: thresholds of the uniform density and the ordered state at β = 0."""

import math

import numpy as np
import pytest
from scipy.special import iv, roots_jacobi

from meanfield.keys import InputError
from meanfield.theory import growth, noise


def test_printed_critical_couplings():
    assert noise.critical_coupling(2, 1.0) == pytest.approx(1 / iv(1, 1.0), rel=1e-14)
    assert noise.critical_coupling(2, 1.0) == pytest.approx(1.769413, abs=0.51e-6)
    assert noise.critical_coupling(3, 1.0) == pytest.approx(math.e, rel=1e-14)
    assert noise.critical_coupling(2, 5.0) == pytest.approx(0.205460, abs=0.51e-6)


@pytest.mark.parametrize(("dimension", "printed"), [(2, 2.44691831), (3, 1.81615453), (8, 1.26655302)])
def test_printed_thresholds_of_continuity(dimension, printed):
    threshold = noise.continuity_threshold(dimension)
    assert threshold == pytest.approx(printed, abs=0.51e-8)
    half = dimension / 2
    assert iv(half + 1, threshold) / iv(half, threshold) == pytest.approx(1 / dimension, rel=1e-12)


def test_in_three_dimensions_continuity_ends_where_the_fastest_mode_steps_to_two():
    # both say a_2/a_1 = 1/3
    assert noise.continuity_threshold(3) == pytest.approx(growth.step_beta(3, 1), rel=1e-12)


@pytest.mark.parametrize(("dimension", "beta"), [(2, 1.0), (3, 4.0), (64, 9.0)])
def test_degree_one_is_the_first_to_lose_stability_at_the_critical_coupling(dimension, beta):
    coupling = noise.critical_coupling(dimension, beta)
    rates = growth.growth_rates(dimension, beta, 6, "unnormalized", kappa=coupling)
    assert abs(rates[1]) < 1e-12 * growth.growth_rates(dimension, beta, 1, "unnormalized")[1]
    assert np.all(rates[2:] < 0)


def test_the_critical_coupling_at_beta_zero_is_the_dimension():
    for dimension in (2, 3, 512):
        assert noise.critical_coupling(dimension, 0.0) == dimension
        assert noise.continuity_threshold(dimension) < 2.5


def test_printed_order_parameter():
    assert noise.order_parameter(2, 3.0) == pytest.approx(0.72415872, abs=0.51e-8)


@pytest.mark.parametrize("dimension", [2, 3, 8])
def test_the_ordered_state_is_its_own_mean(dimension):
    # m = ∫x e^{κmx}dσ / ∫e^{κmx}dσ
    x, weights = roots_jacobi(100, (dimension - 3) / 2, (dimension - 3) / 2)
    for excess in (1e-4, 0.5, 20.0):
        kappa = dimension + excess
        m = noise.order_parameter(dimension, kappa)
        tilted = weights * np.exp(kappa * m * (x - 1))
        assert m > 0
        assert tilted @ x / tilted.sum() == pytest.approx(m, rel=1e-10)


def test_order_begins_at_kappa_equal_to_the_dimension_like_a_square_root():
    for dimension in (2, 3, 8):
        below, above = noise.order_parameter(dimension, [dimension, dimension * (1 + 1e-8)])
        assert below == 0.0
        assert above == pytest.approx(math.sqrt((dimension + 2) * dimension * 1e-8) / dimension, rel=1e-6)


def test_shapes_follow_the_couplings():
    m = noise.order_parameter(3, [[1.0, 4.0], [5.0, 100.0]])
    assert m.shape == (2, 2)
    assert 0.0 == m[0, 0] < m[0, 1] < m[1, 0] < m[1, 1] < 1.0


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: noise.critical_coupling(1, 1.0), "dimension"),
        (lambda: noise.critical_coupling(3, -1.0), "beta"),
        (lambda: noise.continuity_threshold(0), "dimension"),
        (lambda: noise.order_parameter(3, 0.0), "kappa"),
    ],
)
def test_wrong_input_is_refused_by_key(call, key):
    with pytest.raises(InputError) as error:
        call()
    assert error.value.key == key
