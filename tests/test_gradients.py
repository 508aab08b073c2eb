"""Derivatives of an end observable through `evolve`: against central differences, at three tolerances."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import two_bumps

import meanfield as mf
from meanfield.observables import order_parameter

TOLERANCES = [1e-6, 1e-9, 1e-12]


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def bump(space, degree: int) -> mf.Density:
    grid = space.grid(degree)
    law = two_bumps() if space.dimension == 3 and not space.rings else mf.vmf_mixture(space, [space.axis], [0.8])
    return mf.Density(grid, law.coefficients(grid))


def tokens(count: int = 9) -> mf.Ensemble:
    x = np.random.default_rng(0).standard_normal((count, 3))
    weights = np.random.default_rng(1).random(count)
    return mf.Ensemble(x / np.linalg.norm(x, axis=1)[:, None], weights / weights.sum())


def end(model, state, t0=0.0, t1=1.0, rtol=1e-11, **options):
    """The order parameter at the end."""
    return order_parameter(mf.evolve(model, state, t0, t1, rtol, 1e-2 * rtol, **options))


def central(function, x, step=1e-3):
    """The derivative by a fourth-order central difference."""
    f = lambda k: float(function(x + k * step))  # noqa: E731
    return (8 * (f(1) - f(-1)) - (f(2) - f(-2))) / (12 * step)


@pytest.mark.slow
@pytest.mark.parametrize("rtol", TOLERANCES)
@pytest.mark.parametrize(
    "state",
    [bump(mf.Circle(), 16), bump(mf.Sphere(), 12), bump(mf.Zonal(6), 12), tokens()],
    ids=["S1", "S2", "zonal", "tokens"],
)
def test_in_beta(state, rtol):
    final = lambda beta, rtol=rtol: end(mf.Model(mf.Attention(beta)), state, rtol=rtol)  # noqa: E731
    slope = float(jax.grad(final)(1.5))
    assert slope == pytest.approx(central(lambda beta: final(beta, 1e-13), 1.5), rel=1e-6 if rtol < 1e-7 else 1e-4)


def head(v) -> mf.Heads:
    return mf.Heads(v * np.eye(3), np.eye(3), jnp.diag(jnp.stack([v, 1.0, 2.0])))


NUMBERS = {
    "alpha": (lambda v: mf.Model(mf.Attention(1.0), mf.NGPT(v)), 0.8),
    "tau": (lambda v: mf.Model(mf.Attention(1.0), mf.MixLN(v)), 0.4),
    "schedule": (lambda v: mf.Model(mf.Attention(mf.Schedule(jnp.array([0.0, 0.5]), jnp.stack([1.0, v])))), 2.0),
    "head": (
        lambda v: mf.Model(
            mf.Attention(1.0, heads=mf.Heads(v * np.eye(3), np.eye(3), jnp.diag(jnp.stack([v, 1.0, 2.0]))))
        ),
        1.3,
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_in_the_numbers_of_a_model(name):
    make, value = NUMBERS[name]
    final = lambda v: end(make(v), tokens())  # noqa: E731
    assert float(jax.grad(final)(jnp.asarray(value))) == pytest.approx(central(final, jnp.asarray(value)), rel=1e-6)


def test_in_kappa_where_there_is_noise():
    final = lambda kappa: end(mf.Model(mf.Attention(1.0), noise=mf.Noise(kappa)), bump(mf.Circle(), 12), rtol=1e-9)  # noqa: E731
    assert float(jax.grad(final)(4.0)) == pytest.approx(central(final, 4.0, 1e-2), rel=1e-6)


@pytest.mark.parametrize("scheme", [mf.SqrtScaling(), mf.PreLN()], ids=lambda s: s.case_name)
def test_in_both_depths(scheme):
    final = lambda t0, t1: end(mf.Model(mf.Attention(1.0), scheme), tokens(), t0, t1)  # noqa: E731
    slopes = jax.grad(final, (0, 1))(0.3, 1.2)
    assert float(slopes[0]) == pytest.approx(central(lambda t: final(t, 1.2), 0.3), rel=1e-6)
    assert float(slopes[1]) == pytest.approx(central(lambda t: final(0.3, t), 1.2), rel=1e-6)


@pytest.mark.parametrize("rtol", TOLERANCES)
def test_in_the_initial_coefficients_of_a_density(rtol):
    state = bump(mf.Circle(), 12)
    final = lambda c, rtol=rtol: end(mf.Model(mf.Attention(2.0)), state.moved(c), rtol=rtol)  # noqa: E731
    c = jnp.asarray(state.coefficients)
    slope = jax.grad(final)(c)
    for mode in (1, 2, 4):
        along = lambda v, mode=mode: final(c.at[mode].set(v), 1e-13)  # noqa: E731
        difference = central(along, c[mode], 1e-3)
        assert float(slope[mode]) == pytest.approx(difference, rel=1e-6 if rtol < 1e-7 else 1e-3, abs=1e-8)


def test_in_tokens_and_weights():
    state, chosen = tokens(), mf.Model(mf.Attention(1.0), mf.PeriLN())
    final = lambda x, w: end(chosen, mf.Ensemble(x, w))  # noqa: E731
    x, w = jnp.asarray(state.x), jnp.asarray(state.weights)
    in_x, in_w = jax.grad(final, (0, 1))(x, w)
    assert float(in_x[2, 1]) == pytest.approx(central(lambda v: final(x.at[2, 1].set(v), w), x[2, 1]), rel=1e-6)
    assert float(in_w[3]) == pytest.approx(central(lambda v: final(x, w.at[3].set(v)), w[3]), rel=1e-6)


class TestTransformations:
    def final(self, beta, **options):
        return end(mf.Model(mf.Attention(beta)), tokens(), rtol=1e-9, **options)

    @pytest.mark.slow
    def test_jit_vmap_and_second_derivatives(self):
        slope = jax.grad(self.final)
        betas = jnp.array([0.5, 1.5])
        each = [float(slope(beta)) for beta in betas]
        np.testing.assert_allclose(jax.jit(jax.vmap(slope))(betas), each, rtol=1e-7)
        assert float(jax.jacfwd(slope)(1.5)) == pytest.approx(central(slope, 1.5, 1e-2), rel=1e-5)

    def test_forward_derivatives_on_request(self):
        forward = lambda beta: self.final(beta, derivative="forward")  # noqa: E731
        np.testing.assert_allclose(jax.jacfwd(forward)(1.5), jax.grad(self.final)(1.5), rtol=1e-7)
        with pytest.raises(TypeError, match="forward"):
            jax.jvp(self.final, (1.5,), (1.0,))

    def test_the_value_has_the_same_bits_with_and_without_a_derivative(self):
        plain = float(self.final(1.5))
        assert float(jax.value_and_grad(self.final)(1.5)[0]) == plain
        assert float(self.final(1.5, derivative="forward")) == plain

    def test_more_steps_than_can_be_stored_give_no_wrong_derivative(self):
        value, slope = jax.value_and_grad(lambda beta: self.final(beta, max_steps=2))(1.5)
        assert float(value) == float(self.final(1.5))
        assert np.isnan(float(slope))

    def test_no_depth_at_all_moves_nothing(self):
        slope = jax.grad(lambda beta: end(mf.Model(mf.Attention(beta)), tokens(), 0.7, 0.7))(1.5)
        assert float(slope) == 0.0

    def test_with_x64_off_it_refuses(self):
        with jax.enable_x64(False), pytest.raises(mf.PrecisionError, match="enable_x64"):
            jax.grad(self.final)(1.5)
