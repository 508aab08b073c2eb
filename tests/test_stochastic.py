"""Tokens with noise: dθ = P_θA/s dt + √(2/κ) P_θ∘dW, against closed forms, semigroups, and the density with noise."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.linalg import expm
from scipy.stats import chi
from small_runs import assert_same_bits, two_bumps

import meanfield as mf
from meanfield import stochastic
from meanfield.keys import InputError
from meanfield.theory import noise

step = jax.jit(stochastic.step)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def model(beta: float, kappa: float, scheme=None, **attention) -> mf.Model:
    return mf.Model(mf.Attention(beta, **attention), scheme or mf.PostLN(), mf.Noise(kappa))


# ------------------------------------------------------------------ noise alone


@pytest.mark.parametrize("d", [2, 3, 4, 17, 512])
def test_an_arc_has_the_mean_cosine_of_brownian_motion(d):
    """E cos(√c g) = e^{−(d−1)v/2} for |g|²/v of χ² law with d−1 degrees of freedom, at steps of any allowed size."""
    for v in np.array([1e-6, 0.1, 0.5, 1.0]) / (d - 1):
        root = np.sqrt(float(stochastic.arc_square(v, d)) * v)
        law = chi(d - 1)
        mean = quad(lambda r, law=law, root=root: np.cos(root * r) * law.pdf(r), *law.interval(1 - 1e-15), limit=200)[0]
        assert mean == pytest.approx(np.exp(-(d - 1) * v / 2), abs=1e-12)


@pytest.mark.parametrize("d", [3, 8])
def test_the_second_harmonic_of_an_arc_is_right_up_to_the_third_order_in_the_step(d):
    """E cos² = 1/d + (1 − 1/d)e^{−dv} for Brownian motion; the error of one arc falls like v³, as weak order 2 asks."""
    sizes, errors = np.array([0.02, 0.04, 0.08]), []
    for v in sizes:
        root = np.sqrt(float(stochastic.arc_square(v, d)) * v)
        law = chi(d - 1)
        square = quad(lambda r, law=law, root=root: np.cos(root * r) ** 2 * law.pdf(r), 0, 20, epsabs=1e-14)[0]
        errors.append(abs(square - 1 / d - (1 - 1 / d) * np.exp(-d * v)))
    assert np.polyfit(np.log(sizes), np.log(errors), 1)[0] > 2.8


@pytest.mark.parametrize("d", [2, 3, 8])
def test_the_cosine_with_the_start_decays_as_the_heat_kernel_says(d):
    """E⟨θ_t,θ_0⟩ = e^{−(d−1)t/κ}, exactly, in three steps of different sizes."""
    count, kappa, rng = 200_000, 3.0, np.random.default_rng(d)
    x = np.tile(2.0 * np.eye(d)[0], (count, 1))
    for duration in (0.05, 0.3, 0.1):
        W = np.sqrt(duration) * rng.standard_normal((count, 1 if d == 2 else d))
        x = stochastic.turned(x, W, kappa, duration)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 2.0, rtol=1e-14)
    cosine = np.asarray(x[:, 0]) / 2
    error = cosine.std() / np.sqrt(count)
    assert cosine.mean() == pytest.approx(np.exp(-(d - 1) * 0.45 / kappa), abs=3.5 * error)
    assert error < 0.002


# ------------------------------------------------------------------ orders of the whole step


def shared_paths(d: int, finest: int, count: int, final: float) -> np.ndarray:
    """Increments of one Brownian motion a token over half steps: (half step, token, axis), one number on the circle."""
    scale = np.sqrt(final / finest / 2)
    return scale * np.random.default_rng(1).standard_normal((2 * finest, count, 1 if d == 2 else d))


@pytest.mark.parametrize(("d", "order", "allowed"), [(2, 1.0, 0.12), (3, 0.5, 0.12)], ids=["circle", "sphere"])
def test_paths_of_a_shared_brownian_motion_converge_at_the_strong_order(d, order, allowed):
    """Order 1 where noise commutes, on the circle; ½ on the sphere: root mean square distance at the end."""
    count, final, finest = 256, 0.5, 1024
    W = shared_paths(d, finest, count, final)
    start = np.random.default_rng(2).standard_normal((count, d))
    state = mf.Ensemble(start / np.linalg.norm(start, axis=1, keepdims=True), np.full(count, 1 / count))
    chosen = model(2.0, 1.0 if d == 2 else 2.0)

    @functools.partial(jax.jit, static_argnums=0)
    def run(steps: int, paths: np.ndarray):
        halves = paths.reshape(2 * steps, finest // steps, *paths.shape[1:]).sum(axis=1)
        halves = halves.reshape(steps, 2, *paths.shape[1:])
        h = final / steps
        go = lambda x, noise: (stochastic.step(chosen, state.moved(x), 0.0, h, noise)[0], None)  # noqa: E731
        return jax.lax.scan(go, state.x, halves)[0]

    exact = run(finest, W)
    counts = np.array([4, 8, 16, 32])
    errors = [np.sqrt(np.mean(np.sum((run(int(c), W) - exact) ** 2, axis=-1))) for c in counts]
    assert -np.polyfit(np.log(counts), np.log(errors), 1)[0] == pytest.approx(order, abs=allowed)


def test_laws_converge_at_weak_order_two():
    """One token alone sees A = Vθ, so with V = diag(1, 0) its angle drifts by −½ sin 2φ: E f(φ_t) of the scheme, by
    Gauss–Hermite sums over its noise, against e^{tL}f with L f = κ⁻¹f″ − ½ sin 2φ f′.
    """
    kappa, final, nodes = 2.0, 1.0, 48
    phi = 2 * np.pi * np.arange(nodes) / nodes
    k = np.fft.fftfreq(nodes, 1 / nodes)
    derivative = np.real(np.fft.ifft(1j * k[:, None] * np.fft.fft(np.eye(nodes), axis=0), axis=0))
    generator = derivative @ derivative / kappa - 0.5 * np.sin(2 * phi)[:, None] * derivative
    exact = expm(final * generator) @ np.cos(phi)
    xi, weight = np.polynomial.hermite_e.hermegauss(14)
    weight = np.outer(weight, weight).reshape(-1) / (2 * np.pi)
    heads = mf.Heads(np.eye(2), np.eye(2), np.diag([1.0, 0.0]))
    chosen = model(1.0, kappa, heads=heads)
    start = np.repeat(np.stack([np.cos(phi), np.sin(phi)], axis=-1), len(weight), axis=0)[:, None, :]
    pairs = np.stack([g.reshape(-1) for g in np.meshgrid(xi, xi)])[:, :, None, None]  # (half, pair, token, number)
    errors, counts = [], (4, 8, 16)
    for count in counts:
        h = final / count
        W = np.sqrt(h / 2) * np.tile(pairs, (1, nodes, 1, 1))
        ended = np.asarray(step(chosen, mf.Ensemble(start, np.ones(1)), 0.0, h, W)[0])[:, 0]
        angle = np.arctan2(ended[:, 1], ended[:, 0]).reshape(nodes, -1)
        waves = np.exp(1j * k * angle[..., None]) @ np.fft.fft(np.eye(nodes), axis=0) / nodes
        transition = np.einsum("ijk,j->ik", waves, weight).real
        errors.append(np.abs(np.linalg.matrix_power(transition, count) @ np.cos(phi) - exact).max())
    assert -np.polyfit(np.log(counts), np.log(errors), 1)[0] > 1.9


def test_without_noise_to_speak_of_a_step_is_of_order_four():
    state = mf.Ensemble(np.random.default_rng(3).standard_normal((12, 4)), np.full(12, 1 / 12))
    exact = mf.evolve(mf.Model(mf.Attention(2.0), mf.PreLN()), state, 0.0, 1.0, 1e-12, 1e-13).x
    errors, counts = [], (4, 8, 16)
    for count in counts:
        x = state.x
        for k in range(count):
            nothing = np.zeros((2, *x.shape))
            x, _ = step(model(2.0, 1.0, mf.PreLN()), state.moved(x), k / count, 1 / count, nothing)
        errors.append(np.abs(x - exact).max())
    assert -np.polyfit(np.log(counts), np.log(errors), 1)[0] > 3.7


# ------------------------------------------------------------------ runs


@pytest.mark.slow
def test_at_beta_zero_tokens_reach_the_order_parameter_of_the_steady_state():
    """m = I_1(κm)/I_0(κm) on the circle, κ = 3: .72415872, the mean over depths 15 to 25 of 8 trials of 4096 tokens, which
    begin with more order and lose it.
    """
    m = float(noise.order_parameter(2, [3.0])[0])
    law = mf.vmf_mixture(mf.Circle(), [[1.0, 0.0]], [1.3 * 3 * m])
    options = {"method": "particles", "tokens": 4096, "trials": 8, "step": 0.1, "state": "last"}
    run = mf.solve(model(0.0, 3.0, normalized=False), law, 25.0, 26, **options)
    late = run.observables["order_parameter"][15:].mean(axis=0)
    error = late.std(ddof=1) / np.sqrt(8)
    assert late.mean() == pytest.approx(m, abs=4 * error)
    assert error < 0.003
    assert run.observables["order_parameter"][0].min() > m + 0.05


OPTIONS = {"method": "particles", "tokens": 2048, "trials": 12, "step": 0.05, "state": "last"}


@pytest.fixture(scope="module")
def noisy() -> tuple[mf.Model, mf.Solution]:
    chosen = model(2.0, 5.0, mf.SqrtScaling())
    return chosen, mf.solve(chosen, two_bumps(), times=[0.13, 0.5, 1.0], **OPTIONS)


def test_tokens_with_noise_follow_the_density_with_noise(noisy):
    """Mean directions within 4 standard errors of 12 trials of 2048 tokens, at every frame; noise is felt."""
    chosen, run = noisy
    density = mf.solve(chosen, two_bumps(), times=[0.13, 0.5, 1.0], degree=20)
    quiet = mf.solve(mf.Model(chosen.attention, chosen.normalization), two_bumps(), times=[0.13, 0.5, 1.0], degree=20)
    mean = run.observables["mean_direction"]
    error = np.sqrt(mean.var(axis=1, ddof=1).mean(axis=-1, keepdims=True) / 12)
    apart = np.abs(mean.mean(axis=1) - density.observables["mean_direction"])
    assert np.all(apart < 4 * error)
    without = np.abs(density.observables["mean_direction"] - quiet.observables["mean_direction"])[-1]
    assert np.max(without / error[-1]) > 10


def test_steps_end_on_frames_and_radii_stay(noisy):
    _, run = noisy
    # 0 → 0.13 → 0.5 → 1: 3 + 8 + 10 steps of at most 0.05
    assert run.times.tolist() == [0.0, 0.13, 0.5, 1.0]
    np.testing.assert_allclose(run.observables["mean_radius"], 1.0, rtol=1e-14)
    seen: list[int] = []
    mf.solve(noisy[0], two_bumps(), times=[0.13, 0.5, 1.0], progress=lambda r: seen.append(r.accepted), **OPTIONS)
    assert seen == [0, 3, 11, 21]


def test_a_seed_gives_the_same_bits_also_when_resumed(noisy, tmp_path):
    chosen, whole = noisy

    def stop(report):
        if report.frame == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mf.solve(chosen, two_bumps(), times=[0.13, 0.5, 1.0], path=tmp_path / "a.h5", progress=stop, **OPTIONS)
    again = {"times": [0.13, 0.5, 1.0], "path": tmp_path / "a.h5", "resume": True, **OPTIONS}
    assert_same_bits(mf.solve(chosen, two_bumps(), **again), whole)
    assert mf.open(tmp_path / "a.h5").state().sampled
    other = mf.solve(chosen, two_bumps(), times=[0.13, 0.5, 1.0], seed=1, **OPTIONS)
    assert not np.array_equal(other.observables["energy"], whole.observables["energy"])


def test_noise_turns_directions_and_leaves_moving_radii_to_the_drift():
    """With V = 0 nothing drifts: directions diffuse, radii of Pre-LN stay where they are."""
    nothing = mf.Heads(np.eye(5), np.eye(5), np.zeros((5, 5)))
    chosen = model(1.0, 8.0, mf.PreLN(), heads=nothing)
    law = mf.uniform(mf.Euclidean(5))
    run = mf.solve(chosen, law, 0.5, 2, method="particles", tokens=4000, step=0.25, radius=mf.ConstantRadius(3.0))
    np.testing.assert_allclose(run.arrays["ensemble/radius"], 3.0, rtol=1e-14)
    first, last = run.arrays["ensemble/direction"]
    cosine = np.sum(first * last, axis=-1)
    assert cosine.mean() == pytest.approx(np.exp(-4 * 0.5 / 8), abs=4 * cosine.std() / np.sqrt(4000))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, r"solver\.step = None: expected a number above 0 and at most κ/\(d−1\) = 1"),
        ({"solver.step": 1.5}, r"solver\.step = 1.5: expected a number above 0 and at most κ/\(d−1\) = 1"),
        ({"solver.step": -1.0}, r"solver\.step = -1.0: expected a finite number above 0"),
        ({"noise": {}, "solver.step": 0.1}, r"solver\.step = 0.1: expected absent where there is no noise"),
        ({"solver.method": "characteristics", "solver.step": 0.1}, r"solver\.method = 'characteristics': .*noise"),
    ],
)
def test_what_noise_of_tokens_needs_is_said(changes, sentence):
    asked = {"noise.kappa": 2.0, "solver.method": "particles", "solver.tokens": 8, **changes}
    with pytest.raises(InputError, match=sentence):
        mf.read_case("cases/three_bumps.toml", asked).solve()


def test_between_frames_tokens_with_noise_are_not_known(noisy):
    chosen, run = noisy
    with pytest.raises(InputError, match="absent for tokens, whose noise is drawn"):
        mf.evolve(chosen, run.state(), 0.0, 1.0)
    kept = mf.solve(chosen, two_bumps(), times=[0.1, 0.2], **{**OPTIONS, "tokens": 8, "trials": 1, "state": "all"})
    assert kept.state(0.1).x.shape == (8, 3)
    with pytest.raises(InputError, match=r"t = 0.15: expected the depth of a kept frame, .* of tokens with noise"):
        kept.state(0.15)
