"""Derivatives of `evolve`: in every parameter, the central difference of runs at a tight tolerance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import meanfield as mf
from meanfield import integrate
from meanfield.integrate import Limits, evolve

TIGHT = 1e-13
END = 0.6


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def units(count: int, dimension: int) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((count, dimension))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def observable(state: Any) -> jax.Array:
    """A number of which every entry of the state has its share."""
    moving = jnp.ravel(state.moving)
    return jnp.sum(moving * jnp.cos(1 + jnp.arange(moving.size))) + jnp.sum(state.mean_direction()[..., 0] ** 2)


def differences(function: Callable, parameters: Any, h: float = 2e-4) -> np.ndarray:
    """Central differences of fourth order in every entry: one number an entry."""
    flat, rebuilt = ravel_pytree(jax.tree.map(jnp.asarray, parameters))
    at = lambda shift: float(function(rebuilt(flat + shift)))  # noqa: E731
    return np.array([(8 * (at(e) - at(-e)) - (at(2 * e) - at(-2 * e))) / (12 * h) for e in h * np.eye(flat.size)])


# ------------------------------------------------------------------ every parameter, on every space


def tokens_with_everything(p: Any, rtol: Any) -> jax.Array:
    """Tokens under nGPT with heads, β and α scheduled, from t0 to t1."""
    attention = mf.Attention(mf.Schedule(p["times"], p["betas"]), heads=mf.Heads(p["query"], p["key"], p["value"]))
    model = mf.Model(attention, mf.NGPT(mf.Schedule([0.1, 0.5], p["alphas"])))
    return observable(
        evolve(model, mf.Ensemble(p["x"], p["weights"]), p["t0"], p["t1"], rtol, rtol / 100, max_steps=64)
    )


def tokens_that_switch(p: Any, rtol: Any) -> jax.Array:
    """Tokens of the circle under Mix-LN, seen through moments."""
    model = mf.Model(mf.Attention(p["beta"]), mf.MixLN(p["tau"]))
    state = mf.Ensemble(p["x"], p["weights"], mf.Circle().grid(16))
    return observable(evolve(model, state, p["t0"], p["t1"], rtol, rtol / 100, max_steps=64))


def causal_tokens(p: Any, rtol: Any) -> jax.Array:
    """Causal tokens under Peri-LN, with the first of weight 0.2 and the second of none."""
    model = mf.Model(mf.Attention(p["beta"], causal=True), mf.PeriLN())
    return observable(evolve(model, mf.Ensemble(p["x"], p["weights"]), 0.0, END, rtol, rtol / 100, max_steps=64))


def noisy_density_with_heads(p: Any, rtol: Any) -> jax.Array:
    """A density of the circle with noise and heads, under sqrt-scaling."""
    circle = mf.Circle()
    model = mf.Model(
        mf.Attention(p["beta"], heads=mf.Heads(p["query"], p["key"], p["value"])),
        mf.SqrtScaling(),
        mf.Noise(p["kappa"]),
    )
    state = mf.Density(circle.grid(5), p["c"], circle.grid(16))
    return observable(evolve(model, state, p["t0"], p["t1"], rtol, rtol / 100, max_steps=512))


def density_on(space: Any) -> Callable:
    """A density under Post-LN."""

    def end(p: Any, rtol: Any) -> jax.Array:
        model = mf.Model(mf.Attention(p["beta"]), mf.PostLN())
        return observable(
            evolve(model, mf.Density(space.grid(5), p["c"]), p["t0"], p["t1"], rtol, rtol / 100, max_steps=64)
        )

    return end


def coefficients(space: Any) -> np.ndarray:
    grid = space.grid(5)
    c = 0.5 * np.random.default_rng(1).standard_normal(grid.size) * 0.4**grid.degrees
    c[0] = 1.0
    return c


def heads(dimension: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    shapes = {"query": (2, 2, dimension), "key": (2, 2, dimension), "value": (2, dimension, dimension)}
    return {part: 0.7 * rng.standard_normal(shape) for part, shape in shapes.items()}


WEIGHTS = np.array([0.2, 0.0, 0.5, 0.3])
DEPTHS = {"t0": 0.05, "t1": END}
CASES: dict[str, tuple[Callable, dict[str, Any]]] = {
    "tokens-ngpt-heads-schedules": (
        tokens_with_everything,
        {
            "times": [0.2, 0.3, 0.55],
            "betas": [1.0, 3.0, 0.5],
            "alphas": [1.0, 0.4],
            "x": units(4, 3),
            "weights": WEIGHTS,
        }
        | DEPTHS
        | heads(3),
    ),
    "tokens-mix-ln-moments": (
        tokens_that_switch,
        {"beta": 1.5, "tau": 0.3, "x": 1.3 * units(4, 2), "weights": WEIGHTS} | DEPTHS,
    ),
    "tokens-peri-ln-causal": (causal_tokens, {"beta": 1.5, "x": 0.8 * units(4, 3), "weights": WEIGHTS}),
    "density-circle-noise-heads": (
        noisy_density_with_heads,
        {"beta": 1.5, "kappa": 4.0, "c": coefficients(mf.Circle())} | DEPTHS | heads(2),
    ),
    "density-sphere": (density_on(mf.Sphere()), {"beta": 1.5, "c": coefficients(mf.Sphere())} | DEPTHS),
    "density-zonal": (density_on(mf.Zonal(6)), {"beta": 1.5, "c": coefficients(mf.Zonal(6))} | DEPTHS),
}
SLOW = {"density-sphere"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CASES]
)
def test_the_gradient_in_every_parameter_is_the_limit_of_differences(name):
    end, given = CASES[name]
    parameters = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, dtype=float), given, is_leaf=lambda leaf: not isinstance(leaf, dict)
    )
    tight = 1e-11 if "noise" in name else TIGHT  # the exponential method is of fourth order only
    value, slope = jax.jit(end), jax.jit(jax.grad(end))
    exact = differences(lambda p: value(p, tight), parameters)
    assert np.all(np.abs(exact) > 1e-9)  # no parameter is without effect
    for rtol in (1e-8, 1e-10, tight):
        found, _ = ravel_pytree(slope(parameters, rtol))
        assert np.abs(found - exact).max() < max(100 * rtol, 1e-10) * np.abs(exact).max(), rtol


# ------------------------------------------------------------------ transformations, on one small flow

X, EQUAL = units(4, 3), np.full(4, 0.25)


def end_at(beta: Any, rtol: Any = 1e-12, **options: Any) -> jax.Array:
    return observable(evolve(mf.Model(mf.Attention(beta)), mf.Ensemble(X, EQUAL), 0.0, 1.0, rtol, rtol, **options))


def test_values_have_the_same_bits_with_and_without_a_derivative():
    for rtol in (1e-6, 1e-10):
        plain = end_at(2.0, rtol)
        assert plain == jax.value_and_grad(end_at)(2.0, rtol)[0]
        assert plain == end_at(2.0, rtol, derivative="forward")


def test_a_batch_of_gradients_is_each_of_them_alone():
    slope, betas = jax.jit(jax.grad(end_at)), jnp.array([0.0, 0.5, 2.0, 5.0])
    np.testing.assert_allclose(jax.jit(jax.vmap(slope))(betas), [slope(beta) for beta in betas], rtol=1e-12)


@pytest.mark.slow
def test_the_second_derivative_is_the_limit_of_differences_of_the_first():
    slope = jax.jit(jax.grad(end_at))
    np.testing.assert_allclose(jax.jit(jax.jacfwd(slope))(2.0), differences(slope, 2.0, 1e-3)[0], rtol=1e-7)


def test_forward_derivatives_are_the_reverse_ones():
    def end(p: Any, derivative: Any) -> jax.Array:
        model = mf.Model(mf.Attention(p["beta"]), mf.MixLN(p["tau"]))
        state = mf.Ensemble(p["x"], EQUAL)
        return observable(evolve(model, state, p["t0"], p["t1"], 1e-12, 1e-14, derivative=derivative))

    given = {"beta": 2.0, "tau": 0.4, "x": X, "t0": 0.1, "t1": 1.0}
    p = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=float), given)
    forward = jax.jit(jax.jacfwd(lambda p: end(p, "forward")))(p)
    reverse = jax.jit(jax.grad(lambda p: end(p, "reverse")))(p)
    for key in p:
        np.testing.assert_allclose(forward[key], reverse[key], atol=1e-9, err_msg=key)


@pytest.mark.parametrize("derivative", ["forward", "reverse"])
def test_where_nothing_moves_derivatives_are_finite(derivative):
    # one token: A = θ, the rate is exactly 0, and so is every estimate of an error
    jacobian = jax.jacfwd if derivative == "forward" else jax.jacrev

    def end(beta: Any, x: Any) -> Any:
        return evolve(mf.Model(mf.Attention(beta)), mf.Ensemble(x, np.ones(1)), 0.0, 1.0, derivative=derivative).x

    x = jnp.array([[0.0, 0.0, 2.0]])
    in_beta, in_x = jacobian(end, argnums=(0, 1))(2.0, x)
    np.testing.assert_allclose(in_beta, 0, atol=1e-15)
    np.testing.assert_allclose(in_x.reshape(3, 3), np.eye(3), atol=1e-12)


def test_more_steps_than_are_stored_give_no_number_rather_than_a_wrong_one():
    model, state, advance = mf.Model(mf.Attention(2.0)), mf.Ensemble(X, EQUAL), jax.jit(integrate.advance)
    begun, derivative = integrate.start(state, 0.0), jax.jit(jax.value_and_grad(lambda b, r: end_at(b, r, max_steps=6)))
    steps = []
    for rtol in 10.0 ** np.linspace(-13, -4, 10):
        value, slope = derivative(2.0, rtol)
        steps.append(int(advance(model, state, begun, 1.0, Limits(rtol, rtol, np.inf, -np.inf)).accepted))
        assert value == pytest.approx(float(end_at(2.0)), abs=10 * rtol)
        assert np.isnan(slope) == (steps[-1] > 6)
    assert 6 in steps
    assert max(steps) > 6
    assert np.isfinite(jax.grad(lambda t: observable(evolve(model, state, 0.0, t, max_steps=1)))(0.0))


def test_what_is_no_number_of_steps_and_no_derivative_is_refused():
    for wrong in (0, -1, 1.5, True, "many"):
        with pytest.raises(mf.InputError, match=r"^max_steps = .*: expected an integer of at least 1"):
            end_at(2.0, max_steps=wrong)
    with pytest.raises(mf.InputError, match=r"^derivative = 'both'"):
        end_at(2.0, derivative="both")


def test_where_a_run_fails_its_gradient_is_no_number():
    stuck = jax.value_and_grad(lambda beta: end_at(beta, 1e-30))(2.0)
    assert np.isnan(stuck).all()


def test_tolerances_and_the_interval_of_random_heads_are_constants():
    def end(rtol: Any, interval: Any) -> jax.Array:
        weights = mf.RandomHeads("gaussian", seed=1, interval=interval)
        return observable(
            evolve(mf.Model(mf.Attention(1.0, weights=weights)), mf.Ensemble(X, EQUAL), 0.0, 1.0, rtol, rtol)
        )

    assert jax.grad(end, argnums=(0, 1))(1e-8, 0.3) == (0.0, 0.0)


@pytest.mark.slow
def test_a_gradient_sees_random_heads_as_it_sees_given_ones():
    drawn = mf.RandomHeads("gaussian", 2, seed=1, interval=0.5)

    def through(beta: Any, **attention: Any) -> jax.Array:
        state, t = mf.Ensemble(X, EQUAL), 0.0
        for end, keys in attention.pop("pieces"):
            state, t = evolve(mf.Model(mf.Attention(beta, **keys)), state, t, end, 1e-12, 1e-14), end
        return observable(state)

    pieces = [(end, {"heads": drawn.drawn(layer, 3)}) for layer, end in enumerate((0.5, 0.8))]
    whole = jax.grad(lambda beta: through(beta, pieces=[(0.8, {"weights": drawn})]))(1.5)
    np.testing.assert_allclose(whole, jax.grad(lambda beta: through(beta, pieces=pieces))(1.5), rtol=1e-9)


def test_layers_have_gradients_too():
    model = lambda beta: mf.Model(mf.Attention(beta, causal=True), mf.PeriLN())  # noqa: E731
    end = lambda beta: observable(mf.apply_layers(model(beta), mf.Ensemble(X, EQUAL), 4, 0.2))  # noqa: E731
    np.testing.assert_allclose(jax.grad(end)(1.5), differences(end, 1.5)[0], rtol=1e-9)


@pytest.mark.parametrize("transform", [jax.grad, jax.jit, lambda f: lambda beta: jax.vmap(f)(jnp.ones(2) * beta)])
def test_tracing_in_float32_is_refused_in_a_sentence(transform):
    with jax.enable_x64(False):
        for function in (end_at, lambda beta: beta * end_at(2.0)):
            if function is end_at or transform is jax.jit:
                with pytest.raises(
                    mf.PrecisionError, match=r"computes in float64 but is traced with x64 off.*enable_x64"
                ):
                    transform(function)(2.0)
