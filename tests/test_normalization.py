"""Six schemes, each a push and a flag: the table of speeds, the layers, and the symmetry that all of them share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import ortho_group

from meanfield.ensemble import Ensemble
from meanfield.keys import InputError
from meanfield.normalization import NGPT, SCHEMES, MixLN, PeriLN, PostLN, PreLN, SqrtScaling

ALPHA, T = 0.7, 3.0


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def scheme(cls):
    return cls(ALPHA) if cls is NGPT else cls()


# (scheme on one branch, s, dr/dt): dθ/dt = P_θA/s (2510.22026)
def dot(u, v):
    return np.sum(u * v, axis=-1, keepdims=True)


def length(v):
    return np.linalg.norm(v, axis=-1, keepdims=True)


TABLE = {
    "post-ln": (PostLN(), lambda r, A, t: 1.0, lambda theta, A: 0 * dot(theta, A)),
    "pre-ln": (PreLN(), lambda r, A, t: r, dot),
    "mix-ln before": (MixLN().branches()[0], lambda r, A, t: 1.0, lambda theta, A: 0 * dot(theta, A)),
    "mix-ln after": (MixLN().branches()[1], lambda r, A, t: r, dot),
    "peri-ln": (PeriLN(), lambda r, A, t: r * length(A), lambda theta, A: dot(theta, A) / length(A)),
    "ngpt": (NGPT(ALPHA), lambda r, A, t: length(A) / ALPHA, lambda theta, A: 0 * dot(theta, A)),
    "sqrt-scaling": (SqrtScaling(), lambda r, A, t: np.sqrt(t + 1), lambda theta, A: 0 * dot(theta, A)),
}


@pytest.fixture(scope="module")
def sample() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Directions, radii, and attention of any direction and size."""
    rng = np.random.default_rng(0)
    theta = rng.standard_normal((20, 6))
    theta /= length(theta)
    return theta, rng.uniform(0.3, 3.0, (20, 1)), rng.standard_normal((20, 6)) * rng.uniform(0.01, 2.0, (20, 1))


def velocity(branch, theta, r, A) -> np.ndarray:
    """dx/dt of tokens x = rθ."""
    tokens = Ensemble(r * theta, np.full(len(theta), 1 / len(theta)))
    return np.asarray(tokens.transport(branch.push(theta, A, T), branch.restores))


@pytest.mark.parametrize("row", TABLE)
def test_directions_and_radii_move_as_the_table_says(row, sample):
    branch, s, radius_rate = TABLE[row]
    theta, r, A = sample
    x_dot = velocity(branch, theta, r, A)
    # dr/dt = ⟨θ, dx/dt⟩ and r dθ/dt = P_θ dx/dt
    theta_dot = (x_dot - dot(theta, x_dot) * theta) / r
    tangential = A - dot(theta, A) * theta
    np.testing.assert_allclose(theta_dot, tangential / s(r, A, T), atol=2e-15 * np.abs(theta_dot).max())
    np.testing.assert_allclose(dot(theta, x_dot), radius_rate(theta, A), atol=2e-15 * np.abs(x_dot).max())


@pytest.mark.parametrize("cls", SCHEMES)
def test_the_flow_turns_with_the_tokens(cls, sample):
    # a radius rate summed over coordinates, in place of ⟨θ,A⟩, would not
    theta, r, A = sample
    R = ortho_group.rvs(6, random_state=1)
    for branch in scheme(cls).branches():
        turned = velocity(branch, theta @ R.T, r, A @ R.T)
        np.testing.assert_allclose(turned, velocity(branch, theta, r, A) @ R.T, atol=1e-14)


def layer(branch, x, A, t, eta):
    """x + ηp, or r N(θ + ηp) where the norm is restored."""
    r = length(x)
    if branch.restores:
        new = x / r + eta * np.asarray(branch.push(x / r, A, t))
        return r * new / length(new)
    return x + eta * np.asarray(branch.push(x / r, A, t))


# the layers of 2510.22026 themselves
LAYERS = {
    "post-ln": lambda x, A, eta: (x / length(x) + eta * A) / length(x / length(x) + eta * A),
    "pre-ln": lambda x, A, eta: x + eta * A,
    "peri-ln": lambda x, A, eta: x + eta * A / length(A),
    "ngpt": lambda x, A, eta: x + eta * ALPHA * (A / length(A) - x),
    "sqrt-scaling": lambda x, A, eta: x + eta * A / np.sqrt(eta * round(T / eta) + 1),
}


@pytest.mark.parametrize("row", LAYERS)
def test_push_and_flag_give_the_layer(row, sample):
    branch, (theta, r, A) = TABLE[row][0], sample
    x = theta if branch.restores else r * theta
    exact = LAYERS[row](x, A, 0.25)
    if branch.restores:
        exact = exact / length(exact)
    np.testing.assert_allclose(layer(branch, x, A, T, 0.25), exact, atol=1e-15)


@pytest.mark.parametrize("row", TABLE)
def test_layers_converge_to_the_flow_at_first_order(row, sample):
    branch, (theta, r, A) = TABLE[row][0], sample
    x, flow = r * theta, velocity(TABLE[row][0], theta, r, A)
    errors = [np.abs((layer(branch, x, A, T, eta) - x) / eta - flow).max() for eta in (1e-2, 1e-3, 1e-4)]
    if branch.restores:
        orders = -np.diff(np.log10(errors))
        assert orders.min() > 0.9
        assert orders.max() < 1.1
    else:
        # one layer is one Euler step
        assert max(errors) < 1e-10


@pytest.mark.parametrize("cls", SCHEMES)
def test_vanishing_attention_moves_nothing_and_has_a_finite_gradient(cls):
    theta, r = np.array([[0.6, 0.8]]), np.array([[2.0]])
    for branch in scheme(cls).branches():

        def rate(A, branch=branch):
            return Ensemble(r * theta, np.ones(1)).transport(branch.push(theta, A, T), branch.restores)

        zero = jnp.zeros((1, 2))
        np.testing.assert_allclose(rate(zero), 0, atol=1e-15)
        assert np.isfinite(jax.jacfwd(rate)(zero)).all()
        assert np.isfinite(jax.jacrev(rate)(zero)).all()


def test_mix_ln_is_post_ln_up_to_its_switch_and_pre_ln_after():
    mixed = MixLN(2.5)
    assert mixed.breaks() == (2.5,)
    assert [type(branch) for branch in mixed.branches()] == [PostLN, PreLN]
    with pytest.raises(NotImplementedError, match="branches"):
        mixed.push(np.zeros(2), np.zeros(2), 1.0)


@pytest.mark.parametrize("cls", [cls for cls in SCHEMES if cls is not MixLN])
def test_the_others_are_the_same_at_every_depth(cls):
    one = scheme(cls)
    assert one.breaks() == ()
    assert one.branches() == (one,)


def test_six_schemes_six_names():
    assert [cls.case_name for cls in SCHEMES] == ["post-ln", "pre-ln", "mix-ln", "peri-ln", "ngpt", "sqrt-scaling"]
    assert {cls.case_name for cls in SCHEMES if cls.divides_by_attention} == {"peri-ln", "ngpt"}


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, [1.0, 2.0]])
def test_an_alpha_that_is_not_positive_is_refused(value):
    with pytest.raises(InputError, match=r"^alpha = .*: expected a finite number greater than 0$"):
        NGPT(value)


@pytest.mark.parametrize("value", [-0.5, np.nan, np.inf])
def test_a_switch_before_the_start_is_refused(value):
    with pytest.raises(InputError, match=r"^switch_time = .*: expected a finite number of at least 0$"):
        MixLN(value)
    assert MixLN(0.0).breaks() == (0.0,)
