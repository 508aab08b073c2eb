"""β and α that change with depth."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from small_runs import two_bumps

import meanfield as mf
from meanfield.keys import InputError

TIMES, VALUES = [0.5, 1.0, 2.0], [1.0, 4.0, 0.5]


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def tokens() -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((6, 3))
    return x / np.linalg.norm(x, axis=1)[:, None]


def test_it_is_linear_between_its_knots_and_constant_beyond():
    schedule = mf.Schedule(TIMES, VALUES)
    at = [0.0, 0.5, 0.75, 1.0, 1.5, 2.0, 9.0]
    np.testing.assert_allclose([schedule(t) for t in at], [1.0, 1.0, 2.5, 4.0, 2.25, 0.5, 0.5], rtol=1e-15)


@pytest.mark.parametrize("where", ["beta", "alpha"])
def test_a_run_follows_its_schedule(where):
    """Against scipy, integrated from knot to knot."""
    schedule = mf.Schedule(TIMES, VALUES)
    models = {"beta": mf.Model(mf.Attention(schedule)), "alpha": mf.Model(mf.Attention(2.0), mf.NGPT(schedule))}
    chosen = models[where]
    x = tokens()

    def rate(t, flat):
        theta = flat.reshape(x.shape)
        value = np.interp(t, TIMES, VALUES)
        kernel = np.exp((value if where == "beta" else 2.0) * theta @ theta.T)
        A = kernel @ theta / kernel.sum(axis=1, keepdims=True)
        if where == "alpha":
            A *= value / np.linalg.norm(A, axis=1, keepdims=True)
        return (A - np.sum(A * theta, axis=1, keepdims=True) * theta).reshape(-1)

    y = x.reshape(-1)
    for t0, t1 in ((0.0, 0.5), (0.5, 1.0), (1.0, 2.0), (2.0, 2.5)):
        y = solve_ivp(rate, (t0, t1), y, rtol=1e-12, atol=1e-13, method="DOP853").y[:, -1]
    end = mf.evolve(chosen, mf.Ensemble(x, np.full(6, 1 / 6)), 0.0, 2.5, 1e-11, 1e-13)
    np.testing.assert_allclose(end.x.reshape(-1), y, atol=1e-10)


def test_a_constant_schedule_is_the_number():
    state = mf.Ensemble(tokens(), np.full(6, 1 / 6))
    constant = mf.evolve(mf.Model(mf.Attention(mf.Schedule([0.0], [2.0]))), state, 0.0, 1.0)
    number = mf.evolve(mf.Model(mf.Attention(2.0)), state, 0.0, 1.0)
    np.testing.assert_array_equal(constant.x, number.x)


def test_steps_end_on_knots():
    chosen = mf.Model(mf.Attention(mf.Schedule(TIMES, VALUES)), mf.NGPT(mf.Schedule([0.7], [1.0])))
    assert [float(chosen.next_break(np.asarray(t))) for t in (0.0, 0.5, 0.7, 1.0, 2.0)] == [0.5, 0.7, 1.0, 2.0, np.inf]


def test_density_and_characteristics_agree_under_a_schedule():
    chosen = mf.Model(mf.Attention(mf.Schedule([0.0, 0.5], [0.0, 3.0])))
    law = two_bumps()
    tight = {"rtol": 1e-10, "atol": 1e-12}
    runs = [mf.solve(chosen, law, 0.8, 5, method=m, degree=32, **tight) for m in ("density", "characteristics")]
    first, second = (run.observables["order_parameter"] for run in runs)
    np.testing.assert_allclose(first, second, atol=1e-8)


@pytest.mark.filterwarnings("ignore::meanfield.AccuracyWarning")
def test_schedules_in_a_case(tmp_path):
    beta, alpha = {"times": [0.0, 0.1], "values": [1.0, 2.0]}, {"times": [0.0], "values": [0.5]}
    changes = {"attention.beta": beta, "normalization.alpha": alpha, "normalization.scheme": "ngpt"}
    case = mf.read_case("cases/three_bumps.toml", {**changes, "solver.degree": 16, "time": {"final": 0.1, "frames": 2}})
    assert case.model.attention.reach(3, 1.0) == 2.0
    run = mf.solve(case.model, two_bumps(), 0.1, 2, degree=32, path=tmp_path / "run.h5")
    again = mf.open(tmp_path / "run.h5").model
    np.testing.assert_array_equal(again.attention.beta.values, [1.0, 2.0])
    np.testing.assert_array_equal(again.normalization.alpha.values, [0.5])
    assert run.status == "complete"


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("attention.beta", {"times": [0.0, 1.0], "values": [1.0]}, "attention.beta.values"),
        ("attention.beta", {"times": [1.0, 0.0], "values": [1.0, 2.0]}, "attention.beta.times"),
        ("attention.beta", {"times": [], "values": []}, "attention.beta.times"),
        ("attention.beta", {"times": [0.0]}, "attention.beta.values"),
        ("attention.beta", {"times": [0.0], "values": [-1.0]}, "attention.beta"),
        ("attention.beta", {"times": [0.0], "values": [1.0], "valeus": [1.0]}, "attention.beta.valeus"),
        ("normalization.alpha", {"times": [0.0], "values": [0.0]}, "normalization.alpha.values"),
        ("normalization.alpha", {"times": [float("nan")], "values": [1.0]}, "normalization.alpha.times"),
    ],
)
def test_wrong_schedules_are_refused_by_name(key, value, named):
    with pytest.raises(InputError) as refused:
        mf.read_case("cases/three_bumps.toml", {key: value})
    assert str(refused.value).startswith(named)
