"""Causal attention: token k attends to tokens j ≤ k, A_k = Σ_{j≤k} w_j e^{β⟨θ_k,θ_j⟩} θ_j / Z_k (2411.04990)."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from small_runs import SPHERE, two_bumps

import meanfield as mf
from meanfield import attention as attention_module
from meanfield.attention import Attention, Tokens
from meanfield.case import from_document, set_keys
from meanfield.heads import PARTS, Heads, RandomHeads
from meanfield.keys import InputError

BETA = 2.0
field = jax.jit(lambda attention, source, points=None: attention(0.0, source, points))


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def units(count: int, dimension: int, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((count, dimension))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def masked_sum(theta: Any, weights: Any, heads: Heads | None = None, normalized: bool = True) -> np.ndarray:
    """A of every token, slowly and readably."""
    one = np.eye(theta.shape[1])[None]
    matrices = [(one, one, one)] if heads is None else [tuple(np.asarray(getattr(heads, part)) for part in PARTS)]
    vectors = np.zeros_like(theta)
    for queries, keys, values in matrices:
        for query, key, value in zip(queries, keys, values, strict=True):
            for k in range(len(theta)):
                Z, total = 0.0, np.zeros(theta.shape[1])
                for j in range(k + 1):
                    kernel = weights[j] * np.exp(BETA * (query @ theta[k]) @ (key @ theta[j]))
                    Z, total = Z + kernel, total + kernel * value @ theta[j]
                vectors[k] += total / (Z if normalized else 1.0) / len(queries)
    return vectors


@pytest.mark.parametrize("normalized", [True, False], ids=["softmax", "unnormalized"])
@pytest.mark.parametrize("dimension", [2, 3, 7])
def test_it_is_the_masked_double_sum(dimension, normalized):
    theta, weights = units(9, dimension), np.random.default_rng(0).dirichlet(np.ones(9))
    A = field(Attention(BETA, normalized, causal=True), Tokens(theta, weights)).vector
    np.testing.assert_allclose(A, masked_sum(theta, weights, normalized=normalized), atol=1e-14)


def test_in_blocks_of_rows_and_through_heads_and_trials_too(monkeypatch):
    x, weights = np.stack([units(9, 3, seed) for seed in range(2)]), np.full(9, 1 / 9)
    drawn = RandomHeads("gaussian", 2, 1).drawn(0, 3)
    monkeypatch.setattr(attention_module, "BLOCK_ENTRIES", 30)
    A = Attention(BETA, heads=drawn, causal=True)(0.0, Tokens(x, weights)).vector
    for trial in range(2):
        np.testing.assert_allclose(A[trial], masked_sum(x[trial], weights, drawn), atol=1e-13)


def test_points_other_than_the_tokens_attend_to_all():
    source, points = Tokens(units(9, 3), np.full(9, 1 / 9)), units(4, 3, 1)
    causal, free = (field(Attention(BETA, causal=c), source, points).vector for c in (True, False))
    np.testing.assert_array_equal(causal, free)
    # as does the last token
    last, every = (field(Attention(BETA, causal=c), source).vector for c in (True, False))
    np.testing.assert_allclose(last[-1], every[-1], rtol=1e-14)
    assert np.abs(last - every)[:-1].min() > 1e-3


def test_a_token_that_sees_no_weight_receives_nothing():
    weights = np.array([0.0, 0.0, 0.5, 0.5])
    seen = field(Attention(BETA, causal=True), Tokens(units(4, 3), weights))
    np.testing.assert_array_equal(seen.vector[:2], 0)
    np.testing.assert_allclose(seen.vector[2], units(4, 3)[2], atol=1e-15)
    assert float(seen.accuracy) == 1
    moved = mf.evolve(mf.Model(Attention(BETA, causal=True)), mf.Ensemble(units(4, 3), weights), 0.0, 1.0).x
    np.testing.assert_allclose(moved[:3], units(4, 3)[:3], atol=1e-12)
    assert np.isfinite(moved).all()


def test_the_energy_is_that_of_the_pairs_that_see_each_other():
    theta, weights = units(5, 3), np.full(5, 1 / 5)
    attention = Attention(BETA, causal=True)
    energy = attention.energy(0.0, field(attention, Tokens(theta, weights)).partition, weights, np.nan)
    assert float(energy) == pytest.approx(np.sum(np.tril(np.exp(BETA * (theta @ theta.T - 1)))) / 25 / (2 * BETA))
    assert not attention.is_gradient
    assert np.isnan(Attention(0.0, causal=True).energy(0.0, weights, weights, 0.5))


@pytest.mark.parametrize("scheme", [mf.PostLN(), mf.PreLN()], ids=["post-ln", "pre-ln"])
def test_the_flow_is_that_of_another_solver(scheme):
    theta, weights = units(5, 3), np.array([0.1, 0.3, 0.2, 0.15, 0.25])

    def speed(t, flat):
        x = flat.reshape(5, 3)
        directions = x / np.linalg.norm(x, axis=1, keepdims=True)
        A = masked_sum(directions, weights)
        return (A - scheme.restores * np.sum(A * directions, axis=1, keepdims=True) * directions).ravel()

    reference = solve_ivp(speed, (0.0, 2.0), theta.ravel(), method="DOP853", rtol=1e-11, atol=1e-12).y[:, -1]
    moved = mf.evolve(
        mf.Model(Attention(BETA, causal=True), scheme), mf.Ensemble(theta, weights), 0.0, 2.0, 1e-11, 1e-13
    )
    np.testing.assert_allclose(moved.x, reference.reshape(5, 3), atol=1e-9)


def test_no_token_feels_those_after_it():
    model, x = mf.Model(Attention(BETA, causal=True), mf.PeriLN()), units(6, 4)
    whole = mf.evolve(model, mf.Ensemble(x, np.full(6, 1 / 6)), 0.0, 2.0, 1e-11, 1e-13).x
    first = mf.evolve(model, mf.Ensemble(x[:3], np.full(3, 1 / 3)), 0.0, 2.0, 1e-11, 1e-13).x
    np.testing.assert_allclose(whole[:3], first, atol=1e-10)


def test_the_first_token_leads_and_all_others_tend_to_it():
    x = units(8, 3)
    for beta in (0.0, 1.0):
        state = mf.Ensemble(x, np.full(8, 1 / 8))
        angles = []
        for t in (0.0, 15.0, 30.0):
            moved = mf.evolve(mf.Model(Attention(beta, causal=True)), state, 0.0, t).x
            np.testing.assert_allclose(moved[0], x[0], atol=1e-14)
            angles.append(float(np.max(np.linalg.norm(moved - moved[0], axis=1))))
        assert angles[0] > 1
        assert angles[1] < 0.1 * angles[0]
        assert angles[2] < 1e-2 * angles[1]
    # under Pre-LN it keeps its direction and its radius grows like t: A_1 = θ_1
    moved = mf.evolve(mf.Model(Attention(1.0, causal=True), mf.PreLN()), state, 0.0, 3.0).x
    np.testing.assert_allclose(moved[0], 4 * x[0], rtol=1e-12)


def test_layers_are_masked_too():
    x, weights = units(5, 3), np.full(5, 1 / 5)
    moved = mf.apply_layers(mf.Model(Attention(BETA, causal=True), mf.PreLN()), mf.Ensemble(x, weights), 3, 0.3).x
    for _ in range(3):
        x = x + 0.3 * masked_sum(x / np.linalg.norm(x, axis=1, keepdims=True), weights)
    np.testing.assert_allclose(moved, x, atol=1e-14)


def test_trials_of_a_run_are_each_masked():
    run = mf.solve(
        mf.Model(Attention(BETA, causal=True)), two_bumps(), 1.0, 2, method="particles", tokens=300, trials=2, rtol=1e-6
    )
    direction = run.arrays["ensemble/direction"]
    assert run.status == "complete"
    np.testing.assert_allclose(direction[:, :, 0], direction[:1, :, 0] * np.ones((2, 1, 1)), atol=1e-14)
    for frame in range(2):
        for trial in range(2):
            kernel = np.tril(np.exp(BETA * (direction[frame, trial] @ direction[frame, trial].T - 1)))
            assert run.observables["energy"][frame, trial] == pytest.approx(
                kernel.sum() / 300**2 / (2 * BETA), rel=1e-12
            )


CASE = {"attention": {"beta": 1.0, "causal": True}, "time": {"final": 0.1, "frames": 2}}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, r"solver\.method = 'density': expected \"particles\" where attention is causal"),
        ({"solver.method": "characteristics"}, r"solver\.method = 'characteristics': expected \"particles\""),
        ({"solver.method": "particles", "solver.sums": "fast"}, r"solver\.sums = 'fast': expected .*causal"),
        (
            {"geometry.kind": "zonal", "geometry.dimension": 5, "solver.method": "particles"},
            r"attention\.causal = True: expected false in zonal geometry",
        ),
        ({"attention.causal": 1}, r"attention\.causal = 1"),
    ],
)
def test_what_has_no_order_is_refused(changes, sentence, tmp_path):
    with pytest.raises(InputError, match=f"^{sentence}"):
        from_document(set_keys(CASE, changes), tmp_path).solve()


def test_moments_have_no_order():
    model = mf.Model(Attention(1.0, causal=True))
    grid = SPHERE.grid(8)
    for state in (mf.Density(grid, np.eye(grid.size)[0]), mf.Ensemble(units(4, 3), np.full(4, 1 / 4), grid)):
        with pytest.raises(TypeError, match="causal attention follows the order of tokens"):
            mf.evolve(model, state, 0.0, 0.1)
