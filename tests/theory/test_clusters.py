"""Late times: the decay laws, and two clusters that merge."""

import math

import numpy as np
import pytest

from meanfield.keys import InputError
from meanfield.theory import SCHEMES, Scheme, clusters, equiangular


@pytest.mark.parametrize(("beta", "printed"), [(0.0, 2.994898), (5.0, 18.615308)])
def test_printed_merging_times(beta, printed):
    assert clusters.merging_time(math.pi / 2, 0.1, beta) == pytest.approx(printed, abs=0.51e-6)


def test_merging_time_at_beta_zero_does_not_depend_on_the_masses():
    expected = math.log(math.tan(1.0) / math.tan(0.05))
    for mass in (0.1, 0.5, 0.9):
        assert clusters.merging_time(2.0, 0.1, 0.0, mass) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("mass", [0.2, 0.5])
def test_closing_rate_is_that_of_two_weighted_tokens(mass):
    beta, angle = 3.0, 1.1
    theta = np.array([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])
    weights = np.exp(beta * theta @ theta.T) * [mass, 1 - mass]
    A = weights @ theta / weights.sum(axis=1, keepdims=True)
    velocity = A - theta * np.sum(A * theta, axis=1, keepdims=True)
    # d cos φ/dt = ⟨v₁,θ₂⟩ + ⟨θ₁,v₂⟩ = −sin φ dφ/dt
    cosine_rate = velocity[0] @ theta[1] + theta[0] @ velocity[1]
    assert clusters.closing_rate(angle, beta, mass) == pytest.approx(cosine_rate / math.sin(angle) ** 2, rel=1e-12)


def test_equal_clusters_are_two_equiangular_tokens():
    path = equiangular.flow(Scheme("post-ln"), 4.0, 2, [1.0, 3.0, 8.0], initial_cosine=math.cos(2.0))
    np.testing.assert_allclose(np.cos(clusters.cluster_angle([1.0, 3.0, 8.0], 2.0, 4.0)), path.cosine, rtol=1e-10)


@pytest.mark.parametrize("mass", [0.15, 0.5, 0.7])
def test_cluster_angle_reaches_the_angle_of_the_merging_time(mass):
    time = clusters.merging_time(3.0, 0.2, 4.0, mass)
    assert clusters.cluster_angle(time, 3.0, 4.0, mass) == pytest.approx(0.2, rel=1e-9)


def test_close_clusters_approach_at_unit_rate_whatever_their_masses():
    angles = clusters.cluster_angle([40.0, 41.0], 1.0, 2.0, 0.3)
    assert angles[0] < 1e-12
    assert angles[1] / angles[0] == pytest.approx(math.exp(-1.0), rel=1e-10)


@pytest.mark.parametrize("name", SCHEMES)
def test_the_late_decay_is_twice_the_rate_of_the_narrow_cone(name):
    # dVar/dt = −2Var/S for the law of 1 − |∫θdμ|²
    scheme, t, h = Scheme(name, alpha=lambda t: 1 / (1 + t)), 7.0, 1e-5
    later, earlier = (math.log(clusters.late_decay(scheme, t + k * h)) for k in (1, -1))
    rate = (later - earlier) / (2 * h)
    assert -rate * clusters.late_scale(scheme, t) == pytest.approx(2.0, rel=1e-8)


def test_printed_late_laws():
    t = np.array([4.0, 9.0])
    ngpt = Scheme("ngpt", alpha=0.5)
    np.testing.assert_allclose(clusters.late_decay(Scheme("post-ln"), t), np.exp(-2 * t))
    np.testing.assert_allclose(clusters.late_decay(ngpt, t), np.exp(-t))
    np.testing.assert_allclose(clusters.late_decay(Scheme("sqrt-scaling"), t), np.exp([-8.0, -12.0]))
    for name in ("pre-ln", "mix-ln", "peri-ln"):
        np.testing.assert_allclose(clusters.late_decay(Scheme(name), t), [1 / 16, 1 / 81])
    np.testing.assert_array_equal(clusters.late_scale(ngpt, t), [2.0, 2.0])


@pytest.mark.parametrize("name", ["pre-ln", "peri-ln", "ngpt"])
def test_the_order_parameter_of_equiangular_tokens_obeys_the_law(name):
    scheme, n = Scheme(name), 8
    times = [10.0, 20.0] if name == "ngpt" else [1e5, 1e6]
    path = equiangular.flow(scheme, 1.0, n, times)
    deficit = (n - 1) / n * path.distance  # 1 − |∫θdμ|² = 1 − (1+(n−1)γ)/n
    constants = deficit / clusters.late_decay(scheme, times)
    assert constants[1] == pytest.approx(constants[0], rel=1e-3)


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: clusters.merging_time(1.0, 2.0, 1.0), "final_angle"),
        (lambda: clusters.merging_time(4.0, 2.0, 1.0), "initial_angle"),
        (lambda: clusters.merging_time(2.0, 1.0, -1.0), "beta"),
        (lambda: clusters.cluster_angle(1.0, 1.0, 1.0, mass=1.0), "mass"),
        (lambda: clusters.cluster_angle(-1.0, 1.0, 1.0), "times"),
        (lambda: clusters.late_decay(Scheme("pre-ln"), 0.0), "times"),
    ],
)
def test_wrong_input_is_refused_by_key(call, key):
    with pytest.raises(InputError) as error:
        call()
    assert error.value.key == key
