"""Whole flows against exact mean fields, against each other, and against the laws that all of them obey."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.spatial.transform import Rotation
from scipy.stats import ortho_group

from meanfield.attention import Attention
from meanfield.density import Density
from meanfield.ensemble import Ensemble
from meanfield.geometry import Sphere
from meanfield.integrate import evolve
from meanfield.model import Model
from meanfield.normalization import NGPT, SCHEMES, MixLN, PeriLN, PostLN, PreLN, SqrtScaling
from meanfield.observables import order_parameter

RTOL, ATOL = 1e-10, 1e-12
GRID, MOMENTS, NODES = Sphere().grid(40), Sphere().grid(24), Sphere().quadrature(24)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def flow(beta, scheme, state, t0, t1):
    return evolve(Model(Attention(beta), scheme), state, t0, t1, RTOL, ATOL)


def units(count: int, dimension: int, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((count, dimension))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def on_the_grid(rho) -> Density:
    return Density(GRID, np.asarray(GRID.analyze(rho(GRID.nodes))))


def on_characteristics(rho) -> Ensemble:
    nodes, weights = NODES
    return Ensemble(nodes, weights * rho(nodes), MOMENTS)


def ode(rate, start, times):
    """The solution of dy/dt = rate(t, y) by SciPy, (time, component)."""
    done = solve_ivp(rate, (0, times[-1]), start, method="DOP853", t_eval=times, rtol=1e-13, atol=1e-15)
    return done.y.T


# ------------------------------------------------------------------ equiangular tokens, d ≥ n

N, BETA, TIMES = 256, 5.0, [1.0, 5.0, 10.0]
EQUIANGULAR = {
    PostLN: [0.01001932, 0.91177643, 0.99999560],
    PreLN: [0.00762298, 0.15379101, 0.68860337],
    MixLN: [0.01001932, 0.35442300, 0.88574208],
    PeriLN: [0.03904774, 0.67423703, 0.90923118],
    NGPT: [0.11608112, 0.99917937, 0.99999996],
    SqrtScaling: [0.00728394, 0.16215388, 0.83259145],
}


def equiangular_cosine(cls) -> np.ndarray:
    """γ of dγ/dt = (2/s) w(1−γ)(1+(n−1)γ)/Z with dr/dt = 0, a or a/‖A‖ (2510.22026, 2512.01868), at TIMES."""

    def rate(t, y):
        gamma, r = y
        u, w = np.exp(BETA), np.exp(BETA * gamma)
        Z = u + (N - 1) * w
        a = (u + (N - 1) * gamma * w) / Z
        A = np.sqrt(u**2 + 2 * (N - 1) * gamma * u * w + w**2 * (N - 1) * (1 + (N - 2) * gamma)) / Z
        pre = cls is PreLN or (cls is MixLN and t > 1)
        s = {PeriLN: r * A, NGPT: A, SqrtScaling: np.sqrt(t + 1)}.get(cls, r if pre else 1.0)
        return [2 / s * w * (1 - gamma) * (1 + (N - 1) * gamma) / Z, a if pre else a / A if cls is PeriLN else 0.0]

    if cls is not MixLN:
        return ode(rate, [0.0, 1.0], TIMES)[:, 0]
    before = ode(rate, [0.0, 1.0], [1.0])
    after = ode(lambda t, y: rate(t + 1 + 1e-12, y), before[-1], [4.0, 9.0])
    return np.concatenate([before, after])[:, 0]


@pytest.mark.parametrize("cls", SCHEMES)
def test_orthogonal_tokens_stay_equiangular_and_follow_the_exact_cosine(cls):
    state, cosines, t0 = Ensemble(np.eye(N), np.full(N, 1 / N)), [], 0.0
    for t1 in TIMES:
        state, t0 = flow(BETA, cls(), state, t0, t1), t1
        theta = np.asarray(state.directions)
        pairs = (theta @ theta.T)[~np.eye(N, dtype=bool)]
        assert np.ptp(pairs) < 1e-12
        cosines.append(pairs.mean())
    np.testing.assert_allclose(cosines, equiangular_cosine(cls), atol=1e-8)
    np.testing.assert_allclose(cosines, EQUIANGULAR[cls], atol=6e-9)


def test_pre_ln_and_peri_ln_follow_the_same_curve_of_cosine_against_radius():
    def track(cls, count):
        states = [flow(BETA, cls(), Ensemble(np.eye(8), np.full(8, 1 / 8)), 0.0, t) for t in np.linspace(0.5, 3, count)]
        tokens = np.array([state.x[:2] for state in states])
        radii = np.linalg.norm(tokens, axis=-1)
        return radii[:, 0], np.sum(tokens[:, 0] * tokens[:, 1], axis=-1) / np.prod(radii, axis=-1)

    (radius, cosine), peri = track(PreLN, 6), track(PeriLN, 40)
    inside = radius < peri[0][-1]
    assert inside.sum() > 2
    curve = np.polynomial.Polynomial.fit(*peri, deg=15)
    np.testing.assert_allclose(curve(radius[inside]), cosine[inside], atol=1e-8)


# ------------------------------------------------------------------ β = 0, the Kuramoto family of S²

W0 = 0.2
KURAMOTO = {1.0: 0.4747501, 2.0: 0.7347274, 4.0: 0.9809040}


def kuramoto(points):
    """f_w = ((1−|w|²)/|x−w|²)², w = 0.2 along the last axis."""
    return ((1 - W0**2) / (1 + W0**2 - 2 * W0 * points[:, 2])) ** 2


def mean_of(w):
    """|∫x f_w dσ| on S²."""
    return (1 + w**2) / (2 * w) - (1 - w**2) ** 2 / (4 * w**2) * np.log((1 + w) / (1 - w))


@functools.cache
def kuramoto_order(scheme: str, t: float) -> float:
    if scheme == "ngpt":
        # dw/dt = ½(1−w²)
        return float(mean_of(np.tanh(np.arctanh(W0) + t / 2)))
    clock = t if scheme == "post-ln" else 2 * (np.sqrt(t + 1) - 1)
    return float(mean_of(ode(lambda t, w: (1 - w**2) / 2 * mean_of(w), [W0], [clock])[0, 0]))


def test_the_closed_form_has_the_printed_digits():
    for t, printed in KURAMOTO.items():
        assert kuramoto_order("post-ln", t) == pytest.approx(printed, abs=6e-8)


@pytest.mark.parametrize("start", [on_the_grid, pytest.param(on_characteristics, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scheme", [PostLN(), NGPT(), SqrtScaling()], ids=lambda s: s.case_name)
def test_at_beta_zero_the_order_parameter_is_that_of_the_kuramoto_family(scheme, start):
    # nGPT gathers the tokens faster than 25 latitudes of them can tell at t = 2
    for t in (0.5, 1.0) if scheme.divides_by_attention else (1.0, 2.0):
        state = flow(0.0, scheme, start(kuramoto), 0.0, t)
        assert float(order_parameter(state)) == pytest.approx(kuramoto_order(scheme.case_name, t), abs=1e-9)


def test_the_order_parameter_of_a_density_outlives_its_resolution():
    late = flow(0.0, PostLN(), on_the_grid(kuramoto), 0.0, 4.0)
    assert float(late.resolution()) > 1e-4
    assert float(order_parameter(late)) == pytest.approx(KURAMOTO[4.0], abs=6e-8)


# ------------------------------------------------------------------ near the uniform density

SIGMA = [0.320036, 0.623935, 0.672349, 0.510968]  # σ_l, l = 1 … 4, at d = 3, β = 5 (softmax)
C = 0.4 ** (-1) * SIGMA[0]  # c = a_1/a_0 from σ_1/c = (d−1)/β


@pytest.mark.parametrize(
    ("scheme", "amplification"),
    [
        (PostLN(), lambda sigma, t: np.exp(sigma * t)),
        (NGPT(0.5), lambda sigma, t: np.exp(sigma / C * t / 2)),
        (SqrtScaling(), lambda sigma, t: np.exp(2 * sigma * (np.sqrt(t + 1) - 1))),
    ],
    ids=lambda p: getattr(p, "case_name", ""),
)
def test_modes_of_the_uniform_density_grow_at_their_rates(scheme, amplification):
    uniform = np.where(GRID.degrees == 0, 1.0, 0.0)
    small = 1e-8 * np.random.default_rng(0).standard_normal(GRID.size) * ((GRID.degrees > 0) & (GRID.degrees < 5))
    grown = np.asarray(flow(5.0, scheme, Density(GRID, uniform + small), 0.0, 3.0).coefficients)
    for degree, sigma in enumerate(SIGMA, start=1):
        same = GRID.degrees == degree
        np.testing.assert_allclose(grown[same], small[same] * amplification(sigma, 3.0), rtol=1e-5, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "growth"), [(PreLN(), (1 + 3 * C) ** 0.4), (PeriLN(), 4**0.4)], ids=lambda p: getattr(p, "case_name", "")
)
def test_the_order_parameter_near_the_uniform_law_grows_by_a_power_where_radii_are_free(scheme, growth):
    tilted = on_characteristics(lambda x: 1 + 1e-6 * np.sqrt(3) * x[:, 0])
    before, after = (float(order_parameter(s)) for s in (tilted, flow(5.0, scheme, tilted, 0.0, 3.0)))
    assert after / before == pytest.approx(growth, rel=2e-6)


# ------------------------------------------------------------------ two clusters


@pytest.mark.parametrize(("beta", "duration"), [(0.0, 2.994898), (5.0, 18.615308)])
def test_two_equal_clusters_meet_in_their_time(beta, duration):
    right_angle = Ensemble(np.eye(2), np.full(2, 0.5))
    theta = np.asarray(flow(beta, PostLN(), right_angle, 0.0, duration).directions)
    assert np.arccos(theta[0] @ theta[1]) == pytest.approx(0.1, abs=1e-7)


def test_two_unequal_clusters_meet_as_their_masses_say():
    m, beta = 0.3, 2.0

    def rate(t, phi):
        E = np.exp(beta * (1 - np.cos(phi)))
        return -np.sin(phi) * ((1 - m) / (m * E + 1 - m) + m / ((1 - m) * E + m))

    theta = np.asarray(flow(beta, PostLN(), Ensemble(np.eye(2), np.array([m, 1 - m])), 0.0, 2.0).directions)
    assert np.arccos(theta[0] @ theta[1]) == pytest.approx(ode(rate, [np.pi / 2], [2.0])[0, 0], abs=1e-9)


# ------------------------------------------------------------------ density against characteristics


def bumps(means, concentrations, weights):
    """A mixture of von Mises–Fisher laws: Σ w κ/sinh κ e^{κ⟨m,x⟩}."""
    means = np.array(means) / np.linalg.norm(means, axis=1, keepdims=True)
    heights = np.array(weights) * concentrations / np.sinh(concentrations)
    return lambda x: np.exp(x @ (means.T * concentrations)) @ heights


LOPSIDED = bumps([[1, 0, 0], [0, 1, 0.2], [-0.3, 0.2, 1]], [3.0, 2.0, 4.0], [0.5, 0.3, 0.2])
CLOUD = bumps([[0.3, 0, 1], [-0.2, 0.3, 1], [0, -0.4, 1]], [8.0, 6.0, 10.0], [0.5, 0.3, 0.2])


@pytest.mark.parametrize("beta", [1.0, 4.0])
@pytest.mark.parametrize(
    ("scheme", "law", "t"),
    [(PostLN(), LOPSIDED, 1.0), (SqrtScaling(), LOPSIDED, 1.0), (NGPT(), CLOUD, 0.5)],
    ids=["post-ln", "sqrt-scaling", "ngpt"],
)
def test_density_and_characteristics_agree(scheme, law, t, beta):
    density, tokens = (flow(beta, scheme, start(law), 0.0, t) for start in (on_the_grid, on_characteristics))
    np.testing.assert_allclose(density.mean_direction(), tokens.mean_direction(), atol=1e-8)
    assert abs(float(order_parameter(density)) - float(order_parameter(tokens))) < 1e-8
    assert float(order_parameter(density)) > float(order_parameter(on_the_grid(law))) + 0.01
    # and so do all moments up to degree 3, which no symmetry makes vanish
    low = np.asarray(MOMENTS.moments(tokens.directions, tokens.weights))[:16]
    np.testing.assert_allclose(density.coefficients[:16], low, atol=2e-8)
    assert np.abs(low).min() > 1e-6
    assert abs(float(density.mass()) - 1) < 1e-13
    assert float(density.mass()) == float(on_the_grid(law).mass())


def test_the_density_in_a_patch_is_the_weight_of_the_tokens_in_it():
    # the mass near the pole, which all tokens pass or settle in, is what the tokens there weigh
    patch = bumps([[0, 0, 1]], [30.0], [1.0])
    density, tokens = (flow(1.0, PostLN(), start(LOPSIDED), 0.0, 1.0) for start in (on_the_grid, on_characteristics))
    seen = np.asarray(tokens.weights) @ patch(np.asarray(tokens.directions))
    assert float(density.weights @ patch(GRID.nodes)) == pytest.approx(seen, abs=1e-6)


# ------------------------------------------------------------------ energy

STATES = {
    "density": lambda: on_the_grid(LOPSIDED),
    "characteristics": lambda: on_characteristics(LOPSIDED),
    "tokens": lambda: Ensemble(
        np.linspace(0.5, 2, 12)[:, None] * units(12, 5), np.random.default_rng(1).dirichlet(np.ones(12))
    ),
}
AT = 0.7


@jax.jit
def energy_and_its_rate(model, state):
    """e^{−β}E, its derivative along the flow, and the field, at depth AT."""

    def energy(moving):
        now = state.moved(moving)
        return model.attention.energy(AT, model.field(now, AT).partition, now.weights, order_parameter(now))

    value, rate = jax.jvp(energy, (jnp.asarray(state.moving),), (model.rate(state, AT),))
    return value, rate, model.field(state, AT), state.directions, state.weights


def speed(scheme, r, A):
    size = np.linalg.norm(A, axis=-1)
    return {PreLN: r, PeriLN: r * size, NGPT: size / 0.6, SqrtScaling: np.sqrt(AT + 1)}.get(type(scheme), 1.0)


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [("tokens", s) for s in (PostLN(), PreLN(), PeriLN(), NGPT(0.6), SqrtScaling())]
    + [("density", PostLN()), ("density", NGPT(0.6))]
    + [pytest.param("characteristics", PeriLN(), marks=pytest.mark.slow)],
    ids=lambda p: getattr(p, "case_name", p),
)
def test_energy_grows_at_the_rate_of_the_gradient_flow(kind, scheme):
    # dE/dt = ∫ (Z/s) |P_θA|² dμ
    state = STATES[kind]()
    _, rate, field, theta, weights = energy_and_its_rate(Model(Attention(2.0), scheme), state)
    A, Z, theta = np.asarray(field.vector), np.asarray(field.partition), np.asarray(theta)
    tangential = A - np.sum(A * theta, axis=-1, keepdims=True) * theta
    s = speed(scheme, 1.0 if kind == "density" else np.asarray(state.radius), A)
    exact = np.sum(np.asarray(weights) * Z / s * np.sum(tangential**2, axis=-1))
    assert exact > 0.001
    assert float(rate) == pytest.approx(exact, rel=1e-11)


@pytest.mark.parametrize("kind", ["density", "tokens"])
def test_energy_of_unnormalised_attention_grows_at_the_square_of_the_velocity(kind):
    # dE/dt = ∫ |v|² dμ
    beta, state = 2.0, STATES[kind]()
    _, rate, field, theta, weights = energy_and_its_rate(Model(Attention(beta, normalized=False), PostLN()), state)
    A, theta = np.asarray(field.vector), np.asarray(theta)
    velocity = A - np.sum(A * theta, axis=-1, keepdims=True) * theta
    exact = np.exp(-beta) * np.sum(np.asarray(weights) * np.sum(velocity**2, axis=-1))
    assert float(rate) == pytest.approx(exact, rel=1e-11)


def test_energies_of_the_uniform_density_and_of_a_point():
    # E(σ) = a_0/2β = sinh β/(2β²) on S², E(δ) = e^β/2β
    beta, model = 2.0, Model(Attention(2.0))
    uniform, *_ = energy_and_its_rate(model, on_the_grid(lambda x: np.ones(len(x))))
    point, *_ = energy_and_its_rate(model, Ensemble(np.eye(5)[:1], np.ones(1)))
    assert float(uniform) == pytest.approx(np.exp(-beta) * np.sinh(beta) / (2 * beta**2), rel=1e-13)
    assert float(point) == pytest.approx(1 / (2 * beta), rel=1e-13)


# ------------------------------------------------------------------ symmetry


@pytest.mark.parametrize("cls", SCHEMES)
def test_a_run_of_turned_tokens_is_the_turned_run(cls):
    R = ortho_group.rvs(5, random_state=2)
    x = np.linspace(0.5, 2, 12)[:, None] * units(12, 5)
    weights = np.random.default_rng(1).dirichlet(np.ones(12))
    run, turned = (np.asarray(flow(3.0, cls(), Ensemble(start, weights), 0.0, 2.0).x) for start in (x, x @ R.T))
    np.testing.assert_allclose(turned, run @ R.T, atol=1e-11)


def test_a_run_of_a_turned_density_is_the_turned_run():
    R, points = Rotation.random(rng=5).as_matrix(), units(30, 3)
    runs = [flow(4.0, PostLN(), on_the_grid(law), 0.0, 1.0) for law in (LOPSIDED, lambda x: LOPSIDED(x @ R))]
    values = [GRID.evaluate(state.coefficients, p) for state, p in zip(runs, (points, points @ R.T), strict=True)]
    np.testing.assert_allclose(values[1], values[0], atol=1e-7)


@pytest.mark.slow
def test_tokens_seen_through_moments_move_as_tokens_seen_one_by_one():
    x, weights = units(60, 3), np.random.default_rng(1).dirichlet(np.ones(60))
    fast, direct = (flow(4.0, PreLN(), Ensemble(x, weights, grid), 0.0, 2.0).x for grid in (MOMENTS, None))
    np.testing.assert_allclose(fast, direct, atol=1e-9)
