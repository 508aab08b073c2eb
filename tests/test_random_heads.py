"""Random heads: the same bits wherever they are drawn, as distributed as they say, and never changed within a step."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from small_runs import assert_same_bits

import meanfield as mf
from meanfield import integrate
from meanfield.beginning import initial_state
from meanfield.case import from_document
from meanfield.document import case_text
from meanfield.geometry.funk_hecke import attention_degree
from meanfield.heads import PARTS, Heads, RandomHeads
from meanfield.integrate import Limits
from meanfield.keys import InputError
from meanfield.run import _compiler_options
from meanfield.settings import Depths, Settings

CIRCLE = mf.Circle()
LAW = mf.vmf_mixture(CIRCLE, [[1.0, 0.2], [0.0, 1.0]], [1.0, 1.5], [0.6, 0.4])
WEIGHTS = RandomHeads("gaussian", heads=2, seed=5, interval=0.25)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def parts(heads: Heads) -> dict[str, np.ndarray]:
    return {part: np.asarray(getattr(heads, part)) for part in PARTS}


def model(weights: RandomHeads = WEIGHTS, scheme: Any = None, **attention: Any) -> mf.Model:
    return mf.Model(mf.Attention(1.0, weights=weights, **attention), mf.PostLN() if scheme is None else scheme)


def tokens(count: int = 6, dimension: int = 3) -> mf.Ensemble:
    x = np.random.default_rng(0).standard_normal((count, dimension))
    return mf.Ensemble(x / np.linalg.norm(x, axis=1, keepdims=True), np.full(count, 1 / count))


# ------------------------------------------------------------------ what is drawn


@pytest.mark.parametrize("kind", [pytest.param("kaiming", marks=pytest.mark.slow), "symmetric"])
def test_the_bits_are_the_same_wherever_they_are_drawn(kind):
    # seeds of more than 32 bits count, too
    weights, other = (RandomHeads(kind, 3, seed, per_trial=True) for seed in (2**40 + 1, 1))
    drawn = parts(weights.drawn(7, 5, 2))
    with jax.enable_x64(False):
        outside = parts(weights.drawn(7, 5, 2))
    draw = lambda weights, layer: tuple(parts_traced(weights.drawn(layer, 5, 2)))  # noqa: E731
    compiled = jax.jit(draw)(weights, 7)
    as_in_a_run = jax.jit(draw, compiler_options=_compiler_options())(weights, 7)
    side_by_side = jax.jit(jax.vmap(lambda layer: draw(weights, layer)))(np.arange(9))
    for index, part in enumerate(PARTS):
        assert drawn[part].dtype == outside[part].dtype == np.float64
        if kind == "symmetric":
            np.testing.assert_array_equal(compiled[index], np.swapaxes(compiled[index], -1, -2))
        for found in (outside[part], compiled[index], as_in_a_run[index], side_by_side[index][7]):
            np.testing.assert_array_equal(found, drawn[part])
    assert np.all(parts(other.drawn(7, 5, 2))["query"] != drawn["query"])


def parts_traced(heads: Heads) -> list[Any]:
    return [getattr(heads, part) for part in PARTS]


def test_layers_trials_heads_and_matrices_differ():
    weights = RandomHeads("kaiming", 2, 0, per_trial=True)
    every = [
        matrix for layer in range(4) for m in parts(weights.drawn(layer, 3, 2)).values() for matrix in m.reshape(-1, 9)
    ]
    assert len(np.unique(np.round(np.concatenate(every), 12))) == 4 * 3 * 2 * 2 * 9
    throughout = RandomHeads("kaiming", 2, 0, per_layer=False)
    np.testing.assert_array_equal(throughout.drawn(0, 3).query, throughout.drawn(9, 3).query)
    # without networks of their own trials share one, whose matrices have no axis of trials
    assert RandomHeads("kaiming", 2).drawn(0, 3, 4).query.shape == (2, 3, 3)
    assert weights.drawn(0, 3, 4).query.shape == (4, 2, 3, 3)


@pytest.mark.parametrize(("kind", "variance"), [("kaiming", 2 / 5), ("gaussian", 1 / 5)])
def test_entries_are_independent_normal_numbers_of_the_documented_variance(kind, variance):
    count, dimension = 4000, 5
    drawn = [
        m.reshape(count, -1)
        for m in parts(RandomHeads(kind, heads=1000, per_trial=True).drawn(0, dimension, 4)).values()
    ]
    entries = np.concatenate(drawn, axis=1)  # (head, 75)
    five_deviations = 5 / np.sqrt(count)
    assert np.abs(entries.mean(axis=0)).max() < five_deviations * np.sqrt(variance)
    covariance = entries.T @ entries / count / variance
    assert np.abs(covariance - np.eye(75)).max() < five_deviations * np.sqrt(2)
    assert np.mean(entries**4) / variance**2 == pytest.approx(3, abs=0.1)


def test_symmetric_heads_are_symmetric_with_the_variance_of_the_gaussian_orthogonal_ensemble():
    drawn = parts(RandomHeads("symmetric", heads=1000).drawn(3, 4))
    S = drawn["query"]
    np.testing.assert_array_equal(S, np.swapaxes(S, -1, -2))
    np.testing.assert_array_equal(drawn["value"], S)
    np.testing.assert_array_equal(drawn["key"], np.broadcast_to(np.eye(4), S.shape))
    variance = np.mean(S**2, axis=0)
    np.testing.assert_allclose(variance[np.eye(4) == 1], 2 / 4, rtol=5 * np.sqrt(2 / 1000))
    np.testing.assert_allclose(variance[np.eye(4) == 0], 1 / 4, rtol=5 * np.sqrt(2 / 1000))


@pytest.mark.parametrize("seed", range(3))
def test_under_symmetric_heads_the_unnormalised_flow_climbs_its_energy(seed):
    # E = (2β)⁻¹ ∬ e^{β⟨Sx,y⟩} dμdμ and dE/dt = ∫ |v|² dμ
    beta, state = 1.0, tokens(5, 3)
    weights = RandomHeads("symmetric", seed=seed, per_layer=False)
    S = np.asarray(weights.drawn(0, 3).query[0])

    def energy(state: mf.Ensemble) -> float:
        return float(np.mean(np.exp(beta * state.x @ S @ state.x.T))) / (2 * beta)

    ascent, energies = model(weights, normalized=False), []
    for k in range(12):
        energies.append(energy(state))
        state = mf.evolve(ascent, state, 0.1 * k, 0.1 * (k + 1), 1e-10, 1e-12)
    assert np.all(np.diff(energies) > 0)
    a, b, c = (mf.evolve(ascent, tokens(5, 3), 0.0, t, 1e-12, 1e-14) for t in (0.199, 0.2, 0.201))
    theta = np.asarray(b.x)
    A = np.exp(beta * theta @ S @ theta.T) @ theta @ S / 5
    v = A - np.sum(A * theta, axis=1, keepdims=True) * theta
    assert (energy(c) - energy(a)) / 2e-3 == pytest.approx(np.mean(np.sum(v**2, axis=1)), rel=1e-5)


def test_the_reach_is_the_largest_norm_of_every_layer_that_a_run_looks_at():
    weights = RandomHeads("kaiming", 2, 1, interval=0.1)
    norms = np.array(
        [
            max(np.linalg.norm(k.T @ q, ord=2) for q, k in zip(h.query, h.key, strict=True))
            for h in (weights.drawn(layer, 3) for layer in range(12))
        ]
    )
    # the state at t = 1 is observed under layer 10, which begins there; 0.95 lies in layer 9
    for final, layers, last in (
        (1.0, None, 10),
        (0.95, None, 9),
        (0.05, None, 0),
        (1.0, 4, 4),
        (np.nextafter(0.3, 0), None, 3),
    ):
        assert weights.reach(3, final, layers) == pytest.approx(norms[: last + 1].max(), rel=1e-14)
    trials = RandomHeads("kaiming", 2, 1, interval=0.1, per_trial=True)
    assert trials.reach(3, 1.0, None, 8) > trials.reach(3, 1.0, None) * 1.05
    assert trials.reach(3, 1.0, None, 8) == max(trials.drawn(layer, 3, 8).reach() for layer in range(11))
    with pytest.raises(InputError, match=r"^weights\.interval = .*1000000 at most"):
        RandomHeads(interval=1e-9).reach(3, 1.0, None)


def test_moments_serve_the_narrowest_kernel_of_every_trial():
    weights = RandomHeads("kaiming", seed=1, per_layer=False, per_trial=True)
    settings = Settings(method="particles", tokens=20, trials=64, sums="fast")
    state = initial_state(model(weights), LAW, None, settings, Depths(np.array([0.0, 1.0])))
    reach = weights.drawn(0, 2, 64).reach()
    assert reach > 2 * weights.drawn(0, 2).reach()
    assert state.grid.degree == attention_degree(reach, 2) > attention_degree(weights.drawn(0, 2).reach(), 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("kind", value) for value in ("he", 3, None)],
        *[("heads", value) for value in (0, 1.5, True, "two", 1025)],
        *[("seed", value) for value in (-1, 1.5, "one", 2**63, True)],
        *[("interval", value) for value in (0.0, -1.0, np.nan, np.inf, "long")],
    ],
)
def test_what_cannot_be_drawn_is_refused(key, value):
    with pytest.raises(InputError, match=f"^{key} = .*: expected "):
        RandomHeads(**{key: value})


# ------------------------------------------------------------------ depth


def test_a_flow_is_a_chain_of_flows_with_the_heads_of_each_layer():
    state, t = tokens(), 0.1
    whole = mf.evolve(model(), state, t, 0.9, 1e-12, 1e-14).x
    for layer, end in enumerate((0.25, 0.5, 0.75, 0.9)):
        fixed = mf.Model(mf.Attention(1.0, heads=WEIGHTS.drawn(layer, 3)))
        state, t = mf.evolve(fixed, state, t, end, 1e-12, 1e-14), end
    np.testing.assert_allclose(whole, state.x, atol=1e-12)
    assert np.abs(whole - mf.evolve(fixed, tokens(), 0.1, 0.9).x).max() > 0.01


def test_a_layer_that_ends_inside_a_step_keeps_the_order():
    # an odd number of equal steps over two layers: one step would straddle the boundary
    counts, end, state = np.array([5, 7, 11]), 2.0, tokens()
    two_layers = model(RandomHeads("gaussian", 1, 3, interval=end / 2))
    reference = np.asarray(mf.evolve(two_layers, state, 0.0, end, 1e-14, 1e-15).x)
    start, advance = jax.jit(integrate.start), jax.jit(integrate.advance)
    errors = []
    for count in counts:
        progress = start(state, 0.0)
        for k in range(1, count + 1):
            progress = progress._replace(step=np.asarray(end / count))
            progress = advance(two_layers, state, progress, k * end / count, Limits(np.inf, np.inf, np.inf, -np.inf))
        assert int(progress.accepted) == count + 1
        errors.append(np.abs(progress.moving - reference).max())
    assert -np.polyfit(np.log(counts), np.log(errors), 1)[0] == pytest.approx(8, abs=1)


def test_a_network_of_layers_draws_anew_for_each():
    state = tokens(4)
    x, theta = np.asarray(state.x), np.asarray(state.x)
    for layer in range(3):  # Pre-LN: x + ηA(x/‖x‖)
        theta, A = x / np.linalg.norm(x, axis=1, keepdims=True), 0.0
        for query, key, value in zip(*parts(WEIGHTS.drawn(layer, 3)).values(), strict=True):
            kernel = np.exp((theta @ query.T) @ (theta @ key.T).T)
            A = A + kernel @ theta @ value.T / kernel.sum(axis=1, keepdims=True) / 2
        x = x + 0.3 * A
    np.testing.assert_allclose(mf.apply_layers(model(scheme=mf.PreLN()), state, 3, 0.3).x, x, atol=1e-14)


@pytest.mark.parametrize("per_trial", [False, True])
def test_trials_share_a_network_or_have_their_own(per_trial):
    state = tokens()
    weights = RandomHeads("gaussian", seed=2, interval=0.3, per_trial=per_trial)
    moved = mf.evolve(model(weights), mf.Ensemble(np.stack([state.x] * 3), state.weights), 0.0, 0.5, 1e-10, 1e-12).x
    apart = [np.abs(moved[i] - moved[j]).max() for i, j in ((0, 1), (0, 2), (1, 2))]
    assert min(apart) > 0.05 if per_trial else max(apart) < 1e-14
    # each as with its own heads
    for trial in range(3):
        x, t = state, 0.0
        for layer, end in enumerate((0.3, 0.5)):
            drawn = parts(weights.drawn(layer, 3, 3))
            heads = Heads(*(m[trial] if per_trial else m for m in drawn.values()))
            x, t = mf.evolve(mf.Model(mf.Attention(1.0, heads=heads)), x, t, end, 1e-10, 1e-12), end
        np.testing.assert_allclose(moved[trial], x.x, atol=1e-9)


# ------------------------------------------------------------------ runs


@pytest.mark.parametrize("method", ["density", "particles"])
def test_a_run_resumed_has_the_bits_of_one_that_was_not(method, tmp_path):
    weights = RandomHeads("gaussian", seed=3, interval=0.07, per_trial=True)
    settings = {"degree": 32, "method": method, "rtol": 1e-6, "atol": 1e-8}
    if method == "particles":
        settings |= {"tokens": 5, "trials": 2}
    whole = mf.solve(model(weights), LAW, 0.3, 5, path=tmp_path / "whole.h5", **settings)

    def stop(report: Any) -> None:
        if report.frame == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mf.solve(model(weights), LAW, 0.3, 5, path=tmp_path / "run.h5", progress=stop, **settings)
    assert len(mf.open(tmp_path / "run.h5").times) == 3
    resumed = mf.solve(model(weights), LAW, 0.3, 5, path=tmp_path / "run.h5", resume=True, **settings)
    assert resumed.status == "complete"
    assert_same_bits(whole, resumed)
    assert_same_bits(whole, mf.open(tmp_path / "run.h5"))


@pytest.mark.slow
def test_a_density_and_its_characteristics_share_a_network():
    numbers = {"rtol": 1e-10, "atol": 1e-12, "state": "last", "degree": 40}
    density = mf.solve(model(), LAW, 0.6, 2, method="density", **numbers)
    carried = mf.solve(model(), LAW, 0.6, 2, method="characteristics", sums="direct", **numbers)
    assert density.status == carried.status == "complete"
    for name in ("mean_direction", "energy"):
        np.testing.assert_allclose(density.observables[name], carried.observables[name], atol=1e-9, err_msg=name)


def test_a_case_says_what_is_drawn():
    weights = RandomHeads("symmetric", 3, 2**40, per_layer=False, interval=0.5, per_trial=True)
    text = case_text(model(weights), LAW, None, Settings(), Depths(np.array([0.0, 1.0])), "all")
    table = {"kind": "symmetric", "heads": 3, "seed": 2**40, "per_layer": False, "interval": 0.5, "per_trial": True}
    assert tomllib.loads(text)["attention"]["weights"] == table
    read = from_document(tomllib.loads(text), Path()).model.attention.weights
    assert {key: getattr(read, key) for key in table} == table
    for part, matrix in parts(weights.drawn(1, 2, 2)).items():
        np.testing.assert_array_equal(getattr(read.drawn(1, 2, 2), part), matrix)
