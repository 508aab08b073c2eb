"""Equiangular tokens: printed values, and the flow of the tokens themselves."""

import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import brentq

from meanfield.keys import InputError
from meanfield.theory import SCHEMES, Scheme, equiangular


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("post-ln", [0.01001932, 0.91177643, 0.99999560]),
        ("pre-ln", [0.00762298, 0.15379101, 0.68860337]),
        ("mix-ln", [0.01001932, 0.35442300, 0.88574208]),
        ("peri-ln", [0.03904774, 0.67423703, 0.90923118]),
        ("ngpt", [0.11608112, 0.99917937, 0.99999996]),
        ("sqrt-scaling", [0.00728394, 0.16215388, 0.83259145]),
    ],
)
def test_printed_cosines(name, printed):
    path = equiangular.flow(Scheme(name), 5.0, 256, [1.0, 5.0, 10.0])
    np.testing.assert_allclose(path.cosine, printed, rtol=0, atol=0.51e-8)


@pytest.mark.parametrize("name", SCHEMES)
def test_printed_initial_speeds(name):
    beta, n, r0, alpha = 5.0, 256, 0.7, 1.3
    softmax, norm = 2 / (math.exp(beta) + n - 1), 2 / math.sqrt(math.exp(2 * beta) + n - 1)
    printed = {"pre-ln": softmax / r0, "peri-ln": norm / r0, "ngpt": alpha * norm}.get(name, softmax)
    scheme = Scheme(name, initial_radius=r0, alpha=alpha)
    assert equiangular.initial_speed(scheme, beta, n) == pytest.approx(printed, rel=1e-13)
    # and the flow starts with it
    step = 1e-6
    assert equiangular.flow(scheme, beta, n, step).cosine / step == pytest.approx(printed, rel=1e-4)


def tokens_at(cosine, n):
    """n unit vectors of R^{n+1} with one cosine between any two."""
    gram = np.full((n, n), cosine) + (1 - cosine) * np.eye(n)
    return np.pad(np.linalg.cholesky(gram), ((0, 0), (0, 1)))


def attention(directions, beta):
    logits = beta * directions @ directions.T
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights @ directions / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("cosine", [-0.2, 0.0, 0.4, 0.9])
def test_attention_of_equiangular_tokens(cosine):
    directions, beta = tokens_at(cosine, 5), 3.0
    A = attention(directions, beta)
    np.testing.assert_allclose(np.linalg.norm(A, axis=1), equiangular.attention_norm(cosine, beta, 5), rtol=1e-13)
    projections = np.sum(A * directions, axis=1)
    np.testing.assert_allclose(projections, equiangular.attention_projection(cosine, beta, 5), rtol=1e-13)


def alpha(t):
    return 1.0 + 0.5 * math.sin(t)


def pushed(name, t, x, beta):
    """dx/dt of tokens x = rθ, written for the vectors: no speed, no radius."""
    radii = np.linalg.norm(x, axis=1, keepdims=True)
    directions = x / radii
    A = attention(directions, beta)
    unit = A / np.linalg.norm(A, axis=1, keepdims=True)
    if name in ("pre-ln", "peri-ln"):
        return A if name == "pre-ln" else unit
    push = {"post-ln": A, "ngpt": alpha(t) * unit, "sqrt-scaling": A / math.sqrt(t + 1)}[name]
    return radii * (push - directions * np.sum(push * directions, axis=1, keepdims=True))


@pytest.mark.parametrize("name", SCHEMES)
def test_the_flow_is_that_of_the_tokens(name):
    beta, n, r0, tau, final = 2.0, 4, 0.8, 0.75, 2.0
    x = (r0 * tokens_at(0.1, n)).ravel()
    segments = [("post-ln", 0.0, tau), ("pre-ln", tau, final)] if name == "mix-ln" else [(name, 0.0, final)]
    for rule, start, end in segments:
        x = solve_ivp(
            lambda t, y, rule=rule: pushed(rule, t, y.reshape(n, n + 1), beta).ravel(),
            (start, end),
            x,
            method="DOP853",
            rtol=1e-11,
            atol=1e-13,
        ).y[:, -1]
    scheme = Scheme(name, initial_radius=r0, alpha=alpha, switch_time=tau)
    path = equiangular.flow(scheme, beta, n, final, initial_cosine=0.1)
    x = x.reshape(n, n + 1)
    radii = np.linalg.norm(x, axis=1)
    gram = (x @ x.T) / np.outer(radii, radii)
    np.testing.assert_allclose(gram[~np.eye(n, dtype=bool)], path.cosine, rtol=1e-9)
    np.testing.assert_allclose(radii, path.radius, rtol=1e-9)


def test_pre_ln_and_peri_ln_follow_the_same_curve_of_cosine_over_radius():
    beta, n, peri = 5.0, 32, Scheme("peri-ln")
    pre = equiangular.flow(Scheme("pre-ln"), beta, n, [2.0, 6.0, 12.0])
    for cosine, radius in zip(pre.cosine, pre.radius, strict=True):
        time = brentq(lambda t, r=radius: equiangular.flow(peri, beta, n, t).radius - r, 0.0, 40.0, xtol=1e-12)
        assert equiangular.flow(peri, beta, n, time).cosine == pytest.approx(cosine, rel=1e-9)
        assert abs(time - 12.0) > 0.1  # at another depth


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("post-ln", [10.0, 100.0]),
        ("pre-ln", [1e4, 1e5]),
        ("mix-ln", [1e4, 1e5]),
        ("peri-ln", [1e4, 1e5]),
        ("ngpt", [10.0, 100.0]),
        ("sqrt-scaling", [2e4, 2.2e4]),
    ],
)
def test_late_speeds(name, times):
    scheme, beta, n = Scheme(name, alpha=1.1), 1.0, 8
    path = equiangular.flow(scheme, beta, n, times)
    speeds = []
    for t, cosine, distance, radius in zip(times, *path, strict=True):
        s = scheme.speed(t, radius, equiangular.attention_norm(cosine, beta, n))
        speeds.append(distance * equiangular.closing_rate(cosine, beta, n) / s)
    constants = speeds / equiangular.late_speed(scheme, times)
    assert constants[1] == pytest.approx(constants[0], rel=2e-3)


def test_cosine_rate_is_the_derivative_of_the_flow():
    scheme, beta, n, t, h = Scheme("peri-ln"), 3.0, 16, 2.0, 1e-4
    before, here, after = (equiangular.flow(scheme, beta, n, t + k * h) for k in (-1, 0, 1))
    rate = equiangular.cosine_rate(scheme, t, float(here.cosine), float(here.radius), beta, n)
    assert (after.cosine - before.cosine) / (2 * h) == pytest.approx(rate, rel=1e-7)


@pytest.mark.parametrize(("beta", "printed", "digits"), [(1, 5.270284, 6), (5, 9.544329, 6), (9, 178.73093, 5)])
def test_printed_times_of_the_phase_curve(beta, printed, digits):
    time = equiangular.time_to_cosine(Scheme("post-ln"), beta, 32, 0.999)
    assert time == pytest.approx(printed, abs=0.51 * 10.0**-digits)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("switch_time", [0.5, 50.0])
def test_time_to_cosine_inverts_the_flow(name, switch_time):
    scheme = Scheme(name, initial_radius=1.5, alpha=alpha, switch_time=switch_time)
    time = equiangular.time_to_cosine(scheme, 2.0, 16, 0.9, initial_cosine=0.05)
    assert equiangular.flow(scheme, 2.0, 16, time, initial_cosine=0.05).cosine == pytest.approx(0.9, rel=1e-10)


def test_times_come_back_in_the_order_and_shape_asked():
    scheme = Scheme("mix-ln")
    path = equiangular.flow(scheme, 2.0, 16, [[3.0, 0.0], [1.0, 3.0]])
    assert path.cosine.shape == (2, 2)
    assert path.cosine[0, 1] == 0.0
    assert path.cosine[0, 0] == path.cosine[1, 1] == equiangular.flow(scheme, 2.0, 16, 3.0).cosine
    assert path.cosine[1, 0] == equiangular.flow(scheme, 2.0, 16, 1.0).cosine


def test_large_beta_overflows_nothing():
    path = equiangular.flow(Scheme("post-ln"), 2000.0, 8, [1.0], initial_cosine=0.999)
    assert 0.999 < path.cosine[0] < 1.0


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: equiangular.flow(Scheme("post-ln"), -1.0, 8, 1.0), "beta"),
        (lambda: equiangular.flow(Scheme("post-ln"), 1.0, 1, 1.0), "tokens"),
        (lambda: equiangular.flow(Scheme("post-ln"), 1.0, 8, 1.0, initial_cosine=-1 / 7), "cosine"),
        (lambda: equiangular.flow(Scheme("post-ln"), 1.0, 8, 1.0, initial_cosine=1.0), "cosine"),
        (lambda: equiangular.flow(Scheme("post-ln"), 1.0, 8, [1.0, -1.0]), "times"),
        (lambda: equiangular.time_to_cosine(Scheme("post-ln"), 1.0, 8, 0.2, initial_cosine=0.3), "final_cosine"),
        (lambda: equiangular.late_speed(Scheme("post-ln"), 0.0), "times"),
    ],
)
def test_wrong_input_is_refused_by_key(call, key):
    with pytest.raises(InputError) as error:
        call()
    assert error.value.key == key
