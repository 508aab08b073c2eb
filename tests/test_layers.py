"""Discrete depth: the layer maps of a network, and the flow that they tend to."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import assert_same_bits, model, two_bumps

import meanfield as mf
from meanfield.keys import InputError
from meanfield.normalization import SCHEMES
from meanfield.observables import order_parameter


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def network(scheme: str, x: np.ndarray, layers: int, eta: float, beta: float, alpha: float, tau: float) -> np.ndarray:
    """The layer maps as the table of 2510.22026 has them, line by line."""
    for l in range(layers):
        theta, r = unit(x), np.linalg.norm(x, axis=-1, keepdims=True)
        kernel = np.exp(beta * theta @ theta.T)
        A = kernel @ theta / kernel.sum(axis=1, keepdims=True)
        rule = scheme if scheme != "mix-ln" else ("post-ln" if l * eta < tau - 1e-12 else "pre-ln")
        if rule == "post-ln":
            x = r * unit(theta + eta * A)
        elif rule == "pre-ln":
            x = x + eta * A
        elif rule == "peri-ln":
            x = x + eta * unit(A)
        elif rule == "ngpt":
            x = r * unit(theta + eta * alpha * (unit(A) - theta))
        else:
            x = r * unit(theta + eta * A / np.sqrt(eta * l + 1))
    return x


def parameters(cls):
    return {"ngpt": {"alpha": 0.7}, "mix-ln": {"switch_time": 0.5}}.get(cls.case_name, {})


@pytest.mark.parametrize("cls", SCHEMES, ids=lambda cls: cls.case_name)
def test_layers_are_those_of_the_table(cls):
    x = np.random.default_rng(0).standard_normal((7, 5))
    chosen = mf.Model(mf.Attention(1.3), cls(**parameters(cls)))
    end = mf.apply_layers(chosen, mf.Ensemble(x, np.full(7, 1 / 7)), 9, 0.1)
    np.testing.assert_allclose(end.x, network(cls.case_name, x, 9, 0.1, 1.3, 0.7, 0.5), atol=1e-13)


@pytest.mark.parametrize("cls", SCHEMES, ids=lambda cls: cls.case_name)
def test_layers_tend_to_the_flow_at_first_order(cls):
    """On quadrature nodes: the mean-field limit of the network. A boundary between layers falls on τ."""
    chosen = mf.Model(mf.Attention(1.0), cls(**parameters(cls)))
    flow = mf.solve(chosen, two_bumps(), 1.0, 2, method="characteristics", degree=8, rtol=1e-11, atol=1e-13)
    counts, errors = [32, 64, 128, 256], []
    for count in counts:
        options = {"layers": count, "layer_step": 1 / count, "frames": 2, "method": "characteristics", "degree": 8}
        net = mf.solve(chosen, two_bumps(), **options)
        assert net.times[-1] == 1.0
        errors.append(np.abs(net.arrays["ensemble/direction"][-1] - flow.arrays["ensemble/direction"][-1]).max())
    order = -np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert order == pytest.approx(1, abs=0.05)


def test_frames_are_layers_and_some_may_be_left_out():
    options = {"layers": 12, "layer_step": 0.1, "method": "characteristics", "degree": 6}
    every = mf.solve(model(), two_bumps(), **options)
    some = mf.solve(model(), two_bumps(), **options, frames=4)
    np.testing.assert_array_equal(every.times, 0.1 * np.arange(13))
    np.testing.assert_array_equal(some.times, every.times[::4])
    np.testing.assert_array_equal(some.observables["energy"], every.observables["energy"][::4])
    with pytest.raises(InputError, match="kept frame"):
        every.state(0.55)


def test_random_weights_change_with_every_layer():
    weights = mf.RandomHeads("gaussian", seed=3, interval=99.0)  # in a network a draw lasts one layer
    x = np.random.default_rng(0).standard_normal((6, 3))
    state = mf.Ensemble(x, np.full(6, 1 / 6))
    whole = mf.apply_layers(mf.Model(mf.Attention(1.0, weights=weights), mf.PreLN()), state, 3, 0.2)
    for layer in range(3):
        heads = weights.drawn(layer, 3)
        state = mf.apply_layers(mf.Model(mf.Attention(1.0, heads=heads), mf.PreLN()), state, 1, 0.2)
    np.testing.assert_allclose(whole.x, state.x, atol=1e-14)


def test_they_can_be_traced_and_differentiated():
    x = np.random.default_rng(0).standard_normal((6, 3))

    def final(beta):
        return order_parameter(mf.apply_layers(mf.Model(mf.Attention(beta)), mf.Ensemble(x, np.full(6, 1 / 6)), 8, 0.1))

    slope = jax.jit(jax.grad(final))(jnp.asarray(1.0))
    assert float(slope) == pytest.approx((float(final(1.001)) - float(final(0.999))) / 0.002, rel=1e-5)


@pytest.mark.parametrize("scheme", [mf.MixLN(0.35), mf.SqrtScaling()], ids=lambda scheme: scheme.case_name)
def test_a_resumed_network_has_the_same_bits(tmp_path, scheme):
    weights = mf.RandomHeads("gaussian", heads=2)
    chosen = mf.Model(mf.Attention(1.0, weights=weights), scheme)
    options = {"layers": 8, "layer_step": 0.1, "method": "particles", "tokens": 10, "trials": 2}
    whole = mf.solve(chosen, two_bumps(), **options)

    def stop(report):
        if report.frame == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mf.solve(chosen, two_bumps(), **options, path=tmp_path / "net.h5", progress=stop)
    resumed = mf.solve(chosen, two_bumps(), **options, path=tmp_path / "net.h5", resume=True)
    assert_same_bits(resumed, whole)
    opened = mf.open(tmp_path / "net.h5")
    assert opened.layer_step == 0.1
    for frame in (2, 5):
        np.testing.assert_array_equal(opened.state(whole.times[frame]).x, whole.state(whole.times[frame]).x)


@pytest.mark.parametrize(
    ("time", "key"),
    [
        ({"layers": 3}, "time.step"),
        ({"layers": 3, "step": 0.0}, "time.step"),
        ({"layers": 3, "step": float("nan")}, "time.step"),
        ({"layers": 0, "step": 0.1}, "time.layers"),
        ({"layers": 3, "step": 0.1, "final": 1.0}, "time.final"),
        ({"layers": 3, "step": 0.1, "times": [1.0]}, "time.times"),
        ({"layers": 4, "step": 0.1, "frames": 4}, "time.frames"),
        ({"final": 1.0, "step": 0.1}, "time.step"),
    ],
)
def test_wrong_layers_are_refused_by_name(time, key):
    with pytest.raises(InputError) as refused:
        mf.read_case("cases/three_bumps.toml", {"time": time})
    assert str(refused.value).startswith(key)


def test_a_density_has_no_layers():
    with pytest.raises(InputError, match="method"):
        mf.solve(model(), two_bumps(), layers=2, layer_step=0.1, degree=8)
    grid = mf.Sphere().grid(4)
    density = mf.Density(grid, two_bumps().coefficients(grid))
    with pytest.raises(InputError, match="state"):
        mf.apply_layers(model(), density, 2, 0.1)


def test_a_network_in_a_case(tmp_path):
    changes = {"time": {"layers": 4, "step": 0.25}, "solver.method": "characteristics", "solver.degree": 16}
    run = mf.read_case("cases/three_bumps.toml", changes).solve(tmp_path / "net.h5")
    np.testing.assert_array_equal(run.times, [0, 0.25, 0.5, 0.75, 1.0])
    python = mf.solve(
        run.model,
        mf.read_case("cases/three_bumps.toml").law,
        layers=4,
        layer_step=0.25,
        method="characteristics",
        degree=16,
    )
    assert_same_bits(run, python)
