"""Schedules: β and α that change with depth, linear between knots, at no cost in accuracy."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from small_runs import two_bumps

import meanfield as mf
from meanfield import integrate
from meanfield.case import Case, from_document, set_keys
from meanfield.document import case_text
from meanfield.integrate import Limits
from meanfield.keys import InputError
from meanfield.settings import Depths, Settings

TIMES, BETAS, ALPHAS = [0.3, 0.8, 1.0], [1.0, 4.0, 0.5], [0.5, 2.0, 1.0]


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def tokens() -> mf.Ensemble:
    x = np.random.default_rng(0).standard_normal((4, 3))
    return mf.Ensemble(x / np.linalg.norm(x, axis=1, keepdims=True), np.array([0.1, 0.2, 0.3, 0.4]))


def both(alpha: bool = True) -> mf.Model:
    scheme = mf.NGPT(mf.Schedule(TIMES, ALPHAS)) if alpha else mf.PreLN()
    return mf.Model(mf.Attention(mf.Schedule(TIMES, BETAS)), scheme)


# ------------------------------------------------------------------ the function of depth


def test_it_is_linear_between_knots_and_constant_outside():
    schedule = mf.Schedule(TIMES, BETAS)
    for t in [-1.0, 0.0, *TIMES, 0.3 - 1e-15, 0.5, 0.55, 0.9, 1.0 + 1e-15, 7.0]:
        assert float(schedule(t)) == pytest.approx(np.interp(t, TIMES, BETAS), rel=1e-14)
    assert float(mf.Schedule([0.5], [3.0])(0.2)) == float(mf.Schedule([0.5], [3.0])(0.7)) == 3.0


def test_between_knots_its_slope_is_that_of_the_line():
    # at a knot the slope of the segment that begins there, on which a step that begins there runs
    schedule = mf.Schedule(TIMES, BETAS)
    for t, slope in ((0.1, 0.0), (0.3, 6.0), (0.5, 6.0), (0.8, -17.5), (1.0, 0.0), (2.0, 0.0)):
        assert float(jax.grad(schedule)(t)) == pytest.approx(slope)


# ------------------------------------------------------------------ flows


@pytest.mark.parametrize("alpha", [True, False], ids=["ngpt", "pre-ln"])
def test_the_flow_is_that_of_a_solver_that_stops_at_every_knot(alpha, tokens):
    weights = np.asarray(tokens.weights)

    def speed(t, flat):
        x = flat.reshape(4, 3)
        theta = x / np.linalg.norm(x, axis=1, keepdims=True)
        kernel = np.exp(np.interp(t, TIMES, BETAS) * theta @ theta.T) * weights
        A = kernel @ theta / kernel.sum(axis=1, keepdims=True)
        if not alpha:
            return A.ravel()
        A /= np.linalg.norm(A, axis=1, keepdims=True)
        return np.interp(t, TIMES, ALPHAS) * (A - np.sum(A * theta, axis=1, keepdims=True) * theta).ravel()

    x, t = np.asarray(tokens.x).ravel(), 0.0
    for end in (*TIMES, 1.5):
        x, t = solve_ivp(speed, (t, end), x, method="DOP853", rtol=1e-12, atol=1e-14).y[:, -1], end
    moved = mf.evolve(both(alpha), tokens, 0.0, 1.5, 1e-11, 1e-13)
    np.testing.assert_allclose(moved.x, x.reshape(4, 3), atol=1e-10)
    assert np.abs(moved.x - mf.evolve(mf.Model(mf.Attention(1.0)), tokens, 0.0, 1.5).x).max() > 0.01


@pytest.mark.parametrize("times", [[0.0], [0.2, 0.7]])
def test_a_schedule_of_one_value_is_a_number(times, tokens):
    constant = mf.Model(
        mf.Attention(mf.Schedule(times, [2.0] * len(times))), mf.NGPT(mf.Schedule(times, [0.5] * len(times)))
    )
    moved = mf.evolve(constant, tokens, 0.0, 1.0, 1e-12, 1e-14)
    plain = mf.evolve(mf.Model(mf.Attention(2.0), mf.NGPT(0.5)), tokens, 0.0, 1.0, 1e-12, 1e-14)
    np.testing.assert_allclose(moved.x, plain.x, atol=1e-13)
    if len(times) == 1:  # no knot ahead, so the very same steps
        np.testing.assert_array_equal(moved.x, plain.x)


def test_a_knot_inside_a_step_keeps_the_order(tokens):
    # an odd number of equal steps with a knot half way: one step would have it in its middle
    counts, end = np.array([5, 7, 11]), 2.0
    model = mf.Model(mf.Attention(mf.Schedule([0.0, end / 2, end], [1.0, 4.0, 0.0])))
    reference = np.asarray(mf.evolve(model, tokens, 0.0, end, 1e-14, 1e-15).x)
    start, advance = jax.jit(integrate.start), jax.jit(integrate.advance)
    errors = []
    for count in counts:
        progress = start(tokens, 0.0)
        for k in range(1, count + 1):
            progress = progress._replace(step=np.asarray(end / count))
            progress = advance(model, tokens, progress, k * end / count, Limits(np.inf, np.inf, np.inf, -np.inf))
        assert int(progress.accepted) == count + 1
        errors.append(np.abs(progress.moving - reference).max())
    assert -np.polyfit(np.log(counts), np.log(errors), 1)[0] == pytest.approx(8, abs=1)


def test_layers_take_the_value_at_their_depth(tokens):
    x = np.asarray(tokens.x)
    for layer in range(4):
        theta = x / np.linalg.norm(x, axis=1, keepdims=True)
        kernel = np.exp(np.interp(0.25 * layer, TIMES, BETAS) * theta @ theta.T) * tokens.weights
        x = x + 0.25 * kernel @ theta / kernel.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(mf.apply_layers(both(alpha=False), tokens, 4, 0.25).x, x, atol=1e-14)


def test_moments_reach_as_far_as_the_largest_beta_asks():
    law, numbers = two_bumps(), {"rtol": 1e-8, "atol": 1e-10, "degree": 16, "method": "characteristics"}
    model = mf.Model(mf.Attention(mf.Schedule([0.0, 0.2], [0.5, 6.0])))
    fast, direct = (mf.solve(model, law, 0.3, 2, sums=sums, **numbers) for sums in ("fast", "direct"))
    for name in ("mean_direction", "energy"):
        np.testing.assert_allclose(fast.observables[name], direct.observables[name], atol=1e-8)
    # the energy is that of the β at each depth: e^{−β}(2β)⁻¹∬e^{β⟨x,y⟩}
    theta, w = direct.arrays["ensemble/direction"], direct.fixed["ensemble/weight"]
    for frame, beta in ((0, 0.5), (1, 6.0)):
        kernel = np.exp(beta * (theta[frame] @ theta[frame].T - 1))
        assert direct.observables["energy"][frame] == pytest.approx(w @ kernel @ w / (2 * beta), rel=1e-12)
    assert fast.message == ""  # an energy whose β changes is not judged to fall


# ------------------------------------------------------------------ cases

DOCUMENT = {
    "attention": {"beta": {"times": TIMES, "values": BETAS}},
    "normalization": {"scheme": "ngpt", "alpha": {"times": [0, 1], "values": [1, 2]}},
    "solver": {"degree": 12},
    "time": {"final": 0.1, "frames": 2},
}


def case(changes: dict[str, Any] | None = None) -> Case:
    return from_document(set_keys(DOCUMENT, changes or {}), Path())


def test_a_case_and_its_text():
    chosen = case()
    np.testing.assert_array_equal(chosen.model.attention.beta.values, BETAS)
    np.testing.assert_array_equal(chosen.model.normalization.alpha.times, [0.0, 1.0])
    assert tomllib.loads(chosen.text) == DOCUMENT
    text = case_text(chosen.model, chosen.law, None, Settings(), Depths(np.array([0.0, 1.0])), "all")
    again = from_document(tomllib.loads(text), Path()).model
    assert tomllib.loads(text)["attention"]["beta"] == {"times": TIMES, "values": BETAS}
    for mine, other in ((chosen.model.attention.beta, again.attention.beta), (chosen.model.normalization.alpha,) * 2):
        np.testing.assert_array_equal(mine.times, other.times)
        np.testing.assert_array_equal(mine.values, other.values)
    assert tomllib.loads(text)["normalization"]["alpha"] == {"times": [0.0, 1.0], "values": [1.0, 2.0]}


def test_a_run_with_schedules_is_resumed(tmp_path):
    path, run = tmp_path / "run.h5", {"normalization.scheme": "post-ln", "solver.method": "characteristics"}
    first = case(run).solve(path)
    again = case(run).solve(path, resume=True)
    np.testing.assert_array_equal(first.observables["energy"], again.observables["energy"])
    with pytest.raises(InputError, match=r"^attention\.beta\.values"):
        case(run | {"attention.beta.values": [1.0, 4.0, 0.6]}).solve(path, resume=True)
    opened = mf.open(path)
    np.testing.assert_array_equal(opened.velocity(0.1)(np.eye(3)), first.velocity(0.1)(np.eye(3)))


REFUSED: list[tuple[Any, str]] = [
    ({"times": [0.0, 1.0]}, r"\.values = None: expected a value"),
    ({"values": [1.0]}, r"\.times = None: expected a value"),
    ({}, r"\.times = None"),
    ({"times": [], "values": []}, r"\.times = \[\]"),
    ({"times": 0.0, "values": [1.0]}, r"\.times = 0\.0"),
    ({"times": [0.0, 1.0], "values": [1.0]}, r"\.values = \[1\.0\]: expected 2 numbers, one a depth"),
    ({"times": [1.0, 0.0], "values": [1.0, 2.0]}, r"\.times = \[1\.0, 0\.0\]: expected increasing depths"),
    ({"times": [0.0, 0.0], "values": [1.0, 2.0]}, r"\.times = .*increasing"),
    ({"times": [0.0, np.nan], "values": [1.0, 2.0]}, r"\.times = .*finite"),
    ({"times": [0.0, 1.0], "values": [1.0, np.inf]}, r"\.values = .*finite"),
    ({"times": [0.0, 1.0], "values": [1.0, "x"]}, r"\.values\[1\] = 'x'"),
    ({"times": [0.0, 1.0], "values": [1.0, -2.0]}, r"\.values = -2\.0"),
    ({"times": [0.0, 1.0], "values": [1.0, 2.0], "valeus": [1.0]}, r"\.valeus = "),
    ([1.0, 2.0], r" = \[1\.0, 2\.0\]"),
]


@pytest.mark.parametrize("key", ["attention.beta", "normalization.alpha"])
@pytest.mark.parametrize(("value", "sentence"), REFUSED, ids=[str(value) for value, _ in REFUSED])
def test_what_is_no_schedule_is_refused_under_its_key(key, value, sentence):
    with pytest.raises(InputError, match=f"^{key.replace('.', '[.]')}{sentence}") as caught:
        case({key: value})
    assert "\n" not in str(caught.value)


def test_every_value_must_be_in_range():
    for kind, largest in (("softmax", 1e7), ("unnormalized", 701.0)):
        with pytest.raises(InputError, match=r"^attention\.beta\.values = "):
            case({"attention.kind": kind, "attention.beta.values": [1.0, largest, 0.0]})
    with pytest.raises(
        InputError, match=r"^normalization\.alpha\.values = 0\.0: expected a finite number greater than 0"
    ):
        case({"normalization.alpha.values": [1.0, 0.0]})
    with pytest.raises(
        InputError, match=r"^attention\.beta = 2000\.0: expected at most 1000 where attention goes through"
    ):
        case({"attention.beta.values": [1.0, 2000.0, 0.0]}).solve()


@pytest.mark.slow
def test_a_density_with_a_schedule_is_its_characteristics():
    space, numbers = mf.Circle(), {"rtol": 1e-10, "atol": 1e-12, "degree": 32}
    law = mf.vmf_mixture(space, [[1.0, 0.2], [0.0, 1.0]], [1.0, 1.5], [0.6, 0.4])
    model = mf.Model(mf.Attention(mf.Schedule([0.1, 0.3], [0.5, 3.0])))
    density, carried = (mf.solve(model, law, 0.5, 2, method=m, **numbers) for m in ("density", "characteristics"))
    np.testing.assert_allclose(density.observables["mean_direction"], carried.observables["mean_direction"], atol=1e-10)
